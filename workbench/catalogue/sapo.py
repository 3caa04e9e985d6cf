"""SAPO: a smooth gate on the ratio in place of the clip, narrower for negative advantages."""

from __future__ import annotations

from workbench.methods import Method, method
from workbench.objectives import Objective
from workbench.rules.allocators import Uniform


@method(paper="SAPO (arXiv 2511.20347)", decides="objective")
def sapo(n: int = 8, temperatures: tuple[float, float] = (1.0, 1.05)) -> Method:
    """SAPO: a smooth gate on the ratio in place of the clip, narrower for negative advantages.

    References
    ----------
    SAPO (arXiv 2511.20347): temperatures 1 and 1.05, the mean over rollouts of token means.
    """
    objective = Objective(surrogate="sapo", temperatures=temperatures, loss_aggregation="rollout")
    return Method("sapo", allocator=Uniform(n), objective=objective)
