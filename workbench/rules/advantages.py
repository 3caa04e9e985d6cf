"""How good a rollout is, measured against the rollouts of its own problem.

The first part is pure functions of rewards (R,) and group keys (R,). Keys need be neither sorted
nor contiguous, and every function returns (R,) float64. A group whose rewards are exactly equal has
advantage zero: this *dead zone* is decided by equality, never by a floating-point deviation. A
function that lifts it, such as `posterior`, says so.

The second part is the same as slot values (see `slots.Advantage`), which a method holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np

from workbench.rollouts import Context, Ragged, Rollouts, grouped_rewards, is_mixed
from workbench.rules.success_rates import Posteriors, RemembersPosteriors, outcomes
from workbench.slots import Slot, state_field
from workbench.utils.bounds import Count, Flag, Positive, PositiveOrZero, pair
from workbench.utils.validation import (
    instance_of,
    is_number,
    one_of,
    positive_number,
    shown,
    whole_number,
)

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
    GRPO (arXiv 2402.03300), section 4.1. Knapsack RL (arXiv 2509.25849): eps=1e-6 (section 2) and
    clip=5 (appendix F).

    Examples
    --------
    >>> group_normalized([1, 0, 0, 0], ["a", "a", "a", "a"]).round(3)
    array([ 1.732, -0.577, -0.577, -0.577])
    """
    rewards, inverse, sizes = grouped_rewards(rewards, groups)
    _check_deviation(ddof, eps)
    centred = rewards - _means(rewards, inverse, sizes)[inverse]
    if scale:
        variance = np.bincount(inverse, centred**2, len(sizes)) / np.maximum(sizes - ddof, 1)
        centred = _divide(centred, np.sqrt(variance)[inverse] + eps)
    # The mean of equal rewards may miss them by a rounding error, and a deviation of that size
    # would turn it into an advantage of size 1. So equality decides, and the group gets exactly 0.
    centred[~is_mixed(rewards, inverse, len(sizes))[inverse]] = 0.0
    return _clipped(centred, clip)


def leave_one_out(rewards: Any, groups: Any, *, clip: float | None = None) -> np.ndarray:
    """The reward minus the mean of the other rewards of its group (RLOO, arXiv 2402.14740).

    Parameters and result are those of `group_normalized`; a group of one gets zero.

    Examples
    --------
    >>> leave_one_out([1, 0, 0], ["a", "a", "a"])
    array([ 1. , -0.5, -0.5])
    """
    rewards, inverse, sizes = grouped_rewards(rewards, groups)
    sum_of_others = np.bincount(inverse, rewards, len(sizes))[inverse] - rewards
    advantage = rewards - _divide(sum_of_others, (sizes - 1.0)[inverse])
    advantage[~is_mixed(rewards, inverse, len(sizes))[inverse]] = 0.0
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
    # Both kinds of advantage are worked out for all rows, and each group then takes its own.
    of_mixed_groups = group_normalized(rewards, groups, ddof=ddof, eps=eps)
    rewards, inverse, sizes = grouped_rewards(rewards, groups)
    outcome = _outcomes(rewards, bounds)
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
    return _clipped(_divide(centred, np.full_like(centred, deviation)), clip)


def parts_normalized(
    parts: Any, groups: Any, *, weights: Any = None, eps: float = 0.0
) -> np.ndarray:
    """Every part of the reward normalised in its group, then summed, then divided by one deviation.

    So a part that varies little counts as much as one that varies widely, which it does not where
    the sum of the parts is normalised.

    Parameters
    ----------
    parts : (R, K) finite numbers
        Of each rollout what each part of its reward gave.
    groups : (R,) keys
    weights : (K,), optional
        Of the normalised parts; None for 1 each.
    eps : float
        Added to every deviation.

    Returns
    -------
    advantages : (R,) float64
        With s the sum of the normalised parts, s over its sample deviation in the batch. The sums
        of a group have mean zero. Zero where every part of a group is uniform.

    References
    ----------
    GDPO (arXiv 2601.05242), as TRL has it: sample deviations, and every rollout of the batch counts
    alike. In verl the batch deviation counts tokens.

    Examples
    --------
    >>> parts_normalized([[1, 1], [0, 1], [0, 0], [0, 0]], ["a"] * 4).round(3)
    array([ 1.332,  0.206, -0.769, -0.769])
    """
    parts = np.asarray(parts, dtype=np.float64)
    weights = np.asarray(np.ones(parts.shape[1:]) if weights is None else weights, dtype=np.float64)
    if parts.ndim != 2 or weights.shape != parts.shape[1:]:
        raise ValueError(f"parts {parts.shape} and weights {weights.shape}: (R, K) and (K,) needed")
    normalised = [group_normalized(part, groups, ddof=1, eps=eps) for part in parts.T]
    weighted = weights[:, None] * normalised
    sums = np.sum(weighted, axis=0)
    # Parts that are opposites of each other leave a rounding error, which the deviation of a batch
    # without anything else would make as large as a signal.
    is_rounding = np.abs(sums) <= 1e-12 * np.sum(np.abs(weighted), axis=0)
    sums[is_rounding] = 0.0
    return batch_normalized(sums, groups, baseline="group", ddof=1, eps=eps)


