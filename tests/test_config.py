"""From data to objects: what is said is what is made, and what cannot be made is named."""

import inspect
import json
import pathlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import workbench as wb
from workbench import config, methods
from workbench.objectives import Objective
from workbench.rules import advantages, allocators, replay, selectors
from workbench.rules.allocators import DynamicSampling, Knapsack
from workbench.rules.scheduler import Scheduler
from workbench.utils import names
from workbench.utils.descriptions import describe


@pytest.mark.parametrize("name", [*methods.PAPERS, *methods.MORE_PAPERS])
def test_every_method_is_made_by_its_name(name):
    assert config.method(name) == getattr(methods, name)()


def test_arguments_are_those_of_the_function():
    assert config.method("pods", {"n": 32, "m": 8}) == methods.pods(32, 8)
    assert config.method("grpo", {"clip": [0.1, 0.2]}) == methods.grpo(clip=(0.1, 0.2))
    assert config.method("grpo", '{"n": 4, "objective.kl": 0.1}') == methods.grpo(
        4, objective=Objective(kl=0.1)
    )
    assert config.method("cbs", {"selector.floor": 0.5}).selector.floor == 0.5
    assert config.method("exgrpo", {}).replay == methods.exgrpo().replay


def test_settings_change_the_slots():
    def made(name, **settings):
        return config.method(name, None, settings)

    assert made("cbs", **{"selector.scope": "round"}).selector == Scheduler(
        scope="round",
        floor=0.2,
        entropy_least=0.1,
        warmup=None,
        decay=None,
        learning_rate=None,
    )
    assert made("knapsack", **{"allocator.rates.kind": "epoch"}).allocator == Knapsack(
        rates=wb.allocators.SuccessRates("epoch")
    )
    overlong = made("dapo", **{"reward.overlong.buffer": 0.5}).reward
    assert overlong == methods.dapo(overlong=0.5).reward
    assert made("aero", **{"advantage.alpha": 2}).advantage == advantages.Posterior(2, 1.0)


def test_the_name_of_a_class_stands_for_an_object_of_it():
    settings = {"selector": "MaxVariance", "selector.m": 8, "replay": "CorrectResponses"}
    made = config.method("knapsack", {"n": 16}, settings)
    expected = methods.knapsack(16).but(
        selector=selectors.MaxVariance(8), replay=replay.CorrectResponses()
    )
    assert made == expected
    nested = {"allocator": "DynamicSampling", "allocator.within": "Knapsack"}
    nested["allocator.within.n"] = 4
    assert config.method("grpo", None, nested).allocator == DynamicSampling(within=Knapsack(4))
    assert config.method("dapo", None, {"reward": ["Correct"]}).reward == methods.grpo().reward
    assert config.method("ar3po", None, {"replay": None}).replay is None


def test_the_order_of_settings_does_not_matter():
    forwards = {"selector": "MaxVariance", "selector.m": 8}
    backwards = dict(reversed(forwards.items()))
    assert config.method("grpo", None, forwards) == config.method("grpo", None, backwards)


def test_a_description_in_place_of_a_value_is_made():
    arguments = {"rates": {"is": "success_rates.SuccessRates", "kind": "epoch"}}
    assert config.method("knapsack", arguments) == methods.knapsack(
        rates=wb.allocators.SuccessRates("epoch")
    )


@pytest.mark.parametrize(
    "arguments, named",
    [
        (("magic",), "method='magic'"),
        (("knapsak",), "method=.*'knapsack'"),
        (("pods", {"q": 3}), "^q: .*pods.* n, m, rule"),
        (("cbs", {"scop": "round"}), "^scop: .*'scope'"),
        (("grpo", {"clp": 0.1}), "^clp: .*'clip'"),
        (("grpo", {"selektor": "All"}), "^selektor: .*'selector'"),
        (("grpo", {"n": 0}), "^n=0"),
        (("grpo", {}, {"alocator.n": 4}), "^alocator: .*'allocator'"),
        (("grpo", {}, {"name": "mine"}), "^name: "),
        (("grpo", {}, {"allocator.m": 4}), "^allocator.m: .*Uniform; there are n"),
        (("grpo", {}, {"replay.mode": 1}), "^replay.mode: "),
        (("grpo", {}, {"objective.clip.low": 1}), "^objective.clip.low: "),
        (("grpo", {}, {"advantage.esp": 1}), "^advantage.esp: .*'eps'"),
        (("cbs", {}, {"selector.scope": "rond"}), "scope='rond'"),
        (("grpo", {}, {"selector": "MaxVarianc"}), "^selector=.*'MaxVariance'"),
        (("grpo", {}, {"selector": "MaxVariance"}), "^selector.m: "),
        (("grpo", {}, {"selector": "os.system"}), "selector='os.system'"),
        (("grpo", {}, {"selector": {"is": "os.system"}}), "'os.system'"),
        (("grpo", {}, {"selector": "Method"}), "^selector.name: "),
        (("grpo", {}, {"selector.": 1}), "'selector.'"),
        (("grpo", {}, {"reward.corect.weight": 1}), "^reward.corect: .*'correct'"),
        (("grpo", "{"), "arguments='{'"),
        (("grpo", "[1]"), "arguments="),
        (("grpo", {1: 2}), "arguments="),
        (("grpo", {}, 3), "settings=3"),
    ],
    ids=str,
)
def test_what_cannot_be_made_is_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        config.method(*arguments)


# Labs

SUMS = {"family": "arithmetic", "n": 8}
OWN = {"model": "nowhere", "problems": SUMS}
GYM = {"family": "reasoning_gym", "name": "chain_sum", "n": 4}


