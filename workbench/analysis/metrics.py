"""Numbers from records: pure functions, arrays in, numbers out."""

from typing import NamedTuple

import numpy as np

from workbench.records.round_stats import (
    FORWARD,
    TRAINING,
    effective_gradient_ratio,
    flops,
    success_rates,
    zero_gradient_ratios,
)

__all__ = [
    "FORWARD",
    "STATUS",
    "TRAINING",
    "Difference",
    "Interval",
    "avg_at_k",
    "bootstrap_interval",
    "effective_gradient_ratio",
    "flops",
    "gradient_norm_stats",
    "interquartile_mean",
    "kept_and_dropped",
    "mean_interval",
    "paired_difference",
    "pass_at_k",
    "score_correlations",
    "status",
    "success_rates",
    "transition_matrix",
    "zero_gradient_ratios",
]

STATUS = ("extremely-hard", "hard", "medium", "easy", "extremely-easy")


class Interval(NamedTuple):
    """A statistic and the ends of its interval; the ends are NaN where nothing can be resampled."""

    estimate: float
    low: float
    high: float


class Difference(NamedTuple):
    """A mean difference, the ends of its interval, and the share of pairs that are better, ties counting half."""

    estimate: float
    low: float
    high: float
    improvement: float


def avg_at_k(correct, k):
    """Mean correctness over k samples a problem: correct (P,) counts of right answers among k, a number in [0, 1]."""
    correct, _ = _check_counts(correct, k, k)
    return float(np.mean(correct / k))


def pass_at_k(correct, n, k):
    """Unbiased probability that one of k samples is right, averaged over problems.

    correct (P,) counts of right answers among n >= k samples: mean of 1 - C(n - c, k) / C(n, k).
    """
    correct, n = _check_counts(correct, n, k)
    failed = np.ones(len(correct))
    for i in range(k):
        failed *= np.clip(n - correct - i, 0, None) / (n - i)
    return float(np.mean(1 - failed))


def mean_interval(values, level=0.95):
    """Mean and the half-width of its Student interval over independent values (n,), n >= 2 for a width."""
    from scipy.stats import t

    values = np.asarray(values, dtype=np.float64)
    if len(values) < 2:
        return float(values.mean()), float("nan")
    error = values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(t.ppf(0.5 + level / 2, len(values) - 1) * error)


def status(rates):
    """How hard each problem is for a policy: (P,) of the names in `STATUS` (Knapsack RL, section 5.2).

    rates (P,) success rates: 0 extremely-hard, (0, .2] hard, (.2, .8) medium, [.8, 1) easy, 1 extremely-easy.
    """
    return np.array(STATUS)[_status_index(rates, "rates")]


def transition_matrix(before, after, normalize=None):
    """How problems moved between statuses: (5, 5), rows before, columns after, in the order of `STATUS`.

    before, after (P,) success rates or names of `STATUS`, of the same problems in the same order. normalize: None for
    counts, "rows" for shares of each row (an empty row stays zero), "all" for shares of all problems.
    """
    before, after = _status_index(before, "before"), _status_index(after, "after")
    if before.shape != after.shape:
        raise ValueError(
            f"before {before.shape} and after {after.shape}: one entry for each problem in both is needed"
        )
    counts = np.bincount(5 * before + after, minlength=25).reshape(5, 5)
    if normalize is None:
        return counts
    if normalize not in ("rows", "all"):
        raise ValueError(f"normalize={normalize!r}: allowed are None, 'rows' and 'all'")
    return counts / np.maximum(
        counts.sum(axis=1 if normalize == "rows" else None, keepdims=True), 1
    )


def gradient_norm_stats(norms):
    """Summary of gradient norms (S,), one a step: dict of mean, std, median, p90, max and zero, the share of zeros.

    Steps without a gradient count; std is the population one.
    """
    norms = _finite("norms", norms, 1)
    if (norms < 0).any():
        raise ValueError(f"norms: {norms.min()} is negative; norms are zero or more")
    return {
        "mean": float(norms.mean()),
        "std": float(norms.std()),
        "median": float(np.median(norms)),
        "p90": float(np.quantile(norms, 0.9)),
        "max": float(norms.max()),
        "zero": float(np.mean(norms == 0)),
    }


