"""Which responses of earlier rounds join a group.

A replay slot value appends old rows to the round's table and says which rows the selector may
choose from; see `workbench.slots.Replay`. What it has stored is in its attribute `stored`, a
`Rollouts` table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.rollouts import Ragged, Rollouts
from workbench.slots import Slot
from workbench.utils.validation import one_of, whole_number

if TYPE_CHECKING:
    from workbench.rollouts import Context

__all__ = ["Buffer", "CorrectResponses"]

MODES = ("stop-gradient", "recompute", "direct")


@dataclass
class CorrectResponses(Slot):
    """An earlier correct response replaces a wrong one of a problem that has no correct response
    now.

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

    mode: str = "stop-gradient"
    capacity: int | None = None
    stored: Rollouts | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        one_of("mode", self.mode, MODES)
        if self.capacity is not None:
            whole_number("capacity", self.capacity, 1)

    @property
    def needs(self) -> set[str]:  # type: ignore[override]
        """Old responses, and log-probabilities where they are trained on."""
        further = {"recompute": {"current_logprobs"}, "direct": {"old_logprobs"}}
        return {"old_responses"} | further.get(self.mode, set())

    def join(
        self, rollouts: Rollouts, candidates: np.ndarray, context: Context
    ) -> tuple[Rollouts, np.ndarray]:
        """Append one old response for each unsolved problem that has one, in the place of a random
        wrong row.
        """
        pairs = self._replacements(rollouts.take(candidates), context)
        if not pairs:
            return rollouts, candidates
        assert self.stored is not None
        dropped = np.array([position for position, _ in pairs], dtype=np.int64)
        reused = np.array([row for _, row in pairs], dtype=np.int64)
        old = self._prepared(self.stored.take(reused), rollouts, context)
        added = np.arange(len(rollouts), len(rollouts) + len(old))
        table = Rollouts.concat([rollouts, old])
        return table, np.concatenate([np.delete(candidates, dropped), added])

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Keep the round's new correct responses."""
        fresh = rollouts.take(rollouts.correct & (rollouts.round == context.round))
        if not len(fresh):
            return
        fresh = _without_marks(fresh)
        table = fresh if self.stored is None else Rollouts.concat([self.stored, fresh])
        if self.capacity is not None:
            table = table.take(_newest_of_each_problem(table, self.capacity))
        self.stored = table

    def metrics(self) -> dict[str, float]:
        """Size of what is stored: responses and bytes."""
        return {
            "replay_stored": 0 if self.stored is None else len(self.stored),
            "replay_bytes": 0 if self.stored is None else self.stored.nbytes,
        }

    def state_dict(self) -> dict[str, Any]:
        """The stored responses."""
        return {} if self.stored is None else _to_state(self.stored)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the stored responses."""
        self.stored = _from_state(state) if state else None

    def _replacements(self, pool: Rollouts, context: Context) -> list[tuple[int, int]]:
        """(position among the candidates to drop, stored row to add) for each unsolved problem with
        a response.
        """
        if self.stored is None:
            return []
        problems, problem_of_row = pool.problems()
        solved = np.bincount(problem_of_row, pool.correct, len(problems)) > 0
        known = set(self.stored.problem)
        pairs = []
        for number in np.flatnonzero(~solved):
            problem = problems[number]
            if problem not in known:
                continue
            rng = context.rng("reuse", str(problem))
            wrong = np.flatnonzero(problem_of_row == number)
            stored = np.flatnonzero(self.stored.problem == problem)
            pairs.append((rng.choice(wrong), rng.choice(stored)))
        return pairs

    def _prepared(self, old: Rollouts, rollouts: Rollouts, context: Context) -> Rollouts:
        """Old rows with the columns of this round's table; their stage comes after all others."""
        carries_gradient = np.full(len(old), self.mode != "stop-gradient")
        missing = {
            name: np.zeros(len(old), value.dtype)
            for name, value in rollouts.columns.items()
            if name not in old.columns
        }
        stage = np.full(len(old), rollouts.stage.max() + 1)
        old = old.assign(**{**missing, "gradient": carries_gradient, "stage": stage})
        if self.mode == "recompute":
            old = old.assign(old_logprobs=_current_logprobs(old, context))
        return old


