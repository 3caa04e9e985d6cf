r"""Whether an answer is equivalent to a gold answer: what runs in the worker processes of `Math`.

Reading and comparing are Math-Verify's (https://github.com/huggingface/Math-Verify), with its own
time limits off: they are SIGALRM, whole seconds and main thread only. Its verdict "equivalent" is
accepted only if further questions have the right answer:

- Are small numbers close? Math-Verify rounds to six decimals, so 0.0 equals 1.6e-19 for it. Numbers
  below a thousandth are compared again, by their ratio, and so are percents.
- Has it read all that the answer says? Of `\ge 42`, `42_5`, "42 h 5 min", `\det(1)=42` and
  `42 \to 43` it passes over a part, and `40 2` is a sum for it. Such answers are `unparsed`.
- Which unknown has which value? Of `y=1, x=2` Math-Verify makes the point (1, 2).
- Are two words the same? Words are products of their letters for it, in whatever order.
- Does the answer contradict itself? Of `43=42` Math-Verify compares the last side alone.
- Does the text offer several answers, or deny or bound one? Of "the answer is 42 or 43", "it is not
  42" and "at most 42" Math-Verify reads one number.
"""

import logging
import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from itertools import chain, combinations, pairwise, product
from typing import Any

import math_verify
from latex2sympy2_extended.logic import And
from sympy import Basic, Equality, Expr, I, MatrixBase, Number, Rel, Set, Symbol, log
from sympy.core.expr import UnevaluatedExpr
from sympy.core.function import AppliedUndef, Derivative
from sympy.series.limits import Limit

from workbench.verifiers.boxes import BOX, readable, with_readable_powers
from workbench.verifiers.pool import Judge

SMALL = 1e-3  # numbers nearer to zero than this are compared by relative closeness
DIGITS = 6  # that must agree of such a number
MOST_DECIMALS = 1000  # numbers below 1e-994 count as equal

# Boxes that need no second look: one number or one fraction.
PLAIN = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?|\\[dt]?frac\{-?[0-9]+\}\{-?[0-9]+\})")
# A number as it is written, but no exponent behind a letter or a brace, as units have it.
NUMERAL = re.compile(r"(?<![A-Za-z}]\^)(?<![A-Za-z}]\^\{)[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?")
# Numbers side by side, which Math-Verify adds.
SIDE_BY_SIDE = re.compile(r"(?<![\\_^A-Za-z{.\d])[0-9][0-9.]*+(?:\s|\\[,;: ])++[0-9]")
INEQUALITY = r"(?:\\(?:geq?|leq?|[gl]eqslant|lt|gt|neq?|not|neg|sim)(?![A-Za-z])|[<>≠≤≥])"
# Words that make another number of the one in front of them, and those that deny or bound one.
SCALE = (
    r"(?:(?:hundred|thousand|million|billion|trillion|dozen|per\s?cent)\b"
    r"|(?:[a-z]++\s++){0,2}?and\s++an?\s++(?:half|third|quarter)\b)"
)
DENIAL = re.compile(
    rf"(?i)\b(?:{SCALE}|(?:not|cannot|never|neither|nor|but|except|excluding|than|most|least|wrong"
    r"|incorrect|false)\b)"
)
# A whole number that goes on.
GOES_ON = re.compile(r"(?<![.\d])[0-9]++(?:\\[,;:! ]|\s)*+\\[lcd]?dots[a-z]?\s*\Z")
# A number with plain words behind it. Math-Verify knows some units, and takes other words for
# products of letters. Names that stand for numbers, functions or operators are no such words.
NAMES = (
    "alpha|beta|gamma|delta|theta|lambda|sigma|omega|infinity|sqrt|sinh|cosh|tanh|times|over|choose"
)
# Units of one word, by the spelling that stands for all of them.
SPELLINGS = {
    "h": "hour hr",
    "min": "minute",
    "s": "second sec",
    "km": "kilometer kilometre",
    "m": "meter metre",
    "cm": "centimeter centimetre",
    "mm": "millimeter millimetre",
    "kg": "kilogram",
    "g": "gram",
    "mg": "milligram",
    "lb": "pound",
    "oz": "ounce",
    "ft": "foot feet",
    "in": "inch inche",
    "usd": "dollar",
    "eur": "euro",
}
KNOWN_UNITS = {each: unit for unit, others in SPELLINGS.items() for each in [unit, *others.split()]}
# Those of one letter may be variables.
SHORT_UNITS = "km|cm|mm|kg|mg|lbs?|oz|ft|in|min|hrs?|sec|mph|cups?|USD|EUR"
WORDED = re.compile(
    r"(?P<number>-?(?:\\?\$)?(?:[0-9][0-9.,/]*|\\[dt]?frac\{[0-9]+\}\{[0-9]+\}))"
    rf"\s+(?P<words>(?!(?:{NAMES})\b)(?:[A-Za-z]{{4,}}|(?:{SHORT_UNITS})\b)"
    r"(?:\s[A-Za-z]+){0,2})"
)
UNIT = re.compile(
    r"\\(?:text|mathrm|textrm|mbox|operatorname)\{([^{}]*)\}(?:\s*+\^\s*+\{?\s*+([0-9])\s*+\}?)?"
)
BETWEEN = re.compile(r",|\band\b|\\text\{\s*and\s*\}")  # two equations
EQUATION = re.compile(r"\s*([A-Za-z])\s*=([^=]+)")  # for an unknown of one letter
LETTER_AS_UNIT = re.compile(r"[0-9}]\s++([msgh])\s*+\Z")
# Words, of which Math-Verify makes products of letters, in which the order does not count.
WORDS_ALONE = re.compile(
    rf"(?=.*[A-Za-z]{{3}})(?!(?:{NAMES}|sin|cos|tan|log|exp|det|gcd|lcm|mod|max|min|inf|eta|chi"
    r"|phi|psi|rho|tau)\b)[A-Za-z]+(?:[ '-][A-Za-z]+)*"
)

