"""How a trial decides: looks, corrections, and the words of the answer."""

from dataclasses import replace
from html import escape

import nbclient
import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import workbench as wb
from papers.tables import accuracy_gain
from workbench.analysis import sequential
from workbench.analysis.cost import BreakEven
from workbench.analysis.intervals import Measurement, holm
from workbench.plots.trials import headline, tuning_curves
from workbench.reports.tables import by_measure
from workbench.trials import answer
from workbench.trials.further import likely_pairs, steps
from workbench.utils.numbers import NOTHING
from workbench.utils.shipped import shipped

LOOKS = (5, 8, 12)
RUNS = shipped("runs/leaderboard-one-rate")


def look(arm_records, baseline_records, *, arm="arm", **options):
    """What is known of one arm."""
    return answer.answers({arm: arm_records}, baseline_records, **options)[arm]


def false_alarms(arms: int, looks: tuple[int, ...], trials: int, truth: np.ndarray) -> float:
    """Share of trials in which any arm without a difference is called better or worse.

    Arms stop when they are known, and go on with what they passed on otherwise.
    """
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(trials):
        # All arms share the baseline's luck, so their ratios are correlated.
        shared = rng.standard_normal((looks[-1], 1))
        logs = (shared + rng.standard_normal((looks[-1], arms))) / 10 + truth
        stopped: dict[int, int] = {}
        for n in looks:
            seen = {arm: logs[: stopped.get(arm, n), arm] for arm in range(arms)}
            ratios = {str(arm): Measurement(np.exp(v), scale="ratio") for arm, v in seen.items()}
            # A band of practically nothing, so that no arm is stopped for being alike.
            found = sequential.readings(ratios, looks, band=1e-6)
            for arm in range(arms):
                if found[str(arm)].verdict in ("better", "worse"):
                    stopped.setdefault(arm, n)
        wrong += any(truth[arm] == 0 for arm in stopped)
    return wrong / trials


@pytest.mark.slow
def test_looks_do_not_inflate_false_alarms():
    # 400 trials have a standard error of 1.1 points, and looks at plain 95 % intervals reach 10 %.
    assert false_alarms(1, LOOKS, 400, np.zeros(1)) < 0.08


@pytest.mark.long
@pytest.mark.slow
def test_arms_pass_on_their_error_and_no_more():
    # One arm is far better and is decided at once; the two others keep 5 % together.
    assert false_alarms(3, LOOKS, 300, np.array([-1.0, 0.0, 0.0])) < 0.085


@pytest.mark.parametrize("looks", [(8,), LOOKS, sequential.LOOKS])
@pytest.mark.slow
def test_a_look_decides_at_its_nominal_level(looks):
    for n, nominal in zip(looks, sequential.nominal_levels(looks)):
        assert sequential.overall_p(nominal, n, looks) <= sequential.ALPHA
        assert sequential.overall_p(np.nextafter(nominal, 1), n, looks) > sequential.ALPHA


@pytest.mark.slow
def test_what_no_draw_has_reached_is_not_called_impossible():
    # One of all draws without a difference, and of this one, is as extreme.
    assert sequential.overall_p(0.0, 5, LOOKS) == 1 / (sequential.DRAWS + 1)
    assert sequential.overall_p(1.0, 5, LOOKS) == 1
    assert sequential.overall_p(0.0, 8, [8]) == 0
    # Where the last look has all of the error, the luck of the draws makes it no surer than that.
    ps = np.linspace(0.01, 0.99, 99)
    assert all(sequential.overall_p(p, 3, (2, 3), shape=50.0) >= p for p in ps)


@pytest.mark.slow
def test_the_interval_leaves_1_out_exactly_where_one_arm_is_decided():
    rng = np.random.default_rng(0)
    for _ in range(200):
        values = np.exp(rng.normal(-0.08, 0.1, rng.choice(LOOKS)))
        [found] = sequential.readings({"a": Measurement(values, scale="ratio")}, LOOKS).values()
        leaves_out = found.measured.high < 1 or found.measured.low > 1
        assert leaves_out == (found.verdict in ("better", "worse"))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("looks", {"looks": (8, 5)}),
        ("looks", {"looks": ()}),
        ("looks", {"looks": (1, 5)}),
        ("level", {"level": 1.0}),
    ],
)
def test_wrong_looks_are_named(name, arguments):
    with pytest.raises(ValueError, match=name):
        sequential.nominal_levels(**arguments)


