"""Figures of runs, one function each: it draws on the given or new Axes and returns them.

Records are compared by their settings: a list is divided by `runs.labelled`, and functions that
show one method's seeds refuse records of several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench.analysis.courses import comparable, name_of, scores, spent
from workbench.analysis.intervals import mean_interval
from workbench.analysis.runs import arms, one_setting
from workbench.plots.style import (
    NAMED,
    SOFT,
    WIDTH,
    Look,
    finish,
    heading,
    looks,
    new_axes,
    save,
    seeds,
    short_numbers,
    style,
)
from workbench.plots.text import plain
from workbench.records import Record
from workbench.utils.validation import one_of

__all__ = [
    "AXIS_LABELS",
    "accuracy_by_level",
    "by_level",
    "course_grid",
    "learning_curve",
    "overview",
    "pretraining",
    "sampled_and_greedy",
    "save",
    "style",
    "success_rates",
    "summary",
    "watch",
    "zero_gradient",
]

AXIS_LABELS = {
    "round": "round",
    "seconds": "training time (s)",
    "rollouts": "rollouts sampled",
    "flops": "floating-point operations",
    "tokens_sampled": "tokens sampled",
    "tokens_trained": "tokens trained on",
    "accuracy": "held-out accuracy (avg@k)",
    "greedy": "held-out accuracy (greedy)",
    "reward": "mean reward of a round",
    "effective_gradient_ratio": "effective-gradient ratio",
    "all_negative": "problems all wrong (share)",
    "all_positive": "problems all right (share)",
    "unsolved": "problems without a right response (share)",
    "trained": "rollouts trained on in a round",
    "selected": "rollouts selected in a round",
    "entropy": "token entropy (nats)",
    "gradient_norm": "gradient norm",
    "length": "response length (tokens)",
}
FEW_POINTS = 30  # up to which points are marked


def learning_curve(
    records: Any,
    *,
    x: Any = "round",
    y: str = "accuracy",
    smooth: int = 1,
    until: float | str | None = None,
    references: Mapping[str, float] | None = None,
    title: str | None = None,
    xlabel: str | None = None,
    ylabel: str | None = None,
    legend: str | None = "outside",
    ax: Axes | None = None,
) -> Axes:
    """y against x, a line for each setting, with an interval over its seeds.

    Parameters
    ----------
    records : Record, list of Record, or dict from label to either
        A list is divided by settings; grpo(4) and grpo(8) are two lines.
    x : str or courses.Unit
        "round", or what is summed up to the round: seconds, rollouts, flops, tokens_sampled,
        tokens_trained, or a `cost.CostModel`.
    y : str
        Held-out scores, "accuracy", "greedy" or "pass@k", or any column of `Record.rounds`.
    smooth : int
        Rounds of a moving mean, for columns of the rounds table.
    until : number or "common", optional
        Where curves end: a value of x, or where the first of them does.
    references : dict from name to value, optional
        Dashed horizontal lines with their names.
    title, xlabel, ylabel : str, optional
        In place of the usual ones.
    legend : {"outside", "above", "direct", None}
        As in `style.finish`.
    ax : Axes, optional
        New ones by default. Curves that are there already keep their colours.

    Returns
    -------
    Axes
    """
    groups = arms(records)
    # Held-out scores of several arms mean something side by side only on the same problems.
    if len(groups) > 1 and is_held_out(y):
        comparable(groups)
    with style():
        ax = ax or new_axes()
        # Looks depend on all labels of a figure. What earlier calls drew is counted first, so
        # that new lines look unlike the old ones.
        drawn = [str(line.get_label()) for line in ax.lines]
        taken = [label.partition(" (n = ")[0] for label in drawn if not label.startswith("_")]
        styles = looks([*taken, *groups])
        curves = {label: _curves(group, x, y, smooth) for label, group in groups.items()}
        # Known only when all curves are: "common" is where the first of them ends.
        end = _end(curves, until)
        for label, of_label in curves.items():
            text = f"{plain(label)} (n = {len(of_label)})"
            band(ax, of_label, text, styles[label], end)
        for name, value in (references or {}).items():
            ax.axhline(value, color=SOFT, ls="--", lw=1, label=plain(name))
        short_numbers(ax, x)
        name = plain(name_of(x))
        finish(
            ax,
            title=title,
            xlabel=xlabel or AXIS_LABELS.get(name, name),
            ylabel=_default_label(y, groups) if ylabel is None else ylabel,
            legend=legend,
        )
    return ax


def course_grid(
    groups: Any,
    baseline: str,
    *,
    x: Any = "rollouts",
    y: str = "accuracy",
    columns: int = 3,
    until: float | None = None,
    title: str | None = None,
    figure: Figure | None = None,
) -> np.ndarray:
    """Every method against the baseline in a panel of its own, all on the same axes.

    Parameters
    ----------
    groups : dict from label to records
    baseline : str
        A label; it is drawn in every panel.
    x, y
        As in `learning_curve`.
    columns : int
        Panels in a row.
    until : float, optional
        Where the x axis ends.
    title : str, optional
    figure : Figure, optional

    Returns
    -------
    array of Axes, one a method
    """
    groups = arms(groups)
    one_of("baseline", baseline, groups)
    if is_held_out(y):
        comparable(groups)
    others = [label for label in groups if label != baseline]
    # Rounded up, so that the last row may be a partial one.
    rows = -(-len(others) // columns)
    with style():
        figure = figure or plt.figure(figsize=(WIDTH, 0.7 + 1.75 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        styles = looks(groups)
        counts = {label: len(group) for label, group in groups.items()}
        for ax, label in zip(axes.flat, others):
            # The baseline first, so that the method is drawn over it.
            for name in (baseline, label):
                curves = _curves(groups[name], x, y, 1)
                band(ax, curves, plain(name), styles[name], until, points=False)
            ax.set_title(f"{plain(label)} (n = {counts[label]})", color=styles[label].colour)
            if until is not None:
                ax.set_xlim(0, until)
            short_numbers(ax, x, ticks=4)
        for place, ax in enumerate(axes.flat):
            if place >= len(others):
                ax.set_axis_off()
            elif place + columns >= len(others):
                # The lowest panel of its column, which need not be in the last row.
                ax.tick_params(labelbottom=True)
        name = plain(name_of(x))
        text = f"grey: {plain(baseline)} ({seeds([counts[baseline]])}); bands: 95 % over seeds"
        figure.supxlabel(f"{AXIS_LABELS.get(name, name)}\n{text}", size="medium")
        figure.supylabel(axis_label(y, groups[baseline]), size="medium")
        heading(figure, title)
    return axes.ravel()[: len(others)]


def sampled_and_greedy(
    records: Any,
    *,
    title: str | None = None,
    legend: str | None = "outside",
    ax: Axes | None = None,
) -> Axes:
    """Held-out accuracy of sampled and of greedy responses by round, of one setting's seeds.

    Where only the sampled curve rises, the model puts more weight on what it could do before
    (sharpening). Where the greedy one rises with it, its best answer has changed.

    Parameters
    ----------
    records : records of one setting
    title : str, optional
    legend : {"outside", "above", "direct", None}
    ax : Axes, optional
    """
    group = one_setting(records)
    with style() as colours:
        ax = ax or new_axes()
        # What stands in brackets behind the accuracy, such as "avg@8".
        sampled = axis_label("accuracy", group).partition("(")[2].rstrip(")")
        for y, name, colour in (
            ("accuracy", f"sampled ({sampled})", colours[0]),
            ("greedy", "greedy", colours[1]),
        ):
            band(ax, _curves(group, "round", y, 1), name, Look(colour, "-", "o"))
        short_numbers(ax, "round")
        finish(
            ax,
            title=who(group) if title is None else title,
            xlabel=_of_seeds("round", group),
            ylabel="held-out accuracy",
            legend=legend,
        )
    return ax


def accuracy_by_level(
    records: Any,
    *,
    rounds: Sequence[int] | None = None,
    title: str | None = None,
    legend: str | None = "outside",
    ax: Axes | None = None,
) -> Axes:
    """Held-out accuracy at each difficulty level, a bar for each evaluation.

    Parameters
    ----------
    records : records of one setting
        Seeds are averaged.
    rounds : list of int, optional
        Numbers of the evaluations; the first and the last by default.
    title : str, optional
    legend : {"outside", "above", None}
    ax : Axes, optional
    """
    group = one_setting(records)
    # Seeds have the same held-out problems, so a mean over all rows is one over problems and
    # seeds.
    evals = pd.concat([record.evals for record in group], ignore_index=True)
    # A set, since a run that was evaluated once has one round that is first and last.
    if rounds is None:
        rounds = sorted({int(evals["round"].min()), int(evals["round"].max())})
    _check_known(set(evals["round"]), rounds, "an evaluated round")
    evals = evals.assign(accuracy=evals["correct"] / evals["samples"])
    table = evals.pivot_table(index="level", columns="round", values="accuracy")
    table = table[list(rounds)].rename(columns=lambda number: f"round {number}")
    # The name of the columns would become the title of a legend whose entries say it already.
    table.columns.name = None
    ax = by_level(table, title=who(group) if title is None else title, legend=legend, ax=ax)
    ax.set_xlabel(_of_seeds(ax.get_xlabel(), group))
    return ax


def zero_gradient(
    records: Any,
    *,
    smooth: int = 5,
    title: str | None = None,
    legend: str | None = "outside",
    ax: Axes | None = None,
) -> Axes:
    """Share of problems whose rollouts were all right, mixed, or all wrong, round by round.

    Only mixed groups have a gradient under group-normalised advantages.

    Parameters
    ----------
    records : records of one setting
        Seeds are averaged.
    smooth : int
        Rounds of the moving mean.
    title : str, optional
    legend : {"outside", None}
    ax : Axes, optional
    """
    group = one_setting(records)
    tables = pd.concat([record.rounds for record in group], ignore_index=True)
    # The mean over seeds first, and then the moving mean over rounds.
    rounds = tables.groupby("round")[["all_negative", "all_positive"]].mean()
    smoothed = rounds.rolling(smooth, min_periods=1).mean()
    wrong = smoothed["all_negative"].to_numpy()
    right = smoothed["all_positive"].to_numpy()
    shares = {"all right": right, "mixed": 1 - wrong - right, "all wrong": wrong}
    with style():
        ax = ax or new_axes()
        colours = [NAMED[name] for name in shares]
        # The three shares add up to 1, so together they fill the axes.
        drawn = ax.stackplot(
            rounds.index, list(shares.values()), labels=list(shares), colors=colours, lw=0
        )
        # A single round would make limits without any width.
        last = max(rounds.index[-1], rounds.index[0] + 1)
        ax.set(ylim=(0, 1), xlim=(rounds.index[0], last))
        short_numbers(ax, "round")
        finish(
            ax,
            title=who(group) if title is None else title,
            xlabel=_of_seeds("round", group),
            ylabel="share of problems",
            legend=None,
        )
        if legend is not None:
            # In the order in which they lie on one another.
            ax.legend(drawn[::-1], list(shares)[::-1], loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def success_rates(
    rates: Any, *, bins: int = 20, title: str | None = None, ax: Axes | None = None
) -> Axes:
    """How many problems have which success rate.

    The two ends, never and always solved, are bars of their own: with sampled groups they give next
    to no gradient.

    Parameters
    ----------
    rates : (P,) numbers from 0 to 1
    bins : int
    title : str, optional
    ax : Axes, optional
    """
    rates = np.asarray(rates, dtype=np.float64)
    if rates.ndim != 1 or not rates.size or not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError(
            f"rates: shape {rates.shape}; one or more numbers from 0 to 1 in a row are needed"
        )
    with style():
        ax = ax or new_axes()
        ends = (rates == 0) | (rates == 1)
        ax.hist(
            # The two ends are left out of the histogram, where they would lie in the first and
            # the last bin.
            rates[~ends],
            np.linspace(0, 1, bins + 1).tolist(),
            color=NAMED["solved sometimes"],
            label="solved sometimes",
            rwidth=0.85,
        )
        # Beside the axis from 0 to 1, not on it, so that they cannot be taken for rates near the
        # ends.
        for place, value, name in ((-0.04, 0, "never solved"), (1.04, 1, "always solved")):
            ax.bar(place, (rates == value).sum(), 0.04, color=NAMED[name], label=name)
        ax.set_xlim(-0.09, 1.09)
        finish(
            ax,
            title=f"Success rates of {len(rates)} problems" if title is None else title,
            xlabel="success rate of a problem",
            ylabel="problems",
        )
    return ax


def pretraining(
    frame: pd.DataFrame,
    *,
    y: str | Iterable[str] = "loss",
    smooth: int = 1,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Columns of a base model's log against the training step.

    Parameters
    ----------
    frame : DataFrame
        With a column `step`.
    y : str or list of str
        Several columns are drawn from light to dark, as levels of difficulty.
    smooth : int
        Rows of a moving mean.
    title : str, optional
    ax : Axes, optional
    """
    names = [y] if isinstance(y, str) else list(y)
    _check_known(frame.columns, ["step", *names], "a column of the log")
    with style() as colours:
        ax = ax or new_axes()
        several = len(names) > 1
        # Levels have an order, and so have the shades; a single column takes the first colour.
        shades = sns.color_palette("viridis_r", len(names)) if several else colours[:1]
        for name, colour in zip(names, shades):
            values = frame[name].rolling(smooth, min_periods=1).mean()
            ax.plot(frame["step"], values, color=colour, label=plain(name))
        finish(
            ax,
            title=title,
            xlabel="training step",
            ylabel="held-out accuracy" if several else plain(names[0]),
            legend="outside" if several else None,
        )
        if several:
            _name_legend(ax, "level")
    return ax


