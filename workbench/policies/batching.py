"""Micro-batches: how many rows of a step are computed at once."""

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
