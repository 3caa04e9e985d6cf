"""Tables of a record: parquet files, and what the columns of a record may hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from workbench.records.files import MissingPart, RecordError, read_ordinary
from workbench.rollouts import Ragged
from workbench.utils.validation import cause_of

# The types of Arrow of the columns that reading a record relies on, in whichever table they are. A
# table in which one of them holds anything else counts as damaged, and so does one that lacks a
# column of `NEEDED_COLUMNS`.
NUMBERS = (types.is_integer, types.is_floating, types.is_boolean, types.is_null)
TEXTS = (types.is_string, types.is_large_string, types.is_null)
COLUMNS = {
    "round": (types.is_integer, types.is_null),
    **dict.fromkeys(("rollouts", "seconds", "flops", "samples", "correct"), NUMBERS),
    **dict.fromkeys(("greedy", "reward"), NUMBERS),
    **dict.fromkeys(("problem", "text", "status", "warnings", "question", "gold"), TEXTS),
}
NEEDED_COLUMNS = {
    "rounds": ("round",),
    "evals": ("round", "problem", "samples", "correct", "greedy"),
    "problems": ("problem", "question", "gold"),
    "rollouts": (),  # whoever packs a record chooses what is kept of its rollouts
}


def content_of(table: pa.Table, level: int | None = None) -> bytes:
    """The content of a parquet file with a table, compressed at a level of zstd.

    With a level each column is also written in the way that takes the least room.
    """
    if level is None:
        return _written(table)
    apart = _smaller_with_bytes_apart(table)
    # The columns inside of lists have names of their own, which a table without rows tells.
    schema = pq.ParquetFile(pa.BufferReader(_written(table.slice(0, 0)))).metadata.schema
    inner = [schema.column(place).path for place in range(len(schema))]
    return _written(
        table,
        compression_level=level,
        use_dictionary=[name for name in inner if name not in apart],
        use_byte_stream_split=apart,
    )


def _smaller_with_bytes_apart(table: pa.Table) -> list[str]:
    """The columns of floats that take less room when the bytes of their numbers are kept apart.

    These are numbers of many digits. Those with few different values are smaller as a dictionary.
    """
    found = []
    for field in table.schema:
        if pa.types.is_floating(field.type):
            column = table.select([field.name])
            apart = _written(column, use_dictionary=False, use_byte_stream_split=True)
            if len(apart) < len(_written(column)):
                found.append(field.name)
    return found


def _written(table: pa.Table, **options: Any) -> bytes:
    """The content of a parquet file with a table, compressed by zstd."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", **options)
    return sink.getvalue().to_pybytes()


def read_part(path: Path, number: int, digest: str, columns: Sequence[str] | None) -> pa.Table:
    """The rollouts of the file of a round, with the round's number in the column `part`.

    Columns that the file does not have are left out.
    """
    with reading(path):
        file = pq.ParquetFile(pa.BufferReader(read_ordinary(path, digest)))
        table = checked(file.read(columns), "rollouts")
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


def checked(table: pa.Table, kind: str) -> pa.Table:
    """The table; ValueError unless the columns that reading relies on hold what they should."""
    for name in NEEDED_COLUMNS[kind]:
        if name not in table.column_names:
            raise ValueError(f"column {name!r} is missing")
        # A gap would turn whole numbers into floats in pandas.
        if table[name].null_count:
            raise ValueError(f"column {name!r} has gaps")
    for name in table.column_names:
        found = table[name].type
        if name in COLUMNS and not any(is_right(found) for is_right in COLUMNS[name]):
            raise ValueError(f"column {name!r} is of type {found}, which it cannot be")
    # A row that is missing or comes twice would shift everything that is summed over rounds.
    if kind == "rounds" and table["round"].to_pylist() != list(range(1, len(table) + 1)):
        raise ValueError("its rounds are not 1, 2, 3 and so on")
    return table


def column(values: object) -> pa.Array:
    """Values (R,) or (R, K), or rows of different lengths, as a column of a table."""
    if isinstance(values, Ragged):
        return pa.array([values[i].tolist() for i in range(len(values))])
    values = np.asarray(values)
    # Arrow takes numbers as they are; texts and rows of several numbers go through lists.
    if values.ndim > 1 or values.dtype.kind in "UO":
        return pa.array(values.tolist())
    return pa.array(values)
