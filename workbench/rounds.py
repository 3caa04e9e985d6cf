"""One round of a method, whoever samples and whoever updates: `Run`, TRL's trainer or verl's.

`play` asks the slots in their order and checks what each returns, so that a mistake in a slot is
reported by the slot's name and never trained on. The trainer hands over two functions, one that
samples and verifies, and one that finds further problems, and gets back a `Round`: the rows to
train on, their advantages and their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.advantages import selected_advantages
from workbench.problems import Problem
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.slots import BASELINES, More, Selection
from workbench.utils.validation import one_of, shown, whole_number

if TYPE_CHECKING:
    from workbench.methods import Method

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
    """Ask a method's slots for one round.

    Parameters
    ----------
    method : Method
    problems : the problems that the round starts with
    context : Context
    sample : function
        sample(problems, counts, before, stage) returns verified rollouts, counts[i] of problems[i],
        which had before[i] so far; stage is the number of the request.
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
    """
    problems = checked_problems("curriculum", problems)
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
    name = shown(allocator)
    requests = allocator.allocate(problems, context)
    # An `allocate` without any `yield` runs at once and returns a plain value.
    if not isinstance(requests, Generator):
        raise ValueError(
            f"allocator: {name}.allocate returned {shown(requests)}; it must be a generator that "
            "yields its counts"
        )
    rollouts: Rollouts | None = None
    stage = 0
    asked = 0
    # The first thing that is sent into a generator has to be None.
    answer: Any = None
    for _ in range(MOST_REQUESTS):
        with timed():
            request, kept = _next_request(name, requests, answer)
        if request is None:
            break
        if isinstance(request, More):
            # A problem that came a second time would have its rollouts mixed with those of the
            # first.
            known = frozenset(problem.id for problem in problems)
            further = more(request.n, problems)
            problems = [*problems, *checked_problems("curriculum", further, known, request.n)]
            answer = problems
        else:
            counts = _checked_counts(name, request, len(problems))
            # The counts so far go along, so that no seed or draw number of a problem comes twice in
            # a round.
            fresh = sample(problems, counts, _counts_so_far(problems, rollouts), stage)
            rollouts = fresh if rollouts is None else Rollouts.concat([rollouts, fresh])
            stage += 1
            asked += int(counts.sum())
            # The allocator gets everything sampled so far, not only what it has just asked for.
            answer = rollouts
    else:
        raise ValueError(
            f"allocator: {name} asked {MOST_REQUESTS} times in one round without ending"
        )
    # One of several processes may have drawn none of the rollouts that were asked for.
    if rollouts is None or not asked:
        raise ValueError(f"allocator: {name} asked for no rollouts")
    if kept is None:
        return rollouts, np.arange(len(rollouts))
    return rollouts, checked_rows(f"allocator: {name}", kept, len(rollouts))


def choose(method: Method, rollouts: Rollouts, candidates: np.ndarray, context: Context) -> Round:
    """Let old responses join and the selector choose, and take the advantages.

    candidates (C,) int64: the rows of `rollouts` that went past the allocator.
    """
    # Replay comes before the selector, which then chooses among new and old rows alike.
    if method.replay is not None:
        joined = method.replay.join(rollouts, candidates, context)
        rollouts, candidates = checked_join(method.replay, joined, rollouts)
    if not len(candidates):
        # Dynamic sampling may have found no mixed group; there is nothing to select from.
        return Round(rollouts, candidates, np.empty(0))
    pool = rollouts.take(candidates)
    # The selector sees how good each candidate is against its whole group, whatever baseline it
    # then asks for.
    full = checked_advantages(method.advantage, method.advantage(pool, context), pool)
    pool = pool.assign(
        advantage=full.means() if isinstance(full, Ragged) else full,
        age=context.round - pool.round,
    )
    selection = checked_selection(method.selector, method.selector.select(pool, context), pool)
    # The advantages to train on, against the baseline that the selection asks for.
    advantages = selected_advantages(
        method.advantage, selection.baseline, pool, selection.rows, context
    )
    advantages = checked_advantages(method.advantage, advantages, pool.take(selection.rows))

    # The selector speaks of the C candidates; the record has a row for each of the R rollouts, so
    # the others get NaN.
    columns = {
        name: _spread(values, candidates, len(rollouts))
        for name, values in selection.columns.items()
    }
    return Round(
        rollouts.assign(**columns),
        candidates[selection.rows],
        advantages,
        selection.weights,
        selection.mini_batch,
    )


# Checks of what slots return


def checked_problems(
    slot: str, problems: Any, taken: frozenset[str] = frozenset(), most: int | None = None
) -> list[Problem]:
    """The problems as a list.

    ValueError for none at all where none are `taken`, for more than `most`, for fewer than that at
    the start of a round, for one that comes twice, and for anything that is no problem.
    """
    if not isinstance(problems, Iterable):
        raise ValueError(f"{slot}: it returned {shown(problems)}; a list of problems is needed")
    problems = list(problems)
    # In the middle of a round an empty list is an answer: the pool has no more.
    if not problems and not taken:
        raise ValueError(f"{slot}: it chose no problems; a round needs at least one")
    if most is not None and len(problems) > most:
        raise ValueError(f"{slot}: it chose {len(problems)} problems; {most} were asked for")
    if most is not None and not taken and len(problems) < most:
        raise ValueError(
            f"{slot}: it chose {len(problems)} problems; a round begins with {most}, and only what "
            "is drawn in the middle of one may be fewer"
        )
    seen = set(taken)
    for problem in problems:
        if not isinstance(problem, Problem):
            raise ValueError(f"{slot}: {shown(problem)} is no Problem")
        if problem.id in seen:
            raise ValueError(
                f"{slot}: problem {problem.id!r} comes twice in one round; ids must be unique"
            )
        seen.add(problem.id)
    return problems


def checked_rows(who: str, rows: Any, size: int, ordered: bool = True) -> np.ndarray:
    """Rows as int64, ascending if `ordered`; a mask of bool is turned into rows.

    ValueError for rows outside the table, rows that come twice, and masks of the wrong length.
    """
    rows = _array(who, "rows", rows)
    if rows.ndim != 1:
        raise ValueError(f"{who}: it returned rows of shape {rows.shape}; (K,) is needed")
    if rows.dtype == bool:
        if len(rows) != size:
            raise ValueError(f"{who}: its mask has {len(rows)} entries for {size} candidates")
        return np.flatnonzero(rows)
    # NumPy makes an array of floats of an empty list, which is no mistake of the slot.
    if len(rows) and rows.dtype.kind not in "iu":
        raise ValueError(f"{who}: it returned rows of type {rows.dtype}; whole numbers are needed")
    rows = rows.astype(np.int64)
    outside = (rows < 0) | (rows >= size)
    if outside.any():
        raise ValueError(f"{who}: row {rows[outside][0]} is none of the {size} candidates")
    values, counts = np.unique(rows, return_counts=True)
    if len(values) < len(rows):
        raise ValueError(f"{who}: row {values[counts > 1][0]} comes {counts.max()} times")
    return np.sort(rows) if ordered else rows


def checked_join(replay: Any, joined: Any, rollouts: Rollouts) -> tuple[Rollouts, np.ndarray]:
    """The table and the candidates that replay returned for the round's `rollouts`.

    ValueError unless these are a table that begins with the round's rollouts, and rows of it.
    """
    who = f"replay: {shown(replay)}"
    is_pair = isinstance(joined, tuple) and len(joined) == 2 and isinstance(joined[0], Rollouts)
    if not is_pair:
        raise ValueError(
            f"{who}.join returned {shown(joined)}; it must return a table of rollouts and its rows"
        )
    table, candidates = joined
    # The column of problems stands for the whole rows here. Comparing it finds old rows that were
    # put first, and rows that were dropped.
    if not np.array_equal(table.problem[: len(rollouts)], rollouts.problem):
        raise ValueError(
            f"{who}: its table does not begin with the {len(rollouts)} rollouts of the round; old "
            "ones are appended to them"
        )
    # The order of the candidates is left to replay: `Surplus` puts the groups that waited first.
    return table, checked_rows(who, candidates, len(table), ordered=False)


def checked_selection(selector: Any, selection: Any, pool: Rollouts) -> Selection:
    """The selection with rows in ascending order.

    ValueError for anything that does not fit the `pool` of candidates.
    """
    who = f"selector: {shown(selector)}"
    if not isinstance(selection, Selection):
        raise ValueError(
            f"{who}.select returned {shown(selection)}; it must return a Selection(rows)"
        )
    # Not sorted by the check itself, since the weights have to follow the same order.
    rows = checked_rows(who, selection.rows, len(pool), ordered=False)
    order = np.argsort(rows, kind="stable")
    weights = selection.weights
    if weights is not None:
        weights = _numbers(who, "weights", weights)
        if weights.shape != rows.shape:
            raise ValueError(f"{who}: weights of shape {weights.shape} for {len(rows)} rows")
        if not (np.isfinite(weights) & (weights >= 0)).all():
            raise ValueError(f"{who}: weights must be finite numbers of at least 0")
        weights = weights[order]
    if selection.mini_batch is not None:
        whole_number(f"{who}: mini_batch", selection.mini_batch, 1)
    one_of(f"{who}: baseline", selection.baseline, BASELINES)
    return Selection(
        rows[order],
        weights,
        _checked_columns(who, selection.columns, pool),
        selection.mini_batch,
        selection.baseline,
    )


def _checked_columns(who: str, columns: Any, pool: Rollouts) -> dict[str, np.ndarray]:
    """A selector's columns as float64, one number for each candidate."""
    if not isinstance(columns, Mapping):
        raise ValueError(f"{who}: columns={shown(columns)}; a dict of names and numbers is needed")
    checked = {}
    for name, values in columns.items():
        if name in pool:
            raise ValueError(f"{who}: column {name!r} is there already; choose another name")
        checked[name] = _numbers(who, f"column {name!r}", values)
        if checked[name].shape != (len(pool),):
            raise ValueError(
                f"{who}: column {name!r} has shape {checked[name].shape} for {len(pool)} candidates"
            )
    return checked


