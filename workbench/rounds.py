"""One round of a method, whoever samples and whoever updates: `Run`, TRL's trainer or verl's.

`play` asks the slots in their order and checks what each returns (see `workbench.checks`). The
trainer hands over two functions, one that samples and verifies, and one that finds further
problems, and gets back a `Round`: the rows to train on, their advantages and their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench import checks
from workbench.methods import Method
from workbench.pools import Problem
from workbench.rollouts import Context, Ragged, Rollouts, spread
from workbench.rules.advantages import selected_advantages
from workbench.rules.success_rates import tally
from workbench.slots import More
from workbench.utils.validation import brief

MOST_REQUESTS = 1000  # an allocator that asks more often than this in one round never ends

Sample = Callable[[list[Problem], np.ndarray, np.ndarray, int], Rollouts]
FindMore = Callable[[int, list[Problem]], Sequence[Problem]]
Timed = Callable[[], AbstractContextManager]


@dataclass(frozen=True)
class Round:
    """What a method decided in one round.

    Attributes
    ----------
    rollouts : Rollouts (R rows)
        Everything sampled in the round and the old responses that joined, with what the selector
        recorded of them.
    rows : (K,) int64
        The rows to train on, in the order of the candidates.
    advantages : (K,) float64, or a Ragged with one for each response token
    weights : (K,) float64, or None for 1 each
    mini_batch : int, optional
        Rows of one optimizer step, where the selector says so.
    """

    rollouts: Rollouts
    rows: np.ndarray
    advantages: np.ndarray | Ragged
    weights: np.ndarray | None = None
    mini_batch: int | None = None


def play(
    method: Method,
    problems: Sequence[Problem],
    context: Context,
    sample: Sample,
    more: FindMore,
    timed: Timed = nullcontext,
) -> Round:
    """Ask the slots of a method what to do in one round.

    Parameters
    ----------
    method : Method
    problems : list of Problem
        Those that the round starts with.
    context : Context
    sample : function
        sample(problems, counts, before, stage) returns verified rollouts, counts[i] of problems[i],
        which had before[i] so far; stage is the number of the request, from 0.
    more : function
        more(n, problems) returns n problems that are not in the list, or fewer where there are no
        more.
    timed : function
        Returns a context manager that is entered while the slots work, so that a trainer can
        measure them.

    Raises
    ------
    ValueError
        When a slot returns what it must not; the message begins with the slot's name.
    NonFinite
        When an advantage is not finite.
    """
    problems = checks.checked_problems("curriculum", problems)
    rollouts, candidates = collect(method.allocator, problems, context, sample, more, timed)
    with timed():
        return choose(method, rollouts, candidates, replace(context, sampled=rollouts))


def collect(
    allocator: Any,
    problems: list[Problem],
    context: Context,
    sample: Sample,
    more: FindMore,
    timed: Timed = nullcontext,
) -> tuple[Rollouts, np.ndarray]:
    """Drive an allocator: all rollouts of the round, and the rows (K,) int64 that go on.

    Arguments: see `play`.
    """
    name = brief(allocator)
    requests = allocator.allocate(problems, context)
    # An `allocate` without any `yield` runs at once and returns a plain value.
    if not isinstance(requests, Generator):
        raise ValueError(
            f"allocator: {name}.allocate returned {brief(requests)}; it must be a generator that "
            "yields its counts"
        )
    rollouts: Rollouts | None = None
    stage = 0
    # The first thing that is sent into a generator has to be None.
    answer: Any = None
    for _ in range(MOST_REQUESTS):
        try:
            with timed():
                request = requests.send(answer)
        except StopIteration as end:
            kept = end.value
            break
        if isinstance(request, More):
            # A problem that came a second time would have its rollouts mixed with those of the
            # first.
            known = frozenset(problem.id for problem in problems)
            further = more(request.n, problems)
            new = checks.checked_problems("curriculum", further, known, request.n)
            problems = [*problems, *new]
            answer = problems
        else:
            counts = checks.checked_counts(f"allocator: {name}", request, len(problems))
            # The counts so far go along, so that no seed or draw number of a problem comes twice in
            # a round.
            before = np.zeros(len(problems), dtype=np.int64)
            if rollouts is not None:
                _, before = tally([problem.id for problem in problems], rollouts)
            # A later request may ask for nothing more, and then nobody is asked to sample.
            if counts.any():
                fresh = sample(problems, counts, before, stage)
                rollouts = fresh if rollouts is None else Rollouts.concat([rollouts, fresh])
            if rollouts is None:
                break  # an allocator begins with a request for something
            stage += 1
            # The allocator gets everything sampled so far, not only what it has just asked for.
            answer = rollouts
    else:
        raise ValueError(f"allocator: {name} asked {MOST_REQUESTS} times in one round, with no end")
    if rollouts is None:
        raise ValueError(f"allocator: {name} asked for no rollouts")
    if kept is None:
        return rollouts, np.arange(len(rollouts))
    return rollouts, checks.checked_rows(f"allocator: {name}", kept, len(rollouts))


def choose(method: Method, rollouts: Rollouts, candidates: np.ndarray, context: Context) -> Round:
    """Let old responses join and the selector choose, and take the advantages.

    candidates (C,) int64: the rows of `rollouts` that went past the allocator.
    """
    # Replay comes before the selector, which then chooses among new and old rows alike.
    if method.replay is not None:
        joined = method.replay.join(rollouts, candidates, context)
        rollouts, candidates = checks.checked_join(method.replay, joined, rollouts)
    if not len(candidates):
        # Dynamic sampling may have found no mixed group; there is nothing to select from.
        return Round(rollouts, candidates, np.empty(0))
    table = rollouts.take(candidates)
    # The selector sees how good each candidate is against its whole group, whatever baseline it
    # then asks for.
    who = f"advantage: {brief(method.advantage)}"
    full = checks.checked_advantages(who, method.advantage(table, context), table)
    table = table.assign(
        advantage=full.means() if isinstance(full, Ragged) else full,
        age=context.round - table.round,
    )
    selection = checks.checked_selection(
        method.selector, method.selector.select(table, context), table
    )
    # The advantages to train on, against the baseline that the selection asks for.
    advantages = selected_advantages(
        method.advantage, selection.baseline, table, selection.rows, context, full
    )
    # Those against the group are a part of what was checked above.
    if selection.baseline != "group":
        advantages = checks.checked_advantages(who, advantages, table.take(selection.rows))

    # The selector speaks of the C candidates; the record has a row for each of the R rollouts, so
    # the others get NaN.
    columns = {
        name: spread(values, candidates, len(rollouts))
        for name, values in selection.columns.items()
    }
    return Round(
        rollouts.assign(**columns),
        candidates[selection.rows],
        advantages,
        selection.weights,
        selection.mini_batch,
    )