# A number as running text writes it, and several of them of which one may be right.
# Possessive repeats (`++`, `*+`) never give back what they took, so no text makes a search slow.
NUMBER = r"-?\$?[0-9]++(?:,[0-9]{3}(?![0-9]))*+(?:\.[0-9]++)?(?:/[0-9]++)?%?"
WORDS = r"(?:\s++[A-Za-z]++){0,2}?"
MORE = r"(?i:or|maybe|perhaps|possibly|alternatively|and\s++also)\b"
OR = rf"{WORDS}[\s,.$(]*+(?:\b{MORE}|\b(?i:to)\b|[|;]){WORDS}[\s,$(]*+"
ALTERNATIVES = re.compile(rf"{NUMBER}(?:,\s++{NUMBER})*+{OR}{NUMBER}")
LISTED = re.compile(rf"{NUMBER}(?:(?:,\s++|\s++and\s++){NUMBER})++(?=\W*\Z)")
MEASURE = (
    r"\s?(?:hours?|h|minutes?|min|seconds?|days?|weeks?|months?|years?|feet|foot|ft|inch(?:es)?|in"
    r"|yards?|pounds?|lbs?|ounces?|oz|dollars?|cents?|k?m|cm|k?g)\b"
)
COMPOUND = re.compile(rf"{NUMBER}{MEASURE},?(?:\s++and)?\s++{NUMBER}{MEASURE}")
# What denies or bounds a number in front of it, and what denies or scales it behind.
BEFORE = (
    r"(?:(?:\b(?:not|cannot|never|no)|n't)(?:\s++[a-z]++){0,3}?|\b(?:than|at\s++most|at\s++least"
    r"|up\s++to|exceeds?|below|above|(?:differs?|different)\s++from|(?:any|every)thing\s++but"
    rf"|all\s++but|except(?:\s++for)?|excluding|neither|nor)|{INEQUALITY}=?)[\s$*]++"
)
BEHIND = (
    rf"[\s$*]++(?:{SCALE}|(?:cannot|can't|isn't|wasn't|doesn't)\b"
    r"|(?:is|was|are|does|can|would\s++be)"
    r"\s++(?:[a-z]++\s++)?(?:not|wrong|incorrect|false|excluded|impossible|too)\b)"
)
MENTION = re.compile(rf"(?i)(?P<before>{BEFORE})?(?P<number>{NUMBER})(?P<behind>{BEHIND})?")
SENTENCE_END = re.compile(rf"(?:\n|[.!?](?=\s|\Z))(?!\s{{0,4}}{MORE})")
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
        # Data sets write gold answers in many ways. The first form that can be read counts.
        for text in (BOX + answer + "}", f"${answer}$", answer):
            gold = parsed(text)
            if _is_read(gold):
                return gold
        return None

    def judge(item: dict) -> dict:
        shortages.clear()
        response = item["response"]
        is_box = response.startswith(BOX) and response.endswith("}")
        content = _with_words(readable(response[len(BOX) : -1])) if is_box else ""
        gold_text = _with_words(readable(item["answer"]))
        if gold_text.startswith("("):
            content = _as_point(content)
        elif content.startswith("("):
            gold_text = _as_point(gold_text)
        gold = gold_of(gold_text)
        if gold is None:
            return {"status": "unusable gold"}
        if content == gold_text:
            return {"status": "ok"}
        words, of_gold = map(_words, (content, gold_text))
        if words and of_gold:
            return {"status": "ok" if words == of_gold else "wrong"}
        answer = parsed(BOX + content + "}" if is_box else with_readable_powers(response))
        if _equivalent(gold, answer):
            if PLAIN.fullmatch(content):
                return {"status": "ok"}
            if is_box and _is_partly_read(content, answer, gold_text, gold, parsed):
                return {"status": "unparsed"}

            def right(number: str) -> bool:
                # As if it stood alone in a box. A bare % begins a comment in LaTeX.
                return _equivalent(gold, parsed(BOX + number.replace("%", r"\%") + "}"))

            if not is_box and _is_denied(response, gold_text, right):
                return {"status": "unparsed"}
            hedged = not is_box and _is_hedged(response, right)
            return {"status": "wrong" if hedged or _contradicts_itself(answer, gold) else "ok"}
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
    function = vars(module)[name]

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


