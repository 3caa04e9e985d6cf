"""Figures that the paper notebooks share, from the frames of `comparisons` and `metrics`; house style of `plots`."""

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns

from workbench.plots.curves import style

INK = "#333333"


def panels(n, *, width=4.0, height=3.5):
    """n Axes side by side in the house style, as a list; width and height of each in inches."""
    with style():
        return list(
            plt.subplots(1, n, figsize=(n * width, height), layout="constrained", squeeze=False)[
                1
            ].flat
        )


def dots(table, *, label=None, reference=None, ax=None):
    """A value with its interval for every row: table with columns mean and half, as `comparisons.at_budget` gives it.

    label: of the x axis. reference: row whose mean is drawn as a line through all. n, where the table has it, is named
    behind each label.
    """
    with style() as colours:
        ax = ax or _rows_axes(len(table))
        place = np.arange(len(table))[::-1]
        ax.errorbar(
            table["mean"],
            place,
            xerr=table["half"],
            fmt="o",
            color=colours[0],
            ecolor=INK,
            elinewidth=1,
            capsize=3,
        )
        if reference is not None:
            ax.axvline(
                table.loc[reference, "mean"],
                color=colours[3],
                ls="--",
                lw=1,
                zorder=0,
                label=str(reference),
            )
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
            ax.plot(
                row["difference"], y, "o", color=colours[0], mfc=colours[0] if clear else "white"
            )
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
        for name, colour in zip(
            table, sns.color_palette(palette, len(table.columns)) if palette else colours
        ):
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
            ax.errorbar(
                table.index,
                table["mean"],
                table["half"],
                fmt="o-",
                color=colour,
                capsize=3,
                lw=1.5,
                label=str(name),
            )
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
        ax = (
            ax
            or plt.subplots(
                figsize=(2.2 + 0.72 * columns, 1.3 + 0.42 * rows), layout="constrained"
            )[1]
        )
        ax.grid(visible=False)
        scale = (
            {"cmap": "vlag", "vmin": -1, "vmax": 1}
            if diverging
            else {"cmap": "Blues", "vmin": 0, "vmax": largest}
        )
        sns.heatmap(
            table.astype(float),
            annot=True,
            fmt=f".{digits}f",
            linewidths=0.5,
            linecolor="white",
            ax=ax,
            annot_kws={"size": 8},
            cbar_kws={"label": label or ""},
            **scale,
        )
        ax.tick_params(length=0)
        ax.set_xticks(
            ax.get_xticks(), ax.get_xticklabels(), rotation=35, ha="right", rotation_mode="anchor"
        )
        ax.set_yticks(ax.get_yticks(), ax.get_yticklabels(), rotation=0)
    return ax


def counts(series, *, xlabel=None, ylabel="visits of a problem", log=True, ax=None):
    """Histogram of whole numbers, such as rollouts a visit: dict from name to an array (N,), drawn side by side.

    log: a logarithmic count axis. The largest value of each is named in the legend.
    """
    with style() as colours:
        ax = ax or plt.subplots(figsize=(6.4, 3.4), layout="constrained")[1]
        largest = max(int(np.max(values)) for values in series.values())
        width = -(
            -(largest + 1) // 60
        )  # whole numbers, so that every bar stands for as many of them
        edges = np.arange(0, largest + 1 + width, width) - 0.5
        for (name, values), colour in zip(series.items(), colours):
            ax.hist(
                values,
                edges,
                color=colour,
                alpha=0.6,
                label=f"{name} (largest {int(np.max(values))})",
            )
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
        ax.set(
            xlabel=xlabel or x,
            ylabel=ylabel or y,
            title=f"r = {frame[x].corr(frame[y]):.2f} over {len(frame)} points",
        )
        ax.legend()
    return ax


def trajectory_grid(visits, problems, *, figure=None):
    """Single problems visit by visit, a column each: success rate above, rollouts below (Knapsack RL, figure 10).

    visits: dict from name to a table of `comparisons.visits`; problems: their ids. Returns the (2, problems) array of Axes.
    """
    with style():
        figure = figure or plt.figure(
            figsize=(2.5 * len(problems) + 0.5, 4.4), layout="constrained"
        )
        axes = figure.subplots(2, len(problems), sharex=True, sharey="row", squeeze=False)
        for problem, column in zip(problems, axes.T):
            for name, ax in zip(("rate", "rollouts"), column):
                trajectories(
                    {label: table.loc[problem, name] for label, table in visits.items()}, ax=ax
                )
                ax.get_legend().remove()
            column[0].set(
                title=str(problem).split("/", 1)[-1], xlabel=""
            )  # without the family's name
        axes[0, 0].set(ylabel="success rate of the visit")
        largest = max(table.loc[list(problems), "rollouts"].max() for table in visits.values())
        axes[1, 0].set(ylabel="rollouts of the visit", ylim=(0, 1.08 * largest))
        for ax in axes.flat:
            ax.label_outer()
        figure.legend(
            *axes[0, 0].get_legend_handles_labels(), loc="outside upper left", ncols=len(visits)
        )
    return axes


