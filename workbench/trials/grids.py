"""Grids: which runs to make, in a small YAML file of names and plain data, and the making of them.

    folder: ../runs/knapsack              # of the records, relative to this file, see below
    parameters:                           # one value for all runs, or a list of values
      lab: {pool: 512}
      rounds: [50, 100]
    cases:                                # values that belong together
      - {label: grpo, method: grpo}
      - {label: low-4, method: knapsack, arguments: {low: 4}}
      - {label: max-variance, method: knapsack, settings: {selector: MaxVariance, selector.m: 8}}
    seeds: 5                              # the parameter `seed` from 0 to 4, or a list

The runs are the cross product of all lists, the cases and the seeds. The parameters of a run are
those of `cases.PARAMETERS`; methods and labs are named, see `workbench.config`, and nothing in a
grid is evaluated as code.

A grid may be somebody else's. So the folder must lie in the working directory or in the directory
of the sweep; whoever starts the sweep may name any other, see `read`.

With `notebook: path.ipynb` the runs go through that notebook by papermill. Their parameters are
those of its cell tagged `parameters`, where a mapping arrives as JSON text.

A run is called LABEL/seed-N, which is also the directory of its record. What the name of a
directory cannot hold of a label stands as %XX in it, see `workbench.utils.labels`. Without a label
a run is called after what varies.

On disk, under the output directory: `sweep.json`, what is run; `results.csv`; the records, in
LABEL/seed-N, unless the grid names another folder for them; and the directory logs/LABEL/seed-N of
each run, see `cases`. A second start makes what is missing or failed, and waits for a first one
that is still at work. It may have other runs than the first, but not the same with other
parameters.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.policies.checks import check_packages
from workbench.records import exists, load
from workbench.records.files import write
from workbench.records.manifest import check_conditions
from workbench.trials import engine
from workbench.trials.cases import PARAMETERS, Case, prepare
from workbench.utils.labels import LOGS, check_label, to_folder
from workbench.utils.processes import signals_raise
from workbench.utils.validation import (
    brief,
    cause_of,
    check_size,
    did_you_mean,
    instance_of,
    one_of,
    output,
    plain_data,
    whole_number,
)

KEYS = ("notebook", "folder", "parameters", "cases", "seeds")
LONGEST_NAME = 120  # characters of a name made of values, which becomes that of a directory
MOST_SEEDS = 10_000


def read(grid: Any, out: Path, records: Any = None, mixed: bool = False) -> list[Case]:
    """The runs of a grid in order, their names and parameters checked.

    Parameters
    ----------
    grid : path or dict
        A YAML file, or its content with paths relative to the working directory.
    out : Path
        Directory of the sweep.
    records : path, optional
        Directory of the records, in place of the grid's folder. It may be any directory, where the
        folder that a file names must lie in the working directory or in `out`.
    mixed : bool
        See `sweep`.

    Raises
    ------
    ValueError, FileNotFoundError
        For what is wrong with the grid, with the closest name that would be right.
    """
    base, content = read_content(grid)
    for key in content:
        one_of("key", key, KEYS)
    for key in ("notebook", "folder"):
        if key in content:
            instance_of(key, content[key], str, "'a/path'")
    notebook = None
    if "notebook" in content:
        notebook = Path(os.path.abspath(base / content["notebook"]))
        _check_exists("notebook", notebook, ".ipynb")
    records = _records(grid, base, content, out, records)
    # The parameters that exist, and their types where a notebook says them. A label is for the
    # sweep, whether or not the notebook has such a parameter.
    types = dict.fromkeys(PARAMETERS, "")
    if notebook is not None:
        types = {"label": "", **_read_parameters(notebook)}

    axes = _axes(content)
    varied = _varied(axes)
    cases: dict[str, Case] = {}
    # One part from each axis. Later parts win, which lets a case replace a fixed parameter.
    for choice in itertools.product(*axes):
        merged = {name: value for part in choice for name, value in part.items()}
        values = {name: _convert(name, value, types) for name, value in merged.items()}
        name = _name(values, varied, seeded=notebook is None or "seed" in values)
        if name in cases:
            raise ValueError(f"grid: two runs are called {name!r}; give each a label")
        # A notebook that declares `out` as a text writes its record there, unless the grid says
        # where.
        sets_out = types.get("out") == "str" and "out" not in values
        places = records / name, out / LOGS / name
        cases[name] = Case(name, values, *places, notebook, sets_out, mixed)
    return list(cases.values())


# Reading


def read_content(grid: Any) -> tuple[Path, dict[str, Any]]:
    """The directory that paths are relative to, and the content of a grid.

    Parameters
    ----------
    grid : path or dict
        As in `read`. Nothing but its form is checked here.
    """
    folder, where, content = Path.cwd(), "grid", grid
    if not isinstance(grid, dict):
        path = Path(grid)
        folder, where, content = path.parent, str(path), _load(path)
    if not isinstance(content, dict):
        raise ValueError(
            f"{where}: keys such as parameters and cases are needed, not a {type(content).__name__}"
        )
    try:
        plain_data(content)
    except ValueError as error:
        raise ValueError(
            f'{where}: {error}. A grid has a class by its name, as in {{"selector": "MaxVariance", '
            '"selector.m": 8}; wb.trial takes objects'
        ) from None
    return folder, content


def _load(path: Path) -> Any:
    """What a YAML file holds."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads 1e-4 as a number, as people mean it. YAML 1.1 takes it for a text."""

    number = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    _check_exists("grid", path, ".yaml")
    check_size(path)
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader)
    # Tags such as !!int may stand before any text, and PyYAML then ends in whatever its own
    # conversion ends in. What is nested too deeply ends in a RecursionError.
    except Exception as error:
        reason = cause_of(ValueError(" ".join(str(error).split())))
        raise ValueError(f"{path}: not YAML: {reason}") from None


