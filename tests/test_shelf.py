"""Finished runs are packed onto a shelf, read as before, and never lost or mixed up."""

import hashlib
import json
import os
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import small_lab
from test_records import EVALUATION, MANIFEST, SMALL, go, round_of, snapshot, write

import workbench as wb
from workbench.problems import Problem
from workbench.records import RecordError, RecordWarning, Writer, pack
from workbench.records.locks import RecordLock
from workbench.records.packing import _are_equal
from workbench.records.tables import content_of


def frames(path):
    """Everything that a record says: the manifest and the tables, also of single rounds."""
    record = wb.load(path, strict=True)
    numbers = record.rounds_with_rollouts()
    parts = [record.rollouts([number]) for number in numbers]
    tables = [record.rounds, record.evals, record.rollouts(), record.accuracy(), *parts]
    return record.manifest, numbers, tables


def same(before, after):
    assert before[:2] == after[:2]
    for a, b in zip(before[2], after[2], strict=True):
        # In the table of all runs, those with floats make floats of the whole numbers of others.
        pd.testing.assert_frame_equal(a, b, check_exact=True, check_like=True, check_dtype=False)


@pytest.fixture
def folder(tmp_path):
    """Two runs of one label and one deeper, with columns and types of their own."""
    write(tmp_path / "a/seed-0")
    write(tmp_path / "a/seed-1", 2, seed=1)
    writer = Writer(tmp_path / "deep/er/b", MANIFEST)
    for number in (1, 2, 3):
        row, columns = round_of(number)
        row |= {"rollouts": 4.5, "score": float("nan"), "zero": -0.0}
        more = {"score": np.array([0.5, np.nan, -0.0, 1])} if number == 2 else {}
        writer.round(row, columns | more)
    return tmp_path


NAMES = ["a/seed-0", "a/seed-1", "deep/er/b"]


