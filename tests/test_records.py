"""What happens to a record that is damaged, incomplete, locked, old, or on a disk that gives up."""

import errno
import gc
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import textwrap
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import written_records
from conftest import small_lab

import workbench as wb
from workbench.records import FORMAT, RecordError, RecordWarning, Writer, checkpoints
from workbench.records.locks import RecordLock
from workbench.rollouts import Context, Rollouts
from workbench.rules.replay import CorrectResponses

SMALL = dict(problems_per_round=2, evaluate_every=2, checkpoint_every=2)
MANIFEST = {
    "format": FORMAT,
    "method": {"name": "hand-made"},
    "lab": {"lab": "none"},
    "seed": 0,
    "arguments": {"evaluate_every": 2},
    "held_out": 1,
}
EVALUATION = {"problem": ["h"], "samples": [2], "correct": [1], "greedy": [True]}


@pytest.fixture
def lab():
    return small_lab(pool=8, held_out=2, samples=1)


def go(run, n):
    return list(run.rounds(n, progress=False))


def same_record(a, b):
    """Equal rounds, rollouts and evaluations, timings aside, bit for bit."""

    def timeless(frame):
        return frame[[name for name in frame if not name.startswith("seconds")]]

    pd.testing.assert_frame_equal(timeless(a.rounds), timeless(b.rounds), check_exact=True)
    pd.testing.assert_frame_equal(a.rollouts(), b.rollouts(), check_exact=True)
    pd.testing.assert_frame_equal(timeless(a.evals), timeless(b.evals), check_exact=True)


def same_weights(a, b):
    """Whether two checkpoints hold the same tensors, bit for bit."""
    ours = checkpoints.load(a / "checkpoint" / "state.safetensors")[0]
    theirs = checkpoints.load(b / "checkpoint" / "state.safetensors")[0]
    return ours.keys() == theirs.keys() and all(
        np.array_equal(ours[name].view(torch.uint8), theirs[name].view(torch.uint8))
        if ours[name].ndim
        else ours[name] == theirs[name]
        for name in ours
    )


def round_of(number):
    """Row and rollouts of a round by hand: four rollouts of two problems."""
    reward = np.random.default_rng(number).random(4)
    row = {
        "round": number,
        "reward": float(reward.mean()),
        "seconds": 1.0,
        "rollouts": 4,
        "flops": 1.0,
        "warnings": "",
    }
    columns = {"problem": np.array(["a", "a", "b", "b"]), "reward": reward, "round": [number] * 4}
    return row, columns


def write(path, rounds=4, **changes):
    """A record by hand, evaluated before the first round and after every second."""
    writer = Writer(path, MANIFEST | changes)
    writer.evaluation(pd.DataFrame({"round": [0], **EVALUATION}))
    for number in range(1, rounds + 1):
        writer.round(*round_of(number))
        if number % 2 == 0:
            writer.evaluation(pd.DataFrame({"round": [number], **EVALUATION}))
    writer.checkpoint(
        {"weight": torch.arange(6.0).reshape(2, 3), "half": torch.ones(3, dtype=torch.bfloat16)},
        {"round": rounds},
    )
    return path


