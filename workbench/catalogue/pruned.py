r"""Leave out at random, without bias.

Unbiased pruning (arXiv [2603.04135](https://arxiv.org/abs/2603.04135)). A rollout is kept with
probability $q_i$ and its loss is divided by $q_i$, so the expected gradient is that of all
rollouts:

$$\mathbb{E}\left[\sum_{i \text{ kept}} \frac{g_i}{q_i}\right] = \sum_i g_i.$$

Advantages are those of the whole group. *Abstract only; how the paper sets the probabilities is
not known here.*
"""

from dataclasses import dataclass

import numpy as np

from workbench.methods import Method, Uniform, method
from workbench.slots import Context, PerProblem, Rollouts, Selection, Slot
from workbench.utils.bounds import ShareAboveZero


@dataclass(frozen=True)
class Pruned(Slot):
    """Drops rollouts at random and weights the others, so that the expected gradient is unchanged.

    A rollout is kept with its probability q, and its loss is then multiplied by 1 / q. Dropped
    rollouts still count in the averages of the loss, with weight 0, and are not computed.

    Attributes
    ----------
    keep : float or column
        The probability for all rollouts, or the name of a column of the table that holds one for
        each.

    References
    ----------
    DPPO, unbiased pruning (arXiv 2603.04135). Confidence is low: only the abstract was read. How
    its probabilities are set is not known here, so they are the user's, and its pruning of whole
    prompts and its packing are left out.
    """

    keep: ShareAboveZero | str = 0.5

    needs = frozenset({"row_weights"})
    reads_verdict = False

    def __post_init__(self) -> None:
        # The name of a column has no bounds.
        if not isinstance(self.keep, str):
            super().__post_init__()

    def trained(self, sampled: PerProblem) -> PerProblem:
        """All of them: what is dropped stays, with weight 0."""
        return sampled

    def select(self, rollouts: Rollouts, context: Context) -> Selection:
        """All rows, with weights 1 / q and 0."""
        size = len(rollouts)
        keep = rollouts[self.keep] if isinstance(self.keep, str) else np.full(size, self.keep)
        keep = np.asarray(keep, dtype=np.float64)
        if not ((keep > 0) & (keep <= 1)).all():
            raise ValueError(f"keep={self.keep!r}: probabilities above 0 and up to 1 are needed")
        # All rows are returned, the dropped ones with weight 0, so that averages still count them.
        is_kept = context.rng("selector").random(size) < keep
        return Selection(np.arange(size), weights=np.where(is_kept, 1 / keep, 0.0))


@method(paper="DPPO, unbiased pruning (arXiv 2603.04135)", decides="selector")
def pruned(n: int = 8, keep: float | str = 0.5) -> Method:
    """GRPO on a random part of the rollouts, weighted so that the expected gradient is the same.

    References
    ----------
    DPPO, unbiased pruning (arXiv 2603.04135). Confidence is low: only the abstract was read, and
    how it sets the probabilities is not known here.
    """
    return Method("pruned", allocator=Uniform(n), selector=Pruned(keep))
