"""Numbers of samples and steps: pure functions, arrays in, numbers out.

Those that a run records in every round are `workbench.records.round_stats`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.utils.validation import shown, whole_number

__all__ = ["finite", "gradient_norm_stats", "pass_at_k"]


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
        raise ValueError(f"correct={shown(correct)}: counts from 0 to {n} are needed")
    # The product of (n - c - i) / (n - i) needs no factorials, which overflow for large n.
    failed = np.ones(len(counts))
    # Once there are fewer wrong samples than draws, a factor is 0 and the product stays 0: then
    # every draw holds a right one.
    for i in range(k):
        failed *= np.clip(n - counts - i, 0, None) / (n - i)
    return float(np.mean(1 - failed))


def gradient_norm_stats(norms: Any) -> dict[str, float]:
    """Summary of the gradient norms of several steps.

    Parameters
    ----------
    norms : (S,) numbers of at least 0
        One a step. Steps without a gradient count.

    Returns
    -------
    dict
        mean, std (population), median, p90 (90th percentile), max, and zero: the share of steps
        whose norm is exactly 0.

    Examples
    --------
    >>> gradient_norm_stats([0, 1, 2, 3, 4])["median"]
    2.0
    """
    norms = finite("norms", norms, 1)
    if (norms < 0).any():
        raise ValueError(f"norms: {norms.min()} is negative; norms are zero or more")
    return {
        "mean": float(norms.mean()),
        "std": float(norms.std()),
        "median": float(np.median(norms)),
        "p90": float(np.quantile(norms, 0.9)),
        "max": float(norms.max()),
        "zero": float(np.mean(norms == 0)),
    }


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
    if dimensions is not None and values.ndim != dimensions:
        plural = "s" if dimensions > 1 else ""
        raise ValueError(f"{name}: shape {values.shape}; {dimensions} dimension{plural} are needed")
    if not values.size:
        raise ValueError(f"{name}: shape {values.shape}; at least one number is needed")
    if not np.isfinite(values).all():
        bad = values[~np.isfinite(values)][0]
        raise ValueError(f"{name}: {bad} is among them; finite numbers are needed")
    return values
