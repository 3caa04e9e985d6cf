"""Offline runs of Weights & Biases: run-ID.wandb in a folder offline-run-*.

They are read by the package wandb. A run that was exported as CSV, JSON or parquet is a table.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workbench.analysis.sources.log import Log, flat, highest_rate, numeric

SOURCE = "W&B run"


def fits(path: Path) -> bool:
    """Whether it is an offline run."""
    return path.suffix == ".wandb" if path.is_file() else any(path.glob("*.wandb"))


def read(path: Path) -> Log:
    """The history, with the seed and the learning rate of the configuration."""
    try:
        from wandb.proto.wandb_internal_pb2 import Record
        from wandb.sdk.internal.datastore import DataStore
    except ImportError:
        raise ImportError(f"{path}: offline runs need wandb: pip install wandb") from None
    files = [path] if path.is_file() else sorted(path.glob("*.wandb"))
    log = Log(path, SOURCE, [])
    config: dict[str, Any] = {}
    store = DataStore()
    store.open_for_scan(str(files[0]))
    try:
        while data := store.scan_data():
            record = Record()
            record.ParseFromString(data)
            config |= _items(record.run.config.update) | _items(record.config.update)
            if record.history.item:
                log.rows.append(flat(_items(record.history.item)))
    except (AssertionError, OSError):
        # wandb checks sums by assertions. A run that is going on ends within a block.
        log.notes.append("its end cannot be read: it is going on, was killed, or is damaged")
    if numeric(config.get("seed")):
        log.seed = int(config["seed"])
    log.rate = highest_rate([config]) or highest_rate(log.rows)
    return log


def _items(items: Any) -> dict[str, Any]:
    """Names and values, which W&B writes as JSON."""
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
