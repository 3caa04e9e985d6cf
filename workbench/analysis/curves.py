"""The curve of a run: held-out scores, evaluation by evaluation, beside what was spent by then.

All comparisons of arms begin with `read`, which sees to it that they can be compared:

1. Every run was evaluated, and all of them on the same held-out problems.
2. All arms have one grid of evaluation rounds. Between two evaluations a score is interpolated
   linearly. A learning curve is mostly concave, so a coarse grid reads too low between its points;
   an arm that is evaluated every 16 rounds and one that is evaluated every 24 differ by that alone.
   `read` therefore keeps the evaluations that every run still going at that round has, and warns
   by a `GridWarning` where this leaves something out.

What remains is small and alike in all arms: with one grid, each arm is interpolated over equally
many of its own rounds.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from workbench.analysis.metrics import pass_at_k
from workbench.analysis.runs import arms
from workbench.records import Record
from workbench.utils.validation import brief, one_of

# What spending is counted in: a column of the rounds, or their number, and its name in a sentence.
UNITS = {
    "round": "rounds",
    "rollouts": "rollouts",
    "flops": "FLOPs",
    "seconds": "seconds of training",
    "tokens_sampled": "sampled tokens",
    "tokens_trained": "trained tokens",
    "tokens_selected": "selected tokens",
}


class GridWarning(UserWarning):
    """Evaluations were left out, because not all arms of a comparison have them."""


class Unit(Protocol):
    """What spending is counted in, besides the names of `UNITS`; see `cost.CostModel`."""

    @property
    def name(self) -> str:
        """For axes and tables."""

    def per_round(self, rounds: pd.DataFrame) -> np.ndarray:
        """What each row of a record's rounds table cost, (rounds,)."""


@dataclass(frozen=True)
class Curve:
    """One run's evaluations.

    Attributes
    ----------
    label : str
        The arm that it belongs to.
    seed : int
    rounds : (E,) int64
        Rounds after which it was evaluated; 0 is before training.
    scores : (E,) float64
        Its held-out scores there.
    table : DataFrame
        The rounds table of the record.
    path : Path
        Of the record.
    """

    label: str
    seed: int
    rounds: np.ndarray
    scores: np.ndarray
    table: pd.DataFrame
    path: Path

    def places(self, unit: str | Unit) -> np.ndarray:
        """What had been spent at each evaluation, (E,) float64."""
        numbers, totals = _totals(self.table, unit)
        if not np.isin(self.rounds, numbers).all():
            raise ValueError(f"{self.path}: rounds that were evaluated are missing")
        # Rounds are in order, so an evaluated one is found by bisection. A Series that is indexed
        # by round would be slower, and tables of many runs ask this thousands of times.
        return totals[np.searchsorted(numbers, self.rounds)]

    def score_at(self, unit: str | Unit, budget: float) -> float:
        """The score when `budget` had been spent, linear between two evaluations.

        Raises
        ------
        ValueError
            When the run's last evaluation came before.
        """
        # np.interp would silently go on with the last score, so a budget beyond it is refused
        # first.
        places = self.places(unit)
        if not 0 <= budget <= places[-1]:
            raise ValueError(
                f"budget={budget:g}: {self.path} was last evaluated at {places[-1]:g} "
                f"{name_of(unit)}"
            )
        return float(np.interp(budget, places, self.scores))


def read(groups: Any, y: str = "accuracy") -> dict[str, dict[int, Curve]]:
    """The curves of a comparison, all on one grid of evaluation rounds.

    Parameters
    ----------
    groups : Record, list of Record, or dict from label to records
        What this function has returned is taken as it is, so that several tables of the same runs
        need not read the records again.
    y : str
        "accuracy" (avg@k), "greedy", or "pass@2", "pass@8", ... up to the samples of a problem.

    Returns
    -------
    dict from label to a dict from seed to Curve

    Raises
    ------
    ValueError
        For runs without an evaluation, with other held-out problems, or without two common rounds.
    """
    # Records come in lists, and curves that were read before in dicts by seed.
    if isinstance(groups, dict) and groups and all(isinstance(v, dict) for v in groups.values()):
        return groups
    groups = arms(groups)
    # Other held-out problems make all scores incomparable, so this comes before any score is
    # read.
    comparable(groups)
    curves: dict[str, dict[int, Curve]] = {}
    for label, records in groups.items():
        curves[label] = {}
        for record in records:
            values = scores(record, y)
            found = (values.index.to_numpy(), values.to_numpy())
            curve = Curve(label, record.seed, *found, record.rounds, record.path)
            curves[label][record.seed] = curve
    return _on_one_grid(curves)


def scores(record: Record, y: str = "accuracy") -> pd.Series:
    """Held-out scores of a run, a Series indexed by round.

    Parameters
    ----------
    record : Record
    y : str
        "accuracy", "greedy" or "pass@k", as in `read`.
    """
    evals = evaluations(record)
    by_round = evals.groupby("round")
    if y == "accuracy":
        # Every problem counts the same, however many samples it has.
        return (evals["correct"] / evals["samples"]).groupby(evals["round"]).mean()
    if y == "greedy":
        return by_round["greedy"].mean()
    k = re.fullmatch(r"pass@(\d+)", y)
    if k is None:
        raise ValueError(f"y={y!r}: allowed are 'accuracy', 'greedy' and 'pass@k', such as pass@8")
    samples = int(evals["samples"].min())
    return by_round["correct"].apply(lambda correct: pass_at_k(correct, samples, int(k[1])))


