"""Exact policy gradients of single rollouts: how large an update is, and what a selector leaves of
it.

No training: rollouts are sampled once, each one's gradient is taken, and every question after that
is asked of their inner products. With v_j the gradient of rollout j's mean token log-probability,
the update of a group with weights w is the sum of w_j v_j; its squared length and its cosine with
another update follow from the matrix of v_i . v_j alone. The update is the one right after
sampling: every ratio is 1, nothing is clipped, there is no KL term.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from workbench.analysis.intervals import LEVEL, Measurement, mean_interval
from workbench.grpo import StepStats, grpo_step
from workbench.objectives import Objective
from workbench.policies import Sampling
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.rules.advantages import (
    GroupNormalized,
    group_normalized,
    posterior,
    selected_advantages,
)
from workbench.rules.selectors import All
from workbench.utils.descriptions import compose, parameters
from workbench.utils.seeding import derive
from workbench.utils.validation import one_of, whole_number

__all__ = [
    "Norms",
    "balance",
    "cosine",
    "expected_norms",
    "fidelity",
    "fidelity_means",
    "group_products",
    "half_cosines",
    "inner_products",
    "lemma_balance",
    "mixed_groups",
    "norm_bound",
    "norm_bounds",
    "norms_by_balance",
    "prior_norms",
    "rollout_gradients",
    "sampled_groups",
    "squared_norm",
    "update_direction",
]

# Over what the mean within a group is taken, see `fidelity`.
AGGREGATIONS = ("rollout", "token")
COLUMNS_AT_ONCE = 2**16  # parameters of all rollouts held in float64
PUBLISHED_PRIOR_RATIO = 1.5  # AERO, section 5.6

Products = Mapping[str, np.ndarray]


class Norms(NamedTuple):
    """Both sides of a bound on a squared gradient norm: the norm's own square, and the bound."""

    squared: float
    bound: float


# Rollouts and their gradients


def sampled_groups(
    policy: Any,
    problems: Iterable[Any],
    verifier: Any,
    n: int,
    *,
    sampling: Sampling = Sampling(),
    seed: int = 0,
) -> Rollouts:
    """n verified rollouts of each problem, grouped in the order of the problems.

    Parameters
    ----------
    policy : Policy
    problems : list of Problem
    verifier : object with score(responses, answers)
    n : int
    sampling : Sampling
    seed : int
        What a problem gets does not depend on the others.

    Returns
    -------
    Rollouts of len(problems) * n rows
    """
    problems = list(problems)
    whole_number("n", n, 1)
    # One seed a problem, from its id, so that a problem's rollouts stay the same when others
    # join.
    seeds = [derive(seed, "gradients", problem.id) for problem in problems]
    rollouts = policy.generate(problems, np.full(len(problems), n), sampling, seeds)
    scores = verifier.score(list(rollouts.text), list(rollouts.answer))
    return rollouts.assign(reward=scores.reward, correct=scores.correct, status=scores.status)


def mixed_groups(rollouts: Rollouts, least: int = 1) -> Rollouts:
    """The rows of problems with at least `least` correct and as many wrong rollouts."""
    _, groups = rollouts.problems()
    right = np.bincount(groups, rollouts.correct)
    sizes = np.bincount(groups)
    # Both outcomes must occur often enough, and the rarer one decides.
    enough = np.minimum(right, sizes - right) >= least
    return rollouts.take(np.flatnonzero(enough[groups]))


