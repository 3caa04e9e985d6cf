"""Many runs of one notebook: the runs of a grid (see `grids`) by papermill, side by side or on a Ray cluster.

In the notebook. A parameter `out` of type str that the grid does not mention is set to the directory `record` of the
run, relative to the notebook's own directory, in which the notebook works. A code cell tagged `results` may print one
line of JSON, an object of numbers and strings; its entries become columns of the frame, `result_NAME` where NAME is a
column already. A parameter named like a column of the sweep becomes `parameter_NAME`.

On disk, under the output directory: `sweep.json`, what is run; `source.ipynb`, the notebook without its outputs;
`results.csv`; and a directory for each run with the executed notebook, kept after an error too, `log.txt`, `run.json`
and `record`. A second start runs what is missing or failed. It may have more runs than the first, but not fewer or
other ones, and not another notebook: code changed since then is refused, text between the code is not looked at. Changes
of this package are not noticed, nor is a second start while the first still runs.

On Ray. Every node needs this package and the output directory under the same path.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from workbench.sweeps.grids import needed, read, tagged
from workbench.utils.validation import whole_number

COLUMNS = (
    "run",
    "status",
    "seconds",
    "error",
    "notebook",
)  # of the frame, besides parameters and results
PATIENCE = 10  # seconds for a stopped run to shut its kernel down


@dataclass(frozen=True, eq=False)
class Job:
    """One run: its name, what the grid says of it, and where it is kept, an absolute path."""

    name: str
    parameters: dict
    directory: Path
    folder: Path  # the notebook's own
    record: bool  # whether `out` is set for it

    @property
    def outcome(self):
        """What `run.json` says, a dict; None before the run has ended."""
        try:
            return json.loads((self.directory / "run.json").read_text())
        except FileNotFoundError:
            return None

    @property
    def finished(self):
        outcome = self.outcome
        return (
            bool(outcome)
            and outcome["status"] == "done"
            and (self.directory / "notebook.ipynb").exists()
        )


def sweep(grid, *, out=None, jobs=None, ray=None, gpus=0, report=print):
    """Runs a grid; a DataFrame with one row for each run, in the grid's order.

    grid: path of a YAML file, or its content as a dict (then `notebook` is relative to the working directory).
    out: output directory, by default runs/sweeps/NAME, NAME being the file's; one that holds another sweep is refused.
    jobs: runs side by side, each with one thread; None for one a core. ray: None for processes on this machine, "local" for
    a Ray of its own on this machine, "auto" or an address for a running cluster. gpus: what each run takes of them there;
    Ray hides those not asked for. report: called with a line of text for each run that ends.

    Columns: run, the grid's parameters, status ("done" or "failed"), seconds, error, notebook (the executed one), and
    the notebook's results. A run that fails stops no other. ValueError or FileNotFoundError, before anything runs, for
    what is wrong with the grid; ImportError without papermill.
    """
    needed("papermill")
    grid = read(grid)
    if jobs is not None:
        whole_number("jobs", jobs, 1)
    if ray not in (None, "local") and jobs is not None:
        raise ValueError(
            f"jobs={jobs}: a running Ray cluster itself decides how many run side by side; leave it out"
        )
    if gpus < 0 or (gpus and ray is None):
        raise ValueError(
            f"gpus={gpus}: a number of at least 0 is needed, 0 without Ray, where every run sees all GPUs"
        )
    out = Path(out if out is not None else Path("runs", "sweeps", grid.name)).absolute()
    todo = [
        Job(name, parameters, out / name, grid.notebook.parent, grid.sets_out)
        for name, parameters in grid.runs.items()
    ]
    start = _on_ray(ray, jobs, gpus) if ray is not None else _processes(jobs)
    _claim(out, grid.notebook, grid.runs)
    _watch(todo, start, report)
    frame = _frame(todo)
    frame.to_csv(out / "results.csv", index=False)
    return frame


# the output directory


def _claim(out, notebook, runs):
    """Makes the output directory, or takes the one that an earlier start of this sweep left."""
    import nbformat

    manifest, source = out / "sweep.json", nbformat.read(notebook, as_version=4)
    if manifest.exists():
        _same_sweep(out, source, notebook.name, runs)
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(
            f"out={str(out)!r}: holds something else than a sweep; name another directory"
        )
    out.mkdir(parents=True, exist_ok=True)
    for cell in source.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    source.metadata.pop("widgets", None)
    nbformat.write(source, out / "source.ipynb")
    _write(manifest, {"notebook": notebook.name, "runs": runs})


def _same_sweep(out, source, notebook, runs):
    import nbformat

    theirs = json.loads((out / "sweep.json").read_text())
    where = f"out={str(out)!r}: holds"
    if theirs["notebook"] != notebook:
        raise ValueError(
            f"{where} a sweep over {theirs['notebook']}, not {notebook}; name another directory"
        )
    if _code(nbformat.read(out / "source.ipynb", as_version=4)) != _code(source):
        raise ValueError(
            f"{where} runs of {notebook} before its code was changed; name another directory"
        )
    odd = [name for name, parameters in theirs["runs"].items() if runs.get(name) != parameters]
    if odd:
        raise ValueError(
            f"{where} another sweep: {odd[0]!r} is not among these runs; name another directory"
        )


def _code(notebook):
    return [
        (cell.source, cell.metadata.get("tags", []))
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def _write(path, value):
    """JSON, complete or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value, indent=1))
    temporary.replace(path)


