"""Numbers from records: comparisons of arms, costs, verdicts on claims, and frames by paper."""

from workbench.analysis import (
    aero,
    ar3po,
    cbs,
    claims,
    comparisons,
    cost,
    courses,
    difficulty,
    intervals,
    knapsack,
    metrics,
    pods,
    resolution,
    runs,
    targets,
    verdicts,
)

__all__ = [
    "aero",
    "ar3po",
    "cbs",
    "claims",
    "comparisons",
    "cost",
    "courses",
    "difficulty",
    "intervals",
    "knapsack",
    "metrics",
    "pods",
    "resolution",
    "runs",
    "targets",
    "verdicts",
]
