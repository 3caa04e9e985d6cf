"""The ladder: what methods change at 0.1, 0.34 and 135 million parameters, and in their papers.

Every rung has the same panel of methods. Each was tuned against GRPO in the same way, and then had
fresh seeds; the constants are those of the leaderboard, which is the lowest rung. Between rungs
three things are compared: the rollouts and the rounds until half of the answers are right, and the
accuracy at equal rounds, which is what the papers report. The target is the same on all rungs, and
not that of each trial, since the pretrained model learns its task to the end: its trial's target is
near there.

What a method costs in rollouts is what it samples in a round, times the rounds that it takes. The
first factor is known before any training, so an order of methods by rollouts that is found again on
another rung says little unless it is found again better than the order of that factor.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from scipy import stats

from papers.courses import difference_text
from papers.plots import panels
from papers.pods import against, released_runs
from papers.tables import paired
from papers.tuned import Shelf
from workbench.analysis.curves import Curve, of_common_seeds
from workbench.analysis.intervals import Measurement
from workbench.analysis.targets import crossings, ratio_to_target
from workbench.labs import shipped
from workbench.plots.style import INK, PALETTE, heading, ratio_ticks, style
from workbench.utils.numbers import ratio_text
from workbench.utils.seeding import generator

__all__ = [
    "ARMS",
    "LOWER",
    "OTHER_ARMS",
    "OTHER_TASK",
    "RUNGS",
    "agreement",
    "correlations",
    "draw",
    "effects",
    "intervals",
    "published",
    "released",
    "shelves",
]

RUNGS = {
    "0.10 million": "leaderboard",
    "0.34 million": "regimes/ladder-large",
    "135 million": "regimes/ladder-smollm2",
}
# The last rung with lower rates, of which nearly all arms took the highest one.
LOWER = {"135 million, to 1.1e-3": "regimes/ladder-smollm2-low"}
ARMS = {
    "pods": "PODS",
    "ar3po": "AR3PO",
    "pkpo": "PKPO",
    "dapo": "DAPO",
    "knapsack": "Knapsack RL",
    "aero": "AERO",
    "cbs-round": "CBS",
}
BASELINE = {"grpo": "GRPO"}
# The last rung on another kind of task: finding the largest of four numbers.
OTHER_TASK = {"135 million, the largest of four": "regimes/ladder-smollm2-largest"}
OTHER_ARMS = {label: ARMS[label] for label in ("pods", "ar3po", "dapo")}
PAPERS = "the papers"
# What is known before any training; its order is compared with those of the rungs.
SAMPLED = "rollouts sampled a round"
# What is compared between rungs, and its column of `effects`.
MEASURES = {
    "rollouts to the target": "ratio",
    "rounds to the target": "rounds",
    "accuracy at equal rounds": "points",
}
RESAMPLES = 2000  # of the seeds of a rung
TARGET = 0.5  # held-out accuracy; every rung begins below .3
# File, method there, and the row that holds the mean over benchmarks. All are percent but AERO's.
TABLES = (
    ("ar3po_table1", "AR3PO", "AR3PO", "average", 1),
    ("ar3po_table1", "DAPO", "DAPO", "average", 1),
    ("aero_table1", "DAPO", "DAPO", "total", 100),
    ("aero_table1", "AERO", "AERO", "total", 100),
    ("knapsack_table1", "Knapsack-GRPO", "Knapsack RL", "average", 1),
    ("cbs_table2", "GRPO + CBS*", "CBS", "average", 1),
)
# What the two axes of the figure show.
RATIOS = (0.3, 20)
POINTS = (-60, 60)
# PODS's released runs: Qwen2.5-3B on GSM8K, on one L40S.
RELEASED = ("max-variance 64 to 16", "GRPO 16")


def shelves(
    runs: Any, folders: Mapping[str, str] = RUNGS, arms: Mapping[str, str] = ARMS
) -> dict[str, Shelf]:
    """The recorded trial of each rung, by its size.

    Parameters
    ----------
    runs : path
        Such as data/runs.
    folders : dict from size to its folder there, optional
        `RUNGS`, `LOWER` or `OTHER_TASK`.
    arms : dict from label to name, optional
        Of the methods beside GRPO: `ARMS`, or `OTHER_ARMS`.
    """
    arms = {**BASELINE, **arms}
    return {size: Shelf(Path(runs, folder), arms) for size, folder in folders.items()}


def effects(rungs: Mapping[str, Shelf]) -> pd.DataFrame:
    """What every method changes at every size.

    Parameters
    ----------
    rungs : dict from size to Shelf
        As `shelves` gives it.

    Returns
    -------
    DataFrame, a row for each (size, method)
        ratio, low, high: rollouts to the target over GRPO's; rounds, rounds_low, rounds_high: the
        same by rounds; a_round: what it samples in a round over GRPO's; reached: runs that got
        there; points, points_low, points_high: accuracy above GRPO's after as many rounds, in
        points, see `at_equal_rounds`; seeds and learning_rate.
    """
    rows = {}
    for size, shelf in rungs.items():
        for name in shelf.names.values():
            if name in BASELINE.values():
                continue
            ratio, rounds = (cost_ratio(shelf, name, unit) for unit in ("rollouts", "round"))
            points = at_equal_rounds(shelf, name)
            reached = crossings(shelf.curves[name], TARGET, "rollouts").values()
            rows[size, name] = {
                **ratio.columns("ratio", n="seeds"),
                "rounds": rounds.value,
                "rounds_low": rounds.low,
                "rounds_high": rounds.high,
                "a_round": sampled_a_round(shelf, name) / sampled_a_round(shelf, "GRPO"),
                "reached": sum(each.reached for each in reached),
                "points": points.value,
                "points_low": points.low,
                "points_high": points.high,
                "learning_rate": shelf.rate_of(name),
            }
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.rename_axis(["size", "method"])


def cost_ratio(shelf: Shelf, name: str, unit: str) -> Measurement:
    """What a method needs to the target over what GRPO needs, in rollouts or in rounds."""
    costs = [crossings(shelf.curves[each], TARGET, unit) for each in (name, "GRPO")]
    return ratio_to_target(*of_common_seeds(*costs))


def sampled_a_round(shelf: Shelf, name: str) -> float:
    """The rollouts that a method samples in a round, over the rounds that GRPO has as well."""
    rounds = min(len(curve.table) for arm in (name, "GRPO") for curve in shelf.curves[arm].values())
    of_run = [curve.table["rollouts"].iloc[:rounds].mean() for curve in shelf.curves[name].values()]
    return float(np.mean(of_run))


def at_equal_rounds(shelf: Shelf, name: str) -> Measurement:
    """Accuracy above GRPO's in points, after the mean rounds that GRPO takes to the target."""
    curves = shelf.curves
    reached = crossings(curves["GRPO"], TARGET, "round").values()
    place = float(np.mean([each.place for each in reached]))

    def gain(run: Curve, rival: Curve) -> float:
        return 100 * (run.score_at("round", place) - rival.score_at("round", place))

    return paired(curves[name], curves["GRPO"], gain)


