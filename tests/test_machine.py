"""What the machine is asked for, and told."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from workbench.utils.machine import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(25_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

given_back = faults()
keep_freed_memory()
faults()
print(given_back, faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries differ")
def test_freed_memory_is_used_again():
    """100 MB that are freed and taken again come with 24,000 new pages each time, or with none."""
    result = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True)
    given_back, kept = map(int, result.stdout.split())
    assert given_back > 200_000
    assert kept < given_back / 5
