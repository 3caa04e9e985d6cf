"""Problems of your own: rows and files become a pool, and unusable ones are named up front."""

import json
import os
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import go, small_lab

import workbench as wb
from workbench import config
from workbench.datasets.readers import COMPARISON
from workbench.datasets.rows import _of_parquet
from workbench.labs import shipped
from workbench.problems import Pool, Problem, Stream, from_file, from_rows
from workbench.verifiers import Choice, Scores

ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": 4}]
MODEL = shipped("models/early-small")


def test_rows_become_problems_in_their_order():
    assert [(each.prompt, each.answer, each.level) for each in from_rows(ROWS)] == [
        ("1+1=", "2", 0),
        ("2+2=", "4", 0),
    ]


def test_columns_levels_and_a_template_are_taken():
    rows = [{"question": "1+1", "gold": " 2 ", "hard": "3"}]
    (problem,) = from_rows(
        rows, prompt="question", answer="gold", level="hard", template="Q: {prompt}="
    )
    assert (problem.prompt, problem.answer, problem.level) == ("Q: 1+1=", "2", 3)


def test_ids_depend_on_the_prompt_alone():
    """So that what a method remembers of a problem outlives new rows and another order."""
    forward = {each.prompt: each.id for each in from_rows(ROWS)}
    assert forward == {each.prompt: each.id for each in from_rows(ROWS[::-1])}
    assert len(set(forward.values())) == 2


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv", "json"])
def test_a_file_that_is_too_large_is_refused_before_it_is_opened(ending, tmp_path):
    path = tmp_path / f"rows.{ending}"
    path.touch()
    os.truncate(path, 2**40)  # zeros, which take no place on the disk
    with pytest.raises(ValueError, match="larger than"):
        from_file(path)


THIRD = {"prompt": "3+3=", "answer": "6"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([], "rows"),
        ("1+1=", "rows='1"),
        (ROWS[0], "rows="),
        ([ROWS[0], ["1+1=", "2"]], "row 1"),
        ([{"promt": "1+1=", "answer": "2"}], "row 0 .*'prompt'.*mean 'promt'"),
        ([*ROWS, {"prompt": "3+3="}], "row 2 .*'answer'"),
        ([{"question": "1+1=", "answer": "2"}], "row 0 .* for the prompt; .*'question'"),
        ([*ROWS, THIRD | {"prompt": "  "}], "row 2: the prompt"),
        ([*ROWS, THIRD | {"prompt": None}], "row 2: the prompt"),
        ([*ROWS, THIRD | {"answer": None}], "row 2: the answer"),
        ([*ROWS, THIRD | {"answer": float("nan")}], "row 2: the answer"),
        ([*ROWS, THIRD | {"answer": True}], "row 2: the answer"),
        ([*ROWS, THIRD | {"answer": ""}], "row 2: the answer"),
        ([*ROWS, THIRD | {"answer": "1\ud83d"}], "row 2: the answer .* surrogates"),
        ([*ROWS, ROWS[0]], "rows 0, 2; .*repeated="),
        ([*ROWS, {"prompt": "1+1=", "answer": "3"}], "rows 0, 2 .*'2', '3'"),
        ([*ROWS, THIRD | {"answer": "}{"}], "Math cannot use 1 of the 3 .*'3\\+3='"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_named(rows, named):
    with pytest.raises(ValueError, match=named):
        from_rows(rows)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"template": "no place"}, "template"),
        ({"repeated": "keep"}, "repeated"),
        ({"level": "answer", "answer": "prompt"}, "row 0: the answer"),
        ({"verifier": Choice()}, "Choice cannot use 2 of the 2"),
    ],
    ids=str,
)
def test_bad_options_of_rows(options, named):
    rows = [
        {"prompt": "1+1=", "answer": "often"},
        {"prompt": "2+2=", "answer": "2.5"},
    ]
    with pytest.raises(ValueError, match=named):
        from_rows(rows, **options)


def test_json_lines_in_a_file_of_json_are_told_where_they_belong(tmp_path):
    path = tmp_path / "train.json"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    with pytest.raises(ValueError, match=r"train.json.*belong in a \.jsonl file \(Extra data"):
        from_file(path)


def test_repeated_problems_are_dropped_on_request():
    assert len(from_rows([*ROWS, ROWS[0]], repeated="drop")) == 2


def test_the_verifier_of_the_lab_decides_which_answers_are_usable():
    class Always:
        def score(self, responses, answers):
            return Scores.of(["wrong"] * len(answers))

    letters = from_rows([{"prompt": "A or B?", "answer": "A"}], verifier=Choice())
    assert letters.checked_for == "Choice"
    assert from_rows(ROWS).checked_for == "Math"
    assert len(from_rows(ROWS, verifier=Always())) == 2


