"""A method in a package of its own: GRPO on the shortest responses of each problem.

Copy the folder, rename it, and change what it decides. Once the package is installed the method has
a name, as those of `workbench.methods` have:

    pip install ./method_package
    python -m workbench run shortest --set n=8 --set m=4 --out runs/shortest
"""

from dataclasses import dataclass

import numpy as np

from workbench.methods import Method, method
from workbench.rules.allocators import Uniform
from workbench.slots import PerProblem, Selection, Slot


@dataclass(frozen=True)
class Shortest(Slot):
    """Keeps the m shortest responses of each problem."""

    m: int = 4

    # It needs no verdict. Without this line a trainer would ask for one.
    reads_verdict = False

    def __post_init__(self):
        if self.m < 2:
            raise ValueError(f"m={self.m}: at least 2 are needed, which are compared")

    def trained(self, sampled):
        """m of every problem."""
        return PerProblem(min(self.m, sampled.n), sampled.of)

    def select(self, rollouts, context):
        """The shortest rows of each problem; ties go to the lower row."""
        kept = []
        for problem in np.unique(rollouts.problem):
            rows = np.flatnonzero(rollouts.problem == problem)
            kept += rows[np.argsort(rollouts.lengths[rows], kind="stable")[: self.m]].tolist()
        return Selection(np.array(kept))


@method(paper="an example", decides="selector")
def shortest(n: int = 8, m: int = 4) -> Method:
    """The method: n rollouts a problem, of which the m shortest are trained on."""
    return Method("shortest", allocator=Uniform(n), selector=Shortest(m))
