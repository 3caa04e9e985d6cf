"""Figures, one function each: of runs (`curves`), of costs (`cost`), of the papers (`papers`) and
of their theory (`theory`), all in one house style (`style`).
"""

from workbench.plots.cost import prices, resolution
from workbench.plots.curves import (
    accuracy_by_level,
    by_level,
    course_grid,
    learning_curve,
    overview,
    pretraining,
    sampled_and_greedy,
    success_rates,
    summary,
    watch,
    zero_gradient,
)
from workbench.plots.papers import leaderboard, verdicts
from workbench.plots.style import heading, save, style

__all__ = [
    "accuracy_by_level",
    "by_level",
    "course_grid",
    "heading",
    "leaderboard",
    "learning_curve",
    "overview",
    "pretraining",
    "prices",
    "resolution",
    "sampled_and_greedy",
    "save",
    "style",
    "success_rates",
    "summary",
    "verdicts",
    "watch",
    "zero_gradient",
]