def published() -> pd.Series:
    """Accuracy above GRPO's in the papers' main tables, in points, by method.

    It is the mean over the models of a table, for DAPO over those of two papers. PODS has no table
    of accuracies, and `released` says what its released runs show. PKPO's paper reports pass@k.
    """
    rows = []
    for file, theirs, name, row, factor in TABLES:
        table = pd.read_csv(shipped(f"published/{file}.csv"))
        table = table[table["benchmark"] == row]
        if table["metric"].notna().any():
            table = table[table["metric"].str.startswith("avg")]
        values = factor * table.pivot(index="model", columns="method", values="value")
        gained = values[theirs] - values["GRPO"]
        rows += [{"method": name, "points": points} for points in gained]
    return pd.DataFrame(rows).groupby("method")["points"].mean()


def released() -> pd.Series:
    """PODS above GRPO in its released runs of Qwen2.5-3B, after as many steps as all of them have.

    Returns
    -------
    Series
        As a row of `pods.against`: difference, low and high in points, place in steps.
    """
    runs = released_runs()
    mine, other = RELEASED
    ends = runs.groupby(["setting", "run"])["steps"].max()
    place = min(ends[mine].min(), ends[other].min())
    [row] = against(runs, {mine: other}, "steps", [place]).to_dict("records")
    return pd.Series(row)


