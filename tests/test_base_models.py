"""The base models that come with the package are what their cards say, and can be made again."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import workbench as wb
from examples.base_model import training
from examples.base_model.__main__ import main
from workbench.datasets import chains

SHIPPED = [
    f"{base}-{size}"
    for base in ("early", "late")
    for size in ("small", "large")
    if (wb.labs.shipped("models") / f"{base}-{size}").exists()
]


def test_both_bases_of_the_default_size_are_shipped():
    assert {"early-small", "late-small"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.slow
def test_a_base_model_answers_as_often_right_as_its_log_says(name):
    base, size = name.split("-")
    lab = wb.labs.tiny(base=base, size=size, held_out=160, samples=4)
    frame = wb.evaluation.evaluate(
        lab.policy(), lab.held_out, lab.verifier, lab.samples, sampling=lab.sampling, greedy=False
    )
    logged = pd.read_csv(wb.labs.shipped(f"models/{name}") / "accuracy.csv")
    # Three standard errors of 640 responses to 160 problems whose rates differ, and some more.
    assert abs((frame["correct"] / 4).mean() - logged["all"].iloc[-1]) < 0.09
    assert logged["step"].iloc[-1] == training.RECIPES[name].steps


@pytest.mark.parametrize("name", SHIPPED)
def test_the_facts_beside_a_model_are_those_that_its_corpus_was_drawn_with(name):
    base, _ = name.split("-")
    shipped = chains.Facts.read(wb.labs.shipped(f"models/{name}") / "facts.csv")
    of_base = chains.facts_of(base)
    assert np.array_equal(shipped.error_rate, of_base.error_rate)
    assert np.array_equal(shipped.wrong_by, of_base.wrong_by)
    rates, counts = np.unique(shipped.error_rate[:, :, 1:], return_counts=True)
    assert rates.tolist() == list(chains.ERROR_RATES[base])
    assert counts.tolist() == [45] * 4


def test_late_starts_higher_than_early():
    logs = {
        base: pd.read_csv(wb.labs.shipped(f"models/{base}-small") / "accuracy.csv")
        for base in ("early", "late")
    }
    assert logs["late"]["all"].iloc[-1] > logs["early"]["all"].iloc[-1] + 0.1


@pytest.mark.long
def test_a_base_model_is_made_with_its_card(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "HELD_OUT", 16)
    out = tmp_path / "model"
    result = CliRunner().invoke(main, ["early-small", "--out", str(out), "--steps", "1"])
    assert result.exit_code == 0, result.output
    assert "step     1" in result.output
    names = {path.name for path in out.iterdir()}
    assert {"model.safetensors", "README.md", "facts.csv", "training.csv"} <= names


def test_a_model_that_is_made_again_does_not_replace_the_shipped_one(monkeypatch):
    made = []
    monkeypatch.setattr(
        "examples.base_model.__main__.make", lambda name, path, **_: made.append((name, path))
    )
    result = CliRunner().invoke(main, ["early-small"])
    assert result.exit_code == 0, result.output
    assert made == [("early-small", "build/models/early-small")]


@pytest.mark.parametrize("further", ["", "/model"])
def test_a_file_in_the_place_of_the_model_is_refused_before_training(
    tmp_path, monkeypatch, further
):
    monkeypatch.setattr(training, "train", None)
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    result = CliRunner().invoke(main, ["early-small", "--steps", "1", "--out", f"{path}{further}"])
    assert result.exit_code == 1
    assert "no directory can be made there" in result.output
    assert path.read_text() == "mine"


@pytest.mark.parametrize("wrong", [["early-smal"], ["early-small", "--steps", "0"]])
def test_wrong_arguments_end_in_a_line_before_anything_is_made(tmp_path, wrong):
    result = CliRunner().invoke(main, [*wrong, "--out", str(tmp_path / "model")])
    assert result.exit_code
    assert isinstance(result.exception, SystemExit)
    assert not (tmp_path / "model").exists()
