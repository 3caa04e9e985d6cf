"""The figure of a trial: what was found, seed by seed, how it was tuned, and at which price.

It is drawn from tables and records alone, so that it can be drawn again of any trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from workbench.analysis import cost
from workbench.analysis.curves import UNITS, Curve, name_of, of_common_seeds, read
from workbench.analysis.forecast import of_curves
from workbench.analysis.sequential import BAND
from workbench.analysis.targets import crossings
from workbench.plots.curves import AXIS_LABELS, learning_curve
from workbench.plots.style import (
    INK,
    NAMED,
    SOFT,
    WIDTH,
    heading,
    label_ends,
    looks,
    plain,
    ratio_ticks,
    seeds,
    style,
    without_seeds,
)
from workbench.plots.tables import interval, mark_price, prices

PRICES = tuple(float(price) for price in np.geomspace(0.03, 30, 31))


def trial(
    records: Mapping[str, Mapping[int, Any]],
    table: pd.DataFrame,
    tuning: pd.DataFrame | None = None,
    *,
    baseline: str,
    target: float,
    measure: Any = "rollouts",
    title: str | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Four panels: learning curves, cost to the target by seed, tuning, and the price of sampling.

    Parameters
    ----------
    records : dict from label to a dict from seed to Record
        Of the comparison, with the baseline.
    table : DataFrame
        As `Trial.table`: arm, verdict, ratio, low, high, seeds and the learning rates.
    tuning : DataFrame, optional
        As `Trial.tuning`: arm, learning_rate, seed, cost, reached and collapsed. Without it the
        third panel is left out.
    baseline : str
        Its label.
    target : float
        Held-out accuracy.
    measure : str or Unit
        What is counted to the target.
    title : str, optional
        What was found, by default.
    figure : Figure, optional
        To draw on, such as the one of an earlier look.

    Returns
    -------
    Figure
    """
    groups = {label: list(runs.values()) for label, runs in records.items() if runs}
    # The baseline comes first, so that it looks alike in every trial.
    groups = {baseline: groups[baseline], **groups}
    curves = read(groups)
    with style():
        if figure is None:
            figure = plt.figure(figsize=(WIDTH, 6.4), layout="constrained")
            plt.close(figure)  # a cell shows what it returns, and not once more what is open
        figure.clear()
        held_out, by_seed, tuned, by_price = figure.subplots(2, 2).flat
        learning_curve(groups, x=measure, legend=None, title="Held-out accuracy", ax=held_out)
        held_out.axhline(target, color=SOFT, ls=":", lw=1, label="_target")
        held_out.set_ylabel("accuracy, mean over seeds")
        _go_on(held_out, curves, table, measure)
        _name_lines(held_out)
        _by_seed(by_seed, curves, table, baseline, target, measure)
        if tuning is None or tuning.empty:
            tuned.set_axis_off()
        else:
            chosen = table.set_index("arm")["learning_rate"].to_dict()
            chosen[baseline] = table["baseline_learning_rate"].max()
            asked = {label: runs[0].manifest.get("arguments", {}) for label, runs in groups.items()}
            steps = {label: arguments.get("mini_batches") for label, arguments in asked.items()}
            tuning_curves(tuning, chosen, labels=list(groups), ax=tuned, steps=steps)
        # After an interruption an arm may have no seed that the baseline has.
        there = curves[baseline].keys()
        curves = {label: runs for label, runs in curves.items() if runs.keys() & there}
        if len(curves) > 1:
            _by_price(by_price, curves, baseline, target)
        else:
            by_price.set_axis_off()
        heading(figure, headline(table, baseline, measure) if title is None else title)
    return figure


