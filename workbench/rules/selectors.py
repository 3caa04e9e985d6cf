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
from typing import Any

import numpy as np

from workbench.rules.scheduler import Scheduler as Scheduler
from workbench.slots import Baseline, Context, PerProblem, Rollouts, Selection, Slot
from workbench.utils.bounds import Count, CountOrZero, Flag, ShareAboveZero
from workbench.utils.groups import (
    group_numbers,
    grouped_rewards,
    is_same,
    place_within,
    precision_of,
)
from workbench.utils.names import STOPPED, of_catalogue
from workbench.utils.seeding import derive
from workbench.utils.validation import booleans, numpy_generator, whole_number

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
    precision = precision_of(rewards)
    for rows in np.split(by_group, np.cumsum(sizes)[:-1]):
        # Among equal rewards the lower row stands first in both orders.
        ascending = rows[np.argsort(rewards[rows], kind="stable")]
        descending = rows[np.argsort(-rewards[rows], kind="stable")]
        k = 0
        if len(rows) > m:
            k = _count_from_the_top(rewards[ascending[:m]], rewards[descending[:m]], precision)
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
    return np.sort(first_of_each_group(by_reward, groups, m))


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
        return np.sort(first_of_each_group(order, groups, self.m))


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
        stage = rollouts.stage
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
            solved / tried < self.high,  # partial
        ]
        keep_right = np.select(cases, [self.uniform, self.balanced, right], high[0])
        keep_wrong = np.select(cases, [self.uniform, self.balanced, self.k * right], high[1])
        # Where a group has fewer rows than that, it keeps all of them.
        order = _shuffled(problems, groups, context.rng("selector"))
        rows = first_of_each_kind(order, groups, correct, keep_right, keep_wrong)
        return Selection(rows, baseline=self.baseline)


# How the rules are worked out for all groups at once


def _count_from_the_top(lowest: np.ndarray, highest: np.ndarray, precision: float) -> int:
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
    pairs = len(lowest) * (lowest[::-1] + highest)
    means = sums[:-1] + sums[1:]
    # Subsets whose variances differ by rounding alone are equal.
    return int(np.count_nonzero((pairs > means) & ~is_same(pairs, means, precision)))


def first_of_each_group(
    rows: np.ndarray, groups: np.ndarray, counts: np.ndarray | int
) -> np.ndarray:
    """The first counts[g] rows of every group g, of rows (N,) in order of preference.

    `counts` is (G,), or one number for all groups.
    """
    group_of = groups[rows]
    wanted = counts[group_of] if isinstance(counts, np.ndarray) else counts
    return rows[place_within(group_of) < wanted]


def first_of_each_kind(
    order: np.ndarray, groups: np.ndarray, correct: np.ndarray, right: np.ndarray, wrong: np.ndarray
) -> np.ndarray:
    """Of all rows in order of preference, the first right[g] correct and wrong[g] wrong ones of
    every group g, ascending.
    """
    # The wrong rows of group g are group 2 g here, and the correct ones group 2 g + 1.
    counts = np.stack([wrong, right], axis=1).ravel()
    return np.sort(first_of_each_group(order, 2 * groups.astype(np.int64) + correct, counts))


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


# The rules of further papers are found here by their names too.
__getattr__ = partial(of_catalogue, __name__)
