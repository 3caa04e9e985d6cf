"""Budget arithmetic: what a rollout is worth, and the best split of a total over problems.

Pure functions of success rates in [0, 1], from Knapsack RL (arXiv 2509.25849), sections 3 and 4 and
appendices C and E. NaN is the one way to say "never tried": its value is NaN, and `knapsack` gives
such a problem the uniform budget.

`knapsack` is exact. Each further rollout of a problem gains less than the one before, so the best
rollouts are those of the greatest gains, whichever problem they belong to. The dynamic program
released with the paper takes a problem's bare minimum to be worth 0, and therefore misses the
optimum of equation 5 on many small instances.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from workbench.utils.groups import floored, place_within
from workbench.utils.names import of_catalogue
from workbench.utils.validation import counts as checked_counts
from workbench.utils.validation import number, one_of, success_rates, whole_number

ESTIMATORS = ("grpo", "rloo", "remax", "reinforce")
LOG_OF_ZERO = -1e30  # finite, so that zero rollouts times it is zero


# What a rollout is worth


def nonzero_gradient_probability(n: Any, p: Any, estimator: str = "grpo") -> Any:
    """Probability that n rollouts at success rate p give a gradient that is not zero.

    Parameters
    ----------
    n : whole numbers of at least 0
    p : rates in [0, 1]
        n and p broadcast against each other.
    estimator : {"grpo", "rloo", "remax", "reinforce"}
        "grpo" and "rloo": 1 - p^n - (1-p)^n, some right and some wrong (0 for n = 0). "remax": 1 -
        p^n, where p is the rate of the greedy response. "reinforce": 1 - (1-p)^n, some right.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), section 3 and appendix E.

    Examples
    --------
    >>> float(nonzero_gradient_probability(8, 0.5))
    0.9921875
    """
    n = checked_counts("counts", n)
    p = checked_rates(p)
    one_of("estimator", estimator, ESTIMATORS)
    if estimator in ("remax", "reinforce"):
        return -np.expm1(n * _log_of_miss(p, estimator))
    # 1 - (1 - p)^n by expm1 and log1p keeps its digits for rates near 0; rates near 1 follow by
    # symmetry.
    rare = np.minimum(p, 1 - p)
    mixed = -np.expm1(n * np.log1p(-rare)) - rare**n
    # One rollout is never mixed. 0 * p and not 0, so that an unknown rate, NaN, stays unknown.
    return np.where(n > 1, mixed, 0 * p)[()]


def info_gain(p: Any) -> Any:
    """Expected rise of the success rate by one update, to first order: p (1-p)^2.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), proposition 2.

    Examples
    --------
    >>> float(info_gain(0.5))
    0.125
    """
    p = checked_rates(p)
    return p * (1 - p) ** 2


def value(n: Any, p: Any, info_gain: bool = True, estimator: str = "grpo") -> Any:
    """Worth of n rollouts at success rate p: the probability of a gradient times `info_gain(p)`.

    With info_gain=False it is the probability alone. Arguments are those of
    `nonzero_gradient_probability`.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), equation 6.
    """
    weight = _info_gain(p) if info_gain else 1.0
    return nonzero_gradient_probability(n, p, estimator) * weight


_info_gain = info_gain  # `value` and `knapsack` have an argument of this name


def expected_rollouts(p: Any) -> Any:
    """Mean number of rollouts until both outcomes were seen: 1/p + 1/(1-p) - 1.

    Infinite at 0 and 1.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), section 3.

    Examples
    --------
    >>> float(expected_rollouts(0.5))
    3.0
    """
    p = checked_rates(p)
    with np.errstate(divide="ignore"):
        return (1 / p + 1 / (1 - p) - 1)[()]


def required_rollouts(p: Any, alpha: float = 0.9) -> Any:
    """Rollouts for a gradient with probability about alpha: ln(1-alpha) / ln(max(p, 1-p)).

    The number is not rounded, and it is infinite at 0 and 1. The formula leaves out the power of
    the rarer outcome, so near p = 0.5 it is up to one rollout short.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), proposition 1.

    Examples
    --------
    >>> round(float(required_rollouts(0.01)))
    229
    """
    number("alpha", alpha, above=0, below=1)
    p = checked_rates(p)
    with np.errstate(divide="ignore"):
        return -np.log1p(-alpha) / -np.log1p(-np.minimum(p, 1 - p))


# The best split of a total


def knapsack(
    p: Any,
    total: int,
    *,
    low: int = 2,
    up: int = 128,
    info_gain: bool = True,
    fallback: bool = True,
    estimator: str = "grpo",
) -> np.ndarray:
    """Rollouts for each problem: the counts of greatest summed `value` that add up to `total`.

    Parameters
    ----------
    p : (P,) success rates
        NaN for problems never tried.
    total : int
        Rollouts in all, from P * low to P * up.
    low, up : int
        Bounds for one problem. low may be 0 for "remax" and "reinforce"; for "grpo" and "rloo" it
        is at least 1, since one rollout alone has no value.
    info_gain, fallback, estimator
        See Notes and `nonzero_gradient_probability`.

    Returns
    -------
    counts : (P,) int64
        Equal gains go to the lower index.

    Notes
    -----
    Problems never tried get total // P each. Everyone else has `low`. What is left then goes, each
    taking what it can hold,

    1. with fallback, to the problems with p = 0 in equal parts, but only what is left over after
       the problems with 0 < p < 1 have what they need for a gradient with probability 0.9, that is
       floor(min(up, ln 0.1 / ln max(p, 1-p))) each beyond `low`. For p = 0.9 that is 21, since
       21.85 is rounded down; the counts of table 2 follow only so, though it prints 22;
    2. to the problems with 0 < p < 1, by greatest gain;
    3. to the problems with p = 0, then to those never tried, then to those with p = 1, in equal
       parts.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), equation 5; the fallback is appendix C.

    Examples
    --------
    >>> knapsack([0.1, 0.5, 0.9], total=24)
    array([15,  7,  2])
    """
    p = checked_rates(p)
    check_budget(p.size, total, low, up, estimator)
    if p.ndim != 1:
        raise ValueError(f"p: shape {p.shape}; (P,) is needed")
    never_tried = np.isnan(p)
    failed = p == 0
    solved = p == 1
    # The uniform share lies within the bounds, as `check_budget` has made sure.
    counts = np.where(never_tried, total // p.size, low).astype(np.int64)
    # Comparisons with NaN are false, so problems never tried are not among these.
    partial = (p > 0) & (p < 1)
    if fallback:
        # Step 1 of the notes: problems never solved get what the others do not need.
        log_of_miss = _log_of_miss(p[partial], estimator)
        # A rate next to 0 or 1 may need more than a float holds; the minimum puts that right.
        with np.errstate(over="ignore", divide="ignore"):
            needed = np.floor(np.minimum(up, np.log(0.1) / log_of_miss))
        surplus = total - counts.sum() - int(needed.sum())
        _give(counts, np.where(failed, up, counts), max(surplus, 0))
    # Step 2: only problems between 0 and 1 gain by more rollouts.
    limit = np.where(partial, up, counts)
    if low == 0 and not info_gain:
        # Where the outcome is certain, the first rollout is worth 1 and the next ones nothing.
        certain = failed if estimator == "remax" else solved
        limit[certain & (counts == 0)] = 1
    _give(counts, limit, total - counts.sum(), _terms_of_gain(p, estimator, info_gain))
    # Step 3: what all of those cannot hold.
    for group in (failed, never_tried, solved):
        _give(counts, np.where(group, up, counts), total - counts.sum())
    return counts


def check_budget(problems: int, total: Any, low: Any, up: Any, estimator: str = "grpo") -> None:
    """Raise ValueError unless `total` can be split over the problems with low <= count <= up."""
    one_of("estimator", estimator, ESTIMATORS)
    whole_number("low", low, 0 if estimator in ("remax", "reinforce") else 1)
    whole_number("up", up, max(low, 1))
    whole_number("total", total, 0)
    if problems < 1:
        raise ValueError("p: empty; at least one problem is needed")
    if not problems * low <= total <= problems * up:
        allowed = f"{problems * low} (low={low} each) to {problems * up} (up={up} each)"
        raise ValueError(f"total={total}: {problems} problems can take {allowed}")


def serve_in_order(wanted: np.ndarray, amount: int) -> np.ndarray:
    """What each of wanted (P,) gets of `amount` when the lower indices are served first.

    >>> serve_in_order(np.array([3, 3, 3]), 5)
    array([3, 2, 0])
    """
    return np.clip(amount - (np.cumsum(wanted) - wanted), 0, wanted)


def _give(
    counts: np.ndarray, limit: np.ndarray, amount: int, terms: np.ndarray | None = None
) -> None:
    """Add up to `amount` to the counts, never above limit (P,).

    The greatest gains go first, by the terms of `_terms_of_gain`; without terms all get equal
    parts. Ties go to the lower indices.
    """
    # There is one entry for each rollout that a problem may get: the problem, and its number
    # beyond the count. Nothing gets more than all that is left.
    owner = np.repeat(np.arange(len(counts)), np.minimum(limit - counts, amount))
    number = place_within(owner)
    gain = -number if terms is None else _gain(terms[:, owner], counts[owner] + number)
    # Owners ascend, so of equal gains those of the lower indices come first; so do those that are
    # equal but for rounding.
    taken = np.argsort(-np.round(gain, 9), kind="stable")[:amount]
    counts += np.bincount(owner[taken], minlength=len(counts))


def _gain(terms: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Logarithm of the gain of one more rollout after n (A,) rollouts, by `_terms_of_gain`.

    It is base + n slope + log(1 + exp((n - 1) ratio)), without the last summand where there is no
    ratio.
    """
    gain = terms[0] + n * terms[1]
    return gain if len(terms) == 2 else gain + np.log1p(np.exp((n - 1) * terms[2]))


