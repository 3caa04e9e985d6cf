import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.problems import LEVELS, Pool, Problem, arithmetic, reasoning_gym, solution


def ids(problems):
    return [p.id for p in problems]


@pytest.mark.parametrize(
    "prompt, worked",
    [
        ("7-1=", r"-1=6 \boxed{6}"),
        ("7+5+6=", r"+5=12+6=18 \boxed{18}"),
        ("5*10-31=", r"50-31=19 \boxed{19}"),
    ],
)
def test_worked_solutions(prompt, worked):
    assert solution(prompt) == worked


@pytest.mark.parametrize("level", LEVELS)
def test_chains_are_what_the_level_says(level):
    operations, largest = LEVELS[level]
    for problem in arithmetic(60, levels=[level], seed=3):
        body = problem.prompt.rstrip("=")
        assert sum(body.count(s) for s in "+-*") == operations
        assert problem.level == level
        assert str(eval(body)) == problem.answer
        assert int(problem.answer) >= 0
        assert max(
            int(x) for x in body.replace("+", " ").replace("-", " ").replace("*", " ").split()
        ) <= max(largest, 10)
        running = [
            int(part.split("=")[1])
            for part in solution(problem.prompt).split("\\")[0].replace("-", "+").split("+")[1:]
        ]
        assert all(value >= 0 for value in running)


@given(st.integers(0, 2**31), st.integers(0, 2**31))
def test_splits_never_overlap(a, b):
    train, held_out = arithmetic(40, seed=a), arithmetic(40, seed=b, split="heldout")
    assert not set(ids(train)) & set(ids(held_out))


def test_stream_never_gives_a_held_out_problem():
    held_out = set(ids(arithmetic(200, split="heldout")))
    drawn, _ = arithmetic().draw(2000, 0, seed=5)
    assert not held_out & set(ids(drawn))
    assert len(set(ids(drawn))) == 2000


def test_pools_are_deterministic_by_seed():
    assert ids(arithmetic(50, seed=1)) == ids(arithmetic(50, seed=1)) != ids(arithmetic(50, seed=2))
    assert arithmetic().draw(9, 40, seed=1) == arithmetic().draw(9, 40, seed=1)


@given(st.integers(1, 7), st.integers(0, 5))
def test_epochs_visit_everything_once(n, seed):
    pool, cursor, seen = Pool([Problem(str(i), "", "") for i in range(7)], {}), 0, []
    for _ in range(7 // n):
        drawn, cursor = pool.draw(n, cursor, seed)
        seen += ids(drawn)
    assert len(set(seen)) == len(seen) == 7 // n * n
    assert pool.draw(n, cursor, seed)[1] > 7 or n * (7 // n + 1) <= 7, (
        "the next draw is of the next epoch"
    )


def test_excluded_problems_are_passed_over():
    pool = Pool([Problem(str(i), "", "") for i in range(5)], {})
    drawn, _ = pool.draw(3, 0, 0, exclude={"1", "2"})
    assert set(ids(drawn)) == {"0", "3", "4"}
    with pytest.raises(ValueError, match="n=4"):
        pool.draw(4, 0, 0, exclude={"1", "2"})


def test_small_levels_leave_their_share_to_others():
    pool = arithmetic(600, levels=(1, 2))
    assert sum(p.level == 1 for p in pool) == 99
    assert len(pool) == 600


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: arithmetic(10, levels=(9,)), r"levels=\(9,\): known levels are 1, 2"),
        (lambda: arithmetic(10, levels=()), "levels"),
        (lambda: arithmetic(0), "n=0: a positive whole number"),
        (lambda: arithmetic(-3), "n=-3"),
        (lambda: arithmetic(10, split="test"), "split='test': allowed are train, heldout"),
        (lambda: arithmetic(10**4, levels=[1]), r"have only 99 distinct train problems"),
        (lambda: Pool([], {}), r"problems=\[\]"),
        (lambda: Pool([Problem("a", "", "")] * 2, {}), "id 'a' occurs twice"),
        (lambda: arithmetic(levels=[1]).draw(10**4), "too few different problems"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_reasoning_gym():
    pytest.importorskip(
        "reasoning_gym", reason="reasoning-gym is not installed (pip install reasoning-gym)"
    )
    train, held_out = (
        reasoning_gym("chain_sum", 30, seed=1),
        reasoning_gym("chain_sum", 10, seed=1, split="heldout"),
    )
    assert len(train) == 30
    assert not set(ids(train)) & set(ids(held_out))
    assert all("boxed" in p.prompt and np.isfinite(float(p.answer)) for p in train)
    with pytest.raises(ValueError, match="no_such_task"):
        reasoning_gym("no_such_task", 5)