def by_level(
    table: pd.DataFrame,
    *,
    title: str | None = None,
    legend: str | None = "outside",
    ax: Axes | None = None,
) -> Axes:
    """Bars of accuracy by level.

    Parameters
    ----------
    table : DataFrame (levels x series)
        A bar for each column.
    title : str, optional
    legend : {"outside", "above", None}
    ax : Axes, optional
    """
    if table.empty:
        raise ValueError(
            "table: it is empty; a row for each level and a column for each series are needed"
        )
    with style() as colours:
        ax = ax or new_axes()
        # The bars of a level share 0.8 of its place, and the rest keeps the levels apart.
        width = 0.8 / len(table.columns)
        for i, name in enumerate(table.columns):
            places = np.arange(len(table)) + i * width
            ax.bar(places, table[name], width, label=plain(name), color=colours[i % len(colours)])
        ax.set_xticks(np.arange(len(table)) + 0.4 - width / 2, table.index)
        ax.set_ylim(0, 1)
        ax.grid(visible=False, axis="x")
        finish(
            ax,
            title=title,
            xlabel="level (operations in a chain)",
            ylabel="held-out accuracy",
            legend=legend,
        )
        if table.columns.name:
            _name_legend(ax, plain(table.columns.name))
    return ax


def summary(records: Any, *, title: str | None = None, figure: Figure | None = None) -> Figure:
    """Two panels on one setting's seeds: sampled and greedy accuracy, and where a gradient is.

    Parameters
    ----------
    records : records of one setting
    title : str, optional
        The finding; method, lab and seeds by default.
    figure : Figure, optional
    """
    group = one_setting(records)
    with style():
        figure = figure or plt.figure(figsize=(WIDTH, 3.4), layout="constrained")
        accuracy, shares = figure.subplots(1, 2)
        sampled_and_greedy(group, ax=accuracy, title="Held-out problems", legend="above")
        zero_gradient(group, ax=shares, title="Only mixed groups have a gradient")
        heading(figure, title or who(group))
    return figure


