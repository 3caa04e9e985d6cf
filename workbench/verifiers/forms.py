r"""Ways of writing an answer, and the answers that are compared without Math-Verify.

`readable` writes an answer as Math-Verify reads it: Unicode, plain-text mathematics, colours,
mixed numbers, repeating decimals, millions. `split` takes the unit off. `verdict` compares what
Math-Verify would make quotients, differences or products of: words, times, dates, ranges, ratios,
measures in two units, numbers of another base, residues, chemical formulas, angles, and functions
by cases.

A response chooses the text, so every pattern takes a number of steps that grows with its length
alone.
"""

import re
import unicodedata
from fractions import Fraction

from workbench.verifiers.boxes import PATTERN as BOXES
from workbench.verifiers.boxes import closings, without_mark
from workbench.verifiers.grammar import TABLE, expanded, patterns

PATTERN = patterns("forms")
# Other characters for what LaTeX has, and all the fullwidth ones.
CHARACTERS = {full: full - 0xFEE0 for full in range(0xFF01, 0xFF5F)}
CHARACTERS |= str.maketrans(TABLE["characters"])
RULES = [(re.compile(expanded(each, "forms")), new) for each, new in TABLE["rewrites"]["rules"]]
UNITS: dict[str, list] = TABLE["units"]
KNOWN_UNITS = {each: unit for unit, (names, *_) in UNITS.items() for each in [unit, *names.split()]}
COUNTED = {*KNOWN_UNITS, *" ".join(TABLE["nouns"].values()).split()}


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).translate(CHARACTERS)


def _as_fraction(found: re.Match) -> str:
    """A repeating decimal as a fraction: 0.1(6) is (16 - 1) / 90."""
    sign, whole, fixed = found.groups()[:3]
    repeated = found[4] or found[5]
    # All digits minus the ones before the repetition, over a nine for each repeated digit and a
    # zero for each digit between the point and the repetition.
    numerator = int(whole + fixed + repeated) - int(whole + fixed or "0")
    denominator = (10 ** len(repeated) - 1) * 10 ** len(fixed)
    return rf"{sign}\frac{{{numerator}}}{{{denominator}}}"


def _mixed(found: re.Match) -> str:
    """A whole number with a fraction behind it; in percent as one fraction."""
    whole, *parts, percent = found.groups("")
    above, below = filter(None, parts)
    # In front of an improper fraction it is a factor.
    if int(above) >= int(below):
        return rf"{whole}\cdot\frac{{{above}}}{{{below}}}{percent}"
    if not percent:
        return rf"{whole}\frac{{{above}}}{{{below}}}"
    total = abs(int(whole)) * int(below) + int(above)
    return rf"{'-' * whole.startswith('-')}\frac{{{total}}}{{{below}}}\%"


def _scaled(found: re.Match) -> str:
    """A number of thousands or millions, written out where that is exact, so that the unit behind
    it can be read.
    """
    number, scale, rest = found.groups()
    zeros = TABLE["zeros"][scale]
    digits, _, decimals = number.replace(",", "").partition(".")
    if len(decimals) > zeros:
        return found[0]
    rest = rest.lstrip().removesuffix("}")
    return digits + decimals.ljust(zeros, "0") + (rf"\text{{ {rest}}}" if rest.strip() else "")


FORMS = {
    PATTERN.SPACED: lambda found: re.sub(r"\\.| ", "", found[0]),
    PATTERN.MIXED: _mixed,
    PATTERN.REPEATING: _as_fraction,
    PATTERN.SCALED: _scaled,
}


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
    answer = re.sub("[⁰¹²³⁴-⁹⁺⁻]{1,40}", lambda found: f"^{{{_plain(found[0])}}}", answer)
    answer = re.sub("[₀-₉]{1,40}", lambda found: f"_{{{_plain(found[0])}}}", answer)
    answer = re.sub(
        "[¼-¾⅐-⅞]", lambda found: r"\frac{" + _plain(found[0]).replace("/", "}{") + "}", answer
    )
    for rule, new in RULES:
        answer = rule.sub(new, answer)
    answer = without_mark(answer)
    while answer.startswith("{") and closings(answer).get(1) == len(answer) - 1:
        answer = answer[1:-1].strip()
    answer = PATTERN.DEGREES.sub(r"\1\\frac{\2\\pi}{180}", answer)
    for pattern, write in FORMS.items():
        found = pattern.fullmatch(answer)
        if found:
            return write(found)
    return answer


