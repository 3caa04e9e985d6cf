"""Tries to break what docs/reliability.md promises of records and sweeps, for a given time, and
prints a table of what was tried and what held.

    make soak                                 # ten minutes
    make soak SOAK_ARGS="--minutes 60"
    python tests/soak.py --minutes 5 --seed 3 --methods grpo aero
    python tests/soak.py --minutes 20 --only sweeps --ray

Three quarters of the time go to runs of all methods, the rest to sweeps.

A run has several lives. Each is a forked child of this process, which has imported everything and
never trains itself, so that a life costs no import time. Every life but the last one is disturbed
at a random moment:

    kill       SIGKILL
    terminate  SIGTERM
    interrupt  SIGINT, as from a notebook
    quota      no file may grow any more (RLIMIT_FSIZE): "File too large"
    full       the disk is filled, where a small one can be mounted: "No space left on device"

Every second delay counts from the start of the life, the others from the first round that it
records, so all moments occur, from the first file of the record to its last checkpoint. Meanwhile
about every hundredth response is replaced by one of the hostile answers of `tests/hostile.py`,
before it is judged.

What must hold: after each disturbance the record is readable without a warning. A life that could
not write says so in a `RecordError`. When a run has ended, its record and its weights are those of
the undisturbed run, bit for bit, except for timings, and for the reason why a wrong answer was
wrong: whether a hostile answer is refused before its deadline depends on how busy the machine is.
No process is left over. Exit status 1, and the directories are kept, when any of it does not hold.

Then single bits of the finished record are flipped at random places of its files, and of the shelf
that it is packed to. Each has to be found, by an error that names the file.

A sweep of four runs is started again and again. Each time a worker, the server that workers are
forked from, or the sweep itself is killed, terminated, hung up or interrupted at a random moment;
with --ray it runs on a Ray of its own, which has no such server. After each death nothing may be
left over, and in the end the table and all records are those of an undisturbed sweep.

The seed fixes the delays. What a run is doing after a delay is up to the machine.
"""

import argparse
import hashlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import sweep_processes
import torch
from conftest import small_lab
from hostile import FAMILIES
from small_methods import NAMES, small
from test_records import same_weights

import workbench as wb
from workbench.policies import transformers  # noqa: F401  imported here, so that no life has to
from workbench.records import RecordError, RecordWarning, checkpoints

ROUNDS = 8
OPTIONS = dict(problems_per_round=4, evaluate_every=3, checkpoint_every=2)
METHODS = {name: small(name) for name in NAMES} | {
    "cbs-buffer": wb.methods.cbs(scope="buffer", n=4, p=50).adjust("selector", warmup=2, start=0.5),
}
DISTURBANCES = ("kill", "kill", "kill", "terminate", "interrupt", "quota", "full")
SIGNALS = {
    "kill": signal.SIGKILL,
    "terminate": signal.SIGTERM,
    "interrupt": signal.SIGINT,
    "quota": signal.SIGUSR1,  # the life sets its own limit, see `train`
}
MOST_LIVES = 6  # of one run; the last of them is left alone
HOSTILE = [text for texts in FAMILIES.values() for text in texts]
HOSTILE_SHARE = 0.01
DISK_MEGABYTES = 96
FLIPS = 40  # bits of each record, and of each shelf
OF_SWEEPS = 0.25  # share of the time
NAMED = 3  # exit status of a life that ended in a RecordError
MARK = "WORKBENCH_SOAK"  # an environment variable by which processes are known as ours


class Hostile:
    """A verifier that gets hostile answers in the place of some responses.

    Which ones depends on the response alone, so that a resumed run meets the same.
    """

    def __init__(self, verifier):
        self.verifier = verifier

    def score(self, responses, answers):
        return self.verifier.score([replaced(text) for text in responses], answers)


def replaced(text):
    """The response itself, or for some a hostile answer."""
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    if number / 2**64 < HOSTILE_SHARE:
        return HOSTILE[number % len(HOSTILE)]
    return text


# What lives do


