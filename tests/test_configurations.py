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


MISTAKES = {
    # a run
    "the name of a lab": (
        lambda: run(lab="tiny"),
        r"lab='tiny'",
    ),
    "the function that makes a lab": (lambda: run(lab=wb.labs.tiny), "lab=tiny"),
    "the name of a method": (
        lambda: run(method="grpo"),
        r"method='grpo'",
    ),
    "the function that makes a method": (
        lambda: run(method=methods.pods),
        "method=pods",
    ),
    "the class of methods": (lambda: run(method=wb.Method), "method=Method"),
    "a pool smaller than a round": (lambda: run(problems_per_round=33), "problems_per_round=33"),
    "no problems": (
        lambda: run(problems_per_round=0),
        "problems_per_round=0",
    ),
    "problems as text": (
        lambda: run(problems_per_round="32"),
        "problems_per_round='32'",
    ),
    "more mini-batches than groups": (
        lambda: run(mini_batches=5, problems_per_round=4),
        "mini_batches=5",
    ),
    "a learning rate of zero": (lambda: run(learning_rate=0), "learning_rate=0"),
    "an infinite learning rate": (lambda: run(learning_rate=float("inf")), "learning_rate=inf"),
    "a learning rate as text": (
        lambda: run(learning_rate="1e-4"),
        "learning_rate='1e-4'",
    ),
    "a seed that is no number": (lambda: run(seed=None), "seed=None"),
    "a flag for a number": (
        lambda: run(evaluate_every=True),
        "evaluate_every=True",
    ),
    "no checkpoints": (lambda: run(checkpoint_every=0), "checkpoint_every=0"),
    "a directory that is no path": (lambda: run(out=5), "out=5"),
    # a method
    "a selector for an allocator": (
        lambda: method(allocator=selectors.MaxVariance(2)),
        r"allocator=MaxVariance\(m=2, .*\)",
    ),
    "an allocator for a selector": (
        lambda: method(selector=allocators.Uniform(4)),
        r"selector=Uniform\(n=4\)",
    ),
    "the class of a slot": (
        lambda: method(allocator=allocators.Uniform),
        r"allocator=Uniform",
    ),
    "the class of a selector": (
        lambda: method(selector=selectors.All),
        "selector=All",
    ),
    "a function for a selector": (
        lambda: method(selector=selectors.max_variance),
        r"selector=max_variance",
    ),
    "no curriculum": (
        lambda: method(curriculum=None),
        r"curriculum=None",
    ),
    "a need that no trainer knows": (
        lambda: method(selector=Telepathic()),
        "selector=.*Telepathic.*",
    ),
    "an argument that is not kept": (
        lambda: method(selector=Forgetful(4)),
        r"selector",
    ),
    "an argument that cannot be recorded": (
        lambda: method(selector=Forgetful(iter([4]), keep=True)),
        "selector",
    ),
    "a buffer's name": (
        lambda: method(replay="buffer"),
        r"replay='buffer'",
    ),
    "an advantage's name": (
        lambda: method(advantage="posterior"),
        r"advantage='posterior'",
    ),
    "a function for an advantage": (
        lambda: method(advantage=leave_one_out),
        r"advantage=leave_one_out",
    ),
    "an advantage's option": (
        lambda: OfRewards(partial(posterior, alpha=0)),
        r"function=posterior\(alpha=0\)",
    ),
    "an advantage's typo": (
        lambda: OfRewards(partial(posterior, alhpa=1)),
        r"function=posterior\(alhpa=1\)",
    ),
    "an advantage of one": (
        lambda: OfRewards(lambda rewards: rewards),
        "function=<lambda>",
    ),
    "an advantage's class": (
        lambda: method(advantage=Objective),
        "advantage=Objective",
    ),
    "an objective's arguments": (
        lambda: method(objective={"clip": (0.2, 0.2)}),
        "objective=.*",
    ),
    "a reward part alone": (
        lambda: method(reward=rewards.Correct()),
        r"reward=Correct\(weight=1.0\)",
    ),
    "no reward": (lambda: method(reward=()), r"reward=\(\)"),
    "a reward's class": (lambda: method(reward=(rewards.Correct,)), "reward"),
    "a reward twice": (
        lambda: method(reward=(rewards.Correct(), rewards.Correct())),
        "no two parts of the same name",
    ),
    "a reward without an end": (
        lambda: method(reward=(rewards.Correct(weight=float("inf")),)),
        r"reward",
    ),
    "an infinite KL weight": (
        lambda: methods.grpo(objective=Objective(kl=float("inf"))),
        "kl=inf",
    ),
    "a number beyond all": (lambda: methods.grpo(n=10**400), "n=10000.*"),
    "a weight beyond all": (
        lambda: methods.grpo(objective=Objective(entropy=10**400)),
        "entropy=10000.*",
    ),
    "no name": (lambda: method(name=""), "name=''"),
    "m above n": (lambda: methods.pods(n=8, m=16), "m=16"),
    "m as text": (lambda: methods.pods(m="16"), "m='16'"),
    "a group of one": (lambda: methods.grpo(1), "n=1"),
    "a clip range of one number": (
        lambda: methods.grpo(clip=0.2),
        "clip=0.2",
    ),
    "a negative KL weight": (lambda: methods.grpo(objective=Objective(kl=-0.1)), "kl=-0.1"),
    "an unknown rule": (
        lambda: methods.pods(rule="best"),
        "rule='best'",
    ),
    "an unknown base": (lambda: methods.cbs(["grpo"]), r"base=\['grpo'\]"),
    "rates that are none": (
        lambda: methods.knapsack(rates=0.5),
        "rates=0.5",
    ),
    "half a prior": (lambda: methods.aero(prior=1.0), "prior=1.0"),
    "a share in percent": (lambda: methods.cbs(p=0), "keep=0"),
    # a lab
    "an unknown level": (
        lambda: wb.labs.tiny(levels=(1, 9)),
        r"levels=\(1, 9\)",
    ),
    "a level alone": (lambda: wb.labs.tiny(levels=3), "levels=3"),
    "a list of problems": (
        lambda: lab(problems=list(arithmetic(8))),
        r"problems=.*",
    ),
    "an empty held-out list": (
        lambda: lab(held_out=[]),
        r"held_out=\[\]",
    ),
    "an endless held-out set": (
        lambda: lab(held_out=arithmetic()),
        "held_out=.*",
    ),
    "the class of a verifier": (
        lambda: lab(verifier=wb.verifiers.Math),
        r"verifier=Math",
    ),
    "a policy for its factory": (
        lambda: lab(make_policy="model"),
        "make_policy='model'",
    ),
    "sampling as a dict": (
        lambda: lab(sampling={"temperature": 1}),
        "sampling=.*",
    ),
    "a lab's learning rate": (
        lambda: lab(learning_rate=-1e-6),
        "learning_rate=-1e-06",
    ),
    "a learning rate of zero for a model": (
        lambda: wb.labs.transformers("model", arithmetic(8), learning_rate=0.0),
        "learning_rate=0.0",
    ),
    "the rank of an adapter": (
        lambda: wb.labs.transformers("model", arithmetic(8), lora=64),
        "lora=64",
    ),
    "the optimizer's name": (
        lambda: lab(optimizer="adam"),
        "optimizer='adam'",
    ),
    "a second learning rate": (lambda: lab(optimizer={"lr": 1.0}), "optimizer=.*without lr"),
    "an unknown optimizer option": (
        lambda: run(lab=lab(optimizer={"beta": 0.9})),
        "optimizer=.*",
    ),
    "a wrong optimizer option": (
        lambda: run(lab=lab(optimizer={"betas": (0.9, 2.0)})),
        "optimizer=.*",
    ),
    "no gradient": (lambda: lab(max_grad_norm=0), "max_grad_norm=0"),
    "no samples": (lambda: wb.labs.tiny(base="clean", samples=0), "samples=0"),
    "a negative number of held-out problems": (lambda: wb.labs.tiny(held_out=-1), "held_out=-1"),
    "a negative temperature": (
        lambda: Sampling(temperature=-0.5),
        "temperature=-0.5",
    ),
    "a temperature as text": (lambda: Sampling(temperature="1"), "temperature='1'"),
    "a nucleus above one": (lambda: Sampling(top_p=1.5), "top_p=1.5"),
    "half a token": (lambda: Sampling(max_new_tokens=1.5), "max_new_tokens=1.5"),
    "one stop text": (lambda: Sampling(stop="\n"), r"stop='\\n'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_one_named_error_before_a_model_is_loaded(mistake):
    call, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message) as error:
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
            r"cannot make this method again \('test_run.Shortest' is not a slot value .*method=",
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
            "m=-1",
        ),
        (
            {"lab": {"lab": "tiny", "gravity": 9.81}},
            r"cannot make this lab again .*gravity.*Run\.resume\(path, lab=\.\.\.\)",
        ),
        ({"lab": {"lab": "mine"}}, r"pass it: Run\.resume\(path, lab=\.\.\.\)"),
        (
            {"arguments": {"seed": 0, "patience": 3}},
            "its arguments patience are unknown to this version of workbench",
        ),
        (
            {"arguments": {"seed": 0, "problems_per_round": 10**5}},
            r"problems_per_round=100000: .*the pool has 16",
        ),
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
    with pytest.warns(
        RecordWarning,
        match=r"other conditions \(now, then\): versions.workbench: .*, '0\.0\.9'; versions",
    ):
        go(wb.Run.resume(tmp_path), 2)
    assert len(wb.load(tmp_path).rounds) == 2
