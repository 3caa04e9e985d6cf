"""What is right: verifiers turn responses and gold answers into rewards, each with a status.

A verifier has one method, `score(responses, answers) -> Scores`. It never raises for anything a model wrote: what
cannot be judged has reward 0 and a status that says why. Importing this package loads NumPy and nothing heavier.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["STATUSES", "Choice", "Code", "Math", "Scores"]

STATUSES = ("ok", "wrong", "unparsed", "timeout", "crash")
"""`ok`: equivalent to the gold answer, or all its tests passed; `wrong`: read, but not that; `unparsed`: no answer could be read;
`timeout`: killed at the deadline; `crash`: the worker or the program ran out of memory or died."""

_ROOMS = {"Choice": "choice", "Code": "code", "Math": "math"}


@dataclass(frozen=True, eq=False)
class Scores:
    """Rewards of R responses.

    reward: float64 (R,), 1.0 where the status is `ok`, otherwise 0.0 (`Code(partial=True)`: the share of tests passed).
    status: str (R,), values of `STATUSES`.
    """

    reward: np.ndarray
    status: np.ndarray

    @classmethod
    def of(cls, statuses: Sequence[str]) -> Scores:
        """Scores in which `ok` earns 1 and everything else 0."""
        status = np.array(statuses, dtype=f"<U{max(map(len, STATUSES))}")
        return cls((status == "ok").astype(np.float64), status)

    @property
    def correct(self) -> np.ndarray:
        """bool (R,): equivalent to the gold answer."""
        return self.status == "ok"

    def counts(self) -> dict[str, int]:
        """How many responses have each status, all of `STATUSES` in order.

        >>> Scores.of(["ok", "wrong", "ok"]).counts()
        {'ok': 2, 'wrong': 1, 'unparsed': 0, 'timeout': 0, 'crash': 0}
        """
        found = Counter(self.status.tolist())
        return {status: found[status] for status in STATUSES}


def __getattr__(name: str):
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ROOMS[name]}"), name)
