"""A shelf: a folder with many finished runs in four files.

    shelf.json               the manifest of every run, and the digests of the other files
    rounds-DIGEST.parquet    the tables of rounds of all runs, one after the other, by `run`
    evals-DIGEST.parquet     their evaluations
    problems-DIGEST.parquet  question and gold answer of the problems of each run
    rollouts-DIGEST.parquet  what is kept of their rollouts, with the round (`part`) that has them

`shelf.json` begins with the digest of the rest of it, so that a changed bit anywhere is found.
Tables have their digest in their names: writing new ones never touches those that somebody reads,
and the shelf changes at the one moment at which `shelf.json` does.

A run on a shelf is read as if it still had its directory. `records.packing` makes shelves.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from workbench.records import files
from workbench.records.files import RecordError, digest_of, read_ordinary, stamp_of
from workbench.records.manifest import checked_manifest
from workbench.records.tables import checked, reading
from workbench.utils.validation import brief, cause_of

# Those of format 1 have more entries, which say where the rows of a run are. They are not needed.
SHELF_FORMATS = (1, 2)
TABLE_NAME = re.compile(rf"({'|'.join(files.KINDS)})-[0-9a-f]{{16}}\.parquet")
# A run's place below the folder, "." for the folder itself. None of its parts may lead elsewhere.
RUN_NAME = re.compile(r"\.|(?!\.{1,2}(/|$))[^/\x00]+(/(?!\.{1,2}(/|$))[^/\x00]+)*")


class Shelf:
    """The packed runs of one folder.

    Parameters
    ----------
    folder : Path
    content : bytes, optional
        What `shelf.json` is going to hold; None reads it.

    Attributes
    ----------
    manifests : dict from name to dict
        The manifest of every run.
    tables : dict from kind to dict
        File and digest of each table.

    Raises
    ------
    RecordError
        Where `shelf.json` cannot be read, or is not as it was written.
    """

    def __init__(self, folder: Path, content: bytes | None = None) -> None:
        self.folder = folder
        self._open: dict[str, Table] = {}
        path = folder / files.SHELF
        with reading(path):
            index = checked_index(read_ordinary(path) if content is None else content)
        self.manifests = {name: run["manifest"] for name, run in index["runs"].items()}
        self.tables: dict[str, dict[str, str]] = index["tables"]

    def table(self, kind: str, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a run in one of the tables; RecordError where they cannot be read."""
        if kind not in self.tables:
            return pa.table({})
        path = self.folder / self.tables[kind]["file"]
        with reading(path):
            stamp = stamp_of(path)
            # A file is opened, and its digest computed, once, and again when it has changed.
            if kind not in self._open or self._open[kind].stamp != stamp:
                self._open[kind] = Table(path, stamp, self.tables[kind]["sha256"])
            table = self._open[kind].rows_of(name, columns)
            return checked(table, kind) if len(table) else pa.table({})


class Table:
    """A parquet file with the rows of several runs, of which a column `run` tells."""

    def __init__(self, path: Path, stamp: Any, digest: str) -> None:
        self.stamp = stamp
        self._file = pq.ParquetFile(pa.BufferReader(read_ordinary(path, digest)))
        # The rows of all runs, in the columns that were asked for last, and where the rows of each
        # run begin and end; none yet.
        self._rows = pa.table({})
        self._columns: Any = False
        self._places: dict[str, list[tuple[int, int]]] = {}

    def rows_of(self, name: str, columns: Sequence[str] | None) -> pa.Table:
        """The rows of a run, without the columns that it does not have."""
        if self._columns != columns:
            self._rows = self._file.read(None if columns is None else [*columns, "run"])
            self._columns = columns
            # A run's rows stand together, so looking for them among all rows once is enough.
            runs = pc.run_end_encode(self._rows["run"].combine_chunks())
            self._rows = self._rows.drop_columns("run")
            self._places = {}
            begin = 0
            for run, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist()):
                self._places.setdefault(run, []).append((begin, end - begin))
                begin = end
        places = self._places.get(name, [(0, 0)])
        rows = pa.concat_tables([self._rows.slice(*place) for place in places])
        # A column that only other runs have is empty in the rows of this one.
        kept = [each for each in rows.column_names if rows[each].null_count < len(rows)]
        return rows.select(kept)


