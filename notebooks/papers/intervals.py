"""Intervals for what others published: runs that share no seeds, and lines through their means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from workbench.analysis.intervals import LEVEL

__all__ = ["Interval", "LinearFit", "Unpaired", "linear_fit"]


class Interval(NamedTuple):
    """An estimate and the ends of its interval; the ends are NaN where there is none."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Unpaired:
    """The difference of the means of two groups of runs, with Welch's interval.

    For runs of others, whose seeds are not shared between arms. It offers what a `Measurement`
    offers.

    Attributes
    ----------
    arm, baseline : (n,) and (k,) float64
        One number a run.
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
    level: float = LEVEL

    @property
    def n(self) -> int:
        """Runs of the smaller group."""
        return min(len(self.arm), len(self.baseline))

    @property
    def value(self) -> float:
        """The difference of the means."""
        return float(np.mean(self.arm) - np.mean(self.baseline))

    @property
    def low(self) -> float:
        """Lower end of the interval; NaN where one run is all there is."""
        return float(self._test(0.0).confidence_interval(self.level).low)

    @property
    def high(self) -> float:
        """Upper end of the interval; NaN where one run is all there is."""
        return float(self._test(0.0).confidence_interval(self.level).high)

    def p_value(self, bound: float) -> float:
        """Two-sided p-value of Welch's test that the true value is `bound`."""
        return float(self._test(bound).pvalue)

    def _test(self, bound: float) -> Any:
        return stats.ttest_ind(self.arm, np.asarray(self.baseline) + bound, equal_var=False)


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
