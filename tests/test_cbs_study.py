"""CBS's tables and figures, against cases worked out by hand and the recorded runs."""

from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from conftest import small_lab
from written_records import curve, write

from papers import cbs, tuned
from workbench.analysis.curves import read
from workbench.analysis.runs import load_all
from workbench.plots.style import style

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def recorded():
    return cbs.load(ROOT / "data/runs")


@pytest.fixture
def two_arms(tmp_path):
    """Two arms of two and three seeds, four rounds and one step or four in each of them."""
    for label, slope, steps, seeds in (("few", 0.05, 1, 2), ("many", 0.1, 4, 3)):
        for seed in range(seeds):
            accuracies = 0.2 + 0.01 * seed + slope * np.arange(0, 5, 2)
            columns = {
                "steps": [steps] * 4,
                "seconds": [2.0] * 4,
                "seconds_scheduler": [0.02] * 4,
                "scheduler_reward": [0.0, 2.0, 0.0, 2.0],
                "scheduler_error": [1.0, 1.0, 1.0, 9.0],
                "entropy": [0.1] * 4,
            }
            curve(tmp_path, label, seed, accuracies, every=2, columns=columns)
    return load_all(tmp_path)


class TestCosts:
    def test_steps_are_a_unit_of_spending(self, two_arms):
        curves = read(two_arms)
        assert curves["few"][0].places(cbs.STEPS).tolist() == [0, 2, 4]
        assert curves["many"][0].places(cbs.STEPS).tolist() == [0, 8, 16]

    def test_arms_above_one_another(self, two_arms):
        table = cbs.above(two_arms, {"more": ("many", "few")})
        assert table.loc["more", "value"] == pytest.approx(20)
        assert table.loc["more", "seeds"] == 2
        best = cbs.above(two_arms, {"more": ("many", "few")}, "best")
        assert best.loc["more", "value"] == pytest.approx(20)

    def test_the_scheduler_and_its_buffer_share_the_time(self, two_arms):
        assert cbs.scheduler_share(two_arms["few"][0]) == pytest.approx(1)
        table = cbs.scheduler_shares(two_arms)
        assert table.loc["many", ["mean", "largest", "seeds"]].tolist() == pytest.approx([1, 1, 3])

    def test_what_is_saved_is_a_share_of_the_baseline(self, tmp_path):
        for label, part in (("all", 1.0), ("some", 0.25)):
            for seed in (0, 1):
                columns = {
                    "tokens_sampled": [100, 100],
                    "tokens_selected": [80 * part, 80 * part],
                    "tokens_trained": [40 * part, 40 * part],
                    "flops": [10.0, 10.0],
                    "seconds_generate": [1.0, 1.0],
                    "seconds_update": [2 * part, 2 * part],
                }
                write(tmp_path, label, seed, columns=columns)
        table = cbs.saved(load_all(tmp_path), {"it": ("some", "all")}).loc["it"]
        assert table["selected tokens", "value"] == pytest.approx(75)
        assert table["update time", "value"] == pytest.approx(75)
        assert table["FLOPs", "value"] == pytest.approx(0)


