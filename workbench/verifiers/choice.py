"""Multiple choice: the letter a response settles on, compared with the gold letter. Plain string work, no processes.

    verifier = Choice()
    verifier.score([r"so \\boxed{C}", "The answer is (b).", "A cat sat"], ["C", "A", "A"]).status    # ['ok', 'wrong', 'unparsed']

Where the letter is looked for, the first rule that finds one deciding:

1. The last complete box that holds a letter: `\\boxed{C}`, `\\boxed{\\text{(C)}}`, `\\boxed{C. 12 m}`.
2. The last statement "answer is C", "Answer: (C)", "the correct option is C", "choice = C".
3. The last line that is not blank, if it is one letter, "C." or "**(c)**", or ends in "(C)" or "\\text{C}".

Where several different letters stand together, as in `\\boxed{A, C}`, "the answer is A or C", or a last line with "(A)"
and "(C)", nothing was settled on: `wrong`. A letter is one character between boundaries, so neither "B12" nor
"C-terminal" holds one. Lower case counts wherever a letter is expected. "A", "a", "I" and other lower-case letters could
be words: in running text they count only before punctuation, the end, or a word such as "because".
"""

import re

from workbench.verifiers import STATUSES, Scores

# every pattern reads a text in linear time, whatever a model wrote
BOX = re.compile(r"\\boxed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
SAYS = re.compile(
    r"\b(?:answer|option|choice)\b[\s*_\"'“”]*"
    r"(?::|=|\b(?:is|was|must be|should be|would be|will be)\b:?)",
    re.IGNORECASE,
)
OPENING = re.compile(
    r"(?:[\s*_$({\[\"'“`]|\\[(\[]|\\(?:text|textbf|textit|mathrm|mathbf|bf)(?![A-Za-z])"
    r"|(?:option|choice|letter)\b|\\boxed\b)*",
    re.IGNORECASE,
)
CLOSING = r"[\s*_$)}\]\"'”`]*"
LINE_END = r"[\s*_$)}\]\"'”`.:!]*\Z"
JOIN = re.compile(CLOSING + r"(?:,\s*(?:and|or)\b|,|/|&|\+|\band\b|\bor\b)", re.IGNORECASE)
ENDS = re.compile(
    r"(?!-\w)[\s*_$]*(?:\Z|[^\w\s*_$]|\n|\\[)\]]"
    r"|(?:because|since|as|is|which|for|due|given|so|and|or|but|based)\b)",
    re.IGNORECASE,
)
WORD_LIKE = "AI"


class Choice:
    """Compares the letter of a response with the gold letter; see the module for where it is looked for.

    letters: the allowed answers, capitals, at least two. max_chars: of a longer response only the end is read.
    `counts` (dict status -> int) totals everything scored so far; `config` holds the arguments, for a manifest.
    """

    def __init__(self, letters="ABCD", *, max_chars=20_000):
        if (
            not isinstance(letters, str)
            or not re.fullmatch("[A-Z]{2,}", letters)
            or len(set(letters)) < len(letters)
        ):
            raise ValueError(
                f"letters={letters!r}: at least two different capital letters are needed, such as 'ABCD'"
            )
        if isinstance(max_chars, bool) or not isinstance(max_chars, int) or max_chars < 1:
            raise ValueError(f"max_chars={max_chars!r}: a whole number of at least 1 is needed")
        self.letters, self.max_chars = letters, max_chars
        self.config = {"letters": letters, "max_chars": max_chars}
        self.counts = dict.fromkeys(STATUSES, 0)
        any_letter = f"[{letters}{letters.lower()}]"
        self._letter = re.compile(rf"({any_letter})(?!['’]?\w|-\w)")
        self._bracketed = re.compile(rf"(?:\(\s*|\\text\{{\s*\(?)({any_letter})\s*[)}}]")
        self._ends_bracketed = re.compile(self._bracketed.pattern + LINE_END)

    def __repr__(self):
        return f"Choice({', '.join(f'{name}={value!r}' for name, value in self.config.items())})"

    def score(self, responses, answers):
        """Judge R responses against their R gold letters, in either case; returns `Scores`.

        ValueError when the lengths differ, something is not a string, or a gold answer is not one of the letters.
        """
        responses, golds = _texts("responses", responses), _texts("answers", answers)
        if len(responses) != len(golds):
            raise ValueError(
                f"answers has length {len(golds)}; allowed: that of responses, {len(responses)}"
            )
        golds = [gold.strip().upper() for gold in golds]
        for i, gold in enumerate(golds):
            if len(gold) != 1 or gold not in self.letters:
                raise ValueError(
                    f"answers[{i}] is {answers[i]!r}; allowed: one of {', '.join(self.letters)}"
                )
        scores = Scores.of(
            [self._status(response, gold) for response, gold in zip(responses, golds)]
        )
        for status, count in scores.counts().items():
            self.counts[status] += count
        return scores

    def letters_of(self, response):
        """The letters, a set of capitals, that a response settles on: one, several together, or none."""
        text = response[-self.max_chars :]
        return self._boxed(text) or self._said(text) or self._last_line(text)

    def _status(self, response, gold):
        found = self.letters_of(response)
        return "unparsed" if not found else "ok" if found == {gold} else "wrong"

    def _boxed(self, text):
        return self._last_read((box[1], 0) for box in BOX.finditer(text))

    def _said(self, text):
        return self._last_read((text, statement.end()) for statement in SAYS.finditer(text))

    def _last_line(self, text):
        line = text.rstrip().rpartition("\n")[2]
        if self._ends_bracketed.search(line):
            return {match.upper() for match in self._bracketed.findall(line)}
        letter = self._letter.match(line, OPENING.match(line).end())
        alone = letter and re.match(LINE_END, line[letter.end() :])
        return {letter[1].upper()} if alone else set()

    def _last_read(self, places):
        """What is read at the last of the places (text, start) where anything is."""
        return next(
            filter(None, (self._read(text, start) for text, start in reversed(list(places)))), set()
        )

    def _read(self, text, start):
        """The letters that stand together from `start` on, as "C", "(A) and (C)"; empty where something else stands."""
        found, place = set(), start
        while letter := self._letter.match(text, OPENING.match(text, place).end()):
            could_be_word = letter[1].islower() or letter[1] in WORD_LIKE
            if could_be_word and not ENDS.match(text, letter.end()):
                break
            found.add(letter[1].upper())
            join = JOIN.match(text, letter.end())
            if not join:
                break
            place = join.end()
        return found

    def close(self):
        """Nothing to end; here because every verifier has it."""

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def _texts(name, texts):
    """A sequence of strings as a list; ValueError for anything else."""
    if isinstance(texts, str):
        raise ValueError(f"{name} is {texts[:50]!r}, one string; allowed: a sequence of strings")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{name}[{i}] is {text!r}; allowed: a string")
    return list(texts)
