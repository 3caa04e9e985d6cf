"""Tables of the HTML report: results, the comparison, an average round, what was run, responses.

A table of the page has a caption and parts: data frames of texts by their titles.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from workbench.analysis import comparisons
from workbench.analysis.curves import UNITS
from workbench.analysis.intervals import mean_interval
from workbench.analysis.sequential import verdicts_on_gains
from workbench.plots.curves import AXIS_LABELS
from workbench.records import Record, RecordError
from workbench.utils.names import SLOTS
from workbench.utils.numbers import NOTHING, duration, mean_and_half, span

Groups = Mapping[str, Sequence[Record]]


class Table(NamedTuple):
    """Data frames of texts with the same columns, below one another, by their titles."""

    caption: str
    parts: dict[str, pd.DataFrame]


def each_record(groups: Groups) -> Iterator[tuple[str, Record]]:
    """Label and record of every run."""
    for label, group in groups.items():
        for record in group:
            yield label, record


def default_baseline(groups: Groups) -> str:
    """The label that others are compared with: grpo, a method called so, or else the first."""
    # The label first, and then the method behind it, since labels are the caller's choice.
    methods = [label for label, group in groups.items() if group[0].label == "grpo"]
    return "grpo" if "grpo" in groups else [*methods, *groups][0]


def frame(rows: Mapping[str, Sequence[Any]], heads: Sequence[str]) -> pd.DataFrame:
    """Rows by their names as a data frame."""
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(heads), dtype=object)


# Results


def results(groups: Groups) -> Table:
    """Held-out accuracy before and after, and what it took."""
    samples = {n for _, record in each_record(groups) for n in record.evals.get("samples", [])}
    sampled = f"avg@{samples.pop()}" if len(samples) == 1 else "sampled"
    heads = ["runs", "rounds", f"{sampled} before", f"{sampled} after", "greedy before"]
    heads += ["greedy after", "rollouts", "training time"]
    rows = {label: _result(group) for label, group in groups.items()}
    caption = "Held-out accuracy at the first and the last evaluation; ± is the 95 % interval "
    return Table(caption + "over seeds", {"": frame(rows, heads)})


def _result(group: Sequence[Record]) -> list[Any]:
    curves = [record.accuracy() for record in group]
    curves = [curve for curve in curves if len(curve)]
    ends = []
    for column in ("accuracy", "greedy"):
        for place in (0, -1):
            values = [curve[column].iloc[place] for curve in curves]
            ends.append(mean_and_half(*mean_interval(values)) if values else NOTHING)
    rounds = [record.rounds for record in group]
    # Runs may have stopped early, so their lengths are shown as a span.
    lengths = sorted({len(table) for table in rounds})
    totals = pd.DataFrame(
        [table[["rollouts", "seconds"]].sum() for table in rounds if len(table)],
        columns=["rollouts", "seconds"],
    ).mean()
    rollouts, seconds = totals.fillna(0)
    return [len(group), span(lengths), *ends, f"{rollouts:,.0f}", duration(seconds)]


def comparison(groups: Groups) -> tuple[Table | None, list[str]]:
    """The table at the common budgets of rollouts and of seconds, and notes; None for one label."""
    if len(groups) < 2:
        return None, []
    # Runs that cannot be compared are no reason to have no report: the page says why instead.
    try:
        comparisons.comparable(groups)
        comparisons.common_budget(groups, "round")
    except ValueError as error:
        return None, [f"No comparison at an equal budget: {error}."]
    baseline = default_baseline(groups)
    parts = {}
    for unit in ("rollouts", "seconds"):
        budget = comparisons.common_budget(groups, unit)
        table = comparisons.at_budget(groups, unit, budget, baseline=baseline)
        amount = f"{budget:,.0f}" if budget >= 100 else f"{budget:.3g}"
        parts[f"at {amount} {UNITS[unit]}"] = compared(table, baseline)
    notes = [
        "Budgets are the most that every run reached. Differences are between runs of the same "
        "seed, on the same problems. Verdicts are those after Holm's correction for their number."
    ]
    # Seconds are only comparable on one machine; rollouts are everywhere.
    machines = [record.manifest.get("hardware") for _, record in each_record(groups)]
    if len({json.dumps(machine, sort_keys=True) for machine in machines}) > 1:
        notes.append("The runs come from different machines, so their seconds do not compare.")
    return Table("Held-out accuracy when all had spent the same", parts), notes


def compared(table: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """The table of `comparisons.at_budget` as texts, a row a label."""
    rows = {}
    verdicts = verdicts_on_gains(table).fillna("")
    for label, row in table.iterrows():
        difference = interval = ahead = ""
        # The baseline has no difference to itself, and a label may share no seed with it.
        if np.isfinite(row.get("difference", np.nan)):
            difference = f"{row['difference']:+.3f}"
            interval = "needs two seeds"
            if np.isfinite(row["low"]):
                interval = f"{row['low']:+.3f} to {row['high']:+.3f}"
            ahead = f"{row['better']:.0%}"
        elif label != baseline:
            difference = "no seed in common"
        accuracy = mean_and_half(row["mean"], row["half"])
        rows[label] = [f"{row['n']:.0f}", accuracy, difference, interval, ahead, verdicts[label]]
    heads = ["runs", "held-out accuracy", f"minus {baseline}", "95 % interval", "seeds ahead"]
    heads.append("verdict")
    return frame(rows, heads)


# An average round


def average_round(groups: Groups) -> Table:
    """Means over all rounds and seeds of every number that a round has."""
    means = {
        label: pd.concat([record.rounds for record in group]).mean(numeric_only=True)
        for label, group in groups.items()
    }
    table = pd.DataFrame(means).drop(index="round", errors="ignore")
    names = {name: AXIS_LABELS.get(name, name.replace("_", " ")) for name in table.index}
    shown = table.rename(index=names).map(lambda mean: mean_and_half(mean, np.nan))
    return Table("Means over all rounds", {"": shown})


def has_numbers(column: pd.Series) -> bool:
    """Whether a column is numeric and not empty; methods may write others, or without a number."""
    return column.dtype.kind in "iuf" and bool(column.notna().any())


# What was run, in words: a manifest as pairs of a name and a text.

# What a slot decides comes first: a reader of the page may not know the names of slots.
TITLES = {slot: f"{decides} ({slot})" for slot, decides in SLOTS.items()}


def configuration(label: str, group: Sequence[Record]) -> dict[str, Any]:
    """Method, lab, training, machine and software of a label's runs.

    Returns
    -------
    dict
        label; words, the pairs; code, the names whose text is an expression; path and manifest of
        the first run.
    """
    # Runs of one label are seeds of one setting, so the first one speaks for all of them.
    manifest = group[0].manifest
    method = manifest["method"]
    lab = manifest["lab"]
    words = [("method", method["name"])]
    for slot, value in method.items():
        if slot == "name":
            continue
        # The reward is a sum of parts; every other slot holds one value. A stranger's manifest may
        # have anything there.
        parts = value if slot == "reward" and isinstance(value, list) else [value]
        words.append((TITLES.get(slot, slot), " + ".join(map(expression, parts))))

    inside = {name: value for name, value in lab.items() if name != "lab"}
    # None is an endless pool here, and elsewhere a value that was left to its default.
    if inside.get("pool", 0) is None:
        inside["pool"] = "of fresh problems every round"
    arguments = manifest.get("arguments", {})
    # The seed is what the runs of a label differ in, so all of them are named.
    seeds = sorted({record.seed for record in group})
    words += [
        ("lab", "; ".join([lab["lab"], *_settings(inside)])),
        ("training", "; ".join(_settings({**arguments, "seed": None}))),
        ("seed" if len(seeds) == 1 else "seeds", span(seeds)),
        ("machine", ", ".join(_settings(manifest.get("hardware", {})))),
        ("software", ", ".join(_settings(manifest.get("versions", {})))),
        ("started", manifest.get("started")),
        ("commit", manifest.get("commit")),
        ("records", ", ".join(str(record.path) for record in group)),
    ]
    return {
        "label": label,
        # Manifests of early versions lack some entries, which are left out and not shown empty.
        "words": [(name, value) for name, value in words if value],
        "code": [TITLES.get(slot, slot) for slot in method],
        "path": group[0].path,
        "manifest": json.dumps(manifest, indent=1),
    }


def expression(value: Any) -> str:
    """A description in a manifest as the expression that it stands for.

    >>> expression({"is": "allocators.Uniform", "n": 8})
    'Uniform(n=8)'
    """
    # A manifest writes an object as its class under "is", with its arguments beside it.
    if isinstance(value, dict) and "is" in value:
        arguments = [f"{name}={expression(each)}" for name, each in value.items() if name != "is"]
        return f"{str(value['is']).rpartition('.')[2]}({', '.join(arguments)})"
    if isinstance(value, list):
        return f"({', '.join(map(expression, value))})"
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _settings(values: Mapping[str, Any]) -> list[str]:
    """`pool 512`; nothing for a value that was left to its default."""
    return [
        f"{name.replace('_', ' ')} {expression(value)}"
        for name, value in values.items()
        if value is not None
    ]


# Sample responses, with their rewards and whether they were trained on

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
