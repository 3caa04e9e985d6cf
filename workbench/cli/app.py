"""The command line: `python -m workbench quickstart`.

What the commands do is in the modules beside this one. They are imported when a command runs, so
that help and completion stay fast.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from workbench import __version__
from workbench.utils.names import (
    BASES_WITH_MISTAKES,
    LABS,
    MORE_PAPERS,
    OPTIMIZER_BITS,
    PAPERS,
    REGIMES,
    SIZES,
    SLOTS,
)

# The keys of `look.UNITS` once more: that module loads matplotlib, and help should not wait for it.
UNITS = ("seconds", "flops", "rollouts", "round")
# Commands that go on where they stopped when they are called again.
RESUMABLE = ("quickstart", "run", "resume", "sweep", "leaderboard")

# click fills paragraphs, but keeps the lines of one that begins with \b.
EPILOG = """\b
Exit status: 0 done; 1 an error, named in one line on stderr (doctor also: cannot run here);
2 wrong usage; 130 interrupted.

\b
Completion of the script `workbench`, for bash (zsh and fish alike):
  eval "$(workbench --completion bash)"
"""


class Commands(click.Group):
    """A named error is one line on stderr and exit status 1, an interrupt 130."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and turn an error into a line and an exit status."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Caught apart, since it is an OSError too and would be shown as an error.
            raise  # click ends quietly when the reader of a pipe has left
        except (ValueError, OSError, ImportError, FloatingPointError) as error:
            # What a user can mend: values, files, packages, and training that diverged. Anything
            # else is a defect, and its traceback is wanted.
            from workbench.cli.terminal import say

            say(f"error: {error}", err=True)
            sys.exit(1)
        except KeyboardInterrupt:
            # Rounds and runs that are done are on disk already.
            goes_on = "; the same command goes on with what is missing"
            resumable = ctx.invoked_subcommand in RESUMABLE
            click.echo(f"\nstopped{goes_on if resumable else ''}", err=True)
            sys.exit(130)


def examples(*lines: str) -> str:
    """Text below a command's help, one command a line."""
    return "\b\nExamples:\n" + "\n".join(f"  python -m workbench {line}" for line in lines)


