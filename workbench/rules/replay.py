"""Which responses of earlier rounds join a group.

A replay slot value appends old rows to the round's table and says which rows the selector may
choose from; see `workbench.slots.Replay`. What it has stored is in its attribute `stored`, a
`Rollouts` table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated, Any

import numpy as np

from workbench.rollouts import Context, Ragged, Rollouts, keys, place_within
from workbench.rules.success_rates import outcomes
from workbench.slots import Slot, state_field
from workbench.utils.bounds import Count, CountOrZero, Share, choice
from workbench.utils.validation import instance_of, whole_number

Joined = tuple[Rollouts, np.ndarray]  # what `join` returns, see `slots.Replay`


class Stored(Slot):
    """Base of slot values that keep a table: the table that they keep is what they have learnt."""

    stored: Rollouts | None = None
    path: str | None = None  # the file that it comes from, where it does not come from this run
    metric = "replay_stored"

    def metrics(self) -> dict[str, float]:
        """Rollouts stored."""
        return {self.metric: 0 if self.stored is None else len(self.stored)}

    def state_dict(self) -> dict[str, Any]:
        """The stored rollouts, unless they come from a file, and what else was learnt."""
        table = {} if self.stored is None or self.path is not None else _to_state(self.stored)
        further = super().state_dict()
        return {"table": table, **further} if further else table

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what `state_dict` returned."""
        further = dict(state)
        table = further.pop("table") if self._saved() else state
        if self.path is None:
            self.stored = _from_state(table) if table else None
        if self._saved():
            super().load_state_dict(further)


class RightAnswers(Stored):
    """Base of slot values that keep right answers, of this run or of a file."""

    capacity: int | None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is not None:
            instance_of("path", self.path, (str, os.PathLike), '"answers.safetensors"')
            # Read by the constructor, so that a missing file is found before a model is loaded.
            self.stored = load_answers(self.path)

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Store the round's new right answers; of each problem the newest `capacity` stay."""
        new = rollouts.correct & (rollouts.round == context.round)
        fresh = rollouts.take(new & _bare(rollouts))
        if self.path is not None or not len(fresh):
            return
        # Columns such as advantage and uses belong to the round that is over.
        fresh = without_marks(fresh)
        table = fresh if self.stored is None else Rollouts.concat([self.stored, fresh])
        if self.capacity is not None:
            _, problem_of_row = table.problems()
            # Counted from the end: how many later rows of its problem follow each row.
            rows_after = place_within(problem_of_row[::-1])[::-1]
            table = table.take(np.flatnonzero(rows_after < self.capacity))
        self.stored = table

    def rows_by_problem(self) -> dict[str, np.ndarray]:
        """The stored rows of each problem that has some, by its id."""
        if self.stored is None:
            return {}
        problems, problem_of_row = self.stored.problems()
        order = np.argsort(problem_of_row, kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(problem_of_row))[:-1])
        return dict(zip(problems.tolist(), parts))

    def _joined(
        self, rollouts: Rollouts, candidates: np.ndarray, rows: list[int], context: Context
    ) -> Joined:
        """The table with some stored rows, whose log-probabilities are computed anew."""
        if self.stored is None or not rows:
            return rollouts, candidates
        old = _recomputed(self.stored.take(np.array(rows)), rollouts, context)
        return _joined(rollouts, candidates, old)


