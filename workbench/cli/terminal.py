"""What the commands write to the terminal: text without control characters, and plain JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
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
        letter if letter.isprintable() or letter == "\n" else _escaped(letter) for letter in text
    )


def as_json(value: Any) -> str:
    r"""JSON text of dicts, lists and numbers; what is not finite becomes null, as all readers know.

    >>> as_json({"mean": float("nan")})
    '{\n  "mean": null\n}'
    """
    # A NaN that `_plain` missed is an error here, and not text that most readers of JSON refuse.
    return json.dumps(_plain(value), indent=2, allow_nan=False)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode("ascii")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if hasattr(value, "item"):
        # A number of NumPy. It is not returned yet, since it may be a float that is not finite.
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
