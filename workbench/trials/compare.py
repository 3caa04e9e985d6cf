"""Runs of any trainer, compared by the rules of a trial.

A trial makes its own runs: every arm is tuned, seeds are shared, and looks are planned. Runs that
were made elsewhere are taken as they are. They are read once, so that there is one test an arm,
corrected by Holm's method, and what is not known of them is said beside the answer.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.curves import Curve
from workbench.analysis.forecast import AHEAD, Forecast, forecast
from workbench.analysis.intervals import POWER, Measurement, holm, smallest_change, welch
from workbench.analysis.sequential import ALPHA, ROUNDING, verdicts
from workbench.analysis.sources import logs, one_a_run
from workbench.analysis.sources.columns import NO_SEED, Along, curves_of, words
from workbench.analysis.sources.log import Log
from workbench.analysis.targets import Crossing, crossings, ratio_to_target
from workbench.trials.answer import FORECAST_COLUMNS, ahead_text, needs_text, verdict_text
from workbench.utils.validation import brief, number, one_of, whole_number

SHARES = ("accuracy", "acc", "pass", "greedy")
LESS_IS_BETTER = ("loss", "error", "perplexity", "kl")
# Standard deviation over seeds as a share of the last score: the median of 96 settings of our own
# records. It is .02 for a quarter of them and above .10 for a tenth.
TYPICAL_SPREAD = 0.04
CHANGES = (5, 10, 20)  # percent
MANY = 10_000  # seeds from which on the normal approximation is exact enough
LONGEST_LINE = 20  # characters of a label, so that a small figure has room for it
UNLIKE = 20  # an arm whose scores are so many times another's may be in another unit


@dataclass(frozen=True)
class Comparison:
    """What `compare` has found.

    Attributes
    ----------
    table : DataFrame, a row a pair of an arm and the baseline
        arm, verdict, ratio, low, high (of costs to the target, NaN without one), seeds,
        baseline_seeds, paired, reached, baseline_reached (how many of them reached the target),
        learning_rate, baseline_learning_rate, value, baseline_value, difference, difference_low,
        difference_high, p_difference (corrected), p and p_holm (what the verdict goes by), spread
        (over seeds, as a share), seeds_needed (for a change of 10 %) and sentence. Also what is
        forecast at twice the budget: forecast, forecast_low, forecast_high, ceiling, ceiling_low,
        ceiling_high, and the same behind baseline_.
    curves : dict from label to list of Curve
        What was compared.
    x, y : str
        What was taken.
    budget : float
        The x at which scores are compared.
    notes : tuple of str
        What a reader should know, a sentence each.
    """

    table: pd.DataFrame
    curves: dict[str, list[Curve]]
    x: str
    y: str
    budget: float
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([*self.table["sentence"], *self.notes])

    def plot(self, **frame: Any) -> Any:
        """The curves of all arms with bands over runs, see `plots.compared`."""
        from workbench import plots

        # Names of metrics are long paths, so lines end at their slashes.
        label = fill(self.y.replace("/", "/ "), LONGEST_LINE).replace("/ ", "/")
        return plots.compared(self.curves, Along(self.x), **{"ylabel": label, **frame})


def compare(
    runs: Any,
    *,
    x: str | None = None,
    y: str | Mapping[str, str] | None = None,
    target: float | None = None,
    baseline: str | None = None,
    smooth: int = 1,
    less_is_better: bool | None = None,
    tuned: bool = False,
) -> Comparison:
    """Compare runs that any trainer made: one sentence for each arm against the baseline.

    Parameters
    ----------
    runs : dict from label to one or more paths, or a list of paths
        Each is a run or a folder of runs: a record, a TRL or transformers output directory,
        TensorBoard events, an offline W&B run, a console log or dumps of verl, or a table of
        metrics (JSON lines, CSV, TSV, JSON or parquet). A dict from seed to path instead of a list
        says the seeds. Paths of a list are arms of their own, called by their last part.
    x : str, optional
        The column of costs, added up. Default: rollouts where all runs have them, or else the step;
        never seconds.
    y : str, or dict from label to str, optional
        The column of scores. Default: the first of held-out accuracy, held-out reward and reward,
        by their usual names, that all runs have.
    target : float, optional
        A score: costs to reach it are compared as well, and decide.
    baseline : str, optional
        The label that others are compared with. Default: the first.
    smooth : int
        Logged values of a moving mean, for noisy scores of single batches.
    less_is_better : bool, optional
        Default: whether the name of y says loss, error, perplexity or kl.
    tuned : bool
        Whether all arms were tuned with equal care, which no log shows.

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError
        For paths that are no log, logs that are empty or damaged, and columns that a run lacks.
    ImportError
        Where TensorBoard's or W&B's files need a package that is missing.

    Notes
    -----
    Differences are paired, with Student's interval, where every run of the smaller arm has a
    partner of its seed; otherwise they are Welch's. Scores are read at the largest x that all runs
    reached, or at the last one before it of the run that was logged most seldom, where another was
    logged at least twice as often. Between two logged values they are linear. Costs of an arm that
    was logged at least twice as often as the other one are read at the other's steps. Scores
    between 0 and 1 that begin before the first step are forecast to twice as much, see
    `analysis.forecast`, tried on held-out accuracies.
    """
    whole_number("smooth", smooth, 1)
    if target is not None:
        number("target", target)
    arms = _arms(runs)
    if len(arms) < 2:
        raise ValueError(f"runs: {len(arms)} given; at least two arms are needed")
    baseline = next(iter(arms)) if baseline is None else baseline
    one_of("baseline", baseline, arms)
    curves, x, y, notes = curves_of(arms, x, y, smooth)
    if less_is_better is None:
        less_is_better = not words(y).isdisjoint(LESS_IS_BETTER)
    if less_is_better:
        notes.append(f"Less of {y} counts as better.")
    unit = Along(x)
    budget, said = _budget(curves, unit)
    notes += [*said, *_doubled(curves), *_of_one_unit(curves, y)]
    rates = {label: _rates(group) for label, group in arms.items()}
    if not tuned:
        texts = "; ".join(f"{label}: {rate}" for label, rate in rates.items() if rate)
        known = f" (learning rates are {texts})" if texts else ""
        notes.append(f"Nothing shows that the arms were tuned alike{known}; tuned=True says so.")
    sign = -1 if less_is_better else 1
    table = _tested(curves, baseline, unit, budget, sign)
    others = table["arm"].tolist()
    if target is not None:
        try:
            ratios = [_ratio(curves[a], curves[baseline], unit, target, sign) for a in others]
        except ValueError as error:
            raise ValueError(f"target={target}: a run of {y} begins there already") from error
        table[list(ratios[0])] = pd.DataFrame(ratios)
        table[["p_holm", "verdict"]] = verdicts(table)
    table["learning_rate"] = [rates[label] for label in others]
    table["baseline_learning_rate"] = rates[baseline]
    spread = table["spread"].where(table["spread"] > 0, TYPICAL_SPREAD)
    table["seeds_needed"] = [_seeds(each, 10) for each in spread]
    ahead = {label: _ahead(group, unit, budget) for label, group in curves.items()}
    for of, labels in (("", others), ("baseline_", [baseline] * len(others))):
        columns = [of + name for name in FORECAST_COLUMNS]
        table[columns] = [ahead[label][1:7] for label in labels]
    for why in dict.fromkeys(made.why for made in ahead.values() if made.why):
        labels = " and ".join(label for label, made in ahead.items() if made.why == why)
        notes.append(f"No forecast of {labels}: {why}.")
    table["sentence"] = [
        _sentence(row, baseline, (x, y), budget, target, ahead) for row in table.to_dict("records")
    ]
    return Comparison(table, curves, x, y, budget, tuple(notes))


def seeds_needed(
    runs: Any,
    *,
    x: str | None = None,
    y: str | None = None,
    changes: Iterable[float] = CHANGES,
    smooth: int = 1,
) -> pd.DataFrame:
    """How many seeds an arm needs, from earlier runs of one setting.

    Parameters
    ----------
    runs : path or list of paths
        At least two runs that differ in the seed alone, as for `compare`.
    x, y, smooth
        As in `compare`.
    changes : numbers above 0
        Changes of the score in percent of its mean.

    Returns
    -------
    DataFrame, indexed by the change
        seeds of each arm with which a change of this size is found four times out of five by a test
        at 5 %, where arms share no seeds. Pairs of the same seeds need fewer, which runs of one
        setting cannot show. Also runs, mean and spread, the standard deviation over the runs as a
        share of the mean.

    Raises
    ------
    ValueError
        For fewer than two runs, and for runs without any spread.
    """
    curves, x, y, _ = curves_of(_arms({"runs": runs}), x, y, smooth)
    group = curves["runs"]
    if len(group) < 2:
        raise ValueError(f"runs: one run, {group[0].path}; a spread needs at least two")
    unit = Along(x)
    budget = min(curve.places(unit)[-1] for curve in group)
    scores = np.array([curve.score_at(unit, budget) for curve in group])
    mean = float(scores.mean())
    spread = float(scores.std(ddof=1)) / abs(mean) if mean else np.inf
    if not 0 < spread < np.inf:
        raise ValueError(f"runs: {y} is {brief(scores.tolist())}, from which no spread follows")
    changes = list(changes)
    for change in changes:
        number("changes", change, above=0)
    table = pd.DataFrame({"seeds": [_seeds(spread, change) for change in changes]}, changes)
    return table.assign(runs=len(group), mean=mean, spread=spread).rename_axis("change, %")


def _seeds(spread: float, change: float) -> int:
    """Seeds of each of two arms that find a change in percent; `spread` is that of one arm."""
    deviation = np.sqrt(2) * spread
    # The normal approximation is always a little too small, and the count goes up from there.
    n = max(2, int(7.8 * (100 * deviation / change) ** 2))
    while n < MANY and smallest_change(deviation, n, power=POWER) > change / 100:
        n += 1
    return n


def _arms(runs: Any) -> dict[str, list[Log]]:
    """The logs of every arm; ValueError for a run that is named twice."""
    if isinstance(runs, str | Path) or not isinstance(runs, Iterable):
        raise ValueError(f"runs={brief(runs)}: a dict from label to paths, or a list, is needed")
    if not isinstance(runs, Mapping):
        listed = list(map(Path, runs))
        names = [path.name for path in listed]
        # Folders of one name in different places are told apart by their paths.
        distinct = len(set(names)) == len(names)
        runs = {path.name if distinct else str(path): path for path in listed}
    arms: dict[str, list[Log]] = {}
    seen: set[Path] = set()
    for label, paths in runs.items():
        # A table, and whatever else has no entries, is named as it is, and not by its columns.
        is_one = isinstance(paths, pd.DataFrame) or not isinstance(paths, Iterable)
        paths = [paths] if is_one or isinstance(paths, str | Path) else paths
        # A dict from seed to path, or paths whose logs say the seed.
        pairs = paths.items() if isinstance(paths, Mapping) else [(None, each) for each in paths]
        group = []
        for seed, path in pairs:
            if not isinstance(path, str | os.PathLike):
                kind = type(path).__name__
                raise ValueError(f"runs: {label} has a {kind}; the path of a log is needed")
            found = logs(path)
            # A table may have several runs, so that the path of each of them is one.
            places = {log.path.resolve(): log.path for log in found}
            for twice in places.keys() & seen:
                raise ValueError(
                    f"runs: {places[twice]} is given twice, and would be counted twice"
                )
            seen |= places.keys()
            if seed is not None:
                # Keys of JSON are texts.
                seed = int(seed) if isinstance(seed, str) and seed.isdecimal() else seed
                whole_number(f"runs: a seed of {label}", seed, 0)
                if len(found) > 1:
                    raise ValueError(f"runs: {path} has {len(found)} runs, so {seed} is no seed")
                found[0].seed = int(seed)
            group += found
        if not group:
            raise ValueError(f"runs: {label} has no path")
        arms[str(label)] = one_a_run(group)
    return arms


def _rates(group: Sequence[Log]) -> str:
    """The learning rates of an arm in words."""
    return ", ".join(dict.fromkeys(f"{log.rate:.3g}" for log in group if log.rate is not None))


def _budget(curves: Mapping[str, list[Curve]], unit: Along) -> tuple[float, list[str]]:
    """The cost at which scores are compared, and what a reader should know of it."""
    everyone = [curve for group in curves.values() for curve in group]
    shortest = min(everyone, key=lambda curve: curve.places(unit)[-1])
    budget = float(shortest.places(unit)[-1])
    x = unit.name
    if budget < max(curve.places(unit)[0] for curve in everyone):
        raise ValueError(f"{shortest.path}: it ended at {x} {budget:g}, before another run began")
    gaps = np.array([_gap(curve) for curve in everyone])
    seldom = everyone[int(gaps.argmax())]
    logged = seldom.places(unit)[1:]
    if 2 * gaps.min() <= gaps.max() and logged[0] <= budget < logged[-1]:
        # Not between two values that lie far apart, see `_as_seldom`.
        budget = float(logged[logged <= budget][-1])
        return budget, [
            f"Scores are read at {x} {budget:g}, the last that {seldom.path} has there."
        ]
    if budget < max(curve.places(unit)[-1] for curve in everyone):
        return budget, [f"Scores are read at {x} {budget:g}, where {shortest.path} ended."]
    return budget, []


def _gap(curve: Curve) -> float:
    """Steps between two logged values; NaN where the log has no steps."""
    return float(np.diff(curve.table["step"]).mean())


def _doubled(curves: Mapping[str, list[Curve]]) -> list[str]:
    """What a reader should know of runs of an arm that may be one run, given several times."""
    notes = []
    for label, group in curves.items():
        seeds = Counter(curve.seed for curve in group if curve.seed != NO_SEED)
        notes += [
            f"{label} has {count} runs of seed {seed}, which count as independent."
            for seed, count in seeds.items()
            if count > 1
        ]
        first: dict[bytes, Curve] = {}
        for curve in group:
            # Scores that never change, such as those of an untrained model, may well be the same.
            if np.ptp(curve.scores):
                same = first.setdefault(curve.scores.tobytes(), curve)
                if same is not curve:
                    notes.append(
                        f"{curve.path} has the same scores as {same.path}: is it a copy? It counts "
                        "as a run of its own."
                    )
    return notes


def _of_one_unit(curves: Mapping[str, list[Curve]], y: str) -> list[str]:
    """A question, where the scores of one arm are far beyond those of another, as percent are."""
    tops = {label: max(abs(c.scores).max() for c in group) for label, group in curves.items()}
    low, *_, high = sorted(tops, key=tops.__getitem__)
    most, least = tops[high], tops[low]
    # No accuracy is above 1, unless it is in percent.
    is_share = not words(y).isdisjoint(SHARES) and least <= 1 < most
    if not (is_share or 0 < UNLIKE * least < most):
        return []
    return [f"Scores of {high} reach {most:.3g}, those of {low} {least:.3g}: are they in one unit?"]


def _tested(
    curves: Mapping[str, list[Curve]], baseline: str, unit: Along, budget: float, sign: int
) -> pd.DataFrame:
    """A row for every arm but the baseline, with what scores at the budget decide."""
    others = [label for label in curves if label != baseline]
    rows = [_difference(curves[label], curves[baseline], unit, budget) for label in others]
    table = pd.DataFrame(rows)
    table.insert(0, "arm", others)
    table["p_holm"] = table["p_difference"] = holm(table["p"])
    side = np.where(sign * table["difference"] > 0, "better", "worse")
    table["verdict"] = np.where(table["p_holm"] <= ALPHA, side, "open")
    table[["ratio", "low", "high"]] = np.nan
    return table


def _difference(
    mine: list[Curve], others: list[Curve], unit: Along, budget: float
) -> dict[str, Any]:
    """What scores at a budget say of one arm against the baseline, before any correction."""
    pairs = _pairs(mine, others)
    a, b = (np.array([c.score_at(unit, budget) for c in of]) for of in pairs or (mine, others))
    found: Any = Measurement(a - b) if pairs else welch(a, b)
    low, high, p = _known(found.low, found.high, found.p_value(0.0) if pairs else found.p)
    # The spread of one arm over its runs, as a share; of a single run nothing is known.
    spreads = [v.std(ddof=1) / abs(v.mean()) for v in (a, b) if len(v) > 1 and v.mean()]
    return {
        "seeds": len(a),
        "baseline_seeds": len(b),
        "paired": pairs is not None,
        "value": a.mean(),
        "baseline_value": b.mean(),
        "difference": found.value,
        "difference_low": low,
        "difference_high": high,
        "p": p,
        "spread": float(np.sqrt(np.mean(np.square(spreads)))) if spreads else np.nan,
    }


def _ratio(
    mine: list[Curve], others: list[Curve], unit: Along, target: float, sign: int
) -> dict[str, Any]:
    """The ratio of costs to the target, before any correction."""
    pairs = _pairs(mine, others)
    costs: list[list[Crossing]] = []
    for group in _as_seldom(*(pairs or (mine, others))):
        # Costs are read off rising curves, so where less is better both are turned over.
        turned = {i: replace(c, scores=sign * c.scores) for i, c in enumerate(group)}
        costs.append(list(crossings(turned, sign * target, unit).values()))
    reached = [sum(cost.reached for cost in of) for of in costs]
    ratio: Any
    if pairs:
        ratio = ratio_to_target(costs[0], costs[1])
        p = ratio.p_value(1.0)
    else:
        stopped = [len(of) - n for of, n in zip(costs, reached)]
        ratio = welch(*[[c.place for c in of] for of in costs], scale="ratio", stopped=stopped)
        p = ratio.p
    low, high, p = _known(ratio.low, ratio.high, p)
    found = {"ratio": ratio.value, "low": low, "high": high, "p": p}
    return {**found, "reached": reached[0], "baseline_reached": reached[1]}


def _as_seldom(*arms: Sequence[Curve]) -> list[Sequence[Curve]]:
    """Two arms, of which one that was logged at least twice as often is read as the other one.

    Between two logged values a score is linear, and lies below a curve that bends. An arm would
    look slow because it was logged seldom.
    """
    gaps = [np.median([_gap(curve) for curve in arm]) for arm in arms]
    read = []
    for arm, gap, other, theirs in zip(arms, gaps, arms[::-1], gaps[::-1]):
        longest = max((c.table["step"].to_numpy() for c in other), key=lambda steps: steps[-1])
        read.append([_at_steps(c, longest) for c in arm] if 2 * gap <= theirs else arm)
    return read


def _at_steps(curve: Curve, steps: np.ndarray) -> Curve:
    """A run read at the steps of another one, as far as that went, and then at its own."""
    own = curve.table["step"].to_numpy()
    inside = steps[(steps >= own[0]) & (steps <= own[-1])]
    at = np.concatenate([inside, own[own > steps[-1]]])
    if len(at) < 2 or (np.diff(own) <= 0).any():
        return curve
    places = np.interp(at, own, curve.table["place"])
    rounds = np.arange(1, len(at) + 1)
    table = pd.DataFrame({"round": rounds, "place": places, "step": at})
    return replace(curve, rounds=rounds, scores=np.interp(at, own, curve.scores), table=table)


def _known(low: float, high: float, p: float) -> tuple[float, float, float]:
    """Both ends of an interval and p; NaN where the runs have no spread, and so tell no error."""
    is_point = np.isclose(low, high, rtol=ROUNDING, atol=0)
    return (np.nan, np.nan, np.nan) if is_point else (low, high, p)


def _pairs(
    mine: Sequence[Curve], others: Sequence[Curve]
) -> tuple[list[Curve], list[Curve]] | None:
    """The runs of common seeds, in order; None unless the smaller arm has a partner for each."""
    by_seed = [{c.seed: c for c in group if c.seed != NO_SEED} for group in (mine, others)]
    common = sorted(by_seed[0].keys() & by_seed[1].keys())
    one_each = all(len(found) == len(group) for found, group in zip(by_seed, (mine, others)))
    if not one_each or len(common) < max(2, min(len(mine), len(others))):
        return None
    first, second = ([found[seed] for seed in common] for found in by_seed)
    return first, second


def _ahead(group: list[Curve], unit: Along, budget: float) -> Forecast:
    """Where the mean of an arm will be when more has been spent."""
    # All runs are read where the first one has values and every other one has begun.
    places = group[0].places(unit)
    begun = max(curve.places(unit)[0] for curve in group)
    places = places[(places >= begun) & (places <= budget)]
    scores = np.array([[curve.score_at(unit, at) for at in places] for curve in group])
    if not ((scores >= 0) & (scores <= 1)).all():
        return Forecast(np.nan, why="only shares between 0 and 1 are forecast")
    return forecast(places, scores, AHEAD * budget)


def _sentence(
    row: Mapping[str, Any],
    baseline: str,
    names: tuple[str, str],
    budget: float,
    target: float | None,
    ahead: Mapping[str, Forecast],
) -> str:
    """What was found of one arm, in words; `names` are those of x and y."""
    arm, n, m, (x, y) = row["arm"], row["seeds"], row["baseline_seeds"], names
    if min(n, m) < 2:
        return _one_run(row, baseline, y)
    runs = f"{n} pairs of seeds" if row["paired"] else f"{n} and {m} runs, Welch"
    text = (
        f"{arm} has {row['value']:.3g} and {baseline} {row['baseline_value']:.3g} of {y} at {x} "
        f"{budget:g}: {_difference_text(row, runs, len(ahead) - 1, target is None)}"
    )
    both = {label: ahead[label] for label in (arm, baseline)}
    if not any(made.why for made in both.values()):
        text += f"; {ahead_text(both, f'at {x} {AHEAD * budget:g}')}"
    if target is None:
        return f"{text}."
    goal = f"{target:g} of {y}"
    reached = row["reached"], row["baseline_reached"]
    if not any(reached):
        return f"Neither {arm} nor {baseline} reached {goal}. {text}."
    came = f"{reached[0]} of {n} reached {{}}, of {baseline} {reached[1]} of {m}"
    ends = row["low"], row["high"]
    needs = needs_text((row["ratio"], *ends), reached, (n, m))
    found = f"{arm} {needs} of {baseline}'s {'steps' if x == 'step' else x} to reach {goal}"
    if not all(reached) and reached[0] < n and reached[1] < m:
        # The ratio would be one of budgets, and not even a bound.
        found = f"{arm}: {came.format(goal)}"
    elif sum(reached) < n + m:
        runs += f", {came.format('it')}"
    return f"{found} ({runs}): {verdict_text(row['verdict'], *ends)}. {text}."


def _one_run(row: Mapping[str, Any], baseline: str, y: str) -> str:
    """What is said of an arm where it or the baseline has a single run, which shows no error."""
    arm, n, m = row["arm"], row["seeds"], row["baseline_seeds"]
    who = f"{arm} and {baseline} have" if n == m else f"{arm if n < m else baseline} has"
    whose = "the median of 96 settings of workbench's own records"
    spread = TYPICAL_SPREAD
    if row["spread"] > 0:
        spread, whose = row["spread"], f"that of {baseline if n < m else arm}"
    return (
        f"{who} one run{' each' if n == m else ''}: nothing can be said. With a spread of "
        f"{100 * spread:.2g} % over seeds, {whose}, {row['seeds_needed']} seeds of each find a "
        f"change of 10 % in {y}."
    )


def _difference_text(row: Mapping[str, Any], runs: str, arms: int, decides: bool) -> str:
    """The difference of scores with its interval, and the verdict where these scores decide."""
    text = f"{row['difference']:+.3g} "
    if np.isnan(row["difference_low"]):
        return text + (
            f"({runs}); without any spread over runs no error is known (are they copies, or made "
            "with one seed?)"
        )
    corrected = f" after correction for {arms} arms" if arms > 1 else ""
    span = f"[{row['difference_low']:.3g}, {row['difference_high']:.3g}]"
    text += f"{span} ({runs}, p {row['p_difference']:.2g}{corrected})"
    if not decides:
        return text
    if row["verdict"] != "open":
        return f"{text}: {row['verdict']}"
    text += ": no difference found"
    if row["seeds_needed"] > min(row["seeds"], row["baseline_seeds"]):
        text += f"; to find a change of 10 %, {row['seeds_needed']} seeds of each are needed"
    return text
