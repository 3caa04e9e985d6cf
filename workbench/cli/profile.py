"""The command profile: what a model does on problems, and what each method would do there."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from workbench.cli.options import Json, Lab, Seed
from workbench.cli.terminal import as_json, say
from workbench.cli.train import lab_options


def profile(
    path: Annotated[
        str | None,
        Argument(
            metavar="PATH",
            help="A file or a folder of samples that you have. Without one the lab is asked.",
        ),
    ] = None,
    lab: Lab = [],  # noqa: B006  typer makes a new list
    samples: Annotated[
        int | None, Option(min=1, help="Responses a problem; 16 where a lab is asked.")
    ] = None,
    problems: Annotated[
        int | None, Option(min=1, help="Problems that the lab is asked. Default: up to 200.")
    ] = None,
    out: Annotated[
        str | None, Option(help="Folder for the responses. What stopped there goes on.")
    ] = None,
    solved: Annotated[
        float | None, Option(help="The reward from which a response in PATH counts as right.")
    ] = None,
    method: Annotated[
        list[str],
        Option("--method", help="A method to plan, as a trial takes it. Repeatable."),
    ] = [],  # noqa: B006
    machine: Annotated[str, Option(help="The machine whose costs are counted, as a10.")] = "l40s",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Before you train: success rates, groups without a gradient, and what methods would spend.

    \b
    Examples:
      python -m workbench profile pass_rates.csv --method grpo --method ar3po
      python -m workbench profile --lab pool=256 --out runs/profile
    """
    import workbench as wb
    from workbench import config

    of_lab = {"--lab": lab, "--problems": problems, "--out": out}
    for option, value in of_lab.items() if path else {"--solved": solved}.items():
        if value not in (None, []):
            where = "where a PATH is read" if path else "where a lab is asked"
            raise ValueError(f"{option}: it has no effect {where}")
    if path is not None:
        found = wb.Profile.read(path, samples=samples, solved=solved)
    else:
        found = wb.profile(
            config.lab(*lab_options(lab)),
            samples=samples or 16,
            problems=problems,
            out=out,
            seed=seed,
        )
    plan = found.plan(method or ["grpo"], machine=machine, seed=seed)
    groups = found.by_n(machine=machine)
    best = found.best_n(machine)
    if json:
        tables = {"problems": found.table, "groups": groups, "plan": plan}
        told = {name: table.to_dict("records") for name, table in tables.items()}
        say(as_json({**told, "best_n": best, "notes": found.notes}))
        return
    say(f"{found}\n")
    say(groups.to_string(index=False, float_format="{:.3g}".format))
    say(f"\nA group with a gradient costs GRPO least at n = {best}.\n")
    say(plan.to_string(index=False, float_format="{:.3g}".format))
