"""Which old responses join a group.

A reuse slot is an object with

    def join(self, rollouts, candidates, context):   # -> rollouts with old rows appended, candidate rows (K,) int64
    def feedback(self, rollouts, context):           # learns from the round's table
    state_dict(), load_state_dict(state)

Rows whose column `gradient` is False take part in advantages and in the loss's averages, but carry no gradient.
"""

from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from workbench.rollouts import Ragged, Rollouts

MODES = ("stop-gradient", "recompute", "direct")


class _Stored:
    """A slot with a table of old rollouts in its memory."""

    @property
    def stored(self):
        """The old rollouts as a `Rollouts` table, None while there are none."""
        return self._memory.get("table")

    def state_dict(self):
        """The buffer as arrays and lists."""
        return {} if self.stored is None else _to_state(self.stored)

    def load_state_dict(self, state):
        """Sets the buffer."""
        self._memory.clear()
        if state:
            self._memory["table"] = _from_state(state)


@dataclass(frozen=True)
class CorrectResponses(_Stored):
    """An earlier correct response replaces a wrong one of a problem that has no correct response now (AR3PO, section 3.2).

    mode: "stop-gradient", the old response shapes the others' advantages and carries no gradient itself (option II, the
    paper's default); "recompute", its token probabilities are computed anew under the current policy, so that the ratio
    starts at 1 (option I); "direct", the ratio is against the probabilities of the policy that once sampled it.
    capacity: responses kept for a problem, the oldest go first; None keeps all, as in the paper.
    Reads `correct`. A problem that occurs for the first time has nothing to reuse.
    """

    mode: str = "stop-gradient"
    capacity: int | None = None
    _memory: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self):
        if self.mode not in MODES:
            raise ValueError(f"mode={self.mode!r}: allowed are {', '.join(map(repr, MODES))}")
        if self.capacity is not None and not (
            isinstance(self.capacity, (int, np.integer)) and self.capacity >= 1
        ):
            raise ValueError(
                f"capacity={self.capacity}: a positive number of responses is needed, or None for all"
            )

    def join(self, rollouts, candidates, context):
        """Appends one old response for each unsolved problem that has one; it takes the place of a random wrong row."""
        pairs = self._replacements(rollouts.take(candidates), context)
        if not pairs:
            return rollouts, candidates
        out, rows = (np.array(part, dtype=np.int64) for part in zip(*pairs))
        old = self._prepared(self.stored.take(rows), rollouts, context)
        added = np.arange(len(rollouts), len(rollouts) + len(old))
        return Rollouts.concat([rollouts, old]), np.concatenate([np.delete(candidates, out), added])

    def feedback(self, rollouts, context):
        """Keeps the round's new correct responses."""
        fresh = rollouts.take(rollouts.correct & (rollouts.round == context.round))
        if not len(fresh):
            return
        fresh = _bare(fresh)
        table = fresh if self.stored is None else Rollouts.concat([self.stored, fresh])
        self._memory["table"] = (
            table if self.capacity is None else table.take(_newest(table, self.capacity))
        )

    def metrics(self):
        """Size of the buffer: responses and bytes."""
        size = (0, 0) if self.stored is None else (len(self.stored), self.stored.nbytes)
        return {"reuse_stored": size[0], "reuse_bytes": size[1]}

    def _replacements(self, pool, context):
        """(candidate position to drop, buffer row to add) for each unsolved problem with a stored response."""
        if self.stored is None:
            return []
        keys, group = pool.groups()
        solved = np.bincount(group, pool.correct, len(keys)) > 0
        known, pairs = set(self.stored.problem), []
        for number in np.flatnonzero(~solved):
            if keys[number] in known:
                rng = context.rng("reuse", str(keys[number]))
                wrong, rows = (
                    np.flatnonzero(group == number),
                    np.flatnonzero(self.stored.problem == keys[number]),
                )
                pairs.append((rng.choice(wrong), rng.choice(rows)))
        return pairs

    def _prepared(self, old, rollouts, context):
        """Old rows with the columns of this round's table, as the mode wants them; they come after every stage."""
        keep = np.full(len(old), self.mode != "stop-gradient")
        fill = {
            name: np.zeros(len(old), value.dtype)
            for name, value in rollouts.columns.items()
            if name not in old.columns
        }
        old = old.assign(
            **{**fill, "gradient": keep}, stage=np.full(len(old), rollouts.stage.max() + 1)
        )
        if self.mode == "recompute":
            old = old.assign(logprobs=_current(old, context.policy))
        return old