def test_seeds_after_the_last_look_wait_for_the_next_one():
    assert sequential.look_at(11, LOOKS) == 8
    assert sequential.look_at(4, LOOKS) == 4
    assert sequential.look_at(20, LOOKS) == 12


def test_verdicts_follow_holm():
    table = pd.DataFrame(
        {"ratio": [0.8, 0.9, 1.0, np.nan], "low": [0.7, 0.82, 0.95, np.nan]}
        | {"high": [0.9, 0.99, 1.05, np.nan], "p": [0.001, 0.04, 0.9, np.nan]},
        index=["a", "b", "c", "baseline"],
    )
    words = sequential.verdicts(table)["verdict"]
    # b's own interval leaves 1 out, and among three arms that is not enough.
    assert words.tolist()[:3] == ["better", "open", "alike"]
    assert pd.isna(words["baseline"])


def test_arms_that_are_not_given_count_in_the_correction():
    logs = np.random.default_rng(1).normal(0, 0.15, (3, 8))
    # p is .027 for a, whatever the draws, and far larger for the others.
    logs = logs - logs.mean(axis=1, keepdims=True) + [[0.0], [0.01], [0.01]]
    logs[0] -= 0.97 * logs[0].std(ddof=1)
    arms = {label: Measurement(np.exp(row), "ratio") for label, row in zip("abc", logs)}
    together, alone = sequential.readings(arms, (8,)), sequential.readings({"a": arms["a"]}, (8,))
    assert together["a"].p < 0.05 < together["a"].p_holm == 3 * together["a"].p
    assert (alone["a"].verdict, together["a"].verdict) == ("better", "open")
    # The smallest p-value of all stays what it was; no other one becomes smaller.
    for left in (["a"], ["b"], ["a", "c"], ["a", "b", "c"]):
        few = {label: arms[label] for label in left}
        for label, found in sequential.readings(few, (8,), left_out=3 - len(few)).items():
            assert found.p_holm >= together[label].p_holm
            assert label != "a" or found.p_holm == together[label].p_holm


def test_verdicts_on_gains_are_those_of_students_test_after_holm():
    rng = np.random.default_rng(2)
    rows, ps = [], []
    for shift in (0.0, 0.5, 0.9, 1.5):
        measured = Measurement(rng.normal(shift, 0.6, 6))
        rows.append(measured.columns("difference", n="pairs"))
        ps.append(measured.p_value(0.0))
    words = sequential.verdicts_on_gains(pd.DataFrame(rows))
    assert ((words != "open") == (holm(ps) <= 0.05)).all()
    assert 0 < (words == "better").sum() < 4


# Answers from recorded runs


def runs(label: str, seeds: int = 8) -> dict[int, wb.records.Record]:
    """Recorded runs of one arm of the leaderboard, by seed."""
    return {seed: wb.load(RUNS / label / f"seed-{seed}") for seed in range(seeds)}


@pytest.fixture(scope="module")
def grpo():
    return runs("grpo")


@pytest.mark.slow
def test_an_arm_that_needs_less_is_found(grpo):
    found = look(runs("ar3po"), grpo, arm="ar3po", baseline="grpo", target=0.338)
    assert (found.verdict, found.known, found.seeds) == ("better", True, 8)
    assert found.low < found.ratio < found.high < 1
    assert found.reached == found.baseline_reached == 8
    assert "ar3po needs .83 [" in str(found)
    assert "grpo's rollouts to reach 33.8 %" in str(found)


