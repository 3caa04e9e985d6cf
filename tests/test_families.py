"""Every family of models at two layers: it samples the distribution that it is trained on.

The table of families in `docs/guides/own-model.md` is the list of this file.
"""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from conftest import go, same_record, small_lab, tiny_policy
from contract import LORA, PROMPTS, fresh, shaken
from packaging.version import Version
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

import workbench as wb
from workbench.policies import Sampling
from workbench.policies.decoding import CachedDecoder, WholeDecoder
from workbench.policies.transformers import TransformersPolicy
from workbench.policies.transformers import _with_lora as with_lora
from workbench.verifiers import Scores

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "own-model.md"
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MIXED = {"layer_types": ["linear_attention", "full_attention"]}
WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
DELTA = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 24, "mamba_d_state": 8, "mamba_chunk_size": 8}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
}
# What the table of the page says of each way.
WAYS = {
    "merged": "packed | merged weights",
    "packed": "packed | its cache",
    "cached": "padded | its cache",
    "whole": "padded | no cache, slowly",
    "refused": "refused: {} |",
}
# Family, its way, and what makes it a small model with every kind of its layers.
FAMILIES = {
    "Llama": ("llama", "merged", {}),
    "Mistral": ("mistral", "merged", {"sliding_window": None}),
    "Qwen 2, 2.5": ("qwen2", "merged", {"tie_word_embeddings": True}),
    "Qwen 3": ("qwen3", "merged", {"head_dim": 16}),
    "GPT-2": ("gpt2", "packed", {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    "Mistral with windows": ("mistral", "cached", {"sliding_window": 8}),
    "Mixtral": ("mixtral", "cached", LOCAL_EXPERTS),
    "Qwen 3 with experts": ("qwen3_moe", "cached", {"head_dim": 16, **EXPERTS}),
    "Qwen 3 Next": ("qwen3_next", "cached", {"head_dim": 16, **MIXED, **DELTA, **EXPERTS}),
    "Qwen 3.5": ("qwen3_5_text", "cached", {"head_dim": 16, **MIXED, **DELTA}),
    "Qwen 3.5 with experts": (
        "qwen3_5_moe_text",
        "cached",
        {"head_dim": 16, "shared_expert_intermediate_size": 16, **MIXED, **DELTA, **EXPERTS},
    ),
    "Gemma 2": ("gemma2", "cached", {"head_dim": 16, **WINDOWS}),
    "Gemma 3": ("gemma3_text", "cached", {"head_dim": 16, **WINDOWS}),
    "Gemma 4": (
        "gemma4_text",
        "cached",
        {"head_dim": 16, "vocab_size_per_layer_input": 66, **WINDOWS},
    ),
    "Llama 4": (
        "llama4_text",
        "cached",
        {
            "head_dim": 12,
            "num_local_experts": 2,
            "attention_chunk_size": 8,
            "intermediate_size_mlp": 80,
            "layer_types": ["chunked_attention", "full_attention"],
        },
    ),
    "Phi-3, Phi-4": ("phi3", "cached", {}),
    "GPT-OSS": ("gpt_oss", "cached", {"head_dim": 12, **LOCAL_EXPERTS, **WINDOWS}),
    "Granite": ("granite", "cached", {"logits_scaling": 2.0}),
    "Granite hybrid": (
        "granitemoehybrid",
        "cached",
        {
            "layer_types": ["mamba", "attention"],
            "shared_intermediate_size": 16,
            "logits_scaling": 2.0,
            **MAMBA,
            **LOCAL_EXPERTS,
        },
    ),
    "Bamba": ("bamba", "cached", {"attn_layer_indices": [1], "mamba_n_groups": 1, **MAMBA}),
    "Jamba": (
        "jamba",
        "cached",
        {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 2,
            "mamba_d_state": 8,
            "use_mamba_kernels": False,
        },
    ),
    "Mamba": ("mamba", "cached", {"state_size": 8}),
    "Mamba 2": (
        "mamba2",
        "cached",
        {"num_heads": 4, "head_dim": 24, "state_size": 8, "n_groups": 1, "chunk_size": 8},
    ),
    "Falcon Mamba": ("falcon_mamba", "cached", {"state_size": 8}),
    "Falcon-H1": ("falcon_h1", "cached", {"mamba_d_ssm": 96, "head_dim": 12, **MAMBA}),
    "LFM 2": (
        "lfm2",
        "cached",
        {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    ),
    "OLMo 2": ("olmo2", "cached", {}),
    "OLMo hybrid": ("olmo_hybrid", "cached", {**MIXED, **DELTA}),
    "MiniMax": (
        "minimax",
        "whole",
        {"num_local_experts": 2, "num_experts_per_tok": 1, "block_size": 8, **MIXED},
    ),
    "Kimi Linear": (
        "kimi_linear",
        "cached",
        {**MIXED, **EXPERTS, **LATENT, "linear_head_dim": 8, "linear_num_heads": 4},
    ),
    "DeepSeek 3": (
        "deepseek_v3",
        "cached",
        {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, **EXPERTS, **LATENT},
    ),
    "Cohere 2": ("cohere2", "cached", WINDOWS),
    "SmolLM 3": ("smollm3", "cached", {}),
    "GLM 4": ("glm4", "cached", {"head_dim": 12}),
    "RWKV": ("rwkv", "whole", {}),
    "Recurrent Gemma": (
        "recurrent_gemma",
        "whole",
        {
            "head_dim": 12,
            "lru_width": 48,
            "attention_window_size": 8,
            "block_types": ["recurrent", "attention"],
        },
    ),
}
# Family, settings, and what the error says.
REFUSED = {
    "BERT and its like": ("bert", {"is_decoder": True}, "changes its logits after the head"),
    "Doge": ("doge", {"head_dim": 12}, "computes a text differently beside others"),
    "XLM": (
        "xlm",
        {"emb_dim": 48, "n_layers": 2, "n_heads": 4},
        "samples from another distribution",
    ),
}
TURNS = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 6,
    "long_factor": [4.0] * 6,
    "original_max_position_embeddings": 32,
    "factor": 8.0,
}

TOWER = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 28,
    "patch_size": 14,
}
VISUAL = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16}
TURNED = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]}
# Models that see images, and have no class for text alone.
SEEING = {
    "mistral3": {
        "model_type": "ministral3",
        "head_dim": 16,
        "images": {"model_type": "pixtral", "head_dim": 8, **TOWER},
    },
    "llava": {
        "model_type": "llama",
        "images": {"model_type": "clip_vision_model", **TOWER},
    },
    "qwen2_5_vl": {"rope_parameters": TURNED, "images": {**VISUAL, "out_hidden_size": 48}},
    "qwen3_vl": {
        "head_dim": 12,
        "rope_parameters": TURNED,
        "images": {**VISUAL, "out_hidden_size": 48, "deepstack_visual_indexes": []},
    },
}


