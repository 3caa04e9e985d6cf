"""Killable worker processes that answer items one by one.

Why not `multiprocessing`, or a timeout in a thread: a computation inside C code, such as a huge
power or a factorial, cannot be interrupted from within its process, and spawned pools import
`__main__` again. Here every worker is `python -m workbench.verifiers.worker` in a process group of
its own, spoken to by JSON lines, and killed from outside.

- A worker has one item at a time, whose clock starts when the worker is given it. The worker keeps
  the deadline itself (see `worker`). A worker that has not answered `GRACE` seconds later is killed
  with its group and replaced, and its item is a `timeout` that is not certain, since a worker that
  runs would have answered.
- A worker that dies costs its current item a `crash`. A death by a signal that the outside world
  sends, such as SIGKILL or SIGTERM, is not held against the item the first time: it is tried once
  more. A worker that died while it had nothing to do is replaced.
- Writes never block, so a long item cannot deadlock with the replies that come the other way.
- Starting happens in one thread that lives as long as the pool, because Linux ties "die with your
  parent" to the *thread* that starts a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Self

from workbench.verifiers.base import ForkSafeLock
from workbench.verifiers.child import Child
from workbench.verifiers.worker import OWN_FAULTS, as_line

START_SECONDS = 120.0  # a start that takes longer has failed
STARTS = 3  # starts in a row that may be killed from outside before the pool gives up
GRACE = 0.3  # seconds past the deadline after which a worker no longer keeps it


class Worker(Child):
    """One process around the judge. `ready` once it has loaded it."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(command, env=environment())
        self.ready = False

    def ask(self, line: bytes, seconds: float) -> dict | None:
        """The reply to a line, None when it takes longer; EOFError when the process has ended."""
        self.unsent = memoryview(line)
        how = self.converse(seconds, lambda output: output.endswith(b"\n"))
        if how == "ended":
            raise EOFError
        if how == "late":
            return None
        reply = json.loads(self.output)
        self.output.clear()
        return reply

    def abandon(self) -> None:
        """Let go of a process that belongs to the parent of this fork."""
        # Marked as ended, so that `subprocess` does not wait for a
        # process that is no child of this one.
        self.process.returncode = 0
        self.let_go()