def test_a_check_that_has_not_ended_is_no_fault_of_the_answer(monkeypatch):
    """It used to be refused as an answer that Math cannot use, with the advice to change it."""
    late = Scores.of(["ok", "timeout"])
    monkeypatch.setattr(wb.verifiers.Math, "judge", lambda self, responses, answers: late)
    with pytest.raises(ValueError, match=r"row 1: .*longer than the .* deadline.*deadline=60"):
        from_rows(ROWS)


def test_a_verifier_of_ones_own_that_fails_on_an_answer_is_named():
    class Keyed(wb.verifiers.Verifier):
        def judge(self, responses, answers):
            return Scores.of([{"2": "ok"}[answer] for answer in answers])

    class Plain:
        def score(self, responses, answers):
            return [1.0] * len(answers)

    with pytest.raises(ValueError, match=r"row 1: .*Keyed.score raised KeyError \('4'\)"):
        from_rows(ROWS, verifier=Keyed())
    with pytest.raises(ValueError, match=r"Plain.score returned \[1.0\]; Scores"):
        from_rows(ROWS, verifier=Plain())
    with pytest.raises(ValueError, match=r"own-verifier\.md"):
        from_rows(ROWS, verifier=lambda responses, answers: [True] * len(answers))


LETTERS = [{"prompt": f"{n}: A or B?", "answer": letter} for n, letter in enumerate("ABBA")]
TESTS = json.dumps({"asserts": "assert double(3) == 6"})


@pytest.mark.parametrize(
    ("rows", "verifier", "named"),
    [
        (LETTERS, None, "row 0: Math cannot use 4 of the 4 .*Choice"),
        (
            [*LETTERS, THIRD | {"answer": "hello world"}],
            None,
            "row 0: Math cannot use 5 of .*Choice",
        ),
        (
            [*ROWS, THIRD | {"answer": "hello world"}],
            None,
            "row 2: Math cannot use 1 .*own-verifier",
        ),
        ([THIRD | {"answer": "Paris"}], None, "row 0: Math"),
        ([*ROWS, THIRD | {"answer": TESTS}], None, "row 2: Math"),
        ([THIRD | {"answer": TESTS}], None, "row 0: Math .*verifiers.Code"),
        (ROWS, Choice(), "row 0: Choice cannot use 2 of the 2 .*verifiers.Math"),
        (
            [*LETTERS, THIRD | {"answer": "E"}],
            Choice(),
            "row 4: Choice cannot use 1 of the 5.*letters=",
        ),
        (ROWS, wb.verifiers.Choice, "verifier=Choice"),
        (ROWS, "Math", "verifier='Math'"),
    ],
    ids=str,
)
def test_a_verifier_that_does_not_fit_the_answers_is_refused(rows, verifier, named):
    with pytest.raises(ValueError, match=named):
        from_rows(rows, verifier=verifier)


def test_a_lab_refuses_the_wrong_verifier_before_a_model_is_loaded():
    """The pool was made problem by problem, so nobody has looked at its answers."""
    for problems, verifier, fitting in [
        ([Problem(row["prompt"], row["prompt"], row["answer"]) for row in LETTERS], None, "Choice"),
        ([Problem("a", "Double.", TESTS)], None, "Code"),
    ]:
        lab = wb.labs.transformers(MODEL, Pool(problems), verifier=verifier, device="cpu")
        with pytest.raises(ValueError, match=f"problems: Math cannot .*verifiers.{fitting}"):
            wb.Run(lab, wb.methods.grpo(2), problems_per_round=1)


@pytest.mark.slow
def test_a_letter_among_numbers_is_mathematics():
    assert len(from_rows([*ROWS, THIRD | {"answer": "A"}])) == 3


def test_choice_says_how_it_takes_a_fifth_letter():
    with pytest.raises(ValueError, match="letters="):
        Choice().score(["E"], ["E"])


@pytest.mark.slow
def test_a_whole_number_may_have_any_size():
    assert from_rows([{"prompt": "10^400=", "answer": 10**400}])[0].answer == "1" + 400 * "0"


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_every_kind_of_file_gives_the_same_problems(suffix, tmp_path):
    rows = [{"prompt": "1+1=", "answer": "2"}, {"prompt": 'say "2",\n2+2=', "answer": "4"}]
    path = tmp_path / f"data{suffix}"
    if suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    elif suffix == ".json":
        path.write_text(json.dumps(rows))
    elif suffix == ".csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    else:
        pd.DataFrame(rows).to_parquet(path)
    pool = from_file(path)
    assert list(pool) == list(from_rows(rows))
    assert list(config.pool(json.loads(json.dumps(pool.config)))) == list(pool)


