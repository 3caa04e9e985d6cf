"""The tiny lab's task: left-to-right integer chains, solved by echoing each operation with the
running value.

7+5-3=   ->   +5=12-3=9 \\boxed{9}
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from workbench.pools import MOST_MISSES, MOST_PROBLEMS, SPLITS, Pool, Problem, Stream, split_of
from workbench.utils.seeding import generator
from workbench.utils.validation import brief, one_of, whole_number

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


def arithmetic(
    n: int | None = None,
    *,
    levels: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8),
    seed: int = 0,
    split: str = "train",
) -> Pool | Stream:
    """Integer chains such as "7+5-3=": a `Pool` of n distinct problems, or an endless `Stream`.

    Parameters
    ----------
    n : int, optional
        Problems of the `Pool`; None for a `Stream`.
    levels : numbers from 1 to 8
        The levels to draw from, in equal shares; a level named twice has twice the share. A level
        with fewer distinct problems than its share gives all it has, and the others make up for it.
    seed : int
        Of a `Pool`. A `Stream` draws by the seed of the run.
    split : {"train", "heldout"}
        A problem belongs to one of the two by a hash of its text, so they never overlap, whatever
        seeds and sizes are.

    Raises
    ------
    ValueError
        For unknown levels, and where all levels together have fewer than n problems.
    """
    levels = checked_levels(levels, tuple(LEVELS))
    one_of("split", split, SPLITS)
    config = {"family": "arithmetic", "n": n, "levels": list(levels), "seed": seed, "split": split}
    if n is None:
        return Stream(lambda rng: _of_split(int(rng.choice(levels)), rng, split), config)
    whole_number("n", n, 1, MOST_PROBLEMS)
    # Every answer is a whole number.
    return Pool(_distinct_chains(n, levels, seed, split), config, checked_for="Math")


def checked_levels(levels: Iterable[int], known: tuple[int, ...]) -> tuple[int, ...]:
    """The levels as a tuple; ValueError unless there is one at least, and all of them are known."""
    chosen = tuple(levels) if isinstance(levels, Iterable) else ()
    if chosen and all(level in known for level in chosen):
        return chosen
    raise ValueError(
        f"levels={brief(levels)}: known levels are {', '.join(map(str, known))}, one or more of "
        "them in a tuple"
    )


def operations_of(prompt: str) -> Iterator[tuple[str, int]]:
    """(sign, operand) of every operand of a prompt; the sign of the first one is "+"."""
    for sign, digits in re.findall(r"([-+*]?)(\d+)", prompt):
        yield sign or "+", int(digits)


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


def _of_split(level: int, rng: np.random.Generator, split: str) -> Problem | None:
    """A chain of the level, or None where it belongs to the other split."""
    problem = _chain(level, rng)
    return problem if split_of(problem.prompt) == split else None


def _distinct_chains(n: int, levels: Sequence[int], seed: int, split: str) -> Iterable[Problem]:
    """n distinct problems, each level its share; what a small level cannot give, the others do."""
    found: dict[str, Problem] = {}
    # Each level draws from a generator of its own, so what it draws does not depend on the others.
    # A level without further chains loses its generator.
    generators = {level: generator(seed, "arithmetic", split, level) for level in levels}
    # Each turn deals what is missing to the levels that still have new chains.
    while len(found) < n:
        open_levels = [level for level in levels if level in generators]
        if not open_levels:
            raise ValueError(
                f"levels={tuple(levels)}: of the {n} {split} problems asked for they have "
                f"{len(found)}"
            )
        missing = n - len(found)
        # As equal as they go: the first levels take what is left over.
        shares = np.bincount(np.arange(missing) % len(open_levels), minlength=len(open_levels))
        for level, share in zip(open_levels, shares):
            goal = len(found) + int(share)
            # A level that was named twice may have run dry earlier in the same turn.
            while len(found) < goal and level in generators:
                problem = _new_chain(level, generators[level], split, found)
                if problem is None:
                    del generators[level]
                else:
                    found[problem.id] = problem
    return found.values()


def _new_chain(
    level: int, rng: np.random.Generator, split: str, found: Collection[str]
) -> Problem | None:
    """A chain of the level that is not yet found, or None where there seem to be no more."""
    for _ in range(MOST_MISSES):
        problem = _of_split(level, rng, split)
        if problem is not None and problem.id not in found:
            return problem
    return None
