"""A million problems in a pool and a million stored rollouts, through every value of every slot.

Each row is the work of one slot in one round of 256 new rollouts, as a share of the time of such a
round of the tiny lab, model included. What a slot does for the new rollouts alone must not depend
on how much there is: wanted is at most a tenth of a round. Some slots read everything that there is
by their definition, such as a selector among all rollouts of a buffer. Theirs are measured at two
sizes, and what is wanted is that ten times as much takes no more than about ten times as long.
`docs/speed.md` says which ones they are.
"""

from functools import partial

import numpy as np
import pytest

import workbench as wb
from tests.bench import limits, ratios
from workbench.problems import Pool, Problem
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.rounds import collect
from workbench.rules import advantages, allocators, curricula, replay, selectors
from workbench.utils.names import catalogue

MILLION = 1_000_000
SIZES = (100_000, MILLION)
PROBLEMS, N = 32, 8
TOKENS = 24

# Of the pool or the history they touch what they need for the round.
OF_THE_ROUND = [
    curricula.ShuffledEpochs(),
    curricula.Mopps(),
    curricula.Mapp(),
    curricula.Greso(),
    allocators.Uniform(),
    allocators.Knapsack(),
    allocators.Staged(),
    allocators.Rescue(),
    allocators.DynamicSampling(),
    allocators.InverseRoot(),
    allocators.ByDeviation(),
    allocators.Screening(),
    allocators.PilotCommit(),
    allocators.MostLearnable(),
    allocators.HitUtility(),
    allocators.LeastVariance(),
    advantages.DiscountedBeta(),
    advantages.Marginalized(),
]
# They read the whole pool, or all that is stored, in every round.
OF_EVERYTHING = [
    curricula.Cures(),
    curricula.AdaRft(),
    curricula.Dps(),
    curricula.WithoutSolved(),
    curricula.Recycled(),
    replay.CorrectResponses(),
    replay.Experience(),
    replay.Buckets(),
    replay.Buffer(rounds=MILLION),
    replay.Fifo(size=MILLION),
    selectors.All(),
    selectors.MaxVariance(4),
    selectors.MaxReward(4),
    selectors.Random(4),
    selectors.Rejection(),
    selectors.LargestAdvantage(),
    selectors.Finished(),
    selectors.GroupFilter(),
    selectors.Pruned(),
    selectors.HalfRight(),
    selectors.UniformDraws(),
    selectors.Scheduler(),
    advantages.GroupNormalized(),
    advantages.LeaveOneOut(),
    advantages.Posterior(),
    advantages.BatchNormalized(),
    advantages.Asymmetric(),
    advantages.PartsNormalized(),
    advantages.MaxRL(),
    advantages.PassAtK(),
    advantages.Pkpo(),
    advantages.InverseRootWeighted(),
    advantages.EntropyShaped(),
]


def name_of(value):
    return type(value).__name__


def problems_of(size):
    return [Problem(id=f"problem/{i:07d}", prompt="", answer="", level=i % 8) for i in range(size)]


def table(problems, number, first=0):
    """Verified rollouts, N of each problem in turn, sampled in round `number`."""
    ids = np.repeat([problem.id for problem in problems], N)
    size = len(ids)
    rng = np.random.default_rng(first + number)
    correct = rng.random(size) < 0.5
    offsets = np.arange(size + 1) * TOKENS
    tokens = np.zeros(size * TOKENS, dtype=np.int32)
    numbers = rng.random(size * TOKENS).astype(np.float32)
    return Rollouts(
        problem=ids,
        prompt=Ragged(tokens, offsets),
        response=Ragged(tokens, offsets),
        old_logprobs=Ragged(-numbers, offsets),
        token_entropy=Ragged(numbers, offsets),
        entropy=rng.random(size),
        reward=correct.astype(np.float64),
        correct=correct,
        draw=np.tile(np.arange(N), len(problems)),
        round=np.full(size, number),
        columns={"gradient": np.ones(size, bool), "uses": np.zeros(size, dtype=np.int64)},
    )


def trained(rollouts):
    """The table with the columns that a finished round has."""
    empty = np.full(len(rollouts), np.nan)
    return rollouts.assign(
        advantage=rollouts.reward - 0.5,
        age=np.zeros(len(rollouts), dtype=np.int64),
        selected=np.ones(len(rollouts), bool),
        trained=np.ones(len(rollouts), bool),
        clip_ratio=rollouts.columns.get("clip_ratio", empty),
        update_entropy=rollouts.entropy,
    )


class Logprobs:
    """A policy as far as replay asks it: for the log-probabilities of a few old responses."""

    def logprobs(self, rollouts, temperature=1.0):
        import torch

        return torch.zeros(len(rollouts), TOKENS)


@pytest.fixture(scope="module")
def a_round():
    """Seconds of a round of 256 rollouts of the tiny lab: the median of five."""
    run = wb.Run(limits.lab("0.10 M"), wb.methods.grpo(N), evaluate_every=0, checkpoint_every=1000)
    spent = []
    rounds = run.rounds(7, progress=False)
    for _ in range(7):
        spent.append(ratios.seconds(lambda: next(rounds), ratios.OF_THE_PROCESS))
    rounds.close()
    return float(np.median(spent[2:]))


@pytest.fixture(scope="module")
def pools():
    problems = problems_of(max(SIZES))
    return {size: Pool(problems[:size]) for size in SIZES}


