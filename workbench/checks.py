"""Checks of what the slots of a method return, so that a mistake is never trained on.

Every check returns the value in the form that the round goes on with. It raises ValueError, with a
message that begins with the slot's name, for a value that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from workbench.pools import Problem
from workbench.rollouts import Ragged, Rollouts
from workbench.slots import BASELINES, Selection
from workbench.utils.validation import one_of, shown, whole_number


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


def checked_counts(name: str, counts: Any, problems: int) -> np.ndarray:
    array = _array(f"allocator: {name}", "counts", counts)
    # Whole numbers of a floating-point type pass, since counts are often worked out from rates.
    fits = array.shape == (problems,) and array.dtype.kind in "iuf" and np.isfinite(array).all()
    if not fits or (array != np.floor(array)).any() or (array < 0).any():
        raise ValueError(
            f"allocator: {name} yielded counts {shown(array.tolist())}; {problems} whole numbers "
            "of at least 0 are needed"
        )
    return array.astype(np.int64)
