r"""Where a response gives its answer: behind its thoughts, in `\boxed{...}`, or in its last sentence.

A response chooses the text, so everything here takes a number of steps that grows with its length
alone. A pattern with several runs of optional space would take hours over a page of blanks.
"""

import re

BOX = "\\boxed{"
BOXES = re.compile(r"\\(?:boxed|fbox)\s{0,4}\{")

# What may stand between two boxes, or two statements, that offer their answers together.
JOINER = re.compile(
    r"(?:\\[a-z]{1,20}|\W|\b(?:or|and|also|maybe|perhaps|possibly|probably|alternatively"
    r"|otherwise|either|the|my|final|correct)\b)*+",
    re.IGNORECASE,
)
# A word of a sentence: neither a command such as \sqrt nor a variable of one or two letters.
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
MARK_AT_END = re.compile(r"(?:(?<=[^\s.\\])[.,;:]|\\[,;:! ]?|\\q?quad|\\\\)\Z")

# Thoughts, as models mark them: the names of tags, and the marks that begin and end them.
THOUGHTS = "think|thinking|thought|thoughts|reasoning|analysis|reflection|scratchpad|seed:think"
OPENS_THOUGHT = re.compile(
    rf"(?i)[<\[](?:{THOUGHTS})[>\]]|<\|?(?:begin_of_thought|channel\|>(?:analysis|commentary))\|?>?"
    r"|◁think▷"
)
CLOSES_THOUGHT = re.compile(
    rf"(?i)[<\[]/(?:{THOUGHTS})[>\]]|<\|end_of_thought\|>|<\|channel\|>final(?:<\|message\|>)?"
    r"|◁/think▷"
)

# Words that make another number of the one beside them, with how many zeros they add.
ZEROS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
# Words that scale, bound, deny or compare a number, so that it is not the answer as it stands.
DENIES = (
    r"not|cannot|never|neither|nor|except|excluding|unless|without|wrong|incorrect|false|untrue"
    r"|doubt|unlikely|impossible|\w+n['’]t|nicht|kein\w*|pas|não|ikke|niet|inte|non"
)
SCALES = (
    rf"(?:{'|'.join(ZEROS)})s?|\w*illi(?:on|ard)(?:s|en|es)?|dozens?|scores?|gross|grand|tens"
    r"|lakhs?|crores?|myriads?|mille?|mila|tausend|dutzend|\w*(?:four|fif|six|seven|eigh|nin|ten"
    r"|elf|tie|dred|sand|illion)ths?|thirds?|quarters?|hal(?:f|ves)|per\s?(?:cent|mille)|percent"
    r"|percentage|pct|permille|pp[mbt]|bps|basis\spoints|bn|mn|tn|mil"
)
COMPARES = (
    r"or|than|more|less|fewer|greater|smaller|most|least|up\sto|above|below|over|under|between"
    r"|from|to|plus|minus|negative|times|twice|double|triple|thrice|squared|square\sof|cubed|root|power"
    r"|factorial|divided|multiplied|rounded|multiple|inverse|reciprocal|opposite|change|too|is|was"
    r"|if|when|but|because|off|depending|approximately|about|nearly|almost|roughly|par|no|one|with"
)
SCALING = rf"(?:(?i:{SCALES})|[kKMBT])"
CHANGES = re.compile(rf"\b(?:(?i:{DENIES}|{COMPARES})|{SCALING})(?!\w)|[‰‱+]|\bне\b|不")

