"""Files that are complete or not there, whatever happens while they are written.

A file is written beside its place, brought to the disk (fsync), renamed into its place, and then
the directory is brought to the disk as well. A reader therefore never meets half a file. A killed
process loses only the file that it was writing, and so does a machine that loses its power: what
this module wrote before is on the disk in the order in which it was written.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WRITING = ".writing"  # the end of the name of a file that is not complete yet
# What some network file systems answer when a directory is to be brought to the disk. There is
# nothing more that a program can do there.
NO_DIRECTORY_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
LARGEST = 2**36  # bytes of any file of a record


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


def check_ordinary(path: Path, largest: int = LARGEST) -> None:
    """OSError unless the path is an ordinary file with one name and at most `largest` bytes.

    A record may come from a stranger. Opening a pipe that lies in the place of a file could wait
    for ever, and a link could lead anywhere.
    """
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        raise OSError("it is a symbolic link")
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is not an ordinary file")
    if status.st_nlink > 1:
        raise OSError("it has a second name elsewhere (a hard link)")
    if status.st_size > largest:
        raise OSError(f"it is larger than {largest // 2**20} MiB")


def file_digest(path: Path) -> str:
    """SHA-256 of a whole file, as hex."""
    check_ordinary(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """What tells that a file has changed: time, size and inode; None where there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
