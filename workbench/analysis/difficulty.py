"""What becomes of single problems in training: how hard each is at its first and last visit, and what was spent on it.

Statuses are those of `metrics.STATUS`, after Knapsack RL, section 5.2. `frames` is a dict from label to a dict from seed
to a record's rollouts with columns problem, round and correct, as `outcomes` reads them.
"""

import numpy as np
import pandas as pd

from workbench.analysis.comparisons import beliefs, visits
from workbench.analysis.metrics import STATUS, status, transition_matrix


def outcomes(groups):
    """The frames of runs whose record keeps rollouts: groups as `comparisons.load_all` gives them."""
    columns = ["problem", "round", "correct"]
    return {
        label: {r.manifest["seed"]: r.rollouts(columns=columns) for r in group}
        for label, group in groups.items()
    }


def visit_rates(frame, visit, most=None):
    """Success rates at one visit of every problem, 0 the first and -1 the last: a Series by problem.

    most: Series by problem, so many rollouts of the visit are read at most; None for all. With fewer rollouts a rate is
    more often 0 or 1, so that rates are compared at equal numbers only.
    """
    order = frame.groupby("problem")["round"].rank("dense").astype(int) - 1
    if visit < 0:
        visit = order.groupby(frame["problem"]).transform("max") + 1 + visit
    part = frame[order == visit]
    if most is not None:
        part = part[part.groupby("problem").cumcount() < part["problem"].map(most)]
    return part.groupby("problem")["correct"].mean().rename("rate")


def last_rates(frames, equal=False):
    """Success rates at the last visit: dict from label to a dict from seed to a Series, of the seeds that all labels have.

    equal: of every problem as many rollouts are read as its last visit has under the label that gave it fewest.
    """
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in frames.values())))
    most = dict.fromkeys(seeds)
    if equal:
        sizes = {
            s: [
                visits(by_seed[s])["rollouts"].groupby("problem").last()
                for by_seed in frames.values()
            ]
            for s in seeds
        }
        most = {seed: pd.concat(parts, axis=1).min(axis=1) for seed, parts in sizes.items()}
    return {
        label: {seed: visit_rates(by_seed[seed], -1, most[seed]) for seed in seeds}
        for label, by_seed in frames.items()
    }


def final(frames, equal=False):
    """Where problems end: a DataFrame, a row for each label and seed, with the share of problems in every status.

    Column `stay`: of the problems extremely hard at the first visit, the share that is so at the last. equal: see
    `last_rates`.
    """
    rows = {}
    for label, by_seed in last_rates(frames, equal).items():
        for seed, last in by_seed.items():
            first = visit_rates(frames[label][seed], 0)
            shares = (
                pd.Series(status(last)).value_counts(normalize=True).reindex(STATUS, fill_value=0.0)
            )
            rows[label, seed] = {
                **shares,
                "stay": transition_matrix(first, last[first.index], "rows")[0, 0],
            }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["label", "seed"])


def transitions(frames, equal=False):
    """From the first visit's status (rows) to the last one's: dict from label to a DataFrame (5 x 5), shares of a row.

    Means over seeds. equal: see `last_rates`.
    """
    found = {}
    for label, by_seed in last_rates(frames, equal).items():
        firsts = {seed: visit_rates(frames[label][seed], 0) for seed in by_seed}
        tables = [
            transition_matrix(firsts[seed], last[firsts[seed].index], "rows")
            for seed, last in by_seed.items()
        ]
        found[label] = pd.DataFrame(np.mean(tables, axis=0), index=STATUS, columns=STATUS)
    return found


def spending(frame, window=16):
    """What rollouts were spent on: a DataFrame, a row for each of `metrics.STATUS` (Knapsack RL, figure 16).

    A problem's status is that of its last `window` rollouts before a visit; first visits are left out. Columns: visits
    (share of them), rollouts (mean of a visit), spent (share of all rollouts), mixed (share of the visits with right and
    wrong ones).
    """
    rows = [(past.mean(), len(now), 0 < now.mean() < 1) for _, past, now in beliefs(frame, window)]
    table = pd.DataFrame(rows, columns=["rate", "rollouts", "mixed"])
    by_status = table.groupby(status(table["rate"]))
    found = by_status[["rollouts", "mixed"]].mean()
    found.insert(0, "visits", by_status.size() / len(table))
    found.insert(2, "spent", by_status["rollouts"].sum() / table["rollouts"].sum())
    return found.reindex(list(STATUS))
