"""What a user's own parts are told when they do what they must not: the part, and the way out."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import go, small_lab

import workbench as wb
from workbench.problems import Pool, Problem
from workbench.verifiers import Scores


class Says:
    """A verifier that returns whatever it is told to."""

    def __init__(self, answer):
        self.answer = answer

    def score(self, responses, answers):
        return self.answer(len(responses))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (np.zeros, r"Says\.score returned array\(.*Scores\(reward, status\) is needed"),
        (lambda n: [1.0] * n, r"Says\.score returned \[1\.0, .*Scores\(reward, status\) is needed"),
        (
            lambda n: Scores.of(["ok"] * (n - 1)),
            r"Says\.score returned a reward of shape \(7,\) for 8",
        ),
        (
            lambda n: Scores(np.full(n, 0.5), np.full(n, "right")),
            "Says.score returned the status 'right'; there are ok, wrong, unparsed",
        ),
    ],
)
@pytest.mark.parametrize("held_out", [0, 4])
def test_a_verifier_that_returns_no_scores_is_named(answer, words, held_out):
    lab = replace(small_lab(held_out=held_out, samples=2), verifier=Says(answer))
    run = wb.Run(lab, wb.methods.grpo(2), problems_per_round=4)
    with pytest.raises(ValueError, match=f"verifier: .*{words}"):
        go(run, 1)


@pytest.mark.parametrize(
    ("prompt", "answer", "words"),
    [
        ("", "2", "the prompt of 'mine' is ''"),
        ("1+1=", None, "the answer of 'mine' is None"),
        ("1+1=", 2, "the answer of 'mine' is 2"),
        ("1+1=", " ", "the answer of 'mine' is ' '"),
    ],
)
def test_a_problem_without_question_or_answer_is_refused_by_the_lab(prompt, answer, words):
    pool = Pool([Problem("mine", prompt, answer)])
    with pytest.raises(ValueError, match=words):
        replace(small_lab(), problems=pool)
    with pytest.raises(ValueError, match=words):
        replace(small_lab(), held_out=pool)


def test_the_closest_name_is_suggested():
    with pytest.raises(AttributeError, match="did you mean 'methods'"):
        wb.metods  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean 'knapsack'"):
        wb.methods.knapsak  # noqa: B018
    with pytest.raises(ValueError, match="did you mean 'selector'"):
        wb.methods.grpo().but(selektor=wb.selectors.MaxVariance(2))
