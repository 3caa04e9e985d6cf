"""Sampled responses that somebody has: tables of them in the usual forms, as one table.

A row is a response or a problem. TRL's logged completions and verl's rollout dumps are folders of
files with a row a response, and so they are read like any other. `samples.toml` has the usual names
of columns.
"""

from __future__ import annotations

import csv
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.datasets.rows import KINDS
from workbench.utils.groups import is_same, precision_of
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

NAMES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
TEXTS = ("problem", "prompt", "text", "given", "answer")
# What only describes a response may be missing; what is counted may not.
COUNTED = ("samples", "correct", "rate", "reward")
VERDICTS = ({0.0, 1.0}, {-1.0, 1.0})  # pairs of rewards that say wrong and right
JUDGED = {"correct", "rate", "reward"}  # of which only those count that somebody names
TRUTHS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}


def read_samples(
    path: Path, samples: int | None, solved: float | None, columns: Mapping[str, str]
) -> tuple[pd.DataFrame, pd.DataFrame | None, list[str]]:
    """The table of problems, the responses where each row is one, and notes; see `Profile.read`."""
    for name in columns:
        one_of("columns", name, NAMES)
    if samples is not None:
        whole_number("samples", samples, 1)
    rows, places = _rows(path)

    def refused(row: Any, why: str) -> ValueError:
        return ValueError(f"path={str(path)!r}: {places[row]}: {why}")

    if not rows:
        raise ValueError(f"path={str(path)!r}: it has no rows")
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise refused(number, f"{brief(row)}; an object is needed")
    # As they stand: pandas would make numbers of another kind where one is missing.
    held = pd.DataFrame(rows, dtype=object)
    found = _columns(list(held), columns, solved, path)
    notes = []
    if "problem" not in columns and _names_responses(held, found):
        notes.append(
            f"problems are told by {found['prompt']}, since {found['problem']} names each response"
        )
        found["problem"] = found["prompt"]
    frame = _converted(held, found, refused)
    if samples is not None:
        frame["samples"] = samples
    if "samples" in frame:
        return _of_problems(frame, refused), None, []
    if "correct" in frame:
        for row in np.flatnonzero(~frame["correct"].isin([0, 1])):
            raise refused(
                row,
                f"{found['correct']} is {brief(held[found['correct']][row])}; a row a response has "
                "0 or 1, and a row a problem has a column samples as well",
            )
    elif "rate" in frame:
        raise refused(0, "there are rates alone; samples=16 says how many responses they are of")
    else:
        frame["correct"] = _verdicts(frame["reward"], solved, path)
    frame["correct"] = frame["correct"].astype(bool)
    if "given" not in frame and "text" in frame:
        frame["given"] = frame["text"].map(final_answer)
    return tally(frame), frame, notes + _notes_on(frame, found["problem"])


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


def _columns(
    there: Sequence[str], given: Mapping[str, str], solved: float | None, path: Path
) -> dict[str, str]:
    """Our name -> the name in the file, of all that is there."""
    listed = ", ".join(map(repr, there))
    for name in given.values():
        if name not in there:
            hint = did_you_mean(name, there)
            raise ValueError(f"columns: {path} has no column {name!r}; there are {listed}{hint}")
    found = {}
    for ours, names in NAMES.items():
        usual = [name for name in names if name in there]
        if ours in given or usual:
            found[ours] = given.get(ours) or usual[0]
    asked = given.keys() & JUDGED
    if not asked and solved is not None and "reward" in found:
        asked = {"reward"}
    for other in JUDGED - asked if asked else ():
        found.pop(other, None)
    if "problem" not in found or not found.keys() & JUDGED:
        raise ValueError(
            f"path={str(path)!r}: a problem and a verdict (correct, reward or rate) are needed; "
            f"there are {listed}, and columns={{'problem': ...}} says which is which"
        )
    return found


def _converted(held: pd.DataFrame, found: Mapping[str, str], refused: Any) -> pd.DataFrame:
    """The columns by our names, as texts and numbers."""
    frame = pd.DataFrame(index=held.index)
    for ours, theirs in found.items():
        if ours in TEXTS:
            frame[ours] = held[theirs].map(_text)
            continue
        frame[ours] = held[theirs].map(_number).astype(float)
        if ours in COUNTED:
            for row in np.flatnonzero(frame[ours].isna()):
                raise refused(row, f"{theirs} is {brief(held[theirs][row])}; a number is needed")
    for row in np.flatnonzero(frame["problem"].str.strip() == ""):
        raise refused(row, f"{found['problem']} is blank")
    return frame


