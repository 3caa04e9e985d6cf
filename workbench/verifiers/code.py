"""Programs, judged by running tests on them in a sandbox.

    tests = json.dumps({"stdin_stdout": [["1 2\\n", "3\\n"]]})
    Code().score(["```python\\nprint(sum(map(int, input().split())))\\n```"], [tests]).status    # ['ok']

An answer is the JSON text of one object, in one of these forms:

- `{"stdin_stdout": [[input, output], ...]}`: the program runs once for each, reading `input`. `{"inputs": [...],
  "outputs": [...]}` (APPS, TACO) and `{"input": [...], "output": [...]}` (CodeContests) say the same. Outputs agree word
  by word; a word with a decimal point may differ by 1e-6, relative or absolute.
- `{"function": name, "calls": [[arguments, value], ...]}`: the function, or the method of that name of a class `Solution`,
  is called. `{"fn_name": name, "inputs": [...], "outputs": [...]}` says the same; as there, `[value]` may stand for `value`.
  Tuples count as lists; floats may differ by 1e-6.
- `{"asserts": text}`: Python (MBPP; HumanEval with `check(name)` at the end) in which names that it does not define are
  the answer's functions and classes. Each statement but definitions, imports and assignments is a test. Numbers, texts,
  bytes, lists, tuples, sets, dicts and None are compared; of anything else the answer returns (also a Fraction, a Decimal)
  the tests may use attributes, calls, items, `len`, `str` and iteration, and `==` is false. Tests cannot hand functions of
  their own to the answer.

What an answer can do, with `sandbox="bwrap"`: compute, start threads, write 16 MiB to its own /tmp. It sees the standard
library, no other package, no file of the user or of this project, no network and no other process; it cannot start
processes, and limits hold its processor time, memory, output, files and threads. It ends with its test, with the deadline
or with the program that asked.

Its verdict is not its own. The expected outputs stay in the caller's process; for calls and asserts a second process,
confined in the same way, holds the tests, asks the first to call its functions, and gets plain data back. What it prints
instead, how it exits, or what its objects say they equal changes nothing; data that is not plain is an object whose `==` is
the tester's own. A program may still return any constant that it was trained to.

Not covered: faults of the kernel, of bubblewrap or of the C library; side channels; how much a busy machine slows a program;
what /proc tells of the machine, paths of the interpreter and of this package included; helper functions that asserts take
from the answer (a test may trust what an answer redefines). On processors other than x86-64 and ARM64 there is no filter of
system calls: programs may start processes up to the limit on threads, each with the full memory, and use kernel interfaces
that the namespaces do not separate.

`sandbox="weak"`, for where bubblewrap cannot run: the same limits and filter, but no namespaces. A program can read what the
user can read, and change or delete it, this process's memory under /proc included, through which it can forge a verdict;
without the filter (macOS) it can also reach the network, kill processes and outlive its deadline. Use it on answers you
would run yourself; a warning says so each time.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from workbench.verifiers import STATUSES, Scores
from workbench.verifiers.checks import check_number, check_texts, check_type
from workbench.verifiers.inside import CANDIDATE_GONE, OUT_OF_MEMORY, is_test
from workbench.verifiers.base import ForkSafeLock
from workbench.verifiers.sandbox import Limits, Process, Sandbox

FENCE = re.compile(
    r"^[ \t]*+```[ \t]*+(\w*+)[^\n`]*+$", re.MULTILINE
)  # possessive: linear, whatever a response holds
LANGUAGES = ("python", "python3", "py", "")
SANDBOXES = ("bwrap", "weak")
WEAK = "sandbox='weak' lets programs read, change and delete what the user can, and forge their verdicts that way"
SIGNALLED = 128  # exit codes from here on are signals


@dataclass(frozen=True)
class Tests:
    """What an answer is held to: `cases` of standard input and output, or `material` for the checker; `count` of tests."""

    count: int
    cases: tuple[tuple[str, str], ...] = ()
    material: dict | None = None


class Code:
    """Unit tests as a verifier (see the module's docstring for their forms and for what the sandbox covers).

    sandbox: "bwrap" or "weak"; the latter warns (UserWarning) of what it leaves open.
    fenced: the program is the last complete block of Python between lines of ```; otherwise the whole response.
    partial: the reward is the share of tests passed; otherwise 1 for all of them and 0 for fewer. The status is `ok` for
        all of them either way.
    workers: programs at once; deadline: seconds a response's tests may run in all; memory_mb: MiB a program may take.
    max_chars: a longer program is `unparsed`.

    Statuses: `ok`, all tests passed; `wrong`, one failed or the program raised or ended early; `unparsed`, no program in the
    response; `timeout`, killed at the deadline; `crash`, out of memory, too much output, or ended by a signal. Where the
    tests of one response end differently, the first that failed gives the status.
    `counts` (dict status -> int) totals everything scored so far; `config` holds the arguments, for a manifest.
    RuntimeError in one line where the sandbox cannot be had.
    """

    def __init__(
        self,
        *,
        sandbox: str = "bwrap",
        fenced: bool = True,
        partial: bool = False,
        workers: int = 2,
        deadline: float = 10.0,
        memory_mb: int = 512,
        max_chars: int = 100_000,
    ) -> None:
        if sandbox not in SANDBOXES:
            raise ValueError(f"sandbox is {sandbox!r}; allowed: {', '.join(map(repr, SANDBOXES))}")
        check_type("fenced", fenced, bool, "True or False")
        check_type("partial", partial, bool, "True or False")
        check_number("workers", workers, int, 0, "an integer of at least 1")
        check_number("deadline", deadline, (int, float), 0, "a finite number of seconds above 0")
        check_number("memory_mb", memory_mb, int, 0, "an integer of at least 1")
        check_number("max_chars", max_chars, int, 0, "an integer of at least 1")
        self.config = {
            "sandbox": sandbox, "fenced": fenced, "partial": partial, "workers": workers, "deadline": deadline,
            "memory_mb": memory_mb, "max_chars": max_chars,
        }  # fmt: skip
        self.fenced, self.partial, self.workers, self.max_chars = (
            fenced,
            partial,
            workers,
            max_chars,
        )
        self.counts = dict.fromkeys(STATUSES, 0)
        if sandbox == "weak":
            warnings.warn(WEAK, stacklevel=2)
        self.sandbox = Sandbox(sandbox, Limits(deadline, memory_mb))
        self._lock = ForkSafeLock()

    def __repr__(self) -> str:
        return f"Code({', '.join(f'{name}={value!r}' for name, value in self.config.items())})"

    def score(self, responses: Sequence[str], answers: Sequence[str]) -> Scores:
        """Run the programs of R responses on their R answers' tests; equal pairs are run once.

        Raises ValueError when the lengths differ or an answer holds no tests in a form it knows; RuntimeError when a
        sandbox cannot be started.
        """
        check_texts(responses, answers)
        known = {answer: read_tests(answer, f"answers[{i}]") for i, answer in enumerate(answers)}
        pairs = list(dict.fromkeys(zip(responses, answers)))
        with ThreadPoolExecutor(self.workers, thread_name_prefix="code") as threads:
            verdicts = dict(
                zip(pairs, threads.map(lambda pair: self._verdict(pair[0], known[pair[1]]), pairs))
            )
        found = [verdicts[pair] for pair in zip(responses, answers)]
        scores = Scores.of([status for status, _ in found])
        if self.partial:
            scores = Scores(
                np.array([share for _, share in found], dtype=np.float64), scores.status
            )
        with self._lock:
            for name, count in scores.counts().items():
                self.counts[name] += count
        return scores

    def _verdict(self, response: str, tests: Tests) -> tuple[str, float]:
        """Status, and share of the tests passed."""
        source = program(response) if self.fenced else response
        if source is None or not source.strip() or len(source) > self.max_chars:
            return "unparsed", 0.0
        status, passed = (
            self._cases(source, tests.cases) if tests.cases else self._checked(source, tests)
        )
        return status, passed / tests.count

    def _cases(self, source: str, cases: Sequence[tuple[str, str]]) -> tuple[str, int]:
        """Run a program on each input; the first status that is not `ok`, and how many outputs were right."""
        first, passed, left = "ok", 0, self.sandbox.limits.deadline
        for given, expected in cases:
            process = self.sandbox.start(
                {"role": "script", "source": source}, given.encode("utf-8", "surrogatepass")
            )
            output, code = process.finish(left)
            left -= process.seconds
            right = code == 0 and same_output(output.decode(errors="replace"), expected)
            status = _failure(process, code) or ("ok" if right else "wrong")
            passed += status == "ok"
            first = status if first == "ok" else first
            if status == "timeout" or not (status == "ok" or self.partial):
                break
        return first, passed

    def _checked(self, source: str, tests: Tests) -> tuple[str, int]:
        """Have a checker ask a candidate; the status, and how many tests passed."""
        candidate, checker = self._pair(source, tests.material)
        try:
            output, code = checker.finish()
            if code == CANDIDATE_GONE:
                code = candidate.ending(seconds=1.0)
        finally:
            candidate.close()
        passed = output.count(b"1")
        return _failure(checker, code) or ("ok" if passed == tests.count else "wrong"), passed

    def _pair(self, source: str, material: dict) -> tuple[Process, Process]:
        """A candidate and its checker, which alone holds the other ends of the candidate's input and output."""
        requests, replies = os.pipe(), os.pipe()
        first = self.sandbox.opening({"role": "candidate", "source": source}).decode()
        link = [requests[1], replies[0], self.sandbox.limits.output_kb * 1024]
        header = {
            "role": "checker",
            "first": first,
            "link": link,
            "stop": not self.partial,
            **material,
        }
        try:
            candidate = self.sandbox.begin(stdin=requests[0], stdout=replies[1])
            try:
                return candidate, self.sandbox.start(header, fds=(requests[1], replies[0]))
            except BaseException:
                candidate.close()
                raise
        finally:
            for end in (*requests, *replies):
                os.close(end)

    def close(self) -> None:
        """Nothing stays running between calls."""

    def __enter__(self) -> Code:
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def program(response: str) -> str | None:
    """The last complete block between lines of ``` that is Python or names no language; None if there is none.

    >>> program("First\\n```python\\nprint(1)\\n```\\nor\\n```\\nprint(2)\\n```\\nand\\n```python\\nprint(3")
    'print(2)\\n'
    """
    found, opened = None, None
    for fence in FENCE.finditer(response):
        if opened is None:
            opened = fence
        elif not fence[1]:
            if opened[1].lower() in LANGUAGES:
                found = response[opened.end() + 1 : fence.start()]
            opened = None
        else:  # a block that was never closed
            opened = fence
    return found


def same_output(found: str, expected: str) -> bool:
    """Word by word; an expected word with a decimal point is met within 1e-6, relative or absolute.

    >>> same_output("1 0.3333333\\n", "1  0.333333333"), same_output("12", "1 2")
    (True, False)
    """
    words, wanted = found.split(), expected.split()
    return len(words) == len(wanted) and all(
        a == b or ("." in b and _close(a, b)) for a, b in zip(words, wanted)
    )


def _close(found: str, expected: str) -> bool:
    try:
        return math.isclose(float(found), float(expected), rel_tol=1e-6, abs_tol=1e-6)
    except ValueError:
        return False


def _failure(process: Process, code: int) -> str | None:
    """The status of a program that did not get to its end by itself; None if it did."""
    if process.how == "timeout":
        return "timeout"
    return (
        "crash" if process.how == "output" or code >= SIGNALLED or code == OUT_OF_MEMORY else None
    )


def read_tests(answer: str, name: str) -> Tests:
    """Read the tests in an answer, of which the module's docstring lists the forms; ValueError naming it otherwise."""
    try:
        form = json.loads(answer)
        if not isinstance(form, dict):
            raise ValueError("not an object")
        found = _read(form)
    except (ValueError, TypeError, KeyError, SyntaxError) as error:
        raise ValueError(
            f"{name} is {answer[:80]!r} ({error}); allowed: the forms in workbench.verifiers.code"
        ) from None
    if not found.count:
        raise ValueError(f"{name} is {answer[:80]!r}; allowed: at least one test")
    return found


def _read(form: dict) -> Tests:
    if "asserts" in form:
        return Tests(
            sum(map(is_test, ast.parse(form["asserts"]).body)),
            material={"asserts": form["asserts"]},
        )
    function = form.get("function", form.get("fn_name"))
    if "calls" in form or function is not None:
        calls = form["calls"] if "calls" in form else _zipped(form)
        if not all(isinstance(args, list) for args, _ in calls):
            raise ValueError("arguments that are not a list")
        return Tests(len(calls), material={"function": str(function), "calls": calls})
    cases = form["stdin_stdout"] if "stdin_stdout" in form else _zipped(form)
    return Tests(
        len(cases), cases=tuple((_text(given), _text(expected)) for given, expected in cases)
    )


def _zipped(form: dict) -> list[tuple]:
    """Pairs from the two lists of APPS, TACO and CodeContests."""
    inputs, outputs = (
        form[one] if one in form else form[many]
        for one, many in (("inputs", "input"), ("outputs", "output"))
    )
    if len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs, {len(outputs)} outputs")
    return list(zip(inputs, outputs))


def _text(lines: str | list[str]) -> str:
    """A text, which some data sets give as a list of lines."""
    return lines if isinstance(lines, str) else "\n".join(map(str, lines))