@dataclass(frozen=True)
class Packed:
    """A run on a shelf; what `journal.Directory` is for a run in a directory of its own."""

    shelf: Shelf
    name: str
    problems: Sequence[str] = ()

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest of the run."""
        return self.shelf.manifests[self.name]

    def table(self, kind: str) -> pa.Table:
        """One of the tables but for the rollouts; RecordError where it is damaged."""
        return self.shelf.table(kind, self.name)

    @property
    def parts(self) -> list[int]:
        """The rounds that have rollouts."""
        table, _ = self.rollouts(None, [])
        return sorted(set(table["part"].to_pylist())) if len(table) else []

    def rollouts(
        self, wanted: set[int] | None = None, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, list[str]]:
        """The rollouts of some rounds and what is wrong with them; see `Directory.rollouts`."""
        names = None if columns is None else [*columns, "part"]
        try:
            table = self.shelf.table("rollouts", self.name, names)
        except RecordError as error:
            return pa.table({}), [str(error)]
        if wanted is not None and len(table):
            table = table.filter(pc.is_in(table["part"], pa.array(sorted(wanted), pa.int64())))
        return table, []


def checked_index(content: bytes) -> dict[str, Any]:
    """What the content of a `shelf.json` says; ValueError where it is not as it was written."""
    first, _, rest = content.partition(b"\n")
    if first != b'{"sha256": "%s",' % digest_of(rest).encode():
        raise ValueError("it was changed since it was written")
    index = json.loads(content)
    if index["format"] not in SHELF_FORMATS:
        raise ValueError(f"format {index['format']!r}; this version reads {SHELF_FORMATS}")
    for kind, table in index["tables"].items():
        if kind not in files.KINDS or not TABLE_NAME.fullmatch(table["file"]):
            raise ValueError(f"{table['file']!r} is no name of a table")
    for name, run in index["runs"].items():
        # Every name becomes a path that messages show.
        if not (RUN_NAME.fullmatch(name) and name.isprintable()):
            raise ValueError(f"{name!r} is no name of a run")
        run["manifest"] = checked_manifest(run["manifest"])
    return index


def index_content(tables: dict[str, Any], manifests: dict[str, dict[str, Any]]) -> bytes:
    """The content of a `shelf.json`: its digest, and then a line for every run."""
    runs = ",\n".join(
        f'{json.dumps(name)}: {{"manifest": {json.dumps(manifest)}}}'
        for name, manifest in manifests.items()
    )
    text = (
        f'"format": {SHELF_FORMATS[-1]}, "tables": {json.dumps(tables)}, "runs": {{\n{runs}}}}}\n'
    )
    return f'{{"sha256": "{digest_of(text.encode())}",\n{text}'.encode()


def real(path: Any) -> Path:
    """The path without links; RecordError for what can be none, as a link to itself."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise RecordError(f"{brief(str(path))}: no record there: {cause_of(error)}") from None


def find_packed(path: Path) -> Packed | None:
    """The run that had its directory at `path`; None where no shelf has it.

    The shelf lies in the directory itself or in one of those above it; the nearest one counts.
    """
    place = real(path)
    for folder in (place, *place.parents):
        shelf = shelf_at(folder)
        name = place.relative_to(folder).as_posix()
        if shelf is not None and name in shelf.manifests:
            return Packed(shelf, name)
    return None


def exists(path: Any) -> bool:
    """Whether there is a record at a path, in a directory or packed."""
    return (Path(path) / files.MANIFEST).exists() or find_packed(Path(path)) is not None


def record_paths(path: Any) -> list[Path]:
    """The places of all records at or under a path, packed ones included, in order."""
    path = Path(path)
    found = set(packed_below(path))
    for place, folders, names in os.walk(path):
        here = Path(place)
        if files.MANIFEST in names:
            found.add(here)
            folders.clear()
        shelf = shelf_at(here.resolve())
        found |= {here / name for name in shelf.manifests} if shelf else set()
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(found)


def packed_below(path: Path) -> list[Path]:
    """The places of the packed runs at or under a path, of the shelf in it and of those above it.

    The path may be a part of a shelf, such as one method's runs.
    """
    place = real(path)
    found = []
    for folder in (place, *place.parents):
        shelf = shelf_at(folder)
        if shelf is None:
            continue
        # Names are compared as text, since hundreds of paths would take much longer. The slash
        # behind a name keeps "grpo" apart from "grpo-16", and finds the run at the path itself.
        part = place.relative_to(folder).as_posix()
        start = "" if part == "." else f"{part}/"
        names = [name for name in shelf.manifests if f"{name}/".startswith(start)]
        found += [path / name[len(start) :] for name in names]
    return found


def shelf_at(folder: Path) -> Shelf | None:
    """The shelf in a folder, read anew only when it has changed; None where there is none."""
    stamp = stamp_of(folder / files.SHELF)
    return None if stamp is None else _known_shelf(folder, stamp)


@lru_cache(maxsize=32)
def _known_shelf(folder: Path, stamp: tuple[int, int, int]) -> Shelf:
    return Shelf(folder)
