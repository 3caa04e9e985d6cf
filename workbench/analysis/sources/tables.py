"""Tables of metrics: JSON lines, CSV, TSV, JSON and parquet.

verl's file logger writes {"step": 1, "data": {"critic/score/mean": 0.5, ...}} into each line; other
programs write the metrics beside the step.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.analysis.sources.log import Log, flat, json_lines

SOURCE = "table of metrics"
LINES = (".jsonl", ".ndjson")
READERS = {
    ".csv": partial(pd.read_csv, dtype=str, keep_default_na=False),
    ".tsv": partial(pd.read_csv, dtype=str, keep_default_na=False, sep="\t"),
    ".json": lambda path: pd.read_json(path, precise_float=True),
    ".parquet": pd.read_parquet,
}


def fits(path: Path) -> bool:
    """Whether the file's ending is that of a table, or a folder has one file of JSON lines."""
    if path.is_file():
        return path.suffix in (*LINES, *READERS)
    return len(list(path.glob("*.jsonl"))) == 1


def read(path: Path) -> Log:
    """The rows of the table. The index of a DataFrame that was saved is a column without a name."""
    if path.suffix in READERS:
        frame = READERS[path.suffix](path)
        # Parquet keeps an index that has names, and names of several levels.
        frame = frame.reset_index() if any(frame.index.names) else frame
        table = frame.to_dict("records")
        return Log(path, SOURCE, [{str(name): _value(row[name]) for name in row} for row in table])
    lines, notes = json_lines(path if path.is_file() else next(path.glob("*.jsonl")))
    for line in lines:
        data = line.pop("data", None)
        line |= data if isinstance(data, dict) else {}
    return Log(path, SOURCE, [flat(line) for line in lines], notes=notes)


def _value(cell: Any) -> Any:
    """What was logged, None where nothing was: a row of an evaluation has no loss.

    An empty cell of CSV is an empty text, and one of the other kinds is NaN.
    """
    if isinstance(cell, str):
        return cell if cell.strip() else None
    return None if isinstance(cell, float) and math.isnan(cell) else cell
