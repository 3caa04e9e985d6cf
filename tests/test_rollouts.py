import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.rollouts import Context, Ragged, Rollouts
from workbench.utils.groups import group_numbers
from workbench.utils.seeding import derive, generator

rows = st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=6)


def plain(ragged):
    return [ragged[i].tolist() for i in range(len(ragged))]


@given(rows, st.data())
def test_ragged_take_is_list_indexing(lists, data):
    index = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8))
    taken = Ragged.of(lists, np.int32).take(np.array(index, dtype=np.int64))
    assert plain(taken) == [lists[i] for i in index]


@given(rows, rows)
def test_ragged_concat_and_padding(first, second):
    both = Ragged.concat([Ragged.of(first, np.int32), Ragged.of(second, np.int32)])
    assert plain(both) == first + second
    for side in ("left", "right"):
        padded = both.padded(-1, side)
        assert [[x for x in row if x != -1] for row in padded.tolist()] == first + second
    assert plain(Ragged.of_padded(both.padded(-1), both.lengths)) == first + second


def test_left_padding_by_hand():
    assert Ragged.of([[1], [2, 3]], np.int32).padded(0, "left").tolist() == [[0, 1], [2, 3]]


def test_means_of_rows_by_hand():
    means = Ragged.of([[1, 2], [], [5]], np.float64).means()
    assert means[[0, 2]].tolist() == [1.5, 5]
    assert np.isnan(means[1])


def test_problems_keep_the_order_of_first_appearance():
    ids, problem_of_row = Rollouts(problem=["b", "a", "b", "c"]).problems()
    assert ids.tolist() == ["b", "a", "c"]
    assert problem_of_row.tolist() == [0, 1, 0, 2]


def test_groups_are_problems_unless_a_column_says_otherwise():
    table = Rollouts(problem=["a", "a", "b"])
    assert table.group.tolist() == ["a", "a", "b"]
    assert table["group"].tolist() == ["a", "a", "b"]
    parted = table.assign(group=["a@1", "a@2", "b@2"])
    assert parted.group.tolist() == ["a@1", "a@2", "b@2"]
    assert parted.take([2, 0]).group.tolist() == ["b@2", "a@1"]
    assert parted.problems()[0].tolist() == ["a", "b"]


@given(st.lists(st.sampled_from(["b", "a", "z", "c"]), max_size=30))
def test_group_numbers_are_those_of_unique(keys):
    names, numbers, sizes = group_numbers(np.array(keys, dtype=str))
    expected, inverse, counts = np.unique(
        np.array(keys, dtype=str), return_inverse=True, return_counts=True
    )
    assert names.tolist() == expected.tolist()
    assert numbers.tolist() == inverse.tolist()
    assert sizes.tolist() == counts.tolist()


def test_columns_travel():
    table = Rollouts(problem=["a", "b", "c"], reward=[1, 0, 1], columns={"score": [3.0, 2.0, 1.0]})
    taken = table.assign(reward=[0, 1, 2], age=[1, 1, 2]).take([2, 0])
    assert taken.reward.tolist() == [2, 0]
    assert taken["score"].tolist() == [1, 3]
    assert taken["age"].tolist() == [2, 1]
    assert table.reward.tolist() == [1, 0, 1], "assign must leave its source alone"
    both = Rollouts.concat([taken, taken])
    assert both["score"].tolist() == [1, 3, 1, 3]
    assert len(both) == 4
    assert list(both.frame().columns).count("score") == 1


def test_mask_selects_rows():
    assert Rollouts(problem=["a", "b"]).take(np.array([False, True])).problem.tolist() == ["b"]


def test_bad_columns():
    with pytest.raises(ValueError, match="column reward"):
        Rollouts(problem=["a", "b"], reward=[1.0])
    with pytest.raises(ValueError, match="age"):
        Rollouts.concat([Rollouts(problem=["a"]), Rollouts(problem=["a"], columns={"age": [1]})])
    with pytest.raises(ValueError, match="parts"):
        Rollouts.concat([])
    with pytest.raises(ValueError, match="score"):
        Rollouts(problem=["a"])["score"]


def test_drop_leaves_the_other_columns():
    table = Rollouts(problem=["a"], columns={"age": [1], "score": [2.0]})
    assert list(table.drop(["score", "unknown"]).columns) == ["age"]
    assert "score" in table
    assert "reward" in table
    assert "score" not in table.drop(["score"])


def test_a_context_draws_by_seed_purpose_and_round():
    first = Context(seed=1, round=2).rng("selector").random()
    assert Context(seed=1, round=2, epoch=7).rng("selector").random() == first
    others = [
        Context(seed=2, round=2).rng("selector").random(),
        Context(seed=1, round=3).rng("selector").random(),
        Context(seed=1, round=2).rng("allocator").random(),
        Context(seed=1, round=2).rng("selector", "problem-1").random(),
    ]
    assert first not in others


def test_seeds_depend_on_every_key_and_their_order():
    seeds = {
        derive(1, "a", 2),
        derive(2, "a", 1),
        derive(1, "a2"),
        derive("1", "a", 2),
        derive(1, "a", 3),
    }
    assert len(seeds) == 5
    assert derive(1, "a", 2) == derive(np.int64(1), "a", 2)
    assert generator(1, "x").random() == generator(1, "x").random()
    with pytest.raises(ValueError, match=r"key=1\.5"):
        derive(1.5)


def test_a_table_prints_what_it_holds():
    table = Rollouts(["a", "a", "b"], text=["<i>", "x", "y"])
    assert repr(table) == "Rollouts(3 of 2 problems, not verified)"
    assert repr(table.assign(reward=[1, 0, 0.5])) == "Rollouts(3 of 2 problems, mean reward 0.5)"
    assert repr(table.take([])) == "Rollouts(0 of 0 problems, not verified)"
    assert "&lt;i&gt;" in table._repr_html_()
