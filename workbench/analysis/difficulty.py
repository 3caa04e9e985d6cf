"""How hard single problems are for a policy, and what becomes of them in training.

The five classes are those of Knapsack RL (arXiv 2509.25849, section 5.2), by success rate:

    extremely-hard   0                easy             [.8, 1)
    hard             (0, .2]          extremely-easy   1
    medium           (.2, .8)

A *visit* is one problem in one round. `frames` below is a dict from label to a dict from seed to a
record's rollouts with the columns problem, round and correct, as `outcomes` reads them.

A rate that is measured on few rollouts is 0 or 1 more often. Arms that spend different numbers of
rollouts on a problem must therefore be compared at equal numbers (`equal=True`). The paper reads
its figure 6 as allocated (`equal=False`).

What is said of last visits holds for the rounds that all arms have: a longer run is cut where the
shortest of the same seed ends, see `common_rounds`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis.metrics import finite
from workbench.analysis.runs import arms
from workbench.records import Record
from workbench.utils.validation import success_rates

CLASSES = ("extremely-hard", "hard", "medium", "easy", "extremely-easy")
OUTCOME_COLUMNS = ("problem", "round", "correct")

Frames = Mapping[str, Mapping[int, pd.DataFrame]]


def transition_matrix(before: Any, after: Any) -> np.ndarray:
    """How problems moved between classes: rows before, columns after, in the order of `CLASSES`.

    Parameters
    ----------
    before, after : (P,) success rates
        Of the same problems in the same order.

    Returns
    -------
    (5, 5) float64
        Shares of each row. An empty row stays zero.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), figure 6.

    Examples
    --------
    >>> transition_matrix([0, 0, 1], [0.5, 0, 1])[0].tolist()
    [0.5, 0.0, 0.5, 0.0, 0.0]
    """
    rows = class_numbers(before, "before")
    columns = class_numbers(after, "after")
    if rows.shape != columns.shape:
        raise ValueError(
            f"before {rows.shape} and after {columns.shape}: one entry for each problem in both is "
            "needed"
        )
    # Each of the 25 cells has a number, so that one pass counts them all.
    counts = np.bincount(5 * rows + columns, minlength=25).reshape(5, 5)
    # A class without problems has a row of zeros, and must not become 0 / 0.
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def visits(frame: pd.DataFrame) -> pd.DataFrame:
    """A problem's rollouts each time it was drawn.

    Parameters
    ----------
    frame : DataFrame
        A record's rollouts with problem, round and correct, each of them once.

    Returns
    -------
    DataFrame, indexed by problem and visit (0, 1, ...)
        round, rollouts, correct (count) and rate.
    """
    # Sorted by round within a problem, so that counting gives the number of the visit.
    by_visit = frame.groupby(["problem", "round"], sort=True)["correct"]
    table = by_visit.agg(rollouts="size", correct="sum").reset_index()
    table["visit"] = table.groupby("problem").cumcount()
    table["rate"] = table["correct"] / table["rollouts"]
    return table.set_index(["problem", "visit"])


def class_numbers(rates: Any, name: str) -> np.ndarray:
    """Position in `CLASSES` of success rates (P,), (P,) int64."""
    rates = success_rates(name, finite(name, rates, 1))
    # The number of lower bounds that a rate has passed is its class. By the definition of the
    # paper, 0.2 is still hard and 0.8 already easy, hence > for the one and >= for the other.
    above_bounds = [rates > 0, rates > 0.2, rates >= 0.8, rates == 1]
    return np.sum(above_bounds, axis=0).astype(np.int64)


def classify(rates: Any) -> np.ndarray:
    """The difficulty class of each problem, (P,) of the names in `CLASSES`.

    Parameters
    ----------
    rates : (P,) success rates in [0, 1]

    References
    ----------
    Knapsack RL (arXiv 2509.25849), section 5.2.

    Examples
    --------
    >>> classify([0, 0.2, 0.5, 0.8, 1]).tolist()
    ['extremely-hard', 'hard', 'medium', 'easy', 'extremely-easy']
    """
    return np.array(CLASSES)[class_numbers(rates, "rates")]


def outcomes(groups: Any) -> dict[str, dict[int, pd.DataFrame]]:
    """The rollouts of runs whose records keep them, by label and seed.

    Responses of earlier rounds that joined a round are left out, so that every rollout counts once,
    in the round that sampled it.

    Parameters
    ----------
    groups : dict from label to records

    Returns
    -------
    dict from label to a dict from seed to a DataFrame with problem, round and correct

    Raises
    ------
    ValueError
        For a record without rollouts, as `records.pack` may leave them.
    """
    frames: dict[str, dict[int, pd.DataFrame]] = {}
    for label, records in arms(groups).items():
        frames[label] = {}
        for record in records:
            frames[label][record.seed] = fresh_rollouts(record, OUTCOME_COLUMNS)
    return frames


def fresh_rollouts(record: Record, columns: Sequence[str]) -> pd.DataFrame:
    """A record's rollouts, each once: without the rows that replay added in later rounds.

    Parameters
    ----------
    record : Record
    columns : names of columns, `round` among them
    """
    rounds = record.rounds["round"]
    # One round tells whether rollouts were kept and which columns they have, without reading all.
    first = record.rollouts(rounds=rounds[:1])
    if first.empty:
        raise ValueError(f"{record.path}: its rollouts were not kept")
    method = record.manifest["method"]
    # Without replay every row is new. Older manifests call the slot "reuse".
    if not (method.get("replay") or method.get("reuse")):
        return record.rollouts(columns=list(columns))
    if "age" in first:
        frame = record.rollouts(columns=[*columns, "age"])
        return frame.loc[frame["age"] == 0, list(columns)].reset_index(drop=True)
    # Without the age, a row is known to be old by the round in whose file it stands.
    parts = []
    for number in rounds:
        part = record.rollouts(rounds=[number], columns=list(columns))
        parts.append(part[part["round"] == number])
    return pd.concat(parts, ignore_index=True)


def visit_rates(frame: pd.DataFrame, visit: int, most: pd.Series | None = None) -> pd.Series:
    """Success rates at one visit of every problem, a Series by problem.

    Parameters
    ----------
    frame : DataFrame
        As for `visits`.
    visit : int
        0 for the first, -1 for the last.
    most : Series by problem, optional
        At most so many rollouts of the visit are read, in the order of sampling.
    """
    # Dense ranks of the rounds in which a problem was drawn are the numbers of its visits.
    order = frame.groupby("problem")["round"].rank("dense").astype(int) - 1
    if visit < 0:
        # Problems are drawn differently often, so the last visit has a number of its own for
        # each.
        visit = order.groupby(frame["problem"]).transform("max") + 1 + visit
    part = frame[order == visit]
    if most is not None:
        # The first ones, since an adaptive allocator decides by how a visit begins whether it
        # goes on: its beginning depends on nothing, its end does.
        place = part.groupby("problem").cumcount()
        part = part[place < part["problem"].map(most)]
    return part.groupby("problem")["correct"].mean().rename("rate")


def common_rounds(frames: Frames) -> dict[str, dict[int, pd.DataFrame]]:
    """The rounds that every label has, seed by seed.

    Arms differ in their number of rounds. The last visit of a problem comes later in a longer run,
    after more training, so that last visits say something only at equal rounds.

    Parameters
    ----------
    frames : dict from label to a dict from seed to rollouts
        A seed that some labels lack is cut to the shortest of those that have it.

    Returns
    -------
    dict from label to a dict from seed to rollouts
    """
    ends: dict[int, int] = {}
    for by_seed in frames.values():
        for seed, frame in by_seed.items():
            end = int(frame["round"].max())
            ends[seed] = min(end, ends.get(seed, end))
    cut: dict[str, dict[int, pd.DataFrame]] = {}
    for label, by_seed in frames.items():
        cut[label] = {}
        for seed, frame in by_seed.items():
            cut[label][seed] = frame[frame["round"] <= ends[seed]]
    return cut


def last_rates(frames: Frames, equal: bool = False) -> dict[str, dict[int, pd.Series]]:
    """Success rates at the last visit in the rounds that all labels have, for their common seeds.

    Parameters
    ----------
    frames : dict from label to a dict from seed to rollouts
    equal : bool
        Of every problem, read as many rollouts as its last visit has under the label that gave it
        fewest.

    Returns
    -------
    dict from label to a dict from seed to a Series by problem
    """
    # Labels are compared seed by seed, so a seed that one of them lacks is left out for all.
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in frames.values())))
    frames = common_rounds(frames)
    rates: dict[str, dict[int, pd.Series]] = {label: {} for label in frames}
    for seed in seeds:
        most = _fewest([by_seed[seed] for by_seed in frames.values()]) if equal else None
        for label, by_seed in frames.items():
            rates[label][seed] = visit_rates(by_seed[seed], -1, most)
    return rates


def transitions(frames: Frames, equal: bool = False) -> dict[str, pd.DataFrame]:
    """From the first visit's class (rows) to the last one's (columns): shares of a row.

    Parameters
    ----------
    frames, equal
        As in `last_rates`.

    Returns
    -------
    dict from label to a DataFrame (5 x 5)
        Means over the seeds that have a problem of the row's class.
    """
    matrices = {}
    # First and last visits are of the same rounds.
    frames = common_rounds(frames)
    for label, by_seed in last_rates(frames, equal).items():
        tables = []
        for seed, last in by_seed.items():
            first = visit_rates(frames[label][seed], 0)
            tables.append(transition_matrix(first, last[first.index]))
        # A seed without a problem of a class says nothing of where such problems go.
        seeds = np.sum([table.any(axis=1) for table in tables], axis=0)
        mean = np.sum(tables, axis=0) / np.maximum(seeds, 1)[:, None]
        matrices[label] = pd.DataFrame(mean, index=CLASSES, columns=CLASSES)
    return matrices


def _fewest(frames: Sequence[pd.DataFrame]) -> pd.Series:
    """The smallest number of rollouts at the last visit of each problem over several frames."""
    sizes = [visits(frame)["rollouts"].groupby("problem").last() for frame in frames]
    # min passes over NaN: a label that never drew a problem does not limit the others on it.
    return pd.concat(sizes, axis=1).min(axis=1)
