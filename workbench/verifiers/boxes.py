r"""Where a response gives its answer: behind its thoughts, in `\boxed{...}`; and how a number is
written there.

A response chooses the text, so everything here takes a number of steps that grows with its length
alone. A pattern with several runs of optional space would take hours over a page of blanks.
"""

import re
from collections.abc import Callable

BOX = "\\boxed{"

# What may stand between two boxes, or two statements, that offer their answers together.
JOINER = re.compile(
    r"(?:\\[a-z]{1,20}|\W|\b(?:or|and|also|maybe|perhaps|possibly|probably|alternatively"
    r"|otherwise|either|the|my|final|correct)\b)*+",
    re.IGNORECASE,
)
# A word of a sentence: neither a command such as \sqrt nor a variable of one or two letters.
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
PERCENT_BEHIND = re.compile(r"\s{0,4}\$?\s{0,4}(?:\\?%|percent)")

# Ways of writing a number that Math-Verify does not read, see `readable`.
# Repeats of digits are bounded, so no response can make `int` read a number of a million digits.
MARK_AT_END = re.compile(r"(?:(?<=[^\s.\\])[.,;:]|\\[,;:! ]?|\\quad)\Z")
SCIENTIFIC = re.compile(r"([-+]?[0-9]{1,40}(?:\.[0-9]{1,40})?)[eE]([-+]?[0-9]{1,4})")
SCIENTIFIC_IN_TEXT = re.compile(rf"(?<![\w.]){SCIENTIFIC.pattern}(?!\w)")
SPACED = re.compile(r"-?[0-9]{1,3}(?:(?:\\,|\\;|\\ | )[0-9]{3}){1,12}(?:\.[0-9]{1,40})?")
SPACES = re.compile(r"\\,|\\;|\\ | ")
REPEATING = re.compile(
    r"(-?)([0-9]{0,20})\.([0-9]{0,20})\\(?:overline\{|bar\{|dot\{(?=[0-9]\}))([0-9]{1,20})\}"
)
MIXED = re.compile(r"(-?[0-9]{1,20}) {1,4}([0-9]{1,20})/([0-9]{1,20})")
# Numbers with a word that makes another number of them, and how many zeros it adds.
ZEROS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
SCALED = re.compile(
    rf"(-?[0-9][0-9,]{{0,40}}(?:\.[0-9]{{1,40}})?) ?(?:\\text\{{ ?)?({'|'.join(ZEROS)}) ?\}}?"
)
PERCENT = re.compile(r"(-?[0-9][0-9.,]{0,40}) ?(?:\\text\{ ?)?per ?cent ?\}?")
# Other ways of writing what Math-Verify knows.
SAME = {
    "^°": r"^\circ",
    "°": r"^\circ",
    r"^\degree": r"^\circ",
    r"\degree": r"^\circ",
    r"\varnothing": r"\emptyset",
}
CURRENCY = re.compile("[€£¥] ?(?=[0-9])|(?<=[0-9]) ?[€£¥]")
NUMBER_AS_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{ ?(-?[0-9.,]{1,40}) ?\}")
DEGREES = re.compile(
    r"(\\(?:sin|cos|tan|cot|sec|csc)(?:\^\{?[0-9]\}?)? ?(?:\\left)?[({]? ?)([0-9.]{1,20}) ?"
    r"\^ ?(?:\\circ|\{ ?\\circ ?\})"
)


def _as_fraction(sign: str, whole: str, fixed: str, repeated: str) -> str:
    """A repeating decimal as a fraction: 0.1(6) is (16 - 1) / 90."""
    # All digits minus the ones before the repetition, over a nine for each repeated digit and a
    # zero for each digit between the point and the repetition.
    before = int(whole + fixed or "0")
    numerator = int(whole + fixed + repeated) - before
    denominator = (10 ** len(repeated) - 1) * 10 ** len(fixed)
    return rf"{sign}\frac{{{numerator}}}{{{denominator}}}"


# Each form of a number, and how Math-Verify reads it.
FORMS: tuple[tuple[re.Pattern, Callable[[re.Match], str]], ...] = (
    (SCIENTIFIC, lambda found: rf"{found[1]}\times 10^{{{int(found[2])}}}"),
    (SPACED, lambda found: SPACES.sub("", found[0])),
    (SCALED, lambda found: rf"{found[1].replace(',', '')}\times 10^{{{ZEROS[found[2]]}}}"),
    (PERCENT, lambda found: rf"{found[1]}\%"),
    (MIXED, lambda found: rf"{found[1]}\frac{{{found[2]}}}{{{found[3]}}}"),
    (REPEATING, lambda found: _as_fraction(*found.groups())),
)


