"""The adapter for verl. What needs verl itself runs in verl's own environment: `make test-verl`."""

import importlib.util
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
import yaml

from workbench import methods, verl
from workbench.advantages import group_normalized, leave_one_out, posterior
from workbench.allocators import (
    DynamicSampling,
    Knapsack,
    More,
    Rescue,
    Staged,
    SuccessRates,
    Uniform,
    knapsack,
)
from workbench.objectives import policy_loss
from workbench.rollouts import Rollouts
from workbench.selectors import All, MaxReward, MaxVariance, Rejection
from workbench.utils.descriptions import describe

EXAMPLES = Path(__file__).parents[1] / "examples"
INSTALLED = importlib.util.find_spec("verl") is not None
needs_verl = pytest.mark.skipif(not INSTALLED, reason="verl is not installed here: make test-verl")

# two groups, five and three rows, in mixed order
UIDS = ["a", "b", "a", "a", "b", "a", "b", "a"]
REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]


def batch(rewards=REWARDS, uids=UIDS, lengths=None, **columns):
    """A scored DataProto; the reward lies on each row's last token, as verl puts it."""
    from verl import DataProto

    lengths = np.array(lengths if lengths is not None else [1 + i % 4 for i in range(len(rewards))])
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]
    scores = torch.zeros(len(rewards), 4)
    scores[torch.arange(len(rewards)), torch.tensor(lengths) - 1] = torch.tensor(
        rewards, dtype=torch.float32
    )
    return DataProto.from_dict(
        {
            "response_mask": mask.long(),
            "token_level_scores": scores,
            "token_level_rewards": scores.clone(),
            "row": torch.arange(len(rewards)),
        },
        {
            "uid": np.array(uids, dtype=object),
            "raw_prompt": chats([f"{uid}=" for uid in uids]),
            **columns,
        },
    )


def chats(texts):
    """Prompts as verl's data sets hold them."""
    out = np.empty(len(texts), dtype=object)
    out[:] = [[{"role": "user", "content": text}] for text in texts]
    return out


def scored(ids, correct):
    return Rollouts(ids, reward=np.asarray(correct, dtype=float), correct=correct)


# what needs no verl


@pytest.mark.skipif(INSTALLED, reason="verl is installed here")
def test_without_verl_one_line_says_how_to_get_it():
    with pytest.raises(ImportError, match=r"^verl is missing.*pip install .*verl==0\.9\.1[^\n]*$"):
        verl.register()


def test_ids_follow_the_content_of_prompts():
    ids = verl.problem_ids(chats(["1+1=", "1+2=", "1+1="]))
    assert ids[0] == ids[2] != ids[1]
    assert (
        verl.problem_ids([[{"content": "1+1=", "role": "user"}]])[0] == ids[0]
    )  # whatever the order of keys
    assert (
        verl.problem_ids([np.array([{"role": "user", "content": "1+1="}], dtype=object)])[0]
        == ids[0]
    )
    with pytest.raises(ValueError, match="raw_prompt: a object has no stable id"):
        verl.problem_ids([[{"role": "user", "content": object()}]])


@pytest.mark.parametrize("name, function", [
    ("workbench_grpo", group_normalized), ("workbench_rloo", leave_one_out), ("workbench_aero", posterior),
    ("workbench_dr_grpo", partial(group_normalized, scale=False)),
    ("workbench_knapsack", partial(group_normalized, eps=1e-6, clip=5.0)),
])  # fmt: skip
def test_estimators_are_our_functions_at_response_tokens(name, function):
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 0, 0]])
    scores = torch.tensor([[0, 1.0, 0], [0, 0, 0], [0.5, 0, 0.5], [0, 1.0, 0], [1.0, 0, 0]])
    uids = np.array(["x", "y", "y", "x", "x"], dtype=object)
    advantages, returns = verl.ESTIMATORS[name](
        token_level_rewards=scores, response_mask=mask, index=uids, config=None
    )
    expected = function(np.array([1.0, 0, 1, 1, 1]), uids.astype(str))
    np.testing.assert_allclose(advantages, expected[:, None] * mask.numpy(), rtol=1e-6)
    assert torch.equal(advantages, returns) and advantages is not returns


