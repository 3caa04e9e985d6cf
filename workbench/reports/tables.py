"""Tables of the HTML report: results, the comparison, an average round.

A table of the page has a caption and parts: data frames of texts by their titles.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from workbench.analysis import comparisons
from workbench.analysis.courses import UNITS
from workbench.analysis.intervals import mean_interval
from workbench.analysis.sequential import verdicts_on_gains
from workbench.plots.curves import AXIS_LABELS
from workbench.records import Record
from workbench.utils.numbers import NOTHING, duration, mean_and_half, span

Groups = Mapping[str, Sequence[Record]]


class Table(NamedTuple):
    """Data frames of texts with the same columns, below one another, by their titles."""

    caption: str
    parts: dict[str, pd.DataFrame]


def each_record(groups: Groups) -> Iterator[tuple[str, Record]]:
    """Label and record of every run."""
    for label, group in groups.items():
        for record in group:
            yield label, record


def default_baseline(groups: Groups) -> str:
    """The label that others are compared with: grpo, a method called so, or else the first."""
    # The label first, and then the method behind it, since labels are the caller's choice.
    methods = [label for label, group in groups.items() if group[0].label == "grpo"]
    return "grpo" if "grpo" in groups else [*methods, *groups][0]


def frame(rows: Mapping[str, Sequence[Any]], heads: Sequence[str]) -> pd.DataFrame:
    """Rows by their names as a data frame."""
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(heads), dtype=object)


# Results


def results(groups: Groups) -> Table:
    """Held-out accuracy before and after, and what it took."""
    samples = {n for _, record in each_record(groups) for n in record.evals.get("samples", [])}
    sampled = f"avg@{samples.pop()}" if len(samples) == 1 else "sampled"
    heads = ["runs", "rounds", f"{sampled} before", f"{sampled} after", "greedy before"]
    heads += ["greedy after", "rollouts", "training time"]
    rows = {label: _result(group) for label, group in groups.items()}
    caption = "Held-out accuracy at the first and the last evaluation; ± is the 95 % interval "
    return Table(caption + "over seeds", {"": frame(rows, heads)})


def _result(group: Sequence[Record]) -> list[Any]:
    curves = [record.accuracy() for record in group]
    curves = [curve for curve in curves if len(curve)]
    ends = []
    for column in ("accuracy", "greedy"):
        for place in (0, -1):
            values = [curve[column].iloc[place] for curve in curves]
            ends.append(mean_and_half(*mean_interval(values)) if values else NOTHING)
    rounds = [record.rounds for record in group]
    # Runs may have stopped early, so their lengths are shown as a span.
    lengths = sorted({len(table) for table in rounds})
    totals = pd.DataFrame(
        [table[["rollouts", "seconds"]].sum() for table in rounds if len(table)],
        columns=["rollouts", "seconds"],
    ).mean()
    rollouts, seconds = totals.fillna(0)
    return [len(group), span(lengths), *ends, f"{rollouts:,.0f}", duration(seconds)]


def comparison(groups: Groups) -> tuple[Table | None, list[str]]:
    """The table at the common budgets of rollouts and of seconds, and notes; None for one label."""
    if len(groups) < 2:
        return None, []
    # Runs that cannot be compared are no reason to have no report: the page says why instead.
    try:
        comparisons.comparable(groups)
        comparisons.common_budget(groups, "round")
    except ValueError as error:
        return None, [f"No comparison at an equal budget: {error}."]
    baseline = default_baseline(groups)
    parts = {}
    for unit in ("rollouts", "seconds"):
        budget = comparisons.common_budget(groups, unit)
        table = comparisons.at_budget(groups, unit, budget, baseline=baseline)
        amount = f"{budget:,.0f}" if budget >= 100 else f"{budget:.3g}"
        parts[f"at {amount} {UNITS[unit]}"] = compared(table, baseline)
    notes = [
        "Budgets are the most that every run reached. Differences are between runs of the same "
        "seed, on the same problems. Verdicts are those after Holm's correction for their number."
    ]
    # Seconds are only comparable on one machine; rollouts are everywhere.
    machines = [record.manifest.get("hardware") for _, record in each_record(groups)]
    if len({json.dumps(machine, sort_keys=True) for machine in machines}) > 1:
        notes.append("The runs come from different machines, so their seconds do not compare.")
    return Table("Held-out accuracy when all had spent the same", parts), notes


def compared(table: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """The table of `comparisons.at_budget` as texts, a row a label."""
    rows = {}
    verdicts = verdicts_on_gains(table).fillna("")
    for label, row in table.iterrows():
        difference = interval = ahead = ""
        # The baseline has no difference to itself, and a label may share no seed with it.
        if np.isfinite(row.get("difference", np.nan)):
            difference = f"{row['difference']:+.3f}"
            interval = "needs two seeds"
            if np.isfinite(row["low"]):
                interval = f"{row['low']:+.3f} to {row['high']:+.3f}"
            ahead = f"{row['better']:.0%}"
        elif label != baseline:
            difference = "no seed in common"
        accuracy = mean_and_half(row["mean"], row["half"])
        rows[label] = [f"{row['n']:.0f}", accuracy, difference, interval, ahead, verdicts[label]]
    heads = ["runs", "held-out accuracy", f"minus {baseline}", "95 % interval", "seeds ahead"]
    heads.append("verdict")
    return frame(rows, heads)


# An average round


def average_round(groups: Groups) -> Table:
    """Means over all rounds and seeds of every number that a round has."""
    means = {
        label: pd.concat([record.rounds for record in group]).mean(numeric_only=True)
        for label, group in groups.items()
    }
    table = pd.DataFrame(means).drop(index="round", errors="ignore")
    names = {name: AXIS_LABELS.get(name, name.replace("_", " ")) for name in table.index}
    shown = table.rename(index=names).map(lambda mean: mean_and_half(mean, np.nan))
    return Table("Means over all rounds", {"": shown})


def has_numbers(column: pd.Series) -> bool:
    """Whether a column is numeric and not empty; methods may write others, or without a number."""
    return column.dtype.kind in "iuf" and bool(column.notna().any())
