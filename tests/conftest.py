"""Shared by all tests: one CPU thread, the tiny model, small labs."""

import collections
import contextlib
import gc
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pandas as pd
import pytest
from hypothesis import settings

import workbench as wb
from workbench.labs import shipped
from workbench.rollouts import Ragged, Rollouts
from workbench.trials.engine import PRELOAD

# No deadlines: a busy machine is not a wrong result.
settings.register_profile("any", deadline=None)
# For CI: the same examples as long as the test is the same.
settings.register_profile("same", deadline=None, derandomize=True)
settings.load_profile("any")


# Parameters of notebooks that `make test` makes smaller: they change live cells alone, whose output
# nobody compares, and what these cells assert holds at this size, too.
SMALLER = {
    "00_quickstart.ipynb": {"rounds": 20, "held_out": 48, "samples": 4},
    "01_pods.ipynb": {"timed_steps": 8},
    "02_ar3po.ipynb": {"rounds": 24, "repeats": 1},
    "04_aero.ipynb": {"pool_size": 64},
    "06_head_to_head.ipynb": {"problems": 12},
    "07_theory.ipynb": {"problems": 12, "bandit_rounds": 400},
    "11_lab.ipynb": {"problems": 48},
    "12_stress.ipynb": {"rounds": 5, "samples": 2},
    "13_course.ipynb": {"rounds": 3},
    "colab.ipynb": {"rounds": 3, "held_out": 16},
}


def make_smaller(item):
    """Put the values of `SMALLER` into a notebook's cell of parameters."""
    if "parameters" in item.cell.metadata.get("tags", []):
        for name, value in SMALLER.get(item.path.name, {}).items():
            item.cell.source, found = re.subn(
                rf"^({name}: int =) \d+", rf"\1 {value}", item.cell.source, flags=re.MULTILINE
            )
            assert found == 1, f"{item.path.name} has no parameter {name}"


def pytest_configure(config):
    """Give what tests start a folder for temporary files, which is removed at the end.

    Tests and nbval kill processes, and these leave behind what they would have removed otherwise.
    The folders of `tmp_path` stay where they are: pytest asks for their place in this process.
    """
    tempfile.gettempdir()
    if not hasattr(config, "workerinput"):
        # A short name, since the path of a socket may have about 100 characters.
        folder = tempfile.mkdtemp(prefix="wb-")
        os.chmod(folder, 0o755)  # a sandbox may run as another user
        os.environ["TMPDIR"] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    if config.getoption("nbval", default=False):
        import nbval.plugin
        from forked_kernel import ForkedKernel

        nbval.plugin.RunningKernel = ForkedKernel


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Notebooks first, then the files with the most slow tests.

    `make test` gives whole files to its processes in this order, so that none of them is left with
    a long file when the others have nothing to do.
    """
    slow = collections.Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (item.path.suffix != ".ipynb", -slow[item.path]))
    for item in items:
        if item.path.suffix == ".ipynb":
            make_smaller(item)


def pytest_collection_finish():
    """What is loaded by now stays: the collector need not walk over all of it again and again.

    The trainer of transformers collects before every training, which took longer than that.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk():
    """What a test writes need not outlive a loss of power, and fsync waits milliseconds each time.

    That the library calls it where it must is what test_power_loss.py records.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_environment():
    """The command line asks matplotlib for no windows, which must not reach the notebooks."""
    before = os.environ.get("MPLBACKEND")
    yield
    if before is None:
        os.environ.pop("MPLBACKEND", None)


@pytest.fixture
def policy():
    """A fresh tiny policy."""
    return tiny_policy()


@pytest.fixture
def lab():
    return small_lab()


@pytest.fixture
def at_small_scale(monkeypatch):
    """For the code of README and the docs: small where it leaves the size to defaults, and short.

    A model of the reader's own is the shipped one, which knows no chats, on a CPU.
    """
    monkeypatch.setitem(wb.labs.tiny.__kwdefaults__, "held_out", 8)
    monkeypatch.setitem(wb.labs.tiny.__kwdefaults__, "samples", 1)
    monkeypatch.setitem(wb.Run.__init__.__kwdefaults__, "problems_per_round", 8)
    rounds = wb.Run.rounds
    monkeypatch.setattr(
        wb.Run, "rounds", lambda run, n, **rest: rounds(run, n if n < 10 else 2, **rest)
    )
    make = wb.labs.transformers

    def transformers(model, problems, held_out, **options):
        if model != "path/or/hub-name":
            return make(model, problems, held_out, **options)
        options |= {"template": "{prompt}", "dtype": "float32", "device": "cpu"}
        # The shipped model has 128 positions.
        options.setdefault("sampling", wb.policies.Sampling(max_new_tokens=32))
        lab = make(shipped("models/early-small"), problems, held_out, **options)
        return replace(lab, held_out=None)

    monkeypatch.setattr(wb.labs, "transformers", transformers)


def heed_interrupts():
    """For `preexec_fn`: what a test starts heeds an interrupt, even from a background shell."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def tiny_policy(**options):
    from workbench.policies.transformers import TransformersPolicy

    return TransformersPolicy.from_pretrained(shipped("models/tiny"), device="cpu", **options)