def overview(record: Record, *, figure: Figure | None = None) -> Figure:
    """Four panels on one run: reward, held-out accuracy, accuracy by level, shares of groups."""
    with style() as colours:
        figure = figure or plt.figure(figsize=(WIDTH, 5.6), layout="constrained")
        # `watch` draws the same figure again and again.
        figure.clear()
        (reward, accuracy), (levels, shares) = figure.subplots(2, 2)
        rounds = record.rounds
        # A run that has just begun has no round yet, or no evaluation; its panels stay empty.
        if len(rounds):
            smoothed = rounds["reward"].rolling(10, min_periods=1).mean()
            reward.plot(rounds["round"], rounds["reward"], color=colours[0], alpha=0.3, lw=1)
            reward.plot(rounds["round"], smoothed, color=colours[0], label="mean of 10 rounds")
            short_numbers(reward, "round")
            zero_gradient(record, title="Only mixed groups have a gradient", ax=shares)
        if len(record.evals):
            sampled_and_greedy(record, title="Held-out problems", legend="above", ax=accuracy)
            title = "Held-out accuracy by level"
            accuracy_by_level(record, title=title, legend="above", ax=levels)
        finish(
            reward,
            title="Training reward",
            xlabel="round",
            ylabel="mean reward",
            legend="above" if len(rounds) else None,
        )
        heading(figure, who([record]))
    return figure


