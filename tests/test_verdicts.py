"""Verdicts on claims: hand-made intervals on either side of a bound, on it, and without an end."""

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.analysis import verdicts
from workbench.analysis.verdicts import (
    averaged,
    change,
    mean_of,
    over_seeds,
    paired,
    score_gain,
    table,
    texts,
    verdict,
)

NUMBERS = st.floats(-10, 10)


@pytest.mark.parametrize(
    "low, high, bounds, expected",
    [
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
    ],
)
def test_an_interval_decides(low, high, bounds, expected):
    assert verdict(low, high, **bounds) == expected


@given(NUMBERS, NUMBERS, NUMBERS)
def test_a_claim_and_its_opposite_never_both_agree(a, b, bound):
    low, high = sorted((a, b))
    above, below = verdict(low, high, above=bound), verdict(low, high, below=bound)
    assert {above, below} in (
        {"agrees", "disagrees"},
        {"cannot tell"},
        {"cannot tell", "disagrees"},
        {"disagrees"},
    )


@pytest.mark.parametrize(
    "arguments, words",
    [((1, 0, {}), "low=1, high=0"), ((0, 1, {"above": 2, "below": 1}), "above=2")],
)
def test_ends_in_the_wrong_order(arguments, words):
    low, high, bounds = arguments
    with pytest.raises(ValueError, match=words):
        verdict(low, high, **bounds)


def test_the_table_shows_the_interval():
    frame = table(
        [
            {
                "claim": "it saves",
                "published": "50 %",
                "value": 0.25,
                "low": 0.125,
                "high": 0.375,
                "above": 0,
            },
            {
                "claim": "it gains",
                "published": "+1",
                "value": 0.0,
                "low": -1.0,
                "high": 1.0,
                "above": 0,
                "digits": 1,
            },
        ]
    )
    assert frame.to_numpy().tolist() == [
        ["it saves", "50 %", "0.250 [0.125, 0.375]", "agrees"],
        ["it gains", "+1", "0.0 [-1.0, 1.0]", "cannot tell"],
    ]
    with pytest.raises(ValueError, match="'it is'"):
        table([{"claim": "it is", "published": "", "value": 0, "low": 0, "high": 0}])


class Seeded:
    def __init__(self, seed, value):
        self.manifest, self.value = {"seed": seed}, value


def test_seeds_are_paired():
    ours, theirs = (
        [Seeded(0, 3.0), Seeded(1, 5.0), Seeded(2, 9.0)],
        [Seeded(1, 4.0), Seeded(0, 1.0)],
    )
    found = over_seeds(
        ours, lambda run: run.value, theirs
    )  # differences 2 and 1: half-width 12.706 x .5
    assert found["value"] == 1.5 and found["n"] == 2
    assert found["high"] - 1.5 == pytest.approx(12.706 * 0.5, rel=1e-4) == 1.5 - found["low"]
    assert over_seeds(ours, lambda run: run.value)["n"] == 3
    assert math.isnan(over_seeds(ours[:1], lambda run: run.value)["low"])
    with pytest.raises(ValueError, match="no seed in common"):
        over_seeds(ours[2:], lambda run: run.value, theirs)


def test_the_names_are_the_three():
    assert verdicts.VERDICTS == ("agrees", "disagrees", "cannot tell")


def test_a_quantity_of_two_runs_and_its_mean_over_pairs():
    ours, theirs = (
        [Seeded(0, 3.0), Seeded(1, 8.0), Seeded(2, 9.0)],
        [Seeded(1, 4.0), Seeded(0, 1.0)],
    )
    found = paired(ours, theirs, lambda a, b: a.value / b.value)  # 3 and 2
    assert (found["value"], found["n"]) == (2.5, 2) and found["high"] - 2.5 == pytest.approx(
        12.706 * 0.5, rel=1e-4
    )
    found = averaged(
        [(ours, theirs), (theirs, theirs)], lambda a, b: a.value / b.value
    )  # (3 + 1) / 2 and (2 + 1) / 2
    assert (found["value"], found["n"]) == (1.75, 2) and found["high"] - 1.75 == pytest.approx(
        12.706 * 0.25, rel=1e-4
    )
    with pytest.raises(ValueError, match=r"no seed in common: \[2\], \[0, 1\]"):
        paired(ours[2:], theirs, lambda a, b: 0)


class Trained(Seeded):
    """Accuracy rises from 0 to `value` over two rounds of 10 rollouts; the loss falls with the round."""

    path = "run"
    evals = pd.DataFrame({"round": [0, 2]})
    rounds = pd.DataFrame({"round": [1, 2], "rollouts": [10, 10], "loss": [3.0, 1.0]})

    def accuracy(self):
        return pd.DataFrame({"round": [0, 2], "accuracy": [0.0, self.value], "rollouts": [0, 20]})


def test_accuracy_gained_at_an_equal_budget():
    ours, theirs = [Trained(0, 0.5), Trained(1, 0.5)], [Trained(0, 0.4), Trained(1, 0.3)]
    assert score_gain(ours, theirs, "rollouts")["value"] == pytest.approx(15)
    assert score_gain(ours, theirs, "rollouts", 10)["value"] == pytest.approx(7.5)
    assert score_gain(ours, theirs, "rollouts", course=(0.5, 1))["value"] == pytest.approx(
        (7.5 + 15) / 2
    )
    with pytest.raises(ValueError, match="budget=21: the runs were last evaluated at 20 rollouts"):
        score_gain(ours, theirs, "rollouts", 21)


def test_means_of_a_column_and_their_change():
    assert mean_of("loss", 1, 2)(Trained(0, 0)) == 2 and mean_of("loss", 2, 9)(Trained(0, 0)) == 1
    less = Trained(0, 0)
    less.rounds = Trained.rounds.assign(loss=[1.5, 0.5])
    assert change([less], [Trained(0, 0)], "loss", 1, 2)["value"] == -50


def test_intervals_as_texts():
    frame = pd.DataFrame(
        {"value": [0.26, -1], "low": [-1, -1], "high": [1.5, -1]}, index=["a", "b"]
    )
    assert texts({"equal time": frame}).loc[:, "equal time"].to_dict() == {
        "a": "+0.3 ± 1.2",
        "b": "-1.0 ± 0.0",
    }
