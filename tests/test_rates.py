"""How simulated trials end, and what tuning leaves undecided."""

import math

import numpy as np
import pandas as pd
import pytest

from papers import rates
from papers.looks import ended
from workbench.analysis.curves import Curve
from workbench.analysis.sequential import LOOKS, nominal_levels
from workbench.trials.tuning import Point, coarse_grid, lowest


@pytest.mark.parametrize(
    ("mean", "spread", "expected"),
    [
        (-0.5, 0.01, (1, 0, 0, LOOKS[0])),
        (0.5, 0.01, (0, 1, 0, LOOKS[0])),
        (0.0, 0.001, (0, 0, 1, LOOKS[0])),
        (0.0, 0.0, (0, 0, 1, LOOKS[0])),
        (0.0, 100.0, (0, 0, 0, LOOKS[-1])),
    ],
    ids=["less", "more", "alike", "equal runs", "nothing known"],
)
def test_how_trials_end_is_counted_by_their_direction(mean, spread, expected):
    # Signs in turn: no look finds a difference that is not there.
    signs = np.resize([1.0, -1.0], LOOKS[-1])
    assert ended(np.array([mean + spread * signs]), nominal_levels()) == expected


def curves(noise=0.0):
    """Runs whose cost to .5 is lowest at 1e-3, and the same for all seeds unless there is noise."""
    rng = np.random.default_rng(0)
    curves = {}
    for rate in (2.25e-4, 4.5e-4, 6.36e-4, 9e-4, 1e-3, 1.27e-3, 1.8e-3, 2.55e-3):
        curves[rate] = {}
        for seed in range(12):
            cost = 6000 * math.exp(math.log(rate / 1e-3) ** 2 / 2 + noise * rng.normal())
            spent = pd.DataFrame({"round": [1, 2], "rollouts": [cost, 15360.0]})
            scores = np.array([0.2, 0.5, 0.6])
            curves[rate][seed] = Curve("a", seed, np.arange(3), scores, spent, None)
    return rates.Curves(curves, 0.5)


def test_without_noise_equal_arms_get_equal_rates_and_a_difference_is_always_found():
    table = rates.simulated(curves(), trials=3, seeds=2)
    for rule in rates.RULES:
        row = table.loc[rule]
        assert (row["spread, %"], row["false alarms"], row["alike"]) == (0, 0, 1)
        assert (row["found"], row["opposite"], row["seeds"]) == (1, 0, LOOKS[0])
    assert 0 <= table.loc["the parabola", "excess, %"] < 1


def test_the_parabola_comes_nearer_to_the_best_rate_than_the_best_one_tried():
    rng = np.random.default_rng(1)
    noisy = curves(noise=0.1)
    found = [rates.find_rates(noisy, rng, 3, coarse_grid(9e-4)) for _ in range(40)]
    errors = {
        rule: np.mean([abs(math.log(each[rule] / 1e-3)) for each in found]) for rule in rates.RULES
    }
    assert errors["the parabola"] < errors["the best rate tried"]


def test_the_recorded_runs_are_those_that_the_module_makes():
    recorded = rates.recorded()
    assert {rate: len(by_seed) for rate, by_seed in recorded.by_rate.items()} == rates.SEEDS
    for by_seed in recorded.by_rate.values():
        for curve in by_seed.values():
            assert curve.places("rollouts")[-1] == rates.ROUNDS * 32 * 8


def test_the_excess_of_a_rate_is_what_the_parabola_says():
    costs = {(Point(rate), 7): math.log(rate / 9e-4) ** 2 for rate in (5e-4, 7.07e-4, 1e-3, 1.4e-3)}
    rows = [
        {"arm": "a", "learning_rate": point.learning_rate, "seed": seed, "cost": math.exp(cost)}
        for (point, seed), cost in costs.items()
    ]
    best = lowest(costs, Point(1e-3)).learning_rate
    for used, expected in [(best, 0.0), (9e-4 * math.e**0.2, 100 * math.expm1(0.04))]:
        found = rates.excess(pd.DataFrame(rows), {"a": used})
        assert found["a"] == pytest.approx(expected, abs=0.01)
