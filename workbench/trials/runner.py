"""Working through a grid: the runs that are missing, several at a time, one process a core.

On disk, under the output directory: `sweep.json`, what is run; `results.csv`; the records, in
LABEL/seed-N, unless the grid names another folder for them; and the directory logs/LABEL/seed-N of
each run, see `cases`. A second start makes what is missing or failed, and waits for a first one
that is still at work. It may have other runs than the first, but not the same with other
parameters.

On Ray every node needs this package, and the output directory under the same path.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.records.errors import RecordError
from workbench.records.parts import ROUNDS
from workbench.trials.cases import PARAMETERS, Case, prepare
from workbench.trials.grids import read
from workbench.trials.workers import NOTEBOOK_MODULES, RUN_MODULES, Cluster, Processes
from workbench.utils.machine import cores
from workbench.utils.numbers import duration
from workbench.utils.processes import signals_raise
from workbench.utils.validation import whole_number

if TYPE_CHECKING:
    import pandas as pd


def sweep(
    grid: Any,
    *,
    out: Any = None,
    jobs: int | None = None,
    ray: str | None = None,
    gpus: float = 0.0,
    own: Mapping[str, str] | None = None,
    records: Any = None,
    by_seed: bool = False,
    report: Callable[[str], Any] = print,
) -> pd.DataFrame:
    """Make the runs of a grid.

    Parameters
    ----------
    grid : path or dict
        A YAML file, or its content; see `workbench.trials.grids`.
    out : path, optional
        The output directory, runs/sweeps/NAME by default, NAME being the file's.
    jobs : int, optional
        Runs side by side, each on one thread; None for one a core.
    ray : str, optional
        None for processes of this machine, "local" for a Ray of its own on this machine, "auto" or
        an address for a running cluster.
    gpus : float
        GPUs that each run takes on Ray.
    own : dict from label to "module:function", optional
        The cases with these labels take the `Method` that this function returns, in place of a
        method by name. It is imported by the processes that run, from what is installed or from the
        working directory, so its code runs. A grid cannot ask for that.
    records : path, optional
        Directory of the records, in place of the one that the grid names. A grid in a file, which
        may be a stranger's, can name one in the working directory or in `out` alone.
    by_seed : bool
        All runs of the lowest seed first, then those of the next one, so that what has been made
        can be compared at any time. False makes the longest run first, which ends soonest.
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
    _check_arguments(jobs, ray, gpus)
    name = "grid" if isinstance(grid, dict) else Path(grid).stem
    out = Path(out if out is not None else Path("runs", "sweeps", name)).absolute()
    cases = read(grid, out, own, records)
    # Before the lock, which is the first file that a sweep writes into its directory.
    _check_directory(out)
    with _only_one_sweep(out, report), signals_raise():
        # What is done is looked up under the lock, since another sweep may have made runs until
        # now.
        _check_same_runs(out, cases)
        for case in cases:
            if case.has_damaged_outcome:
                report(f"{case.name}: its outcome.json cannot be read; it counts as not finished")
        todo = [case for case in cases if not case.finished]
        if todo:
            if todo[0].notebook is not None:
                report(f"runs the code of the notebook {os.path.relpath(todo[0].notebook)}")
            # The longest first, so that none is left to the end.
            todo.sort(key=_rank(cases), reverse=True)
            if by_seed:
                todo.sort(key=lambda case: case.values.get("seed", 0))
            _make(cases, todo, out, jobs or cores(), ray, gpus, report)
        frame = _frame(cases)
        frame.to_csv(out / "results.csv", index=False)
    return frame


