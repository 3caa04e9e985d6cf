"""What every slot value keeps: it derives from Slot, is cloned, described and made again."""

import dataclasses
import typing
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pytest
import torch
from conftest import go, small_lab

import workbench as wb
from workbench import methods
from workbench.catalogue.duet import Signals
from workbench.catalogue.prefix_sampling import PassRateControl
from workbench.config import rebuild
from workbench.rollouts import Context, Rollouts
from workbench.rules import advantages, allocators, courses, curricula, replay, selectors
from workbench.rules.advantages import leave_one_out
from workbench.rules.allocators import DynamicSampling, Knapsack, Staged, SuccessRates
from workbench.rules.curricula import ShuffledEpochs
from workbench.rules.replay import Buffer, CorrectResponses
from workbench.rules.scheduler import Scheduler
from workbench.rules.selectors import All, MaxVariance
from workbench.rules.success_rates import History, Posteriors, Predictor
from workbench.slots import NEEDS, More, PerProblem, Selection, Slot
from workbench.utils.bounds import Count, Share
from workbench.utils.descriptions import compose, describe

# Every slot value of the package, with arguments other than its defaults.
VALUES = {
    "curriculum": [
        curricula.ShuffledEpochs(),
        curricula.Mopps(factor=2, interval=(0.3, 0.7), decay=0.5),
        curricula.Mapp(rollouts=4, factor=2),
        curricula.Cures(0.2, restart=3),
        curricula.Greso(easy=0.9, floor=0.1),
        curricula.Dps(0.5),
        curricula.WithoutSolved(0.9),
        curricula.AdaRft(start=10, ties="random"),
        curricula.Recycled("stopped", share=0.5),
    ],
    "allocator": [
        allocators.Uniform(3),
        allocators.Widened(4, 2.0),
        allocators.Staged(3, 2),
        allocators.Rescue(extra=4, k_max=3),
        allocators.Knapsack(total=96, rates=SuccessRates("beta", a=2.0)),
        allocators.DynamicSampling(groups=3, within=Knapsack(n=6, rates=SuccessRates("epoch"))),
        allocators.InverseRoot(4, up=16),
        allocators.ByDeviation(4, restart=5),
        allocators.Screening(2, 6, groups=3),
        allocators.PilotCommit(4, 8, groups=3),
        allocators.MostLearnable(4, factor=2),
        allocators.HitUtility(6, probe=2),
        allocators.LeastVariance(6, rates=SuccessRates("last")),
        allocators.BySignal(6, 0.75, low=2, signals=Signals(history=20)),
    ],
    "course": [
        courses.PrefixSampling(0.5, cap=3, adapts=False),
        courses.OwnPrefixes(2, (0.2, 0.6), capacity=2),
        courses.Speculative(0.0),
        courses.Partial(0.75),
        courses.Deadline(1, start=0, grace=0, shares=(0.2, 0.5), refit=2, run=1, answer="text"),
        courses.Survival(3, warm_up=1, learning_rate=0.1, units=4),
    ],
    "replay": [
        replay.CorrectResponses("direct", capacity=3),
        replay.Buffer(5),
        replay.Fifo(100, positive=0.2),
        replay.Experience(1, capacity=4),
        replay.Buckets(0.2, start=0.1),
        replay.Surplus(3, capacity=5, age=2),
    ],
    "selector": [
        selectors.All(mini_batch=16),
        selectors.MaxVariance(4, baseline="group"),
        selectors.MaxReward(4),
        selectors.Random(4),
        selectors.Rejection(k=2),
        selectors.Scheduler(25, "round", warmup=3),
        selectors.LargestAdvantage(0.25, scope="batch"),
        selectors.GroupFilter("top_k", 0.5),
        selectors.Pruned(0.25),
        selectors.HalfRight(6),
        selectors.UniformDraws(0.5),
        selectors.Finished(whole_groups=True),
        selectors.InverseCounts(0.1, allocator=allocators.BySignal(6)),
    ],
    "advantage": [
        advantages.GroupNormalized(ddof=1, eps=1e-4),
        advantages.LeaveOneOut(clip=2.0),
        advantages.Posterior(2.0, 3.0),
        advantages.BatchNormalized("group"),
        advantages.OfRewards(leave_one_out),
        advantages.Asymmetric("sqrt"),
        advantages.PartsNormalized(eps=1e-4),
        advantages.MaxRL("minus_one"),
        advantages.PassAtK(2),
        advantages.Pkpo(2, baseline="none"),
        advantages.InverseRootWeighted(0.1),
        advantages.EntropyShaped(0.2),
        advantages.DiscountedBeta(0.75),
        advantages.Marginalized(0.75),
    ],
}
# What papers bring that are not in the list above, with the arguments of their method.
for name in (*methods.PAPERS, *methods.MORE_PAPERS):
    for slot, value in methods.entry(name).make().learning().items():
        if type(value) not in map(type, VALUES[slot]):
            VALUES[slot].append(value)
