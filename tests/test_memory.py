"""Parameter counts against published and really built models, bytes against hand counts."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.labs import shipped
from workbench.policies.memory import (
    BYTES,
    KNOWN,
    Shape,
    estimate,
    from_config,
    out_of_memory,
    shape,
)

# numbers of parameters as the hub counts them in the safetensors files
PUBLISHED = {
    "Qwen2.5-0.5B": 494_032_768,
    "Qwen2.5-1.5B": 1_543_714_304,
    "Qwen2.5-3B": 3_085_938_688,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-Math-1.5B": 1_543_714_304,
    "Qwen2.5-Math-7B": 7_615_616_512,
    "DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "DeepSeek-R1-Distill-Qwen-7B": 7_615_616_512,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "Llama-3.1-8B": 8_030_261_248,
    "SmolLM2-135M": 134_515_008,
}
SMALL = Shape(hidden=8, layers=2, heads=4, kv_heads=2, head=3, mlp=10, vocabulary=20)


@pytest.mark.parametrize("name", KNOWN)
def test_known_models_have_the_published_number_of_parameters(name):
    assert KNOWN[name].parameters == PUBLISHED[name]


def built(family, **settings):
    """A model of transformers on the meta device, where parameters have shapes and no storage."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        family,
        **{
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 48,
            "vocab_size": 101,
            **settings,
        },
    )
    with torch.device("meta"):
        return config, AutoModelForCausalLM.from_config(config)


CONFIGS = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"head_dim": 16}),
    ("mistral", {"head_dim": 8}),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen2", {"num_key_value_heads": 4}),
    ("qwen3", {"head_dim": 16}),
    ("qwen3", {"head_dim": 8, "attention_bias": True}),
]


@pytest.mark.parametrize("family, settings", CONFIGS)
def test_counts_are_those_of_the_built_model(family, settings):
    config, model = built(family, **settings)
    sizes = from_config(config.to_dict())
    assert sizes.parameters == sum(p.numel() for p in model.parameters())
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    linear = {
        name: module for name, module in model.named_modules() if name.rpartition(".")[2] in names
    }
    assert len(linear) == 7 * config.num_hidden_layers
    assert sizes.linear == sum(module.weight.numel() for module in linear.values())
    assert sizes.lora_parameters(5) == sum(
        5 * (m.in_features + m.out_features) for m in linear.values()
    )


def test_adapters_are_those_of_peft():
    peft = pytest.importorskip("peft", reason="peft is not installed (pip install peft)")
    config, model = built("qwen2")
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear"))
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert trained == from_config(config.to_dict()).lora_parameters(4)


def test_the_cache_of_the_built_model_is_as_large_as_counted():
    import torch
    from transformers import DynamicCache

    config, model = built("qwen2")
    model = model.to_empty(device="cpu").to(torch.bfloat16)
    cache = DynamicCache(config=config)
    model(torch.zeros(3, 7, dtype=torch.long), past_key_values=cache)
    kept = sum(
        part.numel() * part.element_size()
        for layer in cache.layers
        for part in (layer.keys, layer.values)
    )
    assert (
        kept == estimate(from_config(config.to_dict()), rollouts=3, max_length=7)["keys and values"]
    )


def test_a_small_model_by_hand():
    assert SMALL.linear == 2 * (8 * 12 + 2 * 8 * 6 + 12 * 8 + 3 * 8 * 10) == 1056
    assert SMALL.parameters == 1056 + 2 * 2 * 8 + 8 + 20 * 8 == 1256
    assert SMALL.lora_parameters(2) == 2 * 2 * ((8 + 12) + 2 * (8 + 6) + (12 + 8) + 3 * 18) == 488
    parts = estimate(SMALL, lora_rank=2, max_length=5, rollouts=3, micro_tokens=10)
    assert parts == {
        "weights": 2512,
        "adapters": 4 * 488,
        "gradients": 4 * 488,
        "adam": 8 * 488,
        "casts": 0,
        "activations": 10 * (2 * (8 * 2 + 6 * 8 + 2 * 12 + 2 * 6 + 4 * 10 + 7 * 2) + 4 * 2 * 8),
        "logits": 12 * 10 * 20,
        "keys and values": 2 * 2 * 6 * 2 * 3 * 5,
        "attention": 2 * (6 + 12) * 2 * 3 * 5,
        "drawing": 10 * 4 * 3 * 20,
    }


