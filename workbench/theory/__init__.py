"""The papers' theory, checked where the truth is known."""

from workbench.theory import bandits, gradients, theorems

__all__ = ["bandits", "gradients", "theorems"]
