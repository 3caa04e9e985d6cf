"""How a published claim is measured on recorded runs.

Each function below, called with the labels of the runs to compare, makes a `Measure`, which a claim
of `published_claims.py` holds. Several labels in a tuple are several pairs of arm and baseline,
which are averaged within each seed.

What a budget or a target is counted in, `unit`, is "round", "rollouts", "flops" or "seconds", the
name of a machine of `cost.MACHINES`, or "time": `times.OwnPrice`, where seconds cannot be compared.
A `column` is one of the rounds table, a machine, "time", or "update_time" (`times.update_time`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from papers.standings import common_target
from papers.times import OwnPrice, update_time
from workbench.analysis import difficulty
from workbench.analysis.cost import MACHINES
from workbench.analysis.curves import Curve, Unit, common_budget, each, read
from workbench.analysis.intervals import LEVEL, Measurement
from workbench.analysis.runs import by_seed, one_setting
from workbench.analysis.targets import crossing
from workbench.records import Record
from workbench.utils.validation import one_of

__all__ = [
    "BySeed",
    "Measure",
    "Released",
    "accuracy",
    "against_number",
    "change",
    "difference",
    "share",
    "to_target",
    "unsolved_at_equal_numbers",
    "unsolved_at_last_visit",
    "unsolved_shares",
]

Runs = Mapping[str, Sequence[Record]]
# One label, or several whose pairs are averaged.
Labels = str | tuple[str, ...]
LAST_ROUND = 2**62  # later than any round: to the end of the run
# Units of spending that are computed from a rounds table. Each is a column as well.
UNITS: dict[str, Unit] = {
    "time": OwnPrice(),
    **{name: machine for name, machine in MACHINES.items() if name != "flops"},
}
COMPUTED: dict[str, Callable[[pd.DataFrame], np.ndarray]] = {
    **{name: unit.per_round for name, unit in UNITS.items()},
    "update_time": update_time,
}


@dataclass(frozen=True)
class BySeed:
    """A quantity seed by seed.

    Attributes
    ----------
    values : dict from seed to number
    scale : {"linear", "ratio", "percent"}
        See `intervals.Measurement`.
    censored, censored_baseline : sets of seeds
        Whose value is only a lower, or only an upper, bound.
    """

    values: dict[int, float]
    scale: str = "linear"
    censored: set[int] = field(default_factory=set)
    censored_baseline: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Measure:
    """Which runs are compared, and how.

    Attributes
    ----------
    arm, baseline : str or tuple of str
        Labels of the runs, one baseline for each arm. A measure of one method alone has an empty
        baseline.
    of_pair : function
        From the records of an arm and of its baseline to a `BySeed`.
    unit, budget : str, float
        Where on the way the gain is read that published sizes are scaled by, as in `accuracy`.
    gain_of : str or tuple of str
        Whose gain that is; empty for the baseline's.
    """

    arm: Labels
    baseline: Labels
    of_pair: Callable[[list[Record], list[Record]], BySeed]
    unit: str = "round"
    budget: float = 1.0
    gain_of: Labels = ""

    def measured(self, runs: Runs, level: float = LEVEL) -> Measurement:
        """The quantity, averaged over pairs within each seed.

        Parameters
        ----------
        runs : dict from label to records
        level : float
            Probability of the interval.

        Raises
        ------
        ValueError
            When an arm is missing, or runs cannot be compared.
        """
        parts = [self.of_pair(arm, baseline) for arm, baseline in self._pairs(runs)]
        return _averaged(parts, level)

    def gain(self, runs: Runs, level: float = LEVEL) -> Measurement:
        """What the baseline gained over its start by the budget of the claim, in points.

        It has the seeds of `measured`, so that the two can be compared seed by seed.
        """
        named = _labels(self.gain_of)
        parts = []
        for i, (arm_runs, baseline_runs) in enumerate(self._pairs(runs)):
            if named and not runs.get(named[i]):
                raise ValueError(f"no runs of {named[i]}")
            of = one_setting(runs[named[i]], named[i]) if named else baseline_runs
            # Read together, so that all three have one grid and the budget is one that all of them
            # reached.
            curves = read({"arm": arm_runs, "baseline": baseline_runs, "gain of": of})
            unit = _unit(self.unit)
            spent = common_budget(curves, unit) * self.budget
            gains = {}
            for seed in _common(curves["arm"], curves["baseline"]):
                curve = curves["gain of"][seed]
                gains[seed] = 100 * (curve.score_at(unit, spent) - curve.scores[0])
            parts.append(BySeed(gains))
        return _averaged(parts, level)

    def _pairs(self, runs: Runs) -> list[tuple[list[Record], list[Record]]]:
        """Records of arm and baseline for every pair; without a baseline, the second is empty."""
        names = _labels(self.arm)
        # Claims about one method alone, such as a share of its time, name no baseline.
        baselines = _labels(self.baseline) or ("",) * len(names)
        if len(names) != len(baselines):
            raise ValueError(
                f"arm={names}, baseline={baselines}: one baseline for each arm is needed"
            )
        missing = [name for name in [*names, *baselines] if name and not runs.get(name)]
        if missing:
            raise ValueError(f"no runs of {', '.join(dict.fromkeys(missing))}")
        pairs = []
        for name, baseline in zip(names, baselines):
            baseline_runs = one_setting(runs[baseline], baseline) if baseline else []
            pairs.append((one_setting(runs[name], name), baseline_runs))
        return pairs


@dataclass(frozen=True, kw_only=True)
class Released:
    """The same comparison in the runs that the authors of PODS released.

    Attributes
    ----------
    family : str
        Model and training set, or "a100s" or "h100s".
    arm, baseline : str
        Names of settings, see `pods.released_runs`.
    at : float
        Where on the way they are compared.
    unit : {"hours", "steps"}
        What `at` is counted in.
    """

    family: str
    arm: str
    baseline: str
    at: float
    unit: str


def accuracy(
    *,
    arm: Labels,
    baseline: Labels,
    unit: str,
    budget: float = 1.0,
    gain_of: Labels = "",
    checkpoint: str = "last",
) -> Measure:
    """Held-out score of the arm minus the baseline's at equal cost, in points.

    Parameters
    ----------
    arm, baseline, unit
        See the module.
    budget : float
        Share of the budget that both arms reached; 1 for all of it.
    gain_of : str or tuple of str
        The runs whose gain scales the published sizes; empty for the baseline.
    checkpoint : {"last", "best"}
        Whether a run counts with its score at the budget, or with its best evaluation up to there.
    """
    one_of("checkpoint", checkpoint, ("last", "best"))

    def of_pair(arm_runs: list[Record], baseline_runs: list[Record]) -> BySeed:
        curves = read({"arm": arm_runs, "baseline": baseline_runs})
        counted = _unit(unit)
        # A claim names a share of what both arms reached, since runs differ in how long they are.
        spent = common_budget(curves, counted) * budget
        values = {}
        for seed in _common(curves["arm"], curves["baseline"]):
            pair = (curves["arm"][seed], curves["baseline"][seed])
            scores = [curve.score_at(counted, spent) for curve in pair]
            if checkpoint == "best":
                scores = [
                    max(score, *curve.scores[curve.places(counted) <= spent])
                    for score, curve in zip(scores, pair)
                ]
            values[seed] = 100 * (scores[0] - scores[1])
        return BySeed(values)

    return Measure(arm, baseline, of_pair, unit=unit, budget=budget, gain_of=gain_of)


def against_number(*, arm: Labels, column: str, number: float, rounds: int) -> Measure:
    """By how many percent the mean of a column in the first rounds lies above a paper's number."""

    def of_pair(arm_runs: list[Record], _: list[Record]) -> BySeed:
        values = {}
        for record in arm_runs:
            counted = record.rounds[record.rounds["round"] <= rounds]
            values[record.seed] = 100 * (float(counted[column].mean()) / number - 1)
        return BySeed(values, "percent")

    return Measure(arm, "", of_pair)


