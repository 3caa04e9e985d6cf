"""How good a rollout is, measured against the rollouts of its own problem.

The first part is pure functions of rewards (R,) and group keys (R,). Keys need be neither sorted
nor contiguous, and every function returns (R,) float64. A group whose rewards are exactly equal has
advantage zero: this *dead zone* is decided by equality, never by a floating-point deviation. Two
functions exist to lift it: `posterior`, and `batch_normalized` without a baseline.

The second part is the same as slot values (see `slots.Advantage`), which a method holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.rollouts import Ragged
from workbench.slots import Slot
from workbench.utils.validation import is_number, one_of, positive_number, shown

if TYPE_CHECKING:
    from workbench.rollouts import Context, Rollouts

__all__ = [
    "BatchNormalized",
    "GroupNormalized",
    "LeaveOneOut",
    "OfRewards",
    "Posterior",
    "batch_normalized",
    "group_normalized",
    "leave_one_out",
    "posterior",
    "selected_advantages",
]


# Functions of rewards and groups


def group_normalized(
    rewards: Any,
    groups: Any,
    *,
    ddof: int = 0,
    eps: float = 0.0,
    clip: float | None = None,
    scale: bool = True,
) -> np.ndarray:
    """(r - mean) / (std + eps) within each group: the advantage of GRPO.

    Parameters
    ----------
    rewards : (R,) finite numbers
    groups : (R,) keys
    ddof : {0, 1}
        0 for the population deviation, 1 for the sample one. A group of one has no sample deviation
        and gets zero.
    eps : float
        Added to the deviation.
    clip : float, optional
        Bound on the absolute value of the result.
    scale : bool
        False leaves out the division (Dr. GRPO, arXiv 2503.20783).

    Returns
    -------
    advantages : (R,) float64
        Zero where all rewards of the group are equal.

    References
    ----------
    GRPO (arXiv 2402.03300), section 4.1. Knapsack RL (arXiv 2509.25849), appendix F: eps=1e-6 and
    clip=5.

    Examples
    --------
    >>> group_normalized([1, 0, 0, 0], ["a", "a", "a", "a"]).round(3)
    array([ 1.732, -0.577, -0.577, -0.577])
    """
    rewards, inverse, sizes = _grouped(rewards, groups)
    _check_deviation(ddof, eps)
    centred = rewards - _means(rewards, inverse, sizes)[inverse]
    if scale:
        variance = np.bincount(inverse, centred**2, len(sizes)) / np.maximum(sizes - ddof, 1)
        centred = _divide(centred, np.sqrt(variance)[inverse] + eps)
    centred[~_is_mixed(rewards, inverse, sizes)[inverse]] = 0.0
    return _clipped(centred, clip)


def leave_one_out(rewards: Any, groups: Any, *, clip: float | None = None) -> np.ndarray:
    """The reward minus the mean of the other rewards of its group (RLOO, arXiv 2402.14740).

    Parameters and result are those of `group_normalized`; a group of one gets zero.

    Examples
    --------
    >>> leave_one_out([1, 0, 0], ["a", "a", "a"])
    array([ 1. , -0.5, -0.5])
    """
    rewards, inverse, sizes = _grouped(rewards, groups)
    sum_of_others = np.bincount(inverse, rewards, len(sizes))[inverse] - rewards
    advantage = rewards - _divide(sum_of_others, (sizes - 1.0)[inverse])
    advantage[~_is_mixed(rewards, inverse, sizes)[inverse]] = 0.0
    return _clipped(advantage, clip)


def posterior(
    rewards: Any,
    groups: Any,
    alpha: float = 1.0,
    beta: float = 1.0,
    scale: str | float = "bernoulli",
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    ddof: int = 0,
    eps: float = 0.0,
    clip: float | None = None,
) -> np.ndarray:
    """`group_normalized`, but uniform groups are measured against the mean of a Beta posterior.

    Where all n rewards of a group are equal, with c their sum, the group's mean gives way to
    u = (c + alpha) / (n + alpha + beta). With binary rewards no advantage is then zero.

    Parameters
    ----------
    rewards, groups, ddof, eps, clip
        As in `group_normalized`; ddof and eps are those of mixed groups.
    alpha, beta : float
        The prior, above 0.
    scale : {"bernoulli", "posterior"} or a positive number
        What r - u is divided by. The paper leaves it open, and the group's deviation is zero here.
        "bernoulli" is our reading, the deviation sqrt(u (1 - u)) of an outcome; "posterior" is the
        deviation of the Beta posterior itself, sqrt(u (1 - u) / (n + alpha + beta + 1)), which
        makes advantages of uniform groups several times as large.
    bounds : (low, high)
        Rewards of failure and of success, mapped to 0 and 1 in uniform groups; all rewards must lie
        between.

    References
    ----------
    AERO (arXiv 2602.14338), equation 7.

    Examples
    --------
    >>> posterior([0] * 8, ["a"] * 8).round(3)[:2]
    array([-0.333, -0.333])
    """
    positive_number("alpha", alpha)
    positive_number("beta", beta)
    if scale not in ("bernoulli", "posterior") and not (is_number(scale) and float(scale) > 0):
        raise ValueError(
            f"scale={shown(scale)}: 'bernoulli', 'posterior' or a positive number is needed"
        )
    of_mixed_groups = group_normalized(rewards, groups, ddof=ddof, eps=eps)
    rewards, inverse, sizes = _grouped(rewards, groups)
    outcome = _outcomes(rewards, bounds)
    mean = (np.bincount(inverse, outcome, len(sizes)) + alpha) / (sizes + alpha + beta)
    if scale == "bernoulli":
        divisor = np.sqrt(mean * (1 - mean))
    elif scale == "posterior":
        divisor = np.sqrt(mean * (1 - mean) / (sizes + alpha + beta + 1))
    else:
        divisor = np.full(len(sizes), float(scale))
    of_uniform_groups = (outcome - mean[inverse]) / divisor[inverse]
    is_uniform = ~_is_mixed(rewards, inverse, sizes)[inverse]
    return _clipped(np.where(is_uniform, of_uniform_groups, of_mixed_groups), clip)


def batch_normalized(
    rewards: Any,
    groups: Any,
    *,
    baseline: str | None = None,
    ddof: int = 0,
    eps: float = 0.0,
    clip: float | None = None,
) -> np.ndarray:
    """Rewards normalised by mean and deviation of the whole batch (REINFORCE++, arXiv 2501.03262).

    Parameters
    ----------
    rewards, groups, ddof, eps, clip
        As in `group_normalized`.
    baseline : {None, "group"}
        None: (r - batch mean) / (batch std + eps). A uniform group has an advantage too, and groups
        depend on each other. "group": the group's mean is taken off first, then the result is
        divided by the batch deviation, and a uniform group has zero (REINFORCE++-baseline).

    Notes
    -----
    A batch of equal rewards gets zero. Knapsack RL's table 7 names REINFORCE++ without saying which
    of the two.

    Examples
    --------
    >>> batch_normalized([1, 1, 0, 0], ["a", "a", "b", "b"])
    array([ 1.,  1., -1., -1.])
    """
    one_of("baseline", baseline, (None, "group"))
    if baseline is None:
        rewards, _, _ = _grouped(rewards, groups)
        one_group = np.zeros(len(rewards), dtype=np.int64)
        return group_normalized(rewards, one_group, ddof=ddof, eps=eps, clip=clip)
    _check_deviation(ddof, eps)
    # The batch mean of these is zero already; taking off its rounding error would only blur exact
    # zeros.
    centred = group_normalized(rewards, groups, scale=False)
    deviation = np.sqrt(np.sum(centred**2) / max(len(centred) - ddof, 1)) + eps
    return _clipped(_divide(centred, np.full_like(centred, deviation)), clip)


# The same as slot values


@dataclass(frozen=True)
class GroupNormalized(Slot):
    """`group_normalized` as a slot value: GRPO's advantage."""

    ddof: int = 0
    eps: float = 0.0
    clip: float | None = None
    scale: bool = True

    def __post_init__(self) -> None:
        _check_deviation(self.ddof, self.eps)
        _check_clip(self.clip)

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        return group_normalized(
            rollouts.reward,
            rollouts.group,
            ddof=self.ddof,
            eps=self.eps,
            clip=self.clip,
            scale=self.scale,
        )