def train(name, out):
    """One life of a run: from where it stopped to its last round."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, (512, -1)))
    lab = small_lab(pool=16, held_out=6, samples=1)
    lab = replace(lab, verifier=Hostile(lab.verifier))
    for _ in wb.Run(lab, METHODS[name], out=out, **OPTIONS).rounds(ROUNDS, progress=False):
        pass


def check_readable(out):
    """Read every table with warnings as errors; there may be no record yet."""
    warnings.simplefilter("error", RecordWarning)
    if not (out / "manifest.json").exists():
        return
    record = wb.load(out, strict=True)
    assert record.problems() == []
    rounds = record.rounds
    rollouts = record.rollouts()
    if len(rounds):
        assert set(rollouts["round"] + rollouts["age"]) == set(rounds["round"])


def check_equal(whole, out):
    """The two records and their weights are equal, bit for bit."""
    for name in ("rounds", "rollouts", "evals"):
        pd.testing.assert_frame_equal(
            comparable(wb.load(whole), name), comparable(wb.load(out), name), check_exact=True
        )
    assert same_weights(whole, out), "the weights differ"
    assert len(wb.load(out).rounds) == ROUNDS


def comparable(record, name):
    """A table without timings, and without the reason why a wrong answer was wrong."""
    frame = record.rollouts() if name == "rollouts" else getattr(record, name)
    if name == "rollouts":
        return frame.assign(status=frame["status"] == "ok")
    varying = ("seconds", "status_", "warnings")
    return frame[[column for column in frame if not column.startswith(varying)]]


def begin(function, *arguments):
    """A child process that calls the function; returns its process id."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        function(*arguments)
        status = 0
    except RecordError as error:
        # What is printed may go to a file, which a quota would let grow no further.
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, -1))
        print(f"    named: {error}", flush=True)
        status = NAMED
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def succeeds(function, *arguments):
    """Whether the function, called in a child, ends well."""
    return os.waitpid(begin(function, *arguments), 0)[1] == 0


def check_flips(out, seed):
    """Every flipped bit of a record or of a shelf is found, and the file is named."""
    rng = random.Random(seed)
    files = [path for path in out.rglob("*") if path.is_file() and path.name != "lock.json"]
    for _ in range(FLIPS):
        path = rng.choice(files)
        content = path.read_bytes()
        place = rng.randrange(len(content))
        flipped = bytes([content[place] ^ 1 << rng.randrange(8)])
        path.write_bytes(content[:place] + flipped + content[place + 1 :])
        said = what_is_wrong(out, path)
        assert said is not None, f"{path}: the flipped bit of byte {place} was not found"
        # The error of the checkpoint gets its path only where a run goes on, which takes seconds.
        assert path.name in said or path.suffix == ".safetensors", said
        path.write_bytes(content)


def what_is_wrong(out, path):
    """The error that reading a checkpoint, or else all of a record, ends in; None without one."""
    try:
        # A packed run has no checkpoint any more.
        if path.suffix == ".safetensors":
            checkpoints.load(path)
        record = wb.load(out, strict=True)
        _ = record.manifest, record.rounds, record.evals, record.questions, record.rollouts()
    except (RecordError, OSError) as error:
        return str(error)
    return None


# Disturbances


def disturbed_life(name, out, disturbance, delay, from_first_round):
    """A life that is disturbed after a delay: "ended" before that, "stopped" by it, or "failed"."""
    before = written(out)
    process = begin(train, name, out)
    started = time.monotonic()
    while time.monotonic() < started + delay:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return "ended" if status == 0 else "failed"
        if from_first_round and written(out) == before:
            started = time.monotonic()
        time.sleep(0.002)
    filler = out.parent / "filler"
    if disturbance == "full":
        fill(filler)
    else:
        os.kill(process, SIGNALS[disturbance])
    _, status = os.waitpid(process, 0)
    filler.unlink(missing_ok=True)
    return outcome_of(disturbance, status)


def outcome_of(disturbance, status):
    """What became of a disturbed life, by its exit status."""
    if status == 0:
        return "ended"  # it had nothing left to write, or was done before the signal arrived
    if os.WIFSIGNALED(status):
        return "stopped" if os.WTERMSIG(status) == SIGNALS.get(disturbance) else "failed"
    expected = {"interrupt": 128 + signal.SIGINT, "quota": NAMED, "full": NAMED}
    return "stopped" if os.WEXITSTATUS(status) == expected.get(disturbance) else "failed"


def fill(path):
    """Write until the disk is full."""
    try:
        with open(path, "wb", buffering=0) as file:
            while True:
                file.write(bytes(2**20))
    except OSError:
        pass


def written(out):
    """When a round was last written; None before that."""
    table = out / "journal.jsonl"
    return table.stat().st_mtime_ns if table.exists() else None


