"""One thread, no network; the table of measurements at the end."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from tests.bench import ratios


def pytest_addoption(parser):
    parser.addoption("--table", help="CSV file that the table of measurements is written to")
    parser.addoption("--figure", help="SVG file that the growth of time and memory is drawn to")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """Here fsync is waited for, as in a run: the seconds are what is measured."""


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    if not ratios.TABLE:
        return
    terminalreporter.section("measured, each ratio in turns within one run")
    for line in ratios.lines():
        terminalreporter.write_line(line)
    if (path := config.getoption("--table")) and exitstatus in (
        pytest.ExitCode.OK,
        pytest.ExitCode.TESTS_FAILED,
    ):
        ratios.write(path)
        terminalreporter.write_line(f"written to {path}")