def correlations(table: pd.DataFrame) -> pd.DataFrame:
    """How alike the orders of methods are on two rungs, and in the papers.

    Parameters
    ----------
    table : DataFrame
        Of `effects`.

    Returns
    -------
    DataFrame, a row for each (first, second)
        measure (a key of `MEASURES`), methods (how many both have), correlation (Spearman's, of
        ranks), p (how often as strong a one comes about if the methods of one rung are shuffled,
        exactly) and partial (of two rungs by rollouts: what is left of the correlation when ranks
        by what a method samples in a round are held fixed).
    """
    rows = []
    for measure, column in MEASURES.items():
        orders = {size: table.loc[size, column] for size in table.index.unique("size")}
        if column == "points":
            orders[PAPERS] = published()
        if column == "ratio":
            # As it is on the smallest rung: that of a larger one is seen in its training alone.
            smallest = table.index.unique("size")[0]
            orders = {SAMPLED: table.loc[smallest, "a_round"], **orders}
        for first, second in itertools.combinations(orders, 2):
            both = pd.concat([orders[first], orders[second]], axis=1, join="inner").to_numpy()
            # Spearman's correlation is Pearson's of the ranks, and shuffling leaves ranks as they
            # are: of all orders at once it is one product.
            scores = stats.zscore(stats.rankdata(both, axis=0))
            tested = stats.permutation_test(
                (scores[:, 0],),
                lambda values, axis, other=scores[:, 1]: np.mean(values * other, axis=axis),
                permutation_type="pairings",
                n_resamples=np.inf,
                vectorized=True,
            )
            rows.append(
                {
                    "measure": measure,
                    "first": first,
                    "second": second,
                    "methods": len(both),
                    "correlation": tested.statistic,
                    "p": tested.pvalue,
                }
            )
    found = pd.DataFrame(rows)
    return found.assign(partial=_beyond_sampled(found))


def _beyond_sampled(found: pd.DataFrame) -> list[float]:
    """The partial correlation of every pair of rungs by rollouts; NaN of other pairs."""
    is_sampled = found["first"] == SAMPLED
    known = found[is_sampled].set_index("second")["correlation"]
    left = []
    for row in found.itertuples():
        if row.measure != "rollouts to the target" or row.first == SAMPLED:
            left.append(np.nan)
            continue
        a, b = known[row.first], known[row.second]
        # Nothing is left to be seen of an order that what is sampled decides alone.
        with np.errstate(invalid="ignore"):
            left.append((row.correlation - a * b) / np.sqrt((1 - a**2) * (1 - b**2)))
    return left


def intervals(rungs: Mapping[str, Shelf], resamples: int = RESAMPLES) -> pd.DataFrame:
    """How far the correlations between rungs would differ with other seeds.

    The seeds of either rung are drawn again with replacement, all methods of a rung with the same
    ones, and the orders of the means are correlated. That is the bootstrap over seeds; methods and
    learning rates stay the same. Drawing again adds noise to orders, so that the interval may lie
    below the correlation of all seeds.

    Parameters
    ----------
    rungs : dict from size to Shelf
        As `shelves` gives it.
    resamples : int

    Returns
    -------
    DataFrame, by (measure, first, second)
        low and high, the middle 95 % of the correlations.
    """
    rng = generator(0, "the ladder")
    smallest = next(iter(rungs.values()))
    before = sampled_a_round(smallest, "GRPO")
    rows = {}
    for measure, column in MEASURES.items():
        means = {}
        for size, shelf in rungs.items():
            names = [name for name in shelf.names.values() if name not in BASELINE.values()]
            table = pd.DataFrame({name: _by_seed(shelf, name, column) for name in names}).dropna()
            drawn = rng.integers(len(table), size=(resamples, len(table)))
            # (resamples, methods): the mean of every method over the seeds that were drawn.
            means[size] = table.to_numpy()[drawn].mean(axis=1)
        if column == "ratio":
            sampled = [sampled_a_round(smallest, name) / before for name in names]
            means = {SAMPLED: np.tile(sampled, (resamples, 1)), **means}
        for first, second in itertools.combinations(means, 2):
            ranks = [stats.rankdata(means[each], axis=1) for each in (first, second)]
            scores = [stats.zscore(each, axis=1) for each in ranks]
            found = np.mean(scores[0] * scores[1], axis=1)
            low, high = np.quantile(found, [0.025, 0.975])
            rows[measure, first, second] = {"low": low, "high": high}
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.rename_axis(["measure", "first", "second"])