def test_numbers_of_many_digits_are_packed_with_their_bytes_apart():
    rng = np.random.default_rng(0)
    many = np.round(1 + rng.random(4000) / 100, 6)
    few = rng.choice([0.25, 0.5, np.nan], 4000)
    lists = pa.array([list(range(number % 4)) for number in range(4000)])
    table = pa.table({"many": many, "few": few, "number": np.arange(4000) // 9, "lists": lists})
    packed = content_of(table, level=19)
    assert len(packed) < 0.9 * len(content_of(table))
    file = pq.ParquetFile(pa.BufferReader(packed))
    columns = [file.metadata.row_group(0).column(place) for place in range(4)]
    apart = ["BYTE_STREAM_SPLIT" in column.encodings for column in columns]
    listed = ["RLE_DICTIONARY" in column.encodings for column in columns]
    assert apart == [True, False, False, False]
    assert listed == [False, True, True, True], "those inside of lists as well"
    pd.testing.assert_frame_equal(file.read().to_pandas(), table.to_pandas())


@pytest.mark.slow
def test_packed_runs_are_read_as_before_by_the_same_paths(folder):
    before = {name: frames(folder / name) for name in NAMES}
    labels = {label: len(group) for label, group in wb.load_all(folder).items()}
    record = wb.load(folder / "a/seed-0")
    assert not record.is_packed
    assert pack(folder) == NAMES
    assert record.is_packed and len(record.rounds) == 4, "also by an object from before"
    files = sorted(path.name.partition("-")[0] for path in folder.rglob("*"))
    assert files == ["evals", "rollouts", "rounds", "shelf.json"]
    for name in NAMES:
        same(before[name], frames(folder / name))
        assert wb.load(folder / name).problems() == []
    assert {label: len(group) for label, group in wb.load_all(folder).items()} == labels
    assert [record.path for record in wb.load_all(folder / "a")["a"]] == [
        folder / "a/seed-0",
        folder / "a/seed-1",
    ]
    assert not wb.records.exists(folder / "a/seed-2")
    with pytest.raises(RecordError, match="no record here"):
        wb.load(folder / "a")
    with pytest.raises(ValueError, match="no rollouts have 'prize'"):
        wb.load(folder / "a/seed-0").rollouts(columns=["prize"])

    few = wb.load(folder / "a/seed-0").rollouts([2], columns=["round", "problem"])
    assert list(few) == ["round", "problem"] and few["round"].tolist() == [2] * 4

    # New runs join those that are there, and so do shelves below.
    write(folder / "c/seed-0", 1, seed=2)
    pack(folder / "c")
    before["c/seed-0"] = frames(folder / "c/seed-0")
    assert pack(folder) == ["a/seed-0", "a/seed-1", "c/seed-0", "deep/er/b"]
    assert len(list(folder.iterdir())) == 4
    for name, expected in before.items():
        same(expected, frames(folder / name))


def test_runs_with_columns_of_their_own_share_one_reading(folder, monkeypatch):
    """Tables of different kinds in turn, too, as comparisons read them."""
    pack(folder)
    read = []
    read_table = pq.ParquetFile.read

    def counted(file, columns):
        read.append(columns)
        return read_table(file, columns)

    monkeypatch.setattr(pq.ParquetFile, "read", counted)
    for name in NAMES:
        record = wb.load(folder / name)
        assert len(record.rounds) and "round" in record.evals
    assert len(read) == 2


@pytest.mark.slow
def test_a_packed_run_does_not_go_on(tmp_path):
    lab = small_lab(pool=8, held_out=2, samples=1)
    method = wb.methods.grpo(n=2)
    go(wb.Run(lab, method, out=tmp_path / "a", **SMALL), 2)
    pack(tmp_path)
    before = snapshot(tmp_path)
    for again in (
        lambda: wb.Run.resume(tmp_path / "a"),
        lambda: wb.Run(lab, method, out=tmp_path / "a", **SMALL),
        lambda: Writer(tmp_path / "a", MANIFEST),
    ):
        with pytest.raises(ValueError, match="packed and finished"):
            again()
    assert snapshot(tmp_path) == before
    go(wb.Run(lab, method, out=tmp_path / "b", **SMALL), 1)


def test_columns_of_the_rollouts_can_be_left_out(tmp_path):
    """Of one run in its own directory; packed again it can only become smaller."""
    path = write(tmp_path / "run")
    rounds, evals, whole = frames(path)[2][:3]
    pack(path, ("problem", "round", "score"))
    record = wb.load(path, strict=True)
    pd.testing.assert_frame_equal(record.rollouts(), whole[["problem", "round"]])
    pd.testing.assert_frame_equal(record.rounds, rounds)
    pd.testing.assert_frame_equal(record.evals, evals)
    mark = {"columns": ["problem", "round", "score"], "rounds": None}
    assert record.manifest["thinned"] == mark
    assert record.rounds_with_rollouts() == [1, 2, 3, 4]
    pack(path, ("round", "reward"))
    assert wb.load(path).manifest["thinned"] == {"columns": ["round"], "rounds": None}
    pack(path)
    assert len(wb.load(path).rollouts()) == 16
    pack(path, columns=())
    assert wb.load(path, strict=True).rollouts().empty
    assert wb.load(path).manifest["thinned"] == {"columns": [], "rounds": None}


def test_columns_of_the_evaluations_can_be_left_out(tmp_path):
    writer = Writer(tmp_path / "run", MANIFEST)
    count = len(EVALUATION["problem"])
    lengths = {"length": np.arange(count) + 0.5, "level": np.arange(count)}
    writer.evaluation(pd.DataFrame({"round": [0] * count, **EVALUATION, **lengths}))
    writer.round(*round_of(1))
    rounds, evals, rollouts = frames(tmp_path / "run")[2][:3]
    pack(tmp_path, evals=("level",))
    record = wb.load(tmp_path / "run", strict=True)
    pd.testing.assert_frame_equal(record.evals, evals.drop(columns="length"))
    pd.testing.assert_frame_equal(record.rounds, rounds)
    pd.testing.assert_frame_equal(record.rollouts(), rollouts)
    pack(tmp_path)
    assert "length" not in wb.load(tmp_path / "run").evals


def test_a_packing_that_was_stopped_before_it_removed_a_run_is_completed(tmp_path):
    path = write(tmp_path / "run")
    shutil.copytree(path, tmp_path / "before")
    pack(path, columns=("round",))
    expected = frames(path)
    shutil.copytree(tmp_path / "before", path, dirs_exist_ok=True)
    assert not wb.load(path).is_packed
    assert pack(path, columns=("round",)) == ["."]
    same(expected, frames(path))
    assert len(list(path.iterdir())) == 4


def test_columns_of_one_name_that_no_type_holds_are_named(tmp_path):
    for name, value in {"a": True, "b": 0.5}.items():
        row, columns = round_of(1)
        Writer(tmp_path / name, MANIFEST).round({**row, "own": value}, columns)
    with pytest.raises(RecordError, match="own"):
        pack(tmp_path)
    assert wb.load(tmp_path / "a").rounds["own"].tolist() == [True]


def test_a_part_of_a_shelf_is_not_packed_by_itself(folder):
    pack(folder)
    with pytest.raises(ValueError, match="folder="):
        pack(folder / "a")
    assert len(list(folder.iterdir())) == 4


@pytest.mark.slow
def test_old_responses_stay_in_the_round_that_they_joined(tmp_path):
    lab = small_lab(pool=8, held_out=2, samples=1)
    method = wb.methods.cbs(scope="buffer", n=2).adjust("selector", warmup=1)
    go(wb.Run(lab, method, out=tmp_path / "a", **SMALL), 4)
    before = frames(tmp_path / "a")
    assert any((part["round"] < number).any() for number, part in zip(before[1], before[2][4:]))
    pack(tmp_path)
    same(before, frames(tmp_path / "a"))


def test_what_is_not_of_the_run_stays(folder):
    (folder / "a/seed-0/notes.md").write_text("mine")
    (folder / "a/seed-0/failed-000005.parquet").write_text("rollouts that stopped a round")
    (folder / "a/seed-0/tensorboard").mkdir()
    pack(folder)
    left = {path.name for path in (folder / "a/seed-0").iterdir()}
    assert left == {"notes.md", "failed-000005.parquet", "tensorboard"}
    assert len(wb.load(folder / "a/seed-0").rounds) == 4


def test_nothing_is_removed_where_something_is_wrong(folder):
    part = folder / "a/seed-1/rollouts/000002.parquet"
    content = part.read_bytes()
    part.write_bytes(content[:-1])
    before = snapshot(folder)
    with pytest.raises(RecordError, match=r"000002\.parquet"):
        pack(folder)
    part.write_bytes(content)
    with RecordLock(folder / "a/seed-0"), pytest.raises(RecordError, match="writes this record"):
        pack(folder)
    assert {path for path in before if path.name != "lock.json"} <= set(snapshot(folder))
    shutil.copytree(folder / "a/seed-0", folder / "kept")
    pack(folder / "a")
    shutil.move(folder / "kept", folder / "a/seed-1")
    with pytest.raises(RecordError, match="another run of this name"):
        pack(folder)
    with pytest.raises(ValueError, match="folder="):
        pack(folder / "nowhere")


@pytest.mark.parametrize("how", ["not finished", "lost end", "damaged", "edited"])
@pytest.mark.slow
def test_a_run_that_is_not_finished_or_not_whole_is_refused_and_not_touched(how, tmp_path):
    lab = small_lab(pool=8, held_out=2, samples=1)
    path = tmp_path / "runs/b"
    write(tmp_path / "runs/a")
    rounds = wb.Run(lab, wb.methods.grpo(n=2), out=path, **SMALL).rounds(4, progress=False)
    for _ in range(3 if how == "not finished" else 4):
        next(rounds)
    rounds.close()
    if how == "lost end":
        lines = (path / "journal.jsonl").read_bytes().splitlines(keepends=True)
        (path / "journal.jsonl").write_bytes(b"".join(lines[:-3]))
        (path / "lock.json").unlink()
    elif how == "damaged":
        (path / "rollouts/000001.parquet").write_bytes(b"")
    elif how == "edited":
        text = (path / "manifest.json").read_text()
        (path / "manifest.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    before = snapshot(tmp_path)
    for folder in (tmp_path / "runs", path):
        with pytest.raises(RecordError, match=str(path)):
            pack(folder)
    assert snapshot(tmp_path) == before
    if how == "not finished":
        list(wb.Run.resume(path).rounds(3, progress=False))
        assert pack(tmp_path) == ["runs/a", "runs/b"]


def test_tables_are_compared_by_their_values():
    table = pa.table({"a": [0.5, float("nan")], "b": [[0.5], [1.5]], "c": [1, None]})
    floats = table.set_column(2, "c", pa.array([1.0, None]))
    for same_values in (pa.concat_tables([table.slice(0, 1), table.slice(1)]), floats):
        assert _are_equal(table, same_values)
    assert _are_equal(table, table.select(["b", "a", "c"]))
    for other in (
        table.slice(1),
        table.select(["a", "b"]),
        table.set_column(0, "a", pa.array([0.5, 0.5])),
        table.set_column(0, "a", pa.array([0.5000001, float("nan")])),
        table.set_column(1, "b", pa.array([[0.5], [2.5]])),
        table.set_column(2, "c", pa.array([2, None])),
    ):
        assert not _are_equal(table, other)


# A shelf of a stranger


@pytest.mark.long
@pytest.mark.parametrize("kind", ["shelf", "rounds", "evals", "rollouts"])
def test_whatever_bit_is_flipped_the_file_is_named(kind, tmp_path):
    write(tmp_path / "a", 1)
    pack(tmp_path)
    [path] = tmp_path.glob(f"{kind}*")
    content = path.read_bytes()
    frames(tmp_path / "a")  # what was found to be whole is looked at again when it has changed
    for position in range(0, len(content), 7):
        flipped = bytes([content[position] ^ 1 << position % 8])
        path.write_bytes(content[:position] + flipped + content[position + 1 :])
        with pytest.raises(RecordError, match=path.name) as error:
            frames(tmp_path / "a")
        assert str(error.value).isprintable()
    path.write_bytes(content)
    frames(tmp_path / "a")


def test_questions_that_are_damaged_are_not_left_out_in_silence(tmp_path):
    writer = Writer(tmp_path / "a", MANIFEST)
    row, columns = round_of(1)
    problems = [Problem(name, "1+1=", "2", 1) for name in ("a", "b")]
    writer.round(row, columns | {"text": np.array(["2"] * 4)}, problems)
    pack(tmp_path)
    assert wb.load(tmp_path / "a").rollouts()["gold"].tolist() == ["2"] * 4
    [path] = tmp_path.glob("problems*")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RecordError, match=path.name):
        wb.load(tmp_path / "a", strict=True).rollouts()
    with pytest.warns(RecordWarning, match=path.name):
        assert "gold" not in wb.load(tmp_path / "a").rollouts()


@pytest.mark.parametrize("how", ["missing", "link", "hard link", "pipe", "of another shelf"])
def test_a_table_that_is_no_file_of_the_shelf_is_named(how, tmp_path):
    write(tmp_path / "one/a", 1)
    write(tmp_path / "two/a", 2)
    pack(tmp_path / "one")
    pack(tmp_path / "two")
    [path] = (tmp_path / "one").glob("rounds-*")
    [other] = (tmp_path / "two").glob("rounds-*")
    path.unlink()
    if how == "link":
        path.symlink_to(other)
    elif how == "hard link":
        os.link(other, path)
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "of another shelf":
        shutil.copy(other, path)
    with pytest.raises(RecordError, match=path.name):
        frames(tmp_path / "one/a")
    with pytest.warns(wb.records.RecordWarning, match=path.name):
        assert wb.load(tmp_path / "one/a").rounds.empty
    assert len(wb.load(tmp_path / "one/a").rollouts()) == 4


def rewritten(folder, change):
    """Change a shelf's index, with a digest that fits."""
    index = json.loads((folder / "shelf.json").read_text())
    del index["sha256"]
    change(index)
    rest = json.dumps(index)[1:].encode()
    first = b'{"sha256": "%s",\n' % hashlib.sha256(rest).hexdigest().encode()
    (folder / "shelf.json").write_bytes(first + rest)


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.update(format=3),
        lambda index: index.pop("runs"),
        lambda index: index["tables"]["rounds"].update(file="../rounds-0123456789abcdef.parquet"),
        lambda index: index["tables"]["rounds"].update(file="/etc/passwd"),
        lambda index: index["tables"]["rounds"].update(sha256="0" * 64),
        lambda index: index["tables"].update(other={"file": "x", "sha256": ""}),
        *[
            lambda index, name=name: index["runs"].update({name: index["runs"]["a"]})
            for name in ("../b", "b/../../c", "/b", "b//c", "", "..", "b/", "\x1b[2J")
        ],
        lambda index: index["runs"].update(b=[]),
        lambda index: index["runs"]["a"].update(manifest=3),
        lambda index: index["runs"]["a"]["manifest"].update(seed=-1),
    ],
)
def test_a_shelf_that_says_what_cannot_be_is_refused_by_its_name(change, tmp_path):
    write(tmp_path / "a", 1)
    pack(tmp_path)
    rewritten(tmp_path, change)
    with pytest.raises(RecordError, match=str(tmp_path)) as error:
        frames(tmp_path / "a")
    assert str(error.value).isprintable()


