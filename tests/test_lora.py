"""LoRA layers on a CPU against what peft computes."""

import copy
import warnings

import numpy as np
import pytest
import torch
from conftest import tiny_policy
from contract import LORA, PROMPTS, SAMPLING, shaken
from test_run import go
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import workbench as wb
from workbench.policies.merged import is_plain, merged_weights
from workbench.policies.transformers import _with_lora as with_lora
from workbench.utils.shipped import shipped

pytest.importorskip("peft", reason="peft is not installed (pip install peft)")

MODEL = str(shipped("models/tiny"))


def unfused(policy):
    """The same policy with the forward functions of peft."""
    policy = copy.deepcopy(policy)
    for module in policy.decoder.modules():
        vars(module).pop("forward", None)
    return policy


def gradients(policy, rollouts):
    """Log-probabilities, and the gradient of their sum for each parameter, end to end."""
    policy.model.train()
    logprobs = policy.logprobs(rollouts)
    logprobs.sum().backward()
    return logprobs.detach(), torch.cat([each.grad.flatten() for each in policy.parameters()])


def fused_modules(policy):
    return [module for module in policy.decoder.modules() if "forward" in vars(module)]


def test_names_that_transformers_gives_up_do_not_warn(monkeypatch):
    """From 5.24 on `gradient_checkpointing_enable` and what peft reads have other names."""

    def old(name, value):
        warnings.warn(
            f"`{name}` is deprecated and will be removed in v6.", FutureWarning, stacklevel=2
        )
        return value

    plain = PreTrainedModel.gradient_checkpointing_enable
    monkeypatch.setattr(
        PreTrainedModel,
        "gradient_checkpointing_enable",
        lambda model, *rest: old("gradient_checkpointing_enable", plain(model, *rest)),
    )
    monkeypatch.setattr(
        PreTrainedModel,
        "is_gradient_checkpointing",
        property(lambda model: old("is_gradient_checkpointing", True)),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy = tiny_policy(lora=LORA, gradient_checkpointing=True)
    layers = policy.decoder.layers
    assert all(layer.gradient_checkpointing for layer in layers)


@pytest.mark.slow
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 0.05)])
def test_the_gradients_are_those_of_peft(dtype, tolerance):
    policy = shaken(tiny_policy(dtype=dtype, lora=LORA))
    assert fused_modules(policy)
    rollouts = policy.generate(PROMPTS, [3] * 6, SAMPLING, seed=1)
    ours, theirs = (gradients(each, rollouts) for each in (policy, unfused(policy)))
    for mine, other in zip(ours, theirs):
        assert (mine - other).norm() < tolerance * other.norm()


def test_a_switched_off_adapter_adds_nothing():
    policy = shaken(tiny_policy(lora=LORA))
    rollouts = policy.generate(PROMPTS, [1] * 6, SAMPLING, seed=1)
    with torch.no_grad():
        reference = policy.frozen().logprobs(rollouts)
        base = tiny_policy().logprobs(rollouts)
    assert torch.allclose(reference, base, atol=1e-4)


def test_dropout_is_left_to_peft():
    policy = shaken(tiny_policy(lora={**LORA, "lora_dropout": 0.5}))
    rollouts = policy.generate(PROMPTS, [1] * 6, SAMPLING, seed=1)
    found = []
    for each in (policy, unfused(policy)):
        torch.manual_seed(0)
        found.append(gradients(each, rollouts)[0].numpy())
    assert np.array_equal(*found)


def test_variants_of_lora_are_left_alone():
    policy = tiny_policy(lora={**LORA, "use_dora": True})
    assert not fused_modules(policy) and not any(map(is_plain, policy.decoder.modules()))


@pytest.mark.slow
def test_a_run_with_dropout_repeats_itself_and_goes_on_as_if_it_had_not_stopped(tmp_path):
    """Dropout draws from torch's own generator, whatever was drawn from it before."""
    lab = wb.labs.transformers(
        MODEL,
        wb.problems.arithmetic(8, levels=(1, 2)),
        device="cpu",
        learning_rate=1e-3,
        sampling=SAMPLING,
        lora={**LORA, "lora_dropout": 0.3},
    )

    def run(name):
        return wb.Run(lab, wb.methods.grpo(4), out=tmp_path / name, problems_per_round=2)

    whole = go(run("at once"), 2)
    torch.rand(3)
    state = torch.get_rng_state()
    go(run("stopped"), 1)
    assert torch.equal(torch.get_rng_state(), state), "what others draw is as it was"
    [resumed] = go(wb.Run.resume(tmp_path / "stopped", lab=lab), 2)
    assert resumed["gradient_norm"] == whole[1]["gradient_norm"] > 0
    assert resumed["loss"] == whole[1]["loss"]


def test_an_adapter_on_the_embedding_is_in_what_is_sampled():
    policy = shaken(tiny_policy(lora={**LORA, "target_modules": ["q_proj", "embed_tokens"]}))
    rollouts = policy.generate(PROMPTS, [2] * 6, SAMPLING, seed=1)
    with torch.no_grad():
        trained = policy.logprobs(rollouts).numpy()
    assert np.abs(trained - rollouts.old_logprobs.padded()).max() < 1e-3


@pytest.mark.parametrize("changed", [{"init_lora_weights": "olora"}, {"bias": "lora_only"}])
def test_an_adapter_without_a_fixed_model_under_it_is_no_reference(changed):
    """Their weights under the adapter differ from the loaded ones, at once or in training."""
    policy = tiny_policy(lora={**LORA, **changed})
    [name] = changed
    with pytest.raises(ValueError, match=rf"lora: .*{name}=.*kl"):
        policy.frozen()


def test_weights_of_another_shape_are_not_repeated_until_they_fit():
    policy = tiny_policy(lora=LORA)
    state = tiny_policy(lora={**LORA, "r": 1}).state_dict()
    with pytest.raises(ValueError, match=r"state: .* shape"):
        policy.load_state_dict(state)


def test_an_adapter_on_a_transposed_weight_is_merged_as_peft_merges_it():
    """The layers of GPT-2 keep their weights as (in, out)."""
    from peft import LoraConfig, get_peft_model

    config = GPT2Config(
        n_layer=1,
        n_head=2,
        n_embd=16,
        vocab_size=32,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    adapter = LoraConfig(
        r=2, target_modules=["attn.c_proj", "c_fc"], fan_in_fan_out=True, init_lora_weights=False
    )
    model = get_peft_model(GPT2LMHeadModel(config), adapter).eval()
    merged = GPT2LMHeadModel(config).eval()
    # The head shares its weight with the embedding, and is not listed apart.
    merged.load_state_dict(dict(merged_weights(model, torch.float32)), strict=False)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, model(ids).logits)


@pytest.mark.slow
def test_an_adapter_on_experts_and_routers_is_merged_as_peft_computes_it():
    """They keep their weights as parameters, and peft puts wrappers of another kind on these."""
    config = Qwen3MoeConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=8,
        vocab_size=32,
    )
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(config)
    merged = copy.deepcopy(model).eval()
    model = with_lora(model, LORA).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.add_(torch.randn_like(weight))
    merged.load_state_dict(dict(merged_weights(model, torch.float32)))
    ids = torch.arange(8)[None]
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, model(ids).logits)
