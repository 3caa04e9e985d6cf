r"""Problems and rollouts by the deviation of outcomes.

CurES (arXiv [2510.01037](https://arxiv.org/abs/2510.01037)). A problem is drawn with a weight that
grows with the deviation of its outcomes,

$$w \propto \exp\left(\sqrt{\hat p\,(1 - \hat p)}\,/\,\tau\right), \qquad n_i = N\,
\frac{\sigma_i}{\sum_j \sigma_j},$$

and the round's $N$ rollouts are split in proportion to the deviations $\sigma_i$. The paper does
not print $\tau$. The released code has another weight, which is nearly the same for all problems;
`form="code"` chooses it. *Released code; it differs from the text.*
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from workbench.methods import Method, method
from workbench.rules.allocators import InProportion
from workbench.rules.curricula import ByPosteriors, draw_by_weight, rng_of
from workbench.slots import Context, Pool, Problems
from workbench.utils.bounds import Positive, choice


@dataclass
class Cures(ByPosteriors):
    """Draws problems with weights that grow with the deviation of their outcomes.

    Attributes
    ----------
    temperature : float
        tau in the weight exp(sqrt(p (1 - p)) / tau), where p is the posterior mean.
    form : {"paper", "code"}
        The weight of the paper, or of the released code, exp(0.01 sqrt(p (1 - p)) / (c + 1)) with c
        the number of correct rollouts so far, which is nearly the same for all problems.
    restart : int, optional
        Rounds after which all estimates start afresh, as in each outer round of the paper; None for
        never.

    References
    ----------
    CurES (arXiv 2510.01037). The paper writes tau = alpha / sqrt(2 delta) and gives neither; .1 is
    our choice. The paper draws with replacement.
    """

    temperature: Positive = 0.1
    form: Annotated[str, choice("paper", "code")] = "paper"
    restart: int | None = None

    def _places(self, problems: Problems, n: int, pool: Pool, context: Context) -> np.ndarray:
        weights = self.weights([problem.id for problem in problems])
        return draw_by_weight(weights, n, rng_of(context))

    def weights(self, ids: Sequence[str]) -> np.ndarray:
        """What each problem is drawn in proportion to, (P,), the largest 1."""
        belief = self.posteriors.of(ids)
        p = belief[:, 0] / belief.sum(axis=1)
        deviation = np.sqrt(p * (1 - p))
        if self.form == "paper":
            exponent = deviation / self.temperature
        else:
            exponent = 0.01 * deviation / belief[:, 0]  # c + 1, since the prior is Beta(1, 1)
        # The common factor changes no proportion and keeps the exponential from overflowing.
        return np.exp(exponent - exponent.max())


@dataclass
class ByDeviation(InProportion):
    """Counts in proportion to the deviation of a problem's outcomes, sqrt(p (1 - p)).

    That is the allocation of CurES when right and wrong responses have gradients of the same mean
    and size; p is the mean of a Beta(1, 1) posterior over all earlier rollouts.

    Attributes
    ----------
    n : int
        Rollouts a problem on average.
    low, up : int
        Bounds for one problem.
    restart : int, optional
        Rounds after which all estimates start afresh; None for never.

    References
    ----------
    CurES (arXiv 2510.01037). The released code weighs by gradient norms of the embedding matrix.
    """

    up: int = 64
    restart: int | None = None

    def _weights(self, ids: Sequence[str]) -> np.ndarray:
        # Under the prior no mean is 0 or 1, so every problem keeps a positive weight.
        p = self.posteriors.means(ids)
        return np.sqrt(p * (1 - p))


@method(paper="CurES (arXiv 2510.01037)", decides="curriculum")
def cures(n: int = 8, temperature: float = 0.1, form: str = "paper") -> Method:
    """CurES: problems, and rollouts for each, by the deviation of their outcomes.

    Parameters
    ----------
    n : int
        Rollouts a problem on average.
    temperature, form
        See `curricula.Cures`. The released code weighs problems by another formula than the paper.

    References
    ----------
    CurES (arXiv 2510.01037): 8 rollouts a problem. The paper does not print the temperature.
    """
    return Method(
        "cures",
        curriculum=Cures(temperature=temperature, form=form),
        allocator=ByDeviation(n),
    )