def read_all(path):
    """Every table of a record, with warnings as errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecordWarning)
        record = wb.load(path)
        return record.rounds, record.rollouts(), record.evals


def snapshot(path):
    """Name -> content of every file under a directory."""
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


# Damage


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "flipped":
        content[len(content) // 2] ^= 0x10
    damaged = {
        "empty": b"",
        "half": content[: len(content) // 2],
        "no end": content[:-1],
        "flipped": content,
        "text": b"not a table\n",
    }
    path.write_bytes(damaged[how])


HOW = ["empty", "half", "no end", "flipped", "text"]


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_part_is_named_and_left_out_and_the_rest_stays_readable(how, tmp_path):
    record = wb.load(write(tmp_path / "run"))
    whole = record.rollouts()
    damage(tmp_path / "run" / "rollouts" / "000002.parquet", how)

    message = r"000002\.parquet: cannot be read: .*; the rest is read without it"
    with pytest.warns(RecordWarning, match=message) as caught:
        rest = record.rollouts()
    assert len(caught) == 1
    assert caught[0].filename == __file__, "the warning points at the line that read the record"
    others = whole[whole["round"] != 2].reset_index(drop=True)
    pd.testing.assert_frame_equal(rest, others, check_exact=True)

    with pytest.raises(RecordError, match=r"000002\.parquet: cannot be read"):
        wb.load(tmp_path / "run", strict=True).rollouts()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(record.rounds) == 4
        assert len(record.evals) == 3
        assert len(record.rollouts([1, 3])) == 8
    with pytest.raises(ValueError, match=r"rounds=3: an Iterable is needed, such as \[3\]"):
        record.rollouts(3)


def test_rounds_that_a_record_does_not_have_are_no_silent_nothing(tmp_path):
    record = wb.load(write(tmp_path / "run"))
    with pytest.warns(RecordWarning, match="these rounds"):
        assert record.rollouts([99]).empty
    assert len(record.rollouts([1, 99])) == len(record.rollouts([1]))


def test_a_journal_is_read_up_to_the_line_that_is_damaged(tmp_path):
    """Of the four rounds and three evaluations, what comes before the line of round 3."""
    path = write(tmp_path / "run") / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines).replace(b'"round": 3', b'"round": 7'))
    with pytest.warns(RecordWarning, match=r"journal\.jsonl: line 6 was changed"):
        record = wb.load(tmp_path / "run")
    with pytest.warns(RecordWarning, match="line 6"):
        assert record.rounds["round"].tolist() == [1, 2]
    with pytest.warns(RecordWarning, match="line 6"):
        assert record.evals["round"].tolist() == [0, 2]
    with pytest.warns(RecordWarning, match="line 6"):
        assert len(record.rollouts()) == 8
    with pytest.raises(RecordError, match="line 6"):
        wb.load(tmp_path / "run", strict=True)
    with pytest.warns(RecordWarning, match="line 6.*the run goes on without it"):
        writer = Writer(tmp_path / "run", MANIFEST)
    # What comes after the damage is lost, and the checkpoint was made later.
    with pytest.raises(RecordError, match="the checkpoint is of round 4"):
        writer.restore()


@pytest.mark.parametrize("how", ["a line less", "two lines exchanged", "another run"])
def test_lines_that_are_lost_moved_or_of_another_run_are_found(how, tmp_path):
    path = write(tmp_path / "run") / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    other = (write(tmp_path / "other", seed=1) / "journal.jsonl").read_bytes()
    changed = {
        "a line less": [*lines[:4], *lines[5:]],
        "two lines exchanged": [*lines[:3], lines[4], lines[3], *lines[5:]],
        "another run": other.splitlines(keepends=True),
    }
    path.write_bytes(b"".join(changed[how]))
    with pytest.raises(RecordError, match=r"was changed|of another run"):
        wb.load(tmp_path / "run", strict=True)


@pytest.mark.parametrize("evidence", ["checkpoint", "rollouts"])
def test_a_lost_end_of_the_journal_is_found_by_what_lies_beside_it(evidence, tmp_path):
    """Wherever the end was cut off, also in the middle of a line."""
    path = write(tmp_path / "run", 3)
    writer = Writer(path, MANIFEST)
    if evidence == "rollouts":
        (path / "checkpoint/state.safetensors").unlink()
        writer.round(*round_of(4))
    journal = path / "journal.jsonl"
    content = journal.read_bytes()
    ends = [place + 1 for place, byte in enumerate(content) if byte == ord("\n")]
    # A process that is killed leaves the rollouts of one round without its line.
    last = ends[-2] if evidence == "checkpoint" else ends[-3]
    for end in ends[1 : ends.index(last) + 1]:
        for length in (end, end - 20):
            journal.write_bytes(content[:length])
            with pytest.warns(RecordWarning, match=r"journal\.jsonl: it ends with round"):
                wb.load(path)
            with pytest.raises(RecordError, match=r"journal\.jsonl: it ends with round"):
                wb.load(path, strict=True)
    journal.write_bytes(content[: ends[-1]])
    assert wb.load(path, strict=True).problems() == []


def test_rounds_that_a_resume_has_forgotten_do_not_count(tmp_path):
    """They stay in the journal, in front of a line that says which lines are kept."""
    path = write(tmp_path / "run", 4)
    whole = read_all(path)
    before = (path / "journal.jsonl").read_bytes()
    writer = Writer(path, MANIFEST)
    writer.truncate(2)
    assert (path / "journal.jsonl").read_bytes().startswith(before)
    assert [table["round"].max() for table in read_all(path)] == [2, 2, 2]
    for number in (3, 4):
        writer.round(*round_of(number))
    writer.evaluation(pd.DataFrame({"round": [4], **EVALUATION}))
    writer.forget_evaluation(4)
    assert writer.evaluated == {0, 2}
    writer.evaluation(pd.DataFrame({"round": [4], **EVALUATION}))
    for ours, theirs in zip(read_all(path), whole, strict=True):
        pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    assert Writer(path, MANIFEST).rounds == 4


def test_a_checkpoint_may_name_the_line_of_its_round(tmp_path):
    """As those of earlier versions do, where an evaluation came behind that line."""
    path = write(tmp_path / "run", 2)
    *_, line, evaluation = (path / "journal.jsonl").read_text().splitlines()
    assert "row" in json.loads(line) and "evaluation" in json.loads(evaluation)
    written_records.sign_checkpoint(path, json.loads(line)["sha256"])
    assert wb.load(path, strict=True).problems() == []
    assert Writer(path, MANIFEST).restore()[1] == {"round": 2}


def test_a_journal_that_somebody_else_changed_is_not_written_to(tmp_path):
    """As where an earlier copy of the directory was put back while the run went on."""
    path = write(tmp_path / "run", 2)
    writer = Writer(path, MANIFEST)
    content = (path / "journal.jsonl").read_bytes()
    earlier = content[: content.rindex(b"\n", 0, -1) + 1]
    (path / "journal.jsonl").write_bytes(earlier)
    with pytest.raises(RecordError, match=r"journal\.jsonl was changed by somebody else"):
        writer.round(*round_of(3))
    assert (path / "journal.jsonl").read_bytes() == earlier


def work_of_this_thread():
    """What the kernel has counted: bytes read and written, and how many calls that took."""
    lines = Path("/proc/thread-self/io").read_text().splitlines()
    return np.array([int(line.split()[1]) for line in lines[:4]])


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/thread-self/io").exists(), reason="needs Linux's /proc/thread-self/io"
)
def test_an_evaluation_costs_the_same_however_many_there_are(tmp_path):
    """Nothing that was written before is read or written again, so only the digits differ."""
    writer = Writer(tmp_path / "run", MANIFEST)
    work = []
    for number in range(1, 501):
        frame = pd.DataFrame({"round": [number], **EVALUATION})
        before = work_of_this_thread()
        writer.evaluation(frame)
        work.append(work_of_this_thread() - before)
    bytes_read, bytes_written, reads, writes = work[499] - work[4]
    # The number stands twice in the line. What is read is the kernel's own account.
    assert bytes_written == 2 * (len("500") - len("5"))
    assert abs(bytes_read) < 20 and reads == writes == 0


FLIPS_BETWEEN = 5  # with 1, every byte: all are found, in some seconds more
PART = "rollouts/000001.parquet"
FLIPPED = ["manifest.json", "journal.jsonl", PART, "checkpoint/state.safetensors"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FLIPPED)
def test_whatever_bit_is_flipped_the_file_is_named(name, tmp_path):
    path = write(tmp_path / "run", rounds=1)
    writer = Writer(path, MANIFEST)
    content = (path / name).read_bytes()
    for position in range(0, len(content), FLIPS_BETWEEN):
        flipped = bytes([content[position] ^ 1 << position % 8])
        (path / name).write_bytes(content[:position] + flipped + content[position + 1 :])
        with pytest.raises(RecordError, match=name.split("/")[-1]) as error:
            wb.load(path, strict=True).rollouts()
            writer.restore()
        assert str(error.value).isprintable()


@pytest.mark.parametrize(
    "kind, changes, message",
    [
        ("row", {"round": 2}, "its rounds are not 1, 2, 3 and so on"),
        ("row", {"seconds": "x"}, "column 'seconds' is of type"),
        ("row", {"rollouts": [1]}, "column 'rollouts' is of type"),
        ("columns", {"samples": ["x"]}, "column 'samples' is of type"),
        ("columns", {"round": [0.5]}, "column 'round' is of type"),
        ("columns", {"greedy": [None]}, "column 'greedy' has gaps"),
        ("columns", {"correct": [1, 2]}, "journal.jsonl: cannot be read"),
    ],
)
def test_a_journal_with_another_content_is_named(kind, changes, message, tmp_path):
    """Its checksums fit, as those of a stranger's record may."""
    path = write(tmp_path / "run", 1)

    def changed(entry):
        entry.get(kind, {}).update(changes)
        return entry

    written_records.sign(path, changed)
    with pytest.raises(RecordError, match=message) as error:
        _ = wb.load(path, strict=True).rounds, wb.load(path, strict=True).evals
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    "entry",
    [
        {"row": 5, "rollouts": ""},
        {"row": {"round": "1"}, "rollouts": ""},
        {"row": {"round": 1}},
        {"evaluation": "1", "columns": {}},
        {"evaluation": 1, "columns": []},
        {"manifest": 5},
        {"keep": "x"},
    ],
)
def test_a_line_that_is_of_no_kind_counts_as_changed_though_its_checksum_fits(entry, tmp_path):
    path = write(tmp_path / "run", 1) / "journal.jsonl"
    first = path.read_bytes().splitlines(keepends=True)[0]
    body = json.dumps(entry)[:-1]
    total = hashlib.sha256((json.loads(first)["sha256"] + body).encode()).hexdigest()
    path.write_bytes(first + f'{body}, "sha256": "{total}"}}\n'.encode())
    with pytest.raises(RecordError, match="line 2 was changed"):
        wb.load(tmp_path / "run", strict=True)


