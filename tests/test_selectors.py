"""Selectors against every subset, against tables worked out by hand, and against bad input."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.config import rebuild
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.rules import selectors
from workbench.rules.selectors import (
    All,
    MaxReward,
    MaxVariance,
    Random,
    Rejection,
    max_reward,
    max_variance,
    rejection,
)
from workbench.slots import Selection, Slot
from workbench.utils.descriptions import compose, describe

EVERY = [All(), MaxVariance(2), MaxReward(2), Random(2), Rejection()]


def rng(seed=0):
    return np.random.default_rng(seed)


def table(*outcomes, stages=None):
    """Rollouts from strings of 0 and 1, one a problem: `table("0011", "01")`."""
    problem = np.concatenate([np.full(len(text), f"p{i}") for i, text in enumerate(outcomes)])
    reward = np.array([float(letter) for text in outcomes for letter in text])
    stage = None if stages is None else [int(letter) for text in stages for letter in text]
    return Rollouts(problem=problem, reward=reward, correct=reward == 1, stage=stage)


def kept_rows(selector, rollouts, seed=0):
    """The rows that a selector keeps in a round of a run with this seed."""
    return selector.select(rollouts, Context(seed=seed)).rows


def counts(rollouts, rows):
    """Correct and wrong rows kept of each problem: {problem: (correct, wrong)}."""
    kept = rollouts.take(rows)
    table = {}
    for problem in np.unique(rollouts.problem):
        correct = kept.correct[kept.problem == problem]
        table[str(problem)] = (int(correct.sum()), int((~correct).sum()))
    return table


# --- max_variance: the variance is that of the best of all subsets


def exact_best(rewards, m):
    """The largest variance of m rewards, over all subsets, the common offset taken off first."""
    shifted = np.asarray(rewards) - np.min(rewards)
    return max(np.var(shifted[list(rows)]) for rows in combinations(range(len(shifted)), m))


def assert_optimal(rewards, m):
    kept = max_variance(rewards, m)
    shifted = np.asarray(rewards) - np.min(rewards)
    assert kept.dtype == np.int64
    assert kept.shape == (m,)
    assert (np.diff(kept) > 0).all()
    assert np.var(shifted[kept]) == pytest.approx(exact_best(rewards, m), rel=1e-9, abs=1e-300)


values = st.one_of(
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([0.0, 0.1, 0.2, 1.0, 1.2]),
    # Not so near to one another that they would be equal but for rounding.
    st.floats(-10, 10, allow_subnormal=False).map(lambda value: round(value, 9)),
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(values, min_size=1, max_size=9), st.data())
def test_max_variance_is_the_best_of_all_subsets(rewards, data):
    assert_optimal(rewards, data.draw(st.integers(1, len(rewards))))


@pytest.mark.parametrize("offset", [0.0, -3.0, 1e6, 1e9, 1e12])
@pytest.mark.parametrize("kind", ["real", "binary", "tied", "skewed"])
def test_max_variance_with_an_offset(kind, offset):
    draw = rng(hash(offset) % 100)
    for _ in range(20):
        n = int(draw.integers(2, 11))
        rewards = {
            "real": draw.normal(size=n),
            "binary": draw.integers(0, 2, n),
            "tied": draw.integers(0, 3, n) / 4,
            "skewed": draw.exponential(size=n) ** 4,
        }[kind]
        assert_optimal(rewards + offset, int(draw.integers(1, n + 1)))


def test_an_offset_changes_nothing_where_arithmetic_is_exact():
    rewards = rng(1).integers(0, 64, 200) / 64
    for m in (1, 2, 7, 100, 199, 200):
        np.testing.assert_array_equal(max_variance(rewards, m), max_variance(rewards + 2.0**30, m))


@given(st.lists(st.booleans(), min_size=2, max_size=40), st.data())
def test_binary_rewards_and_even_m_keep_half_highest_and_half_lowest(outcomes, data):
    """PODS, theorem 2: as balanced as the group allows."""
    m = 2 * data.draw(st.integers(1, len(outcomes) // 2))
    right = sum(outcomes)
    wrong = len(outcomes) - right
    kept = np.array(outcomes)[max_variance(outcomes, m)]
    assert kept.sum() == min(max(m // 2, m - wrong), right)


def test_ties():
    """By hand: equal rewards give the lowest rows, equal variances the fewest from the top."""
    assert max_variance([5, 5, 5, 5], 2).tolist() == [0, 1]
    assert max_variance([1, 0, 1, 0, 1, 0], 4).tolist() == [0, 1, 2, 3]
    # One of three is right, not two.
    assert max_variance([0, 0, 1, 1], 3).tolist() == [0, 1, 2]
    # Every single one has variance zero.
    assert max_variance([0, 1, 2], 1).tolist() == [0]
    # The block of ones is fed from both sides.
    assert max_variance([2, 1, 1, 1, 0, 1], 5).tolist() == [0, 1, 2, 3, 4]


def test_max_variance_of_a_large_group_is_the_best_split():
    """Lemma 3.1 at a size no subset search reaches: against the variance of every split."""
    rewards = rng(2).gamma(0.5, size=2000)
    ordered = np.sort(rewards)
    for m in (2, 33, 1000, 1999):
        splits = [
            np.var(np.concatenate([ordered[: m - k], ordered[2000 - k :]])) for k in range(m + 1)
        ]
        assert np.var(rewards[max_variance(rewards, m)]) == pytest.approx(max(splits), rel=1e-12)


# --- many groups in one call


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["b", "a", "z", "c"]), values), min_size=1, max_size=40),
    st.integers(1, 5),
)
def test_many_groups_are_each_group_alone(rows, m):
    keys = np.array([key for key, _ in rows])
    rewards = np.array([reward for _, reward in rows])
    for rule in (max_variance, max_reward):
        alone = []
        for key in set(keys.tolist()):
            mine = np.flatnonzero(keys == key)
            alone += mine[rule(rewards[mine], min(m, len(mine)))].tolist()
        assert rule(rewards, m, keys).tolist() == sorted(alone)


@pytest.mark.parametrize("selector", EVERY, ids=repr)
def test_a_group_does_not_depend_on_the_others(selector):
    """Not on which others there are, nor on how their rows are interleaved."""
    whole = table("00010000", "11110000", "00000000", "1111", "01")
    whole = whole.assign(draw=np.concatenate([np.arange(n) for n in (8, 8, 8, 4, 2)]))
    of_whole = whole.take(kept_rows(selector, whole, seed=3))
    interleaved = whole.take(np.argsort(whole.draw, kind="stable"))
    of_interleaved = interleaved.take(kept_rows(selector, interleaved, seed=3))
    for problem in np.unique(whole.problem):
        alone = whole.take(whole.problem == problem)
        of_alone = alone.take(kept_rows(selector, alone, seed=3))
        expected = of_whole.draw[of_whole.problem == problem]
        np.testing.assert_array_equal(of_alone.draw, expected)
        np.testing.assert_array_equal(
            of_interleaved.draw[of_interleaved.problem == problem], expected
        )


@pytest.mark.parametrize("selector", EVERY, ids=repr)
def test_rows_are_whole_numbers_in_ascending_order(selector):
    rollouts = table("00010000", "11110000", "01", stages=["00000000", "00000000", "00"])
    rows = kept_rows(selector, rollouts)
    assert rows.dtype == np.int64
    assert (np.diff(rows) > 0).all()


@pytest.mark.parametrize("selector", EVERY, ids=repr)
def test_columns_of_a_data_frame_make_a_table_to_select_from(selector):
    """Someone else's data: problem, reward and correct are enough, and NumPy takes any index."""
    rollouts = table("00010000", "11110000", "01")
    frame = rollouts.frame()[["problem", "reward", "correct"]]
    frame = frame.set_index(np.arange(len(frame))[::-1])
    again = Rollouts(**{name: frame[name].to_numpy() for name in frame})
    np.testing.assert_array_equal(kept_rows(selector, again), kept_rows(selector, rollouts))


