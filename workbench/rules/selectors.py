"""Which rollouts are trained on.

A selector is a slot value (see `workbench.slots.Selector`): called with the candidates of a round,
it returns a `Selection`, the rows that it keeps. What it keeps of a group depends only on the
group's own rows and on the random generator. A group with fewer than m rows keeps all of them,
since allocators may give a problem as few as two. Ties go to the lower row.

The rules are also functions of arrays: `max_variance`, `max_reward`, `random` and `rejection`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np

from workbench.rollouts import (
    Context,
    Rollouts,
    group_numbers,
    grouped_rewards,
    place_within,
    sample_variances,
)
from workbench.rules.allocators import BySignal
from workbench.rules.scheduler import Scheduler as Scheduler
from workbench.slots import Baseline, PerProblem, Selection, Slot
from workbench.utils.bounds import (
    Count,
    CountOrZero,
    Flag,
    Positive,
    ShareAboveZero,
    at_least,
    choice,
)
from workbench.utils.names import STOPPED
from workbench.utils.seeding import derive
from workbench.utils.validation import (
    booleans,
    instance_of,
    number,
    numpy_generator,
    whole_number,
)

OfAllocator = Annotated[
    BySignal, partial(instance_of, kinds=BySignal, example="allocators.BySignal(8)")
]


# The rules, as functions of arrays


def max_variance(rewards: np.ndarray, m: int, groups: np.ndarray | None = None) -> np.ndarray:
    """The m rows whose rewards have maximum variance.

    Parameters
    ----------
    rewards : (R,) finite numbers
    m : int
        Rows to keep, from 1 to R.
    groups : (R,) keys, optional
        Keep m rows of every group, and all rows of groups smaller than m.

    Returns
    -------
    rows : (m,) int64, ascending
        Among subsets of equal variance the one with the fewest rewards from the top, as in the
        paper; among equal rewards the lowest rows.

    Notes
    -----
    The best subset consists of the m - k lowest and the k highest rewards for some k (lemma 3.1).
    The rewards are sorted, and k is then decided exactly, in O(R log R) time for all groups
    together (theorem 1).

    References
    ----------
    PODS (arXiv 2504.13818), algorithm 2.

    Examples
    --------
    >>> max_variance([0, 1, 0, 1, 0.5], 3)
    array([0, 1, 2])
    >>> max_variance([0, 0, 1, 1, 1, 1], 2, groups=["a", "a", "a", "b", "b", "b"])
    array([0, 2, 3, 4])
    """
    rewards, groups, sizes = _checked_rewards(rewards, m, groups)
    kept = np.zeros(len(rewards), dtype=bool)
    by_group = np.argsort(groups, kind="stable")
    for rows in np.split(by_group, np.cumsum(sizes)[:-1]):
        # Among equal rewards the lower row stands first in both orders.
        ascending = rows[np.argsort(rewards[rows], kind="stable")]
        descending = rows[np.argsort(-rewards[rows], kind="stable")]
        k = 0
        if len(rows) > m:
            k = _count_from_the_top(rewards[ascending[:m]], rewards[descending[:m]])
        kept[ascending[: m - k]] = True
        # Where both ends meet in a block of equal rewards, the first rows of it are taken already.
        kept[descending[~kept[descending]][:k]] = True
    return np.flatnonzero(kept)


def max_reward(rewards: np.ndarray, m: int, groups: np.ndarray | None = None) -> np.ndarray:
    """The m rows with the highest rewards.

    Parameters and result are those of `max_variance`; among equal rewards the lowest rows are kept.

    References
    ----------
    PODS (arXiv 2504.13818), section 3.2.

    Examples
    --------
    >>> max_reward([0, 1, 0, 1, 0.5], 3)
    array([1, 3, 4])
    """
    rewards, groups, _ = _checked_rewards(rewards, m, groups)
    by_reward = np.argsort(-rewards, kind="stable")
    return np.sort(_first_of_each_group(by_reward, groups, m))


def random(n: int, m: int, rng: np.random.Generator) -> np.ndarray:
    """m of n rows, every subset equally likely: (m,) int64, ascending; m from 1 to n."""
    whole_number("n", n, 1)
    whole_number("m", m, 1, n)
    return np.sort(numpy_generator(rng).choice(n, m, replace=False)).astype(np.int64)


def rejection(correct: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """All correct rows, and k wrong ones at random for each of them.

    Parameters
    ----------
    correct : (n,) bool
    k : int
        At least 1. There are never more wrong rows kept than there are; without a correct row none
        is.
    rng : numpy.random.Generator

    Returns
    -------
    rows : (K,) int64, ascending

    References
    ----------
    AERO (arXiv 2602.14338), section 4.2, strategy 3. The paper keeps the most informative wrong
    responses without naming a measure; here they are drawn at random.
    """
    whole_number("k", k, 1)
    correct = booleans("correct", correct)
    right = np.flatnonzero(correct)
    wrong = np.flatnonzero(~correct)
    size = min(k * len(right), len(wrong))
    kept = numpy_generator(rng).choice(wrong, size, replace=False)
    return np.sort(np.concatenate([right, kept]))


# The rules, as slot values


@dataclass(frozen=True)
class All(Slot):
    """Keeps everything.

    Attributes
    ----------
    mini_batch : int, optional
        Rollouts of one optimizer step, drawn at random whatever their problems are. None: the run
        splits the round, and keeps problems whole. A method that mixes problems in its mini-batches
        is to be compared with GRPO that does so too, since mixing changes what is learnt.
    """

    mini_batch: Count | None = None

    reads_verdict = False

    @property
    def needs(self) -> set[str]:  # type: ignore[override]
        """Mini-batches of a size of its own, where there is one."""
        return set() if self.mini_batch is None else {"mini_batch"}

    def trained(self, sampled: PerProblem) -> PerProblem:
        """All of them."""
        return sampled

    def select(self, rollouts: Rollouts, context: Context) -> Selection:
        """All rows."""
        return Selection(np.arange(len(rollouts)), mini_batch=self.mini_batch)


@dataclass(frozen=True)
class Finished(Slot):
    """Keeps the rollouts that no course has stopped.

    Attributes
    ----------
    whole_groups : bool
        Whether every rollout of a group with a stopped one is left out.
    baseline : {"group", "selection", "mixed"}
        See `slots.Selection`.
    """

    whole_groups: Flag = False
    baseline: Baseline = "selection"

    reads_verdict = False

    def select(self, rollouts: Rollouts, context: Context) -> Selection:
        """The rows that have ended by themselves."""
        left_out = rollouts.status == STOPPED
        if self.whole_groups:
            left_out = np.isin(rollouts.group, rollouts.group[left_out])
        return Selection(np.flatnonzero(~left_out), baseline=self.baseline)


@dataclass(frozen=True)
class _OfEachProblem(Slot):
    """Base of selectors that keep m rollouts of each problem, whatever the verdicts say."""

    m: Count
    baseline: Baseline = "selection"

    reads_verdict = False

    def trained(self, sampled: PerProblem) -> PerProblem:
        """m of every problem."""
        return sampled.limited(self.m)

    def select(self, rollouts: Rollouts, context: Context) -> Selection:
        """m rows of every group, or all where it has no more."""
        return Selection(self._rows(rollouts, context), baseline=self.baseline)

    def _rows(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """Their rows, ascending."""
        raise NotImplementedError


@dataclass(frozen=True)
class MaxVariance(_OfEachProblem):
    """Keeps, for each problem, the m rollouts whose rewards have maximum variance.

    Attributes
    ----------
    m : int
    baseline : {"selection", "group", "mixed"}
        See `slots.Selection`. By default mean and deviation are those of the kept rollouts, as in
        the paper.

    References
    ----------
    PODS (arXiv 2504.13818), sections 3.2 and 3.3.
    """

    def _rows(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        return max_variance(rollouts.reward, self.m, rollouts.group)


@dataclass(frozen=True)
class MaxReward(_OfEachProblem):
    """Keeps, for each problem, the m rollouts with the highest rewards.

    A comparison of PODS (arXiv 2504.13818), section 3.2. Attributes: see `MaxVariance`.
    """

    def _rows(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        return max_reward(rollouts.reward, self.m, rollouts.group)


@dataclass(frozen=True)
class Random(_OfEachProblem):
    """Keeps, for each problem, m rollouts at random.

    A comparison of PODS (arXiv 2504.13818), section 3.2. Attributes: see `MaxVariance`.
    """

    def _rows(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        problems, groups, _ = group_numbers(rollouts.group)
        order = _shuffled(problems, groups, context.rng("selector"))
        return np.sort(_first_of_each_group(order, groups, self.m))


@dataclass(frozen=True)
class Rejection(Slot):
    """AERO's rule for a round; it reads the verdict and the stage, never the reward.

    With u the share correct among a problem's rollouts of the first stage, it keeps

    - of a group that is all right or all wrong: `uniform` rows at random (the paper: typically 4);
    - of a rescued group, mixed and with at most `threshold` correct in the first stage: `balanced`
      correct rows and as many wrong ones (the paper: a group of 2);
    - of a mixed group with u below `high`: all correct rows, and k wrong ones for each;
    - of a mixed group with u of at least `high`: all rows; with `trim_high` equally many correct
      and wrong ones, as many as there are of the rarer kind (the variant of table 8).

    What the paper leaves open is read so: rows are drawn uniformly, since no measure of how
    informative a response is is named; the pair of a rescued problem is drawn from all its stages;
    k does not apply to it. Without stages and with threshold=0 no problem counts as rescued.

    References
    ----------
    AERO (arXiv 2602.14338), section 4.2 and algorithm 1. By default the posterior of a uniform
    group is taken before the group is pruned (baseline="mixed").
    """

    k: Count = 1
    uniform: Count = 4
    balanced: Count = 1
    threshold: CountOrZero = 0
    high: ShareAboveZero = 0.5
    trim_high: Flag = False
    baseline: Baseline = "mixed"

    def select(self, rollouts: Rollouts, context: Context) -> Selection:
        """The rows that each problem's kind of group keeps."""
        problems, groups, sizes = group_numbers(rollouts.group)
        correct = rollouts.correct
        right, wrong = self._rows_to_keep(groups, sizes, correct, rollouts.stage)
        order = _shuffled(problems, groups, context.rng("selector"))
        rows = _first_of_each_kind(order, groups, correct, right, wrong)
        return Selection(rows, baseline=self.baseline)

    def _rows_to_keep(
        self, groups: np.ndarray, sizes: np.ndarray, correct: np.ndarray, stage: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """How many correct and how many wrong rows each group keeps, (G,) both.

        Where a group has fewer rows than that, it keeps all of them.
        """
        # The first stage alone says how hard a problem is, before the rescue changed its share.
        first_stage = np.full(len(sizes), np.inf)
        np.minimum.at(first_stage, groups, stage)
        explored = stage == first_stage[groups]
        tried = np.bincount(groups[explored], minlength=len(sizes))
        solved = np.bincount(groups[explored & correct], minlength=len(sizes))
        right = np.bincount(groups[correct], minlength=len(sizes))

        rarer = np.minimum(right, sizes - right)
        high = (rarer, rarer) if self.trim_high else (right, sizes - right)
        # The first case that holds is taken, so a uniform group is never treated as a rescued one.
        cases = [
            (right == 0) | (right == sizes),  # all right or all wrong
            solved <= self.threshold,  # rescued
            solved < self.high * tried,  # partial
        ]
        keep_right = np.select(cases, [self.uniform, self.balanced, right], high[0])
        keep_wrong = np.select(cases, [self.uniform, self.balanced, self.k * right], high[1])
        return keep_right, keep_wrong


# Selectors of further papers


@dataclass(frozen=True)
class LargestAdvantage(Slot):
    """Keeps the rollouts whose advantages are largest in absolute size.

    Attributes
    ----------
    drop : float
        Share of the rollouts that is dropped; floor(G (1 - drop)) of G stay, at least one.
    scope : {"group", "batch"}
        Whether G counts the rollouts of each group, as in the text, or of the whole round, as in
        the released code.

    References
    ----------
    CPPO (arXiv 2503.22342). Advantages are those against the whole group; the released
    configuration has drop=.5.
    """

    drop: Annotated[float, partial(number, low=0, below=1)] = 0.5
    scope: Annotated[str, choice("group", "batch")] = "group"

    reads_verdict = False

    def trained(self, sampled: PerProblem) -> PerProblem:
        """The share that is not dropped."""
        most = max(1, int(sampled.n * (1 - self.drop) + 1e-9))
        kept = sampled.limited(most)
        # Across a whole round, problems have different numbers.
        return kept if self.scope == "group" else PerProblem(kept.n, "about")

    def select(self, rollouts: Rollouts, context: Context) -> Selection:
        """The rows of largest |advantage|; ties go to the lower row."""
        keys = rollouts.group if self.scope == "group" else np.zeros(len(rollouts))
        _, groups, sizes = group_numbers(keys)
        # The small number keeps a product such as 16 * (1 - 0.9375) from falling short of 1.
        counts = np.maximum(np.floor(sizes * (1 - self.drop) + 1e-9), 1).astype(np.int64)
        by_size = np.argsort(-np.abs(rollouts["advantage"]), kind="stable")
        return Selection(np.sort(_first_of_each_group(by_size, groups, counts)))


@dataclass(frozen=True)
class GroupFilter(Slot):
    """Keeps whole groups: those whose rewards differ most.

    Attributes
    ----------
    mode : {"top_p", "softmax", "top_k", "min_p"}
        "top_p" keeps the shortest list of groups, best first, whose scores add up to `value` of the
        sum of all; "softmax" does so with the softmax of the scores; "top_k" keeps `value` of all
        groups, at least one; "min_p" those with at least `value` times the best score.
    value : float
    score : {"std", "variance"}
        Of the group's rewards, as samples: the released code has "std", the text "variance".
    zeros : bool
        Whether groups of score 0 take part.

    References
    ----------
    RAGEN-2 (arXiv 2604.06268). The main table was made with softmax .9 and zeros included; the
    authors' guide recommends top_p .9 without them, which is the default here.
    """

    mode: Annotated[str, choice("top_p", "softmax", "top_k", "min_p")] = "top_p"
    value: ShareAboveZero = 0.9
    score: Annotated[str, choice("std", "variance")] = "std"
    zeros: Flag = False

    reads_verdict = False

    def select(self, rollouts: Rollouts, context: Context) -> Selection:
        """All rows of the kept groups."""
        _, groups, sizes = group_numbers(rollouts.group)
        kept = self.kept(sample_variances(rollouts.reward, groups, sizes))
        return Selection(np.flatnonzero(kept[groups]))

    def kept(self, variances: np.ndarray) -> np.ndarray:
        """Which groups are kept, (G,) bool, by the sample variances of their rewards (G,)."""
        scores = np.sqrt(variances) if self.score == "std" else variances
        allowed = np.flatnonzero(self.zeros | (scores > 0))
        # Best first; from here on every mode only decides how long a prefix of `order` is kept.
        order = allowed[np.argsort(-scores[allowed], kind="stable")]
        kept = np.zeros(len(scores), dtype=bool)
        if not len(order):
            return kept
        ranked = scores[order]
        if self.mode == "top_k":
            count = max(1, int(self.value * len(scores)))
        elif self.mode == "min_p":
            count = int(np.count_nonzero(ranked >= self.value * ranked[0]))
        else:
            weights = np.exp(ranked - ranked[0]) if self.mode == "softmax" else ranked
            # No share of a sum can be taken where all scores are 0.
            if weights[0] == 0:
                return kept
            shares = np.cumsum(weights / weights.sum())
            # The small number makes up for the rounding of the sum.
            count = int(np.searchsorted(shares, self.value - 1e-9)) + 1
        kept[order[:count]] = True
        return kept


@dataclass(frozen=True)
class Pruned(Slot):
    """Drops rollouts at random and weights the others, so that the expected gradient is unchanged.

    A rollout is kept with its probability q, and its loss is then multiplied by 1 / q. Dropped
    rollouts still count in the averages of the loss, with weight 0, and are not computed.

    Attributes
    ----------
    keep : float or column
        The probability for all rollouts, or the name of a column of the table that holds one for
        each.

    References
    ----------
    DPPO, unbiased pruning (arXiv 2603.04135). Confidence is low: only the abstract was read. How
    its probabilities are set is not known here, so they are the user's, and its pruning of whole
    prompts and its packing are left out.
    """

    keep: ShareAboveZero | str = 0.5

    needs = frozenset({"row_weights"})
    reads_verdict = False

    def __post_init__(self) -> None:
        # The name of a column has no bounds.
        if not isinstance(self.keep, str):
            super().__post_init__()

    def trained(self, sampled: PerProblem) -> PerProblem:
        """All of them: what is dropped stays, with weight 0."""
        return sampled

    def select(self, rollouts: Rollouts, context: Context) -> Selection:
        """All rows, with weights 1 / q and 0."""
        size = len(rollouts)
        keep = rollouts[self.keep] if isinstance(self.keep, str) else np.full(size, self.keep)
        keep = np.asarray(keep, dtype=np.float64)
        if not ((keep > 0) & (keep <= 1)).all():
            raise ValueError(f"keep={self.keep!r}: probabilities above 0 and up to 1 are needed")
        # All rows are returned, the dropped ones with weight 0, so that averages still count them.
        is_kept = context.rng("selector").random(size) < keep
        return Selection(np.arange(size), weights=np.where(is_kept, 1 / keep, 0.0))


@dataclass(frozen=True)
class HalfRight(Slot):
    """Keeps the first n rollouts of each group that are half correct and half wrong.

    Where one kind is too rare, rows of the other kind fill up.

    Attributes
    ----------
    n : int
        Of an odd number the smaller half is correct.

    References
    ----------
    Reinforce-Ada (arXiv 2510.04996), released code: 4 rows in the order of sampling, in both of its
    variants, and advantages against the mean of all rollouts of the problem.
    """

    n: Annotated[int, at_least(2)] = 4

    def trained(self, sampled: PerProblem) -> PerProblem:
        """n of every problem."""
        return sampled.limited(self.n)

    def select(self, rollouts: Rollouts, context: Context) -> Selection:
        """The first rows of each kind."""
        _, groups, sizes = group_numbers(rollouts.group)
        correct = rollouts.correct
        right = np.bincount(groups[correct], minlength=len(sizes))
        wrong = sizes - right
        # Half of each kind, then wrong ones for the missing right ones, then the other way round.
        keep_right = np.minimum(self.n // 2, right)
        keep_wrong = np.minimum(self.n - keep_right, wrong)
        keep_right = np.minimum(self.n - keep_wrong, right)
        order = np.arange(len(rollouts))
        return Selection(_first_of_each_kind(order, groups, correct, keep_right, keep_wrong))


@dataclass(frozen=True)
class UniformDraws(Slot):
    """Draws rollouts uniformly, with repetition, from all candidates: new and replayed ones.

    A rollout that is drawn twice has weight 2.

    Attributes
    ----------
    share : float
        Draws, as a multiple of the rollouts sampled in the round.

    References
    ----------
    Arnal et al., replay study (arXiv 2604.08706), together with `replay.Fifo`.
    """

    share: Positive = 1.0

    needs = frozenset({"row_weights"})
    reads_verdict = False

    def select(self, rollouts: Rollouts, context: Context) -> Selection:
        """The drawn rows; weights average 1, so that the size of the loss stays."""
        everywhere = np.ones(len(rollouts), dtype=bool)
        # Rows without a gradient are there for the advantages of their groups alone.
        able = np.flatnonzero(rollouts.columns.get("gradient", everywhere))
        if not len(able):
            return Selection(able)
        size = max(1, round(self.share * np.count_nonzero(rollouts["age"] == 0)))
        drawn = context.rng("selector").integers(len(able), size=size)
        # Times drawn add up to `size`; the factor brings their average over the kept rows to 1.
        places, times = np.unique(drawn, return_counts=True)
        return Selection(able[places], weights=times * len(places) / size)


@dataclass(frozen=True)
class InverseCounts(Slot):
    """Keeps what no course has stopped, and weighs rollouts up where a problem has few of them.

    The weight is 1 / (n / mean n), with the ratio cut to [floor, 1], where n is the number of the
    problem's rollouts. A rollout that went on by chance, where others were stopped, stands for
    those: its weight is divided by that chance. Advantages are those of the whole group, stopped
    rollouts included.

    Attributes
    ----------
    floor : float
    spare : float
        The chance, see `courses.Deadline`.
    most : float
        The greatest weight.
    allocator : allocators.BySignal, optional
        Says the numbers of rollouts before the last ones were taken away, which the paper's weights
        are made of. None: those that were sampled.

    References
    ----------
    DUET (arXiv 2605.08441) and its released code.
    """

    floor: ShareAboveZero = 0.05
    spare: ShareAboveZero = 0.05
    most: Positive = 1000.0
    allocator: OfAllocator | None = None

    needs = frozenset({"row_weights"})
    reads_verdict = False

    @property
    def delegate(self) -> Slot | None:
        """The allocator, which learns and is stored."""
        return self.allocator

    def select(self, rollouts: Rollouts, context: Context) -> Selection:
        """The rows that have ended, with their weights."""
        ids, number = rollouts.problems()
        counts = np.bincount(number, minlength=len(ids))
        if self.allocator is not None:
            counts, _ = self.allocator.counts(ids.tolist(), context.max_new_tokens)
        weights = inverse_counts(counts, self.floor)[number]
        if "spared" in rollouts:
            weights = np.where(rollouts["spared"], weights / self.spare, weights)
        rows = np.flatnonzero(rollouts.status != STOPPED)
        return Selection(rows, np.minimum(weights, self.most)[rows])


def inverse_counts(counts: Any, floor: float = 0.05) -> np.ndarray:
    """1 / (n / mean n), with the ratio cut to [floor, 1], by counts n (P,): (P,) float64.

    References
    ----------
    DUET (arXiv 2605.08441) and its released code.

    Examples
    --------
    >>> inverse_counts([3, 5, 2, 5])
    array([1.25 , 1.   , 1.875, 1.   ])
    """
    counts = np.asarray(counts, dtype=np.float64)
    return 1 / np.clip(counts / max(counts.mean(), 1.0), floor, 1.0)


# How the rules are worked out for all groups at once


def _count_from_the_top(lowest: np.ndarray, highest: np.ndarray) -> int:
    """How many of the m rows of maximum variance come from the top of their group.

    lowest (m,) are the m lowest rewards, ascending; highest (m,) the m highest, descending. Going
    from k to k + 1 rewards from the top swaps a = lowest[m - 1 - k] for b = highest[k], which
    changes m times the variance by (b - a) (a + b - mean_k - mean_{k+1}). The second factor falls
    with k, so the best k is the number of times that it is positive.
    """
    # The offset changes no variance, and without it large common rewards lose no digits.
    highest = highest - lowest[0]
    lowest = lowest - lowest[0]
    # Of the subset with k = 0, 1, ..., m from the top.
    sums = np.append(0, lowest.cumsum())[::-1] + np.append(0, highest.cumsum())
    gains = len(lowest) * (lowest[::-1] + highest) > sums[:-1] + sums[1:]
    return int(np.count_nonzero(gains))


def _first_of_each_group(
    rows: np.ndarray, groups: np.ndarray, counts: np.ndarray | int
) -> np.ndarray:
    """The first counts[g] rows of every group g, of rows (N,) in order of preference.

    `counts` is (G,), or one number for all groups.
    """
    group_of = groups[rows]
    wanted = counts[group_of] if isinstance(counts, np.ndarray) else counts
    return rows[place_within(group_of) < wanted]


def _first_of_each_kind(
    order: np.ndarray, groups: np.ndarray, correct: np.ndarray, right: np.ndarray, wrong: np.ndarray
) -> np.ndarray:
    """Of all rows in order of preference, the first right[g] correct and wrong[g] wrong ones of
    every group g, ascending.
    """
    # The wrong rows of group g are group 2 g here, and the correct ones group 2 g + 1.
    counts = np.stack([wrong, right], axis=1).ravel()
    return np.sort(_first_of_each_group(order, 2 * groups.astype(np.int64) + correct, counts))


def _shuffled(problems: np.ndarray, groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """All rows in a random order, (R,).

    The order within a problem follows from one draw of `rng` and the problem's id, so it does not
    depend on the other problems in the round. Sorting by one hash a row does that for all problems
    at once; a NumPy generator for each of a round's problems takes about three times as long.
    """
    entropy = int(numpy_generator(rng).integers(2**63))
    seeds = [derive(entropy, "selector", str(problem)) for problem in problems]
    seeds_of_rows = np.array(seeds, dtype=np.uint64)[groups]
    return np.argsort(_split_mix(seeds_of_rows, place_within(groups)), kind="stable")


def _split_mix(seeds: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Output `number` (R,) of the SplitMix64 generators with `seeds` (R,) uint64.

    Steele, Lea and Flood (2014).
    """
    # Arithmetic wraps around at 64 bits, as the generator is defined.
    z = seeds + (number.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _checked_rewards(
    rewards: Any, m: int, groups: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards (R,), group numbers (R,) and group sizes (G,); one group where none are given."""
    whole_number("m", m, 1, len(rewards) if groups is None else None)
    return grouped_rewards(rewards, np.zeros(np.shape(rewards)) if groups is None else groups)
