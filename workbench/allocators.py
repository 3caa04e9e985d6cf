"""How many rollouts for which problem.

An allocator is a frozen configuration with a generator method:

    def allocate(self, problems, context):
        rollouts = yield counts        # (P,) int64: sample so many more of each problem; sent all rollouts so far
        problems = yield More(n)       # draw n more problems; sent the list of all problems of the round
        return keep                    # optional (K,) rows that go on to the selector; None: all

`problems` is the list of the round's problems, `rollouts` a scored `Rollouts`, `context` the round's `Context`. One
that learns from the round also has `feedback(rollouts, context)`, `state_dict()` and `load_state_dict(state)`.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class More:
    """A request for n more problems in this round."""

    n: int

    def __post_init__(self):
        if self.n < 1:
            raise ValueError(f"n={self.n}: a positive number of problems is needed")


@dataclass(frozen=True)
class Uniform:
    """n rollouts for every problem (GRPO)."""

    n: int = 8

    def __post_init__(self):
        if self.n < 2:
            raise ValueError(f"n={self.n}: a group needs at least 2 rollouts, one alone has no advantage")

    def allocate(self, problems, context):
        """One request: the same count for every problem."""
        yield np.full(len(problems), self.n, dtype=np.int64)
