"""Reward functions in the TRL trainer: what is correct, None, and rounds with nothing to learn."""

import functools
import logging
import math
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl", reason="trl is not installed: pip install 'workbench-rlvr[trl]'")

import trl_cases
from small_methods import small
from trl_cases import (
    boxed,
    dataset,
    logged,
    refused,
    right,
    same,
    trained,
    trainer,
    weights,
)

from workbench import methods
from workbench.adapters import Driver
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.rounds import choose
from workbench.rules.advantages import Posterior
from workbench.trl.table import Verdict, weighted_sum

pytestmark = pytest.mark.slow

# Methods with a course are refused, since TRL samples by itself.
EVERY = [
    name
    for name in (*methods.PAPERS, *methods.MORE_PAPERS)
    if getattr(methods, name)().course is None
]
READING_VERDICTS = [name for name in EVERY if small(name).reads_verdict]


# What is correct


def trained_on_two_rewards(out, name, accuracy_first, steps):
    """A trainer after a run with a format and an accuracy reward, None in the first round."""
    verdicts = {}  # step -> verdict on each rollout

    def accuracy(completions, answer, trainer_state, **_):
        step = trainer_state.global_step
        if step == 0:
            return [None] * len(completions)
        values = right(completions, answer)
        verdicts.setdefault(step, []).extend(values)
        return values

    def form(completions, trainer_state, **_):
        return boxed(completions) if trainer_state.global_step else [None] * len(completions)

    one = trainer(
        out,
        small(name),
        options={"correct": "accuracy"},
        reward=[accuracy, form] if accuracy_first else [form, accuracy],
        reward_weights=[0.8, 0.2] if accuracy_first else [0.2, 0.8],
        max_steps=steps,
    )
    before = weights(one)
    trained(one)
    assert not same(before, weights(one))
    # What is logged as correct is the share among all that was sampled in the step.
    shares = [np.mean(values) for values in verdicts.values()]
    assert logged(one, "workbench/correct")[0] == pytest.approx(shares)
    names = {key for row in one.state.log_history for key in row if key.startswith("workbench/")}
    assert names <= explained_metrics()
    return one


@functools.cache
def explained_metrics():
    """The names in the first column of the guide's table of metrics."""
    guide = Path(__file__).parents[1] / "docs/guides/trl.md"
    rows = re.findall(r"^\| (`workbench/.*?) \|", guide.read_text(), re.MULTILINE)
    names = set()
    for row in rows:
        for name in re.findall(r"`([^`]*)`", row):
            # `..._error` has the beginning of the name before it.
            stem = "workbench/scheduler" if name.startswith("...") else ""
            names.add(stem + name.removeprefix("..."))
    return names


# What every method decides is compared in `test_adapters.py`. These ask something of TRL that no
# other does: replay, weights, advantages of tokens, a curriculum, a loss of their own.
IN_FULL = (
    *("grpo", "dapo", "ar3po", "knapsack", "aero", "cbs"),
    *("speed", "pruned", "rl_zvp", "rlep", "exgrpo", "adarft", "cispo", "sapo"),
)


@pytest.mark.long
@pytest.mark.parametrize("place, name", enumerate(IN_FULL))
def test_methods_train_on_format_and_accuracy(place, name, tmp_path):
    """In either order by turns, and after a round in which every reward was None."""
    # Of the second round CBS keeps no row that has an advantage.
    steps = 3 if name == "cbs" else 2
    one = trained_on_two_rewards(tmp_path, name, place % 2 == 0, steps)
    trained_on, unscored = logged(one, "workbench/trained", "workbench/unscored")
    assert trained_on[0] == 0 and max(trained_on) > 0
    assert unscored[0] > 0 and not any(unscored[1:])


@pytest.mark.parametrize("name", sorted({*EVERY} - {*READING_VERDICTS}))
def test_a_method_that_needs_no_verdict_reads_none(name):
    """It decides the same whatever is correct."""
    method = small(name)
    rng = np.random.default_rng(0)
    rollouts = Rollouts(
        np.repeat(["a", "b", "c"], 4),
        reward=rng.integers(0, 2, 12).astype(float),
        response=Ragged.of([[5, 6]] * 12, np.int32),
        entropy=rng.random(12),
        round=np.ones(12, dtype=np.int64),
        columns={"gradient": np.ones(12, dtype=bool), "uses": np.zeros(12, dtype=np.int64)},
    )
    context = Context(seed=0, round=1, max_new_tokens=24)
    rounds = []
    for verdict in (np.zeros(12, dtype=bool), np.arange(12) % 3 == 0):
        table = rollouts.assign(correct=verdict, clip_ratio=np.zeros(12))
        rounds.append(choose(method.clone(), table, np.arange(12), context))
    first, second = rounds
    assert np.array_equal(first.rows, second.rows)
    assert np.array_equal(first.advantages, second.advantages)


