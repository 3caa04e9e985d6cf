"""Verdicts of the mathematical verifier, what it refuses, its cache, and hostile answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from math_cases import CASES, LIMITS

from workbench.verifiers import Math, Scores
from workbench.verifiers.boxes import BOX, last_box

ROOT = Path(__file__).resolve().parents[1]
DEADLINE = 1.2
HOSTILE = {
    "tower": r"\boxed{9^{9^{9}}}",
    "factorial": r"\boxed{(10^9)!}",
    "factorials": r"\boxed{((9!)!)!}",
    "fractions": r"\boxed{" + r"\frac{1}{1+" * 1000 + "1" + "}" * 1000 + "}",
    "parentheses": r"\boxed{" + "(" * 300 + "5" + ")" * 300 + "}",
}


@pytest.fixture(scope="module")
def math():
    with Math() as verifier:
        yield verifier


# Verdicts


@pytest.mark.slow
def test_hand_made_cases():
    """Every case of the table in both modes; those of `LIMITS` are judged otherwise, as it says."""
    assert len(CASES) >= 250
    pairs = [(response, gold) for _, response, gold, _ in CASES]
    assert len(set(pairs)) == len(pairs)
    unexpected = []
    with Math(deadline=20) as verifier:
        for boxed in (False, True):
            verifier.boxed = boxed  # so that the workers and the cache serve both modes
            correct = verifier.score(*zip(*pairs)).correct.tolist()
            for (theme, response, gold, right), found in zip(CASES, correct):
                of_one_box = response.startswith(BOX) and response.count(BOX) == 1
                is_limit = (response, gold) in LIMITS and (of_one_box or not boxed)
                wanted = right and (BOX in response or not boxed)
                if found != (wanted != is_limit):
                    unexpected.append((theme, response, gold, boxed))
    assert unexpected == []


@pytest.mark.slow
def test_reading_nothing_is_not_reading_wrongly(math):
    responses = ["", "I do not know.", r"\boxed{}", r"\boxed{???}", r"\boxed{1}", "#"]
    status = math.score(responses, ["2"] * 6).status.tolist()
    assert status == ["unparsed"] * 4 + ["wrong", "unparsed"]


@pytest.mark.slow
def test_the_statuses_are_those_of_the_page():
    """docs/guides/verifiers.md names them, in a box and without."""
    unparsed = [r"\ge 42", "42_5", r"\det(1)=42", "40 2", r"42 \to 43", "٤٢", "㊷", "42万"]
    unparsed += ["42 more people than dogs", r"42\text{ if }x>0", "at least 42", r"\cancel{42}"]
    unparsed += [r"\bcancel{41}42", r"\left.42\right.", r"\bbox[5px]{42}", r"-\boxed{42}"]
    unparsed += [r"\boxed{42}^2", r"\sqrt{\boxed{42}}", "The answer is not 41 but 42."]
    cases = [(answer, "42", "unparsed") for answer in unparsed]
    cases += [("3 PM", "3:00 PM", "unparsed"), ("6", "110_2", "unparsed")]
    cases += [("42°F", "42°C", "unparsed"), ("42 hours", "42 minutes", "wrong")]
    cases += [(r"42\%", "42", "wrong"), ("0.42", r"42\%", "ok"), ("42", r"42\%", "ok")]
    answers, golds, expected = map(list, zip(*cases))
    boxed = [answer if BOX in answer else rf"\boxed{{{answer}}}" for answer in answers]
    with Math(deadline=20) as verifier:
        for responses in (answers, boxed):
            assert verifier.score(responses, golds).status.tolist() == expected


def in_tags(answer):
    """A response in the form that the template `TAGS` asks for."""
    return f"<think>\nIt may be 3.\n</think>\n<answer>\n{answer}\n</answer>"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "gold", "status"),
    [
        *[(text, text, "ok") for text in ("(1,2)", "x^2+1", r"\sqrt{2}", r"2\sqrt{2}", "[0,1]")],
        (r"$12\pi$.", r"12\pi", "ok"),
        (r"12\pi", "12", "wrong"),
        (r"2\sqrt{2}", "2", "wrong"),
        ("42", "42", "ok"),
        ("The answer is 42.", "42", "ok"),
        ("18 dollars", "18", "ok"),
        ("Monday", "Monday", "ok"),
        ("41 or 42", "42", "wrong"),
    ],
)
def test_what_stands_between_answer_tags_is_read_as_in_a_box(math, answer, gold, status):
    assert math.score([in_tags(answer)], [gold]).status.tolist() == [status]


@pytest.mark.slow
def test_the_last_whole_pair_of_tags_counts_and_a_box_before_it(math):
    responses = ["<answer>41</answer> no: <answer>42</answer>", "<answer>42</answer> <answer>4"]
    responses += [r"<answer>41</answer> \boxed{42}", "<answer>42"]
    status = math.score(responses, ["42"] * 4).status.tolist()
    # The last response was cut off before its answer was whole.
    assert status == ["ok", "ok", "ok", "unparsed"]
    with Math(boxed=True) as strict:
        assert strict.score(responses[:1], ["42"]).status.tolist() == ["unparsed"]


def test_lone_surrogates_are_text_like_any_other(math):
    assert math.score(["\ud800 \\boxed{0.5}\ud800"], ["1/2"]).correct.all()


def test_scores():
    scores = Scores.of(["ok", "crash", "ok", "wrong"])
    assert scores.reward.dtype == np.float64
    assert scores.status.dtype.kind == "U"
    assert scores.correct.tolist() == [True, False, True, False]
    assert Scores.of([]).reward.shape == (0,)


@pytest.mark.slow
def test_boxed_reads_only_the_last_complete_box():
    with Math(boxed=True, workers=1) as verifier:
        responses = [
            "the answer is 5",
            r"\boxed{5",
            r"\boxed{4}, no: \boxed{5}",
            r"\boxed{5} then \boxed{4}",
            r"\boxed{5} \boxed{4",
            r"\boxed{5.}",
        ]
        assert verifier.score(responses, ["5"] * 6).status.tolist() == [
            "unparsed",
            "unparsed",
            "ok",
            "wrong",
            "ok",
            "ok",
        ]
        assert verifier.pool.server is None  # integers and missing boxes need no worker
        assert verifier.score([r"\boxed{\frac{1}{2}}"], ["0.5"]).correct.all()


def test_a_box_that_was_cut_off_keeps_its_last_character(math):
    # Without its brace, the last digit was taken for it: 123 was read as 12.
    assert not math.score([r"\boxed{123"], ["12"]).correct.any()


def test_boxes():
    assert last_box(r"\boxed{\frac{1}{2}} then \boxed{a{b}c}") == r"\boxed{a{b}c}"
    assert last_box(r"\boxed{1 \boxed{2") is None
    assert last_box(r"\boxed{1}, $\boxed{2}$ or \boxed{1}") == r"\boxed{1,2}"
    assert last_box(r"\boxed{1}, then \boxed{2}") == r"\boxed{2}"
    assert last_box(r"\boxed{\boxed{2}}") == r"\boxed{2}"
    assert last_box(r"$\boxed{50} \%$") == r"\boxed{50\%}"


def test_the_tail_of_a_long_response_counts():
    with Math(max_chars=100, boxed=True) as verifier:  # reads both without a worker
        responses = ["x" * 10**6 + r" \boxed{5}", r"\boxed{5}" + "x" * 10**6]
        assert verifier.score(responses, ["5"] * 2).status.tolist() == ["ok", "unparsed"]


@settings(max_examples=60, deadline=None)
@given(st.integers())
def test_integers(math, n):
    boxed, said = rf"so \boxed{{{n}}}", f"The answer is ${n}$."
    assert math.score([boxed, said] * 2, [str(n)] * 2 + [str(n + 1)] * 2).status.tolist() == [
        "ok",
        "ok",
        "wrong",
        "wrong",
    ]


def test_integers_agree_with_math_verify(math):
    numbers = [0, 1, 9, 10**6, 10**11, 10**12 - 2]
    pairs = [
        (a, b) for n in numbers for a, b in [(n, n), (n, n + 1), (-n, n), (-n, -n), (-n - 1, -n)]
    ]
    replies = math.pool.run([{"response": rf"\boxed{{{a}}}", "answer": str(b)} for a, b in pairs])
    assert [reply["status"] == "ok" for reply in replies] == [a == b for a, b in pairs]


# What is refused


@pytest.mark.parametrize(
    "argument",
    [
        {"workers": 0},
        {"workers": 1.5},
        {"deadline": 0},
        {"deadline": float("nan")},
        {"deadline": "5"},
        {"memory_mb": 0},
        {"max_chars": 0},
        {"cache": -1},
        {"boxed": 1},
        {"workers": True},
    ],
)
def test_constructor_arguments(argument):
    name = next(iter(argument))
    with pytest.raises(ValueError, match=f"^{name}="):
        Math(**argument)


@pytest.mark.parametrize(
    ("responses", "answers", "named"),
    [
        (["a"], [], "answers"),
        (["a"], [5], r"answers\[0\]=5"),
        ([None], ["5"], r"responses\[0\]=None"),
        ("a", "5", "responses"),
        (["a"], [" "], r"answers\[0\]=' '"),
        ([r"\boxed{1/2}"], [r"\frac{"], r"\\\\frac{"),
    ],
)
def test_score_arguments(math, responses, answers, named):
    with pytest.raises(ValueError, match=named):
        math.score(responses, answers)


def test_an_unusable_gold_answer_leaves_the_verifier_working(math):
    with pytest.raises(ValueError, match="answers"):
        math.score([r"\boxed{1/3}"] * 2, ["???", "1/3"])
    assert math.score([r"\boxed{1/3}"], ["1/3"]).correct.all()


def test_config_and_import():
    config = Math(deadline=2.0, cache=0).config
    assert config["deadline"] == 2.0
    assert Math(**config).config == config
    assert sorted(config) == ["boxed", "cache", "deadline", "max_chars", "memory_mb", "workers"]
    code = (
        "import sys, workbench.verifiers; "
        "print({'math_verify', 'sympy', 'pandas', 'torch'} & set(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert (
        subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).strip()
        == "set()"
    )


# The cache


@pytest.mark.slow
def test_equal_pairs_are_asked_once():
    with Math(workers=1, cache=3) as verifier:
        asked = []
        run, verifier.pool.run = (
            verifier.pool.run,
            lambda items: asked.append(len(items)) or run(items),
        )
        responses = [rf"thought {i}: \boxed{{0.{i % 2 + 1}}}" for i in range(10)]
        for _ in range(2):
            assert verifier.score(responses, ["0.1"] * 10).correct.sum() == 5
        assert [n for n in asked if n] == [2]
        for _ in range(2):  # as many as are kept
            verifier.score([r"\boxed{0.5}", r"\boxed{0.6}", r"\boxed{0.7}"], ["1"] * 3)
        verifier.score([r"\boxed{0.1}"], ["0.1"])  # was dropped
        assert [n for n in asked if n] == [2, 3, 1]


@pytest.mark.slow
def test_no_cache():
    with Math(workers=1, cache=0) as verifier:
        for _ in range(2):
            assert verifier.score([r"\boxed{0.5}"] * 2, ["1/2", "1/3"]).status.tolist() == [
                "ok",
                "wrong",
            ]


# Hostile answers


@pytest.mark.slow
def test_all_hostile_answers_at_once():
    neighbours = [rf"\boxed{{\frac{{{i}}}{{7}}}}" for i in range(1, 7)]
    with Math(deadline=DEADLINE) as verifier:
        responses = [*neighbours[:3], *HOSTILE.values(), *neighbours[3:]]
        scores = verifier.score(responses, ["1/7", "2/7", "3/7", *["5"] * 5, "4/7", "5/7", "6/7"])
    assert scores.correct.tolist() == [True] * 3 + [False] * 5 + [True] * 3
    assert not np.isin(scores.status, ["wrong"]).any()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the memory limit is Linux's")
def test_running_out_of_memory_is_a_crash():
    with Math(memory_mb=32, workers=1, deadline=90) as verifier:
        scores = verifier.score(
            [r"\boxed{0.5}", r"\boxed{2^{2^{33}}}", r"\boxed{1.5}"], ["1/2", "5", "3/2"]
        )
    assert scores.status.tolist() == ["ok", "crash", "ok"]
