"""The contract (`contract.py`) on every kind of policy that a CPU can run, in float32.

`make test` runs the policies of transformers, full and LoRA. The others have environments of their
own: `make test-unsloth` (Unsloth's CPU backend, `test_unsloth.py`) and `make test-vllm` (the CPU
build of vLLM, `test_vllm.py`). What no CPU can run is in `test_gpu.py`: Unsloth's kernels, its
gradient checkpointing, bfloat16 and 4-bit weights, and vLLM on the weights that Unsloth trains.
"""

from importlib.util import find_spec

import pytest
from conftest import tiny_policy
from contract import LORA, Contract, shaken


class TestTransformers(Contract):
    @pytest.fixture(scope="class")
    def made(self):
        return tiny_policy()


@pytest.mark.skipif(not find_spec("peft"), reason="peft is not installed (pip install peft)")
class TestTransformersLora(Contract):
    @pytest.fixture(scope="class")
    def made(self):
        return shaken(tiny_policy(lora=LORA))