def _terms_of_gain(p: np.ndarray, estimator: str, with_info_gain: bool) -> np.ndarray:
    """Base, slope and ratio of `_gain` at rates p (P,): (3, P), or (2, P) without a ratio.

    Logarithms, because p^n underflows. There is no ratio where only one outcome counts.
    """
    rare = np.minimum(p, 1 - p)
    log_rare = _log(rare)
    log_common = np.log1p(-rare)
    log_p = np.where(p < 0.5, log_rare, log_common)
    log_q = np.where(p < 0.5, log_common, log_rare)
    weight = log_p + 2 * log_q if with_info_gain else 0.0
    # With q = 1 - p, rollout n + 1 gains p^n q with "remax" and q^n p with "reinforce". For the
    # others it gains r c^n + c r^n, with r the rarer and c the commoner of p and q; the first term
    # is taken out, which leaves r c^n times 1 + (r / c)^(n - 1).
    if estimator == "remax":
        return np.stack([log_q + weight, log_p])
    if estimator == "reinforce":
        return np.stack([log_p + weight, log_q])
    return np.stack([log_rare + weight, log_common, log_rare - log_common])


# Other ways to split a total


def in_proportion(weights: Any, total: int, low: int, up: int) -> np.ndarray:
    """Counts in proportion to weights, within bounds, that add up to `total` exactly.

    Parameters
    ----------
    weights : (P,) finite numbers of at least 0
    total : int
        From P * low to P * up.
    low, up : int
        Bounds for one problem.

    Returns
    -------
    counts : (P,) int64
        The exact proportions, cut to the bounds, are rounded by largest remainder; ties go to the
        lower index.

    Examples
    --------
    >>> in_proportion([5, 2, 1], total=24, low=1, up=32)
    array([15,  6,  3])
    >>> in_proportion([1, 1, 100], total=16, low=2, up=10)
    array([ 3,  3, 10])
    """
    weights = np.asarray(weights, dtype=np.float64)
    if weights.ndim != 1 or not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError("weights: (P,) finite numbers of at least 0 are needed")
    check_budget(len(weights), total, low, up)
    # A tiny weight keeps problems of weight 0 in the race when all others are at their bound.
    weights = np.maximum(weights, (weights.max() or 1.0) * 1e-12)
    lowest_scale = 0.0
    highest_scale = up / weights.min()
    # Bisects the factor of proportionality. 200 halvings exhaust the digits of a float, however
    # wide the range was.
    for _ in range(200):
        scale = (lowest_scale + highest_scale) / 2
        if np.clip(scale * weights, low, up).sum() < total:
            lowest_scale = scale
        else:
            highest_scale = scale
    exact = np.clip(highest_scale * weights, low, up)
    counts = floored(exact)
    # -1 keeps a problem at its upper bound from being rounded up.
    remainder = np.where(counts < up, exact - counts, -1.0)
    left = total - int(counts.sum())
    counts[np.argsort(-remainder, kind="stable")[:left]] += 1
    return counts


