"""What carries out the cases of a sweep: processes of this machine, or a Ray cluster.

Both have `start(case)`, which returns at once; `wait()`, which returns a case that has ended and
what its process died of ("" where it did not); and `stop()`, after which nothing is left running.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from workbench.trials.cases import Case, execute

# What a run imports, in the order of size; the architecture is that of the tiny lab's models.
RUN_MODULES = (
    "torch",
    "transformers",
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen3.modeling_qwen3",
    "pandas",
    "scipy.stats",
    "workbench.policies.transformers",
    "workbench.run",
)
NOTEBOOK_MODULES = ("papermill",)
# Models this small are slower with more threads, and there is one process a core.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
ENVIRONMENT = {
    "JUPYTER_PREFER_ENV_PATH": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Otherwise asking torch for a GPU would initialise CUDA, which no forked child can use then.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
STOP_SECONDS = 10


class Processes:
    """Processes of this machine, forked from a server that has imported everything.

    Parameters
    ----------
    modules : names
        What the server imports.
    """

    def __init__(self, modules: tuple[str, ...] = RUN_MODULES) -> None:
        self.modules = modules
        self.running: dict[str, Case] = {}
        self.lost: list[Case] = []  # cases whose server was killed
        self._launch()

    def start(self, case: Case) -> None:
        """Run a case in a process of its own."""
        # A server that was killed is replaced, and the sweep goes on.
        if self.server.poll() is not None:
            self._launch()
        self.running[case.name] = case
        with contextlib.suppress(OSError):  # a server killed just now is noticed by `wait`
            self.connection.send(case)

    def wait(self) -> tuple[Case, str]:
        """The next case that has ended, and what killed its process."""
        if not self.lost:
            try:
                name, code = self.connection.recv()
                return self.running.pop(name), _cause_of_death(code)
            except (EOFError, OSError):
                # The kernel has killed the children along with the server.
                self.lost = list(self.running.values())
                self.running.clear()
        return self.lost.pop(), "the process that starts runs was killed"

    def stop(self) -> None:
        """Kill what is running. Records are whole after any death and go on from a checkpoint."""
        self.connection.close()
        try:
            self.server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()

    def _launch(self) -> None:
        ours, theirs = Pipe()
        command = [sys.executable, "-m", "workbench.trials.server"]
        self.server = subprocess.Popen(
            [*command, str(theirs.fileno()), str(os.getpid()), *self.modules],
            env={**ENVIRONMENT, **os.environ, **ONE_THREAD},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            # Its own session, so that an interrupt from the terminal reaches the sweep alone.
            start_new_session=True,
        )
        # Only the server may hold its end, or `recv` would never notice that it has died.
        theirs.close()
        self.connection: Connection = ours


class Cluster:
    """A Ray cluster. A case runs in Ray's worker process itself, so it dies with its worker.

    Parameters
    ----------
    address : str
        "local" for a cluster of its own on this machine, "auto" or an address for a running one.
    jobs : int
        Runs side by side on a local cluster; a running one decides that itself.
    gpus : float
        GPUs that each run takes. Ray hides the others from it.
    """

    def __init__(self, address: str, jobs: int, gpus: float = 0.0) -> None:
        try:
            import ray
        except ImportError:
            raise ImportError("a sweep on Ray needs a package: pip install 'ray>=2.50'") from None
        if ray.is_initialized():
            raise ValueError(
                f"ray={address!r}: this process is connected to Ray already; call ray.shutdown()"
            )
        self.ray = ray
        self.running: dict[Any, Case] = {}
        options = {"num_cpus": jobs, "include_dashboard": False} if address == "local" else {}
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level="error",
                runtime_env={"env_vars": {**ENVIRONMENT, **ONE_THREAD}},
                **options,
            )
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
        # No retries: a run that killed its worker once would do so again, and the next start of the
        # sweep goes on from its checkpoint.
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
    case.logs.mkdir(parents=True, exist_ok=True)
    with (
        open(case.logs / "log.txt", "w") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        execute(case)


def _cause_of_death(code: int) -> str:
    """What an exit code says: "" for 0; negative ones are signals."""
    if code == 0:
        return ""
    if code > 0:
        return f"its process ended with exit code {code}; see its log"
    return f"its process was killed by {signal.Signals(-code).name}"
