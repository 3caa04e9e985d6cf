"""Multiple choice: the letter that a response settles on, compared with the gold letter.

    verifier = Choice()
    verifier.score([r"so \\boxed{C}", "B. 11", "A or B", "A cat sat"], ["C", "B", "A", "A"]).status
    # ['ok', 'ok', 'wrong', 'unparsed']

The letter is looked for behind what a response has thought (`<think>...</think>`), in this order.
The first rule that finds one decides:

1. The last box that holds a letter: `\\boxed{C}`, `\\boxed{\\text{(C)}}`, `\\boxed{C. 12 m}`.
2. The last statement such as "answer is C", "Answer: (C)", "the correct option is C", "choice = C".
3. The last line: one letter, "C.", "**(c)**", "C is correct", a letter with the text of its option
   ("C. 12 m", "(C) 12 m"), or the end "(C)". Then the first line, if a letter with the text of its
   option stands there and nowhere else.

A letter that lacks its own line in a list of options that came before was about to be listed when
the response was cut off, so it is no answer.

Where several letters stand together, as in `\\boxed{A|C}`, `\\boxed{A. C}` or "the answer is A, or
perhaps C", the response has not settled on one and is `wrong`.

A letter is one character between boundaries, so neither "B12" nor "C-terminal" holds one. Lower
case counts wherever a letter is expected. "A", "I" and all lower-case letters could be words: in
running text they count only before punctuation, at the end, or before a word such as "because".
"""

import re
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Annotated, Any

from workbench.utils.bounds import Count, check_arguments
from workbench.verifiers.base import Scores, Verifier
from workbench.verifiers.boxes import PATTERN as BOXES
from workbench.verifiers.boxes import after_thinking, tagged
from workbench.verifiers.grammar import patterns

# Every pattern reads a text in linear time, whatever a model wrote.


PATTERN = patterns("choice")
WORD_LIKE = "AI"

LONGEST_STATEMENT = 300  # characters behind "answer is" that are read

# Where letters were looked for: begin and end of the place, and what was found.
Place = tuple[int, int, set[str]]


def different_capitals(name: str, value: Any) -> None:
    """The bound of at least two different capital letters."""
    capitals = isinstance(value, str) and re.fullmatch("[A-Z]{2,}", value)
    if not capitals or len(set(value)) < len(value):
        raise ValueError(
            f"{name}={value!r}: at least two different capital letters are needed, such as 'ABCD'"
        )