def watch(run: Any, n: int, *, every: int = 5) -> Iterator[dict[str, Any]]:
    """`run.rounds(n)` with the overview redrawn in the notebook every few rounds.

    Outside a notebook these are just the rounds.

    Parameters
    ----------
    run : Run
    n : int
        Rounds in all.
    every : int
        Rounds from one drawing to the next.

    Yields
    ------
    dict
        The row of each new round.
    """
    figure = None
    handle = None
    for row in run.rounds(n):
        # Handed on before drawing, so that a slow figure does not keep the caller waiting for its
        # row.
        yield row
        if row["round"] % every == 0 or row["round"] == n:
            figure, handle = _show(run.record, figure, handle)


# Parts that other figures use


def band(
    ax: Axes,
    curves: Sequence[tuple[np.ndarray, np.ndarray]],
    label: str,
    look: Look,
    end: float | None = None,
    points: bool = True,
) -> None:
    """The mean of several curves and its interval.

    Parameters
    ----------
    ax : Axes
    curves : list of (x, y) arrays
        One a seed. Curves whose x differ are read at those of the first one, within the range that
        all of them have.
    label : str
    look : style.Look
    end : float, optional
        Where the curve ends.
    points : bool
        Whether to mark the points of curves that have few.
    """
    # Only where all seeds have a value: beyond it, the mean would jump when a seed drops out.
    start = max(x[0] for x, _ in curves)
    stop = min(x[-1] for x, _ in curves)
    stop = stop if end is None else min(stop, end)
    places = curves[0][0]
    places = places[(places >= start) & (places <= stop)]
    # The curve goes on to the very end that was asked for, between two points if need be.
    if end is not None and stop > (places[-1] if len(places) else -np.inf):
        places = np.append(places, stop)
    # (seeds, places), whatever rounds or costs the seeds were evaluated at.
    values = np.array([np.interp(places, x, y) for x, y in curves])
    intervals = np.array([mean_interval(column) for column in values.T])
    mean, half = intervals.T
    marker = look.marker if points and len(places) < FEW_POINTS else None
    ax.plot(places, mean, color=look.colour, ls=look.dash, marker=marker, ms=4, label=label)
    if len(curves) > 1:
        ax.fill_between(places, mean - half, mean + half, color=look.colour, alpha=0.18, lw=0)


