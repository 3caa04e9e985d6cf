"""What becomes of single problems, against cases worked out by hand."""

import numpy as np
import pandas as pd
import pytest

import workbench as wb
from workbench import labs
from workbench.analysis import comparisons
from workbench.analysis import difficulty as statuses
from workbench.analysis.metrics import STATUS


def frame(*rows):
    """Rows (problem, round, outcomes as a string of 0 and 1)."""
    parts = [
        (problem, number, outcome == "1") for problem, number, text in rows for outcome in text
    ]
    return pd.DataFrame(parts, columns=["problem", "round", "correct"])


EVEN = frame(("a", 1, "1100"), ("b", 1, "0000"), ("a", 2, "1101"), ("b", 2, "0001"))
SAVING = frame(("a", 1, "1100"), ("b", 1, "0000"), ("a", 2, "11"), ("b", 2, "000000"))
FRAMES = {"even": {0: EVEN, 1: EVEN}, "saving": {1: SAVING}}


def test_rates_of_a_visit():
    rows = frame(("p", 1, "1100"), ("q", 1, "00"), ("p", 2, "01"))
    assert statuses.visit_rates(rows, 0).to_dict() == {"p": 0.5, "q": 0.0}
    assert statuses.visit_rates(rows, -1).to_dict() == {"p": 0.5, "q": 0.0}  # q was drawn once
    assert statuses.visit_rates(rows, 1).to_dict() == {"p": 0.5}
    assert statuses.visit_rates(rows, 0, pd.Series({"p": 2, "q": 8})).to_dict() == {
        "p": 1.0,
        "q": 0.0,
    }


def test_equal_numbers_take_the_smaller_of_the_two():
    as_they_are, equal = statuses.last_rates(FRAMES), statuses.last_rates(FRAMES, equal=True)
    assert list(equal["even"]) == list(equal["saving"]) == [1], "seed 0 is missing in one"
    assert as_they_are["even"][1].to_dict() == {"a": 0.75, "b": 0.25} and equal["even"][
        1
    ].to_dict() == {"a": 1.0, "b": 0.25}
    assert (
        equal["saving"][1].to_dict() == as_they_are["saving"][1].to_dict() == {"a": 1.0, "b": 0.0}
    )


def test_final_statuses_and_who_stays():
    table = statuses.final(FRAMES)
    assert table.index.tolist() == [("even", 1), ("saving", 1)]
    assert table.loc[("even", 1), [*STATUS, "stay"]].tolist() == [0, 0, 1, 0, 0, 0]
    assert table.loc[("saving", 1), [*STATUS, "stay"]].tolist() == [0.5, 0, 0, 0, 0.5, 1]
    assert statuses.final(FRAMES, equal=True).loc[("even", 1), "extremely-easy"] == 0.5


def test_transitions_are_shares_of_a_row():
    found = statuses.transitions(FRAMES)["saving"]
    assert (
        found.loc["medium", "extremely-easy"] == 1
        and found.loc["extremely-hard", "extremely-hard"] == 1
    )
    assert found.to_numpy().sum() == 2


def test_spending_by_status():
    table = statuses.spending(
        frame(("p", 1, "1100"), ("p", 2, "01"), ("q", 1, "00"), ("q", 3, "1000"))
    )
    assert table.loc["medium"].to_dict() == {
        "visits": 0.5,
        "rollouts": 2,
        "spent": 1 / 3,
        "mixed": 1,
    }  # p, at 2 of 4
    assert table.loc["extremely-hard"].to_dict() == {
        "visits": 0.5,
        "rollouts": 4,
        "spent": 2 / 3,
        "mixed": 1,
    }  # q, at 0 of 2
    assert table.index.tolist() == list(STATUS) and table.loc["easy"].isna().all()


def test_a_real_run(tmp_path):
    lab = labs.tiny(pool=8, levels=(1, 2), held_out=0)
    run = wb.Run(
        lab, wb.methods.knapsack(n=4), out=tmp_path / "knapsack" / "seed-0", problems_per_round=4
    )
    list(run.rounds(4, progress=False))
    frames = statuses.outcomes(comparisons.load_all(tmp_path))
    table = statuses.final(frames)
    assert table.loc[("knapsack", 0), list(STATUS)].sum() == pytest.approx(1)
    spent = statuses.spending(frames["knapsack"][0])
    assert np.isclose(spent["visits"].sum(), 1) and (spent["rollouts"].dropna() >= 2).all()
