"""Killable worker processes that answer items one by one.

Why not `multiprocessing.Pool`, or a timeout in a thread: a computation inside C code, such as a
huge power or a factorial, cannot be interrupted from within its process, and the processes of
`multiprocessing` import `__main__` again. Here workers are forked from a server of their own,
spoken to by JSON, and killed from outside. The server is this module as a script:

    python -m workbench.verifiers.pool MODULE:FUNCTION MEMORY_MB CONTROL PARENT_PID

FUNCTION takes nothing, loads what judging needs, and returns the judge: a function from an item to
a reply, both dicts. It is called once. Then the server only forks workers, and ends them, as it is
told over the socket CONTROL. A worker has everything loaded already, so it is there within
milliseconds, and an item that hangs costs its deadline and no start.

- A worker has one item at a time, whose clock starts when the worker is given it. At the deadline
  it is killed with all that it started, and its item is a `timeout`. The timeout is not certain if
  the worker computed for less than a tenth of that time: then something had paused or starved it.
- A worker that dies costs its current item a `crash`. A death by a signal that the outside world
  sends, such as SIGKILL or SIGTERM, is not held against the item the first time: it is tried once
  more. A server or a worker that died while it had nothing to do is replaced.
- A worker whose items have left behind so much that the next ones would pay for it is replaced.

Covered are time, memory (RLIMIT_AS on Linux, counted from what the loaded libraries already take),
what libraries print, a parent that dies (on Linux the kernel kills a worker at once), and processes
that a judge leaves behind. Hostile code is not covered: a judge that runs code needs a sandbox of
its own.
"""

import gc
import json
import os
import pkgutil
import resource
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any

from workbench.utils.processes import die_with_parent

Judge = Callable[[dict], dict]

START_SECONDS = 120.0  # a start that takes longer has failed
REPLY_SECONDS = 10.0  # a server that takes longer to fork or to end a worker is paused
# Signals by which a process ends through its own fault.
OWN_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
COMPUTED = 0.1  # share of the deadline that a worker must have computed for a certain timeout
FORK = "fork"  # a request that is followed by the worker's end of a socket
LOOK_SECONDS = 1.0  # between two looks whether the parent still lives
WORN = 0.25  # share of its memory that a worker may keep between two items


@dataclass(eq=False)
class Worker:
    """A process that judges, and its item.

    Attributes
    ----------
    computed : float
        Seconds of processor time as of its last reply.
    item : int
        Number of the item.
    until : float
        When the item has to be judged, by the monotonic clock.
    """

    pid: int
    link: Connection
    computed: float = 0.0
    item: int = 0
    until: float = 0.0


