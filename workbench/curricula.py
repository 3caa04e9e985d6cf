"""Which problems come next.

The default, `ShuffledEpochs`, passes over the pool in a new order each time, as every trainer does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.problems import PoolExhausted
from workbench.slots import Slot

if TYPE_CHECKING:
    from workbench.problems import Pool, Problem, Stream
    from workbench.rollouts import Context

__all__ = ["ShuffledEpochs"]


@dataclass
class ShuffledEpochs(Slot):
    """Every problem once an epoch, each epoch in an order of its own; an endless stream in its own
    order.

    The order depends on the seed of the run alone, so runs of different methods meet the same
    problems. A round never spans two epochs: what an epoch has left beyond its last whole round is
    skipped.

    Attributes
    ----------
    cursor : int
        Position behind the last problem drawn, counted over all epochs.
    epoch : int
        Epochs completed.
    """

    cursor: int = field(default=0, init=False, repr=False, compare=False)
    epoch: int = field(default=0, init=False, repr=False, compare=False)

    def choose(self, pool: Pool | Stream, n: int, context: Context) -> Sequence[Problem]:
        """The next n problems; none where the pool has fewer than n that are not in the round
        already.
        """
        try:
            problems, self.cursor = pool.draw(n, self.cursor, context.seed, context.taken)
        except PoolExhausted:
            if context.taken:
                return []
            raise
        self.epoch = pool.epoch(self.cursor)
        return problems

    def state_dict(self) -> dict[str, Any]:
        """The position in the pool."""
        return {"cursor": self.cursor, "epoch": self.epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the position in the pool."""
        self.cursor = state["cursor"]
        self.epoch = state["epoch"]