# Equivalence, with small numbers, percents and the imaginary unit


def _equivalent(gold: list, answer: list) -> bool:
    """Whether any reading of the answer is equivalent to any of the gold answer."""
    # Beside what it reads, Math-Verify keeps the text of it, in which 42 % is 42.
    values = [[each for each in side if not isinstance(each, str)] for side in (gold, answer)]
    sides = values if all(values) else [gold, answer]
    return any(_same(*pair) for pair in product(*sides))


def _same(gold: Any, answer: Any) -> bool:
    """Whether two readings are equivalent. A comparison that fails settles nothing."""
    # Of what it cannot read, Math-Verify keeps the text, which equals nothing but a text.
    if isinstance(gold, str) or isinstance(answer, str):
        return bool(gold == answer)
    gold, answer = _with_imaginary_unit(gold, answer)
    if _is_number(gold) and _is_number(answer) and _in_percent(gold) and not _in_percent(answer):
        # Also right is the number of percents, of which Math-Verify knows the whole ones alone.
        if _close(100 * gold, answer):
            return True
    if not _verified(gold, answer, decimals=6, precision=15):
        return False
    if _is_number(gold) and _is_number(answer):
        return _close(gold, answer)
    # Equal to six decimals. That is enough unless a small number is involved, whose first
    # six decimals may all be zeros.
    decimals = max(_decimals(gold), _decimals(answer))
    if decimals <= 6:
        return True
    return _verified(gold, answer, decimals=decimals, precision=max(15, decimals + 1))


def _in_percent(reading: Any) -> bool:
    """Whether a number was read from an answer in percent."""
    return bool(reading.has(UnevaluatedExpr))


def _with_imaginary_unit(*readings: Any) -> tuple:
    """The readings, with i as the imaginary unit if one alone of them has a symbol of that name."""
    symbols = [
        reading.free_symbols if isinstance(reading, Basic | MatrixBase) else set()
        for reading in readings
    ]
    has_unit = ["i" in {symbol.name for symbol in each} for each in symbols]
    if all(has_unit) or not any(has_unit):
        return readings
    # Math-Verify makes other symbols of the same names where it reads complex numbers.
    return tuple(
        reading.xreplace({each: I if each.name == "i" else Symbol(each.name) for each in names})
        if names
        else reading
        for reading, names in zip(readings, symbols)
    )


def _is_number(reading: Any) -> bool:
    return isinstance(reading, Expr) and bool(reading.is_number)


