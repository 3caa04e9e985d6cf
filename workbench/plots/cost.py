"""Figures of costs: who wins at which price of sampling."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workbench.plots.style import SOFT, Look, framed, looks, ratio_ticks
from workbench.plots.text import plain


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
    legend : str, optional
        As in `style.finish`.
    ax : Axes, optional
    """
    trained = "with a gradient" if bill == "gradient" else "selected"
    with framed(
        ax,
        title=title,
        xlabel="price of sampling (cost of a sampled token / of a trained one)",
        ylabel=f"cost to the target / {plain(baseline)}'s\n(trained rollouts: {trained})",
        legend=legend,
        height=4.2,
    ) as ax:
        # The baseline comes first, so that its look does not depend on the other labels.
        styles = looks([baseline, *table["label"].unique()])
        # The baseline against itself. A label with an underscore is left out of the legend.
        ax.axhline(1, color=styles[baseline].colour, lw=1.5, label=f"_{baseline}")
        for label, part in table.groupby("label", sort=False):
            look = styles[str(label)]
            text = f"{plain(label)} (n = {int(part['n'].iloc[0])})"
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
        if break_even is not None:
            _mark_break_even(ax, break_even, styles)
        for name, place in (machines or {}).items():
            _mark_machine(ax, name, place)
        below = f"cheaper than {plain(baseline)}"
        ax.text(0.01, 0.015, below, transform=ax.transAxes, size="small", color=SOFT)
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


def _mark_machine(ax: Axes, name: str, place: float | tuple[float, float, float]) -> None:
    """A vertical line with its name along it."""
    # A price that was not measured, such as that of FLOPs, comes without an interval.
    price, low, high = place if isinstance(place, tuple) else (place, place, place)
    ax.axvline(price, color=SOFT, lw=1, ls=":")
    if high > low:
        ax.axvspan(low, high, color=SOFT, alpha=0.1, lw=0)
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
