"""Where a learning curve is going: accuracy at a budget beyond the run, and the ceiling.

A sigmoid in the spending C is fitted to the evaluations of an arm (arXiv 2510.13786):

    accuracy(C) = start + (ceiling - start) / (1 + (middle / C) ^ exponent)

The interval around a forecast has three parts: what the seeds say by leaving out one after the
other, an error that every forecast has, and one that grows with the logarithm of how far ahead it
looks. Their sizes were found on recorded runs, so that nine of ten forecasts hold for methods that
were left out (`data/forecasts.csv`, made by `python -m papers.forecasts`).

A ceiling is never seen, so its interval cannot be tried in the same way. It is that of the farthest
budget that may be forecast, moved up to the ceiling of the fit at its upper end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from workbench.analysis.curves import Curve, Unit
from workbench.utils.validation import positive_number

# Forecasts were tried up to so many times the budget of a run, and with so many evaluations of it.
FARTHEST = 4.0
FEWEST = 5
AHEAD = 2  # times the budget of a run, where nobody says how far a forecast is to look
EXPONENTS = np.geomspace(1, 3, 17)
MIDDLES = np.geomspace(0.03, 10, 97)  # in budgets of the run
# The parts of the standard error, beside that of the seeds: of every forecast, and by log(budget /
# budget of the run). A single run has no spread over seeds, and gets that of recorded ones.
ERROR = 0.02
ERROR_BY_DISTANCE = 0.08
ERROR_OF_ONE_SEED = 0.05
HALF_WIDTH = 1.48  # standard errors to each side for nine of ten
WIDEST = 0.6  # an interval that is wider says nothing


class Forecast(NamedTuple):
    """What is expected of an arm that trains on.

    Attributes
    ----------
    budget : float
        What will have been spent.
    value, low, high : float
        Mean accuracy over seeds at this budget, and its interval of 90 %; NaN where `why` says why.
    ceiling, ceiling_low, ceiling_high : float
        Accuracy that the curve approaches. NaN where the run has not come half of its way there,
        since its end may then be anywhere.
    seeds : int
    why : str
        Why there is no forecast; empty where there is one.
    """

    budget: float
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    ceiling: float = math.nan
    ceiling_low: float = math.nan
    ceiling_high: float = math.nan
    seeds: int = 0
    why: str = ""


class Sigmoid(NamedTuple):
    """A fitted curve; `middle` is where it has come half of its way."""

    start: float
    ceiling: float
    middle: float
    exponent: float

    def at(self, places: Any) -> np.ndarray:
        """The accuracy when so much had been spent, of the shape of `places`."""
        with np.errstate(divide="ignore"):
            share = 1 / (1 + (self.middle / np.asarray(places, float)) ** self.exponent)
        return self.start + (self.ceiling - self.start) * share


def fit(places: np.ndarray, scores: np.ndarray) -> Sigmoid:
    """The sigmoid closest to an arm's evaluations in least squares.

    Parameters
    ----------
    places : (E,) float64
        What had been spent at each evaluation; 0 at the first one, whose score is the start.
    scores : (E,) float64
        Between 0 and 1.

    Examples
    --------
    >>> places = np.array([0, 20, 40, 60, 80, 100])
    >>> curve = fit(places, Sigmoid(0.2, 0.9, 50, 2).at(places))
    >>> round(curve.ceiling, 2), round(float(curve.at(200)), 2)
    (0.91, 0.87)
    """
    start = scores[0]
    spent, gained = places[1:], scores[1:] - start
    exponent, middle = np.meshgrid(EXPONENTS, MIDDLES * places[-1], indexing="ij")
    share = 1 / (1 + (middle[..., None] / spent) ** exponent[..., None])
    # Given exponent and middle, the height is a regression through the origin.
    height = (share * gained).sum(-1) / (share**2).sum(-1)
    height = np.clip(height, 0, 1 - start)
    misfit = ((height[..., None] * share - gained) ** 2).sum(-1)
    best = np.unravel_index(misfit.argmin(), misfit.shape)
    return Sigmoid(
        float(start), float(start + height[best]), float(middle[best]), float(exponent[best])
    )


def forecast(places: Any, scores: Any, budget: float) -> Forecast:
    """Where the mean accuracy of an arm will be when more has been spent.

    Parameters
    ----------
    places : (E,) numbers, rising from 0
        What had been spent at each evaluation.
    scores : (seeds, E) numbers
        The accuracy of every run there.
    budget : float
        In the unit of `places`.

    Raises
    ------
    ValueError
        For arrays of other shapes, and a budget that is not above 0.

    Examples
    --------
    >>> curve = [0.24, 0.35, 0.50, 0.60, 0.67, 0.72]
    >>> runs = [curve, [score + 0.01 for score in curve]]
    >>> ahead = forecast([0, 12, 24, 36, 48, 60], runs, budget=120)
    >>> round(ahead.low, 2), round(ahead.value, 2), round(ahead.high, 2)
    (0.74, 0.82, 0.91)
    >>> forecast([0, 12, 24, 36, 48, 60], runs, budget=600).why
    'at most 4 times what the runs have spent can be forecast'
    """
    places = np.asarray(places, float)
    scores = np.asarray(scores, float)
    positive_number("budget", budget)
    if places.ndim != 1 or scores.shape[1:] != places.shape or not len(scores):
        raise ValueError(
            f"scores: shape {scores.shape}; a row a seed with a score for each of the "
            f"{places.size} places is needed"
        )
    mean = scores.mean(axis=0)
    refused = Forecast(budget, seeds=len(scores))
    if not len(places) or places[0] != 0 or (np.diff(places) <= 0).any():
        why = "an evaluation before the first round is needed, and spending after each round"
        return refused._replace(why=why)
    if len(places) < FEWEST:
        return refused._replace(why=f"{len(places)} evaluations are too few; {FEWEST} are needed")
    if budget > FARTHEST * places[-1] * (1 + 1e-9):
        why = f"at most {FARTHEST:g} times what the runs have spent can be forecast"
        return refused._replace(why=why)
    # Above its start by more than the noise of a single evaluation.
    if mean[-1] - mean[0] < 2 * ERROR:
        return refused._replace(why="its accuracy has not risen")
    curve = fit(places, mean)
    farthest = FARTHEST * places[-1]
    ends = np.array([budget, farthest])
    value, far = curve.at(ends)
    # By leaving out each seed in turn (the jackknife).
    n = len(scores)
    by_seeds = np.full(2, ERROR_OF_ONE_SEED)
    if n > 1:
        without = [
            fit(places, np.delete(scores, i, axis=0).mean(axis=0)).at(ends) for i in range(n)
        ]
        by_seeds = np.std(without, axis=0) * math.sqrt(n - 1)
    by_distance = ERROR_BY_DISTANCE * np.log(np.maximum(ends / places[-1], 1))
    half, half_far = HALF_WIDTH * np.sqrt(by_seeds**2 + ERROR**2 + by_distance**2)
    if 2 * half > WIDEST:
        return refused._replace(why="its runs differ too much from one another")
    low, high = max(float(value - half), 0.0), min(float(value + half), 1.0)
    ceiling = (math.nan, math.nan, math.nan)
    if curve.middle <= places[-1]:
        # A curve that never falls ends at least as high as it will be at the budget.
        lowest = max(float(far - half_far), low)
        ceiling = (curve.ceiling, lowest, min(curve.ceiling + float(half_far), 1.0))
    return Forecast(budget, float(value), low, high, *ceiling, n)


def of_curves(by_seed: Mapping[int, Curve], budget: float, unit: str | Unit = "round") -> Forecast:
    """The forecast of one arm from its curves, a dict from seed to Curve as `curves.read` gives.

    What its runs have spent is averaged over seeds, and evaluations that not all of them have are
    left out.
    """
    curves = list(by_seed.values())
    common = sorted(set.intersection(*(set(curve.rounds.tolist()) for curve in curves)))
    keep = [np.isin(curve.rounds, common) for curve in curves]
    places = np.mean([curve.places(unit)[kept] for curve, kept in zip(curves, keep)], axis=0)
    scores = np.array([curve.scores[kept] for curve, kept in zip(curves, keep)])
    return forecast(places, scores, budget)