@pytest.mark.parametrize("selector", EVERY, ids=repr)
def test_no_rollouts(selector):
    assert kept_rows(selector, Rollouts(problem=[])).tolist() == []


@pytest.mark.parametrize("selector", [MaxVariance(4), MaxReward(4), Random(4)], ids=repr)
def test_groups_smaller_than_m_keep_everything(selector):
    kept = kept_rows(selector, table("01", "0", "00110", "1111"))
    assert kept.tolist()[:3] == [0, 1, 2]
    assert len(kept) == 2 + 1 + 4 + 4


def test_max_reward_takes_the_lower_row_of_equal_ones():
    assert max_reward([1, 3, 2, 3, 3], 2).tolist() == [1, 3]
    assert kept_rows(MaxReward(1), table("0110", "00")).tolist() == [1, 4]


# --- random draws


def test_random_takes_every_subset_equally_often():
    problems = [f"p{i}" for i in range(6000)]
    kept = kept_rows(Random(2), Rollouts(problem=np.repeat(problems, 4))).reshape(-1, 2) % 4
    _, times = np.unique(kept, axis=0, return_counts=True)
    assert len(times) == 6
    assert np.abs(times - 1000).max() < 120  # four standard deviations

    generator = rng(5)
    drawn = [tuple(selectors.random(4, 2, generator)) for _ in range(3000)]
    assert len(set(drawn)) == 6


