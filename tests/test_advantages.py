"""Advantages against tables worked out by hand, invariants and bad input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.catalogue.asymmetric import asymmetric
from workbench.catalogue.gdpo import PartsNormalized
from workbench.catalogue.pkpo import pkpo
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.rules.advantages import (
    BatchNormalized,
    GroupNormalized,
    LeaveOneOut,
    OfRewards,
    Posterior,
    batch_normalized,
    group_normalized,
    leave_one_out,
    posterior,
    selected_advantages,
)
from workbench.slots import Slot

EVERY = [group_normalized, leave_one_out, posterior, batch_normalized]
PER_GROUP = EVERY[:3]
ONE = np.zeros(8)

rows = st.lists(
    st.tuples(st.sampled_from("zbxa"), st.sampled_from([0.0, 0.25, 1.0])), min_size=1, max_size=30
)


def split(table):
    keys, rewards = zip(*table)
    return np.array(rewards), np.array(keys)


# --- by hand


def test_group_normalized_of_two_groups():
    """Interleaved groups a = 0, 1, 0 and b = 0, 0, 1: mean 1/3, deviation sqrt(2)/3."""
    rewards, groups = [0, 0, 1, 0, 0, 1], list("abaabb")
    expected = np.array([-1, -1, 2, -1, -1, 2]) / np.sqrt(2)
    np.testing.assert_allclose(group_normalized(rewards, groups), expected)


def test_group_normalized_with_the_sample_deviation():
    """Of 0, 1, 0, 1 it is 1/sqrt(3); the group of two zeros beside it has none."""
    rewards, groups = [0, 0, 1, 0, 0, 1], list("abbabb")
    np.testing.assert_allclose(
        group_normalized(rewards, groups, ddof=1), np.array([0, -1, 1, 0, -1, 1]) * np.sqrt(3) / 2
    )


def test_one_reused_response_of_eight():
    """AR3PO: of eight with one correct, wrong ones get -1/sqrt(7) and the correct one sqrt(7)."""
    advantage = group_normalized([1] + [0] * 7, ONE)
    np.testing.assert_allclose(advantage, [np.sqrt(7)] + [-1 / np.sqrt(7)] * 7)
    assert np.round(advantage[1], 3) == -0.378


def test_knapsack_clips_and_adds_to_the_deviation():
    rewards, groups = [1] + [0] * 99, np.zeros(100)
    assert group_normalized(rewards, groups)[0] == pytest.approx(np.sqrt(99))
    assert group_normalized(rewards, groups, eps=1e-6, clip=5)[0] == 5
    assert group_normalized([0, 1], [0, 0], eps=0.5).tolist() == [-0.5, 0.5]


def test_leave_one_out():
    np.testing.assert_allclose(leave_one_out([1, 0, 0, 1, 1], list("aaabb")), [1, -0.5, -0.5, 0, 0])
    assert leave_one_out([1, 0, 0], list("aaa"), clip=0.7).tolist() == [0.7, -0.5, -0.5]
    assert leave_one_out([3.0], ["a"]).tolist() == [0]


def test_posterior_of_eight():
    """AERO eq. 7 with Beta(1, 1): u = 1/10 for none right, 9/10 for all right, divided by 3/10."""
    np.testing.assert_allclose(posterior(ONE, ONE), -1 / 3)
    np.testing.assert_allclose(posterior(ONE + 1, ONE), 1 / 3)
    np.testing.assert_allclose(posterior(ONE, ONE, scale=1), -0.1)
    np.testing.assert_allclose(posterior(ONE, ONE, scale="posterior"), -np.sqrt(11) / 3)
    np.testing.assert_allclose(posterior(ONE, ONE, 2, 6, clip=0.1), -0.1)
    np.testing.assert_allclose(posterior(ONE, ONE, 2, 6), -1 / np.sqrt(7))  # u = 1/8
    np.testing.assert_allclose(posterior([0.0], [0]), -1 / np.sqrt(2))  # a group of one: u = 1/3


@pytest.mark.parametrize("value", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("size", [3, 8, 16, 1000])
def test_groups_all_alike_have_exactly_no_advantage(value, size):
    """Sums of equal rewards have rounding errors, which would count as a gradient."""
    group = [value] * size, ["a"] * size
    for k in (2, 3):
        assert (pkpo(*group, k=k) == 0).all()
    for weighting in ("linear", "sqrt"):
        assert (asymmetric(*group, weighting=weighting) == 0).all()


def test_posterior_of_mixed_and_uniform_groups():
    """Mixed groups are GRPO's; the others stand beside them untouched."""
    rewards, groups = np.array([0, 1, 0, 1, 0, 1, 1]), np.array([7, 2, 7, 2, 5, 5, 5])
    advantage = posterior(rewards, groups)
    np.testing.assert_allclose(
        advantage[:4], np.array([-1, 1, -1, 1]) / np.sqrt(3)
    )  # u = 1/4 and 3/4 of 2
    np.testing.assert_allclose(advantage[4:], group_normalized([0, 1, 1], [0, 0, 0]))


