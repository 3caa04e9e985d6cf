"""Intervals: how well a few seeds know a number.

There is one method for one kind of quantity, here and in every table and figure:

    a mean over seeds                    Student's interval
    a difference of two arms             Student's interval of the differences, seed by seed
    the same without common seeds        Welch's interval
    a ratio of two arms                  the same on the log scale
    the same with censored runs          signed ranks, from twelve seeds on

Runs of two arms with the same seed share initial weights, problem order and evaluation draws, so
that pairing takes out what they have in common. The held-out problems count as fixed: an interval
says what other seeds would give on these problems, and nothing about other problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, stats

from workbench.utils.validation import brief, number, one_of, positive_number, whole_number

LEVEL = 0.95
POWER = 0.8  # "four times out of five", wherever a sentence says what would be found
SCALES = ("linear", "ratio", "percent")
SIGN_TEST_SEEDS = 6  # the fewest with which all values on one side have a p-value below .05
# The fewest with which signed ranks have a p-value below .05 although one run is censored.
RANK_TEST_SEEDS = 12
# Where ranks put a value that may be as far away as it likes. Its average with another value is
# half as far away, so beyond a quarter an average says nothing.
OUT_OF_REACH = 1e9


@dataclass(frozen=True)
class Measurement:
    """A quantity measured once for every seed, and what its values say together.

    Attributes
    ----------
    values : (n,) float64
        One number a seed: a value, a paired difference, a ratio or a change in percent.
    scale : {"linear", "ratio", "percent"}
        Ratios, and changes in percent, are averaged and given intervals on the log scale, so that
        twice and half lie equally far from 1.
    censored : int, or (n,) bool
        How many of the values, or which of them, are only lower bounds, because a run stopped
        before its target. It is their number in any case once the measurement is made.
    censored_baseline : int, or (n,) bool
        The same of those that are only upper bounds, because the baseline's run stopped.
    level : float
        Probability of the interval.

    Notes
    -----
    A censored value is counted at its bound. Where only lower bounds occur, the mean of the bounds
    is at most the mean of the true values, so the lower end of its interval still holds, and the
    upper end is infinite. Where only upper bounds occur it is the other way round. Where both
    occur, neither end is known.

    Cut values vary less than true ones, so every censored value takes away a degree of freedom.
    With fewer than two values that are not censored, the end is the outermost bound if there are
    at least `SIGN_TEST_SEEDS` seeds (all of them lie beyond it, which the sign test decides), and
    otherwise infinite.

    A mean cannot do more with a run that may have needed any amount. Ranks can: that run has the
    last rank, whatever it would have needed. So from `RANK_TEST_SEEDS` seeds on, where it is known
    which values are censored, the test is Wilcoxon's of signed ranks, the interval is the one that
    belongs to it, and the value is the median of the averages of two values (Hodges and Lehmann).
    At either end of the interval a censored value counts as the number furthest out that it may be.

    Examples
    --------
    >>> measured = Measurement(np.array([1.0, 2.0, 3.0]))
    >>> measured.n, measured.value, round(measured.low, 3), round(measured.high, 3)
    (3, 2.0, -0.484, 4.484)
    >>> half = Measurement(np.array([0.4, 0.5, 0.625]), scale="ratio")
    >>> round(half.value, 3), round(half.low, 3), round(half.high, 3)
    (0.5, 0.287, 0.87)
    >>> Measurement(np.array([0.4, 0.5, 0.625]), scale="ratio", censored=1).high
    inf
    """

    values: np.ndarray
    scale: str = "linear"
    censored: Any = 0
    censored_baseline: Any = 0
    level: float = LEVEL
    # What was given as `censored` and `censored_baseline`.
    _bounds: tuple[Any, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        one_of("scale", self.scale, SCALES)
        number("level", self.level, above=0, below=1)
        values = np.asarray(self.values, dtype=np.float64)
        if values.ndim != 1 or not values.size:
            raise ValueError(f"values: shape {values.shape}; one number for each seed is needed")
        # The dataclass is frozen, so what was converted has to be put in past its own guard.
        object.__setattr__(self, "values", values)
        self._to_line(values)  # refuses what has no logarithm
        bounds = (self.censored, self.censored_baseline)
        if any(np.ndim(each) and np.shape(each) != values.shape for each in bounds):
            raise ValueError("censored: a number, or one truth value for each seed, is needed")
        object.__setattr__(self, "_bounds", bounds)
        object.__setattr__(self, "censored", int(np.sum(self.censored)))
        object.__setattr__(self, "censored_baseline", int(np.sum(self.censored_baseline)))

    @property
    def n(self) -> int:
        """Seeds."""
        return len(self.values)

    @property
    def value(self) -> float:
        """The mean over seeds; of ratios and changes the geometric mean of the ratios.

        Where ranks decide it is their median. Where that is out of reach, it is the mean again, or
        the end of the interval that is next to it.
        """
        mean = float(self._to_line(self.values).mean())
        if not self._by_ranks:
            return self._from_line(mean)
        median = float(np.median(self._averages(above=True, below=True)))
        if abs(median) < OUT_OF_REACH / 4:
            return self._from_line(median)
        # The mean takes bounds for values, so that it can lie on the other side of the interval.
        low, high = self._end_of_ranks(-1), self._end_of_ranks(+1)
        return self._from_line(min(max(mean, low), high))

    @property
    def low(self) -> float:
        """Lower end of the interval; NaN where one run is all there is."""
        return self._end(-1, is_open=self.censored_baseline > 0)

    @property
    def high(self) -> float:
        """Upper end of the interval; NaN where one run is all there is."""
        return self._end(+1, is_open=self.censored > 0)

    def at_level(self, level: float) -> Measurement:
        """The same values with an interval of another level."""
        return Measurement(self.values, self.scale, *self._bounds, level=level)

    def columns(self, value: str = "value", n: str = "n") -> dict[str, float]:
        """Value, both ends of the interval and number of seeds as cells of a row of a table.

        Parameters
        ----------
        value, n : str
            The names of the cells with the value and with the number of seeds.
        """
        return {value: self.value, "low": self.low, "high": self.high, n: self.n}

    def stopped(self) -> dict[str, int]:
        """How many values are bounds, as cells of a row of a table."""
        return {"censored": self.censored, "censored_baseline": self.censored_baseline}

    def p_value(self, bound: float) -> float:
        """Two-sided p-value of the test that the true value is `bound`; NaN with one seed.

        It is below 1 - level exactly where the interval leaves the bound out.
        """
        if self.n < 2:
            return np.nan
        # The test is made where values are averaged, so a ratio and its bound become logarithms.
        line = self._to_line(self.values)
        at = self._to_line(np.array([bound]))[0]
        if self._by_ranks:
            share = signed_rank_shares(self.n)
            more = int((self._averages(above=True) >= at).sum())
            less = int((self._averages(below=True) <= at).sum())
            return float(min(1.0, 2 * share[min(more, less)]))
        distance = line.mean() - at
        # A censored value may lie any distance further on its side, so that side says nothing.
        if (distance >= 0 and self.censored_baseline) or (distance <= 0 and self.censored):
            return 1.0
        # Too few values are exact for a deviation, but all of them may lie on one side of the
        # bound, also when censored ones move further away. That has a probability of 2^-n on
        # either side by chance.
        if self._degrees < 1:
            beyond = (line > at).all() or (line < at).all()
            return float(2 * 0.5**self.n) if beyond and self.n >= SIGN_TEST_SEEDS else 1.0
        error = line.std(ddof=1) / np.sqrt(self.n)
        # Without any spread a distance is either none or certain.
        if error == 0:
            return 0.0 if distance else 1.0
        return float(2 * stats.t.sf(abs(distance) / error, self._degrees))

    @property
    def _degrees(self) -> int:
        # One degree for the mean, and one for each value that was cut at its bound.
        return self.n - 1 - self.censored - self.censored_baseline

    @property
    def _by_ranks(self) -> bool:
        """Whether signed ranks decide: enough seeds, and it is known which values are bounds."""
        some = self.censored + self.censored_baseline > 0
        known = all(np.ndim(each) or not each for each in self._bounds)
        return some and known and self.n >= RANK_TEST_SEEDS

    def _averages(self, above: bool = False, below: bool = False) -> np.ndarray:
        """The averages of every two values and of each with itself, sorted.

        Parameters
        ----------
        above, below : bool
            Whether lower bounds are put out of reach above, and upper bounds out of reach below. A
            value that is both stays where it is if both are asked for.
        """
        line = self._to_line(self.values).copy()
        # Where none is censored, 0 stands for all of them.
        up, down = (np.broadcast_to(np.asarray(each, bool), self.n) for each in self._bounds)
        if above:
            line[up & ~(down & below)] = OUT_OF_REACH
        if below:
            line[down & ~(up & above)] = -OUT_OF_REACH
        first, second = np.triu_indices(self.n)
        return np.sort((line[first] + line[second]) / 2)

    def _end_of_ranks(self, side: int) -> float:
        """The lower (-1) or upper (+1) end of the interval of signed ranks, before `_from_line`.

        `scipy.stats.wilcoxon` has the test, and no interval.
        """
        # So many averages may lie beyond the true value.
        beyond = np.searchsorted(signed_rank_shares(self.n), (1 - self.level) / 2, side="right")
        if beyond == 0:
            return side * np.inf
        if side < 0:
            end = self._averages(below=True)[beyond - 1]
        else:
            end = self._averages(above=True)[-beyond]
        return float(end) if abs(end) < OUT_OF_REACH / 4 else side * np.inf

    def _end(self, side: int, is_open: bool) -> float:
        """The lower (-1) or upper (+1) end of the interval."""
        if self.n < 2:
            return np.nan
        if self._by_ranks:
            return self._from_line(self._end_of_ranks(side))
        line = self._to_line(self.values)
        # Censored values on this side are bounds of numbers that may be as large (or small) as
        # they like.
        end = side * np.inf
        if not is_open and self._degrees >= 1:
            quantile = stats.t.ppf(0.5 + self.level / 2, self._degrees)
            end = line.mean() + side * quantile * line.std(ddof=1) / np.sqrt(self.n)
        # The sign test again, as in `p_value`: with fewer seeds it decides nothing.
        elif not is_open and self.n >= SIGN_TEST_SEEDS and 2 * 0.5**self.n <= 1 - self.level:
            end = line.min() if side < 0 else line.max()
        return self._from_line(end)

    def _to_line(self, values: np.ndarray) -> np.ndarray:
        """Values on the scale on which they are averaged, (n,)."""
        if self.scale == "linear":
            return values
        ratios = 1 + values / 100 if self.scale == "percent" else values
        if not (ratios > 0).all():
            raise ValueError(
                f"values: {brief(values[~(ratios > 0)][0])} on the scale {self.scale!r}; ratios "
                "must be above 0 and changes above -100 %"
            )
        return np.log(ratios)

    def _from_line(self, value: float) -> float:
        """A number on the scale on which values are averaged, as the scale shows it."""
        if self.scale == "linear":
            return float(value)
        # An end that is too far away for a number is infinite.
        with np.errstate(over="ignore"):
            ratio = float(np.exp(value))
        return 100 * (ratio - 1) if self.scale == "percent" else ratio


@lru_cache(maxsize=64)
def signed_rank_shares(n: int) -> np.ndarray:
    """How likely it is that at most 0, 1, 2, ... of the averages of every two values are positive.

    Parameters
    ----------
    n : int
        Independent values that are as likely positive as negative, and symmetric.

    Returns
    -------
    (n (n + 1) / 2 + 1,) float64
        The distribution of Wilcoxon's signed-rank statistic.

    References
    ----------
    F. Wilcoxon, Individual comparisons by ranking methods, 1945. J. L. Hodges and E. L. Lehmann,
    Estimates of location based on rank tests, 1963.

    Examples
    --------
    >>> signed_rank_shares(2).tolist()
    [0.25, 0.5, 0.75, 1.0]
    """
    shares = np.ones(1)
    for rank in range(1, n + 1):
        # Each rank is added to the sum or not, with equal probability.
        shares = (np.pad(shares, (0, rank)) + np.pad(shares, (rank, 0))) / 2
    return shares.cumsum()


def mean_interval(values: Any, level: float = LEVEL) -> tuple[float, float]:
    """Mean of independent values and the half-width of its Student interval.

    Parameters
    ----------
    values : (n,) numbers
    level : float
        Probability of the interval.

    Returns
    -------
    mean, half : float
        `half` is NaN for a single value.

    Examples
    --------
    >>> mean, half = mean_interval([1, 2, 3])
    >>> mean, round(half, 3)
    (2.0, 2.484)
    """
    values = np.asarray(values, dtype=np.float64)
    if len(values) < 2:
        return float(values.mean()), float("nan")
    error = values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(stats.t.ppf(0.5 + level / 2, len(values) - 1) * error)


class Unpaired(NamedTuple):
    """A difference, or a ratio, of two arms without common seeds; see `welch`."""

    value: float
    low: float
    high: float
    p: float


def welch(
    arm: Any,
    baseline: Any,
    *,
    scale: str = "linear",
    stopped: Sequence[int] = (0, 0),
    level: float = LEVEL,
) -> Unpaired:
    """The difference of two arms without common seeds, with Welch's interval and test.

    Parameters
    ----------
    arm, baseline : (n,) and (m,) numbers
    scale : {"linear", "ratio"}
        On the scale "ratio" the arm's geometric mean over the baseline's, which is tested for 1.
    stopped : two int
        How many values of each arm are only lower bounds. They count as in `Measurement`.
    level : float
        Probability of the interval.

    Returns
    -------
    Unpaired
        The interval and p are NaN where an arm has fewer than two values.

    References
    ----------
    B. L. Welch, The generalization of Student's problem when several different population variances
    are involved, 1947.

    Examples
    --------
    >>> found = welch([3, 4, 5], [1, 2, 3])
    >>> found.value, round(found.low, 2), round(found.p, 3)
    (2.0, -0.27, 0.07)
    """
    one_of("scale", scale, ("linear", "ratio"))
    a, b = (np.asarray(values, dtype=np.float64) for values in (arm, baseline))
    if scale == "ratio":
        a, b = np.log(a), np.log(b)
    difference = a.mean() - b.mean()
    low = high = p = np.nan
    if min(len(a), len(b)) > 1:
        parts = np.array([a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)])
        error = np.sqrt(parts.sum())
        sizes = np.array([len(a), len(b)])
        degrees = 1.0 if error == 0 else parts.sum() ** 2 / (parts**2 / (sizes - 1)).sum()
        degrees -= sum(stopped)
        half = stats.t.ppf(0.5 + level / 2, degrees) * error if degrees > 0 else np.inf
        # A run that stopped may have needed any amount, so one end is not known.
        low = -np.inf if stopped[1] else difference - half
        high = np.inf if stopped[0] else difference + half
        silent = degrees <= 0 or stopped[1 if difference >= 0 else 0]
        p = 1.0 if silent or difference == 0 else 0.0
        if p == 0 and error > 0:
            p = float(2 * stats.t.sf(abs(difference) / error, degrees))
    ends = np.array([difference, low, high])
    if scale == "ratio":
        # An end that is too far away for a number is infinite.
        with np.errstate(over="ignore"):
            ends = np.exp(ends)
    return Unpaired(float(ends[0]), float(ends[1]), float(ends[2]), float(p))


def holm(p_values: Any) -> np.ndarray:
    """p-values after Holm's correction for having asked several questions at once.

    Rejecting every hypothesis whose corrected value is below .05 rejects a true one with a
    probability of at most 5 %, however many there are.

    Parameters
    ----------
    p_values : (K,) numbers in [0, 1]
        NaN for what was not tested; it stays NaN and does not count.

    Returns
    -------
    (K,) float64

    References
    ----------
    S. Holm, A simple sequentially rejective multiple test procedure, 1979.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    p_values = np.asarray(p_values, dtype=np.float64)
    corrected = np.full(p_values.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(p_values))
    # What was not tested is neither ordered nor counted, so it makes no other correction larger.
    order = tested[np.argsort(p_values[tested], kind="stable")]
    # The smallest p-value is multiplied by K, the next one by K - 1, and so on down to 1.
    factors = len(order) - np.arange(len(order))
    # No corrected value may lie below that of a smaller p-value.
    corrected[order] = np.minimum(np.maximum.accumulate(factors * p_values[order]), 1.0)
    return corrected