def test_advantages_by_hand():
    scores, mask = torch.tensor([[1.0], [0.0], [0.0], [0.0], [1.0]]), torch.ones(5, 1)
    index = np.array(["p", "p", "p", "p", "q"], dtype=object)
    found = {
        name: verl.ESTIMATORS[name](token_level_rewards=scores, response_mask=mask, index=index)[0][
            :, 0
        ].tolist()
        for name in ("workbench_dr_grpo", "workbench_rloo")
    }
    assert found["workbench_dr_grpo"] == [0.75, -0.25, -0.25, -0.25, 0]
    assert found["workbench_rloo"] == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3, 0])


def test_an_unknown_row_has_no_remembered_advantage():
    rows = Rollouts(
        ["p", "p", "q"], reward=[1.0, 0.0, 1.0], columns={"group": np.array(["u", "u", "v"])}
    )
    verl.remember(rows, np.array([0.5, -0.5, 0.25]))
    scores, mask = torch.tensor([[0, 1.0], [0, 1.0], [0, 0], [0, 0]]), torch.ones(4, 2)
    estimate = verl.ESTIMATORS["workbench"]
    found, _ = estimate(scores, mask, np.array(["u", "v", "u", "pad12"], dtype=object))
    assert found.tolist() == [[0.5, 0.5], [0.25, 0.25], [-0.5, -0.5], [0, 0]]
    with pytest.raises(ValueError, match=r"uid w .*custom_sampler"):
        estimate(scores, mask, np.array(["u", "w", "u", "v"], dtype=object))
    with pytest.raises(ValueError, match="two values"):
        verl.remember(rows.take([0, 0]), np.array([1.0, 2.0]))


def test_counts_come_from_history():
    """First uniform; then p = 1/2 takes what it can hold, since solved and never solved prompts have no value."""
    ours = verl.Allocation(Knapsack(n=4, low=2, up=8, fallback=False))
    ids = verl.problem_ids(chats(["a", "b", "c"]))
    assert ours.start(ids, 1).tolist() == [4, 4, 4]
    outcomes = {ids[0]: [1, 1, 1, 1], ids[1]: [1, 0, 1, 0], ids[2]: [0, 0, 0, 0]}
    ours.feedback(scored(np.repeat(ids, 4), np.concatenate([outcomes[key] for key in ids]) == 1), 1)
    counts = ours.start(ids[::-1], 2)
    assert (
        counts.tolist()
        == knapsack([0, 0.5, 1], 12, low=2, up=8, fallback=False).tolist()
        == [2, 8, 2]
    )
    again = verl.Allocation(Knapsack(n=4, low=2, up=8, fallback=False))
    again.load_state_dict(ours.state_dict())
    assert again.start(ids[::-1], 2).tolist() == [2, 8, 2]
    with pytest.raises(ValueError, match="another allocator"):
        verl.Allocation(Knapsack(n=4, low=2, up=16, fallback=False)).load_state_dict(
            ours.state_dict()
        )


def test_a_prompt_that_occurs_twice_is_one_problem():
    ours = verl.Allocation(Uniform(3))
    assert ours.start(["a", "b", "a"], 1).tolist() == [3, 3, 3]
    staged = verl.Allocation(Staged(2, 2), stages=True)
    staged.start(["a", "b", "a"], 1)
    assert staged.proceed(scored(["a"] * 4 + ["b"] * 2, [0, 0, 1, 0, 0, 0])).tolist() == [0, 2, 0]


def test_stages_and_more_problems():
    ours = verl.Allocation(DynamicSampling(2, groups=1, max_draws=2), stages=True)
    assert ours.start(["a", "b"], 1).tolist() == [2, 2]
    first = scored(["a", "a", "b", "b"], [1, 1, 0, 0])
    assert ours.proceed(first) == More(2)
    assert ours.extend(["c", "d"]).tolist() == [0, 0, 2, 2]
    assert (
        ours.proceed(Rollouts.concat([first, scored(["c", "c", "d", "d"], [1, 1, 0, 1])])) is None
    )
    assert ours.keep.tolist() == [6, 7]


@pytest.mark.parametrize("selector", [All(), MaxVariance(2), MaxReward(2), Rejection()])
def test_a_round_without_candidates(selector):
    chosen, advantages = verl.choose(
        scored([], np.zeros(0, bool)), selector, group_normalized, np.random.default_rng(0)
    )
    assert len(chosen) == len(advantages) == 0


def test_misspelt_options_are_refused():
    with pytest.raises(ValueError, match=r"sampler_kwargs\.argument: unknown"):
        verl.method_of({"method": "pods", "argument": {}})
    with pytest.raises(ValueError, match="method='PODS': allowed are grpo"):
        verl.method_of({"method": "PODS"})


