"""How good a rollout is, measured against the rollouts of its own problem.

The first part is pure functions of rewards (R,) and group keys (R,). Keys need be neither sorted
nor contiguous, and every function returns (R,) float64. A group whose rewards are equal has
advantage zero: this *dead zone* is decided by equality up to rounding (`utils.groups.is_same`),
never by a floating-point deviation. A function that lifts it, such as `posterior`, says so.

The second part is the same as slot values (see `slots.Advantage`), which a method holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from workbench.slots import Context, Ragged, Rollouts, Slot
from workbench.utils.bounds import Flag, pair
from workbench.utils.groups import (
    group_numbers,
    grouped_rewards,
    is_mixed,
    is_same,
    precision_of,
)
from workbench.utils.names import of_catalogue
from workbench.utils.validation import brief, one_of, positive_number

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
        Zero where all rewards of the group are equal, and where a reward equals their mean.

    References
    ----------
    GRPO (arXiv 2402.03300), section 4.1. Knapsack RL (arXiv 2509.25849): eps=1e-6 (section 2) and
    clip=5 (appendix F).

    Examples
    --------
    >>> group_normalized([1, 0, 0, 0], ["a", "a", "a", "a"]).round(3)
    array([ 1.732, -0.577, -0.577, -0.577])
    """
    rewards, inverse, sizes = grouped_rewards(rewards, groups)
    _check_deviation(ddof, eps)
    means = group_means(rewards, inverse, sizes)[inverse]
    # A reward that equals the mean on paper may miss it by rounding.
    is_mean = is_same(rewards, means, precision_of(rewards))
    centred = np.where(is_mean, 0.0, rewards - means)
    if scale:
        variance = np.bincount(inverse, centred**2, len(sizes)) / np.maximum(sizes - ddof, 1)
        centred = divide(centred, np.sqrt(variance)[inverse] + eps)
    return _clipped(centred, clip)


def leave_one_out(rewards: Any, groups: Any, *, clip: float | None = None) -> np.ndarray:
    """The reward minus the mean of the other rewards of its group (RLOO, arXiv 2402.14740).

    Parameters and result are those of `group_normalized`; a group of one gets zero.

    Examples
    --------
    >>> leave_one_out([1, 0, 0], ["a", "a", "a"])
    array([ 1. , -0.5, -0.5])
    """
    # The mean of the others lies n / (n - 1) times as far from a reward as the mean of all n.
    centred = group_normalized(rewards, groups, scale=False)
    _, inverse, sizes = group_numbers(groups)
    return _clipped(centred * (sizes / np.maximum(sizes - 1, 1))[inverse], clip)


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
    if scale not in ("bernoulli", "posterior"):
        positive_number("scale", scale)
    # Both kinds of advantage are worked out for all rows, and each group then takes its own.
    of_mixed_groups = group_normalized(rewards, groups, ddof=ddof, eps=eps)
    rewards, inverse, sizes = grouped_rewards(rewards, groups)
    outcome = binary_outcomes(rewards, bounds)
    mean = (np.bincount(inverse, outcome, len(sizes)) + alpha) / (sizes + alpha + beta)
    if scale == "bernoulli":
        divisor = np.sqrt(mean * (1 - mean))
    elif scale == "posterior":
        divisor = np.sqrt(mean * (1 - mean) / (sizes + alpha + beta + 1))
    else:
        divisor = np.full(len(sizes), float(scale))
    of_uniform_groups = (outcome - mean[inverse]) / divisor[inverse]
    is_uniform = ~is_mixed(rewards, inverse, len(sizes))[inverse]
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
        rewards, _, _ = grouped_rewards(rewards, groups)
        one_group = np.zeros(len(rewards), dtype=np.int64)
        return group_normalized(rewards, one_group, ddof=ddof, eps=eps, clip=clip)
    _check_deviation(ddof, eps)
    # The batch mean of these is zero already; taking off its rounding error would only blur exact
    # zeros.
    centred = group_normalized(rewards, groups, scale=False)
    deviation = np.sqrt(np.sum(centred**2) / max(len(centred) - ddof, 1)) + eps
    return _clipped(divide(centred, np.full_like(centred, deviation)), clip)


# The same as slot values


class OfFunction(Slot):
    """Base of slot values that are a function of rewards and groups; its options are arguments."""

    function: ClassVar[Callable[..., np.ndarray]]

    reads_verdict = False

    def __post_init__(self) -> None:
        super().__post_init__()
        # An empty batch is enough for the function to check its options.
        self._advantages([], [])

    def _advantages(self, rewards: Any, groups: Any) -> np.ndarray:
        return self.function(rewards, groups, **asdict(self))  # type: ignore[call-overload]

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        return self._advantages(rollouts.reward, rollouts.group)


