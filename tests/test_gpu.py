"""The contract and one run of every method on an NVIDIA GPU: pytest -n0 -m gpu tests/test_gpu.py

Each class loads a model of its own, and vLLM keeps its memory to the end of the process, hence the
small shares. Where one class disturbs another, run them one by one: -k TestUnslothByVLLM.

Not run on a GPU since these tests were last changed.
"""

from importlib.util import find_spec

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("no NVIDIA GPU is visible", allow_module_level=True)
if find_spec("unsloth"):
    import unsloth  # noqa: F401  before transformers

# isort: split
from conftest import go
from contract import LORA, Contract, shaken

import workbench as wb
from workbench.labs import shipped
from workbench.problems import arithmetic

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
        assert made.packs
        assert made.model.is_gradient_checkpointing


def random_qwen2(folder, **settings):
    """A small random Qwen2 model, with biases and a vocabulary of 152k, and our tokenizer."""
    from conftest import tiny_policy
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = tiny_policy().tokenizer
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
    assert policy.packs
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    policy.logprobs(drawn).sum().backward()
    # Two chunks of 2^27 float32 logits at most, several copies of each, and the small model.
    assert torch.cuda.max_memory_allocated() - before < 6 * 4 * 2**27
    with torch.no_grad():
        packed = policy.logprobs(drawn)
        policy.packs = False
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


@needs["vllm"]
class TestVLLM(OnGPU):
    tells_entropy = False

    @pytest.fixture(scope="class")
    def made(self):
        from workbench.policies.transformers import TransformersPolicy

        return TransformersPolicy.from_pretrained(MODEL, vllm={"gpu_memory_utilization": 0.1})


@needs["vllm"]
class TestVLLMLora(OnGPU):
    tells_entropy = False

    @pytest.fixture(scope="class")
    def made(self):
        from workbench.policies.transformers import TransformersPolicy

        return shaken(
            TransformersPolicy.from_pretrained(
                MODEL, lora=LORA, vllm={"gpu_memory_utilization": 0.1}
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
