"""Make a base model of the tiny lab again: `python -m examples.base_model early-small`."""

from typing import Annotated, Literal

import typer
from typer import Argument, Option

from examples.base_model.training import RECIPES, make

main = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@main.command()
def make_again(
    name: Annotated[Literal[tuple(RECIPES)], Argument()],
    out: Annotated[
        str | None,
        Option(
            help="Directory that the model is written to, in place of what is there. "
            "Default: build/models/NAME. data/models/NAME replaces the model that labs.tiny loads."
        ),
    ] = None,
    seed: Annotated[
        int | None, Option(help="Of weights and corpus. Default: that of the shipped model.")
    ] = None,
    steps: Annotated[
        int | None, Option(help="Training steps. Default: those of the shipped model.")
    ] = None,
) -> None:
    """Make a base model by supervised training.

    The directory gets the weights, the tokenizer, a card, and tables of the loss and of the
    held-out accuracy while training.
    """
    try:
        make(name, out or f"build/models/{name}", seed=seed, steps=steps, report=typer.echo)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    main(prog_name="python -m examples.base_model")
