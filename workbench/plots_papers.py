"""Figures that the paper notebooks share, from the frames of `comparisons` and `metrics`; house style of `plots`."""

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns

from workbench.plots import style

INK = "#333333"


def panels(n, *, width=4.0, height=3.5):
    """n Axes side by side in the house style, as a list; width and height of each in inches."""
    with style():
        return list(plt.subplots(1, n, figsize=(n * width, height), layout="constrained", squeeze=False)[1].flat)


def dots(table, *, label=None, reference=None, ax=None):
    """A value with its interval for every row: table with columns mean and half, as `comparisons.at_budget` gives it.

    label: of the x axis. reference: row whose mean is drawn as a line through all. n, where the table has it, is named
    behind each label.
    """
    with style() as colours:
        ax = ax or _rows_axes(len(table))
        place = np.arange(len(table))[::-1]
        ax.errorbar(table["mean"], place, xerr=table["half"], fmt="o", color=colours[0], ecolor=INK, elinewidth=1, capsize=3)
        if reference is not None:
            ax.axvline(table.loc[reference, "mean"], color=colours[3], ls="--", lw=1, zorder=0, label=str(reference))
        _name_rows(ax, table, place)
        ax.set(xlabel=label or "")
    return ax


def differences(table, *, label="difference", baseline=None, ax=None):
    """Paired differences to a baseline with their intervals: table with columns difference, low, high.

    Rows without a difference (the baseline itself) are left out. An interval that holds 0 is drawn hollow.
    """
    table = table[table["difference"].notna()]
    with style() as colours:
        ax = ax or _rows_axes(len(table))
        place = np.arange(len(table))[::-1]
        ax.axvline(0, color=INK, lw=1)
        for y, (_, row) in zip(place, table.iterrows()):
            clear = row["low"] > 0 or row["high"] < 0
            ax.plot([row["low"], row["high"]], [y, y], color=INK, lw=1)
            ax.plot(row["difference"], y, "o", color=colours[0], mfc=colours[0] if clear else "white")
        _name_rows(ax, table, place)
        ax.locator_params(axis="x", nbins=6)
        ax.set(xlabel=label, title=f"against {baseline}" if baseline else "")
    return ax


def stacked(table, *, label=None, palette=None, ax=None):
    """A bar a row, stacked by column: table (rows x parts) such as `comparisons.phases`; columns that are 0 are left out.

    palette: name of a seaborn palette for columns that have an order; None for the colour-blind one.
    """
    table = table.loc[:, (table != 0).any()]
    with style() as colours:
        ax = ax or _rows_axes(len(table))
        place, start = np.arange(len(table))[::-1], np.zeros(len(table))
        for name, colour in zip(table, sns.color_palette(palette, len(table.columns)) if palette else colours):
            ax.barh(place, table[name], left=start, color=colour, height=0.65, label=str(name))
            start = start + table[name].to_numpy()
        _name_rows(ax, table, place)
        ax.set(xlabel=label or "")
        _legend_above(ax, len(table.columns))
    return ax


def sweep(series, *, xlabel=None, ylabel=None, log=True, ax=None):
    """Values with intervals along a numeric parameter: dict from name to a table indexed by the parameter, with mean, half.

    log: a logarithmic x axis to base 2, ticks at the values tried.
    """
    with style() as colours:
        ax = ax or plt.subplots(figsize=(5.2, 3.4), layout="constrained")[1]
        for (name, table), colour in zip(series.items(), colours):
            ax.errorbar(table.index, table["mean"], table["half"], fmt="o-", color=colour, capsize=3, lw=1.5, label=str(name))
        values = sorted({value for table in series.values() for value in table.index})
        if log:
            ax.set_xscale("log", base=2)
        ax.set_xticks(values, [f"{value:g}" for value in values])
        ax.minorticks_off()
        ax.set(xlabel=xlabel or "", ylabel=ylabel or "")
        if len(series) > 1:
            ax.legend()
    return ax


def heatmap(table, *, label=None, diverging=False, largest=None, digits=2, ax=None):
    """A table as coloured, numbered cells, empty where it is NaN: transition matrices, correlations.

    diverging: a scale around 0 from -1 to 1 (correlations); else from 0 to `largest`, None for the table's own. label: of
    the colour bar.
    """
    with style():
        rows, columns = table.shape
        ax = ax or plt.subplots(figsize=(2.2 + 0.72 * columns, 1.3 + 0.42 * rows), layout="constrained")[1]
        ax.grid(visible=False)
        scale = {"cmap": "vlag", "vmin": -1, "vmax": 1} if diverging else {"cmap": "Blues", "vmin": 0, "vmax": largest}
        sns.heatmap(table.astype(float), annot=True, fmt=f".{digits}f", linewidths=0.5, linecolor="white", ax=ax,
                    annot_kws={"size": 8}, cbar_kws={"label": label or ""}, **scale)
        ax.tick_params(length=0)
        ax.set_xticks(ax.get_xticks(), ax.get_xticklabels(), rotation=35, ha="right", rotation_mode="anchor")
        ax.set_yticks(ax.get_yticks(), ax.get_yticklabels(), rotation=0)
    return ax


