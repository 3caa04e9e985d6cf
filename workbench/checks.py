"""Checks of what the slots of a method return, so that a mistake is never trained on.

Every check returns the value in the form that the round goes on with. It raises ValueError, with a
message that begins with the slot's name, for a value that does not fit, and NonFinite for
advantages that are no finite numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.policies import Plan
from workbench.pools import Problem
from workbench.rollouts import NonFinite, Ragged, Rollouts
from workbench.slots import BASELINES, Selection
from workbench.utils.descriptions import compose
from workbench.utils.validation import one_of, shown, whole_number

if TYPE_CHECKING:
    from workbench.methods import Method

MOST_ROLLOUTS = 10**6  # of one request, whose tokens all have to be in memory


def checked_problems(
    slot: str, problems: Any, taken: frozenset[str] = frozenset(), most: int | None = None
) -> list[Problem]:
    """The problems as a list.

    A round begins with `most` problems where that is given, and with at least one. In the middle of
    a round, where others are `taken` already, there may be fewer, since the pool may have no more.
    """
    if not isinstance(problems, Iterable):
        raise ValueError(f"{slot}: it returned {shown(problems)}; a list of problems is needed")
    problems = list(problems)
    if not problems and not taken:
        raise ValueError(f"{slot}: it chose no problems; a round needs at least one")
    if most is not None and (len(problems) > most or (len(problems) < most and not taken)):
        raise ValueError(f"{slot}: it chose {len(problems)} problems; {most} were asked for")
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


def check_verdict(method: Method, rollouts: Rollouts) -> None:
    """Raise ValueError where a slot must know which rollouts are correct and nothing says so."""
    if rollouts.judged:
        return
    for slot, value in method.learning().items():
        if value.reads_verdict:
            raise ValueError(
                f"{slot}={compose(value)} asks which rollouts are correct, and their rewards come "
                "without a verdict; let the verifier return Scores.graded(rewards, solved=...), "
                "with the reward from which a response counts as right"
            )


def checked_plan(course: Any, plan: Any, problem: np.ndarray, limit: int) -> Plan:
    """A course's plan for rollouts of the problems (R,), in responses of `limit` tokens at most."""
    who = f"course: {shown(course)}"
    if plan is None:
        return Plan()
    if not isinstance(plan, Plan):
        raise ValueError(f"{who}.plan returned {shown(plan)}; it must return a Plan, or None")
    if plan.stop is not None and not callable(plan.stop):
        raise ValueError(f"{who}: stop={shown(plan.stop)}; a function is needed, or None")
    if plan.prefixes is None:
        if plan.logprobs is not None:
            raise ValueError(f"{who}: its log-probabilities come without prefixes")
        return plan
    lengths = plan.prefixes.lengths
    if len(lengths) != len(problem):
        raise ValueError(f"{who}: {len(lengths)} prefixes came for {len(problem)} rollouts")
    longest = int(lengths.argmax()) if len(lengths) else 0
    if len(lengths) and lengths[longest] >= limit:
        raise ValueError(
            f"{who}: a rollout of problem {str(problem[longest])!r} would start with "
            f"{lengths[longest]} tokens, and a response has {limit} at most (max_new_tokens); a "
            "prefix must leave room for one more"
        )
    for name in ("logprobs", "entropies"):
        values = getattr(plan, name)
        if values is not None and not np.array_equal(values.offsets, plan.prefixes.offsets):
            raise ValueError(f"{who}: {name} must have one number for each token of the prefixes")
    return plan


def checked_counts(who: str, counts: Any, problems: int) -> np.ndarray:
    """An allocator's counts (P,) as int64."""
    array = _array(who, "counts", counts)
    # Whole numbers of a floating-point type pass, since counts are often worked out from rates.
    fits = array.shape == (problems,) and array.dtype.kind in "iuf" and np.isfinite(array).all()
    if not fits or (array != np.floor(array)).any() or (array < 0).any():
        raise ValueError(
            f"{who} yielded counts {shown(array.tolist())}; {problems} whole numbers of at least 0 "
            "are needed"
        )
    if array.sum() > MOST_ROLLOUTS:
        raise ValueError(
            f"{who} asked for {int(array.sum())} rollouts at once; {MOST_ROLLOUTS} are allowed"
        )
    return array.astype(np.int64)