def test_numbers_of_numpy_are_recorded_like_those_of_python(tmp_path):
    row = {"round": np.int64(1), "seconds": np.float32(0.5), "flops": 1.0, "warnings": np.str_("")}
    Writer(tmp_path, MANIFEST).round(row, {"round": [1]})
    assert wb.load(tmp_path).rounds.to_dict("records") == [
        {"round": 1, "seconds": 0.5, "flops": 1.0, "warnings": ""}
    ]


def test_a_column_of_rollouts_of_another_type_is_named(tmp_path):
    path = write(tmp_path / "run", 2)
    for column in ("text", "status", "reward"):
        frame = wb.load(path).rollouts([2]).assign(**{column: [[1]] * 4})
        frame.to_parquet(path / "rollouts" / "000002.parquet")
        written_records.sign(path)
        with pytest.raises(RecordError, match=f"000002.parquet: .*column '{column}' is of type"):
            wb.load(path, strict=True).rollouts()


@pytest.mark.parametrize("name", ["manifest.json", "journal.jsonl", "rollouts/000001.parquet"])
def test_a_file_that_is_too_large_is_not_opened(name, tmp_path):
    path = write(tmp_path / "run", 1)
    os.truncate(path / name, 2**32 + 1)  # zeros that take no place on the disk
    with pytest.raises(RecordError, match=f"{name}: .*larger than 4 GiB"):
        wb.load(path, strict=True).rollouts()


def test_what_was_spent_at_an_evaluation_is_that_of_the_rounds_before(tmp_path):
    written_records.write(tmp_path, scores=((0, 0.25), (1, 0.5), (2, 0.75)), rollouts=(10, 30))
    table = wb.load(tmp_path / "a/seed-0").accuracy()
    assert table["accuracy"].tolist() == [0.25, 0.5, 0.75]
    assert table["seconds"].tolist() == [0, 1, 2]
    assert table["rollouts"].tolist() == [0, 10, 40]
    assert table["flops"].tolist() == [0, 20, 80]


def test_a_record_is_read_again_only_when_a_file_has_changed(tmp_path, monkeypatch):
    write(tmp_path)
    record = wb.load(tmp_path)
    assert len(record.rounds) == 4

    def never(*arguments):
        raise AssertionError("a file that has not changed was read again")

    with monkeypatch.context() as unchanged:
        unchanged.setattr("workbench.records.journal.Directory.__init__", never)
        assert len(record.rounds) == 4
        assert len(record.evals)
        assert record.manifest["seed"] == 0
    Writer(tmp_path, MANIFEST).truncate(3)
    assert len(record.rounds) == 3