def test_posterior_with_other_bounds():
    np.testing.assert_allclose(posterior(ONE - 1, ONE, bounds=(-1, 1)), -1 / 3)
    np.testing.assert_allclose(posterior(ONE + 1.2, ONE, bounds=(0, 1.2)), 1 / 3)


def test_batch_normalized():
    """Rewards 1, 0 | 0, 0: the batch has mean 1/4 and deviation sqrt(3)/4.

    Without the group means, 1/2 and 0, its deviation is 1/sqrt(8).
    """
    rewards, groups = [1, 0, 0, 0], list("abab")
    np.testing.assert_allclose(
        batch_normalized(rewards, groups), np.array([3, -1, -1, -1]) / np.sqrt(3)
    )
    centred = batch_normalized(rewards, groups, baseline="group")
    np.testing.assert_allclose(centred, np.array([1, 0, -1, 0]) * np.sqrt(2))
    assert (centred[[1, 3]] == 0).all()  # exactly
    np.testing.assert_allclose(
        batch_normalized(rewards, groups, baseline="group", ddof=1)[0], 0.5 / np.sqrt(1 / 6)
    )
    assert batch_normalized(rewards, groups, clip=1).tolist()[0] == 1
    assert batch_normalized(rewards, groups, baseline="group", clip=1).tolist() == [1, 0, -1, 0]
    for baseline in (None, "group"):
        for size in (4, 2048):
            found = batch_normalized([0.3] * size, groups * (size // 4), baseline=baseline)
            assert found.tolist() == [0] * size


# --- invariants


@pytest.mark.parametrize("rule", [group_normalized, leave_one_out])
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 1.2, 1e9 + 0.1, -0.7])
@pytest.mark.parametrize("size", [1, 3, 7, 10, 64, 1000])
def test_equal_rewards_are_exactly_zero(rule, reward, size):
    """Where the mean of equal floats is not that float, a float deviation would say otherwise."""
    rewards, groups = np.append(np.full(size, reward), [0, 1]), np.append(np.zeros(size), [1, 1])
    assert (rule(rewards, groups)[:size] == 0).all()


@pytest.mark.parametrize("rule", PER_GROUP)
@settings(max_examples=50, deadline=None)
@given(table=rows)
def test_a_group_does_not_depend_on_the_others(rule, table):
    rewards, keys = split(table)
    together = rule(rewards, keys)
    for key in np.unique(keys):
        np.testing.assert_allclose(
            together[keys == key], rule(rewards[keys == key], keys[keys == key]), rtol=1e-12
        )


@pytest.mark.parametrize("rule", EVERY)
@settings(max_examples=50, deadline=None)
@given(table=rows, seed=st.integers(0, 99))
def test_the_order_of_rows_does_not_matter(rule, table, seed):
    rewards, keys = split(table)
    order = np.random.default_rng(seed).permutation(len(rewards))
    np.testing.assert_allclose(
        rule(rewards[order], keys[order]), rule(rewards, keys)[order], atol=1e-12
    )


@settings(max_examples=50, deadline=None)
@given(
    table=rows, factor=st.sampled_from([0.5, 3.0, 1e6]), offset=st.sampled_from([0.0, -5.0, 1e3])
)
def test_scale_and_offset_of_rewards(table, factor, offset):
    rewards, keys = split(table)
    for options in ({}, {"ddof": 1}):
        expected = group_normalized(rewards, keys, **options)
        np.testing.assert_allclose(
            group_normalized(factor * rewards + offset, keys, **options),
            expected,
            rtol=1e-6,
            atol=1e-9,
        )
    np.testing.assert_allclose(
        leave_one_out(factor * rewards, keys), factor * leave_one_out(rewards, keys), atol=1e-9
    )