def change(
    *,
    arm: Labels,
    baseline: Labels,
    column: str,
    from_epoch: int = 1,
    rounds: tuple[int, int] | None = None,
) -> Measure:
    """By how many percent the mean of a column lies above the baseline's.

    Parameters
    ----------
    arm, baseline, column
        See the module.
    from_epoch : int
        The first epoch that counts, 1 for all rounds.
    rounds : (first, last), optional
        The rounds that count, in place of an epoch.
    """

    def of_pair(arm_runs: list[Record], baseline_runs: list[Record]) -> BySeed:
        means = _column_means(arm_runs, baseline_runs, column, from_epoch, rounds)
        values = {seed: 100 * (mean / rival - 1) for seed, (mean, rival) in means.items()}
        return BySeed(values, "percent")

    return Measure(arm, baseline, of_pair)


def difference(
    *,
    arm: Labels,
    baseline: Labels,
    column: str,
    from_epoch: int = 1,
    rounds: tuple[int, int] | None = None,
) -> Measure:
    """By how many points the mean of a column of shares lies above the baseline's.

    Parameters
    ----------
    arm, baseline, column, from_epoch, rounds
        As in `change`.
    """

    def of_pair(arm_runs: list[Record], baseline_runs: list[Record]) -> BySeed:
        means = _column_means(arm_runs, baseline_runs, column, from_epoch, rounds)
        return BySeed({seed: 100 * (mean - rival) for seed, (mean, rival) in means.items()})

    return Measure(arm, baseline, of_pair)