def test_what_a_reader_changes_is_his_own(tmp_path):
    write(tmp_path)
    record = wb.load(tmp_path)
    before = record.rounds["reward"].tolist()
    for _ in range(2):  # the first time it comes from the disk
        mine = record.rounds
        mine["reward"] = 7.0
        mine.loc[0, "round"] = 70
        mine.drop(columns="seconds", inplace=True)
        assert record.rounds["reward"].tolist() == before
        assert record.rounds["round"].tolist() == [1, 2, 3, 4]
        assert "seconds" in record.rounds
    record.manifest["seed"] = 7
    assert record.manifest["seed"] == 0


@pytest.mark.parametrize("how", ["gone", "garbage"])
def test_a_journal_that_is_damaged_later_is_noticed(how, tmp_path):
    write(tmp_path)
    record = wb.load(tmp_path, strict=True)
    assert len(record.rounds) == 4
    if how == "gone":
        (tmp_path / "journal.jsonl").unlink()
    else:
        (tmp_path / "journal.jsonl").write_bytes(b"{}\n")
    with pytest.raises(RecordError, match=r"journal\.jsonl"):
        record.rounds  # noqa: B018


@pytest.mark.parametrize("how", ["empty", "half", "no end", "text"])
def test_a_damaged_checkpoint_says_what_to_do(how, tmp_path):
    writer = Writer(write(tmp_path / "run"), MANIFEST)
    tensors, state = writer.restore()
    assert tensors["weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["half"].dtype == torch.bfloat16
    assert state == {"round": 4}

    damage(tmp_path / "run" / "checkpoint" / "state.safetensors", how)
    message = r"state\.safetensors: damaged .*cannot go on without it: put a copy back"
    with pytest.raises(RecordError, match=message) as error:
        writer.restore()
    assert "\n" not in str(error.value)
    assert len(wb.load(tmp_path / "run").rounds) == 4


def test_one_flipped_bit_in_the_weights_is_noticed(tmp_path):
    writer = Writer(write(tmp_path / "run"), MANIFEST)
    target = tmp_path / "run" / "checkpoint" / "state.safetensors"
    content = bytearray(target.read_bytes())
    content[-1] ^= 1  # data, whose bits safetensors does not look at
    target.write_bytes(content)
    with pytest.raises(RecordError, match="its checksum does not fit"):
        writer.restore()


@pytest.mark.parametrize(
    "metadata",
    [
        {"state": "[" * 200_000, "crc32": "0"},
        {"state": "{}"},
        {"state": "5", "crc32": "%"},
        {"state": '{"round": null}', "crc32": "%"},
        {"state": '{"round": "\\ud800"}', "crc32": "%"},
    ],
)
def test_a_checkpoint_whose_state_is_no_state_is_named(metadata, tmp_path):
    from safetensors.torch import save_file

    writer = Writer(write(tmp_path / "run"), MANIFEST)
    if metadata.get("crc32") == "%":
        metadata["crc32"] = checkpoints.checksum({}, metadata["state"])
    save_file({}, tmp_path / "run" / "checkpoint" / "state.safetensors", metadata=metadata)
    with pytest.raises(RecordError, match=r"state\.safetensors: (damaged|this checkpoint)"):
        writer.restore()


def test_columns_that_no_part_has_are_an_error_of_the_caller(tmp_path):
    record = wb.load(write(tmp_path / "run", 2))
    writer = Writer(tmp_path / "run", MANIFEST)
    writer.round({"round": 3}, {"round": [3], "score": [0.5]})
    assert record.rollouts(columns=["round", "score"])["score"].isna().sum() == 8
    assert list(record.rollouts([3], columns=["score"])) == ["score"]
    with pytest.raises(ValueError, match="no rollouts have 'scores'"):
        record.rollouts(columns=["round", "scores"])


# Missing and foreign parts


def test_missing_parts_are_named_and_the_rest_stays_readable(tmp_path):
    record = wb.load(write(tmp_path / "run"))
    (tmp_path / "run" / "rollouts" / "000002.parquet").unlink()
    with pytest.warns(RecordWarning, match=r"rollouts: 000002\.parquet: missing"):
        assert len(record.rollouts()) == 12
    with pytest.raises(RecordError, match=r"000002\.parquet: missing"):
        wb.load(tmp_path / "run", strict=True).rollouts()

    shutil.rmtree(tmp_path / "run" / "rollouts")
    message = r"000001\.parquet, 000002\.parquet, 000003\.parquet and 1 more: missing"
    with pytest.warns(RecordWarning, match=message) as caught:
        assert record.rollouts().empty
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(record.rounds) == 4
        assert len(record.evals) == 3


def test_a_part_in_the_place_of_another_is_named(tmp_path):
    """Of another round, and of the same round of another run."""
    path = write(tmp_path / "run")
    other = Writer(tmp_path / "other", MANIFEST)
    for number in (1, 2):
        row, columns = round_of(number)
        other.round(row, columns | {"reward": np.zeros(4)})
    for folder, number in ((path, 3), (other.path, 2)):
        source = folder / "rollouts" / f"00000{number}.parquet"
        shutil.copy(source, path / "rollouts" / "000002.parquet")
        with pytest.warns(RecordWarning, match=r"000002\.parquet: .*a part of another run"):
            rollouts = wb.load(path).rollouts()
        assert rollouts["round"].value_counts().to_dict() == {1: 4, 3: 4, 4: 4}


def test_the_rollouts_of_a_round_that_never_ended_are_not_read(tmp_path):
    path = write(tmp_path / "run")
    part = pd.read_parquet(path / "rollouts" / "000004.parquet").assign(round=5)
    part.to_parquet(path / "rollouts" / "000005.parquet")  # what a killed process leaves
    rounds, rollouts, _ = read_all(path)
    assert len(rounds) == 4
    assert rollouts["round"].max() == 4


STRANGE_NAMES = ["000002 (1).parquet", "._000002.parquet", "0000002.parquet", "٠٠٠٠٠٢.parquet"]


@pytest.mark.slow
def test_files_of_other_names_are_neither_read_nor_removed(lab, tmp_path):
    go(wb.Run(lab, wb.methods.grpo(n=2), out=tmp_path / "whole", **SMALL), 3)
    go(wb.Run(lab, wb.methods.grpo(n=2), out=tmp_path / "run", **SMALL), 2)
    parts = tmp_path / "run" / "rollouts"
    for name in STRANGE_NAMES:
        (parts / name).write_bytes((parts / "000002.parquet").read_bytes())
    (parts / "000009.parquet.writing").write_text("half")
    # safetensors writes a whole checkpoint to such a file before it gets its name.
    (tmp_path / "run/checkpoint/.tmpAb3dEf").write_text("half")
    (tmp_path / "run/checkpoint/.tmp-mine").write_text("mine")
    (parts / "thesis.writing").write_text("precious")
    (tmp_path / "run" / "notes.md").write_text("mine")

    assert len(read_all(tmp_path / "run")[1]) == 8
    go(wb.Run.resume(tmp_path / "run"), 3)
    same_record(wb.load(tmp_path / "whole"), wb.load(tmp_path / "run"))
    left = {path.name for path in parts.iterdir()}
    assert left == {"000001.parquet", "000002.parquet", "000003.parquet", "thesis.writing"} | set(
        STRANGE_NAMES
    )
    assert (tmp_path / "run" / "notes.md").read_text() == "mine"
    left = {path.name for path in (tmp_path / "run" / "checkpoint").iterdir()}
    assert left == {"state.safetensors", ".tmp-mine"}


@pytest.mark.parametrize(
    "name",
    [
        "rollouts",
        "checkpoint",
        "tensorboard",
        "lock.json",
        "journal.jsonl",
        "manifest.json.writing",
        "rollouts/000001.parquet",
        "rollouts/000003.parquet.writing",
        "checkpoint/state.safetensors",
        "failed-000003.parquet.writing",
    ],
)
def test_nothing_is_written_through_links_out_of_the_directory(name, tmp_path):
    record = write(tmp_path / "run")
    part = record / name
    elsewhere = tmp_path / "elsewhere"
    target = elsewhere / "target"
    elsewhere.mkdir()
    if part.exists():
        shutil.move(part, target)
    elif name == "tensorboard":
        target.mkdir()
    else:
        target.write_text("precious")
    part.symlink_to(target)
    before = snapshot(elsewhere)

    for job in (
        lambda: Writer(record, MANIFEST),
        lambda: RecordLock(record).__enter__(),
        lambda: wb.records.pack(record),
    ):
        with pytest.raises(RecordError, match=f"{part}: .*is a link"):
            job()
    assert snapshot(elsewhere) == before


def test_a_resumed_run_does_not_follow_links_out_of_its_directory(lab, tmp_path):
    go(wb.Run(lab, wb.methods.grpo(n=2), out=tmp_path / "run", **SMALL), 2)
    shutil.move(tmp_path / "run" / "rollouts", tmp_path / "elsewhere")
    (tmp_path / "run" / "rollouts").symlink_to(tmp_path / "elsewhere")
    before = snapshot(tmp_path / "elsewhere")
    with pytest.raises(RecordError, match="rollouts: it is a link"):
        go(wb.Run.resume(tmp_path / "run"), 4)
    assert snapshot(tmp_path / "elsewhere") == before


def test_the_directory_itself_may_be_reached_through_a_link(lab, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    go(wb.Run(lab, wb.methods.grpo(n=2), out=tmp_path / "runs" / "a", **SMALL), 1)
    assert len(wb.load(tmp_path / "disk" / "a").rounds) == 1


@pytest.mark.parametrize("name", ["manifest.json", "journal.jsonl", "rollouts/000001.parquet"])
def test_a_pipe_in_the_place_of_a_file_makes_nobody_wait(name, tmp_path):
    path = write(tmp_path / "run") / name
    path.unlink()
    os.mkfifo(path)
    message = "no record here|it is a link"
    with pytest.raises(RecordError, match=message):
        record = wb.load(tmp_path / "run", strict=True)
        _ = record.rounds, record.rollouts()


@pytest.mark.parametrize("how", ["pipe", "hard link", "link"])
def test_a_checkpoint_is_an_ordinary_file_with_one_name(how, tmp_path):
    path = tmp_path / "answers.safetensors"
    if how == "pipe":
        os.mkfifo(path)
    else:
        checkpoints.save(tmp_path / "mine", {}, {})
        (os.symlink if how == "link" else os.link)(tmp_path / "mine", path)
    # What records may name, adapters read and a run goes on from are all read by this function.
    with pytest.raises(OSError, match="it is a link"):
        checkpoints.load(path)
    with pytest.raises(OSError, match=f"path='{path}'"):
        wb.replay.Experience(path=str(path))


@pytest.mark.parametrize("name", ["lock.json", "journal.jsonl", "checkpoint/state.safetensors"])
def test_nothing_is_written_through_a_second_name_of_a_file(name, tmp_path):
    """A hard link, which looks like any other file."""
    record = write(tmp_path / "run")
    victim = tmp_path / "victim"
    (record / "lock.json").touch()
    (record / name).rename(victim)
    os.link(victim, record / name)
    before = victim.read_bytes()
    for job in (lambda: Writer(record, MANIFEST), lambda: RecordLock(record).__enter__()):
        with pytest.raises(RecordError, match=f"{name}: it is a link or has a second name"):
            job()
    assert victim.read_bytes() == before


# Formats


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "manifest.json: cannot be read: Expecting property name"),
        ("[]", "cannot be read: a JSON object is needed, not \\[\\]"),
        ("{}", "cannot be read: `format` is missing"),
        (
            json.dumps({**MANIFEST, "format": 9, "versions": {"workbench": "9.1"}}),
            r"format 9, written by .*'9\.1'.*; this is workbench .*, which reads format 3: use the "
            "version that wrote it",
        ),
        (json.dumps({**MANIFEST, "format": 2}), "format 2"),
        (json.dumps({**MANIFEST, "format": 0}), "format 0"),
    ],
)
def test_a_record_of_another_format_says_so_in_one_line(content, message, tmp_path):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(RecordError, match=message) as error:
        wb.load(tmp_path)
    assert "\n" not in str(error.value)


