"""`wb.check`: tries a slot value of one's own, as a run and its resume would use it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from workbench.checks import checked_plan, checked_problems
from workbench.config import slots_for
from workbench.grpo import mark
from workbench.methods import LEARNING_SLOTS, Method
from workbench.policies import Growing, Plan, Sampling
from workbench.pools import Pool, Problem
from workbench.records import checkpoints
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.rounds import play
from workbench.rules import rewards
from workbench.slots import Slot
from workbench.utils.code import own_code
from workbench.utils.descriptions import compose, describe
from workbench.utils.groups import place_within
from workbench.utils.seeding import generator

ROUNDS = 6
PROBLEMS = 4  # of a round
ROLLOUTS = 8  # of a problem
LIMIT = 6  # tokens of a response
SAMPLING = Sampling(max_new_tokens=LIMIT)
POOL = Pool([Problem(f"p{i:02}", f"{i}", f"{i}", level=i % 3) for i in range(16)])


def check(value: Any) -> None:
    """Try a value of a slot on made-up rounds; ValueError says in one sentence what is wrong.

    The rounds are those of a method whose other slots have their usual values. What the value
    decides has the shapes and types of its slot. It decides the same for the same seed, and once
    more after its state went through a checkpoint. It leaves what it is given as it is, and a clone
    has learnt nothing. What it says of itself, such as `reads_verdict`, is so.

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
    method = Method("checked", **slots)
    who = f"{slot}={compose(value)}"
    try:
        _check(who, slot, method)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{who}: it raised {type(error).__name__}: {error}") from error


def _check(who: str, slot: str, method: Method) -> None:
    unlearnt, _ = _saved(who, method)
    unplayed = own_code(method)
    one, other = method.clone(), method.clone()
    for number in range(1, ROUNDS + 1):
        decided, finished = _play(one, number)
        if decided != _play(other, number)[0]:
            reason = (
                "it decides differently with one seed; draw from context.rng(...) alone"
                if number == 1
                else "after its state went through a checkpoint it decides differently; "
                "state_dict() must return everything that it has learnt"
            )
            raise ValueError(f"{who}: {reason}")
        _check_promises(who, one, number)
        table = _sampled(
            POOL[:PROBLEMS], np.full(PROBLEMS, ROLLOUTS), np.zeros(PROBLEMS), 0, number
        )
        before = json.dumps(describe([table, finished]))
        _act(slot, _resumed(who, one), table, number)
        one.feedback(finished, _context(one, number))
        if json.dumps(describe([table, finished])) != before:
            raise ValueError(f"{who}: it changes the rollouts that it is given; work on a copy")
        other = _resumed(who, one)
        _check_memory(who, one.slots()[slot], other.slots()[slot])
    if _saved(who, one.clone())[0] != unlearnt:
        raise ValueError(f"{who}: a clone remembers what the value has learnt; keep it in __init__")
    # No checkpoint has the arguments of a value, nor the variables that its code uses.
    for name, text in own_code(one).items():
        if unplayed.get(name) != text:
            raise ValueError(
                f"{who}: it changes {name}, which no checkpoint has; what it learns belongs into a "
                "state_field(...), or into what state_dict() returns"
            )


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


# A made-up round


def _play(method: Method, number: int, flipped: bool = False) -> tuple[str, Rollouts]:
    """What a method decides in a round, as text that can be compared, and the finished round.

    `flipped` takes what is correct for wrong, and the other way round.
    """
    context = _context(method, number)
    problems = method.curriculum.choose(POOL, PROBLEMS, context)
    problems = checked_problems("curriculum", problems, most=PROBLEMS)
    decided: list[Any] = [[problem.id for problem in problems]]

    def sample(
        problems: Sequence[Problem], counts: np.ndarray, before: np.ndarray, stage: int
    ) -> Rollouts:
        decided.append(counts)
        table = _sampled(problems, counts, before, stage, number)
        table = table.assign(correct=table.correct ^ flipped)
        if method.course is not None:
            table, plan = with_course(table, method.course, problems, counts, before, context)
            decided.append(_followed(plan, len(table)))
        return rewards.total(table, method.reward, SAMPLING)

    def more(n: int, problems: Sequence[Problem]) -> list[Problem]:
        return [problem for problem in POOL if problem not in problems][:n]

    outcome = play(method, problems, context, sample, more)
    # What is correct is no decision, and is turned round in one of the rounds that are compared.
    decided += [outcome.rollouts.assign(correct=np.zeros(len(outcome.rollouts), bool))]
    decided += [outcome.rows, outcome.advantages, outcome.weights, outcome.mini_batch]
    finished = mark(outcome.rollouts, outcome.rows, outcome.advantages, [], number, outcome.weights)
    return json.dumps(describe(decided)), finished


