"""Trackers: TensorBoard's event files read back, objects of one's own, and installed dashboards."""

import importlib
import math
import struct
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import small_lab

import workbench as wb
from workbench.records.trackers import TensorBoard, Trackers, _numbers

SMALL = dict(problems_per_round=2, evaluate_every=2, checkpoint_every=2)


class Notes:
    """A tracker that keeps what it is told."""

    def __init__(self):
        self.calls = []

    def start(self, manifest):
        self.calls.append(("start", manifest["method"]["name"]))

    def log(self, row, round):
        self.calls.append(("log", round, dict(row)))

    def finish(self):
        self.calls.append(("finish",))


class Broken(Notes):
    """One that fails at its second row."""

    def log(self, row, round):
        super().log(row, round)
        if len(self.calls) > 2:
            raise OSError("no route to host")


def scalars(path):
    """(step, value) of every tag in the event files of a directory, what was purged left out."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


@pytest.mark.slow
def test_a_run_tells_its_trackers_and_tensorboard_beside_the_record(tmp_path):
    notes = Notes()
    broken = Broken()
    run = wb.Run(
        small_lab(),
        wb.methods.grpo(n=4),
        out=tmp_path / "a",
        trackers=(notes, "tensorboard", broken),
        **SMALL,
    )
    message = r"tracker Broken: log raised OSError: no route to host; the run goes on"
    with pytest.warns(RuntimeWarning, match=message) as warned:
        rows = list(run.rounds(2, progress=False))
    assert sum("Broken" in str(warning.message) for warning in warned) == 1
    assert len(broken.calls) == 3
    assert [call[0] for call in notes.calls] == ["start", "log", "log", "log", "log", "finish"]
    logged = [call[2] for call in notes.calls if call[0] == "log"]
    assert [row for row in logged if "reward" in row] == rows

    rows += list(run.rounds(3, progress=False))
    # Round 3 is off the grid of evaluations and the last one asked for, so it is evaluated.
    assert [call[0] for call in notes.calls[6:]] == ["start", "log", "log", "finish"]
    shown = scalars(tmp_path / "a" / "tensorboard")
    assert [step for step, _ in shown["reward"]] == [1, 2, 3]
    for name in ("reward", "seconds", "effective_gradient_ratio"):
        assert [value for _, value in shown[name]] == pytest.approx([row[name] for row in rows])
    curve = wb.load(tmp_path / "a").accuracy()
    assert shown["evaluation/accuracy"] == [
        (number, pytest.approx(accuracy))
        for number, accuracy in zip(curve["round"], curve["accuracy"])
    ]
    # What is not finite is no scalar.
    assert math.isnan(rows[0]["kl"])
    assert "kl" not in shown


@pytest.mark.slow
def test_a_round_that_is_repeated_is_shown_once(tmp_path):
    for first in (1, 2):
        # TensorBoard reads files in the order of the second in which each was begun.
        time.sleep(1.1)
        board = TensorBoard(tmp_path)
        board.start({"method": {"name": "grpo"}, "seed": 0})
        for number in range(first, 4):
            board.log({"reward": 10 * first + number}, number)
        board.finish()
    assert scalars(tmp_path)["reward"] == [(1, 11.0), (2, 22.0), (3, 23.0)]


def test_without_trackers_nothing_is_written_and_nothing_warns(tmp_path):
    run = wb.Run(small_lab(held_out=0), wb.methods.grpo(n=2), out=tmp_path / "a", **SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        list(run.rounds(1, progress=False))
    assert not (tmp_path / "a" / "tensorboard").exists()


@pytest.mark.parametrize("wrong", ["tensorbord", 3, object()])
def test_what_is_no_tracker_is_refused(wrong, tmp_path):
    message = r"^trackers: .*; allowed are 'tensorboard', 'wandb', 'trackio' and objects with"
    with pytest.raises(ValueError, match=message):
        Trackers((wrong,), tmp_path)


@pytest.mark.parametrize("package", ["tensorboard", "wandb", "trackio"])
def test_a_package_that_is_missing_comes_with_its_command(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"^trackers='{package}' needs a package: pip install {package}$"
    with pytest.raises(ImportError, match=message):
        Trackers(package, tmp_path)


@pytest.fixture(params=["wandb", "trackio"])
def package(request, tmp_path, monkeypatch):
    """A dashboard that is installed, and keeps everything in the test's own folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    # trackio reads it when it is imported.
    for name in [name for name in sys.modules if name.partition(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, name)
    pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    return request.param


def test_a_dashboard_on_this_machine(package, tmp_path):
    trackers = Trackers(package, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for first in (1, 3):
            trackers.start({"method": {"name": "grpo"}, "seed": 0})
            for number in (first, first + 1):
                trackers.log({"reward": 0.5 * number, "kl": float("nan"), "note": "text"}, number)
            trackers.finish()
    assert trackers.members
    assert any(path.is_file() for path in tmp_path.rglob("*"))


def rows_of(package, folder):
    """What each run of a dashboard has of the column `reward`, by the name of the run."""
    if package == "trackio":
        from trackio.sqlite_storage import SQLiteStorage as Storage

        runs = {name: Storage.get_logs("workbench", name) for name in Storage.get_runs("workbench")}
        return {name: [row["reward"] for row in rows] for name, rows in runs.items()}
    from wandb.proto.wandb_internal_pb2 import Record

    found = {}
    for path in folder.glob("offline-run-*/*.wandb"):
        rows = []
        for data in wandb_records(path.read_bytes()):
            record = Record.FromString(data)
            if record.run.run_id:
                found[record.run.run_id] = rows
            for item in record.history.item:
                if item.key == "reward" or list(item.nested_key) == ["reward"]:
                    rows.append(float(item.value_json))
    return found


def wandb_records(data):
    """The records of an offline file: in blocks of 32 KiB, each piece with a length and a kind."""
    place, record = 7, b""
    while place + 7 <= len(data):
        left = 2**15 - place % 2**15
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


def test_each_row_goes_to_its_own_run_and_no_other_run_is_closed(package, tmp_path):
    dashboard = importlib.import_module(package)
    mine = dashboard.init(project="workbench", name="mine")
    dashboard.log({"reward": 100.0})
    trackers = [Trackers(package, tmp_path) for _ in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        # Two in turns, a third in another thread, and one more that is only opened and closed.
        for seed, each in enumerate(trackers):
            each.start({"method": {"name": "turns"}, "seed": seed})
        Trackers(package, tmp_path).finish()
        for number in (1, 2):
            for seed, each in enumerate(trackers[:2]):
                each.log({"reward": 10.0 * seed + number}, number)
            dashboard.log({"reward": 100.0 + number})
        thread = threading.Thread(target=trackers[2].log, args=({"reward": 21.0}, 1))
        thread.start()
        thread.join()
        for each in (trackers[1], trackers[0], trackers[2]):
            each.finish()
            dashboard.log({"reward": 103.0})
        dashboard.finish()
    assert all(each.members for each in trackers)
    if package == "wandb":
        rows = rows_of(package, Path(mine.settings.sync_dir).parent)
        own = rows[mine.id]
    else:
        rows = rows_of(package, tmp_path)
        own = rows["mine"]
    assert own == [100.0, 101.0, 102.0, 103.0, 103.0, 103.0]
    turns = [rows[name] for name in sorted(rows) if name.startswith("turns")]
    assert turns == [[1.0, 2.0], [11.0, 12.0], [21.0]]


def test_numbers_of_numpy_are_shown_too():
    row = {"a": np.int64(3), "b": np.float32(1.5), "c": 2.0, "d": "text", "e": np.nan}
    assert _numbers(row) == {"a": 3.0, "b": 1.5, "c": 2.0}
