"""Tables of a record: parquet files, checked before their rows are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from workbench.records.files import MissingPart, RecordError, file_digest, replacing
from workbench.utils.validation import cause_of

# A table of a few megabytes on the disk can have hundreds of millions of rows, so its size is
# looked at before anything is read. The numbers of one run stay far below these bounds.
MOST_CELLS = 10**8  # values of all columns
MOST_BYTES = 2**32  # uncompressed, and of all texts when each stands in its own row

# The types of Arrow of the columns that reading a record relies on, in whichever table they are. A
# table in which one of them holds anything else counts as damaged, and so does one that lacks a
# column of `NEEDED_COLUMNS`.
NUMBERS = (types.is_integer, types.is_floating, types.is_boolean, types.is_null)
TEXTS = (types.is_string, types.is_large_string, types.is_null)
COLUMNS = {
    "round": (types.is_integer, types.is_null),
    **dict.fromkeys(("rollouts", "seconds", "flops", "samples", "correct"), NUMBERS),
    **dict.fromkeys(("greedy", "reward"), NUMBERS),
    **dict.fromkeys(("problem", "text", "status", "warnings"), TEXTS),
}
NEEDED_COLUMNS = {
    "rounds": ("round",),
    "evals": ("round", "problem", "samples", "correct", "greedy"),
    "rollouts": (),  # whoever packs a record chooses what is kept of its rollouts
}


def write_table(path: Path, table: pa.Table) -> str:
    """Write a table, complete or not at all; returns the digest of the file."""
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
        return file_digest(temporary)


def open_table(path: Path, digest: str | None) -> pq.ParquetFile:
    """Open a file that should have this digest; None does not check it.

    Raises
    ------
    ValueError, OSError
        Where it is not the file that was written, or cannot be read.
    """
    if digest not in (file_digest(path), None):
        raise ValueError("it was changed, or is a part of another run")
    return parquet_file(path)


def parquet_file(path: Path) -> pq.ParquetFile:
    """Open a parquet file for `read_rows`."""
    metadata = pq.read_metadata(path)
    columns = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    # A text that stands in many rows is in the file once. It is read as it stands there, so that
    # `read_rows` can tell how much memory all rows would take.
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    return pq.ParquetFile(
        path, metadata=metadata, read_dictionary=texts, page_checksum_verification=True
    )


def read_rows(
    file: pq.ParquetFile, columns: Sequence[str] | None = None, group: int | None = None
) -> pa.Table:
    """The rows of a file, or of one of its row groups; ValueError where they are too many.

    Columns that the file does not have are left out.
    """
    groups = range(file.num_row_groups) if group is None else [group]
    there = file.schema_arrow.names
    names = there if columns is None else [name for name in columns if name in there]
    sizes = [file.metadata.row_group(each) for each in groups]
    leaves = [size.column(i) for size in sizes for i in range(size.num_columns)]
    # A row of a list has several values.
    cells = sum(leaf.num_values for leaf in leaves if leaf.path_in_schema.split(".")[0] in names)
    if cells > MOST_CELLS or sum(size.total_byte_size for size in sizes) > MOST_BYTES:
        raise ValueError(
            f"it has {cells} values in {len(names)} columns, which is too large to read"
        )
    table = file.read_row_groups(list(groups), columns=names)
    texts = [name for name in names if types.is_dictionary(table[name].type)]
    length = sum(_length_of_texts(table[name]) for name in texts)
    if length > MOST_BYTES:
        raise ValueError(f"its texts take {length} bytes, which is too large to read")
    for name in texts:
        place = table.column_names.index(name)
        table = table.set_column(place, name, table[name].cast(table[name].type.value_type))
    return table


def _length_of_texts(column: pa.ChunkedArray) -> int:
    """The bytes of all texts of a column that is read as a dictionary and places in it."""
    lengths = [
        pc.sum(pc.take(pc.binary_length(chunk.dictionary), chunk.indices)).as_py()
        for chunk in column.chunks
    ]
    return sum(length or 0 for length in lengths)


def read_part(
    path: Path, number: int, digest: str | None, columns: Sequence[str] | None
) -> pa.Table:
    """The rollouts of the file of a round, with the round's number in the column `part`."""
    with reading(path), open_table(path, digest) as file:
        table = checked(read_rows(file, columns), "rollouts")
        part = pa.array([number] * file.metadata.num_rows, pa.int64())
        return pa.table({**dict(zip(table.column_names, table.columns)), "part": part})


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables one below the other; a column that one lacks is empty in its rows."""
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever goes wrong in the block becomes a RecordError with the path.

    A file that is not there, or goes while it is read, becomes a MissingPart.
    """
    try:
        yield
    except RecordError:
        raise
    except FileNotFoundError:
        raise MissingPart(f"{path}: missing") from None
    except Exception as error:
        # The file may come from a stranger. Whatever a library makes of its content, the cause is
        # the file.
        raise RecordError(f"{path}: cannot be read: {cause_of(error)}") from None


def checked(table: pa.Table, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The table; ValueError unless the columns that reading relies on hold what they should."""
    for name in NEEDED_COLUMNS[kind]:
        is_wanted = columns is None or name in columns
        if is_wanted and name not in table.column_names:
            raise ValueError(f"column {name!r} is missing")
        # A gap would turn whole numbers into floats in pandas.
        if is_wanted and table[name].null_count:
            raise ValueError(f"column {name!r} has gaps")
    for name in table.column_names:
        kind_of_column = table[name].type
        if name in COLUMNS and not any(is_right(kind_of_column) for is_right in COLUMNS[name]):
            raise ValueError(f"column {name!r} is of type {kind_of_column}, which it cannot be")
    if kind == "rounds" and columns is None:
        # A row that is missing or comes twice would shift everything that is summed over rounds.
        if table["round"].to_pylist() != list(range(1, len(table) + 1)):
            raise ValueError("its rounds are not 1, 2, 3 and so on")
    return table


def column(values: object) -> pa.Array:
    """Values (R,) or (R, K) as a column of a table."""
    values = np.asarray(values)
    # Arrow takes numbers as they are; texts and rows of several numbers go through lists.
    if values.ndim > 1 or values.dtype.kind in "UO":
        return pa.array(values.tolist())
    return pa.array(values)
