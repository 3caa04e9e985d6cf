"""Programs, judged by running tests on them in a sandbox.

    tests = json.dumps({"stdin_stdout": [["1 2\\n", "3\\n"]]})
    Code().score(["```python\\nprint(sum(map(int, input().split())))\\n```"], [tests]).status
    # ['ok']

Tests
-----
An answer is the JSON text of one object, in one of these forms:

- `{"stdin_stdout": [[input, output], ...]}`: the program runs once for each, reading `input`.
  `{"inputs": [...], "outputs": [...]}` (APPS, TACO) and `{"input": [...], "output": [...]}`
  (CodeContests) say the same. Outputs agree word by word; a word with a decimal point may differ by
  1e-6, relative or absolute.
- `{"function": name, "calls": [[arguments, value], ...]}`: the function, or the method of that
  name of a class `Solution`, is called. What a program uses of `typing`, `collections`, `heapq`,
  `math` and the like needs no import here.
  `{"fn_name": name, "inputs": [...], "outputs": [...]}` says the same; as there, `[value]` may
  stand for `value`. Tuples count as lists; floats may differ by 1e-6.
- `{"asserts": text}`: Python (MBPP; HumanEval with `check(name)` at the end) in which names that it
  does not define are the answer's functions and classes. Each statement but definitions, imports
  and assignments is a test. Numbers, texts, bytes, lists, tuples, sets, dicts and None are
  compared. Of anything else that the answer returns, also a Fraction or a Decimal, the tests may
  use attributes, calls, items, `len`, `str` and iteration, and `==` is false. What a call changes
  in a list, a set or a dict that it is given is changed for the tests as well. Tests can hand
  Python's own functions to the answer, and none of their own. They have the standard library and
  no other package.
  `"names": [name, ...]` beside it are functions of the answer that are called like Python's own.

What a program can do
---------------------
With `sandbox="bwrap"` it can compute, start threads and print. It sees the standard library and no
other package, no file of the user or of this project, no /proc, no network and no other process. It
cannot write any file or start processes, and limits hold its processor time, memory, output and
threads. It ends with its test, with the deadline, or with the program that asked.

Its verdict is not its own. The expected outputs stay in the caller's process. For calls and asserts
a second process, confined in the same way, holds the tests, asks the first to call its functions,
and gets plain data back. What a program prints instead, how it exits, what it raises and what its
objects say they equal changes nothing: data that is not plain is an object whose `==` is the
tester's own. A program may still return any constant that it was trained to.

`docs/guides/verifiers.md` has the table of what holds each kind of attack, and what is not covered.

`sandbox="none"` is for programs that you trust, and for machines where bubblewrap cannot run, as in
most containers. Their time, memory and output are limited in the same way, and they are judged by
the same processes. Nothing else is between them and what you can do yourself.
"""

import ast
import builtins
import json
import math
import os
import re
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Annotated, Any

import numpy as np

from workbench.utils.bounds import Count, Flag, Positive, at_least, check_arguments, choice
from workbench.utils.validation import brief
from workbench.verifiers.base import Scores, Verifier
from workbench.verifiers.boxes import after_thinking
from workbench.verifiers.grammar import TABLE
from workbench.verifiers.inside import CANDIDATE_GONE
from workbench.verifiers.sandbox import MOST_OUTPUT, Sandbox, file_of

# Possessive, so that it takes linear time, whatever a response holds.
FENCE = re.compile(
    r"(?m)^(?:<answer>)?+(?P<indent>[ \t]*+)(?P<code>[^\n`~]*+)(?P<mark>`{3,}+|~{3,}+)[ \t]*+"
    r"(?P<language>\w*+)(?P<rest>[^\n`]*+)$"
)
READS = re.compile(r"\binput\(|\bstdin\b|\bopen\(0")  # a program's standard input
PROVIDED = TABLE["code"]["provided"].split()
LANGUAGES = ("", *TABLE["code"]["languages"].split())
LEAST_MEMORY = 64  # MiB: the interpreter takes about 30


