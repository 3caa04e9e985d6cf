"""Checks of what the slots of a method return, so that a mistake is never trained on.

Every check returns the value in the form that the round goes on with. It raises ValueError, with a
message that begins with the slot's name (the argument `who`), for a value that does not fit, and
NonFinite for advantages that are no finite numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.policies import Plan
from workbench.pools import Problem, unique_problems
from workbench.rollouts import NonFinite, Ragged, Rollouts
from workbench.slots import BASELINES, Selection
from workbench.utils.validation import brief, one_of, whole_number

MOST_ROLLOUTS = 10**6  # of one request, whose tokens all have to be in memory


def checked_problems(
    slot: str, problems: Any, taken: frozenset[str] = frozenset(), most: int | None = None
) -> list[Problem]:
    """The problems as a list.

    At the start of a round there are exactly `most` of them, or at least one where `most` is None.
    In the middle of a round, where others are `taken` already, there may be fewer, since the pool
    may have no more.
    """
    if problems is None:
        raise ValueError(f"{slot}: it returned None; a list of problems of the pool is needed")
    problems = unique_problems(slot, problems, taken)
    least = 0 if taken else most or 1
    if not least <= len(problems) <= (most or len(problems)):
        raise ValueError(f"{slot}: it chose {len(problems)} problems; {most or 1} were asked for")
    return problems


def checked_plan(course: Any, plan: Any, rollouts: int, limit: int) -> Plan:
    """A course's plan for so many rollouts, in responses of `limit` tokens at most."""
    who = f"course: {brief(course)}"
    plan = _check_type(f"{who}.plan", Plan() if plan is None else plan, Plan)
    if plan.stop is not None and not callable(plan.stop):
        raise ValueError(f"{who}: stop={brief(plan.stop)}; a function is needed, or None")
    nothing = Ragged.of([[]] * rollouts, np.int32)
    prefixes = nothing if plan.prefixes is None else plan.prefixes
    lengths = prefixes.lengths
    if len(lengths) != rollouts:
        raise ValueError(f"{who}: {len(lengths)} prefixes came for {rollouts} rollouts")
    if (lengths >= limit).any():
        raise ValueError(
            f"{who}: a rollout would start with {lengths.max()} tokens, and a response has {limit} "
            "at most (max_new_tokens)"
        )
    for name, values in (("logprobs", plan.logprobs), ("entropies", plan.entropies)):
        if values is not None and not np.array_equal(values.offsets, prefixes.offsets):
            raise ValueError(f"{who}: {name} must have one number for each token of the prefixes")
    return plan


def checked_counts(who: str, counts: Any, problems: int) -> np.ndarray:
    """An allocator's counts (P,) as int64."""
    array = checked_numbers(who, "counts", counts, problems, low=0)
    # Whole numbers of a floating-point type pass, since counts are often worked out from rates.
    if (array != np.floor(array)).any():
        raise ValueError(f"{who}: counts={brief(array.tolist())}; whole numbers are needed")
    if array.sum() > MOST_ROLLOUTS:
        raise ValueError(
            f"{who} asked for {int(array.sum())} rollouts at once; {MOST_ROLLOUTS} are allowed"
        )
    return array.astype(np.int64)


def checked_rows(who: str, rows: Any, size: int, ordered: bool = True) -> np.ndarray:
    """Rows of a table as int64, ascending if `ordered`; a mask of bool is turned into rows."""
    array = _array(rows)
    if array.dtype == bool and array.shape == (size,):
        return np.flatnonzero(array)
    # NumPy makes an array of floats of an empty list, which is no mistake of the slot.
    fits = array.ndim == 1 and (array.dtype.kind in "iu" or not len(array))
    if not fits or len(np.unique(array)) < len(array) or not np.isin(array, range(size)).all():
        raise ValueError(
            f"{who}: rows={brief(rows)}; whole numbers from 0 to {size - 1}, each at "
            f"most once, are needed, or a mask of {size} bools"
        )
    array = array.astype(np.int64)
    return np.sort(array) if ordered else array


