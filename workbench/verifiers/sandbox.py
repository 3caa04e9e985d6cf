"""Where the programs of `Code` run: processes with nothing of the user's in reach.

`Sandbox("bwrap")` starts the scripts of `inside` under bubblewrap
(https://github.com/containers/bubblewrap). They have namespaces of their own for processes,
network, IPC and host name; a file system that holds the interpreter and the system's libraries,
all of it read-only, and no /proc; no environment; and a filter of system calls (see `REFUSED`).
Started as a user, a program is also in a user namespace, and the only process of its own. Started
as root, it changes to a user that owns nothing, and bubblewrap's own process, which stays root, is
beyond its reach.

`Sandbox("none")` starts the same scripts directly, for programs that one trusts.

In both, resource limits hold processor time, memory, and the size and number of files. With
bubblewrap they also hold the number of threads. The deadline is kept from outside.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from math import ceil
from multiprocessing.connection import wait
from pathlib import Path
from signal import SIGKILL
from typing import IO, Any, NamedTuple

from workbench.verifiers.inside import OUT_OF_MEMORY, READY

INSIDE = Path(__file__).with_name("inside")
WITHOUT = "sandbox='none' runs programs that you trust without a sandbox"
INSTALL = f"on Debian and Ubuntu: apt install bubblewrap libseccomp2; {WITHOUT}"
# Users that systemd leaves to services made on the fly, so no account has files there.
FREE_USERS = range(61184, 65520)
START_SECONDS = 60.0  # a start that takes longer has failed
MOST_OUTPUT = 2**20  # bytes
MOST_THREADS = 64
SIGNALLED = 128  # exit codes from here on are signals
TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
# Where systems keep shared libraries.
LIBRARIES = [f"{place}/lib{bits}" for place in ("", "/usr") for bits in ("", "64", "32")]
LIBRARIES += ["/nix/store", "/gnu/store"]

# System calls by which a program could get around its limits or its namespaces. Of `clone` and
# `prctl` an argument decides, see `call_filter`.
REFUSED = [call for calls in TABLE["refused_calls"].values() for call in calls]
# Constants of libseccomp and of Linux.
ALLOW = 0x7FFF0000
FAIL = 0x00050000  # plus the number of the error
EQUAL = 4
MASKED_EQUAL = 7
CLONE_THREAD = 0x10000
PR_SET_PDEATHSIG = 1


class Sandbox:
    """Starts confined processes.

    Parameters
    ----------
    kind : {"bwrap", "none"}
    deadline : float
        Seconds of a program.
    memory_mb : int
        MiB of address space, the interpreter's own included.

    Raises
    ------
    FileNotFoundError
        In one line, when bubblewrap or libseccomp is missing.
    ChildProcessError
        In one line, when bubblewrap is not allowed to make namespaces.
    """

    def __init__(self, kind: str, deadline: float, memory_mb: int) -> None:
        self.is_closed = kind == "bwrap"
        self.limits = {
            # A second line of defence behind the deadline. The kernel counts whole seconds.
            "CPU": ceil(deadline) + 1,
            "FSIZE": MOST_OUTPUT,
            "NOFILE": 64,
            "CORE": 0,
        }
        if sys.platform == "linux":
            self.limits["AS"] = memory_mb * 2**20
        if self.is_closed:
            self.bubblewrap = bubblewrap()
            self.filter = call_filter()
            # The kernel counts threads by user. Without a user namespace, or a user of its own, a
            # program would have to share the number with the training.
            self.limits["NPROC"] = MOST_THREADS
        # A sandbox that cannot start, as in most containers, says so now.
        with self.start("program.script", {"source": ""}) as process:
            process.wait_for_start()

    def start(
        self,
        role: str,
        material: dict[str, Any],
        stdin: Any = subprocess.DEVNULL,
        stdout: Any = None,
        fds: Sequence[int] = (),
    ) -> Process:
        """A process in a role of `inside`, with what the role needs.

        `stdin` and `stdout` are files or descriptors; without `stdout`, what it writes is kept for
        `Process.finish`. `fds` are further descriptors that it inherits.
        """
        module, function = role.split(".")
        folder = "/" if self.is_closed else str(INSIDE.parent)
        # At the end of the path, so that a module here hides none of the standard library.
        line = (
            f"import sys; sys.path.append({folder!r}); from inside.{module} import {function}; "
            f"sys.path.pop(); {function}()"
        )
        is_root = self.is_closed and os.geteuid() == 0
        started, ready = os.pipe()
        header = {
            # At random, so that programs side by side seldom share a user: the kernel counts
            # threads and permits signals by user.
            "user": secrets.choice(FREE_USERS) if is_root else None,
            "limits": self.limits,
            "ready": ready,
        }
        with (
            os.fdopen(ready, "wb"),
            file_of(json.dumps(header | material).encode()) as given,
            file_of(self.filter if self.is_closed else b"") as calls,
        ):
            # No installed packages, nothing from the working directory, and no bytecode written.
            python = [os.path.realpath(sys.executable), "-s", "-S", "-P", "-B", "-c", line]
            command = [*python, str(given.fileno())]
            if self.is_closed:
                command = [*self.bubblewrap, "--seccomp", str(calls.fileno()), "--", *command]
            passed = [ready, given.fileno(), calls.fileno(), *fds]
            return Process(command, stdin, stdout, passed, os.fdopen(started, "rb", 0))


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


class Process(AbstractContextManager):
    """A process, which does not outlive its `with` block.

    Parameters
    ----------
    command : list of str
    stdin, stdout : file, or descriptor
        Without `stdout`, what it writes is kept.
    fds : sequence of int
        Further descriptors that it inherits.
    started : file
        Where `READY` comes when its program starts.
    """

    def __init__(
        self, command: list[str], stdin: Any, stdout: Any, fds: Sequence[int], started: Any
    ) -> None:
        self.started = started
        self.output = file_of()
        self.complaints = file_of()
        self.process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=self.output if stdout is None else stdout,
            stderr=self.complaints,
            pass_fds=fds,
            env=TABLE["environment"],
            cwd="/",
            # A process group of its own, so that `stop` reaches what it has started as well.
            start_new_session=True,
        )

    def wait_for_start(self) -> None:
        """Wait until its program starts; ChildProcessError when it does not."""
        # Without a start nothing but the end of the pipe comes.
        if wait([self.started], START_SECONDS) and self.started.read(1) == READY:
            return
        code = self.stop()
        self.complaints.seek(0)
        words = self.complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
        raise ChildProcessError(
            f"the sandbox did not start (exit code {code}): {words or 'no message'}; {WITHOUT}"
        )

    def finish(self, seconds: float) -> Ended:
        """Wait for its end, at most so many seconds from the start of its program on."""
        self.wait_for_start()
        began = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, seconds))
        took = time.monotonic() - began
        is_late = self.process.returncode is None
        code = self.stop()
        self.output.seek(0)
        return Ended(self.output.read(), code, is_late, took)

    def stop(self, seconds: float = 0.0) -> int:
        """Kill what still runs after so many seconds; its exit code."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        # It may have ended by itself just now. macOS calls that a matter of permission.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, SIGKILL)
        code = self.process.wait()
        # As shells count, and as bubblewrap does when a signal has ended the program inside.
        return SIGNALLED - code if code < 0 else code

    def __exit__(self, *exception: object) -> None:
        self.stop()
        for file in (self.started, self.output, self.complaints):
            file.close()


