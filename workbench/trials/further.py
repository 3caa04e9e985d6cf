"""When it pays to go on: which other number would decide a trial that ended open, at which cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from workbench.analysis.curves import Curve
from workbench.analysis.intervals import Measurement
from workbench.analysis.sequential import BAND
from workbench.analysis.targets import rising
from workbench.trials.tuning import LEAST_GAIN

POWER = 0.8
MOST_PAIRS = 200  # more than these nobody makes for one idea
MOST_TIMES = 4  # longer runs than so many times these follow no pace that was seen


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
    ratios: Measurement, curves: Sequence[Curve], target: float, level: float
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
    """
    if ratios.censored + ratios.censored_baseline:
        return _reach_it(curves, target)
    logs = np.log(ratios.values)
    deviation, distance = float(logs.std(ddof=1)), abs(float(logs.mean()))

    def pairs_for(room: float, power: float) -> float:
        """So many pairs make an interval whose end is less than `room` away from the ratio."""
        width = deviation * (special.ndtri(1 - level / 2) + special.ndtri(power))
        return (width / room) ** 2 if room > 0 else math.inf

    different = pairs_for(distance, POWER)
    # The interval may leave the band around 1 on either side.
    alike = pairs_for(math.log(1 + BAND) - distance, (1 + POWER) / 2)
    if not 0 < min(different, alike) <= MOST_PAIRS:
        return ()
    # Two more, since few pairs do not know their deviation.
    pairs = math.ceil(min(different, alike)) + 2
    word = "alike" if alike < different else "better" if ratios.value < 1 else "worse"
    text = f"{pairs} fresh pairs in one look would call it {word} in four trials of five"
    return (_step(curves, 2 * pairs, text, change="seeds", to=pairs, verdict=word),)


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
