"""Figures of the HTML report.

They are SVG whose colours are variables of the page, so that one drawing serves light and dark.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from workbench.analysis import comparisons
from workbench.plots import curves as plots
from workbench.plots import tables as plots_tables
from workbench.plots.style import BASELINE, DASHES, PALETTE, looks
from workbench.plots.text import plain
from workbench.records import Record

Groups = Mapping[str, Sequence[Record]]

# In inches. Smaller than figures of notebooks, since the page sets several beside one another
# where it has room.
WIDTH, HEIGHT = 5.6, 3.3
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
# The dashes of the house style in the legend of the page.
SVG_DASHES = dict(zip(DASHES, ("", "7 4", "2 4", "7 3 2 3", "9 2 2 2 2 2", "1 5"), strict=True))
IN_FIGURE = 4  # labels up to which a figure has a legend of its own
SHORT = 24  # letters of a label that fit into a figure's legend

OUTCOMES = ("all right", "mixed", "all wrong")

CURVES = {
    "reward": "Mean reward of a round's rollouts.",
    "entropy": "Mean entropy of the sampling distribution.",
    "length": "Mean length of responses.",
}
MECHANISMS = {
    "effective_gradient_ratio": "Share of the selected rollouts whose advantage is not zero.",
    "trained": "Rollouts trained on in a round.",
    "gradient_norm": "Norm of the gradient before clipping.",
}


def curves(groups: Groups) -> list[dict[str, Any]]:
    """Held-out accuracy and what changes with it: svg and caption of each figure."""
    evaluated = {}
    for label, group in groups.items():
        # One evaluation is no curve.
        runs = [record for record in group if len(record.accuracy()) > 1]
        if runs:
            evaluated[label] = runs
    figures = []
    if evaluated:
        captions = {
            ("round", "accuracy"): "Held-out accuracy of sampled responses by round.",
            ("seconds", "accuracy"): "The same by training time; evaluation is not counted.",
            ("round", "greedy"): "Held-out accuracy of greedy responses by round.",
        }
        for (x, y), caption in captions.items():
            figures.append(_curve(evaluated, x, y, caption, order=list(groups)))
    # By level there is a bar for each level and round; several labels would be too many bars.
    if len(evaluated) == 1:
        [runs] = evaluated.values()
        name = "Held-out accuracy by difficulty level"
        figures.append(
            _figure(
                lambda ax: plots.accuracy_by_level(runs, ax=ax),
                name,
                f"{name}, at the first and the last evaluation.",
            )
        )
    return figures + _round_curves(groups, CURVES)


def mechanisms(groups: Groups) -> list[dict[str, Any]]:
    """Where gradients came from, and phases of a round: svg and caption of each figure."""
    if not groups:
        return []
    return [*_round_curves(groups, MECHANISMS), *_shares(groups), _phases(groups)]


def draw_curves(
    groups: Groups,
    *,
    x: str,
    y: str,
    ax: Any,
    smooth: int = 1,
    order: Sequence[str] | None = None,
    legend: bool = True,
) -> None:
    """`plots.learning_curve` of any number of labels, each with a look of its own.

    Parameters
    ----------
    groups : dict from label to records
    x, y, smooth, ax
        As in `plots.learning_curve`.
    order : labels, optional
        All labels of the page. They decide the looks, so that a label has the same one in every
        figure, also where a figure lacks some of them.
    legend : bool
        Whether to draw one, outside the axes where there are more than `IN_FIGURE` labels.
    """
    styles = looks(order or groups)
    for label, group in groups.items():
        # One label at a time, so that each line can be given its look.
        plots.learning_curve({plain(label): group}, x=x, y=y, smooth=smooth, legend=None, ax=ax)
        line = ax.lines[-1]
        line.set_color(styles[label].colour)
        line.set_linestyle(styles[label].dash)
        line.set_label(f"{_shortened(plain(label))} (n = {len(group)})")
        if len(group) > 1:
            band = ax.collections[-1]
            band.set_facecolor(styles[label].colour)
            if len(groups) > IN_FIGURE:
                band.set_alpha(0.07)  # or all bands together hide the curves
    if x == "round":
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    _place_legend(ax, len(styles) if legend else 1)


def legend(groups: Groups) -> list[dict[str, Any]]:
    """Colour, dashes and text of every label, for the legend of the page; empty for few labels.

    The colour is the name of a variable of the page.
    """
    # Few short labels have a legend in each figure; the page needs none of its own.
    if not _page_has_legend(list(groups)):
        return []
    variables = {colour: f"--c{place}" for place, colour in enumerate(PALETTE)}
    variables[BASELINE] = "--baseline"
    return [
        {
            "colour": variables[look.colour],
            "dashes": SVG_DASHES[look.dash],
            "text": f"{label} (n = {len(groups[label])})",
        }
        for label, look in looks(groups).items()
    ]


def _page_has_legend(labels: Sequence[str]) -> bool:
    """Whether the labels are too many or too long for a legend in every figure."""
    long = any(len(label) > SHORT for label in labels)
    return len(labels) > IN_FIGURE or (long and len(labels) > 1)


def _place_legend(ax: Any, labels: int) -> None:
    """Above the axes, or beside them when there are many labels: never on a curve."""
    if labels == 1:
        return
    if labels <= IN_FIGURE:
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize="small")
    else:
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")


def _round_curves(groups: Groups, shown: Mapping[str, str]) -> list[dict[str, Any]]:
    """A curve for each column of the rounds that some labels have numbers in."""
    figures = []
    for column, caption in shown.items():
        # All runs of a label or none: a mean must not be of other seeds in every figure.
        having = {
            label: group
            for label, group in groups.items()
            if all(_has_numbers(record, column) for record in group)
        }
        if having:
            caption = f"{caption} Moving mean of 10 rounds."
            figures.append(_curve(having, "round", column, caption, list(groups), smooth=10))
    return figures


def _has_numbers(record: Record, column: str) -> bool:
    rounds = record.rounds
    # A method may write a column that another one lacks, or one without any number.
    numeric = column in rounds and rounds[column].dtype.kind in "iuf"
    return numeric and bool(rounds[column].notna().any())


def _curve(
    groups: Groups, x: str, y: str, caption: str, order: Sequence[str], smooth: int = 1
) -> dict[str, Any]:
    name = plots.axis_label(y, [record for group in groups.values() for record in group])
    # The text for those who cannot see the figure says where each curve begins and ends.
    ends = []
    for label, group in groups.items():
        first, last = np.mean([_ends(record, y) for record in group], axis=0)
        ends.append(f"{label} from {first:.3g} to {last:.3g}")
    alt = f"{name} by {plots.AXIS_LABELS[x]}: {'; '.join(ends)}"
    in_figure = not _page_has_legend(order)

    def draw(ax: Any) -> None:
        draw_curves(groups, x=x, y=y, ax=ax, smooth=smooth, order=order, legend=in_figure)
        ax.set_ylabel(name)

    return _figure(draw, alt, caption)


def _ends(record: Record, y: str) -> np.ndarray:
    """First and last value; of a column of rounds, means over the first and the last ten."""
    if y in ("accuracy", "greedy"):
        return record.accuracy()[y].iloc[[0, -1]].to_numpy()
    rounds = record.rounds[y]
    return np.array([rounds.head(10).mean(), rounds.tail(10).mean()])


def _shares(groups: Groups) -> list[dict[str, Any]]:
    """Problems all right, mixed, all wrong: by round for few labels, their means for many."""
    means = comparisons.means(groups, ["all_positive", "all_negative"])
    # Shares of problems; what is neither all right nor all wrong is mixed.
    right = means["all_positive", "mean"]
    wrong = means["all_negative", "mean"]
    table = pd.DataFrame(dict(zip(OUTCOMES, (right, 1 - right - wrong, wrong))))
    alts = {}
    for label, row in table.iterrows():
        shares = ", ".join(f"{share:.0%} of problems {name}" for name, share in row.items())
        alts[label] = f"{label}: on average {shares}"

    # A figure for each label would make a long page that nobody compares.
    if len(groups) > IN_FIGURE:
        return [
            _figure(
                lambda ax: _draw_bars(table, ax, "share of problems"),
                "; ".join(alts.values()),
                "Problems whose rollouts were all right, mixed, all wrong; means over rounds.",
                rows=len(table),
            )
        ]
    figures = []
    # `draw` takes its label's runs as a default argument, so that it does not hang on the loop
    # variable.
    for label, group in groups.items():

        def draw(ax: Any, group: Sequence[Record] = group) -> None:
            plots.zero_gradient(group, ax=ax)
            ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))

        caption = f"{label}: problems whose rollouts were all right, mixed, all wrong."
        figures.append(_figure(draw, alts[label], caption))
    return figures


def _phases(groups: Groups) -> dict[str, Any]:
    table = comparisons.phases(groups)
    parts = []
    for label, row in table.iterrows():
        seconds = ", ".join(f"{phase} {value:.3g}" for phase, value in row.items())
        parts.append(f"{label} {seconds}")
    return _figure(
        lambda ax: _draw_bars(table, ax, "seconds a round"),
        f"Seconds a round by phase: {'; '.join(parts)}",
        "Seconds a round by phase.",
        rows=len(table),
    )


def _draw_bars(table: pd.DataFrame, ax: Any, label: str) -> None:
    named = table.rename(index=lambda row: _shortened(plain(row)))
    plots_tables.stacked(named, label=label, ax=ax)
    # Long names leave little width, and a legend in one row would be cut.
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize="small")


def _shortened(label: str) -> str:
    """A label cut in its middle, since a path says most at its ends."""
    if len(label) <= SHORT + 8:
        return label
    half = (SHORT + 8) // 2
    return f"{label[: half - 1]}…{label[-half:]}"


def _figure(draw: Callable[[Any], Any], alt: str, caption: str, rows: int = 0) -> dict[str, Any]:
    """What `draw` draws on new axes, as an element of the page; rows: of a bar chart."""
    from markupsafe import Markup, escape

    # A bar chart grows with its rows, so that their names do not meet.
    size = (WIDTH, max(HEIGHT, 1.0 + 0.22 * rows))
    with plots.style() as colours:
        figure, ax = plots.plt.subplots(figsize=size, layout="constrained")
        draw(ax)
        # The page has captions in place of titles.
        ax.set_title("")
        buffer = io.StringIO()
        # Without metadata the same records always give the same page.
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=nothing)
        # Matplotlib keeps every open figure in memory, and a report has many.
        plots.plt.close(figure)
    svg = _inline(buffer.getvalue(), escape(alt), colours.as_hex())
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
