"""What a notebook shows of an object: a small HTML table that fits any theme."""

from html import escape

LEFT = "style='text-align:left'"


def card(title, rows):
    """HTML of a table with a title and rows, pairs of name and value; everything is escaped."""
    lines = "".join(
        f"<tr><th scope='row' {LEFT}>{escape(str(name))}</th><td "
        f"{LEFT}>{escape(str(value))}</td></tr>"
        for name, value in rows
    )
    caption = f"<caption {LEFT}><b>{escape(str(title))}</b></caption>"
    return f"<table>{caption}<tbody>{lines}</tbody></table>"
