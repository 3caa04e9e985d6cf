"""Metrics against tables worked out by hand, enumeration, and intervals of known coverage."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.analysis import metrics
from workbench.analysis.metrics import (
    STATUS,
    bootstrap_interval,
    interquartile_mean,
    paired_difference,
    pass_at_k,
)


def rng(seed=0):
    return np.random.default_rng(seed)


# --- ratios


def test_gradient_ratios():
    """Problems a all right, b all wrong, c and d mixed; three of eight advantages are not zero."""
    correct, groups = np.array([1, 0, 1, 1, 0, 0, 0, 1], dtype=bool), list("abacbcdd")
    assert metrics.zero_gradient_ratios(correct, groups) == (0.25, 0.25)
    assert metrics.success_rates(correct, groups).tolist() == [1, 0, 0.5, 0.5]
    assert metrics.effective_gradient_ratio([0, 0, 1, -1, 0.1, 0, 0, 0]) == 0.375


def test_flops():
    """AERO eq. 23: 2 x parameters x sampled + 6 x parameters x trained tokens."""
    assert metrics.flops(10, sampled_tokens=100, trained_tokens=20) == 2 * 10 * 100 + 6 * 10 * 20


# --- avg@k and pass@k


def test_avg_at_k():
    assert metrics.avg_at_k([0, 2, 4, 4], 4) == 0.625


@given(st.integers(1, 9), st.data())
def test_pass_at_k_against_enumeration(n, data):
    correct, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = list(combinations([i < correct for i in range(n)], k))
    assert pass_at_k([correct], n, k) == pytest.approx(np.mean([any(s) for s in subsets]))


def test_pass_at_k_against_combinatorics():
    """n = 200, where factorials are large: against exact integers, averaged over problems."""
    counts = [0, 1, 3, 50, 199, 200]
    for k in (1, 10, 100, 200):
        exact = np.mean([1 - comb(200 - c, k) / comb(200, k) for c in counts])
        assert pass_at_k(counts, 200, k) == pytest.approx(exact, rel=1e-12)
    assert pass_at_k(counts, 200, 1) == pytest.approx(metrics.avg_at_k(counts, 200))


def test_pass_at_k_is_unbiased():
    """The mean over all outcomes of n = 6 draws at p = .3 is 1 - .7^k."""
    weights = [comb(6, c) * 0.3**c * 0.7 ** (6 - c) for c in range(7)]
    for k in (1, 2, 6):
        assert np.dot(weights, [pass_at_k([c], 6, k) for c in range(7)]) == pytest.approx(
            1 - 0.7**k
        )


# --- status


def test_status_at_the_bounds():
    rates = [0, 1 / 16, 1 / 5, 3 / 15, 0.21, 0.79, 4 / 5, 12 / 15, 15 / 16, 1]
    names = [STATUS[i] for i in (0, 1, 1, 1, 2, 2, 3, 3, 3, 4)]
    assert metrics.status(rates).tolist() == names


def test_transition_matrix():
    """Four problems: extremely hard to medium and to itself, medium to easy, easy to extremely easy."""
    before, after = [0, 0, 0.5, 0.9], [0.5, 0, 0.8, 1]
    expected = np.zeros((5, 5), dtype=np.int64)
    expected[[0, 0, 2, 3], [2, 0, 3, 4]] = 1
    counts = metrics.transition_matrix(before, after)
    assert counts.dtype == np.int64
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_array_equal(
        metrics.transition_matrix(metrics.status(before), after), expected
    )
    np.testing.assert_array_equal(
        metrics.transition_matrix(before, after, normalize="all"), expected / 4
    )
    rows = metrics.transition_matrix(before, after, normalize="rows")
    assert rows[0].tolist() == [0.5, 0, 0.5, 0, 0]
    assert rows.sum(axis=1).tolist() == [1, 0, 1, 1, 0]


def test_gradient_norm_stats():
    stats = metrics.gradient_norm_stats([0, 1, 2, 3, 4])
    assert stats == pytest.approx(
        {"mean": 2, "std": 2**0.5, "median": 2, "p90": 3.6, "max": 4, "zero": 0.2}
    )


# --- intervals


def test_interquartile_mean():
    """4 runs x 2 tasks: of 1..8 the middle four; outliers have no say."""
    scores = np.array([[1, 8], [2, 7], [3, 6], [4, 5]])
    assert interquartile_mean(scores) == 4.5
    assert interquartile_mean([[-1e9, 1e9], [2, 7], [3, 6], [4, 5]]) == 4.5
    assert interquartile_mean([3.0]) == 3
    assert interquartile_mean([1, 2, 6]) == 3  # floor(3 / 4) = 0 left out


def test_interquartile_mean_is_the_trimmed_mean():
    stats = pytest.importorskip("scipy.stats")
    for size in range(1, 40):
        scores = rng(size).normal(size=size)
        assert interquartile_mean(scores) == pytest.approx(stats.trim_mean(scores, 0.25))


def test_bootstrap_of_equal_runs_has_no_width():
    scores = np.tile([0.1, 0.5, 0.9], (4, 1))
    assert bootstrap_interval(scores, rng(), statistic=np.mean, resamples=50) == pytest.approx(
        (0.5, 0.5, 0.5)
    )


def test_stratified_bootstrap_keeps_tasks_apart():
    """4 x 2, by hand: the first task has no spread; the second's drawn ones are 0 to 4 with 1, 4, 6, 4, 1 of 16.

    So the ends at level .9 (below 1/16 on either side) are the means with no one and with four ones.
    """
    scores = np.array([[0, 0], [0, 0], [0, 1], [0, 1]], dtype=float)
    estimate, low, high = bootstrap_interval(
        scores, rng(), statistic=np.mean, level=0.9, resamples=4000
    )
    assert (estimate, low, high) == (0.25, 0, 0.5)


def test_whole_runs_keep_what_tasks_share():
    """Two perfectly opposed tasks: each run's mean is .5, so drawing whole runs has no width and stratifying has."""
    scores = np.array([[0, 1], [1, 0], [0, 1], [1, 0]], dtype=float)
    whole = bootstrap_interval(scores, rng(), statistic=np.mean, stratified=False, resamples=200)
    apart = bootstrap_interval(scores, rng(), statistic=np.mean, resamples=200)
    assert whole == (0.5, 0.5, 0.5)
    assert apart.low < 0.5 < apart.high