def test_moments_of_8_bits_and_weights_of_vllm_by_hand():
    small = estimate(SMALL, lora_rank=2, optimizer_bits=8)
    assert small["adam"] == int(2 * 488 * (1 + 4 / 256))
    shared = estimate(SMALL, lora_rank=2, sampler_bytes=10_000)
    own = estimate(SMALL, lora_rank=2, sampler_bytes=10_000, shares_weights=False)
    assert shared["keys and values"] == 10_000 - 2512
    assert own["keys and values"] == 10_000
    assert shared["drawing"] == own["drawing"] == 0
    assert estimate(SMALL, rollouts=500, rows=256)["drawing"] == 10 * 4 * 256 * 20


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_p": 0.9}])
def test_drawing_takes_at_most_the_memory_that_is_counted(options):
    """Measured on a CPU: what PyTorch has given out at once while tokens are drawn."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from workbench.policies import Sampling
    from workbench.policies.decoding import draw_tokens
    from workbench.policies.memory import DRAWN

    rows, vocabulary = 8, 50_000
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        logits = torch.randn(rows, vocabulary)
        uniforms = torch.rand(rows, dtype=torch.float64)
        draw_tokens(logits, uniforms, Sampling(**options))
    events = [
        event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    events.sort(key=lambda event: event.start_ns())
    held = 0
    peak = 0
    for event in events:
        held += event.nbytes()
        peak = max(peak, held)
    counted = DRAWN * 4 * rows * vocabulary
    assert 0.55 * counted < peak < 1.001 * counted


def test_full_training_and_four_bits():
    full = estimate(SMALL, lora_rank=0, dtype="float32")
    assert full["weights"] == 5024
    assert full["adapters"] == 0
    assert full["gradients"] == 5024
    assert full["adam"] == 10048
    assert estimate(SMALL, load_in_4bit=True)["weights"] == 2 * (1256 - 1056) + 1056 * 9 // 16


def test_setting_a_of_pods_by_hand():
    """3B, rank 64, 16 x 64 rollouts, vLLM with half of 48 GB: the trainer needs about 8 GB more."""
    parts = estimate("Qwen2.5-3B", lora_rank=64, rollouts=1024, sampler_bytes=24e9)
    assert parts["weights"] + parts["keys and values"] == pytest.approx(24e9, abs=1)
    adapters = 64 * 36 * (2 * 4096 + 2 * 2304 + 3 * 13_056)
    layer = 6 * 2048 + 2 * 2048 + 2 * 256 + 4 * 11_008 + 7 * 64
    activations = 16_384 * (2 * (36 * 2048 + layer) + 4 * 2 * 2048)
    trainer = 16 * adapters + activations + 12 * 2**27
    assert sum(parts.values()) - 24e9 == pytest.approx(trainer, abs=1)
    assert 8e9 < trainer < 8.5e9
    # Without checkpointing all layers keep their activations.
    whole = estimate("Qwen2.5-3B", gradient_checkpointing=False)
    assert whole["activations"] == pytest.approx(82e9, rel=0.01)


@pytest.mark.parametrize(
    "autocast, dtype, rank", [(False, "float32", 0), (True, "float32", 0), (True, "bfloat16", 8)]
)
@pytest.mark.parametrize("checkpointing", [True, False])
def test_activations_are_of_the_size_that_a_backward_pass_keeps(
    checkpointing, autocast, dtype, rank
):
    """Measured: every tensor that autograd saves in a forward pass over 512 tokens, once each."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "llama",
        hidden_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=176,
        vocab_size=64,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).train()
    if rank:
        adapted = get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear"))
        model = adapted.get_base_model()
        model.enable_input_require_grads()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    kept = {}

    def count(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    ids = torch.zeros(8, 64, dtype=torch.long)
    with (
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
        torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor),
    ):
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state
    assert states.requires_grad
    sizes = from_config(config.to_dict())
    parts = estimate(
        sizes,
        lora_rank=rank,
        dtype=dtype,
        max_length=64,
        micro_tokens=512,
        gradient_checkpointing=checkpointing,
        autocast=autocast,
    )
    expected = parts["activations"] + parts["casts"]
    if checkpointing:
        # The layer that is computed again comes on top in the backward pass, as do the casts.
        expected = BYTES[dtype] * 512 * sizes.layers * sizes.hidden
    assert 0.7 * expected < sum(kept.values()) < 1.4 * expected


