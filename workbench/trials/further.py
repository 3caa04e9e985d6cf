"""When it pays to go on: which other number would decide a trial that ended open, at which cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from workbench.analysis.curves import Curve
from workbench.analysis.intervals import POWER, Measurement
from workbench.analysis.sequential import BAND, nominal_levels
from workbench.analysis.targets import rising
from workbench.trials.tuning import LEAST_GAIN

MOST_PAIRS = 200  # nobody makes more for one idea
ENDS = (0.1, 0.5, 0.9)  # the quantiles that `likely_pairs` tells
TRIALS = 400  # that it simulates
MOST_TIMES = 4  # runs that are more than so many times longer may not keep the pace that was seen


class Step(NamedTuple):
    """A number of a trial that would decide it, in another trial on fresh seeds.

    Attributes
    ----------
    change : str
        The argument of `trial`: "seeds", "target" or "rounds".
    to : float
        Its value.
    runs : int
        Of the comparison. Tuning is to be added.
    rollouts, seconds : float
        Sampled in these runs, and of training in them, one after the other.
    text : str
    verdict : str
        What would be found in four trials of five, if the ratio is as measured; empty where only
        the new runs can tell.
    """

    change: str
    to: float
    runs: int
    rollouts: float
    seconds: float
    text: str
    verdict: str = ""


def steps(
    ratios: Measurement, curves: Sequence[Curve], target: float, level: float, error: float = 0.0
) -> tuple[Step, ...]:
    """What would decide an arm whose trial ended open.

    Parameters
    ----------
    ratios : Measurement
        Costs over the baseline's, a value a pair.
    curves : list of Curve
        Of all these runs, those of the baseline included.
    target : float
    level : float
        Of the next trial.
    error : float
        Of tuning, as in `sequential.readings`; that of the next trial is taken to be as large.
    """
    if ratios.censored + ratios.censored_baseline:
        return _reach_it(curves, target)
    logs = np.log(ratios.values)
    deviation, distance = float(logs.std(ddof=1)), abs(float(logs.mean()))

    def pairs_for(room: float, power: float) -> float:
        """So many pairs make an interval whose end is less than `room` away from the ratio."""
        width = deviation * (special.ndtri(1 - level / 2) + special.ndtri(power))
        return (width / room) ** 2 if room > 0 else math.inf

    different = pairs_for(distance - error, POWER)
    # The interval may leave the band around 1 on either side.
    alike = pairs_for(math.log(1 + BAND) - error - distance, (1 + POWER) / 2)
    if not 0 < min(different, alike) <= MOST_PAIRS:
        return ()
    # Two more, since few pairs do not know their deviation.
    pairs = math.ceil(min(different, alike)) + 2
    word = "alike" if alike < different else "better" if ratios.value < 1 else "worse"
    text = f"{pairs} fresh pairs in one look would call it {word} in four trials of five"
    return (_step(curves, 2 * pairs, text, change="seeds", to=pairs, verdict=word),)


def likely_pairs(
    mean: float,
    doubt: float,
    deviation: float,
    looks: Sequence[int],
    level: float,
    *,
    seen: Sequence[float] = (),
    error: float = 0.0,
) -> np.ndarray:
    """How many pairs an arm takes: at least, likely and at most, in four trials of five.

    Chance alone spreads this far. An arm that needs 15 % less is found after 6 pairs or after 20.

    Parameters
    ----------
    mean, doubt : float
        The logarithm of its ratio as far as it is known, and the standard error of that.
    deviation : float
        Of the logarithm of the ratio from pair to pair.
    looks, level
        As in `sequential.nominal_levels`.
    seen : numbers
        The logarithms of the ratios of the pairs that are there.
    error : float
        As in `sequential.readings`.

    Returns
    -------
    (3,) float64

    Examples
    --------
    >>> likely_pairs(-0.5, 0.05, 0.13, range(5, 21), 0.05).tolist()
    [5.0, 5.0, 6.0]
    """
    rng = np.random.default_rng(0)
    logs = rng.normal(rng.normal(mean, doubt, (TRIALS, 1)), deviation, (TRIALS, looks[-1]))
    logs[:, : len(seen)] = seen
    n = np.array(looks)
    means = logs.cumsum(axis=1)[:, n - 1] / n
    variances = ((logs**2).cumsum(axis=1)[:, n - 1] - n * means**2) / (n - 1)
    reach = special.stdtrit(n - 1, 1 - nominal_levels(looks, level) / 2)
    reach = reach * np.sqrt(np.maximum(variances, 0) / n) + error
    known = (reach <= abs(means)) | (reach + abs(means) <= np.log1p(BAND))
    known[:, n <= len(seen)] = False  # it goes on
    known[:, -1] = True
    return np.quantile(n[known.argmax(axis=1)], ENDS)


def _reach_it(curves: Sequence[Curve], target: float) -> tuple[Step, ...]:
    """A lower target, which all runs reached, and longer runs, which would all reach this one."""
    fits = [rising(curve.scores) for curve in curves]
    found = []
    lower = math.floor(100 * min(fit[-1] for fit in fits)) / 100
    if max(fit[0] for fit in fits) + LEAST_GAIN <= lower < target:
        text = f"a target of {lower:g} was reached by all of these runs"
        found.append(_step(curves, len(curves), text, change="target", to=lower))
    gains = [fit[-1] - fit[0] for fit in fits]
    if min(gains) > 0:
        times = float(max((target - fit[0]) / gain for fit, gain in zip(fits, gains)))
        if 1 < times <= MOST_TIMES:
            rounds = math.ceil(times * max(int(curve.rounds[-1]) for curve in curves))
            text = f"in {rounds} rounds all of them would reach this one at their pace"
            found.append(_step(curves, len(curves), text, times, change="rounds", to=rounds))
    return tuple(found)


def _step(curves: Sequence[Curve], runs: int, text: str, times: float = 1, **fields: Any) -> Step:
    """A step with its cost, which is that of runs so many times as long as those that are there."""
    mean = pd.concat([curve.table for curve in curves])[["rollouts", "seconds"]].sum() / len(curves)
    rollouts, seconds = (mean * runs * times).tolist()
    text = f"{text} ({runs} runs with {rollouts:,.0f} rollouts, and tuning)"
    return Step(**fields, runs=runs, rollouts=rollouts, seconds=seconds, text=text)
