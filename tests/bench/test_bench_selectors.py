"""How long selection takes, against the same rule written down plainly and against one sort."""

import numpy as np
import pytest

from tests.bench import ratios
from workbench.rules.selectors import max_variance

PROBLEMS, SIZE = 256, 64


def straightforward(rewards, m):
    """Max-variance selection by its definition: one variance for each number taken from the top."""
    order = np.argsort(rewards, kind="stable")
    splits = [np.concatenate([order[: m - k], order[len(rewards) - k :]]) for k in range(m + 1)]
    return np.sort(max(splits, key=lambda rows: np.var(rewards[rows])))


@pytest.fixture(scope="module")
def rewards():
    return np.random.default_rng(0).normal(size=PROBLEMS * SIZE)


@pytest.mark.benchmark(group="a round of 256 problems x 64 rollouts")
def test_max_variance_of_a_round(benchmark, rewards):
    kept = benchmark(max_variance, rewards, 16, np.repeat(np.arange(PROBLEMS), SIZE))
    assert len(kept) == PROBLEMS * 16


@pytest.mark.benchmark(group="a round of 256 problems x 64 rollouts")
def test_max_variance_of_a_round_straightforward(benchmark, rewards):
    table = rewards.reshape(PROBLEMS, SIZE)
    slow = benchmark.pedantic(lambda: [straightforward(row, 16) for row in table], rounds=3)
    kept = max_variance(rewards, 16, np.repeat(np.arange(PROBLEMS), SIZE)).reshape(PROBLEMS, 16)
    if slow is not None:
        np.testing.assert_allclose(
            np.take_along_axis(table, np.array(slow), 1).var(1), rewards[kept].var(1), rtol=1e-12
        )


def test_a_round_against_the_straightforward_selection(rewards):
    groups, table = np.repeat(np.arange(PROBLEMS), SIZE), rewards.reshape(PROBLEMS, SIZE)
    ours, theirs = ratios.turns(
        lambda: max_variance(rewards, 16, groups),
        lambda: [straightforward(row, 16) for row in table],
        clock=ratios.OF_THE_PROCESS,
    )
    ratios.note("max-variance of 256 groups of 64", 1000 * np.array(ours), unit="ms")
    median = ratios.note(
        "max-variance of 256 groups of 64: ours / a variance for each candidate",
        np.array(ours) / theirs,
        "<= 0.25",
    )
    assert median < 0.5


@pytest.mark.parametrize("m", [16, 1000, 500_000])
def test_a_million_in_sorts(m):
    """Rewards are sorted from both ends, and the numbers of their groups once.

    A stable sort compares one pair at a time on every processor.

    The plain sort of NumPy does not do for a comparison: with the widest vectors it is ten times as
    fast as without.
    """
    rewards = np.random.default_rng(0).normal(size=10**6)
    values = ratios.ratio(
        lambda: max_variance(rewards, m),
        lambda: np.argsort(rewards, kind="stable"),
        clock=ratios.OF_THE_PROCESS,
    )
    name = f"max-variance of {m:,} of 1,000,000: ours / one stable argsort"
    assert ratios.note(name, values, "<= 4") < 6
