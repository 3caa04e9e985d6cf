"""AR3PO (arXiv 2509.25808): how many rollouts a problem gets, by how hard it is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from papers.difficulty import visits

__all__ = ["expected_rollouts", "rollouts_by_rate"]

# Five bins of equal width. A rate of 0 and one of 1 have no bin of their own.
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
    # The rate is that of all rollouts of a problem together, so that a visit with many of them,
    # which tells more, also counts more.
    by_problem = visits(frame).groupby("problem")
    rate = by_problem["correct"].sum() / by_problem["rollouts"].sum()
    bins = range(len(edges) - 1)
    # side="right" puts a rate on an edge into the bin above it. The clip takes a rate of 1, which
    # would be beyond the last bin, back into it.
    bin_of_problem = np.clip(np.searchsorted(edges, rate, side="right") - 1, 0, len(edges) - 2)
    # First over the visits of a problem, then over the problems of a bin: otherwise problems that
    # were drawn more often would count more. An empty bin stays NaN.
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
    # The probability that the k rollouts of one stage are all wrong. Its power 0 is the first
    # stage, which every problem gets.
    missed = (1 - np.asarray(rate, dtype=np.float64)) ** k
    return k * np.sum([missed**stage for stage in range(stages)], axis=0)
