"""How good a rollout is, measured against the rollouts of its own problem.

Pure functions of rewards (R,) and group keys (R,); keys need be neither sorted nor contiguous. Every one returns
(R,) float64. A group whose rewards are exactly equal has advantage zero: equality decides, never a float deviation.
"""

import numpy as np


def group_normalized(rewards, groups, *, ddof=0, eps=0.0, clip=None, scale=True):
    """(r - mean) / (std + eps) within each group, zero where all rewards of the group are equal.

    rewards (R,) finite; groups (R,) keys. ddof: 0 for the population deviation, 1 for the sample one (a group of one
    then has none and gets zero). eps: added to the deviation. clip: bound on the absolute value. scale=False leaves
    out the division (Dr. GRPO). Source: GRPO's group advantage; eps=1e-6 with clip=5 is Knapsack RL's.
    """
    rewards, inverse, sizes = _grouped(rewards, groups)
    if ddof not in (0, 1):
        raise ValueError(f"ddof={ddof}: allowed are 0 (population) and 1 (sample)")
    centred = rewards - _mean(rewards, inverse, sizes)[inverse]
    if scale:
        variance = np.bincount(inverse, centred**2, len(sizes)) / np.maximum(sizes - ddof, 1)
        centred = _divide(centred, np.sqrt(variance)[inverse] + eps)
    centred[~_mixed(rewards, inverse, sizes)[inverse]] = 0.0
    return _clipped(centred, clip)


def leave_one_out(rewards, groups, *, clip=None):
    """r_i minus the mean of the other rewards of its group (RLOO); a group of one gets zero."""
    rewards, inverse, sizes = _grouped(rewards, groups)
    others = np.bincount(inverse, rewards, len(sizes))[inverse] - rewards
    advantage = rewards - _divide(others, (sizes - 1.0)[inverse])
    advantage[~_mixed(rewards, inverse, sizes)[inverse]] = 0.0
    return _clipped(advantage, clip)


def _grouped(rewards, groups):
    rewards, groups = np.asarray(rewards, dtype=np.float64), np.asarray(groups)
    if rewards.ndim != 1 or groups.shape != rewards.shape:
        raise ValueError(f"rewards {rewards.shape} and groups {groups.shape}: both must be (R,)")
    if not np.isfinite(rewards).all():
        raise ValueError(f"rewards: row {int(np.argmin(np.isfinite(rewards)))} is {rewards[~np.isfinite(rewards)][0]}, not finite")
    keys, inverse = np.unique(groups, return_inverse=True)
    return rewards, inverse, np.bincount(inverse, minlength=len(keys))


def _mean(rewards, inverse, sizes):
    return np.bincount(inverse, rewards, len(sizes)) / np.maximum(sizes, 1)


def _mixed(rewards, inverse, sizes):
    """Which groups hold two different rewards, (G,) bool, by exact comparison."""
    low, high = np.full(len(sizes), np.inf), np.full(len(sizes), -np.inf)
    np.minimum.at(low, inverse, rewards)
    np.maximum.at(high, inverse, rewards)
    return low < high


def _divide(numerator, denominator):
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def _clipped(values, bound):
    if bound is None:
        return values
    if not bound > 0:
        raise ValueError(f"clip={bound}: a positive bound or None is needed")
    return np.clip(values, -bound, bound)
