"""Configurations as a user gets them wrong: each is one named error, before a model is loaded."""

import inspect
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from conftest import go, small_lab
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench as wb
from workbench import methods
from workbench.objectives import Objective
from workbench.policies import Sampling
from workbench.problems import arithmetic
from workbench.records import FORMAT, RecordWarning
from workbench.records.manifest import versions
from workbench.rules import allocators, rewards, selectors
from workbench.rules.advantages import OfRewards, leave_one_out, posterior
from workbench.slots import BASELINES, Slot


class Telepathic(Slot):
    """A selector that needs what nobody has."""

    needs = frozenset({"telepathy"})

    def select(self, rollouts, context):
        raise NotImplementedError


class Forgetful(Slot):
    """A selector that may not keep its argument."""

    def __init__(self, m, keep=False):
        self.keep = keep
        if keep:
            self.m = m

    def select(self, rollouts, context):
        raise NotImplementedError


class Unloadable:
    """A policy factory that must not be called."""

    def __call__(self):
        raise AssertionError("a model was loaded")


LAB = replace(small_lab(), make_policy=Unloadable())
method = wb.methods.grpo(4).but


def lab(**parts):
    return replace(LAB, **parts)


def run(lab=LAB, method=wb.methods.grpo(4), **options):
    return wb.Run(lab, method, **options)


MISTAKES = [
    # a run
    ("lab", lambda: run(lab="tiny")),
    ("lab", lambda: run(lab=wb.labs.tiny)),
    ("method", lambda: run(method="grpo")),
    ("method", lambda: run(method=methods.pods)),
    ("method", lambda: run(method=wb.Method)),
    ("problems_per_round", lambda: run(problems_per_round=33)),
    ("problems_per_round", lambda: run(problems_per_round=0)),
    ("problems_per_round", lambda: run(problems_per_round="32")),
    ("mini_batches", lambda: run(mini_batches=5, problems_per_round=4)),
    ("learning_rate", lambda: run(learning_rate=0)),
    ("learning_rate", lambda: run(learning_rate=float("inf"))),
    ("learning_rate", lambda: run(learning_rate="1e-4")),
    ("seed", lambda: run(seed=None)),
    ("evaluate_every", lambda: run(evaluate_every=True)),
    ("checkpoint_every", lambda: run(checkpoint_every=0)),
    ("out", lambda: run(out=5)),
    # a method
    ("allocator", lambda: method(allocator=selectors.MaxVariance(2))),
    ("selector", lambda: method(selector=allocators.Uniform(4))),
    ("allocator", lambda: method(allocator=allocators.Uniform)),
    ("selector", lambda: method(selector=selectors.All)),
    ("selector", lambda: method(selector=selectors.max_variance)),
    ("curriculum", lambda: method(curriculum=None)),
    ("selector", lambda: method(selector=Telepathic())),
    ("selector", lambda: method(selector=Forgetful(4))),
    ("selector", lambda: method(selector=Forgetful(iter([4]), keep=True))),
    ("replay", lambda: method(replay="buffer")),
    ("advantage", lambda: method(advantage="posterior")),
    ("advantage", lambda: method(advantage=leave_one_out)),
    ("function", lambda: OfRewards(partial(posterior, alpha=0))),
    ("function", lambda: OfRewards(partial(posterior, alhpa=1))),
    ("function", lambda: OfRewards(lambda rewards: rewards)),
    ("advantage", lambda: method(advantage=Objective)),
    ("objective", lambda: method(objective={"clip": (0.2, 0.2)})),
    ("reward", lambda: method(reward=rewards.Correct())),
    ("reward", lambda: method(reward=())),
    ("reward", lambda: method(reward=(rewards.Correct,))),
    ("reward", lambda: method(reward=(rewards.Correct(), rewards.Correct()))),
    ("reward", lambda: method(reward=(rewards.Correct(weight=float("inf")),))),
    ("kl", lambda: methods.grpo(objective=Objective(kl=float("inf")))),
    ("n", lambda: methods.grpo(n=10**400)),
    ("entropy", lambda: methods.grpo(objective=Objective(entropy=10**400))),
    ("name", lambda: method(name="")),
    ("m", lambda: methods.pods(n=8, m=16)),
    ("m", lambda: methods.pods(m="16")),
    ("n", lambda: methods.grpo(1)),
    ("clip", lambda: methods.grpo(clip=0.2)),
    ("kl", lambda: methods.grpo(objective=Objective(kl=-0.1))),
    ("rule", lambda: methods.pods(rule="best")),
    ("base", lambda: methods.cbs(["grpo"])),
    ("rates", lambda: methods.knapsack(rates=0.5)),
    ("prior", lambda: methods.aero(prior=1.0)),
    ("keep", lambda: methods.cbs(p=0)),
    # a lab
    ("levels", lambda: wb.labs.tiny(levels=(1, 9))),
    ("levels", lambda: wb.labs.tiny(levels=3)),
    ("problems", lambda: lab(problems=list(arithmetic(8)))),
    ("held_out", lambda: lab(held_out=[])),
    ("held_out", lambda: lab(held_out=arithmetic())),
    ("verifier", lambda: lab(verifier=wb.verifiers.Math)),
    ("make_policy", lambda: lab(make_policy="model")),
    ("sampling", lambda: lab(sampling={"temperature": 1})),
    ("learning_rate", lambda: lab(learning_rate=-1e-6)),
    ("learning_rate", lambda: wb.labs.transformers("model", arithmetic(8), learning_rate=0.0)),
    ("lora", lambda: wb.labs.transformers("model", arithmetic(8), lora=64)),
    ("optimizer", lambda: lab(optimizer="adam")),
    ("optimizer", lambda: lab(optimizer={"lr": 1.0})),
    ("optimizer", lambda: run(lab=lab(optimizer={"beta": 0.9}))),
    ("optimizer", lambda: run(lab=lab(optimizer={"betas": (0.9, 2.0)}))),
    ("max_grad_norm", lambda: lab(max_grad_norm=0)),
    ("samples", lambda: wb.labs.tiny(base="clean", samples=0)),
    ("held_out", lambda: wb.labs.tiny(held_out=-1)),
    ("temperature", lambda: Sampling(temperature=-0.5)),
    ("temperature", lambda: Sampling(temperature="1")),
    ("top_p", lambda: Sampling(top_p=1.5)),
    ("max_new_tokens", lambda: Sampling(max_new_tokens=1.5)),
    ("stop", lambda: Sampling(stop="\n")),
]


