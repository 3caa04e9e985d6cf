"""Names in figures: other people's records may call a method anything."""

from __future__ import annotations

import re
from typing import Any

INVISIBLE = "\N{ZERO WIDTH SPACE}"
LONGEST = 48  # characters: more would leave no room for the figure


def plain(label: Any) -> str:
    r"""A label that Matplotlib draws as it is written.

    Dollars are no mathematics, a leading _ does not hide the label from the legend, and characters
    that cannot be drawn, such as line breaks and halves of surrogate pairs, become the replacement
    character. Of a label that is too long for any figure the beginning and the end are kept. What
    has been made plain stays as it is.

    Parameters
    ----------
    label : str, or anything else as `str` writes it

    Returns
    -------
    str

    Examples
    --------
    >>> plain("a $x$")
    'a \\$x\\$'
    >>> plain(plain("a $x$")) == plain("a $x$")
    True
    >>> plain("a" * 500 + "z" * 500)
    'aaaaaaaaaaaaaaaaaaaaaaaa…zzzzzzzzzzzzzzzzzzzzzzz'
    """
    text = str(label)
    # What is counted is what is seen: escapes and the space of no width take no room, and a label
    # that has been made plain must not be cut once more.
    visible = text.removeprefix(INVISIBLE).replace(r"\$", "$")
    if len(visible) > LONGEST:
        # Paths, which tell equal names apart, differ at their end.
        text = text[: LONGEST // 2] + "…" + text[1 - LONGEST // 2 :]
    # Line breaks would break the layout, and half surrogate pairs cannot be written to a file.
    drawable = "".join(
        letter if letter.isprintable() or letter == INVISIBLE else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )
    # Only dollars that are not escaped yet, so that a second call changes nothing.
    escaped = re.sub(r"(?<!\\)\$", r"\\$", drawable)
    # A space of no width keeps the _ from being the first character.
    return INVISIBLE + escaped if escaped.startswith("_") else escaped
