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
from typing import Annotated, Any

from workbench.utils.bounds import Count, check_arguments
from workbench.verifiers.base import Scores, Verifier
from workbench.verifiers.boxes import JOINER, after_thinking, tagged

# Every pattern reads a text in linear time, whatever a model wrote.

# A box with up to two levels of braces inside.
BOX = re.compile(r"\\(?:boxed|fbox)\s{0,4}\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")

# The words of a statement, up to where its letter is expected: a noun with a verb or a mark, in
# English and in other languages, or a noun alone.
NOUN = (
    r"answer|option|choice|ans\.?|solution|selected|letter|antwort|antwoord|réponse|respuesta|opción"
    r"|risposta|opzione|resposta|alternativa|ответ|odpowiedź|odpověď|cevap|svar(?:et)?|الإجابة|الجواب"
    r"|đáp\sán|jawaban|उत्तर|答案|正解|答え|정답|답"
)
IS = (
    r":|：|=|→|[-–—](?=\s)|\b(?:is|was|(?:must|should|would|will)\sbe|ist|est|es|è|é|to|är|er|là|adalah"
    r")\b:?|是|为|選|选|は|는|은"
)
FITTING = r"(?:\s+(?:correct\w*|corret\w*|corrett\w*|giusta|final\w*))?"
SAYS = re.compile(
    rf"(?<![A-Za-z])(?:(?:{NOUN}){FITTING}[\s*_\"'“”]*(?:{IS}|\s(?=\W{{0,3}}[A-Z]\W{{0,3}}(?:\Z|\n|is\b)))"
    r"|(?:correct|right|best|suitable|appropriate)\s+(?:one|statement|letter)\s+is\b"
    r"|(?:^|\n)[ *_#>-]{0,9}(?:correct|richtig)\b(?::|\sist\b))|(?<!不)(?:[故应所以]{1,2}选|\A选)择?",
    re.IGNORECASE,
)
# Weaker ones, which count where no statement does.
SUGGESTS = re.compile(
    r"\b(?:(?:choose|pick|select|go(?:ing)?\s+with|leaves(?:\s+us)?(?:\s+with)?)\b"
    r"|(?:it|that|this)(?:['’]s|\s+is)\b|(?<=[?.]\s)No,)|\bnot\s\W{0,3}[A-Z]\W{1,4}but\b",
    re.IGNORECASE,
)
# What denies a letter, in front of what is said of it and behind it, and what takes all back.
DENIES = re.compile(
    r"(?i)\b(?:wrong|incorrect\w*|false|worst|least|less|unlikely|not|never|neither|nor|second|avoid"
    r"|doubt|nobody|none|except|excluding|but|out|eliminat\w+|cannot|\w+n['’]t|falsche|mauvaise"
    r"|errada|sbagliata|неправильн\w+|nie|niet|nicht|pas|não|non)\b|不|错"
)
DENIED_BEHIND = re.compile(
    r"[\s*_$)}\]\"'”`.]*(?:\?|(?:is|was|are)\s+(?:\w+\s+)?(?:not|wrong|incorrect|false|eliminated|out)"
    r"\b|ではな|じゃな|가\s?아|이\s?아)"
)
CLAUSE = re.compile(r"[,;.:!?\n]|\b(?:so|then|hence|thus|therefore)\b", re.IGNORECASE)
RETRACTS = re.compile(r"(?i)[.!?\n]\W{0,9}(?:no|wait|actually|hmm|sorry)\b")
# A letter of a formula.
FORMULA = re.compile(r"[\s})\]]*(?:[=^_*<>'′\d]|\+(?!\s*[A-Z]\b)|\([a-z][,)])")

# What may stand before a letter: space, emphasis, brackets, commands of LaTeX, and a few words.
OPENING = re.compile(
    r"(?:[\s*_$({\[\"'“`,✅✔☑→]|=>|\\[(\[]|\\(?:text|textbf|textit|mathrm|mathbf|bf)(?![A-Za-z])"
    r"|(?:the|option|choice|letter|either|both|probably|likely|clearly|definitely|certainly"
    r"|simply|therefore|thus|hence|statement|so|la|le|die|de|el|het)\b|\\(?:boxed|fbox)\b)*",
    re.IGNORECASE,
)

# What may stand behind a letter, and the rest of a line behind one that is all it says.
MARKS = r"(?:[\s*_$)}\]\"'”`.:!。]|\\[)\]])*"
LINE_END = rf"{MARKS}\Z"
BEHIND = re.compile(rf"{MARKS}+(?:not\b)?")