def _records(grid: Any, base: Path, content: Mapping[str, Any], out: Path, records: Any) -> Path:
    """Directory of the records: the caller's, the grid's, or that of the sweep.

    The folder that a file names must lie in the working directory or in that of the sweep.
    """
    if records is not None:
        return Path(records).absolute()
    if "folder" not in content:
        return out
    folder = Path(os.path.abspath(base / content["folder"]))
    # Links are followed, since one of them could lead to another place.
    place = folder.resolve()
    roots = (Path.cwd().resolve(), out.resolve())
    # A dict was written by the caller, a file perhaps by somebody else.
    if isinstance(grid, dict) or any(place.is_relative_to(root) for root in roots):
        return folder
    raise ValueError(
        f"folder={brief(content['folder'])}: the records would go to {str(place)!r}, which is "
        "neither in the working directory nor in that of the sweep; start it in a directory above, "
        f"or allow it by saying so: --records {shlex.quote(str(place))} (in Python records=...)"
    )


def _check_exists(what: str, path: Path, ending: str) -> None:
    """FileNotFoundError, with the nearest name that is right, unless there is such a file."""
    if not path.is_file():
        nearest = did_you_mean(path.name, [other.name for other in path.parent.glob(f"*{ending}")])
        raise FileNotFoundError(f"{what}={str(path)!r}: there is no such file{nearest}")


