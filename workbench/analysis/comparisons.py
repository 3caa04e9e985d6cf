"""Frames behind the papers' figures: runs of several methods set side by side, at an equal budget or visit by visit.

Runs are grouped in a dict from label to the records of its seeds, as `load_all` gives it for a directory.
"""

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from workbench.analysis.metrics import mean_interval, paired_difference, score_correlations
from workbench.records.record import Record
from workbench.utils.seeding import generator

PHASES = ("generate", "verify", "schedule", "update")
SPENT = ("round", "rollouts", "flops", "seconds")


def load_all(path):
    """The records under a directory `path/label/seed-N`: dict from label to a list of `Record`, seeds in order.

    ValueError when there are none.
    """
    groups = {}
    for manifest in sorted(Path(path).glob("*/*/manifest.json")):
        groups.setdefault(manifest.parent.parent.name, []).append(Record(manifest.parent))
    if not groups:
        raise ValueError(f"path={str(path)!r}: no records of the form label/seed-0 there")
    return {
        label: sorted(group, key=lambda record: record.manifest["seed"])
        for label, group in groups.items()
    }


def find(paths):
    """The records at or under `paths`, at most two directories deep: dict from label to a list of `Record`; see `labelled`.

    ValueError for a path without any.
    """
    found = {}
    for path in map(Path, paths):
        manifests = [
            file
            for depth in ("", "*/", "*/*/")
            for file in sorted(path.glob(f"{depth}manifest.json"))
        ]
        if not manifests:
            raise ValueError(
                f"{str(path)!r}: no record there (manifest.json is missing), nor in its directories"
            )
        found |= {file.parent.resolve(): Record(file.parent) for file in manifests}
    return labelled(found.values())


def labelled(records):
    """Runs and their seeds: dict from label to a list of `Record`, seeds in order.

    Directories label/seed-0, label/seed-1, ... say it themselves. Other records are seeds of one another if method, lab
    and training arguments are the same; their label is the method's name. Where two labels would be the same, or a seed
    would come twice, the path stands behind the label.
    """
    groups = {}
    for record in records:
        groups.setdefault(_identity(record), []).append(record)
    named = []
    for (label, _), group in groups.items():
        twice = len({record.manifest["seed"] for record in group}) < len(group)
        named += [(label, part) for part in ([[record] for record in group] if twice else [group])]
    count = Counter(label for label, _ in named)
    return {
        label if count[label] == 1 else f"{label} ({part[0].path})": sorted(
            part, key=lambda r: r.manifest["seed"]
        )
        for label, part in named
    }


def comparable(groups):
    """ValueError unless every run of `groups` was evaluated, and all on the same held-out problems."""
    known = None
    for record in (record for group in groups.values() for record in group):
        evals = record.evals
        if evals.empty:
            raise ValueError(
                f"{record.path}: the run was never evaluated on held-out problems, so it cannot be compared"
            )
        problems = set(evals["problem"])
        if problems != (known := known or problems):
            raise ValueError(
                f"{record.path}: other held-out problems than those of the first run; compare runs of one lab"
            )


def spent(record, unit):
    """What a run had spent by the end of each round, a Series indexed by round, with 0 for round 0.

    unit: "round", "rollouts" (sampled), "flops" or "seconds" (of training).
    """
    if unit not in SPENT:
        raise ValueError(f"unit={unit!r}: allowed are {', '.join(SPENT)}")
    rounds = record.rounds
    values = rounds["round"] if unit == "round" else rounds[unit].cumsum()
    return pd.Series([0.0, *values], index=[0, *rounds["round"]], name=unit)


def scores_at(record, unit, budget, y="accuracy"):
    """Held-out scores when the run had spent `budget` of `unit`: a Series indexed by problem.

    Between two evaluations every problem's score is interpolated. y: "accuracy" (share of its samples) or "greedy".
    ValueError when the run ended, or was evaluated last, before.
    """
    evals = record.evals
    values = (
        evals["correct"] / evals["samples"] if y == "accuracy" else evals["greedy"].astype(float)
    )
    table = evals.assign(value=values).pivot_table(
        index="round", columns="problem", values="value", sort=True
    )
    places = spent(record, unit).loc[table.index].to_numpy()
    if not 0 <= budget <= places[-1]:
        raise ValueError(
            f"budget={budget:g}: {record.path} was last evaluated at {places[-1]:g} {unit}"
        )
    right = (
        int(np.clip(np.searchsorted(places, budget), 1, len(places) - 1)) if len(places) > 1 else 0
    )
    left = max(right - 1, 0)
    share = (budget - places[left]) / (places[right] - places[left]) if right > left else 0.0
    return (1 - share) * table.iloc[left] + share * table.iloc[right]


def common_budget(groups, unit):
    """The largest budget that every run of `groups` reached with its last evaluation, a number."""
    records = [record for group in groups.values() for record in group]
    return min(float(spent(record, unit)[record.evals["round"].max()]) for record in records)