@dataclass(frozen=True)
class GroupNormalized(OfFunction):
    """`group_normalized` as a slot value, with its parameters: GRPO's advantage."""

    ddof: int = 0
    eps: float = 0.0
    clip: float | None = None
    scale: Flag = True

    function = staticmethod(group_normalized)
    compares_rollouts = True


@dataclass(frozen=True)
class LeaveOneOut(OfFunction):
    """`leave_one_out` as a slot value, with its parameter: RLOO's advantage."""

    clip: float | None = None

    function = staticmethod(leave_one_out)
    compares_rollouts = True


@dataclass(frozen=True)
class Posterior(OfFunction):
    """`posterior` as a slot value, with its parameters: AERO's advantage; no group is dead."""

    alpha: float = 1.0
    beta: float = 1.0
    scale: str | float = "bernoulli"
    bounds: tuple[float, float] = (0.0, 1.0)
    ddof: int = 0
    eps: float = 0.0
    clip: float | None = None

    function = staticmethod(posterior)


@dataclass(frozen=True)
class BatchNormalized(OfFunction):
    """`batch_normalized` as a slot value, with its parameters: that of REINFORCE++."""

    baseline: str | None = None
    ddof: int = 0
    eps: float = 0.0
    clip: float | None = None

    function = staticmethod(batch_normalized)

    @property
    def compares_rollouts(self) -> bool:  # type: ignore[override]
        """Where the group's mean is taken off first."""
        return self.baseline == "group"


@dataclass(frozen=True)
class OfRewards(Slot):
    """Any function of rewards (R,) and groups (R,) as a slot value: `OfRewards(leave_one_out)`."""

    function: Callable[..., np.ndarray]

    reads_verdict = False

    def __post_init__(self) -> None:
        try:
            # Two rollouts are enough for a function to check its options.
            self.function(np.array([0.0, 1.0]), np.array(["a", "a"]))
        except Exception as error:
            raise ValueError(
                f"function={brief(self.function)}: a function of rewards and groups is needed, "
                f"such as leave_one_out ({error})"
            ) from None

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        return self.function(rollouts.reward, rollouts.group)


def selected_advantages(
    advantage: Any,
    baseline: str,
    candidates: Rollouts,
    rows: np.ndarray,
    context: Context,
    full: Any = None,
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
    full : (C,) or Ragged, optional
        The advantages of all candidates, where they have been taken already.

    Returns
    -------
    (K,) float64, or a Ragged with one number for each response token
    """
    if baseline == "selection":
        return advantage(candidates.take(rows), context)
    if full is None:
        full = advantage(candidates, context)
    full = full.take(rows) if isinstance(full, Ragged) else np.asarray(full)[rows]
    if baseline == "group":
        return full
    # "mixed": AERO takes the posterior of a uniform group before pruning it, and the mean of a
    # mixed group after.
    rewards, inverse, sizes = grouped_rewards(candidates.reward, candidates.group)
    measured_after = is_mixed(rewards, inverse, len(sizes))[inverse][rows]
    selected = advantage(candidates.take(rows), context)
    if isinstance(full, Ragged):
        tokens = np.repeat(measured_after, full.lengths)
        return Ragged(np.where(tokens, selected.values, full.values), full.offsets)
    return np.where(measured_after, selected, full)


def binary_outcomes(rewards: np.ndarray, bounds: Any) -> np.ndarray:
    """Rewards on the scale where failure is 0 and success is 1, (R,)."""
    pair("bounds", bounds, rising=True)
    low, high = bounds
    precision = precision_of(rewards)
    # A sum of parts may miss a bound by rounding.
    for bound in (low, high):
        rewards = np.where(is_same(rewards, bound, precision), bound, rewards)
    outside = (rewards < low) | (rewards > high)
    if outside.any():
        raise ValueError(
            f"rewards: {rewards[outside][0]} lies outside bounds={bounds}, the rewards of failure "
            "and success"
        )
    return (rewards - low) / (high - low)


def group_means(rewards: np.ndarray, inverse: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The mean reward of each group, (G,) float64: exactly the reward where all are equal.

    A sum of many equal rewards misses their multiple by rounding, and a division by a deviation of
    that size would turn it into an advantage of size 1.
    """
    one_of_each = np.empty(len(sizes))
    one_of_each[inverse] = rewards
    means = np.bincount(inverse, rewards, len(sizes)) / sizes
    return np.where(is_mixed(rewards, inverse, len(sizes)), means, one_of_each)


def divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """The quotients, and 0 where the denominator is 0, as in a group all alike."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def _check_deviation(ddof: Any, eps: Any) -> None:
    if ddof not in (0, 1):
        raise ValueError(f"ddof={ddof!r}: allowed are 0 (population) and 1 (sample)")
    positive_number("eps", eps, zero=True)


def _clipped(values: np.ndarray, bound: float | None) -> np.ndarray:
    if bound is None:
        return values
    positive_number("clip", bound)
    return np.clip(values, -bound, bound)


__getattr__ = partial(of_catalogue, __name__)
