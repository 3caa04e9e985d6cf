"""Numbers of samples and steps: pure functions, arrays in, numbers out.

Those that a run records in every round are `workbench.records.round_stats`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.utils.validation import brief, whole_number


def pass_at_k(correct: Any, n: int, k: int) -> float:
    """Unbiased probability that at least one of k samples is right, averaged over problems.

    Parameters
    ----------
    correct : (P,) whole numbers
        Right answers among the n samples of each problem.
    n : int
        Samples of each problem.
    k : int
        From 1 to n. With k = 1 this is the mean accuracy, avg@n.

    Returns
    -------
    float
        The mean over problems of 1 - C(n - c, k) / C(n, k).

    References
    ----------
    Chen et al., Evaluating large language models trained on code (arXiv 2107.03374), section 2.1.

    Examples
    --------
    >>> pass_at_k([1], n=2, k=2), pass_at_k([1], n=2, k=1)
    (1.0, 0.5)
    """
    whole_number("n", n, 1)
    whole_number("k", k, 1, n)
    counts = finite("correct", correct)
    if ((counts < 0) | (counts > n) | (counts != np.floor(counts))).any():
        raise ValueError(f"correct={brief(correct)}: counts from 0 to {n} are needed")
    # The product of (n - c - i) / (n - i) needs no factorials, which overflow for large n.
    failed = np.ones(len(counts))
    # Once there are fewer wrong samples than draws, a factor is 0 and the product stays 0: then
    # every draw holds a right one.
    for i in range(k):
        failed *= np.clip(n - counts - i, 0, None) / (n - i)
    return float(np.mean(1 - failed))


def finite(name: str, values: Any, dimensions: int | None = None) -> np.ndarray:
    """Values as float64; ValueError unless they are finite, not empty, and of so many dimensions.

    Parameters
    ----------
    name : str
        Of the argument, for the message.
    values : numbers
    dimensions : int, optional
        None for any.

    Returns
    -------
    float64 array
    """
    values = np.asarray(values, dtype=np.float64)
    if not values.size or dimensions not in (None, values.ndim):
        wanted = "numbers" if dimensions is None else f"numbers in {dimensions} dimensions"
        raise ValueError(f"{name}: shape {values.shape}; {wanted} are needed")
    if not np.isfinite(values).all():
        bad = values[~np.isfinite(values)][0]
        raise ValueError(f"{name}: {bad} is among them; finite numbers are needed")
    return values