@pytest.mark.parametrize(
    "allocator", [Staged(), Rescue(), DynamicSampling(), Knapsack(rates=SuccessRates("fresh"))]
)
def test_one_request_cannot_carry_stages(allocator):
    with pytest.raises(ValueError, match="asks several times a round"):
        verl.Allocation(allocator)


@pytest.mark.parametrize("method, reason", [
    (methods.ar3po(), "reuse="), (methods.cbs(), "Scheduler"), (methods.dapo(), "reward="),
    (methods.knapsack(rates="predictor"), "the policy's states"), (methods.knapsack(rates="epoch"), "the epoch"),
])  # fmt: skip
def test_what_cannot_be_carried_says_so(method, reason):
    with pytest.raises(ValueError, match=reason):
        verl.configuration(method)


@pytest.mark.parametrize("method, rows", [
    (methods.grpo(6), 6), (methods.pods(32, 8), 8), (methods.dr_grpo(), 8), (methods.gspo(), 8), (methods.knapsack(5), 5),
    (methods.aero(), 8), (methods.ar3po(mode=None), 4), (methods.dapo(overlong=0), 8),
])  # fmt: skip
def test_configuration_brings_the_method_back(method, rows):
    keys = verl.configuration(method)
    assert keys["actor_rollout_ref.rollout.n"] == rows
    found = verl.method_of({"method": keys["trainer.v1.sampler.sampler_kwargs.method"]})
    assert describe(found) == describe(method)


def test_objective_in_verls_words():
    keys = verl.configuration(methods.dr_grpo(clip=(0.1, 0.3)))
    actor = {name.rpartition(".")[2]: value for name, value in keys.items() if ".actor." in name}
    assert actor == {
        "loss_mode": "workbench_token",
        "clip_ratio_low": 0.1,
        "clip_ratio_high": 0.3,
        "entropy_coeff": 0.0,
        "loss_agg_mode": "seq-mean-token-sum-norm",
        "loss_scale_factor": "${data.max_response_length}",
        "use_kl_loss": False,
    }
    keys = verl.configuration(methods.aero(kl=0.02))
    assert (
        keys["actor_rollout_ref.actor.kl_loss_coef"] == 0.02
        and keys["actor_rollout_ref.actor.use_kl_loss"] is True
    )


def flat(tree, prefix=""):
    if not isinstance(tree, dict) or prefix.endswith("sampler_kwargs."):
        return {prefix.rstrip("."): tree}
    return {
        key: value
        for name, branch in tree.items()
        for key, value in flat(branch, f"{prefix}{name}.").items()
    }


def test_the_recipe_is_what_configuration_says():
    recipe = flat(
        {
            k: v
            for k, v in yaml.safe_load((EXAMPLES / "verl_pods.yaml").read_text()).items()
            if k != "defaults"
        }
    )
    keys = verl.configuration(methods.pods(32, 8))
    assert describe(verl.method_of(recipe.pop("trainer.v1.sampler.sampler_kwargs"))) == keys.pop(
        "trainer.v1.sampler.sampler_kwargs.method"
    )
    assert {name: recipe.get(name, "missing") for name in keys} == keys


# what runs in verl


@needs_verl
@pytest.mark.parametrize("name", [name for name in verl.ESTIMATORS if name != "workbench"])
def test_verl_computes_our_advantages(name):
    from verl.trainer.ppo.ray_trainer import compute_advantage

    verl.register()
    verl.register()
    data = compute_advantage(batch(), name, config={})
    expected, _ = verl.ESTIMATORS[name](
        data.batch["token_level_rewards"], data.batch["response_mask"], data.non_tensor_batch["uid"]
    )
    assert torch.equal(data.batch["advantages"], expected) and torch.equal(
        data.batch["returns"], expected
    )
    assert (data.batch["advantages"] != 0).any()


@needs_verl
def test_ours_with_verls_settings_is_verls_grpo():
    from verl.trainer.ppo.core_algos import AdvantageEstimator
    from verl.trainer.ppo.ray_trainer import compute_advantage

    verl.register(verls=partial(group_normalized, ddof=1, eps=1e-6))
    theirs = compute_advantage(batch(), AdvantageEstimator.GRPO, config={}).batch["advantages"]
    torch.testing.assert_close(
        compute_advantage(batch(), "verls", config={}).batch["advantages"], theirs
    )


