"""How far forecasts of recorded runs were off, and how often their intervals held.

`python -m papers.forecasts` in `notebooks` takes all recorded runs of 200 rounds and more. It cuts
them off after some rounds, forecasts the rest, and writes `data/forecasts.csv`. A forecast is made
from half of the seeds of an arm and held against the mean of the other half, so that the
differences between seeds count. The width of the intervals is set by all methods but one, and
tried on this one, method by method. It takes a minute.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.analysis.curves import Curve, read
from workbench.analysis.forecast import FARTHEST, FEWEST, HALF_WIDTH, forecast
from workbench.records import Record, record_paths

RUNS = Path(__file__).parents[2] / "data" / "runs"
TABLE = RUNS.parent / "forecasts.csv"
SHORTEST = 200  # rounds of a run that is taken
DISTANCES = (1.2, 1.6, 2.2, 3.2, FARTHEST)  # budgets over those of the runs, in ranges
OTHER_NAMES = {"full": "grpo"}  # what GRPO on all rollouts is called in the regimes of CBS


def long_arms(folder: Path = RUNS) -> Iterator[tuple[str, str, dict[int, Curve]]]:
    """The arms with runs of 200 rounds and more: place, method and a curve for each seed."""
    arms: dict[Path, list[Record]] = {}
    for path in record_paths(folder):
        record = Record(path)
        if len(record.rounds) >= SHORTEST:
            arms.setdefault(path.parent, []).append(record)
    for place, records in sorted(arms.items()):
        # Names such as grpo-16 and pods-64-16 have the sizes behind the method.
        name = re.sub(r"(-\d+)+$", "", records[0].label)
        [curves] = read({"arm": records}).values()
        yield str(place.relative_to(folder)), OTHER_NAMES.get(name, name), curves


def cases(curves: Mapping[int, Curve], *, alone: bool = False) -> list[dict[str, float]]:
    """All forecasts that the evaluations of one arm allow, beside what came of them.

    Parameters
    ----------
    curves : dict from seed to Curve
        Fewer than four have no two halves.
    alone : bool
        Forecasts are made from one seed, and held against the mean of all others.

    Returns
    -------
    list of dict
        rounds (that the forecast saw), distance (the budget over them), value, half (of the
        interval), last (the accuracy that was seen last) and truth.
    """
    if len(curves) < 4:
        return []
    rounds = next(iter(curves.values())).rounds
    scores = np.array([curve.scores for curve in curves.values()])
    rows = []
    for half in (0, 1):
        seen, others = scores[half::2], scores[1 - half :: 2]
        if alone:
            seen, others = scores[half : half + 1], np.delete(scores, half, axis=0)
        for end in range(FEWEST, len(rounds)):
            for ahead in range(end, len(rounds)):
                distance = rounds[ahead] / rounds[end - 1]
                if not DISTANCES[0] <= distance <= FARTHEST:
                    continue
                made = forecast(rounds[:end], seen[:, :end], float(rounds[ahead]))
                if made.why:
                    continue
                # The lower end is hardly ever cut off at 0, and the upper one often at 1.
                row = {"rounds": rounds[end - 1], "distance": distance, "value": made.value}
                row |= {"half": made.value - made.low, "last": seen[:, end - 1].mean()}
                rows.append(row | {"truth": others[:, ahead].mean()})
    return rows


def all_cases(
    arms: Iterable[tuple[str, str, dict[int, Curve]]], *, alone: bool = False
) -> pd.DataFrame:
    """The cases of all arms, as `long_arms` gives them, with their arm and their method."""
    rows = [
        {"arm": arm, "method": method, **case}
        for arm, method, curves in arms
        for case in cases(curves, alone=alone)
    ]
    table = pd.DataFrame(rows)
    ranges = pd.cut(table["distance"], DISTANCES, include_lowest=True)
    table["range"] = [f"{max(each.left, DISTANCES[0]):.1f} to {each.right:.1f}" for each in ranges]
    # An arm that was evaluated often has more cases, and counts as much as any other.
    table["weight"] = 1 / table.groupby(["arm", "range"])["arm"].transform("size")
    return table


def held_out(table: pd.DataFrame) -> pd.DataFrame:
    """The half-widths that all other methods ask for, and whether the interval then held."""
    parts = []
    errors = (table["value"] - table["truth"]).abs()
    scores = errors / (table["half"] / HALF_WIDTH)
    for method, mine in table.groupby("method"):
        others = table["method"] != method
        order = np.argsort(scores[others].to_numpy())
        share = table["weight"][others].to_numpy()[order].cumsum()
        place = int(np.searchsorted(share, 0.9 * share[-1]))
        width = float(scores[others].to_numpy()[order][place])
        half = mine["half"] / HALF_WIDTH * width
        parts.append(mine.assign(width=width, half_width=half, holds=errors[mine.index] <= half))
    return pd.concat(parts)


def summary(table: pd.DataFrame, alone: pd.DataFrame) -> pd.DataFrame:
    """The table of `data/forecasts.csv`: all, by distance, by method, and from single runs.

    Parameters
    ----------
    table, alone : DataFrame
        What `held_out` gives for forecasts from several seeds, and from one.

    Returns
    -------
    DataFrame
        by, group, methods, arms, cases; error (mean absolute) and bias of the forecast, and
        error_of_last, that of the last accuracy; coverage of the interval whose width the other
        methods set, half_width and the number of standard errors on each side, smallest and
        largest.
    """
    rows = []
    parts = [("all", "all", table), ("seeds", "one", alone)]
    parts += [("distance", *part) for part in table.groupby("range")]
    parts += [("method", *part) for part in table.groupby("method")]
    for by, group, part in parts:
        weight = part["weight"] / part["weight"].sum()
        off = part["value"] - part["truth"]
        row = {"by": by, "group": group, "methods": part["method"].nunique()}
        row |= {"arms": part["arm"].nunique(), "cases": len(part)}
        row |= {"error": (weight * off.abs()).sum(), "bias": (weight * off).sum()}
        row["error_of_last"] = (weight * (part["last"] - part["truth"]).abs()).sum()
        row["coverage"] = (weight * part["holds"]).sum()
        row["half_width"] = (weight * part["half_width"]).sum()
        row |= {"errors_least": part["width"].min(), "errors_most": part["width"].max()}
        rows.append(row)
    return pd.DataFrame(rows)


def main() -> None:
    """Make the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", default=TABLE, type=Path)
    arms = list(long_arms())
    found = summary(held_out(all_cases(arms)), held_out(all_cases(arms, alone=True)))
    found.to_csv(parser.parse_args().table, index=False, float_format="%.3f", lineterminator="\n")
    print(found.round(3).to_string(index=False))


if __name__ == "__main__":
    main()