def _make(
    cases: Sequence[Case],
    todo: list[Case],
    out: Path,
    jobs: int,
    ray: str | None,
    gpus: float,
    report: Callable[[str], Any],
) -> None:
    """Make the runs `todo` of all the cases, in this order, and report each end."""
    directly = cases[0].notebook is None
    if ray is None:
        # First of all, since it imports while the runs are checked here.
        workers: Any = Processes(RUN_MODULES if directly else NOTEBOOK_MODULES)
    else:
        workers = Cluster(ray, jobs, gpus)
    # Ray sets handlers of its own when it starts, and a signal would end this process at once. So
    # ours are set once more.
    with signals_raise():
        try:
            if ray not in (None, "local"):
                jobs = len(todo)  # the cluster decides how many run side by side
            elif directly:
                _check_runs(todo)
            _work_off(workers, cases, todo, out, jobs, report)
        finally:
            workers.stop()


def _work_off(
    workers: Any,
    cases: Sequence[Case],
    todo: list[Case],
    out: Path,
    jobs: int,
    report: Callable[[str], Any],
) -> None:
    """Give the runs `todo` to the workers, `jobs` of them at a time, until all have ended."""
    runs = {case.name: case.values for case in cases}
    (out / "sweep.json").write_text(json.dumps(runs, indent=1) + "\n")
    before = f"{len(cases) - len(todo)} of {len(cases)} runs done before, "
    report(f"{before}{len(todo)} to make, {jobs} at a time{_time_left(todo, cases, jobs)}")

    # The next run starts as soon as one ends.
    running = 0
    while todo or running:
        while todo and running < jobs:
            workers.start(todo.pop(0))
            running += 1
        case, death = workers.wait()
        running -= 1
        # A process that was killed wrote no outcome. One that died after its outcome has done its
        # work.
        if death and not case.finished:
            case.end("failed", f"{death}; the same command goes on with it")
        ended = len(cases) - len(todo) - running
        left = _time_left(todo, cases, jobs)
        report(f"[{ended}/{len(cases)}] {_end(case)}{left}")


def _end(case: Case) -> str:
    """How a run ended, in a line."""
    outcome = case.outcome
    if outcome["status"] == "failed":
        return f"{case.name}: failed: {outcome['error']}; see {os.path.relpath(case.logs)}"
    accuracy = outcome["results"].get("accuracy")
    shown = "" if accuracy is None else f", accuracy {accuracy:.3f}"
    return f"{case.name}: done in {duration(outcome['seconds'])}{shown}"


def _frame(cases: Sequence[Case]) -> pd.DataFrame:
    """The table of all runs; a parameter or result called like another column gets a prefix."""
    import pandas as pd

    rows = []
    for case in cases:
        outcome = case.outcome
        row: dict[str, Any] = {"run": case.name, "status": outcome["status"]}
        row["seconds"] = outcome["seconds"]
        row["error"] = outcome["error"]
        row["logs"] = os.path.relpath(case.logs)
        # A notebook need not leave a record, so the table shows its parameters. The runs made
        # directly have them in their manifests.
        if case.notebook is not None:
            for name, value in case.values.items():
                row[f"parameter_{name}" if name in row else name] = value
        for name, value in outcome["results"].items():
            row[f"result_{name}" if name in row else name] = value
        rows.append(row)
    return pd.DataFrame(rows)


# Checks


def _check_arguments(jobs: int | None, ray: str | None, gpus: float) -> None:
    if jobs is not None:
        whole_number("jobs", jobs, 1)
    if ray not in (None, "local") and jobs is not None:
        raise ValueError(
            f"jobs={jobs}: a running Ray cluster decides itself how many run side by side; leave "
            "it out"
        )
    if gpus < 0 or (gpus and ray is None):
        raise ValueError(
            f"gpus={gpus}: a number of at least 0 is needed, and 0 without Ray, where every run "
            "sees all GPUs"
        )


def _check_directory(out: Path) -> None:
    """ValueError for a directory that holds something else, before anything is written to it."""
    if not out.exists() or (out / "sweep.json").exists():
        return
    if not out.is_dir() or any(file.name != "sweep.lock" for file in out.iterdir()):
        raise ValueError(
            f"out={str(out)!r}: it holds something else than a sweep; name another directory"
        )


