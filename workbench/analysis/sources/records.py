"""Runs of this library: records, packed ones included."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from workbench.analysis.curves import UNITS, scores
from workbench.analysis.sources.log import Log
from workbench.records import Record, record_paths

SOURCE = "record"


def fits(path: Path) -> bool:
    """Whether a path is one record."""
    return [each.resolve() for each in record_paths(path)] == [path.resolve()]


def read(path: Path) -> Log:
    """Held-out scores, rewards and costs of every round."""
    record = Record(path)
    rounds = record.rounds
    if rounds.empty:
        raise ValueError(f"{path}: the record has no round yet")
    costs = [name for name in UNITS if name in rounds and name != "round"]
    table = rounds[["round", *costs, "reward"]].assign(**rounds[costs].fillna(0).cumsum())
    table = table.set_index("round")
    if len(record.evals):
        # Round 0 is before training, when nothing has been spent.
        table = table.reindex([0, *table.index])
        table.loc[0, costs] = 0.0
        for name in ("accuracy", "greedy"):
            with warnings.catch_warnings(action="ignore"):
                table[name] = scores(record, name)
    rows = table.reset_index().astype(float).to_dict("records")
    rows = [{name: value for name, value in row.items() if np.isfinite(value)} for row in rows]
    rate = record.manifest.get("arguments", {}).get("learning_rate")
    problems = frozenset(record.evals["problem"]) if len(record.evals) else None
    return Log(path, SOURCE, rows, record.seed, rate, problems=problems)
