r"""A few rollouts first, and then as many solved problems as possible.

HORA (arXiv [2605.07114](https://arxiv.org/abs/2605.07114)). A few rollouts of each problem, the
probe, give a belief $\text{Beta}(a, b)$ about its success rate. The value of the $l$-th further
rollout of a problem is the chance that it is the first right one among the further ones,

$$\mathbb{E}\big[p\,(1 - p)^{l - 1}\big] = \frac{a}{a + b} \prod_{j=0}^{l-2} \frac{b + j}{a + b +
1 + j},$$

which falls with $l$. The best split of a budget is therefore found by giving one rollout after
another to the problem where the next one has the largest value. *Text; the size of the probe is
our choice.*
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.methods import Method, method
from workbench.rules.allocators import GroupSize, Requests, Split
from workbench.rules.budgets import greedily
from workbench.rules.success_rates import tally
from workbench.slots import Context, Problems
from workbench.utils.validation import whole_number


def by_hit_utility(a: Any, b: Any, total: int, up: int) -> np.ndarray:
    """The split of `total` rollouts with the greatest expected number of problems hit at least
    once.

    Parameters
    ----------
    a, b : (P,)
        Parameters of the Beta belief about each problem's success rate.
    total : int
        At most P * up.
    up : int
        Bound for one problem.

    Returns
    -------
    counts : (P,) int64

    Notes
    -----
    The l-th rollout of a problem gains E[p (1 - p)^(l - 1)], which falls with l, so giving each
    rollout to the greatest gain is optimal. Ties go to the problem with fewer rollouts, then to the
    lower index.

    References
    ----------
    HORA (arXiv 2605.07114).

    Examples
    --------
    >>> by_hit_utility([1, 3, 5], [5, 3, 1], total=6, up=8)
    array([2, 2, 2])
    """
    a = np.asarray(a, dtype=np.float64)[:, None]
    b = np.asarray(b, dtype=np.float64)[:, None]
    whole_number("total", total, 0, len(a) * up)
    # E[p (1 - p)^j] under Beta(a, b) as a product, which needs no Beta functions.
    given = np.arange(up - 1)
    factors = np.hstack([a / (a + b), (b + given) / (a + b + 1 + given)])
    return greedily(np.cumprod(factors, axis=1), total)


@dataclass(frozen=True)
class HitUtility(Split):
    """A probe of every problem, then the split with the greatest expected number of problems
    solved.

    With c of the `probe` rollouts right, the success rate is believed to be Beta(1 + c, 1 + probe -
    c). The value of m further rollouts is the chance of at least one further correct one. The gain
    of each falls with their number, so giving the next rollout to the greatest gain is optimal;
    ties go to the problem with fewer rollouts, and then to the lower index.

    Attributes
    ----------
    n : int
        Rollouts a problem on average, the probe included.
    probe : int
    up : int
        Bound for one problem.

    References
    ----------
    HORA (arXiv 2605.07114). Confidence is medium: the gains follow from the definition of the
    utility, but no code was published, and probe size, bound and tie rule are our choices.
    """

    n: int = 8
    probe: GroupSize = 4
    up: int = 32

    needs = frozenset({"resampling"})
    sampled = Split.sampled

    @property
    def _least(self) -> int:
        """The probe."""
        return self.probe

    def allocate(self, problems: Problems, context: Context) -> Requests:
        """A request for the probes, and one for the rest."""
        ids = [problem.id for problem in problems]
        rollouts = yield np.full(len(ids), self.probe, dtype=np.int64)
        correct, tries = tally(ids, rollouts)
        budget = (self.n - self.probe) * len(ids)
        # The uniform prior Beta(1, 1), updated by the outcomes of the probe.
        counts = by_hit_utility(1.0 + correct, 1.0 + tries - correct, budget, self.up - self.probe)
        if counts.any():
            yield counts


@method(paper="HORA (arXiv 2605.07114)", decides="allocator")
def hora(n: int = 8, probe: int = 4) -> Method:
    """HORA: a probe of every problem, then the split that solves most problems in expectation.

    Parameters
    ----------
    n : int
        Rollouts a problem on average, the probe included.
    probe : int

    References
    ----------
    HORA (arXiv 2605.07114). Confidence is medium: no code was published, and both sizes are our
    choice.
    """
    return Method("hora", allocator=HitUtility(n, probe))
