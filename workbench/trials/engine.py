"""Making many runs: several at a time, on this machine or on a Ray cluster.

Grids, tuning, trials, the leaderboard and the search all make their runs here. `at_work` gives a
function that takes cases, each of which says what to run and where its record and its logs go, and
makes those that are not finished. A case that fails, or whose process dies, stops no other one.
Whoever comes again with the same cases goes on where it ended.

On this machine every case gets a process of its own, forked from the standard library's forkserver.
The forkserver has imported torch and transformers, so that a run starts within a tenth of a second.
It stays, ready for the next call, until Python ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection, forkserver
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO
from unittest.mock import patch

from filelock import FileLock, Timeout
from tqdm import tqdm

from workbench.policies.checks import check_packages
from workbench.records.files import WRITING
from workbench.trials.cases import Case, execute
from workbench.utils.machine import cores
from workbench.utils.numbers import duration
from workbench.utils.processes import die_with_parent, handlers_kept, signals_raise
from workbench.utils.validation import whole_number

# What a run imports, the largest first. Modules that are not installed are left out.
PRELOAD = (
    "torch",
    "transformers",
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen3.modeling_qwen3",  # the tiny lab's models are of this kind
    "cloudpickle",
    "pandas",
    "scipy.stats",
    "workbench.policies.transformers",
    "workbench.run",
    "papermill",
)
# Small models are slower with more threads, and one process runs on each core.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
DEFAULTS = {
    "JUPYTER_PREFER_ENV_PATH": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Asking torch whether there is a GPU must not initialise CUDA, which could not be forked then.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
CONTEXT = multiprocessing.get_context("forkserver")
STOP_SECONDS = 10
SERVER_DIED = 255  # what multiprocessing takes for the exit code where the forkserver was killed


@contextmanager
def at_work(
    *,
    jobs: int | None = None,
    ray: str | None = None,
    gpus: float = 0.0,
    report: Callable[[str], Any] = print,
    ended: Callable[[Case], Any] = lambda case: None,
) -> Iterator[Callable[[Sequence[Case]], None]]:
    """Workers, for as long as the block lasts: a function that makes the runs of cases.

    The function makes those that are not finished, in their order. Each case leaves its outcome,
    see `Case.outcome`. Within the block, SIGTERM and SIGHUP end it with exit status 128 + n, as an
    interrupt does with 130, and every run ends with it.

    Parameters
    ----------
    jobs : int, optional
        Runs side by side, each on one thread. None makes one for each core, or as many as a running
        Ray cluster has room for.
    ray : str, optional
        None for processes of this machine, "local" for a Ray of its own on this machine, "auto" or
        an address for a running cluster.
    gpus : float
        GPUs that each run takes on Ray.
    report : function
        Called with a line of text at the start and for each run that ends.
    ended : function
        Called with each case that has ended; what it raises ends the block.

    Raises
    ------
    ValueError
        For wrong arguments, before anything runs.
    """
    check_arguments(jobs, ray, gpus)
    side_by_side = jobs or (cores() if ray in (None, "local") else None)
    with signals_raise():
        workers: Any = Processes() if ray is None else Cluster(ray, side_by_side, gpus)

        def work_off(cases: Sequence[Case]) -> None:
            waiting = [case for case in cases if not case.finished]
            if not waiting:
                return
            started = time.monotonic()
            at_a_time, total = side_by_side or len(waiting), len(cases)
            done = total - len(waiting)
            report(
                f"{done} of {total} runs done before, {len(waiting)} to make, {at_a_time} at a time"
            )
            while done < total:
                # The next run starts as soon as one ends.
                while waiting and len(workers.running) < at_a_time:
                    workers.start(waiting.pop(0))
                case, death = workers.wait()
                done += 1
                # A process that was killed wrote no outcome. One that died after its outcome has
                # done its work.
                if not case.finished and (death or not case.outcome):
                    cause = death or "its process ended by itself, as it does by sys.exit()"
                    case.end("failed", f"{cause}; the same command goes on with it")
                elapsed = duration(time.monotonic() - started)
                report(f"[{done}/{total}] {_how_it_ended(case)}; {elapsed} so far")
                ended(case)

        try:
            yield work_off
        finally:
            workers.stop()


@contextmanager
def only_one(lock: Path, report: Callable[[str], Any]) -> Iterator[None]:
    """Wait for another call in the same directory; the kernel frees the lock of one that died."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    # First without waiting, only to be able to say that there is something to wait for.
    waiting = FileLock(lock)
    try:
        held = waiting.acquire(timeout=0)
    except Timeout:
        report(f"another {lock.stem} is at work in {lock.parent}; waiting for it to end")
        held = waiting.acquire()
    with held:
        yield


