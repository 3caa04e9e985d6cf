r"""Ways of writing an answer, and the answers that are compared without Math-Verify.

`readable` writes an answer as Math-Verify reads it: Unicode, plain-text mathematics, colours,
mixed numbers, repeating decimals, millions. `split` takes the unit off. `verdict` compares what
Math-Verify would make quotients or products of: words, times, ratios, measures in two units,
numbers of another base, and functions by cases.

A response chooses the text, so every pattern takes a number of steps that grows with its length
alone.
"""

import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction

from workbench.verifiers.boxes import CHANGES, ZEROS, closings, without_mark

# Other characters for what LaTeX has, and all the fullwidth ones.
CHARACTERS = {full: full - 0xFEE0 for full in range(0xFF01, 0xFF5F)} | str.maketrans(
    dict(zip("−–—﹣。、′″’∣⁄∕÷\u00a0\u2009\u202f~", [*"----.,", "'", "''", *"'|///", *" " * 4]))
    | {
        "×": r"\times ",
        "·": r"\cdot ",
        "⋅": r"\cdot ",
        "π": r"\pi ",
        "∞": r"\infty ",
        "√": "sqrt",
        "∛": r"\sqrt[3] ",
    }
    | {"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in "}
    | {"°": r"^\circ ", "º": r"^\circ ", "±": r"\pm ", "∅": r"\emptyset "}
)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).translate(CHARACTERS)


def _as_fraction(sign: str, whole: str, fixed: str, repeated: str) -> str:
    """A repeating decimal as a fraction: 0.1(6) is (16 - 1) / 90."""
    # All digits minus the ones before the repetition, over a nine for each repeated digit and a
    # zero for each digit between the point and the repetition.
    before = int(whole + fixed or "0")
    numerator = int(whole + fixed + repeated) - before
    denominator = (10 ** len(repeated) - 1) * 10 ** len(fixed)
    return rf"{sign}\frac{{{numerator}}}{{{denominator}}}"


def _turned(high: str, above: str, name: str, below: str, low: str) -> str:
    """1 > x > 0 as 0 < x < 1, which Math-Verify reads."""
    less = [r"\le " if sign.startswith("\\") else "<" for sign in (below, above)]
    return f"{low}{less[0]}{name}{less[1]}{high}"


