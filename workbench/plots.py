"""Pictures from records and frames, one function a figure; each draws on a given or new `Axes` and returns it.

Colours are seaborn's colour-blind palette, a method's colour is fixed by its place among those drawn. Bands are 95 %
Student intervals over seeds; with one seed there is a line and no band, and the legend says n = 1.
"""

import itertools
from contextlib import contextmanager

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns

from workbench.metrics import mean_interval

AXIS_LABELS = {
    "round": "round", "seconds": "training time (s)", "rollouts": "rollouts sampled", "flops": "floating-point operations",
    "accuracy": "held-out accuracy (avg@k)", "greedy": "held-out accuracy (greedy)", "reward": "mean reward of a round",
    "effective_gradient_ratio": "effective-gradient ratio", "entropy": "token entropy (nats)",
    "gradient_norm": "gradient norm", "length": "response length (tokens)",
}
SPENT = ("seconds", "rollouts", "flops")  # summed over rounds when they are an x axis
STYLE = {
    "figure.facecolor": "white", "axes.facecolor": "white", "savefig.facecolor": "white", "axes.grid": True,
    "grid.color": "#e6e6e6", "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#666666",
    "axes.titlesize": "medium", "axes.titleweight": "bold", "axes.titlelocation": "left", "legend.frameon": False,
    "font.size": 10, "svg.hashsalt": "workbench", "svg.fonttype": "none",
}


@contextmanager
def style():
    """The house style, for code of your own: `with wb.plots.style(): ...`."""
    with plt.rc_context(STYLE):
        yield sns.color_palette("colorblind")


def learning_curve(records, *, x="round", y="accuracy", smooth=1, ax=None):
    """y against x, a line a method, with an interval over seeds.

    records: a `Record`, a list of them (those of one method are its seeds), or a dict from label to either.
    x: round, seconds, rollouts or flops (the last three summed up to the round). y: accuracy or greedy (held-out), or
    any column of `Record.rounds`. smooth: width in rounds of a moving mean, for columns of the rounds table.
    """
    with style() as colours:
        ax = ax or plt.subplots(figsize=(6, 3.6))[1]
        for (label, group), colour in zip(_grouped(records).items(), itertools.cycle(colours)):
            _band(ax, [_curve(record, x, y, smooth) for record in group], f"{label} (n = {len(group)})", colour)
        ax.set(xlabel=AXIS_LABELS.get(x, x), ylabel=AXIS_LABELS.get(y, y))
        ax.legend()
    return ax


def accuracy_by_level(record, *, rounds=None, ax=None):
    """Held-out accuracy at each difficulty level, a bar an evaluation; `rounds` default: the first and the last."""
    with style() as colours:
        ax = ax or plt.subplots(figsize=(6, 3.6))[1]
        evals = record.evals
        rounds = rounds or sorted({evals["round"].min(), evals["round"].max()})
        table = evals.assign(accuracy=evals.correct / evals.samples).pivot_table(index="level", columns="round", values="accuracy")
        width = 0.8 / len(rounds)
        for i, number in enumerate(rounds):
            ax.bar(np.arange(len(table)) + i * width, table[number], width, label=f"round {number}", color=colours[i])
        ax.set_xticks(np.arange(len(table)) + 0.4 - width / 2, table.index)
        ax.set(xlabel="level", ylabel=AXIS_LABELS["accuracy"], ylim=(0, 1))
        ax.legend()
    return ax


def zero_gradient(record, *, smooth=5, ax=None):
    """Share of problems whose rollouts were all right, all wrong, or mixed, round by round (stacked).

    Only mixed groups have a gradient under group-normalised advantages. smooth: rounds of the moving mean.
    """
    with style() as colours:
        ax = ax or plt.subplots(figsize=(6, 3.6))[1]
        rounds = record.rounds
        wrong, right = (rounds[c].rolling(smooth, min_periods=1).mean() for c in ("all_negative", "all_positive"))
        shares, names = [wrong, 1 - wrong - right, right], ["all wrong", "mixed", "all right"]
        ax.stackplot(rounds["round"], shares, labels=names, colors=[colours[3], colours[0], colours[2]], alpha=0.85, lw=0)
        ax.set(xlabel="round", ylabel="share of problems", ylim=(0, 1), xlim=(rounds["round"].min(), rounds["round"].max()))
        ax.legend(loc="upper right", frameon=True, framealpha=0.9)
    return ax


def overview(record, *, figure=None):
    """Four panels on one run: reward, held-out accuracy, accuracy by level, zero-gradient shares. Returns the Figure."""
    with style() as colours:
        figure = figure or plt.figure(figsize=(10, 6.4), layout="constrained")
        figure.clear()
        (reward, accuracy), (levels, shares) = figure.subplots(2, 2)
        rounds = record.rounds
        if len(rounds):
            reward.plot(rounds["round"], rounds["reward"], color=colours[0], alpha=0.3, lw=1)
            reward.plot(rounds["round"], rounds["reward"].rolling(10, min_periods=1).mean(), color=colours[0], label="mean of 10")
            reward.legend(loc="lower right")
            zero_gradient(record, ax=shares)
        if len(record.evals):
            for name, colour in (("accuracy", colours[0]), ("greedy", colours[1])):
                table = record.accuracy()
                accuracy.plot(table["round"], table[name], "o-", ms=4, color=colour, label=AXIS_LABELS[name].split("(")[1][:-1])
            accuracy.legend(loc="lower right")
            accuracy_by_level(record, ax=levels)
        reward.set(title="Training reward", xlabel="round", ylabel=AXIS_LABELS["reward"])
        accuracy.set(title="Held-out problems", xlabel="round", ylabel="accuracy")
        levels.set_title("Held-out accuracy by level")
        shares.set_title("Where a gradient comes from")
        manifest = record.manifest
        figure.suptitle(f"{record.label} on {manifest['lab']['lab']}, seed {manifest['seed']}", x=0.01, ha="left", weight="bold")
    return figure


def watch(run, n, *, every=5):
    """`run.rounds(n)` with the overview figure redrawn in the notebook every few rounds; outside one, just the rounds."""
    figure, handle = None, None
    for row in run.rounds(n):
        yield row
        if row["round"] % every == 0 or row["round"] == n:
            figure, handle = _show(run.record, figure, handle)
    if figure is not None:
        plt.close(figure)


def _show(record, figure, handle):
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        return None, None
    if get_ipython() is None:
        return None, None
    if figure is None:
        with plt.ioff():
            figure = plt.figure(figsize=(10, 6.4), layout="constrained")
    overview(record, figure=figure)
    if handle is None:
        return figure, display(figure, display_id=True)
    handle.update(figure)
    return figure, handle


def _grouped(records):
    if isinstance(records, dict):
        return {label: group if isinstance(group, (list, tuple)) else [group] for label, group in records.items()}
    groups = {}
    for record in records if isinstance(records, (list, tuple)) else [records]:
        groups.setdefault(record.label, []).append(record)
    return groups


def _curve(record, x, y, smooth):
    """(x, y) arrays of one record."""
    if y in ("accuracy", "greedy"):
        table = record.accuracy()
    else:
        table = record.rounds
        known = [name for name in (x, y) if name not in table]
        if known:
            raise ValueError(f"{known[0]!r} is no column of the rounds table; there are {', '.join(table.columns)}")
        table = table.assign(**{name: table[name].cumsum() for name in SPENT if name in table})
        table[y] = table[y].rolling(smooth, min_periods=1).mean()
    return table[x].to_numpy(float), table[y].to_numpy(float)


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