@dataclass(eq=False, repr=False)
class Choice(Verifier):
    """Compares the letter of a response with the gold letter.

    A gold answer is a letter, or a letter with the text of its option, as "B. 11". Then a response
    without a letter is right, too, if that text is what it gives in a box, after "answer is" or in
    its last line.

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

    letters: Annotated[str, different_capitals] = "ABCD"
    max_chars: Count = field(default=20_000, kw_only=True)

    def __post_init__(self) -> None:
        check_arguments(self)
        # A letter that goes on as a word, as in "Can", "A's" or "C-terminal", is none.
        any_letter = f"[{self.letters}{self.letters.lower()}]"
        # A letter of another script begins a word of its own.
        letter = rf"({any_letter})(?!['’]?[0-9A-Za-z_À-ɏ]|-\w)"
        bracketed = rf"(?:\(\s*|\\text\{{\s*\(?)({any_letter})\s*[)}}]"
        self._letter = re.compile(letter)
        self._another = re.compile(rf"(?<![0-9A-Za-z_À-ɏ]){letter}")
        self._bracketed = re.compile(bracketed)
        self._ends_bracketed = re.compile(bracketed + PATTERN.LINE_END.pattern)
        self._bare = re.compile(rf"\W*({any_letter})\W*")
        # One more letter behind the first: joined to it, in brackets, or with an option's mark.
        joined = PATTERN.JOINT.pattern + letter
        marked = rf"(?<![\w'’])([{self.letters}])[.):](?=\s|\Z)"
        self._more = re.compile(rf"{joined}|\(({any_letter})\)|{marked}")

    def judge(self, responses: list[str], answers: list[str]) -> Scores:
        golds = [self._gold(answer, f"answers[{i}]") for i, answer in enumerate(answers)]
        return Scores.of([self._status(*pair) for pair in zip(responses, golds)])

    def _gold(self, answer: str, name: str) -> tuple[str, str]:
        """The letter of a gold answer, and the text of its option or nothing."""
        gold = PATTERN.GOLD.fullmatch(answer.strip())
        if gold is None or gold[1].upper() not in self.letters:
            raise ValueError(
                f"{name}={answer!r}: one of {', '.join(self.letters)} is needed; other letters are "
                f"allowed by Choice(letters=...), such as letters='{self.letters}E'"
            )
        return gold[1].upper(), _plain(gold[2] or "")

    def _status(self, response: str, gold: tuple[str, str]) -> str:
        letter, option = gold
        letters = self.letters_of(response)
        texts = self._option_texts(response) if option else set()
        if f"{letter}. {option}".casefold() in texts or (not letters and option in texts):
            return "ok"
        if not letters:
            return "unparsed"
        return "ok" if letters == {letter} else "wrong"

    def letters_of(self, response: str) -> set[str]:
        """The capital letters that a response settles on: one, several together, or none."""
        text = self._read(response)
        said = self._said(text, PATTERN.SAYS)
        letters = self._boxed(text) or {each for _, _, found in said for each in found}
        if letters and (PATTERN.BOX.search(text) or not PATTERN.RETRACTS.search(text, said[-1][1])):
            return self._boxed(text) or _last_together(text, said)
        hints = [
            hint for hint in self._said(text, PATTERN.SUGGESTS) if not said or hint[0] > said[-1][0]
        ]
        return _last_together(text, hints) or (set() if said else self._in_lines(text))

    def _read(self, response: str) -> str:
        text = PATTERN.CUT_OFF.sub("", after_thinking(response)[-self.max_chars :])
        content = None if PATTERN.BOX.search(text) else tagged(text)
        return text if content is None else content

    def _boxed(self, text: str) -> set[str]:
        places = []
        for box in PATTERN.BOX.finditer(text):
            # A letter that begins a formula is no answer, and neither is one that is denied.
            letter = self._first(box[1])
            is_formula = letter and PATTERN.FORMULA.match(box[1], letter.end())
            is_denied = _is_denied(text, box.start(), box.end())
            letters = set() if is_formula or is_denied else self._letters(box[1])
            places.append((box.start(), box.end(), letters))
        return _last_together(text, places)

    def _said(self, text: str, cues: re.Pattern) -> list[Place]:
        """Where a statement settles on letters."""
        places = []
        for statement in cues.finditer(text):
            letter = self._first(text, statement.end())
            if letter is None or _is_denied(text, statement.start(), letter.end()):
                continue
            start = letter.start()
            letters = self._letters(text[start : start + LONGEST_STATEMENT])
            if letters:
                places.append((statement.start(), start + 1, letters))
        return places

    def _in_lines(self, text: str) -> set[str]:
        lines = [line.strip() for line in text.split("\n") if line.strip()] or [""]
        # Nothing but letters, one below the other, is no choice of the last one.
        bare = takewhile(bool, map(self._bare.fullmatch, reversed(lines)))
        if len(together := {letter[1].upper() for letter in bare if letter}) > 1:
            return together
        options = [self._option(line) for line in lines]
        if PATTERN.DENIES.search(lines[-1]) and not options[-1]:
            return set()
        if self._ends_bracketed.search(lines[-1]):
            return {match.upper() for match in self._bracketed.findall(lines[-1])}
        letters_of = self._letters if options[-1] else self._only_letter
        letters = letters_of(lines[-1])
        listed = {*options[:-1]} - {""}
        if letters:
            # In a list without this letter, the response was cut off where the letter came next.
            return letters if not listed or letters <= listed else set()
        return self._letters(lines[0]) if listed == {options[0]} else set()

    def _option(self, line: str) -> str:
        """The letter of a line such as "B. 11" or "(B) 11", or nothing."""
        letter = self._first(line)
        return letter[1].upper() if letter and PATTERN.MARK.match(line, letter.end()) else ""

    def _only_letter(self, line: str) -> set[str]:
        """The letter of a line that says no more than that, or that it is correct."""
        for letter in self._another.finditer(line):
            if PATTERN.CORRECT.match(line, letter.end()):
                return {letter[1].upper()}
        first = self._first(line)
        rest = line[first.end() :] if first else ""
        is_all = PATTERN.LINE_END.match(rest) or PATTERN.CORRECT.match(rest)
        return {first[1].upper()} if first and is_all else set()

    def _letters(self, text: str) -> set[str]:
        """The letter that a text begins with, and those that it then offers as well."""
        letter = self._first(text)
        if letter is None or not _stands_alone(text, letter[1], letter.end()):
            return set()
        letters = {letter[1].upper()}
        said = text[letter.end() :]
        # "(D) Both A and B" is one option, whose text names others.
        if PATTERN.NAMES_OTHERS.match(said) or not self._another.search(said):
            return letters
        # Nothing but one more letter, where the text of its option would stand.
        marks = PATTERN.BEHIND.match(said)
        alone = self._first(said, marks.end() if marks else 0)
        if alone and PATTERN.LINE_END.match(said[alone.end() :]):
            return letters | {alone[1].upper()}
        for more in self._more.finditer(PATTERN.SAID.split(said, maxsplit=1)[0]):
            found = more[more.lastindex or 0]
            if _stands_alone(said, found, more.end(more.lastindex or 0)):
                letters.add(found.upper())
        return letters

    def _first(self, text: str, start: int = 0) -> re.Match | None:
        """The letter that a text begins with."""
        opening = PATTERN.OPENING.match(text, start)
        return self._letter.match(text, opening.end() if opening else start)

    def _option_texts(self, response: str) -> set[str]:
        """What stands in the last box, or else behind the last "answer is" and in the last line."""
        text = self._read(response).strip()
        boxes = PATTERN.BOX.findall(text)
        if boxes:
            return {_plain(boxes[-1])}
        said = [rest.strip().partition("\n")[0] for rest in PATTERN.SAYS.split(text)[1:]]
        return {_plain(part) for part in (*said[-1:], text.rpartition("\n")[2])}


def _is_denied(text: str, begin: int, end: int) -> bool:
    """Whether what stands from `begin` to `end` is denied, in front of it or behind it."""
    clause = PATTERN.CLAUSE.split(text[max(0, begin - 100) : begin])[-1]
    return bool(PATTERN.DENIES.search(clause) or PATTERN.DENIED_BEHIND.match(text, end))


def _stands_alone(text: str, letter: str, end: int) -> bool:
    """Whether a letter that ends there is no word of the text, as the article "a" is."""
    could_be_word = letter.islower() or letter in WORD_LIKE
    return not could_be_word or PATTERN.ENDS.match(text, end) is not None


def _last_together(text: str, places: list[Place]) -> set[str]:
    """The letters of the last place that has any, and of the places that are joined to it."""
    letters: set[str] = set()
    behind = len(text)
    for begin, end, found in reversed(places):
        if letters and end < behind and not BOXES.JOINER.fullmatch(text, end, behind):
            break
        letters |= found
        if letters:
            behind = begin
    return letters


def _plain(text: str) -> str:
    """A text without emphasis, spaces and a full stop around it, in lower case."""
    text = PATTERN.IN_TEXT.sub(r"\1", text)
    return " ".join(text.strip(" \t\n*_$.\"'").casefold().split())
