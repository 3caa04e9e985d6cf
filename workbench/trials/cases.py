"""One run of a sweep, from its parameters to its outcome on disk.

A run leaves in its directory of logs `log.txt`, `outcome.json` and, through a notebook,
`notebook.ipynb`, which is kept after an error too. The outcome is written last: a run that was
killed has none, and the next start goes on from the record's last checkpoint.
"""

from __future__ import annotations

import functools
import json
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
from filelock import FileLock

from workbench import config
from workbench.labs import Lab
from workbench.methods import Method
from workbench.records import damage_of, exists, load, pack
from workbench.records.files import make_directory, read_ordinary, write
from workbench.rules.scheduler import FEATURES
from workbench.run import ARGUMENTS, Run
from workbench.trials.fingerprints import Pickle
from workbench.utils.code import digest_of
from workbench.utils.validation import one_of, positive_number, whole_number

# The parameters of a run that does not go through a notebook, with their defaults; None is that of
# `Run`. `lab` has the arguments of the lab and perhaps its "name"; `columns` says what is kept of
# the rollouts; `cost` is how many seconds the run is expected to take. With `rollouts`, a run that
# has sampled fewer after its `rounds` goes on until it has sampled so many.
PARAMETERS: dict[str, Any] = {
    "label": None,
    "method": "grpo",
    "arguments": {},
    "settings": {},
    "lab": {},
    "rounds": 200,
    "rollouts": None,
    "seed": 0,
    "problems_per_round": None,
    "mini_batches": None,
    "learning_rate": None,
    "evaluate_every": None,
    "checkpoint_every": None,
    "columns": "sample",
    "cost": None,
}
OUTCOME = {"status", "error", "results", "seconds", "fingerprint"}  # what outcome.json has
# What is kept of the rollouts, by the parameter `columns`.
KEPT_COLUMNS: dict[str, tuple[str, ...] | None] = {
    "none": (),
    "outcomes": ("problem", "round", "correct", "stage", "selected", "length"),
    "scores": (
        *("problem", "round", "age", "score", "selected", "reward", "length", "truncated"),
        *(f"feature_{feature}" for feature in FEATURES),
    ),
    "sample": (
        *("problem", "round", "draw", "text", "status", "correct", "reward", "advantage"),
        *("selected", "trained", "length", "truncated"),
    ),
    "all": None,
}
SAMPLE_MB = 0.25  # of the rollouts of a run, with columns="sample"
# A run goes on for its rollouts up to so many times its rounds. A method that samples next to
# nothing would otherwise never end.
MOST_ROUNDS = 10


