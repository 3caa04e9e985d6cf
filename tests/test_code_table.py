"""Which part of a response is the program, and what it may use: a table of responses by kind."""

import json

import pytest
from programs import DEADLINE

from workbench.verifiers import Code

# Each form of tests with a program that passes them, one that fails, and a demonstration of it.
FORMS = {
    "calls": (
        json.dumps({"function": "total", "calls": [[[[1, 2]], 3], [[[5]], 5]]}),
        "def total(xs):\n    return sum(xs)",
        "def total(xs):\n    return len(xs)",
        "print(total([1, 2]))",
    ),
    "asserts": (
        json.dumps({"asserts": "assert total([1, 2]) == 3\nassert total([]) == 0"}),
        "def total(xs):\n    return sum(xs)",
        "def total(xs):\n    return 3",
        "xs = [1, 2]\nprint(total(xs))",
    ),
    "input": (
        json.dumps({"stdin_stdout": [["1 2\n", "3\n"], ["4 5\n", "9\n"]]}),
        "print(sum(map(int, input().split())))",
        "print(len(input().split()))",
        "print(1 + 2)",
    ),
}
# Where a response has its program P, an output or a demonstration D of it.
LAYOUTS = {
    "alone": "```python\nP\n```",
    "prose around": "Here it is:\n\n```python\nP\n```\nIt takes linear time.",
    "output after it": "```python\nP\n```\nOutput:\n```\n3\n```",
    "output of several lines": "```python\nP\n```\n```\n3\n9\n```\nand\n```text\nok\n```",
    "a demonstration after it": "```python\nP\n```\nUse it so:\n```python\nD\n```",
    "a demonstration that names no language": "```python\nP\n```\nUse it so:\n```\nD\n```",
    "a demonstration before it": "```python\nD\n```\nbecomes\n```python\nP\n```",
    "a shell command after it": "```python\nP\n```\nRun it:\n```\npython answer.py\n```",
    "a complexity after it": "```python\nP\n```\n```\nO(n) time\n```",
    "a fence on the last line": "```python\nP```",
    "a fence on the last line and output": "```python\nP```\n```\n3\n```",
    "tildes": "~~~python\nP\n~~~",
    "four backticks": "````python\nP\n````",
    "four backticks with three inside": '````python\n"""\n```\nx\n```\n"""\nP\n````',
    "no language": "```\nP\n```",
    "py": "```py\nP\n```",
    "ipython": "```ipython\nP\n```",
    "a mark amid a line": '```python\n"""uses ```"""\nP\n```',
    "an empty block after it": "```python\nP\n```\n```python\n```",
    "a block of data after it": '```python\nP\n```\n```json\n{"a": 1}\n```',
    "an indented block": "1. So:\n\n   ```python\nP\n   ```",
    "a title": "```python title='answer.py'\nP\n```",
    "behind a thought": "<think>\n```python\n1/0\n```\n</think>\n```python\nP\n```",
    "behind another thought": "<thinking>Hm.</thinking>```python\nP\n```",
    "behind a thought that the prompt opened": "Hm.\n</think>\n```python\nP\n```",
}
NOTHING = {
    "in a thought": "<think>\n```python\nP\n```",
    "in a thought that ends": "<think>\n```python\nP\n```\n</think> I do not know.",
    "in another thought": "<thinking>\n```python\nP\n```\n</thinking>",
    "in a thought in brackets": "[THINK]\n```python\nP\n```",
    "cut off": "```python\nP\n",
    "another language": "```java\nP\n```",
    "in prose": "P",
}
# What judges of such data sets provide: an expression, and its value.
PROVIDED = {
    "defaultdict(int)['a']": 0,
    "heapq.heappop([1, 2])": 1,
    "inf > 10 ** 9": True,
    "gcd(12, 18)": 6,
    "deque([1, 2]).popleft()": 1,
    "math.floor(2.5)": 2,
    "heappop([1, 2])": 1,
    "bisect_left([1, 2, 3], 2)": 1,
    "bisect.bisect([1, 2], 1)": 1,
    "Counter('aab')['a']": 2,
    "list(accumulate([1, 2]))": [1, 3],
    "reduce(lambda a, b: a * b, [2, 3])": 6,
    "comb(5, 2)": 10,
    "itertools.repeat(1).__next__()": 1,
    "collections.deque([3]).pop()": 3,
    "len(string.ascii_lowercase)": 26,
    "re.sub('a', 'b', 'ca')": "cb",
    "ceil(sqrt(17))": 5,
    "pow(2, 10, 1000)": 24,
    "functools.reduce(max, [1, 3, 2])": 3,
    "json.loads('[1]')[0]": 1,
    "time.time() > 0": True,
    "is_dataclass(1)": False,
    "array.array('i', [1])[0]": 1,
    "OrderedDict(a=1)['a']": 1,
    "list(permutations([1, 2]))[1]": [2, 1],
}
STARTERS = (
    "class Solution:\n    def f(self, x: List[int]) -> Optional[int]:\n        return {}",
    "from __future__ import annotations\n\ndef f(x):\n    return {}",
)
ASSERTS = {
    "a change in place": ("def f(a):\n    a.sort()", "a = [3, 1]\nf(a)\nassert a == [1, 3]", True),
    "no change in place": (
        "def f(a):\n    sorted(a)",
        "a = [3, 1]\nf(a)\nassert a == [1, 3]",
        False,
    ),
    "a dict changed": ("def f(d):\n    d['a'] = 1", "d = {}\nf(d)\nassert d == {'a': 1}", True),
    "a set changed": ("def f(s):\n    s.add(1)", "s = set()\nf(s)\nassert s == {1}", True),
    "a function of Python": ("def f(g, x):\n    return g(x)", "assert f(len, [1, 2]) == 2", True),
    "a type of Python": ("def f(g, x):\n    return g(x)", "assert f(int, '7') == 7", True),
    "another function of Python": ("def f(g, x):\n    return x", "assert f(sum, [1]) == 1", False),
    "a missing key": (
        "from collections import Counter\nf = Counter",
        "assert f('aab')['z'] == 0\nassert f('aab') == {'a': 2, 'b': 1}",
        True,
    ),
    "a wrong count": (
        "from collections import Counter\nf = Counter",
        "assert f('aab')['a'] == 3",
        False,
    ),
}


