"""The methods in TRL's trainer: TRL's own without a method, our arithmetic with one."""

import importlib
import inspect
import math
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("trl", reason="trl is not installed: pip install 'workbench-rlvr[trl]'")

import json

import trl
import trl_cases
from accelerate.commands.config.config_args import load_config_from_file
from peft import LoraConfig
from small_methods import small
from transformers import AutoTokenizer, TrainerCallback
from trl_cases import (
    dataset,
    dealt,
    gradient,
    hand_made_round,
    logged,
    own_gradient,
    same,
    shaken,
    trained,
    trainer,
    weights,
)

from workbench import methods
from workbench import trl as workbench_trl
from workbench.objectives import Objective, kl_estimate
from workbench.policies.transformers import TransformersPolicy
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.rounds import choose
from workbench.rules.advantages import GroupNormalized, OfRewards, group_normalized
from workbench.rules.replay import CorrectResponses
from workbench.slots import Selection, Slot
from workbench.trl.batches import BatchingTrainer, deal
from workbench.trl.compatibility import EXPECTED, check_overridden
from workbench.trl.sampling import RoundSampler, of_tensor
from workbench.trl.setup import LOSSES

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"

TRL_LOSSES = ("grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo")


# TRL's own


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"loss_type": "grpo", "entropy_coef": 0.01, "num_iterations": 2},
        {"beta": 0.1, "scale_rewards": "batch", "steps_per_generation": 4},
    ],
    ids=["default", "entropy", "penalty"],
)
def test_without_a_method_it_is_trl_to_the_last_bit(settings, tmp_path):
    settings = {"max_steps": 4, **settings}
    ours = trained(trainer(tmp_path, **settings))
    theirs = trained(trainer(tmp_path, make=trl.GRPOTrainer, **settings))
    assert same(weights(ours), weights(theirs))
    assert len(logged(ours, "loss")[0]) == 4
    for mine, other in zip(ours.state.log_history, theirs.state.log_history):
        assert _timeless(mine) == _timeless(other)
        assert not any(name.startswith("workbench/") for name in mine)


def _timeless(row):
    return {name: value for name, value in row.items() if not _is_time(name)}


def _is_time(name):
    return "time" in name or "per_second" in name


def test_grpo_with_trl_s_constants_is_trl_up_to_rounding(tmp_path):
    # The deviation of TRL is the sample's, plus 1e-4, and its clip range is symmetric.
    method = methods.grpo(4, clip=(0.2, 0.2)).but(advantage=GroupNormalized(ddof=1, eps=1e-4))
    ours = trained(trainer(tmp_path, method, max_steps=4))
    theirs = trained(trainer(tmp_path, make=trl.GRPOTrainer, max_steps=4))
    names = ("reward", "completions/mean_length")
    assert logged(ours, *names) == logged(theirs, *names)
    assert logged(ours, "loss")[0] == pytest.approx(logged(theirs, "loss")[0], abs=1e-5)
    mine, other = weights(ours), weights(theirs)
    assert all(torch.allclose(mine[name], other[name], atol=1e-4) for name in mine)
    mixed = [1 - ratio for ratio in logged(theirs, "frac_reward_zero_std")[0]]
    assert logged(ours, "workbench/effective_gradient_ratio")[0] == pytest.approx(mixed)
    assert logged(ours, "frac_reward_zero_std") == [[]]


# The rows to train on


def test_rows_are_dealt_evenly_and_each_once():
    lengths = np.array([4, 9, 1, 7, 3, 8, 2])
    parts = deal(lengths, 6, rng=None)
    assert [len(rows) for rows in parts] == [2, 1, 1, 1, 1, 1]
    assert lengths[np.concatenate(parts)].tolist() == sorted(lengths)
    order = np.concatenate(deal(lengths, 6, np.random.default_rng(0)))
    assert sorted(order) == list(range(7)) and lengths[order].tolist() != sorted(lengths)
    assert [len(rows) for rows in deal(np.empty(0), 2, None)] == [0, 0]