def share(*, arm: Labels, columns: Sequence[str]) -> Measure:
    """How many percent of a run's seconds some columns take together."""

    def of_pair(arm_runs: list[Record], _: list[Record]) -> BySeed:
        values = {}
        for record in arm_runs:
            rounds = record.rounds
            missing = [column for column in columns if column not in rounds]
            if missing:
                raise ValueError(f"{record.path}: no column {', '.join(missing)}")
            # All claimed columns are summed before dividing: it is their share together that is
            # published.
            part = sum(rounds[column].sum() for column in columns)
            values[record.seed] = 100 * part / rounds["seconds"].sum()
        return BySeed(values)

    return Measure(arm, "", of_pair)


def to_target(*, arm: Labels, baseline: Labels, unit: str, target: float = 0.8) -> Measure:
    """By how many percent the cost to a target lies above the baseline's.

    Parameters
    ----------
    arm, baseline, unit
        See the module.
    target : float
        Share of the way to the highest score that all of the baseline's runs reach.
    """

    def of_pair(arm_runs: list[Record], baseline_runs: list[Record]) -> BySeed:
        curves = read({"arm": arm_runs, "baseline": baseline_runs})
        # The target comes from the baseline alone, so that the arm that is measured does not move
        # it, and from the rounds that both have: what only a longer run reaches, the shorter one
        # cannot.
        last = min(int(curve.rounds[-1]) for curve in each(curves))
        until = {seed: _until(curve, last) for seed, curve in curves["baseline"].items()}
        score = common_target({"baseline": until}, share=target)
        ratios = BySeed({}, "percent")
        for seed in _common(curves["arm"], curves["baseline"]):
            crossed = {
                label: crossing(curve[seed].places(_unit(unit)), curve[seed].scores, score)
                for label, curve in curves.items()
            }
            ratios.values[seed] = 100 * (crossed["arm"].place / crossed["baseline"].place - 1)
            # A run that ended early counts with all it spent, and is marked, since that is only a
            # bound.
            if not crossed["arm"].reached:
                ratios.censored.add(seed)
            if not crossed["baseline"].reached:
                ratios.censored_baseline.add(seed)
        return ratios

    return Measure(arm, baseline, of_pair)


def unsolved_at_last_visit(*, arm: Labels, baseline: Labels) -> Measure:
    """By how many percent more problems than the baseline's have no right rollout at their last
    visit, read at equal numbers of rollouts.
    """

    def of_pair(arm_runs: list[Record], baseline_runs: list[Record]) -> BySeed:
        frames = difficulty.outcomes({"arm": arm_runs, "baseline": baseline_runs})
        rates = difficulty.last_rates(frames, equal=True)
        values = {}
        for seed in _common(rates["arm"], rates["baseline"]):
            # Of the problems at their last visit, those without a right rollout.
            shares = {label: float((last[seed] == 0).mean()) for label, last in rates.items()}
            values[seed] = 100 * (shares["arm"] / shares["baseline"] - 1)
        return BySeed(values, "percent")

    return Measure(arm, baseline, of_pair)


def unsolved_at_equal_numbers(*, arm: Labels, baseline: Labels, from_epoch: int = 1) -> Measure:
    """By how many percent more visits than the baseline's have no right rollout, where equally many
    rollouts are read of every visit.
    """

    def of_pair(arm_runs: list[Record], baseline_runs: list[Record]) -> BySeed:
        frames = difficulty.outcomes({"arm": arm_runs, "baseline": baseline_runs})
        records = by_seed(arm_runs)
        values = {}
        for seed in _common(frames["arm"], frames["baseline"]):
            first = _first_round(records[seed], from_epoch)
            pair = [frames[label][seed] for label in ("arm", "baseline")]
            shares = unsolved_shares([part[part["round"] >= first] for part in pair])
            values[seed] = 100 * (shares[0] / shares[1] - 1)
        return BySeed(values, "percent")

    return Measure(arm, baseline, of_pair)


