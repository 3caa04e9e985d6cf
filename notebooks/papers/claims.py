"""Published claims, measured on recorded runs.

`data/published/claims.csv` has a row for every claim; its columns are those of `verdicts.Claim`,
and these, which say how to measure it:

    arm, baseline   labels of the records; several pairs, separated by semicolons, are averaged
                    within each seed
    metric          a name of `METRICS`
    unit            what a budget or a target is counted in: round, rollouts, flops, seconds, or
                    time (`cost.OwnPrice`, where seconds cannot be compared)
    column          a column of the rounds table, or time (as above) or update_time
                    (`update_time`); for "share" several columns, separated by semicolons
    from_epoch      the first epoch that counts, 1 for all rounds
    rounds          the rounds that count, as "70-90", in place of an epoch
    budget          share of the budget that both arms reached, 1 for all of it
    target          share of the way to the highest score that all of the baseline's runs reach
    gain_of         the label whose gain scales the published sizes; empty for the baseline

The same claims can be put to any set of runs whose labels are these: another base model, another
batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from papers import difficulty
from papers.aero import unsolved_shares
from papers.times import OwnPrice, update_time
from papers.verdicts import AGREES, CANNOT_TELL, SMALLER, Claim, Finding, judge, kind
from workbench.analysis.courses import Course, Unit, common_budget, each, read
from workbench.analysis.intervals import LEVEL, Measurement
from workbench.analysis.runs import by_seed, one_setting
from workbench.analysis.targets import common_target, crossing
from workbench.records import Record

__all__ = ["METRICS", "BySeed", "carried_over", "findings", "judged", "measure"]

Runs = Mapping[str, Sequence[Record]]
LAST_ROUND = 2**62  # later than any round: to the end of the run
# Columns that are computed from a rounds table. "time" is a unit of spending as well.
TIME = OwnPrice()
COMPUTED: dict[str, Callable[[pd.DataFrame], np.ndarray]] = {
    "time": TIME.per_round,
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


def judged(claims: Sequence[Claim], runs: Runs, level: float = LEVEL) -> pd.DataFrame:
    """Measure every claim and decide it: the table of `verdicts.judge`.

    Parameters
    ----------
    claims : list of Claim
        Of `verdicts.read_claims`.
    runs : dict from label to records
        Labels that no claim names are passed over; a claim whose labels are missing, or whose runs
        cannot be compared, ends in "cannot tell" with the reason.
    level : float
        Probability of the intervals.
    """
    return judge(claims, findings(claims, runs, level))


def findings(claims: Sequence[Claim], runs: Runs, level: float = LEVEL) -> list[Finding]:
    """What was measured for each claim, or why it could not be."""
    results = []
    for claim in claims:
        try:
            results.append(measure(claim, runs, level))
        # A claim that these runs cannot answer must not stop the others; the message becomes its
        # reason. Any other error is a fault of the code and goes on.
        except ValueError as error:
            results.append(Finding(reason=str(error)))
    return results


def measure(claim: Claim, runs: Runs, level: float = LEVEL) -> Finding:
    """One claim measured on recorded runs.

    Raises
    ------
    ValueError
        When an arm is missing, runs cannot be compared, or a column is not there.
    """
    settings = claim.settings or {}
    metric = settings.get("metric", "")
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r}: allowed are {', '.join(METRICS)}")
    pairs = _pairs(settings, runs)
    parts = [METRICS[metric](arm, baseline, settings) for arm, baseline in pairs]
    measured = _averaged(parts, level)
    # Only published sizes that are scaled need the gain, and claims without it may have no
    # baseline.
    gain = _gain(settings, runs, pairs) if claim.published_gain else None
    return Finding(measured, gain)


def carried_over(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Does a verdict carry over? The verdicts of several sets of runs side by side.

    Parameters
    ----------
    tables : dict from title to a table of `judged`
        The same claims on other subjects or regimes.

    Returns
    -------
    DataFrame, a row a claim
        paper, claim, one column of verdicts for each table, and same: whether all those that could
        tell say the same, where an effect that is smaller than published counts as one that agrees.
        <NA> where fewer than two of them could tell.
    """
    first = next(iter(tables.values()))
    side_by_side = first[["paper", "claim"]].copy()
    for title, table in tables.items():
        if table["claim"].tolist() != first["claim"].tolist():
            raise ValueError(f"{title}: other claims than in the first table")
        side_by_side[title] = table["verdict"].map(kind).to_numpy()
    directions = side_by_side[list(tables)].replace(SMALLER, AGREES).to_numpy()
    # A verdict that could not tell contradicts nothing, and it agrees with nothing either.
    told = [[text for text in row if text != CANNOT_TELL] for row in directions]
    same = [None if len(texts) < 2 else len(set(texts)) == 1 for texts in told]
    return side_by_side.assign(same=pd.array(same, dtype="boolean"))


