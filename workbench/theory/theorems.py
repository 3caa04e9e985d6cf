"""The slow and literal side of the papers' propositions: every subset, every split, every update.

What the library computes by a shortcut is computed here by its definition, on cases small enough for that, so that the
two can be compared (`notebooks/07_theory`). Pure functions of arrays. The gradients of a real model are in
`gradients.py`, the bandit of CBS in `bandits.py`.
"""

from itertools import combinations

import numpy as np

from workbench.analysis.metrics import mean_interval
from workbench.budgets import (
    check_budget,
    expected_rollouts,
    knapsack,
    nonzero_gradient_probability,
    required_rollouts,
    value,
)
from workbench.utils.validation import numpy_generator, whole_number


def best_variance(rewards, m):
    """Largest population variance of any m of the rewards (n,), every subset tried: a number (PODS, section 3.2)."""
    rewards = np.asarray(rewards, dtype=np.float64)
    whole_number("m", m, 1, len(rewards))
    return max(float(np.var(rewards[list(rows)])) for rows in combinations(range(len(rewards)), m))


def split_variances(rewards, m):
    """Variance of the k highest and the m-k lowest of the rewards (n,), for k = 0..m: (m + 1,) (PODS, lemma 3.1).

    Example: of 0, 0, 0, 1 with m=2 it is 0, 0.25, 0.25: with k=2 the second highest is a 0.
    """
    ordered = np.sort(np.asarray(rewards, dtype=np.float64))
    whole_number("m", m, 1, len(ordered))
    return np.array(
        [
            np.var(np.concatenate([ordered[: m - k], ordered[len(ordered) - k :]]))
            for k in range(m + 1)
        ]
    )


def least_rollouts(p, alpha=0.9):
    """Fewest rollouts whose probability of a gradient, 1 - p^N - (1-p)^N, is alpha or more: (P,) int64.

    p (P,) strictly between 0 and 1. Counted up from 2, without the approximation of `required_rollouts`.
    """
    p = np.asarray(p, dtype=np.float64)
    if not ((p > 0) & (p < 1)).all() or not 0 < alpha < 1:
        raise ValueError(
            f"p={p.tolist() if p.size < 10 else p.shape}, alpha={alpha}: all must lie above 0 and below 1"
        )
    counts = np.full(p.shape, 2, dtype=np.int64)
    while (short := nonzero_gradient_probability(counts, p) < alpha).any():
        counts = counts + short
    return counts


def first_mixed(p, runs, rng):
    """How many rollouts it took until both outcomes had been seen, by throwing the dice: (runs,) int64.

    p: success rate strictly between 0 and 1; its mean is `expected_rollouts(p)`.
    """
    if not 0 < p < 1:
        raise ValueError(f"p={p}: a rate above 0 and below 1 is needed, or it would take for ever")
    whole_number("runs", runs, 1)
    first = numpy_generator(rng).random(runs) < p
    counts, waiting = np.ones(runs, dtype=np.int64), np.arange(runs)
    while len(waiting):
        counts[waiting] += 1
        waiting = waiting[(rng.random(len(waiting)) < p) == first[waiting]]
    return counts


