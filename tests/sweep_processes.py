"""What tests of sweeps share: a grid of small runs, and the processes that belong to a sweep."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml
from conftest import heed_interrupts

MARK = "WORKBENCH_SWEEP_UNDER_TEST"  # in the environment of a sweep and of all that it starts
LAB = {"base": "clean", "pool": 16, "levels": [1, 2], "held_out": 6, "samples": 1}
PARAMETERS = {
    "lab": LAB,
    "rounds": 4,
    "problems_per_round": 4,
    "evaluate_every": 4,
    "checkpoint_every": 2,
}


def write_grid(folder, cases, **content):
    """A grid of direct runs with `PARAMETERS`, in a file; returns its path."""
    parameters = PARAMETERS | content.pop("parameters", {})
    path = Path(folder) / "grid.yaml"
    grid = {"parameters": parameters, "cases": cases, **content}
    path.write_text(yaml.safe_dump(grid, sort_keys=False))
    return path


def start(grid, out, mark, *options):
    """A sweep in a process of its own, as the command line starts it."""
    command = [sys.executable, "-m", "workbench", "sweep", str(grid), "--out", str(out), *options]
    return subprocess.Popen(
        command,
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=heed_interrupts,
    )


def processes(mark):
    """Process ids of everything that a sweep started, with their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it has ended meanwhile, or is somebody else's
        if f"{MARK}={mark}".encode() in environment.split(b"\0") and state != "Z":
            found[int(folder.name)] = command
    return found


def children_at_work(mark):
    """Process ids of the runs: forks of the server, which share its command line."""
    servers = {
        pid: command for pid, command in processes(mark).items() if "sweeps.server" in command
    }
    parents = {pid: parent(pid) for pid in servers}
    return [pid for pid in servers if parents[pid] in servers]


def server(mark):
    """Process id of the server of a sweep; None while there is none."""
    at_work = children_at_work(mark)
    for pid, command in processes(mark).items():
        if "sweeps.server" in command and pid not in at_work:
            return pid
    return None


def parent(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None


def wait_for(condition, seconds=240):
    """What the condition returns, as soon as that is something."""
    ended = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < ended, "waited in vain"
        time.sleep(0.05)


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