@pytest.mark.parametrize("argument, call", MISTAKES)
def test_each_mistake_is_one_named_error_before_a_model_is_loaded(argument, call):
    with pytest.raises(ValueError, match=rf"\b{argument}\b") as error:
        call()
    assert "\n" not in str(error.value)


def test_the_directory_of_a_run(tmp_path):
    (tmp_path / "file").write_text("a thesis")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("precious")
    for out, message in (
        ("file", "this is a file"),
        ("folder", "holds files that are no record"),
        ("", "no record"),
    ):
        with pytest.raises(ValueError, match=message):
            run(out=tmp_path / out)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder", "thesis.tex"]


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"method": {"is": "test_run.Shortest", "name": "x", "m": 3}},
            r"cannot make this method again \(.*'test_run.Shortest' is not a slot value .*method=",
        ),
        (
            {"method": {"is": "methods.Method", "name": "x", "brake": 1}},
            r"cannot make this method again .*brake.*Run\.resume",
        ),
        (
            {
                "method": {
                    "is": "methods.Method",
                    "name": "x",
                    "selector": {"is": "selectors.MaxVariance", "m": -1},
                }
            },
            "m=",
        ),
        (
            {"lab": {"lab": "tiny", "gravity": 9.81}},
            r"cannot make this lab again .*gravity.*Run\.resume\(path, lab=\.\.\.\)",
        ),
        ({"lab": {"lab": "mine"}}, r"pass it: Run\.resume\(path, lab=\.\.\.\)"),
        (
            {"arguments": {"seed": 0, "patience": 3}},
            "its arguments .*patience",
        ),
        ({"arguments": {"seed": 0, "problems_per_round": 10**5}}, "problems_per_round="),
        ({"data": None}, "other problems"),
    ],
)
def test_a_manifest_that_cannot_be_followed(changes, message, tmp_path):
    lab = wb.labs.tiny(16, base="clean", held_out=0)
    manifest = {
        "format": FORMAT,
        "method": {"is": "methods.Method", "name": "grpo"},
        "lab": lab.config,
        "data": lab.digests(),
        "seed": 0,
        "arguments": {"seed": 0},
    }
    # None stands for an entry that is missing.
    told = {name: value for name, value in (manifest | changes).items() if value is not None}
    (tmp_path / "manifest.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match=message) as error:
        wb.Run.resume(tmp_path)
    assert "\n" not in str(error.value)


def test_the_parts_of_any_lab_and_method_that_work_are_let_through():
    for name in methods.PAPERS:
        assert run(method=getattr(methods, name)(), problems_per_round=4).method.name == name
    rate = np.float32(1e-3)
    endless = lab(problems=arithmetic(), held_out=None, learning_rate=rate)
    assert run(lab=endless).learning_rate == rate


SCRAPS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.lists(st.one_of(st.integers(-2, 9), st.floats(), st.text(max_size=3)), max_size=3),
    st.tuples(st.floats(-1, 2), st.floats(-1, 2)),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from(
        [
            object(),
            int,
            len,
            wb.Method,
            wb.labs.tiny,
            *methods.PAPERS,
            selectors.All(),
            *BASELINES,
            "stop-gradient",
        ]
    ),
)
MAKERS = [
    *(getattr(methods, name) for name in methods.PAPERS),
    wb.labs.tiny,
    wb.labs.TransformersConfig,
    wb.labs.UnslothConfig,
    Sampling,
    Objective,
    wb.Method,
    replace,
    wb.Run,
]
# What else they are called with. `replace` changes a part of a lab.
BASE_ARGUMENTS = {
    wb.Run: {"lab": LAB, "method": methods.grpo(4), "problems_per_round": 4},
    wb.Method: {"name": "x"},
    wb.labs.tiny: {"pool": 4, "base": "clean", "held_out": 2, "levels": (1, 2)},
    wb.labs.TransformersConfig: {"model": "nobody/none"},
    wb.labs.UnslothConfig: {"model": "nobody/none"},
}
# `out` and `model` name what is written and read, for which a scrap of text is a good name, and an
# enormous pool is no mistake.
NO_SCRAPS = ("out", "model", "pool", "held_out")


