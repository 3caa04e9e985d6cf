"""The worker process of a verifier: JSON lines in, JSON lines out, one item at a time.

    python -m workbench.verifiers.worker MODULE:FUNCTION MEMORY_MB PARENT_PID

FUNCTION takes nothing, loads what judging needs and returns the judge: item -> reply, both dicts. The first line out is
`{"ready": true}`; then every `{"id": ..., ...}` is answered by `{"id": ..., "status": ...}` in the order received.

Covered: memory (RLIMIT_AS, Linux only, counted from what the loaded libraries already take), output of libraries on
stdout, a parent that dies (Linux: killed by the kernel at once; elsewhere: ends at the next read). Not covered: time,
which the parent keeps, and hostile code: a judge that runs code needs its own sandbox.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import BinaryIO

Judge = Callable[[dict], dict]

PR_SET_PDEATHSIG = 1
STATM = "/proc/self/statm"


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the thread that started this process ends (prctl(2)); leave if it has already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit("the parent is gone")


def private_stdout() -> BinaryIO:
    """The pipe to the parent under a new descriptor; what libraries print goes to stderr instead."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return replies


def limit_memory(megabytes: int) -> None:
    """Let the address space grow by `megabytes` MiB from here, and write no core files."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not os.path.exists(STATM):
        return
    with open(STATM) as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
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


def judged(judge: Judge, item: dict) -> dict:
    """The judge's reply; running out of memory is a `crash`, after which the parent replaces this process."""
    try:
        return judge(item)
    except MemoryError:
        return {"status": "crash"}


def write(replies: BinaryIO, message: dict) -> None:
    """One message as a line of JSON, sent at once."""
    replies.write(json.dumps(message).encode() + b"\n")
    replies.flush()


def main(name: str, memory_mb: str, parent: str) -> None:
    """Judges items from standard input until it ends: `name` is "module:function", `parent` the pid to die with."""
    die_with_parent(int(parent))
    replies = private_stdout()
    judge = load(name)
    limit_memory(int(memory_mb))
    silence_stderr()
    write(replies, {"ready": True})
    for line in sys.stdin.buffer:
        item = json.loads(line)
        write(replies, {"id": item["id"], **judged(judge, item)})


if __name__ == "__main__":
    main(*sys.argv[1:])
