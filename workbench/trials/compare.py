"""Runs of any trainer, compared by the rules of a trial.

A trial makes its own runs: every arm is tuned, seeds are shared, and looks are planned. Runs that
were made elsewhere are taken as they are. They are read once, so that there is one test an arm,
corrected by Holm's method, and what is not known of them is said beside the answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.curves import Curve
from workbench.analysis.intervals import Measurement, holm, smallest_change, welch
from workbench.analysis.sequential import ALPHA, verdicts
from workbench.analysis.sources import logs
from workbench.analysis.sources.log import Log, numeric
from workbench.analysis.targets import crossings, ratio_to_target
from workbench.trials.answer import Answer, sentence
from workbench.utils.validation import brief, number, one_of, whole_number

# The usual names, by what they mean. Names are compared without case, and "*" ends a beginning. A
# step of different trainers may hold different numbers of rollouts, so rollouts come first.
COSTS = {
    "rollouts": ("rollouts", "num_rollouts", "samples"),
    "step": (
        *("step", "global_step", "train/global_step", "training/global_step", "_step"),
        *("trainer/global_step", "round", "iteration", "iter"),
    ),
}
SCORES = {
    "held-out accuracy": ("accuracy", "eval_accuracy", "eval/accuracy", "val-core/*", "val/acc*"),
    "held-out reward": ("eval_reward", "eval/reward*", "val/test_score/*", "val/reward*"),
    "reward": (
        *("reward", "train/reward", "critic/score/mean", "critic/rewards/mean", "reward/mean"),
        *("rewards/mean", "train/reward_mean", "env/all/reward/total", "score", "value"),
    ),
}
LESS_IS_BETTER = ("loss", "error", "perplexity", "kl")
SMOOTHED = ("smooth", "smoothed", "ema", "running", "moving")
# Standard deviation over seeds as a share of the last score: the median of 96 settings of our own
# records. It is .02 for a quarter of them and above .10 for a tenth.
TYPICAL_SPREAD = 0.04
CHANGES = (5, 10, 20)  # percent
POWER = 0.8
NO_SEED = -1
DECIDED = ("better", "worse")


@dataclass(frozen=True)
class Along:
    """A column of costs that were added up by the program that logged them."""

    name: str

    def per_round(self, rounds: pd.DataFrame) -> np.ndarray:
        """What each logged value cost, (E,)."""
        return np.diff(rounds[self.name].to_numpy(), prepend=0.0)


@dataclass(frozen=True)
class Comparison:
    """What `compare` has found.

    Attributes
    ----------
    table : DataFrame, a row a pair of an arm and the baseline
        arm, verdict, ratio, low, high (of costs to the target, NaN without one), seeds,
        baseline_seeds, paired, learning_rate, baseline_learning_rate, value, baseline_value,
        difference, difference_low, difference_high, p, p_holm, seeds_needed (for the changes that
        `seeds_needed` names, 10 %) and sentence.
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

        return plots.compared(self.curves, Along(self.x), **{"ylabel": self.y, **frame})


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
        TensorBoard events, an offline W&B run, a file of metrics as JSON lines (verl, OpenRLHF), or
        a CSV, TSV, JSON or parquet table. A dict from seed to path instead of a list says the
        seeds. Paths of a list are arms of their own, called by their last part.
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
        Whether all arms were tuned with equal care, for nothing in a log shows it.

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
    reached, linear between two logged values.
    """
    whole_number("smooth", smooth, 1)
    if target is not None:
        number("target", target)
    arms, notes = _arms(runs)
    if len(arms) < 2:
        raise ValueError(f"runs: {', '.join(arms)} alone; at least two arms are needed")
    baseline = next(iter(arms)) if baseline is None else baseline
    one_of("baseline", baseline, arms)
    curves, x, y, said = _curves(arms, x, y, smooth)
    notes = [*said, *notes]
    if less_is_better is None:
        less_is_better = not _words(y).isdisjoint(LESS_IS_BETTER)
    if less_is_better:
        notes.append(f"Less of {y} counts as better.")
    unit = Along(x)
    ends = {c.path: c.places(unit)[-1] for group in curves.values() for c in group}
    first = min(ends, key=lambda path: ends[path])
    budget = ends[first]
    if budget < max(ends.values()):
        notes.append(f"Scores are read at {x} {budget:g}, where {first} ended.")
    if max(curve.places(unit)[0] for group in curves.values() for curve in group) > budget:
        raise ValueError(f"{first}: it ended at {x} {budget:g}, before another run began")
    rates = {label: _rates(group) for label, group in arms.items()}
    if not tuned:
        texts = "; ".join(f"{label}: {rate}" for label, rate in rates.items() if rate)
        known = f" (learning rates are {texts})" if texts else ""
        notes.append(f"Nothing shows that the arms were tuned alike{known}; tuned=True says so.")
    sign = -1 if less_is_better else 1
    try:
        rows = [
            _row(label, baseline, curves, unit, budget, target, sign)
            for label in curves
            if label != baseline
        ]
    except ValueError as error:
        raise ValueError(f"target={target}: a run of {y} begins there already") from error
    table = pd.DataFrame(rows)
    table["p_gain"] = table["p_holm"] = holm(table["p"])
    table["verdict"] = np.where(sign * table["difference"] > 0, "better", "worse")
    table.loc[~(table["p_gain"] <= ALPHA), "verdict"] = "open"
    if target is not None:
        table["p"] = table["p_ratio"]
        table[["p_holm", "verdict"]] = verdicts(table)
    table["learning_rate"] = [rates[label] for label in table["arm"]]
    table["baseline_learning_rate"] = rates[baseline]
    spread = table["spread"].where(table["spread"] > 0, TYPICAL_SPREAD)
    table["seeds_needed"] = [_seeds(each, 10) for each in spread]
    table["sentence"] = [
        _sentence(row, baseline, x, y, budget, target, len(rows)) for _, row in table.iterrows()
    ]
    table = table.drop(columns=["p_ratio", "p_gain"])
    return Comparison(table, curves, x, y, float(budget), tuple(notes))


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
    arms, _ = _arms({"runs": runs})
    curves, x, y, _ = _curves(arms, x, y, smooth)
    group = curves["runs"]
    if len(group) < 2:
        raise ValueError(f"runs: one run, {group[0].path}; a spread needs at least two")
    unit = Along(x)
    budget = min(curve.places(unit)[-1] for curve in group)
    scores = np.array([curve.score_at(unit, budget) for curve in group])
    spread = float(scores.std(ddof=1) / abs(scores.mean())) if scores.mean() else np.inf
    if not 0 < spread < np.inf:
        raise ValueError(f"runs: {y} is {brief(scores.tolist())}, from which no spread follows")
    rows = {}
    for change in changes:
        number("changes", change, above=0)
        needed = _seeds(spread, change)
        rows[change] = {
            "seeds": needed,
            "runs": len(group),
            "mean": scores.mean(),
            "spread": spread,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("change, %")


def _words(name: str) -> set[str]:
    """The words of a column's name, such as eval and loss of eval/loss."""
    return set(re.split(r"[^a-z]+", name.lower()))