def check_directory(out: Path, mark: str, lock: str, what: str) -> None:
    """ValueError for a directory that holds something else, before anything is written to it."""
    if not out.exists() or (out / mark).exists():
        return
    # What a call leaves that is killed while it begins.
    begun = {lock, mark + WRITING}
    if not out.is_dir() or any(file.name not in begun for file in out.iterdir()):
        raise ValueError(
            f"out={str(out)!r}: it holds something else than a {what}; name another directory"
        )


def check_arguments(jobs: int | None, ray: str | None, gpus: float) -> None:
    """ValueError for what `at_work` cannot do."""
    if jobs is not None:
        whole_number("jobs", jobs, 1)
        if ray not in (None, "local"):
            raise ValueError(
                f"jobs={jobs}: a running Ray cluster decides itself how many run side by side; "
                "leave it out"
            )
    if gpus < 0 or (gpus and ray is None):
        raise ValueError(
            f"gpus={gpus}: a number of at least 0 is needed, and 0 without Ray, where every run "
            "sees all GPUs"
        )


def _how_it_ended(case: Case) -> str:
    outcome = case.outcome
    if outcome["status"] == "failed":
        return f"{case.name}: failed: {outcome['error']}; see {os.path.relpath(case.logs)}"
    accuracy = outcome["results"].get("accuracy")
    shown = "" if accuracy is None else f", accuracy {accuracy:.3f}"
    return f"{case.name}: done in {duration(outcome['seconds'])}{shown}"


# What carries out the cases. Both classes have `running`; `start(case)`, which returns at once;
# `wait()`, which returns a case that has ended and what its process died of ("" where it did not);
# and `stop()`, after which nothing is left running.


def start_forkserver() -> None:
    """Have the forkserver import what runs need, unless it runs already; returns at once."""
    CONTEXT.set_forkserver_preload(list(PRELOAD))
    with patch.dict(os.environ, ONE_THREAD):
        forkserver.ensure_running()


class Processes:
    """Processes of this machine, each forked from the forkserver."""

    def __init__(self) -> None:
        self.running: dict[Any, tuple[Case, Any]] = {}  # case and process, by sentinel
        # Processes start in a thread, since interrupts are raised in the main one. Amid a start
        # they would end the forkserver, or leave a process that nobody knows of.
        self._starter = ThreadPoolExecutor(1)
        self._starter.submit(start_forkserver)

    def start(self, case: Case) -> None:
        """Run a case in a process of its own. A forkserver that was killed is started anew."""
        self._starter.submit(self._start, case).result()

    def _start(self, case: Case) -> None:
        process = CONTEXT.Process(target=_work, args=(case, dict(os.environ)))
        # Otherwise the process would import the main module of whoever called us, and a script
        # that makes its runs outside of `if __name__ == "__main__"` would start them once more.
        with patch.dict(sys.modules, {"__main__": ModuleType("__main__")}):
            process.start()
        self.running[process.sentinel] = (case, process)

    def wait(self) -> tuple[Case, str]:
        """The next case that has ended, and what killed its process."""
        [sentinel, *_] = connection.wait(list(self.running))
        case, process = self.running.pop(sentinel)
        process.join()
        return case, _cause_of_death(process.exitcode)

    def stop(self) -> None:
        """Kill what is running. Records are whole after any death and go on from a checkpoint."""
        self._starter.shutdown()
        for _, process in self.running.values():
            process.kill()
        for _, process in self.running.values():
            process.join()


def _open_log(case: Case) -> TextIO:
    """The log of a case, empty."""
    path = case.logs / "log.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whatever lies there is removed rather than opened: it could be a pipe, or a link.
    path.unlink(missing_ok=True)
    return path.open("w")