TEXT = r"\\(?:text|mathrm|textrm|textbf|mathbf|mbox|operatorname)"
# What becomes of each part of an answer, one after another.
# Repeats of digits are bounded, so no response can make `int` read a number of a million digits.
PARTS: tuple[tuple[str, str | Callable[[re.Match], str]], ...] = (
    ("[⁰¹²³⁴-⁹⁺⁻]{1,40}", lambda found: f"^{{{_plain(found[0])}}}"),
    ("[₀-₉]{1,40}", lambda found: f"_{{{_plain(found[0])}}}"),
    ("[¼-¾⅐-⅞]", lambda found: r"\frac{" + _plain(found[0]).replace("/", "}{") + "}"),
    # Colours, frames, fonts and sizes.
    (r"\\(?:text|f)?color(?:box)?\s?\{[^{}]*\}|\\[hv]space\*?\{[^{}]*\}", ""),
    (
        r"\\(?:boxed|fbox|boldsymbol|bm|underline|emph|mathsf|mathit|textit|bf|large|Large|LARGE"
        r"|[dt]?displaystyle|textstyle|[bB]ig{1,2}[lr]?|huge|Huge|tiny|small|bold|framebox|mathbf(?=\s?\d)|(?:text|math)(?:bf|sf|tt|it|normal|rm)"
        r"(?=\s?\{\s?[-+0-9\\(.]))(?![A-Za-z])\s?",
        "",
    ),
    (rf"{TEXT}\s?\{{\s?([-+0-9.,]{{1,40}})\s?\}}", r"\1"),
    (rf"{TEXT}\s?\{{\s?(-?[0-9.,]{{1,40}})\s([^{{}}]*)\}}", r"\1\\text{ \2}"),
    # Constants and functions.
    (r"\{\}", ""),
    (r"\\langle\s?", "("),
    (r"\\rangle", ")"),
    (r"\\([lr])brace(?![A-Za-z])", lambda found: r"\{" if found[1] == "l" else r"\}"),
    (rf"{TEXT}\{{\s?([^{{}}]{{1,40}})\s(and|or)\s?\}}", r"\\text{ \1} \2 "),
    (r"\A\+\s?(?=[0-9\\(a-z])", ""),
    (r"\A([-0-9./]{1,40})\s?=\s?([a-z])\Z", r"\2=\1"),
    (r"\A[a-z]\s?\\in\s?(?=[(\[]|\\\{|\\left)", ""),
    (r"\\frac\s(\d)\s?(\d)(?!\d)", r"\\frac{\1}{\2}"),
    (r"\\log_\{?e\}?(?![A-Za-z])", r"\\ln "),
    (r"(?<=\.\d\d\d)(\d{0,40})\s?(?:\\[lcd]?dots[a-z]?|\.\.+)\Z", r"\1"),
    (r"\\(?:mathrm|operatorname)\{([dT])\}", r"\1"),
    (
        r"\\(?:mathrm|operatorname|text)\{\s?([ei])\s?\}|\{\\rm\s([ei])\}",
        lambda found: found[1] or found[2],
    ),
    (r"\\lg(?![A-Za-z])", r"\\log_{10}"),
    (r"\\uppi(?![A-Za-z])", r"\\pi"),
    (r"\\(?:[cs]|nice)frac(?![A-Za-z])", r"\\frac"),
    (r"\{([^{}\\]{0,40})\\over\s([^{}]{0,40})\}", r"\\frac{\1}{\2}"),
    (r"\\varnothing", r"\\emptyset"),
    (r"\^?\\degree", r"^\\circ"),
    (r"\\surd(?![A-Za-z])\s?", "sqrt"),
    (r"\\?sqrt\s?\(([^()]*)\)", r"\\sqrt{\1}"),
    (r"(?<![A-Za-z\\])sqrt\s?([0-9]+|[a-z])", r"\\sqrt{\1}"),
    (r"(?<![A-Za-z\\])sqrt\s?\{", r"\\sqrt{"),
    (
        r"(?<![A-Za-z])\\?exp\s?(?:\(([^()]*)\)|\{([^{}]*)\})",
        lambda found: f"e^{{{found[1] or found[2]}}}",
    ),
    (r"(?<![A-Za-z\\])(?:\\infinity|infinity)(?![A-Za-z])", r"\\infty"),
    (r"(?<![A-Za-z\\{])(pi|sin|cos|tan|ln|log)(?![A-Za-z])", r"\\\1 "),
    (r"\*\*", "^"),
    (r"\^(-[0-9]{1,40})", r"^{\1}"),
    (r"\\sqrt\s?\[([0-9n])\]\s?([0-9a-z])", r"\\sqrt[\1]{\2}"),
    (
        r"\A([^<>=\\]{1,40})(\\geq?|>)\s?([a-z])\s?(\\geq?|>)([^<>=\\]{1,40})\Z",
        lambda found: _turned(*found.groups()),
    ),
    (r"(<|>)=", lambda found: {"<": r"\le ", ">": r"\ge "}[found[1]]),
    # Numbers.
    (r"(?<=[0-9])'(?=[0-9]{3}(?![0-9]))", ""),
    (r"(?<![\d.,])([1-9]\d{0,2})\{,\}(?=\d{3}(?!\d))|(?<=\d{3})\{,\}(?=\d{3}(?!\d))", r"\1,"),
    (r"(?<=\d)\{,\}(?=\d)", "."),
    (r"(?<![\d.,])(\d{1,40})\.0{1,40}(?![\d.])", r"\1"),
    (r"(?<=[\d}])(?:\s|\\[,;: ]|\\cdot(?![A-Za-z])|\*){1,4}i(?![A-Za-z])", "i"),
    (r"(?<![\d.}])1i(?![A-Za-z])", "i"),
    (rf"\A(?:{TEXT}\{{)?\s?(?:negative|minus)\s?\}}?\s?(?=[0-9\\])", "-"),
    # Of a number before a bracket Math-Verify makes a mixed number.
    (r"(?<![_^\w{.\\])([0-9]{1,40}(?:\.[0-9]{1,40})?)\s?(?=(?:\\left)?\((?!\d+\)))", r"\1\\cdot "),
    (r"\)\s?(?=\(|\\left\(|\\[dt]?frac)", r")\\cdot "),
    # A derivative is another function.
    (r"\^\{?\s?((?:\\prime\s?){1,4})\}?", lambda found: "'" * found[1].count("p")),
    (
        r"(?<![A-Za-z])([A-Za-z])('{1,4})(?![A-Za-z])",
        lambda found: f"{found[1]}_{{prime{len(found[2])}}}",
    ),
)
PATTERNS = [(re.compile(pattern), write) for pattern, write in PARTS]
DEGREES = re.compile(
    r"(\\(?:sin|cos|tan|cot|sec|csc)(?:\^\{?[0-9]\}?)? ?(?:\\left)?[({]? ?)([0-9.]{1,20}) ?"
    r"\^ ?(?:\\circ|\{ ?\\circ ?\})"
)