def waterfall(start, parts, *, label=None, names=("before", "after"), ax=None):
    """From a cost to a smaller one, step by step: start a number, parts a Series of savings (negative: extra cost)."""
    with style() as colours:
        ax = ax or _rows_axes(len(parts) + 2)
        left, rows = float(start), [(names[0], 0.0, float(start), colours[7])]
        for name, saved in parts.items():
            rows.append(
                (
                    str(name),
                    min(left, left - saved),
                    abs(saved),
                    colours[2] if saved >= 0 else colours[3],
                )
            )
            left -= saved
        rows.append((names[1], 0.0, left, colours[0]))
        place = np.arange(len(rows))[::-1]
        for y, (_, begin, width, colour) in zip(place, rows):
            ax.barh(y, width, left=begin, color=colour, height=0.65)
            ax.annotate(
                f"{width:.3g}",
                (begin + width, y),
                (3, 0),
                textcoords="offset points",
                va="center",
                size=8,
            )
        ax.set_yticks(place, [row[0] for row in rows])
        ax.set(
            xlabel=label or "", xlim=(0, 1.12 * max(begin + width for _, begin, width, _ in rows))
        )
    return ax


def spending(table, *, label=None, ax=None):
    """Rollouts that carry a gradient by rollouts sampled, log-log, every method named where it stands.

    table: columns sampled and trained (per problem and round) and kind, by which dots are coloured; index: names. The
    diagonals are shares of the sampled ones. Names of dots that lie on one another are joined. label: title.
    """
    with style() as colours:
        ax = ax or plt.subplots(figsize=(5.4, 4.4), layout="constrained")[1]
        sampled, trained = table["sampled"].to_numpy(float), table["trained"].to_numpy(float)
        (left, right), (low, high) = (
            (sampled.min() / 2.6, sampled.max() * 2.8),
            (trained.min() / 1.6, trained.max() * 2),
        )
        for share, name in (
            (1, "all"),
            (1 / 2, "1/2"),
            (1 / 4, "1/4"),
            (1 / 8, "1/8"),
            (1 / 16, "1/16"),
        ):
            ax.plot([left, right], [share * left, share * right], color="#cccccc", lw=1, zorder=0)
            x = min(right, high / share) / 1.12
            ax.text(
                x,
                share * x,
                name,
                color="#666666",
                size=8,
                ha="center",
                va="center",
                backgroundcolor="white",
            )
        for kind, part in table.groupby("kind", sort=False):
            colour = _kind_colour(table["kind"], kind, colours)
            ax.plot(
                part["sampled"], part["trained"], "o", ms=8, color=colour, mec="white", label=kind
            )
        for x, y, name, on_left in _joined_names(table, right):
            ax.annotate(
                name,
                (x, y),
                (-8 if on_left else 8, 0),
                textcoords="offset points",
                va="center",
                size=8.5,
                ha="right" if on_left else "left",
                linespacing=1.05,
            )
        ax.set(
            xscale="log",
            yscale="log",
            xlim=(left, right),
            ylim=(low, high),
            title=label or "",
            xlabel="rollouts sampled a problem",
            ylabel="of these, trained on with a gradient",
        )
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(plt.FixedLocator([0.5, 1, 2, 4, 8, 16, 32, 64]))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_locator(plt.NullLocator())
        ax.legend(loc="upper left", handletextpad=0.1, borderaxespad=0)
    return ax


