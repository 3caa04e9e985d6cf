"""Programs as answers: what tests say of right and wrong ones, and what is refused unrun."""

from __future__ import annotations

import json
import os
import sys
from textwrap import indent

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import asserts, io, verifier, with_and_without

from workbench.verifiers import Code
from workbench.verifiers.code import program, read_tests, same_output
from workbench.verifiers.inside import decode, encode
from workbench.verifiers.inside.checker import Link, same

ADD = "def add(a, b):\n    return a + b\n"
HUMAN_EVAL = """
def check(candidate):
    assert candidate(1, 2) == 3
    assert candidate(-1, 1) == 0
check(add)
"""
EXPECTS_KEY_ERROR = "try:\n    f(1)\nexcept KeyError:\n    pass\nelse:\n    assert False"
CONTAINERS = """
from collections import *
def f(): return Counter('aab'), {1}, frozenset([2]), b'x', 2j, None, OrderedDict(c=(1,))
"""
EQUAL_CONTAINERS = """
assert f() == ({'a': 2, 'b': 1}, {1}, frozenset([2]), b'x', 2j, None, {'c': (1,)})
"""
SEVERAL_ASSERTS = """
import math
x = 2
assert add(x, 2) == 4
assert add('a', 'b') == 'ab'
assert math.e > 2
"""
DEEP_RECURSION = """
import sys, threading
sys.setrecursionlimit(10**6)
threading.stack_size(2**26)
def f(n): return n and 1 + f(n - 1)
t = threading.Thread(target=lambda: print(f(20000)))
t.start(); t.join()
"""
CLASS = """
class A:
    def __init__(self, x): self.x = x
    def get(self): return self.x
    def __len__(self): return 7
"""

