"""The commands that train: quickstart, run, resume and sweep."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from workbench.cli import summaries
from workbench.cli.options import Gpus, Jobs, Json, Lab, Mixed, Out, Ray, Rounds, Seed, Trackers
from workbench.cli.terminal import as_json, say
from workbench.utils import names
from workbench.utils.names import LABS, MORE_PAPERS, PAPERS, SLOTS

if TYPE_CHECKING:
    from workbench.run import Run

# What people write on a command line for values that Python spells otherwise.
WORDS = {"true": True, "false": False, "none": None, "null": None}


def method_names(incomplete: str) -> list[str]:
    """The methods that begin like this, for completion in the shell."""
    return [name for name in names.method_names() if name.startswith(incomplete)]


def quickstart(
    rounds: Rounds = 100,
    seed: Seed = 0,
    out: Out = "runs/quickstart",
    figures: Annotated[str, Option(help="Directory of the pictures.")] = "figures",
    json: Json = False,
) -> None:
    """Train the tiny language model by GRPO on this machine, and draw what happened.

    \b
    Examples:
      python -m workbench quickstart
      python -m workbench quickstart --rounds 20 --out runs/first --figures figures
    """
    import workbench as wb
    from workbench.cli import pictures

    run = wb.Run(wb.labs.tiny(), wb.methods.grpo(), seed=seed, out=out)
    if not json:
        say(f"GRPO in the tiny lab, {run.problems_per_round} problems x 8 rollouts a round")
        say(f"record    {out}")
    _train(run, rounds, json)

    drawn = Path(figures, "quickstart.svg")
    pictures.save(wb.plots.overview(run.record), drawn, drawn.with_suffix(".png"))
    if json:
        return
    say(f"\nfigure    {drawn} (and .png)")
    # An installed package has no notebooks beside it.
    if Path("notebooks", "00_quickstart.ipynb").exists():
        say("notebook  make lab, then open notebooks/00_quickstart.ipynb")
    else:
        say(f"report    python -m workbench report {out} --out report.html")


def run(
    method: Annotated[
        str,
        Argument(
            metavar="METHOD",
            autocompletion=method_names,
            help=f"One of {', '.join(PAPERS)}; or, from further papers, {', '.join(MORE_PAPERS)}.",
        ),
    ],
    out: Out,
    settings: Annotated[
        list[str], Option("--set", metavar="NAME=VALUE", help="See above. Repeatable.")
    ] = [],  # noqa: B006  typer makes a new list
    lab: Lab = [],  # noqa: B006
    model: Annotated[str | None, Option(metavar="NAME_OR_PATH", help="The lab's model.")] = None,
    data: Annotated[str | None, Option(metavar="FILE", help="Problems to train on.")] = None,
    held_out_data: Annotated[
        str | None, Option(metavar="FILE", help="Problems to evaluate on.")
    ] = None,
    prompt_column: Annotated[str, Option(help="The column of the questions.")] = "prompt",
    answer_column: Annotated[str, Option(help="The column of the right answers.")] = "answer",
    rounds: Rounds = 200,
    problems: Annotated[int, Option(help="Problems that a round begins with.")] = 32,
    seed: Seed = 0,
    learning_rate: Annotated[float | None, Option(help="Default: the lab's own.")] = None,
    mini_batches: Annotated[int, Option(min=1, help="Optimizer steps a round.")] = 1,
    evaluate_every: Annotated[int, Option(help="Rounds between evaluations; 0 for none.")] = 20,
    checkpoint_every: Annotated[int, Option(min=1, help="Rounds between checkpoints.")] = 5,
    trackers: Trackers = [],  # noqa: B006
    label: Annotated[
        str | None, Option(help="What comparisons call it. Default: the method's name.")
    ] = None,
    mixed: Mixed = False,
    json: Json = False,
) -> None:
    """Train by METHOD in a lab, and leave a record.

    A method has a slot for each decision: SLOTS. With --set you change an argument of the method
    (n=16), put another value into a slot (selector=MaxVariance), or change an argument of a slot
    (selector.m=4). The parts of the reward go by their names (reward.overlong.buffer=0.5).
    FILE is .jsonl, .json, .csv or .parquet.

    \b
    Examples:
      python -m workbench run grpo --set n=16 --out runs/grpo
      python -m workbench run cbs --set selector.scope=round --set allocator.n=16 --out runs/cbs
      python -m workbench run knapsack --set selector=MaxVariance --set selector.m=8 --out runs/both
      python -m workbench run aero --lab pool=1024 --lab levels=1,2,3 --out runs/aero
      python -m workbench run pods --lab transformers --model m --data train.jsonl --out runs/mine
    """
    from workbench import config
    from workbench.problems import from_file

    made = config.method(method, pairs(settings))

    # The lab: --model and the files become arguments of it, like those that --lab gives.
    name, options = lab_options(lab)
    files = {"problems": data, "held_out": held_out_data}
    files = {which: path for which, path in files.items() if path is not None}
    if name == "tiny" and (model or files):
        raise ValueError("--lab tiny: it has its own model and problems; add --lab transformers")
    if model is not None:
        options["model"] = model
    needed = {"model": "--model NAME_OR_PATH", "problems": "--data FILE"}
    missing = [flag for argument, flag in needed.items() if argument not in options | files]
    if name in LABS and name != "tiny" and missing:
        raise ValueError(f"--lab {name}: it needs {' and '.join(missing)}")
    for which, path in files.items():
        options[which] = from_file(path, prompt=prompt_column, answer=answer_column)
    import workbench as wb

    started = wb.Run(
        config.lab(name, options),
        made,
        seed=seed,
        out=out,
        problems_per_round=problems,
        learning_rate=learning_rate,
        mini_batches=mini_batches,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        trackers=trackers,
        label=label,
        mixed=mixed,
    )
    _train(started, rounds, json)


run.__doc__ = str(run.__doc__).replace("SLOTS", ", ".join(SLOTS))


def resume(
    path: Annotated[str, Argument(metavar="RECORD", help="The directory of a run.")],
    rounds: Annotated[
        int | None,
        Option(min=1, help="Rounds in all. Default: as many as the run was last asked for."),
    ] = None,
    trackers: Trackers = [],  # noqa: B006
    mixed: Mixed = False,
    json: Json = False,
) -> None:
    """Go on with a run, as its record says that it was begun.

    Lab, method and settings are read from the manifest in RECORD. It may come from somebody else:
    it can name parts of this package and their arguments, and nothing in it is run as code.

    \b
    Examples:
      python -m workbench resume runs/grpo
      python -m workbench resume runs/grpo --rounds 400
    """
    import workbench as wb
    from workbench.records.locks import rounds_wanted

    resumed = wb.Run.resume(path, trackers=trackers, mixed=mixed)
    if rounds is None:
        rounds = rounds_wanted(Path(path))
    if rounds is None:
        raise ValueError(
            f"{path}: the record does not say how many rounds were wanted; add --rounds N"
        )
    _train(resumed, rounds, json)


def _train(run: Run, rounds: int, json: bool) -> None:
    """Train up to so many rounds, and print the run's table."""
    if not json:
        say(repr(run.method))
    for _ in run.rounds(rounds):
        pass
    summarized = summaries.summary(run.record)
    say(as_json(summarized) if json else summaries.text(summarized))


