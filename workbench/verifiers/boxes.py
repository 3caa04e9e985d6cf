r"""Where a response gives its answer: behind its thoughts, in `\boxed{...}`, or in a sentence.

A response chooses the text, so everything here takes a number of steps that grows with its length
alone. A pattern with several runs of optional space would take hours over a page of blanks.
"""

import re

from workbench.verifiers.grammar import patterns

BOX = "\\boxed{"
PATTERN = patterns("boxes")


def opened_thought(prompt: str) -> str:
    """The mark of the thought in which a prompt ends, for the response to end it; else nothing.

    Examples
    --------
    >>> opened_thought("<|Assistant|><think>\\n"), opened_thought("<think></think>")
    ('<think>\\n', '')
    """
    openings = list(PATTERN.OPENS_THOUGHT.finditer(prompt))
    if not openings or prompt[openings[-1].end() :].strip():
        return ""
    return prompt[openings[-1].start() :]


def after_thinking(response: str) -> str:
    """What a response says behind its thoughts; nothing where they do not end.

    Examples
    --------
    >>> after_thinking("<think>Is it 41?</think>It is 42.")
    'It is 42.'
    """
    ends = [found.end() for found in PATTERN.CLOSES_THOUGHT.finditer(response)]
    said = response[ends[-1] :] if ends else response
    return PATTERN.OPENS_THOUGHT.split(said, maxsplit=1)[0]


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


def last_box(text: str) -> str | None:
    r"""The last complete `\boxed{...}`, without a full stop or comma at its end; None without one.

    Boxes that are offered together are one box that lists what they hold. A box that is part of a
    larger formula, or that is denied, is an empty one. A unit behind it belongs to it.

    Examples
    --------
    >>> last_box(r"\boxed{1}, so \boxed{\frac{1}{2}.}, not \boxed{3")
    '\\boxed{\\frac{1}{2}}'
    >>> last_box(r"\boxed{1} or \boxed{2}"), last_box(r"$-\boxed{1}$"), last_box(r"\boxed{1}\%")
    ('\\boxed{1,2}', '\\boxed{}', '\\boxed{1\\%}')
    """
    ends = closings(text)
    held: list[str] = []
    behind = after = len(text)
    # From the end: a response may try several boxes, and the last one may have been cut off.
    for box in reversed(list(PATTERN.BOXES.finditer(text))):
        end = ends.get(box.end())
        if end is None:
            continue
        # A box around the last one is no other answer.
        if held and (end > behind or not PATTERN.JOINER.fullmatch(text, end + 1, behind)):
            break
        after = after if held else end + 1
        held.insert(0, without_mark(text[box.end() : end]))
        behind = box.start()
    if not held:
        return None
    opened: re.Match | None = None
    # What holds of a box holds of the brackets around it.
    while True:
        unit = PATTERN.READ_WITH.match(text, after)
        if unit:
            held[-1] += _as_unit(unit["unit"])
        elif PATTERN.GOES_ON.match(text, after):
            return BOX + "}"
        if PATTERN.COUNTS_ON.match(text, after) or (opened and opened["factor"]):
            return BOX + "}"
        opened = PATTERN.OPENED.search(text[max(0, behind - 100) : behind])
        closed = PATTERN.CLOSED.match(text, unit.end() if unit else after)
        if not opened or not closed:
            break
        behind, after = behind - len(opened[0]), closed.end()
    front = text[max(0, behind - 100) : behind]
    if _goes_into(front.rpartition("\n")[2]):
        return BOX + "}"
    content = ",".join(dict.fromkeys(held))
    # Another number beside the one in the box is a second answer.
    for beside in (PATTERN.OR_BEHIND.match(text, after), PATTERN.OR_BEFORE.search(front)):
        if beside and PATTERN.INTEGER.fullmatch(content) and beside[1] != content:
            return BOX + "}"
    return BOX + content + "}"


def _as_unit(words: str) -> str:
    """Words behind a number as LaTeX has them."""
    words = re.sub(r"\A%", r"\%", words.strip())
    return words if words.startswith(("\\", "^", "_")) else rf"\text{{ {words}}}"


def _goes_into(front: str) -> bool:
    """Whether what stands in front of a box goes on into it, or denies it."""
    found = PATTERN.NEUTRAL.search(front)
    assert found
    rest = front[: found.start()]
    if not found[0] and re.search(r"[0-9A-Za-z)\]}]\Z", rest):
        return True
    # A list begins its lines with such a sign.
    is_bullet = rest in ("-", "*", "+", ">") and found[0][:1] == " "
    if re.search(r"(?:[-+/*^_<>!|≠≤≥√~−{]|\\[A-Za-z]+|[A-Za-z]\(|\d\.)\Z", rest) and not is_bullet:
        return True
    return PATTERN.BEFORE.search(front) is not None


