r"""An unbiased gradient of pass@k.

PKPO (arXiv [2505.15201](https://arxiv.org/abs/2505.15201)). It trains the reward of the best of
$k$ rollouts, and its advantages give an unbiased estimate of that gradient. Rollout $i$ has

$$s_i = \binom{n}{k}^{-1} \sum_{I \ni i} \Big( \max_{j \in I} r_j - \max_{j \in I \setminus i} r_j
\Big),$$

a sum over all sets $I$ of $k$ rollouts that contain $i$. Each term says by how much rollout $i$
raises the best reward of the set. *Text and a copy of the code.*
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.methods import Method, Uniform, method
from workbench.rules.advantages import OfFunction
from workbench.utils.groups import grouped_rewards, is_mixed
from workbench.utils.validation import one_of, whole_number


def pkpo(rewards: Any, groups: Any, *, k: int = 4, baseline: str = "minus_one") -> np.ndarray:
    """PKPO: rewards mapped so that their gradient is an unbiased one of the best of k responses.

    Parameters
    ----------
    rewards : (R,) finite numbers
    groups : (R,) keys
    k : int
        Groups smaller than k have advantage zero.
    baseline : {"minus_one", "none"}
        "minus_one": of each k-subset the maximum without the response itself is taken off (equation
        33), for k = 1 the group's mean. "none": the mapped reward itself.

    References
    ----------
    PKPO (arXiv 2505.15201), section 3 and equation 33.

    Examples
    --------
    >>> pkpo([0, 0, 0, 1], ["a"] * 4, k=2, baseline="none").round(3)
    array([0.167, 0.167, 0.167, 0.5  ])
    >>> pkpo([0, 1, 3, 7], ["a"] * 4, k=2).round(3)
    array([0.   , 0.167, 0.833, 2.833])
    """
    rewards, inverse, sizes = grouped_rewards(rewards, groups)
    whole_number("k", k, 1)
    one_of("baseline", baseline, ("minus_one", "none"))
    advantages = np.zeros(len(rewards))
    # Group by group, the rewards of each ascending; then all groups of one size at once.
    order = np.lexsort((rewards, inverse))
    starts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes >= k]):
        of_size = np.flatnonzero(sizes == size)
        rows = order[starts[of_size, None] + np.arange(size)]
        advantages[rows] = _best_of_k(rewards[rows], k, baseline)
    if baseline == "none":
        return advantages
    # In a group all alike both maxima are the same number, but for rounding errors.
    return np.where(is_mixed(rewards, inverse, len(sizes))[inverse], advantages, 0.0)


def _best_of_k(ascending: np.ndarray, k: int, baseline: str) -> np.ndarray:
    """PKPO's values for the rewards of groups of one size, each ascending, (G, n)."""
    groups, n = ascending.shape
    if k == 1:
        mapped = ascending / n
        return mapped - mapped.mean(axis=1, keepdims=True) if baseline == "minus_one" else mapped
    # A k-subset whose maximum is at position j (from 0) holds k - 1 of the j lower ones.
    total = math.comb(n, k)
    position = np.arange(n)
    as_maximum = np.array([math.comb(j, k - 1) for j in position]) / total
    with_another = np.array([math.comb(j - 1, k - 2) if j else 0 for j in position]) / total
    # Position i is in subsets of maximum j > i together with k - 2 of the j - 1 others below j.
    from_behind = np.cumsum((with_another * ascending)[:, ::-1], axis=1)[:, ::-1]
    higher = np.concatenate([from_behind[:, 1:], np.zeros((groups, 1))], axis=1)
    mapped = as_maximum * ascending + higher
    if baseline == "none":
        return mapped
    # Without position i the maximum of its subsets is: that of the other k - 1 where i was the
    # highest, and the same as before everywhere else.
    below = np.array([math.comb(j, k - 2) for j in position]) / total
    without = np.zeros_like(ascending)
    for i in position:
        without[:, i] = (below[:i] * ascending[:, :i]).sum(axis=1) + higher[:, i]
    return mapped - without


@dataclass(frozen=True)
class Pkpo(OfFunction):
    """`pkpo` as a slot value."""

    k: int = 4
    baseline: str = "minus_one"

    function = staticmethod(pkpo)


@method("pkpo", paper="PKPO (arXiv 2505.15201)", decides="advantage")
def pkpo_method(n: int = 16, k: int = 4, baseline: str = "minus_one") -> Method:
    """PKPO: an unbiased gradient of the best of k responses.

    References
    ----------
    PKPO (arXiv 2505.15201): 16 rollouts; the baseline "leave-one-out minus one" is its choice. k is
    ours.
    """
    whole_number("k", k, 1, n)  # a smaller group has no set of k
    return Method("pkpo", allocator=Uniform(n), advantage=Pkpo(k, baseline))