def checked_rows(who: str, rows: Any, size: int, ordered: bool = True) -> np.ndarray:
    """Rows of a table as int64, ascending if `ordered`; a mask of bool is turned into rows."""
    array = _array(who, "rows", rows)
    if array.dtype == bool and array.shape == (size,):
        return np.flatnonzero(array)
    # NumPy makes an array of floats of an empty list, which is no mistake of the slot.
    fits = array.ndim == 1 and (array.dtype.kind in "iu" or not len(array))
    if not fits or len(np.unique(array)) < len(array) or not np.isin(array, range(size)).all():
        raise ValueError(
            f"{who}: rows={shown(array.tolist())}; whole numbers from 0 to {size - 1}, each at "
            f"most once, are needed, or a mask of {size} bools"
        )
    array = array.astype(np.int64)
    return np.sort(array) if ordered else array


def checked_join(replay: Any, joined: Any, rollouts: Rollouts) -> tuple[Rollouts, np.ndarray]:
    """The table and the candidates that replay returned for the round's `rollouts`: a table that
    begins with these rollouts, and rows of it.
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
    """The selection among the `pool` of candidates, with rows in ascending order."""
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
        weights = _numbers(who, "weights", weights, len(rows))
        if (weights < 0).any():
            raise ValueError(f"{who}: weights={shown(weights)}; numbers of at least 0 are needed")
        weights = weights[order]
    if not isinstance(selection.columns, Mapping):
        raise ValueError(
            f"{who}: columns={shown(selection.columns)}; a dict of names and numbers is needed"
        )
    for name in selection.columns:
        if name in pool:
            raise ValueError(f"{who}: column {name!r} is there already; choose another name")
    columns = {
        name: _numbers(who, f"column {name!r}", values, len(pool), finite=False)
        for name, values in selection.columns.items()
    }
    if selection.mini_batch is not None:
        whole_number(f"{who}: mini_batch", selection.mini_batch, 1)
    one_of(f"{who}: baseline", selection.baseline, BASELINES)
    return Selection(rows[order], weights, columns, selection.mini_batch, selection.baseline)


def checked_advantages(advantage: Any, values: Any, rollouts: Rollouts) -> np.ndarray | Ragged:
    """Advantages as float64, one for each rollout, or as a Ragged with one for each token.

    NonFinite, with whole groups of rollouts, where some of them are not finite.
    """
    who = f"advantage: {shown(advantage)}"
    if isinstance(values, Ragged):
        if not np.array_equal(values.offsets, rollouts.response.offsets):
            raise ValueError(f"{who}: one number for each response token is needed in a Ragged")
        _numbers(who, "advantages", values.values, len(values.values), finite=False)
        of_rollouts = values.means()
    else:
        values = of_rollouts = _numbers(who, "advantages", values, len(rollouts), finite=False)
    # A response without any token has no mean of its tokens' advantages.
    finite = np.isfinite(of_rollouts) | ((rollouts.lengths == 0) & isinstance(values, Ragged))
    if not finite.all():
        caused = np.isin(rollouts.problem, rollouts.problem[~finite])
        raise NonFinite(
            f"{who}: the advantages of {int((~finite).sum())} rollouts are not finite",
            rollouts.assign(advantage=of_rollouts).take(caused),
        )
    return values


def _numbers(who: str, what: str, values: Any, size: int, finite: bool = True) -> np.ndarray:
    """The values as float64 (size,), NaN and infinite ones only where `finite` is False."""
    array = _array(who, what, values)
    fits = array.dtype.kind in "biuf" and array.shape == (size,)
    if not fits or (finite and not np.isfinite(array).all()):
        kind = "finite numbers" if finite else "numbers"
        raise ValueError(f"{who}: {what}={shown(values)}; {size} {kind} are needed")
    return array.astype(np.float64)


def _array(who: str, what: str, values: Any) -> np.ndarray:
    """The values as an array; ValueError where they are lists of different lengths."""
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"{who}: {what}={shown(values)}; an array is needed") from None
