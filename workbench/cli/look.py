"""The commands that look at records: show and compare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.backend_bases import FigureCanvasBase

from workbench.analysis import comparisons
from workbench.cli import summaries
from workbench.cli.terminal import as_json, say
from workbench.plots import curves as plots
from workbench.plots import tables as plots_tables
from workbench.plots.text import plain
from workbench.records import Record
from workbench.reports.figures import draw_curves
from workbench.reports.tables import default_baseline

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

UNITS = {
    "seconds": "seconds of training",
    "flops": "floating-point operations",
    "rollouts": "rollouts",
    "round": "rounds",
}


def show(paths: tuple[str, ...], html: str | None, out: str | None, json: bool) -> None:
    """A table of each record, and a figure and an HTML report where they are asked for."""
    groups = comparisons.find(paths)
    records = [record for group in groups.values() for record in group]
    # What cannot be drawn is refused before any record is summed up.
    if out is not None:
        _check_format(out)
        if len(groups) > 1:
            raise ValueError(
                f"--out shows one method, and there are {', '.join(groups)}; use compare"
            )

    # Numbers and files first, then one place that prints.
    summarized = [summaries.summary(record) for record in records]
    written = {}
    if out is not None:
        figure = plots.overview(records[0]) if len(records) == 1 else _seeds(records)
        written["figure"] = _save(figure, out)
    if html is not None:
        from workbench.reports import report

        written["report"] = str(report(groups, html))

    if json:
        say(as_json({"records": summarized, **written}))
        return
    for record, numbers in zip(records, summarized):
        say(f"{record!r}\n{summaries.text(numbers)}\n")
    for name, path in written.items():
        say(f"{name:<10}{path}")


def compare(
    paths: tuple[str, ...],
    x: str,
    y: str,
    baseline: str | None,
    budget: float | None,
    out: str | None,
    json: bool,
) -> None:
    """Accuracy of every label at one budget, with paired differences to a baseline."""
    groups = comparisons.find(paths)
    if out is not None:
        _check_format(out)
    if len(groups) < 2:
        raise ValueError(
            f"{', '.join(paths)}: all are runs of {next(iter(groups))}; at least two methods or "
            "settings are needed"
        )
    # Accuracies on different held-out problems cannot be compared.
    comparisons.comparable(groups)
    baseline = baseline or default_baseline(groups)
    # The largest cost that all runs have reached, so that nothing is
    # read beyond the end of a curve.
    if budget is None:
        budget = comparisons.common_budget(groups, x)
    table = comparisons.at_budget(groups, x, budget, baseline=baseline, y=y)

    # The figure is written before anything is printed: an error then stands alone on the terminal.
    figure = None
    if out is not None:
        figure = _save(_figure(groups, x, y, budget, table, baseline), out)
    if json:
        labels = table.to_dict(orient="index")
        compared = {"x": x, "y": y, "budget": budget, "baseline": baseline, "figure": figure}
        say(as_json({**compared, "labels": labels}))
        return
    everyone = [record for group in groups.values() for record in group]
    say(_text(table, plots.axis_label(y, everyone), x, budget, baseline))
    if figure is not None:
        say(f"\nfigure    {figure}")


def _text(table: pd.DataFrame, score: str, x: str, budget: float, baseline: str) -> str:
    """The comparison as lines to read; `score` says what is compared."""
    width = max(len(label) for label in table.index) + 2
    difference = f"minus {baseline}"
    lines = [
        f"{score} at {_amount(budget)} {UNITS[x]}",
        "",
        f"{'':<{width}}{'runs':>4}{'mean':>8}{'':8}{difference:>16}   95 % interval      better",
    ]
    for label, row in table.iterrows():
        # One seed alone has no spread.
        half = f" ± {row['half']:.3f}" if math.isfinite(row["half"]) else ""
        line = f"{label:<{width}}{row['n']:>4.0f}{row['mean']:>8.3f}{half:<8}"
        # The baseline is not compared with itself, and pairs need a seed that both have.
        if math.isfinite(row.get("difference", math.nan)):
            interval = "needs two seeds"
            if math.isfinite(row["low"]):
                interval = f"{row['low']:+.3f} to {row['high']:+.3f}"
            line += f"{row['difference']:>+16.3f}   {interval:<16}{row['better']:>9.0%}"
        elif label != baseline:
            line += f"{'no seed in common':>20}"
        lines.append(line.rstrip())
    lines += [
        "",
        "± is the 95 % interval over seeds. Differences are between runs of the same seed; their",
        "intervals are Student's. better: the share of seeds that are ahead, ties counting half.",
    ]
    return "\n".join(lines)


def _amount(budget: float) -> str:
    """A budget with four digits, FLOPs as a power of ten."""
    # Large numbers of rollouts and seconds are shown in full. FLOPs have far more digits.
    return f"{budget:,.0f}" if 1000 <= budget < 1e7 else f"{budget:.4g}"


def _seeds(records: list[Record]) -> Figure:
    """One method's seeds in one figure."""
    for record in records:
        if record.evals.empty or not len(record.rounds):
            raise ValueError(
                f"--out: {record.path} has no evaluation or no round yet, so its seeds make no "
                "figure"
            )
    return plots.summary(records)


def _figure(
    groups: Mapping[str, list[Record]],
    x: str,
    y: str,
    budget: float,
    table: pd.DataFrame,
    baseline: str,
) -> Figure:
    """Curves up to where each run ended, and the paired differences at the budget."""
    with plots.style():
        # In inches: the panel of differences has a row for each method.
        height = max(3.8, 0.8 + 0.22 * len(groups))
        figure, (curves, differences) = plots.plt.subplots(
            1, 2, figsize=(11, height), layout="constrained"
        )
        draw_curves(groups, x=x, y=y, ax=curves)
        curves.axvline(budget, color="#666666", ls=":", lw=1)
        curves.set_xlabel(f"{plots.AXIS_LABELS[x]} (dotted: {_amount(budget)})")
        # The column is missing where there is nothing to compare, and the panel then stays empty.
        if "difference" in table:
            plots_tables.differences(
                table.rename(index=plain),
                label="difference in held-out accuracy, 95 %",
                ax=differences,
            )
        title = f"minus {plain(baseline)} at {_amount(budget)} {UNITS[x]}"
        differences.set_title(title, fontsize="small")
    return figure


def _check_format(out: str) -> None:
    """ValueError for a picture format that cannot be written."""
    known = FigureCanvasBase.get_supported_filetypes()
    if Path(out).suffix.lstrip(".") not in known:
        endings = ", ".join(f".{name}" for name in sorted(known))
        raise ValueError(f"--out {out}: no picture format; allowed are {endings}")


def _save(figure: Any, out: str) -> str:
    target = Path(out)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=150)
    # pyplot keeps a figure in memory until it is closed.
    plots.plt.close(figure)
    return str(target)
