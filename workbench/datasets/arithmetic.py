"""The tiny lab's task: left-to-right integer chains, solved by echoing each operation with the
running value.

7+5-3=   ->   +5=12-3=9 \\boxed{9}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from workbench.problems import MOST_MISSES, MOST_PROBLEMS, SPLITS, Pool, Problem, Stream, split_of
from workbench.utils.seeding import generator
from workbench.utils.validation import one_of, whole_number

# level: (operations, largest operand)
LEVELS = {
    1: (1, 9),
    2: (2, 9),
    3: (3, 9),
    4: (4, 9),
    5: (2, 49),
    6: (3, 49),
    7: (4, 99),
    8: (5, 99),
}
OPENING_PRODUCT = 0.15  # share of the chains of several operations that open with a product


def problems(
    n: int | None = None,
    *,
    levels: Sequence[int] = tuple(LEVELS),
    seed: int = 0,
    split: str = "train",
) -> Pool | Stream:
    """The pool or stream that `workbench.problems.arithmetic` documents."""
    levels = tuple(levels)
    one_of("split", split, SPLITS)
    if not levels or not set(levels) <= set(LEVELS):
        raise ValueError(f"levels={levels}: known levels are {', '.join(map(str, LEVELS))}")
    config = {
        "family": "arithmetic",
        "n": n,
        "levels": list(levels),
        "seed": seed,
        "split": split,
    }
    if n is None:

        def fresh(rng: np.random.Generator) -> Problem:
            level = int(rng.choice(levels))
            return _chain(level, rng)

        return Stream(_of_split(fresh, split), config)
    whole_number("n", n, 1, MOST_PROBLEMS)
    # Every answer is a whole number.
    return Pool(_distinct_chains(n, levels, seed, split), config, checked_for="Math")


def solution(prompt: str) -> str:
    """The worked response to a prompt: each operation with the running value, then the box.

    An opening product is given by its value.

    >>> solution("7+5+6=")
    '+5=12+6=18 \\\\boxed{18}'
    >>> solution("5*10-31=")
    '50-31=19 \\\\boxed{19}'
    """
    operations = operations_of(prompt)
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


def operations_of(prompt: str) -> Iterator[tuple[str, int]]:
    """(sign, operand) of every operand of a prompt; the sign of the first one is "+"."""
    sign = "+"
    digits = ""
    # The sign put at the end brings out the last operand.
    for character in prompt.rstrip("=") + "+":
        if character.isdigit():
            digits += character
        else:
            yield sign, int(digits)
            sign = character
            digits = ""


def _chain(level: int, rng: np.random.Generator) -> Problem:
    """One chain of the level whose partial results are never negative."""
    operations, largest = LEVELS[level]
    # A product uses up one operation. A chain of one operation stays an addition or a subtraction.
    if operations > 1 and rng.random() < OPENING_PRODUCT:
        first, second = rng.integers(2, 10), rng.integers(2, 11)
        value = int(first * second)
        text = f"{first}*{second}"
        left = operations - 1
    else:
        value = int(rng.integers(1, largest + 1))
        text = str(value)
        left = operations
    for _ in range(left):
        # Never more is taken away than there is, so that no partial result is negative.
        if value > 0 and rng.random() < 0.5:
            operand = int(rng.integers(1, min(value, largest) + 1))
            value -= operand
            text = f"{text}-{operand}"
        else:
            operand = int(rng.integers(1, largest + 1))
            value += operand
            text = f"{text}+{operand}"
    return Problem(f"arithmetic/{text}=", f"{text}=", str(value), level)


def _distinct_chains(n: int, levels: Sequence[int], seed: int, split: str) -> Iterable[Problem]:
    """n distinct problems, each level its share; what a small level cannot give, the others do."""
    found: dict[str, Problem] = {}
    # Each level draws from a generator of its own, so what it draws does
    # not depend on the other levels.
    generators = {level: generator(seed, "arithmetic", split, level) for level in levels}
    # Each turn deals what is missing to the levels that still have new chains.
    while len(found) < n:
        open_levels = [level for level in levels if level in generators]
        if not open_levels:
            raise ValueError(
                f"n={n}: levels {tuple(levels)} have only {len(found)} distinct {split} problems"
            )
        missing = n - len(found)
        # As equal as they go: the first levels take what is left over.
        shares = np.bincount(np.arange(missing) % len(open_levels), minlength=len(open_levels))
        for level, share in zip(open_levels, shares):
            # A level that was named twice may have run dry earlier in the same turn.
            if level in generators and not _add_chains(
                found, int(share), level, generators[level], split
            ):
                del generators[level]
    return found.values()


def _add_chains(
    found: dict[str, Problem], share: int, level: int, rng: np.random.Generator, split: str
) -> bool:
    """Add `share` new problems of the level; False when the level runs dry before that."""
    make = _of_split(_chain, split)
    goal = len(found) + share
    misses = 0
    while len(found) < goal and misses < MOST_MISSES:
        problem = make(level, rng)
        is_new = problem is not None and problem.id not in found
        # Draws of the other split and repeats alike. A long row of them means that little is left.
        misses = 0 if is_new else misses + 1
        if is_new:
            found[problem.id] = problem
    return len(found) == goal


def _of_split(make: Callable[..., Problem], split: str) -> Callable[..., Any]:
    """The same function, with None in place of problems of the other split."""

    def made(*arguments: Any) -> Problem | None:
        problem = make(*arguments)
        return problem if split_of(problem.prompt) == split else None

    return made
