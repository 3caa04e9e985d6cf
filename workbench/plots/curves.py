"""Pictures from records and frames, one function a figure; each draws on a given or new `Axes` and returns it.

Colours are seaborn's colour-blind palette, a method's colour is fixed by its place among those drawn. Bands are 95 %
Student intervals over seeds; with one seed there is a line and no band, and the legend says n = 1.

`python -m workbench.plots.curves` draws the README's picture from the recorded runs in `data/runs/tiny-grpo`.
"""

import itertools
from contextlib import contextmanager
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns

from workbench.analysis.metrics import mean_interval
from workbench.plots.text import plain

AXIS_LABELS = {
    "round": "round",
    "seconds": "training time (s)",
    "rollouts": "rollouts sampled",
    "flops": "floating-point operations",
    "accuracy": "held-out accuracy (avg@k)",
    "greedy": "held-out accuracy (greedy)",
    "reward": "mean reward of a round",
    "effective_gradient_ratio": "effective-gradient ratio",
    "entropy": "token entropy (nats)",
    "gradient_norm": "gradient norm",
    "length": "response length (tokens)",
}
SPENT = ("seconds", "rollouts", "flops")  # summed over rounds when they are an x axis
STYLE = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.titlesize": "medium",
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "font.size": 10,
    "svg.hashsalt": "workbench",
    "svg.fonttype": "none",
}


@contextmanager
def style():
    """The house style, for code of your own: `with wb.plots.style() as colours: ...`; gives the palette.

    Only these settings change and come back: a whole `rc_context` would also undo the notebook's switch to inline figures.
    """
    before = {name: plt.rcParams[name] for name in STYLE}
    plt.rcParams.update(STYLE)
    try:
        yield sns.color_palette("colorblind")
    finally:
        plt.rcParams.update(before)


def learning_curve(records, *, x="round", y="accuracy", smooth=1, ax=None):
    """y against x, a line a method, with an interval over seeds.

    records: a `Record`, a list of them (those of one method are its seeds), or a dict from label to either.
    x: round, seconds, rollouts or flops (the last three summed up to the round). y: accuracy or greedy (held-out), or
    any column of `Record.rounds`. smooth: width in rounds of a moving mean, for columns of the rounds table.
    """
    with style() as colours:
        ax = ax or _new_axes()
        unused = itertools.islice(
            itertools.cycle(colours), len(ax.lines), None
        )  # curves already there keep theirs
        for (label, group), colour in zip(_grouped(records).items(), unused):
            _band(
                ax,
                [_curve(record, x, y, smooth) for record in group],
                f"{plain(label)} (n = {len(group)})",
                colour,
            )
        ax.set(xlabel=AXIS_LABELS.get(x, x), ylabel=AXIS_LABELS.get(y, y))
        ax.legend()
    return ax


def sampled_and_greedy(records, *, ax=None):
    """Held-out accuracy of sampled and of greedy responses by round: one or more records of one method, its seeds.

    Where only the sampled curve rises, the model puts more weight on what it could do before (sharpening); where the
    greedy one rises with it, its best answer has changed.
    """
    with style() as colours:
        ax = ax or _new_axes()
        records = _listed(records)
        k = int(records[0].evals["samples"].iloc[0])
        for y, name, colour in (
            ("accuracy", f"avg@{k}", colours[0]),
            ("greedy", "greedy", colours[1]),
        ):
            _band(ax, [_curve(record, "round", y, 1) for record in records], name, colour)
        ax.set(xlabel="round", ylabel="held-out accuracy", title=_who(records))
        ax.legend(loc="lower right")
    return ax


def accuracy_by_level(records, *, rounds=None, ax=None):
    """Held-out accuracy at each difficulty level, a bar an evaluation; several records are averaged (seeds).

    rounds: numbers of the evaluations, default the first and the last.
    """
    with style() as colours:
        ax = ax or _new_axes()
        records = _listed(records)
        evals = _tables([record.evals for record in records])
        rounds = rounds or sorted({evals["round"].min(), evals["round"].max()})
        _known(set(evals["round"]), rounds, "an evaluated round")
        evals = evals.assign(accuracy=evals.correct / evals.samples)
        table = evals.pivot_table(index="level", columns="round", values="accuracy")
        _bars(ax, table[list(rounds)].rename(columns=lambda number: f"round {number}"), colours)
        ax.set(xlabel="level", ylabel=AXIS_LABELS["accuracy"], ylim=(0, 1), title=_who(records))
        ax.legend()
    return ax


