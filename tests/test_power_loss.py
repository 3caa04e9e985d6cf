"""A machine may lose its power at any moment: nothing that was told to be done is lost.

Every file operation is recorded. For each prefix of this list there are several states in which a
disk may be found, and from each of them a run must end like one that nobody disturbed, and the
packing of finished runs must leave every number readable:

    synced    only what was brought to the disk (fsync): content of files and names of directories
    names     all names, but only the content that was brought to the disk
    one name  of several changes of names in a directory that was not synced, any single one
    torn      a part of what was just added to a file

A process that is killed leaves the names and the content as they are, which is one of these, and
which `tests/soak.py` tries as well.
"""

import os
import shutil
import sys

import pandas as pd
import pytest
from conftest import small_lab
from test_records import EVALUATION, MANIFEST, round_of, same_record, same_weights, write

import workbench as wb
from workbench.records import Writer, pack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="inodes as Linux has them"),
]

ROUNDS = 3
SMALL = dict(problems_per_round=2, evaluate_every=2, checkpoint_every=2)
METHOD = wb.methods.ar3po(k=2)  # a method that learns, so that the slots' state is stored as well


class File:
    """A file, whatever its names are: the content that was brought to the disk."""

    def __init__(self):
        self.synced = b""


class Disk:
    """Follows the file operations below a directory, and what of them is safe.

    `states` collects (operation, state) for every state in which the disk might be found, where a
    state is a dict from path to content; None is a directory.
    """

    CALLS = (
        "fsync",
        "replace",
        "rename",
        "unlink",
        "remove",
        "mkdir",
        "rmdir",
        "write",
        "ftruncate",
    )

    def __init__(self, root, monkeypatch):
        self.root = root
        self.files = {}  # inode -> File
        self.synced_names = {root: self.names_in(root)}
        self.states = []
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self.recorded(name, getattr(os, name)))

    def recorded(self, name, function):
        def call(*arguments, **options):
            # Of a renaming the new name counts, since the file that had it is lost.
            place = 1 if name in ("replace", "rename") else 0
            concerned = self.concerned(arguments[place])
            if concerned and name in ("replace", "rename", "unlink", "remove"):
                self.forget(arguments[place])
            result = function(*arguments, **options)
            if concerned:
                if name == "fsync":
                    self.sync(arguments[0])
                if name in ("write", "ftruncate"):
                    self.note_torn(name, arguments[0])
                self.note(f"{name} {concerned}")
            return result

        return call

    def concerned(self, path):
        """A path or a descriptor relative to the root; None for what lies elsewhere."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        path = str(path)
        return os.path.relpath(path, self.root) if path.startswith(str(self.root)) else None

    def forget(self, path):
        """A name goes, and with it the file that had it: its inode may be used again."""
        if os.path.isfile(path):
            self.files.pop(os.stat(path).st_ino, None)

    def sync(self, descriptor):
        status = os.fstat(descriptor)
        path = self.root / os.readlink(f"/proc/self/fd/{descriptor}")
        if path.is_dir():
            self.synced_names[path] = self.names_in(path)
        else:
            self.files.setdefault(status.st_ino, File()).synced = path.read_bytes()

    def names_in(self, directory):
        """Name -> File of everything in a directory; None for directories."""
        names = {}
        for path in directory.iterdir():
            is_file = path.is_file()
            names[path.name] = (
                self.files.setdefault(path.stat().st_ino, File()) if is_file else None
            )
        return names

    def note(self, operation):
        """Collect the states in which the disk may be found after an operation."""
        now = {path: self.names_in(path) for path in [self.root, *self.directories(self.root)]}
        self.states.append((operation, "synced", self.state(self.synced_names)))
        self.states.append((operation, "names", self.state(now)))
        for directory, names in now.items():
            synced = self.synced_names.get(directory, {})
            changes = [
                name for name in names.keys() | synced.keys() if names.get(name) != synced.get(name)
            ]
            for name in changes if len(changes) > 1 else ():
                one = dict(synced)
                one.pop(name, None)
                if name in names:
                    one[name] = names[name]
                state = self.state({**self.synced_names, directory: one})
                self.states.append((operation, f"only the change of {name}", state))

    def note_torn(self, operation, descriptor):
        """Collect the states of a file that was changed and not brought to the disk yet."""
        file = self.files.setdefault(os.fstat(descriptor).st_ino, File())
        path = self.root / os.readlink(f"/proc/self/fd/{descriptor}")
        kept, now = file.synced, path.read_bytes()
        added = len(now) - len(kept)
        for content in (now, now[: len(kept) + added // 2], kept + bytes(max(0, added))):
            file.synced = content
            self.states.append((f"{operation} {path.name}", "torn", self.state(self.synced_names)))
        file.synced = kept

    @staticmethod
    def directories(root):
        return [path for path in root.rglob("*") if path.is_dir()]

    def state(self, names):
        """Path -> content, of everything that the names lead to from the root."""
        found = {}
        to_look_at = [self.root]
        while to_look_at:
            directory = to_look_at.pop()
            for name, file in names.get(directory, {}).items():
                path = directory / name
                found[str(path.relative_to(self.root))] = None if file is None else file.synced
                if file is None:
                    to_look_at.append(path)
        return found

    def different_states(self):
        """The states, each once."""
        found = {}
        for operation, kind, state in self.states:
            found.setdefault(tuple(sorted(state.items())), (operation, kind, state))
        return list(found.values())


def lay_down(state, root):
    """Make a directory that holds a state."""
    for name, content in sorted(state.items()):
        path = root / name
        if content is None:
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


# A run


@pytest.fixture(scope="module")
def lab():
    return small_lab(pool=4, held_out=2, samples=1)


@pytest.fixture(scope="module")
def whole(lab, tmp_path_factory):
    """The record of a run that nobody disturbs."""
    path = tmp_path_factory.mktemp("whole") / "run"
    list(wb.Run(lab, METHOD, out=path, **SMALL).rounds(ROUNDS, progress=False))
    return path


def check(state, number, folder, lab, whole, options=SMALL):
    """From a state of the disk the run ends as if nothing had happened."""
    operation, kind, files = state
    root = folder / str(number)
    root.mkdir()
    lay_down(files, root)
    try:
        if wb.records.exists(root / "run"):
            assert wb.load(root / "run", strict=True).problems() == []
        run = wb.Run(lab, METHOD, out=root / "run", **options)
        list(run.rounds(ROUNDS, progress=False))
        same_record(wb.load(whole), wb.load(root / "run", strict=True))
        assert same_weights(whole, root / "run")
    except Exception as error:
        raise AssertionError(f"after {operation}, {kind} on the disk") from error
    shutil.rmtree(root)


def rounds_on(state, folder):
    """The rounds that a state of the disk has."""
    lay_down(state, folder)
    record = wb.load(folder / "run", strict=True)
    assert record.problems() == []
    count = len(record.rounds)
    shutil.rmtree(folder)
    return count


@pytest.mark.long
@pytest.mark.filterwarnings("error::workbench.records.RecordWarning")
def test_a_run_goes_on_exactly_from_whatever_is_on_the_disk(lab, whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        (tmp_path / "disk").mkdir()
        disk = Disk(tmp_path / "disk", patch)
        run = wb.Run(lab, METHOD, out=tmp_path / "disk" / "run", **SMALL)
        rows = []
        for row in run.rounds(ROUNDS, progress=False):
            rows.append((row["round"], disk.state(disk.synced_names)))
    same_record(wb.load(whole), wb.load(tmp_path / "disk" / "run"))
    assert len(disk.states) > 80

    for number, state in rows:
        assert rounds_on(state, tmp_path / "safe") == number, "a round that was given out is safe"
    *_, (_, _, last) = disk.states
    there = {str(path.relative_to(disk.root)) for path in disk.root.rglob("*")}
    assert set(last) == there, "in the end everything is on the disk"

    # Training from all of them would take a minute. The next test goes through all of them with
    # the same calls of the writer, and rounds that cost nothing.
    states = disk.different_states()
    for number in range(0, len(states), len(states) // 3):
        check(states[number], number, tmp_path, lab, whole)


def written(path):
    """Make the rounds of a run by hand, or those that are missing, as `Run` does."""
    writer = Writer(path, MANIFEST)
    restored = writer.restore()
    first = restored[1]["round"] if restored else 0
    writer.truncate(first or -1)
    if not first:
        writer.evaluation(pd.DataFrame({"round": [0], **EVALUATION}))
    for number in range(first + 1, 6):
        writer.round(*round_of(number))
        if number % 2 == 0:
            writer.evaluation(pd.DataFrame({"round": [number], **EVALUATION}))
            writer.checkpoint({}, {"round": number})


@pytest.mark.long
@pytest.mark.filterwarnings("error::workbench.records.RecordWarning")
def test_a_record_is_whole_and_goes_on_from_whatever_is_on_the_disk(tmp_path, monkeypatch):
    """Also from what a second loss of power leaves, while the first one is being mended."""
    written(tmp_path / "whole")
    whole = wb.load(tmp_path / "whole")
    states = losses(lambda root: written(root / "run"), {}, tmp_path / "disk", monkeypatch)
    assert len(states) > 40
    # One of them, in which rounds after the checkpoint have to be removed.
    [late] = [state for *_, state in states if "run/rollouts/000005.parquet" in state][-1:]
    again = losses(lambda root: written(root / "run"), late, tmp_path / "again", monkeypatch)
    assert len(again) > 4
    for operation, kind, state in [*states, *again]:
        lay_down(state, tmp_path / "found")
        if (tmp_path / "found" / "run" / "manifest.json").exists():
            found = wb.load(tmp_path / "found" / "run", strict=True)
            assert found.problems() == [], (operation, kind)
        written(tmp_path / "found" / "run")
        same_record(whole, wb.load(tmp_path / "found" / "run", strict=True))
        shutil.rmtree(tmp_path / "found")


def losses(job, before, root, monkeypatch):
    """The states in which a disk may be found while `job` works on what was there before."""
    root.mkdir()
    lay_down(before, root)
    with monkeypatch.context() as patch:
        disk = Disk(root, patch)
        folders = [root, *disk.directories(root)]
        disk.synced_names = {folder: disk.names_in(folder) for folder in folders}
        for file in root.rglob("*"):
            if file.is_file():
                disk.files[file.stat().st_ino].synced = file.read_bytes()
        job(root)
    return disk.different_states()


# Packing


def files_in(root):
    """Path -> content of everything under a directory; None for directories."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


