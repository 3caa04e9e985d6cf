"""What the commands write to the terminal: text, and plain JSON."""

from __future__ import annotations

import json
from typing import Any

import typer

say = typer.echo


def as_json(value: Any) -> str:
    r"""JSON text of dicts, lists and numbers; what is not finite becomes null, as all readers know.

    >>> as_json({"mean": float("nan")})
    '{\n  "mean": null\n}'
    """
    # By way of a text, in which numbers of NumPy are plain, and what is not finite has names.
    text = json.dumps(value, default=lambda number: number.item())
    return json.dumps(json.loads(text, parse_constant=lambda name: None), indent=2)