@pytest.mark.parametrize("name", READING_VERDICTS)
def test_a_method_that_asks_what_is_correct_must_be_told(name, tmp_path):
    settings = {"reward": [boxed, right], "reward_weights": [0.2, 0.8]}
    refused(tmp_path, small(name), "^correct=None: .*correct='boxed'", **settings)


@pytest.mark.parametrize("name", ["pods", "cbs"])
def test_a_method_that_asks_for_no_verdict_logs_none(name, tmp_path):
    settings = {"reward": [boxed, right], "reward_weights": [0.2, 0.8]}
    one = trained(trainer(tmp_path, small(name), max_steps=1, **settings))
    assert logged(one, "workbench/reward")[0]
    assert logged(one, "workbench/correct", "workbench/all_positive") == [[], []]


def half(completions, answer, **_):
    """A reward function that gives 0.5 for a right answer."""
    return [value / 2 for value in right(completions, answer)]


def short(completions, **_):
    """A length reward."""
    return [-float(len(text)) for text in completions]


@pytest.mark.parametrize("name, function, given", [("aero", half, "0.5"), ("ar3po", short, "-")])
def test_rewards_other_than_0_and_1_do_not_say_what_is_correct(name, function, given, tmp_path):
    method = small(name)
    one = trainer(tmp_path, method, reward=function)
    before = weights(one)
    match = rf"^correct=None: a reward is {given}.* correct='{function.__name__}'"
    with pytest.raises(ValueError, match=match):
        one.train()
    assert same(before, weights(one))  # nothing has been trained on


@pytest.mark.long
@pytest.mark.parametrize("name", ["dapo", "speed"])
@pytest.mark.parametrize("reward", [[short], [boxed, short]], ids=["one", "two"])
def test_dynamic_sampling_goes_by_graded_rewards(name, reward, tmp_path):
    weighed = {"reward_weights": [1.0, 0.1]} if len(reward) == 2 else {}
    one = trainer(tmp_path, small(name), reward=reward, **weighed)
    before = weights(one)
    trained(one)
    assert not same(before, weights(one))
    selected, ratio, correct = logged(
        one, "workbench/selected", "workbench/effective_gradient_ratio", "workbench/correct"
    )
    # Only problems whose responses differ in length are trained on.
    assert min(selected) > 0 and ratio == [1, 1]
    assert correct == []


def test_a_number_says_from_which_reward_a_rollout_is_correct(tmp_path):
    one = trained(
        trainer(tmp_path, small("ar3po"), reward=half, options={"correct": 0.5}, max_steps=1)
    )
    (correct,), (mean,) = logged(one, "workbench/correct", "workbench/reward")
    assert correct == pytest.approx(2 * mean) and correct > 0


def test_a_named_reward_function_judges_by_more_than_0(tmp_path):
    options = {"correct": "half"}
    one = trainer(tmp_path, small("dapo"), reward=half, options=options)
    before = weights(one)
    trained(one)
    assert not same(before, weights(one))
    assert logged(one, "workbench/correct")[0] == pytest.approx(
        [2 * value for value in logged(one, "rewards/half/mean")[0]]
    )


def test_a_function_judges_by_all_rewards(tmp_path):
    options = {"correct": lambda rewards: rewards[:, 1] >= 0.5}
    one = trained(trainer(tmp_path, small("ar3po"), reward=[boxed, half], options=options))
    assert max(logged(one, "workbench/correct")[0]) > 0


def test_a_verdict_by_each_rule(caplog):
    nan = math.nan
    one = Verdict(None, ["only"], needed=True)
    assert one(np.array([[0.0], [1.0], [nan]]), first=True).tolist() == [False, True, False]
    with pytest.raises(ValueError, match=r"^correct=None: a reward is 0\.2"):
        one(np.array([[0.2], [1.0]]), first=True)
    # Later on an error would cost all that was learnt, so it is a warning, once.
    for _ in range(2):
        assert one(np.array([[0.2], [1.5]]), first=False).tolist() == [False, True]
    assert caplog.text.count("Until then 1 or more is") == 1

    unread = Verdict(None, ["only"], needed=False)
    assert unread(np.array([[1.0]]), first=True).tolist() == [True]
    # What was graded once stays so, whatever the rewards of a later round are.
    for reward in (0.2, 1.0):
        assert np.isnan(unread(np.array([[reward]]), first=True)).all()
    assert not unread.known
    assert not Verdict(None, ["a", "b"], needed=False).known

    named = Verdict("b", ["a", "b"], needed=True)
    scores = np.array([[1.0, -1.0], [0.0, 0.5], [0.0, nan]])
    assert named(scores, first=True).tolist() == [False, True, False]


@pytest.mark.parametrize("correct", ["accuracy", ["right"], 0.5, "short"])
def test_what_correct_may_not_be(correct, tmp_path):
    functions = {"0.5": [boxed, right], "short": [short, short]}.get(str(correct), right)
    refused(tmp_path, small("dapo"), "^correct=", reward=functions, options={"correct": correct})


