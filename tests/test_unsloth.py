"""The contract (`contract.py`) on Unsloth's CPU backend: `make test-unsloth`.

Left to `test_gpu.py`: Unsloth's own kernels and checkpointing, which the CPU backend replaces by
plain PyTorch, its `generate`, bfloat16, 4-bit weights, and vLLM on the weights that Unsloth trains.
"""

from importlib.util import find_spec

import pytest

if not find_spec("unsloth"):
    pytest.skip(
        "unsloth is not installed; make test-unsloth has an environment with it",
        allow_module_level=True,
    )

import unsloth  # noqa: F401  before transformers

# isort: split
from conftest import go
from contract import Contract, shaken

import workbench as wb
from workbench.labs import shipped
from workbench.problems import arithmetic


class TestUnsloth(Contract):
    apart = True

    @pytest.fixture(scope="class")
    def made(self):
        from workbench.policies.unsloth import UnslothPolicy

        return shaken(
            UnslothPolicy.from_pretrained(
                shipped("models/tiny"),
                lora_rank=4,
                max_length=128,
                fast_inference=False,
                device="cpu",
            )
        )

    def test_every_projection_has_an_adapter(self, made):
        layers = made.model.config.num_hidden_layers
        assert len(made.parameters()) == 2 * 7 * layers
        assert made.device.type == "cpu"

    def test_the_models_own_generation_settings_do_not_bend_the_draws(self, made):
        assert made.model.generation_config.repetition_penalty in (None, 1.0)
        assert made.model.get_base_model().generation_config.repetition_penalty in (None, 1.0)


@pytest.mark.parametrize("method", ["pods", "ar3po"])
def test_a_run_trains_records_the_gap_and_resumes(method, tmp_path):
    lab = wb.labs.unsloth(
        str(shipped("models/tiny")),
        arithmetic(16, levels=(1, 2)),
        arithmetic(4, split="heldout"),
        samples=1,
        device="cpu",
        lora_rank=4,
        max_length=64,
        fast_inference=False,
        learning_rate=1e-3,
        template="{prompt}",
        sampling=wb.policies.Sampling(max_new_tokens=24),
    )
    chosen = {"pods": wb.methods.pods(8, 4), "ar3po": wb.methods.ar3po(k=2)}[method]
    rows = go(wb.Run(lab, chosen, out=tmp_path, problems_per_round=4), 2)
    assert [row["steps"] for row in rows] == [1, 1]
    assert max(row["gradient_norm"] for row in rows) > 0
    assert wb.load(tmp_path).rollouts()["sampler_gap"].dropna().between(0, 1e-3).all()
    assert len(go(wb.Run.resume(tmp_path), 3)) == 1
