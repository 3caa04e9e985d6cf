"""AR3PO's tables and figures, against cases worked out by hand and the recorded runs."""

from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from conftest import small_lab
from written_records import curve, write

import workbench as wb
from papers import ar3po, tuned
from workbench.analysis.curves import read
from workbench.analysis.runs import load_all
from workbench.analysis.targets import to_target

ROOT = Path(__file__).parent.parent
# Problem p: 2 of 4, then 1 of 2; problem q: 0 of 2.
TWO_VISITS = pd.DataFrame(
    {
        "problem": list("ppppqqpp"),
        "round": [1] * 6 + [2] * 2,
        "correct": [True, True, False, False, False, False, False, True],
    }
)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def recorded():
    return ar3po.load(ROOT / "data/runs")


@pytest.fixture(scope="module")
def groups(recorded):
    """Two seeds of each tuned arm are enough."""
    return {name: records[:2] for name, records in recorded.shelf.groups.items()}


class TestRolloutsByRate:
    def test_by_hand(self):
        table = ar3po.rollouts_by_rate(TWO_VISITS)
        assert table["problems"].tolist() == [1, 0, 1, 0, 0]
        assert table.loc["0 to 0.2", ["rollouts", "rate"]].tolist() == [2, 0]
        assert table.loc["0.4 to 0.6", ["rollouts", "rate"]].tolist() == [3, 0.5]
        assert np.isnan(table.loc["0.8 to 1", "rollouts"])
        sure = ar3po.rollouts_by_rate(TWO_VISITS.assign(correct=True))
        assert sure.loc["0.8 to 1", "problems"] == 2

    def test_a_second_stage_is_asked_for_where_the_first_has_no_right_one(self):
        """4 rollouts, and 4 more with probability (1 - p)^4."""
        rates = np.array([0.0, 0.5, 1.0])
        expected = [8, 4 + 4 / 16, 4]
        assert ar3po.expected_rollouts(rates).tolist() == pytest.approx(expected)


class TestCosts:
    @pytest.fixture
    def curves(self, tmp_path):
        """Three arms of two seeds and four rounds of ten rollouts."""
        for label, slope in (("GRPO", 0.05), ("AR3PO", 0.1), ("DAPO", 0.1)):
            for seed in (0, 1):
                curve(tmp_path, label, seed, 0.2 + slope * np.arange(0, 5, 2), every=2)
        return read(load_all(tmp_path))

    def test_one_arm_is_billed_flat_and_the_others_stay(self, curves):
        billed = ar3po.flat_bill(curves)
        assert billed["DAPO"][0].table["rollouts"].tolist() == [24 * 32] * 4
        assert billed["AR3PO"][0].places("rollouts").tolist() == [0, 20, 40]
        assert curves["DAPO"][0].table["rollouts"].tolist() == [10] * 4

    def test_accuracy_after_so_many_rollouts(self, curves):
        found = ar3po.accuracy_after(curves["AR3PO"], 30)
        assert found["accuracy"] == pytest.approx(0.5)
        assert (found["±"], found["rounds"], found["seeds"]) == (pytest.approx(0), 3, 2)

    def test_gains_by_round_are_points_above_the_baseline(self, tmp_path):
        for label, slope in (("GRPO", 0.05), ("AR3PO", 0.1)):
            for seed in (0, 1):
                curve(tmp_path, label, seed, 0.2 + slope * np.arange(0, 5, 2), every=2)
        table = ar3po.gain_by_round(load_all(tmp_path), "GRPO", [2, 4])
        assert table.index.tolist() == [2, 4]
        assert table["AR3PO", "difference"].tolist() == pytest.approx([10, 20])
        assert "GRPO" not in table.columns.get_level_values(0)

    def test_ratios_as_texts_leave_the_baseline_out(self, curves):
        tables = {"rounds": to_target(curves, 0.35, "round", baseline="GRPO")}
        texts = ar3po.ratio_texts(tables, "GRPO")
        assert texts.loc["rounds"].to_dict() == {
            "AR3PO": "0.50 [0.50, 0.50]",
            "DAPO": "0.50 [0.50, 0.50]",
        }

    @pytest.mark.slow
    def test_costs_by_rate(self, recorded):
        rounds = ar3po.cost_by_rate(recorded.shelf)
        assert list(rounds.index) == list(recorded.shelf.groups)
        # The geometric mean of the two tuning runs.
        assert rounds.loc["GRPO", 0.0009] == pytest.approx(np.sqrt(58.5766 * 61.5471))
        assert np.isposinf(rounds.loc["AR3PO", 0.0018])
        ends = ar3po.cost_by_rate(recorded.shelf, "end")
        assert ends.loc["GRPO", 0.0009] == pytest.approx(80.3125)
        # A rate that was tried with one seed only has no end.
        assert 0.0018 not in ends
        with pytest.raises(ValueError, match="value='start'"):
            ar3po.cost_by_rate(recorded.shelf, "start")