def file_of(content: bytes = b"") -> IO[bytes]:
    """A file without a name; in memory on Linux, so that a full disk changes no verdict."""
    if sys.platform == "linux":
        file: IO[bytes] = os.fdopen(os.memfd_create("sandbox"), "w+b")
    else:
        file = tempfile.TemporaryFile()
    file.write(content)
    file.seek(0)
    return file


# Bubblewrap


def bubblewrap() -> list[str]:
    """The command up to the interpreter; FileNotFoundError when there is no bubblewrap."""
    program = shutil.which("bwrap")
    if program is None:
        raise FileNotFoundError(f"sandbox='bwrap': there is no bubblewrap ({INSTALL})")
    life = ["--die-with-parent", "--new-session", "--hostname", "sandbox"]
    namespaces = [f"--unshare-{kind}" for kind in ("pid", "net", "ipc", "uts", "cgroup-try")]
    if os.geteuid() == 0:
        # Resource limits would not hold root in a user namespace. So the program may change its
        # user instead (see `inside.begin`). Process 1 stays bubblewrap's, since only root may end
        # the program when the caller dies.
        user = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        # As process 1: otherwise that is a process of bubblewrap, of the same user and without
        # limits, which the program could take over.
        user = ["--unshare-user", "--uid", "65534", "--gid", "65534", "--as-pid-1"]
    files = [*mounts(), "--ro-bind", str(INSIDE), "/inside", "--remount-ro", "/"]
    return [program, *life, *namespaces, "--cap-drop", "ALL", *user, *files]


