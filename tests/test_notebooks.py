"""Every notebook keeps the house rules; what it computes is checked by nbval."""

import ast
import functools
import importlib
import re
from pathlib import Path

import nbformat
import pytest

import workbench as wb

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NUMBERED = [path for path in NOTEBOOKS if re.match(r"\d\d_", path.name)]
IMPORTED = ("workbench", "papers", "examples")
TYPES = {"int", "float", "str", "bool"}


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NUMBERED, ids=lambda path: path.stem)
def test_names_of_the_library_that_a_notebook_imports_are_there(path):
    notebook = nbformat.read(path, as_version=4)
    for cell in code(notebook):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith(
                ("workbench", "papers", "examples")
            ):
                module = importlib.import_module(node.module)
                for alias in node.names:
                    if not hasattr(module, alias.name):
                        importlib.import_module(f"{node.module}.{alias.name}")


def test_code_in_the_text_of_a_notebook_uses_what_is_there(notebook):
    """Code that is shown and not run, such as that for a machine with a GPU."""
    known = {"wb": wb, "run": wb.Run}
    for cell in notebook.cells:
        shown = re.findall(r"```python\n(.*?)```", cell.source, flags=re.DOTALL)
        if cell.cell_type == "markdown":
            for node in ast.walk(ast.parse("\n".join(shown))):
                text = ast.unparse(node)
                if re.fullmatch(r"(wb|run)(\.\w+)+", text):
                    first, *names = text.split(".")
                    functools.reduce(getattr, names, known[first])


def test_parameters_are_typed_scalars_with_a_comment(notebook):
    cells = [cell for cell in code(notebook) if "parameters" in cell.metadata.get("tags", [])]
    assert len(cells) == 1
    lines = cells[0].source.splitlines()
    for node in ast.parse(cells[0].source).body:
        text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        assert isinstance(node, ast.AnnAssign), text
        assert node.annotation.id in TYPES, text
        assert type(ast.literal_eval(node.value)).__name__ == node.annotation.id, text
        assert re.search(r"  # \w", text), text


def test_every_code_cell_was_executed_in_order_and_without_error(notebook):
    cells = code(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output.output_type for cell in cells for output in cell.outputs}
    assert kinds
    assert "error" not in kinds


def test_no_warning_is_shown(notebook):
    streams = [
        output.text
        for cell in code(notebook)
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stderr"
    ]
    assert not [text for text in streams if "Warning" in text]


def test_the_kernel_is_python3(notebook):
    assert notebook.metadata.kernelspec.name == "python3"


def test_no_path_of_a_machine_is_shown(notebook):
    shown = str([cell.outputs for cell in code(notebook)]) + " ".join(
        cell.source for cell in notebook.cells
    )
    assert not re.search(
        r"/(home|root|tmp|work|Users)/",
        re.sub(r"data:image[^'\"]*|[A-Za-z0-9+/=]{200,}", "", shown),
    )


def test_live_cells_end_in_an_assertion(notebook):
    tags = [cell.metadata.get("tags", []) for cell in code(notebook)]
    live = [i for i, tag in enumerate(tags) if "nbval-ignore-output" in tag]
    asserts = [i for i, cell in enumerate(code(notebook)) if "assert " in cell.source]
    assert not live or (asserts and max(asserts) >= min(live))