VERDICTS = {
    "sums": ("print(sum(map(int, input().split())))", io(["1 2\n", "3\n"], ["5 6", "11"]), "ok"),
    "main": (
        "import sys\nif __name__ == '__main__':\n    print(sys.stdin.read()[::-1])",
        io(["ab", "ba"]),
        "ok",
    ),
    "wrong once": ("print(3)", io(["1 2\n", "3"], ["2 2\n", "4"]), "wrong"),
    "raises after": ("print(3)\nraise ValueError", io(["", "3"]), "wrong"),
    "syntax": ("print(3", io(["", "3"]), "wrong"),
    "null byte": ("print(3)\0", io(["", "3"]), "wrong"),
    "surrogate": ("print(3) # \ud800", io(["", "3"]), "wrong"),
    "exit 0": ("print(3)\nraise SystemExit", io(["", "3"]), "ok"),
    "thread": (
        "import threading as t\nx = t.Thread(target=print, args=(3,)); x.start(); x.join()",
        io(["", "3"]),
        "ok",
    ),
    "input by its number": ("print(open(0).read())", io(["3", "3"]), "ok"),
    "asyncio": (
        "import asyncio\nasync def main(): print(3)\nasyncio.run(main())",
        io(["", "3"]),
        "ok",
    ),
    "deep recursion": (DEEP_RECURSION, io(["", "20000"]), "ok"),
    "no program": ("   \n", io(["", "3"]), "unparsed"),
    "memory": ("x = ['a' * 10**7 for _ in range(10**4)]", io(["", ""]), "crash"),
    "dies": ("import os\nos.abort()", io(["", ""]), "crash"),
    "apps lines": (
        "print(input())\nprint(input())",
        json.dumps({"inputs": [["a", "b"]], "outputs": [["a", "b"]]}),
        "ok",
    ),
    "code contests": ("print(input())", json.dumps({"input": ["a\n"], "output": ["a\n"]}), "ok"),
    "calls": (
        ADD,
        json.dumps(
            {"function": "add", "calls": [[[1, 2], 3], [["a", "b"], "ab"], [[[1], [2]], [1, 2]]]}
        ),
        "ok",
    ),
    "calls wrong": (
        ADD,
        json.dumps({"function": "add", "calls": [[[1, 2], 3], [[1, 3], 3]]}),
        "wrong",
    ),
    "calls tuple": (
        "def f(): return 1, (2.0000001, 3)",
        json.dumps({"function": "f", "calls": [[[], [1, [2.0, 3]]]]}),
        "ok",
    ),
    "calls dict": (
        "def f(): return {'a': 0.1 + 0.2, 'b': (1, 2)}",
        json.dumps({"function": "f", "calls": [[[], {"a": 0.3, "b": [1, 2]}]]}),
        "ok",
    ),
    "calls dict of others": (
        "def f(): return {'a': 1, 'b': 2}",
        json.dumps({"function": "f", "calls": [[[], {"a": 1}]]}),
        "wrong",
    ),
    "apps wrapped": (
        "class Solution:\n    def f(self, x): return [x]",
        json.dumps({"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [[2]]]}),
        "ok",
    ),
    "types without an import": (
        "class Solution:\n    def f(self, x: List[int]) -> Optional[int]: return x[0]",
        json.dumps({"fn_name": "f", "inputs": [[[1, 2]]], "outputs": [1]}),
        "ok",
    ),
    "calls missing": ("x = 1", json.dumps({"function": "add", "calls": [[[1, 2], 3]]}), "wrong"),
    "calls raise": (
        "def f(): return 1 / 0",
        json.dumps({"function": "f", "calls": [[[], 0]]}),
        "wrong",
    ),
    "calls memory": (
        "def f(): return len('a' * 10**10)",
        json.dumps({"function": "f", "calls": [[[], 0]]}),
        "crash",
    ),
    "calls die": (
        "import os\ndef f(): os.abort()",
        json.dumps({"function": "f", "calls": [[[], 0]]}),
        "crash",
    ),
    "calls large": (
        "def f(n): return 'a' * n",
        json.dumps({"function": "f", "calls": [[[500_000], "a" * 500_000]]}),
        "ok",
    ),
    "calls too large": (
        "def f(): return 'a' * 1_100_000",
        asserts("assert f() == 'a' * 1_100_000"),
        "wrong",
    ),
    "asserts": (ADD, asserts(SEVERAL_ASSERTS), "ok"),
    "asserts wrong": (ADD, asserts("assert add(2, 2) == 5"), "wrong"),
    "human eval": (ADD, asserts(HUMAN_EVAL), "ok"),
    "human eval wrong": ("def add(a, b): return 3", asserts(HUMAN_EVAL), "wrong"),
    "containers": (CONTAINERS, asserts(EQUAL_CONTAINERS), "ok"),
    "generator": ("def f(n): yield from range(n)", asserts("assert list(f(3)) == [0, 1, 2]"), "ok"),
    "exception": ("def f(x): raise KeyError(x)", asserts(EXPECTS_KEY_ERROR), "ok"),
    "no exception": ("def f(x): return x", asserts(EXPECTS_KEY_ERROR), "wrong"),
    "attributes set by tests": (CLASS, asserts("a = A(3)\na.x = 4\nassert a.get() == 4"), "ok"),
    "objects": (
        CLASS,
        asserts(
            "a = A(3)\nassert a.get() == a.x == 3\nassert len(a) == 7\n"
            "assert [A(i).x for i in 'ab'] == [*'ab']"
        ),
        "ok",
    ),
    "number of its own kind": (
        "class N(int): pass\ndef f(): return N(3)",
        asserts("assert f() == 3"),
        "ok",
    ),
    "not plain data": (
        "from fractions import Fraction\ndef f(): return Fraction(1, 2)",
        asserts("assert f() == 0.5"),
        "wrong",
    ),
    "huge numbers": ("def f(n): return 10 ** n", asserts("assert f(9000) == 10 ** 9000"), "ok"),
    "functions": (
        "def twice(f, x): return f(f(x))\ndef inc(x): return x + 1",
        asserts("assert twice(inc, 1) == 3"),
        "ok",
    ),
}


@with_and_without
@pytest.mark.slow
def test_verdicts(kind):
    with verifier(kind, workers=4) as code:
        responses, answers, expected = zip(*VERDICTS.values())
        scores = code.score(responses, answers)
    assert dict(zip(VERDICTS, scores.status)) == dict(zip(VERDICTS, expected))
    assert scores.reward.tolist() == [float(status == "ok") for status in expected]


@with_and_without
@pytest.mark.filterwarnings("error")
def test_shares(kind):
    with verifier(kind, partial=True) as code:
        tests = "assert add(1, 1) == 2\nassert add(1, 2) == 0\nassert add(2, 2) == 4\nassert 1"
        responses = [
            "print(input())",
            ADD,
            ADD + "print(x)",
            "print(int(input()))",
            "while input() != '2': pass",
        ]
        answers = [
            io(["1", "1"], ["2", "1"], ["1", "1"]),
            asserts(tests),
            asserts(tests),
            io(["x", "x"], ["1", "1"]),
        ]
        answers.append(io(["2", ""]))
        scores = code.score(responses, answers)
    assert scores.status.tolist() == ["wrong", "wrong", "wrong", "wrong", "ok"]
    np.testing.assert_allclose(scores.reward, [2 / 3, 3 / 4, 0, 1 / 2, 1])


@pytest.mark.slow
@with_and_without
def test_the_deadline_is_the_response_s(kind):
    sleeps = "import time\ntime.sleep(float(input()))\nprint(1)"
    loops = "while True: pass"
    cases = [
        sleeps,
        loops,
        f"def f(): pass\n{loops}",
        f"def f():\n    {loops}",
        f"import os\nos.close(1)\n{loops}",
    ]
    calls = json.dumps({"function": "f", "calls": [[[], None]]})
    answers = [io(["0.9", "1"], ["0.9", "1"]), io(["", ""]), calls, calls, io(["", ""])]
    with verifier(kind, deadline=1.5, workers=5) as code:
        assert code.score(cases, answers).status.tolist() == ["timeout"] * 5


def test_a_fenced_program_is_taken_from_the_response():
    with verifier("none", fenced=True) as code:
        responses = ["Here:\n```python\nprint(3)\n```\nDone.", "```\nprint(3)\n```", "print(3)"]
        responses += ["```python\nprint(3)\n", "```bash\nls\n```"]
        assert (
            code.score(responses, [io(["", "3"])] * 5).status.tolist()
            == ["ok"] * 2 + ["unparsed"] * 3
        )
        assert code.score(
            ["```python\n" + "#" * 200_000 + "\n```"], [io(["", ""])]
        ).status.tolist() == ["unparsed"]


def test_a_response_without_a_program_has_passed_no_share_of_the_tests():
    with verifier("none", fenced=True, partial=True) as code:
        assert code.score(["I cannot."], [io(["", "3"])]).reward.tolist() == [0]


def test_a_program_may_end_itself_as_in_an_interactive_interpreter():
    with verifier("none") as code:
        programs = ["print(1)\nexit()\nprint(2)", "print(1)\nquit()", "print(1)\nexit(3)"]
        status = code.score(programs, [io(["", "1"])] * 3).status.tolist()
        assert status[:2] == ["ok", "ok"] and status[2] != "ok"


def test_programs_in_responses():
    assert program("```py\na\n```\n```Python\nb\n```\n```text\nc\n```") == "b\n"
    assert program("```python title='x'\na\n```") == "a\n"
    assert program("```python\na\n```python\nb\n```") == "b\n"
    # In an item of a list the block is indented as far as its fence.
    assert program("1. So:\n\n   ```python\n   if a:\n       b\n   ```\n") == "if a:\n    b\n"
    assert program("  ```python\na\n\t b\n  ```") == "a\nb\n"
    assert program("a ```python\nb\n```") is None
    assert program("<answer>```python\na\n```</answer>") == "a\n"
    assert program("<answer>a ```python\nb\n```</answer>") is None
    # Fences in a docstring are lines of the program.
    for language in ("", "python"):
        held = f'def f():\n    """\n    ```{language}\n    f()\n    ```\n    """\n    return 1\n'
        assert program(f"```python\n{held}```") == held
        assert program(indent(f"```python\n{held}```", "   ")) == held
    assert program("```python\n\t```\na\n```") == "\t```\na\n"
    assert program("```python\na\n   ```\nb") == "a\n"
    for long in (
        "```python\n" * 100_000,
        "```" + " " * 500_000 + "`",
        "```" + "a" * 500_000 + "`",
        " " * 500_000 + "``",
    ):
        assert program(long) is None  # hours, if every blank were tried as the end of a run


@given(st.text("`pyx \n", max_size=40), st.text("pyx \n", max_size=40))
def test_the_last_block_is_the_program(before, source):
    closed = before + "\n```\n```\n" if (before + "\n").count("```") % 2 else before
    assert program(f"no fence\n```python\n{source}\n```\nno fence") == source + "\n"
    assert program(f"{closed}\n") is None or program(f"{closed}\n") in closed + "\n"


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ("1 2\n", "1 2", True),
        ("1\n2", "1 2", True),
        ("1 2", "12", False),
        ("", "", True),
        ("0.3333333", "0.33333333", True),
        ("1", "1.0", True),
        ("1.1", "1.2", False),
        ("2", "2.5", False),
        ("1.0", "1", False),
        ("nan", "1.0", False),
        ("inf", "1.5", False),
        ("x", "1.5", False),
    ],
)
def test_outputs(found, expected, same):
    assert same_output(found, expected) is same