@dataclass
class CorrectResponses(RightAnswers):
    """An earlier correct response stands in for a wrong one of an unsolved problem.

    Attributes
    ----------
    mode : {"stop-gradient", "recompute", "direct"}
        "stop-gradient": the old response shapes the others' advantages and carries no gradient
        itself (option II, the paper's choice). "recompute": its log-probabilities are computed anew
        under the current policy, so that the ratio starts at 1 (option I). "direct": the ratio is
        against the policy that once sampled it.
    capacity : int, optional
        Responses kept for a problem, the oldest go first. None keeps all, as in the paper.
    stored : Rollouts, optional
        The correct responses so far.

    Notes
    -----
    A problem that occurs for the first time has nothing to reuse.

    References
    ----------
    AR3PO (arXiv 2509.25808), section 3.2 and table 2.
    """

    mode: Annotated[str, choice("stop-gradient", "recompute", "direct")] = "stop-gradient"
    capacity: Count | None = None

    @property
    def needs(self) -> set[str]:  # type: ignore[override]
        """Old responses, and what the mode makes of them."""
        further = {
            "stop-gradient": "rows_without_gradient",
            "recompute": "current_logprobs",
            "direct": "old_logprobs",
        }
        return {"old_responses", further[self.mode]}

    def join(self, rollouts: Rollouts, candidates: np.ndarray, context: Context) -> Joined:
        """Append an old response for each unsolved problem that has one, for a random wrong row."""
        bare = candidates[_bare(rollouts)[candidates]]
        pool = rollouts.take(bare)
        problems, problem_of_row = pool.problems()
        # A group with a correct response of its own has a gradient already.
        solved = np.bincount(problem_of_row, pool.correct, len(problems)) > 0
        rows_of = self.rows_by_problem()
        dropped: list[int] = []
        reused: list[int] = []
        for number in np.flatnonzero(~solved):
            problem = str(problems[number])
            if problem in rows_of:
                rng = context.rng("reuse", problem)  # the name is part of the seed
                dropped.append(rng.choice(np.flatnonzero(problem_of_row == number)))
                reused.append(rng.choice(rows_of[problem]))
        # A wrong row is no candidate any more but stays in the table, where all rollouts of the
        # round are recorded.
        candidates = candidates[~np.isin(candidates, bare[np.array(dropped, dtype=np.int64)])]
        if self.stored is None or not reused or self.mode == "recompute":
            return self._joined(rollouts, candidates, reused, context)
        old = self.stored.take(np.array(reused))
        old = _as_rows_of_this_round(old, rollouts, gradient=self.mode == "direct")
        return _joined(rollouts, candidates, old)

    def metrics(self) -> dict[str, float]:
        """Size of what is stored: responses and bytes."""
        size = 0 if self.stored is None else self.stored.nbytes
        return {**super().metrics(), "replay_bytes": size}