# Metrics: the arm's records, the baseline's, and the claim's settings in; a number a seed out


def _accuracy(
    arm_runs: list[Record], baseline_runs: list[Record], settings: Mapping[str, str]
) -> BySeed:
    """Held-out score of the arm minus the baseline's at equal cost, in points."""
    courses = read({"arm": arm_runs, "baseline": baseline_runs}, settings.get("y") or "accuracy")
    # A claim names a share of what both arms reached, since runs differ in how long they are.
    unit = _unit(settings)
    budget = common_budget(courses, unit) * float(settings.get("budget") or 1)
    values = {}
    for seed in _common(courses["arm"], courses["baseline"]):
        arm = courses["arm"][seed].score_at(unit, budget)
        values[seed] = 100 * (arm - courses["baseline"][seed].score_at(unit, budget))
    return BySeed(values)


def _change(
    arm_runs: list[Record], baseline_runs: list[Record], settings: Mapping[str, str]
) -> BySeed:
    """By how many percent the mean of a column lies above the baseline's."""
    means = _column_means(arm_runs, baseline_runs, settings)
    return BySeed(
        {seed: 100 * (arm / baseline - 1) for seed, (arm, baseline) in means.items()}, "percent"
    )


def _difference(
    arm_runs: list[Record], baseline_runs: list[Record], settings: Mapping[str, str]
) -> BySeed:
    """By how many points the mean of a column of shares lies above the baseline's."""
    means = _column_means(arm_runs, baseline_runs, settings)
    return BySeed({seed: 100 * (arm - baseline) for seed, (arm, baseline) in means.items()})


def _share(
    arm_runs: list[Record], baseline_runs: list[Record], settings: Mapping[str, str]
) -> BySeed:
    """How many percent of a run's seconds some columns take; the baseline has no say."""
    columns = settings["column"].split(";")
    values = {}
    # All claimed columns are summed before dividing: it is their share together that is
    # published.
    for record in arm_runs:
        rounds = record.rounds
        missing = [column for column in columns if column not in rounds]
        if missing:
            raise ValueError(f"{record.path}: no column {', '.join(missing)}")
        part = sum(rounds[column].sum() for column in columns)
        values[record.manifest["seed"]] = 100 * part / rounds["seconds"].sum()
    return BySeed(values)


def _to_target(
    arm_runs: list[Record], baseline_runs: list[Record], settings: Mapping[str, str]
) -> BySeed:
    """By how many percent the cost to a target lies above the baseline's."""
    courses = read({"arm": arm_runs, "baseline": baseline_runs})
    # The target comes from the baseline alone, so that the arm that is measured does not move it,
    # and from the rounds that both have: what only a longer run reaches, the shorter one cannot.
    last = min(int(course.rounds[-1]) for course in each(courses))
    until = {seed: _until(course, last) for seed, course in courses["baseline"].items()}
    target = common_target({"baseline": until}, share=float(settings.get("target") or 0.8))
    unit = _unit(settings)
    ratios = BySeed({}, "percent")
    for seed in _common(courses["arm"], courses["baseline"]):
        crossed = {
            label: crossing(course[seed].places(unit), course[seed].scores, target)
            for label, course in courses.items()
        }
        ratios.values[seed] = 100 * (crossed["arm"].place / crossed["baseline"].place - 1)
        # A run that ended early counts with all it spent, and is marked, since that is only a
        # bound.
        if not crossed["arm"].reached:
            ratios.censored.add(seed)
        if not crossed["baseline"].reached:
            ratios.censored_baseline.add(seed)
    return ratios


def _unsolved_at_last_visit(
    arm_runs: list[Record], baseline_runs: list[Record], settings: Mapping[str, str]
) -> BySeed:
    """By how many percent more problems than the baseline's have no right rollout at their last
    visit, read at equal numbers of rollouts.
    """
    frames = difficulty.outcomes({"arm": arm_runs, "baseline": baseline_runs})
    rates = difficulty.last_rates(frames, equal=True)
    values = {}
    for seed in _common(rates["arm"], rates["baseline"]):
        # Of the problems at their last visit, those without a right rollout.
        shares = {label: float((last[seed] == 0).mean()) for label, last in rates.items()}
        values[seed] = 100 * (shares["arm"] / shares["baseline"] - 1)
    return BySeed(values, "percent")


