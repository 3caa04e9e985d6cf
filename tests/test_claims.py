"""Published claims put to hand-made records: every metric by hand, and reasons where none holds."""

import numpy as np
import pytest
from written_records import curve, write

from papers import claims
from papers.claims import findings, judged
from papers.measures import (
    accuracy,
    change,
    difference,
    share,
    to_target,
    unsolved_at_equal_numbers,
    unsolved_at_last_visit,
)
from papers.verdicts import Claim
from workbench.analysis.runs import load_all

PAIR = {"arm": "arm", "baseline": "grpo"}
# Two pairs: the arm against GRPO, and GRPO against itself.
PAIRS = {"arm": ("arm", "grpo"), "baseline": ("grpo", "grpo")}
AHEAD = Claim("A", "ahead at equal rounds", measured_by=accuracy(**PAIR, unit="round"))


@pytest.fixture
def runs(tmp_path):
    """Two seeds of 4 rounds; the arm has twice the slope of GRPO and half of its rollouts."""
    for seed in (0, 1):
        start = 0.2 + 0.01 * seed
        rounds = np.arange(0, 5, 2)
        options = {"lab": {"pool": 4}, "arguments": {"problems_per_round": 2}}
        columns = {"ratio": [0.5, 0.5, 0.8, 0.8], "part": [0.25] * 4}
        curve(tmp_path, "arm", seed, start + 0.1 * rounds, every=2, columns=columns, **options)
        columns = {"ratio": [0.4, 0.4, 0.4, 0.4 + 0.1 * seed], "part": [0.5] * 4}
        curve(
            tmp_path,
            "grpo",
            seed,
            start + 0.05 * rounds,
            every=2,
            rollouts=20,
            columns=columns,
            **options,
        )
    return load_all(tmp_path)


