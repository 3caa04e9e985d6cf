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
threads. On Linux on x86-64 and ARM64 it gives up the system calls of `seccomp`. In the weak sandbox
it also gives up writing and, where the kernel has Landlock, reading anything but the interpreter's
files.
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
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from workbench.verifiers import seccomp
from workbench.verifiers.child import Child
from workbench.verifiers.inside import LANDLOCK_CREATE_RULESET, READY

INSIDE = Path(__file__).with_name("inside.py")
NO_NESTING = (0, 8)  # the first bubblewrap with --disable-userns
INSTALL = (
    "install it (on Debian and Ubuntu: apt install bubblewrap), or pass sandbox='weak' after "
    "reading what that leaves open"
)
# Users that systemd leaves to services made on the fly, so no account has files there.
FREE_USERS = (61184, 65519)
START_SECONDS = 60.0  # a start that takes longer has failed
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/",
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",
    "MALLOC_ARENA_MAX": "1",  # otherwise each thread reserves a quarter of the memory allowed
}
# Where systems keep shared libraries.
LIBRARIES = (
    "/lib",
    "/lib64",
    "/lib32",
    "/usr/lib",
    "/usr/lib64",
    "/usr/lib32",
    "/nix/store",
    "/gnu/store",
)
LANDLOCK_CREATE_RULESET_VERSION = 1


@dataclass
class Limits:
    """What a program may use.

    Attributes
    ----------
    deadline : float
        Seconds.
    memory_mb : int
        MiB of address space, the interpreter's own included.
    threads : int
        Counted with bubblewrap only, since otherwise all threads of the user would count.
    output_kb : int
        KiB.
    """

    deadline: float
    memory_mb: int
    threads: int = 64
    output_kb: int = 1024

    def resources(self, kind: str) -> dict[str, int]:
        """As resource limits of a sandbox of that kind."""
        limits = {
            # A second line of defence behind the deadline. The kernel counts whole seconds.
            "CPU": ceil(self.deadline) + 1,
            "AS": self.memory_mb * 2**20,
            "FSIZE": 2**20,
            "NOFILE": 64,
            "CORE": 0,
            "MEMLOCK": 0,
            "MSGQUEUE": 0,
        }
        # The kernel counts by user, and in the weak sandbox that is whoever started the training.
        if kind == "bwrap":
            limits["NPROC"] = self.threads
        return limits


class Sandbox:
    """Starts confined processes.

    Parameters
    ----------
    kind : {"bwrap", "weak"}
    limits : Limits

    Raises
    ------
    FileNotFoundError
        In one line, when bubblewrap is missing.
    ChildProcessError
        In one line, when bubblewrap is not allowed to make namespaces.
    """

    def __init__(self, kind: str, limits: Limits) -> None:
        self.kind = kind
        self.limits = limits
        self.filtered = seccomp.available()
        if kind == "bwrap":
            self.command = [*bubblewrap(), str(Path(sys.executable).resolve())]
            script = "/inside.py"
        else:
            self.command = [sys.executable]
            script = str(INSIDE)
        # No installed packages, nothing from the working directory, and no bytecode written.
        self.command += ["-s", "-S", "-P", "-B", script]
        # A sandbox that cannot start says so now.
        self.start({"role": "script", "source": ""}).finish()

    def start(self, header: dict[str, Any], rest: bytes = b"", fds: Sequence[int] = ()) -> Process:
        """A process in the role that the header says; `rest` is what its program reads from
        standard input.
        """
        data = self.opening(header) + rest
        return Process(self.command, self.limits, data, pass_fds=fds)

    def begin(self, stdin: int, stdout: int) -> Process:
        """A process that is told by somebody else, over `stdin`, what to be."""
        return Process(self.command, self.limits, b"", stdin=stdin, stdout=stdout)

    def opening(self, header: dict[str, Any]) -> bytes:
        """What the process's standard input begins with: the header, and what to give up."""
        text = json.dumps(header | {"confine": self._confinement()}).encode()
        # The length comes first, so that the process can tell the header
        # from what its program is to read.
        return b"%08d" % len(text) + text

    def _confinement(self) -> dict[str, Any]:
        root = os.geteuid() == 0
        weak = self.kind == "weak"
        linux = sys.platform == "linux"
        system_calls = None
        if self.filtered:
            system_calls = seccomp.program(platform.machine(), writing=not weak).hex()
        return {
            "user": _free_user() if root and not weak else None,
            "capabilities": root and linux,
            # Bubblewrap has --die-with-parent for this.
            "parent": os.getpid() if weak and linux else None,
            "limits": self.limits.resources(self.kind),
            "files": [*interpreter_files(), str(INSIDE)] if weak and has_landlock() else None,
            "filter": system_calls,
        }


