"""Output directories of transformers' trainers, and of TRL's: trainer_state.json and completions.

transformers writes the state into every checkpoint, and into the directory itself when a program
calls `trainer.save_state()`. TRL writes completions/completions_*.parquet with `log_completions`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.sources.log import Log

SOURCE = "TRL or transformers directory"
STATE = "trainer_state.json"
# What completions have besides a column for each reward function.
NO_REWARDS = ("step", "prompt", "completion", "advantage")


def fits(path: Path) -> bool:
    """Whether a trainer has written its state or completions there."""
    if path.is_file():
        return path.name == STATE
    written = (STATE, f"checkpoint-*/{STATE}", "completions/*.parquet")
    return any(any(path.glob(each)) for each in written)


def read(path: Path) -> Log:
    """The log history, and how many rollouts there were by each step where it tells them."""
    folder = path.parent if path.is_file() else path
    # The directory's own state may be older than a checkpoint of a run that went on.
    files = [path] if path.is_file() else [path / STATE, *path.glob(f"checkpoint-*/{STATE}")]
    states = [json.loads(each.read_text(encoding="utf-8")) for each in files if each.exists()]
    by_step = _completions(folder)
    if not states:
        note = f"it has no {STATE}, so that its completions are read; rewards weigh 1 each"
        rows = by_step[["reward"]].reset_index().to_dict("records")
        return Log(path, SOURCE, rows, notes=[note])
    state = max(states, key=lambda each: each["global_step"])
    # The last row has totals of the whole training.
    log = Log(path, SOURCE, [row for row in state["log_history"] if "train_runtime" not in row])
    if state["global_step"] < state["max_steps"]:
        log.notes.append(
            f"it is at step {state['global_step']} of {state['max_steps']}: it is going on, or was "
            "stopped"
        )
    _add_rollouts(log.rows, by_step["rollouts"].to_dict())
    return log


def _add_rollouts(rows: list[dict[str, Any]], kept: dict[int, int]) -> None:
    """Add the rollouts until then to every row, where the log tells them.

    Of a step TRL keeps the completions of one generation alone, and no more than it trains on, so
    that every step must be there, and a method's own number comes first. A step without a reward
    has sampled nothing.
    """
    steps = [row["step"] for row in rows if "loss" in row]
    counts = [
        row.get("workbench/rollouts", kept.get(row["step"], np.nan)) if "reward" in row else 0
        for row in rows
    ]
    totals = np.cumsum(counts).tolist()
    if steps == list(range(1, len(steps) + 1)) and any(counts) and np.isfinite(totals[-1]):
        for row, total in zip(rows, totals):
            row["rollouts"] = total


def _completions(folder: Path) -> pd.DataFrame:
    """By step: the mean of the rewards' sum, and the number of completions."""
    files = sorted(folder.glob("completions/*.parquet"))
    if not files:
        return pd.DataFrame(columns=["reward", "rollouts"])
    table = pd.concat([pd.read_parquet(each) for each in files])
    names = table.columns.difference(NO_REWARDS)
    rewards = table[names].select_dtypes("number").sum(axis=1)
    return rewards.groupby(table["step"].astype(int)).agg(reward="mean", rollouts="size")