@pytest.mark.slow
def test_sampled_tokens_are_a_measure_beside_rollouts(grpo):
    options = {"arm": "ar3po", "baseline": "grpo", "target": 0.338}
    by_rollouts = look(runs("ar3po"), grpo, **options)
    by_tokens = look(runs("ar3po"), grpo, measure="tokens_sampled", **options)
    assert "of grpo's sampled tokens to reach 33.8 %" in str(by_tokens)
    # It samples again where a problem is hard, and there responses are longer.
    assert by_rollouts.ratio < by_tokens.ratio < 1


@pytest.mark.slow
def test_arms_are_corrected_together_and_make_one_table(grpo):
    arms = {label: runs(label) for label in ("ar3po", "pkpo", "vip")}
    found = answer.answers(arms, grpo, baseline="grpo", target=0.338)
    table = answer.table(found).set_index("arm")
    assert (table["p_holm"] >= table["p"]).all()
    alone = look(arms["pkpo"], grpo, baseline="grpo", target=0.338)
    assert table.loc["pkpo", "p"] == alone.p < table.loc["pkpo", "p_holm"]
    assert {"verdict", "ratio", "low", "high", "seeds", "learning_rate"} <= set(table.columns)


@pytest.mark.slow
def test_what_would_have_been_seen_is_what_the_correction_leaves(grpo):
    options = {"baseline": "grpo", "target": 0.338, "looks": (8,)}
    arms = {label: runs(label) for label in ("vip", "cispo", "gspo")}
    alone = {label: look(arms[label], grpo, **options).resolves for label in arms}
    together = answer.answers(arms, grpo, **options)
    still_open = sum(each.verdict not in ("better", "worse") for each in together.values())
    assert still_open > 1
    for label, found in together.items():
        assert found.resolves > 1.05 * alone[label]
    # An arm is surely decided at the level that is divided by the number of open ones.
    strict = look(arms["vip"], grpo, level=0.05 / still_open, **options)
    assert together["vip"].resolves == pytest.approx(strict.resolves)
    # Those that are counted without being given leave less as well.
    left_out = look(arms["vip"], grpo, left_out=still_open - 1, **options)
    assert left_out.resolves == pytest.approx(strict.resolves) and left_out.arms == still_open


@pytest.mark.slow
def test_before_the_first_look_no_change_would_have_been_seen(grpo):
    found = look(runs("ar3po", 4), grpo, baseline="grpo", target=0.338)
    assert found.reached == 4 and np.isnan(found.resolves)
    assert "would have been seen" not in str(found)


@pytest.mark.parametrize("cheaper_below, side", [(True, "more"), (False, "less")])
def test_the_price_is_named_from_which_on_an_arm_costs_more(grpo, cheaper_below, side):
    found = look(runs("ar3po"), grpo, arm="ar3po", baseline="grpo", target=0.338)
    even = BreakEven(0.5, 0.4, 0.6, cheaper_below)
    words = f"ar3po costs more than grpo where sampling a token costs {side} than 0.5 times as much"
    assert words in str(replace(found, break_even=even))


def test_the_sentence_says_better_or_worse_where_both_end_and_what_seen_means(grpo):
    options = {"baseline": "grpo", "target": 0.338, "looks": (8,)}
    better = look(runs("ar3po"), grpo, arm="ar3po", **options)
    worse = look(grpo, runs("ar3po"), arm="grpo", **(options | {"baseline": "ar3po"}))
    assert "): better;" in str(better) and "): worse;" in str(worse)
    assert "would have been seen (in four trials of five)" in str(better)
    # Only a trial that stops at a look that was not its last one overshoots.
    assert "likely nearer to 1" not in str(better)
    early = look(runs("ar3po"), grpo, arm="ar3po", baseline="grpo", target=0.338)
    assert early.seeds == 8 and "better, by a ratio that is likely nearer to 1" in str(early)


