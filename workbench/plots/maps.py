"""Tables as coloured, numbered cells: transition matrices of problems, and correlations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from workbench.analysis import difficulty
from workbench.analysis.correlations import correlations as correlation_tables
from workbench.analysis.runs import one_setting
from workbench.plots.style import (
    INK,
    PAPER,
    WIDTH,
    framed,
    heading,
    plain,
    seeds,
    style,
)

USUAL_NAME = 14  # letters of a row or column of a heat map
# Ink and paper that a dark page leaves as they are, for text on a part that keeps its colour.
FIXED = {INK: "#272727", PAPER: "#fefefe"}


def transitions(arms: Any, *, equal: bool = True, title: str | None = None) -> np.ndarray:
    """Transition matrices side by side: from a problem's first class of difficulty to its last.

    Parameters
    ----------
    arms : records, or dict from label to a DataFrame (5 x 5)
        Runs whose rollouts were kept, as `wb.Run` does (a trial and a sweep keep them where they
        are told `columns="outcomes"`), or the tables of `analysis.difficulty.transitions`.
    equal : bool
        Whether as many rollouts are read of a problem's last visit in every arm. With few rollouts
        a rate is 0 or 1 more often, so that arms with other group sizes would seem to differ.
    title : str, optional

    Returns
    -------
    array of Axes, one an arm
        Shares of a row in percent, means over seeds. Two stand in a row.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), figure 6.
    """
    tables = arms
    if not (isinstance(arms, Mapping) and all(isinstance(x, pd.DataFrame) for x in arms.values())):
        tables = difficulty.transitions(difficulty.outcomes(arms), equal)
    rows = -(-len(tables) // 2)
    columns = min(len(tables), 2)
    with style():
        size = (WIDTH, 0.8 + 2.7 * rows)
        figure, axes = plt.subplots(
            rows, columns, figsize=size, layout="constrained", squeeze=False
        )
        for number, (ax, (name, table)) in enumerate(zip(axes.flat, tables.items())):
            heatmap(100 * table, largest=100, digits=0, bar=False, ax=ax)
            ax.set_title(plain(name), size="small")
            # The names of the classes stand at the outer edges only.
            if number % columns:
                ax.set_yticklabels([])
            if number + columns < len(tables):
                ax.set_xticklabels([])
        used, empty = np.split(axes.ravel(), [len(tables)])
        # An odd number of tables leaves the last place of the grid empty.
        for ax in empty:
            ax.set_axis_off()
        # One bar for all panels, which is possible since all of them end at 100 %.
        cells = used[0].collections[0]
        figure.colorbar(cells, ax=list(used), label="% of the row's problems", shrink=0.8)
        figure.supylabel("at the first visit", size="medium")
        figure.supxlabel("at the last visit", size="medium")
        heading(figure, title)
    return used


def correlations(records: Any, *, windows: int | Sequence[int] = 5, **frame: Any) -> Axes:
    """Pearson's correlation of a learnt scheduler's scores with each feature of a rollout, by time.

    Parameters
    ----------
    records : records of one setting
        Of a method with `wb.scheduler.Scheduler`, such as `wb.methods.cbs()`, whose rollouts were
        kept. Seeds are averaged.
    windows : int or list of int
        Stretches of rounds, a row each: their number, or the rounds in which they start.
    frame
        As for `heatmap`.

    References
    ----------
    CBS (arXiv 2602.08499), figure 9.
    """
    group = one_setting(records)
    mean, _ = correlation_tables(group, windows)
    usual = {
        "title": f"Correlation of score and feature, {seeds([len(group)])}",
        "ylabel": "rounds",
        "label": "Pearson's r",
    }
    return heatmap(mean, diverging=True, **{**usual, **frame})


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
    # The figure grows with its rows and columns, so that the numbers in the cells stay readable.
    height = 1.4 + 0.34 * rows + 0.05 * tall
    width = min(WIDTH, 2.6 + 0.62 * columns + 0.08 * wide)
    texts = {"title": title, "xlabel": xlabel or "", "ylabel": ylabel or ""}
    with framed(ax, height=height, width=width, legend=None, **texts) as ax:
        ax.grid(visible=False)
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
            cmap="vlag" if diverging else "Blues",
            vmin=-1 if diverging else 0,
            vmax=1 if diverging else largest,
        )
        # Texts keep their colour on a dark page, as the cells that they stand in do.
        for text in ax.texts:
            colour = to_hex(text.get_color())
            text.set_color(FIXED.get(colour, colour))
        ax.tick_params(length=0)
        plt.setp(ax.get_xticklabels(), rotation=35, ha="right", rotation_mode="anchor")
        plt.setp(ax.get_yticklabels(), rotation=0)
    return ax
