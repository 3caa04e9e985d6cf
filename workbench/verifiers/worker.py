"""The worker process of a verifier: JSON lines in, JSON lines out, one item at a time.

    python -m workbench.verifiers.worker MODULE:FUNCTION MEMORY_MB DEADLINE PARENT_PID

FUNCTION takes nothing, loads what judging needs and returns the judge: item -> reply, both dicts. The first line out is
`{"ready": true}`; then every `{"id": ..., ...}` is answered by one line with a "status", in the order received.

The judging is done by a fork of this process, which has loaded everything already: to kill it and fork again takes
milliseconds, so an item that hangs costs its deadline and no start. A fork is replaced

- at the deadline (the item is a `timeout`),
- when it ran out of memory or died (a `crash`; if a signal from outside killed it, this process dies too, and its
  parent asks once more), and
- when what its items left behind takes a quarter of its memory, so that no item pays for the ones before it.

Covered: time, memory (RLIMIT_AS, Linux only, counted from what the loaded libraries already take), output of libraries
on stdout, a parent that dies (Linux: killed by the kernel at once; elsewhere: ends at the next read), processes that a
judge leaves behind (Linux). Not covered: hostile code: a judge that runs code needs its own sandbox.
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
from typing import BinaryIO

Judge = Callable[[dict], dict]

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
OWN_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
WORN = 0.25  # share of its memory that a fork may keep between two items
CHUNK = 65_536  # bytes a read or write moves at most
TIMEOUT, CRASH = b'{"status": "timeout"}\n', b'{"status": "crash"}\n'


class Fork:
    """A forked copy of this process that judges line by line; `spent` when another must take its place."""

    def __init__(self, judge: Judge, memory_mb: int) -> None:
        items, self.items = os.pipe()
        self.replies, replies = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                serve(judge, memory_mb, parent, items, replies)
            finally:
                os._exit(1)
        os.close(items)
        os.close(replies)
        self.room, self.first_size = memory_mb * 2**20, address_space(self.pid)
        self.spent, self.ended = False, False

    def ask(self, line: bytes, deadline: float) -> bytes:
        """The reply to a line: the fork's own, a `timeout` after `deadline` seconds, a `crash` if it has died instead."""
        end, reply = time.monotonic() + deadline, b""
        try:
            send(self.items, line)
            while not reply.endswith(b"\n"):
                if not select.select([self.replies], [], [], max(0.0, end - time.monotonic()))[0]:
                    self.spent = True
                    return TIMEOUT
                if not (chunk := os.read(self.replies, CHUNK)):
                    return self._died()
                reply += chunk
        except BrokenPipeError:
            return self._died()
        self.spent = address_space(self.pid) - self.first_size > self.room * WORN
        return reply

    def _died(self) -> bytes:
        """Of a fault of its own: a crash. Of a signal from outside: this process dies with it, for the parent to see."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if code < 0 and -code not in OWN_FAULTS:
            os.kill(os.getpid(), signal.SIGKILL)
        self.spent = self.ended = True
        return CRASH

    def kill(self) -> None:
        """End it and (on Linux) every process it has started."""
        if not self.ended:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        for pid in children():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(self.items)
        os.close(self.replies)


def serve(judge: Judge, memory_mb: int, parent: int, items: int, replies: int) -> None:
    """The life of a fork: lines from descriptor `items`, replies to `replies`; out of memory, it ends without one."""
    die_with_parent(parent)
    os.dup2(items, 0)
    os.dup2(replies, 3)
    os.closerange(4, 256)
    limit_memory(memory_mb)
    with os.fdopen(0, "rb") as lines, os.fdopen(3, "wb") as out:
        for line in lines:
            item = json.loads(line)
            write(out, {"id": item["id"], **judge(item)})


def children() -> Iterator[int]:
    """The pids of this process's children, until there are none: those of a killed fork become its own (Linux)."""
    listing = f"/proc/self/task/{os.getpid()}/children"
    while os.path.exists(listing):
        with open(listing) as pids:
            found = pids.read().split()
        if not found:
            return
        yield from map(int, found)


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the thread that started this process ends (prctl(2)); leave if it has already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit("the parent is gone")


def adopt_orphans() -> None:
    """Have the kernel make this process the parent of what its forks leave behind (prctl(2), Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def private_stdout() -> BinaryIO:
    """The pipe to the parent under a new descriptor; what libraries print goes to stderr instead."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


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
    if used := address_space(os.getpid()):
        limit = used + megabytes * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def silence_stderr() -> None:
    """From here on both standard outputs lead nowhere; the start's errors were for the parent to read."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def load(name: str) -> Judge:
    """The judge made by `module:function`."""
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)()


def send(descriptor: int, data: bytes) -> None:
    """Write all of `data`, waiting for room."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest[:CHUNK]) :]


def write(replies: BinaryIO, message: dict) -> None:
    """One message as a line of JSON, sent at once."""
    replies.write(json.dumps(message).encode() + b"\n")
    replies.flush()


def main(name: str, memory_mb: str, deadline: str, parent: str) -> None:
    """Judges items from standard input until it ends: `name` is "module:function", `parent` the pid to die with."""
    die_with_parent(int(parent))
    adopt_orphans()
    replies = private_stdout()
    judge = load(name)
    silence_stderr()
    gc.freeze()  # the collector need not touch, and so copy, what forks share
    fork = Fork(judge, int(memory_mb))
    write(replies, {"ready": True})
    for line in sys.stdin.buffer:
        replies.write(fork.ask(line, float(deadline)))
        replies.flush()
        if fork.spent:
            fork.kill()
            fork = Fork(judge, int(memory_mb))


if __name__ == "__main__":
    main(*sys.argv[1:])
