"""Recorded trials as the notebooks of the papers show them."""

from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from written_records import curve

from papers import tuned, verdicts
from papers.verdicts import Claim, Finding, judge
from workbench.analysis.curves import read
from workbench.analysis.intervals import Measurement

NAMES = {"grpo": "GRPO", "mine": "mine"}
ARMS = pd.DataFrame({"arm": ["mine"], "measure": ["round"], "target": [0.3]})
TUNING = pd.DataFrame(
    {
        "arm": ["grpo", "grpo", "mine", "mine", "other"],
        "learning_rate": [3e-4, 9e-4, 3e-4, 9e-4, 9e-4],
        "seed": 1000,
        "cost": [4.0, 2.0, 3.0, np.inf, 2.0],
        "reached": [True, True, True, False, True],
        "collapsed": [False, False, False, True, False],
    }
)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture
def shelf(tmp_path):
    """Two arms of two seeds and four rounds; an arm gains .05 or .1 a round."""
    for label, slope, rate in (("grpo", 0.05, 9e-4), ("mine", 0.1, 3e-4), ("other", 0.1, 9e-4)):
        for seed in (0, 1):
            accuracies = 0.2 + 0.01 * seed + slope * np.arange(0, 5, 2)
            columns = {"problems": [4] * 4}
            arguments = {"learning_rate": rate}
            place = tmp_path / "trial"
            curve(place, label, seed, accuracies, every=2, columns=columns, arguments=arguments)
    # Another trial has rows in the same tables.
    for name, table in {"arms": ARMS, "tuning": TUNING}.items():
        rows = [table.assign(trial="trial"), table.assign(trial="another", arm="grpo")]
        pd.concat(rows).to_csv(tmp_path / f"{name}.csv", index=False)
    return tuned.Shelf(tmp_path / "trial", NAMES)


def test_a_shelf_shows_the_arms_that_are_named(shelf):
    assert list(shelf.records) == ["grpo", "mine", "other"]
    assert list(shelf.groups) == ["GRPO", "mine"]
    assert list(shelf.curves) == ["GRPO", "mine"]
    assert shelf.target == 0.3
    assert set(shelf.tuning["arm"]) == {"GRPO", "mine"}


def test_rates_of_every_arm(shelf):
    table = shelf.rates()
    assert table.loc["GRPO"].to_dict() == {
        "learning rate": "0.0009",
        "tried": "0.0003 to 0.0009",
        "tuning runs": 2,
        "collapsed": 0,
        "seeds": 2,
        "rounds": 4,
        "rollouts": 40,
    }
    assert table.loc["mine", ["learning rate", "collapsed"]].tolist() == ["0.0003", 1]


def test_records_are_named_by_folder_and_label(shelf, tmp_path):
    runs = tuned.recorded(tmp_path, ["trial", "missing"])
    assert set(runs) == {f"trial/{label}" for label in ("grpo", "mine", "other")}
    assert [record.manifest["seed"] for record in runs["trial/mine"]] == [0, 1]


def test_the_figure_of_tuning_names_its_arms_and_marks_their_rates(shelf):
    figure = tuned.tuning_figure(
        shelf, {"both": ["GRPO", "mine"], "one": ["mine"]}, title="a rate each"
    )
    both, one = figure.axes
    assert [text.get_text() for text in both.get_legend().get_texts()] == ["GRPO", "mine"]
    assert [text.get_text() for text in one.get_legend().get_texts()] == ["mine"]
    assert both.get_ylim() == one.get_ylim()
    circles = [line for line in both.lines if line.get_markersize() == 11]
    assert [circle.get_xdata()[0] for circle in circles] == [9e-4, 3e-4]
    assert both.get_ylabel() == "rounds to an accuracy of 0.30"


def test_gains_are_points_at_an_equal_budget_of_each_pair(shelf):
    tables = tuned.gains(shelf.curves, {"mine": ("mine", "GRPO")}, {"by rounds": "round"})
    assert list(tables) == ["by rounds"]
    row = tables["by rounds"].loc["mine"]
    assert row["value"] == pytest.approx(20)
    assert row["n"] == 2


def test_differences_on_the_way_are_those_at_parts_of_the_common_budget(shelf):
    table = tuned.on_the_way(shelf.curves, "mine", "GRPO", {"by rounds": "round"}, parts=2)
    half, end = table.loc[("by rounds", "1/2")], table.loc[("by rounds", "2/2")]
    assert half[["mine", "GRPO", "difference"]].tolist() == pytest.approx([40.5, 30.5, 10])
    assert end[["mine", "GRPO", "difference"]].tolist() == pytest.approx([60.5, 40.5, 20])
    assert list(table) == ["mine", "GRPO", "difference", "low", "high"]


def test_a_pair_is_not_cut_by_a_third_arm(shelf, tmp_path):
    """GRPO and the arm have four rounds; a third one has two."""
    for seed in (0, 1):
        curve(
            tmp_path / "trial",
            "short",
            seed,
            [0.2, 0.3],
            every=2,
            arguments={"learning_rate": 9e-4},
        )
    names = {**NAMES, "short": "short"}
    curves = read(
        {name: tuned.Shelf(tmp_path / "trial", names).groups[name] for name in names.values()}
    )
    table = tuned.gains(curves, {"mine": ("mine", "GRPO")}, {"by rounds": "round"})["by rounds"]
    assert table.loc["mine", "value"] == pytest.approx(20)


@pytest.mark.long
def test_further_claims_leave_the_verdicts_of_the_published_ones_as_they_are():
    """The table of a paper's notebook says of a claim what the table of all papers says."""
    data = Path(__file__).parent.parent / "data"
    further = [Claim("AERO", f"further {number}") for number in range(20)]
    seen = [Finding(Measurement(np.array([-0.1, 0.0, 0.1])))] * 20
    records = tuned.recorded(data / "runs", ["regimes/aero"])
    table = tuned.claims_of_paper("AERO", records, further, seen, seen)
    everywhere = verdicts.read(data / "verdicts.csv")
    known = everywhere.loc[everywhere["paper"] == "AERO", "verdict"]
    assert table["verdict"].tolist() == [*known, *["cannot tell"] * 20]


def test_a_table_of_verdicts_has_both_measurements():
    claims = [Claim("A", "seen", published="+1"), Claim("A", "not tuned")]
    values = Measurement(np.array([0.9, 1.0, 1.1]))
    found = judge(claims, [Finding(values), Finding(reason="no tuned run")])
    before = tuned.one_rate(judge(claims, [Finding(reason="no run"), Finding(values)]))
    table = tuned.verdict_table(found, before)
    assert table.loc[0].tolist() == ["seen", "+1", "", "", "", "+1.0 [0.8, 1.2]", "3", "agrees"]
    assert table.loc[1, ["at one rate", "verdict at one rate"]].tolist() == [
        "+1.0 [0.8, 1.2]",
        "agrees",
    ]
    assert table.loc[1, ["tuned", "seeds", "verdict"]].tolist() == [
        "",
        "",
        "cannot tell: no tuned run",
    ]
