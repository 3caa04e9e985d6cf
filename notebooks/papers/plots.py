"""Figures of the paper notebooks, from their tables.

Each function draws on the given or new Axes and returns them. `title` is the finding that the
figure shows, in the words of whoever draws it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from papers.verdicts import kind as verdict_kind
from papers.verdicts import table as verdict_table
from workbench.plots.style import (
    GRID,
    INK,
    MARKERS,
    NAMED,
    PALETTE,
    SOFT,
    WIDTH,
    finish,
    heading,
    looks,
    new_axes,
    row_axes,
    seeds,
    style,
)
from workbench.plots.tables import gains, heatmap, name_rows
from workbench.plots.text import plain

__all__ = [
    "bands",
    "correlation_maps",
    "counts",
    "dots",
    "relation",
    "sampled_and_trained",
    "spent_and_gained",
    "sweep",
    "trajectories",
    "trajectory_grid",
    "verdicts",
    "waterfall",
]

# Diagonals of `sampled_and_trained`: trained over sampled, with their names.
SHARES = {1.0: "all", 0.5: "1/2", 0.25: "1/4", 0.125: "1/8", 0.0625: "1/16"}
NEAR = 0.03  # decades: dots nearer to one another than this share a name


# A value for each row


def dots(
    table: pd.DataFrame,
    *,
    reference: str | None = None,
    title: str | None = None,
    label: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A value with its interval for every row.

    Parameters
    ----------
    table : DataFrame
        Columns mean and half, as `comparisons.at_budget` gives them; n is named where it is there.
    reference : str, optional
        The row whose mean is drawn as a line through all.
    title, label : str, optional
        The finding, and the x axis.
    ax : Axes, optional
    """
    with style() as colours:
        ax = ax or row_axes(len(table))
        # Rows of a table are read from above, while the y axis counts from below.
        places = np.arange(len(table))[::-1]
        ax.errorbar(
            table["mean"],
            places,
            xerr=table["half"],
            fmt="o",
            color=colours[0],
            ecolor=SOFT,
            elinewidth=1,
            capsize=3,
        )
        if reference is not None:
            ax.axvline(table.loc[reference, "mean"], color=SOFT, ls="--", lw=1, zorder=0)
            ax.annotate(
                plain(reference),
                (table.loc[reference, "mean"], 1),
                (3, -2),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                va="top",
                size="small",
                color=SOFT,
            )
        name_rows(ax, table, places)
        finish(ax, title=title, xlabel=label, legend=None)
    return ax