# Around a box. In front: what may stand there, and words that deny what is in it.
NEUTRAL = re.compile(
    r"(?:\\(?:q?quad|implies|therefore|Rightarrow|Longrightarrow|iff|to|in|rightarrow|approx|equiv"
    r"|displaystyle|colon)(?![A-Za-z])|\\text\{[^{}]*\}|\$|\\[(\[,;:! $]|\*\*|[\s`=:]"
    r"|\\(?:boxed|fbox|underline|mathbf|textbf|boldsymbol|bm|(?:text)?color\{[^{}]*\})\{?)*\Z"
)
BEFORE = re.compile(
    rf"(?i)\b(?:{DENIES}|no|than|at\smost|at\sleast|up\sto|above|below|over|under|minus|negative"
    r"|twice|double|half\sof|(?:any|every)thing\sbut|all\sbut|between|(?:root|square|cube)\sof)"
    r"(?:\s(?:be|the|answer|is|a|an|equal|to|true|that|it|correct)\b){0,7}[\s$(*]*\Z"
)
# Behind: words that are read with the number, and a formula that goes on, or a retraction.
READ_WITH = re.compile(
    r"[\s$*]{0,4}(?P<unit>\\?%|‰|\^\{?\\circ\}?|\\(?:text|mathrm|mbox)\s?\{[^{}]*\}(?:\^\{?\d\}?)?"
    rf"|{SCALING}\b(?:\s(?:dollars|people)\b)?"
    r"|(?i:or\s(?:more|less|fewer|above|below)|and\sa\s\w+|squared|cubed|factorial|below\szero"
    rf"|(?:is|was)?\s?(?:\w+\s)?(?:{DENIES})\b(?!\s\d)))"
)
GOES_ON = re.compile(
    r"(?!\s-\s[A-Za-z])(?:[\w½²³‰'’]|[,.:]\d|\s?[-+/*^_<>!]\s?(?:\\?[\d({$)\]]|\\[a-z]|[a-z]\b)"
    r"|\s?\\(?:cdot|times|div|pm|over|sqrt|frac|pi|le|ge|ne|lt|gt|mid|choose)|\s?\?"
    r"|[\s.(*$]{0,4}(?i:no|wait|actually|wrong|incorrect|sorry)\b)"
)

# Sentences. A full stop inside of a number or behind a single letter ends none.
SENTENCE_END = re.compile(r"\n|(?<!\b[A-Z])(?<!\bvs)[.!](?=\s|\Z)|(?<=\?)(?=\s|\Z)|[。！]")
ANSWER = (
    r"answer|result|solution|答案|答え|정답|답|antwort|respuesta|réponse|resposta|risposta|ответ"
)
# The words that a sentence has in front of its answer.
CUE = re.compile(
    rf"(?i)(?P<answer>(?:{ANSWER})\b[\s*_\"'“”]*(?:to\b[^.:=]{{0,60}}?)?(?::|=|：|是|为|は|\b(?:is|are"
    r"|was|(?:must|should|will|would)\sbe|equals|ist|es|est|é|è)\b)[:：]?)"
    rf"|(?P<cjk>(?:{ANSWER})\s?(?:：|:|是|为|は))"
    r"|(?<![A-Za-z])(?:is|are|was|were|equals|has|have|had|gets?|got|gives?|leaves?|makes?|obtain"
    r"|finds?|costs?|needs?|earns?|pays?|spends?|takes?|receives?|saves?|sells?|weighs?|be)\b(?:\sthat\b)?|(?<=[A-Za-z])['’]s\b|(?<=[A-Za-z*]):|(?<=[A-Za-z]{3})\s?=|\A\W{0,4}(?:therefore|thus|so"
    r"|hence)\b,?"
)
# Where what a sentence says of its answer ends.
REASON = re.compile(
    r"(?:,|\s-)?\s(?:because|since|as|so|which|rather|instead|for|due|given|while|whereas|in\stotal"
    r"|altogether|left|each)\b|,\s(?:not\s\d|and\s(?:not|we|this|it|that)\b)"
    r"|\s\((?!wrong|incorrect|not|no\b|false)[A-Za-z ]{2,}\)"
)
MARKDOWN = re.compile(r"\*\*|`|(?m:^\s{0,3}#+)|(?<=\s)_(?=\w)|(?<=\w)_(?=[\s.,]|\Z)")
RETRACTS = re.compile(
    r"(?i)\A\W{0,9}(?:no|wait|actually|hmm|sorry|oops|or|perhaps|maybe|possibly|alternatively)\b"
    r"|\b(?:wrong|incorrect|mistake)\b"
)
DENIED = re.compile(rf"(?i)\b(?:{DENIES}|if|whether|suppose|is\sthe)\b|不|\bне\b")


def opened_thought(prompt: str) -> str:
    """The mark of the thought in which a prompt ends, for the response to end it; else nothing.

    Examples
    --------
    >>> opened_thought("<|Assistant|><think>\\n"), opened_thought("<think></think>")
    ('<think>\\n', '')
    """
    ends = [found for found in OPENS_THOUGHT.finditer(prompt) if not prompt[found.end() :].strip()]
    return prompt[ends[-1].start() :] if ends else ""