@dataclass(frozen=True)
class LeaveOneOut(Slot):
    """`leave_one_out` as a slot value: RLOO's advantage."""

    clip: float | None = None

    def __post_init__(self) -> None:
        _check_clip(self.clip)

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        return leave_one_out(rollouts.reward, rollouts.group, clip=self.clip)


@dataclass(frozen=True)
class Posterior(Slot):
    """`posterior` as a slot value: AERO's advantage, in which no group is dead."""

    alpha: float = 1.0
    beta: float = 1.0
    scale: str | float = "bernoulli"
    bounds: tuple[float, float] = (0.0, 1.0)
    ddof: int = 0
    eps: float = 0.0
    clip: float | None = None

    def __post_init__(self) -> None:
        # An empty batch is enough for `posterior` to check its options.
        posterior([], [], **self._options())

    def _options(self) -> dict[str, Any]:
        names = ("alpha", "beta", "scale", "bounds", "ddof", "eps", "clip")
        return {name: getattr(self, name) for name in names}

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        return posterior(rollouts.reward, rollouts.group, **self._options())


@dataclass(frozen=True)
class BatchNormalized(Slot):
    """`batch_normalized` as a slot value: the advantages of REINFORCE++."""

    baseline: str | None = None
    ddof: int = 0
    eps: float = 0.0
    clip: float | None = None

    def __post_init__(self) -> None:
        one_of("baseline", self.baseline, (None, "group"))
        _check_deviation(self.ddof, self.eps)
        _check_clip(self.clip)

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        return batch_normalized(
            rollouts.reward,
            rollouts.group,
            baseline=self.baseline,
            ddof=self.ddof,
            eps=self.eps,
            clip=self.clip,
        )


