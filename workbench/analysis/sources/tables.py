"""Tables of step and value: CSV, TSV, JSON and parquet."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from workbench.analysis.sources.log import Log, highest_rate

SOURCE = "table"
READERS = {
    ".csv": pd.read_csv,
    ".tsv": lambda path: pd.read_csv(path, sep="\t"),
    ".json": lambda path: pd.read_json(path, precise_float=True),
    ".parquet": pd.read_parquet,
}


def fits(path: Path) -> bool:
    """Whether the file's ending is that of a table."""
    return path.is_file() and path.suffix in READERS


def read(path: Path) -> Log:
    """The rows of the table. The index of a DataFrame that was saved is a column without a name."""
    rows = READERS[path.suffix](path).to_dict("records")
    return Log(path, SOURCE, rows, rate=highest_rate(rows))
