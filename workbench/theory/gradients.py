"""Exact policy gradients of single rollouts: how large an update is, and what a selector leaves of it.

No training: rollouts are sampled once, each one's gradient is taken, and every question after that is asked of their
inner products. With v_j the gradient of rollout j's mean token log-probability, the update of a group with weights w is
the sum of w_j v_j; its squared length and its cosine with another update follow from the matrix of v_i . v_j alone.
The update is the one right after sampling: every ratio is 1, nothing is clipped, there is no KL term.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from workbench.advantages import group_normalized, posterior, selected_advantages
from workbench.analysis.metrics import mean_interval
from workbench.grpo import grpo_step
from workbench.objectives import Objective
from workbench.policies import Sampling
from workbench.selectors import All
from workbench.utils.descriptions import compose
from workbench.utils.seeding import derive, generator
from workbench.utils.validation import whole_number

MEANS = ("rollout", "token")
COLUMNS_AT_ONCE = 2**16  # parameters of all rollouts held in float64


class Norms(NamedTuple):
    """Both sides of a bound on a squared gradient norm: the norm's own square, and the bound."""

    squared: float
    bound: float


def sampled_groups(policy, problems, verifier, n, *, sampling=Sampling(), seed=0):
    """n verified rollouts of each problem, grouped in the order of the problems: `Rollouts` of len(problems) * n rows."""
    problems = list(problems)
    whole_number("n", n, 1)
    seeds = [derive(seed, "gradients", problem.id) for problem in problems]
    rollouts = policy.generate(problems, np.full(len(problems), n), sampling, seeds)
    scores = verifier.score(list(rollouts.text), list(rollouts.answer))
    return rollouts.assign(reward=scores.reward, correct=scores.correct, status=scores.status)


def mixed_groups(rollouts, least=1):
    """The rows of problems with at least `least` correct and as many wrong rollouts: `Rollouts`."""
    _, groups = rollouts.problems()
    right, all_ = np.bincount(groups, rollouts.correct), np.bincount(groups)
    return rollouts.take(np.flatnonzero((np.minimum(right, all_ - right) >= least)[groups]))


def rollout_gradients(policy, rollouts, temperature=1.0):
    """Gradient of each rollout's mean token log-probability, (R, D) float32 torch tensor on the CPU.

    D: all trainable parameters, in the order of `policy.parameters()`. One backward pass a rollout and R * D * 4 bytes:
    meant for the tiny model, or for LoRA.
    """
    parameters = [p for p in policy.parameters() if p.requires_grad]
    policy.model.eval()  # no dropout: the gradient of the distribution that was sampled from
    out = torch.empty(len(rollouts), sum(p.numel() for p in parameters))
    for i, length in enumerate(rollouts.lengths):
        objective = policy.logprobs(rollouts.take([i]), temperature).sum() / max(int(length), 1)
        parts = torch.autograd.grad(
            objective, parameters, allow_unused=True, materialize_grads=True
        )
        out[i] = torch.cat([part.reshape(-1) for part in parts])
    return out


def inner_products(gradients):
    """v_i . v_j of gradients (R, D), NumPy or torch: (R, R) float64."""
    parts = (part.double() for part in torch.as_tensor(gradients).split(COLUMNS_AT_ONCE, dim=1))
    return sum(part @ part.T for part in parts).numpy()


def group_products(policy, rollouts, temperature=1.0):
    """`inner_products` of every group: dict from problem to (n, n) float64, in the order of the problem's rows.

    Equal responses are computed once.
    """
    names, groups = rollouts.problems()
    products = {}
    for number, name in enumerate(names):
        group = rollouts.take(np.flatnonzero(groups == number))
        keys = [(group.prompt[i].tobytes(), group.response[i].tobytes()) for i in range(len(group))]
        distinct = list(dict.fromkeys(keys))
        inverse = [distinct.index(key) for key in keys]
        matrix = inner_products(
            rollout_gradients(
                policy, group.take([keys.index(key) for key in distinct]), temperature
            )
        )
        products[str(name)] = matrix[np.ix_(inverse, inverse)]
    return products


def cosine(products, a, b):
    """Cosine of the updates with weights a (R,) and b (R,) by inner products (R, R); 0 where one of them is zero."""
    lengths = squared_norm(products, a) * squared_norm(products, b)
    return float(np.clip(a @ products @ b / np.sqrt(lengths), -1, 1)) if lengths > 0 else 0.0