@dataclass(frozen=True)
class Case:
    """One run of a sweep.

    Attributes
    ----------
    name : str
        Such as pods/seed-0.
    values : dict
        Its parameters, as the grid gives them.
    record, logs : Path
        Directories of its record, and of everything else that it leaves.
    notebook : Path, optional
        What it runs through; None for a run made directly.
    sets_out : bool
        Whether the notebook's parameter `out` is set to the record.
    mixed : bool
        Whether a run may go on that was begun under other conditions, see `Run`.
    method, lab : Pickle, optional
        The method and the lab as objects, in place of the names among its parameters. A trial has
        them. A grid cannot, since this runs code.
    """

    name: str
    values: dict[str, Any]
    record: Path
    logs: Path
    notebook: Path | None = None
    sets_out: bool = False
    mixed: bool = False
    method: Pickle | None = None
    lab: Pickle | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """Its parameters with the defaults of those that the grid leaves out."""
        return {**PARAMETERS, **self.values}

    @property
    def outcome(self) -> dict[str, Any]:
        """What `outcome.json` says; empty before the run has ended, and where it is damaged."""
        try:
            outcome = json.loads(read_ordinary(self.logs / "outcome.json"))
        except (OSError, ValueError, RecursionError):
            return {}
        # All that `end` writes, or nothing.
        return outcome if isinstance(outcome, dict) and outcome.keys() == OUTCOME else {}

    @property
    def finished(self) -> bool:
        """Whether it ended well, and what it made is still there."""
        if self.outcome.get("status") != "done":
            return False
        if self.notebook:
            return (self.logs / "notebook.ipynb").exists()
        return exists(self.record)

    def set_aside(self, report: Callable[[str], Any]) -> None:
        """Move a record that is damaged out of the way, so that the run is made again.

        The reason is reported. ValueError for one on a shelf with the records of other runs.
        """
        damage = damage_of(self.record) if self.finished and not self.notebook else ""
        if not damage:
            return
        if not self.record.is_dir():
            raise ValueError(
                f"{damage}; {self.name} is packed together with other runs, so it is not made "
                "again: bring back a copy of these files, or name another directory"
            )
        # Names that begin with a dot are not looked at by whoever looks for records.
        aside = self.record.with_name(f".{self.record.name}-damaged-{time.time_ns()}")
        self.record.rename(aside)
        report(f"{damage}; {self.name} is made again, and what is left of it is in {aside}")

    def make(self) -> dict[str, Any]:
        """Make the run, or go on with it; returns what came of it, for the table of the sweep."""
        return run_through_notebook(self) if self.notebook else run_directly(self)

    def end(self, status: str, error: str = "", results: Any = None, seconds: Any = None) -> None:
        """Write `outcome.json`, complete or not at all."""
        outcome = {
            "status": status,
            "error": error,
            "results": results or {},
            "seconds": seconds,
            "fingerprint": self.fingerprint(),
        }
        make_directory(self.logs)
        # As a record's files are written: a killed process and a loss of power leave the outcome
        # complete or not there.
        write(self.logs / "outcome.json", json.dumps(outcome, indent=1).encode())

    def fingerprint(self) -> str:
        """A digest of what is run: the parameters, and the code of the notebook."""
        # What a run is expected to cost changes nothing about what it does. Of a notebook only the
        # code counts, so that texts and outputs may be edited between two starts.
        values = {**self.values, "cost": None}
        # A sample is taken of a run that otherwise keeps no rollouts.
        if values.get("columns") == "sample":
            values["columns"] = "none"
        parts: list[Any] = [values]
        parts += [part.fingerprint for part in (self.method, self.lab) if part is not None]
        if self.notebook is not None:
            cells = json.loads(self.notebook.read_text())["cells"]
            parts += ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        return digest_of(parts)


def execute(case: Case) -> None:
    """Run a case to its end and write its outcome; an error becomes the outcome."""
    case.logs.mkdir(parents=True, exist_ok=True)
    # A process that a killed sweep left on another machine may still be at work on this run.
    with FileLock(case.logs / "lock"):
        # It may have been finished by the process that held the lock until now.
        if case.finished:
            return
        started = time.perf_counter()
        try:
            results = case.make()
            status, error = "done", ""
        # A run that fails stops no other. The error becomes its outcome and the traceback is in its
        # log.
        except Exception as failure:
            traceback.print_exc()
            results, status, error = {}, "failed", _first_line(failure)
        seconds = round(time.perf_counter() - started, 3)
        print(f"{case.name}: {status} after {seconds:.1f} s", flush=True)
        case.end(status, error, results, seconds)


# Directly


def prepare(case: Case, method: Method | None = None, lab: Lab | None = None) -> Any:
    """The `Run` of a case; ValueError for whatever is wrong with its parameters.

    A complete record is packed and cannot be opened to go on. It is only compared with what is
    asked for. `method` and `lab` are those that the case carries, where this process has them.
    """
    values = case.parameters
    one_of("columns", values["columns"], KEPT_COLUMNS)
    whole_number("rounds", values["rounds"], 1)
    if values["cost"] is not None:
        positive_number("cost", values["cost"])
    if values["rollouts"] is not None:
        whole_number("rollouts", values["rollouts"], 1)
    options = {name: values[name] for name in ARGUMENTS if values[name] is not None}
    if method is None and case.method is not None:
        method = case.method.load()
    if lab is None and case.lab is not None:
        lab = case.lab.load()
    complete = is_complete(case)
    run = Run(
        lab or _lab(json.dumps(dict(config.mapping("lab", values["lab"])), sort_keys=True)),
        method or config.method(values["method"], values["arguments"], values["settings"]),
        out=None if complete else case.record,
        label=values["label"],
        mixed=case.mixed,
        **options,
    )
    if complete:
        run.check_recorded(load(case.record).manifest, case.record)
    return run


def is_complete(case: Case) -> bool:
    """Whether the record of a case has all its rounds and is packed, which is the last step."""
    if not exists(case.record):
        return False
    # A packed record that is damaged is no run that could go on, so it is named here.
    record = load(case.record, strict=True)
    if not record.is_packed:
        return False
    values = case.parameters
    return len(record.rounds) >= values["rounds"] and not lacks_rollouts(values, record.rounds)