@pytest.mark.parametrize("loss", TRL_LOSSES)
def test_the_number_of_micro_batches_changes_no_gradient(loss, tmp_path):
    options = {"objective_from": "args"}
    bound = {"epsilon_high": 5.0} if loss == "cispo" else {}  # of the ratio itself
    settings = {"loss_type": loss, "options": options, **bound}
    one = shaken(trainer(tmp_path, methods.grpo(4), **settings))
    by_steps = {steps: gradient(one, steps) for steps in (1, 2, 3, 8)}
    assert by_steps[1].abs().max() > 1e-3
    if loss != "bnpo":  # a mean of micro-batches' means is defined by the split
        for steps in (2, 3, 8):
            assert torch.allclose(by_steps[steps], by_steps[1], atol=1e-6)
    for surrogate, aggregation in _objectives(loss):
        expected = own_gradient(one, aggregation, surrogate=surrogate)
        assert torch.allclose(by_steps[3], expected, atol=1e-5)


def _objectives(loss):
    """The objectives of methods that are TRL's loss of that name on the same advantages."""
    return [
        (surrogate, aggregation)
        for (surrogate, aggregation), name in LOSSES.items()
        if name == loss and aggregation != "group"
    ]


def test_the_mean_over_groups_is_that_of_the_objective(tmp_path):
    one = shaken(trainer(tmp_path, methods.grpo(4, objective=Objective(loss_aggregation="group"))))
    expected = own_gradient(one, "group")
    assert expected.abs().max() > 1e-3
    for steps in (1, 3):
        assert torch.allclose(gradient(one, steps), expected, atol=1e-5)
    assert not torch.allclose(own_gradient(one, "rollout"), expected, atol=1e-5)


def test_the_number_of_micro_batches_changes_no_penalty(tmp_path):
    method = methods.grpo(4, objective=Objective(loss_aggregation="rollout", kl=0.5))
    one = shaken(trainer(tmp_path, method), 0.03)
    by_steps = {steps: gradient(one, steps) for steps in (1, 3, 4)}
    one.beta = 0.0
    assert not torch.allclose(by_steps[1], gradient(one, 1), atol=1e-3)
    assert torch.allclose(by_steps[3], by_steps[1], atol=1e-5)
    assert torch.allclose(by_steps[4], by_steps[1], atol=1e-5)


def test_the_penalty_has_the_gradient_of_the_objective(tmp_path):
    # TRL's default multiplies the penalty by the ratio, which has a gradient of its own.
    method = methods.grpo(4, objective=Objective(loss_aggregation="rollout", kl=0.5))
    one = shaken(trainer(tmp_path, method), 0.03)
    outcome = hand_made_round(advantages=np.zeros(5))  # the penalty alone
    model, reference = one.accelerator.unwrap_model(one.model), one.ref_model
    model.zero_grad()
    rows = outcome.rollouts.take(outcome.rows)
    logprobs, old = (
        TransformersPolicy(each, one.processing_class).logprobs(rows) for each in (model, reference)
    )
    mask = torch.as_tensor(rows.response.mask())
    by_row = torch.where(mask, kl_estimate(logprobs, old.detach()), 0.0).sum(1) / mask.sum(1)
    (0.5 * (by_row * torch.as_tensor(rows["gradient"])).sum() / len(rows)).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert expected.abs().max() > 1e-3
    assert torch.allclose(gradient(one, 1, outcome), expected, atol=1e-5)


@pytest.mark.parametrize("aggregation", ["token", "rollout"])
def test_the_number_of_micro_batches_changes_no_entropy_bonus(aggregation, tmp_path):
    method = methods.grpo(4, objective=Objective(loss_aggregation=aggregation, entropy=0.5))
    one = shaken(trainer(tmp_path, method))
    outcome = hand_made_round(advantages=np.zeros(5))  # the bonus alone
    norms = [gradient(one, steps, outcome).norm().item() for steps in (1, 3, 5, 8)]
    assert norms[0] > 0.01
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-4)
    expected = _gradient_of_mean_entropy(one, outcome)
    assert torch.allclose(gradient(one, 3, outcome), -0.5 * expected, atol=1e-5)


def test_an_optimizer_step_averages_the_entropy_of_its_own_tokens(tmp_path):
    one = shaken(trainer(tmp_path, methods.grpo(4, objective=Objective(entropy=0.5))))
    outcome = hand_made_round(advantages=np.zeros(5))  # the bonus alone
    # Two steps with half of the round's tokens each, so the sum of both is twice that of one.
    halves = gradient(one, 4, outcome, of_step=2)
    assert torch.allclose(halves, 2 * gradient(one, 4, outcome), atol=1e-5)


