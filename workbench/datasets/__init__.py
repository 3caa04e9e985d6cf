"""Public data sets as pools of problems."""

from workbench.datasets import hub

__all__ = ["hub"]
