"""The papers as compositions: each method is five slots, a few lines."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from workbench.advantages import group_normalized
from workbench.allocators import Uniform
from workbench.describe import compose
from workbench.objectives import Objective
from workbench.selectors import All


@dataclass(frozen=True, repr=False)
class Method:
    """What a paper decides. Any value of a slot goes with any value of the others.

    allocator: how many rollouts for which problem; reuse: which old responses join (None: none); selector: which
    rollouts are trained on; advantage: function of rewards (R,) and groups (R,); objective: the loss.
    """

    name: str
    allocator: Any = field(default_factory=Uniform)
    reuse: Any = None
    selector: Any = field(default_factory=All)
    advantage: Callable = group_normalized
    objective: Objective = field(default_factory=Objective)

    def __repr__(self):
        slots = ", ".join(f"{f.name}={compose(getattr(self, f.name))}" for f in fields(self)[1:])
        return f"Method({self.name!r}, {slots})"

    def slots(self):
        """Name and value of every slot, in the order of a round."""
        return {f.name: getattr(self, f.name) for f in fields(self)[1:]}


def grpo(n=8, clip=(0.2, 0.28), **objective):
    """Group relative policy optimisation: n rollouts a problem, all trained on, advantages (r - mean) / std.

    Clip 0.2 / 0.28 and no KL term as in PODS, AR3PO and Knapsack RL; the mean over all tokens of the step (DAPO).
    The original token-then-rollout mean is `grpo(mean="rollout")`, the penalty of AERO eq. 2 `grpo(kl=...)`.
    """
    return Method("grpo", Uniform(n), objective=Objective(clip=clip, **objective))


def gspo(n=8, clip=(3e-4, 4e-4)):
    """Group sequence policy optimisation: the ratio is that of whole responses (CBS appendix A, eq. 18-19).

    The sequence ratio moves far less than a token's, hence the narrow clip range of the GSPO paper.
    """
    return Method("gspo", Uniform(n), objective=Objective(clip=clip, ratio="sequence", mean="rollout"))


def dr_grpo(n=8, clip=(0.2, 0.28), length=None):
    """GRPO without its two normalisations: no division by the deviation, a constant in place of the length."""
    return Method("dr_grpo", Uniform(n), advantage=partial(group_normalized, scale=False),
                  objective=Objective(clip=clip, mean="constant", length=length))
