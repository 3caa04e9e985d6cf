"""The commands that look at records: show and compare."""

from math import isfinite, nan
from pathlib import Path

import click
from matplotlib.backend_bases import FigureCanvasBase

from workbench.analysis import comparisons
from workbench.cli import summaries
from workbench.plots import curves as plots
from workbench.plots import papers as plots_papers
from workbench.reports.figures import place_legend, plain

UNITS = {
    "seconds": "seconds of training",
    "flops": "floating-point operations",
    "rollouts": "rollouts",
    "round": "rounds",
}


def show(paths, html, out, as_json):
    """A table of each record; a figure and an HTML report where they are asked for."""
    groups = comparisons.find(paths)
    save = _saver(out)
    records = [record for group in groups.values() for record in group]
    if out is not None and len(groups) > 1:
        raise ValueError(f"--out shows one method, and there are {', '.join(groups)}; use compare")
    found = [summaries.summary(record) for record in records]
    written = {}
    if out is not None:
        written["figure"] = save(
            _seeds(records) if len(records) > 1 else plots.overview(records[0])
        )
    if html is not None:
        from workbench.reports.page import report

        written["report"] = str(report(groups, html))
    if as_json:
        return click.echo(summaries.dump({"records": found, **written}))
    for record, numbers in zip(records, found):
        click.echo(f"{record!r}\n{summaries.text(numbers)}\n")
    for name, path in written.items():
        click.echo(f"{name:<10}{path}")


def compare(paths, x, y, baseline, budget, out, as_json):
    """Held-out accuracy of every label at one budget, with paired differences to a baseline, and the figure."""
    groups = comparisons.find(paths)
    save = _saver(out)
    if len(groups) < 2:
        only = next(iter(groups))
        raise ValueError(
            f"{', '.join(paths)}: all are runs of {only}; at least two methods or settings are needed"
        )
    comparisons.comparable(groups)
    baseline = next(iter(groups)) if baseline is None else baseline
    budget = comparisons.common_budget(groups, x) if budget is None else budget
    table = comparisons.at_budget(groups, x, budget, baseline=baseline, y=y)
    figure = save(_figure(groups, x, y, budget, table, baseline)) if out is not None else None
    if as_json:
        found = {"x": x, "y": y, "budget": budget, "baseline": baseline, "figure": figure}
        return click.echo(summaries.dump(found | {"labels": table.to_dict(orient="index")}))
    click.echo(_text(table, x, y, budget, baseline))
    if figure:
        click.echo(f"\nfigure    {figure}")


def _seeds(records):
    empty = next(
        (record for record in records if record.evals.empty or not len(record.rounds)), None
    )
    if empty is not None:
        raise ValueError(
            f"--out: {empty.path} has no evaluation or no round yet, so its seeds make no figure"
        )
    return plots.summary(records)


def _text(table, x, y, budget, baseline):
    width = max(map(len, table.index)) + 2
    lines = [
        f"{plots.AXIS_LABELS[y]} at {_amount(budget)} {UNITS[x]}",
        "",
        f"{'':<{width}}{'runs':>4}{'mean':>8}{'':8}{f'minus {baseline}':>16}   95 % interval      better",
    ]
    for label, row in table.iterrows():
        half = f" ± {row['half']:.3f}" if isfinite(row["half"]) else ""
        line = f"{label:<{width}}{row['n']:>4.0f}{row['mean']:>8.3f}{half:<8}"
        if isfinite(row.get("difference", nan)):
            line += f"{row['difference']:>+16.3f}   {row['low']:+.3f} to {row['high']:+.3f}{row['better']:>9.0%}"
        elif label != baseline:
            line += f"{'no seed in common':>20}"
        lines.append(line.rstrip())
    return "\n".join(
        [
            *lines,
            "",
            "± 95 % over seeds. Differences: the same seeds and problems, two-way bootstrap. "
            "better: share of seeds ahead.",
        ]
    )


def _amount(budget):
    return f"{budget:.4g}" if budget < 1000 or budget >= 1e7 else f"{budget:,.0f}"


def _figure(groups, x, y, budget, table, baseline):
    """Curves up to where each run ended, and the paired differences at the budget."""
    with plots.style():
        figure, (curves, differences) = plots.plt.subplots(
            1, 2, figsize=(11, 3.8), layout="constrained"
        )
        plots.learning_curve(
            {plain(label): group for label, group in groups.items()}, x=x, y=y, ax=curves
        )
        place_legend(curves, len(groups))
        curves.axvline(budget, color="#666666", ls=":", lw=1)
        curves.set_xlabel(f"{plots.AXIS_LABELS[x]} (dotted: {_amount(budget)})")
        if "difference" in table:
            plots_papers.differences(
                table.rename(index=plain),
                label="difference in held-out accuracy, 95 %",
                ax=differences,
            )
        differences.set_title(
            f"minus {plain(baseline)} at {_amount(budget)} {UNITS[x]}", fontsize="small"
        )
    return figure


def _saver(out):
    """A function that writes a figure to `out` and gives its path; ValueError now for a format that cannot be written."""
    if out is None:
        return None
    target, known = Path(out), FigureCanvasBase.get_supported_filetypes()
    if target.suffix.lstrip(".") not in known:
        raise ValueError(
            f"--out {out}: no picture format; allowed are {', '.join(f'.{name}' for name in sorted(known))}"
        )

    def save(figure):
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, dpi=150)
        plots.plt.close(figure)
        return str(target)

    return save
