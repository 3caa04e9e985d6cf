"""AERO's rescue and its savings, on visits small enough to count by hand and on a real round."""

import pandas as pd
import pytest
from conftest import small_lab

import workbench as wb
from workbench.advantages import group_normalized, posterior
from workbench.analysis import aero as curation


def visit(problem, stages, selected, round=1):
    """Rows of one visit: stages, a string of 0 and 1 a stage; selected, one string over all rollouts."""
    rows = [
        (problem, round, stage, outcome == "1")
        for stage, text in enumerate(stages)
        for outcome in text
    ]
    frame = pd.DataFrame(rows, columns=["problem", "round", "stage", "correct"])
    return frame.assign(selected=[letter == "1" for letter in selected], length=8, prompt=2)


FRAME = pd.concat([
    visit("never", ["0000", "00", "00"], "11110000"), visit("second", ["0000", "00", "10"], "00000011"),
    visit("first", ["0000", "01"], "100001"), visit("partial", ["1000"], "1001"), visit("half", ["1100"], "1111"),
    visit("always", ["1111"], "1111"), visit("never", ["0100"], "0101", round=2)], ignore_index=True)  # fmt: skip


def test_rescue_by_hand():
    found = curation.rescue(FRAME)
    assert found["unsolved"].tolist() == pytest.approx([3 / 7, 2 / 7, 1 / 7])
    assert found["tried"].tolist() == pytest.approx([1, 3 / 7, 2 / 7])
    assert found["rescued"].tolist() == pytest.approx([4 / 7, 1 / 3, 1 / 2])


def test_groups_by_hand():
    found = curation.groups(FRAME).set_index(["problem", "round"])
    assert found["kind"].to_dict() == {
        ("never", 1): "alike", ("second", 1): "rescued", ("first", 1): "rescued", ("partial", 1): "partial",
        ("half", 1): "high", ("always", 1): "alike", ("never", 2): "partial"}  # fmt: skip
    assert found.loc[
        ("first", 1), ["rollouts", "selected", "sampled", "tokens", "kept"]
    ].tolist() == [6, 2, 50, 60, 20]


def test_sizes_by_hand():
    found = curation.sizes([FRAME, FRAME])
    assert found["sampled"].to_dict() == pytest.approx(
        {"alike": 12 / 7, "rescued": 2, "partial": 8 / 7, "high": 4 / 7}
    )
    assert (
        found["selected"].sum() == pytest.approx(20 / 7)
        and curation.sizes([FRAME[:8]]).loc["high", "sampled"] == 0
    )


def test_savings_by_hand_add_up():
    every, sampled, kept = 10 * len(FRAME), 8 * len(FRAME) + 2 * 7, 10 * FRAME["selected"].sum()
    found = curation.savings(FRAME, FRAME.assign(selected=True, length=16, prompt=4))
    assert found.sum() == pytest.approx(100) and found["allocation"] == pytest.approx(50)
    start = 2 * (2 * sampled + 6 * every)
    assert found["left"] == pytest.approx(100 * (2 * sampled + 6 * kept) / start)
    assert found["rescued"] == pytest.approx(100 * 6 * 100 / start)


def test_a_baseline_that_skips_groups_all_alike_makes_them_a_cost():
    every, sampled, kept = 10 * len(FRAME), 8 * len(FRAME) + 2 * 7, 10 * FRAME["selected"].sum()
    found = curation.savings(FRAME, FRAME.assign(selected=True), skip=True)
    start = 2 * sampled + 6 * (every - 120)
    assert found["allocation"] == 0 and found["alike"] == pytest.approx(-100 * 6 * 80 / start)
    assert found["left"] == pytest.approx(100 * (2 * sampled + 6 * kept) / start)


def test_what_is_left_is_what_a_real_run_spent(tmp_path):
    lab, spent = small_lab(), []
    prompts = {
        problem.id: len(problem.prompt) for problem in lab.problems
    }  # the tiny model reads characters
    for name, method in (
        ("grpo", wb.methods.grpo(n=8, entropy=1e-3)),
        ("aero", wb.methods.aero(explore=4, total=8)),
    ):
        run = wb.Run(lab, method, out=tmp_path / name, problems_per_round=8, evaluate_every=0)
        for row in run.rounds(1, progress=False):
            frame = run.record.rollouts()
            frame = frame.assign(prompt=frame["problem"].map(prompts))
            spent.append((frame, row["flops"]))
            table = curation.groups(frame)
            assert (table["sampled"].sum(), table["kept"].sum()) == (
                row["tokens_sampled"],
                row["tokens_trained"],
            )
            recorded = frame.loc[frame["selected"], "advantage"].abs().mean()
            assert curation.magnitudes(frame, method.advantage).loc["all", "mean"] == pytest.approx(
                recorded
            )
    (theirs, flops), (ours, ours_flops) = spent
    assert curation.savings(ours, theirs)["left"] == pytest.approx(100 * ours_flops / flops)


def test_advantages_by_hand():
    """Of n rollouts all alike each has 1/sqrt(n + 1), taken over all n; of a balanced group each has 1."""
    found = curation.magnitudes(FRAME, posterior)
    assert found["share"].tolist() == pytest.approx([1, 0.4, 0.2, 0.2, 0.2])
    assert (
        found.loc["alike", "mean"] == pytest.approx((1 / 3 + 5**-0.5) / 2)
        and (found["mean"].iloc[2:] == 1).all()
    )
    plain = curation.magnitudes(FRAME[FRAME["problem"] != "second"], group_normalized)
    assert plain.loc["alike", "mean"] == 0 and plain.loc["all", "mean"] == pytest.approx(10 / 18)
    assert (
        curation.magnitudes(FRAME[FRAME["problem"] == "half"], posterior)
        .loc["rescued"]
        .isna()
        .all()
    )
