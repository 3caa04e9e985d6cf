"""Where the programs of `Code` run: a process with nothing of the user's in reach.

`Sandbox("bwrap")` starts `inside.py` under bubblewrap (https://github.com/containers/bubblewrap): namespaces of its own
for processes, network, IPC, host name and (unless started as root) users; a file system that holds the interpreter, the
system's libraries, /proc, /dev and one small /tmp, all but the last read-only; no environment. Started as root, which
resource limits do not hold, it becomes a user that owns nothing. `Sandbox("weak")` starts the same script directly, in a
temporary directory with an empty environment: the file system stays open to it.

In both, `inside.py` limits processor time, memory, file sizes, descriptors and threads, and on Linux (x86-64, ARM64) gives
up the system calls that start processes, send signals, open sockets or mount anything.
"""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from workbench.verifiers.inside import MACHINES, READY

INSIDE = Path(__file__).with_name("inside.py")
OLDEST = (0, 7)  # bubblewrap with --size
NO_NESTING = (0, 8)  # bubblewrap with --disable-userns
INSTALL = "install it (on Debian and Ubuntu: apt install bubblewrap), or pass sandbox='weak' after reading what that leaves open"
FREE_UIDS = (
    61184,
    65519,
)  # users that systemd leaves to services made on the fly: no account has files there
START_SECONDS = 60.0  # a start that takes longer has failed
CHUNK = 65_536  # bytes a read or write moves at most
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONUTF8": "1", "PYTHONHASHSEED": "0",
               "MALLOC_ARENA_MAX": "1"}  # fmt: skip  # otherwise each thread reserves a quarter of the memory allowed
SYSTEM = (
    "/lib",
    "/lib64",
    "/lib32",
    "/usr/lib",
    "/usr/lib64",
    "/usr/lib32",
    "/nix/store",
    "/gnu/store",
)


@dataclass
class Limits:
    """What a program may use: seconds (its deadline), MiB of memory, MiB of files, threads, KiB of output."""

    deadline: float
    memory_mb: int
    files_mb: int = 16
    threads: int = 64
    output_kb: int = 1024

    def resources(self, kind: str) -> dict[str, int]:
        """As resource limits; those on threads count a whole user's in the weak kind, so that one leaves them out."""
        limits = {"CPU": ceil(self.deadline) + 1, "AS": self.memory_mb * 2**20, "FSIZE": self.files_mb * 2**20,
                  "NOFILE": 64, "CORE": 0, "MEMLOCK": 0, "MSGQUEUE": 0}  # fmt: skip
        return limits | ({"NPROC": self.threads} if kind == "bwrap" else {})


class Sandbox:
    """Starts confined processes; `kind` is "bwrap" or "weak".

    Raises RuntimeError in one line when bubblewrap is missing, too old or not allowed to make namespaces.
    """

    def __init__(self, kind: str, limits: Limits) -> None:
        self.kind, self.limits = kind, limits
        self.command = bubblewrap(limits) if kind == "bwrap" else [sys.executable]
        self.command += ["-s", "-S", "-P", "-B", "/inside.py" if kind == "bwrap" else str(INSIDE)]
        self.start(
            {"role": "script", "source": ""}
        ).finish()  # a sandbox that cannot start says so now

    def start(self, header: dict, rest: bytes = b"", **options) -> Process:
        """A process in the role that the header says, `rest` being what its program reads from standard input."""
        return self._process(self.opening(header) + rest, **options)

    def begin(self, stdin: int, stdout: int) -> Process:
        """A process that is told by someone else, over `stdin`, what to be."""
        return self._process(b"", stdin=stdin, stdout=stdout)

    def _process(self, data: bytes, **options) -> Process:
        folder = tempfile.mkdtemp(prefix="workbench-") if self.kind == "weak" else "/"
        return Process(self.command, self.limits, data, folder=folder, **options)

    def opening(self, header: dict) -> bytes:
        """What the process's standard input begins with: the header and how to confine it."""
        as_root = self.kind == "bwrap" and os.geteuid() == 0
        text = json.dumps(header | {
            "limits": self.limits.resources(self.kind), "filter": platform.system() == "Linux" and platform.machine() in MACHINES,
            "uid": FREE_UIDS[0] + secrets.randbelow(FREE_UIDS[1] - FREE_UIDS[0] + 1) if as_root else None,
            "parent": os.getpid() if self.kind == "weak" else None,
        }).encode()  # fmt: skip
        return b"%08d" % len(text) + text