def headline(table: pd.DataFrame, baseline: str, measure: Any = "rollouts") -> str:
    """What a trial found, in a few words, by the verdicts of its table.

    Parameters
    ----------
    table : DataFrame
        As in `trial`.
    baseline : str
    measure : str or Unit

    Examples
    --------
    >>> row = {"arm": "mine", "verdict": "better", "ratio": 0.81, "seeds": 9}
    >>> headline(pd.DataFrame([row]), "grpo")
    'mine needs 19 % fewer rollouts than grpo (9 seeds)'
    """
    what = UNITS.get(name_of(measure), name_of(measure))
    # Arms that were put aside have sentences of their own, unless there is nothing else.
    compared = table[table["ratio"].notna()]
    table = compared if len(compared) else table
    if len(table) == 1:
        [row] = table.to_dict("records")
        arm = plain(row["arm"])
        change = f"{100 * abs(row['ratio'] - 1):.0f} %"
        undecided = f"no difference in {what} found"
        if not row.get("known", True):
            undecided = "not known yet"
        elif not (row.get("low", 1) > 0 and row.get("high", 1) < np.inf):
            undecided = "too few runs reached the target to decide"
        # Both are said first: being cheaper where it arrives is only half of it.
        fails = row.get("reached", 0) < row.get("baseline_reached", 0)
        needs = f"{arm} fails more often and needs" if fails else f"{arm} needs"
        said = {
            "better": f"{needs} {change} fewer {what} than {plain(baseline)}",
            "worse": f"{arm} needs {change} more {what} than {plain(baseline)}",
            "alike": f"{arm} and {plain(baseline)} need as many {what}",
            "open": f"{arm} or {plain(baseline)}: {undecided}",
        }
        word = str(row["verdict"])
        return f"{said.get(word, f'{arm}: {word}')} ({seeds([row['seeds']])})"
    counts = table["verdict"].value_counts()
    words = ("better", "worse", "alike", "open")
    told = [f"{counts[word]} {word}" for word in words if counts.get(word)]
    return f"Of {len(table)} arms against {plain(baseline)}, by {what}: {', '.join(told)}"


def _go_on(
    ax: Axes, curves: Mapping[str, dict[int, Curve]], table: pd.DataFrame, measure: Any
) -> None:
    """Where every arm is going, dashed beyond its runs, with the interval as a band."""
    # Tables of earlier versions say nothing of what lies ahead.
    if "ahead" not in table:
        return
    baseline = list(next(iter(curves.values())).values())
    a_round = np.mean([curve.places(measure)[-1] / curve.rounds[-1] for curve in baseline])
    drawn = {without_seeds(str(line.get_label())): line for line in ax.lines}
    for label, look in looks(list(curves)).items():
        end = np.asarray(drawn[plain(label)].get_xdata())[-1]
        budgets = np.linspace(end, max(end, table["ahead"].max() * a_round), 6)
        made = [of_curves(curves[label], float(budget), measure) for budget in budgets]
        values, low, high = np.array([each[1:4] for each in made]).T
        ax.plot(budgets, values, color=look.colour, ls=(0, (3, 2)), lw=1.3, label=f"_{label}")
        ax.fill_between(budgets, low, high, color=look.colour, alpha=0.08, lw=0)


def _by_seed(
    ax: Axes,
    curves: Mapping[str, dict[int, Curve]],
    table: pd.DataFrame,
    baseline: str,
    target: float,
    unit: Any,
) -> None:
    """Each seed's cost to the target over the baseline's, and the interval of every arm.

    A dot is hollow where one of the two runs did not reach the target.
    """
    rows = table[table["ratio"].notna()]
    base = crossings(curves[baseline], target, unit)
    shown = [1 / (1 + BAND), 1 + BAND]
    ax.axvspan(*shown, color=SOFT, alpha=0.12, lw=0)
    ax.axvline(1, color=INK, lw=1)
    for place, row in zip(range(len(rows))[::-1], rows.to_dict("records")):
        colour = NAMED.get(row["verdict"], SOFT)
        pairs = list(zip(*of_common_seeds(crossings(curves[row["arm"]], target, unit), base)))
        # Seeds from above to below, in their order.
        heights = place - 0.12 - np.linspace(0, 0.26, len(pairs))
        for (one, other), height in zip(pairs, heights):
            face = colour if one.reached and other.reached else "none"
            shown.append(one.place / other.place)
            ax.plot(shown[-1], height, "o", ms=3.5, mfc=face, mec=colour, alpha=0.7)
        filled = row["verdict"] in ("better", "worse", "alike")
        ends = (row["ratio"], row["low"], row["high"])
        interval(ax, place + 0.1, ends, colour, filled, is_ratio=True)
        shown += [end for end in ends[1:] if 0 < end < np.inf]
        text = f"{plain(row['arm'])}: {row['verdict']}"
        if not row["reached"] == row["seeds"] == row["baseline_reached"]:
            text += f" ({row['reached']:.0f} of {row['seeds']:.0f} arrived, "
            text += f"baseline {row['baseline_reached']:.0f})"
        ax.text(0.02, place + 0.22, text, transform=ax.get_yaxis_transform(), size="small")
    ax.set(xscale="log", xlim=(min(shown) / 1.1, max(shown) * 1.1))
    ratio_ticks(ax.xaxis, *ax.get_xlim(), most=6)
    ax.set(yticks=[], ylim=(-0.6, max(len(rows), 1) - 0.35))
    ax.grid(visible=False, axis="y")
    what = AXIS_LABELS.get(name_of(unit), name_of(unit)).removesuffix(" sampled")
    ax.set(title="Cost by seed (grey: alike)")
    ax.set_xlabel(f"{what} to the target / {plain(baseline)}'s")


