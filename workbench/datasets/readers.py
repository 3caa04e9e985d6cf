r"""How rows of public data sets become questions and answers.

The functions without an underscore that return an `Entry` are the readers which hub.toml names.
Their arguments are the columns of a row, any of which may be None.

A question of code says what the program is to do and how it is called or fed. Its answer is the
JSON text of the tests (see `workbench.verifiers.code` for their forms). At most `MOST_TESTS` tests
with standard input are kept, the first ones, since each starts a process.

EvalPlus's tests (MBPP+, HumanEval+) compare by two helper functions that need NumPy, which is not
in the sandbox. They are replaced by `COMPARISON`, which says the same in the standard library. Rows
whose tests use NumPy elsewhere have no answer, and are left out.

What tests take from the program they cannot trust. HumanEval's tests call functions that the prompt
defines, such as the encoder of a decoder, so the prompt's definitions are put in front of the
tests.
"""

import ast
import builtins
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.utils.seeding import generator
from workbench.utils.validation import brief

MOST_TESTS = 20
PYTHON_3 = 3  # CodeContests' number of the language
# Of APPS and of TACO, from 1 on.
DIFFICULTIES = (
    ("introductory", "interview", "competition"),
    ("EASY", "MEDIUM", "MEDIUM_HARD", "HARD", "VERY_HARD"),
)
# The two helpers of EvalPlus, whose place `COMPARISON` takes.
REPLACED = ("is_floats", "assertion")
BOX = re.compile(r"\\(?:boxed|fbox)(?:\s*\{|\s+([^$\n]+))")
# What stands between boxes that are one answer together.
TOGETHER = re.compile(r"(?:\\%)?[\s$]*(?:,|,?\s?(?:and|or|\\text\{\s?(?:and|or)\s?\}))[\s$]*")
COMPARISON = Path(__file__).with_name("comparison.txt").read_text("utf-8")


@dataclass(frozen=True)
class Entry:
    r"""One question.

    Attributes
    ----------
    question : str
        Without an instruction; empty where the row has none.
    answer : str
        The gold answer; empty where the row has none.
    level : int
        0 for unknown.
    response : str, optional
        A response that must be judged right. None: of mathematics the answer in a box, of tests not
        known.
    """

    question: str
    answer: str
    level: int = 0
    response: str | None = None


def check_place(template: Any) -> None:
    """Raise ValueError for a template without a place for the question."""
    if not isinstance(template, str) or "{prompt}" not in template:
        raise ValueError(f"template={brief(template)}: a text with {{prompt}} in it is needed")


# Mathematics and multiple choice


def plain(question: Any, answer: Any, level: Any = None) -> Entry:
    """Rows whose answer, and perhaps a level, stands in a column of its own."""
    return Entry(text_of(question), without_dollars(answer), level_of(level))


def gsm8k(question: Any, answer: Any) -> Entry:
    """GSM8K: the answer stands behind the last #### of a worked solution, with commas between
    thousands.
    """
    _, mark, number = text_of(answer).rpartition("####")
    return plain(question, number.replace(",", "") if mark else "")


def solved(problem: Any, solution: Any, level: Any = None) -> Entry:
    """MATH and AIME24: the answer is the last box of the solution."""
    return plain(problem, boxed_answer(text_of(solution)), level)


def olympiad(question: Any, final_answer: Any, context: Any = None) -> Entry:
    """Several entries of `final_answer` are one answer; a context stands before the question."""
    if not isinstance(final_answer, str):
        final_answer = ", ".join(final_answer or ())
    return plain("\n".join(filter(None, [text_of(context), text_of(question)])), final_answer)


def dapo(prompt: Any, reward_model: Any) -> Entry:
    """The question without the prompt around it: one paragraph before it, and one behind it that
    asks for the answer as "Answer:".
    """
    text = text_of(prompt[-1]["content"] if isinstance(prompt, list) and prompt else prompt)
    text = re.sub(r"\ASolve the following math problem step by step\.[^\n]*\n\n", "", text)
    text = re.sub(r"\n\nRemember to put your answer on its own line[^\n]*\Z", "", text)
    return plain(text, (reward_model or {}).get("ground_truth"))


