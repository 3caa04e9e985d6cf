"""What the panel of `stress.py` came to, as notebook 12 reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from papers.tables import paired
from papers.tuned import Shelf
from workbench.analysis.curves import scores
from workbench.analysis.metrics import pass_at_k
from workbench.records import Record

Groups = Mapping[str, Sequence[Record]]

__all__ = [
    "ERRORS",
    "LAGS",
    "LONG_PANEL",
    "PANEL",
    "compared",
    "long_table",
    "loss_text",
    "losses",
    "lost",
    "misjudged",
    "ratio_text",
    "shelves",
]

SOLVED = 0.5  # the share of right samples from which on a problem counts as solved
PASSES = 8  # k of pass@k

# The arms of `stress.panel` and of `stress.long_panel`, as they are shown.
PANEL = {
    "grpo": "GRPO",
    "grpo-16": "GRPO, 16 rollouts",
    "pods": "PODS",
    "ar3po": "AR3PO",
    "knapsack": "Knapsack",
    "aero": "AERO",
    "cbs": "CBS",
    "pkpo": "PKPO, 8 rollouts",
    "pkpo-16": "PKPO, 16 rollouts",
}
LONG_PANEL = {
    "grpo": "GRPO",
    "pods": "PODS",
    "ar3po": "AR3PO",
    "knapsack": "Knapsack",
    "aero": "AERO",
    "cbs": "CBS",
    "dapo": "DAPO",
    "pkpo": "PKPO, 16 rollouts",
}
# The conditions of `stress.CONDITIONS`, as they are shown: how many right answers are missed and
# how many wrong ones are accepted, or how many rounds old the sampling weights are.
ERRORS = {
    "missed-10": "10 % missed",
    "accepted-10": "10 % accepted",
    "both-10": "10 % of both",
    "accepted-30": "30 % accepted",
}
LAGS = {
    "lag-1": "lag 1",
    "lag-4": "lag 4",
    "lag-1-corrected": "lag 1, corrected",
    "lag-4-corrected": "lag 4, corrected",
    "lag-16-corrected": "lag 16, corrected",
}


def shelves(folder: Path, conditions: Iterable[str]) -> dict[str, Shelf]:
    """The recorded trials among the conditions, by the name of the condition."""
    recorded = set(pd.read_csv(folder / "arms.csv")["trial"])
    return {name: Shelf(folder / name, PANEL) for name in conditions if name in recorded}


def compared(
    arm: Sequence[Record], baseline: Sequence[Record], y: str = "accuracy"
) -> dict[str, float]:
    """Held-out score after the last round, and how far it is from another arm's, seed by seed.

    Parameters
    ----------
    arm, baseline : lists of Record
    y : str
        As in `curves.scores`.

    Returns
    -------
    dict
        score, in percent; value, low, high and n: the paired difference in points.
    """
    last, of_baseline = (
        {record.seed: float(scores(record, y).iloc[-1]) for record in records}
        for records in (arm, baseline)
    )
    difference = paired(last, of_baseline, lambda a, b: 100 * (a - b))
    return {"score": 100 * float(np.mean(list(last.values()))), **difference.columns()}


def losses(groups: Groups, plain: Groups) -> pd.DataFrame:
    """What every arm loses under stress against its own runs in the plain lab.

    Parameters
    ----------
    groups, plain : dicts from name to records
        Of the same arms in the two conditions.

    Returns
    -------
    DataFrame, a row an arm
        As `compared` gives it.
    """
    rows = {name: compared(group, plain[name]) for name, group in groups.items()}
    return pd.DataFrame.from_dict(rows, orient="index")


def loss_text(row: pd.Series) -> str:
    """A row of `losses`: the score, and how far it is from the plain one with its interval."""
    return f"{row['score']:.1f}: {row['value']:+.1f} [{row['low']:.1f}, {row['high']:.1f}]"


def ratio_text(row: pd.Series) -> str:
    """What an arm of `Trial.table` needs to the target over the baseline's, as far as it is known.

    Parameters
    ----------
    row : Series
        With ratio, low, high, reached, baseline_reached and seeds.
    """
    if row["reached"] == 0:
        return "no run reached it"
    ratio = f"{row['ratio']:.2f}"
    from_below, from_above = row["low"] > 0, np.isfinite(row["high"])
    if from_below and from_above:
        return f"{ratio} [{row['low']:.2f}, {row['high']:.2f}]"
    if from_below or from_above:
        return f"at least {ratio}" if from_below else f"at most {ratio}"
    return f"{row['reached']:.0f} of {row['seeds']:.0f} runs reached it"


def misjudged(groups: Groups) -> pd.DataFrame:
    """How many verdicts were wrong, of all rollouts and of those that were trained on.

    Parameters
    ----------
    groups : dict from name to records

    Returns
    -------
    DataFrame, a row an arm
        sampled and trained: shares in percent, means over rounds and then over seeds. value, low,
        high and n: the second minus the first, in points, with its interval over seeds.
    """
    rows = {}
    for name, records in groups.items():
        means = {
            record.seed: 100 * record.rounds[["misjudged", "misjudged_trained"]].mean()
            for record in records
        }
        sampled = {seed: float(mean["misjudged"]) for seed, mean in means.items()}
        trained = {seed: float(mean["misjudged_trained"]) for seed, mean in means.items()}
        rows[name] = {
            "sampled": np.mean(list(sampled.values())),
            "trained": np.mean(list(trained.values())),
            **paired(trained, sampled, float.__sub__).columns(),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def lost(evals: pd.DataFrame) -> pd.Series:
    """The share of held-out problems that were solved at an earlier evaluation and no longer are.

    Parameters
    ----------
    evals : DataFrame, a row a problem and an evaluation
        round, problem, samples and correct, as a record has them.

    Returns
    -------
    Series of float, by round
        A problem is solved where at least half of its samples are right.
    """
    solved = evals["correct"] / evals["samples"] >= SOLVED
    table = evals.assign(solved=solved).pivot(index="round", columns="problem", values="solved")
    return (table.cummax() & ~table).mean(axis=1)


def long_table(groups: Groups, rounds: Sequence[int]) -> pd.DataFrame:
    """How long runs stand after some of their rounds.

    Parameters
    ----------
    groups : dict from name to records
    rounds : list of int
        At which the runs were evaluated.

    Returns
    -------
    DataFrame, a row an arm and a round
        Means over seeds: accuracy, pass@8 and problems lost again, in percent; length of a held-out
        response in tokens; and the entropy of the rollouts of the last ten rounds up to that one,
        in nats a token.
    """
    rows = {
        (name, number): pd.DataFrame([_standing(record, number) for record in records]).mean()
        for name, records in groups.items()
        for number in rounds
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def _standing(record: Record, number: int) -> dict[str, Any]:
    rows = record.evals[record.evals["round"] == number]
    entropy = record.rounds.set_index("round")["entropy"]
    return {
        "accuracy": 100 * (rows["correct"] / rows["samples"]).mean(),
        f"pass@{PASSES}": 100 * pass_at_k(rows["correct"], int(rows["samples"].iloc[0]), PASSES),
        "lost again": 100 * lost(record.evals)[number],
        "length": rows["length"].mean(),
        "entropy": entropy.loc[max(1, number - 9) : number].mean(),
    }
