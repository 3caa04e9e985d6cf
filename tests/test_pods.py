"""PODS: what a step costs, what the rules leave to train on, and the figures of its notebook."""

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from written_records import curve

from papers import claims, pods, tuned
from papers.intervals import Interval
from workbench.analysis import cost
from workbench.analysis.curves import read
from workbench.analysis.runs import load_all
from workbench.labs import shipped

pytestmark = pytest.mark.slow

GRPO, PODS, RANDOM, MAX_REWARD = pods.ARMS.values()
SEEDS = (0, 1, 2)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def write_arm(place, label, slope, rollouts, lost):
    """Twelve steps of one problem that gain `slope` each; every `lost`-th has no gradient."""
    trained = [0 if lost and (step + 1) % lost == 0 else 16 for step in range(12)]
    columns = {
        "problems": [1] * 12,
        "selected": [16] * 12,
        "trained": trained,
        "tokens_sampled": [10 * rollouts] * 12,
        "tokens_trained": [10 * number for number in trained],
        "tokens_selected": [160] * 12,
        "effective_gradient_ratio": [number / 16 for number in trained],
        "gradient_norm": [0.5] * 12,
        "all_negative": [float(number == 0) for number in trained],
        "length": list(np.linspace(10, 12, 12)),
    }
    for seed in SEEDS:
        accuracies = 0.2 + 0.01 * seed + 2 * slope * np.arange(7)
        curve(place, label, seed, accuracies, every=2, rollouts=rollouts, columns=columns)


@pytest.fixture
def folder(tmp_path):
    """The arms of the regime, with four times the rollouts and twice the gain in PODS."""
    place = tmp_path / "regimes" / "pods"
    write_arm(place, "grpo-16", 0.01, 16, lost=4)
    write_arm(place, "pods", 0.02, 64, lost=0)
    write_arm(place, "random", 0.01, 64, lost=4)
    write_arm(place, "max-reward", 0.005, 64, lost=2)
    return place


@pytest.fixture
def shelf(folder):
    return tuned.Shelf(folder, pods.ARMS)


class TestLoading:
    def test_the_two_trials_and_their_records_are_read(self, folder, tmp_path):
        for label in pods.BATCH_ARMS:
            write_arm(tmp_path / "regimes" / "pods-batch", label, 0.01, 32, lost=0)
        records, shelf, batch = pods.load(tmp_path)
        assert "regimes/pods/pods" in records
        assert list(shelf.groups) == list(pods.ARMS.values())
        assert list(batch.groups) == list(pods.BATCH_ARMS.values())
        assert "regimes/pods-batch/grpo-32" in records

    @pytest.mark.long
    def test_every_run_of_a_figure_is_recorded(self):
        labels = {label for pair in pods.BATCHES.values() for label in pair}
        for sizes in (*pods.SIZES.values(), *pods.TUNED_SIZES.values()):
            labels |= set(sizes.values())
        labels |= {label for rules in pods.RULES_AT_ONE_RATE.values() for label in rules.values()}
        recorded = {
            f"{folder}/{label}"
            for folder in {label.rpartition("/")[0] for label in labels}
            for label in load_all(shipped("runs") / folder)
        }
        assert labels <= recorded


