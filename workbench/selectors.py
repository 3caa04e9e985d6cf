"""Which rollouts are trained on.

A selector is a frozen configuration, called with the round's candidates, returning the rows it keeps, ascending:

    def __call__(self, rollouts, rng) -> (K,) int64

`rollouts` is a `Rollouts`, or a DataFrame with columns `problem`, `reward`, `correct` (and `stage`, if there are
stages); `rng` a NumPy generator. Its `statistics` says over what the advantages are taken: "selected" (the kept rows
alone, as in PODS), "pool" (all candidates of the group, as in Reinforce-Ada) or "mixed" (the pool where the group's
rewards are all equal, else the kept rows, as in AERO).

A group is one problem's rows, or those of one value where there is a column `group`. What is kept of it depends on
nothing but its own rows and the generator's state. A group with fewer than m rows keeps all of them, since allocators
may give a problem as few as two. Ties go to the lower row.

The rules are also functions of arrays: `max_variance`, `max_reward`, `random`, `rejection`.
"""

from dataclasses import dataclass

import numpy as np

from workbench.scheduler import Scheduler
from workbench.utils.columns import (
    column,
    generator_given,
    group_keys,
    grouped,
    is_number,
    whole_number,
)
from workbench.utils.seeding import derive

__all__ = [
    "All", "MaxReward", "MaxVariance", "Random", "Rejection", "Scheduler",
    "max_reward", "max_variance", "random", "rejection",
]  # fmt: skip

STATISTICS = ("selected", "pool", "mixed")
LARGEST = 1e150  # the largest reward in size: sums and squares stay finite


def max_variance(rewards, m, groups=None):
    """The m rows whose rewards have the largest variance: (m,) int64, ascending (PODS, algorithm 2).

    rewards (R,), m from 1 to R. With `groups` (R,) keys, the m rows of every group, and all rows of groups smaller
    than m, in one call. Sorts, then decides exactly how many come from the top (see `_from_the_top`): O(R log R).
    Among subsets of equal variance: fewest from the top, as in the paper; among equal rewards: lowest rows.
    Example: `max_variance([0, 1, 0, 1, 0.5], 3)` is `[0, 1, 2]`.
    """
    rewards, groups, sizes = _arguments(rewards, m, groups)
    ends, large = np.cumsum(sizes), np.flatnonzero(sizes > m)
    ordered, steps = _sorted_within(rewards, groups, len(sizes)), np.arange(m if len(large) else 0)
    low = ordered[(ends - sizes)[large, None] + steps]  # (groups, m), ascending
    high = ordered[ends[large, None] - 1 - steps]  # (groups, m), descending
    top = _from_the_top(low - low[:, :1], high - low[:, :1])
    return _between(
        rewards, groups, len(sizes), large, _edge(low, m - top, -np.inf), _edge(high, top, np.inf)
    )


def max_reward(rewards, m, groups=None):
    """The m rows with the highest rewards: (m,) int64, ascending; equal rewards: lowest rows.

    rewards (R,), m from 1 to R. With `groups` (R,) keys, the m rows of every group, all rows of smaller groups.
    """
    rewards, groups, sizes = _arguments(rewards, m, groups)
    return np.sort(_first(np.argsort(-rewards, kind="stable"), groups, np.full(len(sizes), m)))


def random(n, m, rng):
    """m of n rows, every subset equally likely: (m,) int64, ascending. m from 1 to n; rng a NumPy generator."""
    whole_number("n", n, 1)
    whole_number("m", m, 1, n)
    return np.sort(generator_given(rng).choice(n, m, replace=False)).astype(np.int64)


def rejection(correct, k, rng):
    """All correct rows, and k wrong ones at random for each: (K,) int64, ascending (AERO, strategy 3).

    correct (n,) bool; k >= 1 whole. Wrong rows are capped at those there are; without a correct row none is kept.
    The paper calls the kept wrong ones most informative without naming a measure: they are random here.
    """
    whole_number("k", k, 1)
    correct = _booleans(correct)
    right, wrong = np.flatnonzero(correct), np.flatnonzero(~correct)
    kept = generator_given(rng).choice(wrong, min(k * len(right), len(wrong)), replace=False)
    return np.sort(np.concatenate([right, kept]))


@dataclass(frozen=True)
class All:
    """Keeps everything."""

    statistics: str = "pool"

    def __post_init__(self):
        _check(self)

    def __call__(self, rollouts, rng=None):
        """All rows, in order."""
        return np.arange(len(rollouts))


