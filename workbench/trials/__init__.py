"""Many runs: grids of them, and how they are worked through."""

from workbench.trials.runner import sweep

__all__ = ["sweep"]
