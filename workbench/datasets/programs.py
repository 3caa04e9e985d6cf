"""How rows of data sets of code become questions and tests for `verifiers.Code`.

A question says what the program is to do and how it is called or fed. The answer is the JSON text
of the tests (see `workbench.verifiers.code` for their forms). At most `MOST_TESTS` tests with
standard input are kept, the first ones, since each starts a process.

EvalPlus's tests (MBPP+, HumanEval+) compare by two helper functions that need NumPy, which is not
in the sandbox. They are replaced by `COMPARISON`, which says the same in the standard library. Rows
whose tests use NumPy elsewhere have no answer, and are left out.

What tests take from the program they cannot trust. HumanEval's tests call functions that the prompt
defines, such as the encoder of a decoder, so the prompt's definitions are put in front of the
tests.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from typing import Any

from workbench.datasets.entries import Entry, text_of

Row = Mapping[str, Any]

MOST_TESTS = 20
PYTHON_3 = 3  # CodeContests' number of the language
DIFFICULTIES = {
    # APPS
    "introductory": 1,
    "interview": 2,
    "competition": 3,
    # TACO
    "EASY": 1,
    "MEDIUM": 2,
    "MEDIUM_HARD": 3,
    "HARD": 4,
    "VERY_HARD": 5,
}
# The two helpers of EvalPlus, whose place `COMPARISON` takes.
REPLACED = ("is_floats", "assertion")
COMPARISON = """
def numbers_with_a_point(value):
    if isinstance(value, (list, tuple)):
        return all(isinstance(item, float) for item in value)
    return isinstance(value, float)

