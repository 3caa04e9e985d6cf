"""Where a rollout starts and when it stops: ten recent methods, as notebook 13 reads them.

Their trials are the regimes "course" and "course-tight" of `regimes.py`. Here is what only they
need: what each arm spends to the target in several units, where its runs end, and an experiment on
what a course that stops rollouts throws away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import workbench as wb
from papers import standings
from papers.tables import paired
from workbench.analysis import cost
from workbench.analysis.curves import common_budget, read
from workbench.analysis.curves import spent as spent_by
from workbench.analysis.intervals import smallest_change
from workbench.analysis.targets import crossings, to_target
from workbench.labs import Lab
from workbench.methods import Method
from workbench.records import Record

__all__ = [
    "NAMES",
    "UNITS",
    "difference_text",
    "ends",
    "of_a_round",
    "ratio_text",
    "ratios",
    "resolution",
    "spent",
    "stopped_by",
    "visited",
]

# The arms of `regimes.course_arms`, as they are shown.
NAMES = {
    "grpo": "GRPO",
    "ar3po": "AR3PO",
    "maxrl": "MaxRL",
    "gdpo": "GDPO",
    "dps": "DPS",
    "pilot-commit": "Pilot-Commit",
    "duet": "DUET",
    "arrol": "ARRoL",
    "arrol-one-bin": "ARRoL, blind",
    "prefix-sampling": "Prefix Sampling",
    "prefix-rl": "PrefixRL",
    "spec-rl": "SPEC-RL",
    "partial-rollouts": "partial rollouts",
}
UNITS = {
    "tokens": "tokens_sampled",
    "rollouts": "rollouts",
    "l40s": cost.MACHINES["l40s"],
    "round": "round",
}
OF_A_ROUND = {
    "rollouts": "rollouts",
    "trained": "trained",
    "tokens sampled": "tokens_sampled",
    "tokens read": "tokens_read",
    "tokens stopped": "tokens_stopped",
}
# No step is visible at this rate, so that runs of different methods keep the same weights.
STILL = 1e-12
SHORT, LONG = (1, 4), (7, 8)  # levels: operators of a chain


def spent(
    groups: Mapping[str, Sequence[Record]], target: float, baseline: str = "GRPO"
) -> pd.DataFrame:
    """What every arm needs to the target, over the baseline's, in each of `UNITS`.

    Parameters
    ----------
    groups : dict from name to records
    target : float
        Held-out accuracy.
    baseline : str

    Returns
    -------
    DataFrame, a row an arm
        As `standings.table`. Its verdict is by rollouts; that by sampled tokens is the trial's.
    """
    return standings.table(dict(groups), baseline=baseline, target=target, units=UNITS)


def ratios(
    groups: Mapping[str, Sequence[Record]], target: float, unit: str, baseline: str = "GRPO"
) -> pd.DataFrame:
    """What every arm needs to the target over the baseline's, in one of `UNITS`.

    Parameters
    ----------
    groups, target, baseline
        As in `spent`.
    unit : str
        A key of `UNITS`.

    Returns
    -------
    DataFrame, a row an arm
        As `targets.to_target`.
    """
    return to_target(read(dict(groups)), target, UNITS[unit], baseline=baseline)


def of_a_round(groups: Mapping[str, Sequence[Record]]) -> pd.DataFrame:
    """Rollouts and tokens of a round, means over rounds and seeds.

    Parameters
    ----------
    groups : dict from name to records

    Returns
    -------
    DataFrame, a row an arm
        rollouts; trained, those with a gradient; tokens sampled; tokens read, of old responses; and
        tokens stopped, of responses that a course stopped.
    """
    rows = {}
    for name, group in groups.items():
        rounds = pd.concat([record.rounds for record in group])
        # Only methods with a course have the last two.
        rounds = rounds.reindex(columns=list(OF_A_ROUND.values()), fill_value=0)
        rows[name] = {text: rounds[column].mean() for text, column in OF_A_ROUND.items()}
    return pd.DataFrame.from_dict(rows, orient="index")


def ratio_text(row: pd.Series, unit: str) -> str:
    """A ratio of `spent` with its interval, in one of `UNITS`."""
    if np.isnan(row[f"{unit}_low"]):
        return f"{row[unit]:.2f}"
    high = row[f"{unit}_high"]
    end = f"{high:.2f}" if np.isfinite(high) else "open"
    return f"{row[unit]:.2f} [{row[f'{unit}_low']:.2f}, {end}]"


def difference_text(row: pd.Series) -> str:
    """A difference of `ends` with its interval."""
    return f"{row['value']:+.1f} [{row['low']:.1f}, {row['high']:.1f}]"


def resolution(group: Sequence[Record], target: float) -> pd.DataFrame:
    """How small a change of the cost to a target shows between two arms that spread as this one.

    Parameters
    ----------
    group : list of Record
        Runs of one arm, all of which reach the target.
    target : float
        Held-out accuracy.

    Returns
    -------
    DataFrame, a row a unit of `UNITS`
        For 5, 8 and 12 pairs of seeds, the change in percent that is found four times out of five.
    """
    by_seed = read({"arm": list(group)})["arm"]
    rows = {}
    for name, unit in UNITS.items():
        places = [crossed.place for crossed in crossings(by_seed, target, unit).values()]
        # The ratio of two arms whose seeds have nothing in common varies by both.
        deviation = math.sqrt(2) * float(np.log(places).std(ddof=1))
        rows[name] = {
            pairs: 100 * math.expm1(smallest_change(deviation, pairs, power=0.8))
            for pairs in (5, 8, 12)
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(columns="pairs")


def ends(groups: Mapping[str, Sequence[Record]], baseline: str = "GRPO") -> pd.DataFrame:
    """Where the runs stand once they have sampled as many tokens, against the baseline's.

    Parameters
    ----------
    groups : dict from name to records
    baseline : str

    Returns
    -------
    DataFrame, a row an arm and a quantity
        value, low, high and n: the paired difference to the baseline of accuracy, accuracy on short
        and on long chains and accuracy of greedy responses (all in points), length of held-out
        responses in tokens, and the share of them that the limit cuts off, in points.
    """
    courses = read(dict(groups))
    budget = common_budget(courses, "tokens_sampled")
    found = {
        name: {record.seed: _standing(record, budget) for record in records}
        for name, records in groups.items()
    }
    rows = {}
    for name, of_seeds in found.items():
        if name == baseline:
            continue
        for quantity in next(iter(of_seeds.values())):
            arm, rival = (
                {seed: standing[quantity] for seed, standing in of_arm.items()}
                for of_arm in (of_seeds, found[baseline])
            )
            rows[name, quantity] = paired(arm, rival, float.__sub__).columns()
    return pd.DataFrame.from_dict(rows, orient="index")


def _standing(record: Record, budget: float) -> dict[str, float]:
    """What the evaluations of a run say of the moment when it has sampled so many tokens.

    Linear between two evaluations, as everywhere: the last one before that moment lies far before
    it where a round samples much, and near to it where a round samples little.
    """
    evals = record.evals
    right = evals["correct"] / evals["samples"]
    columns = {
        "accuracy": 100 * right,
        "short chains": 100 * right.where(evals["level"].between(*SHORT)),
        "long chains": 100 * right.where(evals["level"].between(*LONG)),
        "greedy": 100 * evals["greedy"],
        "length": evals["length"],
        "cut off": 100 * evals["truncated"],
    }
    # Means pass over what is missing, which are the chains of other lengths.
    curves = pd.DataFrame(columns).astype(float).groupby(evals["round"]).mean()
    places = spent_by(record, "tokens_sampled").loc[curves.index]
    return {name: float(np.interp(budget, places, curves[name])) for name in columns}


def stopped_by(
    method: Method, whole: Method, lab: Lab, out: Any, *, rounds: int, seed: int = 0
) -> pd.DataFrame:
    """Every rollout that a method started, and what it would have come to, had it gone on.

    Two runs without any learning draw the same tokens for the same rollouts. In one of them the
    method stops some; in the other all go on to their end.

    Parameters
    ----------
    method : Method
        Its course stops rollouts.
    whole : Method
        Samples at least as many rollouts of the same problems, and stops none.
    lab : Lab
    out : path
        Of the two records.
    rounds : int
    seed : int

    Returns
    -------
    DataFrame, a row a rollout of `method`
        round, problem, level, stopped, right and length; the last two are those of the response
        that was not stopped.
    """
    tables = {}
    for name, each in (("stopping", method), ("whole", whole)):
        # Only the rollouts are read, so nothing is evaluated.
        run = wb.Run(
            lab, each, seed=seed, out=Path(out, name), learning_rate=STILL, evaluate_every=0
        )
        for _ in run.rounds(rounds, progress=False):
            pass
        tables[name] = wb.load(Path(out, name)).rollouts()
    keys = ["round", "problem", "draw"]
    stopping = tables["stopping"]
    stopped = (stopping["status"] == "stopped").to_numpy()
    started = stopping[keys].assign(stopped=stopped)
    ended = tables["whole"][[*keys, "correct", "length"]]
    joined = started.merge(ended, on=keys, validate="one_to_one")
    if len(joined) != len(started):
        raise ValueError(
            f"{whole.name}: it sampled {len(joined)} of the {len(started)} rollouts that "
            f"{method.name} started; take a method with more rollouts of the same problems"
        )
    levels = {problem.id: problem.level for problem in lab.problems}
    return joined.rename(columns={"correct": "right"}).assign(
        level=[levels[problem] for problem in joined["problem"]]
    )


def visited(method: Method, lab: Lab, out: Any, *, rounds: int, seed: int = 0) -> dict[str, float]:
    """Which problems a method draws in a run that learns.

    Parameters
    ----------
    method : Method
    lab : Lab
    out : path
        Of the record.
    rounds : int
    seed : int

    Returns
    -------
    dict
        problems, how many different ones were drawn; draws of the most drawn 32, as a share of all
        draws; and mixed groups, as a share of all groups.
    """
    run = wb.Run(lab, method, seed=seed, out=out, evaluate_every=0)
    for _ in run.rounds(rounds, progress=False):
        pass
    groups = wb.load(out).rollouts().groupby(["round", "problem"])["correct"].mean()
    draws = groups.groupby("problem").size().sort_values(ascending=False)
    return {
        "problems": len(draws),
        "draws of the most drawn 32": draws.iloc[:32].sum() / draws.sum(),
        "mixed groups": groups.between(0, 1, inclusive="neither").mean(),
    }