def squared_norm(products, weights):
    """Squared length of the update with weights (R,) by inner products (R, R): a number of at least 0."""
    return max(float(weights @ products @ weights), 0.0)


# AERO, theorem 4.1


def balance(c, m):
    """The factor c m / (c + m)^2 of AERO's theorem 4.1, at most 1/4, at c = m; broadcasts."""
    c, m = np.asarray(c, dtype=np.float64), np.asarray(m, dtype=np.float64)
    return c * m / (c + m) ** 2


def norm_bound(products, correct, lengths=None):
    """Squared gradient norm of one group against cm/(c+m)^2 |v_C - v_F|^2: `Norms` (AERO, theorem 4.1, eq. 8).

    products (n, n): of the group's gradients; correct (n,) bool, both outcomes present; v_C and v_F: mean gradients of
    the c correct and the m wrong rollouts. With advantages over the population deviation both sides are equal, whatever
    the gradients are: the theorem's inequality comes from its expectation alone, see `expected_norms`. lengths (n,):
    takes one mean over all tokens instead of the mean over rollouts; the theorem assumes equal lengths, where the two
    agree, and does not hold without.
    """
    correct = _two_outcomes(products, correct)
    weights = group_normalized(correct.astype(float), np.zeros(len(correct)))
    weights = weights / len(correct) if lengths is None else weights * lengths / np.sum(lengths)
    factor = balance(correct.sum(), (~correct).sum())
    return Norms(
        squared_norm(products, weights),
        float(factor * squared_norm(products, _difference(correct))),
    )


def expected_norms(products, correct, c, m):
    """|E G|^2 and E|G|^2 over groups of c correct and m wrong rollouts drawn from a pool: `Norms`, exact.

    products (n, n), correct (n,): the pool, with at least c and m of them (and 2 of each); drawn without replacement.
    This is theorem 4.1 with its expectation: E|G|^2 = cm/(c+m)^2 E|v_C - v_F|^2 is the bound. What lies between the two
    is noise, whose expectation is the spread of the gradients divided by c and m. The pool's own v_C - v_F is noisy too:
    |E G|^2 is that of the pool, on average more than the policy's.
    """
    correct = _two_outcomes(products, correct)
    signal, noise = squared_norm(products, _difference(correct)), 0.0
    for name, side, drawn in (("c", correct, c), ("m", ~correct, m)):
        size = int(side.sum())
        whole_number(name, drawn, 1, size)
        mean = np.where(side, 1 / size, 0.0)
        spread = (np.diag(products)[side].sum() - size * squared_norm(products, mean)) / max(
            size - 1, 1
        )
        noise += max(spread, 0.0) * (1 / drawn - 1 / size)
    factor = float(balance(c, m))
    return Norms(factor * signal, factor * (signal + noise))


def norm_bounds(products, rollouts, n=8):
    """Theorem 4.1 on every problem with enough rollouts: a DataFrame of squared, bound, problem and case, in words.

    products: of `group_products`; rollouts: those of these problems. One group: the first n draws, where they are mixed,
    by `norm_bound` with the mean over rollouts and over tokens. Mean gradient: over all groups of n/2 right and n/2 wrong
    ones from the problem's rollouts, by `expected_norms`.
    """
    import pandas as pd

    whole_number("n", n, 4)
    rows = []
    for problem, matrix in products.items():
        mine = rollouts.take(rollouts.problem == problem)
        few, right = np.flatnonzero(mine.draw < n), mine.correct.sum()
        if 0 < mine.correct[few].sum() < len(few):
            part = matrix[np.ix_(few, few)], mine.correct[few]
            rows.append((*norm_bound(*part), problem, f"one group of {n}"))
            rows.append(
                (*norm_bound(*part, mine.lengths[few]), problem, f"one group of {n}, token mean")
            )
        if min(right, len(mine) - right) >= n // 2:
            half = n // 2
            rows.append(
                (
                    *expected_norms(matrix, mine.correct, half, half),
                    problem,
                    f"mean of groups of {half} + {half}",
                )
            )
    return pd.DataFrame(rows, columns=["squared", "bound", "problem", "case"])