class Server:
    """The process that the workers of a pool are forked from.

    Raises
    ------
    ChildProcessError
        When it does not start, with the cause.
    """

    def __init__(self, judge: str, memory_mb: int) -> None:
        self._owner = os.getpid()
        self._control, theirs = Pipe()
        # -P keeps the working directory off the path: a file there
        # called json.py would be imported.
        command = [sys.executable, "-P", "-m", "workbench.verifiers.pool", judge]
        with theirs:
            self.process = subprocess.Popen(
                [*command, str(memory_mb), str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment(),
                pass_fds=[theirs.fileno()],
                # An interrupt from the terminal reaches the caller alone.
                start_new_session=True,
            )
        try:
            error = self._reply(START_SECONDS)
        except (EOFError, OSError):
            error = "it was killed, or takes too long"
        if error:
            self.close()
            raise ChildProcessError(f"verifier worker did not start: {error}")

    def fork(self) -> Worker:
        """A new worker; OSError or EOFError where the server is gone or paused."""
        link, theirs = Pipe()
        with theirs:
            self._control.send(FORK)
            send_handle(self._control, theirs.fileno(), self.process.pid)
        return Worker(self._reply(), link)

    def end(self, worker: Worker) -> tuple[int, float]:
        """Kill a worker; its exit code, and its processor time in seconds."""
        worker.link.close()
        try:
            self._control.send(worker.pid)
            return self._reply()
        except (EOFError, OSError):
            # All workers of a server are gone with it, and this one has done nothing wrong.
            self.close()
            return -signal.SIGKILL, 0.0

    def _reply(self, seconds: float = REPLY_SECONDS) -> Any:
        if not self._control.poll(seconds):
            raise TimeoutError
        return self._control.recv()

    def close(self) -> None:
        """End it with its workers."""
        # A forked child inherits the finalizer that calls this, and the server is not its own.
        if os.getpid() != self._owner:
            return
        with suppress(OSError, subprocess.TimeoutExpired):
            self._control.send(None)
            self.process.wait(REPLY_SECONDS)
        self._control.close()
        self.process.kill()
        self.process.wait()


class Pool(AbstractContextManager):
    """Up to `workers` processes around one judge, started when first needed and again after
    `close`.

    Parameters
    ----------
    judge : str
        "module:function". The function, called in the server, returns the judge (see above).
    workers : int
    deadline : float
        Seconds that an item may take.
    memory_mb : int
        MiB that a worker may add to what its libraries take.

    Attributes
    ----------
    server : Server, optional
        None before the first item.
    """

    def __init__(
        self, judge: str, *, workers: int = 2, deadline: float = 5.0, memory_mb: int = 1024
    ) -> None:
        self.judge = judge
        self.size = workers
        self.deadline = deadline
        self.memory_mb = memory_mb
        self._lock = threading.Lock()
        self._settle()

    def _settle(self) -> None:
        """Begin with no processes, owned by the calling process."""
        self._pid = os.getpid()
        self.server: Server | None = None
        self._resting: list[Worker] = []

    def run(self, items: Sequence[dict]) -> list[dict]:
        """The reply to every item, in order.

        `{"status": "timeout", "certain": ...}` or `{"status": "crash"}` where none came. Calls from
        several threads take turns.

        Raises
        ------
        ChildProcessError
            When workers cannot be started, with the cause.
        """
        with self._turn():
            try:
                return self._replies([json.dumps(item).encode() for item in items])
            except BaseException:
                # Whatever interrupted, no half-read replies may stay for the next call.
                self._stop()
                raise

    def _turn(self) -> threading.Lock:
        """The lock that calls take turns by."""
        # A forked child leaves its parent's workers alone, and the lock to whoever held it there.
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._settle()
        return self._lock

    def _replies(self, items: list[bytes]) -> list[dict]:
        replies: list[dict] = [{}] * len(items)
        waiting = list(reversed(range(len(items))))
        tried: set[int] = set()  # items whose worker was killed from outside
        busy: dict[Connection, Worker] = {}
        while waiting or busy:
            while waiting and len(busy) < self.size:
                item = waiting.pop()
                # What killed one worker at rest may have killed the others too, so a new worker
                # tries an item again.
                takes_rested = self._resting and item not in tried
                worker = self._resting.pop() if takes_rested else self._start()
                worker.item = item
                worker.until = time.monotonic() + self.deadline
                busy[worker.link] = worker
                # That nobody reads any more shows when the reply is read.
                with suppress(OSError):
                    worker.link.send_bytes(items[worker.item])
            first = min(worker.until for worker in busy.values())
            ready = wait(list(busy), max(0.0, first - time.monotonic()))
            for link, worker in list(busy.items()):
                is_late = link not in ready
                if is_late and time.monotonic() < worker.until:
                    continue
                del busy[link]
                reply = self._reply(worker, is_late, worker.item in tried)
                if reply is None:
                    tried.add(worker.item)
                    waiting.append(worker.item)
                else:
                    replies[worker.item] = reply
        return replies

    def _reply(self, worker: Worker, is_late: bool, is_second_time: bool) -> dict | None:
        """What a worker that is late, has written or has ended says of its item.

        None where it was killed from outside, and another one is to be asked.
        """
        message = None
        if not is_late:
            with suppress(EOFError, OSError):
                message = json.loads(worker.link.recv_bytes())
        if message and not message["worn"]:
            worker.computed = message["computed"]
            self._resting.append(worker)
            return message["reply"]
        assert self.server is not None
        code, computed = self.server.end(worker)
        if message:
            return message["reply"]
        if is_late:
            certain = computed - worker.computed >= COMPUTED * self.deadline
            return {"status": "timeout", "certain": certain}
        is_own_fault = code >= 0 or -code in OWN_FAULTS
        return {"status": "crash"} if is_own_fault or is_second_time else None

    def _start(self) -> Worker:
        """A new worker, of a new server where there is none any more."""
        if self.server is not None:
            with suppress(EOFError, OSError):
                return self.server.fork()
            self._stop()
        self.server = Server(self.judge, self.memory_mb)
        weakref.finalize(self, self.server.close)
        return self.server.fork()

    def _stop(self) -> None:
        if self.server is not None:
            self.server.close()
        self._settle()

    def close(self) -> None:
        """Kill the workers and wait for them. A later `run` starts new ones."""
        with self._turn():
            self._stop()

    def __exit__(self, *exception: object) -> None:
        self.close()


def environment() -> dict[str, str]:
    """The environment of the workers: this package importable from anywhere, one thread, the same
    hash order every time.
    """
    path = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Where a library walks over a set of texts, the order is the same in every worker.
    alike = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **alike, "PYTHONPATH": os.pathsep.join(path)}