@pytest.mark.long
@pytest.mark.filterwarnings("error::workbench.records.RecordWarning")
def test_a_packing_loses_nothing_whatever_is_on_the_disk(tmp_path, monkeypatch):
    """Every run is read in full at every moment, and a second packing completes the first."""
    names = ["a/seed-0", "b"]
    write(tmp_path / "whole" / "a/seed-0", 2)
    pack(tmp_path / "whole" / "a")  # a shelf below
    write(tmp_path / "whole" / "b", 1, seed=1)
    expected = {name: contents(tmp_path / "whole" / name) for name in names}
    before = files_in(tmp_path / "whole")
    states = losses(pack, before, tmp_path / "disk", monkeypatch)
    assert len(states) > 20
    for operation, kind, state in states:
        found = tmp_path / "found"
        lay_down(state, found)
        for name in names:
            assert contents(found / name) == expected[name], (operation, kind)
        assert sorted(pack(found)) == names
        assert sorted(path.name.split("-")[0] for path in found.iterdir()) == [
            "evals",
            "rollouts",
            "rounds",
            "shelf.json",
        ]
        for name in names:
            assert contents(found / name) == expected[name], (operation, kind)
        shutil.rmtree(found)


def contents(path):
    """Everything that a record says, as text."""
    record = wb.load(path, strict=True)
    frames = (record.rounds, record.evals, record.rollouts())
    return str(record.manifest), [(str(f.dtypes), f.to_csv()) for f in frames]
