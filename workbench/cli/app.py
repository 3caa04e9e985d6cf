"""The command line: `python -m workbench quickstart`. What the commands do is in `commands`, loaded when one runs."""

import os
import sys

import click

from workbench import __version__
from workbench.cli.settings import METHODS

UNITS = ("seconds", "flops", "rollouts", "round")
RESUMABLE = ("quickstart", "run", "sweep")


class Commands(click.Group):
    """A named error is one line on stderr and exit status 1, an interrupt 130."""

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # click's own affair: the reader has left
        except (ValueError, OSError, ImportError, FloatingPointError) as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(1)
        except KeyboardInterrupt:
            resumable = ctx.invoked_subcommand in RESUMABLE
            click.echo(
                "\nstopped" + "; the same command goes on with what is missing" * resumable,
                err=True,
            )
            sys.exit(130)


def examples(*lines):
    """Text below a command's help, one command a line."""
    return "\b\nExamples:\n" + "\n".join(f"  python -m workbench {line}" for line in lines)


def method_names(ctx, parameter, incomplete):
    """For completion in the shell."""
    return [name for name in METHODS if name.startswith(incomplete)]


def print_completion(ctx, parameter, shell):
    """Prints the script that completes commands and methods in that shell, and ends."""
    if shell and not ctx.resilient_parsing:
        from click.shell_completion import get_completion_class

        click.echo(
            get_completion_class(shell)(main, {}, "workbench", "_WORKBENCH_COMPLETE").source()
        )
        ctx.exit()


EPILOG = """\b
Exit status: 0 done; 1 an error, named in one line on stderr (doctor also: cannot run here);
2 wrong usage; 130 interrupted.

\b
Completion of the script `workbench`, for bash (zsh and fish alike):
  eval "$(workbench --completion bash)"
"""
as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON and nothing else on stdout."
)


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
def main():
    """Which rollouts are worth generating, and which are worth training on?"""
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
    help="Rounds of 32 problems x 8 rollouts.",
)
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--out", default="runs/quickstart", show_default=True, help="Directory of the record, resumed."
)
@click.option("--figures", default="figures", show_default=True, help="Directory of the pictures.")
def quickstart(**options):
    """Train the tiny language model by GRPO on this machine, and draw what happened."""
    from workbench.cli import train

    train.quickstart(**options)


@main.command(
    epilog=examples(
        "run grpo --set n=16 --out runs/grpo",
        "run cbs --set selector.scope=round --set allocator.n=16 --out runs/cbs",
        "run aero --set advantage.alpha=2 --lab pool=1024 --lab levels=1,2,3 --out runs/aero",
    )
)
@click.argument("method", shell_complete=method_names)
@click.option(
    "--set",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument of the method, as n=16, or of one of its slots, as selector.m=4; repeatable.",
)
@click.option(
    "--lab",
    "lab_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An argument of the tiny lab, as pool=1024.",
)
@click.option("--rounds", default=200, show_default=True, type=click.IntRange(1))
@click.option("--problems", default=32, show_default=True, help="Problems a round.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--evaluate-every",
    default=20,
    show_default=True,
    help="Rounds between evaluations, 0 for none.",
)
@click.option("--out", required=True, help="Directory of the record; resumed if it holds this run.")
@as_json
def run(**options):
    from workbench.cli import train

    train.run(**options)


run.help = f"""Run METHOD in the tiny lab: {", ".join(METHODS)}.

Slots are allocator, reuse, selector, advantage, objective and reward (whose parts go by name: reward.overlong.buffer).
"""


@main.command(
    epilog=examples(
        "show runs/grpo",
        "show runs/grpo --html report.html --out overview.svg",
        "show runs/grpo runs/cbs --html report.html",
        "show runs/grpo --json",
    )
)
@click.argument("records", nargs=-1, required=True, type=click.Path(), metavar="RECORD...")
@click.option(
    "--html",
    default=None,
    metavar="FILE",
    help="Write a report: one HTML file that needs no network.",
)
@click.option(
    "--out", default=None, metavar="FIG", help="Write a figure: .svg, .png, .pdf; of one method."
)
@as_json
def show(records, **options):
    """Show what a run left: its table, a figure, a report.

    RECORD is a run's directory, one with a directory for each seed, or one with label/seed-0, label/seed-1, ...
    """
    from workbench.cli import look

    look.show(records, **options)


