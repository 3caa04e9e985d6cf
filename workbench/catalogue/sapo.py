r"""A smooth gate in place of the clip.

SAPO (arXiv [2511.20347](https://arxiv.org/abs/2511.20347)). With $\tau = 1$ for positive
advantages and 1.05 for the others, a token adds

$$A\, \frac{4}{\tau}\, \text{sigmoid}\big(\tau (\rho - 1)\big),$$

whose slope is $A$ where $\rho = 1$. On both sides of 1 the slope becomes smaller and smaller,
where that of the usual clip falls to zero at once. *Code of TRL.*
"""

from workbench.methods import Method, Objective, Uniform, method


@method(paper="SAPO (arXiv 2511.20347)", decides="objective")
def sapo(n: int = 8, temperatures: tuple[float, float] = (1.0, 1.05)) -> Method:
    """SAPO: a smooth gate on the ratio in place of the clip, narrower for negative advantages.

    References
    ----------
    SAPO (arXiv 2511.20347): temperatures 1 and 1.05, the mean over rollouts of token means.
    """
    objective = Objective(surrogate="sapo", temperatures=temperatures, loss_aggregation="rollout")
    return Method("sapo", allocator=Uniform(n), objective=objective)