class Process(Child):
    """A confined process.

    Parameters
    ----------
    command : list of str
    limits : Limits
    data : bytes
        What it reads from standard input.
    options
        Descriptors that it inherits, as `subprocess.Popen` takes them.

    Attributes
    ----------
    how : {"ended", "timeout", "output"}
        How it ended: by itself, at the deadline, or because it wrote too much.
    seconds : float
        How long its program ran.
    """

    def __init__(self, command: list[str], limits: Limits, data: bytes, **options: Any) -> None:
        self.limits = limits
        self.how = "timeout"
        self.seconds = 0.0
        super().__init__(command, data, whole=True, env=ENVIRONMENT, cwd="/", **options)

    def finish(self, seconds: float | None = None) -> tuple[bytes, int]:
        """Feed and read it to its end, the deadline or too much output.

        Parameters
        ----------
        seconds : float, optional
            From `READY` on, when its program starts. Default: the deadline.

        Returns
        -------
        output, code
            What it wrote, and its exit code (see `stop`).

        Raises
        ------
        ChildProcessError
            When its program does not start.
        """
        seconds = self.limits.deadline if seconds is None else seconds
        try:
            # The start does not count. The deadline runs from the first byte, which is `READY`.
            if self.converse(START_SECONDS, enough=bool) == "enough":
                began = time.monotonic()
                self.converse(seconds, self._too_much)
                # A program that closes its output and computes on is still held to the deadline.
                self.how = self._ending(began + seconds)
                self.seconds = time.monotonic() - began
            code = self.stop()
            if not self.output.startswith(READY):
                raise ChildProcessError(
                    f"a sandbox did not start (exit code {code}): {self.last_words()}"
                )
        finally:
            self.close()
        return bytes(self.output[len(READY) :]), code

    def _too_much(self, output: bytearray) -> bool:
        return len(output) > self.limits.output_kb * 1024

    def _ending(self, until: float) -> str:
        if self._too_much(self.output):
            return "output"
        try:
            self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return "timeout"
        return "ended"

    def ending(self, seconds: float) -> int:
        """The exit code once it has ended by itself, or has been given so many seconds to."""
        self._ending(time.monotonic() + seconds)
        return self.stop()

    def stop(self) -> int:
        """Kill what still runs. Returns the exit code, 128 + n where signal n ended it."""
        code = self.kill()
        # As shells count, and as bubblewrap does when a signal has ended the program inside.
        return 128 - code if code < 0 else code


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
    version = ctypes.CDLL(None).syscall(
        LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_CREATE_RULESET_VERSION
    )
    return version > 0


def bubblewrap() -> list[str]:
    """The command up to the interpreter; FileNotFoundError when there is no bubblewrap."""
    program = shutil.which("bwrap")
    if program is None:
        raise FileNotFoundError(
            f"sandbox='bwrap' needs bubblewrap, and there is no `bwrap`: {INSTALL}"
        )
    # Not --unshare-all, which would include users: as root there is no
    # namespace of users (see `_user`).
    namespaces = [
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--hostname",
        "sandbox",
    ]
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
    if _version(program) >= NO_NESTING:
        arguments.append("--disable-userns")
    return arguments


def _version(program: str) -> tuple[int, ...]:
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return tuple(map(int, re.findall(r"\d+", shown.stdout)[:2]))


def _free_user() -> int:
    first, last = FREE_USERS
    # At random, so that programs side by side seldom share a user: the kernel counts
    # threads and permits signals by user.
    return first + secrets.randbelow(last - first + 1)


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