def _read_parameters(notebook: Path) -> dict[str, str]:
    """The parameters of a notebook, name to the type it is annotated with, "" without one.

    papermill has a function for this, which fails on texts with a # in them.
    """
    check_packages("papermill", "ipykernel")
    types: dict[str, str] = {}
    try:
        # The cell is parsed and never run.
        cells = json.loads(notebook.read_text())["cells"]
        tagged = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
        statements = [ast.parse("".join(cell["source"])).body for cell in tagged]
    except (ValueError, LookupError, TypeError, AttributeError, SyntaxError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{notebook}: not a notebook: {reason}") from None
    if not statements:
        raise ValueError(f"{notebook}: no cell is tagged `parameters`, so there is nothing to vary")
    for node in statements[0]:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            types[node.target.id] = ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            types[node.targets[0].id] = ""
    return types


def _axes(content: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """What the runs are the cross product of: lists of parameters with values."""
    parameters = content.get("parameters", {})
    if not isinstance(parameters, dict):
        raise ValueError(f"parameters={brief(parameters)}: names with values or lists are needed")
    lists = {name: values for name, values in parameters.items() if isinstance(values, list)}
    fixed = {name: value for name, value in parameters.items() if name not in lists}
    axes = [[{name: value} for value in _listed(name, values)] for name, values in lists.items()]
    if "cases" in content:
        cases = _listed("cases", content["cases"])
        if not all(isinstance(case, dict) and case for case in cases):
            raise ValueError(f"cases={brief(cases)}: a list of names with values is needed")
        axes.append(cases)
    if "seeds" in content:
        seeds = content["seeds"]
        if type(seeds) is int:
            whole_number("seeds", seeds, 1, MOST_SEEDS)
            seeds = list(range(seeds))
        axes.append([{"seed": seed} for seed in _listed("seeds", seeds)])

    # Two axes for one name would give runs whose value is decided by the order of the axes.
    names = [name for axis in axes for name in _union(axis)]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"parameter {name!r}: it is varied twice, among parameters, cases and seeds"
            )
    # The fixed ones come first, so that a case may have a value of its own.
    return [[fixed], *axes]


def _listed(name: str, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise ValueError(f"{name}={brief(values)}: a list of at least one value is needed")
    return values


def _union(mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Their keys, each once, in order of appearance."""
    return list(dict.fromkeys(name for each in mappings for name in each))


# Checking


def _convert(name: str, value: Any, types: Mapping[str, str]) -> Any:
    """The value as the run gets it; ValueError for an unknown name."""
    one_of("parameter", name, types)
    if name == "label":
        check_label(value)
    if name == "seed":
        # It is part of the name of a directory, as the label is.
        whole_number("seed", value, 0)
    # Notebook parameters are plain values, so a mapping arrives as JSON.
    as_json = types[name] == "str" and isinstance(value, dict | list)
    return json.dumps(value) if as_json else value


# Naming


def _varied(axes: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
    """The parameters that a run is called after: those written as lists, and those of the cases."""
    # What is the same for all runs is no part of their names, except a label.
    names = [name for name in axes[0][0] if name == "label"]
    for axis in axes[1:]:
        # Labels name the cases only if each has one of its own. Otherwise the values do. They are
        # counted by their texts, since what is no label yet may be a list.
        labels = [part.get("label") for part in axis]
        each_has_its_own = None not in labels and len(set(map(repr, labels))) == len(labels)
        names += ["label"] if each_has_its_own else _union(axis)
    return [name for name in names if name != "seed"]


def _name(values: Mapping[str, Any], varied: Sequence[str], seeded: bool) -> str:
    """The name of a run: `pods/seed-0`, or `method=pods,rounds=50/seed-0` without a label."""
    parts = []
    for name in varied:
        if name in values:
            text = _as_text(values[name])
            parts.append(to_folder(text) if name == "label" else f"{name}={text}")
    whole = ",".join(parts) or "run"
    name = re.sub(r"[^\w.=+,~%-]+", "_", whole).lstrip(".")[:LONGEST_NAME]
    if name != whole:
        # What was replaced or cut may have been all that tells the run from another.
        name = f"{name}~{hashlib.sha1(whole.encode()).hexdigest()[:8]}"
    return f"{name}/seed-{values.get('seed', 0)}" if seeded else name


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}={_as_text(inner)}" for name, inner in value.items())
    return str(value)


# Working through a grid

LOCK = "sweep.lock"
LISTED = "sweep.json"  # the runs of the grid


def sweep(
    grid: Any,
    *,
    out: Any = None,
    jobs: int | None = None,
    ray: str | None = None,
    gpus: float = 0.0,
    records: Any = None,
    mixed: bool = False,
    report: Callable[[str], Any] = print,
) -> pd.DataFrame:
    """Make the runs of a grid.

    Parameters
    ----------
    grid : path or dict
        A YAML file, or its content; see `workbench.trials.grids`.
    out : path, optional
        The output directory, runs/sweeps/NAME by default, NAME being the file's.
    jobs, ray, gpus
        As for `engine.at_work`.
    records : path, optional
        Directory of the records, in place of the one that the grid names. A grid in a file, which
        may be a stranger's, can name one in the working directory or in `out` alone.
    mixed : bool
        Whether runs count, or go on, that were made with other versions of packages, other code of
        this package, or on another device.
    report : function
        Called with a line of text at the start and for each run that ends.

    Returns
    -------
    DataFrame
        A row for each run in the grid's order: run, status ("done" or "failed"), what came of it
        (rounds, rollouts, training_seconds, accuracy and greedy at the end, or what the notebook's
        cell tagged `results` printed), seconds in all, error, and logs.

    Raises
    ------
    ValueError, FileNotFoundError
        For what is wrong with the grid, before anything runs. A run that fails stops no other.
    """
    engine.check_arguments(jobs, ray, gpus)
    name = "grid" if isinstance(grid, dict) else Path(grid).stem
    out = output("out", out if out is not None else Path("runs", "sweeps", name))
    cases = read(grid, out, records, mixed)
    # Before the lock, which is the first file that a sweep writes into its directory.
    engine.check_directory(out, LISTED, LOCK, "sweep")
    with engine.only_one(out / LOCK, report), signals_raise():
        # What is done is looked up under the lock, since another sweep may have made runs until
        # now.
        _check_same_runs(out, cases)
        for case in cases:
            case.set_aside(report)
        todo = [case for case in cases if not case.finished]
        # Those that were left unfinished too.
        begun = [case.record for case in cases if exists(case.record)]
        for record in begun if todo else ():
            check_conditions({}, load(record).manifest, record, mixed)
        if todo and todo[0].notebook is not None:
            report(f"runs the code of the notebook {os.path.relpath(todo[0].notebook)}")
        elif ray in (None, "local"):
            if todo and ray is None:
                engine.start_forkserver()  # which imports while the runs are checked here
            # Those that are done too: a record may have been put into another's place.
            _check_runs(cases if todo else ())
        if todo:
            runs = {case.name: case.values for case in cases}
            write(out / LISTED, json.dumps(runs, indent=1).encode())
            with engine.at_work(jobs=jobs, ray=ray, gpus=gpus, report=report) as work_off:
                # The longest run first, so that none is left to the end.
                work_off(sorted(cases, key=_shortness))
        frame = _frame(cases)
        write(out / "results.csv", frame.to_csv(index=False).encode())
    return frame


def _shortness(case: Case) -> float:
    """Less the longer a run takes: by the cost that the grid says, or else by its rounds."""
    rounds = case.values.get("rounds", PARAMETERS["rounds"])
    return -float(case.values.get("cost") or (rounds if isinstance(rounds, int) else 0))


def _frame(cases: Sequence[Case]) -> pd.DataFrame:
    """The table of all runs; a parameter or result called like another column gets a prefix."""
    rows = []
    for case in cases:
        outcome = case.outcome
        row = {
            "run": case.name,
            "status": outcome["status"],
            "seconds": outcome["seconds"],
            "error": outcome["error"],
            "logs": os.path.relpath(case.logs),
        }
        # A notebook need not leave a record, so the table shows its parameters. The runs made
        # directly have them in their manifests.
        parameters = {} if case.notebook is None else case.values
        for kind, values in (("parameter", parameters), ("result", outcome["results"])):
            for name, value in values.items():
                row[f"{kind}_{name}" if name in row else name] = value
        rows.append(row)
    return pd.DataFrame(rows)


# Checks


def _check_same_runs(out: Path, cases: Sequence[Case]) -> None:
    for case in cases:
        if case.finished and case.outcome["fingerprint"] != case.fingerprint():
            raise ValueError(
                f"out={str(out)!r}: {case.name} was made there with other parameters, or before "
                "the code of its notebook was changed; name another directory"
            )


def _check_runs(cases: Sequence[Case]) -> None:
    for case in cases:
        try:
            prepare(case)
        except ValueError as error:
            raise ValueError(f"{case.name}: {error}") from None