# running


def _watch(todo, start, report):
    """Runs what is not finished and reports each end."""
    place = {job.name: f"[{number}/{len(todo)}]" for number, job in enumerate(todo, 1)}
    for job in todo:
        if job.finished:
            report(f"{place[job.name]} {job.name}: done before")
    with closing(start([job for job in todo if not job.finished])) as ended:
        for job in ended:
            row = _row(job)
            seconds = f" in {row['seconds']:.0f} s" if row["seconds"] is not None else ""
            said = f": {row['error']}; see {row['notebook']}" if row["error"] else ""
            report(f"{place[job.name]} {job.name}: {row['status']}{seconds}{said}")


def _processes(limit):
    """A generator function from jobs to those that ended, `limit` of them side by side on this machine."""
    limit = limit or _cores()

    def start(jobs):
        waiting, running = list(jobs), {}
        try:
            while waiting or running:
                while waiting and len(running) < limit:
                    job = waiting.pop(0)
                    running[job] = _launch(job)
                for job in [job for job, process in running.items() if process.poll() is not None]:
                    del running[job]
                    yield job
                time.sleep(0.05)
        finally:
            _stop(running.values())

    return start


def _on_ray(address, limit, gpus):
    """The same on Ray: a cluster started for this sweep ("local"), or a running one."""
    try:
        import ray
    except ImportError:
        raise ImportError("a sweep on Ray needs a package: pip install 'ray>=2.50'") from None
    if ray.is_initialized():
        raise ValueError(
            f"ray={address!r}: this process is connected to Ray already; call ray.shutdown() first"
        )

    def start(jobs):
        running = {}
        try:
            _connect(ray, address, limit)
            there = ray.cluster_resources().get("GPU", 0)
            if gpus > there:
                raise ValueError(f"gpus={gpus}: this Ray cluster has {there:g}")
            run = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_wait)
            running |= {run.remote(job): job for job in jobs}
            while running:
                (ended,), _ = ray.wait(list(running), num_returns=1)
                yield running.pop(ended)
        finally:
            _cancel(ray, list(running))
            ray.shutdown()

    return start


def _connect(ray, address, limit):
    options = (
        {"num_cpus": limit or _cores(), "include_dashboard": False} if address == "local" else {}
    )
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", **options)
    except Exception as error:  # Ray raises bare ones
        said = str(error).splitlines()[0]
        raise ConnectionError(
            f"ray={address!r}: no cluster could be started or reached: {said}"
        ) from error


