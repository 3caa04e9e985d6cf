"""A trial as one HTML file, which opens with what was found and then shows why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt

from workbench.analysis import cost
from workbench.analysis.courses import name_of, read
from workbench.analysis.targets import to_target
from workbench.plots import trials as plots
from workbench.records import Record
from workbench.reports.figures import element
from workbench.reports.page import content, snapshots, write
from workbench.reports.tables import Table, frame
from workbench.utils.numbers import NOTHING, ratio_text

# What the answer is asked in besides the measure of the trial.
MEASURES: dict[str, Any] = {
    "rollouts": "rollouts",
    "sampled tokens": "tokens_sampled",
    "trained tokens": "tokens_trained",
    "FLOPs": "flops",
    **{model.name: model for name, model in cost.MACHINES.items() if name != "flops"},
}
SIZE = (11.2, 6.6)  # of the figure in inches, such that its texts are as large as those of the page
MACHINES_NOTE = (
    "Seconds are those of a cost model: a fixed part for every problem, and a part for every "
    "rollout sampled and trained on. The models are fitted to numbers that papers printed for "
    "their machines, so that they say where a difference would show, and not how large it is."
)


def trial(
    records: Mapping[str, Mapping[int, Record]],
    table: pd.DataFrame,
    path: Any,
    *,
    tuning: pd.DataFrame | None = None,
    baseline: str,
    target: float,
    measure: Any = "rollouts",
    title: str | None = None,
) -> Path:
    """Write the report of a trial.

    Parameters
    ----------
    records : dict from label to a dict from seed to Record
        Of the comparison, with the baseline.
    table : DataFrame
        As `Trial.table`, with a column `sentence`.
    path : path
        The file to write; directories are made.
    tuning : DataFrame, optional
        As `Trial.tuning`.
    baseline, target, measure
        As in `plots.trial`.
    title : str, optional
        What was found, by default.

    Returns
    -------
    Path
        Of the file.
    """
    runs = {label: list(by_seed.values()) for label, by_seed in records.items() if by_seed}
    groups = snapshots({baseline: runs[baseline], **runs})
    page = content(groups, title or plots.headline(table, baseline, measure), rows=0)
    # Runs of a trial share cores, so nothing is compared in the seconds that they took; and what
    # they cost to the target says more than accuracies at one budget.
    page["comparison"] = None
    page["notes"] = []
    page["curves"] = [each for each in page["curves"] if "training time" not in each["caption"]]
    page["answer"] = {
        "sentences": list(table["sentence"]),
        "figures": [_figure(records, table, tuning, baseline, target, measure)],
        "tables": [_answers(table), _by_measure(groups, baseline, target)],
        "notes": [MACHINES_NOTE],
    }
    return write(path, page)


def _figure(
    records: Any,
    table: pd.DataFrame,
    tuning: pd.DataFrame | None,
    baseline: str,
    target: float,
    measure: Any,
) -> dict[str, Any]:
    """The figure of the trial, whose title stands above the page."""
    figure = plt.figure(figsize=SIZE, layout="constrained")
    options = {"baseline": baseline, "target": target, "measure": measure}
    plots.trial(records, table, tuning, title="", figure=figure, **options)
    return element(
        figure,
        f"Learning curves, cost by seed, tuning, cost by price: {'; '.join(table['sentence'])}",
        f"Held-out accuracy by {name_of(measure)}, means over seeds with 95 % bands. Cost to an "
        f"accuracy of {target:.3g} over {baseline}'s: a dot is a seed, hollow where a run did not "
        "arrive; within the grey band costs are alike. Tuning: circles are the rates taken, hollow "
        "dots runs that did not arrive, crosses runs that collapsed. Cost by what a sampled token "
        "costs over what a trained one costs.",
    )


def _answers(table: pd.DataFrame) -> Table:
    """The answers as texts, with how many runs reached the target."""
    rows = {}
    for row in table.to_dict("records"):
        rows[str(row["arm"])] = [
            row["verdict"],
            ratio_text(row["ratio"], row["low"], row["high"]),
            _number(row["seeds"]),
            f"{_number(row.get('reached'))} and {_number(row.get('baseline_reached'))}",
            _number(row.get("learning_rate"), "{:.2g}"),
            _points(row),
            _number(row.get("p_holm"), "{:.2g}"),
            _number(row.get("resolves"), "{:.0f} %"),
        ]
    heads = ["verdict", "ratio", "seeds", "reached: arm and baseline", "learning rate"]
    heads += ["accuracy at equal cost, points", "p (Holm)", "would have been seen"]
    caption = "Cost to the target over the baseline's, with the interval of the last look"
    return Table(caption, {"": frame(rows, heads)})


def _by_measure(groups: Any, baseline: str, target: float) -> Table:
    """The ratio of costs in every measure, a row an arm."""
    courses = read(groups)
    columns = {}
    for name, unit in MEASURES.items():
        ratios = to_target(courses, target, unit, baseline=baseline)
        ratios = ratios.reindex(columns=["ratio", "low", "high"])
        columns[name] = [ratio_text(*row) for row in ratios.itertuples(index=False)]
    shown = pd.DataFrame(columns, index=list(courses)).drop(index=baseline)
    caption = "The same by what is counted; intervals of 95 %, for a single look at a single arm"
    return Table(caption, {"": shown})


def _points(row: Mapping[str, Any]) -> str:
    """The difference of accuracies with its interval, such as +2.1 [+0.4, +3.8]."""
    value = _number(row.get("difference"), "{:+.1f}")
    low, high = row.get("difference_low", np.nan), row.get("difference_high", np.nan)
    return f"{value} [{low:+.1f}, {high:+.1f}]" if np.isfinite([low, high]).all() else value


def _number(value: Any, form: str = "{:.0f}") -> str:
    """A number as a text, and a dash where there is none."""
    known = value is not None and np.isfinite(value)
    return form.format(value) if known else NOTHING
