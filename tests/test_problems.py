"""Problems: what the families make, how pools and streams are drawn, and what is refused."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from examples.base_model.corpus import solution
from workbench.config import pool as from_config
from workbench.datasets import chains
from workbench.datasets.arithmetic import LEVELS
from workbench.problems import Pool, PoolExhausted, Problem, Stream, arithmetic, reasoning_gym


def ids(problems):
    return [p.id for p in problems]


def test_a_pool_prints_itself():
    mine = Pool([Problem("a", "1+1=", "2"), Problem("b", "1+2=", "3")])
    assert repr(mine) == "Pool(2 problems, the first '1+1=')"
    assert "family 'chains'" in repr(chains.chains(n=4))
    assert repr(arithmetic(None)) == "Stream(endless problems, family 'arithmetic')"
    html = Pool([Problem("a", "<i>1+1</i>", "2")])._repr_html_()
    assert "1 problems" in html and "&lt;i&gt;1+1" in html and "<i>" not in html


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
        numbers = [int(number) for number in re.findall(r"\d+", body)]
        assert sum(body.count(s) for s in "+-*") == operations
        assert problem.level == level
        assert str(eval(body)) == problem.answer
        assert int(problem.answer) >= 0
        assert max(numbers) <= max(largest, 10)
        # What stands behind each "=" of the worked solution is a running result.
        running = re.findall(r"=(-?\d+)", solution(problem.prompt))
        assert running
        assert all(int(value) >= 0 for value in running)


@pytest.mark.slow
@given(st.integers(0, 2**31), st.integers(0, 2**31))
def test_splits_never_overlap(a, b):
    train = arithmetic(40, seed=a)
    held_out = arithmetic(40, seed=b, split="heldout")
    assert not set(ids(train)) & set(ids(held_out))


def test_stream_never_gives_a_held_out_problem():
    held_out = set(ids(arithmetic(200, split="heldout")))
    drawn, _ = arithmetic().draw(2000, 0, seed=5)
    assert not held_out & set(ids(drawn))
    assert len(set(ids(drawn))) == 2000


def numbered_pool(n):
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(n)]
    return wb.problems.from_rows(rows)


def test_a_slice_of_a_pool_is_a_pool_that_a_lab_takes():
    pool = numbered_pool(12)
    part = pool[:8]
    assert isinstance(part, wb.problems.Pool) and len(part) == 8
    assert part.checked_for == pool.checked_for == "Math"
    assert part[0] is pool[0] and part[-1] is pool[7]
    lab = replace(wb.labs.tiny(held_out=0), problems=part, held_out=pool[8:])
    assert lab.problems is part
    with pytest.raises(ValueError, match="at least one problem"):
        pool[:0]


@given(st.integers(2, 40), st.data())
def test_a_pool_is_split_in_two_whatever_the_order_of_its_rows(n, data):
    pool = numbered_pool(n)
    wanted = data.draw(st.integers(1, n - 1))
    train, held_out = pool.split(wanted, seed=3)
    assert len(held_out) == wanted
    assert {p.id for p in train} | {p.id for p in held_out} == {p.id for p in pool}
    shuffled = wb.problems.Pool(data.draw(st.permutations(list(pool))))
    again = shuffled.split(wanted, seed=3)
    assert {p.id for p in again[1]} == {p.id for p in held_out}
    # A larger part holds the smaller one.
    if wanted + 1 < n:
        assert {p.id for p in held_out} < {p.id for p in pool.split(wanted + 1, seed=3)[1]}


def test_a_share_is_split_off_and_what_leaves_nothing_is_refused():
    pool = numbered_pool(10)
    assert [len(part) for part in pool.split(0.25)] == [8, 2]
    assert pool.split(5)[1].digest != pool.split(5, seed=1)[1].digest
    for wrong in (0, 10, 11, 2.5, 0.01, 0.99, -1, True, "3"):
        with pytest.raises(ValueError, match="held_out="):
            pool.split(wrong)


def test_pools_are_deterministic_by_seed():
    assert ids(arithmetic(50, seed=1)) == ids(arithmetic(50, seed=1)) != ids(arithmetic(50, seed=2))
    assert arithmetic().draw(9, 40, seed=1) == arithmetic().draw(9, 40, seed=1)


@given(st.integers(1, 7), st.integers(0, 5))
def test_epochs_visit_everything_once(n, seed):
    pool = Pool([Problem(str(i), "", "") for i in range(7)])
    cursor = 0
    seen = []
    for _ in range(7 // n):
        drawn, cursor = pool.draw(n, cursor, seed)
        seen += ids(drawn)
    assert len(set(seen)) == len(seen) == 7 // n * n
    _, behind = pool.draw(n, cursor, seed)
    assert behind == 7 + n, "the next draw is of the next epoch"
    assert pool.epoch(cursor - 1) == 0
    assert pool.epoch(behind) == (1 if n < 7 else 2)


def test_excluded_problems_are_passed_over():
    pool = Pool([Problem(str(i), "", "") for i in range(5)])
    drawn, _ = pool.draw(3, 0, 0, exclude={"1", "2"})
    assert set(ids(drawn)) == {"0", "3", "4"}
    with pytest.raises(PoolExhausted, match="n=4: the pool has 5 problems, 2 of them already"):
        pool.draw(4, 0, 0, exclude={"1", "2"})


def test_a_stream_passes_over_what_does_not_count():
    """Draws without a problem, problems that came already, and those that are excluded."""

    def make(rng):
        number = int(rng.integers(6))
        return None if number == 5 else Problem(str(number), f"{number}+0=", str(number))

    stream = Stream(make)
    drawn, cursor = stream.draw(3, exclude={"0"})
    assert len(set(ids(drawn))) == 3
    assert not set(ids(drawn)) & {"0", "5"}
    assert stream.draw(3, exclude={"0"}) == (drawn, cursor)
    assert stream.epoch(cursor) == 0
    with pytest.raises(PoolExhausted, match="n=6: the stream has too few different problems"):
        stream.draw(6)


def test_small_levels_leave_their_share_to_others():
    pool = arithmetic(600, levels=(1, 2))
    assert sum(p.level == 1 for p in pool) == 99
    assert len(pool) == 600


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: arithmetic(10, levels=(9,)), r"levels=\(9,\)"),
        (lambda: arithmetic(10, levels=()), "levels"),
        (lambda: arithmetic(0), "n=0"),
        (lambda: arithmetic(-3), "n=-3"),
        (lambda: arithmetic(10, split="test"), "split='test'"),
        (lambda: arithmetic(10**4, levels=[1]), r"levels=.*10000 train problems.*99"),
        (
            lambda: chains.chains(100, levels=[1], regime="knapsack"),
            "in the shares of regime='knapsack'",
        ),
        (lambda: Pool([]), r"problems=\[\]"),
        (lambda: Pool(["1+1="]), r"problems"),
        (lambda: Pool([Problem("a", "", "")] * 2), "id 'a' occurs twice"),
        (lambda: Pool([Problem("a", "", "")]).draw(0), "n=0"),
        (lambda: from_config({"family": "arithmetics"}), "did you mean 'arithmetic'"),
        (lambda: arithmetic(levels=[1]).draw(10**4), "too few different problems"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_problems_are_made_again_from_what_they_say_of_themselves():
    pool = arithmetic(8, levels=(2, 2), seed=3, split="heldout")
    assert from_config(pool.config).problems == pool.problems
    stream = arithmetic(levels=(1, 2))
    assert from_config(stream.config).draw(3) == stream.draw(3)


@pytest.mark.slow
def test_generated_tasks_are_made_again_from_what_they_say_of_themselves():
    pytest.importorskip(
        "reasoning_gym", reason="reasoning-gym is not installed (pip install reasoning-gym)"
    )
    chains = reasoning_gym("chain_sum", 3, seed=1, instruction="", min_terms=2, max_terms=2)
    assert from_config(chains.config).problems == chains.problems


def test_reasoning_gym():
    pytest.importorskip(
        "reasoning_gym", reason="reasoning-gym is not installed (pip install reasoning-gym)"
    )
    train = reasoning_gym("chain_sum", 30, seed=1)
    held_out = reasoning_gym("chain_sum", 10, seed=1, split="heldout")
    assert len(train) == 30
    assert not set(ids(train)) & set(ids(held_out))
    assert all("boxed" in p.prompt and np.isfinite(float(p.answer)) for p in train)
    others = reasoning_gym("chain_sum", 30, seed=2)
    assert len(set(ids(train)) & set(ids(others))) < 15, "pools of other seeds are other pools"
    with pytest.raises(ValueError, match="no_such_task"):
        reasoning_gym("no_such_task", 5)
    with pytest.raises(ValueError, match=r"rush_hour.* no stored answer"):
        reasoning_gym("rush_hour", 2)
    with pytest.raises(ValueError, match="size"):
        reasoning_gym("chain_sum", 5, size=5)


@pytest.mark.parametrize("regime", ["knapsack", "ar3po"])
def test_a_stream_has_the_classes_of_its_regime_in_their_shares(regime):
    stream = chains.chains(None, regime=regime)
    facts = chains.facts_of("early")
    rates = []
    cursor = 0
    for _ in range(12):
        problems, cursor = stream.draw(32, cursor, seed=1)
        rates += [facts.success_rate(problem.prompt) for problem in problems]
    for lowest, highest, share in chains.REGIMES[regime]:
        of_class = np.mean([lowest <= rate <= highest for rate in rates])
        # Three standard errors of 384 draws, and some more: no problem comes twice in a round,
        # which takes a little from a class of few problems.
        assert abs(of_class - share) < 0.08


def test_drawing_one_problem_at_a_time_does_not_shuffle_the_pool_each_time():
    pool = Pool([Problem(str(number), f"{number}", "1") for number in range(100)])
    assert pool.order(3, 1) is pool.order(3, 1)
    assert sorted(pool.order(3, 1)) == [*range(100)]
    assert pool.order(3, 1).tolist() != pool.order(3, 2).tolist() != pool.order(4, 1).tolist()
    # Who reads it cannot change it for others.
    with pytest.raises(ValueError, match="read-only"):
        pool.order(3, 1)[0] = 0
