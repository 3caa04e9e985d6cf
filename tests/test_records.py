"""What happens to a record that is damaged, locked, old, or on a disk that gives up."""

import errno
import json
import os
import subprocess
import sys
import textwrap
import time
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from test_run import SMALL, go, same_record, same_weights

import workbench as wb
from workbench.records import FORMAT, RecordError, RecordWarning, Writer, checkpoints
from workbench.records.locks import RecordLock

MANIFEST = {
    "format": FORMAT,
    "method": {"name": "hand-made"},
    "lab": {"lab": "none"},
    "seed": 0,
    "arguments": {},
}


EVALUATION = {"problem": ["h"], "samples": [2], "correct": [1], "greedy": [True]}


def write(path, rounds=4):
    """A record by hand: four rollouts a round, an evaluation after every second."""
    writer = Writer(path, MANIFEST)
    for number in range(1, rounds + 1):
        reward = np.random.default_rng(number).random(4)
        row = {
            "round": number,
            "reward": float(reward.mean()),
            "seconds": 1.0,
            "rollouts": 4,
            "flops": 1.0,
            "warnings": "",
        }
        writer.round(
            row,
            {"problem": np.array(["a", "a", "b", "b"]), "reward": reward, "round": [number] * 4},
        )
        if number % 2 == 0:
            writer.evaluation(pd.DataFrame({"round": [number], **EVALUATION}))
    writer.checkpoint(
        {"weight": torch.arange(6.0).reshape(2, 3), "half": torch.ones(3, dtype=torch.bfloat16)},
        {"round": rounds},
    )
    return path


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "flipped":
        chunk = pq.read_metadata(path).row_group(0).column(0)
        first = chunk.dictionary_page_offset or chunk.data_page_offset
        content[first + chunk.total_compressed_size - 1] ^= 0x10  # the last byte of a page of data
    path.write_bytes(
        {
            "empty": b"",
            "half": content[: len(content) // 2],
            "no end": content[:-1],
            "flipped": content,
            "text": b"not a table",
        }[how]
    )


HOW = ["empty", "half", "no end", "flipped", "text"]


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_part_is_named_and_left_out_and_the_rest_stays_readable(how, tmp_path):
    record = wb.load(write(tmp_path / "run"))
    whole = record.rollouts()
    damage(tmp_path / "run" / "rollouts" / "000002.parquet", how)
    with pytest.warns(
        RecordWarning, match=r"000002\.parquet: cannot be read: .*; it is left out"
    ) as caught:
        rest = record.rollouts()
    assert len(caught) == 1 and caught[0].filename == __file__
    pd.testing.assert_frame_equal(
        rest, whole[whole["round"] != 2].reset_index(drop=True), check_exact=True
    )
    with pytest.raises(RecordError, match=r"000002\.parquet: cannot be read"):
        wb.load(tmp_path / "run", strict=True).rollouts()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            len(record.rounds) == 4 and len(record.evals) == 2 and len(record.rollouts([1, 3])) == 8
        )


@pytest.mark.parametrize("name, read", [("rounds.parquet", "rounds"), ("evals.parquet", "evals")])
@pytest.mark.parametrize("how", HOW)
def test_a_damaged_table_is_named_and_the_others_stay_readable(name, read, how, tmp_path):
    record = wb.load(write(tmp_path / "run"))
    damage(tmp_path / "run" / name, how)
    with pytest.warns(RecordWarning, match=rf"{name}: cannot be read"):
        assert len(getattr(record, read)) == 0
    with pytest.raises(RecordError, match=rf"{name}: cannot be read"):
        getattr(wb.load(tmp_path / "run", strict=True), read)
    assert len(record.rollouts()) == 16
    with pytest.raises(
        RecordError, match=rf"{name}: cannot be read: .*cannot go on without it: put a copy back"
    ):
        Writer(tmp_path / "run", MANIFEST)


def test_whatever_byte_is_flipped_a_table_is_read_or_named(tmp_path):
    path = write(tmp_path / "run") / "evals.parquet"
    content, record = path.read_bytes(), wb.load(tmp_path / "run", strict=True)
    said = []
    for position in range(0, len(content), 13):
        path.write_bytes(
            content[:position] + bytes([content[position] ^ 0x08]) + content[position + 1 :]
        )
        try:
            _ = record.evals
        except RecordError as error:
            said.append(str(error))
    assert len(said) > 20 and all(
        "evals.parquet: cannot be read" in text and "\n" not in text for text in said
    )


