"""The contract and one run of every method on an NVIDIA GPU: make test-gpu

Each class loads a model of its own, and a vLLM that shares its weights with Unsloth keeps its
memory to the end of the process, hence the small shares. `make test-gpu` runs every class and
function in a process of its own.

Tests of a real model take the directory or name in the variable WORKBENCH_GPU_MODEL, and are
skipped without it.

Not run on a GPU since these tests were last changed.
"""

import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("no NVIDIA GPU is visible", allow_module_level=True)
if find_spec("unsloth"):
    import unsloth  # noqa: F401  before transformers

# isort: split
from conftest import go, weights
from contract import LORA, Contract, shaken

import workbench as wb
from workbench.labs import shipped
from workbench.policies import memory
from workbench.problems import arithmetic
from workbench.records.round_stats import flops

pytestmark = pytest.mark.gpu
MODEL = str(shipped("models/tiny"))
needs = {
    name: pytest.mark.skipif(
        not find_spec(name),
        reason=f"{name} is not installed (pip install -c constraints-gpu.txt -e '.[gpu]')",
    )
    for name in ("unsloth", "vllm", "bitsandbytes", "vllm_bnb_plugin")
}


class OnGPU(Contract):
    tolerance = 0.3  # a logit of 20 has steps of 0.125 in bfloat16
    exact = False
    apart = True

    def test_memory_is_on_the_gpu(self, made):
        assert made.device.type == "cuda"
        assert torch.cuda.memory_allocated() > 0


class TestTransformers(OnGPU):
    apart = False

    @pytest.fixture(scope="class")
    def made(self):
        from workbench.policies.transformers import TransformersPolicy

        return TransformersPolicy.from_pretrained(MODEL)

    def test_float32_weights_compute_in_bfloat16_and_layers_are_computed_again(self, made):
        assert made.head.weight.dtype == torch.float32
        assert made.autocast
        assert made.layout == "packed"
        assert made.model.is_gradient_checkpointing

    def test_adapters_on_16_bit_weights_multiply_in_bfloat16(self):
        from workbench.policies.transformers import TransformersPolicy

        policy = TransformersPolicy.from_pretrained(MODEL, lora=LORA, dtype="bfloat16")
        seen = []
        for name, layer in policy.model.named_modules():
            if name.endswith("lora_A.default"):
                layer.register_forward_hook(lambda layer, given, result: seen.append(result.dtype))
        rollouts = policy.generate(["1+2="], [4], wb.policies.Sampling(max_new_tokens=8), 0)
        policy.logprobs(rollouts).sum().backward()
        assert set(seen) == {torch.bfloat16}
        assert {each.grad.dtype for each in policy.parameters()} == {torch.float32}


