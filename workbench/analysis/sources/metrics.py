"""Files of metrics, a JSON object a line: verl's and OpenRLHF's.

verl's file logger writes {"step": 1, "data": {"critic/score/mean": 0.5, ...}}; other programs write
the metrics beside the step.
"""

from __future__ import annotations

from pathlib import Path

from workbench.analysis.sources.log import Log, flat, highest_rate, json_lines

SOURCE = "file of metrics"


def fits(path: Path) -> bool:
    """Whether it is a file of JSON lines, or a folder with one."""
    files = [path] if path.is_file() else list(path.glob("*.jsonl"))
    return len(files) == 1 and files[0].suffix in (".jsonl", ".ndjson")


def read(path: Path) -> Log:
    """The metrics of every line."""
    lines, notes = json_lines(path if path.is_file() else next(path.glob("*.jsonl")))
    rows = []
    for line in lines:
        data = line.pop("data", None)
        rows.append(flat({**line, **data} if isinstance(data, dict) else line))
    return Log(path, SOURCE, rows, rate=highest_rate(rows), notes=notes)