def _cancel(ray, running):
    for reference in running:
        ray.cancel(reference)
    if running:
        ray.wait(running, num_returns=len(running), timeout=PATIENCE)


def _cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _launch(job):
    """Starts the process of a run; what an earlier one left of the outcome goes first."""
    job.directory.mkdir(parents=True, exist_ok=True)
    (job.directory / "run.json").unlink(missing_ok=True)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {
        "JUPYTER_PREFER_ENV_PATH": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **os.environ,
        **threads,
    }
    environment.pop("MPLBACKEND", None)  # notebooks show their figures
    with open(job.directory / "log.txt", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "workbench.sweeps.runner"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )  # an interrupt is ours to pass on
    asked = {
        "parameters": job.parameters,
        "directory": str(job.directory),
        "folder": str(job.folder),
        "record": job.record,
    }
    with process.stdin as stdin:
        stdin.write(json.dumps(asked).encode())
    return process


def _wait(job):
    """A run from start to end, on a Ray worker."""
    process = _launch(job)
    try:
        process.wait()
    finally:
        _stop([process])


def _stop(processes):
    """Ends processes as an interrupt would, so that they take their kernels with them."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _execute(asked):
    """One run, in a process of its own: executes the notebook and writes `run.json`."""
    papermill = needed("papermill")
    from nbclient.exceptions import DeadKernelError

    directory, started = Path(asked["directory"]), time.perf_counter()
    os.chdir(directory)  # so that the executed notebook names no path of this machine
    folder, parameters = os.path.relpath(asked["folder"]), dict(asked["parameters"])
    if asked["record"]:
        parameters["out"] = os.path.relpath("record", asked["folder"])
    outcome = {"status": "failed", "error": "", "results": {}}
    try:
        notebook = papermill.execute_notebook(
            "../source.ipynb", "notebook.ipynb", parameters, cwd=folder, progress_bar=False
        )
        outcome |= {"results": _results(notebook), "status": "done"}
    except papermill.PapermillExecutionError as error:
        outcome["error"] = f"{error.ename}: {error.evalue}".splitlines()[0]
    except (DeadKernelError, ValueError) as error:
        outcome["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    _write(directory / "run.json", {**outcome, "seconds": round(time.perf_counter() - started, 3)})


# results


def _results(notebook):
    """What the cell tagged `results` printed, a dict; empty without such a cell."""
    cells = [cell for cell in notebook.cells if tagged(cell, "results")]
    if not cells:
        return {}
    printed = (
        "".join(output.text for output in cells[-1].outputs if output.get("name") == "stdout")
        .strip()
        .splitlines()
    )
    try:
        results = json.loads(printed[-1] if printed else "")
    except json.JSONDecodeError:
        results = None
    if not isinstance(results, dict) or any(
        isinstance(value, (dict, list)) for value in results.values()
    ):
        raise ValueError(
            "cell tagged `results`: its last printed line is no JSON object of numbers and strings"
        )
    return results


def _row(job):
    """A run's row: its end or, where the process died before it could tell, the last line of its log."""
    outcome = job.outcome
    if outcome is None:
        log = (job.directory / "log.txt").read_text(errors="replace").strip().splitlines()
        outcome = {
            "status": "failed",
            "seconds": None,
            "results": {},
            "error": f"the process died: {(log or ['no log'])[-1]}",
        }
    named = {
        f"parameter_{name}" if name in COLUMNS else name: value
        for name, value in job.parameters.items()
    }
    row = {"run": job.name, **named, **{name: outcome[name] for name in COLUMNS[1:4]}}
    row["notebook"] = os.path.relpath(job.directory / "notebook.ipynb")
    return row | {
        f"result_{name}" if name in row else name: value
        for name, value in outcome["results"].items()
    }


def _frame(jobs):
    import pandas as pd

    return pd.DataFrame([_row(job) for job in jobs])


if __name__ == "__main__":
    _execute(json.load(sys.stdin))
