"""Screen with a few, go on with the mixed.

SPEED-RL (arXiv [2506.09016](https://arxiv.org/abs/2506.09016)). Every problem gets four rollouts.
Only a problem with both outcomes among them gets twelve more, so a problem passes with probability

$$1 - p^4 - (1 - p)^4.$$

This pays where the model always fails at many problems, or always solves them. In a pool where all
problems have the same success rate it is never cheaper than sampling whole groups and leaving out
those that are all alike. In an advantage, the mean is that of the other rollouts of the group
(leave-one-out). *Released code.*
"""

from dataclasses import dataclass
from typing import Any

from workbench.methods import Method, Objective, method
from workbench.rules.advantages import LeaveOneOut
from workbench.rules.allocators import DynamicSampling, GroupSize, InTwoPhases
from workbench.rules.replay import Surplus
from workbench.slots import state_field
from workbench.utils.bounds import Count, PositiveOrZero


@dataclass
class Screening(InTwoPhases):
    """A few rollouts for every problem, and many more for those whose first ones are mixed.

    Problems whose first rollouts are all right or all wrong are dropped.

    Attributes
    ----------
    first, further : int
        Rollouts of the two phases.
    groups : int, optional
        Mixed problems wanted; more problems are screened until there are at least so many, at most
        in `max_draws` draws of the round's size. Those that wait in `replay.Surplus` count, and no
        more go on than this round and the next can train on. None: the round's problems alone are
        screened, and all mixed ones go on.
    max_draws : int
    spread : float
        See `DynamicSampling`.
    waiting : int
        Groups with both phases that the latest round did not train on.

    Notes
    -----
    The released code samples the second phase together with the first phase of the next round, in
    one call, and samples nothing while enough groups wait. Here both phases belong to one round,
    and every round screens its problems.

    References
    ----------
    SPEED-RL (arXiv 2506.09016) and its released code: 4 + 12, 4 + 20 and 8 + 16 rollouts.
    """

    first: GroupSize = 4
    further: Count = 12
    groups: Count | None = None
    max_draws: Count = 3
    spread: PositiveOrZero = 0.0
    waiting: int = state_field(int)

    reads_verdict = False
    later = ("spread",)

    def _phases(self) -> tuple[DynamicSampling, int]:
        screen = DynamicSampling(self.first, max_draws=self.max_draws, spread=self.spread)
        return screen, self.further


@method(paper="SPEED-RL (arXiv 2506.09016)", decides="allocator")
def speed(
    first: int = 4, further: int = 12, groups: int | None = None, clip: Any = (0.2, 0.2)
) -> Method:
    """SPEED-RL: a few rollouts for every problem, many more for the mixed ones; RLOO advantages.

    Parameters
    ----------
    first, further : int
        4 + 12 in the released configuration, 4 + 20 in the script for 7B.
    groups : int, optional
        Groups that a round trains on; at most as many again wait for the next round.
        None trains on all.
    clip : (low, high)

    References
    ----------
    SPEED-RL (arXiv 2506.09016).
    """
    return Method(
        "speed",
        # Without a number of groups a round trains on all, and nothing is left to wait.
        allocator=Screening(first, further, groups),
        replay=None if groups is None else Surplus(groups),
        advantage=LeaveOneOut(),
        objective=Objective(clip=clip),
    )