def _seeds(spread: float, change: float) -> int:
    """Seeds of each of two arms that find a change in percent; `spread` is that of one arm."""
    deviation = np.sqrt(2) * spread
    # The normal approximation is always a little too small, and the count goes up from there.
    n = max(2, int(7.8 * (100 * deviation / change) ** 2))
    while smallest_change(deviation, n, power=POWER) > change / 100:
        n += 1
    return n


def _arms(runs: Any) -> tuple[dict[str, list[Log]], list[str]]:
    """The logs of every arm, and notes on them; ValueError for a run that is named twice."""
    if isinstance(runs, str | Path):
        raise ValueError(f"runs={brief(runs)}: a dict from label to paths, or a list, is needed")
    if not isinstance(runs, Mapping):
        listed = list(map(Path, runs))
        names = [path.name for path in listed]
        # Folders of one name in different places are told apart by their paths.
        distinct = len(set(names)) == len(names)
        runs = {path.name if distinct else str(path): path for path in listed}
    arms: dict[str, list[Log]] = {}
    for label, paths in runs.items():
        # A dict from seed to path, a list of paths, or a single path.
        seeds = list(paths) if isinstance(paths, Mapping) else []
        listed = paths.values() if seeds else [paths] if isinstance(paths, str | Path) else paths
        found = [logs(path) for path in listed]
        for seed, each in zip(seeds, found):
            each[0].seed = seed
        arms[str(label)] = [log for each in found for log in each]
        if not found:
            raise ValueError(f"runs: {label} has no path")
    everyone = [log for group in arms.values() for log in group]
    places = [log.path.resolve() for log in everyone]
    for log, place in zip(everyone, places):
        if places.count(place) > 1:
            raise ValueError(f"runs: {log.path} is given twice, and would be counted twice")
    return arms, _told([(log.path, note) for log in everyone for note in log.notes])


