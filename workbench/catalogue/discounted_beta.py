r"""A baseline that remembers and forgets.

Discounted Beta-Bernoulli (arXiv [2603.18444](https://arxiv.org/abs/2603.18444)). Each problem
keeps two counts that decay towards zero and take in the current group *before* its advantages are
computed:

$$\alpha \leftarrow \lambda \alpha + c, \quad \beta \leftarrow \lambda \beta + n - c, \qquad A =
\frac{r - \hat p}{\sqrt{\alpha \beta}\,/\,(\alpha + \beta)}, \quad \hat p = \frac{\alpha}{\alpha +
\beta}.$$

Since the baseline $\hat p$ remembers earlier rounds, a group that is all wrong still has a small
gradient, and advantages do not sum to zero. *Text.*
"""

from dataclasses import dataclass

import numpy as np

from workbench.methods import Method, Uniform, method
from workbench.rules.advantages import divide
from workbench.rules.success_rates import RemembersPosteriors, outcomes
from workbench.slots import Context, Rollouts
from workbench.utils.bounds import Flag


@dataclass
class DiscountedBeta(RemembersPosteriors):
    """(r - p) / sqrt(p (1 - p)), with p from a Beta posterior that forgets and counts this round.

    The two numbers of a problem start at the prior Beta(1, 1). At each visit they are multiplied by
    `decay`, and then the group's right and wrong responses are added; p is their mean. A group all
    wrong is therefore no longer silent, and groups do not sum to zero. An old response that joined
    the round counts as the others do, and is forgotten after it.

    Attributes
    ----------
    decay : float
    scale : bool
        False leaves out the division.

    References
    ----------
    Discounted Beta-Bernoulli baseline (arXiv 2603.18444): decay .5 for a model of 1.7B, .75 for 8B.
    """

    decay: float = 0.5
    scale: Flag = True

    towards = "zero"

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        ids, correct, tries = outcomes(rollouts)
        _, problem_of_row = rollouts.problems()
        # The posteriors as they will be after this round, without storing them: advantages may be
        # asked for several times in a round, and only `feedback` may learn.
        belief = self.posteriors.after(ids, correct, tries)
        a, b = belief[problem_of_row].T
        if not self.scale:
            return rollouts.correct - a / (a + b)
        # The same as (r - p) / sqrt(p (1 - p)), but safe where p rounds to 0 or 1, as it does once
        # a problem has been all right or all wrong for some fifty visits.
        of_right = np.sqrt(divide(b, a))
        of_wrong = -np.sqrt(divide(a, b))
        return np.where(rollouts.correct, of_right, of_wrong)


@method(paper="Discounted Beta-Bernoulli (arXiv 2603.18444)", decides="advantage")
def discounted_beta(n: int = 8, decay: float = 0.5) -> Method:
    """A baseline from a Beta posterior of each problem that forgets and counts the current group.

    References
    ----------
    Discounted Beta-Bernoulli (arXiv 2603.18444): decay .5 at 1.7B, .75 at 8B.
    """
    baseline = DiscountedBeta(decay)
    return Method("discounted_beta", allocator=Uniform(n), advantage=baseline)
