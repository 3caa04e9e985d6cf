"""The recorded runs are those of the grids, and made again they come out the same."""

import contextlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import workbench as wb
from papers import regimes, stress
from workbench.analysis.runs import load_all
from workbench.labs import shipped
from workbench.trials import grids
from workbench.trials.cases import PARAMETERS, lacks_rollouts, prepare
from workbench.utils.descriptions import differences

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
GRIDS = sorted((ROOT / "data" / "grids").glob("*.yaml"))
RUNS = shipped("runs")
# Runs that were recorded before the schedule or the defaults of their method were corrected. They
# leave this list when they are made again.
CORRECTED_SINCE = {
    "head_to_head": {"cbs-round", "cbs-buffer"},
    "leaderboard_one_rate": {"cbs-round", "cbs-buffer", "cppo", "clip-cov", "greso"},
}
# Arguments of `Run` that a grid decides, and that every format names alike.
SETTINGS = ("problems_per_round", "mini_batches", "learning_rate", "evaluate_every")

# Grid -> folder of its records, with the rates that tuning has found.
TUNED = {"leaderboard": "leaderboard", "group_sizes": "group-sizes", "steps": "steps"}


def tuned_rates(table):
    """Arm -> learning rate, with GRPO's, from a table of arms."""
    arms = pd.read_csv(table).set_index("arm")
    return arms["learning_rate"].to_dict() | {"grpo": arms["baseline_learning_rate"].max()}


def tuned_steps(table):
    """Arm -> optimizer steps a round, with GRPO's, where they were tuned as well."""
    tuning = pd.read_csv(table)
    if tuning["mini_batches"].isna().all():
        return {}
    costs = tuning.groupby(["arm", "mini_batches", "learning_rate"])["cost"]
    # The rungs of halving are left behind by the points with the fewest seeds.
    best = costs.mean()[costs.size() == costs.size().max()].groupby("arm").idxmin()
    return {arm: int(steps) for arm, steps, _ in best}


def recorded():
    """Case of the grid and record of every run of a grid that is in the repository."""
    planned = {path.stem: grids.read(path, ROOT / "runs" / path.stem) for path in GRIDS}
    # These grids leave learning rates to tuning, which has found one for each arm.
    for name, folder in TUNED.items():
        rates = tuned_rates(RUNS / folder / "arms.csv")
        steps = tuned_steps(RUNS / folder / "tuning.csv")
        cases = [case for case in planned[name] if case.values["label"] in rates]
        planned[name] = []
        for case in cases:
            label = case.values["label"]
            tuned = {"learning_rate": rates[label]}
            if label in steps:
                tuned["mini_batches"] = steps[label]
            planned[name].append(replace(case, values={**case.values, **tuned}))
    runs = {}
    for name, cases in planned.items():
        for case in cases:
            # Who works here may have made runs of these grids under `runs/`.
            if case.record.is_relative_to(RUNS) and wb.records.exists(case.record):
                runs[f"{name}/{case.name}"] = (case, wb.load(case.record, strict=True))
    return runs


def read_tables(records):
    """Read the tables of all records, each kind of table in a pass of its own.

    Of a packed table the columns that were read last are kept for all of its runs. What is damaged
    is left to the tests.
    """
    for kind in ("rounds", "evals"):
        for record in records:
            with contextlib.suppress(wb.records.RecordError):
                getattr(record, kind)


@pytest.fixture(scope="module")
def runs():
    """Name -> case of the grid and record."""
    found = recorded()
    read_tables([record for _, record in found.values()])
    return found


@pytest.mark.long
def test_there_are_recorded_runs_and_each_is_of_a_grid(runs):
    there = set(wb.records.record_paths(RUNS))
    # The first runs of the lab had no grid yet. Which combinations are in the final of a search
    # follows from records that are not kept, and which rates are tried from those before.
    searched = re.compile("tiny-grpo|-search(-one-rate)?$")
    there = {path for path in there if not searched.search(path.parts[-3])}
    there = {path for path in there if path.parts[-2] != "tiny-grpo"}
    there = {path for path in there if path.parts[-4] != "regimes"}
    there = {path for path in there if path.parts[-4] != "stress"}
    there = {path for path in there if path.parts[-4] != "contrast"}
    there = {path for path in there if path.parts[-3] != "stress-long"}
    assert len(runs) >= 900
    assert {record.path for _, record in runs.values()} == there


