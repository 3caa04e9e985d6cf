"""The search over combinations: which survive, which seeds they get, and a search of real runs."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_processes import PARAMETERS
from written_records import curve

import workbench as wb
from workbench import config
from workbench.analysis.runs import load_all
from workbench.trials import halving, leaderboard
from workbench.trials.halving import (
    bill_scores,
    combinations,
    final_seeds,
    rung_seeds,
    rung_sizes,
    survivors,
)

# Combinations, rungs, survivors


def test_every_combination_is_a_method_of_its_own():
    made = combinations()
    assert len(made) == 2 * 2 * 2 * 3 * 3 - 1
    described = {repr(config.method("grpo", settings=settings)) for settings in made.values()}
    assert len(described) == len(made)


def test_labels_are_names_of_directories():
    from workbench.trials.grids import LABEL

    assert all(LABEL.fullmatch(label) for label in combinations())


@given(st.integers(1, 500), st.integers(1, 5), st.integers(2, 5))
def test_rungs_shrink_by_the_share_that_is_kept_and_end_above_the_final(candidates, wanted, keep):
    sizes = rung_sizes(candidates, wanted, keep)
    assert sizes[0] == candidates
    assert all(after == before // keep for before, after in itertools.pairwise(sizes))
    # A rung chooses among more than go on, unless there were no more to begin with.
    assert all(size > wanted for size in sizes[1:])
    assert sizes[-1] // keep <= wanted


@given(
    st.dictionaries(st.text("abc", min_size=1), st.floats(-3, 3) | st.just(math.inf), min_size=1),
    st.integers(1, 30),
)
def test_who_survives_is_never_worse_than_who_does_not(scores, n):
    kept = survivors(scores, n)
    assert len(kept) == min(n, len(scores)) == len(set(kept))
    others = [scores[label] for label in scores if label not in kept]
    assert not others or max(scores[label] for label in kept) <= min(others)
    # Equal scores stay in the order in which they stand.
    order = list(scores)
    for a, b in itertools.pairwise(kept):
        assert scores[a] < scores[b] or order.index(a) < order.index(b)


@given(st.integers(0, 6), st.integers(0, 6), st.integers(2, 50))
def test_no_seed_of_a_rung_is_in_the_final_or_on_the_leaderboard(rung, later, n):
    seeds = rung_seeds(rung)
    assert len(seeds) == len(set(seeds)) == 2**rung
    assert not set(seeds) & set(final_seeds(n))
    of_the_leaderboard = {case.values["seed"] for case in LEADERBOARD}
    assert not of_the_leaderboard & {*seeds, *final_seeds(n)}
    # A later rung has the seeds of an earlier one as well, so that no run is made twice.
    if later >= rung:
        assert set(seeds) <= set(rung_seeds(later))


LEADERBOARD = leaderboard.plan(only=["grpo"]).cases()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: survivors({"a": math.nan}, 1), "scores: a has none"),
        (lambda: survivors({"a": 1.0}, 0), "n=0"),
        (lambda: rung_seeds(7), "rung=7: its seeds would reach those of the final"),
        (lambda: rung_sizes(0, 3), "candidates=0"),
        (lambda: rung_sizes(5, 3, 1), "keep=1"),
        (lambda: final_seeds(1), "n=1"),
    ],
)
def test_what_cannot_be_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Scores


def test_scores_are_mean_log_ratios_of_bills_and_infinite_where_a_run_did_not_arrive(tmp_path):
    columns = {"tokens_sampled": [300] * 4, "tokens_trained": [100] * 4}
    half = {"tokens_sampled": [150] * 4, "tokens_trained": [50] * 4}
    for seed in (0, 1):
        rising = 0.2 + 0.1 * np.arange(5)
        curve(tmp_path, "grpo", seed, rising, columns=columns)
        curve(tmp_path, "cheap", seed, rising, columns=half)
        late = rising if seed else 0.2 + 0.01 * np.arange(5)
        curve(tmp_path, "late", seed, late, columns=columns)
    scores = bill_scores(load_all(tmp_path), "grpo")
    assert scores == {"grpo": 0.0, "cheap": pytest.approx(math.log(0.5)), "late": math.inf}


# A search of real runs


@pytest.fixture
def plan(tmp_path):
    """A leaderboard of two methods in the smallest lab."""
    grid = {
        "parameters": {**PARAMETERS, "rounds": 2},
        "cases": [{"label": "grpo"}, {"label": "pods", "method": "pods"}],
        "seeds": 2,
    }
    out = tmp_path / "board"
    return leaderboard.Plan({**grid, "folder": str(out)}, out, out, {})


def test_the_best_single_paper_has_to_be_recorded_first(plan):
    with pytest.raises(ValueError, match="the best single paper is not known yet"):
        halving.best_single(plan)


def test_a_single_paper_that_does_not_exist_is_named(plan):
    with pytest.raises(ValueError, match="podz: the leaderboard has no method of this label"):
        halving._case(plan, "podz")


def test_reuse_changes_next_to_nothing_beside_pkpo():
    """What is trained on is the same, also in rounds in which old responses are reused."""
    made = {}
    for label in ("pkpo", "reuse+pkpo"):
        method = config.method("grpo", settings=combinations()[label])
        lab = wb.labs.tiny(pool=8, held_out=0)
        run = wb.Run(lab, method, seed=0, problems_per_round=8, evaluate_every=0)
        for _ in run.rounds(3, progress=False):
            pass
        made[label] = run.record.rounds
    # Problems that no rollout of the round solved count as solved where an old one was borrowed.
    borrowed = made["reuse+pkpo"]["all_negative"] - made["reuse+pkpo"]["unsolved"]
    assert borrowed.sum() > 0
    columns = ["rollouts", "trained", "tokens_trained", "reward"]
    assert made["pkpo"][columns].equals(made["reuse+pkpo"][columns])
    # The mean is over the tokens of old responses too, so the step is a little shorter or longer.
    norms = [made[label]["gradient_norm"].to_numpy() for label in made]
    np.testing.assert_allclose(*norms, rtol=0.05)


TWO_SLOTS = {
    "curriculum": {"epochs": {}, "mopps": {"curriculum": "Mopps"}},
    "advantage": {
        "group": {},
        "beta": {"advantage": "DiscountedBeta"},
        "pkpo": {"advantage": "Pkpo"},
    },
}


def rungs_of(bills):
    """A first rung with these bills, and a second one that must not count."""
    rows = [{"rung": 1, "label": label, "score": math.log(bill)} for label, bill in bills.items()]
    return pd.DataFrame([*rows, {"rung": 2, "label": "mopps", "score": 9.0}])


def test_what_a_value_changes_is_compared_with_the_rest_of_the_slots_equal():
    rungs = rungs_of({"mopps": 0.5, "beta": 2.0, "mopps+beta": 4.0, "pkpo": 0.8, "mopps+pkpo": 0.2})
    found = halving.effects(rungs, TWO_SLOTS)
    assert list(found.index) == [
        ("curriculum", "mopps"),
        ("advantage", "beta"),
        ("advantage", "pkpo"),
    ]
    # MoPPS: .5 alone, 4 / 2 with beta, .2 / .8 with PKPO; beta: 2 alone, 4 / .5 with MoPPS.
    assert found.loc[("curriculum", "mopps"), "ratio"] == pytest.approx((0.5 * 2 * 0.25) ** (1 / 3))
    assert found.loc[("advantage", "beta"), "ratio"] == pytest.approx((2.0 * 8.0) ** (1 / 2))
    assert found["pairs"].tolist() == [3, 2, 2]
    # Student's interval of two values ends 12.706 standard errors from their mean.
    error = (math.log(8) - math.log(2)) / 2
    high = found.loc[("advantage", "beta"), "high"]
    assert math.log(high) == pytest.approx(math.log(4) + 12.7062 * error, rel=1e-4)


def test_pairs_of_which_one_did_not_arrive_are_counted_apart():
    bills = {"mopps": math.inf, "beta": 2.0, "mopps+beta": 4.0, "pkpo": 0.8, "mopps+pkpo": 0.2}
    found = halving.effects(rungs_of(bills), TWO_SLOTS)
    assert found["pairs"].tolist() == [2, 1, 1]
    assert found["unfinished"].tolist() == [1, 1, 1]
    # One pair has a value and no interval.
    assert math.isnan(found.loc[("advantage", "beta"), "low"])
    assert found.loc[("advantage", "beta"), "ratio"] == pytest.approx(2.0)


def test_a_first_rung_that_lacks_a_combination_is_named():
    with pytest.raises(ValueError, match=r"the first rung lacks mopps\+pkpo"):
        halving.effects(rungs_of({"mopps": 1, "beta": 1, "mopps+beta": 1, "pkpo": 1}), TWO_SLOTS)


def test_the_runs_of_a_rung_are_shorter_and_keep_what_else_the_plan_says(plan):
    plan.grid["parameters"] |= {"rounds": 60, "rollouts": 15_360, "evaluate_every": 12}
    of_rung = halving._rung_grid(plan, plan.grid["cases"], [100])["parameters"]
    assert (of_rung["rounds"], of_rung["rollouts"], of_rung["evaluate_every"]) == (40, 10_240, 10)
    assert of_rung["lab"] == {**plan.grid["parameters"]["lab"], **halving.RUNG_LAB}
    # The final has the plan's own budget and evaluations.
    of_final = halving._grid(plan, plan.grid["cases"], [200])["parameters"]
    assert of_final == plan.grid["parameters"]


def test_a_search_goes_on_where_it_was_stopped_and_ends_the_same(plan, monkeypatch):
    """Two combinations, one rung, a final of one of them on two seeds; stopped before the final.

    What ranks them is left out, since six held-out problems say nothing after two rounds.
    """
    order = {"beta": 0.0, "pkpo": 1.0}
    monkeypatch.setattr(halving, "bill_scores", lambda groups, baseline, price: dict(order))
    choices = {"advantage": halving.CHOICES["advantage"]}
    lines = []
    options = {"choices": choices, "finalists": 1, "seeds": 2, "jobs": 2, "report": lines.append}

    with monkeypatch.context() as stopped:
        stopped.setattr(halving, "final_seeds", interrupt)
        with pytest.raises(KeyboardInterrupt):
            halving.search(plan, "pods", **options)
    made = [line for line in lines if "done in" in line]
    assert len(made) == 3  # grpo and two combinations, one seed each

    lines.clear()
    rungs, final = halving.search(plan, "pods", **options)
    assert rungs["label"].tolist() == ["beta", "pkpo"]
    assert rungs["seeds"].tolist() == [1, 1]
    made = [line for line in lines if "done in" in line]
    assert len(made) == 6  # the final alone: grpo, pods and the winner, two fresh seeds each
    assert set(final) == {"grpo", "pods", "beta"}
    seeds = {record.manifest["seed"] for records in final.values() for record in records}
    assert seeds == {200, 201}
    folder = plan.folder.with_name("board-search")
    assert wb.records.exists(folder / "beta" / "seed-200")


def test_a_single_paper_that_is_also_a_combination_takes_part_once(plan, monkeypatch):
    """PKPO's advantage alone is the method pkpo, and may win every rung."""
    plan.grid["cases"].append({"label": "pkpo", "method": "pkpo"})
    monkeypatch.setattr(
        halving, "bill_scores", lambda groups, baseline, price: {"pkpo": 0.0, "beta": 1.0}
    )
    asked = []

    def made(grid, *others, **options):
        asked.append([case["label"] for case in grid["cases"]])
        return {label: [None] * len(grid["seeds"]) for label in asked[-1]}

    monkeypatch.setattr(halving, "_made", made)
    choices = {"advantage": halving.CHOICES["advantage"]}
    halving.search(plan, "pkpo", choices=choices, finalists=1, seeds=2, report=[].append)
    assert asked[-1] == ["grpo", "pkpo", "beta"]


def interrupt(n):
    raise KeyboardInterrupt
