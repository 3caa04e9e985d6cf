"""Shared by the tests of `Code`: which sandboxes there are here, and short ways to write tests of
programs.
"""

from __future__ import annotations

import atexit
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from workbench.verifiers import Code, Scores
from workbench.verifiers.sandbox import Sandbox

ROOT = Path(__file__).resolve().parents[1]
DEADLINE = 20.0  # of programs that end by themselves, so that a busy machine changes no verdict
USER = 12345  # an id without an account, for the tests that root runs as a user


def refusal(kind: str) -> str | None:
    """Why that kind of sandbox cannot be had here."""
    try:
        Sandbox(kind, DEADLINE, 256)
    except OSError as error:
        return str(error)
    return None


# A user that is not root


def as_user(command: list[str]) -> list[str]:
    """A command as root that runs another as a user, who can read the interpreter and this project.

    Where their folders are closed to others (a home directory such as /root), it opens a path to
    them in a mount namespace of its own.
    """
    needed = [Path(path).resolve() for path in (sys.base_prefix, sys.prefix, ROOT)]
    closed: dict[Path, list[Path]] = {}
    for path in needed:
        barred = [folder for folder in path.parents if not folder.stat().st_mode & 0o001]
        if barred:
            closed.setdefault(barred[-1], []).append(path)
    lines = ["set -e", "kept=$(mktemp -d)"]
    for folder, paths in closed.items():
        lines.append(f"mount --bind {shlex.quote(str(folder))} $kept")
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(folder))}")
        for path in paths:
            lines.append(f"mkdir -p {shlex.quote(str(path))}")
            source = shlex.quote(str(path.relative_to(folder)))
            lines.append(f"mount --bind $kept/{source} {shlex.quote(str(path))}")
        lines.append("umount $kept")
    lines.append("rmdir $kept")
    lines.append(f'exec setpriv --reuid={USER} --regid={USER} --clear-groups "$@"')
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines), "sh",
            *command]  # fmt: skip


def no_user() -> str | None:
    """Why the tests cannot run a sandbox as a user other than the one that they run as."""
    if os.geteuid() != 0:
        return "only root can become another user; these tests run as a user anyway"
    if not (shutil.which("unshare") and shutil.which("setpriv")):
        return "unshare and setpriv (util-linux) are needed to become another user"
    tried = subprocess.run(as_user([sys.executable, "-c", ""]), capture_output=True, text=True)
    return None if tried.returncode == 0 else f"cannot become another user: {tried.stderr.strip()}"


SERVER = """
import json, sys
from workbench.verifiers import Code
for line in sys.stdin:
    asked = json.loads(line)
    with Code(**asked["options"]) as code:
        scores = code.score(asked["responses"], asked["answers"])
    print(json.dumps([scores.reward.tolist(), scores.status.tolist()]), flush=True)
"""


class UserCode:
    """`Code` in a process of another user. The process is shared by all of them."""

    server: subprocess.Popen | None = None

    def __init__(self, options: dict) -> None:
        self.options = options

    def score(self, responses, answers) -> Scores:
        if UserCode.server is None:
            UserCode.server = subprocess.Popen(
                as_user([sys.executable, "-c", SERVER]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd="/",
                env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"},
            )
            atexit.register(UserCode.server.kill)
        asked = {
            "options": self.options,
            "responses": list(responses),
            "answers": list(answers),
        }
        print(json.dumps(asked), file=UserCode.server.stdin, flush=True)
        reward, status = json.loads(UserCode.server.stdout.readline())
        return Scores(np.array(reward), np.array(status))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass


# Kinds of sandboxes: "bwrap", "user" (bubblewrap as another user) and "none"

NO_BWRAP = refusal("bwrap")
NO_USER = NO_BWRAP or no_user()


def kind(name: str, missing: str | None):
    return pytest.param(name, marks=pytest.mark.skipif(missing is not None, reason=str(missing)))


BWRAP = kind("bwrap", NO_BWRAP)
AS_USER = kind("user", NO_USER)
with_and_without = pytest.mark.parametrize("kind", ["none", BWRAP])
sandboxed = pytest.mark.parametrize("kind", [BWRAP, AS_USER])


def verifier(kind: str, **options):
    """A verifier with a sandbox of that kind."""
    options = {"fenced": False, "deadline": DEADLINE, "memory_mb": 256, **options}
    if kind == "user":
        return UserCode({"sandbox": "bwrap", **options})
    return Code(sandbox=kind, **options)


# Tests of programs, and looking at processes from outside


def io(*cases) -> str:
    return json.dumps({"stdin_stdout": cases})


def asserts(text: str) -> str:
    return json.dumps({"asserts": text})


def processes(name: str) -> list[int]:
    """The pids of processes that have given themselves that name."""
    found = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() == name:
                found.append(int(comm.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