def sweep(
    grid: Annotated[str, Argument(metavar="GRID", help="A YAML file.")],
    out: Annotated[str | None, Option(help="Output directory. Default: runs/sweeps/NAME.")] = None,
    jobs: Jobs = None,
    ray: Ray = None,
    gpus: Gpus = 0.0,
    records: Annotated[
        str | None, Option(metavar="DIRECTORY", help="Default: the folder of the grid or of --out.")
    ] = None,
    mixed: Mixed = False,
    json: Json = False,
) -> None:
    """Make all the runs of a grid, and a table of what came of them.

    GRID is a YAML file of names and plain data; nothing in it is run as code, except that a grid
    may name a notebook, which is run. Its folder must lie in the working directory or in that of
    --out; --records may name any other. The same command makes what is missing or has failed.

    \b
    Examples:
      python -m workbench sweep data/grids/example.yaml
      python -m workbench sweep data/grids/cbs.yaml --jobs 2 --out runs/sweeps/cbs
    """
    from workbench.trials import sweep as make_runs

    # With --json the lines about progress go to stderr, so that stdout holds the table alone.
    frame = make_runs(
        grid,
        out=out,
        jobs=jobs,
        ray=ray,
        gpus=gpus,
        records=records,
        mixed=mixed,
        report=partial(say, err=json),
    )
    if json:
        say(frame.to_json(orient="records", indent=2))
    else:
        say("\n" + frame.drop(columns=["error", "logs"]).to_string(index=False))
    # After the table, which says what failed. The error makes the exit status 1.
    failed = int((frame["status"] == "failed").sum())
    if failed:
        raise ValueError(f"{failed} of {len(frame)} runs failed; the same command makes them again")


def pairs(texts: Iterable[str]) -> dict[str, Any]:
    """NAME=VALUE texts as a dict.

    Values are Python literals, and true, false and none in any case; anything else is text.

    >>> pairs(["n=16", "clip=0.1,0.2", "rule=random", "mode=none"])
    {'n': 16, 'clip': (0.1, 0.2), 'rule': 'random', 'mode': None}
    """
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"{text!r}: NAME=VALUE is needed")
        values[name] = _value(value)
    return values


def lab_options(texts: Iterable[str]) -> tuple[str, dict[str, Any]]:
    """The name of a lab, and its arguments; dotted names are arguments of an argument.

    >>> lab_options(["transformers", "dtype=bfloat16", "sampling.max_new_tokens=64"])
    ('transformers', {'dtype': 'bfloat16', 'sampling': {'max_new_tokens': 64}})
    """
    texts = list(texts)
    names = [text for text in texts if "=" not in text]
    if len(names) > 1:
        raise ValueError(f"--lab {' --lab '.join(names)}: one lab is needed")
    options: dict[str, Any] = {}
    for path, value in pairs(text for text in texts if "=" in text).items():
        # a.b=c becomes {"a": {"b": c}}, made on the way where it is not there yet.
        node = options
        *outer, last = path.split(".")
        for name in outer:
            node = node.setdefault(name, {})
            if not isinstance(node, dict):
                raise ValueError(f"{path}: {name} has a value of its own already")
        node[last] = value
    return (names[0] if names else "tiny"), options


def _value(text: str) -> Any:
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    # Literals alone: nothing that is written here is run as code.
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        # Also brackets nested so deep that the parser gives up.
        return text
