"""Sampled responses that somebody has: tables of them in the usual forms, as one table.

A row is a response or a problem. TRL's logged completions and verl's rollout dumps are folders of
files with a row a response, and so they are read like any other.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.datasets.rows import KINDS
from workbench.utils.validation import (
    brief,
    check_size,
    did_you_mean,
    is_number,
    one_of,
    positive_number,
    whole_number,
)
from workbench.verifiers.boxes import last_box, tagged

ASKED = ("prompt", "question", "input")
# Our names, and what others call the same. An earlier name goes before a later one.
NAMES = {
    "problem": ("problem", "problem_id", "prompt_id", "question_id", "id", "uid", *ASKED),
    "samples": ("samples", "num_samples", "n_samples", "attempts", "total", "n"),
    "correct": ("correct", "is_correct", "num_correct", "n_correct", "acc", "passed", "solved"),
    "rate": ("rate", "pass_rate", "success_rate", "solve_rate", "accuracy"),
    "reward": ("reward", "rewards", "score", "accuracy_reward"),
    "length": ("length", "response_length", "completion_length", "num_tokens", "tokens"),
    "truncated": ("truncated", "clipped", "is_truncated"),
    "text": ("text", "response", "completion", "output", "generation"),
    "given": ("given", "extracted_answer", "prediction", "pred"),
    "prompt": ASKED,
    "answer": ("answer", "gold", "gts", "ground_truth", "solution"),
    "level": ("level", "difficulty"),
    "step": ("step", "global_step"),
}
SIDES = ({0.0, 1.0}, {-1.0, 1.0})  # rewards that are verdicts
TRUTHS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}


def read_samples(
    path: Path, samples: int | None, solved: float | None, columns: Mapping[str, str]
) -> tuple[pd.DataFrame, pd.DataFrame | None, list[str]]:
    """The table of problems, the responses where a row is one, and notes; see `Profile.read`."""
    for name in columns:
        one_of("columns", name, NAMES)
    if samples is not None:
        whole_number("samples", samples, 1)
    rows, places = _rows(path)

    def refused(row: int, why: str) -> ValueError:
        return ValueError(f"path={str(path)!r}: {places[row]}: {why}")

    if not rows:
        raise ValueError(f"path={str(path)!r}: it has no rows")
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise refused(number, f"{brief(row)}; an object is needed")
    found = _columns(rows[0], columns, path)
    for number, row in enumerate(rows):
        for name in found.values():
            if name not in row:
                raise refused(number, f"there is no {name!r}, which row 0 has")
    held = {ours: [row[theirs] for row in rows] for ours, theirs in found.items()}
    if "problem" not in held or not held.keys() & {"correct", "rate", "reward"}:
        raise ValueError(
            f"path={str(path)!r}: a problem and a verdict (correct, reward or rate) are needed; "
            f"there are {', '.join(map(repr, rows[0]))}, and columns={{'problem': ...}} says which "
            "is which"
        )
    data: dict[str, Any] = {}
    for name, values in held.items():
        if name in ("problem", "prompt", "text", "given", "answer"):
            data[name] = [_text(value) for value in values]
            continue
        data[name] = [_number(value) for value in values]
        for number, value in enumerate(data[name]):
            # What only describes a response may be missing; what is counted may not.
            if value is None and name in ("samples", "correct", "rate", "reward"):
                raise refused(
                    number, f"{found[name]} is {brief(values[number])}; a number is needed"
                )
    frame = pd.DataFrame(data)
    for number in np.flatnonzero(frame["problem"].str.strip() == ""):
        raise refused(number, f"{found['problem']} is blank")
    if "samples" in frame or "rate" in frame or samples is not None:
        return _of_problems(frame, samples, refused), None, []
    if "correct" in frame:
        wrong = ~frame["correct"].isin([0, 1])
        if wrong.any():
            number = int(np.argmax(wrong))
            raise refused(
                number,
                f"{found['correct']} is {brief(held['correct'][number])}; a row a response has 0 "
                "or 1, and a row a problem has a column samples as well",
            )
    else:
        frame["correct"] = _verdicts(frame["reward"], solved, path)
    frame["correct"] = frame["correct"].astype(bool)
    notes = []
    if "step" in frame and frame["step"].nunique() > 1:
        first, last = frame["step"].min(), frame["step"].max()
        notes.append(
            f"the responses are of steps {first:g} to {last:g} of a training run: a rate is the "
            "mean over models that differ"
        )
    if "given" not in frame and "text" in frame:
        frame["given"] = frame["text"].map(final_answer)
    return tally(frame), frame, notes


def _rows(path: Path) -> tuple[list[Any], list[str]]:
    """All rows of a file or of the files of a folder, and what each is called in messages."""
    paths = [path]
    if path.is_dir():
        inside = [each for each in path.iterdir() if each.suffix in KINDS]
        # Steps are numbered, and 10 comes behind 9.
        paths = sorted(inside, key=lambda each: [int(n) for n in re.findall(r"\d+", each.stem)])
    if not paths or paths[0].suffix not in KINDS:
        raise ValueError(f"path={str(path)!r}: a file ending in {', '.join(KINDS)} is needed")
    rows: list[Any] = []
    places: list[str] = []
    for each in paths:
        check_size(each)
        try:
            part = KINDS[each.suffix](each)
        except (ValueError, csv.Error, RecursionError) as error:
            raise ValueError(f"path={str(each)!r}: {error}") from None
        rows += part
        of_file = f"{each.name}, " if len(paths) > 1 else ""
        places += [f"{of_file}row {number}" for number in range(len(part))]
    return rows, places


def _columns(row: Mapping[str, Any], given: Mapping[str, str], path: Path) -> dict[str, str]:
    """Our name -> the name in the file, of all that is there."""
    for name in given.values():
        if name not in row:
            raise ValueError(
                f"columns: {path} has no column {name!r}; there are {', '.join(map(repr, row))}"
                f"{did_you_mean(name, row)}"
            )
    found = {
        ours: next(name for name in names if name in row)
        for ours, names in NAMES.items()
        if any(name in row for name in names)
    }
    return {**found, **given}


def _of_problems(frame: pd.DataFrame, samples: int | None, refused: Any) -> pd.DataFrame:
    """The table of problems of a file with a row a problem."""
    if "samples" not in frame:
        if samples is None:
            raise refused(
                0, "there are rates alone; samples=16 says how many responses they are of"
            )
        frame["samples"] = samples
    if "correct" not in frame:
        if "rate" not in frame:
            raise refused(0, "correct, or a rate, is needed beside samples")
        frame["correct"] = frame["rate"] * frame["samples"]
        # Rates are printed with few digits.
        frame["correct"] = (
            frame["correct"]
            .round()
            .where((frame["correct"] - frame["correct"].round()).abs() < 0.2, frame["correct"])
        )
    counts = frame[["samples", "correct"]]
    possible = (counts == counts.round()).all(axis=1) & (frame["samples"] >= 1)
    possible &= (frame["correct"] >= 0) & (frame["correct"] <= frame["samples"])
    for number in np.flatnonzero(~possible):
        row = frame.iloc[number]
        raise refused(number, f"{row['correct']:g} of {row['samples']:g} responses cannot be right")
    for number in np.flatnonzero(frame["problem"].duplicated()):
        raise refused(number, f"problem {frame['problem'][number]!r} occurs twice")
    kept = [name for name in frame if name not in ("reward", "rate", "step")]
    return frame[kept].astype({"samples": np.int64, "correct": np.int64})


def _verdicts(rewards: pd.Series, solved: float | None, path: Path) -> Any:
    """Which rewards say that a response is right."""
    if solved is not None:
        positive_number("solved", solved)
        return rewards >= solved
    if not any(set(rewards) <= side for side in SIDES):
        raise ValueError(
            f"path={str(path)!r}: rewards are {brief(sorted(set(rewards)))}; solved=1.0 says from "
            "which reward a response counts as right"
        )
    return rewards > 0


def _number(value: Any) -> float | None:
    """A number, a truth value or a text of one; None for anything else."""
    if isinstance(value, str):
        text = value.strip().lower()
        if text in TRUTHS:
            return TRUTHS[text]
        try:
            value = float(text)
        except ValueError:
            return None
    if isinstance(value, bool | np.bool_) or is_number(value):
        return float(value)
    return None


def _text(value: Any) -> str:
    """A value as text: of a conversation, what its turns say; anything else as JSON has it."""
    if isinstance(value, str):
        return value
    is_chat = isinstance(value, list) and all(isinstance(turn, Mapping) for turn in value)
    if is_chat and value and all("content" in turn for turn in value):
        return "\n".join(str(turn["content"]) for turn in value)
    return "" if value is None else json.dumps(value, default=str)


def tally(rollouts: pd.DataFrame) -> pd.DataFrame:
    """One row a problem, in order of appearance: samples, correct, and means of what is known."""
    groups = rollouts.groupby("problem", sort=False)
    columns = {"samples": groups.size(), "correct": groups["correct"].sum()}
    columns |= {name: groups[name].mean() for name in ("length", "truncated") if name in rollouts}
    columns |= {n: groups[n].first() for n in ("level", "prompt", "answer") if n in rollouts}
    return pd.DataFrame(columns).rename_axis("problem").reset_index()


def final_answer(text: str) -> str | None:
    """The final answer of a response, None where it has none."""
    found = last_box(text) or tagged(text)
    # A model that was never told how to answer ends with the number.
    return found or (text.split() or [None])[-1]