@pytest.mark.parametrize("entropy", [0.1, 0.3])
def test_an_adaptive_entropy_bonus_ends_above_its_target(entropy, tmp_path):
    settings = {"use_adaptive_entropy": True, "entropy_target": 0.2}
    options = {"objective_from": "args"}
    one = shaken(trainer(tmp_path, methods.grpo(4), options=options, **settings))
    one.entropy_coef, one._last_world_entropy = 0.5, entropy
    outcome = hand_made_round(advantages=np.zeros(5))  # the bonus alone
    expected = -0.5 * _gradient_of_mean_entropy(one, outcome) if entropy < 0.2 else torch.zeros(())
    # A single micro-batch: after it TRL has measured the entropy anew.
    assert torch.allclose(gradient(one, 1, outcome), expected, atol=1e-5)


def _gradient_of_mean_entropy(one, outcome):
    """Of the mean over all tokens of the chosen rows; those of row 3 carry no gradient."""
    rows = outcome.rollouts.take(outcome.rows)
    batch = one.tokens(rows)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    width = batch["completion_ids"].shape[1]
    one.model.zero_grad()
    # TRL 1.16 patches `forward`, but without its labels it returns logits as ever.
    logits = one.model(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1]
    logprobs = torch.log_softmax(logits, dim=-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1) * batch["completion_mask"]
    entropy = entropy * torch.as_tensor(rows["gradient"])[:, None]
    (entropy.sum() / rows.lengths.sum()).backward()
    return torch.cat([parameter.grad.flatten() for parameter in one.model.parameters()])


def test_a_response_is_truncated_unless_an_end_or_a_padding_token_ends_it():
    """Ends are 1 and 2, padding is 0, and the prompts stand on the right of TRL's columns."""
    prompts = {"prompt_ids": torch.tensor([[0, 0, 8], [0, 7, 8], [6, 7, 8], [6, 7, 8]])}
    prompts["prompt_mask"] = torch.tensor([[0, 0, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]])
    responses = [[5, 1], [5, 2], [5, 0], [1, 5]]
    trainer = SimpleNamespace(
        draw=lambda rows: (prompts, (np.ones((4, 1)), responses, ["text"] * 4)),
        eos_token_ids=[1, 2],
        _tokenizer=SimpleNamespace(pad_token_id=0),
        corrects_sampler=False,
        off_policy_mask_threshold=None,
    )
    sampler = SimpleNamespace(
        trainer=trainer, driver=SimpleNamespace(needs=set()), rows={"a": {"prompt": "a?"}}
    )
    rollouts = RoundSampler._sample_share(sampler, ["a"] * 4)
    assert rollouts.truncated.tolist() == [False, False, False, True]
    assert [ids.tolist() for ids in rollouts.prompt] == [[8], [7, 8], [6, 7, 8], [6, 7, 8]]


def test_the_entropy_of_a_response_is_the_mean_over_its_own_tokens():
    rollouts = Rollouts(problem=["a", "b"], response=Ragged.of([[5], [5, 6, 7]], np.int32))
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    entropy = torch.tensor([[0.5, 9.0, 9.0], [0.25, 0.5, 1.5]])
    trainer = SimpleNamespace(
        model=None,
        tokens=lambda rollouts: {"completion_mask": mask},
        score_tokens=lambda *given, **options: (-entropy, entropy),
    )
    sampler = SimpleNamespace(trainer=trainer, driver=SimpleNamespace(needs={"token_entropy"}))
    found = RoundSampler._with_logprobs(sampler, rollouts)
    assert found.entropy.tolist() == [0.5, 0.75]
    assert found["token_entropy"].values.tolist() == [0.5, 0.25, 0.5, 1.5]


@pytest.mark.parametrize(
    "setting, computed",
    [
        ({}, [0]),
        ({"beta": 0.1}, [0, 1]),
        ({"_entropy_bonus_enabled": True}, [0, 1]),
        ({"aux_loss_enabled": True}, [0, 1]),
        ({"args": SimpleNamespace(top_entropy_quantile=0.2)}, [0, 1]),
        ({"loss_type": "bnpo"}, [0, 1]),
    ],
    ids=["plain", "penalty", "bonus", "auxiliary", "quantile", "bnpo"],
)
def test_a_row_without_advantage_is_computed_where_another_term_reaches_it(setting, computed):
    plain = {"beta": 0.0, "_entropy_bonus_enabled": False, "aux_loss_enabled": False}
    plain |= {"loss_type": "grpo", "args": SimpleNamespace(top_entropy_quantile=1.0)}
    chosen = {"gradient": np.array([True, True, False])}  # the last one is an old response
    trainer = SimpleNamespace(**plain | setting)
    advantages = Ragged.of([[-1.0], [0.0], [1.0]], np.float64)
    rows = BatchingTrainer._rows_to_compute(trainer, chosen, advantages)
    assert rows.tolist() == computed