# Whole answers that are one number.
SCALE = "|".join(ZEROS)
NUMBER = r"-?(?:[0-9][0-9.,/]{0,40}|\\[dt]?frac\{[0-9]{1,20}\}\{[0-9]{1,20}\})"
SCIENTIFIC = re.compile(r"([-+]?[0-9]{1,40}(?:\.[0-9]{1,40})?)[eE]([-+]?[0-9]{1,4})")
SPACED = re.compile(r"-?[0-9]{1,3}(?:(?:\\,|\\;|\\ | )[0-9]{3}){1,12}(?:\.[0-9]{1,40})?")
REPEATING = re.compile(
    r"(-?)([0-9]{0,20})\.([0-9]{0,20})(?:\\(?:overline|bar|dot)\s?|(?=\())"
    r"(?:(?<!\\dot)[{(]([0-9]{1,20})[})]|\{?([0-9])\}?)"
)
MIXED = re.compile(
    r"(-?[0-9]{1,20})(?: {1,4}([0-9]{1,20})/([0-9]{1,20})"
    r"|(?:\\,|\s)?\\[dt]?frac\s?(?:\{([0-9]+)\}\{([0-9]+)\}|([0-9])([0-9])))(\s?\\?%)?"
)
SCALED = re.compile(
    rf"((?:\\?\$)?-?[0-9][0-9,]{{0,40}}(?:\.[0-9]{{1,40}})?)\s?(?:\\text\{{\s?)?({SCALE})\b(.*)"
)
PERCENT = re.compile(r"(-?[0-9][0-9.,]{0,40}) ?(?:\\text\{ ?)?per ?cent ?\}?")
FORMS: tuple[tuple[re.Pattern, Callable[[re.Match], str]], ...] = (
    (SCIENTIFIC, lambda found: rf"{found[1]}\times 10^{{{int(found[2])}}}"),
    (SPACED, lambda found: re.sub(r"\\.| ", "", found[0])),
    (PERCENT, lambda found: rf"{found[1]}\%"),
    (MIXED, lambda found: _mixed(*found.groups(""))),
    (REPEATING, lambda found: _as_fraction(found[1], found[2], found[3], found[4] or found[5])),
    (SCALED, lambda found: _scaled(*found.groups())),
)


def _mixed(whole: str, *rest: str) -> str:
    *parts, percent = rest
    above, below = filter(None, parts)
    if not percent:
        return rf"{whole}\frac{{{above}}}{{{below}}}"
    total = abs(int(whole)) * int(below) + int(above)
    return rf"{'-' * whole.startswith('-')}\frac{{{total}}}{{{below}}}\%"


def _scaled(number: str, scale: str, rest: str) -> str:
    zeros = ZEROS[scale]
    digits, _, decimals = number.replace(",", "").partition(".")
    # Written out where that is exact, so that the unit behind it can be read.
    if len(decimals) > zeros:
        return number + scale + rest
    rest = rest.lstrip().removesuffix("}")
    return digits + decimals.ljust(zeros, "0") + (rf"\text{{ {rest}}}" if rest.strip() else "")


