"""The published numbers: complete, finite, indexed, consistent, computed again where possible."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from papers import claims, pods
from papers.regimes import REGIMES
from workbench.rules.allocators import expected_rollouts, knapsack, required_rollouts
from workbench.rules.scheduler import epsilon

FOLDER = Path(__file__).parent.parent / "data" / "published"
EVERY_FILE = sorted(FOLDER.glob("*.csv"))
# Results of runs that authors released have no place in a paper, and tests of their own below.
RELEASED = [path for path in EVERY_FILE if path.stem.startswith("pods_released_")]
FILES = [path for path in EVERY_FILE if path not in RELEASED]
CLAIMS = claims.of()
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
    assert list(frame.columns)[:4] == KEYS
    assert set(frame["paper"]) == {path.stem.split("_")[0]}
    assert not frame.duplicated().any()
    for name in frame.columns.difference(MAY_BE_EMPTY):
        assert frame[name].notna().all(), name
    numbers = frame.select_dtypes("number")
    assert not np.isinf(numbers).any().any()
    assert len(numbers.columns.difference(["section", "page"]))
    expected = {"value", "rollouts", "p_value", "minutes_a_step"} & set(frame.columns)
    assert expected <= set(numbers.columns)


def test_the_index_names_every_file():
    index = (FOLDER / "README.md").read_text()
    names = set(re.findall(r"^\| `(\w+\.csv)`", index, re.M))
    assert names == {path.name for path in EVERY_FILE}
    papers = set(re.findall(r"^\| (pods|ar3po|knapsack|aero|cbs) \|", index, re.M))
    assert papers == {path.stem.split("_")[0] for path in FILES}


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


class TestReleasedRuns:
    """The runs that the authors of PODS released, against the table that stands beside them."""

    def test_they_are_160_runs(self):
        runs = 0
        for family in pods.FAMILIES:
            frame = pods.released_runs(family)
            assert (frame.groupby("setting")["run"].nunique() == 10).all()
            runs += 10 * frame["setting"].nunique()
        for gpus in ("a100s", "h100s"):
            runs += int(pods.multi_gpu_runs(gpus).groupby("setting")["run"].nunique().sum())
        assert runs == 160

    @pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.stem)
    def test_scores_are_shares(self, path):
        frame = table(path.stem)
        scores = [name for name in frame if name.endswith("accuracy") or name == "both"]
        assert scores
        for name in scores:
            assert frame[name].dropna().between(0, 1).all(), name
        assert not frame.duplicated().any()

    def test_last_checkpoints_are_the_published_accuracies(self):
        runs = pods.released_runs()
        last = runs[runs["hours"] == runs.groupby(["setting", "run"])["hours"].transform("max")]
        found = last.groupby("setting")["value"].agg(["mean", "std"])
        for _, row in table("pods_accuracy").iterrows():
            n, m = int(row["n"]), int(row["m"])
            rule = row["method"].removeprefix("PODS, ")
            setting = f"GRPO {n}" if rule == "GRPO" else f"{rule} {n} to {m}"
            assert found.loc[setting, "mean"] == pytest.approx(row["accuracy"], abs=0.0006)
            # What stands behind the plus-minus sign is the deviation of the ten runs.
            assert found.loc[setting, "std"] == pytest.approx(row["half_width"], abs=0.0006)

    def test_max_variance_beats_random_and_max_reward_in_points(self):
        rivals = ["random 64 to 16", "max-reward 64 to 16", "GRPO 16"]
        for rival in rivals:
            pair = {"max-variance 64 to 16": rival}
            [row] = pods.against(pods.released_runs(), pair, "hours", [6]).to_dict("records")
            assert row["n"] == 10
            assert row["low"] > 0, rival

    def test_a_run_that_ended_before_is_left_out(self):
        pair = {"max-variance 256 to 16": "GRPO 16"}
        [row] = pods.against(pods.released_runs(), pair, "steps", [1200]).to_dict("records")
        assert np.isnan(row["difference"]), "its runs have 1145 steps at most"

    def test_unknown_settings_are_named(self):
        with pytest.raises(ValueError, match=r"there are .*max-variance 64 to 16"):
            pods.against(pods.released_runs(), {"best": "GRPO 16"}, "hours", [6])
        with pytest.raises(ValueError, match="evaluated='amc23'"):
            pods.released_runs("llama-gsm8k", "amc23")

    def test_seconds_a_step_are_a_line_in_what_is_sampled_and_trained(self):
        fit = pods.seconds_a_step(rules=["max_variance"])
        assert fit.r_squared > 0.95
        assert fit.interval("sampled").low > 0


class TestClaims:
    @pytest.mark.slow
    def test_every_claim_can_be_measured(self):
        """It names arms of a regime; once the regime is on the shelf, each of them has its runs."""
        shelf = FOLDER.parent / "runs" / "regimes" / "shelf.json"
        recorded: dict[str, set[str]] = {}
        for run in json.loads(shelf.read_text())["runs"]:
            regime, arm, _ = run.split("/")
            recorded.setdefault(f"regimes/{regime}", set()).add(arm)
        for claim in CLAIMS:
            how = claim.measured_by
            for labels in (how.arm, how.baseline, how.gain_of):
                for name in filter(None, [labels] if isinstance(labels, str) else labels):
                    folder, _, arm = name.rpartition("/")
                    assert arm in REGIMES[folder.removeprefix("regimes/")].arms(), name
                    assert arm in recorded.get(folder, {arm}), name
            assert claim.place, claim.claim
            assert claim.published, claim.claim
        assert len(recorded) >= 5

    def test_claims_are_said_once(self):
        assert len({(claim.paper, claim.claim) for claim in CLAIMS}) == len(CLAIMS)
        assert {claim.paper for claim in CLAIMS} == {"PODS", "AR3PO", "Knapsack RL", "AERO", "CBS"}

    def test_every_size_lies_on_the_side_that_is_claimed(self):
        for claim in CLAIMS:
            if claim.sizes and claim.direction != "matches":
                assert claim.published_edge(gain=20.0) is not None, claim.claim

    def test_a_claim_of_equal_accuracy_has_a_margin(self):
        matching = [claim for claim in CLAIMS if "at most 1 point below" in claim.claim]
        assert len(matching) == 2
        assert all((claim.direction, claim.margin) == ("matches", 1) for claim in matching)

    def test_sizes_of_released_runs_are_measured_on_them(self):
        """Three sizes come from the runs' last checkpoints, which lie at different steps."""
        own = [claim for claim in CLAIMS if claim.paper == "PODS"]
        compared = 0
        for claim, finding in zip(own, pods.released_findings(own)):
            # The claim near the plateau has the size of the first one.
            if claim.sizes and claim.released:
                assert finding.measured.low < claim.sizes[0] < finding.measured.high
                assert finding.gain == pytest.approx(claim.published_gain[0], abs=1)
                compared += 1
        assert compared == 3

    @pytest.mark.parametrize(
        ("claim", "sizes"),
        [
            ("rollouts a problem against GRPO's 8, %", "ar3po"),
            ("FLOPs of a round against GRPO with n = 16, %", "aero"),
        ],
    )
    def test_sizes_follow_from_the_tables(self, claim, sizes):
        [found] = [each for each in CLAIMS if each.claim == claim]
        if sizes == "aero":
            cost = table("aero_table1_cost").pivot(
                index="model", columns="method", values="petaflops_a_step"
            )
            expected = 100 * (cost["AERO"] / cost["GRPO"] - 1)
        else:
            cost = table("ar3po_table1_cost").pivot(
                index="model", columns="method", values="responses_a_prompt"
            )
            expected = 100 * (cost["AR3PO"] / 8 - 1)
        assert sorted(found.sizes) == pytest.approx(sorted(expected.dropna()), abs=0.1)