# The lock


HOLDER = """
    import sys, time
    from workbench.records.locks import RecordLock
    with RecordLock({path!r}):
        print("held", flush=True)
        time.sleep(600)
"""


@pytest.mark.slow
def test_a_second_process_is_refused_by_name_and_a_killed_one_blocks_nobody(tmp_path):
    code = textwrap.dedent(HOLDER.format(path=str(tmp_path)))
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    name = f"process {holder.pid} on {os.uname().nodename}"
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RecordError, match=rf"{name} \(since .*\) writes this record"):
            RecordLock(tmp_path).__enter__()
    finally:
        holder.kill()
        holder.communicate()
    with RecordLock(tmp_path) as lock:
        assert lock.taken_over
        assert json.loads((tmp_path / "lock.json").read_text())["pid"] == os.getpid()


def test_one_process_may_hold_it_once_and_knows_when_others_held_it_meanwhile(tmp_path):
    mine = RecordLock(tmp_path)
    other = RecordLock(tmp_path)
    with mine, pytest.raises(RecordError, match=f"process {os.getpid()} on .*this very process"):
        other.__enter__()
    with mine:
        assert not mine.taken_over
    with other:
        assert other.taken_over
    with mine:
        assert mine.taken_over


@pytest.mark.slow
def test_a_forked_child_does_not_keep_the_lock_of_a_parent_that_is_gone(tmp_path):
    code = HOLDER.replace('print("held", flush=True)', "import os; pid = os.fork(); print(pid)")
    code = textwrap.dedent(code.format(path=str(tmp_path))).replace("print(pid)", SAY_PID)
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(holder.stdout.readline())
    try:
        holder.kill()
        holder.wait()
        assert os.path.exists(f"/proc/{child}") or sys.platform != "linux"
        with RecordLock(tmp_path):
            pass
    finally:
        os.kill(child, 9)