def _names_responses(held: pd.DataFrame, found: Mapping[str, str]) -> bool:
    """Whether what stands for the name of a problem is another one in each row, though prompts come
    again: verl's dumps and other tables name responses, or rows.
    """
    if "prompt" not in found or found.keys() & {"samples", "rate"}:
        return False
    names, prompts = (held[found[name]].map(_text) for name in ("problem", "prompt"))
    return bool(names.is_unique and not prompts.is_unique)


def _notes_on(frame: pd.DataFrame, problem: str) -> list[str]:
    """What to know about responses; `problem` is the column by which problems are told apart."""
    notes = []
    if "step" in frame and frame["step"].nunique() > 1:
        first, last = frame["step"].min(), frame["step"].max()
        notes.append(
            f"the responses are of steps {first:g} to {last:g} of a training run: a rate is the "
            "mean over models that differ"
        )
    if "prompt" in frame:
        several = int((frame.groupby("problem")["prompt"].nunique() > 1).sum())
        if several:
            notes.append(
                f"{several} problems by their {problem} have several prompts each, which count as "
                "one problem"
            )
    return notes


def _of_problems(frame: pd.DataFrame, refused: Any) -> pd.DataFrame:
    """The table of problems of a file with a row a problem."""
    if "correct" not in frame:
        if "rate" not in frame:
            raise refused(0, "correct, or a rate, is needed beside samples")
        exact = frame["rate"] * frame["samples"]
        # Rates are printed with few digits.
        frame["correct"] = exact.round().where((exact - exact.round()).abs() < 0.2, exact)
    samples, correct = frame["samples"], frame["correct"]
    whole = (samples == samples.round()) & (correct == correct.round())
    for row in np.flatnonzero(~(whole & (samples >= 1) & correct.between(0, samples))):
        raise refused(row, f"{correct[row]:g} of {samples[row]:g} responses cannot be right")
    for row in np.flatnonzero(frame["problem"].duplicated()):
        raise refused(row, f"problem {frame['problem'][row]!r} occurs twice")
    if "prompt" in frame and correct.max() <= 1 < samples.min():
        # Rows of single responses that also say how many there are.
        for row in np.flatnonzero(frame["prompt"].duplicated()):
            raise refused(
                row,
                f"prompt {frame['prompt'][row]!r} occurs twice, and no problem has more than one "
                "right response; a row a response has no column of samples",
            )
    kept = frame.drop(columns=["reward", "rate", "step"], errors="ignore")
    return kept.astype({"samples": np.int64, "correct": np.int64})


def _verdicts(rewards: pd.Series, solved: float | None, path: Path) -> Any:
    """Which rewards say that a response is right."""
    if solved is not None:
        positive_number("solved", solved)
        # A reward such as .6 + .3, or .7 in single precision, may fall short by its rounding.
        values = rewards.to_numpy()
        return (values >= solved) | is_same(values, np.array(solved), precision_of(values))
    if not any(set(rewards) <= pair for pair in VERDICTS):
        raise ValueError(
            f"path={str(path)!r}: rewards are {brief(sorted(set(rewards)))}; solved=1.0 says from "
            "which reward a response counts as right"
        )
    return rewards > 0


def _number(value: Any) -> float:
    """A number, a truth value or a text of one; NaN for anything else."""
    if isinstance(value, str):
        text = value.strip().lower()
        try:
            value = TRUTHS[text] if text in TRUTHS else float(text)
        except ValueError:
            return np.nan
    if isinstance(value, bool | np.bool_) or is_number(value):
        return float(value)
    return np.nan


def _text(value: Any) -> str:
    """A value as text: of a conversation, what its turns say; anything else as JSON has it."""
    if isinstance(value, str):
        return value
    is_chat = isinstance(value, list) and all(isinstance(turn, Mapping) for turn in value)
    if is_chat and value and all("content" in turn for turn in value):
        return "\n".join(str(turn["content"]) for turn in value)
    # What a row lacks is None, or NaN in a column that other rows have.
    return "" if value is None or value != value else json.dumps(value, default=str)


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
    words = text.split()
    return found or (words[-1] if words else None)
