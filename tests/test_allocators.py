"""How many rollouts for which problem: allocators and success rates against hand-made outcomes."""

import copy
import json
from dataclasses import dataclass

import numpy as np
import pytest

from workbench.catalogue.vip import LeastVariance
from workbench.config import rebuild
from workbench.problems import Problem
from workbench.rollouts import Context, Rollouts
from workbench.rounds import collect
from workbench.rules.allocators import (
    DynamicSampling,
    Knapsack,
    More,
    Rescue,
    Staged,
    SuccessRates,
    Uniform,
    knapsack,
)
from workbench.slots import Slot
from workbench.trials.check import _text
from workbench.utils.descriptions import compose, describe
from workbench.utils.seeding import derive

HERE = Context()


# A tiny run: problems by id, and whether a rollout is correct by a function of id and draw.


def named(*ids):
    return [Problem(id=key, prompt=f"{key}?", answer="1") for key in ids]


@dataclass
class Driven:
    """What an allocator asked for, all rollouts, and the rows that go on."""

    requests: list
    rollouts: Rollouts
    rows: np.ndarray

    def counts(self, key):
        return int((self.rollouts.problem == key).sum())

    def kept(self):
        """The problem of every rollout that goes on."""
        return self.rollouts.problem[self.rows].tolist()


def drive(allocator, problems, correct, context=HERE, pool=()):
    """One round; `correct(id, draw)` is an outcome, and `More` draws from `pool`."""
    requests = []
    left = list(pool)

    def sample(problems, counts, before, stage):
        assert counts.sum() > 0
        requests.append(counts.tolist())
        ids = np.repeat([problem.id for problem in problems], counts)
        draw = np.concatenate([first + np.arange(n) for first, n in zip(before, counts)])
        ones = np.ones(len(ids))
        return Rollouts(
            problem=ids,
            correct=[correct(key, number) for key, number in zip(ids.tolist(), draw.tolist())],
            draw=draw,
            stage=stage * ones,
            round=context.round * ones,
            reward=-ones,  # allocators read the verdict, never the reward
        )

    def more(n, problems):
        requests.append(More(n))
        drawn = left[:n]
        del left[:n]
        return drawn

    rollouts, rows = collect(allocator, list(problems), context, sample, more)
    return Driven(requests, rollouts, rows)


def scripted(**outcomes):
    """Outcomes by id as a string of 0 and 1, the last one repeated."""
    return lambda key, draw: outcomes[key][min(draw, len(outcomes[key]) - 1)] == "1"


# allocators, by outcomes made by hand


def test_uniform():
    run = drive(Uniform(3), named("a", "b"), scripted(a="1", b="0"))
    assert run.requests == [[3, 3]]
    assert run.rows.tolist() == [0, 1, 2, 3, 4, 5]


def test_staged_goes_on_with_unsolved_problems_only():
    run = drive(
        Staged(stages=3, k=2),
        named("a", "b", "c", "d"),
        scripted(a="01", b="0001", c="0", d="00001"),
    )
    assert run.requests == [[2, 2, 2, 2], [0, 2, 2, 2], [0, 0, 2, 2]]
    assert drive(Staged(), named("a", "b"), scripted(a="1", b="01")).requests == [[4, 4]]


def test_rescue_ends_at_the_first_correct_rollout():
    run = drive(
        Rescue(),
        named("easy", "late", "never"),
        scripted(easy="10", late="0" * 11 + "1", never="0"),
    )
    assert run.requests[:4] == [[8, 8, 8], [0, 2, 2], [0, 2, 2], [0, 0, 2]]
    assert run.counts("easy") == 8
    assert run.counts("late") == 12
    # k_max=10 iterations of 2 come before n_max=32, and 24 are in the budget.
    assert run.counts("never") == 28


def test_rescue_keeps_the_budget_of_the_batch_and_of_a_problem():
    run = drive(Rescue(explore=4, total=6, k_max=100), named(*"abcde"), lambda key, draw: False)
    assert len(run.rollouts) == 6 * 5
    assert [run.counts(key) for key in "abcde"] == [6, 6, 6, 6, 6]
    run = drive(
        Rescue(explore=4, total=9, n_max=7, k_max=100), named("a", "b"), scripted(a="0", b="1")
    )
    assert run.counts("a") == 7
    run = drive(Rescue(explore=4, total=5, extra=2), named("a", "b", "c"), lambda key, draw: False)
    # What does not last for all goes to the earlier ones.
    assert run.requests == [[4, 4, 4], [2, 1, 0]]
    assert drive(Rescue(explore=4, total=4), named("a"), scripted(a="0")).requests == [[4]]


