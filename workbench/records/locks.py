"""One writer a record: a lock that ends with the process that holds it.

The lock is flock(2) on the record's `lock.json`, by the package filelock; the file names the
holder. The kernel drops the lock when the process ends, however it ends: a crashed run blocks
nobody, and nothing has to be deleted. Reading a record takes no lock and waits for none.

Covered: processes and threads of one machine, two `Run` objects of one process, and machines that
share a file system with locks (NFS among Linux machines). Somebody who deletes or replaces the file
lets a second writer in; the first one notices at its next write, and stops.

Not covered: a file system without locks (some network and FUSE mounts). A warning says so, and the
run goes on unprotected.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import uuid
import warnings
from datetime import UTC, datetime
from os.path import samestat
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from workbench.records import files
from workbench.records.files import RecordError, RecordWarning, read_ordinary
from workbench.utils.validation import brief, cause_of

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


class RecordLock:
    """The right to write the record in a directory, held within a `with` block.

    Attributes
    ----------
    taken_over : bool
        Whether another holder may have written since this object last held the lock; True the first
        time.
    rounds : int, optional
        Rounds that the holder is going to make in all, which the file tells; see `rounds_wanted`.

    Raises
    ------
    RecordError
        On entering, when another holder has the lock (the message names it), or when the directory
        cannot be written to.
    """

    def __init__(self, directory: Any) -> None:
        self.path = Path(directory) / files.LOCK
        self.taken_over = True
        self.rounds: int | None = None
        # It tells this object from another one of the same process, which has the same process id.
        self._id = uuid.uuid4().hex
        self._lock: FileLock | None = None
        self._status: os.stat_result | None = None  # of the locked file; None without locks
        self._process: int | None = None  # the one that holds the lock

    def __enter__(self) -> RecordLock:
        lock = FileLock(
            self.path,
            blocking=False,
            # The generator that holds the lock may be closed by another thread than the one that
            # began it.
            thread_local=False,
            # Without these two, filelock would fall back to a file whose presence is the lock. Such
            # a lock outlives a killed process.
            fallback_to_soft=False,
            preserve_lock_file=True,
            on_acquired=self._sign,
        )
        # Before the file is opened, since a link would be followed.
        files.refuse_links(self.path.parent)
        try:
            files.make_directory(self.path.parent)
            lock.acquire()
        except Timeout:
            raise RecordError(
                f"{self.path.parent}: {self._holder()} writes this record; wait for it or end it, "
                "or name another directory"
            ) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise RecordError(f"{self.path}: cannot be written: {cause_of(error)}") from None
            warnings.warn(
                f"{self.path}: the file system has no locks ({cause_of(error)}); make sure that "
                "only one process at a time writes this record",
                RecordWarning,
                stacklevel=4,
            )
        self._lock = lock
        self._process = os.getpid()
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._lock is not None
        self._lock.release()
        self._lock = None
        self._status = None

    def check(self) -> None:
        """Raise RecordError when what is locked is not this process's lock on this directory.

        A process that was forked from the holder has a copy of this object and not the right to
        write. And where somebody deleted or replaced the locked file, another process may hold a
        lock on a new file of the same name.
        """
        if self._process != os.getpid():
            raise RecordError(
                f"{self.path.parent}: process {self._process} writes this record, and this process "
                "was forked from it; name another directory"
            )
        try:
            is_locked = self._status is None or samestat(self._status, os.lstat(self.path))
        except OSError:
            is_locked = False
        if not is_locked:
            raise RecordError(
                f"{self.path}: the file was deleted or replaced while this run was writing, so "
                "another process may write this record now; end that one, and run again"
            )

    def _sign(self, descriptor: int) -> None:
        """Write into the locked file who holds it."""
        # If the file still names this object, nobody has written to the record in between, and what
        # the caller holds in memory is as good as the disk. A forked process has a copy of the
        # object, but a number of its own.
        last = _content(self.path)
        self.taken_over = (last.get("id"), last.get("pid")) != (self._id, os.getpid())
        now = datetime.now(UTC).isoformat(timespec="seconds")
        holder = {"pid": os.getpid(), "host": platform.node(), "since": now, "id": self._id}
        # Who does not train, as in packing, leaves the number that was wanted as it is.
        rounds = last.get("rounds") if self.rounds is None else self.rounds
        if rounds is not None:
            holder["rounds"] = rounds
        # The file is written in place: a renamed file would be another one than the file that is
        # locked.
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode() + b"\n", 0)
        self._status = os.fstat(descriptor)

    def _holder(self) -> str:
        """Who holds the lock, as far as the file says it."""
        holder = _content(self.path)
        # Anybody may have written the file, so its entries are shown without control characters.
        pid, host, since = (brief(holder.get(name)).strip("'") for name in ("pid", "host", "since"))
        hint = ""
        if (pid, host) == (str(os.getpid()), platform.node()):
            hint = (
                "; this very process: a loop over `rounds` that was left before its end holds the "
                "record until its generator is closed or deleted"
            )
        return f"process {pid} on {host} (since {since}{hint})"


def rounds_wanted(directory: Path) -> int | None:
    """How many rounds the last holder of the lock was asked for; None where nobody knows."""
    rounds = _content(directory / files.LOCK).get("rounds")
    return rounds if isinstance(rounds, int) and rounds > 0 else None


def _content(path: Path) -> dict[str, Any]:
    """What the file of a lock says; empty when it says nothing yet, or nothing that can be read."""
    try:
        holder = json.loads(read_ordinary(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}
