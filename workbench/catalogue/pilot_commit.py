r"""A few rollouts first, and a large group where they are mixed.

Pilot-Commit (arXiv [2605.26606](https://arxiv.org/abs/2605.26606)). Every problem gets 16
rollouts, its pilot. It gets 48 more if the share $m$ of right ones in the pilot lies within these
bounds,

$$.125 \le m \le .75.$$

If a share $q$ of the problems passes, a trained group costs $16/q + 48$ rollouts. Problems whose
pilot is all right leave the pool for good. If a round has more groups than it trains on, the
others wait for a later one, for 4 rounds at most. In the released code a problem waits with its
pilot alone. Here whole groups wait, at most as many as one round trains on, which is our reading.
*Notes on the released code.*
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.methods import Method, method
from workbench.rules.allocators import DynamicSampling, GroupSize, InTwoPhases
from workbench.rules.curricula import ShuffledEpochs, WithoutSolved
from workbench.rules.replay import Surplus
from workbench.rules.success_rates import tally
from workbench.slots import Rollouts, state_field
from workbench.utils.bounds import Count, Interval


@dataclass
class _Within(DynamicSampling):
    """Dynamic sampling that keeps success rates from one bound to the other, bounds included."""

    def _is_mixed(self, ids: Sequence[str], rollouts: Rollouts) -> np.ndarray:
        correct, tries = tally(ids, rollouts)
        low, high = self.between
        # A bound such as .7 of 10 rollouts may miss 7 by a rounding error.
        inside = (correct >= low * tries - 1e-9) & (correct <= high * tries + 1e-9)
        return inside & (tries > 0)


@dataclass
class PilotCommit(InTwoPhases):
    """A cheap pilot of every problem, and the rest of a large group where its success rate fits.

    Attributes
    ----------
    pilots, commit : int
        Rollouts of the two phases; a group is both together.
    groups : int
        Groups wanted. Problems are drawn until there are so many together with those that wait in
        `replay.Surplus`, in at most `max_draws` draws of the round's size. Of the problems that
        fit, no more get a whole group than this round and the next can train on.
    between : (low, high)
        The success rates of the pilot that fit, the bounds included.
    max_draws : int
    waiting : int
        Groups with both phases that the latest round did not train on.

    Notes
    -----
    In the released code a problem waits with its pilot alone, and the rest of its group is sampled
    once it is taken, at random or by the largest deviation. Here both phases belong to one round,
    so whole groups wait, the oldest go first, and what fits beyond two rounds is thrown away after
    its pilot: that is our reading. Too few groups are an error there after 10 draws; here the round
    goes on with those that it has. At the end of an epoch nothing waits any more there; here groups
    go on waiting.

    References
    ----------
    Pilot-Commit (arXiv 2605.26606) and the scripts of its released code: 32 + 96 rollouts (1.5B) or
    16 + 48 (4B), success rates from .125 to .75, three problems drawn for each group of a round.
    """

    pilots: GroupSize = 16
    commit: Count = 48
    groups: Count = 16
    between: Interval = (0.125, 0.75)
    max_draws: Count = 10
    waiting: int = state_field(int)

    def _phases(self) -> tuple[DynamicSampling, int]:
        pilot = _Within(self.pilots, max_draws=self.max_draws, between=self.between)
        return pilot, self.commit


@method(paper="Pilot-Commit (arXiv 2605.26606)", decides="allocator")
def pilot_commit(
    pilots: int = 16,
    commit: int = 48,
    groups: int = 16,
    solved: float | None = 1.0,
    age: int = 4,
) -> Method:
    """Pilot-Commit: a cheap pilot decides which problems get a large group; solved ones leave.

    Parameters
    ----------
    pilots, commit : int
        16 + 48 in the scripts for 4B, 32 + 96 in those for 1.5B.
    groups : int
        Groups that a round trains on; what is too much waits for later rounds. The paper draws
        three problems for each.
    solved : float, optional
        See `curricula.WithoutSolved`; None keeps all problems, as a trainer needs that chooses the
        problems itself.
    age : int
        Rounds that a group waits at most.

    References
    ----------
    Pilot-Commit (arXiv 2605.26606) and its released code. The notes of `PilotCommit` say what is
    our reading.
    """
    return Method(
        "pilot_commit",
        curriculum=ShuffledEpochs() if solved is None else WithoutSolved(solved=solved),
        allocator=PilotCommit(pilots, commit, groups),
        replay=Surplus(groups, capacity=groups, age=age),
    )
