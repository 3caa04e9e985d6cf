r"""More rollouts the lower the success rate.

Reinforce-Ada, the estimation variant (same paper). All rollouts are trained on. The number of
rollouts and the weight of an advantage both grow as the success rate falls,

$$n_x \propto \frac{1}{\sqrt{\hat p_x + \epsilon}}, \qquad A = \frac{r - \bar r}{\sqrt{\bar r +
\epsilon}},$$

where $\hat p$ is estimated from counts in which old rollouts weigh less and less. *The formula
alone; its constants are not printed.*
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.methods import Method, method
from workbench.rules.advantages import group_means
from workbench.rules.allocators import InProportion
from workbench.slots import Context, Rollouts, Slot
from workbench.utils.bounds import Positive, PositiveOrZero
from workbench.utils.groups import grouped_rewards


@dataclass
class InverseRoot(InProportion):
    """More rollouts for problems with low success rates: counts in proportion to 1 / sqrt(p + eps).

    Attributes
    ----------
    n : int
        Rollouts a problem on average.
    low, up : int
        Bounds for one problem.
    eps : float
        Added to the success rate.
    a, b, decay : float
        The success rate is (correct + a) / (tries + a + b), where both counts are multiplied by
        `decay` before each visit of the problem.

    References
    ----------
    Reinforce-Ada (arXiv 2510.04996), the variant "Est". Confidence is low in the constants: the
    paper prints none of them but n, and the released code has no such variant. So eps, a, b, decay
    and the bounds are our choices.
    """

    eps: PositiveOrZero = 0.01
    a: Positive = 0.5
    b: Positive = 0.5
    decay: float = 0.85

    # The numbers of a problem are the bare decayed counts, to which `_weights` adds a and b.
    prior = (0.0, 0.0)
    towards = "zero"

    def _weights(self, ids: Sequence[str]) -> np.ndarray:
        counts = self.posteriors.of(ids)
        p = (counts[:, 0] + self.a) / (counts.sum(axis=1) + self.a + self.b)
        return 1 / np.sqrt(p + self.eps)


@dataclass(frozen=True)
class InverseRootWeighted(Slot):
    """(r - mean) / sqrt(mean + eps): the advantage that goes with `allocators.InverseRoot`.

    The mean is a success rate; a mean below 0, of rewards with penalties, counts as 0.

    References
    ----------
    Reinforce-Ada (arXiv 2510.04996), the variant "Est". Confidence is low in the constant: eps is
    not printed, and the released code has no such variant.
    """

    eps: Positive = 0.01

    reads_verdict = False
    compares_rollouts = True

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        rewards, inverse, sizes = grouped_rewards(rollouts.reward, rollouts.group)
        mean = group_means(rewards, inverse, sizes)[inverse]
        return (rewards - mean) / np.sqrt(np.maximum(mean, 0.0) + self.eps)


@method(paper="Reinforce-Ada (arXiv 2510.04996)", decides="allocator")
def reinforce_ada_est(n: int = 8, eps: float = 0.01) -> Method:
    """Reinforce-Ada Est: counts and advantages in proportion to 1 / sqrt(p + eps).

    n=8 is the paper's; eps and the other settings of `InverseRoot` are not printed.

    References
    ----------
    Reinforce-Ada (arXiv 2510.04996), the estimation variant. Confidence is low in the constants:
    the formulas were seen, but neither its constants nor any code.
    """
    return Method(
        "reinforce_ada_est",
        allocator=InverseRoot(n, eps=eps),
        advantage=InverseRootWeighted(eps),
    )
