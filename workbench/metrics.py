"""Numbers from records: pure functions of arrays and frames."""

import numpy as np

# FLOPs a parameter and token: 2 for a forward pass, 6 for forward and backward (AERO eq. 23)
FORWARD, TRAINING = 2, 6


def effective_gradient_ratio(advantages):
    """Share of rollouts whose advantage is not zero, a number in [0, 1] (Knapsack RL). advantages (R,)."""
    advantages = np.asarray(advantages, dtype=np.float64)
    return float(np.mean(advantages != 0)) if advantages.size else float("nan")


def zero_gradient_ratios(correct, groups):
    """Shares of problems whose rollouts are all correct and all wrong: (all_positive, all_negative) (Knapsack RL).

    correct (R,) bool, groups (R,) keys.
    """
    rates = success_rates(correct, groups)
    if not len(rates):
        return float("nan"), float("nan")
    return float(np.mean(rates == 1)), float(np.mean(rates == 0))


def success_rates(correct, groups):
    """Share of correct rollouts of each group, (G,), groups in sorted order."""
    _, inverse, sizes = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    return np.bincount(inverse, np.asarray(correct, dtype=np.float64), len(sizes)) / sizes


def avg_at_k(correct, k):
    """Mean correctness over k samples a problem: correct (P,) counts of right answers among k, a number in [0, 1]."""
    correct, _ = _check_counts(correct, k, k)
    return float(np.mean(correct / k))


def pass_at_k(correct, n, k):
    """Unbiased probability that one of k samples is right, averaged over problems.

    correct (P,) counts of right answers among n >= k samples: mean of 1 - C(n - c, k) / C(n, k).
    """
    correct, n = _check_counts(correct, n, k)
    failed = np.ones(len(correct))
    for i in range(k):
        failed *= np.clip(n - correct - i, 0, None) / (n - i)
    return float(np.mean(1 - failed))


def flops(parameters, *, sampled_tokens=0, trained_tokens=0):
    """Floating-point operations of a round: 2 x parameters x sampled + 6 x parameters x trained tokens (AERO eq. 23).

    Prompt tokens count with the tokens they are processed with.
    """
    return float(parameters) * (FORWARD * sampled_tokens + TRAINING * trained_tokens)


def mean_interval(values, level=0.95):
    """Mean and the half-width of its Student interval over independent values (n,), n >= 2 for a width."""
    from scipy.stats import t

    values = np.asarray(values, dtype=np.float64)
    if len(values) < 2:
        return float(values.mean()), float("nan")
    error = values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(t.ppf(0.5 + level / 2, len(values) - 1) * error)


def _check_counts(correct, n, k):
    correct = np.asarray(correct, dtype=np.int64)
    if k < 1 or k > n:
        raise ValueError(f"k={k}: a whole number from 1 to the number of samples, {n}, is needed")
    if correct.size == 0 or (correct < 0).any() or (correct > n).any():
        raise ValueError(f"correct: counts from 0 to {n} for at least one problem are needed")
    return correct, n
