"""The slow and literal side of the papers' propositions: every subset, every split, every update.

What the library computes by a shortcut is computed here by its definition, on cases small enough
for that, so that the two can be compared (`notebooks/07_theory`). Pure functions of arrays. The
gradients of a real model are in `gradients.py`, the bandit of CBS in `bandits.py`.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.intervals import mean_interval
from workbench.rules.budgets import (
    check_budget,
    expected_rollouts,
    knapsack,
    nonzero_gradient_probability,
    required_rollouts,
    value,
)
from workbench.utils.validation import brief, numpy_generator, positive_number, whole_number

__all__ = [
    "best_allocation",
    "best_variance",
    "first_mixed",
    "least_rollouts",
    "missed_optima",
    "needed_rollouts",
    "observed_rollouts",
    "split_variances",
    "success_gain",
]


# PODS


def best_variance(rewards: Any, m: int) -> float:
    """Largest population variance of any m of the rewards, every subset tried.

    Parameters
    ----------
    rewards : (n,) numbers
    m : int
        From 1 to n.

    References
    ----------
    PODS (arXiv 2504.13818), section 3.2.

    Examples
    --------
    >>> best_variance([0, 1, 3], 2)
    2.25
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    whole_number("m", m, 1, len(rewards))
    # Every subset, which is what the library's selector must agree with. Only for a few rewards.
    subsets = combinations(range(len(rewards)), m)
    return max(float(np.var(rewards[list(rows)])) for rows in subsets)


def split_variances(rewards: Any, m: int) -> np.ndarray:
    """Variance of the k highest and the m-k lowest of the rewards, for k = 0..m.

    Parameters
    ----------
    rewards : (n,) numbers
    m : int
        From 1 to n.

    Returns
    -------
    (m + 1,) float64

    References
    ----------
    PODS (arXiv 2504.13818), lemma 3.1.

    Examples
    --------
    >>> split_variances([0, 0, 0, 1], 2).tolist()
    [0.0, 0.25, 0.25]
    """
    ordered = np.sort(np.asarray(rewards, dtype=np.float64))
    size = len(ordered)
    whole_number("m", m, 1, size)
    variances = []
    # k from the top and m - k from the bottom; since m is at most n, the two never overlap.
    for k in range(m + 1):
        kept = np.concatenate([ordered[: m - k], ordered[size - k :]])
        variances.append(np.var(kept))
    return np.array(variances)


# Knapsack RL


def least_rollouts(p: Any, alpha: float = 0.9) -> np.ndarray:
    """Fewest rollouts whose probability of a gradient, 1 - p^N - (1-p)^N, is alpha or more.

    Counted up from 2, without the approximation of `budgets.required_rollouts`.

    Parameters
    ----------
    p : (P,) success rates above 0 and below 1
    alpha : float
        Above 0 and below 1.

    Returns
    -------
    (P,) int64

    Examples
    --------
    >>> least_rollouts([0.5, 0.01]).tolist()
    [5, 230]
    """
    p = np.asarray(p, dtype=np.float64)
    if not ((p > 0) & (p < 1)).all() or not 0 < alpha < 1:
        raise ValueError(f"p={brief(p.tolist())}, alpha={alpha}: all must lie above 0 and below 1")
    # One rollout alone never has both outcomes.
    counts = np.full(p.shape, 2, dtype=np.int64)
    too_few = nonzero_gradient_probability(counts, p) < alpha
    # All problems are counted up together, and those that have enough stand still.
    while too_few.any():
        counts = counts + too_few
        too_few = nonzero_gradient_probability(counts, p) < alpha
    return counts


def first_mixed(p: float, runs: int, rng: np.random.Generator) -> np.ndarray:
    """How many rollouts it took until both outcomes had been seen, by throwing the dice.

    Parameters
    ----------
    p : float
        Success rate above 0 and below 1.
    runs : int
    rng : numpy.random.Generator

    Returns
    -------
    (runs,) int64
        Its mean is `budgets.expected_rollouts(p)`.
    """
    if not 0 < p < 1:
        raise ValueError(f"p={p}: a rate above 0 and below 1 is needed, or it would take for ever")
    whole_number("runs", runs, 1)
    # What is waited for is the outcome that differs from the first one, whichever that was.
    first = numpy_generator(rng).random(runs) < p
    counts = np.ones(runs, dtype=np.int64)
    waiting = np.arange(runs)
    while len(waiting):
        counts[waiting] += 1
        outcome = rng.random(len(waiting)) < p
        # Runs that saw the same outcome again go on.
        waiting = waiting[outcome == first[waiting]]
    return counts


