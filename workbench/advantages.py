"""How good a rollout is, measured against the rollouts of its own problem.

Pure functions of rewards (R,) and group keys (R,); keys need be neither sorted nor contiguous. Every one returns
(R,) float64. A group whose rewards are exactly equal has advantage zero: equality decides, never a float deviation.
Two functions exist to lift that: `posterior`, and `batch_normalized` without a baseline.
"""

import numpy as np

from workbench.utils.columns import is_number, positive_number


def group_normalized(rewards, groups, *, ddof=0, eps=0.0, clip=None, scale=True):
    """(r - mean) / (std + eps) within each group, zero where all rewards of the group are equal.

    rewards (R,) finite; groups (R,) keys. ddof: 0 for the population deviation, 1 for the sample one (a group of one
    then has none and gets zero). eps: added to the deviation. clip: bound on the absolute value. scale=False leaves
    out the division (Dr. GRPO). Source: GRPO's group advantage; eps=1e-6 with clip=5 is Knapsack RL's.
    """
    rewards, inverse, sizes = _grouped(rewards, groups)
    _check_deviation(ddof, eps)
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


def posterior(
    rewards,
    groups,
    alpha=1.0,
    beta=1.0,
    scale="bernoulli",
    *,
    bounds=(0.0, 1.0),
    ddof=0,
    eps=0.0,
    clip=None,
):
    """`group_normalized`, but uniform groups are measured against the mean of a Beta posterior (AERO eq. 7).

    Where all n rewards of a group are equal, with c = their sum, the mean gives way to u = (c + alpha) / (n + alpha +
    beta). alpha, beta > 0: the prior. scale: what r - u is divided by; the paper leaves it open and the deviation is
    zero here, so "bernoulli" is our reading, sqrt(u (1 - u)), or a positive number. bounds: rewards of failure and of
    success, mapped to 0 and 1 in uniform groups; rewards must lie between. ddof, eps: of the mixed groups.
    Example: eight wrong ones get -1/3 each, eight right ones 1/3. With binary rewards no advantage is ever zero.
    """
    positive_number("alpha", alpha)
    positive_number("beta", beta)
    if scale != "bernoulli" and not (is_number(scale) and scale > 0):
        raise ValueError(f"scale={scale!r}: 'bernoulli' or a positive number is needed")
    advantage = group_normalized(rewards, groups, ddof=ddof, eps=eps)
    rewards, inverse, sizes = _grouped(rewards, groups)
    outcome = _outcomes(rewards, bounds)
    mean = (np.bincount(inverse, outcome, len(sizes)) + alpha) / (sizes + alpha + beta)
    divisor = (
        np.sqrt(mean * (1 - mean)) if scale == "bernoulli" else np.full(len(sizes), float(scale))
    )
    uniform = ~_mixed(rewards, inverse, sizes)[inverse]
    return _clipped(
        np.where(uniform, (outcome - mean[inverse]) / divisor[inverse], advantage), clip
    )


def batch_normalized(rewards, groups, *, baseline=None, ddof=0, eps=0.0, clip=None):
    """Normalised by mean and deviation of the whole batch (REINFORCE++).

    baseline: None for (r - batch mean) / (batch std + eps), where a uniform group has an advantage too and groups
    depend on each other; "group" takes off the group's mean first (REINFORCE++-baseline), then divides by the batch
    deviation, and a uniform group has zero. A batch of equal rewards gets zero. Knapsack RL's table 7 names
    REINFORCE++ without its form.
    """
    if baseline not in (None, "group"):
        raise ValueError(f"baseline={baseline!r}: allowed are None and 'group'")
    if baseline is None:
        rewards = _grouped(rewards, groups)[0]
        return group_normalized(
            rewards, np.zeros(len(rewards), dtype=np.int64), ddof=ddof, eps=eps, clip=clip
        )
    _check_deviation(ddof, eps)
    # the batch mean of these is zero already: taking off its rounding error would only blur exact zeros
    centred = group_normalized(rewards, groups, scale=False)
    deviation = np.sqrt(np.sum(centred**2) / max(len(centred) - ddof, 1)) + eps
    return _clipped(_divide(centred, np.full_like(centred, deviation)), clip)


def selected_advantages(advantage, statistics, pool, index):
    """Advantages of the selected rows `index` (K,) of the candidates `pool`, (K,) float64.

    statistics: over the "selected" rows alone (PODS); over the whole "pool" of the group, which its column `advantage`
    then holds already; or "mixed", over the pool where all rewards of the pool's group are equal, else over the selected
    rows (AERO takes the posterior of a uniform group before pruning it, and the mean of a mixed one after).
    """
    if statistics == "pool":
        return pool["advantage"][index]
    selected = advantage(pool.reward[index], pool.group[index])
    if statistics == "selected":
        return selected
    rewards, inverse, sizes = _grouped(pool.reward, pool.group)
    mixed = _mixed(rewards, inverse, sizes)[inverse][index]
    return np.where(mixed, selected, advantage(pool.reward, pool.group)[index])


def _outcomes(rewards, bounds):
    """Rewards on the scale where failure is 0 and success 1, (R,)."""
    low, high = bounds if isinstance(bounds, (tuple, list)) and len(bounds) == 2 else (None, None)
    if not (is_number(low) and is_number(high) and low < high):
        raise ValueError(
            f"bounds={bounds!r}: two numbers are needed, and the reward of failure must lie below that of success"
        )
    if len(rewards) and not (low <= rewards.min() and rewards.max() <= high):
        odd = rewards[(rewards < low) | (rewards > high)][0]
        raise ValueError(
            f"rewards: {odd} lies outside bounds={bounds}, the rewards of failure and success"
        )
    return (rewards - low) / (high - low)


def _grouped(rewards, groups):
    rewards, groups = np.asarray(rewards, dtype=np.float64), np.asarray(groups)
    if rewards.ndim != 1 or groups.shape != rewards.shape:
        raise ValueError(f"rewards {rewards.shape} and groups {groups.shape}: both must be (R,)")
    if not np.isfinite(rewards).all():
        row = int(np.argmin(np.isfinite(rewards)))
        raise ValueError(f"rewards: row {row} is {rewards[row]}, not finite")
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


def _check_deviation(ddof, eps):
    if ddof not in (0, 1):
        raise ValueError(f"ddof={ddof!r}: allowed are 0 (population) and 1 (sample)")
    positive_number("eps", eps, zero=True)


def _clipped(values, bound):
    if bound is None:
        return values
    if not (is_number(bound) and bound > 0):
        raise ValueError(f"clip={bound!r}: a positive bound or None is needed")
    return np.clip(values, -bound, bound)
