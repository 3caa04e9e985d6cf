"""A shelf: a folder with many finished runs in four files.

    shelf.json               the manifest of every run, and where its rows are
    rounds-DIGEST.parquet    the tables of rounds of all runs, one after the other
    evals-DIGEST.parquet     their evaluations
    rollouts-DIGEST.parquet  what is kept of their rollouts, with the round (`part`) that has them

`shelf.json` begins with the digest of the rest of it, and holds those of the other three, so that a
changed bit anywhere is found. Tables have the digest in their names: writing new ones never touches
those that somebody reads, and the shelf changes at the one moment at which `shelf.json` does.

A run on a shelf is read as if it still had its directory. `pack` makes shelves.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from workbench.records import files
from workbench.records.files import RecordError, read_ordinary, replacing, stamp_of, sync
from workbench.records.journal import Directory
from workbench.records.locks import RecordLock
from workbench.records.manifest import checked_manifest
from workbench.records.tables import NEEDED_COLUMNS, checked, joined, open_table, read_rows, reading
from workbench.utils.validation import cause_of

SHELF_FORMAT = 1
MOST_BYTES = 2**28  # of shelf.json; a run takes about two thousand
TABLE_NAME = re.compile(rf"({'|'.join(files.KINDS)})-[0-9a-f]{{16}}\.parquet")
# A run's place below the folder, "." for the folder itself. None of its parts may lead elsewhere.
RUN_NAME = re.compile(r"\.|(?!\.{1,2}(/|$))[^/\x00]+(/(?!\.{1,2}(/|$))[^/\x00]+)*")
KEPT = {"thinned": None}  # what a packing changes in a manifest
ROWS_OF_A_GROUP = 2**16  # at least; one run is read without the others, and small ones share


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
        self._groups: dict[str, tuple[Any, pa.Table]] = {}
        path = folder / files.SHELF
        with reading(path):
            if content is None:
                content = read_ordinary(path, MOST_BYTES)
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
            table = self._row_group(kind, group, columns).select(names).slice(first, count)
            if len(table) != count:
                raise ValueError(f"the rows of {name!r} are missing")
            # Where runs differ in the type of a column, the file has a type that holds both.
            for i, column in enumerate(names):
                kept = types[column]
                if kept is not None:
                    table = table.set_column(i, column, table[i].cast(pa.type_for_alias(kept)))
            return checked(table, kind, columns)

    def _row_group(self, kind: str, group: int, columns: Sequence[str] | None) -> pa.Table:
        """One row group of a table, with the columns of all its runs.

        It holds several runs, so the latest one of each kind is kept.
        """
        table = self.tables[kind]
        path = self.folder / table["file"]
        stamp = stamp_of(path)
        # A file is opened, and its digest computed, once, and again when it has changed.
        if kind not in self._open or self._open[kind][0] != stamp:
            self._open[kind] = (stamp, open_table(path, table["sha256"]))
        wanted = (stamp, group, columns)
        if kind not in self._groups or self._groups[kind][0] != wanted:
            self._groups[kind] = (wanted, read_rows(self._open[kind][1], columns, group))
        return self._groups[kind][1]


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
        if kind not in files.KINDS or not TABLE_NAME.fullmatch(table["file"]):
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

    def text(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    runs = ",\n".join(f"{text(name)}:{text(run)}" for name, run in index["runs"].items())
    others = {name: value for name, value in index.items() if name != "runs"}
    rest = f'{text(others)[1:-1]},"runs":{{\n{runs}\n}}}}\n'.encode()
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
        found |= {here / name for name in shelf.runs} if shelf else set()
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(found)


def packed_below(path: Path) -> list[Path]:
    """The places of the packed runs at or under a path, of the shelf in it and of those above it.

    The path may be a part of a shelf, such as one method's runs.
    """
    real = path.resolve()
    found = []
    for folder in (real, *real.parents):
        shelf = shelf_at(folder)
        if shelf is None:
            continue
        # Names are compared as text, since hundreds of paths would take much longer. The slash
        # behind a name keeps "grpo" apart from "grpo-16", and finds the run at the path itself.
        part = real.relative_to(folder).as_posix()
        start = "" if part == "." else f"{part}/"
        found += [path / name[len(start) :] for name in shelf.runs if f"{name}/".startswith(start)]
    return found


def shelf_at(folder: Path) -> Shelf | None:
    """The shelf in a folder, read anew only when it has changed; None where there is none."""
    stamp = stamp_of(folder / files.SHELF)
    return None if stamp is None else _known_shelf(folder, stamp)


@lru_cache(maxsize=32)
def _known_shelf(folder: Path, stamp: tuple[int, int, int]) -> Shelf:
    return Shelf(folder)


# Packing


def pack(
    folder: Any, columns: Sequence[str] | None = None, evals: Sequence[str] | None = None
) -> list[str]:
    """Put all finished runs at or under a folder onto one shelf.

    They can be read as before, under the same paths, but they cannot go on: their checkpoints are
    removed. Every table and manifest is read back from the shelf and compared before the
    directories of the runs are removed. A shelf that is there already gets the new runs as well.

    Parameters
    ----------
    folder : path
        Of the runs; shelves below it are joined with its own. A folder that is itself the record of
        one run becomes a shelf with this run alone.
    columns : names, optional
        Columns of the rollouts to keep: () for none, None for all.
    evals : names, optional
        Columns of the evaluations to keep beside those that every record has (round, problem,
        samples, correct, greedy), such as ("level",); None for all.

    Returns
    -------
    list of str
        The names of all runs on the shelf: their places below the folder.

    Raises
    ------
    ValueError
        For a folder without any record.
    RecordError
        When a run is being written, is damaged, or does not read back as it was, and when more runs
        have to be locked than files can be open at once. Nothing has been removed then.
    """
    root = Path(folder)
    _folders(root)  # so that a folder that cannot be packed is refused before anything is written
    kept = None if columns is None else list(columns)
    kept_evals = None if evals is None else list(evals)
    with contextlib.ExitStack() as locks:
        # Another process may have ended its packing just before, and removed the locked file.
        locks.enter_context(RecordLock(root)).check()
        folders = _folders(root)
        for other in sorted(set(folders.values()) - {root.resolve()}):
            locks.enter_context(RecordLock(other))
        sources = {
            path.relative_to(root).as_posix(): _Kept(_source(path), kept, kept_evals)
            for path in folders
        }
        try:
            _write(root, sources)
            _remove_what_is_packed(root, list(sources))
        except OSError as error:
            raise RecordError(f"{root}: cannot be packed: {cause_of(error)}") from error
        (root / files.LOCK).unlink(missing_ok=True)
    return list(sources)


@dataclass(frozen=True)
class _Kept:
    """What is kept of a record when it is packed: some columns of two tables, or None for all."""

    source: Directory | Packed
    columns: list[str] | None
    evals: list[str] | None

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest, which says what is kept of the rollouts."""
        manifest = self.source.manifest
        if self.columns is None:
            return manifest
        # What an earlier packing left out stays out.
        before = manifest.get("thinned") or {"columns": None, "rounds": None}
        there = before["columns"]
        kept = [name for name in self.columns if there is None or name in there]
        return {**manifest, "thinned": {**before, "columns": kept}}

    def table(self, kind: str) -> pa.Table:
        """One of the tables, without what is left out."""
        if kind != "rollouts":
            table = self.source.table(kind).replace_schema_metadata()
            if kind == "evals" and self.evals is not None:
                wanted = {*NEEDED_COLUMNS[kind], *self.evals}
                table = table.select([name for name in table.column_names if name in wanted])
            return table
        if self.columns == []:
            return pa.table({})
        table, problems = self.source.rollouts()
        if problems:
            raise RecordError(problems[0])
        if self.columns is not None and len(table):
            there = [name for name in self.columns if name in table.column_names]
            table = table.select([*there, "part"])
        return table.replace_schema_metadata()


