"""A shelf: a folder with many finished runs in four files.

    shelf.json               the manifest of every run, and where its rows are
    rounds-DIGEST.parquet    the tables of rounds of all runs, one after the other
    evals-DIGEST.parquet     their evaluations
    rollouts-DIGEST.parquet  what is kept of their rollouts, with the round (`part`) that has them

`shelf.json` begins with the digest of the rest of it, and holds those of the other three, so that a
changed bit anywhere is found. Tables have the digest in their names: writing new ones never touches
those that somebody reads, and the shelf changes at the one moment at which `shelf.json` does.

A run on a shelf is read as if it still had its directory. `workbench.records.packing` makes
shelves.
"""

from __future__ import annotations

import hashlib
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

from workbench.records.errors import RecordError
from workbench.records.files import check_ordinary, stamp_of
from workbench.records.manifest import checked_manifest
from workbench.records.parts import KINDS, MANIFEST, SHELF
from workbench.records.tables import checked, open_table, read_rows, reading

SHELF_FORMAT = 1
MOST_BYTES = 2**28  # of shelf.json; a run takes about two thousand
TABLE_NAME = re.compile(rf"({'|'.join(KINDS)})-[0-9a-f]{{16}}\.parquet")
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
    runs : dict from name to dict
        The manifest of every run, and where its rows are in each table.
    tables : dict from kind to dict
        File and digest of each table.

    Raises
    ------
    RecordError
        Where `shelf.json` cannot be read, or is not as it was written.
    """

    def __init__(self, folder: Path, content: bytes | None = None) -> None:
        self.folder = folder
        self._open: dict[str, tuple[Any, pq.ParquetFile]] = {}
        self._group: tuple[Any, pa.Table | None] = (None, None)
        path = folder / SHELF
        with reading(path):
            if content is None:
                check_ordinary(path, MOST_BYTES)
                content = path.read_bytes()
            index = checked_index(content)
        self.runs: dict[str, dict[str, Any]] = index["runs"]
        self.tables: dict[str, dict[str, str]] = index["tables"]
        self._columns: list[dict[str, str | None]] = index["columns"]

    def table(self, kind: str, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a run in one of the tables; RecordError where they cannot be read."""
        place = self.runs[name].get(kind)
        if place is None:
            return pa.table({})
        with reading(self.folder / self.tables[kind]["file"]):
            group, first, count, number = place
            types = self._columns[number]
            names = list(types) if columns is None else [name for name in columns if name in types]
            table = self._row_group(kind, group, names).slice(first, count)
            if len(table) != count:
                raise ValueError(f"the rows of {name!r} are missing")
            # Where runs differ in the type of a column, the file has a type that holds both.
            for i, column in enumerate(names):
                kept = types[column]
                if kept is not None:
                    table = table.set_column(i, column, table[i].cast(pa.type_for_alias(kept)))
            return checked(table, kind, columns)

    def _row_group(self, kind: str, group: int, names: list[str]) -> pa.Table:
        """One row group of a table; it holds several runs, so the latest one is kept."""
        table = self.tables[kind]
        path = self.folder / table["file"]
        stamp = stamp_of(path)
        # A file is opened, and its digest computed, once, and again when it has changed.
        if kind not in self._open or self._open[kind][0] != stamp:
            self._open[kind] = (stamp, open_table(path, table["sha256"]))
        wanted = (stamp, kind, group, names)
        if self._group[0] != wanted:
            self._group = (wanted, read_rows(self._open[kind][1], names, group).select(names))
        assert self._group[1] is not None
        return self._group[1]


@dataclass(frozen=True)
class Packed:
    """A run on a shelf; what `journal.Directory` is for a run in a directory of its own."""

    shelf: Shelf
    name: str
    problems: Sequence[str] = ()

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest of the run."""
        return self.shelf.runs[self.name]["manifest"]

    def table(self, kind: str) -> pa.Table:
        """The table "rounds" or "evals"; RecordError where it is damaged."""
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
    if first != b'{"sha256": "%s",' % hashlib.sha256(rest).hexdigest().encode():
        raise ValueError("it was changed since it was written")
    index = json.loads(content)
    if index["format"] != SHELF_FORMAT:
        raise ValueError(f"format {index['format']!r}; this version reads {SHELF_FORMAT}")
    for kind, table in index["tables"].items():
        if kind not in KINDS or not TABLE_NAME.fullmatch(table["file"]):
            raise ValueError(f"{table['file']!r} is no name of a table")
        if not isinstance(table["sha256"], str):
            raise ValueError(f"{kind}: the digest is missing")
    for name, run in index["runs"].items():
        # Every name becomes a path that messages show.
        if not (RUN_NAME.fullmatch(name) and name.isprintable()):
            raise ValueError(f"{name!r} is no name of a run")
        run["manifest"] = checked_manifest(run["manifest"])
        if not run.keys() <= {"manifest", *index["tables"]}:
            raise ValueError(f"{name!r} has rows in a table that is not there")
    return index


def index_content(index: dict[str, Any]) -> bytes:
    """The content of a `shelf.json`: its digest, and then a line for every run."""
    runs = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(run)}" for name, run in index["runs"].items()
    )
    others = {name: value for name, value in index.items() if name != "runs"}
    rest = f'{json.dumps(others)[1:-1]}, "runs": {{\n{runs}\n}}}}\n'.encode()
    return b'{"sha256": "%s",\n%s' % (hashlib.sha256(rest).hexdigest().encode(), rest)


def find_packed(path: Path) -> Packed | None:
    """The run that had its directory at `path`; None where no shelf has it.

    The shelf lies in the directory itself or in one of those above it; the nearest one counts.
    """
    place = Path(path).resolve()
    for folder in (place, *place.parents):
        shelf = shelf_at(folder)
        name = place.relative_to(folder).as_posix()
        if shelf is not None and name in shelf.runs:
            return Packed(shelf, name)
    return None


def exists(path: Any) -> bool:
    """Whether there is a record at a path, in a directory or packed."""
    return (Path(path) / MANIFEST).exists() or find_packed(Path(path)) is not None


def record_paths(path: Any) -> list[Path]:
    """The places of all records at or under a path, packed ones included, in order."""
    path = Path(path)
    found = set(packed_below(path))
    for place, folders, files in os.walk(path):
        here = Path(place)
        if MANIFEST in files:
            found.add(here)
            folders.clear()
        shelf = shelf_at(here.resolve())
        found |= {here / name for name in shelf.runs} if shelf else set()
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(found)


def packed_below(path: Path) -> list[Path]:
    """The places of the packed runs at or under a path, of the shelf in it and of those above it.

    The path may be a part of a shelf, such as one method's runs.
    """
    real = path.resolve()
    shelves = filter(None, map(shelf_at, (real, *real.parents)))
    runs = [shelf.folder / name for shelf in shelves for name in shelf.runs]
    return [path / run.relative_to(real) for run in runs if run.is_relative_to(real)]


def shelf_at(folder: Path) -> Shelf | None:
    """The shelf in a folder, read anew only when it has changed; None where there is none."""
    stamp = stamp_of(folder / SHELF)
    return None if stamp is None else _known_shelf(folder, stamp)


@lru_cache(maxsize=32)
def _known_shelf(folder: Path, stamp: tuple[int, int, int]) -> Shelf:
    return Shelf(folder)
