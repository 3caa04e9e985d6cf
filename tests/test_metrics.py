"""Metrics against tables worked out by hand and enumeration."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.aero import gradient_norm_stats
from workbench.analysis import metrics
from workbench.analysis.metrics import pass_at_k
from workbench.records import round_stats


def test_gradient_ratios():
    """Problems a all right, b all wrong, c and d mixed; three of eight advantages are not zero."""
    correct = np.array([1, 0, 1, 1, 0, 0, 0, 1], dtype=bool)
    groups = list("abacbcdd")
    assert round_stats.zero_gradient_ratios(correct, groups) == (0.25, 0.25)
    assert round_stats.success_rates(correct, groups).tolist() == [1, 0, 0.5, 0.5]
    assert round_stats.effective_gradient_ratio([0, 0, 1, -1, 0.1, 0, 0, 0]) == 0.375


def test_flops():
    """AERO, equation 23: 2 x parameters x sampled + 6 x parameters x trained tokens."""
    assert (
        round_stats.flops(10, sampled_tokens=100, trained_tokens=20) == 2 * 10 * 100 + 6 * 10 * 20
    )


@given(st.integers(1, 9), st.data())
def test_pass_at_k_against_enumeration(n, data):
    correct = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    subsets = list(combinations([i < correct for i in range(n)], k))
    assert pass_at_k([correct], n, k) == pytest.approx(np.mean([any(s) for s in subsets]))


def test_pass_at_k_against_combinatorics():
    """n = 200, where factorials are large: against exact integers, averaged over problems."""
    counts = [0, 1, 3, 50, 199, 200]
    for k in (1, 10, 100, 200):
        exact = np.mean([1 - comb(200 - c, k) / comb(200, k) for c in counts])
        assert pass_at_k(counts, 200, k) == pytest.approx(exact, rel=1e-12)
    assert pass_at_k(counts, 200, 1) == pytest.approx(np.mean(counts) / 200)


def test_pass_at_k_is_unbiased():
    """The mean over all outcomes of n = 6 draws at p = .3 is 1 - .7^k."""
    weights = [comb(6, c) * 0.3**c * 0.7 ** (6 - c) for c in range(7)]
    for k in (1, 2, 6):
        mean = np.dot(weights, [pass_at_k([c], 6, k) for c in range(7)])
        assert mean == pytest.approx(1 - 0.7**k)


def test_gradient_norm_stats():
    stats = gradient_norm_stats([0, 1, 2, 3, 4])
    expected = {"mean": 2, "std": 2**0.5, "median": 2, "p90": 3.6, "max": 4, "zero": 0.2}
    assert stats == pytest.approx(expected)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: pass_at_k([1], 4, 5), "k=5"),
        (lambda: pass_at_k([1], 4, 0), "k=0"),
        (lambda: pass_at_k([1], 4, 1.5), "k=1.5"),
        (lambda: pass_at_k([-1], 4, 1), "correct"),
        (lambda: pass_at_k([5], 4, 1), "correct"),
        (lambda: pass_at_k([0.5], 4, 1), "correct"),
        (lambda: pass_at_k([np.nan], 4, 1), "correct"),
        (lambda: pass_at_k([], 4, 1), "correct"),
        (lambda: gradient_norm_stats([1, -1]), "norms"),
        (lambda: gradient_norm_stats([np.inf]), "norms"),
        (lambda: metrics.finite("x", [[1.0]], 1), "x"),
        (lambda: metrics.finite("x", []), "x"),
    ],
)
def test_bad_input_is_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()