@pytest.mark.slow
def test_a_shelf_of_the_first_format_is_read_and_packed_again(tmp_path):
    """The recorded runs have it: more entries, which say where the rows of a run are."""
    shutil.copytree(wb.labs.shipped("runs") / "tiny-grpo", tmp_path / "old")
    assert json.loads((tmp_path / "old/shelf.json").read_text())["format"] == 1
    paths = wb.records.record_paths(tmp_path / "old")
    before = {path: frames(path) for path in paths}
    pack(tmp_path / "old")
    assert json.loads((tmp_path / "old/shelf.json").read_text())["format"] == 2
    assert len(list((tmp_path / "old").iterdir())) == 4
    for path in paths:
        same(before[path], frames(path))


def test_an_evaluation_of_another_run_is_not_read(tmp_path):
    """A later evaluation joins the run whose journal it is in, and no other."""
    for seed in (0, 1):
        write(tmp_path / str(seed), 1, seed=seed)
    writer = Writer(tmp_path / "0", MANIFEST)
    writer.evaluation(pd.DataFrame({"round": [1], **EVALUATION}))
    pack(tmp_path)
    assert wb.load(tmp_path / "0").evals["round"].tolist() == [0, 1]
    assert wb.load(tmp_path / "1").evals["round"].tolist() == [0]