def observed_rollouts(correct):
    """What a gradient took of sampled rollouts: a DataFrame, a row a problem (Knapsack RL, figure 3).

    correct (P, N) bool, N >= 2. Columns: rate, share of right ones among the first half of a problem's rollouts;
    needed, how many of the other half it takes until both outcomes were seen, the mean over all orders of that half:
    (n+1)/(c+1) + (n+1)/(n-c+1) - 1 for c right ones of n. With one outcome alone that is n+1, too few.
    """
    import pandas as pd

    correct = np.asarray(correct, dtype=bool)
    if correct.ndim != 2 or correct.shape[1] < 2:
        raise ValueError(
            f"correct: shape {correct.shape}; (problems, rollouts) with at least 2 rollouts each are needed"
        )
    first, second = np.split(correct, [correct.shape[1] // 2], axis=1)
    n, right = second.shape[1], second.sum(1)
    return pd.DataFrame(
        {"rate": first.mean(1), "needed": (n + 1) / (right + 1) + (n + 1) / (n - right + 1) - 1}
    )


def needed_rollouts(rates, rng, *, alpha=0.9, runs=20_000):
    """What a gradient needs at each success rate: a DataFrame (rates x quantities) (Knapsack RL, proposition 1).

    Columns: formula (`required_rollouts`), least (`least_rollouts`), expected (`expected_rollouts`), simulated and half,
    mean of `first_mixed` over the runs and its interval's half-width.
    """
    import pandas as pd

    rates = np.asarray(rates, dtype=np.float64)
    waits = np.array([mean_interval(first_mixed(p, runs, rng)) for p in rates])
    columns = (
        required_rollouts(rates, alpha),
        least_rollouts(rates, alpha),
        expected_rollouts(rates),
        *waits.T,
    )
    names = ("formula", "least", "expected", "simulated", "half")
    return pd.DataFrame(dict(zip(names, columns)), index=rates).rename_axis("p")


def best_allocation(p, total, low=2, up=128, *, info_gain=True, minimum_counts=True):
    """Counts (P,) int64 of the greatest summed `value` that sum to total, by dynamic programming over all splits.

    p (P,) in [0, 1]; low <= count <= up. Of equal sums the one that gives later problems less. minimum_counts=False:
    a problem left at `low` is taken to be worth 0, as in the solver released with Knapsack RL, so that the objective
    is no longer that of eq. 6. Time P * total * (up - low); `knapsack` is the fast way.
    """
    p = np.asarray(p, dtype=np.float64)
    check_budget(p.size, total, low, up)
    if p.ndim != 1 or np.isnan(p).any():
        raise ValueError(
            f"p: shape {p.shape}, {np.isnan(p).sum()} NaN; known rates (P,) are needed"
        )
    spare = total - low * p.size
    best, taken = np.full(spare + 1, -np.inf), np.zeros((p.size, spare + 1), dtype=np.int64)
    best[0] = 0.0
    for i, rate in enumerate(p):
        worth = value(np.arange(low, min(up, low + spare) + 1), rate, info_gain)
        if not minimum_counts:
            worth[0] = 0.0
        sums = np.full((len(worth), spare + 1), -np.inf)
        for extra, gain in enumerate(worth):
            sums[extra, extra:] = best[: spare + 1 - extra] + gain
        taken[i], best = sums.argmax(0), sums.max(0)
    counts = np.empty(p.size, dtype=np.int64)
    for i in reversed(range(p.size)):
        counts[i] = low + taken[i, spare]
        spare -= taken[i, spare]
    return counts


def missed_optima(problems, cases, rng, *, average=4, low=2):
    """How far solvers stay below the optimum of eq. 6 on random rates: a DataFrame (cases x solvers), shares of the value.

    problems: of one case, with `average` rollouts each. Columns: greedy, `knapsack`; released, `best_allocation` with
    the bare minimum worth 0. Below 1e-12 is rounding.
    """
    import pandas as pd

    rows = []
    for p in numpy_generator(rng).random((cases, problems)):
        total = problems * average
        solvers = (best_allocation(p, total, low), knapsack(p, total, low=low, fallback=False),
                   best_allocation(p, total, low, minimum_counts=False))  # fmt: skip
        best, *found = (value(counts, p).sum() for counts in solvers)
        rows.append(1 - np.array(found) / best)
    return pd.DataFrame(rows, columns=["greedy", "released"])


def success_gain(p, rivals, rate=1.0):
    """Rise of a softmax policy's success rate by one update on its right action, divided by the rate: (P,).

    p (P,) in (0, 1): probability of the right action. rivals (K - 1,): how the wrong ones share the rest, summing to 1.
    The update is z += rate * (one-hot - probabilities), a policy gradient with advantage 1 (Knapsack RL, appendix D.2).
    As the rate goes to 0 this tends to p (1-p)^2 (1 + sum of rivals^2); proposition 2 leaves the sum out.
    """
    p, rivals = np.asarray(p, dtype=np.float64)[:, None], np.asarray(rivals, dtype=np.float64)
    if not ((p > 0) & (p < 1)).all():
        raise ValueError(
            f"p={p[(p <= 0) | (p >= 1)][0]}: a probability above 0 and below 1 is needed"
        )
    if rivals.ndim != 1 or (rivals < 0).any() or not np.isclose(rivals.sum(), 1):
        raise ValueError(
            f"rivals: {rivals.shape}, sum {rivals.sum():.3f}; shares of at least 0 that sum to 1 are needed"
        )
    if not rate > 0:
        raise ValueError(f"rate={rate}: a positive learning rate is needed")
    before = np.hstack([p, (1 - p) * rivals])
    push = -rate * before
    push[:, 0] += rate
    after = before * np.exp(push)
    return (after[:, 0] / after.sum(1) - p[:, 0]) / rate
