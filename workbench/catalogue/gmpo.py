r"""The geometric mean of a response's ratios.

GMPO (arXiv [2507.20673](https://arxiv.org/abs/2507.20673)). A response $o$ adds

$$A \Big( \prod_t \hat\rho_t \Big)^{1 / \lvert o \rvert},$$

where $\hat\rho_t$ is the ratio, bounded by $e^{0.4}$ from above if $A$ is positive and by
$e^{-0.4}$ from below if it is negative. One extreme token moves a geometric mean less than an
arithmetic one. *Released code.*
"""

from workbench.methods import Method, Objective, Uniform, method


@method(paper="GMPO (arXiv 2507.20673)", decides="objective")
def gmpo(n: int = 8, clip: tuple[float, float] = (0.4, 0.4)) -> Method:
    """GMPO: the geometric mean of a response's bounded ratios in place of their mean.

    References
    ----------
    GMPO (arXiv 2507.20673): 8 rollouts, and ratios bounded to [exp(-0.4), exp(0.4)]. verl takes
    this bound from its clip ratio of .2.
    """
    objective = Objective(clip=clip, surrogate="gmpo", loss_aggregation="rollout")
    return Method("gmpo", allocator=Uniform(n), objective=objective)
