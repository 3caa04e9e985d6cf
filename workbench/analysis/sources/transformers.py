"""Output directories of transformers' trainers, and of TRL's: trainer_state.json and completions.

transformers writes the state into every checkpoint, and into the directory itself when a program
calls `trainer.save_state()`. TRL writes completions/completions_*.parquet with `log_completions`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.analysis.sources.log import Log, highest_rate

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
    log = Log(path, SOURCE, [])
    states = [path] if path.is_file() else _states(path)
    if states:
        state = json.loads(states[-1].read_text(encoding="utf-8"))
        # The last row has totals of the whole training.
        log.rows = [row for row in state["log_history"] if "train_runtime" not in row]
        log.rate = highest_rate(log.rows)
        if state["global_step"] < state["max_steps"]:
            log.notes.append(
                f"it is at step {state['global_step']} of {state['max_steps']}: it is going on, or "
                "was stopped"
            )
    by_step = _completions(folder)
    if not states:
        log.rows = list(by_step.values())
        log.notes.append(f"it has no {STATE}, so that its completions are read")
    # Where not every step has completions their number would be too small.
    elif {row["step"] for row in log.rows if "reward" in row} <= by_step.keys():
        log.rows = [
            {**row, "rollouts": by_step[row["step"]]["rollouts"]} if row["step"] in by_step else row
            for row in log.rows
        ]
    return log


def _states(path: Path) -> list[Path]:
    """The files of the state, the newest last."""
    found = {}
    for each in [*path.glob(f"checkpoint-*/{STATE}"), path / STATE]:
        if each.exists():
            # The directory's own state may be older than a checkpoint of a run that went on.
            found[each] = json.loads(each.read_text(encoding="utf-8"))["global_step"]
    return sorted(found, key=lambda each: found[each])


def _completions(folder: Path) -> dict[int, dict[str, Any]]:
    """By step: the mean of the rewards' sum, and completions until then."""
    files = sorted(folder.glob("completions/*.parquet"))
    if not files:
        return {}
    table = pd.concat([pd.read_parquet(each) for each in files])
    names = table.columns.difference(NO_REWARDS)
    rewards = table[names].select_dtypes("number").sum(axis=1)
    by_step = rewards.groupby(table["step"]).agg(["mean", "size"])
    totals = by_step["size"].cumsum()
    return {
        int(step): {"step": int(step), "reward": mean, "rollouts": int(totals[step])}
        for step, mean in by_step["mean"].items()
    }
