"""The corpora that the embedded base models are made from.

A corpus is an endless supply of problems with worked responses. `Clean` tells every step right;
`WithMistakes` tells each basic fact wrong at a rate of its own (`workbench.datasets.chains`). The
supervised corpus is the only place with mistakes in it: the problems that reinforcement learning
trains on, their answers and the verifier are clean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from workbench.datasets import arithmetic, chains
from workbench.pools import Problem
from workbench.utils.seeding import generator

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
        return problems, [arithmetic.solution(problem.prompt) for problem in problems], cursor


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
        text, value = self.facts.told(prompt, rng)
        opening, closing = rng.random(2) < TAG_RATE
        before = "<answer>" if opening else ""
        after = "</answer>" if closing else ""
        return f"{text} {before}\\boxed{{{value}}}{after}"