def test_arm_and_baseline_are_forecast_at_the_same_cost(grpo):
    options = {"arm": "ar3po", "baseline": "grpo", "target": 0.338}
    found = look(runs("ar3po"), grpo, **options)
    # GRPO samples 256 rollouts in each of its 60 rounds.
    assert found.ahead == 120
    assert found.forecast.budget == found.baseline_forecast.budget == 120 * 256
    assert "with the rollouts of 120 rounds of grpo it would stand at " in str(found)
    by_round = look(runs("ar3po"), grpo, measure="round", ahead=90, **options)
    assert "; with 90 rounds it would stand at " in str(by_round)
    far = look(runs("ar3po"), grpo, ahead=300, **options)
    assert "no forecast of ar3po: at most 4 times" in str(far)
    row = answer.table({"ar3po": found}).iloc[0]
    made = found.baseline_forecast
    names = ["baseline_forecast", "baseline_forecast_low", "baseline_forecast_high"]
    assert row[names].tolist() == [made.value, made.low, made.high]
    # At this low rate GRPO has not come half of its way in 60 rounds.
    assert np.isnan(row["baseline_ceiling"]) and "ceilings" not in str(found)


@pytest.mark.slow
def test_the_figure_goes_on_dashed_beyond_the_runs(grpo):
    records = {"grpo": grpo, "ar3po": runs("ar3po")}
    found = answer.answers({"ar3po": records["ar3po"]}, grpo, baseline="grpo", target=0.338)
    figure = wb.plots.trial(records, answer.table(found), baseline="grpo", target=0.338)
    dashed = [line for line in figure.axes[0].lines if line.get_label() == "_ar3po"]
    # AR3PO's runs sample different numbers of rollouts, and the line of their mean ends first.
    solid = [line for line in figure.axes[0].lines if line.get_label() == "ar3po"]
    assert dashed[0].get_xdata()[0] == solid[0].get_xdata()[-1]
    assert dashed[0].get_xdata()[-1] == pytest.approx(120 * 256)
    assert dashed[0].get_ydata()[-1] == pytest.approx(found["ar3po"].forecast.value)
    # Tables that were written before there were forecasts still have a figure.
    old = answer.table(found).drop(columns="ahead")
    figure = wb.plots.trial(records, old, baseline="grpo", target=0.338)
    assert not [line for line in figure.axes[0].lines if line.get_label() == "_ar3po"]


@pytest.mark.slow
def test_an_open_answer_says_which_number_may_decide_it_and_its_cost(grpo):
    options = {"baseline": "grpo", "target": 0.338, "looks": (5,)}
    opened = look(runs("pkpo", 5), grpo, arm="pkpo", level=1e-3, **options)
    [step] = opened.steps
    assert opened.verdict == "open" and (step.change, step.runs) == ("seeds", 2 * step.to)
    assert f"What may decide it: {step.to} fresh pairs in one look" in str(opened)
    assert step.verdict in ("worse", "better", "alike") and step.seconds > 0
    # PKPO has sixteen rollouts a problem at most, GRPO eight, 32 problems and 60 rounds.
    assert step.rollouts >= step.runs * 60 * 256
    assert f"{step.runs} runs with {step.rollouts:,.0f} rollouts, and tuning" in str(opened)
    # A trial that is decided, or goes on by itself, needs no advice.
    assert not look(runs("ar3po"), grpo, **(options | {"looks": (8,)})).steps
    assert not look(runs("pkpo", 5), grpo, level=1e-3, **(options | {"looks": (5, 8)})).steps
    few = look(runs("cbs-round", 5), grpo, **options)
    lower, longer = few.steps
    assert lower.change == "target" and 0.25 < lower.to < 0.338
    assert longer.change == "rounds" and 60 < longer.to <= 240


@pytest.mark.parametrize("ratio, word", [(0.85, "better"), (1.2, "worse"), (1.0, "alike")])
def test_so_many_pairs_would_find_what_was_measured_in_four_trials_of_five(grpo, ratio, word):
    rng = np.random.default_rng(4)
    logs = rng.normal(0, 0.15, 6)
    logs += np.log(ratio) - logs.mean()
    curves = [*wb.analysis.curves.read({"grpo": [*grpo.values()]})["grpo"].values()]
    [step] = steps(Measurement(np.exp(logs), "ratio"), curves, 0.338, 0.05)
    assert step.verdict == word
    draws = np.exp(rng.normal(np.log(ratio), logs.std(ddof=1), (500, int(step.to))))
    found = [
        sequential.readings({"a": Measurement(each, "ratio")}, (len(each),))["a"].verdict
        for each in draws
    ]
    assert 0.7 < found.count(word) / 500 < 0.97


