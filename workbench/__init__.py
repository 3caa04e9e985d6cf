"""workbench: which rollouts are worth generating, and which are worth training on?

A run is a Lab times a Method, and it leaves a Record. Analysis reads records and draws figures.

Modules are loaded when they are first used, so that `import workbench` takes neither torch nor
transformers.
"""

import importlib
import pkgutil

__version__ = "0.2.0"

_MODULES = [module.name for module in pkgutil.iter_modules(__path__) if module.name[0] != "_"]

# Names that are worth a shorter path: name -> the module that defines it.
_NAMES = {
    "Method": "methods",
    "Record": "records",
    "Rollouts": "rollouts",
    "Run": "run",
    "check": "trying",
    "grpo_step": "grpo",
    "load": "records",
    "load_all": "analysis.runs",
    "push_to_hub": "reports.hub",
    "trial": "trials.trial",
}

# A star import must not need the packages behind trl and verl, and has no use for the other two.
__all__ = [*(name for name in _MODULES if name not in ("cli", "trl", "utils", "verl")), *_NAMES]


def __getattr__(name):
    if name in _NAMES:
        return getattr(importlib.import_module(f"workbench.{_NAMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"workbench.{name}")
    # Not from `utils.validation`, which would load numpy for a mere typo.
    from difflib import get_close_matches

    close = get_close_matches(name, __all__, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise AttributeError(f"module 'workbench' has no attribute {name!r}{hint}")


def __dir__():
    return sorted([*globals(), *__all__])