def asymmetric(rewards: Any, groups: Any, *, weighting: str = "linear") -> np.ndarray:
    """omega(p) (r - p), with p the mean reward of the group: problems of low success rate count
    more.

    Parameters
    ----------
    rewards : (R,) from 0 to 1
    groups : (R,) keys
    weighting : {"linear", "sqrt"}
        omega = 1 / p, so that a wrong response has -1, also where all are wrong; or
        1 / (p sqrt(1 - p)), whose groups with p = 0 or 1 have advantage zero.

    References
    ----------
    Asymmetric prompt weighting (arXiv 2602.11128): Linear-R and Sqrt-R. They were read from notes
    on the paper, not in it. Confidence in "linear" is medium. Confidence in "sqrt" is low, since
    its weight was inferred from the optimum that the paper states.

    Examples
    --------
    >>> asymmetric([1, 0, 0, 0], ["a", "a", "a", "a"])
    array([ 3., -1., -1., -1.])
    >>> asymmetric([0, 0], ["a", "a"])
    array([-1., -1.])
    """
    one_of("weighting", weighting, ("linear", "sqrt"))
    rewards, inverse, sizes = grouped_rewards(rewards, groups)
    rewards = _outcomes(rewards, (0.0, 1.0))
    p = _means(rewards, inverse, sizes)[inverse]
    # A mean of equal rewards may miss them by a rounding error.
    above = np.where(is_mixed(rewards, inverse, len(sizes))[inverse], rewards - p, 0.0)
    if weighting == "linear":
        # The limit for p -> 0 is -1 for a wrong response.
        return _divide(above, p) - (p == 0)
    # At p = 0 and p = 1 the denominator is 0, and so is the result.
    return _divide(above, p * np.sqrt(1 - p))


def maxrl(rewards: Any, groups: Any, *, all_wrong: str = "zero") -> np.ndarray:
    """(r - mean) / mean within each group: the advantage of MaxRL.

    Its expectation is the gradient of log p, where p is the chance of a right response, cut off
    after T terms: the sum of (1 - p)^j for j < T, times the gradient of p.

    Parameters
    ----------
    rewards : (R,) from 0 to 1
    groups : (R,) keys
    all_wrong : {"zero", "minus_one"}
        The advantage of responses in a group that is all wrong. With groups of n responses, "zero"
        makes T = n - 1, as in the paper, and "minus_one" makes T = n.

    Returns
    -------
    advantages : (R,) float64
        Zero where all rewards of a group are equal and above 0.

    Notes
    -----
    The released code divides by the mean plus 1e-6. A group of one right response has zero here and
    in prime-rl.

    References
    ----------
    MaxRL (arXiv 2602.02710), its released code, and the implementation of prime-rl. "minus_one" is
    `asymmetric` with the weighting "linear".

    Examples
    --------
    >>> maxrl([1, 0, 0, 0], ["a"] * 4)
    array([ 3., -1., -1., -1.])
    >>> maxrl([0, 0], ["a", "a"])
    array([0., 0.])
    """
    one_of("all_wrong", all_wrong, ("zero", "minus_one"))
    # Exactly zero in a group of equal rewards.
    centred = group_normalized(rewards, groups, scale=False)
    rewards, inverse, sizes = grouped_rewards(rewards, groups)
    mean = _means(_outcomes(rewards, (0.0, 1.0)), inverse, sizes)[inverse]
    advantages = _divide(centred, mean)
    return advantages - (mean == 0) if all_wrong == "minus_one" else advantages