@dataclass
class Buffer(Stored):
    """All rollouts of the last `rounds` rounds, this one included, are candidates.

    First in, first out by round. What passed the allocator is stored; with dynamic sampling these
    are the mixed groups. The ratio of an old rollout is against the policy that sampled it, and its
    advantage is again that within its own group, problem and round together. How often a rollout
    was selected is counted; its clip ratio and entropy are those of its latest update, and its age
    grows every round.

    Attributes
    ----------
    rounds : int
        1 reuses nothing.
    stored : Rollouts, optional
        The rollouts that the next round may use.

    References
    ----------
    CBS (arXiv 2602.08499), definition 3.2.
    """

    rounds: Count = 2
    # The rows that went past the allocator, from `join` until `feedback` stores them.
    passed: np.ndarray | None = state_field(saved=False)
    seconds: float = state_field(float, saved=False)

    needs = frozenset({"old_responses", "old_logprobs", "update_statistics"})
    reads_verdict = False

    def join(self, rollouts: Rollouts, candidates: np.ndarray, context: Context) -> Joined:
        """Append the stored rollouts of the rounds still wanted; all of them are candidates."""
        started = perf_counter()
        self.passed = candidates
        # A new rollout has no clip ratio yet, but both tables need the same columns.
        never_updated = np.full(len(rollouts), np.nan)
        table = rollouts.assign(group=_group_and_round(rollouts), clip_ratio=never_updated)
        if self.stored is not None:
            # This round is one of the `rounds`, so with 2 only those of the round before join.
            old = self.stored.take(self.stored.round > context.round - self.rounds)
            old = old.assign(gradient=np.ones(len(old), bool), group=_group_and_round(old))
            table, candidates = _joined(table, candidates, old)
        self.seconds = perf_counter() - started
        return table, candidates

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Keep what the next round wants, with uses, clip ratios and entropies as they are now."""
        started = perf_counter()
        assert self.passed is not None
        old = np.flatnonzero(rollouts.round < context.round)
        rows = np.concatenate([self.passed, old])
        # What the next round will want, counted from that round.
        rows = rows[rollouts.round[rows] > context.round + 1 - self.rounds]
        latest = rollouts["update_entropy"]
        kept = without_marks(rollouts).assign(
            entropy=np.where(np.isnan(latest), rollouts.entropy, latest),
            uses=rollouts["uses"],
            clip_ratio=rollouts["clip_ratio"],
        )
        self.stored = kept.take(rows) if len(rows) else None
        self.passed = None
        self.seconds += perf_counter() - started

    def metrics(self) -> dict[str, float]:
        """Size of the buffer, in responses and bytes, and the seconds it took this round."""
        return {
            "buffer_stored": 0 if self.stored is None else len(self.stored),
            "buffer_bytes": 0 if self.stored is None else self.stored.nbytes,
            "seconds_buffer": self.seconds,
        }


@dataclass
class Fifo(Stored):
    """The newest `size` rollouts of earlier rounds are candidates beside those of this round.

    Together with `selectors.UniformDraws` this is plain experience replay. A rollout's advantage is
    that within its own group, problem and round together; its ratio is against the policy that
    sampled it. So that the advantage stays what it was, a group stays together as long as one of
    its rollouts is kept: the others have no gradient then and are there for their rewards alone.

    Attributes
    ----------
    size : int
        Rollouts kept.
    positive : float
        Share of the places that goes to the newest correct rollouts which would have left already.

    References
    ----------
    Arnal et al., replay study (arXiv 2604.08706): shares 0, .2 and .5.
    """

    size: Count = 1024
    positive: Share = 0.0
    passed: np.ndarray | None = state_field(saved=False)

    needs = frozenset({"old_responses", "old_logprobs"})

    def join(self, rollouts: Rollouts, candidates: np.ndarray, context: Context) -> Joined:
        """Append the stored rollouts; all of them are candidates."""
        self.passed = candidates
        table = rollouts.assign(group=_group_and_round(rollouts))
        if self.stored is not None:
            old = self.stored.assign(group=_group_and_round(self.stored))
            table, candidates = _joined(table, candidates, old)
        return table, candidates

    @property
    def reads_verdict(self) -> bool:  # type: ignore[override]
        """Where correct rollouts stay longer."""
        return self.positive > 0

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Keep the newest rollouts, and the newest correct ones of the rest."""
        assert self.passed is not None
        old = np.flatnonzero(rollouts.round < context.round)
        rows = np.concatenate([old, self.passed])
        # From the oldest to the newest. Rows that have lost their gradient have no place any more;
        # they are there for their group alone.
        rows = rows[np.argsort(rollouts.round[rows], kind="stable")]
        kept = self._kept(rows[rollouts["gradient"][rows]], rollouts.correct)
        # With a row kept, its whole group stays.
        rows = rows[np.isin(rollouts.group[rows], rollouts.group[kept])]
        self.stored = (
            without_marks(rollouts)
            .assign(uses=rollouts["uses"], gradient=np.isin(np.arange(len(rollouts)), kept))
            .take(rows)
        )
        self.passed = None

    def _kept(self, rows: np.ndarray, correct: np.ndarray) -> np.ndarray:
        """Of rows from old to new: the newest, and the newest correct ones among the others."""
        places_for_right = round(self.positive * self.size)
        # From `start` on are the newest, which stay whatever their verdict.
        start = max(0, len(rows) - (self.size - places_for_right))
        right = rows[:start][correct[rows[:start]]]
        return np.concatenate([right[max(0, len(right) - places_for_right) :], rows[start:]])


