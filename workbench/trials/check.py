"""`wb.check`: tries a slot value of one's own, as a run and its resume would use it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from workbench.checks import (
    checked_advantages,
    checked_join,
    checked_plan,
    checked_problems,
    checked_selection,
)
from workbench.config import slots_for
from workbench.grpo import mark
from workbench.methods import LEARNING_SLOTS, Method
from workbench.policies import Growing, Plan, Sampling
from workbench.pools import Pool, Problem
from workbench.records import checkpoints
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.rounds import collect
from workbench.rules import rewards
from workbench.slots import PerProblem, Slot
from workbench.utils.descriptions import compose, describe
from workbench.utils.groups import place_within
from workbench.utils.seeding import generator

ROUNDS = 6
PROBLEMS = 4  # of a round
ROLLOUTS = 8  # of a problem
LIMIT = 6  # tokens of a response


def check(value: Any) -> None:
    """Try a value of a slot on made-up rounds; ValueError says in one sentence what is wrong.

    What it decides has the shapes and types of its slot. It decides the same for the same seed, and
    once more after its state went through a checkpoint. It leaves what it is given as it is, and a
    clone has learnt nothing. What it says of itself, such as `reads_verdict`, is so.

    Parameters
    ----------
    value : a slot value, or a part of the reward
        It stays as it is; clones are tried.

    Raises
    ------
    ValueError
        For the first thing that is wrong.

    Examples
    --------
    >>> from workbench import selectors
    >>> check(selectors.MaxVariance(4))
    """
    slot = _slot_of(value)
    # The constructor checks what a run would: that the value can be recorded, and its needs.
    slots: dict[str, Any] = {slot: (value,) if slot == "reward" else value}
    Method("checked", **slots)
    who = f"{slot}={compose(value)}"
    if slot == "reward":
        first, second = (
            _unchanged(who, "it", _rollouts(1), partial(_decided, slot, value, 1)) for _ in range(2)
        )
        if first != second:
            raise ValueError(f"{who}: it rewards the same rollouts differently each time")
        return
    unlearnt, _ = _saved(who, value.clone())
    one, other = value.clone(), value.clone()
    for number in range(1, ROUNDS + 1):
        first, second = (
            _unchanged(who, "it", _rollouts(number), partial(_decided, slot, each, number))
            for each in (one, other)
        )
        if first != second:
            reason = (
                "two clones decide differently with one seed; draw from context.rng(...) alone"
                if number == 1
                else "after its state went through a checkpoint it decides differently; "
                "state_dict() must return everything that it has learnt"
            )
            raise ValueError(f"{who}: {reason}")
        _check_promises(who, slot, one, number)
        finished = _finished(slot, _resumed(who, one), number)
        learn = partial(one.feedback, context=_context(number))
        _unchanged(who, "feedback", finished, learn)
        other = _resumed(who, one)
    if _saved(who, one.clone())[0] != unlearnt:
        raise ValueError(f"{who}: a clone remembers what the value has learnt; keep it in __init__")


def _slot_of(value: Any) -> str:
    """The slot that a value is for, by the method that it has."""
    if isinstance(value, type):
        raise ValueError(f"value={value.__name__}: an object is needed, such as {value.__name__}()")
    slots = slots_for(value)
    # An advantage is called, as a part of the reward is.
    if slots and (isinstance(value, Slot) or slots != ["advantage"]):
        return slots[0]
    if callable(value):
        return "reward"
    actions = ", ".join(action for action, _ in LEARNING_SLOTS.values())
    raise ValueError(f"value={value!r}: it has none of the methods of a slot, {actions}")


# Made-up rounds


class _Policy:
    """A model that gives every token the same probability."""

    def logprobs(self, rollouts: Rollouts, temperature: float) -> Any:
        import torch

        return torch.full((len(rollouts), int(rollouts.lengths.max(initial=0))), -0.5)

    def rescored(self, rollouts: Rollouts, temperature: float) -> Rollouts:
        return rollouts.assign(
            old_logprobs=Ragged(
                np.full_like(rollouts.old_logprobs.values, -0.5), rollouts.response.offsets
            )
        )

    def prompt_states(self, prompts: Any) -> np.ndarray:
        return np.array([[len(prompt), ord(prompt[-1]), 1.0] for prompt in prompts])


POOL = Pool([Problem(f"p{i:02}", f"{i}", f"{i}", level=i % 3) for i in range(16)])


def _context(number: int) -> Context:
    epoch = (number - 1) * PROBLEMS // len(POOL)
    return Context(0, number, epoch=epoch, policy=_Policy(), max_new_tokens=LIMIT)


def _context_of(slot: str, number: int, table: Rollouts) -> Context:
    """What a slot may know of a round; once the allocator has ended, what was sampled too."""
    has_ended = slot in ("replay", "selector", "advantage")
    return replace(_context(number), sampled=table if has_ended else None)


def _sampled(
    counts: np.ndarray, before: np.ndarray, problems: Any, stage: int, number: int
) -> Rollouts:
    """Verified rollouts of a round, counts (P,) of the problems."""
    places = np.repeat(np.arange(len(problems)), counts)
    size = len(places)
    rng = generator(0, "check", number, stage)
    response = Ragged.of(
        [rng.integers(4, 14, n) for n in rng.integers(1, LIMIT + 1, size)], np.int32
    )
    entropy = Ragged(rng.random(len(response.values)).astype(np.float32), response.offsets)
    correct = rng.random(size) < (places % PROBLEMS) / (PROBLEMS - 1)  # some never, some always
    return Rollouts(
        np.array([problems[place].id for place in places]),
        level=np.array([problems[place].level for place in places]),
        prompt=Ragged.of([[1]] * size, np.int32),
        response=response,
        old_logprobs=Ragged(-entropy.values, entropy.offsets),
        token_entropy=entropy,
        entropy=entropy.means(),
        text=np.array(["text"] * size, dtype=object),
        reward=correct.astype(np.float64),
        correct=correct,
        draw=place_within(places) + before[places],
        stage=np.full(size, stage),
        round=np.full(size, number),
        columns={"gradient": np.ones(size, bool), "uses": np.zeros(size, np.int64)},
    )


def _rollouts(number: int) -> Rollouts:
    """The candidates of a round."""
    start = (number - 1) * PROBLEMS % len(POOL)
    counts = np.full(PROBLEMS, ROLLOUTS)
    problems = POOL[start : start + PROBLEMS]
    return _sampled(counts, np.zeros_like(counts), problems, 0, number)


def _seen(table: Rollouts) -> Rollouts:
    """The candidates as a selector sees them."""
    return table.assign(advantage=table.reward - 0.5, age=np.zeros(len(table), np.int64))


def _finished(slot: str, value: Any, number: int) -> Rollouts:
    """The same round once it is over, all of it trained on, with the columns that a value adds."""
    table = _rollouts(number)
    context = _context_of(slot, number, table)
    if slot == "selector":
        seen = _seen(table)
        selection = checked_selection(value, value.select(seen, context), seen)
        table = table.assign(**selection.columns)
    if slot == "course":
        nothing = np.zeros(len(table), np.int64)
        columns = _plan(value, table, context).columns
        table = table.assign(prefix=nothing, kept=nothing, read=nothing, lost=nothing, **columns)
    return mark(table, np.arange(len(table)), table.reward - 0.5, [], number)


# What a value does


def _decided(slot: str, value: Any, number: int, table: Rollouts) -> Any:
    """What a value decides in a round, as data that can be compared."""
    context = _context_of(slot, number, table)
    decided: Any
    if slot == "curriculum":
        chosen = checked_problems(slot, value.choose(POOL, PROBLEMS, context), most=PROBLEMS)
        decided = [problem.id for problem in chosen]
    elif slot == "allocator":
        decided = _allocated(value, number)[0]
    elif slot == "course":
        decided = _planned(value, table, context)
    elif slot == "replay":
        rows = np.arange(len(table))
        joined, candidates = checked_join(value, value.join(table, rows, context), table)
        decided = [_data(joined), candidates]
    elif slot == "selector":
        seen = _seen(table)
        selection = checked_selection(value, value.select(seen, context), seen)
        # What the selector is given is another table than `table`, with the same columns in it.
        decided = [selection.rows, selection.weights, dict(selection.columns)]
        decided += [selection.mini_batch, selection.baseline]
    elif slot == "advantage":
        advantages = checked_advantages("advantage", value(table, context), table)
        decided = advantages.values if isinstance(advantages, Ragged) else advantages
    else:
        decided = rewards.total(table, (value,), Sampling(max_new_tokens=LIMIT)).reward
    return json.dumps(describe(decided))


def _planned(value: Any, table: Rollouts, context: Context) -> list[Any]:
    """What a course decides of the rollouts of a table, where all of them grow."""
    plan = _plan(value, table, context)
    size = len(table)
    growing = Growing(
        rows=np.arange(size),
        step=LIMIT // 2,
        tokens=lambda last: np.full((size, min(last, LIMIT // 2)), 4, np.int32),
        texts=lambda last: ["text"] * size,
        margin=lambda: np.linspace(0, 1, size),
        states=lambda: np.linspace(0, 1, size * 2, dtype=np.float32).reshape(size, 2),
    )
    stops = None if plan.stop is None else plan.stop(growing)
    prefixes = None if plan.prefixes is None else [*plan.prefixes.lengths, plan.prefixes.values]
    return [prefixes, stops, dict(plan.columns)]


def _plan(value: Any, table: Rollouts, context: Context) -> Plan:
    """A course's plan for the rollouts of a table."""
    problems = [problem for problem in POOL if problem.id in set(table.problem)]
    counts = np.full(len(problems), ROLLOUTS)
    plan = value.plan(problems, counts, np.zeros_like(counts), context)
    return checked_plan(value, plan, len(table), LIMIT)