def rows():
    """(kind, response, tests, status)"""
    for form, (tests, right, wrong, demo) in FORMS.items():
        for kind, layout in LAYOUTS.items():
            for source, status in ((right, "ok"), (wrong, "wrong")):
                text = layout.replace("D", demo) if "D" in layout else layout
                yield f"{kind}, {form}", text.replace("P", source), tests, status
        for kind, layout in NOTHING.items():
            yield f"{kind}, {form}", layout.replace("P", right), tests, "unparsed"
    for starter in STARTERS:
        for expression, value in PROVIDED.items():
            tests = json.dumps({"function": "f", "calls": [[[[1]], value]]})
            source = starter.format(expression)
            yield f"provided: {expression}", f"```python\n{source}\n```", tests, "ok"
    for kind, (source, text, is_right) in ASSERTS.items():
        status = "ok" if is_right else "wrong"
        yield kind, f"```python\n{source}\n```", json.dumps({"asserts": text}), status


ROWS = list(rows())


def test_the_table_is_large_enough():
    assert len(ROWS) >= 120


@pytest.mark.long
def test_every_row_of_the_table():
    with Code(deadline=DEADLINE) as verifier:
        found = verifier.score([row[1] for row in ROWS], [row[2] for row in ROWS]).status
    assert [(*row[:2], status) for row, status in zip(ROWS, found) if row[3] != status] == []


@pytest.mark.parametrize(
    "tests", [{"inputs": [1], "outputs": [2]}, {"stdin_stdout": [["1", None]]}]
)
def test_inputs_that_are_no_texts_are_named(tests):
    with pytest.raises(ValueError, match=r"answers\[0\]=.*an input or an output is"):
        Code(sandbox="none").score(["```\n1\n```"], [json.dumps(tests)])