def test_fillers_are_no_micro_batches_without_entropy(tmp_path):
    one = shaken(trainer(tmp_path, methods.grpo(4)))
    for steps in (1, 3, 8):
        one._metrics["train"].clear()
        gradient(one, steps)
        entropies = one._metrics["train"]["entropy"]
        assert len(entropies) == min(steps, one._metrics["train"]["workbench/computed"][0])
        assert min(entropies) > 0


@pytest.mark.parametrize("loss", ["grpo", "dapo", "sapo", "cispo"])
def test_a_weight_of_a_row_multiplies_its_loss(loss, tmp_path):
    row_weights = np.array([2.0, 0.5, 1.0, 3.0, 0.0])
    options = {"objective_from": "args"}
    bound = {"epsilon_high": 5.0} if loss == "cispo" else {}  # of the ratio itself
    settings = {"loss_type": loss, "options": options, **bound}
    one = shaken(trainer(tmp_path, methods.grpo(4), **settings))
    found = gradient(one, 3, hand_made_round(row_weights))
    folded = hand_made_round(advantages=hand_made_round().advantages * row_weights)
    assert torch.allclose(found, gradient(one, 1, folded), atol=1e-6)
    for surrogate, aggregation in _objectives(loss):
        weighted = hand_made_round(row_weights)
        expected = own_gradient(one, aggregation, weighted, surrogate=surrogate)
        assert torch.allclose(found, expected, atol=1e-5)


def test_advantages_of_tokens_reach_their_tokens(tmp_path):
    one = shaken(trainer(tmp_path, methods.grpo(4)))
    rows = hand_made_round().rollouts.take([0, 2, 3, 4, 6])
    values = np.random.default_rng(1).normal(size=rows.lengths.sum())
    outcome = hand_made_round(advantages=Ragged(values, rows.response.offsets))
    expected = own_gradient(one, "token", outcome)
    assert expected.abs().max() > 1e-3
    for steps in (1, 3):
        assert torch.allclose(gradient(one, steps, outcome), expected, atol=1e-5)


def test_a_constant_of_one_s_own_divides_the_loss(tmp_path):
    one = shaken(trainer(tmp_path, methods.dr_grpo(4, length=100)))
    expected = own_gradient(one, "constant", length=100)
    assert torch.allclose(gradient(one, 2), expected, atol=1e-6)
    assert not torch.allclose(own_gradient(one, "constant", length=24), expected, atol=1e-6)


class Weighing(Slot):
    """Keeps everything, with weights, and does not say what it needs."""

    def select(self, rollouts, context):
        return Selection(np.arange(len(rollouts)), weights=np.full(len(rollouts), 2.0))


class Sized(Slot):
    """Keeps everything, asks for steps of a size, and does not say what it needs."""

    def select(self, rollouts, context):
        return Selection(np.arange(len(rollouts)), mini_batch=4)


@pytest.mark.parametrize("selector", [Weighing(), Sized()])
def test_what_a_selector_returns_without_saying_so_is_refused(selector, tmp_path):
    with pytest.raises(ValueError, match=r"^selector: .*needs"):
        trainer(tmp_path, methods.grpo(4).but(selector=selector)).train()


# Every method


@pytest.mark.parametrize("name", methods.PAPERS)
def test_every_method_trains(name, tmp_path):
    one = trainer(tmp_path, small(name))
    before = weights(one)
    logs = []
    one.add_callback(_Keeps(one, logs))
    assert all(math.isfinite(loss) for loss in logged(trained(one), "loss")[0])
    outcome = logs[-1]
    rollouts = outcome.rollouts
    has_trained = any(logged(one, "workbench/trained")[0])
    assert same(before, weights(one)) == (not has_trained)
    names = ("workbench/selected", "workbench/rollouts", "workbench/unscored")
    last = [values[-1] for values in logged(one, *names)]
    fresh = int((rollouts.round == 2).sum())
    assert last == [len(outcome.rows), fresh, 0]
    assert not any(value is None for row in one.state.log_history for value in row.values())


