"""What a user's own parts are told when they do what they must not: the part, and the way out."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import go, small_lab
from typer.testing import CliRunner

import workbench as wb
from workbench.cli.app import main
from workbench.problems import Pool, Problem
from workbench.verifiers import Scores
from workbench.verifiers.base import checked_scores


class Says:
    """A verifier that returns whatever it is told to."""

    def __init__(self, answer):
        self.answer = answer

    def score(self, responses, answers):
        return self.answer(len(responses))


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        np.zeros,
        lambda n: [1.0] * n,
        lambda n: Scores.of(["ok"] * (n - 1)),
        lambda n: Scores(np.full(n, 0.5), np.full(n, "right")),
        lambda n: Scores(np.full(n, "x"), np.full(n, "ok")),
        lambda n: Scores(np.full(n, "1"), np.full(n, "ok")),
        lambda n: None,
        lambda n: json.loads("{"),
    ],
)
@pytest.mark.parametrize("held_out", [0, 4])
def test_a_verifier_that_returns_no_scores_is_named(answer, held_out):
    lab = replace(small_lab(held_out=held_out, samples=2), verifier=Says(answer))
    run = wb.Run(lab, wb.methods.grpo(2), problems_per_round=4)
    with pytest.raises(ValueError, match=r"verifier: Says\.score"):
        go(run, 1)


def test_a_verifier_that_raises_is_named_with_the_response_that_makes_it_raise():
    class Reads:
        def score(self, responses, answers):
            return Scores.of(["ok" if json.loads(text) else "wrong" for text in responses])

    with pytest.raises(ValueError, match=r"^verifier: Reads\.score raised JSONDecodeError .*'{'"):
        checked_scores(Reads(), ["1", "{", "0"], ["1"] * 3)


@pytest.mark.parametrize("options", [{"requires_grad": True}, {"dtype": torch.bfloat16}])
def test_a_tensor_that_numpy_cannot_read_is_named(options):
    """NumPy's own error once said neither whose rewards they are nor what to do."""
    says = Says(lambda n: Scores(torch.ones(n, **options), np.full(n, "ok")))
    with pytest.raises(ValueError, match=r"^verifier: Says\.score returned .*tolist"):
        checked_scores(says, ["1"], ["1"])


class Judges(wb.verifiers.Verifier):
    """A verifier that judges as it is told to."""

    def __init__(self, judge):
        self.answer = judge

    def judge(self, responses, answers):
        return self.answer(responses, answers)


def test_lists_are_scores_too_and_what_a_judge_returns_is_checked():
    lists = Judges(lambda responses, answers: Scores([1, 0], ["ok", "wrong"]))
    scores = lists.score(["a", "b"], ["a", "a"])
    assert scores.reward.dtype == float
    assert scores.correct.tolist() == [True, False]
    for returned in (None, [1.0], Scores([1, 0], ["ok", "ok"]), Scores(["x"], ["ok"])):
        with pytest.raises(ValueError, match=r"verifier: Judges\.judge returned"):
            Judges(lambda *_, returned=returned: returned).score(["a"], ["a"])
    # A run says the same, and does not blame a response for it.
    lab = replace(small_lab(), verifier=Judges(lambda *_: None))
    with pytest.raises(ValueError, match=r"^verifier: Judges\.judge returned None"):
        go(wb.Run(lab, wb.methods.grpo(2), problems_per_round=4), 1)


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


@pytest.mark.slow
def test_an_answer_that_the_verifier_cannot_read_is_refused_before_the_run():
    problems = [Problem(f"sum-{i}", f"{i}+1=", str(i + 1)) for i in range(4)]
    problems[2] = Problem("odd-one", "2+1=", "three, as everybody knows?")
    lab = replace(small_lab(held_out=0), problems=Pool(problems))
    with pytest.raises(ValueError, match="of problem 'odd-one'"):
        wb.Run(lab, wb.methods.grpo(2), problems_per_round=2)
    held_out = replace(small_lab(), held_out=Pool(problems))
    with pytest.raises(ValueError, match="of problem 'odd-one'"):
        wb.Run(held_out, wb.methods.grpo(2), problems_per_round=2)


def test_answers_of_a_file_are_read_by_the_verifier_of_the_lab(tmp_path):
    """The file was checked for another one."""
    path = tmp_path / "sums.jsonl"
    path.write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "A or B?", "answer": "3"}\n')
    pool = wb.problems.from_file(path)
    lab = replace(small_lab(held_out=0), problems=pool, verifier=wb.verifiers.Choice())
    with pytest.raises(ValueError, match=f"Choice cannot use 2 .* of problem '{pool[0].id}'"):
        wb.Run(lab, wb.methods.grpo(2), problems_per_round=1)
    shipped = replace(small_lab(held_out=0), verifier=wb.verifiers.Choice())
    with pytest.raises(ValueError, match=f"of problem '{re.escape(shipped.problems[0].id)}'"):
        wb.Run(shipped, wb.methods.grpo(2), problems_per_round=1)


@pytest.mark.slow
def test_answers_of_a_public_data_set_are_read_before_the_run():
    problems = [Problem(f"set/{i}", f"{i}+1=", str(i + 1)) for i in range(4)]
    problems[3] = Problem("set/odd", "2+1=", "three, as everybody knows?")
    lab = replace(small_lab(held_out=0), problems=Pool(problems, {"family": "hub"}))
    with pytest.raises(ValueError, match="of problem 'set/odd'"):
        wb.Run(lab, wb.methods.grpo(2), problems_per_round=2)


