"""Processes that do not outlive the one that started them."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PR_SET_PDEATHSIG = 1  # of prctl(2), Linux only


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; call it first thing.

    Covers Linux, and a parent killed by SIGKILL. The setting is lost at the next fork, so every
    child has to call this again. Elsewhere nothing happens.

    Parameters
    ----------
    parent : int
        Process id of the parent, which may have ended before this call.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # If the parent ended before the call above, the kernel sends no signal any more.
    if os.getppid() != parent:
        os._exit(1)


@contextmanager
def signals_raise() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP raise SystemExit, so that `finally` clauses run.

    A signal that is ignored, as SIGHUP is under nohup, stays ignored. Only the main thread may set
    handlers, so in another one nothing changes.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        # Shells count a death by signal n as exit status 128 + n.
        raise SystemExit(128 + number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Give SIGTERM back the handler that it had, whatever a library within puts in its place."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # Only the main thread may set handlers, so a library in another one has changed nothing.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