def test_intervals_follow_the_generator():
    scores = rng(1).random((5, 3))
    assert bootstrap_interval(scores, rng(2)) == bootstrap_interval(scores, rng(2))
    assert bootstrap_interval(scores, rng(2)) != bootstrap_interval(scores, rng(3))


def test_one_run_has_no_interval():
    estimate, low, high = bootstrap_interval([[0.2, 0.4]], rng())
    assert estimate == pytest.approx(0.3)
    assert np.isnan([low, high]).all()


def test_bootstrap_coverage():
    """Mean of 20 normal runs x 2 tasks at level .9: the true mean is inside in 81 to 96 of 100 cases."""
    draw = rng(5)
    inside = 0
    for _ in range(200):
        interval = bootstrap_interval(
            draw.normal(size=(20, 2)), draw, statistic=np.mean, level=0.9, resamples=200
        )
        inside += interval.low <= 0 <= interval.high
    assert 0.81 <= inside / 200 <= 0.96


def test_mean_interval():
    """1, 2, 3: mean 2, standard error 1/sqrt(3), t(.975, 2) = 4.303."""
    pytest.importorskip("scipy")
    mean, width = metrics.mean_interval([1, 2, 3])
    assert (mean, width) == pytest.approx((2, 4.30265 / 3**0.5), rel=1e-5)
    assert np.isnan(metrics.mean_interval([1.0])[1])


# --- paired differences


def test_paired_difference_of_a_small_table():
    """4 seeds x 2 problems: 5 entries better, 1 worse, 2 tied; mean difference 4/8."""
    a = np.array([[1, 1], [1, 1], [1, 0], [0, 1]], dtype=float)
    b = np.array([[0, 0], [0, 0], [0, 1], [0, 1]], dtype=float)
    found = paired_difference(a, b, rng())
    assert found.estimate == 0.5
    assert found.improvement == (5 + 2 / 2) / 8
    assert -0.5 <= found.low < 0.5 < found.high <= 1
    other = paired_difference(b, a, rng())
    assert other[0] == -0.5
    assert (other.low, other.high, other.improvement) == pytest.approx(
        (-found.high, -found.low, 0.25)
    )


