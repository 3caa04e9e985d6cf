r"""The problems that a Markov chain predicts to be mixed.

DPS (arXiv [2603.10887](https://arxiv.org/abs/2603.10887)). A problem is all wrong, mixed or all
right, and moves between these three states from round to round. For each problem there is the
chance $b_i$ of each state and a count $\alpha_{ij}$ of each transition, all 1 at first. The round
takes the problems with the greatest predicted chance of being mixed,

$$P(\text{mixed}) = \sum_i b_i\, \frac{\alpha_{i,\text{mixed}}}{\sum_j \alpha_{ij}}.$$

When a problem is visited, its state is seen and the transition into it is counted. After one mixed
group the prediction for a problem is .3 for all wrong, .4 for mixed and .3 for all right. In every
round the counts of every problem decay towards 1, and the chances of a problem that was not visited
move on by the transitions, as in the released code. The recorded runs are of an earlier version,
whose counts decayed at a visit only. There it learns slowly in the default lab, because it draws
the same few problems again and again: in 24 rounds it drew 116 of the 512, where GRPO drew each of
them (`13_course`). *The released code.*
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.methods import Method, Uniform, method
from workbench.rules.curricula import OverPool
from workbench.rules.success_rates import outcomes_of_round
from workbench.slots import Context, Pool, Problems, Rollouts, state_field
from workbench.utils.bounds import Share

# What a problem never seen has: chances of its three states, and a count of each transition.
UNSEEN = np.vstack([np.full((1, 3), 1 / 3), np.ones((3, 3))])


@dataclass
class Dps(OverPool):
    """Takes the problems that are most likely to be mixed, by a Markov chain for each problem.

    A problem is in one of three states, "all wrong", "mixed" and "all right", and moves between
    them from round to round. For each problem the chance of each state is kept, and a count of each
    transition with a prior of 1. A visit shows the state. One transition into it is then counted,
    in parts: each earlier state gets the part that is the probability of having come from it. In a
    round without a visit the chances are moved on by the estimated transition probabilities. The
    counts decay towards their prior in every round, with a visit or without.

    Attributes
    ----------
    decay : float
        Factor on the counts in every round.

    References
    ----------
    DPS (arXiv 2603.10887) and its released code: decay .7 on MATH. Two things are our reading: the
    whole pool is compared; of equal problems the one that is earlier in the order of the first
    epoch is taken.
    """

    decay: Share = 0.7

    # Problem -> (4, 3): the chances, and the counts with a row for each state that is left.
    memory: dict[str, Any] = state_field(dict)

    def _candidates(self, pool: Pool, n: int, context: Context) -> Problems:
        ordered = [pool[i] for i in pool.order(context.seed, 0)]
        return [problem for problem in ordered if problem.id not in context.taken]

    def _places(self, problems: Problems, n: int, pool: Pool, context: Context) -> np.ndarray:
        mixed = self.predicted([problem.id for problem in problems])[:, 1]
        return np.sort(np.argsort(-mixed, kind="stable")[:n])

    def predicted(self, ids: Sequence[str]) -> np.ndarray:
        """Chances of each problem's states in the coming round, (P, 3)."""
        return self._transitions(ids).sum(axis=1)

    def _transitions(self, ids: Sequence[str]) -> np.ndarray:
        """Chances that a problem moves from one state to another in the coming round, (P, 3, 3)."""
        known = np.stack([self.memory.get(key, UNSEEN) for key in ids])
        chances, counts = known[:, 0], known[:, 1:]
        return chances[:, :, None] * counts / counts.sum(axis=2, keepdims=True)

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The problems of the round have shown their states; all others move on."""
        visited, correct, tries = outcomes_of_round(rollouts, context.round)
        states = (correct > 0).astype(int) + (correct == tries)
        seen = dict(zip(visited, states.tolist()))
        ids = list(dict.fromkeys([*self.memory, *visited]))
        if not ids:
            return
        for key, moved in zip(ids, self._transitions(ids)):
            memory = np.array(self.memory.get(key, UNSEEN))
            memory[0] = moved.sum(axis=0)
            memory[1:] = self.decay * memory[1:] + (1 - self.decay) * UNSEEN[1:]
            if key in seen:
                state = seen[key]
                memory[1:, state] += moved[:, state] / moved[:, state].sum()
                memory[0] = np.arange(3) == state
            self.memory[key] = memory


@method(paper="DPS (arXiv 2603.10887)", decides="curriculum")
def dps(n: int = 8, decay: float = 0.7) -> Method:
    """DPS: the problems that a Markov chain of three states predicts to be mixed.

    Parameters
    ----------
    n : int
    decay : float
        See `curricula.Dps`, which says what is our reading.

    References
    ----------
    DPS (arXiv 2603.10887) and its released code: decay .7 on MATH. n is our choice.
    """
    return Method("dps", curriculum=Dps(decay=decay), allocator=Uniform(n))