def _folders(root: Path) -> dict[Path, Path]:
    """Path of each record at or under a folder -> the folder that holds its files.

    That is its own, or that of a shelf. ValueError where there is no record.
    """
    folders = {}
    for path in record_paths(root):
        packed = None if (path / files.MANIFEST).exists() else find_packed(path)
        folder = path.resolve() if packed is None else packed.shelf.folder
        # Runs on a shelf further up are none of this folder's.
        if folder.is_relative_to(root.resolve()):
            folders[path] = folder
    if not folders:
        raise ValueError(f"folder={str(root)!r}: there is no record to pack in it")
    return folders


def _source(path: Path) -> Directory | Packed:
    """The record at a path, once it is known to be whole."""
    packed = find_packed(path)
    if not (path / files.MANIFEST).exists():
        assert packed is not None
        return packed
    source = Directory(path)
    for problem in source.problems:
        raise RecordError(f"{problem}; only a whole record is packed")
    # A killed packing may leave a run in both places, but never two runs of one name.
    if packed is not None and packed.manifest | KEPT != source.manifest | KEPT:
        raise RecordError(
            f"{path}: another run of this name is on the shelf in {packed.shelf.folder}; move one "
            "of them"
        )
    return source


# Writing a shelf


def _write(root: Path, sources: Mapping[str, _Kept]) -> None:
    """Write a shelf and read it back; it takes the place of the old one when all is equal."""
    index: dict[str, Any] = {"format": SHELF_FORMAT, "tables": {}, "columns": {}, "runs": {}}
    for name, source in sources.items():
        index["runs"][name] = {"manifest": source.manifest}
    for kind in files.KINDS:
        _write_table(root, kind, sources, index)
    index["columns"] = [dict(columns) for columns in index["columns"]]
    content = index_content(index)
    shelf = Shelf(root, content)
    for name, source in sources.items():
        if shelf.runs[name]["manifest"] != source.manifest:
            raise RecordError(f"{root / name}: its manifest does not read back as it was")
        for kind in files.KINDS:
            if not same_tables(source.table(kind), shelf.table(kind, name)):
                raise RecordError(f"{root / name}: its {kind} do not read back as they were")
    # Last: until then the old shelf stands, and the new tables are names that nobody reads.
    with replacing(root / files.SHELF) as temporary:
        temporary.write_bytes(content)


