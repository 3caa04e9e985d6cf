"""Figures of tables: differences, ratios, shares and matrices, a row or a cell for each entry.

Each function draws on the given or new Axes and returns them. `title` is the finding that the
figure shows, in the words of whoever draws it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench.plots.style import (
    INK,
    NAMED,
    SOFT,
    WIDTH,
    finish,
    heading,
    keep_colours,
    looks,
    named_colours,
    new_axes,
    panels,
    row_axes,
    seeds,
    style,
)
from workbench.plots.text import plain

__all__ = ["differences", "gains", "heatmap", "leaderboard", "name_rows", "stacked", "transitions"]

# Ticks of an axis of ratios, from narrow ranges to wide ones. The first of these that has few
# enough in the range is taken, since panels stand side by side.
RATIO_TICKS = (
    (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2, 2.5, 3),
    (0.4, 0.5, 0.6, 0.8, 1, 1.2, 1.5, 2, 2.5, 3, 4),
    (0.25, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8),
    (0.125, 0.25, 0.5, 1, 2, 4, 8, 16),
    (0.0625, 0.25, 1, 4, 16),
)
MOST_RATIO_TICKS = 4
USUAL_NAME = 14  # letters of a row or column of a heat map


def differences(
    table: pd.DataFrame,
    *,
    baseline: str | None = None,
    title: str | None = None,
    label: str = "difference",
    ax: Axes | None = None,
) -> Axes:
    """Paired differences to a baseline with their intervals.

    Parameters
    ----------
    table : DataFrame
        Columns difference, low and high. Rows without a difference, such as the baseline itself,
        are left out. A dot is hollow where its interval holds 0.
    baseline : str, optional
        Named at the line of 0.
    title, label : str, optional
        The finding, and the x axis.
    ax : Axes, optional
    """
    # The baseline has no difference to itself, and arms without a common seed have none either.
    table = table[table["difference"].notna()]
    with style() as colours:
        ax = ax or row_axes(len(table))
        places = np.arange(len(table))[::-1]
        ax.axvline(0, color=INK, lw=1)
        for place, (_, row) in zip(places, table.iterrows()):
            _interval(ax, place, row["difference"], row["low"], row["high"], colours[0])
        name_rows(ax, table, places)
        ax.locator_params(axis="x", nbins=6)
        if title is None and baseline:
            title = f"Against {plain(baseline)}"
        finish(ax, title=title, xlabel=label, legend=None)
    return ax


def gains(
    tables: Mapping[str, pd.DataFrame],
    *,
    title: str | None = None,
    label: str = "difference (right is better; hollow: the interval holds 0)",
    axes: Sequence[Axes] | None = None,
) -> list[Axes]:
    """Differences to a baseline with their intervals, a panel for each budget.

    Parameters
    ----------
    tables : dict from panel title to a DataFrame with value, low and high
        Of the same rows in the same order; n is named where it is there. A dot is filled where its
        interval leaves 0 out. One seed has no interval and a hollow dot.
    title, label : str, optional
        The finding, and the x axis.
    axes : list of Axes, optional

    Returns
    -------
    list of Axes
    """
    first = next(iter(tables.values()))
    places = np.arange(len(first))[::-1]
    with style():
        if axes is None:
            figure = plt.figure(figsize=(WIDTH, 1.3 + 0.3 * len(first)), layout="constrained")
            # One x axis for all budgets, so that the same gain has the same length in each panel.
            axes = list(figure.subplots(1, len(tables), sharex=True, squeeze=False)[0])
        styles = looks(map(str, first.index))
        for ax, (name, table) in zip(axes, tables.items()):
            ax.axvline(0, color=INK, lw=1)
            for place, (row_name, row) in zip(places, table.iterrows()):
                colour = styles[str(row_name)].colour
                _interval(ax, place, row["value"], row["low"], row["high"], colour)
            ax.set_yticks(places, [""] * len(first))
            ax.set(title=plain(name), ylim=(-0.7, len(first) - 0.3))
            ax.grid(visible=False, axis="y")
            ax.locator_params(axis="x", nbins=4)
        axes[0].set_yticks(places, [plain(name) for name in first.index])
        numbers = [n for table in tables.values() for n in table.get("n", ())]
        named = f" ({seeds(numbers)} seeds)" if numbers else ""
        axes[0].figure.supxlabel(label + named, size="medium")
        heading(axes[0].figure, title)
    return list(axes)


def leaderboard(
    tables: Mapping[str, pd.DataFrame] | pd.DataFrame,
    *,
    baseline: str,
    title: str | None = None,
    label: str = "cost to the target, baseline = 1 (left is better; hollow: the interval holds 1)",
    notes: Mapping[str, str] | None = None,
    by_outcome: bool = False,
    axes: Sequence[Axes] | None = None,
) -> list[Axes]:
    """Methods by what they need to a target, as ratios to a baseline with intervals.

    Parameters
    ----------
    tables : DataFrame, or dict from title to DataFrame
        As `targets.to_target` gives them with a baseline; a panel each, all in the order of the
        first one's ratios. A ratio whose interval is open on one side, because a run did not reach
        the target, ends in an arrow.
    baseline : str
        The row that all are compared with.
    title, label : str, optional
        The finding, and the x axis. The x axis also says how many pairs of runs each ratio is of;
        where the methods differ in that, each name does.
    notes : dict from method to str, optional
        A few words that stand behind the row of a method.
    by_outcome : bool
        Colour the rows by what was found: less, more, or no difference. Of many methods the colours
        that belong to each of them cannot be told apart.
    axes : list of Axes, optional

    Returns
    -------
    list of Axes
    """
    if isinstance(tables, pd.DataFrame):
        tables = {"": tables}
    first = next(iter(tables.values()))
    # One order for all panels, so that a row is the same method in each of them.
    order = first.drop(index=baseline)["ratio"].dropna().sort_values().index
    places = np.arange(len(order))[::-1]
    with style():
        if axes is None:
            # A long list is set more tightly, so that it can be seen as a whole.
            row_height = 0.3 if len(order) <= 25 else 0.21
            axes = panels(len(tables), height=1.3 + row_height * len(order))
        styles = looks([baseline, *order])
        for ax, (name, table) in zip(axes, tables.items()):
            ax.axvline(1, color=styles[baseline].colour, lw=1.5)
            for place, method in zip(places, order):
                row = table.loc[method]
                colour = _outcome_colour(row) if by_outcome else styles[method].colour
                _ratio(ax, place, row["ratio"], row["low"], row["high"], colour)
            ax.set_title(plain(name))
        # Ticks and limits are settled when all panels are drawn, since they share them.
        # Two panels are wide enough for more ticks.
        most = MOST_RATIO_TICKS + 2 * (len(axes) <= 2)
        _ratio_axes(list(axes), {name: table.loc[order] for name, table in tables.items()}, most)
        for ax in axes:
            ax.set_yticks(places, [""] * len(order))
            ax.set_ylim(-0.7, len(order) - 0.3)
            ax.grid(visible=False, axis="y")
        # Names stand once, at the left; the other panels keep their ticks without text.
        pairs = first.loc[order].get("pairs")
        if pairs is not None and pairs.nunique(dropna=False) == 1 and len(order) > 1:
            label = f"{label}; {seeds(pairs)} seeds"
            pairs = None
        axes[0].set_yticks(places, _with_seeds(order, pairs))
        if notes:
            for place, method in zip(places, order):
                _behind(axes[-1], place, notes.get(method, ""))
        figure = axes[0].figure
        figure.supxlabel(label.replace("baseline", plain(baseline)), size="medium")
        heading(figure, title)
    return list(axes)


def stacked(
    table: pd.DataFrame,
    *,
    names: Mapping[str, str] | None = None,
    palette: str | None = None,
    title: str | None = None,
    label: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A bar for each row, stacked by column.

    Parameters
    ----------
    table : DataFrame (rows x parts)
        Such as `comparisons.phases`; columns that are all 0 are left out.
    names : dict from column to text, optional
        What the legend calls the parts.
    palette : str, optional
        A seaborn palette for columns that have an order. Outcomes, difficulty classes, phases and
        kinds of groups have colours of their own.
    title, label : str, optional
        The finding, and the x axis.
    ax : Axes, optional
    """
    # A part that never occurs would only lengthen the legend.
    table = table.loc[:, (table != 0).any()]
    with style():
        ax = ax or row_axes(len(table) + 1)
        places = np.arange(len(table))[::-1]
        start = np.zeros(len(table))
        for name, colour in named_colours(table.columns, palette).items():
            text = (names or {}).get(name, plain(name))
            ax.barh(places, table[name], left=start, color=colour, height=0.65, label=text)
            # The next part begins where this one ends.
            start = start + table[name].to_numpy()
        name_rows(ax, table, places)
        finish(ax, title=title, xlabel=label, legend="above")
    return ax