def test_values():
    assert same((1, [2, (3,)]), [1, [2, [3]]]) and same(1.0000001, 1.0) and same(2, 2.0)
    assert (
        not same([1], [1, 2])
        and not same("1", 1)
        and not same(1.1, 1.0)
        and not same(None, 0.0)
        and not same([1], 1)
    )


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.tuples(st.integers()), inner)
        | st.frozensets(st.integers())
        | st.sets(st.text())
    ),
    max_leaves=12,
)


class TestLink:
    """What the checker takes from the answer's side, which may write anything into the pipe."""

    @pytest.fixture
    def link(self):
        """A link whose replies the test writes, of at most 64 bytes each."""
        requests_out, requests_in = os.pipe()
        replies_out, replies_in = os.pipe()
        link = Link(requests_in, replies_out, 64)
        link.write = lambda text: os.write(replies_in, text.encode())
        yield link
        link.replies.close()
        for end in (requests_out, requests_in, replies_in):
            os.close(end)

    def test_a_reply_is_a_value_or_an_exception(self, link):
        link.write('{"value": 3}\n{"raise": "KeyError", "text": ""}\n')
        assert link.ask("call", 1) == 3
        with pytest.raises(KeyError):
            link.ask("call", 1)
        assert not link.gone

    def test_the_rest_of_a_reply_that_was_too_long_answers_no_other_question(self, link):
        link.write(" " * 64 + '{"value": 3}\n')
        for _ in range(2):
            with pytest.raises(EOFError):
                link.ask("call", 1)
            assert link.gone

    @pytest.mark.parametrize("text", ["3\n", "[]\n", "{}\n", "held\n", '{"value": 3, "x": 0}\n'])
    def test_what_no_candidate_would_write_ends_the_conversation(self, link, text):
        link.write(text)
        with pytest.raises(ValueError):  # noqa: PT011
            link.ask("call", 1)
        assert link.gone

    def test_what_the_tests_cannot_hand_over_ends_nothing(self, link):
        with pytest.raises(TypeError):
            link.ask("call", object())
        deep = []
        for _ in range(5000):
            deep = [deep]
        with pytest.raises(RecursionError):
            link.ask("call", deep)
        link.write('{"value": 3}\n')
        assert link.ask("call", 1) == 3