def trials_on_the_shelf():
    """Folder, arms, labels, the baseline's label, and seeds, of every recorded trial."""
    for name, arms in pd.read_csv(RUNS / "regimes" / "arms.csv").groupby("trial"):
        regime = regimes.REGIMES[name]
        seeds = regime.settings.get("seeds", regimes.SEEDS)
        yield RUNS / "regimes" / name, arms, set(regime.arms()), regime.against, seeds
    for name, arms in pd.read_csv(RUNS / "stress" / "arms.csv").groupby("trial"):
        labels = set(stress.CONDITIONS[name].arms())
        yield RUNS / "stress" / name, arms, labels, stress.BASELINE, stress.SEEDS


def test_the_long_runs_are_their_panel_at_its_rates():
    groups = load_all(RUNS / "stress-long")
    assert set(groups) == set(stress.long_panel())
    for label, records in groups.items():
        assert [record.manifest["seed"] for record in records] == [*range(stress.LONG_SEEDS)]
        used = {record.manifest["arguments"]["learning_rate"] for record in records}
        assert used == {stress.LONG_RATES[label]}, label
        assert {len(record.rounds) for record in records} == {stress.LONG_ROUNDS}, label


@pytest.mark.long
def test_the_runs_of_a_trial_are_its_arms_at_their_best_rates():
    for folder, arms, labels, baseline, seeds in trials_on_the_shelf():
        arms = arms.set_index("arm")
        rates = arms["learning_rate"].to_dict()
        rates[baseline] = arms["baseline_learning_rate"].max()
        groups = load_all(folder)
        read_tables([record for records in groups.values() for record in records])
        assert set(groups) == labels, folder.name
        for label, records in groups.items():
            assert sorted(record.manifest["seed"] for record in records) == list(range(seeds))
            for record in records:
                assert record.problems() == []
                assert record.manifest["arguments"]["learning_rate"] == pytest.approx(
                    rates[label], rel=1e-5
                )


@pytest.mark.long
def test_every_record_is_whole_and_has_the_rounds_and_settings_of_its_grid(runs):
    wrong = {}
    for name, (case, record) in runs.items():
        values = {**PARAMETERS, **case.values}
        arguments = record.manifest["arguments"]
        rounds = len(record.rounds)
        checks = {
            "whole": record.problems() == [],
            "seed": record.manifest["seed"] == values["seed"],
            # What a grid leaves open is a default of `Run`.
            "settings": all(values[key] in (None, arguments[key]) for key in SETTINGS),
            "evaluated at the end": record.evals["round"].max() == rounds,
        }
        # A run that goes on for its rollouts does so from evaluation to evaluation.
        if values["rollouts"] is None:
            checks["rounds"] = rounds == values["rounds"]
        else:
            goes_on = rounds >= values["rounds"] and rounds % values["evaluate_every"] == 0
            checks["rounds"] = goes_on and not lacks_rollouts(values, record.rounds)
        failed = [check for check, is_right in checks.items() if not is_right]
        if failed:
            wrong[name] = failed
    assert wrong == {}


@pytest.mark.long
def test_every_manifest_is_that_of_its_grid(runs, tmp_path):
    wrong = {}
    of_arm = {}
    for name, (case, record) in runs.items():
        arm = name.rpartition("/")[0]
        if arm not in of_arm:
            of_arm[arm] = prepare(replace(case, record=tmp_path / "record")).configuration()
        # The runs of an arm differ in nothing but their seed.
        seed = {"seed": case.values["seed"]}
        asked_for = of_arm[arm] | seed | {"arguments": of_arm[arm]["arguments"] | seed}
        recorded = {entry: record.manifest[entry] for entry in asked_for}
        if differences(asked_for, recorded):
            wrong[name] = differences(asked_for, recorded)
    corrected = {
        name for name in wrong if name.split("/")[1] in CORRECTED_SINCE.get(name.split("/")[0], ())
    }
    assert {name: wrong[name] for name in wrong if name not in corrected} == {}
    assert {tuple(name.split("/")[:2]) for name in corrected} >= {
        (folder, label) for folder, labels in CORRECTED_SINCE.items() for label in labels
    }


def test_the_recorded_runs_take_little_room():
    files = [path for path in RUNS.rglob("*") if path.is_file()]
    assert len(files) <= 120
    assert sum(path.stat().st_size for path in files) < 40e6


@pytest.mark.long
def test_a_run_made_again_is_the_same(runs, tmp_path):
    """Its first rounds, in the lab that it was recorded in.

    On another processor a rounding error may flip single tokens, so means are compared.
    """
    case, record = runs["head_to_head/ar3po/seed-0"]
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
