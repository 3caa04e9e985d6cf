"""The recorded runs are those of the grids, and made again they come out the same."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from workbench.labs import REGIMES, shipped
from workbench.trials import grids, leaderboard
from workbench.trials.cases import PARAMETERS, lacks_rollouts, prepare
from workbench.utils.descriptions import differences

ROOT = Path(__file__).parent.parent
GRIDS = sorted((ROOT / "data" / "grids").glob("*.yaml"))
RUNS = shipped("runs")
# Arguments of `Run` that a grid decides, and that every format names alike.
SETTINGS = ("problems_per_round", "mini_batches", "learning_rate", "evaluate_every")


def recorded():
    """Case of the grid and record of every run of a grid that is in the repository."""
    planned = {path.stem: grids.read(path, ROOT / "runs" / path.stem) for path in GRIDS}
    # The leaderboard's grid is also run in other labs, each with a folder of its own.
    for base, size, regime in itertools.product(("early", "late"), ("small", "large"), REGIMES):
        plan = leaderboard.plan(lab={"base": base, "size": size, "regime": regime})
        planned[plan.folder.name] = plan.cases() if plan.folder.exists() else []
    runs = {}
    for name, cases in planned.items():
        for case in cases:
            if case.record.exists():
                runs[f"{name}/{case.name}"] = (case, wb.load(case.record, strict=True))
    return runs


RECORDED = recorded()
FIRST_VERSION = sorted(path.parent for path in RUNS.glob("tiny-grpo/seed-*/manifest.json"))


def test_there_are_recorded_runs_and_each_is_of_a_grid():
    there = {path.parent for path in RUNS.glob("*/*/*/manifest.json")}
    # Which combinations are in the final of a search follows from records that are not kept.
    there = {path for path in there if not path.parents[1].name.endswith("-search")}
    assert len(RECORDED) >= 40
    assert {record.path for _, record in RECORDED.values()} == there


def test_records_of_the_first_version_stay_readable():
    assert len(FIRST_VERSION) == 5
    for path in FIRST_VERSION:
        record = wb.load(path, strict=True)
        assert record.manifest["format"] == 1
        assert record.problems() == []
        assert len(record.rounds)
        assert len(record.evals)


@pytest.mark.parametrize("name", RECORDED)
def test_a_record_is_whole_and_has_the_rounds_and_settings_of_its_grid(name):
    case, record = RECORDED[name]
    values = {**PARAMETERS, **case.values}
    assert record.problems() == []
    assert record.manifest["seed"] == values["seed"]
    arguments = record.manifest["arguments"]
    # What a grid leaves open is a default of `Run`.
    decided = [key for key in SETTINGS if values[key] is not None]
    assert {key: arguments[key] for key in decided} == {key: values[key] for key in decided}
    rounds = len(record.rounds)
    assert record.rounds["round"].tolist() == list(range(1, rounds + 1))
    assert record.evals["round"].max() == rounds
    # A run that goes on for its rollouts does so from evaluation to evaluation.
    if values["rollouts"] is None:
        assert rounds == values["rounds"]
    else:
        assert rounds >= values["rounds"] and rounds % values["evaluate_every"] == 0
        assert not lacks_rollouts(values, record.rounds)


@pytest.mark.parametrize("name", RECORDED)
def test_the_manifest_is_that_of_its_grid(name, tmp_path):
    case, record = RECORDED[name]
    asked_for = prepare(replace(case, record=tmp_path / "record")).configuration()
    recorded = {entry: record.manifest[entry] for entry in asked_for}
    assert differences(asked_for, recorded) == []


def test_the_readme_says_which_runs_are_of_the_first_version():
    text = (RUNS / "README.md").read_text()
    [line] = re.findall(r"^Of the first version: (.*)$", text, re.MULTILINE)
    named = set(re.findall(r"`([\w-]+)`", line))
    first = set()
    for manifest in RUNS.glob("**/manifest.json"):
        if wb.load(manifest.parent).manifest["format"] == 1:
            first.add(manifest.relative_to(RUNS).parts[0])
    assert named == first


def test_a_run_made_again_is_the_same(tmp_path):
    """Its first rounds, in the lab that it was recorded in.

    On another processor a rounding error may flip single tokens, so means are compared.
    """
    case, record = RECORDED["head_to_head/ar3po/seed-0"]
    arguments = record.manifest["arguments"] | {"evaluate_every": 0}
    method = wb.config.method(case.values["method"], case.values.get("arguments"))
    lab = wb.config.recorded_lab(record.manifest["lab"])
    again = wb.Run(lab, method, out=tmp_path, **arguments)
    made = list(again.rounds(3, progress=False))
    before = record.rounds.iloc[:3]
    tolerances = {"reward": 0.05, "length": 1.5, "entropy": 0.05, "gradient_norm": 0.2}
    for name, tolerance in tolerances.items():
        values = [row[name] for row in made]
        assert np.allclose(values, before[name], atol=tolerance, equal_nan=True), name
