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

from functools import partial
from typing import Any

import numpy as np

from workbench.policies import GO_ON, STOP, Plan
from workbench.rules.replay import Stored, without_marks
from workbench.slots import Context, Problems, Ragged, Rollouts
from workbench.utils.names import STOPPED, of_catalogue

# What a plan makes of the rollouts of a request


def follow(rollouts: Rollouts, plan: Plan) -> Rollouts:
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


def judge(rollouts: Rollouts, plan: Plan, course: Any) -> Rollouts:
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


# Old responses that are gone on with


def numbered(problems: Problems, counts: np.ndarray, before: np.ndarray) -> list[tuple[str, int]]:
    """The problem of each rollout of a request, and its number among the round's rollouts of it."""
    return [
        (problem.id, int(start) + number)
        for problem, count, start in zip(problems, counts, before)
        for number in range(count)
    ]


class Drafts(Stored):
    """Base of courses whose rollouts go on from old ones of the same problem and number."""

    metric = "course_stored"

    def _drafts(self, problems: Problems, counts: np.ndarray, before: np.ndarray) -> np.ndarray:
        """The stored row that each rollout of a request goes on from, (R,) int64, -1 for none."""
        keys = zip(self.stored.problem.tolist(), self.stored.draw.tolist())
        rows = {key: row for row, key in enumerate(keys)}
        found = [rows.get(key, -1) for key in numbered(problems, counts, before)]
        return np.array(found, dtype=np.int64)

    def _remember(self, rollouts: Rollouts, rows: np.ndarray, context: Context) -> None:
        """Keep the rows (a mask) in place of what is stored of this round's problems."""
        present = rollouts.round == context.round
        others = ~np.isin(self.stored.problem, rollouts.problem[present])
        fresh = without_marks(rollouts.take(rows & present))
        self.stored = Rollouts.concat([self.stored.take(others), fresh])


def beginnings(drafts: Rollouts, rows: np.ndarray, lengths: np.ndarray) -> Plan:
    """A plan by which rollouts start with the first lengths (R,) tokens of the drafts `rows` (R,);
    a row of -1 starts with nothing.
    """

    def first(name: str, dtype: type) -> Ragged:
        # The last row, which -1 stands for, is empty.
        nothing = Ragged.of([[]], dtype)
        return Ragged.concat([drafts[name], nothing]).take(rows).first(lengths)

    return Plan(
        prefixes=first("response", np.int32),
        logprobs=first("old_logprobs", np.float32),
        entropies=first("token_entropy", np.float32),
    )


# Stopping for good


def draws_of(
    problems: Problems, counts: np.ndarray, before: np.ndarray, context: Context, size: int
) -> np.ndarray:
    """Numbers from [0, 1) for each rollout of a request, (R, size), whatever else is in it."""
    keys = numbered(problems, counts, before)
    return np.array([context.rng("course", *key).random(size) for key in keys]).reshape(-1, size)


def leave_one(said: np.ndarray, chances: np.ndarray, size: int) -> None:
    """Let the rollout with the greatest chance go on where all `size` of a request would stop."""
    if (said == STOP).sum() == size:
        said[chances.argmax()] = GO_ON


__getattr__ = partial(of_catalogue, __name__)