class _Keeps(TrainerCallback):
    """Keeps the outcome of each round; the trainer lets go of it when the slots have learnt."""

    def __init__(self, one, outcomes):
        micro_batches = one.micro_batches

        def make(outcome, *rest):
            outcomes.append(outcome)
            return micro_batches(outcome, *rest)

        one.micro_batches = make


def test_several_updates_a_round_measure_how_far_the_policy_moved(tmp_path):
    method = small("cbs").but(selector=_Listening())
    settings = {
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 2,
        "num_iterations": 2,
        "max_steps": 4,
    }
    one = trained(trainer(tmp_path, method, **settings))
    (heard,) = one.method.selector.heard
    computed = np.isfinite(heard["logprob_diff"])
    assert np.array_equal(computed, heard["selected"] & (heard["advantage"] != 0))
    assert computed.any()
    assert (heard["logprob_diff"][computed] > 0).all()
    assert one.driver.round == 1


def test_several_rounds_an_update_leave_the_policy_where_it_sampled(tmp_path):
    method = small("cbs").but(selector=_Listening())
    settings = {"gradient_accumulation_steps": 4, "steps_per_generation": 2, "max_steps": 1}
    one = trained(trainer(tmp_path, method, **settings))
    assert one.driver.round == len(one.method.selector.heard) == 2
    for heard in one.method.selector.heard:
        difference = heard["logprob_diff"]
        assert (difference[np.isfinite(difference)] < 1e-5).all()


class _Listening(Slot):
    """Keeps everything, and the tables it is to learn from."""

    needs = frozenset({"update_statistics", "old_logprobs"})

    def __init__(self):
        self.heard = []

    def select(self, rollouts, context):
        return Selection(np.arange(len(rollouts)))

    def feedback(self, rollouts, context):
        self.heard.append(rollouts)

    def clone(self):
        return _Listening()


@pytest.mark.parametrize("mode", ["stop-gradient", "recompute", "direct"])
def test_a_mode_of_replay_sets_rows_and_ratio(mode, tmp_path):
    method = small("ar3po").but(replay=CorrectResponses(mode))
    one = trainer(tmp_path, method, data=dataset(4, levels=(4,)), max_steps=1)
    outcomes = []
    one.add_callback(_Keeps(one, outcomes))
    sampled = trained(one) and outcomes[0].rollouts
    size = len(sampled)
    is_first = np.arange(size) == 0
    solved = sampled.assign(
        correct=is_first, reward=is_first.astype(float), round=np.zeros(size, dtype=np.int64)
    )
    one.method.replay.load_state_dict(CorrectResponses(mode).state_dict())
    one.method.replay.feedback(solved, Context(seed=0, round=0))
    failed = sampled.assign(correct=np.zeros(size, dtype=bool), reward=np.zeros(size))

    context = Context(seed=0, round=1, policy=RoundSampler(one, one.driver), max_new_tokens=24)
    outcome = choose(one.method, failed, np.arange(size), context)
    assert len(outcome.rollouts) == size + 1
    assert size in outcome.rows
    assert (outcome.advantages != 0).any()
    batches = dealt(one, 1, outcome)
    (batch,) = batches
    at = np.flatnonzero(batch["workbench"][0] == size)
    assert len(at) == (mode != "stop-gradient")
    assert ("old_per_token_logps" in batch) == (mode == "direct")
    assert batch["num_items_in_batch"].item() == outcome.rollouts.lengths[outcome.rows].sum()
    length = outcome.rollouts.lengths[-1]
    if mode == "recompute":
        now = one.score_tokens(one.model, batch)[0][at[0], :length]
        assert np.allclose(outcome.rollouts.old_logprobs[-1], now, atol=1e-5)
    if mode == "direct":
        old = batch["old_per_token_logps"][at[0], :length]
        assert np.array_equal(old, sampled.old_logprobs[0])


# Curricula


class Backwards(Slot):
    """The last problems of the pool that are not in the round yet."""

    needs = frozenset({"problem_choice"})
    epoch = 3

    def choose(self, pool, n, context):
        left = [problem for problem in pool if problem.id not in context.taken]
        return left[::-1][:n]


def test_a_curriculum_chooses_problems_from_the_training_set(tmp_path):
    data = dataset(32)
    method = small("dapo").but(curriculum=Backwards())
    one = trainer(tmp_path, method, data=data, max_steps=1)
    outcomes = []
    one.add_callback(_Keeps(one, outcomes))
    trained(one)
    asked = list(dict.fromkeys(outcomes[0].rollouts.problem))
    prompts = data["prompt"][::-1][: len(asked)]
    assert asked == [workbench_trl.problem_id(prompt) for prompt in prompts]
    assert len(asked) in (4, 8, 12)