def _context(method: Method, number: int) -> Context:
    epoch = method.curriculum.epoch
    return Context(0, number, epoch=epoch, policy=UniformPolicy(), max_new_tokens=LIMIT)


class UniformPolicy:
    """A model that gives every token the same probability."""

    def logprobs(self, rollouts: Rollouts, temperature: float) -> Any:
        import torch

        return torch.full((len(rollouts), int(rollouts.lengths.max(initial=0))), -0.5)

    def rescored(self, rollouts: Rollouts, temperature: float) -> Rollouts:
        logprobs = np.full_like(rollouts.old_logprobs.values, -0.5)
        return rollouts.assign(old_logprobs=Ragged(logprobs, rollouts.response.offsets))

    def prompt_states(self, prompts: Any) -> np.ndarray:
        return np.array([[len(prompt), ord(prompt[-1]), 1.0] for prompt in prompts])


def _sampled(
    problems: Sequence[Problem], counts: np.ndarray, before: np.ndarray, stage: int, number: int
) -> Rollouts:
    """Verified rollouts of a round, counts (P,) of the problems."""
    places = np.repeat(np.arange(len(problems)), counts)
    rng = generator(0, "check", number, stage)
    lengths = rng.integers(1, LIMIT + 1, len(places))
    # Some problems are never solved, some always.
    correct = rng.random(len(places)) < (places % PROBLEMS) / (PROBLEMS - 1)
    return made_up(problems, places, before, correct, lengths, stage, number, rng)


def made_up(
    problems: Sequence[Problem],
    places: np.ndarray,
    before: np.ndarray,
    correct: np.ndarray,
    lengths: Any,
    stage: int,
    number: int,
    rng: np.random.Generator,
) -> Rollouts:
    """Rollouts of a round with these outcomes and lengths (R,), of the problems at places (R,)."""
    size, total = len(places), int(np.sum(lengths))
    response = Ragged.of_lengths(rng.integers(4, 14, total, np.int32), lengths)
    entropy = Ragged(rng.random(total, np.float32), response.offsets)
    return Rollouts(
        np.array([problems[place].id for place in places]),
        level=np.array([problems[place].level for place in places]),
        prompt=Ragged.of([[1]] * size, np.int32),
        response=response,
        old_logprobs=Ragged(-entropy.values, entropy.offsets),
        token_entropy=entropy,
        entropy=entropy.means(),
        text=np.array(["text"] * size, dtype=object),
        answer=np.array([problems[place].answer for place in places], dtype=object),
        reward=correct.astype(np.float64),
        correct=correct,
        draw=place_within(places) + before[places],
        stage=np.full(size, stage),
        round=np.full(size, number),
        columns={"gradient": np.ones(size, bool), "uses": np.zeros(size, np.int64)},
    )


def with_course(
    table: Rollouts,
    course: Any,
    problems: Sequence[Problem],
    counts: np.ndarray,
    before: np.ndarray,
    context: Context,
) -> tuple[Rollouts, Plan]:
    """Rollouts with the columns of what a course plans for them, and the plan."""
    plan = course.plan(problems, counts, before, context)
    plan = checked_plan(course, plan, len(table), cast(int, context.max_new_tokens))
    nothing = np.zeros(len(table), np.int64)
    columns = dict.fromkeys(("prefix", "kept", "read", "lost"), nothing)
    return table.assign(**{**columns, **plan.columns}), plan


