"""Tables of the pages and of the commands: results, comparisons, settings, sample responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis import cost
from workbench.analysis.curves import read
from workbench.analysis.intervals import mean_interval
from workbench.analysis.runs import all_settings
from workbench.analysis.sequential import verdicts_on_gains
from workbench.analysis.targets import to_target
from workbench.records import Record
from workbench.utils.names import SLOTS
from workbench.utils.numbers import NOTHING, duration, mean_and_half, ratio_text, span

Groups = Mapping[str, Sequence[Record]]

RESULTS = (
    "Held-out accuracy at the first and the last evaluation; ± is the 95 % interval over seeds"
)
# What the answer of a trial is asked in besides its own measure.
MEASURES: dict[str, Any] = {
    "rollouts": "rollouts",
    "sampled tokens": "tokens_sampled",
    "trained tokens": "tokens_trained",
    "FLOPs": "flops",
    **{model.name: model for name, model in cost.MACHINES.items() if name != "flops"},
}
ROUNDS_SHOWN = 6  # rounds of a run that responses come from
ROLLOUTS_A_ROUND = 16  # fewest that are worth another round


def each_record(groups: Groups) -> Iterator[tuple[str, Record]]:
    """The name of every run, such as "grpo, seed 0", and its record."""
    for label, group in groups.items():
        for record in group:
            yield f"{label}, seed {record.seed}", record


def default_baseline(groups: Groups) -> str:
    """The label that others are compared with: grpo, a method called so, or else the first."""
    # The label first, and then the method behind it, since labels are the caller's choice.
    methods = [
        label for label, group in groups.items() if group[0].manifest["method"]["name"] == "grpo"
    ]
    return "grpo" if "grpo" in groups else [*methods, *groups][0]


def results(groups: Groups) -> pd.DataFrame:
    """Held-out accuracy before and after, and what it took; a row a label."""
    samples = {n for _, record in each_record(groups) for n in record.evals.get("samples", [])}
    sampled = f"avg@{samples.pop()}" if len(samples) == 1 else "sampled"
    rows = {}
    for label, group in groups.items():
        tables = [record.rounds for record in group]
        row: dict[str, Any] = {"runs": len(group), "rounds": span(sorted({*map(len, tables)}))}
        curves = [record.accuracy() for record in group if len(record.evals)]
        for column, name in (("accuracy", sampled), ("greedy", "greedy")):
            for place, when in ((0, "before"), (-1, "after")):
                values = [curve[column].iloc[place] for curve in curves]
                row[f"{name} {when}"] = mean_and_half(*mean_interval(values)) if values else NOTHING
        begun = [table[["rollouts", "seconds"]].sum() for table in tables if len(table)]
        rollouts, seconds = np.mean(begun, axis=0) if begun else (0, 0)
        rows[label] = {**row, "rollouts": f"{rollouts:,.0f}", "training time": duration(seconds)}
    return pd.DataFrame.from_dict(rows, orient="index")


def compared(table: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """The table of `comparisons.at_budget` as texts, a row a label."""
    rows = {}
    columns = ["runs", "held-out accuracy", f"minus {baseline}", "95 % interval", "seeds ahead"]
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
        rows[label] = [f"{row['n']:.0f}", accuracy, difference, interval, ahead]
    texts = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    return texts.assign(verdict=verdicts_on_gains(table).fillna(""))


def configuration(group: Sequence[Record]) -> dict[str, str]:
    """What was run, in words: method, lab, training, machine and software of a label's runs."""
    # Runs of one label are seeds of one setting, so the first one speaks for all of them.
    manifest = group[0].manifest
    method = manifest["method"]
    words = {"method": method["name"]}
    words |= {f"{SLOTS[slot]} ({slot})": method[slot] for slot in method if slot in SLOTS}
    further = "lab policy code files arguments hardware versions started commit"
    words |= {name: manifest.get(name) for name in further.split()}
    # The seed is what the runs of a label differ in, so all of them are named.
    words["seeds"] = span(sorted({record.seed for record in group}))
    words["records"] = ", ".join(str(record.path) for record in group)
    # Manifests of early versions lack some entries, and parts of the package have no code or files.
    return {name: expression(value) for name, value in words.items() if value not in (None, {})}


