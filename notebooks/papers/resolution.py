"""How small a difference n seeds can resolve. To be asked before a night of training, not after.

Two measurements answer it. *Splitting*: seeds of one method are divided at random into two arms
that are compared as two methods would be. Nothing differs, so every interval that leaves 0 out is a
false alarm, and its half-width is the smallest change that this many seeds show. *Positive
control*: two methods that are known to differ, compared with ever fewer seeds: how often is the
difference found?

Splitting pairs unlike seeds. Arms of a real comparison share problem order and evaluation draws
seed by seed, so their paired differences may vary less; `paired_resolution` measures that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.curves import Unit, common_budget, read
from workbench.analysis.intervals import LEVEL, mean_interval, smallest_change
from workbench.analysis.metrics import finite
from workbench.analysis.targets import crossing
from workbench.utils.validation import numpy_generator, one_of, whole_number

__all__ = [
    "control",
    "paired_resolution",
    "resolution",
    "seed_values",
]

SIZES = (3, 5, 8, 12)
# Not those of `intervals.Measurement`: here a value is one cost of one seed, and no ratio yet.
SCALES = ("linear", "log")


def resolution(
    values: Any,
    sizes: Iterable[int] = SIZES,
    *,
    rng: np.random.Generator,
    splits: int = 2000,
    level: float = LEVEL,
    scale: str = "linear",
) -> pd.DataFrame:
    """What n seeds resolve, by splitting the seeds of one method against each other.

    Parameters
    ----------
    values : (N,) numbers
        One a seed of the same setting, such as `seed_values` returns.
    sizes : numbers of seeds
    rng : numpy.random.Generator
        Draws the splits.
    splits : int
        Splits of each size.
    level : float
        Probability of the intervals.
    scale : {"linear", "log"}
        "log" for costs: differences are taken of logarithms, and the columns hold changes in
        percent.

    Returns
    -------
    DataFrame, indexed by n
        half_width, the typical half-width of an interval (root mean square over the splits); at_80,
        the change that would be found four times out of five; false_alarms, the share of splits
        whose interval leaves 0 out, NaN with fewer than 2 n seeds, where arms of n cannot be split
        off; and seeds, N. The first two follow from the deviation over all N seeds.

    Raises
    ------
    ValueError
        For fewer than 4 values, or values that are all equal.
    """
    one_of("scale", scale, SCALES)
    numpy_generator(rng)
    values = _on_scale(finite("values", values, 1), scale)
    if len(values) < 4:
        raise ValueError(f"values: {len(values)} of them; at least 4 seeds are needed to be split")
    # Two unlike seeds differ by sqrt(2) times the deviation of one.
    deviation = np.sqrt(2) * _deviation(values, "values")
    table = _resolved(deviation, sizes, len(values), level, scale)
    alarms = [_false_alarms(values, n, splits, level, rng) for n in table.index]
    table.insert(2, "false_alarms", alarms)
    return table


def paired_resolution(
    arm: Any,
    baseline: Any,
    sizes: Iterable[int] = SIZES,
    *,
    level: float = LEVEL,
    scale: str = "linear",
) -> pd.DataFrame:
    """What n seeds resolve, by the spread of the paired differences of two arms.

    Parameters
    ----------
    arm, baseline : (N,) numbers
        Of the same seeds in the same order.
    sizes, level, scale
        As in `resolution`.

    Returns
    -------
    DataFrame, indexed by n
        half_width, at_80 and seeds, as in `resolution`.
    """
    one_of("scale", scale, SCALES)
    differences = _differences(arm, baseline, scale)
    deviation = _deviation(differences, "arm - baseline")
    return _resolved(deviation, sizes, len(differences), level, scale)


def control(
    arm: Any,
    baseline: Any,
    sizes: Iterable[int] = SIZES,
    *,
    rng: np.random.Generator,
    draws: int = 2000,
    level: float = LEVEL,
    scale: str = "linear",
) -> pd.DataFrame:
    """How often a difference that is there is found with n seeds: a positive control.

    Parameters
    ----------
    arm, baseline : (N,) numbers
        Of the same seeds in the same order.
    rng : numpy.random.Generator
        Draws n of the N seeds without replacement.
    draws : int
        Draws of each size.
    sizes, level, scale
        As in `resolution`.

    Returns
    -------
    DataFrame, indexed by n
        found, the share of draws whose interval leaves 0 out on the side of the mean over all
        seeds, NaN for n above N; and difference, that mean (in percent with scale="log").
    """
    one_of("scale", scale, SCALES)
    numpy_generator(rng)
    differences = _differences(arm, baseline, scale)
    found = {n: _found(differences, n, draws, level, rng) for n in sizes}
    table = pd.DataFrame({"found": found}).rename_axis("n")
    return table.assign(difference=_shown_on(differences.mean(), scale))


def seed_values(
    records: Any,
    *,
    target: float | None = None,
    unit: str | Unit = "rollouts",
    budget: float | None = None,
    y: str = "accuracy",
) -> pd.Series:
    """One number for each seed of a setting, as `resolution` takes them.

    Parameters
    ----------
    records : records of one setting
    target : float, optional
        With it, what each run spent until its score reached the target; use scale="log".
    unit : str or Unit
        What is counted to the target, or what the budget is counted in.
    budget : float, optional
        Without a target: the score at this budget, in percentage points; None for the largest that
        all reached.
    y : str
        As in `curves.read`.

    Returns
    -------
    Series, indexed by seed

    Raises
    ------
    ValueError
        When a run does not reach the target: with censored values the spread is not known, so
        choose a lower target.
    """
    [curves] = read({"records": records}, y).values()
    if target is None:
        if budget is None:
            # The curves were read above, and `common_budget` takes them as they are.
            budget = common_budget({"records": curves}, unit)
        return pd.Series(
            {seed: 100 * curve.score_at(unit, budget) for seed, curve in curves.items()}
        )
    costs = {}
    for seed, curve in curves.items():
        # Censored runs are refused here, where `targets.to_target` counts them: cut costs lie too
        # near to one another, and would make the seeds look more alike than they are.
        crossed = crossing(curve.places(unit), curve.scores, target)
        if not crossed.reached:
            raise ValueError(
                f"target={target:g}: {curve.path} does not reach it, so the spread over seeds is "
                "not known; choose a lower target"
            )
        costs[seed] = crossed.place
    return pd.Series(costs)


def _resolved(
    deviation: float, sizes: Iterable[int], seeds: int, level: float, scale: str
) -> pd.DataFrame:
    """What numbers of seeds resolve where paired differences have this deviation."""
    rows = {}
    for n in sizes:
        whole_number("sizes", n, 2)
        half_width = smallest_change(deviation, n, level)
        at_80 = smallest_change(deviation, n, level, power=0.8)
        rows[n] = {
            "half_width": _shown_on(half_width, scale),
            "at_80": _shown_on(at_80, scale),
            "seeds": seeds,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("n")


def _false_alarms(
    values: np.ndarray, n: int, splits: int, level: float, rng: np.random.Generator
) -> float:
    """Share of random splits into two arms of n whose paired interval leaves 0 out."""
    # Two arms of n that share no seed need 2 n of them.
    if 2 * n > len(values):
        return np.nan
    alarms = 0
    for _ in range(splits):
        # Which seed of the one arm is paired with which of the other is left to chance as well.
        drawn = rng.permutation(values)[: 2 * n]
        mean, half = mean_interval(drawn[:n] - drawn[n:], level)
        alarms += abs(mean) > half
    return alarms / splits


def _found(
    differences: np.ndarray, n: int, draws: int, level: float, rng: np.random.Generator
) -> float:
    """Share of draws of n differences whose interval lies on the side of their overall mean."""
    # More seeds than there are cannot be drawn without replacement.
    if n > len(differences):
        return np.nan
    sign = np.sign(differences.mean())
    hits = 0
    for _ in range(draws):
        mean, half = mean_interval(rng.choice(differences, n, replace=False), level)
        # The whole interval must lie on the known side. One on the wrong side is as bad as one
        # around 0.
        hits += sign * mean > half
    return hits / draws


def _deviation(values: np.ndarray, name: str) -> float:
    """The sample deviation; ValueError where all values are equal."""
    deviation = float(values.std(ddof=1))
    if deviation == 0:
        raise ValueError(
            f"{name}: all {len(values)} are equal, so their spread is not known; more seeds or "
            "longer runs are needed"
        )
    return deviation


def _differences(arm: Any, baseline: Any, scale: str) -> np.ndarray:
    arm = _on_scale(finite("arm", arm, 1), scale)
    baseline = _on_scale(finite("baseline", baseline, 1), scale)
    if arm.shape != baseline.shape or len(arm) < 2:
        raise ValueError(
            f"arm {arm.shape} and baseline {baseline.shape}: at least two pairs of seeds are needed"
        )
    return arm - baseline


def _on_scale(values: np.ndarray, scale: str) -> np.ndarray:
    if scale == "linear":
        return values
    if (values <= 0).any():
        raise ValueError(f"values: {values.min():g} is among them; costs above 0 are needed")
    # A difference of logarithms is a relative change, which is what costs differ by.
    return np.log(values)


def _shown_on(change: float, scale: str) -> float:
    """A change as it is read: in the unit of the values, or in percent."""
    return float(change if scale == "linear" else 100 * np.expm1(change))
