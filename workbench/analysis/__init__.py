"""Numbers from records: metrics, comparisons of runs, difficulty of problems, verdicts on claims."""

from workbench.analysis import aero, comparisons, difficulty, metrics, verdicts

__all__ = ["aero", "comparisons", "difficulty", "metrics", "verdicts"]
