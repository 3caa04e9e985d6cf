"""AERO's rescue and its savings, on visits small enough to count by hand and on a real round."""

import numpy as np
import pandas as pd
import pytest
from conftest import small_lab
from written_records import write

import workbench as wb
from papers import aero
from workbench.advantages import GroupNormalized, Posterior
from workbench.analysis.runs import load_all


def visit(problem, stages, selected, round=1):
    """Rows of one visit, whose responses have 8 tokens and whose prompt has 2.

    `stages` has a string of 0 and 1 for each stage, `selected` is one string over all rollouts.
    """
    rows = []
    for stage, text in enumerate(stages):
        for outcome in text:
            rows.append((problem, round, stage, outcome == "1"))
    frame = pd.DataFrame(rows, columns=["problem", "round", "stage", "correct"])
    return frame.assign(selected=[letter == "1" for letter in selected], length=8, prompt=2)


FRAME = pd.concat(
    [
        visit("never", ["0000", "00", "00"], "11110000"),
        visit("second", ["0000", "00", "10"], "00000011"),
        visit("first", ["0000", "01"], "100001"),
        visit("partial", ["1000"], "1001"),
        visit("half", ["1100"], "1111"),
        visit("always", ["1111"], "1111"),
        visit("never", ["0100"], "0101", round=2),
    ],
    ignore_index=True,
)
STAGES = 3 + 3 + 2 + 1 + 1 + 1 + 1  # each encodes the prompt once

SAMPLED = 8 * len(FRAME) + 2 * STAGES
EVERY = 10 * len(FRAME)
KEPT = 10 * int(FRAME["selected"].sum())


def test_rescue_by_hand():
    table = aero.rescue(FRAME)
    assert table["unsolved"].tolist() == pytest.approx([3 / 7, 2 / 7, 1 / 7])
    assert table["tried"].tolist() == pytest.approx([1, 3 / 7, 2 / 7])
    assert table["rescued"].tolist() == pytest.approx([4 / 7, 1 / 3, 1 / 2])


def test_groups_by_hand():
    table = aero.groups(FRAME).set_index(["problem", "round"])
    assert table["kind"].to_dict() == {
        ("never", 1): "alike",
        ("second", 1): "rescued",
        ("first", 1): "rescued",
        ("partial", 1): "partial",
        ("half", 1): "high",
        ("always", 1): "alike",
        ("never", 2): "partial",
    }
    columns = ["rollouts", "selected", "sampled", "tokens", "kept"]
    # Six responses of 8 tokens in two stages, so the prompt of 2 tokens is encoded twice.
    assert table.loc[("first", 1), columns].tolist() == [6, 2, 52, 60, 20]
    assert table.loc[("half", 1), columns].tolist() == [4, 4, 34, 40, 40]


def test_categories_by_hand():
    table = aero.categories(FRAME)
    assert list(table) == [*aero.CATEGORIES, "rate"]
    # Round 1: "never" has none of 8, "second" 1 of 8, "first" 1 of 6, "partial" 1 of 4, "half" 2 of
    # 4 and "always" all.
    assert table.loc[1].tolist() == pytest.approx(
        [1 / 6, 3 / 6, 1 / 6, 1 / 6, (1 / 8 + 1 / 6 + 1 / 4 + 1 / 2 + 1) / 6]
    )
    assert table.loc[2].tolist() == [0, 1, 0, 0, 0.25]


def test_categories_at_equal_numbers_read_the_first_rollouts():
    """After four rollouts each, "second" and "first" have not been rescued yet."""
    table = aero.categories(FRAME, most=4)
    assert table.loc[1].tolist() == pytest.approx([3 / 6, 1 / 6, 1 / 6, 1 / 6, 1.75 / 6])
    assert aero.categories(FRAME, most=1).loc[1, "perfect"] == 3 / 6
    with pytest.raises(ValueError, match="most"):
        aero.categories(FRAME, most=0)


def test_sizes_by_hand():
    table = aero.sizes([FRAME, FRAME])
    expected = {"alike": 12 / 7, "rescued": 2, "partial": 8 / 7, "high": 4 / 7}
    assert table["sampled"].to_dict() == pytest.approx(expected)
    assert table["selected"].sum() == pytest.approx(20 / 7)
    assert aero.sizes([FRAME[:8]]).loc["high", "sampled"] == 0


def test_savings_by_hand_add_up():
    """A baseline of the same rollouts, all of them trained on and twice as long."""
    parts = aero.savings(FRAME, FRAME.assign(selected=True, length=16, prompt=4))
    start = 2 * (2 * SAMPLED + 6 * EVERY)
    assert parts.sum() == pytest.approx(100)
    assert parts["allocation"] == pytest.approx(50)
    assert parts["left"] == pytest.approx(100 * (2 * SAMPLED + 6 * KEPT) / start)
    # "second" and "first" have 14 rollouts, of which 4 are selected: 10 x 10 tokens are left out.
    assert parts["rescued"] == pytest.approx(100 * 6 * 100 / start)


def test_a_baseline_that_skips_groups_all_alike_makes_them_a_cost():
    parts = aero.savings(FRAME, FRAME.assign(selected=True), skip=True)
    # The visits of "never" (8 rollouts) and "always" (4) are all alike: 120 tokens.
    start = 2 * SAMPLED + 6 * (EVERY - 120)
    assert parts["allocation"] == 0
    assert parts["alike"] == pytest.approx(-100 * 6 * 80 / start)
    assert parts["left"] == pytest.approx(100 * (2 * SAMPLED + 6 * KEPT) / start)
    assert parts.sum() == pytest.approx(100)