def _told(notes: Sequence[tuple[Path, str]]) -> list[str]:
    """Notes on runs as sentences; what is true of many runs is said once."""
    by_note: dict[str, list[Path]] = {}
    for path, note in notes:
        by_note.setdefault(note, []).append(path)
    return [
        f"{paths[0]}{f' and {len(paths) - 1} more' * (len(paths) > 1)}: {note}."
        for note, paths in by_note.items()
    ]


def _curves(
    arms: Mapping[str, Sequence[Log]], x: str | None, y: Any, smooth: int
) -> tuple[dict[str, list[Curve]], str, str, list[str]]:
    """The curves of all runs, the names of x and y, and what was taken and mended."""
    everyone = [(label, log) for label, group in arms.items() for log in group]
    said = []
    columns = {}
    names = []
    for what, given, usual in (("x", x, COSTS), ("y", y, SCORES)):
        name, columns[what] = _columns(what, given, usual, everyone)
        taken = {}
        for label, log in everyone:
            taken.setdefault(columns[what][id(log)], []).append(label)
        texts = [f"{column} of {', '.join(dict.fromkeys(of))}" for column, of in taken.items()]
        said.append(f"{what} is {name}" + (f" ({'; '.join(texts)})" if len(texts) > 1 else ""))
        names.append(name)
    notes = [", ".join(said) + "."]
    if names[0] == "step":
        notes.append(
            "Steps count as equal, although those of two trainers may hold other numbers "
            "of rollouts."
        )
    if smooth > 1:
        notes.append(f"Scores are means of {smooth} logged values.")
    curves: dict[str, list[Curve]] = {label: [] for label in arms}
    gaps = set()
    mended: list[tuple[Path, str]] = []
    for label, log in everyone:
        places, values, told = _points(log, columns["x"][id(log)], columns["y"][id(log)])
        mended += [(log.path, each) for each in told]
        gaps.add(round(float(np.median(np.diff(places))), 9))
        values = pd.Series(values).rolling(smooth, min_periods=1).mean().to_numpy()
        numbers = np.arange(1, len(places) + 1)
        table = pd.DataFrame({"round": numbers, names[0]: places})
        seed = NO_SEED if log.seed is None else log.seed
        curves[label].append(Curve(label, seed, numbers, values, table, log.path))
    notes += _told(mended)
    if len(gaps) > 1:
        texts = [f"{gap:g}" for gap in sorted(gaps)]
        notes.append(
            f"Runs logged every {', '.join(texts[:4])} {names[0]}; between two logged "
            "values a score is linear."
        )
    if not _words(names[1]).isdisjoint(SMOOTHED):
        notes.append(f"{names[1]} was smoothed before it was logged, and so lags behind.")
    return curves, names[0], names[1], notes


