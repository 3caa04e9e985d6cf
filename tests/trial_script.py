"""A notebook as a script: a class of `__main__` in a trial that may be killed and called again.

python trial_script.py OUT
"""

import dataclasses
import sys

import numpy as np

import workbench as wb
from workbench.slots import Selection, Slot
from workbench.trials import engine
from workbench.verifiers.base import Scores, Verifier


class BeginsWithOne(Verifier):
    """Pays for answers that begin with 1, which a few rounds at a high rate teach the model."""

    def judge(self, responses, answers):
        return Scores.of(["ok" if r"\boxed{1" in text else "wrong" for text in responses])


class EverySecond(Slot):
    def select(self, rollouts, context):
        return Selection(np.arange(0, len(rollouts), 2))


class Broken(Slot):
    def select(self, rollouts, context):
        raise KeyError("no such column")


class Leaving(Slot):
    def select(self, rollouts, context):
        sys.exit()


class Backwards(wb.advantages.GroupNormalized):
    """Unlearns what is right."""

    def __call__(self, rollouts, context):
        return -super().__call__(rollouts, context)


class Everything(Verifier):
    """Pays for whatever the model says."""

    def judge(self, responses, answers):
        return Scores.of(["ok"] * len(responses))


def edited():
    """The class of this name with other code, as a cell that was changed and run again."""

    class EverySecond(Slot):
        def select(self, rollouts, context):
            return Selection(np.arange(1, len(rollouts), 2))

    EverySecond.__qualname__ = "EverySecond"
    return EverySecond()


ARMS = {
    "class": EverySecond,
    "edited": {"EverySecond": edited},
    "few": {"few, of 4": wb.methods.grpo(n=4)},
}


def lab(verifier=None):
    tiny = wb.labs.tiny(pool=16, levels=(1, 2), held_out=30, samples=8)
    return dataclasses.replace(tiny, verifier=verifier or BeginsWithOne())


def make(out, arms, verifier=None, **options):
    """A trial as small as one can be."""
    settings = {"rounds": 4, "problems_per_round": 4, "rates": [5e-3], "tuning_seeds": 1}
    # Runs begin between .40 and .45, and pass this target at one of the rates.
    settings |= {"lab": lab(verifier), "seeds": 2, "jobs": 2, "target": 0.48}
    return wb.trial(arms, out=out, **{**settings, **options})


if __name__ == "__main__":
    # None of its runs is a notebook, and papermill takes seconds to load.
    engine.PRELOAD = tuple(name for name in engine.PRELOAD if name != "papermill")
    trial = make(sys.argv[1], ARMS[sys.argv[2] if len(sys.argv) > 2 else "class"])
    print("sentence:", trial)
