"""The commands on records: show, report, push, pack, runs, compare and seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from workbench.cli import summaries
from workbench.cli.options import Figure, Json
from workbench.cli.summaries import amount
from workbench.cli.terminal import as_json, say

WIDTH = 7.0  # inches of a figure of other runs
Folder = Annotated[str, Argument(metavar="FOLDER", help="With records in it.")]


def show(
    paths: Annotated[list[str], Argument(metavar="RECORD", help="Directories of runs.")],
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
    paths: Annotated[list[str], Argument(metavar="RECORD", help="Directories of runs.")],
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


def push(
    path: Annotated[str, Argument(metavar="RECORD", help="The directory of a run.")],
    repo: Annotated[
        str, Argument(metavar="REPO", help="Such as me/pods-on-arithmetic; made where missing.")
    ],
    model: Annotated[
        bool, Option("--model", help="Push the model or adapter that the run has trained.")
    ] = False,
    out: Annotated[str | None, Option(help="Folder that is uploaded. Default: hub/REPO.")] = None,
    private: Annotated[bool, Option(help="Whether a repository that is made is private.")] = True,
    json: Json = False,
) -> None:
    """Put a record, or what it has trained, on the hub, with a card.

    Without a network or a token the folder is written all the same.

    \b
    Examples:
      python -m workbench push runs/pods me/pods-on-arithmetic
      python -m workbench push runs/pods me/pods-adapter --model
    """
    import workbench as wb

    what = wb.Run.resume(path) if model else wb.load(path)
    address = wb.push_to_hub(what, repo, out=out, private=private)
    say(as_json({"pushed": address}) if json else address)


def pack(folder: Folder, json: Json = False) -> None:
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


def runs(
    folder: Folder,
    sort: Annotated[str, Option(metavar="COLUMN", help="Largest last; -COLUMN: first.")] = "path",
    where: Annotated[
        list[str], Option(metavar="COLUMN=TEXT", help="Only such runs. Repeatable.")
    ] = [],  # noqa: B006
    json: Json = False,
) -> None:
    """List the records in FOLDER: path, method, lab, seed, rounds, rollouts and accuracy.

    \b
    Examples:
      python -m workbench runs runs
      python -m workbench runs runs --where method=grpo --sort=-accuracy
    """
    import pandas as pd

    from workbench.analysis.runs import load_all
    from workbench.utils.validation import one_of

    rows = []
    for record in (each for group in load_all(folder).values() for each in group):
        row = summaries.summary(record)
        held_out = row.pop("held_out") or {"last": {}}
        kept = {name: row[name] for name in ("path", "method", "lab", "seed", "rounds", "rollouts")}
        rows.append({**kept, "accuracy": held_out["last"].get("accuracy")})
    table = pd.DataFrame(rows)
    for each in where:
        column, _, text = each.partition("=")
        one_of("--where", column, table.columns)
        table = table[table[column].astype(str) == text]
    column = sort.removeprefix("-")
    one_of("--sort", column, table.columns)
    table = table.sort_values(column, ascending=column == sort, kind="stable")
    if json:
        say(as_json({"runs": table.to_dict(orient="records")}))
    else:
        say(table.to_string(index=False) if len(table) else f"{folder}: no such run")


def compare(
    paths: Annotated[list[str], Argument(metavar="RUN", help="Directories or logs of runs.")],
    x: Annotated[
        str | None,
        Option(
            help="The cost made equal. Of records rollouts, flops, tokens_sampled, round or "
            "seconds; of other runs a column. Default: rollouts, or the step where none are logged."
        ),
    ] = None,
    y: Annotated[
        str | None,
        Option(
            help="The score: of records accuracy or greedy, of other runs a column. Default: "
            "held-out accuracy, or the usual names of reward."
        ),
    ] = None,
    baseline: Annotated[
        str | None, Option(metavar="LABEL", help="Default: grpo, or else the first one.")
    ] = None,
    budget: Annotated[
        float | None, Option(min=0, help="Default: the most that every run reached.")
    ] = None,
    target: Annotated[
        float | None, Option(help="Of other runs: the score to which costs are compared.")
    ] = None,
    smooth: Annotated[int, Option(min=1, help="Of other runs: values of a moving mean.")] = 1,
    less_is_better: Annotated[
        bool | None, Option(help="Of other runs. Default: less, where the name of y says loss.")
    ] = None,
    tuned: Annotated[bool, Option("--tuned", help="Of other runs: all were tuned alike.")] = False,
    width: Annotated[float, Option(min=1, help="Of other runs' figure, in inches.")] = WIDTH,
    out: Figure = None,
    json: Json = False,
) -> None:
    """Compare runs at an equal cost, with intervals and differences.

    RUN is a record, or a directory with label/seed-0, label/seed-1, ...; records that differ in the
    seed alone are one method's seeds. Runs of other trainers are TRL or transformers output
    directories, TensorBoard events, offline W&B runs, verl's metric files, or tables; LABEL=PATH
    names an arm, and may be repeated for its runs.

    \b
    Examples:
      python -m workbench compare runs/grpo runs/knapsack --x rollouts
      python -m workbench compare data/runs/head-to-head --x flops --baseline grpo --out methods.svg
      python -m workbench compare runs/grpo runs/knapsack --json
      python -m workbench compare theirs=out/b mine=out/a-0 mine=out/a-1 --y reward --out figure.pdf
    """
    from workbench.records import record_paths

    if all(record_paths(path) for path in paths):
        given = {"--target": target, "--less-is-better": less_is_better, "--tuned": tuned or None}
        given |= {"--smooth": smooth if smooth > 1 else None}
        given |= {"--width": width if width != WIDTH else None}
        for option, value in given.items():
            if value is not None:
                raise ValueError(
                    f"{option}: it has no effect on records alone; name them as LABEL=PATH"
                )
        _compare_records(paths, x or "rollouts", y or "accuracy", baseline, budget, out, json)
        return
    from workbench.cli import pictures
    from workbench.trials.compare import compare as compare_runs

    if budget is not None:
        raise ValueError("--budget: it has an effect on records alone, without LABEL=")
    arms: dict[str, list[str]] = {}
    for path in paths:
        label, place = _labelled(path)
        arms.setdefault(label or Path(path).name, []).append(place)
    found = compare_runs(
        arms,
        x=x,
        y=y,
        target=target,
        baseline=baseline,
        smooth=smooth,
        less_is_better=less_is_better,
        tuned=tuned,
    )
    figure = None if out is None else pictures.save(found.plot(width=width).figure, out)
    if json:
        told = {"x": found.x, "y": found.y, "budget": found.budget, "notes": list(found.notes)}
        say(as_json({**told, "arms": found.table.to_dict(orient="records"), "figure": figure}))
    else:
        say(f"{found}" if figure is None else f"{found}\n\nfigure    {figure}")


def _labelled(text: str) -> tuple[str, str]:
    """The label, or nothing, and the path of LABEL=PATH; a path may hold = too, as lr=1e-6."""
    from workbench.records import record_paths

    parts = text.split("=")
    cuts = [("=".join(parts[:i]), "=".join(parts[i:])) for i in range(len(parts))]
    for label, place in cuts:
        if place and (Path(place).exists() or record_paths(place)):
            return label, place
    return cuts[min(1, len(cuts) - 1)]


def _compare_records(
    paths: list[str],
    x: str,
    y: str,
    baseline: str | None,
    budget: float | None,
    out: str | None,
    json: bool,
) -> None:
    """Print the comparison of records, and draw it."""
    from workbench.analysis import comparisons
    from workbench.analysis.curves import UNITS
    from workbench.cli import pictures
    from workbench.plots import curves
    from workbench.reports.tables import compared, default_baseline
    from workbench.utils.validation import one_of

    one_of("x", x, UNITS)
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


def seeds(
    paths: Annotated[
        list[str],
        Argument(metavar="RUN", help="At least two runs that differ in the seed alone."),
    ],
    x: Annotated[str | None, Option(help="The column of costs, as for compare.")] = None,
    y: Annotated[str | None, Option(help="The column of scores, as for compare.")] = None,
    changes: Annotated[
        list[float], Option("--change", help="A change in percent of the score. Repeatable.")
    ] = [5.0, 10.0, 20.0],  # noqa: B006
    smooth: Annotated[int, Option(min=1, help="Values of a moving mean.")] = 1,
    json: Json = False,
) -> None:
    """Say how many seeds a comparison needs, by the spread of runs that you have.

    \b
    Examples:
      python -m workbench seeds out/a-0 out/a-1 out/a-2
      python -m workbench seeds runs/grpo --change 3
    """
    from workbench.trials.compare import seeds_needed

    table = seeds_needed(paths, x=x, y=y, changes=changes, smooth=smooth)
    if json:
        say(as_json({"seeds": table.reset_index(names="change").to_dict("records")}))
    else:
        say(table.to_string(float_format="{:.3g}".format))