def pass_at_k_normalized(rewards: Any, groups: Any, *, k: int = 4) -> np.ndarray:
    """The advantage of Pass@k training: that of the best of k responses, shared out exactly.

    Parameters
    ----------
    rewards : (R,) of 0 and 1
    groups : (R,) keys
    k : int

    Returns
    -------
    advantages : (R,) float64
        Each response has the mean, over all k-subsets of its group that hold it, of the subset's
        normalised reward. Zero where no response is right, or where every k-subset holds a right
        one. k = 1 is `group_normalized`.

    References
    ----------
    Pass@k training (arXiv 2508.10751), analytical form.

    Examples
    --------
    >>> pass_at_k_normalized([1, 0, 0, 0], ["a"] * 4, k=2).round(3)
    array([ 1.   , -0.333, -0.333, -0.333])
    """
    rewards, inverse, sizes = grouped_rewards(rewards, groups)
    whole_number("k", k, 1)
    other = (rewards != 0) & (rewards != 1)
    if other.any():
        raise ValueError(f"rewards: {rewards[other][0]} is neither 0 nor 1")
    right = np.bincount(inverse, rewards, len(sizes))
    # Mean and deviation of the reward of a random k-subset, which is 0 only if all k are wrong.
    mean = 1 - _choose_ratio(sizes - right, sizes, k)
    deviation = np.sqrt(mean * (1 - mean))
    # The same mean among the subsets that hold the response: 1 if it is right itself, otherwise it
    # takes a right one among the k - 1 others.
    of_right = _divide(1 - mean, deviation)
    of_wrong = _divide(1 - mean - _choose_ratio(sizes - right - 1, sizes - 1, k - 1), deviation)
    return np.where(rewards == 1, of_right[inverse], of_wrong[inverse])


def pkpo(rewards: Any, groups: Any, *, k: int = 4, baseline: str = "minus_one") -> np.ndarray:
    """PKPO: rewards mapped so that their gradient is an unbiased one of the best of k responses.

    Parameters
    ----------
    rewards : (R,) finite numbers
    groups : (R,) keys
    k : int
        Groups smaller than k have advantage zero.
    baseline : {"minus_one", "none"}
        "minus_one": of each k-subset the maximum without the response itself is taken off (equation
        33), for k = 1 the group's mean. "none": the mapped reward itself.

    References
    ----------
    PKPO (arXiv 2505.15201), section 3 and equation 33.

    Examples
    --------
    >>> pkpo([0, 0, 0, 1], ["a"] * 4, k=2, baseline="none").round(3)
    array([0.167, 0.167, 0.167, 0.5  ])
    >>> pkpo([0, 1, 3, 7], ["a"] * 4, k=2).round(3)
    array([0.   , 0.167, 0.833, 2.833])
    """
    rewards, inverse, sizes = grouped_rewards(rewards, groups)
    whole_number("k", k, 1)
    one_of("baseline", baseline, ("minus_one", "none"))
    advantages = np.zeros(len(rewards))
    # Group by group, the rewards of each ascending; then all groups of one size at once.
    order = np.lexsort((rewards, inverse))
    starts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes >= k]):
        of_size = np.flatnonzero(sizes == size)
        rows = order[starts[of_size, None] + np.arange(size)]
        advantages[rows] = _best_of_k(rewards[rows], k, baseline)
    if baseline == "none":
        return advantages
    # In a group all alike both maxima are the same number, but for rounding errors.
    return np.where(is_mixed(rewards, inverse, len(sizes))[inverse], advantages, 0.0)


