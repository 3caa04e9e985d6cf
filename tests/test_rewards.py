import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.policies import Sampling
from workbench.rollouts import Ragged, Rollouts
from workbench.rules.rewards import Boxed, Correct, Overlong, Tags, overlong, total


def table(texts, rewards, lengths):
    return Rollouts(
        problem=["a"] * len(texts),
        text=texts,
        reward=rewards,
        response=Ragged.of([[1] * n for n in lengths], np.int32),
    )


def test_overlong_by_hand():
    assert overlong([50, 80, 90, 100, 120], 100).tolist() == pytest.approx([0, 0, -0.5, -1, -1])
    assert overlong([10, 10], 100, truncated=np.array([False, True])).tolist() == [0, -1]


@given(st.lists(st.integers(1, 300), min_size=1), st.integers(10, 200), st.floats(0.01, 1))
def test_overlong_is_bounded_and_falls_with_length(lengths, limit, buffer):
    penalty = overlong(sorted(lengths), limit, buffer)
    assert (-1 <= penalty).all()
    assert (penalty <= 0).all()
    assert (np.diff(penalty) <= 0).all()


def test_parts_are_summed_by_weight_and_recorded():
    texts = ["<think>a</think><answer>1</answer>", "<think>", r"\boxed{1}"]
    parts = (Correct(), Tags(), Overlong(), Boxed(0.5))
    rollouts = total(
        table(texts, [1.0, 0.0, 1.0], [10, 95, 100]), parts, Sampling(max_new_tokens=100)
    )
    assert rollouts["reward_tags"].tolist() == [1, 0.25, 0]
    assert rollouts["reward_boxed"].tolist() == [0, 0, 1]
    assert rollouts.reward.tolist() == pytest.approx([1.2, 0.05 - 0.75, 1 - 1 + 0.5])
    assert rollouts["reward_correct"].tolist() == [1, 0, 1]


def test_two_boxes_earn_nothing():
    texts = [r"\boxed{1}", r"\boxed{1} or \boxed{2}", "1"]
    found = Boxed()(table(texts, [0.0] * 3, [1] * 3), Sampling())
    assert found.tolist() == [1, 0, 0]


@pytest.mark.parametrize("names", ["think", (), None, ("",), (1,)])
def test_names_of_tags_are_a_list_of_texts(names):
    with pytest.raises(ValueError, match="names="):
        Tags(names=names)


def test_one_part_adds_no_column():
    rollouts = total(table(["x"], [1.0], [3]), (Correct(2.0),), Sampling())
    assert rollouts.reward.tolist() == [2.0]
    assert not rollouts.columns


@pytest.mark.parametrize("shape", [(), (2,), (1,), (3, 1)])
def test_a_part_that_returns_another_number_of_rewards_is_named(shape):
    class Mine:
        name = "mine"
        weight = 1.0

        def __call__(self, rollouts, sampling):
            return np.ones(shape)

    with pytest.raises(ValueError, match=r"(?s)reward: part 'mine': .*3 numbers are needed"):
        total(table(["x"] * 3, [1.0] * 3, [3] * 3), (Correct(), Mine()), Sampling())


@pytest.mark.parametrize(
    "returned", [["1", "0"], ["a", "b"], np.array(["a", "b"]), [[1], [1, 2]], [{}, {}]]
)
def test_a_part_that_returns_no_numbers_is_named(returned):
    class Mine:
        name = "mine"
        weight = 1.0

        def __call__(self, rollouts, sampling):
            return returned

    with pytest.raises(ValueError, match=r"reward: part 'mine': .*2 numbers are needed"):
        total(table(["x"] * 2, [1.0] * 2, [3] * 2), (Correct(), Mine()), Sampling())