class TestReuse:
    def test_borrowed_responses_are_counted_where_they_were_trained_on(self, tmp_path):
        """Round 17 has two sampled responses and one of round 3."""
        first = {"round": np.full(2, 16), "stage": np.array([0, 1])}
        second = {"round": np.array([17, 17, 3]), "stage": np.array([0, 1, 2])}
        nothing = {"round": np.empty(0, int), "stage": np.empty(0, int)}
        write(
            tmp_path,
            "ar3po",
            scores=(),
            rollouts=[2] * 17,
            rows=[*[nothing] * 15, first, second],
            columns={"all_negative": [0.25] * 16 + [0.5]},
        )
        table = ar3po.borrowed(load_all(tmp_path)["ar3po"])
        assert table["borrowed"].tolist() == [0, 1]
        assert table["unsolved"].tolist() == [8, 16]
        assert table.loc[2, "age"] == 14

    @pytest.mark.slow
    def test_old_responses_are_further_from_the_policy_than_fresh_ones(self):
        lab = small_lab(pool=8, levels=(1, 2, 3), held_out=0)
        method = wb.methods.ar3po(k=2, mode="direct")
        run = wb.Run(lab, method, problems_per_round=8, evaluate_every=0, learning_rate=3e-3)
        list(run.rounds(8, progress=False))
        table = ar3po.reused_and_fresh(run.record, first=2)
        assert table.index.tolist() == ["borrowed", "fresh"]
        assert table.loc["fresh", "age"] == 0
        assert table.loc["borrowed", "responses"] > 0
        assert table.loc["borrowed", "moved"] > table.loc["fresh", "moved"]


class TestDirections:
    def test_agreement_by_hand(self):
        """Three updates of a round each, whose pairs have the cosines 1/2, 1/2 and 1."""
        right, up = [1.0, 0.0], [0.5, np.sqrt(0.75)]
        names = {"GRPO": np.array([right, up, up]), "other": np.array([right, right, right])}
        table = ar3po.agreement(names)
        assert table["updates"].tolist() == [3, 3]
        assert table["cosine"].tolist() == pytest.approx([2 / 3, 1])
        # Without one update each the means are 1, 1/2 and 1/2, of variance 1/18; times 2 of 3 - 1.
        assert table.loc["GRPO", "±"] == pytest.approx(2 * np.sqrt(2 / 18))
        assert table.loc["other", "±"] == pytest.approx(0)
        assert table.loc["other", "ratio"] == pytest.approx(3 / 2)
        with pytest.raises(ValueError, match="baseline='none'"):
            ar3po.agreement(names, baseline="none")

    def test_other_problems_have_no_ratio(self):
        names = {"GRPO": np.eye(4) + 1, "DAPO": np.eye(3) + 1}
        assert "ratio" not in ar3po.agreement(names).dropna(axis=1)

    @pytest.mark.slow
    def test_updates_are_directions_and_leave_the_policy_alone(self):
        lab = small_lab(pool=64, levels=(1, 2), held_out=0)
        policy = lab.policy()
        before = [parameter.detach().clone() for parameter in policy.parameters()]
        found = ar3po.update_directions(policy, lab, repeats=1)
        assert {name: len(rows) for name, rows in found.items() if name != "DAPO"} == {
            "GRPO": 2,
            "GRPO, N = 4": 2,
            "AR3PO": 2,
        }
        assert np.linalg.norm(found["AR3PO"], axis=1) == pytest.approx(np.ones(2))
        assert all(bool((a == b).all()) for a, b in zip(before, policy.parameters()))