def random_qwen2(folder, **settings):
    """A small random Qwen2 model, with biases and a vocabulary of 152k, and a tokenizer of it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from examples.base_model import training

    tokenizer = training.tokenizer(151_936)
    config = AutoConfig.for_model(
        "qwen2",
        **{
            "hidden_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 512,
            "vocab_size": 151_936,
            "max_position_embeddings": 2048,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            **settings,
        },
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_vocabulary_of_152k_and_long_responses_stay_within_memory(tmp_path):
    """Packed rows give what padded rows give, and logits are held in chunks."""
    from workbench.policies.transformers import TransformersPolicy

    policy = TransformersPolicy.from_pretrained(random_qwen2(tmp_path))
    sampling = wb.policies.Sampling(max_new_tokens=600)
    prompts = [problem.prompt for problem in arithmetic(4)]
    drawn = policy.generate(prompts, [4] * 4, sampling, seed=0)
    assert drawn.lengths.max() > 512
    assert policy.layout == "packed"
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    policy.logprobs(drawn).sum().backward()
    # Two chunks of 2^27 float32 logits at most, several copies of each, and the small model.
    assert torch.cuda.max_memory_allocated() - before < 6 * 4 * 2**27
    with torch.no_grad():
        packed = policy.logprobs(drawn)
        policy.layout = "padded"
        padded = policy.logprobs(drawn)
    assert (packed - padded).abs().max() < 0.3


@needs["vllm"]
def test_an_engine_that_sleeps_gives_its_memory_back(tmp_path):
    from workbench.policies.transformers import TransformersPolicy

    vllm = {"gpu_memory_utilization": 0.2, "sleeps": True}
    policy = TransformersPolicy.from_pretrained(random_qwen2(tmp_path), vllm=vllm)
    prompts = [problem.prompt for problem in arithmetic(4)]
    free = []
    for seed in range(2):
        policy.generate(prompts, [2] * 4, wb.policies.Sampling(max_new_tokens=16), seed)
        free.append(torch.cuda.mem_get_info()[0])
    _, total = torch.cuda.mem_get_info()
    assert min(free) > 0.85 * total
    # One that sleeps can be stopped, and another can sleep in its place.
    policy.engine.stop()
    del policy
    again = TransformersPolicy.from_pretrained(tmp_path, vllm={**vllm, "max_length": 512})
    again.generate(prompts, [2] * 4, wb.policies.Sampling(max_new_tokens=16), 0)


@needs["vllm"]
def test_an_engine_that_is_stopped_gives_its_memory_back(tmp_path):
    from workbench.policies.transformers import TransformersPolicy

    policy = TransformersPolicy.from_pretrained(
        random_qwen2(tmp_path), vllm={"gpu_memory_utilization": 0.5}
    )
    policy.generate(["1+2="], [4], wb.policies.Sampling(max_new_tokens=16), 0)
    free, total = torch.cuda.mem_get_info()
    assert free < 0.6 * total
    policy.engine.stop()
    assert torch.cuda.mem_get_info()[0] > 0.9 * total
    # A notebook that asks for another length gets a second engine in the room of the first.
    other = TransformersPolicy.from_pretrained(
        tmp_path, vllm={"gpu_memory_utilization": 0.5, "max_length": 512}
    )
    other.generate(["1+2="], [4], wb.policies.Sampling(max_new_tokens=16), 0)


# About Qwen2.5-1.5B, so that decoding and handing over take the time that they take in earnest.
LIKE_1_5B = {
    "hidden_size": 1536,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
}


@needs["vllm"]
@pytest.mark.parametrize("merges", [False, True], ids=["adapter", "merged"])
def test_benchmark_hand_over(merges, tmp_path, capsys):
    """Seconds of handing over an adapter of rank 64, and tokens a second with it.

    The two lines that this prints decide which `hand_over` is the default.
    """
    from workbench.policies.transformers import TransformersPolicy

    random_qwen2(tmp_path, **LIKE_1_5B)
    policy = shaken(
        TransformersPolicy.from_pretrained(
            tmp_path,
            lora={"r": 64, "lora_alpha": 64, "target_modules": "all-linear"},
            dtype="bfloat16",
            vllm={"gpu_memory_utilization": 0.4, "max_length": 1024, "merges": merges},
        )
    )
    prompts = [problem.prompt for problem in arithmetic(16)]
    sampling = wb.policies.Sampling(max_new_tokens=512)
    policy.generate(prompts, [64] * 16, sampling, 0)  # kernels are compiled, graphs captured
    handing, decoding, tokens = 0.0, 0.0, 0
    for seed in range(1, 4):
        shaken(policy, 1e-3)
        torch.cuda.synchronize()
        started = time.perf_counter()
        policy.engine.update(policy.model)
        torch.cuda.synchronize()
        handed = time.perf_counter()
        drawn = policy.generate(prompts, [64] * 16, sampling, seed)
        handing += handed - started
        decoding += time.perf_counter() - handed
        tokens += drawn.lengths.sum()
    assert policy.engine.updates == 4
    gap = np.abs(policy.rescored(drawn).old_logprobs.values - drawn.old_logprobs.values)
    assert np.median(gap) < 0.1
    with capsys.disabled():
        print(
            f"\n{torch.cuda.get_device_name()}, merged={merges}: {handing / 3:.2f} s to hand over, "
            f"{tokens / decoding:,.0f} tokens/s, median gap {np.median(gap):.4f} nats"
        )


@needs["vllm"]
class TestVLLM(OnGPU):
    tells_entropy = False

    @pytest.fixture(scope="class")
    def made(self):
        from workbench.policies.transformers import TransformersPolicy

        return TransformersPolicy.from_pretrained(MODEL, vllm={"gpu_memory_utilization": 0.1})

    def test_the_contract_holds_under_asynchronous_scheduling(self, made):
        """The default on a GPU, which vLLM's build for CPUs switches off."""
        assert made.engine.llm.llm_engine.vllm_config.scheduler_config.async_scheduling