@dataclass
class Buffer(Slot):
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

    rounds: int = 2
    stored: Rollouts | None = field(default=None, init=False, repr=False, compare=False)
    passed: np.ndarray | None = field(default=None, init=False, repr=False, compare=False)
    seconds: float = field(default=0.0, init=False, repr=False, compare=False)

    needs = frozenset({"old_responses", "old_logprobs", "update_statistics"})

    def __post_init__(self) -> None:
        whole_number("rounds", self.rounds, 1)

    def join(
        self, rollouts: Rollouts, candidates: np.ndarray, context: Context
    ) -> tuple[Rollouts, np.ndarray]:
        """Append the stored rollouts of the rounds still wanted; all of them are candidates."""
        started = perf_counter()
        self.passed = candidates
        never_updated = np.full(len(rollouts), np.nan)
        table = rollouts.assign(group=_problem_and_round(rollouts), clip_ratio=never_updated)
        if self.stored is not None:
            old = self.stored.take(self.stored.round > context.round - self.rounds)
            old = old.assign(gradient=np.ones(len(old), bool), group=_problem_and_round(old))
            candidates = np.concatenate([candidates, len(table) + np.arange(len(old))])
            table = Rollouts.concat([table, old])
        self.seconds = perf_counter() - started
        return table, candidates

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Keep what the next round wants, with uses, clip ratios and entropies as they are now."""
        started = perf_counter()
        assert self.passed is not None
        old = np.flatnonzero(rollouts.round < context.round)
        rows = np.concatenate([self.passed, old])
        rows = rows[rollouts.round[rows] > context.round + 1 - self.rounds]
        self.stored = self._as_stored(rollouts).take(rows) if len(rows) else None
        self.passed = None
        self.seconds += perf_counter() - started

    def metrics(self) -> dict[str, float]:
        """Size of the buffer, in responses and bytes, and the seconds it took this round."""
        return {
            "buffer_stored": 0 if self.stored is None else len(self.stored),
            "buffer_bytes": 0 if self.stored is None else self.stored.nbytes,
            "seconds_buffer": self.seconds,
        }

    def state_dict(self) -> dict[str, Any]:
        """The stored rollouts."""
        return {} if self.stored is None else _to_state(self.stored)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the stored rollouts."""
        self.stored = _from_state(state) if state else None

    @staticmethod
    def _as_stored(rollouts: Rollouts) -> Rollouts:
        latest = rollouts["update_entropy"]
        entropy = np.where(np.isnan(latest), rollouts.entropy, latest)
        return _without_marks(rollouts).assign(
            entropy=entropy, uses=rollouts["uses"], clip_ratio=rollouts["clip_ratio"]
        )


def _problem_and_round(rollouts: Rollouts) -> np.ndarray:
    """Problem and round of each rollout as one key, (R,) str."""
    with_separator = np.char.add(rollouts.problem, "@")
    return np.char.add(with_separator, rollouts.round.astype(str))


def _without_marks(rollouts: Rollouts) -> Rollouts:
    """Only what a stored response needs: its reward parts, but no marks of the round that sampled
    it.
    """
    return rollouts.drop([name for name in rollouts.columns if not name.startswith("reward_")])


def _newest_of_each_problem(table: Rollouts, capacity: int) -> np.ndarray:
    """Rows left when each problem keeps its `capacity` last ones, in order."""
    _, problem_of_row = table.problems()
    order = np.argsort(problem_of_row, kind="stable")
    ends = np.bincount(problem_of_row).cumsum()
    rows_after = ends[problem_of_row[order]] - 1 - np.arange(len(order))
    return np.sort(order[rows_after < capacity])


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
