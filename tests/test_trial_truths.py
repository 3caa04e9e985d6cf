"""Trials of arms whose effect is known by construction, in the default lab; each takes minutes.

An arm that samples more responses than it trains on, at random, is GRPO that wastes the rest: its
updates are distributed as GRPO's are, and a round costs more rollouts by exactly that share.
"""

import os
import time

import numpy as np
import pytest

import workbench as wb
from workbench import allocators, curricula, selectors

pytestmark = pytest.mark.long


class Wasteful(allocators.Uniform):
    """n responses on average, as whole numbers that differ from problem to problem."""

    def __init__(self, share):
        super().__init__(8)
        object.__setattr__(self, "share", share)

    def allocate(self, problems, context):
        wanted = 8 * self.share
        more = context.rng("waste").random(len(problems)) < wanted % 1
        yield np.full(len(problems), int(wanted), dtype=np.int64) + more


class OtherOrder(curricula.ShuffledEpochs):
    """Every problem once an epoch, in an order that the baseline does not have."""

    def choose(self, pool, n, context):
        problems, self.cursor = pool.draw(n, self.cursor, context.seed + 500, context.taken)
        self.epoch = pool.epoch(self.cursor)
        return problems


def wasteful(share):
    return wb.methods.grpo().but(
        name="wasteful", allocator=Wasteful(share), selector=selectors.Random(8)
    )


class EveryRollout(selectors.All):
    """What GRPO does, as a class of one's own: another arm on paper, and the same runs."""


TRIALS = {
    "better": ("grpo", wasteful(1 / 0.85), 0.85),
    "worse": (wasteful(1.15), "grpo", 1.15),
    "same": (wb.methods.grpo().but(selector=EveryRollout()), "grpo", 1.0),
    "alike": (wb.methods.grpo().but(name="other", curriculum=OtherOrder()), "grpo", 1.0),
}


@pytest.mark.parametrize("truth", TRIALS)
def test_a_trial_does_not_contradict_what_is_true_by_construction(truth, tmp_path):
    arm, against, ratio = TRIALS[truth]
    started = time.monotonic()
    trial = wb.trial(arm, against=against, lab=wb.labs.tiny(), out=tmp_path / "trial")
    [row] = trial.table.to_dict("records")
    print(trial)
    print(f"{time.monotonic() - started:.0f} s, at a load of {os.getloadavg()[1]:.1f}")
    # An interval that misses the truth, or a verdict on its wrong side, is an error of one in 20.
    assert row["low"] <= ratio <= row["high"]
    right = "alike" if truth == "same" else truth
    # Equal runs leave nothing open.
    assert row["verdict"] in ((right,) if truth == "same" else (right, "open"))