@dataclass(frozen=True)
class Tests:
    """What an answer is held to.

    Attributes
    ----------
    count : int
    cases : tuple of (input, output)
        Standard input and the output expected.
    material : dict, optional
        In place of cases: what the checker runs.
    """

    count: int
    cases: tuple[tuple[str, str], ...] = ()
    material: dict | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class Code(Verifier):
    """Unit tests as a verifier; the module's docstring has their forms.

    Parameters
    ----------
    sandbox : {"bwrap", "none"}
        The sandbox, or none for programs that you trust with all that you can do yourself.
    fenced : bool
        True: the program is a complete block of Python between lines of ``` or ~~~, see `program`.
        False: it is the whole response.
    partial : bool
        True: the reward is the share of the tests passed. False: it is 1 for all of them and 0 for
        fewer. The status is `ok` for all of them either way.
    workers : int
        Programs at once.
    deadline : float
        Seconds that a response's tests may run in all.
    memory_mb : int
        MiB of address space of a program, the interpreter's 30 included; at least 64.
    max_chars : int
        A longer program is `unparsed`.

    Raises
    ------
    OSError
        In one line, where the sandbox cannot be had.

    Notes
    -----
    The statuses are `ok`: all tests passed; `wrong`: one failed, or the program raised or ended
    early; `unparsed`: no program in the response; `timeout`: killed at the deadline; `crash`: out
    of memory, too much output, or ended by a signal. Where the tests of one response end
    differently, the first that failed gives the status.
    """

    sandbox: Annotated[str, choice("bwrap", "none")] = "bwrap"
    fenced: Flag = True
    partial: Flag = False
    workers: Count = 2
    deadline: Positive = 10.0
    memory_mb: Annotated[int, at_least(LEAST_MEMORY)] = 512
    max_chars: Count = 100_000

    def __post_init__(self) -> None:
        check_arguments(self)
        self._sandbox = Sandbox(self.sandbox, self.deadline, self.memory_mb)

    def judge(self, responses: list[str], answers: list[str]) -> Scores:
        # All answers are read before any program runs, so that a
        # mistake in the data is told at once.
        tests = {answer: read_tests(answer, f"answers[{i}]") for i, answer in enumerate(answers)}

        # Equal pairs are run once.
        pairs = list(dict.fromkeys(zip(responses, answers)))
        # Threads suffice, since each does little but wait for the processes of its program.
        with ThreadPoolExecutor(self.workers, thread_name_prefix="code") as threads:
            verdicts = threads.map(lambda pair: self._verdict(pair[0], tests[pair[1]]), pairs)
            of_pair = dict(zip(pairs, verdicts))
        in_order = [of_pair[pair] for pair in zip(responses, answers)]
        scores = Scores.of([status for status, _ in in_order])
        shares = np.array([share for _, share in in_order], dtype=np.float64)
        return Scores(shares, scores.status) if self.partial else scores

    def _verdict(self, response: str, tests: Tests) -> tuple[str, float]:
        """Status, and share of the tests passed."""
        names = (tests.material or {}).get("wanted", ())
        source = program(response, names) if self.fenced else response
        if source is None or not source.strip() or len(source) > self.max_chars:
            return "unparsed", 0.0
        if tests.cases:
            status, passed = self._run_cases(source, tests.cases)
        else:
            status, passed = self._run_checker(source, tests)
        return status, passed / tests.count

    def _run_cases(self, source: str, cases: Sequence[tuple[str, str]]) -> tuple[str, int]:
        """Run a program on each input: the first status that is not `ok`, and how many outputs were
        right.
        """
        statuses = []
        # One deadline for all inputs together: otherwise a program that hangs
        # would cost it once for every test.
        seconds_left = self.deadline
        for given, expected in cases:
            with file_of(given.encode("utf-8", "surrogatepass")) as stdin:
                with self._sandbox.start("program.script", {"source": source}, stdin) as process:
                    ended = process.finish(seconds_left)
            seconds_left -= ended.seconds
            # A program that raises or reports an error is wrong,
            # whatever it has printed before.
            output = ended.output.decode(errors="replace")
            right = ended.code == 0 and same_output(output, expected)
            status = ended.failure or ("ok" if right else "wrong")
            statuses.append(status)
            # After a timeout no time is left for the other inputs, and without partial
            # credit the first failure decides.
            if status == "timeout" or (status != "ok" and not self.partial):
                break
        passed = statuses.count("ok")
        return next((status for status in statuses if status != "ok"), "ok"), passed

    def _run_checker(self, source: str, tests: Tests) -> tuple[str, int]:
        """Have a checker ask a candidate: the status, and how many tests passed."""
        assert tests.material is not None
        source = with_imports(source)
        # The first of each pair is the end to read from. Requests go from the checker to the
        # candidate, and replies come back.
        ends = [*os.pipe(), *os.pipe()]
        requests, asks, reads, replies = ends
        material = {
            "link": [asks, reads, MOST_OUTPUT],
            "stop": not self.partial,
            **{key: value for key, value in tests.material.items() if key != "wanted"},
        }
        start = self._sandbox.start
        with ExitStack() as running:
            try:
                candidate = start("program.candidate", {"source": source}, requests, replies)
                running.enter_context(candidate)
                checker = start("checker.checker", material, fds=(asks, reads))
                running.enter_context(checker)
            finally:
                # While this process held an end of a pipe, neither side would
                # notice that the other is gone.
                for end in ends:
                    os.close(end)
            candidate.wait_for_start()
            ended = checker.finish(self.deadline)
            # The checker knows only that nobody answers any more. How the candidate ended tells a
            # crash from an answer that is merely wrong.
            if ended.code == CANDIDATE_GONE:
                ended = ended._replace(code=candidate.stop(seconds=1.0))
        # Tests that the checker did not reach have written nothing, and count as not passed.
        passed = ended.output.count(b"1")
        status = ended.failure or ("ok" if passed == tests.count else "wrong")
        return status, passed


