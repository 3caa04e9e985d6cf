r"""Rollouts by signal and length, and a deadline for answers.

DUET (arXiv [2605.08441](https://arxiv.org/abs/2605.08441)). A problem has a mean length $L$ and a
signal $s$. The signal is the deviation, over the problem's rollouts, of the advantage times the
summed log-probability. The budget is a share $\beta$ of the tokens that 8 rollouts of every
problem would take. A problem gets

$$n = \text{round}\left(\frac{s}{\sqrt{\lambda L}}\right), \qquad \sum n L \le 8\,\beta \sum L,$$

rollouts, at least 1 and at most 32. A response ends early once it has its answer and the policy
has been sure of its tokens for a while. There is also a deadline, which follows the lengths of
recent responses. A rollout that has no answer by then is stopped with probability .95. Stopped
rollouts count in the mean of their groups and are not trained on. The weight of a rollout is
$1 / \text{clip}(n / \bar n, .05, 1)$, and 20 times that if it had no answer at the deadline and
went on.

A new problem has the signal 1. In the paper a function predicts it from the prompt, but that
function was not released. A problem with one rollout keeps its signal for ever, because one
rollout has no deviation; `low=2` gives every problem at least two. The numbers of tokens are for
responses of up to 3072, and `limit=64` scales them to a lab with a limit of 64. The allocator can
be used alone: `methods.grpo().but(allocator=allocators.BySignal())`. *Released code.*
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import numpy as np

from workbench.methods import Method, method
from workbench.policies import END, GO_ON, STOP, Growing, Plan
from workbench.rules.allocators import GroupSize, Requests
from workbench.rules.courses import draws_of, leave_one
from workbench.slots import Context, PerProblem, Problems, Rollouts, Selection, Slot, state_field
from workbench.utils.bounds import (
    Count,
    CountOrZero,
    Interval,
    Positive,
    Share,
    ShareAboveZero,
    of_kind,
)
from workbench.utils.groups import sample_variances
from workbench.utils.names import STOPPED
from workbench.utils.validation import number, whole_number
from workbench.verifiers.boxes import last_box


@dataclass
class Signals(Slot):
    """How far the gradients of each problem's rollouts lie apart, and how long its rollouts are.

    The signal of a visit is the deviation, over the rollouts that were trained on, of (advantage x
    weight x summed log-probability). A problem has the mean of its visits. A visit of fewer than
    two such rollouts says nothing.

    Attributes
    ----------
    history : int
        The newest lengths that are kept, for problems without rollouts of their own.
    floor : float
        The least signal. A problem whose groups were all alike has it.
    capacity : int
        Problems that are remembered; those that were not visited for longest are forgotten.
    sums : dict
        Problem -> visits, sum of their signals, rollouts, sum of their lengths.
    lengths : list of int

    Notes
    -----
    The published fit that predicts the signal of a new problem from its prompt was not released.
    Its signal is 1 here, as in the released code without that fit.

    References
    ----------
    DUET (arXiv 2605.08441) and its released code: 1024 lengths, 50,000 problems.
    """

    history: Count = 1024
    floor: Positive = 1e-6
    capacity: Count = 50_000
    sums: dict[str, list[float]] = state_field(dict)
    lengths: list[int] = state_field(list)

    needs = frozenset({"old_logprobs"})
    reads_verdict = False

    def of(self, ids: Sequence[str], limit: int | None) -> tuple[np.ndarray, np.ndarray]:
        """The signal and the length of each problem, (P,) float64 each.

        Before anything has been sampled the length is the `limit` of a response.
        """
        usual = float(np.mean(self.lengths)) if self.lengths else float(limit or 1)
        signals = np.ones(len(ids))
        lengths = np.full(len(ids), usual)
        for place, name in enumerate(ids):
            if name in self.sums:
                visits, signal, rollouts, length = self.sums[name]
                signals[place] = max(signal / visits, self.floor)
                lengths[place] = length / rollouts
        return signals, lengths

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Take in the new rollouts that were trained on."""
        is_new = (rollouts.round == context.round) & (rollouts.status != STOPPED)
        kept = rollouts.take(is_new & rollouts["selected"])
        self.lengths = [*self.lengths, *kept.lengths.tolist()][-self.history :]
        ids, number = kept.problems()
        sizes = np.bincount(number, minlength=len(ids))
        weight = kept["weight"] if "weight" in kept else 1.0
        logprobs = np.nan_to_num(kept.old_logprobs.means()) * kept.old_logprobs.lengths
        variances = sample_variances(kept["advantage"] * weight * logprobs, number, sizes)
        # That of the population, as in the released code.
        signals = np.sqrt(variances * (sizes - 1) / np.maximum(sizes, 1))
        lengths = np.bincount(number, kept.lengths, len(ids))
        for name, size, signal, length in zip(ids.tolist(), sizes, signals, lengths):
            if size >= 2:
                # Put back at the end, so that the first one is the one to forget.
                before = self.sums.pop(name, [0.0, 0.0, 0.0, 0.0])
                visit = (1, signal, size, length)
                self.sums[name] = [float(old + new) for old, new in zip(before, visit)]
        while len(self.sums) > self.capacity:
            del self.sums[next(iter(self.sums))]


