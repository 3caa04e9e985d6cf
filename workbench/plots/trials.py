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
from workbench.analysis.courses import Course, name_of, of_common_seeds, read
from workbench.analysis.sequential import BAND
from workbench.analysis.targets import crossings
from workbench.plots.cost import prices
from workbench.plots.curves import AXIS_LABELS, learning_curve
from workbench.plots.style import (
    INK,
    NAMED,
    SOFT,
    WIDTH,
    Look,
    framed,
    heading,
    label_ends,
    looks,
    ratio_ticks,
    style,
)
from workbench.plots.tables import interval
from workbench.plots.text import plain

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
    courses = read(groups)
    with style():
        figure = figure or plt.figure(figsize=(WIDTH, 6.4), layout="constrained")
        figure.clear()
        axes = list(figure.subplots(2, 2).flat)
        learning_curve(groups, x=measure, legend=None, title="Held-out accuracy", ax=axes[0])
        axes[0].axhline(target, color=SOFT, ls=":", lw=1, label="_target")
        axes[0].set_ylabel("accuracy, mean over seeds")
        _shorten(axes[0])
        label_ends(axes[0])
        ratios_by_seed(courses, table, baseline=baseline, target=target, unit=measure, ax=axes[1])
        if tuning is None or tuning.empty:
            axes[2].set_axis_off()
        else:
            chosen = chosen_rates(table, baseline)
            tuning_curves(tuning, chosen, labels=list(groups), ax=axes[2])
        if len(groups) > 1:
            price_axis(courses, baseline=baseline, target=target, ax=axes[3])
        else:
            axes[3].set_axis_off()
        heading(figure, title or headline(table, baseline, measure))
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
    what = name_of(measure).replace("_", " ")
    # Arms that were put aside have sentences of their own, unless there is nothing else.
    compared = table[table["ratio"].notna()]
    table = compared if len(compared) else table
    if len(table) == 1:
        [row] = table.to_dict("records")
        arm = plain(row["arm"])
        change = f"{100 * abs(row['ratio'] - 1):.0f} %"
        number = f"{row['seeds']:.0f} seed{'' if row['seeds'] == 1 else 's'}"
        said = {
            "better": f"{arm} needs {change} fewer {what} than {plain(baseline)}",
            "worse": f"{arm} needs {change} more {what} than {plain(baseline)}",
            "alike": f"{arm} and {plain(baseline)} need as many {what}",
            "open": f"{arm} or {plain(baseline)}: no difference in {what} found",
        }
        word = str(row["verdict"])
        return f"{said.get(word, f'{arm}: {word}')} ({number})"
    counts = table["verdict"].value_counts()
    words = ("better", "worse", "alike", "open")
    told = [f"{counts[word]} {word}" for word in words if counts.get(word)]
    return f"Of {len(table)} arms against {plain(baseline)}, by {what}: {', '.join(told)}"


def ratios_by_seed(
    courses: Mapping[str, Mapping[int, Course]],
    table: pd.DataFrame,
    *,
    baseline: str,
    target: float,
    unit: Any = "rollouts",
    ax: Axes | None = None,
) -> Axes:
    """Each seed's cost to the target over the baseline's, and the interval of every arm.

    Parameters
    ----------
    courses : dict from label to a dict from seed to Course
        As `courses.read` gives it.
    table : DataFrame
        As in `trial`. An arm has the colour of its verdict.
    baseline, target, unit
        As in `trial`.
    ax : Axes, optional
    """
    rows = table[table["ratio"].notna()]
    what = AXIS_LABELS.get(name_of(unit), name_of(unit)).removesuffix(" sampled")
    xlabel = f"{what} to the target / {plain(baseline)}'s"
    with framed(
        ax, title="Cost by seed (grey: alike)", xlabel=xlabel, ylabel="", legend=None
    ) as ax:
        ax.axvspan(1 / (1 + BAND), 1 + BAND, color=SOFT, alpha=0.12, lw=0)
        ax.axvline(1, color=INK, lw=1)
        base = crossings(dict(courses[baseline]), target, unit)
        shown = [1 / (1 + BAND), 1 + BAND]
        for place, row in zip(range(len(rows))[::-1], rows.to_dict("records")):
            colour = NAMED.get(row["verdict"], SOFT)
            pairs = of_common_seeds(crossings(dict(courses[row["arm"]]), target, unit), base)
            ratios = [one.place / other.place for one, other in zip(*pairs)]
            known = [one.reached and other.reached for one, other in zip(*pairs)]
            # Seeds from above to below, in their order.
            heights = place - 0.12 - np.linspace(0, 0.26, len(ratios))
            for ratio, height, is_known in zip(ratios, heights, known):
                face = colour if is_known else "none"
                ax.plot(ratio, height, "o", ms=3.5, mfc=face, mec=colour, alpha=0.7)
            filled = row["verdict"] in ("better", "worse", "alike")
            ends = (row["ratio"], row["low"], row["high"])
            interval(ax, place + 0.1, ends, colour, filled, is_ratio=True)
            shown += [*ratios, *(row[end] for end in ("low", "high") if 0 < row[end] < np.inf)]
            text = f"{plain(row['arm'])}: {row['verdict']}{_reached(row)}"
            ax.text(0.02, place + 0.22, text, transform=ax.get_yaxis_transform(), size="small")
        ax.set(xscale="log", xlim=(min(shown) / 1.1, max(shown) * 1.1))
        ratio_ticks(ax.xaxis, *ax.get_xlim(), most=6)
        ax.set(yticks=[], ylim=(-0.6, max(len(rows), 1) - 0.35))
        ax.grid(visible=False, axis="y")
    return ax


