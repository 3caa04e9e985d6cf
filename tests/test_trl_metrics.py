"""The metrics of TRL's loss, averaged over micro-batches of different sizes, by hand."""

import numpy as np
import pytest

pytest.importorskip("trl", reason="trl is not installed: pip install 'workbench-rlvr[trl]'")

from workbench.trl.batches import Part
from workbench.trl.losses import LossMetrics

# Two micro-batches: one row of 30 tokens beside a filler, and three rows of 10 tokens in all.
PARTS = [Part(np.arange(1), 1.0, 30.0, 1, 1), Part(np.arange(3), 1.0, 10.0, 3, 0)]


def mean(name, values, per_sequence):
    """The mean of a metric that has these values in the two micro-batches."""
    metrics = LossMetrics(per_sequence)
    for value, part in zip(values, PARTS):
        logged = {name: [value]}
        metrics.take(logged, {}, part)
        assert logged[name] == [], "TRL would average what it still has"
    return metrics.means()[name]


@pytest.mark.parametrize("name", ["clip_ratio/high_mean", "cispo_clip_ratio"])
def test_clip_ratios_of_sequences_weigh_by_sequences_and_leave_out_fillers(name):
    # The row of the first one is clipped, the filler is not: TRL's mean over both is 1/2. Of the
    # second one two of three are clipped.
    assert mean(name, [1 / 2, 2 / 3], per_sequence=True) == pytest.approx(3 / 4)


@pytest.mark.parametrize("name", ["clip_ratio/high_mean", "cispo_clip_ratio"])
def test_clip_ratios_of_tokens_weigh_by_tokens(name):
    assert mean(name, [0.1, 0.5], per_sequence=False) == pytest.approx((30 * 0.1 + 10 * 0.5) / 40)


@pytest.mark.parametrize("per_sequence", [True, False])
def test_the_weight_of_a_sequence_is_one_value_for_each_at_any_level(per_sequence):
    found = mean("vespo/phi_seq_mean", [0.2, 0.6], per_sequence)
    assert found == pytest.approx((1 * 0.2 + 3 * 0.6) / 4)


def test_other_metrics_weigh_by_tokens_at_any_level():
    assert mean("kl", [0.2, 0.6], per_sequence=True) == pytest.approx((30 * 0.2 + 10 * 0.6) / 40)
