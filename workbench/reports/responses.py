"""Sample responses of the HTML report, with their rewards and whether they were trained on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench.config import recorded_lab
from workbench.pools import Pool
from workbench.records import Record

ROUNDS_SHOWN = 6  # rounds of a run that responses come from
ROLLOUTS_A_ROUND = 16  # fewest that are worth another round
HEAD = 240  # letters of a response that are shown at once
LIMIT = 4000  # letters of a response that the page holds
MOST_MADE = 4096  # problems that are made again to show their answers
COLUMNS = (
    "problem",
    "text",
    "reward",
    "status",
    "advantage",
    "selected",
    "trained",
    "round",
    "age",
)
NOTE = (
    "The first problems of rounds spread over each run, all rollouts of each; nothing is picked by "
    "quality. “Chosen” was selected, but its advantage was zero or its gradient stopped."
)


def responses(groups: Mapping[str, Sequence[Record]], most: int) -> dict[str, Any]:
    """At most so many responses of all runs together: whole groups of rounds spread over each run.

    Returns
    -------
    dict
        rows, several (whether there is more than one run), answered (whether right answers are
        known), heads, filters and note.
    """
    runs = [(label, record) for label, group in groups.items() for record in group]
    # The same for every run, so that a long one does not push out the others.
    share = most // max(1, len(runs))
    rows = []
    for label, record in runs:
        rows += _sampled(f"{label}, seed {record.manifest['seed']}", record, share)
    rows = rows[:most]
    answers: dict[str, str] = {}
    for _, record in runs:
        answers |= _gold_answers(record)
    for row in rows:
        row["answer"] = answers.get(row["problem"], "")

    # With one run, a column and a filter that always say the same are left out.
    several = len(runs) > 1
    heads = ["round", "problem", "response", "verdict", "reward", "advantage", "training"]
    answered = any(row["answer"] for row in rows)
    if answered:
        heads.insert(2, "right answer")
    filters = [
        ("round", "round", sorted({row["round"] for row in rows})),
        ("reward", "reward", _distinct(row["bucket"] for row in rows)),
        ("training", "training", _distinct(row["training"] for row in rows)),
    ]
    if several:
        heads = ["run", *heads]
        filters = [("run", "run", _distinct(row["run"] for row in rows)), *filters]
    note = NOTE if rows else _why_none([record for _, record in runs], most)
    return {
        "rows": rows,
        "several": several,
        "answered": answered,
        "heads": heads,
        "filters": filters,
        "note": note,
    }


def kept_rollouts(
    record: Record, columns: Sequence[str], rounds: Sequence[int] | None = None
) -> pd.DataFrame | None:
    """These columns of the rollouts; None where the record kept no rollouts or not all of them."""
    recorded = record.rounds_with_rollouts()
    # Whether a column was recorded is read off the first part, not off all of them.
    if not recorded or not set(columns) <= set(record.rollouts(recorded[:1])):
        return None
    return record.rollouts(rounds, list(columns))


def _gold_answers(record: Record) -> dict[str, str]:
    """The gold answers by problem, as far as the embedded lab can make the run's problems again.

    A record has no texts of problems. The ids of this lab's problems hold the question.
    """
    config = record.manifest["lab"]
    pool = config.get("pool")
    # No other lab is made here: its problems may be files of somebody else's choice.
    is_small = isinstance(pool, int) and pool <= MOST_MADE
    if config.get("lab") != "tiny" or not is_small:
        return {}
    try:
        # Without the held-out problems, which nothing is trained on.
        problems = recorded_lab({**config, "held_out": 0}).problems
    except (ValueError, OSError):
        return {}
    recorded = record.manifest.get("data") or {}
    if not isinstance(problems, Pool) or recorded.get("problems") != problems.digest:
        return {}
    return {problem.id: problem.answer for problem in problems}


def _why_none(records: Sequence[Record], most: int) -> str:
    """Why there is no row to show."""
    if not any(len(record.rounds) for record in records):
        return "No round yet."
    if not any(_has_texts(record) for record in records):
        return "The record kept no texts of responses."
    return f"No responses: {most} rows are too few for the {len(records)} runs of this report."


def _has_texts(record: Record) -> bool:
    recorded = record.rounds_with_rollouts()
    return bool(recorded) and kept_rollouts(record, COLUMNS, recorded[:1]) is not None


def _sampled(run: str, record: Record, share: int) -> list[dict[str, Any]]:
    """Rows of one run, at most its share."""
    recorded = record.rounds_with_rollouts()
    # Rather few rounds with whole groups than many with a response each.
    number = min(ROUNDS_SHOWN, len(recorded), max(1, share // ROLLOUTS_A_ROUND))
    # Evenly from the first to the last round; unique, since few rounds may round to the same
    # place.
    places = np.unique(np.linspace(0, len(recorded) - 1, number).astype(int))
    rows = []
    for place in places:
        frame = kept_rollouts(record, COLUMNS, [recorded[place]])
        if frame is not None:
            first = _whole_groups(frame, share // len(places))
            rows += [_row(run, recorded[place], each) for each in first.to_dict("records")]
    return rows


def _whole_groups(frame: pd.DataFrame, size: int) -> pd.DataFrame:
    """All rollouts of the first problems, at most `size` rows.

    Only where the first problem alone has more, it is cut.
    """
    # Numbers of problems in the order of their first rollout, and after which row each one ends.
    group = frame["problem"].factorize()[0]
    ends = np.bincount(group).cumsum()
    fitting = ends[ends <= size]
    count = fitting[-1] if len(fitting) else size
    # The stable sort brings the rollouts of a problem together in the order of sampling.
    return frame.iloc[np.argsort(group, kind="stable")[:count]]


def _row(run: str, number: int, rollout: Mapping[str, Any]) -> dict[str, Any]:
    """A rollout as the page shows it; `bucket` is what the filter of rewards goes by."""
    text = rollout["text"]
    # The page holds the rest folded up; very long responses are cut, or the file would grow too
    # large.
    rest = text[HEAD:LIMIT]
    if len(text) > LIMIT:
        rest += f"\n… {len(text) - LIMIT} characters more"
    if rollout["trained"]:
        training = "trained"
    else:
        training = "chosen" if rollout["selected"] else "left out"
    advantage = rollout["advantage"]
    # An advantage is NaN where the rollout was not selected. A zero is shown without a sign,
    # because its meaning is that there is no gradient.
    if np.isnan(advantage):
        shown = ""
    else:
        shown = f"{advantage:+.3f}" if advantage else "0"
    return {
        "run": run,
        "round": number,
        "sampled": rollout["round"] if rollout["age"] else None,
        "problem": rollout["problem"],
        "text": text[:HEAD],
        "rest": rest,
        "status": rollout["status"],
        "reward": f"{rollout['reward']:.3g}",
        "bucket": "above 0" if rollout["reward"] > 0 else "0 or below",
        "training": training,
        "advantage": shown,
    }


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
