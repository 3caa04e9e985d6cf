"""The journal of a run: a line for its manifest, for every round and for every evaluation.

Lines are only ever added at the end, so that recording a round costs as much after 20,000 rounds as
after 20. Each is a JSON object that ends with a checksum of itself and of the line before it. What
was changed, lost or put in from another run is therefore found, and the line is named. A process
that is killed leaves at most a last line without an end, which nobody reads.

    {"manifest": DIGEST, "sha256": ...}                      of manifest.json
    {"row": {"round": 1, ...}, "rollouts": DIGEST, ...}      of rollouts/000001.parquet
    {"evaluation": 20, "columns": {"problem": [...], ...}, ...}
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from workbench.records.files import check_ordinary, replacing
from workbench.records.tables import checked

LAST_ENTRY = b', "sha256": "'


class Line(NamedTuple):
    """One line of a journal."""

    entry: dict[str, Any]
    sum: str  # its checksum, which the next line's depends on
    end: int  # bytes from the beginning of the file to the end of the line


@dataclass
class Journal:
    """What a journal says, up to the first line that is damaged.

    Attributes
    ----------
    lines : list of Line
    damage : str or None
        Which line is damaged.
    """

    lines: list[Line] = field(default_factory=list)
    damage: str | None = None

    @property
    def manifest(self) -> str | None:
        """The digest of the manifest that the run began with."""
        return self.lines[0].entry.get("manifest") if self.lines else None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table of rounds."""
        return [line.entry["row"] for line in self.lines if "row" in line.entry]

    @property
    def parts(self) -> dict[int, str]:
        """Round -> the digest of the file with its rollouts."""
        entries = [line.entry for line in self.lines if "row" in line.entry]
        return {entry["row"]["round"]: entry["rollouts"] for entry in entries}

    def rounds(self) -> pa.Table:
        """The table of rounds; a column that a round lacks is empty in its row."""
        rows = self.rows
        names = list(dict.fromkeys(name for row in rows for name in row))
        table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
        return checked(table, "rounds") if rows else table

    def evals(self) -> pa.Table:
        """The table of evaluations."""
        tables = [
            checked(pa.table(line.entry["columns"]), "evals")
            for line in self.lines
            if "evaluation" in line.entry
        ]
        return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def read(path: Path) -> Journal:
    """Read a journal; what follows the first damaged line is left out.

    Raises
    ------
    OSError
        Where there is none, or it is not an ordinary file.
    """
    check_ordinary(path)
    *complete, last = path.read_bytes().split(b"\n")
    journal = Journal()
    before, end = "", 0
    for number, text in enumerate(complete, 1):
        line = _parsed(text, before, end + len(text) + 1)
        if line is None:
            journal.damage = f"line {number} was changed; it is read up to there"
            return journal
        journal.lines.append(line)
        before, end = line.sum, line.end
    # A line without an end is what a killed process was writing, unless all of it is there and only
    # its end was changed.
    if _parsed(last[:-1], before, end) is not None:
        journal.damage = f"line {len(complete) + 1} was changed; it is read up to there"
    return journal


def begin(path: Path, manifest_digest: str) -> None:
    """Write a new journal, which holds the digest of the manifest."""
    text, _ = _written({"manifest": manifest_digest}, None)
    with replacing(path) as temporary:
        temporary.write_bytes(text)


def append(path: Path, entry: Mapping[str, Any], before: Line) -> Line:
    """Add a line after the line `before`; whatever follows that one is removed.

    The new line is on the disk when this returns. When it cannot be written, it is not there.
    """
    text, line = _written(entry, before)
    with _opened(path) as descriptor:
        os.ftruncate(descriptor, before.end)
        os.lseek(descriptor, before.end, os.SEEK_SET)
        try:
            left = memoryview(text)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, before.end)
            raise
    return line


def cut(path: Path, last: Line) -> None:
    """Remove everything after a line."""
    with _opened(path) as descriptor:
        os.ftruncate(descriptor, last.end)
        os.fsync(descriptor)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The journal, open to be changed in its place."""
    check_ordinary(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _written(entry: Mapping[str, Any], before: Line | None) -> tuple[bytes, Line]:
    """An entry as text, and as the line that a reader makes of it."""
    body = json.dumps(entry).encode()[:-1]
    total = _sum(before.sum if before else "", body)
    text = body + LAST_ENTRY + total.encode() + b'"}\n'
    return text, Line(dict(entry), total, (before.end if before else 0) + len(text))


def _parsed(text: bytes, before: str, end: int) -> Line | None:
    """The line that a text holds, after a line with the sum `before`; None where it is damaged."""
    body, _, rest = text.rpartition(LAST_ENTRY)
    total = _sum(before, body)
    if rest != total.encode() + b'"}':
        return None
    try:
        entry = json.loads(body + b"}")
    except (ValueError, RecursionError):
        return None
    return Line(entry, total, end) if _is_entry(entry) else None


def _is_entry(entry: Any) -> bool:
    """Whether a line holds what one of the three kinds of lines holds."""
    if not isinstance(entry, dict):
        return False
    if "row" in entry:
        row = entry["row"]
        is_row = isinstance(row, dict) and isinstance(row.get("round"), int)
        return is_row and isinstance(entry.get("rollouts"), str)
    if "evaluation" in entry:
        return isinstance(entry["evaluation"], int) and isinstance(entry.get("columns"), dict)
    return isinstance(entry.get("manifest"), str)


def _sum(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()