def _default_label(y: str, groups: Mapping[str, Sequence[Record]]) -> str:
    return axis_label(y, [record for group in groups.values() for record in group])


def is_held_out(y: str) -> bool:
    """Whether y is a score on held-out problems, not a column of the rounds table."""
    return y in ("accuracy", "greedy") or y.startswith("pass@")


def axis_label(y: str, records: Sequence[Record] = ()) -> str:
    """The label of a y axis, with the samples that avg@k has in these records."""
    label = AXIS_LABELS.get(y, plain(y))
    if y.startswith("pass@"):
        return f"held-out {y}"
    if y != "accuracy":
        return label
    samples = set()
    # Three are enough to see whether the samples differ, and every one has to be read from the
    # disk.
    for record in records[:3]:
        evals = record.evals
        if len(evals):
            samples.add(int(evals["samples"].iloc[0]))
    return label.replace("@k", f"@{samples.pop()}") if len(samples) == 1 else label


def who(records: Sequence[Record]) -> str:
    """What a figure shows: method, lab, and seed or number of seeds."""
    manifests = [record.manifest for record in records]
    names = []
    for manifest in manifests:
        lab = (manifest.get("lab") or {}).get("lab", "a lab")
        names.append(f"{plain(manifest['method']['name'])} on {plain(lab)}")
    known = ", ".join(dict.fromkeys(names))
    if len(records) == 1:
        return f"{known}, seed {manifests[0]['seed']}"
    return f"{known}, {seeds([len(records)])} seeds"


