"""The contrast on a pretrained model: how the pairs of two tasks are read."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import workbench as wb
from papers import contrast
from workbench.analysis.curves import read
from workbench.rollouts import Rollouts
from workbench.utils.numbers import ratio_text

PAGE = (Path(__file__).parents[1] / "docs" / "ladder.md").read_text()
BOARD = Path(__file__).parents[1] / "data" / "runs" / "leaderboard"
RUNS = BOARD.with_name("contrast")


@pytest.fixture(scope="module")
def task():
    found = wb.load_all(*[BOARD / name for name in ("grpo", "ar3po", "grpo-16")])
    curves = read(found)
    return {"grpo": curves["grpo"], "ar3po": curves["ar3po"], "grpo-5": curves["grpo-16"]}


def test_the_pairs_of_two_tasks_are_read_as_one_trial(task):
    one = contrast.answer({"sums": task}).set_index(["arm", "against"])
    both = contrast.answer({"sums": task, "others": task}).set_index(["arm", "against"])
    pair = ("ar3po", "grpo")
    assert (one.loc[pair, "pairs"], both.loc[pair, "pairs"]) == (8, 16)
    assert one.loc[pair, "ratio"] == pytest.approx(both.loc[pair, "ratio"])
    # The leaderboard has .75 [.70, .81] to .51; the target here is .5.
    assert one.loc[pair, "ratio"] == pytest.approx(0.75, abs=0.02)
    assert one.loc[pair, "low"] < both.loc[pair, "low"] < 0.75 < both.loc[pair, "high"]
    assert (both["p_holm"] >= both["p"]).all()


@pytest.mark.slow
def test_the_page_predicts_what_the_runs_of_the_small_lab_say():
    table = contrast.predicted(BOARD.with_name("group-sizes"))
    names = {"ar3po": "AR3PO", "grpo": "GRPO with 8", "grpo-5": "GRPO with 5"}
    for row in table.itertuples():
        shown = f"{row.ratio:.2f} [{row.low:.2f}, {row.high:.2f}]"
        assert f"| {names[row.arm]} over {names[row.against]} | {shown} |" in PAGE


def test_what_is_sampled_in_a_round_is_known_before_training():
    runs = {"chains": wb.load_all(BOARD.with_name("group-sizes"))}
    ratios = contrast.sampled_a_round(runs)
    assert ratios["grpo-5", "grpo"] == pytest.approx(5 / 8)
    assert ratios["ar3po", "grpo"] == pytest.approx(0.60, abs=0.006)
    assert ratios["ar3po", "grpo-5"] == pytest.approx(0.96, abs=0.006)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """Real runs of the same arms, those of the small lab, where those of the tasks will be."""
    place = tmp_path_factory.mktemp("contrast")
    tasks = [contrast.folder_of(task) for task in contrast.TASKS]
    for name in (*tasks, f"{tasks[-1]}-controls"):
        shutil.copytree(BOARD.with_name("group-sizes"), place / name)
    return place


@pytest.mark.slow
def test_predictions_and_results_stand_side_by_side(shelf):
    table = contrast.beside_the_predictions(BOARD.with_name("group-sizes"), shelf)
    names = ["AR3PO over GRPO with 8", "AR3PO over GRPO with 5", "GRPO with 5 over GRPO with 8"]
    sources = ["small lab", *contrast.TASKS, "both tasks"]
    assert list(table.index) == [(name, source) for name in names for source in sources]
    assert table["pairs"].tolist() == [8, 8, 8, 16] * 3
    first = table.loc[names[0]]
    # Both tasks together have the same ratio here, and a narrower interval.
    assert first["ratio"].iloc[1:].nunique() == 1
    assert first.loc["both tasks", "high"] < first.loc["additions to 20", "high"]
    assert first["sampled_a_round"].tolist() == pytest.approx([0.60] * 4, abs=0.006)

    ax = contrast.draw(table, title="Predicted and measured").axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == names
    shown = ax.get_legend_handles_labels()[1]
    assert shown == [
        "small lab",
        "pretrained, additions to 20",
        "pretrained, the largest of four",
        "pretrained, both tasks",
        "sampled in a round",
    ]


@pytest.mark.slow
def test_controls_are_read_after_as_many_rounds(shelf):
    table = contrast.of_controls(shelf)
    accuracy = wb.load_all(BOARD.with_name("group-sizes") / "grpo")["grpo"][0].accuracy()
    assert table.loc["grpo", "start"] == pytest.approx(accuracy["accuracy"].iloc[0], abs=0.02)
    assert table.loc["grpo", "n"] == contrast.FEW
    # More rollouts of a problem are more accurate after as many rounds.
    assert table.loc["grpo-12", "difference"] > 0 > table.loc["grpo-4", "difference"]


def text_of(row):
    return ratio_text(row["ratio"], row["low"], row["high"])


@pytest.mark.slow
def test_the_page_has_what_the_runs_say():
    table = contrast.beside_the_predictions(BOARD.with_name("group-sizes"), RUNS)
    again = contrast.at_one_rate(RUNS)
    sources = ("small lab", "both tasks", *contrast.TASKS)
    for number, name in enumerate(table.index.unique("contrast")):
        ratios = [text_of(table.loc[(name, source)]) for source in sources]
        known = f"{table.loc[(name, 'both tasks'), 'sampled_a_round']:.2f}"
        assert f"| {' | '.join([name, *ratios, known])} |" in PAGE
        assert f"| {name} | {text_of(again.iloc[number])} |" in PAGE
    assert table["pairs"].tolist() == [8, 30, 30, 60] * 3
    # GRPO with five has the rate already, and its runs are not made again.
    assert again["pairs"].tolist() == [30] * 3


@pytest.mark.slow
def test_the_page_has_what_the_controls_show():
    table = contrast.of_controls(RUNS)
    for label in ("pods", "luck"):
        row = table.loc[label]
        value, low, high = (100 * row[name] for name in ("difference", "low", "high"))
        assert f"{value:.1f} [{low:.1f}, {high:.1f}]" in " ".join(PAGE.split())


@pytest.mark.long
def test_the_runs_are_the_arms_at_their_best_rates():
    found = pd.read_csv(RUNS / "arms.csv")
    rates = {
        trial: {
            **dict(zip(rows["arm"], rows["learning_rate"], strict=True)),
            "grpo": rows["baseline_learning_rate"].max(),
        }
        for trial, rows in found.groupby("trial")
    }
    rates[contrast.AT_ONE_RATE] = dict.fromkeys(contrast.OTHER_RATES, contrast.ONE_RATE)
    for trial, of_arm in rates.items():
        seeds = contrast.FEW if trial.endswith("controls") else contrast.PAIRS
        for label, records in contrast.of_folders(RUNS / trial).items():
            assert sorted(record.seed for record in records) == list(range(seeds))
            for record in records:
                assert record.problems() == []
                used = record.manifest["arguments"]["learning_rate"]
                assert used == pytest.approx(of_arm[label], rel=1e-5)


def test_luck_knows_nothing_of_the_answer():
    texts = [f"the answer is {number}" for number in range(400)]
    columns = {
        "problem": np.array(["a"] * 400, dtype=object),
        "text": np.array(texts, dtype=object),
    }
    rollouts = Rollouts.of_columns(columns)
    drawn = contrast.Luck()(rollouts, None)
    assert set(drawn) == {0, 1}
    assert 0.4 < drawn.mean() < 0.6
    assert (drawn == contrast.Luck()(rollouts, None)).all()