# The server and its workers


def main(name: str, memory_mb: str, control: str, parent: str) -> None:
    """Fork and end workers until the parent says None or is gone.

    `name` is "module:function", `control` a descriptor and `parent` a pid.
    """
    requests = Connection(int(control))
    try:
        judge = pkgutil.resolve_name(name)()
    except Exception as error:
        requests.send(f"{type(error).__name__}: {error}")
        return
    gc.freeze()  # so that the collector does not touch, and thereby copy, what workers share
    requests.send("")
    workers: set[int] = set()
    with suppress(EOFError, ConnectionError):
        while os.getppid() == int(parent):
            # The end of the pipe does not tell everything: a process that the parent has forked
            # keeps it open.
            if not requests.poll(LOOK_SECONDS):
                continue
            request = requests.recv()
            if request is None:
                break
            if request == FORK:
                pid = fork(judge, int(memory_mb), requests)
                workers.add(pid)
                requests.send(pid)
            elif request in workers:
                workers.remove(request)
                requests.send(end(request))
            else:
                # A worker of a server before this one, with which it has died.
                requests.send((-signal.SIGKILL, 0.0))
    for pid in workers:
        end(pid)


def fork(judge: Judge, memory_mb: int, requests: Connection) -> int:
    """The pid of a new worker, whose end of a socket comes next."""
    link = recv_handle(requests)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            requests.close()
            die_with_parent(parent)
            serve(judge, memory_mb, Connection(link))
        finally:
            # A worker must not run on in the code, or the exit handlers, of what it was copied
            # from.
            os._exit(1)
    # A group of its own, so that `end` reaches what the judge has started as well.
    os.setpgid(pid, pid)
    os.close(link)
    return pid


def end(pid: int) -> tuple[int, float]:
    """Kill a worker with its group.

    Returns
    -------
    code, seconds
        Its exit code, minus the signal where one ended it, and how long it has computed.
    """
    # macOS calls it a matter of permission when a process has ended by itself.
    with suppress(PermissionError):
        os.killpg(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


def serve(judge: Judge, memory_mb: int, link: Connection) -> None:
    """The life of a worker. It ends without a reply when it runs out of memory."""
    memory = memory_mb * 2**20
    first = address_space()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if first:
        resource.setrlimit(resource.RLIMIT_AS, (first + memory, first + memory))
    while True:
        reply = judge(json.loads(link.recv_bytes()))
        worn = address_space() - first > memory * WORN
        message = {"reply": reply, "worn": worn, "computed": time.process_time()}
        link.send_bytes(json.dumps(message).encode())


def address_space() -> int:
    """Bytes of address space of this process; 0 where /proc does not tell."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    main(*sys.argv[1:])
