"""`wb.check` on values that keep the contract or break it, and the method of another package."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from test_slots import VALUES

import workbench as wb
from workbench.rules.rewards import Overlong
from workbench.slots import PerProblem, Selection, Slot, state_field

TRIED = [value for values in VALUES.values() for value in values]


def name_of(value):
    """A name that is the same in every process, unlike the address of a function."""
    return f"{type(value).__name__}-{TRIED.index(value)}"


@pytest.mark.slow
@pytest.mark.parametrize("value", TRIED, ids=name_of)
def test_every_slot_value_of_the_package_passes(value):
    wb.check(value)


def test_a_part_of_the_reward_is_tried():
    wb.check(Overlong())


class Near:
    """A share of the reward for a number close to the gold answer."""

    name = "near"
    weight = 0.5

    def __call__(self, rollouts, sampling):
        gold = np.array([float(answer) for answer in rollouts.answer])
        return 1 / (1 + np.abs(gold - rollouts.lengths))


def test_a_part_of_the_reward_reads_gold_answers():
    wb.check(Near())


class Base(Slot):
    """A selector that keeps the first rows of the round."""

    def select(self, rollouts, context):
        return Selection(np.arange(4))


class Sorts(Base):
    def select(self, rollouts, context):
        rollouts.reward.sort()
        return super().select(rollouts, context)


class Dice(Base):
    def select(self, rollouts, context):
        return Selection(np.random.permutation(len(rollouts))[:4])  # noqa: NPY002  the mistake


class OwnDice(Base):
    """Its generator goes on from round to round, and no checkpoint has it."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def select(self, rollouts, context):
        return Selection(self.rng.permutation(len(rollouts))[:4])


class Counts(Base):
    def __init__(self):
        self.rounds = 0

    def select(self, rollouts, context):
        return Selection(np.arange(1 + self.rounds))

    def feedback(self, rollouts, context):
        self.rounds += 1


class Forgets(Counts):
    def select(self, rollouts, context):
        return super().select(rollouts, context)

    def state_dict(self):
        return {"rounds": self.rounds}

    def load_state_dict(self, state):
        self.rounds = 0


class Objects(Counts):
    def select(self, rollouts, context):
        return super().select(rollouts, context)

    def state_dict(self):
        return {"rounds": object()}


class Shared(Base):
    seen: list = []  # noqa: RUF012  of the class, which is the mistake

    def feedback(self, rollouts, context):
        self.seen.append(1)

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen[:] = state["seen"]


@dataclass
class Averages(Slot):
    """What it has learnt is a field like its arguments, so a run that goes on begins with 0."""

    mean: float = 0.0

    def select(self, rollouts, context):
        return Selection(np.arange(4))

    def feedback(self, rollouts, context):
        self.mean += rollouts.reward.mean()


SEEN: dict = {}


class Global(Base):
    def feedback(self, rollouts, context):
        SEEN[context.round] = rollouts.reward.mean()


def counting():
    count = [0]

    def learn():
        count[0] += 1

    return learn


class Closed(Base):
    def __init__(self, learn):
        self.learn = learn

    def feedback(self, rollouts, context):
        self.learn()


class Beyond(Base):
    def select(self, rollouts, context):
        return Selection(np.array([10_000]))


class Promises(Base):
    def trained(self, sampled):
        return PerProblem(4)

    def select(self, rollouts, context):
        return Selection(np.arange(6))


class Reads(Base):
    reads_verdict = False

    def select(self, rollouts, context):
        return Selection(np.flatnonzero(rollouts.correct))


class Fails(Base):
    def select(self, rollouts, context):
        return rollouts.nothing


class Short(Slot):
    def __call__(self, rollouts, context):
        return np.zeros(3)


class Unkept(Base):
    def __init__(self, m):
        self.size = m

    def select(self, rollouts, context):
        return super().select(rollouts, context)


@dataclass
class Endless(Slot):
    counts: list = state_field(list)
    n: int = field(default=8)

    def allocate(self, problems, context):
        yield np.full(len(problems) + 1, self.n)