@needs["vllm"]
@pytest.mark.parametrize("merges", [False, True], ids=["adapter", "merged"], scope="class")
class TestVLLMLora(OnGPU):
    tells_entropy = False

    @pytest.fixture(scope="class")
    def made(self, merges):
        from workbench.policies.transformers import TransformersPolicy

        return shaken(
            TransformersPolicy.from_pretrained(
                MODEL, lora=LORA, vllm={"gpu_memory_utilization": 0.1, "merges": merges}
            )
        )


def by_unsloth(**options):
    from workbench.policies.unsloth import UnslothPolicy

    return shaken(
        UnslothPolicy.from_pretrained(
            MODEL, lora_rank=8, max_length=128, gpu_memory_utilization=0.15, **options
        )
    )


@needs["unsloth"]
class TestUnsloth(OnGPU):
    @pytest.fixture(scope="class")
    def made(self):
        return by_unsloth(fast_inference=False)

    def test_weights_are_bfloat16_and_every_projection_has_an_adapter(self, made):
        assert made.head.weight.dtype == torch.bfloat16
        assert len(made.parameters()) == 2 * 7 * 3

    def test_rows_end_to_end_give_what_padded_rows_give(self, policy):
        assert policy.layout == "joined"
        prompts = [problem.prompt for problem in arithmetic(4)]
        drawn = policy.generate(prompts, [1, 4, 2, 3], wb.policies.Sampling(max_new_tokens=32), 0)
        with torch.no_grad():
            joined = policy.logprobs(drawn)
            policy.layout = "padded"
            padded = policy.logprobs(drawn)
        policy.layout = "joined"
        assert (joined - padded).abs().max() < self.tolerance


@needs["unsloth"]
@needs["bitsandbytes"]
class TestUnslothIn4Bit(OnGPU):
    @pytest.fixture(scope="class")
    def made(self):
        return by_unsloth(fast_inference=False, load_in_4bit=True)


@needs["unsloth"]
@needs["vllm"]
@needs["bitsandbytes"]
@needs["vllm_bnb_plugin"]
class TestUnslothIn4BitByVLLM(OnGPU):
    tells_entropy = False

    @pytest.fixture(scope="class")
    def made(self):
        return by_unsloth(fast_inference=True, load_in_4bit=True)


@needs["unsloth"]
@needs["vllm"]
class TestUnslothByVLLM(OnGPU):
    tells_entropy = False

    @pytest.fixture(scope="class")
    def made(self):
        return by_unsloth(fast_inference=True)

    def test_the_smaller_limit_of_length_counts(self, made):
        assert made.max_length == min(128, made.engine.max_length)

    def test_the_process_gets_the_same_model_again_at_its_first_weights(self, policy):
        moved = {name: tensor + 1 for name, tensor in policy.state_dict().items()}
        policy.load_state_dict(moved)
        again = by_unsloth(fast_inference=True)
        assert again.model is policy.model
        assert all(
            tensor.abs().max() < 1
            for name, tensor in again.state_dict().items()
            if "lora_B" in name
        )