def _followed(plan: Plan, size: int) -> list[Any]:
    """What a course's plan decides of rollouts, where all of them grow."""
    growing = Growing(
        rows=np.arange(size),
        step=LIMIT // 2,
        tokens=lambda last: np.full((size, min(last, LIMIT // 2)), 4, np.int32),
        texts=lambda last: ["text"] * size,
        margin=lambda: np.linspace(0, 1, size),
        states=lambda: np.linspace(0, 1, size * 2, dtype=np.float32).reshape(size, 2),
    )
    return [plan.prefixes, None if plan.stop is None else plan.stop(growing)]


def _act(slot: str, method: Method, table: Rollouts, number: int) -> None:
    """Have a value do what it does with a table, where it is given one."""
    value = method.slots()[slot]
    context = replace(_context(method, number), sampled=table)
    if slot == "reward":
        rewards.total(table, value, SAMPLING)
    elif slot == "replay":
        value.join(table, np.arange(len(table)), context)
    elif slot == "selector":
        value.select(table.assign(advantage=table.reward - 0.5, age=np.zeros(len(table))), context)
    elif slot == "advantage":
        value(table, context)


# What it promises, and what it remembers


def _check_promises(who: str, method: Method, number: int) -> None:
    """ValueError where a value is not what it says of itself."""
    decided, finished = _play(method.clone(), number)
    promised = method.trained
    counts = np.unique(finished.problem[finished["selected"]], return_counts=True)[1]
    if promised is not None and promised.of == "each" and (counts != promised.n).any():
        raise ValueError(
            f"{who}: it says that {promised} is trained on, and its problems have {counts}"
        )
    if not method.reads_verdict and decided != _play(method.clone(), number, flipped=True)[0]:
        raise ValueError(f"{who}: it says reads_verdict=False, and what is correct matters to it")


def _saved(who: str, method: Method) -> tuple[str, Any]:
    """The state of a method as a checkpoint holds it: in text, and as it is read again."""
    tensors: dict[str, Any] = {}
    try:
        plain = json.dumps(checkpoints.split_arrays("", method.state_dict(), tensors))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{who}: a checkpoint cannot store what state_dict() returns ({error})"
        ) from None
    text = plain + json.dumps({name: tensor.tolist() for name, tensor in tensors.items()})
    return text, checkpoints.join_arrays(json.loads(plain), tensors)


def _check_memory(who: str, value: Any, resumed: Any) -> None:
    """ValueError where a value remembers what it has lost once its state went through a checkpoint.

    Decisions may show that only many rounds later.
    """
    before, after = _memory(value), _memory(resumed)
    for name in sorted(before.keys() | after.keys()):
        if _text(before.get(name)) != _text(after.get(name)):
            raise ValueError(
                f"{who}: {name} is lost when its state goes through a checkpoint; it belongs into "
                "state_dict(), or is a state_field(saved=False) where it is of one round alone"
            )


def _memory(value: Any) -> dict[str, Any]:
    """What an object holds, name to value, without what is declared to be of one round."""
    declared = fields(value) if is_dataclass(value) else ()
    of_round = {each.name for each in declared if each.metadata.get("saved") is False}
    # What is worked out when it is first asked for can be worked out again.
    return {
        name: held
        for name, held in getattr(value, "__dict__", {}).items()
        if name not in of_round
        and not isinstance(getattr(type(value), name, None), cached_property)
    }


def _text(value: Any) -> str:
    """A value as text, equal for equal values."""
    # Numbers and texts of NumPy that are Python's as well come back as Python's.
    if isinstance(value, str | float):
        return repr(str(value) if isinstance(value, str) else float(value))
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype}{value.tolist()}"
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, dict):
        return str([(type(value), _text(key), _text(entry)) for key, entry in value.items()])
    if isinstance(value, set | frozenset):
        return str(sorted(map(_text, value)))
    if isinstance(value, list | tuple | deque):
        return f"{type(value)}{[_text(part) for part in value]}"
    if hasattr(value, "__dict__") and not callable(value):
        return f"{type(value)}{_text(_memory(value))}"
    return repr(value)


def _resumed(who: str, method: Method) -> Method:
    """A clone with the state of a method, which went through a checkpoint."""
    before, state = _saved(who, method)
    twin = method.clone()
    twin.load_state_dict(state)
    if _saved(who, twin)[0] != before:
        raise ValueError(f"{who}: load_state_dict() does not set what state_dict() returned")
    return twin
