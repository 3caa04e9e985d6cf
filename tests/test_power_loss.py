"""A machine may lose its power at any moment: the run goes on exactly from what the disk then has.

Every file operation of a run is recorded. For each prefix of this list there are several states in
which a disk may be found, and from each of them the run must end like one that nobody disturbed:

    synced    only what was brought to the disk (fsync): content of files and names of directories
    names     all names, but only the content that was brought to the disk
    one name  of several changes of names in a directory that was not synced, any single one

A process that is killed leaves the names and the content as they are, which `tests/soak.py` tries.
"""

import os
import shutil
import sys

import pytest
from conftest import small_lab
from test_records import same_record, same_weights

import workbench as wb

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inodes as Linux has them")

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

    CALLS = ("fsync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir")

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


@pytest.fixture(scope="module")
def lab():
    return small_lab(pool=4, held_out=2, samples=1)


@pytest.fixture(scope="module")
def whole(lab, tmp_path_factory):
    """The record of a run that nobody disturbs."""
    path = tmp_path_factory.mktemp("whole") / "run"
    list(wb.Run(lab, METHOD, out=path, **SMALL).rounds(ROUNDS, progress=False))
    return path


def check_all(disk, lab, whole, folder):
    """From every state of the disk the run ends as if nothing had happened."""
    states = disk.different_states()
    for number, (operation, kind, state) in enumerate(states):
        root = folder / str(number)
        root.mkdir()
        lay_down(state, root)
        try:
            run = wb.Run(lab, METHOD, out=root / "run", **SMALL)
            list(run.rounds(ROUNDS, progress=False))
            same_record(wb.load(whole), wb.load(root / "run", strict=True))
            assert same_weights(whole, root / "run")
        except Exception as error:
            raise AssertionError(f"after {operation}, {kind} on the disk") from error
        shutil.rmtree(root)
    return len(states)


def rounds_on(state, folder):
    """The rounds that a state of the disk has."""
    lay_down(state, folder)
    count = len(wb.load(folder / "run", strict=True).rounds)
    assert len(wb.load(folder / "run", strict=True).rollouts()) > 0
    shutil.rmtree(folder)
    return count


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

    assert check_all(disk, lab, whole, tmp_path) > 25


@pytest.mark.filterwarnings("error::workbench.records.RecordWarning")
def test_a_resume_goes_on_exactly_from_whatever_is_on_the_disk(lab, whole, tmp_path, monkeypatch):
    """The first thing that a resumed run does is to remove what came after its checkpoint."""
    path = tmp_path / "disk" / "run"
    options = SMALL | {"checkpoint_every": 5}
    run = wb.Run(lab, METHOD, out=path, **options)
    rounds = run.rounds(ROUNDS, progress=False)
    next(rounds)
    next(rounds)
    state = {
        str(file.relative_to(path.parent)): file.read_bytes() if file.is_file() else None
        for file in path.parent.rglob("*")
    }
    rounds.close()
    shutil.rmtree(path.parent)
    lay_down(state, path.parent)  # as a killed process leaves it: two rounds and no checkpoint

    with monkeypatch.context() as patch:
        disk = Disk(path.parent, patch)
        disk.synced_names = {
            directory: disk.names_in(directory)
            for directory in [path.parent, *disk.directories(path.parent)]
        }
        for file in path.rglob("*"):
            if file.is_file():
                disk.files[file.stat().st_ino].synced = file.read_bytes()
        again = wb.Run(lab, METHOD, out=path, **options).rounds(1, progress=False)
        next(again)
    operations = [operation for operation, _, _ in disk.states]
    assert sum(operation.startswith("unlink run/rollouts/00000") for operation in operations) > 0

    whole_again = tmp_path / "whole"
    list(wb.Run(lab, METHOD, out=whole_again, **options).rounds(ROUNDS, progress=False))
    monkeypatch.setitem(SMALL, "checkpoint_every", 5)
    assert check_all(disk, lab, whole_again, tmp_path) > 5