@needs["unsloth"]
@pytest.mark.parametrize("method", wb.methods.PAPERS)
def test_every_method_trains(method, tmp_path):
    lab = wb.labs.unsloth(
        MODEL,
        arithmetic(16, levels=(1, 2)),
        arithmetic(4, split="heldout"),
        samples=1,
        lora_rank=8,
        max_length=128,
        fast_inference=False,
        learning_rate=1e-4,
        template="{prompt}",
        sampling=wb.policies.Sampling(max_new_tokens=32),
    )
    rows = go(wb.Run(lab, getattr(wb.methods, method)(), out=tmp_path, problems_per_round=4), 2)
    manifest = wb.load(tmp_path).manifest
    assert len(rows) == 2
    assert manifest["hardware"]["gpu_bytes"] > 0
    assert "unsloth" in manifest["versions"]
    assert len(go(wb.Run.resume(tmp_path), 3)) == 1


@needs["unsloth"]
@needs["vllm"]
@needs["bitsandbytes"]
@needs["vllm_bnb_plugin"]
def test_the_setting_of_pods_trains_and_resumes(tmp_path):
    """4 bits by vLLM, moments of 8 bits and a warm-up, in two rounds and in one that goes on."""
    lab = wb.labs.pods_setting_a(
        arithmetic(16, levels=(1, 2)),
        arithmetic(4, split="heldout"),
        model=MODEL,
        rounds=400,  # so that the learning rate rises over four steps
        samples=1,
        max_length=128,
        gpu_memory_utilization=0.15,
        template="{prompt}",
        sampling=wb.policies.Sampling(temperature=0.9, max_new_tokens=32),
    )
    run = wb.Run(lab, wb.methods.pods(16, 4), out=tmp_path, problems_per_round=4)
    rows = go(run, 2)
    assert set(moments(tmp_path)) == {torch.uint8}
    rows += go(wb.Run.resume(tmp_path), 3)
    assert len(rows) == 3
    assert all(row["steps"] == 1 for row in rows)
    assert [row["learning_rate"] for row in rows] == pytest.approx([1.25e-6, 2.5e-6, 3.75e-6])
    # The weights in 4 bits are counted as what they stand for; vLLM may pad the vocabulary.
    shape = memory.shape(MODEL)
    expected = shape.parameters + shape.lora_parameters(64)
    for row in rows:
        counted = row["flops_generate"] / flops(1, sampled_tokens=row["tokens_sampled"])
        assert counted == pytest.approx(expected, rel=0.05)


def moments(path):
    """The types of the first moments in a record's checkpoint.

    Of an adapter of rank 64 on the tiny model even the smallest matrix has more than the 4,096
    entries below which bitsandbytes keeps 32 bits.
    """
    return [tensor.dtype for name, tensor in weights(path).items() if name.endswith(".state1")]


# Where Unsloth moves activations to the machine's memory: from 512 tokens on


def long_policy(folder, **options):
    """A random Qwen2 by Unsloth, with its biases, its vocabulary and room for long responses."""
    from workbench.policies.unsloth import UnslothPolicy

    return shaken(
        UnslothPolicy.from_pretrained(
            random_qwen2(folder), lora_rank=8, max_length=1024, fast_inference=False, **options
        )
    )