def greedily(gains: np.ndarray, total: int) -> np.ndarray:
    """Counts (P,) int64 that add up to `total`, each rollout where it gains most.

    gains[i, j] (P, K) is that of a rollout of problem i after j others, and falls with j. Equal
    gains go to the problem with fewer rollouts, then to the lower index.
    """
    # In single precision gains that differ by rounding alone are equal, as those of p and 1 - p.
    taken = np.argsort(-gains.T.ravel().astype(np.float32), kind="stable")[:total]
    return np.bincount(taken % len(gains), minlength=len(gains))


# Arguments


def checked_rates(p: Any) -> Any:
    """Rates as float64: an array for an array, and a number for a number."""
    return success_rates("p", p)[()]


def _log(p: Any) -> Any:
    """The logarithm, finite at 0. NaN stays NaN."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(p), LOG_OF_ZERO)


def _log_of_miss(p: Any, estimator: str) -> Any:
    """Logarithm of the probability that one rollout gives no gradient, finite at 0.

    That is p for "remax" and 1 - p for "reinforce". For the others it is that of the commoner
    outcome, as in `required_rollouts`.
    """
    if estimator == "remax":
        return _log(p)
    missed = p if estimator == "reinforce" else np.minimum(p, 1 - p)
    with np.errstate(divide="ignore"):
        return np.maximum(np.log1p(-missed), LOG_OF_ZERO)


# The rules of further papers are found here by their names too.
__getattr__ = partial(of_catalogue, __name__)
