"""Offline runs of Weights & Biases: run-ID.wandb in a folder offline-run-*.

Their messages are read by the package wandb. A run that was exported as CSV, JSON or parquet is a
table.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.analysis.sources.log import Log, flat, highest_rate, numeric

SOURCE = "W&B run"
BLOCK = 2**15  # bytes


def fits(path: Path) -> bool:
    """Whether it is an offline run."""
    return path.suffix == ".wandb" if path.is_file() else any(path.glob("*.wandb"))


def read(path: Path) -> Log:
    """The history, with the seed and the learning rate of the configuration."""
    try:
        from wandb.proto.wandb_internal_pb2 import Record
    except ImportError:
        raise ImportError(f"{path}: offline runs need wandb: pip install wandb") from None
    file = path if path.is_file() else sorted(path.glob("*.wandb"))[0]
    log = Log(path, SOURCE, [])
    config: dict[str, Any] = {}
    is_whole = False
    for data in _messages(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        config |= _items(record.run.config.update) | _items(record.config.update)
        if record.history.item:
            log.rows.append(flat(_items(record.history.item)))
        is_whole |= record.HasField("exit")
        log.run = record.run.run_id or log.run
    if not is_whole:
        log.notes.append("it has no end: it is going on, was killed, or is damaged")
    if numeric(config.get("seed")):
        log.seed = int(config["seed"])
    log.rate = highest_rate([config])
    return log


def _items(items: Any) -> dict[str, Any]:
    """Names and values, which W&B writes as JSON."""
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def _messages(data: bytes) -> Iterator[bytes]:
    """The messages of a file, up to the first that is cut off or whose sum is wrong.

    The file is a log of LevelDB: blocks of 32 KiB, in which pieces have a sum, a length and a kind
    (1 is a whole message, 2, 3 and 4 are the beginning, the middle and the end of one).
    """
    at = 7  # behind the name and the version of the format
    message = b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        total, length, kind = struct.unpack("<IHB", data[at : at + 7])
        piece = data[at + 7 : at + 7 + length]
        at += 7 + length
        if total != zlib.crc32(bytes([kind]) + piece):
            return
        message += piece
        if kind in (1, 4):
            yield message
            message = b""
