"""The commands on records: show, report, pack and compare."""

from __future__ import annotations

from typing import Annotated, Literal

from typer import Argument, Option

from workbench.cli import summaries
from workbench.cli.options import Figure, Json
from workbench.cli.summaries import amount
from workbench.cli.terminal import as_json, say


def show(
    paths: Annotated[list[str], Argument(metavar="RECORD...")],
    out: Figure = None,
    json: Json = False,
) -> None:
    """Show what a run left, as a table or a figure.

    RECORD is a run's directory, one with a directory for each seed, or one with label/seed-0,
    label/seed-1, ... A figure shows one method.

    \b
    Examples:
      python -m workbench show runs/grpo
      python -m workbench show runs/grpo --out overview.svg
      python -m workbench show runs/grpo runs/cbs
      python -m workbench show runs/grpo --json
    """
    from workbench import plots
    from workbench.analysis import comparisons
    from workbench.cli import pictures
    from workbench.reports.tables import RESULTS, results

    groups = comparisons.load_all(*paths)
    records = [record for group in groups.values() for record in group]
    if out is not None and len(groups) > 1:
        raise ValueError(f"--out shows one method, and there are {', '.join(groups)}; use compare")

    # Numbers and files first, then one place that prints.
    summarized = [summaries.summary(record) for record in records]
    figure = None if out is None else pictures.save(plots.overview(records), out)
    if json:
        say(as_json({"records": summarized, "figure": figure}))
        return
    if len(records) == 1:
        say(f"{records[0]!r}\n{summaries.text(summarized[0])}\n")
        say(f"{summaries.responses(records[0])}\n")
    else:
        say(f"{RESULTS}\n\n{results(groups).to_string()}\n")
    if figure is not None:
        say(f"figure    {figure}")


def report(
    paths: Annotated[list[str], Argument(metavar="RECORD...")],
    out: Annotated[str, Option(metavar="FILE", help="The file to write.")],
    json: Json = False,
) -> None:
    """Write a page of one or several runs, as one HTML file that loads nothing else.

    RECORD is as for show. It takes the packages of the extra notebooks.

    \b
    Examples:
      python -m workbench report runs/grpo --out report.html
      python -m workbench report runs/grpo runs/cbs --out report.html
    """
    from workbench.analysis.runs import load_all
    from workbench.reports import report as write

    written = str(write(load_all(*paths), out))
    say(as_json({"report": written}) if json else written)


def pack(folder: Annotated[str, Argument(metavar="FOLDER")], json: Json = False) -> None:
    """Put all runs in FOLDER into four files.

    They are read as before, by the same paths, but they cannot go on: checkpoints are removed.
    Where a run is not finished or not whole, it is named and nothing is changed.

    \b
    Examples:
      python -m workbench pack runs/sweeps/two
      python -m workbench pack runs
    """
    from workbench import records

    names = records.pack(folder)
    say(as_json({"packed": names}) if json else f"{folder}: {len(names)} runs, packed")


def compare(
    paths: Annotated[list[str], Argument(metavar="A B...")],
    x: Annotated[
        Literal["seconds", "flops", "rollouts", "round"],
        Option(help="The cost that is made equal."),
    ] = "seconds",
    y: Annotated[
        Literal["accuracy", "greedy"],
        Option(help="The held-out score, of sampled or of greedy answers."),
    ] = "accuracy",
    baseline: Annotated[
        str | None, Option(metavar="LABEL", help="Default: grpo, or else the first one.")
    ] = None,
    budget: Annotated[
        float | None, Option(min=0, help="Default: the most that every run reached.")
    ] = None,
    out: Figure = None,
    json: Json = False,
) -> None:
    """Compare held-out accuracy at an equal cost, with intervals and paired differences.

    A and B are records, or directories with label/seed-0, label/seed-1, ...; records that differ in
    the seed alone are one method's seeds.

    \b
    Examples:
      python -m workbench compare runs/grpo runs/knapsack --x rollouts
      python -m workbench compare data/runs/head-to-head --x flops --baseline grpo --out methods.svg
      python -m workbench compare runs/grpo runs/knapsack --json
    """
    from workbench.analysis import comparisons
    from workbench.analysis.curves import UNITS
    from workbench.cli import pictures
    from workbench.plots import curves
    from workbench.reports.tables import compared, default_baseline

    groups = comparisons.load_all(*paths)
    if len(groups) < 2:
        raise ValueError(f"all are runs of {next(iter(groups))}; at least two methods are needed")
    baseline = baseline or default_baseline(groups)
    # The largest cost that all runs have reached, so that nothing is read beyond the end of a
    # curve.
    if budget is None:
        budget = comparisons.common_budget(groups, x)
    table = comparisons.at_budget(groups, x, budget, baseline=baseline, y=y)

    # The figure is written before anything is printed: an error then stands alone on the terminal.
    figure = None
    if out is not None:
        figure = pictures.save(pictures.comparison(groups, x, y, budget, table, baseline), out)
    if json:
        told = {"x": x, "y": y, "budget": budget, "baseline": baseline, "figure": figure}
        say(as_json(told | {"labels": table.to_dict(orient="index")}))
        return
    score = curves.axis_label(y, [record for group in groups.values() for record in group])
    say(f"{score} at {amount(budget)} {UNITS[x]}\n")
    say(compared(table, baseline).to_string())
    say("\n± is the 95 % interval over seeds. Differences are between runs of the same seed; their")
    say("intervals are Student's. seeds ahead: their share, where ties count half. Verdicts are")
    say("those after Holm's correction for the number of methods.")
    if figure is not None:
        say(f"\nfigure    {figure}")
