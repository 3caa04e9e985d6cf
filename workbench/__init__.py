"""workbench: which rollouts are worth generating, and which are worth training on?

A run is a Lab times a Method, and it leaves a Record. Analysis reads records and draws figures.

Modules are loaded when they are first used, so that `import workbench` takes neither torch nor
transformers.
"""

import importlib
import importlib.abc
import importlib.util
import pkgutil
import sys

__version__ = "0.2.0"

# Modules under a shorter path than that of their file: `workbench.selectors` is the module
# `workbench.rules.selectors`.
_SHORT = {
    module.name: f"workbench.rules.{module.name}"
    for module in pkgutil.iter_modules([f"{path}/rules" for path in __path__])
}
_MODULES = [module.name for module in pkgutil.iter_modules(__path__) if module.name[0] != "_"]

# Names that are worth a shorter path: name -> the module that defines it.
_NAMES = {
    "Ledger": "trials.ledger",
    "Method": "methods",
    "Profile": "trials.profile",
    "Record": "records",
    "Rollouts": "rollouts",
    "Run": "run",
    "check": "trials.check",
    "compare": "trials.compare",
    "grpo_step": "grpo",
    "load": "records",
    "load_all": "analysis.runs",
    "profile": "trials.profile",
    "push_to_hub": "reports.hub",
    "seeds_needed": "trials.compare",
    "trial": "trials.trial",
}

# A star import must not need the packages behind trl and verl, and has no use for the other two.
__all__ = [
    *(name for name in _MODULES if name not in ("cli", "trl", "utils", "verl")),
    *_SHORT,
    *_NAMES,
]


class _ShortPaths(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets `import workbench.selectors` find the module that `_SHORT` names."""

    def find_spec(self, fullname, path, target=None):
        parent, _, name = fullname.rpartition(".")
        if parent == "workbench" and name in _SHORT:
            return importlib.util.spec_from_loader(fullname, self)
        return None

    def create_module(self, spec):
        module = importlib.import_module(_SHORT[spec.name.rpartition(".")[2]])
        self.own_spec = module.__spec__
        return module

    def exec_module(self, module):
        # The import system has replaced the specification of the module by that of the short path.
        module.__spec__ = self.own_spec


sys.meta_path.append(_ShortPaths())


def __getattr__(name):
    if name in _NAMES:
        return getattr(importlib.import_module(f"workbench.{_NAMES[name]}"), name)
    if name in _MODULES or name in _SHORT:
        return importlib.import_module(_SHORT.get(name, f"workbench.{name}"))
    # Not from `utils.validation`, which would load numpy for a mere typo.
    from difflib import get_close_matches

    close = get_close_matches(name, __all__, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise AttributeError(f"module 'workbench' has no attribute {name!r}{hint}")


def __dir__():
    return sorted([*globals(), *__all__])