@pytest.mark.slow
@with_and_without
def test_a_test_that_expects_an_error_is_not_passed_by_breaking_the_conversation(kind):
    """Whatever the checker meets when it reads nonsense, no test may take it for its own error."""
    forged = "import os\nfor end in range(3, 30):\n    try: os.write(end, b'{text}\\n')\n"
    forged += "    except OSError: pass\n"
    programs = [forged.replace("{text}", text) for text in ("nonsense", "3", "{}", "[")]
    tests = [
        f"try:\n    f(1)\nexcept {name}:\n    pass\nelse:\n    assert False"
        for name in ("ValueError", "TypeError", "KeyError", "Exception")
    ]
    pairs = [(program, asserts(test)) for program in programs for test in tests]
    with verifier(kind, workers=3) as code:
        scores = code.score(*zip(*pairs))
    assert set(scores.status) <= {"wrong", "crash"}
    assert not scores.reward.any()


@pytest.mark.slow
@given(PLAIN)
def test_plain_data_crosses_unchanged(value):
    def refused(*_):
        raise AssertionError

    back = decode(json.loads(json.dumps(encode(value, refused))), refused)
    assert back == value and type(back) is type(value)


# What is refused


@pytest.mark.parametrize(
    "argument",
    [
        {"sandbox": "docker"},
        {"sandbox": "weak"},
        {"fenced": 1},
        {"partial": "yes"},
        {"workers": 0},
        {"deadline": 0},
        {"memory_mb": 63},
        {"max_chars": 0},
    ],
)
def test_constructor_arguments(argument):
    name = next(iter(argument))
    with pytest.raises(ValueError, match=f"{name}="):
        Code(**{"sandbox": "none", **argument})


@pytest.mark.parametrize(
    "answer",
    [
        "3",
        "{",
        "[]",
        "{}",
        io(),
        io(["a"]),
        io([1, 2]),
        asserts("x = 1"),
        asserts("assert ("),
        json.dumps({"inputs": ["a"], "outputs": []}),
        json.dumps({"function": "f", "calls": [["ab", 1]]}),
        json.dumps({"fn_name": "f", "inputs": ["ab"], "outputs": [1]}),
        json.dumps({"function": "f"}),
    ],
)
def test_answers_without_tests(answer):
    with pytest.raises(ValueError, match=r"answers\[7\]="):
        read_tests(answer, "answers[7]")


@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")
def test_where_the_sandbox_cannot_be_had_the_refusal_names_it_and_the_way_without(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"bubblewrap.*sandbox='none'"):
        Code()
    # As in a container that may not make namespaces.
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho no namespaces >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    with pytest.raises(ChildProcessError, match=r"no namespaces.*sandbox='none'"):
        Code()


def test_config_and_lengths():
    code = verifier("none", deadline=3.0)
    assert Code(**code.config).config == code.config
    with pytest.raises(ValueError, match="answers"):
        code.score([], [io(["", ""])])
