"""Killable worker processes that answer items one by one.

Why not `multiprocessing`, or a timeout in a thread: a computation inside C code, such as a huge
power or a factorial, cannot be interrupted from within its process, and spawned pools import
`__main__` again. Here every worker is `python -m workbench.verifiers.worker` in a process group of
its own, spoken to by JSON lines, and killed from outside.

- An item's clock starts when its worker has nothing else before it; start-up and earlier items do
  not count. The worker keeps the deadline itself (see `worker`). A worker that has not answered
  `GRACE` seconds later is killed with its group and replaced, its item is a `timeout` that is not
  certain, since a worker that runs would have answered, and the items behind go to the next free
  worker.
- A worker that dies costs its current item a `crash`. A death by a signal that the outside world
  sends, such as SIGKILL or SIGTERM, is not held against the item the first time: it is tried once
  more.
- Writes never block, so a long item cannot deadlock with the replies that come the other way.
- Starting happens in one thread that lives as long as the pool, because Linux ties "die with your
  parent" to the *thread* that starts a process.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from workbench.verifiers.base import ForkSafeLock
from workbench.verifiers.worker import CHUNK, OWN_FAULTS, as_line

# Items in a worker's hands: enough to keep it busy while the parent is elsewhere, few to hand back.
WINDOW = 4
START_SECONDS = 120.0  # a start that takes longer has failed
STARTS = 3  # starts in a row that may be killed from outside before the pool gives up
GRACE = 0.3  # seconds past the deadline after which a worker no longer keeps it


class Worker:
    """One process, its pipes, the items in its hands (`jobs`), and since when it works on the
    first.

    Attributes
    ----------
    ready : bool
        Whether it has loaded its judge.
    watched : bool
        Whether the selector waits for room in its input.
    since : float
        Time of the monotonic clock, in seconds.
    """

    def __init__(self, command: Sequence[str]) -> None:
        # A file and not a pipe: nobody reads it while the worker runs,
        # and a full pipe would block it.
        self.complaints = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            # A process group of its own, so that `kill` reaches what
            # the worker has started as well.
            start_new_session=True,
            env=environment(),
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin = self.process.stdin
        self.stdout = self.process.stdout
        # A worker busy with a long item does not read. Writing to it must not hold up the others.
        os.set_blocking(self.stdin.fileno(), False)
        self.jobs: deque[int] = deque()
        self.ready = False
        self.watched = False
        self.since = time.monotonic()
        self._unsent = bytearray()
        self._unread = b""

    @property
    def behind(self) -> bool:
        """Whether part of what was sent still waits for room in the pipe."""
        return bool(self._unsent)

    def send(self, index: int, line: bytes) -> None:
        """Hand over one item more."""
        # The clock of an item starts when the worker has nothing else before it.
        if not self.jobs:
            self.since = time.monotonic()
        self.jobs.append(index)
        self._unsent += line
        self.flush()

    def flush(self) -> None:
        """Write what the pipe takes now."""
        try:
            while self._unsent:
                written = os.write(self.stdin.fileno(), self._unsent[:CHUNK])
                del self._unsent[:written]
        except BlockingIOError:
            return
        except BrokenPipeError:
            # No news: that the process is gone shows at the end of its replies.
            self._unsent.clear()

    def receive(self) -> list[dict] | None:
        """The replies that have come in whole, or None when the process has ended."""
        data = os.read(self.stdout.fileno(), CHUNK)
        if not data:
            return None
        # A read may end in the middle of a line, whose rest comes with the next one.
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def time_left(self, deadline: float, now: float) -> float | None:
        """Seconds until this worker is overdue; None while it has nothing to do."""
        if not self.ready:
            return self.since + START_SECONDS - now
        if not self.jobs:
            return None
        return self.since + deadline + GRACE - now

    def kill(self) -> int:
        """Kill the whole group and wait. The exit code is minus the signal where one ended it."""
        if self.process.returncode is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:  # reaped by somebody else's wait
                self.process.poll()
        return self.process.wait()

    def stop(self) -> None:
        """Kill, and close the pipes."""
        self.kill()
        self._close()

    def abandon(self) -> None:
        """Let go of a process that belongs to the parent of this fork."""
        # Marked as ended, so that `subprocess` does not wait for a
        # process that is no child of this one.
        self.process.returncode = 0
        self._close()

    def _close(self) -> None:
        for pipe in (self.stdin, self.stdout, self.complaints):
            pipe.close()

    def last_words(self) -> str:
        """The last line that it wrote to stderr before it was ready."""
        self.complaints.seek(0)
        lines = self.complaints.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no message"


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
        self.failed_starts = 0
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
            if not items:
                return []
            try:
                return _Batch(self, items).finish()
            except BaseException:
                # Whatever interrupted, no half-read replies may stay for the next call.
                _stop_all(self._workers, None, self._pid)
                raise

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

    def replace(self, worker: Worker) -> Worker:
        """A fresh worker in the place of one that was stopped."""
        fresh = self._start()
        self._workers[self._workers.index(worker)] = fresh
        return fresh

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
    """One call of `Pool.run`: which items wait, which are in whose hands, and what came back."""

    def __init__(self, pool: Pool, items: Sequence[dict]) -> None:
        self.pool = pool
        self.items = items
        self.waiting = deque(range(len(items)))
        self.open = len(items)
        self.tried_again: set[int] = set()
        self.replies: list[dict] = [{}] * len(items)
        self.selector = selectors.DefaultSelector()

    def finish(self) -> list[dict]:
        """Give out the items until every one has a reply."""
        with self.selector:
            for worker in self.pool.crew(len(self.items)):
                self._register(worker)
            # A worker that died while idle is noticed before it is given anything.
            self._turn(0.0)
            while self.open:
                for worker in self.pool.crew(0):
                    self._feed(worker)
                self._turn(self._patience())
        return self.replies

    def _register(self, worker: Worker) -> None:
        worker.watched = False
        self.selector.register(worker.stdout, selectors.EVENT_READ, worker)

    def _unregister(self, worker: Worker) -> None:
        self.selector.unregister(worker.stdout)
        if worker.watched:
            self.selector.unregister(worker.stdin)

    def _feed(self, worker: Worker) -> None:
        """Fill the worker's window, and have its input watched only while it is behind."""
        # Nothing more for a worker that has not yet read what it was given: another may be free.
        while worker.ready and self.waiting and len(worker.jobs) < WINDOW and not worker.behind:
            index = self.waiting.popleft()
            worker.send(index, as_line({"id": index, **self.items[index]}))
        if worker.behind and not worker.watched:
            self.selector.register(worker.stdin, selectors.EVENT_WRITE, worker)
        elif worker.watched and not worker.behind:
            self.selector.unregister(worker.stdin)
        worker.watched = worker.behind

    def _patience(self) -> float:
        """Seconds until the first worker is overdue."""
        now = time.monotonic()
        left = [worker.time_left(self.pool.deadline, now) for worker in self.pool.crew(0)]
        return max(0.0, min((seconds for seconds in left if seconds is not None), default=0.0))

    def _turn(self, patience: float) -> None:
        """Wait for news, take it, then see who is overdue as of the moment when the news came."""
        events = self.selector.select(patience)
        now = time.monotonic()
        # A worker whose reply has come is not overdue, even if this process
        # was too busy to read it in time.
        speaking = {key.data for key, mask in events if mask & selectors.EVENT_READ}
        for key, mask in events:
            if mask & selectors.EVENT_WRITE:
                key.data.flush()
        for worker in speaking:
            self._hear(worker)
        # Over a copy, since `_overdue` replaces workers in the list.
        for worker in list(self.pool.crew(0)):
            left = worker.time_left(self.pool.deadline, now)
            if worker not in speaking and left is not None and left <= 0:
                self._overdue(worker)

    def _hear(self, worker: Worker) -> None:
        messages = worker.receive()
        if messages is None:
            self._bury(worker)
            return
        for message in messages:
            # The first line says that the judge is loaded. With every line the
            # clock of the next item starts.
            if worker.ready:
                self._answer(worker, message)
            else:
                worker.ready = True
                self.pool.failed_starts = 0
            worker.since = time.monotonic()

    def _answer(self, worker: Worker, reply: dict) -> None:
        self.pool.slowest = max(self.pool.slowest, time.monotonic() - worker.since)
        self.replies[worker.jobs.popleft()] = reply
        self.open -= 1

    def _overdue(self, worker: Worker) -> None:
        if not worker.ready:
            raise ChildProcessError(
                f"verifier worker did not start within {START_SECONDS:.0f} seconds"
            )
        # Charged to the first item alone. `_succeed` gives the ones behind it to others.
        self._answer(worker, {"status": "timeout", "certain": False})
        self._unregister(worker)
        worker.stop()
        self._succeed(worker)

    def _bury(self, worker: Worker) -> None:
        """A worker has died: charge its current item, unless the death came from outside, once."""
        self._unregister(worker)
        code = worker.kill()
        # An operator or the system may have ended it. Faults such as SIGSEGV are those of the item.
        from_outside = code < 0 and -code not in OWN_FAULTS
        if not worker.ready:
            self._failed_start(worker, code, from_outside)
        elif worker.jobs and from_outside and worker.jobs[0] not in self.tried_again:
            self.tried_again.add(worker.jobs[0])
        elif worker.jobs:
            self._answer(worker, {"status": "crash"})
        worker.stop()
        self._succeed(worker)

    def _failed_start(self, worker: Worker, code: int, from_outside: bool) -> None:
        self.pool.failed_starts += 1
        if not from_outside or self.pool.failed_starts >= STARTS:
            raise ChildProcessError(
                f"verifier worker did not start (exit code {code}): {worker.last_words()}"
            )

    def _succeed(self, worker: Worker) -> None:
        """What a stopped worker had in hand goes back to the front of the queue, and a successor is
        started.
        """
        self.waiting.extendleft(reversed(worker.jobs))
        self._register(self.pool.replace(worker))


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
        workers.pop().stop()
    if starter is not None:
        starter.shutdown(wait=False)