def stated(text: str, whole: bool = False) -> str | None:
    r"""What a text without a box gives as its answer, as a box; None without one, and an empty box
    where it takes it back. `whole`: the text is an answer.

    Examples
    --------
    >>> stated("So 40 + 2 = 42 eggs."), stated("The answer is $x^2$, since x > 0.")
    ('\\boxed{40 + 2 = 42\\text{ eggs}}', '\\boxed{x^2}')
    >>> stated("Is the answer 42?"), stated("I do not know.")
    ('\\boxed{}', None)
    """
    text = PATTERN.DISPLAY.sub(_in_one_line, PATTERN.MARKDOWN.sub("", text))
    sentences = PATTERN.SENTENCE_END.split(text)
    named = [i for i, each in enumerate(sentences) if PATTERN.ANSWER.search(each.lower())]
    told = [i for i, each in enumerate(sentences) if re.search(r"[\d$\\=π∞½√{]", each)]
    # The sentence of the last "answer", or the next one with mathematics; else the last with some.
    place = next((i for i in told if named and i >= named[-1]), told[-1] if told else -1)
    if named and not whole and (place < 0 or place < named[-1] or _cues(sentences[named[-1]])):
        place = named[-1]
    if whole and place < 0:
        return BOX + without_mark(text).strip("$ ") + "}"
    if place < 0:
        return None
    sentence = sentences[place].strip()
    # Lines without words are answers side by side.
    if whole and not re.search(f"=|{PATTERN.WORD.pattern}", text):
        sentence = ", ".join(sentences[i].strip() for i in told)
    depends = any(map(PATTERN.DEPENDS.search, sentences[max(0, place - 1) : place + 1]))
    taken_back = any(map(PATTERN.RETRACTS.search, sentences[place + 1 :]))
    if depends or taken_back or sentence.endswith("?"):
        return BOX + "}"
    cues = _cues(sentence)
    if cues:
        clauses = re.split(r"[,;:]|\b(?:so|but|then)\b", sentence[: cues[-1].start()])
        if PATTERN.DENIED.search(clauses[-1]):
            return BOX + "}"
        sentence = sentence[cues[-1].end() :]
    elif place not in told:
        return None
    sentence = PATTERN.REASON.split(sentence, maxsplit=1)[0]
    sentence = PATTERN.WITH_UNIT.sub(r"\1\2\3\\text{ \4}", sentence)
    # One dollar sign is money, and two are a formula.
    sentence = re.sub(r"(?<!\\)\$", r"\\$" if sentence.count("$") % 2 else "", sentence)
    sentence = re.sub(r"\\[()\[\]]", "", sentence).rstrip(" .=\"'“”_")
    # A point in front of a digit may be a decimal point.
    sentence = re.sub(r"\A(?:[ =\"'“”_]|(?<=\.)\.|\.(?!\d))*", "", sentence)
    sentence = re.sub(r"(?:です|だ|입니다|이다)\W{0,3}\Z", "", sentence)
    return BOX + without_mark(sentence) + "}"


def _in_one_line(display: re.Match) -> str:
    """A formula on lines of its own as one line, since a row alone may be a part of its answer."""
    formula = display["formula"]
    if "\\begin" not in formula:
        formula = re.sub(r"(?<!\\)&|\\\\", " ", PATTERN.NEW_EQUATION.sub(", ", formula))
    return rf"\[ {without_mark(' '.join(formula.split()))} \] "


def _cues(sentence: str) -> list[re.Match]:
    """Where a sentence may begin to give its answer: behind "answer is", else behind its verbs."""
    found = list(PATTERN.CUE.finditer(sentence))
    cues = [cue for cue in found if sentence[cue.end() :].strip(" .\"'*_")]
    # Where nothing follows "answer is", the next line has what it announces.
    if found and found[-1]["answer"] and found[-1] not in cues:
        return []
    named = [cue for cue in cues if cue["answer"] or cue["cjk"]]
    if not named:
        return cues
    # "Answer: She pays 5 dollars." has a sentence of its own behind the mark.
    between = sentence[named[-1].end() : cues[-1].start()]
    is_own = re.match(r"\W*(?:[A-Z][a-z]+\s[a-z]\D*|(?:There|They|She|He|It)\s)\Z", between)
    return cues if is_own and not PATTERN.DENIED.search(between) else named


def without_mark(answer: str) -> str:
    """An answer without space and emphasis around it and without a mark at its end."""
    answer = answer.strip(" \n\t*`")
    # One dollar sign is money, and two are a formula.
    if (answer.startswith("$") and answer.count("$") > 1) or answer.startswith(("\\(", "\\[")):
        answer = re.sub(r"\A(?:\$+|\\[(\[])|(?:(?<!\\)\$+|\\[)\]])\Z", "", answer)
    return PATTERN.MARK_AT_END.sub("", answer.strip()).strip(" \n\t*`")


def closings(text: str) -> dict[int, int]:
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