def after_thinking(response: str) -> str:
    """What a response says behind its thoughts; nothing where they do not end.

    Examples
    --------
    >>> after_thinking("<think>Is it 41?</think>It is 42.")
    'It is 42.'
    """
    return response.rpartition("</think>")[2].partition("<think>")[0]


def tagged(text: str) -> str | None:
    """What the last complete <answer>...</answer> holds; None without one.

    Examples
    --------
    >>> tagged("<answer>41</answer> No. <answer>\\n42\\n</answer>")
    '42'
    """
    before, closing, _ = text.rpartition("</answer>")
    opening = before.rfind("<answer>")
    if not closing or opening < 0:
        return None
    return before[opening + len("<answer>") :].strip()


def tagged_box(text: str) -> str | None:
    r"""The content of the last answer tags as a box; None without one, or where it is a sentence.

    Examples
    --------
    >>> tagged_box("<answer>\n$(1,2)$.\n</answer>")
    '\\boxed{(1,2)}'
    """
    content = tagged(text)
    if not content or (WORD.search(content) and not content.isalpha()):
        return None
    return BOX + without_mark(content).strip("$ ") + "}"


def last_box(text: str) -> str | None:
    r"""The last complete `\boxed{...}`, without a full stop or comma at its end; None without one.

    Boxes that are offered together are one box that lists what they hold.

    Examples
    --------
    >>> last_box(r"\boxed{1}, so \boxed{\frac{1}{2}.}, not \boxed{3")
    '\\boxed{\\frac{1}{2}}'
    >>> last_box(r"\boxed{1} or \boxed{2}")
    '\\boxed{1,2}'
    """
    closings = _closings(text)
    held: list[str] = []
    behind = len(text)
    # From the end: a response may try several boxes, and the last one may have been cut off.
    for box in reversed(list(re.finditer(re.escape(BOX), text))):
        end = closings.get(box.end())
        if end is None:
            continue
        # A box around the last one is no other answer.
        if held and (end > behind or not JOINER.fullmatch(text, end + 1, behind)):
            break
        percent = r"\%" if PERCENT_BEHIND.match(text, end + 1) else ""
        held.insert(0, without_mark(text[box.end() : end]) + percent)
        behind = box.start()
    return BOX + ",".join(dict.fromkeys(held)) + "}" if held else None


def readable(answer: str) -> str:
    r"""An answer as Math-Verify reads it, where it has a number in a form that it does not read.

    These are a full stop or a space at the end, scientific notation, thousands separated by spaces,
    mixed numbers as "3 1/2", repeating decimals, numbers as text, numbers with a currency or with
    "million" or "percent" behind them, and degrees. Everything else comes back as it is.

    Examples
    --------
    >>> [readable(answer) for answer in ["42.", "1.6e-19", r"1\,000", r"0.\overline{3}", "3 1/2"]]
    ['42', '1.6\\times 10^{-19}', '1000', '\\frac{3}{9}', '3\\frac{1}{2}']
    """
    answer = without_mark(answer.replace("~", " "))
    for written, known in SAME.items():
        answer = answer.replace(written, known)
    answer = CURRENCY.sub("", answer)
    answer = NUMBER_AS_TEXT.sub(r"\1", answer)
    answer = DEGREES.sub(r"\1\\frac{\2\\pi}{180}", answer)
    for pattern, write in FORMS:
        found = pattern.fullmatch(answer)
        if found:
            return write(found)
    return answer


def with_readable_powers(text: str) -> str:
    r"""Running text with its numbers in scientific notation as Math-Verify reads them.

    Examples
    --------
    >>> with_readable_powers("It is 1.6e-19.")
    'It is $1.6\\times 10^{-19}$.'
    """
    return SCIENTIFIC_IN_TEXT.sub(r"$\1\\times 10^{\2}$", text)


def without_mark(answer: str) -> str:
    """An answer without space around it and without a full stop, comma or colon at its end."""
    return MARK_AT_END.sub("", answer.strip()).strip()


def _closings(text: str) -> dict[int, int]:
    """Where each brace closes: {position behind "{": position of its "}"}.

    Escaped braces count too, as they do for Math-Verify.
    """
    closings: dict[int, int] = {}
    opened: list[int] = []
    for brace in re.finditer("[{}]", text):
        if brace.group() == "{":
            opened.append(brace.end())
        elif opened:
            # A brace that closes nothing is passed over, since a response need not be balanced.
            closings[opened.pop()] = brace.start()
    return closings
