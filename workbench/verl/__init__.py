"""The methods in verl, on Ray: rollout counts, down-sampling, replay, advantages and objectives.

`configuration(method)` turns a method on in verl's v1 trainer by configuration keys alone. The
classes that these keys name are in `workbench.verl.v1`. They ask the slots through
`workbench.rounds`, as `Run` does. A method that needs what verl does not give is refused before
anything is loaded, with the slot and the reason.

`register` makes our advantages and policy losses known to verl by name. examples/verl_loop.py is a
round in a loop of your own on verl's `DataProto`.

Importing this package loads nothing of verl. verl wants older transformers than the rest of
workbench is tested with, so it has an environment of its own: `make test-verl` makes it.
"""

from workbench.adapters import problem_id
from workbench.verl.functions import ESTIMATORS, LOSSES, estimator, policy_loss, register
from workbench.verl.settings import (
    PROVIDES,
    check,
    configuration,
    method_of,
    trained_per_problem,
)

__all__ = [
    "ESTIMATORS",
    "LOSSES",
    "PROVIDES",
    "check",
    "configuration",
    "estimator",
    "method_of",
    "policy_loss",
    "problem_id",
    "register",
    "trained_per_problem",
]
