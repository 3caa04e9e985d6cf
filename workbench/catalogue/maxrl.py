r"""Divided by the mean.

MaxRL (arXiv [2602.02710](https://arxiv.org/abs/2602.02710)). The advantage is

$$A = \frac{r - \bar r}{\bar r},$$

and zero where all responses are wrong. The gradient of $\log p$ is an infinite sum, and the
expected update over groups of $n$ is made of its first $n - 1$ terms:

$$\sum_{j=0}^{n-2} (1 - p)^j\, \nabla p.$$

With `all_wrong="minus_one"` the responses of such a group have the advantage $-1$, and the sum has
one more term. *Released code and that of prime-rl.*
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.methods import Method, Objective, Uniform, method
from workbench.rules.advantages import OfFunction, binary_outcomes, divide, group_means
from workbench.utils.groups import grouped_rewards
from workbench.utils.validation import one_of


def maxrl(rewards: Any, groups: Any, *, all_wrong: str = "zero") -> np.ndarray:
    """(r - mean) / mean within each group: the advantage of MaxRL.

    Its expectation is the gradient of log p, where p is the chance of a right response, cut off
    after T terms: the sum of (1 - p)^j for j < T, times the gradient of p.

    Parameters
    ----------
    rewards : (R,) from 0 to 1
    groups : (R,) keys
    all_wrong : {"zero", "minus_one"}
        The advantage of responses in a group that is all wrong. With groups of n responses, "zero"
        makes T = n - 1, as in the paper, and "minus_one" makes T = n.

    Returns
    -------
    advantages : (R,) float64
        Zero where all rewards of a group are equal and above 0.

    Notes
    -----
    The released code divides by the mean plus 1e-6. A group of one right response has zero here and
    in prime-rl.

    References
    ----------
    MaxRL (arXiv 2602.02710), its released code, and the implementation of prime-rl. "minus_one" is
    `asymmetric` with the weighting "linear".

    Examples
    --------
    >>> maxrl([1, 0, 0, 0], ["a"] * 4)
    array([ 3., -1., -1., -1.])
    >>> maxrl([0, 0], ["a", "a"])
    array([0., 0.])
    """
    one_of("all_wrong", all_wrong, ("zero", "minus_one"))
    rewards, inverse, sizes = grouped_rewards(rewards, groups)
    rewards = binary_outcomes(rewards, (0.0, 1.0))
    mean = group_means(rewards, inverse, sizes)[inverse]
    advantages = divide(rewards - mean, mean)
    return advantages - (mean == 0) if all_wrong == "minus_one" else advantages


@dataclass(frozen=True)
class MaxRL(OfFunction):
    """`maxrl` as a slot value: problems count the more, the rarer their right responses are."""

    all_wrong: str = "zero"

    function = staticmethod(maxrl)

    @property
    def compares_rollouts(self) -> bool:  # type: ignore[override]
        """Where a group that is all wrong has no advantage."""
        return self.all_wrong == "zero"


@method("maxrl", paper="MaxRL (arXiv 2602.02710)", decides="advantage")
def maxrl_method(
    n: int = 16, clip: tuple[float, float] = (0.2, 0.2), all_wrong: str = "zero"
) -> Method:
    """MaxRL: the gradient of the log-likelihood of a right response, by dividing by the mean.

    Parameters
    ----------
    n : int
    clip : (low, high)
    all_wrong : {"zero", "minus_one"}
        See `advantages.maxrl`.

    References
    ----------
    MaxRL (arXiv 2602.02710) and its released code: 16 rollouts, clip 0.2 on both sides, no KL term
    (the experiments with Qwen3).
    """
    advantage = MaxRL(all_wrong)
    return Method(
        "maxrl", allocator=Uniform(n), advantage=advantage, objective=Objective(clip=clip)
    )