def program(response: str, names: Collection[str] = ()) -> str | None:
    """The program in a response: of its complete blocks of Python, behind its thoughts, the last
    that defines most of the names; without names the last that reads its input, or else the last.
    A block that names no language counts where none says that it is Python, or where it alone
    defines a name. None without one.

    Examples
    --------
    >>> program("```python\\nprint(1)\\n```\\nor\\n```\\nprint(2)\\n```\\n```python\\nprint(3")
    'print(1)\\n'
    >>> program("```python\\ndef f(): ...\\n```\\n```python\\nf()\\n```", ["f"])
    'def f(): ...\\n'
    """
    is_wanted = READS
    if names:
        any_name = f"(?:{'|'.join(map(re.escape, names))})"
        is_wanted = re.compile(rf"(?m)^\s*(?:(?:async )?def|class) {any_name}\b|^{any_name}\s*=")

    def worth(of: tuple[str, str]) -> tuple[int, int]:
        language, block = of
        found = {each.group() for each in is_wanted.finditer(block)}
        return (len(found), bool(language)) if names else (bool(language), bool(found))

    # Of equal ones the last.
    blocks = reversed(list(_blocks(after_thinking(response))))
    return max(blocks, key=worth, default=("", None))[1]


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """The language and the source of each complete block of Python, or of no language."""
    opening = None
    for fence in FENCE.finditer(text):
        code, language = fence["code"], fence["language"]
        fits = opening is not None and fence["mark"].startswith(opening["mark"])
        # One that is indented more than its opening is a part of the program, as in a docstring.
        indents = [len(each["indent"].expandtabs(4)) for each in (opening, fence) if each]
        if not code and indents[-1] > indents[0] + 3:
            continue
        # A mark amid a line of a program, as in a text that it prints, ends nothing.
        is_end = fits and not language and not (code and fence["rest"].strip())
        if code and not is_end:
            continue
        if opening is None or (language and fits):
            # A fence with a language opens a block, also where the one before was never closed.
            opening = fence
        elif is_end:
            if opening["language"].lower() in LANGUAGES:
                block = text[opening.end() + 1 : fence.start("mark" if code else 0)]
                # In an item of a list the whole block is indented, as far as its fence is at most.
                indent = rf"(?m)^[ \t]{{0,{len(opening['indent'])}}}"
                yield opening["language"], re.sub(indent, "", block)
            opening = None


