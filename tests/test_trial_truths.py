"""Trials whose answer is known by construction; `python -m papers.truths` makes whole ones."""

import pandas as pd
import pytest

from papers.truths import summary, tried

# A trial as small as it can be: both arms at one rate and its two neighbours, two pairs.
SMALL = {"rounds": 4, "rates": [2e-3], "tuning_seeds": 1, "seeds": 2, "problems_per_round": 8}


@pytest.mark.slow
def test_what_a_trial_said_of_an_arm_that_makes_the_same_runs(tmp_path):
    row = tried("same", tmp_path / "trial", first_seed=100, **SMALL)
    assert (row["truth"], row["first_seed"], row["seeds"]) == ("same", 100, 2)
    # Equal runs leave nothing open.
    assert row["verdict"] == "alike" and row["measured"] == row["low"] == row["high"] == 1


def test_trials_are_counted_by_their_verdicts():
    rows = [
        {"truth": "worse", "ratio": 1.15, "verdict": verdict, "low": low, "high": 1.5}
        for verdict, low in (("worse", 1.1), ("open", 0.9), ("better", 1.2))
    ]
    table = pd.DataFrame(rows).assign(measured=[1.2, 1.1, 1.3], seeds=8, seconds=[100, 300, 200])
    [row] = summary(table).to_dict("records")
    assert (row["trials"], row["right"], row["wrong"], row["holds"]) == (3, 1, 1, 2)
    assert (row["measured"], row["seconds"]) == (1.2, 200)