def _allocated(value: Any, number: int) -> tuple[list[Any], Rollouts]:
    """An allocator's requests and the rows that it keeps, and these rows."""
    requests: list[Any] = []

    def sample(problems: Any, counts: np.ndarray, before: np.ndarray, stage: int) -> Rollouts:
        requests.append(counts)
        return _sampled(counts, before, problems, stage, number)

    def more(n: int, problems: Any) -> list[Problem]:
        taken = {problem.id for problem in problems}
        return [problem for problem in POOL if problem.id not in taken][:n]

    problems = list(POOL[:PROBLEMS])
    table, rows = collect(value, problems, _context(number), sample, more)
    return [*requests, rows], table.take(rows)


def _check_promises(who: str, slot: str, value: Any, number: int) -> None:
    """ValueError where a value is not what it says of itself."""
    promised, kept = None, np.empty(0)
    table = _seen(_rollouts(number))
    if slot == "allocator":
        promised = value.clone().sampled()
        kept = _allocated(value.clone(), number)[1].problem
    if slot == "selector":
        promised = value.trained(PerProblem(ROLLOUTS))
        kept = table.problem[value.clone().select(table, _context_of(slot, number, table)).rows]
    counts = np.unique(kept, return_counts=True)[1]
    if promised is not None and promised.of == "each" and (counts != promised.n).any():
        name = "sampled" if slot == "allocator" else "trained"
        raise ValueError(f"{who}: it says {name}()={promised}, and its problems have {counts}")
    if slot in ("selector", "advantage") and not value.reads_verdict:
        other = table.assign(correct=~table.correct)
        if _decided(slot, value.clone(), 1, table) != _decided(slot, value.clone(), 1, other):
            raise ValueError(
                f"{who}: it says reads_verdict=False, and what is correct matters to it"
            )


