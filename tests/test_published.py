"""The published numbers: complete, finite, indexed, consistent, and computed again by this package where it can."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workbench.allocators import expected_rollouts, knapsack, required_rollouts
from workbench.scheduler import epsilon

FOLDER = Path(__file__).parent.parent / "data" / "published"
FILES = sorted(FOLDER.glob("*.csv"))
KEYS = ["paper", "table", "section", "page"]
MAY_BE_EMPTY = {
    "table",
    "page",
    "section",
    "model",
    "method",
    "setting",
    "unit",
    "metric",
    "cost",
    "p_relation",
    "p_value",
    "minutes_a_step",
    "petaflops_a_step",
    "kept_percent",
    "accumulation_steps",
}


def table(name):
    return pd.read_csv(FOLDER / f"{name}.csv", keep_default_na=False, na_values=[""])


def wide(name):
    return table(name).pivot(index=["model", "method"], columns="benchmark", values="value")


def text(paper, quantity, **where):
    frame = table(f"{paper}_text")
    chosen = frame[
        np.logical_and.reduce([frame[c] == v for c, v in {"quantity": quantity, **where}.items()])
    ]
    assert len(chosen) == 1, (quantity, where)
    return float(chosen["value"].iloc[0])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_columns_and_numbers(path):
    frame = table(path.stem)
    assert (
        list(frame.columns)[:4] == KEYS
        and len(frame)
        and set(frame["paper"]) == {path.stem.split("_")[0]}
    )
    assert not frame.duplicated().any()
    for name in frame.columns.difference(MAY_BE_EMPTY):
        assert frame[name].notna().all(), name
    numbers = frame.select_dtypes("number")
    assert not np.isinf(numbers).any().any() and len(
        numbers.columns.difference(["section", "page"])
    )
    assert not ({"value", "rollouts", "p_value", "minutes_a_step"} & set(frame.columns)) - set(
        numbers.columns
    )


def test_the_index_names_every_file():
    index = (FOLDER / "README.md").read_text()
    assert set(re.findall(r"^\| `(\w+\.csv)`", index, re.M)) == {path.name for path in FILES}
    assert set(re.findall(r"^\| (pods|ar3po|knapsack|aero|cbs) \|", index, re.M)) == {
        p.stem.split("_")[0] for p in FILES
    }


@pytest.mark.parametrize("name", ["ar3po_table1", "ar3po_table2", "cbs_table2", "cbs_table5"])
def test_averages_are_means(name):
    scores = wide(name)
    sets = scores.columns.difference(["average", "relative improvement"])
    np.testing.assert_allclose(scores[sets].mean(axis=1), scores["average"], atol=0.06)


@pytest.mark.parametrize("name", [f"knapsack_table{n}" for n in (1, 4, 5, 6, 7)])
def test_knapsack_averages_count_aime_twice(name):
    scores = wide(name)
    means = (scores.drop(columns="average").sum(axis=1) + scores["AIME"]) / 7
    odd = (means - scores["average"]).abs() > 0.1
    assert odd[odd].index.tolist() == (
        [("Qwen3-4B-Instruct", "GRPO")] if name == "knapsack_table1" else []
    )


def test_cbs_improvements_follow_from_the_scores():
    scores = wide("cbs_table2").reset_index()
    scores["plain"] = scores["method"].str.split(" ").str[0]
    base = scores.set_index(["model", "method"])["average"]
    better = scores.dropna(subset="relative improvement")
    gains = [
        100 * (row["average"] / base[row["model"], row["plain"]] - 1)
        for _, row in better.iterrows()
    ]
    assert len(gains) == 18
    np.testing.assert_allclose(gains, better["relative improvement"], atol=0.06)
    for method, mean in better.groupby("method")["relative improvement"].mean().items():
        assert mean == pytest.approx(
            text("cbs", "relative improvement, mean over the three models", method=method), abs=0.06
        )


@pytest.mark.parametrize("fallback", ["yes", "no"])
def test_knapsack_table_2(fallback):
    rows = table("knapsack_table2").query("fallback == @fallback").sort_values("problem")
    counts = knapsack(
        rows["success_rate"].to_numpy(), rows["rollouts"].sum(), low=2, fallback=fallback == "yes"
    )
    assert counts.tolist() == rows["rollouts"].tolist() and counts.sum() == 64


def test_knapsack_table_2_costs():
    rows = table("knapsack_table2").query("0 < success_rate < 1")
    assert (
        np.ceil(required_rollouts(rows["success_rate"].to_numpy())).tolist()
        == rows["cost"].tolist()
    )


@pytest.mark.parametrize(
    "method, info_gain, low", [("Knapsack-GRPO", True, 3), ("Knapsack-GRPO w/o InfoGain", False, 2)]
)
def test_knapsack_table_3(method, info_gain, low):
    rows = table("knapsack_table3").query("method == @method")
    counts = knapsack(rows["success_rate"].to_numpy(), 72, low=low, info_gain=info_gain)
    assert counts.tolist() == rows["rollouts"].tolist()


def test_knapsack_proposition_1():
    first = "expected rollouts until the first non-zero gradient"
    assert float(expected_rollouts(0.5)) == text("knapsack", first, setting="p=0.5")
    assert float(expected_rollouts(0.01)) == pytest.approx(
        text("knapsack", first, setting="p=0.01"), abs=0.5
    )
    assert round(float(required_rollouts(0.01))) == text(
        "knapsack", "rollouts for a non-zero gradient with probability 0.9"
    )


def test_the_schedule_of_cbs_keeps_to_table_4():
    for _, row in table("cbs_table4").iterrows():
        settings = {
            "warmup": row["warmup_rounds"],
            "start": row["epsilon_start"],
            "decay": row["epsilon_decay"],
            "floor": row["epsilon_min"],
        }
        assert epsilon(1, **settings) == epsilon(row["warmup_rounds"], **settings) == 1
        assert epsilon(500, **settings) == row["epsilon_min"]
    kept, share = (
        text("cbs", "rollouts kept of 1024"),
        table("cbs_table4")["kept_percent"].dropna().unique(),
    )
    assert [1024 * int(p) // 100 for p in share] == [kept]
    assert kept // 128 == text("cbs", "mini-batches of 128 rollouts made of them")


def test_speedups_of_ar3po_follow_from_the_responses():
    rows = table("ar3po_table1_cost")
    responses = rows["prompts_a_step"] * rows["responses_a_prompt"]
    np.testing.assert_allclose(
        responses[rows["method"] == "DAPO"].iloc[0] / responses,
        rows["speedup_over_dapo"],
        atol=0.05,
    )
    large = (
        1536 * 16 / (512 * text("ar3po", "responses a prompt", model="Qwen2.5-32B", method="AR3PO"))
    )
    assert round(large) == text("ar3po", "rollout cost of DAPO, as a multiple")


def test_aero_tables_agree_with_each_other_and_with_the_text():
    cost = table("aero_table1_cost").set_index(["model", "method"])
    again = table("aero_table6").set_index(["model", "method"]).loc[cost.index]
    pd.testing.assert_frame_equal(
        again[["minutes_a_step", "petaflops_a_step"]],
        cost[["minutes_a_step", "petaflops_a_step"]],
        check_dtype=False,
    )
    totals = (
        table("aero_table1")
        .query("benchmark == 'total'")
        .pivot(index=["model", "method"], columns="metric", values="value")
    )
    assert totals.loc[cost.index, ["avg@8", "pass@8"]].equals(
        again[["avg@8", "pass@8"]].rename_axis(columns="metric")
    )
    for model, part in cost[["minutes_a_step", "petaflops_a_step"]].groupby("model"):
        ratio = part.xs("GRPO", level="method").iloc[0] / part.xs("AERO", level="method").iloc[0]
        said = [
            text("aero", f"{what} of GRPO, as a multiple", model=model)
            for what in ("time of a step", "total FLOPs")
        ]
        np.testing.assert_allclose(ratio.to_numpy(), said, atol=0.1)
    norms = table("aero_table7").groupby("method")["gradient_norm_x100"].mean()
    assert norms["GRPO + Bayesian Prior"] / norms["GRPO"] == pytest.approx(1.5, abs=0.1)