def checked_join(replay: Any, joined: Any, rollouts: Rollouts) -> tuple[Rollouts, np.ndarray]:
    """The table and the candidates that replay returned for the round's `rollouts`: a table that
    begins with these rollouts, and rows of it.
    """
    who = f"replay: {brief(replay)}"
    joined = _check_type(f"{who}.join", joined, tuple)
    table, candidates = joined if len(joined) == 2 else (joined, None)
    _check_type(f"{who}.join", table, Rollouts)
    # The column of problems stands for the whole rows here. Comparing it finds old rows that were
    # put first, and rows that were dropped.
    if not np.array_equal(table.problem[: len(rollouts)], rollouts.problem):
        raise ValueError(
            f"{who}: its table does not begin with the {len(rollouts)} rollouts of the round; old "
            "ones are appended to them"
        )
    # The order of the candidates is left to replay: `Surplus` puts the groups that waited first.
    return table, checked_rows(who, candidates, len(table), ordered=False)


def checked_selection(selector: Any, selection: Any, candidates: Rollouts) -> Selection:
    """The selection among a round's candidates, with rows in ascending order."""
    who = f"selector: {brief(selector)}"
    _check_type(f"{who}.select", selection, Selection)
    # Not sorted by the check itself, since the weights have to follow the same order.
    rows = checked_rows(who, selection.rows, len(candidates), ordered=False)
    order = np.argsort(rows, kind="stable")
    weights = selection.weights
    if weights is not None:
        weights = checked_numbers(who, "weights", weights, len(rows), low=0)[order]
    columns = {}
    for name, values in _check_type(f"{who}: columns", selection.columns, Mapping).items():
        if name in candidates:
            raise ValueError(f"{who}: column {name!r} is there already; choose another name")
        columns[name] = checked_numbers(who, f"column {name!r}", values, len(candidates), None)
    if selection.mini_batch is not None:
        whole_number(f"{who}: mini_batch", selection.mini_batch, 1)
    one_of(f"{who}: baseline", selection.baseline, BASELINES)
    return Selection(rows[order], weights, columns, selection.mini_batch, selection.baseline)


def checked_advantages(who: str, values: Any, rollouts: Rollouts) -> np.ndarray | Ragged:
    """Advantages as float64, one for each rollout, or as a Ragged with one for each token.

    NonFinite, with whole groups of rollouts, where some of them are not finite.
    """
    if isinstance(values, Ragged):
        if not np.array_equal(values.offsets, rollouts.response.offsets):
            raise ValueError(f"{who}: advantages must be one number for each response token")
        of_rollouts = values.means()
    else:
        values = of_rollouts = checked_numbers(who, "advantages", values, len(rollouts), None)
    # A response without any token has no mean of its tokens' advantages.
    finite = np.isfinite(of_rollouts) | ((rollouts.lengths == 0) & isinstance(values, Ragged))
    if not finite.all():
        caused = np.isin(rollouts.problem, rollouts.problem[~finite])
        raise NonFinite(
            f"{who}: the advantages of {int((~finite).sum())} rollouts are not finite",
            rollouts.assign(advantage=of_rollouts).take(caused),
        )
    return values


def checked_numbers(
    who: str, what: str, values: Any, size: int, low: float | None = -np.inf
) -> np.ndarray:
    """The values as float64 (size,), finite and at least `low`; NaN and all else with low=None."""
    array = _array(values)
    fits = array.dtype.kind in "biuf" and array.shape == (size,)
    if not fits or (low is not None and not (np.isfinite(array) & (array >= low)).all()):
        kinds = {None: "numbers", -np.inf: "finite numbers"}
        kind = kinds.get(low, f"finite numbers of at least {low}")
        raise ValueError(f"{who}: {what}={brief(values)}; {size} {kind} are needed")
    return array.astype(np.float64)


def _check_type(who: str, value: Any, kind: type) -> Any:
    """What a slot returned; ValueError unless it is of a kind."""
    if not isinstance(value, kind):
        raise ValueError(f"{who} returned {brief(value)}; a {kind.__name__} is needed")
    return value


def _array(values: Any) -> np.ndarray:
    """The values as an array; lists of different lengths as one that fits nowhere."""
    try:
        return np.asarray(values)
    except ValueError:
        return np.asarray(None)