def prior_norms(policy, rollouts, alpha=1.0, beta=1.0):
    """Gradient norm of a step on a whole batch without and with the posterior of uniform groups: dict (AERO, table 7).

    One mean over all rollouts of their token means, no entropy bonus, ratio 1; the policy is not changed. without: plain
    group advantages; with; part: what the uniform groups alone add; ratio: with / without; factor: how many times as
    large advantages of uniform groups would need to be for a ratio of 1.5, the published one.
    """
    still, objective = torch.optim.SGD(policy.parameters(), lr=0.0), Objective(mean="rollout")
    plain = group_normalized(rollouts.reward, rollouts.group)
    both = posterior(rollouts.reward, rollouts.group, alpha, beta)
    without, joint, part = (grpo_step(policy, still, rollouts, advantages, objective).gradient_norm
                            for advantages in (plain, both, both - plain))  # fmt: skip
    inner = (joint**2 - without**2 - part**2) / 2
    factor = (
        (np.sqrt(inner**2 + (1.5**2 - 1) * part**2 * without**2) - inner) / part**2
        if part > 0
        else float("nan")
    )
    return {
        "without": without,
        "with": joint,
        "part": part,
        "ratio": joint / without,
        "factor": float(factor),
    }


def half_cosines(products, rollouts, advantage=group_normalized):
    """Cosine of the updates that two halves of a problem's rollouts ask for: a DataFrame of problem, kind and cosine.

    products: of `group_products`; rollouts: those of these problems; the halves are by order of drawing. An update that
    is noise has a mean of 0. kind: "all wrong", "all right" or "mixed"; problems whose halves are of different kinds, or
    have no gradient, are left out.
    """
    import pandas as pd

    rows = []
    for problem, matrix in products.items():
        mine = rollouts.take(rollouts.problem == problem)
        half = np.arange(len(mine)) < len(mine) // 2
        kinds = {_kind(mine.correct[side]) for side in (half, ~half)}
        weights = advantage(mine.reward, half) / len(mine)
        a, b = np.where(half, weights, 0), np.where(half, 0, weights)
        if len(kinds) == 1 and a.any() and b.any():
            rows.append((problem, kinds.pop(), cosine(matrix, a, b)))
    return pd.DataFrame(rows, columns=["problem", "kind", "cosine"])


def norms_by_balance(products, rollouts, c, wrong):
    """Squared norms as wrong rollouts join c correct ones: a DataFrame (problems x wrong), long (AERO, lemma 4.2).

    products: of `group_products`; rollouts: those of these problems; wrong: counts m. Problems with too few rollouts of
    an outcome are left out. Columns: problem, m, factor, signal = |E G|^2, group = E|G|^2, each relative to m = c.
    """
    import pandas as pd

    wrong, rows = sorted({int(m) for m in wrong} | {c}), []
    for problem, matrix in products.items():
        correct = rollouts.correct[rollouts.problem == problem]
        if correct.sum() < max(c, 2) or (~correct).sum() < max(wrong[-1], 2):
            continue
        unit = expected_norms(matrix, correct, c, c)
        for m in wrong:
            norms = expected_norms(matrix, correct, c, m)
            rows.append(
                (
                    problem,
                    m,
                    balance(c, m) / balance(c, c),
                    norms.squared / unit.squared,
                    norms.bound / unit.bound,
                )
            )
    return pd.DataFrame(rows, columns=["problem", "m", "factor", "signal", "group"])


# selectors


