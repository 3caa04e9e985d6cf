r"""The groups whose rewards differ.

RAGEN-2 (arXiv [2604.06268](https://arxiv.org/abs/2604.06268)). Groups are sorted by the spread
$s_g$ of their rewards, the largest first. As many groups are kept, from the first one on, as are
needed for a share $\rho$ of all spread,

$$\sum_{g \in \text{kept}} s_g \ge \rho \sum_g s_g.$$

The spread is the variance in the text and the deviation in the released code. *Released code.*
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from workbench.methods import Method, Uniform, method
from workbench.slots import Context, Rollouts, Selection, Slot
from workbench.utils.bounds import Flag, ShareAboveZero, choice
from workbench.utils.groups import floored, group_numbers, merge_same, sample_variances


@dataclass(frozen=True)
class GroupFilter(Slot):
    """Keeps whole groups: those whose rewards differ most.

    Attributes
    ----------
    mode : {"top_p", "softmax", "top_k", "min_p"}
        "top_p" keeps the shortest list of groups, best first, whose scores add up to `value` of the
        sum of all; "softmax" does so with the softmax of the scores; "top_k" keeps `value` of all
        groups, at least one; "min_p" those with at least `value` times the best score.
    value : float
    score : {"std", "variance"}
        Of the group's rewards, as samples: the released code has "std", the text "variance".
    zeros : bool
        Whether groups of score 0 take part.

    References
    ----------
    RAGEN-2 (arXiv 2604.06268). The main table was made with softmax .9 and zeros included; the
    authors' guide recommends top_p .9 without them, which is the default here.
    """

    mode: Annotated[str, choice("top_p", "softmax", "top_k", "min_p")] = "top_p"
    value: ShareAboveZero = 0.9
    score: Annotated[str, choice("std", "variance")] = "std"
    zeros: Flag = False

    reads_verdict = False

    def select(self, rollouts: Rollouts, context: Context) -> Selection:
        """All rows of the kept groups."""
        _, groups, sizes = group_numbers(rollouts.group)
        kept = self.kept(sample_variances(rollouts.reward, groups, sizes))
        return Selection(np.flatnonzero(kept[groups]))

    def kept(self, variances: np.ndarray) -> np.ndarray:
        """Which groups are kept, (G,) bool, by the sample variances of their rewards (G,)."""
        scores = np.sqrt(variances) if self.score == "std" else variances
        # The same rewards in another order have another rounding.
        scores = merge_same(scores, np.zeros(len(scores)))
        allowed = np.flatnonzero(self.zeros | (scores > 0))
        # Best first; from here on every mode only decides how long a prefix of `order` is kept.
        order = allowed[np.argsort(-scores[allowed], kind="stable")]
        kept = np.zeros(len(scores), dtype=bool)
        if not len(order):
            return kept
        ranked = scores[order]
        if self.mode == "top_k":
            count = max(1, floored(self.value * len(scores)))
        elif self.mode == "min_p":
            count = int(np.count_nonzero(ranked >= self.value * ranked[0] * (1 - 1e-9)))
        else:
            weights = np.exp(ranked - ranked[0]) if self.mode == "softmax" else ranked
            # No share of a sum can be taken where all scores are 0.
            if weights[0] == 0:
                return kept
            shares = np.cumsum(weights / weights.sum())
            # The small number makes up for the rounding of the sum.
            count = int(np.searchsorted(shares, self.value - 1e-9)) + 1
        kept[order[:count]] = True
        return kept


@method(paper="RAGEN-2 (arXiv 2604.06268)", decides="selector")
def ragen(n: int = 16, selector: GroupFilter | None = None) -> Method:
    """RAGEN-2's filter: keep the groups whose rewards differ most.

    Parameters
    ----------
    n : int
    selector : GroupFilter, optional
        None: with the settings of the paper.

    References
    ----------
    RAGEN-2 (arXiv 2604.06268): 16 rollouts a problem.
    """
    return Method("ragen", allocator=Uniform(n), selector=selector or GroupFilter())
