"""Intervals: how well a few seeds know a number.

There is one method for one kind of quantity, here and in every table, figure and verdict:

    a mean over seeds                    Student's interval
    a difference of two arms             Student's interval of the differences, seed by seed
    a ratio of two arms                  the same on the log scale
    a difference of runs without pairs   Welch's interval

Runs of two arms with the same seed share initial weights, problem order and evaluation draws, so
that pairing takes out what they have in common. The held-out problems count as fixed: an interval
says what other seeds would give on these problems, and nothing about other problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from workbench.utils.validation import one_of, shown

__all__ = [
    "Estimate",
    "Interval",
    "LinearFit",
    "Measurement",
    "Unpaired",
    "holm",
    "linear_fit",
    "mean_interval",
    "student",
    "welch",
]

LEVEL = 0.95
SCALES = ("linear", "ratio", "percent")
SIGN_TEST_SEEDS = 6  # the fewest with which all values on one side have a p-value below .05


class Interval(NamedTuple):
    """An estimate and the ends of its interval; the ends are NaN where there is none."""

    estimate: float
    low: float
    high: float


class Estimate:
    """What `Measurement` and `Unpaired` share: their scale, and what censored runs leave open."""

    scale: str
    censored: int
    censored_baseline: int

    @property
    def low(self) -> float:
        """Lower end of the interval; NaN where one run is all there is."""
        return self._end(-1, open_end=self.censored_baseline > 0)

    @property
    def high(self) -> float:
        """Upper end of the interval; NaN where one run is all there is."""
        return self._end(+1, open_end=self.censored > 0)

    def _end(self, side: int, open_end: bool) -> float:
        """The lower (-1) or upper (+1) end of the interval."""
        raise NotImplementedError

    def _is_open(self, distance: float) -> bool:
        """Whether the true value may lie any distance further on the side of this one."""
        above = distance >= 0 and self.censored_baseline > 0
        below = distance <= 0 and self.censored > 0
        return above or below

    def _from_line(self, value: float) -> float:
        return _from_line(value, self.scale)


@dataclass(frozen=True)
class Measurement(Estimate):
    """A quantity measured once for every seed, and what its values say together.

    Attributes
    ----------
    values : (n,) float64
        One number a seed: a value, a paired difference, a ratio or a change in percent.
    scale : {"linear", "ratio", "percent"}
        Ratios, and changes in percent, are averaged and given intervals on the log scale, so that
        twice and half lie equally far from 1.
    censored : int
        How many of the values are only lower bounds, because a run stopped before its target.
    censored_baseline : int
        How many are only upper bounds, because the baseline's run stopped before its target.
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
    censored: int = 0
    censored_baseline: int = 0
    level: float = LEVEL

    def __post_init__(self) -> None:
        one_of("scale", self.scale, SCALES)
        _check_level(self.level)
        values = np.asarray(self.values, dtype=np.float64)
        if values.ndim != 1 or not values.size:
            raise ValueError(f"values: shape {values.shape}; one number for each seed is needed")
        # The dataclass is frozen, so what was converted has to be put in past its own guard.
        object.__setattr__(self, "values", values)
        self._to_line(values)  # refuses what has no logarithm

    @property
    def n(self) -> int:
        """Seeds."""
        return len(self.values)

    @property
    def value(self) -> float:
        """The mean over seeds; of ratios and changes the geometric mean of the ratios."""
        return self._from_line(self._line().mean())

    def p_value(self, bound: float) -> float:
        """Two-sided p-value of the test that the true value is `bound`; NaN with one seed.

        It is below 1 - level exactly where the interval leaves the bound out.
        """
        if self.n < 2:
            return np.nan
        # The test is made where values are averaged, so a ratio and its bound become logarithms.
        line = self._line()
        at = self._to_line(np.array([bound]))[0]
        distance = line.mean() - at
        if self._is_open(distance):
            return 1.0  # the censored side says nothing
        # Too few values are exact for a deviation, but all of them may lie on one side of the
        # bound, also when censored ones move further away. That has a probability of 2^-n on
        # either side by chance.
        if self._degrees < 1:
            beyond = (line > at).all() or (line < at).all()
            return float(2 * 0.5**self.n) if beyond and self.n >= SIGN_TEST_SEEDS else 1.0
        return _two_sided(distance, line.std(ddof=1) / np.sqrt(self.n), self._degrees)

    @property
    def _degrees(self) -> int:
        # One degree for the mean, and one for each value that was cut at its bound.
        return self.n - 1 - self.censored - self.censored_baseline

    def _end(self, side: int, open_end: bool) -> float:
        """The lower (-1) or upper (+1) end of the interval."""
        if self.n < 2:
            return np.nan
        # Censored values on this side are bounds of numbers that may be as large (or small) as
        # they like.
        if open_end:
            return self._from_line(side * np.inf)
        line = self._line()
        if self._degrees < 1:
            # The sign test again, as in `p_value`: with fewer seeds it decides nothing.
            if self.n < SIGN_TEST_SEEDS or 2 * 0.5**self.n > 1 - self.level:
                return self._from_line(side * np.inf)
            return self._from_line(line.min() if side < 0 else line.max())
        quantile = stats.t.ppf(0.5 + self.level / 2, self._degrees)
        error = line.std(ddof=1) / np.sqrt(self.n)
        return self._from_line(line.mean() + side * quantile * error)

    def _line(self) -> np.ndarray:
        return self._to_line(self.values)

    def _to_line(self, values: np.ndarray) -> np.ndarray:
        """Values on the scale on which they are averaged, (n,)."""
        if self.scale == "linear":
            return values
        ratios = _ratio(values, self.scale)
        if not (ratios > 0).all():
            raise ValueError(
                f"values: {shown(values[~(ratios > 0)][0])} on the scale {self.scale!r}; ratios "
                "must be above 0 and changes above -100 %"
            )
        return np.log(ratios)