# Units


def split(text: str) -> tuple[str, str] | None:
    r"""An answer without its unit, and the unit; None where its words change the number.

    Examples
    --------
    >>> split(r"5\text{ cm}^2"), split("18 dollars"), split(r"\$18"), split(r"2\text{ dozen}")
    (('5', 'cm^2'), ('18', 'usd'), ('18', 'usd'), None)
    """
    money = PATTERN.CURRENCY.fullmatch(text)
    text = money["sign"] + money["core"] if money else text
    worded = PATTERN.WORDED.fullmatch(text) or PATTERN.BEHIND.fullmatch(text)
    if worded is None:
        return text, unit_of(money["unit"]) if money else ""
    unit = PATTERN.IN_TEXT.sub(r"\1", worded["unit"]).strip()
    core = worded["core"].strip()
    return None if changes(core, unit) else (core, unit_of(unit))


def changes(core: str, unit: str) -> bool:
    """Whether words behind a number make another one of it, as far as grammar tells.

    >>> changes("42", "red balls"), changes("42", "mln"), changes("1", "way")
    (False, True, False)
    """
    is_known = PATTERN.LETTERS.fullmatch(unit)
    if BOXES.CHANGES.search(unit) or not is_known or re.search(r"[?!]|\A\^\{?-?\d", unit):
        return True
    # What is counted is a plural: the last word in front of "per", "of" and the like.
    noun = PATTERN.OF_NOUN.split(unit)[0].split()
    is_many = re.fullmatch("-?[0-9,]+", core) and core not in ("1", "-1")
    word = noun[-1].strip(".,()") if noun else "s"
    # The case of a single letter counts: g is a gram, and G may be giga.
    word = word if len(word) == 1 else word.lower()
    is_singular = re.fullmatch("[A-Za-z]*[A-Za-rt-z]", word) and word not in COUNTED
    return bool(is_many and is_singular)


def unit_of(unit: str) -> str:
    """The unit of a number in its shortest known spelling, with its power."""
    unit = re.sub(r"(?i)\A\s*sq(?:uare)?\.?\s(\w+)\s*\Z", r"\1^2", unit)
    unit = re.sub(r"(?i)\A\s*cu(?:bic)?\.?\s(\w+)\s*\Z", r"\1^3", unit)
    unit = re.sub(r"[\s.{}]", "", unit).lower().replace(r"^\circ", "degree")
    # A plural ends in front of the power.
    name = re.sub(r"\^-?[0-9]\Z", "", unit)
    power = unit.removeprefix(name)
    name = name if name in KNOWN_UNITS else name.rstrip("s")
    return KNOWN_UNITS.get(name, name) + power


# Answers that are compared without Math-Verify