def left_over():
    """Ids of the processes that this soak started and that still run, this one left out."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        process = int(environment.parent.name)
        try:
            is_ours = f"{MARK}={os.environ[MARK]}".encode() in environment.read_bytes()
        except OSError:
            continue
        if is_ours and process != os.getpid():
            found.append(process)
    return found


# The soak


class Soak:
    """Runs of all methods in turns until the time is over, and what came of them."""

    def __init__(self, folder, disk, seed):
        self.folder = folder
        self.disk = disk
        self.rng = random.Random(seed)
        self.disturbances = [each for each in DISTURBANCES if disk is not None or each != "full"]
        self.seconds = {}  # method -> what the undisturbed run took
        self.counts = Counter()
        self.complaints = []

    def whole(self, name):
        """The record of the undisturbed run of a method, made when it is first asked for."""
        path = self.folder / f"{name}-whole"
        if name not in self.seconds:
            started = time.monotonic()
            if not succeeds(train, name, path):
                raise SystemExit(f"{name}: the undisturbed run failed")
            self.seconds[name] = time.monotonic() - started
            self.count_rollouts(path)
        return path

    def run(self, name, end):
        """One run of a method, disturbed several times and then left alone."""
        whole = self.whole(name)
        number = self.counts["runs"] + 1
        out = (self.disk or self.folder) / f"{name}-{number}"
        outcome = "stopped"
        for _ in range(self.rng.randint(1, MOST_LIVES - 1)):
            if outcome != "stopped" or time.monotonic() > end:
                break
            outcome = self.disturb(name, out)
        if outcome == "failed":
            self.complaints.append(f"{out}: a life failed without a name for it")
        elif not succeeds(train, name, out):
            self.complaints.append(f"{out}: the last life failed")
        elif not succeeds(check_equal, whole, out):
            self.complaints.append(f"{out}: differs from {whole}")
        else:
            self.count_rollouts(out)
            self.flip(out)
            shutil.rmtree(out)
        self.counts["runs"] += 1

    def flip(self, out):
        """Flip bits of the record, pack it, and flip bits of the shelf."""
        for what in ("record", "shelf"):
            if what == "shelf":
                wb.records.pack(out)
            if not succeeds(check_flips, out, self.rng.random()):
                self.complaints.append(f"{out}: a flipped bit of the {what} was not named")
            self.counts[f"flips, {what}"] += FLIPS

    def disturb(self, name, out):
        """One disturbed life; its outcome."""
        disturbance = self.rng.choice(self.disturbances)
        from_first_round = self.rng.random() < 0.5
        longest = self.seconds[name] / (3 if from_first_round else 1)
        delay = self.rng.uniform(0, longest)
        outcome = disturbed_life(name, out, disturbance, delay, from_first_round)
        since = "first round" if from_first_round else "start"
        print(f"{out.name}: {disturbance} {delay:.2f} s after its {since}: {outcome}, {state(out)}")
        self.counts[f"{disturbance}, {outcome}"] += 1
        if not succeeds(check_readable, out):
            self.complaints.append(f"{out}: not readable after {disturbance}")
        return outcome

    def count_rollouts(self, out):
        """Add up what was judged in a record."""
        rounds = wb.load(out).rounds
        self.counts["rollouts"] += int(rounds["rollouts"].sum())
        for status in ("timeout", "crash"):
            self.counts[f"rollouts, {status}"] += int(rounds[f"status_{status}"].sum())
        texts = wb.load(out).rollouts(columns=["text"])["text"]
        self.counts["rollouts, hostile"] += sum(replaced(text) != text for text in texts)

    def report(self):
        """What was tried, as rows of the table: what, how often, and of that in vain."""
        rows = []
        for disturbance in dict.fromkeys(self.disturbances):
            stopped = self.counts[f"{disturbance}, stopped"]
            failed = self.counts[f"{disturbance}, failed"]
            rows.append((f"lives of runs stopped by {disturbance}", stopped + failed, failed))
        unequal = sum("differs" in complaint for complaint in self.complaints)
        rows.append(("runs as if undisturbed, to the bit", self.counts["runs"], unequal))
        hostile = self.counts["rollouts, hostile"]
        rows.append(("hostile answers that were judged", hostile, 0))
        for what in ("record", "shelf"):
            unseen = sum(f"bit of the {what}" in complaint for complaint in self.complaints)
            rows.append((f"flipped bits of a {what}, found", self.counts[f"flips, {what}"], unseen))
        print(f"{len(self.seconds)} methods, {self.counts['rollouts']} rollouts")
        return rows


def state(out):
    """What a stopped life left behind."""
    if not out.exists():
        return "nothing yet"
    unfinished = [path.name for path in out.rglob("*.writing")]
    parts = len(list((out / "rollouts").glob("*.parquet")))
    has_checkpoint = (out / "checkpoint" / "state.safetensors").exists()
    text = f"{parts} rounds, {'a' if has_checkpoint else 'no'} checkpoint"
    return f"{text}, in the middle of {', '.join(unfinished)}" if unfinished else text


def mounted(folder):
    """A small disk that can be filled, where one can be mounted; otherwise None."""
    path = folder / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m", "tmpfs", str(path)]
    try:
        done = subprocess.run(command, capture_output=True)
    except OSError:
        return None
    return path if done.returncode == 0 else None


def soak_sweeps(end, on_ray, seed):
    """Sweeps that die until the time is over, and then end like one that nobody disturbed.

    Returns the rows of the table. What does not hold is an AssertionError.
    """
    folder = Path(tempfile.mkdtemp(prefix="soak-sweeps-"))
    cases = [
        {"label": label, "rounds": 40, "method": method}
        for label, method in (("a", "grpo"), ("b", "pods"), ("c", "knapsack"), ("d", "ar3po"))
    ]
    grid = sweep_processes.write_grid(folder, cases)
    options = ("--jobs", "2", *(("--ray", "local") if on_ray else ()))
    sweep_processes.check_ends_well(grid, folder / "whole", options)
    kinds = [kind for kind in sweep_processes.DEATHS if not (on_ray and kind == "server")]
    rng = random.Random(seed)
    counts = Counter()
    out = folder / "out-1"
    while time.monotonic() < end:
        number = counts.total() + 1
        kind = kinds[number % len(kinds)]
        delay = rng.uniform(0, 4)
        sweep_processes.disturb(grid, out, kind, delay, options, ray=on_ray)
        rounds = {path.parent.name: len(wb.load(path).rounds) for path in records_in(out)}
        print(f"death {number}: {kind} after {delay:.2f} s: rounds {rounds}", flush=True)
        counts[kind] += 1
        if all(rounds.get(case["label"]) == 40 for case in cases):
            # Nothing is left to disturb, so the deaths that remain are those of another sweep.
            sweep_processes.check_finished(grid, out, folder / "whole", options)
            counts["finished"] += 1
            out = folder / f"out-{number + 1}"
    sweep_processes.check_finished(grid, out, folder / "whole", options)
    finished = counts.pop("finished", 0) + 1
    shutil.rmtree(folder)
    rows = [(f"sweeps: {kind}, nothing left over", counts[kind], 0) for kind in kinds]
    return [*rows, ("sweeps as if undisturbed", finished, 0)]


def records_in(out):
    """The directories of the records of a sweep that have been begun."""
    return wb.records.record_paths(out)


def soak_runs(end, names, seed):
    """Disturb runs until the time is over; the rows of the table, and what did not hold."""
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    os.environ[MARK] = folder.name
    disk = mounted(folder)
    soak = Soak(folder, disk, seed)
    try:
        while time.monotonic() < end:
            for name in names:
                if time.monotonic() < end:
                    soak.run(name, end)
        time.sleep(2)  # for the workers of the last life, which end after it
        for process in left_over():
            soak.complaints.append(f"process {process} was left over")
    finally:
        if disk is not None and soak.complaints:
            shutil.copytree(disk, folder / "kept", dirs_exist_ok=True)
        if disk is not None:
            subprocess.run(["umount", "--lazy", disk], check=True)
    if not soak.complaints:
        shutil.rmtree(folder)
    return soak.report(), soak.complaints


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--only", choices=["runs", "sweeps"])
    parser.add_argument("--ray", action="store_true", help="sweeps on a Ray of their own")
    options = parser.parse_args()
    assert set(wb.methods.PAPERS) <= set(METHODS)

    started = time.monotonic()
    end = started + 60 * options.minutes
    rows, complaints = [], []
    if options.only != "sweeps":
        share = 1 if options.only else 1 - OF_SWEEPS
        rows, complaints = soak_runs(
            started + share * (end - started), options.methods, options.seed
        )
    if options.only != "runs":
        try:
            rows += soak_sweeps(end, options.ray, options.seed)
        except AssertionError:
            traceback.print_exc()
            complaints.append("a sweep did not end as it should, see above")
    print(f"{(time.monotonic() - started) / 60:.1f} minutes, seed {options.seed}\n")
    print(f"{'what was tried':<50}{'times':>8}{'failed':>8}")
    for what, times, failed in rows:
        print(f"{what:<50}{times:>8}{failed:>8}")
    print("\n" + "\n".join(complaints or ["everything held, and no process is left over"]))
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
