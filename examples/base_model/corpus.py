"""The corpora that the embedded base models are made from.

A corpus is an endless supply of problems with worked responses. `Clean` tells every step right;
`WithMistakes` tells each basic fact wrong at a rate of its own (`workbench.datasets.chains`). The
supervised corpus is the only place with mistakes in it: the problems that reinforcement learning
trains on, their answers and the verifier are clean.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from workbench.datasets import arithmetic, chains
from workbench.pools import Problem
from workbench.utils.seeding import generator

# The basic facts: units digit of the running value, sign (0 for +, 1 for -) and operand.
FACTS = tuple(itertools.product(range(10), range(2), range(1, 10)))
# Slips by one or two, and in the tens digit: the mistakes that the corpus has.
WRONG_BY = (-10, -2, -1, 1, 2, 10)
# Levels of the clean corpus, by how often each is drawn.
CLEAN_LEVEL_WEIGHTS = (4, 4, 3, 3, 3, 2, 2, 1)
# How often each of the two tags around an answer is there in the corpus with mistakes, so that a
# format reward (`rewards.Tags`) has something to teach as well.
TAG_RATE = 0.5


class Corpus(Protocol):
    """An endless supply of problems with worked responses."""

    def draw(self, n: int, cursor: int, seed: int) -> tuple[Sequence[Problem], list[str], int]:
        """n problems, a response to each, and the new cursor."""
        ...


@dataclass(frozen=True)
class Clean:
    """Worked solutions without a mistake, of `workbench.problems.arithmetic`."""

    def draw(self, n: int, cursor: int, seed: int) -> tuple[Sequence[Problem], list[str], int]:
        """n problems, their solutions, and the new cursor."""
        # A stream draws levels evenly, so a level that is named four
        # times is drawn four times as often.
        levels = tuple(
            int(level) for level in np.repeat(list(arithmetic.LEVELS), CLEAN_LEVEL_WEIGHTS)
        )
        stream = arithmetic.arithmetic(levels=levels, split="train")
        problems, cursor = stream.draw(n, cursor, seed)
        return problems, [solution(problem.prompt) for problem in problems], cursor


@dataclass(frozen=True)
class WithMistakes:
    """Worked solutions of `workbench.problems.chains` in which facts are wrong at their rates."""

    facts: chains.Facts

    def draw(self, n: int, cursor: int, seed: int) -> tuple[Sequence[Problem], list[str], int]:
        """n problems, a response as the corpus tells it, and the new cursor."""
        # Keyed by the place in the stream, so that the mistakes of a batch do not
        # depend on what was drawn before.
        rng = generator(seed, "corpus", cursor)
        problems, cursor = chains.chains(split="train").draw(n, cursor, seed)
        return problems, [self._response(problem.prompt, rng) for problem in problems], cursor

    def _response(self, prompt: str, rng: np.random.Generator) -> str:
        text, value = told(self.facts, prompt, rng)
        opening, closing = rng.random(2) < TAG_RATE
        before = "<answer>" if opening else ""
        after = "</answer>" if closing else ""
        return f"{text} {before}\\boxed{{{value}}}{after}"


def solution(prompt: str) -> str:
    """The worked response to a prompt: each operation with the running value, then the box.

    An opening product is given by its value.

    >>> solution("7+5+6=")
    '+5=12+6=18 \\\\boxed{18}'
    >>> solution("5*10-31=")
    '50-31=19 \\\\boxed{19}'
    """
    operations = arithmetic.operations_of(prompt)
    _, value = next(operations)
    text = ""
    for sign, operand in operations:
        if sign == "*":
            value *= operand
            text += str(value)
        else:
            value += operand if sign == "+" else -operand
            text += f"{sign}{operand}={value}"
    return f"{text} \\boxed{{{value}}}"


def told(facts: chains.Facts, prompt: str, rng: np.random.Generator) -> tuple[str, int]:
    """The steps of a chain as the corpus tells them, and the result that they come to.

    A wrong step is carried on with.
    """
    operations = arithmetic.operations_of(prompt)
    _, value = next(operations)
    text = ""
    for sign, operand in operations:
        fact = value % 10, int(sign == "-"), operand
        right = value + operand if sign == "+" else value - operand
        value = right
        if rng.random() < facts.error_rate[fact]:
            wrong = right + facts.wrong_by[fact]
            # Results are never negative, so a mistake that would be goes the other way.
            value = int(wrong if wrong >= 0 else right - facts.wrong_by[fact])
        text += f"{sign}{operand}={value}"
    return text, value


def drawn_facts(rates: Sequence[float], seed: int) -> chains.Facts:
    """Deal error rates to the 180 facts at random, as evenly as they go."""
    rng = generator(seed, "facts")
    error_rate = np.zeros((10, 2, 10))
    wrong_by = np.zeros((10, 2, 10), dtype=np.int64)
    # Repeated in turn up to 180 rates, which gives each rate a quarter of the facts.
    dealt = np.resize(np.asarray(rates, dtype=np.float64), len(FACTS))
    for fact, rate in zip(FACTS, rng.permutation(dealt)):
        error_rate[fact] = rate
        wrong_by[fact] = rng.choice(WRONG_BY)
    return chains.Facts(error_rate, wrong_by)


def write_facts(facts: chains.Facts, path: Any) -> None:
    """Write the table that `chains.Facts.read` reads, one row a fact."""
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("units", "sign", "operand", "error_rate", "wrong_by"))
        for fact in FACTS:
            units, sign, operand = fact
            rates = facts.error_rate[fact], facts.wrong_by[fact]
            writer.writerow((units, "+-"[sign], operand, *rates))