@pytest.mark.parametrize("rows, length", [(8, 100), (8, 300), (2, 1024)])
def test_activations_of_packed_rows_are_of_the_size_that_is_counted(rows, length):
    """Measured as above, with masks for short rows and without any for long ones."""
    import torch
    from test_decoding import built
    from test_packing import rollouts_of

    from workbench.policies import packing

    sizes = {"hidden_size": 64, "num_hidden_layers": 6, "intermediate_size": 176}
    policy = built("llama", **sizes, num_attention_heads=4, num_key_value_heads=2)
    assert policy.layout == "packed"
    rollouts = rollouts_of([0] * rows, [length] * rows)
    weights = {parameter.data_ptr() for parameter in policy.model.parameters()}
    kept = {}

    def count(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        policy._states_in("packed", rollouts)
    parts = estimate(
        from_config(policy.model.config.to_dict()),
        lora_rank=0,
        dtype="float32",
        max_length=length,
        micro_tokens=len(packing.pack(rollouts, "cpu").ids),
        gradient_checkpointing=False,
        autocast=False,
    )
    assert 0.9 * parts["activations"] < sum(kept.values()) < 1.4 * parts["activations"]


@given(
    st.integers(1, 4000),
    st.integers(0, 200),
    st.sampled_from([0, 1, 64]),
    st.sampled_from(list(KNOWN)),
)
def test_longer_and_more_never_takes_less(length, rollouts, rank, name):
    small = estimate(name, lora_rank=rank, max_length=length, rollouts=rollouts)
    large = estimate(name, lora_rank=rank, max_length=length + 1, rollouts=rollouts + 1)
    assert all(large[part] >= small[part] >= 0 for part in small)
    assert large["keys and values"] > small["keys and values"]


@pytest.mark.parametrize(
    "name",
    ["Qwen/Qwen2.5-3B-Instruct", "qwen2.5-3b", "unsloth/Qwen2.5-3B-Instruct-unsloth-bnb-4bit"],
)
def test_names(name):
    assert shape(name) == KNOWN["Qwen2.5-3B"]


def test_a_local_model():
    folder = shipped("models/tiny")
    config = json.loads((folder / "config.json").read_text())
    assert shape(folder) == shape(folder / "config.json") == from_config(config)
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "np") as weights:
        assert shape(folder).parameters == sum(
            weights.get_tensor(name).size for name in weights.keys()
        )


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: shape("no/such-model"), "model"),
        (lambda: shape("a b"), "a b"),
        (lambda: from_config({"model_type": "mamba"}), "model_type"),
        (lambda: from_config({"model_type": "llama"}), "hidden_size"),
        (lambda: estimate(SMALL, lora_rank=-1), "lora_rank"),
        (lambda: estimate(SMALL, max_length=0), "max_length"),
        (lambda: estimate(SMALL, rollouts=-1), "rollouts"),
        (lambda: estimate(SMALL, micro_tokens=0), "micro_tokens"),
        (lambda: estimate(SMALL, dtype="int8"), "dtype"),
        (lambda: estimate(SMALL, lora_rank=0, load_in_4bit=True), "load_in_4bit"),
    ],
)
def test_bad_arguments(call, named):
    with pytest.raises(ValueError, match=named):
        call()


def test_what_to_lower_by_how_much_when_memory_runs_out():
    import torch
    from conftest import tiny_policy

    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore.")
    policy = tiny_policy(rows=64)
    lab = SimpleNamespace(micro_tokens=16_384, sampling=SimpleNamespace(max_new_tokens=24))

    def told(phase, error=error):
        return out_of_memory(error, lab, SimpleNamespace(policy=policy, phase=phase))

    half = "micro_tokens from 16384 to 8192, which frees half of the activations"
    assert half in told("update")
    assert "Tried to allocate 2.00 GiB" in told("update") and "\n" not in told("update")
    assert "rows from 64 to 32, which frees half of the keys and values" in told("generate")
    for stops, ending in ((True, "of its share"), (False, "of its share, in a new process")):
        policy.engine = SimpleNamespace(share=0.4, stops=stops)
        for phase in ("generate", "update"):
            assert "gpu_memory_utilization from 0.4 to 0.3" in told(phase)
            assert told(phase).endswith(ending)
    policy.engine = SimpleNamespace()  # a server's
    assert "lower the rollouts of a round" in told("generate")
    assert "doctor" in out_of_memory(MemoryError(), lab, None)
    assert told("update", RuntimeError("shape '[2]' is invalid")) is None
    policy = SimpleNamespace()
    assert "micro_tokens from 16384 to 8192" in told("update")
    assert "lower the rollouts of a round" in told("verify")
