"""The process that runs are forked from: it has imported everything, so that each starts at once.

    python -m workbench.trials.server FILE_DESCRIPTOR PARENT_PID MODULE...

It imports the modules, then forks a child for every case that it receives, and sends back the
case's name and the exit code of the child when that has ended. Without this a run of a minute would
spend several seconds importing torch and transformers.

Nothing here outlives the sweep. The kernel kills this process when the sweep's ends, and a child
when this process ends, by whatever signal that happens. Where the kernel cannot do so (macOS), this
process notices the closed connection and kills its children, unless it was killed itself.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import NoReturn

from workbench.trials.cases import Case, execute
from workbench.utils.processes import die_with_parent

POLL_SECONDS = 0.05


def serve(connection: Connection) -> None:
    """Fork a child for every case received, until the other end is closed."""
    names: dict[int, str] = {}  # of the cases at work, by process id
    try:
        while True:
            if connection.poll(POLL_SECONDS):
                case = connection.recv()
                # A child gets a copy of what waits in the buffer, and would write it once more.
                sys.stdout.flush()
                pid = os.fork()
                if pid == 0:
                    work(case, connection)
                names[pid] = case.name
            # Children are polled in turn with the connection. A signal handler in its place would
            # be inherited by every case.
            for pid, code in ended_children():
                connection.send((names.pop(pid), code))
    except (EOFError, OSError):
        return  # the sweep has ended, or was killed
    finally:
        for pid in names:
            os.kill(pid, signal.SIGKILL)
        for pid in names:
            os.waitpid(pid, 0)


def ended_children() -> list[tuple[int, int]]:
    """Process id and exit code of every child that has ended since the last call."""
    ended = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def work(case: Case, connection: Connection) -> NoReturn:
    """The life of a child: one case, everything that it prints going to its log."""
    # The exit code if anything but the case itself fails. Errors of the case become its outcome,
    # which `execute` writes, and count as a good end here.
    code = 1
    try:
        # The setting does not survive the fork, so the child asks for it again. It has no business
        # with the sweep, so it closes its copy of the connection.
        die_with_parent(os.getppid())
        connection.close()
        case.logs.mkdir(parents=True, exist_ok=True)
        with open(case.logs / "log.txt", "w") as log:
            # By descriptor, so that what C libraries and subprocesses print goes to the log too.
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        execute(case)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit: the exit handlers are those of the process that this was forked from.
        os._exit(code)


def main(descriptor: str, parent: str, *modules: str) -> None:
    """What the sweep starts; see the top of this module."""
    die_with_parent(int(parent))
    for module in modules:
        importlib.import_module(module)
    if "torch" in modules:
        # One process a core, so one thread a process. Threads would not survive the fork either.
        import torch

        torch.set_num_threads(1)
    serve(Connection(int(descriptor)))


if __name__ == "__main__":
    main(*sys.argv[1:])
