"""The command leaderboard: the runs that are missing, and the table of what there is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from workbench.cli.options import Jobs, Json, Ray
from workbench.cli.terminal import as_json, say
from workbench.utils.names import BASES_WITH_MISTAKES, REGIMES, SIZES

if TYPE_CHECKING:
    import pandas as pd

BASELINE = "grpo"
# The columns that fit on a terminal; the file has all.
SHOWN = ["seeds", "reached", "rollouts", "rollouts_low", "rollouts_high", "verdict", "p_holm"]
SHOWN += ["flops", "seconds", "round", "accuracy", "accuracy_difference", "resolves"]


def leaderboard(
    grid: Annotated[str | None, Argument()] = None,
    seeds: Annotated[
        int | None, Option(min=1, help="Seeds of each method. Default: the grid's.")
    ] = None,
    only: Annotated[
        list[str], Option(metavar="LABEL", help="Only the method of this label. Repeatable.")
    ] = [],  # noqa: B006  typer makes a new list
    add: Annotated[
        list[str],
        Option(
            metavar="LABEL=MODULE:FUNCTION",
            help="A method of your own, which FUNCTION returns. This runs the code of MODULE. "
            "Repeatable.",
        ),
    ] = [],  # noqa: B006
    base: Annotated[
        Literal[BASES_WITH_MISTAKES], Option(help="The base model of the lab.")
    ] = "early",
    size: Annotated[Literal[SIZES], Option(help="The size of the base model.")] = "small",
    regime: Annotated[
        Literal[REGIMES], Option(help="How hard the training problems are for the base model.")
    ] = "spread",
    search: Annotated[
        bool,
        Option(
            "--search",
            help="Search for the best combination of slots, and compare the best ones on fresh "
            "seeds.",
        ),
    ] = False,
    price: Annotated[
        float | None,
        Option(
            min=0,
            help="Of sampling, at which the search ranks: a sampled token's cost over a trained "
            "one's. Default: that in FLOPs, 1/3.",
        ),
    ] = None,
    single: Annotated[
        str | None,
        Option(
            metavar="LABEL",
            help="The method that the search's winners are compared with, besides GRPO. Default: "
            "the best one of the leaderboard.",
        ),
    ] = None,
    only_table: Annotated[
        bool, Option("--table", help="Make no runs: only the table of what is recorded.")
    ] = False,
    out: Annotated[
        str | None,
        Option(help="Directory of records, logs and table. Default: where the grid says."),
    ] = None,
    jobs: Jobs = None,
    ray: Ray = None,
    json: Json = False,
) -> None:
    """Every method against GRPO at equal cost, with intervals.

    Makes the runs of GRID that are missing, the first seed of all methods before the second, and
    then a table: what each method needs to GRPO's target in rollouts, FLOPs, seconds and rounds,
    how accurate it is at an equal number of rollouts, and which one is the cheapest at which price
    of sampling. GRID is a YAML file as of the command sweep; without it, the one that comes with
    this package. The same command goes on where it was stopped.

    \b
    Examples:
      python -m workbench leaderboard
      python -m workbench leaderboard --only grpo --only knapsack --seeds 3 --out runs/two
      python -m workbench leaderboard --add mine=my_methods:mine
      python -m workbench leaderboard --base late --jobs 2
      python -m workbench leaderboard --table
      python -m workbench leaderboard --search --price 0.5
    """
    from workbench.trials import halving, sweep
    from workbench.trials import leaderboard as runs

    # With --json the lines about progress go to stderr, so that stdout holds the tables alone.
    def report(line: str) -> None:
        say(line, err=json)

    options: dict[str, Any] = {"jobs": jobs, "ray": ray, "report": report}
    lab = {"base": base, "size": size, "regime": regime}
    plan = runs.plan(grid, out=out, lab=lab, seeds=seeds, only=only, own=own_methods(add))
    if search:
        single = single or halving.best_single(plan, BASELINE, price)
        rungs, final = halving.search(plan, single, baseline=BASELINE, price=price, **options)
        folder = plan.folder.with_name(f"{plan.folder.name}-search")
        rungs.to_csv(folder / "rungs.csv", index=False, float_format="%.6g", lineterminator="\n")
        _write_and_say(final, [], folder, json)
        return
    failed = 0
    cases = plan.cases()
    if not only_table:
        labels = {case.values["label"] for case in cases}
        report(f"{len(cases)} runs of {len(labels)} methods, in {os.path.relpath(plan.folder)}")
        hours = runs.expected_hours(cases)
        report(f"about {hours:.1f} hours on one core for those that are missing")
        frame = sweep(plan.grid, out=plan.out, own=plan.own, by_seed=True, **options)
        failed = int((frame["status"] == "failed").sum())
    groups, missing = runs.recorded(cases)
    if BASELINE not in groups:
        raise ValueError(
            f"{os.path.relpath(plan.folder)}: no run of {BASELINE!r} is complete yet, and every "
            "method is compared with it"
        )
    _write_and_say(groups, missing, plan.folder, json)
    # After the tables, which show what there is. The error makes the exit status 1.
    if failed:
        raise ValueError(f"{failed} of {len(frame)} runs failed; the same command makes them again")


def own_methods(texts: Iterable[str]) -> dict[str, str]:
    """LABEL=MODULE:FUNCTION texts as a dict; modules in the working directory can be imported.

    >>> own_methods(["mine=my_methods:mine"])
    {'mine': 'my_methods:mine'}
    """
    own = {}
    for text in texts:
        label, equals, function = text.partition("=")
        if not label or not equals or ":" not in function:
            raise ValueError(f"--add {text}: LABEL=MODULE:FUNCTION is needed, as mine=my_file:mine")
        own[label] = function
    # The script `workbench` begins its search at its own directory, `python -m` at this one. The
    # processes that run search where this one does.
    if own and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return own


def _write_and_say(groups: Any, missing: list[str], folder: Path, json: bool) -> None:
    """Write the tables beside the records, and print them."""
    from workbench.analysis.leaderboard import tables

    table, prices = tables(groups, BASELINE)
    table.to_csv(folder / "leaderboard.csv", float_format="%.6g", lineterminator="\n")
    prices.to_csv(folder / "prices.csv", index=False, float_format="%.6g", lineterminator="\n")
    if json:
        rows = table.reset_index().to_dict("records")
        say(as_json({"methods": rows, "prices": prices.to_dict("records"), "missing": missing}))
        return
    say("\nto the target, as ratios to GRPO's cost; below 1 is less\n")
    say(_as_text(table[SHOWN]))
    say("\nthe cheapest method by the price of sampling; tied: the interval holds 1\n")
    say(_as_text(prices.set_index("price")))
    if missing:
        say(f"\n{len(missing)} runs are not complete and not in the table")
    say(f"\n{os.path.relpath(folder / 'leaderboard.csv')}")


def _as_text(table: pd.DataFrame) -> str:
    return table.to_string(float_format=lambda number: f"{number:.3g}")