def _of_seeds(label: str, records: Sequence[Record]) -> str:
    """The label of an axis with the number of seeds, which a title of the caller's may not name."""
    return label if len(records) == 1 else f"{label} ({seeds([len(records)])} seeds)"


def _curves(
    records: Sequence[Record], x: Any, y: str, smooth: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(x, y) of every record."""
    return [_curve(record, x, y, smooth) for record in records]


def _curve(record: Record, x: Any, y: str, smooth: int) -> tuple[np.ndarray, np.ndarray]:
    if is_held_out(y):
        values = scores(record, y)
        places = spent(record, x)
        # Spending is known by round, of which only the evaluated ones have a score.
        return places.loc[values.index].to_numpy(), values.to_numpy()
    rounds = record.rounds
    # Columns of text, such as warnings, cannot be drawn.
    known = [name for name in rounds if rounds[name].dtype.kind in "iufb"]
    _check_known([*known, "accuracy", "greedy", "pass@k"], [y], "a score or a column of the rounds")
    # Without round 0, which has no row in the rounds table.
    places = spent(record, x).to_numpy()[1:]
    return places, rounds[y].rolling(smooth, min_periods=1).mean().to_numpy(dtype=float)


def _end(
    curves: Mapping[str, list[tuple[np.ndarray, np.ndarray]]], until: float | str | None
) -> float | None:
    """Where curves end: None for where each of them does."""
    if until != "common":
        return None if until is None else float(until)
    return min(float(x[-1]) for of_label in curves.values() for x, _ in of_label)


def _show(record: Record, figure: Any, handle: Any) -> tuple[Any, Any]:
    """Draw the overview in the cell's output; nothing outside a notebook."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        return None, None
    # IPython may be installed without a notebook being there.
    if get_ipython() is None:
        return None, None
    if figure is None:
        figure = plt.figure(figsize=(WIDTH, 5.6), layout="constrained")
        plt.close(figure)  # shown by its handle alone, not once more at the end of the cell
    overview(record, figure=figure)
    # The first drawing opens an output, and all later ones replace it.
    if handle is None:
        return figure, display(figure, display_id=True)
    handle.update(figure)
    return figure, handle


def _name_legend(ax: Axes, title: str) -> None:
    """Set the title of the legend where there is one."""
    legend = ax.get_legend()
    if legend is not None:
        legend.set_title(title)


def _check_known(names: Iterable[Any], wanted: Iterable[Any], what: str) -> None:
    names = list(names)
    unknown = [name for name in wanted if name not in names]
    if unknown:
        known = ", ".join(map(str, sorted(names, key=str)))
        raise ValueError(f"{unknown[0]!r} is not {what}; there are {known}")