OfSignals = Annotated[Signals, of_kind(Signals, "Signals(history=256)")]


def by_signal(
    signal: Any, length: Any, target: float, low: int = 1, up: int = 32
) -> tuple[np.ndarray, np.ndarray]:
    """Counts in proportion to signal / sqrt(length), whose tokens together stay within `target`.

    Parameters
    ----------
    signal : (P,) numbers above 0
        How far the gradients of a problem's rollouts lie apart.
    length : (P,) numbers above 0
        Tokens of a rollout of each problem.
    target : float
        Tokens of all rollouts.
    low, up : int
        Bounds for one problem.

    Returns
    -------
    rounded, counts : (P,) int64 each
        The rounded proportions, which ten halvings bring near the target, and the same with the
        longest rollouts taken away until they are within it. With `low` rollouts of every problem
        they may still be above it.

    References
    ----------
    DUET (arXiv 2605.08441) and its released code.

    Examples
    --------
    >>> by_signal([0.8, 1.2, 0.5, 1.5], [300, 400, 250, 600], target=6200)
    (array([3, 5, 2, 5]), array([3, 5, 2, 4]))
    >>> by_signal([1, 1], [100, 400], target=2000)[1]
    array([7, 3])
    """
    length = np.maximum(np.asarray(length, dtype=np.float64), 1.0)
    rates = np.asarray(signal, dtype=np.float64) / np.sqrt(length)

    def rounded_at(log_price: float) -> np.ndarray:
        return np.clip(np.rint(rates / np.exp(log_price / 2)), low, up).astype(np.int64)

    lowest, highest = -20.0, 20.0
    for _ in range(10):
        middle = (lowest + highest) / 2
        if rounded_at(middle) @ length > target:
            lowest = middle
        else:
            highest = middle
    rounded = rounded_at((lowest + highest) / 2)
    counts = rounded.copy()
    while counts @ length > target and (counts > low).any():
        counts[np.where(counts > low, length, 0.0).argmax()] -= 1
    return rounded, counts