def _columns(
    what: str, given: Any, usual: Mapping[str, Sequence[str]], everyone: Sequence[tuple[str, Log]]
) -> tuple[str, dict[int, str]]:
    """The name of x or y, and the column of every log that has it."""
    if given is not None:
        by_label = given if isinstance(given, Mapping) else {label: given for label, _ in everyone}
        for label, log in everyone:
            one_of(what, by_label.get(label), log.columns)
        return " and ".join(dict.fromkeys(map(str, by_label.values()))), {
            id(log): by_label[label] for label, log in everyone
        }
    for name, patterns in usual.items():
        found = {id(log): _first(log.columns, patterns) for _, log in everyone}
        if all(found.values()):
            taken = set(found.values())
            name = str(taken.pop()) if len(taken) == 1 and what == "y" else name
            return name, {key: str(column) for key, column in found.items()}
    texts = {label: f"{label} has {brief(log.columns, 160)}" for label, log in everyone}
    raise ValueError(
        f"{what}: no usual name that all runs have; say {what}=..., {'; '.join(texts.values())}"
    )


def _first(columns: Sequence[str], patterns: Sequence[str]) -> str | None:
    """The first column that fits the first pattern that any fits."""
    for pattern in patterns:
        for column in columns:
            low = column.lower()
            if low == pattern or (pattern[-1] == "*" and low.startswith(pattern[:-1])):
                return column
    return None