def observed_rollouts(correct: Any) -> pd.DataFrame:
    """What a gradient took of sampled rollouts.

    Parameters
    ----------
    correct : (P, N) bool, N >= 2

    Returns
    -------
    DataFrame, a row a problem
        rate, the share of right ones among the first half of a problem's rollouts; needed, how many
        of the other half it takes until both outcomes were seen, the mean over all orders of that
        half: (n+1)/(c+1) + (n+1)/(n-c+1) - 1 for c right ones of n. With one outcome alone that is
        n+1, too few.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), figure 3.
    """
    correct = np.asarray(correct, dtype=bool)
    if correct.ndim != 2 or correct.shape[1] < 2:
        raise ValueError(
            f"correct: shape {correct.shape}; (problems, rollouts) with at least 2 rollouts each "
            "are needed"
        )
    # Apart, so that the error of a problem's rate is independent of the count beside it.
    first, second = np.split(correct, [correct.shape[1] // 2], axis=1)
    n = second.shape[1]
    right = second.sum(axis=1)
    # In a random order the first right one of c in n comes at (n+1)/(c+1) on average, and the
    # first wrong one at (n+1)/(n-c+1). One of the two is at place 1, so the later one is their
    # sum less 1.
    needed = (n + 1) / (right + 1) + (n + 1) / (n - right + 1) - 1
    return pd.DataFrame({"rate": first.mean(axis=1), "needed": needed})


def needed_rollouts(
    rates: Any, rng: np.random.Generator, *, alpha: float = 0.9, runs: int = 20_000
) -> pd.DataFrame:
    """What a gradient needs at each success rate.

    Parameters
    ----------
    rates : (P,) success rates above 0 and below 1
    rng : numpy.random.Generator
    alpha : float
        The probability of a gradient that is asked for.
    runs : int
        Of the simulation at each rate.

    Returns
    -------
    DataFrame, a row a rate
        formula (`required_rollouts`), least (`least_rollouts`), expected (`expected_rollouts`),
        simulated and half, the mean of `first_mixed` over the runs and its interval's half-width.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), proposition 1.
    """
    rates = np.asarray(rates, dtype=np.float64)
    waits = np.array([mean_interval(first_mixed(p, runs, rng)) for p in rates])
    columns = {
        "formula": required_rollouts(rates, alpha),
        "least": least_rollouts(rates, alpha),
        "expected": expected_rollouts(rates),
        "simulated": waits[:, 0],
        "half": waits[:, 1],
    }
    return pd.DataFrame(columns, index=rates).rename_axis("p")


def best_allocation(
    p: Any,
    total: int,
    low: int = 2,
    up: int = 128,
    *,
    info_gain: bool = True,
    minimum_counts: bool = True,
) -> np.ndarray:
    """Counts of the greatest summed value that sum to total, by dynamic programming.

    Parameters
    ----------
    p : (P,) success rates in [0, 1]
    total : int
    low, up : int
        Bounds of each count.
    info_gain : bool
        As in `budgets.value`.
    minimum_counts : bool
        False: a problem left at `low` is taken to be worth 0, as in the solver released with
        Knapsack RL, so that the objective is no longer that of equation 5.

    Returns
    -------
    (P,) int64
        Of equal sums the one that gives later problems less.

    Notes
    -----
    Time P * total * (up - low); `budgets.knapsack` is the fast way.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), equation 5 and appendix D.4.
    """
    p = np.asarray(p, dtype=np.float64)
    check_budget(p.size, total, low, up)
    if p.ndim != 1 or np.isnan(p).any():
        raise ValueError(
            f"p: shape {p.shape}, {np.isnan(p).sum()} NaN; known rates (P,) are needed"
        )
    # Every problem gets the minimum. What is left over is what the table below is about.
    spare = total - low * p.size
    best = np.full(spare + 1, -np.inf)  # by rollouts spent above the minimum
    best[0] = 0.0
    # For each problem and each amount spent so far: what this problem took of it in the best
    # case.
    taken = np.zeros((p.size, spare + 1), dtype=np.int64)
    for i, rate in enumerate(p):
        # A problem can take no more than its bound, nor more than there is.
        worth = value(np.arange(low, min(up, low + spare) + 1), rate, info_gain)
        if not minimum_counts:
            worth[0] = 0.0
        # (choices of this problem, spare rollouts spent); what cannot be paid for stays at -inf.
        sums = np.full((len(worth), spare + 1), -np.inf)
        for extra, gain in enumerate(worth):
            sums[extra, extra:] = best[: spare + 1 - extra] + gain
        # The first of equal sums, which is the smaller share for this problem.
        taken[i] = sums.argmax(axis=0)
        best = sums.max(axis=0)
    counts = np.empty(p.size, dtype=np.int64)
    # Backwards from the whole budget: what the last problem took tells what the others had left.
    for i in reversed(range(p.size)):
        extra = taken[i, spare]
        counts[i] = low + extra
        spare -= extra
    return counts


def missed_optima(
    problems: int, cases: int, rng: np.random.Generator, *, average: int = 4, low: int = 2
) -> pd.DataFrame:
    """How far solvers stay below the optimum of equation 5 on random rates.

    Parameters
    ----------
    problems : int
        Of one case, with `average` rollouts each.
    cases : int
    rng : numpy.random.Generator
    average, low : int

    Returns
    -------
    DataFrame (cases x solvers), shares of the value
        greedy, `budgets.knapsack`; released, `best_allocation` with the bare minimum worth 0. Below
        1e-12 is rounding.
    """
    rows = []
    for p in numpy_generator(rng).random((cases, problems)):
        total = problems * average
        # The greedy solver must not fall back to anything, or it would not be the solver that is
        # measured.
        counts = {
            "best": best_allocation(p, total, low),
            "greedy": knapsack(p, total, low=low, fallback=False),
            "released": best_allocation(p, total, low, minimum_counts=False),
        }
        # All are valued by the same objective, also the solver that worked on another one.
        values = {name: value(of_solver, p).sum() for name, of_solver in counts.items()}
        rows.append([1 - values[name] / values["best"] for name in ("greedy", "released")])
    return pd.DataFrame(rows, columns=["greedy", "released"])


def success_gain(p: Any, rivals: Any, rate: float = 1.0) -> np.ndarray:
    """Rise of a softmax policy's success rate by one update on its right action, over the rate.

    The update is z += rate * (one-hot - probabilities), a policy gradient with advantage 1. As the
    rate goes to 0 the result tends to p (1-p)^2 (1 + sum of rivals^2); proposition 2 leaves the sum
    out.

    Parameters
    ----------
    p : (P,) numbers above 0 and below 1
        Probability of the right action.
    rivals : (K - 1,) numbers that sum to 1
        How the wrong actions share the rest.
    rate : float
        Learning rate, above 0.

    Returns
    -------
    (P,) float64

    References
    ----------
    Knapsack RL (arXiv 2509.25849), proposition 2 and appendix D.2.
    """
    p = np.asarray(p, dtype=np.float64)[:, None]
    rivals = np.asarray(rivals, dtype=np.float64)
    if not ((p > 0) & (p < 1)).all():
        raise ValueError(
            f"p={p[(p <= 0) | (p >= 1)][0]}: a probability above 0 and below 1 is needed"
        )
    if rivals.ndim != 1 or (rivals < 0).any() or not np.isclose(rivals.sum(), 1):
        raise ValueError(
            f"rivals: {rivals.shape}, sum {rivals.sum():.3f}; shares of at least 0 that sum to 1 "
            "are needed"
        )
    positive_number("rate", rate)
    # (P, K): the right action first, then its rivals, which share what is left in fixed
    # proportions.
    before = np.hstack([p, (1 - p) * rivals])
    # The change of the logits, rate (one-hot - probabilities).
    push = -rate * before
    push[:, 0] += rate
    # A softmax over changed logits, up to the normalisation of the next line.
    after = before * np.exp(push)
    return (after[:, 0] / after.sum(axis=1) - p[:, 0]) / rate
