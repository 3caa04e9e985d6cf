"""A trial as one HTML file, which opens with what was found and then shows why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis import cost
from workbench.analysis.courses import name_of, read
from workbench.analysis.targets import to_target
from workbench.plots import trials as plots
from workbench.plots.curves import learning_curve
from workbench.records import Record
from workbench.reports.figures import drawn
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
        "figures": _figures(groups, table, tuning, baseline, target, measure),
        "tables": [_answers(table), _by_measure(groups, baseline, target)],
        "notes": [MACHINES_NOTE],
    }
    return write(path, page)


def _figures(
    groups: Any,
    table: pd.DataFrame,
    tuning: pd.DataFrame | None,
    baseline: str,
    target: float,
    measure: Any,
) -> list[dict[str, Any]]:
    """The panels of the trial's figure as figures of the page."""
    courses = read(groups)
    legend = "above" if len(groups) <= 4 else "outside"
    said = "; ".join(table["sentence"])
    figures = [
        drawn(
            lambda ax: learning_curve(groups, x=measure, legend=legend, ax=ax),
            f"Held-out accuracy by {name_of(measure)}: {said}",
            f"Held-out accuracy by {name_of(measure)}, means over seeds with 95 % bands.",
        ),
        drawn(
            lambda ax: plots.ratios_by_seed(
                courses, table, baseline=baseline, target=target, unit=measure, ax=ax
            ),
            f"Cost to the target by seed: {said}",
            f"Cost to an accuracy of {target:.3g} over {baseline}'s: a dot is a seed, hollow where "
            "a run did not arrive. Within the grey band costs are alike.",
            rows=2 * len(table),
        ),
    ]
    if tuning is not None and len(tuning):
        chosen = plots.chosen_rates(table, baseline)
        figures.append(
            drawn(
                lambda ax: plots.tuning_curves(tuning, chosen, labels=list(groups), ax=ax),
                f"Tuning: cost to the target by learning rate; taken were {chosen}",
                "Tuning: cost to the target by learning rate. Circles are the rates taken, hollow "
                "dots runs that did not arrive, crosses runs that collapsed.",
            )
        )
    if len(groups) > 1:
        figures.append(
            drawn(
                lambda ax: plots.price_axis(courses, baseline=baseline, target=target, ax=ax),
                "Cost to the target by the price of sampling",
                f"Cost to the target over {baseline}'s, by what a sampled token costs over what a "
                "trained one costs.",
            )
        )
    return figures


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
