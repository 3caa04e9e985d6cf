"""Figures, one function each: of runs (`curves`), of costs (`cost`) and of tables (`tables`), all
in one house style (`style`).
"""

from workbench.plots.cost import prices
from workbench.plots.curves import (
    accuracy_by_level,
    by_level,
    learning_curve,
    overview,
    sampled_and_greedy,
    watch,
    zero_gradient,
)
from workbench.plots.style import heading, save, style
from workbench.plots.tables import differences, stacked
from workbench.plots.trials import trial

__all__ = [
    "accuracy_by_level",
    "by_level",
    "differences",
    "heading",
    "learning_curve",
    "overview",
    "prices",
    "sampled_and_greedy",
    "save",
    "stacked",
    "style",
    "trial",
    "watch",
    "zero_gradient",
]
