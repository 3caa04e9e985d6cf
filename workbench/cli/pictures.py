"""The figures that commands write to files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.analysis.curves import UNITS
from workbench.cli.summaries import amount
from workbench.plots import curves as plots
from workbench.plots import tables as plots_tables
from workbench.plots.style import heading, plain
from workbench.records import Record

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def comparison(
    groups: Mapping[str, list[Record]],
    x: str,
    y: str,
    budget: float,
    table: pd.DataFrame,
    baseline: str,
) -> Figure:
    """Curves up to where each run ended, and the paired differences at the budget."""
    with plots.style():
        # In inches: a row for each method beside the curves, and half a row in the legend below.
        height = max(3.8, 0.8 + 0.33 * len(groups))
        figure, (curves, differences) = plots.plt.subplots(
            1, 2, figsize=(11, height), layout="constrained"
        )
        plots.learning_curve(groups, x=x, y=y, legend=None, ax=curves)
        heading(curves, legend=2)
        curves.axvline(budget, color="#666666", ls=":", lw=1)
        curves.set_xlabel(f"{plots.AXIS_LABELS[x]} (dotted: {amount(budget)})")
        # The column is missing where there is nothing to compare, and the panel then stays empty.
        if "difference" in table:
            label = "difference in held-out accuracy, 95 %"
            plots_tables.differences(table, label=label, ax=differences)
        title = f"minus {plain(baseline)} at {amount(budget)} {UNITS[x]}"
        # At the right, where a long one has the room above the names.
        differences.set_title(title, fontsize="small", loc="right")
    return figure


def save(figure: Any, *files: Any) -> str:
    """Write a figure to files of any formats, and return where the first of them is."""
    for target in map(Path, files):
        target.parent.mkdir(parents=True, exist_ok=True)
        # Without the date the same run always draws the same file.
        dated = {"metadata": {"Date": None}} if target.suffix == ".svg" else {}
        figure.savefig(target, dpi=150, **dated)
    # pyplot keeps a figure in memory until it is closed.
    plots.plt.close(figure)
    return str(files[0])
