"""Figures of runs, one function each: it draws on the given or new Axes and returns them.

`frame` stands for what `style.framed` takes: ax, title, xlabel, ylabel and legend.

Records are compared by their settings: a list is divided by `runs.labelled`, and functions that
show one method's seeds refuse records of several.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench.analysis.curves import (
    Curve,
    Unit,
    comparable,
    evaluations,
    name_of,
    scores,
    spent,
)
from workbench.analysis.intervals import mean_interval
from workbench.analysis.runs import arms, one_setting
from workbench.plots.style import (
    NAMED,
    PALETTE,
    WIDTH,
    Look,
    finish,
    framed,
    heading,
    looks,
    plain,
    seeds,
    short_numbers,
    style,
)
from workbench.records import Record
from workbench.utils.validation import one_of

AXIS_LABELS: dict[str, str] = tomllib.loads(
    (Path(__file__).parent / "labels.toml").read_text(encoding="utf-8")
)
# Columns of the rounds that are shares, as held-out scores are.
SHARES = ("correct", "effective_gradient_ratio", "all_negative", "all_positive", "unsolved")
FEW_POINTS = 30  # up to which points are marked


def learning_curve(
    records: Any,
    *,
    x: Any = "round",
    y: str = "accuracy",
    smooth: int = 1,
    until: float | str | None = None,
    palette: Any = None,
    **frame: Any,
) -> Axes:
    """y against x, a line for each setting, with an interval over its seeds.

    Parameters
    ----------
    records : Record, list of Record, or dict from label to either
        A list is divided by settings; grpo(4) and grpo(8) are two lines.
    x : str or curves.Unit
        "round", or what is summed up to the round: seconds, rollouts, flops, tokens_sampled,
        tokens_trained, or a `cost.CostModel`.
    y : str
        Held-out scores, "accuracy", "greedy" or "pass@k", or any column of `Record.rounds`.
    smooth : int
        Rounds of a moving mean, for columns of the rounds table.
    until : number or "common", optional
        Where curves end: a value of x, or where the first of them does.
    palette : dict from label to colour, or list of colours, optional
        Of lines, bands and legend. Labels that a dict leaves out keep the colours of the house.
    frame
        As for `style.framed`. Curves that are on the Axes already keep their colours.

    Returns
    -------
    Axes
    """
    groups = arms(records)
    # Held-out scores of several arms mean something side by side only on the same problems.
    if len(groups) > 1 and is_held_out(y):
        comparable(groups)
    name = plain(name_of(x))
    everyone = [record for group in groups.values() for record in group]
    labels = {"xlabel": AXIS_LABELS.get(name, name), "ylabel": axis_label(y, everyone)}
    with framed(**{**labels, **frame}) as ax:
        # New lines look unlike those that earlier calls have drawn.
        drawn = [line for line in ax.lines if not str(line.get_label()).startswith("_")]
        styles = looks(groups, taken=[line.get_color() for line in drawn], palette=palette)
        curves = {}
        for label, group in groups.items():
            curves[label] = [curve(record, x, y, smooth) for record in group]
        if until == "common":
            until = min(places[-1] for of_label in curves.values() for places, _ in of_label)
        for label, of_label in curves.items():
            text = f"{plain(label)} ({seeds([len(of_label)])})"
            band(ax, of_label, text, styles[label], None if until is None else float(until))
        short_numbers(ax, x)
        if is_held_out(y) or y in SHARES:
            _end_at_0_and_1(ax)
    return ax


def compared(
    curves: Mapping[str, Sequence[Curve]], unit: Unit, *, palette: Any = None, **frame: Any
) -> Axes:
    """The curves of a comparison: a line an arm, with an interval over its runs.

    Parameters
    ----------
    curves : dict from label to list of Curve
        Such as `wb.compare(...).curves`.
    unit : curves.Unit
        What x counts.
    palette
        As for `learning_curve`.
    frame
        As for `style.framed`.
    """
    with framed(**{"xlabel": AXIS_LABELS.get(unit.name, plain(unit.name)), **frame}) as ax:
        styles = looks(curves, palette=palette)
        for label, group in curves.items():
            text = f"{plain(label)} ({seeds([len(group)])})"
            band(ax, [(one.places(unit), one.scores) for one in group], text, styles[label])
        short_numbers(ax, "round" if unit.name == "step" else unit)
        if all(0 <= score <= 1 for group in curves.values() for c in group for score in c.scores):
            _end_at_0_and_1(ax)
    return ax


def sampled_and_greedy(records: Any, **frame: Any) -> Axes:
    """Held-out accuracy of sampled and of greedy responses by round, of one setting's seeds.

    Where only the sampled curve rises, the model puts more weight on what it could do before
    (sharpening). Where the greedy one rises with it, its best answer has changed.

    Parameters
    ----------
    records : records of one setting
    frame
        As for `style.framed`.
    """
    group = one_setting(records)
    # What stands in brackets behind the accuracy, such as "avg@8".
    sampled = axis_label("accuracy", group).partition("(")[2].rstrip(")")
    with framed(**{**_usual(group), "ylabel": "held-out accuracy", **frame}) as ax:
        names = {"accuracy": f"sampled ({sampled})", "greedy": "greedy"}
        for (y, name), colour in zip(names.items(), PALETTE):
            curves = [curve(record, "round", y) for record in group]
            band(ax, curves, name, Look(colour, "-", "o"))
        short_numbers(ax, "round")
        _end_at_0_and_1(ax)
    return ax


def accuracy_by_level(records: Any, *, rounds: Sequence[int] | None = None, **frame: Any) -> Axes:
    """Held-out accuracy at each difficulty level, a bar for each evaluation.

    Parameters
    ----------
    records : records of one setting
        Seeds are averaged.
    rounds : list of int, optional
        Numbers of the evaluations; the first and the last by default.
    frame
        As for `style.framed`.
    """
    group = one_setting(records)
    # Seeds have the same held-out problems, so a mean over all rows is one over problems and
    # seeds.
    evals = pd.concat([evaluations(record) for record in group], ignore_index=True)
    if "level" not in evals:
        raise ValueError(f"{group[0].path}: packed without the levels of its held-out problems")
    # Rounds that all seeds have, or bars would be of different seeds.
    known = sorted(set.intersection(*[set(evaluations(run)["round"].tolist()) for run in group]))
    # A set, since a run that was evaluated once has one round that is first and last.
    if rounds is None:
        rounds = sorted({known[0], known[-1]})
    for number in rounds:
        one_of("rounds", int(number), known)
    evals["accuracy"] = evals["correct"] / evals["samples"]
    table = evals.pivot_table(index="level", columns="round", values="accuracy")
    table = table[list(rounds)].rename(columns="round {}".format)
    ax = by_level(table, **{"title": who(group), **frame})
    ax.set_xlabel(_of_seeds(ax.get_xlabel(), group))
    return ax


def zero_gradient(records: Any, *, smooth: int = 5, **frame: Any) -> Axes:
    """Share of problems whose rollouts were all right, mixed, or all wrong, round by round.

    Only mixed groups have a gradient under group-normalised advantages.

    Parameters
    ----------
    records : records of one setting
        Seeds are averaged.
    smooth : int
        Rounds of the moving mean.
    frame
        As for `style.framed`.
    """
    group = one_setting(records)
    smoothed = _mean_by_round(group, ["all_negative", "all_positive"], smooth)
    wrong, right = smoothed["all_negative"], smoothed["all_positive"]
    shares = {"all right": right, "mixed": 1 - wrong - right, "all wrong": wrong}
    labels = {**_usual(group), "ylabel": "share of problems"}
    with framed(**{**labels, **frame, "legend": None}) as ax:
        colours = [NAMED[name] for name in shares]
        # The three shares add up to 1, so together they fill the axes.
        rounds = smoothed.index
        ax.stackplot(rounds, *shares.values(), labels=list(shares), colors=colours, lw=0)
        # A single round would make limits without any width.
        ax.set(ylim=(0, 1), xlim=(rounds[0], max(rounds[-1], rounds[0] + 1)))
        short_numbers(ax, "round")
        # In the order in which they lie on one another.
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
    return ax


def by_level(table: pd.DataFrame, **frame: Any) -> Axes:
    """Bars of accuracy by level.

    Parameters
    ----------
    table : DataFrame (levels x series)
        A bar for each column.
    frame
        As for `style.framed`.
    """
    labels = {"xlabel": "difficulty level", "ylabel": "held-out accuracy"}
    with framed(**{**labels, **frame}) as ax:
        bars = table.rename(columns=plain)
        bars.plot.bar(ax=ax, width=0.8, rot=0, color=PALETTE, legend=False)
        ax.set_ylim(0, 1)
        ax.grid(visible=False, axis="x")
    return ax


def overview(records: Any, *, figure: Figure | None = None) -> Figure:
    """Four panels: reward, held-out accuracy, accuracy by level, shares of groups.

    Parameters
    ----------
    records : records of one setting
        Seeds are averaged.
    figure : Figure, optional
        New by default; what it shows is replaced.
    """
    group = one_setting(records)
    with style():
        figure = figure or plt.figure(figsize=(WIDTH, 5.6), layout="constrained")
        # `watch` draws the same figure again and again.
        figure.clear()
        (reward, accuracy), (levels, shares) = figure.subplots(2, 2)
        # A run that has just begun has no round yet, or no evaluation; its panels stay empty.
        begun = any(len(record.rounds) for record in group)
        if begun:
            for record in group:
                by_round = record.rounds.set_index("round")["reward"]
                reward.plot(by_round, color=PALETTE[0], alpha=0.3, lw=1)
            smoothed = _mean_by_round(group, "reward", 10)
            text = f"mean of {min(10, len(smoothed))} rounds" if len(smoothed) > 1 else "round 1"
            reward.plot(smoothed, color=PALETTE[0], label=text)
            short_numbers(reward, "round")
            zero_gradient(group, title="Problems by outcome of their rollouts", ax=shares)
        if all(len(record.evals) for record in group):
            sampled_and_greedy(group, title="Held-out problems", legend="above", ax=accuracy)
        # Packing may have left the levels out.
        if all("level" in record.evals for record in group):
            title = "Held-out accuracy by level"
            accuracy_by_level(group, title=title, legend="above", ax=levels)
        legend = "above" if begun else None
        finish(reward, title="Training reward", xlabel="round", ylabel="mean reward", legend=legend)
        heading(figure, who(group))
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
    drawn = (None, None)
    for row in run.rounds(n):
        # Handed on before drawing, so that a slow figure does not keep the caller waiting for its
        # row.
        yield row
        if row["round"] % every == 0 or row["round"] == n:
            drawn = redraw(lambda figure: overview(run.record, figure=figure), *drawn)


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
    # The curve goes on to the very end, between two points of the first one if need be.
    if stop >= start and stop > (places[-1] if len(places) else -np.inf):
        places = np.append(places, stop)
    if not len(places):
        # Seeds that share no stretch have no mean; the legend names them all the same.
        ax.plot([], [], color=look.colour, ls=look.dash, label=label)
        return
    # (seeds, places), whatever rounds or costs the seeds were evaluated at.
    values = np.array([np.interp(places, x, y) for x, y in curves])
    mean, half = np.array([mean_interval(column) for column in values.T]).T
    marker = look.marker if points and len(places) < FEW_POINTS else None
    mean_and_half(ax, places, mean, half, label, look, marker)


def mean_and_half(
    ax: Axes,
    x: np.ndarray,
    mean: np.ndarray,
    half: np.ndarray,
    label: str,
    look: Look,
    marker: str | None = None,
) -> None:
    """A curve of means (N,) over its band, half of whose width is `half`; NaN draws no band."""
    ax.plot(x, mean, color=look.colour, ls=look.dash, marker=marker, ms=4, label=label)
    if np.isfinite(half).any():
        ax.fill_between(x, mean - half, mean + half, color=look.colour, alpha=0.18, lw=0)


def is_held_out(y: str) -> bool:
    """Whether y is a score on held-out problems, not a column of the rounds table."""
    return y in ("accuracy", "greedy") or y.startswith("pass@")


def axis_label(y: str, records: Sequence[Record] = ()) -> str:
    """The label of a y axis, with the samples that avg@k has in these records."""
    if y.startswith("pass@"):
        return f"held-out {y}"
    label = AXIS_LABELS.get(y, plain(y))
    tables = [record.evals for record in records] if y == "accuracy" else []
    samples = {int(evals["samples"].iloc[0]) for evals in tables if len(evals)}
    return label.replace("@k", f"@{samples.pop()}") if len(samples) == 1 else label


def who(records: Sequence[Record]) -> str:
    """What a figure shows: method, lab, and seed or number of seeds."""
    first = records[0]
    lab = (first.manifest.get("lab") or {}).get("lab", "a lab")
    known = f"{plain(first.manifest['method']['name'])} on {plain(lab)}"
    if len(records) == 1:
        return f"{known}, seed {first.seed}"
    return f"{known}, {seeds([len(records)])}"


def _mean_by_round(records: Sequence[Record], columns: Any, smooth: int) -> Any:
    """The moving mean over rounds of the mean over seeds, as far as all that have begun go."""
    tables = [record.rounds for record in records if len(record.rounds)]
    if not tables:
        raise ValueError(f"{records[0].path}: it has no round yet")
    end = min(int(table["round"].max()) for table in tables)
    means = pd.concat(tables).groupby("round")[columns].mean().loc[:end]
    return means.rolling(smooth, min_periods=1).mean()


def _usual(records: Sequence[Record]) -> dict[str, str]:
    """Title and x axis of a figure of one setting by rounds."""
    return {"title": who(records), "xlabel": _of_seeds("round", records)}


def _of_seeds(label: str, records: Sequence[Record]) -> str:
    """The label of an axis with the number of seeds, which a title of the caller's may not name."""
    return label if len(records) == 1 else f"{label} ({seeds([len(records)])})"


