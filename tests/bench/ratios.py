"""Two things timed in turns, so that whatever else the machine does falls on both: the ratio and its spread.

Every ratio measured in a run of `make bench` is kept and printed as one table at its end.
"""

import statistics
import time

TABLE = {}


def seconds(job):
    """Wall-clock seconds of one call."""
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def ratio(ours, theirs, repeats=7, warmup=1):
    """Ratios of the seconds of ours() to those of theirs(), one for each repeat, sorted."""
    for _ in range(warmup):
        ours(), theirs()
    return sorted(seconds(ours) / seconds(theirs) for _ in range(repeats))


def note(name, ratios, bound=None, unit=""):
    """Keeps a measurement for the table: (name, repeats (n,), what it was to reach); returns its median."""
    median = statistics.median(ratios)
    TABLE[name] = (median, min(ratios), max(ratios), len(ratios), bound, unit)
    return median


def lines():
    """The table as text."""
    head = f"{'measured':<72}{'median':>10}{'least':>10}{'most':>10}{'n':>4}  {'wanted'}"
    rows = [f"{name:<72}{middle:>10.4g}{low:>10.4g}{high:>10.4g}{n:>4}  {bound or ''}{f' ({unit})' if unit else ''}"
            for name, (middle, low, high, n, bound, unit) in TABLE.items()]
    return [head, *rows]