def tuning_curves(
    tuning: pd.DataFrame,
    chosen: Mapping[str, float],
    *,
    labels: Sequence[str],
    ax: Axes,
    steps: Mapping[str, float | None] | None = None,
) -> None:
    """Cost to the target by learning rate: a line through the means of every arm, a dot a run.

    The rate that was taken has a circle. A run that did not reach the target counts with what it
    would have cost at the pace that it had, and is hollow. Collapsed runs have no cost that means
    anything, so they are crosses at the upper edge.

    Parameters
    ----------
    tuning : DataFrame
        As in `trial`.
    chosen : dict from label to the learning rate that was taken
    labels : names of the arms
    ax : Axes
    steps : dict from label to the optimizer steps of a round that were taken, optional
        Where several were tuned.
    """
    for label, look in looks(labels).items():
        runs = tuning[tuning["arm"] == label]
        means = pd.Series(dtype=float)
        taken = (steps or {}).get(label)
        # A line for each number of optimizer steps; the circle is on that of those taken.
        numbers = runs.get("mini_batches", pd.Series(np.nan, runs.index))
        for number, of_number in runs.groupby(numbers, dropna=False):
            logs = np.log(of_number["cost"]).groupby(of_number["learning_rate"]).mean()
            line = np.exp(logs[np.isfinite(logs)])
            ax.plot(line.index, line, color=look.colour, ls=look.dash, lw=1.3, label=f"_{label}")
            if taken == number or pd.isna(taken) or pd.isna(number):
                means = line
        collapsed = runs["collapsed"].astype(bool)
        for row in runs[np.isfinite(runs["cost"]) & ~collapsed].to_dict("records"):
            face = look.colour if row["reached"] else "none"
            ax.plot(row["learning_rate"], row["cost"], ".", mfc=face, mec=look.colour, ms=6)
        lost = runs.loc[collapsed, "learning_rate"]
        edge = np.full(len(lost), 0.95)
        ax.plot(lost, edge, "x", color=look.colour, ms=6, transform=ax.get_xaxis_transform())
        rate = chosen.get(label)
        if rate is not None and len(means):
            height = cost_at(rate, means)
            ax.plot(rate, height, "o", ms=11, mfc="none", mec=look.colour, mew=1.5)
    ax.set(xscale="log", yscale="log", title="Tuning (circle: rate taken)")
    ax.set(xlabel="learning rate", ylabel="cost to the target")
    low, high = tuning["learning_rate"].min() / 1.2, tuning["learning_rate"].max() * 1.2
    ratio_ticks(ax.xaxis, low, high, most=3, text="{:.2g}".format)
    ax.set_xlim(low, high)
    finite = tuning["cost"][np.isfinite(tuning["cost"])]
    if len(finite):
        low, high = finite.min() / 1.2, min(finite.max(), 20 * finite.min()) * 1.4
        ratio_ticks(ax.yaxis, low, high, most=6, text=EngFormatter(sep=""))
        ax.set_ylim(low, high)


def cost_at(rate: float, means: pd.Series) -> float:
    """The cost at a learning rate on the line that a figure draws through those that were tried.

    Parameters
    ----------
    rate : float
    means : Series
        Mean costs by learning rate, in rising order; not empty.

    Examples
    --------
    >>> round(cost_at(2e-3, pd.Series({1e-3: 100.0, 4e-3: 400.0})))
    200
    """
    return float(np.exp(np.interp(np.log(rate), np.log(means.index), np.log(means))))


def _by_price(
    ax: Axes, curves: Mapping[str, dict[int, Curve]], baseline: str, target: float
) -> None:
    """Cost to the target over the baseline's, by the price of sampling."""
    table = cost.ratios_by_price(curves, target, baseline, PRICES)
    title = "Cost by the price of sampling"
    prices(table, baseline=baseline, title=title, legend=None, ax=ax)
    mark_price(ax, "FLOPs", cost.FLOP_PRICE)
    _name_lines(ax)
    ratio_ticks(ax.xaxis, PRICES[0], PRICES[-1], most=5)
    ax.set_xlabel("cost of a sampled token / of a trained one")
    ax.set_ylabel(f"cost to the target / {plain(baseline)}'s")


def _name_lines(ax: Axes) -> None:
    """Labels at the ends of lines, without the number of seeds, which the title has."""
    for line in ax.lines:
        line.set_label(without_seeds(str(line.get_label())))
    label_ends(ax)
