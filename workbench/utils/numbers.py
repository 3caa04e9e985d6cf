"""Numbers as people read them."""

import math
from collections.abc import Iterable

NOTHING = "–"
DECIMALS = ((0.01, 4), (10, 3), (1000, 1))  # of numbers below a bound; none of larger ones


def to_digits(number: float, digits: int) -> float:
    """A number with so many digits.

    >>> to_digits(0.0012727922, 3)
    0.00127
    """
    return float(f"{number:.{digits}g}")


def mean_and_half(mean: float, half: float) -> str:
    """A mean with about three digits, and its half-width with as many unless it is 0 or unknown.

    >>> mean_and_half(0.4321, 0.021), mean_and_half(1234.5, 67.8), mean_and_half(8.0, 0.0)
    ('0.432 ± 0.021', '1,234 ± 68', '8')
    >>> mean_and_half(0.000225, 0.0)
    '0.000225'
    """
    if not math.isfinite(mean):
        return NOTHING
    spread = math.isfinite(half) and half > 0
    # A whole number without a spread is most likely a count, and is shown as one.
    if not spread and mean == int(mean):
        return f"{mean:,.0f}"
    # A learning rate or a divergence may lie far below what four decimals show.
    if not spread and abs(mean) < 0.01:
        return f"{mean:.3g}"
    decimals = next((n for below, n in DECIMALS if abs(mean) < below), 0)
    shown = f"{mean:,.{decimals}f}"
    return f"{shown} ± {half:,.{decimals}f}" if spread else shown


def ratio_text(value: float, low: float, high: float) -> str:
    """A ratio with its interval, whose ends may be open.

    >>> ratio_text(0.82, 0.75, math.inf), ratio_text(1.0, math.nan, math.nan)
    ('0.82 [0.75, open]', '1')
    """
    if not math.isfinite(value):
        return NOTHING
    # One pair has no interval, and the baseline needs none.
    if not math.isfinite(low) and not math.isfinite(high):
        return f"{value:.3g}"
    lower = "open" if low == 0 else f"{low:.2f}"
    upper = "open" if math.isinf(high) else f"{high:.2f}"
    return f"{value:.2f} [{lower}, {upper}]"


def span(numbers: Iterable[int]) -> str:
    """Whole numbers in a row as their ends, others one by one.

    >>> span([0, 1, 2]), span([0, 1]), span([3, 7])
    ('0 to 2', '0, 1', '3, 7')
    """
    numbers = list(numbers)
    # Two numbers are shorter by themselves than as the ends of a range.
    in_a_row = len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]} to {numbers[-1]}" if in_a_row else ", ".join(map(str, numbers))


def duration(seconds: float) -> str:
    """Seconds in the unit that a reader takes in.

    >>> duration(41.23), duration(600), duration(9000)
    ('41.2 s', '10.0 min', '2.5 h')
    """
    # The larger unit begins at two of it, since 90 s is clearer than 1.5 min.
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