def counts(series, *, xlabel=None, ylabel="visits of a problem", log=True, ax=None):
    """Histogram of whole numbers, such as rollouts a visit: dict from name to an array (N,), drawn side by side.

    log: a logarithmic count axis. The largest value of each is named in the legend.
    """
    with style() as colours:
        ax = ax or plt.subplots(figsize=(6.4, 3.4), layout="constrained")[1]
        largest = max(int(np.max(values)) for values in series.values())
        width = -(-(largest + 1) // 60)  # whole numbers, so that every bar stands for as many of them
        edges = np.arange(0, largest + 1 + width, width) - 0.5
        for (name, values), colour in zip(series.items(), colours):
            ax.hist(values, edges, color=colour, alpha=0.6, label=f"{name} (largest {int(np.max(values))})")
        ax.set(xlabel=xlabel or "", ylabel=ylabel, yscale="log" if log else "linear")
        ax.legend()
    return ax


def trajectories(series, *, ylabel="success rate", ax=None):
    """Single problems visit by visit: dict from name to `comparisons.visits`-like rates, each (visits,) Series."""
    with style() as colours:
        ax = ax or plt.subplots(figsize=(4.2, 3.0), layout="constrained")[1]
        for (name, values), colour, marker in zip(series.items(), colours, "os^Dv*"):
            ax.plot(values.index, values, marker=marker, ms=4, color=colour, label=str(name))
        ax.set(xlabel="visit", ylabel=ylabel, ylim=(-0.05, 1.05))
        ax.legend()
    return ax


def relation(frame, x, y, by, *, xlabel=None, ylabel=None, ax=None):
    """Points of two columns of a frame, coloured by a third, with Pearson's r over all of them in the title."""
    with style() as colours:
        ax = ax or plt.subplots(figsize=(5.2, 3.6), layout="constrained")[1]
        for (name, part), colour, marker in zip(frame.groupby(by, sort=False), colours, "os^Dv*"):
            ax.plot(part[x], part[y], marker, ms=5, color=colour, mec="white", label=str(name))
        ax.set(xlabel=xlabel or x, ylabel=ylabel or y, title=f"r = {frame[x].corr(frame[y]):.2f} over {len(frame)} points")
        ax.legend()
    return ax


def trajectory_grid(visits, problems, *, figure=None):
    """Single problems visit by visit, a column each: success rate above, rollouts below (Knapsack RL, figure 10).

    visits: dict from name to a table of `comparisons.visits`; problems: their ids. Returns the (2, problems) array of Axes.
    """
    with style():
        figure = figure or plt.figure(figsize=(2.5 * len(problems) + 0.5, 4.4), layout="constrained")
        axes = figure.subplots(2, len(problems), sharex=True, sharey="row", squeeze=False)
        for problem, column in zip(problems, axes.T):
            for name, ax in zip(("rate", "rollouts"), column):
                trajectories({label: table.loc[problem, name] for label, table in visits.items()}, ax=ax)
                ax.get_legend().remove()
            column[0].set(title=str(problem).split("/", 1)[-1], xlabel="")  # without the family's name
        axes[0, 0].set(ylabel="success rate of the visit")
        largest = max(table.loc[list(problems), "rollouts"].max() for table in visits.values())
        axes[1, 0].set(ylabel="rollouts of the visit", ylim=(0, 1.08 * largest))
        for ax in axes.flat:
            ax.label_outer()
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper left", ncols=len(visits))
    return axes


def waterfall(start, parts, *, label=None, names=("before", "after"), ax=None):
    """From a cost to a smaller one, step by step: start a number, parts a Series of savings (negative: extra cost)."""
    with style() as colours:
        ax = ax or _rows_axes(len(parts) + 2)
        left, rows = float(start), [(names[0], 0.0, float(start), colours[7])]
        for name, saved in parts.items():
            rows.append((str(name), min(left, left - saved), abs(saved), colours[2] if saved >= 0 else colours[3]))
            left -= saved
        rows.append((names[1], 0.0, left, colours[0]))
        place = np.arange(len(rows))[::-1]
        for y, (_, begin, width, colour) in zip(place, rows):
            ax.barh(y, width, left=begin, color=colour, height=0.65)
            ax.annotate(f"{width:.3g}", (begin + width, y), (3, 0), textcoords="offset points", va="center", size=8)
        ax.set_yticks(place, [row[0] for row in rows])
        ax.set(xlabel=label or "", xlim=(0, 1.12 * max(begin + width for _, begin, width, _ in rows)))
    return ax


def _rows_axes(rows):
    return plt.subplots(figsize=(6.4, 1.1 + 0.34 * rows), layout="constrained")[1]


def _name_rows(ax, table, place):
    seeds = [f" (n = {int(n)})" for n in table["n"]] if "n" in table else [""] * len(table)
    ax.set_yticks(place, [f"{name}{n}" for name, n in zip(table.index, seeds)])
    ax.set_ylim(-0.6, len(table) - 0.4)
    ax.grid(visible=False, axis="y")


def _legend_above(ax, columns):
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2)
