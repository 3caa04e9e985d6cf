"""What the page of the leaderboard says of tuned steps a round, from the tables of its trial."""

import re
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "leaderboard.md").read_text().split("## Steps a round")[1]
ARMS = pd.read_csv(ROOT / "data" / "runs" / "steps" / "arms.csv", index_col="arm")
TUNING = pd.read_csv(ROOT / "data" / "runs" / "steps" / "tuning.csv")
ROWS = re.findall(r"^\| `(\S+)` \| (\d) \| ([\d.]+) \[([\d.]+), (\S+)\] \| (\w+) \|$", PAGE, re.M)


def test_the_table_has_every_arm_and_what_the_trial_said():
    assert {arm for arm, *_ in ROWS} == set(ARMS.index)
    for arm, steps, value, low, high, verdict in ROWS:
        found = ARMS.loc[arm]
        shown = [float(end) for end in (value, low, high.replace("open", "inf"))]
        assert shown == pytest.approx(found[["ratio", "low", "high"]].tolist(), abs=0.0051)
        assert (int(steps), verdict) == (found["mini_batches"], found["verdict"])


def test_the_steps_are_those_at_which_tuning_cost_least():
    points = TUNING.groupby(["arm", "mini_batches", "learning_rate"])["cost"]
    # What halving left behind has fewer seeds.
    costs = points.mean()[points.size() == TUNING["seed"].nunique()]
    best = {arm: int(steps) for arm, steps, _ in costs.groupby("arm").idxmin()}
    assert best.pop("grpo") == 4
    assert best == {arm: int(steps) for arm, steps, *_ in ROWS}


def test_readme_says_what_is_left_of_ar3po():
    value, low, high = ARMS.loc["ar3po", ["ratio", "low", "high"]]
    text = f"it needs {value:.2f} [{low:.2f}, {high:.2f}]".replace(" 0.", " .").replace("[0.", "[.")
    assert text in (ROOT / "README.md").read_text()
