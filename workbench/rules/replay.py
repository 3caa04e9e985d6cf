"""Which responses of earlier rounds join a group.

A replay slot value appends old rows to the round's table and says which rows the selector may
choose from; see `workbench.slots.Replay`. What it has stored is in its attribute `stored`, a
`Rollouts` table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np

from workbench.pools import Pool
from workbench.records import files
from workbench.slots import Context, Ragged, Rollouts, Slot, state_field
from workbench.utils.bounds import Count, CountOrZero, choice
from workbench.utils.descriptions import parameters
from workbench.utils.groups import keys, place_within
from workbench.utils.names import of_catalogue
from workbench.utils.validation import instance_of

Joined = tuple[Rollouts, np.ndarray]  # what `join` returns, see `slots.Replay`


class Stored(Slot):
    """Base of slot values that keep a table: the table that they keep is what they have learnt."""

    stored = Rollouts(problem=np.empty(0, dtype=str))
    path: str | None = None  # the file that it comes from, where it does not come from this run
    metric = "replay_stored"

    def metrics(self) -> dict[str, float]:
        """Rollouts stored."""
        return {self.metric: len(self.stored)}

    def state_dict(self) -> dict[str, Any]:
        """The stored rollouts, unless they come from a file, and what else was learnt."""
        table = _to_state(self.stored) if self.path is None else {}
        return {"table": table, **super().state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what `state_dict` returned."""
        super().load_state_dict(state)
        if self.path is None:
            self.stored = _from_state(state["table"])


class RightAnswers(Stored):
    """Base of slot values that keep right answers, of this run or of a file."""

    capacity: int | None
    digest: str | None = None  # of the file, as it was when it was read

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is not None:
            instance_of("path", self.path, (str, os.PathLike), '"answers.safetensors"')
            self.path = os.path.abspath(self.path)  # the working directory may change
            # Read by the constructor, so that a missing file is found before a model is loaded.
            self.stored = load_answers(self.path)
            self.digest = files.digest_of(files.read_ordinary(Path(self.path)))

    def check(self, policy: Any, lab: Any) -> None:
        """ValueError for answers of a file that this run could not have sampled."""
        stored, most = self.stored, lab.sampling.max_new_tokens
        columns = [c.values if isinstance(c, Ragged) else c for _, c in stored.items()]
        # Beyond float32 a number is infinite where it meets a tensor.
        with np.errstate(over="ignore"):
            floats = [column.astype(np.float32) for column in columns if column.dtype.kind == "f"]
        vocabulary = getattr(getattr(policy.model, "config", None), "vocab_size", np.inf)
        tokens = np.concatenate([stored.prompt.values, stored.response.values])
        odd = (stored.lengths < 1) | (stored.lengths > most)
        missing = stored.old_logprobs.lengths != stored.lengths
        rows_of = self.rows_by_problem()
        pool = lab.problems if isinstance(lab.problems, Pool) else ()
        known = [problem for problem in pool if problem.id in rows_of]
        prompts = policy.encode([problem.prompt for problem in known]) if known else []
        others = [
            (stored.prompt[row].tolist(), stored.answer[row]) != (prompt, problem.answer)
            for problem, prompt in zip(known, prompts)
            for row in rows_of[problem.id]
        ]
        wrong = {
            "a number is not finite": not all(np.isfinite(column).all() for column in floats),
            "a token is none of the model's": ((tokens < 0) | (tokens >= vocabulary)).any(),
            f"an answer has no token or over {most}": odd.any(),
            "a token has no log-probability": missing.any() and stored.old_logprobs.lengths.any(),
            "a prompt or a gold answer is another": any(others),
        }
        for reason, is_so in wrong.items():
            if is_so:
                raise ValueError(f"path={self.path!r}: {reason}")

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Store the round's new right answers; of each problem the newest `capacity` stay."""
        new = rollouts.correct & (rollouts.round == context.round)
        fresh = rollouts.take(new & is_bare(rollouts))
        if self.path is not None or not len(fresh):
            return
        # Columns such as advantage and uses belong to the round that is over.
        table = Rollouts.concat([self.stored, without_marks(fresh)])
        if self.capacity is not None:
            _, problem_of_row = table.problems()
            # Counted from the end: how many later rows of its problem follow each row.
            rows_after = place_within(problem_of_row[::-1])[::-1]
            table = table.take(np.flatnonzero(rows_after < self.capacity))
        self.stored = table

    def rows_by_problem(self) -> dict[str, np.ndarray]:
        """The stored rows of each problem that has some, by its id."""
        problems, problem_of_row = self.stored.problems()
        order = np.argsort(problem_of_row, kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(problem_of_row))[:-1])
        return dict(zip(problems.tolist(), parts))

    def join_rows(
        self, rollouts: Rollouts, candidates: np.ndarray, rows: list[int], context: Context
    ) -> Joined:
        """The table with some stored rows, whose log-probabilities are computed anew."""
        if not rows:
            return rollouts, candidates
        old = recompute(self.stored.take(np.array(rows)), rollouts, context)
        return join_rows(rollouts, candidates, old)


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
    stored : Rollouts
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
        bare = candidates[is_bare(rollouts)[candidates]]
        table = rollouts.take(bare)
        problems, problem_of_row = table.problems()
        # A group with a correct response of its own has a gradient already.
        solved = np.bincount(problem_of_row, table.correct, len(problems)) > 0
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
        if not reused or self.mode == "recompute":
            return self.join_rows(rollouts, candidates, reused, context)
        old = self.stored.take(np.array(reused))
        old = _as_rows_of_this_round(old, rollouts, gradient=self.mode == "direct")
        return join_rows(rollouts, candidates, old)

    def metrics(self) -> dict[str, float]:
        """Size of what is stored: responses and bytes."""
        return {**super().metrics(), "replay_bytes": self.stored.nbytes}


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
    stored : Rollouts
        The rollouts that the next round may use.

    References
    ----------
    CBS (arXiv 2602.08499), definition 3.2.
    """

    rounds: Count = 2
    # The rows that went past the allocator, from `join` until `feedback` stores them.
    passed: np.ndarray = state_field(lambda: np.empty(0, np.int64), saved=False)
    seconds: float = state_field(float, saved=False)

    needs = frozenset({"old_responses", "old_logprobs", "update_statistics"})
    reads_verdict = False

    def join(self, rollouts: Rollouts, candidates: np.ndarray, context: Context) -> Joined:
        """Append the stored rollouts of the rounds still wanted; all of them are candidates."""
        started = perf_counter()
        self.passed = candidates
        # A new rollout has no clip ratio yet, but both tables need the same columns.
        never_updated = np.full(len(rollouts), np.nan)
        table = rollouts.assign(group=group_and_round(rollouts), clip_ratio=never_updated)
        # This round is one of the `rounds`, so with 2 only those of the round before join.
        old = self.stored.take(self.stored.round > context.round - self.rounds)
        old = old.assign(gradient=np.ones(len(old), bool), group=group_and_round(old))
        table, candidates = join_rows(table, candidates, old)
        self.seconds = perf_counter() - started
        return table, candidates

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Keep what the next round wants, with uses, clip ratios and entropies as they are now."""
        started = perf_counter()
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
        self.stored = kept.take(rows)
        self.seconds += perf_counter() - started

    def metrics(self) -> dict[str, float]:
        """Size of the buffer, in responses and bytes, and the seconds it took this round."""
        return {
            "buffer_stored": len(self.stored),
            "buffer_bytes": self.stored.nbytes,
            "seconds_buffer": self.seconds,
        }


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
    stored : Rollouts
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
        table = rollouts.assign(group=group_and_round(rollouts))
        waited = self.stored
        if self.age is not None:
            waited = waited.take(context.round - waited.round <= self.age)
        if len(waited):
            # A problem may come again while a group of it waits, so groups are told apart by their
            # round as well.
            old = recompute(waited, table, context)
            old = old.assign(group=group_and_round(old))
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
        self.stored = without_marks(table).take(left)
        return table, candidates[[group in trained for group in group_of]]


