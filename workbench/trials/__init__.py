"""Many runs: grids of them, and trials, which compare methods with each at its best."""

from workbench.trials.grids import sweep
from workbench.trials.ledger import Ledger
from workbench.trials.trial import Trial, trial

__all__ = ["Ledger", "Trial", "sweep", "trial"]
