"""The command line: `python -m workbench quickstart`.

The commands are functions of the modules beside this one: the parameters of a function are the
options of its command, and its docstring is the help. Whatever takes time to import is imported
when a command runs, so that help and completion stay fast.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from workbench import __version__
from workbench.cli import doctor, look, profile, train, trial
from workbench.cli.terminal import say

# Commands that go on where they stopped when they are called again.
RESUMABLE = ("quickstart", "run", "resume", "sweep", "trial", "profile")


class Commands(TyperGroup):
    """A named error is one line on stderr and exit status 1, an interrupt 130."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and turn an error into a line and an exit status."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Caught apart, since it is an OSError too and would be shown as an error.
            raise  # typer ends quietly when the reader of a pipe has left
        except (ValueError, OSError, ImportError, FloatingPointError) as error:
            # What a user can mend: values, files, packages, and training that diverged. Anything
            # else is a defect, and its traceback is wanted.
            say(f"error: {error}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            # Rounds and runs that are done are on disk already.
            goes_on = "; the same command goes on with what is missing"
            say(f"\nstopped{goes_on if ctx.invoked_subcommand in RESUMABLE else ''}", err=True)
            raise typer.Exit(130) from None


# Typer keeps the lines of a paragraph that begins with \b.
main = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
    pretty_exceptions_enable=False,
    epilog="\b\nExit status: 0 done; 1 an error, named in one line on stderr (doctor also: cannot "
    "run here);\n2 wrong usage; 10 to 13 a trial without a better arm; 130 interrupted.",
)


def print_version(asked: bool) -> None:
    """Print the version and end, where --version asks for it."""
    if asked:
        say(f"workbench, version {__version__}")
        raise typer.Exit


@main.callback()
def begin(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=print_version, help="Show the version."),
    ] = False,
) -> None:
    """Which rollouts are worth generating, and which are worth training on?"""
    # Before torch and matplotlib are loaded. Models as small as the shipped ones are slower with
    # more threads, and figures are only written to files here.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MPLBACKEND", "agg")


for command in (
    train.quickstart,
    train.run,
    train.resume,
    look.show,
    look.report,
    look.push,
    look.compare,
    look.seeds,
    look.pack,
    look.runs,
    train.sweep,
    trial.check,
    trial.trial,
    trial.ledger,
    profile.profile,
    doctor.doctor,
):
    main.command()(command)
