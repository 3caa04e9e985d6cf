"""Which orders of a leaderboard turn when every method is tuned, how each was tuned, what each
changes, and the table of the page.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from papers.tables import markdown_table
from workbench.analysis.curves import Curve, Unit, of_common_seeds
from workbench.analysis.intervals import holm
from workbench.analysis.targets import crossings, ratio_to_target
from workbench.plots.style import (
    INK,
    NAMED,
    SOFT,
    WIDTH,
    framed,
    heading,
    plain,
    ratio_ticks,
    style,
)
from workbench.plots.trials import cost_at
from workbench.records import Record
from workbench.utils.names import SLOTS
from workbench.utils.numbers import ratio_text
from workbench.utils.validation import one_of

LEVEL = 0.05
ACROSS = 6  # panels beside one another


def all_pairs(
    curves: Mapping[str, Mapping[int, Curve]], target: float, unit: str | Unit = "rollouts"
) -> pd.DataFrame:
    """The cost to the target of every method over that of every other one.

    Parameters
    ----------
    curves : dict from label to a dict from seed to Curve
        As `curves.read` gives it.
    target : float
        Held-out accuracy.
    unit : str or Unit

    Returns
    -------
    DataFrame, a row for each pair (first, second)
        ratio of the first one's cost to that of the second, low and high; p, 1 where too few runs
        reached the target and NaN with a single pair; arrived, whether all runs of both reached it;
        p_holm, corrected for the number of pairs;
        and lower: the label of the one that costs less where p_holm is at most .05, else "".
    """
    crossed = {label: crossings(dict(of), target, unit) for label, of in curves.items()}
    rows = {}
    for first, second in itertools.combinations(sorted(crossed), 2):
        ratio = ratio_to_target(*of_common_seeds(crossed[first], crossed[second]))
        rows[first, second] = {
            "ratio": ratio.value,
            "low": ratio.low,
            "high": ratio.high,
            "p": ratio.p_value(1.0),
            "arrived": not (ratio.censored or ratio.censored_baseline),
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index = pd.MultiIndex.from_tuples(table.index, names=["first", "second"])
    table["p_holm"] = holm(table["p"])
    lower = np.where(table["ratio"] < 1, *map(table.index.get_level_values, ("first", "second")))
    table["lower"] = np.where(table["p_holm"] <= LEVEL, lower, "")
    return table


def turned(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """The pairs whose order was decided before, and whose ratio lies on the other side of 1 now.

    Parameters
    ----------
    before, after : DataFrame
        As `all_pairs` gives them.

    Returns
    -------
    DataFrame, a row a pair, those first whose ratio now is the farthest from 1
        cheaper and dearer, as it was decided before; before and now, the ratios of their costs; and
        the p-values of the ratio now, p alone and p_holm after the correction over all pairs.
    """
    both = before.join(after, suffixes=("_before", "_now"), how="inner")
    both = both[both["lower_before"] != ""]
    # Turned so that the one that was cheaper stands above the line.
    sign = np.where(both["ratio_before"] < 1, 1, -1)
    other = [
        second if lower == first else first
        for (first, second), lower in both["lower_before"].items()
    ]
    found = pd.DataFrame(
        {
            "cheaper": both["lower_before"].to_numpy(),
            "dearer": other,
            "before": (both["ratio_before"] ** sign).to_numpy(),
            "now": (both["ratio_now"] ** sign).to_numpy(),
            "p": both["p_now"].to_numpy(),
            "p_holm": both["p_holm_now"].to_numpy(),
        }
    )
    found = found[found["now"] > 1]
    return found.sort_values("now", ascending=False).reset_index(drop=True)


def apart(
    before: Mapping[str, Mapping[int, Curve]],
    after: Mapping[str, Mapping[int, Curve]],
    targets: tuple[float, float],
    unit: str | Unit = "rollouts",
) -> pd.DataFrame:
    """How many pairs are decided, by whose effects and whose spread from seed to seed.

    A pair is decided by the size of a difference and by how much it differs from seed to seed. Here
    each comes from either of two sets of runs: Student's test of the mean of one set with the
    deviation of the other, after Holm's correction over all pairs. A run that did not reach the
    target counts as if it had at its end, so that all pairs can be counted. This says why fewer are
    decided, and decides none.

    Parameters
    ----------
    before, after : dict from label to a dict from seed to Curve
        The same methods, with as many seeds.
    targets : (float, float)
        Held-out accuracies of the two.
    unit : str or Unit

    Returns
    -------
    DataFrame (effects x spread)
        Numbers of pairs; "before" and "after" are rows and columns.
    """
    logs = {}
    for name, curves, target in zip(("before", "after"), (before, after), targets):
        crossed = {label: crossings(dict(of), target, unit) for label, of in curves.items()}
        for first, second in itertools.combinations(sorted(crossed), 2):
            ratio = ratio_to_target(*of_common_seeds(crossed[first], crossed[second]))
            logs[name, first, second] = np.log(ratio.values)
    parts = {
        name: np.array([logs[key] for key in logs if key[0] == name])
        for name in ("before", "after")
    }
    counts = {}
    for effects, of_effects in parts.items():
        for spread, of_spread in parts.items():
            seeds = of_spread.shape[1]
            error = of_spread.std(axis=1, ddof=1) / np.sqrt(seeds)
            p = 2 * stats.t.sf(np.abs(of_effects.mean(axis=1)) / error, seeds - 1)
            counts[effects, spread] = int((holm(p) <= LEVEL).sum())
    table = pd.Series(counts).unstack()
    return table.rename_axis(index="effects", columns="spread").loc[
        ["before", "after"], ["before", "after"]
    ]


def rank_correlation(before: pd.Series, after: pd.Series) -> float:
    """Kendall's tau-b of two series of ratios over the methods that both have."""
    both = pd.concat([before, after], axis=1, join="inner").dropna()
    return float(stats.kendalltau(both.iloc[:, 0], both.iloc[:, 1]).statistic)


