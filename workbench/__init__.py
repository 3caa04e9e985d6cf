"""workbench: which rollouts are worth generating, and which are worth training on?

A run is a Lab times a Method; it leaves a Record; metrics read the record and plots show it. Rooms are loaded when
first used: `import workbench` takes neither torch nor transformers.
"""

import importlib

__version__ = "0.1.0"

_ROOMS = ("advantages", "allocators", "bandits", "comparisons", "curation", "doctor", "evaluate", "gradients", "grpo", "hub",
          "labs", "memory", "methods", "metrics", "objectives", "plots", "plots_papers", "plots_theory", "policies",
          "problems", "records", "report", "reuse", "rewards", "rollouts", "scheduler", "selectors", "statuses", "sweep",
          "theory", "trackers", "trl", "verdicts", "verifiers")
_NAMES = {"Method": "methods", "Record": "records", "Rollouts": "rollouts", "Run": "run", "load": "records"}

__all__ = [*(room for room in _ROOMS if room != "trl"), *_NAMES]  # its package is an extra: not loaded by a star


def __getattr__(name):
    if name in _NAMES:
        return getattr(importlib.import_module(f"workbench.{_NAMES[name]}"), name)
    if name in _ROOMS:
        return importlib.import_module(f"workbench.{name}")
    raise AttributeError(f"module 'workbench' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__])