@needs_verl
def test_select_keeps_rows_with_everything_they_have():
    kept = verl.select(batch(acc=np.array(REWARDS) == 1), MaxVariance(2))
    assert kept.batch["row"].tolist() == [
        0,
        1,
        2,
        4,
    ]  # the first right and the first wrong row of both groups
    assert kept.non_tensor_batch["uid"].tolist() == ["a", "b", "a", "b"]
    assert kept.batch["token_level_scores"].sum(1).tolist() == [1, 0, 0, 1]
    assert kept.non_tensor_batch["acc"].tolist() == [True, False, False, True]


@needs_verl
def test_uneven_groups_and_pool_statistics():
    """Rejection keeps all right rows and as many wrong ones; its advantages are of the pool where that is uniform."""
    data = batch([1.0, 0, 0, 0, 0, 1, 1, 1], ["a"] * 5 + ["b"] * 3)
    kept = verl.select(data, Rejection(uniform=2, balanced=1, statistics="mixed"), posterior)
    assert sorted(kept.non_tensor_batch["uid"].tolist()) == ["a", "a", "b", "b"]
    at_first = kept.batch["advantages"][:, 0].tolist()
    # mean 1/2 of the kept pair of a; u = 4/5 for the three right rows of b
    assert at_first == pytest.approx([1, -1, 0.5, 0.5])
    with pytest.raises(ValueError, match="pass the advantage"):
        verl.select(data, Rejection())
    assert len(verl.select(data, All())) == 8


@needs_verl
@pytest.mark.parametrize("multiple, size", [(1, 4), (2, 4), (3, 6), (8, 8)])
def test_padding_divides_and_adds_nothing(multiple, size):
    from verl.trainer.ppo.core_algos import agg_loss
    from verl.trainer.ppo.ray_trainer import compute_advantage

    verl.register()
    kept = compute_advantage(
        verl.select(batch(), MaxVariance(2), multiple=multiple), "workbench_aero", config={}
    )
    assert len(kept) == size and len(kept.chunk(multiple)) == multiple
    padding = kept.non_tensor_batch["is_padding"]
    assert padding.tolist() == [False] * 4 + [True] * (size - 4)
    assert (kept.batch["advantages"][padding] == 0).all() and (
        kept.batch["response_mask"][padding] == 0
    ).all()
    plain = compute_advantage(verl.select(batch(), MaxVariance(2)), "workbench_aero", config={})
    for mode in ("token-mean", "seq-mean-token-mean"):
        losses = [
            agg_loss(data.batch["advantages"] ** 2, data.batch["response_mask"], mode)
            for data in (kept, plain)
        ]
        torch.testing.assert_close(*losses)


@needs_verl
def test_rows_without_scores_or_ids_are_refused():
    data = batch()
    data.non_tensor_batch.pop("uid")
    with pytest.raises(ValueError, match="score the rollouts first"):
        verl.select(data, MaxReward(2))
    with pytest.raises(ValueError, match="multiple=0"):
        verl.select(batch(), MaxReward(2), multiple=0)


@needs_verl
@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("mean", ["token", "rollout", "constant"])
def test_the_loss_in_verl_is_ours(ratio, mean):
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import FSDPActorConfig

    verl.register()
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(6, 5, generator=generator)
    new = (old + 0.5 * torch.randn(6, 5, generator=generator)).requires_grad_()
    advantages, mask = (
        torch.randn(6, generator=generator),
        torch.arange(5) < torch.tensor([5, 1, 3, 2, 4, 5])[:, None],
    )
    config = FSDPActorConfig(
        clip_ratio_low=0.1,
        clip_ratio_high=0.3,
        strategy="fsdp",
        rollout_n=1,
        ppo_mini_batch_size=1,
        ppo_micro_batch_size_per_gpu=1,
    )
    found, metrics = get_policy_loss_fn(f"workbench_{ratio}")(
        old,
        new,
        advantages[:, None] * mask,
        mask.long(),
        loss_agg_mode=verl.MEANS[mean],
        config=config,
    )
    expected = policy_loss(new, old, advantages, mask, clip=(0.1, 0.3), ratio=ratio, mean=mean)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(loss, new, retain_graph=True)[0] for loss in (found, expected))
    )
    assert 0 < metrics["actor/pg_clipfrac"] < 1


