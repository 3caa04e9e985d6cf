"""The first GPU run, on the CPU with a model that is made in seconds: parts, pieces and report."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest
from IPython.display import SVG, Markdown

pytest.importorskip("trl", reason="trl is not installed (pip install -e '.[trl]')")
pytest.importorskip("peft", reason="peft is not installed (pip install peft)")

import workbench as wb
from examples.base_model import training
from examples.gpu_first_run import __main__ as first_run
from examples.gpu_first_run import report, runs, subject
from examples.gpu_first_run.settings import METHODS, MORE_TO_DO, Settings, parser
from workbench.cli import doctor
from workbench.policies import memory
from workbench.policies.transformers import TransformersPolicy

pytestmark = pytest.mark.slow

TINY = [
    *("--device", "cpu", "--size", "tiny", "--steps", "2", "--rounds", "2"),
    *("--problems-per-round", "2", "--sampled", "4", "--kept", "2"),
    *("--new-tokens", "8", "--lora-rank", "2"),
    *("--rates", "1e-5", "1e-4", "--paper-rounds", "2"),
]


ROOT = Path(__file__).parents[1]


def settings_of(out, *options):
    given = vars(parser().parse_args(["--out", str(out), *options]))
    del given["part"]
    return Settings(**given)


def notebook(folder):
    """What the cells of 09_gpu that read a first run define and show, for the files in a folder."""
    shown = []
    names = {"display": lambda *values: shown.extend(values)}
    for cell in nbformat.read(ROOT / "notebooks/09_gpu.ipynb", as_version=4).cells:
        if "labs.unsloth(" in cell.source:
            break
        if cell.cell_type == "code":
            exec(compile(cell.source, "09_gpu", "exec"), names)
        if "folder" in names and "place" not in names:
            names["folder"] = str(folder)
    return names, shown


def notebook_shows(out, table):
    """The notebook has every number of the table, and says that none of them is of a GPU."""
    names, shown = notebook(out)
    assert names["missing"] == {} and names["lines"] == []
    assert "made without a GPU" in names["state"]
    titles = [value.data for value in shown if isinstance(value, Markdown)]
    assert [title.strip("*") for title in titles[: len(names["GROUPS"])]] == list(names["GROUPS"])
    *tables, papers = [value for value in shown if isinstance(value, pd.DataFrame)]
    assert papers["method"].tolist() == 2 * list(METHODS)
    frames = pd.concat(tables)
    assert frames.columns.tolist() == ["grpo", "pods", "trl"]
    left_out = {"a rollout sampled [s]", "a rollout trained [s]", "sampling's share"}
    assert set(frames.index) == set(table.columns[table.notna().any()]) - left_out
    assert frames.loc["response tokens/s", "trl"] == f"{table.loc['trl', 'response tokens/s']:.4g}"
    assert "The price of sampling" in titles[-1]
    assert [type(value) for value in shown[-3:]] == [SVG, pd.DataFrame, SVG]


def test_the_notebook_says_what_is_missing(out, capsys):
    (out / "logs").mkdir(parents=True)
    (out / "logs" / "grpo.failed").write_text("loading\nRuntimeError: out of memory\n")
    (out / "doctor.json").write_text("{}")
    names, shown = notebook(out)
    assert shown == []
    assert "No GPU record is there yet" in names["state"]
    assert list(names["missing"]) == [name for name in names["LEFT"] if name != "doctor.json"]
    assert "- The part `grpo` has failed: `RuntimeError: out of memory`" in names["lines"]
    said = capsys.readouterr().out
    assert "no first run" in said and "no report" in said and "no figure" in said


@pytest.fixture
def out(tmp_path):
    return tmp_path / "gpu"


@pytest.mark.long
def test_a_first_run_in_pieces_ends_with_records_and_a_report(out, capsys, monkeypatch):
    """The first piece has no time for anything but the report; the second one does all."""
    tiny = ["--out", str(out), *TINY]
    monkeypatch.setattr(first_run, "SHORTEST", 600)
    assert first_run.main([*tiny, "--seconds", "-1"]) == MORE_TO_DO
    assert "Nothing has been run yet" in (out / "report.md").read_text()
    # Far more than it takes, so that a busy machine changes nothing.
    assert first_run.main([*tiny, "--seconds", "6000"]) == 0
    papers = [f"{method}-{rate}" for rate in ("1e-05", "0.0001") for method in METHODS]
    for part in ("doctor", "model", "grpo", "pods", "trl", *papers):
        assert (out / "logs" / f"{part}.done").is_file(), part
    for name in papers:
        record = wb.load(out / "papers" / name)
        assert record.is_packed and len(record.rounds) == 2
    rows = pd.read_csv(out / "papers.csv", index_col=0)
    assert rows.index.tolist() == papers and (rows["rounds"] == 2).all()
    assert rows.loc["grpo-1e-05", "rollouts a round"] == 2 * 2
    assert (out / "papers.svg").stat().st_size > 1000
    for name in ("grpo", "pods"):
        assert len(wb.load(out / name).rounds) == 2
        assert json.loads((out / f"memory-{name}.json").read_text())["host"] > 2**20
    table = pd.read_csv(out / "summary.csv", index_col=0)
    assert table.index.tolist() == ["grpo", "pods", "trl"]
    assert (table["rounds"] == 2).all()
    assert (table["seconds a round"] > 0).all()
    ours = table.loc[["grpo", "pods"]]
    assert (ours["sampled tokens/s"] > 0).all()
    assert (table["response tokens/s"] > 0).all()
    assert (ours["response tokens/s"] < ours["sampled tokens/s"]).all()
    price = ours["trained tokens/s"] / ours["sampled tokens/s"]
    assert np.allclose(ours["price of sampling"], price.where(price > 0), equal_nan=True)
    page = (out / "report.md").read_text()
    # Times of a few tokens may tell no price, but runs of several settings are no reason for none.
    assert "Over all 14 runs" in page or "both must be above 0" in page
    assert "are no seeds of one another" not in page
    assert "none: this ran on a CPU" in page
    assert "made here: qwen2" in page
    assert (out / "phases.svg").stat().st_size > 1000
    notebook_shows(out, table)
    # What is done is not done again.
    before = (out / "trl.json").stat().st_mtime_ns
    assert first_run.main([*tiny, "--seconds", "6000"]) == 0
    assert (out / "trl.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("has_vllm", [False, True])
@pytest.mark.parametrize("lab", ["transformers", "unsloth"])
def test_doctor_is_asked_for_the_sampler_of_the_run(out, monkeypatch, lab, has_vllm):
    """With 80 GB, vLLM's share is a part of the estimate where it samples."""
    gpus = [{"name": "a card", "bytes": 80e9, "free": 80e9, "driver": "580.65"}]
    here = {**doctor.this_machine(), "gpus": gpus}
    monkeypatch.setattr(doctor, "this_machine", lambda: here)
    monkeypatch.setattr(runs, "engine", lambda device: (lab, has_vllm))
    out.mkdir()
    settings = settings_of(out, "--model", "SmolLM2-135M")
    assert runs.doctor(settings) and runs.has_room(settings)
    gpus[0] |= {"bytes": 1e9, "free": 1e9}
    with pytest.raises(MemoryError, match="does not fit"):
        runs.doctor(settings)
    assert not runs.has_room(settings)
    gpus[0] |= {"bytes": 80e9, "free": 80e9}
    assert runs.doctor(settings)
    told = json.loads((out / "doctor.json").read_text())["model"]
    share = {"transformers": 0.4, "unsloth": 0.5}[lab] * 80e9
    assert told.get("sampler_bytes") == (share if has_vllm else None)


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
    assert asked == settings_of(out, *TINY).parts
    assert "**grpo has failed:** `RuntimeError: out of memory`" in (out / "report.md").read_text()
    assert not (out / "logs" / "grpo.done").exists()


