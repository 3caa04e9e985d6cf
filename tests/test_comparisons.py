"""Runs side by side: budgets interpolated by hand, visits of hand-made problems, and real records of two methods."""

import numpy as np
import pandas as pd
import pytest
from conftest import small_lab

import workbench as wb
from workbench.analysis import comparisons
from workbench.records import Writer


def written(path, seed=0, correct=((0, 2), (4, 2)), rollouts=(10, 30), label="a"):
    """A record of two rounds, evaluated before and after: correct (evaluations, problems) of 4 samples each."""
    writer = Writer(
        path / label / f"seed-{seed}", {"format": 1, "seed": seed, "method": {"name": label}}
    )
    for number, n in enumerate(rollouts, 1):
        row = {
            "round": number,
            "rollouts": n,
            "flops": 2.0 * n,
            "seconds": 1.0,
            "gradient_norm": float(number),
        }
        writer.round(
            row | {f"seconds_{name}": 0.25 for name in comparisons.PHASES},
            {"problem": np.array(["p"])},
        )
    for number, counts in zip((0, 2), correct):
        writer.evaluation(
            pd.DataFrame(
                {
                    "problem": ["p", "q"],
                    "samples": 4,
                    "correct": counts,
                    "greedy": [False, True],
                    "round": number,
                }
            )
        )
    return path


def test_what_was_spent_starts_at_nothing(tmp_path):
    record = comparisons.load_all(written(tmp_path))["a"][0]
    assert comparisons.spent(record, "rollouts").tolist() == [0, 10, 40]
    assert comparisons.spent(record, "round").tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="unit='hours'"):
        comparisons.spent(record, "hours")


def test_scores_are_interpolated_problem_by_problem(tmp_path):
    record = comparisons.load_all(written(tmp_path))["a"][0]
    assert comparisons.scores_at(record, "rollouts", 10).to_dict() == {"p": 0.25, "q": 0.5}
    assert comparisons.scores_at(record, "rollouts", 40).to_dict() == {"p": 1.0, "q": 0.5}
    assert comparisons.scores_at(record, "flops", 0).to_dict() == {"p": 0.0, "q": 0.5}
    assert comparisons.scores_at(record, "round", 1, "greedy").to_dict() == {"p": 0.0, "q": 1.0}
    with pytest.raises(ValueError, match="last evaluated at 40"):
        comparisons.scores_at(record, "rollouts", 41)


def test_equal_budgets_and_paired_differences(tmp_path):
    for seed in (0, 1, 2):
        written(tmp_path, seed, label="a")
        written(tmp_path, seed, correct=((0, 2), (4, 4)), rollouts=(10, 10), label="b")
    groups = comparisons.load_all(tmp_path)
    assert comparisons.common_budget(groups, "rollouts") == 20
    table = comparisons.at_budget(groups, "rollouts", baseline="a")
    assert table.loc["a", "mean"] == pytest.approx((0.5 + 0.5) / 2) and table.loc["b", "mean"] == 1
    assert table.loc["b", ["n", "half", "difference", "better"]].tolist() == [3, 0, 0.5, 1]
    assert table.loc["b", "low"] == table.loc["b", "high"] == 0.5  # both problems gain the same
    assert np.isnan(table.loc["a", "difference"])
    with pytest.raises(ValueError, match="baseline='c'"):
        comparisons.at_budget(groups, "rollouts", baseline="c")


def test_only_common_seeds_are_paired(tmp_path):
    for label, seed in (("a", 0), ("a", 1), ("b", 1), ("b", 2)):
        written(tmp_path, seed, label=label)
    table = comparisons.at_budget(comparisons.load_all(tmp_path), "round", 2, baseline="a")
    assert table.loc["b", ["difference", "better"]].tolist() == [0, 0.5]


def test_means_and_phases(tmp_path):
    groups = comparisons.load_all(written(written(tmp_path, 0), 1))
    assert comparisons.means(groups, ["gradient_norm"]).loc["a"].tolist() == [1.5, 0]
    assert (
        comparisons.means(groups, ["gradient_norm"], rounds=(2, 2)).loc[
            "a", ("gradient_norm", "mean")
        ]
        == 2
    )
    assert comparisons.phases(groups).loc["a"].tolist() == [0.25] * 4


def test_savings_are_paired_by_seed(tmp_path):
    for seed, n in ((0, 10), (1, 40)):
        written(tmp_path, seed, rollouts=(n, n), label="a")
    (
        written(tmp_path, 0, rollouts=(5, 5), label="b"),
        written(tmp_path, 1, rollouts=(10, 10), label="b"),
    )
    table = comparisons.saved(comparisons.load_all(tmp_path), "rollouts", {"b": "a"})
    assert table.loc["b", ["baseline", "n", "mean"]].tolist() == ["a", 2, (0.5 + 0.75) / 2]
    assert (
        comparisons.saved(
            comparisons.load_all(tmp_path), "rollouts", {"a": "a"}, rounds=(2, 2)
        ).loc["a", "mean"]
        == 0
    )


def test_correlations_over_seeds(tmp_path):
    for seed, sign in ((0, 1.0), (1, -1.0)):
        writer = Writer(
            tmp_path / "cbs" / f"seed-{seed}",
            {"format": 1, "seed": seed, "method": {"name": "cbs"}},
        )
        table = {
            "round": np.ones(3, int),
            "age": np.zeros(3, int),
            "score": np.arange(3.0) * sign,
            "feature_reward": np.arange(3.0),
            "feature_age": np.zeros(3),
        }
        writer.round({"round": 1}, table)
    mean, spread = comparisons.correlations(comparisons.load_all(tmp_path)["cbs"], 1)
    assert (
        mean.loc["1-1", "reward"] == 0
        and spread.loc["1-1", "reward"] == 1
        and np.isnan(mean.loc["1-1", "age"])
    )


