"""The methods in TRL's trainer: TRL's own without a method, our own arithmetic with one, on one and two processes."""

import importlib
import json
import math
import runpy
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("trl", reason="trl is not installed: pip install 'workbench-rlvr[trl]'")

import trl
import trl_cases
from accelerate.commands.config.config_args import load_config_from_file
from peft import LoraConfig
from safetensors import safe_open
from transformers import AutoTokenizer, TrainerCallback
from trl_cases import SMALL, dataset, gradient, own_gradient, trainer, weights

from workbench import methods
from workbench import trl as workbench_trl
from workbench.advantages import group_normalized, posterior
from workbench.allocators import DynamicSampling, Knapsack, SuccessRates
from workbench.objectives import Objective
from workbench.replay import Buffer, CorrectResponses
from workbench.rollouts import Context
from workbench.rounds import join_and_select
from workbench.selectors import Scheduler, max_variance
from workbench.trl.setup import LOSSES, weighted

TRL_LOSSES = ("grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo")


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def numbers(trainer, *names):
    return [[row[name] for row in trainer.state.log_history if name in row] for name in names]


def trained(one):
    """The same trainer after training; its constructor has set the seed that sampling starts from."""
    one.train()
    return one


# TRL's own


def test_without_a_method_it_is_trl_to_the_last_bit(tmp_path):
    ours = trained(trainer(tmp_path, max_steps=10))
    theirs = trained(trainer(tmp_path, make=trl.GRPOTrainer, max_steps=10))
    assert same(weights(ours), weights(theirs))
    for mine, yours in zip(ours.state.log_history, theirs.state.log_history):
        timeless = [
            {k: v for k, v in row.items() if "time" not in k and "per_second" not in k}
            for row in (mine, yours)
        ]
        assert timeless[0] == timeless[1]
    assert len(numbers(ours, "loss")[0]) == 10 and not any(
        "workbench/" in name for row in ours.state.log_history for name in row
    )


def test_grpo_with_trl_s_constants_is_trl_up_to_rounding(tmp_path):
    method = methods.grpo(4).but(advantage=partial(group_normalized, ddof=1, eps=1e-4))
    ours = trained(trainer(tmp_path, method, loss_type="bnpo", epsilon_high=None, max_steps=5))
    theirs = trained(trainer(tmp_path, make=trl.GRPOTrainer, loss_type="bnpo", max_steps=5))
    assert numbers(ours, "reward", "completions/mean_length") == numbers(
        theirs, "reward", "completions/mean_length"
    )
    assert numbers(ours, "loss")[0] == pytest.approx(numbers(theirs, "loss")[0], abs=1e-5)
    mine, yours = weights(ours), weights(theirs)
    assert all(torch.allclose(mine[name], yours[name], atol=1e-4) for name in mine)
    zero = [1 - ratio for ratio in numbers(theirs, "frac_reward_zero_std")[0]]
    assert numbers(ours, "workbench/effective_gradient_ratio")[0] == pytest.approx(zero)
    assert numbers(ours, "frac_reward_zero_std") == [[]]


# the rows to train on


@pytest.mark.parametrize("loss", TRL_LOSSES)
def test_filling_up_changes_no_gradient(loss, tmp_path):
    one = trainer(tmp_path, methods.grpo(4), loss_type=loss)
    one.model.train()
    with torch.no_grad():
        for parameter in one.model.parameters():
            parameter.add_(0.01)
    found = {steps: gradient(one, steps) for steps in (1, 2, 3, 4)}
    assert found[1].abs().max() > 1e-3
    if loss != "bnpo":  # a mean of micro-batches' means is defined by the split
        assert all(torch.allclose(found[steps], found[1], atol=1e-6) for steps in (2, 3, 4))
    for mean in (ours for ours, theirs in LOSSES.items() if theirs == loss):
        assert torch.allclose(found[3], own_gradient(one, mean), atol=1e-5)