def gains(tables, kinds, *, label=None, axes=None):
    """Differences to a baseline with their intervals, a panel a budget: dict from title to a table with value, low, high.

    tables: of the same rows in the same order; n, where they have it, is named. kinds: Series by row, the colour of a dot.
    label: of the x axis. A dot is filled where its interval leaves 0 out; one seed has no interval and a hollow dot. Returns
    the axes, an array.
    """
    with style() as colours:
        rows = next(iter(tables.values()))
        size = {"figsize": (3 + 1.7 * len(tables), 1.1 + 0.3 * len(rows)), "layout": "constrained"}
        axes = (
            plt.subplots(1, len(tables), sharex=True, squeeze=False, **size)[1][0]
            if axes is None
            else axes
        )
        place = np.arange(len(rows))[::-1]
        for ax, (title, table) in zip(axes, tables.items()):
            ax.axvline(0, color=INK, lw=1)
            for y, (name, row) in zip(place, table.iterrows()):
                colour = _kind_colour(kinds, kinds[name], colours)
                clear = row["low"] > 0 or row["high"] < 0
                ax.plot(
                    [row["low"], row["high"]], [y, y], color=colour, lw=1.5, solid_capstyle="butt"
                )
                ax.plot(row["value"], y, "o", ms=6, color=colour, mfc=colour if clear else "white")
            ax.set_yticks(place, rows.index if ax is axes[0] else [])
            ax.set(title=title, ylim=(-0.7, len(rows) - 0.3))
            ax.grid(visible=False, axis="y")
        seeds = sorted({int(n) for table in tables.values() for n in table.get("n", ())})
        named = f" (n = {' or '.join(map(str, seeds))} seeds)" if seeds else ""
        axes[len(axes) // 2].set_xlabel((label or "difference") + named)
    return axes


def spent_and_gained(table, tables, *, label=None):
    """`spending` beside the panels of `gains`: a table and tables as they take them. Returns the axes, the map's first."""
    with style():
        figure = plt.figure(figsize=(5 + 2 * len(tables), 4.7), layout="constrained")
        grid = figure.add_gridspec(1, 1 + len(tables), width_ratios=[2.4, *[1] * len(tables)])
        left, first = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
        panels = [first, *(figure.add_subplot(place, sharex=first) for place in list(grid)[2:])]
    spending(table, label="Sampled, and trained on", ax=left)
    gains(tables, table["kind"], label=label, axes=panels)
    return [left, *panels]


def verdicts(table, *, ax=None):
    """Claims and verdicts as a coloured list: table of `verdicts.table`, its index the paper (drawn where it changes)."""
    with style() as colours:
        ax = ax or plt.subplots(figsize=(10, 0.6 + 0.27 * len(table)))[1]
        shades = {"agrees": colours[2], "disagrees": colours[3], "cannot tell": "#bbbbbb"}
        columns = {"claim": 0.085, "published": 0.56, "here": 0.73, "verdict": 0.895}
        for name, x in columns.items():
            ax.text(x, 0, name, weight="bold", size=9, va="center")
        before = None
        for y, (paper, row) in enumerate(table.iterrows(), start=1):
            if paper != before:
                ax.axhline(y - 0.5, color="#666666", lw=0.8)
                ax.text(0, y, paper, weight="bold", size=9, va="center")
            ax.add_patch(
                plt.Rectangle(
                    (0.885, y - 0.42), 0.115, 0.84, color=shades[row["verdict"]], alpha=0.75, lw=0
                )
            )
            for name, x in columns.items():
                ax.text(x, y, row[name], size=8.5, va="center")
            before = paper
        ax.set(xlim=(0, 1), ylim=(len(table) + 0.6, -0.6))
        ax.set_axis_off()
        ax.figure.subplots_adjust(0.01, 0.01, 0.99, 0.99)
    return ax


def _kind_colour(kinds, kind, colours):
    """Grey for the first kind, then colours by order of appearance."""
    kinds = list(dict.fromkeys(kinds))
    return "#777777" if kind == kinds[0] else colours[[0, 1, 2, 4][kinds.index(kind) - 1]]


def _joined_names(table, end, near=0.03, letter=0.031, height=0.042):
    """(x, y, name, whether it stands on the left) for `spending`: one for all dots less than `near` decades apart.

    letter, height: of the text in decades. A name stands on the side where it meets fewer dots and names, and not the end.
    """
    table = table.sort_values("trained", ascending=False, kind="stable")
    places, groups = np.log10(table[["sampled", "trained"]].to_numpy(float)), []
    for i, place in enumerate(places):
        known = [group for group in groups if np.abs(places[group[0]] - place).max() < near]
        known[0].append(i) if known else groups.append([i])
    taken = [(x - 0.015, x + 0.015, y) for x, y in places]
    for group in groups:
        (x, y), name = places[group].mean(axis=0), ", ".join(table.index[group])
        width = letter * len(name)
        sides = [(x + 0.03, x + 0.03 + width, y), (x - 0.03 - width, x - 0.03, y)]
        met = [
            sum(start < b and a < stop and abs(y - z) < height for a, b, z in taken)
            + 9 * (stop > np.log10(end))
            for start, stop, _ in sides
        ]
        left = bool(met[1] < met[0])
        taken.append(sides[left])
        yield 10**x, 10**y, name, left


def _rows_axes(rows):
    return plt.subplots(figsize=(6.4, 1.1 + 0.34 * rows), layout="constrained")[1]


def _name_rows(ax, table, place):
    seeds = [f" (n = {int(n)})" for n in table["n"]] if "n" in table else [""] * len(table)
    ax.set_yticks(place, [f"{name}{n}" for name, n in zip(table.index, seeds)])
    ax.set_ylim(-0.6, len(table) - 0.4)
    ax.grid(visible=False, axis="y")


def _legend_above(ax, columns):
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2)