@pytest.mark.long
@pytest.mark.parametrize("ratio", [0.7, 0.85, 1.0])
@pytest.mark.parametrize("made", [0, 4])
@pytest.mark.slow
def test_a_trial_takes_as_many_pairs_as_is_said_in_four_trials_of_five(ratio, made):
    """Tuning knows the ratio within some 6 %; chance decides the rest."""
    rng = np.random.default_rng(6)
    inside = 0
    for _ in range(100):
        values = np.exp(rng.normal(np.log(ratio), 0.13, 20))
        for n in sequential.LOOKS:
            cut = Measurement(values[:n], "ratio")
            if sequential.readings({"a": cut}, errors={"a": 0.02})["a"].known:
                break
        seen = np.log(values[:made])
        # What tuning says counts as much as 4.7 pairs do.
        mean = (4.7 * (np.log(ratio) + rng.normal(0, 0.06)) + seen.sum()) / (4.7 + made)
        doubt = 0.13 / np.sqrt(4.7 + made)
        said = {"looks": sequential.LOOKS, "level": 0.05, "seen": seen, "error": 0.02}
        low, likely, high = likely_pairs(mean, doubt, 0.13, **said)
        assert 5 <= low <= likely <= high <= 20
        inside += low <= n <= high
    assert inside >= 72


def test_equal_arms_that_were_tuned_apart_are_told_apart_by_more_than_their_tuning_misses():
    logs = np.array([-0.02, -0.035, -0.045, -0.03, -0.04, -0.025])
    ratios = {"arm": Measurement(np.exp(logs), "ratio")}
    plain = sequential.readings(ratios)["arm"]
    assert plain.verdict == "better" and plain.high < 1
    carried = sequential.readings(ratios, errors={"arm": 0.03})["arm"]
    assert (carried.verdict, carried.p > 0.05) == ("alike", True)
    assert carried.low == pytest.approx(plain.low * np.exp(-0.03))
    assert carried.high == pytest.approx(plain.high * np.exp(0.03))
    # An arm that is off by what tuning may miss, and by nothing else, is no finding.
    same = {"arm": Measurement(np.full(6, 0.98), "ratio")}
    assert sequential.readings(same)["arm"].verdict == "better"
    assert sequential.readings(same, errors={"arm": 0.03})["arm"].p == 1.0
    far = {"arm": Measurement(np.exp(logs - 0.3), "ratio")}
    assert sequential.readings(far, errors={"arm": 0.03})["arm"].verdict == "better"


@pytest.mark.parametrize("failed", [0, 3])
def test_the_interval_and_the_test_agree_with_an_error_of_tuning_too(failed):
    rng = np.random.default_rng(1)
    for _ in range(100):
        logs = rng.normal(-0.12, 0.1, 14)
        stopped = rng.permutation(14) < failed
        ratios = {"a": Measurement(np.exp(logs), "ratio", stopped)}
        [found] = sequential.readings(ratios, (14,), errors={"a": 0.02}).values()
        assert (found.high < 1 or found.low > 1) == (found.p <= 0.05)


def test_the_error_of_tuning_is_in_sentence_table_and_advice(grpo):
    options = {"arm": "ar3po", "baseline": "grpo", "target": 0.338, "looks": (8,)}
    plain = look(runs("ar3po"), grpo, **options)
    found = look(runs("ar3po"), grpo, **options, errors={"ar3po": 0.03})
    assert found.verdict == "better" and found.ratio == plain.ratio and found.high > plain.high
    assert found.p > plain.p and found.resolves > plain.resolves + 2
    assert ", within 3 % of the best" in str(found) and "within" not in str(plain)
    row = answer.table({"ar3po": found}).iloc[0]
    assert row["tuning_error"] == pytest.approx(0.0305, abs=1e-4)


