r"""Each part of the reward on its own scale.

GDPO (arXiv [2601.05242](https://arxiv.org/abs/2601.05242)). Where a reward has several parts $r_k$
with weights $w_k$, each part is normalised in its group before they are summed, and the sum is
divided by its deviation in the batch,

$$s = \sum_k w_k\, \frac{r_k - \bar r_k}{\sigma_k}, \qquad A = \frac{s}{\sigma_{\text{batch}}(s)}.$$

If the parts were summed before they are normalised, a group with the sums 0 and 1 and a group with
the sums 0 and 2 would get the same advantages. Here the second group gets larger ones. Our default
parts are correctness and the penalty on overlong responses. *Code of TRL; in that of verl the
deviation in the last step is over tokens and not over rollouts.*
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from workbench.methods import Correct, Method, Overlong, Uniform, method
from workbench.rules.advantages import batch_normalized, group_normalized
from workbench.slots import Context, Rollouts, Slot
from workbench.utils.bounds import PositiveOrZero, of_kind


def parts_normalized(
    parts: Any, groups: Any, *, weights: Any = None, eps: float = 0.0
) -> np.ndarray:
    """Every part of the reward normalised in its group, then summed, then divided by one deviation.

    So a part that varies little counts as much as one that varies widely, which it does not where
    the sum of the parts is normalised.

    Parameters
    ----------
    parts : (R, K) finite numbers
        Of each rollout what each part of its reward gave.
    groups : (R,) keys
    weights : (K,), optional
        Of the normalised parts; None for 1 each.
    eps : float
        Added to every deviation.

    Returns
    -------
    advantages : (R,) float64
        With s the sum of the normalised parts, s over its sample deviation in the batch. The sums
        of a group have mean zero. Zero where every part of a group is uniform.

    References
    ----------
    GDPO (arXiv 2601.05242), as TRL has it: sample deviations, and every rollout of the batch counts
    alike. In verl the batch deviation counts tokens.

    Examples
    --------
    >>> parts_normalized([[1, 1], [0, 1], [0, 0], [0, 0]], ["a"] * 4).round(3)
    array([ 1.332,  0.206, -0.769, -0.769])
    """
    parts = np.asarray(parts, dtype=np.float64)
    weights = np.asarray(np.ones(parts.shape[1:]) if weights is None else weights, dtype=np.float64)
    if parts.ndim != 2 or weights.shape != parts.shape[1:]:
        raise ValueError(f"parts {parts.shape} and weights {weights.shape}: (R, K) and (K,) needed")
    normalised = [group_normalized(part, groups, ddof=1, eps=eps) for part in parts.T]
    weighted = weights[:, None] * normalised
    sums = np.sum(weighted, axis=0)
    # Parts that are opposites of each other leave a rounding error, which the deviation of a batch
    # without anything else would make as large as a signal.
    is_rounding = np.abs(sums) <= 1e-12 * np.sum(np.abs(weighted), axis=0)
    sums[is_rounding] = 0.0
    return batch_normalized(sums, groups, baseline="group", ddof=1, eps=eps)


Weights = Annotated[Mapping[str, float], of_kind(Mapping, "{'correct': 1.0, 'overlong': 0.5}")]


@dataclass(frozen=True)
class PartsNormalized(Slot):
    """`parts_normalized` as a slot value: the advantage of GDPO.

    Attributes
    ----------
    weights : dict
        Part of the reward -> its weight; the method's reward must have the same.
    eps : float
    """

    weights: Weights = field(default_factory=lambda: {"correct": 1.0})
    eps: PositiveOrZero = 0.0

    reads_verdict = False
    compares_rollouts = True

    @property
    def part_weights(self) -> Mapping[str, float]:  # type: ignore[override]
        """Its `weights`."""
        return self.weights

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        # A single part has no column of its own.
        parts = [rollouts.columns.get(f"reward_{name}", rollouts.reward) for name in self.weights]
        weights = list(self.weights.values())
        return parts_normalized(
            np.stack(parts, axis=1), rollouts.group, weights=weights, eps=self.eps
        )


@method(paper="GDPO (arXiv 2601.05242)", decides="advantage")
def gdpo(n: int = 8, reward: tuple = (Correct(), Overlong())) -> Method:
    """GDPO: each part of the reward is normalised in its group before the parts are summed.

    Parameters
    ----------
    n : int
    reward : tuple of slots.Reward
        Its parts, whose weights are those of the normalised parts. A trainer's own reward functions
        are summed to one part, `Correct()`.

    References
    ----------
    GDPO (arXiv 2601.05242), read in the code of TRL and verl; see `advantages.parts_normalized`.
    The parts and n are our choice.
    """
    # First with another advantage, so that the parts are checked before their weights are read.
    method = Method("gdpo", allocator=Uniform(n), reward=reward)
    weights = {part.name: part.weight for part in reward}
    return method.but(advantage=PartsNormalized(weights))
