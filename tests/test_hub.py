"""Data sets of the hub: every schema read by the real loader, gold answers against themselves, and
what is refused.

The samples in tests/data/hub have the columns of the data sets and problems of our own.
"""

import functools
import json
import os
import re
import shutil
from pathlib import Path

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors
from hypothesis import given
from hypothesis import strategies as st

datasets = pytest.importorskip(
    "datasets", reason="datasets is not installed (pip install datasets)"
)

from workbench import problems as wb_problems  # noqa: E402
from workbench.datasets import hub  # noqa: E402
from workbench.datasets.readers import MOST_TESTS, boxed_answer  # noqa: E402
from workbench.verifiers import Choice, Code, Math  # noqa: E402

pytestmark = pytest.mark.slow

SAMPLES = Path(__file__).parent / "data" / "hub"
SPLIT = {name: next(iter(entry.splits)) for name, entry in hub.DATA_SETS.items()}
SPLIT["code-contests"] = "test"
# Problems of a sample; 20 of the others. In that of dapo-math-17k rows are repeated.
SIZES = {
    "dapo-math-17k": 16,
    "mbpp": 8,
    "mbpp+": 8,
    "humaneval": 9,
    "humaneval+": 9,
    "apps": 10,
    "taco": 10,
    "code-contests": 6,
}
OF_CODE = [name for name, entry in hub.DATA_SETS.items() if entry.verifier == "Code"]
OF_TEXT = [name for name in hub.DATA_SETS if name not in OF_CODE]


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    """Caches of the hub and of datasets in the test's directory, no progress bars, no network."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    yield tmp_path
    datasets.enable_progress_bars()


@pytest.fixture(scope="module")
def math():
    with Math(deadline=20) as verifier:
        yield verifier


@functools.cache
def sample(name, **options):
    return wb_problems.hub(name, SPLIT[name], **{"path": SAMPLES / f"{name}.jsonl", **options})


def written(folder, rows, name="own.jsonl"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# Every data set


def test_there_is_a_sample_of_every_data_set():
    assert {path.stem for path in SAMPLES.iterdir()} == set(hub.DATA_SETS)
    assert {
        "gsm8k",
        "math",
        "math-500",
        "dapo-math-17k",
        "aime24",
        "aime25",
        "amc23",
        "minerva",
        "olympiadbench",
        "gpqa",
    } <= set(hub.DATA_SETS)


@pytest.mark.parametrize("name", OF_TEXT)
@pytest.mark.long
def test_gold_answers_score_one_and_others_zero(name, math):
    pool = sample(name)
    assert len(pool) == SIZES.get(name, 20)
    verifier = Choice() if name == "gpqa" else math
    golds = [problem.answer for problem in pool]
    right = verifier.score([f"We get \\boxed{{{gold}}}." for gold in golds], golds)
    assert right.status.tolist() == ["ok"] * len(pool)
    others = ["ABCD"["BCDA".index(gold)] if name == "gpqa" else "987654321" for gold in golds]
    wrong = verifier.score([f"We get \\boxed{{{other}}}." for other in others], golds)
    assert wrong.reward.sum() == 0 and set(wrong.status) == {"wrong"}


@pytest.mark.parametrize("name", hub.DATA_SETS)
def test_prompts_are_the_question_and_the_instruction(name):
    bare, full = sample(name, template="{prompt}"), sample(name)
    instruction = hub.INSTRUCTIONS[hub.DATA_SETS[name].verifier]
    assert [p.prompt for p in full] == [instruction.replace("{prompt}", p.prompt) for p in bare]
    asked_for = "```" if name in OF_CODE else "\\boxed{}"
    assert all(asked_for in p.prompt for p in full)
    assert not any("####" in p.prompt or "Remember to put" in p.prompt for p in full)
    assert [p.id for p in full] == [p.id for p in bare], "the template is no part of the id"


@pytest.mark.parametrize("name", hub.DATA_SETS)
def test_revisions_are_commits(name):
    entry = hub.DATA_SETS[name]
    assert re.fullmatch("[0-9a-f]{40}", entry.revision) and entry.repository.count("/") == 1


def test_pools_train(math):
    pool = sample("gsm8k")
    drawn, cursor = pool.draw(8, 0, seed=1)
    assert len({p.id for p in drawn}) == 8 and cursor == 8
    assert (
        pool.config["family"] == "hub"
        and pool.config["name"] == "gsm8k"
        and json.dumps(pool.config)
    )


# Code: real programs in the sandbox, with bubblewrap where it can run


@pytest.fixture(scope="module")
def code():
    try:
        verifier = Code(workers=3, deadline=20)
    except OSError:
        verifier = Code(sandbox="none", workers=3, deadline=20)
    with verifier:
        yield verifier


def fenced(program):
    return f"First I think.\n```python\n{program}\n```"


@pytest.mark.parametrize("name", OF_CODE)
@pytest.mark.long
def test_reference_programs_pass_their_tests_and_are_in_no_prompt(name, code):
    pool = sample(name, verifier=code)
    assert len(pool) == SIZES[name], "a reference program that fails is left out, with a warning"
    rows = [json.loads(line) for line in (SAMPLES / f"{name}.jsonl").read_text().splitlines()]
    solutions = [row.get("code") or row.get("canonical_solution") for row in rows]
    for problem, solution in zip(pool, solutions):
        assert solution is None or solution.strip() not in problem.prompt


DISHONEST = {
    "does nothing": "pass",
    "prints": "print(1)\nprint('ok')",
    "exits": "import os\nos._exit(0)",
    "returns what equals everything": (
        "class E:\n    def __eq__(s, o): return True\ndef NAME(*a): return E()"
    ),
    "ends the tests' iteration": "def NAME(*a): raise StopIteration",
    "returns its input": "def NAME(*a): return a[0]",
    "replaces the comparison": (
        "def assertion(*a): pass\ndef check(*a): pass\ndef NAME(*a): return 0"
    ),
}


@pytest.mark.parametrize("name", OF_CODE)
@pytest.mark.long
def test_dishonest_programs_pass_no_tests(name, code):
    # Every third problem: each form of tests is among them.
    pool = sample(name).problems[::3]
    functions = [re.search(r"(?:def|assert(?: not)?) (\w+)\(", p.prompt) for p in pool]
    pairs = [
        (fenced(text.replace("NAME", function[1] if function else "main")), problem.answer)
        for problem, function in zip(pool, functions)
        for text in DISHONEST.values()
    ]
    scores = code.score(*zip(*pairs))
    assert scores.reward.sum() == 0
    assert set(scores.status) <= {"wrong", "crash"}


def test_more_tests_than_are_shown_decide_mbpp_plus(code):
    problem = sample("mbpp+")[0]
    shown = problem.prompt.partition("such as:\n")[2].splitlines()[0]
    assert shown == "assert count_vowels('Orange') == 3"
    memorised = fenced("def count_vowels(text): return 3")
    assert code.score([memorised], [problem.answer]).reward[0] == 0


@pytest.mark.parametrize("name", ["humaneval", "humaneval+"])
def test_helpers_of_the_prompt_are_the_tests_own(name, code):
    """Otherwise a decoder and an encoder that do nothing would pass."""
    problem = sample(name)[-1]
    lazy = fenced("def encoded(text): return text\ndef decoded(text): return text")
    assert code.score([lazy], [problem.answer]).status.tolist() == ["wrong"]


def test_floats_of_evalplus_are_met_nearly_and_other_values_exactly(code):
    problem = next(p for p in sample("mbpp+") if "average_of" in p.prompt)
    body = "def average_of(x): return sum(x) / len(x) {} if x else 0.0"
    programs = [fenced(body.format(error)) for error in ("+ 1e-8", "+ 1e-4")]
    assert code.score(programs, [problem.answer] * 2).status.tolist() == ["ok", "wrong"]


def test_tests_that_need_numpy_elsewhere_are_left_out(caches):
    rows = [json.loads(line) for line in (SAMPLES / "mbpp+.jsonl").read_text().splitlines()]
    rows[0]["test"] += "\nassert np.array([1]).sum() == 1"
    rows[1]["test"] = "assert ("
    with pytest.warns(UserWarning, match="2 without question or answer"):
        pool = wb_problems.hub("mbpp+", "test", path=written(caches, rows))
    assert len(pool) == 6
    assert not any("np." in p.answer or "numpy" in p.answer for p in pool)


def test_a_reference_program_that_fails_leaves_its_row_out(caches, code):
    rows = [json.loads(line) for line in (SAMPLES / "mbpp.jsonl").read_text().splitlines()]
    rows[0]["code"] = "def count_vowels(text): return 0"
    del rows[1]["code"]
    with pytest.warns(UserWarning, match="1 gold answer not verified"):
        pool = wb_problems.hub("mbpp", path=written(caches, rows), verifier=code)
    assert len(pool) == 7


@pytest.mark.parametrize("tests, status", [("== 6", "ok"), ("== 7", "wrong")])
def test_a_function_may_be_called_like_one_of_pythons_own(caches, code, tests, status):
    """Task 126 of MBPP asks for the sum of the common divisors of two numbers."""
    [row, *_] = [json.loads(line) for line in (SAMPLES / "mbpp.jsonl").read_text().splitlines()]
    program = "def sum(a, b):\n    total = 0\n    for d in range(1, a + 1):\n        "
    program += "total += d if a % d == b % d == 0 else 0\n    return total"
    row |= {"code": program, "test_list": [f"assert sum(10, 15) {tests}"]}
    [problem] = wb_problems.hub("mbpp", path=written(caches, [row]))
    assert code.score([fenced(program)], [problem.answer]).status.tolist() == [status]


def test_levels_of_code():
    assert [p.level for p in sample("apps")] == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1]
    assert [p.level for p in sample("taco")] == [1, 2, 3, 4, 5, 0, 1, 2, 3, 4]
    assert {p.level for p in sample("apps", levels=(3,))} == {3}


def test_many_tests_are_cut_to_the_first(caches):
    rows = [json.loads(line) for line in (SAMPLES / "code-contests.jsonl").read_text().splitlines()]
    rows[0]["generated_tests"] = {"input": ["1 1\n"] * 50, "output": ["2\n"] * 50}
    path = written(caches, rows)
    form = json.loads(wb_problems.hub("code-contests", "test", path=path)[0].answer)
    assert len(form["input"]) == len(form["output"]) == MOST_TESTS
    assert form["input"][:2] == ["1 2\n", "-5 5\n"], "public tests, then private ones"


def test_one_question_with_two_sets_of_tests_is_one_problem(caches):
    rows = [json.loads(line) for line in (SAMPLES / "apps.jsonl").read_text().splitlines()[:2]]
    again = {**rows[0], "input_output": json.dumps({"inputs": ["9 9\n"], "outputs": ["18\n"]})}
    assert len(wb_problems.hub("apps", path=written(caches, [*rows, again]))) == 2


# Answers


def answers(name, **options):
    return {p.prompt: p.answer for p in sample(name, template="{prompt}", **options)}


def test_answers_of_gsm8k_are_behind_the_hashes():
    found = list(answers("gsm8k").values())
    assert found[:2] == ["840", "3750"] and "-11" in found and "7.5" in found


def test_answers_of_math_are_the_last_box():
    found = answers("math")
    assert found[r"What is $\sin \frac{\pi}{3}$?"] == r"\frac{\sqrt{3}}{2}"
    assert (
        found["Two fair dice are rolled. What is the probability of a sum of $9$?"]
        == r"\dfrac{1}{9}"
    )
    assert found[r"Compute $\log_2 32$."] == "5", "\\boxed 5, without braces"
    assert list(found.values()) == list(answers("math-500").values())


@pytest.mark.parametrize(
    "text, held",
    [
        (r"\boxed{1} then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed 7", "7"),
        (r"\fbox{x}", "x"),
        (r"\boxed{\left\{\frac{1}{2}\right\}}", r"\left\{\frac{1}{2}\right\}"),
        (r"\boxed{open", None),
        (r"$\boxed \frac{1}{2}$.", r"\frac{1}{2}"),
        (r"\boxed {8}", "8"),
        ("none", None),
        (r"\boxed{}", ""),
        (r"$\boxed 5$.", "5"),
        (r"\boxed{a}\boxed{b{c{d}}}", "b{c{d}}"),
        (r"$\boxed{2}$ and $\boxed{5}$.", "2, 5"),
        (r"$\boxed{1}$, $\boxed{\frac{1}{2}}$, or $\boxed{-3}$", r"1, \frac{1}{2}, -3"),
        (r"$\boxed{1} \text{ or } \boxed{2}$", "1, 2"),
        (r"$\boxed{3}$, where $a=\frac{1}{2}$, so $\boxed{5}$", "5"),
        (r"$\boxed{3}$ and so $x$ and $\boxed{5}$", "5"),
        (r"$\boxed{25}\%$", r"25\%"),
        (r"\boxed{\boxed{4}}", "4"),
    ],
)
def test_last_box(text, held):
    assert boxed_answer(text) == held


BALANCED = st.recursive(
    st.text("ab1+ ", max_size=4), lambda t: t.map("{{{}}}".format) | st.tuples(t, t).map("".join)
)


@given(BALANCED)
def test_last_box_holds_any_balanced_text(content):
    assert boxed_answer(rf"first \boxed{{0}}, then $\boxed{{{content}}}$ and }} more") == content


def test_answers_of_competitions():
    assert list(answers("aime24").values())[:3] == ["030", "17", "125"]
    assert list(answers("amc23").values())[:3] == ["30", "17", "125"], "27.0 in the file is 27"


def test_answers_of_olympiadbench_join_the_list():
    found = answers("olympiadbench")
    assert found["Find all real solutions of $|x - 3| = 4$."] == "-1, 7"
    assert found["Find all real $x$ with $x^2 = 7x - 10$."] == "2, 5"
    assert any(
        question.startswith("All numbers are written in base ten.\nIn a group")
        for question in found
    )


def test_dapo_loses_its_prompt_and_its_repetitions():
    assert answers("dapo-math-17k").items() <= answers("dapo-math-17k-en").items()


def test_rows_with_two_answers_are_left_out(caches):
    row = {
        "prompt": [{"role": "user", "content": "What is $x$?"}],
        "reward_model": {"ground_truth": "1"},
    }
    other = {
        "prompt": [{"role": "user", "content": "What is $y$?"}],
        "reward_model": {"ground_truth": "3"},
    }
    path = written(caches, [row, {**row, "reward_model": {"ground_truth": "2"}}, other])
    with pytest.warns(UserWarning, match="dapo-math-17k: rows left out: 1 with several answers"):
        pool = wb_problems.hub("dapo-math-17k", path=path)
    assert [p.answer for p in pool] == ["3"] and pool.config["left_out"] == {
        "with several answers": 1
    }


def test_rows_without_an_answer_are_left_out(caches):
    rows = [
        {"question": "a", "answer": "no mark"},
        {"question": "b", "answer": "so\n#### 2"},
        {"question": None, "answer": "#### 1"},
    ]
    with pytest.warns(UserWarning, match="2 without question or answer"):
        assert len(wb_problems.hub("gsm8k", path=written(caches, rows))) == 1
    with (
        pytest.warns(UserWarning, match="1 without"),
        pytest.raises(ValueError, match="gsm8k train has 0 problems"),
    ):
        wb_problems.hub("gsm8k", path=written(caches, rows[:1], "none.jsonl"))


@pytest.mark.parametrize("name", hub.DATA_SETS)
def test_empty_rows_are_left_out(name, caches):
    rows = [json.loads(line) for line in (SAMPLES / f"{name}.jsonl").read_text().splitlines()]
    empty = dict.fromkeys(rows[0])
    with pytest.warns(UserWarning, match="1 without question or answer"):
        pool = wb_problems.hub(name, SPLIT[name], path=written(caches, [*rows, empty]))
    assert list(pool) == list(sample(name))


def test_answers_that_cannot_be_verified_can_be_left_out(caches, math):
    rows = [{"question": "a", "answer": r"p \land q"}, {"question": "b", "answer": r"\frac{1}{2}"}]
    path = written(caches, rows)
    with pytest.raises(ValueError, match="reads nothing"):
        math.score(["1"], [wb_problems.hub("minerva", "test", path=path)[0].answer])
    with pytest.warns(UserWarning, match="1 gold answer not verified"):
        assert [p.answer for p in wb_problems.hub("minerva", "test", path=path, verifier=math)] == [
            r"\frac{1}{2}"
        ]


# Multiple choice


def test_choices_are_shuffled_by_content_alone(caches):
    pool = sample("gpqa", template="{prompt}")
    assert {p.answer for p in pool} == set("ABCD")
    rows = [json.loads(line) for line in (SAMPLES / "gpqa.jsonl").read_text().splitlines()]
    right = {row["Question"]: row["Correct Answer"] for row in rows}
    for problem in pool:
        question, *choices = problem.prompt.split("\n")
        assert [c[:3] for c in choices] == ["(A)", "(B)", "(C)", "(D)"] and len(set(choices)) == 4
        assert choices["ABCD".index(problem.answer)] == f"({problem.answer}) {right[question]}"
    turned = wb_problems.hub(
        "gpqa", "test", path=written(caches, rows[::-1]), seed=5, template="{prompt}"
    )
    assert {p.id: p for p in turned} == {p.id: p for p in pool}


# Ids, subsets, levels


def test_ids_do_not_depend_on_positions(caches):
    rows = [json.loads(line) for line in (SAMPLES / "gsm8k.jsonl").read_text().splitlines()]
    again = wb_problems.hub("GSM8K", path=written(caches, rows[::-1]))
    assert {p.id: p for p in again} == {p.id: p for p in sample("gsm8k")}
    assert all(re.fullmatch("gsm8k/[0-9a-f]{16}", p.id) for p in again)


def test_subsets_depend_on_the_seed_alone(caches):
    rows = [json.loads(line) for line in (SAMPLES / "gsm8k.jsonl").read_text().splitlines()]
    five = {p.id for p in sample("gsm8k", n=5, seed=3)}
    assert len(five) == 5 and five == {
        p.id for p in wb_problems.hub("gsm8k", n=5, seed=3, path=written(caches, rows[::-1]))
    }
    assert any(five != {p.id for p in sample("gsm8k", n=5, seed=seed)} for seed in (4, 5))


def test_levels(caches):
    assert [p.level for p in sample("math")][:3] == [1, 1, 2] and sample("math")[-1].level == 0
    hard = sample("math", levels=(3, 4, 5))
    assert (
        {p.level for p in hard} == {3, 4, 5}
        and len(hard) == 11
        and hard.config["levels"] == [3, 4, 5]
    )


# Where the data comes from


@pytest.mark.parametrize("kind", ["json", "parquet", "csv"])
def test_files_of_other_kinds(kind, caches):
    table = datasets.load_dataset("json", data_files=str(SAMPLES / "gsm8k.jsonl"), split="train")
    path = caches / f"copy.{kind}"
    getattr(table, f"to_{kind}")(str(path))
    assert [p for p in wb_problems.hub("gsm8k", path=path)] == list(sample("gsm8k"))


def test_answers_of_a_csv_file_stay_as_they_stand_there(caches):
    """Guessing at numbers would round the first, shorten the second, and lose the third."""
    answers = ["123456789012345678", "007", "NA"]
    lines = ["problem,answer", *(f"question {i},{text}" for i, text in enumerate(answers)), "x,"]
    path = caches / "own.csv"
    path.write_text("\n".join(lines) + "\n")
    with pytest.warns(UserWarning, match="1 without question or answer"):
        pool = wb_problems.hub("aime25", "test", path=path)
    assert [problem.answer for problem in pool] == answers


def test_a_file_that_is_too_large_is_refused_before_it_is_opened(caches):
    path = caches / "train-0.jsonl"
    path.touch()
    os.truncate(path, 2**40)  # zeros, which take no place on the disk
    with pytest.raises(ValueError, match="larger than"):
        wb_problems.hub("gsm8k", path=path)


def copy_of_the_repository(folder):
    """A copy of openai/gsm8k: a card, two configurations, two splits."""
    card = ["---", "configs:"]
    for config in ("socratic", "main"):
        card += [f"- config_name: {config}", "  data_files:"]
        card += [f"  - split: {split}\n    path: {config}/{split}-*" for split in ("train", "test")]
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("\n".join([*card, "---", ""]))
    lines = (SAMPLES / "gsm8k.jsonl").read_text().splitlines(keepends=True)
    for config, start in (("socratic", 18), ("main", 0)):
        (folder / config).mkdir()
        (folder / config / "train-0.jsonl").write_text("".join(lines[start : start + 15]))
        (folder / config / "test-0.jsonl").write_text("".join(lines[15:]))


def test_a_directory_with_configurations_and_splits(caches):
    copy_of_the_repository(caches / "gsm8k")
    train, test = (
        wb_problems.hub("gsm8k", split, path=caches / "gsm8k") for split in ("train", "test")
    )
    assert (len(train), len(test)) == (15, 5) and not {p.id for p in train} & {p.id for p in test}


def test_a_directory_of_files_named_by_split(caches):
    shutil.copy(SAMPLES / "olympiadbench.jsonl", written(caches, [], "plain/test.jsonl"))
    assert len(wb_problems.hub("olympiadbench", "test", path=caches / "plain")) == 20
    with pytest.raises(ValueError, match=r"split='train': .*plain has test"):
        wb_problems.hub("gsm8k", "train", path=caches / "plain")


def test_offline_a_download_of_the_pinned_revision_is_found(caches):
    entry = hub.DATA_SETS["gsm8k"]
    copy_of_the_repository(
        caches / "hub" / "datasets--openai--gsm8k" / "snapshots" / entry.revision
    )
    pool = wb_problems.hub("gsm8k", "test")
    assert (
        len(pool) == 5
        and pool.config["revision"] == entry.revision
        and pool.config["repository"] == "openai/gsm8k"
    )
    with pytest.raises(ConnectionError, match=f"--revision {'0' * 40}`"):
        wb_problems.hub("gsm8k", "test", revision="0" * 40)


@pytest.mark.parametrize(
    "name, file",
    [
        ("olympiadbench", "OlympiadBench/OE_TO_maths_en_COMP/OE_TO_maths_en_COMP.parquet"),
        ("openr1-math", "data/train-0.parquet"),
    ],
)
def test_offline_part_of_a_large_repository_is_enough(name, file, caches):
    entry = hub.DATA_SETS[name]
    assert f"--include '{entry.files}'" in hub.command(name)
    snapshot = (
        caches
        / "hub"
        / f"datasets--{entry.repository.replace('/', '--')}"
        / "snapshots"
        / entry.revision
    )
    (snapshot / file).parent.mkdir(parents=True)
    datasets.load_dataset(
        "json", data_files=str(SAMPLES / f"{name}.jsonl"), split="train"
    ).to_parquet(str(snapshot / file))
    assert [p for p in wb_problems.hub(name, SPLIT[name])] == list(sample(name))


# What is refused


@pytest.mark.parametrize("name", hub.DATA_SETS)
def test_offline_the_error_is_the_command(name):
    entry = hub.DATA_SETS[name]
    with pytest.raises(ConnectionError, match="HF_HUB_OFFLINE=1, or give path=") as error:
        wb_problems.hub(name, SPLIT[name])
    command = f"hf download {entry.repository} --repo-type dataset --revision {entry.revision}"
    assert command in str(error.value) and "\n" not in str(error.value)
    assert ("is gated" in str(error.value)) == (name == "gpqa")


@pytest.mark.parametrize(
    "name, answer, message",
    [
        ("gpqa", errors.GatedRepoError, "gpqa: Idavidrein/gpqa .*refused.*hf auth login"),
        ("gsm8k", errors.RevisionNotFoundError, "gsm8k: .*refused.*--revision nine"),
        ("gsm8k", errors.RepositoryNotFoundError, "gsm8k: openai/gsm8k .*refused"),
    ],
)
def test_what_the_hub_refuses(monkeypatch, name, answer, message):
    """No network here: the errors are those that huggingface_hub raises for such answers."""

    def snapshot_download(*args, **options):
        raise answer(
            "refused", response=httpx.Response(404, request=httpx.Request("GET", "https://a"))
        )

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ConnectionError, match=message):
        wb_problems.hub(name, SPLIT[name], revision="nine")


def test_what_the_hub_is_asked_for(monkeypatch, caches):
    asked = []

    def snapshot_download(repository, **options):
        asked.append((repository, options.pop("allow_patterns")))
        assert options == {"repo_type": "dataset", "revision": "main"}
        return caches / "copy"

    copy_of_the_repository(caches / "copy")
    shutil.copy(SAMPLES / "apps.jsonl", caches / "copy" / "test.jsonl")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert len(wb_problems.hub("gsm8k", "test", revision="main")) == 5
    assert len(wb_problems.hub("apps", "test", revision="main")) == 10
    assert asked == [("openai/gsm8k", None), ("codeparrot/apps", "test.jsonl")]


def test_missing_columns(caches):
    path = written(caches, [{"question": "a", "solution": "b"}])
    with pytest.raises(
        ValueError, match=r"gsm8k: column 'answer' is missing; .*own.jsonl has question, solution"
    ):
        wb_problems.hub("gsm8k", path=path)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: wb_problems.hub("gsm9k"), "name='gsm9k'"),
        (lambda: wb_problems.hub("aime24"), "split='train'"),
        (lambda: wb_problems.hub("gsm8k", "valid"), "split='valid'"),
        (lambda: wb_problems.hub("gsm8k", n=0), "n=0"),
        (lambda: sample("gsm8k", n=21), "n=21"),
        (lambda: wb_problems.hub("gsm8k", template="question"), "template="),
        (lambda: wb_problems.hub("gsm8k", levels=(3,)), "levels="),
        (lambda: wb_problems.hub("math", levels=(6,)), r"levels=\(6,\)"),
        (lambda: wb_problems.hub("math", levels=3), r"levels=3"),
        (lambda: sample("math", levels=()), r"levels=\(\)"),
        (lambda: wb_problems.hub("gsm8k", path="data.xml"), "path="),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_path_that_is_not_there():
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl"):
        wb_problems.hub("gsm8k", path="none.jsonl")


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(ImportError, match="pip install 'datasets"):
        wb_problems.hub("gsm8k")
