"""The tables of tests/data/answers: responses, golds and what is right about them, by kind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "data" / "answers"
MEANT = {"≡": "right", "≢": "wrong", "∼": "open"}


class Pair(NamedTuple):
    """A response to a gold answer. `right` must be paid and `wrong` must not; `open` is right and
    may be left unread; of `refused` the gold itself is refused, and no response is paid.
    """

    kind: str
    response: str
    gold: str
    meant: str


def pairs(name: str) -> list[Pair]:
    """The rows of a table; a response that several lines repeat for one gold counts once."""
    kind, boxed, found = "", False, []
    for line in (FOLDER / f"{name}.txt").read_text("utf-8").splitlines():
        if line.startswith("## "):
            form, kind = line[3:].split(": ", 1)
            boxed = form == "box"
        elif line and not line.startswith("#"):
            gold, *parts = re.split(" ([≡≢∼]) ", line)
            is_refused = gold.startswith("!")
            for sign, responses in zip(parts[::2], parts[1::2]):
                for text in responses.split(" ¦ "):
                    text = text.replace("⏎", "\n")
                    meant = "refused" if is_refused else MEANT[sign]
                    response = rf"\boxed{{{text}}}" if boxed else text
                    found.append(Pair(kind, response, gold.removeprefix("!"), meant))
    return list(dict.fromkeys(found))
