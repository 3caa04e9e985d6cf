"""The tables of the guide to one GPU are those that the estimates give."""

from pathlib import Path

import pytest

from examples.gpu_tables import GPUS, MODELS, choice, markdown, seconds, what_fits, what_to_choose
from workbench.cli.doctor import fit, settings_of

GUIDE = Path(__file__).parent.parent / "docs" / "guides" / "gpu.md"
OPTIONS = {
    "all parameters": ("transformers", {"engine": "vllm"}),
    "LoRA, both labs": ("transformers", {"engine": "vllm", "dtype": "bfloat16", "lora_rank": 64}),
    "LoRA, Unsloth": ("unsloth", {}),
    "4 bits, Unsloth": ("unsloth", {"load_in_4bit": True}),
}


@pytest.mark.parametrize("table", [what_fits, what_to_choose])
def test_the_guide_has_the_tables_of_the_estimates(table):
    assert markdown(table()) in GUIDE.read_text()


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("model", MODELS)
def test_doctor_says_that_the_choice_fits(gpu, model):
    way, share = choice(gpu, model)
    lab, options = OPTIONS[way]
    options = {**options, "gpu_memory_utilization": share, "max_length": 1024}
    card = {"name": gpu.name, "bytes": gpu.memory, "free": gpu.memory}
    told = fit(model, {"gpus": [card], "memory": 64e9}, settings_of(lab, options))
    assert told["fits"], told["bytes"]


def test_the_seconds_by_hand():
    """Qwen2.5-7B on an H100 decodes as fast as it can multiply."""
    sampling, update = seconds(GPUS[2], "Qwen2.5-7B", "LoRA, both labs", 0.5)
    parameters = 7_615_616_512
    assert sampling == pytest.approx(2 * parameters * 16 * 64 * 512 / (0.5 * 989e12))
    assert update == pytest.approx(6 * parameters * 16 * 16 * 512 / (0.4 * 989e12))
