"""AERO's rescue and its savings, on visits small enough to count by hand and on a real round."""

from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from conftest import small_lab
from written_records import curve, write

import workbench as wb
from papers import aero, aero_code, regimes
from workbench.analysis.runs import load_all
from workbench.rollouts import Context, Rollouts
from workbench.rules.advantages import GroupNormalized, Posterior

ROOT = Path(__file__).parent.parent


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


def saved(frame, baseline, **options):
    """`aero.savings` of rollouts."""
    return aero.savings(aero.groups(frame), aero.groups(baseline), **options)


def test_savings_by_hand_add_up():
    """A baseline of the same rollouts, all of them trained on and twice as long."""
    parts = saved(FRAME, FRAME.assign(selected=True, length=16, prompt=4))
    start = 2 * (2 * SAMPLED + 6 * EVERY)
    assert parts.sum() == pytest.approx(100)
    assert parts["allocation"] == pytest.approx(50)
    assert parts["left"] == pytest.approx(100 * (2 * SAMPLED + 6 * KEPT) / start)
    # "second" and "first" have 14 rollouts, of which 4 are selected: 10 x 10 tokens are left out.
    assert parts["rescued"] == pytest.approx(100 * 6 * 100 / start)


def test_a_baseline_that_skips_groups_all_alike_makes_them_a_cost():
    parts = saved(FRAME, FRAME.assign(selected=True), skip=True)
    # The visits of "never" (8 rollouts) and "always" (4) are all alike: 120 tokens.
    start = 2 * SAMPLED + 6 * (EVERY - 120)
    assert parts["allocation"] == 0
    assert parts["alike"] == pytest.approx(-100 * 6 * 80 / start)
    assert parts["left"] == pytest.approx(100 * (2 * SAMPLED + 6 * KEPT) / start)
    assert parts.sum() == pytest.approx(100)


def test_savings_at_a_price_of_sampling_by_hand():
    """Half as many tokens trained on and as many sampled, at a price of 2."""
    parts = saved(FRAME, FRAME.assign(selected=True), price=2)
    start = 2 * SAMPLED + EVERY
    assert parts["allocation"] == 0
    assert parts["left"] == pytest.approx(100 * (2 * SAMPLED + KEPT) / start)
    assert parts.sum() == pytest.approx(100)
    with pytest.raises(ValueError, match="price"):
        saved(FRAME, FRAME, price=0)