def before_and_after(
    before: pd.DataFrame, after: pd.DataFrame, *, title: str, names: int = 10
) -> Axes:
    """Every method's ratio at one learning rate against its ratio with all methods tuned.

    Parameters
    ----------
    before, after : DataFrame
        Of `standings.table`, with a column rollouts.
    title : str
    names : int
        How many methods are named: those whose ratio changed most.
    """
    both = before[["rollouts"]].join(
        after[["rollouts", "verdict"]], suffixes=("_before", ""), how="inner"
    )
    both = both.dropna(subset=["rollouts_before", "rollouts"])
    change = np.log(both["rollouts"] / both["rollouts_before"]).abs()
    named = change.sort_values(ascending=False).index[:names]
    ends = (both[["rollouts_before", "rollouts"]].min().min() / 1.1, 4.2)
    with style():
        _, axis = plt.subplots(figsize=(WIDTH, 4.6), layout="constrained")
    with framed(
        axis,
        title="",
        xlabel="rollouts to the target at one learning rate for all, GRPO = 1",
        ylabel="the same, every method tuned",
        legend=None,
    ) as ax:
        ax.plot(ends, ends, color=SOFT, lw=1, ls=":")
        ax.axhline(1, color=INK, lw=0.8)
        ax.axvline(1, color=INK, lw=0.8)
        for row in both.to_dict("records"):
            colour = NAMED.get(row["verdict"], SOFT)
            ax.plot(row["rollouts_before"], row["rollouts"], "o", ms=5, color=colour)
        # From above to below. A name that would run into one above it stands on the left.
        on_the_right: list[tuple[float, float]] = []
        for label, row in both.loc[named].sort_values("rollouts", ascending=False).iterrows():
            place = row["rollouts_before"], row["rollouts"]
            runs_into = any(
                y / place[1] < 1.06 and 0.7 < x / place[0] < 1.4 for x, y in on_the_right
            )
            ax.annotate(
                plain(str(label)),
                place,
                xytext=(-6, -10) if runs_into else (6, -3),
                ha="right" if runs_into else "left",
                textcoords="offset points",
                size="small",
            )
            if not runs_into:
                on_the_right.append(place)
        ax.set(xscale="log", yscale="log", xlim=ends, ylim=(ends[0], both["rollouts"].max() * 1.15))
        ratio_ticks(ax.xaxis, *ax.get_xlim(), most=8)
        ratio_ticks(ax.yaxis, *ax.get_ylim(), most=8)
        heading(ax.figure, title)
    return ax