def checked_advantages(advantage: Any, values: Any, rollouts: Rollouts) -> np.ndarray | Ragged:
    """Advantages as float64, one for each rollout, or as a Ragged.

    ValueError for another shape or a NaN.
    """
    who = f"advantage: {shown(advantage)}"
    if isinstance(values, Ragged):
        if not np.array_equal(values.offsets, rollouts.response.offsets):
            raise ValueError(f"{who}: one number for each response token is needed in a Ragged")
        numbers = values.values
    else:
        values = _numbers(who, "advantages", values)
        if values.shape != (len(rollouts),):
            raise ValueError(
                f"{who}: it returned shape {values.shape} for {len(rollouts)} rollouts; one number "
                "each is needed"
            )
        numbers = values
    if not np.isfinite(numbers).all():
        raise ValueError(f"{who}: it returned numbers that are not finite")
    return values


def _array(who: str, what: str, values: Any) -> np.ndarray:
    """The values as an array; ValueError where they are lists of different lengths."""
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"{who}: {what}={shown(values)}; an array is needed") from None


def _numbers(who: str, what: str, values: Any) -> np.ndarray:
    """The values as float64; ValueError for anything but numbers."""
    array = _array(who, what, values)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{who}: {what}={shown(values)}; numbers are needed")
    return array.astype(np.float64)


