r"""The least variance of gradients.

VIP (arXiv [2602.01601](https://arxiv.org/abs/2602.01601)). If an advantage compares a rollout with
the mean of the others of its group (leave-one-out), the variance of a problem's gradient is
proportional to $p(1-p)/(n-1)$. The sum over problems is least when

$$n_i = 1 + \sqrt{p_i\,(1 - p_i)\,/\,\lambda},$$

where $\lambda$ is chosen such that the numbers add up to the budget. Success rates are predicted
before the round. *Released code; its allocation differs from the text, and ours is that of the
text.*
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from workbench.methods import Method, method
from workbench.rules.advantages import GroupNormalized, LeaveOneOut
from workbench.rules.allocators import ByRates, OfRates
from workbench.rules.budgets import check_budget, checked_rates, greedily
from workbench.rules.success_rates import SuccessRates
from workbench.utils.bounds import choice
from workbench.utils.validation import one_of, whole_number


def by_variance(
    p: Any, total: int, *, low: int = 4, up: int = 32, estimator: str = "rloo"
) -> np.ndarray:
    """The split of `total` rollouts that minimises the summed variance of the problems' gradients.

    Parameters
    ----------
    p : (P,) success rates
        NaN, of a problem never tried, counts as 1/2, where outcomes vary most.
    total : int
        From P * low to P * up.
    low, up : int
        Bounds for one problem; low is at least 2 for "rloo" and 3 for "dr_grpo".
    estimator : {"rloo", "dr_grpo"}
        Variance in proportion to p (1 - p) / (n - 1), or to p (1 - p) (n - 1) / n^2.

    Returns
    -------
    counts : (P,) int64
        The best whole numbers: both variances are convex from `low` on, so giving each rollout
        where it lowers the variance most is optimal. Ties go to the problem with fewer rollouts,
        then to the lower index.

    References
    ----------
    VIP (arXiv 2602.01601), which rounds the solution in real numbers instead.

    Examples
    --------
    >>> by_variance([0.1, 0.5, 0.9, 0.5], total=32, low=3)
    array([ 6, 10,  6, 10])
    """
    p = np.nan_to_num(checked_rates(p), nan=0.5)
    one_of("estimator", estimator, ("rloo", "dr_grpo"))
    whole_number("low", low, 2 if estimator == "rloo" else 3)
    check_budget(p.size, total, low, up)
    outcome = (p * (1 - p))[:, None]
    n = np.arange(low, up + 1)
    variance = outcome / (n - 1) if estimator == "rloo" else outcome * (n - 1) / n**2
    return low + greedily(variance[:, :-1] - variance[:, 1:], total - low * p.size)


@dataclass
class LeastVariance(ByRates):
    """The counts that minimise the summed variance of the problems' gradients.

    Attributes
    ----------
    n : int
        Rollouts a problem on average.
    low, up : int
        Bounds for one problem. Probes of fresh rates are a part of its rollouts, so there are never
        fewer than these.
    estimator : {"rloo", "dr_grpo"}
        The variance of a problem is in proportion to p (1 - p) / (n - 1) with "rloo", and to
        p (1 - p) (n - 1) / n^2 with "dr_grpo", where low is at least 3.
    rates : SuccessRates
        Where success rates come from.

    References
    ----------
    VIP (arXiv 2602.01601); bounds 4 and 32 and n = 8 from its released code. The paper predicts
    rates by a Gaussian process over embeddings of the prompts; the default here is the posterior
    mean over earlier rollouts.
    """

    n: int = 8
    low: int = 4
    up: int = 32
    estimator: Annotated[str, choice("rloo", "dr_grpo")] = "rloo"
    rates: OfRates = field(default_factory=lambda: SuccessRates("beta"))

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("low", self.low, 2 if self.estimator == "rloo" else 3)

    def _counts(self, rates: np.ndarray, total: int) -> np.ndarray:
        return by_variance(rates, total, low=self._least, up=self.up, estimator=self.estimator)


@method(paper="VIP (arXiv 2602.01601)", decides="allocator")
def vip(n: int = 8, estimator: str = "rloo", rates: Any = None) -> Method:
    """VIP: the counts that minimise the summed variance of the problems' gradients.

    Parameters
    ----------
    n : int
    estimator : {"rloo", "dr_grpo"}
        The advantage, and the variance that is minimised.
    rates : SuccessRates, optional
        None: the posterior mean over earlier rollouts. The paper has a Gaussian process over
        embeddings of the prompts.

    References
    ----------
    VIP (arXiv 2602.01601), the allocation of the paper; the released code allocates differently.
    """
    # The default is stated in one place, the allocator.
    options = {} if rates is None else {"rates": rates}
    is_rloo = estimator == "rloo"
    return Method(
        "vip",
        allocator=LeastVariance(n, estimator=estimator, **options),
        advantage=LeaveOneOut() if is_rloo else GroupNormalized(scale=False),
    )