def unsolved_shares(frames: Sequence[pd.DataFrame]) -> list[float]:
    """Share of visits without a right rollout, of several runs at equal numbers of rollouts.

    As many rollouts are read of every visit as the shortest visit of any run has. With a number of
    its own for each visit, a run that samples until the first success would seem to solve more: its
    short visits are those that ended with one.

    Parameters
    ----------
    frames : list of DataFrame
        Rollouts of runs that share their problem order. Visits (problem and round) that all have
        are read.

    Returns
    -------
    list of float, one a frame
    """
    keys = ["problem", "round"]
    sizes = [frame.groupby(keys).size() for frame in frames]
    common = pd.concat(sizes, axis=1, join="inner")
    if common.empty:
        raise ValueError("the runs have no visit in common: they drew other problems")
    fewest = common.min(axis=None)
    shares = []
    for frame in frames:
        there = frame.set_index(keys).index.isin(common.index)
        part = frame[there]
        part = part[part.groupby(keys).cumcount() < fewest]
        shares.append(float((~part.groupby(keys)["correct"].any()).mean()))
    return shares


def _averaged(parts: Sequence[BySeed], level: float) -> Measurement:
    """The mean of several pairs of arms within each seed that all of them have."""
    # A seed counts with all pairs or not at all, or the pairs would have other weights in each
    # seed.
    seeds = sorted(set.intersection(*(set(part.values) for part in parts)))
    if not seeds:
        raise ValueError("the arms have no seed in common")
    scale = parts[0].scale
    values = []
    for seed in seeds:
        # One value a pair, averaged on the scale that its kind of number is averaged on.
        of_seed = np.array([part.values[seed] for part in parts])
        values.append(Measurement(of_seed, scale=scale).value)
    return Measurement(
        np.array(values),
        scale=scale,
        # A mean of several pairs is a bound as soon as one of them is.
        censored=sum(any(seed in part.censored for part in parts) for seed in seeds),
        censored_baseline=sum(
            any(seed in part.censored_baseline for part in parts) for seed in seeds
        ),
        level=level,
    )


def _column_means(
    arm_runs: list[Record],
    baseline_runs: list[Record],
    column: str,
    from_epoch: int,
    rounds: tuple[int, int] | None,
) -> dict[int, tuple[float, float]]:
    """Means of a column over the rounds that two runs of a seed both have, from an epoch on."""
    arm = by_seed(arm_runs)
    baseline = by_seed(baseline_runs)
    means = {}
    for seed in _common(arm, baseline):
        first, last = rounds or (_first_round(arm[seed], from_epoch), LAST_ROUND)
        tables = [record[seed].rounds for record in (arm, baseline)]
        # Most columns move as training goes on, so the longer run is cut where the shorter one
        # ends.
        last = min(last, *(int(table["round"].max()) for table in tables))
        if first > last:
            raise ValueError(
                f"{arm[seed].path}: both runs have {last} rounds, and the claim begins at {first}"
            )
        pair = []
        for record, table in zip((arm[seed], baseline[seed]), tables):
            if column in COMPUTED:
                values = COMPUTED[column](table)
            elif column in table:
                values = table[column].to_numpy()
            else:
                raise ValueError(f"{record.path}: no column {column}")
            pair.append(float(values[table["round"].between(first, last)].mean()))
        means[seed] = (pair[0], pair[1])
    return means


def _unit(name: str) -> str | Unit:
    """What a claim counts its budget or target in."""
    return UNITS.get(name, name)


def _first_round(record: Record, epoch: int) -> int:
    """The first round of an epoch."""
    # Rounds count from 1. Epochs only matter where a claim begins after the first: a lab with
    # endless problems has none, and needs none for a claim about all rounds.
    length = rounds_per_epoch(record) if epoch > 1 else 0
    if length is None:
        raise ValueError(f"{record.path}: its lab has no pool, so it has no epoch {epoch}")
    return (epoch - 1) * length + 1


def _until(curve: Curve, last: int) -> Curve:
    """A curve without the evaluations after a round."""
    keep = curve.rounds <= last
    return replace(curve, rounds=curve.rounds[keep], scores=curve.scores[keep])


def _common(arm: Mapping[int, Any], baseline: Mapping[int, Any]) -> list[int]:
    return sorted(set(arm) & set(baseline))


def _labels(labels: Labels) -> tuple[str, ...]:
    """The labels as a tuple, without empty ones."""
    listed = (labels,) if isinstance(labels, str) else labels
    return tuple(name for name in listed if name)


def rounds_per_epoch(record: Record) -> int | None:
    """Rounds in which a run goes through its pool once; None where the lab has no pool.

    The last round of an epoch may take some problems of the next one.
    """
    manifest = record.manifest
    pool = (manifest.get("lab") or {}).get("pool")
    problems = manifest.get("arguments", {}).get("problems_per_round")
    if pool is None or problems is None:
        return None
    # Rounded up: the round in which the pool comes to its end still belongs to the epoch.
    return -(-int(pool) // int(problems))
