"""AR3PO (arXiv 2509.25808): how many rollouts a problem gets, by how hard it is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from workbench.analysis.difficulty import visits

__all__ = ["expected_rollouts", "rollouts_by_rate"]

EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def rollouts_by_rate(frame: pd.DataFrame, edges: Sequence[float] = EDGES) -> pd.DataFrame:
    """Mean rollouts a visit of the problems in each bin of success rate.

    Parameters
    ----------
    frame : DataFrame
        A record's rollouts with problem, round and correct.
    edges : rising numbers
        Bins are [a, b), the last one [a, b].

    Returns
    -------
    DataFrame, a row a bin
        rollouts, problems (count) and rate, the mean over the bin's problems; a problem's rate is
        that over all its rollouts in the frame.

    References
    ----------
    AR3PO (arXiv 2509.25808), section 4.4 and figure 2: the hardest bin gets the most.
    """
    by_problem = visits(frame).groupby("problem")
    rate = by_problem["correct"].sum() / by_problem["rollouts"].sum()
    bins = range(len(edges) - 1)
    bin_of_problem = np.clip(np.searchsorted(edges, rate, side="right") - 1, 0, len(edges) - 2)
    mean = by_problem["rollouts"].mean().groupby(bin_of_problem).mean().reindex(bins)
    count = rate.groupby(bin_of_problem).size().reindex(bins, fill_value=0)
    return pd.DataFrame(
        {
            "rollouts": mean.to_numpy(),
            "problems": count.to_numpy(),
            "rate": rate.groupby(bin_of_problem).mean().reindex(bins).to_numpy(),
        },
        index=[f"{a:g} to {b:g}" for a, b in pairwise(edges)],
    )


def expected_rollouts(rate: np.ndarray, stages: int = 2, k: int = 4) -> np.ndarray:
    """Rollouts that a problem gets on average, by its success rate.

    A problem goes on to its next stage of k rollouts while none was right:
    k (1 + (1-p)^k + (1-p)^2k + ...).

    Parameters
    ----------
    rate : (P,) success rates
    stages, k : int

    Returns
    -------
    (P,) float64

    References
    ----------
    AR3PO (arXiv 2509.25808), section 3.1.

    Examples
    --------
    >>> expected_rollouts(np.array([0.0, 0.5, 1.0])).tolist()
    [8.0, 4.25, 4.0]
    """
    missed = (1 - np.asarray(rate, dtype=np.float64)) ** k
    return k * np.sum([missed**stage for stage in range(stages)], axis=0)
