"""Arms side by side: held-out scores at an equal budget, and what a round of each costs.

Arms are a dict from label to the records of its seeds, see `workbench.analysis.runs`. How long an
arm takes to a target is `workbench.analysis.targets`; costs at a chosen price of sampling are
`workbench.analysis.cost`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.curves import Unit, against, common_budget, read
from workbench.analysis.curves import comparable as comparable
from workbench.analysis.intervals import LEVEL, Measurement, mean_interval
from workbench.analysis.runs import arms
from workbench.analysis.runs import load_all as load_all
from workbench.utils.names import TRAINING_PHASES
from workbench.utils.validation import one_of

# Records count FLOPs where a model computes; verifying and scheduling are counted in seconds
# only.
PHASES_WITH_FLOPS = ("generate", "update")


def at_budget(
    groups: Any,
    unit: str | Unit,
    budget: float | None = None,
    *,
    baseline: str | None = None,
    y: str = "accuracy",
    level: float = LEVEL,
) -> pd.DataFrame:
    """Held-out scores of every arm when it had spent the same.

    Parameters
    ----------
    groups : dict from label to records
    unit : str or Unit
        What the budget is counted in, see `curves.spent`.
    budget : float, optional
        None for the largest that every run had reached by its last evaluation.
    baseline : str, optional
        A label: the others are compared with it, seed by seed.
    y
        As in `curves.read`.
    level : float
        Probability of the intervals.

    Returns
    -------
    DataFrame, a row a label
        n (runs), mean, and half, which is half the width of Student's interval over the seeds. With
        a baseline also difference, low and high (Student's interval of the paired differences),
        pairs (seeds that both have) and better, the share of pairs that are above the baseline; a
        tie counts half.

    Raises
    ------
    ValueError
        For a baseline that is no label, a budget that a run did not reach, and runs that cannot be
        compared.
    """
    curves = read(groups, y)
    # One budget for all arms, settled before anything is read off their curves.
    if budget is None:
        budget = common_budget(curves, unit)
    reached = {
        label: {seed: curve.score_at(unit, budget) for seed, curve in by_seed.items()}
        for label, by_seed in curves.items()
    }
    rows = {}
    for label, scores in reached.items():
        mean, half = mean_interval(list(scores.values()), level)
        rows[label] = {"n": len(scores), "mean": mean, "half": half}
    for label, pairs in against(reached, baseline).items():
        differences = np.subtract(*pairs)
        rows[label] |= Measurement(differences, level=level).columns("difference", n="pairs")
        # The sign is 1, 0 or -1, which becomes 1, 1/2 and 0.
        rows[label]["better"] = float((np.sign(differences) + 1).mean() / 2)
    return pd.DataFrame.from_dict(rows, orient="index")


def phases(groups: Any, unit: str = "seconds") -> pd.DataFrame:
    """What a round costs by phase: means over rounds, medians over seeds.

    Parameters
    ----------
    groups : dict from label to records
    unit : {"seconds", "flops"}
        Seconds of generate, verify, schedule and update, or FLOPs of generate and update; and of
        rescore, where some run has that phase.

    Returns
    -------
    DataFrame (labels x phases)
    """
    one_of("unit", unit, ("seconds", "flops"))
    names = TRAINING_PHASES if unit == "seconds" else PHASES_WITH_FLOPS
    groups = arms(groups)
    everyone = [record.rounds for records in groups.values() for record in records]
    # Where another program samples, the trainer scores rollouts once more.
    if any(f"{unit}_rescore" in rounds for rounds in everyone):
        names = (names[0], "rescore", *names[1:])
    rows = {}
    for label, records in groups.items():
        columns = [f"{unit}_{name}" for name in names]
        by_run = [record.rounds.reindex(columns=columns).fillna(0.0).mean() for record in records]
        # The median, so that one run on a busy machine does not decide how long a phase takes.
        rows[label] = np.median(by_run, axis=0)
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(names))
