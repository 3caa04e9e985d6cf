"""The command leaderboard: the runs that are missing, and the table of what there is."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from workbench.cli.options import Jobs, Json, Rates, Ray, Target, TuningSeeds
from workbench.cli.terminal import as_json, say
from workbench.cli.train import pairs
from workbench.cli.trial import importable_from_here, write_tables
from workbench.utils.names import BASES_WITH_MISTAKES, REGIMES, SIZES

if TYPE_CHECKING:
    from workbench.trials import Trial

# The columns that fit on a terminal; the file has all.
SHOWN = ["seeds", "reached", "rollouts", "rollouts_low", "rollouts_high", "verdict", "p_holm"]
SHOWN += ["flops", "l40s", "round", "accuracy", "accuracy_difference", "resolves"]


def leaderboard(
    grid: Annotated[str | None, Argument()] = None,
    seeds: Annotated[
        int | None, Option(min=1, help="Fresh seeds of each method. Default: the grid's.")
    ] = None,
    only: Annotated[
        list[str], Option(metavar="LABEL", help="Compare only this method with GRPO. Repeatable.")
    ] = [],  # noqa: B006  typer makes a new list
    add: Annotated[
        list[str],
        Option(
            metavar="LABEL=MODULE:FUNCTION",
            help="A method of your own, which FUNCTION returns. This runs the code of MODULE.",
        ),
    ] = [],  # noqa: B006
    base: Annotated[
        Literal[BASES_WITH_MISTAKES], Option(help="The base model of the lab.")
    ] = "early",
    size: Annotated[Literal[SIZES], Option(help="The size of the base model.")] = "small",
    regime: Annotated[
        Literal[REGIMES], Option(help="How hard the training problems are for the base model.")
    ] = "spread",
    rates: Rates = [],  # noqa: B006
    tuning_seeds: TuningSeeds = 3,
    target: Target = None,
    search: Annotated[
        bool,
        Option(
            "--search",
            help="Search for the best combination of slots, and compare the best ones on fresh "
            "seeds.",
        ),
    ] = False,
    price: Annotated[
        float,
        Option(
            min=0,
            help="Of sampling, at which the search ranks: a sampled token's cost over a trained "
            "one's. Default: that in FLOPs.",
        ),
    ] = 1 / 3,
    single: Annotated[
        str | None,
        Option(
            metavar="LABEL",
            help="The method that the search's winners are compared with, besides GRPO. Default: "
            "the best one of the leaderboard.",
        ),
    ] = None,
    only_table: Annotated[
        bool, Option("--table", help="Make no runs: only the table of what is there.")
    ] = False,
    out: Annotated[
        str | None,
        Option(help="Directory of records, logs and tables. Default: runs/leaderboard."),
    ] = None,
    jobs: Jobs = None,
    ray: Ray = None,
    json: Json = False,
) -> None:
    """Every method against GRPO, each at its best learning rate, with intervals.

    Tunes every method of GRID with the same effort, and makes the same fresh seeds of all of them.
    Then it makes a table: what each method needs to the target in rollouts, FLOPs, rounds and at
    the cost of an L40S, how accurate it is at an equal number of rollouts, and which one is the
    cheapest at which price of sampling. GRID is a YAML file as of the command sweep; without it,
    the one that comes with this package. The same command goes on where it was stopped.

    \b
    Examples:
      python -m workbench leaderboard
      python -m workbench leaderboard --only knapsack --seeds 3 --out runs/two
      python -m workbench leaderboard --add mine=my_methods:mine
      python -m workbench leaderboard --base late --jobs 2
      python -m workbench leaderboard --table
      python -m workbench leaderboard --search --price 0.5
    """
    from workbench.trials import leaderboard as boards

    importable_from_here()
    # With --json the lines about progress go to stderr, so that stdout holds the tables alone.
    report = partial(say, err=json)
    make = partial(boards.search, single, price) if search else boards.leaderboard
    board = make(
        grid,
        out=out,
        lab={"base": base, "size": size, "regime": regime},
        seeds=seeds,
        only=only,
        own=pairs(add),
        rates=rates or None,
        tuning_seeds=tuning_seeds,
        target=target,
        jobs=jobs,
        ray=ray,
        report=report,
    )
    if not only_table:
        report(f"{len(board.arms)} methods, in {os.path.relpath(board.out)}")
        board.run()
    _write_and_say(board, json)


def _write_and_say(board: Trial, json: bool) -> None:
    """Write the tables beside the records, and print them."""
    from workbench.analysis.leaderboard import FAIR_UNITS, tables
    from workbench.trials.halving import Search

    groups = {label: list(of.values()) for label, of in board.records.items() if of}
    if board.baseline not in groups:
        raise ValueError(
            f"{os.path.relpath(board.out)}: no run of {board.baseline!r} is complete yet, and all "
            "methods are compared with it; the command without --table makes the runs"
        )
    table, prices = tables(groups, board.baseline, board.target, FAIR_UNITS)
    for label, tuned in board.tunings.items():
        table.loc[table.index == label, "learning_rate"] = tuned.learning_rate
    frames = {"leaderboard": table.reset_index(), "prices": prices}
    frames |= {"arms": board.table, "tuning": board.tuning}
    if isinstance(board, Search):
        frames["rungs"] = board.rungs
    write_tables(board.out, **frames)
    missing = [label for label in board.arms if label not in groups]
    if json:
        rows = table.reset_index().to_dict("records")
        say(as_json({"methods": rows, "prices": prices.to_dict("records"), "missing": missing}))
        return
    digits = "{:.3g}".format
    say(f"\nto an accuracy of {board.target:.2f}, as ratios to GRPO's cost; below 1 is less\n")
    say(table[SHOWN].to_string(float_format=digits))
    say("\nthe cheapest method by the price of sampling; tied: the interval holds 1\n")
    say(prices.set_index("price").to_string(float_format=digits))
    if missing:
        say(f"\nnot complete, and not in the table: {', '.join(missing)}")
    say(f"\n{os.path.relpath(board.out / 'leaderboard.csv')}")