def test_labs_are_made_by_their_name():
    lab = config.lab("tiny", {"base": "clean", "pool": 16, "levels": [1, 2], "held_out": 0})
    assert len(lab.problems) == 16
    assert lab.config["levels"] == [1, 2]


def test_a_lab_of_ones_own_model_is_plain_data():
    parts = {"sampling": {"max_new_tokens": 7, "stop": ["}"]}, "verifier": {"boxed": True}}
    lab = config.lab(
        "transformers", {**OWN, **parts, "lora": {"r": 2, "target_modules": r".*\.(q|v)_proj.*"}}
    )
    assert len(lab.problems) == 8
    assert (lab.sampling.max_new_tokens, lab.sampling.stop) == (7, ("}",))
    assert lab.verifier.boxed
    # A path is a text in the record, on every version of Python.
    assert describe({"data": pathlib.Path("tests")}) == {"data": "tests"}
    lab = wb.labs.transformers(pathlib.Path("tests"), lab.problems)
    assert lab.config["model"] == "tests"
    assert json.dumps(lab.config) == json.dumps(config.recorded_lab(lab.config).config)


@pytest.mark.parametrize(
    "name, arguments, named",
    [
        ("cloud", {}, "lab='cloud'"),
        ("tiny", {"heldout": 3}, "^heldout: .*'held_out'"),
        ("tiny", {"levels": [9]}, "levels"),
        ("tiny", {"pool": 10**12}, "pool=1000000000000"),
        ("tiny", {"threads": 10**9}, "threads"),
        ("transformers", {"problems": SUMS}, "^model: "),
        ("transformers", {**OWN, "model": {"is": "os.system"}}, "model="),
        ("transformers", {**OWN, "trust_remote_code": True}, "^trust_remote_code: "),
        ("transformers", {**OWN, "problems": ["hub"]}, "problems="),
        ("transformers", {**OWN, "problems": {"family": "arithmetics"}}, "family=.*'arithmetic'"),
        ("transformers", {**OWN, "problems": {**SUMS, "size": 8}}, "^size: "),
        ("transformers", {**OWN, "held_out": {"family": "hub", "verifier": "x"}}, "verifier"),
        ("transformers", {**OWN, "problems": {"family": "from_file"}}, "^path: "),
        ("transformers", {**OWN, "sampling": {"seed": 1}}, "^sampling.seed: "),
        ("transformers", {**OWN, "sampling": {"stop": None}}, "stop"),
        ("transformers", {**OWN, "verifier": {"command": "x"}}, "^verifier.command: "),
        ("transformers", {**OWN, "verifier": "Math"}, "verifier="),
        ("transformers", {**OWN, "lora": {"megatron_core": "x"}}, "lora='megatron_core'"),
        ("transformers", {**OWN, "problems": {**GYM, "name": "codeio"}}, "name='codeio'"),
        ("transformers", {**OWN, "problems": {**GYM, "name": None}}, "name=None"),
        ("transformers", {**OWN, "problems": {**GYM, "operators": ["f('x')"]}}, "operators"),
        ("transformers", {**OWN, "problems": {**GYM, "datasets": [{"name": "x"}]}}, "datasets"),
        ("unsloth", {**OWN, "lora_ranks": 3}, "^lora_ranks: .*'lora_rank'"),
    ],
    ids=str,
)
def test_a_lab_that_cannot_be_made_is_named(name, arguments, named):
    with pytest.raises(ValueError, match=named):
        config.lab(name, arguments)


@pytest.mark.parametrize("described", [{"lab": "tiny"}, {"lab": "tiny", "pool": 8, "own": True}])
def test_a_lab_of_the_callers_own_has_to_be_passed(described):
    with pytest.raises(ValueError, match="caller's own"):
        config.recorded_lab(described)


def test_the_names_that_help_shows_are_those_of_the_code():
    """The command line shows them without loading what they name."""
    assert all(callable(getattr(wb.labs, name)) for name in names.LABS)
    assert set(names.SLOTS) == set(methods.grpo().slots())


TEXTS = st.text("abmn.M_[$", max_size=6)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=5,
)
PATHS = st.sampled_from(
    ["selector", "selector.m", "replay", "reward", "reward.correct.weight", "allocator.n", "a.b"]
)
WORDS = st.sampled_from(["MaxVariance", "Uniform", "Worker", "os.system", "__import__('os')"])


@pytest.mark.slow
@given(
    st.sampled_from(methods.PAPERS),
    st.dictionaries(st.sampled_from(["n", "m", "clip", "rule", "keep"]), DATA, max_size=2),
    st.dictionaries(PATHS, DATA | WORDS, max_size=3),
)
@example("grpo", {}, {"reward": [{}], "reward.correct.weight": 1})
@example("grpo", {}, {"reward": ["Uniform"], "reward.correct.weight": 1})
def test_any_data_makes_a_method_or_is_refused_by_name(name, arguments, settings):
    try:
        made = config.method(name, arguments, settings)
    except ValueError:
        return
    for value in made.learning().values():
        assert inspect.getmodule(type(value)).__name__.startswith("workbench.")


def test_data_survives_json():
    arguments = {"objective.clip": [0.1, 0.3], "objective.loss_aggregation": "rollout"}
    settings = {"allocator": "Uniform", "allocator.n": 4}
    texts = json.dumps(arguments), json.dumps(settings)
    made = config.method("grpo", *texts)
    assert made == config.method("grpo", arguments, settings)
    assert made.allocator == allocators.Uniform(4)