def _unsolved_at_equal_numbers(
    arm_runs: list[Record], baseline_runs: list[Record], settings: Mapping[str, str]
) -> BySeed:
    """By how many percent more visits than the baseline's have no right rollout, where equally many
    rollouts are read of every visit.
    """
    frames = difficulty.outcomes({"arm": arm_runs, "baseline": baseline_runs})
    arm = by_seed(arm_runs)
    values = {}
    for seed in _common(frames["arm"], frames["baseline"]):
        first = _rounds(arm[seed], settings)[0]
        pair = [frames[label][seed] for label in ("arm", "baseline")]
        shares = unsolved_shares([part[part["round"] >= first] for part in pair])
        values[seed] = 100 * (shares[0] / shares[1] - 1)
    return BySeed(values, "percent")


Metric = Callable[[list[Record], list[Record], Mapping[str, str]], BySeed]
# A claim that none of these measures needs a new function here; the CSV names it.
METRICS: dict[str, Metric] = {
    "accuracy": _accuracy,
    "change": _change,
    "difference": _difference,
    "share": _share,
    "to_target": _to_target,
    "unsolved_at_equal_numbers": _unsolved_at_equal_numbers,
    "unsolved_at_last_visit": _unsolved_at_last_visit,
}


def _pairs(settings: Mapping[str, str], runs: Runs) -> list[tuple[list[Record], list[Record]]]:
    """Records of arm and baseline for every pair; a claim without a baseline has empty ones."""
    names = _labels(settings["arm"])
    # Claims about one method alone, such as "share", name no baseline.
    baselines = _labels(settings.get("baseline", "")) or [""] * len(names)
    if len(names) != len(baselines):
        raise ValueError(f"arm={names}, baseline={baselines}: one baseline for each arm is needed")
    missing = [name for name in [*names, *baselines] if name and not runs.get(name)]
    if missing:
        raise ValueError(f"no runs of {', '.join(dict.fromkeys(missing))}")
    pairs = []
    for name, baseline in zip(names, baselines):
        baseline_runs = one_setting(runs[baseline], baseline) if baseline else []
        pairs.append((one_setting(runs[name], name), baseline_runs))
    return pairs


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


def _gain(
    settings: Mapping[str, str], runs: Runs, pairs: list[tuple[list[Record], list[Record]]]
) -> float:
    """What the baseline gained over its start by the budget of the claim, in points."""
    named = _labels(settings.get("gain_of", ""))
    gains = []
    for i, (arm_runs, baseline_runs) in enumerate(pairs):
        if named and not runs.get(named[i]):
            raise ValueError(f"no runs of {named[i]}")
        of = one_setting(runs[named[i]], named[i]) if named else baseline_runs
        # Read together, so that all three have one grid and the budget is one that all of them
        # reached.
        courses = read({"arm": arm_runs, "baseline": baseline_runs, "gain of": of})
        unit = _unit(settings)
        budget = common_budget(courses, unit) * float(settings.get("budget") or 1)
        for course in courses["gain of"].values():
            # From before training to the budget, over all pairs and seeds.
            gains.append(100 * (course.score_at(unit, budget) - course.scores[0]))
    return float(np.mean(gains))


def _column_means(
    arm_runs: list[Record], baseline_runs: list[Record], settings: Mapping[str, str]
) -> dict[int, tuple[float, float]]:
    """Means of a column over the rounds that two runs of a seed both have, from an epoch on."""
    column = settings["column"]
    arm = by_seed(arm_runs)
    baseline = by_seed(baseline_runs)
    means = {}
    for seed in _common(arm, baseline):
        first, last = _rounds(arm[seed], settings)
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


def _unit(settings: Mapping[str, str]) -> str | Unit:
    """What a claim counts its budget or target in."""
    return TIME if settings["unit"] == "time" else settings["unit"]


def _rounds(record: Record, settings: Mapping[str, str]) -> tuple[int, int]:
    """The first and the last round that a claim counts."""
    if settings.get("rounds"):
        first, last = settings["rounds"].split("-")
        return int(first), int(last)
    # Rounds count from 1. Epochs only matter where a claim begins after the first: a lab with
    # endless problems has none, and needs none for a claim about all rounds.
    epoch = int(settings.get("from_epoch") or 1)
    length = rounds_per_epoch(record) if epoch > 1 else 0
    if length is None:
        raise ValueError(f"{record.path}: its lab has no pool, so it has no epoch {epoch}")
    return (epoch - 1) * length + 1, LAST_ROUND


def _until(course: Course, last: int) -> Course:
    """A course without the evaluations after a round."""
    keep = course.rounds <= last
    return replace(course, rounds=course.rounds[keep], scores=course.scores[keep])


def _common(arm: Mapping[int, Any], baseline: Mapping[int, Any]) -> list[int]:
    return sorted(set(arm) & set(baseline))


def _labels(text: str) -> list[str]:
    return [name.strip() for name in text.split(";") if name.strip()]


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