def zero_gradient(records, *, smooth=5, ax=None):
    """Share of problems whose rollouts were all right, all wrong, or mixed, round by round (stacked).

    Only mixed groups have a gradient under group-normalised advantages. smooth: rounds of the moving mean. Several
    records are averaged (seeds).
    """
    with style() as colours:
        ax = ax or _new_axes()
        records = _listed(records)
        rounds = (
            _tables([record.rounds for record in records])
            .groupby("round")[["all_negative", "all_positive"]]
            .mean()
        )
        wrong, right = rounds.rolling(smooth, min_periods=1).mean().to_numpy().T
        shares, names = [right, 1 - wrong - right, wrong], ["all right", "mixed", "all wrong"]
        drawn = ax.stackplot(
            rounds.index,
            shares,
            labels=names,
            colors=[colours[2], colours[0], colours[3]],
            alpha=0.8,
            lw=0,
        )
        ax.set(xlabel="round", ylabel="share of problems", title=_who(records))
        ax.set(ylim=(0, 1), xlim=(rounds.index[0], max(rounds.index[-1], rounds.index[0] + 1)))
        ax.legend(drawn[::-1], names[::-1], loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def success_rates(rates, *, label=None, bins=20, ax=None):
    """How many problems have which success rate: a histogram of rates (P,) in [0, 1]; label names where they are from.

    The two ends, never and always solved, are bars of their own: with sampled groups they give next to no gradient.
    """
    rates = np.asarray(rates, dtype=np.float64)
    if rates.ndim != 1 or not rates.size or not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError(
            f"rates: shape {rates.shape}; one or more numbers from 0 to 1 in a row are needed"
        )
    with style() as colours:
        ax = ax or _new_axes()
        inside = rates[(rates > 0) & (rates < 1)]
        ax.hist(
            inside,
            np.linspace(0, 1, bins + 1),
            color=colours[0],
            label="solved sometimes",
            rwidth=0.85,
        )
        for place, value, name, colour in (
            (-0.04, 0, "never solved", colours[3]),
            (1.04, 1, "always solved", colours[2]),
        ):
            ax.bar(place, (rates == value).sum(), 0.04, color=colour, label=name)
        ax.set(
            xlabel="success rate of a problem",
            ylabel="problems",
            xlim=(-0.09, 1.09),
            title=label or "",
        )
        ax.legend()
    return ax


def pretraining(frame, *, y="loss", smooth=1, label=None, ax=None):
    """A column of a base model's log against the training step: frame (steps x columns) with a column `step`.

    y: a column, or a list of them, drawn from light to dark. smooth: rows of a moving mean. label: title.
    """
    names = [y] if isinstance(y, str) else list(y)
    _known(frame.columns, ["step", *names], "a column of the log")
    with style() as colours:
        ax = ax or _new_axes()
        shades = colours[:1] if len(names) == 1 else sns.color_palette("viridis_r", len(names))
        for name, colour in zip(names, shades):
            ax.plot(
                frame["step"],
                frame[name].rolling(smooth, min_periods=1).mean(),
                color=colour,
                label=str(name),
            )
        ax.set(
            xlabel="training step",
            ylabel=names[0] if len(names) == 1 else "held-out accuracy",
            title=label or "",
        )
        if len(names) > 1:
            ax.legend(title="level", loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def by_level(table, *, label=None, ax=None):
    """Bars of accuracy by level: table (levels x series), a bar for each column; label: title."""
    if table.empty:
        raise ValueError(
            "table: it is empty; a row for each level and a column for each series are needed"
        )
    with style() as colours:
        ax = ax or _new_axes()
        _bars(ax, table, colours)
        ax.set(xlabel="level", ylabel="held-out accuracy", ylim=(0, 1), title=label or "")
        ax.legend(title=table.columns.name)
    return ax


def summary(records, *, figure=None):
    """Two panels on one method's seeds: sampled and greedy accuracy, and where a gradient comes from. Returns the Figure."""
    with style():
        figure = figure or plt.figure(figsize=(10, 3.6), layout="constrained")
        accuracy, shares = figure.subplots(1, 2)
        records = _listed(records)
        sampled_and_greedy(records, ax=accuracy)
        zero_gradient(records, ax=shares)
        accuracy.set_title("Held-out arithmetic problems")
        shares.set_title("Rollouts of one problem: only mixed ones have a gradient")
        figure.suptitle(_who(records), x=0.01, ha="left", weight="bold")
    return figure


def overview(record, *, figure=None):
    """Four panels on one run: reward, held-out accuracy, accuracy by level, zero-gradient shares. Returns the Figure."""
    with style() as colours:
        figure = figure or plt.figure(figsize=(10, 6.4), layout="constrained")
        figure.clear()
        (reward, accuracy), (levels, shares) = figure.subplots(2, 2)
        rounds = record.rounds
        if len(rounds):
            reward.plot(rounds["round"], rounds["reward"], color=colours[0], alpha=0.3, lw=1)
            reward.plot(
                rounds["round"],
                rounds["reward"].rolling(10, min_periods=1).mean(),
                color=colours[0],
                label="mean of 10",
            )
            reward.legend(loc="lower right")
            zero_gradient(record, ax=shares)
        if len(record.evals):
            sampled_and_greedy(record, ax=accuracy)
            accuracy_by_level(record, ax=levels)
        reward.set(title="Training reward", xlabel="round", ylabel=AXIS_LABELS["reward"])
        accuracy.set(title="Held-out problems", xlabel="round", ylabel="held-out accuracy")
        levels.set_title("Held-out accuracy by level")
        shares.set_title("Where a gradient comes from")
        figure.suptitle(_who([record]), x=0.01, ha="left", weight="bold")
    return figure


def save(figures, folder):
    """Writes Axes (their whole figure) as SVG: dict name -> Axes, to folder/name.svg, without a date in the file."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with style():
        for name, ax in figures.items():
            ax.figure.savefig(Path(folder) / f"{name}.svg", metadata={"Date": None})


def watch(run, n, *, every=5):
    """`run.rounds(n)` with the overview figure redrawn in the notebook every few rounds; outside one, just the rounds."""
    figure, handle = None, None
    for row in run.rounds(n):
        yield row
        if row["round"] % every == 0 or row["round"] == n:
            figure, handle = _show(run.record, figure, handle)


def _show(record, figure, handle):
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        return None, None
    if get_ipython() is None:
        return None, None
    if figure is None:
        figure = plt.figure(figsize=(10, 6.4), layout="constrained")
        plt.close(figure)  # shown by its handle alone, not once more at the end of the cell
    overview(record, figure=figure)
    if handle is None:
        return figure, display(figure, display_id=True)
    handle.update(figure)
    return figure, handle


def _new_axes():
    return plt.subplots(figsize=(6.4, 3.6), layout="constrained")[1]


def _who(records):
    """What a figure shows: method, lab, and seed or number of seeds."""
    manifests = [record.manifest for record in records]
    names = ", ".join(
        dict.fromkeys(f"{m['method']['name']} on {m['lab']['lab']}" for m in manifests)
    )
    return f"{plain(names)}, " + (
        f"seed {manifests[0]['seed']}" if len(records) == 1 else f"n = {len(records)} seeds"
    )


def _listed(records):
    records = list(records) if isinstance(records, (list, tuple)) else [records]
    if not records:
        raise ValueError("records=[]: at least one is needed")
    return records


def _tables(frames):
    import pandas as pd

    return pd.concat(frames, ignore_index=True)


def _known(names, wanted, what):
    odd = [name for name in wanted if name not in names]
    if odd:
        raise ValueError(
            f"{odd[0]!r} is not {what}; there are {', '.join(map(str, sorted(names, key=str)))}"
        )


def _bars(ax, table, colours):
    """Bars side by side: table (groups x series)."""
    width = 0.8 / len(table.columns)
    for i, (name, colour) in enumerate(zip(table.columns, itertools.cycle(colours))):
        ax.bar(np.arange(len(table)) + i * width, table[name], width, label=str(name), color=colour)
    ax.set_xticks(np.arange(len(table)) + 0.4 - width / 2, table.index)


def _grouped(records):
    if isinstance(records, dict):
        return {
            label: group if isinstance(group, (list, tuple)) else [group]
            for label, group in records.items()
        }
    groups = {}
    for record in records if isinstance(records, (list, tuple)) else [records]:
        groups.setdefault(record.label, []).append(record)
    return groups


def _curve(record, x, y, smooth):
    """(x, y) arrays of one record."""
    held_out = y in ("accuracy", "greedy")
    table = record.accuracy() if held_out else record.rounds
    _known(
        table.columns,
        (x, y),
        "a column of the held-out accuracies" if held_out else "a column of the rounds table",
    )
    if held_out:
        return table[x].to_numpy(float), table[y].to_numpy(float)
    place = table[x].cumsum() if x in SPENT else table[x]
    return place.to_numpy(float), table[y].rolling(smooth, min_periods=1).mean().to_numpy(float)


def _band(ax, curves, label, colour):
    """Mean and interval over seeds; curves of unlike x are interpolated onto the first one's x within their common range."""
    start, end = max(c[0][0] for c in curves), min(c[0][-1] for c in curves)
    x = curves[0][0]
    x = x[(x >= start) & (x <= end)]
    values = np.array([np.interp(x, *curve) for curve in curves])
    stats = [mean_interval(column) for column in values.T]
    mean, half = (np.array(part) for part in zip(*stats))
    ax.plot(x, mean, "o-" if len(x) < 30 else "-", ms=4, color=colour, label=label)
    if len(curves) > 1:
        ax.fill_between(x, mean - half, mean + half, color=colour, alpha=0.2, lw=0)


def main():
    """Draws figures/readme.png."""
    from pathlib import Path

    from workbench import labs
    from workbench.records import record as records

    runs = [records.load(path) for path in sorted(labs.shipped("runs/tiny-grpo").glob("seed-*"))]
    target = Path("figures") / "readme.png"
    target.parent.mkdir(exist_ok=True)
    summary(runs).savefig(target, dpi=150)
    print(target)


if __name__ == "__main__":
    main()
