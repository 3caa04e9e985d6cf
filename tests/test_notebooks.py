"""Every notebook keeps the house rules; what it computes is checked by nbval."""

import ast
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert {"00_quickstart", "08_base_model"} <= {path.stem for path in NOTEBOOKS}


def test_parameters_are_typed_scalars_with_a_comment(notebook):
    cells = [cell for cell in code(notebook) if "parameters" in cell.metadata.get("tags", [])]
    assert len(cells) == 1
    lines = cells[0].source.splitlines()
    for line, node in zip(lines, ast.parse(cells[0].source).body, strict=True):
        assert isinstance(node, ast.AnnAssign) and node.annotation.id in {
            "int",
            "float",
            "str",
            "bool",
        }, line
        assert type(ast.literal_eval(node.value)).__name__ == node.annotation.id and re.search(
            r"  # \w", line
        ), line


def test_every_code_cell_was_executed_in_order_and_without_error(notebook):
    assert [cell.execution_count for cell in code(notebook)] == list(
        range(1, len(code(notebook)) + 1)
    )
    assert not [
        output
        for cell in code(notebook)
        for output in cell.outputs
        if output.output_type == "error"
    ]
    assert any(cell.outputs for cell in code(notebook))


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
    assert not live or (asserts and max(asserts) > min(live))