def model_of(family, images=None, **settings):
    """A small random model of a family, with the tiny model's vocabulary.

    One that sees images, with a part for them of these settings, keeps its sizes inside.
    """
    tokenizer = tiny_policy().tokenizer
    sizes = {
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 80,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 256,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **settings,
    }
    torch.manual_seed(0)
    if images:
        config = AutoConfig.for_model(family, text_config=sizes, vision_config=images)
    else:
        config = AutoConfig.for_model(family, **sizes)
    model = (AutoModelForImageTextToText if images else AutoModelForCausalLM).from_config(config)
    # Norms and biases start as ones and zeros, which would hide where they are left out.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def gap(policy, tokens=24):
    """The largest difference of log-probabilities between sampler and trainer, in nats."""
    drawn = policy.generate(PROMPTS, [1] * len(PROMPTS), Sampling(max_new_tokens=tokens), seed=1)
    return np.abs(fresh(policy, drawn) - drawn.old_logprobs.padded()).max()


class Odd:
    """Pays for texts of an odd length, so that random models earn something."""

    def score(self, responses, answers):
        return Scores.of(["ok" if len(text) % 2 else "wrong" for text in responses])


def way_of(policy):
    """How a policy lays out rows and samples, as in `WAYS`."""
    if policy.layout == "packed":
        return "merged" if policy.merges else "packed"
    return {CachedDecoder: "cached", WholeDecoder: "whole"}[policy.plain_decoder]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.slow
