"""Methods and labs by name: what is said is what is made, and what cannot be is named."""

import inspect
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from workbench import advantages, allocators, labs, methods, named, replay, selectors
from workbench.allocators import DynamicSampling, Knapsack
from workbench.scheduler import Scheduler
from workbench.utils import names
from workbench.utils.names import TRAINING_PHASES


def test_the_names_are_those_of_the_functions_and_slots():
    for name in (*names.PAPERS, *names.MORE_PAPERS):
        assert callable(getattr(methods, name))
    assert (names.PAPERS, names.MORE_PAPERS) == (methods.PAPERS, methods.MORE_PAPERS)
    assert all(callable(getattr(labs, name)) for name in names.LABS)
    assert set(names.SLOTS) == set(methods.grpo().slots())
    assert names.TRAINING_PHASES == TRAINING_PHASES


@pytest.mark.parametrize("name", [*names.PAPERS, *names.MORE_PAPERS])
def test_every_method_is_made_by_its_name(name):
    assert named.method(name) == getattr(methods, name)()


def test_arguments_are_those_of_the_function():
    assert named.method("pods", {"n": 32, "m": 8}) == methods.pods(32, 8)
    assert named.method("grpo", {"clip": [0.1, 0.2]}) == methods.grpo(clip=(0.1, 0.2))
    assert named.method("grpo", '{"n": 4, "kl": 0.1}') == methods.grpo(4, kl=0.1)
    assert named.method("cbs", {"floor": 0.5}).selector.floor == 0.5
    assert named.method("exgrpo", {}).replay == methods.exgrpo().replay


def test_settings_change_the_slots():
    def made(name, **settings):
        return named.method(name, None, settings)

    assert made("cbs", **{"selector.scope": "round"}).selector == Scheduler(
        scope="round", floor=0.2, entropy_least=0.1
    )
    assert made("knapsack", **{"allocator.rates.kind": "epoch"}).allocator == Knapsack(
        rates=wb.allocators.SuccessRates("epoch")
    )
    overlong = made("dapo", **{"reward.overlong.buffer": 0.5}).reward
    assert overlong == methods.dapo(overlong=0.5).reward
    assert made("aero", **{"advantage.alpha": 2}).advantage == advantages.Posterior(2, 1.0)


def test_the_name_of_a_class_stands_for_an_object_of_it():
    settings = {"selector": "MaxVariance", "selector.m": 8, "replay": "CorrectResponses"}
    made = named.method("knapsack", {"n": 16}, settings)
    expected = methods.knapsack(16).but(
        selector=selectors.MaxVariance(8), replay=replay.CorrectResponses()
    )
    assert made == expected
    nested = {"allocator": "DynamicSampling", "allocator.within": "Knapsack"}
    nested["allocator.within.n"] = 4
    assert named.method("grpo", None, nested).allocator == DynamicSampling(within=Knapsack(4))
    assert named.method("dapo", None, {"reward": ["Correct"]}).reward == methods.grpo().reward
    assert named.method("ar3po", None, {"replay": None}).replay is None


def test_the_order_of_settings_does_not_matter():
    forwards = {"selector": "MaxVariance", "selector.m": 8}
    backwards = dict(reversed(forwards.items()))
    assert named.method("grpo", None, forwards) == named.method("grpo", None, backwards)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("magic",), "method='magic': allowed are 'grpo', 'dapo'"),
        (("knapsak",), "did you mean 'knapsack'"),
        (("pods", {"q": 3}), "q: no argument of pods; there are n, m, rule"),
        (("cbs", {"flor": 0.1}), "flor: no argument of cbs; .* did you mean 'floor'"),
        (("grpo", {"kll": 0.1}), "kll: no argument of grpo; .* did you mean 'kl'"),
        (("grpo", {"n": 0}), "n=0: a whole number"),
        (("grpo", {}, {"alocator.n": 4}), "no such slot; .* did you mean 'allocator'"),
        (("grpo", {}, {"allocator.m": 4}), "allocator.m: no argument of Uniform; there are n"),
        (("grpo", {}, {"replay.mode": 1}), "replay.mode: no argument of an empty slot; it takes"),
        (("grpo", {}, {"objective.clip.low": 1}), "objective.clip.low: no argument of these parts"),
        (("grpo", {}, {"advantage.esp": 1}), "esp: no argument of GroupNormalized; .*'eps'"),
        (("cbs", {}, {"selector.scope": "rond"}), "scope='rond': allowed are"),
        (("grpo", {}, {"selector": "MaxVarianc"}), "did you mean 'MaxVariance'"),
        (("grpo", {}, {"selector": "MaxVariance"}), "selector=MaxVariance: set selector.m as well"),
        (("grpo", {}, {"selector": "os.system"}), "selector='os.system': no value of a slot"),
        (("grpo", {}, {"selector": "Method"}), "selector=Method: set selector.name as well"),
        (("grpo", {}, {"selector.": 1}), "a slot and its argument are needed"),
        (("grpo", {}, {"reward.corect.weight": 1}), "reward.corect: .* did you mean 'correct'"),
        (("grpo", "{"), "arguments='{': this is no JSON"),
        (("grpo", "[1]"), "names and values are needed"),
        (("grpo", {1: 2}), "names and values are needed"),
    ],
)
def test_what_cannot_be_made_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        named.method(*arguments)


def test_labs_are_made_by_their_name():
    lab = named.lab("tiny", {"base": "clean", "pool": 16, "levels": [1, 2], "held_out": 0})
    assert len(lab.problems) == 16
    assert lab.config["levels"] == [1, 2]
    with pytest.raises(
        ValueError, match=r"heldout: no argument of tiny; .* did you mean 'held_out'"
    ):
        named.lab("tiny", {"heldout": 3})
    with pytest.raises(ValueError, match="lab='cloud': allowed are 'tiny'"):
        named.lab("cloud")
    with pytest.raises(ValueError, match="transformers needs the argument model"):
        named.lab("transformers", {"problems": {"family": "arithmetic", "n": 8}})


def test_a_lab_of_ones_own_model_is_plain_data():
    lab = named.lab(
        "transformers",
        {
            "model": "nowhere",
            "problems": {"family": "arithmetic", "n": 8},
            "sampling": {"max_new_tokens": 7},
            "verifier": {"boxed": True},
        },
    )
    assert len(lab.problems) == 8
    assert lab.sampling.max_new_tokens == 7
    assert lab.verifier.boxed
    with pytest.raises(ValueError, match="family='arithmetics'"):
        named.lab("transformers", {"model": "x", "problems": {"family": "arithmetics"}})


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


@given(
    st.sampled_from(names.PAPERS),
    st.dictionaries(st.sampled_from(["n", "m", "clip", "rule", "keep"]), DATA, max_size=2),
    st.dictionaries(PATHS, DATA | WORDS, max_size=3),
)
def test_any_data_makes_a_method_or_is_refused_by_name(name, arguments, settings):
    try:
        made = named.method(name, arguments, settings)
    except ValueError:
        return
    for value in made.learning().values():
        assert inspect.getmodule(type(value)).__name__.startswith("workbench.")


def test_data_survives_json():
    arguments = {"clip": [0.1, 0.3], "loss_aggregation": "rollout"}
    settings = {"allocator": "Uniform", "allocator.n": 4}
    texts = json.dumps(arguments), json.dumps(settings)
    made = named.method("grpo", *texts)
    assert made == named.method("grpo", arguments, settings)
    assert made.allocator == allocators.Uniform(4)