@dataclass(frozen=True)
class Unpaired(Estimate):
    """The difference of two groups of runs that have nothing in common, with Welch's interval.

    For runs of others, whose seeds are not shared between arms. It offers what a `Measurement`
    offers.

    Attributes
    ----------
    arm, baseline : (n,) and (k,) float64
        One number a run.
    scale : {"linear", "ratio", "percent"}
        "linear" for the difference of the means; "ratio" and "percent" for the ratio of the
        geometric means, with the interval on the log scale.
    censored, censored_baseline : int
        Runs of the arm and of the baseline whose number is only a lower bound, see `Measurement`.
    level : float
        Probability of the interval.

    Examples
    --------
    >>> measured = Unpaired(np.array([3.0, 4.0, 5.0]), np.array([1.0, 2.0, 3.0]))
    >>> measured.value, round(measured.low, 3), round(measured.high, 3)
    (2.0, -0.267, 4.267)
    """

    arm: np.ndarray
    baseline: np.ndarray
    scale: str = "linear"
    censored: int = 0
    censored_baseline: int = 0
    level: float = LEVEL

    def __post_init__(self) -> None:
        one_of("scale", self.scale, SCALES)
        _check_level(self.level)

    @property
    def n(self) -> int:
        """Runs of the smaller group."""
        return min(len(self.arm), len(self.baseline))

    @property
    def value(self) -> float:
        """The difference of the means, or the ratio of the geometric means."""
        arm, baseline = self._lines()
        return self._from_line(arm.mean() - baseline.mean())

    def p_value(self, bound: float) -> float:
        """Two-sided p-value of Welch's test that the true value is `bound`."""
        if self.n < 2:
            return np.nan
        # A bound is what the scale shows, a change in percent for instance; the arms are plain
        # numbers, of which only the ratio becomes a change.
        shift = bound if self.scale == "linear" else np.log(_ratio(bound, self.scale))
        arm, baseline = self._lines()
        distance = arm.mean() - baseline.mean() - shift
        if self._is_open(distance):
            return 1.0  # the censored side says nothing
        return _two_sided(distance, *self._error())

    def _error(self) -> tuple[float, float]:
        """Standard error and degrees of freedom, of which a censored run takes one away."""
        error, degrees = _welch_error(*self._lines())
        # At least one degree stays, with which the interval is very wide but finite.
        return error, max(degrees - self.censored - self.censored_baseline, 1)

    def _end(self, side: int, open_end: bool) -> float:
        """The lower (-1) or upper (+1) end of the interval."""
        if self.n < 2:
            return np.nan
        if open_end:
            return self._from_line(side * np.inf)
        arm, baseline = self._lines()
        error, degrees = self._error()
        # Without any spread the interval is a point, whatever its degrees of freedom.
        half = stats.t.ppf(0.5 + self.level / 2, degrees) * error if error else 0.0
        return self._from_line(arm.mean() - baseline.mean() + side * half)

    def _lines(self) -> tuple[np.ndarray, np.ndarray]:
        arm = np.asarray(self.arm, dtype=np.float64)
        baseline = np.asarray(self.baseline, dtype=np.float64)
        if self.scale == "linear":
            return arm, baseline
        return np.log(arm), np.log(baseline)


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


