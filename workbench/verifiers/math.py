"""Mathematical answers, compared by Math-Verify in killable workers.

    verifier = Math(boxed=True)
    verifier.score([r"so \\boxed{0.5}", "no idea"], [r"\\frac{1}{2}", "3"]).status    # ['ok', 'unparsed']

Extraction and equivalence are those of Math-Verify (https://github.com/huggingface/Math-Verify) with its own time
limits off: they are SIGALRM, whole seconds and main thread only. Around it, three ways of not asking twice, none of
which changes a verdict:

- A response with one complete box is represented by that box (`only_box` says when); when the box alone cannot be
  read, the whole response is asked about.
- A box that is a plain integer is compared with a gold answer that is one as integers, without a worker.
- Verdicts are kept by (text asked about, gold answer), `timeout` and `crash` too: otherwise one hostile answer would
  cost the deadline every time it is drawn. A worker killed from outside is not such a verdict: the pool asks once more.

The time and memory of reading a gold answer count as its first item's; a gold answer that hangs is a `timeout`.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache, wraps
from itertools import product

from workbench.verifiers import STATUSES, Scores
from workbench.verifiers.checks import check_number, check_texts, check_type
from workbench.verifiers.pool import ForkSafeLock, Pool
from workbench.verifiers.worker import Judge

BOX = "\\boxed{"
INTEGER = re.compile(r"-?[0-9]{1,12}")
PERCENT = re.compile(r"%|percent|pct", re.IGNORECASE)
DELIMITER = re.compile(r"\$|\\[()\[\]]")
FINAL = re.compile("final answer", re.IGNORECASE)
IS = re.compile(r"\sis", re.IGNORECASE)
FINAL_IS = re.compile(r"final answer is:?\Z", re.IGNORECASE)
OPENING, CLOSING = ("$$", "$", "\\(", "\\["), ("$$", "$", "\\)", "\\]")
HOPE = "", "I hope it is correct", "I hope it is correct."
LONG = 256  # characters of a text above which the cache keeps its digest instead


class Math:
    """Math-Verify as a verifier.

    boxed: only the last complete `\\boxed{...}` counts, and a response without one is `unparsed`; otherwise Math-Verify
        looks for the answer itself (boxes first, then "the answer is ...", then the last expression or number).
    workers: processes; deadline: seconds an answer may take; memory_mb: MiB an answer may take. Where a box cannot be read
        and the whole response is asked about, that has a deadline of its own.
    max_chars: of a longer response only the last `max_chars` characters are read (the final answer stands at the end).
    cache: verdicts kept, the least recently used are dropped; 0 keeps none.

    Processes start at the first `score` that needs one and end with `close`, the `with` block, the object or the
    program. `score` may be called from any thread; calls take turns at the workers.
    `counts` (dict status -> int) totals everything scored so far; `config` holds the arguments, for a manifest.
    """

    def __init__(
        self,
        *,
        boxed: bool = False,
        workers: int = 2,
        deadline: float = 5.0,
        memory_mb: int = 1024,
        max_chars: int = 20_000,
        cache: int = 65_536,
    ) -> None:
        check_type("boxed", boxed, bool, "True or False")
        check_number("deadline", deadline, (int, float), 0, "a finite number of seconds above 0")
        check_number("workers", workers, int, 0, "an integer of at least 1")
        check_number("memory_mb", memory_mb, int, 0, "an integer of at least 1")
        check_number("max_chars", max_chars, int, 0, "an integer of at least 1")
        check_number("cache", cache, int, -1, "an integer of at least 0")
        self.config = {
            "boxed": boxed, "workers": workers, "deadline": deadline,
            "memory_mb": memory_mb, "max_chars": max_chars, "cache": cache,
        }  # fmt: skip
        self.boxed, self.max_chars, self.cache = boxed, max_chars, cache
        self.counts = dict.fromkeys(STATUSES, 0)
        self.pool = Pool(
            f"{__name__}:equivalence", workers=workers, deadline=deadline, memory_mb=memory_mb
        )
        self._verdicts: OrderedDict[tuple, str] = OrderedDict()
        self._lock = ForkSafeLock()

    def __repr__(self) -> str:
        return f"Math({', '.join(f'{name}={value!r}' for name, value in self.config.items())})"

    def score(self, responses: Sequence[str], answers: Sequence[str]) -> Scores:
        """Judge R responses against their R gold answers (LaTeX or plain, with or without `$`).

        Raises ValueError when the lengths differ, something is not a string, or a gold answer cannot be read as
        mathematics; RuntimeError when no worker can be started.
        """
        check_texts(responses, answers)
        tails = [response[-self.max_chars :] for response in responses]
        if self.boxed:
            scores = Scores.of(self._verdict([last_box(tail) for tail in tails], answers))
        else:
            scores = Scores.of(self._box_then_whole(tails, answers))
        with self._lock:
            for name, count in scores.counts().items():
                self.counts[name] += count
        return scores

    def _box_then_whole(self, texts: Sequence[str], answers: Sequence[str]) -> list[str]:
        """A status for every pair; boxes stand for their texts where that is safe, unless they cannot be read."""
        asked = [only_box(text) or text for text in texts]
        status = self._verdict(asked, answers)
        again = [
            i for i, found in enumerate(status) if found == "unparsed" and asked[i] != texts[i]
        ]
        for i, found in zip(
            again, self._verdict([texts[i] for i in again], [answers[i] for i in again])
        ):
            status[i] = found
        return status

    def _verdict(self, texts: Sequence[str | None], answers: Sequence[str]) -> list[str]:
        """A status for every pair. Each different pair that neither arithmetic nor the cache settles is asked once."""
        found = [_easy(text, gold) for text, gold in zip(texts, answers)]
        keys = [
            None if easy else _key(text, gold) for easy, text, gold in zip(found, texts, answers)
        ]
        known = self._recall(keys)
        items = {}
        for key, text, gold in zip(keys, texts, answers):
            if key is not None and key not in known:
                items.setdefault(key, {"response": text, "answer": gold})
        known |= self._ask(items)
        return [easy or known[key] for easy, key in zip(found, keys)]

    def _ask(self, items: dict[tuple, dict]) -> dict[tuple, str]:
        """Verdicts of the workers, remembered; then an error if a gold answer made no sense."""
        replies = self.pool.run(list(items.values()))
        fresh = {
            key: reply["status"]
            for key, reply in zip(items, replies)
            if reply["status"] != "unusable gold"
        }
        self._remember(fresh)
        for item, reply in zip(items.values(), replies):
            if reply["status"] == "unusable gold":
                raise ValueError(
                    f"answers holds {item['answer']!r}, which Math-Verify cannot read; allowed: mathematics"
                )
        return fresh

    def _recall(self, keys: Sequence[tuple | None]) -> dict[tuple, str]:
        with self._lock:
            known = {key: self._verdicts[key] for key in keys if key in self._verdicts}
            for key in known:
                self._verdicts.move_to_end(key)
        return known

    def _remember(self, fresh: dict[tuple, str]) -> None:
        with self._lock:
            self._verdicts.update(fresh)
            while len(self._verdicts) > self.cache:
                self._verdicts.popitem(last=False)

    def close(self) -> None:
        """End the workers. Verdicts and counts stay; a later `score` starts workers again."""
        self.pool.close()

    def __enter__(self) -> Math:
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def last_box(text: str) -> str | None:
    """The last complete `\\boxed{...}`, without a full stop at its end; None if there is none.

    >>> last_box(r"\\boxed{1} or \\boxed{\\frac{1}{2}.}, not \\boxed{3")
    '\\\\boxed{\\\\frac{1}{2}}'
    """
    closings = _closings(text)
    for start in reversed([found.end() for found in re.finditer(re.escape(BOX), text)]):
        if start in closings:
            return BOX + text[start : closings[start]].strip().removesuffix(".") + "}"
    return None


def only_box(text: str) -> str | None:
    """The box that Math-Verify would read in `text`, or None if other parts of the text could matter to it.

    They could when there is another box, a delimiter inside the box, a percent sign after it, or the words "final
    answer ... is", which Math-Verify looks for before boxes; the usual "The final answer is $\\boxed{...}$. I hope it
    is correct." is safe.

    >>> only_box(r"Then $x = \\boxed{7}$.")
    '\\\\boxed{7}'
    """
    if text.count("\\boxed") + text.count("\\fbox") != 1 or BOX not in text:
        return None
    start = text.index(BOX)
    end = _closings(text).get(start + len(BOX))
    if end is None or DELIMITER.search(text, start, end) or PERCENT.search(text, end):
        return None
    before, after = text[:start], text[end + 1 :]
    says_final = FINAL.search(text)
    if says_final and IS.search(text, says_final.end()) and not _is_usual_end(before, after):
        return None
    return text[start : end + 1]


def _is_usual_end(before: str, after: str) -> bool:
    """Whether a box stands in "final answer is $...$. I hope it is correct.", its words said once, and ends the text.

    Plain string methods, because a response chooses the text: a pattern with several runs of optional space takes
    hours over a page of blanks.
    """
    before, after = before.rstrip(), after.strip()
    before = before.removesuffix(next(filter(before.endswith, OPENING), "")).rstrip()
    after = (
        after.removeprefix(next(filter(after.startswith, CLOSING), ""))
        .lstrip()
        .removeprefix(".")
        .lstrip()
    )
    return (
        after in HOPE
        and bool(FINAL_IS.search(before))
        and before.lower().count("final answer") == 1
    )


def _closings(text: str) -> dict[int, int]:
    """Where each brace closes: {position after "{": position of its "}"}, as Math-Verify counts (escaped braces too)."""
    closings, opened = {}, []
    for brace in re.finditer("[{}]", text):
        if brace.group() == "{":
            opened.append(brace.end())
        elif opened:
            closings[opened.pop()] = brace.start()
    return closings


def _easy(text: str | None, gold: str) -> str | None:
    """The status where no worker is needed: nothing to read, or integers on both sides."""
    if text is None:
        return "unparsed"
    if not (
        text.startswith(BOX)
        and INTEGER.fullmatch(gold)
        and INTEGER.fullmatch(text, len(BOX), len(text) - 1)
    ):
        return None
    return "ok" if int(text[len(BOX) : -1]) == int(gold) else "wrong"


def _key(text: str, gold: str) -> tuple:
    if len(text) <= LONG:
        return text, gold
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest(), gold


def equivalence() -> Judge:
    """The judge, made in the worker: loads Math-Verify and warms its LaTeX parser up.

    Running out of memory is a `crash` even where Math-Verify would carry on. Nesting too deep for the interpreter
    (RecursionError) and other failures count as Math-Verify counts them: not read (`unparsed`) while parsing, not
    equivalent (`wrong`) while comparing.
    """
    try:
        import math_verify
    except ImportError as error:
        raise ImportError(
            f"{error}; install it with: pip install 'math-verify[antlr4_13_2]'"
        ) from error
    logging.disable(logging.CRITICAL)
    shortages: list[MemoryError] = []
    _note_shortages(math_verify.parser, "latex2sympy", shortages)
    _note_shortages(math_verify.grader, "simplify", shortages)

    @lru_cache(maxsize=4096)
    def gold_of(answer: str) -> list | None:
        for text in (BOX + answer + "}", f"${answer}$", answer):
            if _is_read(parsed := math_verify.parse(text, parsing_timeout=None)):
                return parsed
        return None

    def judge(item: dict) -> dict:
        shortages.clear()
        gold = gold_of(item["answer"])
        if gold is None:
            return {"status": "unusable gold"}
        answer = math_verify.parse(item["response"], parsing_timeout=None)
        if _same(math_verify.verify, gold, answer):
            return {"status": "ok"}
        if shortages:
            raise MemoryError
        return {"status": "wrong" if _is_read(answer) else "unparsed"}

    for text in (r"\frac{1}{2}+x^2", r"(1, \sqrt{2})", "0.5"):
        judge({"answer": text, "response": BOX + text + "}"})
    return judge


def _note_shortages(module, name: str, shortages: list[MemoryError]) -> None:
    """Have a function that Math-Verify calls inside `except Exception` leave word of running out of memory."""
    function = getattr(module, name)

    @wraps(function)
    def noting(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except MemoryError as shortage:
            shortages.append(shortage.with_traceback(None))
            raise

    setattr(module, name, noting)


def _is_read(parsed: list) -> bool:
    """Whether Math-Verify found mathematics; text it could find but not read comes back as a string alone."""
    return any(not isinstance(found, str) for found in parsed)


def _same(verify, gold: list, answer: list) -> bool:
    """Whether any reading of the answer is equivalent to any of the gold; a comparison that fails settles nothing."""
    for pair in product(gold, answer):
        try:
            if verify(*pair, timeout_seconds=None, raise_on_error=True):
                return True
        except MemoryError:
            raise
        except Exception:
            continue
    return False
