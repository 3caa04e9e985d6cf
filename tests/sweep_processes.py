"""What tests of sweeps share: a grid of small runs, the processes of a sweep, and its deaths."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import yaml
from conftest import heed_interrupts, timeless
from written_records import rounds_so_far

import workbench as wb
from workbench.trials import engine
from workbench.trials.cases import Case

SERVER = "multiprocessing.forkserver"  # in the command line of what runs are forked from
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


@dataclass(frozen=True)
class Waiting(Case):
    """A run that waits until it is killed; without a seed it has nothing to wait for."""

    @property
    def finished(self):
        return self.outcome.get("status") == "done"

    def make(self):
        while self.values:
            time.sleep(0.02)
        return {}


def make_waiting(out, told):
    """What a caller does: make five runs that wait, two at a time; None as `told` makes one."""
    engine.PRELOAD = ("sweep_processes",)
    out = Path(out).absolute()
    cases = [Waiting("quick", {}, out / "quick", out / "logs" / "quick")]
    if told is not None:
        cases = [
            Waiting(str(i), {"seed": i}, out / str(i), out / "logs" / str(i)) for i in range(5)
        ]

    def report(line):
        # The first line says how many runs there are.
        if told is not None and line.startswith("["):
            told.send(line.partition("; see")[0])

    with engine.at_work(jobs=2, report=report) as work_off:
        work_off(cases)


def all_pids():
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def runs_of(caller, number):
    """Process ids of the runs that a caller has at work, once there are so many."""
    children = [pid for pid in all_pids() if parent(pid) == caller]
    found = [pid for pid in all_pids() if parent(pid) in children and is_alive(pid)]
    return found if len(found) == number else []


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


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
    """Process ids of the runs: forks of the forkserver, which share its command line."""
    servers = {pid: command for pid, command in processes(mark).items() if SERVER in command}
    parents = {pid: parent(pid) for pid in servers}
    return [pid for pid in servers if parents[pid] in servers]


def server(mark):
    """Process ids of the server of a sweep, as a list; empty while there is none."""
    at_work = children_at_work(mark)
    return [
        pid for pid, command in processes(mark).items() if SERVER in command and pid not in at_work
    ]


def workers_of_ray(mark):
    """Process ids of the runs on Ray, which names its workers after the function at work."""
    return [pid for pid, command in processes(mark).items() if "ray::_execute" in command]


def parent(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None


def wait_for(condition, seconds=600):
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


# Deaths


class Death(NamedTuple):
    """What is killed (None for the sweep itself), by which signal, and the exit status to expect.

    Without an expected one the sweep goes on after the death, and ends by itself.
    """

    victims: Callable | None
    number: int
    status: int | None


DEATHS = {
    "worker": Death(children_at_work, signal.SIGKILL, None),
    "server": Death(server, signal.SIGKILL, None),
    "killed": Death(None, signal.SIGKILL, -signal.SIGKILL),
    "terminated": Death(None, signal.SIGTERM, 128 + signal.SIGTERM),
    "hung up": Death(None, signal.SIGHUP, 128 + signal.SIGHUP),
    "interrupted": Death(None, signal.SIGINT, 130),
}


def rounds_on_disk(out):
    """How many rounds the records of a sweep have, all runs together."""
    return sum(rounds_so_far(path) for path in wb.records.record_paths(Path(out)))


def disturb(grid, out, death, delay, options=("--jobs", "2"), ray=False, further=0):
    """Start a sweep, and disturb it `delay` seconds after its first run has begun.

    With `further`, that many seconds after so many further rounds are on disk. Returns its exit
    status and what it said. Fails unless the sweep ends in the way that belongs to the death, or
    had ended before, and unless nothing that it started is left over.
    """
    mark = uuid.uuid4().hex
    at_work = workers_of_ray if ray else children_at_work
    victims, number, expected = DEATHS[death]
    enough = rounds_on_disk(out) + further
    process = start(grid, out, mark, *options)
    wait_for(lambda: at_work(mark) or process.poll() is not None)
    wait_for(lambda: rounds_on_disk(out) >= enough or process.poll() is not None)
    time.sleep(delay)
    if victims is None:
        kill(process.pid, number)
    else:
        found = at_work(mark) if death == "worker" else victims(mark)
        for pid in found[:1]:
            kill(pid, number)
    said = process.communicate(timeout=600)[0]
    # A sweep that has lost a run says so; one that had ended before ended well or with a failure.
    allowed = [0, 1, expected]
    if victims is None and "run status" in said:
        # Behind its table Python gives its handlers back, and the signal ends it as it stands.
        allowed.append(-number)
    assert process.returncode in allowed, (death, process.returncode, said)
    assert "leaked" not in said, said  # as the resource tracker says of what a killed run held
    wait_for(lambda: not at_work(mark), 60)
    # Ray's own services look for their driver now and then, and end when it is gone.
    wait_for(lambda: not processes(mark), 300 if ray else 60)
    return process.returncode, said


def check_ends_well(grid, out, options=("--jobs", "2")):
    """Start the sweep and leave it alone: it ends well, and nothing is left over."""
    mark = uuid.uuid4().hex
    process = start(grid, out, mark, *options)
    said = process.communicate(timeout=900)[0]
    assert process.returncode == 0, said
    wait_for(lambda: not processes(mark), 60)


def check_finished(grid, out, whole, options=("--jobs", "2")):
    """Start the sweep once more, undisturbed; every run and the table equal those of `whole`."""
    check_ends_well(grid, out, options)
    table = pd.read_csv(out / "results.csv")
    expected = pd.read_csv(whole / "results.csv")
    same = ["run", "status", "rounds", "rollouts", "accuracy", "greedy"]
    pd.testing.assert_frame_equal(table[same], expected[same])
    for name in table["run"]:
        record = wb.load(out / name, strict=True)
        assert record.problems() == []
        pd.testing.assert_frame_equal(
            timeless(record.rounds), timeless(wb.load(whole / name).rounds), check_exact=True
        )
