"""The examples in docstrings run and show what they say.

A module that needs a package which is not installed is skipped.
"""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Each package below the folder that it is imported from.
PACKAGES = [ROOT / "workbench", ROOT / "notebooks" / "papers"]
MODULES = [
    ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
    for package in PACKAGES
    for path in sorted(package.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_show_what_they_say(name):
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").startswith(("workbench", "papers")):
            raise
        pytest.skip(f"{name} needs {error.name}")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
