"""What a notebook shows of an object: a small HTML table that fits any theme."""

from collections.abc import Iterable
from html import escape
from typing import Any

LEFT = "style='text-align:left'"


def card(title: Any, rows: Iterable[tuple[Any, Any]]) -> str:
    """HTML of a table with a title and rows, pairs of name and value; everything is escaped."""
    lines = []
    for name, value in rows:
        head = f"<th scope='row' {LEFT}>{escape(str(name))}</th>"
        lines.append(f"<tr>{head}<td {LEFT}>{escape(str(value))}</td></tr>")
    caption = f"<caption {LEFT}><b>{escape(str(title))}</b></caption>"
    return f"<table>{caption}<tbody>{''.join(lines)}</tbody></table>"