def _end_at_0_and_1(ax: Axes) -> None:
    """Keep the axis of a share from showing what no share can be."""
    low, high = ax.get_ylim()
    # Curves that a later call draws on the same Axes may still widen it.
    ax.set_ylim(max(low, 0.0), min(high, 1.0), auto=None)


def curve(record: Record, x: Any, y: str, smooth: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """What a run had spent, and its score or its column of the rounds by then, (N,) each.

    Parameters
    ----------
    record : Record
    x, y, smooth
        As in `learning_curve`.
    """
    places = spent(record, x)
    if is_held_out(y):
        values = scores(record, y)
        # Spending is known by round, of which only the evaluated ones have a score.
        return places.loc[values.index].to_numpy(), values.to_numpy()
    rounds = record.rounds
    if rounds.empty:
        raise ValueError(f"{record.path}: it has no round yet")
    # Columns of text, such as warnings, cannot be drawn.
    one_of("y", y, [*rounds.select_dtypes(("number", "bool")), "accuracy", "greedy", "pass@k"])
    smoothed = rounds[y].rolling(smooth, min_periods=1).mean()
    # Without round 0, which has no row in the rounds table.
    return places.to_numpy()[1:], smoothed.to_numpy(dtype=float)


def redraw(draw: Callable[[Figure], Any], figure: Any, handle: Any) -> tuple[Any, Any]:
    """Draw in the cell's output, in the place of what was drawn before; nothing elsewhere.

    Parameters
    ----------
    draw : function of a Figure
    figure, handle
        What the last call returned; None for the first one.
    """
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
    draw(figure)
    # The first drawing opens an output, and all later ones replace it.
    if handle is None:
        handle = display(figure, display_id=True)
        handle.cell = get_ipython().execution_count
    else:
        handle.update(figure)
    return figure, handle


def withdraw(handle: Any) -> None:
    """Empty the output that `redraw` opened, where it belongs to the cell that runs now."""
    if handle is not None:
        from IPython import get_ipython

        if get_ipython().execution_count == handle.cell:
            handle.update({"text/plain": ""}, raw=True)
