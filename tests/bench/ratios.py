"""Two things timed in turns, so that whatever else the machine does falls on both.

Every measurement of a run of `make bench` is kept, printed as one table at its end and written to
`data/benchmarks.csv`.
"""

import csv
import os
import platform
import statistics
import time
from pathlib import Path

TABLE = {}
COLUMNS = ("measured", "median", "least", "most", "n", "wanted", "met", "unit", "machine")


# For jobs that compute on one thread of this process. On an idle machine it shows what the clock on
# the wall shows, and on a busy one other programs do not count.
OF_THE_PROCESS = time.process_time


def seconds(job, clock=time.perf_counter):
    """Seconds of one call, by the clock on the wall or another one."""
    start = clock()
    job()
    return clock() - start


def turns(*jobs, repeats=7, warmup=1, clock=time.perf_counter):
    """Seconds of the jobs, called one after the other `repeats` times.

    A list for each job.
    """
    for _ in range(warmup):
        for job in jobs:
            job()
    spent = [[seconds(job, clock) for job in jobs] for _ in range(repeats)]
    return [list(column) for column in zip(*spent)]


def ratio(ours, theirs, repeats=7, warmup=1, clock=time.perf_counter):
    """Ratios of the seconds of ours() to those of theirs(), one for each repeat, sorted."""
    spent = turns(ours, theirs, repeats=repeats, warmup=warmup, clock=clock)
    return sorted(a / b for a, b in zip(*spent))


def exponents(sizes, costs):
    """The slopes of log cost over log size by least squares, one for each repeat.

    sizes (K,), costs a list of K lists.
    """
    import numpy as np

    return [float(np.polyfit(np.log(sizes), np.log(repeat), 1)[0]) for repeat in zip(*costs)]


def note(name, values, bound=None, unit=""):
    """Keep a measurement for the table; returns its median.

    values (n,) of the repeats; bound: what the median is to reach, as "<= 2".
    """
    assert name not in TABLE, f"{name!r} is measured twice"
    values = [float(value) for value in values]
    TABLE[name] = (statistics.median(values), min(values), max(values), len(values), bound, unit)
    return TABLE[name][0]


def met(median, bound):
    """Whether a median keeps its bound, "yes" or "no"; "" where there is none."""
    if bound is None:
        return ""
    sign, number = bound.split()
    return "yes" if {"<=": median <= float(number), ">=": median >= float(number)}[sign] else "no"


def rows():
    """The table: a tuple of strings for each measurement, its machine left out."""
    return [
        (
            name,
            *(f"{x:.3g}" for x in (middle, low, high)),
            str(n),
            bound or "",
            met(middle, bound),
            unit,
        )
        for name, (middle, low, high, n, bound, unit) in TABLE.items()
    ]


def lines():
    """The table as text."""
    shape = "{:<76}{:>9}{:>9}{:>9}{:>4}  {:<9}{:<5}{}"
    return [shape.format(*row).rstrip() for row in [COLUMNS[:-1], *rows()]]


def write(path):
    """The table as CSV, with the machine it was measured on."""
    with open(path, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows([*row, machine()] for row in rows())


def machine():
    """Processor, cores, Python and torch, as one line."""
    import torch

    info = Path("/proc/cpuinfo")
    named = [
        line
        for line in (info.read_text() if info.exists() else "").splitlines()
        if line.startswith("model name")
    ]
    processor = (
        named[0].split(":")[1].strip() if named else platform.processor() or platform.machine()
    )
    return (
        f"{processor}, {os.cpu_count()} cores, one thread a process, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
