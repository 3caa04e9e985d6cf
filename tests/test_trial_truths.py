"""Trials whose answer is known by construction; `python -m papers.truths` makes whole ones."""

import pandas as pd
import pytest
from conftest import timeless
from trial_script import lab

import workbench as wb
from papers.truths import summary, tried

# A trial as small as one can be, see `trial_script.make`.
SMALL = {"rounds": 4, "problems_per_round": 4, "rates": [5e-3], "tuning_seeds": 1, "seeds": 2}


@pytest.mark.long
def test_what_a_trial_said_of_an_arm_that_makes_the_same_runs(tmp_path):
    out = tmp_path / "trial"
    row = tried("same", out, first_seed=7, lab=lab(), target=0.48, **SMALL)
    assert (row["truth"], row["first_seed"], row["ratio"], row["seeds"]) == ("same", 7, 1, 2)
    for seed in (7, 8):
        mine, baseline = (wb.load(out / "runs" / arm / f"seed-{seed}") for arm in ("mine", "grpo"))
        pd.testing.assert_frame_equal(timeless(mine.rounds), timeless(baseline.rounds))
    # Equal runs are alike, unless too few of them have arrived.
    assert row["verdict"] in ("alike", "open") and row["measured"] == 1


def test_trials_are_counted_by_their_verdicts():
    rows = [
        {"truth": "worse", "ratio": 1.15, "verdict": verdict, "low": low, "high": 1.5}
        for verdict, low in (("worse", 1.1), ("open", 0.9), ("better", 1.2))
    ]
    table = pd.DataFrame(rows).assign(measured=[1.2, 1.1, 1.3], seeds=8, seconds=[100, 300, 200])
    [row] = summary(table).to_dict("records")
    assert (row["trials"], row["right"], row["wrong"], row["holds"]) == (3, 1, 1, 2)
    assert (row["measured"], row["seconds"]) == (1.2, 200)