def _close(a: Expr, b: Expr) -> bool:
    """Whether two numbers agree to six decimals, and small ones to six digits."""
    difference = abs((a - b).doit().evalf(20))
    # What has no size, as infinity, has been compared already.
    if not difference.is_comparable:
        return True
    smaller, larger = sorted((_size(a), _size(b)))
    # The second bound is for the errors of large floats.
    tolerance = max(10.0**-DIGITS * min(1, larger if smaller < SMALL else 1), 1e-12 * larger)
    return bool(difference <= tolerance)


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
    return min(MOST_DECIMALS, DIGITS + math.ceil(-float(log(min(sizes), 10))))


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
    # `doit` is for percents, which `evalf` leaves alone. Eight digits are plenty for an order of
    # magnitude.
    value = abs((number.doit() if number.has(UnevaluatedExpr) else number).evalf(8))
    return value if value.is_comparable else math.inf


# What Math-Verify passes over


def _is_partly_read(
    content: str, answer: list, gold_text: str, gold: list, parsed: Callable[[str], list]
) -> bool:
    """Whether the content of a box says more than its reading."""
    is_range = any(isinstance(reading, Set | Rel | And) for reading in gold)
    if re.search(INEQUALITY, content) and not is_range and not re.search(INEQUALITY, gold_text):
        return True
    words, of_gold = ({*map(str.lower, DENIAL.findall(text))} for text in (content, gold_text))
    if GOES_ON.search(content) or words - of_gold or _passes_over(content, answer[0], gold, parsed):
        return True
    units = {unit for unit in map(_unit, (content, gold_text)) if unit}
    if len(units) > 1 or SIDE_BY_SIDE.search(content):
        return True
    unread = _unread(content, answer[0], parsed)
    # A gold answer may have such a part too, as 1101_2 has its base.
    return bool(unread) and not unread <= _unread(gold_text, gold[0], parsed)


def _passes_over(content: str, reading: Any, gold: list, parsed: Callable[[str], list]) -> bool:
    r"""Whether the last side of an equation is read alone, and another is no name and not right.

    Of `\det(1)=42` and `5 \bmod 3=42` the left side is not read. `\dim V=42` is a name.
    """
    *others, _ = content.split("=") if _is_number(reading) else [content]
    for side in others:
        rest = re.sub(r"\\[A-Za-z]+", "", side)
        is_name = re.search("[A-Za-z]", rest) and not re.search("[0-9]", rest)
        if not is_name and not _equivalent(gold, parsed(BOX + side + "}")):
            return True
    return False


def _with_words(content: str) -> str:
    r"""The content of a box with plain words behind a number as a text.

    >>> _with_words("18 dollars")
    '18\\text{ dollars}'
    """
    worded = WORDED.fullmatch(content)
    return rf"{worded['number']}\text{{ {worded['words']}}}" if worded else content


def _as_point(content: str) -> str:
    """The values of several unknowns in the order of their letters; anything else as it is.

    >>> _as_point("y=2, x=1"), _as_point("x=1, x=2")
    ('(1, 2)', 'x=1, x=2')
    """
    values = {}
    parts = BETWEEN.split(content)
    for equation in map(EQUATION.fullmatch, parts):
        if equation:
            values[equation[1]] = equation[2].strip()
    # Every part has to be an equation, for an unknown of its own.
    if len(values) < max(2, len(parts)):
        return content
    return f"({', '.join(values[name] for name in sorted(values))})"


def _unit(text: str) -> str:
    """The unit of a number in its shortest known spelling, with its power; empty without one."""
    if not re.search("[0-9]", text):
        return ""
    unit = "".join(map("".join, UNIT.findall(text)))
    letter = LETTER_AS_UNIT.search(text)
    if not unit and letter:
        unit = letter[1]
    unit = re.sub(r"[\s.]", "", unit).lower()
    # A plural ends in front of the power.
    name, power = re.fullmatch(r"(.*?)([0-9]?)", unit).groups()
    name = name if name in KNOWN_UNITS else name.rstrip("s")
    return KNOWN_UNITS.get(name, name) + power


def _words(text: str) -> str:
    r"""What consists of words alone, in lower case; nothing for anything else.

    >>> _words(r"\text{Seat}"), _words("ab"), _words("seat 2")
    ('seat', '', '')
    """
    text = UNIT.sub(r"\1", text).strip("$ ")
    return " ".join(text.lower().split()) if WORDS_ALONE.fullmatch(text) else ""