def fidelity(
    products,
    rollouts,
    selectors,
    *,
    seed=0,
    seen=None,
    reference=None,
    advantage=group_normalized,
    mean="rollout",
):
    """What each selector leaves of the group's gradient: a DataFrame, one row a problem and selector.

    products: of `group_products`; rollouts: those of these problems; selectors: each with advantages over its own
    `statistics`. seen (R,) bool: the candidates; reference (R,) bool: the rows whose gradient, all of them kept, the
    selected one is compared with; both default to all rows. Disjoint ones ask another question: not how well a selector
    copies its group, but how well it points where fresh rollouts of the problem do. advantage: function of rewards and
    groups. mean: "rollout", the mean over rollouts of their token means, or "token", one mean over all tokens of a group.
    Columns: rule, selector, problem, kept (share of the candidates), cosine and norm_ratio (both 0 where nothing is left),
    gradient (whether anything is). Problems whose candidates or reference have no gradient are left out.
    """
    import pandas as pd

    if mean not in MEANS:
        raise ValueError(f"mean={mean!r}: allowed are {', '.join(map(repr, MEANS))}")
    seen, reference = _mask("seen", seen, rollouts), _mask("reference", reference, rollouts)
    update = partial(_update, rollouts=rollouts, advantage=advantage, mean=mean, seed=seed)
    target, whole = update(All(), reference)[0], update(All(), seen)[0]
    updates = [(selector, *update(selector, seen)) for selector in selectors]
    rows = []
    for problem, matrix in products.items():
        mine = rollouts.problem == problem
        if not (target[mine].any() and whole[mine].any()):
            continue
        for selector, weights, kept in updates:
            own, ratio = (
                weights[mine],
                squared_norm(matrix, weights[mine]) / squared_norm(matrix, target[mine]),
            )
            rows.append((_rule(selector), compose(selector), problem, kept[mine].sum() / seen[mine].sum(),
                         cosine(matrix, own, target[mine]), np.sqrt(ratio), bool(own.any())))  # fmt: skip
    return pd.DataFrame(
        rows, columns=["rule", "selector", "problem", "kept", "cosine", "norm_ratio", "gradient"]
    )


def fidelity_means(frame, level=0.95):
    """`fidelity` averaged over problems: a DataFrame, one row a selector in the frame's order, with interval half-widths.

    Columns: rule, kept, cosine, cosine_half, norm_ratio, norm_ratio_half, gradient (share of problems), n (problems).
    The intervals are Student's over problems.
    """
    import pandas as pd

    rows = {}
    for selector, part in frame.groupby("selector", sort=False):
        intervals = [mean_interval(part[name], level) for name in ("cosine", "norm_ratio")]
        rows[selector] = [
            part["rule"].iloc[0],
            part["kept"].mean(),
            *np.ravel(intervals),
            part["gradient"].mean(),
            len(part),
        ]
    names = [
        "rule",
        "kept",
        "cosine",
        "cosine_half",
        "norm_ratio",
        "norm_ratio_half",
        "gradient",
        "n",
    ]
    return pd.DataFrame.from_dict(rows, orient="index", columns=names).rename_axis("selector")


def _update(selector, candidates, rollouts, advantage, mean, seed):
    """Weights (R,) of the update on what a selector keeps of the candidates (R,) bool, and what it keeps, (R,) bool."""
    rows = np.flatnonzero(candidates)
    pool = rollouts.take(rows)
    pool = pool.assign(advantage=advantage(pool.reward, pool.group))
    index = selector(pool, generator(seed, "fidelity"))
    chosen = selected_advantages(advantage, selector.statistics, pool, index)
    shares = pool.lengths[index].astype(float) if mean == "token" else np.ones(len(index))
    _, groups = pool.problems()
    weights, kept = np.zeros(len(rollouts)), np.zeros(len(rollouts), bool)
    weights[rows[index]] = chosen * shares / np.bincount(groups[index], shares)[groups[index]]
    kept[rows[index]] = True
    return weights, kept


def _mask(name, mask, rollouts):
    mask = np.ones(len(rollouts), bool) if mask is None else np.asarray(mask)
    if mask.shape != (len(rollouts),) or mask.dtype != bool:
        raise ValueError(
            f"{name}: {mask.dtype} {mask.shape}; True or False for each of the {len(rollouts)} rollouts is needed"
        )
    return mask


def _rule(selector):
    """The selector's class, and its statistics where they are not the class's own."""
    name, statistics = type(selector).__name__, selector.statistics
    return name if statistics == type(selector).statistics else f"{name}, {statistics} statistics"


def _kind(correct):
    return "all right" if correct.all() else "mixed" if correct.any() else "all wrong"


def _difference(correct):
    """Weights (n,) of v_C - v_F."""
    return np.where(correct, 1 / correct.sum(), -1 / (~correct).sum())


def _two_outcomes(products, correct):
    correct = np.asarray(correct, dtype=bool)
    if correct.ndim != 1 or np.shape(products) != (len(correct), len(correct)):
        raise ValueError(
            f"products {np.shape(products)} and correct {correct.shape}: (n, n) and (n,) are needed"
        )
    if correct.all() or not correct.any():
        raise ValueError(
            f"correct: {correct.sum()} of {len(correct)}; the theorem is about groups with both outcomes"
        )
    return correct