@needs_verl
def test_counts_in_verls_batches(tmp_path):
    from verl.utils import tensordict_utils as tensordicts

    from workbench.verl import v1 as verl_v1

    ours = verl.Allocation(Knapsack(n=4, low=2, up=8, fallback=False))
    prompts = tensordicts.get_tensordict(
        {"raw_prompt": chats(["a=", "b="]), "uid": np.array(["a", "b"], dtype=object)}
    )
    assert tensordicts.get(ours.allocate(prompts, 1), "__rollout_n__") == [4, 4]
    ours.feedback(batch([1.0, 0, 1, 0, 1, 1, 1, 1], ["a"] * 4 + ["b"] * 4), 1)
    assert tensordicts.get(ours.allocate(prompts, 2), "__rollout_n__") == [6, 2]
    verl_v1.save(ours, tmp_path)
    again = verl.Allocation(Knapsack(n=4, low=2, up=8, fallback=False))
    verl_v1.load(again, tmp_path)
    data = batch([0.0, 0.0], ["b", "a"])
    again.allocate(data, 2)
    assert data.non_tensor_batch["__rollout_n__"].tolist() == [2, 6]
    assert data.sample_level_repeat(
        data.non_tensor_batch["__rollout_n__"].tolist()
    ).non_tensor_batch["uid"].tolist() == (["b"] * 2 + ["a"] * 6)
    with pytest.raises(ValueError, match="checkpoint_callback_class"):
        verl_v1.load(again, tmp_path / "none")


def train(out, method, arguments, steps, *further):
    """Runs the example; one dict of workbench's metrics a step that was trained."""
    command = [
        sys.executable,
        EXAMPLES / "verl_run.py",
        "--method",
        method,
        "--arguments",
        json.dumps(arguments),
        "--steps",
        str(steps),
        "--out",
        out,
        *further,
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=out)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed[-4000:]
    trained = re.findall(
        r"step:(\d+) - (.*workbench/.*)", printed
    )  # a resumed run validates before it trains
    return {
        int(step): {
            name: float(value) for name, value in re.findall(r"workbench/(\w+):([-\d.e]+)", line)
        }
        for step, line in trained
    }


@needs_verl
def test_verls_command_line_reads_the_recipe():
    command = [
        sys.executable,
        "-m",
        "verl.trainer.main_ppo",
        "--config-dir",
        str(EXAMPLES),
        "--config-name",
        "verl_pods",
    ]
    shown = yaml.safe_load(
        subprocess.run(
            [*command, "--cfg", "job"], capture_output=True, text=True, check=True
        ).stdout
    )
    assert verl.method_of(
        shown["trainer"]["v1"]["sampler"]["sampler_kwargs"]
    ).selector == MaxVariance(8)
    assert (
        shown["actor_rollout_ref"]["rollout"]["n"] == 8
        and shown["actor_rollout_ref"]["actor"]["strategy"] == "fsdp"
    )


@needs_verl
@pytest.mark.slow
def test_a_training_run_in_verl_resumes_what_it_knows(tmp_path):
    """Four prompts a step; an epoch is four steps, so counts are uniform, and the memory goes through the checkpoint."""
    arguments = {"n": 4, "low": 2, "up": 8}
    first = train(tmp_path, "knapsack", arguments, 1)
    assert first[1]["generated"] == first[1]["kept"] == 16 and first[1]["stages"] == 1
    second = train(tmp_path, "knapsack", arguments, 2, "--resume")
    assert list(second) == [2] and second[2]["generated"] == 16
    memory = verl.Allocation(Knapsack(**arguments))
    importlib.import_module("workbench.verl.v1").load(
        memory, tmp_path / "checkpoints/global_step_2"
    )
    prompts = [
        row[0]["content"] for row in pandas.read_parquet(tmp_path / "train.parquet")["prompt"]
    ]
    counts = memory.start(verl.problem_ids(chats(prompts)), 3)
    assert counts.sum() == 64 and memory.metrics() == {
        "success_rate_known": 0.5
    }  # 8 of 16 prompts were tried


@needs_verl
@pytest.mark.slow
def test_dynamic_sampling_in_verl(tmp_path):
    """Groups that are not mixed are replaced by further prompts, and every row that is trained on has a gradient."""
    found = train(tmp_path, "dapo", {"n": 4, "max_draws": 2, "overlong": 0}, 1)[1]
    assert found["generated"] == 16 * found["stages"]
    assert found["kept"] in (4, 8, 12, 16) and (found["kept"] == 16 or found["stages"] == 2)
    assert found["effective_gradient_ratio"] == 1
