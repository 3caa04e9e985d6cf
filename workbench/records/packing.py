"""Packing finished runs onto a shelf, see `workbench.records.shelf`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workbench.records import parts
from workbench.records.errors import RecordError
from workbench.records.files import WRITING, file_digest, replacing, sync
from workbench.records.journal import Directory
from workbench.records.locks import RecordLock
from workbench.records.shelf import (
    SHELF_FORMAT,
    TABLE_NAME,
    Packed,
    Shelf,
    find_packed,
    index_content,
    record_paths,
    shelf_at,
)
from workbench.records.tables import joined
from workbench.utils.validation import cause_of

KEPT = {"thinned": None}  # what a packing changes in a manifest
ROWS_OF_A_GROUP = 2**16  # at least; one run is read without the others, and small ones share


def pack(folder: Any, columns: Sequence[str] | None = None) -> list[str]:
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
    with contextlib.ExitStack() as locks:
        # Another process may have ended its packing just before, and removed the locked file.
        locks.enter_context(RecordLock(root)).check()
        folders = _folders(root)
        for other in sorted(set(folders.values()) - {root.resolve()}):
            locks.enter_context(RecordLock(other))
        sources = {
            path.relative_to(root).as_posix(): _Kept(_source(path), kept) for path in folders
        }
        try:
            _write(root, sources)
            _remove_what_is_packed(root, list(sources))
        except OSError as error:
            raise RecordError(f"{root}: cannot be packed: {cause_of(error)}") from error
        (root / parts.LOCK).unlink(missing_ok=True)
    return list(sources)


@dataclass(frozen=True)
class _Kept:
    """What is kept of a record when it is packed: some columns of its rollouts, or None for all."""

    source: Directory | Packed
    columns: list[str] | None

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
            return self.source.table(kind).replace_schema_metadata()
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
        packed = None if (path / parts.MANIFEST).exists() else find_packed(path)
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
    if not (path / parts.MANIFEST).exists():
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
    for kind in parts.KINDS:
        _write_table(root, kind, sources, index)
    index["columns"] = [dict(columns) for columns in index["columns"]]
    content = index_content(index)
    shelf = Shelf(root, content)
    for name, source in sources.items():
        if shelf.runs[name]["manifest"] != source.manifest:
            raise RecordError(f"{root / name}: its manifest does not read back as it was")
        for kind in parts.KINDS:
            if not same_tables(source.table(kind), shelf.table(kind, name)):
                raise RecordError(f"{root / name}: its {kind} do not read back as they were")
    # The names of the tables are on the disk before the one that stands for all of them.
    sync(root)
    with replacing(root / parts.SHELF) as temporary:
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
    together = pa.unify_schemas(list(schemas.values()), promote_options="permissive")
    together = together.append(pa.field("run", pa.string()))
    # Numbers with many digits are smaller byte by byte; everything else repeats itself.
    digits = [f.name for f in together if kind == "rounds" and pa.types.is_floating(f.type)]
    temporary = root / f"{kind}.parquet{WRITING}"
    temporary.unlink(missing_ok=True)
    try:
        with pq.ParquetWriter(
            temporary,
            together,
            compression="zstd",
            compression_level=12,
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
        sync(temporary)
        digest = file_digest(temporary)
        file = f"{kind}-{digest[:16]}.parquet"
        os.replace(temporary, root / file)
    finally:
        temporary.unlink(missing_ok=True)
    index["tables"][kind] = {"file": file, "sha256": digest}


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
            _remove_first(folder / parts.SHELF)
            (folder / parts.LOCK).unlink(missing_ok=True)
        shelf = shelf_at(folder)
        named = {table["file"] for table in shelf.tables.values()} if shelf else set()
        for path in folder.iterdir():
            if TABLE_NAME.fullmatch(path.name) and path.name not in named:
                path.unlink()
        if folder != top:
            with contextlib.suppress(OSError):  # it holds somebody else's files
                folder.rmdir()


def _remove_directory(place: Path) -> None:
    """Remove the files that a run wrote into its directory, except rollouts that stopped it."""
    _remove_first(place / parts.MANIFEST)
    for folder in (parts.ROLLOUTS, parts.CHECKPOINTS, "."):
        for path in parts.own_files(place, folder):
            if path.is_file() and path.name != parts.LOCK and not path.name.startswith("failed-"):
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
