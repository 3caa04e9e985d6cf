r"""Boxes in responses: where `\boxed{...}` ends, which one counts, and how its number is written.

A response chooses the text, so everything here takes a number of steps that grows with its length
alone. A pattern with several runs of optional space would take hours over a page of blanks.
"""

from __future__ import annotations

import re

BOX = "\\boxed{"

# What may stand between two boxes, or two statements, that offer their answers together.
JOINER = re.compile(
    r"(?:\\[a-z]{1,20}|\W|\b(?:or|and|also|maybe|perhaps|possibly|probably|alternatively"
    r"|otherwise|either|the|my|final|correct)\b)*+",
    re.IGNORECASE,
)

# What only Math-Verify can judge when it stands near a box, see `only_box`.
PERCENT = re.compile(r"%|percent|pct", re.IGNORECASE)
DELIMITER = re.compile(r"\$|\\[()\[\]]")
FINAL = re.compile("final answer", re.IGNORECASE)
IS = re.compile(r"\sis", re.IGNORECASE)
FINAL_IS = re.compile(r"final answer is:?\Z", re.IGNORECASE)
OPENINGS = ("$$", "$", "\\(", "\\[")
CLOSINGS = ("$$", "$", "\\)", "\\]")
HOPES = ("", "I hope it is correct", "I hope it is correct.")

# Ways of writing a number that Math-Verify does not read, see `readable`.
# Repeats of digits are bounded, so no response can make `int` read a number of a million digits.
MARK_AT_END = re.compile(r"(?<=[^\s.])[.,;:]\Z")
SCIENTIFIC = re.compile(r"([-+]?[0-9]{1,40}(?:\.[0-9]{1,40})?)[eE]([-+]?[0-9]{1,4})")
SPACED = re.compile(r"-?[0-9]{1,3}(?:(?:\\,|\\;|\\ |~| )[0-9]{3}){1,12}(?:\.[0-9]{1,40})?")
SPACES = re.compile(r"\\,|\\;|\\ |~| ")
REPEATING = re.compile(r"(-?)([0-9]{0,20})\.([0-9]{0,20})\\overline\{([0-9]{1,20})\}")


def after_thinking(response: str) -> str:
    """What a response says behind its thoughts; nothing where they do not end.

    Examples
    --------
    >>> after_thinking("<think>Is it 41?</think>It is 42.")
    'It is 42.'
    """
    return response.rpartition("</think>")[2].partition("<think>")[0]


def last_box(text: str) -> str | None:
    r"""The last complete `\boxed{...}`, without a full stop or comma at its end; None without one.

    Examples
    --------
    >>> last_box(r"\boxed{1} or \boxed{\frac{1}{2}.}, not \boxed{3")
    '\\boxed{\\frac{1}{2}}'
    """
    place = _last_content(text)
    return None if place is None else BOX + without_mark(text[place]) + "}"


def only_box(text: str) -> str | None:
    r"""The box that Math-Verify would read in `text`, or None if other parts of it could matter.

    They could when there is another box, a delimiter inside the box, a percent sign behind it, or
    the words "final answer ... is", which Math-Verify looks for before boxes. The usual ending "The
    final answer is $\boxed{...}$. I hope it is correct." is safe.

    Examples
    --------
    >>> only_box(r"Then $x = \boxed{7}$.")
    '\\boxed{7}'
    """
    if text.count("\\boxed") + text.count("\\fbox") != 1 or BOX not in text:
        return None
    start = text.index(BOX) + len(BOX)
    end = _closings(text).get(start)
    if end is None or DELIMITER.search(text, start, end) or PERCENT.search(text, end):
        return None
    # Math-Verify looks behind "final answer ... is" before it looks for boxes, so these words must
    # lead to this box or be absent.
    says_final = FINAL.search(text)
    if says_final and IS.search(text, says_final.end()):
        if not _is_usual_ending(text[: start - len(BOX)], text[end + 1 :]):
            return None
    return BOX + without_mark(text[start:end]) + "}"


def with_readable_box(text: str) -> str:
    """The text with the number in its last box written as Math-Verify reads it."""
    place = _last_content(text)
    if place is None:
        return text
    return text[: place.start] + readable(text[place]) + text[place.stop :]


def readable(answer: str) -> str:
    r"""An answer as Math-Verify reads it, where it is one number in a form that it does not read.

    These are a full stop or a comma at the end, scientific notation, thousands separated by spaces,
    and repeating decimals. Everything else comes back as it is.

    Examples
    --------
    >>> [readable(answer) for answer in ["42.", "1.6e-19", r"1\,000", r"0.\overline{3}", "1, 2"]]
    ['42', '1.6\\times 10^{-19}', '1000', '\\frac{3}{9}', '1, 2']
    """
    answer = without_mark(answer)
    scientific = SCIENTIFIC.fullmatch(answer)
    if scientific:
        return rf"{scientific[1]}\times 10^{{{int(scientific[2])}}}"
    if SPACED.fullmatch(answer):
        return SPACES.sub("", answer)
    repeating = REPEATING.fullmatch(answer)
    if repeating:
        return _as_fraction(*repeating.groups())
    return answer


def without_mark(answer: str) -> str:
    """An answer without space around it and without a full stop, comma or colon at its end."""
    return MARK_AT_END.sub("", answer.strip())


def _as_fraction(sign: str, whole: str, fixed: str, repeated: str) -> str:
    """A repeating decimal as a fraction: 0.1(6) is (16 - 1) / 90."""
    # All digits minus the ones before the repetition, over a nine for each repeated digit and a
    # zero for each digit between the point and the repetition.
    before = int(whole + fixed or "0")
    numerator = int(whole + fixed + repeated) - before
    denominator = (10 ** len(repeated) - 1) * 10 ** len(fixed)
    return rf"{sign}\frac{{{numerator}}}{{{denominator}}}"


def _is_usual_ending(before: str, after: str) -> bool:
    """Whether a box stands in "final answer is $...$. I hope it is correct." at the end of a text
    that says "final answer" once.
    """
    before = before.rstrip()
    after = after.strip()
    opening = next((mark for mark in OPENINGS if before.endswith(mark)), "")
    closing = next((mark for mark in CLOSINGS if after.startswith(mark)), "")
    before = before.removesuffix(opening).rstrip()
    after = after.removeprefix(closing).lstrip().removeprefix(".").lstrip()
    says_it_once = before.lower().count("final answer") == 1
    return after in HOPES and says_it_once and FINAL_IS.search(before) is not None


def _last_content(text: str) -> slice | None:
    """Where the content of the last complete box lies."""
    closing = _closings(text)
    # From the end: a response may try several boxes, and the last one may have been cut off.
    starts = reversed([box.end() for box in re.finditer(re.escape(BOX), text)])
    return next((slice(start, closing[start]) for start in starts if start in closing), None)


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