def test_rescue_threshold_counts_correct_rollouts():
    outcomes = scripted(one="1000" + "01", two="1100")
    one_is_failed = drive(Rescue(explore=4, total=8, threshold=1), named("one", "two"), outcomes)
    assert one_is_failed.requests == [[4, 4], [2, 0]]
    none_is_failed = drive(Rescue(explore=4, total=8), named("one", "two"), outcomes)
    assert none_is_failed.requests == [[4, 4]]


def test_dynamic_sampling_draws_until_enough_are_mixed():
    outcomes = scripted(a="1", b="01", c="0", d="10", e="10")
    run = drive(
        DynamicSampling(n=2, max_draws=3), named("a", "b"), outcomes, pool=named("c", "d", "e")
    )
    assert run.requests == [[2, 2], More(2), [0, 0, 2, 2]]
    assert run.kept() == ["b", "b", "d", "d"]
    run = drive(DynamicSampling(n=2, groups=1), named("b", "d"), outcomes)
    assert run.requests == [[2, 2]]
    assert set(run.kept()) == {"b"}


def test_dynamic_sampling_ends_when_every_problem_is_always_solved():
    run = drive(
        DynamicSampling(n=4, max_draws=3),
        named("a", "b"),
        lambda key, draw: True,
        pool=named(*"cdefgh"),
    )
    assert [r for r in run.requests if isinstance(r, More)] == [More(2), More(2)]
    assert len(run.rollouts) == 24
    assert len(run.rows) == 0


def test_dynamic_sampling_goes_on_with_what_it_has():
    outcomes = scripted(a="1", b="01", c="0", d="0")
    run = drive(DynamicSampling(n=2, max_draws=2), named("a", "b"), outcomes, pool=named("c", "d"))
    assert run.kept() == ["b", "b"]
    # Nothing is left to draw.
    run = drive(DynamicSampling(n=2, max_draws=9), named("a", "b"), outcomes)
    assert run.requests == [[2, 2], More(2)]
    assert len(run.rows) == 2


def test_dynamic_sampling_counts_each_draw_by_the_allocator_within():
    outcomes = scripted(a="01", b="0001", c="1", d="00001", e="01", f="1")
    allocator = DynamicSampling(max_draws=2, groups=3, within=Staged(2, 2))
    run = drive(allocator, named("a", "b", "c"), outcomes, pool=named("d", "e", "f"))
    assert run.requests == [[2, 2, 2], [0, 2, 0], More(3), [0, 0, 0, 2, 2, 2], [0, 0, 0, 2, 0, 0]]
    assert run.kept() == ["a", "a", "b", "b", "b", "b", "e", "e"]


def test_dynamic_sampling_with_knapsack_learns_from_all_draws():
    allocator = DynamicSampling(max_draws=2, within=Knapsack(n=6))
    log = play(allocator, 3, noisy, pool=named(*"efgh"))
    assert [len(requests) for requests, _ in log] == [3, 3, 3]
    assert log[0][0][0] == [6] * 4
    assert log[0][0][2] == [0] * 4 + [6] * 4
    for requests, _ in log[1:]:
        assert sum(requests[0]) == sum(requests[2]) == 24
        assert requests[0] != [6] * 4
    assert log[0][1]["success_rate_known"] == 0
    assert log[1][1]["success_rate_known"] == 1
    assert sorted(allocator.within.rates.learner.recent) == list("abcdefgh")
    again = DynamicSampling(max_draws=2, within=Knapsack(n=6))
    again.load_state_dict(allocator.state_dict())
    assert play(again, 1, noisy, start=4, pool=named(*"efgh")) == play(
        allocator, 1, noisy, start=4, pool=named(*"efgh")
    )
    plain = DynamicSampling()
    plain.load_state_dict(plain.state_dict())
    assert plain.metrics() == {}