class Pool:
    """Up to `workers` processes around one judge, started when first needed and again after
    `close`.

    Parameters
    ----------
    judge : str
        "module:function". The function, called in the worker, returns the judge (see `worker`).
    workers : int
    deadline : float
        Seconds that an item may take.
    memory_mb : int
        MiB that a worker may add to what its libraries take.

    Attributes
    ----------
    slowest : float
        Seconds that the slowest item so far has kept its worker, measured here; set it to 0 to
        measure anew.
    """

    def __init__(
        self, judge: str, *, workers: int = 2, deadline: float = 5.0, memory_mb: int = 1024
    ) -> None:
        self.judge = judge
        self.size = workers
        self.deadline = deadline
        self.memory_mb = memory_mb
        self.slowest = 0.0
        self._lock = ForkSafeLock()
        self._settle()

    def _settle(self) -> None:
        """Begin with no processes, owned by the calling process."""
        self._pid = os.getpid()
        self._workers: list[Worker] = []
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="verifier-starter")
        # Given the list and not the pool, since a reference to the pool would keep it alive for
        # ever. Workers are therefore put into this list and taken out of it in place.
        self._finalizer = weakref.finalize(self, _stop_all, self._workers, self._starter, self._pid)

    def run(self, items: Sequence[dict]) -> list[dict]:
        """The reply to every item, in order.

        `{"status": "timeout", "certain": ...}` or `{"status": "crash"}` where none came. Calls from
        several threads take turns.

        Raises
        ------
        ChildProcessError
            When workers cannot be started, with the cause.
        """
        with self._lock:
            self._leave_parent()
            return _Batch(self, items).finish()

    def _leave_parent(self) -> None:
        """In a forked child: let go of the parent's workers."""
        if self._pid != os.getpid():
            # Otherwise the end of the child would run the finalizer of
            # workers that the parent still uses.
            self._finalizer.detach()
            for worker in self._workers:
                worker.abandon()
            self._settle()

    def crew(self, count: int) -> list[Worker]:
        """The workers, at least `count` of them as far as the pool's size allows."""
        while len(self._workers) < min(count, self.size):
            self._workers.append(self._start())
        return self._workers

    def replace(self, place: int) -> None:
        """Stop a worker, and start another in its place."""
        self._workers[place].close()
        self._workers[place] = self._start()

    def _start(self) -> Worker:
        # -P keeps the working directory off the path: a file there
        # called json.py would be imported.
        command = [sys.executable, "-P", "-m", "workbench.verifiers.worker"]
        command += [self.judge, str(self.memory_mb), str(self.deadline), str(os.getpid())]
        return self._starter.submit(Worker, command).result()

    @property
    def processes(self) -> list[subprocess.Popen]:
        """The processes as they are now, for a look from outside."""
        return [worker.process for worker in self._workers]

    def close(self) -> None:
        """Kill the workers and wait for them. A later `run` starts new ones."""
        with self._lock:
            self._leave_parent()
            self._finalizer()
            self._settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Batch:
    """One call of `Pool.run`. One thread for each worker takes items until none are left."""

    def __init__(self, pool: Pool, items: Sequence[dict]) -> None:
        self.pool = pool
        self.lines = [as_line({"id": index, **item}) for index, item in enumerate(items)]
        self.waiting = iter(range(len(items)))
        self.replies: list[dict] = [{}] * len(items)
        self.error: BaseException | None = None

    def finish(self) -> list[dict]:
        """The replies, once every item has one."""
        workers = self.pool.crew(len(self.lines)) if self.lines else []
        threads = [
            Thread(target=self._work, args=(place,), daemon=True)
            for place in range(min(len(workers), len(self.lines)))
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if self.error is not None:
                raise self.error
        except BaseException as error:
            # Whatever interrupted, no half-read replies may stay for the next call. The first of
            # the two stops ends what the threads wait for, the second what they have started since.
            self.error = error
            for worker in list(workers):
                worker.kill()
            for thread in threads:
                thread.join()
            _stop_all(workers, None, self.pool._pid)
            raise
        return self.replies

    def _work(self, place: int) -> None:
        try:
            # One iterator for all threads, so that each item is taken once.
            while self.error is None and (index := next(self.waiting, None)) is not None:
                self.replies[index] = self._reply(place, self.lines[index])
        except BaseException as error:
            self.error = self.error or error

    def _reply(self, place: int, line: bytes) -> dict:
        """What the worker in that place replies, or what is said in its stead."""
        for is_second_time in (False, True):
            worker = self._ready_worker(place)
            began = time.monotonic()
            try:
                reply = worker.ask(line, self.pool.deadline + GRACE)
            except EOFError:
                # A death that came from outside is held against the item only the second time.
                if _killed_from_outside(worker) and not is_second_time:
                    continue
                reply = {"status": "crash"}
            break
        if reply is None:
            worker.kill()
            reply = {"status": "timeout", "certain": False}
        self.pool.slowest = max(self.pool.slowest, time.monotonic() - began)
        return reply

    def _ready_worker(self, place: int) -> Worker:
        """The worker in that place, or another once that one has died, with its judge loaded."""
        for _ in range(STARTS):
            if self.error is not None:
                raise self.error
            if self.pool.processes[place].poll() is not None:
                self.pool.replace(place)
            worker = self.pool.crew(0)[place]
            if worker.ready:
                return worker
            try:
                # The first line says that the judge is loaded.
                worker.ready = worker.ask(b"", START_SECONDS) is not None
            except EOFError:
                if _killed_from_outside(worker):
                    continue
            if worker.ready:
                return worker
            break
        raise ChildProcessError(
            f"verifier worker did not start (exit code {worker.kill()}): {worker.last_words()}"
        )


def _killed_from_outside(worker: Worker) -> bool:
    """Whether an operator or the system has ended it. Faults such as SIGSEGV are its item's."""
    # The output of one that ends by itself ends a moment before it does.
    with suppress(subprocess.TimeoutExpired):
        worker.process.wait(1.0)
    code = worker.kill()
    return code < 0 and -code not in OWN_FAULTS


def environment() -> dict[str, str]:
    """The worker's environment: this package importable from anywhere, one thread, the same hash
    order every time.
    """
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {
        **os.environ,
        "PYTHONPATH": path,
        # Where a library walks over a set of texts, the order is the same in every worker.
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _stop_all(workers: list[Worker], starter: ThreadPoolExecutor | None, pid: int) -> None:
    # A forked child inherits the finalizer, and the workers are not its own.
    if os.getpid() != pid:
        return
    while workers:
        workers.pop().close()
    if starter is not None:
        starter.shutdown(wait=False)
