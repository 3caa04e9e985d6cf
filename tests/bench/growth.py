"""How time and peak memory grow: rounds with their rollouts, resuming with the buffer, and reading.

`python -m tests.bench.growth` from the root of the repository draws `figures/growth.svg`, and
`make bench` does it as well.
"""

import ctypes
import gc
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

import workbench as wb
from tests.bench import ratios
from workbench.plots.style import WIDTH
from workbench.records import Writer
from workbench.rollouts import Context, Rollouts

ROOT = Path(__file__).parents[2]
ROUNDS = (64, 256, 1024, 4096)  # rollouts of a round
BUFFERS = (1024, 4096, 16_384, 65_536)  # responses of a buffer
RECORDS = (10_000, 100_000, 1_000_000)  # rollouts of a record
A_ROUND = 5000  # rollouts of each round of these records
REPEATS = 3


def rounds(repeats=REPEATS):
    """(seconds, bytes) of a round for each of `ROUNDS`, lists of repeats.

    Each repeat is a process of its own.
    """
    return _by_process("one_of_each_round", repeats)


def resumes(repeats=REPEATS):
    """(seconds, bytes) of resuming a run whose buffer holds each of `BUFFERS`.

    Each repeat is a process of its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        for size in BUFFERS:
            _with_buffer(Path(folder) / str(size), size)
        return _by_process("one_of_each_resume", repeats, folder)


def reads(repeats=REPEATS):
    """Seconds of reading records: (the rounds of each of `RECORDS`, ratios to pyarrow alone).

    The ratios are those of the largest record: of its rounds, and of one column of its rollouts.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_rounds = _rounds_of_rollouts(Path(folder) / "real")
        paths = [write_rounds(Path(folder) / str(size), size) for size in RECORDS]
        jobs = [lambda path=path: wb.load(path).rounds for path in paths]
        largest = paths[-1]
        *spent, plain, column, plain_column = ratios.turns(
            *jobs,
            lambda: pd.read_json(largest / "journal.jsonl", lines=True),
            lambda: wb.load(largest).rollouts(columns=["reward"]),
            lambda: _columns_by_pyarrow(largest, ["reward", "round"]),
            repeats=repeats,
        )
    return spent, {
        "load(...).rounds": np.array(spent[-1]) / plain,
        "load(...).rollouts, one column": np.array(column) / plain_column,
    }


def one_of_each_round(sizes=ROUNDS):
    """In this process: (seconds, bytes) of a round of each size, after one like it.

    Every problem has 8 rollouts.
    """
    lab = wb.labs.tiny(held_out=0)
    measured = []
    for size in sizes:
        run = wb.Run(
            lab,
            wb.methods.grpo(),
            problems_per_round=size // 8,
            evaluate_every=0,
            checkpoint_every=1000,
        )
        ongoing = run.rounds(2, progress=False)
        next(ongoing)
        measured.append(_spent(lambda ongoing=ongoing: next(ongoing)))
        ongoing.close()
        assert run.record.rounds["rollouts"].tolist() == [size, size]
    return measured


def one_of_each_resume(folder):
    """In this process: (seconds, bytes) of resuming each run of `resumes`, after one resumption."""

    def resume(size):
        list(wb.Run.resume(Path(folder) / str(size)).rounds(0, progress=False))

    resume(BUFFERS[0])
    return [_spent(lambda size=size: resume(size)) for size in BUFFERS]


