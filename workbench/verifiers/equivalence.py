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
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache, partial, wraps
from itertools import accumulate, chain, combinations, pairwise, product
from typing import Any

import math_verify
import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from latex2sympy2_extended.logic import And
from latex2sympy2_extended.math_normalization import NormalizationConfig
from sympy.core.expr import UnevaluatedExpr
from sympy.core.function import AppliedUndef

from workbench.verifiers.boxes import BOX
from workbench.verifiers.forms import readable, split, verdict
from workbench.verifiers.grammar import patterns
from workbench.verifiers.pool import Judge

OPERATORS = (sympy.Integral, sympy.Limit, sympy.Product, sympy.Sum)
PATTERN = patterns("equivalence")
SMALL = 1e-3  # numbers nearer to zero than this are compared by relative closeness
DIGITS = 6  # that must agree of such a number
MOST_DECIMALS = 1000  # numbers below 1e-994 count as equal

# Its own stripping of units would take letters for them, and its search for numbers in what it
# cannot read would find a part of it.
READING = math_verify.LatexExtractionConfig(
    normalization_config=NormalizationConfig(units=False, malformed_operators=True, nits=True)
)

NAMED = {"∞": "oo", r"\infty": "oo", r"\ln": "log", r"\pi": "pi", "π": "pi"}


def equivalence() -> Judge:
    """The judge, made in the worker: loads Math-Verify and warms its LaTeX parser up.

    Running out of memory is a `crash` even where Math-Verify would carry on. Nesting too deep for
    the interpreter (RecursionError) and other failures count as Math-Verify counts them: as not
    read (`unparsed`) while parsing, as not equivalent (`wrong`) while comparing.
    """
    # Nobody would read what libraries log: both outputs of a worker lead nowhere.
    logging.disable(logging.CRITICAL)
    shortages: list[MemoryError] = []
    # By itself it reads capitals as small letters, and so R^2 - r^2 as 0.
    as_written = ConversionConfig(lowercase_symbols=False)
    reader = partial(math_verify.parser.latex2sympy, conversion_config=as_written)
    math_verify.parser.latex2sympy = reader
    _note_shortages(math_verify.parser, "latex2sympy", shortages)
    _note_shortages(math_verify.grader, "simplify", shortages)

    def judge(item: dict) -> dict:
        shortages.clear()
        response, gold_text = item["response"], item["answer"]
        known = _gold_of(gold_text)
        if isinstance(known, str):
            return {"status": "unusable gold", "read": known}
        status = _compared(readable(response[len(BOX) : -1]), readable(gold_text), known)
        # Two readings that agree settle the matter. That none agrees settles nothing if memory ran
        # out on the way, since the comparison that was cut short might have agreed.
        if shortages and status != "ok":
            raise MemoryError
        return {"status": status}

    # The worker makes its judge before it forks, so what the first
    # answers load is there for every fork.
    for text in (r"\frac{1}{2}+x^2", r"(1, \sqrt{2})", "0.5"):
        judge({"answer": text, "response": BOX + text + "}"})
    return judge


# All rollouts of a problem come with the same gold answer.
@lru_cache(maxsize=4096)
def _gold_of(answer: str) -> tuple[str, str, list] | str:
    """A gold answer without its unit, the unit, and its readings; what is read of it, where that is
    not the whole.
    """
    text = readable(answer)
    if PATTERN.MISSING.fullmatch(answer.strip()):
        return "nothing"
    core, unit = _parts(text) or ("", "")
    gold = _ranges(_parsed(core) if core else [], core)
    passed = _passed_over(core, gold[0]) if _is_read(gold) else ["anything"]
    if passed and verdict(text, text) == "ok":
        return text, "", []
    if not _is_read(gold):
        return "nothing"
    return (core, unit, gold) if not passed else f"{gold[0]}, and not {passed[0]}"


@lru_cache(maxsize=4096)
def _parsed(core: str) -> list:
    """Math-Verify's readings of an answer without its unit."""
    number = core.removesuffix(r"\%")
    # In a formula it reads percents of plain numbers alone.
    is_share = number != core and not PATTERN.PLAIN.fullmatch(number)
    text = rf"${number}$\%" if is_share else BOX + core + "}"
    return math_verify.parse(text, [READING], parsing_timeout=None)