# success rates and the allocator that learns


def play(allocator, rounds, outcome, ids="abcd", start=1, policy=None, pool=()):
    """Rounds of drive and feedback with `outcome(id, round, draw)`: their requests and metrics."""
    log = []
    for number in range(start, start + rounds):
        context = Context(seed=5, round=number, epoch=(number - 1) // 2, policy=policy)
        run = drive(
            allocator,
            named(*ids),
            lambda key, draw, number=number: outcome(key, number, draw),
            context,
            pool,
        )
        allocator.feedback(run.rollouts, context)
        log.append((run.requests, allocator.metrics()))
    return log


def noisy(key, number, draw):
    return (derive(key, number, draw) % 100) < {"a": 10, "b": 50, "c": 90, "d": 0}.get(key, 30)


class Embeddings:
    """Hidden states that say how hard a prompt is."""

    def prompt_states(self, prompts):
        points = {"a?": 0.1, "b?": 0.5, "c?": 0.9, "d?": 0.0, "new?": 0.9}
        return np.array(
            [[points[p], 1 - points[p], points[p] ** 2, 0.3, -0.7] for p in prompts],
            dtype=np.float32,
        )


def policy_of(kind):
    return Embeddings() if kind == "predictor" else None


def test_knapsack_starts_uniform_and_then_follows_the_rates():
    log = play(
        Knapsack(n=8),
        2,
        lambda key, number, draw: {"a": draw == 0, "b": draw < 4, "c": True, "d": False}[key],
    )
    assert log[0][0] == [[8, 8, 8, 8]]
    assert np.isnan(log[0][1]["success_rate_error"])
    assert log[0][1]["success_rate_known"] == 0
    assert log[1][0] == [knapsack([1 / 8, 1 / 2, 1, 0], 32).tolist()]
    assert log[1][1]["success_rate_known"] == 1


def estimate(rates, ids, context=HERE):
    talk = rates.estimates(named(*ids), context)
    with pytest.raises(StopIteration) as end:
        next(talk)
    return end.value.value


def observe(rates, epoch=0, number=1, **outcomes):
    ids = [key for key, text in outcomes.items() for _ in text]
    right = [mark == "1" for text in outcomes.values() for mark in text]
    rollouts = Rollouts(problem=ids, correct=right, round=np.full(len(ids), number))
    rates.feedback(rollouts, Context(epoch=epoch, round=number))


def test_last_window_by_id():
    rates = SuccessRates(window=4)
    observe(rates, a="1100", b="11111110")
    assert estimate(rates, ["b", "x", "a"]) == pytest.approx([0.75, np.nan, 0.5], nan_ok=True)
    observe(rates, number=2, a="1", c="0")
    assert estimate(rates, ["a", "b", "c"]) == pytest.approx([0.5, 0.75, 0])  # 1 0 0 1


def test_window_against_a_plain_list():
    rng = np.random.default_rng(0)
    rates = SuccessRates(window=5)
    lists = {}
    for number in range(1, 40):
        some = rng.choice(30, 8, replace=False)
        outcomes = {f"p{i}": "".join(rng.choice(["0", "1"], rng.integers(1, 12))) for i in some}
        observe(rates, number=number, **outcomes)
        for key, text in outcomes.items():
            lists[key] = (lists.get(key, "") + text)[-5:]
    ids = sorted(lists)
    assert estimate(rates, ids) == pytest.approx(
        [lists[key].count("1") / len(lists[key]) for key in ids]
    )


def test_epoch_mean():
    rates = SuccessRates("epoch")
    observe(rates, epoch=0, a="1000", b="1")
    observe(rates, epoch=0, number=2, a="1111")
    assert estimate(rates, "ab") == pytest.approx([5 / 8, 1])
    observe(rates, epoch=1, number=3, a="00")
    assert estimate(rates, "ab") == pytest.approx([0, 1])


def test_one_rollout_is_an_estimate():
    rates = SuccessRates()
    observe(rates, a="1", b="0")
    assert estimate(rates, "ab") == pytest.approx([1, 0])
    observe(rates, number=2, a="0", b="0")
    assert rates.metrics()["success_rate_error"] == 0.5


def test_beta_posterior():
    rates = SuccessRates("beta", a=1, b=3)
    observe(rates, a="1111", b="0000")
    assert estimate(rates, "abx") == pytest.approx([5 / 8, 1 / 8, np.nan], nan_ok=True)


def test_fresh_rates_come_from_probes_within_the_total():
    allocator = Knapsack(n=8, rates=SuccessRates("fresh", probe=4))
    run = drive(allocator, named("hard", "easy"), scripted(hard="1000", easy="1111"))
    assert run.requests == [[4, 4], (knapsack([0.25, 1], 16, low=4) - 4).tolist()]
    assert len(run.rollouts) == 16
    allocator.feedback(run.rollouts, Context())
    # 1/4 was believed, and after the probes 0 was seen.
    assert allocator.metrics()["success_rate_error"] == pytest.approx(0.25)


@pytest.mark.parametrize("hard", ["0", "1000", "1"])
def test_probes_beyond_the_low_bound_stay_within_the_total_of_the_round(hard):
    allocator = LeastVariance(n=8, low=4, rates=SuccessRates("fresh", probe=7))
    outcomes = {"a": "10", "b": "1", "c": hard}
    run = drive(allocator, named("a", "b", "c"), scripted(**outcomes))
    assert run.requests[0] == [7, 7, 7]
    assert len(run.rollouts) == 8 * 3
    with pytest.raises(ValueError, match="n=8: a whole number from 9 to 32"):
        LeastVariance(n=8, rates=SuccessRates("fresh", probe=9))


@pytest.mark.slow
def test_predictor_learns_and_speaks_of_new_problems():
    rates = SuccessRates("predictor")
    policy = Embeddings()
    assert np.isnan(estimate(rates, "abcd", Context(policy=policy))).all()
    for number in range(1, 30):
        estimate(rates, "abcd", Context(policy=policy, round=number))
        observe(rates, number=number, a="1" + 9 * "0", b="1111100000", c=9 * "1" + "0", d=10 * "0")
    assert estimate(rates, "abcd", Context(policy=policy)) == pytest.approx(
        [0.1, 0.5, 0.9, 0.0], abs=0.1
    )
    assert estimate(rates, ["new"], Context(policy=policy))[0] == pytest.approx(0.9, abs=0.1)


def test_predictor_learns_from_every_draw_of_a_round():
    rates = SuccessRates("predictor")
    here = Context(policy=Embeddings(), round=1)
    estimate(rates, "ab", here)
    estimate(rates, "cd", here)
    observe(rates, number=1, a="10", b="11", c="01", d="00")
    assert rates.state_dict()["learner"]["known"]["outcomes"].tolist() == [
        [1, 2],
        [2, 2],
        [1, 2],
        [0, 2],
    ]
    # What was asked about in a round that tried nothing of it is forgotten.
    estimate(rates, "ab", here)
    observe(rates, number=2, x="10")
    observe(rates, number=3, a="00", b="00")
    assert len(rates.state_dict()["learner"]["known"]["outcomes"]) == 4


def test_predictor_leaves_the_global_generators_alone():
    import torch

    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    of_torch = torch.random.get_rng_state()
    of_numpy = np.random.get_state()[1].tolist()  # noqa: NPY002
    play(Knapsack(rates=SuccessRates("predictor")), 2, noisy, policy=Embeddings())
    assert torch.equal(torch.random.get_rng_state(), of_torch)
    assert np.random.get_state()[1].tolist() == of_numpy  # noqa: NPY002


def test_the_error_is_that_of_the_estimate_used():
    rates = SuccessRates(window=4)
    observe(rates, a="1100", b="1111")
    estimate(rates, "abx")
    observe(rates, number=2, a="11", b="10", x="11")
    assert rates.metrics() == pytest.approx(
        {"success_rate_error": 0.5, "success_rate_known": 2 / 3}
    )


def test_reused_rollouts_do_not_count():
    rates = SuccessRates()
    rates.feedback(
        Rollouts(problem=["a"] * 3, correct=[0, 0, 1], round=[7, 7, 2]), Context(round=7)
    )
    assert estimate(rates, "a") == pytest.approx([0])


@pytest.mark.parametrize("kind", ["last", "epoch", "beta", "fresh", "predictor"])
def test_a_resumed_run_is_the_same(kind):
    policy = policy_of(kind)
    whole = Knapsack(rates=SuccessRates(kind, probe=3))
    straight = play(whole, 6, noisy, policy=policy)
    first = Knapsack(rates=SuccessRates(kind, probe=3))
    second = first.clone()
    play(first, 3, noisy, policy=policy)
    saved = first.state_dict()
    frozen = copy.deepcopy(saved)
    play(first, 1, noisy, start=4, policy=policy)  # must not reach into what was saved
    assert _text(saved) == _text(frozen)
    second.load_state_dict(saved)
    resumed = play(second, 3, noisy, start=4, policy=policy)
    assert repr(resumed) == repr(straight[3:])
    assert _text(whole.state_dict()) == _text(second.state_dict())


@pytest.mark.slow
def test_many_ids():
    rates = SuccessRates()
    ids = [f"problem-{i}" for i in range(20_000)]
    rollouts = Rollouts(problem=np.repeat(ids, 4), correct=np.tile([1, 0, 0, 0], 20_000))
    rates.feedback(rollouts, Context())
    assert (estimate(rates, ids) == 0.25).all()
    other = SuccessRates()
    other.load_state_dict(rates.state_dict())
    assert (estimate(other, ids[::-1]) == 0.25).all()


# configurations


@dataclass(frozen=True)
class Endless(Slot):
    """Asks for problems, and never for rollouts."""

    needs = frozenset({"more_problems"})

    def allocate(self, problems, context):
        yield More(1)


ALLOCATORS = [
    Uniform(4),
    Staged(3, 2),
    Rescue(extra=4, k_max=3),
    DynamicSampling(4, groups=16),
    Knapsack(total=96, up=64),
    Knapsack(estimator="reinforce", low=0, rates=SuccessRates("beta", a=2.0)),
    Knapsack(rates=SuccessRates("predictor")),
    DynamicSampling(within=Knapsack(n=6)),
]


@pytest.mark.parametrize("allocator", ALLOCATORS, ids=compose)
def test_describe_and_rebuild(allocator):
    again = rebuild(json.loads(json.dumps(describe(allocator))))
    assert again == allocator
    assert type(again) is type(allocator)
    assert compose(again) == compose(allocator)


def test_two_allocators_share_no_memory():
    first = Knapsack()
    second = Knapsack()
    play(first, 2, noisy)
    assert second.state_dict()["delegate"]["learner"]["recent"] == {}
    assert len(first.state_dict()["delegate"]["learner"]["recent"]) == 4
    assert _text(copy.deepcopy(first).state_dict()) == _text(first.state_dict())


# bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Uniform(1), "n=1"),
        (lambda: Staged(stages=0), "stages=0"),
        (lambda: Staged(k=1), "k=1"),
        (lambda: Rescue(explore=1), "explore=1"),
        (lambda: Rescue(total=7), "total=7: a whole number of at least 8"),
        (lambda: Rescue(n_max=4), "n_max=4"),
        (lambda: Rescue(threshold=5), "threshold=5"),
        (lambda: Rescue(extra=0), "extra=0"),
        (lambda: DynamicSampling(max_draws=0), "max_draws=0"),
        (lambda: DynamicSampling(groups=0), "groups=0"),
        (lambda: DynamicSampling(within=DynamicSampling()), "within="),
        (lambda: DynamicSampling(within=8), "within=8"),
        (lambda: DynamicSampling(within=Endless()), "within="),
        (lambda: More(0), "n=0"),
        (lambda: Knapsack(low=9), "n=8: "),
        (lambda: Knapsack(low=9, up=8), "up=8: "),
        (lambda: Knapsack(n=4, rates=SuccessRates("fresh", probe=8)), "n=4: "),
        (lambda: Knapsack(total=0), "total=0"),
        (lambda: Knapsack(estimator="x"), "estimator='x'"),
        (lambda: SuccessRates("median"), "kind="),
        (lambda: SuccessRates(window=0), "window=0"),
        (lambda: SuccessRates(a=0), "a=0"),
        (lambda: drive(Knapsack(total=3), named("a", "b"), noisy), "total=3: 2 problems"),
        (lambda: drive(Knapsack(rates=SuccessRates("predictor")), named("a"), noisy), "policy="),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
