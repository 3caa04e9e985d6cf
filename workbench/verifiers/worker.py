"""The worker process of a verifier: JSON lines in, JSON lines out, one item at a time.

    python -m workbench.verifiers.worker MODULE:FUNCTION MEMORY_MB DEADLINE PARENT_PID

FUNCTION takes nothing, loads what judging needs, and returns the judge: a function from an item to
a reply, both dicts. The first line out is `{"ready": true}`. Then every `{"id": ..., ...}` is
answered by one line with a "status", in the order received.

The judging is done by a fork of this process, which has loaded everything already. To kill it and
fork again takes milliseconds, so an item that hangs costs its deadline and no start. A fork is
replaced

- at the deadline. The item is a `timeout`; it is marked as not certain if the fork had computed for
  less than a tenth of that time, because then something had paused or starved it;
- when it ran out of memory or died. The item is a `crash`. If a signal from outside killed the
  fork, this process dies too, and its parent asks once more;
- when what its items left behind takes a quarter of its memory, so that no item pays for the ones
  before it.

Covered are time, memory (RLIMIT_AS on Linux, counted from what the loaded libraries already take),
what libraries print on stdout, a parent that dies (on Linux the kernel kills this process at once,
elsewhere it ends at the next read), and processes that a judge leaves behind (on Linux). Hostile
code is not covered: a judge that runs code needs a sandbox of its own.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator

from workbench.utils.processes import die_with_parent
from workbench.verifiers.child import CHUNK

Judge = Callable[[dict], dict]

PR_SET_CHILD_SUBREAPER = 36  # of prctl(2)

# Signals by which a process ends through its own fault.
OWN_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}

WORN = 0.25  # share of its memory that a fork may keep between two items
COMPUTED = 0.1  # share of the deadline that a fork must have computed for a certain timeout


class Fork:
    """A forked copy of this process that judges line by line. When `spent`, another must take its
    place.
    """

    def __init__(self, judge: Judge, memory_mb: int) -> None:
        items, self.items = os.pipe()
        self.replies, replies = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                serve(judge, memory_mb, parent, items, replies)
            finally:
                # A fork must not run on in the code, or the exit
                # handlers, of what it was copied from.
                os._exit(1)
        os.close(items)
        os.close(replies)
        self.clock = cpu_clock(self.pid)
        self.memory = memory_mb * 2**20
        self.first_size = address_space(self.pid)
        self.spent = False
        self.ended = False

    def ask(self, line: bytes, deadline: float) -> bytes:
        """The reply to a line: the fork's own, a `timeout` after `deadline` seconds, or a `crash`
        if it has died instead.
        """
        # Processor time says whether the fork computed, and the clock on the wall when to stop.
        began = self._computed()
        end = time.monotonic() + deadline
        reply = b""
        try:
            send(self.items, line)
            while not reply.endswith(b"\n"):
                patience = max(0.0, end - time.monotonic())
                if not select.select([self.replies], [], [], patience)[0]:
                    self.spent = True
                    certain = self._computed() - began >= COMPUTED * deadline
                    return as_line({"status": "timeout", "certain": certain})
                chunk = os.read(self.replies, CHUNK)
                if not chunk:
                    return self._died()
                reply += chunk
        except BrokenPipeError:
            return self._died()
        self.spent = address_space(self.pid) - self.first_size > self.memory * WORN
        return reply

    def _computed(self) -> float:
        """Seconds of processor time so far; of the wall where there is no such clock."""
        return time.monotonic() if self.clock is None else time.clock_gettime(self.clock)

    def _died(self) -> bytes:
        """A crash, if the fork died of a fault of its own. If a signal from outside killed it, this
        process dies in the same way, for the parent to see.
        """
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        # A signal such as SIGKILL comes from outside, and says nothing about the answer.
        if code < 0 and -code not in OWN_FAULTS:
            os.kill(os.getpid(), signal.SIGKILL)
        self.ended = True
        self.spent = True
        return as_line({"status": "crash"})

    def kill(self) -> None:
        """End it and, on Linux, every process that it has started."""
        if not self.ended:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        # What the fork had started became a child of this process when the fork died.
        for pid in children():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(self.items)
        os.close(self.replies)


def serve(judge: Judge, memory_mb: int, parent: int, items: int, replies: int) -> None:
    """The life of a fork: lines from descriptor `items`, replies to `replies`. It ends without a
    reply when it runs out of memory.
    """
    die_with_parent(parent)
    # Besides the silenced outputs, a fork keeps these two and nothing else that its parent has
    # open: if it held the other ends of its own pipes, it would never see them close.
    os.dup2(items, 0)
    os.dup2(replies, 3)
    os.closerange(4, 256)
    limit_memory(memory_mb)
    with os.fdopen(0, "rb") as lines, os.fdopen(3, "wb") as out:
        for line in lines:
            item = json.loads(line)
            out.write(as_line({"id": item["id"], **judge(item)}))
            out.flush()


def children() -> Iterator[int]:
    """The pids of this process's children, until there are none. On Linux those of a killed fork
    have become its own.
    """
    listing = f"/proc/self/task/{os.getpid()}/children"
    # Read again until it is empty: killing one process may bring up its children.
    while os.path.exists(listing):
        with open(listing) as file:
            pids = file.read().split()
        if not pids:
            return
        yield from map(int, pids)


def adopt_orphans() -> None:
    """Have the kernel make this process the parent of what its forks leave behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def cpu_clock(pid: int) -> int | None:
    """The clock of a process's processor time, for `time.clock_gettime`; None without one."""
    clock = ctypes.c_int()
    if sys.platform != "linux" or ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)):
        return None
    return clock.value


def address_space(pid: int) -> int:
    """Bytes of address space of a process; 0 where /proc does not tell."""
    try:
        with open(f"/proc/{pid}/statm") as statm:
            return int(statm.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        return 0


def limit_memory(megabytes: int) -> None:
    """Let the address space grow by `megabytes` MiB from here, and write no core files."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    used = address_space(os.getpid())
    if used:
        limit = used + megabytes * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def send(descriptor: int, data: bytes) -> None:
    """Write all of `data`, waiting for room."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest[:CHUNK]) :]


def as_line(message: dict) -> bytes:
    """A message as one line of JSON, the way it crosses a pipe."""
    return json.dumps(message).encode() + b"\n"


def main(name: str, memory_mb: str, deadline: str, parent: str) -> None:
    """Judge items from standard input until it ends.

    `name` is "module:function", `parent` the pid of the process to die with.
    """
    die_with_parent(int(parent))
    adopt_orphans()
    # The pipe to the parent gets a new descriptor before the judge is loaded, since libraries may
    # print while they are imported. What they print goes to stderr.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    module, function = name.split(":")
    judge = getattr(importlib.import_module(module), function)()
    # From here on both outputs lead nowhere. Not before, since an error while loading is what the
    # parent shows when the start fails.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    gc.freeze()  # so that the collector does not touch, and thereby copy, what forks share
    fork = Fork(judge, int(memory_mb))
    replies.write(as_line({"ready": True}))
    replies.flush()
    for line in sys.stdin.buffer:
        replies.write(fork.ask(line, float(deadline)))
        replies.flush()
        if fork.spent:
            fork.kill()
            fork = Fork(judge, int(memory_mb))


if __name__ == "__main__":
    main(*sys.argv[1:])
