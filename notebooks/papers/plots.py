"""Figures of the paper notebooks, from their tables.

Each function draws on the given or new Axes and returns them. `title` is the finding that the
figure shows, in the words of whoever draws it. `frame` stands for what `style.framed` takes: ax,
title, xlabel, ylabel and legend.
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
from matplotlib.ticker import MaxNLocator

from papers.verdicts import kind as verdict_kind
from papers.verdicts import table as verdict_table
from workbench.analysis import sequential
from workbench.analysis.cost import FLOP_PRICE
from workbench.analysis.curves import comparable, name_of
from workbench.analysis.runs import arms
from workbench.plots.curves import (
    AXIS_LABELS,
    axis_label,
    band,
    curve,
    is_held_out,
    learning_curve,
    mean_and_half,
)
from workbench.plots.maps import heatmap
from workbench.plots.style import (
    GRID,
    INK,
    MARKERS,
    NAMED,
    PALETTE,
    SOFT,
    WIDTH,
    Look,
    finish,
    framed,
    heading,
    looks,
    new_axes,
    plain,
    ratio_ticks,
    seeds,
    short_numbers,
    style,
    without_seeds,
)
from workbench.plots.tables import (
    estimates,
    from_above,
    height_of_rows,
    mark_price,
    name_rows,
    with_seeds,
)
from workbench.plots.tables import prices as plain_prices
from workbench.utils.validation import one_of

__all__ = [
    "bands",
    "bills",
    "correlation_maps",
    "counts",
    "course_grid",
    "curve_panels",
    "dots",
    "gains",
    "relation",
    "resolution",
    "sampled_and_trained",
    "spent_and_gained",
    "sweep",
    "sweep_panels",
    "trajectories",
    "trajectory_grid",
    "verdicts",
    "waterfall",
]

# Diagonals of `sampled_and_trained`: trained over sampled, with their names.
SHARES = {1.0: "all", 0.5: "1/2", 0.25: "1/4", 0.125: "1/8", 0.0625: "1/16"}
# Kinds of groups of AERO, and verdicts.
KINDS = {"alike": "#949494", "rescued": "#d55e00", "partial": "#e3a86b", "high": "#0173b2"}
VERDICTS = {
    "agrees": "#029e73",
    "smaller than published": "#8fd0b8",
    "published size excluded": "#f2c48d",
    "disagrees": "#d55e00",
    "cannot tell": "#d0d0d0",
    "by definition": "#9cc3e6",
}
NEAR = 0.03  # decades: dots nearer to one another than this share a name


# A value for each row


def dots(
    table: pd.DataFrame, *, reference: str | None = None, label: str | None = None, **frame: Any
) -> Axes:
    """A value with its interval for every row.

    Parameters
    ----------
    table : DataFrame
        Columns mean and half, as `comparisons.at_budget` gives them; n is named where it is there.
    reference : str, optional
        The row whose mean is drawn as a line through all.
    label : str, optional
        Of the x axis.
    """
    with framed(**frame, xlabel=label, legend=None, height=height_of_rows(len(table))) as ax:
        # Rows of a table are read from above, while the y axis counts from below.
        places = np.arange(len(table))[::-1]
        ax.errorbar(
            table["mean"],
            places,
            xerr=table["half"],
            fmt="o",
            color=PALETTE[0],
            ecolor=SOFT,
            elinewidth=1,
            capsize=3,
        )
        if reference is not None:
            mean = table.loc[reference, "mean"]
            ax.axvline(mean, color=SOFT, ls="--", lw=1, zorder=0)
            above = ax.get_xaxis_transform()
            ax.text(mean, 1, f" {plain(reference)}", transform=above, va="top", color=SOFT, size=8)
        name_rows(ax, table)
    return ax


def waterfall(
    start: float,
    parts: pd.DataFrame | pd.Series,
    *,
    names: tuple[str, str] = ("before", "after"),
    limit: float | None = None,
    label: str | None = None,
    **frame: Any,
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
    label : str, optional
        Of the x axis.
    """
    table = parts.to_frame("value") if isinstance(parts, pd.Series) else parts
    saving = PALETTE[2]
    costing = PALETTE[3]
    height = height_of_rows(len(table) + 2)
    with framed(**frame, xlabel=label, legend="above", height=height) as ax:
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
    return ax


# Curves