def form(text: str) -> tuple | None:
    r"""What an answer is that Math-Verify cannot compare: a kind, and what counts of it.

    Examples
    --------
    >>> form("3:05 pm"), form(r"\text{Seat}"), form("1101_2"), form("x+1")
    (('time', 15, '05', 'p'), ('words', 'seat'), ('base', '1101', '2'), None)
    >>> form(r"2\text{ hours }30\text{ minutes}")
    ('measure', 'time', Fraction(9000, 1), 2)
    """
    cases = PATTERN.CASES.fullmatch(text)
    if cases:
        rows = PATTERN.BETWEEN_CASES.sub("", cases[2]).split(r"\\")
        return "written", cases[1].replace(" ", ""), frozenset(filter(None, rows))
    modulo = PATTERN.MODULO.fullmatch(text)
    if modulo:
        modulus = int(modulo[3])
        residues = frozenset(int(each) % modulus for each in modulo[2].split(","))
        return "written", modulo[1], residues, modulus
    angle = PATTERN.ANGLE.fullmatch(text)
    if angle:
        return "written", angle[2], frozenset(angle.group(1, 3))
    # Math-Verify takes the factorial of the factorial.
    if re.search(r"!\s?!", text):
        return "written", text.replace(" ", "")
    text = re.sub(r"\\[,;: ]", " ", PATTERN.IN_TEXT.sub(r" \1 ", text))
    text = re.sub(r"\A(-?)\\?([$€£¥₹])\s?([0-9.,]+)\Z", r"\1\3 \2", text)
    text = " ".join(PATTERN.FEET.sub(r"\1 ft \2 in", text).split())
    text = re.sub(r"(?i)\A(?:an?|the) (?=[a-z]{3})", "", text)
    if PATTERN.WORDS_ALONE.fullmatch(text):
        # A letter may be an unknown, of which capitals count.
        letter = text.strip("()")
        return "words", letter if len(letter) == 1 else text.lower()
    time = PATTERN.TIME.fullmatch(text)
    if time:
        half = (time[3] or "").lower()
        hour = int(time[1]) % 12 + 12 * (half == "p") if half else int(time[1])
        return "time", hour, time[2], half
    if PATTERN.RATIO.fullmatch(text):
        return "ratio", *map(Fraction, re.findall(r"[0-9.]+", text)), "to" in text
    base = PATTERN.BASE.fullmatch(text.replace(" ", ""))
    if base:
        return "base", base[1], base[2] or base[3]
    parts = list(PATTERN.MEASURE.finditer(text))
    names = [unit_of(part["unit"]) for part in parts]
    whole = "".join(part[0] for part in parts) == text
    if not parts or not whole or not UNITS.keys() >= set(names):
        return None
    units = [UNITS[name] for name in names]
    if len({unit[1] for unit in units}) > 1:
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


def is_code(gold: str, content: str) -> bool:
    """Whether a gold answer is right only as it is written, though it could be worked out.

    >>> [is_code(gold, "-1") for gold in ("2024-01-02", "H2O", "0xFF", "10-20", "20-10", "2x")]
    [True, True, True, True, False, False]
    """
    ends = PATTERN.RANGE.fullmatch(gold)
    if ends is None:
        return PATTERN.CODE.fullmatch(gold) is not None
    # 10-20 is from 10 to 20, and 20-10 may be 10.
    return float(ends[1]) < float(ends[2]) or PATTERN.RANGE.fullmatch(content) is not None


def _written(text: str) -> str:
    """A date, a range or a name of letters and digits, the same for all its spellings."""
    text = re.sub(r"(?<=[0-9])\s?(?:to|[-/])\s?(?=[0-9])", "-", text)
    ends = PATTERN.RANGE.fullmatch(text)
    if ends:
        return f"{float(ends[1])}-{float(ends[2])}"
    text = re.sub(r"(?<=[0-9])\.(?=[0-9])", "-", text)
    return re.sub(r"(?<![0-9])0+(?=[0-9])|[_{}]", "", text.lower())


def verdict(gold_text: str, content: str) -> str | None:
    """The status of an answer where Math-Verify is not to compare; None where it is."""
    gold, answer = form(gold_text) or (), form(content) or ()
    texts = [PATTERN.IN_TEXT.sub(r"\1", text).strip() for text in (gold_text, content)]
    if not gold and is_code(*texts):
        return "ok" if _written(texts[0]) == _written(texts[1]) else "wrong"
    kinds = [each[0] if each else "" for each in (gold, answer)]
    if "written" in kinds:
        return "ok" if gold == answer else "unparsed"
    # Capitals and what stands in \text are no products of unknowns.
    is_word = kinds[0] == "words" and (texts[0].isupper() or texts[0] != gold_text.strip())
    if kinds == ["words", "words"] or is_word:
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
    several = [each[0] == "measure" and each[3] > 1 for each in (gold, answer) if each]
    return "unparsed" if any(several) or "base" in kinds else None
