r"""Tokens of high covariance pay for moving.

KL-Cov (same paper). No ratio is clipped. The tokens with the highest covariances add

$$\rho A - \beta\, \lvert \log \rho \rvert$$

to the objective, and all others $\rho A$. *Released code; the constants of verl are not the
authors'.*
"""

from workbench.methods import Method, Objective, Uniform, method


@method(paper="Cui et al. (arXiv 2505.22617)", decides="objective")
def kl_cov(n: int = 8, share: float = 2e-3, weight: float = 1.0) -> Method:
    """KL-Cov: the tokens of the highest covariances pay for moving, and no ratio is clipped.

    Parameters
    ----------
    n : int
    share : float
        Of the tokens of a step; at least one token.
    weight : float
        Of the penalty |log ratio|.

    References
    ----------
    Cui et al. (arXiv 2505.22617): share and weight of the authors' code. verl has 2e-4 and .1.
    """
    objective = Objective(surrogate="kl_cov", covariance_share=share, covariance_kl=weight)
    return Method("kl_cov", allocator=Uniform(n), objective=objective)