class Chooses(Backwards):
    """Problems as a function of these makes them."""

    def __init__(self, function):
        self.function = function

    def choose(self, pool, n, context):
        return self.function(super().choose(pool, n, context), pool)


@pytest.mark.parametrize(
    "function",
    [
        lambda problems, pool: [*problems, pool[0]],
        lambda problems, pool: [replace(each, prompt=f"7{each.prompt}") for each in problems],
        lambda problems, pool: [replace(each, id=f"my {each.id}") for each in problems],
        lambda problems, pool: [each.id for each in problems],
        lambda problems, pool: None,
    ],
    ids=["too many", "other prompts", "other ids", "ids", "none"],
)
def test_a_curriculum_that_chooses_anything_else_is_refused(function, tmp_path):
    one = trainer(tmp_path, methods.grpo(4).but(curriculum=Chooses(function)), max_steps=1)
    with pytest.raises(ValueError, match=r"^curriculum: "):
        one.train()


def test_a_curriculum_may_return_any_iterable(tmp_path):
    method = methods.grpo(4).but(curriculum=Chooses(lambda problems, pool: iter(problems)))
    one = trained(trainer(tmp_path, method, max_steps=1))
    assert logged(one, "workbench/rollouts") == [[16]]


def test_a_stream_serves_where_no_further_problems_are_chosen(tmp_path):
    stream = dataset(8).to_iterable_dataset()
    with pytest.raises(ValueError, match=r"^curriculum=Backwards\(\)"):
        trainer(tmp_path, methods.grpo(4).but(curriculum=Backwards()), data=stream)
    trained(trainer(tmp_path, methods.grpo(4), data=stream, max_steps=1))


def test_prompts_that_occur_twice_are_two_problems(tmp_path):
    pool = dataset(2)
    twice = trl_cases.Dataset.from_list([*pool, *pool])
    one = trainer(tmp_path, methods.grpo(4), data=twice, max_steps=1)
    outcomes = []
    one.add_callback(_Keeps(one, outcomes))
    trained(one)
    ids = {workbench_trl.problem_id(row["prompt"]) for row in pool}
    assert set(outcomes[0].rollouts.problem) == ids | {f"{key}#2" for key in ids}
    assert [one.places[problem.id] for problem in one.pool] == [0, 1, 2, 3]


# What TRL does besides


def test_evaluation_callbacks_and_lora(tmp_path):
    class Seen(TrainerCallback):
        def __init__(self):
            self.logs = []

        def on_log(self, args, state, control, logs=None, **_):
            self.logs.append(logs)

    seen = Seen()
    pods = methods.pods(8, 4).but(objective=Objective(kl=0.1))
    options = {
        "eval_dataset": dataset(8, split="heldout"),
        "peft_config": LoraConfig(r=4, target_modules=r".*_proj"),
        "callbacks": [seen],
    }
    settings = {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "per_device_eval_batch_size": 8,
        "num_generations_eval": 2,
    }
    one = trainer(tmp_path, pods, options=options, **settings)
    before = weights(one)
    after = weights(trained(one))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all("lora_" in name for name in moved)
    assert len([logs for logs in seen.logs if "eval_reward" in logs]) == 2
    assert logged(one, "kl")[0][-1] > 0
    assert not any(name.startswith("eval_workbench") for logs in seen.logs for name in logs)


def test_the_log_of_completions_has_no_advantages_of_trl_s_own(tmp_path):
    """All are right in the first stage, so a round samples fewer than a batch."""

    def always(completions, **_):
        return [1.0] * len(completions)

    settings = {"max_steps": 1, "per_device_train_batch_size": 12, "log_completions": True}
    one = trainer(tmp_path, methods.ar3po(2, 2), reward=always, num_generations=4, **settings)
    trained(one)
    shown = pd.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
    assert len(shown) == 12  # of 24 that a generation batch has
    assert shown["advantage"].isna().all()


