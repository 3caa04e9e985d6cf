"""Intervals for runs of others: Welch's, and lines with the ratio of their slopes."""

import numpy as np
import pytest
from scipy import stats

from papers.intervals import Unpaired, linear_fit


def rng(seed=0):
    return np.random.default_rng(seed)


def test_welch_is_that_of_scipy():
    a = rng(4).normal(1, 2, 9)
    b = rng(5).normal(0, 1, 5)
    expected = stats.ttest_ind(a, b, equal_var=False)
    found = Unpaired(a, b)
    interval = expected.confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p_value(0) == pytest.approx(expected.pvalue)
    assert found.n == 5 and found.value == pytest.approx(a.mean() - b.mean())
    shifted = stats.ttest_ind(a - 0.7, b, equal_var=False)
    assert found.p_value(0.7) == pytest.approx(shifted.pvalue)
    narrow = expected.confidence_interval(0.9)
    assert Unpaired(a, b, 0.9).low == pytest.approx(narrow.low)


def test_a_line_and_the_ratio_of_its_slopes():
    x = np.array([[1.0, 2.0], [2.0, 1.0], [3.0, 5.0], [4.0, 3.0], [5.0, 8.0]])
    exact = linear_fit(x, 4 + 0.5 * x[:, 0] + 2 * x[:, 1], ["a", "b"])
    assert exact.interval("constant") == pytest.approx((4, 4, 4), abs=1e-9)
    assert exact.ratio("a", "b") == pytest.approx((0.25, 0.25, 0.25), abs=1e-9)
    assert exact.r_squared == pytest.approx(1) and exact.degrees == 2


def test_fieller_covers_the_ratio_as_often_as_it_says():
    draw = rng(7)
    x = draw.uniform(0, 10, size=(12, 2))
    inside = 0
    for _ in range(500):
        y = 1 + 0.5 * x[:, 0] + 2 * x[:, 1] + draw.normal(0, 2, 12)
        interval = linear_fit(x, y, ["a", "b"]).ratio("a", "b")
        inside += interval.low <= 0.25 <= interval.high
    assert 0.92 <= inside / 500 <= 0.98


def test_a_slope_that_may_be_zero_gives_no_ratio():
    x = np.array([[1.0, 2.0], [2.0, 1.0], [3.0, 5.0], [4.0, 3.0], [5.0, 8.0]])
    noisy = linear_fit(x, np.array([1.0, 9, 2, 8, 3]), ["a", "b"])
    assert np.isnan(noisy.ratio("a", "b").low)


@pytest.mark.parametrize(
    ("predictors", "values", "argument"),
    [([[1.0], [2.0]], [1.0, 2.0], "values"), ([[1.0, 1]] * 5, range(5), "predictors")],
)
def test_bad_input_is_named(predictors, values, argument):
    names = ["n", "m"][: len(predictors[0])]
    with pytest.raises(ValueError, match=argument):
        linear_fit(predictors, values, names)
