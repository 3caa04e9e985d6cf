"""The journal of a run, and the record in the directory that the run writes.

A journal has a line for the run's manifest, for every round and for every evaluation. Lines are
only ever added at the end, so that recording a round costs as much after 20,000 rounds as after 20.

    {"manifest": DIGEST, "sha256": ...}                      of manifest.json
    {"row": {"round": 1, ...}, "rollouts": DIGEST, ...}      of rollouts/000001.parquet
                     ... "problems": {ID: [QUESTION, GOLD], ...}   those that are new in this line
    {"evaluation": 20, "columns": {"problem": [...], ...}, ...}
    {"keep": 12, "sha256": ...}                              a resume: the first 12 lines count

Every line ends with the SHA-256 of the checksum of the line before it and of its own text. So a
line that was changed, lost, moved or put in from another run is found. A process that is killed
leaves at most a last line without an end, which does not count.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from safetensors import safe_open

from workbench.records import files
from workbench.records.files import MissingPart, RecordError, digest_of, read_ordinary, replacing
from workbench.records.manifest import read_manifest
from workbench.records.tables import NEEDED_COLUMNS, checked, joined, read_part, reading

CHECKSUM = b', "sha256": "'  # the last entry of a line begins with this


class Line(NamedTuple):
    """A line that counts."""

    kind: str  # "manifest", "row" or "evaluation"
    round: int  # the round that it belongs to; 0 for the manifest
    entry: dict[str, Any]


class Journal:
    """A journal: read once, and then only added to.

    Parameters
    ----------
    path : Path
    keep_entries : bool
        Whether the lines keep their entries, which are large.

    Attributes
    ----------
    lines : list of Line
        The lines that count, up to the first one that is damaged.
    sums : list of str
        The checksums of all lines up to there, those that do not count any more included.
    last_part : int
        The highest number that a file of rollouts may have.
    damage : str or None
        Which line is damaged.
    """

    def __init__(self, path: Path, keep_entries: bool = True) -> None:
        self.path = path
        self.lines: list[Line] = []
        self.sums: list[str] = []
        self.last_part = 1
        self.damage: str | None = None
        self._keep_entries = keep_entries
        content = read_ordinary(path)
        self._size = len(content)
        self._end = 0  # of the last line that is whole
        *complete, last = content.split(b"\n")
        is_whole = all(self._read(text) for text in complete)
        # A line without an end is what a killed process was writing, unless all of it is there and
        # only its end was changed.
        if not is_whole or _is_signed(last[:-1], self._last_sum):
            self.damage = f"line {len(self.sums) + 1} was changed; it is read up to there"

    @property
    def _last_sum(self) -> str:
        return self.sums[-1] if self.sums else ""

    def _read(self, text: bytes) -> bool:
        """Take note of a line of the file; False where it is damaged."""
        if not _is_signed(text, self._last_sum):
            return False
        entry = json.loads(text)
        total = entry.pop("sha256")
        highest = self.lines[-1].round if self.lines else 0
        kept = entry if self._keep_entries else {}
        match entry:
            case {"row": {"round": int(number)}, "rollouts": str()}:
                self.lines.append(Line("row", number, kept))
            case {"evaluation": int(number), "columns": dict()}:
                self.lines.append(Line("evaluation", number, kept))
            case {"manifest": str()}:
                self.lines.append(Line("manifest", 0, kept))
            case {"keep": int(count)}:
                del self.lines[count:]
            case _:
                return False
        # The rollouts of a round are written before its line. Those of rounds that do not count any
        # more are removed before the next line is written.
        still_there = highest if "keep" in entry else self.lines[-1].round
        self.last_part = still_there + 1
        self.sums.append(total)
        self._end += len(text) + 1
        return True

    def check(self) -> None:
        """RecordError unless the file ends as it did when this object read or wrote it last."""
        end = f'{self._last_sum}"}}\n'.encode() if self.sums else b""
        try:
            files.check_ordinary(self.path)
            with self.path.open("rb") as file:
                file.seek(self._end - len(end))
                is_ours = file.read(len(end)) == end
                is_ours &= os.fstat(file.fileno()).st_size == self._size
        except OSError:
            is_ours = False
        if not is_ours:
            raise RecordError(
                f"{self.path} was changed by somebody else while the run went on: the folder "
                "was put back to an earlier copy, moved or deleted, or another program wrote to "
                "it; nothing was written, and a new call goes on from what is on the disk"
            )

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add a line after the last one that is whole; whatever follows that one is removed.

        The line is on the disk when this returns. When it cannot be written, it is not there.
        """
        self.check()
        # Numbers of NumPy are written like those of Python.
        body = json.dumps(entry, default=np.generic.item).encode()[:-1]
        text = body + CHECKSUM + _sum(body, self._last_sum).encode() + b'"}'
        descriptor = os.open(self.path, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            os.ftruncate(descriptor, self._end)
            os.lseek(descriptor, self._end, os.SEEK_SET)
            left = memoryview(text + b"\n")
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, self._end)
            self._size = self._end
            raise
        finally:
            os.close(descriptor)
        # It counts only once it is written, so that memory and disk agree after a failure too.
        assert self._read(text)
        self._size = self._end


