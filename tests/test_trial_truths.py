"""Trials of arms whose effect is known by construction, in the default lab; each takes minutes."""

import pandas as pd
import pytest

import workbench as wb
from papers.truths import TRUTHS, Truth, summary, tried
from workbench import curricula


class OtherOrder(curricula.ShuffledEpochs):
    """Every problem once an epoch, in an order that the baseline does not have."""

    def choose(self, pool, n, context):
        problems, self.cursor = pool.draw(n, self.cursor, context.seed + 500, context.taken)
        self.epoch = pool.epoch(self.cursor)
        return problems


OTHER_ORDER = Truth(
    wb.methods.grpo().but(name="other", curriculum=OtherOrder()), wb.methods.grpo(), 1.0
)


@pytest.mark.long
@pytest.mark.parametrize("truth", [*TRUTHS, "alike"])
def test_a_trial_does_not_contradict_what_is_true_by_construction(truth, tmp_path, monkeypatch):
    monkeypatch.setitem(TRUTHS, "alike", OTHER_ORDER)
    row = tried(truth, tmp_path / "trial")
    # An interval that misses the truth, or a verdict on its wrong side, is an error of one in 20.
    assert row["low"] <= row["ratio"] <= row["high"]
    # Equal runs leave nothing open.
    assert row["verdict"] in (("alike",) if truth == "same" else (truth, "open"))


def test_trials_are_counted_by_their_verdicts():
    rows = [
        {"truth": "worse", "ratio": 1.15, "verdict": verdict, "low": low, "high": 1.5}
        for verdict, low in (("worse", 1.1), ("open", 0.9), ("better", 1.2))
    ]
    table = pd.DataFrame(rows).assign(measured=[1.2, 1.1, 1.3], seeds=8, seconds=[100, 300, 200])
    [row] = summary(table).to_dict("records")
    assert (row["trials"], row["right"], row["wrong"], row["holds"]) == (3, 1, 1, 2)
    assert (row["measured"], row["seconds"]) == (1.2, 200)