def test_what_seeds_and_problems_share_drops_out():
    shared = 10 * rng(1).normal(size=(5, 1)) + 10 * rng(2).normal(size=(1, 30))
    found = paired_difference(shared + 0.5, shared, rng())
    assert found == pytest.approx((0.5, 0.5, 0.5, 1.0))


def test_one_seed_is_an_interval_over_problems():
    a, b = rng(1).random((1, 40)), rng(2).random((1, 40))
    found = paired_difference(a, b, rng())
    assert found.low < found.estimate < found.high
    assert np.isnan(paired_difference([[1.0]], [[0.0]], rng())[1:3]).all()


def test_two_way_coverage():
    """Seeds and problems both vary: the true difference 0 is inside the 90 % interval in most of 100 cases."""
    draw = rng(6)
    inside = 0
    for _ in range(100):
        noise = draw.normal(size=(10, 1)) + draw.normal(size=(1, 20)) + draw.normal(size=(10, 20))
        found = paired_difference(noise, np.zeros((10, 20)), draw, level=0.9, resamples=200)
        inside += found.low <= 0 <= found.high
    assert inside >= 78


# --- bad input


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: pass_at_k([1], 4, 5), r"k=5: .* from 1 to the number of samples, 4"),
        (lambda: pass_at_k([1], 4, 0), r"k=0"),
        (lambda: pass_at_k([1], 4, 1.5), r"k=1.5: a whole number"),
        (lambda: pass_at_k([-1], 4, 1), r"correct: -1 found; counts from 0 to 4"),
        (lambda: pass_at_k([5], 4, 1), r"correct: 5 found"),
        (lambda: pass_at_k([0.5], 4, 1), r"correct: 0.5 found"),
        (lambda: pass_at_k([np.nan], 4, 1), r"correct: nan found"),
        (lambda: metrics.avg_at_k([], 4), r"correct: nothing found"),
        (lambda: metrics.status([]), r"rates: shape \(0,\); at least one"),
        (lambda: metrics.status([0.1, 1.1]), r"rates: 1.1 is not a rate; numbers from 0 to 1"),
        (lambda: metrics.status([np.nan]), r"rates: nan is among them; finite"),
        (lambda: metrics.transition_matrix([0, 1], [0]), r"before \(2,\) and after \(1,\)"),
        (
            lambda: metrics.transition_matrix(["hard"], ["harder"]),
            r"after: 'harder' is no status; allowed are",
        ),
        (
            lambda: metrics.transition_matrix([0], [0], normalize="columns"),
            r"normalize='columns': allowed",
        ),
        (lambda: metrics.gradient_norm_stats([1, -1]), r"norms: -1.0 is negative"),
        (lambda: metrics.gradient_norm_stats([np.inf]), r"norms: inf is among them"),
        (lambda: interquartile_mean([]), r"scores: shape \(0,\)"),
        (lambda: bootstrap_interval([0.1, 0.2], rng()), r"scores: shape \(2,\); 2 dimensions"),
        (lambda: bootstrap_interval([[0.1, np.nan]], rng()), r"scores: nan"),
        (lambda: bootstrap_interval([[0.1]], 3), r"rng=3: a NumPy generator"),
        (
            lambda: bootstrap_interval([[0.1]], rng(), level=95),
            r"level=95: a number between 0 and 1",
        ),
        (lambda: bootstrap_interval([[0.1]], rng(), resamples=0), r"resamples=0: at least 1"),
        (lambda: paired_difference([[1.0, 2]], [[1.0]], rng()), r"a \(1, 2\) and b \(1, 1\)"),
        (lambda: paired_difference([1.0], [1.0], rng()), r"a: shape \(1,\); 2 dimensions"),
    ],
)
def test_bad_input_is_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()
