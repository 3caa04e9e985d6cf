"""Where the programs of `Code` run: a process with nothing of the user's in reach.

`Sandbox("bwrap")` starts `inside.py` under bubblewrap (https://github.com/containers/bubblewrap).
It has namespaces of its own for processes, network, IPC, host name and, unless started as root,
users; a file system that holds the interpreter, the system's libraries and /dev, all of it
read-only, and no /proc; and no environment. Started as a user, the program is the only process of
its namespace. Started as root, it changes to a user that owns nothing, and bubblewrap's own
process, which stays root, is beyond its reach.

`Sandbox("weak")` starts the same script directly, where bubblewrap cannot run. It has no
namespaces.

In both, `inside.py` limits processor time, memory, file sizes, descriptors and, with bubblewrap,
threads, which are counted from outside as well. On Linux on x86-64 and ARM64 it gives up the system
calls of `seccomp`. In the weak sandbox it also gives up writing and, where the kernel has Landlock,
reading anything but the interpreter's files.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from math import ceil
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIGKILL
from typing import IO, Any, NamedTuple

from workbench.verifiers import seccomp
from workbench.verifiers.inside import LANDLOCK_CREATE_RULESET, OUT_OF_MEMORY, READY

INSIDE = Path(__file__).with_name("inside.py")
NO_NESTING = (0, 8)  # the first bubblewrap with --disable-userns
INSTALL = (
    "install it (on Debian and Ubuntu: apt install bubblewrap), or pass sandbox='weak' after "
    "reading what that leaves open"
)
# Users that systemd leaves to services made on the fly, so no account has files there.
FREE_USERS = range(61184, 65520)
START_SECONDS = 60.0  # a start that takes longer has failed
MOST_OUTPUT = 2**20  # bytes
# The kernel counts by user, so it limits them with bubblewrap only: in the weak sandbox the user is
# whoever started the training. There a program with more is killed at the next look.
MOST_THREADS = 64
LOOK_SECONDS = 0.01
SIGNALLED = 128  # exit codes from here on are signals
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/",
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",
    "MALLOC_ARENA_MAX": "1",  # otherwise each thread reserves a quarter of the memory allowed
}
# Where systems keep shared libraries.
LIBRARIES = [f"{place}/lib{bits}" for place in ("", "/usr") for bits in ("", "64", "32")]
LIBRARIES += ["/nix/store", "/gnu/store"]
LANDLOCK_CREATE_RULESET_VERSION = 1


class Sandbox:
    """Starts confined processes.

    Parameters
    ----------
    kind : {"bwrap", "weak"}
    deadline : float
        Seconds of a program.
    memory_mb : int
        MiB of address space, the interpreter's own included.

    Raises
    ------
    FileNotFoundError
        In one line, when bubblewrap is missing.
    ChildProcessError
        In one line, when bubblewrap is not allowed to make namespaces.
    """

    def __init__(self, kind: str, deadline: float, memory_mb: int) -> None:
        self.is_weak = kind == "weak"
        self.deadline = deadline
        self.memory_mb = memory_mb
        self.filtered = seccomp.available()
        if self.is_weak:
            self.command = [sys.executable]
            script = str(INSIDE)
        else:
            self.command = [*bubblewrap(), str(Path(sys.executable).resolve())]
            script = "/inside.py"
        # No installed packages, nothing from the working directory, and no bytecode written.
        self.command += ["-s", "-S", "-P", "-B", script]
        # A sandbox that cannot start says so now.
        self.start({"role": "script", "source": ""}).finish(deadline)

    def start(self, header: dict[str, Any], rest: bytes = b"", fds: Sequence[int] = ()) -> Process:
        """A process in the role that the header says; `rest` is what its program reads from
        standard input.
        """
        ready, signal = Pipe(duplex=False)
        with signal:
            data = self.opening(header | {"ready": signal.fileno()}) + rest
            with _file(data) as stdin:
                return Process(self.command, stdin, _file(), [*fds, signal.fileno()], ready)

    def opening(self, header: dict[str, Any]) -> bytes:
        """What the process's standard input begins with: the header, and what to give up."""
        text = json.dumps(header | {"confine": self._confinement()}).encode()
        # The length comes first, so that the process can tell the header
        # from what its program is to read.
        return b"%08d" % len(text) + text

    def _confinement(self) -> dict[str, Any]:
        root = os.geteuid() == 0
        linux = sys.platform == "linux"
        weak = self.is_weak
        limits = {
            # A second line of defence behind the deadline. The kernel counts whole seconds.
            "CPU": ceil(self.deadline) + 1,
            "AS": self.memory_mb * 2**20,
            "FSIZE": MOST_OUTPUT,  # of its output, since it can open no other file for writing
            "NOFILE": 64,
            **dict.fromkeys(("CORE", "MEMLOCK", "MSGQUEUE"), 0),
        }
        if not weak:
            limits["NPROC"] = MOST_THREADS
        calls = seccomp.program(platform.machine(), writing=not weak) if self.filtered else None
        return {
            # At random, so that programs side by side seldom share a user: the kernel counts
            # threads and permits signals by user.
            "user": secrets.choice(FREE_USERS) if root and not weak else None,
            "capabilities": root and linux,
            # Bubblewrap has --die-with-parent for this.
            "parent": os.getpid() if weak and linux else None,
            "limits": limits,
            "files": [*interpreter_files(), str(INSIDE)] if weak and has_landlock() else None,
            "filter": calls.hex() if calls else None,
        }