def with_imports(source: str) -> str:
    """A program with the imports that it lacks of what judges of such data sets provide.

    Examples
    --------
    >>> with_imports("def f(x):\\n    return math.gcd(*x) or inf\\n").splitlines()[0]
    'from math import inf; import math'
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source
    lines = []
    for name in sorted(free_names(tree)):
        homes = [home for home in PROVIDED if hasattr(import_module(home), name)]
        if name in PROVIDED:
            lines.append(f"import {name}")
        elif homes:
            lines.append(f"from {homes[0]} import {name}")
    # Imports from the future have to stand before them.
    ends = [
        node.end_lineno or 0
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    ]
    rows = source.split("\n")
    rows[max(ends, default=0) : max(ends, default=0)] = ["; ".join(lines)] if lines else []
    return "\n".join(rows)


def same_output(output: str, expected: str) -> bool:
    """Whether two outputs agree word by word. An expected word with a decimal point is met within
    1e-6, relative or absolute.

    Examples
    --------
    >>> same_output("1 0.3333333\\n", "1  0.333333333"), same_output("12", "1 2")
    (True, False)
    """
    words = output.split()
    expected_words = expected.split()
    if len(words) != len(expected_words):
        return False
    return all(map(_same_word, words, expected_words))


def _same_word(word: str, expected: str) -> bool:
    if word == expected:
        return True
    # Whole numbers must agree exactly: as floats, long ones that differ could be equal.
    if "." not in expected:
        return False
    try:
        return math.isclose(float(word), float(expected), rel_tol=1e-6, abs_tol=1e-6)
    except ValueError:
        return False


def read_tests(answer: str, name: str) -> Tests:
    """The tests in an answer; ValueError naming it when it holds none in a form that is known."""
    try:
        tests = _parsed_tests(answer)
    except (ValueError, TypeError, LookupError, AttributeError, SyntaxError) as error:
        raise ValueError(
            f"{name}={brief(answer)}: tests in a form of workbench.verifiers.code are needed "
            f"({error})"
        ) from None
    if not tests.count:
        raise ValueError(f"{name}={brief(answer)}: at least one test is needed")
    return tests


# All rollouts of a problem come with the same answer.
@lru_cache(maxsize=256)
def _parsed_tests(answer: str) -> Tests:
    form = json.loads(answer)
    if "asserts" in form:
        tree = ast.parse(form["asserts"])
        names = form.get("names", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("names that are not a list of texts")
        are_tests = list(map(is_test, tree.body))
        # A function of the answer may be called like one of Python's own.
        wanted = sorted(free_names(tree) | set(names))
        material = {"asserts": form["asserts"], "is_test": are_tests, "names": wanted}
        return Tests(sum(are_tests), material=material | {"wanted": wanted})
    function = form.get("function", form.get("fn_name"))
    if "calls" in form or function is not None:
        calls = form["calls"] if "calls" in form else _zipped(form)
        if not all(isinstance(arguments, list) for arguments, _ in calls):
            raise ValueError("arguments that are not a list")
        name = str(function)
        material = {"function": name, "calls": calls, "wanted": [name, "Solution"]}
        return Tests(len(calls), material=material)
    cases = form["stdin_stdout"] if "stdin_stdout" in form else _zipped(form)
    texts = tuple((_text(given), _text(expected)) for given, expected in cases)
    return Tests(len(texts), cases=texts)


def _zipped(form: dict) -> list[tuple[Any, Any]]:
    """Pairs from the two lists of APPS, TACO and CodeContests."""
    inputs = form["inputs"] if "inputs" in form else form["input"]
    outputs = form["outputs"] if "outputs" in form else form["output"]
    return list(zip(inputs, outputs, strict=True))


def _text(lines: Any) -> str:
    """A text, which some data sets give as a list of lines."""
    if not isinstance(lines, str | list):
        raise ValueError(f"an input or an output is {brief(lines)}; a text is needed")
    return lines if isinstance(lines, str) else "\n".join(map(str, lines))


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def free_names(tree: ast.AST) -> set[str]:
    """The names that tests read and do not define, except Python's own: they must come from the
    answer.
    """
    read: set[str] = set()
    bound = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, DEFINITIONS):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return read - bound


def is_test(statement: ast.stmt) -> bool:
    """Whether a statement of the tests is a test: not a definition, an import, an assignment or a
    bare text.
    """
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return False
    assignments = (ast.Assign, ast.AnnAssign, ast.AugAssign)
    return not isinstance(
        statement, (*DEFINITIONS, *assignments, ast.Import, ast.ImportFrom, ast.Pass)
    )
