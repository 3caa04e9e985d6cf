"""The ladder: candidates of tasks, and what methods change from rung to rung."""

import numpy as np
import pandas as pd
import pytest

import workbench as wb
from papers import ladder, rungs
from workbench import problems


@pytest.mark.slow
@pytest.mark.parametrize("name", ladder.CANDIDATES)
def test_held_out_problems_are_others_and_every_answer_is_a_number(name):
    candidate = ladder.CANDIDATES[name]
    if candidate.kind == "reasoning-gym":
        pytest.importorskip("reasoning_gym")
    train, held_out = (candidate.make(split, 40) for split in ("train", "heldout"))
    assert len(train) == 40 and len(held_out) >= 15
    assert not {each.prompt for each in train} & {each.prompt for each in held_out}
    assert not {each.id for each in train} & {each.id for each in held_out}
    for problem in [*train, *held_out]:
        assert float(problem.answer) == int(problem.answer)
    # The same again, as a run that goes on needs it.
    assert candidate.make("train", 40).digest == train.digest
    # Answers that a verifier cannot use are refused here.
    rows = [{"prompt": each.prompt, "answer": each.answer} for each in held_out]
    assert len(problems.from_rows(rows)) == len(held_out)


def test_the_table_says_how_far_each_candidate_has_come(tmp_path):
    starts = {"task": ["two operations", "gcd"], "problems": 64, "start": [0.25, 0.5], "tokens": 3}
    pd.DataFrame(starts).to_csv(tmp_path / "starts.csv", index=False)
    assert ladder.candidates_in_range(tmp_path) == ["two operations"]
    found = ladder.table(tmp_path)
    assert found["kind"].tolist() == ["numbers", "reasoning-gym"]
    assert found["rounds"].tolist() == [0, 0] and found["curve"].isna().all()


def test_the_table_has_the_curve_of_a_run(tmp_path, lab):
    starts = {"task": ["gcd"], "problems": 12, "start": [0.2], "tokens": 3}
    pd.DataFrame(starts).to_csv(tmp_path / "starts.csv", index=False)
    place = ladder.folder(tmp_path, "gcd")
    run = wb.Run(lab, wb.methods.grpo(4), out=place, problems_per_round=4, evaluate_every=1)
    for _ in run.rounds(2, progress=False):
        pass
    [row] = ladder.table(tmp_path).to_dict("records")
    accuracy = wb.load(place).accuracy()["accuracy"]
    assert (row["rounds"], row["at"]) == (2, 2)
    assert row["reached"] == accuracy.iloc[-1]
    assert row["curve"].split() == [f"{share:.3f}" for share in accuracy]


# Rungs


def of_sizes(ratios, points):
    """A table as `rungs.effects` gives it, from the values of the same methods on every rung."""
    rows = {
        (size, name): {"ratio": ratio, "low": ratio - 0.1, "high": ratio + 0.1}
        | {"rounds": 1 / ratio, "a_round": ratio**2}
        | {"points": gain, "points_low": gain - 1, "points_high": gain + 1}
        for size in ratios
        for name, ratio, gain in zip(rungs.ARMS.values(), ratios[size], points[size])
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["size", "method"])


def test_what_the_papers_report_is_the_mean_over_their_models():
    published = rungs.published()
    # Table 1 of AR3PO: 43.1 against 42.2, and 27.8 against 26.5.
    assert published["AR3PO"] == pytest.approx((0.9 + 1.3) / 2)
    # Of DAPO that table has two models more, and table 1 of AERO two.
    gains = [0.7, 1.3, 34.05 - 34.01, 47.5 - 46.9]
    assert published["DAPO"] == pytest.approx(sum(gains) / 4)
    assert set(published.index) < set(rungs.ARMS.values())