# How small a difference n seeds can resolve. To be asked before a night of training, not after.


def smallest_change(
    deviation: float, n: int, level: float = LEVEL, power: float | None = None
) -> float:
    """The smallest true difference that n pairs of seeds resolve.

    Parameters
    ----------
    deviation : float
        Standard deviation of a paired difference, above 0.
    n : int
        Pairs, at least 2.
    level : float
        Probability of the interval.
    power : float, optional
        With it, the difference whose interval leaves 0 out with this probability. Without it, the
        half-width that Student's interval has with this deviation; that is found about every second
        time.

    Returns
    -------
    float
        In the unit of the deviation.

    Examples
    --------
    >>> [round(smallest_change(1.0, n), 2) for n in (3, 5, 10)]
    [2.48, 1.24, 0.72]
    >>> round(smallest_change(1.0, 5, power=0.8), 2)
    1.68
    """
    positive_number("deviation", deviation)
    whole_number("n", n, 2)
    quantile = float(stats.t.ppf(0.5 + level / 2, n - 1))
    if power is None:
        return float(deviation * quantile / np.sqrt(n))
    # Without any difference an interval leaves 0 out on one side this often.
    number("power", power, above=(1 - level) / 2, below=1)

    # An interval leaves 0 out on the right side where the t statistic exceeds the quantile; with
    # a true difference that statistic follows the noncentral t distribution. The wrong side is no
    # find.
    def missing(shift: float) -> float:
        """How much power lacks at a shift, counted in standard errors."""
        return power - float(stats.nct.sf(quantile, n - 1, shift))

    # From no difference at all, which is hardly ever found, to one that is found practically
    # always.
    shift = optimize.brentq(missing, 0.0, 10 * quantile + 10)
    return float(deviation * shift / np.sqrt(n))


def resolved_ratio(ratios: Any, level: float = LEVEL) -> float:
    """The change in percent that these pairs of seeds would have found four times out of five.

    Parameters
    ----------
    ratios : (n,) numbers above 0
        Costs over the baseline's, one a pair, of runs that all reached the target: the spread of
        cut costs is too small.
    level : float
        Probability of the interval.

    Returns
    -------
    float
        NaN with fewer than two pairs, or without any spread, from which nothing follows.

    Examples
    --------
    >>> round(resolved_ratio([0.9, 1.0, 1.1, 0.95, 1.05]))
    14
    """
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    if len(logs) < 2 or np.ptp(logs) == 0:
        return np.nan
    change = smallest_change(float(logs.std(ddof=1)), len(logs), level, power=POWER)
    # Two pairs at a small level may resolve nothing that a number could say.
    with np.errstate(over="ignore"):
        return float(100 * np.expm1(change))
