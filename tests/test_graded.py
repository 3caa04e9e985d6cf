"""Rewards without a verdict, such as those of a reward model: what goes by them."""

import logging

import numpy as np
import pytest
from conftest import small_lab

import workbench as wb
from workbench import methods
from workbench.adapters import Driver
from workbench.catalogue.experience_replay import Fifo
from workbench.catalogue.ragen import GroupFilter
from workbench.catalogue.speed import Screening
from workbench.pools import Problem
from workbench.records.round_stats import round_stats
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.rounds import collect
from workbench.rules import allocators
from workbench.rules.allocators import DynamicSampling, Knapsack
from workbench.rules.rewards import Correct, Overlong
from workbench.utils.descriptions import describe
from workbench.verifiers import Scores, Verifier


def test_a_grade_at_the_bar_is_right():
    assert Scores.graded([0.4, 0.5, 0.6], solved=0.5).correct.tolist() == [False, True, True]
    assert not Scores.graded([0.4, 0.5, 1.0]).correct.any()


def drawn(allocator, rewards, judged=False, method=None):
    """The problems that an allocator goes on with; rewards by the name of the problem."""
    driver = Driver(method or methods.grpo(), seed=0)
    driver.begin(max_new_tokens=8)

    def sample(problems, counts, before, stage):
        names = np.repeat([problem.id for problem in problems], counts)
        given = np.concatenate(
            [rewards[p.id][first : first + n] for p, first, n in zip(problems, before, counts)]
        )
        scores = Scores.graded(given, solved=0.5 if judged else None)
        table = Rollouts(
            names,
            reward=scores.reward,
            correct=scores.correct,
            status=scores.status,
            response=Ragged.of([range(2 + i) for i in range(len(names))], np.int32),
        )
        return driver.score(table, problems, before, stage)

    problems = [Problem(name, name, "") for name in rewards]
    table, rows = collect(allocator, problems, Context(), sample, lambda n, problems: [])
    return sorted(set(table.problem[rows].tolist()))


GRADED = {
    "alike": [0.3] * 4,
    "near": [0.30, 0.31, 0.30, 0.31],
    "far": [0.1, 0.9, 0.2, 0.4],
    "low": [0.1, 0.2, 0.4, 0.0],
}


@pytest.mark.parametrize("allocator", [DynamicSampling(4, max_draws=1), Screening(2, 2)])
def test_without_a_verdict_groups_are_mixed_where_their_rewards_differ(allocator):
    assert drawn(allocator, GRADED) == ["far", "low", "near"]


@pytest.mark.parametrize(
    "make", [lambda **o: DynamicSampling(4, max_draws=1, **o), lambda **o: Screening(2, 2, **o)]
)
def test_a_threshold_on_the_spread(make):
    assert drawn(make(spread=0.05), GRADED) == ["far", "low"]
    with pytest.raises(ValueError, match=r"^spread=-1"):
        make(spread=-1)


def test_where_both_exist_the_verdict_is_read_and_not_the_reward():
    # All of "low" are wrong, although their rewards differ.
    assert drawn(DynamicSampling(4, max_draws=1), GRADED, judged=True) == ["far"]


def test_a_penalty_of_the_method_tells_no_group_apart():
    method = methods.dapo(4, max_draws=1)
    assert isinstance(method.reward[1], Overlong)
    assert drawn(method.allocator, {"alike": [0.3] * 4}, method=method) == []
    only_part = method.but(reward=(Correct(weight=2.0),))
    assert drawn(method.allocator, GRADED, method=only_part) == ["far", "low", "near"]


def test_it_is_said_once_that_rewards_decide(caplog):
    allocators._tell_of_rewards.cache_clear()
    for _ in range(2):
        drawn(DynamicSampling(4, max_draws=1), GRADED)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "without a verdict" in record.getMessage()


def test_what_needs_success_rates_must_be_told_what_is_correct():
    for value in (
        DynamicSampling(between=(0.2, 0.8)),
        DynamicSampling(within=Knapsack()),
        Fifo(8, positive=0.5),
    ):
        assert value.reads_verdict
    for value in (DynamicSampling(), Fifo(8), GroupFilter()):
        assert not value.reads_verdict
    method = methods.knapsack(4)
    with pytest.raises(ValueError, match=r"^allocator=Knapsack"):
        drawn(method.allocator, GRADED, method=method)


def test_a_description_has_the_threshold_only_where_it_is_set():
    """Records made before there was one are those of the same method."""
    assert "spread" not in describe(DynamicSampling())
    thresholded = methods.dapo(spread=0.1)
    assert describe(thresholded)["allocator"]["spread"] == 0.1
    assert wb.config.rebuild(describe(thresholded)).allocator == thresholded.allocator
    assert wb.config.method("dapo", None, {"allocator.spread": 0.1}).allocator.spread == 0.1


def test_shares_of_what_is_not_known_are_not_numbers():
    names = np.array(["a", "a"])
    marks = {
        "selected": np.ones(2, bool),
        "trained": np.ones(2, bool),
        "advantage": np.array([1.0, -1.0]),
        "gradient": np.ones(2, bool),
        "logprob_diff": np.zeros(2),
    }
    table = Rollouts(names, reward=[0.2, 0.4], status=["graded"] * 2, columns=marks)
    row = round_stats(0, table, [], 0, 0.0)
    assert np.isnan([row[name] for name in ("correct", "all_positive", "unsolved")]).all()
    assert row["reward"] == pytest.approx(0.3)


# In runs


class Brief(Verifier):
    """A reward for short responses; right is what earns at least `solved`."""

    def __init__(self, solved=None):
        super().__init__()
        self.solved = solved

    def judge(self, responses, answers):
        return Scores.graded([1 / (1 + len(text)) for text in responses], self.solved)


def brief_lab(solved=None, **options):
    from dataclasses import replace

    return replace(small_lab(**options), verifier=Brief(solved))


@pytest.mark.slow
def test_dynamic_sampling_trains_on_graded_rewards(tmp_path):
    lab = brief_lab(held_out=0)
    run = wb.Run(lab, methods.dapo(4), seed=0, out=tmp_path / "run", problems_per_round=4)
    rows = list(run.rounds(2))
    assert all(row["trained"] > 0 for row in rows)
    assert np.isnan(rows[0]["correct"])
    again = wb.Run.resume(tmp_path / "run", lab=lab)
    assert len(list(again.rounds(3))) == 1


@pytest.mark.slow
def test_a_run_of_success_rates_needs_a_threshold(tmp_path):
    settings = {"seed": 0, "problems_per_round": 4, "evaluate_every": 0}
    method = methods.knapsack(4)
    run = wb.Run(brief_lab(), method, out=tmp_path / "none", **settings)
    with pytest.raises(ValueError, match=r"^allocator=Knapsack"):
        list(run.rounds(1))
    run = wb.Run(brief_lab(0.045), method, out=tmp_path / "run", **settings)
    (row,) = run.rounds(1)
    assert 0 < row["correct"] < 1


def test_an_evaluation_counts_right_answers(tmp_path):
    run = wb.Run(brief_lab(), methods.dapo(4), out=tmp_path, problems_per_round=4)
    with pytest.raises(ValueError, match=r"^verifier: Brief"):
        list(run.rounds(1))
