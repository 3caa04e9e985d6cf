"""Time of the budget split: `pytest tests/bench/test_bench_allocators.py`.

The straightforward dynamic program over (problem, total) is here for comparison. It finds the same
optimum in P x total x up steps.
"""

import numpy as np
import pytest

from papers.knapsack import balance
from tests.bench import ratios
from workbench.problems import Problem
from workbench.rollouts import Context, Rollouts
from workbench.rules.allocators import SuccessRates, knapsack, value


def rates(size, kind):
    rng = np.random.default_rng(0)
    return rng.random(size) if kind == "spread" else rng.integers(0, 17, size) / 16


def dynamic_program(p, total, low=2, up=128):
    """Counts of greatest summed value, by the textbook recursion vectorised over totals."""
    best, choice = np.full(total + 1, -np.inf), np.zeros((len(p), total + 1), dtype=np.int64)
    best[0] = 0
    for i, rate in enumerate(p):
        step = np.full(total + 1, -np.inf)
        for n, worth in zip(range(low, up + 1), value(np.arange(low, up + 1), rate)):
            candidate = best[: total + 1 - n] + worth
            better = candidate > step[n:]
            step[n:][better], choice[i, n:][better] = candidate[better], n
        best = step
    counts = np.zeros(len(p), dtype=np.int64)
    for i in reversed(range(len(p))):
        counts[i] = choice[i, total]
        total -= counts[i]
    return counts


@pytest.mark.parametrize("kind", ["spread", "sixteenths"])
@pytest.mark.parametrize("size", [256, 100_000])
def test_knapsack(benchmark, size, kind):
    """8 rollouts a problem on average."""
    p = rates(size, kind)
    counts = benchmark.pedantic(
        knapsack, (p, 8 * size), rounds=50 if size == 256 else 3, warmup_rounds=1
    )
    assert counts.sum() == 8 * size


def test_dynamic_program(benchmark):
    """256 problems, 2,048 rollouts: the same value as `knapsack`."""
    p = rates(256, "spread")
    counts = benchmark.pedantic(dynamic_program, (p, 2048), rounds=1)
    ours = knapsack(p, 2048, fallback=False)
    assert counts.sum() == 2048
    assert value(ours, p).sum() == pytest.approx(value(counts, p).sum(), rel=1e-12)


def test_a_round_against_the_dynamic_program():
    p = rates(256, "spread")
    ours, theirs = ratios.turns(
        lambda: knapsack(p, 2048),
        lambda: dynamic_program(p, 2048),
        repeats=5,
        clock=ratios.OF_THE_PROCESS,
    )
    ratios.note("knapsack 256 problems, 2,048 rollouts", 1000 * np.array(ours), unit="ms")
    median = ratios.note(
        "knapsack 256 problems, 2,048 rollouts: ours / dynamic program",
        np.array(ours) / theirs,
        "<= 0.02",
    )
    assert median < 0.1


def test_growth():
    """Up to 100,000 problems with 800,000 rollouts: the exponent of time over problems."""
    sizes = [1000, 10_000, 100_000]
    p = {size: rates(size, "spread") for size in sizes}
    spent = ratios.turns(
        *(lambda size=size: knapsack(p[size], 8 * size) for size in sizes),
        repeats=3,
        clock=ratios.OF_THE_PROCESS,
    )
    ratios.note("knapsack 100,000 problems, 800,000 rollouts", spent[-1], unit="s")
    exponent = ratios.note(
        "knapsack 1,000 to 100,000 problems: exponent of time",
        ratios.exponents(sizes, spent),
        "<= 1.2",
    )
    assert exponent < 1.5


def test_balance(benchmark):
    """2,048 jobs over 8 workers."""
    costs = np.random.default_rng(0).lognormal(size=2048)
    parts = benchmark.pedantic(balance, (costs, 8), rounds=3)
    loads = [costs[part].sum() for part in parts]
    assert max(loads) < 1.001 * min(loads)


def test_success_rates(benchmark):
    """A round of 256 problems x 8 in a history of 100,000 problems."""
    memory, ids = SuccessRates(), [f"problem-{i}" for i in range(100_000)]
    memory.feedback(Rollouts(problem=ids, correct=np.ones(len(ids))), Context())
    batch = [Problem(id=key, prompt="", answer="") for key in ids[::391]]
    fresh = Rollouts(problem=np.repeat(ids[::391], 8), correct=np.ones(8 * len(batch)))

    def one_round():
        list(memory.estimates(batch, Context()))
        memory.feedback(fresh, Context())

    benchmark(one_round)
