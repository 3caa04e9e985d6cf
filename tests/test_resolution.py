"""How small a difference n seeds resolve: by formula, by simulation and on records."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_records import curve

from papers import resolution
from workbench.analysis.intervals import mean_interval, smallest_change
from workbench.analysis.runs import load_all


def rng(seed=0):
    return np.random.default_rng(seed)


class TestSmallestChange:
    def test_the_half_width_of_students_interval(self):
        """t(.975, 2) / sqrt(3) = 2.48 deviations for 3 seeds, 1.24 for 5, .72 for 10."""
        widths = [smallest_change(1.0, n) for n in (3, 5, 10)]
        assert widths == pytest.approx([2.484, 1.242, 0.715], abs=0.001)

    def test_a_change_of_this_size_is_found_four_times_of_five(self):
        shift = smallest_change(1.0, 5, power=0.8)
        draws = rng(1).normal(shift, 1.0, size=(3000, 5))
        half = 2.7764 * draws.std(axis=1, ddof=1) / np.sqrt(5)
        found = np.mean(draws.mean(axis=1) - half > 0)
        assert found == pytest.approx(0.8, abs=0.03)

    @given(st.floats(0.01, 100), st.integers(2, 30))
    def test_it_grows_with_the_deviation_and_falls_with_the_seeds(self, deviation, n):
        here = smallest_change(deviation, n)
        assert smallest_change(2 * deviation, n) == pytest.approx(2 * here)
        assert smallest_change(deviation, n + 1) < here
        assert here < smallest_change(deviation, n, power=0.8)

    @pytest.mark.parametrize(
        ("call", "says"),
        [
            (lambda: smallest_change(0.0, 3), "deviation=0.0"),
            (lambda: smallest_change(1.0, 1), "n=1"),
        ],
    )
    def test_bad_input_is_named(self, call, says):
        with pytest.raises(ValueError, match=says):
            call()


class TestSplitting:
    @pytest.mark.slow
    def test_seeds_of_one_method_alarm_as_often_as_they_may(self):
        """Nothing differs, so that one interval in twenty leaves 0 out."""
        values = rng(2).normal(50, 2, size=40)
        table = resolution.resolution(values, sizes=(3, 5, 8), rng=rng(3), splits=1500)
        assert table["false_alarms"].tolist() == pytest.approx([0.05] * 3, abs=0.025)

    def test_the_half_width_is_that_of_unlike_seeds(self):
        """Two unlike seeds differ by sqrt(2) times the deviation of one."""
        values = [1.0, 2.0, 3.0, 4.0]
        table = resolution.resolution(values, sizes=(5,), rng=rng(), splits=1)
        deviation = np.sqrt(2) * np.std(values, ddof=1)
        assert table.loc[5, "half_width"] == pytest.approx(smallest_change(deviation, 5))
        assert table.loc[5, "seeds"] == 4
        assert np.isnan(table.loc[5, "false_alarms"]), "four seeds are not two arms of five"

    def test_the_half_width_is_what_splits_have(self):
        values = rng(4).normal(0, 1, size=30)
        table = resolution.resolution(values, sizes=(4,), rng=rng(5), splits=1)
        draw = rng(6)
        squares = []
        for _ in range(2000):
            drawn = draw.permutation(values)[:8]
            squares.append(mean_interval(drawn[:4] - drawn[4:])[1] ** 2)
        assert np.sqrt(np.mean(squares)) == pytest.approx(table.loc[4, "half_width"], rel=0.05)

    def test_costs_are_compared_in_percent(self):
        """A factor common to all costs changes nothing."""
        costs = np.exp(rng(7).normal(10, 0.1, size=12))
        table = resolution.resolution(costs, sizes=(5,), rng=rng(), splits=10, scale="log")
        scaled = resolution.resolution(9 * costs, sizes=(5,), rng=rng(), splits=10, scale="log")
        assert scaled["half_width"].tolist() == pytest.approx(table["half_width"].tolist())
        logs = np.sqrt(2) * np.log(costs).std(ddof=1)
        expected = 100 * np.expm1(smallest_change(logs, 5))
        assert table.loc[5, "half_width"] == pytest.approx(expected)

    def test_pairs_that_move_together_resolve_more(self):
        shared = rng(8).normal(0, 5, size=12)
        ours = 1 + shared + rng(9).normal(0, 0.5, size=12)
        baseline = shared + rng(10).normal(0, 0.5, size=12)
        paired = resolution.paired_resolution(ours, baseline, sizes=(5,))
        split = resolution.resolution(baseline, sizes=(5,), rng=rng(), splits=1)
        assert paired.loc[5, "half_width"] < 0.3 * split.loc[5, "half_width"]
        expected = smallest_change((ours - baseline).std(ddof=1), 5)
        assert paired.loc[5, "half_width"] == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("call", "says"),
        [
            (lambda: resolution.resolution([1, 2, 3], rng=rng()), "3 of them; at least 4 seeds"),
            (lambda: resolution.resolution([1, 1, 1, 1], rng=rng()), "values"),
            (lambda: resolution.paired_resolution([1, 2], [1, 2]), "arm - baseline: all 2 are eq"),
            (lambda: resolution.resolution([1, 2, 3, 4], rng=0), "rng=0"),
            (lambda: resolution.resolution([0, 2, 3, 4], rng=rng(), scale="log"), "0 is among"),
            (lambda: resolution.resolution([1, 2, 3, 4], rng=rng(), scale="cube"), "scale='cube'"),
            (lambda: resolution.resolution([1, 2, 3, 4], (1,), rng=rng()), "sizes=1"),
            (lambda: resolution.paired_resolution([1], [2]), "at least two pairs"),
            (lambda: resolution.paired_resolution([1, 2], [2]), r"arm \(2,\) and baseline \(1,\)"),
        ],
    )
    def test_bad_input_is_named(self, call, says):
        with pytest.raises(ValueError, match=says):
            call()


class TestPositiveControl:
    def test_a_large_difference_is_found_with_few_seeds(self):
        noise = rng(11).normal(0, 1, size=12)
        table = resolution.control(10 + noise, np.zeros(12), rng=rng(), draws=300)
        assert table["found"].tolist() == [1, 1, 1, 1]
        assert table["difference"].iloc[0] == pytest.approx(10 + noise.mean())

    def test_a_small_difference_is_found_more_often_with_more_seeds(self):
        noise = rng(12).normal(0, 1, size=12)
        table = resolution.control(1 + noise, np.zeros(12), (3, 5, 8), rng=rng(), draws=400)
        assert table["found"].is_monotonic_increasing
        assert table["found"].iloc[0] < table["found"].iloc[-1]

    def test_more_seeds_than_there_are_cannot_be_drawn(self):
        table = resolution.control([1, 2, 3], [0, 0, 0], (3, 5), rng=rng(), draws=10)
        assert np.isnan(table.loc[5, "found"])

    def test_costs_are_shown_in_percent(self):
        table = resolution.control(
            [50, 50, 50], [100, 101, 99], (3,), rng=rng(), draws=5, scale="log"
        )
        assert table.loc[3, "difference"] == pytest.approx(-50, abs=0.1)
        assert table.loc[3, "found"] == 1


class TestRecords:
    @pytest.fixture
    def records(self, tmp_path):
        """Seed s begins at .2 + .01 s and gains .05 a round, in rounds of 10 rollouts."""
        for seed in range(4):
            accuracies = 0.2 + 0.01 * seed + 0.05 * np.arange(0, 9, 2)
            curve(tmp_path, "grpo", seed, accuracies, every=2)
        return load_all(tmp_path)["grpo"]

    def test_costs_to_a_target(self, records):
        values = resolution.seed_values(records, target=0.5)
        expected = [10 * (0.3 - 0.01 * seed) / 0.05 for seed in range(4)]
        assert values.index.tolist() == [0, 1, 2, 3]
        assert values.tolist() == pytest.approx(expected)
        table = resolution.resolution(values, (3,), rng=rng(), splits=5, scale="log")
        deviation = np.sqrt(2) * np.log(expected).std(ddof=1)
        change = 100 * np.expm1(smallest_change(deviation, 3))
        assert table.loc[3, "half_width"] == pytest.approx(change)

    def test_scores_at_a_budget_are_in_points(self, records):
        assert resolution.seed_values(records).tolist() == pytest.approx([60, 61, 62, 63])
        early = resolution.seed_values(records, budget=40)
        assert early.tolist() == pytest.approx([40, 41, 42, 43])

    def test_a_target_that_a_seed_misses_is_refused(self, records):
        """The spread of censored costs is not known."""
        with pytest.raises(ValueError, match=r"target=0.61"):
            resolution.seed_values(records, target=0.61)
