"""Sick training is seen, once, with its numbers; healthy training is left alone."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import small_lab
from hypothesis import given
from hypothesis import strategies as st
from test_run import go

import workbench as wb
from workbench.records.health import (
    History,
    TrainingWarning,
    entropy_collapse,
    nothing_learnt,
    policy_destroyed,
    verifier_failures,
)
from workbench.verifiers import Scores

CHECKS = (policy_destroyed, nothing_learnt, entropy_collapse, verifier_failures)


def rows(n, first=1, **columns):
    """n rows of a healthy run of 64 rollouts a round.

    columns: those that differ, each a number or one for each row.
    """
    healthy = dict(
        steps=1,
        rollouts=64,
        selected=64,
        trained=20,
        reward=0.3,
        correct=0.3,
        entropy=0.4,
        gradient_norm=0.5,
        learning_rate=1e-4,
        all_positive=0.1,
        all_negative=0.5,
        truncated=0.0,
        status_unparsed=0,
        status_timeout=0,
        status_crash=0,
    )
    columns = {
        name: np.broadcast_to(value, n).tolist() for name, value in {**healthy, **columns}.items()
    }
    return [
        {"round": first + i, **{name: values[i] for name, values in columns.items()}}
        for i in range(n)
    ]


def told(history):
    """What is said round by round, as a run does it: (round, text)."""
    past = History()
    for row in history:
        row["warnings"] = "\n".join(past.symptoms(row))
        past.add(row)
    assert past.rounds == len(history)
    return [(row["round"], line) for row in history for line in row["warnings"].splitlines()]


def test_what_a_caller_does_to_the_row_that_it_was_given_does_not_matter():
    past = History()
    for row in rows(5, status_timeout=20):
        past.add(row)
        row.clear()
    [text] = past.symptoms(rows(1, first=6)[0])
    assert text.startswith("verifier failures: 26% of the 384 rollouts of rounds 1 to 6")


@pytest.mark.parametrize(
    "columns, why",
    [
        (
            dict(all_positive=1.0, all_negative=0.0),
            "(groups all right 100%, all wrong 0%, mixed 0%): the problems are too easy",
        ),
        (
            dict(all_positive=0.0, all_negative=1.0, status_unparsed=48, truncated=0.5),
            "(groups all right 0%, all wrong 100%, mixed 0%): the problems are too hard for this "
            "policy, or no answer can be read (75% of responses unparsed, 50% truncated)",
        ),
        (dict(all_positive=0.5, all_negative=0.5), "either too easy or too hard"),
        (dict(all_positive=0.1, all_negative=0.9), "mixed 0%): the problems are too hard"),
        (
            dict(all_positive=0.25, all_negative=0.25),
            "mixed 50%): the selector or the allocator kept uniform groups only",
        ),
        (
            dict(all_positive=0.25, all_negative=0.25, selected=0),
            "no rollout was selected for training",
        ),
    ],
)
def test_nothing_is_learnt_and_why(columns, why):
    sick = rows(10, first=4, trained=0, **columns)
    assert nothing_learnt(sick).startswith(
        "every advantage was 0 in rounds 4 to 13 "
    ) and why in nothing_learnt(sick)
    assert nothing_learnt(sick[1:]) is None, "nine rounds are not many"
    assert nothing_learnt(rows(1) + sick[1:]) is None
    assert nothing_learnt(sick[7:], rounds=3) is not None


def test_a_destroyed_policy_is_told_from_problems_that_are_too_hard():
    """The first ten rounds of a run whose learning rate is 10, and what comes after."""
    sick = dict(correct=0.0, trained=0, all_positive=0, all_negative=1, entropy=0.02)
    history = rows(1) + rows(12, first=2, learning_rate=10.0, gradient_norm=0.0, **sick)
    assert nothing_learnt(history) is None
    [(number, text)] = told(history)
    assert number == 4, "three rounds suffice"
    for figure in ("30% in round 1 to 0% in rounds 2 to 4", "0.4 to 0.02", "0.5 to 0", "than 10"):
        assert figure in text
    assert policy_destroyed(rows(13, **sick)) is None, "it knew nothing before"
    assert policy_destroyed(rows(1) + rows(3, correct=0.02)) is None, "some are right"
    assert policy_destroyed(rows(1) + rows(3, rollouts=8, **sick)) is None, "too few to tell"


def test_a_verifier_that_gives_no_verdict_destroys_no_policy():
    """Graded rewards: nothing says what is correct, and the columns hold NaN."""
    nothing = float("nan")
    graded = dict(correct=nothing, all_positive=nothing, all_negative=nothing)
    assert told(rows(30, **graded)) == []
    [(_, text)] = told(rows(30, trained=0, **graded))
    assert text.startswith("nothing learnt") and "all alike" in text


@pytest.mark.slow
def test_a_learning_rate_that_destroys_the_policy_is_named_by_the_run(tmp_path):
    lab = small_lab(held_out=0)
    run = wb.Run(lab, wb.methods.grpo(8), learning_rate=10.0, out=tmp_path, problems_per_round=8)
    with pytest.warns(TrainingWarning, match="policy destroyed: .* learning rate than 10"):
        go(run, 4)
    for rate in (1e38, 1001.0):
        with pytest.raises(ValueError, match="learning_rate="):
            wb.Run(lab, wb.methods.grpo(8), learning_rate=rate)
        with pytest.raises(ValueError, match="learning_rate="):
            replace(lab, learning_rate=rate)


def test_an_entropy_collapse_is_relative_and_absolute():
    text = entropy_collapse(rows(10) + rows(10, entropy=0.02, reward=0.6))
    assert text.startswith(
        "mean entropy fell from 0.4 to 0.02 nats (first and last 10 rounds; reward 0.300 to 0.600)"
    )
    assert entropy_collapse(rows(10, entropy=9.0) + rows(10, entropy=0.5)) is None, (
        "low for it, but far from none"
    )
    assert entropy_collapse(rows(10, entropy=0.05) + rows(10, entropy=0.02)) is None, "it began low"
    assert entropy_collapse(rows(10) + rows(9, entropy=0.02)) is None, "the windows would overlap"
    assert entropy_collapse(rows(40, entropy=float("nan"))) is None, (
        "a policy need not know its entropy"
    )


def test_verifier_failures_above_a_share():
    assert verifier_failures(rows(10, status_timeout=2, status_crash=1)) is None, (
        "3 of 64 are below 5%"
    )
    text = verifier_failures(rows(10, first=3, status_timeout=3, status_crash=1))
    assert text.startswith(
        "6% of the 640 rollouts of rounds 3 to 12 were not judged (30 timeout, 10 crash)"
    )
    assert verifier_failures(rows(1, rollouts=8, status_timeout=4)) is None, (
        "four may be one odd answer"
    )
    assert verifier_failures(rows(1, rollouts=8, status_timeout=5)) is not None, (
        "the first round suffices"
    )


def test_each_cause_is_said_once_a_run_whatever_comes_later():
    history = (
        rows(10)
        + rows(30, first=11, trained=0, entropy=0.01)
        + rows(5, first=41)
        + rows(15, first=46, trained=0)
    )
    said = told(history)
    assert [(number, text.split(":")[0]) for number, text in said] == [
        (20, "nothing learnt"),
        (20, "entropy collapse"),
    ]
    assert told(rows(60)) == []


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([0.01, 0.4]), st.integers(0, 8)), max_size=60
    ),
    st.integers(0, 60),
)
def test_a_resumed_run_says_the_same(rounds, stop):
    history = [
        rows(1, i + 1, trained=t, entropy=e, status_crash=c)[0]
        for i, (t, e, c) in enumerate(rounds)
    ]
    whole = told([dict(row) for row in history])
    # The checks themselves are given all rows: what is kept of them has to be enough.
    kept = [dict(row) for row in history[:stop]]
    told(kept)
    for row in [dict(row) for row in history[stop:]]:
        found = [(check([*kept, row]), check) for check in CHECKS]
        before = "\n".join(earlier["warnings"] for earlier in kept)
        names = [(text, check.__name__.replace("_", " ")) for text, check in found if text]
        fresh = [f"{name}: {text}" for text, name in names if f"{name}: " not in before]
        assert History(kept).symptoms(row) == fresh
        row["warnings"] = "\n".join(fresh)
        kept.append(row)
    assert [(row["round"], line) for row in kept for line in row["warnings"].splitlines()] == whole
    causes = [text.split(":")[0] for _, text in whole]
    assert len(set(causes)) == len(causes)


@pytest.mark.parametrize("seed", range(3))
def test_the_recorded_healthy_runs_are_left_alone(seed):
    table = wb.load(wb.labs.shipped("runs/tiny-grpo") / f"seed-{seed}").rounds.to_dict("records")
    assert told(table) == []
    first, last = (np.mean([row["entropy"] for row in part]) for part in (table[:10], table[-10:]))
    assert last > 0.6 * first


@pytest.mark.slow
def test_a_run_says_it_keeps_it_and_does_not_repeat_it_after_a_resume(tmp_path):
    class Accepts:
        def score(self, responses, answers):
            return Scores.of(["ok"] * len(responses))

    lab = replace(small_lab(held_out=0), verifier=Accepts())
    small = dict(problems_per_round=2, evaluate_every=0, checkpoint_every=4)
    with pytest.warns(
        TrainingWarning, match=r"nothing learnt: .* rounds 1 to 10 \(groups all right 100%"
    ) as caught:
        go(wb.Run(lab, wb.methods.grpo(2), out=tmp_path / "whole", **small), 13)
    assert len(caught) == 1
    with pytest.warns(TrainingWarning):
        go(wb.Run(lab, wb.methods.grpo(2), out=tmp_path / "parts", **small), 11)
    rows = go(wb.Run.resume(tmp_path / "parts", lab=lab), 13)
    assert [row["warnings"] for row in rows] == ["", ""]
    for name in ("whole", "parts"):
        said = wb.load(tmp_path / name).warnings
        assert said["round"].tolist() == [10] and "too easy" in said["warning"][0]