@pytest.mark.parametrize("failing, further", [("grpo", None), ("model", ["report"])])
def test_on_a_cpu_a_part_that_fails_is_named_and_what_needs_it_is_left_out(
    out, monkeypatch, failing, further
):
    """All other parts run, but without a model there is nothing to run."""
    parts = settings_of(out, *TINY).parts
    before, after = parts[: parts.index(failing) + 1], parts[parts.index(failing) + 1 :]
    asked = []

    def fails(part, settings):
        asked.append(part)
        if part == failing:
            raise RuntimeError("out of memory")
        return part != "report" or report.make(settings)

    monkeypatch.setattr(first_run, "work", fails)
    assert first_run.main(["--out", str(out), *TINY]) == 1
    assert asked == before + (after if further is None else further)
    page = (out / "report.md").read_text()
    assert f"**{failing} has failed:** `RuntimeError: out of memory`" in page


def test_later_pieces_have_the_settings_of_the_first_one(out, monkeypatch, capsys):
    """What is done is not done again, so it would stand under the name of another model."""
    asked = []
    monkeypatch.setattr(first_run, "work", lambda part, settings: asked.append(part) or True)
    assert first_run.main(["--out", str(out), *TINY]) == 0
    assert first_run.main(["--out", str(out), *TINY, "--model", "another"]) == 2
    assert "--model" in capsys.readouterr().err
    assert first_run.main(["--out", str(out), *TINY, "--seconds", "1"]) == 0
    assert asked[-1] == "report" and asked.count("grpo") == 1


