"""The command trial: does a method help, each at its best?"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from workbench.cli.options import Jobs, Json, Lab, Mixed, Out, Rates, Ray, Target, TuningSeeds
from workbench.cli.terminal import as_json, say
from workbench.cli.train import lab_options

if TYPE_CHECKING:
    import pandas as pd

# The columns that fit on a terminal; the file has all.
SHOWN = ["arm", "verdict", "ratio", "low", "high", "seeds", "learning_rate"]


def trial(
    arms: Annotated[
        list[str],
        Argument(
            metavar="ARM...",
            help="The name of a method, or MODULE:FUNCTION of a method or a slot of your own, "
            "which runs the code of MODULE.",
        ),
    ],
    out: Out,
    against: Annotated[str, Option(help="The baseline, named as an arm is.")] = "grpo",
    lab: Lab = [],  # noqa: B006  typer makes a new list
    measure: Annotated[str, Option(help="What is counted to the target, as flops.")] = "rollouts",
    target: Target = None,
    rounds: Annotated[int, Option(help="Rounds of a run.")] = 60,
    seeds: Annotated[
        tuple[int, int],
        Option(metavar="LEAST MOST", help="Pairs of fresh seeds; 8 8 makes eight and looks once."),
    ] = (5, 20),
    rates: Rates = [],  # noqa: B006
    tuning_seeds: TuningSeeds = 4,
    first_seed: Annotated[int, Option(help="The first fresh seed.")] = 0,
    mixed: Mixed = False,
    jobs: Jobs = None,
    ray: Ray = None,
    json: Json = False,
) -> None:
    """Does a method help? Tune it and the baseline, and compare them on fresh seeds.

    Every ARM and the baseline get the same effort of tuning. Then pairs of fresh seeds are run
    until the answer is known. It ends with one sentence an arm and a table (trial.csv), and writes
    a page (trial.html) to the output directory.

    \b
    Examples:
      python -m workbench trial my_methods:mine --against grpo --out runs/mine
      python -m workbench trial pods ar3po --lab pool=1024 --out runs/two
    """
    import workbench as wb
    from workbench import config

    done = wb.trial(
        arms,
        against=against,
        lab=config.lab(*lab_options(lab)),
        out=out,
        measure=measure,
        target=target,
        rounds=rounds,
        seeds=seeds,
        rates=rates or None,
        tuning_seeds=tuning_seeds,
        first_seed=first_seed,
        mixed=mixed,
        jobs=jobs,
        ray=ray,
        report=partial(say, err=json),
    )
    table = done.table
    write_tables(done.out, trial=table, tuning=done.tuning)
    if json:
        tuning = done.tuning.to_dict("records")
        say(as_json({"arms": table.to_dict("records"), "tuning": tuning}))
        return
    say(f"\n{done}\n")
    say(table.reindex(columns=SHOWN).to_string(index=False, float_format="{:.3g}".format))
    say(f"\n{os.path.relpath(done.out / 'trial.csv')}")
    # There is no page where every arm turned out not to be compared.
    if done.answers:
        try:
            say(os.path.relpath(done.report(done.out / "trial.html")))
        except ImportError as error:
            # The answer is there all the same.
            say(str(error))


def write_tables(folder: Path, **tables: pd.DataFrame) -> None:
    """Write tables into a folder, each as NAME.csv."""
    for name, table in tables.items():
        path = folder / f"{name}.csv"
        table.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