class TestLearning:
    def test_ends_of_every_seed(self, two_arms):
        curves = read(two_arms)
        table = cbs.ends_by_seed(curves)
        assert table.loc["few", "seed 1"] == pytest.approx(41)
        assert np.isnan(table.loc["few", "seed 2"])
        assert table.loc["few", "deviation"] == pytest.approx(0.5**0.5)

    def test_noise_by_hand(self, two_arms):
        table = cbs.noise(two_arms)
        assert table.loc["few", "reward"] == pytest.approx((4 / 3) ** 0.5)
        assert table.loc["few", "entropy"] == 0
        assert table.loc["few", "error"] == 1

    def test_scores_are_read_early_and_late(self, tmp_path):
        """Scores that first fall and then rise with the length."""
        rows = []
        for number, sign in ((1, -1.0), (2, 1.0)):
            columns = {
                "round": np.full(3, number),
                "age": np.zeros(3, int),
                "score": sign * np.arange(3.0),
                "feature_length": np.arange(3.0),
            }
            rows.append(columns)
        write(tmp_path, "cbs", 0, rollouts=(3, 3), rows=rows)
        table = cbs.scores_by_seed(load_all(tmp_path)["cbs"], ["length"], windows=2)
        assert table.loc["seed 0", ("length", "first")] == pytest.approx(-1)
        assert table.loc["seed 0", ("length", "last")] == pytest.approx(1)
        assert table.loc["seed 0", ("accuracy", "end")] == pytest.approx(75)

    @pytest.mark.slow
    def test_networks_differ_before_they_have_learnt(self):
        lab = small_lab(pool=32, levels=(1, 2, 3), held_out=0)
        table = cbs.first_networks(lab, [0, 1], problems=32)
        assert table.index.tolist() == ["seed 0", "seed 1", "all"]
        assert table["gradient"].between(0, 100).all()
        assert (table.loc["seed 0"] != table.loc["seed 1"]).any()
        again = cbs.first_networks(lab, [1], problems=32)
        pd.testing.assert_series_equal(again.loc["seed 1"], table.loc["seed 1"])

    def test_one_choice_is_what_others_are_compared_with(self):
        table = cbs.regret_ratios("random", (1, 2), range(3), 60)
        assert table.loc[1].tolist() == [1, 0]
        assert 0 < table.loc[2, "mean"] < 1.5


class TestOnRecords:
    @pytest.mark.long
    def test_the_arms_are_those_of_the_regime(self, recorded):
        from papers.regimes import REGIMES

        for name, shelf in recorded.shelves.items():
            assert isinstance(shelf, tuned.Shelf)
            assert set(shelf.records) == set(cbs.ARMS) == set(REGIMES[f"cbs-{name}"].arms())
            assert {len(group) for group in shelf.groups.values()} == {8}

    @pytest.mark.long
    def test_a_table_of_verdicts_has_both_measurements(self, recorded):
        table = cbs.verdict_table(recorded.records).set_index("claim")
        first = table.iloc[: -len(cbs.CLAIMS_AT_ONE_RATE)]
        assert set(first["seeds"]) == {"8"}
        last = table.iloc[-len(cbs.CLAIMS_AT_ONE_RATE) :]
        assert (last["at one rate"] != "").all()
        assert set(last["verdict"]) == {"cannot tell: no tuned run"}
        claim = "accuracy of CBS* above the full set's, equal rounds, points"
        assert table.loc[claim, "verdict"] == "disagrees"

    @pytest.mark.slow
    def test_kinds_of_features_are_compared(self, recorded):
        groups = {"CBS": recorded.records["cbs/grpo-buffer"][:2]}
        table = cbs.signals(cbs.strength(groups))
        assert table.loc["CBS", ("reward signals", "mean")] > 0.4

    @pytest.mark.slow
    def test_figures_name_the_arms(self, recorded):
        shelf = recorded.shelves["grpo"]
        ax = cbs.ends_figure(cbs.ends_by_seed(shelf.curves), title="a seed fails")
        assert [text.get_text() for text in ax.get_yticklabels()] == list(cbs.ARMS.values())
        axes = cbs.update_panels(recorded.records, title="cheaper")
        assert [ax.get_title("left") for ax in axes] == ["GRPO", "DAPO", "GSPO"]
        [legend] = axes[0].figure.legends
        assert [text.get_text() for text in legend.get_texts()] == list(cbs.SCOPES.values())

    @pytest.mark.slow
    def test_sizes_of_the_buffer_stand_beside_their_time(self, recorded):
        sizes = {number: recorded.records[f"cbs-ablations/rounds-{number}"] for number in (1, 5)}
        with style():
            _, table = cbs.size_panels(sizes, title="more")
        assert table.index.tolist() == [1, 5]
        assert table["% of the time", "mean"].is_monotonic_increasing
