"""Figures of costs: who wins at which price of sampling."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workbench.plots.style import SOFT, framed, looks, ratio_ticks, seeds
from workbench.plots.text import plain


def prices(
    table: pd.DataFrame,
    *,
    baseline: str,
    title: str | None = None,
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
    title : str, optional
    legend : str, optional
        As in `style.finish`.
    ax : Axes, optional
    """
    with framed(
        ax,
        title=title,
        xlabel="price of sampling (cost of a sampled token / of a trained one)",
        ylabel=f"cost to the target / {plain(baseline)}'s",
        legend=legend,
        height=4.2,
    ) as ax:
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