def rollout_gradients(policy: Any, rollouts: Rollouts, temperature: float = 1.0) -> torch.Tensor:
    """Gradient of each rollout's mean token log-probability.

    Parameters
    ----------
    policy : Policy
    rollouts : Rollouts (R rows)
    temperature : float

    Returns
    -------
    (R, D) float32 torch tensor on the CPU
        D: all trainable parameters, in the order of `policy.parameters()`.

    Notes
    -----
    One backward pass a rollout and R * D * 4 bytes: meant for the tiny model, or for LoRA.
    """
    # With LoRA these are the adapters alone, which keeps R * D small enough to hold.
    trainable = [p for p in policy.parameters() if p.requires_grad]
    policy.model.eval()  # no dropout: the gradient of the distribution that was sampled from
    out = torch.empty(len(rollouts), sum(p.numel() for p in trainable))
    for i, length in enumerate(rollouts.lengths):
        # A response without tokens has a sum of 0 over a length of 1, and so a gradient of 0.
        objective = policy.logprobs(rollouts.take([i]), temperature).sum() / max(int(length), 1)
        # A parameter that the rollout does not touch has a gradient of zeros, to keep its place
        # in D.
        parts = torch.autograd.grad(objective, trainable, allow_unused=True, materialize_grads=True)
        out[i] = torch.cat([part.reshape(-1) for part in parts])
    return out


def update_direction(
    policy: Any, rollouts: Rollouts, advantages: np.ndarray, objective: Objective
) -> tuple[np.ndarray, StepStats]:
    """The gradient of one update divided by its length, and what the step measured.

    Parameters
    ----------
    policy : Policy
        It is not changed.
    rollouts : Rollouts
        R rows.
    advantages : (R,) float64
    objective : Objective

    Returns
    -------
    direction : (D,) float64
        Over the policy's D parameters.
    stats : StepStats
    """
    # With a learning rate of 0 the step computes its gradient and leaves the weights alone.
    still = torch.optim.SGD(policy.parameters(), lr=0.0)
    stats = grpo_step(policy, still, rollouts, advantages, objective)
    gradient = torch.cat([parameter.grad.reshape(-1) for parameter in policy.parameters()])
    direction = gradient.double().numpy()
    return direction / np.linalg.norm(direction), stats


def inner_products(gradients: Any) -> np.ndarray:
    """v_i . v_j of gradients (R, D), NumPy or torch: (R, R) float64."""
    gradients = torch.as_tensor(gradients)
    total = torch.zeros(len(gradients), len(gradients), dtype=torch.float64)
    # In parts, since a copy of everything in float64 would double the memory.
    for part in gradients.split(COLUMNS_AT_ONCE, dim=1):
        wide = part.double()
        total += wide @ wide.T
    return total.numpy()


def group_products(
    policy: Any, rollouts: Rollouts, temperature: float = 1.0
) -> dict[str, np.ndarray]:
    """`inner_products` of every group.

    Parameters
    ----------
    policy : Policy
    rollouts : Rollouts
    temperature : float

    Returns
    -------
    dict from problem to (n, n) float64, in the order of the problem's rows
        Equal responses are computed once.
    """
    names, groups = rollouts.problems()
    products = {}
    for number, name in enumerate(names):
        group = rollouts.take(np.flatnonzero(groups == number))
        # Sampling a small policy often gives the same response twice; one backward pass serves
        # both.
        keys = [(group.prompt[i].tobytes(), group.response[i].tobytes()) for i in range(len(group))]
        distinct = list(dict.fromkeys(keys))
        first_rows = [keys.index(key) for key in distinct]
        matrix = inner_products(rollout_gradients(policy, group.take(first_rows), temperature))
        number_of_row = [distinct.index(key) for key in keys]
        # Back from distinct responses to the rows of the group.
        products[str(name)] = matrix[np.ix_(number_of_row, number_of_row)]
    return products


