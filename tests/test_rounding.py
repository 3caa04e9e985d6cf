"""Rewards that differ by rounding alone are equal, for every rule; genuine differences count."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_methods import NAMES, small

import workbench as wb
from workbench.policies import Sampling
from workbench.rounds import play
from workbench.rules import advantages, allocators, rewards, selectors
from workbench.trials import check
from workbench.utils.groups import is_mixed, is_same, merge_same, precision_of, sample_variances

SUM = 0.1 + 0.2  # 0.30000000000000004
FUNCTIONS = {
    "group_normalized": advantages.group_normalized,
    "sample deviation": lambda r, g: advantages.group_normalized(r, g, ddof=1),
    "no scale": lambda r, g: advantages.group_normalized(r, g, scale=False),
    "leave_one_out": advantages.leave_one_out,
    "batch_normalized": advantages.batch_normalized,
    "baseline": lambda r, g: advantages.batch_normalized(r, g, baseline="group"),
    "posterior": advantages.posterior,
    "maxrl": wb.advantages.maxrl,
    "asymmetric": wb.advantages.asymmetric,
    "parts": lambda r, g: wb.advantages.parts_normalized(np.stack([r, r], 1), g),
}
BOUNDED = ("posterior", "maxrl", "asymmetric")  # rewards from 0 to 1
# Sums of decimals that have the same value on paper and another one in the machine.
DECIMALS = [step / 20 for step in range(21)]


def rounded(values, rng, dtype=np.float64):
    """The values, each at most one step of its precision off."""
    values = np.asarray(values, dtype=dtype)
    steps = rng.integers(-1, 2, len(values)).astype(dtype)
    towards = np.where(steps > 0, np.inf, -np.inf).astype(dtype)
    noisy = np.where(steps == 0, values, np.nextafter(values, towards))
    # The step next to 0 is far smaller than what parts leave that cancel.
    return np.where(values == 0, dtype(1e-16) * steps, noisy).astype(dtype)


def test_a_sum_that_misses_1_by_rounding_is_1():
    over = 1 + 2**-52  # as a sum of parts may be
    for function in (
        advantages.posterior,
        wb.advantages.maxrl,
        lambda r, g: wb.advantages.pass_at_k_normalized(r, g, k=2),
    ):
        assert function([over, 0, 0, 0], ["a"] * 4) == pytest.approx(
            function([1, 0, 0, 0], ["a"] * 4)
        )
    with pytest.raises(ValueError, match=r"rewards: 1\.00001"):
        advantages.posterior([1.00001, 0], ["a"] * 2)


def test_equal_sums_have_no_advantage():
    for name, function in FUNCTIONS.items():
        if name != "posterior":
            found = function([SUM, 0.3, 0.3, 0.3], ["a"] * 4)
            assert found.tolist() == [0, 0, 0, 0], name
    # All wrong but for rounding is a uniform group to the posterior, whose advantages are alike.
    found = advantages.posterior([1 - 0.9 - 0.1, 0, 0, 0], ["a"] * 4, bounds=(0, 1))
    assert found == pytest.approx(advantages.posterior([0] * 4, ["a"] * 4))
    assert len(set(found)) == 1


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_is_nothing_and_a_small_difference_something_at_any_scale(name, scale, dtype):
    if name in BOUNDED and scale > 1:
        return
    groups = ["a"] * 4
    equal = np.array([0.7, 0.6, 0.7, 0.7], dtype) * dtype(scale)
    equal[1] = (dtype(0.6) + dtype(0.1)) * dtype(scale)
    found = FUNCTIONS[name](equal, groups)
    assert len(set(found)) == 1 and (name == "posterior" or found[0] == 0)
    different = np.array([1, 1, 1, 1 - 1e-5], dtype) * dtype(scale)
    assert len(set(FUNCTIONS[name](different, groups))) == 2


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.sampled_from(DECIMALS), st.integers(0, 3)), min_size=1, max_size=24),
    st.integers(0, 2**32 - 1),
    st.sampled_from([np.float32, np.float64]),
)
def test_every_function_takes_rounding_for_nothing(rows, seed, dtype):
    values, groups = map(np.array, zip(*rows))
    noisy = rounded(values, np.random.default_rng(seed), dtype)
    for name, function in FUNCTIONS.items():
        clean, found = function(values, groups), function(noisy, groups)
        if name in ("group_normalized", "sample deviation", "no scale", "leave_one_out"):
            assert np.array_equal(clean == 0, found == 0), name
        for group in set(groups):
            alike = len(set(clean[groups == group])) == 1
            assert alike == (len(set(found[groups == group])) == 1), name
        assert found == pytest.approx(clean, abs=1e-4), name
    for m in (1, 2, 3):
        for select in (selectors.max_variance, selectors.max_reward):
            assert np.array_equal(select(values, m, groups), select(noisy, m, groups))
    _, numbers = np.unique(groups, return_inverse=True)
    size = numbers.max() + 1
    assert np.array_equal(is_mixed(values, numbers, size), is_mixed(noisy, numbers, size))
    sizes = np.bincount(numbers)
    alike = sample_variances(values, numbers, sizes) == 0
    assert np.array_equal(alike, sample_variances(noisy, numbers, sizes) == 0)


def test_all_decimals_of_two_digits_that_differ_are_different():
    values = np.arange(101) / 100
    for a, b in itertools.combinations(values, 2):
        assert not is_same(a, b, precision_of(values))
        assert not is_same(a, b, precision_of(np.zeros(1)))
    assert merge_same(values, np.zeros(101)) is values


def test_what_is_merged_takes_the_lowest_value_and_stays_in_its_group():
    values = np.array([SUM, 1.0, 0.3, SUM, -1e6, 0.2])
    merged = merge_same(values, np.array([0, 0, 0, 1, 1, 1]))
    assert merged.tolist() == [0.3, 1.0, 0.3, SUM, -1e6, 0.2]
    assert merge_same(np.array([]), np.array([])).tolist() == []


def test_a_large_penalty_beside_them_merges_no_rewards():
    kept = selectors.max_reward([-1e9, 0.2, 0.8, 0.3], 1)
    assert kept.tolist() == [2]


class Part:
    """A part of the reward that gives what it is told."""

    def __init__(self, name, weight, values):
        self.name, self.weight, self.values = name, weight, np.array(values)

    def __call__(self, rollouts, sampling):
        return self.values


def test_sums_of_weighted_parts_are_equal_where_they_are_on_paper():
    table = check._sampled(check.POOL[:1], np.array([4]), np.zeros(1, int), 0, 1)
    # 1 - .9 - .1 and 0 - 0 - 0 are both 0; the parts say how large the rounding may be.
    parts = [
        Part("a", 1.0, np.array([1, 0, 1, 0], np.float32)),
        Part("b", -0.9, np.array([1, 0, 1, 0], np.float32)),
        Part("c", 1.0, np.array([-0.1, 0, -0.1, 0], np.float32)),
    ]
    found = rewards.total(table, parts, Sampling())
    assert len(set(found.reward)) == 1
    assert (found["reward_b"] == [1, 0, 1, 0]).all()
    different = rewards.total(table, [*parts, Part("d", 1e-5, [1, 0, 0, 0])], Sampling())
    assert len(set(different.reward)) == 2


def outcome_of(method, values, verdicts):
    """A round of the method on rewards that the sampler hands out in turn."""
    context = check._context(method, 1)
    problems = list(check.POOL[:4])
    handed = itertools.count()

    def sample(problems, counts, before, stage):
        table = check._sampled(problems, counts, before, stage, 1)
        if method.course is not None:
            nothing = np.zeros(len(table), np.int64)
            table = table.assign(prefix=nothing, kept=nothing, read=nothing, lost=nothing)
        places = np.array([next(handed) for _ in range(len(table))]) % len(values)
        table = table.assign(reward=values[places], correct=verdicts[places])
        return rewards.total(table, method.reward, Sampling(max_new_tokens=check.LIMIT))

    def more(n, problems):
        return [problem for problem in check.POOL if problem not in problems][:n]

    return play(method, problems, context, sample, more)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_decides_the_same_with_rounding(name):
    method = small(name)
    rng = np.random.default_rng(0)
    # Problems of one reward, of two and of many.
    values = np.array([0.3, 0.3, 0.3, 0.3, 0, 1, 0, 1, 0.6, 0.7, 0.3, 0.7, 1, 1, 1, 1])
    for _ in range(4):
        clean = outcome_of(method.clone(), values, values >= 0.5)
        noisy = outcome_of(method.clone(), rounded(values, rng), values >= 0.5)
        assert np.array_equal(clean.rows, noisy.rows)
        first, second = (
            np.asarray(getattr(a, "values", a)) for a in (clean.advantages, noisy.advantages)
        )
        assert np.array_equal(first == 0, second == 0)
        assert second == pytest.approx(first, abs=1e-6)


def test_dynamic_sampling_without_a_verdict_drops_groups_that_differ_by_rounding():
    method = wb.methods.dapo(4)
    values = np.array(
        [SUM, 0.3, 0.3, 0.3, 0.3, 0.3, SUM, 0.3, 0.3, 0.6, 0.3, 0.3, SUM, 0.3, 0.3, 0.3]
    )
    table = check._sampled(check.POOL[:4], np.full(4, 4), np.zeros(4, int), 0, 1)
    graded = table.assign(reward=values, status=np.full(16, "graded"))
    mixed = allocators.DynamicSampling(4)._is_mixed([p.id for p in check.POOL[:4]], graded)
    assert mixed.tolist() == [False, False, True, False]
    assert method.allocator.spread == 0
