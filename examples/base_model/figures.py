"""Figures of a base model: how it was trained, and how hard problems are for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from workbench.plots.style import NAMED, PALETTE, framed, plain

__all__ = ["pretraining", "success_rates"]


def pretraining(
    log: pd.DataFrame,
    *,
    y: str | Iterable[str] = "loss",
    smooth: int = 1,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Columns of a base model's log against the training step.

    Parameters
    ----------
    log : DataFrame
        With a column `step`.
    y : str or list of str
        Several columns are drawn from light to dark, as levels of difficulty.
    smooth : int
        Rows of a moving mean.
    title : str, optional
    ax : Axes, optional
    """
    names = [y] if isinstance(y, str) else list(y)
    several = len(names) > 1
    # Levels have an order, and so have the shades; a single column takes the first colour.
    shades = sns.color_palette("viridis_r", len(names)) if several else PALETTE[:1]
    ylabel = "held-out accuracy" if several else plain(names[0])
    legend = "outside" if several else None
    with framed(ax, title=title, xlabel="training step", ylabel=ylabel, legend=legend) as ax:
        for name, colour in zip(names, shades):
            values = log[name].rolling(smooth, min_periods=1).mean()
            ax.plot(log["step"], values, color=colour, label=plain(name))
    if several:
        ax.get_legend().set_title("level")
    return ax


def success_rates(
    rates: Any, *, bins: int = 20, title: str | None = None, ax: Axes | None = None
) -> Axes:
    """How many problems have which success rate.

    The two ends, never and always solved, are bars of their own: with sampled groups they give next
    to no gradient.

    Parameters
    ----------
    rates : (P,) numbers from 0 to 1
    bins : int
    title : str, optional
    ax : Axes, optional
    """
    rates = np.asarray(rates, dtype=np.float64)
    if rates.ndim != 1 or not rates.size or not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError(
            f"rates: shape {rates.shape}; one or more numbers from 0 to 1 in a row are needed"
        )
    with framed(
        ax,
        title=f"Success rates of {len(rates)} problems" if title is None else title,
        xlabel="success rate of a problem",
        ylabel="problems",
    ) as ax:
        # The two ends would lie in the first and the last bin of the histogram.
        between = rates[(rates > 0) & (rates < 1)]
        bins = np.linspace(0, 1, bins + 1).tolist()
        name = "solved sometimes"
        ax.hist(between, bins, color=NAMED["mixed"], label=name, rwidth=0.85)
        # Beside the axis from 0 to 1, not on it, so that they cannot be taken for rates near the
        # ends.
        ax.bar(-0.04, (rates == 0).sum(), 0.04, color=NAMED["all wrong"], label="never solved")
        ax.bar(1.04, (rates == 1).sum(), 0.04, color=NAMED["all right"], label="always solved")
        ax.set_xlim(-0.09, 1.09)
    return ax