EVERY = [pytest.param(slot, value, id=compose(value)) for slot in VALUES for value in VALUES[slot]]
# Estimates of success rates learn like slot values, and stand inside allocators and courses.
ESTIMATES = (SuccessRates, History, Predictor, Posteriors, Signals, PassRateControl)


def leaves(kind):
    """The classes of the package without subclasses of their own that derive from a class."""
    below = [each for each in kind.__subclasses__() if each.__module__.startswith("workbench.")]
    found = {leaf for each in below for leaf in leaves(each)} if below else {kind}
    return {each for each in found if not each.__name__.startswith("_")}


def same_state(a, b):
    """Whether two states of JSON values and arrays are equal."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_state(a[name], b[name]) for name in a)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    return a == b


# The values of the package


def test_every_slot_value_of_the_package_is_tested_here():
    tested = {type(value) for values in VALUES.values() for value in values}
    estimates = set().union(*map(leaves, ESTIMATES))
    assert leaves(Slot) - tested <= {*ESTIMATES, *estimates}


@pytest.mark.parametrize("slot, value", EVERY)
def test_a_value_fits_its_slot_and_no_other(slot, value):
    method = wb.methods.grpo().but(**{slot: value})
    assert getattr(method, slot) is value
    for other in VALUES:
        if other != slot:
            with pytest.raises(ValueError, match=rf"^{other}="):
                wb.methods.grpo().but(**{other: value})


@pytest.mark.parametrize("slot, value", EVERY)
def test_a_clone_is_another_object_of_the_same_configuration(slot, value):
    clone = value.clone()
    assert clone == value
    assert clone is not value
    assert same_state(clone.state_dict(), value.state_dict())


@pytest.mark.parametrize("slot, value", EVERY)
def test_a_value_is_made_again_from_its_description_and_from_how_it_is_shown(slot, value):
    assert rebuild(describe(value)) == value
    kinds = (*ESTIMATES, allocators.BySignal, *(type(each) for each in VALUES[slot]))
    names = {kind.__name__: kind for kind in kinds} | {"leave_one_out": leave_one_out}
    assert eval(compose(value), names) == value


@pytest.mark.parametrize("slot, value", EVERY)
def test_needs_are_known(slot, value):
    assert set(value.needs) <= set(NEEDS)


def test_a_clone_has_learnt_nothing(tmp_path):
    """After two real rounds of a method whose slots all learn."""
    method = wb.Method(
        "learning",
        curriculum=ShuffledEpochs(),
        allocator=DynamicSampling(4, max_draws=1, within=Knapsack(n=4)),
        replay=Buffer(2),
        selector=Scheduler(50, warmup=1),
    )
    lab = small_lab(pool=16, levels=(2, 3), held_out=0)
    run = wb.Run(lab, method, out=tmp_path, problems_per_round=6, evaluate_every=0)
    go(run, 2)
    for slot in ("curriculum", "allocator", "replay", "selector"):
        fresh = getattr(method, slot).state_dict()
        learnt = getattr(run.method, slot)
        assert not same_state(learnt.state_dict(), fresh), slot
        clone = learnt.clone()
        assert clone == learnt, slot
        assert same_state(clone.state_dict(), fresh), slot


@pytest.mark.parametrize("kind", ["last", "epoch", "beta", "fresh", "predictor"])
def test_success_rates_are_cloned_and_made_again_like_slot_values(kind):
    rates = SuccessRates(kind, window=7)
    assert rates.clone() == rates
    assert rates.clone() is not rates
    assert rebuild(describe(rates)) == rates


@pytest.mark.parametrize("kind", ["last", "epoch", "beta"])
def test_a_wrapped_allocator_learns_and_is_cloned_with_its_wrapper(kind):
    wrapper = DynamicSampling(within=Knapsack(rates=SuccessRates(kind)))
    rollouts = Rollouts(problem=["a", "a"], correct=[True, False])
    wrapper.feedback(rollouts, Context())
    assert wrapper.within.rates.learner.recent.keys() == {"a"}
    assert wrapper.state_dict()["delegate"]["delegate"]["learner"]["recent"].keys() == {"a"}
    clone = wrapper.clone()
    assert clone.within is not wrapper.within
    assert clone.within.rates.learner.recent == {}


# The base class


class Counting(Slot):
    """A plain class, not a dataclass: keeps the first m rows, and counts the rounds it has seen."""

    def __init__(self, m=4):
        self.m = m
        self.rounds = 0

    def select(self, rollouts, context):
        return Selection(np.arange(min(self.m, len(rollouts))))

    def feedback(self, rollouts, context):
        self.rounds += 1

    def metrics(self):
        return {"counted": self.rounds}

    def state_dict(self):
        return {"rounds": self.rounds}

    def load_state_dict(self, state):
        self.rounds = state["rounds"]


@pytest.mark.parametrize(
    ("measured", "kept"),
    [(True, 1.0), (np.True_, 1.0), (np.int64(3), 3), (np.float32(0.5), 0.5)],
)
def test_what_a_slot_measures_is_a_number_of_one_type(measured, kept):
    """A truth value in one round and a fraction in the next have no common type in a table."""

    class Measuring(All):
        def metrics(self):
            return {"measured": measured}

    found = methods.grpo(4).but(selector=Measuring()).metrics()["measured"]
    assert found == kept and type(found) is type(kept)


def test_a_measurement_that_is_no_number_is_named():
    class Measuring(All):
        def metrics(self):
            return {"mode": "early"}

    with pytest.raises(ValueError, match="selector: its metric 'mode'"):
        methods.grpo(4).but(selector=Measuring()).metrics()


def test_a_value_that_learns_nothing_needs_none_of_the_further_methods():
    class Nothing(Slot):
        pass

    value = Nothing()
    value.feedback(Rollouts(problem=["a"]), Context())
    assert value.metrics() == {}
    assert value.state_dict() == {}
    assert value.needs == frozenset()
    value.load_state_dict({})


@pytest.mark.slow
def test_a_plain_class_is_a_slot_value_like_any_other(lab, tmp_path):
    method = wb.methods.grpo(2).but(name="mine", selector=Counting(5))
    options = {"problems_per_round": 4, "evaluate_every": 0}
    run = wb.Run(lab, method, out=tmp_path, **options)
    rows = go(run, 2)
    assert [row["selected"] for row in rows] == [5, 5]
    assert [row["counted"] for row in rows] == [1, 2]
    assert method.selector.rounds == 0, "the run has a clone"
    assert compose(run.method.selector) == "Counting(m=5)"

    manifest = wb.load(tmp_path).manifest
    assert manifest["method"]["selector"] == {"is": "test_slots.Counting", "m": 5}
    with pytest.raises(ValueError, match=r"'test_slots.Counting' is not a slot value .* pass it"):
        wb.Run.resume(tmp_path)
    resumed = wb.Run.resume(tmp_path, method=method)
    assert go(resumed, 3)[0]["counted"] == 3


class Mine(Slot):
    """A value with a constructor of its own, and no dataclass."""

    def __init__(self, n, share=0.5):
        self.n = n
        self.share = share


def test_a_value_of_ones_own_prints_itself():
    assert repr(Mine(4, share=0.25)) == "Mine(n=4, share=0.25)"
    assert repr(Mine.__new__(Mine)) == "Mine(...)"


def test_slots_in_a_list_or_a_dict_are_cloned_as_well():
    class Alternating(Slot):
        """One selector in odd rounds, another in even ones."""

        def __init__(self, selectors, named):
            self.selectors = selectors
            self.named = named

        def select(self, rollouts, context):
            return self.selectors[context.round % 2].select(rollouts, context)

    inner = Counting()
    outer = Alternating([All(), inner], {"other": (inner,)})
    inner.feedback(Rollouts(problem=["a"]), Context())
    clone = outer.clone()
    assert clone.selectors[1] is not inner
    assert clone.selectors[1].rounds == 0
    assert clone.named["other"][0].rounds == 0
    assert inner.rounds == 1


class Renaming(Slot):
    def __init__(self, m):
        self.size = m


class Starred(Slot):
    def __init__(self, *sizes):
        self.sizes = sizes


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Renaming(3), r"Renaming\(m=\.\.\.\): the argument is not kept; set self\.m = m"),
        (Starred(3, 4), r"Starred\(\*sizes\): a configuration needs named arguments"),
    ],
    ids=["renamed", "starred"],
)
def test_a_constructor_that_does_not_keep_an_argument_is_refused_by_name(value, message):
    with pytest.raises(ValueError, match=message):
        value.clone()
    with pytest.raises(ValueError, match=message):
        describe(value)


class Holding(Slot):
    def __init__(self, held):
        self.held = held

    def select(self, rollouts, context):
        return Selection(np.arange(len(rollouts)))


@pytest.mark.parametrize(
    "argument",
    [torch.ones(2), np.random.default_rng(0), Decimal("0.5")],
    ids=lambda argument: type(argument).__name__,
)
def test_an_argument_that_no_record_can_hold_is_refused_with_its_slot(argument):
    with pytest.raises(ValueError, match=r"^selector: "):
        wb.Method("mine", selector=Holding(argument))


def test_a_dict_with_a_value_for_missing_keys_prints_itself():
    assert "defaultdict" in repr(wb.Method("mine", selector=Holding(defaultdict(int, a=1))))


# What a value needs of a trainer


class Needy(Slot):
    """A selector that needs what it is told to need."""

    def __init__(self, need):
        self.need = need

    @property
    def needs(self):
        return {self.need}

    def select(self, rollouts, context):
        return Selection(np.arange(len(rollouts)))


@pytest.mark.parametrize("need", NEEDS)
def test_every_need_is_refused_by_slot_need_and_trainer(need):
    method = wb.methods.grpo().but(selector=Needy(need))
    method.check_provided(NEEDS, "Run")
    message = rf"^selector=Needy\(need='{need}'\) needs .* \({need}\), which TRL does not provide$"
    with pytest.raises(ValueError, match=message):
        method.check_provided(set(NEEDS) - {need}, "TRL")


@pytest.mark.parametrize(
    ("slot", "value", "need"),
    [
        ("allocator", Staged(), "resampling"),
        ("allocator", Knapsack(rates=SuccessRates("epoch")), "epochs"),
        ("allocator", Knapsack(rates=SuccessRates("fresh")), "resampling"),
        ("allocator", Knapsack(rates=SuccessRates("predictor")), "prompt_states"),
        ("allocator", DynamicSampling(), "more_problems"),
        ("replay", CorrectResponses(), "old_responses"),
        ("replay", CorrectResponses("recompute"), "current_logprobs"),
        ("replay", CorrectResponses("direct"), "old_logprobs"),
        ("replay", Buffer(), "update_statistics"),
        ("selector", Scheduler(), "entropy"),
        ("selector", Scheduler(mini_batch=8), "mini_batch"),
    ],
    ids=repr,
)
def test_needs_of_the_values_of_the_package(slot, value, need):
    method = wb.methods.grpo().but(**{slot: value})
    with pytest.raises(ValueError, match=rf"^{slot}={type(value).__name__}\(.*\({need}\), which"):
        method.check_provided(set(NEEDS) - {need}, "verl")


@pytest.mark.parametrize("kind, need", [("epoch", "epochs"), ("predictor", "prompt_states")])
def test_a_need_is_found_inside_a_wrapper(kind, need):
    allocator = DynamicSampling(within=Knapsack(rates=SuccessRates(kind)))
    method = wb.methods.grpo().but(allocator=allocator)
    message = (
        rf"^allocator=DynamicSampling\(within=Knapsack\(rates=SuccessRates\(kind='{kind}'\)\)\) "
        rf"needs {NEEDS[need]} \({need}\), which TRL does not provide$"
    )
    with pytest.raises(ValueError, match=message):
        method.check_provided(set(NEEDS) - {need}, "TRL")


def test_without_needs_nothing_has_to_be_provided():
    wb.methods.pods(8, 4).but(curriculum=ShuffledEpochs()).check_provided((), "any trainer")


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "2"])
def test_a_request_for_problems_is_a_positive_number(n):
    with pytest.raises(ValueError, match=r"n=.*: a whole number of at least 1 is needed"):
        More(n)


# What a value says of itself


class Halves(MaxVariance):
    """Does something else than the class it derives from, and says nothing of it."""

    def select(self, rollouts, context):
        return Selection(np.arange(len(rollouts)))


def test_a_class_that_overrides_what_another_does_does_not_inherit_what_it_says():
    assert MaxVariance(4).trained(PerProblem(8)) == PerProblem(4)
    assert not MaxVariance(4).reads_verdict
    assert Halves(4).trained(PerProblem(8)) == PerProblem(8, "about")
    assert selectors.LargestAdvantage(0.9).trained(PerProblem(4)) == PerProblem(1)
    assert Halves(4).reads_verdict


@pytest.mark.parametrize(
    "method, n, of",
    [
        (methods.grpo(16), 16, "each"),
        (methods.pods(32, 8), 8, "each"),
        (methods.grpo(4).but(selector=MaxVariance(8)), 4, "each"),
        (methods.dapo(4), 4, "each"),
        (methods.dapo(4, groups=3), 4, "about"),
        (methods.knapsack(6), 6, "average"),
        (methods.knapsack(6).but(selector=MaxVariance(4)), 4, "about"),
        (methods.knapsack(6).but(allocator=DynamicSampling(within=Knapsack(6))), 6, "about"),
        (methods.ar3po(2, 4), 4, "about"),
        (methods.aero(explore=8), 8, "about"),
        (methods.cbs(n=8), 2, "about"),
        (methods.cbs(n=8, scope="group"), 2, "each"),
        (methods.cbs(n=8, scope="buffer"), 8, "about"),
        (methods.grpo(8).but(selector=Scheduler(keep=50, mini_batch=2)), 4, "about"),
        (methods.cppo(16), 16, "about"),
        (methods.cppo(16, dynamic_allocation=False), 8, "each"),
        (methods.cppo(16, 0.9375, dynamic_allocation=False), 1, "each"),
        (methods.cppo(16, scope="batch"), 16, "about"),
        (methods.grpo(8).but(selector=All(mini_batch=16)), 8, "each"),
        (methods.pruned(8), 8, "each"),
        (methods.lilo(8), 8, "each"),
        (methods.ragen(16), 16, "about"),
        (methods.speed(4, 12), 16, "about"),
        (methods.reinforce_ada(k=8, keep=4), 4, "about"),
        (methods.reinforce_ada_est(6), 6, "average"),
        (methods.cures(6), 6, "average"),
        (methods.hora(6), 6, "average"),
        (methods.vip(6), 6, "average"),
    ],
)
def test_rollouts_trained_on_for_each_problem(method, n, of):
    assert method.trained == PerProblem(n, of)


def test_a_total_for_any_number_of_problems_says_nothing_of_one_problem():
    assert methods.grpo().but(allocator=Knapsack(total=64)).trained is None


def test_needs_are_those_of_all_slots_and_of_what_they_delegate_to():
    for name in (*methods.PAPERS, *methods.MORE_PAPERS):
        assert getattr(methods, name)().needs <= set(NEEDS)
    inner = Knapsack(rates=SuccessRates("epoch"))
    method = methods.grpo().but(allocator=DynamicSampling(within=inner))
    assert method.needs == {"epochs", "more_problems", "resampling"}


# Declared bounds


def test_an_own_class_declares_bounds_or_does_without():
    @dataclass
    class Longest(Slot):
        m: Count
        share: Share | None = None
        rule: str = "mean"

    assert Longest(np.int64(3), None, rule=5).m == 3
    with pytest.raises(ValueError, match=r"^m="):
        Longest(0)
    with pytest.raises(ValueError, match=r"^m="):
        Longest(None)
    with pytest.raises(ValueError, match=r"^share="):
        Longest(1, 1.5)

    class Plain(Slot):
        def __init__(self, m: Count):
            self.m = m

    assert Plain(0).m == 0


@pytest.mark.parametrize("slot, value", EVERY)
def test_the_types_of_every_constructor_can_be_read(slot, value):
    if dataclasses.is_dataclass(value):
        typing.get_type_hints(type(value), include_extras=True)
