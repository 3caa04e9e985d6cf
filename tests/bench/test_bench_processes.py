"""Runs side by side, and how long it takes until anything happens."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from tests.bench import ratios

ROOT = Path(__file__).parents[2]
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
PAIRS = 3

FORKED = """
import importlib, os, shutil, sys, time
import torch
import workbench as wb
from workbench.trials.engine import PRELOAD
for module in PRELOAD:
    importlib.import_module(module)
torch.set_num_threads(1)
for _ in range(int(sys.argv[1])):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        started = time.process_time()
        lab = wb.labs.tiny(share_prefixes=False)
        run = wb.Run(lab, wb.methods.grpo(), evaluate_every=0, checkpoint_every=1000)
        rounds = run.rounds(4, progress=False)
        next(rounds)
        until_first = time.process_time() - started
        for row in rounds:
            pass
        a_round = (time.process_time() - started - until_first) / 3
        print(until_first - a_round, a_round, flush=True)
        shutil.rmtree(run.path)  # this exit leaves temporary records where they are
        os._exit(0)
    os.waitpid(child, 0)
"""

WORKER = """
import os, sys, time
os.sched_setaffinity(0, [int(sys.argv[1])])
import workbench as wb
print("ready", flush=True)
for line in sys.stdin:
    lab = wb.labs.tiny(held_out=0)
    run = wb.Run(lab, wb.methods.grpo(), evaluate_every=0, checkpoint_every=1000)
    rounds = run.rounds(5, progress=False)
    next(rounds)
    started = time.process_time()
    for row in rounds:
        pass
    print(time.process_time() - started, flush=True)
"""


@pytest.fixture
def workers():
    """Two processes, each on a core of its own.

    For every line that they read they run five rounds, the last four timed.
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(core)],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for core in CORES[:2]
    ]
    try:
        assert [worker.stdout.readline() for worker in started] == ["ready\n"] * 2
        yield started
    finally:
        for worker in started:
            worker.stdin.close()
            worker.wait()
            worker.stdout.close()


def at_once(workers):
    """Seconds of the slowest of the workers for the same rounds, all started together.

    Seconds of its own process, so that other programs on a busy machine do not count.
    """
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return max(float(worker.stdout.readline()) for worker in workers)


@pytest.mark.skipif(len(CORES) < 2, reason="two cores are needed for two runs side by side")
def test_two_runs_on_two_cores(workers):
    at_once(workers)
    values = [at_once(workers) / at_once(workers[:1]) for _ in range(PAIRS)]
    assert ratios.note("a run beside another one on two cores / alone", values, "<= 1.15") < 3


def in_a_process(*arguments):
    return ratios.seconds(
        lambda: subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, check=True, capture_output=True
        )
    )


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("import workbench", ("-c", "import workbench")),
        ("python -m workbench --help", ("-m", "workbench", "--help")),
    ],
)
def test_start(name, arguments):
    """Neither loads NumPy or pandas, which take several times as long as Python's own start."""
    ours, theirs = ratios.turns(
        lambda: in_a_process(*arguments),
        lambda: in_a_process("-c", "import numpy, pandas"),
        repeats=7,
    )
    values = np.array(ours) / theirs
    assert ratios.note(f"{name} / import numpy, pandas", values, "<= 0.5") < 1


def test_start_of_a_run_in_a_sweep():
    """A process forked from one that has imported everything makes a lab and loads its model."""
    printed = subprocess.run(
        [sys.executable, "-c", FORKED, "4"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    start, a_round = np.array([line.split() for line in printed.splitlines()], dtype=float).T
    ratios.note("start of a run in a sweep, after the first", start[1:], unit="s")
    name = "start of a run in a sweep / a round of 256 rollouts, each response alone"
    assert ratios.note(name, start[1:] / a_round[1:], "<= 4") < 20


def test_quickstart(tmp_path):
    """Once only: what `make quickstart` runs when everything is installed, with fewer rounds.

    The start, the record and the figures are to be no more than a few times what 20 rounds and
    their evaluations take, since a run of a study has several hundreds.
    """
    options = "--out", str(tmp_path / "run"), "--figures", str(tmp_path), "--rounds", "20"
    all_of_it = ratios.seconds(lambda: in_a_process("-m", "workbench", "quickstart", *options))
    assert (tmp_path / "quickstart.svg").exists()
    record = wb.load(tmp_path / "run")
    working = record.rounds["seconds"].sum() + record.evals["seconds"].sum()
    name = "make quickstart, installed, 20 rounds"
    ratios.note(name, [all_of_it], unit="s")
    ratios.note(f"{name} / its rounds and evaluations alone", [all_of_it / working], "<= 3.5")