def gpqa(question: Any, right: Any, wrong_1: Any, wrong_2: Any, wrong_3: Any) -> Entry:
    """Four choices in an order drawn from the content alone, so that it is the same in every run;
    the answer is a letter.
    """
    question, *choices = map(text_of, (question, right, wrong_1, wrong_2, wrong_3))
    if not all((question, *choices)):
        return Entry(question, "")
    order = generator("gpqa", question, *choices).permutation(len(choices))
    lines = [f"({letter}) {choices[i]}" for letter, i in zip("ABCD", order)]
    return Entry("\n".join([question, *lines]), "ABCD"[list(order).index(0)])


# Programs


def mbpp(text: Any, test_list: Any, test_setup_code: Any = None, code: Any = None) -> Entry:
    """MBPP: asserts, of which the first is shown."""
    tests = [text_of(test) for test in test_list or ()]
    asserts = "\n".join([text_of(test_setup_code), *tests]) if tests else None
    return _of_asserts(_with_test(text, tests), asserts, _fenced(code), _like_builtins(code))


def mbpp_plus(
    prompt: Any, test_list: Any, test: Any, test_imports: Any = None, code: Any = None
) -> Entry:
    """MBPP+: the first of MBPP's asserts is shown, and all of EvalPlus's decide."""
    shown_tests = [text_of(test) for test in test_list or ()]
    imports = "\n".join(test_imports or ())
    asserts = _without_numpy(f"{imports}\n{text_of(test)}") if shown_tests else None
    question = _with_test(prompt, shown_tests)
    return _of_asserts(question, asserts, _fenced(code), _like_builtins(code))


def human_eval(prompt: Any, test: Any, entry_point: Any, canonical_solution: Any = None) -> Entry:
    """HumanEval and HumanEval+: the beginning of a program, to be written out as a whole."""
    prompt = str(prompt or "")
    name = text_of(entry_point)
    tests = _without_numpy(text_of(test))
    if not prompt.strip() or not tests:
        return Entry(prompt.strip(), "")
    # A row defines `check`, and says by name what it is to be called with.
    asserts = "\n".join([_definitions(prompt, name), tests, f"check({name})"])
    question = f"Complete this program:\n```python\n{prompt.rstrip()}\n```"
    solution = None if canonical_solution is None else _fenced(prompt + canonical_solution)
    return _of_asserts(question, asserts, solution)


def apps(
    question: Any,
    input_output: Any,
    starter_code: Any = None,
    solutions: Any = None,
    difficulty: Any = None,
) -> Entry:
    """APPS and TACO: standard input and output, or calls of a function with a given beginning."""
    question = text_of(question)
    tests = _json(input_output) or {}
    levels = {name: level for names in DIFFICULTIES for level, name in enumerate(names, 1)}
    level = levels.get(text_of(difficulty), 0)
    inputs = tests.get("inputs") or []
    outputs = tests.get("outputs") or []
    if not inputs or len(inputs) != len(outputs):
        return Entry(question, "", level)
    form: dict[str, Any] = {"inputs": inputs[:MOST_TESTS], "outputs": outputs[:MOST_TESTS]}
    if tests.get("fn_name"):
        form["fn_name"] = tests["fn_name"]
        # The tests call the function by its name, so the question has to tell it.
        beginning = text_of(starter_code) or f"def {tests['fn_name']}("
        question = f"{question}\nBegin with:\n```python\n{beginning}\n```"
    else:
        question = _of_standard_input(question)
    several = _json(solutions) or [None]
    return Entry(question, json.dumps(form), level, _fenced(several[0]))


def code_contests(
    description: Any,
    public_tests: Any,
    private_tests: Any,
    generated_tests: Any = None,
    solutions: Any = None,
) -> Entry:
    """CodeContests: its public, private and generated tests, in this order."""
    inputs: list[str] = []
    outputs: list[str] = []
    # The order decides what is cut off: only the first `MOST_TESTS` are kept.
    for tests in (public_tests, private_tests, generated_tests):
        inputs += (tests or {}).get("input") or []
        outputs += (tests or {}).get("output") or []
    question = text_of(description)
    if not question or not inputs or len(inputs) != len(outputs):
        return Entry(question, "")
    form = {"input": inputs[:MOST_TESTS], "output": outputs[:MOST_TESTS]}
    solutions = solutions or {}
    pairs = zip(solutions.get("solution") or [], solutions.get("language") or [])
    in_python = [text for text, language in pairs if language == PYTHON_3]
    response = _fenced(in_python[0] if in_python else None)
    return Entry(_of_standard_input(question), json.dumps(form), 0, response)


def _with_test(text: Any, tests: list[str]) -> str:
    """A question with a test, which tells the name and the arguments of the function."""
    question = text_of(text)
    return f"{question}\nThe program must pass tests such as:\n{tests[0]}" if question else ""