@dataclass
class BySignal(Slot):
    """Counts in proportion to signal / sqrt(length), within a budget of tokens.

    A round may cost `budget` times the tokens of n rollouts of every problem, as far as lengths are
    known beforehand. Problems whose gradients lie far apart and whose rollouts are short get most.

    Attributes
    ----------
    n : int
        Rollouts of a problem at the full budget.
    budget : float
    low, up : int
        Bounds for one problem. In the published setting a problem may get a single rollout, which
        has no advantage. A problem whose group was all alike has hardly a signal, and keeps it as
        long as it gets one rollout; with low=2 it is tried again.
    signals : success_rates.Signals

    References
    ----------
    DUET (arXiv 2605.08441) and its released code. A new problem has the signal 1, since the
    published fit for such problems was not released. A bound on each problem's length, which that
    code computes and never uses, is left out.
    """

    n: GroupSize = 8
    budget: Annotated[float, partial(number, above=0)] = 0.5
    low: Count = 1
    up: int = 32
    signals: OfSignals = field(default_factory=Signals)

    reads_verdict = False

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("up", self.up, self.low)

    @property
    def delegate(self) -> Slot:
        """Its signals: they learn and are stored."""
        return self.signals

    def sampled(self) -> PerProblem:
        """Its part of the budget, more or less."""
        return PerProblem(max(self.low, round(self.budget * self.n)), "about")

    def counts(self, ids: Sequence[str], limit: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Rollouts of the problems of a round, before and after the last ones are taken away.

        See `by_signal`.
        """
        signal, length = self.signals.of(ids, limit)
        target = self.budget * self.n * length.sum()
        return by_signal(signal, length, target, self.low, self.up)

    def allocate(self, problems: Problems, context: Context) -> Requests:
        """One request, within the budget of tokens."""
        yield self.counts([problem.id for problem in problems], context.max_new_tokens)[1]


# What says that a response has given its answer, besides a complete box.
ANSWER = re.compile(r"final answer *[:=]|</(?:final_)?answer>", re.IGNORECASE)


def margins_to_end(
    signal: Any, length: Any, thresholds: tuple[float, float] = (0.5, 0.99)
) -> np.ndarray:
    """The margin from which a response to each problem may end, (P,) float64.

    Problems are ranked by signal^2 / length, and the thresholds spread evenly over the ranks. One
    problem alone has the middle.

    References
    ----------
    DUET (arXiv 2605.08441) and its released code.

    Examples
    --------
    >>> margins_to_end([0.8, 1.2, 0.5, 1.5], [300, 400, 250, 600]).round(4).tolist()
    [0.6633, 0.8267, 0.5, 0.99]
    """
    low, high = thresholds
    worth = np.square(signal) / np.maximum(length, 1.0)
    # The order of an order is the rank of each entry.
    rank = np.argsort(np.argsort(worth, kind="stable"))
    share = rank / (len(worth) - 1) if len(worth) > 1 else np.full(len(worth), 0.5)
    return low + (high - low) * share


def _some_text(name: str, value: Any) -> None:
    """The bound of a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}={value!r}: a text is needed, or None")


