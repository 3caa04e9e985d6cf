"""Output directories of transformers' trainers, and of TRL's: trainer_state.json and completions.

transformers writes the state into every checkpoint, and into the directory itself when a program
calls `trainer.save_state()`. TRL writes completions/completions_*.parquet with `log_completions`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    """The log history, and how many completions there were by each step."""
    folder = path.parent if path.is_file() else path
    # The directory's own state may be older than a checkpoint of a run that went on.
    files = [path] if path.is_file() else [path / STATE, *path.glob(f"checkpoint-*/{STATE}")]
    states = [json.loads(each.read_text(encoding="utf-8")) for each in files if each.exists()]
    by_step = _completions(folder)
    if not states:
        note = f"it has no {STATE}, so that its completions are read; rewards weigh 1 each"
        return Log(path, SOURCE, list(by_step.values()), notes=[note])
    state = max(states, key=lambda each: each["global_step"])
    # The last row has totals of the whole training.
    log = Log(path, SOURCE, [row for row in state["log_history"] if "train_runtime" not in row])
    if state["global_step"] < state["max_steps"]:
        log.notes.append(
            f"it is at step {state['global_step']} of {state['max_steps']}: it is going on, or was "
            "stopped"
        )
    # Where not every step has completions their number would be too small.
    if {row["step"] for row in log.rows if "reward" in row} <= by_step.keys():
        counts = {step: {"rollouts": each["rollouts"]} for step, each in by_step.items()}
        log.rows = [{**row, **counts.get(row["step"], {})} for row in log.rows]
    return log


def _completions(folder: Path) -> dict[int, dict[str, Any]]:
    """By step: the mean of the rewards' sum, and completions until then."""
    files = sorted(folder.glob("completions/*.parquet"))
    if not files:
        return {}
    table = pd.concat([pd.read_parquet(each) for each in files])
    names = table.columns.difference(NO_REWARDS)
    rewards = table[names].select_dtypes("number").sum(axis=1)
    by_step = rewards.groupby(table["step"].astype(int)).agg(["mean", "size"])
    rows = zip(by_step.index.tolist(), by_step["mean"].tolist(), by_step["size"].cumsum().tolist())
    return {step: {"step": step, "reward": mean, "rollouts": total} for step, mean, total in rows}