def _work(case: Case, environment: dict[str, str]) -> None:
    """One case in a process of its own, everything that it prints going to its log."""
    # Nothing outlives the caller. The kernel kills this process when the forkserver
    # is killed, and the thread ends it when the caller is gone, by whatever signal.
    die_with_parent(os.getppid())
    threading.Thread(target=_end_with_caller, daemon=True).start()
    # A session of its own, so that an interrupt from the terminal reaches the caller alone.
    os.setsid()
    # That of tqdm is shared by processes, and one that is killed would leave it behind.
    tqdm.set_lock(threading.RLock())
    # The forkserver may be older than what the caller has set since.
    os.environ.update({**DEFAULTS, **environment, **ONE_THREAD})
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    with _open_log(case) as log:
        # By descriptor, so that what C libraries and subprocesses print goes to the log too.
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    execute(case)


def _end_with_caller() -> None:
    caller = multiprocessing.parent_process()
    assert caller is not None
    connection.wait([caller.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)


def _cause_of_death(code: int) -> str:
    """What an exit code says: "" for 0; negative ones are signals."""
    if code == 0:
        return ""
    if code == SERVER_DIED:
        return "the process that starts runs was killed"
    if code > 0:
        return f"its process ended with exit code {code}; see its log"
    return f"its process was killed by {signal.Signals(-code).name}"


class Cluster:
    """A Ray cluster. A case runs in Ray's worker process itself, so it dies with its worker.

    Every node needs this package, and the directories of the cases under the same paths.

    Parameters
    ----------
    address : str
        "local" for a cluster of its own on this machine, "auto" or an address for a running one.
    jobs : int
        Runs side by side on a local cluster; a running one decides that itself.
    gpus : float
        GPUs that each run takes. Ray hides the others from it.
    """

    def __init__(self, address: str, jobs: int | None, gpus: float = 0.0) -> None:
        check_packages("ray")
        import ray

        self.ray = ray
        self.running: dict[Any, Case] = {}
        options: dict[str, Any] = {
            "address": address,
            "log_to_driver": False,
            "logging_level": "error",
            "runtime_env": {"env_vars": {**DEFAULTS, **ONE_THREAD}},
        }
        if address == "local":
            options |= {"num_cpus": jobs, "include_dashboard": False}
        try:
            # In this thread, with whose end the kernel kills the processes that it started.
            with handlers_kept():
                ray.init(**options)
        except Exception as error:  # Ray raises errors of many kinds
            reason = str(error).splitlines()[0]
            raise ConnectionError(
                f"ray={address!r}: no cluster could be started or reached: {reason}"
            ) from error
        # Ray would wait for ever for GPUs that the cluster does not have.
        available = ray.cluster_resources().get("GPU", 0)
        if gpus > available:
            self.stop()
            raise ValueError(f"gpus={gpus}: this Ray cluster has {available:g}")
        # No retries: a run that killed its worker once would do so again, and the next call goes
        # on from its checkpoint.
        self.remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_execute_logged)

    def start(self, case: Case) -> None:
        """Hand a case to the cluster."""
        self.running[self.remote.remote(case)] = case

    def wait(self) -> tuple[Case, str]:
        """The next case that has ended, and what killed its worker."""
        (ended,), _ = self.ray.wait(list(self.running), num_returns=1)
        case = self.running.pop(ended)
        try:
            # The case writes its own outcome. Fetching the empty result only tells how the worker
            # ended.
            self.ray.get(ended)
        except self.ray.exceptions.RayError as error:
            return case, str(error).strip().splitlines()[0]
        return case, ""

    def stop(self) -> None:
        """End the workers of the cases at work, and leave the cluster."""
        for reference in self.running:
            self.ray.cancel(reference, force=True)
        if self.running:
            self.ray.wait(list(self.running), num_returns=len(self.running), timeout=STOP_SECONDS)
        self.ray.shutdown()


def _execute_logged(case: Case) -> None:
    """A case with everything that Python prints going to its log."""
    with (
        _open_log(case) as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        execute(case)