def score_correlations(frame, windows=5):
    """Pearson correlation of the scheduler's scores with each feature by time: a DataFrame (windows x features).

    frame: a record's rollouts of a run with `Scheduler`, with columns `round`, `age`, `score` and `feature_*`; rows
    without a score are left out. windows: a number of stretches of nearly equal length, or the rounds in which they
    start. A rollout counts in the round that scored it, sampled or old. NaN where the feature or the score is
    constant, or fewer than two rows have one (CBS figure 9). The index names each stretch by its rounds, "1-20".
    """
    import pandas as pd

    names = [name for name in frame if name.startswith("feature_")]
    if not names or not {"round", "age", "score"} <= set(frame):
        raise ValueError(
            "frame: columns round, age, score and feature_* are needed, as a run with a Scheduler records them"
        )
    frame = frame[frame["score"].notna()]
    now = (frame["round"] + frame["age"]).to_numpy()
    rows = {}
    for first, last in _windows(now, windows):
        part = frame[(first <= now) & (now <= last)]
        score = part["score"].to_numpy()
        rows[f"{first}-{last}"] = [_pearson(score, part[name].to_numpy()) for name in names]
    columns = [name.removeprefix("feature_") for name in names]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns, dtype=float)


def kept_and_dropped(frame, n=5, columns=("text", "reward", "length", "truncated")):
    """The responses that a scheduler kept and dropped, side by side: a DataFrame of n rows (CBS figures 11 and 12).

    frame: a record's rollouts with columns `problem`, `round`, `age`, `score`, `selected` and those of `columns`. A row
    for each problem in a round: the kept rollout of the highest score beside the dropped one of the lowest, columns
    `kept_*` and `dropped_*`; those whose scores lie furthest apart come first, kept ones below dropped ones last.
    """
    frame = frame[frame["score"].notna()].assign(now=frame["round"] + frame["age"])
    order = frame.sort_values("score", ascending=False, kind="stable")
    keys, wanted = ["now", "problem"], [*columns, "score"]
    kept = (
        order[order["selected"]].drop_duplicates(keys).set_index(keys)[wanted].add_prefix("kept_")
    )
    dropped = (
        order[~order["selected"]]
        .drop_duplicates(keys, keep="last")
        .set_index(keys)[wanted]
        .add_prefix("dropped_")
    )
    pairs = kept.join(dropped, how="inner")
    apart = (pairs["kept_score"] - pairs["dropped_score"]).sort_values(
        ascending=False, kind="stable"
    )
    return pairs.loc[apart.index[:n]].reset_index().rename(columns={"now": "round"})


def _windows(rounds, windows):
    """First and last round of every stretch."""
    if not len(rounds):
        return []
    first, last = int(rounds.min()), int(rounds.max())
    if np.ndim(windows) == 0:
        if windows != int(windows) or windows < 1:
            raise ValueError(
                f"windows={windows}: a whole number of at least 1, or a list of rounds, is needed"
            )
        parts = np.array_split(np.arange(first, last + 1), min(windows, last + 1 - first))
        starts = [int(part[0]) for part in parts]
    else:
        starts = sorted(int(start) for start in windows)
    return [
        (start, end - 1)
        for start, end in zip(starts, [*starts[1:], max(last, starts[-1]) + 1])
        if start < end
    ]


def _pearson(x, y):
    """Correlation of x and y (n,); NaN where either does not vary."""
    if len(x) < 2 or x.min() == x.max() or y.min() == y.max():
        return float("nan")
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1, 1))


def interquartile_mean(scores):
    """Mean of the middle half of all scores, of any shape (runs x tasks): floor(n / 4) are left out at either end.

    Example: of 1, 2, ..., 8 it is (3 + 4 + 5 + 6) / 4 = 4.5.
    """
    scores = np.sort(_finite("scores", scores), axis=None)
    cut = len(scores) // 4
    return float(scores[cut : len(scores) - cut].mean())


def bootstrap_interval(
    scores, rng, *, statistic=interquartile_mean, level=0.95, resamples=2000, stratified=True
):
    """Percentile bootstrap over runs of a statistic of scores (runs x tasks): `Interval`.

    statistic: a function of a (runs, tasks) array. stratified: runs are drawn anew in each task; else whole runs are
    drawn, which keeps what a run's tasks have in common. rng: a NumPy generator. One run has no interval.
    """
    scores = _finite("scores", scores, 2)
    _check_bootstrap(rng, level, resamples)
    runs, tasks = scores.shape
    if runs < 2:
        return Interval(float(statistic(scores)), float("nan"), float("nan"))
    draws = np.empty(resamples)
    for i in range(resamples):
        rows = rng.integers(runs, size=(runs, tasks if stratified else 1))
        draws[i] = statistic(
            np.take_along_axis(scores, np.broadcast_to(rows, scores.shape), axis=0)
        )
    return Interval(float(statistic(scores)), *_ends(draws, level))