def after_thinking(response: str) -> str:
    """What a response says behind its thoughts; nothing where they do not end.

    Examples
    --------
    >>> after_thinking("<think>Is it 41?</think>It is 42.")
    'It is 42.'
    """
    ends = [found.end() for found in CLOSES_THOUGHT.finditer(response)]
    said = response[ends[-1] :] if ends else response
    return OPENS_THOUGHT.split(said, maxsplit=1)[0]


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
    behind = len(text)
    # From the end: a response may try several boxes, and the last one may have been cut off.
    for box in reversed(list(BOXES.finditer(text))):
        end = ends.get(box.end())
        if end is None:
            continue
        # A box around the last one is no other answer.
        if held and (end > behind or not JOINER.fullmatch(text, end + 1, behind)):
            break
        content = without_mark(text[box.end() : end])
        if not held:
            unit = READ_WITH.match(text, end + 1)
            if unit:
                content += _as_unit(unit["unit"])
            elif GOES_ON.match(text, end + 1):
                return BOX + "}"
        held.insert(0, content)
        behind = box.start()
    if not held:
        return None
    if _goes_into(text[max(0, behind - 100) : behind].rpartition("\n")[2]):
        return BOX + "}"
    return BOX + ",".join(dict.fromkeys(held)) + "}"


def _as_unit(words: str) -> str:
    """Words behind a number as LaTeX has them."""
    words = words.strip()
    if words.startswith("\\") or words == "%":
        return "\\" + words.lstrip("\\")
    return rf"\text{{ {words}}}"


def _goes_into(front: str) -> bool:
    """Whether what stands in front of a box goes on into it, or denies it."""
    found = NEUTRAL.search(front)
    assert found
    rest = front[: found.start()]
    if not found[0] and re.search(r"[0-9A-Za-z)\]}]\Z", rest):
        return True
    # A list begins its lines with such a sign.
    is_bullet = rest in ("-", "*", "+", ">") and found[0][:1] == " "
    if re.search(r"(?:[-+/*^_<>!|≠≤≥√~−{]|\\[A-Za-z]+|[A-Za-z]\(|\d\.)\Z", rest) and not is_bullet:
        return True
    return BEFORE.search(front) is not None


def stated(text: str, whole: bool = False) -> str | None:
    r"""What a text without a box gives as its answer, as a box; None without one, and an empty box
    where it takes it back. `whole`: the text is an answer.

    Examples
    --------
    >>> stated("So 40 + 2 = 42 eggs."), stated("The answer is $x^2$, since x > 0.")
    ('\\boxed{40 + 2 = 42 eggs}', '\\boxed{x^2}')
    >>> stated("Is the answer 42?"), stated("I do not know.")
    ('\\boxed{}', None)
    """
    text = MARKDOWN.sub("", text)
    sentences = SENTENCE_END.split(text)
    named = [i for i, each in enumerate(sentences) if re.search(f"(?i){ANSWER}", each)]
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
    if sentence.endswith("?") or any(map(RETRACTS.search, sentences[place + 1 :])):
        return BOX + "}"
    cues = _cues(sentence)
    if cues:
        if DENIED.search(re.split(r"[,;:]|\b(?:so|but|then)\b", sentence[: cues[-1].start()])[-1]):
            return BOX + "}"
        sentence = sentence[cues[-1].end() :]
    elif place not in told:
        return None
    sentence = REASON.split(sentence, maxsplit=1)[0]
    # One dollar sign is money, and two are a formula.
    sentence = re.sub(r"(?<!\\)\$", r"\\$" if sentence.count("$") % 2 else "", sentence)
    sentence = re.sub(r"\\[()\[\]]", "", sentence).strip(" .=\"'“”_")
    sentence = re.sub(r"(?:です|だ|입니다)\W{0,3}\Z", "", sentence)
    return BOX + without_mark(sentence) + "}"


def _cues(sentence: str) -> list[re.Match]:
    """Where a sentence may begin to give its answer: behind "answer is", else behind its verbs."""
    cues = [cue for cue in CUE.finditer(sentence) if sentence[cue.end() :].strip(" .\"'*_")]
    return [cue for cue in cues if cue["answer"] or cue["cjk"]] or cues


def without_mark(answer: str) -> str:
    """An answer without space and emphasis around it and without a mark at its end."""
    answer = answer.strip(" \n\t*`")
    if answer.startswith("$") or answer.startswith(("\\(", "\\[")):
        answer = re.sub(r"\A(?:\$+|\\[(\[])|(?:(?<!\\)\$+|\\[)\]])\Z", "", answer)
    return MARK_AT_END.sub("", answer.strip()).strip(" \n\t*`")


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