def readable(answer: str) -> str:
    r"""An answer as Math-Verify reads it, where it is written in a form that it does not read.

    Examples
    --------
    >>> [readable(answer) for answer in ["42.", "1.6e-19", r"1\,000", r"0.\overline{3}", "3 1/2"]]
    ['42', '1.6\\times 10^{-19}', '1000', '\\frac{3}{9}', '3\\frac{1}{2}']
    >>> [readable(answer) for answer in ["½π", "2*sqrt(3)", r"\color{red}{42}", "2 million eggs"]]
    ['\\frac{1}{2}\\pi', '2*\\sqrt{3}', '42', '2000000\\text{ eggs}']
    """
    answer = without_mark(answer.translate(CHARACTERS))
    for pattern, write in PATTERNS:
        answer = pattern.sub(write, answer)
    answer = without_mark(answer)
    while answer.startswith("{") and closings(answer).get(1) == len(answer) - 1:
        answer = answer[1:-1].strip()
    answer = DEGREES.sub(r"\1\\frac{\2\\pi}{180}", answer)
    for pattern, write in FORMS:
        found = pattern.fullmatch(answer)
        if found:
            return write(found)
    return answer


# Units

# Units of one word, by the spelling that stands for all of them, with their dimension and size.
UNITS = {
    "h": ("hour hr", "time", 3600),
    "min": ("minute", "time", 60),
    "s": ("second sec", "time", 1),
    "day": ("", "time", 86400),
    "km": ("kilometer kilometre", "length", 10**6),
    "m": ("meter metre", "length", 1000),
    "cm": ("centimeter centimetre", "length", 10),
    "mm": ("millimeter millimetre", "length", 1),
    "kg": ("kilogram", "mass", 1000),
    "g": ("gram", "mass", 1),
    "lb": ("pound £", "weight", 16),
    "oz": ("ounce", "weight", 1),
    "ft": ("foot feet", "feet", 12),
    "in": ("inch inche", "feet", 1),
    "usd": (r"dollar \$ $", "dollars", 100),
    "cent": ("¢", "dollars", 1),
    "eur": ("euro €", "euros", 1),
    "yuan": ("¥ 元", "yuan", 1),
    "inr": ("rupee ₹ rs", "rupees", 1),
}
KNOWN_UNITS = {each: unit for unit, (names, *_) in UNITS.items() for each in [unit, *names.split()]}
ABBREVIATED = set(
    "hz khz mhz ghz ev kev mev kwh kw kj kn pa kpa atm mol rad deg mph kmh kph ml l cc nm px yd"
    " mi ha rpm db gb mb kb gal pt qt cal kcal degree sq cu mu m g s h N J W V A C F L l".split()
)
IRREGULAR = set(
    "people children men women feet teeth mice geese sheep fish deer dice cattle".split()
)
# Those of one letter may be variables.
SHORT = r"km|cm|mm|kg|mg|lbs?|oz|ft|in|min|hrs?|sec|mph|USD|EUR|sq|[µμ]m|Ω|[msghNJWV](?![A-Za-z])"
NAMES = (
    "alpha|beta|gamma|delta|theta|lambda|sigma|omega|infinity|sqrt|sinh|cosh|tanh|times|over|choose"
)
POWER = r"(?:\s?\^\s?\{?-?\d\}?)?"
GLUED = r"(?:km|cm|mm|kg|mg|ft|mph)(?![A-Za-z])"
WORD = rf"(?:(?!(?:{NAMES})\b)[^\W\d_]{{3,}}|(?:{SHORT})){POWER}"
BEHIND = re.compile(
    rf"(?P<core>.*[0-9}})\]])\s*(?:\\[,;: ]\s*)*(?P<unit>"
    rf"(?:(?:\\mu\s?)?{TEXT}\s?\{{[^{{}}]*\}}{POWER}(?:[\s/]|\\cdot)*)+|\^\{{?\s?\\circ\s?\}}?(?:\s?[CF]|\s?{TEXT}\{{\s?[CF]\s?\}})?"
    rf"|\\Omega|\\?[$€£¥₹¢元])",
    re.DOTALL,
)
WORDED = re.compile(
    rf"(?P<core>{NUMBER})(?P<unit>(?:\s+{WORD}|{GLUED}{POWER})(?:\s?/\s?{WORD}|\s+{WORD}){{0,4}}"
    r"|\s?\\?[$€£¥₹¢元])"
)
CURRENCY = re.compile(
    r"(?P<sign>-?)(?P<unit>\\\$|\$|[€£¥₹]|USD|EUR|Rs\.?)\s?(?P<core>[0-9.].*)", re.DOTALL
)


