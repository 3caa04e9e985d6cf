"""What the page of the leaderboard says of tuned steps a round, from the recorded runs."""

import re
from pathlib import Path

import pandas as pd
import pytest

from workbench.analysis.runs import load_all

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "leaderboard.md").read_text().split("## Steps a round")[1]
SHELF = ROOT / "data" / "runs" / "steps"
ARMS = pd.read_csv(SHELF / "arms.csv", index_col="arm")
ROWS = re.findall(r"^\| `(\S+)` \| (\d) \| ([\d.]+) \[([\d.]+), (\S+)\] \| (\w+) \|$", PAGE, re.M)


def test_the_table_has_every_arm_and_what_the_trial_said():
    assert {arm for arm, *_ in ROWS} == set(ARMS.index)
    for arm, steps, value, low, high, verdict in ROWS:
        found = ARMS.loc[arm]
        shown = [float(end) for end in (value, low, high.replace("open", "inf"))]
        assert shown == pytest.approx(found[["ratio", "low", "high"]].tolist(), abs=0.0051)
        assert (int(steps), verdict) == (found["mini_batches"], found["verdict"])


def test_the_runs_have_the_steps_that_the_page_names():
    used = {
        label: {record.manifest["arguments"]["mini_batches"] for record in records}
        for label, records in load_all(SHELF).items()
    }
    assert used.pop("grpo") == {4}
    assert used == {arm: {int(steps)} for arm, steps, *_ in ROWS}


def test_readme_says_what_is_left_of_ar3po():
    value, low, high = ARMS.loc["ar3po", ["ratio", "low", "high"]]
    text = f"it needs {value:.2f} [{low:.2f}, {high:.2f}]".replace(" 0.", " .").replace("[0.", "[.")
    assert text in (ROOT / "README.md").read_text()
