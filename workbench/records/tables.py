"""Tables of a record: parquet files, checked before their rows are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workbench.records.errors import RecordError
from workbench.records.files import cause_of, file_digest, replacing
from workbench.records.parts import COLUMNS, NEEDED_COLUMNS

# A table of a few megabytes on the disk can have hundreds of millions of rows, so its size is
# looked at before anything is read. The numbers of one run stay far below these bounds.
MOST_CELLS = 10**8  # rows times columns
MOST_BYTES = 2**32  # uncompressed


def write_table(path: Path, table: pa.Table) -> str:
    """Write a table, complete or not at all; returns the digest of the file."""
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
        return file_digest(temporary)


def open_table(path: Path, digest: str | None) -> pq.ParquetFile:
    """Open a file that should have this digest; None does not check it.

    Raises
    ------
    RecordError
        Where it is not the file that was written, or cannot be read.
    """

    def opened() -> pq.ParquetFile:
        if digest not in (file_digest(path), None):
            raise ValueError("it was changed, or is a part of another run")
        return pq.ParquetFile(path, page_checksum_verification=True)

    return reading(path, opened)


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
    rows = sum(size.num_rows for size in sizes)
    if rows * len(names) > MOST_CELLS or sum(size.total_byte_size for size in sizes) > MOST_BYTES:
        raise ValueError(f"it has {rows} rows and {len(names)} columns, which is too large to read")
    return file.read_row_groups(list(groups), columns=names)


def reading(path: Path, read: Callable[[], Any]) -> Any:
    """What `read` returns; RecordError with the path for whatever goes wrong.

    FileNotFoundError is passed on, since a file may go while somebody reads.
    """
    try:
        return read()
    except (FileNotFoundError, RecordError):
        raise
    except RecursionError:
        raise RecordError(f"{path}: cannot be read: it is nested too deeply") from None
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        OverflowError,
    ) as error:
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
    for name, needed in COLUMNS[kind].items():
        if name in table.column_names and not _holds(needed, table[name].type):
            raise ValueError(f"column {name!r} is of type {table[name].type}; {needed} are needed")
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


def _holds(needed: str, kind: pa.DataType) -> bool:
    """Whether a column of an Arrow type holds what `parts.COLUMNS` asks for."""
    if pa.types.is_null(kind):
        return True
    if needed == "texts":
        return pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if needed == "whole numbers":
        return pa.types.is_integer(kind)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return is_number or pa.types.is_boolean(kind)