def _compared(content: str, gold_text: str, known: tuple[str, str, list]) -> str:
    """The status of what a box holds."""
    gold_core, gold_unit, gold = known
    # The same text, in which the answers that "or" joins may come in any order.
    said, wanted = (
        sorted(PATTERN.EITHER.split(text.replace(" ", ""))) for text in (content, gold_text)
    )
    if said == wanted and not PATTERN.SIDE_BY_SIDE.search(content):
        return "ok"
    if re.search(r"\.|\\frac|/", gold_text) and PATTERN.DECIMAL_COMMA.fullmatch(content):
        content = content.replace(",", ".")
    if content.count(r"\approx") == 1:
        exact, rounded = content.split(r"\approx")
        return _rounded(exact, rounded, gold_text, known)
    offers = PATTERN.EITHER.split(content)
    is_one = not PATTERN.SEVERAL.search(gold_text)
    if len(offers) > 1 and is_one:
        statuses = {_compared(offer.strip(), gold_text, known) for offer in offers}
        return statuses.pop() if len(statuses) == 1 else "wrong"
    status = verdict(gold_text, content)
    if status or not gold:
        return status or "unparsed"
    core, unit = _parts(content) or ("", "")
    # Of (y,x)=(1,2) Math-Verify compares the values alone.
    bare = [re.sub(r"\s|\\left|\\right", "", side) for side in (gold_core, core)]
    names = [found[0] for found in map(PATTERN.NAMES.match, bare) if found]
    if len(set(names)) > 1:
        return "unparsed"
    # Values of unknowns on both sides may come in any order.
    if "=" not in gold_core:
        # Indices count the values of one unknown.
        core = PATTERN.INDEXED.sub(r"\1", core)
    points = [_as_point(text) for text in (gold_core, core)]
    are_values = points[0] != gold_core and points[1] != core
    unknowns = [set(PATTERN.UNKNOWN.findall(text)) for text in (gold_core, core)]
    if are_values and unknowns[0] != unknowns[1]:
        return "wrong"
    is_value = gold_core.startswith("(") or "=" not in gold_core
    if are_values or (not is_value and (core.startswith("(") or "=" not in core)):
        gold_core = _value(points[0])
        gold = _parsed(gold_core)
    if are_values or is_value:
        core = _value(points[1])
    answer = _ranges(_parsed(core) if core else [], core)
    if not _is_read(answer):
        return "unparsed"
    if not _equivalent(gold, answer) or not _as_often(gold_core, core):
        return "wrong"
    if unit and gold_unit and unit != gold_unit:
        return "unparsed"
    if PATTERN.PLAIN.fullmatch(core):
        return "ok"
    if _says_more(core, answer, gold_core, gold):
        return "unparsed"
    return "wrong" if _contradicts_itself(answer, gold) else "ok"


def _rounded(exact: str, rounded: str, gold_text: str, known: tuple[str, str, list]) -> str:
    """The status of a number and its rounding, of which either may be the answer."""
    if not exact.strip() or PATTERN.NAME.fullmatch(exact):
        return _compared(rounded.strip(), gold_text, known) if "." in rounded else "unparsed"
    sides = [side.strip() for side in (exact, rounded)]
    cores = [(_parts(side) or ("", ""))[0].rpartition("=")[2] for side in sides]
    numbers = [reading for core in cores for reading in _parsed(core)[:1] if _is_number(reading)]
    if len(numbers) < 2 or _differ(*numbers):
        return "unparsed"
    return "ok" if "ok" in {_compared(side, gold_text, known) for side in sides} else "wrong"


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
    if isinstance(gold, sympy.Symbol) and isinstance(answer, sympy.Symbol):
        return gold.name == answer.name
    gold, answer = _with_imaginary_unit(gold, answer)
    are_numbers = _is_number(gold) and _is_number(answer)
    # Percents are unevaluated. Also right is their number, of which Math-Verify knows the whole
    # ones alone.
    if are_numbers and gold.has(UnevaluatedExpr) and not answer.has(UnevaluatedExpr):
        if _close(100 * gold, answer):
            return True
    # Math-Verify compares the sides of equations, whatever their functions and derivatives are.
    if isinstance(gold, sympy.Equality) and isinstance(answer, sympy.Equality):
        unknown = AppliedUndef, sympy.Derivative
        if gold.atoms(*unknown) != answer.atoms(*unknown):
            return False
    if not _verified(gold, answer, decimals=6, precision=15):
        # Floats in exponents are beyond it.
        powers = [power for side in (gold, answer) for power in side.atoms(sympy.Pow)]
        is_beyond = are_numbers and any(power.exp.is_Float for power in powers)
        return is_beyond and _close(gold, answer)
    if are_numbers:
        # What is done with infinity is not worked out in an answer, except by an operator.
        has_infinity = [side.has(sympy.oo, -sympy.oo) for side in (gold, answer)]
        is_fine = has_infinity[0] or not has_infinity[1] or answer.has(*OPERATORS)
        return is_fine and _close(gold, answer)
    # Equal to six decimals. That is enough unless a small number is involved, whose first
    # six decimals may all be zeros.
    decimals = max(_decimals(gold), _decimals(answer))
    if decimals <= 6:
        return True
    return _verified(gold, answer, decimals=decimals, precision=max(15, decimals + 1))


