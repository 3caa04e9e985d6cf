"""The search over combinations: which survive, which seeds they get, and a search of real runs."""

import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from papers import halving, leaderboard
from papers.combinations import effects
from papers.halving import combinations, survivors
from workbench import config
from workbench.analysis.curves import Curve
from workbench.trials import tuning

# Combinations, rungs, survivors


def test_every_combination_is_a_method_of_its_own():
    made = combinations()
    assert len(made) == 2 * 2 * 2 * 3 * 2 - 1
    described = {repr(config.method("grpo", settings=settings)) for settings in made.values()}
    assert len(described) == len(made)


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


# A search of real runs


PARTS = {
    "curriculum": {"epochs": {}, "mopps": {"curriculum": "Mopps"}},
    "advantage": {"group": {}, "beta": {"advantage": "DiscountedBeta"}},
    "replay": {"fresh": {}, "reuse": {"replay": "CorrectResponses"}},
}
# What a combination multiplies the cost by, and the rate at which it is at its best.
WORTH = {"mopps": (0.7, 1e-3), "beta": (1.5, 2e-3), "reuse": (0.8, 1e-3)}


def curve_of(run):
    """A run that rises in proportion to the rate up to the best one, and not at all beyond."""
    factor, best = 1.0, 1e-3
    for name, (of_name, rate) in WORTH.items():
        if name in run.label.split("+"):
            factor *= of_name
            best = max(best, rate)
    rate = run.point.learning_rate
    pace = rate / best if rate <= best else 0.1
    rounds = np.arange(5)
    table = pd.DataFrame({"round": rounds[1:], "rollouts": 100 * factor})
    return Curve(run.label, 0, rounds, 0.2 + 0.1 * pace * rounds, table, Path(run.label))


def tuned_search(arms, folder, **options):
    """A search of two finalists, over three rates and two tuning seeds, once it is tuned."""
    search = halving.Search(
        arms,
        finalists=2,
        lab=wb.labs.tiny(pool=32, held_out=8, samples=2),
        out=folder / "search",
        rates=[5e-4, 1e-3, 2e-3],
        tuning_seeds=2,
        seeds=2,
        **options,
    )
    while True:
        state = search.make_state()
        runs = state.next_runs(at_once=2)
        if runs[0].seed < tuning.FIRST_SEED:
            return state
        search._found |= {run: curve_of(run) for run in runs}


def test_a_third_of_the_combinations_goes_on_after_each_stage(tmp_path):
    arms = {**halving.methods(PARTS), "pods": "pods"}
    state = tuned_search(arms, tmp_path, invited=["pods"])
    # Of seven combinations two are left after the first stage, and no later one leaves fewer.
    assert set(state.compared) == {"grpo", "mopps", "mopps+reuse", "pods"}
    rungs = state.rungs
    first = rungs[rungs["rung"] == 1].set_index("label")["score"]
    assert first["mopps"] == pytest.approx(math.log(0.7))
    assert first["mopps+beta"] == pytest.approx(math.log(0.7 * 1.5))
    assert rungs.groupby("rung")["label"].count().tolist() == [7, 2, 2]
    # Its best rate is one of the first stage's, and stays its best through the later ones.
    of_mopps = rungs.loc[rungs["label"] == "mopps", "score"]
    assert of_mopps.tolist() == pytest.approx([math.log(0.7)] * 3)


def test_who_is_dropped_costs_no_more_than_the_coarse_grid(tmp_path):
    """Stages end while the baseline is being tuned, whose own target is not known before."""
    state = tuned_search(halving.methods(PARTS), tmp_path)
    # Those that are left were tuned with the effort of every other arm.
    effort = tuning.effort(state.settings.coarse, state.settings.tuning_seeds)
    dropped = dict.fromkeys(["beta", "reuse", "beta+reuse", "mopps+beta", "mopps+beta+reuse"], 3)
    assert Counter(run.label for run in state.found) == dropped | dict.fromkeys(
        ["grpo", "mopps", "mopps+reuse"], effort
    )


@pytest.mark.slow
def test_the_best_single_paper_has_to_be_recorded_first(tmp_path):
    with pytest.raises(ValueError, match="the best single paper is not known yet"):
        leaderboard.search(out=tmp_path / "board")


def test_a_single_paper_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ValueError, match="podz"):
        leaderboard.search("podz", out=tmp_path / "board")


@pytest.mark.slow
def test_a_single_paper_that_is_also_a_combination_takes_part_once(tmp_path):
    """PKPO's advantage alone is the method pkpo."""
    search = leaderboard.search("pkpo", out=tmp_path / "board")
    assert [*search.settings.arms].count("pkpo") == 1 and search.invited == ("pkpo",)
    assert search.out == tmp_path / "board-search"


@pytest.mark.slow
def test_reuse_changes_next_to_nothing_beside_pkpo():
    """What is trained on is the same, also in rounds in which old responses are reused."""
    made = {}
    for label in ("pkpo", "reuse+pkpo"):
        method = config.method("grpo", settings=combinations()[label])
        lab = wb.labs.tiny(pool=8, held_out=0, learning_rate=3e-4)
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
    found = effects(rungs, TWO_SLOTS)
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
    found = effects(rungs_of(bills), TWO_SLOTS)
    assert found["pairs"].tolist() == [2, 1, 1]
    assert found["unfinished"].tolist() == [1, 1, 1]
    # One pair has a value and no interval.
    assert math.isnan(found.loc[("advantage", "beta"), "low"])
    assert found.loc[("advantage", "beta"), "ratio"] == pytest.approx(2.0)


def test_a_first_rung_that_lacks_a_combination_is_named():
    with pytest.raises(ValueError, match=r"the first rung lacks mopps\+pkpo"):
        effects(rungs_of({"mopps": 1, "beta": 1, "mopps+beta": 1, "pkpo": 1}), TWO_SLOTS)
