"""The floor plan: what the core is, what it never imports, and that imports run one way."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import workbench

PACKAGE = Path(workbench.__file__).parent
MODULES = {
    ".".join(["workbench", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(
        ".__init__"
    ): path
    for path in PACKAGE.rglob("*.py")
}
CORE = sorted(path for path in PACKAGE.glob("[!_]*.py"))
# What is built on the core, or beside it.
ABOVE = (
    *("catalogue", "trials", "analysis", "plots", "reports"),
    *("adapters", "trl", "verl", "cli"),
)


def imported(path):
    """The modules of the package that a file imports, also inside functions and for types."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from workbench.rules import selectors` imports a module, other names do not.
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & MODULES.keys()) or {node.module}
    return found & MODULES.keys()


def test_the_core_can_be_read_in_an_afternoon():
    names = {path.stem for path in CORE}
    assert names == {
        *("slots", "rollouts", "pools", "problems", "rounds", "checks", "grpo"),
        *("objectives", "evaluation", "run", "training", "labs", "methods", "config"),
    }
    classes = [
        node
        for path in CORE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert max(node.end_lineno - node.lineno for node in classes) <= 320


def test_the_core_never_imports_what_is_built_on_it():
    for path in CORE:
        above = {name for name in imported(path) if name.split(".")[1:2] in [[f] for f in ABOVE]}
        assert not above, f"{path.name} imports {above}"


@pytest.mark.slow
def test_what_is_built_on_the_core_is_not_loaded_with_it():
    code = (
        "import sys, workbench.run, workbench.config\n"
        f"loaded = [name for name in sys.modules for folder in {ABOVE}\n"
        "          if name.startswith(f'workbench.{folder}')]\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_imports_run_one_way():
    graph = {name: imported(path) - {name, "workbench"} for name, path in MODULES.items()}
    list(graphlib.TopologicalSorter(graph).static_order())  # CycleError where files need each other


@pytest.mark.slow
def test_papers_of_the_catalogue_need_no_list():
    """Only tests, documentation and other papers name a file of the catalogue."""
    for name, path in MODULES.items():
        if not name.startswith("workbench.catalogue"):
            assert not any(each.startswith("workbench.catalogue.") for each in imported(path)), name