@pytest.mark.parametrize("level, shares", [("token", [0.5, 0]), ("sequence", [1, 0])])
def test_ratios_above_the_bound_of_cispo_count_as_clipped(level, shares):
    """Two responses of two tokens: one has the ratios e^4 and 1, and the mean e^2; both above 5."""
    state = SimpleNamespace(
        loss_type="cispo", importance_sampling_level=level, epsilon_low=0.2, epsilon_high=5.0
    )
    logprobs = torch.tensor([[0.0, -1.0], [-1.0, 0.0]])
    old = torch.tensor([[-4.0, -1.0], [-1.0, 7.0]])
    mask = torch.tensor([[True, True], [True, False]])
    found = workbench_trl.GRPOTrainer._row_statistics(
        state, {"old_per_token_logps": old}, logprobs, torch.zeros(2, 2), mask
    )
    assert found[0].tolist() == shares


def test_what_has_one_number_a_response_is_not_padded_to_its_width(tmp_path):
    one = trainer(tmp_path, methods.grpo(4), pad_to_multiple_of=8, use_vllm=False)
    one.use_vllm = one.vllm_importance_sampling_correction = True
    rows = hand_made_round().rollouts.take([0, 2])
    batch = one.tokens(rows)
    for values, expected in (([[0.5], [0.25]], (2, 1)), ([[0.5] * 5] * 2, (2, 8))):
        ratios = of_tensor(torch.tensor(values), rows.lengths)
        further = one._logprobs(batch, rows.assign(importance_sampling_ratio=ratios))
        found = further["importance_sampling_ratio"]
        assert found.shape == expected
        assert found[1, 0] == values[1][0]


def test_conversations(tmp_path):
    def asks(row):
        return {"prompt": [{"role": "user", "content": row["prompt"]}]}

    def box(prompts, completions, **_):
        assert all(prompt[0]["content"].endswith("=") for prompt in prompts)
        return ["boxed" in completion[0]["content"] for completion in completions]

    tokenizer = AutoTokenizer.from_pretrained(trl_cases.MODEL)
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    talk = dataset(16).map(asks)
    options = {"processing_class": tokenizer}
    one = trainer(tmp_path, small("dapo"), data=talk, reward=box, options=options)
    outcomes = []
    one.add_callback(_Keeps(one, outcomes))
    trained(one)
    rollouts = outcomes[-1].rollouts
    known = {workbench_trl.problem_id(row["prompt"]) for row in talk}
    assert set(rollouts.problem) <= known
    assert rollouts.correct.any()
    assert ["boxed" in text for text in rollouts.text] == rollouts.correct.tolist()


def test_the_date_in_a_chat_template_is_always_the_same(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(trl_cases.MODEL)
    tokenizer.chat_template = "{{ strftime_now('%Y') }}{{ sign }}{{ messages[0]['content'] }}"
    options = {"processing_class": tokenizer}
    one = trainer(tmp_path, small("grpo"), options=options, chat_template_kwargs={"sign": "="})
    (ids,) = one._tokenize_prompts([[{"role": "user", "content": "1+2="}]])[0]
    assert tokenizer.decode(ids) == "2024=1+2="
    assert one.args.chat_template_kwargs == {"sign": "="}


def test_truncated_responses_are_masked_where_trl_masks_them(tmp_path):
    settings = {"mask_truncated_completions": True, "max_completion_length": 12, "max_steps": 1}
    one = trainer(tmp_path, methods.grpo(4), **settings)
    outcomes = []
    one.add_callback(_Keeps(one, outcomes))
    trained(one)
    rollouts = outcomes[0].rollouts
    assert rollouts.truncated.any()
    assert not rollouts.truncated.all()
    assert (rollouts.lengths[rollouts.truncated] == 12).all()
    outcome = type(outcomes[0])(rollouts, np.arange(len(rollouts)), np.ones(len(rollouts)))
    (batch,) = dealt(one, 1, outcome)
    hidden = rollouts.truncated[batch["workbench"][0]]
    assert np.array_equal(batch["completion_mask"].sum(1).numpy() == 0, hidden)
    assert batch["num_items_in_batch"].item() == batch["completion_mask"].sum().item()


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_where_all_responses_are_cut_off_and_masked_nothing_is_learnt(name, tmp_path):
    """Also where an update fails to see any token: no loss, and the weights stay."""
    settings = {"mask_truncated_completions": True, "max_completion_length": 2, "max_steps": 2}

    def graded(completions, **columns):
        return [float(sum(map(ord, text)) % 7) for text in completions]

    one = trainer(tmp_path, small(name), reward=graded, learning_rate=0.1, **settings)
    outcomes = []
    one.add_callback(_Keeps(one, outcomes))
    before = weights(one)
    trained(one)
    assert all(outcome.rollouts.truncated.all() for outcome in outcomes)
    assert logged(one, "loss") == [[0.0, 0.0]]
    assert same(before, weights(one))


# Several processes, and the example


@pytest.mark.long
def test_two_processes(tmp_path):
    script = Path(__file__).parent / "two_processes.py"
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-8000:]
    found = json.loads((tmp_path / "found.json").read_text())
    for name, numbers in found.items():
        assert all(math.isfinite(loss) for loss in numbers["loss"]), name
    assert found["pods"]["rollouts"] == 32
    assert found["pods"]["selected"] == 16
    assert found["knapsack"]["rollouts"] == 16


