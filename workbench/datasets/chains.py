"""The task of the sharp lab: chains of additions and subtractions, and the facts they consist of.

    7+5-3=   ->   +5=12-3=9 \\boxed{9}

A chain starts from a number up to 20 and has 1 to 8 operations with operands up to 9, worked from
left to right; its level is the number of operations, and no partial result is negative.

A *basic fact* is (units digit of the running value, sign, operand): there are 180 of them, and each
step of a chain uses one. The corpus that the embedded base models are made from contains mistakes,
as the web does: each fact has an error rate and one fixed wrong result (`Facts`). The problems,
their answers and the verifier know nothing of these mistakes. Since a base model samples each
fact's right result at the corpus's rate, the success rate of a problem under the base is known in
advance: the product over its steps. `REGIMES` uses that to choose how many problems are easy and
how many are out of reach.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from workbench.datasets.arithmetic import checked_levels, operations_of
from workbench.pools import (
    MOST_MISSES,
    MOST_PROBLEMS,
    SPLITS,
    Pool,
    PoolExhausted,
    Problem,
    Stream,
    split_of,
)
from workbench.utils.seeding import generator
from workbench.utils.shipped import shipped
from workbench.utils.validation import one_of, whole_number

LEVELS = (1, 2, 3, 4, 5, 6, 7, 8)
LARGEST_START = 20
LARGEST_OPERAND = 9
PATIENCE = 100  # draws of a level in a row without a new problem, before the next level's turn

# Error rates of the facts, a quarter of them each: how far a base model is from solving the task.
ERROR_RATES = {"early": (0.0, 0.3, 0.6, 0.85), "late": (0.0, 0.1, 0.3, 0.6)}


@dataclass(frozen=True)
class Facts:
    """What a corpus gets wrong: for each basic fact an error rate, and by how much it is wrong.

    Attributes
    ----------
    error_rate : (10, 2, 10) float64
        By units digit of the running value, sign (0 for +, 1 for -) and operand; operand 0 is never
        used.
    wrong_by : (10, 2, 10) int64
        What the wrong result differs by: 1, 2 or 10, up or down.
    """

    error_rate: np.ndarray
    wrong_by: np.ndarray

    @classmethod
    def read(cls, path: Any) -> Facts:
        """Read a table with one row a fact: units, sign, operand, error_rate, wrong_by."""
        error_rate = np.zeros((10, 2, 10))
        wrong_by = np.zeros((10, 2, 10), dtype=np.int64)
        with Path(path).open(newline="") as file:
            for row in csv.DictReader(file):
                fact = int(row["units"]), "+-".index(row["sign"]), int(row["operand"])
                error_rate[fact] = float(row["error_rate"])
                wrong_by[fact] = int(row["wrong_by"])
        return cls(error_rate, wrong_by)

    def success_rate(self, prompt: str) -> float:
        """The chance that all steps of a chain come out right when each follows the corpus.

        A mistake that a later mistake happens to undo is not counted, so it is a lower bound.
        """
        operations = operations_of(prompt)
        _, value = next(operations)
        chance = 1.0
        for sign, operand in operations:
            # A fact is known by the units digit, so 7+5 and 17+5 are one fact.
            chance *= 1 - self.error_rate[value % 10, int(sign == "-"), operand]
            value += operand if sign == "+" else -operand
        return float(chance)


# How hard the problems of a pool are for a base model: (lowest, highest, share), so that a share of
# them has a success rate under the base from the lowest to the highest, both included.
REGIMES: dict[str, tuple[tuple[float, float, float], ...]] = {
    # Drawn by level alone, all levels in equal shares: success rates from 0 to 1.
    "spread": (),
    # A fifth of the problems out of reach, three tenths mixed, half always solved: late in the
    # training of Knapsack RL (arXiv 2509.25849, section 5.2).
    "knapsack": ((0.0, 0.01, 0.2), (0.1, 0.9, 0.3), (1.0, 1.0, 0.5)),
    # Three tenths of the problems without a correct response: the start of AR3PO (arXiv 2509.25808,
    # section 4).
    "ar3po": ((0.0, 0.02, 0.3), (0.05, 0.95, 0.5), (1.0, 1.0, 0.2)),
    # Only problems that are sometimes solved, where selecting rollouts decides most: PODS
    # (arXiv 2504.13818).
    "mixed": ((0.1, 0.9, 1.0),),
}


def chains(
    n: int | None = None,
    *,
    levels: Sequence[int] = LEVELS,
    seed: int = 0,
    split: str = "train",
    regime: str = "spread",
    base: str = "early",
) -> Pool | Stream:
    """Chains of small additions and subtractions for the sharp lab, such as "7+5-3=".

    Parameters
    ----------
    n : int, optional
        Problems of the `Pool`; None for a `Stream` without end.
    levels : numbers from 1 to 8
        Numbers of operations, which take turns.
    seed : int
        Of a `Pool`. A `Stream` draws by the seed of the run.
    split : {"train", "heldout"}
        A problem belongs to one of the two by a hash of its text, so they never overlap.
    regime : {"spread", "knapsack", "ar3po", "mixed"}
        How hard the problems are for the base model, see `workbench.datasets.chains.REGIMES`.
    base : {"early", "late"}
        The base model that `regime` is about.

    Raises
    ------
    ValueError
        For unknown names and levels, and where there are fewer than n such problems.
    """
    levels = checked_levels(levels, LEVELS)
    one_of("split", split, SPLITS)
    one_of("regime", regime, REGIMES)
    one_of("base", base, ERROR_RATES)
    config = {
        "family": "chains",
        "n": n,
        "levels": list(levels),
        "seed": seed,
        "split": split,
        "regime": regime,
        "base": base,
    }
    if n is not None:
        whole_number("n", n, 1, MOST_PROBLEMS)
        found = _distinct(n, tuple(levels), seed, split, regime, base)
        # Every answer is a whole number.
        return Pool(found, config, checked_for="Math")

    classes = _classes(regime, base)

    def fresh(rng: np.random.Generator) -> Problem | None:
        # A class by its share, then chains until one belongs to it. Drawing the class anew as well
        # would give most of the stream to the classes that are easy to hit.
        _, accept = classes[int(rng.choice(len(classes), p=[share for share, _ in classes]))]
        if len(classes) == 1:
            return _drawn(levels, split, accept, rng)
        for _ in range(MOST_MISSES):
            problem = _drawn(levels, split, accept, rng)
            if problem is not None:
                return problem
        raise PoolExhausted(
            f"regime={regime!r}: levels {levels} have hardly a problem of one of its classes; "
            "more levels are needed, or another regime"
        )

    return Stream(fresh, config)


def facts_of(base: str) -> Facts:
    """The facts that the shipped base model of this name was made from."""
    return Facts.read(shipped(f"models/{base}-small/facts.csv"))


Accept = Callable[[str], bool]


def _classes(regime: str, base: str) -> list[tuple[float, Accept]]:
    """(share, test of a prompt) of every class of problems in a regime."""
    # A regime without classes takes whatever is drawn, and needs no facts of a base model.
    shares = REGIMES[regime]
    if not shares:
        return [(1.0, lambda prompt: True)]
    facts = facts_of(base)

    def within(lowest: float, highest: float) -> Accept:
        return lambda prompt: lowest <= facts.success_rate(prompt) <= highest

    return [(share, within(lowest, highest)) for lowest, highest, share in shares]


# A class that is seldom hit takes a second or two, and labs with the same problems are often made.
@lru_cache(maxsize=16)
def _distinct(
    n: int, levels: tuple[int, ...], seed: int, split: str, regime: str, base: str
) -> tuple[Problem, ...]:
    """n different problems, each class its share; the levels take turns."""
    classes = _classes(regime, base)
    rng = generator(seed, "chains", split)
    found: dict[str, Problem] = {}
    # Goals add up from class to class, so that rounding loses no problem:
    # shares that add up to 1 end at n.
    goals = np.round(np.cumsum([share for share, _ in classes]) * n).astype(int)
    for goal, (_, accept) in zip(goals, classes):
        misses = 0
        turn = 0
        while len(found) < goal:
            # The turn passes on with every problem found, which gives the levels equal parts
            # of each class while they last.
            problem = _drawn((levels[turn % len(levels)],), split, accept, rng)
            if problem is not None and problem.id not in found:
                found[problem.id] = problem
                misses = 0
                turn += 1
                continue
            misses += 1
            if misses % PATIENCE == 0:
                turn += 1  # this level may have none left of this class
            if misses > MOST_MISSES:
                raise ValueError(
                    f"levels={tuple(levels)}: of the {n} {split} problems asked for they have "
                    f"{len(found)} in the shares of regime={regime!r}"
                )
    return tuple(found.values())


def _drawn(
    levels: Sequence[int], split: str, accept: Accept, rng: np.random.Generator
) -> Problem | None:
    """A chain of one of the levels, None where it is of the other split or not accepted."""
    # A choice among one draws nothing, and would take longer than the rest.
    level = int(rng.choice(levels)) if len(levels) > 1 else levels[0]
    value = int(rng.integers(1, LARGEST_START + 1))
    text = str(value)
    for _ in range(level):
        sign = "-" if value > 0 and rng.random() < 0.5 else "+"
        # Never more is taken away than there is, so that no partial result is negative.
        largest = min(value, LARGEST_OPERAND) if sign == "-" else LARGEST_OPERAND
        operand = int(rng.integers(1, largest + 1))
        value += operand if sign == "+" else -operand
        text += f"{sign}{operand}"
    prompt = f"{text}="
    if split_of(prompt) != split or not accept(prompt):
        return None
    return Problem(f"chains/{prompt}", prompt, str(value), level)
