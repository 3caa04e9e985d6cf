"""Packing: finished runs are put onto a shelf, and their directories are removed.

Nothing is removed before the shelf has been written and read back. A packing that is killed, or
loses its power, loses nothing, and the next one completes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from workbench.records import files
from workbench.records.files import RecordError, digest_of, sync
from workbench.records.journal import Directory
from workbench.records.locks import RecordLock, rounds_wanted
from workbench.records.shelf import (
    TABLE_NAME,
    Packed,
    Shelf,
    find_packed,
    index_content,
    record_paths,
    shelf_at,
)
from workbench.records.tables import NEEDED_COLUMNS, content_of, joined, reading
from workbench.utils.validation import cause_of, output

SAMPLED_ROUNDS = 6  # that a sample of rollouts comes from


def pack(
    folder: Any,
    columns: Sequence[str] | None = None,
    evals: Sequence[str] | None = None,
    megabytes: float | None = None,
) -> list[str]:
    """Put all runs at or under a folder onto one shelf.

    They can be read as before, under the same paths, but they cannot go on: their checkpoints are
    removed. A shelf that is there already gets the new runs as well. All runs are held in memory.

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
    megabytes : float, optional
        Keep a sample of the rollouts of each run, at most so large in memory: the first ones of
        rounds that are spread over the run. None keeps all rows.

    Returns
    -------
    list of str
        The names of all runs on the shelf: their places below the folder.

    Raises
    ------
    ValueError
        For a folder without any record.
    RecordError
        When a run is being written, is not finished, or is damaged, and when more runs have to be
        locked than files can be open at once. The message names the run. Nothing has been changed
        then.
    """
    output("folder", folder)
    root = Path(folder)
    # What cannot be packed is refused before anything is written, files of locks included.
    _read_all(root, columns, evals, megabytes)
    with contextlib.ExitStack() as locks:
        # Another process may have ended its packing just before, and removed the locked file.
        locks.enter_context(RecordLock(root)).check()
        for other in sorted(set(_folders(root).values()) - {root.resolve()}):
            locks.enter_context(RecordLock(other))
        runs = _read_all(root, columns, evals, megabytes)
        try:
            _write(root, runs)
            _remove_what_is_packed(root, runs)
        except OSError as error:
            raise RecordError(f"{root}: cannot be packed: {cause_of(error)}") from error
        (root / files.LOCK).unlink(missing_ok=True)
    return list(runs)


# Reading what is to be packed

Content = tuple[dict[str, Any], dict[str, pa.Table]]  # what is kept: manifest, and tables by kind


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


def _read_all(root: Path, *kept: Any) -> dict[str, Content]:
    """What is kept of every record at or under a folder, by its place below the folder."""
    return {path.relative_to(root).as_posix(): _read(path, *kept) for path in _folders(root)}


def _read(
    path: Path,
    columns: Sequence[str] | None,
    evals: Sequence[str] | None,
    megabytes: float | None,
) -> Content:
    """What is kept of a record; RecordError unless it is finished and whole."""
    source = _source(path)
    rollouts, problems = source.rollouts()
    for problem in [*source.problems, *problems]:
        raise RecordError(f"{problem}; only a whole record is packed")
    tables = {kind: source.table(kind) for kind in files.KINDS if kind != "rollouts"}
    manifest = source.manifest
    thinned = dict(manifest.get("thinned", {}))
    if evals is not None:
        tables["evals"] = _only(tables["evals"], {*NEEDED_COLUMNS["evals"], *evals})
    if columns is not None:
        # What an earlier packing left out stays out.
        before = thinned.get("columns")
        thinned["columns"] = [name for name in columns if before is None or name in before]
        rollouts = _only(rollouts, {*columns, "part"}) if columns else pa.table({})
    if megabytes is not None and rollouts.nbytes > megabytes * 1e6:
        rollouts = _sample(rollouts, megabytes * 1e6)
        thinned["rounds"] = sorted(set(rollouts["part"].to_pylist()))
    if thinned:
        manifest = {**manifest, "thinned": {"columns": None, "rounds": None, **thinned}}
    return manifest, {**tables, "rollouts": rollouts}


def _sample(rollouts: pa.Table, size: float) -> pa.Table:
    """The first rollouts of rounds that are spread over the run, in so many bytes."""
    parts = sorted(set(rollouts["part"].to_pylist()))
    places = np.unique(np.linspace(0, len(parts) - 1, SAMPLED_ROUNDS).astype(int))
    rows = int(len(rollouts) * size / rollouts.nbytes / len(places))
    chosen = [rollouts.filter(pc.field("part") == parts[place]) for place in places]
    return pa.concat_tables([table.slice(0, rows) for table in chosen]).combine_chunks()


def _only(table: pa.Table, kept: Collection[str]) -> pa.Table:
    return table.select([name for name in table.column_names if name in kept])


def _source(path: Path) -> Directory | Packed:
    """The record at a path; RecordError where its run is not finished."""
    packed = find_packed(path)
    if packed is not None and not (path / files.MANIFEST).exists():
        return packed
    source = Directory(path)
    made, wanted = len(source.parts), rounds_wanted(path)
    if wanted is not None and made < wanted:
        raise RecordError(
            f"{path}: this run is not finished: it has {made} of the {wanted} rounds that it was "
            f"asked for; make the others, or end it by Run.resume(path).rounds({made})"
        )
    # A killed packing may leave a run in both places, but never two runs of one name.
    unthinned = {"thinned": None}
    if packed is not None and packed.manifest | unthinned != source.manifest | unthinned:
        raise RecordError(
            f"{path}: another run of this name is on the shelf in {packed.shelf.folder}; move one "
            "of them"
        )
    return source


# Writing a shelf


def _write(root: Path, runs: Mapping[str, Content]) -> None:
    """Write a shelf and read it back; it takes the place of the old one when all is equal."""
    tables = {}
    for kind in files.KINDS:
        parts = [
            kept[kind].append_column("run", pa.array([name] * len(kept[kind])))
            for name, (_, kept) in runs.items()
            if len(kept[kind])
        ]
        # Runs may have columns of one name and types that nothing holds both of, as texts and
        # numbers.
        with reading(root):
            table = joined(parts)
        if parts:
            table_content = content_of(table.replace_schema_metadata(), level=19)
            digest = digest_of(table_content)
            tables[kind] = {"file": f"{kind}-{digest[:16]}.parquet", "sha256": digest}
            files.write(root / tables[kind]["file"], table_content)
    content = index_content(tables, {name: manifest for name, (manifest, _) in runs.items()})
    shelf = Shelf(root, content)
    for name, (_, kept) in runs.items():
        for kind in files.KINDS:
            if not _are_equal(kept[kind], shelf.table(kind, name)):
                raise RecordError(f"{root / name}: its {kind} do not read back as they were")
    # Last: until then the old shelf stands, and the new tables are names that nobody reads.
    files.write(root / files.SHELF, content)


def _are_equal(a: pa.Table, b: pa.Table) -> bool:
    """Whether two tables have the same values, in whichever order their columns are.

    Numbers of other runs may have made floats of whole numbers, and a column without any value is
    not kept.
    """
    frames = [table.to_pandas().dropna(axis="columns", how="all") for table in (a, b)]
    try:
        pd.testing.assert_frame_equal(*frames, check_dtype=False, check_like=True, check_exact=True)
    except AssertionError:
        return False
    return True


# Removing what is on the shelf


def _remove_what_is_packed(root: Path, names: Iterable[str]) -> None:
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
        # What makes the folder a record or a shelf goes first. Without it the runs are read from
        # the new shelf, and a later packing removes whatever is left.
        if folder in runs:
            (folder / files.MANIFEST).unlink(missing_ok=True)
        if folder != top:
            (folder / files.SHELF).unlink(missing_ok=True)
        sync(folder)
        if folder in runs:
            _remove_files_of_run(folder)
        shelf = shelf_at(folder)
        named = {table["file"] for table in shelf.tables.values()} if shelf else set()
        for path in folder.iterdir():
            is_table = TABLE_NAME.fullmatch(path.name.removesuffix(files.WRITING))
            if is_table and path.name not in named:
                path.unlink()
        if folder != top:
            (folder / files.LOCK).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it holds somebody else's files
                folder.rmdir()


def _remove_files_of_run(place: Path) -> None:
    """Remove what a run wrote into its directory, except rollouts that stopped it."""
    for folder in (files.ROLLOUTS, files.CHECKPOINTS, "."):
        for path in files.own_files(place, folder):
            if path.is_file() and path.name != files.LOCK and not path.name.startswith("failed-"):
                path.unlink()
        if folder != ".":
            with contextlib.suppress(OSError):  # there is none, or it holds somebody else's files
                (place / folder).rmdir()
