"""Tuning: which runs come next, that every arm gets the same effort, and what the runs say."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.analysis.curves import Curve
from workbench.trials import tuning
from workbench.trials.tuning import Point, choose_rate, coarse_grid, effort, next_runs

SEEDS = [7, 8, 9]


def rates(runs):
    return [point.learning_rate for point, _ in runs]


def all_stages(cost, coarse, seeds):
    """The stages of a tuning in which a run costs what `cost` says."""
    known, made = {}, []
    while missing := next_runs(known, coarse, seeds):
        made.append(missing)
        known |= {(point, seed): cost(point, seed) for point, seed in missing}
    return made


def test_the_grid_then_the_rates_beside_the_best_then_seeds_for_the_better_half():
    coarse = coarse_grid(4e-4)
    # The cost is lowest at 3e-4, and rises evenly on the log scale.
    stages = all_stages(lambda p, _: abs(math.log(p.learning_rate / 3e-4)), coarse, SEEDS)
    assert rates(stages[0]) == [1e-4, 2e-4, 4e-4, 8e-4]
    assert rates(stages[1]) == [2.83e-4, 5.66e-4]
    assert rates(stages[2]) == [2.83e-4, 4e-4, 2e-4]
    # A parabola needs three rates.
    assert rates(stages[3]) == [2.83e-4, 4e-4, 2e-4]
    assert [{seed for _, seed in stage} for stage in stages] == [{7}, {7}, {8}, {9}]


def test_of_an_odd_number_of_rates_the_middle_one_goes_on():
    # Five and two beside the best, then four of the seven, then three.
    coarse = coarse_grid(1e-3, [1e-3 * 2**k for k in range(5)])
    assert effort(coarse, SEEDS) == 7 + 4 + 3


@pytest.mark.parametrize("best, beside", [(8e-4, [5.66e-4, 1.13e-3]), (1e-4, [7.07e-5, 1.41e-4])])
def test_both_sides_of_the_best_rate_are_tried_where_it_is_the_first_or_the_last(best, beside):
    stages = all_stages(
        lambda p, _: abs(math.log(p.learning_rate / best)), coarse_grid(4e-4), SEEDS[:1]
    )
    assert rates(stages[1]) == beside


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 4))
def test_every_arm_gets_the_same_effort_whatever_its_runs_say(luck, n_rates, n_seeds):
    rng = np.random.default_rng(luck)
    coarse = coarse_grid(1e-3, [1e-3 * 2**k for k in range(n_rates)])
    seeds = list(range(n_seeds))
    stages = all_stages(lambda *_: rng.choice([math.inf, rng.normal()]), coarse, seeds)
    runs = [run for stage in stages for run in stage]
    assert len(runs) == len(set(runs)) == effort(coarse, seeds)
    assert len(stages) == 1 + len(seeds)


def test_mini_batches_are_a_second_axis_and_only_the_best_is_refined():
    coarse = coarse_grid(4e-4, [2e-4, 4e-4, 8e-4], [1, 4])
    costs = {(point, 7): abs(math.log(point.learning_rate / 4e-4)) for point in coarse}
    costs[Point(4e-4, 4), 7] = -1.0
    assert next_runs(costs, coarse, [7]) == [(Point(2.83e-4, 4), 7), (Point(5.66e-4, 4), 7)]


@pytest.mark.parametrize(
    "arguments, message",
    [((1e-3, [0.0]), "rates"), ((1e-3, []), "rates"), ((1e-3, None, [0]), "mini_batches")],
)
def test_wrong_grids_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        coarse_grid(*arguments)


# What runs say


def curve(*scores):
    """A run that samples 100 rollouts a round and is evaluated after each."""
    rounds = np.arange(len(scores))
    table = pd.DataFrame({"round": rounds[1:], "rollouts": 100})
    return Curve("a", 0, rounds, np.array(scores), table, Path("a"))


def test_a_run_that_falls_short_counts_with_its_pace_and_one_without_any_is_infinite():
    def cost(*scores):
        return math.exp(tuning.log_cost(curve(*scores), 0.5, "rollouts"))

    assert cost(0.2, 0.4, 0.6) == pytest.approx(150)
    # It has made half of the way in 200 rollouts.
    assert cost(0.2, 0.3, 0.35) == pytest.approx(400)
    assert cost(0.4, 0.3, 0.2) == math.inf
    # One that begins at the target has it at its first evaluation.
    assert cost(0.5, 0.6, 0.7) == pytest.approx(100)
    # One whose loss was not finite, and one that never leaves its start, make no way.
    assert tuning.log_cost(None, 0.5, "rollouts") == math.inf
    assert cost(0.4, 0.4, 0.4) == math.inf


def test_what_was_tried_has_all_seeds_and_its_range_is_within_a_tenth():
    runs = {}
    # Rollouts to .5 at the second seed too, except for the rate that halving has left behind.
    for rate, slope in [(1e-4, 0.05), (2e-4, 0.1), (2.83e-4, 0.107), (4e-4, 0.08)]:
        for seed in (7, 8):
            runs[Point(rate), seed] = curve(*(0.2 + slope * np.arange(5)))
    runs[Point(8e-4), 7] = curve(0.2, 0.6, 0.1, 0.1, 0.1)
    runs[Point(1.6e-3), 7] = None
    found = choose_rate("a", runs, (7, 8), 0.5, "rollouts")
    assert found.tried == Point(2.83e-4)
    assert (found.low, found.high) == (2e-4, 2.83e-4)
    assert found.low <= found.learning_rate <= found.high
    assert not found.at_edge and found.works
    assert found.collapsed == pytest.approx(2 / 10)
    assert len(found.runs) == 10
    row = found.runs.set_index(["learning_rate", "seed"]).loc[(2e-4, 7)]
    assert (row["cost"], row["reached"]) == (pytest.approx(300), True)
    # A run that ends where it began has not collapsed, and one that ends at the target reached it.
    level = choose_rate("a", {(Point(1e-3), 7): curve(0.3, 0.4, 0.3)}, (7,), 0.4, "rollouts").runs
    assert (level["collapsed"].item(), level["reached"].item()) == (False, False)
    risen = choose_rate("a", {(Point(1e-3), 7): curve(0.3, 0.3, 0.4)}, (7,), 0.4, "rollouts").runs
    assert risen["reached"].item()
    # Without any learning nothing works.
    assert not choose_rate("a", {(Point(1e-3), 7): None}, (7,), 0.5, "rollouts").works


def test_a_rate_is_as_good_within_a_tenth_and_the_last_ones_are_edges():
    def found(rollouts):
        """By learning rate, the rollouts after which a run has made .3 of accuracy."""
        runs = {
            (Point(rate), 7): curve(*(0.2 + 30 / needed * np.arange(6)))
            for rate, needed in rollouts.items()
        }
        return choose_rate("a", runs, (7,), 0.5, "rollouts")

    beside = found({5e-4: 324, 1e-3: 300, 2e-3: 345})
    assert (beside.low, beside.high, beside.at_edge) == (5e-4, 1e-3, False)
    assert found({1e-3: 400, 2e-3: 300}).at_edge
    assert found({1e-3: 300, 2e-3: 400}).at_edge


def parabola(bottom, rates=(2.5e-4, 5e-4, 7.07e-4, 1e-3, 1.41e-3, 2e-3)):
    """Costs of runs that lie on a parabola over the logarithm of the rate."""
    return {(Point(rate), 7): math.log(rate / bottom) ** 2 / 4 for rate in rates}


@pytest.mark.parametrize("bottom", [8e-4, 1e-3, 1.2e-3])
def test_the_rate_that_is_taken_is_the_lowest_point_of_a_parabola(bottom):
    assert tuning.lowest(parabola(bottom), Point(1e-3)).learning_rate == pytest.approx(
        bottom, rel=0.01
    )


def test_the_rate_that_is_taken_is_none_below_those_tried():
    rates = (2.5e-4, 3.5e-4, 5e-4)
    assert tuning.lowest(parabola(2e-4, rates), Point(2.5e-4)) == Point(2.5e-4)
    assert tuning.lowest(parabola(6e-4, rates), Point(5e-4)) == Point(5e-4)


@pytest.mark.parametrize("bottom, taken", [(3e-4, 7.07e-4), (3e-3, 1.41e-3)])
def test_the_rate_that_is_taken_is_within_half_a_step_of_the_best_one(bottom, taken):
    # The parabola is lowest far away from the rate that was the best one of those tried.
    assert tuning.lowest(parabola(bottom), Point(1e-3)).learning_rate == taken


@given(st.lists(st.floats(-5, 5) | st.just(math.inf), min_size=6, max_size=6))
def test_the_rate_that_is_taken_is_near_the_best_one_and_among_those_tried(costs):
    runs = dict(zip(parabola(1e-3), costs))
    best = min(runs, key=lambda run: runs[run])[0]
    found = tuning.lowest(runs, best).learning_rate
    assert abs(math.log(found / best.learning_rate)) <= math.log(2) / 2 + 0.01
    assert 2.5e-4 <= found <= 2e-3


def test_a_rate_that_fails_counts_the_same_however_badly_and_other_mini_batches_not_at_all():
    costs = parabola(9e-4)
    expected = tuning.lowest(costs | {(Point(2e-3), 7): 0.5}, Point(1e-3))
    for failed in (0.36, 3.0, math.inf):
        assert tuning.lowest(costs | {(Point(2e-3), 7): failed}, Point(1e-3)) == expected
    others = {(Point(rate, 4), 7): 0.01 for rate in (5e-4, 1e-3)}
    assert tuning.lowest(costs | others, Point(1e-3)) == tuning.lowest(costs, Point(1e-3))


@pytest.mark.parametrize(
    "costs",
    [
        {5e-4: 0.2, 1e-3: 0.0},
        {5e-4: 0.1, 1e-3: 0.0, 2e-3: -0.3},
        {5e-4: math.inf, 1e-3: math.inf, 2e-3: math.inf},
    ],
    ids=["two rates", "no lowest point", "nothing works"],
)
def test_without_a_parabola_the_best_rate_of_those_tried_is_taken(costs):
    runs = {(Point(rate), 7): cost for rate, cost in costs.items()}
    assert tuning.lowest(runs, Point(1e-3)) == Point(1e-3)


def test_the_target_is_what_the_best_rate_reaches_in_three_fifths_of_the_rollouts():
    runs = {(Point(1e-4), 7): curve(0.2, 0.3, 0.4, 0.5, 0.6)}
    runs[Point(2e-4), 7] = curve(0.2, 0.35, 0.45, 0.555, 0.6)
    runs[Point(3e-4), 7] = None  # its loss was not finite
    # A better one that lacks a seed of the tuning does not count.
    runs[Point(4e-4), 8] = curve(0.2, 0.5, 0.6, 0.7, 0.8)
    # 240 rollouts are two fifths of the way from .45 to .555.
    assert tuning.default_target(runs, [7], "rollouts") == 0.49


def test_the_error_is_what_the_rate_that_is_found_costs_above_the_best_one():
    """Known runs: the lowest point of a parabola is missed by chance alone."""
    rng = np.random.default_rng(0)
    missed, said, spreads = [], [], []
    for _ in range(300):
        runs = {
            (point, seed): cost + rng.normal(0, 0.05)
            for (point, _), cost in parabola(9e-4).items()
            for seed in range(4)
        }
        fit = tuning.parabola(runs, Point(1e-3))
        found = 1e-3 * math.exp(-fit.coefficients[1] / (2 * fit.coefficients[0]))
        missed.append(math.log(found / 9e-4) ** 2 / 4)
        said.append(fit.error)
        spreads.append(fit.spread)
    assert np.mean(said) == pytest.approx(np.mean(missed), rel=0.5)
    assert np.median(spreads) == pytest.approx(0.05, rel=0.15)
    # A handful of runs says nothing of its error, and runs without noise miss nothing.
    few = {run: cost for run, cost in parabola(9e-4).items() if 5e-4 <= run[0].learning_rate}
    assert tuning.parabola(few, Point(1e-3)).error == tuning.UNKNOWN_ERROR
    exact = {(point, seed): cost for (point, _), cost in parabola(9e-4).items() for seed in (7, 8)}
    assert tuning.parabola(exact, Point(1e-3)).error < 1e-9


@pytest.mark.parametrize("reached", [0.29, 0.57, 0.58])
def test_a_target_of_whole_hundredths_is_not_rounded_down_further(reached):
    runs = {(Point(1e-4), 7): curve(0.2, *[reached] * 5)}
    assert tuning.default_target(runs, [7], "rollouts") == reached
