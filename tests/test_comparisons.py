"""Arms side by side: budgets interpolated by hand, and real records of two methods."""

import json

import numpy as np
import pandas as pd
import pytest
from conftest import small_lab
from typer.testing import CliRunner
from written_records import evaluation, write

import workbench as wb
from papers.tables import (
    accuracy_by_level,
    accuracy_gain,
    column_means,
    evaluations,
    over_seeds,
    paired,
    percent_saved,
    seed_means,
)
from workbench.__main__ import main
from workbench.analysis import comparisons
from workbench.analysis.curves import Curve
from workbench.analysis.runs import load_all
from workbench.records import RecordError, RecordWarning

# Accuracy .5 before training, and .5 or 1 after two rounds.
FLAT = ((0, 0.5), (2, 0.5))
RISING = ((0, 0.5), (2, 1.0))


def two_arms(path, seeds=(0, 1, 2)):
    """Arm b has .5 more than arm a, and half of its rollouts."""
    for seed in seeds:
        write(path, "a", seed, scores=FLAT, rollouts=(10, 30))
        write(path, "b", seed, scores=RISING, rollouts=(10, 10))
    return load_all(path)


def test_equal_budgets_and_paired_differences(tmp_path):
    groups = two_arms(tmp_path)
    assert comparisons.common_budget(groups, "rollouts") == 20
    table = comparisons.at_budget(groups, "rollouts", baseline="a")
    assert table.loc["a", "mean"] == 0.5
    assert table.loc["b", ["n", "mean", "half"]].tolist() == [3, 1, 0]
    assert table.loc["b", ["difference", "low", "high"]].tolist() == [0.5, 0.5, 0.5]
    assert table.loc["b", ["pairs", "better"]].tolist() == [3, 1]
    assert np.isnan(table.loc["a", "difference"])
    half = comparisons.at_budget(groups, "rollouts", 10, baseline="a")
    assert half.loc["b", "mean"] == 0.75, "10 of its 20 rollouts are half of the way from .5 to 1"


DAMAGE = {
    "manifest": lambda record: (record / "manifest.json").write_text("{"),
    "journal": lambda record: (record / "journal.jsonl").unlink(),
    "a line": lambda record: edit(record / "journal.jsonl", b'"round"', b'"ruond"'),
    "a cut": lambda record: cut(record / "journal.jsonl"),
}


def edit(path, old, new):
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


def cut(path):
    path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.slow
