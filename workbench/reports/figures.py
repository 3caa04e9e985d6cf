"""Figures of the HTML report.

They are SVG whose colours are variables of the page, so that one drawing serves light and dark.
"""

from __future__ import annotations

import hashlib
import io
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from workbench.analysis import comparisons
from workbench.plots import curves as plots
from workbench.plots import tables as plots_tables
from workbench.plots.style import BASELINE, plain
from workbench.records import Record
from workbench.reports.tables import has_numbers

Groups = Mapping[str, Sequence[Record]]

# In inches. Smaller than figures of notebooks, since the page sets several beside one another
# where it has room.
WIDTH, HEIGHT = 5.6, 3.3
A_ROW = 0.22  # of a legend or of a bar chart
ABOVE = 4  # labels up to which the legend is above the axes; it is beside them for more
# Colours of the house style and of seaborn's and Matplotlib's defaults, by their role on the
# page.
INK = {
    "#ffffff": "var(--panel)",
    "#000000": "var(--text)",
    "#262626": "var(--text)",
    "#333333": "var(--text)",
    "#666666": "var(--soft)",
    "#e6e6e6": "var(--grid)",
    BASELINE: "var(--baseline)",
}
# HTML has no such characters, and a terminal that shows the file would act on some of them.
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

CAPTIONS = tomllib.loads((Path(__file__).parent / "captions.toml").read_text(encoding="utf-8"))


def curves(groups: Groups) -> list[dict[str, Any]]:
    """Held-out accuracy and what changes with it: svg and caption of each figure."""
    # One evaluation is no curve.
    evaluated = {}
    for label, group in groups.items():
        runs = [record for record in group if len(record.accuracy()) > 1]
        if runs:
            evaluated[label] = runs
    figures = []
    if evaluated and _comparable(evaluated):
        figures = [_curve(evaluated, **curve) for curve in CAPTIONS["held_out"]]
    # By level there is a bar for each level and round; several labels would be too many bars.
    # Packing may have left the levels out.
    [runs, *others] = evaluated.values() or [[]]
    if runs and not others and all("level" in record.evals for record in runs):
        name = "Held-out accuracy by difficulty level"
        caption = f"{name}, at the first and the last evaluation."
        figures.append(drawn(lambda ax: plots.accuracy_by_level(runs, ax=ax), name, caption))
    return figures + _round_curves(groups, CAPTIONS["curves"])


def _comparable(groups: Groups) -> bool:
    """Whether all runs have the same held-out problems; `tables.comparison` says why not."""
    try:
        comparisons.comparable(groups)
    except ValueError:
        return False
    return True


def mechanisms(groups: Groups) -> list[dict[str, Any]]:
    """Where gradients came from, and phases of a round: svg and caption of each figure."""
    return [*_round_curves(groups, CAPTIONS["mechanisms"]), _phases(groups)] if groups else []


def _round_curves(groups: Groups, shown: Mapping[str, str]) -> list[dict[str, Any]]:
    """A curve for each column of the rounds that some labels have numbers in."""
    figures = []
    for column, caption in shown.items():
        # All runs of a label or none: a mean must not be of other seeds in every figure.
        having = {
            label: group
            for label, group in groups.items()
            if all(column in record.rounds for record in group)
            and all(has_numbers(record.rounds[column]) for record in group)
        }
        if having:
            caption = f"{caption} Moving mean of 10 rounds."
            figures.append(_curve(having, "round", column, caption, smooth=10))
    return figures


def _curve(groups: Groups, x: str, y: str, caption: str, smooth: int = 1) -> dict[str, Any]:
    name = plots.axis_label(y, [record for group in groups.values() for record in group])
    # The text for those who cannot see the figure says where each curve begins and ends.
    ends = []
    for label, group in groups.items():
        first, last = np.mean([_ends(record, y) for record in group], axis=0)
        ends.append(f"{label} from {first:.3g} to {last:.3g}")
    alt = f"{name} by {plots.AXIS_LABELS[x]}: {'; '.join(ends)}"
    beside = len(groups) > ABOVE
    legend = None if len(groups) == 1 else "outside" if beside else "above"

    def draw(ax: Any) -> None:
        plots.learning_curve(groups, x=x, y=y, smooth=smooth, ylabel=name, legend=legend, ax=ax)
        if x == "round":
            ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))

    return drawn(draw, alt, caption, rows=len(groups) if beside else 0)


def _ends(record: Record, y: str) -> np.ndarray:
    """First and last value; of a column of rounds, means over the first and the last ten."""
    if y in ("accuracy", "greedy"):
        return record.accuracy()[y].iloc[[0, -1]].to_numpy()
    rounds = record.rounds[y]
    return np.array([rounds.head(10).mean(), rounds.tail(10).mean()])


def _phases(groups: Groups) -> dict[str, Any]:
    table = comparisons.phases(groups)
    parts = [
        f"{label} {', '.join(f'{phase} {value:.3g}' for phase, value in row.items())}"
        for label, row in table.iterrows()
    ]
    return drawn(
        lambda ax: plots_tables.stacked(table.rename(index=plain), label="seconds a round", ax=ax),
        f"Seconds a round by phase: {'; '.join(parts)}",
        "Seconds a round by phase.",
        rows=len(table),
    )


def visible(value: Any) -> Any:
    """A text of the page with its control characters written as escapes; else the value itself."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", value)


def drawn(draw: Callable[[Any], Any], alt: str, caption: str, rows: int = 0) -> dict[str, Any]:
    """What `draw` draws on new axes, as an element of the page; `rows` are those of a bar chart."""
    # The figure grows with its rows, so that their names do not meet.
    size = (WIDTH, max(HEIGHT, 1.0 + A_ROW * rows))
    with plots.style():
        figure, ax = plots.plt.subplots(figsize=size, layout="constrained")
        draw(ax)
        # The page has captions in place of titles.
        ax.set_title("")
    return element(figure, alt, caption)


def element(figure: Figure, alt: str, caption: str) -> dict[str, Any]:
    """A figure as an element of the page."""
    with plots.style() as colours:
        buffer = io.StringIO()
        # Without metadata the same records always give the same page.
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=nothing)
    # Matplotlib keeps every open figure in memory, and a report has many.
    plots.plt.close(figure)
    svg = _inline(buffer.getvalue(), escape(visible(alt)), colours.as_hex())
    return {"svg": Markup(svg), "caption": caption}


def _inline(svg: str, alt: str, palette: Sequence[str]) -> str:
    """Matplotlib's SVG as an element of a page.

    It loses prologue and size, its ids become its own, and its colours variables of the page.
    """
    # Ids are unique within one SVG only, and a page holds many. A hash of the drawing keeps the
    # page the same from one run to the next.
    own = hashlib.blake2b(svg.encode(), digest_size=6).hexdigest()
    box = re.search(r'viewBox="[^"]+"', svg)
    assert box is not None
    # Without width and height, so that the page decides how large a figure is.
    body = svg[svg.index("<svg") :]
    body = f'<svg {box[0]} role="img" aria-label="{alt}">' + body[body.index(">") + 1 :]
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>f{own}-", body)
    # The palette counts as --c0, --c1, ... Colours that are not known stay as they are.
    variables = INK | {colour: f"var(--c{place})" for place, colour in enumerate(palette)}
    return re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda match: variables.get(match[0], match[0]), body)