# What must follow a letter that could be a word.
ENDS = re.compile(
    r"(?!-\w)[\s*_$]*(?:\Z|[^\w\s*_$]|\n|\\[)\]]"
    r"|(?:because|since|as|is|which|for|due|given|so|and|or|but|based)\b)",
    re.IGNORECASE,
)
WORD_LIKE = "AI"

# Words that offer one more answer, also at the beginning of the next sentence.
MORE = (
    r"(?:(?i:or|and|also|maybe|perhaps|possibly|probably|alternatively|otherwise|either|unless|oder|ou"
    r"|o|oppure|или|eller|veya|lub|atau|hoặc)\b|或|または|또는)"
)
# What joins one more letter to the first: such a word, a sign, dots that stand for a range, or a
# command of LaTeX. One full stop does not, since the next sentence may begin with a letter.
JOINT = (
    rf"(?:\A|\.{{2,}}|[^\w\s.)\]}}*_$'\"”]|\\\w{{1,20}}|(?<![A-Za-z]){MORE}"
    r"|\b(?i:to|option|choice|answer|is|be|both|nor)\b)[\s*_$(){}\[\]\"'“”`]{0,12}+"
)
# What is said of a letter ends with the sentence, or where the reasons begin.
SENTENCE_END = re.compile(
    rf"(?<!\.)[.!?](?=\s{{1,4}}\(?[A-Z])(?!\s{{1,4}}{MORE})(?!\s{{1,4}}[A-Z][.):])"
    rf"|\n(?!\s{{0,4}}{MORE})(?:(?=\s{{0,4}}\n)|(?![ *_-]{{0,4}}[A-Z](?:[.):]|$)))",
    re.MULTILINE,
)
REASON = re.compile(
    r"\b(?:because|since|as|so|which|not|rather|instead|for|due|given|while|whereas)\b",
    re.IGNORECASE,
)
CORRECT = re.compile(
    r"[\s*_$)}\]\"'”`]*(?:is|(?:must|would|has\s+to|seems\s+to|appears\s+to)\s+be)\s+(?:the\s+)?"
    r"(?:only\s+)?(?:correct|right|best|true|answer)\b",
    re.IGNORECASE,
)
# The mark between a letter and the text of its option, which begins with no verb.
MARK = re.compile(
    r"[*_]*(?:[.):]|\s-(?=\s))(?=[\s*_]|\Z)(?!\s*(?:is|was|are|has|can|would|and|or)\b)"
)
# An option that names others, behind its own letter and its mark.
NAMES_OTHERS = re.compile(
    r"\s*+(?:[).:\]]++\s*+\(?|\()\s*+(?:\\text\{\s*+)?(?:both|neither|all|none|only)\b",
    re.IGNORECASE,
)
IN_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}")
GOLD = re.compile(r"\(?([A-Za-z])(?:[.):]\s*(\S.*))?\)?", re.DOTALL)
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
        self._ends_bracketed = re.compile(bracketed + LINE_END)
        # One more letter behind the first: joined to it, in brackets, or with an option's mark.
        self._more = re.compile(
            rf"{JOINT}{letter}|\(({any_letter})\)|(?<![\w'’])([{self.letters}])[.):](?=\s|\Z)"
        )

    def judge(self, responses: list[str], answers: list[str]) -> Scores:
        golds = [self._gold(answer, f"answers[{i}]") for i, answer in enumerate(answers)]
        return Scores.of([self._status(*pair) for pair in zip(responses, golds)])

    def _gold(self, answer: str, name: str) -> tuple[str, str]:
        """The letter of a gold answer, and the text of its option or nothing."""
        gold = GOLD.fullmatch(answer.strip())
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
        said = self._said(text, SAYS)
        letters = self._boxed(text) or {each for _, _, found in said for each in found}
        if letters and (BOX.search(text) or not RETRACTS.search(text, said[-1][1])):
            return self._boxed(text) or _last_together(text, said)
        hints = [hint for hint in self._said(text, SUGGESTS) if not said or hint[0] > said[-1][0]]
        return _last_together(text, hints) or (set() if said else self._in_lines(text))

    def _read(self, response: str) -> str:
        text = after_thinking(response)[-self.max_chars :]
        content = None if BOX.search(text) else tagged(text)
        return text if content is None else content

    def _boxed(self, text: str) -> set[str]:
        places = []
        for box in BOX.finditer(text):
            # A letter that begins a formula is no answer, and neither is one that is denied.
            letter = self._first(box[1])
            is_formula = letter and FORMULA.match(box[1], letter.end())
            is_denied = _is_denied(text, box.start()) or DENIED_BEHIND.match(text, box.end())
            letters = set() if is_formula or is_denied else self._letters(box[1])
            places.append((box.start(), box.end(), letters))
        return _last_together(text, places)

    def _said(self, text: str, cues: re.Pattern) -> list[Place]:
        """Where a statement settles on letters."""
        places = []
        for statement in cues.finditer(text):
            letter = self._first(text, statement.end())
            if letter is None or _is_denied(text, statement.start()):
                continue
            if DENIED_BEHIND.match(text, letter.end()):
                continue
            start = letter.start()
            letters = self._letters(text[start : start + LONGEST_STATEMENT])
            if letters:
                places.append((statement.start(), start + 1, letters))
        return places

    def _in_lines(self, text: str) -> set[str]:
        lines = [line.strip() for line in text.split("\n") if line.strip()] or [""]
        options = [self._option(line) for line in lines]
        if DENIES.search(lines[-1]) and not options[-1]:
            return set()
        if self._ends_bracketed.search(lines[-1]):
            return {match.upper() for match in self._bracketed.findall(lines[-1])}
        letters = self._only_letter(lines[-1])
        if options[-1]:
            letters = self._letters(lines[-1])
        listed = {*options[:-1]} - {""}
        if letters:
            # In a list without this letter, the response was cut off where the letter came next.
            return letters if not listed or letters <= listed else set()
        return self._letters(lines[0]) if listed == {options[0]} else set()

    def _option(self, line: str) -> str:
        """The letter of a line such as "B. 11" or "(B) 11", or nothing."""
        letter = self._first(line)
        return letter[1].upper() if letter and MARK.match(line, letter.end()) else ""

    def _only_letter(self, line: str) -> set[str]:
        """The letter of a line that says no more than that, or that it is correct."""
        for letter in self._another.finditer(line):
            if CORRECT.match(line, letter.end()):
                return {letter[1].upper()}
        letter = self._first(line)
        if letter is None:
            return set()
        rest = line[letter.end() :]
        return {letter[1].upper()} if re.match(LINE_END, rest) or CORRECT.match(rest) else set()

    def _letters(self, text: str) -> set[str]:
        """The letter that a text begins with, and those that it then offers as well."""
        letter = self._first(text)
        if letter is None or not _stands_alone(text, letter[1], letter.end()):
            return set()
        letters = {letter[1].upper()}
        said = text[letter.end() :]
        # "(D) Both A and B" is one option, whose text names others.
        if NAMES_OTHERS.match(said) or not self._another.search(said):
            return letters
        # Nothing but one more letter, where the text of its option would stand.
        marks = BEHIND.match(said)
        alone = self._first(said, marks.end() if marks else 0)
        if alone and re.match(LINE_END, said[alone.end() :]):
            return letters | {alone[1].upper()}
        ends = [end.start() for end in (SENTENCE_END.search(said), REASON.search(said)) if end]
        for more in self._more.finditer(said[: min(ends, default=len(said))]):
            found = more[more.lastindex or 0]
            if _stands_alone(said, found, more.end(more.lastindex or 0)):
                letters.add(found.upper())
        return letters

    def _first(self, text: str, start: int = 0) -> re.Match | None:
        """The letter that a text begins with."""
        opening = OPENING.match(text, start)
        return self._letter.match(text, opening.end() if opening else start)

    def _option_texts(self, response: str) -> set[str]:
        """What stands in the last box, or else behind the last "answer is" and in the last line."""
        text = self._read(response).strip()
        boxes = BOX.findall(text)
        if boxes:
            return {_plain(boxes[-1])}
        said = [rest.strip().partition("\n")[0] for rest in SAYS.split(text)[1:]]
        return {_plain(part) for part in (*said[-1:], text.rpartition("\n")[2])}


def _is_denied(text: str, end: int) -> bool:
    """Whether the clause that goes on there denies what it says."""
    return bool(DENIES.search(CLAUSE.split(text[max(0, end - 100) : end])[-1]))


def _stands_alone(text: str, letter: str, end: int) -> bool:
    """Whether a letter that ends there is no word of the text, as the article "a" is."""
    could_be_word = letter.islower() or letter in WORD_LIKE
    return not could_be_word or ENDS.match(text, end) is not None


def _last_together(text: str, places: list[Place]) -> set[str]:
    """The letters of the last place that has any, and of the places that are joined to it."""
    letters: set[str] = set()
    behind = len(text)
    for begin, end, found in reversed(places):
        if letters and end < behind and not JOINER.fullmatch(text, end, behind):
            break
        letters |= found
        if letters:
            behind = begin
    return letters


def _plain(text: str) -> str:
    """A text without emphasis, spaces and a full stop around it, in lower case."""
    text = IN_TEXT.sub(r"\1", text)
    return " ".join(text.strip(" \t\n*_$.\"'").casefold().split())
