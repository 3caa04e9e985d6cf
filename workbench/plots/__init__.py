"""Figures, one function each: of runs (`curves`), of the papers (`papers`) and of their theory (`theory`)."""

from workbench.plots.curves import (
    accuracy_by_level,
    by_level,
    learning_curve,
    overview,
    pretraining,
    sampled_and_greedy,
    save,
    style,
    success_rates,
    summary,
    watch,
    zero_gradient,
)

__all__ = [
    "accuracy_by_level",
    "by_level",
    "learning_curve",
    "overview",
    "pretraining",
    "sampled_and_greedy",
    "save",
    "style",
    "success_rates",
    "summary",
    "watch",
    "zero_gradient",
]