def expression(value: Any) -> str:
    """A description in a manifest as the expression that it stands for.

    >>> expression({"is": "allocators.Uniform", "n": 8})
    'Uniform(n=8)'
    >>> expression({"pool": 512, "samples": [8, None]})
    'pool 512, samples (8, none)'
    >>> expression({"held_out": 400, "my_ideas.Shortest": "2bf175f9"})
    'held out 400, my_ideas.Shortest 2bf175f9'
    """
    if isinstance(value, dict):
        # An object is written as its class under "is", with its arguments beside it.
        if "is" in value:
            arguments = [f"{key}={expression(each)}" for key, each in value.items() if key != "is"]
            return f"{str(value['is']).rpartition('.')[2]}({', '.join(arguments)})"
        names = {key: key if "." in key else key.replace("_", " ") for key in value}
        return ", ".join(f"{names[key]} {expression(value[key])}" for key in value)
    if isinstance(value, list):
        return f"({', '.join(map(expression, value))})"
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def differing(groups: Groups) -> pd.DataFrame:
    """The settings that are not the same for all labels, a column a label."""
    table = pd.DataFrame({label: all_settings(group[0]) for label, group in groups.items()})
    table = table.fillna(NOTHING)
    return table[table.nunique(axis=1) > 1]


def by_measure(groups: Any, baseline: str, target: float) -> pd.DataFrame:
    """Cost to a target over the baseline's in every measure, a row an arm."""
    curves = read(groups)
    columns = {}
    for name, unit in MEASURES.items():
        # An arm that trains on nothing has no cost in what is trained, and no ratio of costs.
        spending = {
            label: by_seed
            for label, by_seed in curves.items()
            if all(curve.places(unit)[-1] > 0 for curve in by_seed.values())
        }
        ratios = to_target(spending, target, unit, baseline=baseline)
        ratios = ratios.reindex(index=curves, columns=["ratio", "low", "high"])
        columns[name] = [ratio_text(*row) for row in ratios.itertuples(index=False)]
    return pd.DataFrame(columns, index=list(curves)).drop(index=baseline)


def responses(groups: Groups, most: int) -> pd.DataFrame:
    """At most so many responses: the first problems of rounds that are spread over each run.

    Returns
    -------
    DataFrame, a row a rollout, by the name of the run
        round, problem, question and gold where they are known, response, verdict, reward,
        advantage, and training: "trained", "left out", or "chosen" where a selected rollout had no
        gradient.
    """
    runs = dict(each_record(groups))
    # The same for every run, so that a long one does not push out the others.
    share = most // len(runs)
    parts = []
    for run, record in runs.items():
        recorded = record.rounds_with_rollouts()
        # Whether texts were kept is read off the first round, not off all of them.
        if not recorded or "text" not in record.rollouts(recorded[:1]):
            continue
        # Rather few rounds with whole groups than many with a response each.
        number = min(ROUNDS_SHOWN, len(recorded), max(1, share // ROLLOUTS_A_ROUND))
        places = np.unique(np.linspace(0, len(recorded) - 1, number).astype(int))
        for place in places:
            rollouts = record.rollouts([recorded[place]])
            # The rollouts of a problem stand together, in the order of sampling.
            order = np.argsort(rollouts["problem"].factorize()[0], kind="stable")
            first = rollouts.iloc[order[: share // len(places)]]
            parts.append(first.assign(run=run, round=recorded[place]))
    if not parts:
        return pd.DataFrame()
    table = pd.concat(parts).set_index("run")
    table["training"] = np.where(table["selected"], "chosen", "left out")
    table.loc[table["trained"], "training"] = "trained"
    shown = ["round", "problem", "question", "gold", "text", "status", "reward", "advantage"]
    shown = [name for name in (*shown, "training") if name in table]
    return table[shown].rename(columns={"text": "response", "status": "verdict"})