class TestWhatAStepCosts:
    def test_equal_steps_and_a_step_of_twice_the_price(self, shelf):
        """PODS gains .02 a step and GRPO .01: level where a step costs twice as much."""
        table = pods.by_step_price(shelf.curves, PODS, GRPO, [0.5, 1, 2, 4])
        assert table["value"].tolist() == pytest.approx([18, 12, 0, -6])
        assert table["n"].tolist() == [3] * 4
        assert pods.break_even_step(shelf.curves, PODS, GRPO).estimate == pytest.approx(2)

    def test_an_arm_that_is_never_level_has_no_price(self, shelf):
        found = pods.break_even_step(shelf.curves, MAX_REWARD, GRPO)
        assert np.isnan(found).all()

    @pytest.mark.parametrize("price", [0, -1, np.nan])
    def test_a_price_is_above_zero(self, shelf, price):
        with pytest.raises(ValueError, match="price"):
            pods.by_step_price(shelf.curves, PODS, GRPO, [price])

    def test_a_machine_is_a_point_with_its_fixed_part(self, shelf):
        free = cost.CostModel(0.25, "selected", fixed=0, by="rollouts")
        heavy = cost.CostModel(0.25, "selected", fixed=28, by="rollouts")
        units = {"steps": "round", "free": free, "heavy": heavy, "rollouts": "rollouts"}
        points = pods.machine_points(shelf.curves, PODS, GRPO, units)
        # 16 + 64 / 4 over 16 + 16 / 4, and the same with 28 more in both.
        assert points["price"].tolist() == pytest.approx([1, 32 / 20, 60 / 48, 4])
        at = pods.by_step_price(shelf.curves, PODS, GRPO, points["price"])
        assert points["value"].tolist() == pytest.approx(at["value"].tolist())

    def test_a_measured_price_comes_first_and_keeps_its_interval(self, shelf):
        points = pods.machine_points(shelf.curves, PODS, GRPO, {"rollouts": "rollouts"})
        interval = Interval(2.0, 1.5, 2.5)
        both = pods.with_measured(points, "card", interval, shelf.curves, PODS, GRPO)
        assert list(both.index) == ["card", "rollouts"]
        assert both.loc["card", ["price", "price_low", "price_high"]].tolist() == [2.0, 1.5, 2.5]
        assert both.loc["card", "value"] == pytest.approx(0)
        assert np.isnan(both.loc["rollouts", "price_low"])

    def test_the_authors_card_took_a_third_longer(self):
        found = pods.measured_step("max-variance 64 to 16", "GRPO 16")
        assert found.low < found.estimate < found.high
        assert found.estimate == pytest.approx(10.1 / 7.6, abs=0.02)
        same = pods.measured_step("GRPO 16", "GRPO 16")
        assert same.estimate == pytest.approx(1)
        with pytest.raises(ValueError, match="there are"):
            pods.measured_step("best", "GRPO 16")


class TestWhatIsTrained:
    def test_steps_without_a_gradient(self, shelf):
        table = pods.rules_at_work(shelf.groups)
        lost = table["without a gradient, %"]
        assert lost.tolist() == pytest.approx([25, 0, 25, 50])
        assert table["no right one, %"].tolist() == pytest.approx(lost.tolist())
        assert table.loc[GRPO, "trained rollouts"] == pytest.approx(12)

    def test_parts_of_a_run_are_named_by_their_steps(self, shelf):
        table = pods.rules_at_work(shelf.groups, parts=3)
        assert [part for _, part in table.index[:3]] == [
            "steps 1 to 4",
            "steps 5 to 8",
            "steps 9 to 12",
        ]

    def test_only_steps_with_a_gradient_are_counted(self, shelf):
        unit = pods.WithGradient()
        rounds = pd.DataFrame({"trained": [0, 16, 3]})
        assert unit.per_round(rounds).tolist() == [0, 1, 1]
        curves = read(shelf.groups)
        pair = {"pods": (PODS, GRPO)}
        table = tuned.gains(curves, pair, {"steps": "round", "with": unit})
        # GRPO has nine steps with a gradient, after which it gained .12; PODS then gained .18.
        assert table["steps"].loc["pods", "value"] == pytest.approx(12)
        assert table["with"].loc["pods", "value"] == pytest.approx(6)

    def test_best_and_last(self, shelf):
        table = pods.at_last_and_best(shelf, {"above GRPO": ("grpo-16", "round")})
        assert table.loc["above GRPO", ("last", "value")] == pytest.approx(12)
        assert table.loc["above GRPO", ("best", "value")] == pytest.approx(12)

    @pytest.mark.parametrize(
        ("right", "kept"), [(0, 0), (1, 1), (4, 4), (20, 4), (28, 4), (29, 5), (32, 8)]
    )
    def test_theorem_2(self, right, kept):
        """Half of the kept ones are right, or as near as there are enough of both."""
        assert pods.nearest_to_half(right, 32, 8) == kept


class TestVerdicts:
    @pytest.fixture(scope="class")
    def table(self):
        records, shelf, _ = pods.load(shipped("runs"))
        return pods.verdict_table(records, shelf)

    @pytest.mark.long
    def test_every_claim_has_a_row(self, table):
        expected = len(claims.of("PODS")) + len(pods.CLAIMS_OF_FIGURES)
        assert len(table) == expected + len(pods.CLAIMS_OF_SIZES) + len(pods.CLAIMS_AT_ONE_RATE)
        assert table["claim"].is_unique

    @pytest.mark.long
    def test_claims_at_one_rate_say_so(self, table):
        last = table.tail(len(pods.CLAIMS_AT_ONE_RATE))
        assert (last["verdict"] == "cannot tell: no tuned run").all()
        assert (last["at one rate"] != "").all()

    @pytest.mark.long
    def test_the_rule_is_decided_between_tuned_arms(self, table):
        [row] = table[table["claim"].str.startswith("max-variance above random")].to_dict("records")
        assert (row["seeds"], row["verdict"]) == ("8", "agrees")


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


