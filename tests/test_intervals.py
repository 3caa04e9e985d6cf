"""Intervals against tables, coverage by simulation, and ends that nothing is known about."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from workbench.analysis import sequential
from workbench.analysis.intervals import (
    Measurement,
    holm,
    mean_interval,
    resolved_ratio,
    smallest_change,
    welch,
)
from workbench.reports.tables import compared

VALUES = st.lists(st.floats(-100, 100), min_size=2, max_size=12)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_students_interval_by_the_table():
    """1, 2, 3: mean 2, standard error 1/sqrt(3), t(.975, 2) = 4.303."""
    mean, half = mean_interval([1, 2, 3])
    assert (mean, half) == pytest.approx((2, 4.30265 / 3**0.5), rel=1e-5)
    found = Measurement(np.array([1.0, 2.0, 3.0]))
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half))
    assert np.isnan(mean_interval([1.0])[1]), "one value has no spread"


def test_half_widths_of_a_few_seeds():
    """Three seeds cost 2.5 deviations of half-width, five 1.24, ten .72."""
    for n, width in ((3, 2.48), (5, 1.24), (10, 0.715)):
        values = rng(n).normal(size=n)
        assert mean_interval(values)[1] / values.std(ddof=1) == pytest.approx(width, abs=0.005)


@pytest.mark.slow
def test_the_interval_covers_the_truth_as_often_as_it_says():
    draw = rng(1)
    inside = 0
    for _ in range(2000):
        interval = Measurement(draw.normal(3.0, 2.0, size=4))
        inside += interval.low <= 3 <= interval.high
    assert 0.935 <= inside / 2000 <= 0.965


def test_ratios_are_averaged_on_the_log_scale():
    """Half and twice cancel: the geometric mean is 1, and the interval is symmetric in logs."""
    found = Measurement(np.array([0.5, 2.0, 0.5, 2.0]), scale="ratio")
    assert found.value == pytest.approx(1)
    assert np.log(found.low) == pytest.approx(-np.log(found.high))


@given(VALUES)
def test_changes_in_percent_are_the_ratios_they_stand_for(logs):
    ratios = np.exp(np.array(logs) / 50)
    as_ratio = Measurement(ratios, scale="ratio")
    as_percent = Measurement(100 * (ratios - 1), scale="percent")
    assert as_percent.value == pytest.approx(100 * (as_ratio.value - 1), abs=1e-6)
    assert as_percent.low == pytest.approx(100 * (as_ratio.low - 1), rel=1e-6, abs=1e-6)


@given(VALUES, st.floats(-100, 100))
def test_the_p_value_and_the_interval_say_the_same(values, bound):
    found = Measurement(np.array(values))
    distance = min(abs(bound - found.low), abs(bound - found.high))
    if distance > 1e-6:
        assert (found.p_value(bound) < 0.05) == (not found.low <= bound <= found.high)


def test_the_p_value_is_that_of_scipy():
    values = rng(2).normal(0.3, 1.0, 8)
    expected = stats.ttest_1samp(values, 0.1).pvalue
    assert Measurement(values).p_value(0.1) == pytest.approx(expected)


def test_a_lower_bound_leaves_the_upper_end_open():
    values = np.array([1.5, 2.0, 2.5, 2.0])
    plain = Measurement(values, scale="ratio")
    lower = Measurement(values, scale="ratio", censored=1)
    upper = Measurement(values, scale="ratio", censored_baseline=2)
    neither = Measurement(values, scale="ratio", censored=1, censored_baseline=1)
    assert lower.high == np.inf and upper.low == 0
    assert (neither.low, neither.high) == (0, np.inf)
    assert lower.low < plain.low and upper.high > plain.high, "a censored pair is less than a pair"
    assert lower.p_value(1) > plain.p_value(1) and upper.p_value(1) == 1.0


def test_each_censored_pair_takes_a_degree_of_freedom():
    logs = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    found = Measurement(np.exp(logs), scale="ratio", censored=2)
    expected = 0.3 - stats.t.ppf(0.975, 2) * logs.std(ddof=1) / np.sqrt(5)
    assert np.log(found.low) == pytest.approx(expected)


def test_where_nobody_arrives_the_bounds_decide_with_six_seeds():
    six = Measurement(np.array([2.0, 3, 4, 2, 3, 4]), scale="ratio", censored=6)
    assert (six.low, six.high) == pytest.approx((2, np.inf))
    assert six.p_value(1) == pytest.approx(2 / 64) and six.p_value(2.5) == 1.0
    five = Measurement(np.array([2.0, 3, 4, 2, 3]), scale="ratio", censored=5)
    assert five.low == 0 and five.p_value(1) == 1.0


def test_ranks_decide_where_some_of_many_runs_did_not_arrive():
    """One of twelve: by ranks it is the last one, whatever it would have needed."""
    logs = np.append(-np.arange(1, 12) / 50, 0.3)
    missing = np.arange(12) == 11
    found = Measurement(np.exp(logs), scale="ratio", censored=missing)
    assert found.censored == 1
    # Ranks 1 to 11 lie below and rank 12 above: of 2^12 patterns 70 have a sum of at most 12.
    assert found.p_value(1) == pytest.approx(2 * 70 / 2**12)
    far = np.where(missing, 100.0, logs)
    assert found.p_value(1) == pytest.approx(stats.wilcoxon(far, method="exact").pvalue)
    averages = np.sort([(a + b) / 2 for k, a in enumerate(far) for b in far[k:]])
    assert np.log(found.value) == pytest.approx(np.median(averages))
    # Wilcoxon's critical value for twelve is 13, so the interval leaves out 13 at either end.
    assert np.log(found.low) == pytest.approx(averages[13])
    assert np.log(found.high) == pytest.approx(averages[-14]) and found.high < 1
    # By their number alone nothing is known of the upper end.
    assert Measurement(np.exp(logs), scale="ratio", censored=1).high == np.inf


def test_ranks_take_a_bound_for_what_is_worst_for_the_end():
    logs = np.append(np.linspace(0.1, 0.3, 10), [0.05, -0.05])
    both = np.arange(12) == 11
    found = Measurement(np.exp(logs), scale="ratio", censored=both, censored_baseline=both)
    exact = Measurement(np.exp(logs), scale="ratio")
    assert found.low < exact.low and found.high > exact.high
    upper = Measurement(np.exp(logs), scale="ratio", censored_baseline=both)
    assert np.isfinite([upper.low, upper.high]).all() and upper.low == found.low
    mostly = Measurement(np.exp(logs), scale="ratio", censored=np.arange(12) > 3)
    assert mostly.high == np.inf and mostly.p_value(1) < 0.05


def test_the_interval_of_ranks_is_open_where_too_few_seeds_or_runs_arrived():
    few = Measurement(np.full(11, 0.5), scale="ratio", censored=np.arange(11) == 0)
    assert few.high == np.inf and few.p_value(1) == 1.0
    sure = Measurement(
        np.exp(-np.arange(1, 13) / 50), "ratio", censored=np.arange(12) == 0, level=0.9999
    )
    assert (sure.low, sure.high) == (0, np.inf)
    assert sure.at_level(0.9).high < 1


@given(st.lists(st.floats(-2, 2), min_size=12, max_size=20), st.integers(0, 19))
def test_the_interval_of_ranks_leaves_out_what_its_test_rejects(logs, missing):
    censored = np.arange(len(logs)) == missing % len(logs)
    found = Measurement(np.array(logs), censored=censored)
    for bound in (-0.5, 0.0, 0.5):
        rejected = found.p_value(bound) < 1 - found.level
        # At an end itself ties decide.
        if bound not in (found.low, found.high):
            assert rejected == (bound < found.low or bound > found.high)


def test_ranks_are_wrong_as_seldom_as_they_say():
    draw = rng(8)
    alarms = 0
    for _ in range(1000):
        logs = draw.normal(0.0, 0.2, size=14)
        censored = draw.random(14) < 0.1
        bounds = np.where(censored, logs - draw.exponential(0.2, 14), logs)
        alarms += Measurement(np.exp(bounds), "ratio", censored=censored).p_value(1) < 0.05
    assert alarms / 1000 <= 0.065


@pytest.mark.parametrize("n", [5, 8])
@pytest.mark.parametrize("cut", [0.1, 0.3, 1.0])
def test_the_end_that_is_left_holds_with_censored_values(n, cut):
    """True log ratios of mean 0, cut off above: the lower end is above 0 in 2.5 % at most."""
    draw = rng(n)
    misses = 0
    for _ in range(1500):
        logs = draw.normal(0.0, 0.5, size=n)
        bounds = np.exp(np.minimum(logs, cut))
        found = Measurement(bounds, scale="ratio", censored=int((logs > cut).sum()))
        misses += found.low > 1
    assert misses / 1500 <= 0.035


def test_holm_by_hand():
    """Three tests: .01 x 3, then .03 x 2, then .04 x 1, never below the one before."""
    assert holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.9]).tolist() == [1, 1]
    found = holm([0.02, np.nan, 0.04])
    assert found[[0, 2]].tolist() == pytest.approx([0.04, 0.04]) and np.isnan(found[1])


def test_holm_keeps_the_family_s_error():
    """Ten true hypotheses: in one of twenty families at most is any rejected."""
    draw = rng(6)
    families = [bool((holm(draw.random(10)) < 0.05).any()) for _ in range(2000)]
    assert np.mean(families) <= 0.065


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Measurement(np.array([])), "values"),
        (lambda: Measurement(np.ones((2, 2))), "values"),
        (lambda: Measurement(np.array([1.0, 0.0]), scale="ratio"), "values"),
        (lambda: Measurement(np.array([-100.0]), scale="percent"), "above -100 %"),
        (lambda: Measurement(np.array([1.0]), scale="log"), "scale='log'"),
        (lambda: Measurement(np.array([1.0]), level=95), "level=95"),
        (lambda: Measurement(np.ones(2), censored=np.array([True])), "censored"),
    ],
)
def test_bad_input_is_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_an_interval_of_bounds_alone_is_as_sure_as_its_level():
    # With 6 seeds all on one side the sign test has p = .031: enough at .95, too little at .99.
    bounds = np.linspace(1.0, 2.0, 6)
    assert Measurement(bounds, censored=6, level=0.95).low == 1.0
    assert Measurement(bounds, censored=6, level=0.975).low == -np.inf
    assert Measurement(bounds, censored=6, level=0.99).low == -np.inf


def test_a_verdict_holds_to_its_level_and_its_band_exactly():
    assert sequential.verdict(0.8, 0.7, 0.9, p=0.05, level=0.05) == "better"
    assert sequential.verdict(1.2, 1.1, 1.3, p=0.05, level=0.05) == "worse"
    # A band of a quarter reaches from 1/1.25 = .8, and not from .75, to 1.25.
    assert sequential.verdict(1.0, 0.81, 1.2, p=0.6, band=0.25) == "alike"
    assert sequential.verdict(1.0, 0.78, 1.2, p=0.6, band=0.25) == "open"


def test_a_gain_is_decided_as_by_students_test():
    gains = np.array([0.01, 0.03, -0.01, 0.04, 0.02])
    p = stats.ttest_1samp(gains, 0).pvalue
    mean, half = mean_interval(gains)
    row = {"difference": mean, "low": mean - half, "high": mean + half, "pairs": len(gains)}
    table = pd.DataFrame([row])
    assert sequential.verdicts_on_gains(table, level=1.001 * p).tolist() == ["better"]
    assert sequential.verdicts_on_gains(table, level=0.999 * p).tolist() == ["open"]


@pytest.mark.parametrize("gain", [0.0625, -0.1, 0.1 + 0.2, 0.0])
def test_gains_without_any_spread_tell_no_error_and_stay_open(gain):
    rows = [
        Measurement(np.array([gain, again])).columns("difference", n="pairs")
        for again in (gain, np.nextafter(gain, 1))
    ]
    clear = {"difference": 0.2, "low": 0.19, "high": 0.21, "pairs": 5}
    table = pd.DataFrame([*rows, clear, {}])
    assert sequential.verdicts_on_gains(table).fillna("").tolist() == ["open", "open", "better", ""]
    texts = compared(table.assign(n=2, mean=0.5, half=0.1, better=1.0), baseline=3)
    assert texts["verdict"].tolist() == ["open", "open", "better", ""]


@pytest.mark.parametrize("n", [12, 20])
def test_a_value_lies_in_its_interval_where_most_runs_never_arrived(n):
    """One lucky run among bounds a little above 1 is no sign that an arm needs less."""
    ratios = np.array([1.02] * (n - 1) + [0.6])
    late = ratios > 1
    measured = Measurement(ratios, "ratio", late, np.zeros(n, dtype=bool))
    assert 1 < measured.low <= measured.value and measured.p_value(1.0) < 0.05
    [reading] = sequential.readings({"arm": measured}, [n]).values()
    assert reading.verdict == "worse"


def test_the_smallest_change_by_the_table():
    """t(.975, 3) = 3.182, and four seeds halve the deviation."""
    assert smallest_change(1.0, 4) == pytest.approx(3.18245 / 2, rel=1e-5)


@pytest.mark.parametrize("ratios", [[], [1.2], [1.2, 1.2]])
def test_ratios_without_a_spread_tell_nothing_of_what_is_resolved(ratios):
    assert np.isnan(resolved_ratio(ratios))


@pytest.mark.parametrize("power", [-1, 0, 0.025, 1.0, 1.5, float("nan")])
def test_a_power_that_no_difference_has_is_refused(power):
    with pytest.raises(ValueError, match="power="):
        smallest_change(1.0, 5, power=power)


def test_an_end_that_no_number_can_show_is_infinite():
    with np.errstate(over="raise"):
        found = welch([1e-99, 1e99], [1.0, 1.1], scale="ratio")
    assert (found.low, found.high, found.value) == (0, np.inf, pytest.approx(1 / 1.1**0.5))