def _of_standard_input(question: str) -> str:
    return question and (
        f"{question}\nThe program reads standard input and writes standard output."
    )


def _of_asserts(
    question: str, asserts: str | None, response: str | None, names: Sequence[str] = ()
) -> Entry:
    form: dict[str, Any] = {"asserts": (asserts or "").strip()}
    if names:
        form["names"] = list(names)
    return Entry(question, "" if asserts is None else json.dumps(form), 0, response)


def _like_builtins(program: Any) -> list[str]:
    """The functions of a program that are called like Python's own, as `sum` in MBPP's task 126."""
    try:
        body = ast.parse(text_of(program)).body
    except SyntaxError:
        return []
    names = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    return sorted(names & set(dir(builtins)))


def _fenced(program: Any) -> str | None:
    """A program as a response."""
    return f"```python\n{program}\n```" if program else None


def _json(text: Any) -> Any:
    """What a text of JSON says, and None where it is none; anything else is itself."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return None


def _without_numpy(tests: str) -> str | None:
    """EvalPlus's tests with `COMPARISON`; other tests as they are; None where they cannot be read
    or still need NumPy.
    """
    try:
        body = ast.parse(tests).body
    except SyntaxError:
        return None
    kept = [node for node in body if not _is_of_numpy(node)]
    # An import of NumPy may go if nothing but the helpers used it.
    names = {node.id for node in ast.walk(ast.Module(kept, [])) if isinstance(node, ast.Name)}
    if names & {"np", "numpy"}:
        return None
    return tests if len(kept) == len(body) else COMPARISON + ast.unparse(ast.Module(kept, []))


def _is_of_numpy(node: ast.stmt) -> bool:
    """Whether a statement imports NumPy, or is one of the helpers that need it."""
    if isinstance(node, ast.Import):
        return any(name.name == "numpy" for name in node.names)
    return isinstance(node, ast.FunctionDef) and node.name in REPLACED


def _definitions(prompt: str, entry_point: str) -> str:
    """The imports and functions of a prompt, but for the one that it asks for."""
    try:
        body = ast.parse(prompt).body
    except SyntaxError:
        return ""
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign)
    # What the prompt begins, the answer has to define: a stub in the
    # tests would be tested in its place.
    named = (ast.FunctionDef, ast.ClassDef)
    own = [node for node in body if not (isinstance(node, named) and node.name == entry_point)]
    return ast.unparse(ast.Module([node for node in own if isinstance(node, kinds)], []))


def text_of(value: Any) -> str:
    """A text without space around it; empty for None."""
    return "" if value is None else str(value).strip()


def without_dollars(answer: Any) -> str:
    """An answer without dollar signs around mathematics. A whole number that went through a float,
    as 27.0, is 27.
    """
    # An escaped dollar sign is money and stays.
    answer = re.sub(r"(?<!\\)\$", "", text_of(answer)).strip()
    return re.sub(r"\A(-?\d+)\.0\Z", r"\1", answer)


def level_of(value: Any) -> int:
    """The number in "Level 5" or 5; 0 where there is none, as in a few rows of MATH."""
    digits = re.search(r"\d+", str(value))
    return int(digits.group()) if digits else 0


def boxed_answer(text: str) -> str | None:
    r"""What the last `\boxed{...}` of a solution holds, also of `\fbox{...}` and `\boxed 7`, with a
    percent sign behind it; what all hold where "and", "or" or a comma joins several.

    Examples
    --------
    >>> boxed_answer(r"\boxed{1}, hence \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    >>> boxed_answer(r"\boxed{1} or \boxed{2}")
    '1, 2'
    """
    held: list[str] = []
    behind = len(text)
    for box in reversed(list(BOX.finditer(text))):
        # The form without braces, as in `\boxed 7`, has all that it holds in its group.
        content, end = (box[1].strip(" ."), box.end()) if box[1] else _braced(text, box.end())
        if content is None or (held and not TOGETHER.fullmatch(text, end, behind)):
            break
        held.insert(0, content + r"\%" * text.startswith(r"\%", end))
        behind = box.start()
    return ", ".join(held) if held else None


def _braced(text: str, start: int) -> tuple[str | None, int]:
    """What stands up to the brace that closes one in front of `start`, and where that ends."""
    depth = 1
    for brace in re.compile(r"\\.|[{}]").finditer(text, start):  # an escaped brace is no brace
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[start : brace.start()], brace.end()
    return None, start
