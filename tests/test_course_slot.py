"""Where a rollout starts and when it stops: the slot `course`, and the methods that have one."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import go, hand_made, same_record, same_weights, tiny_policy
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from workbench import labs, methods
from workbench.catalogue.duet import Signals, by_signal
from workbench.catalogue.prefix_sampling import prefix_length
from workbench.catalogue.spec_rl import accepted
from workbench.policies import END, GO_ON, STOP, Plan, Sampling
from workbench.pools import Pool, Problem
from workbench.records.round_stats import round_stats
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.rules import allocators, courses, curricula, selectors
from workbench.rules.courses import beginnings, follow
from workbench.rules.scheduler import Learner
from workbench.rules.success_rates import SuccessRates
from workbench.slots import Slot
from workbench.utils.descriptions import clone, describe

HERE = Context(seed=0, round=1, max_new_tokens=48)
PROBLEMS = [Problem("a", "8+5-4-1=", ""), Problem("b", "3+9=", "")]
SAMPLING = Sampling(max_new_tokens=32)
SIZES = {"problems_per_round": 6, "evaluate_every": 0, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def late():
    return wb.labs.tiny(base="late", pool=12, held_out=0)


def no_prefixes(size, dtype=np.int32):
    return Ragged.of([[]] * size, dtype)


def finished(problem, correct, lengths, number=1, **columns):
    """A finished round of responses whose tokens are 5, 6, 7, ..."""
    correct = np.array(correct)
    return Rollouts(
        problem=problem,
        correct=correct,
        reward=correct.astype(float),
        response=Ragged.of([5 + np.arange(n) for n in lengths], np.int32),
        round=np.full(len(correct), number),
        columns=columns,
    )


# The rules, by hand


def test_lengths_of_prefixes():
    assert [prefix_length(20, share, hard=True) for share in (0.25, 0.75)] == [15, 5]
    assert prefix_length(20, 0.25, hard=False) == 5
    assert prefix_length(80, 0.45, hard=True) == 44
    assert prefix_length(80, 0.55, hard=False, cap=30) == 30
    assert (prefix_length(7, 0.25, hard=True), prefix_length(7, 0.25, hard=False)) == (6, 1)


@given(st.integers(1, 500), st.floats(0.01, 1), st.booleans(), st.none() | st.integers(1, 50))
def test_a_prefix_leaves_at_least_one_token(total, share, hard, cap):
    length = prefix_length(total, share, hard, cap)
    assert 0 <= length < total
    if cap is not None:
        assert (total - length if hard else length) <= cap


def test_the_share_follows_the_pass_rate_and_rests():
    control = courses.PassRateControl(0.25)
    seen = []
    for _ in range(9):
        control.observe(0.8)
        seen.append(control.share)
    # The average is .515, .529, .543: the first change is at the third step, the next five rest.
    assert seen == [0.25, 0.25] + [0.3] * 6 + [0.35]
    easier = courses.PassRateControl(0.25)
    for _ in range(3):
        easier.observe(0.2)
    assert easier.share == 0.2


@given(st.lists(st.lists(st.tuples(*[st.floats(0.01, 1)] * 3), max_size=6), min_size=1, max_size=5))
def test_drafts_are_kept_up_to_the_first_refusal(rows):
    expected = []
    for row in rows:
        kept = 0
        while kept < len(row) and np.log(row[kept][2]) <= np.log(row[kept][0]) - np.log(
            row[kept][1]
        ):
            kept += 1
        expected.append(kept)
    new, old, draws = (
        Ragged.of([[token[i] for token in row] for row in rows], np.float64).padded(np.nan)
        for i in range(3)
    )
    kept = accepted(np.log(new), np.log(old), np.nan_to_num(draws))
    assert kept.tolist() == expected


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=6), st.data())
def test_the_first_tokens_of_each_row(rows, data):
    lengths = np.array([data.draw(st.integers(0, len(row))) for row in rows])
    cut = Ragged.of(rows, np.int32).first(lengths)
    assert [cut[i].tolist() for i in range(len(rows))] == [row[:n] for row, n in zip(rows, lengths)]


def test_drafts_begin_where_there_are_any():
    drafts = hand_made([0.0, 1.0], ["a", "b"], lengths=[3, 4])
    found = beginnings(drafts, np.array([1, -1, 0]), np.array([2, 0, 3])).prefixes
    assert found.lengths.tolist() == [2, 0, 3]
    assert found[0].tolist() == drafts.response[1][:2].tolist()


# The methods' memories


def test_prefix_sampling_tries_skewed_problems_again():
    course = courses.PrefixSampling()
    # Rates of exactly .3 and .7 are neither hard nor easy.
    problem = np.repeat(["hard", "easy", "even", "dead", "at .3", "at .7"], 10)
    right = [k < n for n in (1, 9, 5, 0, 3, 7) for k in range(10)]
    lengths = np.full(len(right), 20)
    # Right responses begin with 5 and wrong ones with 50.
    tokens = [(5 if is_right else 50) + np.arange(20) for is_right in right]
    table = finished(problem, right, lengths).assign(response=Ragged.of(tokens, np.int32))
    course.feedback(table, HERE)
    # What a hard problem goes on from was right, and what an easy one goes on from was wrong.
    first = {name: prefix[0] for name, (_, prefix) in course.prefixes.items()}
    assert first == {"hard": 5, "easy": 50}
    assert {name: (hard, len(tokens)) for name, (hard, tokens) in course.prefixes.items()} == {
        "hard": (True, 15),
        "easy": (False, 5),
    }
    pool = Pool([Problem(name, name, "") for name in ("even", "easy", "hard", "x", "y", "z")])
    curriculum = curricula.Recycled()
    curriculum.feedback(finished(problem, right, lengths), HERE)
    assert set(curriculum.waiting) == {"hard", "easy"}
    chosen = [p.id for p in curriculum.choose(pool, 4, replace(HERE, round=2))]
    assert set(chosen[:2]) == {"hard", "easy"} and len(set(chosen)) == 4
    plan = course.plan([pool[1], pool[0]], np.array([2, 1]), np.zeros(2, int), HERE)
    assert plan.prefixes.lengths.tolist() == [5, 5, 0]
    # A group that started from a prefix is not tried once more, and it moves the controller.
    again = finished(["hard"] * 8, [True] * 2 + [False] * 6, [20] * 8, number=2)
    context = replace(HERE, round=2)
    course.feedback(again, context)
    curriculum.feedback(again, context)
    assert course.prefixes == {} and curriculum.waiting == []
    assert course.of_hard.average == pytest.approx(0.95 * 0.5 + 0.05 * 0.25)
    assert course.of_easy.average == 0.5
    course.of_hard.share = 0.4
    shares = {"course_share_hard": 0.4, "course_share_easy": 0.25}
    assert course.metrics() == {"course_waiting": 0, **shares}


def test_prefix_rl_deals_rollouts_out_among_prefixes_and_the_bare_problem(tmp_path):
    wb.replay.save_answers(finished(["a"], [True], [20]), tmp_path / "answers")
    course = courses.OwnPrefixes(path=str(tmp_path / "answers"))
    counts, before = np.array([8, 2]), np.zeros(2, dtype=np.int64)
    plan = course.plan(PROBLEMS, counts, before, HERE)
    assert plan.columns["start"].tolist() == [0, 1, 2, 3] * 2 + [0, 0]
    table = finished(["a"] * 8 + ["b"] * 2, [True] * 10, [4] * 10, **plan.columns)
    assert table.group.tolist() == ["a", "a@1", "a@2", "a@3"] * 2 + ["b", "b"]
    lengths = plan.prefixes.lengths
    assert lengths[[0, 4, 8, 9]].tolist() == [0, 0, 0, 0]
    assert ((lengths[1:4] >= 8) & (lengths[1:4] <= 16)).all()
    assert lengths[1:4].tolist() == lengths[5:8].tolist()
    # Right answers from a prefix do not make the problem a solved one, right bare ones do.
    nothing = np.zeros(2, dtype=np.int64)
    of_prefix = finished(
        ["a", "a"], [False, True], [4, 4], prefix=np.array([0, 9]), gradient=nothing
    )
    course.feedback(of_prefix, HERE)
    assert not course.solved["a"]
    course.feedback(finished(["a"], [True], [4], prefix=nothing[:1]), HERE)
    assert course.plan(PROBLEMS, counts, before, HERE).prefixes.lengths.sum() == 0


def test_partial_rollouts_stop_once_enough_groups_are_complete():
    course = courses.Partial(0.5)
    plan = course.plan(PROBLEMS, np.array([2, 2]), np.zeros(2, int), HERE)
    says = lambda *rows: plan.stop(SimpleNamespace(rows=np.array(rows))).tolist()  # noqa: E731
    assert says(0, 1, 2, 3) == [GO_ON] * 4
    assert says(1, 2) == [GO_ON] * 2  # each group has one that grows
    assert says(2, 3) == [STOP] * 2
    whole = courses.Partial(1.0).plan(PROBLEMS, np.array([2, 2]), np.zeros(2, int), HERE)
    assert whole.stop(SimpleNamespace(rows=np.array([3]))).tolist() == [GO_ON]
    rollouts = finished(["a", "a", "b"], [True, False, True], [2, 3, 4]).assign(
        status=["ok", "stopped", "ok"]
    )
    kept = selectors.Finished(whole_groups=True).select(rollouts, HERE)
    assert kept.rows.tolist() == [2]
    assert selectors.Finished().select(rollouts, HERE).rows.tolist() == [0, 2]


def test_a_waiting_problem_that_found_no_place_goes_on_waiting():
    pool = Pool([Problem(name, name, "") for name in "abcdef"])
    curriculum = curricula.Recycled("stopped", share=0.5)
    stopped = finished(list("abcd"), [False] * 4, [3] * 4).assign(status=["stopped"] * 4)
    curriculum.feedback(stopped, HERE)
    second = replace(HERE, round=2)
    chosen = [problem.id for problem in curriculum.choose(pool, 4, second)]
    assert set(chosen[:2]) == {"a", "b"}
    again = finished(chosen, [False] * 4, [3] * 4, number=2)
    again = again.assign(status=["stopped"] + ["wrong"] * 3)
    curriculum.feedback(again, second)
    assert curriculum.waiting == [name for name in "cd" if name not in chosen] + chosen[:1]


def test_the_share_of_a_round_that_recycled_problems_take_is_not_lost_by_rounding():
    pool = Pool([Problem(f"p{i}", f"p{i}", "") for i in range(100)])
    curriculum = curricula.Recycled("stopped", share=0.29)  # 0.29 * 100 is a little less than 29
    curriculum.waiting = [f"p{i}" for i in range(50)]
    curriculum.choose(pool, 100, HERE)
    assert len(curriculum.served) == 29


def test_a_stopped_rollout_that_replay_brings_back_does_not_wait():
    course = courses.Partial()
    table = finished(["a"] * 3, [False, True, False], [3, 3, 3], number=np.array([1, 2, 2]))
    course.feedback(table.assign(status=["stopped", "ok", "wrong"]), replace(HERE, round=2))
    assert len(course.stored) == 0


def test_a_text_that_ends_in_token_0_is_another_one():
    prefixes = Ragged.of([[5], [5, 0]], np.int32)
    rollouts = hand_made([0.0, 1.0], ["a", "a"], lengths=[3, 3]).assign(
        prompt=Ragged.of([[9, 5], [9, 5, 0]], np.int32)
    )
    assert follow(rollouts, Plan(prefixes=prefixes))["read"].tolist() == [1, 2]


# DUET


@given(
    st.lists(st.tuples(st.floats(1e-6, 100), st.floats(1, 3000)), min_size=1, max_size=20),
    st.floats(0.1, 2),
)
def test_a_budget_of_tokens_is_kept_where_that_is_possible(problems, budget):
    signal, length = np.array(problems).T
    target = budget * 8 * length.sum()
    rounded, counts = by_signal(signal, length, target)
    assert ((counts >= 1) & (counts <= rounded) & (rounded <= 32)).all()
    assert counts @ length <= target or (counts == 1).all()


def test_the_numbers_of_duet():
    signal, length = [0.8, 1.2, 0.5, 1.5], [300, 400, 250, 600]
    assert 0.5 * 8 * np.sum(length) == 6200
    rounded, counts = by_signal(signal, length, 6200)
    assert (rounded.tolist(), rounded @ length) == ([3, 5, 2, 5], 6400)
    assert (counts.tolist(), counts @ length) == ([3, 5, 2, 4], 5800)
    assert by_signal([1, 1], [100, 400], 2000)[1].tolist() == [7, 3]
    assert selectors.inverse_counts(rounded).tolist() == pytest.approx([1.25, 1, 1.875, 1])
    margins = courses.margins_to_end(signal, length)
    assert margins.tolist() == pytest.approx([0.6633, 0.8267, 0.5, 0.99], abs=5e-5)
    assert courses.margins_to_end([2.0], [50.0]).tolist() == pytest.approx([0.745])
    deadline = courses.Deadline()
    assert deadline.marks(3072) == (921, 2150)
    assert deadline.marks(3072)[1] + deadline.grace == 2300
    # Nothing is known in the first round, and every problem gets half of 8.
    first = allocators.BySignal(8, 0.5)
    assert first.counts(["a", "b", "c"], 3072)[1].tolist() == [4, 4, 4]
    scaled = methods.duet(limit=64).course
    assert (scaled.every, scaled.start, scaled.grace, scaled.gap) == (1, 4, 3, 1)
    assert methods.duet().course == courses.Deadline()


def visit(problem, advantage, lengths, number=1, stopped=(), **columns):
    """A finished round in which each token has a log-probability of -2."""
    size = len(advantage)
    table = finished(problem, [False] * size, lengths, number, **columns)
    logprobs = np.full(len(table.response.values), -2.0, np.float32)
    return table.assign(
        old_logprobs=Ragged(logprobs, table.response.offsets),
        advantage=np.array(advantage, float),
        selected=np.isfinite(advantage),
        status=np.where(np.isin(np.arange(size), stopped), "stopped", "ok"),
    )


def test_a_signal_is_the_deviation_of_what_pulls_at_the_weights():
    signals = Signals(history=5, capacity=2)
    weight = np.array([1.0, 0.5, 2.0, 1.0, 1.0])
    signals.feedback(
        visit(list("aaabc"), [1, -1, 9, 1, 1], [3, 2, 9, 4, 4], stopped=[2], weight=weight), HERE
    )
    # Of "a" the third was stopped. The others pull by 1 x -6 and -1/2 x -4: the deviation is 4.
    # The others have a single rollout, which says nothing but its length.
    signal, length = signals.of(["a", "b"], 99)
    assert signal.tolist() == pytest.approx([4, 1])
    assert length.tolist() == pytest.approx([2.5, np.mean([3, 2, 4, 4])])
    later = replace(HERE, round=2)
    alike = visit(list("aabb"), [0, 0, 1, np.nan], [5, 5, 1, 1], number=2)
    signals.feedback(alike, later)
    assert signals.of(["a"], 99)[0].tolist() == pytest.approx([2])
    assert signals.of(["a"], 99)[1].tolist() == pytest.approx([15 / 4])
    assert signals.lengths == [4, 4, 5, 5, 1]
    for number, name in ((3, "b"), (4, "c")):
        context = replace(HERE, round=number)
        signals.feedback(visit([name] * 2, [1, -1], [2, 2], number=number), context)
    # "a" was not visited for longest.
    assert list(signals.sums) == ["b", "c"]
    assert signals.of(["c"], 99)[0].tolist() == pytest.approx([4])
    dead = Signals()
    dead.feedback(visit(["a"] * 2, [0, 0], [2, 2]), HERE)
    assert dead.of(["a"], None)[0].tolist() == [1e-6]
    assert Signals().of(["a"], None)[1].tolist() == [1]


def test_weights_make_up_for_few_rollouts_and_for_those_that_were_spared():
    table = visit(["a"] * 3 + ["b"], [0.0] * 4, [2] * 4, stopped=[1])
    table = table.assign(spared=np.array([False, False, True, False]))
    chosen = selectors.InverseCounts().select(table, HERE)
    assert chosen.rows.tolist() == [0, 2, 3]
    assert chosen.weights.tolist() == pytest.approx([1, 20, 2])
    assert chosen.baseline == "group"
    least = selectors.InverseCounts(most=3.0).select(table, HERE)
    assert least.weights.tolist() == pytest.approx([1, 3, 2])
    # The counts before trimming, here those of problems of which nothing is known.
    of_allocator = selectors.InverseCounts(allocator=allocators.BySignal(8))
    assert of_allocator.select(table, HERE).weights.tolist() == pytest.approx([1, 20, 1])


class Growth:
    """Rollouts that grow as a test says: texts and margins by step."""

    def __init__(self, plan, size):
        self.plan, self.rows, self.size = plan, np.arange(size), size
        self.searched = []

    def step(self, step, texts=None, margin=0.0):
        def looked_at(last):
            self.searched.append((step, last))
            return [(texts or {}).get(row, "7+5=") for row in self.rows.tolist()]

        growing = SimpleNamespace(
            rows=self.rows,
            step=step,
            texts=looked_at,
            margin=lambda: np.full(len(self.rows), margin),
        )
        said = self.plan.stop(growing)
        found = dict(zip(self.rows.tolist(), said.tolist()))
        self.rows = self.rows[said == GO_ON]
        return found


def deadline_of(size=4, **options):
    course = courses.Deadline(
        **{"every": 2, "start": 4, "grace": 1, "run": 2, "skip": 0.0, "spare": 1e-9, **options}
    )
    context = replace(HERE, max_new_tokens=20)
    plan = course.plan(PROBLEMS, np.array([size - 1, 1]), np.zeros(2, int), context)
    return Growth(plan, size)


def test_responses_with_an_answer_end_and_those_without_one_are_stopped():
    growth = deadline_of()  # the marks are 6 and 14, and the deadline is 15
    box = {0: "12 \\boxed{12}"}
    for step in range(1, 6):
        assert set(growth.step(step, box, 1.0).values()) == {GO_ON}
    assert growth.searched == []
    assert growth.step(6, box, 1.0)[0] == GO_ON  # sure of one token
    assert growth.step(7, box, 0.0)[0] == GO_ON  # not any more
    assert growth.step(8, box, 1.0)[0] == GO_ON
    assert growth.step(9, box, 1.0) == {0: END, 1: GO_ON, 2: GO_ON, 3: GO_ON}
    for step in range(10, 15):
        assert set(growth.step(step).values()) == {GO_ON}
    assert growth.step(15, {3: "Final answer: 12"}) == {1: STOP, 2: STOP, 3: GO_ON}
    window = courses.Deadline().window
    assert growth.searched == [(step, window) for step in (6, 8, 10, 12, 14, 15)]
    assert not growth.plan.columns["spared"].any()


def test_a_response_is_spared_at_the_deadline_and_skipped_at_its_end_by_chance():
    growth = deadline_of(spare=1.0, skip=1.0, answer="=")
    assert growth.step(8, {0: "", 1: ""}, 1.0) == {0: GO_ON, 1: GO_ON, 2: GO_ON, 3: GO_ON}
    assert set(growth.step(9, {}, 1.0).values()) == {GO_ON}
    growth.step(15, {0: "", 1: ""})
    assert growth.plan.columns["spared"].tolist() == [True, True, False, False]
    # Where all would be stopped, one is spared.
    growth = deadline_of()
    said = growth.step(15)
    assert sorted(said.values()) == [GO_ON, STOP, STOP, STOP]
    # It is the one that the smallest chance of being spared would have left.
    context = replace(HERE, max_new_tokens=20)
    draws = courses.draws_of(PROBLEMS, np.array([3, 1]), np.zeros(2, int), context, 21)
    assert said[draws[:, 0].argmin()] == GO_ON
    assert growth.plan.columns["spared"].sum() == 1


def test_the_marks_follow_the_lengths():
    course = courses.Deadline(refit=2, least=4, gap=5)
    course.feedback(visit(["a"] * 4, [1.0] * 4, [4, 6, 8, 10]), HERE)
    assert course.marks(100) == (30, 70)
    assert np.isnan(course.metrics()["course_first"])
    course.feedback(visit([], [], [], number=2), replace(HERE, round=2))
    # The quantiles are 5.8 and 8.8, and the second mark is at least five tokens later.
    assert course.marks(100) == (5, 10)
    assert course.metrics()["course_second"] == 10
    with pytest.raises(ValueError, match=r"^answer=''"):
        courses.Deadline(answer="")
    with pytest.raises(ValueError, match=r"^signals=3: a Signals is needed"):
        courses.Deadline(signals=3)
    with pytest.raises(ValueError, match=r"^allocator=.*: a BySignal is needed"):
        selectors.InverseCounts(allocator=allocators.Uniform(8))


# ARRoL


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), st.floats(0.05, 1), st.floats(0, 1))
def test_survival_meets_its_shares_where_it_need_not_be_cut(chances, keep, right):
    found = courses.survival(chances, keep, right)
    assert ((found >= 0) & (found <= 1)).all()
    if ((found > 0) & (found < 1)).all() and np.var(chances) > 1e-6:
        assert found.sum() == pytest.approx(keep * len(chances))
        assert found @ np.array(chances) == pytest.approx(right * keep * len(chances), abs=1e-6)


def test_the_numbers_of_arrol():
    found = courses.survival([0.9, 0.9, 0.9, 0.1])
    assert found.tolist() == pytest.approx([1 / 3] * 3 + [1])
    assert (found.sum(), found @ [0.9, 0.9, 0.9, 0.1]) == (pytest.approx(2), pytest.approx(1))
    assert courses.survival([0.3, 0.3], keep=0.25).tolist() == [0.25, 0.25]
    chances = courses.binned_chances([0.0, 1.0, 0.3], [0.99, 1.0, 0.1], [True, True, False], bins=4)
    assert chances.tolist() == pytest.approx([1 / 3, 3 / 4, 1 / 2])


def grown(course, states, number, before=0):
    """What is said of rollouts of one problem with these states, and the plan."""
    context = replace(HERE, round=number)
    plan = course.plan(PROBLEMS[:1], np.array([len(states)]), np.array([before]), context)
    assert plan.states
    growing = SimpleNamespace(
        rows=np.arange(len(states)), step=course.at, states=lambda: np.array(states, np.float32)
    )
    early = SimpleNamespace(rows=growing.rows, step=course.at - 1)
    assert plan.stop(early).tolist() == [GO_ON] * len(states)
    return plan.stop(growing), plan.columns["survival"]


def test_the_network_learns_from_verdicts_and_then_some_rollouts_are_stopped():
    course = courses.Survival(
        4, warm_up=30, learning_rate=0.1, units=8, explore=0.1, bins=5, history=40
    )
    states = np.array([[1.0, 0.2], [0.9, -0.1], [-1.0, 0.0], [-0.8, 0.3]] * 2)
    right = states[:, 0] > 0
    for number in range(1, 31):
        said, chances = grown(course, states, number)
        assert (said == GO_ON).all() and np.isnan(chances).all()
        table = finished(["a"] * 8, right, [6] * 8, number).assign(draw=np.arange(8))
        course.feedback(table, replace(HERE, round=number))
    assert course.metrics() == {"course_judged": 8, "course_learnt_from": 8}
    assert course.past.shape == (40, 2)
    assert course._scores(states)[:4] == pytest.approx([1, 1, 0, 0], abs=0.2)
    said, chances = grown(course, states[[0, 1, 2, 2, 2, 2]], 31)
    # Two of six are thought to be right, so they go on rather than the others. Three of six go on,
    # and a tenth of the rest.
    assert chances[:2].min() > 0.7 > 0.5 > chances[2:].max()
    assert chances.sum() == pytest.approx(3 + 0.1 * 3)
    again, _ = grown(course, states[[0, 1, 2, 2, 2, 2]], 31)
    assert said.tolist() == again.tolist()
    # What was stopped has no verdict to learn from.
    table = finished(["a"] * 6, [True] * 6, [6] * 6, 31).assign(
        draw=np.arange(6), status=np.where(said == STOP, "stopped", "ok")
    )
    course.feedback(table, replace(HERE, round=31))
    assert course.metrics()["course_learnt_from"] == (said == GO_ON).sum() < 6


def test_a_step_of_the_network_is_one_on_the_cross_entropy():
    states = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    right = np.array([True, False, True, True, False])
    course = courses.Survival(2, learning_rate=0.1, units=4)
    course.learner = Learner(1, 4, 2, 0.1, "sgd", inputs=3)
    weights = [torch.tensor(each, requires_grad=True) for each in course.learner.parameters]
    hidden = (torch.tensor(states) @ weights[0] + weights[1]).relu()
    logits = (hidden @ weights[2] + weights[3])[:, 0]
    target = torch.tensor(right, dtype=torch.float32)
    torch.nn.functional.binary_cross_entropy_with_logits(logits, target).backward()
    course.judged = {("a", i): state for i, state in enumerate(states)}
    table = finished(["a"] * 5, right, [3] * 5).assign(draw=np.arange(5))
    course.feedback(table, HERE)
    for after, before in zip(course.learner.parameters, weights):
        expected = (before - 0.1 * before.grad).detach().numpy()
        assert after == pytest.approx(expected, abs=1e-6)


def test_not_every_rollout_of_a_request_is_stopped():
    course = courses.Survival(4, warm_up=0, keep=1e-9, explore=0.0, units=2)
    course.learner = Learner(0, 2, 2, inputs=2)
    said, _ = grown(course, np.ones((4, 2)), 1)
    assert sorted(said.tolist()) == [GO_ON, STOP, STOP, STOP]
    course.keep = 0.5
    first, _ = grown(course, np.ones((16, 2)), 1)
    other, _ = grown(course, np.ones((16, 2)), 1, before=16)
    assert first.tolist() != other.tolist()


# Policies


@pytest.mark.parametrize("merges", [True, False])
def test_a_greedy_response_is_gone_on_with_from_any_part_of_it(merges):
    policy = tiny_policy()
    policy.merges = merges
    policy.share_prefixes = merges
    greedy = replace(SAMPLING, temperature=0)
    whole = policy.generate(PROBLEMS, [2, 1], greedy, seed=0)
    lengths = np.array([3, 0, 2])
    prefixes = whole.response.first(lengths)
    part = policy.generate(PROBLEMS, [2, 1], greedy, 0, Plan(prefixes=prefixes))
    assert part.text.tolist() == whole.text.tolist()
    assert part.lengths.tolist() == (whole.lengths - lengths).tolist()
    for row in range(3):
        assert part.prompt[row].tolist() == [*whole.prompt[row], *prefixes[row]]
    # The prefix counts towards the longest response.
    short = replace(greedy, max_new_tokens=5)
    cut = policy.generate(PROBLEMS, [2, 1], short, 0, Plan(prefixes=prefixes))
    assert (cut.lengths + lengths).max() <= 5
    assert cut.truncated.tolist() == (whole.lengths > 5).tolist()


def test_a_prefix_is_masked_or_belongs_to_the_response():
    policy = tiny_policy()
    whole = policy.generate(PROBLEMS, [2, 2], SAMPLING, seed=0)
    lengths = np.minimum(whole.lengths - 1, 4)
    plan = beginnings(whole, np.arange(4), lengths)
    sampled = policy.generate(PROBLEMS, [2, 2], SAMPLING, 1, plan)
    masked = follow(sampled, replace(plan, logprobs=None))
    joined = follow(sampled, plan)
    assert masked["prefix"].tolist() == joined["kept"].tolist() == lengths.tolist()
    assert (joined.lengths - masked.lengths).tolist() == lengths.tolist()
    assert joined.prompt.values.tolist() == whole.prompt.values.tolist()
    # A forward pass over either gives what was noted while sampling, for every response token.
    for rollouts in (masked, joined):
        again = policy.rescored(rollouts)
        assert again.old_logprobs.values == pytest.approx(rollouts.old_logprobs.values, abs=1e-4)
        mean = Ragged(rollouts.token_entropy.values, rollouts.response.offsets)
        assert again.token_entropy.values == pytest.approx(mean.values, abs=1e-4)


class Watch:
    """Ends or stops rows at a step, and keeps what it saw."""

    def __init__(self, at, says):
        self.at, self.says, self.seen = at, says, {}

    def __call__(self, growing):
        row = list(growing.rows)
        self.seen[growing.step] = (
            dict(zip(row, growing.margin())),
            dict(zip(row, growing.texts(99))),
        )
        said = [self.says.get(number, GO_ON) for number in row]
        return np.array(said) if growing.step == self.at else np.full(len(row), GO_ON)


@pytest.mark.parametrize("merges", [True, False])
def test_stopped_rollouts_end_and_the_others_are_what_they_were(merges):
    policy = tiny_policy()
    policy.merges = policy.share_prefixes = merges
    plain = policy.generate(PROBLEMS, [3, 3], SAMPLING, seed=0)
    watch = Watch(2, {0: STOP, 4: END})
    part = policy.generate(PROBLEMS, [3, 3], SAMPLING, 0, Plan(stop=watch))
    assert part["stopped"].tolist() == [True, False, False, False, False, False]
    assert part.lengths[[0, 4]].tolist() == [2, 2]
    assert not part.truncated[[0, 4]].any()
    others = [1, 2, 3, 5]
    assert part.text[others].tolist() == plain.text[others].tolist()
    assert part.old_logprobs.take(others).values.tolist() == pytest.approx(
        plain.old_logprobs.take(others).values.tolist(), abs=1e-5
    )
    # The margin is that of the distribution from which the second token was drawn.
    margin, texts = watch.seen[2]
    ids = [*plain.prompt[1], plain.response[1][0]]
    with torch.no_grad():
        logits = policy.model(torch.tensor([ids])).logits[0, -1]
    top = logits.softmax(-1).topk(2).values
    assert margin[1] == pytest.approx(float(top[0] - top[1]), abs=1e-5)
    assert texts[0] == part.text[0]


def test_hidden_states_are_those_of_the_model():
    policy = tiny_policy()
    seen = {}

    def stop(growing):
        if growing.step == 2:
            seen.update(zip(growing.rows.tolist(), growing.states()))
        return np.zeros(len(growing.rows), int)

    plain = policy.generate(PROBLEMS, [1, 1], SAMPLING, 0, Plan(stop=stop, states=True))
    for row, state in seen.items():
        ids = torch.tensor([[*plain.prompt[row], plain.response[row][0]]])
        with torch.no_grad():
            expected = policy.decoder(ids).last_hidden_state[0, -1]
        assert state == pytest.approx(expected.numpy(), abs=1e-4)
    assert seen


# Runs


@dataclass
class Anything(Slot):
    """Whatever a test wants a course to plan."""

    make: str = "nothing"

    needs = frozenset({"prefixes", "stopping"})
    reads_verdict = False

    def plan(self, problems, counts, before, context):
        size = int(counts.sum())
        everything = Plan(stop=lambda growing: np.full(len(growing.rows), STOP))
        long = Ragged.of([np.full(context.max_new_tokens, 5)] * size, np.int32)
        return {
            "nothing": None,
            "plain": Plan(),
            "looks": Plan(stop=lambda growing: np.full(len(growing.rows), GO_ON)),
            "everything": everything if context.round == 3 else None,
            "long": Plan(prefixes=long),
            "few": Plan(prefixes=no_prefixes(1)),
            "words": Plan(stop=lambda growing: ["stop"] * len(growing.rows)),
        }[self.make]


@pytest.mark.slow
def test_by_default_a_run_is_what_it_was(late, tmp_path):
    assert "course" not in describe(methods.grpo())
    assert describe(methods.grpo().but(course=None)) == describe(methods.grpo())
    assert "course" in describe(methods.prefix_sampling())
    runs = {}
    for name, method in {
        "default": methods.grpo(4),
        "explicit": methods.grpo(4).but(course=None),
        "nothing": methods.grpo(4).but(course=Anything()),
        "looks": methods.grpo(4).but(course=Anything("looks")),
    }.items():
        runs[name] = wb.Run(late, method, out=tmp_path / name, **SIZES)
        go(runs[name], 2)
    same_record(runs["default"].record, runs["explicit"].record)
    for name in ("explicit", "nothing", "looks"):
        assert same_weights(tmp_path / "default", tmp_path / name)
    plain, looked = (runs[name].record.rounds for name in ("default", "looks"))
    assert plain["tokens_sampled"].equals(looked["tokens_sampled"])
    assert looked["tokens_read"].sum() == looked["status_stopped"].sum() == 0
    assert "tokens_read" not in plain


METHODS = {
    "prefix_sampling": methods.prefix_sampling(8),
    "prefix_rl": methods.prefix_rl(8),
    "spec_rl": methods.spec_rl(4),
    "partial_rollouts": methods.partial_rollouts(4),
    "duet": methods.duet(8, limit=40, low=2).adjust("course", refit=2, quantiles=(0.2, 0.5)),
    "arrol": methods.arrol(
        8, course=courses.Survival(at=8, warm_up=1, learning_rate=0.01, units=16)
    ),
}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_is_the_uninterrupted_one(late, name, tmp_path):
    method = METHODS[name]
    whole = wb.Run(late, method, out=tmp_path / "whole", learning_rate=3e-3, **SIZES)
    go(whole, 6)
    go(wb.Run(late, method, out=tmp_path / "parts", learning_rate=3e-3, **SIZES), 4)
    resumed = wb.Run.resume(tmp_path / "parts")
    go(resumed, 6)
    same_record(whole.record, resumed.record)
    assert same_weights(tmp_path / "whole", tmp_path / "parts")
    rollouts = whole.record.rollouts()
    later = rollouts[rollouts["round"] > 4]
    # What the run had in memory when it was interrupted is gone on with.
    if name in ("duet", "arrol"):
        assert (later["status"] == "stopped").any()
    elif name != "prefix_rl":
        assert (later["prefix"] + later["kept"]).max() > 0
    whole_length = rollouts["prefix"] + rollouts["length"]
    assert whole_length.max() <= late.sampling.max_new_tokens
    rounds = whole.record.rounds
    sampled = (rollouts["length"] - rollouts["kept"]).groupby(rollouts["round"]).sum()
    prompts = rounds["tokens_sampled"].to_numpy() - sampled.to_numpy()
    assert (prompts > 0).all() and prompts.max() < 12 * 20
    assert rounds["tokens_read"].sum() == rollouts["read"].sum()


@pytest.mark.parametrize("where", ["start", "prefix"])
@pytest.mark.parametrize(
    "value", [wb.replay.CorrectResponses("stop-gradient"), wb.replay.Buckets()]
)
def test_what_began_with_a_part_of_an_answer_is_not_reused(value, where):
    """A masked prefix has no column `start`, which only further starts of a problem have."""
    table = finished(["a"] * 4, [True, True, False, False], [4] * 4)
    zeros = np.zeros(4, dtype=np.int64)
    table = table.assign(**{where: np.array([0, 9, 0, 0])}, gradient=zeros == 0, uses=zeros)
    value = value.clone()
    value.feedback(table.assign(round=zeros + HERE.round), HERE)
    assert len(value.stored) == 1


@pytest.mark.slow
def test_an_unsolved_problem_starts_from_a_part_of_its_answer(late, tmp_path):
    """Answers of an earlier run, as in the paper; the groups are those of the starts."""
    first = wb.Run(late, methods.grpo(8), out=tmp_path / "first", **SIZES)
    rollouts = []
    go(first, 1)
    policy = first.policy
    found = policy.generate(late.problems, [24] * 12, late.sampling, seed=5)
    scores = late.verifier.score(list(found.text), list(found.answer))
    rollouts = found.assign(correct=scores.correct, reward=scores.reward)
    wb.replay.save_answers(rollouts, tmp_path / "answers")
    method = methods.prefix_rl(8, course=courses.OwnPrefixes(path=str(tmp_path / "answers")))
    run = wb.Run(late, method, out=tmp_path / "run", **SIZES)
    go(run, 3)
    table = run.record.rollouts()
    started = table[table["prefix"] > 0]
    assert len(started) and (started["start"] > 0).all()
    assert (table[table["start"] == 0]["prefix"] == 0).all()
    # Advantages are those of the groups of one start: their mean is 0 in each.
    means = table.groupby(["round", "problem", "start"])["advantage"].mean()
    assert means.abs().max() < 1e-6
    resumed = wb.Run.resume(tmp_path / "run")
    assert len(go(resumed, 4)) == 1


@pytest.mark.parametrize(
    ("replay", "groups"),
    [
        (wb.replay.Buffer(), ["a@1", "a@1@1", "a@1@2", "a@2"]),
        (wb.replay.Fifo(64), ["a@1", "a@1@1", "a@1@2", "a@2"]),
        # One group a round, so that the other one of round 1 comes in round 2.
        (wb.replay.Surplus(groups=1), ["a@1@1"]),
        (wb.replay.Experience(each=1), ["a", "a@1"]),
        (wb.replay.CorrectResponses(mode="recompute"), ["a", "a@1"]),
    ],
)
def test_groups_of_one_start_stay_together_in_a_replay(replay, groups):
    """Every group holds rollouts of one start; right answers from a prefix join none."""
    new = {"gradient": np.ones(4, bool), "uses": np.zeros(4, np.int64)}
    starts = np.array([0, 0, 1, 1])
    old = finished(["a"] * 4, [True, False] * 2, [4, 5, 6, 7], start=starts, **new)
    again = finished(["a"] * 4, [False] * 4, [5] * 4, number=2, start=starts, **new)
    replay = clone(replay)
    second = replace(HERE, round=2, policy=SimpleNamespace(logprobs=certain))
    table, candidates = replay.join(old, np.arange(4), HERE)
    nothing = np.full(len(table), np.nan)
    replay.feedback(table.assign(update_entropy=nothing, clip_ratio=nothing), HERE)
    table, candidates = replay.join(again, np.arange(4), second)
    joined = table.take(candidates)
    assert sorted(set(joined.group.tolist())) == groups
    for group in groups:
        assert len(set(joined["start"][joined.group == group])) == 1
    if groups == ["a", "a@1"]:
        assert joined.round[joined.group == "a@1"].tolist() == [2, 2]
        assert 1 in joined.round[joined.group == "a"]


def test_drafts_are_the_responses_of_the_latest_visit():
    course = courses.Speculative()
    course.feedback(finished(["a", "b"], [True] * 2, [2, 3]), HERE)
    # Problem a comes again, and replay brings an old response to b along.
    again = finished(["a", "b"], [True] * 2, [4, 5]).assign(round=[2, 1])
    course.feedback(again, replace(HERE, round=2))
    stored = course.stored
    assert sorted(zip(stored.problem.tolist(), stored.lengths.tolist())) == [("a", 4), ("b", 3)]


def test_a_draft_is_read_with_its_prompt():
    course = courses.Speculative()
    token = {
        name: Ragged.of([[-1.0] * 6], np.float32) for name in ("old_logprobs", "token_entropy")
    }
    table = finished(["a"], [True], [6]).assign(prompt=Ragged.of([[1, 2, 3]], np.int32), **token)
    course.feedback(table, HERE)
    policy = SimpleNamespace(rescored=lambda old, temperature: old)
    context = replace(HERE, round=2, policy=policy)
    plan = course.plan(PROBLEMS, np.array([1, 1]), np.zeros(2, int), context)
    # The policy is the same, so that all tokens but the last one are kept.
    assert plan.prefixes.lengths.tolist() == [5, 0]
    assert plan.read.tolist() == [3 + 6, 0]


def certain(rollouts, temperature):
    return torch.zeros(len(rollouts), int(rollouts.lengths.max()))


def test_a_draft_that_the_policy_still_believes_in_costs_one_token(tmp_path):
    lab = wb.labs.tiny(base="late", pool=6, held_out=0, learning_rate=1e-12)
    run = wb.Run(lab, methods.spec_rl(4), out=tmp_path / "run", **SIZES)
    go(run, 2)
    first, second = (rows for _, rows in run.record.rollouts().groupby("round"))
    both = first.merge(second, on=["problem", "draw"])
    assert len(both) == 24
    assert (both["kept_y"] == both["length_x"] - 1).all()
    # The model has read each draft with its prompt once, and what is kept of it once more.
    assert second["read"].sum() > both["length_x"].sum() + both["kept_y"].max()
    assert run.record.rounds["tokens_read"].tolist()[0] == 0


@pytest.mark.slow
def test_stopped_rollouts_wait_and_go_on(late, tmp_path):
    run = wb.Run(late, METHODS["partial_rollouts"], out=tmp_path / "run", **SIZES)
    go(run, 4)
    table = run.record.rollouts().set_index(["round", "problem", "draw"]).sort_index()
    rounds = run.record.rounds.set_index("round")
    went_on = 0
    for (number, problem, draw), row in table.iterrows():
        waits = (table.loc[(number, problem)]["status"] == "stopped").any()
        assert not (waits and row["selected"])
        if row["status"] == "stopped":
            assert row["reward"] == 0 and not row["correct"]
        after = (number + 1, problem, draw)
        if waits and number < 4:
            # Its problem comes again in the next round, and the response begins with what was
            # there, but for the last token of one that had ended.
            again = table.loc[after]
            assert again["kept"] == row["length"] - (row["status"] != "stopped")
            if row["status"] == "stopped":
                assert again["text"].startswith(row["text"])
                went_on += 1
    assert went_on > 5
    stopped = table[table["status"] == "stopped"]
    new = (stopped["length"] - stopped["kept"]).groupby("round").sum()
    assert rounds.loc[new.index, "tokens_stopped"].tolist() == new.tolist()
    assert rounds["status_stopped"].sum() == len(stopped)


def test_costs_count_what_was_read_sampled_and_stopped():
    """Two rollouts share a masked prefix of 3, one keeps 2 of 5 tokens, one was stopped; of two
    the engine had sampled 7 and 1 more than stand in the table.
    """
    rollouts = hand_made([1.0, 0.0, 1.0, 0.0], ["a", "a", "b", "b"], lengths=[4, 5, 5, 6])
    prompt = Ragged.of([[1] * 8, [1] * 8, [2] * 5, [2] * 5], np.int32)
    plan = Plan(prefixes=Ragged.of([[1] * 3, [1] * 3, [], []], np.int32))
    table = follow(rollouts.assign(prompt=prompt, round=np.ones(4, int)), plan)
    assert table["read"].tolist() == [3, 0, 0, 0]
    table = table.assign(
        kept=np.array([0, 0, 2, 0]),
        lost=np.array([0, 7, 0, 1]),
        status=["ok", "wrong", "ok", "stopped"],
        selected=np.zeros(4, bool),
        trained=np.zeros(4, bool),
        gradient=np.ones(4, bool),
        advantage=np.zeros(4),
        logprob_diff=np.full(4, np.nan),
    )
    row = round_stats(1, table, [], 100, 1e-6)
    # Responses, what was lost, and two bare prompts.
    assert row["tokens_sampled"] == (4 + 5 + 3 + 6) + (7 + 1) + (5 + 5)
    assert (row["tokens_read"], row["tokens_stopped"], row["status_stopped"]) == (3, 6 + 8, 1)
    assert row["flops_generate"] == 2 * 100 * (36 + 3)


# Bad input


@pytest.mark.parametrize(
    "make, message",
    [
        ("long", r"^course: .*would start with \d+ tokens, and a response has \d+ at most"),
        ("few", "^course: .*1 prefixes came for 24 rollouts"),
        ("words", "^course: its stop returned"),
        ("everything", "^course: Anything stopped all 24 rollouts of a request"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_one_error_and_nothing_is_lost(
    late, make, message, tmp_path
):
    run = wb.Run(late, methods.grpo(4).but(course=Anything(make)), out=tmp_path / "run", **SIZES)
    with pytest.raises(ValueError, match=message):
        go(run, 4)
    if make == "everything":
        assert run.record.rounds["round"].tolist() == [1, 2]


def test_what_a_policy_cannot_give_is_refused_before_a_model_is_loaded(late):
    loaded = []
    lab = replace(late, make_policy=lambda: loaded.append(1), lacks=frozenset({"stopping"}))
    with pytest.raises(ValueError, match=r"course=Partial\(\) needs stopping rollouts while they"):
        wb.Run(lab, methods.partial_rollouts())
    wb.Run(lab, methods.prefix_sampling(), **SIZES)
    assert not loaded
    assert wb.labs.tiny(pool=8).lacks == frozenset()
    with pytest.raises(ValueError, match=r"^course=.*must|^course=.*needed"):
        methods.grpo().but(course=selectors.All())


ENGINES = {
    "vllm": (labs.transformers, {"engine": "vllm"}),
    "unsloth": (labs.unsloth, {}),
    "unsloth without vllm": (labs.unsloth, {"fast_inference": False}),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_do_all_but_to_show_hidden_states(engine, monkeypatch):
    """Neither a GPU nor a model is there: all of this is said before one is loaded."""
    monkeypatch.setattr(labs.checks, "check_gpu", lambda device, who: "cuda")
    for check in ("check_vllm", "check_packages", "check_model"):
        monkeypatch.setattr(labs.checks, check, lambda *given: None)
    make, options = ENGINES[engine]
    problems = [replace(problem, answer="8") for problem in PROBLEMS]
    lab = make("nobody/none", Pool(problems), **options)
    need = "hidden states of growing rollouts"
    reason = rf"^course=.* needs {need} .*, which the lab \w+:nobody/none does not provide"
    with pytest.raises(ValueError, match=reason):
        wb.Run(lab, METHODS["arrol"], problems_per_round=2)
    for name in ("prefix_sampling", "prefix_rl", "spec_rl", "partial_rollouts", "duet"):
        wb.Run(lab, METHODS[name], problems_per_round=2)


def test_a_course_that_never_ends_a_rollout_leaves_it_to_the_limit():
    policy = tiny_policy()
    policy.end_ids = []
    steps = []
    watch = Plan(stop=lambda growing: steps.append(growing.step) or np.zeros(len(growing.rows)))
    found = policy.generate(PROBLEMS, [1, 1], Sampling(max_new_tokens=7), 0, watch)
    assert found.lengths.tolist() == [7, 7] and found.truncated.all()
    assert steps == [1, 2, 3, 4, 5, 6]


def test_what_no_engine_and_no_batch_can_do():
    policy = tiny_policy()
    ended = Plan(prefixes=Ragged.of([[policy.end_ids[0]], [5]], np.int32))
    with pytest.raises(ValueError, match="a prefix holds a token that ends responses"):
        policy.generate(PROBLEMS, [1, 1], SAMPLING, 0, ended)
    watch = Plan(stop=lambda growing: np.zeros(len(growing.rows)))
    policy.rows = 3
    with pytest.raises(ValueError, match=r"rows=3: .*this one has 4"):
        policy.generate(PROBLEMS, [2, 2], SAMPLING, 0, watch)
    states = Plan(stop=lambda growing: growing.states()[:, 0] > 9)
    with pytest.raises(ValueError, match="hidden states, which are there from the second token"):
        policy.generate(PROBLEMS, [1, 1], SAMPLING, 0, states)


@pytest.mark.parametrize("name", METHODS)
def test_trl_and_verl_refuse_a_course(name):
    settings = pytest.importorskip("workbench.verl.settings")
    with pytest.raises(ValueError, match=r"^(course|curriculum)=.* needs "):
        settings.check(METHODS[name])
    from examples.verl_loop import PROVIDES

    with pytest.raises(ValueError, match="needs"):
        METHODS[name].check_provided(PROVIDES, "this loop")
    provided = pytest.importorskip("workbench.trl.setup").PROVIDES
    with pytest.raises(ValueError, match=r"^course=.* needs .*, which TRL does not provide"):
        METHODS[name].but(curriculum=curricula.ShuffledEpochs()).check_provided(provided, "TRL")


@pytest.mark.parametrize("value", [method.course for method in METHODS.values()])
def test_every_course_keeps_the_contract(value):
    wb.check(value)


@pytest.mark.parametrize("number", [0, 2, 500])
def test_answers_of_a_file_are_of_no_round_of_this_run(number, tmp_path):
    """They teach no success rate, whatever round of the earlier run they are from."""
    prompt = Ragged.of([[5, 6]] * 2, np.int32)
    table = finished(["a"] * 2, [True, True], [4, 4], number=number).assign(prompt=prompt)
    wb.replay.save_answers(table, tmp_path / "answers")
    replay = wb.replay.Experience(each=2, path=str(tmp_path / "answers"))
    context = replace(HERE, round=2)
    new = finished(["a"] * 2, [False, False], [4, 4], number=2, gradient=np.zeros(2, np.int64))
    new = new.assign(prompt=prompt, truth=new.correct)
    joined, _ = replay.join(new, np.arange(2), replace(context, policy=tiny_policy()))
    assert joined.round.tolist() == [2, 2, 0, 0]
    assert joined["truth"].tolist() == [False, False, True, True]
    rates = SuccessRates("last")
    rates.feedback(joined, context)
    assert rates.learner.estimate([Problem("a", "8+5-4-1=", "")], context).tolist() == [0.0]


def test_a_file_of_answers_has_no_answer_that_began_with_a_part_of_one(tmp_path):
    """The response behind a prefix answers another prompt, and a run without a course has none."""
    zeros = np.zeros(3, dtype=np.int64)
    table = finished(["a"] * 3, [True, True, False], [4] * 3, start=np.array([0, 1, 0]))
    table = table.assign(prefix=np.array([0, 9, 0]), reward_correct=table.reward)
    wb.replay.save_answers(table, tmp_path / "answers")
    replay = wb.replay.Experience(each=1, path=str(tmp_path / "answers"))
    assert len(replay.stored) == 1 and "start" not in replay.stored
    new = finished(["a"] * 3, [False] * 3, [4] * 3, gradient=zeros, reward_tags=zeros / 1.0)
    with pytest.raises(ValueError, match="path"):
        replay.join(new, np.arange(3), HERE)