def test_problems_that_are_not_there_are_refused_before_any_part(out, capsys):
    assert first_run.main(["--out", str(out), *TINY, "--problems", "missing.jsonl"]) == 2
    assert "--problems" in capsys.readouterr().err
    assert not (out / "logs").exists()


@pytest.mark.parametrize(
    "options, said",
    [
        (["--rounds", "0"], "--rounds 0: 1 or more is needed"),
        (["--steps", "0"], "--steps 0: 1 or more"),
        (["--sampled", "1"], "--sampled 1: 2 or more"),
        (["--problems-per-round", "-1"], "--problems-per-round -1: 1 or more"),
        (["--new-tokens", "0"], "--new-tokens 0: 1 or more"),
        (["--kept", "1"], "--kept 1: 2 or more"),
        (["--new-tokens", "1024"], "--new-tokens 1024: a prompt needs room"),
        (["--kept", "5"], "--kept 5: no more than --sampled 4 can be kept"),
        (["--rates", "1e-5", "0"], "--rates 0: a learning rate above 0"),
        (["--rates", "nan"], "--rates nan: a learning rate above 0"),
        (["--device", "cuda"], "--device cuda: torch finds no CUDA device here"),
    ],
)
def test_settings_that_cannot_be_run_are_refused_before_any_part(
    out, monkeypatch, capsys, options, said
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert first_run.main(["--out", str(out), *TINY, *options]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_a_model_with_too_few_positions_is_refused_before_any_part(out, tmp_path, capsys):
    model = tmp_path / "model"
    shutil.copytree(wb.labs.shipped("models/tiny"), model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 128}))
    assert first_run.main(["--out", str(out), *TINY, "--model", str(model)]) == 2
    assert "max_length=1024: the model has 128 positions" in capsys.readouterr().err
    assert not out.exists()


SLEEPING = """
import time
print("at work", flush=True)
time.sleep(60)
"""


@pytest.mark.long
def test_a_part_ends_with_the_time_of_its_call(out, monkeypatch, tmp_path):
    """It is a process of its own, whatever it is at work on; the second time it has failed."""
    program = tmp_path / "sleeping.py"
    program.write_text(SLEEPING)
    start = subprocess.Popen
    monkeypatch.setattr(
        first_run.subprocess,
        "Popen",
        lambda command, **options: start([sys.executable, str(program)], **options),
    )
    out.mkdir()
    settings = settings_of(out, *TINY, "--device", "cuda", "--seconds", "2")
    begun = time.monotonic()
    assert first_run._in_a_process("grpo", settings, out) == MORE_TO_DO
    assert first_run._in_a_process("grpo", settings, out) == 1
    assert time.monotonic() - begun < 30
    assert (out / "grpo.failed").read_text().splitlines()[-1].startswith("TimeoutError: ")


def test_a_run_that_trained_on_nothing_has_no_price_of_sampling():
    names = ["a rollout sampled [s]", "a rollout trained [s]"]
    table = pd.DataFrame([[0.5, float("nan")]], ["pods"], names)
    assert "none, since PODS had no rollout with a gradient" in report.price(table)
    table.loc["pods", "a rollout trained [s]"] = 2.0
    told = report.price(table)
    assert "0.5 s on a rollout that it samples and 2 s on one that it trains on" in told
    assert told.endswith("a ratio of 0.25.")


def test_the_cost_model_is_fitted_to_runs_of_several_settings():
    runs_of_both = [wb.load(ROOT / f"data/runs/pods/{name}/seed-0") for name in ("grpo-32", "m-4")]
    told = report.fitted_price(runs_of_both)
    assert told.startswith("Over all 2 runs a sampled token costs ")


def test_the_model_that_is_made_can_be_sampled_by_vllm(out, monkeypatch):
    """vLLM leaves out 1,024 ids at most, while a large embedding has far more rows than that."""
    family, shape = subject.SHAPES["tiny"]
    monkeypatch.setitem(subject.SHAPES, "tiny", (family, shape | {"vocab_size": 2000}))
    settings = settings_of(out, "--device", "cpu", "--size", "tiny", "--steps", "1")
    assert subject.make(settings)
    engine = SimpleNamespace(max_length=1024)
    policy = TransformersPolicy.from_pretrained(settings.model_path, device="cpu", engine=engine)
    assert policy.never is None
    assert policy.encode(["1+2="]) == training.tokenizer()(["1+2="])["input_ids"]


@pytest.mark.parametrize("size, parameters", [("qwen2", 111_000_000), ("smollm2", 134_515_008)])
def test_models_that_are_made_have_the_sizes_of_real_ones(size, parameters):
    family, shape = subject.SHAPES[size]
    counted = memory.from_config({"model_type": family, "tie_word_embeddings": True, **shape})
    assert counted.parameters == pytest.approx(parameters, rel=0.02)
    assert counted.qkv_bias == (family == "qwen2")