def begin(path: Path, manifest_digest: str) -> None:
    """Write a new journal, which holds the digest of the manifest."""
    with replacing(path) as temporary:
        temporary.touch()
        Journal(temporary).append({"manifest": manifest_digest})


def _sum(body: bytes, before: str) -> str:
    """The checksum of a line without its last entry, after a line with the checksum `before`."""
    return hashlib.sha256(before.encode() + body).hexdigest()


def _is_signed(text: bytes, before: str) -> bool:
    """Whether a line ends with its checksum."""
    body, _, rest = text.rpartition(CHECKSUM)
    return rest == _sum(body, before).encode() + b'"}'


class Directory:
    """The record in a directory that a run writes, as of one moment.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    manifest : dict
    lines : list of Line
        The lines of the journal that count.
    is_begun : bool
        Whether the journal began with this manifest. Without that no run can go on from it.
    problems : list of str
        What is wrong with the manifest, the journal and the checkpoint.

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
        self.lines: list[Line] = []
        self.is_begun = False
        self.problems: list[str] = []
        # What tells how long the journal should be is read first: a run that goes on beside us
        # makes the journal longer and never shorter.
        parts = files.rollout_parts(path)
        checkpointed = None
        try:
            checkpointed = _line_of_checkpoint(path)
        except RecordError as error:
            self.problems.append(str(error))
        try:
            with reading(path / files.JOURNAL):
                journal = Journal(path / files.JOURNAL)
        except RecordError as error:
            self.problems = [str(error)]
            return
        self.lines = journal.lines
        first = self.lines[0].entry if self.lines else {}
        self.is_begun = first.get("manifest") == digest_of(read_ordinary(path / files.MANIFEST))
        if not self.is_begun:
            # First, since a run cannot go on from it.
            self.problems.insert(
                0,
                f"{path / files.MANIFEST}: it is not the one that {files.JOURNAL} began with: it "
                "was edited, or one of them is of another run",
            )
        if lost := journal.damage or _lost_end(journal, parts, checkpointed):
            self.problems.append(f"{journal.path}: {lost}")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table of rounds."""
        return [line.entry["row"] for line in self.lines if line.kind == "row"]

    @property
    def asked(self) -> dict[str, list[str]]:
        """Question and gold answer of every problem that was asked, by its id."""
        lines = [line.entry.get("problems", {}) for line in self.lines]
        return {problem: texts for line in lines for problem, texts in line.items()}

    def table(self, kind: str) -> pa.Table:
        """One of the tables of a record but for the rollouts, in which gaps are empty.

        RecordError where it is none.
        """
        with reading(self.path / files.JOURNAL):
            if kind == "evals":
                entries = [line.entry for line in self.lines if line.kind == "evaluation"]
                return joined([checked(pa.table(entry["columns"]), kind) for entry in entries])
            rows = self.rows
            if kind == "problems":
                asked = self.asked.items()
                rows = [dict(zip(NEEDED_COLUMNS[kind], (name, *texts))) for name, texts in asked]
            names = dict.fromkeys(name for row in rows for name in row)
            table = pa.table({name: [row.get(name) for row in rows] for name in names})
            return checked(table, kind) if names else table

    @property
    def parts(self) -> list[int]:
        """The rounds that have rollouts."""
        return [row["round"] for row in self.rows]

    def rollouts(
        self, wanted: set[int] | None = None, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, list[str]]:
        """The rollouts of some rounds and what is wrong with them.

        The number of the round that recorded a row stands in the column `part`.
        """
        folder = self.path / files.ROLLOUTS
        tables, missing, problems = [], [], list(self.problems)
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


def _lost_end(journal: Journal, parts: Collection[int], checkpointed: str | None) -> str | None:
    """What shows that lines at the end of a journal are lost.

    Without them it looks like the journal of a shorter run, so what lies beside it has to tell.
    """
    latest = max(parts, default=0)
    beside = f"there are rollouts of round {latest}"
    if latest <= journal.last_part:
        if checkpointed is None or checkpointed in journal.sums:
            return None
        beside = f"{files.CHECKPOINT} was made after a line that it does not have"
    last = journal.lines[-1].round if journal.lines else 0
    return f"it ends with round {last}, and {beside}: its end is lost, or it is of another run"


def _line_of_checkpoint(path: Path) -> str | None:
    """The checksum of the line after which the checkpoint was made; None without a checkpoint."""
    file = files.checkpoint_part(path)
    if not os.path.lexists(file):
        return None
    with reading(file):
        files.check_ordinary(file)
        # The texts of a file of safetensors are read without its tensors.
        with safe_open(file, framework="numpy") as opened:
            return json.loads(opened.metadata()["state"])["record"]