def test_filling_up_changes_no_penalty(tmp_path):
    one = trainer(tmp_path, methods.grpo(4, mean="rollout", kl=0.5))
    one.model.train()
    with torch.no_grad():
        for parameter in one.model.parameters():
            parameter.add_(0.03)
    found = {steps: gradient(one, steps) for steps in (1, 3, 4)}
    one.beta = 0.0
    assert not torch.allclose(found[1], gradient(one, 1), atol=1e-3)
    assert torch.allclose(found[3], found[1], atol=1e-5) and torch.allclose(
        found[4], found[1], atol=1e-5
    )


# every method


@pytest.mark.parametrize("name", methods.PAPERS)
def test_every_method_trains(name, tmp_path):
    one = trainer(tmp_path, SMALL[name])
    before = weights(one)
    assert all(math.isfinite(loss) for loss in numbers(trained(one), "loss")[0])
    rollouts, chosen, advantages, _ = one._latest
    rows = rollouts.take(chosen)
    assert same(before, weights(one)) == (not any(numbers(one, "workbench/trained")[0]))
    assert [values[-1] for values in numbers(one, "workbench/selected", "workbench/rollouts")] == [
        len(chosen),
        len(rollouts),
    ]
    sizes = np.unique(rollouts.problem, return_counts=True)[1]
    if name == "pods":
        assert (sizes == 8).all() and chosen.tolist() == max_variance(
            rollouts.reward, 4, rollouts.problem
        ).tolist()
    if name in ("grpo", "gspo", "pods"):
        assert np.array_equal(advantages, group_normalized(rows.reward, rows.problem))
    if name == "dr_grpo":
        assert np.array_equal(advantages, group_normalized(rows.reward, rows.problem, scale=False))
    if name == "dapo":
        assert all(0 < rollouts.correct[rollouts.problem == p].sum() < 4 for p in rows.problem)
        assert len(sizes) in (4, 8, 12) and (len(rows) == 16 or len(sizes) == 12)
        assert (rollouts["reward_overlong"] <= 0).all() and (
            rollouts["reward_correct"] == rollouts.correct
        ).all()
    if name == "ar3po":
        first = rollouts.stage == 0
        unsolved = set(rollouts.problem) - set(rollouts.problem[first & rollouts.correct])
        assert set(rollouts.problem[~first]) == unsolved and len(rollouts) == 8 + 2 * len(unsolved)
    if name == "knapsack":
        assert sizes.sum() == 16 and sizes.min() >= 2
    if name == "aero":
        whole = posterior(rollouts.reward, rollouts.problem)
        mixed = np.array(
            [len(set(rollouts.reward[rollouts.problem == p])) > 1 for p in rows.problem]
        )
        assert np.array_equal(advantages[~mixed], whole[chosen][~mixed]) and (advantages != 0).all()
    if name == "cbs":
        assert (
            len(chosen) == 4
            and np.isfinite(rollouts["feature_entropy"]).all()
            and (rollouts.entropy > 0).all()
        )


@pytest.mark.parametrize("settings", [
    dict(gradient_accumulation_steps=1, steps_per_generation=2, num_iterations=2, max_steps=4),
    dict(gradient_accumulation_steps=4, steps_per_generation=2, max_steps=1),
])  # fmt: skip
def test_several_updates_a_round_and_rounds_an_update(settings, tmp_path):
    one = trained(trainer(tmp_path, SMALL["cbs"], **settings))
    _, chosen, advantages, _ = one._latest
    computed = np.isfinite(one._measured[1])
    assert np.array_equal(np.flatnonzero(computed), chosen[advantages != 0])
    drifted = one._measured[2][computed]
    assert (drifted == 0).all() if "num_iterations" not in settings else (drifted > 0).all()
    assert len(set(numbers(one, "workbench/rollouts")[0])) == 1 and one._round == (
        1 if "num_iterations" in settings else 2
    )


