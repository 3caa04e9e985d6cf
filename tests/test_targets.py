"""What it takes to reach a target: crossings by hand, censored runs, and ratios between arms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_records import curve

from papers.standings import common_target
from workbench.analysis import comparisons, targets
from workbench.analysis.cost import CostModel
from workbench.analysis.runs import load_all
from workbench.analysis.targets import Crossing, crossing, ratio_to_target, rising

SCORES = st.lists(st.floats(0, 1), min_size=2, max_size=8)


class TestRising:
    def test_by_hand(self):
        """Neighbours that fall are replaced by their mean, and pooled as long as they fall."""
        assert rising([0.1, 0.3, 0.2, 0.6]).tolist() == pytest.approx([0.1, 0.25, 0.25, 0.6])
        assert rising([0.5, 0.4, 0.0]).tolist() == pytest.approx([0.3, 0.3, 0.3])

    @given(SCORES)
    def test_it_rises_and_keeps_the_mean(self, scores):
        fit = rising(scores)
        assert (np.diff(fit) >= -1e-12).all()
        assert fit.mean() == pytest.approx(np.mean(scores))
        assert rising(fit) == pytest.approx(fit)

    @given(SCORES, SCORES)
    def test_no_rising_curve_is_closer(self, scores, rival):
        n = min(len(scores), len(rival))
        scores = np.array(scores[:n])
        rival = np.sort(rival[:n])
        ours = np.sum((rising(scores) - scores) ** 2)
        assert ours <= np.sum((rival - scores) ** 2) + 1e-9

    def test_one_lucky_evaluation_does_not_cross_a_target(self):
        """.52 at round 20 is followed by .44: together they are .48, so that .5 comes later."""
        found = crossing([0, 10, 20, 30, 40], [0.2, 0.4, 0.52, 0.44, 0.6], 0.5)
        assert found.reached
        assert found.place == pytest.approx(30 + 10 * (0.5 - 0.48) / (0.6 - 0.48))


class TestCrossing:
    def test_by_hand(self):
        assert crossing([0, 10, 20], [0.2, 0.4, 0.6], 0.5) == (15, True)
        assert crossing([0, 10, 20], [0.2, 0.4, 0.6], 0.4) == (10, True)
        assert crossing([0, 10, 20], [0.2, 0.4, 0.6], 0.6) == (20, True)
        # At the first of several evaluations that lie at the target.
        assert crossing([0, 10, 20, 30], [0.2, 0.4, 0.4, 0.6], 0.4) == (10, True)

    def test_a_target_that_is_never_reached_is_censored_at_the_end(self):
        assert crossing([0, 10, 20], [0.2, 0.4, 0.6], 0.7) == (20, False)

    @given(SCORES, st.floats(0, 1), st.floats(0.5, 100))
    def test_counting_in_another_unit_moves_the_crossing_along(self, scores, target, factor):
        places = np.arange(len(scores), dtype=float)
        if rising(scores)[0] >= target:
            return
        plain = crossing(places, scores, target)
        scaled = crossing(factor * places, scores, target)
        assert scaled.reached == plain.reached
        assert scaled.place == pytest.approx(factor * plain.place)

    @given(SCORES, st.floats(0, 1), st.floats(0, 1))
    def test_a_higher_target_never_comes_earlier(self, scores, one, other):
        low, high = sorted((one, other))
        if rising(scores)[0] >= low:
            return
        places = np.arange(len(scores))
        assert crossing(places, scores, low).place <= crossing(places, scores, high).place + 1e-9

    @pytest.mark.parametrize(
        ("call", "says"),
        [
            (lambda: crossing([0, 1], [0.5, 0.6], 0.5), "target=0.5: .* above 0.5"),
            (lambda: crossing([0, 1], [0.5, 0.6], np.nan), "target=nan"),
            (lambda: crossing([1, 0], [0.1, 0.6], 0.5), "places"),
            (lambda: crossing([0, 1, 2], [0.1, 0.6], 0.5), "places"),
            (lambda: crossing([0, 1], [np.nan, 0.6], 0.5), "scores"),
            (lambda: crossing([], [], 0.5), "places"),
        ],
    )
    def test_bad_input_is_named(self, call, says):
        with pytest.raises(ValueError, match=says):
            call()


class TestRatios:
    def test_twice_and_half_cancel(self):
        ours = [Crossing(50, True), Crossing(200, True)]
        baseline = [Crossing(100, True), Crossing(100, True)]
        found = ratio_to_target(ours, baseline)
        assert found.value == pytest.approx(1)
        assert found.n == 2

    def test_a_run_that_never_arrives_counts_as_a_lower_bound(self):
        ours = [Crossing(100, True), Crossing(120, True), Crossing(130, False)]
        found = ratio_to_target(ours, [Crossing(100, True)] * 3)
        assert (found.censored, found.censored_baseline) == (1, 0)
        assert found.value == pytest.approx((1.2 * 1.3) ** (1 / 3))
        assert found.high == np.inf
        assert 0 < found.low < found.value

    def test_a_baseline_that_never_arrives_leaves_the_lower_end_open(self):
        baseline = [Crossing(100, True), Crossing(100, True), Crossing(100, False)]
        found = ratio_to_target(
            [Crossing(40, True), Crossing(50, True), Crossing(60, True)], baseline
        )
        assert found.low == 0
        assert found.value < found.high < np.inf

    def test_leaving_out_the_slow_run_would_flatter_the_arm(self):
        ours = [Crossing(90, True), Crossing(95, True), Crossing(300, False)]
        counted = ratio_to_target(ours, [Crossing(100, True)] * 3)
        left_out = ratio_to_target(ours[:2], [Crossing(100, True)] * 2)
        assert left_out.value < 1 < counted.value

    def test_pairs_are_needed(self):
        with pytest.raises(ValueError, match="1 and 2 runs: pairs of runs are needed"):
            ratio_to_target([Crossing(1, True)], [Crossing(1, True)] * 2)


def three_arms(path, seeds=(0, 1, 2)):
    """The fast arm needs half of the rounds of GRPO, and the stuck one never gets to .5."""
    rounds = np.arange(0, 9, 2)
    slopes = {"grpo": 0.05, "fast": 0.1, "stuck": 0.02}
    for label, slope in slopes.items():
        for seed in seeds:
            start = 0.2 + 0.01 * seed
            curve(path, label, seed, start + slope * rounds, every=2)
    return load_all(path)


class TestRecords:
    @pytest.mark.slow
    def test_costs_ratios_and_censored_runs(self, tmp_path):
        groups = three_arms(tmp_path)
        table = targets.to_target(groups, 0.5, "round", baseline="grpo")
        assert table.index.name == "accuracy 0.5, round"
        # From .2 + .01 s the target .5 is .3 - .01 s away.
        rounds = [(0.3 - 0.01 * seed) / 0.05 for seed in range(3)]
        assert table.loc["grpo", "cost"] == pytest.approx(np.exp(np.mean(np.log(rounds))))
        assert table.loc["grpo", ["n", "reached"]].tolist() == [3, 3]
        assert table.loc["fast", ["ratio", "low", "high"]].tolist() == pytest.approx([0.5] * 3)
        stuck = table.loc["stuck"]
        assert stuck[["reached", "censored", "cost", "high"]].tolist() == pytest.approx(
            [0, 3, 8, np.inf]
        )
        assert stuck["ratio"] > 1
        assert np.isnan(table.loc["grpo", "ratio"])

    def test_any_unit_of_spending(self, tmp_path):
        groups = three_arms(tmp_path, seeds=(0,))
        by_round = targets.to_target(groups, 0.5, "round")
        by_rollouts = targets.to_target(groups, 0.5, "rollouts")
        assert by_rollouts["cost"].tolist() == pytest.approx((10 * by_round["cost"]).tolist())

    def test_a_cost_model_is_a_unit_too(self, tmp_path):
        tokens = {"tokens_sampled": [100.0] * 8, "tokens_trained": [40.0] * 8}
        for label, slope in (("grpo", 0.05), ("fast", 0.1)):
            curve(tmp_path, label, 0, 0.2 + slope * np.arange(0, 9, 2), every=2, columns=tokens)
        groups = load_all(tmp_path)
        model = CostModel(0.5)
        table = targets.to_target(groups, 0.5, model, baseline="grpo")
        assert table.loc["grpo", "cost"] == pytest.approx(6 * (40 + 0.5 * 100))
        assert table.loc["fast", "ratio"] == pytest.approx(0.5)
        budget = comparisons.at_budget(groups, model, 90.0)
        assert budget.loc["grpo", "mean"] == pytest.approx(0.25), "90 is one round"

    @pytest.mark.slow
    def test_the_highest_score_that_all_reach_is_the_common_target(self, tmp_path):
        """The stuck arm ends at .36 with seed 0, and seed 2 begins at .22."""
        groups = three_arms(tmp_path)
        assert common_target(groups) == pytest.approx(0.36)
        assert common_target(groups, share=0.5) == pytest.approx(0.22 + 0.5 * 0.14)
        with pytest.raises(ValueError, match="share=0"):
            common_target(groups, share=0)

    def test_arms_that_never_meet_have_no_target(self, tmp_path):
        curve(tmp_path, "low", 0, [0.1, 0.2, 0.3])
        curve(tmp_path, "high", 0, [0.4, 0.5, 0.6])
        with pytest.raises(ValueError, match=r"no target: a run ends at 0.3 and one begins at 0.4"):
            common_target(load_all(tmp_path))

    def test_a_target_below_the_start_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match=r"target=0.2"):
            targets.to_target(three_arms(tmp_path, seeds=(0,)), 0.2)

    def test_a_single_seed_has_a_ratio_but_no_interval(self, tmp_path):
        row = targets.to_target(three_arms(tmp_path, (0,)), 0.5, baseline="grpo").loc["fast"]
        assert row["ratio"] == pytest.approx(0.5)
        assert np.isnan(row["low"]) and np.isnan(row["high"])