def bands(series: Mapping[str, pd.DataFrame], **frame: Any) -> Axes:
    """Mean curves with their intervals from tables.

    Parameters
    ----------
    series : dict from name to a DataFrame indexed by x, with mean, half and n
        As `pods.curves` gives them.
    """
    with framed(**frame) as ax:
        styles = looks(series)
        for name, table in series.items():
            x, mean, half = (
                values.to_numpy(float) for values in (table.index, table["mean"], table["half"])
            )
            text = f"{plain(name)} ({seeds(table['n'].unique())})"
            mean_and_half(ax, x, mean, half, text, styles[name])
    return ax


def sweep(series: Mapping[str, pd.DataFrame], *, log: bool = True, **frame: Any) -> Axes:
    """Values with intervals along a numeric parameter.

    Parameters
    ----------
    series : dict from name to a DataFrame indexed by the parameter, with mean and half
    log : bool
        A logarithmic x axis to base 2, with ticks at the values tried.
    """
    if len(series) == 1:
        frame["legend"] = None
    with framed(**frame) as ax:
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
    return ax


def curve_panels(
    curves: Mapping[str, Mapping[str, Any]],
    *,
    title: str,
    ylabel: str | None = None,
    ylim: tuple[float, float] | None = None,
    columns: int = 3,
    height: float = 3.8,
) -> list[Axes]:
    """Learning curves side by side. The number of seeds stands behind the title.

    Where panels of the same names differ in their number of seeds, it stands behind the title of
    each panel instead, and where the curves of a panel differ, behind each name.

    Parameters
    ----------
    curves : dict from the title of a panel to arguments of `plots.learning_curve`
        `records` is a dict from name to records. Panels with the same names have one legend.
    title : str
    ylabel : str, optional
        Of the first panel, in place of the usual one.
    ylim : (low, high), optional
        Of all panels.
    columns : int
        Of the legend.
    height : float
        In inches.

    Returns
    -------
    list of Axes
    """
    of_panels = [set(map(len, options["records"].values())) for options in curves.values()]
    counts = set.union(*of_panels)
    names = [tuple(options["records"]) for options in curves.values()]
    same = len(set(names)) == 1
    # One legend for all panels cannot say what is true of one of them.
    apart = same and len(counts) > 1 and all(len(numbers) == 1 for numbers in of_panels)
    # A legend in every panel takes a line for each curve.
    if not same:
        height += 0.2 * max(map(len, names))
    with style():
        axes = panels(len(curves), height=height)
        for ax, (text, options), numbers in zip(axes, curves.items(), of_panels):
            text = f"{text} ({seeds(numbers)})" if apart else text
            learning_curve(**{**options, "legend": None, "title": text, "ax": ax})
            if len(counts) == 1 or apart:
                _without_seeds(ax)
        # Panels of one quantity have one y axis, which is named once.
        if ylabel or len({options.get("y", "accuracy") for options in curves.values()}) == 1:
            ends = [ax.get_ylim() for ax in axes]
            ylim = ylim or (min(low for low, _ in ends), max(high for _, high in ends))
            for ax in axes[1:]:
                ax.set_ylabel("")
        if ylabel:
            axes[0].set_ylabel(ylabel)
        if ylim:
            for ax in axes:
                ax.set_ylim(ylim)
        if not same:
            for ax in axes:
                ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
        number = f" ({seeds(counts)})" if len(counts) == 1 else ""
        heading(axes[0], title + number, legend=columns if same else 0)
    return axes


def _without_seeds(ax: Axes) -> None:
    """Take "(8 seeds)" from the names of the curves of `learning_curve`."""
    for line in ax.lines:
        line.set_label(without_seeds(str(line.get_label())))


def sweep_panels(
    series: Mapping[str, Mapping[str, pd.DataFrame]],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    reference: float | None = None,
    top: float | None = None,
) -> list[Axes]:
    """Panels of `sweep` side by side, whose y axes begin at 0, with one legend.

    Parameters
    ----------
    series : dict from the title of a panel to what `sweep` takes
    title, xlabel, ylabel : str
    reference : float, optional
        Where a dotted line runs through all panels.
    top : float, optional
        Where the y axes end.

    Returns
    -------
    list of Axes
    """
    with style():
        axes = panels(len(series), height=3.4)
        for ax, (text, of_panel) in zip(axes, series.items()):
            sweep(of_panel, log=False, xlabel=xlabel, legend=None, ax=ax)
            if reference is not None:
                ax.axhline(reference, color=SOFT, ls=":", lw=1)
            ax.set(title=text, ylim=(0, top))
        axes[0].set_ylabel(ylabel)
        heading(axes[0], title, legend=2)
    return axes


