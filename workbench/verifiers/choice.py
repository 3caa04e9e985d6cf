"""Multiple choice: the letter that a response settles on, compared with the gold letter.

    verifier = Choice()
    verifier.score([r"so \\boxed{C}", "The answer is (b).", "A cat sat"], ["C", "A", "A"]).status
    # ['ok', 'wrong', 'unparsed']

The letter is looked for in this order, and the first rule that finds one decides:

1. The last complete box that holds a letter: `\\boxed{C}`, `\\boxed{\\text{(C)}}`,
   `\\boxed{C. 12 m}`.
2. The last statement such as "answer is C", "Answer: (C)", "the correct option is C", "choice = C".
3. The last line that is not blank, if it is one letter, "C." or "**(c)**", or if it ends in "(C)"
   or "\\text{C}".

Where several different letters stand together, as in `\\boxed{A, C}`, "the answer is A or C", or a
last line with "(A)" and "(C)", the response has not settled on one and is `wrong`.

A letter is one character between boundaries, so neither "B12" nor "C-terminal" holds one. Lower
case counts wherever a letter is expected. "A", "I" and all lower-case letters could be words: in
running text they count only before punctuation, at the end, or before a word such as "because".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from workbench.utils.validation import whole_number
from workbench.verifiers.base import Scores, Verifier

# Every pattern reads a text in linear time, whatever a model wrote.

# A box with up to two levels of braces inside.
BOX = re.compile(r"\\boxed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")

# The words of a statement, up to where its letter is expected.
SAYS = re.compile(
    r"\b(?:answer|option|choice)\b[\s*_\"'“”]*"
    r"(?::|=|\b(?:is|was|must be|should be|would be|will be)\b:?)",
    re.IGNORECASE,
)

# What may stand before a letter: space, emphasis, brackets, and commands of LaTeX.
OPENING = re.compile(
    r"(?:[\s*_$({\[\"'“`]|\\[(\[]|\\(?:text|textbf|textit|mathrm|mathbf|bf)(?![A-Za-z])"
    r"|(?:option|choice|letter)\b|\\boxed\b)*",
    re.IGNORECASE,
)

# What may stand behind a letter before the next one, and between two letters.
CLOSING = r"[\s*_$)}\]\"'”`]*"
JOIN = re.compile(CLOSING + r"(?:,\s*(?:and|or)\b|,|/|&|\+|\band\b|\bor\b)", re.IGNORECASE)

# The rest of a line behind a letter that is all it says.
LINE_END = r"[\s*_$)}\]\"'”`.:!]*\Z"

# What must follow a letter that could be a word.
ENDS = re.compile(
    r"(?!-\w)[\s*_$]*(?:\Z|[^\w\s*_$]|\n|\\[)\]]"
    r"|(?:because|since|as|is|which|for|due|given|so|and|or|but|based)\b)",
    re.IGNORECASE,
)
WORD_LIKE = "AI"


class Choice(Verifier):
    """Compares the letter of a response with the gold letter.

    Parameters
    ----------
    letters : str
        The allowed answers: at least two different capital letters.
    max_chars : int
        Of a longer response only the end is read.

    Examples
    --------
    >>> Choice().score([r"so \\boxed{C}", "The answer is A or C"], ["c", "A"]).status.tolist()
    ['ok', 'wrong']
    """

    def __init__(self, letters: str = "ABCD", *, max_chars: int = 20_000) -> None:
        super().__init__()
        capitals = isinstance(letters, str) and re.fullmatch("[A-Z]{2,}", letters)
        if not capitals or len(set(letters)) < len(letters):
            raise ValueError(
                f"letters={letters!r}: at least two different capital letters are needed, such as "
                "'ABCD'"
            )
        whole_number("max_chars", max_chars, 1)
        self.letters = letters
        self.max_chars = max_chars
        any_letter = f"[{letters}{letters.lower()}]"
        # A letter that goes on as a word, as in "Can", "A's" or "C-terminal", is none.
        self._letter = re.compile(rf"({any_letter})(?!['’]?\w|-\w)")
        self._bracketed = re.compile(rf"(?:\(\s*|\\text\{{\s*\(?)({any_letter})\s*[)}}]")
        self._ends_bracketed = re.compile(self._bracketed.pattern + LINE_END)

    def judge(self, responses: list[str], answers: list[str]) -> Scores:
        golds = [answer.strip().upper() for answer in answers]
        for i, gold in enumerate(golds):
            if len(gold) != 1 or gold not in self.letters:
                raise ValueError(
                    f"answers[{i}]={answers[i]!r}: one of {', '.join(self.letters)} is needed"
                )
        return Scores.of([self._status(*pair) for pair in zip(responses, golds)])

    def letters_of(self, response: str) -> set[str]:
        """The capital letters that a response settles on: one, several together, or none."""
        text = response[-self.max_chars :]
        return self._boxed(text) or self._said(text) or self._last_line(text)

    def _status(self, response: str, gold: str) -> str:
        letters = self.letters_of(response)
        if not letters:
            return "unparsed"
        return "ok" if letters == {gold} else "wrong"

    def _boxed(self, text: str) -> set[str]:
        return self._last_letters((box[1], 0) for box in BOX.finditer(text))

    def _said(self, text: str) -> set[str]:
        return self._last_letters((text, statement.end()) for statement in SAYS.finditer(text))

    def _last_line(self, text: str) -> set[str]:
        line = text.rstrip().rpartition("\n")[2]
        if self._ends_bracketed.search(line):
            return {match.upper() for match in self._bracketed.findall(line)}
        letter = self._letter.match(line, _opened(line, 0))
        if letter and re.match(LINE_END, line[letter.end() :]):
            return {letter[1].upper()}
        return set()

    def _last_letters(self, places: Iterable[tuple[str, int]]) -> set[str]:
        """The letters at the last of the places (text, start) where there are any."""
        for text, start in reversed(list(places)):
            letters = self._letters_at(text, start)
            if letters:
                return letters
        return set()

    def _letters_at(self, text: str, start: int) -> set[str]:
        """The letters that stand together from `start` on, as in "C" or "(A) and (C)"."""
        letters: set[str] = set()
        place = start
        # Each turn reads one letter and what joins it to the next one.
        while True:
            letter = self._letter.match(text, _opened(text, place))
            if letter is None:
                return letters
            could_be_word = letter[1].islower() or letter[1] in WORD_LIKE
            if could_be_word and not ENDS.match(text, letter.end()):
                return letters
            letters.add(letter[1].upper())
            join = JOIN.match(text, letter.end())
            if join is None:
                return letters
            place = join.end()


def _opened(text: str, place: int) -> int:
    """The place behind what may stand before a letter."""
    opening = OPENING.match(text, place)
    assert opening is not None  # the pattern matches the empty text too
    return opening.end()