def _check_same_runs(out: Path, cases: Sequence[Case]) -> None:
    for case in cases:
        if case.finished and case.outcome["fingerprint"] != case.fingerprint():
            raise ValueError(
                f"out={str(out)!r}: {case.name} was made there with other parameters, or before "
                "the notebook's code was changed; name another directory"
            )


def _check_runs(cases: Sequence[Case]) -> None:
    for case in cases:
        try:
            prepare(case)
        except ValueError as error:
            raise ValueError(f"{case.name}: {error}") from None


@contextmanager
def _only_one_sweep(out: Path, report: Callable[[str], Any]) -> Iterator[None]:
    """Wait for another sweep in the same directory; the kernel frees the lock of one that died."""
    from filelock import FileLock, Timeout

    out.mkdir(parents=True, exist_ok=True)
    # First without waiting, only to be able to say that there is something to wait for.
    lock = FileLock(out / "sweep.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(f"another sweep is at work in {out}; waiting for it to end")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


# How long it takes


def makespan(seconds: Sequence[float], jobs: int) -> float:
    """When the last of these ends, each taken in turn by the first of `jobs` that is free.

    >>> makespan([4, 3, 2, 1], 2)
    5.0
    """
    free = [0.0] * jobs
    for each in seconds:
        # The job that is free first takes the next run and is busy until that ends.
        heapq.heappush(free, heapq.heappop(free) + each)
    return max(free)


def expected_seconds(cases: Sequence[Case]) -> dict[str, float]:
    """How long each run should take, by name; nothing for a run that nothing is known of.

    As the grid's `cost` says or, a round, as runs of the same label took, here or in their
    records. Without any, the mean of the other labels is taken.
    """
    measured: dict[Path, float] = {}  # seconds a round, by the directory of the label
    for case in cases:
        seconds = _seconds_a_round(case)
        if seconds is not None:
            # The runs of one label, in one directory, differ by their seeds and take about the same
            # time.
            measured.setdefault(case.record.parent, seconds)
    expected = {}
    for case in cases:
        cost = case.values.get("cost")
        if cost is None and measured:
            mean = sum(measured.values()) / len(measured)
            cost = measured.get(case.record.parent, mean) * _rounds(case)
        if cost:
            expected[case.name] = float(cost)
    return expected


def _seconds_a_round(case: Case) -> float | None:
    # A finished run tells its whole time, start and evaluations included. A record that was begun
    # tells the time of its rounds only.
    if case.outcome.get("status") == "done" and _rounds(case):
        return case.outcome["seconds"] / _rounds(case)
    table = case.record / ROUNDS
    if not table.exists():
        return None
    from workbench.records.tables import read_table

    # A run that is going on replaces its table after every round. `read_table` opens it once, where
    # Arrow's own opens it twice and may meet two tables.
    try:
        seconds = read_table(table, ROUNDS, ["seconds"])["seconds"].to_numpy()
    except RecordError:
        # The run itself says what is wrong with its record. How long it takes is not known.
        return None
    # A run that was stopped before its first round has a table without rows.
    return float(seconds.mean()) if len(seconds) else None


def _rounds(case: Case) -> int:
    """Rounds of a run; 0 where a notebook does not say."""
    rounds = case.values.get("rounds", PARAMETERS["rounds"] if case.notebook is None else 0)
    return rounds if isinstance(rounds, int) else 0


def _rank(cases: Sequence[Case]) -> Callable[[Case], float]:
    """What runs are ordered by, so that no long one is left to the end: seconds, or rounds."""
    expected = expected_seconds(cases)
    return lambda case: expected.get(case.name, _rounds(case))


def _time_left(todo: Sequence[Case], cases: Sequence[Case], jobs: int) -> str:
    """How long the runs that wait should take together, as the end of a line."""
    if not todo:
        return ""
    expected = expected_seconds(cases)
    if any(case.name not in expected for case in todo):
        return "; nothing says yet how long they take"
    seconds = makespan([expected[case.name] for case in todo], jobs)
    return f"; about {duration(seconds)} for the {len(todo)} that wait"