def test_a_data_frame_has_the_same_problems():
    assert list(from_rows(pd.DataFrame(ROWS))) == list(from_rows(ROWS))


def test_a_data_frame_with_two_columns_of_one_name_is_refused():
    frame = pd.DataFrame([["1+1=", "2", "3"]], columns=["prompt", "answer", "answer"])
    with pytest.raises(ValueError, match="several columns 'answer'"):
        from_rows(frame)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_numbers_of_few_bits_are_taken_as_they_are_written(kind, tmp_path):
    written = [0.1, 12.34, 1e-4, 2047.0]
    frame = pd.DataFrame({"prompt": [*"abcd"], "answer": written, 0: written})
    frame = frame.astype({"answer": kind, 0: kind})
    frame[["prompt", "answer"]].to_parquet(tmp_path / "data.parquet")
    data = pytest.importorskip("datasets").Dataset.from_pandas(frame[["prompt", "answer"]])
    given = [frame, data, data.with_format("torch")]
    for pool in (*map(from_rows, given), from_file(tmp_path / "data.parquet")):
        assert [each.answer for each in pool] == ["0.1", "12.34", "0.0001", "2047.0"]


def test_a_column_of_few_bits_may_have_gaps_and_large_whole_numbers(tmp_path):
    numbers = pa.array([np.float16(8208), None, np.float16(np.nan)], pa.float16())
    pq.write_table(pa.table({"answer": numbers}), tmp_path / "data.parquet")
    whole, missing, nan = (row["answer"] for row in _of_parquet(tmp_path / "data.parquet"))
    assert whole == 8208 and missing is None and np.isnan(nan)


@pytest.mark.slow
def test_a_decimal_is_a_number():
    assert from_rows([{"prompt": "a=", "answer": Decimal("1.10")}])[0].answer == "1.10"


@pytest.mark.parametrize("level", [10**30, 1e20])
def test_a_level_that_no_column_has_room_for_is_refused(level):
    with pytest.raises(ValueError, match=r"row 0: the hard is .* 18 digits"):
        from_rows([{"prompt": "1+1", "answer": "2", "hard": level}], level="hard")


@pytest.mark.slow
def test_numbers_in_a_csv_file_stay_as_they_are_written(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("prompt,answer\na=,007\nb=,1e3\n")
    assert [each.answer for each in from_file(path)] == ["007", "1e3"]


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("0.1234567890123456789", "0.1234567890123456789"),
        ("3.14159265358979323846", "3.14159265358979323846"),
        ("-2.00000000000000000001", "-2.00000000000000000001"),
        ("1e400", "1e400"),
        ("12345678901234567890123", "12345678901234567890123"),
        ("0.1", "0.1"),
        ("2.50", "2.5"),
    ],
)
@pytest.mark.long
def test_no_number_of_json_loses_digits(suffix, written, read, tmp_path):
    """A number that a float holds is written as Python writes it, as before."""
    row = f'{{"prompt": "x=", "answer": {written}}}'
    path = tmp_path / f"data{suffix}"
    path.write_text(row if suffix == ".jsonl" else f"[{row}]")
    assert from_file(path)[0].answer == read


def test_no_number_is_within_an_infinite_tolerance():
    names = {}
    exec(COMPARISON, names)
    names["assertion"](float("inf"), float("inf"), 0)
    names["assertion"]([0.1 + 0.2], [0.3], 0)
    for value, expected in [(3.0, float("inf")), (float("-inf"), float("inf")), (0.31, 0.3)]:
        with pytest.raises(AssertionError):
            names["assertion"](value, expected, 0)