def _write_table(
    root: Path, kind: str, sources: Mapping[str, _Kept], index: dict[str, Any]
) -> None:
    """Write the table of one kind, and into the index where each run's rows are in it.

    Under "columns" the index gets the columns of each kind of run, with their types where these
    differ from the file's, and the number of the kind.
    """
    known = index["columns"]
    schemas = {name: source.table(kind).schema for name, source in sources.items()}
    schemas = {name: schema for name, schema in schemas.items() if len(schema)}
    if not schemas:
        return
    # Runs may have columns of one name and types that nothing holds both of, as texts and numbers.
    with reading(root):
        together = pa.unify_schemas(list(schemas.values()), promote_options="permissive")
    together = together.append(pa.field("run", pa.string()))
    # Numbers that hardly repeat themselves are smaller byte by byte. The first run that has a
    # column tells.
    digits: list[str] = []
    seen: set[str] = set()
    for name, schema in schemas.items():
        new = [
            column.name
            for column in schema
            if pa.types.is_floating(column.type) and not column.name.startswith("seconds")
            if column.name not in seen
        ]
        seen.update(new)
        table = sources[name].table(kind) if new else None
        digits += [column for column in new if _hardly_repeats(table[column])]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        together,
        compression="zstd",
        compression_level=19,
        write_statistics=False,
        write_page_checksum=True,
        use_dictionary=[name for name in together.names if name not in digits],
        use_byte_stream_split=digits,
    ) as writer:
        waiting: list[pa.Table] = []
        group, first = 0, 0
        for name, schema in schemas.items():
            table = sources[name].table(kind)
            types = [
                None if field.type == together.field(field.name).type else str(field.type)
                for field in schema
            ]
            number = known.setdefault(tuple(zip(schema.names, types)), len(known))
            index["runs"][name][kind] = [group, first, len(table), number]
            run = pa.array([name] * len(table), pa.string())
            waiting.append(table.append_column("run", run))
            first += len(table)
            if first >= ROWS_OF_A_GROUP or name == list(schemas)[-1]:
                rows = joined([together.empty_table(), *waiting]).cast(together)
                writer.write_table(rows, row_group_size=max(1, len(rows)))
                waiting, group, first = [], group + 1, 0
    content = sink.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    file = f"{kind}-{digest[:16]}.parquet"
    with replacing(root / file) as temporary:
        temporary.write_bytes(content)
    index["tables"][kind] = {"file": file, "sha256": digest}


