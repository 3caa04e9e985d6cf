"""The methods in TRL's `GRPOTrainer`, on one process or several."""

from workbench.trl.setup import arguments, problem_id, solved
from workbench.trl.trainer import GRPOTrainer

__all__ = ["GRPOTrainer", "arguments", "problem_id", "solved"]
