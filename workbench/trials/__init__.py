"""Many runs: grids of them, and trials, which compare methods with each at its best."""

from workbench.trials.compare import Comparison, compare, seeds_needed
from workbench.trials.grids import sweep
from workbench.trials.ledger import Ledger
from workbench.trials.profile import Profile, profile
from workbench.trials.trial import Trial, trial

__all__ = [
    "Comparison",
    "Ledger",
    "Profile",
    "Trial",
    "compare",
    "profile",
    "seeds_needed",
    "sweep",
    "trial",
]
