"""The methods in verl, on Ray."""

from workbench.verl.counts import Allocation, problem_ids, table
from workbench.verl.integration import (
    ESTIMATORS,
    LOSSES,
    check,
    choose,
    configuration,
    estimator,
    method_of,
    policy_loss,
    register,
    remember,
    select,
)

__all__ = [
    "ESTIMATORS",
    "LOSSES",
    "Allocation",
    "check",
    "choose",
    "configuration",
    "estimator",
    "method_of",
    "policy_loss",
    "problem_ids",
    "register",
    "remember",
    "select",
    "table",
]
