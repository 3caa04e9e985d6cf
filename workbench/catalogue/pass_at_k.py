r"""The best of k.

Pass@k training (arXiv [2508.10751](https://arxiv.org/abs/2508.10751)). The reward of a set of $k$
rollouts is that of its best. Averaged over all sets, the mean and deviation are

$$\bar R = 1 - \binom{n - c}{k} \Big/ \binom{n}{k}, \qquad \sigma = \sqrt{\bar R\,(1 - \bar R)},$$

and the advantage of a right rollout is $(1 - \bar R)/\sigma$. A group with more than $n - k$ right
rollouts has no gradient, since every set of $k$ has a right one in it. *Released code.*
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.methods import Method, Uniform, method
from workbench.rules.advantages import binary_outcomes, divide
from workbench.slots import Context, Rollouts, Slot
from workbench.utils.bounds import Count
from workbench.utils.groups import grouped_rewards
from workbench.utils.validation import whole_number


def pass_at_k_normalized(rewards: Any, groups: Any, *, k: int = 4) -> np.ndarray:
    """The advantage of Pass@k training: that of the best of k responses, shared out exactly.

    Parameters
    ----------
    rewards : (R,) of 0 and 1
    groups : (R,) keys
    k : int

    Returns
    -------
    advantages : (R,) float64
        Each response has the mean, over all k-subsets of its group that hold it, of the subset's
        normalised reward. Zero where no response is right, or where every k-subset holds a right
        one. k = 1 is `group_normalized`.

    References
    ----------
    Pass@k training (arXiv 2508.10751), analytical form.

    Examples
    --------
    >>> pass_at_k_normalized([1, 0, 0, 0], ["a"] * 4, k=2).round(3)
    array([ 1.   , -0.333, -0.333, -0.333])
    """
    rewards, inverse, sizes = grouped_rewards(rewards, groups)
    whole_number("k", k, 1)
    rewards = binary_outcomes(rewards, (0.0, 1.0))
    other = (rewards != 0) & (rewards != 1)
    if other.any():
        raise ValueError(f"rewards: {rewards[other][0]} is neither 0 nor 1")
    right = np.bincount(inverse, rewards, len(sizes))
    # Mean and deviation of the reward of a random k-subset, which is 0 only if all k are wrong.
    mean = 1 - _choose_ratio(sizes - right, sizes, k)
    deviation = np.sqrt(mean * (1 - mean))
    # The same mean among the subsets that hold the response: 1 if it is right itself, otherwise it
    # takes a right one among the k - 1 others.
    of_right = divide(1 - mean, deviation)
    of_wrong = divide(1 - mean - _choose_ratio(sizes - right - 1, sizes - 1, k - 1), deviation)
    return np.where(rewards == 1, of_right[inverse], of_wrong[inverse])


@dataclass(frozen=True)
class PassAtK(Slot):
    """`pass_at_k_normalized` as a slot value; a response counts as right by the verifier."""

    k: Count = 4

    compares_rollouts = True

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        return pass_at_k_normalized(rollouts.correct, rollouts.group, k=self.k)


def _choose_ratio(m: np.ndarray, n: np.ndarray, k: int) -> np.ndarray:
    """C(m, k) / C(n, k) for arrays m <= n, 0 where m < k."""
    # The binomials themselves leave the range of floats long before their ratio does.
    ratio = np.ones(np.shape(n))
    for i in range(k):
        ratio = ratio * np.clip(m - i, 0, None) / np.maximum(n - i, 1)
    return ratio


@method(paper="Pass@k training (arXiv 2508.10751)", decides="advantage")
def pass_at_k(n: int = 8, k: int = 4) -> Method:
    """Pass@k training: the advantage of the best of k responses, shared out exactly.

    References
    ----------
    Pass@k training (arXiv 2508.10751), in its analytical form; n and k are our choice.
    """
    # With k = n there is one set of k, and nothing to compare it with.
    whole_number("k", k, 1, n - 1)
    return Method("pass_at_k", allocator=Uniform(n), advantage=PassAtK(k))
