"""Figures of the HTML report: SVG whose colours are variables of the page, so that one drawing serves light and dark."""

import hashlib
import io
import re

import numpy as np
import pandas as pd

from workbench.analysis import comparisons
from workbench.plots import curves as plots
from workbench.plots import papers as plots_papers

SIZE = (5.6, 3.3)
INK = {
    "#ffffff": "var(--panel)",
    "#000000": "var(--text)",
    "#262626": "var(--text)",
    "#333333": "var(--text)",
    "#666666": "var(--soft)",
    "#e6e6e6": "var(--grid)",
}
LABELS_APART = 4  # labels up to which a figure for each is drawn


def curves(groups):
    """Held-out accuracy and what changes with it: a list of dicts with svg and caption. groups: label to records."""
    evaluated = {
        label: [r for r in group if len(r.accuracy()) > 1] for label, group in groups.items()
    }
    evaluated = {label: group for label, group in evaluated.items() if group}
    figures = []
    if evaluated:
        figures += [
            _curve(
                evaluated, "round", "accuracy", "Held-out accuracy of sampled responses by round."
            ),
            _curve(
                evaluated,
                "seconds",
                "accuracy",
                "The same against training time; evaluation is not counted.",
            ),
            _curve(evaluated, "round", "greedy", "Held-out accuracy of greedy responses by round."),
        ]
        if len(evaluated) == 1:
            [group] = evaluated.values()
            figures.append(
                _figure(
                    lambda ax: plots.accuracy_by_level(group, ax=ax),
                    "Held-out accuracy by difficulty level",
                    "Held-out accuracy by difficulty level, at the first and the last evaluation.",
                )
            )
    shown = {
        "reward": "Mean reward of a round's rollouts.",
        "entropy": "Mean entropy of the sampling distribution.",
        "length": "Mean length of responses.",
    }
    return figures + [
        _curve(kept, "round", y, f"{caption} Moving mean of 10 rounds.", smooth=10)
        for y, caption in shown.items()
        if (kept := _having(groups, y))
    ]


def mechanisms(groups):
    """Where gradients came from, and phases: a list of dicts with svg and caption. groups: label to records."""
    figures = []
    shown = {
        "effective_gradient_ratio": "Share of the selected rollouts whose advantage is not zero.",
        "trained": "Rollouts trained on in a round.",
        "gradient_norm": "Norm of the gradient before clipping.",
    }
    for y, caption in shown.items():
        if kept := _having(groups, y):
            figures.append(
                _curve(kept, "round", y, f"{caption} Moving mean of 10 rounds.", smooth=10)
            )
    return [*figures, *_shares(groups), _phases(groups)] if groups else []


def _having(groups, y):
    """Labels whose runs all have numbers in the column."""
    return {
        label: group
        for label, group in groups.items()
        if all(
            y in r.rounds and r.rounds[y].dtype.kind in "iuf" and r.rounds[y].notna().any()
            for r in group
        )
    }


def _curve(groups, x, y, caption, smooth=1):
    ends = [
        (label, *np.mean([_ends(record, y) for record in group], axis=0))
        for label, group in groups.items()
    ]
    name = plots.AXIS_LABELS.get(y, f"rollouts {y} in a round")
    alt = f"{name} by {plots.AXIS_LABELS[x]}: " + "; ".join(
        f"{label} from {a:.3g} to {b:.3g}" for label, a, b in ends
    )

    def draw(ax):
        plots.learning_curve(
            {plain(label): group for label, group in groups.items()}, x=x, y=y, smooth=smooth, ax=ax
        )
        ax.set_ylabel(name)
        place_legend(ax, len(groups))

    return _figure(draw, alt, caption)


def place_legend(ax, labels):
    """Above the axes, or beside them when there are many labels: never on a curve."""
    if labels == 1:
        ax.get_legend().remove()
    elif labels <= LABELS_APART:
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize="small")
    else:
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")


def _ends(record, y):
    """First and last value; of a column of rounds, means over the first and last ten."""
    if y in ("accuracy", "greedy"):
        return record.accuracy()[y].iloc[[0, -1]].to_numpy()
    return np.array([record.rounds[y].head(10).mean(), record.rounds[y].tail(10).mean()])


def _shares(groups):
    """Problems all right, mixed, all wrong: by round for few labels, their means for many."""
    means = comparisons.means(groups, ["all_positive", "all_negative"])
    right, wrong = means["all_positive", "mean"], means["all_negative", "mean"]
    table = pd.DataFrame({"all right": right, "mixed": 1 - right - wrong, "all wrong": wrong})
    alts = {
        label: f"{label}: on average "
        + ", ".join(f"{share:.0%} of problems {name}" for name, share in row.items())
        for label, row in table.iterrows()
    }
    if len(groups) > LABELS_APART:
        return [
            _figure(
                lambda ax: plots_papers.stacked(
                    table.rename(index=plain), label="share of problems", ax=ax
                ),
                "; ".join(alts.values()),
                "Problems whose rollouts were all right, mixed, all wrong; means over rounds.",
            )
        ]
    return [
        _figure(
            lambda ax, group=group: plots.zero_gradient(group, ax=ax),
            alts[label],
            f"{label}: problems whose rollouts were all right, mixed, all wrong.",
        )
        for label, group in groups.items()
    ]


def _phases(groups):
    table = comparisons.phases(groups)
    alt = "Seconds a round by phase: " + "; ".join(
        f"{label} " + ", ".join(f"{phase} {seconds:.3g}" for phase, seconds in row.items())
        for label, row in table.iterrows()
    )
    named = table.rename(index=plain)
    return _figure(
        lambda ax: plots_papers.stacked(named, label="seconds a round", ax=ax),
        alt,
        "Seconds a round by phase.",
    )


def plain(label):
    """A label that Matplotlib draws as it is: dollars are no mathematics, and a leading _ would hide it from legends."""
    return re.sub(r"^_", "\N{ZERO WIDTH SPACE}_", label.replace("$", r"\$"))


def _figure(draw, alt, caption):
    from markupsafe import Markup, escape

    with plots.style() as colours:
        figure, ax = plots.plt.subplots(figsize=SIZE, layout="constrained")
        draw(ax)
        ax.set_title("")
        buffer = io.StringIO()
        figure.savefig(
            buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
        plots.plt.close(figure)
    return {
        "svg": Markup(_inline(buffer.getvalue(), escape(alt), colours.as_hex())),
        "caption": caption,
    }


def _inline(svg, alt, palette):
    """Matplotlib's SVG as an element of a page: without prologue and sizes, ids of its own, colours by variable."""
    own = hashlib.blake2b(svg.encode(), digest_size=6).hexdigest()
    body, box = svg[svg.index("<svg") :], re.search(r'viewBox="[^"]+"', svg)[0]
    body = f'<svg {box} role="img" aria-label="{alt}">' + body[body.index(">") + 1 :]
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>f{own}-", body)
    colours = INK | {colour: f"var(--c{i})" for i, colour in enumerate(palette)}
    return re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda found: colours.get(found[0], found[0]), body)