def _with_imaginary_unit(*readings: Any) -> tuple:
    """The readings, with i as the imaginary unit."""
    symbols: list[set] = [getattr(reading, "free_symbols", set()) for reading in readings]
    if not any(symbol.name == "i" for symbol in set().union(*symbols)):
        return readings
    # Math-Verify makes other symbols of the same names where it reads complex numbers.
    return tuple(
        reading.xreplace(
            {each: sympy.I if each.name == "i" else sympy.Symbol(each.name) for each in names}
        )
        if names
        else reading
        for reading, names in zip(readings, symbols)
    )


def _is_number(reading: Any) -> bool:
    return isinstance(reading, sympy.Expr) and bool(reading.is_number)


def _close(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Whether two numbers agree to six decimals, and small ones to six digits."""
    difference = abs((a - b).doit().evalf(20))
    # Infinity is close to itself alone.
    if not difference.is_finite:
        return bool(a == b)
    # Nothing but the errors of rounding is left.
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
    return min(MOST_DECIMALS, DIGITS + math.ceil(-float(sympy.log(min(sizes), 10))))


def _numbers(reading: Any) -> Iterator[Any]:
    """The largest parts of a reading that are numbers: coefficients, elements, bounds."""
    if isinstance(reading, sympy.MatrixBase):
        for element in reading.flat():
            yield from _numbers(element)
    elif isinstance(reading, sympy.Expr) and reading.is_number:
        yield reading
    elif isinstance(reading, sympy.Basic):
        for part in reading.args:
            yield from _numbers(part)


def _size(number: Any) -> Any:
    """The absolute value of a sympy number; infinity where it has none."""
    # `doit` is for percents, which `evalf` leaves alone. Eight digits are plenty for an order of
    # magnitude.
    value = abs((number.doit() if number.has(UnevaluatedExpr) else number).evalf(8))
    return value if value.is_comparable else math.inf


# What Math-Verify passes over


def _parts(text: str) -> tuple[str, str] | None:
    """What Math-Verify is to read of an answer, and its unit; None where it says something else.

    >>> _parts("9 chickens, 10 rabbits"), _parts("2 dozen"), _parts("The answer is 42")
    (('9,10', ''), None, None)
    """
    listed = [split(part.strip()) for part in PATTERN.BETWEEN.split(text)]
    plain = [part[0] for part in listed if part and part[1] and PATTERN.PLAIN.fullmatch(part[0])]
    if 1 < len(listed) == len(plain):
        return ",".join(plain), ""
    found = split(text)
    if found is None:
        return None
    # Texts may be names of what an equation is about.
    bare = PATTERN.NAME_IN_TEXT.sub("", PATTERN.AROUND.sub("", found[0]))
    is_odd = len(re.findall(r"[()\[\]]", bare)) % 2 or bare.count("{") != bare.count("}")
    return None if is_odd or PATTERN.UNREADABLE.search(bare) else found


def _says_more(core: str, answer: list, gold_core: str, gold: list) -> bool:
    """Whether the content of a box says more than its reading, or another thing."""
    is_range = any(isinstance(reading, sympy.Set | sympy.Rel | And) for reading in gold)
    bounds = [PATTERN.INEQUALITY.search(text) for text in (core, gold_core)]
    if bounds[0] and not bounds[1] and not is_range:
        return True
    groups = [_group(text) for text in (core, gold_core)]
    if all(groups) and groups[0] != groups[1]:
        return True
    return bool(
        PATTERN.SIDE_BY_SIDE.search(core)
        or _passes_over(core, answer[0], gold)
        or _passed_over(core, answer[0])
    )


def _as_often(gold_core: str, core: str) -> bool:
    """Whether a list names each element as often as the gold list does, where that repeats one.

    Math-Verify makes a set of it.
    """
    golds, left = map(_listed, (gold_core, core))
    if len(set(golds)) == len(golds):
        return True
    for each in golds:
        same = [other for other in left if _equivalent(_parsed(each), _parsed(other))]
        if not same:
            return False
        left.remove(same[0])
    return not left


def _listed(core: str) -> list[str]:
    """The elements of a list without brackets around it; anything else as one element.

    >>> _listed("1,000, 2 and (3, 4)")
    ['1000', '2', '(3,4)']
    """
    core = re.sub(r"\s|(?<=[0-9]),(?=[0-9]{3}(?![0-9]))", "", PATTERN.BETWEEN.sub(",", core))
    elements = [""]
    depth = 0
    for letter in core:
        depth += (letter in "{([") - (letter in "})]")
        if letter == "," and depth == 0:
            elements.append("")
        else:
            elements[-1] += letter
    return elements


def _group(core: str) -> str:
    """The brackets around several elements; those of a set for a list without any."""
    core = PATTERN.JOINED.sub(",", core)
    core = re.sub(r"\\(?:left|right)(?![A-Za-z])|\s|(?<=[0-9]),(?=[0-9]{3}(?![0-9]))", "", core)
    core = re.sub(r"\\([{}])", lambda found: "<" if found[1] == "{" else ">", core)
    depths = list(accumulate((c in "<([{") - (c in ">)]}") for c in core))
    commas = [depth for c, depth in zip(core, depths) if c == ","]
    if 0 in commas:
        return "<>"
    return core[0] + core[-1] if 1 in commas and min(depths[:-1]) > 0 else ""


def _passed_over(core: str, reading: Any) -> list[str]:
    """The parts of a formula that change nothing about its reading.

    A part is read if the reading holds it. Of any other part, the formula is read again without it,
    and with another in its place. Where that is the same reading, it was passed over.
    """
    if _is_number(reading):
        # Of the other sides of an equation, `_passes_over` has asked already.
        core = core.rpartition("=")[2]
    known = _atoms(reading)
    letters = re.sub(r"\\[A-Za-z]+", "", core)
    symbols: set = getattr(reading, "free_symbols", set())
    # A letter that nobody has written was made of a command that it does not know.
    passed = [each.name for each in symbols if len(each.name) == 1 and each.name not in letters]
    for part in PATTERN.PART.finditer(core):
        text = part[0]
        if PATTERN.SAYS_NOTHING.fullmatch(text):
            continue
        name = NAMED.get(text, text.lstrip("\\").lower().replace(",", ""))
        if known[name] > 0:
            known[name] -= "=" not in core
            continue
        others = {"", "9" + text if text[0].isdigit() else "q" if text.isalpha() else ""}
        for other in others:
            if _parsed(core[: part.start()] + other + core[part.end() :])[:1] == [reading]:
                passed.append(text)
                break
    return passed


def _atoms(reading: Any) -> Counter:
    """The numbers and names in a reading, and how often each occurs."""
    parts = reading.flat() if isinstance(reading, sympy.MatrixBase) else [reading]
    found: Counter = Counter()
    for part in chain.from_iterable(map(sympy.preorder_traversal, parts)):
        if isinstance(part, sympy.Number):
            found.update(map(str, abs(part).as_numer_denom()))
        elif not part.args or isinstance(part, AppliedUndef):
            # A name of several letters is a command, or a letter with an index.
            name = str(part.func if part.args else part).lower()
            found.update([name, *re.findall("[a-z]+|[0-9]+", name), *name])
        else:
            found[type(part).__name__.lower()] += 1
    return found


def _passes_over(content: str, reading: Any, gold: list) -> bool:
    r"""Whether a side of an equation is neither a name nor right.

    Of `\det(1)=42` and `5 \bmod 3=42` the left side is not read, and `3x=42` says another thing.
    `\dim V=42` is a name.
    """
    sides = re.split(r"=(?![^{}]*\})", content)
    if len(sides) == 1 or any(isinstance(each, sympy.Equality) for each in gold):
        return False
    for side in sides:
        is_name = PATTERN.NAME.fullmatch(side) or not PATTERN.NO_NAME.search(side)
        if is_name or PATTERN.OPERATOR.match(side):
            continue
        value = _parsed(side)
        # Numbers of an equation that is read are compared later.
        is_compared = value and _is_number(value[0]) and not _is_number(reading)
        if not is_compared and not _equivalent(gold, value):
            return True
    return False


def _as_point(content: str) -> str:
    """The values of several unknowns in the order of their letters, or those of one; anything else
    as it is.

    >>> _as_point("y=2, x=1"), _as_point("x=1, x=2"), _as_point("x=1, y")
    ('(1, 2)', '1, 2', 'x=1, y')
    """
    parts = PATTERN.JOINED.split(re.sub(r"\\(?:[,;: ]|q?quad(?![A-Za-z]))", " ", content))
    equations = [equation for equation in map(PATTERN.EQUATION.fullmatch, parts) if equation]
    names = [equation[1] for equation in equations]
    # Every part has to be an equation.
    if len(parts) == 1 or len(equations) < len(parts) or 1 < len(set(names)) < len(names):
        return content
    values = [equation[2].strip() for equation in equations]
    if len(set(names)) == 1:
        return ", ".join(values)
    # Values of different unknowns hold together, or are no point.
    if PATTERN.EITHER.search(content):
        return content
    return f"({', '.join(value for _, value in sorted(zip(names, values)))})"


def _value(core: str) -> str:
    """What an equation says of a name; anything else as it is."""
    name, _, value = core.partition("=")
    return value if value and "=" not in value and PATTERN.NAME.fullmatch(name) else core


def _ranges(answer: list, core: str) -> list:
    """A reading with the union of inequalities that are joined by "or"."""
    if answer and isinstance(answer[0], sympy.FiniteSet) and PATTERN.EITHER.search(core):
        parts = answer[0].args
        are_bounds = [isinstance(part, sympy.Rel | And) for part in parts]
        if all(are_bounds) and len(answer[0].free_symbols) == 1:
            return [sympy.Union(*(part.as_set() for part in parts))]
    return answer


# Contradictions


def _contradicts_itself(answer: list, gold: list) -> bool:
    """Whether an equation in the answer has two sides that are different numbers, or a chain of
    them says of a second unknown what the gold answer says of one.
    """
    is_about_one = any(isinstance(reading, sympy.Equality) for reading in gold)
    for reading in answer:
        for sides in map(_worked_out, _chains(reading)):
            if any(_differ(a, b) for a, b in combinations(filter(_is_number, sides), 2)):
                return True
            unknowns = {side for side in sides if isinstance(side, sympy.Symbol)}
            if is_about_one and len(sides) > 2 and len(unknowns) > 1:
                return True
    return False


def _chains(reading: Any) -> Iterator[list]:
    """The sides of every equation in a reading: those of a chain a = b = c together."""
    if isinstance(reading, sympy.Equality):
        yield list(reading.args)
    elif isinstance(reading, And) and all(part.is_Equality for part in reading.args):
        parts = reading._unsorted_args  # in the order in which they were written
        # Math-Verify reads a = b = c as a = b and b = c. Equations that share no
        # side are looked at one by one.
        linked = all(left.rhs == right.lhs for left, right in pairwise(parts))
        sides = [list(part.args) for part in parts]
        yield from [list(chain.from_iterable(sides))] if linked else sides
    elif isinstance(reading, sympy.Basic):
        for part in reading.args:
            yield from _chains(part)


def _worked_out(sides: list) -> list:
    """The sides of an equation, with derivatives and limits of known functions worked out."""
    found = []
    for side in sides:
        operators = side.atoms(sympy.Derivative, sympy.Limit)
        bound = {symbol for each in operators for symbol in each.args[1].atoms(sympy.Symbol)}
        if bound and not side.has(AppliedUndef) and side.free_symbols <= bound:
            # What holds for all numbers holds for one.
            side = side.doit().subs(dict.fromkeys(bound, sympy.Number(1) / 7))
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
