"""CBS (arXiv 2602.08499): whose choice the scores follow, and what the scheduler keeps.

A frame is `Record.rollouts()` of a run with a `Scheduler`, with the columns round, age, score and
feature_*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from papers.correlations import score_correlations
from workbench.analysis.intervals import holm
from workbench.analysis.runs import arms
from workbench.utils.validation import whole_number

__all__ = [
    "correlation_spread",
    "kept_and_dropped",
]


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