def waterfall(
    start: float,
    parts: pd.DataFrame | pd.Series,
    *,
    names: tuple[str, str] = ("before", "after"),
    limit: float | None = None,
    title: str | None = None,
    label: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """From a cost to a smaller one, step by step, with the sign and interval of each step.

    Parameters
    ----------
    start : float
        The cost before.
    parts : Series, or DataFrame with value, low and high
        What each step saves; negative where it costs more. The index names the steps in words.
    names : (before, after)
        Of the first and the last bar.
    limit : float, optional
        Where the x axis ends, so that several panels have the same.
    title, label : str, optional
        The finding, and the x axis.
    ax : Axes, optional
    """
    table = parts.to_frame("value") if isinstance(parts, pd.Series) else parts
    saving = PALETTE[2]
    costing = PALETTE[3]
    with style():
        ax = ax or row_axes(len(table) + 2)
        places = np.arange(len(table) + 2)[::-1]
        ax.barh(places[0], start, color=SOFT, height=0.65)
        _beside(ax, start, places[0], f"{start:.3g}")
        # Where the cost stands before each step; a step that saves moves it to the left.
        left = float(start)
        for place, (_, row) in zip(places[1:], table.iterrows()):
            saved = float(row["value"])
            # A bar is drawn from its smaller end, whichever way the step goes.
            begin = min(left, left - saved)
            end = max(left, left - saved)
            colour = saving if saved >= 0 else costing
            ax.barh(place, end - begin, left=begin, color=colour, height=0.65)
            text = f"{-saved:+.1f}"
            if "low" in table:
                # The interval of the step, drawn where the step ends.
                ax.plot([left - row["high"], left - row["low"]], [place] * 2, color=INK, lw=1)
                text += f" [{-row['high']:.1f}, {-row['low']:.1f}]"
                end = max(end, left - row["low"])
            _beside(ax, end, place, text)
            left -= saved
        ax.barh(places[-1], left, color=PALETTE[0], height=0.65)
        _beside(ax, left, places[-1], f"{left:.3g}")
        # Bars of no length, for the legend alone.
        for colour, text in ((saving, "saves"), (costing, "costs more")):
            ax.barh(0, 0, color=colour, label=text)
        ax.set_yticks(places, [names[0], *map(plain, table.index), names[1]])
        ax.set_xlim(0, limit or 1.35 * start)
        ax.grid(visible=False, axis="y")
        finish(ax, title=title, xlabel=label, legend="above")
    return ax


# Curves


def bands(
    series: Mapping[str, pd.DataFrame],
    *,
    title: str | None = None,
    xlabel: str | None = None,
    ylabel: str | None = None,
    legend: str | None = "outside",
    ax: Axes | None = None,
) -> Axes:
    """Mean curves with their intervals from tables.

    Parameters
    ----------
    series : dict from name to a DataFrame indexed by x, with mean, half and n
        As `pods.curves` gives them.
    title, xlabel, ylabel : str, optional
    legend : {"outside", "above", "direct", None}
    ax : Axes, optional
    """
    with style():
        ax = ax or new_axes()
        styles = looks(series)
        for name, table in series.items():
            look = styles[name]
            x = table.index.to_numpy(dtype=float)
            text = f"{plain(name)} ({seeds(table['n'].unique())})"
            ax.plot(x, table["mean"], color=look.colour, ls=look.dash, label=text)
            low = table["mean"] - table["half"]
            ax.fill_between(
                x, low, table["mean"] + table["half"], color=look.colour, alpha=0.18, lw=0
            )
        finish(ax, title=title, xlabel=xlabel, ylabel=ylabel, legend=legend)
    return ax


def sweep(
    series: Mapping[str, pd.DataFrame],
    *,
    log: bool = True,
    title: str | None = None,
    xlabel: str | None = None,
    ylabel: str | None = None,
    legend: str | None = "outside",
    ax: Axes | None = None,
) -> Axes:
    """Values with intervals along a numeric parameter.

    Parameters
    ----------
    series : dict from name to a DataFrame indexed by the parameter, with mean and half
    log : bool
        A logarithmic x axis to base 2, with ticks at the values tried.
    title, xlabel, ylabel : str, optional
    legend : {"outside", "above", "direct", None}
        None where there is one series.
    ax : Axes, optional
    """
    with style():
        ax = ax or new_axes()
        styles = looks(series)
        for name, table in series.items():
            ax.errorbar(
                table.index,
                table["mean"],
                table["half"],
                marker=styles[name].marker,
                color=styles[name].colour,
                ls=styles[name].dash,
                capsize=3,
                lw=1.5,
                label=plain(name),
            )
        values = sorted({value for table in series.values() for value in table.index})
        if log:
            ax.set_xscale("log", base=2)
        ax.set_xticks(values, [f"{value:g}" for value in values])
        ax.minorticks_off()
        several = len(series) > 1
        finish(ax, title=title, xlabel=xlabel, ylabel=ylabel, legend=legend if several else None)
    return ax


def trajectories(
    series: Mapping[str, pd.Series],
    *,
    title: str | None = None,
    ylabel: str = "success rate",
    legend: str | None = "outside",
    ax: Axes | None = None,
) -> Axes:
    """Single problems visit by visit.

    Parameters
    ----------
    series : dict from name to a Series indexed by visit
    title, ylabel : str, optional
    legend : {"outside", "above", None}
    ax : Axes, optional
    """
    with style():
        ax = ax or new_axes()
        styles = looks(series)
        for name, values in series.items():
            look = styles[name]
            ax.plot(
                values.index,
                values,
                marker=look.marker,
                ms=4,
                color=look.colour,
                ls=look.dash,
                label=plain(name),
            )
        ax.set_ylim(-0.05, 1.05)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        finish(ax, title=title, xlabel="visit", ylabel=ylabel, legend=legend)
    return ax


def trajectory_grid(
    visits: Mapping[str, pd.DataFrame],
    problems: Sequence[str],
    *,
    title: str | None = None,
    figure: Figure | None = None,
) -> np.ndarray:
    """Single problems visit by visit, a column each: success rate above, rollouts below.

    Parameters
    ----------
    visits : dict from name to a table of `difficulty.visits`
    problems : list of str
        Their ids.
    title : str, optional
    figure : Figure, optional

    Returns
    -------
    (2, problems) array of Axes

    References
    ----------
    Knapsack RL (arXiv 2509.25849), figure 10.
    """
    with style():
        figure = figure or plt.figure(figsize=(WIDTH, 4.2), layout="constrained")
        axes = figure.subplots(2, len(problems), sharex=True, sharey="row", squeeze=False)
        # The success rate above, the rollouts below, and the same problem in both.
        for problem, column in zip(problems, axes.T):
            for name, ax in zip(("rate", "rollouts"), column):
                series = {label: table.loc[problem, name] for label, table in visits.items()}
                trajectories(series, legend=None, ax=ax)
            # The name of the family stands before a slash, and is the same for all.
            column[0].set(title=plain(str(problem).split("/", 1)[-1]), xlabel="")
        axes[0, 0].set_ylabel("success rate")
        # The rows share their y axis, so the limit comes from all problems and methods.
        largest = max(table.loc[list(problems), "rollouts"].max() for table in visits.values())
        axes[1, 0].set(ylabel="rollouts", ylim=(0, 1.08 * largest))
        for ax in axes.flat:
            ax.label_outer()
        heading(axes[0, 0], title, legend=len(visits))
    return axes


# Distributions and relations


def counts(
    series: Mapping[str, np.ndarray],
    *,
    log: bool = True,
    title: str | None = None,
    xlabel: str | None = None,
    ylabel: str = "visits of a problem",
    ax: Axes | None = None,
) -> Axes:
    """Histogram of whole numbers, such as rollouts a visit; the largest is named.

    Parameters
    ----------
    series : dict from name to an array (N,) of whole numbers
    log : bool
        A logarithmic count axis.
    title, xlabel, ylabel : str, optional
    ax : Axes, optional
    """
    with style():
        ax = ax or new_axes()
        largest = max(int(np.max(values)) for values in series.values())
        # Whole numbers, so that every bar stands for equally many of them.
        width = -(-(largest + 1) // 60)
        # Between whole numbers, so that none of them lies on the border of two bars.
        edges = [start - 0.5 for start in range(0, largest + 1 + width, width)]
        styles = looks(series)
        for name, values in series.items():
            text = f"{plain(name)} (largest {int(np.max(values))})"
            ax.hist(values, edges, color=styles[name].colour, alpha=0.6, label=text)
        ax.set_yscale("log" if log else "linear")
        finish(ax, title=title, xlabel=xlabel, ylabel=ylabel, legend="above")
    return ax


def relation(
    frame: pd.DataFrame,
    x: str,
    y: str,
    by: str,
    *,
    title: str | None = None,
    xlabel: str | None = None,
    ylabel: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Points of two columns of a frame, coloured by a third; Pearson's r stands in the corner.

    Parameters
    ----------
    frame : DataFrame
    x, y, by : names of columns
    title, xlabel, ylabel : str, optional
    ax : Axes, optional
    """
    with style():
        ax = ax or new_axes()
        names = [str(name) for name in frame[by].unique()]
        styles = looks(names)
        for name, part in frame.groupby(by, sort=False):
            look = styles[str(name)]
            ax.plot(
                part[x],
                part[y],
                look.marker,
                ms=5,
                color=look.colour,
                mec="white",
                ls="none",
                label=plain(name),
            )
        text = f"r = {frame[x].corr(frame[y]):.2f} over {len(frame)} points"
        ax.annotate(text, (0.02, 0.03), xycoords="axes fraction", size="small", color=SOFT)
        finish(ax, title=title, xlabel=xlabel or plain(x), ylabel=ylabel or plain(y))
    return ax


def correlation_maps(
    mean: pd.DataFrame,
    deviation: pd.DataFrame,
    *,
    spread: pd.DataFrame | Mapping[str, pd.DataFrame] | None = None,
    title: str | None = None,
    ylabel: str | None = None,
    counts: Sequence[int] = (),
    figure: Figure | None = None,
) -> np.ndarray:
    """Correlations of scores with features, and how far seeds lie apart, one above the other.

    Parameters
    ----------
    mean, deviation : DataFrame (settings or windows x features)
        As `cbs.correlation_spread` or `cbs.correlations` gives them.
    spread : DataFrame (features), or dict from name to such, optional
        Of `cbs.correlation_spread`: the ratio of the spread between settings to what seeds alone
        explain stands below, a row for each; about 1 is nothing but the seed.
    title, ylabel : str, optional
        The finding, and what the rows are.
    counts : list of int
        Seeds, for the titles of the panels.
    figure : Figure, optional

    Returns
    -------
    array of Axes

    References
    ----------
    CBS (arXiv 2602.08499), figure 9.
    """
    n = f", {seeds(counts)} seeds" if len(counts) else ""
    # Panels are as high as their numbers of rows, so that all cells have the same size.
    heights = [len(mean), len(deviation)]
    if spread is not None:
        spreads = spread if isinstance(spread, Mapping) else {"ratio": spread}
        heights.append(len(spreads))
    with style():
        if figure is None:
            height = 2.2 + 0.3 * sum(heights) + 0.35 * len(heights)
            figure = plt.figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        heatmap(
            mean,
            diverging=True,
            title=f"correlation of score and feature, mean{n}",
            label="Pearson's r",
            ylabel=ylabel,
            ax=axes[0],
        )
        heatmap(
            deviation,
            largest=1.0,
            title="deviation between seeds",
            label="deviation of r",
            ylabel=ylabel,
            ax=axes[1],
        )
        if spread is not None:
            # As rows under the other two, feature below feature.
            ratios = pd.DataFrame({name: table["ratio"] for name, table in spreads.items()}).T
            heatmap(
                ratios[mean.columns],
                largest=4.0,
                digits=1,
                title="between settings over what seeds explain (1: nothing else)",
                bar=False,
                ax=axes[2],
            )
        for ax in axes[:-1]:
            ax.tick_params(labelbottom=False)
        heading(figure, title)
    return np.asarray(axes)


# What is spent and gained


def sampled_and_trained(
    table: pd.DataFrame, *, title: str | None = None, ax: Axes | None = None
) -> Axes:
    """Rollouts that carry a gradient by rollouts sampled, log-log, every method named.

    Parameters
    ----------
    table : DataFrame, a row a method
        sampled and trained (per problem and round) and kind, by which dots have their marker. The
        diagonals are shares of the sampled ones. Names of dots that lie on one another are joined.
    title : str, optional
    ax : Axes, optional
    """
    with style():
        ax = ax or new_axes(4.2)
        sampled = table["sampled"].to_numpy(float)
        trained = table["trained"].to_numpy(float)
        # Factors and not distances, since both axes are logarithmic; names need most room on the
        # right.
        left = sampled.min() / 2.6
        right = sampled.max() * 2.8
        low = trained.min() / 1.6
        high = trained.max() * 2
        _diagonals(ax, left, right, high)
        kinds = list(dict.fromkeys(table["kind"]))
        styles = looks(table.index)
        for number, kind in enumerate(kinds):
            part = table[table["kind"] == kind]
            marker = MARKERS[number]
            # One legend entry a kind of marker; the dots are named one by one.
            ax.plot([], [], marker, color=SOFT, ms=7, ls="none", label=plain(kind))
            for name, row in part.iterrows():
                colour = styles[str(name)].colour
                ax.plot(row["sampled"], row["trained"], marker, ms=8, color=colour, mec="white")
        for x, y, name, on_left in _joined_names(table, right):
            ax.annotate(
                name,
                (x, y),
                (-8 if on_left else 8, 0),
                textcoords="offset points",
                va="center",
                size=8.5,
                ha="right" if on_left else "left",
                linespacing=1.05,
            )
        ax.set(xscale="log", yscale="log", xlim=(left, right), ylim=(low, high))
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(plt.FixedLocator([0.5, 1, 2, 4, 8, 16, 32, 64]))
            axis.set_major_formatter("{x:g}")
            # Minor ticks of a log axis would write their own numbers between these.
            axis.set_minor_locator(plt.NullLocator())
        finish(
            ax,
            title=title,
            xlabel="rollouts sampled a problem",
            ylabel="trained on with a gradient\n(grey: share of the sampled)",
            legend="above",
        )
    return ax


def _diagonals(ax: Axes, left: float, right: float, high: float) -> None:
    """Lines of equal shares, each with its name, on axes that end at these numbers."""
    for share, name in SHARES.items():
        ax.plot([left, right], [share * left, share * right], color=GRID, lw=1, zorder=0)
        # The name stands where the line leaves the axes, at the top or on the right.
        x = min(right, high / share) / 1.12
        ax.text(
            x,
            share * x,
            name,
            color=SOFT,
            size=8,
            ha="center",
            va="center",
            backgroundcolor=ax.get_facecolor(),
        )


def spent_and_gained(
    table: pd.DataFrame,
    tables: Mapping[str, pd.DataFrame],
    *,
    titles: tuple[str, str] = ("", ""),
    label: str = "difference (right is better; hollow: the interval holds 0)",
) -> list[Axes]:
    """`sampled_and_trained` above the panels of `gains`.

    Parameters
    ----------
    table, tables
        As they take them.
    titles : (upper, lower)
        The two findings.
    label : str
        Of the lower x axis.

    Returns
    -------
    list of Axes, the upper one first
    """
    rows = len(next(iter(tables.values())))
    with style():
        heights = [4.2, 1.3 + 0.3 * rows]
        figure = plt.figure(figsize=(WIDTH, sum(heights)), layout="constrained")
        parts: Any = figure.subfigures(2, 1, height_ratios=heights)
        above, below = parts
        upper = above.subplots()
        lower = list(below.subplots(1, len(tables), sharex=True, squeeze=False)[0])
    sampled_and_trained(table, ax=upper)
    gains(tables, label=label, axes=lower)
    # Each half has a title of its own.
    heading(above, titles[0])
    heading(below, titles[1])
    return [upper, *lower]


# Verdicts


def verdicts(
    table: pd.DataFrame,
    *,
    digits: int = 1,
    wrap: int = 44,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Claims and verdicts as a coloured list.

    Parameters
    ----------
    table : DataFrame
        Of `verdicts.judge` or `verdicts.read`.
    digits : int
        Decimals of what was measured.
    wrap : int
        Characters of a claim in one line.
    title : str, optional
    ax : Axes, optional
    """
    shown = verdict_table(table, digits).reset_index(drop=True)
    claims = [textwrap.fill(text.replace("$", r"\$"), wrap) for text in shown["claim"]]
    # In lines of text: a claim that is wrapped takes more of them.
    heights = np.array([0.3 + 0.5 * (1 + text.count("\n")) for text in claims])
    middles = np.cumsum(heights) - heights / 2
    with style():
        ax = ax or plt.subplots(figsize=(WIDTH, 0.5 + 0.24 * (heights.sum() + 1.2)))[1]
        # Left ends of the columns, as shares of the width.
        columns = {"claim": 0.0, "published": 0.44, "here": 0.59, "seeds": 0.776, "verdict": 0.79}
        # The column of seeds is narrower than its name, which ends where the numbers end.
        sides = dict.fromkeys(columns, "left") | {"seeds": "right"}
        for name, x in columns.items():
            ax.text(x + 0.006, -0.5, name, weight="bold", size=8, va="center", ha=sides[name])
        before = None
        for number, row in shown.iterrows():
            y = middles[number]
            top = y - heights[number] / 2
            # A line above the first claim of a paper, and its name beside it.
            if row["paper"] != before:
                ax.axhline(top, color=SOFT, lw=0.8)
            verdict = verdict_kind(row["verdict"])
            colour = NAMED[verdict]
            box = Rectangle((0.79, top + 0.06), 0.21, heights[number] - 0.12, color=colour, lw=0)
            ax.add_patch(box)
            texts = {"claim": claims[number], "published": plain(row["published"])}
            texts["here"] = row["here"]
            texts |= {"seeds": row["seeds"], "verdict": verdict}
            for name, x in columns.items():
                # The boxes are light or strong in both settings, so their text stays dark.
                ink = "#111111" if name == "verdict" else INK
                ax.text(x + 0.006, y, texts[name], size=7.2, va="center", ha=sides[name], color=ink)
            if row["paper"] != before:
                ax.text(
                    -0.012,
                    y,
                    plain(row["paper"]),
                    weight="bold",
                    size=8,
                    va="center",
                    ha="right",
                )
            before = row["paper"]
        # The y axis is turned around, so that the list is read from above; names of papers stand
        # left of 0.
        ax.set(xlim=(-0.145, 1), ylim=(middles[-1] + heights[-1] / 2 + 0.2, -1.0))
        ax.set_axis_off()
        if title:
            ax.set_title(title, x=0.0)
        ax.figure.subplots_adjust(0.01, 0.01, 0.99, 0.96 if title else 0.99)
    return ax


# Parts


def _beside(ax: Axes, x: float, y: float, text: str) -> None:
    ax.annotate(text, (x, y), (4, 0), textcoords="offset points", va="center", size=8)


def _joined_names(
    table: pd.DataFrame, end: float, letter: float = 0.024, height: float = 0.045
) -> Iterator[tuple[float, float, str, bool]]:
    """(x, y, name, whether it stands on the left) for `sampled_and_trained`, one for all dots that
    lie on one another. letter, height: of the text, in decades. A name stands on the side where it
    meets fewer dots and names, and not the end of the axes.
    """
    table = table.sort_values("trained", ascending=False, kind="stable")
    places = np.log10(table[["sampled", "trained"]].to_numpy(float))
    groups: list[list[int]] = []
    for i, place in enumerate(places):
        # A dot joins the first group whose first dot is near it, along both axes.
        known = [group for group in groups if np.abs(places[group[0]] - place).max() < NEAR]
        if known:
            known[0].append(i)
        else:
            groups.append([i])
    # What is in the way so far: every dot, and each name once it has been placed.
    taken = [(x - 0.015, x + 0.015, y) for x, y in places]
    for group in groups:
        x, y = places[group].mean(axis=0)
        name = ", ".join(map(plain, table.index[group]))
        width = letter * len(name)
        sides = [(x + 0.03, x + 0.03 + width, y), (x - 0.03 - width, x - 0.03, y)]
        met = []
        for start, stop, _ in sides:
            others = sum(
                start < b and a < stop and abs(y - other) < height for a, b, other in taken
            )
            # A name that would leave the axes is worse than one that meets a few others.
            met.append(others + 9 * (stop > np.log10(end)))
        left = bool(met[1] < met[0])
        taken.append(sides[left])
        yield 10**x, 10**y, name, left