@pytest.mark.parametrize("mode", ["stop-gradient", "recompute", "direct"])
def test_a_mode_of_reuse_sets_rows_and_ratio(mode, tmp_path):
    one = trained(
        trainer(
            tmp_path,
            SMALL["ar3po"].but(reuse=CorrectResponses(mode)),
            data=dataset(4, levels=(4,)),
            max_steps=1,
        )
    )
    sampled = one._latest[0]
    first = np.arange(len(sampled)) == 0
    solved = sampled.assign(
        correct=first, reward=first, round=np.zeros(len(sampled), dtype=np.int64)
    )
    one.method.reuse.load_state_dict({})
    one.method.reuse.feedback(solved, Context(0, 0))
    failed = sampled.assign(correct=np.zeros(len(sampled), bool), reward=np.zeros(len(sampled)))
    candidates, known = np.arange(len(failed)), Context(0, 1, 0, workbench_trl._Scorer(one))
    rollouts, chosen, advantages, _ = join_and_select(one.method, failed, candidates, known, 24)
    assert len(rollouts) == len(failed) + 1 and len(failed) in chosen and (advantages != 0).any()
    one._measured = np.full((3, len(rollouts)), np.nan)
    batch = one._batch(rollouts, chosen, advantages)
    at = np.flatnonzero(batch["workbench_row"].numpy() == len(failed))
    assert len(at) == (mode != "stop-gradient") and ("old_per_token_logps" in batch) == (
        mode == "direct"
    )
    assert batch["num_items_in_batch"].item() == rollouts.lengths[chosen].sum()
    if mode == "recompute":
        now = one._score(one.model, batch)[0][at[0], : rollouts.lengths[-1]]
        assert np.allclose(rollouts.logprobs[-1], now, atol=1e-5)
    if mode == "direct":
        assert np.array_equal(
            batch["old_per_token_logps"][at[0], : rollouts.lengths[-1]], sampled.logprobs[0]
        )


def test_checkpoints_carry_what_the_slots_learnt(tmp_path):
    known = methods.Method(
        "known", Knapsack(4), CorrectResponses("direct"), Scheduler(50, learning_rate=0.01)
    )
    window = methods.Method(
        "window", DynamicSampling(4), Buffer(2), Scheduler(scope="buffer", warmup=0)
    )
    for method in (known, window):
        out = tmp_path / method.name
        settings = dict(data=dataset(16), max_steps=6, save_strategy="steps", save_steps=3)
        whole = trained(trainer(out, method, **settings))
        resumed = trainer(out, method, **settings)
        resumed.train(resume_from_checkpoint=str(out / "checkpoint-3"))
        assert same(weights(whole), weights(resumed)) and whole._round == resumed._round == 6
        with safe_open(out / "checkpoint-3" / "workbench.safetensors", framework="pt") as file:
            kept = json.loads(file.metadata()["state"])
        assert (
            kept["round"] == 3
            and (kept["extra"] > 0) == (method is window)
            and whole._extra == resumed._extra
        )
        assert numbers(whole, "loss")[0] == numbers(resumed, "loss")[0]
        other = trainer(out, method.but(reuse=None), **settings)
        with pytest.raises(
            ValueError,
            match=r"resume_from_checkpoint: .* of another method \(ours, theirs\): reuse: None, ",
        ):
            other.train(resume_from_checkpoint=str(out / "checkpoint-3"))
    with pytest.raises(ValueError, match="of another method"):
        trainer(out, **settings).train(resume_from_checkpoint=str(out / "checkpoint-3"))
    (out / "checkpoint-3" / "workbench.safetensors").unlink()
    with pytest.raises(
        ValueError,
        match=r"workbench\.safetensors is missing, so this was made without a method; use",
    ):
        trainer(out, method, **settings).train(resume_from_checkpoint=str(out / "checkpoint-3"))


