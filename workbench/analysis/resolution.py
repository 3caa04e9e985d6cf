"""How small a difference n seeds can resolve. To be asked before a night of training, not after."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import optimize, stats

from workbench.analysis.intervals import LEVEL
from workbench.utils.validation import positive_number, whole_number


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
    change = smallest_change(float(logs.std(ddof=1)), len(logs), level, power=0.8)
    return float(100 * np.expm1(change))
