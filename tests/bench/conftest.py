"""One thread, no network; the table of ratios at the end."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

from tests.bench import ratios


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    import torch

    torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter):
    if ratios.TABLE:
        terminalreporter.section("ratios, each from one run")
        for line in ratios.lines():
            terminalreporter.write_line(line)
