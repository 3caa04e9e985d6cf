"""How hard single problems are for a policy, and what becomes of them in training.

The five classes are those of Knapsack RL (arXiv 2509.25849, section 5.2), by success rate:

    extremely-hard   0                easy             [.8, 1)
    hard             (0, .2]          extremely-easy   1
    medium           (.2, .8)

A *visit* is one problem in one round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.metrics import finite
from workbench.utils.validation import one_of

CLASSES = ("extremely-hard", "hard", "medium", "easy", "extremely-easy")


def transition_matrix(before: Any, after: Any, normalize: str | None = None) -> np.ndarray:
    """How problems moved between classes, (5, 5): rows before, columns after, in `CLASSES`' order.

    Parameters
    ----------
    before, after : (P,) success rates
        Of the same problems in the same order.
    normalize : {None, "rows", "all"}
        Counts; shares of each row, where an empty row stays zero; or shares of all problems.

    Returns
    -------
    (5, 5) int64 or float64

    References
    ----------
    Knapsack RL (arXiv 2509.25849), figure 6.

    Examples
    --------
    >>> transition_matrix([0, 0, 1], [0.5, 0, 1])[0].tolist()
    [1, 0, 1, 0, 0]
    """
    one_of("normalize", normalize, (None, "rows", "all"))
    rows = class_numbers(before, "before")
    columns = class_numbers(after, "after")
    if rows.shape != columns.shape:
        raise ValueError(
            f"before {rows.shape} and after {columns.shape}: one entry for each problem in both is "
            "needed"
        )
    # Each of the 25 cells has a number, so that one pass counts them all.
    counts = np.bincount(5 * rows + columns, minlength=25).reshape(5, 5)
    if normalize is None:
        return counts
    total = counts.sum(axis=1, keepdims=True) if normalize == "rows" else counts.sum()
    # A class without problems has a row of zeros, and must not become 0 / 0.
    return counts / np.maximum(total, 1)


def visits(frame: pd.DataFrame) -> pd.DataFrame:
    """A problem's rollouts each time it was drawn.

    Parameters
    ----------
    frame : DataFrame
        A record's rollouts with problem, round and correct, each of them once.

    Returns
    -------
    DataFrame, indexed by problem and visit (0, 1, ...)
        round, rollouts, correct (count) and rate.
    """
    # Sorted by round within a problem, so that counting gives the number of the visit.
    by_visit = frame.groupby(["problem", "round"], sort=True)["correct"]
    table = by_visit.agg(rollouts="size", correct="sum").reset_index()
    table["visit"] = table.groupby("problem").cumcount()
    table["rate"] = table["correct"] / table["rollouts"]
    return table.set_index(["problem", "visit"])


def class_numbers(rates: Any, name: str) -> np.ndarray:
    """Position in `CLASSES` of success rates (P,), (P,) int64."""
    rates = finite(name, rates, 1)
    outside = (rates < 0) | (rates > 1)
    if outside.any():
        raise ValueError(
            f"{name}: {rates[outside][0]} is not a rate; numbers from 0 to 1 are needed"
        )
    # The number of lower bounds that a rate has passed is its class. By the definition of the
    # paper, 0.2 is still hard and 0.8 already easy, hence > for the one and >= for the other.
    above_bounds = [rates > 0, rates > 0.2, rates >= 0.8, rates == 1]
    return np.sum(above_bounds, axis=0).astype(np.int64)
