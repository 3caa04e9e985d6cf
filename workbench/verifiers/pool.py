"""Killable worker processes that answer items one by one.

Why not `multiprocessing.Pool`, or a timeout in a thread: a computation inside C code, such as a
huge power or a factorial, cannot be interrupted from within its process, and the processes of
`multiprocessing` import `__main__` again. Here workers are forked from a server of their own,
spoken to by JSON, and killed from outside. The server is this module as a script:

    python -m workbench.verifiers.pool MODULE:FUNCTION MEMORY_MB CONTROL PARENT_PID

FUNCTION takes nothing, loads what judging needs, and returns the judge: a function from an item to
a reply, both dicts. It is called once. Then the server has its workers judge the items that come
over the socket CONTROL. A worker has everything loaded already, so it is there within milliseconds,
and an item that hangs costs its deadline and no start.

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
from pathlib import Path
from typing import Any

from workbench.utils.processes import die_with_parent

Judge = Callable[[dict], dict]

START_SECONDS = 120.0  # a start that takes longer has failed
END_SECONDS = 10.0  # a server that takes longer to end is killed
# Signals by which a process ends through its own fault.
OWN_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
COMPUTED = 0.1  # share of the deadline that a worker must have computed for a certain timeout
LOOK_SECONDS = 1.0  # between two looks whether the parent still lives
WORN = 0.25  # share of its memory that a worker may keep between two items


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
    server : Popen, optional
        The process that the workers are forked from; None before the first item.
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
        self.server: subprocess.Popen | None = None

    def run(self, items: Sequence[dict]) -> list[dict]:
        """The reply to every item, in order.

        `{"status": "timeout", "certain": ...}` or `{"status": "crash"}` where none came. Calls from
        several threads take turns.

        Raises
        ------
        ChildProcessError
            When workers cannot be started, with the cause, and when they are killed twice.
        """
        request = {"items": list(items), "size": self.size, "deadline": self.deadline}
        with self._turn():
            try:
                # As long as it can take at most, when each item is tried twice.
                seconds = START_SECONDS + 2 * self.deadline * len(items)
                return self._replies(json.dumps(request).encode(), seconds) if items else []
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

    def _replies(self, request: bytes, seconds: float) -> list[dict]:
        # Who killed or paused the server did not mean the items, so they are tried once more.
        for _ in range(2):
            if self.server is None:
                self._start()
            with suppress(EOFError, OSError):
                self._control.send_bytes(request)
                if self._control.poll(seconds):
                    return json.loads(self._control.recv_bytes())
            self._stop()
        raise ChildProcessError("verifier workers were killed or paused twice")

    def _start(self) -> None:
        self._control, theirs = Pipe()
        # -P keeps the working directory off the path: a file there
        # called json.py would be imported.
        command = [sys.executable, "-P", "-m", "workbench.verifiers.pool", self.judge]
        with theirs:
            self.server = subprocess.Popen(
                [*command, str(self.memory_mb), str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment(),
                pass_fds=[theirs.fileno()],
                # An interrupt from the terminal reaches the caller alone.
                start_new_session=True,
            )
        self._end = weakref.finalize(self, end_server, self.server, self._control, os.getpid())
        error = b"it was killed, or takes too long"
        with suppress(EOFError, OSError):
            if self._control.poll(START_SECONDS):
                error = self._control.recv_bytes()
        if error:
            raise ChildProcessError(f"verifier worker did not start: {error.decode()}")

    def _stop(self) -> None:
        if self.server is not None:
            self._end()
        self._settle()

    def close(self) -> None:
        """Kill the workers and wait for them. A later `run` starts new ones."""
        with self._turn():
            self._stop()

    def __exit__(self, *exception: object) -> None:
        self.close()


def end_server(server: subprocess.Popen, control: Connection, owner: int) -> None:
    """End a server with its workers."""
    # A forked child inherits the finalizer that calls this, and the server is not its own.
    if os.getpid() != owner:
        return
    with suppress(OSError, subprocess.TimeoutExpired):
        control.send_bytes(b"")
        server.wait(END_SECONDS)
    control.close()
    server.kill()
    server.wait()


def environment() -> dict[str, str]:
    """The environment of the workers: this package importable from anywhere, one thread, the same
    hash order every time.
    """
    path = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Where a library walks over a set of texts, the order is the same in every worker.
    alike = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **alike, "PYTHONPATH": os.pathsep.join(path)}


# The server and its workers


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
    """Forks workers, gives them items, and kills those that are late.

    Parameters
    ----------
    judge : function
    memory_mb : int
    requests : Connection
        To the caller.
    parent : int
        The caller's pid.
    """

    def __init__(self, judge: Judge, memory_mb: int, requests: Connection, parent: int) -> None:
        self.judge = judge
        self.memory_mb = memory_mb
        self.requests = requests
        self.parent = parent
        self.resting: list[Worker] = []
        self.busy: dict[Connection, Worker] = {}

    def serve(self) -> None:
        """Reply to requests until the caller sends nothing but an empty one, or is gone."""
        with suppress(EOFError, ConnectionError):
            while True:
                if not self.ready(LOOK_SECONDS):
                    continue
                request = self.requests.recv_bytes()
                if not request:
                    break
                self.requests.send_bytes(json.dumps(self.replies(**json.loads(request))).encode())
        for worker in (*self.resting, *self.busy.values()):
            end(worker)

    def ready(self, seconds: float) -> list[Any]:
        """The connections that have something to read, at most so many seconds from now; EOFError
        when the caller is gone.
        """
        # The end of the pipe does not tell everything: a process that the parent has forked keeps
        # it open.
        if os.getppid() != self.parent:
            raise EOFError
        return wait([self.requests, *self.busy], min(max(0.0, seconds), LOOK_SECONDS))

    def replies(self, items: list[dict], size: int, deadline: float) -> list[dict]:
        """The reply to every item, by so many workers at once."""
        replies: list[dict] = [{}] * len(items)
        waiting = list(reversed(range(len(items))))
        tried: set[int] = set()  # items whose worker was killed from outside
        while waiting or self.busy:
            while waiting and len(self.busy) < size:
                item = waiting.pop()
                # What killed one worker at rest may have killed the others too, so a new worker
                # tries an item again.
                takes_rested = self.resting and item not in tried
                worker = self.resting.pop() if takes_rested else self.fork()
                worker.item = item
                worker.until = time.monotonic() + deadline
                self.busy[worker.link] = worker
                # That nobody reads any more shows when the reply is read.
                with suppress(OSError):
                    worker.link.send_bytes(json.dumps(items[item]).encode())
            first = min(worker.until for worker in self.busy.values())
            ready = self.ready(first - time.monotonic())
            # A caller that waits for replies says nothing, unless it wants an end.
            if self.requests in ready:
                raise EOFError
            for link, worker in list(self.busy.items()):
                is_late = link not in ready
                if is_late and time.monotonic() < worker.until:
                    continue
                del self.busy[link]
                reply = self.reply(worker, deadline if is_late else None, worker.item in tried)
                if reply is None:
                    tried.add(worker.item)
                    waiting.append(worker.item)
                else:
                    replies[worker.item] = reply
        return replies

    def reply(self, worker: Worker, late: float | None, is_second_time: bool) -> dict | None:
        """What a worker that has written, has ended or is `late` by a deadline says of its item.

        None where it was killed from outside, and another one is to be asked.
        """
        message = None
        if late is None:
            with suppress(EOFError, OSError):
                message = json.loads(worker.link.recv_bytes())
        if message and not message["worn"]:
            worker.computed = message["computed"]
            self.resting.append(worker)
            return message["reply"]
        code, computed = end(worker)
        if message:
            return message["reply"]
        if late is not None:
            return {"status": "timeout", "certain": computed - worker.computed >= COMPUTED * late}
        is_own_fault = code >= 0 or -code in OWN_FAULTS
        return {"status": "crash"} if is_own_fault or is_second_time else None

    def fork(self) -> Worker:
        """A new worker."""
        link, theirs = Pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self.requests.close()
                link.close()
                die_with_parent(parent)
                work(self.judge, self.memory_mb, theirs)
            finally:
                # A worker must not run on in the code, or the exit handlers, of what it was copied
                # from.
                os._exit(1)
        # A group of its own, so that `end` reaches what the judge has started as well.
        os.setpgid(pid, pid)
        theirs.close()
        return Worker(pid, link)


def end(worker: Worker) -> tuple[int, float]:
    """Kill a worker with its group.

    Returns
    -------
    code, seconds
        Its exit code, minus the signal where one ended it, and how long it has computed.
    """
    worker.link.close()
    # macOS calls it a matter of permission when a process has ended by itself.
    with suppress(PermissionError):
        os.killpg(worker.pid, signal.SIGKILL)
    _, status, usage = os.wait4(worker.pid, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime


def work(judge: Judge, memory_mb: int, link: Connection) -> None:
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


def main(name: str, memory_mb: str, control: str, parent: str) -> None:
    """The life of a server: `name` is "module:function", `control` a descriptor, `parent` a pid."""
    requests = Connection(int(control))
    try:
        judge = pkgutil.resolve_name(name)()
    except Exception as error:
        requests.send_bytes(f"{type(error).__name__}: {error}".encode())
        return
    gc.freeze()  # so that the collector does not touch, and thereby copy, what workers share
    requests.send_bytes(b"")
    Server(judge, int(memory_mb), requests, int(parent)).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