# The child says it, so that it has done by then what it does right after the fork.
SAY_PID = "pid or print(os.getpid(), flush=True)"


@pytest.mark.parametrize(
    "content",
    ["", "half a {", "[1]", "[" * 100_000, '{"pid": "\\u001b[31m", "host": 1, "since": 2}'],
)
def test_an_unreadable_lock_file_locks_all_the_same(content, tmp_path):
    (tmp_path / "lock.json").write_text(content)
    with RecordLock(tmp_path):
        (tmp_path / "lock.json").write_text(content)
        with pytest.raises(RecordError, match=r"process.* writes this record") as error:
            RecordLock(tmp_path).__enter__()
        assert str(error.value).isprintable()


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    message = "has no locks .No locks available.; make sure that only one process"
    with pytest.warns(RecordWarning, match=message), RecordLock(tmp_path) as lock:
        lock.check()


def test_a_second_run_on_a_record_is_refused_before_its_model_is_loaded(lab, tmp_path):
    def unloadable():
        raise AssertionError("a model was loaded")

    method = wb.methods.grpo(n=2)
    rounds = wb.Run(lab, method, out=tmp_path, **SMALL).rounds(3, progress=False)
    next(rounds)
    same = replace(lab, make_policy=unloadable).described(lab.config)
    second = wb.Run(same, method, out=tmp_path, **SMALL)
    message = f"process {os.getpid()} on .* writes this record; wait for it or end it"
    with pytest.raises(RecordError, match=message):
        go(second, 3)
    assert [row["round"] for row in rounds] == [2, 3], "the first is not disturbed"


@pytest.mark.slow
def test_a_loop_that_was_left_does_not_block_the_next_loop_of_the_same_run(lab, tmp_path):
    go(wb.Run(lab, wb.methods.grpo(n=2), out=tmp_path / "whole", **SMALL), 4)
    run = wb.Run(lab, wb.methods.grpo(n=2), out=tmp_path / "left", **SMALL)
    first = run.rounds(4, progress=False)
    for row in first:
        if row["round"] == 1:
            break
    assert [row["round"] for row in run.rounds(4, progress=False)] == [2, 3, 4]
    assert list(first) == []
    same_record(wb.load(tmp_path / "whole"), wb.load(tmp_path / "left"))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_run_whose_lock_file_was_deleted_stops_before_it_writes(how, lab, tmp_path):
    method = wb.methods.grpo(n=2)
    go(wb.Run(lab, method, out=tmp_path / "whole", **SMALL), 4)
    path = tmp_path / "both"
    first = wb.Run(lab, method, out=path, **SMALL).rounds(4, progress=False)
    next(first)
    (path / "lock.json").unlink()
    if how == "replaced":
        (path / "lock.json").write_text("{}")

    second = wb.Run(lab, method, out=path, **SMALL).rounds(4, progress=False)
    next(second)  # nobody can tell it that the first still runs
    with pytest.raises(RecordError, match=r"lock\.json: the file was deleted or replaced while"):
        next(first)
    assert [row["round"] for row in second] == [2, 3, 4], "the second is not disturbed"
    same_record(wb.load(tmp_path / "whole"), wb.load(path))
    assert same_weights(tmp_path / "whole", path)