def test_random_draws_follow_the_seed_and_the_round():
    rollouts = table("0" * 32, "1" * 32)
    rows = kept_rows(Random(8), rollouts, seed=1)
    np.testing.assert_array_equal(kept_rows(Random(8), rollouts, seed=1), rows)
    assert kept_rows(Random(8), rollouts, seed=2).tolist() != rows.tolist()
    assert Random(8).select(rollouts, Context(seed=1, round=2)).rows.tolist() != rows.tolist()

    first, second = np.split(rows, 2)
    assert first.tolist() != (second - 32).tolist()  # problems draw differently


# --- AERO


def test_rejection_keeps_all_correct_and_k_wrong_for_each():
    correct = np.array([0, 1, 0, 0, 1, 0, 0, 0], dtype=bool)
    for k, wrong in ((1, 2), (2, 4), (3, 6), (9, 6)):
        kept = rejection(correct, k, rng())
        assert (correct[kept].sum(), (~correct[kept]).sum()) == (2, wrong)
        assert (np.diff(kept) > 0).all()
    assert rejection([False, False], 1, rng()).tolist() == []
    assert rejection([True, True], 1, rng()).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("outcome", "stage", "kept"),
    [
        ("00000000", "00000000", (0, 4)),  # all wrong, never rescued
        ("0000000000", "0000000011", (0, 4)),  # all wrong after a rescue attempt
        ("11111111", "00000000", (4, 0)),  # all right
        ("11", "00", (2, 0)),  # all right, fewer than four
        ("0000000001", "0000000011", (1, 1)),  # rescued
        ("000000000011", "000000001122", (1, 1)),  # rescued, two correct in the iteration
        ("0000000001", "3333333344", (1, 1)),  # the first stage is the lowest number
        ("10000000", "00000000", (1, 1)),  # partial
        ("11100000", "00000000", (3, 3)),  # partial
        ("11110000", "00000000", (4, 4)),  # half correct: all
        ("11111110", "00000000", (7, 1)),  # high: all
    ],
)
def test_training_sizes(outcome, stage, kept):
    rollouts = table(outcome, "01", stages=[stage, "00"])
    rows = kept_rows(Rejection(), rollouts)
    assert counts(rollouts, rows) == {"p0": kept, "p1": (1, 1)}


def test_training_size_of_a_batch():
    """Four problems of 8: 4 + 2 + 8 + 4 rows, and with k = 2 one more for the partial problem."""
    rollouts = table("00000000", "01000000", "11110000", "11111111")
    assert len(kept_rows(Rejection(), rollouts)) == 18
    assert len(kept_rows(Rejection(k=2), rollouts)) == 19
    assert len(kept_rows(Rejection(uniform=1), rollouts)) == 12


def test_a_higher_rescue_threshold():
    rollouts = table("1100000001", "11100000", stages=["0000000011", "00000000"])
    pair = kept_rows(Rejection(threshold=2), rollouts)
    assert counts(rollouts, pair) == {"p0": (1, 1), "p1": (3, 3)}
    two_pairs = kept_rows(Rejection(threshold=2, balanced=2), rollouts)
    assert counts(rollouts, two_pairs) == {"p0": (2, 2), "p1": (3, 3)}


def test_high_begins_at_its_share_of_correct_rollouts():
    """2 of 8 is as high as it says: all rows. 1 of 8 is below: the correct row and one wrong."""
    rollouts = table("11000000", "10000000")
    rows = kept_rows(Rejection(high=0.25), rollouts)
    assert counts(rollouts, rows) == {"p0": (2, 6), "p1": (1, 1)}
    # 0.28 * 25 is a little more than 7 in floating point.
    assert len(kept_rows(Rejection(high=0.28), table("1" * 7 + "0" * 18))) == 25


