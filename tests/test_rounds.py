"""One round, played by hand: what the slots return is checked, and each mistake names its slot."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import workbench as wb
from workbench.problems import Problem
from workbench.rollouts import Context, NonFinite, Ragged, Rollouts
from workbench.rounds import play
from workbench.rules.advantages import LeaveOneOut
from workbench.slots import More, Selection, Slot

PROBLEMS = [Problem(key, f"{key}?", "1") for key in "ab"]
CONTEXT = Context(round=3)
# The allocator's two rollouts of each problem have these rewards, so the advantages of
# `LeaveOneOut` are 1, -1 for problem a, and 0, 0 for problem b.
REWARDS = {"a": [1.0, 0.0], "b": [1.0, 1.0]}


def sampled(problems, counts, before, stage):
    """Verified rollouts as a trainer hands them over; those of other problems have reward 0."""
    ids = np.repeat([problem.id for problem in problems], counts)
    draw = np.concatenate([first + np.arange(n) for first, n in zip(before, counts)]).astype(int)
    reward = [REWARDS.get(key, [])[i : i + 1] or [0.0] for key, i in zip(ids.tolist(), draw)]
    ones = np.ones(len(ids), dtype=np.int64)
    return Rollouts(
        problem=ids,
        reward=np.array(reward).reshape(-1),
        draw=draw,
        stage=stage * ones,
        round=CONTEXT.round * ones,
        response=Ragged.of([[7] * (1 + i % 2) for i in range(len(ids))], np.int32),
        columns={"gradient": ones == 1, "uses": 0 * ones},
    )


def no_more(n, problems):
    return []


def played(problems=PROBLEMS, more=no_more, sample=sampled, **slots):
    """The round of a method with these slots, otherwise two rollouts each and all trained on."""
    plain = {"allocator": wb.allocators.Uniform(2), "advantage": LeaveOneOut()}
    method = wb.Method("by hand", **{**plain, **slots})
    return play(method, problems, CONTEXT, sample, more)


@dataclass
class Selecting(Slot):
    """A selector that returns what it is given."""

    selection: Any

    def select(self, rollouts, context):
        return self.selection


@dataclass
class Asking(Slot):
    """An allocator with these requests and these rows at the end."""

    requests: Any
    rows: Any = None

    def allocate(self, problems, context):
        for request in self.requests:
            _ = yield request
        return self.rows


@dataclass
class Joining(Slot):
    """A replay that returns what a function makes of the table and the candidates."""

    function: Any

    def join(self, rollouts, candidates, context):
        return self.function(rollouts, candidates)


@dataclass
class Valued(Slot):
    """An advantage that is what a function makes of the rollouts."""

    function: Any

    def __call__(self, rollouts, context):
        return self.function(rollouts)


def selecting(rows, **parts):
    return Selecting(Selection(rows, **parts))


# What is right


def test_a_plain_round_trains_on_everything():
    outcome = played()
    assert outcome.rollouts.problem.tolist() == ["a", "a", "b", "b"]
    assert outcome.rows.tolist() == [0, 1, 2, 3]
    assert outcome.advantages.tolist() == [1, -1, 0, 0]
    assert outcome.weights is None
    assert outcome.mini_batch is None


@pytest.mark.parametrize(("baseline", "calls"), [("group", 1), ("selection", 2), ("mixed", 2)])
def test_advantages_are_taken_no_more_often_than_the_baseline_asks_for(baseline, calls):
    seen = []

    def watched(rollouts):
        seen.append(len(rollouts))
        return np.zeros(len(rollouts))

    played(advantage=Valued(watched), selector=selecting([0, 1, 2], baseline=baseline))
    assert seen == [4, 3][:calls]


def test_unsorted_rows_take_their_weights_along():
    columns = {"score": [4, 3, 2, 1]}
    selector = selecting([3, 0, 1], weights=[0.3, 0, 2], columns=columns, mini_batch=2)
    outcome = played(selector=selector)
    assert outcome.rows.tolist() == [0, 1, 3]
    assert outcome.weights.tolist() == [0, 2, 0.3]
    assert outcome.advantages.tolist() == [1, -1, 0]
    assert outcome.rollouts["score"].tolist() == [4, 3, 2, 1], "of every candidate, in table order"
    assert outcome.mini_batch == 2


@pytest.mark.parametrize(
    "rows", [np.array([True, False, False, True]), [True, False, False, True], [3, 0], (0, 3)]
)
def test_rows_are_numbers_or_a_mask(rows):
    outcome = played(selector=selecting(rows, weights=[1.0, 1.0]))
    assert outcome.rows.tolist() == [0, 3]
    assert outcome.rows.dtype == np.int64


def test_rows_count_among_the_candidates():
    """The allocator keeps rows 1 and 3 of four, the selector the second of these two."""
    allocator = Asking([np.array([2, 2])], rows=np.array([3, 1]))
    outcome = played(allocator=allocator, selector=selecting([1], columns={"score": [10, 30]}))
    assert outcome.rows.tolist() == [3]
    score = outcome.rollouts["score"]
    assert score[[1, 3]].tolist() == [10, 30]
    assert np.isnan(score[[0, 2]]).all(), "thrown away by the allocator"


@pytest.mark.parametrize("rows", [[], np.zeros(4, bool), np.empty(0)])
def test_no_rows_are_a_round_without_training(rows):
    outcome = played(selector=selecting(rows))
    assert outcome.rows.tolist() == []
    assert outcome.advantages.tolist() == []


def test_an_allocator_may_keep_nothing_at_all():
    outcome = played(allocator=Asking([np.array([2, 2])], rows=[]))
    assert len(outcome.rollouts) == 4
    assert outcome.rows.tolist() == []


def test_an_allocator_is_told_of_further_problems_and_of_all_rollouts():
    seen = []

    class Curious(Slot):
        def allocate(self, problems, context):
            rollouts = yield [2, 0]
            seen.append(rollouts.problem.tolist())
            problems = yield More(2)
            seen.append([problem.id for problem in problems])
            rollouts = yield [1, 1, 1]
            seen.append(rollouts.problem.tolist())

    outcome = played(allocator=Curious(), more=lambda n, problems: [Problem("c", "c?", "1")])
    assert seen == [["a", "a"], ["a", "b", "c"], ["a", "a", "a", "b", "c"]]
    assert outcome.rollouts.stage.tolist() == [0, 0, 1, 1, 1]
    assert outcome.rollouts.draw.tolist() == [0, 1, 2, 0, 0]


def test_a_later_request_for_nothing_asks_nobody_to_sample():
    """Trainers of other libraries cannot sample nothing."""
    asked = []

    def counting(problems, counts, before, stage):
        asked.append(counts.tolist())
        return sampled(problems, counts, before, stage)

    outcome = played(sample=counting, allocator=Asking([[2, 2], [0, 0], [1, 0]]))
    assert asked == [[2, 2], [1, 0]]
    assert outcome.rollouts.stage.tolist() == [0, 0, 0, 0, 2]


def test_the_selector_sees_advantages_of_tokens_as_their_mean():
    def fading(rollouts):
        rows = [np.arange(n, 0, -1.0) for n in rollouts.lengths]
        return Ragged.of(rows, np.float64)

    class Watching(Slot):
        def select(self, rollouts, context):
            assert rollouts["advantage"].tolist() == [1, 1.5, 1, 1.5]
            assert rollouts["age"].tolist() == [0, 0, 0, 0]
            return Selection([1, 2])

    outcome = played(advantage=Valued(fading), selector=Watching())
    assert outcome.advantages.values.tolist() == [2, 1, 1]
    assert outcome.advantages.lengths.tolist() == [2, 1]


def test_old_responses_join_behind_those_of_the_round():
    def with_one_of_round_1(rollouts, candidates):
        old = rollouts.take([0]).assign(round=[1])
        table = Rollouts.concat([rollouts, old])
        return table, np.append(candidates[1:], len(rollouts))

    outcome = played(replay=Joining(with_one_of_round_1))
    assert outcome.rows.tolist() == [1, 2, 3, 4]
    assert outcome.advantages.tolist() == [-1, 0, 0, 1]


def test_the_selector_is_told_ages_and_everything_that_was_sampled():
    """The allocator drops problem b, and a response of round 1 joins in round 3."""
    seen = []

    def with_one_of_round_1(rollouts, candidates):
        old = rollouts.take([0]).assign(round=[1])
        return Rollouts.concat([rollouts, old]), np.append(candidates, len(rollouts))

    class Watching(Slot):
        def select(self, rollouts, context):
            seen.append((rollouts["age"].tolist(), context.sampled.problem.tolist()))
            return Selection([0])

    asking = Asking([[2, 2]], rows=[0, 1])
    played(allocator=asking, replay=Joining(with_one_of_round_1), selector=Watching())
    assert seen == [([0, 0, 2], ["a", "a", "b", "b"])]


# What is wrong: each message begins with the slot's name


@pytest.mark.parametrize(
    ("selection", "named"),
    [
        (None, "select"),
        (np.arange(2), "select"),
        *(
            (Selection(rows), "rows")
            for rows in (
                None,
                2,
                [[0, 1]],
                [[0], [1, 2]],
                [True, False],
                [0.0, 1.0],
                ["a"],
                [1, 4],
                [-1],
                [2, 0, 2, 2],
            )
        ),
        *(
            (Selection([0, 1], weights=weights), "weights")
            for weights in ([1.0], 1.0, [1, -0.1], [1, np.nan], [1, np.inf], ["1", "2"])
        ),
        (Selection([0], columns={"score": [1, 2]}), "score"),
        (Selection([0], columns={"score": list("wxyz")}), "score"),
        (Selection([0], columns={"reward": [0] * 4}), "reward"),
        (Selection([0], columns={"age": [0] * 4}), "age"),
        (Selection([0], columns=None), "columns"),
        (Selection([0], mini_batch=0), "mini_batch"),
        (Selection([0], baseline="pool"), "baseline"),
    ],
    ids=repr,
)
def test_a_wrong_selection_is_named(selection, named):
    with pytest.raises(ValueError, match=rf"^selector: .*{named}"):
        played(selector=Selecting(selection))


@pytest.mark.parametrize(
    "function",
    [
        lambda rollouts: None,
        lambda rollouts: 1.0,
        lambda rollouts: [1.0, 2.0],
        lambda rollouts: np.zeros((4, 1)),
        lambda rollouts: ["1"] * 4,
        lambda rollouts: Ragged.of([[1.0]] * len(rollouts), np.float64),
    ],
)
def test_a_wrong_advantage_is_named(function):
    with pytest.raises(ValueError, match=r"^advantage: "):
        played(advantage=Valued(function))


@pytest.mark.parametrize(
    "function, groups",
    [
        (lambda rollouts: [0, 0, np.nan, 0], {"b"}),
        (lambda rollouts: [0, -np.inf, 0, 0], {"a"}),
        (lambda rollouts: Ragged.of([[np.nan] * n for n in rollouts.lengths], float), {"a", "b"}),
    ],
)
def test_an_advantage_that_is_not_finite_tells_the_groups_that_caused_it(function, groups):
    with pytest.raises(NonFinite, match=r"^advantage: ") as error:
        played(advantage=Valued(function))
    assert set(error.value.rollouts.problem) == groups
    assert len(error.value.rollouts) == 2 * len(groups)


def test_an_advantage_that_is_wrong_only_for_what_is_kept_is_named():
    """Against the kept rows it is called again, with fewer rollouts."""
    only_of_four = Valued(lambda rollouts: np.zeros(4))
    with pytest.raises(ValueError, match=r"^advantage: "):
        played(advantage=only_of_four, selector=selecting([0, 1], baseline="selection"))


class Returning(Slot):
    """An allocator that returns its counts, as a plain function would."""

    def allocate(self, problems, context):
        return np.full(len(problems), 2)


class Endless(Slot):
    def allocate(self, problems, context):
        yield [1] * len(problems)
        while True:
            yield [0] * len(problems)


@pytest.mark.parametrize(
    ("allocator", "named"),
    [
        (Returning(), "allocate"),
        (Endless(), "1000 times"),
        (Asking([]), "no rollouts"),
        (Asking([[0, 0]]), "no rollouts"),
        (Asking([None]), "None"),
        (Asking([[10**9, 0]]), "1000000000 rollouts"),
        *(
            (Asking([counts]), "counts")
            for counts in (
                [2],
                2,
                [2, -1],
                [2, 1.5],
                [2, np.nan],
                [2, np.inf],
                ["2", "2"],
                [[2], [2, 2]],
            )
        ),
        *((Asking([[2, 2]], rows=rows), "rows") for rows in ([4], [1, 1], [True])),
    ],
)
def test_a_wrong_allocator_is_named(allocator, named):
    with pytest.raises(ValueError, match=rf"^allocator: .*{named}"):
        played(allocator=allocator)


@pytest.mark.parametrize(
    "function",
    [
        lambda table, rows: None,
        lambda table, rows: table,
        lambda table, rows: (rows, table),
        lambda table, rows: (table, None),
        lambda table, rows: (table, [0, 9]),
        lambda table, rows: (table, [0, 0]),
        lambda table, rows: (table.take([2, 3]), [0]),
        lambda table, rows: (table.take([3, 2, 1, 0]), [0]),
    ],
)
def test_a_wrong_replay_is_named(function):
    with pytest.raises(ValueError, match=r"^replay: "):
        played(replay=Joining(function))


@pytest.mark.parametrize(
    "problems", [[], None, ["a"], [PROBLEMS[0], PROBLEMS[1], PROBLEMS[0]]], ids=repr
)
def test_wrong_problems_are_named(problems):
    with pytest.raises(ValueError, match=r"^curriculum: "):
        played(problems=problems)


@pytest.mark.parametrize(
    "further",
    [None, [PROBLEMS[1]], [Problem("c", "", "")] * 2, [Problem(key, "", "") for key in "cde"]],
    ids=repr,
)
def test_wrong_further_problems_are_named(further):
    allocator = Asking([More(2), [2, 2]])
    with pytest.raises(ValueError, match=r"^curriculum: "):
        played(allocator=allocator, more=lambda n, problems: further)


class Greedy(Slot):
    """A curriculum that takes what it likes."""

    epoch = 0

    def __init__(self, size):
        self.size = size

    def choose(self, pool, n, context):
        return list(pool)[: self.size]


@pytest.mark.parametrize("size", [5, 3, 0])
@pytest.mark.slow
def test_a_curriculum_with_too_many_too_few_or_no_problems_is_named_in_a_run(lab, size):
    method = wb.methods.grpo(2).but(curriculum=Greedy(size))
    run = wb.Run(lab, method, problems_per_round=4, evaluate_every=0)
    with pytest.raises(ValueError, match=r"^curriculum: "):
        next(run.rounds(1, progress=False))