def test_a_posterior_knows_which_reward_is_a_success(tmp_path):
    functions = [boxed, right]
    options = {"correct": "right"}
    one = trainer(tmp_path, small("aero"), reward=functions, options=options, max_steps=1)
    with pytest.raises(ValueError, match="bounds="):
        trained(one)
    wider = small("aero").but(advantage=Posterior(bounds=(0, 2)))
    trained(trainer(tmp_path, wider, reward=functions, options=options, max_steps=1))


# Rounds without anything to train on


def always(completions, **_):
    return [1.0] * len(completions)


def test_a_round_with_nothing_to_train_on_is_warned_of_once(tmp_path, caplog):
    one = trainer(tmp_path, methods.dapo(4, overlong=0), reward=always, max_steps=2)
    before = weights(one)
    trained(one)
    assert same(before, weights(one))
    warnings = [record for record in caplog.records if "nothing to train on" in record.message]
    assert [record.levelno for record in warnings] == [logging.WARNING]
    assert "48 rollouts with a reward, 48 of them correct, 0 were selected" in warnings[0].message
    assert not any(value is None for row in one.state.log_history for value in row.values())


@pytest.mark.parametrize("name", ["grpo", "dapo", "pods"])
@pytest.mark.parametrize("pairs", [((0.1, 0.6), (0.7, 0.0)), ((0.7, -0.7), (0.1, -0.1))])
def test_parts_that_sum_to_the_same_are_nothing_to_train_on(name, pairs, tmp_path, caplog):
    def first(completions, **_):
        return [pairs[i % 2][0] for i in range(len(completions))]

    def second(completions, **_):
        return [pairs[i % 2][1] for i in range(len(completions))]

    assert np.float32(0.1) + np.float32(0.6) != np.float32(0.7)
    one = trainer(tmp_path, small(name), reward=[first, second], max_steps=1)
    before = weights(one)
    trained(one)
    assert same(before, weights(one))
    assert "nothing to train on" in caplog.text


def test_ten_rounds_from_the_start_with_nothing_to_train_on_are_an_error(tmp_path):
    settings = {"max_steps": 12, "max_completion_length": 4, "data": dataset(64)}
    one = trainer(tmp_path, methods.grpo(4), reward=always, **settings)
    with pytest.raises(RuntimeError, match="Round 10"):
        one.train()
    assert one.state.global_step == 9


def test_a_run_that_has_learnt_may_come_to_rest(caplog):
    empty = _table(trained=False)
    driver = Driver(methods.grpo(), seed=0)
    driver.begin(1)
    driver.check_not_empty(_table(trained=True), "")
    for number in range(2, 12):
        driver.begin(number)
        driver.check_not_empty(empty, "")
    assert caplog.text.count("nothing to train on") == 1
    driver.check_not_empty(_table(trained=True), "")
    assert driver.empty_rounds == 0


def _table(trained):
    rollouts = trl_cases.hand_made_round().rollouts
    flags = np.full(7, trained)
    return rollouts.assign(trained=flags, selected=flags, age=np.zeros(7, dtype=np.int64))


# Rewards of None


def test_a_round_of_none_rewards_warns_and_goes_on(tmp_path, caplog):
    calls = []

    def absent_at_first(completions, answer, **_):
        calls.append(len(completions))
        if len(calls) == 1:
            return [None] * len(completions)
        return right(completions, answer)

    one = trainer(tmp_path, methods.grpo(4), reward=absent_at_first, max_steps=3)
    before = weights(one)
    trained(one)
    assert not same(before, weights(one))
    assert "0 rollouts with a reward" in caplog.text
    names = ("workbench/unscored", "workbench/rollouts", "workbench/trained")
    unscored, sampled, counts = logged(one, *names)
    assert unscored == [16, 0, 0]
    assert sampled == [16, 16, 16]
    assert counts[0] == 0
    assert max(counts) > 0


def test_rollouts_without_a_reward_are_left_out(tmp_path):
    def some(completions, answer, **_):
        values = right(completions, answer)
        return [None if len(text) % 3 == 0 else v for text, v in zip(completions, values)]

    one = trainer(tmp_path, methods.grpo(4), reward=some, max_steps=1)
    seen = []
    make = one.micro_batches
    one.micro_batches = lambda outcome, *rest: seen.append(outcome) or make(outcome, *rest)
    trained(one)
    rollouts = seen[0].rollouts
    assert not any(len(text) % 3 == 0 for text in rollouts.text)
    assert 0 < len(rollouts) < 16
    assert logged(one, "workbench/unscored")[0] == [16 - len(rollouts)]
    assert np.array_equal(seen[0].rows, np.arange(len(rollouts)))
    for problem in set(rollouts.problem):
        draws = rollouts.draw[rollouts.problem == problem]
        assert draws.tolist() == list(range(len(draws)))


def test_rewards_are_summed_as_trl_sums_them():
    parts = np.array([[1, 1], [1, np.nan], [np.nan, np.nan]], dtype=np.float32)
    found = weighted_sum(parts, np.array([0.8, 0.2], np.float32), np.zeros(3))
    assert np.array_equal(found, np.float32([1.0, 0.8, np.nan]), equal_nan=True)