class Process:
    """A confined process; `how` it ended: "ended" by itself, "timeout", or "output", of which it wrote too much.

    folder: where it starts, removed with it unless it is /. stdin, stdout: descriptors instead of pipes to this process;
    fds: those it inherits besides. `seconds`: how long its program ran.
    """

    def __init__(
        self,
        command: list[str],
        limits: Limits,
        data: bytes,
        *,
        folder: str = "/",
        stdin=None,
        stdout=None,
        fds=(),
    ) -> None:
        self.limits, self.data, self.output, self.how = (
            limits,
            memoryview(data),
            bytearray(),
            "ended",
        )
        self.seconds = 0.0
        self.folder, self.complaints = folder, tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command, bufsize=0, stdin=stdin or subprocess.PIPE, stdout=stdout or subprocess.PIPE, stderr=self.complaints,
            start_new_session=True, env=ENVIRONMENT, cwd=folder, pass_fds=fds,
        )  # fmt: skip

    def finish(self, seconds: float | None = None) -> tuple[bytes, int]:
        """Feed and read it to its end, the deadline or too much output; what it wrote, and its exit code (see `stop`).

        seconds: default the deadline. They count from `READY`, when its program starts; RuntimeError when it does not.
        """
        try:
            self._converse(self.limits.deadline if seconds is None else seconds)
            code = self.stop()
            if not self.output.startswith(READY):
                raise RuntimeError(
                    f"a sandbox did not start (exit code {code}): {self.last_words()}"
                )
        finally:
            self.close()
        return bytes(self.output[len(READY) :]), code

    def _converse(self, seconds: float) -> None:
        began, until = None, time.monotonic() + START_SECONDS
        os.set_blocking(self.process.stdin.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdin, selectors.EVENT_WRITE, self._feed)
            reading = selector.register(self.process.stdout, selectors.EVENT_READ, self._read)
            while (
                reading
                and time.monotonic() < until
                and len(self.output) <= self.limits.output_kb * 1024
            ):
                for key, _ in selector.select(until - time.monotonic()):
                    if not key.data():
                        selector.unregister(key.fileobj)
                        key.fileobj.close()
                        reading = reading and key.data != self._read
                if self.output and began is None:
                    began = time.monotonic()
                    until = began + seconds
        self.how = self._ending(until)
        self.seconds = time.monotonic() - (began or time.monotonic())

    def _ending(self, until: float) -> str:
        if len(self.output) > self.limits.output_kb * 1024:
            return "output"
        try:
            self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return "timeout"
        return "ended"

    def _feed(self) -> bool:
        """Write what the pipe takes; False when all is written or nobody reads."""
        try:
            self.data = self.data[os.write(self.process.stdin.fileno(), self.data[:CHUNK]) :]
        except BrokenPipeError:
            return False
        return bool(self.data)

    def _read(self) -> bool:
        """Take what has been written; False when it is closed."""
        chunk = os.read(self.process.stdout.fileno(), CHUNK)
        self.output += chunk
        return bool(chunk)

    def ending(self, seconds: float) -> int:
        """The exit code once it has ended by itself, or has been given so many seconds to."""
        self._ending(time.monotonic() + seconds)
        return self.stop()

    def stop(self) -> int:
        """Kill what still runs and leave nothing; the exit code, 128 + n where signal n ended it."""
        if self.process.poll() is None:
            with suppress(
                ProcessLookupError, PermissionError
            ):  # ended since; macOS calls it a matter of permission
                os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        if self.folder != "/":
            subprocess.run(
                ["rm", "-rf", "--", self.folder], stderr=subprocess.DEVNULL
            )  # at any depth, whatever is in it
            self.folder = "/"
        return 128 - code if code < 0 else code

    def close(self) -> None:
        """Kill what still runs, and let go of everything."""
        self.stop()
        self.complaints.close()

    def last_words(self) -> str:
        """The last line on stderr from before its program started."""
        self.complaints.seek(0)
        lines = self.complaints.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no message"


def bubblewrap(limits: Limits) -> list[str]:
    """The command up to the interpreter. RuntimeError when there is no bubblewrap or too old a one."""
    found = shutil.which("bwrap")
    if found is None:
        raise RuntimeError(f"sandbox='bwrap' needs bubblewrap, and there is no `bwrap`: {INSTALL}")
    text = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    version = tuple(map(int, re.findall(r"\d+", text)[:2]))
    if version < OLDEST:
        raise RuntimeError(
            f"sandbox='bwrap' needs bubblewrap {'.'.join(map(str, OLDEST))} or later, not {text.strip()}"
        )
    return [
        found, "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
        "--unshare-cgroup-try", "--hostname", "sandbox", "--cap-drop", "ALL", *_user(version),
        "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev", "--perms", "1777", "--size", str(limits.files_mb * 2**20),
        "--tmpfs", "/tmp", "--chdir", "/tmp", *_files(), "--ro-bind", str(INSIDE), "/inside.py", "--remount-ro", "/", "--",
        str(Path(sys.executable).resolve()),
    ]  # fmt: skip


def _user(version: tuple[int, ...]) -> list[str]:
    """A user namespace; root, whom limits do not hold in one, may change its user instead (`inside.confine`)."""
    if os.geteuid() == 0:
        return ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    nesting = ["--disable-userns"] if version >= NO_NESTING else []
    return ["--unshare-user", "--uid", "65534", "--gid", "65534", *nesting]


def _files() -> list[str]:
    """The system's libraries and the interpreter's own files, without anything installed besides."""
    program, own = (
        os.path.realpath(sys.executable),
        sysconfig.get_paths(vars={"platbase": sys.base_exec_prefix}),
    )
    folders = {
        os.path.realpath(path)
        for path in (own["stdlib"], own["platstdlib"], sysconfig.get_config_var("LIBDIR"))
        if path
    }
    mounts = [path for path in SYSTEM if os.path.isdir(path) and not os.path.islink(path)]
    mounts += [program, *sorted(folders), "/etc/ld.so.cache"]
    arguments = []
    for parent in sorted({str(parent) for path in mounts for parent in Path(path).parents} - {"/"}):
        arguments += [
            "--dir",
            parent,
        ]  # otherwise made unreadable for others than the user it starts as
    for path in filter(os.path.islink, SYSTEM):
        arguments += ["--symlink", os.readlink(path), path]
    for path in mounts:
        arguments += ["--ro-bind-try", path, path]
    for folder in sorted(folders | {"/usr/lib", "/usr/local/lib"}):
        for installed in [
            *Path(folder).glob("*-packages"),
            *Path(folder).glob("python3*/*-packages"),
        ]:
            arguments += ["--tmpfs", str(installed), "--remount-ro", str(installed)]
    return arguments
