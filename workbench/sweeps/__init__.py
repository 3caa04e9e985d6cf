"""Many runs: grids of them, and how they are worked through."""

from workbench.sweeps.runner import sweep

__all__ = ["sweep"]