@pytest.mark.long
def test_the_example_and_its_machine(tmp_path, monkeypatch, capsys):
    arguments = ["trl_pods.py", "--steps", "1", "--seeds", "2", "--methods", "plain", "dynamic"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--out", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "trl_pods.py"), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    plain, dynamic = [line for line in printed if "effective-gradient ratio" in line]
    assert plain.startswith("plain: 32 rollouts a step")
    assert "ratio 1.000 +- 0.000" in dynamic
    # A table of numbers, by a model with a chat template, of which one run has no interval.
    chatty = tmp_path / "chatty"
    shutil.copytree(trl_cases.MODEL, chatty)
    tokenizer = AutoTokenizer.from_pretrained(chatty)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(chatty)
    numbers = pd.DataFrame({"prompt": range(10, 22), "answer": range(12)})
    numbers.to_csv(tmp_path / "numbers.csv", index=False)
    own = ["--model", str(chatty), "--data", str(tmp_path / "numbers.csv"), "--tokens", "4"]
    arguments = ["trl_pods.py", "--steps", "1", "--methods", "pods", "dynamic", *own]
    monkeypatch.setattr(sys, "argv", [*arguments, "--out", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "trl_pods.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "pods: 128 rollouts a step, effective-gradient ratio 0.000\n" in printed
    assert "nan" not in printed.splitlines()[-1]
    machine = load_config_from_file(str(EXAMPLES / "deepspeed_zero2.yaml"))
    assert (machine.num_processes, machine.deepspeed_config["zero_stage"]) == (8, 2)


@pytest.mark.parametrize(
    "options, contents, processes, said",
    [
        ([], "prompt,answer\n1+1=,2\n1+2=,3\n1+3=,4\n", 1, "4 problems"),
        ([], "question,answer\n1+1=,2\n", 1, "--data: .*prompt"),
        (["--learning-rate", "nan"], "", 1, "--learning-rate"),
        ([], "", 3, "3 processes"),
    ],
)
def test_the_example_refuses_what_it_cannot_train_on(
    tmp_path, monkeypatch, capsys, options, contents, processes, said
):
    data = tmp_path / "mine.csv"
    data.write_text(contents)
    arguments = ["trl_pods.py", "--data", str(data), "--steps", "1", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", [*arguments, *options])
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    with pytest.raises(SystemExit):
        runpy.run_path(str(EXAMPLES / "trl_pods.py"), run_name="__main__")
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


# At import


def test_without_the_package_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    for name in ("workbench.trl", "workbench.trl.compatibility"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match="pip install 'trl"):
        importlib.import_module("workbench.trl")


def test_a_method_that_trl_renamed_or_changed_is_an_error_at_import():
    check_overridden(trl.GRPOTrainer, trl.__version__)
    theirs = vars(trl.GRPOTrainer).keys()
    for ours in workbench_trl.GRPOTrainer.__mro__:
        if ours is trl.GRPOTrainer:
            break
        overridden = {name for name, value in vars(ours).items() if inspect.isfunction(value)}
        assert EXPECTED.keys() | {"__init__"} >= overridden & theirs
    for name in EXPECTED:
        renamed = type("GRPOTrainer", (trl.GRPOTrainer,), {name: None})
        changed = type("GRPOTrainer", (trl.GRPOTrainer,), {name: lambda self: None})
        for other in (renamed, changed):
            with pytest.raises(ImportError, match=name):
                check_overridden(other, "9.9")


def test_any_function_of_rewards_is_an_advantage(tmp_path):
    method = methods.grpo(4).but(advantage=OfRewards(group_normalized))
    plain = trained(trainer(tmp_path, methods.grpo(4), max_steps=1))
    assert same(weights(plain), weights(trained(trainer(tmp_path, method, max_steps=1))))
