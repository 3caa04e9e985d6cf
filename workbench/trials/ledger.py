"""Many ideas, one error budget: a ledger charges every trial for the luck that it tries.

At 5 % a trial, two of forty useless ideas win. A ledger gives idea number t a smaller level:

    level_t = W g(t) + (A - W) g(t - first win) + A (sum of g(t - later win)),  W = A / 2

with g(j) = j^-1/2 - (j + 1)^-1/2 and A the level of the whole ledger. A win is a verdict of
"better" that was known when idea t was charged. This is LORD++ (arXiv 1710.00499), in the form for
trials that overlap in time (arXiv 1812.05068).

What it controls: the expected number of false wins is at most A times the expected number of wins,
or A where nothing wins. The proof has two steps. The numbers g(1), g(2), ... add up to 1, so all
levels together add up to at most A times the number of wins, or to A / 2 before the first. And
given all that was known when it was charged, a useless idea wins with at most its level, since its
seeds are fresh. A trial spends its level on both directions, so half of it stays in reserve. "Idea"
means a method at the learning rate that was found for it, as in every trial.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock

from workbench.analysis.sequential import ALPHA
from workbench.records.files import read_ordinary, write
from workbench.records.tables import reading
from workbench.utils.validation import number

FILE = "ledger.json"
FIRST = 100_000  # the first fresh seed, far from those that trials without a ledger begin with
COLUMNS = ["number", "label", "verdict", "ratio", "low", "high", "seeds", "level", "again"]
COLUMNS += ["idea", "against", "trial", "first_seed", "reserved"]


def level_of(number: int, wins: list[int], level: float) -> float:
    """The level of an idea.

    Parameters
    ----------
    number : int
        How many ideas there are with it.
    wins : list of int
        The numbers of earlier ideas that were called better.
    level : float
        Of the whole ledger.

    Examples
    --------
    >>> [round(level_of(number, [], 0.05), 5) for number in (1, 2, 40)]
    [0.00732, 0.00324, 5e-05]
    >>> round(level_of(41, [40], 0.05), 5)
    0.00737
    """
    shares = [(level / 2, number)]
    shares += [(level if i else level / 2, number - win) for i, win in enumerate(sorted(wins))]
    return sum(share * (j**-0.5 - (j + 1) ** -0.5) for share, j in shares)


class Ledger:
    """All ideas that were tried with one error budget, in a directory.

    Parameters
    ----------
    path : path
        The directory; it is made with the first idea.
    level : float
        Of the whole ledger, see the module.

    Raises
    ------
    ValueError
        Where the ledger there has another level or is damaged, and for a path that is a file.
    """

    def __init__(self, path: Any, level: float | None = None) -> None:
        self.path = Path(path).absolute()
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"ledger={str(path)!r}: a directory is needed")
        if level is not None:
            number("level", level, above=0, below=1)
        found = self._read()
        self.level = found.get("level", level or ALPHA)
        if level not in (None, self.level):
            raise ValueError(f"level={level:g}: the ledger {path} has a level of {self.level:g}")

    def _read(self) -> dict[str, Any]:
        file = self.path / FILE
        if not file.exists():
            return {}
        with reading(file):
            found = json.loads(read_ordinary(file))
            ideas = [{name: idea[name] for name in COLUMNS} for idea in found["ideas"]]
            return {"level": float(found["level"]), "ideas": ideas}

    def _write(self, ideas: list[dict[str, Any]]) -> None:
        content = json.dumps({"level": self.level, "ideas": ideas}, indent=1)
        write(self.path / FILE, content.encode())

    @property
    def ideas(self) -> list[dict[str, Any]]:
        """What was tried, in the order of its numbers."""
        return self._read().get("ideas", [])

    @property
    def table(self) -> pd.DataFrame:
        """A row an idea: number, label, verdict (empty while it is tried), ratio, level, ...

        `again` is the number of the last earlier trial of the same idea, under whatever name.
        """
        return pd.DataFrame(self.ideas, columns=COLUMNS).convert_dtypes()

    def of_trial(self, out: Path, first_seed: int) -> dict[str, dict[str, Any]]:
        """The ideas of the trial in this directory with these fresh seeds, by label."""
        place = os.path.relpath(out, self.path)
        return {
            idea["label"]: idea
            for idea in self.ideas
            if idea["trial"] == place and idea["first_seed"] == first_seed
        }

    def begun(
        self, out: Path, ideas: dict[str, str], against: str, reserved: int
    ) -> tuple[dict[str, dict[str, Any]], int]:
        """The ideas of the trial that goes on in this directory, and the first of its fresh seeds.

        Another idea under a label, another baseline or lab, and more seeds are another trial, even
        where the directory was emptied. It has no ideas yet, and the seed is the first free one.
        """
        listed, place = self.ideas, os.path.relpath(out, self.path)
        tried = dict.fromkeys(idea["first_seed"] for idea in listed if idea["trial"] == place)
        for first_seed in reversed(tried):
            known = self.of_trial(out, first_seed)
            if all(
                idea["idea"] == ideas.get(label, idea["idea"])
                and idea["against"] == against
                and reserved <= idea["reserved"]
                for label, idea in known.items()
            ):
                return known, first_seed
        return {}, max((idea["first_seed"] + idea["reserved"] for idea in listed), default=FIRST)

    def charge(
        self, out: Path, ideas: dict[str, str], against: str, reserved: int, first_seed: int | None
    ) -> dict[str, dict[str, Any]]:
        """Give the ideas of a trial their numbers, levels and fresh seeds; once for each trial.

        Parameters
        ----------
        out : Path
            The directory of the trial.
        ideas : dict from label to fingerprint
        against : str
            The fingerprint of baseline and lab.
        reserved : int
            How many seeds the trial may use.
        first_seed : int, optional
            Of the trial; None for the first one that is free.

        Returns
        -------
        dict from label to a row of `table`
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path / "ledger.lock"):
            known, free = self.begun(out, ideas, against, reserved)
            if known.keys() >= ideas.keys():
                return known
            if known:
                raise ValueError(
                    f"arms: {', '.join(ideas.keys() - known.keys())} cannot join a trial of the "
                    "ledger that has begun, since its seeds were looked at; name another directory"
                )
            first_seed = free if first_seed is None else first_seed
            listed = self.ideas
            for old in listed:
                begin, end = old["first_seed"], old["first_seed"] + old["reserved"]
                if first_seed < end and begin < first_seed + reserved:
                    raise ValueError(
                        f"first_seed={first_seed}: idea {old['number']} of the ledger had seeds "
                        f"{begin} to {end - 1}; leave it out, or take {free}"
                    )
            wins = [idea["number"] for idea in listed if idea["verdict"] == "better"]
            before = {(idea["idea"], idea["against"]): idea["number"] for idea in listed}
            for place, (label, idea) in enumerate(ideas.items(), len(listed) + 1):
                row: dict[str, Any] = dict.fromkeys(COLUMNS)
                row |= {"number": place, "label": label, "idea": idea, "against": against}
                row |= {"level": level_of(place, wins, self.level)}
                row |= {"again": before.get((idea, against)), "first_seed": first_seed}
                row |= {"reserved": reserved, "trial": os.path.relpath(out, self.path)}
                listed.append(row)
            self._write(listed)
        return self.of_trial(out, first_seed)

    def settle(self, out: Path, first_seed: int, found: dict[str, dict[str, Any]]) -> None:
        """Write down what came of the ideas of a trial: verdict, ratio, low, high, seeds."""
        with FileLock(self.path / "ledger.lock"):
            listed = self.ideas
            place = os.path.relpath(out, self.path)
            for idea in listed:
                if (idea["trial"], idea["first_seed"]) == (place, first_seed):
                    idea |= found.get(idea["label"], {})
            self._write(listed)
