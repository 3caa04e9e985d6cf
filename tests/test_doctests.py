"""The examples in docstrings run and show what they say.

Of every module of the core and of the rooms below. A module that needs a package which is not
installed is skipped.
"""

import doctest
import importlib
import pkgutil

import pytest

ROOMS = (
    "workbench",
    "workbench.utils",
    "workbench.datasets",
    "workbench.analysis",
    "workbench.plots",
    "workbench.theory",
    "workbench.verifiers",
    "workbench.trials",
    "workbench.cli",
)
FEWEST_EXAMPLES = 30  # in all modules together, so that they cannot be lost without notice


def modules():
    """Full names of the modules in the core and the rooms."""
    names = []
    for room in ROOMS:
        package = importlib.import_module(room)
        for module in pkgutil.iter_modules(package.__path__, f"{room}."):
            if not module.ispkg and not module.name.endswith(".__main__"):
                names.append(module.name)
    return names


def imported(name):
    """The module, or None where a package of others is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").startswith("workbench"):
            raise
        return None


@pytest.mark.parametrize("name", modules())
def test_examples_show_what_they_say(name):
    module = imported(name)
    if module is None:
        pytest.skip(f"{name} needs a package that is not installed")
    assert doctest.testmod(module).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    total = 0
    for module in map(imported, modules()):
        if module is not None:
            total += sum(len(test.examples) for test in finder.find(module))
    assert total >= FEWEST_EXAMPLES
