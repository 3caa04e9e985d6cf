"""Pictures of the papers' theory and of gradients, one function a figure, in the style of `plots`.

Each takes arrays or frames, draws on a given or new `Axes` and returns it. Bars and bands are 95 % intervals.
"""

import matplotlib.pyplot as plt
import numpy as np

from workbench.analysis.metrics import mean_interval
from workbench.plots.curves import style
from workbench.theory.theorems import split_variances

FIDELITY_LABELS = {"cosine": "cosine with the reference gradient", "norm_ratio": "norm / norm of the reference",
                   "gradient": "share of problems left with a gradient"}  # fmt: skip
MARKERS = "osD^vP*X"


def split_variance(rewards, sizes, *, ax=None):
    """Variance of the k highest and m-k lowest of rewards (n,) by the share k/m from the top, a curve for each m of sizes.

    The best split of each is filled (PODS, lemma 3.1).
    """
    with style() as colours:
        ax = ax or _new_axes()
        for m, colour, marker in zip(sizes, colours, MARKERS):
            variances, share = split_variances(rewards, m), np.arange(m + 1) / m
            best = variances.argmax()
            ax.plot(
                share, variances, color=colour, marker=marker, mfc="white", ms=5, label=f"m = {m}"
            )
            ax.plot(share[best], variances[best], color=colour, marker=marker, ms=8)
        ax.set(
            xlabel="share of the m rollouts taken from the top",
            ylabel="variance of the rewards",
            title=f"Every split of {len(rewards)} rewards; filled: the largest variance",
        )
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def needed_rollouts(frame, observed=None, *, ax=None):
    """Rollouts that a gradient needs by success rate: frame (rates x quantities), index the rates.

    Of `theory.needed_rollouts` at alpha=0.9; of the simulated means some fifteen are drawn (Knapsack RL, figure 3).
    observed: problems of `theory.observed_rollouts`, drawn in place of the simulated means.
    """
    with style() as colours:
        ax = ax or _new_axes()
        ax.step(
            frame.index,
            frame["least"],
            where="mid",
            color=colours[0],
            label="fewest for 90 %, exact",
        )
        ax.plot(
            frame.index, frame["formula"], "--", color=colours[1], label="for 90 %, proposition 1"
        )
        ax.plot(frame.index, frame["expected"], color=colours[2], label="until the first, expected")
        if observed is None:
            some = frame.iloc[:: max(1, len(frame) // 14)]
            ax.errorbar(some.index, some["simulated"], some["half"], fmt="o", ms=5, color=colours[3], capsize=3,
                        label="simulated")  # fmt: skip
        else:
            ax.plot(observed["rate"], observed["needed"], "o", ms=5, color=colours[3], alpha=0.7,
                    label=f"until the first, measured\n(n = {len(observed)} problems)")  # fmt: skip
        ax.axhline(8, color="#666666", lw=1, ls=":")
        ax.annotate(
            "N = 8", (0.5, 8), (0, 3), textcoords="offset points", ha="center", color="#444444"
        )
        ax.set(
            yscale="log",
            xlabel="success rate of the problem",
            ylabel="rollouts",
            title="Rollouts that a gradient needs",
        )
        ax.set_yticks([2, 5, 10, 20, 50, 100, 200], [2, 5, 10, 20, 50, 100, 200])
        ax.minorticks_off()
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def success_gain(frame, *, ax=None):
    """Gain in success rate by one update: frame (rates x cases); the column "p(1-p)^2" is drawn dashed (figure 8)."""
    formula = "p(1-p)^2"
    with style() as colours:
        ax = ax or _new_axes()
        for name, colour in zip([name for name in frame if name != formula], colours):
            ax.plot(frame.index, frame[name], color=colour, label=name)
        ax.plot(frame.index, frame[formula], "--", color="black", label="$p(1-p)^2$")
        ax.set(
            xlabel="success rate before the update",
            ylabel="gain / learning rate",
            ylim=(0, None),
            title="What one update on a right answer gains",
        )
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def norm_bound(frame, *, ax=None):
    """Squared gradient norms over the bound of AERO's theorem 4.1, by the bound: `gradients.norm_bounds`.

    Above 1 the bound is broken. Each case's legend entry has its number of groups.
    """
    _not_empty("frame", frame)
    with style() as colours:
        ax = ax or _new_axes()
        ax.axhline(1, color="#666666", lw=1)
        for i, (case, part) in enumerate(frame.groupby("case", sort=False)):
            ax.plot(part["bound"], part["squared"] / part["bound"], MARKERS[i], color=colours[i], mfc="none", ms=9 - 2 * i,
                    mew=1.3, label=f"{case} (n = {len(part)})")  # fmt: skip
        ax.set(
            xscale="log",
            xlabel=r"bound $cm/(c+m)^2\,|v_C - v_F|^2$",
            ylabel="squared norm / bound",
            ylim=(0, None),
            title="AERO, theorem 4.1 on the tiny model's gradients",
        )
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def norms_by_balance(frame, c, *, ax=None):
    """Squared norms by the number of wrong rollouts beside c right ones, of `gradients.norms_by_balance`.

    Lines: the factor of the theorem, |E G|^2 (which it fits), and E|G|^2 with its interval over problems.
    """
    _not_empty("frame", frame)
    with style() as colours:
        ax = ax or _new_axes()
        means = frame.groupby("m")["group"].apply(mean_interval)
        centre, half = np.array(means.tolist()).T
        factor = frame.groupby("m")[["factor", "signal"]].mean()
        ax.plot(factor.index, factor["factor"], color=colours[0], label="factor $cm/(c+m)^2$")
        ax.plot(
            factor.index,
            factor["signal"],
            "o",
            color=colours[0],
            mfc="white",
            label=r"mean gradient, $|E\,G|^2$",
        )
        ax.errorbar(
            means.index,
            centre,
            half,
            fmt="s-",
            ms=5,
            color=colours[1],
            capsize=3,
            label=r"one group, $E|G|^2$",
        )
        ax.axvline(c, color="#666666", lw=1, ls=":")
        ax.set(
            xticks=means.index,
            xlabel=f"wrong rollouts m beside c = {c} right ones",
            ylabel=f"relative to m = {c}",
        )
        ax.set(
            ylim=(0, None),
            title=f"Balance and the gradient's size (n = {frame['problem'].nunique()} problems)",
        )
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def regret(curves, exponents, *, ax=None):
    """Mean cumulative regret by round, log-log: curves label -> (runs, T), exponents label -> `Interval`.

    Bands are 95 % Student intervals over runs.
    """
    with style() as colours:
        ax = ax or _new_axes()
        for (label, runs), colour in zip(curves.items(), colours):
            rounds = np.unique(np.geomspace(10, runs.shape[1], 60).astype(int))
            centre, half = np.array([mean_interval(runs[:, t - 1]) for t in rounds]).T
            found = exponents[label]
            text = f"{label} (n = {len(runs)}): $T^{{{found.estimate:.2f}}}$ [{found.low:.2f}, {found.high:.2f}]"
            ax.plot(rounds, centre, color=colour, label=text)
            ax.fill_between(
                rounds,
                np.maximum(centre - half, 1e-3),
                centre + half,
                color=colour,
                alpha=0.2,
                lw=0,
            )
        ax.set(
            xscale="log",
            yscale="log",
            xlabel="round T",
            ylabel="cumulative regret",
            title="Regret on the synthetic bandit",
        )
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def bound_growth(frame, *, ax=None):
    """What the bound of CBS's theorem 5.4 is made of, by rounds, log-log: `bandits.bound_parts`.

    A regret above the line y = T says nothing: no policy can lose more than 1 a round.
    """
    with style() as colours:
        ax = ax or _new_axes()
        names = {
            "d": "effective dimension d",
            "S": "norm S of the reward",
            "bound": "bound, constants 1",
        }
        for name, colour, marker in zip(names, colours, MARKERS):
            ax.plot(frame.index, frame[name], color=colour, marker=marker, ms=5, label=names[name])
        ax.plot(
            frame.index,
            frame.index,
            color="#666666",
            lw=1,
            ls=":",
            label="T, the worst possible regret",
        )
        ax.set(
            xscale="log",
            yscale="log",
            xlabel="rounds T",
            ylabel="value",
            title="The parts of theorem 5.4's bound",
        )
        ax.set_xticks(frame.index, frame.index)
        ax.minorticks_off()
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def fidelity(means, *, y="cosine", label=None, ax=None):
    """What selectors leave of a gradient by the share of rollouts kept: `gradients.fidelity_means`, a line a rule.

    y: cosine, norm_ratio (both with their interval over problems) or gradient. label: what the reference is, for the title.
    """
    if y not in FIDELITY_LABELS:
        raise ValueError(f"y={y!r}: allowed are {', '.join(FIDELITY_LABELS)}")
    _not_empty("means", means)
    with style() as colours:
        ax = ax or _new_axes()
        if y == "norm_ratio":
            ax.axhline(1, color="#666666", lw=1)
        rules = means.groupby("rule", sort=False)
        for i, (rule, part) in enumerate(rules):
            part = part.sort_values("kept")
            half = part[f"{y}_half"] if f"{y}_half" in part else None
            x = part["kept"] + 0.007 * (i - (len(rules) - 1) / 2)  # side by side where shares agree
            ax.errorbar(x, part[y], half, fmt=f"{MARKERS[i]}-", ms=max(8 - i, 5), color=colours[i], capsize=2, elinewidth=1,
                        label=rule)  # fmt: skip
        ax.set(
            xlabel="share of the rollouts kept",
            ylabel=FIDELITY_LABELS[y],
            xlim=(0, 1.03),
            ylim=(0, None),
            title=f"{label or 'Selectors'} (n = {means['n'].max()} problems)",
        )
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def _not_empty(name, frame):
    if frame.empty:
        raise ValueError(f"{name}: it is empty; no problem had enough right and wrong rollouts")


def _new_axes():
    return plt.subplots(figsize=(7.2, 3.6), layout="constrained")[1]