def _best_of_k(ascending: np.ndarray, k: int, baseline: str) -> np.ndarray:
    """PKPO's values for the rewards of groups of one size, each ascending, (G, n)."""
    groups, n = ascending.shape
    if k == 1:
        mapped = ascending / n
        return mapped - mapped.mean(axis=1, keepdims=True) if baseline == "minus_one" else mapped
    # A k-subset whose maximum is at position j (from 0) holds k - 1 of the j lower ones.
    total = math.comb(n, k)
    position = np.arange(n)
    as_maximum = np.array([math.comb(j, k - 1) for j in position]) / total
    with_another = np.array([math.comb(j - 1, k - 2) if j else 0 for j in position]) / total
    # Position i is in subsets of maximum j > i together with k - 2 of the j - 1 others below j.
    from_behind = np.cumsum((with_another * ascending)[:, ::-1], axis=1)[:, ::-1]
    higher = np.concatenate([from_behind[:, 1:], np.zeros((groups, 1))], axis=1)
    mapped = as_maximum * ascending + higher
    if baseline == "none":
        return mapped
    # Without position i the maximum of its subsets is: that of the other k - 1 where i was the
    # highest, and the same as before everywhere else.
    below = np.array([math.comb(j, k - 2) for j in position]) / total
    without = np.zeros_like(ascending)
    for i in position:
        without[:, i] = (below[:i] * ascending[:, :i]).sum(axis=1) + higher[:, i]
    return mapped - without


# The same as slot values


class _OfFunction(Slot):
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
class GroupNormalized(_OfFunction):
    """`group_normalized` as a slot value: GRPO's advantage."""

    ddof: int = 0
    eps: float = 0.0
    clip: float | None = None
    scale: Flag = True

    function = staticmethod(group_normalized)
    compares_rollouts = True


@dataclass(frozen=True)
class LeaveOneOut(_OfFunction):
    """`leave_one_out` as a slot value: RLOO's advantage."""

    clip: float | None = None

    function = staticmethod(leave_one_out)
    compares_rollouts = True


@dataclass(frozen=True)
class Posterior(_OfFunction):
    """`posterior` as a slot value: AERO's advantage, in which no group is dead."""

    alpha: float = 1.0
    beta: float = 1.0
    scale: str | float = "bernoulli"
    bounds: tuple[float, float] = (0.0, 1.0)
    ddof: int = 0
    eps: float = 0.0
    clip: float | None = None

    function = staticmethod(posterior)


@dataclass(frozen=True)
class BatchNormalized(_OfFunction):
    """`batch_normalized` as a slot value: the advantages of REINFORCE++."""

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
class PartsNormalized(Slot):
    """`parts_normalized` as a slot value: the advantage of GDPO.

    Attributes
    ----------
    weights : dict
        Part of the reward -> its weight; the method's reward must have the same.
    eps : float
    """

    weights: Mapping[str, float] = field(default_factory=lambda: {"correct": 1.0})
    eps: PositiveOrZero = 0.0

    reads_verdict = False
    compares_rollouts = True

    def __post_init__(self) -> None:
        super().__post_init__()
        instance_of("weights", self.weights, Mapping, "{'correct': 1.0, 'overlong': 0.5}")

    @property
    def part_weights(self) -> Mapping[str, float]:  # type: ignore[override]
        """Its `weights`."""
        return self.weights

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        # A single part has no column of its own.
        parts = [rollouts.columns.get(f"reward_{name}", rollouts.reward) for name in self.weights]
        weights = list(self.weights.values())
        return parts_normalized(
            np.stack(parts, axis=1), rollouts.group, weights=weights, eps=self.eps
        )


@dataclass(frozen=True)
class Asymmetric(_OfFunction):
    """`asymmetric` as a slot value: problems of low success rate count more (arXiv 2602.11128).

    Confidence is medium for "linear" and low for "sqrt", see `asymmetric`.
    """

    weighting: str = "linear"

    function = staticmethod(asymmetric)


@dataclass(frozen=True)
class MaxRL(_OfFunction):
    """`maxrl` as a slot value: problems count the more, the rarer their right responses are."""

    all_wrong: str = "zero"

    function = staticmethod(maxrl)

    @property
    def compares_rollouts(self) -> bool:  # type: ignore[override]
        """Where a group that is all wrong has no advantage."""
        return self.all_wrong == "zero"


@dataclass(frozen=True)
class PassAtK(Slot):
    """`pass_at_k_normalized` as a slot value; a response counts as right by the verifier."""

    k: Count = 4

    compares_rollouts = True

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        return pass_at_k_normalized(rollouts.correct, rollouts.group, k=self.k)


@dataclass(frozen=True)
class Pkpo(_OfFunction):
    """`pkpo` as a slot value."""

    k: int = 4
    baseline: str = "minus_one"

    function = staticmethod(pkpo)