class Remembers(Base):
    """It uses what a run gives it: what was sampled, and a column of its own."""

    def select(self, rollouts, context):
        assert len(context.sampled) >= len(rollouts)
        mine = np.arange(len(rollouts)) / 2
        return replace(super().select(rollouts, context), columns={"mine": mine})

    def feedback(self, rollouts, context):
        assert (rollouts["mine"] == np.arange(len(rollouts)) / 2).all()


class Stops(wb.courses.Deadline):
    def feedback(self, rollouts, context):
        assert (rollouts["lost"] >= 0).all()


@pytest.mark.parametrize("value", [Remembers(), Stops()])
def test_what_a_run_gives_a_slot_is_there(value):
    wb.check(value)


@dataclass(frozen=True)
class Lottery:
    weight: float = 1.0
    name: ClassVar[str] = "lottery"

    def __call__(self, rollouts, sampling):
        return np.random.random(len(rollouts))  # noqa: NPY002  which is the mistake


class Loses(wb.replay.CorrectResponses):
    """Its checkpoint has other rewards than it has stored."""

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.stored = self.stored.assign(reward=np.full(len(self.stored), 0.25))


BROKEN = [
    (Loses("stop-gradient"), "state_dict"),
    (Lottery(), "one seed"),
    (Sorts(), "changes the rollouts"),
    (Dice(), "one seed"),
    (OwnDice(), "state_dict"),
    (Counts(), "state_dict"),
    (Forgets(), "load_state_dict"),
    (Objects(), "cannot be stored"),
    (Shared(), "remembers"),
    (Averages(), "Averages.mean"),
    (Global(), "SEEN"),
    (Closed(counting()), "count"),
    (Beyond(), "rows="),
    (Promises(), "trained"),
    (Reads(), "reads_verdict"),
    (Fails(), "AttributeError"),
    (Short(), "advantages="),
    (Unkept(4), "m=..."),
    (Endless(), "counts"),
    (Base, "value=Base"),
    (object(), "value="),
]


@pytest.mark.parametrize("value, names", BROKEN, ids=lambda v: v if isinstance(v, str) else None)
def test_a_broken_value_is_named_in_one_sentence(value, names):
    Shared.seen.clear()
    with pytest.raises(ValueError, match=r".") as error:
        wb.check(value)
    assert names in str(error.value) and "\n" not in str(error.value)


# A method of somebody else's package

TRIES = """
import json, sys
import workbench as wb
from workbench import config, verl
from workbench.__main__ import main
from workbench.utils.names import method_names

out = sys.argv[1]
method = config.method("shortest", {"m": 2}, {"allocator.n": 4})
assert method.selector.m == 2 and "shortest" in method_names()
assert config.method("grpo", None, {"selector": "Shortest", "selector.m": 3}).selector.m == 3
wb.check(method.selector)
lab = wb.labs.tiny(pool=16, base="clean", held_out=0)
run = wb.Run(lab, method, seed=0, out=out, problems_per_round=2, evaluate_every=0)
list(run.rounds(1))
again = wb.Run.resume(out)
(row,) = again.rounds(2)
assert row["selected"] == 4, row
keys = verl.configuration(method)
told = verl.method_of({"method": keys["trainer.v1.sampler.sampler_kwargs.method"]})
assert told.selector == method.selector
assert verl.method_of({"method": "shortest"}).selector.m == 4
# The command line knows it, too, and nothing else of the package.
cli = "run shortest --set n=4 --set m=2 --lab pool=16 --lab held_out=0 --rounds 1 --problems 2"
main([*cli.split(), "--out", sys.argv[2], "--evaluate-every", "0"], standalone_mode=False)
print(json.dumps({"selected": row["selected"], "class": type(again.method.selector).__module__}))
"""


@pytest.mark.long
def test_an_installed_package_brings_a_method(tmp_path):
    root = Path(__file__).parents[1]
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    copy = tmp_path / "method_package"
    subprocess.run(["cp", "-r", root / "examples/method_package", copy], check=True)
    subprocess.run([*install, "--target", target, copy], check=True)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), str(root)])}
    command = [sys.executable, "-c", TRIES, str(tmp_path / "run"), str(tmp_path / "cli")]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"selected": 4, "class": "workbench_shortest"}
    assert wb.load(tmp_path / "cli").label == "shortest"
    with pytest.raises(ValueError, match=r"^method='shortest'"):
        wb.config.method("shortest")  # not installed here