def frame():
    """Problem p: 2 of 4, then 1 of 2; problem q: 0 of 2."""
    return pd.DataFrame(
        {
            "problem": list("ppppqqpp"),
            "round": [1, 1, 1, 1, 1, 1, 2, 2],
            "correct": [True, True, False, False, False, False, False, True],
        }
    )


def test_visits_by_hand():
    table = comparisons.visits(frame())
    assert table.loc[("p", 0)].to_dict() == {"round": 1, "rollouts": 4, "correct": 2, "rate": 0.5}
    assert table.loc[("p", 1), "rollouts"] == 2 and table.loc[("q", 0), "rate"] == 0


def test_rollouts_by_rate_by_hand():
    table = comparisons.rollouts_by_rate(frame())
    assert table["problems"].tolist() == [1, 0, 1, 0, 0] and table.loc["0 to 0.2", "rollouts"] == 2
    assert table.loc["0.4 to 0.6", "rollouts"] == 3 and np.isnan(table.loc["0.8 to 1", "rollouts"])
    assert table.loc["0 to 0.2", "rate"] == 0 and table.loc["0.4 to 0.6", "rate"] == 0.5
    sure = frame().assign(correct=True)
    assert comparisons.rollouts_by_rate(sure).loc["0.8 to 1", "problems"] == 2


def test_estimation_error_by_hand():
    assert comparisons.estimation_error(frame()).to_dict() == {1: 0.0}
    assert comparisons.estimation_error(frame(), window=2).to_dict() == {
        1: 0.5
    }  # the last two were wrong


def test_chance_alone_makes_an_error_too():
    rng = np.random.default_rng(0)
    errors = [comparisons.estimation_error(frame(), rng=rng)[1] for _ in range(400)]
    assert set(errors) == {0, 0.75} and np.isclose(
        np.mean(errors), 0.3, atol=0.06
    )  # 3 right of 6 split as 4 + 2: 6 ways of 15
    still = frame().assign(correct=True)
    assert comparisons.estimation_error(still, rng=rng).to_dict() == {1: 0.0}


def test_no_records_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no records"):
        comparisons.load_all(tmp_path)


def test_real_runs_of_two_methods_side_by_side(tmp_path):
    for name, method in (("grpo", wb.methods.grpo(n=4)), ("pods", wb.methods.pods(n=8, m=4))):
        run = wb.Run(
            small_lab(),
            method,
            out=tmp_path / name / "seed-0",
            problems_per_round=4,
            evaluate_every=2,
        )
        list(run.rounds(2, progress=False))
    groups = comparisons.load_all(tmp_path)
    table = comparisons.at_budget(groups, "rollouts", baseline="grpo")
    assert (
        set(table.index) == {"grpo", "pods"}
        and np.isfinite(table.loc["pods", ["low", "high"]].astype(float)).all()
    )
    by_visit = comparisons.visits(groups["pods"][0].rollouts())
    assert (by_visit["rollouts"] == 8).all() and len(by_visit) == 8
    assert (comparisons.phases(groups, "flops").loc["pods"] > 0).all()


def test_a_thinned_record_reads_as_before_but_is_not_resumed(tmp_path):
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
    wb.records.thin(tmp_path, ("problem", "round", "correct", "score"), rounds=(1, 3))
    kept = wb.load(tmp_path).rollouts()
    pd.testing.assert_frame_equal(
        kept, whole.loc[whole["round"] != 2, ["problem", "round", "correct"]].reset_index(drop=True)
    )
    assert len(wb.load(tmp_path).rounds) == 3 and len(wb.load(tmp_path).accuracy()) == 2
    with pytest.raises(ValueError, match="checkpoint"):
        list(wb.Run.resume(tmp_path).rounds(4, progress=False))
    wb.records.thin(tmp_path)
    assert wb.load(tmp_path).rollouts().empty


def test_averages_over_seeds():
    tables = [
        pd.DataFrame({"x": [1.0, 2.0], "y": [0.0, np.nan]}),
        pd.DataFrame({"x": [3.0, 2.0], "y": [0.0, 1.0]}),
    ]
    found = comparisons.seed_means(tables)
    assert found["x"]["mean"].tolist() == [2, 2] and found["x"]["n"].tolist() == [2, 2]
    assert found["x"]["half"].tolist() == pytest.approx([12.706, 0], rel=1e-4) and np.isnan(
        found["y"].loc[1, "mean"]
    )


def test_zero_accuracy_and_relative_scores_by_hand(tmp_path):
    for label, correct, zero in (("a", ((0, 2), (4, 2)), 0.5), ("b", ((0, 2), (2, 1)), 0.75)):
        path = written(tmp_path, correct=correct, label=label)
        table = pd.read_parquet(path / label / "seed-0" / "rounds.parquet")
        table.assign(all_negative=[zero, zero + 0.1]).to_parquet(
            path / label / "seed-0" / "rounds.parquet"
        )
    found = comparisons.zero_accuracy_scores(comparisons.load_all(tmp_path))
    assert found["round"].tolist() == [2, 2] and found["zero"].tolist() == pytest.approx(
        [0.55, 0.8]
    )
    assert found["score"].tolist() == [0.75, 0.375] and found["relative"].tolist() == [1, 0.5]
