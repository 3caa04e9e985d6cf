"""Clip-Cov: a few tokens drawn among those of high covariance carry no gradient."""

from __future__ import annotations

from workbench.methods import Method, method
from workbench.objectives import Objective
from workbench.rules.allocators import Uniform


@method(paper="Cui et al. (arXiv 2505.22617)", decides="objective")
def clip_cov(n: int = 8, share: float = 2e-4, clip: tuple[float, float] = (1.0, 1.0)) -> Method:
    """Clip-Cov: a few tokens drawn among those of high covariance carry no gradient.

    The covariance is that of a token's advantage and log-probability; it drives the fall of the
    entropy.

    Parameters
    ----------
    n : int
    share : float
        Of the tokens of a step; at least one token.
    clip : (low, high)
        Wide, as in the authors' scripts, so that the chosen tokens and not the ratios bound a step.

    References
    ----------
    Cui et al. (arXiv 2505.22617): a share of 2e-4, covariances from 1 to 5, and ratios between 0
    and 2 (scripts of the released code).
    """
    objective = Objective(surrogate="clip_cov", covariance_share=share, clip=clip)
    return Method("clip_cov", allocator=Uniform(n), objective=objective)