def test_evaluation_callbacks_and_lora(tmp_path):
    class Seen(TrainerCallback):
        def __init__(self):
            self.logs = []

        def on_log(self, args, state, control, logs=None, **_):
            self.logs.append(logs)

    seen, pods = Seen(), methods.pods(8, 4).but(objective=Objective(kl=0.1))
    options = dict(
        eval_dataset=dataset(8, split="heldout"),
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
    )
    one = trainer(tmp_path, pods, options={**options, "callbacks": [seen]}, eval_strategy="steps", eval_steps=1,
                  per_device_eval_batch_size=8, num_generations_eval=2)  # fmt: skip
    before = weights(one)
    after = weights(trained(one))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and all("lora_" in name for name in moved)
    assert (
        len([logs for logs in seen.logs if "eval_reward" in logs]) == 2
        and numbers(one, "kl")[0][-1] > 0
    )
    assert not any(name.startswith("eval_workbench") for logs in seen.logs for name in logs)


def test_the_log_of_completions_has_the_advantages_of_the_method(tmp_path):
    one = trained(
        trainer(
            tmp_path,
            methods.pods(5, 3),
            log_completions=True,
            max_steps=1,
            options=dict(rows_at_once=3),
        )
    )
    rollouts, chosen, advantages, _ = one._latest
    shown = pd.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
    index = np.array(one._logged_rows)[-len(shown) :]
    assert len(rollouts) == 20 and len(shown) == 16
    assert shown["completion"].tolist() == rollouts.text[index].tolist()
    assert shown["right"].tolist() == rollouts.reward[index].tolist()
    expected = np.full(len(rollouts), np.nan)
    expected[chosen] = advantages
    assert (
        np.array_equal(shown["advantage"], expected[index], equal_nan=True)
        and np.isnan(expected).sum() == 8
    )


def test_unscored_truncated_and_repeated(tmp_path):
    def some(completions, answer, **_):
        return [
            None if len(text) % 3 == 0 else value
            for text, value in zip(completions, trl_cases.right(completions, answer))
        ]

    pool = dataset(2)
    twice = trl_cases.Dataset.from_list([*pool, *pool])
    one = trained(trainer(tmp_path, methods.grpo(4), data=twice, reward=some, mask_truncated_completions=True,
                          max_completion_length=12))  # fmt: skip
    rollouts, chosen, advantages, _ = one._latest
    unscored = np.array([len(text) % 3 == 0 for text in rollouts.text])
    assert (
        len(rollouts) == 16
        and np.array_equal(np.isnan(rollouts.reward), unscored)
        and unscored.any()
    )
    assert np.array_equal(chosen, np.flatnonzero(~unscored)) and np.isfinite(advantages).all()
    ids = {workbench_trl.problem_id(row["prompt"]) for row in pool}
    assert set(rollouts.problem) == ids | {f"{key}#2" for key in ids}
    assert rollouts.truncated.any() and (rollouts.lengths[rollouts.truncated] == 12).all()
    batch = one._batch(rollouts, chosen, np.ones(len(chosen)))
    hidden = rollouts.truncated[batch["workbench_row"]] | (batch["workbench_row"] < 0).numpy()
    assert np.array_equal(batch["completion_mask"].sum(1).numpy() == 0, hidden)
    assert batch["num_items_in_batch"].item() == batch["completion_mask"].sum().item()


def test_conversations(tmp_path):
    def asks(row):
        return {"prompt": [{"role": "user", "content": row["prompt"]}]}

    def box(prompts, completions, **_):
        assert all(prompt[0]["content"].endswith("=") for prompt in prompts)
        return ["boxed" in completion[0]["content"] for completion in completions]

    tokenizer = AutoTokenizer.from_pretrained(trl_cases.MODEL)
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    talk = dataset(16).map(asks)
    one = trained(
        trainer(
            tmp_path, SMALL["dapo"], data=talk, reward=box, options={"processing_class": tokenizer}
        )
    )
    rollouts = one._latest[0]
    assert (
        set(rollouts.problem) <= {workbench_trl.problem_id(row["prompt"]) for row in talk}
        and rollouts.correct.any()
    )
    assert ["boxed" in text for text in rollouts.text] == rollouts.correct.tolist()


