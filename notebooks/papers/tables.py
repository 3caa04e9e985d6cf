"""Tables that several papers' notebooks need: over seeds, by level, and what is saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from papers.times import tokens_to_target
from workbench.analysis import cost
from workbench.analysis.comparisons import at_budget
from workbench.analysis.curves import Curve, Unit, common_budget, of_common_seeds, read
from workbench.analysis.intervals import LEVEL, Measurement, mean_interval
from workbench.analysis.runs import arms, by_seed
from workbench.records import Record
from workbench.utils.validation import brief, one_of

__all__ = [
    "accuracy_by_level",
    "accuracy_gain",
    "break_even_prices",
    "column_means",
    "evaluations",
    "markdown_table",
    "over_seeds",
    "paired",
    "percent_saved",
    "seed_means",
    "without_nan",
]


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
    curves = read(groups)
    parts = {}
    for number in sorted(first.evals["level"].unique()):
        of_level = {
            label: {
                record.seed: _at_level(record, curves[label][record.seed], number)
                for record in records
            }
            for label, records in groups.items()
        }
        parts[int(number)] = at_budget(of_level, unit, budget, baseline=baseline)
    return pd.concat(parts, names=["level", "label"])


def _at_level(record: Record, curve: Curve, level: int) -> Curve:
    """A run's curve on the held-out problems of one difficulty level."""
    evals = record.evals[record.evals["level"] == level]
    scores = (evals["correct"] / evals["samples"]).groupby(evals["round"]).mean()
    return replace(curve, scores=scores.loc[curve.rounds].to_numpy())


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


def accuracy_gain(
    records: Any,
    baseline: Any,
    unit: str | Unit,
    budget: float | None = None,
    *,
    y: str = "accuracy",
) -> Measurement:
    """Held-out score of one arm minus another's at equal cost, in percentage points.

    Parameters
    ----------
    records, baseline : records of one setting each
    unit, budget, y
        As in `comparisons.at_budget`.
    """
    curves = read({"arm": records, "baseline": baseline}, y)
    # A budget of one's own is checked too: beyond the last evaluation of some run, that arm would
    # be compared with a score that it had earlier.
    reached = common_budget(curves, unit)
    budget = reached if budget is None else budget
    if not 0 <= budget <= reached:
        raise ValueError(
            f"budget={brief(budget)}: the runs were last evaluated at {reached:g} of it"
        )

    def gain(run: Curve, rival: Curve) -> float:
        return 100 * run.score_at(unit, budget) - 100 * rival.score_at(unit, budget)

    return paired(curves["arm"], curves["baseline"], gain)


def paired(
    arm: Any,
    baseline: Any,
    quantity: Callable[[Any, Any], float],
    level: float = LEVEL,
    scale: str = "linear",
) -> Measurement:
    """A number of two runs of the same seed, for every seed that both arms have.

    Parameters
    ----------
    arm, baseline : records of one setting each, or dicts from seed to anything
    quantity : function from a run and the baseline's of the same seed to a number
        A difference, a ratio, a change in percent.
    level : float
        Probability of the interval.
    scale : {"linear", "ratio", "percent"}
        What the number is, see `intervals.Measurement`.

    Raises
    ------
    ValueError
        When the two have no seed in common.
    """
    arm = _seeded(arm)
    baseline = _seeded(baseline)
    values = [quantity(*pair) for pair in zip(*of_common_seeds(arm, baseline))]
    return Measurement(np.array(values), scale=scale, level=level)


def break_even_prices(
    groups: Any, target: float, baseline: str, *, bill: str = "gradient"
) -> pd.DataFrame:
    """`break_even` of every arm against the baseline: a DataFrame, a row a label.

    Columns: price (the break-even), low, high, cheaper_below and n (pairs).
    """
    rows = {}
    tokens = tokens_to_target(groups, target, bill)
    one_of("baseline", baseline, tokens)
    of_baseline = tokens.pop(baseline)
    for label, of_arm in tokens.items():
        pairs = of_common_seeds(of_arm, of_baseline)
        rows[label] = {**cost.break_even(*pairs)._asdict(), "n": len(pairs[0])}
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.rename(columns={"estimate": "price"})


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown: `head` has a text a column, and `rows` one list of texts a row.

    >>> print(markdown_table(["a", "b"], [["1", "2"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def without_nan(table: pd.DataFrame) -> pd.DataFrame:
    """The table as it is to be shown, with an empty cell for each NaN; a column that had one
    holds texts.

    >>> without_nan(pd.DataFrame({"ratio": [float("nan"), 0.75], "seeds": [8, 8]}))
      ratio  seeds
    0            8
    1  0.75      8
    """
    shown = table.copy()
    for place in range(table.shape[1]):
        column = table.iloc[:, place]
        there = column.dropna()
        if len(there) < len(column):
            texts: Iterable[Any] = there
            if pd.api.types.is_numeric_dtype(column):  # with the decimals that pandas gives it
                texts = there.to_string(index=False, header=False).split()
            left = iter(texts)
            shown.isetitem(place, ["" if gone else next(left) for gone in column.isna()])
    return shown


def _seeded(runs: Any) -> dict[int, Any]:
    """Runs by seed, from records or from such a dict."""
    if isinstance(runs, Mapping):
        return dict(runs)
    [group] = arms({"arm": runs}).values()
    return by_seed(group)


def column_means(
    groups: Any, columns: Iterable[str], *, rounds: tuple[int, int] | None = None
) -> pd.DataFrame:
    """Means of columns of the rounds table, with intervals over seeds.

    Parameters
    ----------
    groups : dict from label to records
    columns : names of columns
        Empty cells are left out of a run's mean.
    rounds : (first, last), optional
        Both included; None for all.

    Returns
    -------
    DataFrame, a row a label
        Columns (name, "mean") and (name, "half"), the 95 % half-width over seeds.
    """
    columns = list(columns)
    rows: dict[str, dict[tuple[str, str], float]] = {}
    for label, records in arms(groups).items():
        tables = [record.rounds for record in records]
        if rounds is not None:
            tables = [table[table["round"].between(*rounds)] for table in tables]
        rows[label] = {}
        for column in columns:
            interval = mean_interval([table[column].mean() for table in tables])
            rows[label][column, "mean"], rows[label][column, "half"] = interval
    return pd.DataFrame.from_dict(rows, orient="index")