def cosine(products: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of the updates with weights a (R,) and b (R,), by inner products (R, R); 0 where one
    of them is zero.
    """
    lengths = squared_norm(products, a) * squared_norm(products, b)
    if lengths <= 0:
        return 0.0
    return float(np.clip(a @ products @ b / np.sqrt(lengths), -1, 1))


def squared_norm(products: np.ndarray, weights: np.ndarray) -> float:
    """Squared length of the update with weights (R,), by inner products (R, R)."""
    # Rounding may put a length of zero slightly below it.
    return max(float(weights @ products @ weights), 0.0)


# AERO, theorem 4.1 and lemma 4.2


def balance(c: Any, m: Any) -> np.ndarray:
    """The factor c m / (c + m)^2 of AERO's theorem 4.1, at most 1/4, at c = m; broadcasts."""
    c = np.asarray(c, dtype=np.float64)
    m = np.asarray(m, dtype=np.float64)
    return c * m / (c + m) ** 2


def norm_bound(products: np.ndarray, correct: Any, lengths: Any = None) -> Norms:
    """Squared gradient norm of one group against cm/(c+m)^2 |v_C - v_F|^2.

    v_C and v_F are the mean gradients of the c correct and the m wrong rollouts. With advantages
    over the population deviation both sides are equal, whatever the gradients are: the theorem's
    inequality comes from its expectation alone, see `expected_norms`.

    Parameters
    ----------
    products : (n, n)
        Of the group's gradients.
    correct : (n,) bool
        Both outcomes present.
    lengths : (n,), optional
        Takes one mean over all tokens instead of the mean over rollouts. The theorem assumes equal
        lengths, where the two agree, and does not hold without.

    Returns
    -------
    Norms

    References
    ----------
    AERO (arXiv 2602.14338), theorem 4.1 and equation 8.
    """
    correct = _two_outcomes(products, correct)
    one_group = np.zeros(len(correct))
    weights = group_normalized(correct.astype(float), one_group)
    # The mean over rollouts, or each rollout's share of all tokens.
    weights = weights / len(correct) if lengths is None else weights * lengths / np.sum(lengths)
    # v_C - v_F of this very group, without the theorem's expectation.
    factor = balance(correct.sum(), (~correct).sum())
    bound = float(factor * squared_norm(products, _difference(correct)))
    return Norms(squared_norm(products, weights), bound)


def expected_norms(products: np.ndarray, correct: Any, c: int, m: int) -> Norms:
    """|E G|^2 and E|G|^2 over groups of c correct and m wrong rollouts drawn from a pool, exact.

    This is theorem 4.1 with its expectation: E|G|^2 = cm/(c+m)^2 E|v_C - v_F|^2 is the bound. What
    lies between the two is noise, whose expectation is the spread of the gradients divided by c and
    m. The pool's own v_C - v_F is noisy too: |E G|^2 is that of the pool, on average more than the
    policy's.

    Parameters
    ----------
    products : (n, n)
    correct : (n,) bool
        The pool, with at least c and m of each (and 2).
    c, m : int
        Drawn without replacement.

    Returns
    -------
    Norms
        squared is |E G|^2, bound is E|G|^2.
    """
    correct = _two_outcomes(products, correct)
    signal = squared_norm(products, _difference(correct))
    # The two outcomes are drawn independently, so that their variances add up.
    noise = _spread_of_mean("c", products, correct, c) + _spread_of_mean("m", products, ~correct, m)
    factor = float(balance(c, m))
    return Norms(factor * signal, factor * (signal + noise))


def norm_bounds(products: Products, rollouts: Rollouts, n: int = 8) -> pd.DataFrame:
    """Theorem 4.1 on every problem with enough rollouts.

    Parameters
    ----------
    products : of `group_products`
    rollouts : Rollouts
        Those of these problems.
    n : int
        Size of a group, at least 4.

    Returns
    -------
    DataFrame
        squared, bound, problem and case, in words. One group: the first n draws, where they are
        mixed, by `norm_bound` with the mean over rollouts and over tokens. Mean gradient: over all
        groups of n/2 right and n/2 wrong ones from the problem's rollouts, by `expected_norms`.
    """
    whole_number("n", n, 4)
    half = n // 2
    rows = []
    for problem, matrix in products.items():
        mine = rollouts.take(rollouts.problem == problem)
        # The first n draws are a group as training would have sampled it; the rest only serve the
        # pool.
        few = np.flatnonzero(mine.draw < n)
        right = mine.correct.sum()
        # A group of one outcome has no advantages, and the theorem says nothing about it.
        if 0 < mine.correct[few].sum() < len(few):
            part = matrix[np.ix_(few, few)]
            correct = mine.correct[few]
            plain = norm_bound(part, correct)
            rows.append((*plain, problem, f"one group of {n}"))
            by_token = norm_bound(part, correct, mine.lengths[few])
            rows.append((*by_token, problem, f"one group of {n}, token mean"))
        if min(right, len(mine) - right) >= half:
            mean = expected_norms(matrix, mine.correct, half, half)
            rows.append((*mean, problem, f"mean of groups of {half} + {half}"))
    return pd.DataFrame(rows, columns=["squared", "bound", "problem", "case"])


def norms_by_balance(
    products: Products, rollouts: Rollouts, c: int, wrong: Iterable[int]
) -> pd.DataFrame:
    """Squared norms as wrong rollouts join c correct ones.

    Parameters
    ----------
    products : of `group_products`
    rollouts : Rollouts
        Those of these problems. Problems with too few rollouts of an outcome are left out.
    c : int
    wrong : counts m
        Lemma 4.2 is about m = k c with k of at least 1, so it says nothing of counts below c.

    Returns
    -------
    DataFrame, a row a problem and m
        problem, m, k (m / c), and relative to m = c: factor, signal = |E G|^2, group = E|G|^2.
    """
    counts = sorted({int(m) for m in wrong} | {c})
    rows = []
    for problem, matrix in products.items():
        correct = rollouts.correct[rollouts.problem == problem]
        # The same problems for every count m, or a change along m could be one of problems. Two
        # of each outcome are the fewest with a spread.
        if correct.sum() < max(c, 2) or (~correct).sum() < max(counts[-1], 2):
            continue
        # Relative to the balanced group, so that problems with large and small gradients can be
        # averaged.
        unit = expected_norms(matrix, correct, c, c)
        for m in counts:
            norms = expected_norms(matrix, correct, c, m)
            factor = float(balance(c, m) / balance(c, c))
            signal = norms.squared / unit.squared
            rows.append((problem, m, m / c, factor, signal, norms.bound / unit.bound))
    return pd.DataFrame(rows, columns=["problem", "m", "k", "factor", "signal", "group"])


def lemma_balance(frame: pd.DataFrame, level: float = LEVEL) -> pd.DataFrame:
    """AERO's lemma 4.2 where it is stated: is a balanced group's norm the largest of all k >= 1?

    Parameters
    ----------
    frame : DataFrame
        Of `norms_by_balance`. Counts m below c are left out.
    level : float
        Probability of the intervals over problems.

    Returns
    -------
    DataFrame, a row a count m above c
        k, and for signal and group how many percent they lie below those at m = c, with low and
        high: signal, signal_low, signal_high, group, group_low, group_high; and n (problems). The
        lemma says above 0.

    References
    ----------
    AERO (arXiv 2602.14338), lemma 4.2.
    """
    rows = {}
    for m, part in frame[frame["k"] > 1].groupby("m"):
        row = {"k": part["k"].iloc[0]}
        for name in ("signal", "group"):
            smaller = Measurement(100 * (1 - part[name].to_numpy()), level=level)
            row |= {name: smaller.value, f"{name}_low": smaller.low, f"{name}_high": smaller.high}
        rows[m] = row | {"n": len(part)}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("m")


# AERO's prior


def prior_norms(
    policy: Any,
    rollouts: Rollouts,
    alpha: float = 1.0,
    beta: float = 1.0,
    scale: str | float = "bernoulli",
) -> dict[str, float]:
    """Gradient norm of a step on a whole batch without and with the posterior of uniform groups.

    One mean over all rollouts of their token means, no entropy bonus, ratio 1. The policy is not
    changed.

    Parameters
    ----------
    policy : Policy
    rollouts : Rollouts
    alpha, beta, scale
        As in `advantages.posterior`. The paper does not print the scale.

    Returns
    -------
    dict
        without: plain group advantages; with; part: what the uniform groups alone add; ratio: with
        / without; factor: how many times as large advantages of uniform groups would need to be for
        a ratio of 1.5, the published one.

    References
    ----------
    AERO (arXiv 2602.14338), section 5.6 and table 7, which compares runs of their own.
    """
    # With a learning rate of 0 the step reports its gradient norm and leaves the weights alone. The
    # gradient itself may be zero, so that it has no direction.
    still = torch.optim.SGD(policy.parameters(), lr=0.0)
    objective = Objective(loss_aggregation="rollout")

    def norm(advantages: np.ndarray) -> float:
        return grpo_step(policy, still, rollouts, advantages, objective).gradient_norm

    plain = group_normalized(rollouts.reward, rollouts.group)
    both = posterior(rollouts.reward, rollouts.group, alpha, beta, scale)
    without = norm(plain)
    joint = norm(both)
    # Group advantages of uniform groups are 0, so the difference is what these groups add.
    part = norm(both - plain)
    return {
        "without": without,
        "with": joint,
        "part": part,
        "ratio": joint / without,
        "factor": _factor_for_ratio(without, joint, part),
    }


def half_cosines(
    products: Products, rollouts: Rollouts, advantage: Any = GroupNormalized()
) -> pd.DataFrame:
    """Cosine of the updates that two halves of a problem's rollouts ask for.

    An update that is noise has a mean of 0.

    Parameters
    ----------
    products : of `group_products`
    rollouts : Rollouts
        Those of these problems; the halves are by order of drawing.
    advantage : slots.Advantage

    Returns
    -------
    DataFrame
        problem, kind ("all wrong", "all right" or "mixed") and cosine. Problems whose halves are of
        different kinds, or have no gradient, are left out.
    """
    rows = []
    for problem, matrix in products.items():
        mine = rollouts.take(rollouts.problem == problem)
        # Each half is a group of its own, since advantages against a common mean would tie one
        # half to the other.
        half = np.arange(len(mine)) < len(mine) // 2
        kinds = {_kind(mine.correct[side]) for side in (half, ~half)}
        advantages = advantage(mine.assign(group=half.astype(str)), Context())
        weights = np.asarray(advantages) / len(mine)
        first = np.where(half, weights, 0)
        second = np.where(half, 0, weights)
        # Halves of different kinds push in different directions for reasons that are no noise.
        if len(kinds) == 1 and first.any() and second.any():
            rows.append((problem, kinds.pop(), cosine(matrix, first, second)))
    return pd.DataFrame(rows, columns=["problem", "kind", "cosine"])


# Selectors


def fidelity(
    products: Products,
    rollouts: Rollouts,
    selectors: Sequence[Any],
    *,
    seed: int = 0,
    seen: Any = None,
    reference: Any = None,
    advantage: Any = GroupNormalized(),
    loss_aggregation: str = "rollout",
) -> pd.DataFrame:
    """What each selector leaves of the group's gradient.

    Parameters
    ----------
    products : of `group_products`
    rollouts : Rollouts (R rows)
        Those of these problems.
    selectors : list of slots.Selector
        Each with advantages against its own baseline.
    seed : int
        Of what selectors draw.
    seen : (R,) bool, optional
        The candidates; all by default.
    reference : (R,) bool, optional
        The rows whose gradient, all of them kept, the selected one is compared with; all by
        default. Disjoint from `seen`, it asks another question: not how well a selector copies its
        group, but how well it points where fresh rollouts of the problem do.
    advantage : slots.Advantage
    loss_aggregation : {"rollout", "token"}
        The mean over rollouts of their token means, or one mean over all tokens of a group.

    Returns
    -------
    DataFrame, a row a problem and selector
        rule, selector, problem, kept (share of the candidates), cosine and norm_ratio (both 0 where
        nothing is left), gradient (whether anything is). Problems whose candidates or reference
        have no gradient are left out.
    """
    one_of("loss_aggregation", loss_aggregation, AGGREGATIONS)
    seen = _mask("seen", seen, rollouts)
    reference = _mask("reference", reference, rollouts)

    def update(selector: Any, candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _update(selector, candidates, rollouts, advantage, loss_aggregation, seed)

    # What all rollouts would do: the reference to compare with, and the candidates' own update,
    # which must not be zero where a selector is to be judged.
    target, _ = update(All(), reference)
    whole, _ = update(All(), seen)
    updates = [(selector, *update(selector, seen)) for selector in selectors]
    rows = []
    for problem, matrix in products.items():
        mine = rollouts.problem == problem
        # A problem without a gradient has nothing that could be kept or lost.
        if not (target[mine].any() and whole[mine].any()):
            continue
        # The same for every selector of the problem.
        length = squared_norm(matrix, target[mine])
        for selector, weights, kept in updates:
            own = weights[mine]
            row = {
                "rule": _rule(selector),
                "selector": compose(selector),
                "problem": problem,
                "kept": kept[mine].sum() / seen[mine].sum(),
                "cosine": cosine(matrix, own, target[mine]),
                "norm_ratio": np.sqrt(squared_norm(matrix, own) / length),
                "gradient": bool(own.any()),
            }
            rows.append(row)
    columns = ["rule", "selector", "problem", "kept", "cosine", "norm_ratio", "gradient"]
    return pd.DataFrame(rows, columns=columns)


def fidelity_means(frame: pd.DataFrame, level: float = LEVEL) -> pd.DataFrame:
    """`fidelity` averaged over problems.

    Parameters
    ----------
    frame : DataFrame
    level : float
        Probability of the intervals, which are Student's over problems.

    Returns
    -------
    DataFrame, a row a selector in the frame's order
        rule, kept, cosine, cosine_half, norm_ratio, norm_ratio_half, gradient (share of problems)
        and n (problems).
    """
    rows = {}
    for selector, part in frame.groupby("selector", sort=False):
        cosine_mean, cosine_half = mean_interval(part["cosine"], level)
        ratio_mean, ratio_half = mean_interval(part["norm_ratio"], level)
        rows[selector] = {
            "rule": part["rule"].iloc[0],
            "kept": part["kept"].mean(),
            "cosine": cosine_mean,
            "cosine_half": cosine_half,
            "norm_ratio": ratio_mean,
            "norm_ratio_half": ratio_half,
            "gradient": part["gradient"].mean(),
            "n": len(part),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("selector")


# Parts


def _update(
    selector: Any,
    candidates: np.ndarray,
    rollouts: Rollouts,
    advantage: Any,
    loss_aggregation: str,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Weights (R,) of the update on what a selector keeps of the candidates (R,) bool, and what it
    keeps, (R,) bool.
    """
    rows = np.flatnonzero(candidates)
    context = Context(seed=seed)
    pool = rollouts.take(rows)
    of_group = np.asarray(advantage(pool, context))
    # A selector may read advantages and ages, which a round would have filled in by then. All of
    # these rollouts are new.
    pool = pool.assign(advantage=of_group, age=np.zeros(len(pool), dtype=np.int64))
    selection = selector.select(pool, context)
    chosen = np.asarray(selection.rows)
    # Selectors may answer with row numbers or with a mask.
    chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
    advantages = selected_advantages(advantage, selection.baseline, pool, chosen, context)
    if isinstance(advantages, Ragged):
        raise ValueError(f"advantage={advantage}: one number a rollout is needed, not one a token")
    if selection.weights is not None:
        advantages = advantages * np.asarray(selection.weights)
    by_token = loss_aggregation == "token"
    # A rollout's share in the mean of its group: its tokens, or 1 where rollouts count alike.
    shares = pool.lengths[chosen].astype(float) if by_token else np.ones(len(chosen))
    _, groups = pool.problems()
    # The mean is over what was selected, not over the candidates.
    of_group = np.bincount(groups[chosen], shares, minlength=groups.max(initial=-1) + 1)
    weights = np.zeros(len(rollouts))
    # Rows that are not selected, and those that are no candidates, keep a weight of 0.
    weights[rows[chosen]] = advantages * shares / of_group[groups[chosen]]
    kept = np.zeros(len(rollouts), dtype=bool)
    kept[rows[chosen]] = True
    return weights, kept


def _spread_of_mean(name: str, products: np.ndarray, side: np.ndarray, drawn: int) -> float:
    """Variance of the mean gradient of `drawn` rollouts of one outcome, without replacement."""
    size = int(side.sum())
    whole_number(name, drawn, 1, size)
    mean = np.where(side, 1 / size, 0.0)
    # The sum over rollouts of |v_j - mean|^2 is that of |v_j|^2 less size |mean|^2. The last
    # factor corrects for drawing without replacement: whoever draws all of them has no spread.
    squares = np.diag(products)[side].sum()
    spread = (squares - size * squared_norm(products, mean)) / max(size - 1, 1)
    # Rounding may put a spread of zero slightly below it.
    return max(spread, 0.0) * (1 / drawn - 1 / size)


def _factor_for_ratio(without: float, joint: float, part: float) -> float:
    """How many times as long `part` would have to be for the published ratio; NaN where it is 0."""
    if part <= 0:
        return float("nan")
    # |without + f part|^2 = (1.5 without)^2, solved for f.
    # The inner product of the two gradients, from the length of their sum. Norms are all that a
    # step reports.
    inner = (joint**2 - without**2 - part**2) / 2
    wanted = (PUBLISHED_PRIOR_RATIO**2 - 1) * part**2 * without**2
    return float((np.sqrt(inner**2 + wanted) - inner) / part**2)


def _mask(name: str, mask: Any, rollouts: Rollouts) -> np.ndarray:
    mask = np.ones(len(rollouts), bool) if mask is None else np.asarray(mask)
    if mask.shape != (len(rollouts),) or mask.dtype != bool:
        raise ValueError(
            f"{name}: {mask.dtype} {mask.shape}; True or False for each of the {len(rollouts)} "
            "rollouts is needed"
        )
    return mask


def _rule(selector: Any) -> str:
    """The selector's class, and its baseline where it is not the class's usual one."""
    name = type(selector).__name__
    own = parameters(selector).get("baseline")
    usual = inspect.signature(type(selector)).parameters.get("baseline")
    # Most selectors have the usual baseline, and naming it for all of them would hide the
    # exceptions.
    if usual is None or own == usual.default:
        return name
    return f"{name}, {own} baseline"


def _kind(correct: np.ndarray) -> str:
    if correct.all():
        return "all right"
    return "mixed" if correct.any() else "all wrong"


def _difference(correct: np.ndarray) -> np.ndarray:
    """Weights (n,) of v_C - v_F."""
    return np.where(correct, 1 / correct.sum(), -1 / (~correct).sum())


def _two_outcomes(products: np.ndarray, correct: Any) -> np.ndarray:
    correct = np.asarray(correct, dtype=bool)
    if correct.ndim != 1 or np.shape(products) != (len(correct), len(correct)):
        raise ValueError(
            f"products {np.shape(products)} and correct {correct.shape}: (n, n) and (n,) are needed"
        )
    if correct.all() or not correct.any():
        raise ValueError(
            f"correct: {correct.sum()} of {len(correct)}; the theorem is about groups with both "
            "outcomes"
        )
    return correct