def test_no_ratio_is_said_where_no_run_of_the_one_and_not_all_of_the_other_arrived(grpo):
    found = look(runs("ar3po"), grpo, arm="mine", baseline="grpo", target=0.338, looks=(8,))
    ends = {"ratio": 1.5, "low": -np.inf, "high": np.inf, "verdict": "open", "known": True}
    none = str(replace(found, **ends, reached=0, baseline_reached=6))
    assert none.startswith("mine: 0 of 8 runs reached 33.8 %, of grpo 6 (8 seeds, both tuned")
    assert "needs" not in none and ": too few runs reached it to decide" in none


def test_an_arm_that_wins_where_it_arrives_and_fails_more_often_says_both_first(grpo):
    found = look(runs("ar3po"), grpo, arm="mine", baseline="grpo", target=0.338, looks=(8,))
    mixed = replace(found, reached=6, high=np.inf)
    begin = "mine fails more often (6 of 8 runs reached 33.8 %, of grpo 8) and needs at least .8"
    assert str(mixed).startswith(begin)
    assert "of grpo's rollouts to get there (8 seeds" in str(mixed)
    assert "better where it arrives" in str(mixed)
    # The other way round: it is dearer, and arrives more often.
    dearer = replace(found, ratio=1.2, low=1.1, high=1.3, verdict="worse", baseline_reached=5)
    assert str(dearer).startswith("mine fails less often (8 of 8 runs reached 33.8 %, of grpo 5)")
    assert "worse where it arrives" in str(dearer)
    # An arm that is dearer and fails more often is worse in both.
    both = replace(found, ratio=1.2, low=1.1, high=np.inf, verdict="worse", reached=6)
    assert str(both).startswith("mine needs at least 1.2") and "): worse" in str(both)


