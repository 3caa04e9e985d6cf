"""The first GPU run, on the CPU with a model that is made in seconds: parts, pieces and report."""

import json

import pandas as pd
import pytest

pytest.importorskip("trl", reason="trl is not installed (pip install -e '.[trl]')")
pytest.importorskip("peft", reason="peft is not installed (pip install peft)")

import workbench as wb
from examples.gpu_first_run import __main__ as first_run
from examples.gpu_first_run import subject
from examples.gpu_first_run.settings import MORE_TO_DO, PARTS
from workbench.policies import memory

TINY = [
    *("--device", "cpu", "--size", "tiny", "--steps", "2", "--rounds", "2"),
    *("--problems-per-round", "2", "--sampled", "4", "--kept", "2"),
    *("--new-tokens", "8", "--lora-rank", "2"),
]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "gpu"


def test_a_first_run_in_pieces_ends_with_records_and_a_report(out, capsys, monkeypatch):
    """The first piece has no time for anything but the report; the second one does all."""
    tiny = ["--out", str(out), *TINY]
    monkeypatch.setattr(first_run, "SHORTEST", 600)
    assert first_run.main([*tiny, "--seconds", "-1"]) == MORE_TO_DO
    assert "Nothing has been run yet" in (out / "report.md").read_text()
    assert first_run.main([*tiny, "--seconds", "600"]) == 0
    for part in PARTS:
        assert (out / "logs" / f"{part}.done").is_file(), part
    for name in ("grpo", "pods"):
        assert len(wb.load(out / name).rounds) == 2
        assert json.loads((out / f"memory-{name}.json").read_text())["host"] > 2**20
    table = pd.read_csv(out / "summary.csv", index_col=0)
    assert table.index.tolist() == ["grpo", "pods", "trl"]
    assert (table["rounds"] == 2).all()
    assert (table["seconds a round"] > 0).all()
    assert (table.loc[["grpo", "pods"], "sampled tokens/s"] > 0).all()
    report = (out / "report.md").read_text()
    assert "none: this ran on a CPU" in report
    assert "made here: qwen2" in report
    assert (out / "phases.svg").stat().st_size > 1000
    # What is done is not done again.
    before = (out / "trl.json").stat().st_mtime_ns
    assert first_run.main([*tiny, "--seconds", "600"]) == 0
    assert (out / "trl.json").stat().st_mtime_ns == before


def test_a_part_that_fails_is_named_in_the_report_and_the_others_run(out, monkeypatch):
    """On a GPU each part is a process; here one is a program that ends at once."""
    asked = []

    def started(part, settings, logs):
        asked.append(part)
        if part == "report":
            return 0 if first_run.work(part, settings) else MORE_TO_DO
        if part != "grpo":
            return 0
        (logs / "grpo.failed").write_text("loading\nRuntimeError: out of memory\n")
        return 1

    monkeypatch.setattr(first_run, "_in_a_process", started)
    assert first_run.main(["--out", str(out), *TINY]) == 1
    assert asked == list(PARTS)
    assert "**grpo has failed:** `RuntimeError: out of memory`" in (out / "report.md").read_text()
    assert not (out / "logs" / "grpo.done").exists()


@pytest.mark.parametrize("size, parameters", [("qwen2", 111_000_000), ("smollm2", 134_515_008)])
def test_models_that_are_made_have_the_sizes_of_real_ones(size, parameters):
    family, shape = subject.SHAPES[size]
    counted = memory.from_config({"model_type": family, "tie_word_embeddings": True, **shape})
    assert counted.parameters == pytest.approx(parameters, rel=0.02)
    assert counted.qkv_bias == (family == "qwen2")
