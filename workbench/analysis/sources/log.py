"""What every source gives: the logged rows of one run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Log:
    """What one run has logged.

    Attributes
    ----------
    path : Path
    source : str
        What kind of log it is, in words.
    rows : list of dict
        In the order in which they were written, each with the columns that it has.
    seed : int or None
        None where the log does not say.
    rate : float or None
        The highest learning rate.
    notes : list of str
        What a reader should know of this log.
    problems : set of str, or None
        The held-out problems; None where the log does not say.
    run : str or None
        What the program calls the run, of which there may be several logs; None where the log does
        not say.
    """

    path: Path
    source: str
    rows: list[dict[str, Any]]
    seed: int | None = None
    rate: float | None = None
    notes: list[str] = field(default_factory=list)
    problems: frozenset[str] | None = None
    run: str | None = None

    @property
    def columns(self) -> list[str]:
        """The columns of numbers, in the order in which they first occur."""
        names = {name: None for row in self.rows for name, value in row.items() if numeric(value)}
        return list(names)


def numeric(value: Any) -> bool:
    """Whether a value is a number, NaN and infinity included."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested row as one level, with slashes in its names.

    >>> flat({"step": 1, "critic": {"score": {"mean": 0.5}}})
    {'step': 1, 'critic/score/mean': 0.5}
    """
    found: dict[str, Any] = {}
    for name, value in row.items():
        found |= (
            flat(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name: value}
        )
    return found


def json_lines(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The objects of a file of JSON lines, and notes on it.

    A program that is writing, or was killed, leaves the last line unfinished. It is left out.
    """
    # Not by `splitlines`: a response may hold other characters that separate lines.
    lines = path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    rows: list[dict[str, Any]] = []
    notes = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        elif number == len(lines) and rows:
            notes.append("its last line is unfinished and left out: it is going on, or was killed")
        else:
            raise ValueError(f"{path}: damaged, line {number} is no JSON object")
    return rows, notes


def highest_rate(rows: Iterable[Mapping[str, Any]]) -> float | None:
    """The highest learning rate in rows, by its usual names."""
    names = ("learning_rate", "train/learning_rate", "actor/lr", "train/actor_lr", "actor_lr", "lr")
    rates = [row[name] for row in rows for name in names if numeric(row.get(name))]
    return max(rates, default=None)