@dataclass(frozen=True)
class OfRewards(Slot):
    """Any function of rewards (R,) and groups (R,) as a slot value: `OfRewards(leave_one_out)`."""

    function: Callable[..., np.ndarray]

    def __post_init__(self) -> None:
        if isinstance(self.function, type) or not callable(self.function):
            raise ValueError(
                f"function={shown(self.function)}: a function of rewards and groups is needed, "
                "such as leave_one_out"
            )

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        return self.function(rollouts.reward, rollouts.group)


def selected_advantages(
    advantage: Any, baseline: str, candidates: Rollouts, rows: np.ndarray, context: Context
) -> np.ndarray | Ragged:
    """Advantages of the selected rows (K,) of the candidates.

    Parameters
    ----------
    advantage : slots.Advantage
    baseline : {"group", "selection", "mixed"}
        What they are measured against, see `slots.Selection`.
    candidates : Rollouts (C rows)
    rows : (K,) int64
    context : Context

    Returns
    -------
    (K,) float64, or a Ragged with one number for each response token
    """
    if baseline == "group":
        return _take(advantage(candidates, context), rows)
    selected = advantage(candidates.take(rows), context)
    if baseline == "selection":
        return selected
    # "mixed": AERO takes the posterior of a uniform group before pruning it, and the mean of a
    # mixed group after.
    rewards, inverse, sizes = _grouped(candidates.reward, candidates.group)
    is_mixed = _is_mixed(rewards, inverse, sizes)[inverse][rows]
    full = _take(advantage(candidates, context), rows)
    if isinstance(full, Ragged):
        tokens = np.repeat(is_mixed, full.lengths)
        return Ragged(np.where(tokens, selected.values, full.values), full.offsets)
    return np.where(is_mixed, selected, full)


def _take(advantages: Any, rows: np.ndarray) -> Any:
    return advantages.take(rows) if isinstance(advantages, Ragged) else np.asarray(advantages)[rows]


def _outcomes(rewards: np.ndarray, bounds: Any) -> np.ndarray:
    """Rewards on the scale where failure is 0 and success is 1, (R,)."""
    is_pair = isinstance(bounds, tuple | list) and len(bounds) == 2 and all(map(is_number, bounds))
    if not is_pair or not bounds[0] < bounds[1]:
        raise ValueError(
            f"bounds={bounds!r}: two numbers are needed, the reward of failure and the greater one "
            "of success"
        )
    low, high = bounds
    outside = (rewards < low) | (rewards > high)
    if outside.any():
        raise ValueError(
            f"rewards: {rewards[outside][0]} lies outside bounds={bounds}, the rewards of failure "
            "and success"
        )
    return (rewards - low) / (high - low)


def _grouped(rewards: Any, groups: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards (R,), the group number of every row (R,) and the group sizes (G,)."""
    rewards = np.asarray(rewards, dtype=np.float64)
    groups = np.asarray(groups)
    if rewards.ndim != 1 or groups.shape != rewards.shape:
        raise ValueError(f"rewards {rewards.shape} and groups {groups.shape}: both must be (R,)")
    if not np.isfinite(rewards).all():
        row = int(np.argmin(np.isfinite(rewards)))
        raise ValueError(f"rewards: row {row} is {rewards[row]}, not finite")
    keys, inverse = np.unique(groups, return_inverse=True)
    return rewards, inverse, np.bincount(inverse, minlength=len(keys))


def _means(rewards: np.ndarray, inverse: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return np.bincount(inverse, rewards, len(sizes)) / np.maximum(sizes, 1)


def _is_mixed(rewards: np.ndarray, inverse: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Which groups hold two different rewards, (G,) bool, by exact comparison."""
    low = np.full(len(sizes), np.inf)
    high = np.full(len(sizes), -np.inf)
    np.minimum.at(low, inverse, rewards)
    np.maximum.at(high, inverse, rewards)
    return low < high


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def _check_deviation(ddof: Any, eps: Any) -> None:
    if ddof not in (0, 1):
        raise ValueError(f"ddof={ddof!r}: allowed are 0 (population) and 1 (sample)")
    positive_number("eps", eps, zero=True)


def _check_clip(bound: Any) -> None:
    if bound is not None and not (is_number(bound) and bound > 0):
        raise ValueError(f"clip={bound!r}: a positive bound or None is needed")


def _clipped(values: np.ndarray, bound: float | None) -> np.ndarray:
    _check_clip(bound)
    return values if bound is None else np.clip(values, -bound, bound)
