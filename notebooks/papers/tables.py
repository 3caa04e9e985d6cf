"""Tables that several papers' notebooks need: over seeds, by level, and what is saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.comparisons import at_budget, common_budget, paired
from workbench.analysis.courses import Unit
from workbench.analysis.intervals import LEVEL, Measurement, mean_interval
from workbench.analysis.runs import arms
from workbench.records import Record

__all__ = ["accuracy_by_level", "evaluations", "over_seeds", "percent_saved", "seed_means"]


def accuracy_by_level(
    groups: Any, unit: str | Unit, budget: float | None = None, *, baseline: str | None = None
) -> pd.DataFrame:
    """`at_budget` on the held-out problems of each difficulty level: a DataFrame indexed by
    (level, label).
    """
    groups = arms(groups)
    first = next(iter(groups.values()))[0]
    # Spending does not depend on the level, so all levels are read at one place.
    if budget is None:
        budget = common_budget(groups, unit)
    parts = {}
    for number in sorted(first.evals["level"].unique()):
        parts[int(number)] = at_budget(
            groups, unit, budget, baseline=baseline, levels=[int(number)]
        )
    return pd.concat(parts, names=["level", "label"])


def over_seeds(
    records: Any, quantity: Callable[[Record], float], level: float = LEVEL
) -> Measurement:
    """A number of every run of one setting.

    Parameters
    ----------
    records : records of one setting
    quantity : function from a record to a number
    level : float
        Probability of the interval.
    """
    # One label gives one group; `arms` refuses records of several settings.
    [group] = arms({"arm": records}).values()
    return Measurement(np.array([quantity(record) for record in group]), level=level)


def percent_saved(
    groups: Any,
    column: str,
    pairs: Mapping[str, str],
    rounds: tuple[int, int] | None = None,
) -> pd.DataFrame:
    """By how many percent one arm lies below another in a summed column, seed by seed.

    Parameters
    ----------
    groups : dict from label to records
    column : str
        Of the rounds table, such as "seconds_update".
    pairs : dict from label to its baseline
    rounds : (first, last), optional
        Both included; None for all.

    Returns
    -------
    DataFrame, a row a label
        baseline, n (common seeds), value (percent saved), low and high: the interval of the ratio
        on the log scale.
    """
    groups = arms(groups)

    def total(record: Record) -> float:
        table = record.rounds
        if rounds is not None:
            table = table[table["round"].between(*rounds)]
        return float(table[column].sum())

    rows = {}
    for label, baseline in pairs.items():
        change = paired(
            groups[label],
            groups[baseline],
            lambda run, rival: 100 * (total(run) / total(rival) - 1),
            scale="percent",
        )
        rows[label] = {
            "baseline": baseline,
            "n": change.n,
            # What is saved is a negative change, which also swaps the ends of the interval.
            "value": -change.value,
            "low": -change.high,
            "high": -change.low,
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def seed_means(tables: Sequence[pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Mean and 95 % half-width over seeds of tables of the same rows and columns.

    Parameters
    ----------
    tables : list of DataFrame
        One a seed. A cell that is NaN in one of them is NaN in the mean.

    Returns
    -------
    dict from column to a DataFrame with mean, half and n (seeds)
    """
    first = tables[0]
    # (seeds, rows, columns); the slice of a column is turned so that each row has its seeds
    # together.
    stack = np.array([table.to_numpy(float) for table in tables])
    by_column = {}
    for i, name in enumerate(first):
        rows = [(*mean_interval(values), len(values)) for values in stack[:, :, i].T]
        by_column[name] = pd.DataFrame(rows, index=first.index, columns=["mean", "half", "n"])
    return by_column


def evaluations(groups: Any) -> pd.DataFrame:
    """What evaluating cost, which is in no unit of spending: means over runs.

    Parameters
    ----------
    groups : dict from label to records

    Returns
    -------
    DataFrame, a row a label
        evaluations (of a run), responses (sampled in all of them), tokens (of these responses),
        share (the tokens in percent of those that the run sampled to train on) and seconds. Greedy
        responses are one more for each problem, and counted in the seconds alone. tokens, share
        and seconds are NaN for records of early versions, which did not measure them.
    """
    rows = {}
    for label, records in arms(groups).items():
        by_run = []
        for record in records:
            evals = record.evals
            tokens = np.nan
            # Records of early versions have no lengths. A problem's length is the mean over its
            # samples, hence times their number.
            if "length" in evals:
                tokens = float((evals["length"] * evals["samples"]).sum())
            trained_on = record.rounds["tokens_sampled"].sum()
            responses = evals["samples"].sum()
            share = 100 * tokens / trained_on if trained_on else np.nan
            seconds = evals["seconds"].sum() if "seconds" in evals else np.nan
            by_run.append((evals["round"].nunique(), responses, tokens, share, seconds))
        rows[label] = np.mean(by_run, axis=0)
    columns = ["evaluations", "responses", "tokens", "share", "seconds"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)