def heatmap(
    table: pd.DataFrame,
    *,
    diverging: bool = False,
    largest: float | None = None,
    digits: int = 2,
    title: str | None = None,
    xlabel: str | None = None,
    ylabel: str | None = None,
    label: str | None = None,
    bar: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """A table as coloured, numbered cells, empty where it is NaN.

    Parameters
    ----------
    table : DataFrame
    diverging : bool
        A scale around 0, from -1 to 1, for correlations. Otherwise from 0 to `largest`.
    largest : float, optional
        None for the table's own largest value.
    digits : int
        Decimals of the numbers.
    title, xlabel, ylabel : str, optional
    label : str, optional
        Of the colour bar.
    bar : bool
        Whether there is one.
    ax : Axes, optional
    """
    rows, columns = table.shape
    table = table.astype(float).rename(index=plain, columns=plain)
    # Names longer than the usual ones take room of their own; those of columns are tilted.
    tall = max(0, max(len(name) for name in table.columns) - USUAL_NAME)
    wide = max(0, max(len(name) for name in table.index) - USUAL_NAME)
    with style():
        # The figure grows with its rows and columns, so that the numbers in the cells stay
        # readable.
        if ax is None:
            width = min(WIDTH, 2.6 + 0.62 * columns + 0.08 * wide)
            ax = new_axes(1.4 + 0.34 * rows + 0.05 * tall, width)
        ax.grid(visible=False)
        scale: dict[str, Any] = {"cmap": "Blues", "vmin": 0, "vmax": largest}
        if diverging:
            scale = {"cmap": "vlag", "vmin": -1, "vmax": 1}
        sns.heatmap(
            table,
            annot=True,
            fmt=f".{digits}f",
            linewidths=0.5,
            linecolor="white",
            ax=ax,
            annot_kws={"size": 7.5},
            cbar=bar,
            cbar_kws={"label": label or ""} if bar else None,
            **scale,
        )
        keep_colours(ax.texts)
        ax.tick_params(length=0)
        plt.setp(ax.get_xticklabels(), rotation=35, ha="right", rotation_mode="anchor")
        plt.setp(ax.get_yticklabels(), rotation=0)
        finish(ax, title=title, xlabel=xlabel or "", ylabel=ylabel or "", legend=None)
    return ax


def transitions(
    tables: Mapping[str, pd.DataFrame],
    *,
    title: str | None = None,
    figure: Figure | None = None,
) -> np.ndarray:
    """Transition matrices side by side, on one colour scale.

    Parameters
    ----------
    tables : dict from panel title to a DataFrame (5 x 5)
        As `difficulty.transitions` gives them: as allocated, at equal numbers, of several methods.
        Two in a row.
    title : str, optional
    figure : Figure, optional

    Returns
    -------
    array of Axes, one a table

    References
    ----------
    Knapsack RL (arXiv 2509.25849), figure 6.
    """
    rows = -(-len(tables) // 2)
    columns = min(len(tables), 2)
    with style():
        if figure is None:
            figure = plt.figure(figsize=(WIDTH, 0.8 + 2.7 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        for number, (name, table) in enumerate(tables.items()):
            ax = axes.flat[number]
            heatmap(100 * table, largest=100, digits=0, bar=False, ax=ax)
            ax.set_title(plain(name), size="small")
            # The names of the classes stand at the outer edges only.
            if number % columns:
                ax.set_yticklabels([])
            if number + columns < len(tables):
                ax.set_xticklabels([])
        # An odd number of tables leaves the last place of the grid empty.
        for ax in list(axes.flat)[len(tables) :]:
            ax.set_axis_off()
        used = axes.ravel()[: len(tables)]
        # One bar for all panels, which is possible since all of them end at 100 %.
        figure.colorbar(
            used[0].collections[0], ax=list(used), label="% of the row's problems", shrink=0.8
        )
        figure.supylabel("at the first visit", size="medium")
        figure.supxlabel("at the last visit", size="medium")
        heading(figure, title)
    return used


def _interval(ax: Axes, place: float, value: float, low: float, high: float, colour: Any) -> None:
    """A dot with its interval, hollow where the interval holds 0 or is missing."""
    clear = low > 0 or high < 0
    ax.plot([low, high], [place, place], color=colour, lw=1.5, solid_capstyle="butt")
    face = colour if clear else ax.get_facecolor()
    ax.plot(value, place, "o", ms=6, color=colour, mfc=face)


def _ratio(ax: Axes, place: float, ratio: float, low: float, high: float, colour: Any) -> None:
    """A ratio with its interval; an end that is open becomes an arrow once the axes are known."""
    clear = low > 1 or high < 1
    # An open end has no place on a logarithmic axis; the line stops at the ratio and an arrow
    # goes on.
    ends = [low if low > 0 else ratio, high if np.isfinite(high) else ratio]
    ax.plot(ends, [place, place], color=colour, lw=1.5, solid_capstyle="butt")
    ax.plot(ratio, place, "o", ms=6, color=colour, mfc=colour if clear else ax.get_facecolor())
    for open_, to in ((low <= 0, 1 / 1.6), (not np.isfinite(high) and not np.isnan(high), 1.6)):
        if open_:
            ax.annotate(
                "",
                (ratio * to, place),
                (ratio, place),
                arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.5},
            )


def _outcome_colour(row: pd.Series) -> str:
    """The colour of what the interval of a ratio says."""
    if row["high"] < 1:
        return NAMED["needs less"]
    return NAMED["needs more"] if row["low"] > 1 else NAMED["no difference found"]


def _ratio_axes(
    axes: list[Axes], tables: Mapping[str, pd.DataFrame], most: int = MOST_RATIO_TICKS
) -> None:
    """A logarithmic x axis, the same for all panels, with plain numbers at `most` ticks at most."""
    values = np.concatenate(
        [table[["ratio", "low", "high"]].to_numpy(float).ravel() for table in tables.values()]
    )
    # Open ends do not decide the limits.
    values = values[np.isfinite(values) & (values > 0)]
    low = min(values.min(), 1) / 1.15
    high = max(values.max(), 1) * 1.15
    # Arrows need room beyond the largest ratio.
    if any((table["high"] == np.inf).any() for table in tables.values()):
        high = max(high, 1.8 * max(table["ratio"].max() for table in tables.values()))
    for candidates in RATIO_TICKS:
        ticks = [tick for tick in candidates if low <= tick <= high]
        if len(ticks) <= most:
            break
    for ax in axes:
        ax.set_xscale("log")
        ax.set_xlim(low, high)
        ax.xaxis.set_major_locator(plt.FixedLocator(ticks))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_locator(plt.NullLocator())


def _behind(ax: Axes, place: float, text: str) -> None:
    """A small text behind a row, right of the axes."""
    ax.annotate(
        plain(text),
        (1, place),
        (6, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        color=SOFT,
        size=8,
    )


def _with_seeds(names: Sequence[Any], numbers: Any) -> list[str]:
    if numbers is None:
        return [plain(name) for name in names]
    labels = []
    for name, n in zip(names, numbers):
        labels.append(f"{plain(name)} (n = {int(n)})" if np.isfinite(n) else plain(name))
    return labels


def name_rows(ax: Axes, table: pd.DataFrame, places: np.ndarray) -> None:
    """Write the index of a table beside its rows, with the number of seeds where it is there."""
    ax.set_yticks(places, _with_seeds(table.index, table.get("n")))
    ax.set_ylim(-0.6, len(table) - 0.4)
    ax.grid(visible=False, axis="y")