class Ended(NamedTuple):
    """How a process ended.

    Attributes
    ----------
    output : bytes
        What it wrote.
    code : int
        Its exit code, 128 + n where signal n ended it.
    is_late : bool
        Whether it was killed at its deadline.
    seconds : float
        How long its program ran.
    """

    output: bytes
    code: int
    is_late: bool
    seconds: float

    @property
    def failure(self) -> str | None:
        """The status of a program that did not get to its end by itself; None if it did."""
        if self.is_late:
            return "timeout"
        # The kernel lets it write no more than that.
        is_full = len(self.output) >= MOST_OUTPUT
        return "crash" if is_full or self.code >= SIGNALLED or self.code == OUT_OF_MEMORY else None


class Process:
    """A confined process.

    Parameters
    ----------
    command : list of str
    stdin, stdout : file, or descriptor
    fds : sequence of int
        Further descriptors that it inherits.
    ready : Connection, optional
        Where it writes `READY` when its program starts.
    """

    def __init__(
        self,
        command: list[str],
        stdin: Any,
        stdout: Any,
        fds: Sequence[int] = (),
        ready: Connection | None = None,
    ) -> None:
        self.stdout = stdout
        self.ready = ready
        self.complaints = _file()
        self.process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=self.complaints,
            pass_fds=fds,
            env=ENVIRONMENT,
            cwd="/",
            # A process group of its own, so that `stop` reaches what it has started as well.
            start_new_session=True,
        )

    def finish(self, seconds: float, candidate: Process | None = None) -> Ended:
        """Wait for its end, at most so many seconds from `READY` on, when its program starts, or
        that of its candidate.

        Raises
        ------
        ChildProcessError
            When its program does not start.
        """
        assert self.ready is not None
        with self.ready:
            # The start does not count. Without a start nothing but the end of the pipe comes.
            is_ready = self.ready.poll(START_SECONDS) and os.read(self.ready.fileno(), 1) == READY
        began = time.monotonic()
        is_late = is_ready and not self._ends_within(seconds, candidate or self)
        took = time.monotonic() - began
        code = self.stop()
        with self.stdout, self.complaints:
            if not is_ready:
                self.complaints.seek(0)
                words = self.complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise ChildProcessError(
                    f"a sandbox did not start (exit code {code}): {words or 'no message'}"
                )
            self.stdout.seek(0)
            return Ended(self.stdout.read(), code, is_late, took)

    def _ends_within(self, seconds: float, watched: Process | None = None) -> bool:
        end = time.monotonic() + seconds
        while self.process.poll() is None and (left := end - time.monotonic()) > 0:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(min(left, LOOK_SECONDS if watched else left))
            if watched and watched.threads > MOST_THREADS:
                watched.kill()
        return self.process.returncode is not None

    @property
    def threads(self) -> int:
        """How many there are; 0 after its end, and on other systems than Linux."""
        with suppress(OSError):
            # A directory has two links, and one more for each directory in it.
            return os.stat(f"/proc/{self.process.pid}/task").st_nlink - 2
        return 0

    def kill(self) -> None:
        """Kill it and what it has started."""
        # It may have ended by itself just now. macOS calls that a matter of permission.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, SIGKILL)

    def stop(self, seconds: float = 0.0) -> int:
        """Kill what still runs after so many seconds; its exit code."""
        if not self._ends_within(seconds):
            self.kill()
        code = self.process.wait()
        # As shells count, and as bubblewrap does when a signal has ended the program inside.
        return SIGNALLED - code if code < 0 else code


