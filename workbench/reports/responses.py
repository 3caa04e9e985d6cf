"""Sample responses of the HTML report, with their rewards and whether they were trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench.records import Record, RecordError

ROUNDS_SHOWN = 6  # rounds of a run that responses come from
ROLLOUTS_A_ROUND = 16  # fewest that are worth another round
HEAD = 240  # letters of a response that are shown at once
LIMIT = 4000  # letters of a response that the page holds
COLUMNS: tuple[str, ...] = ("problem", "text", "reward", "status", "advantage")
COLUMNS += ("selected", "trained", "round", "age")
NONE = (
    "There are none: no round yet, records that kept no texts of responses, or too few rows for so "
    "many runs."
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
        rows, heads, filters and note.
    """
    runs = {
        f"{label}, seed {record.manifest['seed']}": record
        for label, group in groups.items()
        for record in group
    }
    # The same for every run, so that a long one does not push out the others.
    share = most // max(1, len(runs))
    rows = [row for run, record in runs.items() for row in _sampled(run, record, share)][:most]
    heads = ["round", "problem", "response", "verdict", "reward", "advantage", "training"]
    filters = ["round", "reward", "training"]
    # With one run, a column and a filter that always say the same are left out.
    if len(runs) > 1:
        heads.insert(0, "run")
        filters.insert(0, "run")
    offered = {name: list(dict.fromkeys(row[name] for row in rows)) for name in filters}
    return {"rows": rows, "heads": heads, "filters": offered, "note": NOTE if rows else NONE}


def _sampled(run: str, record: Record, share: int) -> list[dict[str, Any]]:
    """Rows of one run, at most its share."""
    recorded = record.rounds_with_rollouts()
    # Whether texts were kept is read off the first part, not off all of them.
    if not recorded or not set(COLUMNS) <= set(record.rollouts(recorded[:1])):
        return []
    # Rather few rounds with whole groups than many with a response each.
    number = min(ROUNDS_SHOWN, len(recorded), max(1, share // ROLLOUTS_A_ROUND))
    # Evenly from the first to the last round; unique, since few rounds may round to the same
    # place.
    places = np.unique(np.linspace(0, len(recorded) - 1, number).astype(int))
    rows = []
    for place in places:
        frame = _of_the_right_types(record.rollouts([recorded[place]], list(COLUMNS)), record)
        first = _whole_groups(frame, share // len(places))
        rows += [_row(run, recorded[place], each) for each in first.to_dict("records")]
    return rows


def _of_the_right_types(frame: pd.DataFrame, record: Record) -> pd.DataFrame:
    """The rollouts with texts as texts and numbers as numbers; RecordError where they are none."""
    texts = dict.fromkeys(("problem", "text", "status"), str)
    numbers = dict.fromkeys(("reward", "advantage"), float)
    try:
        return frame.astype({**texts, **numbers})
    except (TypeError, ValueError) as error:
        raise RecordError(f"{record.path}: rollouts that cannot be shown: {error}") from None


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
    """A rollout as the page shows it; `reward` is what the filter goes by."""
    text = rollout["text"]
    # The page holds the rest folded up; very long responses are cut, or the file would grow too
    # large.
    rest = text[HEAD:LIMIT]
    if len(text) > LIMIT:
        rest += f"\n… {len(text) - LIMIT} characters more"
    training = "chosen" if rollout["selected"] else "left out"
    # An advantage is NaN where the rollout was not selected. A zero is shown without a sign,
    # because its meaning is that there is no gradient.
    advantage = rollout["advantage"]
    shown = f"{advantage:+.3f}" if advantage else "0"
    return {
        "run": run,
        "round": number,
        "sampled": rollout["round"] if rollout["age"] else None,
        "problem": rollout["problem"],
        "text": text[:HEAD],
        "rest": rest,
        "status": rollout["status"],
        "reward": "above 0" if rollout["reward"] > 0 else "0 or below",
        "exact_reward": f"{rollout['reward']:.3g}",
        "training": "trained" if rollout["trained"] else training,
        "advantage": "" if np.isnan(advantage) else shown,
    }