@settings(max_examples=50, deadline=None)
@given(table=rows)
def test_groups_are_centred_and_scaled(table):
    rewards, keys = split(table)
    advantage = group_normalized(rewards, keys)
    for key in np.unique(keys):
        mine = advantage[keys == key]
        assert mine.mean() == pytest.approx(0, abs=1e-12)
        assert mine.std() == pytest.approx(float(len(set(rewards[keys == key])) > 1))


@settings(max_examples=50, deadline=None)
@given(
    outcomes=st.lists(
        st.tuples(st.sampled_from("zbxa"), st.sampled_from([0.0, 1.0])), min_size=1, max_size=30
    )
)
def test_no_posterior_advantage_is_zero_and_right_is_above_wrong(outcomes):
    rewards, keys = split(outcomes)
    advantage = posterior(rewards, keys)
    assert (np.sign(advantage) == np.where(rewards == 1, 1, -1)).all()


@pytest.mark.parametrize("rule", EVERY)
def test_no_rewards(rule):
    assert rule([], []).shape == (0,)


# --- as slot values


def of_groups(rewards, groups):
    return Rollouts(problem=list(groups), reward=rewards)


@pytest.mark.parametrize(
    ("value", "function", "options"),
    [
        (GroupNormalized(), group_normalized, {}),
        (
            GroupNormalized(ddof=1, eps=1e-4, clip=1.0),
            group_normalized,
            {"ddof": 1, "eps": 1e-4, "clip": 1.0},
        ),
        (GroupNormalized(scale=False), group_normalized, {"scale": False}),
        (LeaveOneOut(clip=0.4), leave_one_out, {"clip": 0.4}),
        (
            Posterior(2.0, 3.0, scale=0.5, bounds=(-1.0, 1.0), ddof=1, eps=0.1, clip=2.0),
            posterior,
            {
                "alpha": 2.0,
                "beta": 3.0,
                "scale": 0.5,
                "bounds": (-1.0, 1.0),
                "ddof": 1,
                "eps": 0.1,
                "clip": 2.0,
            },
        ),
        (
            BatchNormalized("group", ddof=1, eps=0.1, clip=0.9),
            batch_normalized,
            {"baseline": "group", "ddof": 1, "eps": 0.1, "clip": 0.9},
        ),
        (OfRewards(leave_one_out), leave_one_out, {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_slot_value_is_its_function(value, function, options):
    rollouts = of_groups([1, 0, 0, 1, 1, 1, 0.5], "aaabbba")
    expected = function(rollouts.reward, rollouts.problem, **options)
    np.testing.assert_array_equal(value(rollouts, Context()), expected)


def test_parts_add_eps_to_the_deviation_of_the_group_and_of_the_batch():
    # The sample deviation of 0 and 1 is the root of .5, and that of -x and x is x times that of 2.
    x = 0.5 / (0.5**0.5 + 0.5)
    expected = x / (2**0.5 * x + 0.5)
    found = PartsNormalized(eps=0.5)(of_groups([0.0, 1.0], "aa"), Context())
    assert found.tolist() == pytest.approx([-expected, expected])


def test_groups_are_those_of_the_table():
    """A buffer's groups are problem and round together, whatever the problem."""
    rollouts = of_groups([1, 0, 1, 1], "aaaa").assign(group=["a@1", "a@1", "a@2", "a@2"])
    assert GroupNormalized()(rollouts, Context()).tolist() == [1, -1, 0, 0]


class TestSelectedAdvantages:
    """What kept rows are measured against: rows 0 and 1 of a = 1, 0, 0 and row 3 of b = 1, 1."""

    candidates = of_groups([1.0, 0, 0, 1, 1], "aaabb")
    rows = np.array([0, 1, 3])

    def selected(self, advantage, baseline):
        return selected_advantages(advantage, baseline, self.candidates, self.rows, Context())

    def test_against_the_whole_group(self):
        advantages = self.selected(LeaveOneOut(), "group")
        assert advantages.tolist() == [1, -0.5, 0]

    def test_against_what_is_kept(self):
        advantages = self.selected(LeaveOneOut(), "selection")
        assert advantages.tolist() == [1, -1, 0]

    def test_mixed_takes_the_whole_group_only_where_its_rewards_are_equal(self):
        """AERO: b, all right, keeps the posterior of both, u = 3/4; a is that of what is kept."""
        advantages = self.selected(Posterior(), "mixed")
        np.testing.assert_allclose(advantages, [1, -1, 1 / np.sqrt(3)])
        of_kept = self.selected(Posterior(), "selection")
        np.testing.assert_allclose(of_kept[2], 1 / np.sqrt(2))  # of one right rollout, u = 2/3

    @pytest.mark.parametrize("baseline", ["group", "selection", "mixed"])
    def test_of_tokens_they_are_those_of_rollouts_spread_out(self, baseline):
        class PerToken(Slot):
            def __call__(self, rollouts, context):
                of_rollouts = Posterior()(rollouts, context)
                values = np.repeat(of_rollouts, rollouts.lengths)
                return Ragged(values, rollouts.response.offsets)

        lengths = [2, 1, 3, 1, 2]
        response = Ragged.of([[7] * length for length in lengths], np.int32)
        candidates = self.candidates.assign(response=response)
        of_tokens = selected_advantages(PerToken(), baseline, candidates, self.rows, Context())
        of_rollouts = self.selected(Posterior(), baseline)
        assert of_tokens.lengths.tolist() == [2, 1, 1]
        np.testing.assert_array_equal(of_tokens.values, np.repeat(of_rollouts, [2, 1, 1]))


# --- bad input


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: group_normalized([0, 1], [0]), r"rewards \(2,\) and groups \(1,\)"),
        (lambda: group_normalized([0, np.nan], [0, 0]), r"rewards: row 1 is nan, not finite"),
        (lambda: leave_one_out([np.inf], [0]), r"rewards: row 0 is inf, not finite"),
        (lambda: posterior([np.nan], [0]), r"rewards: row 0 is nan"),
        (lambda: batch_normalized([np.nan], [0]), r"rewards: row 0 is nan"),
        (lambda: batch_normalized([np.nan], [0], baseline="group"), r"rewards: row 0 is nan"),
        (lambda: group_normalized([0, 1], [0, 0], ddof=2), r"ddof=2: allowed are 0"),
        (lambda: batch_normalized([0, 1], [0, 0], ddof=2, baseline="group"), r"ddof=2"),
        (lambda: group_normalized([0, 1], [0, 0], clip=0), r"clip=0"),
        (lambda: posterior([0, 1], [0, 0], clip=-1), r"clip=-1"),
        (lambda: posterior([0, 1], [0, 0], alpha=0), r"alpha=0"),
        (lambda: posterior([0, 1], [0, 0], beta="1"), r"beta='1'"),
        (lambda: posterior([0, 1], [0, 0], bounds=1), r"bounds=1: two numbers"),
        (lambda: group_normalized([0, 1], [0, 0], eps=""), r"eps='': a number of at least 0"),
        (lambda: batch_normalized([0, 1], [0, 0], eps=-1e-6, baseline="group"), "eps="),
        (lambda: leave_one_out([0, 1], [0, 0], clip=[]), r"clip="),
        (lambda: posterior([0, 1], [0, 0], scale=0), "scale=0"),
        (lambda: posterior([0, 1], [0, 0], scale="beta"), "scale="),
        (lambda: posterior([0, 1.2], [0, 0]), r"rewards: 1.2 lies outside bounds=\(0.0, 1.0\)"),
        (lambda: posterior([0, 1], [0, 0], bounds=(1, 1)), r"bounds=\(1, 1\)"),
        (lambda: batch_normalized([0, 1], [0, 0], baseline="mean"), "baseline="),
        (lambda: GroupNormalized(ddof=2), r"ddof=2: allowed are 0"),
        (lambda: GroupNormalized(eps=-1), r"eps=-1: a number of at least 0"),
        (lambda: LeaveOneOut(clip=0), r"clip=0"),
        (lambda: Posterior(alpha=0), r"alpha=0"),
        (lambda: Posterior(bounds=(1, 0)), r"bounds=\(1, 0\): two numbers"),
        (lambda: BatchNormalized("groups"), r"baseline='groups': .* did you mean 'group'"),
        (lambda: OfRewards("posterior"), r"function='posterior': a function of rewards and groups"),
        (lambda: OfRewards(Posterior), r"function=Posterior: a function of rewards and groups"),
    ],
)
def test_bad_input_is_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()