@dataclass(frozen=True)
class MaxVariance:
    """Of every problem the m rollouts with the largest variance of `reward` (PODS)."""

    m: int
    statistics: str = "selected"

    def __post_init__(self):
        _check(self, "m")

    def __call__(self, rollouts, rng=None):
        """`max_variance` of every problem; draws nothing."""
        return max_variance(column(rollouts, "reward"), self.m, group_keys(rollouts))


@dataclass(frozen=True)
class MaxReward:
    """Of every problem the m rollouts with the highest `reward` (PODS's comparison)."""

    m: int
    statistics: str = "selected"

    def __post_init__(self):
        _check(self, "m")

    def __call__(self, rollouts, rng=None):
        """`max_reward` of every problem; draws nothing."""
        return max_reward(column(rollouts, "reward"), self.m, group_keys(rollouts))


@dataclass(frozen=True)
class Random:
    """Of every problem m rollouts at random; reads neither `reward` nor `correct`."""

    m: int
    statistics: str = "selected"

    def __post_init__(self):
        _check(self, "m")

    def __call__(self, rollouts, rng):
        """One number from the generator; the draws of a problem follow from it and from the problem's id."""
        problems, groups, sizes = grouped(group_keys(rollouts))
        return np.sort(
            _first(_shuffled(problems, groups, rng), groups, np.full(len(sizes), self.m))
        )


@dataclass(frozen=True)
class Rejection:
    """AERO's rule for a round (section 4.2, algorithm 1); reads `correct` and `stage`, never `reward`.

    u is the share correct of a problem's first stage (its rows of the lowest `stage`), S = `threshold` of them:

    all rows alike                    `uniform` rows at random (the paper: typically 4)
    mixed, rescue set (S or fewer)    `balanced` correct and as many wrong at random (the paper: a group of 2)
    mixed, u below `high`             all correct, and k wrong at random for each
    mixed, u from `high` up           all

    Readings: the draws are uniform (the paper names no measure of informativeness); a rescued problem's pair is drawn
    from all its stages; k does not apply to it. Without stages and with S = 0 no problem is a rescued one. The default
    statistics are "mixed": the paper takes the posterior of a uniform group before pruning it.
    """

    k: int = 1
    uniform: int = 4
    balanced: int = 1
    threshold: int = 0
    high: float = 0.5
    statistics: str = "mixed"

    def __post_init__(self):
        _check(self, "k", "uniform", "balanced")
        whole_number("threshold", self.threshold, 0)
        if not (is_number(self.high) and 0 < self.high <= 1):
            raise ValueError(f"high={self.high}: a share above 0 and up to 1 is needed")

    def __call__(self, rollouts, rng):
        """One number from the generator; the draws of a problem follow from it and from the problem's id."""
        problems, groups, sizes = grouped(group_keys(rollouts))
        correct = _booleans(column(rollouts, "correct"))
        right, wrong = self._counts(
            groups, sizes, correct, column(rollouts, "stage", np.zeros(len(groups)))
        )
        rows = _shuffled(problems, groups, rng)
        kept = (
            _first(rows[correct[rows]], groups, right),
            _first(rows[~correct[rows]], groups, wrong),
        )
        return np.sort(np.concatenate(kept))

    def _counts(self, groups, sizes, correct, stage):
        """Correct and wrong rows to keep of each group, (G,) each; more than there are means all."""
        first = np.full(len(sizes), np.inf)
        np.minimum.at(first, groups, stage)
        explored = stage == first[groups]
        tried, solved = (
            np.bincount(groups[rows], minlength=len(sizes))
            for rows in (explored, explored & correct)
        )
        right = np.bincount(groups[correct], minlength=len(sizes))
        uniform, rescue = (right == 0) | (right == sizes), solved <= self.threshold
        partial = solved < self.high * tried
        return (
            np.select([uniform, rescue], [self.uniform, self.balanced], right),
            np.select(
                [uniform, rescue, partial],
                [self.uniform, self.balanced, self.k * right],
                sizes - right,
            ),
        )


def _from_the_top(low, high):
    """How many of the m rows of largest variance come from the top, (G,).

    low (G, m) the m lowest rewards ascending, high (G, m) the m highest descending. The best subset is the m - k lowest
    and the k highest for some k (PODS, lemma 3.1). Going from k to k + 1 swaps a = low[m - 1 - k] for b = high[k],
    which changes m times the variance by (b - a)(a + b - mean_k - mean_{k+1}). The second factor falls with k, so the
    best k is the number of positive ones. Sums of differences suffice, no squares: a common offset does no harm.
    """
    m, start = low.shape[1], np.zeros((len(low), 1))
    sums = np.hstack([start, np.cumsum(low, 1)])[:, ::-1] + np.hstack([start, np.cumsum(high, 1)])
    return np.count_nonzero(m * (low[:, ::-1] + high) > sums[:, :-1] + sums[:, 1:], axis=1)