def tuning_panels(tuning: pd.DataFrame, arms: pd.DataFrame, *, title: str) -> Figure:
    """The tuning of every method as a small panel: cost to the target by learning rate.

    Parameters
    ----------
    tuning : DataFrame
        As `Trial.tuning`: arm, learning_rate, cost, reached and collapsed, a row a run.
    arms : DataFrame
        As `Trial.table`, with arm, learning_rate and baseline_learning_rate.
    title : str
    """
    chosen: dict[str, Any] = arms.set_index("arm")["learning_rate"].to_dict()
    labels = list(tuning["arm"].unique())
    # The baseline has no row of its own.
    [baseline] = set(labels) - set(arms["arm"])
    [chosen[baseline]] = arms["baseline_learning_rate"].dropna().unique()
    down = -(-len(labels) // ACROSS)
    rates = tuning["learning_rate"]
    finite = tuning["cost"][np.isfinite(tuning["cost"])]
    # Costs above this are those of runs that hardly learnt, and would flatten all curves.
    most = 12 * finite.min()
    lost = tuning["collapsed"].astype(bool) | (tuning["cost"] > most)
    with style():
        # Every panel is given the same axes below: matplotlib is slow with as many shared ones.
        figure, axes = plt.subplots(
            down, ACROSS, figsize=(WIDTH, 1.05 * down + 0.9), layout="constrained"
        )
        for place, (label, ax) in enumerate(itertools.zip_longest(labels, axes.flat)):
            if label is None:
                ax.set_axis_off()
                continue
            ax.set(
                xscale="log",
                yscale="log",
                xlim=(rates.min() / 1.3, rates.max() * 1.3),
                ylim=(finite.min() / 1.3, most * 1.2),
            )
            ax.minorticks_off()
            ax.set_xticks([3e-4, 1e-3, 3e-3], ["3e-4", "1e-3", "3e-3"])
            ax.set_yticks([5000, 10_000, 20_000, 40_000], ["5k", "10k", "20k", "40k"])
            ax.tick_params(
                labelsize=6,
                labelbottom=place + ACROSS >= len(labels),
                labelleft=place % ACROSS == 0,
            )
            ax.set_title(plain(label), size=7, pad=2)
            is_its_own = tuning["arm"] == label
            runs = tuning[is_its_own]
            costs = runs.assign(log=np.log(runs["cost"])).groupby("learning_rate")["log"].mean()
            means = np.exp(costs[np.isfinite(costs)])
            ax.plot(means.index, means, color=NAMED["alike"], lw=1.2)
            for reached, face in ((True, NAMED["alike"]), (False, "none")):
                dots = tuning[is_its_own & ~lost & (tuning["reached"] == reached)]
                ax.plot(
                    dots["learning_rate"], dots["cost"], "o", ms=2.5, mec=NAMED["alike"], mfc=face
                )
            crosses = rates[is_its_own & lost]
            ax.plot(crosses, np.full(len(crosses), most), "x", color=NAMED["worse"], ms=3.5)
            rate = chosen.get(label)
            if rate is not None and len(means):
                ax.plot(rate, cost_at(rate, means), "o", ms=8, mfc="none", mec=INK, mew=1)
        figure.supxlabel(
            "learning rate (circle: the one taken; cross: collapsed or hardly learnt)",
            size="medium",
        )
        figure.supylabel("rollouts to the target", size="medium")
        heading(figure, title)
    return figure


def changed_slots(groups: Mapping[str, Sequence[Record]], baseline: str = "grpo") -> dict[str, str]:
    """What each method decides otherwise than the baseline.

    Parameters
    ----------
    groups : dict from label to records
    baseline : str
        A label.

    Returns
    -------
    dict from label to str
        The slots, in the order of a round, such as "allocator, selector"; empty for the baseline.
    """
    one_of("baseline", baseline, groups)
    usual = groups[baseline][0].manifest["method"]
    changed = {}
    for label, records in groups.items():
        method = records[0].manifest["method"]
        slots = [slot for slot in SLOTS if method.get(slot) != usual.get(slot)]
        changed[label] = ", ".join(slots)
    return changed


def markdown(table: pd.DataFrame) -> str:
    """The table in Markdown, as the page of the leaderboard shows it.

    Parameters
    ----------
    table : DataFrame
        As `standings.table` gives it.

    Returns
    -------
    str
        A line a method: its label, the ratios of rollouts and of FLOPs with all selected rows to
        the target, with their intervals, and the verdict.
    """
    head = ["method", "rollouts", "FLOPs, all rows", "verdict"]
    rows = []
    for method, row in table.iterrows():
        shown = [
            ratio_text(row[unit], row[f"{unit}_low"], row[f"{unit}_high"])
            for unit in ("rollouts", "flops_all")
        ]
        outcome = row["verdict"] if isinstance(row["verdict"], str) else "the baseline"
        rows.append([f"`{method}`", *shown, outcome])
    return markdown_table(head, rows)
