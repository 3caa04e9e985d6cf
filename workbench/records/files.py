"""The files of a record: how they are called, and how they are written whole or not at all.

A file is written beside its place, brought to the disk (fsync), renamed into its place, and then
the directory is brought to the disk as well. A reader therefore never meets half a file. A killed
process loses only the file that it was writing, and so does a machine that loses its power: what
this module wrote before is on the disk in the order in which it was written.

This is the one place that names files and folders. A file with any other name is never read,
counted, overwritten or deleted.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from workbench.utils.validation import LARGEST_FILE, cause_of

FORMAT = 3  # of the directory that a run writes

MANIFEST = "manifest.json"
JOURNAL = "journal.jsonl"
ROLLOUTS = "rollouts"  # a folder with one part a round
CHECKPOINTS = "checkpoint"  # a folder
CHECKPOINT = "state.safetensors"
LOCK = "lock.json"
TENSORBOARD = "tensorboard"  # a folder that belongs to TensorBoard
SHELF = "shelf.json"  # of a folder of packed runs
KINDS = ("rounds", "evals", "problems", "rollouts")  # the tables of a record

WRITING = ".writing"  # the end of the name of a file that is not complete yet
# What some network file systems answer when a directory is to be brought to the disk. There is
# nothing more that a program can do there.
NO_DIRECTORY_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}

# Folder -> pattern of the names in it. Rounds have six digits at least, and more where a run is
# longer than that, so that a round has one name only: 0000012 is none of round 12. A killed process
# may leave a file of safetensors, which writes beside the place of its file under another name.
_NAMES = {
    ".": rf"({MANIFEST}|{JOURNAL}|failed-\d{{6,}}\.parquet)({WRITING})?|{LOCK}|{ROLLOUTS}|"
    rf"{CHECKPOINTS}|{TENSORBOARD}",
    ROLLOUTS: rf"([0-9]{{6}}|[1-9][0-9]{{6,}})\.parquet({WRITING})?",
    CHECKPOINTS: rf"{CHECKPOINT}({WRITING})?|\.tmp\w{{6}}",
}
UNFINISHED = rf".*{WRITING}|\.tmp\w{{6}}"


class RecordError(OSError):
    """A record cannot be written or read. The message names the file and the cause."""


class MissingPart(RecordError, FileNotFoundError):
    """A file of a record is not there, or went while somebody was about to read it."""


class RecordWarning(UserWarning):
    """A part of a record is missing or damaged, or a run goes on under other conditions.

    The message names the part.
    """


# Writing


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, which takes its place when the block ends well.

    It is removed when the block does not end well.
    """
    temporary = path.with_name(path.name + WRITING)
    # Whatever lies there is removed rather than opened: it could be a link to another place.
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        sync(temporary)
        # The order matters: content first, then the name. After a loss of power a name could
        # otherwise stand for a file whose content never reached the disk.
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write(path: Path, content: bytes) -> None:
    """Write a file, complete or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def make_directory(path: Path) -> None:
    """Make a directory and those above it, and bring their names to the disk."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Bring a file's content, or the names of a directory's files, to the disk.

    Some file systems report a full disk only now.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_DIRECTORY_SYNC or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def check_ordinary(path: Path) -> None:
    """OSError unless the path is an ordinary file with one name.

    A record may come from a stranger. Opening a pipe that lies in the place of a file could wait
    for ever, and a link could lead anywhere.
    """
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise OSError("it is a link or has a second name, or is no file at all")


def read_ordinary(path: Path, digest: str | None = None) -> bytes:
    """The content of an ordinary file of at most `LARGEST_FILE` bytes; OSError for any other.

    Checkpoints are mapped instead, and may be as large as their models need.

    Where a digest is given, the content has to have it.
    """
    check_ordinary(path)
    if os.path.getsize(path) > LARGEST_FILE:
        raise OSError(f"it is larger than {LARGEST_FILE // 2**30} GiB")
    content = path.read_bytes()
    if digest not in (None, digest_of(content)):
        raise OSError("it was changed, or is a part of another run")
    return content


def digest_of(content: bytes) -> str:
    """SHA-256 of the content of a whole file, as hex."""
    return hashlib.sha256(content).hexdigest()


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """What tells that a file has changed: time, size and inode; None where there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


# What a run writes


def rollout_part(directory: Path, number: int) -> Path:
    """The file with the rollouts of round `number`."""
    return directory / ROLLOUTS / f"{number:06d}.parquet"


def failure_part(directory: Path, number: int) -> Path:
    """The file with the rollouts that stopped round `number`."""
    return directory / f"failed-{number:06d}.parquet"


def checkpoint_part(directory: Path) -> Path:
    """The file with the checkpoint."""
    return directory / CHECKPOINTS / CHECKPOINT


def rollout_parts(directory: Path) -> dict[int, Path]:
    """Round -> its file, for the rounds that have one, in order."""
    files = [path for path in own_files(directory, ROLLOUTS) if path.suffix == ".parquet"]
    return dict(sorted((int(path.stem), path) for path in files))


def unfinished_files(directory: Path) -> list[Path]:
    """What a killed process was writing in a record. Nothing in it is needed."""
    return unfinished(path for folder in _NAMES for path in own_files(directory, folder))


def unfinished(paths: Iterable[Path]) -> list[Path]:
    """Those of the files that a killed process was writing, by their names."""
    return [path for path in paths if re.fullmatch(UNFINISHED, path.name)]


def refuse_links(directory: Path) -> None:
    """Raise RecordError when a part of the record is a link, or no ordinary file or folder.

    A run that followed a symbolic link, or wrote to a file that has a second name elsewhere, would
    change what lies outside its directory. The directory itself may be reached through a link.
    """
    for folder in _NAMES:
        for path in own_files(directory, folder):
            try:
                if path.is_symlink() or not path.is_dir():
                    check_ordinary(path)
            except OSError as error:
                raise RecordError(
                    f"{path}: {cause_of(error)}, and a run writes inside its own directory only; "
                    "put the file or folder itself there, or name another directory"
                ) from None


def own_files(directory: Path, folder: str = ".") -> list[Path]:
    """The parts of the record in the directory itself (".") or in one of its folders."""
    place = directory / folder
    if not place.is_dir():
        return []
    return sorted(place / name for name in os.listdir(place) if re.fullmatch(_NAMES[folder], name))
