"""Looking at a comparison after every seed, and stopping when the answer is known.

An interval of 95 % is right when it is read once. Whoever reads it after every new seed and stops
at the first one that leaves 1 out is wrong far more often than in 5 % of all comparisons. So every
look gets a *nominal level*, a smaller probability of error, such that all looks together are wrong
in 5 %. The levels rise with the number of seeds, since a late look decides more than an early one:

    nominal level after n seeds = c (n / last) ^ SHAPE

and c follows from a simulation of Student's t statistic over growing n, which does not depend on
the unknown spread of the seeds. The interval at the nominal level of a look is a *repeated
confidence interval*: all looks together hold the true value with a probability of 95 %.

With several arms, Holm's correction is made of `overall_p`, which says at which overall level an
arm would just be decided. An arm that is decided then passes its share of the error on to the
others, and the chance of any wrong decision stays at 5 %.

`docs/guides/trial-decisions.md` has the simulations behind these choices.

References
----------
Jennison and Turnbull, Group sequential methods, 2000, chapters 2 and 9.
Maurer and Bretz, Multiple testing in group sequential trials using graphical approaches, Statistics
in Biopharmaceutical Research 5, 2013.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from workbench.analysis.intervals import LEVEL, Measurement, holm
from workbench.utils.validation import brief, number, one_of, positive_number, whole_number

ALPHA = round(1 - LEVEL, 9)
# After the fifth pair of seeds and every one that follows. Earlier looks decide hardly anything.
LOOKS = tuple(range(5, 21))
SHAPE = 2.0
# Costs that differ by less than this share are called alike.
BAND = 0.10
# 5 % is then known to within .1 % (three standard errors).
DRAWS = 400_000
ROUNDING = 1e-9  # an interval whose ends differ by less, as a share, has no width
# Below this level too few draws are left, and the union of all looks bounds the error: it is at
# most the sum of the nominal levels.
RARE = 1e-4


class Reading(NamedTuple):
    """What a look says of one arm.

    Attributes
    ----------
    measured : Measurement
        The ratio of costs, with its interval at the nominal level of the look.
    low, high : float
        The ends of this interval, moved outwards by what tuning may have missed.
    p : float
        The overall level at which this look would just decide; NaN where nothing can be decided.
    p_holm : float
        The same after Holm's correction over the arms.
    verdict : str
        As `verdict` gives it.
    known : bool
        Whether further seeds are not needed: the verdict is not "open", or this was the last look.
    """

    measured: Measurement
    low: float
    high: float
    p: float
    p_holm: float
    verdict: str
    known: bool


def nominal_levels(
    looks: Iterable[int] = LOOKS, level: float = ALPHA, *, shape: float = SHAPE
) -> np.ndarray:
    """The probability of error that every look may have, so that together they have `level`.

    Parameters
    ----------
    looks : rising whole numbers of at least 2
        After how many pairs of seeds the comparison is looked at.
    level : float
        Probability of a false alarm at any of the looks.
    shape : float
        The levels are proportional to (n / last) ** shape.

    Returns
    -------
    (looks,) float64

    Examples
    --------
    >>> nominal_levels((5, 8, 12), shape=2).round(3).tolist()
    [0.006, 0.016, 0.037]
    >>> nominal_levels([8]).tolist()
    [0.05]
    """
    looks = _checked(looks)
    number("level", level, above=0, below=1)
    if len(looks) == 1:
        return np.array([level])
    if level < RARE:
        weights = _weights(looks, shape)
        return level / weights.sum() * weights
    smallest = _smallest(looks, float(shape))
    # The same count of draws as in `overall_p`, so that both decide alike to the last digit.
    constant = smallest[max(int(level * (len(smallest) + 1)) - 1, 0)]
    return constant * _weights(looks, shape)


def overall_p(p: float, n: int, looks: Iterable[int] = LOOKS, *, shape: float = SHAPE) -> float:
    """The overall level at which a look with the p-value `p` would just decide.

    Parameters
    ----------
    p : float
        Of Student's test on n pairs, as if it was made once. NaN stays NaN.
    n : int
        One of the looks.
    looks, shape
        As in `nominal_levels`.

    Returns
    -------
    float
        It is at most `level` exactly where p is at most the nominal level of this look. It is a
        p-value that stays valid under stopping, so `holm` may correct it.

    Examples
    --------
    >>> overall_p(0.03, 8, [8])
    0.03
    >>> 0.049 < overall_p(nominal_levels()[2], 7) < 0.051
    True
    """
    looks = _checked(looks)
    one_of("n", int(n), looks)
    if len(looks) == 1 or np.isnan(p):
        return float(p)
    weight = _weights(looks, shape)[looks.index(n)]
    smallest = _smallest(looks, float(shape))
    # One more on both sides, so that what no draw has reached is not called impossible. The draws
    # are multiplied by the weight, as in `nominal_levels`: dividing p by it could round p past one.
    share = (np.searchsorted(smallest * weight, p) + 1) / (len(smallest) + 1)
    return float(max(share, p))


def union_p(p: float, n: int, looks: Sequence[int] = LOOKS) -> float:
    """A bound of `overall_p` by the sum over all looks, which needs no draws."""
    weights = _weights(looks, SHAPE)
    return float(min(p * weights.sum() / weights[looks.index(n)], 1))


def look_at(n: int, looks: Iterable[int] = LOOKS) -> int:
    """How many of n pairs of seeds count: those of the last look, or all before the first one.

    >>> look_at(9, (5, 8, 12)), look_at(3, (5, 8, 12))
    (8, 3)
    """
    past = [look for look in _checked(looks) if look <= n]
    return past[-1] if past else n


def readings(
    ratios: Mapping[str, Measurement],
    looks: Iterable[int] = LOOKS,
    *,
    level: float = ALPHA,
    band: float = BAND,
    errors: Mapping[str, float] | None = None,
    left_out: int = 0,
) -> dict[str, Reading]:
    """What the looks at several arms say, corrected for there being several.

    Parameters
    ----------
    ratios : dict from arm to Measurement
        Costs over the baseline's, on the scale "ratio", of as many seeds as `look_at` says. Arms
        that were decided earlier keep the seeds that they had.
    looks : rising whole numbers
    level : float
        Probability that at least one arm is called better or worse although it is not.
    band : float
        As in `verdict`.
    errors : dict from arm to float, optional
        How far, on the log scale, a ratio may be off by what the pairs have in common, such as the
        error of tuning. The interval is so much wider on both sides, and the test is that the ratio
        lies within this distance of 1.
    left_out : int
        Arms of the same comparison that are not given: they count in the correction, as if they
        were the last to be decided.

    Returns
    -------
    dict from arm to Reading

    Examples
    --------
    >>> mine = Measurement(np.array([0.7, 0.72, 0.69, 0.71, 0.7]), scale="ratio")
    >>> reading = readings({"mine": mine})["mine"]
    >>> reading.verdict, reading.known, round(reading.measured.high, 2)
    ('better', True, 0.74)
    """
    looks = _checked(looks)
    levels = dict(zip(looks, nominal_levels(looks, level)))
    overall = union_p if level < RARE else overall_p
    ps = {}
    factors = {arm: float(np.exp((errors or {}).get(arm, 0.0))) for arm in ratios}
    for arm, ratio in ratios.items():
        # The nearest one of the ratios that the error alone may lead to.
        nearest = float(np.clip(ratio.value, 1 / factors[arm], factors[arm]))
        p = 1.0 if nearest == ratio.value else ratio.p_value(nearest)
        ps[arm] = overall(p, ratio.n, looks) if ratio.n in levels else np.nan
    corrected = dict(zip(ps, holm([*ps.values(), *[1.0] * left_out])))
    found = {}
    for arm, ratio in ratios.items():
        # Before the first look the interval is shown at the level of that look, and decides
        # nothing.
        measured = ratio.at_level(float(1 - levels.get(ratio.n, levels[looks[0]])))
        low, high = measured.low / factors[arm], measured.high * factors[arm]
        p = float(corrected[arm])
        word = "open"
        if ratio.n in levels:
            word = verdict(measured.value, low, high, p, level=level, band=band)
        known = word != "open" or ratio.n >= looks[-1]
        found[arm] = Reading(measured, low, high, ps[arm], p, word, known)
    return found


def verdict(
    ratio: float, low: float, high: float, p: float, *, level: float = ALPHA, band: float = BAND
) -> str:
    """The one rule by which every table, figure and sentence calls an arm.

    Parameters
    ----------
    ratio, low, high : float
        Its cost over the baseline's, with its interval.
    p : float
        Of the test that the ratio is 1, corrected for the number of arms; NaN where there is none.
    level : float
        The verdict is "better" or "worse" where p is at most this.
    band : float
        Costs are "alike" where the whole interval lies within this share of 1, upwards or
        downwards: from 1 / (1 + band) to 1 + band.

    Returns
    -------
    str
        "better" (costs less), "worse", "alike", or "open".

    Examples
    --------
    >>> verdict(0.8, 0.7, 0.9, p=0.001), verdict(0.8, 0.7, 0.9, p=0.08)
    ('better', 'open')
    >>> verdict(1.01, 0.96, 1.06, p=0.6)
    'alike'
    """
    positive_number("band", band)
    # A comparison with NaN is false, so an arm without an interval or a test stays open.
    if p <= level:
        return "better" if ratio < 1 else "worse"
    return "alike" if low >= 1 / (1 + band) and high <= 1 + band else "open"


def verdicts(table: pd.DataFrame, *, level: float = ALPHA, band: float = BAND) -> pd.DataFrame:
    """Verdicts on the rows of a table that was read once, corrected by Holm's method.

    Parameters
    ----------
    table : DataFrame
        Columns ratio, low, high and p, such as `targets.to_target` gives; a row an arm. Where p is
        missing, an interval that leaves 1 out decides, without a correction.
    level, band : float
        As in `verdict`.

    Returns
    -------
    DataFrame, of the same rows
        p_holm, and verdict: NaN for rows without a ratio, such as the baseline's.
    """
    corrected = np.full(len(table), np.nan)
    if "p" in table:
        corrected = holm(table["p"])
    words = []
    for (ratio, low, high), p in zip(table[["ratio", "low", "high"]].to_numpy(float), corrected):
        if "p" not in table:
            p = 0.0 if low > 1 or high < 1 else 1.0
        word = verdict(ratio, low, high, p, level=level, band=band)
        words.append(np.nan if np.isnan(ratio) else word)
    return pd.DataFrame({"p_holm": corrected, "verdict": words}, index=table.index)


def verdicts_on_gains(table: pd.DataFrame, *, level: float = ALPHA) -> pd.Series:
    """Verdicts on differences of scores, of which more is better, corrected by Holm's method.

    Parameters
    ----------
    table : DataFrame
        Columns difference, low, high and pairs with Student's 95 % intervals, as
        `comparisons.at_budget` gives them; a row an arm.
    level : float
        As in `verdict`.

    Returns
    -------
    Series, of the same rows
        "better", "worse" or "open"; NaN for rows without a difference, such as the baseline's.

    Examples
    --------
    >>> row = {"difference": 0.02, "low": 0.01, "high": 0.03, "pairs": 5}
    >>> verdicts_on_gains(pd.DataFrame([row, row | {"low": -0.01, "high": 0.05}])).tolist()
    ['better', 'open']
    """
    table = table.reindex(columns=["difference", "low", "high", "pairs"]).astype(float)
    half = ((table["high"] - table["low"]) / 2).to_numpy()
    # The p-value of Student's test is that of its interval, which was formed with these degrees.
    degrees = np.maximum(table["pairs"].to_numpy() - 1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = table["difference"].abs().to_numpy() / half * special.stdtrit(degrees, 0.5 + LEVEL / 2)
    p = 2 * special.stdtr(degrees, -t)
    # Runs without any spread, such as copies, tell no error.
    p = np.where(np.isclose(table["low"], table["high"], rtol=ROUNDING, atol=0), 1.0, p)
    found = np.where(table["difference"] > 0, "better", "worse").astype(object)
    found[~(holm(p) <= level)] = "open"
    found[table["difference"].isna()] = np.nan
    return pd.Series(found, index=table.index)


def _checked(looks: Iterable[int]) -> tuple[int, ...]:
    """The looks as a tuple; ValueError unless they rise from at least 2."""
    looks = tuple(looks)
    for look in looks:
        whole_number("looks", look, 2)
    if not looks or list(looks) != sorted(set(looks)):
        raise ValueError(f"looks={brief(list(looks))}: rising numbers of at least 2 are needed")
    return tuple(map(int, looks))


def _weights(looks: Sequence[int], shape: float) -> np.ndarray:
    """What the nominal levels are proportional to, (looks,); 1 at the last look."""
    return (np.array(looks) / looks[-1]) ** shape


@lru_cache(maxsize=8)
def _smallest(looks: tuple[int, ...], shape: float) -> np.ndarray:
    """The smallest p-value over the looks, each divided by its weight, without any difference.

    Returns
    -------
    (DRAWS,) float64, sorted
        A comparison is decided at some look where this is at most c, so the quantiles of these
        numbers are the constants c.
    """
    rng = np.random.default_rng(20130)
    smallest = np.full(DRAWS, np.inf)
    # Sums of the values and of their squares grow with n. The scale of the values does not
    # matter, since Student's statistic divides by their deviation.
    total = np.zeros(DRAWS)
    squares = np.zeros(DRAWS)
    for n in range(1, looks[-1] + 1):
        values = rng.standard_normal(DRAWS)
        total += values
        squares += values**2
        if n in looks:
            mean = total / n
            variance = (squares - n * mean**2) / (n - 1)
            t = np.abs(mean) / np.sqrt(variance / n)
            p = 2 * special.stdtr(n - 1, -t)
            np.minimum(smallest, p / (n / looks[-1]) ** shape, out=smallest)
    return np.sort(smallest)