def _file(content: bytes = b"") -> IO[bytes]:
    """A file without a name; in memory on Linux, so that a full disk changes no verdict."""
    if sys.platform == "linux":
        file: IO[bytes] = os.fdopen(os.memfd_create("sandbox"), "w+b")
    else:
        file = tempfile.TemporaryFile()
    file.write(content)
    file.seek(0)
    return file


def left_open() -> str:
    """What `sandbox="weak"` leaves open on this machine, in a sentence for a warning."""
    # From the least to the most that is open: each missing part replaces the list before it.
    gaps = ["see which files exist"]
    if not has_landlock():
        gaps = [
            "read every file that you can read, and the memory of your processes through /proc, by "
            "which it can learn what a test expects"
        ]
    if not seccomp.available():
        gaps = [
            "read, change and delete what you can",
            "reach the network",
            "signal and kill your processes",
            "outlive its deadline and your program",
            "forge its verdict by any of these",
        ]
    return f"sandbox='weak' has no namespaces: a program can {', '.join(gaps)}"


def has_landlock() -> bool:
    """Whether the kernel can restrict which files a process reads (Linux 5.13)."""
    if sys.platform != "linux":
        return False
    syscall = ctypes.CDLL(None).syscall
    return syscall(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_CREATE_RULESET_VERSION) > 0


def bubblewrap() -> list[str]:
    """The command up to the interpreter; FileNotFoundError when there is no bubblewrap."""
    program = shutil.which("bwrap")
    if program is None:
        raise FileNotFoundError(
            f"sandbox='bwrap' needs bubblewrap, and there is no `bwrap`: {INSTALL}"
        )
    # Not --unshare-all, which would include users: as root there is no
    # namespace of users (see `_user`).
    kinds = ("pid", "net", "ipc", "uts", "cgroup-try")
    namespaces = [*(f"--unshare-{kind}" for kind in kinds), "--hostname", "sandbox"]
    life = ["--die-with-parent", "--new-session"]
    files = [*_mounts(), "--ro-bind", str(INSIDE), "/inside.py", "--remount-ro", "/"]
    return [program, *life, *namespaces, "--cap-drop", "ALL", *_user(program), *files, "--"]


def _user(program: str) -> list[str]:
    """As whom the program runs.

    As a user: in a user namespace, and as process 1. Otherwise process 1 is one of bubblewrap's, of
    the same user and not confined, which the program could take over.

    As root: resource limits would not hold root in a user namespace, so the program may change its
    user (see `inside.confine`). Process 1 stays bubblewrap's, since only root may end the program
    when the caller dies.
    """
    if os.geteuid() == 0:
        return ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    arguments = ["--unshare-user", "--uid", "65534", "--gid", "65534", "--as-pid-1"]
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    if tuple(map(int, re.findall(r"\d+", version.stdout)[:2])) >= NO_NESTING:
        arguments.append("--disable-userns")
    return arguments


def interpreter_files() -> list[str]:
    """The system's libraries, the interpreter's own files, and the harmless devices."""
    paths = [path for path in LIBRARIES if os.path.isdir(path)]
    paths += [os.path.realpath(sys.executable), *_standard_library(), "/etc/ld.so.cache"]
    paths += ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"]
    return [path for path in paths if os.path.exists(path)]


def _standard_library() -> list[str]:
    own = sysconfig.get_paths(vars={"platbase": sys.base_exec_prefix})
    folders = (own["stdlib"], own["platstdlib"], sysconfig.get_config_var("LIBDIR"))
    return sorted({os.path.realpath(folder) for folder in folders if folder})


def _mounts() -> list[str]:
    """The file system: libraries and the interpreter, without anything installed besides."""
    # Many systems have /lib as a link to /usr/lib. Linked again, each folder is mounted once.
    links = [path for path in LIBRARIES if os.path.islink(path)]
    mounted = [
        path for path in interpreter_files() if path not in links and not path.startswith("/dev/")
    ]
    arguments = []
    # Made here, or bubblewrap would make them unreadable for others than the user it starts as.
    parents = {str(parent) for path in mounted for parent in Path(path).parents} - {"/"}
    for parent in sorted(parents):
        arguments += ["--dir", parent]
    for path in links:
        arguments += ["--symlink", os.readlink(path), path]
    for path in mounted:
        arguments += ["--ro-bind", path, path]
    # Installed packages lie inside the folders just mounted, and empty ones are mounted over them.
    for folder in sorted({*_standard_library(), "/usr/lib"}):
        for pattern in ("*-packages", "python3*/*-packages"):
            for installed in sorted(Path(folder).glob(pattern)):
                arguments += ["--tmpfs", str(installed), "--remount-ro", str(installed)]
    return [*arguments, "--dev", "/dev", "--remount-ro", "/dev"]
