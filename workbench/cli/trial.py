"""The commands check, trial and ledger: does a method help, each at its best?"""

from __future__ import annotations

import os
from functools import partial
from inspect import isroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from workbench.cli.options import Gpus, Jobs, Json, Lab, Mixed, Out, Rates, Ray, Target, TuningSeeds
from workbench.cli.terminal import as_json, say
from workbench.cli.train import lab_options

if TYPE_CHECKING:
    import pandas as pd

# The columns that fit on a terminal; the file has all.
SHOWN = ["arm", "verdict", "ratio", "low", "high", "seeds", "learning_rate"]
# The exit status by verdict. Of several arms the smallest counts, that is the best arm's.
STATUS = {"better": 0, "alike": 10, "open": 11, "worse": 12}
NOT_COMPARED = 13


def trial(
    arms: Annotated[
        list[str],
        Argument(
            metavar="ARM",
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
    mini_batches: Annotated[
        list[int],
        Option(
            "--mini-batches",
            min=1,
            help="Optimizer steps a round; several are tuned, each with all rates. Repeatable.",
        ),
    ] = [],  # noqa: B006
    problems: Annotated[int, Option(min=1, help="Problems that a round begins with.")] = 32,
    evaluate_every: Annotated[
        int | None, Option(help="Rounds between evaluations. Default: a fifth of the rounds.")
    ] = None,
    columns: Annotated[
        str,
        Option(help="What is kept of the rollouts: sample, none, outcomes, scores or all."),
    ] = "sample",
    tuning_seeds: TuningSeeds = 4,
    first_seed: Annotated[
        int | None, Option(help="The first fresh seed. Default: 0, or a free one of the ledger.")
    ] = None,
    ledger: Annotated[
        str | None,
        Option(metavar="DIRECTORY", help="Charge the arms to the error budget of this ledger."),
    ] = None,
    level: Annotated[
        float | None, Option(help="Probability of a wrong verdict. Default: 0.05, or the ledger's.")
    ] = None,
    forecast: Annotated[
        int | None, Option(help="Rounds that are forecast. Default: twice those of a run.")
    ] = None,
    mixed: Mixed = False,
    jobs: Jobs = None,
    ray: Ray = None,
    gpus: Gpus = 0.0,
    json: Json = False,
) -> None:
    """Does a method help? Tune it and the baseline, and compare them on fresh seeds.

    Every ARM and the baseline get the same effort of tuning. Then pairs of fresh seeds are run
    until the answer is known. It ends with one sentence an arm and a table (trial.csv), and writes
    a page (trial.html) to the output directory. The exit status is 0 where an arm is better, 10
    alike, 11 open, 12 worse and 13 not compared; of several arms the smallest counts.

    \b
    Examples:
      python -m workbench trial my_methods:mine --against grpo --out runs/mine
      python -m workbench trial pods ar3po --lab pool=1024 --out runs/two
    """
    import workbench as wb
    from workbench import config

    name, options = lab_options(lab)
    done = wb.trial(
        arms,
        against=against,
        lab=config.lab(name, options) if options else name,
        out=out,
        measure=measure,
        target=target,
        rounds=rounds,
        seeds=seeds,
        rates=rates or None,
        mini_batches=mini_batches or None,
        problems_per_round=problems,
        evaluate_every=evaluate_every,
        columns=columns,
        tuning_seeds=tuning_seeds,
        first_seed=first_seed,
        mixed=mixed,
        ledger=ledger,
        level=level,
        forecast=forecast,
        jobs=jobs,
        ray=ray,
        gpus=gpus,
        report=partial(say, err=json),
    )
    table = done.table
    write_tables(done.out, trial=table, tuning=done.tuning)
    status = min(
        (STATUS.get(word, NOT_COMPARED) for word in table["verdict"]), default=NOT_COMPARED
    )
    if json:
        told = {"out": str(done.out), "status": status, "arms": table.to_dict("records")}
        told["steps"] = {
            arm: [step._asdict() for step in answer.steps] for arm, answer in done.answers.items()
        }
        charged = wb.Ledger(ledger).of_trial(done.out, done.settings.first_seed) if ledger else None
        told["ledger"] = charged and list(charged.values())
        say(as_json(told | {"tuning": done.tuning.to_dict("records")}))
        raise Exit(status)
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
    raise Exit(status)


def check(
    value: Annotated[
        str,
        Argument(
            metavar="MODULE:NAME",
            help="A value of a slot, or a class or a function that makes one. The code of MODULE "
            "is run.",
        ),
    ],
    json: Json = False,
) -> None:
    """Try a slot of your own on made-up rounds, in a second.

    \b
    Examples:
      python -m workbench check my_ideas:Shortest
    """
    import workbench as wb
    from workbench.trials.arms import import_name

    found = import_name(value)
    if isinstance(found, type) or isroutine(found):
        try:
            found = found()
        except TypeError as error:
            raise ValueError(f"{value!r}: {error}; name a function that makes the value") from None
    wb.check(found)
    say(as_json({"checked": value}) if json else f"{value}: nothing is wrong")


def ledger(
    path: Annotated[str, Argument(metavar="DIRECTORY", help="That of --ledger.")],
    json: Json = False,
) -> None:
    """Show all ideas that were tried with one error budget.

    \b
    Examples:
      python -m workbench ledger runs/ideas
      python -m workbench ledger runs/ideas --json
    """
    from workbench.trials.ledger import Ledger

    found = Ledger(path)
    if not found.path.is_dir():
        raise ValueError(f"{path}: there is no such directory")
    if json:
        say(as_json({"level": found.level, "ideas": found.ideas}))
        return
    say(found.table.drop(columns=["idea", "against"]).to_string(index=False, na_rep=""))
    share = f"{100 * found.level:.3g} %"
    say(f"\nAt most {share} of all that are called better are expected to be luck.")


def write_tables(folder: Path, **tables: pd.DataFrame) -> None:
    """Write tables into a folder, each as NAME.csv."""
    for name, table in tables.items():
        path = folder / f"{name}.csv"
        table.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
