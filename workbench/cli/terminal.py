"""What the commands write to the terminal: text without control characters, and plain JSON."""

from __future__ import annotations

import json
from typing import Any

import typer


def say(text: str, err: bool = False) -> None:
    """Print a text; names in records are other people's, and may hold escape sequences."""
    typer.echo(printable(text), err=err)


def printable(text: str) -> str:
    r"""The text with everything that a terminal would act on, not show, written as an escape.

    Line ends stay. Control characters, marks that turn the direction of text, and halves of
    surrogate pairs do not.

    >>> printable("caf\u00e9 \x1b[31mred\x07")
    'café \\x1b[31mred\\x07'
    """
    return "".join(
        letter
        if letter.isprintable() or letter == "\n"
        else letter.encode("unicode_escape", "surrogatepass").decode("ascii")
        for letter in text
    )


def as_json(value: Any) -> str:
    r"""JSON text of dicts, lists and numbers; what is not finite becomes null, as all readers know.

    >>> as_json({"mean": float("nan")})
    '{\n  "mean": null\n}'
    """
    # By way of a text, in which numbers of NumPy are plain, and what is not finite has names.
    text = json.dumps(value, default=lambda number: number.item())
    return json.dumps(json.loads(text, parse_constant=lambda name: None), indent=2)
