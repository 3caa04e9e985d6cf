"""Arithmetic on groups: which rollouts belong together, and whether their rewards differ."""

from __future__ import annotations

from typing import Any

import numpy as np


def keys(texts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Each text with its number as one key, (R,) str."""
    return np.char.add(np.char.add(texts, "@"), numbers.astype(str))


def group_numbers(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Groups as numbers: sorted keys (G,), the number of every row (R,) and the sizes (G,).

    Rows of a group usually stand together, so each run of equal keys is looked up only once. The
    numbers are 16 bits wide where that suffices, since NumPy sorts 16 bits by radix.

    Examples
    --------
    >>> group_numbers(np.array(["b", "b", "a", "b"]))
    (array(['a', 'b'], dtype='<U1'), array([1, 1, 0, 1], dtype=uint16), array([1, 3]))
    """
    keys = np.asarray(keys)
    # The cut matters for an empty table, where the first True would be one entry too many.
    starts_run = np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)]
    heads = np.flatnonzero(starts_run)
    names, number_of_head = np.unique(keys[heads], return_inverse=True)
    run_lengths = np.diff(np.append(heads, len(keys)))
    numbers = np.repeat(number_of_head, run_lengths)
    dtype = np.uint16 if len(names) <= 2**16 else np.int64
    return names, numbers.astype(dtype), np.bincount(numbers, minlength=len(names))


def grouped_rewards(rewards: Any, groups: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards (R,), the group number of every row (R,) and the group sizes (G,), all checked."""
    rewards = np.asarray(rewards, dtype=np.float64)
    groups = np.asarray(groups)
    if rewards.ndim != 1 or groups.shape != rewards.shape:
        raise ValueError(f"rewards {rewards.shape} and groups {groups.shape}: both must be (R,)")
    if not np.isfinite(rewards).all():
        row = int(np.argmin(np.isfinite(rewards)))
        raise ValueError(f"rewards: row {row} is {rewards[row]}, not finite")
    _, numbers, sizes = group_numbers(groups)
    return rewards, numbers, sizes


def place_within(groups: np.ndarray) -> np.ndarray:
    """Place of each row (R,) among the rows of its group, counted from 0, by group numbers (R,).

    Examples
    --------
    >>> place_within(np.array([1, 0, 1, 1]))
    array([0, 0, 1, 2])
    """
    order = np.argsort(groups, kind="stable")
    size = np.bincount(groups)
    place = np.empty_like(order)
    # In sorted order the groups stand end to end; what is taken off is where each one starts.
    place[order] = np.arange(len(groups)) - np.repeat(np.cumsum(size) - size, size)
    return place


def is_mixed(values: np.ndarray, groups: np.ndarray, size: int) -> np.ndarray:
    """Which of `size` groups hold two different values, (G,) bool, by values and numbers (R,).

    Examples
    --------
    >>> is_mixed(np.array([0.5, 1.0, 0.5, 0.0]), np.array([0, 1, 0, 1]), 2)
    array([False,  True])
    """
    one_of_each = np.zeros(size)
    # Each group has one of its values there, whichever is written last.
    one_of_each[groups] = values
    return np.bincount(groups, values != one_of_each[groups], size) > 0


def sample_variances(values: np.ndarray, groups: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Sample variance of the values of each group, (G,), by values and numbers (R,) and sizes (G,).

    It is exactly 0 where all values are equal.

    Examples
    --------
    >>> sample_variances(np.array([0.1, 0.1, 0.0, 1.0]), np.array([0, 0, 1, 1]), np.array([2, 2]))
    array([0. , 0.5])
    """
    mean = np.bincount(groups, values, len(sizes)) / sizes
    squares = np.bincount(groups, (values - mean[groups]) ** 2, len(sizes))
    variances = squares / np.maximum(sizes - 1, 1)
    return np.where(is_mixed(values, groups, len(sizes)), variances, 0.0)