@dataclass(frozen=True)
class Buffer(_Stored):
    """All rollouts of the last `rounds` rounds, this one included, are candidates (CBS, definition 3.2).

    First in, first out by round; 1 reuses nothing. What passed the allocator is stored: with dynamic sampling the mixed
    groups. The ratio of an old rollout is against the probabilities of the policy that sampled it. Its advantage is
    again that within its own group, problem and round together, as when it was sampled. How often it was selected is
    counted; clip ratio and entropy are those of its latest update, its age grows every round.
    """

    rounds: int = 2
    _memory: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self):
        if (
            isinstance(self.rounds, bool)
            or not isinstance(self.rounds, (int, np.integer))
            or self.rounds < 1
        ):
            raise ValueError(f"rounds={self.rounds!r}: a whole number of at least 1 is needed")

    def join(self, rollouts, candidates, context):
        """Appends the stored rollouts of the rounds still wanted; all of them are candidates."""
        started = perf_counter()
        unused = np.full(len(rollouts), np.nan)
        table, self._memory["candidates"] = (
            rollouts.assign(group=_group_of_round(rollouts), clip_ratio=unused),
            candidates,
        )
        if self.stored is not None:
            wanted = self.stored.round > context.round - self.rounds
            old = self.stored if wanted.all() else self.stored.take(wanted)
            old = old.assign(gradient=np.ones(len(old), bool), group=_group_of_round(old))
            candidates = np.concatenate([candidates, len(table) + np.arange(len(old))])
            table = Rollouts.concat([table, old])
        self._memory["seconds"] = perf_counter() - started
        return table, candidates

    def feedback(self, rollouts, context):
        """Keeps what the next round wants, with uses, clip ratios and entropies as they are now."""
        started = perf_counter()
        old = np.flatnonzero(rollouts.round < context.round)
        rows = np.concatenate([self._memory.pop("candidates"), old])
        rows = rows[rollouts.round[rows] > context.round + 1 - self.rounds]
        self._memory["table"] = self._kept(rollouts).take(rows) if len(rows) else None
        self._memory["seconds"] += perf_counter() - started

    def metrics(self):
        """Size of the buffer, responses and bytes, and the seconds it took this round."""
        size = (0, 0) if self.stored is None else (len(self.stored), self.stored.nbytes)
        return {
            "buffer_stored": size[0],
            "buffer_bytes": size[1],
            "seconds_buffer": self._memory.get("seconds", 0.0),
        }

    @staticmethod
    def _kept(rollouts):
        latest = rollouts["update_entropy"]
        entropy = np.where(np.isnan(latest), rollouts.entropy, latest)
        return _bare(rollouts).assign(
            entropy=entropy, uses=rollouts["uses"], clip_ratio=rollouts["clip_ratio"]
        )


def _group_of_round(rollouts):
    """Problem and round of each rollout as one key, (R,) str."""
    return np.char.add(np.char.add(rollouts.problem, "@"), rollouts.round.astype(str))


def _bare(rollouts):
    """Only what a stored response needs: no marks of the round it was sampled in, but its reward parts."""
    return rollouts.drop([name for name in rollouts.columns if not name.startswith("reward_")])


def _newest(table, capacity):
    """Rows left when each problem keeps its `capacity` last ones, in order."""
    _, group = table.groups()
    order = np.argsort(group, kind="stable")
    after = np.bincount(group).cumsum()[group[order]] - 1 - np.arange(len(order))
    return np.sort(order[after < capacity])


def _current(old, policy):
    """Log-probabilities of the responses under the current policy."""
    import torch

    with torch.no_grad():
        fresh = policy.logprobs(old).cpu().numpy().astype(np.float32)
    return Ragged.of_padded(fresh, old.lengths)


def _to_state(table):
    state = {}
    for name, value in table.items():
        if isinstance(value, Ragged):
            state[name] = {"values": value.values, "offsets": value.offsets}
        else:
            state[name] = value.tolist() if value.dtype.kind in "UO" else value
    return state


def _from_state(state):
    columns = {
        n: Ragged(v["values"], v["offsets"]) if isinstance(v, dict) else v for n, v in state.items()
    }
    return Rollouts.of_columns(columns)