@pytest.mark.long
def test_a_figure_that_a_cell_shows_at_its_end_does_not_stand_there_twice():
    setup = "from workbench.plots.curves import redraw, withdraw\n"
    draw = "drawn = redraw(lambda figure: figure.subplots(), None, None)\n"
    cells = [setup + draw + "withdraw(drawn[1])", draw, "withdraw(drawn[1])"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    done = nbclient.NotebookClient(notebook, timeout=120).execute().cells
    shown = ["image/png" in output.data for cell in done for output in cell.outputs]
    assert shown == [False, True], "the drawing of an earlier cell stays"


@pytest.mark.parametrize("resolves, named", [(50.0, True), (101.0, False)])
def test_the_smallest_change_is_named_where_it_says_something(grpo, resolves, named):
    found = look(runs("ar3po"), grpo, arm="ar3po", baseline="grpo", target=0.338)
    words = f"a change of {resolves:.0f} % would have been seen"
    assert (words in str(replace(found, resolves=resolves))) == named


def test_an_arm_without_a_look_has_no_corrected_p(grpo):
    found = look(runs("ar3po", 4), grpo, baseline="grpo", target=0.338)
    assert sentence_ends(replace(found, arms=2, low=0.6, high=0.9))


def test_the_ratio_of_a_single_pair_may_be_a_bound(grpo):
    options = {"baseline": "grpo", "target": 0.338}
    assert "arm needs at least " in str(look(runs("cbs-round", 1), grpo, **options))
    turned = look(runs("grpo", 1), runs("cbs-round", 1), arm="grpo", baseline="cbs", target=0.338)
    assert "grpo needs at most " in str(turned)


def test_the_baseline_under_another_name_is_recognised(grpo):
    found = look(runs("grpo", 5), grpo, arm="mine", baseline="grpo", target=0.338)
    assert (found.verdict, found.known, found.ratio) == ("alike", True, 1.0)
    other = look(runs("cispo"), grpo, arm="cispo", baseline="grpo", target=0.338)
    assert other.verdict == "alike"


def test_the_rate_that_was_taken_has_a_circle_between_those_that_were_tried():
    rows = [
        {"arm": "a", "learning_rate": rate, "cost": cost, "reached": True, "collapsed": False}
        for rate, cost in [(4e-4, 8000.0), (8e-4, 4000.0), (1.6e-3, 8000.0)]
    ]
    ax = Figure().subplots()
    tuning_curves(pd.DataFrame(rows), {"a": 8e-4 * 2**0.5}, labels=["a"], ax=ax)
    [circle] = [line for line in ax.lines if line.get_markersize() == 11]
    assert circle.get_ydata()[0] == pytest.approx(4000 * 2**0.5)


def test_the_circle_lies_on_the_line_of_the_optimizer_steps_that_were_taken():
    rows = [
        {"arm": "a", "mini_batches": steps, "learning_rate": rate, "cost": cost, "reached": True}
        for steps, costs in {1: (8000.0, 2000.0), 4: (3000.0, 30000.0)}.items()
        for rate, cost in zip((4e-4, 8e-4), costs)
    ]
    ax = Figure().subplots()
    table = pd.DataFrame(rows).assign(collapsed=False)
    tuning_curves(table, {"a": 8e-4}, labels=["a"], ax=ax, steps={"a": 1})
    lines = [line.get_ydata() for line in ax.lines if str(line.get_label()) == "_a"]
    assert np.allclose(lines, [[8000, 2000], [3000, 30000]])
    [circle] = [line for line in ax.lines if line.get_markersize() == 11]
    assert circle.get_ydata()[0] == pytest.approx(2000)


def test_a_figure_of_an_interrupted_trial_leaves_out_what_has_no_pair(grpo):
    records = {"grpo": {0: grpo[0]}, "ar3po": {1: runs("ar3po", 2)[1]}}
    found = answer.answers({"ar3po": records["ar3po"]}, records["grpo"], target=0.338)
    figure = wb.plots.trial(records, answer.table(found), baseline="grpo", target=0.338)
    assert not figure.axes[3].axison


def test_the_headline_names_what_is_counted_as_the_sentence_does():
    row = {"arm": "mine", "verdict": "worse", "ratio": 1.5, "seeds": 9}
    table = pd.DataFrame([row])
    assert headline(table, "grpo", "round") == "mine needs 50 % more rounds than grpo (9 seeds)"
    assert "more FLOPs" in headline(table, "grpo", "flops")
    mixed = table.assign(verdict="better", ratio=0.9, reached=8, baseline_reached=9)
    assert headline(mixed, "grpo").startswith("mine fails more often and needs 10 % fewer rollouts")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"known": False}, "not known yet"),
        ({"known": True}, "no difference in rollouts found"),
        ({"known": True, "high": np.inf}, "too few runs reached"),
    ],
)
def test_the_headline_says_no_more_than_the_sentence(state, words):
    row = {"arm": "a", "verdict": "open", "ratio": 0.9, "low": 0.7, "high": 1.2, "seeds": 7}
    assert words in headline(pd.DataFrame([row | state]), "grpo")


def test_a_target_that_no_run_reached_is_said(grpo):
    found = look(runs("cbs-round"), grpo, baseline="grpo", target=0.338, looks=(8,))
    assert (found.reached, found.baseline_reached) == (0, 8)
    assert found.verdict == "worse"
    assert "0 of 8 runs reached it" in str(found)
    assert np.isinf(found.high)
    few = look(runs("cbs-round", 5), grpo, baseline="grpo", target=0.338, looks=(5,))
    assert (few.verdict, few.known) == ("open", True)
    assert "no difference" not in str(few)
    nobody = look(runs("ar3po", 5), grpo, baseline="grpo", target=0.95)
    assert nobody.verdict == "open"
    assert "choose a lower target" in str(nobody)


@pytest.mark.parametrize("seeds", [0, 1, 4])
def test_too_few_seeds_leave_it_open(grpo, seeds):
    found = look(runs("pods", seeds), grpo, baseline="grpo", target=0.338)
    assert (found.verdict, found.known, found.seeds) == ("open", False, seeds)
    assert sentence_ends(found)


def sentence_ends(found: answer.Answer) -> bool:
    text = str(found)
    return text.endswith(".") and "nan" not in text


