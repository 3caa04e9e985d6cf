"""Names in figures: other people's records may call a method anything."""


def plain(label: str) -> str:
    r"""A label that Matplotlib draws as it is written.

    Dollars are no mathematics, a leading _ does not hide the label from the legend, and characters
    that cannot be drawn, such as halves of surrogate pairs, become the replacement character.

    >>> plain("a $x$")
    'a \\$x\\$'
    """
    drawable = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in label
    )
    escaped = drawable.replace("$", r"\$")
    # A space of no width keeps the _ from being the first character.
    return f"\N{ZERO WIDTH SPACE}{escaped}" if escaped.startswith("_") else escaped
