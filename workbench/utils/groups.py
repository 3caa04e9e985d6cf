"""Arithmetic on groups: which rollouts belong together, and whether their rewards differ."""

from __future__ import annotations

from typing import Any

import numpy as np

STEPS = 2  # of the precision of numbers, up to which they are the same
# What parts of about 1 leave when they cancel, such as 1 - 0.9 - 0.1.
REMAINDER = 1e-15


def precision_of(values: np.ndarray) -> float:
    """The relative difference up to which numbers (N,) are the same: two steps of precision.

    Of single precision where they all are numbers of single precision, as those of reward models
    and other trainers are; otherwise of double precision.
    """
    with np.errstate(over="ignore"):
        is_single = np.array_equal(values, values.astype(np.float32))
    return STEPS * float(np.finfo(np.float32 if is_single else np.float64).eps)


def is_same(
    a: np.ndarray, b: np.ndarray, precision: float, sizes: np.ndarray | None = None
) -> np.ndarray:
    """Whether numbers differ by rounding alone, elementwise, (N,) bool.

    Parameters
    ----------
    a, b : (N,) floats
    precision : float
        See `precision_of`.
    sizes : (N,), optional
        Of what they were summed from, where that is more than the sums: 1.4 for 0.7 - 0.6 - 0.1.

    Examples
    --------
    >>> rewards = np.array([0.1 + 0.2, 1.0])
    >>> is_same(rewards, np.array([0.3, 1.00001]), precision_of(rewards))
    array([ True, False])
    """
    if sizes is None:
        sizes = np.maximum(np.abs(a), np.abs(b))
    return np.abs(a - b) <= precision * sizes + REMAINDER


def merge_same(
    values: np.ndarray,
    groups: np.ndarray,
    precision: float | None = None,
    sizes: np.ndarray | None = None,
) -> np.ndarray:
    """Values of a group that differ by rounding alone, made the same number: the lowest of them.

    This is the one rule for "equal rewards". Every slot that compares, sorts or divides by a
    deviation may then go by plain equality.

    Parameters
    ----------
    values : (R,) finite floats
    groups : (R,) numbers
    precision, sizes
        See `is_same`; by default those of the values themselves.

    Returns
    -------
    (R,) float64

    Examples
    --------
    >>> merge_same(np.array([0.1 + 0.2, 0.3, 1.0]), np.array([0, 0, 0]))
    array([0.3, 0.3, 1. ])
    """
    if precision is None:
        precision = precision_of(values)
    distinct = np.unique(values)
    if sizes is None and not is_same(distinct[1:], distinct[:-1], precision).any():
        return values  # the usual case, without sorting all rows
    order = np.lexsort((values, groups))
    ordered = values[order]
    if sizes is not None:
        sizes = np.maximum(sizes[order][1:], sizes[order][:-1])
    goes_on = is_same(ordered[1:], ordered[:-1], precision, sizes)
    goes_on &= groups[order][1:] == groups[order][:-1]
    # Each run of equal numbers takes the value of its first row.
    first = np.flatnonzero(np.concatenate([[True], ~goes_on])[: len(values)])
    merged = np.empty_like(values)
    merged[order] = np.repeat(ordered[first], np.diff(np.append(first, len(values))))
    return merged


def floored(products: Any) -> Any:
    """Products such as 0.29 * 100 as whole numbers, rounded down, whatever rounding took off them.

    >>> floored([0.29 * 100, 28.5])
    array([29, 28])
    """
    return np.floor(np.asarray(products) + 1e-9).astype(np.int64)


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
    """Rewards (R,), the group number of every row (R,) and the group sizes (G,), all checked.

    Rewards of a group that differ by rounding alone come back equal, see `merge_same`.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    groups = np.asarray(groups)
    if rewards.ndim != 1 or groups.shape != rewards.shape:
        raise ValueError(f"rewards {rewards.shape} and groups {groups.shape}: both must be (R,)")
    if not np.isfinite(rewards).all():
        row = int(np.argmin(np.isfinite(rewards)))
        raise ValueError(f"rewards: row {row} is {rewards[row]}, not finite")
    _, numbers, sizes = group_numbers(groups)
    return merge_same(rewards, numbers), numbers, sizes


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

    Values that differ by rounding alone are the same, see `is_same`.

    Examples
    --------
    >>> is_mixed(np.array([0.5, 1.0, 0.5, 0.0]), np.array([0, 1, 0, 1]), 2)
    array([False,  True])
    """
    one_of_each = np.zeros(size)
    # Each group has one of its values there, whichever is written last.
    one_of_each[groups] = values
    differs = ~is_same(values, one_of_each[groups], precision_of(values))
    return np.bincount(groups, differs, size) > 0


def sample_variances(values: np.ndarray, groups: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Sample variance of the values of each group, (G,), by values and numbers (R,) and sizes (G,).

    It is exactly 0 where all values are equal up to rounding.

    Examples
    --------
    >>> sample_variances(np.array([0.1, 0.1, 0.0, 1.0]), np.array([0, 0, 1, 1]), np.array([2, 2]))
    array([0. , 0.5])
    """
    mean = np.bincount(groups, values, len(sizes)) / sizes
    squares = np.bincount(groups, (values - mean[groups]) ** 2, len(sizes))
    variances = squares / np.maximum(sizes - 1, 1)
    return np.where(is_mixed(values, groups, len(sizes)), variances, 0.0)
