r"""Sample more problems, train on the learnable ones.

LILO (arXiv [2502.12272](https://arxiv.org/abs/2502.12272)). Four times as many problems as needed
are sampled, and the round trains on those with the largest variance of outcomes,

$$\hat p\,(1 - \hat p).$$

A round samples four times as much as one of GRPO, so compare the two by rollouts as well as by
rounds. *Text.*
"""

from dataclasses import dataclass

import numpy as np

from workbench.methods import Method, method
from workbench.rules.allocators import GroupSize, Requests, rows_of
from workbench.rules.success_rates import tally
from workbench.slots import Context, More, PerProblem, Problems, Slot
from workbench.utils.bounds import Count


@dataclass(frozen=True)
class MostLearnable(Slot):
    """Samples more problems than the round trains on, and keeps those with the largest p (1 - p).

    Attributes
    ----------
    n : int
        Rollouts a problem.
    factor : int
        Problems sampled for each one kept.

    References
    ----------
    LILO (arXiv 2502.12272): factor 4, 8 rollouts. Confidence is medium, since notes on the paper
    were read. Ties, which come in pairs, go to the lower index.
    """

    n: GroupSize = 8
    factor: Count = 4

    needs = frozenset({"more_problems"})

    def sampled(self) -> PerProblem:
        """n of every problem that is kept."""
        return PerProblem(self.n)

    def allocate(self, problems: Problems, context: Context) -> Requests:
        """A request for problems and one for rollouts; returns the rows of the kept problems."""
        wanted = len(problems)
        if self.factor > 1:
            problems = yield More((self.factor - 1) * wanted)
        ids = [problem.id for problem in problems]
        rollouts = yield np.full(len(ids), self.n, dtype=np.int64)
        correct, tries = tally(ids, rollouts)
        # Of whole numbers, so that the rates p and 1 - p have exactly the same score. A trainer may
        # leave out rollouts that nothing scored.
        scores = correct * (tries - correct) / np.maximum(tries, 1) ** 2
        # Where the pool had fewer problems to give than asked for, fewer of them are dropped.
        kept = np.argsort(-scores, kind="stable")[:wanted]
        return rows_of(rollouts, ids, kept)


@method(paper="LILO (arXiv 2502.12272)", decides="allocator")
def lilo(n: int = 8, factor: int = 4) -> Method:
    """LILO: sample more problems than needed, and train on those with the largest p (1 - p).

    References
    ----------
    LILO (arXiv 2502.12272): 8 rollouts, 4 times the problems. Confidence is medium, since notes on
    the paper were read.
    """
    return Method("lilo", allocator=MostLearnable(n, factor))
