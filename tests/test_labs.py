"""The labs: the shipped one, and any causal LM of one's own, LoRA included."""

import pytest
from test_run import go

import workbench as wb
from workbench.labs import from_config, shipped
from workbench.problems import arithmetic


def test_the_shipped_model_is_there_and_small():
    files = {p.name: p.stat().st_size for p in shipped("models/tiny").iterdir()}
    assert {"model.safetensors", "tokenizer.json", "config.json", "README.md", "training.csv", "accuracy.csv"} <= files.keys()
    assert sum(files.values()) < 2_000_000 and not [name for name in files if name.endswith((".bin", ".pt", ".pkl"))]


def test_tiny_can_be_made_again_from_its_config():
    lab = wb.labs.tiny(64, levels=(1, 4, 4), held_out=10, learning_rate=1e-3)
    again = from_config(lab.config)
    assert again.config == lab.config and again.problems.problems == lab.problems.problems
    assert not {p.id for p in lab.problems} & {p.id for p in lab.held_out}
    with pytest.raises(ValueError, match=r"pass it: Run\.resume"):
        from_config({"lab": "mine"})


@pytest.mark.parametrize("lora", [None, {"r": 4, "target_modules": "all-linear"}], ids=["full", "lora"])
def test_any_causal_lm_trains_and_resumes(lora, tmp_path):
    if lora:
        pytest.importorskip("peft", reason="peft is not installed (pip install peft)")
    lab = wb.labs.transformers(
        str(shipped("models/tiny")), arithmetic(16, levels=(1, 2)), arithmetic(4, split="heldout"), lora=lora,
        learning_rate=1e-3, sampling=wb.policies.Sampling(max_new_tokens=24), samples=1, device="cpu")
    row = go(wb.Run(lab, wb.methods.grpo(4), out=tmp_path, problems_per_round=4), 1)[0]
    assert row["steps"] == 1
    with pytest.raises(ValueError, match="the manifest cannot make this lab again"):
        wb.Run.resume(tmp_path)
    assert len(go(wb.Run.resume(tmp_path, lab=lab), 2)) == 1


@pytest.mark.parametrize("options, message", [
    ({"levels": (0,)}, r"levels=\(0,\): known levels"), ({"pool": 0}, "n=0"), ({"levels": ()}, "levels"),
])
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        wb.labs.tiny(**options)