def test_answers_that_are_known_to_be_readable_are_not_read_again(monkeypatch):
    asked = []
    monkeypatch.setattr(wb.labs, "check_answers", lambda pool, verifier: asked.append(pool))
    for options in ({}, {"base": "early"}, {"pool": None}):
        wb.Run(small_lab(**options), wb.methods.grpo(2), problems_per_round=2)
    assert asked == []
    mine = Pool([Problem("a", "1+1=", "2")])
    for _ in range(2):
        lab = replace(small_lab(held_out=0), problems=mine)
        wb.Run(lab, wb.methods.grpo(2), problems_per_round=1)
    assert asked == [mine]


def test_a_verifier_of_ones_own_decides_itself_what_it_reads():
    """Its answers may be anything, such as tests of programs that would have to be run."""
    never = Says(lambda size: pytest.fail("it was asked before the run"))
    lab = replace(small_lab(held_out=0), problems=Pool([Problem("a", "1+1=", "{}")]))
    wb.Run(replace(lab, verifier=never), wb.methods.grpo(2), problems_per_round=1)


@pytest.mark.parametrize("which", ["problems", "held_out"])
def test_a_prompt_that_the_model_cannot_read_is_refused_before_the_first_round(which):
    pool = Pool([Problem("plain", "1+1=", "2"), Problem("german", "Wie viel ist 1+1=?", "2")])
    run = wb.Run(replace(small_lab(), **{which: pool}), wb.methods.grpo(2), problems_per_round=1)
    with pytest.raises(ValueError, match="the prompt of 'german'"):
        go(run, 1)


def test_a_pool_that_is_smaller_than_a_round_says_so():
    with pytest.raises(ValueError, match="problems_per_round=8"):
        wb.Run(small_lab(pool=4), wb.methods.grpo(2), problems_per_round=8)


def test_rows_in_place_of_a_pool_are_told_how_to_become_one():
    rows = [{"prompt": "1+1=", "answer": "2"}]
    with pytest.raises(ValueError, match=r"problems\.from_rows"):
        wb.labs.transformers("any-model", rows)
    with pytest.raises(ValueError, match=r"problems\.from_rows"):
        Pool(rows)
    with pytest.raises(ValueError, match="is no Problem"):
        Pool("1+1=")


def test_what_is_no_adapter_is_answered_with_one():
    with pytest.raises(ValueError, match=r"lora=16: .*dict\(r="):
        wb.labs.transformers("any-model", wb.problems.arithmetic(8), lora=16)


@pytest.mark.parametrize("make", [wb.labs.transformers, wb.labs.unsloth])
@pytest.mark.parametrize("model", ["./nope", "/nowhere/at/all", "~/models/mine", "../nope"])
def test_a_model_directory_that_is_not_there_is_no_name_on_the_hub(make, model):
    with pytest.raises(FileNotFoundError, match=f"model='{model}'"):
        make(model, wb.problems.arithmetic(8))


def test_the_shell_names_a_model_directory_that_is_not_there(tmp_path):
    data = tmp_path / "one.jsonl"
    data.write_text('{"prompt": "1+1=", "answer": "2"}')
    options = ["--lab", "transformers", "--model", "./nope", "--data", str(data)]
    done = CliRunner().invoke(
        main, ["run", "grpo", *options, "--problems", "1", "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 1
    assert done.output.startswith("error: model='./nope'")


def test_a_run_without_evaluations_has_no_learning_curve(tmp_path):
    run = wb.Run(small_lab(held_out=0), wb.methods.grpo(2), problems_per_round=2, out=tmp_path)
    go(run, 1)
    with pytest.raises(ValueError, match="held_out"):
        wb.plots.learning_curve(run.record)


def test_other_problems_than_the_run_had_are_not_taken_by_resume(tmp_path):
    """As when a data file has changed: the manifest's lab is made, but with other problems."""
    sums = wb.problems.from_rows([{"prompt": f"{i}+1=", "answer": i + 1} for i in range(4)])
    lab = small_lab(held_out=0)
    lab = replace(lab, problems=sums).described(lab.config)
    go(wb.Run(lab, wb.methods.grpo(2), problems_per_round=2, out=tmp_path), 1)
    with pytest.raises(ValueError, match="other problems"):
        wb.Run.resume(tmp_path)
    assert len(go(wb.Run.resume(tmp_path, lab=lab), 2)) == 1


# Misspelt names


def test_an_argument_that_does_not_exist_is_an_error_of_python():
    with pytest.raises(TypeError, match="k"):
        wb.methods.pods(k=4)
    with pytest.raises(TypeError, match="dtpe"):
        wb.labs.transformers("any-model", wb.problems.arithmetic(8), dtpe="float32")
    with pytest.raises(TypeError, match="selektor"):
        wb.methods.grpo().but(selektor=wb.selectors.All())


class Chooses(wb.slots.Slot):
    """A curriculum that forgets its return."""

    def choose(self, pool, n, context):
        pool[:n]


def test_a_curriculum_that_returns_nothing_is_told_what_is_needed():
    run = wb.Run(small_lab(), wb.methods.grpo(2).but(curriculum=Chooses()), problems_per_round=4)
    with pytest.raises(ValueError, match="curriculum: it returned None"):
        go(run, 1)
