"""Shared by the tests of `Code`: which sandboxes there are here, and short ways to write tests of programs."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path

import pytest

from workbench.verifiers import Code
from workbench.verifiers.inside import MACHINES
from workbench.verifiers.sandbox import Limits, Sandbox

ROOT = Path(__file__).resolve().parents[1]
DEADLINE = 20.0  # of programs that end by themselves, so that a busy machine changes no verdict
FILTERED = platform.system() == "Linux" and platform.machine() in MACHINES


def refusal(kind: str) -> str | None:
    """Why that kind of sandbox cannot be had here."""
    try:
        Sandbox(kind, Limits(DEADLINE, 256))
    except RuntimeError as error:
        return str(error)


NO_BWRAP = refusal("bwrap")
BWRAP = pytest.param("bwrap", marks=pytest.mark.skipif(NO_BWRAP is not None, reason=str(NO_BWRAP)))
WEAK = pytest.param(
    "weak",
    marks=pytest.mark.skipif(not FILTERED, reason="the weak sandbox needs the filter for this"),
)
both = pytest.mark.parametrize("kind", ["weak", BWRAP])


def verifier(kind: str, **options) -> Code:
    return Code(
        **{"sandbox": kind, "fenced": False, "deadline": DEADLINE, "memory_mb": 256, **options}
    )


def io(*cases) -> str:
    return json.dumps({"stdin_stdout": cases})


def asserts(text: str) -> str:
    return json.dumps({"asserts": text})


def processes(name: str) -> list[int]:
    """The pids of processes that have given themselves that name."""
    found = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            found += [int(comm.parent.name)] * (comm.read_text().strip() == name)
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