def at_budget(groups, unit, budget=None, *, baseline=None, y="accuracy", seed=0):
    """Held-out scores of every label at an equal budget: a DataFrame, a row a label.

    Columns: n (seeds), mean and half (95 % Student half-width over seeds). With a baseline, a label of `groups`, also
    the paired difference to it over the same seeds and problems: difference, low, high (95 %, two-way bootstrap) and
    better, the share of pairs (seed) whose mean is above the baseline's, ties counting half: the probability of
    improvement. budget: None for `common_budget`. seed: of the bootstrap.
    """
    if baseline is not None and baseline not in groups:
        raise ValueError(f"baseline={baseline!r}: the labels are {', '.join(groups)}")
    budget = common_budget(groups, unit) if budget is None else budget
    scores = {
        label: {r.manifest["seed"]: scores_at(r, unit, budget, y) for r in group}
        for label, group in groups.items()
    }
    rows = {}
    for label, by_seed in scores.items():
        mean, half = mean_interval([values.mean() for values in by_seed.values()])
        rows[label] = {"n": len(by_seed), "mean": mean, "half": half}
        if baseline is not None and label != baseline:
            rows[label] |= _paired(by_seed, scores[baseline], generator(seed, "bootstrap"))
    return pd.DataFrame.from_dict(rows, orient="index")


def _identity(record):
    """(label, what its seeds have in common)."""
    folder, manifest = record.path.resolve(), record.manifest
    if re.fullmatch(r"seed-\d+", folder.name):
        return folder.parent.name, str(folder.parent)
    free = ("seed", "evaluate_every", "checkpoint_every")
    arguments = {
        name: value for name, value in manifest.get("arguments", {}).items() if name not in free
    }
    return record.label, json.dumps(
        [manifest["method"], manifest["lab"], arguments], sort_keys=True
    )


def _paired(by_seed, baseline, rng):
    seeds = sorted(set(by_seed) & set(baseline))
    if not seeds:
        return {}
    a, b = (np.array([scores[seed].to_numpy() for seed in seeds]) for scores in (by_seed, baseline))
    found = paired_difference(a, b, rng)
    ahead = np.sign(a.mean(axis=1) - b.mean(axis=1))
    return {
        "difference": found.estimate,
        "low": found.low,
        "high": found.high,
        "better": float((ahead + 1).mean() / 2),
    }


def means(groups, columns, *, rounds=None):
    """Mean of columns of the rounds table by label: a DataFrame with (column, "mean") and (column, "half"), 95 % over seeds.

    rounds: (first, last) to read, both included; None for all. Empty cells are left out of a run's mean.
    """
    rows = {}
    for label, group in groups.items():
        tables = [record.rounds for record in group]
        if rounds is not None:
            tables = [table[table["round"].between(*rounds)] for table in tables]
        rows[label] = {}
        for column in columns:
            mean, half = mean_interval([table[column].mean() for table in tables])
            rows[label] |= {(column, "mean"): mean, (column, "half"): half}
    return pd.DataFrame.from_dict(rows, orient="index")


def phases(groups, unit="seconds"):
    """What a round costs by phase: a DataFrame (labels x phases), means over rounds, medians over seeds.

    unit: "seconds" (generate, verify, schedule, update) or "flops" (generate, update).
    """
    names = PHASES if unit == "seconds" else ("generate", "update")
    rows = {
        label: np.median(
            [[r[f"{unit}_{name}"].mean() for name in names] for r in (x.rounds for x in group)],
            axis=0,
        )
        for label, group in groups.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(names))


def visits(frame):
    """A problem's rollouts each time it was drawn: a DataFrame indexed by problem and visit (0, 1, ...).

    frame: a record's rollouts with columns problem, round, correct. Columns: round, rollouts, correct (count), rate.
    Old responses that joined a round are not among them if the frame has `age` or its rows are those of their own round.
    """
    table = (
        frame.groupby(["problem", "round"], sort=True)["correct"]
        .agg(rollouts="size", correct="sum")
        .reset_index()
    )
    table["visit"] = table.groupby("problem").cumcount()
    table["rate"] = table["correct"] / table["rollouts"]
    return table.set_index(["problem", "visit"])


def estimation_error(frame, window=16, rng=None):
    """How far the rate of a problem's last `window` rollouts lies from its rate at the next visit: a Series by visit.

    frame as for `visits`; mean absolute error over problems, from visit 1 on (Knapsack RL, appendix F). What is left
    even for a perfect estimate is the sampling error of the visit itself. rng: a NumPy generator that shuffles past and
    present outcomes first; then it is the error that chance alone makes, had the policy stood still.
    """
    errors = {}
    for visit, past, now in beliefs(frame, window):
        if rng is not None:
            past, now = np.split(rng.permutation(np.concatenate([past, now])), [len(past)])
        errors.setdefault(visit, []).append(abs(past.mean() - now.mean()))
    return pd.Series(
        {visit: float(np.mean(values)) for visit, values in sorted(errors.items())}, name="error"
    )


