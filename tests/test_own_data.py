"""Problems of one's own: from rows and from files, checked before anything is trained on them."""

import csv
import json

import pandas as pd
import pytest
from conftest import go

import workbench as wb
from workbench.labs import shipped
from workbench.problems import Problem, from_config, from_file, from_rows

SUMS = [{"prompt": f"{number}+1=", "answer": number + 1} for number in range(1, 5)]
MODEL = shipped("models/early-small")


def test_rows_become_problems_in_their_order():
    pool = from_rows(SUMS)
    assert [(each.prompt, each.answer, each.level) for each in pool] == [
        ("1+1=", "2", 0),
        ("2+1=", "3", 0),
        ("3+1=", "4", 0),
        ("4+1=", "5", 0),
    ]


def test_columns_levels_and_a_template_are_arguments():
    rows = [{"q": "What is 1+1?", "gold": " 2 ", "difficulty": 3}]
    (problem,) = from_rows(
        rows, prompt="q", answer="gold", level="difficulty", template="Q: {prompt}\nA:"
    )
    assert (problem.prompt, problem.answer, problem.level) == ("Q: What is 1+1?\nA:", "2", 3)


def test_ids_are_those_of_the_content():
    """So that what a method remembers of a problem outlives new rows and another order."""
    backwards = {each.prompt: each.id for each in from_rows(SUMS[::-1])}
    assert backwards == {each.prompt: each.id for each in from_rows(SUMS)}
    assert len(set(backwards.values())) == 4


def test_every_kind_of_file_gives_the_same_pool(tmp_path):
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, SUMS)) + "\n\n")
    (tmp_path / "sums.json").write_text(json.dumps(SUMS))
    pd.DataFrame(SUMS).to_parquet(tmp_path / "sums.parquet")
    with open(tmp_path / "sums.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["prompt", "answer"])
        writer.writeheader()
        writer.writerows(SUMS)
    expected = from_rows(SUMS)
    for kind in ("jsonl", "json", "parquet", "csv"):
        pool = from_file(tmp_path / f"sums.{kind}")
        assert pool.problems == expected.problems
        assert pool.digest == expected.digest
        assert from_config(pool.config).problems == expected.problems


def test_what_stands_in_a_csv_file_stays_text(tmp_path):
    (tmp_path / "odd.csv").write_text('prompt,answer\nAgent number?,007\n"a, b",1e3\n')
    assert [each.answer for each in from_file(tmp_path / "odd.csv")] == ["007", "1e3"]


GOOD = {"prompt": "1+1=", "answer": "2"}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "rows: there are no rows"),
        (GOOD, r"a list of dicts is needed, such as \[\{'prompt'"),
        ("1+1=", "a list of dicts is needed"),
        ([GOOD, ["1+1=", "2"]], r"row 1 is \['1\+1=', '2'\]; a dict is needed"),
        ([GOOD, {"promt": "1+1=", "answer": "2"}], "row 1 has no column 'prompt'.*mean 'promt'"),
        ([GOOD, {"prompt": "1+2="}], "row 1 has no column 'answer'; there are prompt"),
        ([{"prompt": " ", "answer": "2"}], "the prompt of row 0 is ' '; a text that is not"),
        ([{"prompt": None, "answer": "2"}], "the prompt of row 0 is None"),
        ([{"prompt": "1+1=", "answer": None}], "the answer of row 0 is None"),
        ([{"prompt": "1+1=", "answer": float("nan")}], "the answer of row 0 is nan"),
        ([{"prompt": "1+1=", "answer": True}], "the answer of row 0 is True"),
        ([{"prompt": "1+1=", "answer": ""}], "the answer of row 0 is ''"),
        ([GOOD, GOOD], "1 problems occur more than once, the first in rows 0, 1; .*'drop'"),
        ([GOOD, {"prompt": "1+1=", "answer": "3"}], "rows 0, 1 ask the same.*'2', '3'"),
        (
            [GOOD, {"prompt": "2+2=", "answer": "four, of course?"}],
            r"Math cannot use 1 of the 2 answers, the first is 'four, of course\?' to '2\+2='",
        ),
    ],
)
def test_rows_that_cannot_be_used_are_named(rows, words):
    with pytest.raises(ValueError, match=words):
        from_rows(rows)


def test_repeated_problems_can_be_dropped():
    assert len(from_rows([GOOD, GOOD, SUMS[1]], repeated="drop")) == 2


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("bad.jsonl", '{"prompt": "1+1=", "answer": "2"}\n{"prompt"', "line 2 is no JSON"),
        ("bad.json", "[", "it is no JSON"),
        ("bad.json", '{"prompt": "1+1=", "answer": "2"}', r"JSON lines belong in a \.jsonl file"),
        ("bad.txt", "1+1=2", r"a file ending in \.jsonl, \.json, \.csv, \.parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=f"{name}.*{words}"):
        from_file(tmp_path / name)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.csv.*there is no such file"):
        from_file(tmp_path / "nowhere.csv")


def test_the_verifier_of_the_lab_can_be_another():
    letters = [{"prompt": "A or B?", "answer": "B"}]
    assert from_rows(letters, verifier=wb.verifiers.Choice()).checked_for == "Choice"
    with pytest.raises(ValueError, match="Choice cannot use 1 of the 1 answers"):
        from_rows([{"prompt": "A or B?", "answer": "17"}], verifier=wb.verifiers.Choice())


def test_prompts_that_the_tokenizer_cannot_express_are_named():
    assert len(from_rows(SUMS, tokenizer=MODEL)) == 4
    with pytest.raises(ValueError, match="the tokenizer cannot express 'W' in 'Wie viel"):
        from_rows([{"prompt": "Wie viel?", "answer": "2"}], tokenizer=MODEL)
    with pytest.raises(FileNotFoundError, match=r"tokenizer='\./nope': there is no such directory"):
        from_rows(SUMS, tokenizer="./nope")


def test_answers_are_not_read_twice(monkeypatch):
    """`from_rows` has checked them, which takes minutes for thousands of formulas."""
    lab = wb.labs.transformers(MODEL, from_rows(SUMS), device="cpu")
    monkeypatch.setattr(wb.verifiers.Math, "score", lambda *_: pytest.fail("read again"))
    wb.Run(lab, wb.methods.grpo(2), problems_per_round=2)


def test_a_run_does_not_go_on_with_other_data(tmp_path):
    def run(rows):
        lab = wb.labs.transformers(
            MODEL,
            from_rows(rows),
            verifier=wb.verifiers.Math(boxed=True),
            sampling=wb.policies.Sampling(max_new_tokens=8),
            device="cpu",
        )
        return wb.Run(lab, wb.methods.grpo(2), problems_per_round=2, out=tmp_path)

    go(run(SUMS), 1)
    changed = [*SUMS[:3], {"prompt": "4+1=", "answer": 6}]
    with pytest.raises(ValueError, match=r"data\.problems"):
        run(changed)
    assert len(go(run(SUMS), 2)) == 1


def test_a_pool_can_be_made_problem_by_problem():
    pool = wb.problems.Pool([Problem(id="sum-1", prompt="1+1=", answer="2")])
    assert pool.config == {}
    assert pool.checked_for is None
