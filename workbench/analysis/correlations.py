"""What the scores of a scheduler go along with: Pearson's correlations with every feature.

A frame is `Record.rollouts()` of a run with a `Scheduler`, with the columns round, age, score and
feature_*. `plots.correlations` draws them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.runs import one_setting
from workbench.utils.validation import whole_number


def score_correlations(frame: pd.DataFrame, windows: int | Sequence[int] = 5) -> pd.DataFrame:
    """Pearson correlation of the scheduler's scores with each feature, by time.

    Parameters
    ----------
    frame : DataFrame
        Rows without a score are left out. A rollout counts in the round that scored it, sampled or
        old.
    windows : int or list of int
        A number of stretches of nearly equal length, or the rounds in which they start.

    Returns
    -------
    DataFrame (windows x features)
        The index names each stretch by its rounds, "1-20". NaN where the feature or the score is
        constant, or fewer than two rows have one.

    References
    ----------
    CBS (arXiv 2602.08499), figure 9.
    """
    scored_in = _scored_in(frame)
    is_scored = frame["score"].notna()
    frame, scored_in = frame[is_scored], scored_in[is_scored]
    names = [name for name in frame if name.startswith("feature_")]
    rows = {}
    for first, last in _stretches(scored_in, windows):
        part = frame[(first <= scored_in) & (scored_in <= last)]
        score = part["score"].to_numpy()
        rows[f"{first}-{last}"] = [_pearson(score, part[name].to_numpy()) for name in names]
    columns = [name.removeprefix("feature_") for name in names]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns, dtype=float)


def correlations(
    records: Any, windows: int | Sequence[int] = 5
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Mean of `score_correlations` over seeds, and how far the seeds lie apart.

    Parameters
    ----------
    records : records of one setting
    windows
        As in `score_correlations`.

    Returns
    -------
    mean, deviation : DataFrame (windows x features)
        The second is the population deviation over seeds. Where it is as large as the mean, the
        seed decides which way a score leans.
    """
    frames = [record.rollouts() for record in one_setting(records)]
    # All runs are read as far as the shortest one, so that their windows have the same rounds.
    end = min(_scored_in(frame).max() for frame in frames)
    frames = [frame[_scored_in(frame) <= end] for frame in frames]
    tables = [score_correlations(frame, windows) for frame in frames]
    # (seeds, windows, features). A correlation that one seed lacks is NaN in the mean too: a mean
    # over fewer seeds would look just as certain.
    stack = np.array([table.to_numpy() for table in tables])
    like = {"index": tables[0].index, "columns": tables[0].columns}
    mean = pd.DataFrame(stack.mean(axis=0), **like)
    return mean, pd.DataFrame(stack.std(axis=0), **like)


def _scored_in(frame: pd.DataFrame) -> np.ndarray:
    """The round in which the scheduler looked at each rollout, (R,)."""
    has_features = any(name.startswith("feature_") for name in frame)
    if not has_features or not {"round", "age", "score"} <= set(frame):
        raise ValueError(
            "frame: columns round, age, score and feature_* are needed, as a run with a Scheduler "
            "records them"
        )
    # A rollout keeps the round that sampled it and ages by one a round.
    return (frame["round"] + frame["age"]).to_numpy()


def _stretches(rounds: np.ndarray, windows: int | Sequence[int]) -> list[tuple[int, int]]:
    """First and last round of every stretch."""
    if not len(rounds):
        return []
    first = int(rounds.min())
    last = int(rounds.max())
    if isinstance(windows, int):
        whole_number("windows", windows, 1)
        # Never more stretches than there are rounds, or some of them would be empty.
        parts = np.array_split(np.arange(first, last + 1), min(windows, last + 1 - first))
        return [(int(part[0]), int(part[-1])) for part in parts]
    starts = sorted(int(start) for start in windows)
    # Each stretch ends before the next one starts, and the last one goes on to the last round, or
    # is a single round where it starts beyond it. A start that is given twice makes an empty
    # stretch, which is left out.
    ends = [*(start - 1 for start in starts[1:]), max(last, starts[-1])]
    return [(start, end) for start, end in zip(starts, ends) if start <= end]


def _pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Correlation of x and y (n,); NaN where either does not vary."""
    # Equality is tested exactly: the deviation of equal numbers may come out slightly above 0,
    # and would make a correlation out of rounding.
    if len(x) < 2 or x.min() == x.max() or y.min() == y.max():
        return float("nan")
    x = x - x.mean()
    y = y - y.mean()
    # Rounding may put a perfect correlation slightly beyond 1.
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1, 1))
