"""What it takes to reach a target score: rollouts, FLOPs, seconds or rounds.

On a rising learning curve this is a sharper question than the score at a budget. A ratio is formed
for every seed, an arm's cost over the baseline's, and averaged on the log scale.

A run that ends before the target is *censored*: its cost is only known to be more than it had
spent. Leaving such runs out would flatter the slow arms. They are counted at what they had spent,
and the interval is open on the side where this says nothing, see `intervals.Measurement`.

The sampling error of a single evaluation would let a noisy curve cross a target too early. The
crossing is therefore that of the rising curve that fits all evaluations best (isotonic least
squares), linear between them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from workbench.analysis.curves import Curve, Unit, against, name_of, read
from workbench.analysis.intervals import LEVEL, Measurement
from workbench.analysis.metrics import finite
from workbench.utils.validation import brief


class Crossing(NamedTuple):
    """Where a run reached a target: `place`, or where it ended if it did not get there."""

    place: float
    reached: bool


def rising(scores: Any) -> np.ndarray:
    """The rising curve closest to the scores in least squares, (E,) float64.

    Neighbours that fall are replaced by their mean (pooling of adjacent violators).

    Examples
    --------
    >>> rising([0.1, 0.3, 0.2, 0.6]).tolist()
    [0.1, 0.25, 0.25, 0.6]
    """
    return isotonic_regression(finite("scores", scores, 1)).x


def crossing(places: Any, scores: Any, target: float) -> Crossing:
    """Where the rising fit of a curve reaches a target.

    Parameters
    ----------
    places : (E,) numbers, never falling
        Round, rollouts, ... at each evaluation.
    scores : (E,) numbers
    target : float

    Returns
    -------
    Crossing
        Linear between two evaluations. A curve that never reaches the target is censored at its
        last place.

    Raises
    ------
    ValueError
        When the curve begins at the target or above it: then no ratio of costs has a meaning.

    Examples
    --------
    >>> crossing([0, 10, 20], [0.2, 0.4, 0.6], 0.5)
    Crossing(place=15.0, reached=True)
    >>> crossing([0, 10, 20], [0.2, 0.4, 0.6], 0.7)
    Crossing(place=20.0, reached=False)
    """
    places = finite("places", places, 1)
    fit = rising(scores)
    if places.shape != fit.shape or (np.diff(places) < 0).any():
        raise ValueError(f"places: {brief(places)}; one rising place for each score is needed")
    if not np.isfinite(target):
        raise ValueError(f"target={brief(target)}: a finite number is needed")
    if fit[0] >= target:
        raise ValueError(f"target={target:g}: it must lie above {fit[0]:.3g}, where a run begins")
    # The fit never falls, so its last value is its highest.
    if fit[-1] < target:
        return Crossing(float(places[-1]), False)
    # The first evaluation at the target. It is not the first of all, which was refused above, and
    # the one before it lies strictly lower, so that the division is safe.
    after = int(np.argmax(fit >= target))
    before = after - 1
    share = (target - fit[before]) / (fit[after] - fit[before])
    return Crossing(float(places[before] + share * (places[after] - places[before])), True)


def ratio_to_target(arm: Any, baseline: Any, level: float = LEVEL) -> Measurement:
    """Costs of one arm over those of another, pair by pair, with censored runs counted.

    Parameters
    ----------
    arm, baseline : (n,) Crossing each
        Of the same seeds in the same order.
    level : float
        Probability of the interval.

    Returns
    -------
    Measurement
        On the scale "ratio". Below 1, the arm needs less than the baseline.

    Examples
    --------
    >>> arm = [Crossing(50, True), Crossing(60, False)]
    >>> ratio = ratio_to_target(arm, [Crossing(100, True), Crossing(100, True)])
    >>> round(ratio.value, 3), ratio.censored, ratio.high
    (0.548, 1, inf)
    """
    # Plain pairs of a place and whether it was reached will do as well.
    arm = [Crossing(*crossed) for crossed in arm]
    baseline = [Crossing(*crossed) for crossed in baseline]
    if len(arm) != len(baseline):
        raise ValueError(f"{len(arm)} and {len(baseline)} runs: pairs of runs are needed")
    # Where the arm did not get there its true cost, and so the ratio, is more; where the baseline
    # did not, the ratio is less. Where both did not, a pair is counted on both sides.
    ratios = [a.place / b.place for a, b in zip(arm, baseline)]
    return Measurement(
        np.array(ratios),
        scale="ratio",
        censored=np.array([not crossed.reached for crossed in arm]),
        censored_baseline=np.array([not crossed.reached for crossed in baseline]),
        level=level,
    )


def to_target(
    groups: Any,
    target: float,
    unit: str | Unit = "rollouts",
    *,
    baseline: str | None = None,
    y: str = "accuracy",
    level: float = LEVEL,
) -> pd.DataFrame:
    """What every arm spends until its held-out score reaches a target.

    Parameters
    ----------
    groups : dict from label to records
    target : float
        A score.
    unit : str or Unit
        See `curves.spent`.
    baseline : str, optional
        A label: the others are compared with it, seed by seed.
    y
        As in `curves.read`.
    level : float
        Probability of the intervals.

    Returns
    -------
    DataFrame, a row a label
        n (runs), reached (how many of them reached the target) and cost, the geometric mean over
        runs, in which a run that did not reach it counts with all it spent. With a baseline also
        ratio, low and high (on the log scale), pairs, censored (pairs whose run did not reach the
        target, so that the ratio is at least the value), censored_baseline (pairs whose baseline
        did not, so that it is at most the value) and p, the p-value of the test that the ratio
        is 1.

    Raises
    ------
    ValueError
        For a target at or below where a run begins, and for runs that cannot be compared.
    """
    curves = read(groups, y)
    crossed_by = {label: crossings(by_seed, target, unit) for label, by_seed in curves.items()}
    rows: dict[str, dict[str, float]] = {}
    for label, by_seed in crossed_by.items():
        places = np.array([crossed.place for crossed in by_seed.values()])
        rows[label] = {
            "n": len(by_seed),
            "reached": sum(crossed.reached for crossed in by_seed.values()),
            # The geometric mean, as for the ratios: then the ratio of two costs over the same
            # seeds is the mean ratio.
            "cost": float(np.exp(np.log(places).mean())),
        }
    for label, (mine, others) in against(crossed_by, baseline).items():
        measured = ratio_to_target(mine, others, level)
        rows[label] |= measured.columns("ratio", n="pairs") | measured.stopped()
        rows[label]["p"] = measured.p_value(1.0)
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.rename_axis(f"{y} {target:g}, {name_of(unit)}")


def crossings(by_seed: dict[int, Curve], target: float, unit: str | Unit) -> dict[int, Crossing]:
    """Where each seed's curve reaches the target: a dict from seed to `Crossing`.

    Parameters
    ----------
    by_seed : dict from seed to Curve
        Of one arm, as `curves.read` gives it.
    target : float
    unit : str or Unit
        What is counted to the target, see `curves.spent`.
    """
    return {
        seed: crossing(curve.places(unit), curve.scores, target) for seed, curve in by_seed.items()
    }
