r"""Whether an answer is equivalent to a gold answer: what runs in the worker processes of `Math`.

Reading and comparing are Math-Verify's (https://github.com/huggingface/Math-Verify), with its own
time limits off: they are SIGALRM, whole seconds and main thread only. Its verdict "equivalent" is
accepted only if three further questions have the right answer:

- Are small numbers close? Math-Verify rounds to six decimals, so 0.0 equals 1.6e-19 for it. Numbers
  below a thousandth are compared again, with as many decimals as give them six digits.
- Does the answer contradict itself? Of `43=42` Math-Verify compares the last side alone.
- Does the text offer several answers? Of "the answer is 42 or 43" Math-Verify reads one number.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from itertools import chain, combinations, pairwise, product
from typing import Any

try:
    import math_verify
except ImportError as error:
    raise ImportError(
        f"{error}; install it with: pip install 'math-verify[antlr4_13_2]'"
    ) from error
from latex2sympy2_extended.logic import And
from sympy import (
    Add,
    Basic,
    Equality,
    Expr,
    MatrixBase,
    Mul,
    Number,
    NumberSymbol,
    Pow,
    log,
    preorder_traversal,
)
from sympy.core.expr import UnevaluatedExpr

from workbench.verifiers.boxes import BOX, readable, with_readable_box
from workbench.verifiers.worker import Judge

SMALL = 1e-3  # numbers nearer to zero than this are compared by relative closeness
DIGITS = 6  # that must agree of such a number
MOST_DECIMALS = 1000  # numbers below 1e-994 count as equal

# What a plain number is made of: numbers, sums, products, powers and percents.
PLAIN = (Number, NumberSymbol, Add, Mul, Pow, UnevaluatedExpr)

# A number as running text writes it, and several of them of which one may be right.
# Possessive repeats (`++`, `*+`) never give back what they took, so no text makes a search slow.
NUMBER = r"-?\$?[0-9]++(?:,[0-9]{3}(?![0-9]))*+(?:\.[0-9]++)?(?:/[0-9]++)?%?"
WORDS = r"(?:\s++[A-Za-z]++){0,2}?"
OR = rf"{WORDS}\s*+,?\s*+\bor\b{WORDS}\s++"
ALTERNATIVES = re.compile(rf"{NUMBER}(?:,\s++{NUMBER})*+{OR}{NUMBER}")
LISTED = re.compile(rf"{NUMBER}(?:(?:,\s++|\s++and\s++){NUMBER})++(?=\W*\Z)")
SENTENCE_END = re.compile(r"\n|[.!?](?=\s|\Z)")
LONGEST_STATEMENT = 300  # characters behind the last "answer" that are read


def equivalence() -> Judge:
    """The judge, made in the worker: loads Math-Verify and warms its LaTeX parser up.

    Running out of memory is a `crash` even where Math-Verify would carry on. Nesting too deep for
    the interpreter (RecursionError) and other failures count as Math-Verify counts them: as not
    read (`unparsed`) while parsing, as not equivalent (`wrong`) while comparing.
    """
    # Nobody would read what libraries log: both outputs of a worker lead nowhere.
    logging.disable(logging.CRITICAL)
    shortages: list[MemoryError] = []
    _note_shortages(math_verify.parser, "latex2sympy", shortages)
    _note_shortages(math_verify.grader, "simplify", shortages)

    def parsed(text: str) -> list:
        return math_verify.parse(text, parsing_timeout=None)

    # All rollouts of a problem come with the same gold answer.
    @lru_cache(maxsize=4096)
    def gold_of(answer: str) -> list | None:
        answer = readable(answer)
        # Data sets write gold answers in many ways. The first form that can be read counts.
        for text in (BOX + answer + "}", f"${answer}$", answer):
            gold = parsed(text)
            if _is_read(gold):
                return gold
        return None

    def judge(item: dict) -> dict:
        shortages.clear()
        gold = gold_of(item["answer"])
        if gold is None:
            return {"status": "unusable gold"}
        response = with_readable_box(item["response"])
        answer = parsed(response)
        if _equivalent(gold, answer):
            right = not _contradicts_itself(answer) and not _is_hedged(response, gold, parsed)
            return {"status": "ok" if right else "wrong"}
        # Two readings that agree settle the matter. That none agrees settles nothing if memory ran
        # out on the way, since the comparison that was cut short might have agreed.
        if shortages:
            raise MemoryError
        return {"status": "wrong" if _is_read(answer) else "unparsed"}

    # The worker makes its judge before it forks, so what the first
    # answers load is there for every fork.
    for text in (r"\frac{1}{2}+x^2", r"(1, \sqrt{2})", "0.5"):
        judge({"answer": text, "response": BOX + text + "}"})
    return judge


def _note_shortages(module: Any, name: str, shortages: list[MemoryError]) -> None:
    """Have a function that Math-Verify calls inside `except Exception` leave word of running out of
    memory.
    """
    function = getattr(module, name)

    @wraps(function)
    def noting(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except MemoryError as shortage:
            shortages.append(shortage.with_traceback(None))
            raise

    setattr(module, name, noting)


def _is_read(parsed: list) -> bool:
    """Whether Math-Verify found mathematics. Text that it found but could not read comes back as a
    string alone.
    """
    return any(not isinstance(part, str) for part in parsed)


# Equivalence, with small numbers


def _equivalent(gold: list, answer: list) -> bool:
    """Whether any reading of the answer is equivalent to any of the gold answer."""
    return any(_same(*pair) for pair in product(gold, answer))


def _same(gold: Any, answer: Any) -> bool:
    """Whether two readings are equivalent. A comparison that fails settles nothing."""
    if not _verified(gold, answer, decimals=6, precision=15):
        return False
    # Equal to six decimals. That is enough unless a small number is involved, whose first
    # six decimals may all be zeros.
    decimals = max(_decimals(gold), _decimals(answer))
    if decimals <= 6:
        return True
    return _verified(gold, answer, decimals=decimals, precision=max(15, decimals + 1))


def _verified(gold: Any, answer: Any, decimals: int, precision: int) -> bool:
    try:
        return math_verify.verify(
            gold,
            answer,
            float_rounding=decimals,
            numeric_precision=precision,
            allow_set_relation_comp=True,
            timeout_seconds=None,
            raise_on_error=True,
        )
    except MemoryError:
        # Not a comparison that failed: the worker turns running out of memory into a `crash`.
        raise
    except Exception:
        return False


def _decimals(reading: Any) -> int:
    """How many decimals it takes to compare six digits of the smallest number in a reading."""
    # A zero asks for no decimals. When it is compared with a small number, that one does.
    sizes = [size for size in map(_size, _numbers(reading)) if 0 < size < SMALL]
    if not sizes:
        return 0
    return min(MOST_DECIMALS, DIGITS + math.ceil(-_log10(min(sizes))))


def _numbers(reading: Any) -> Iterator[Any]:
    """The largest parts of a reading that are numbers: coefficients, elements, bounds."""
    if isinstance(reading, MatrixBase):
        for element in reading.flat():
            yield from _numbers(element)
    elif isinstance(reading, Expr) and reading.is_number:
        yield reading
    elif isinstance(reading, Basic):
        for part in reading.args:
            yield from _numbers(part)


def _size(number: Any) -> Any:
    """The absolute value of a sympy number; infinity where it has none."""
    # Eight digits are plenty for an order of magnitude.
    value = abs(number.evalf(8))
    return value if value.is_comparable else math.inf


def _log10(size: Any) -> float:
    return float(log(size, 10))


# Contradictions


def _contradicts_itself(answer: list) -> bool:
    """Whether an equation in the answer has two sides that are different plain numbers."""
    for reading in answer:
        for sides in _chains(reading):
            plain = [side for side in sides if _is_plain(side)]
            if any(_differ(a, b) for a, b in combinations(plain, 2)):
                return True
    return False


def _chains(reading: Any) -> Iterator[list]:
    """The sides of every equation in a reading: those of a chain a = b = c together."""
    if isinstance(reading, Equality):
        yield list(reading.args)
    elif isinstance(reading, And) and all(isinstance(part, Equality) for part in reading.args):
        parts = reading._unsorted_args  # in the order in which they were written
        # Math-Verify reads a = b = c as a = b and b = c. Equations that share no
        # side are looked at one by one.
        linked = all(left.rhs == right.lhs for left, right in pairwise(parts))
        sides = [list(part.args) for part in parts]
        yield from [list(chain.from_iterable(sides))] if linked else sides
    elif isinstance(reading, Basic):
        for part in reading.args:
            yield from _chains(part)


def _is_plain(side: Any) -> bool:
    """Whether a side is a number made of numbers alone. Functions are left out, since Math-Verify
    reads the sine of 30 degrees as one of 30 radians.
    """
    if not (isinstance(side, Expr) and side.is_number):
        return False
    return all(isinstance(part, PLAIN) for part in preorder_traversal(side))


def _differ(a: Any, b: Any) -> bool:
    """Whether two plain numbers differ by more than the last decimal that either of them shows."""
    # `doit` works out what the parser has left unevaluated.
    difference = abs((a - b).doit().evalf(15))
    scale = max(_size(a), _size(b))
    shown = [_last_decimal(part) for side in (a, b) for part in side.atoms() if part.is_Float]
    # Just under one unit: 2/3 = 0.667 is a rounding, while 3.14 = 3.15 is a contradiction. Without
    # decimals only the errors of floats are forgiven.
    tolerance = max([0.999 * unit for unit in shown], default=0.0)
    return bool(difference > max(tolerance, 1e-9 * scale))


def _last_decimal(number: Any) -> float:
    """The unit of the last decimal of a float as it is written: 0.01 for 3.14."""
    decimals = repr(float(number)).partition(".")[2]
    # Scientific notation, as in 1e-07, leaves no digits to go by and earns no tolerance.
    return 10.0 ** -len(decimals) if decimals.isdigit() else 0.0


# Several answers at once


def _is_hedged(response: str, gold: list, parsed: Callable[[str], list]) -> bool:
    """Whether the response offers several numbers of which one is right and another is not.

    Only running text is looked at: several answers in a box, or several formulas joined by "or",
    are a set for Math-Verify.
    """
    if "\\boxed" in response:
        return False
    alternatives = ALTERNATIVES.search(_statement(response)) or LISTED.search(_answer(response))
    if alternatives is None:
        return False
    # Each number is judged as if it stood alone in a box. A bare % begins a comment in LaTeX.
    right = [
        _equivalent(gold, parsed(BOX + number.replace("%", r"\%") + "}"))
        for number in re.findall(NUMBER, alternatives.group())
    ]
    return any(right) and not all(right)


def _statement(response: str) -> str:
    """The sentence that gives the answer: behind the last "answer", else the last with a digit."""
    if "answer" in response.lower():
        return _answer(response)
    sentences = SENTENCE_END.split(response)
    return next((text for text in reversed(sentences) if re.search("[0-9]", text)), "")


def _answer(response: str) -> str:
    """The rest of the sentence behind the last "answer"."""
    behind = response.lower().rfind("answer")
    if behind < 0:
        return ""
    return SENTENCE_END.split(response[behind:][:LONGEST_STATEMENT], maxsplit=1)[0]
