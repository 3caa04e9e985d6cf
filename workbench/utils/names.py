"""Names and choices that several folders use, in one place that costs nothing to import.

The command line completes and explains them without loading numpy or torch. Tests hold them against
the functions and classes that they name.
"""

import functools
import importlib
import importlib.metadata
import pkgutil
import types
from pathlib import Path
from typing import Any

# The five papers that the notebooks reproduce, and the baselines that they share.
PAPERS = ("grpo", "dapo", "gspo", "dr_grpo", "pods", "ar3po", "knapsack", "aero", "cbs")


# Further papers. Each file of the catalogue is named after the method that it registers, so the
# names are known before anything is imported.
CATALOGUE = Path(__file__).parents[1] / "catalogue"
MORE_PAPERS = tuple(sorted(module.name for module in pkgutil.iter_modules([str(CATALOGUE)])))

# The entry points of installed packages that bring methods of their own.
METHODS_OF_PACKAGES = "workbench.methods"


@functools.cache
def methods_of_packages() -> dict[str, importlib.metadata.EntryPoint]:
    """The methods that installed packages bring, by name; a name of our own stays ours."""
    found = importlib.metadata.entry_points(group=METHODS_OF_PACKAGES)
    return {entry.name: entry for entry in found if entry.name not in (*PAPERS, *MORE_PAPERS)}


def method_names() -> list[str]:
    """All methods that have a name: those of `workbench.methods` and those of packages."""
    return [*PAPERS, *MORE_PAPERS, *methods_of_packages()]


def catalogue() -> list[types.ModuleType]:
    """The files of all further papers, imported."""
    return [importlib.import_module(f"workbench.catalogue.{name}") for name in MORE_PAPERS]


def of_catalogue(module: str, name: str) -> Any:
    """What `workbench.rules.selectors` has by a name without defining it: a further paper's class.

    Parameters
    ----------
    module : str
        That was asked, such as "workbench.rules.selectors".
    name : str

    Raises
    ------
    AttributeError
        When no further paper defines a public class or function of this name.
    """
    if not name.startswith("_"):
        for paper in catalogue():
            found = vars(paper).get(name)
            if isinstance(found, type | types.FunctionType) and found.__module__ == paper.__name__:
                return found
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


# The functions of `workbench.labs`.
LABS = ("tiny", "transformers", "unsloth")

# Bits of each moment that AdamW keeps: 32 by torch, 8 by bitsandbytes.
OPTIMIZER_BITS = (32, 8)

# The sizes of the base models of the tiny lab.
SIZES = ("small", "large")

# The slots of a method, in the order of a round, and what each one decides.
SLOTS = {
    "curriculum": "which problems come next",
    "allocator": "how many rollouts each problem gets",
    "course": "where a rollout starts and when it stops",
    "reward": "what a rollout earns",
    "replay": "which old responses join",
    "selector": "which rollouts are trained on",
    "advantage": "how good each rollout is",
    "objective": "the loss",
}

# The status of a rollout that has a reward and no verdict: nothing says whether it is right.
GRADED = "graded"
# The status of a rollout that a course has stopped.
STOPPED = "stopped"

# The phases of a round that count as training time; a record has a column seconds_<phase> for each.
TRAINING_PHASES = ("generate", "verify", "schedule", "update")