def student(values: Any, level: float = LEVEL) -> Interval:
    """`mean_interval` as an `Interval`: the mean and both ends."""
    mean, half = mean_interval(values, level)
    return Interval(mean, mean - half, mean + half)


def welch(a: Any, b: Any, level: float = LEVEL) -> Interval:
    """Difference of the means of two independent samples, a - b, with Welch's interval.

    Parameters
    ----------
    a, b : (n,) and (k,) numbers
        Runs that have nothing in common: no shared seeds.
    level : float
        Probability of the interval.

    Returns
    -------
    Interval
        The ends are NaN where a sample has one value.

    Examples
    --------
    >>> [round(end, 3) for end in welch([3, 4, 5], [1, 2, 3])]
    [2.0, -0.267, 4.267]
    """
    a = np.asarray(a, dtype=np.float64)
    b = np.asarray(b, dtype=np.float64)
    difference = float(a.mean() - b.mean())
    if min(len(a), len(b)) < 2:
        return Interval(difference, np.nan, np.nan)
    error, degrees = _welch_error(a, b)
    half = float(stats.t.ppf(0.5 + level / 2, degrees)) * error if error else 0.0
    return Interval(difference, difference - half, difference + half)


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


@dataclass(frozen=True)
class LinearFit:
    """A least-squares fit, see `linear_fit`.

    Attributes
    ----------
    names : (K,) str
    coefficients : (K,) float64
    covariance : (K, K) float64
    degrees : int
        Degrees of freedom: observations minus coefficients.
    r_squared : float
        Share of the variance that is explained.
    level : float
        Probability of the intervals.
    """

    names: tuple[str, ...]
    coefficients: np.ndarray
    covariance: np.ndarray
    degrees: int
    r_squared: float
    level: float = LEVEL

    def interval(self, name: str) -> Interval:
        """A coefficient with its Student interval."""
        i = self.names.index(name)
        half = self._quantile() * np.sqrt(self.covariance[i, i])
        value = self.coefficients[i]
        return Interval(float(value), float(value - half), float(value + half))

    def ratio(self, numerator: str, denominator: str) -> Interval:
        """The ratio of two coefficients with Fieller's interval.

        The ends are NaN where the denominator's own interval holds 0: then no ratio is excluded.
        """
        i = self.names.index(numerator)
        j = self.names.index(denominator)
        a, b = self.coefficients[[i, j]]
        quantile = self._quantile() ** 2
        # All r for which a - r b is within its interval around 0: a quadratic inequality in r.
        square = b**2 - quantile * self.covariance[j, j]
        middle = a * b - quantile * self.covariance[i, j]
        constant = a**2 - quantile * self.covariance[i, i]
        discriminant = middle**2 - square * constant
        # With a leading coefficient that is not positive, the solutions are all ratios outside an
        # interval, or all ratios there are.
        if square <= 0 or discriminant < 0:
            return Interval(float(a / b), np.nan, np.nan)
        half = np.sqrt(discriminant) / square
        return Interval(float(a / b), float(middle / square - half), float(middle / square + half))

    def _quantile(self) -> float:
        return float(stats.t.ppf(0.5 + self.level / 2, self.degrees))