def test_rejection_reads_correct_and_not_reward():
    rollouts = table("01000000")
    other_rewards = rollouts.assign(reward=np.arange(8.0))
    np.testing.assert_array_equal(
        kept_rows(Rejection(), rollouts), kept_rows(Rejection(), other_rewards)
    )


# --- as parts of a method


def test_baselines():
    """PODS and its comparisons measure against what is kept, AERO against both."""
    baselines = [selector.select(table("0011"), Context()).baseline for selector in EVERY]
    assert baselines == ["group", "selection", "selection", "selection", "mixed"]
    of_group = MaxVariance(2, baseline="group").select(table("0011"), Context())
    assert of_group.baseline == "group"


def test_selectors_print_and_rebuild():
    assert compose(MaxVariance(16)) == "MaxVariance(m=16)"
    for selector in [*EVERY, Rejection(k=2, baseline="group")]:
        assert rebuild(describe(selector)) == selector


def test_a_new_selector_takes_a_few_lines():
    @dataclass(frozen=True)
    class Shortest(Slot):
        """Of every problem the m shortest right rollouts."""

        m: int = 2

        def select(self, rollouts, context):
            frame = rollouts.frame().query("correct").sort_values("length", kind="stable")
            return Selection(frame.groupby("problem").head(self.m).index, baseline="selection")

    lengths = [4, 2, 1, 3, 1, 1, 1, 9]
    response = Ragged.of([[0] * n for n in lengths], np.int32)
    rollouts = table("1101", "0001").assign(response=response)
    assert sorted(kept_rows(Shortest(2), rollouts)) == [1, 3, 7]


# --- bad input


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: max_variance([0, 1], 3), r"m=3: .* from 1 to 2"),
        (lambda: max_variance([0, 1], 0), r"m=0: .* from 1 to 2"),
        (lambda: max_variance([0, 1], 1.5), r"m=1.5: a whole number"),
        (lambda: max_variance([0, 1], True), r"m=True: a whole number"),
        (lambda: max_variance([], 1), r"m=1"),
        (lambda: max_variance([0, float("nan")], 1), r"rewards: row 1 is nan, not finite"),
        (lambda: max_variance([0, -np.inf], 1), r"rewards: row 1 is -inf, not finite"),
        (lambda: max_variance([[0, 1]], 1), r"rewards \(1, 2\) .*must be \(R,\)"),
        (lambda: max_variance([0, 1], 1, [0]), r"groups \(1,\): both must be \(R,\)"),
        (lambda: max_reward([0, 1], -1), r"m=-1"),
        (lambda: max_reward([np.nan], 1), r"rewards: row 0 is nan"),
        (lambda: selectors.random(2, 3, rng()), r"m=3: .* from 1 to 2"),
        (lambda: selectors.random(0, 1, rng()), r"n=0: .* at least 1"),
        (lambda: selectors.random(2, 1, 7), r"rng=7: a Generator"),
        (lambda: rejection([True, False], 0, rng()), r"k=0: .* at least 1"),
        (lambda: rejection([0, 2], 1, rng()), r"correct: row 1 is 2; True or False is needed"),
        (lambda: rejection([0, np.nan], 1, rng()), r"correct: row 1 is nan"),
        (lambda: rejection([[True]], 1, rng()), r"correct: shape \(1, 1\); one True or False"),
        (lambda: MaxVariance(0), r"m=0: .* at least 1"),
        (lambda: MaxReward(-3), r"m=-3"),
        (lambda: Random(2.0), r"m=2.0: a whole number"),
        (lambda: Random(2, baseline="all"), r"baseline='all': allowed are 'selection', 'group'"),
        (lambda: Random(2, baseline="groups"), r"did you mean 'group'\?"),
        (lambda: Rejection(k=0), r"k=0"),
        (lambda: Rejection(uniform=0), r"uniform=0"),
        (lambda: Rejection(threshold=-1), r"threshold=-1: .* at least 0"),
        (lambda: Rejection(high=0.0), r"high=0.0"),
        (lambda: kept_rows(MaxVariance(2), Rollouts(problem=["a", "a"])), r"rewards: row 0 is nan"),
    ],
)
def test_bad_input_is_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()