def draw(measured, path):
    """Medians and ranges on logarithmic axes, each with its exponent.

    measured: name -> (sizes, seconds, bytes or None).
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import EngFormatter

    with wb.plots.style() as colours:
        figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 3.9), layout="constrained")
        for (name, (sizes, *costs)), colour, marker in zip(measured.items(), colours, "osD"):
            for ax, cost, scale in zip(axes, costs, (1, 2**20)):
                if cost is None:
                    continue
                values = np.array(cost) / scale
                middle = np.median(values, axis=1)
                label = f"{name}: exponent {statistics.median(ratios.exponents(sizes, cost)):.2f}"
                ax.errorbar(
                    sizes,
                    middle,
                    [middle - values.min(1), values.max(1) - middle],
                    fmt=f"{marker}-",
                    color=colour,
                    ms=4,
                    lw=1.5,
                    capsize=2,
                    label=label,
                )
        for ax, title in zip(axes, ("seconds", "MiB of memory above the start")):
            ax.set(xscale="log", yscale="log", title=title)
            # Plain numbers are read more easily than powers of ten.
            ax.xaxis.set_major_formatter(EngFormatter(sep=""))
            ax.yaxis.set_major_formatter("{x:g}")
            ax.set_xlabel("rollouts of the round, buffer or record", fontsize="small")
            ax.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.45, -0.2))
    wb.plots.save({Path(path).stem: figure}, Path(path).parent)
    plt.close(figure)


def measure(repeats=REPEATS):
    """Everything: name -> (sizes, seconds, bytes or None), and the ratios of `reads`.

    Seconds and bytes are lists of repeats for each size.
    """
    read, against_pyarrow = reads(repeats)
    return {
        "a round": (ROUNDS, *rounds(repeats)),
        "resuming, by buffer": (BUFFERS, *resumes(repeats)),
        "load(...).rounds, by record": (RECORDS, read, None),
    }, against_pyarrow


def _spent(job):
    """(seconds, peak of resident bytes above those at the start) of a job.

    The bytes are NaN where the system does not tell.
    """
    gc.collect()
    if sys.platform == "linux":
        # What earlier jobs freed must not hide what this one needs.
        ctypes.CDLL(None).malloc_trim(0)
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5")
    before = _resident("VmRSS")
    seconds = ratios.seconds(job)
    return seconds, _resident("VmHWM") - before


def _resident(name):
    status = Path("/proc/self/status")
    text = status.read_text() if status.exists() else ""
    return next(
        (1024.0 * int(line.split()[1]) for line in text.splitlines() if line.startswith(name)),
        float("nan"),
    )


def _by_process(function, repeats, *arguments):
    code = f"import json, tests.bench.growth as g; print(json.dumps(g.{function}(*{arguments!r})))"
    runs = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True
            ).stdout
        )
        for _ in range(repeats)
    ]
    return [[[run[size][kind] for run in runs] for size in range(len(runs[0]))] for kind in (0, 1)]


def _with_buffer(path, size):
    """A run whose buffer holds `size` correct responses.

    256 are really sampled, and counted many times.
    """
    run = wb.Run(
        wb.labs.tiny(held_out=0),
        wb.methods.ar3po(),
        out=path,
        problems_per_round=8,
        evaluate_every=0,
    )
    list(run.rounds(1, progress=False))
    drawn = run.policy.generate(run.lab.problems.draw(32, 0, 1)[0], [8] * 32, run.lab.sampling, 0)
    drawn = drawn.assign(correct=np.ones(256, bool), round=np.ones(256))
    run.method.replay.feedback(Rollouts.concat([drawn] * (size // 256)), Context(round=1))
    list(run.rounds(2, progress=False))


def _rounds_of_rollouts(folder):
    """A function that writes a record of so many rollouts by the writer of runs.

    Its rounds hold the columns of a real round, repeated.
    """
    run = wb.Run(wb.labs.tiny(held_out=0), wb.methods.grpo(), out=folder, evaluate_every=0)
    row = next(run.rounds(1, progress=False))
    frame = run.record.rollouts()
    manifest = run.record.manifest
    columns = {name: np.resize(frame[name].to_numpy(), A_ROUND) for name in frame}

    def write(path, size):
        writer = Writer(path, manifest)
        for number in range(1, size // A_ROUND + 1):
            # A reader refuses rollouts of another round than the name of their file says.
            columns["round"] = np.full(A_ROUND, number)
            writer.round(row | {"round": number, "rollouts": A_ROUND}, columns)
        return path

    return write


def _columns_by_pyarrow(path, columns):
    """Columns of all rollouts of a record, with the checksums of the pages checked."""
    parts = []
    for file in sorted((path / "rollouts").glob("*.parquet")):
        with pq.ParquetFile(file, page_checksum_verification=True) as part:
            parts.append(part.read(columns).to_pandas())
    return pd.concat(parts, ignore_index=True)


if __name__ == "__main__":
    draw(measure()[0], ROOT / "figures" / "growth.svg")
