"""GMPO: the geometric mean of a response's bounded ratios in place of their mean."""

from __future__ import annotations

from workbench.methods import Method, method
from workbench.objectives import Objective
from workbench.rules.allocators import Uniform


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