def _by_seed(shelf: Shelf, name: str, column: str) -> pd.Series:
    """A measure of a method seed by seed, on the scale on which it is averaged."""
    seeds = sorted(shelf.curves[name].keys() & shelf.curves["GRPO"].keys())
    if column == "points":
        return pd.Series(at_equal_rounds(shelf, name).values, seeds)
    unit = "rollouts" if column == "ratio" else "round"
    return pd.Series(np.log(cost_ratio(shelf, name, unit).values), seeds)


def agreement(table: pd.DataFrame, small: str, large: str) -> pd.DataFrame:
    """Which differences of a small model a large one shows as well.

    Parameters
    ----------
    table : DataFrame
        Of `effects`.
    small, large : str
        Sizes.

    Returns
    -------
    DataFrame, a row a method
        For both measures, the two effects as text, and whether they point the same way: "yes",
        "no", or "open" where an interval of either holds no difference.
    """
    rows = {}
    for name in ARMS.values():
        pair = [table.loc[(size, name)] for size in (small, large)]
        ratios = [row[["ratio", "low", "high"]] for row in pair]
        points = [row[["points", "points_low", "points_high"]] for row in pair]
        points = [row.set_axis(["value", "low", "high"]) for row in points]
        rows[name] = {
            f"rollouts, {small}": ratio_text(*ratios[0]),
            f"rollouts, {large}": ratio_text(*ratios[1]),
            "rollouts, same way": _same(ratios, 1.0),
            f"points, {small}": difference_text(points[0]),
            f"points, {large}": difference_text(points[1]),
            "points, same way": _same(points, 0.0),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _same(pair: list[pd.Series], nothing: float) -> str:
    """Whether two effects lie on the same side of no difference, by their low and high."""
    sides = [np.sign(row["low"] - nothing) + np.sign(row["high"] - nothing) for row in pair]
    if 0 in sides:
        return "open"
    return "yes" if sides[0] == sides[1] else "no"


def draw(table: pd.DataFrame, *, title: str) -> Figure:
    """What every method changes, a mark a rung: cost to the target, and accuracy at equal rounds.

    Intervals that go beyond the axes are cut off at their edges.

    Parameters
    ----------
    table : DataFrame
        Of `effects`.
    title : str
    """
    sizes = list(table.index.unique("size"))
    names = list(ARMS.values())
    heights = {name: len(names) - 1 - place for place, name in enumerate(names)}
    shifts = dict(zip(sizes, np.linspace(0.25, -0.1, len(sizes))))
    with style():
        left, right = panels(2, height=4.6)
        for number, size in enumerate(sizes):
            rows = table.loc[size].loc[names]
            y = np.array([heights[name] + shifts[size] for name in names])
            for ax, columns in (
                (left, ["ratio", "low", "high"]),
                (right, ["points", "points_low", "points_high"]),
            ):
                value, low, high = rows[columns].to_numpy(dtype=float).T
                # An open end has no place, so the interval is drawn beyond the edge of the axes.
                high = np.where(np.isfinite(high), high, 2 * RATIOS[1])
                ax.hlines(y, low, high, color=PALETTE[number], linewidth=1.4)
                ax.plot(value, y, "o^s"[number], color=PALETTE[number], label=f"{size} parameters")
        papers = published()
        own = released()
        y = [heights[name] - 0.28 for name in papers.index]
        right.plot(papers, y, "D", color=INK, markersize=4, label="in the papers' tables")
        place = heights["PODS"] - 0.28
        right.hlines(place, own["low"], own["high"], color=INK, linewidth=1.4)
        right.plot(own["difference"], place, "P", color=INK, label="PODS's runs, 3 billion")
        left.set(xscale="log", xlim=RATIOS, xlabel="rollouts to half right, over GRPO's")
        left.xaxis.set_minor_formatter(NullFormatter())
        ratio_ticks(left.xaxis, *left.get_xlim(), most=6)
        right.set(xlim=POINTS, xlabel="points above GRPO, equal rounds")
        for ax, nothing in ((left, 1.0), (right, 0.0)):
            ax.axvline(nothing, color=INK, linewidth=0.8, zorder=0)
            ax.set(yticks=list(heights.values()), ylim=(-0.6, len(names) - 0.4))
            ax.grid(axis="y", visible=False)
        left.set_yticklabels(list(heights))
        right.set_yticklabels([])
        marks = right.get_legend_handles_labels()
        left.figure.legend(*marks, loc="outside lower center", ncols=3)
        heading(left, title)
    return left.figure