def _points(log: Log, x: str, y: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Places and values of one run, rising, and what was mended."""
    at = np.nan
    points = []
    for row in log.rows:
        # Rows of an evaluation may lack a cost that rows of training have.
        at = row[x] if numeric(row.get(x)) and np.isfinite(row[x]) else at
        if y in row and numeric(row[y]) and np.isfinite(at):
            points.append((float(at), float(row[y])))
    told = []
    finite = [point for point in points if np.isfinite(point[1])]
    if len(finite) < len(points):
        ends = ", the last one among them" if not np.isfinite(points[-1][1]) else ""
        told.append(
            f"{len(points) - len(finite)} of {len(points)} values of {y} are no finite "
            f"number and are left out{ends}"
        )
    kept: list[tuple[float, float]] = []
    back = 0
    for point in finite:
        if kept and point[0] < kept[-1][0]:
            back += 1
        while kept and kept[-1][0] >= point[0]:
            kept.pop()
        kept.append(point)
    if back:
        told.append(
            f"{x} goes back {back} times, as where a run was started again; what was logged "
            "last counts"
        )
    if len(kept) < 2:
        raise ValueError(
            f"{log.path}: {len(kept)} finite values of {y!r} along {x!r}; at least two are needed"
        )
    places, values = np.array(kept).T
    if places[0] < 0:
        raise ValueError(f"{log.path}: {x}={places[0]:g}; a cost is at least 0")
    return places, values, told


def _rates(group: Sequence[Log]) -> str:
    """The learning rates of an arm in words."""
    return ", ".join(dict.fromkeys(f"{log.rate:.3g}" for log in group if log.rate is not None))


def _row(
    label: str,
    baseline: str,
    curves: Mapping[str, Sequence[Curve]],
    unit: Along,
    budget: float,
    target: float | None,
    sign: int,
) -> dict[str, Any]:
    """What the runs of one arm say against the baseline's, before any correction.

    A forecast of both, where there is one, belongs here as further columns.
    """
    mine, others = list(curves[label]), list(curves[baseline])
    pairs = _pairs(mine, others)
    if pairs:
        mine, others = pairs
    a, b = (np.array([c.score_at(unit, budget) for c in group]) for group in (mine, others))
    gain = Measurement(a - b) if pairs else None
    found = gain or welch(a, b)
    row = {
        "arm": label,
        "verdict": "open",
        **{"ratio": np.nan, "low": np.nan, "high": np.nan, "p_ratio": np.nan},
        **{"seeds": len(a), "baseline_seeds": len(b), "paired": bool(pairs)},
        **{"value": a.mean(), "baseline_value": b.mean(), "difference": found.value},
        **{"difference_low": found.low, "difference_high": found.high},
        "p": gain.p_value(0.0) if gain else found.p,
    }
    # The spread of one arm over its runs, as a share; of a single run nothing is known.
    spreads = [v.std(ddof=1) / abs(v.mean()) for v in (a, b) if len(v) > 1 and v.mean()]
    row["spread"] = float(np.sqrt(np.mean(np.square(spreads)))) if spreads else np.nan
    if target is not None:
        # Costs are read off rising curves, so where less is better both are turned over.
        costs = []
        for group in (mine, others):
            turned = {i: replace(c, scores=sign * c.scores) for i, c in enumerate(group)}
            costs.append(list(crossings(turned, sign * target, unit).values()))
        stopped = [sum(not cost.reached for cost in of) for of in costs]
        row["reached"], row["baseline_reached"] = len(a) - stopped[0], len(b) - stopped[1]
        if pairs:
            ratio = ratio_to_target(*costs)
            row["p_ratio"] = ratio.p_value(1.0)
        else:
            ratio = welch(*[[c.place for c in of] for of in costs], scale="ratio", stopped=stopped)
            row["p_ratio"] = ratio.p
        row |= {"ratio": ratio.value, "low": ratio.low, "high": ratio.high}
    return row


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


def _sentence(
    row: Any, baseline: str, x: str, y: str, budget: float, target: float | None, arms: int
) -> str:
    """What was found of one arm, in words."""
    arm, n, m = row["arm"], int(row["seeds"]), int(row["baseline_seeds"])
    if min(n, m) < 2:
        who = f"{arm} and {baseline} have" if n == m else f"{arm if n < m else baseline} has"
        whose = "the median of 96 settings of workbench's own records"
        spread = TYPICAL_SPREAD
        if row["spread"] > 0:
            spread, whose = row["spread"], f"that of {baseline if n < m else arm}"
        each = " each" if n == m else ""
        return (
            f"{who} one run{each}: nothing can be said. With a spread of {100 * spread:.2g} % over "
            f"seeds, {whose}, {_seeds(spread, 10)} seeds of each find a change of 10 % in {y}."
        )
    runs = f"{n} pairs of seeds" if row["paired"] else f"{n} and {m} runs, Welch"
    span = f"[{row['difference_low']:.3g}, {row['difference_high']:.3g}]"
    p = f"p {row['p_gain']:.2g}" + (f" after correction for {arms} arms" if arms > 1 else "")
    text = (
        f"{arm} has {row['value']:.3g} and {baseline} {row['baseline_value']:.3g} of {y} at {x} "
        f"{budget:g}: {row['difference']:+.3g} {span} ({runs}, {p})"
    )
    if target is None:
        word = "no difference found" if row["verdict"] == "open" else row["verdict"]
        needed = row["seeds_needed"]
        more = f"; to find a change of 10 %, {needed:.0f} seeds of each are needed"
        return f"{text}: {word}{more if word not in DECIDED and needed > min(n, m) else ''}."
    answer = Answer(
        **{name: row[name] for name in ("arm", "verdict", "ratio", "low", "high", "seeds")},
        **{name: row[name] for name in ("reached", "baseline_reached", "p", "p_holm")},
        **{name: row[name] for name in ("difference", "difference_low", "difference_high")},
        **{"learning_rate": None, "baseline_learning_rate": None, "break_even": None},
        **{"measure": x, "target": target, "resolves": np.nan, "known": True},
        **{"baseline": baseline, "arms": arms, "goal": f"{target:g} of {y}"},
        baseline_seeds=None if row["paired"] else m,
    )
    return f"{sentence(answer)} {text}."