def test_savings_at_a_price_of_sampling_by_hand():
    """Half as many tokens trained on and as many sampled, at a price of 2."""
    parts = aero.savings(FRAME, FRAME.assign(selected=True), price=2)
    start = 2 * SAMPLED + EVERY
    assert parts["allocation"] == 0
    assert parts["left"] == pytest.approx(100 * (2 * SAMPLED + KEPT) / start)
    assert parts.sum() == pytest.approx(100)
    with pytest.raises(ValueError, match="price"):
        aero.savings(FRAME, FRAME, price=0)


def test_what_is_left_is_what_a_real_run_spent(tmp_path):
    lab = small_lab()
    # The tiny model reads characters, so a prompt has as many tokens as letters.
    prompts = {problem.id: len(problem.prompt) for problem in lab.problems}
    methods = {
        "grpo": wb.methods.grpo(n=8, entropy=1e-3),
        "aero": wb.methods.aero(explore=4, total=8),
    }
    spent = {}
    for name, method in methods.items():
        run = wb.Run(lab, method, out=tmp_path / name, problems_per_round=8, evaluate_every=0)
        [row] = run.rounds(1, progress=False)
        frame = run.record.rollouts()
        frame = frame.assign(prompt=frame["problem"].map(prompts))
        spent[name] = (frame, row["flops"])
        table = aero.groups(frame)
        assert table["sampled"].sum() == row["tokens_sampled"]
        assert table["kept"].sum() == row["tokens_trained"]
        recorded = frame.loc[frame["selected"], "advantage"].abs().mean()
        means = aero.magnitudes(frame, method.advantage)["mean"]
        assert means["all"] == pytest.approx(recorded)
    ours, our_flops = spent["aero"]
    baseline, baseline_flops = spent["grpo"]
    left = aero.savings(ours, baseline)["left"]
    assert left == pytest.approx(100 * our_flops / baseline_flops)


def test_advantages_by_hand():
    """Of n rollouts all alike each has 1/sqrt(n + 1); of a balanced group each has 1."""
    table = aero.magnitudes(FRAME, Posterior())
    assert table["share"].tolist() == pytest.approx([1, 0.4, 0.2, 0.2, 0.2])
    assert table.loc["alike", "mean"] == pytest.approx((1 / 3 + 5**-0.5) / 2)
    assert table["mean"].iloc[2:].tolist() == pytest.approx([1, 1, 1])

    plain = aero.magnitudes(FRAME[FRAME["problem"] != "second"], GroupNormalized())
    assert plain.loc["alike", "mean"] == 0
    assert plain.loc["all", "mean"] == pytest.approx(10 / 18)

    one_visit = aero.magnitudes(FRAME[FRAME["problem"] == "half"], Posterior())
    assert one_visit.loc["rescued"].isna().all()


def test_gradient_norms_of_the_rounds_asked_for(tmp_path):
    write(tmp_path, "grpo", columns={"gradient_norm": [1.0, np.nan]})
    write(tmp_path, "prior", columns={"gradient_norm": [3.0, 5.0]})
    table = aero.gradient_norms(load_all(tmp_path))
    # A round without a step has no norm, and counts as 0.
    assert table.loc[("grpo", 0), ["mean", "zero"]].tolist() == [0.5, 0.5]
    assert table.loc[("prior", 0), ["mean", "max"]].tolist() == [4, 5]
    last = aero.gradient_norms(load_all(tmp_path), rounds=(2, 2))
    assert last.loc[("prior", 0), "mean"] == 5


def test_zero_accuracy_and_relative_scores_by_hand(tmp_path):
    write(tmp_path, "a", scores=((0, 0.25), (2, 0.75)), columns={"all_negative": [0.5, 0.6]})
    write(tmp_path, "b", scores=((0, 0.25), (2, 0.5)), columns={"all_negative": [0.75, 0.85]})
    table = aero.zero_accuracy_scores(load_all(tmp_path))
    assert table["label"].tolist() == ["a", "b"]
    assert table["round"].tolist() == [2, 2]
    assert table["zero"].tolist() == pytest.approx([0.55, 0.8])
    assert table["score"].tolist() == [0.75, 0.5]
    assert table["relative"].tolist() == pytest.approx([1, 2 / 3])


def test_the_rounds_of_a_checkpoint_are_those_after_the_one_before(tmp_path):
    scores = ((0, 0.25), (1, 0.5), (2, 0.75))
    for label in ("a", "b"):
        write(tmp_path, label, scores=scores, columns={"all_negative": [0.5, 0.75]})
    table = aero.zero_accuracy_scores(load_all(tmp_path))
    assert table["round"].tolist() == [1, 1, 2, 2]
    assert table["zero"].tolist() == [0.5, 0.5, 0.75, 0.75]


def test_zero_accuracy_is_compared_between_two_methods(tmp_path):
    write(tmp_path, "a", columns={"all_negative": [0.5, 0.6]})
    with pytest.raises(ValueError, match="1 labels; two methods"):
        aero.zero_accuracy_scores(load_all(tmp_path))