@dataclass
class Deadline(Slot):
    """Ends responses that have their answer, and stops those that have none in time.

    The text of a growing response is searched for an answer. Once there is one, the response ends
    where the policy has been sure of its tokens for a while; how sure it must be depends on the
    problem. A response without an answer at the deadline is stopped, or spared with a small chance.
    All places below count sampled tokens. Two of them are called the first and the second mark. At
    first they are shares of the limit of a response, and later quantiles of recent lengths.

    Attributes
    ----------
    every, start, window : int
        Every so many tokens, from `start` or the first mark on, whichever is later, the newest
        `window` tokens are searched.
    grace : int
        The deadline is so many tokens after the second mark.
    gap : int
        The second mark is at least so many tokens after the first.
    shares, quantiles : (first, second)
        The marks as shares of the limit, until enough lengths are known, and as quantiles of the
        lengths from then on.
    refit : int
        Rounds from one fit of the marks to the next.
    least : int
        Lengths that a fit needs.
    thresholds : (low, high)
        See `margins_to_end`.
    run : int
        Tokens in a row whose margin must be above the threshold.
    skip : float
        The chance that a response goes on all the same, at every token at which it would end.
    spare : float
        The chance that a response without an answer goes on, in the column `spared`;
        `selectors.InverseCounts` makes up for it.
    answer : str, optional
        The text that says that there is an answer. None: a complete box, "final answer:" or the end
        of an answer in tags.
    signals : success_rates.Signals

    Notes
    -----
    Where every rollout of a request would be stopped, one is spared. A response that is ended has
    no end token. Both are our reading.

    References
    ----------
    DUET (arXiv 2605.08441) and the scripts of its released code, for responses of 3072 tokens.
    """

    every: Count = 8
    start: CountOrZero = 200
    window: Count = 256
    grace: CountOrZero = 150
    gap: CountOrZero = 50
    shares: Interval = (0.3, 0.7)
    quantiles: Interval = (0.3, 0.8)
    refit: Count = 10
    least: Count = 32
    thresholds: Interval = (0.5, 0.99)
    run: Count = 5
    skip: Share = 0.05
    spare: ShareAboveZero = 0.05
    answer: Annotated[str, _some_text] | None = None
    signals: OfSignals = field(default_factory=Signals, metadata={"saved": True})
    fitted: list[int] = state_field(list)
    fitted_in: int = state_field(int)

    needs = frozenset({"stopping", "old_logprobs"})
    reads_verdict = False

    def marks(self, limit: int) -> tuple[int, int]:
        """The first and the second mark, for responses of at most `limit` tokens.

        >>> Deadline().marks(3072)
        (921, 2150)
        """
        first, second = self.fitted or [int(share * limit) for share in self.shares]
        return first, second

    def plan(
        self, problems: Problems, counts: np.ndarray, before: np.ndarray, context: Context
    ) -> Plan:
        """All rollouts start at their problems, and may be ended or stopped."""
        limit = context.max_new_tokens or 0
        first, second = self.marks(limit)
        deadline = second + self.grace
        of_problems = self.signals.of([problem.id for problem in problems], limit)
        threshold = np.repeat(margins_to_end(*of_problems, self.thresholds), counts)
        # The first number of a rollout says whether it is spared, the others are for its tokens.
        draws = draws_of(problems, counts, before, context, limit + 1)
        size = len(threshold)
        answered = np.zeros(size, dtype=bool)
        sure = np.zeros(size, dtype=np.int64)
        spared = np.zeros(size, dtype=bool)

        def stop(growing: Growing) -> np.ndarray:
            rows, step = growing.rows, growing.step
            said = np.full(len(rows), GO_ON)
            is_turn = step >= max(self.start, first) and step % self.every == 0
            if step == deadline or (is_turn and step < deadline):
                texts = growing.texts(self.window)
                answered[rows] |= [self._has_answer(text) for text in texts]
            if answered[rows].any():
                is_sure = answered[rows] & (growing.margin() > threshold[rows])
                sure[rows] = np.where(is_sure, sure[rows] + 1, 0)
                said[(sure[rows] >= self.run) & (draws[rows, step] >= self.skip)] = END
            if step == deadline:
                late = ~answered[rows]
                said[late & (draws[rows, 0] >= self.spare)] = STOP
                leave_one(said, -draws[rows, 0], size)
                spared[rows] = late & (said == GO_ON)
            return said

        return Plan(stop=stop, columns={"spared": spared})

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The signals learn, and now and then the marks follow the lengths."""
        self.signals.feedback(rollouts, context)
        lengths = self.signals.lengths
        if context.round - self.fitted_in >= self.refit and len(lengths) >= self.least:
            first, second = (int(np.quantile(lengths, share)) for share in self.quantiles)
            self.fitted = [first, max(second, first + self.gap)]
            self.fitted_in = context.round

    def metrics(self) -> dict[str, float]:
        """The marks of the next round, once they are fitted."""
        first, second = self.fitted or (np.nan, np.nan)
        return {"course_first": first, "course_second": second}

    def _has_answer(self, text: str) -> bool:
        if self.answer is not None:
            return self.answer in text
        return last_box(text) is not None or ANSWER.search(text) is not None


OfAllocator = Annotated[BySignal, of_kind(BySignal, "allocators.BySignal(8)")]


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


@method(paper="DUET (arXiv 2605.08441)", decides="course")
def duet(n: int = 8, budget: float = 0.5, limit: int = 3072, low: int = 1) -> Method:
    """DUET: rollouts by signal and length within a budget of tokens, and a deadline for answers.

    Parameters
    ----------
    n : int
        Rollouts of a problem at the full budget, 8 in the released code.
    budget : float
        Share of the tokens that n rollouts of every problem take.
    limit : int
        The longest response of the lab, in tokens. The published numbers of tokens are for 3072,
        and for another limit those of `Deadline` are scaled: every, start, grace and gap. For
        others: `duet().adjust("course", grace=8)`.
    low : int
        Fewest rollouts of a problem, see `BySignal`.

    References
    ----------
    DUET (arXiv 2605.08441) and its released code. The penalty of its scripts, a KL term of .001, is
    off by default, as in the other methods.
    """
    whole_number("limit", limit, 1)
    usual = Deadline()
    published = (usual.every, usual.start, usual.grace, usual.gap)
    every, start, grace, gap = (round(tokens * limit / 3072) for tokens in published)
    deadline = Deadline(every=max(every, 1), start=start, grace=grace, gap=gap)
    allocator = BySignal(n, budget, low)
    weights = InverseCounts(spare=deadline.spare, allocator=allocator.clone())
    return Method("duet", allocator=allocator, course=deadline, selector=weights)