def split(text: str) -> tuple[str, str] | None:
    r"""An answer without its unit, and the unit; None where its words change the number.

    Examples
    --------
    >>> split(r"5\text{ cm}^2"), split("18 dollars"), split(r"\$18"), split(r"2\text{ dozen}")
    (('5', 'cm^2'), ('18', 'usd'), ('18', 'usd'), None)
    """
    money = CURRENCY.fullmatch(text)
    text = money["sign"] + money["core"] if money else text
    worded = WORDED.fullmatch(text) or BEHIND.fullmatch(text)
    if worded is None:
        return text, unit_of(money["unit"]) if money else ""
    unit = re.sub(rf"{TEXT}\s?\{{([^{{}}]*)\}}", r"\1", worded["unit"]).strip()
    core = worded["core"].strip()
    return None if changes(core, unit) else (core, unit_of(unit))


def changes(core: str, unit: str) -> bool:
    """Whether words behind a number make another one of it, as far as grammar tells.

    >>> changes("42", "red balls"), changes("42", "m/s^2"), changes("42", "mln"), changes("1", "way")
    (False, False, True, False)
    """
    # In another script nobody can say what a word does.
    is_known = all(letter.isascii() or letter in "€£¥₹¢元µμΩ°Å" for letter in unit)
    if CHANGES.search(unit) or not is_known or re.search(r"[?!]|\A\^\{?-?\d", unit):
        return True
    # What is counted is a plural: the last word in front of "per", "of" and the like.
    noun = re.split(
        r"\s(?:per|of|in|on|old|long|tall|wide|high|deep|away|and)\b|/|\\cdot|\^", unit
    )[0].split()
    is_many = re.fullmatch("-?[0-9,]+", core) and core not in ("1", "-1")
    word = noun[-1].strip(".,()") if noun else "s"
    # The case of a single letter counts: g is a gram, and G may be giga.
    word = word if len(word) == 1 else word.lower()
    is_unit = word in KNOWN_UNITS or word in ABBREVIATED or word in IRREGULAR
    return bool(is_many and word.isalpha() and not word.endswith("s") and not is_unit)


def unit_of(unit: str) -> str:
    """The unit of a number in its shortest known spelling, with its power."""
    unit = re.sub(r"[\s.{}]", "", unit).lower().replace(r"^\circ", "degree")
    # A plural ends in front of the power.
    name, power = re.fullmatch(r"(.*?)((?:\^-?[0-9])?)", unit, re.DOTALL).groups()
    name = name if name in KNOWN_UNITS else name.rstrip("s")
    return KNOWN_UNITS.get(name, name) + power


# Answers that are compared without Math-Verify

# Words, of which Math-Verify makes products of letters, in which the order does not count.
WORDS_ALONE = re.compile(
    rf"(?=.*[A-Za-z]{{3}})(?!(?:{NAMES}|sin|cos|tan|log|exp|det|gcd|lcm|mod|max|min|inf|eta|chi"
    r"|phi|psi|rho|tau)\b)[A-Za-z]+(?:[ '-][A-Za-z]+)*|\([A-Z]\)"
)
TIME = re.compile(r"(?i)([0-9]|[01][0-9]|2[0-4]):([0-5][0-9])\s?(?:([ap])\.?\s?m\.?)?")
RATIO = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?(?:\s?(?::|to)\s?[0-9]{1,20}(?:\.[0-9]{1,20})?)+")
BASE = re.compile(r"([0-9]{1,40})_(?:\{([0-9]+)\}|([0-9]))")
CASES = re.compile(r"(.*?)\\begin\{cases\}(.*)\\end\{cases\}", re.DOTALL)
MEASURE = re.compile(
    rf"(?P<number>{NUMBER})\s?(?P<unit>[A-Za-z]+|[$€£¥₹¢元])\s?(?:,\s?)?(?:and\s)?"
)
FEET = re.compile(r"([0-9]{1,9})'\s?([0-9]{1,9})(?:''|\")")