@pytest.mark.slow
def test_what_is_left_is_what_a_real_run_spent(tmp_path):
    lab = small_lab()
    # The tiny model reads characters, so a prompt has as many tokens as letters.
    prompts = {problem.id: len(problem.prompt) for problem in lab.problems}
    methods = {
        "grpo": wb.methods.grpo(n=8, objective=wb.objectives.Objective(entropy=1e-3)),
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
    left = saved(ours, baseline)["left"]
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


# Recorded runs


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def recorded():
    return aero.load(ROOT / "data/runs")


@pytest.fixture(scope="module")
def pairs(recorded):
    """Two seeds of each tuned arm are enough."""
    return {name: records[:2] for name, records in recorded.shelf.groups.items()}


@pytest.fixture(scope="module")
def few(pairs):
    """The rollouts of two seeds in the first 20 rounds."""
    return aero.Outcomes(pairs, (1, 20))


def test_the_arms_are_those_of_the_regime():
    # The paper's row without rejection stands in a table of its own.
    assert set(regimes.REGIMES["aero"].arms()) == {*aero.ARMS, "no-strategy-3"}


def test_a_bill_is_read_over_one_range_of_rounds_in_every_unit(tmp_path):
    """Ten rollouts a round in both arms; a price that rises with the rounds is cut after them."""

    class Rising:
        name = "rising"

        def __init__(self, by):
            self.by = by

        def per_round(self, rounds):
            assert len(rounds) == 4, "a unit sees the whole run"
            return 1.0 + self.by * np.arange(len(rounds))

    for label in ("a", "b"):
        curve(tmp_path, label, 0, [0.2, 0.3, 0.4], every=2)
    runs = load_all(tmp_path)
    for unit in ("rollouts", Rising(1)):
        assert aero.change(runs["a"], runs["b"], unit, (2, 3)).value == pytest.approx(0)


@pytest.mark.long
def test_what_is_saved_is_the_change_turned_around(pairs):
    table = aero.saved(pairs, "AERO", ["GRPO, 16"])["against GRPO, 16"]
    found = aero.change(pairs["AERO"], pairs["GRPO, 16"], "flops")
    assert table.loc["FLOPs"].tolist() == pytest.approx([-found.value, -found.high, -found.low])
    # With the entropy bonus every selected rollout is computed.
    assert table.loc["FLOPs with every rollout trained", "saved"] == pytest.approx(-found.value)


def test_the_three_models_of_table_6_are_named_apart():
    table = aero.table6()
    assert list(table.index) == list(aero.MODELS)
    assert table["above GRPO"].round(1).tolist() == [0.5, 1.1, 2.2]
    assert table["above fewer"].round(1).tolist() == [2.7, 2.5, 17.8]
    assert table.loc["Qwen2.5-1.5B-Base", "fewer gained"] == pytest.approx(2.2)


@pytest.mark.long
def test_a_machine_is_billed_with_its_constant(pairs):
    runs = {name: pairs[name] for name in ("GRPO, 16", "AERO", "GRPO, 5")}
    table = aero.machine_costs(runs, 0.48, "GRPO, 16").set_index(["machine", "label"])
    assert table["fixed"].unique().round(1).tolist() == [22.6, 0.9, 0]
    # The larger the constant, the less is saved by sampling less.
    assert (
        table.loc[("on an L40S", "AERO"), "ratio"]
        > table.loc[("of AERO's 7B runs", "AERO"), "ratio"]
    )
    ax = aero.price_figure(runs, 0.48, "GRPO, 16", title="prices")
    assert "on two A10 (1.5B), constant 0.9" in ax.get_legend_handles_labels()[1]


@pytest.mark.slow
def test_shares_over_equal_numbers_are_larger_than_as_counted(few):
    table = few.unsolved()
    assert (table["first eight", "mean"] > table["as counted", "mean"]).all()
    assert few.relative("zero").value < few.relative("zero", 8).value < 0


@pytest.mark.slow
def test_rollouts_add_up_over_parts(few):
    frames = few.frames["AERO"]
    table = aero.sizes_by_part(frames, [(1, 10), (11, 20)])
    shares = table.drop(columns=["sampled", "trained on"])
    assert shares.sum(axis=1).tolist() == pytest.approx([100, 100])
    whole = sum(len(frame) for frame in frames.values()) / (2 * 20 * 32)
    assert table["sampled"].mean() == pytest.approx(whole)
    _, totals = aero.training_set_figure(few, title="training set")
    assert totals.loc["AERO, trained on", "total"] == pytest.approx(table["trained on"].mean())
    assert totals.loc["GRPO, trained on", "total"] == pytest.approx(16)


@pytest.mark.slow
def test_the_rescue_by_part_ends_below_where_it_begins(few):
    ax, table = aero.rescue_figure(few.frames["AERO"], [(1, 10), (11, 20)], title="rescue")
    assert (table["after the rescue"] < table["after exploring"]).all()
    solved = (1 - table["after the rescue"]) / (1 - table["after exploring"])
    assert table["more solved, %"].tolist() == pytest.approx(
        (100 * (solved - 1)).tolist(), rel=0.01
    )
    assert "(2 seeds)" in ax.figure.get_suptitle() + ax.get_title(loc="left") + ax.get_title()


@pytest.mark.slow
def test_savings_add_up_for_every_case(few):
    for case, table in few.savings.items():
        assert table.sum(axis=1).tolist() == pytest.approx([100, 100]), case
    assert few.savings["FLOPs, mixed groups only"]["alike"].mean() < 0


@pytest.mark.slow
def test_figures_of_outcomes_are_drawn(few, pairs):
    columns = {("zero", None): "all", ("zero", 8): "first eight"}
    left, right = aero.category_panels(few, columns, title="unsolved", height=3.4)
    titles = [ax.get_title(loc="left") for ax in (left, right)]
    assert titles == ["all", "first eight"]
    assert left.get_ylim() == right.get_ylim()
    _, shares = aero.advantage_figure(few, title="advantages")
    assert shares.loc["all"].tolist() == [1, 1]
    _, found = aero.zero_accuracy_panels(pairs, {"two": ("AERO", "GRPO, 16")}, title="ratio")
    assert found.loc["two", "seeds"] == 2
    assert len(aero.waterfalls(few.savings, {"FLOPs": "saved"})) == 1
    assert len(aero.phases_figure(pairs, title="phases")) == 2


@pytest.mark.slow
def test_parts_at_one_rate_cost_what_they_add(recorded):
    runs = {name: records[:2] for name, records in recorded.one_rate.items()}
    parts = aero.parts_at_one_rate(runs)
    assert parts["FLOPs, %"].loc["no rejection", "value"] > 100
    by_k = parts["FLOPs, %"].loc[["k = 2", "k = 3", "k = 4"], "value"]
    assert by_k.is_monotonic_increasing
    assert aero.parts_figure(parts, title="parts") is not None
    left, _ = aero.k_figure(parts, title="k")
    assert "published time" in left.get_legend_handles_labels()[1]
    table = aero.scores_by_budget(recorded.one_rate)
    assert table["here", "FLOPs"].loc[["GRPO, 16", "GRPO, 8"]].round(2).tolist() == [1, 0.5]


def test_claims_have_the_sizes_that_are_published():
    texts = {claim.claim: claim for claim, _ in aero.CLAIMS_OF_FIGURES}
    claim = texts["accuracy above GRPO, 5, as Qwen2.5-Math-7B has it, points"]
    assert claim.sizes == pytest.approx((2.5,))
    assert claim.published_gain == pytest.approx((14.4,))
    assert len(aero.CLAIMS_AT_ONE_RATE) == 7


# The prior


def carried_groups(problems, correct):
    correct = np.array(correct, dtype=bool)
    return Rollouts(problem=np.array(problems), reward=correct.astype(float), correct=correct)


def test_a_first_visit_is_measured_against_the_same_prior_in_both_readings():
    rollouts = carried_groups(["a"] * 8 + ["b"] * 4, [0] * 8 + [1, 0, 0, 0])
    context = Context(seed=0)
    first = aero.CarriedPosterior()(rollouts, context)
    assert first.tolist() == pytest.approx(Posterior()(rollouts, context).tolist())


def test_a_later_visit_is_measured_against_what_earlier_ones_found():
    advantage = aero.CarriedPosterior()
    # Two of two right: Beta(3, 1). Then two wrong ones: Beta(3, 3), with mean 1/2.
    advantage.posteriors.observe(["a"], np.array([2]), np.array([2]))
    wrong = advantage(carried_groups(["a", "a"], [0, 0]), Context(seed=0))
    assert wrong.tolist() == pytest.approx([-1, -1])
    # Two right ones: Beta(5, 1), so that sqrt(b / a) is left.
    right = advantage(carried_groups(["a", "a"], [1, 1]), Context(seed=0))
    assert right.tolist() == pytest.approx([5**-0.5] * 2)
    # Advantages alone teach it nothing.
    assert advantage.posteriors.of(["a"]).tolist() == [[3, 1]]


@pytest.mark.slow
def test_both_readings_are_compared_on_the_same_seeds(recorded):
    carried = pd.read_csv(ROOT / "data/aero-carried-prior.csv")
    assert carried.groupby("seed").size().tolist() == [100] * 8
    table = aero.readings(recorded.shelf.groups, carried)
    assert (table["", "seeds"] == 8).all()
    fixed, kept, between = table["points, round 100", "value"]
    assert between == pytest.approx(kept - fixed)
    known = aero.norms_table(
        {name: recorded.shelf.groups[name] for name in ("GRPO, 16", "GRPO + prior")}, "GRPO, 16"
    )
    found = table["gradient norm, %", "value"].iloc[0]
    assert found == pytest.approx(known.loc["GRPO + prior", "above GRPO, 16, %"])


@pytest.mark.slow
def test_updates_are_those_of_what_a_method_keeps():
    lab = small_lab(pool=64)
    methods = {"16": wb.methods.grpo(4), "AERO": wb.methods.aero(explore=4, total=8)}
    directions, counts = aero.update_directions(lab.policy(), lab, methods, most=12)
    assert directions["16"].shape[0] == directions["AERO"].shape[0] == 2
    norms = np.linalg.norm(directions["AERO"], axis=1)
    assert norms.tolist() == pytest.approx([1, 1])
    assert counts.loc["16", ["sampled", "trained on"]].tolist() == [4, 4]
    assert counts.loc["AERO", "trained on"] < counts.loc["AERO", "sampled"] <= 8


# The code setting


@pytest.mark.slow
def test_right_programs_earn_their_reward_and_no_others():
    verifier = aero_code.sandbox()
    of_code = aero_code.problems()
    try:
        found = aero_code.rewards(verifier, of_code)
        method = wb.methods.aero(extra=4, k_max=3)
        table = aero_code.one_round(method, verifier, of_code)
    finally:
        verifier.close()
    assert (found.loc["right"] == 1).all()
    assert (found.drop(index="right") == 0).all(axis=None)
    never = table.loc["Print how many letters of a word are vowels."]
    assert never.tolist() == [20, 4, 0, 4]
