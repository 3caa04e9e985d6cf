"""Figures of tables: differences, ratios, shares and costs, a row or a line for each entry.

Each function draws on the given or new Axes and returns them. `title` is the finding that the
figure shows, in the words of whoever draws it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workbench.analysis.sequential import verdicts_on_gains
from workbench.plots.style import (
    INK,
    NAMED,
    PALETTE,
    SHORT,
    SOFT,
    framed,
    is_narrow,
    looks,
    plain,
    ratio_ticks,
    seeds,
    wrapped,
)


def differences(
    table: pd.DataFrame, *, baseline: str | None = None, label: str = "difference", **frame: Any
) -> Axes:
    """Paired differences to a baseline with their intervals.

    Parameters
    ----------
    table : DataFrame
        Columns difference, low and high. Rows without a difference, such as the baseline itself,
        are left out. With a column pairs, a dot is filled where the row's verdict is not open after
        Holm's correction, see `sequential.verdicts_on_gains`; else where its interval leaves 0 out.
    baseline : str, optional
        Named in the title, where none is given.
    label : str
        The x axis.
    frame
        As for `style.framed`.
    """
    # The baseline has no difference to itself, and arms without a common seed have none either.
    table = table[table["difference"].notna()]
    title = f"Against {plain(baseline)}" if baseline else None
    usual = {"title": title, "xlabel": label, "legend": None, "height": height_of_rows(len(table))}
    with framed(**{**usual, **frame}) as ax:
        filled = verdicts_on_gains(table) != "open" if "pairs" in table else None
        estimates(ax, table, "difference", [PALETTE[0]] * len(table), filled=filled)
        name_rows(ax, table, table.get("pairs"))
        ax.locator_params(axis="x", nbins=3 if is_narrow(ax) else 6)
    return ax


def stacked(
    table: pd.DataFrame,
    *,
    names: Mapping[str, str] | None = None,
    palette: Mapping[Any, str] | None = None,
    label: str | None = None,
    **frame: Any,
) -> Axes:
    """A bar for each row, stacked by column.

    Parameters
    ----------
    table : DataFrame (rows x parts)
        Such as `comparisons.phases`; columns that are all 0 are left out.
    names : dict from column to text, optional
        What the legend calls the parts.
    palette : dict from column to colour, optional
        Outcomes, difficulty classes and phases have colours of their own.
    label : str, optional
        The x axis.
    frame
        As for `style.framed`.
    """
    # A part that never occurs would only lengthen the legend.
    table = table.loc[:, (table != 0).any()]
    known = NAMED if palette is None else palette
    # All or none: other colours beside those of the palette could be mistaken for one another.
    if not all(name in known for name in table):
        known = dict(zip(table, cycle(PALETTE)))
    height = height_of_rows(len(table) + 1)
    with framed(xlabel=label, legend="above", height=height, **frame) as ax:
        start = np.zeros(len(table))
        places = from_above(table)
        for name in table:
            text = (names or {}).get(name, plain(name))
            ax.barh(places, table[name], left=start, color=known[name], height=0.65, label=text)
            # The next part begins where this one ends.
            start = start + table[name].to_numpy()
        name_rows(ax, table)
    return ax


def height_of_rows(rows: int) -> float:
    """The height in inches of a figure with so many named rows."""
    return 1.2 + 0.32 * rows


def name_rows(ax: Axes, table: pd.DataFrame, counts: pd.Series | None = None) -> None:
    """Name the rows of a table at the y axis, with the number of seeds where it is known.

    That is `counts`, or else the column n of the table.
    """
    counts = table.get("n") if counts is None else counts
    names = with_seeds(table.index, counts)
    if is_narrow(ax):
        names = [wrapped(name, SHORT) for name in names]
        lines = max(name.count("\n") + 1 for name in names)
        whole: Any = ax.get_figure(root=True)
        whole.set_figheight(max(whole.get_figheight(), 1 + 0.2 * lines * len(names)))
    ax.set_yticks(from_above(table), names)
    ax.set_ylim(-0.6, len(table) - 0.4)
    ax.grid(visible=False, axis="y")


def from_above(rows: Any) -> np.ndarray:
    """The place of each row. Rows are read from above, while the y axis counts from below."""
    return np.arange(len(rows))[::-1]


def estimates(
    ax: Axes,
    table: pd.DataFrame,
    column: str,
    colours: Sequence[Any],
    bound: float = 0,
    filled: Iterable[bool] | None = None,
) -> None:
    """A dot with its interval for each row, filled where its interval leaves the bound out.

    Or where `filled` says so. A bound of 1 stands for ratios.
    """
    ax.axvline(bound, color=INK, lw=1)
    rows = table[[column, "low", "high"]].to_numpy(float)
    if filled is None:
        filled = (table["low"] > bound) | (table["high"] < bound)
    for place, row, colour, full in zip(from_above(table), rows, colours, filled):
        interval(ax, place, row, colour, full, is_ratio=bound == 1)


def interval(
    ax: Axes, place: float, ends: Sequence[float], colour: Any, filled: bool, is_ratio: bool
) -> None:
    """A dot at a height, with its interval; `ends` are the value, the lower and the upper end.

    An end of the interval of a ratio that is open is an arrow.
    """
    value, low, high = ends
    open_low = is_ratio and low <= 0
    open_high = bool(np.isposinf(high))
    line = [value if open_low else low, value if open_high else high]
    ax.plot(line, [place, place], color=colour, lw=1.5, solid_capstyle="butt")
    ax.plot(value, place, "o", ms=6, color=colour, mfc=colour if filled else ax.get_facecolor())
    for is_open, factor in ((open_low, 1 / 1.6), (open_high, 1.6)):
        if is_open:
            arrow = {"arrowstyle": "->", "color": colour, "lw": 1.5}
            ax.annotate("", (value * factor, place), (value, place), arrowprops=arrow)


def with_seeds(names: Sequence[Any], counts: Any) -> list[str]:
    """Names, with the number of seeds behind each where it is known."""
    counts = [np.nan] * len(names) if counts is None else counts
    texts = ["" if np.isnan(n) else f" ({seeds([n])})" for n in counts]
    return [plain(name) + text for name, text in zip(names, texts)]


# Who wins at which price of sampling


def prices(table: pd.DataFrame, *, baseline: str, **frame: Any) -> Axes:
    """The bill to a target over the baseline's, by the price of sampling.

    Below 1 a method is cheaper than the baseline.

    Parameters
    ----------
    table : DataFrame
        Of `cost.ratios_by_price`.
    baseline : str
        Its name.
    frame
        As for `style.framed`; lines are labelled at their ends by default.
    """
    labels = {
        "xlabel": "price of sampling (cost of a sampled token / of a trained one)",
        "ylabel": f"cost to the target / {plain(baseline)}'s",
    }
    with framed(**{**labels, "legend": "direct", "height": 4.2, **frame}) as ax:
        # The baseline comes first, so that its look does not depend on the other labels.
        styles = looks([baseline, *table["label"].unique()])
        # The baseline against itself. A label with an underscore is left out of the legend.
        ax.axhline(1, color=styles[baseline].colour, lw=1.5, label=f"_{baseline}")
        for label, part in table.groupby("label", sort=False):
            look = styles[str(label)]
            text = f"{plain(label)} ({seeds(part['n'].iloc[:1])})"
            ax.plot(part["price"], part["ratio"], color=look.colour, ls=look.dash, label=text)
            # Where a run was censored an end of the interval is open, and there is no band to
            # fill.
            known = part[np.isfinite(part["high"]) & (part["low"] > 0)]
            ax.fill_between(
                known["price"], known["low"], known["high"], color=look.colour, alpha=0.15, lw=0
            )
        # At least a tenth around 1, so that arms that cost the same are not magnified into a
        # difference. Intervals are shown as far as they do not dwarf the ratios.
        ratios = table["ratio"]
        heights = (min(ratios.min(), 0.9) / 1.3, max(ratios.max(), 1.1) * 1.3)
        prices = (table["price"].min(), table["price"].max())
        ax.set(xscale="log", yscale="log", xlim=prices, ylim=heights)
        ratio_ticks(ax.xaxis, *prices, most=9)
        ratio_ticks(ax.yaxis, *heights, most=9)
        below = f"cheaper than {plain(baseline)}"
        ax.text(0.01, 0.015, below, transform=ax.transAxes, size="small", color=SOFT)
    return ax


def mark_price(ax: Axes, name: str, price: float) -> None:
    """A vertical line at a price of sampling, with its name along it."""
    ax.axvline(price, color=SOFT, lw=1, ls=":")
    ax.text(
        price,
        0.99,
        plain(name),
        transform=ax.get_xaxis_transform(),
        rotation=90,
        ha="right",
        va="top",
        size="small",
        color=SOFT,
    )