class TestMetrics:
    def test_accuracy_at_an_equal_budget_is_in_points(self, runs):
        """After 4 rounds .6 against .4; the arm's 40 rollouts are 2 rounds of GRPO."""
        by_round = accuracy(**PAIR, unit="round").measured(runs)
        assert by_round.values.tolist() == pytest.approx([20, 20])
        half = accuracy(**PAIR, unit="round", budget=0.5).measured(runs)
        assert half.values.tolist() == pytest.approx([10, 10])
        by_rollouts = accuracy(**PAIR, unit="rollouts").measured(runs)
        assert by_rollouts.values.tolist() == pytest.approx([30, 30])

    def test_changes_are_ratios_of_means(self, runs):
        found = change(**PAIR, column="rollouts").measured(runs)
        assert found.value == pytest.approx(-50)
        assert found.scale == "percent"

    def test_time_is_counted_in_tokens_of_the_run_itself(self, tmp_path):
        """The arm trains on half of the tokens, on a machine that is five times as slow.

        In each round it samples 100 tokens in 10 s and trains on 25 in 15 s, worth 25 + 10 / .6 =
        41.7 trained tokens; the baseline has 2 s and 3 s for 50, worth 83.3. So after all rounds
        of the arm, the baseline has made half of its own.
        """
        timings = {
            "arm": {"tokens_trained": 25.0, "seconds_generate": 10.0, "seconds_update": 15.0},
            "grpo": {"tokens_trained": 50.0, "seconds_generate": 2.0, "seconds_update": 3.0},
        }
        for label, columns in timings.items():
            columns = {name: [value] * 4 for name, value in columns.items()}
            columns["tokens_sampled"] = [100.0] * 4
            for seed in (0, 1):
                curve(tmp_path, label, seed, [0.2, 0.3, 0.4], every=2, columns=columns)
        runs = load_all(tmp_path)
        assert change(**PAIR, column="time").measured(runs).value == pytest.approx(-50)
        updates = change(**PAIR, column="update_time").measured(runs)
        assert updates.value == pytest.approx(0), "3 s of 50 tokens a second, 15 s of 10"
        by_time = accuracy(**PAIR, unit="time").measured(runs)
        assert by_time.values.tolist() == pytest.approx([10, 10])

    def test_differences_of_shares_from_an_epoch_on(self, runs):
        """An epoch has 2 rounds: from the second on it is .8 against .4 and .45."""
        found = difference(**PAIR, column="ratio", from_epoch=2).measured(runs)
        assert found.values.tolist() == pytest.approx([40, 35])
        whole = difference(**PAIR, column="ratio").measured(runs)
        assert whole.values.tolist() == pytest.approx([25, 22.5])
        last = difference(**PAIR, column="ratio", rounds=(4, 4)).measured(runs)
        assert last.values.tolist() == pytest.approx([40, 30])

    def test_a_share_of_time_needs_no_baseline(self, runs):
        found = share(arm="arm", columns=("part",)).measured(runs)
        assert found.values.tolist() == pytest.approx([25, 25])
        both = share(arm="arm", columns=("part", "seconds_update")).measured(runs)
        assert both.values.tolist() == pytest.approx([50, 50])

    def test_rollouts_to_a_target_are_a_ratio_with_censored_runs(self, runs):
        """The target is .8 of the way of GRPO; the arm takes half of its rounds."""
        by_round = to_target(**PAIR, unit="round", target=0.8).measured(runs)
        assert by_round.values.tolist() == pytest.approx([-50, -50])
        by_rollouts = to_target(**PAIR, unit="rollouts").measured(runs)
        assert by_rollouts.values.tolist() == pytest.approx([-75, -75])
        swapped = {"arm": runs["grpo"], "grpo": runs["arm"]}
        never = to_target(**PAIR, unit="round", target=1).measured(swapped)
        assert never.censored == 2
        assert never.high == np.inf

    def test_a_target_is_one_that_the_shorter_run_could_have_reached(self, tmp_path):
        """The arm ends after 2 rounds. GRPO is at .4 by then, so that .8 of the way is .36, and at
        .8 two rounds later.
        """
        curve(tmp_path, "grpo", 0, [0.2, 0.3, 0.4, 0.6, 0.8])
        curve(tmp_path, "arm", 0, [0.2, 0.36, 0.5])
        measured = to_target(**PAIR, unit="round").measured(load_all(tmp_path))
        assert measured.values.tolist() == pytest.approx([100 * (1 / 1.6 - 1)])
        assert measured.censored == 0

    def test_last_visits_are_those_of_the_rounds_that_both_have(self, tmp_path):
        """GRPO solves the problem in a third round, which the arm does not have."""
        for label, outcomes in (("grpo", "001"), ("arm", "00")):
            rows = []
            for i, letter in enumerate(outcomes):
                rows.append({"problem": ["a"], "round": [i + 1], "correct": [letter == "1"]})
            write(tmp_path, label, rollouts=[1] * len(rows), rows=rows)
        measured = unsolved_at_last_visit(**PAIR).measured(load_all(tmp_path))
        assert measured.values.tolist() == [0]

    def test_unsolved_problems_are_read_at_equal_numbers(self, tmp_path):
        """Of GRPO's four rollouts of b the last is right; the arm sampled two of it."""
        rows = {
            "grpo": (["a"] * 4 + ["b"] * 4, "11000001"),
            "arm": (["a"] * 4 + ["b"] * 2, "110000"),
        }
        for label, (problems, outcomes) in rows.items():
            columns = {
                "problem": problems,
                "round": [1] * len(problems),
                "correct": [letter == "1" for letter in outcomes],
            }
            write(tmp_path, label, rollouts=(len(problems),), rows=[columns])
        runs = load_all(tmp_path)
        for measure in (unsolved_at_equal_numbers, unsolved_at_last_visit):
            found = measure(**PAIR).measured(runs)
            assert found.values.tolist() == [0], "b is unsolved in two rollouts of both"