def beliefs(frame, window):
    """What was known before every visit of a problem but its first: yields (visit, past, now), outcomes as 0.0 and 1.0.

    frame as for `visits`. past: its last `window` rollouts or fewer, now: those of the visit.
    """
    sizes = frame.groupby(["problem", "round"], sort=True).size()
    outcomes = frame.sort_values(["problem", "round"], kind="stable")["correct"].to_numpy(float)
    past = None
    for visit, now in zip(
        sizes.groupby("problem").cumcount(), np.split(outcomes, sizes.cumsum()[:-1])
    ):
        if visit:
            yield visit, past[-window:], now
        past = np.concatenate([past, now]) if visit else now


def rollouts_by_rate(frame, edges=(0, 0.2, 0.4, 0.6, 0.8, 1)):
    """Mean rollouts a visit of the problems in each bin of success rate: a DataFrame (bins) with rollouts, problems, rate.

    A problem's rate is that over all its rollouts in the frame, `rate` the mean over a bin's problems; bins are [a, b),
    the last one [a, b] (AR3PO, section 4: the hardest bin gets the most).
    """
    drawn = visits(frame).groupby("problem")
    rate = drawn["correct"].sum() / drawn["rollouts"].sum()
    place = np.clip(np.searchsorted(edges, rate, side="right") - 1, 0, len(edges) - 2)
    bins = range(len(edges) - 1)
    found = drawn["rollouts"].mean().groupby(place).agg(["mean", "size"]).reindex(bins)
    columns = {
        "rollouts": found["mean"].to_numpy(),
        "problems": found["size"].fillna(0).astype(int).to_numpy(),
        "rate": rate.groupby(place).mean().reindex(bins).to_numpy(),
    }
    return pd.DataFrame(columns, index=[f"{a:g} to {b:g}" for a, b in pairwise(edges)])


def saved(groups, column, pairs, rounds=None):
    """Share of a summed column that one method saves against another on the same seed: a DataFrame, a row a pair.

    pairs: dict from label to its baseline, both of `groups`. column: of the rounds table, as "seconds_update". rounds:
    (first, last) to read, both included; None for all. Columns: baseline, n (common seeds), mean, half (95 %).
    """

    def total(record):
        table = record.rounds
        return float(
            (table if rounds is None else table[table["round"].between(*rounds)])[column].sum()
        )

    rows = {}
    for label, baseline in pairs.items():
        ours, theirs = (
            {r.manifest["seed"]: total(r) for r in groups[name]} for name in (label, baseline)
        )
        shares = [1 - ours[seed] / theirs[seed] for seed in sorted(set(ours) & set(theirs))]
        mean, half = mean_interval(shares)
        rows[label] = {"baseline": baseline, "n": len(shares), "mean": mean, "half": half}
    return pd.DataFrame.from_dict(rows, orient="index")


def correlations(records, windows=5):
    """Mean over seeds of `metrics.score_correlations`, and how far the seeds lie apart: two DataFrames (windows x features).

    The second is the population deviation over seeds: where it is as large as the mean, a score's leaning is the seed's.
    """
    tables = [score_correlations(record.rollouts(), windows) for record in records]
    stack = np.array([table.to_numpy() for table in tables])
    like = {"index": tables[0].index, "columns": tables[0].columns}
    return pd.DataFrame(stack.mean(axis=0), **like), pd.DataFrame(stack.std(axis=0), **like)


def seed_means(tables):
    """Mean and 95 % half-width over seeds: dict from column to a table with mean, half and n (seeds).

    tables: a DataFrame a seed, of the same rows and columns. Cells that are NaN in one seed are so in the mean.
    """
    stack, first = np.array([table.to_numpy(float) for table in tables]), tables[0]
    cells = [
        [(*mean_interval(values), len(values)) for values in column.T]
        for column in np.moveaxis(stack, 2, 0)
    ]
    return {
        name: pd.DataFrame(rows, index=first.index, columns=["mean", "half", "n"])
        for name, rows in zip(first, cells)
    }


def zero_accuracy_scores(groups):
    """Zero-accuracy ratio and relative score of two methods, checkpoint by checkpoint: a DataFrame (AERO, figure 2).

    groups: two labels; seeds that both have. Checkpoints are the evaluations of the first one, between those of the
    other its scores are interpolated. Columns: seed, label, round, zero (share of problems without a correct
    rollout, mean over the rounds since the last checkpoint), score (held-out accuracy) and relative, the score by the
    better one's of the two (eq. 6).
    """
    by_seed = [{record.manifest["seed"]: record for record in group} for group in groups.values()]
    rows = []
    for seed in sorted(set(by_seed[0]) & set(by_seed[1])):
        pair = [records[seed] for records in by_seed]
        last = min(record.evals["round"].max() for record in pair)
        rounds = [number for number in sorted(pair[0].evals["round"].unique()) if number <= last]
        for start, end in pairwise(rounds):
            scores = [scores_at(record, "round", end).mean() for record in pair]
            for label, record, score in zip(groups, pair, scores):
                table = record.rounds
                zero = table.loc[table["round"].between(start + 1, end), "all_negative"].mean()
                rows.append((seed, label, end, zero, score, score / max(scores)))
    return pd.DataFrame(rows, columns=["seed", "label", "round", "zero", "score", "relative"])
