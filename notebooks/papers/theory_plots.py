"""Figures of the papers' theory and of gradients, one function each, in the house style.

Each draws on the given or new Axes and returns them. Bars and bands are 95 % intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from papers.intervals import Interval
from papers.theorems import split_variances
from workbench.analysis.intervals import mean_interval
from workbench.plots.style import MARKERS, PALETTE, SOFT, framed, plain, seeds
from workbench.utils.validation import one_of

__all__ = [
    "FIDELITY_LABELS",
    "bound_growth",
    "fidelity",
    "needed_rollouts",
    "norm_bound",
    "norms_by_balance",
    "regret",
    "split_variance",
    "success_gain",
]

FIDELITY_LABELS = {
    "cosine": "cosine with the reference gradient",
    "norm_ratio": "norm / norm of the reference",
    "gradient": "share of problems left with a gradient",
}
# Powers of ten alone would leave two ticks in this range.
LOG_TICKS = [2, 5, 10, 20, 50, 100, 200]


def split_variance(
    rewards: Any, sizes: Sequence[int], *, title: str | None = None, ax: Axes | None = None
) -> Axes:
    """Variance of the k highest and m-k lowest of the rewards, by the share k/m from the top.

    Parameters
    ----------
    rewards : (n,) numbers
    sizes : list of m
        A curve each; the best split of each is filled.
    title : str, optional
    ax : Axes, optional

    References
    ----------
    PODS (arXiv 2504.13818), lemma 3.1.
    """
    with framed(
        ax,
        title=title or f"Every split of {len(rewards)} rewards; filled: the largest variance",
        xlabel="share of the m rollouts taken from the top",
        ylabel="variance of the rewards",
    ) as ax:
        for m, colour, marker in zip(sizes, PALETTE, MARKERS):
            variances = split_variances(rewards, m)
            # As shares, so that curves of different m have one axis.
            share = np.arange(m + 1) / m
            best = variances.argmax()
            ax.plot(
                share, variances, color=colour, marker=marker, mfc="white", ms=5, label=f"m = {m}"
            )
            ax.plot(share[best], variances[best], color=colour, marker=marker, ms=8)
    return ax


def needed_rollouts(
    frame: pd.DataFrame,
    observed: pd.DataFrame | None = None,
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Rollouts that a gradient needs, by success rate.

    Parameters
    ----------
    frame : DataFrame (rates x quantities)
        Of `theorems.needed_rollouts` at alpha=0.9. Of the simulated means some fifteen are drawn.
    observed : DataFrame, optional
        Problems of `theorems.observed_rollouts`, drawn in place of the simulated means.
    title : str, optional
    ax : Axes, optional

    References
    ----------
    Knapsack RL (arXiv 2509.25849), proposition 1 and figure 3.
    """
    with framed(
        ax,
        title=title or "Rollouts that a gradient needs",
        xlabel="success rate of the problem",
        ylabel="rollouts",
    ) as ax:
        rates = frame.index
        ax.step(
            rates, frame["least"], where="mid", color=PALETTE[0], label="fewest for 90 %, exact"
        )
        ax.plot(rates, frame["formula"], "--", color=PALETTE[1], label="for 90 %, proposition 1")
        ax.plot(rates, frame["expected"], color=PALETTE[2], label="until the first, expected")
        if observed is None:
            # Every dot would hide the lines that it is to confirm.
            some = frame.iloc[:: max(1, len(frame) // 14)]
            ax.errorbar(
                some.index,
                some["simulated"],
                some["half"],
                fmt="o",
                ms=5,
                color=PALETTE[3],
                capsize=3,
                label="simulated",
            )
        else:
            text = f"until the first, measured\n({len(observed)} problems)"
            ax.plot(
                observed["rate"],
                observed["needed"],
                "o",
                ms=5,
                color=PALETTE[3],
                alpha=0.7,
                label=text,
            )
        # The usual number of rollouts, as a measure of what the curves ask for.
        ax.axhline(8, color=SOFT, lw=1, ls=":", label="GRPO's 8 rollouts")
        ax.set_yscale("log")
        ax.set_yticks(LOG_TICKS, [str(tick) for tick in LOG_TICKS])
        ax.minorticks_off()
    return ax


def success_gain(frame: pd.DataFrame, *, title: str | None = None, ax: Axes | None = None) -> Axes:
    """Gain in success rate by one update.

    Parameters
    ----------
    frame : DataFrame (rates x cases)
        The column "p(1-p)^2" is drawn dashed.
    title : str, optional
    ax : Axes, optional

    References
    ----------
    Knapsack RL (arXiv 2509.25849), proposition 2 and figure 8.
    """
    formula = "p(1-p)^2"
    with framed(
        ax,
        title=title or "What one update on a right answer gains",
        xlabel="success rate before the update",
        ylabel="gain / learning rate",
    ) as ax:
        # The formula is drawn last and dashed, over the exact gains that it stands for.
        cases = [name for name in frame if name != formula]
        for name, colour in zip(cases, PALETTE):
            ax.plot(frame.index, frame[name], color=colour, label=plain(name))
        ax.plot(frame.index, frame[formula], "--", color=SOFT, label="$p(1-p)^2$")
        ax.set_ylim(0, None)
    return ax


def norm_bound(frame: pd.DataFrame, *, title: str | None = None, ax: Axes | None = None) -> Axes:
    """Squared gradient norms over the bound of AERO's theorem 4.1, by the bound.

    Above 1 the bound is broken.

    Parameters
    ----------
    frame : DataFrame
        Of `gradients.norm_bounds`.
    title : str, optional
    ax : Axes, optional

    References
    ----------
    AERO (arXiv 2602.14338), theorem 4.1.
    """
    # An empty frame means too few rollouts, which an empty figure would not say.
    _check_not_empty("frame", frame)
    with framed(
        ax,
        title=title or "AERO, theorem 4.1 on the tiny model's gradients",
        xlabel=r"bound $cm/(c+m)^2\,|v_C - v_F|^2$",
        ylabel="squared norm / bound",
    ) as ax:
        ax.axhline(1, color=SOFT, lw=1, label="the bound")
        for i, (case, part) in enumerate(frame.groupby("case", sort=False)):
            ax.plot(
                part["bound"],
                part["squared"] / part["bound"],
                MARKERS[i],
                color=PALETTE[i],
                mfc="none",
                # Cases that agree lie on one another, so later markers are smaller and earlier
                # ones stay visible.
                ms=9 - 2 * i,
                mew=1.3,
                label=f"{plain(case)} ({len(part)} problems)",
            )
        ax.set_xscale("log")
        ax.set_ylim(0, None)
    return ax


def norms_by_balance(
    frame: pd.DataFrame, c: int, *, title: str | None = None, ax: Axes | None = None
) -> Axes:
    """Squared norms by the number of wrong rollouts beside c right ones.

    Parameters
    ----------
    frame : DataFrame
        Of `gradients.norms_by_balance`.
    c : int
        The right ones. Counts m below c, to the left of the dotted line, lie outside lemma 4.2.
    title : str, optional
    ax : Axes, optional

    References
    ----------
    AERO (arXiv 2602.14338), lemma 4.2, which is about m = k c with k of at least 1.
    """
    _check_not_empty("frame", frame)
    with framed(
        ax,
        title=title or f"Balance and the gradient's size ({frame['problem'].nunique()} problems)",
        xlabel=f"wrong rollouts m beside c = {c} right ones",
        ylabel=f"relative to m = {c}",
    ) as ax:
        by_m = frame.groupby("m")
        # Means over problems of what `gradients.norms_by_balance` gives relative to m = c.
        factor = by_m[["factor", "signal"]].mean()
        intervals = [(m, *mean_interval(part["group"])) for m, part in by_m]
        counts, centre, half = np.array(intervals).T
        ax.plot(factor.index, factor["factor"], color=PALETTE[0], label="factor $cm/(c+m)^2$")
        ax.plot(
            factor.index,
            factor["signal"],
            "o",
            color=PALETTE[0],
            mfc="white",
            label=r"mean gradient, $|E\,G|^2$",
        )
        ax.errorbar(
            counts,
            centre,
            half,
            fmt="s-",
            ms=5,
            color=PALETTE[1],
            capsize=3,
            label=r"one group, $E|G|^2$",
        )
        ax.axvline(c, color=SOFT, lw=1, ls=":", label=f"m = c = {c}; the lemma: from here on")
        ax.set_xticks(counts)
        ax.set_ylim(0, None)
    return ax


def regret(
    curves: Mapping[str, np.ndarray],
    exponents: Mapping[str, Interval],
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Mean cumulative regret by round, log-log.

    Parameters
    ----------
    curves : dict from label to (runs, T)
        Of `bandits.regret`, a row a run.
    exponents : dict from label to Interval
        Of `bandits.growth_exponent`.
    title : str, optional
    ax : Axes, optional
    """
    with framed(
        ax,
        title=title or "Regret on the synthetic bandit",
        xlabel="round T",
        ylabel="cumulative regret",
    ) as ax:
        for (label, runs), colour in zip(curves.items(), PALETTE):
            # Evenly on the log scale, where single rounds would crowd the right end, an interval
            # each.
            rounds = np.unique(np.geomspace(10, runs.shape[1], 60).astype(int))
            # Rounds count from 1, columns from 0.
            centre, half = np.array([mean_interval(runs[:, t - 1]) for t in rounds]).T
            exponent = exponents[label]
            power = f"$T^{{{exponent.estimate:.2f}}}$ [{exponent.low:.2f}, {exponent.high:.2f}]"
            ax.plot(
                rounds,
                centre,
                color=colour,
                label=f"{plain(label)} ({seeds([len(runs)])})\n{power}",
            )
            low = np.maximum(centre - half, 1e-3)  # a logarithm needs a number above 0
            ax.fill_between(rounds, low, centre + half, color=colour, alpha=0.2, lw=0)
        ax.set(xscale="log", yscale="log")
    return ax


def bound_growth(frame: pd.DataFrame, *, title: str | None = None, ax: Axes | None = None) -> Axes:
    """What the bound of CBS's theorem 5.4 is made of, by rounds, log-log.

    A bound above the line y = T says nothing: no policy can lose more than 1 a round.

    Parameters
    ----------
    frame : DataFrame
        Of `bandits.bound_parts`.
    title : str, optional
    ax : Axes, optional
    """
    names = {
        "d": "effective dimension d",
        "S": "norm S of the reward",
        "bound": "bound, constants 1",
    }
    with framed(
        ax,
        title=title or "The parts of theorem 5.4's bound",
        xlabel="rounds T",
        ylabel="value",
    ) as ax:
        for name, colour, marker in zip(names, PALETTE, MARKERS):
            ax.plot(frame.index, frame[name], color=colour, marker=marker, ms=5, label=names[name])
        ax.plot(
            frame.index,
            frame.index,
            color=SOFT,
            lw=1,
            ls=":",
            label="T, the worst\npossible regret",
        )
        ax.set(xscale="log", yscale="log")
        # The numbers of rounds that were computed, in place of powers of ten.
        ax.set_xticks(frame.index, frame.index)
        ax.minorticks_off()
    return ax


def fidelity(
    means: pd.DataFrame,
    *,
    y: str = "cosine",
    title: str | None = None,
    legend: str | None = "outside",
    ax: Axes | None = None,
) -> Axes:
    """What selectors leave of a gradient, by the share of rollouts kept, a line a rule.

    Parameters
    ----------
    means : DataFrame
        Of `gradients.fidelity_means`.
    y : {"cosine", "norm_ratio", "gradient"}
        The first two have their interval over problems.
    title : str, optional
    legend : {"outside", "above", None}
    ax : Axes, optional
    """
    one_of("y", y, FIDELITY_LABELS)
    _check_not_empty("means", means)
    with framed(
        ax,
        title=title or f"What selectors leave of a gradient ({means['n'].max()} problems)",
        xlabel="share of the rollouts kept",
        ylabel=FIDELITY_LABELS[y],
        legend=legend,
    ) as ax:
        if y == "norm_ratio":
            ax.axhline(1, color=SOFT, lw=1)
        rules = means.groupby("rule", sort=False)
        for i, (rule, part) in enumerate(rules):
            part = part.sort_values("kept")
            # The share of problems with a gradient has no interval.
            half = part[f"{y}_half"] if f"{y}_half" in part else None
            # Rules are drawn side by side where their shares agree.
            x = part["kept"] + 0.007 * (i - (len(rules) - 1) / 2)
            ax.errorbar(
                x,
                part[y],
                half,
                fmt=f"{MARKERS[i]}-",
                ms=max(8 - i, 5),
                color=PALETTE[i],
                capsize=2,
                elinewidth=1,
                label=plain(rule),
            )
        ax.set(xlim=(0, 1.03), ylim=(0, None))
    return ax


def _check_not_empty(name: str, frame: pd.DataFrame) -> None:
    if frame.empty:
        raise ValueError(f"{name}: it is empty; no problem had enough right and wrong rollouts")