def method_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The methods that begin like this, for completion in the shell."""
    return [name for name in (*PAPERS, *MORE_PAPERS) if name.startswith(incomplete)]


def print_completion(ctx: click.Context, parameter: click.Parameter, shell: str | None) -> None:
    """Print the script that completes commands and methods in that shell, and end."""
    # click also parses a line in order to complete it, and then nothing may be printed.
    if not shell or ctx.resilient_parsing:
        return
    from click.shell_completion import get_completion_class

    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(main, {}, "workbench", "_WORKBENCH_COMPLETE").source())
    ctx.exit()


print_json = click.option("--json", is_flag=True, help="Print JSON and nothing else on stdout.")


@click.group(cls=Commands, epilog=EPILOG)
@click.version_option(__version__, prog_name="workbench")
@click.option(
    "--completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    expose_value=False,
    is_eager=True,
    callback=print_completion,
    help="Print what the shell evaluates for tab completion.",
)
def main() -> None:
    """Which rollouts are worth generating, and which are worth training on?"""
    # Before torch and matplotlib are loaded. Models as small as the shipped ones are slower with
    # more threads, and figures are only written to files here.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MPLBACKEND", "agg")


@main.command(
    epilog=examples("quickstart", "quickstart --rounds 20 --out runs/first --figures figures")
)
@click.option(
    "--rounds",
    default=100,
    show_default=True,
    type=click.IntRange(1),
    help="Rounds in all, each of 32 problems x 8 rollouts.",
)
@click.option("--seed", default=0, show_default=True, help="Of everything that is drawn.")
@click.option(
    "--out",
    default="runs/quickstart",
    show_default=True,
    help="Directory of the record. A run that stopped there goes on.",
)
@click.option("--figures", default="figures", show_default=True, help="Directory of the pictures.")
def quickstart(**options: Any) -> None:
    """Train the tiny language model by GRPO on this machine, and draw what happened."""
    from workbench.cli import train

    train.quickstart(**options)


@main.command(
    short_help="Train by any method in any lab.",
    # Not a docstring, which cannot hold the lists of names.
    help=f"""Train by METHOD in a lab, and leave a record.

    METHOD is one of {", ".join(PAPERS)}; or, from further papers, {", ".join(MORE_PAPERS)}.

    A method has a slot for each decision: {", ".join(SLOTS)}. With --set you change an argument of
    the method (n=16), put another value into a slot (selector=MaxVariance), or change an argument
    of a slot (selector.m=4). The parts of the reward go by their names (reward.overlong.buffer=64).
    """,
    epilog=examples(
        "run grpo --set n=16 --out runs/grpo",
        "run cbs --set selector.scope=round --set allocator.n=16 --out runs/cbs",
        "run knapsack --set selector=MaxVariance --set selector.m=8 --out runs/both",
        "run aero --set advantage.alpha=2 --lab pool=1024 --lab levels=1,2,3 --out runs/aero",
        "run pods --lab transformers --model my-model --data train.jsonl --out runs/mine",
    ),
)
@click.argument("method", shell_complete=method_names)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument of the method, as n=16, or of a slot, as selector.m=4. Repeatable.",
)
@click.option(
    "--lab",
    multiple=True,
    metavar="NAME|NAME=VALUE",
    help=f"The lab ({', '.join(LABS)}), or an argument of it, as pool=1024. Repeatable.",
)
@click.option("--model", metavar="NAME_OR_PATH", help="The model that the lab trains.")
@click.option(
    "--data", metavar="FILE", help="Problems to train on: a .jsonl, .json, .csv or .parquet file."
)
@click.option(
    "--held-out-data", metavar="FILE", help="Problems to evaluate on, in a file of the same kinds."
)
@click.option(
    "--prompt-column", default="prompt", show_default=True, help="The column of the questions."
)
@click.option(
    "--answer-column", default="answer", show_default=True, help="The column of the right answers."
)
@click.option(
    "--rounds", default=200, show_default=True, type=click.IntRange(1), help="Rounds in all."
)
@click.option(
    "--problems", default=32, show_default=True, help="Problems that a round begins with."
)
@click.option("--seed", default=0, show_default=True, help="Of everything that is drawn.")
@click.option(
    "--evaluate-every",
    default=20,
    show_default=True,
    help="Rounds between evaluations on held-out problems; 0 for none.",
)
@click.option(
    "--out",
    required=True,
    help="Directory of the record. If it holds this run already, the run goes on.",
)
@print_json
def run(**options: Any) -> None:
    """Train with one method in one lab; the decorator above has the help."""
    from workbench.cli import train

    train.run(**options)


@main.command(epilog=examples("resume runs/grpo --rounds 400"))
@click.argument("path", type=click.Path(), metavar="RECORD")
@click.option("--rounds", required=True, type=click.IntRange(1), help="Rounds in all.")
@print_json
def resume(**options: Any) -> None:
    """Go on with a run, as its record says that it was begun.

    Lab, method and settings are read from the manifest in RECORD. It may come from somebody else:
    it can name parts of this package and their arguments, and nothing in it is run as code.
    """
    from workbench.cli import train

    train.resume(**options)


@main.command(
    epilog=examples(
        "show runs/grpo",
        "show runs/grpo --html report.html --out overview.svg",
        "show runs/grpo runs/cbs --html report.html",
        "show runs/grpo --json",
    )
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="RECORD...")
@click.option(
    "--html", metavar="FILE", help="Write a report as one HTML file that loads nothing else."
)
@click.option(
    "--out", metavar="FIGURE", help="Write a figure of one method, as .svg, .png or .pdf."
)
@print_json
def show(**options: Any) -> None:
    """Show what a run left, as a table, a figure or a report.

    RECORD is a run's directory, one with a directory for each seed, or one with label/seed-0,
    label/seed-1, ...
    """
    from workbench.cli import look

    look.show(**options)


@main.command(
    epilog=examples(
        "compare runs/grpo runs/knapsack --x rollouts",
        "compare data/runs/head-to-head --x flops --baseline grpo --out methods.svg",
        "compare runs/grpo runs/knapsack --json",
    )
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="A B...")
@click.option(
    "--x",
    default="seconds",
    show_default=True,
    type=click.Choice(UNITS),
    help="The cost that is made equal.",
)
@click.option(
    "--y",
    default="accuracy",
    show_default=True,
    type=click.Choice(["accuracy", "greedy"]),
    help="The held-out score, of sampled or of greedy answers.",
)
@click.option(
    "--baseline",
    metavar="LABEL",
    help="The method that others are compared with. Default: grpo, or else the first one.",
)
@click.option(
    "--budget",
    type=click.FloatRange(0),
    help="How much of the cost. Default: the most that every run reached.",
)
@click.option("--out", metavar="FIGURE", help="Write the figure, as .svg, .png or .pdf.")
@print_json
def compare(**options: Any) -> None:
    """Compare held-out accuracy at an equal cost, with intervals and paired differences.

    A and B are records, or directories with label/seed-0, label/seed-1, ...; records that differ in
    the seed alone are one method's seeds.
    """
    from workbench.cli import look

    look.compare(**options)


@main.command(
    epilog=examples(
        "sweep data/grids/example.yaml", "sweep data/grids/cbs.yaml --jobs 2 --out runs/sweeps/cbs"
    )
)
@click.argument("grid", type=click.Path())
@click.option(
    "--out",
    help="Output directory. A sweep that stopped there goes on. Default: runs/sweeps/NAME.",
)
@click.option(
    "--jobs", type=click.IntRange(1), help="Runs side by side. Default: one for each core."
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="A Ray cluster: auto or its address, or local to start one on this machine.",
)
@click.option("--gpus", default=0.0, help="GPUs that each run takes on Ray.")
@click.option(
    "--records",
    metavar="DIRECTORY",
    help="Directory of the records. Default: the grid's folder, or that of --out.",
)
@print_json
def sweep(**options: Any) -> None:
    """Make all the runs of a grid, and a table of what came of them.

    GRID is a YAML file of names and plain data; nothing in it is run as code, except that a grid
    may name a notebook, which is run. Its folder must lie in the working directory or in that of
    --out; --records may name any other. The same command makes what is missing or has failed.
    """
    from workbench.cli import train

    train.sweep(**options)


@main.command(
    epilog=examples(
        "leaderboard",
        "leaderboard --only grpo --only knapsack --seeds 3 --out runs/two",
        "leaderboard --add mine=my_methods:mine",
        "leaderboard --base late --jobs 2",
        "leaderboard --table",
        "leaderboard --search --price 0.5",
    )
)
@click.argument("grid", type=click.Path(), required=False)
@click.option("--seeds", type=click.IntRange(1), help="Seeds of each method. Default: the grid's.")
@click.option(
    "--only", multiple=True, metavar="LABEL", help="Only the method of this label. Repeatable."
)
@click.option(
    "--add",
    multiple=True,
    metavar="LABEL=MODULE:FUNCTION",
    help="A method of your own, which FUNCTION returns. This runs the code of MODULE. Repeatable.",
)
@click.option(
    "--base",
    default="early",
    show_default=True,
    type=click.Choice(BASES_WITH_MISTAKES),
    help="The base model of the lab.",
)
@click.option(
    "--size",
    default="small",
    show_default=True,
    type=click.Choice(SIZES),
    help="The size of the base model.",
)
@click.option(
    "--regime",
    default="spread",
    show_default=True,
    type=click.Choice(REGIMES),
    help="How hard the training problems are for the base model.",
)
@click.option(
    "--search",
    is_flag=True,
    help="Search for the best combination of slots, and compare the best ones on fresh seeds.",
)
@click.option(
    "--price",
    type=click.FloatRange(0, min_open=True),
    help="Of sampling, at which the search ranks: a sampled token's cost over a trained one's. "
    "Default: that in FLOPs, 1/3.",
)
@click.option(
    "--single",
    metavar="LABEL",
    help="The method that the search's winners are compared with, besides GRPO. Default: the best "
    "one of the leaderboard.",
)
@click.option(
    "--table", "only_table", is_flag=True, help="Make no runs: only the table of what is recorded."
)
@click.option("--out", help="Directory of records, logs and table. Default: where the grid says.")
@click.option(
    "--jobs", type=click.IntRange(1), help="Runs side by side. Default: one for each core."
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="A Ray cluster: auto or its address, or local to start one on this machine.",
)
@print_json
def leaderboard(**options: Any) -> None:
    """Every method against GRPO at equal cost, with intervals.

    Makes the runs of GRID that are missing, the first seed of all methods before the second, and
    then a table: what each method needs to GRPO's target in rollouts, FLOPs, seconds and rounds,
    how accurate it is at an equal number of rollouts, and which one is the cheapest at which price
    of sampling. GRID is a YAML file as of the command sweep; without it, the one that comes with
    this package. The same command goes on where it was stopped.
    """
    from workbench.cli import leaderboard as board

    board.leaderboard(**options)


@main.command(
    epilog=examples(
        "doctor",
        "doctor --lab unsloth --model Qwen/Qwen2.5-3B-Instruct --max-length 1024",
        "doctor --json",
    )
)
@click.option(
    "--lab", default="tiny", show_default=True, type=click.Choice(LABS), help="The lab in question."
)
@click.option(
    "--model",
    metavar="NAME_OR_PATH",
    help="Estimate the memory that this model takes. Nothing is downloaded.",
)
@click.option(
    "--lora-rank", default=64, show_default=True, help="Of the adapters; 0 trains all parameters."
)
@click.option("--load-in-4bit", is_flag=True, help="Quantise the weights by bitsandbytes.")
@click.option(
    "--fast-inference/--no-fast-inference",
    default=True,
    show_default=True,
    help="Whether vLLM samples in the lab unsloth.",
)
@click.option(
    "--engine",
    default="transformers",
    show_default=True,
    type=click.Choice(["transformers", "vllm"]),
    help="What samples in the lab transformers.",
)
@click.option(
    "--gradient-checkpointing/--no-gradient-checkpointing",
    default=None,
    help="Whether layers are computed again in the backward pass. Default: as the lab does it.",
)
@click.option(
    "--optimizer-bits",
    default="32",
    show_default=True,
    type=click.Choice([str(bits) for bits in OPTIMIZER_BITS]),
    help="Of the moments of AdamW.",
)
@click.option("--dtype", default="bfloat16", show_default=True, help="Of the weights.")
@click.option(
    "--max-length", default=1024, show_default=True, help="Tokens of prompt and response together."
)
@click.option("--rollouts", default=64, show_default=True, help="Rollouts sampled at once.")
@click.option(
    "--micro-tokens", default=16_384, show_default=True, help="Tokens of one micro-batch."
)
@print_json
def doctor(json: bool, **options: Any) -> None:
    """Show this machine, and what it lacks to run a lab.

    The exit status is 1 when the lab, with the model if one is named, cannot run here.
    """
    # The module has the name of this command.
    from workbench.cli import doctor as checks
    from workbench.cli.terminal import as_json, say

    options["optimizer_bits"] = int(options["optimizer_bits"])
    told = checks.report(**options)
    # The report comes first: that the lab cannot run here is a result and no error.
    say(as_json(told) if json else checks.text(told))
    if not told["can_run"]:
        sys.exit(1)


if __name__ == "__main__":
    main(prog_name="python -m workbench")
