"""Problems of your own: rows and files become a pool, and unusable ones are named up front."""

import json
from dataclasses import replace

import pandas as pd
import pytest
from conftest import go, small_lab

import workbench as wb
from workbench.labs import shipped
from workbench.problems import Pool, Problem, Stream, from_config, from_file, from_rows
from workbench.verifiers import Choice, Scores

ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": 4}]


def test_rows_become_problems_in_their_order():
    pool = from_rows(ROWS)
    assert [(each.prompt, each.answer, each.level) for each in pool] == [
        ("1+1=", "2", 0),
        ("2+2=", "4", 0),
    ]


def test_columns_levels_and_a_template_are_taken():
    rows = [{"question": "1+1", "gold": 2, "hard": "3"}]
    (problem,) = from_rows(
        rows, prompt="question", answer="gold", level="hard", template="Q: {prompt}="
    )
    assert (problem.prompt, problem.answer, problem.level) == ("Q: 1+1=", "2", 3)


def test_ids_depend_on_the_prompt_alone():
    forward = {each.prompt: each.id for each in from_rows(ROWS)}
    backward = {each.prompt: each.id for each in from_rows(ROWS[::-1])}
    assert forward == backward
    assert len(set(forward.values())) == 2


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "there are no rows"),
        ("1+1=", "a list of dicts is needed"),
        ({"prompt": "1+1=", "answer": "2"}, "a list of dicts is needed"),
        ([["1+1=", "2"]], "row 0 is"),
        ([{"promt": "1+1=", "answer": "2"}], "did you mean 'promt'"),
        ([*ROWS, {"prompt": "  ", "answer": "2"}], "the prompt of row 2"),
        ([*ROWS, {"prompt": "3+3=", "answer": None}], "the answer of row 2"),
        ([*ROWS, {"prompt": "3+3=", "answer": float("nan")}], "the answer of row 2"),
        ([*ROWS, {"prompt": "3+3=", "answer": ""}], "the answer of row 2"),
        ([*ROWS, ROWS[0]], "repeated='drop'"),
        ([*ROWS, {"prompt": "1+1=", "answer": "3"}], "different answers, '2', '3'"),
        ([*ROWS, {"prompt": "3+3=", "answer": "}{"}], "Math cannot use 1 of the 3 answers"),
    ],
)
def test_what_cannot_be_used_is_named(rows, words):
    with pytest.raises(ValueError, match="rows") as caught:
        from_rows(rows)
    assert words in str(caught.value)


def test_repeated_problems_are_dropped_on_request():
    assert len(from_rows([*ROWS, ROWS[0]], repeated="drop")) == 2


def test_a_level_that_is_no_whole_number_is_refused():
    with pytest.raises(ValueError, match="the hard of row 0 is 'often'"):
        from_rows([{"prompt": "1+1=", "answer": "2", "hard": "often"}], level="hard")


def test_the_verifier_of_the_lab_decides_which_answers_are_usable():
    rows = [{"prompt": "A or B?", "answer": "A"}]
    assert len(from_rows(rows, verifier=Choice())) == 1
    with pytest.raises(ValueError, match="Choice cannot use 2 of the 2 answers"):
        from_rows(ROWS, verifier=Choice())


def test_a_verifier_of_ones_own_need_only_take_the_answers():
    class Always:
        def score(self, responses, answers):
            return Scores.of(["wrong"] * len(answers))

    assert len(from_rows(ROWS, verifier=Always())) == 2


def test_a_prompt_that_the_tokenizer_cannot_express_is_refused():
    tokenizer = shipped("models/early-small")
    assert len(from_rows(ROWS, tokenizer=tokenizer)) == 2
    with pytest.raises(ValueError, match="cannot express 'Ω'"):
        from_rows([{"prompt": "1+Ω=", "answer": "2"}], tokenizer=tokenizer)


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
    assert list(from_file(path)) == list(from_rows(rows))


def test_numbers_in_a_csv_file_stay_as_they_are_written(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("prompt,answer\na=,007\nb=,1e3\n")
    assert [each.answer for each in from_file(path)] == ["007", "1e3"]


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"ending in \.jsonl"):
        from_file(tmp_path / "data.txt")
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        from_file(tmp_path / "data.jsonl")
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\nnothing\n')
    with pytest.raises(ValueError, match="line 2 is no JSON"):
        from_file(tmp_path / "data.jsonl")


def test_a_file_can_be_read_again_from_a_manifest(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    pool = from_file(path)
    again = from_config(json.loads(json.dumps(pool.config)))
    assert list(again) == list(pool)
    with pytest.raises(ValueError, match="tokenizer"):
        from_config({**pool.config, "tokenizer": "somewhere"})


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


def test_a_record_from_before_streams_had_digests_goes_on(tmp_path, monkeypatch):
    lab = replace(small_lab(held_out=0), problems=sums(1))
    with monkeypatch.context() as earlier:
        earlier.setattr(Stream, "digest", None)
        go(wb.Run(lab, wb.methods.grpo(2), out=tmp_path, problems_per_round=4), 1)
    assert wb.load(tmp_path).manifest["data"]["problems"] is None
    assert len(go(wb.Run.resume(tmp_path, lab=lab), 2)) == 1
