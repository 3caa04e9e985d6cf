"""What notebook 13 and the panel of stress need beyond the package."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import workbench as wb
from papers import courses, stress, stressed
from papers.regimes import REGIMES
from papers.tuned import Shelf
from workbench.analysis.curves import common_budget

ROOT = Path(__file__).parents[1]

LAB = wb.labs.tiny(pool=32, levels=(1, 8), held_out=8, samples=2, regime="tight")


@pytest.mark.slow
def test_what_is_stopped_is_followed_to_its_end(tmp_path):
    table = courses.stopped_by(
        wb.methods.arrol(4, course=wb.courses.Survival(at=6, warm_up=1, learning_rate=1e-2)),
        wb.methods.grpo(4),
        LAB,
        tmp_path,
        rounds=3,
    )
    assert len(table) == 3 * 32 * 4
    assert not table[table["round"] == 1]["stopped"].any()  # the head's warm-up
    late = table[table["round"] > 1]
    assert 0.2 < late["stopped"].mean() < 0.8
    # A response that was stopped at its sixth token would have gone on.
    assert (late[late["stopped"]]["length"] > 6).all()
    assert set(table["level"]) <= set(range(1, 9))


@pytest.mark.slow
def test_rollouts_that_the_other_method_did_not_sample_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="more rollouts"):
        courses.stopped_by(
            wb.methods.arrol(4, course=wb.courses.Survival(at=6)),
            wb.methods.grpo(2),
            LAB,
            tmp_path,
            rounds=1,
        )


@pytest.mark.slow
def test_runs_are_compared_when_they_have_sampled_as_many_tokens():
    """Rounds of SPEC-RL sample half as much, so that its last evaluations lie elsewhere."""
    names = {"grpo": "GRPO", "spec-rl": "SPEC-RL"}
    shelf = Shelf(wb.labs.shipped("runs") / "regimes/course-tight", names)
    found = courses.ends(shelf.groups)
    budget = common_budget(shelf.curves, "tokens_sampled")
    scores = {
        name: [run.score_at("tokens_sampled", budget) for run in runs.values()]
        for name, runs in shelf.curves.items()
    }
    gain = 100 * (np.mean(scores["SPEC-RL"]) - np.mean(scores["GRPO"]))
    assert found.loc[("SPEC-RL", "accuracy"), "value"] == pytest.approx(gain)
    assert set(found.index.get_level_values(1)) >= {"short chains", "long chains", "length"}


@pytest.mark.parametrize("name", ["course", "course-tight"])
def test_every_arm_of_a_course_has_a_name(name):
    assert list(REGIMES[name].arms()) == list(courses.NAMES)


@pytest.mark.parametrize("name", stress.CONDITIONS)
def test_a_condition_is_its_lab_and_its_correction(name, tmp_path):
    condition = stress.CONDITIONS[name]
    settings = condition.trial(tmp_path / name).settings
    assert list(settings.arms) == list(condition.arms())
    assert settings.lab.stress == condition.stress
    wanted = "truncate" if condition.corrected else None
    for arm in settings.arms.values():
        assert arm.method.objective.sampler_correction == wanted


def test_long_runs_take_each_arm_at_its_rate(tmp_path):
    cases = stress.long_cases(tmp_path)
    assert len(cases) == stress.LONG_SEEDS * len(stress.long_panel())
    for case in cases:
        label = case.name.partition("/")[0]
        assert case.values["learning_rate"] == stress.LONG_RATES[label]
        assert case.values["rounds"] == stress.LONG_ROUNDS


def test_every_arm_and_every_condition_under_stress_has_a_name():
    assert list(stress.panel()) == list(stressed.PANEL)
    assert list(stress.long_panel()) == list(stressed.LONG_PANEL) == list(stress.LONG_RATES)
    assert {*stressed.ERRORS, *stressed.LAGS} <= set(stress.CONDITIONS)


def test_a_problem_is_lost_where_it_was_solved_before():
    evals = pd.DataFrame(
        {
            "round": [0, 0, 10, 10, 20, 20],
            "problem": ["a", "b"] * 3,
            "samples": 4,
            "correct": [2, 1, 1, 4, 4, 0],
        }
    )
    # At round 10 the first one is lost, at round 20 the second, and the first one is back.
    assert stressed.lost(evals).to_dict() == {0: 0.0, 10: 0.5, 20: 0.5}


@pytest.mark.parametrize(
    ("ratio", "low", "high", "reached", "text"),
    [
        (1.2, 1.1, 1.3, 5, "1.20 [1.10, 1.30]"),
        (1.2, 1.1, float("inf"), 4, "at least 1.20"),
        (0.8, 0.0, 0.9, 5, "at most 0.80"),
        (0.8, 0.0, float("inf"), 3, "3 of 5 runs reached it"),
        (4.2, 0.0, float("inf"), 0, "no run reached it"),
    ],
)
def test_a_ratio_says_how_much_of_it_is_known(ratio, low, high, reached, text):
    row = pd.Series({"ratio": ratio, "low": low, "high": high, "reached": reached, "seeds": 5})
    assert stressed.ratio_text(row) == text


@pytest.mark.slow
def test_the_tables_of_the_page_on_stress_are_those_of_the_records():
    page = (ROOT / "docs" / "stress.md").read_text()
    losses_of, needs_of = (
        [line.strip("| ").split(" | ") for line in part.split("\n") if line.startswith("| ")]
        for part in page.partition("## What each method needs")[::2]
    )
    panel = stressed.shelves(ROOT / "data" / "runs" / "stress", stress.CONDITIONS)
    plain = panel["plain"].groups
    found = {name: stressed.losses(shelf.groups, plain) for name, shelf in panel.items()}
    rows = {name: cells for name, *cells in losses_of}
    for name in plain:
        cells = [f"{found['plain'].loc[name, 'score']:.1f}"]
        for condition in ("missed-10", "accepted-30", "lag-1-corrected"):
            cells.append(stressed.loss_text(found[condition].loc[name]).partition(": ")[2])
        assert rows[name] == cells
    rows = {name: cells for name, *cells in needs_of}
    for label, name in stressed.PANEL.items():
        if label != stress.BASELINE:
            arms = [panel[c].arms for c in ("plain", "accepted-30", "lag-1-corrected")]
            cells = [stressed.ratio_text(arm.set_index("arm").loc[label]) for arm in arms]
            assert rows[name] == cells