def _hardly_repeats(column: pa.ChunkedArray) -> bool:
    """Whether more than four of five values of a column are different ones."""
    values = column.drop_null()
    return len(values) > 0 and len(values.unique()) > 0.8 * len(values)


def same_tables(a: pa.Table, b: pa.Table) -> bool:
    """Whether two tables have the same columns in the same order, equal to the last bit."""
    if len(a) != len(b) or a.schema.names != b.schema.names or a.schema.types != b.schema.types:
        return False
    return all(_bits(a[name]).equals(_bits(b[name])) for name in a.column_names)


def _bits(column: pa.ChunkedArray) -> pa.Array:
    """A column in which equal means the same bits: NaN equals NaN, and 0.0 is not -0.0."""
    whole = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if pa.types.is_floating(column.type):
        return whole.view({16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[column.type.bit_width])
    if pa.types.is_nested(column.type):
        return pa.array([repr(value) for value in whole.to_pylist()])
    return whole


# Removing what is on the shelf


def _remove_what_is_packed(root: Path, names: list[str]) -> None:
    """Remove what the new shelf of a folder holds in other places, or a killed packing left there.

    These are the directories of its runs, and shelves between them and the folder.
    """
    top = root.resolve()
    runs = {(root / name).resolve() for name in names}
    folders = {folder for run in runs for folder in (run, *run.parents)}
    # The deepest first, since folders that have become empty go as well.
    for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
        if not (folder.is_relative_to(top) and folder.is_dir()):
            continue
        if folder in runs:
            _remove_directory(folder)
        if folder != top:
            _remove_first(folder / files.SHELF)
            (folder / files.LOCK).unlink(missing_ok=True)
        shelf = shelf_at(folder)
        named = {table["file"] for table in shelf.tables.values()} if shelf else set()
        for path in folder.iterdir():
            name = path.name.removesuffix(files.WRITING)
            if TABLE_NAME.fullmatch(name) and path.name not in named:
                path.unlink()
        if folder != top:
            with contextlib.suppress(OSError):  # it holds somebody else's files
                folder.rmdir()


def _remove_directory(place: Path) -> None:
    """Remove the files that a run wrote into its directory, except rollouts that stopped it."""
    _remove_first(place / files.MANIFEST)
    for folder in (files.ROLLOUTS, files.CHECKPOINTS, "."):
        for path in files.own_files(place, folder):
            if path.is_file() and path.name != files.LOCK and not path.name.startswith("failed-"):
                path.unlink()
        if folder != ".":
            with contextlib.suppress(OSError):  # there is none, or it holds somebody else's files
                (place / folder).rmdir()


def _remove_first(path: Path) -> None:
    """Remove the file that makes a folder a record or a shelf.

    Without it the runs are read from the new shelf, and a later packing removes whatever is left.
    """
    if path.exists():
        path.unlink()
        sync(path.parent)