@dataclass
class Experience(RightAnswers):
    """Right answers join every group of their problem, one group for mean and deviation.

    Attributes
    ----------
    each : int
        Old answers that join a group.
    path : str, optional
        A file written by `save_answers`: right answers of an earlier run, of the same tokenizer.
        None collects them in this run, as they come.
    capacity : int
        Answers kept for a problem, the oldest go first.

    References
    ----------
    RLEP (arXiv 2507.07451): 2 answers beside 16 new ones, from an earlier run. Their
    log-probabilities are computed anew under the current policy, so that the ratio starts at 1.
    """

    each: Count = 2
    path: str | None = None
    capacity: int = 16

    needs = frozenset({"old_responses", "current_logprobs"})

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("capacity", self.capacity, self.each)

    def join(self, rollouts: Rollouts, candidates: np.ndarray, context: Context) -> Joined:
        """Append up to `each` old answers to every problem that has some.

        Raises
        ------
        ValueError
            For answers of a file that other parts of a reward have judged than those of this run.
        """
        if self.path is not None and self.stored is not None:
            theirs, ours = map(_reward_parts, (self.stored, rollouts))
            if theirs != ours:
                raise ValueError(
                    f"path={str(self.path)!r}: its answers were rewarded by {theirs}, and those of "
                    f"this run are rewarded by {ours}; a group needs rewards of the same parts"
                )
        rows: list[int] = []
        rows_of = self.rows_by_problem()
        # Only problems that the round goes on with, not those that the allocator has dropped.
        bare = candidates[_bare(rollouts)[candidates]]
        problems, _ = rollouts.take(bare).problems()
        for problem in problems.tolist():
            if problem in rows_of:
                rng = context.rng("reuse", problem)
                rows += rng.permutation(rows_of[problem])[: self.each].tolist()
        return self._joined(rollouts, candidates, rows, context)


@dataclass
class Buckets(RightAnswers):
    """One right answer joins the group of a problem that was partly solved at its last visit.

    Problems are in buckets by the number c of correct rollouts at their last visit. Problems that
    were all right retire. Of the round's problems with stored answers, `share` of them get one:
    first a bucket is drawn for each answer, and then problems within the buckets, all alike. A
    bucket's weight is the normal density of c with mean n / 2 and deviation 1, however many
    problems it holds; what a bucket cannot give falls to the others. Nothing is replayed before the
    share of correct rollouts exceeds `start`.

    Attributes
    ----------
    share : float
        Share of a round's problems that get an old answer.
    start : float
    capacity : int
        Answers kept for a problem.

    Notes
    -----
    Four things differ from the paper. It also chooses which problems come next by these buckets;
    here the curriculum stays as it is. It takes the answer of lowest entropy under the current
    policy; here it is the lowest when it was sampled. It keeps the old log-probabilities and shapes
    the ratio of replayed tokens, w / (w + 0.1); here log-probabilities are computed anew. It drops
    answers of the same text; here they stay.

    References
    ----------
    ExGRPO (arXiv 2510.02245): share .5, start .35.
    """

    share: Share = 0.5
    start: Share = 0.35
    capacity: Count = 8
    right: dict[str, int] = state_field(dict)
    started: bool = state_field(bool)

    needs = frozenset({"old_responses", "current_logprobs", "entropy"})

    def join(self, rollouts: Rollouts, candidates: np.ndarray, context: Context) -> Joined:
        """Append one old answer to some of the problems in the buckets."""
        if not self.started or self.stored is None:
            return rollouts, candidates
        bare = candidates[_bare(rollouts)[candidates]]
        problems, problem_of_row = rollouts.take(bare).problems()
        rows_of = self.rows_by_problem()
        known = [str(p) for p in problems if self.right.get(str(p), 0) and str(p) in rows_of]
        if not known:
            return rollouts, candidates
        # Counts may differ by problem; the largest stands for the size of a group.
        n = np.bincount(problem_of_row).max()
        right = np.array([self.right[problem] for problem in known])
        size = min(len(known), round(self.share * len(problems)))
        chosen = drawn_from_buckets(right, int(n), size, context.rng("reuse"))
        rows = []
        for i in chosen:
            # The answer that the policy was surest of when it was sampled.
            stored = rows_of[known[i]]
            rows.append(stored[np.argmin(self.stored.entropy[stored])])
        return self._joined(rollouts, candidates, rows, context)

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The buckets of the round's problems change, and their new right answers are kept."""
        fresh = rollouts.take(rollouts.round == context.round)
        if not len(fresh):
            return  # a trainer may leave out rollouts that nothing scored
        # Once begun, replay does not stop again when the share falls.
        self.started = self.started or bool(fresh.correct.mean() > self.start)
        if not self.started:
            return
        ids, right, sizes = outcomes(fresh)
        for problem, c, n in zip(ids, right.tolist(), sizes.tolist()):
            self.right[problem] = 0 if c == n else c  # all right: the problem retires
        super().feedback(fresh, context)


