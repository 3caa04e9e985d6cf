"""Kills runs of every method at random moments, resumes them, and compares them with runs that nobody disturbed.

    make soak                                      # 50 kills
    python tests/soak.py --kills 200 --seed 3

Each life of a run is a forked child of this process, which has imported everything and never trains itself: a life costs
no import time, and SIGKILL hits every stage, from the first file of the record to its last checkpoint: every second delay
counts from the life's start, the others from the first round it records. After each kill
the record must be readable without a warning; when a run has ended, its record (timings aside) and its weights must be
those of the undisturbed run bit for bit. The seed fixes the delays; what a run is doing after a delay is up to the
machine. Exit status 1, and the directories are kept, when anything differs.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import torch
from conftest import small_lab
from test_methods import METHODS
from test_run import same_record, same_weights

import workbench as wb
from workbench.policies import transformers  # noqa: F401  here, so that no life has to

ROUNDS = 8
OPTIONS = dict(problems_per_round=4, evaluate_every=3, checkpoint_every=2)
SUBJECTS = {**METHODS, "cbs-buffer": wb.methods.cbs(scope="buffer", n=4, p=50, warmup=2, start=0.5)}


def train(name, out):
    """One life of a run: from where it stopped to its last round."""
    torch.set_num_threads(1)
    lab = small_lab(pool=16, held_out=6, samples=1)
    for _ in wb.Run(lab, SUBJECTS[name], out=out, **OPTIONS).rounds(ROUNDS, progress=False):
        pass


def readable(out):
    """Every table of the record, read with warnings as errors; nothing where the record was not begun."""
    warnings.simplefilter("error", wb.records.RecordWarning)
    if (out / "manifest.json").exists():
        record = wb.load(out)
        rounds, rollouts, _ = record.rounds, record.rollouts(), record.evals
        assert rounds["round"].tolist() == list(range(1, len(rounds) + 1))
        assert (
            set(rollouts["round"] + rollouts["age"]) >= set(rounds["round"])
            if len(rounds)
            else True
        )


def equal(whole, out):
    """The two records and their weights, bit for bit."""
    same_record(wb.load(whole), wb.load(out))
    assert same_weights(whole, out), "the weights differ"
    assert len(wb.load(out).rounds) == ROUNDS


def begin(function, *arguments):
    """A child process that calls the function; its process id. Exit status 1 and a traceback for an exception."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    try:
        function(*arguments)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def done(function, *arguments):
    """Whether the function, called in a child, ended well."""
    return os.waitpid(begin(function, *arguments), 0)[1] == 0


def disturbed_life(name, out, delay, rolling):
    """A life killed `delay` seconds after its start, or its first round (rolling): "killed"; "ended", "failed" before that."""
    began, before, pid = time.monotonic(), written(out), begin(train, name, out)
    while time.monotonic() < began + delay:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return "ended" if status == 0 else "failed"
        if rolling and written(out) == before:
            began = time.monotonic()
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    return "killed" if os.WIFSIGNALED(os.waitpid(pid, 0)[1]) else "ended"


def written(out):
    """When the table of rounds was last written."""
    table = out / "rounds.parquet"
    return table.stat().st_mtime_ns if table.exists() else None


def state(out):
    """What a killed life left behind."""
    half = [path.name for path in out.rglob("*.writing")] if out.exists() else []
    parts = len(list((out / "rollouts").glob("*.parquet"))) if out.exists() else 0
    saved = (out / "checkpoint" / "state.safetensors").exists()
    return f"{parts} rounds, {'a' if saved else 'no'} checkpoint" + (
        f", in the middle of {', '.join(half)}" if half else ""
    )


def soak(name, kills, rng, folder):
    """`kills` kills of one method's runs: (kills, runs compared, complaints)."""
    whole, started = folder / f"{name}-whole", time.monotonic()
    if not done(train, name, whole):
        return 0, 0, [f"{name}: the undisturbed run failed"]
    seconds, killed, runs, complaints = time.monotonic() - started, 0, 0, []
    while killed < kills:
        runs += 1
        out, outcome = folder / f"{name}-{runs}", "killed"
        while killed < kills and outcome == "killed":
            rolling = killed % 2 == 0
            delay = rng.uniform(0, seconds / 3 if rolling else seconds)
            outcome = disturbed_life(name, out, delay, rolling)
            if outcome == "killed":
                killed += 1
                since = "first round" if rolling else "start"
                print(
                    f"{name}: run {runs}, kill {killed}, {delay:.2f} s after its {since}: {state(out)}"
                )
                if not done(readable, out):
                    complaints.append(f"{out}: not readable after a kill")
        if outcome == "failed" or not done(train, name, out):
            complaints.append(f"{out}: a resumed life failed")
        elif not done(equal, whole, out):
            complaints.append(f"{out}: differs from {whole}")
    return killed, runs, complaints


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", default=list(SUBJECTS), choices=list(SUBJECTS))
    options = parser.parse_args()
    assert set(wb.methods.PAPERS) <= set(SUBJECTS)
    folder, rng = Path(tempfile.mkdtemp(prefix="soak-")), random.Random(options.seed)
    killed, runs, complaints, started = 0, 0, [], time.monotonic()
    for i, name in enumerate(options.methods):
        share = options.kills // len(options.methods) + (i < options.kills % len(options.methods))
        more = soak(name, share, rng, folder)
        killed, runs, complaints = killed + more[0], runs + more[1], complaints + more[2]
    print(
        f"seed {options.seed}: {killed} kills over {runs} runs of {len(options.methods)} methods in "
        f"{time.monotonic() - started:.0f} s; {len(complaints)} complaints"
    )
    print(
        "\n".join(complaints)
        if complaints
        else "every resumed run equals its undisturbed one, bit for bit"
    )
    if not complaints:
        shutil.rmtree(folder)
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