@pytest.mark.long
@settings(max_examples=400)
@given(st.data())
def test_no_scrap_in_any_argument_is_more_than_a_named_error(data):
    make = data.draw(st.sampled_from(MAKERS))
    target = wb.labs.Lab if make is replace else make
    names = [
        name
        for name, parameter in inspect.signature(target).parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and (name not in NO_SCRAPS or (make is replace and name == "held_out"))
    ]
    scraps = data.draw(st.dictionaries(st.sampled_from(names), SCRAPS, min_size=1, max_size=2))
    try:
        if make is replace:
            made = replace(LAB, **scraps)
        else:
            made = make(**(BASE_ARGUMENTS.get(make, {}) | scraps))
    except ValueError:
        return
    if isinstance(made, wb.Method):
        assert run(method=made, problems_per_round=4).method.name == made.name


def test_other_software_or_hardware_than_the_run_began_with_is_told(tmp_path, monkeypatch):
    lab = small_lab(held_out=0)
    run = wb.Run(lab, wb.methods.grpo(2), out=tmp_path, problems_per_round=2, evaluate_every=0)
    with monkeypatch.context() as earlier:
        then = {**versions(), "workbench": "0.0.9", "forgotten": "1"}
        earlier.setattr("workbench.records.manifest.versions", lambda: then)
        go(run, 1)
    with pytest.raises(ValueError, match=r"versions\.workbench: .*, '0\.0\.9'; .*mixed=True"):
        wb.Run.resume(tmp_path)
    with pytest.warns(
        RecordWarning, match=r"other conditions \(now, then\): versions.workbench: .*, '0\.0\.9'"
    ):
        go(wb.Run.resume(tmp_path, mixed=True), 2)
    assert len(wb.load(tmp_path).rounds) == 2
