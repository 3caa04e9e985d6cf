"""Tuning: the learning rate at which each arm of a comparison is at its best.

Every arm gets the same effort. It has one run at each rate of a coarse grid, whose neighbours
differ by a factor of two. Then it has one run at each of two further rates, which are the best one
divided and multiplied by the square root of two. Then further seeds follow. Each of them is run at
the better half of the rates that are left, and at three rates at least. Which runs come next
follows from those that are there, so that a tuning that was stopped goes on by itself.

The criterion is what the comparison measures: the cost to the target. A run that does not get there
counts with what it would have cost at the pace that it had, so that slow rates can be told apart.

The rate that is taken is the lowest point of a parabola through the runs near the best rate. A few
seeds cannot tell neighbouring rates apart, whose costs differ by more than many methods do. If the
best of the rates that were tried were taken, two arms that are the same would often end at
different rates, and the comparison would call one of them better. `docs/guides/trial-decisions.md`
has the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from workbench.analysis.curves import Curve, Unit
from workbench.analysis.targets import crossing, rising
from workbench.utils.numbers import to_digits
from workbench.utils.validation import brief, positive_number, whole_number

FACTORS = (0.25, 0.5, 1.0, 2.0)  # of the lab's rate, the coarse grid where nobody names one
FIRST_SEED = 1_000_000  # seeds from here on belong to tuning, and those below to comparisons
# Of a run's budget: what the baseline has reached by then is the default target. A run that takes
# 1.6 times as long still reaches it. One that does not reach it leaves the interval without an end.
SHARE = 0.6
LEAST_GAIN = 0.02  # accuracy above the start that a target needs
NEAR = 1.1  # rates whose cost is below so many times the best one's count as good
# The parabola goes through runs at rates that are within this factor of the best one, for the steps
# of the coarse grid.
NEIGHBOURS = 2.05
# A run that fails says that its rate is too high, and not by how much. So what it costs more than
# the best rate, on the log scale, counts as at most this.
HIGHEST = 0.35
FEWEST = 3  # rates that get every seed, since a parabola has three parameters
DIGITS = 3  # of a learning rate
# The most that tuning is taken to miss the lowest cost by, on the log scale, and what it is taken
# to miss it by where too few runs say.
LARGEST_ERROR = 0.05
UNKNOWN_ERROR = 0.02
# The error of a ratio is so many times that of its two tunings. With it ten equal arms that are
# tuned apart are called different in at most 5 % of trials (`docs/guides/trial-decisions.md`).
CARRIED = 2.0


class Point(NamedTuple):
    """What is tuned: the learning rate, and the optimizer steps of a round."""

    learning_rate: float
    mini_batches: int | None = None

    @property
    def name(self) -> str:
        """The name of its directory, such as lr=0.0009."""
        steps = "" if self.mini_batches is None else f",steps={self.mini_batches}"
        return f"lr={self.learning_rate:g}{steps}"

    def times(self, factor: float) -> Point:
        """The same point at another rate."""
        return self._replace(learning_rate=to_digits(self.learning_rate * factor, DIGITS))


Run = tuple[Point, int]  # a point, and the seed that it is tried with
Costs = Mapping[Run, float]  # the logarithm of what each run costs to the target


# Which runs come next: pure functions


def coarse_grid(
    lab_rate: float,
    rates: Iterable[float] | None = None,
    mini_batches: Iterable[int | None] = (None,),
) -> list[Point]:
    """The points that every arm is tried at first, in rising order.

    Parameters
    ----------
    lab_rate : float
        The lab's learning rate, around which the default grid lies.
    rates : numbers, optional
        Another grid.
    mini_batches : numbers
        Optimizer steps of a round that are tried with every rate; None for those of the run.

    Examples
    --------
    >>> [point.learning_rate for point in coarse_grid(8e-4)]
    [0.0002, 0.0004, 0.0008, 0.0016]
    """
    if rates is None:
        rates = [factor * lab_rate for factor in FACTORS]
    if not isinstance(rates, Iterable):
        raise ValueError(f"rates={brief(rates)}: several numbers are needed")
    rates = list(rates)
    steps = list(mini_batches)
    if not rates or not steps:
        raise ValueError("rates, mini_batches: at least one of each is needed")
    for rate in rates:
        positive_number("rates", rate)
    for number in steps:
        if number is not None:
            whole_number("mini_batches", number, 1)
    different = sorted({to_digits(rate, DIGITS) for rate in rates})
    return [Point(rate, each) for each in steps for rate in different]


def points_beside(best: Point) -> list[Point]:
    """The two points to try after the coarse grid, on both sides of its best one.

    Examples
    --------
    >>> [point.learning_rate for point in points_beside(Point(8e-4))]
    [0.000566, 0.00113]
    """
    return [best.times(math.sqrt(0.5)), best.times(math.sqrt(2))]


def points_by_stage(costs: Costs, coarse: Sequence[Point], seeds: Sequence[int]) -> list[list[Run]]:
    """The runs of each stage, as far as they are known: the grid, the further points, each seed.

    Parameters
    ----------
    costs : dict from (point, seed) to the logarithm of the cost
        Of the runs that are there; infinite for one that learnt nothing.
    coarse : list of Point
    seeds : list of int

    Returns
    -------
    list of (point, seed) for each stage
        The last one may be incomplete. All later ones follow from it.
    """
    stages = [[(point, seeds[0]) for point in coarse]]
    if not _complete(stages, costs):
        return stages
    best = min(coarse, key=lambda point: costs[point, seeds[0]])
    left = [*coarse, *(point for point in points_beside(best) if point not in coarse)]
    stages.append([(point, seeds[0]) for point in left[len(coarse) :]])
    for number, seed in enumerate(seeds[1:], start=1):
        if not _complete(stages, costs):
            return stages
        # `sorted` keeps the order of equal costs.
        known = seeds[:number]
        order = sorted(left, key=lambda point: mean_cost(costs, point, known))
        left = order[: _goes_on(len(left))]
        stages.append([(point, seed) for point in left])
    return stages


def next_runs(costs: Costs, coarse: Sequence[Point], seeds: Sequence[int]) -> list[Run]:
    """The runs that the tuning of an arm needs next, as (point, seed); none where it is complete.

    Examples
    --------
    >>> grid = coarse_grid(8e-4)
    >>> [(point.learning_rate, seed) for point, seed in next_runs({(grid[0], 7): 0.0}, grid, [7])]
    [(0.0004, 7), (0.0008, 7), (0.0016, 7)]
    """
    return [run for run in points_by_stage(costs, coarse, seeds)[-1] if run not in costs]


def effort(coarse: Sequence[Point], seeds: Sequence[int]) -> int:
    """The runs that the tuning of one arm takes, the same for every arm.

    It is less where the coarse grid is so dense that it has the further points already.

    >>> effort(coarse_grid(8e-4), [7, 8, 9])
    12
    """
    left = len(coarse) + 2
    runs = left
    for _ in seeds[1:]:
        left = _goes_on(left)
        runs += left
    return runs


def mean_cost(costs: Costs, point: Point, seeds: Iterable[int]) -> float:
    """The mean over the seeds that a point has; infinite where one of them is."""
    return float(np.mean([costs[point, seed] for seed in seeds if (point, seed) in costs]))


def _goes_on(rates: int) -> int:
    """How many of the rates that are left get the next seed: the better half, at least three."""
    return max(math.ceil(rates / 2), min(rates, FEWEST))


def _complete(stages: Sequence[Sequence[Run]], costs: Costs) -> bool:
    return all(run in costs for stage in stages for run in stage)


# What a run is worth


def log_cost(curve: Curve | None, target: float, unit: str | Unit) -> float:
    """The logarithm of what a run spends to the target.

    A run that does not reach it is taken to go on at the pace that it had; infinite where it ends
    no higher than it began, and for None, a run whose loss was not finite.
    """
    if curve is None:
        return math.inf
    places = curve.places(unit)
    fit = rising(curve.scores)
    if fit[0] >= target:
        # A single noisy evaluation, since a target lies above where runs begin.
        return math.log(places[1])
    crossed = crossing(places, curve.scores, target)
    if crossed.reached:
        return math.log(crossed.place)
    gained = fit[-1] - fit[0]
    if gained <= 0:
        return math.inf
    return math.log(crossed.place * (target - fit[0]) / gained)


def score_at_share(curve: Curve | None, unit: str | Unit) -> float:
    """The accuracy after three fifths of what a run spent, on the rising fit of its curve.

    Minus infinity for None.
    """
    if curve is None:
        return -math.inf
    places = curve.places(unit)
    return float(np.interp(SHARE * places[-1], places, rising(curve.scores)))


@dataclass(frozen=True)
class Tuning:
    """What the tuning of one arm found.

    Attributes
    ----------
    label : str
    best : Point
        The one that the comparison uses, see `lowest`.
    tried : Point
        The best one of those that were tried with all tuning seeds.
    low, high : float
        The range of learning rates around `tried` whose cost is within a tenth of its cost, and
        with `best` in it.
    at_edge : bool
        Whether `best` is the lowest or the highest rate of all, so that one beyond it may be better
        still.
    collapsed : float
        The share of runs that ended below where they began, or broke off since the loss was not
        finite.
    error, spread : float
        See `Parabola`.
    runs : DataFrame
        A row a run: learning_rate, mini_batches, seed, cost (to the target, extrapolated where it
        was not reached), reached, start, end (accuracies) and collapsed.
    """

    label: str
    best: Point
    tried: Point
    low: float
    high: float
    at_edge: bool
    collapsed: float
    error: float
    spread: float
    runs: pd.DataFrame

    @property
    def learning_rate(self) -> float:
        """The best learning rate."""
        return self.best.learning_rate

    def __str__(self) -> str:
        if not self.works:
            return f"{self.label}: at no learning rate did its accuracy rise"
        edge = " (the edge of what was tried)" if self.at_edge else ""
        return (
            f"{self.label}: best at a learning rate of {self.learning_rate:g}{edge}, and as good "
            f"within a tenth from {self.low:g} to {self.high:g}; {self.collapsed:.0%} of "
            f"{len(self.runs)} runs collapsed"
        )

    @property
    def best_cost(self) -> float:
        """The mean logarithm of the cost of the runs at the best rate that was tried."""
        rows = self.runs["learning_rate"] == self.tried.learning_rate
        return float(np.log(self.runs.loc[rows, "cost"]).mean())

    def error_against(self, other: Tuning) -> float:
        """How far the ratio of two arms may be off by tuning, on the log scale."""
        return CARRIED * math.hypot(self.error, other.error)

    @property
    def works(self) -> bool:
        """Whether any learning rate made the arm better than it began."""
        return bool(np.isfinite(self.runs["cost"]).any())


def choose_rate(
    label: str,
    runs: Mapping[Run, Curve | None],
    seeds: Sequence[int],
    target: float,
    unit: str | Unit,
) -> Tuning:
    """What the runs of a complete tuning say.

    Parameters
    ----------
    label : str
    runs : dict from (point, seed) to Curve
        None for a run whose loss was not finite.
    seeds : list of int
        Those of the tuning.
    target : float
    unit : str or Unit
    """
    rows = []
    costs = {}
    for (point, seed), curve in runs.items():
        costs[point, seed] = log_cost(curve, target, unit)
        # What is not finite has no scores.
        scores = np.full(2, np.nan) if curve is None else curve.scores
        row = {
            **point._asdict(),
            "seed": seed,
            "cost": math.exp(costs[point, seed]),
            "reached": curve is not None and bool(rising(scores)[-1] >= target),
            "start": float(scores[0]),
            "end": float(scores[-1]),
            "collapsed": not scores[-1] >= scores[0],
        }
        rows.append(row)
    table = pd.DataFrame(rows).sort_values(["mini_batches", "learning_rate", "seed"])
    tried = best_tried(costs, seeds)
    beside = sorted({point for point, _ in runs if point.mini_batches == tried.mini_batches})
    limit = mean_cost(costs, tried, seeds) + math.log(NEAR)
    bad = [point.learning_rate for point in beside if mean_cost(costs, point, seeds) > limit]
    below = max((rate for rate in bad if rate < tried.learning_rate), default=0.0)
    above = min((rate for rate in bad if rate > tried.learning_rate), default=math.inf)
    rates = [point.learning_rate for point in beside]
    best = lowest(costs, tried)
    good = [best.learning_rate, *(rate for rate in rates if below < rate < above)]
    fit = parabola(costs, tried)
    return Tuning(
        label=label,
        best=best,
        tried=tried,
        low=min(good),
        high=max(good),
        at_edge=best.learning_rate in (rates[0], rates[-1]),
        collapsed=float(table["collapsed"].mean()),
        error=fit.error if fit else UNKNOWN_ERROR,
        spread=fit.spread if fit else math.nan,
        runs=table.reset_index(drop=True),
    )


def best_tried(costs: Costs, seeds: Sequence[int]) -> Point:
    """Of the points that have all seeds, the one that costs least."""
    whole = {point for point, _ in costs if all((point, seed) in costs for seed in seeds)}
    # Of equal ones the lowest rate.
    return min(sorted(whole), key=lambda point: mean_cost(costs, point, seeds))


class Parabola(NamedTuple):
    """A parabola through what runs cost, log cost by log(rate / best rate that was tried).

    Attributes
    ----------
    coefficients : (3,) float64
        The highest power first.
    error : float
        How far above the lowest cost its lowest point is expected to be, on the log scale: the
        curvature times the variance of the place of this point.
    spread : float
        Standard deviation of the runs around it; NaN where three rates have a run each.
    """

    coefficients: np.ndarray
    error: float
    spread: float


def parabola(costs: Costs, tried: Point) -> Parabola | None:
    """A parabola through what the runs near the best rate cost.

    Parameters
    ----------
    costs : dict from (point, seed) to the logarithm of the cost
    tried : Point
        The best one that was tried. The runs at rates from half to twice this one's count, with as
        many mini-batches.

    Returns
    -------
    Parabola or None
        None where the runs have fewer than three rates, or no lowest point between them.
    """
    highest = mean_cost(costs, tried, {seed for point, seed in costs if point == tried}) + HIGHEST
    distances, heights = [], []
    for (point, _), cost in costs.items():
        distance = math.log(point.learning_rate / tried.learning_rate)
        if point.mini_batches == tried.mini_batches and abs(distance) <= math.log(NEIGHBOURS):
            distances.append(distance)
            heights.append(min(cost, highest))
    if len(set(distances)) < 3 or not math.isfinite(highest):
        return None
    coefficients, unscaled = np.polyfit(distances, heights, 2, cov="unscaled")
    curvature, slope, _ = coefficients
    if curvature <= 0:
        return None
    squares = float(np.square(np.polyval(coefficients, distances) - heights).sum())
    freedom = len(distances) - 3
    error = UNKNOWN_ERROR
    if freedom > 2:
        # How the lowest point, -slope / (2 curvature), moves with the coefficients. Few runs may
        # lie close together by chance, so two degrees of freedom more are taken away.
        moves = np.array([slope / curvature, -1.0, 0.0]) / (2 * curvature)
        place = moves @ unscaled @ moves * squares / (freedom - 2)
        error = min(float(curvature * place), LARGEST_ERROR)
    spread = math.sqrt(squares / freedom) if freedom else math.nan
    return Parabola(coefficients, error, spread)


def lowest(costs: Costs, tried: Point) -> Point:
    """The lowest point of the parabola through what the runs near the best rate cost.

    Parameters
    ----------
    costs, tried
        As in `parabola`.

    Returns
    -------
    Point
        At most half a step of the coarse grid away from `tried`, and not beyond the rates that were
        tried; `tried` itself where there is no parabola.

    Examples
    --------
    >>> costs = {(Point(rate), 7): cost for rate, cost in [(5e-4, 0.3), (1e-3, 0.0), (2e-3, 0.2)]}
    >>> lowest(costs, Point(1e-3)).learning_rate
    0.00107
    """
    fit = parabola(costs, tried)
    if fit is None:
        return tried
    rates = [point.learning_rate for point, _ in costs if point.mini_batches == tried.mini_batches]
    half_a_step = math.sqrt(2)
    bottom = max(min(rates), tried.learning_rate / half_a_step)
    top = min(max(rates), tried.learning_rate * half_a_step)
    curvature, slope, _ = fit.coefficients
    rate = tried.learning_rate * math.exp(-slope / (2 * curvature))
    return tried._replace(learning_rate=to_digits(min(max(rate, bottom), top), DIGITS))


def default_target(
    runs: Mapping[Run, Curve | None], seeds: Sequence[int], unit: str | Unit
) -> float:
    """What the baseline reaches after three fifths of its budget, at the best of its rates.

    Parameters
    ----------
    runs, seeds, unit
        As in `choose_rate`.

    Returns
    -------
    float
        With two digits after the point, rounded down.
    """
    scores = {
        point: np.mean([score_at_share(runs[point, seed], unit) for seed in seeds])
        for point, _ in runs
        if all((point, seed) in runs for seed in seeds)
    }
    best = max(scores.values())
    # In binary 100 * .57 is a little less than 57, and would lose a whole hundredth.
    return math.floor(100 * best + 1e-9) / 100 if math.isfinite(best) else -math.inf
