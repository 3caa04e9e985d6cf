"""Which rollouts are trained on.

A selector is a frozen configuration, called with the round's candidates, returning the rows it keeps:

    def __call__(self, rollouts, rng) -> (K,) int64

`rollouts` is a `Rollouts`, or a DataFrame with columns `problem`, `reward`, `correct`; `rng` a NumPy generator. Its
`statistics` says over what the advantages are taken: "selected" (the kept rows alone, as in PODS) or "pool" (all
candidates of the group).
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class All:
    """Keeps everything."""

    statistics = "pool"

    def __call__(self, rollouts, rng=None):
        """All rows, in order."""
        return np.arange(len(rollouts))
