"""The process that the workers of a verifier are forked from, and what a worker does.

    python -m workbench.verifiers.worker MODULE:FUNCTION MEMORY_MB CONTROL PARENT_PID

FUNCTION takes nothing, loads what judging needs, and returns the judge: a function from an item to
a reply, both dicts. It is called once. Then this process only forks workers, and ends them, as it
is told over the socket CONTROL. A worker has everything loaded already, so it is there within
milliseconds, and an item that hangs costs its deadline and no start.

A worker answers JSON with JSON, one item at a time. It says with each reply how long it has
computed so far, and whether its items have left behind so much that the next ones would pay for it.

Covered are time, memory (RLIMIT_AS on Linux, counted from what the loaded libraries already take),
what libraries print, a parent that dies (on Linux the kernel kills a worker at once), and processes
that a judge leaves behind. Hostile code is not covered: a judge that runs code needs a sandbox of
its own.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

from workbench.utils.processes import die_with_parent

Judge = Callable[[dict], dict]

FORK = "fork"  # a request that is followed by the worker's end of a socket
LOOK_SECONDS = 1.0  # between two looks whether the parent still lives
WORN = 0.25  # share of its memory that a worker may keep between two items


def main(name: str, memory_mb: str, control: str, parent: str) -> None:
    """Fork and end workers until the parent says None or is gone.

    `name` is "module:function", `control` a descriptor and `parent` a pid.
    """
    requests = Connection(int(control))
    module, function = name.split(":")
    try:
        judge = getattr(importlib.import_module(module), function)()
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