@functools.lru_cache(maxsize=1)
def _lab(text: str) -> Lab:
    """The lab with these arguments, as JSON. Runs that follow one another mostly share it."""
    options = json.loads(text)
    return config.lab(options.pop("name", "tiny"), options)


def lacks_rollouts(values: dict[str, Any], table: pd.DataFrame) -> bool:
    """Whether a run with this table of rounds has to go on for the rollouts that it should have."""
    if values["rollouts"] is None or len(table) >= MOST_ROUNDS * values["rounds"]:
        return False
    return bool(table["rollouts"].sum() < values["rollouts"])


def run_directly(case: Case) -> dict[str, Any]:
    """Make the run and pack its record; returns what came of it."""
    values = case.parameters
    run = prepare(case)
    if not is_complete(case):
        _train(run, values)
        # The last step, since a packed record cannot go on. `is_complete` relies on that.
        kept = KEPT_COLUMNS[values["columns"]]
        if kept is not None:
            sampled = values["columns"] == "sample"
            pack(case.record, kept, megabytes=SAMPLE_MB if sampled else None)

    record = load(case.record)
    table = record.rounds
    results = {
        "rounds": len(table),
        "rollouts": int(table["rollouts"].sum()),
        "training_seconds": round(float(table["seconds"].sum()), 1),
    }
    curve = record.accuracy()
    if len(curve):
        results["accuracy"] = round(float(curve["accuracy"].iloc[-1]), 4)
        results["greedy"] = round(float(curve["greedy"].iloc[-1]), 4)
    return results


def _train(run: Run, values: dict[str, Any]) -> None:
    """Make the rounds of a run, and those that it needs for its rollouts."""
    rounds = values["rounds"]
    while True:
        # Of a run with all its rounds, this makes the last evaluation where it is missing.
        for _ in run.rounds(rounds, progress=False):
            pass
        if not lacks_rollouts(values, run.record.rounds):
            return
        # From evaluation to evaluation, so that the last one is of the end. A run that was killed
        # comes past the same numbers of rounds again.
        rounds += run.evaluate_every or 1


# Through a notebook


def run_through_notebook(case: Case) -> dict[str, Any]:
    """Execute the notebook by papermill; returns what its cell tagged `results` printed."""
    import papermill

    assert case.notebook is not None
    folder = os.path.relpath(case.notebook.parent, case.logs)
    parameters = dict(case.values)
    if case.sets_out:
        parameters["out"] = os.path.relpath(case.record, case.notebook.parent)
    # Relative paths, so that the executed notebook names no path of this machine.
    os.chdir(case.logs)
    # The runs of the notebook have no other way to know their label, and what may be mixed.
    told = {"WORKBENCH_LABEL": parameters["label"]} if "label" in parameters else {}
    told |= {"WORKBENCH_MIXED": "1"} if case.mixed else {}
    with patch.dict(os.environ, told):
        notebook = papermill.execute_notebook(
            os.path.join(folder, case.notebook.name),
            "notebook.ipynb",
            parameters,
            cwd=folder,
            progress_bar=False,
            # Otherwise the kernel is interrupted first, and the log ends in an error that is none.
            shutdown_kernel="immediate",
        )
    return read_results(notebook)


def read_results(notebook: Any) -> dict[str, Any]:
    """The JSON object that the cell tagged `results` printed last; empty without such a cell."""
    cells = [cell for cell in notebook.cells if "results" in cell.metadata.get("tags", [])]
    if not cells:
        return {}
    # A cell may print more before, so only its last line is read.
    streams = [output for output in cells[-1].outputs if output.get("name") == "stdout"]
    lines = "".join(output.text for output in streams).strip().splitlines()
    try:
        results = json.loads(lines[-1])
        plain = not any(isinstance(value, dict | list) for value in results.values())
    except (ValueError, IndexError, AttributeError):
        plain = False
    if not plain:
        raise ValueError(
            "cell tagged `results`: the last line that it printed is no JSON object of numbers "
            "and texts"
        )
    return results


def _first_line(error: Exception) -> str:
    # papermill's error of a cell names the error in the cell.
    told = vars(error)
    kind = told.get("ename", type(error).__name__)
    return f"{kind}: {told.get('evalue', error)}".splitlines()[0]