class TestPairs:
    def test_several_pairs_are_averaged_within_a_seed(self, runs):
        """The differences of the two pairs are 20 and 0 points."""
        found = accuracy(**PAIRS, unit="round").measured(runs)
        assert found.values.tolist() == pytest.approx([10, 10])
        assert found.n == 2

    def test_changes_are_averaged_as_ratios(self, runs):
        """Half and all of it: the geometric mean of .5 and 1 is .71."""
        several = change(**PAIRS, column="rollouts").measured(runs)
        assert several.value == pytest.approx(100 * (0.5**0.5 - 1))

    def test_sizes_are_scaled_by_what_the_baseline_gained(self, runs):
        """GRPO gains 20 points in 4 rounds, the arm 40."""
        scaled = Claim(
            "A",
            "gains",
            sizes=(2.0,),
            published_gain=(10.0,),
            measured_by=accuracy(**PAIR, unit="round"),
        )
        [finding] = findings([scaled], runs)
        assert finding.gain.values == pytest.approx([20, 20])
        assert scaled.published_edge(20) == 4
        by_arm = accuracy(**PAIR, unit="round", gain_of="arm")
        assert by_arm.gain(runs).value == pytest.approx(40)


class TestWhatCannotBeTold:
    @pytest.mark.parametrize(
        ("bad", "says"),
        [
            (accuracy(arm="pods", baseline="grpo", unit="round"), "no runs of pods"),
            (accuracy(arm="arm", baseline="dapo", unit="round"), "no runs of dapo"),
            (change(**PAIR, column="tokens"), "no column tokens"),
            (share(arm="arm", columns=("tokens",)), "no column tokens"),
            (difference(**PAIR, column="ratio", from_epoch=9), "the claim begins at 17"),
            (accuracy(arm=("arm", "arm"), baseline="grpo", unit="round"), "one baseline for each"),
            (accuracy(**PAIR, unit="round", gain_of="dapo"), "no runs of dapo"),
            (None, "it does not say how it is measured"),
        ],
    )
    def test_the_reason_is_said(self, runs, bad, says):
        claim = Claim("A", "it", sizes=(1.0,), published_gain=(1.0,), measured_by=bad)
        [finding] = findings([claim], runs)
        assert says in finding.reason
        [verdict] = judged([claim], runs)["verdict"]
        assert verdict == f"cannot tell: {finding.reason}"

    def test_arms_with_other_held_out_problems(self, tmp_path):
        write(tmp_path, "arm")
        write(tmp_path, "grpo", problems=("p", "r"))
        [verdict] = judged([AHEAD], load_all(tmp_path))["verdict"]
        assert verdict.startswith("cannot tell: ")
        assert "other held-out problems" in verdict

    def test_arms_without_a_common_seed(self, tmp_path):
        write(tmp_path, "arm", 0)
        write(tmp_path, "grpo", 1)
        [verdict] = judged([AHEAD], load_all(tmp_path))["verdict"]
        assert verdict == "cannot tell: the arms have no seed in common"

    def test_a_single_seed(self, tmp_path):
        write(tmp_path, "arm")
        write(tmp_path, "grpo")
        [verdict] = judged([AHEAD], load_all(tmp_path))["verdict"]
        assert verdict == "cannot tell: a single seed has no interval"

    def test_a_lab_without_a_pool_has_no_second_epoch(self, tmp_path):
        for label in ("arm", "grpo"):
            write(tmp_path, label, columns={"ratio": [0.5, 0.5]}, lab={"pool": None})
        late = difference(**PAIR, column="ratio", from_epoch=2)
        with pytest.raises(ValueError, match="its lab has no pool, so it has no epoch 2"):
            late.measured(load_all(tmp_path))


def test_claims_of_a_paper():
    assert {claim.paper for claim in claims.of("AERO")} == {"AERO"}
    assert set(claims.of("AERO")) < set(claims.of())
    with pytest.raises(ValueError, match="paper='PODs'"):
        claims.of("PODs")
