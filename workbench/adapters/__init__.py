"""What the methods need inside another trainer: the same for TRL, for verl and for your own."""

from workbench.adapters.driver import (
    LOGGED,
    Driver,
    Verdict,
    as_problems,
    check_fits,
    draws,
    prefixed,
    problem_id,
    round_metrics,
    row_weights,
    scored,
    token_advantages,
    verdict_columns,
)

__all__ = [
    "LOGGED",
    "Driver",
    "Verdict",
    "as_problems",
    "check_fits",
    "draws",
    "prefixed",
    "problem_id",
    "round_metrics",
    "row_weights",
    "scored",
    "token_advantages",
    "verdict_columns",
]
