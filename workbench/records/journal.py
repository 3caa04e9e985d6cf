"""What a run has written in its own directory so far, and the journal that lists it.

The journal has a line for the run's manifest, for every round and for every evaluation. Lines are
only ever added at the end, so that recording a round costs as much after 20,000 rounds as after 20.
Each is a JSON object that ends with a checksum of itself and of the line before it. What was
changed, lost or put in from another run is therefore found, and the line is named. A process that
is killed leaves at most a last line without an end, which nobody reads.

    {"manifest": DIGEST, "sha256": ...}                      of manifest.json
    {"row": {"round": 1, ...}, "rollouts": DIGEST, ...}      of rollouts/000001.parquet
    {"evaluation": 20, "columns": {"problem": [...], ...}, ...}
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from workbench.records import files
from workbench.records.files import MissingPart, RecordError, read_ordinary, replacing
from workbench.records.manifest import read_manifest
from workbench.records.tables import checked, joined, read_part, reading

LAST_ENTRY = b', "sha256": "'


class Line(NamedTuple):
    """One line of a journal."""

    entry: dict[str, Any]
    kind: str  # "manifest", "row" or "evaluation"
    round: int  # the round that it belongs to; 0 for the manifest
    sum: str  # its checksum, which the next line's depends on
    end: int  # bytes from the beginning of the file to the end of the line


class Directory:
    """The record in a directory that a run writes, as of one moment.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    manifest : dict
    lines : list of Line
        The lines of the journal, up to the first one that is damaged.
    is_begun : bool
        Whether the journal began with this manifest. Without that no run can go on from it.
    problems : list of str
        What is wrong with the manifest and the journal.

    Raises
    ------
    FileNotFoundError
        Where there is no manifest.
    RecordError
        Where the manifest cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path)
        self.problems: list[str] = []
        self.lines: list[Line] = []
        self.is_begun = False
        file = path / files.JOURNAL
        try:
            with reading(file):
                self.lines, damage = _read(file)
        except RecordError as error:
            self.problems.append(str(error))
            return
        first = self.lines[0].entry if self.lines else {}
        self.is_begun = first.get("manifest") == files.file_digest(path / files.MANIFEST)
        if not self.is_begun:
            self.problems.append(
                f"{path / files.MANIFEST}: it is not the one that {files.JOURNAL} began with: it "
                "was edited, or one of them is of another run"
            )
        if damage:
            self.problems.append(f"{file}: {damage}")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table of rounds."""
        return [line.entry["row"] for line in self.lines if line.kind == "row"]

    def table(self, kind: str) -> pa.Table:
        """The table "rounds" or "evals", in which gaps are empty; RecordError where it is none."""
        with reading(self.path / files.JOURNAL):
            if kind == "evals":
                entries = [line.entry for line in self.lines if line.kind == "evaluation"]
                return joined([checked(pa.table(entry["columns"]), kind) for entry in entries])
            names = dict.fromkeys(name for row in self.rows for name in row)
            table = pa.table({name: [row.get(name) for row in self.rows] for name in names})
            return checked(table, kind) if names else table

    @property
    def parts(self) -> list[int]:
        """The rounds that have rollouts."""
        return [line.round for line in self.lines if line.kind == "row"]

    def rollouts(
        self, wanted: set[int] | None = None, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, list[str]]:
        """The rollouts of some rounds and what is wrong with them.

        The number of the round that recorded a row stands in the column `part`.
        """
        folder = self.path / files.ROLLOUTS
        tables = []
        missing = []
        problems = list(self.problems)
        for line in self.lines:
            if line.kind != "row" or not (wanted is None or line.round in wanted):
                continue
            path = files.rollout_part(self.path, line.round)
            try:
                tables.append(read_part(path, line.round, line.entry["rollouts"], columns))
            except MissingPart:
                missing.append(path.name)
            except RecordError as error:
                problems.append(str(error))
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            problems.append(f"{folder}: {', '.join(missing[:3])}{more}: missing")
        with reading(folder):
            return joined(tables), problems


def begin(path: Path, manifest_digest: str) -> Line:
    """Write a new journal, which holds the digest of the manifest."""
    text, line = _written({"manifest": manifest_digest}, None)
    with replacing(path) as temporary:
        temporary.write_bytes(text)
    return line


def append(path: Path, entry: Mapping[str, Any], before: Line) -> Line:
    """Add a line after the line `before`; whatever follows that one is removed.

    The new line is on the disk when this returns. When it cannot be written, it is not there.
    """
    text, line = _written(entry, before)
    cut(path, before, text)
    return line


def cut(path: Path, last: Line, text: bytes = b"") -> None:
    """Put a text in the place of everything after a line."""
    files.check_ordinary(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        os.ftruncate(descriptor, last.end)
        os.lseek(descriptor, last.end, os.SEEK_SET)
        left = memoryview(text)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, last.end)
        raise
    finally:
        os.close(descriptor)


def _read(path: Path) -> tuple[list[Line], str | None]:
    """The lines of a journal up to the first one that is damaged, and which one that is."""
    *complete, last = read_ordinary(path).split(b"\n")
    lines: list[Line] = []
    before = None
    for text in complete:
        before = _parsed(text, before)
        if before is None:
            break
        lines.append(before)
    # A line without an end is what a killed process was writing, unless all of it is there and only
    # its end was changed.
    if len(lines) < len(complete) or _parsed(last[:-1], before) is not None:
        return lines, f"line {len(lines) + 1} was changed; it is read up to there"
    return lines, None


def _written(entry: Mapping[str, Any], before: Line | None) -> tuple[bytes, Line]:
    """An entry as text, and as the line that a reader makes of it."""
    # Numbers of NumPy are written like those of Python.
    body = json.dumps(entry, default=np.generic.item).encode()[:-1]
    text = body + LAST_ENTRY + _sum(body, before).encode() + b'"}'
    line = _parsed(text, before)
    assert line is not None
    return text + b"\n", line


def _parsed(text: bytes, before: Line | None) -> Line | None:
    """The line that a text holds after the line `before`; None where it is damaged."""
    body, _, rest = text.rpartition(LAST_ENTRY)
    total = _sum(body, before)
    if rest != total.encode() + b'"}':
        return None
    end = (before.end if before else 0) + len(text) + 1
    try:
        entry = json.loads(body + b"}")
    except (ValueError, RecursionError):
        return None
    match entry:
        case {"row": {"round": int(number)}, "rollouts": str()} if len(entry) == 2:
            return Line(entry, "row", number, total, end)
        case {"evaluation": int(number), "columns": dict()} if len(entry) == 2:
            return Line(entry, "evaluation", number, total, end)
        case {"manifest": str()} if len(entry) == 1:
            return Line(entry, "manifest", 0, total, end)
    return None


def _sum(body: bytes, before: Line | None) -> str:
    return hashlib.sha256((before.sum if before else "").encode() + body).hexdigest()