def small_lab(**options):
    """The tiny lab with few and easy problems."""
    return wb.labs.tiny(
        **{
            "pool": 32,
            "base": "clean",
            "levels": (1, 2, 3),
            "held_out": 12,
            "samples": 2,
            **options,
        }
    )


def hand_made(rewards, problems, lengths=None, seed=0):
    """Rollouts with given rewards (R,) and problem ids (R,), random prompt and response tokens."""
    rng = np.random.default_rng(seed)
    if lengths is None:
        lengths = rng.integers(1, 9, len(rewards))
    responses = [rng.integers(4, 14, n) for n in lengths]
    return Rollouts(
        problem=problems,
        reward=rewards,
        correct=np.asarray(rewards) > 0,
        prompt=Ragged.of([rng.integers(4, 14, 5) for _ in rewards], np.int32),
        response=Ragged.of(responses, np.int32),
        old_logprobs=Ragged.of([np.full(n, -2.0) for n in lengths], np.float32),
    )


class Gradients:
    """An optimizer that changes nothing and keeps the gradient of the latest step in `seen`."""

    def __init__(self, policy):
        self.parameters = list(policy.parameters())

    def zero_grad(self, set_to_none=True):
        import torch

        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)

    def step(self):
        import torch

        self.seen = torch.cat([parameter.grad.flatten() for parameter in self.parameters])


# Processes that a test starts, to kill them or to take something from them

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(list(PRELOAD))


class Started(NamedTuple):
    """A process, and the end of a pipe at which what it sends can be received."""

    process: multiprocessing.Process
    told: Connection


@contextlib.contextmanager
def started(function, *arguments):
    """A process of its own for `function(*arguments, told)`, which ends with the block.

    The function is one of a module. `told` is the end of a pipe to this process. An error of the
    function is sent as one text, and makes the exit code 1. All processes are forked from one
    server that has imported torch, so that only the first of them takes seconds to start.
    """
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = SERVER.Process(target=_work, args=(function, arguments, theirs))
    process.start()
    # Without this process's copy of its end, the pipe ends when the other process does.
    theirs.close()
    try:
        yield Started(process, ours)
        process.join(300)
        assert process.exitcode is not None, "the process did not end"
    finally:
        process.kill()
        process.join()
        ours.close()


def _work(function, arguments, told):
    import torch

    torch.set_num_threads(1)
    try:
        function(*arguments, told)
    except Exception as error:
        told.send(f"{type(error).__name__}: {error}")
        sys.exit(1)


# Runs and their records


def go(run, n):
    """The rows of a run's rounds up to the n-th, without a progress bar."""
    return list(run.rounds(n, progress=False))


def same_record(a, b):
    """Fail unless rounds, rollouts and evaluations are equal bit for bit, timings aside."""
    pd.testing.assert_frame_equal(timeless(a.rounds), timeless(b.rounds), check_exact=True)
    pd.testing.assert_frame_equal(a.rollouts(), b.rollouts(), check_exact=True)
    pd.testing.assert_frame_equal(timeless(a.evals), timeless(b.evals), check_exact=True)


def timeless(table):
    """The rounds or evaluations of a record without their timings."""
    return table[[name for name in table if not name.startswith("seconds")]]


def same_weights(a, b):
    """Whether the checkpoints of two records hold equal tensors, bit for bit."""
    first = weights(a)
    second = weights(b)
    return first.keys() == second.keys() and all(
        same_tensor(first[name], second[name]) for name in first
    )


def same_tensor(a, b):
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.is_floating_point())


def weights(path):
    """The tensors of a record's checkpoint, name to tensor."""
    from safetensors.torch import load_file

    return load_file(path / "checkpoint" / "state.safetensors")