class Sampler(workbench_trl.GRPOTrainer):
    """Reports the probabilities of what it sampled, as vLLM does, a little off."""

    def _generate_single_turn(self, prompt_ids, *args, **options):
        self.use_vllm, used = False, self.use_vllm
        ids, _ = super()._generate_single_turn(prompt_ids, *args, **options)
        self.use_vllm = used
        return ids, [
            [-1.0 - 0.01 * len(prompt)] * len(row) for prompt, row in zip(prompt_ids, ids)
        ] if used else None


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_mask"])
def test_what_a_sampler_reports_stays_with_its_rollout(mode, tmp_path):
    one = trainer(
        tmp_path, methods.pods(8, 4), make=Sampler, vllm_importance_sampling_mode=mode, max_steps=1
    )
    one.use_vllm = True  # from here on TRL corrects for what the sampler reports
    rollouts = trained(one)._latest[0]
    batch = one._batch(*one._latest[:3])
    real = (batch["workbench_row"] >= 0).numpy()
    for i, row in zip(np.flatnonzero(real), batch["workbench_row"].numpy()[real]):
        length = rollouts.lengths[row]
        reported = -1.0 - 0.01 * rollouts.prompt.lengths[row]
        assert batch["sampling_per_token_logps"][i, :length].tolist() == pytest.approx(
            [reported] * length
        )
        expected = np.exp(rollouts.logprobs[row] - reported)
        if mode == "sequence_mask":
            expected = np.exp([(rollouts.logprobs[row] - reported).sum()])
        expected = (
            np.where(expected > 3.0, 0.0, expected)
            if mode == "sequence_mask"
            else np.minimum(expected, 3.0)
        )
        assert batch["importance_sampling_ratio"][i, : len(expected)].tolist() == pytest.approx(
            expected.tolist(), rel=1e-4
        )


# several processes


def test_two_processes(tmp_path):
    script = Path(__file__).parent / "two_processes.py"
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script),
                           str(tmp_path)], capture_output=True, text=True, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert list(found) == list(methods.PAPERS)
    for name, steps in found.items():
        assert all(math.isfinite(loss) for loss in steps["loss"]), name
    assert (
        found["pods"]["rollouts"] == 32
        and found["pods"]["selected"] == 16
        and found["knapsack"]["rollouts"] == 16
    )


def test_the_example_and_its_machine(tmp_path, monkeypatch, capsys):
    examples = Path(__file__).parents[1] / "examples"
    arguments = [
        "trl_pods.py",
        "--steps",
        "1",
        "--seeds",
        "2",
        "--methods",
        "plain",
        "dynamic",
        "--out",
        str(tmp_path),
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(examples / "trl_pods.py"), run_name="__main__")
    plain, dynamic = (
        line for line in capsys.readouterr().out.splitlines() if "effective-gradient ratio" in line
    )
    assert plain.startswith("plain: 32 rollouts a step") and "ratio 1.000 +- 0.000" in dynamic
    machine = load_config_from_file(str(examples / "deepspeed_zero2.yaml"))
    assert (machine.num_processes, machine.deepspeed_config["zero_stage"]) == (8, 2)


# what is refused


@dataclass(frozen=True)
class Silent:
    """An allocator that asks for a stage of nothing."""

    def allocate(self, problems, context):
        yield np.zeros(len(problems), dtype=np.int64)