@dataclass
class Surplus(Stored):
    """Groups that a round does not train on wait for the next one, the oldest first.

    Attributes
    ----------
    groups : int
        Groups that a round trains on, where there are so many.
    capacity : int
        Groups that wait at most; the oldest are dropped.
    age : int, optional
        Rounds that a group waits at most; None for any number.
    stored : Rollouts, optional
        The groups that wait.

    References
    ----------
    SPEED-RL (arXiv 2506.09016), the buffer of ready groups; log-probabilities are computed anew
    when a group is trained on. Pilot-Commit (arXiv 2605.26606) drops what is older than 4 steps.
    """

    groups: Count = 16
    capacity: CountOrZero = 64
    age: Count | None = None

    needs = frozenset({"old_responses", "current_logprobs"})
    reads_verdict = False
    later = ("age",)

    def join(self, rollouts: Rollouts, candidates: np.ndarray, context: Context) -> Joined:
        """Put the waiting groups before the new ones, and keep what is too much."""
        table = rollouts.assign(group=_group_and_round(rollouts))
        waited = self.stored
        if waited is not None and self.age is not None:
            waited = waited.take(context.round - waited.round <= self.age)
        if waited is not None and len(waited):
            # A problem may come again while a group of it waits, so groups are told apart by their
            # round as well.
            old = _recomputed(waited, table, context)
            old = old.assign(group=_group_and_round(old))
            candidates = np.concatenate([len(table) + np.arange(len(old)), candidates])
            table = Rollouts.concat([table, old])
        # Groups in the order of the candidates, those that waited first.
        queue = list(dict.fromkeys(table.group[candidates].tolist()))
        trained = set(queue[: self.groups])
        too_much = queue[self.groups :]
        # Where too many wait, the oldest are at the front and are dropped.
        waiting = set(too_much[max(0, len(too_much) - self.capacity) :])
        group_of = table.group[candidates].tolist()
        left = candidates[[group in waiting for group in group_of]]
        # Stored here and not in `feedback`, since these groups take no further part in the round.
        self.stored = without_marks(table).take(left) if len(left) else None
        return table, candidates[[group in trained for group in group_of]]


def bucket_weights(right: np.ndarray, n: int) -> np.ndarray:
    """Weights of problems with so many of n rollouts right: a normal density around n / 2.

    >>> bucket_weights(np.array([1, 2, 4]), 8).round(4)
    array([0.0044, 0.054 , 0.3989])
    """
    return np.exp(-((right - n / 2) ** 2) / 2) / np.sqrt(2 * np.pi)


def drawn_from_buckets(
    right: np.ndarray, n: int, size: int, rng: np.random.Generator
) -> np.ndarray:
    """`size` of P problems, by way of the buckets that they are in.

    Parameters
    ----------
    right : (P,) int64
        Of each problem how many of n rollouts were right; problems of one number share a bucket.
    n : int
    size : int
        At most P.
    rng : numpy.random.Generator

    Returns
    -------
    places : (size,) int64, ascending

    Notes
    -----
    How many problems each bucket gives is drawn by `bucket_weights` alone. What exceeds the
    problems of a bucket is drawn again from the others. Within a bucket each problem is as likely
    as another.

    References
    ----------
    ExGRPO (arXiv 2510.02245) and its released code.
    """
    buckets, bucket_of, held = np.unique(right, return_inverse=True, return_counts=True)
    # The floor lets buckets far from the middle be drawn where no others are left.
    weights = np.maximum(bucket_weights(buckets, n), np.finfo(float).tiny)
    wanted = np.zeros(len(buckets), dtype=np.int64)
    while (missing := size - int(wanted.sum())) > 0:
        has_more = np.where(wanted < held, weights, 0.0)
        wanted += rng.multinomial(missing, has_more / has_more.sum())
        wanted = np.minimum(wanted, held)
    order = rng.permutation(len(right))
    return np.sort(order[place_within(bucket_of[order]) < wanted[bucket_of[order]]])


def save_answers(rollouts: Rollouts, path: Any) -> None:
    """Write the right answers among rollouts to a file that `Experience` reads (safetensors).

    Answers that a course had begun with a part of a solution are left out.
    """
    from workbench.records.checkpoints import save, split_arrays

    tensors: dict[str, Any] = {}
    answers = rollouts.take(rollouts.correct & _bare(rollouts))
    # What else a round adds has no meaning in another run.
    answers = answers.drop(answers.columns.keys() - set(_reward_parts(answers)))
    save(path, tensors, split_arrays("answers", _to_state(answers), tensors))


