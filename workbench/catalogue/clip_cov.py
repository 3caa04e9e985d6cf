r"""Tokens of high covariance carry no gradient.

Clip-Cov (arXiv [2505.22617](https://arxiv.org/abs/2505.22617)). The entropy of a policy falls most
by tokens whose advantage and log-probability are both above their means, or both below. Their
covariance is

$$\text{cov}_t = (A_t - \bar A)\,(\log \pi_t - \overline{\log \pi}).$$

Some of the tokens with a covariance between 1 and 5 are drawn at random, and their loss is set to
zero. Ratios are bounded to $[0, 2]$, as in the authors' scripts, so that the usual clip seldom
matters. *Released code.*
"""

from workbench.methods import Method, Objective, Uniform, method


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
