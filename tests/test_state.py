"""What a slot value has learnt comes back equal from a checkpoint, or is refused."""

import json
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from workbench.records import checkpoints
from workbench.rollouts import Context, Rollouts
from workbench.rules.success_rates import Posteriors, SuccessRates
from workbench.slots import Selection, Slot, state_field
from workbench.trials.check import _text


def stored(state):
    """A state as a checkpoint gives it back."""
    tensors = {}
    text = json.dumps(checkpoints.split_arrays("slot", state, tensors))
    return checkpoints.join_arrays(json.loads(text), tensors)


def resumed(value):
    """A clone with the state of a value, which went through a checkpoint."""
    twin = value.clone()
    twin.load_state_dict(stored(value.state_dict()))
    return twin


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.booleans() | st.integers() | st.text() | st.tuples(st.text(), st.integers())
ARRAYS = st.lists(st.floats(width=32)).map(lambda row: np.array(row, np.float32)) | st.sampled_from(
    [np.zeros((0, 2)), np.array(3), np.array(["a", "bcd"]), np.int32(5), np.True_, np.float64(0.1)]
)
STATES = st.recursive(
    PLAIN | ARRAYS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(lambda row: deque(row, maxlen=7))
        | st.dictionaries(KEYS, inner)
        | st.sets(KEYS)
        | st.frozensets(KEYS)
        | st.dictionaries(KEYS, st.integers()).map(Counter)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(STATES)
def test_every_kind_of_state_comes_back_equal(state):
    assert _text(stored(state)) == _text(state)


def test_equal_sets_are_stored_alike():
    first, second = {f"p{i}" for i in range(20)}, {f"p{i}" for i in reversed(range(20))}
    both = [checkpoints.split_arrays("slot", state, {}) for state in (first, second)]
    assert first == second and both[0] == both[1]


def test_keys_with_dots_do_not_mix_arrays_up():
    state = {"a.b": np.array([1]), "a": {"b": np.array([2])}}
    back = stored(state)
    assert back["a.b"].tolist() == [1] and back["a"]["b"].tolist() == [2]


def test_tensors_come_back():
    tensor = torch.arange(3, dtype=torch.bfloat16)
    assert torch.equal(stored({"x": tensor})["x"], tensor)


@pytest.mark.parametrize(
    "state",
    [
        object(),
        {"a": [object()]},
        np.array([object()]),
        np.random.default_rng(0),
        defaultdict(int),
        OrderedDict(a=1),
        b"bytes",
        1j,
    ],
)
def test_what_cannot_come_back_is_refused(state):
    with pytest.raises(ValueError, match="cannot be stored in a checkpoint"):
        stored({"mine": state})


@dataclass
class TwoDicts(Slot):
    """Remembers more than one thing."""

    right: dict[str, int] = state_field(dict)
    wrong: dict[str, int] = state_field(dict)
    pairs: dict[tuple[str, int], np.ndarray] = state_field(dict)
    nested: dict[str, dict[str, list[int]]] = state_field(dict)
    by_default: Any = state_field(lambda: defaultdict(list))
    counted: Any = state_field(Counter)
    last: Any = state_field(lambda: deque(maxlen=2))
    later: Any = state_field()
    beliefs: Posteriors = state_field(Posteriors)
    of_round: list = state_field(list, saved=False)

    def select(self, rollouts, context):
        return Selection(np.arange(len(rollouts)))


def learnt(value):
    """The value after it has learnt something of every kind."""
    value.right |= {"x": 1, "y": 2}
    value.wrong |= {"z": 5}
    value.pairs[("x", 1)] = np.arange(3)
    value.nested["x"] = {"a": [1, 2]}
    value.by_default["x"].append(1)
    value.counted.update("aab")
    value.last.extend([1, 2, 3])
    value.later = ("now", np.float32(0.5), {1, 2})
    value.beliefs.counts["x"] = [1.0, 2.0]
    value.of_round.append(1)
    return value


@dataclass
class OneMore(TwoDicts):
    """A subclass with a memory of its own."""

    own: dict[int, str] = state_field(dict)


@pytest.mark.parametrize("kind", [TwoDicts, OneMore])
def test_any_number_of_state_fields_of_any_kind_comes_back(kind):
    value = learnt(kind())
    if kind is OneMore:
        value.own[3] = "three"
    twin = resumed(value)
    assert twin.of_round == []
    twin.of_round.append(1)
    assert _text(vars(twin)) == _text(vars(value))
    # What has no default before it is asked for has one afterwards as well.
    assert twin.by_default["new"] == [] and twin.last.maxlen == 2


def test_a_resume_of_something_else_begins_with_what_was_learnt_last():
    value = learnt(TwoDicts())
    twin = learnt(TwoDicts())
    twin.load_state_dict(stored(TwoDicts().state_dict()))
    assert twin.right == {} and twin.later is None and twin.counted == Counter()
    twin.load_state_dict(stored(value.state_dict()))
    assert twin.right == {"x": 1, "y": 2}


@dataclass
class Rates(SuccessRates):
    """Success rates that count their rounds as well."""

    rounds: int = state_field(int)


def test_a_subclass_of_a_value_of_the_package_keeps_both_memories():
    value = Rates("beta")
    value.feedback(Rollouts(problem=["a", "b"], correct=[True, False]), Context())
    value.rounds = 7
    twin = resumed(value)
    assert twin.rounds == 7
    assert twin.state_dict()["learner"]["recent"].keys() == {"a", "b"}


@dataclass
class Allocates(Slot):
    """Delegates, and remembers something beside that."""

    rates: SuccessRates
    asked: dict[str, int] = state_field(dict)

    @property
    def delegate(self):
        return self.rates

    def allocate(self, problems, context):
        yield np.full(len(problems), 2)


def test_a_value_that_delegates_keeps_its_own_memory_too():
    value = Allocates(SuccessRates("last"))
    value.feedback(Rollouts(problem=["a"], correct=[True]), Context())
    value.asked["a"] = 2
    twin = resumed(value)
    assert twin.asked == {"a": 2}
    assert twin.rates.state_dict()["learner"]["recent"].keys() == {"a"}
    wb.check(Allocates(SuccessRates("last")))


@dataclass
class Late(Slot):
    """Makes another slot value only when it learns."""

    beliefs: Any = state_field()

    def select(self, rollouts, context):
        return Selection(np.arange(len(rollouts)))

    def feedback(self, rollouts, context):
        self.beliefs = self.beliefs or Posteriors()


def test_a_value_that_nothing_could_be_set_in_is_refused():
    value = Late()
    value.feedback(None, None)
    with pytest.raises(ValueError, match=r"Late\.beliefs: a Posteriors"):
        value.state_dict()
    with pytest.raises(ValueError, match=r"Late\.beliefs"):
        wb.check(Late())


class Hides(Slot):
    """Counts rounds in an attribute that no checkpoint has, and uses it only much later."""

    def __init__(self):
        self.rounds = 0

    def select(self, rollouts, context):
        return Selection(np.arange(4 if self.rounds < 1000 else 2))

    def feedback(self, rollouts, context):
        self.rounds += 1


@dataclass
class HidesInAList(Hides):
    """A dataclass that forgets to say what a field is."""

    def __init__(self):
        self.rounds = 0
        self.seen = []

    def feedback(self, rollouts, context):
        self.seen.append(len(rollouts))


class HidesInAnObject(Hides):
    """Keeps it in an object of its own."""

    class Memory:
        counts = None

    def __init__(self):
        self.rounds = 0
        self.memory = self.Memory()

    def feedback(self, rollouts, context):
        self.memory.counts = {**(self.memory.counts or {}), context.round: len(rollouts)}


@pytest.mark.parametrize(
    "kind, name", [(Hides, "rounds"), (HidesInAList, "seen"), (HidesInAnObject, "memory")]
)
def test_a_loss_that_decisions_do_not_show_is_found(kind, name):
    with pytest.raises(ValueError, match=rf"{name} is lost"):
        wb.check(kind())
