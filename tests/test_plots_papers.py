"""Figures of the paper notebooks: what is drawn is what the table says."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from workbench.plots import papers as pp


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


TABLE = pd.DataFrame({"n": [3, 3, 2], "mean": [0.3, 0.35, 0.2], "half": [0.01, 0.02, 0.05], "difference": [np.nan, 0.05, -0.1],
                      "low": [np.nan, 0.02, -0.3], "high": [np.nan, 0.08, 0.1]}, index=["grpo", "pods", "cbs"])  # fmt: skip


def rows(ax):
    return [text.get_text() for text in ax.get_yticklabels()]


def test_panels_are_side_by_side():
    axes = pp.panels(3, width=2, height=1)
    assert (
        len(axes) == 3
        and axes[0].figure is axes[2].figure
        and axes[0].figure.get_size_inches().tolist() == [6, 1]
    )


def test_dots_name_their_rows_and_n():
    ax = pp.dots(TABLE, reference="grpo", label="avg@8")
    assert rows(ax) == ["grpo (n = 3)", "pods (n = 3)", "cbs (n = 2)"]
    drawn = ax.containers[0].lines[0]
    assert drawn.get_xdata().tolist() == [0.3, 0.35, 0.2] and drawn.get_ydata().tolist() == [
        2,
        1,
        0,
    ]


def test_differences_leave_the_baseline_out_and_show_which_are_clear():
    ax = pp.differences(TABLE, baseline="grpo")
    assert rows(ax) == ["pods (n = 3)", "cbs (n = 2)"]
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert [dot.get_markerfacecolor() == "white" for dot in dots] == [False, True]


def test_stacked_bars_add_up():
    ax = pp.stacked(
        pd.DataFrame(
            {"generate": [1.0, 2], "verify": [0.0, 0], "update": [3.0, 1]}, index=["a", "b"]
        )
    )
    assert len(ax.containers) == 2
    assert (
        sum(bars[0].get_width() for bars in ax.containers) == 4 and ax.containers[1][1].get_x() == 2
    )


def test_ordered_columns_may_have_a_palette_of_their_own():
    table = pd.DataFrame({"hard": [1.0], "easy": [2.0]}, index=["a"])
    bars = {name: pp.stacked(table, palette=name).containers for name in (None, "viridis")}
    plain, ordered = (
        [bar[0].get_facecolor() for bar in containers] for containers in bars.values()
    )
    assert plain != ordered and len(set(ordered)) == 2


def test_sweep_ticks_are_the_values_tried():
    ax = pp.sweep({"pods": pd.DataFrame({"mean": [1, 2], "half": [0.1, 0.1]}, index=[8, 32])})
    assert [text.get_text() for text in ax.get_xticklabels()] == [
        "8",
        "32",
    ] and ax.get_legend() is None


def test_heatmap_leaves_nan_empty():
    ax = pp.heatmap(
        pd.DataFrame([[1.0, np.nan], [0.5, -0.25]], index=["x", "y"], columns=["p", "q"]),
        diverging=True,
    )
    assert [text.get_text() for text in ax.texts] == ["1.00", "0.50", "-0.25"]


def test_counts_name_the_largest():
    ax = pp.counts({"knapsack": np.array([2, 2, 93]), "grpo": np.array([8, 8])})
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "knapsack (largest 93)",
        "grpo (largest 8)",
    ]


@pytest.mark.parametrize("largest, width", [(10, 1), (59, 1), (60, 2), (150, 3)])
def test_bars_of_counts_stand_for_equally_many_numbers(largest, width):
    ax = pp.counts({"knapsack": np.arange(largest + 1)}, log=False)
    heights = [bar.get_height() for bar in ax.patches]
    assert set(heights[:-1]) == {width} and sum(heights) == largest + 1


def test_trajectories_draw_each_series():
    ax = pp.trajectories({"grpo": pd.Series([0, 0.5], index=[0, 1])})
    assert ax.lines[0].get_ydata().tolist() == [0, 0.5]


def test_a_grid_has_a_column_for_each_problem():
    index = pd.MultiIndex.from_product([["p", "q"], [0, 1]], names=["problem", "visit"])
    table = pd.DataFrame({"rate": [0, 0.5, 1, 1], "rollouts": [8, 20, 8, 2]}, index=index)
    axes = pp.trajectory_grid({"grpo": table, "knapsack": table}, ["q", "p"])
    assert (
        axes.shape == (2, 2) and axes[0, 0].get_title("left") == "q" and len(axes[1, 1].lines) == 2
    )
    assert axes[1, 1].lines[0].get_ydata().tolist() == [8, 20] and axes[1, 0].get_ylim()[1] > 20


def test_waterfall_ends_where_the_savings_lead():
    ax = pp.waterfall(10, pd.Series({"rejection": 4.0, "rescue": -1.0}), names=("GRPO", "AERO"))
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == [10, 4, 1, 7] and [bar.get_x() for bar in ax.patches] == [0, 6, 6, 0]
    assert rows(ax) == ["GRPO", "rejection", "rescue", "AERO"]


def test_relation_colours_by_group_and_names_the_correlation():
    frame = pd.DataFrame({"x": [0, 1, 2], "y": [4, 2, 0], "who": ["a", "b", "a"]})
    ax = pp.relation(frame, "x", "y", "who")
    assert [line.get_xdata().tolist() for line in ax.lines] == [
        [0, 2],
        [1],
    ] and "r = -1.00 over 3" in ax.get_title(loc="left")


SPENT = pd.DataFrame({"sampled": [8, 8.2, 32, 16], "trained": [2.0, 2.1, 4, 2], "kind": ["baseline"] * 2 + ["paper"] * 2},
                     index=["GRPO", "GSPO", "PODS", "a method of so very long a name as this"])  # fmt: skip
GAINED = pd.DataFrame(
    {"value": [1.0, -1], "low": [0.5, -3], "high": [1.5, 1], "n": [5, 4.0]}, index=["GSPO", "PODS"]
)


def test_spending_names_every_dot_once():
    ax = pp.spending(SPENT, label="map")
    names = [text for text in ax.texts if "/" not in text.get_text() and text.get_text() != "all"]
    assert [text.get_text() for text in names] == [
        "PODS",
        "GSPO, GRPO",
        "a method of so very long a name as this",
    ]
    assert [text.get_ha() for text in names] == [
        "left",
        "right",
        "right",
    ]  # right of the dot is a third one, and the end
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    assert dots[0].get_xdata().tolist() == [8, 8.2] and dots[1].get_ydata().tolist() == [4, 2]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["baseline", "paper"]


def test_gains_are_filled_where_the_interval_is_clear():
    axes = pp.gains({"equal time": GAINED, "equal FLOPs": GAINED}, SPENT["kind"], label="points")
    assert (
        rows(axes[0]) == ["GSPO", "PODS"]
        and rows(axes[1]) == ["", ""]
        and axes[1].get_xlabel() == "points (n = 4 or 5 seeds)"
    )
    dots = [line for line in axes[0].lines if line.get_marker() == "o"]
    assert [dot.get_markerfacecolor() == "white" for dot in dots] == [False, True]
    assert dots[0].get_color() != dots[1].get_color()


def test_spent_and_gained_are_one_figure():
    axes = pp.spent_and_gained(SPENT, {"equal time": GAINED, "equal FLOPs": GAINED}, label="points")
    assert len({ax.figure for ax in axes}) == 1 and [ax.get_title("left") for ax in axes[1:]] == [
        "equal time",
        "equal FLOPs",
    ]


def test_verdicts_are_coloured_and_papers_named_once():
    table = pd.DataFrame({"claim": ["saves", "gains", "gains"], "published": "1", "here": "2",
                          "verdict": ["agrees", "cannot tell", "disagrees"]}, index=["PODS", "PODS", "CBS"])  # fmt: skip
    ax = pp.verdicts(table)
    assert [text.get_text() for text in ax.texts].count("PODS") == 1 and len(ax.patches) == 3
    assert len({patch.get_facecolor() for patch in ax.patches}) == 3