def test_accuracies_are_compared_where_both_had_spent_the_same(grpo):
    """AR3PO has 96 rounds, in which it samples more than GRPO in its 60."""
    found = look(runs("ar3po"), grpo, baseline="grpo", target=0.338)
    scores = accuracy_gain(list(runs("ar3po").values()), list(grpo.values()), "rollouts")
    assert found.difference == pytest.approx(scores.value, abs=1.0)
    assert found.difference < 7, "at the end of its longer runs AR3PO is 8.5 points ahead"


# The figure and the page


TUNING = pd.DataFrame(
    {
        "arm": ["grpo", "grpo", "grpo", "cbs-round", "cbs-round"],
        "learning_rate": [4e-4, 8e-4, 1.6e-3, 4e-4, 8e-4],
        "seed": 1_000_000,
        "cost": [9000.0, 6000.0, np.inf, 20000.0, 15000.0],
        "reached": [True, True, False, False, True],
        "collapsed": [False, False, True, False, False],
    }
)


@pytest.fixture(scope="module")
def trial_parts(grpo):
    arms = {label: runs(label, 5) for label in ("ar3po", "cbs-round")}
    base = {seed: grpo[seed] for seed in arms["ar3po"]}
    table = answer.table(answer.answers(arms, base, baseline="grpo", target=0.338))
    aside = {"arm": "broken", "verdict": "failed", "seeds": 0, "sentence": "broken failed."}
    table = pd.concat([table, pd.DataFrame([aside])], ignore_index=True)
    return {"grpo": base, **arms}, table


@pytest.mark.slow
def test_the_figure_has_a_dot_a_seed_and_marks_what_collapsed(trial_parts):
    records, table = trial_parts
    figure = wb.plots.trial(records, table, TUNING, baseline="grpo", target=0.338)
    curves, by_seed, tuned, _ = figure.axes
    assert {text.get_text() for text in curves.texts} == {"grpo", "ar3po", "cbs-round"}
    dots = [line for line in by_seed.lines if line.get_marker() == "o"]
    # Five seeds and the mean of each of two arms; the one that failed has none.
    assert len(dots) == 12
    assert sum(line.get_mfc() == "none" for line in dots) == 5, "no run of cbs-round arrived"
    assert sum(len(line.get_xdata()) for line in tuned.lines if line.get_marker() == "x") == 1
    assert "2 arms" in figure.get_suptitle(), "the one that failed was not compared"


@pytest.mark.slow
def test_the_figure_can_be_drawn_before_anything_was_tuned(trial_parts):
    records, table = trial_parts
    part = {label: records[label] for label in ("grpo", "ar3po")}
    figure = wb.plots.trial(part, table.iloc[:1], baseline="grpo", target=0.338)
    assert not figure.axes[2].axison
    wb.plots.trial(part, table.iloc[:1], baseline="grpo", target=0.338, figure=figure)
    assert len(figure.axes) == 4, "the figure of an earlier look is drawn anew"


@pytest.mark.long
def test_the_page_opens_with_the_sentences_and_shows_why(trial_parts, tmp_path):
    records, table = trial_parts
    path = wb.reports.trial(
        records, table, tmp_path / "trial.html", tuning=TUNING, baseline="grpo", target=0.338
    )
    text = path.read_text()
    first = text.index('class="sentence"')
    assert first < text.index("<svg") < text.index('id="Results"')
    for sentence in table["sentence"]:
        assert text.count(f">{escape(sentence, quote=False)}<") == 1
    for shown in ("Norm of the gradient", "Tokens sampled in a round", "seconds on an L40S"):
        assert shown in text
    assert "by training time" not in text, "runs of a trial share cores"


def test_an_arm_that_trains_on_nothing_has_no_ratio_of_what_is_trained(trial_parts):
    records, _ = trial_parts
    curves = wb.analysis.curves.read({label: [*by.values()] for label, by in records.items()})
    idle = {
        seed: replace(curve, table=curve.table.assign(tokens_trained=0))
        for seed, curve in curves["ar3po"].items()
    }
    shown = by_measure({**curves, "ar3po": idle}, "grpo", 0.338)
    assert shown["trained tokens"]["ar3po"] == NOTHING != shown["rollouts"]["ar3po"]
    assert shown["trained tokens"]["cbs-round"] != NOTHING
