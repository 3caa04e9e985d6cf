"""What stands in a table beside a shelf follows from the runs on the shelf.

The runs of the tuning are not kept, so `tuning.csv`, the learning rates' ranges and the first
stages of a search have nothing to be recomputed from.
"""

import pandas as pd
import pytest

from papers import standings
from papers.regimes import REGIMES, recomputed, recorded_table
from workbench.analysis.runs import load_all
from workbench.labs import shipped

pytestmark = pytest.mark.slow

RUNS = shipped("runs")
NUMBERS = ["ratio", "low", "high", "seeds", "reached", "baseline_reached", "learning_rate"]
NUMBERS += ["baseline_learning_rate", "target", "difference", "difference_low", "difference_high"]
NUMBERS += ["resolves", "p", "p_holm", "break_even"]
DIGITS = 1e-5  # the tables have six significant digits


def trials():
    """The folder of every recorded trial, and the label of its baseline."""
    found = {"leaderboard": "grpo", "leaderboard-search": "grpo", "steps": "grpo"}
    for name in pd.read_csv(RUNS / "regimes" / "arms.csv")["trial"].unique():
        found[f"regimes/{name}"] = REGIMES[name].against
    for name in pd.read_csv(RUNS / "stress" / "arms.csv")["trial"].unique():
        found[f"stress/{name}"] = "grpo"
    return found


@pytest.mark.parametrize(("folder", "against"), trials().items())
@pytest.mark.long
def test_what_was_found_of_every_arm_follows_from_the_shelf(folder, against):
    recorded = recorded_table(RUNS / folder, "arms").set_index("arm")
    recorded = recorded[recorded["ratio"].notna()]
    found = recomputed(RUNS / folder, against)
    assert list(found.index) == list(recorded.index)
    assert found["verdict"].tolist() == recorded["verdict"].tolist()
    for name in NUMBERS:
        values = [table[name].to_numpy(dtype=float) for table in (found, recorded)]
        assert values[0] == pytest.approx(values[1], rel=DIGITS, abs=1e-9, nan_ok=True), name


@pytest.mark.long
def test_the_leaderboard_follows_from_its_shelf():
    board = pd.read_csv(RUNS.parent / "leaderboard.csv", index_col="method")
    arms = pd.read_csv(RUNS / "leaderboard" / "arms.csv")
    groups = load_all(RUNS / "leaderboard")
    target = float(arms["target"].dropna().iloc[0])
    table = standings.table(groups, target=target, units=standings.FAIR_UNITS)
    assert list(table.index) == list(board.index)
    for name in table:
        if pd.api.types.is_numeric_dtype(table[name]):
            values = [each[name].to_numpy(dtype=float) for each in (table, board)]
            assert values[0] == pytest.approx(values[1], rel=DIGITS, abs=1e-9, nan_ok=True), name
    # The table of the trial and the board say the same of the same runs.
    verdicts = arms.set_index("arm")["verdict"]
    assert board["verdict"].drop("grpo").to_dict() == verdicts.to_dict()
