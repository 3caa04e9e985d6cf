r"""Sample until both outcomes are there.

Reinforce-Ada, the sequential variant (arXiv [2510.04996](https://arxiv.org/abs/2510.04996)). A
problem gets up to four stages of eight rollouts. It gets no more once its right rollouts are half
of the number that is trained on, and its wrong ones the other half. Only that balanced group is
trained on, but the mean in the advantage is that of *all* rollouts of the problem,

$$A = r - \frac{c}{n},$$

so the advantages of the group do not sum to zero. *Released code.*
"""

from dataclasses import dataclass

import numpy as np

from workbench.methods import GroupNormalized, Method, method
from workbench.rules.allocators import GroupSize, Staged
from workbench.rules.selectors import first_of_each_kind
from workbench.slots import Context, PerProblem, Rollouts, Selection, Slot
from workbench.utils.groups import group_numbers
from workbench.utils.validation import one_of, whole_number


@dataclass(frozen=True)
class HalfRight(Slot):
    """Keeps the first n rollouts of each group that are half correct and half wrong.

    Where one kind is too rare, rows of the other kind fill up.

    Attributes
    ----------
    n : int
        Of an odd number the smaller half is correct.

    References
    ----------
    Reinforce-Ada (arXiv 2510.04996), released code: 4 rows in the order of sampling, in both of its
    variants, and advantages against the mean of all rollouts of the problem.
    """

    n: GroupSize = 4

    def trained(self, sampled: PerProblem) -> PerProblem:
        """n of every problem."""
        return sampled.limited(self.n)

    def select(self, rollouts: Rollouts, context: Context) -> Selection:
        """The first rows of each kind."""
        _, groups, sizes = group_numbers(rollouts.group)
        correct = rollouts.correct
        right = np.bincount(groups[correct], minlength=len(sizes))
        wrong = sizes - right
        # Half of each kind, then wrong ones for the missing right ones, then the other way round.
        keep_right = np.minimum(self.n // 2, right)
        keep_wrong = np.minimum(self.n - keep_right, wrong)
        keep_right = np.minimum(self.n - keep_wrong, right)
        order = np.arange(len(rollouts))
        return Selection(first_of_each_kind(order, groups, correct, keep_right, keep_wrong))


@method(paper="Reinforce-Ada (arXiv 2510.04996)", decides="allocator")
def reinforce_ada(mode: str = "balanced", stages: int = 4, k: int = 8, keep: int = 4) -> Method:
    """Reinforce-Ada: rollouts in stages until a problem has both outcomes, then a balanced few.

    Parameters
    ----------
    mode : {"balanced", "positive"}
        Sample until there are keep / 2 correct and as many wrong rollouts, or one correct one. Both
        then keep half and half.
    stages, k, keep : int
        4 stages of 8, and 4 rollouts kept (released code).

    Notes
    -----
    The advantage is r - p with p over all rollouts of the problem, as the released script has it;
    the factor 1 / p of the paper's third version is in neither of its algorithms.

    References
    ----------
    Reinforce-Ada (arXiv 2510.04996), the sequential variant.
    """
    one_of("mode", mode, ("balanced", "positive"))
    whole_number("keep", keep, 2)
    # Of an odd number the smaller half is right, as in `HalfRight`.
    right, wrong = (keep // 2, keep - keep // 2) if mode == "balanced" else (1, 0)
    return Method(
        "reinforce_ada",
        allocator=Staged(stages, k, right, wrong),
        selector=HalfRight(keep),
        advantage=GroupNormalized(scale=False),
    )
