"""How the rows of a round are split: into optimizer steps, and into what is computed at once."""

from collections.abc import Iterator

import numpy as np

from workbench.rollouts import Rollouts


def micro_batches(
    rollouts: Rollouts, rows: np.ndarray, tokens: int, layout: str = "padded"
) -> Iterator[np.ndarray]:
    """Split rows into arrays whose size stays within `tokens`. Each has at least one row.

    Parameters
    ----------
    rollouts : Rollouts
    rows : (K,) int64
    tokens : int
    layout : {"padded", "joined", "packed"}
        "padded": rows of similar length together, and the size is that of the padded rows.
        "joined": rows in the order given, and the size is that of their tokens. "packed": rows of
        one prompt together, and the size is that of their responses and of each prompt once. Where
        the policy shares prefixes, fewer tokens are computed.
    """
    prompts = rollouts.prompt.lengths[rows]
    responses = rollouts.lengths[rows]
    # Rows that share a cost are put side by side: a prompt when packed, the padding when padded.
    order: np.ndarray = np.arange(len(rows))
    if layout == "packed":
        # By their texts, as they are computed: a course gives one problem several prompts.
        _, prompt = rollouts.prompt.take(rows).distinct()
        order = np.argsort(prompt, kind="stable")
    elif layout == "padded":
        order = np.argsort(prompts + responses, kind="stable")
    batch: list[int] = []
    size = 0
    for i in order:
        alone = prompts[i] + responses[i]
        if layout == "padded":
            # In this order row i is the longest of the batch, so all are padded to its length.
            larger = (len(batch) + 1) * alone
        elif layout == "packed" and batch and prompt[batch[-1]] == prompt[i]:
            larger = size + responses[i]
        else:
            larger = size + alone
        # A row that is larger than the limit on its own still gets a micro-batch, its own.
        if batch and larger > tokens:
            yield rows[batch]
            batch = []
            larger = alone
        batch.append(i)
        size = larger
    if batch:
        yield rows[batch]


def mini_batches(
    rollouts: Rollouts, parts: int, rng: np.random.Generator, size: int | None = None
) -> list[np.ndarray]:
    """Split a round's rows at random into the mini-batches of its optimizer steps.

    Parameters
    ----------
    rollouts : Rollouts
    parts : int
        Number of mini-batches. Problems stay whole, and mini-batches have nearly equally many rows;
        with fewer problems there are fewer mini-batches, and none without rollouts.
    rng : numpy.random.Generator
    size : int, optional
        Fewest rows of a mini-batch, in place of `parts` and whatever their problems are. There are
        as many mini-batches as have so many rows, and what is left over is spread among them: 10
        rows with size 4 make two mini-batches of 5. Fewer rows than `size` make one mini-batch.

    Returns
    -------
    list of int64 arrays of rows
    """
    if size is not None:
        # Parts of nearly equal size, and no small remainder: its optimizer step would count as much
        # as the others.
        number = max(1, len(rollouts) // size)
        sets = np.array_split(rng.permutation(len(rollouts)), number)
        return [np.sort(rows) for rows in sets if len(rows)]
    problems, problem_of_row = rollouts.problems()
    parts = min(parts, len(problems))
    if parts == 0:
        return []
    if parts == 1:
        # The order within one mini-batch does not matter, and nothing is drawn.
        return [np.arange(len(rollouts))]
    # In a random order, a problem goes to the part that the middle of its rows falls into, so that
    # parts have nearly equally many rows even where problems differ in rollouts.
    order = rng.permutation(len(problems))
    rows = np.bincount(problem_of_row)[order]
    middle = np.cumsum(rows) - rows / 2
    part_of_problem = np.empty(len(problems), dtype=np.int64)
    part_of_problem[order] = middle * parts // len(rollouts)
    sets = [np.flatnonzero(part_of_problem[problem_of_row] == part) for part in range(parts)]
    return [rows for rows in sets if len(rows)]
