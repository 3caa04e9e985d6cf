r"""Mathematical answers, compared by Math-Verify in killable worker processes.

    verifier = Math(boxed=True)
    verifier.score([r"so \boxed{0.5}", "no idea"], [r"\frac{1}{2}", "3"]).status
    # ['ok', 'unparsed']

What a response says in `<think>...</think>` is no answer. How two answers are compared is in
`workbench.verifiers.equivalence`. Around it stand three ways of not asking twice, none of which
changes a verdict:

- A response with a box is represented by its last box, and by those that stand together with it.
- A box that holds a plain integer is compared with a gold answer that is one as integers, without a
  worker.
- Verdicts are kept by the text asked about and the gold answer, `timeout` and `crash` included:
  otherwise one hostile answer would cost the deadline every time it is drawn. A `timeout` is kept
  only if the answer really computed that long, not if its worker was paused or starved.

The time and memory of reading a gold answer count as its first item's, so a gold answer that hangs
is a `timeout`.
"""

import hashlib
import re
from dataclasses import dataclass

from workbench.utils.bounds import Count, CountOrZero, Flag, Positive, check_arguments
from workbench.verifiers.base import Scores, Verifier
from workbench.verifiers.boxes import BOX, PATTERN, after_thinking, last_box, stated, tagged
from workbench.verifiers.pool import Pool

INTEGER = re.compile("-?[0-9]{1,12}")
BOXED_INTEGER = re.compile(r"\\boxed\{(-?[0-9]{1,12})\}")
UNUSABLE = "unusable gold"  # what a worker says of a gold answer that it cannot read

Pair = tuple[str | None, str]  # what is asked about, and the gold answer


@dataclass(eq=False, repr=False, kw_only=True)
class Math(Verifier):
    r"""Mathematical equivalence as a verifier.

    Parameters
    ----------
    boxed : bool
        True: a response without a complete `\boxed{...}` is `unparsed`. False: in such a response
        what stands in the last `<answer>` tags is read as a box is, and without these Math-Verify
        looks for the answer behind "the answer is" and in the last expression or number. Of several
        boxes the last one counts, and those that stand together with it.
    workers : int
        Processes.
    deadline : float
        Seconds that an answer may take.
    memory_mb : int
        MiB that an answer may take.
    max_chars : int
        Of a longer response only the end is read, where the final answer stands.
    cache : int
        Verdicts kept; the oldest are dropped. 0 keeps none.

    Notes
    -----
    Processes start at the first `score` that needs one. They end with `close`, the `with` block,
    the object or the program. `score` may be called from any thread; calls take turns at the
    workers.
    """

    boxed: Flag = False
    workers: Count = 2
    deadline: Positive = 5.0
    memory_mb: Count = 1024
    max_chars: Count = 20_000
    cache: CountOrZero = 65_536

    def __post_init__(self) -> None:
        check_arguments(self)
        self.pool = Pool(
            "workbench.verifiers.equivalence:equivalence",
            workers=self.workers,
            deadline=self.deadline,
            memory_mb=self.memory_mb,
        )
        self._kept: dict[bytes, str] = {}

    def judge(self, responses: list[str], answers: list[str]) -> Scores:
        pairs = list(zip(map(self._asked, responses), answers))
        easy = {pair: _easy(*pair) for pair in pairs}
        # Each different pair that needs a worker is asked about once.
        verdicts = self._ask([pair for pair, status in easy.items() if status is None])
        return Scores.of([easy[pair] or verdicts[pair] for pair in pairs])

    def _asked(self, response: str) -> str | None:
        """What the workers are asked about: a box where there is one."""
        # A box is shorter to read than its text, and rollouts that differ in everything but the
        # box share one kept verdict.
        text = after_thinking(response)[-self.max_chars :]
        box = last_box(text)
        if box is not None or self.boxed:
            return box
        # What stands in answer tags is read without what stands before it.
        inside = tagged(text)
        if inside is not None and PATTERN.RETRACTS.search(text.rpartition("</answer>")[2]):
            return BOX + "}"
        return stated(text if inside is None else inside, whole=inside is not None)

    def _ask(self, pairs: list[Pair]) -> dict[Pair, str]:
        """Verdicts by the cache or the workers; ValueError for an unusable gold answer."""
        # The cache keeps digests, since texts may be long.
        keys = {
            pair: hashlib.blake2b(repr(pair).encode(), digest_size=16).digest() for pair in pairs
        }
        # No lock is held, so two threads may ask about the same pair. That costs time alone.
        kept = {pair: self._kept.get(key) for pair, key in keys.items()}
        known = {pair: status for pair, status in kept.items() if status}
        unknown = [pair for pair in pairs if pair not in known]
        replies = self.pool.run([{"response": text, "answer": gold} for text, gold in unknown])
        found: dict[Pair, str] = {}
        unusable = []
        for pair, reply in zip(unknown, replies):
            found[pair] = reply["status"]
            if reply["status"] == UNUSABLE:
                unusable.append((pair[1], reply["read"]))
            # Another try may give a verdict in place of a timeout that is not certain.
            elif reply.get("certain", True):
                self._kept[keys[pair]] = reply["status"]
        # In a list of its own, since another thread may keep a verdict meanwhile.
        for key in list(self._kept)[: max(0, len(self._kept) - self.cache)]:
            self._kept.pop(key, None)
        # The other verdicts of this batch are kept all the same.
        for gold, read in unusable:
            raise ValueError(
                f"answers holds {gold!r}, of which Math-Verify reads {read}: mathematics that is "
                "read whole is needed, such as a plainer form of it"
            )
        return known | found

    def close(self) -> None:
        """End the workers. Verdicts stay; a later `score` starts workers again."""
        self.pool.close()


def _easy(text: str | None, gold: str) -> str | None:
    """The status where no worker is needed: nothing to read, or integers on both sides."""
    if text is None:
        return "unparsed"
    boxed = BOXED_INTEGER.fullmatch(text)
    if boxed is None or not INTEGER.fullmatch(gold):
        return None
    return "ok" if int(boxed[1]) == int(gold) else "wrong"
