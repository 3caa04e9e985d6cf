"""Where a rollout starts, and when it stops.

By default (`Method.course` is None) a rollout starts at its problem and stops at its own end. A
course starts it from a part of an old response, or stops it while it grows; see
`workbench.slots.Course`. A prefix is either masked, and then counts as a part of the prompt, or it
belongs to the response and is trained on. What is sampled, what is only read and what was stopped
is recorded, see `records.round_stats`.

In the table of rollouts a course adds four columns: `prefix`, the tokens of the masked prefix;
`kept`, the tokens of a prefix that belongs to the response; `read`, the tokens that the model has
read for the rollout beyond its prompt; and `lost`, the tokens that an engine had sampled beyond the
place where a response was stopped or ended, since it returns some tokens at once. What several
rollouts of a request share is counted for the first of them. A stopped rollout has the status
"stopped". A course that gives a problem several starts, each a group of its own, adds `start`,
their number; 0 is the bare problem.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from workbench.policies import END, GO_ON, STOP, Growing, Plan
from workbench.pools import Problem
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.rules.replay import RightAnswers, Stored, without_marks
from workbench.rules.scheduler import Learner
from workbench.rules.success_rates import OfSignals, Signals, outcomes
from workbench.slots import Slot, state_field
from workbench.utils.bounds import (
    Count,
    CountOrZero,
    Flag,
    Interval,
    Positive,
    PositiveOrZero,
    Share,
    ShareAboveZero,
    at_least,
)
from workbench.utils.names import STOPPED
from workbench.utils.seeding import derive
from workbench.verifiers.boxes import last_box

# What says that a response has given its answer, besides a complete box.
ANSWER = re.compile(r"final answer *[:=]|</(?:final_)?answer>", re.IGNORECASE)


# What a plan makes of the rollouts of a request


def followed(rollouts: Rollouts, plan: Plan) -> Rollouts:
    """The sampled rollouts of a request (R rows) with the columns `prefix`, `kept` and `read`.

    A prefix that comes with its log-probabilities moves from the prompt to the response.
    """
    size = len(rollouts)
    lengths = np.zeros(size, np.int64) if plan.prefixes is None else plan.prefixes.lengths
    # Each different text is read once for all rollouts that go on from it.
    # As objects: NumPy's own type for bytes drops zeros at the end, and 0 is a token too.
    texts = np.array([rollouts.prompt[row].tobytes() for row in range(size)], dtype=object)
    _, first = np.unique(texts, return_index=True)
    read = np.zeros(size, np.int64)
    read[first] = lengths[first]
    if plan.read is not None:
        read += plan.read
    nothing = np.zeros(size, np.int64)
    if plan.prefixes is None or plan.logprobs is None:
        return rollouts.assign(prefix=lengths, kept=nothing, read=read, **plan.columns)
    entropies = plan.entropies
    if entropies is None:
        entropies = Ragged(np.full_like(plan.logprobs.values, np.nan), plan.logprobs.offsets)
    return rollouts.assign(
        prompt=rollouts.prompt.first(rollouts.prompt.lengths - lengths),
        response=plan.prefixes.then(rollouts.response, np.int32),
        old_logprobs=plan.logprobs.then(rollouts.old_logprobs, np.float32),
        token_entropy=entropies.then(rollouts.token_entropy, np.float32),
        prefix=nothing,
        kept=lengths,
        read=read,
        **plan.columns,
    )


def judged(rollouts: Rollouts, plan: Plan, course: Any) -> Rollouts:
    """Verified rollouts with the status and the reward of those that were stopped.

    ValueError where the course has stopped all of them.
    """
    stopped = rollouts["stopped"]
    if stopped.all() and len(stopped):
        raise ValueError(
            f"course: {type(course).__name__} stopped all {len(stopped)} rollouts of a request, so "
            "there is nothing to learn from; let some of them end"
        )
    return rollouts.drop(["stopped"]).assign(
        status=np.where(stopped, STOPPED, rollouts.status),
        correct=rollouts.correct & ~stopped,
        reward=np.where(stopped, plan.stopped_reward, rollouts.reward),
    )


# Prefix Sampling


def prefix_length(total: int, share: float, hard: bool, cap: int | None = None) -> int:
    """How many tokens of a response of so many tokens are replayed.

    Of a right response to a hard problem, all but the last part, which is this share of it, is
    replayed. Of a wrong response to an easy problem, the first part of this share is replayed. At
    least one token is left to sample.

    >>> [prefix_length(20, share, hard=True) for share in (0.25, 0.75)]
    [15, 5]
    >>> prefix_length(80, 0.45, hard=True), prefix_length(80, 0.55, hard=False, cap=30)
    (44, 30)
    """
    # The small number makes up for the rounding of the product.
    part = math.floor(share * total + 1e-9)
    if cap is not None:
        part = min(part, cap)
    return total - max(part, 1) if hard else min(part, total - 1)


@dataclass
class PassRateControl:
    """Chooses how much of an old response is replayed, to keep success rates near one half.

    Hard problems have one such object and easy problems another one. The success rates are those of
    the groups that started from a prefix.

    Attributes
    ----------
    share : float
        See `prefix_length`. A larger share makes hard and easy problems harder.
    average : float
        Running average of the pass rate.
    rest : int
        Steps to wait before the share may change again.
    """

    share: float
    average: float = 0.5
    rest: int = 0

    def observe(self, rate: float) -> None:
        """Take in the mean pass rate of the prefix groups of one step.

        >>> control = PassRateControl(0.25)
        >>> for _ in range(3):
        ...     control.observe(0.8)
        >>> round(control.average, 4), control.share, control.rest
        (0.5428, 0.3, 5)
        """
        self.average = 0.95 * self.average + 0.05 * rate
        if self.rest:
            self.rest -= 1
            return
        change = 0.05 * ((self.average > 0.53) - (self.average < 0.47))
        if change:
            # The bounds are ours: something is replayed, and something is left to do.
            self.share = round(min(max(self.share + change, 0.05), 0.95), 10)
            self.rest = 5


@dataclass
class PrefixSampling(Slot):
    """A skewed problem is tried again from a part of one of its own responses.

    A problem of which few rollouts were right starts in the next round from the first part of a
    right response, one of which most were right from the first part of a wrong response. All its
    rollouts start there, so they are an ordinary group. `curricula.Recycled` serves these problems
    first; without it only those that happen to come again start from a prefix.

    Attributes
    ----------
    hard, easy : float
        Share of the response that is left to do, and share that is replayed, at first.
    low, high : float
        Success rates below and above which a problem is tried again; 0 and 1 are not.
    cap : int, optional
        Most tokens that are left to do on the hard side, and replayed on the easy side.
    adapts : bool
        Whether the two shares follow the pass rates, see `PassRateControl`.

    Notes
    -----
    What the authors' post leaves open is ours: the response is drawn at random among those that
    serve, and a group that started from a prefix is not tried once more.

    References
    ----------
    Zhu et al. (arXiv 2605.05112) and the authors' post; .25 on both sides is their setting for
    text.
    """

    hard: ShareAboveZero = 0.25
    easy: ShareAboveZero = 0.25
    low: ShareAboveZero = 0.3
    high: ShareAboveZero = 0.7
    cap: Count | None = None
    adapts: Flag = True
    prefixes: dict[str, tuple[bool, np.ndarray]] = state_field(dict)
    controls: dict[bool, PassRateControl] = state_field(dict)  # by whether a problem is hard

    needs = frozenset({"prefixes"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.controls = {True: PassRateControl(self.hard), False: PassRateControl(self.easy)}

    def plan(
        self, problems: Sequence[Problem], counts: np.ndarray, before: np.ndarray, context: Context
    ) -> Plan:
        """All rollouts of a problem that is tried again start from its prefix."""
        bare = (False, np.empty(0, np.int32))
        rows = [
            self.prefixes.get(problem.id, bare)[1]
            for problem, count in zip(problems, counts)
            for _ in range(count)
        ]
        return Plan(prefixes=Ragged.of(rows, np.int32))

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The pass rates of the prefix groups, and the prefixes for the next round."""
        fresh = rollouts.take(rollouts.round == context.round)
        ids, right, sizes = outcomes(fresh)
        rates = dict(zip(ids, (right / sizes).tolist()))
        for hard, control in self.controls.items():
            of_side = [
                rates[name]
                for name, (is_hard, _) in self.prefixes.items()
                if is_hard == hard and name in rates
            ]
            if of_side and self.adapts:
                control.observe(float(np.mean(of_side)))
        tried_again = self.prefixes
        self.prefixes = {}
        for name, rate in rates.items():
            hard = 0 < rate < self.low
            if name in tried_again or not (hard or self.high < rate < 1):
                continue
            rows = np.flatnonzero((fresh.problem == name) & (fresh.correct == hard))
            response = fresh.response[context.rng("course", name).choice(rows)]
            share = self.controls[hard].share
            length = prefix_length(len(response), share, hard, self.cap)
            if length:
                self.prefixes[name] = (hard, response[:length])

    def metrics(self) -> dict[str, float]:
        """Problems that are to be tried again, and the shares that the next ones will have."""
        return {
            "course_waiting": len(self.prefixes),
            "course_share_hard": self.controls[True].share,
            "course_share_easy": self.controls[False].share,
        }

    def state_dict(self) -> dict[str, Any]:
        """The prefixes and the two controllers."""
        tokens = Ragged.of([tokens for _, tokens in self.prefixes.values()], np.int32)
        return {
            "ids": list(self.prefixes),
            "hard": [hard for hard, _ in self.prefixes.values()],
            "tokens": tokens.values,
            "offsets": tokens.offsets,
            "controls": [vars(self.controls[hard]).copy() for hard in (True, False)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the prefixes and the two controllers."""
        tokens = Ragged(np.asarray(state["tokens"], np.int32), np.asarray(state["offsets"]))
        self.prefixes = {
            name: (bool(hard), tokens[i])
            for i, (name, hard) in enumerate(zip(state["ids"], state["hard"]))
        }
        hard, easy = state["controls"]
        self.controls = {True: PassRateControl(**hard), False: PassRateControl(**easy)}


# PrefixRL


@dataclass
class OwnPrefixes(RightAnswers):
    """Unsolved problems also start from parts of an old right response of theirs.

    A problem is unsolved when none of its bare rollouts was right at its last visit. Its rollouts
    are then dealt out among `each` prefixes of one right response and the bare problem, as many to
    each as to the others, and each start is a group of its own.

    Attributes
    ----------
    each : int
        Prefixes of a problem. The bare problem has one part in `each` + 1.
    lengths : (low, high)
        Shares of the response, between which the lengths of the prefixes are drawn.
    path : str, optional
        A file written by `replay.save_answers`: right answers of an earlier run. A problem that was
        not visited yet then counts as unsolved. None takes those that this run finds.
    capacity : int
        Answers kept for a problem, the oldest go first.

    References
    ----------
    PrefixRL (arXiv 2601.18795): 3 prefixes of 40 to 80 % beside one bare problem. No code was
    released. The paper makes the prefixes before the training; that they change from round to
    round, and that answers may come from the run itself, is ours.
    """

    each: Count = 3
    lengths: Interval = (0.4, 0.8)
    path: str | None = None
    capacity: Count = 1
    solved: dict[str, bool] = state_field(dict)

    needs = frozenset({"prefixes"})
    metric = "course_stored"

    def plan(
        self, problems: Sequence[Problem], counts: np.ndarray, before: np.ndarray, context: Context
    ) -> Plan:
        """Prefixes for the unsolved problems that have a right answer, and a group for each."""
        answers = self.rows_by_problem()
        rows: list[np.ndarray] = []
        starts_of_rows: list[int] = []
        for problem, count, start in zip(problems, counts.tolist(), before.tolist()):
            starts = [np.empty(0, np.int32)]
            stored = answers.get(problem.id)
            if stored is not None and not self.solved.get(problem.id, self.path is None):
                rng = context.rng("course", problem.id)
                assert self.stored is not None
                answer = self.stored.response[stored[rng.integers(len(stored))]]
                for share in rng.uniform(*self.lengths, self.each):
                    starts.append(answer[: min(math.ceil(share * len(answer)), len(answer) - 1)])
            for draw in range(start, start + count):
                number = draw % len(starts)
                rows.append(starts[number])
                starts_of_rows.append(number)
        return Plan(
            prefixes=Ragged.of(rows, np.int32),
            columns={"start": np.array(starts_of_rows, dtype=np.int64)},
        )

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Which problems are solved, and right answers to bare problems."""
        bare = rollouts.take((rollouts.round == context.round) & (rollouts["prefix"] == 0))
        if not len(bare):
            return
        ids, right, _ = outcomes(bare)
        self.solved.update(zip(ids, (right > 0).tolist()))
        super().feedback(bare, context)


# Old responses that are gone on with


def _numbered(
    problems: Sequence[Problem], counts: np.ndarray, before: np.ndarray
) -> list[tuple[str, int]]:
    """The problem of each rollout of a request, and its number among the round's rollouts of it."""
    return [
        (problem.id, int(start) + number)
        for problem, count, start in zip(problems, counts, before)
        for number in range(count)
    ]


class _Drafts(Stored):
    """Base of courses whose rollouts go on from old ones of the same problem and number."""

    metric = "course_stored"

    def _drafts(
        self, problems: Sequence[Problem], counts: np.ndarray, before: np.ndarray
    ) -> np.ndarray:
        """The stored row that each rollout of a request goes on from, (R,) int64, -1 for none."""
        rows: dict[tuple[str, int], int] = {}
        if self.stored is not None:
            keys = zip(self.stored.problem.tolist(), self.stored.draw.tolist())
            rows = {key: row for row, key in enumerate(keys)}
        found = [rows.get(key, -1) for key in _numbered(problems, counts, before)]
        return np.array(found, dtype=np.int64)

    def _remember(self, rollouts: Rollouts, rows: np.ndarray, context: Context) -> None:
        """Keep the rows (a mask) in place of what is stored of this round's problems."""
        present = rollouts.round == context.round
        parts = [without_marks(rollouts.take(rows & present))]
        if self.stored is not None:
            others = ~np.isin(self.stored.problem, rollouts.problem[present])
            parts.insert(0, self.stored.take(others))
        parts = [part for part in parts if len(part)]
        self.stored = Rollouts.concat(parts) if parts else None


def beginnings(drafts: Rollouts | None, rows: np.ndarray, lengths: np.ndarray) -> Plan:
    """A plan by which rollouts start with the first lengths (R,) tokens of the drafts `rows` (R,);
    a row of -1 starts with nothing.
    """

    def first(name: str, dtype: type) -> Ragged:
        # The last row, which -1 stands for, is empty.
        parts = [Ragged.of([[]], dtype)]
        if drafts is not None:
            parts.insert(0, drafts[name])
        return Ragged.concat(parts).take(rows).first(lengths)

    return Plan(
        prefixes=first("response", np.int32),
        logprobs=first("old_logprobs", np.float32),
        entropies=first("token_entropy", np.float32),
    )


def accepted(
    new: np.ndarray, old: np.ndarray, uniforms: np.ndarray, bias: float = 0.0
) -> np.ndarray:
    """How many tokens of each draft are kept, (R,) int64: those before the first refusal.

    Parameters
    ----------
    new, old : (R, T)
        Log-probabilities of the drafts' tokens under the current policy and under the old one.
    uniforms : (R, T)
        Draws from [0, 1). A token is refused where its draw exceeds e^bias new / old, and where
        that is not a number, as beyond the end of a draft.
    bias : float

    Examples
    --------
    >>> new, old = np.log([[0.5, 0.2, 0.5]]), np.log([[0.5, 0.5, 0.5]])
    >>> draws = np.array([[0.9, 0.6, 0.1]])
    >>> accepted(new, old, draws), accepted(new, old, draws, bias=0.5)
    (array([1]), array([3]))
    """
    refused = ~(np.log(np.maximum(uniforms, np.finfo(float).tiny)) <= bias + new - old)
    # Behind its last token every draft ends.
    return np.pad(refused, ((0, 0), (0, 1)), constant_values=True).argmax(1)


@dataclass
class Speculative(_Drafts):
    """The last response to a problem is a draft of the next one, kept up to the first refusal.

    Every rollout takes the response of the same number at the problem's last visit as its draft.
    The current policy reads it. Its tokens are accepted one after the other, each with the
    probability min(1, e^b π_new / π_old); from the first refusal on the rollout is sampled. The
    kept tokens belong to the response and are trained on, with the probabilities that the current
    policy has just given them.

    Attributes
    ----------
    bias : float
        The b above. 0 leaves the distribution of the current policy as it is, but for the refused
        token, which is drawn from the whole distribution again.

    Notes
    -----
    The last token of a draft is always sampled anew, so a draft that is accepted as a whole costs
    one token. The paper takes such a draft as it is.

    References
    ----------
    SPEC-RL (arXiv 2509.23232): b = .5.
    """

    bias: PositiveOrZero = 0.5

    needs = frozenset({"prefixes", "current_logprobs"})
    reads_verdict = False

    def plan(
        self, problems: Sequence[Problem], counts: np.ndarray, before: np.ndarray, context: Context
    ) -> Plan:
        """What is accepted of each draft."""
        rows = self._drafts(problems, counts, before)
        has_draft = np.flatnonzero(rows >= 0)
        if not len(has_draft):
            return Plan()
        assert self.stored is not None
        old = self.stored.take(rows[has_draft])
        drafts = context.policy.rescored(old, context.temperature)
        draws = [
            context.rng("course", name, draw).random(length)
            for name, draw, length in zip(old.problem.tolist(), old.draw.tolist(), old.lengths)
        ]
        kept = accepted(
            drafts.old_logprobs.padded(np.nan),
            old.old_logprobs.padded(np.nan),
            Ragged.of(draws, np.float64).padded(),
            self.bias,
        )
        lengths = np.zeros(len(rows), dtype=np.int64)
        lengths[has_draft] = np.minimum(kept, old.lengths - 1)
        read = np.zeros(len(rows), dtype=np.int64)
        read[has_draft] = old.lengths + old.prompt.lengths
        places = np.full(len(rows), -1)
        places[has_draft] = np.arange(len(has_draft))
        return replace(beginnings(drafts, places, lengths), read=read)

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The round's responses are the drafts of the problems' next visit."""
        self._remember(rollouts, rollouts.status != STOPPED, context)


# Partial rollouts


@dataclass
class Partial(_Drafts):
    """Once enough groups are complete, all rollouts that still grow are stopped, and wait.

    The whole group of a stopped rollout waits. When its problem comes again, every rollout of the
    group goes on where it was, and the tokens of the earlier round are trained on against the
    policy that sampled them. `curricula.Recycled("stopped")` serves these problems first, and
    `selectors.Finished(whole_groups=True)` leaves them out of the update until then.

    Attributes
    ----------
    complete : float
        Share of a request's groups that must be complete before the others are stopped.

    Notes
    -----
    A rollout of a waiting group that had ended already samples its last token anew. Rollouts that
    are gone on with reach the limit of a response at last, so none waits for ever. Slots that
    remember success rates count a stopped rollout as a wrong one, and count a waiting group once
    more when it comes again.

    References
    ----------
    APRIL (arXiv 2509.18521) and the code of slime, which asks for more groups than it needs; ours
    asks for problems_per_round groups and takes the first share of them.
    """

    complete: ShareAboveZero = 0.5

    needs = frozenset({"prefixes", "stopping", "old_logprobs"})
    reads_verdict = False

    def plan(
        self, problems: Sequence[Problem], counts: np.ndarray, before: np.ndarray, context: Context
    ) -> Plan:
        """Rollouts that waited go on, and all stop when enough groups are complete."""
        rows = self._drafts(problems, counts, before)
        lengths = np.zeros(len(rows), dtype=np.int64)
        waited = np.flatnonzero(rows >= 0)
        if len(waited):
            assert self.stored is not None
            old = self.stored.take(rows[waited])
            lengths[waited] = old.lengths - (old.status != STOPPED)
        owner = np.repeat(np.arange(len(counts)), counts)
        groups = np.count_nonzero(counts)
        wanted = math.ceil(self.complete * groups - 1e-9)

        def stop(growing: Growing) -> np.ndarray:
            incomplete = len(np.unique(owner[growing.rows]))
            return np.full(len(growing.rows), STOP if groups - incomplete >= wanted else GO_ON)

        return replace(beginnings(self.stored, rows, lengths), stop=stop)

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The groups with a stopped rollout wait."""
        # An old rollout that joined the round may have been stopped in its own.
        is_stopped = (rollouts.round == context.round) & (rollouts.status == STOPPED)
        waits = np.isin(rollouts.problem, rollouts.problem[is_stopped])
        self._remember(rollouts, waits, context)


# Stopping for good


def _draws(
    problems: Sequence[Problem], counts: np.ndarray, before: np.ndarray, context: Context, size: int
) -> np.ndarray:
    """Numbers from [0, 1) for each rollout of a request, (R, size), whatever else is in it."""
    keys = _numbered(problems, counts, before)
    return np.array([context.rng("course", *key).random(size) for key in keys]).reshape(-1, size)


def _leave_one(said: np.ndarray, chances: np.ndarray, size: int) -> None:
    """Let the rollout with the greatest chance go on where all `size` of a request would stop."""
    if (said == STOP).sum() == size:
        said[chances.argmax()] = GO_ON


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
        self, problems: Sequence[Problem], counts: np.ndarray, before: np.ndarray, context: Context
    ) -> Plan:
        """All rollouts start at their problems, and may be ended or stopped."""
        limit = context.max_new_tokens or 0
        first, second = self.marks(limit)
        deadline = second + self.grace
        of_problems = self.signals.of([problem.id for problem in problems], limit)
        threshold = np.repeat(margins_to_end(*of_problems, self.thresholds), counts)
        # The first number of a rollout says whether it is spared, the others are for its tokens.
        draws = _draws(problems, counts, before, context, limit + 1)
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
                _leave_one(said, -draws[rows, 0], size)
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


def survival(chances: Any, keep: float = 0.5, right: float = 0.5) -> np.ndarray:
    """The probability that each rollout of a group goes on, (R,) float64.

    Parameters
    ----------
    chances : (R,) numbers in [0, 1]
        How likely each rollout is to end right.
    keep : float
        Share of the group that is to go on.
    right : float
        Share of these that is to be right.

    Notes
    -----
    The formula of the paper is not known here, and this is our reading. The probability is linear
    in the chance, a + b p with b = keep (right - mean p) / var p and a = keep - b mean p, which
    meets both shares in expectation. It is then cut to [0, 1]; where this changes it, the shares
    are met only roughly. Where all chances are the same it is `keep`.

    References
    ----------
    ARRoL (arXiv 2603.24840).

    Examples
    --------
    >>> survival([0.9, 0.9, 0.9, 0.1]).round(4).tolist()
    [0.3333, 0.3333, 0.3333, 1.0]
    """
    chances = np.asarray(chances, dtype=np.float64)
    mean, variance = chances.mean(), chances.var()
    slope = keep * (right - mean) / variance if variance > 1e-12 else 0.0
    return np.clip(keep + slope * (chances - mean), 0.0, 1.0)


def binned_chances(scores: Any, past: Any, right: Any, bins: int = 20) -> np.ndarray:
    """The share of right responses among earlier ones of about the same score, (R,) float64.

    Parameters
    ----------
    scores : (R,) numbers in [0, 1]
    past, right : (N,)
        Earlier scores, and which of these responses were right.
    bins : int
        Parts of equal width that [0, 1] is cut into. Each begins with one right and one wrong
        response, so that an empty one says 1/2.

    Examples
    --------
    >>> binned_chances([0.1, 0.6, 0.9], [0.55, 0.7, 0.8, 0.2], [True, True, False, False], bins=2)
    array([0.33333333, 0.6       , 0.6       ])
    """
    places, of_past = (
        np.minimum((np.asarray(each) * bins).astype(np.int64), bins - 1) for each in (scores, past)
    )
    ones = np.bincount(of_past, np.asarray(right, dtype=np.float64), bins) + 1
    return (ones / (np.bincount(of_past, minlength=bins) + 2))[places]


@dataclass
class Survival(Slot):
    """Once, at a certain length, a share of each group's rollouts goes on, half of them right.

    A small network reads the hidden state of every rollout that gets to `at` tokens and predicts
    whether it will end right. The share of right ones among earlier rollouts with about the same
    prediction is its chance of success (see `binned_chances`). The chances in a group give the
    probability with which each rollout goes on (see `survival`). `selectors.Finished` leaves out
    the others, so that those that went on make the group. The network learns after every round from
    the rollouts that it has judged and that have a verdict.

    Attributes
    ----------
    at : int
        Tokens at which rollouts are judged; shorter ones are not.
    keep, right : float
        See `survival`.
    explore : float
        Share of what would be stopped that goes on, so that the network sees what became of it.
    bins : int
        See `binned_chances`.
    history : int
        Earlier predictions that it counts.
    warm_up : int
        Rounds in which nothing is stopped.
    learning_rate : float
        Of the network, by Adam, with one step a round.
    units : int
        Of its hidden layer.

    Notes
    -----
    The paper's rule for survival, whether it applies to a group or a batch, and whether rollouts
    are weighed again, are not known here: `survival` within the rollouts of a problem and a
    request, and no weights, are our reading. Where every rollout of a request would be stopped, one
    goes on. The column `survival` has the probabilities, NaN for what was not judged.

    References
    ----------
    ARRoL (arXiv 2603.24840): at 512 tokens, keep and right .5, 20 bins, 20 rounds, 1e-6. Exploring
    5 %, 128 units and a history of 2048 are those of DUET's authors (arXiv 2605.08441), who compare
    with it.
    """

    at: Annotated[int, at_least(2)] = 512
    keep: ShareAboveZero = 0.5
    right: Share = 0.5
    explore: Share = 0.05
    bins: Count = 20
    history: Count = 2048
    warm_up: CountOrZero = 20
    learning_rate: Positive = 1e-6
    units: Count = 128
    head: Learner | None = state_field()
    # Earlier predictions and whether they came true, (N, 2).
    past: np.ndarray = state_field(lambda: np.zeros((0, 2)))
    # Of the round at work: the states of what was judged, by problem and number of the rollout.
    judged: dict[tuple[str, int], np.ndarray] = state_field(dict)
    measured: dict[str, float] = state_field(dict)

    needs = frozenset({"stopping", "growing_states"})

    def plan(
        self, problems: Sequence[Problem], counts: np.ndarray, before: np.ndarray, context: Context
    ) -> Plan:
        """All rollouts start at their problems, and are judged once."""
        owner = np.repeat(np.arange(len(counts)), counts)
        keys = _numbered(problems, counts, before)
        draws = _draws(problems, counts, before, context, 1)[:, 0]
        chances = np.full(len(owner), np.nan)

        def stop(growing: Growing) -> np.ndarray:
            rows = growing.rows
            said = np.full(len(rows), GO_ON)
            if growing.step != self.at:
                return said
            states = growing.states()
            for row, state in zip(rows.tolist(), states):
                self.judged[keys[row]] = state
            if context.round <= self.warm_up or self.head is None:
                return said
            past, right = self.past.T
            success = binned_chances(self._scores(states), past, right, self.bins)
            for group in np.unique(owner[rows]):
                members = owner[rows] == group
                goes_on = survival(success[members], self.keep, self.right)
                chances[rows[members]] = goes_on + self.explore * (1 - goes_on)
            said[draws[rows] >= chances[rows]] = STOP
            _leave_one(said, chances[rows] - draws[rows], len(owner))
            return said

        return Plan(stop=stop, states=True, columns={"survival": chances})

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The network learns from the judged rollouts that have ended."""
        ended = (rollouts.round == context.round) & (rollouts.status != STOPPED)
        keys = list(zip(rollouts.problem.tolist(), rollouts.draw.tolist()))
        rows = [row for row in np.flatnonzero(ended) if keys[row] in self.judged]
        if rows:
            states = np.stack([self.judged[keys[row]] for row in rows])
            if self.head is None:
                self.head = self._network(states.shape[1], derive(context.seed, "course"))
            right = rollouts.correct[rows]
            scores = self._scores(states)
            seen = np.column_stack([scores, right])
            self.past = np.concatenate([self.past, seen])[-self.history :]
            # The step is one on a squared error. With these targets its gradient is that of the
            # cross-entropy of a logit.
            self.head.update(states, self.head.scores(states) - (scores - right) / 2)
        self.measured = {"course_judged": len(self.judged), "course_learnt_from": len(rows)}
        self.judged = {}

    def metrics(self) -> dict[str, float]:
        """Rollouts that were judged, and those of them that the network has learnt from."""
        return self.measured

    def state_dict(self) -> dict[str, Any]:
        """The network with its optimizer, and the earlier predictions with their outcomes."""
        return {"head": {} if self.head is None else self.head.state_dict(), "past": self.past}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the network and the earlier predictions."""
        self.head = None
        if state["head"]:
            self.head = self._network(len(state["head"]["parameters.0"]), 0)
            self.head.load_state_dict(state["head"])
        self.past = np.array(state["past"], dtype=np.float64)

    def _network(self, inputs: int, seed: int) -> Learner:
        return Learner(seed, self.units, 2, self.learning_rate, inputs=inputs)

    def _scores(self, states: np.ndarray) -> np.ndarray:
        """What the network predicts, (R,) in (0, 1)."""
        assert self.head is not None
        return 1 / (1 + np.exp(-self.head.scores(states)))