@main.command(
    epilog=examples(
        "compare runs/grpo runs/knapsack --x rollouts",
        "compare data/runs/cbs --x flops --baseline grpo-full --out cbs.svg",
        "compare runs/grpo runs/knapsack --json",
    )
)
@click.argument("records", nargs=-1, required=True, type=click.Path(), metavar="A B...")
@click.option(
    "--x",
    default="seconds",
    show_default=True,
    type=click.Choice(UNITS),
    help="What all have spent equally.",
)
@click.option(
    "--y",
    default="accuracy",
    show_default=True,
    type=click.Choice(["accuracy", "greedy"]),
    help="Held-out score.",
)
@click.option(
    "--baseline",
    default=None,
    metavar="LABEL",
    help="What differences are taken to.  [default: the first]",
)
@click.option(
    "--budget",
    default=None,
    type=click.FloatRange(0),
    help="Of x.  [default: the most that every run reached]",
)
@click.option("--out", default=None, metavar="FIG", help="Write the figure: .svg, .png, .pdf.")
@as_json
def compare(records, **options):
    """Compare held-out accuracy at an equal budget, with intervals and paired differences.

    A and B are records, or directories with label/seed-0, label/seed-1, ...; records that differ in the seed alone are
    one method's seeds.
    """
    from workbench.cli import look

    look.compare(records, **options)


@main.command(
    epilog=examples(
        "sweep data/grids/example.yaml", "sweep data/grids/cbs.yaml --jobs 2 --out runs/sweeps/cbs"
    )
)
@click.argument("grid", type=click.Path())
@click.option(
    "--out",
    default=None,
    help="Output directory, gone on with if it holds this sweep.  [default: runs/sweeps/NAME]",
)
@click.option(
    "--jobs", default=None, type=click.IntRange(1), help="Runs side by side.  [default: one a core]"
)
@click.option(
    "--ray",
    default=None,
    metavar="ADDRESS",
    help="A Ray cluster: auto or its address; local starts one here.",
)
@click.option("--gpus", default=0.0, help="GPUs that each run takes on Ray.")
@as_json
def sweep(as_json, **options):
    """Run a notebook over GRID, a YAML file."""
    from workbench.sweeps import runner as sweeps

    frame = sweeps.sweep(report=lambda line: click.echo(line, err=as_json), **options)
    shown = (
        frame.to_json(orient="records", indent=2)
        if as_json
        else ("\n" + frame.drop(columns=["error", "notebook"]).to_string(index=False))
    )
    click.echo(shown)
    failed = int((frame["status"] == "failed").sum())
    if failed:
        raise ValueError(f"{failed} of {len(frame)} runs failed; the same command runs them again")


@main.command("base-model", epilog=examples("base-model --out my-model --seed 1"))
@click.option(
    "--out", default="data/models/tiny", show_default=True, help="Directory to write the model to."
)
@click.option("--seed", default=None, type=int, help="Default: that of the shipped model.")
@click.option("--steps", default=None, type=int, help="Default: those of the shipped model.")
def base_model(out, seed, steps):
    """Make the tiny base model again: supervised training, stopped early, with its card."""
    from pathlib import Path

    from workbench.base_model import pretrain

    pretrain.make(Path(out), seed=seed, steps=steps, report=click.echo)


@main.command(
    epilog=examples(
        "doctor",
        "doctor --lab unsloth --model Qwen/Qwen2.5-3B-Instruct --max-length 1024",
        "doctor --json",
    )
)
@click.option(
    "--lab",
    default="tiny",
    show_default=True,
    type=click.Choice(["tiny", "transformers", "unsloth"]),
)
@click.option(
    "--model",
    default=None,
    metavar="NAME_OR_PATH",
    help="Estimate the memory of this model; nothing is downloaded.",
)
@click.option("--lora-rank", default=64, show_default=True, help="0 trains all parameters.")
@click.option("--load-in-4bit", is_flag=True, help="Quantised weights (bitsandbytes).")
@click.option(
    "--fast-inference/--no-fast-inference",
    default=True,
    show_default=True,
    help="vLLM samples in the lab unsloth.",
)
@click.option("--dtype", default="bfloat16", show_default=True, help="Of the weights.")
@click.option(
    "--max-length", default=1024, show_default=True, help="Tokens of prompt and response."
)
@click.option("--rollouts", default=64, show_default=True, help="Sampled at once.")
@click.option("--micro-tokens", default=16_384, show_default=True, help="Tokens of a micro-batch.")
@as_json
def doctor(lab, model, as_json, **options):
    """Show this machine and what is missing; exit with 1 when LAB, with the model if one is named, cannot run here."""
    from workbench.cli import doctor

    told = doctor.report(lab, model, **options)
    if as_json:
        import json

        click.echo(json.dumps(told, indent=2))
    else:
        click.echo(doctor.text(told))
    if not told["can_run"]:
        sys.exit(1)


if __name__ == "__main__":
    main(prog_name="python -m workbench")