@pytest.mark.slow
def test_a_run_that_another_took_over_goes_on_from_what_that_left(lab, tmp_path):
    method = wb.methods.grpo(n=2)
    go(wb.Run(lab, method, out=tmp_path / "whole", **SMALL), 4)
    first, second = (wb.Run(lab, method, out=tmp_path / "both", **SMALL) for _ in range(2))
    for run, n in ((first, 1), (second, 3), (first, 4)):
        go(run, n)
    same_record(wb.load(tmp_path / "whole"), wb.load(tmp_path / "both"))
    assert same_weights(tmp_path / "whole", tmp_path / "both")


# The checkpoint


@pytest.mark.slow
def test_a_damaged_checkpoint_stops_a_resume_in_one_line_and_harms_nothing(lab, tmp_path):
    go(wb.Run(lab, wb.methods.grpo(n=2), out=tmp_path, **SMALL), 2)
    target = tmp_path / "checkpoint" / "state.safetensors"
    kept = target.read_bytes()
    target.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    run = wb.Run.resume(tmp_path)
    message = r"state\.safetensors: damaged .*: put a copy back, or start again"
    with pytest.raises(RecordError, match=message):
        go(run, 3)
    assert len(wb.load(tmp_path).rounds) == 2

    target.write_bytes(kept)
    (tmp_path / "journal.jsonl").rename(tmp_path / "elsewhere")
    with pytest.raises(RecordError, match=r"journal\.jsonl: missing"):
        go(run, 3)
    (tmp_path / "elsewhere").rename(tmp_path / "journal.jsonl")
    assert len(go(run, 3)) == 1


@pytest.mark.slow
def test_a_resume_names_the_parts_that_it_goes_on_without(lab, tmp_path):
    go(wb.Run(lab, wb.methods.grpo(n=2), out=tmp_path, **SMALL), 2)
    (tmp_path / "rollouts" / "000001.parquet").unlink()
    with pytest.warns(RecordWarning, match="the run goes on without it") as caught:
        assert len(go(wb.Run.resume(tmp_path), 3)) == 1
    texts = [str(warning.message) for warning in caught]
    assert any("000001.parquet: missing" in text for text in texts)


@pytest.mark.slow
def test_a_checkpoint_of_another_run_is_refused(lab, tmp_path):
    """The seed alone differs, so names and shapes fit."""
    for seed in (0, 1):
        run = wb.Run(lab, wb.methods.grpo(n=2), seed=seed, out=tmp_path / str(seed), **SMALL)
        go(run, 2)
    own = (tmp_path / "0" / "checkpoint" / "state.safetensors").read_bytes()
    shutil.copy(tmp_path / "1" / "checkpoint" / "state.safetensors", tmp_path / "0" / "checkpoint")
    with pytest.raises(RecordError, match=r"state\.safetensors: this checkpoint is of another run"):
        go(wb.Run.resume(tmp_path / "0"), 3)
    assert len(wb.load(tmp_path / "0").rounds) == 2
    (tmp_path / "0" / "checkpoint" / "state.safetensors").write_bytes(own)
    assert len(go(wb.Run.resume(tmp_path / "0"), 3)) == 1


@pytest.mark.slow
def test_a_checkpoint_of_other_weights_is_refused(lab, tmp_path):
    go(wb.Run(lab, wb.methods.grpo(n=2), out=tmp_path, **SMALL), 2)
    target = tmp_path / "checkpoint" / "state.safetensors"
    tensors, state = checkpoints.load(target)
    shorter = {name: value[:1] if value.ndim else value for name, value in tensors.items()}
    checkpoints.save(target, shorter, state)
    message = r"not of this lab and method .*shape.*; pass those that the run began"
    with pytest.raises(ValueError, match=message):
        go(wb.Run(lab, wb.methods.grpo(n=2), out=tmp_path, **SMALL), 3)


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="the memory map of a process is read from /proc"
)
def test_a_resumed_run_does_not_keep_the_old_checkpoint_in_memory(lab, tmp_path):
    method = wb.methods.ar3po(k=2)  # optimizer and replay both hold what was read
    go(wb.Run(lab, method, out=tmp_path, **SMALL), 2)
    run = wb.Run.resume(tmp_path)
    rounds = run.rounds(4, progress=False)
    next(rounds)
    gc.collect()
    with open("/proc/self/maps") as maps:
        mapped = [line for line in maps if str(tmp_path) in line]
    assert mapped == []


# Numbers that must not depend on a resume


def test_the_bytes_of_stored_responses_do_not_depend_on_a_resume():
    """Ids of different lengths: NumPy makes a column as wide as the longest it once held."""
    seen = Rollouts(
        problem=["short", "a-problem-with-a-much-longer-name"],
        text=["7", "8"],
        answer=["7", "9"],
        status=["ok", "unparsed"],
        correct=[True, False],
        round=[1, 1],
    )
    replay = CorrectResponses()
    replay.feedback(seen, Context(round=1))
    resumed = CorrectResponses()
    resumed.load_state_dict(json_and_back(replay.state_dict()))
    assert resumed.metrics() == replay.metrics()
    assert replay.metrics()["replay_stored"] == 1
    assert replay.metrics()["replay_bytes"] < 200


def json_and_back(state):
    tensors = {}
    packed = checkpoints.split_arrays("slot", state, tensors)
    return checkpoints.join_arrays(json.loads(json.dumps(packed)), tensors)


# A reader beside the writer


WRITER = """
    import sys; sys.path.insert(0, {tests!r})
    from test_records import write
    from workbench.records.locks import RecordLock
    with RecordLock({path!r}):
        write({path!r}, 60)
"""


