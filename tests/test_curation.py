"""AERO's rescue and its savings, on visits small enough to count by hand and on a real round."""

import pandas as pd
import pytest
from conftest import small_lab

import workbench as wb
from workbench import curation
from workbench.advantages import group_normalized, posterior


def visit(problem, stages, selected, round=1):
    """Rows of one visit: stages, a string of 0 and 1 a stage; selected, one string over all rollouts."""
    rows = [(problem, round, stage, outcome == "1") for stage, text in enumerate(stages) for outcome in text]
    frame = pd.DataFrame(rows, columns=["problem", "round", "stage", "correct"])
    return frame.assign(selected=[letter == "1" for letter in selected], tokens=10)


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
    assert found.loc[("first", 1), ["rollouts", "tokens", "selected", "kept"]].tolist() == [6, 60, 2, 20]


def test_savings_by_hand_add_up():
    ours, every = curation.groups(FRAME), FRAME["tokens"].sum()
    theirs = curation.groups(FRAME.assign(selected=True, tokens=20))
    found = curation.savings(ours, every, theirs, 2 * every)
    assert found.sum() == pytest.approx(100) and found["allocation"] == pytest.approx(50)
    kept = ours["kept"].sum()
    assert found["left"] == pytest.approx(100 * (2 * every + 6 * kept) / (16 * every))
    assert found["rescued"] == pytest.approx(100 * 6 * 100 / (16 * every))


def test_a_baseline_that_skips_groups_all_alike_makes_them_a_cost():
    ours, every = curation.groups(FRAME), FRAME["tokens"].sum()
    theirs = curation.groups(FRAME.assign(selected=True))
    found = curation.savings(ours, every, theirs, every, skip=True)
    start = 2 * every + 6 * (every - 120)
    assert found["allocation"] == 0 and found["alike"] == pytest.approx(-100 * 6 * 80 / start)
    assert found["left"] == pytest.approx(100 * (2 * every + 6 * ours["kept"].sum()) / start)


def test_what_is_left_is_what_a_real_run_spent(tmp_path):
    lab, spent = small_lab(), []
    prompts = {problem.id: len(problem.prompt) for problem in lab.problems}  # the tiny model reads characters
    for name, method in (("grpo", wb.methods.grpo(n=8, entropy=1e-3)), ("aero", wb.methods.aero(explore=4, total=8))):
        run = wb.Run(lab, method, out=tmp_path / name, problems_per_round=8, evaluate_every=0)
        for row in run.rounds(1, progress=False):
            frame = run.record.rollouts()
            frame = frame.assign(tokens=frame["length"] + frame["problem"].map(prompts))
            spent.append((curation.groups(frame), row["tokens_sampled"], row["flops"]))
            recorded = frame.loc[frame["selected"], "advantage"].abs().mean()
            assert curation.magnitudes(frame, method.advantage).loc["all", "mean"] == pytest.approx(recorded)
    (theirs, sampled, flops), (ours, ours_sampled, ours_flops) = spent
    assert curation.savings(ours, ours_sampled, theirs, sampled)["left"] == pytest.approx(100 * ours_flops / flops)


def test_advantages_by_hand():
    """Of n rollouts all alike each has 1/sqrt(n + 1), taken over all n; of a balanced group each has 1."""
    found = curation.magnitudes(FRAME, posterior)
    assert found["share"].tolist() == pytest.approx([1, 0.4, 0.2, 0.2, 0.2])
    assert found.loc["alike", "mean"] == pytest.approx((1 / 3 + 5**-0.5) / 2) and (found["mean"].iloc[2:] == 1).all()
    plain = curation.magnitudes(FRAME[FRAME["problem"] != "second"], group_normalized)
    assert plain.loc["alike", "mean"] == 0 and plain.loc["all", "mean"] == pytest.approx(10 / 18)
    assert curation.magnitudes(FRAME[FRAME["problem"] == "half"], posterior).loc["rescued"].isna().all()
