"""Arms: what may be compared, how it reaches another process, and when it counts as the same."""

import copy
import functools
import hashlib
import importlib.util
import os
import pickle
import re
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from workbench import config
from workbench.rules.advantages import OfRewards
from workbench.slots import Selection, Slot
from workbench.trials.arms import Arm, as_method, make_arms
from workbench.trials.cases import Case
from workbench.trials.fingerprints import Pickle, fingerprint, pickle_lab, pickle_object
from workbench.trials.trial import Trial
from workbench.utils.descriptions import compose, describe
from workbench.utils.shipped import shipped


class FirstHalf(Slot):
    def select(self, rollouts, context):
        return Selection(np.arange(len(rollouts) // 2))


class Parted(Slot):
    def __init__(self, part):
        self.part = part

    def select(self, rollouts, context):
        return Selection(np.arange(len(rollouts) // self.part))


def half_of_grpo():
    return wb.methods.grpo().but(name="half", selector=FirstHalf())


@pytest.mark.parametrize(
    "value, label, selector",
    [
        ("pods", "pods", "MaxVariance"),
        (wb.methods.grpo().but(name="mine", selector=FirstHalf()), "mine", "FirstHalf"),
        (FirstHalf, "FirstHalf", "FirstHalf"),
        (Parted(4), "Parted", "Parted"),
        (half_of_grpo, "half_of_grpo", "FirstHalf"),
        ("tests.test_arms:half_of_grpo", "half_of_grpo", "FirstHalf"),
    ],
)
def test_an_arm_is_a_method_a_name_or_what_makes_one(value, label, selector):
    [baseline, arm] = make_arms(value, "grpo")
    assert (baseline.label, arm.label) == ("grpo", label)
    assert type(arm.method.selector).__name__ == selector


def test_a_slot_value_takes_its_place_in_the_baseline():
    [_, arm] = make_arms(FirstHalf, against=wb.methods.dapo())
    assert type(arm.method.selector) is FirstHalf
    assert arm.method.objective == wb.methods.dapo().objective


@pytest.mark.parametrize(
    "given, message",
    [
        ([], "arms: at least one"),
        ("podz", "did you mean 'pods'"),
        (3, "arm 3"),
        (Parted, "arm Parted: missing a required argument"),
        (wb.labs.tiny, "arm Lab"),
        (["pods", "pods"], "two are called 'pods'"),
        ("grpo", "two are called 'grpo'"),
        ({"a\nb": "pods"}, "label="),
    ],
)
def test_what_is_no_arm_is_named(given, message):
    with pytest.raises(ValueError, match=message):
        make_arms(given)


# To another process


def test_what_cannot_be_sent_is_refused_and_says_why():
    with pytest.raises(ValueError, match=r"arm 'mine': it cannot be sent.*open files, locks"):
        pickle_object("arm 'mine'", Parted(threading.Lock()), "")


def test_a_lab_goes_with_its_verifier():
    lab = wb.labs.tiny(pool=8, held_out=4)
    sent = pickle.loads(pickle.dumps(pickle_lab(lab))).load()
    assert sent.description() == lab.description() and sent.digests() == lab.digests()
    assert sent.verifier.score([r"\boxed{2}"], ["2"]).reward == 1


def test_labs_that_differ_in_their_model_alone_are_told_apart(tmp_path):
    """A trial uses the tuning runs of one beside it, where labs are the same."""
    sizes = {"small": {}, "large": {"size": "large"}, "late": {"base": "late"}}
    digests = set()
    for name, options in sizes.items():
        lab = wb.labs.tiny(pool=32, held_out=8, samples=12, **options)
        settings = Trial("pods", lab=lab, out=tmp_path / name, jobs=1).settings
        digests |= {pickle_lab(each).fingerprint for each in (settings.tuning_lab, settings.lab)}
    assert len(digests) == 2 * len(sizes)
    problems = wb.problems.from_rows([{"prompt": "1+1=", "answer": "2"}])
    for options in ({}, {"template": "Q: {prompt}"}, {"lora": {"r": 4}}, {"lora": {"r": 8}}):
        lab = wb.labs.transformers(str(shipped("models/tiny")), problems, **options)
        assert lab.config is None
        digests.add(pickle_lab(lab).fingerprint)
    assert len(digests) == 2 * len(sizes) + 4


# The same definition


def defined(folder, code):
    """The class Mine of a module with this code."""
    # A folder of its own for each code: two files of one name, size and second would share what
    # Python has compiled.
    folder = folder / hashlib.sha256(code.encode()).hexdigest()[:8]
    folder.mkdir(exist_ok=True)
    path = folder / "written_methods.py"
    path.write_text("import numpy as np\nfrom workbench.slots import Selection, Slot\n" + code)
    spec = importlib.util.spec_from_file_location("written_methods", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Mine


CODE = """
import functools
import types

SHARE = 2

def in_three(rollouts):
    return len(rollouts) // 3

helpers = types.ModuleType("helpers")
helpers.third = in_three
helpers.unused = 5

class Settings:
    def __init__(self, n):
        self.n = n

SETTINGS = Settings(11)
SET = {21, 22}
ARRAY = np.array([31.0, 32.0])

def defaults(rollouts, *, most=41):
    return SETTINGS.n, SET, ARRAY, most

@functools.cache
def kept(rollouts):
    return range(len(rollouts) // SHARE)

class Mine(Slot):
    floor = 1
    @functools.cached_property
    def ceiling(self):
        return 7
    def select(self, rollouts, context):
        defaults(rollouts)
        return Selection(kept(rollouts)[: helpers.third(rollouts)])
"""


@pytest.mark.parametrize(
    "old, new, same",
    [
        ("", "", True),
        ("SHARE = 2", "SHARE = 2  # half of them", True),
        ("Selection(kept(rollouts)", "Selection(kept(rollouts)[1:]", False),
        ("len(rollouts) // SHARE", "len(rollouts) - SHARE", False),
        ("SHARE = 2", "SHARE = 3", False),
        ("floor = 1", "floor = 2", False),
        ("return 7", "return 8", False),
        ("// 3", "// 4", False),
        ("unused = 5", "unused = 6", True),
        ("Settings(11)", "Settings(12)", False),
        ("21, 22", "21, 23", False),
        ("31.0, 32.0", "31.0, 33.0", False),
        ("most=41", "most=42", False),
        ("\nSHARE", "\n\n\nSHARE", True),
    ],
)
def test_a_fingerprint_is_that_of_the_code_and_of_what_it_uses(tmp_path, old, new, same):
    before = fingerprint(as_method(defined(tmp_path, CODE)))
    after = fingerprint(as_method(defined(tmp_path, CODE.replace(old, new) if old else CODE)))
    assert (before == after) is same


CONSTANTS = """
import enum
import re
from collections import deque
from decimal import Decimal
from fractions import Fraction
import pandas as pd
import torch

class Colour(enum.Enum):
    RED = {0}
    BOTH = frozenset(["{0}", "b", "c", "d"])

class Point:
    def __init__(self, x):
        self.x = x

VALUE = {1}

class Mine(Slot):
    CLASS = VALUE
    def select(self, rollouts, context):
        return Selection(np.array([VALUE]))
"""
KINDS = [
    're.compile("[0-{0}]")',
    're.compile(b"x", {0})',
    're.compile("x" * 300 + "{0}")',
    '[re.compile("{0}")]',
    'b"{0}"',
    '{{"a": bytearray(b"{0}")}}',
    "torch.tensor([{0}.5], dtype=torch.bfloat16, requires_grad=True)",
    "pd.DataFrame({{'a': [{0}, None]}}, index=['x', 'y'])",
    "{{'a': pd.Series([1], index=['{0}'])}}",
    "pd.Index([{0}])",
    "deque([1, deque([{0}])])",
    "Fraction(1, {0})",
    "Decimal('{0}')",
    "({0} + 1j, range({0}))",
    "Colour.RED",
    "{{Colour.BOTH}}",
    "{{'words': {{'a', 'b', 'c', '{0}'}}}}",
    "{{frozenset(['a', 'b', 'c', '{0}']), Point({0})}}",
    "{{frozenset(['a', 'b', 'c', '{0}']): 1, print: 2}}",
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_edited_constant_of_any_usual_kind_is_another_arm(kind, tmp_path):
    def of(number, kind=kind):
        code = CONSTANTS.format(2 if "Colour" not in kind else number, kind.format(number))
        return fingerprint(defined(tmp_path, code)())

    assert of(2) == of(2) != of(3)
    # Also as the argument of an object of one's own.
    as_argument = f"Point({kind})"
    assert of(2, as_argument) == of(2, as_argument) != of(3, as_argument)


SEVERAL = """
import functools

def scaled(factor):
    return lambda rewards: rewards * factor

def times(factor):
    def decorate(function):
        @functools.wraps(function)
        def multiplied(*arguments):
            return function(*arguments) * factor
        return multiplied
    return decorate

RULES = {"a": lambda rewards: rewards + 3, "b": lambda rewards: rewards + 5}
MADE = [scaled(7), scaled(11)]

class Counter:
    def count(self):
        return 13

class Mine(Slot):
    counter = Counter()

    class Inner:
        number = 17

    @property
    def most(self):
        return self._most

    @most.setter
    def most(self, most):
        self._most = most + 19

    @times(23)
    def first(self):
        return 2

    @times(29)
    def select(self, rollouts, context):
        return [RULES, MADE, self.counter.count(), self.Inner.number]
"""


@pytest.mark.parametrize("number", [3, 5, 7, 11, 13, 17, 19, 23, 29])
def test_what_has_one_name_several_times_counts_each_time(number, tmp_path):
    """As lambdas have, and what a factory or a decorator makes."""

    def of(code):
        return fingerprint(defined(tmp_path, code)())

    edited = re.sub(rf"\b{number}\b", "31", SEVERAL)
    assert of(SEVERAL) == of(SEVERAL) != of(edited)


@pytest.mark.parametrize("kind", ["np.random.default_rng()", "object()", "torch.Generator()"])
def test_what_has_a_state_and_no_content_does_not_count(kind, tmp_path):
    """Otherwise a trial could not go on: such objects differ in every process."""
    mine = defined(tmp_path, CONSTANTS.format(2, kind))
    before = fingerprint(mine())
    names = mine.select.__globals__
    names["VALUE"] = mine.CLASS = eval(kind, names)
    assert fingerprint(mine()) == before


@pytest.mark.slow
def test_fingerprints_are_the_same_in_every_process(tmp_path):
    code = "import numpy as np\nfrom workbench.slots import Selection, Slot\n"
    listed = ", ".join(kind.format(2) for kind in KINDS)
    code += CONSTANTS.format(2, f"[{listed}, {{print, repr}}, Point]")
    code += """
from dataclasses import dataclass
from workbench.trials.fingerprints import fingerprint

@dataclass(frozen=True)
class First:
    a: int | None = 1

@dataclass(frozen=True)
class Second:
    b: int = 2

ONE, TWO, THREE = Point(1), Point(2), Point(3)

class Using(Mine):
    def join(self):
        return [First(), Second(), ONE, TWO, THREE, np.add, self.select]

print(fingerprint(Using()))
"""
    (tmp_path / "script.py").write_text(code)
    found = set()
    for seed in "12":
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.getcwd()}
        command = [sys.executable, str(tmp_path / "script.py")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.add(done.stdout.strip())
    assert len(found) == 1 and len(found.pop()) == 16


def test_a_fingerprint_stays_when_the_object_is_copied_or_pickled(tmp_path):
    mine = defined(tmp_path, CODE)()
    before = fingerprint(mine)
    copy.copy(mine)
    assert "__slotnames__" in vars(type(mine)), "Python keeps this once an object is copied"
    assert fingerprint(mine) == before


def test_a_class_of_ones_own_is_left_as_it_is(tmp_path):
    """Otherwise a trial that goes on in the same kernel takes it for an edited one."""
    method = "def select(self, rollouts, context):\n        return Selection(np.arange(3))"
    mine = defined(tmp_path, f"class Mine(Slot):\n    {method}")
    select = mine.select
    options = {"lab": wb.labs.tiny(pool=32, held_out=8), "out": tmp_path / "trial", "jobs": 1}
    before = fingerprint(mine)
    for _ in range(2):
        Trial({"mine": mine}, **options)
    assert mine.select is select
    assert fingerprint(mine) == before


class Times:
    """A callable object, and one with a method, whose factor is state."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, rewards, groups):
        return rewards * self.factor

    def scores(self, rewards, groups):
        return rewards * self.factor


SPACE = types.SimpleNamespace(factor=1)


def power(factor, rewards, groups):
    return rewards**factor


def by_namespace(rewards, groups):
    return rewards * SPACE.factor


def of_namespace(factor):
    SPACE.factor = factor
    return by_namespace


@pytest.mark.parametrize(
    "make",
    [
        Times,
        lambda factor: Times(factor).scores,
        lambda factor: functools.partial(power, factor),
        lambda factor: lambda rewards, groups: rewards * factor,
        of_namespace,
    ],
    ids=["object", "method", "partial", "closure", "namespace"],
)
def test_functions_that_differ_in_a_number_are_different_arms(make):
    def of(factor):
        return fingerprint(wb.methods.grpo().but(advantage=OfRewards(make(factor))))

    assert of(1) == of(1) != of(2)


def test_a_partial_is_described_with_its_arguments_by_place():
    made = functools.partial(power, 2, groups=None)
    assert describe(made) == {"is": "test_arms.power", "0": 2, "groups": None}
    assert compose(made) == "power(2, groups=None)"


def test_code_without_a_source_is_told_apart_too():
    """As it is in a session that keeps no source."""

    def of(code):
        names = {"__name__": "__main__", "Slot": Slot}
        exec(code, names)
        return fingerprint(as_method(names["Mine"]))

    code = "class Mine(Slot):\n    def select(self, rollouts, context):\n        return {}"
    assert of(code.format(1)) == of(code.format(1)) != of(code.format(2))


def test_an_arm_is_the_same_under_another_name_and_not_with_another_argument():
    grpo = Arm("a", wb.methods.grpo())
    assert grpo.fingerprint == Arm("b", config.method("grpo").but(name="mine")).fingerprint
    assert grpo.fingerprint != Arm("b", wb.methods.grpo(n=4)).fingerprint


GOLDEN = {
    "grpo": "6640246860ce15f6",
    "pods": "bc78a93661b1494a",
    "knapsack": "2ef68b971533540d",
    "aero": "af0cad7a12132e1a",
    "duet": "a3982365b9109640",
}


def test_fingerprints_stay_as_the_directories_of_finished_trials_have_them():
    """Otherwise no run of an earlier trial would be recognised."""
    found = {name: Arm(name, config.method(name)).pickle().fingerprint for name in GOLDEN}
    assert found == GOLDEN
    lab = wb.labs.tiny(pool=32, held_out=8, samples=12)
    assert pickle_lab(lab).fingerprint == "9211ff91341a3a9d"
    method, lab = (Pickle(b"", name) for name in ("method", "lab"))
    case = Case("a", {"seed": 1, "cost": 2}, Path(), Path(), method=method, lab=lab)
    assert case.fingerprint() == "0771ea44562d4f61"
