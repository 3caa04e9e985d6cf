"""Shared by all tests: one CPU thread, the tiny model, small labs."""

import os
import signal

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pytest
from hypothesis import settings

import workbench as wb
from workbench.labs import shipped
from workbench.rollouts import Ragged, Rollouts

settings.register_profile("any", deadline=None)  # a busy machine is not a wrong result
settings.register_profile(
    "same", deadline=None, derandomize=True
)  # for CI: the same examples as long as the test is the same
settings.load_profile("any")


@pytest.fixture(autouse=True)
def one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_environment():
    """The command line asks matplotlib for no windows; run inside the tests, that must not reach the notebooks'."""
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


def heed_interrupts():
    """For `preexec_fn`: a shell's background jobs ignore an interrupt, and so would what a test starts from one."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def tiny_policy(**options):
    from workbench.policies.transformers import TransformersPolicy

    return TransformersPolicy.from_pretrained(shipped("models/tiny"), device="cpu", **options)


def small_lab(**options):
    """The tiny lab with few and easy problems."""
    return wb.labs.tiny(
        **{"pool": 32, "base": "clean", "levels": (1, 2, 3), "held_out": 12, "samples": 2, **options}
    )


def hand_made(rewards, problems, lengths=None, seed=0):
    """Rollouts with given rewards (R,) and problem ids (R,), random prompt and response tokens."""
    rng = np.random.default_rng(seed)
    lengths = lengths or rng.integers(1, 9, len(rewards))
    responses = [rng.integers(4, 14, n) for n in lengths]
    return Rollouts(
        problem=problems,
        reward=rewards,
        correct=np.asarray(rewards) > 0,
        prompt=Ragged.of([rng.integers(4, 14, 5) for _ in rewards], np.int32),
        response=Ragged.of(responses, np.int32),
        logprobs=Ragged.of([np.full(n, -2.0) for n in lengths], np.float32),
    )