def tuning_curves(
    tuning: pd.DataFrame,
    chosen: Mapping[str, float],
    *,
    labels: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Cost to the target by learning rate, the chosen rate marked, and where runs collapsed.

    Parameters
    ----------
    tuning : DataFrame
        As in `trial`. A run that did not reach the target counts with what it would have cost at
        the pace that it had, and is hollow.
    chosen : dict from label to learning rate
    labels : list of str, optional
        In the order of the other panels, whose colours these are.
    ax : Axes, optional
    """
    styles = looks(labels or list(tuning["arm"].unique()))
    with framed(
        ax,
        title="Tuning (circle: rate taken)",
        xlabel="learning rate",
        ylabel="cost to the target",
        legend=None,
    ) as ax:
        for label, look in styles.items():
            runs = tuning[tuning["arm"] == label]
            if len(runs):
                _tuning_of(ax, label, runs, chosen.get(label), look)
        ax.set(xscale="log", yscale="log")
        low, high = tuning["learning_rate"].min() / 1.2, tuning["learning_rate"].max() * 1.2
        ratio_ticks(ax.xaxis, low, high, most=4, text="{:.2g}".format)
        ax.set_xlim(low, high)
        finite = tuning["cost"][np.isfinite(tuning["cost"])]
        if len(finite):
            low, high = finite.min() / 1.2, min(finite.max(), 20 * finite.min()) * 1.4
            ratio_ticks(ax.yaxis, low, high, most=6, text=EngFormatter(sep=""))
            ax.set_ylim(low, high)
    return ax


def price_axis(
    courses: Mapping[str, Mapping[int, Course]],
    *,
    baseline: str,
    target: float,
    ax: Axes | None = None,
) -> Axes:
    """Cost to the target over the baseline's, by the price of sampling.

    Parameters
    ----------
    courses, baseline, target
        As in `ratios_by_seed`.
    ax : Axes, optional
    """
    ax = prices(
        cost.ratios_by_price(courses, target, baseline, PRICES),
        baseline=baseline,
        machines={"FLOPs": cost.FLOP_PRICE},
        title="Cost by the price of sampling",
        legend=None,
        ax=ax,
    )
    _shorten(ax)
    with style():
        label_ends(ax)
    ratio_ticks(ax.xaxis, PRICES[0], PRICES[-1], most=5)
    ax.set(
        xlabel="cost of a sampled token / of a trained one",
        ylabel=f"cost to the target / {plain(baseline)}'s",
    )
    return ax


def chosen_rates(table: pd.DataFrame, baseline: str) -> dict[str, float]:
    """The learning rates that the arms and the baseline of a trial's table were compared at."""
    chosen = table.set_index("arm")["learning_rate"].dropna().to_dict()
    known = table["baseline_learning_rate"].dropna()
    return chosen | ({baseline: known.iloc[0]} if len(known) else {})


def _tuning_of(ax: Axes, label: str, runs: pd.DataFrame, chosen: float | None, look: Look) -> None:
    """One arm's tuning: the mean over seeds as a line, a dot a run, crosses for collapsed ones."""
    costs = runs.assign(log=np.log(runs["cost"]))
    means = np.exp(costs.groupby("learning_rate")["log"].mean())
    finite = means[np.isfinite(means)]
    ax.plot(finite.index, finite, color=look.colour, ls=look.dash, lw=1.3, label=f"_{label}")
    whole = runs[np.isfinite(runs["cost"]) & ~runs["collapsed"].astype(bool)]
    for row in whole.to_dict("records"):
        face = look.colour if row["reached"] else "none"
        ax.plot(row["learning_rate"], row["cost"], ".", mfc=face, mec=look.colour, ms=6)
    lost = runs[runs["collapsed"].astype(bool)]
    # Collapsed runs have no cost that means anything, so they stand at the upper edge.
    ax.plot(
        lost["learning_rate"],
        np.full(len(lost), 0.95),
        "x",
        color=look.colour,
        ms=6,
        transform=ax.get_xaxis_transform(),
    )
    if chosen is not None and chosen in finite.index:
        ax.plot(chosen, finite[chosen], "o", ms=11, mfc="none", mec=look.colour, mew=1.5)


def _reached(row: Mapping[str, Any]) -> str:
    """How many runs reached the target, where some did not."""
    if row["reached"] == row["seeds"] == row["baseline_reached"]:
        return ""
    return (
        f" ({row['reached']:.0f} of {row['seeds']:.0f} arrived, "
        f"{row['baseline_reached']:.0f} of the baseline)"
    )


def _shorten(ax: Axes) -> None:
    """Labels without the number of seeds, which the title has."""
    for line in ax.lines:
        line.set_label(str(line.get_label()).partition(" (n = ")[0])