def linear_fit(
    predictors: Any, values: Any, names: Sequence[str], level: float = LEVEL
) -> LinearFit:
    """Ordinary least squares of values on predictors and a constant.

    Parameters
    ----------
    predictors : (N, K) numbers
    values : (N,) numbers
    names : (K,) str
        Of the predictors; the constant is called "constant".
    level : float
        Probability of the intervals.

    Returns
    -------
    LinearFit

    Raises
    ------
    ValueError
        With fewer observations than coefficients and one more, or predictors that depend on one
        another.

    Examples
    --------
    >>> fit = linear_fit([[1], [2], [3], [4]], [3, 5, 7, 9], ["n"])
    >>> [round(fit.interval(name).estimate, 6) for name in ("constant", "n")]
    [1.0, 2.0]
    """
    predictors = np.asarray(predictors, dtype=np.float64)
    values = np.asarray(values, dtype=np.float64)
    # The constant comes first, as it does in the names of the result.
    design = np.column_stack([np.ones(len(values)), predictors])
    observations, coefficients = design.shape
    if observations <= coefficients:
        raise ValueError(
            f"values: {observations} observations; more than the {coefficients} coefficients are "
            "needed"
        )
    # lstsq would quietly return the shortest of many solutions, and the inverse below would be
    # noise.
    if np.linalg.matrix_rank(design) < coefficients:
        raise ValueError("predictors: one of them follows from the others, so they have no effect")
    solution, _, _, _ = np.linalg.lstsq(design, values, rcond=None)
    residuals = values - design @ solution
    degrees = observations - coefficients
    # The textbook covariance of least squares: the unbiased variance of the residuals times the
    # inverse of X'X.
    covariance = residuals @ residuals / degrees * np.linalg.inv(design.T @ design)
    spread = np.sum((values - values.mean()) ** 2)
    explained = 1 - residuals @ residuals / spread if spread > 0 else 1.0
    return LinearFit(("constant", *names), solution, covariance, degrees, float(explained), level)


def _welch_error(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Standard error of the difference of two means, and Welch's degrees of freedom."""
    parts = np.array([a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)])
    # Without any spread in either group the formula of the degrees would be 0 / 0.
    total = parts.sum()
    if total == 0:
        return 0.0, np.inf
    return float(np.sqrt(total)), float(total**2 / np.sum(parts**2 / [len(a) - 1, len(b) - 1]))


def _two_sided(distance: float, error: float, degrees: float) -> float:
    """p-value of a t statistic; without any spread a distance is either none or certain."""
    if error == 0:
        return 0.0 if distance else 1.0
    return float(2 * stats.t.sf(abs(distance) / error, degrees))


def _ratio(values: Any, scale: str) -> Any:
    """Ratios from what a scale shows: themselves, or changes in percent."""
    return 1 + values / 100 if scale == "percent" else values


def _from_line(value: float, scale: str) -> float:
    """A number on the scale on which values are averaged, as the scale shows it."""
    if scale == "linear":
        return float(value)
    ratio = float(np.exp(value))
    return 100 * (ratio - 1) if scale == "percent" else ratio


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level={shown(level)}: a number between 0 and 1 is needed")