def load_answers(path: Any) -> Rollouts:
    """Read what `save_answers` wrote."""
    from workbench.records.checkpoints import join_arrays, load

    try:
        tensors, state = load(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise OSError(f"path={str(path)!r}: {error}") from None
    answers = _from_state(join_arrays(state, tensors))
    # They are of no round of this run: 0 lies before the first one.
    return answers.assign(round=np.zeros(len(answers), np.int64))


def _as_rows_of_this_round(old: Rollouts, rollouts: Rollouts, gradient: bool) -> Rollouts:
    """Old rows with all columns of this round's table, and with a stage after all of its stages."""
    missing = {
        name: np.zeros(len(old), value.dtype)
        for name, value in rollouts.columns.items()
        if name not in old.columns
    }
    if "group" in missing:
        missing["group"] = old.group
    if "truth" in missing:
        # No verifier of this run has erred on answers of a file.
        missing["truth"] = old.correct
    # A later stage than all others, so that rules about the first stage, as in `Rejection`, do not
    # count old rows.
    stage = np.full(len(old), rollouts.stage.max(initial=-1) + 1)
    return old.assign(**{**missing, "gradient": np.full(len(old), gradient), "stage": stage})


def _recomputed(old: Rollouts, rollouts: Rollouts, context: Context) -> Rollouts:
    """Old rows to be trained on in this round, with log-probabilities of the current policy."""
    old = _as_rows_of_this_round(old, rollouts, gradient=True)
    return old.assign(old_logprobs=_current_logprobs(old, context))


def _joined(table: Rollouts, candidates: np.ndarray, old: Rollouts) -> Joined:
    """The table with old rows at its end, all of them candidates besides the present ones."""
    added = np.arange(len(table), len(table) + len(old))
    return Rollouts.concat([table, old]), np.concatenate([candidates, added])


def _group_and_round(rollouts: Rollouts) -> np.ndarray:
    """Group and round of each rollout as one key, (R,) str."""
    return keys(rollouts.group, rollouts.round)


def _bare(rollouts: Rollouts) -> np.ndarray:
    """Which rollouts (R,) begin at their problem, and not behind a part of an old response."""
    bare = np.ones(len(rollouts), dtype=bool)
    # A further start of a problem, and tokens of another response at the beginning of this one.
    for name in ("start", "prefix"):
        if name in rollouts:
            bare &= rollouts[name] == 0
    return bare


def _reward_parts(rollouts: Rollouts) -> list[str]:
    """The columns with the parts of the reward, in alphabetical order."""
    return sorted(name for name in rollouts.columns if name.startswith("reward_"))


def without_marks(rollouts: Rollouts) -> Rollouts:
    """The table without the columns that a round adds, such as `advantage`.

    Parts of the reward stay, what a course says of a rollout, and the true verdict under stress.
    """
    kept = ("reward_", "prefix", "kept", "read", "lost", "start", "spared", "survival", "truth")
    return rollouts.drop([name for name in rollouts.columns if not name.startswith(kept)])


def _current_logprobs(old: Rollouts, context: Context) -> Ragged:
    """Log-probabilities of the responses under the current policy, at the sampling's temperature.

    The update computes its own at that temperature too, so the ratio starts at 1.
    """
    import torch

    with torch.no_grad():
        fresh = context.policy.logprobs(old, context.temperature).cpu().numpy().astype(np.float32)
    return Ragged.of_padded(fresh, old.lengths)


def _to_state(table: Rollouts) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Ragged):
            state[name] = {"values": value.values, "offsets": value.offsets}
        elif value.dtype.kind in "UO":
            # A checkpoint holds arrays of numbers only; texts go into its JSON.
            state[name] = value.tolist()
        else:
            state[name] = value
    return state


def _from_state(state: Mapping[str, Any]) -> Rollouts:
    columns = {
        name: Ragged(value["values"], value["offsets"]) if isinstance(value, dict) else value
        for name, value in state.items()
    }
    return Rollouts.of_columns(columns)
