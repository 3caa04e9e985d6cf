"""Tables of metrics: JSON lines, CSV, TSV, JSON and parquet.

verl's file logger writes {"step": 1, "data": {"critic/score/mean": 0.5, ...}} into each line; other
programs write the metrics beside the step.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from workbench.analysis.sources.log import Log, flat, json_lines

SOURCE = "table of metrics"
LINES = (".jsonl", ".ndjson")
READERS = {
    ".csv": pd.read_csv,
    ".tsv": lambda path: pd.read_csv(path, sep="\t"),
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
        return Log(path, SOURCE, READERS[path.suffix](path).to_dict("records"))
    lines, notes = json_lines(path if path.is_file() else next(path.glob("*.jsonl")))
    for line in lines:
        data = line.pop("data", None)
        line |= data if isinstance(data, dict) else {}
    return Log(path, SOURCE, [flat(line) for line in lines], notes=notes)