def paired_difference(a, b, rng, *, level=0.95, resamples=2000):
    """Mean of a - b over seeds and problems with a two-way bootstrap interval: `Difference`.

    a, b (seeds, problems): entry [s, p] of both comes from the same seed and the same problem. Seeds and problems are
    each drawn with replacement, the same for a and b, so what they share drops out. With one seed the interval is over
    problems alone, and with one problem over seeds alone; with one of each there is none. rng: a NumPy generator.
    """
    a, b = _finite("a", a, 2), _finite("b", b, 2)
    if a.shape != b.shape:
        raise ValueError(
            f"a {a.shape} and b {b.shape}: the same seeds and problems are needed in both"
        )
    _check_bootstrap(rng, level, resamples)
    difference = a - b
    seeds, problems = difference.shape
    draws = np.empty(resamples)
    for i in range(resamples):
        rows, columns = rng.integers(seeds, size=seeds), rng.integers(problems, size=problems)
        draws[i] = difference[rows].mean(axis=0)[columns].mean()
    ends = _ends(draws, level) if difference.size > 1 else (float("nan"), float("nan"))
    improvement = np.mean(difference > 0) + np.mean(difference == 0) / 2
    return Difference(float(difference.mean()), *ends, float(improvement))


def _ends(draws, level):
    return tuple(float(end) for end in np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2]))


def _status_index(rates, name):
    """Position in `STATUS` of success rates or names, (P,) int64."""
    rates = np.asarray(rates)
    if rates.dtype.kind in "UOT" and rates.size:
        return _named_index(rates, name)
    rates = _finite(name, rates, 1)
    if (rates < 0).any() or (rates > 1).any():
        raise ValueError(
            f"{name}: {rates[(rates < 0) | (rates > 1)][0]} is not a rate; numbers from 0 to 1 are needed"
        )
    return (rates > 0).astype(np.int64) + (rates > 0.2) + (rates >= 0.8) + (rates == 1)


def _named_index(names, argument):
    unknown = sorted({str(name) for name in names} - set(STATUS))
    if unknown:
        raise ValueError(
            f"{argument}: {unknown[0]!r} is no status; allowed are {', '.join(STATUS)}"
        )
    return np.array([STATUS.index(str(name)) for name in names], dtype=np.int64)


def _finite(name, values, dimensions=None):
    """values as float64, not empty, finite, and of so many dimensions."""
    values = np.asarray(values, dtype=np.float64)
    if dimensions is not None and values.ndim != dimensions:
        raise ValueError(
            f"{name}: shape {values.shape}; {dimensions} dimension{'s' * (dimensions > 1)} are needed"
        )
    if not values.size:
        raise ValueError(f"{name}: shape {values.shape}; at least one number is needed")
    if not np.isfinite(values).all():
        raise ValueError(
            f"{name}: {values[~np.isfinite(values)][0]} is among them; finite numbers are needed"
        )
    return values


def _check_bootstrap(rng, level, resamples):
    if not isinstance(rng, np.random.Generator):
        raise ValueError(
            f"rng={rng!r}: a NumPy generator is needed, such as np.random.default_rng(0)"
        )
    if not 0 < level < 1:
        raise ValueError(f"level={level}: a number between 0 and 1 is needed")
    if resamples < 1:
        raise ValueError(f"resamples={resamples}: at least 1 is needed")


def _check_counts(correct, n, k):
    if k != int(k) or k < 1 or k > n:
        raise ValueError(f"k={k}: a whole number from 1 to the number of samples, {n}, is needed")
    counts = np.asarray(correct)
    allowed = (
        (counts >= 0) & (counts <= n) & (counts == np.floor(counts)) if counts.size else np.False_
    )
    if not np.all(allowed):
        found = counts[~allowed][0] if counts.size else "nothing"
        raise ValueError(
            f"correct: {found} found; counts from 0 to {n}, one for at least one problem, are needed"
        )
    return counts.astype(np.int64), n