def _edge(ordered, counts, none):
    """The last reward among the first counts[g] of each row, `none` where counts[g] = 0, and how many equal it."""
    value = np.where(counts > 0, ordered[np.arange(len(ordered)), counts - 1], none)
    taken = np.arange(ordered.shape[1]) < counts[:, None]
    return value, np.count_nonzero(taken & (ordered == value[:, None]), axis=1)


def _between(rewards, groups, size, large, low, high):
    """Rows outside the two edges of their group; of those on an edge, as many as its count says, lowest rows first.

    low and high are (value, count) of the groups `large`; the other groups keep everything.
    """
    edges, counts = np.full((2, size), np.inf), np.zeros((2, size), dtype=np.int64)
    edges[:, large] = low[0], high[0]
    counts[:, large] = low[1], high[1]
    same = edges[0] == edges[1]  # one block of equal rewards fed from both sides
    counts[0] += np.where(same, counts[1], 0)
    floor, ceiling = edges[0][groups], edges[1][groups]
    on_low, on_high = rewards == floor, (rewards == ceiling) & ~same[groups]
    kept = (rewards < floor) | (rewards > ceiling)
    for on_edge, count in ((on_low, counts[0]), (on_high, counts[1])):
        kept[_first(np.flatnonzero(on_edge), groups, count)] = True
    return np.flatnonzero(kept)


def _first(rows, groups, counts):
    """Of rows (N,) in order of preference, the first counts[g] of every group g."""
    order = np.argsort(groups[rows], kind="stable")
    of = groups[rows][order]
    starts = np.searchsorted(of, np.arange(len(counts)))
    return rows[order[np.arange(len(rows)) - starts[of] < counts[of]]]


def _sorted_within(values, groups, size):
    """values (R,) sorted within each group, the groups end to end."""
    if size == 1:
        return np.sort(values)
    order = np.argsort(values)
    return values[order[np.argsort(groups[order], kind="stable")]]


def _shuffled(problems, groups, rng):
    """All rows in random order, (R,): the order within a problem follows from one draw of rng and the problem's id."""
    entropy = int(generator_given(rng).integers(2**63))
    seeds = np.array(
        [derive(entropy, "selector", str(problem)) for problem in problems], dtype=np.uint64
    )
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups, minlength=len(problems))
    draw = np.empty(len(groups), dtype=np.uint64)
    draw[order] = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.argsort(_mixed(seeds[groups], draw), kind="stable")


def _mixed(seeds, draws):
    """Draw number `draws` of the SplitMix64 streams `seeds`, (R,) uint64 each (Steele, Lea and Flood 2014)."""
    z = seeds + (draws + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _arguments(rewards, m, groups):
    """Checked rewards (R,), group numbers (R,) and sizes (G,)."""
    rewards = np.asarray(rewards, dtype=np.float64)
    if rewards.ndim != 1 or (groups is not None and np.shape(groups) != rewards.shape):
        other = "" if groups is None else f" and groups {np.shape(groups)}"
        raise ValueError(f"rewards {rewards.shape}{other}: (R,) is needed")
    allowed = np.abs(rewards) <= LARGEST
    if not allowed.all():
        row = int(np.argmin(allowed))
        raise ValueError(
            f"rewards: row {row} is {rewards[row]}; finite numbers up to {LARGEST} in size are needed"
        )
    whole_number("m", m, 1, len(rewards) if groups is None else None)
    if groups is None:
        return rewards, np.zeros(len(rewards), dtype=np.uint16), np.array([len(rewards)])
    return rewards, *grouped(groups)[1:]


def _booleans(correct):
    correct = np.asarray(correct)
    good = (correct == 0) | (correct == 1)
    if correct.ndim != 1 or not np.all(good):
        shown = (
            f"shape {correct.shape}"
            if correct.ndim != 1
            else f"{correct[int(np.argmin(good))]} in a row"
        )
        raise ValueError(f"correct: {shown}; one True or False a rollout, (n,), is needed")
    return correct.astype(bool)


def _check(selector, *counts):
    for name in counts:
        whole_number(name, getattr(selector, name), 1)
    if selector.statistics not in STATISTICS:
        raise ValueError(
            f"statistics={selector.statistics!r}: allowed are {', '.join(map(repr, STATISTICS))}"
        )
