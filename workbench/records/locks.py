"""One writer a record: a lock that ends with the process that holds it.

flock(2) on the record's `lock.json`, which names the holder. The kernel drops the lock when the process ends, however it
ends: a crashed run blocks nobody, and nothing has to be deleted. Reading a record takes no lock and waits for none.

Covered: processes and threads of one machine, two `Run` objects of one process, and machines that share a file system
with locks (NFS among Linux machines). Not covered: a file system without locks (some network and FUSE mounts): a warning
says so, and the run goes on unprotected. A child that the holder forks without exec shares the lock until it ends too.
"""

import errno
import fcntl
import json
import os
import platform
import uuid
import warnings
from datetime import UTC, datetime
from pathlib import Path

from workbench.records.record import LOCK, RecordError, RecordWarning

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


class RecordLock:
    """The right to write the record in a directory, held within a `with` block.

    taken_over: whether another holder may have written since this object last held it; True the first time.
    RecordError when another holder has it (the message names it), or when the directory cannot be written to.
    """

    def __init__(self, directory):
        self.path = Path(directory) / LOCK
        self.taken_over, self._id, self._file = True, uuid.uuid4().hex, None

    def __enter__(self):
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
        except OSError as error:
            raise RecordError(f"{self.path}: cannot be written: {error.strerror}") from None
        try:
            self._lock(file)
            self.taken_over = _holder(file).get("id") != self._id
            self._sign(file)
        except BaseException:
            file.close()
            raise
        self._file = file
        return self

    def __exit__(self, *exception):
        self._file.close()  # which ends the lock

    def _lock(self, file):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecordError(
                f"{self.path.parent}: {_named(_holder(file))} writes this record; wait for it or end it, or name "
                "another directory"
            ) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise RecordError(f"{self.path}: cannot be locked: {error.strerror}") from None
            warnings.warn(
                f"{self.path}: the file system has no locks ({error.strerror}); see to it that one process at a time "
                "writes this record",
                RecordWarning,
                stacklevel=6,
            )

    def _sign(self, file):
        """Writes who holds the lock."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        holder = {"pid": os.getpid(), "host": platform.node(), "since": now, "id": self._id}
        try:
            file.truncate(0)
            file.seek(0)
            file.write(json.dumps(holder).encode() + b"\n")
        except OSError as error:
            raise RecordError(f"{self.path}: cannot be written: {error.strerror}") from None


def _holder(file):
    """What the lock file says of its holder; empty when it says nothing yet."""
    try:
        file.seek(0)
        holder = json.load(file)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _named(holder):
    if not holder:
        return "another process"
    pid, host = holder.get("pid"), holder.get("host")
    here = ", this very process" if (pid, host) == (os.getpid(), platform.node()) else ""
    return f"process {pid} on {host} (since {holder.get('since')}{here})"