@dataclass(frozen=True)
class InverseRootWeighted(Slot):
    """(r - mean) / sqrt(mean + eps): the advantage that goes with `allocators.InverseRoot`.

    The mean is a success rate; a mean below 0, of rewards with penalties, counts as 0.

    References
    ----------
    Reinforce-Ada (arXiv 2510.04996), the variant "Est". Confidence is low in the constant: eps is
    not printed, and the released code has no such variant.
    """

    eps: Positive = 0.01

    reads_verdict = False
    compares_rollouts = True

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        rewards, inverse, sizes = grouped_rewards(rollouts.reward, rollouts.group)
        mean = _means(rewards, inverse, sizes)[inverse]
        advantage = (rewards - mean) / np.sqrt(np.maximum(mean, 0.0) + self.eps)
        return np.where(is_mixed(rewards, inverse, len(sizes))[inverse], advantage, 0.0)


@dataclass(frozen=True)
class EntropyShaped(Slot):
    """Group advantages, and in groups all alike an advantage for each token from its entropy.

    In a group all right, a token of entropy H has +alpha H. In a group all wrong it has
    -alpha (max H - H), with the maximum over the response, so that the most uncertain token of a
    wrong answer is left alone.

    References
    ----------
    RL-ZVP (arXiv 2509.21880), alpha = .1.
    """

    alpha: Positive = 0.1

    needs = frozenset({"token_advantages", "token_entropy"})

    def __call__(self, rollouts: Rollouts, context: Context) -> Ragged:
        """One number for each response token."""
        entropy = rollouts.token_entropy
        if not np.array_equal(entropy.offsets, rollouts.response.offsets):
            raise ValueError("advantage: EntropyShaped needs the entropy of every response token")
        # What follows has one entry for each response token of the whole table, not padded.
        lengths = rollouts.lengths
        rewards, inverse, sizes = grouped_rewards(rollouts.reward, rollouts.group)
        is_uniform = ~is_mixed(rewards, inverse, len(sizes))[inverse]
        plain = np.repeat(group_normalized(rewards, rollouts.group), lengths)
        highest = np.zeros(len(rollouts))
        np.maximum.at(highest, np.repeat(np.arange(len(rollouts)), lengths), entropy.values)
        distance = np.repeat(highest, lengths) - entropy.values
        right = np.repeat(rollouts.correct, lengths)
        shaped = np.where(right, self.alpha * entropy.values, -self.alpha * distance)
        values = np.where(np.repeat(is_uniform, lengths), shaped, plain)
        return Ragged(values, entropy.offsets)


@dataclass
class DiscountedBeta(RemembersPosteriors):
    """(r - p) / sqrt(p (1 - p)), with p from a Beta posterior that forgets and counts this round.

    The two numbers of a problem start at the prior Beta(1, 1). At each visit they are multiplied by
    `decay`, and then the group's right and wrong responses are added; p is their mean. A group all
    wrong is therefore no longer silent, and groups do not sum to zero. An old response that joined
    the round counts as the others do, and is forgotten after it.

    Attributes
    ----------
    decay : float
    scale : bool
        False leaves out the division.

    References
    ----------
    Discounted Beta-Bernoulli baseline (arXiv 2603.18444): decay .5 for a model of 1.7B, .75 for 8B.
    """

    decay: float = 0.5
    scale: Flag = True
    posteriors: Posteriors = state_field()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.posteriors = Posteriors(decay=self.decay, towards="zero")

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        ids, correct, tries = outcomes(rollouts)
        _, problem_of_row = rollouts.problems()
        # The posteriors as they will be after this round, without storing them: advantages may be
        # asked for several times in a round, and only `feedback` may learn.
        belief = self.posteriors.after(ids, correct, tries)
        a, b = belief[problem_of_row].T
        if not self.scale:
            return rollouts.correct - a / (a + b)
        # The same as (r - p) / sqrt(p (1 - p)), but safe where p rounds to 0 or 1, as it does once
        # a problem has been all right or all wrong for some fifty visits.
        of_right = np.sqrt(_divide(b, a))
        of_wrong = -np.sqrt(_divide(a, b))
        return np.where(rollouts.correct, of_right, of_wrong)


