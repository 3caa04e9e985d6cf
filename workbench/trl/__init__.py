"""The methods in TRL's `GRPOTrainer`, on one process or several.

`GRPOTrainer` is TRL's with one more argument, `method`. See `workbench.trl.trainer`.
"""

from workbench.trl import compatibility  # noqa: F401  says first what is missing

from workbench.adapters import problem_id  # isort: skip
from workbench.trl.setup import arguments
from workbench.trl.trainer import GRPOTrainer

__all__ = ["GRPOTrainer", "arguments", "problem_id"]