def mounts() -> list[str]:
    """The file system: the system's libraries, the interpreter without anything installed besides,
    and the harmless devices.
    """
    own = sysconfig.get_paths(vars={"platbase": sys.base_exec_prefix})
    folders = (own["stdlib"], own["platstdlib"], sysconfig.get_config_var("LIBDIR"))
    standard_library = sorted({os.path.realpath(folder) for folder in folders if folder})
    # Many systems have /lib as a link to /usr/lib. Linked again, each folder is mounted once.
    links = [path for path in LIBRARIES if os.path.islink(path)]
    mounted = [path for path in LIBRARIES if path not in links]
    mounted += [os.path.realpath(sys.executable), *standard_library, "/etc/ld.so.cache"]
    mounted = [path for path in mounted if os.path.exists(path)]
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
    for folder in sorted({*standard_library, "/usr/lib"}):
        for pattern in ("*-packages", "python3*/*-packages"):
            for installed in sorted(Path(folder).glob(pattern)):
                arguments += ["--tmpfs", str(installed), "--remount-ro", str(installed)]
    return [*arguments, "--dev", "/dev", "--remount-ro", "/dev"]


class Condition(ctypes.Structure):
    """What a rule of libseccomp asks of an argument (struct scmp_arg_cmp)."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("comparison", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def call_filter() -> bytes:
    """A filter of system calls as bubblewrap takes it, made by libseccomp
    (https://github.com/seccomp/libseccomp).

    Raises
    ------
    FileNotFoundError
        When there is no libseccomp.
    """
    try:
        library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    except OSError:
        raise FileNotFoundError(f"sandbox='bwrap': there is no libseccomp ({INSTALL})") from None
    library.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(library.seccomp_init(ALLOW))

    def refuse(call: str, error: int, *conditions: Condition) -> None:
        number = library.seccomp_syscall_resolve_name(call.encode())
        array = (Condition * len(conditions))(*conditions)
        if library.seccomp_rule_add_array(rules, FAIL + error, number, len(conditions), array):
            raise OSError(f"sandbox='bwrap': this libseccomp cannot refuse {call}")

    for call in REFUSED:
        refuse(call, errno.EPERM)
    # Libraries that do not find it start their threads by `clone`, whose flags a filter can read.
    refuse("clone3", errno.ENOSYS)
    refuse("clone", errno.EPERM, Condition(0, MASKED_EQUAL, CLONE_THREAD, 0))
    # By this a program could outlive the caller.
    refuse("prctl", errno.EPERM, Condition(0, EQUAL, PR_SET_PDEATHSIG, 0))
    with file_of() as file:
        library.seccomp_export_bpf(rules, file.fileno())
        library.seccomp_release(rules)
        file.seek(0)
        return file.read()
