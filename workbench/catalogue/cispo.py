"""CISPO: the bounded ratio is a weight without gradient, so that no token is lost."""

from __future__ import annotations

from workbench.methods import Method, method
from workbench.objectives import Objective
from workbench.rules.allocators import Uniform


@method(paper="MiniMax-M1 (arXiv 2506.13585)", decides="objective")
def cispo(n: int = 8, clip: tuple[float, float] = (1.0, 4.0)) -> Method:
    """CISPO: the bounded ratio is a weight without gradient, so that no token is lost.

    Parameters
    ----------
    n : int
    clip : (low, high)
        The paper has no lower bound in effect and does not print the upper one. (1.0, 4.0) bounds
        the weight to [0, 5], where 5 is TRL's recommendation; verl has (0.2, 0.2).

    References
    ----------
    MiniMax-M1 (arXiv 2506.13585); the bound of 5 after ScaleRL (arXiv 2510.13786).
    """
    objective = Objective(clip=clip, surrogate="cispo")
    return Method("cispo", allocator=Uniform(n), objective=objective)