def resident_bytes():
    """What this process holds of the machine's memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@needs["unsloth"]
def test_rescoring_long_responses_leaves_the_machines_memory_as_it_is(tmp_path):
    policy = long_policy(tmp_path)
    prompts = [problem.prompt for problem in arithmetic(4)]
    drawn = policy.generate(prompts, [4] * 4, wb.policies.Sampling(max_new_tokens=600), 0)
    assert drawn.lengths.max() > 512
    policy.rescored(drawn)
    before = resident_bytes()
    for _ in range(10):
        policy.rescored(drawn)
    assert not policy.model.training
    # In training mode each of these forward passes would leave megabytes of activations behind.
    assert resident_bytes() - before < 2**24


@needs["unsloth"]
def test_a_step_on_long_responses_stays_within_memory(tmp_path):
    policy = long_policy(tmp_path)
    prompts = [problem.prompt for problem in arithmetic(4)]
    drawn = policy.generate(prompts, [4] * 4, wb.policies.Sampling(max_new_tokens=600), 0)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    policy.model.train()
    policy.logprobs(drawn).sum().backward()
    assert all(each.grad is not None for each in policy.parameters())
    assert torch.cuda.max_memory_allocated() - before < 6 * 4 * 2**27


@needs["unsloth"]
def test_the_reference_of_a_kl_penalty_is_right_under_offloaded_checkpointing(tmp_path):
    """Before the first step the adapter does nothing, so the divergence from the base is 0."""
    lab = wb.labs.unsloth(
        str(random_qwen2(tmp_path / "model")),
        arithmetic(16),
        lora_rank=8,
        max_length=1024,
        fast_inference=False,
        learning_rate=1e-3,
        template="{prompt}",
        sampling=wb.policies.Sampling(max_new_tokens=600),
    )
    method = wb.methods.grpo(4).but(objective=wb.objectives.Objective(kl=0.1))
    rows = go(wb.Run(lab, method, out=tmp_path / "run", problems_per_round=2), 2)
    assert rows[0]["kl"] < 1e-2
    assert all(0 <= row["kl"] < 1 for row in rows)


# The model that is named, and no other


LOADS = """
import sys
import unsloth
from safetensors.torch import load_file
from workbench.policies.unsloth import UnslothPolicy

name, revision, weights = sys.argv[1:]
policy = UnslothPolicy.from_pretrained(
    name, revision=revision, lora_rank=8, max_length=64, fast_inference=False
)
expected = load_file(weights)["model.embed_tokens.weight"]
own = policy.model.get_input_embeddings().weight.detach().cpu()
assert (own.float() - expected.float()).abs().max() < 0.01 * expected.abs().max()
print("the model that was named")
"""


@needs["unsloth"]
def test_offline_the_repository_and_revision_that_are_named_are_loaded(tmp_path):
    """A name that Unsloth's tables know, in a cache that holds two revisions of it alone."""
    from safetensors.torch import load_file, save_file

    name = "Qwen/Qwen2.5-0.5B-Instruct"
    cache = tmp_path / "hub" / "models--Qwen--Qwen2.5-0.5B-Instruct"
    (cache / "refs").mkdir(parents=True)
    for revision, factor in (("main", 1.0), ("v2", 2.0)):
        commit = f"{int(factor)}" * 40
        (cache / "refs" / revision).write_text(commit)
        folder = cache / "snapshots" / commit
        shutil.copytree(MODEL, folder)
        weights = load_file(folder / "model.safetensors")
        weights["model.embed_tokens.weight"] = factor * weights["model.embed_tokens.weight"]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    done = subprocess.run(
        [sys.executable, "-c", LOADS, name, "v2", str(folder / "model.safetensors")],
        env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "the model that was named" in done.stdout


# A real model


@needs["unsloth"]
@needs["vllm"]
@pytest.mark.skipif(
    "WORKBENCH_GPU_MODEL" not in os.environ, reason="WORKBENCH_GPU_MODEL names no model"
)
@pytest.mark.parametrize("float32_head", [False, True])
def test_the_gap_of_a_real_models_sampler_is_small_and_corrected(float32_head, tmp_path):
    lab = wb.labs.unsloth(
        os.environ["WORKBENCH_GPU_MODEL"],
        arithmetic(64),
        lora_rank=16,
        max_length=512,
        gpu_memory_utilization=0.3,
        float32_head=float32_head,
        sampling=wb.policies.Sampling(max_new_tokens=256),
    )
    rows = go(wb.Run(lab, wb.methods.grpo(8), out=tmp_path, problems_per_round=4), 2)
    for row in rows:
        assert 0 < row["sampler_gap"] < 0.1
        assert 0 <= row["sampler_above"] < 0.2
