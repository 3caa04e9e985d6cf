"""Working through a grid: the runs that are missing, and a table of what came of them.

On disk, under the output directory: `sweep.json`, what is run; `results.csv`; the records, in
LABEL/seed-N, unless the grid names another folder for them; and the directory logs/LABEL/seed-N of
each run, see `cases`. A second start makes what is missing or failed, and waits for a first one
that is still at work. It may have other runs than the first, but not the same with other
parameters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.records.files import replacing
from workbench.trials import engine
from workbench.trials.cases import PARAMETERS, Case, prepare
from workbench.trials.grids import read
from workbench.utils.processes import signals_raise

if TYPE_CHECKING:
    import pandas as pd

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
    out = Path(out if out is not None else Path("runs", "sweeps", name)).absolute()
    cases = read(grid, out, records)
    # Before the lock, which is the first file that a sweep writes into its directory.
    engine.check_directory(out, LISTED, LOCK, "sweep")
    with engine.only_one(out / LOCK, report), signals_raise():
        # What is done is looked up under the lock, since another sweep may have made runs until
        # now.
        _check_same_runs(out, cases)
        todo = [case for case in cases if not case.finished]
        if todo and todo[0].notebook is not None:
            report(f"runs the code of the notebook {os.path.relpath(todo[0].notebook)}")
        elif ray in (None, "local"):
            if todo and ray is None:
                engine.start_forkserver()  # which imports while the runs are checked here
            _check_runs(todo)
        if todo:
            runs = {case.name: case.values for case in cases}
            with replacing(out / LISTED) as temporary:
                temporary.write_text(json.dumps(runs, indent=1) + "\n")
            with engine.at_work(jobs=jobs, ray=ray, gpus=gpus, report=report) as work_off:
                # The longest run first, so that none is left to the end.
                work_off(sorted(cases, key=_shortness))
        frame = _frame(cases)
        with replacing(out / "results.csv") as temporary:
            frame.to_csv(temporary, index=False)
    return frame


def _shortness(case: Case) -> float:
    """Less the longer a run takes: by the cost that the grid says, or else by its rounds."""
    rounds = case.values.get("rounds", PARAMETERS["rounds"])
    return -float(case.values.get("cost") or (rounds if isinstance(rounds, int) else 0))


def _frame(cases: Sequence[Case]) -> pd.DataFrame:
    """The table of all runs; a parameter or result called like another column gets a prefix."""
    import pandas as pd

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