def test_a_field_of_a_csv_file_may_be_long(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text(f"prompt,answer\n{'a' * 200_000},2\n")
    assert len(from_file(path)[0].prompt) == 200_000


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("bad.jsonl", '{"prompt": "1+1=", "answer": "2"}\n\n{"prompt"', "line 3"),
        ("bad.json", "[", "bad.json"),
        ("bad.json", '{"prompt": "1+1=", "answer": "2"}', "bad.json"),
        ("bad.txt", "1+1=2", "path=.*bad.txt"),
        ("bad.csv", "prompt;answer\n1+1=;2\n", "row 0 has no column 'prompt'"),
        ("bad.csv", "prompt,answer\n1+1=\xa0?,2\n", r"path=.*bad\.csv.*utf-8"),
        ("bad.csv", "prompt,answer\nwhich, B or C,A\n", "bad.csv.*row 0 has more fields"),
        ("bad.csv", 'prompt,answer\n1+1=,"2\n2+2=,4\n', "bad.csv.*end of data"),
        ("bad.csv", "prompt,answer,answer\n1+1=,2,3\n", "several columns 'answer'"),
        ("bad.csv", "", r"bad\.csv.*at least one row"),
        ("bad.json", "[" * 100_000, "bad.json"),
        ("bad.parquet", "PAR1", r"path=.*bad\.parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, named):
    (tmp_path / name).write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=named):
        from_file(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv"):
        from_file(tmp_path / "nowhere.csv")


def test_answers_are_not_read_twice(monkeypatch):
    """`from_rows` has checked them, which takes minutes for thousands of formulas."""
    lab = wb.labs.transformers(MODEL, from_rows(ROWS), device="cpu")
    monkeypatch.setattr(wb.verifiers.Math, "score", lambda *_: pytest.fail("read again"))
    wb.Run(lab, wb.methods.grpo(2), problems_per_round=2)


def test_a_pool_can_be_made_problem_by_problem():
    pool = Pool([Problem(id="sum-1", prompt="1+1=", answer="2")])
    assert pool.config == {}
    assert pool.checked_for is None
    with pytest.raises(ValueError, match="id=''"):
        Problem("", "1+1=", "2")
    for level in (1.5, "hard", None, -1, 2**63):
        with pytest.raises(ValueError, match=r"level=.* whole number"):
            Problem("sum-1", "1+1=", "2", level)
    of_numpy = Problem("sum-1", "1+1=", "2", np.int64(3))
    assert Pool([of_numpy]).digest == Pool([replace(of_numpy, level=3)]).digest


def test_the_digest_depends_on_every_field_and_on_the_order():
    problems = [Problem("a", "1+1=", "2"), Problem("b", "2+2=", "4")]
    digest = Pool(problems).digest
    assert Pool(problems).digest == digest
    others = [
        problems[::-1],
        problems[:1],
        [problems[0], Problem("b", "2+2=", "5")],
        [problems[0], Problem("b", "2+2=", "4", 1)],
    ]
    assert all(Pool(other).digest != digest for other in others)


@pytest.mark.slow
def test_a_run_does_not_go_on_with_other_problems(tmp_path):
    lab = small_lab(held_out=0)
    mine = from_rows([{"prompt": f"{n}+1=", "answer": n + 1} for n in range(8)])
    method = wb.methods.grpo(2)
    run = wb.Run(
        replace(lab, problems=mine), method, out=tmp_path, problems_per_round=4, evaluate_every=0
    )
    go(run, 1)

    with pytest.raises(ValueError, match=r"made by code of the caller's own.*lab="):
        wb.Run.resume(tmp_path)
    other = from_rows([{"prompt": f"{n}+2=", "answer": n + 2} for n in range(8)])
    with pytest.raises(ValueError, match=r"another run .*data\.problems"):
        wb.Run.resume(tmp_path, lab=replace(lab, problems=other))

    resumed = wb.Run.resume(tmp_path, lab=replace(lab, problems=mine))
    assert len(go(resumed, 2)) == 1


def sums(step, start=0):
    """A stream of one's own: n + step for all n."""

    def make(rng):
        n = start + int(rng.integers(1000))
        return Problem(f"{n}+{step}", f"{n}+{step}=", str(n + step))

    return Stream(make)


def test_the_digest_of_a_stream_is_of_the_problems_that_it_draws():
    assert sums(1).digest == sums(1).digest
    assert len({sums(1).digest, sums(2).digest, sums(1, start=1).digest}) == 3
    # A draw that does not count, and problems that come again, have their place in every stream.
    assert Stream(lambda rng: Problem("a", "1+1=", "2") if rng.random() < 0.1 else None).digest


def test_what_a_lab_can_make_again_and_no_problems_at_all_have_no_digest():
    lab = small_lab(pool=None, held_out=0)
    assert lab.digests() == {"problems": None, "held_out": None}
    # With another verifier the manifest no longer says how to make the lab, nor its stream.
    changed = replace(lab, verifier=Choice())
    assert changed.digests() == {"problems": lab.problems.digest, "held_out": None}


def test_a_run_does_not_go_on_with_another_stream(tmp_path):
    lab = replace(small_lab(held_out=0), problems=sums(1))
    method = wb.methods.grpo(2)
    go(wb.Run(lab, method, out=tmp_path, problems_per_round=4), 1)
    with pytest.raises(ValueError, match=r"another run .*data\.problems"):
        wb.Run.resume(tmp_path, lab=replace(lab, problems=sums(2)))
    assert len(go(wb.Run.resume(tmp_path, lab=replace(lab, problems=sums(1))), 2)) == 1
