"""Verdicts on claims: hand-made intervals on either side of a bound, on it, and without an end."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import verdicts
from workbench.verdicts import over_seeds, table, verdict

NUMBERS = st.floats(-10, 10)


@pytest.mark.parametrize("low, high, bounds, expected", [
    (0.1, 0.3, {"above": 0}, "agrees"),
    (-0.1, 0.3, {"above": 0}, "cannot tell"),
    (-0.3, -0.1, {"above": 0}, "disagrees"),
    (0.0, 0.3, {"above": 0}, "cannot tell"),
    (-0.3, 0.0, {"above": 0}, "disagrees"),
    (-0.3, -0.1, {"below": 0}, "agrees"),
    (0.4, 0.6, {"above": 0.3, "below": 0.7}, "agrees"),
    (0.4, 0.8, {"above": 0.3, "below": 0.7}, "cannot tell"),
    (0.8, 0.9, {"above": 0.3, "below": 0.7}, "disagrees"),
    (0.1, 0.9, {"above": 0.3, "below": 0.7}, "cannot tell"),
    (math.nan, math.nan, {"above": 0}, "cannot tell"),
])
def test_an_interval_decides(low, high, bounds, expected):
    assert verdict(low, high, **bounds) == expected


@given(NUMBERS, NUMBERS, NUMBERS)
def test_a_claim_and_its_opposite_never_both_agree(a, b, bound):
    low, high = sorted((a, b))
    above, below = verdict(low, high, above=bound), verdict(low, high, below=bound)
    assert {above, below} in ({"agrees", "disagrees"}, {"cannot tell"}, {"cannot tell", "disagrees"}, {"disagrees"})


@pytest.mark.parametrize("arguments, words", [((1, 0, {}), "low=1, high=0"), ((0, 1, {"above": 2, "below": 1}), "above=2")])
def test_ends_in_the_wrong_order(arguments, words):
    low, high, bounds = arguments
    with pytest.raises(ValueError, match=words):
        verdict(low, high, **bounds)


def test_the_table_shows_the_interval():
    frame = table([{"claim": "it saves", "published": "50 %", "value": 0.25, "low": 0.125, "high": 0.375, "above": 0},
                   {"claim": "it gains", "published": "+1", "value": 0.0, "low": -1.0, "high": 1.0, "above": 0, "digits": 1}])
    assert frame.to_numpy().tolist() == [["it saves", "50 %", "0.250 [0.125, 0.375]", "agrees"],
                                         ["it gains", "+1", "0.0 [-1.0, 1.0]", "cannot tell"]]
    with pytest.raises(ValueError, match="'it is'"):
        table([{"claim": "it is", "published": "", "value": 0, "low": 0, "high": 0}])


class Seeded:
    def __init__(self, seed, value):
        self.manifest, self.value = {"seed": seed}, value


def test_seeds_are_paired():
    ours, theirs = [Seeded(0, 3.0), Seeded(1, 5.0), Seeded(2, 9.0)], [Seeded(1, 4.0), Seeded(0, 1.0)]
    found = over_seeds(ours, lambda run: run.value, theirs)  # differences 2 and 1: half-width 12.706 x .5
    assert found["value"] == 1.5 and found["n"] == 2
    assert found["high"] - 1.5 == pytest.approx(12.706 * 0.5, rel=1e-4) == 1.5 - found["low"]
    assert over_seeds(ours, lambda run: run.value)["n"] == 3
    assert math.isnan(over_seeds(ours[:1], lambda run: run.value)["low"])
    with pytest.raises(ValueError, match="no seed in common"):
        over_seeds(ours[2:], lambda run: run.value, theirs)


def test_the_names_are_the_three():
    assert verdicts.VERDICTS == ("agrees", "disagrees", "cannot tell")