@dataclass
class Marginalized(RemembersPosteriors):
    """GRPO's advantage averaged over what the other responses of the group could have been.

    The others are drawn from the posterior of the problem without the response itself. With its
    numbers a and b and S - 1 of the other n - 1 right with the Beta-binomial probability w_S, a
    right response has the sum over S < n of w_S sqrt((n - S) / S), and a wrong one minus the same
    with a and b exchanged.

    Attributes
    ----------
    decay : float
        Of the posterior, towards the prior Beta(1, 1), at each visit.

    References
    ----------
    MaPP (arXiv 2609.34990); decay .5 is the best of six.
    """

    decay: float = 0.5
    posteriors: Posteriors = state_field()

    def __post_init__(self) -> None:
        self.posteriors = Posteriors(decay=self.decay)

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        ids, correct, tries = outcomes(rollouts)
        _, problem_of_row = rollouts.problems()
        belief = self.posteriors.after(ids, correct, tries)
        # The posterior without the response itself has one right outcome less, or one wrong one.
        of_right = marginal_advantages(belief[:, 0] - 1, belief[:, 1], tries)
        of_wrong = -marginal_advantages(belief[:, 1] - 1, belief[:, 0], tries)
        return np.where(rollouts.correct, of_right[problem_of_row], of_wrong[problem_of_row])


def marginal_advantages(a: Any, b: Any, n: Any) -> np.ndarray:
    """Expected advantage of a right response whose n - 1 neighbours follow a Beta(a, b), (P,).

    References
    ----------
    MaPP (arXiv 2609.34990).

    Examples
    --------
    >>> marginal_advantages([1.0], [4.0], [4]).round(4)
    array([1.3414])
    """
    from scipy.special import betaln, gammaln

    # A parameter of 0 stands for a response that is not there; its value is not used.
    a = np.maximum(np.asarray(a, dtype=np.float64), np.finfo(float).tiny)
    b = np.maximum(np.asarray(b, dtype=np.float64), np.finfo(float).tiny)
    n = np.asarray(n, dtype=np.int64)
    total = np.zeros(len(n))
    # A term for each number of right responses in the group, this one included. Logarithms, since
    # binomials and Beta functions leave the range of floats.
    for right in range(1, int(n.max(initial=1))):
        larger = np.flatnonzero(n > right)
        wrong = n[larger] - right
        log_choose = gammaln(n[larger]) - gammaln(right) - gammaln(wrong + 1)
        log_weight = log_choose + betaln(a[larger] + right - 1, b[larger] + wrong)
        log_weight -= betaln(a[larger], b[larger])
        total[larger] += np.exp(log_weight) * np.sqrt(wrong / right)
    return total


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
                f"function={shown(self.function)}: a function of rewards and groups is needed, "
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


def _outcomes(rewards: np.ndarray, bounds: Any) -> np.ndarray:
    """Rewards on the scale where failure is 0 and success is 1, (R,)."""
    pair("bounds", bounds, rising=True)
    low, high = bounds
    outside = (rewards < low) | (rewards > high)
    if outside.any():
        raise ValueError(
            f"rewards: {rewards[outside][0]} lies outside bounds={bounds}, the rewards of failure "
            "and success"
        )
    return (rewards - low) / (high - low)


def _means(rewards: np.ndarray, inverse: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return np.bincount(inverse, rewards, len(sizes)) / np.maximum(sizes, 1)


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    # A denominator of 0, as in a group all alike, gives 0.
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def _choose_ratio(m: np.ndarray, n: np.ndarray, k: int) -> np.ndarray:
    """C(m, k) / C(n, k) for arrays m <= n, 0 where m < k."""
    # The binomials themselves leave the range of floats long before their ratio does.
    ratio = np.ones(np.shape(n))
    for i in range(k):
        ratio = ratio * np.clip(m - i, 0, None) / np.maximum(n - i, 1)
    return ratio


def _check_deviation(ddof: Any, eps: Any) -> None:
    if ddof not in (0, 1):
        raise ValueError(f"ddof={ddof!r}: allowed are 0 (population) and 1 (sample)")
    positive_number("eps", eps, zero=True)


def _clipped(values: np.ndarray, bound: float | None) -> np.ndarray:
    if bound is None:
        return values
    positive_number("clip", bound)
    return np.clip(values, -bound, bound)
