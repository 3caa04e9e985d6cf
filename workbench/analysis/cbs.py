"""CBS (arXiv 2602.08499): what its scheduler looks at, and what it keeps.

A frame is `Record.rollouts()` of a run with a `Scheduler`, with the columns round, age, score and
feature_*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from workbench.analysis.intervals import holm
from workbench.analysis.runs import arms, one_setting
from workbench.utils.validation import whole_number

__all__ = [
    "correlation_spread",
    "correlations",
    "kept_and_dropped",
    "score_correlations",
]


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
    CBS, figure 9.
    """
    names = [name for name in frame if name.startswith("feature_")]
    if not names or not {"round", "age", "score"} <= set(frame):
        raise ValueError(
            "frame: columns round, age, score and feature_* are needed, as a run with a Scheduler "
            "records them"
        )
    frame = frame[frame["score"].notna()]
    # A rollout keeps the round that sampled it and ages by one a round, so the sum is the round
    # in which the scheduler looked at it.
    scored_in = (frame["round"] + frame["age"]).to_numpy()
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
    tables = [score_correlations(record.rollouts(), windows) for record in one_setting(records)]
    # (seeds, windows, features). A correlation that one seed lacks is NaN in the mean too: a mean
    # over fewer seeds would look just as certain.
    stack = np.array([table.to_numpy() for table in tables])
    like = {"index": tables[0].index, "columns": tables[0].columns}
    mean = pd.DataFrame(stack.mean(axis=0), **like)
    return mean, pd.DataFrame(stack.std(axis=0), **like)


def correlation_spread(
    groups: Any, window: int = 1
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Do scores follow other features with each setting, or only with each seed?

    Parameters
    ----------
    groups : dict from label to records
        Settings that are said to differ, such as the objectives.
    window : int
        Into so many stretches the rounds are cut; the last one is read.

    Returns
    -------
    mean, deviation, spread : DataFrame
        mean and deviation over seeds, (labels x features), at the last stretch. spread (features):
        between (deviation of the labels' means), within (root mean square of the seeds'
        deviations), noise (what seeds alone would put between the means, within / sqrt(seeds)),
        ratio, between / noise: about 1 where nothing but the seed decides, and p_holm, the chance
        of such a ratio if the settings did not differ (F test), corrected for the number of
        features. Deviations are sample ones.

    References
    ----------
    CBS, figure 9, which has one run a setting.
    """
    whole_number("window", window, 1)
    means = {}
    deviations = {}
    counts = []
    for label, records in arms(groups).items():
        tables = [score_correlations(record.rollouts(), window) for record in records]
        # One row a seed, at the last stretch, where the scheduler has learnt longest.
        last = pd.DataFrame([table.iloc[-1] for table in tables])
        # skipna=False: a feature that did not vary in one of the seeds has no comparable mean.
        means[label] = last.mean(skipna=False)
        deviations[label] = last.std(ddof=1, skipna=False)
        counts.append(len(records))
    mean = pd.DataFrame(means).T
    deviation = pd.DataFrame(deviations).T
    # Variances can be averaged, deviations cannot; hence the roots of mean squares.
    within = np.sqrt((deviation**2).mean(skipna=False))
    # The mean of a label over its seeds varies by the variance over the number of seeds, which
    # need not be the same for all labels.
    noise = np.sqrt((deviation.pow(2).div(counts, axis=0)).mean(skipna=False))
    between = mean.std(ddof=1, skipna=False)
    ratio = between / noise
    # With equally many seeds the square of the ratio is the F statistic of an analysis of variance.
    # One setting, or one seed, leaves a degree of freedom of 0 and hence NaN.
    degrees = (len(means) - 1, sum(counts) - len(means))
    p = stats.f.sf(ratio**2, *degrees)
    spread = pd.DataFrame(
        {
            "between": between,
            "within": within,
            "noise": noise,
            "ratio": ratio,
            "p_holm": holm(p),
        }
    )
    return mean, deviation, spread


def kept_and_dropped(
    frame: pd.DataFrame,
    n: int = 5,
    columns: Sequence[str] = ("text", "reward", "length", "truncated"),
) -> pd.DataFrame:
    """The responses that a scheduler kept and dropped, side by side.

    Parameters
    ----------
    frame : DataFrame
        With the columns problem, round, age, score, selected and those of `columns`.
    n : int
        Rows.
    columns : names
        What is shown of each response.

    Returns
    -------
    DataFrame of n rows
        For a problem in a round, the kept rollout of the highest score beside the dropped one of
        the lowest, columns kept_* and dropped_*. Those whose scores lie furthest apart come first.

    References
    ----------
    CBS, figures 11 and 12.
    """
    frame = frame[frame["score"].notna()]
    frame = frame.assign(scored_in=frame["round"] + frame["age"])
    # A scheduler may look at an old rollout again in a later round, so a pair is of one problem
    # in the round of the scoring, not of the sampling.
    keys = ["scored_in", "problem"]
    wanted = [*columns, "score"]
    # Sorted once by score, the first row of a problem is its best and the last one its worst. The
    # sort is stable, so that equal scores stay in the order of the frame.
    best_first = frame.sort_values("score", ascending=False, kind="stable")
    kept = best_first[best_first["selected"]].drop_duplicates(keys)
    dropped = best_first[~best_first["selected"]].drop_duplicates(keys, keep="last")
    pairs = (
        kept.set_index(keys)[wanted]
        .add_prefix("kept_")
        # Only problems of which something was kept and something was dropped make a pair.
        .join(dropped.set_index(keys)[wanted].add_prefix("dropped_"), how="inner")
    )
    distance = pairs["kept_score"] - pairs["dropped_score"]
    furthest = distance.sort_values(ascending=False, kind="stable").index[:n]
    return pairs.loc[furthest].reset_index().rename(columns={"scored_in": "round"})


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