def near(value, expected, tolerance):
    if isinstance(expected, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(expected):
            return False
        return all(near(a, b, tolerance) for a, b in zip(value, expected))
    if isinstance(value, (int, float)) and isinstance(expected, (int, float)):
        return value == expected or abs(value - expected) <= tolerance + 1e-7 * abs(expected)
    return value == expected

def assertion(value, expected, tolerance):
    if tolerance == 0 and numbers_with_a_point(expected):
        tolerance = 1e-6
    assert value == expected or (tolerance and near(value, expected, tolerance))
"""


def mbpp(row: Row) -> Entry:
    """MBPP: asserts, of which the first is shown."""
    tests = [text_of(test) for test in row["test_list"] or ()]
    if not tests:
        return Entry(text_of(row["text"]), "")
    asserts = "\n".join([text_of(row.get("test_setup_code")), *tests])
    return Entry(_with_test(row["text"], tests), _asserts(asserts), 0, _fenced(row.get("code")))


def mbpp_plus(row: Row) -> Entry:
    """MBPP+: the first of MBPP's asserts is shown, and all of EvalPlus's decide."""
    shown = [text_of(test) for test in row["test_list"] or ()]
    imports = "\n".join(row.get("test_imports") or ())
    tests = _without_numpy(f"{imports}\n{text_of(row['test'])}")
    if not shown or tests is None:
        return Entry(text_of(row["prompt"]), "")
    return Entry(_with_test(row["prompt"], shown), _asserts(tests), 0, _fenced(row.get("code")))


def human_eval(row: Row) -> Entry:
    """HumanEval and HumanEval+: the beginning of a program, to be written out as a whole."""
    prompt = str(row["prompt"] or "")
    name = text_of(row["entry_point"])
    tests = _without_numpy(text_of(row["test"]))
    if not prompt.strip() or not tests:
        return Entry(prompt.strip(), "")
    # A row defines `check`, and says by name what it is to be called with.
    text = "\n".join([_definitions(prompt, name), tests, f"check({name})"])
    solution = row.get("canonical_solution")
    return Entry(
        f"Complete this program:\n```python\n{prompt.rstrip()}\n```",
        _asserts(text),
        0,
        None if solution is None else _fenced(prompt + solution),
    )


def apps(row: Row) -> Entry:
    """APPS and TACO: standard input and output, or calls of a function with a given beginning."""
    question = text_of(row["question"])
    try:
        tests = json.loads(row["input_output"] or "{}")
    except ValueError:
        tests = {}
    level = DIFFICULTIES.get(text_of(row.get("difficulty")), 0)
    inputs = tests.get("inputs") or []
    outputs = tests.get("outputs") or []
    if not inputs or len(inputs) != len(outputs):
        return Entry(question, "", level)
    form: dict[str, Any] = {"inputs": inputs[:MOST_TESTS], "outputs": outputs[:MOST_TESTS]}
    if tests.get("fn_name"):
        form["fn_name"] = tests["fn_name"]
        # The tests call the function by its name, so the question has to tell it.
        beginning = text_of(row.get("starter_code")) or f"def {tests['fn_name']}("
        question = f"{question}\nBegin with:\n```python\n{beginning}\n```"
    else:
        question = _of_standard_input(question)
    return Entry(question, json.dumps(form), level, _fenced(_first(row.get("solutions"))))


def code_contests(row: Row) -> Entry:
    """CodeContests: its public, private and generated tests, in this order."""
    inputs: list[str] = []
    outputs: list[str] = []
    # The order decides what is cut off: only the first `MOST_TESTS` are kept.
    for kind in ("public_tests", "private_tests", "generated_tests"):
        tests = row.get(kind) or {}
        inputs += tests.get("input") or []
        outputs += tests.get("output") or []
    question = text_of(row["description"])
    if not question or not inputs or len(inputs) != len(outputs):
        return Entry(question, "")
    form = {"input": inputs[:MOST_TESTS], "output": outputs[:MOST_TESTS]}
    solutions = row.get("solutions") or {}
    languages = solutions.get("language") or []
    in_python = [
        text
        for text, language in zip(solutions.get("solution") or [], languages)
        if language == PYTHON_3
    ]
    return Entry(_of_standard_input(question), json.dumps(form), 0, _fenced(_first(in_python)))


def _with_test(text: Any, tests: list[str]) -> str:
    """A question with a test, which tells the name and the arguments of the function."""
    question = text_of(text)
    return f"{question}\nThe program must pass tests such as:\n{tests[0]}" if question else ""


def _of_standard_input(question: str) -> str:
    return question and (
        f"{question}\nThe program reads standard input and writes standard output."
    )


def _asserts(text: str) -> str:
    return json.dumps({"asserts": text.strip()})


def _fenced(program: Any) -> str | None:
    """A program as a response."""
    return f"```python\n{program}\n```" if program else None


def _first(solutions: Any) -> str | None:
    """The first of several solutions, which APPS and TACO write as JSON."""
    if isinstance(solutions, str):
        try:
            solutions = json.loads(solutions)
        except ValueError:
            return None
    return solutions[0] if solutions else None


def _without_numpy(tests: str) -> str | None:
    """EvalPlus's tests with `COMPARISON`; other tests as they are; None where they cannot be read
    or still need NumPy.
    """
    try:
        body = ast.parse(tests).body
    except SyntaxError:
        return None
    # An import of NumPy may go if nothing but the helpers used it, which is checked next.
    kept = [node for node in body if not _imports_numpy(node) and not _is_replaced(node)]
    if any(_names_numpy(node) for node in kept):
        return None
    if len(kept) == len(body):
        return tests
    return COMPARISON + ast.unparse(ast.Module(kept, []))


def _imports_numpy(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import) and any(name.name == "numpy" for name in node.names)


def _is_replaced(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name in REPLACED


def _names_numpy(node: ast.stmt) -> bool:
    names = (each.id for each in ast.walk(node) if isinstance(each, ast.Name))
    return any(name in ("np", "numpy") for name in names)


def _definitions(prompt: str, entry_point: str) -> str:
    """The imports and functions of a prompt, but for the one that it asks for."""
    try:
        body: Iterable[ast.stmt] = ast.parse(prompt).body
    except SyntaxError:
        return ""
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign)
    kept: list[ast.stmt] = []
    for node in body:
        # What the prompt begins, the answer has to define: a stub in the
        # tests would be tested in its place.
        asked_for = isinstance(node, ast.FunctionDef) and node.name == entry_point
        if isinstance(node, kinds) and not asked_for:
            kept.append(node)
    return ast.unparse(ast.Module(kept, []))
