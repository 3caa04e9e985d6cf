r"""No token loses its gradient.

CISPO (MiniMax-M1, arXiv [2506.13585](https://arxiv.org/abs/2506.13585)). With the usual clip a
token whose ratio has left the range has no gradient at all. Here the bounded ratio is only a
weight, and the gradient goes through the log-probability:

$$\text{sg}\big(\min(\rho,\, 5)\big)\, A \log \pi.$$

The paper does not print its upper bound; 5 is a later recommendation. *Code of TRL and verl; they
differ in the bound.*
"""

from workbench.methods import Method, Objective, Uniform, method


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