def test_a_damaged_run_of_many_is_named_and_the_others_are_compared(kind, tmp_path):
    two_arms(tmp_path, seeds=range(6))
    DAMAGE[kind](tmp_path / "b" / "seed-3")
    with pytest.warns(RecordWarning, match=r"seed-3 is left out, and the other 11 runs") as said:
        groups = load_all(tmp_path)
    assert len(said) == 1 and "b/seed-3" in str(said[0].message)
    assert {label: len(group) for label, group in groups.items()} == {"a": 6, "b": 5}
    table = comparisons.at_budget(groups, "rollouts", baseline="a")
    assert table.loc["b", ["pairs", "difference"]].tolist() == [5, 0.5]
    # The command does the same, and says so.
    done = CliRunner().invoke(main, ["compare", str(tmp_path), "--x", "rollouts", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["labels"]["b"]["n"] == 5


def test_of_damaged_runs_alone_the_first_is_named(tmp_path):
    two_arms(tmp_path, seeds=[0])
    for label in "ab":
        DAMAGE["manifest"](tmp_path / label / "seed-0")
    with pytest.raises(RecordError, match="seed-0/manifest"):
        load_all(tmp_path)


def test_a_gain_is_not_taken_beyond_the_last_evaluation(tmp_path):
    groups = two_arms(tmp_path)
    assert accuracy_gain(groups["b"], groups["a"], "rollouts", 20).value == 50
    with pytest.raises(ValueError, match="budget=21"):
        accuracy_gain(groups["b"], groups["a"], "rollouts", 21)


def test_a_list_of_records_is_divided_into_its_settings(tmp_path):
    groups = two_arms(tmp_path)
    together = [record for records in groups.values() for record in records]
    table = comparisons.at_budget(together, "rollouts", baseline="a")
    pd.testing.assert_frame_equal(table, comparisons.at_budget(groups, "rollouts", baseline="a"))


def test_the_interval_of_a_difference_is_students(tmp_path):
    """Differences 0, .25 and .5: mean .25, deviation .25, t(.975, 2) = 4.303."""
    for seed, score in enumerate((0.5, 0.75, 1.0)):
        write(tmp_path, "a", seed, scores=FLAT)
        write(tmp_path, "b", seed, scores=((0, 0.5), (2, score)))
    row = comparisons.at_budget(load_all(tmp_path), "round", baseline="a").loc["b"]
    half = 4.30265 * 0.25 / 3**0.5
    assert row["difference"] == pytest.approx(0.25)
    assert [row["low"], row["high"]] == pytest.approx([0.25 - half, 0.25 + half], rel=1e-5)
    assert row["better"] == pytest.approx((0.5 + 1 + 1) / 3), "a tie counts half"


def test_a_single_seed_has_no_interval(tmp_path):
    table = comparisons.at_budget(two_arms(tmp_path, seeds=(0,)), "round", baseline="a")
    assert table.loc["b", "difference"] == 0.5
    assert table.loc["b", ["low", "high", "half"]].isna().all()


def test_only_common_seeds_are_paired(tmp_path):
    for label, seed in (("a", 0), ("a", 1), ("b", 1), ("b", 2)):
        write(tmp_path, label, seed)
    table = comparisons.at_budget(load_all(tmp_path), "round", 2, baseline="a")
    assert table.loc["b", ["n", "pairs", "difference", "better"]].tolist() == [2, 1, 0, 0.5]


def test_arms_without_a_common_seed_have_no_difference(tmp_path):
    write(tmp_path, "a", 0)
    write(tmp_path, "b", 1)
    groups = load_all(tmp_path)
    table = comparisons.at_budget(groups, "round", baseline="a")
    assert "difference" not in table
    with pytest.raises(ValueError, match=r"no seed in common: \[0\] and \[1\]"):
        paired(groups["a"], groups["b"], lambda ours, baseline: 0.0)


def test_a_baseline_or_a_budget_that_is_not_there_is_named(tmp_path):
    groups = two_arms(tmp_path, seeds=(0,))
    with pytest.raises(ValueError, match="baseline='c'"):
        comparisons.at_budget(groups, "rollouts", baseline="c")
    with pytest.raises(ValueError, match="budget=21"):
        comparisons.at_budget(groups, "rollouts", 21)
    with pytest.raises(ValueError, match="unit='hours'"):
        comparisons.at_budget(groups, "hours")


def test_accuracy_gained_at_an_equal_budget(tmp_path):
    """From .5, b rises by .5 and a not at all: the difference grows with the rollouts."""
    groups = two_arms(tmp_path, seeds=(0, 1))
    gain = accuracy_gain(groups["b"], groups["a"], "rollouts")
    assert (gain.value, gain.n) == (50, 2)
    assert accuracy_gain(groups["b"], groups["a"], "rollouts", 10).value == 25
    with pytest.raises(ValueError, match="budget=21"):
        accuracy_gain(groups["b"], groups["a"], "rollouts", 21)


def test_accuracy_by_level_reads_the_problems_of_a_level(tmp_path):
    """Of a run evaluated by hand, level 1 is all right after training and level 2 all wrong."""
    for label in ("a", "b"):
        write(tmp_path, label, scores=((0, 0.5),))
        record = load_all(tmp_path)[label][0]
        table = evaluation(2, 1.0)
        table.loc[table["level"] == 2, "correct"] = 0
        writer = wb.records.Writer(record.path, record.manifest)
        writer.evaluation(table)
    table = accuracy_by_level(load_all(tmp_path), "round", baseline="a")
    assert table.index.names == ["level", "label"]
    assert table["mean"].tolist() == [1, 1, 0, 0]


def test_a_quantity_of_every_run(tmp_path):
    groups = two_arms(tmp_path, seeds=(0, 1, 2))
    found = over_seeds(groups["a"], lambda record: float(record.manifest["seed"]))
    assert found.values.tolist() == [0, 1, 2]


def test_pairs_are_formed_by_seed_whatever_the_order():
    """Differences 2 and 1 of seeds 0 and 1; seed 2 has no partner."""
    ours = {2: 9.0, 0: 3.0, 1: 5.0}
    baseline = {1: 4.0, 0: 1.0}
    found = paired(ours, baseline, lambda a, b: a - b)
    assert found.values.tolist() == [2, 1]
    assert found.high - found.value == pytest.approx(12.706 * 0.5, rel=1e-4)


def test_means_and_phases(tmp_path):
    for seed in (0, 1):
        write(tmp_path, "a", seed, columns={"gradient_norm": [1.0, 2.0]})
    groups = load_all(tmp_path)
    assert column_means(groups, ["gradient_norm"]).loc["a"].tolist() == [1.5, 0]
    last = column_means(groups, ["gradient_norm"], rounds=(2, 2))
    assert last.loc["a", ("gradient_norm", "mean")] == 2
    assert comparisons.phases(groups).loc["a"].tolist() == [0.25] * 4
    with pytest.raises(ValueError, match="unit='minutes'"):
        comparisons.phases(groups, "minutes")


def test_a_phase_that_some_runs_have_is_shown_for_all(tmp_path):
    write(tmp_path, "a", 0)
    write(tmp_path, "b", 0, columns={"seconds_rescore": [0.5, 1.5]})
    table = comparisons.phases(load_all(tmp_path))
    assert list(table) == ["generate", "rescore", "verify", "schedule", "update"]
    assert table["rescore"].tolist() == [0, 1]


def test_the_cost_of_evaluation_is_reported_apart(tmp_path):
    """Two evaluations of two problems, 4 samples of 5 tokens, beside 160 tokens of training.

    Each problem took a quarter of a second.
    """
    write(tmp_path, "a", scores=(), columns={"tokens_sampled": [80.0, 80.0]})
    [record] = load_all(tmp_path)["a"]
    writer = wb.records.Writer(record.path, record.manifest)
    for number in (0, 2):
        writer.evaluation(evaluation(number, 0.5).assign(length=5.0, seconds=0.25))
    row = evaluations(load_all(tmp_path)).loc["a"]
    assert row.tolist() == [2, 16, 80, 50, 1]
    write(tmp_path, "early", columns={"tokens_sampled": [80.0, 80.0]})
    early = evaluations(load_all(tmp_path)).loc["early"]
    assert early["responses"] == 16
    assert np.isnan(early["tokens"]), "its evaluations have no lengths"


def test_savings_are_ratios_paired_by_seed(tmp_path):
    """Seed 0 saves half, seed 1 three quarters: the geometric mean of 1/2 and 1/4 is .354."""
    for seed, (all_of_it, part) in enumerate(((10, 5), (40, 10))):
        write(tmp_path, "a", seed, rollouts=(all_of_it, all_of_it))
        write(tmp_path, "b", seed, rollouts=(part, part))
    groups = load_all(tmp_path)
    row = percent_saved(groups, "rollouts", {"b": "a"}).loc["b"]
    assert [row["baseline"], row["n"]] == ["a", 2]
    assert row["value"] == pytest.approx(100 * (1 - 8**-0.5))
    assert row["low"] < row["value"] < row["high"]
    same = percent_saved(groups, "rollouts", {"a": "a"}, rounds=(2, 2)).loc["a"]
    assert same[["value", "low", "high"]].tolist() == [0, 0, 0]


def test_averages_over_seeds():
    tables = [
        pd.DataFrame({"x": [1.0, 2.0], "y": [0.0, np.nan]}),
        pd.DataFrame({"x": [3.0, 2.0], "y": [0.0, 1.0]}),
    ]
    means = seed_means(tables)
    assert means["x"]["mean"].tolist() == [2, 2]
    assert means["x"]["n"].tolist() == [2, 2]
    assert means["x"]["half"].tolist() == pytest.approx([12.706, 0], rel=1e-4)
    assert np.isnan(means["y"].loc[1, "mean"])


@pytest.mark.slow
def test_real_runs_of_two_methods_side_by_side(tmp_path):
    methods = {"grpo": wb.methods.grpo(n=4), "pods": wb.methods.pods(n=8, m=4)}
    for name, method in methods.items():
        run = wb.Run(
            small_lab(),
            method,
            out=tmp_path / name / "seed-0",
            problems_per_round=4,
            evaluate_every=2,
        )
        list(run.rounds(2, progress=False))
    groups = load_all(tmp_path)
    table = comparisons.at_budget(groups, "rollouts", baseline="grpo")
    assert list(table.index) == ["grpo", "pods"]
    assert table["mean"].between(0, 1).all()
    assert np.isfinite(table.loc["pods", "difference"])
    # pods samples twice as many rollouts, so that it is read before its own end.
    assert comparisons.common_budget(groups, "rollouts") == 2 * 4 * 4
    assert (comparisons.phases(groups, "flops").loc["pods"] > 0).all()


@pytest.mark.slow
def test_a_packed_record_reads_as_before_but_is_not_resumed(tmp_path):
    run = wb.Run(
        small_lab(),
        wb.methods.grpo(n=4),
        out=tmp_path,
        problems_per_round=4,
        evaluate_every=2,
        checkpoint_every=1,
    )
    list(run.rounds(3, progress=False))
    whole = run.record.rollouts()
    evaluations = len(wb.load(tmp_path).accuracy())
    wb.records.pack(tmp_path, ("problem", "round", "correct", "score"))
    kept = wb.load(tmp_path).rollouts()
    pd.testing.assert_frame_equal(kept, whole[["problem", "round", "correct"]], check_like=True)
    assert len(wb.load(tmp_path).rounds) == 3
    assert len(wb.load(tmp_path).accuracy()) == evaluations
    with pytest.raises(ValueError, match="packed"):
        list(wb.Run.resume(tmp_path).rounds(4, progress=False))
    wb.records.pack(tmp_path, columns=())
    assert wb.load(tmp_path).rollouts().empty


def test_courses_are_what_comparisons_read(tmp_path):
    """Functions that read curves take them as well as records."""
    groups = two_arms(tmp_path, seeds=(0,))
    curve = Curve(
        "a", 0, np.array([0, 2]), np.array([0.5, 0.5]), groups["a"][0].rounds, groups["a"][0].path
    )
    assert comparisons.common_budget({"a": {0: curve}}, "rollouts") == 40


def test_an_evaluated_round_that_is_missing_is_named(tmp_path):
    """What had been spent by then is not known, and the next round's sum is another one."""
    groups = two_arms(tmp_path, seeds=(0,))
    table = groups["a"][0].rounds
    curve = Curve("a", 0, np.array([0, 2]), np.array([0.5, 0.5]), table[table["round"] != 2], "a")
    with pytest.raises(ValueError, match="a: rounds that were evaluated are missing"):
        curve.places("rollouts")