@pytest.mark.parametrize("how", ["empty", "half", "no end", "text"])
def test_a_damaged_checkpoint_says_what_to_do(how, tmp_path):
    writer = Writer(write(tmp_path / "run"), MANIFEST)
    tensors, state = writer.restore()
    assert (
        tensors["weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
        and tensors["half"].dtype == torch.bfloat16
    )
    assert state == {"round": 4}
    target = tmp_path / "run" / "checkpoint" / "state.safetensors"
    damage(target, how)
    with pytest.raises(
        RecordError, match=r"state\.safetensors: damaged .*cannot go on without it: put a copy back"
    ) as error:
        writer.restore()
    assert "\n" not in str(error.value) and len(wb.load(tmp_path / "run").rounds) == 4


def test_one_flipped_bit_in_the_weights_is_noticed(tmp_path):
    writer = Writer(write(tmp_path / "run"), MANIFEST)
    target = tmp_path / "run" / "checkpoint" / "state.safetensors"
    content = bytearray(target.read_bytes())
    content[-1] ^= 1  # data, whose bits safetensors does not look at
    target.write_bytes(content)
    with pytest.raises(RecordError, match="its checksum does not fit"):
        writer.restore()


def test_columns_that_no_part_has_are_an_error_of_the_caller(tmp_path):
    record = wb.load(write(tmp_path / "run", 2))
    Writer(tmp_path / "run", MANIFEST).round({"round": 3}, {"round": [3], "score": [0.5]})
    assert record.rollouts(columns=["round", "score"])["score"].isna().sum() == 8
    with pytest.raises(ValueError, match="no rollouts have 'scores'"):
        record.rollouts(columns=["round", "scores"])


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "manifest.json: cannot be read: JSONDecodeError"),
        ("[]", "cannot be read: TypeError"),
        ("{}", "KeyError: 'format'"),
        (
            json.dumps({**MANIFEST, "format": FORMAT + 1, "versions": {"workbench": "9.1"}}),
            rf"format {FORMAT + 1}, written by workbench 9\.1; this is workbench .* reads format {FORMAT}: use the version that",
        ),
        (
            json.dumps({**MANIFEST, "format": 0}),
            "format 0, written by workbench of unknown version",
        ),
    ],
)
def test_a_record_of_another_format_says_so_in_one_line(content, message, tmp_path):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(RecordError, match=message) as error:
        wb.load(tmp_path)
    assert "\n" not in str(error.value)


HOLDER = """
    import sys, time
    from workbench.records.locks import RecordLock
    with RecordLock({path!r}):
        print("held", flush=True)
        time.sleep(600)
"""


def test_a_second_process_is_refused_by_name_and_a_killed_one_blocks_nobody(tmp_path):
    code = textwrap.dedent(HOLDER.format(path=str(tmp_path)))
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(
            RecordError,
            match=rf"process {holder.pid} on {os.uname().nodename} \(since .*\) writes this record",
        ):
            RecordLock(tmp_path).__enter__()
    finally:
        holder.kill()
        holder.communicate()
    with RecordLock(tmp_path) as lock:
        assert (
            lock.taken_over
            and json.loads((tmp_path / "lock.json").read_text())["pid"] == os.getpid()
        )


def test_one_process_may_hold_it_once_and_knows_when_others_held_it_meanwhile(tmp_path):
    mine, other = RecordLock(tmp_path), RecordLock(tmp_path)
    with (
        mine,
        pytest.raises(RecordError, match=f"process {os.getpid()} on .*this very process"),
        other,
    ):
        pass
    with mine:
        assert not mine.taken_over
    with other:
        assert other.taken_over
    with mine:
        assert mine.taken_over


@pytest.mark.parametrize("content", ["", "half a {", "[1]"])
def test_an_unreadable_lock_file_locks_all_the_same(content, tmp_path):
    (tmp_path / "lock.json").write_text(content)
    with RecordLock(tmp_path):
        (tmp_path / "lock.json").write_text(content)
        with (
            pytest.raises(RecordError, match="another process writes this record"),
            RecordLock(tmp_path),
        ):
            pass


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    with (
        pytest.warns(
            RecordWarning, match="has no locks .No locks available.; see to it that one process"
        ),
        RecordLock(tmp_path),
    ):
        pass


def test_a_second_run_on_a_record_is_refused_before_its_model_is_loaded(lab, tmp_path):
    def unloadable():
        raise AssertionError("a model was loaded")

    method = wb.methods.grpo(n=4)
    rounds = wb.Run(lab, method, out=tmp_path, **SMALL).rounds(3, progress=False)
    next(rounds)
    second = wb.Run(replace(lab, make_policy=unloadable), method, out=tmp_path, **SMALL)
    with pytest.raises(
        RecordError, match=f"process {os.getpid()} on .* writes this record; wait for it or end it"
    ):
        go(second, 3)
    assert [row["round"] for row in rounds] == [2, 3], "the first is not disturbed"


def test_a_run_that_another_took_over_goes_on_from_what_that_left(lab, tmp_path):
    method = wb.methods.grpo(n=4)
    go(wb.Run(lab, method, out=tmp_path / "whole", **SMALL), 4)
    first, second = (wb.Run(lab, method, out=tmp_path / "both", **SMALL) for _ in range(2))
    for run, n in ((first, 1), (second, 3), (first, 4)):
        go(run, n)
    same_record(wb.load(tmp_path / "whole"), wb.load(tmp_path / "both"))
    assert same_weights(tmp_path / "whole", tmp_path / "both")


