"""Figures of costs: who wins at which price of sampling, and what n seeds resolve."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workbench.plots.style import INK, SOFT, finish, looks, new_axes, style
from workbench.plots.text import plain

__all__ = ["prices", "resolution"]


def prices(
    table: pd.DataFrame,
    *,
    baseline: str,
    break_even: pd.DataFrame | None = None,
    machines: Mapping[str, float | tuple[float, float, float]] | None = None,
    title: str | None = None,
    bill: str = "gradient",
    legend: str | None = "direct",
    ax: Axes | None = None,
) -> Axes:
    """The bill to a target over the baseline's, by the price of sampling.

    Below 1 a method is cheaper than the baseline.

    Parameters
    ----------
    table : DataFrame
        Of `cost.ratios_by_price`.
    baseline : str
        Its name.
    break_even : DataFrame, optional
        Of `cost.break_even_prices`: a dot with its interval where a line crosses 1.
    machines : dict from name to price, or to (price, low, high)
        Vertical lines, with the interval as a band: this machine, a GPU, FLOPs.
    title : str, optional
    bill : {"gradient", "selected"}
        Which bill the table is of, for the label of the y axis.
    legend : {"direct", "outside", None}
    ax : Axes, optional
    """
    with style():
        ax = ax or new_axes(4.2)
        # The baseline comes first, so that its look does not depend on the other labels.
        labels = list(dict.fromkeys(table["label"]))
        styles = looks([baseline, *labels])
        # The baseline against itself. A label with an underscore is left out of the legend.
        ax.axhline(1, color=styles[baseline].colour, lw=1.5, label=f"_{baseline}")
        for label in labels:
            part = table[table["label"] == label]
            look = styles[label]
            text = f"{plain(label)} (n = {int(part['n'].iloc[0])})"
            ax.plot(part["price"], part["ratio"], color=look.colour, ls=look.dash, label=text)
            # Where a run was censored an end of the interval is open, and there is no band to
            # fill.
            known = part[np.isfinite(part["high"]) & (part["low"] > 0)]
            ax.fill_between(
                known["price"], known["low"], known["high"], color=look.colour, alpha=0.15, lw=0
            )
        ax.set(xscale="log", yscale="log")
        # After the lines are drawn, since the ticks and the marks below need the final limits.
        low, high = _limits(table)
        ax.set_ylim(low, high)
        ax.set_xlim(table["price"].min(), table["price"].max())
        _plain_ticks(ax)
        if break_even is not None:
            _mark_break_even(ax, break_even, styles)
        for name, place in (machines or {}).items():
            _mark_machine(ax, name, place)
        ax.annotate(
            f"cheaper than {plain(baseline)}",
            (0.01, 0.015),
            xycoords="axes fraction",
            size="small",
            color=SOFT,
        )
        trained = "with a gradient" if bill == "gradient" else "selected"
        finish(
            ax,
            title=title,
            xlabel="price of sampling (cost of a sampled token / of a trained one)",
            ylabel=f"cost to the target / {plain(baseline)}'s\n(trained rollouts: {trained})",
            legend=legend,
        )
    return ax


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
    with style():
        ax = ax or new_axes()
        styles = looks(tables)
        for name, table in tables.items():
            colour = styles[name].colour
            marker = styles[name].marker
            ax.plot(
                table.index, table["half_width"], color=colour, marker=marker, label=plain(name)
            )
            ax.plot(table.index, table["at_80"], color=colour, ls="--", label=f"_{name}")
        # Lines without points, for a legend that explains dashes once and not for every table.
        ax.plot([], [], color=INK, label="half-width of an interval")
        ax.plot([], [], color=INK, ls="--", label="found 4 times of 5")
        sizes = sorted({n for table in tables.values() for n in table.index})
        ax.set_xticks(sizes)
        ax.set_ylim(0, None)
        finish(ax, title=title, xlabel="seeds of each arm", ylabel=ylabel)
    return ax


def _limits(table: pd.DataFrame) -> tuple[float, float]:
    """The y axis: all ratios, and intervals as far as they do not dwarf them."""
    # At least a tenth around 1, so that arms that cost the same are not magnified into a
    # difference.
    ratios = table["ratio"]
    return float(min(ratios.min(), 0.9) / 1.3), float(max(ratios.max(), 1.1) * 1.3)


def _plain_ticks(ax: Axes) -> None:
    """Plain numbers at the ticks of two logarithmic axes."""
    for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        # Decades alone would leave a narrow axis with one tick, and many ticks would crowd a wide
        # one.
        decades = [0.01, 0.1, 1, 10, 100]
        if high / low < 4:
            between = [0.5, 0.6, 0.7, 0.8, 0.9, 1.2, 1.4, 1.7, 2, 2.5, 3]
        elif high / low < 100:
            between = [0.25, 0.5, 2, 4, 8]
        else:
            between = [0.03, 0.3, 3, 30]
        ticks = sorted(tick for tick in decades + between if low <= tick <= high)
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)


def _mark_break_even(ax: Axes, table: pd.DataFrame, styles: Mapping[str, object]) -> None:
    """A dot with its interval at the height of 1."""
    left, right = ax.get_xlim()
    for label, row in table.iterrows():
        # An arm that is cheaper at every price has no break-even.
        if not np.isfinite(row["price"]):
            continue
        colour = styles[str(label)].colour  # type: ignore[attr-defined]
        # An interval that goes on beyond the prices tried ends at the edge of the axes.
        ends = [max(row["low"], left), min(row["high"], right)]
        if not np.isnan(ends).any():
            ax.plot(ends, [1, 1], color=colour, lw=4, solid_capstyle="butt", label=f"_{label}")
        ax.plot(row["price"], 1, "o", color=colour, mec="white", ms=7, label=f"_{label}")


def _mark_machine(ax: Axes, name: str, place: float | tuple[float, float, float]) -> None:
    """A vertical line with its name along it."""
    # A price that was not measured, such as that of FLOPs, comes without an interval.
    price, low, high = place if isinstance(place, tuple) else (place, place, place)
    ax.axvline(price, color=SOFT, lw=1, ls=":")
    if high > low:
        ax.axvspan(low, high, color=SOFT, alpha=0.1, lw=0)
    ax.annotate(
        plain(name),
        (price, 0.99),
        (-3, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        rotation=90,
        ha="right",
        va="top",
        size="small",
        color=SOFT,
    )
