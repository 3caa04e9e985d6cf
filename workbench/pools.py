"""The types behind `workbench.problems`: a problem, finite pools and endless streams of them.

They stand below everything that makes problems, so that slots and policies can import them without
the data sets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from workbench.utils.html import card
from workbench.utils.seeding import derive, generator, permutation
from workbench.utils.validation import brief, positive_number, whole_number

SPLITS = ("train", "heldout")
HELD_OUT_SHARE = 0.2  # of all generated problems, by a hash of their text
# After so many draws in a row without a new problem a generator counts as exhausted.
MOST_MISSES = 3000
IN_DIGEST = 64  # problems of a stream that its digest covers
MOST_PROBLEMS = 100_000  # in one pool or round, so that none takes hours to generate


class PoolExhausted(ValueError):
    """A pool has fewer problems left than were asked for."""


@dataclass(frozen=True)
class Problem:
    """One question.

    Attributes
    ----------
    id : str
        Not empty, and stable across runs and pools; all history of a problem is kept under it.
    prompt : str
    answer : str
        The gold answer.
    level : int
        Difficulty level, 0 where there is none.
    """

    id: str
    prompt: str
    answer: str
    level: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise ValueError(f"id={self.id!r}: a text that is not empty is needed")
        whole_number("level", self.level, 0)
        object.__setattr__(self, "level", int(self.level))  # also where NumPy made it


class Pool(Sequence):
    """A finite set of problems, drawn epoch by epoch, each epoch in an order of its own.

    Parameters
    ----------
    problems : iterable of Problem
        With different ids.
    config : dict, optional
        How to make the pool again, for the manifest of a run: "family" is the function of this
        module, the rest are its arguments. Empty for a pool of one's own.
    checked_for : str, optional
        Name of the class of verifiers that is known to be able to use every answer. A run with
        another verifier looks through the answers before its first round.
    """

    def __init__(
        self,
        problems: Iterable[Problem],
        config: Mapping[str, Any] | None = None,
        checked_for: str | None = None,
    ) -> None:
        self.problems = tuple(unique_problems("problems", problems))
        self.config = dict(config or {})
        self.checked_for = checked_for
        if not self.problems:
            raise ValueError("problems=[]: a pool needs at least one problem")
        self._ids = frozenset(problem.id for problem in self.problems)

    @cached_property
    def digest(self) -> str:
        """A digest of all problems in their order, by which a run knows another pool."""
        return _digest(self.problems)

    def __repr__(self) -> str:
        family = f", family {self.config['family']!r}" if "family" in self.config else ""
        return f"Pool({len(self)} problems{family}, the first {brief(self.problems[0].prompt)})"

    def _repr_html_(self) -> str:
        first = [(brief(each.prompt), brief(each.answer)) for each in self.problems[:5]]
        return card(f"{self!r}: prompts and answers", first)

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._part(self.problems[index])
        return self.problems[index]

    def split(self, held_out: float, seed: int = 0) -> tuple[Pool, Pool]:
        """The pool in two: problems to train on, and problems to hold out.

        Parameters
        ----------
        held_out : int or float
            How many problems are held out, or which share of them, below 1.
        seed : int
            A problem's place follows from it and from the problem's id alone, so a problem stays
            where it is when rows are sorted anew.

        Returns
        -------
        train, held_out : Pool

        Raises
        ------
        ValueError
            Where one of the two would be empty.

        Examples
        --------
        >>> pool = Pool([Problem(f"p{i}", f"{i}+1=", str(i + 1)) for i in range(10)])
        >>> [len(part) for part in pool.split(3)]
        [7, 3]
        """
        size = len(self)
        positive_number("held_out", held_out)
        wanted = round(held_out * size) if held_out < 1 else held_out
        if not 1 <= wanted < size or wanted != int(wanted):
            raise ValueError(
                f"held_out={held_out!r}: a number from 1 to {size - 1}, or a share of the {size} "
                "problems that leaves some on both sides, is needed"
            )
        first = sorted(self.problems, key=lambda problem: derive(seed, "split", problem.id))
        apart = {problem.id for problem in first[: int(wanted)]}
        return (
            self._part(problem for problem in self.problems if problem.id not in apart),
            self._part(problem for problem in self.problems if problem.id in apart),
        )

    def _part(self, problems: Iterable[Problem]) -> Pool:
        """A pool of some of the problems. Where all answers are checked, theirs are too."""
        return Pool(problems, checked_for=self.checked_for)

    def draw(
        self, n: int, cursor: int = 0, seed: int = 0, exclude: AbstractSet[str] = frozenset()
    ) -> tuple[list[Problem], int]:
        """The next n problems behind a position, in the order of shuffled epochs.

        Parameters
        ----------
        n : int
        cursor : int
            The position, counted over all epochs.
        seed : int
            The order depends on it alone.
        exclude : set of ids
            Problems that are passed over.

        Returns
        -------
        problems, cursor
            The problems, all of one epoch, and the position behind them. Where an epoch has fewer
            than n left, they are skipped and the next epoch begins.

        Raises
        ------
        PoolExhausted
            When the whole pool has fewer than n problems outside `exclude`.
        """
        whole_number("n", n, 1)
        size = len(self.problems)
        excluded = sum(problem in self._ids for problem in exclude)
        if n > size - excluded:
            taken = f", {excluded} of them already in this round" if excluded else ""
            raise PoolExhausted(f"n={n}: the pool has {size} problems{taken}")
        while True:
            epoch, start = divmod(cursor, size)
            places = self.order(seed, epoch)[start:]
            ordered = enumerate(self.problems[place] for place in places)
            # Only as far as it takes, since a pool may be large.
            left = islice((each for each in ordered if each[1].id not in exclude), n)
            found = dict(left)
            if len(found) == n:
                # Excluded problems before the cursor have had their turn in this epoch.
                return list(found.values()), cursor + max(found) + 1
            cursor = (epoch + 1) * size

    def order(self, seed: int, epoch: int) -> np.ndarray:
        """The places (P,) of all problems in the order of an epoch."""
        # It follows from seed and epoch, so a pool keeps no position and a resumed run has nothing
        # to restore but its cursor.
        return permutation(len(self.problems), seed, "order", epoch)

    def epoch(self, cursor: int) -> int:
        """The epoch that a position lies in, from 0."""
        return cursor // len(self.problems)


class Stream:
    """Endless fresh problems; the k-th depends on the seed and on k alone.

    Parameters
    ----------
    make : function
        make(rng) returns a problem, or None where it has found none in this draw.
    config : dict, optional
        As for `Pool`.
    """

    def __init__(
        self,
        make: Callable[[np.random.Generator], Problem | None],
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.make = make
        self.config = dict(config or {})

    def __repr__(self) -> str:
        return f"Stream(endless problems, family {self.config.get('family')!r})"

    @cached_property
    def digest(self) -> str:
        """A digest of the first problems at one seed, by which a run knows another stream."""
        first: list[Problem] = []
        cursor = 0
        # One at a time, so that a stream of few different problems has a digest as well.
        while len(first) < IN_DIGEST:
            drawn, cursor = self.draw(1, cursor)
            first += drawn
        return _digest(first)

    def draw(
        self, n: int, cursor: int = 0, seed: int = 0, exclude: AbstractSet[str] = frozenset()
    ) -> tuple[list[Problem], int]:
        """The next n different problems outside `exclude`, and the position behind them.

        PoolExhausted where hardly any problem is new. Arguments: see `Pool.draw`.
        """
        whole_number("n", n, 1)
        drawn: dict[str, Problem] = {}
        misses = 0
        while len(drawn) < n:
            # A generator for each position, so that a problem does not depend on those before it.
            problem = self.make(generator(seed, "stream", cursor))
            cursor += 1
            if problem is not None and problem.id not in exclude and problem.id not in drawn:
                drawn[problem.id] = problem
                misses = 0
                continue
            # Only misses in a row count: a slow search that still finds something goes on.
            misses += 1
            if misses > MOST_MISSES:
                raise PoolExhausted(
                    f"n={n}: the stream has too few different problems for one round"
                )
        return list(drawn.values()), cursor

    def epoch(self, cursor: int) -> int:
        """Always 0: nothing comes twice by design."""
        return 0


def unique_problems(
    name: str, problems: Any, taken: AbstractSet[str] = frozenset()
) -> list[Problem]:
    """Problems as a list; ValueError for anything else, and for an id that comes twice."""
    is_several = isinstance(problems, Iterable) and not isinstance(problems, str | Mapping)
    problems = list(problems) if is_several else [problems]
    seen = set(taken)
    for problem in problems:
        if not isinstance(problem, Problem):
            raise ValueError(
                f"{name}: {brief(problem)} is no Problem; make one with Problem(id, prompt, "
                "answer), or a whole pool with problems.from_rows(rows)"
            )
        if problem.id in seen:
            raise ValueError(f"{name}: id {problem.id!r} occurs twice; ids must be unique")
        seen.add(problem.id)
    return problems


def digest_of(text: str) -> str:
    """A short digest of a text. Ids of problems are made of it, so that they follow content."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def split_of(text: str) -> str:
    """The split that a generated problem belongs to, by a hash of its text."""
    digest = hashlib.blake2b(text.encode(), digest_size=4, person=b"heldout").digest()
    # The hash as a number in [0, 1), which is uniform over texts.
    share = int.from_bytes(digest, "big") / 2**32
    return "heldout" if share < HELD_OUT_SHARE else "train"


def _digest(problems: Iterable[Problem]) -> str:
    """A digest of all fields of problems, in their order."""
    # As JSON the fields stay apart, whatever characters they hold.
    return digest_of(
        json.dumps([(each.id, each.prompt, each.answer, each.level) for each in problems])
    )