@pytest.mark.long
def test_a_reader_beside_the_writer_never_sees_half_a_row_and_never_waits(tmp_path):
    path = tmp_path / "run"
    code = textwrap.dedent(WRITER.format(tests=os.path.dirname(__file__), path=str(path)))
    writer = subprocess.Popen([sys.executable, "-c", code])
    reads = 0
    seen = 0
    while writer.poll() is None:
        if not (path / "manifest.json").exists():
            time.sleep(0.01)
            continue
        rounds, rollouts, evals = read_all(path)
        assert rounds["round"].tolist() == list(range(1, len(rounds) + 1))
        assert not rounds.isna().any(axis=None)
        assert len(rounds) >= seen
        assert len(rollouts) % 4 == 0
        assert len(rollouts) >= 4 * len(rounds)
        assert len(evals) >= len(rounds) // 2
        reads += 0 < len(rounds) < 60
        seen = len(rounds)
    assert writer.returncode == 0
    assert reads >= 3
    assert len(wb.load(path).rounds) == 60


def test_a_reader_beside_a_run_that_resumes_sees_no_damage(tmp_path, monkeypatch):
    """Between any two steps in which a resumed run removes rounds, the record is whole."""
    path = write(tmp_path / "run", 6)
    writer = Writer(path, MANIFEST)
    looks = []

    def looking(name):
        function = getattr(os, name)

        def wrapped(*arguments, **options):
            looks.append(name)
            read_all(path)
            result = function(*arguments, **options)
            read_all(path)
            return result

        monkeypatch.setattr(os, name, wrapped)

    looking("ftruncate")
    looking("unlink")
    writer.truncate(3)
    writer.truncate(0)
    writer.truncate(-1)
    assert looks == ["ftruncate", *["unlink"] * 3] * 2 + ["ftruncate"]
    assert len(read_all(path)[0]) == 0


# Disks


@pytest.fixture
def disk(tmp_path):
    """A file system of 12 MiB that can be filled and made read-only."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root on Linux")
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", path]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    yield path
    # A failed test may still hold files open.
    subprocess.run(["umount", "--lazy", path], check=True)


def fill(disk):
    """Leaves not a byte."""
    free = os.statvfs(disk)
    (disk / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize))


def test_a_full_disk_names_what_could_not_be_written(disk):
    path = write(disk / "run")
    writer = Writer(path, MANIFEST)
    before = snapshot(path)
    fill(disk)
    full = ".*[Nn]o space left.*; rounds 1 to 4 are kept"
    with pytest.raises(RecordError, match=f"cannot write round 5: {full}"):
        writer.round(*round_of(5))
    with pytest.raises(RecordError, match=f"cannot write the checkpoint: {full}"):
        writer.checkpoint({"weight": torch.zeros(10_000)}, {"round": 4})
    with pytest.raises(RecordError, match=f"cannot write an evaluation: {full}"):
        # Large enough to need another block of the disk.
        writer.evaluation(pd.concat([pd.DataFrame({"round": [4], **EVALUATION})] * 999))
    with pytest.raises(RecordError, match=r"lock\.json: cannot be written: No space left"):
        RecordLock(path).__enter__()
    (disk / "filler").unlink()
    (path / "lock.json").unlink()
    assert snapshot(path) == before
    writer.round(*round_of(5))
    assert len(read_all(path)[0]) == 5


def test_a_disk_that_turns_read_only_loses_nothing_and_stays_readable(disk):
    path = write(disk / "run")
    writer = Writer(path, MANIFEST)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    for job in (
        lambda: writer.round(*round_of(5)),
        lambda: writer.truncate(2),
        lambda: writer.checkpoint({"weight": torch.zeros(2)}, {"round": 4}),
    ):
        with pytest.raises(RecordError, match="Read-only file system; rounds 1 to 4 are kept"):
            job()
    with pytest.raises(RecordError, match=r"lock\.json: cannot be written: Read-only file system"):
        RecordLock(path).__enter__()
    rounds, rollouts, _ = read_all(path)
    assert len(rounds) == 4
    assert len(rollouts) == 16
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    writer.round(*round_of(5))
    assert len(read_all(path)[0]) == 5


def test_only_for_directories_may_a_file_system_refuse_to_sync(tmp_path, monkeypatch):
    path = write(tmp_path / "run", 1)

    def failing(at_directories, number):
        def fsync(descriptor):
            if stat.S_ISDIR(os.fstat(descriptor).st_mode) == at_directories:
                raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)

    failing(True, errno.EINVAL)
    writer = Writer(path, MANIFEST)
    writer.round(*round_of(2))
    for at_directories, number in ((True, errno.EIO), (False, errno.EINVAL)):
        failing(at_directories, number)
        with pytest.raises(RecordError, match="cannot write round 3"):
            writer.round(*round_of(3))
    monkeypatch.undo()
    assert len(read_all(path)[0]) == 2


def test_a_method_whose_name_cannot_be_shown_is_refused_before_a_model_is_loaded(tmp_path):
    lab = replace(small_lab(), make_policy=lambda: pytest.fail("a model was loaded"))
    for name in ("\x1b[2J", "two\nlines", "half \ud800"):
        with pytest.raises(ValueError, match=r"cannot be shown|one line"):
            wb.Run(lab, wb.methods.grpo().but(name=name), out=tmp_path, **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_at_the_start_is_named(tmp_path):
    (tmp_path / "new/journal.jsonl.writing").mkdir(parents=True)
    with pytest.raises(RecordError, match="cannot write the manifest"):
        Writer(tmp_path / "new", MANIFEST)
    path = write(tmp_path / "run")
    (path / "rollouts/000009.parquet.writing").mkdir()
    with pytest.raises(RecordError, match="cannot write the record"):
        Writer(path, MANIFEST)