def form(text: str) -> tuple | None:
    r"""What an answer is that Math-Verify cannot compare: a kind, and what counts of it.

    Examples
    --------
    >>> form("3:05 pm"), form(r"\text{Seat}"), form("1101_2"), form("x+1")
    (('time', 15, '05', 'p'), ('words', 'seat'), ('base', '1101', '2'), None)
    >>> form(r"2\text{ hours }30\text{ minutes}")
    ('measure', 'time', Fraction(9000, 1), 2)
    """
    cases = CASES.fullmatch(text)
    if cases:
        rows = re.sub(r"\s|(?<!\\)\\[,;: ]|,(?=\s*&)|[,.;](?=\s*(?:\\\\|\Z))", "", cases[2]).split(
            r"\\"
        )
        return "cases", cases[1].replace(" ", ""), frozenset(filter(None, rows))
    text = re.sub(rf"{TEXT}\s?\{{([^{{}}]*)\}}|\\[,;: ]", r" \1 ", text)
    text = re.sub(r"\A(-?)\\?([$€£¥₹])\s?([0-9.,]+)\Z", r"\1\3 \2", text)
    text = " ".join(FEET.sub(r"\1 ft \2 in", text).split())
    if WORDS_ALONE.fullmatch(text):
        return "words", text.lower()
    time = TIME.fullmatch(text)
    if time:
        half = (time[3] or "").lower()
        hour = int(time[1]) % 12 + 12 * (half == "p") if half else int(time[1])
        return "time", hour, time[2], half
    if RATIO.fullmatch(text):
        return "ratio", *map(Fraction, re.findall(r"[0-9.]+", text)), "to" in text
    base = BASE.fullmatch(text.replace(" ", ""))
    if base:
        return "base", base[1], base[2] or base[3]
    parts = list(MEASURE.finditer(text))
    units = [UNITS.get(unit_of(part["unit"])) for part in parts]
    whole = "".join(part[0] for part in parts) == text
    if not parts or not whole or None in units or len({unit[1] for unit in units}) > 1:
        return None
    sizes = [unit[2] for unit in units]
    numbers = [re.sub(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", r"\1/\2", part["number"]) for part in parts]
    # From the larger unit to the smaller one.
    if sizes != sorted(set(sizes), reverse=True):
        return None
    try:
        amount = sum(Fraction(n.replace(",", "")) * size for n, size in zip(numbers, sizes))
    except (ValueError, ZeroDivisionError):
        return None
    return "measure", units[0][1], amount, len(parts)


def verdict(gold_text: str, content: str) -> str | None:
    """The status of an answer where Math-Verify is not to compare; None where it is."""
    gold, answer = form(gold_text), form(content)
    kinds = [each[0] if each else "" for each in (gold, answer)]
    if "cases" in kinds:
        return "ok" if gold == answer else "unparsed"
    if kinds == ["words", "words"]:
        return "ok" if gold == answer else "wrong"
    if "time" in kinds and kinds != ["ratio", "time"]:
        if kinds != ["time", "time"]:
            return "unparsed"
        # 3:00 may be 3:00 PM, which is 15:00.
        known, other = (gold, answer) if gold[3] else (answer, gold)
        hours = {known[1]} if other[3] or not known[3] else {known[1], known[1] % 12 or 12}
        return "ok" if other[1] in hours and gold[2] == answer[2] else "wrong"
    if kinds[0] == "ratio":
        if kinds[1] == "time":
            answer = ("ratio", Fraction(answer[1]), Fraction(answer[2]), False)
        elif kinds[1] != "ratio":
            return None if len(gold) == 4 and not gold[-1] else "unparsed"
        a, b = gold[1:-1], answer[1:-1]
        if gold[-1] or len(a) != len(b):
            return "ok" if a == b else "wrong"
        return "ok" if all(x * b[0] == y * a[0] for x, y in zip(a, b)) else "wrong"
    if kinds[0] == "base":
        if content == gold[1]:
            return "ok"
        return "unparsed" if kinds[1] != "base" else "ok" if gold[1:] == answer[1:] else "wrong"
    if kinds == ["measure", "measure"] and gold[1] == answer[1]:
        return "ok" if gold[2] == answer[2] else "wrong"
    several = [each is not None and each[0] == "measure" and each[3] > 1 for each in (gold, answer)]
    return "unparsed" if any(several) or "base" in kinds else None