def test_a_family_samples_what_it_is_trained_on_and_learns(name, lora, tmp_path):
    family, way, settings = FAMILIES[name]
    if lora:
        pytest.importorskip("peft")

    def make_policy():
        model = model_of(family, **settings)
        if lora:
            model = with_lora(model, LORA)
        with warnings.catch_warnings():
            warnings.filterwarnings("error" if way != "whole" else "ignore", message="model: ")
            made.append(TransformersPolicy(model, tiny_policy().tokenizer, name=family))
        return made[-1]

    made = []
    sampling = Sampling(max_new_tokens=12)
    lab = replace(small_lab(held_out=0), make_policy=make_policy, sampling=sampling, verifier=Odd())
    run = wb.Run(lab, wb.methods.grpo(4), out=tmp_path / "run", problems_per_round=2)
    [row] = run.rounds(1, progress=False)
    assert row["steps"] == 1
    [policy] = made
    assert way_of(policy) == way
    assert gap(shaken(policy)) < 1e-4


def test_an_adapter_stands_on_linear_modules_of_a_family_s_own():
    pytest.importorskip("peft")
    model = with_lora(model_of("falcon", multi_query=True), LORA)
    assert any("lora" in name for name, _ in model.named_parameters())
    assert gap(shaken(TransformersPolicy(model, tiny_policy().tokenizer))) < 1e-4


@pytest.mark.parametrize("family", SEEING)
@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.slow
def test_a_model_that_sees_images_is_one_of_text(family, lora, tmp_path):
    if lora:
        pytest.importorskip("peft")
    model = written(tmp_path / "model", family, **SEEING[family])
    sampling = Sampling(max_new_tokens=12)
    pool = wb.problems.arithmetic(8, seed=2)
    lab = wb.labs.transformers(
        model, pool, verifier=Odd(), sampling=sampling, lora=lora, learning_rate=1e-3, device="cpu"
    )
    options = {"problems_per_round": 2, "checkpoint_every": 1}
    for name, lives in {"one": [2], "two": [1, 2]}.items():
        for rounds in lives:
            go(wb.Run(lab, wb.methods.grpo(4), out=tmp_path / name, **options), rounds)
    one, two = (wb.load(tmp_path / name) for name in ("one", "two"))
    assert one.rounds["steps"].sum() > 0
    same_record(one, two)
    policy = shaken(lab.policy())
    assert gap(policy) < 1e-4
    # The whole model, asked as its authors ask it.
    drawn = policy.generate(PROMPTS, [1] * len(PROMPTS), sampling, seed=1)
    trained = fresh(policy, drawn)
    for row, (prompt, response) in enumerate(zip(drawn.prompt, drawn.response)):
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([[*prompt, *response]])).logits[0]
        logprobs = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        plain = logprobs[range(len(response)), response.tolist()].numpy()
        assert np.abs(trained[row, : len(response)] - plain).max() < 1e-4


@pytest.mark.parametrize("family", ["t5", "clip"])
def test_what_is_no_language_model_is_refused_before_its_weights_are_looked_for(family, tmp_path):
    settings = {"vocab_size": 66} if family == "t5" else {"text_config": {"vocab_size": 66}}
    AutoConfig.for_model(family, **settings).save_pretrained(tmp_path)
    tiny_policy().tokenizer.save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=f"^model: {family!r} is no causal language model"
    ) as error:
        TransformersPolicy.from_pretrained(tmp_path, device="cpu")
    assert len(str(error.value)) < 100


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_would_be_trained_on_another_distribution_is_refused(name):
    family, settings, cause = REFUSED[name]
    if name == "Doge" and Version(transformers.__version__) >= Version("5.24"):
        pytest.skip("it computes the same beside others there")
    with pytest.raises(ValueError, match=f"^model: .*{cause}") as error:
        TransformersPolicy(model_of(family, **settings), tiny_policy().tokenizer)
    assert "\n" not in str(error.value)