class TestOnRecords:
    @pytest.mark.slow
    def test_every_arm_is_there_tuned_and_at_one_rate(self, recorded):
        assert list(recorded.shelf.groups) == list(ar3po.ARMS.values())
        assert list(recorded.one_rate) == list(ar3po.ARMS.values())
        assert {len(group) for group in recorded.shelf.groups.values()} == {8}

    @pytest.mark.slow
    def test_rollouts_stand_beside_published_ones(self, groups):
        table = ar3po.sampled(groups, (1, 100))
        assert table.loc["GRPO", "rollouts a problem"] == 8
        assert table.loc["DAPO", "less than DAPO, times"] == 1
        assert table["published, Qwen2.5-7B"].dropna().to_dict() == {
            "GRPO": 8,
            "DAPO": 24,
            "AR3PO": pytest.approx(5.7),
        }

    @pytest.mark.slow
    def test_bins_of_problems_follow_the_formula(self, groups):
        table = ar3po.rollouts_by_rate_over_seeds(groups["AR3PO"])
        assert (table["mean"] - table["expected"]).abs().max() < 0.5
        assert table["published"].dropna().tolist() == [6.95, 4]

    @pytest.mark.slow
    def test_every_claim_of_a_figure_is_measured(self, groups):
        findings = ar3po.measured(groups)
        assert len(findings) == len(ar3po.CLAIMS_OF_FIGURES)
        assert [found.measured.n for found in findings] == [2] * len(findings)

    @pytest.mark.slow
    def test_a_table_of_verdicts_has_both_measurements(self, recorded):
        table = ar3po.verdict_table(recorded.records, recorded.shelf.groups, recorded.one_rate)
        assert set(table["seeds"]) == {"8"}
        # No run at one rate is as long as those near the plateau.
        alone = table.loc[table["at one rate"] == "", "claim"]
        assert alone.tolist() == ["accuracy above GRPO near the plateau, equal rounds, points"]
        by_claim = table.set_index("claim")["verdict"]
        assert by_claim["rollouts a problem against GRPO's 8, %"] == "by definition"
        assert by_claim["accuracy above GRPO, equal rounds, points"] == "disagrees"

    def test_published_scores_are_those_of_two_tables(self):
        scores = ar3po.published_scores()
        assert scores.loc[("table 1", "AR3PO"), "Qwen2.5-7B"] == 43.1
        assert scores.loc[("table 2", "AR3PO, option II"), "Qwen2.5-7B"] == 43.1

    @pytest.mark.slow
    def test_figures_name_the_methods(self, groups):
        two = {name: groups[name] for name in ("GRPO", "AR3PO")}
        rollouts = ar3po.rollouts_figure(two, 40, title="fewer")
        assert [text.get_text() for text in rollouts.get_yticklabels()] == list(
            map(str, (0, 4, 8, 16, 24))
        )
        left, right = ar3po.unsolved_panels(two, 40, title="fewer")
        assert left.get_ylim() == right.get_ylim() == (0, 0.4)
        axes = ar3po.reward_panels(two, 40, title="more")
        [legend] = axes[0].figure.legends
        assert [text.get_text() for text in legend.get_texts()] == [*two, "AR3PO, first stage"]
        table = ar3po.rollouts_by_rate_over_seeds(groups["AR3PO"])
        ax = ar3po.by_rate_figure(table, 2, title="a curve")
        assert "measured (2 seeds)" in [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.mark.slow
def test_the_shelf_has_the_arms_of_the_regime():
    from papers.regimes import REGIMES

    labels = set(tuned.Shelf(ROOT / "data/runs/regimes/ar3po", {}).records)
    assert labels == set(REGIMES["ar3po"].arms()) == set(ar3po.ARMS)