class TestFigures:
    def test_machines_stand_in_the_legend_with_their_price(self, shelf):
        units = {"a card": cost.MACHINES["l40s"], "rollouts": "rollouts"}
        points = pods.machine_points(shelf.curves, PODS, GRPO, units)
        points = pods.with_measured(
            points, "measured", Interval(1.3, 1.2, 1.4), shelf.curves, PODS, GRPO
        )
        ax = pods.step_prices(shelf.curves, PODS, GRPO, points, title="level at 2")
        assert legend(ax) == ["measured: 1.30", "a card: 1.32", "rollouts: 4.00"]
        assert ax.get_title("left") == "level at 2 (3 seeds)"
        assert ax.get_xlim()[1] > 4

    def test_rules_have_two_panels(self, shelf):
        left, right = pods.rule_panels(shelf.groups, title="rules", smooth=4)
        assert right.get_ylim() == (0, 1)
        assert "mean of 4" in right.get_ylabel()
        assert left.get_ylim() != (0, 1)

    def test_released_runs_count_runs_and_not_seeds(self):
        runs = pods.released_runs()
        runs = runs[runs["setting"].isin(["GRPO 16", "random 64 to 16"])]
        same = pods.released_panels(
            {"by hours": (runs, "hours"), "by steps": (runs, "steps")}, title="a", ylabel="b"
        )
        assert [ax.get_legend() for ax in same] == [None, None]
        [shared] = same[0].figure.legends
        assert [text.get_text() for text in shared.get_texts()] == [
            "GRPO 16 (10 runs)",
            "random 64 to 16 (10 runs)",
        ]
        others = pods.multi_gpu_runs("h100s")
        apart = pods.released_panels(
            {"one": (runs, "hours"), "eight": (others, "hours")}, title="a", ylabel="b"
        )
        assert legend(apart[1]) == ["GRPO 32 (5 runs)", "max-variance 128 to 32 (5 runs)"]

    def test_sizes_of_released_runs(self):
        left, right = pods.released_sizes(6, title="sizes")
        assert [text.get_text() for text in left.get_xticklabels()] == [
            "16",
            "32",
            "64",
            "128",
            "256",
        ]
        assert legend(right)[0] == "after 6 hours"
        left, right = pods.released_curves(title="curves")
        assert legend(left) == ["16", "32", "64", "128", "256"]
        assert legend(right) == ["2", "4", "8", "16"]

    @pytest.mark.long
    def test_sizes_at_one_rate(self, tmp_path):
        labels = {label for sizes in pods.SIZES.values() for label in sizes.values()}
        records = {}
        for label in labels:
            write_arm(tmp_path, label.replace("/", "-"), 0.01, 16, lost=4)
            records[label] = load_all(tmp_path)[label.replace("/", "-")]
        units = {"equal rounds": "round"}
        axes, table = pods.size_panels(records, units, pods.SIZES, title="sizes")
        assert table.loc[("n sampled, m = 8 kept", 8), "equal rounds"] == pytest.approx(0.33)
        assert table["effective_gradient_ratio"].tolist() == pytest.approx([0.75] * 9)
        assert axes[0].get_xlabel() == "n sampled, m = 8 kept (3 seeds)"
        assert axes[0].get_ylim() == axes[1].get_ylim()

    @pytest.mark.long
    def test_batches_have_a_row_each(self, tmp_path):
        labels = {label for pair in pods.BATCHES.values() for label in pair}
        records = {}
        for label in labels:
            slope = 0.02 if label.endswith("pods") else 0.01
            write_arm(tmp_path, label.replace("/", "-"), slope, 16, lost=4)
            records[label] = load_all(tmp_path)[label.replace("/", "-")]
        tables = pods.batches(records, {"equal steps": "round"})
        assert tables["equal steps"]["value"].tolist() == pytest.approx([12] * len(pods.BATCHES))
        assert list(tables["equal steps"].index) == list(pods.BATCHES)

    def test_kept_groups(self):
        groups = pd.DataFrame({"right": [0, 5, 5], "kept": [0, 4, 4]})
        ax = pods.kept_figure(groups, 32, 8)
        assert ax.get_title("left").startswith("3 groups")
        assert legend(ax) == ["theorem 2"]
