"""The columns of logs that are compared: which they are, and the curve of every run.

`columns.toml` has the names that trainers use.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.curves import Curve
from workbench.analysis.sources.log import Log, numeric
from workbench.utils.validation import brief, one_of

USUAL = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SMOOTHED = ("smooth", "smoothed", "ema", "running", "moving")
HELD_OUT = ("eval", "val", "test", "accuracy", "acc", "greedy", "pass")
NO_MEANS = ("std", "min", "max", "var", "median")
NO_SEED = -1


@dataclass(frozen=True)
class Along:
    """A column of costs that were added up by the program that logged them."""

    name: str

    def per_round(self, rounds: pd.DataFrame) -> np.ndarray:
        """What each logged value cost, (E,)."""
        return np.diff(rounds["place"].to_numpy(), prepend=0.0)


def curves_of(
    arms: Mapping[str, Sequence[Log]], x: Any, y: Any, smooth: int
) -> tuple[dict[str, list[Curve]], str, str, list[str]]:
    """The curves of all runs, the names of x and y, and what a reader should know of them.

    `x`, `y` and `smooth` are those of `wb.compare`.
    """
    runs = [(label, log) for label, group in arms.items() for log in group]
    (x, costs, which), (y, scores, of) = _chosen("x", x, runs), _chosen("y", y, runs)
    # Rewards are those of the training problems.
    on = [log for (_, log), score in zip(runs, scores) if log.problems and score != "reward"]
    for log in on:
        if log.problems != on[0].problems:
            raise ValueError(f"{log.path}: other held-out problems than {on[0].path} has")
    notes = [f"x is {x}{which}, y is {y}{of}."]
    if x == "step":
        notes.append(
            "Steps count as equal, although those of two trainers may hold other numbers "
            "of rollouts."
        )
    if smooth > 1:
        notes.append(f"Scores are means of {smooth} logged values.")
    elif words(y).isdisjoint(HELD_OUT):
        notes.append(f"{y} may be that of a single batch; smooth=5 takes means of 5 logged values.")
    if not words(y).isdisjoint(SMOOTHED):
        notes.append(f"{y} was smoothed before it was logged, and so lags behind.")
    curves: dict[str, list[Curve]] = {label: [] for label in arms}
    gaps = set()
    for (label, log), cost, score in zip(runs, costs, scores):
        places, values, steps = _points(log, cost, score)
        gaps.add(round(float(np.median(np.diff(places))), 9))
        values = pd.Series(values).rolling(smooth, min_periods=1).mean().to_numpy()
        numbers = np.arange(1, len(places) + 1)
        seed = NO_SEED if log.seed is None else log.seed
        table = pd.DataFrame({"round": numbers, "place": places, "step": steps})
        curves[label].append(Curve(label, seed, numbers, values, table, log.path))
    if len(gaps) > 1:
        texts = [f"{gap:g}" for gap in sorted(gaps)]
        notes.append(
            f"Runs logged every {', '.join(texts[:4])} {x}; between two logged values a score is "
            "linear."
        )
    # What is true of many runs is said once.
    told: dict[str, list[Path]] = {}
    for _, log in runs:
        for note in log.notes:
            told.setdefault(note, []).append(log.path)
    for note, paths in told.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        notes.append(f"{paths[0]}{more}: {note}.")
    return curves, x, y, notes


def words(name: str) -> set[str]:
    """The words of a column's name, such as eval and loss of eval/loss."""
    return set(re.split(r"[^a-z]+", name.lower()))


def _chosen(what: str, given: Any, runs: Sequence[tuple[str, Log]]) -> tuple[str, list[str], str]:
    """The name of x or y, the column of every run, and which these are where they differ."""
    labels = [label for label, _ in runs]
    if given is not None:
        by_label: Any = given if isinstance(given, Mapping) else dict.fromkeys(labels, given)
        for label in labels:
            if label not in by_label:
                raise ValueError(f"{what}: it names no column of {label}")
        columns = [by_label[label] for label in labels]
        for column, (_, log) in zip(columns, runs):
            one_of(what, column, log.columns)
        return " and ".join(dict.fromkeys(columns)), columns, ""
    for name, patterns in USUAL[what].items():
        # A column that all runs have, so that nothing else is compared with it.
        shared = _usual([log for _, log in runs], patterns)
        found = (shared or _usual([log], patterns) for _, log in runs)
        columns = [column for column in found if column]
        if len(columns) < len(runs):
            continue
        if len(set(columns)) > 1:
            pairs = dict.fromkeys(zip(columns, labels))
            return name, columns, f" ({', '.join(f'{c} of {label}' for c, label in pairs)})"
        return (columns[0] if what == "y" else name), columns, ""
    there = {label: f"{label} has {brief(log.columns, 160)}" for label, log in runs}
    raise ValueError(
        f"{what}: no usual name that all runs have; say {what}=..., {'; '.join(there.values())}"
    )


def _usual(logs: Sequence[Log], patterns: Sequence[str]) -> str | None:
    """The column of all these logs that fits the first pattern; of several the shortest.

    Their order says nothing: W&B writes them in another one in every run.
    """
    shared = set.intersection(*(set(log.columns) for log in logs))
    means = sorted((c for c in shared if words(c).isdisjoint(NO_MEANS)), key=lambda c: (len(c), c))
    fitting = (c for pattern in patterns for c in means if fnmatchcase(c.lower(), pattern))
    return next(fitting, None)


def _points(log: Log, x: str, y: str) -> np.ndarray:
    """Places, values and steps of one run (3, E), rising; what was mended is added to its notes.

    Steps are NaN where the log has none.
    """
    by = x if x.lower() in USUAL["x"]["step"] else _usual([log], USUAL["x"]["step"]) or ""
    last = {x: np.nan, by: np.nan}
    points = []
    for row in log.rows:
        # Rows of an evaluation may lack a cost that rows of training have.
        for name in last:
            if numeric(row.get(name)) and np.isfinite(row[name]):
                last[name] = row[name]
        if numeric(row.get(y)) and np.isfinite(last[x]):
            points.append((float(last[x]), float(row[y]), float(last[by])))
    finite = [point for point in points if np.isfinite(point[1])]
    if len(finite) < len(points):
        ends = "" if np.isfinite(points[-1][1]) else ", the last one among them"
        log.notes.append(
            f"{len(points) - len(finite)} of {len(points)} values of {y} are no finite "
            f"number and are left out{ends}"
        )
    kept: list[tuple[float, float, float]] = []
    back = still = 0
    for point in finite:
        back += bool(kept) and point[0] < kept[-1][0]
        still += bool(kept) and point[0] == kept[-1][0]
        while kept and kept[-1][0] >= point[0]:
            kept.pop()
        kept.append(point)
    # A run is started again a few times. Costs of single steps go back in every second row, and
    # rows of single responses stand still.
    if back > len(finite) / 4 or still > len(finite) / 2:
        raise ValueError(
            f"{log.path}: along {len(finite)} values of {y!r}, {x!r} goes back {back} times and "
            f"stands still {still} times; a row a step is needed, in order, with costs added up"
        )
    if still:
        log.notes.append(f"{still} values of {y} have the {x} of a later one, which alone counts")
    if back:
        log.notes.append(
            f"{x} goes back {back} times, as where a run was started again; what was logged "
            "last counts"
        )
    if len(kept) < 2:
        raise ValueError(
            f"{log.path}: {len(kept)} finite values of {y!r} along {x!r}; at least two are needed"
        )
    if kept[0][0] < 0:
        raise ValueError(f"{log.path}: {x}={kept[0][0]:g}; a cost is at least 0")
    return np.array(kept).T
