"""A process that is fed and read under a deadline, and killed with everything that it started."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

CHUNK = 65_536  # bytes that a read or write moves at most


class Child:
    """A process in a group of its own.

    Parameters
    ----------
    command : sequence of str
    data : bytes
        What it reads first. With `whole`, it reads nothing else, and its input is closed behind it.
    whole : bool
    options
        Further arguments of `subprocess.Popen`, such as descriptors in place of the two pipes.

    Attributes
    ----------
    output : bytearray
        What it has written and nobody has taken yet.
    """

    def __init__(
        self, command: Sequence[str], data: bytes = b"", *, whole: bool = False, **options: Any
    ) -> None:
        self.unsent = memoryview(data)
        self.whole = whole
        self.output = bytearray()
        # A file and not a pipe, which would block the process when full.
        self.complaints = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command,
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **options},
            bufsize=0,
            stderr=self.complaints,
            # A process group of its own, so that `kill` reaches what it has started as well.
            start_new_session=True,
        )
        if self.process.stdin is not None:
            # While it computes it does not read. Writing to it must not keep the caller waiting.
            os.set_blocking(self.process.stdin.fileno(), False)

    def converse(self, seconds: float, enough: Callable[[bytearray], bool]) -> str:
        """Feed and read it until its output is enough.

        Returns
        -------
        "enough", "ended" when nothing more will come, or "late" after so many seconds.
        """
        until = time.monotonic() + seconds
        assert self.process.stdout is not None
        stdout = self.process.stdout.fileno()
        while not enough(self.output):
            self._feed()
            poll = select.poll()
            poll.register(stdout, select.POLLIN)
            if self.unsent and self.process.stdin is not None:
                poll.register(self.process.stdin, select.POLLOUT)
            # Read once more behind the deadline: what has come by then is not late, even if this
            # process was too busy to read it in time.
            patience = until - time.monotonic()
            if stdout in dict(poll.poll(1000 * max(0.0, patience))):
                chunk = os.read(stdout, CHUNK)
                if not chunk:
                    return "ended"
                self.output += chunk
            if patience <= 0 and not enough(self.output):
                return "late"
        return "enough"

    def _feed(self) -> None:
        """Write what the pipe takes now."""
        stdin = self.process.stdin
        if stdin is None or stdin.closed:
            return
        try:
            while self.unsent:
                self.unsent = self.unsent[os.write(stdin.fileno(), self.unsent[:CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            # No news: that nobody reads any more shows at the end of the output.
            self.unsent = memoryview(b"")
        if self.whole:
            stdin.close()

    def kill(self) -> int:
        """Kill the whole group and wait. The exit code is minus the signal where one ended it."""
        if self.process.returncode is None:
            # Somebody else may have waited for it. macOS calls it a matter of permission when it
            # has ended by itself.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()

    def close(self) -> None:
        """Kill what still runs, and let go of everything."""
        self.kill()
        self.let_go()

    def let_go(self) -> None:
        """Close this process's ends of the pipes."""
        for pipe in (self.process.stdin, self.process.stdout, self.complaints):
            if pipe is not None:
                pipe.close()

    def last_words(self) -> str:
        """The last line that it wrote to stderr."""
        self.complaints.seek(0)
        lines = self.complaints.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no message"
