"""The contract and one run of every method on an NVIDIA GPU: pytest -n0 -m gpu tests/test_gpu.py

Each class loads a model of its own, and vLLM keeps its memory to the end of the process, hence the small shares. Where
one class disturbs another, run them one by one: -k TestUnslothByVLLM.
"""

from importlib.util import find_spec

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("no NVIDIA GPU is visible", allow_module_level=True)
if find_spec("unsloth"):
    import unsloth  # noqa: F401  before transformers

# isort: split
from contract import LORA, Contract, shaken
from test_run import go

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
    for name in ("unsloth", "vllm", "bitsandbytes")
}


class OnGPU(Contract):
    tolerance, exact, apart = 0.3, False, True  # a logit of 20 has steps of 0.125 in bfloat16

    def test_memory_is_on_the_gpu(self, made):
        assert made.device.type == "cuda" and torch.cuda.memory_allocated() > 0


class TestTransformers(OnGPU):
    apart = False

    @pytest.fixture(scope="class")
    def made(self):
        from workbench.policies.transformers import TransformersPolicy

        return TransformersPolicy.from_pretrained(MODEL, dtype="bfloat16")


@needs["vllm"]
class TestVLLM(OnGPU):
    @pytest.fixture(scope="class")
    def made(self):
        from workbench.policies.transformers import TransformersPolicy

        return TransformersPolicy.from_pretrained(MODEL, vllm={"gpu_memory_utilization": 0.1})


@needs["vllm"]
class TestVLLMLora(OnGPU):
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
        assert made.head.weight.dtype == torch.bfloat16 and len(made.parameters()) == 2 * 7 * 3


@needs["unsloth"]
@needs["bitsandbytes"]
class TestUnslothIn4Bit(OnGPU):
    @pytest.fixture(scope="class")
    def made(self):
        return by_unsloth(fast_inference=False, load_in_4bit=True)


@needs["unsloth"]
@needs["vllm"]
class TestUnslothByVLLM(OnGPU):
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
    assert (
        len(rows) == 2
        and manifest["hardware"]["gpu_bytes"] > 0
        and "unsloth" in manifest["versions"]
    )
