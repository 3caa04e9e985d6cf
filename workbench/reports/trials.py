"""A trial as one HTML file, which opens with what was found and then shows why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt

from workbench.analysis import cost
from workbench.analysis.curves import Curve, Unit, name_of, read
from workbench.analysis.targets import to_target
from workbench.plots import trials as plots
from workbench.records import Record
from workbench.reports.figures import element
from workbench.reports.page import content, snapshots, write
from workbench.reports.tables import Table
from workbench.utils.numbers import NOTHING, ratio_text

# What the answer is asked in besides the measure of the trial.
MEASURES: dict[str, Any] = {
    "rollouts": "rollouts",
    "sampled tokens": "tokens_sampled",
    "trained tokens": "tokens_trained",
    "FLOPs": "flops",
    **{model.name: model for name, model in cost.MACHINES.items() if name != "flops"},
}
# Columns of the table of answers: what is shown, and how.
NUMBERS = {
    "seeds": ("seeds", "{:.0f}"),
    "reached the target": ("reached", "{:.0f}"),
    "of the baseline": ("baseline_reached", "{:.0f}"),
    "learning rate": ("learning_rate", "{:.3g}"),
    "accuracy at equal cost, points": ("difference", "{:+.1f}"),
    "from": ("difference_low", "{:+.1f}"),
    "to": ("difference_high", "{:+.1f}"),
    "p (Holm)": ("p_holm", "{:.2g}"),
    "would have been seen": ("resolves", "{:.0f} %"),
}
CAPTION = (
    "Held-out accuracy by {name}, means over seeds with 95 % bands. Cost to an accuracy of "
    "{target:.3g} over {baseline}'s: a dot is a seed, hollow if a run did not reach that accuracy; "
    "within the grey band costs are alike. Tuning: circles are the rates taken, hollow dots runs "
    "that did not reach the accuracy, crosses runs that collapsed. Cost by what a sampled token "
    "costs over what a trained one costs."
)
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
    figure = plt.figure(figsize=SIZE, layout="constrained")
    options = {"baseline": baseline, "target": target, "measure": measure}
    # The title stands above the page.
    plots.trial(records, table, tuning, title="", figure=figure, **options)
    sentences = list(table["sentence"])
    alt = f"Learning curves, cost by seed, tuning, cost by price: {'; '.join(sentences)}"
    caption = CAPTION.format(name=name_of(measure), target=target, baseline=baseline)
    page["answer"] = {
        "sentences": sentences,
        "figures": [element(figure, alt, caption)],
        "tables": [_answers(table), _by_measure(groups, baseline, target)],
        "notes": [MACHINES_NOTE],
    }
    return write(path, page)


def _answers(table: pd.DataFrame) -> Table:
    """The answers as texts."""
    ratios = table[["ratio", "low", "high"]].itertuples(index=False)
    columns = {"verdict": list(table["verdict"]), "ratio": [ratio_text(*row) for row in ratios]}
    for head, (column, form) in NUMBERS.items():
        values = table[column].astype(float)
        columns[head] = [form.format(value) if np.isfinite(value) else NOTHING for value in values]
    caption = "Cost to the target over the baseline's, with the interval of the last look"
    return Table(caption, {"": pd.DataFrame(columns, index=table["arm"])})


def _by_measure(groups: Any, baseline: str, target: float) -> Table:
    """The ratio of costs in every measure, a row an arm."""
    curves = read(groups)
    columns = {}
    for name, unit in MEASURES.items():
        # An arm that trains on nothing has no cost in what is trained, and no ratio of costs.
        spending = {label: runs for label, runs in curves.items() if _all_spend(runs, unit)}
        ratios = to_target(spending, target, unit, baseline=baseline)
        ratios = ratios.reindex(index=curves, columns=["ratio", "low", "high"])
        columns[name] = [ratio_text(*row) for row in ratios.itertuples(index=False)]
    shown = pd.DataFrame(columns, index=list(curves)).drop(index=baseline)
    caption = "The same by what is counted; intervals of 95 %, for a single look at a single arm"
    return Table(caption, {"": shown})


def _all_spend(runs: Mapping[int, Curve], unit: str | Unit) -> bool:
    """Whether every run of an arm has spent something by its end."""
    return all(curve.places(unit)[-1] > 0 for curve in runs.values())
