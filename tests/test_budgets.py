"""Budget arithmetic: the papers' tables, brute force, and properties."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.rules.allocators import (
    expected_rollouts,
    info_gain,
    knapsack,
    nonzero_gradient_probability,
    required_rollouts,
    value,
)

TENTHS = np.arange(1, 10) / 10
ESTIMATORS = ["grpo", "rloo", "remax", "reinforce"]


# probabilities and values


def test_probability_is_that_of_the_outcomes():
    rng = np.random.default_rng(0)
    right = (rng.random((200_000, 5)) < 0.3).sum(axis=1)
    mixed = (right > 0) & (right < 5)
    shares = {"grpo": mixed, "rloo": mixed, "remax": right < 5, "reinforce": right > 0}
    for estimator, seen in shares.items():
        assert nonzero_gradient_probability(5, 0.3, estimator) == pytest.approx(
            seen.mean(), abs=0.005
        )


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_probability_is_exact_near_zero_and_one(estimator):
    exact = {
        "remax": lambda n, p: 1 - p**n,
        "reinforce": lambda n, p: 1 - (1 - p) ** n,
        "grpo": lambda n, p: 1 - p**n - (1 - p) ** n if n else Fraction(0),
    }
    for p in (0.0, 1e-300, 1e-17, 1e-9, 0.3, 0.5, 1 - 1e-9, np.nextafter(1, 0), 1.0):
        for n in (0, 1, 2, 3, 8, 128):
            truth = exact[{"rloo": "grpo"}.get(estimator, estimator)](n, Fraction(p))
            assert nonzero_gradient_probability(n, p, estimator) == pytest.approx(
                float(truth), rel=1e-12, abs=0
            )


def test_shapes_broadcast():
    assert nonzero_gradient_probability(np.arange(4)[:, None], TENTHS).shape == (4, 9)
    assert nonzero_gradient_probability([0, 1, 2], 0.5).tolist() == [0, 0, 0.5]
    assert np.isnan(value(3, np.nan))


def test_rollouts_until_a_gradient():
    assert expected_rollouts([0.5, 0.01]) == pytest.approx([3, 100.0101], abs=1e-4)
    assert np.floor(required_rollouts([0.01, 0.99])).tolist() == [229, 229]
    assert np.ceil(required_rollouts(0.9)) == 22  # table 2, column cost
    assert np.isinf(expected_rollouts([0, 1])).all()
    assert np.isinf(required_rollouts([0, 1])).all()
    p = np.linspace(0.02, 0.98, 25)
    enough = np.ceil(required_rollouts(p)).astype(int) + 1
    assert (nonzero_gradient_probability(enough, p) >= 0.9).all()


def test_expected_rollouts_by_simulation():
    draws = np.random.default_rng(1).random((20_000, 200)) < 0.2
    first = 1 + np.argmax(draws != draws[:, :1], axis=1)
    assert expected_rollouts(0.2) == pytest.approx(first.mean(), rel=0.03)


inside = st.floats(1e-6, 1 - 1e-6)


@given(st.integers(0, 200), inside, st.sampled_from(ESTIMATORS), st.booleans())
def test_more_rollouts_are_worth_more_and_gain_less(n, p, estimator, with_info_gain):
    v = value(np.arange(n, n + 4), p, with_info_gain, estimator)
    gains = np.diff(v)
    assert (gains >= -1e-15).all()
    if n >= 1 or estimator in ("remax", "reinforce"):
        assert (np.diff(gains) <= 1e-15).all()


@given(st.integers(2, 200), st.floats(1e-6, 0.4999))
def test_harder_problems_are_worth_more(n, p):
    assert value(n, p) > value(n, 1 - p)
    here, mirror = (np.diff(value(np.array([n, n + 1]), rate)) for rate in (p, 1 - p))
    assert here >= mirror - 1e-15
    assert info_gain(p) > info_gain(1 - p)


# the knapsack


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"low": 3}, [14, 12, 9, 7, 7, 7, 7, 6, 3]),  # table 3
        ({"low": 2}, [15, 12, 9, 7, 7, 7, 7, 6, 2]),
        (
            {"info_gain": False},
            [12, 9, 7, 6, 5, 6, 7, 9, 11],
        ),  # table 3, without InfoGain, for any low up to 5
        ({"info_gain": False, "low": 3}, [12, 9, 7, 6, 5, 6, 7, 9, 11]),
    ],
)
def test_published_allocations(options, counts):
    assert knapsack(TENTHS, 72, **options).tolist() == counts


def test_published_fallback():
    p = [0, 0.9, 1, 1, 1, 1, 1, 1]  # table 2
    assert knapsack(p, 64, fallback=False).tolist() == [2, 50, 2, 2, 2, 2, 2, 2]
    assert knapsack(p, 64).tolist() == [29, 23, 2, 2, 2, 2, 2, 2]


def best_by_dynamic_programming(p, total, low, up, **options):
    """Greatest summed value, over every way to split the total."""
    best = {0: 0.0}
    for rate in p:
        worth = {n: float(value(n, rate, **options)) for n in range(low, up + 1)}
        step = {}
        for spent, so_far in best.items():
            for n, v in worth.items():
                if spent + n <= total:
                    step[spent + n] = max(step.get(spent + n, -1.0), so_far + v)
        best = step
    return best[total]


rates = st.one_of(st.sampled_from([0.0, 1.0, 0.5, 0.25, 0.75, 1 / 16]), st.floats(0, 1))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_knapsack_is_as_good_as_dynamic_programming(data):
    estimator = data.draw(st.sampled_from(ESTIMATORS))
    p = np.array(data.draw(st.lists(rates, min_size=1, max_size=5)))
    low = data.draw(st.integers(0 if estimator in ("remax", "reinforce") else 1, 3))
    up = data.draw(st.integers(max(low, 1), 9))
    total = data.draw(st.integers(len(p) * low, len(p) * up))
    options = {"info_gain": data.draw(st.booleans()), "estimator": estimator}
    counts = knapsack(p, total, low=low, up=up, fallback=False, **options)
    assert counts.sum() == total
    assert counts.min() >= low
    assert counts.max() <= up
    ours = sum(float(value(int(n), rate, **options)) for n, rate in zip(counts, p))
    assert ours == pytest.approx(
        best_by_dynamic_programming(p, total, low, up, **options), rel=1e-12, abs=1e-15
    )


def greedy(p, total, low, up):
    """One rollout at a time in exact fractions, ties to the lower index."""
    p = [Fraction(rate) for rate in p]
    counts = [low] * len(p)
    for _ in range(total - low * len(p)):
        gains = [
            (q**n * (1 - q) + (1 - q) ** n * q) * q * (1 - q) ** 2 if n < up else -1
            for n, q in zip(counts, p)
        ]
        counts[gains.index(max(gains))] += 1
    return counts


@pytest.mark.parametrize("seed", range(20))
def test_knapsack_is_the_greedy_allocation_ties_included(seed):
    rng = np.random.default_rng(seed)
    p = rng.integers(1, 16, size=rng.integers(2, 30)) / 16
    total = int(rng.integers(2 * len(p), 12 * len(p)))
    assert knapsack(p, total, up=20).tolist() == greedy(p, total, 2, 20)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_totals_and_bounds_always_hold(data):
    estimator = data.draw(st.sampled_from(ESTIMATORS))
    size = data.draw(st.integers(1, 40))
    extreme = st.sampled_from([np.nan, 0.0, 5e-324, 1e-300, 1e-17, np.nextafter(1, 0), 1.0])
    p = np.array(data.draw(st.lists(st.one_of(extreme, rates), min_size=size, max_size=size)))
    low = data.draw(st.integers(1, 4))
    up = data.draw(st.integers(low, 200))
    total = data.draw(st.integers(size * low, size * up))
    options = {
        "info_gain": data.draw(st.booleans()),
        "fallback": data.draw(st.booleans()),
        "estimator": estimator,
    }
    counts = knapsack(p, total, low=low, up=up, **options)
    assert counts.dtype == np.int64
    assert counts.shape == p.shape
    assert counts.sum() == total
    assert counts.min() >= low
    assert counts.max() <= up
    assert counts.tolist() == knapsack(p, total, low=low, up=up, **options).tolist()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-3, 0.499), min_size=1, max_size=10), st.integers(2, 30))
def test_the_harder_of_two_mirrored_problems_gets_no_less(p, average):
    p = np.array(p)
    counts = knapsack(np.concatenate([1 - p, p]), 2 * len(p) * average)
    assert (counts[len(p) :] >= counts[: len(p)]).all()


def test_mirrored_rates_gain_the_same_although_their_floats_do_not():
    """The rarer outcome of .9 is 1 - .9, which is a little less than .1."""
    for p in ([0.9, 0.1], [0.1, 0.9], [11 / 12, 1 / 12]):
        assert knapsack(p, 9, info_gain=False).tolist() == [5, 4]


def test_equal_problems_share_equally_lower_index_first():
    assert knapsack([0.3] * 5, 42).tolist() == [9, 9, 8, 8, 8]
    assert knapsack([0.9, 0.5, 0.9], 9).tolist()[0] >= knapsack([0.9, 0.5, 0.9], 9).tolist()[2]


def test_never_tried_problems_get_the_uniform_budget():
    assert knapsack([np.nan] * 4, 34).tolist() == [9, 9, 8, 8]
    counts = knapsack([np.nan, 0.1, 0.5, 1.0, np.nan], 40)
    assert counts[[0, 4]].tolist() == [8, 8]
    assert counts[1] > counts[2] > counts[3] == 2
    # Nine are left for the last problem, eight fit, and one goes back.
    assert knapsack([np.nan, np.nan, 0.5], 3 * 8 - 1, up=8).tolist() == [8, 7, 8]


def test_what_one_set_cannot_take_goes_to_the_next():
    assert knapsack([0.0, 0.5, 1.0], 60, up=20).tolist() == [20, 20, 20]
    assert knapsack([0.0, 0.5, 1.0, 1.0], 50, up=20).tolist() == [20, 20, 5, 5]
    assert knapsack([1.0, 1.0, 1.0], 11).tolist() == [4, 4, 3]
    assert knapsack([0.0, 0.0, 1.0], 13).tolist() == [6, 5, 2]
    assert knapsack([0.0, 0.0, 1.0], 13, fallback=False).tolist() == [6, 5, 2]


def test_single_rollouts_that_are_certain_to_help():
    assert knapsack(
        [1.0, 0.5], 3, low=0, info_gain=False, estimator="reinforce", fallback=False
    ).tolist() == [1, 2]
    assert knapsack(
        [0.0, 0.5], 3, low=0, info_gain=False, estimator="remax", fallback=False
    ).tolist() == [1, 2]


def test_ten_thousand_problems():
    p = np.random.default_rng(0).random(10_000)
    counts = knapsack(p, 80_000)
    assert counts.sum() == 80_000
    assert counts.min() == 2
    order = np.argsort(p)
    assert counts[order[:20]].mean() < counts[order[1000:1020]].mean() > counts[order[-20:]].mean()
    gain = np.diff(value(counts + np.array([[-1], [0], [1]]), p), axis=0)
    assert gain[0][counts > 2].min() >= gain[1].max() * (
        1 - 1e-9
    )  # no exchange of two rollouts helps


# bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: knapsack([0.5, 0.5], 3), "total="),
        (lambda: knapsack([0.5], 129), r"total=129: 1 problems can take 2 .* to 128"),
        (lambda: knapsack([0.5, -0.1], 16), "p="),
        (lambda: knapsack([1.5], 8), "p=1.5"),
        (lambda: knapsack([np.inf], 8), "p=inf"),
        (lambda: knapsack([], 8), "p: empty"),
        (lambda: knapsack(np.full((2, 2), 0.5), 16), r"p: shape \(2, 2\)"),
        (lambda: knapsack([0.5], 8, low=9, up=4), "up=4: "),
        (lambda: knapsack([0.5], 8, low=0), "low=0: a whole number of at least 1"),
        (lambda: knapsack([0.5], 8, low=-1, estimator="remax"), "low="),
        (lambda: knapsack([0.5], 8.5), "total=8.5"),
        (lambda: knapsack([0.5], 8, estimator="ppo"), "estimator="),
        (lambda: nonzero_gradient_probability(-1, 0.5), r"-1.*at least 0"),
        (lambda: nonzero_gradient_probability(1.5, 0.5), "whole numbers"),
        (lambda: required_rollouts(0.5, alpha=1), "alpha=1"),
        (lambda: info_gain(-1), "p=-1.0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
