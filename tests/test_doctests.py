"""The examples in docstrings run and show what they say.

A module that needs a package which is not installed is skipped.
"""

import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "workbench"
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_show_what_they_say(name):
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").startswith("workbench"):
            raise
        pytest.skip(f"{name} needs {error.name}")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