def test_the_table_of_the_page_is_this_list():
    rows = [f"| {name} | {WAYS[way]} |" for name, (_, way, _) in FAMILIES.items()]
    rows += [
        f"| {name} | {WAYS['refused'].format(cause)} |" for name, (_, _, cause) in REFUSED.items()
    ]
    table = PAGE.read_text().split("\n| --- ")[1].split("\n\n")[0].splitlines()[1:]
    assert [" ".join(row.split()) for row in table] == [" ".join(row.split()) for row in rows]


# Beyond the switches of the position encoding


def written(folder, family, **settings):
    """A directory of a small model with the tiny model's tokenizer."""
    model_of(family, **settings).save_pretrained(folder)
    tiny_policy().tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "family, settings",
    [
        ("phi3", {"rope_parameters": TURNS, "original_max_position_embeddings": 32}),
        (
            "llama",
            {
                "max_position_embeddings": 32,
                "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
            },
        ),
        ("llama", {"max_position_embeddings": 32}),
    ],
    ids=["longrope", "dynamic", "positions"],
)
def test_texts_stay_within_what_a_model_computes_in_one_way(family, settings, tmp_path):
    folder = written(tmp_path, family, **settings)
    policy = TransformersPolicy.from_pretrained(folder, device="cpu")
    assert policy.max_length == 32 and gap(policy, 16) < 1e-4
    with pytest.raises(ValueError, match=r"^max_length=32: problem .* tokens"):
        gap(policy, 40)
    lab = wb.labs.transformers(
        folder, wb.problems.arithmetic(8), sampling=Sampling(max_new_tokens=40), device="cpu"
    )
    with pytest.raises(ValueError, match=r"^sampling.max_new_tokens=40: .* 32 .*Sampling\("):
        lab.policy()


def test_long_texts_of_longrope_turn_as_long_ones_from_the_first_token_on(tmp_path):
    settings = {"rope_parameters": TURNS, "original_max_position_embeddings": 32}
    folder = written(tmp_path, "phi3", **settings)
    lab = wb.labs.transformers(
        folder,
        wb.problems.arithmetic(8),
        sampling=Sampling(max_new_tokens=60),
        max_length=100,
        device="cpu",
    )
    policy = lab.policy()
    assert policy.max_length == 100 and gap(policy, 60) < 1e-4
    # A short response has the same numbers alone and beside a long one.
    drawn = policy.generate(PROMPTS[:2], [1, 1], Sampling(max_new_tokens=60), seed=1)
    lengths = drawn.lengths.tolist()
    first = int(np.argmin(lengths))
    alone = fresh(policy, drawn.take(np.array([first])))[0]
    beside = fresh(policy, drawn)[first]
    assert np.abs(alone[: lengths[first]] - beside[: lengths[first]]).max() < 1e-4


def test_windows_are_tried_beyond_their_size():
    policy = TransformersPolicy(model_of("mistral", sliding_window=40), tiny_policy().tokenizer)
    assert policy._trial().prompt.lengths.max() == 42


def test_a_cache_that_forgets_is_not_used(monkeypatch):
    forget = CachedDecoder._newest_states

    def forgetful(self, ids, positions):
        if self.cache is not None:
            self.mask = torch.cat([torch.zeros_like(self.mask[:, :-1]), self.mask[:, -1:]], 1)
        return forget(self, ids, positions)

    monkeypatch.setattr(CachedDecoder, "_newest_states", forgetful)
    with pytest.warns(UserWarning, match="model: Gemma.* sampled slowly, .* nats"):
        policy = TransformersPolicy(model_of("gemma", head_dim=16), tiny_policy().tokenizer)
    assert policy.plain_decoder is WholeDecoder and gap(policy) < 1e-4
