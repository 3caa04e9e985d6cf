r"""Hard problems count more.

Asymmetric prompt weighting (arXiv [2602.11128](https://arxiv.org/abs/2602.11128)). The advantage
is

$$A = \omega(\hat p)\,(r - \hat p), \qquad \omega(\hat p) = 1/\hat p \;\text{ (linear)},$$

so a wrong rollout always has $-1$ and a right one counts more the rarer it is. The square-root
form is $\omega(\hat p) = 1/(\hat p \sqrt{1 - \hat p})$. *The text for the linear form; the other
is our reading.*
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.methods import Method, Uniform, method
from workbench.rules.advantages import OfFunction, binary_outcomes, divide, group_means
from workbench.utils.groups import grouped_rewards
from workbench.utils.validation import one_of


def asymmetric(rewards: Any, groups: Any, *, weighting: str = "linear") -> np.ndarray:
    """omega(p) (r - p), with p the mean reward of the group: problems of low success rate count
    more.

    Parameters
    ----------
    rewards : (R,) from 0 to 1
    groups : (R,) keys
    weighting : {"linear", "sqrt"}
        omega = 1 / p, so that a wrong response has -1, also where all are wrong; or
        1 / (p sqrt(1 - p)), whose groups with p = 0 or 1 have advantage zero.

    References
    ----------
    Asymmetric prompt weighting (arXiv 2602.11128): Linear-R and Sqrt-R. They were read from notes
    on the paper, not in it. Confidence in "linear" is medium. Confidence in "sqrt" is low, since
    its weight was inferred from the optimum that the paper states.

    Examples
    --------
    >>> asymmetric([1, 0, 0, 0], ["a", "a", "a", "a"])
    array([ 3., -1., -1., -1.])
    >>> asymmetric([0, 0], ["a", "a"])
    array([-1., -1.])
    """
    one_of("weighting", weighting, ("linear", "sqrt"))
    rewards, inverse, sizes = grouped_rewards(rewards, groups)
    rewards = binary_outcomes(rewards, (0.0, 1.0))
    p = group_means(rewards, inverse, sizes)[inverse]
    if weighting == "linear":
        # The limit for p -> 0 is -1 for a wrong response.
        return divide(rewards - p, p) - (p == 0)
    # At p = 0 and p = 1 the denominator is 0, and so is the result.
    return divide(rewards - p, p * np.sqrt(1 - p))


@dataclass(frozen=True)
class Asymmetric(OfFunction):
    """`asymmetric` as a slot value: problems of low success rate count more (arXiv 2602.11128).

    Confidence is medium for "linear" and low for "sqrt", see `asymmetric`.
    """

    weighting: str = "linear"

    function = staticmethod(asymmetric)


@method("asymmetric", paper="Heckel et al. (arXiv 2602.11128)", decides="advantage")
def asymmetric_method(n: int = 16, weighting: str = "linear") -> Method:
    """Asymmetric prompt weighting: problems of low success rate count more.

    References
    ----------
    Heckel et al. (arXiv 2602.11128): Linear-R and Sqrt-R, 16 rollouts. Confidence is medium for
    "linear" and low for "sqrt", since notes on the paper were read and not the paper. It leaves out
    groups without a right response for the first 50 or 100 steps; here they count from the start.
    """
    return Method("asymmetric", allocator=Uniform(n), advantage=Asymmetric(weighting))
