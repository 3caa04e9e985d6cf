"""Grids: which runs of a notebook, in a small YAML file, checked against the notebook before anything starts.

    notebook: ../../notebooks/00_quickstart.ipynb  # relative to this file
    parameters:                                    # one value for all runs, or a list of values
      rounds: [50, 100]
    cases:                                         # values that belong together
      - {evaluate_every: 5, held_out: 40}
      - {evaluate_every: 0}
    seeds: 5                                       # the parameter `seed` from 0 to 4; or a list

Only `notebook` is needed. The runs are the cross product of all lists, the cases and the seeds; what a run does not name
has the notebook's own value. A run is called after what varies, as `rounds=50,evaluate_every=0,seed=1`; where every case has
a parameter `label` of its own, after that instead of all values of the case.

Names and types are checked against the notebook's cell tagged `parameters` before anything starts; papermill alone would
ignore a misspelt name. YAML reads 1e-4 as text; where the notebook says float, it counts as the number.
"""

import ast
import difflib
import hashlib
import importlib
import itertools
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

TYPES = {"int": int, "float": float, "str": str, "bool": bool}
KEYS = ("notebook", "parameters", "cases", "seeds")
LONGEST_NAME = 120  # letters of a run's name


@dataclass(frozen=True)
class Grid:
    """A grid that was checked: its name, its notebook, an absolute path, and its runs, name -> parameters, in order."""

    name: str
    notebook: Path
    runs: dict
    sets_out: bool  # whether the notebook's parameter `out` is left to the sweep


def read(grid):
    """The `Grid` of a YAML file or, then relative to the working directory, of its content as a dict.

    ValueError or FileNotFoundError for what is wrong with it; ImportError without the packages it needs.
    """
    name, folder, content = _content(grid)
    notebook = _notebook(folder, content)
    declared = _declared(notebook)
    runs = _runs(content, declared)
    return Grid(
        name, notebook, runs, declared.get("out") == "str" and "out" not in _union(runs.values())
    )


def _content(grid):
    """(name, directory that paths are relative to, content) of a grid."""
    yaml = needed("yaml")
    if isinstance(grid, dict):
        return Path(str(grid.get("notebook"))).stem, Path.cwd(), grid
    path = Path(grid)
    if not path.is_file():
        raise FileNotFoundError(f"grid {str(path)!r}: there is no such file")
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: a mapping with the key notebook is needed, not {content!r}")
    return path.stem, path.parent, content


def _notebook(folder, content):
    """The grid's notebook, an absolute path."""
    for key in content:
        if key not in KEYS:
            raise ValueError(f"grid: unknown key {key!r}; {_allowed(key, KEYS)}")
    if not isinstance(content.get("notebook"), str):
        raise ValueError(f"notebook={content.get('notebook')!r}: the path of a notebook is needed")
    path = Path(os.path.abspath(folder / content["notebook"]))
    if path.suffix != ".ipynb" or not path.is_file():
        there = sorted(p.name for p in path.parent.glob("*.ipynb"))
        raise FileNotFoundError(
            f"notebook {content['notebook']!r}: there is no such notebook; {_allowed(path.name, there)}"
        )
    return path


def _declared(notebook):
    """Parameters of a notebook: name -> "int", "float", "str", "bool", or another type that is not checked."""
    nbformat = needed("nbformat")
    try:
        content = nbformat.read(notebook, as_version=4)
        nbformat.validate(content)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, TypeError) as error:
        raise ValueError(f"{notebook}: not a notebook: {str(error).splitlines()[0]}") from None
    cells = [cell.source for cell in content.cells if tagged(cell, "parameters")]
    if not cells:
        raise ValueError(f"{notebook}: no cell is tagged `parameters`, so there is nothing to vary")
    try:
        return dict(pair for node in ast.parse(cells[0]).body for pair in _assigned(node))
    except SyntaxError as error:
        raise ValueError(f"{notebook}: cell tagged `parameters`: {error}") from None


