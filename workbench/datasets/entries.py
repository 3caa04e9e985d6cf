r"""What a row of a data set says, and how its texts are read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from workbench.policies.checks import MOST_PROMPTS
from workbench.utils.validation import shown


@dataclass(frozen=True)
class Entry:
    r"""One question.

    Attributes
    ----------
    question : str
        Without an instruction; empty where the row has none.
    answer : str
        The gold answer; empty where the row has none.
    level : int
        0 for unknown.
    response : str, optional
        A response that must be judged right. None: of mathematics the answer in a box, of tests not
        known.
    """

    question: str
    answer: str
    level: int = 0
    response: str | None = None


def check_place(template: Any) -> None:
    """Raise ValueError for a template without a place for the question, or with many.

    The question is put there by `str.replace`: by `format`, a stranger's template could ask for a
    text of any length.
    """
    if not isinstance(template, str) or not 1 <= template.count("{prompt}") <= MOST_PROMPTS:
        raise ValueError(
            f"template={shown(template)}: a text with {{prompt}} in it is needed, at most "
            f"{MOST_PROMPTS} times"
        )


def text_of(value: Any) -> str:
    """A text without space around it; empty for None."""
    return "" if value is None else str(value).strip()


def without_dollars(answer: Any) -> str:
    """An answer without dollar signs around mathematics. A whole number that went through a float,
    as 27.0, is 27.
    """
    # An escaped dollar sign is money and stays.
    answer = re.sub(r"(?<!\\)\$", "", text_of(answer)).strip()
    return re.sub(r"\A(-?\d+)\.0\Z", r"\1", answer)


def level_of(value: Any) -> int:
    """The number in "Level 5" or 5; 0 where there is none, as in a few rows of MATH."""
    digits = re.search(r"\d+", str(value))
    return int(digits.group()) if digits else 0


def boxed_answer(text: str) -> str | None:
    r"""What the last `\boxed{...}` of a solution holds, also of `\fbox{...}` and `\boxed 7`.

    Examples
    --------
    >>> boxed_answer(r"\boxed{1}, hence \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    boxes = list(re.finditer(r"\\(?:boxed|fbox)(?:\s*\{|\s+([^$\n]+))", text))
    if not boxes:
        return None
    # The form without braces, as in `\boxed 7`.
    if boxes[-1][1]:
        return boxes[-1][1].strip(" .")
    rest = text[boxes[-1].end() :]
    # The brace that opens the box lies before `rest`.
    depth = 1
    for brace in re.finditer(r"\\.|[{}]", rest):  # an escaped brace is no brace
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return rest[: brace.start()]
    return None
