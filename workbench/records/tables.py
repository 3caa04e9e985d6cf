"""The tables of a record: parquet files whose pages carry checksums."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workbench.records.errors import RecordError
from workbench.records.files import cause_of, replacing
from workbench.records.parts import COLUMNS, NEEDED_COLUMNS, OLD_COLUMNS

if TYPE_CHECKING:
    import pandas as pd


def write_table(path: Path, table: pa.Table, compact: bool = False) -> None:
    """Write a table, complete or not at all.

    Of a small table a third of the file is statistics of its columns, which nothing here asks for,
    and Arrow's own copy of the schema. A compact file leaves both out; a table that grows needs the
    second, so that its parts keep their types.
    """
    with replacing(path) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            write_page_checksum=True,
            write_statistics=not compact,
            store_schema=not compact,
        )


def read_table(path: Path, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table of a record.

    Parameters
    ----------
    path : Path
    kind : str
        `parts.ROUNDS`, `parts.EVALS` or `parts.ROLLOUTS`.
    columns : names, optional
        Those to read, as far as the table has them; None reads all.

    Raises
    ------
    FileNotFoundError
        Where there is no such file.
    RecordError
        Where it cannot be read, or is not a table of this kind.
    """
    # Opening a pipe or a device that a stranger left in the place of a file could wait for ever.
    if path.exists() and not path.is_file():
        raise RecordError(f"{path}: cannot be read: it is not an ordinary file")
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            wanted = None
            if columns is not None:
                wanted = [name for name in columns if name in file.schema_arrow.names]
            table = file.read(wanted)
        _check_columns(table, kind, columns)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        raise RecordError(f"{path}: cannot be read: {cause_of(error)}") from None
    return table


def read_frame(
    path: Path, kind: str, record_format: int, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Read a table as a DataFrame, with the names that columns have today.

    Parameters and errors are those of `read_table`; record_format is the format of the record.
    """
    old_names = OLD_COLUMNS[kind] if record_format == 1 else {}
    if columns is not None:
        # Asked for by the names of today, read by those in the file, and renamed back below.
        columns = [old_names.get(name, name) for name in columns]
    table = read_table(path, kind, columns)
    try:
        # The names are those of the table. What pandas once noted of them in the file may differ.
        frame = table.to_pandas(ignore_metadata=True)
    except (pa.ArrowException, ValueError, LookupError, TypeError) as error:
        raise RecordError(f"{path}: cannot be read: {cause_of(error)}") from None
    return frame.rename(columns={old: new for new, old in old_names.items()})


def column(values: object) -> pa.Array:
    """Values (R,) or (R, K) as a column of a table."""
    values = np.asarray(values)
    # Arrow takes numbers as they are; texts and rows of several numbers go through lists.
    if values.ndim > 1 or values.dtype.kind in "UO":
        return pa.array(values.tolist())
    return pa.array(values)


def _check_columns(table: pa.Table, kind: str, columns: Sequence[str] | None) -> None:
    """ValueError unless the columns that reading relies on are there and hold what they should."""
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


def _holds(needed: str, kind: pa.DataType) -> bool:
    """Whether a column of an Arrow type holds what `parts.COLUMNS` asks for."""
    if needed == "texts":
        return pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if needed == "whole numbers":
        return pa.types.is_integer(kind)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return is_number or pa.types.is_boolean(kind)