def test_orders_of_rungs_are_compared_by_ranks():
    ratios = {"small": [1, 2, 3, 4, 5, 6, 7], "large": [10, 20, 30, 40, 50, 60, 70]}
    points = {"small": [1, 2, 3, 4, 5, 6, 7], "large": [7, 6, 5, 4, 3, 2, 1]}
    found = rungs.correlations(of_sizes(ratios, points))
    sizes = found[(found["first"] == "small") & (found["second"] == "large")]
    assert sizes["measure"].tolist() == list(rungs.MEASURES)
    assert sizes["correlation"].tolist() == pytest.approx([1, 1, -1])
    # Two of the 7! orders of seven methods agree as strongly: the same one and its reverse.
    assert sizes["p"].tolist() == pytest.approx([2 / 5040] * 3)
    # What is known before any training stands beside every rung.
    trivial = found[found["first"] == rungs.SAMPLED]
    assert trivial["second"].tolist() == ["small", "large"]
    assert trivial["correlation"].tolist() == pytest.approx([1, 1])
    papers = found[found["second"] == rungs.PAPERS]
    assert set(papers["methods"]) == {5} and set(papers["measure"]) == {"accuracy at equal rounds"}


def test_what_is_sampled_can_be_held_fixed():
    ratios = {"small": [2, 1, 3, 5, 4, 7, 6], "large": [1, 3, 2, 4, 7, 5, 6]}
    table = of_sizes(ratios, ratios)
    table["a_round"] = [1, 2, 3, 4, 5, 6, 7] * 2
    found = rungs.correlations(table).set_index(["measure", "first", "second"])["partial"]
    # The same by another way: what a line through the ranks of the third leaves of both ranks.
    steps = np.arange(1, 8)
    rests = [ranks - np.polyval(np.polyfit(steps, ranks, 1), steps) for ranks in ratios.values()]
    expected = np.corrcoef(*rests)[0, 1]
    assert found["rollouts to the target", "small", "large"] == pytest.approx(expected)
    assert found.drop(("rollouts to the target", "small", "large")).isna().all()


def test_an_effect_goes_the_same_way_only_where_both_intervals_say_so():
    ratios = {"small": [0.5, 0.5, 1.0, 2, 2, 2, 2], "large": [0.5, 2.0, 0.5, 2, 2, 2, 2]}
    points = {"small": [5, 5, 0, 1.5, 1.5, 1.5, 1.5], "large": [5, -5, 5, 1.5, 1.5, 1.5, 1.5]}
    table = rungs.agreement(of_sizes(ratios, points), "small", "large")
    assert table["rollouts, same way"].tolist()[:3] == ["yes", "no", "open"]
    assert table["points, same way"].tolist()[:4] == ["yes", "no", "open", "yes"]
    assert table.loc["PODS", "rollouts, small"] == "0.50 [0.40, 0.60]"


@pytest.mark.long
def test_every_rung_has_every_method_with_its_seeds():
    ladder_of_records = rungs.shelves(wb.labs.shipped("runs"))
    table = rungs.effects(ladder_of_records)
    assert list(table.index.unique("size")) == list(rungs.RUNGS)
    assert (table.groupby("size").size() == len(rungs.ARMS)).all()
    assert (table["seeds"] >= 3).all()
    # Rollouts are what is sampled in a round, times rounds.
    by_round = (table["ratio"] / table["rounds"]).to_numpy()
    assert by_round == pytest.approx(table["a_round"].to_numpy(), rel=0.35)
    spread = rungs.intervals(ladder_of_records, resamples=200)
    assert (spread["low"] < spread["high"]).all() and spread.abs().to_numpy().max() <= 1
    low, high = spread.loc[("rollouts to the target", "0.10 million", "135 million")]
    assert low < 0.75 and high > 0.95, "six seeds say little of an order"
    assert spread.loc[("rollouts to the target", rungs.SAMPLED)].shape == (3, 2)
    other = rungs.effects(
        rungs.shelves(wb.labs.shipped("runs"), rungs.OTHER_TASK, rungs.OTHER_ARMS)
    )
    assert list(other.index.unique("method")) == list(rungs.OTHER_ARMS.values())