def save_answers(rollouts: Rollouts, path: Any) -> None:
    """Write the right answers among rollouts to a file that `Experience` reads (safetensors).

    Answers that a course had begun with a part of a solution are left out.
    """
    from workbench.records.checkpoints import save, split_arrays

    tensors: dict[str, Any] = {}
    answers = rollouts.take(rollouts.correct & is_bare(rollouts))
    # What else a round adds has no meaning in another run.
    answers = answers.drop(answers.columns.keys() - set(reward_parts(answers)))
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


def read_from_files(method: Any, policy: Any = None, lab: Any = None) -> dict[str, str]:
    """Digests of the files that values of a method's slots have read, by their paths.

    With a policy and a lab, what they hold is checked against these.
    """
    found, left = {}, [*method.slots().values()]
    while left:
        part = left.pop()
        if isinstance(part, RightAnswers) and part.path is not None:
            assert part.digest is not None
            found[str(part.path)] = part.digest
            if policy is not None:
                part.check(policy, lab)
        # A wrapper holds other slots as arguments, alone or several.
        if isinstance(part, Slot):
            left += parameters(part).values()
        elif isinstance(part, list | tuple):
            left += part
    return found


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


def recompute(old: Rollouts, rollouts: Rollouts, context: Context) -> Rollouts:
    """Old rows to be trained on in this round, with log-probabilities of the current policy.

    They are those at the sampling's temperature. The update computes its own at that temperature
    too, so the ratio starts at 1.
    """
    import torch

    old = _as_rows_of_this_round(old, rollouts, gradient=True)
    with torch.no_grad():
        fresh = context.policy.logprobs(old, context.temperature).cpu().numpy().astype(np.float32)
    return old.assign(old_logprobs=Ragged.of_padded(fresh, old.lengths))


def join_rows(table: Rollouts, candidates: np.ndarray, old: Rollouts) -> Joined:
    """The table with old rows at its end, all of them candidates besides the present ones."""
    added = np.arange(len(table), len(table) + len(old))
    return Rollouts.concat([table, old]), np.concatenate([candidates, added])


def group_and_round(rollouts: Rollouts) -> np.ndarray:
    """Group and round of each rollout as one key, (R,) str."""
    return keys(rollouts.group, rollouts.round)


def is_bare(rollouts: Rollouts) -> np.ndarray:
    """Which rollouts (R,) begin at their problem, and not behind a part of an old response."""
    bare = np.ones(len(rollouts), dtype=bool)
    # A further start of a problem, and tokens of another response at the beginning of this one.
    for name in ("start", "prefix"):
        if name in rollouts:
            bare &= rollouts[name] == 0
    return bare


def reward_parts(rollouts: Rollouts) -> list[str]:
    """The columns with the parts of the reward, in alphabetical order."""
    return sorted(name for name in rollouts.columns if name.startswith("reward_"))


def without_marks(rollouts: Rollouts) -> Rollouts:
    """The table without the columns that a round adds, such as `advantage`.

    Parts of the reward stay, what a course says of a rollout, and the true verdict under stress.
    """
    kept = ("reward_", "prefix", "kept", "read", "lost", "start", "spared", "survival", "truth")
    return rollouts.drop([name for name in rollouts.columns if not name.startswith(kept)])


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


__getattr__ = partial(of_catalogue, __name__)