def trajectories(series: Mapping[str, pd.Series], **frame: Any) -> Axes:
    """Single problems visit by visit.

    Parameters
    ----------
    series : dict from name to a Series indexed by visit
    """
    with framed(**{"xlabel": "visit", "ylabel": "success rate", **frame}) as ax:
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
            name = plain(str(problem).split("/", 1)[-1])
            # Long problems go on in a second line, since the columns are narrow.
            column[0].set_title("\n".join(textwrap.wrap(name, 14)), size="small")
            column[0].set_xlabel("")
        axes[0, 0].set_ylabel("success rate")
        # The rows share their y axis, so the limit comes from all problems and methods.
        largest = max(table.loc[list(problems), "rollouts"].max() for table in visits.values())
        axes[1, 0].set(ylabel="rollouts", ylim=(0, 1.08 * largest))
        for ax in axes.flat:
            ax.label_outer()
        heading(axes[0, 0], title, legend=len(visits))
    return axes


def course_grid(
    groups: Any,
    baseline: str,
    *,
    x: Any = "rollouts",
    y: str = "accuracy",
    columns: int = 3,
    until: float | None = None,
    title: str | None = None,
    figure: Figure | None = None,
) -> np.ndarray:
    """Every method against the baseline in a panel of its own, all on the same axes.

    Parameters
    ----------
    groups : dict from label to records
    baseline : str
        A label; it is drawn in every panel.
    x, y
        As in `plots.learning_curve`.
    columns : int
        Panels in a row.
    until : float, optional
        Where the x axis ends.
    title : str, optional
    figure : Figure, optional

    Returns
    -------
    array of Axes, one a method
    """
    groups = arms(groups)
    one_of("baseline", baseline, groups)
    if is_held_out(y):
        comparable(groups)
    others = [label for label in groups if label != baseline]
    # Rounded up, so that the last row may be a partial one.
    rows = -(-len(others) // columns)
    with style():
        figure = figure or plt.figure(figsize=(WIDTH, 0.7 + 1.75 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        styles = looks(groups)
        counts = {label: len(group) for label, group in groups.items()}
        for ax, label in zip(axes.flat, others):
            # The baseline first, so that the method is drawn over it.
            for name in (baseline, label):
                curves = [curve(record, x, y) for record in groups[name]]
                band(ax, curves, plain(name), styles[name], until, points=False)
            name = f"{plain(label)} ({seeds([counts[label]])})"
            ax.set_title(name, color=styles[label].colour)
            if until is not None:
                ax.set_xlim(0, until)
            short_numbers(ax, x)
            ax.locator_params(axis="x", nbins=4)
        for place, ax in enumerate(axes.flat):
            if place >= len(others):
                ax.set_axis_off()
            elif place + columns >= len(others):
                # The lowest panel of its column, which need not be in the last row.
                ax.tick_params(labelbottom=True)
        name = plain(name_of(x))
        of_baseline = f"{plain(baseline)}, {seeds([counts[baseline]])}"
        text = f"grey: {of_baseline}; bands: 95 % over seeds"
        figure.supxlabel(f"{AXIS_LABELS.get(name, name)}\n{text}", size="medium")
        figure.supylabel(axis_label(y, groups[baseline]), size="medium")
        heading(figure, title)
    return axes.ravel()[: len(others)]


# Distributions and relations


def counts(series: Mapping[str, np.ndarray], *, log: bool = True, **frame: Any) -> Axes:
    """Histogram of whole numbers, such as rollouts a visit; the largest is named.

    Parameters
    ----------
    series : dict from name to an array (N,) of whole numbers
    log : bool
        A logarithmic count axis.
    """
    with framed(**{"ylabel": "visits of a problem", "legend": "above", **frame}) as ax:
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
    return ax


def relation(table: pd.DataFrame, x: str, y: str, by: str, **frame: Any) -> Axes:
    """Points of two columns of a table, coloured by a third; Pearson's r stands in the corner.

    Parameters
    ----------
    table : DataFrame
    x, y, by : names of columns
    """
    with framed(**{"xlabel": plain(x), "ylabel": plain(y), **frame}) as ax:
        styles = looks(map(str, table[by].unique()))
        for name, part in table.groupby(by, sort=False):
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
        text = f"r = {table[x].corr(table[y]):.2f} over {len(table)} points"
        ax.annotate(text, (0.02, 0.03), xycoords="axes fraction", size="small", color=SOFT)
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
        As `cbs.correlation_spread` or `analysis.correlations` gives them.
    spread : DataFrame (features), or dict from name to such, optional
        Of `cbs.correlation_spread`: the spread between settings divided by the spread that seeds
        alone would give. It stands below, a row for each; about 1 says that settings do not matter.
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
    n = f", {seeds(counts)}" if len(counts) else ""
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
                digits=1,
                title="spread between objectives / spread between seeds (1: no more than seeds)",
                bar=False,
                ax=axes[2],
            )
        for ax in axes[:-1]:
            ax.tick_params(labelbottom=False)
        heading(figure, title)
    return np.asarray(axes)


# What is spent and gained


def bills(
    tables: Mapping[str, pd.DataFrame], *, arm: str, baseline: str, title: str | None = None
) -> Axes:
    """The cost of one arm to a target over the baseline's, by the price of sampling and the bill.

    Parameters
    ----------
    tables : dict from what is billed to a table of `cost.ratios_by_price`
        Each has rows of the arm.
    arm, baseline : str
        What they are called.
    title : str, optional
    """
    rows = [table.assign(label=f"{arm}, {text} trained") for text, table in tables.items()]
    table = pd.concat(rows)
    named = f"{title} ({seeds(table['n'].unique())})" if title else None
    ax = plain_prices(table, baseline=baseline, title=named, legend=None)
    with style():
        # FLOPs have no fixed part, so that they are a point on this axis.
        mark_price(ax, "FLOPs", FLOP_PRICE)
        _without_seeds(ax)
        ax.set_ylabel(f"cost to the target / {plain(baseline)}'s")
        ax.legend(loc="upper right")
    return ax


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


def gains(
    tables: Mapping[str, pd.DataFrame],
    *,
    title: str | None = None,
    label: str = "difference (right is better; hollow: the interval holds 0)",
    baseline: str | None = None,
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
    baseline : str, optional
        The row that is left out: the others then have the colours that they have beside it.
    axes : list of Axes, optional

    Returns
    -------
    list of Axes
    """
    first = next(iter(tables.values()))
    with style():
        if axes is None:
            figure = plt.figure(figsize=(WIDTH, 1.3 + 0.3 * len(first)), layout="constrained")
            # One x axis for all budgets, so that the same gain has the same length in each panel.
            axes = list(figure.subplots(1, len(tables), sharex=True, squeeze=False)[0])
        rows = list(map(str, first.index))
        styles = looks(rows if baseline is None else [baseline, *rows])
        for ax, (name, table) in zip(axes, tables.items()):
            estimates(ax, table, "value", [styles[str(row)].colour for row in table.index])
            ax.set_title(plain(name))
            ax.locator_params(axis="x", nbins=4 if len(tables) < 5 else 3)
        name_panels(axes, first.index)
        numbers = [n for table in tables.values() for n in table.get("n", ())]
        if numbers and label.endswith(")"):
            label = f"{label[:-1]}; {seeds(numbers)})"
        elif numbers:
            label = f"{label} ({seeds(numbers)})"
        axes[0].figure.supxlabel(label, size="medium")
        heading(axes[0].figure, title)
    return list(axes)


# Verdicts


def verdicts(
    table: pd.DataFrame,
    *,
    digits: int = 1,
    wrap: int = 41,
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
    # The sizes that are scaled to this lab stand in the table of the notebook.
    shown = verdict_table(table, digits).drop(columns="scaled")
    shown["claim"] = [textwrap.fill(text.replace("$", r"\$"), wrap) for text in shown["claim"]]
    shown[["paper", "published"]] = shown[["paper", "published"]].map(plain)
    kinds = [verdict_kind(text) for text in table["verdict"]]
    first = ~shown["paper"].duplicated()
    # The name of a paper stands at its first claim.
    cells = shown.assign(paper=shown["paper"].where(first, ""), verdict=kinds)
    lines = [1.0, *(0.6 + 1.0 * (1 + text.count("\n")) for text in cells["claim"])]
    with style():
        ax = ax or new_axes(0.5 + 0.12 * sum(lines))
        drawn = ax.table(
            cells.to_numpy().tolist(),
            colLabels=list(cells),
            colWidths=[0.115, 0.36, 0.16, 0.17, 0.05, 0.195],
            cellLoc="left",
            colLoc="left",
            bbox=(0, 0, 1, 1),
        )
        drawn.auto_set_font_size(False)
        drawn.set_fontsize(7.2)
        for (row, column), cell in drawn.get_celld().items():
            cell.set(height=lines[row], linewidth=0, facecolor="none")
            cell.PAD = 0.02
            if row == 0 or column == 0:
                cell.set_text_props(weight="bold")
            if row > 0 and column == len(shown.columns) - 1:
                # The boxes are light or strong in both settings, so their text stays dark.
                cell.set_text_props(color="#111111")
                cell.set_facecolor(VERDICTS[kinds[row - 1]])
            # A line above the first claim of a paper.
            elif row > 0 and first.iloc[row - 1]:
                cell.visible_edges = "T"
                cell.set(linewidth=0.8, edgecolor=SOFT)
        ax.set_axis_off()
        if title:
            ax.set_title(title)
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


def resolution(
    tables: Mapping[str, pd.DataFrame],
    *,
    title: str | None = None,
    ylabel: str = "smallest change resolved (%)",
    ax: Axes | None = None,
) -> Axes:
    """The smallest change that n seeds resolve.

    Parameters
    ----------
    tables : dict from name to a table of `resolution.resolution` or `paired_resolution`
        Lines are the half-width of an interval; dashes the change that is found four times out of
        five.
    title, ylabel : str, optional
    ax : Axes, optional
    """
    with framed(ax, title=title, xlabel="seeds of each arm", ylabel=ylabel) as ax:
        styles = looks(tables)
        for name, table in tables.items():
            look = styles[name]
            half_width = table["half_width"]
            ax.plot(half_width, color=look.colour, marker=look.marker, label=plain(name))
            ax.plot(table["at_80"], color=look.colour, ls="--", label=f"_{name}")
        # Lines without points, for a legend that explains dashes once and not for every table.
        ax.plot([], [], color=INK, label="half-width of an interval")
        ax.plot([], [], color=INK, ls="--", label="found 4 times of 5")
        ax.set_xticks(sorted({n for table in tables.values() for n in table.index}))
        ax.set_ylim(0, None)
    return ax


def leaderboard(
    tables: Mapping[str, pd.DataFrame] | pd.DataFrame,
    *,
    baseline: str,
    title: str | None = None,
    label: str = "cost to the target, baseline = 1 (left is better; hollow: no difference found)",
    notes: Mapping[str, str] | None = None,
    by_outcome: bool = False,
) -> list[Axes]:
    """Methods by what they need to a target, as ratios to a baseline with intervals.

    Parameters
    ----------
    tables : DataFrame, or dict from title to DataFrame
        As `targets.to_target` gives them with a baseline; a panel each, all in the order of the
        first one's ratios. A ratio whose interval is open on one side, because a run did not reach
        the target, ends in an arrow. A dot is filled where `sequential.verdicts` calls the row
        better or worse.
    baseline : str
        The row that all are compared with.
    title, label : str, optional
        The finding, and the x axis. The x axis also says how many pairs of runs each ratio is of;
        where the methods differ in that, each name does.
    notes : dict from method to str, optional
        A few words that stand behind the row of a method.
    by_outcome : bool
        Colour the rows by their verdict. Of many methods the colours that belong to each of them
        cannot be told apart.

    Returns
    -------
    list of Axes
    """
    if isinstance(tables, pd.DataFrame):
        tables = {"": tables}
    first = next(iter(tables.values()))
    # One order for all panels, so that a row is the same method in each of them.
    order = first.drop(index=baseline)["ratio"].dropna().sort_values().index
    tables = {name: table.loc[order] for name, table in tables.items()}
    with style():
        # A long list is set more tightly, so that it can be seen as a whole.
        row_height = 0.3 if len(order) <= 25 else 0.21
        axes = panels(len(tables), height=1.3 + row_height * len(order))
        styles = looks([baseline, *order])
        for ax, (name, table) in zip(axes, tables.items()):
            colours = [styles[method].colour for method in order]
            outcomes = sequential.verdicts(table)["verdict"]
            if by_outcome:
                colours = [NAMED[outcome] for outcome in outcomes]
            filled = outcomes.isin(["better", "worse"])
            estimates(ax, table, "ratio", colours, bound=1, filled=filled)
            ax.set_title(plain(name))
        # Ticks and limits are settled when all panels are drawn, since they share them.
        # Two panels are wide enough for more ticks.
        low, high = _ratio_limits(pd.concat(tables.values()))
        for ax in axes:
            ax.set(xscale="log", xlim=(low, high))
            ratio_ticks(ax.xaxis, low, high, most=6 if len(axes) <= 2 else 4)
        pairs = first.loc[order].get("pairs")
        if pairs is not None and pairs.nunique(dropna=False) == 1 and len(order) > 1:
            label = f"{label}; {seeds(pairs)}"
            pairs = None
        name_panels(axes, order, pairs)
        beside = axes[-1].get_yaxis_transform()
        for place, method in zip(from_above(order), order):
            note = plain((notes or {}).get(method, ""))
            axes[-1].text(1.02, place, note, transform=beside, va="center", color=SOFT, size=8)
        figure = axes[0].figure
        figure.supxlabel(label.replace("baseline", plain(baseline)), size="medium")
        heading(figure, title)
    return axes


def name_panels(axes: Sequence[Axes], names: Sequence[Any], counts: Any = None) -> None:
    """Name the rows of all panels once, at the left; the other panels keep ticks without text."""
    for ax in axes:
        ax.set_yticks(from_above(names), [""] * len(names))
        ax.set_ylim(-0.7, len(names) - 0.3)
        ax.grid(visible=False, axis="y")
    axes[0].set_yticks(from_above(names), with_seeds(names, counts))


def _ratio_limits(table: pd.DataFrame) -> tuple[float, float]:
    """Where an axis of ratios begins and ends, with 1 and all ends that are not open on it."""
    values = table[["ratio", "low", "high"]].to_numpy(float)
    values = values[np.isfinite(values) & (values > 0)]
    high = max(values.max(), 1) * 1.15
    # Arrows need room beyond the largest ratio.
    if np.isposinf(table["high"]).any():
        high = max(high, 1.8 * table["ratio"].max())
    return min(values.min(), 1) / 1.15, high


def panels(n: int, *, height: float = 3.2) -> list[Axes]:
    """n Axes side by side in a figure of the usual width, as a list.

    Parameters
    ----------
    n : int
    height : float
        In inches.
    """
    with style():
        size = (WIDTH, height)
        _, axes = plt.subplots(1, n, figsize=size, layout="constrained", squeeze=False)
    return list(axes.flat)


def prices(
    table: pd.DataFrame,
    *,
    baseline: str,
    break_even: pd.DataFrame | None = None,
    machines: Mapping[str, float | tuple[float, float, float]] | None = None,
    title: str | None = None,
    bill: str = "gradient",
    ax: Axes | None = None,
) -> Axes:
    """`workbench.plots.prices` with break-even prices and the prices of machines.

    Parameters
    ----------
    table : DataFrame
        Of `cost.ratios_by_price`.
    baseline : str
        Its name.
    break_even : DataFrame, optional
        Of `tables.break_even_prices`: a dot with its interval where a line crosses 1.
    machines : dict from name to price, or to (price, low, high)
        Vertical lines, with the interval as a band: this machine, a GPU, FLOPs.
    title : str, optional
    bill : {"gradient", "selected"}
        Which bill the table is of, for the label of the y axis.
    ax : Axes, optional
    """
    ax = plain_prices(table, baseline=baseline, title=title, ax=ax)
    trained = "with a gradient" if bill == "gradient" else "selected"
    with style():
        ax.set_ylabel(f"{ax.get_ylabel()}\n(trained rollouts: {trained})")
        if break_even is not None:
            _mark_break_even(ax, break_even, looks([baseline, *table["label"].unique()]))
            marked = f"dot and bar at 1: price at which it costs as much as {plain(baseline)}"
            ax.set_xlabel(f"{ax.get_xlabel()}\n({marked}, and its interval)")
        for name, place in (machines or {}).items():
            # A price that was not measured, such as that of FLOPs, comes without an interval.
            price, low, high = place if isinstance(place, tuple) else (place, place, place)
            mark_price(ax, name, price)
            if high > low:
                ax.axvspan(low, high, color=SOFT, alpha=0.1, lw=0)
    return ax


def _mark_break_even(ax: Axes, table: pd.DataFrame, styles: Mapping[str, Look]) -> None:
    """A dot with its interval at the height of 1."""
    left, right = ax.get_xlim()
    for label, row in table.iterrows():
        # An arm that is cheaper at every price has no break-even.
        if not np.isfinite(row["price"]):
            continue
        colour = styles[str(label)].colour
        # An interval that goes on beyond the prices tried ends at the edge of the axes.
        ends = [max(row["low"], left), min(row["high"], right)]
        if not np.isnan(ends).any():
            ax.plot(ends, [1, 1], color=colour, lw=4, solid_capstyle="butt", label=f"_{label}")
        ax.plot(row["price"], 1, "o", color=colour, mec="white", ms=7, label=f"_{label}")