def _next_request(name: str, requests: Generator, answer: Any) -> tuple[Any, Any]:
    """The allocator's next request, or None and the rows that it keeps when it ends."""
    try:
        request = requests.send(answer)
    except StopIteration as end:
        return None, end.value
    if request is None:
        raise ValueError(f"allocator: {name} yielded None; counts or More(n) are needed")
    return request, None


def _checked_counts(name: str, counts: Any, problems: int) -> np.ndarray:
    array = _array(f"allocator: {name}", "counts", counts)
    # Whole numbers of a floating-point type pass, since counts are often worked out from rates.
    fits = array.shape == (problems,) and array.dtype.kind in "iuf" and np.isfinite(array).all()
    if not fits or (array != np.floor(array)).any() or (array < 0).any():
        raise ValueError(
            f"allocator: {name} yielded counts {shown(array.tolist())}; {problems} whole numbers "
            "of at least 0 are needed"
        )
    return array.astype(np.int64)


def _counts_so_far(problems: Sequence[Problem], rollouts: Rollouts | None) -> np.ndarray:
    """Rollouts that each problem has had in this round, (P,)."""
    if rollouts is None:
        return np.zeros(len(problems), dtype=np.int64)
    ids, counts = np.unique(rollouts.problem, return_counts=True)
    count_of = dict(zip(ids.tolist(), counts.tolist()))
    return np.array([count_of.get(problem.id, 0) for problem in problems], dtype=np.int64)


def _spread(values: Any, rows: np.ndarray, size: int) -> np.ndarray:
    """Values of the given rows in a column of `size` rows, NaN elsewhere."""
    column = np.full(size, np.nan)
    column[rows] = values
    return column
