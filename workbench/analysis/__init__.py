"""Numbers from records: comparisons of arms, costs, intervals, and how hard problems are."""

from workbench.analysis import (
    comparisons,
    cost,
    courses,
    difficulty,
    intervals,
    leaderboard,
    metrics,
    resolution,
    runs,
    sequential,
    targets,
)

__all__ = [
    "comparisons",
    "cost",
    "courses",
    "difficulty",
    "intervals",
    "leaderboard",
    "metrics",
    "resolution",
    "runs",
    "sequential",
    "targets",
]