def test_what_cannot_be_carried_is_named_before_a_model_is_loaded(tmp_path):
    def refused(method, match, model="no/such-model", options=(), **settings):
        args = trl_cases.config(tmp_path, **settings)
        options = {"train_dataset": dataset(8), **dict(options)}
        with pytest.raises(ValueError, match=match) as error:
            workbench_trl.GRPOTrainer(model, trl_cases.right, args=args, method=method, **options)
        assert "\n" not in str(error.value)

    grpo = methods.grpo(4)
    refused("pods", "method='pods': a workbench.methods.Method is needed, or None for plain TRL")
    refused(grpo, "rows_at_once=0: a whole number of at least 1", options={"rows_at_once": 0})
    refused(grpo, "^tools: a method cannot carry it", options={"tools": [len]})
    for name in ("rollout_func", "environment_factory"):
        refused(grpo, f"^{name}: ", options={name: dict})
    refused(grpo, "^use_liger_kernel=True: ", use_liger_kernel=True)
    refused(
        grpo,
        "^multi_objective_aggregation='normalize_then_sum': ",
        multi_objective_aggregation="normalize_then_sum",
    )
    refused(
        grpo,
        "^a train_dataset with images: ",
        options={"train_dataset": dataset(8).add_column("image", [None] * 8)},
    )
    refused(methods.cbs(mini_batch=4), "^mini_batch=4: TRL's steps are set by steps_per_generation")
    refused(
        methods.knapsack(rates=SuccessRates("predictor")),
        "^rates='predictor': it reads hidden states",
    )
    refused(
        methods.ar3po(), "^loss_type='bnpo': it averages within micro-batches", loss_type="bnpo"
    )
    refused(
        methods.cbs(scope="buffer"), "^vllm_importance_sampling_correction=True: ", use_vllm=True
    )
    refused(methods.dapo(), "^train_dataset: more problems cannot be drawn from a stream",
            options={"train_dataset": dataset(8).to_iterable_dataset()})  # fmt: skip
    with pytest.raises(
        ValueError, match="length=100: TRL's dr_grpo divides by max_completion_length"
    ):
        workbench_trl.arguments(methods.dr_grpo(length=100))


def test_what_goes_wrong_in_a_round_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"allocator: Silent\(\) asked for a stage of no rollouts"):
        trainer(tmp_path, methods.grpo(4).but(allocator=Silent())).train()
    with pytest.raises(
        ValueError, match="reward_funcs: a reward is inf; finite numbers or None are needed"
    ):
        trainer(
            tmp_path, methods.grpo(4), reward=lambda completions, **_: [math.inf] * len(completions)
        ).train()
    with pytest.raises(
        ValueError, match=r"reward_funcs: none of them scored any of the 16 rollouts"
    ):
        trainer(
            tmp_path, methods.grpo(4), reward=lambda completions, **_: [None] * len(completions)
        ).train()


def test_without_the_package_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delitem(sys.modules, "workbench.trl")
    with pytest.raises(
        ImportError,
        match=r"^workbench\.trl needs a package: pip install 'trl>=1\.14\.2,!=1\.15\.0'$",
    ):
        importlib.import_module("workbench.trl")


def test_a_method_in_trl_s_words():
    words = workbench_trl.arguments(methods.aero(kl=0.01))
    assert words == {"loss_type": "grpo", "epsilon": 0.2, "epsilon_high": 0.2, "beta": 0.01,
                     "importance_sampling_level": "token", "entropy_coef": 1e-3}  # fmt: skip
    assert workbench_trl.arguments(methods.gspo())["importance_sampling_level"] == "sequence"
    assert workbench_trl.arguments(methods.dr_grpo())["loss_type"] == "dr_grpo"
    assert workbench_trl.problem_id("1+1=") != workbench_trl.problem_id("1+2=")
    parts = np.array([[1, 1], [1, np.nan], [np.nan, np.nan]], dtype=np.float32)
    assert np.array_equal(
        weighted(parts, np.array([0.8, 0.2], np.float32)),
        np.float32([1.0, 0.8, np.nan]),
        equal_nan=True,
    )
    chat = [{"role": "user", "content": "1+1="}]
    assert workbench_trl.problem_id(chat) == workbench_trl.problem_id(
        [dict(reversed(chat[0].items()))]
    )