def _unchanged(who: str, what: str, table: Rollouts, act: Callable[[Rollouts], Any]) -> Any:
    """What `act` returns; ValueError where it fails, or changes the table that it is given."""
    before = _data(table)
    try:
        result = act(table)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{who}: {what} raised {type(error).__name__}: {error}") from error
    if _data(table) != before:
        raise ValueError(f"{who}: {what} changes the rollouts that it is given; work on a copy")
    return result


def _data(table: Rollouts) -> str:
    columns = {
        name: column.values if isinstance(column, Ragged) else column
        for name, column in table.items()
    }
    return json.dumps(describe(columns))


def _saved(who: str, value: Any) -> tuple[str, Any]:
    """The state of a value as a checkpoint holds it: in text, and as it is read again."""
    state = value.state_dict()
    tensors: dict[str, Any] = {}
    try:
        plain = json.dumps(checkpoints.split_arrays("", dict(state), tensors))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{who}: state_dict() must hold JSON values and NumPy arrays alone ({error})"
        ) from None
    text = plain + json.dumps({name: tensor.tolist() for name, tensor in tensors.items()})
    return text, checkpoints.join_arrays(json.loads(plain), tensors)


def _resumed(who: str, value: Any) -> Any:
    """A clone with the state of a value, which went through a checkpoint."""
    before, state = _saved(who, value)
    twin = value.clone()
    twin.load_state_dict(state)
    if _saved(who, twin)[0] != before:
        raise ValueError(f"{who}: load_state_dict() does not set what state_dict() returned")
    return twin
