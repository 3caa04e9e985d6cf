"""The recorded runs are those of the grids, and made again they come out the same."""

from pathlib import Path

import numpy as np
import pytest
import yaml

import workbench as wb
from workbench.labs import shipped
from workbench.utils.descriptions import describe, differences

ROOT = Path(__file__).parent.parent
GRIDS = sorted((ROOT / "data" / "grids").glob("*.yaml"))
SETTINGS = {
    "problems": "problems_per_round",
    "mini_batches": "mini_batches",
    "learning_rate": "learning_rate",
    "evaluate_every": "evaluate_every",
}


def recorded():
    """(name, settings of the grid, record) of every run of a grid that is in the repository."""
    for path in GRIDS:
        grid = yaml.safe_load(path.read_text())
        if "cases" not in grid:
            continue
        for case in grid["cases"]:
            for seed in grid["parameters"]["seed"]:
                settings = {**grid["parameters"], **case, "seed": seed}
                place = (
                    shipped("runs") / Path(settings["folder"]).name / case["label"] / f"seed-{seed}"
                )
                if place.exists():
                    yield f"{path.stem}/{case['label']}/{seed}", settings, wb.load(place)


RUNS = list(recorded())


def test_there_are_recorded_runs_and_each_is_of_a_grid():
    there = {path.parent for path in shipped("runs").glob("*/*/*/manifest.json")}
    assert len(RUNS) >= 203 and {record.path for _, _, record in RUNS} == there


@pytest.mark.parametrize(
    "settings, record", [run[1:] for run in RUNS], ids=[run[0] for run in RUNS]
)
def test_the_manifest_is_that_of_its_grid(settings, record):
    manifest = record.manifest
    names = {"wb": wb}
    # as a resumed run compares them: an option added since, at None, is no difference
    assert differences(manifest["method"], describe(eval(settings["method"], names))) == []
    assert differences(manifest["lab"], eval(settings["lab"], names).config) == []
    assert manifest["seed"] == settings["seed"]
    assert {ours: manifest["arguments"][ours] for ours in SETTINGS.values()} == {
        ours: settings[theirs] for theirs, ours in SETTINGS.items()
    }
    assert (
        len(record.rounds) == settings["rounds"]
        and record.evals["round"].max() == settings["rounds"]
    )


def test_a_run_made_again_is_the_same(tmp_path):
    """Its first rounds; on another processor a rounding error may flip single tokens, so means are compared."""
    _, settings, record = next(run for run in RUNS if run[0] == "cbs/gspo-group/0")
    arguments = record.manifest["arguments"] | {"evaluate_every": 0}
    again = wb.Run(eval(settings["lab"]), eval(settings["method"]), out=tmp_path, **arguments)
    list(again.rounds(3, progress=False))
    ours, theirs = again.record.rounds, record.rounds.iloc[:3]
    assert (
        ours["rollouts"].tolist() == theirs["rollouts"].tolist()
        and ours["selected"].tolist() == theirs["selected"].tolist()
    )
    for name, tolerance in (
        ("reward", 0.05),
        ("length", 1.5),
        ("entropy", 0.05),
        ("gradient_norm", 0.2),
    ):
        assert np.allclose(ours[name], theirs[name], atol=tolerance, equal_nan=True), name
