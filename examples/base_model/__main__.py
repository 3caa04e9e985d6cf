"""Make a base model of the tiny lab again: `python -m examples.base_model early-small`."""

import click

from examples.base_model.training import RECIPES, make


@click.command(
    help=f"""Make a base model by supervised training.

    NAME is one of {", ".join(RECIPES)}. The directory gets the weights, the tokenizer, a card,
    and tables of the loss and of the held-out accuracy while training.
    """
)
@click.argument("name", type=click.Choice(list(RECIPES)))
@click.option("--out", help="Directory that the model is written to. Default: data/models/NAME.")
@click.option("--seed", type=int, help="Of weights and corpus. Default: that of the shipped model.")
@click.option("--steps", type=int, help="Training steps. Default: those of the shipped model.")
def main(name: str, out: str | None, seed: int | None, steps: int | None) -> None:
    """Make a base model; the decorator above has the help."""
    try:
        make(name, out or f"data/models/{name}", seed=seed, steps=steps, report=click.echo)
    except ValueError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main(prog_name="python -m examples.base_model")