@pytest.fixture(scope="module")
def stored(pools):
    """A table of each size, of rounds before the next."""
    return {size: table(pools[size].problems[: size // N], 1) for size in SIZES}


def job_of(value, pool, stored):
    """What the slot does in one round, as a function of the number of the round."""
    slot = value.clone()
    if hasattr(slot, "passed"):
        slot.passed = np.arange(len(stored))
    if not hasattr(slot, "select"):
        slot.feedback(trained(stored), Context(round=1))
    if hasattr(slot, "choose"):
        return lambda number: with_curriculum(slot, pool, number)
    if hasattr(slot, "allocate"):
        return lambda number: with_allocator(slot, pool, number)
    if hasattr(slot, "join"):
        return lambda number: with_replay(slot, pool, number)
    if name_of(slot) in ("DiscountedBeta", "Marginalized"):
        return lambda number: with_advantage(slot, new_rollouts(pool, number), number)
    if callable(slot):
        return lambda number: with_advantage(slot, stored, number)
    return lambda number: slot.select(trained(stored), Context(round=number))


def new_rollouts(pool, number):
    start = number * PROBLEMS
    return table(pool.problems[start : start + PROBLEMS], number)


def with_curriculum(slot, pool, number):
    problems = slot.choose(pool, PROBLEMS, Context(round=number))
    slot.feedback(trained(table(problems, number)), Context(round=number, epoch=1))


def with_allocator(slot, pool, number):
    drawn = []
    cursor = number * 1000

    def sample(problems, counts, before, stage):
        rows = [problem for problem, count in zip(problems, counts) for _ in range(count)]
        ids = np.array([problem.id for problem in rows])
        correct = np.random.default_rng(stage).random(len(ids)) < 0.5
        numbers = np.full(len(ids), number)
        drawn.append(Rollouts(problem=ids, correct=correct, round=numbers))
        return drawn[-1]

    def more(n, problems):
        further = cursor + len(problems)
        return pool.problems[further : further + n]

    first = pool.problems[cursor : cursor + PROBLEMS]
    rollouts, _ = collect(slot, list(first), Context(round=number), sample, more)
    selected = np.ones(len(rollouts), bool)
    slot.feedback(rollouts.assign(selected=selected), Context(round=number))


def with_replay(slot, pool, number):
    rollouts = new_rollouts(pool, number)
    # Some problems unsolved, since only those ask for old answers.
    rollouts = rollouts.assign(correct=rollouts.correct & (np.arange(len(rollouts)) % 64 < 32))
    context = Context(round=number, policy=Logprobs())
    joined, _ = slot.join(rollouts, np.arange(len(rollouts)), context)
    slot.feedback(trained(joined), context)
    slot.metrics()


def with_advantage(slot, rollouts, number):
    slot(rollouts, Context(round=number))
    slot.feedback(trained(rollouts), Context(round=number))


def measure(value, pool, stored, repeats, warmup=True):
    """Seconds of some rounds behind those in which caches are filled."""
    job = job_of(value, pool, stored)
    if warmup:
        job(2)
    spent = []
    for number in range(3, 3 + repeats):
        spent.append(ratios.seconds(partial(job, number), ratios.OF_THE_PROCESS))
    return np.array(spent)


@pytest.mark.parametrize("value", OF_THE_ROUND, ids=name_of)
def test_a_million_costs_a_slot_of_the_round_nothing(value, pools, stored, a_round):
    spent = measure(value, pools[MILLION], stored[MILLION], repeats=5)
    name = f"a million, {name_of(value)}: its seconds / those of a round"
    assert ratios.note(name, spent / a_round, "<= 0.1") < 0.5


@pytest.mark.parametrize("value", OF_EVERYTHING, ids=name_of)
def test_ten_times_as_much_takes_ten_times_as_long(value, pools, stored, a_round):
    # Of the whole pool `AdaRft` reads the levels once.
    warmup = isinstance(value, curricula.AdaRft)
    spent = [measure(value, pools[size], stored[size], 1, warmup) for size in SIZES]
    name = f"a million, {name_of(value)}"
    ratios.note(f"{name}: its seconds / those of a round", spent[-1] / a_round)
    # A million no longer fit the caches, which costs some processors more than others. Work that
    # grew with the square of the size would have an exponent of 2.
    exponent = ratios.note(f"{name}: exponent of time", ratios.exponents(SIZES, spent), "<= 1.7")
    assert exponent < 1.8


def test_every_value_of_the_slots_is_measured():
    measured = {type(value) for value in OF_THE_ROUND + OF_EVERYTHING}
    # `Surplus` keeps a few groups by definition, `OfRewards` is a function of the caller's own, and
    # the other three are parts of methods whose allocators or selectors are measured.
    elsewhere = {"Surplus", "OfRewards", "Widened", "BySignal", "InverseCounts"}
    modules = (curricula, allocators, replay, selectors, advantages, *catalogue())
    for module in modules:
        for name, value in vars(module).items():
            is_own = isinstance(value, type) and value.__module__ == module.__name__
            if not is_own or name.startswith("_") or name in elsewhere:
                continue
            # What a measured one inherits from is measured by it.
            if any(hasattr(value, action) for action in ("choose", "allocate", "join", "select")):
                assert any(issubclass(each, value) for each in measured), name