def _assigned(node):
    """(name, type) where a statement assigns to a name: the type annotated or, without one, that of the literal."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, ast.unparse(node.annotation)
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        literal = isinstance(node.value, ast.Constant)
        yield node.targets[0].id, type(node.value.value).__name__ if literal else "any"


def _runs(content, declared):
    """Name -> parameters of every run, in order."""
    axes = _axes(content)
    runs = [
        dict(pair for choice in combination for pair in choice.items())
        for combination in itertools.product(*axes)
    ]
    checked = [
        {name: _checked(name, value, declared) for name, value in run.items()} for run in runs
    ]
    for run in checked:
        if checked.count(run) > 1:
            raise ValueError(f"grid: {checked.count(run)} runs are {run}; every run has to differ")
    return dict(zip(_names(checked, _varied(content)), checked))


def _axes(content):
    """What the runs are the cross product of: a list of lists of dicts."""
    parameters, cases, seeds = (content.get(key) for key in KEYS[1:])
    if not isinstance(parameters or {}, dict):
        raise ValueError(
            f"parameters={parameters!r}: a mapping from names to values or lists is needed"
        )
    axes = [[{name: v} for v in _listed(name, value)] for name, value in (parameters or {}).items()]
    if cases is not None:
        axes.append(_cases(cases))
    if seeds is not None:
        whole = isinstance(seeds, int) and not isinstance(seeds, bool)
        axes.append(
            [{"seed": seed} for seed in _listed("seeds", list(range(seeds)) if whole else seeds)]
        )
    names = [name for axis in axes for name in _union(axis)]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"parameter {name!r}: given twice, among parameters, cases and seeds")
    return axes


def _listed(name, value):
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ValueError(f"{name}: at least one value is needed")
    return values


def _cases(cases):
    if (
        not isinstance(cases, list)
        or not cases
        or not all(isinstance(case, dict) and case for case in cases)
    ):
        raise ValueError(f"cases={cases!r}: a list of mappings from names to values is needed")
    return cases


def _union(mappings):
    """Their keys, each once, in order of appearance."""
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def _checked(name, value, declared):
    """The value as the notebook's type; ValueError for an unknown name or another type."""
    if name not in declared:
        raise ValueError(
            f"parameter {name!r}, value {value!r}: unknown to the notebook; {_allowed(name, declared)}"
        )
    wanted = TYPES.get(declared[name])
    if not isinstance(value, (bool, int, float, str)):
        raise ValueError(
            f"parameter {name!r}, value {value!r}: a number, a truth value or text is needed"
        )
    if wanted is float and not isinstance(value, bool) and _is_number(value):
        value = float(value)
    if value != value:
        raise ValueError(f"parameter {name!r}, value {value!r}: a number is needed")
    if wanted is not None and type(value) is not wanted:
        kind = type(value).__name__
        raise ValueError(
            f"parameter {name!r}, value {value!r}: the notebook says {declared[name]}, this is {kind}"
        )
    return value


def _is_number(value):
    try:
        return float(value) is not None
    except ValueError:
        return False


def _allowed(name, names):
    """What there is, and the nearest to a wrong name."""
    close = difflib.get_close_matches(str(name), list(names), n=1)
    return f"there are {', '.join(names) or 'none'}" + (
        f"; did you mean {close[0]!r}?" if close else ""
    )


def _varied(content):
    """Names of the parameters that name a run: those written as lists, be they of one value, and those of the cases."""
    listed = [
        name for name, value in (content.get("parameters") or {}).items() if isinstance(value, list)
    ]
    cases = content.get("cases") or []
    labels = [case.get("label") for case in cases]
    labelled = cases and None not in labels and len(set(labels)) == len(labels)
    return (
        listed
        + (["label"] if labelled else _union(cases))
        + ["seed"] * (content.get("seeds") is not None)
    )


def _names(runs, varied):
    """A name for each run, also its directory: `method=pods,seed=0`, with a digest where that is too long or not enough."""
    texts = [
        ",".join(f"{name}={run[name]}" for name in varied if name in run) or "run" for run in runs
    ]
    texts = [re.sub(r"[^\w.=+,-]+", "_", text) for text in texts]
    digests = [hashlib.sha1(json.dumps(run).encode()).hexdigest()[:8] for run in runs]
    plain = [len(text) <= LONGEST_NAME and texts.count(text) == 1 for text in texts]
    return [
        text if ok else f"{text[:LONGEST_NAME]}~{digest}"
        for text, ok, digest in zip(texts, plain, digests)
    ]


def tagged(cell, tag):
    """Whether a notebook's cell is code with that tag."""
    return cell.cell_type == "code" and tag in cell.metadata.get("tags", [])


def needed(package):
    """The package, imported; ImportError with the command that installs all that a sweep needs."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ImportError(
            "a sweep needs packages: pip install papermill ipykernel pyyaml"
        ) from None