def spent(record: Record, unit: str | Unit) -> pd.Series:
    """What a run had spent by the end of each round, a Series indexed by round, 0 for round 0.

    Parameters
    ----------
    record : Record
    unit : str or Unit
        "round", "rollouts" (sampled), "flops", "seconds" (of training, without evaluation),
        "tokens_sampled", "tokens_trained" (with a gradient), "tokens_selected", or a
        `cost.CostModel`.
    """
    numbers, totals = _totals(record.rounds, unit)
    return pd.Series(totals, index=numbers, name=name_of(unit))


def comparable(groups: Any) -> None:
    """ValueError unless every run was evaluated, and all on the same held-out problems."""
    known: set[str] | None = None
    for records in arms(groups).values():
        for record in records:
            problems = set(evaluations(record)["problem"].unique())
            # The first run's problems are those that all others must have.
            known = known or problems
            if problems != known:
                raise ValueError(f"{record.path}: other held-out problems than the first run has")


def common_budget(groups: Any, unit: str | Unit) -> float:
    """The largest budget that every run had reached by its last evaluation on the common grid."""
    return min(float(curve.places(unit)[-1]) for curve in each(read(groups)))


def each(curves: dict[str, dict[int, Curve]]) -> Iterable[Curve]:
    """All curves of a comparison, one after the other."""
    for by_seed in curves.values():
        yield from by_seed.values()


def of_common_seeds(arm: Mapping[int, Any], baseline: Mapping[int, Any]) -> tuple[list, list]:
    """What two arms have for the seeds that both have: two lists in the order of the seeds.

    Raises
    ------
    ValueError
        When they have no seed in common.

    Examples
    --------
    >>> of_common_seeds({0: "a", 1: "b", 2: "c"}, {2: "z", 1: "y"})
    (['b', 'c'], ['y', 'z'])
    """
    # A run without a partner says nothing of the difference.
    seeds = sorted(set(arm) & set(baseline))
    if not seeds:
        raise ValueError(f"no seed in common: {sorted(arm)} and {sorted(baseline)}")
    return [arm[seed] for seed in seeds], [baseline[seed] for seed in seeds]


def against(by_label: Mapping[str, Mapping[int, Any]], baseline: str | None) -> dict[str, tuple]:
    """What every other arm and the baseline have for the seeds that both have.

    Parameters
    ----------
    by_label : dict from label to a dict from seed to anything
    baseline : str, optional
        A label; without it nothing is compared.

    Returns
    -------
    dict from label to two lists
        As `of_common_seeds` gives them, without the arms that share no seed with the baseline.
    """
    if baseline is None:
        return {}
    one_of("baseline", baseline, by_label)
    others = by_label[baseline]
    return {
        label: of_common_seeds(by_seed, others)
        for label, by_seed in by_label.items()
        if label != baseline and by_seed.keys() & others.keys()
    }


def name_of(unit: str | Unit) -> str:
    """How a unit is called in messages and tables."""
    return unit if isinstance(unit, str) else unit.name


def evaluations(record: Record) -> pd.DataFrame:
    """The evaluations of a run; ValueError where there are none."""
    evals = record.evals
    if evals.empty:
        raise ValueError(
            f"{record.path}: never evaluated on held-out problems; run it with held_out problems "
            'and evaluate_every, or read a column of its rounds, such as "reward"'
        )
    return evals


def column_of(rounds: pd.DataFrame, name: str) -> np.ndarray:
    """A column of the rounds, (rounds,) float64; ValueError where an old record lacks it."""
    if name not in rounds:
        raise ValueError(
            f"{name}: the record has no such column; records made before it was added have to be "
            "made again"
        )
    return rounds[name].to_numpy(dtype=float)


def _totals(rounds: pd.DataFrame, unit: str | Unit) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the rounds with 0 before them, and what had been spent by the end of each."""
    if not isinstance(unit, str):
        values = np.cumsum(unit.per_round(rounds))
    elif unit == "round":
        values = rounds["round"].to_numpy(dtype=float)
    else:
        one_of("unit", unit, UNITS)
        values = np.cumsum(column_of(rounds, unit))
    # Runs are evaluated before their first round as well, when nothing has been spent.
    numbers = rounds["round"].to_numpy(dtype=int)
    return np.concatenate(([0], numbers)), np.concatenate(([0.0], values))


def _on_one_grid(curves: dict[str, dict[int, Curve]]) -> dict[str, dict[int, Curve]]:
    """Curves restricted to the rounds at which every run that was still going was evaluated."""
    # Whether a round is kept depends on all runs of all arms, not on the seeds of one arm. A run
    # that had ended by then has no say, or one short run would cut all others.
    everyone = list(each(curves))
    grids = {tuple(curve.rounds.tolist()) for curve in everyone}
    rounds = set().union(*grids)
    common = [n for n in rounds if all(n in grid or grid[-1] < n for grid in grids)]
    kept: dict[str, dict[int, Curve]] = {}
    left_out: dict[str, list[int]] = {}  # by label: seeds of an arm share their grid
    for label, by_seed in curves.items():
        kept[label] = {}
        for seed, curve in by_seed.items():
            keep = np.isin(curve.rounds, common)
            # The evaluation that every run gets at its end may lie off the grid; it is no warning.
            lost = curve.rounds[:-1][~keep[:-1]]
            if len(lost):
                left_out[label] = lost.tolist()
            # A curve needs two points. A run that is read alone may have a single evaluation.
            if keep.sum() < 2 and len(everyone) > 1:
                raise ValueError(
                    f"{curve.path}: fewer than two evaluations at rounds that all arms have; let "
                    "it go on to its next evaluation, or give all arms one evaluate_every"
                )
            kept[label][seed] = replace(curve, rounds=curve.rounds[keep], scores=curve.scores[keep])
    if left_out:
        warnings.warn(
            f"the arms were evaluated after different rounds; left out: {brief(left_out)}",
            GridWarning,
            # The line that called `read`.
            stacklevel=3,
        )
    return kept