def test_a_damaged_checkpoint_stops_a_resume_in_one_line_and_harms_nothing(lab, tmp_path):
    go(wb.Run(lab, wb.methods.grpo(n=4), out=tmp_path, **SMALL), 2)
    target = tmp_path / "checkpoint" / "state.safetensors"
    kept = target.read_bytes()
    target.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    run = wb.Run.resume(tmp_path)
    with pytest.raises(
        RecordError, match=r"state\.safetensors: damaged .*: put a copy back, or start again"
    ):
        go(run, 3)
    assert len(wb.load(tmp_path).rounds) == 2
    target.write_bytes(kept)
    (tmp_path / "rounds.parquet").rename(tmp_path / "elsewhere")
    with pytest.raises(
        RecordError, match="has 0 rounds, but the checkpoint was made after round 2"
    ):
        go(run, 3)
    (tmp_path / "elsewhere").rename(tmp_path / "rounds.parquet")
    assert len(go(run, 3)) == 1


def test_a_checkpoint_of_other_weights_is_refused(lab, tmp_path):
    go(wb.Run(lab, wb.methods.grpo(n=4), out=tmp_path, **SMALL), 2)
    target = tmp_path / "checkpoint" / "state.safetensors"
    tensors, state = checkpoints.load(target)
    checkpoints.save(
        target, {name: value[:1] if value.ndim else value for name, value in tensors.items()}, state
    )
    with pytest.raises(
        ValueError, match=r"not of this lab and method .*shape.*; pass those that the run began"
    ):
        go(wb.Run(lab, wb.methods.grpo(n=4), out=tmp_path, **SMALL), 3)


WRITER = """
    import sys; sys.path.insert(0, {tests!r})
    from test_records import write
    from workbench.records.locks import RecordLock
    with RecordLock({path!r}):
        write({path!r}, 60)
"""


def test_a_reader_beside_the_writer_never_sees_half_a_row_and_never_waits(tmp_path):
    path = tmp_path / "run"
    code = textwrap.dedent(WRITER.format(tests=os.path.dirname(__file__), path=str(path)))
    writer, reads, seen = subprocess.Popen([sys.executable, "-c", code]), 0, 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while writer.poll() is None:
            if not (path / "manifest.json").exists():
                time.sleep(0.01)
                continue
            record = wb.load(path)
            rounds, rollouts, evals = record.rounds, record.rollouts(), record.evals
            assert (
                rounds["round"].tolist() == list(range(1, len(rounds) + 1)) and len(rounds) >= seen
            )
            assert (
                not rounds.isna().any(axis=None)
                and len(rollouts) % 4 == 0
                and len(evals) >= len(rounds) // 2 - 1
            )
            reads, seen = reads + (0 < len(rounds) < 60), len(rounds)
    assert writer.returncode == 0 and reads >= 3 and len(wb.load(path).rounds) == 60


@pytest.fixture
def disk(tmp_path):
    """A file system of 12 MiB that can be filled and made read-only."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root on Linux")
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", path], capture_output=True
    ).returncode:
        pytest.skip("mounting is not allowed here")
    yield path
    subprocess.run(
        ["umount", "--lazy", path], check=True
    )  # a failed test may still hold files open


def fill(disk):
    """Leaves not a byte."""
    free = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize))


def test_a_full_disk_names_what_could_not_be_written(disk):
    path = write(disk / "run")
    writer = Writer(path, MANIFEST)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    fill(disk)
    with pytest.raises(
        RecordError,
        match=r"cannot write round 5: .*No space left on device; rounds 1 to 4 are kept",
    ):
        writer.round({"round": 5}, {"round": [5] * 4})
    with pytest.raises(
        RecordError,
        match=r"cannot write the checkpoint: .*[Nn]o space left.*; rounds 1 to 4 are kept",
    ):
        writer.checkpoint({"weight": torch.zeros(10_000)}, {"round": 4})
    with pytest.raises(RecordError, match=r"cannot write an evaluation: .*No space left on device"):
        writer.evaluation(pd.DataFrame({"round": [4], **EVALUATION}))
    with (
        pytest.raises(RecordError, match=r"lock\.json: cannot be written: No space left on device"),
        RecordLock(path),
    ):
        pass
    (disk / "filler").unlink()
    after = {
        file: file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != "lock.json"
    }
    assert after == before
    writer.round({"round": 5}, {"round": [5] * 4})
    assert len(wb.load(path).rounds) == 5


def test_a_disk_that_turns_read_only_loses_nothing_and_stays_readable(disk):
    path = write(disk / "run")
    writer = Writer(path, MANIFEST)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    for job in (
        lambda: writer.round({"round": 5}, {"round": [5] * 4}),
        lambda: writer.truncate(2),
        lambda: writer.checkpoint({"weight": torch.zeros(2)}, {"round": 4}),
    ):
        with pytest.raises(RecordError, match="Read-only file system; rounds 1 to 4 are kept"):
            job()
    with (
        pytest.raises(RecordError, match=r"lock\.json: cannot be written: Read-only file system"),
        RecordLock(path),
    ):
        pass
    record = wb.load(path)
    assert len(record.rounds) == 4 and len(record.rollouts()) == 16
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    writer.round({"round": 5}, {"round": [5] * 4})
    assert len(record.rounds) == 5
