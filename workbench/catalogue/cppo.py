r"""The largest advantages.

CPPO (arXiv [2503.22342](https://arxiv.org/abs/2503.22342)). Advantages are computed over the whole
group. The share $1 - P$ of rollouts whose advantages have the largest absolute values is kept, and
keeps these advantages:

$$S = \text{top-}\lfloor n (1 - P) \rfloor \;\text{ of } \lvert A_i \rvert.$$

With rewards of 0 and 1 it keeps the rarer outcome first. The text selects within each group, the
released code over the whole batch; `scope` says which. A round samples $1 / (1 - P)$ times as many
problems, so that it trains on as many rollouts as if none were left out. The paper calls this
dynamic allocation, and `dynamic_allocation=False` turns it off. *Released code.*
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np

from workbench.methods import GroupNormalized, Method, Uniform, method
from workbench.rules.allocators import GroupSize, Requests
from workbench.rules.selectors import first_of_each_group
from workbench.slots import Context, More, PerProblem, Problems, Rollouts, Selection, Slot
from workbench.utils.bounds import choice
from workbench.utils.groups import floored, group_numbers
from workbench.utils.validation import number


@dataclass(frozen=True)
class Widened(Slot):
    """n rollouts for every problem, of `factor` times the problems that the round begins with.

    For a selector that drops a share of the rollouts: the round then trains on as many as one that
    drops none. Where the pool has fewer problems, the round has those.

    Attributes
    ----------
    n : int
        Rollouts of a problem.
    factor : float
        At least 1.

    References
    ----------
    CPPO (arXiv 2503.22342), dynamic completion allocation: 1 / (1 - P) times the questions where a
    share P of the completions is pruned.
    """

    n: GroupSize = 8
    factor: Annotated[float, partial(number, low=1)] = 1.0

    needs = frozenset({"more_problems"})
    reads_verdict = False

    def sampled(self) -> PerProblem:
        """n of every problem, and so `factor` times as many for each one that the round has."""
        return PerProblem(round(self.factor * self.n), "about")

    def allocate(self, problems: Problems, context: Context) -> Requests:
        """A request for the further problems, and one for the rollouts."""
        further = round(self.factor * len(problems)) - len(problems)
        if further:
            problems = yield More(further)
        yield np.full(len(problems), self.n, dtype=np.int64)


@dataclass(frozen=True)
class LargestAdvantage(Slot):
    """Keeps the rollouts whose advantages are largest in absolute size.

    Attributes
    ----------
    drop : float
        Share of the rollouts that is dropped; floor(G (1 - drop)) of G stay, at least one.
    scope : {"group", "batch"}
        Whether G counts the rollouts of each group, as in the text, or of the whole round, as in
        the released code.

    References
    ----------
    CPPO (arXiv 2503.22342). Advantages are those against the whole group; the released
    configuration has drop=.5.
    """

    drop: Annotated[float, partial(number, low=0, below=1)] = 0.5
    scope: Annotated[str, choice("group", "batch")] = "group"

    reads_verdict = False

    def trained(self, sampled: PerProblem) -> PerProblem:
        """The share that is not dropped."""
        kept = sampled.limited(int(self._counts(sampled.n)))
        # Across a whole round, problems have different numbers.
        return kept if self.scope == "group" else PerProblem(kept.n, "about")

    def select(self, rollouts: Rollouts, context: Context) -> Selection:
        """The rows of largest |advantage|; ties go to the lower row."""
        keys = rollouts.group if self.scope == "group" else np.zeros(len(rollouts))
        _, groups, sizes = group_numbers(keys)
        # In single precision, where those that differ by rounding alone are equal.
        by_size = np.argsort(-np.abs(rollouts["advantage"]).astype(np.float32), kind="stable")
        return Selection(np.sort(first_of_each_group(by_size, groups, self._counts(sizes))))

    def _counts(self, sizes: Any) -> Any:
        """How many stay of groups of so many rollouts, (G,) int64."""
        return np.maximum(floored(sizes * (1 - self.drop)), 1)


@method(paper="CPPO (arXiv 2503.22342)", decides="selector")
def cppo(
    n: int = 16, drop: float = 0.5, scope: str = "group", dynamic_allocation: bool = True
) -> Method:
    """CPPO: train on the rollouts whose advantages are largest in absolute size.

    Parameters
    ----------
    n : int
    drop : float
        Share of the rollouts that is not trained on.
    scope : {"group", "batch"}
        Of each group, as in the text, or of the whole round, as in the released code.
    dynamic_allocation : bool
        Whether a round samples 1 / (1 - drop) times its problems, so that it trains on as many
        rollouts as without dropping.

    References
    ----------
    CPPO (arXiv 2503.22342). 16 rollouts, a share of .5 and the sample deviation plus 1e-4 are those
    of the released code.
    """
    # First, since it refuses a `drop` that leaves nothing.
    selector = LargestAdvantage(drop, scope)
    return Method(
        "cppo",
        allocator=Widened(n, 1 / (1 - drop)) if dynamic_allocation else Uniform(n),
        selector=selector,
        advantage=GroupNormalized(ddof=1, eps=1e-4),
    )