def _unread(content: str, reading: Any, parsed: Callable[[str], list]) -> set[str]:
    """The numbers in a box that change nothing about its reading."""
    unread = set()
    atoms = reading.atoms(Number) if isinstance(reading, Basic | MatrixBase) else ()
    known = {str(part) for number in atoms for part in abs(number).as_numer_denom()}
    for numeral in NUMERAL.finditer(content):
        if numeral.group() in known:
            continue
        # Another number in its place would be read otherwise.
        changed = content[: numeral.start()] + "9" + content[numeral.start() :]
        if parsed(BOX + changed + "}")[:1] == [reading]:
            unread.add(numeral.group())
    return unread


# Contradictions


def _contradicts_itself(answer: list, gold: list) -> bool:
    """Whether an equation in the answer has two sides that are different numbers, or a chain of
    them says of a second unknown what the gold answer says of one.
    """
    is_about_one = any(isinstance(reading, Equality) for reading in gold)
    for reading in answer:
        for sides in map(_worked_out, _chains(reading)):
            if any(_differ(a, b) for a, b in combinations(filter(_is_number, sides), 2)):
                return True
            unknowns = {side for side in sides if isinstance(side, Symbol)}
            if is_about_one and len(sides) > 2 and len(unknowns) > 1:
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


def _worked_out(sides: list) -> list:
    """The sides of an equation, with derivatives and limits of known functions worked out."""
    found = []
    for side in sides:
        operators = side.atoms(Derivative, Limit)
        bound = {symbol for each in operators for symbol in each.args[1].atoms(Symbol)}
        if bound and not side.has(AppliedUndef) and side.free_symbols <= bound:
            # What holds for all numbers holds for one.
            side = side.doit().subs(dict.fromkeys(bound, Number(1) / 7))
        found.append(side)
    return found


def _differ(a: Any, b: Any) -> bool:
    """Whether two numbers differ by more than the last decimal that either of them shows."""
    # `doit` works out what the parser has left unevaluated.
    difference = abs((a - b).doit().evalf(15))
    if difference.is_infinite or not difference.is_comparable:
        return bool(difference.is_infinite)
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


def _is_denied(response: str, gold_text: str, right: Callable[[str], bool]) -> bool:
    """Whether running text mentions a right number last to deny, to bound or to scale it."""
    sentences = SENTENCE_END.split(response)
    numbered = [i for i, text in enumerate(sentences) if re.search("[0-9]", text)]
    if not numbered:
        return False
    of_answer = [i for i, text in enumerate(sentences) if "answer" in text.lower()]
    # The sentence of the last "answer", or the next one with a number; else the last with one.
    place = next((i for i in numbered if of_answer and i >= of_answer[-1]), numbered[-1])
    # What comes later may say that the answer is wrong, and may speak of other numbers.
    later = "\n".join(sentences[place + 1 :])
    for text, groups in ((sentences[place], ("before", "behind")), (later, ("behind",))):
        for mention in reversed(list(MENTION.finditer(text[-LONGEST_STATEMENT:]))):
            if right(mention["number"]):
                said = [mention[group].strip().lower() for group in groups if mention[group]]
                if any(words not in gold_text.lower() for words in said):
                    return True
                break
    return False


def _is_hedged(response: str, right: Callable[[str], bool]) -> bool:
    """Whether running text offers several numbers of which one is right and another is not."""
    statement = _statement(response)
    offers = [pattern.search(statement) for pattern in (ALTERNATIVES, COMPOUND)]
    offers.append(LISTED.search(_answer(response)) or LISTED.match(statement.strip()))
    for offer in offers:
        verdicts = [right(number) for number in re.findall(NUMBER, offer.group() if offer else "")]
        if any(verdicts) and not all(verdicts):
            return True
    return False


def _statement(response: str) -> str:
    """The sentence that gives the answer: behind the last "answer", else the last with a digit."""
    if "answer" in response.lower():
        return _answer(response)
    numbered = (text for text in SENTENCE_END.split(response)[::-1] if re.search("[0-9]", text))
    return next(numbered, "")


def _answer(response: str) -> str:
    """The rest of the sentence behind the last "answer"."""
    behind = response.lower().rfind("answer")
    if behind < 0:
        return ""
    return SENTENCE_END.split(response[behind:][:LONGEST_STATEMENT], maxsplit=1)[0]
