"""Figures of the paper notebooks: what is drawn is what the table says."""

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from written_records import curve

from papers import plots as papers
from papers.verdicts import VERDICTS, Claim, Finding, judge
from workbench import plots
from workbench.analysis.intervals import Measurement
from workbench.analysis.runs import load_all
from workbench.plots.style import NAMED


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


TABLE = pd.DataFrame(
    {
        "n": [3, 3, 2],
        "mean": [0.3, 0.35, 0.2],
        "half": [0.01, 0.02, 0.05],
        "difference": [np.nan, 0.05, -0.1],
        "low": [np.nan, 0.02, -0.3],
        "high": [np.nan, 0.08, 0.1],
    },
    index=["grpo", "pods", "cbs"],
)


def rows(ax):
    return [text.get_text() for text in ax.get_yticklabels()]


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def dots(ax):
    return [line for line in ax.lines if line.get_marker() == "o"]


def hollow(ax):
    """Which dots are not filled."""
    paper = matplotlib.colors.to_hex(ax.get_facecolor())
    return [matplotlib.colors.to_hex(dot.get_markerfacecolor()) == paper for dot in dots(ax)]


class TestRows:
    def test_dots_name_their_rows_and_n(self):
        ax = papers.dots(TABLE, reference="grpo", label="avg@8")
        assert rows(ax) == ["grpo (3 seeds)", "pods (3 seeds)", "cbs (2 seeds)"]
        points = ax.containers[0].lines[0]
        assert points.get_xdata().tolist() == [0.3, 0.35, 0.2]
        assert points.get_ydata().tolist() == [2, 1, 0]

    def test_differences_name_the_pairs_that_they_are_of(self):
        table = pd.DataFrame(
            {"n": [5], "pairs": [2], "difference": [1.0], "low": [-1.0], "high": [3.0]},
            index=["other"],
        )
        [tick] = plots.differences(table).get_yticklabels()
        assert tick.get_text() == "other (2 seeds)"

    def test_differences_leave_the_baseline_out_and_show_which_are_clear(self):
        ax = plots.differences(TABLE, baseline="grpo")
        assert rows(ax) == ["pods (3 seeds)", "cbs (2 seeds)"]
        assert hollow(ax) == [False, True]
        assert ax.get_title("left") == "Against grpo"

    def test_stacked_bars_add_up(self):
        table = pd.DataFrame(
            {"generate": [1.0, 2], "verify": [0.0, 0], "update": [3.0, 1]}, index=["a", "b"]
        )
        ax = plots.stacked(table, names={"update": "the update"})
        assert len(ax.containers) == 2, "a part that nobody has is left out"
        assert sum(bars[0].get_width() for bars in ax.containers) == 4
        assert ax.containers[1][1].get_x() == 2
        assert legend(ax) == ["generate", "the update"]

    def test_parts_with_a_meaning_keep_their_colour(self):
        table = pd.DataFrame({"all wrong": [1.0], "all right": [2.0]}, index=["a"])
        containers = plots.stacked(table).containers
        colours = [matplotlib.colors.to_hex(bar[0].get_facecolor()) for bar in containers]
        assert colours == [NAMED["all wrong"], NAMED["all right"]]

    def test_waterfall_ends_where_the_savings_lead(self):
        parts = pd.Series({"rejection": 4.0, "rescue": -1.0})
        ax = papers.waterfall(10, parts, names=("GRPO", "AERO"))
        bars = [bar for bar in ax.patches if bar.get_width()]
        assert [bar.get_width() for bar in bars] == [10, 4, 1, 7]
        assert [bar.get_x() for bar in bars] == [0, 6, 6, 0]
        assert rows(ax) == ["GRPO", "rejection", "rescue", "AERO"]
        texts = [text.get_text() for text in ax.texts]
        assert texts == ["10", "-4.0", "+1.0", "7"]

    def test_waterfall_shows_the_interval_of_each_step(self):
        parts = pd.DataFrame({"value": [4.0], "low": [3.0], "high": [5.0]}, index=["rejection"])
        ax = papers.waterfall(10, parts)
        assert "-4.0 [-5.0, -3.0]" in [text.get_text() for text in ax.texts]
        assert ax.lines[0].get_xdata().tolist() == [5, 7]


class TestLeaderboard:
    ROWS = pd.DataFrame(
        {
            "ratio": [np.nan, 0.5, 1.2],
            "low": [np.nan, 0.4, 0.9],
            "high": [np.nan, 0.6, np.inf],
            "pairs": [np.nan, 5, 5],
        },
        index=["grpo", "pods", "cbs"],
    )

    def test_the_cheapest_stands_above(self):
        [ax] = papers.leaderboard(self.ROWS, baseline="grpo")
        assert rows(ax) == ["pods", "cbs"]
        assert ax.figure.get_supxlabel().endswith("; 5 seeds")
        assert [dot.get_xdata()[0] for dot in dots(ax)] == [0.5, 1.2]
        assert hollow(ax) == [False, True]

    def test_unequal_numbers_of_seeds_stand_at_the_names(self):
        [ax] = papers.leaderboard(self.ROWS.assign(pairs=[np.nan, 5, 3]), baseline="grpo")
        assert rows(ax) == ["pods (5 seeds)", "cbs (3 seeds)"]
        assert "seeds" not in ax.figure.get_supxlabel()

    def test_colours_may_be_those_of_the_outcome(self):
        table = self.ROWS.assign(low=[np.nan, 0.4, 1.1])
        [ax] = papers.leaderboard(table, baseline="grpo", by_outcome=True)
        assert [dot.get_color() for dot in dots(ax)] == [NAMED["better"], NAMED["worse"]]
        [ax] = papers.leaderboard(self.ROWS, baseline="grpo", by_outcome=True)
        assert dots(ax)[1].get_color() == NAMED["open"]

    def test_dots_follow_the_verdict_after_holm(self):
        table = self.ROWS.assign(high=[np.nan, 0.6, 1.5], low=[np.nan, 0.4, 1.02])
        table = table.assign(p=[np.nan, 0.001, 0.04])
        [ax] = papers.leaderboard(table, baseline="grpo", by_outcome=True)
        assert hollow(ax) == [False, False]
        third = pd.DataFrame({"ratio": 0.9, "low": 0.8, "high": 1.1, "p": 0.3}, index=["vip"])
        [ax] = papers.leaderboard(pd.concat([table, third]), baseline="grpo", by_outcome=True)
        # Among three, the p-value of cbs is corrected to .08, whatever its own interval says.
        assert hollow(ax) == [False, True, True]

    def test_an_open_end_is_an_arrow(self):
        [ax] = papers.leaderboard(self.ROWS, baseline="grpo")
        arrows = [text for text in ax.texts if getattr(text, "arrow_patch", None) is not None]
        assert len(arrows) == 1
        assert arrows[0].xy[0] > 1.2
        assert ax.get_xlim()[1] < 10, "an infinite end does not set the axis"

    def test_panels_have_one_order(self):
        other = self.ROWS.assign(ratio=[np.nan, 2.0, 0.7])
        axes = papers.leaderboard({"rollouts": self.ROWS, "seconds": other}, baseline="grpo")
        assert [dot.get_xdata()[0] for dot in dots(axes[1])] == [2.0, 0.7]
        assert rows(axes[1]) == ["", ""]
        assert axes[0].get_xlim() == axes[1].get_xlim()


class TestCurves:
    def test_sweep_ticks_are_the_values_tried(self):
        series = {"pods": pd.DataFrame({"mean": [1, 2], "half": [0.1, 0.1]}, index=[8, 32])}
        ax = papers.sweep(series)
        assert [text.get_text() for text in ax.get_xticklabels()] == ["8", "32"]
        assert ax.get_legend() is None, "one series needs none"
        assert legend(papers.sweep(series | {"grpo": series["pods"]})) == ["pods", "grpo"]

    def test_bands_are_means_with_their_interval(self):
        table = pd.DataFrame({"mean": [0.1, 0.2], "half": [0.05, 0.1], "n": [10, 9]}, index=[0, 2])
        ax = papers.bands({"PODS": table})
        assert ax.lines[0].get_ydata().tolist() == [0.1, 0.2]
        assert legend(ax) == ["PODS (9 or 10 seeds)"]
        edge = ax.collections[0].get_paths()[0].vertices
        assert edge[edge[:, 0] == 2][:, 1].max() == pytest.approx(0.3)

    def test_trajectories_draw_each_series(self):
        ax = papers.trajectories({"grpo": pd.Series([0, 0.5], index=[0, 1])})
        assert ax.lines[0].get_ydata().tolist() == [0, 0.5]

    def test_a_grid_has_a_column_for_each_problem(self):
        index = pd.MultiIndex.from_product([["chains/p", "q"], [0, 1]], names=["problem", "visit"])
        table = pd.DataFrame({"rate": [0, 0.5, 1, 1], "rollouts": [8, 20, 8, 2]}, index=index)
        axes = papers.trajectory_grid({"grpo": table, "knapsack": table}, ["q", "chains/p"])
        assert axes.shape == (2, 2)
        assert [ax.get_title("left") for ax in axes[0]] == ["q", "p"]
        assert len(axes[1, 1].lines) == 2
        assert axes[1, 1].lines[0].get_ydata().tolist() == [8, 20]
        assert axes[1, 0].get_ylim()[1] > 20


class TestPanels:
    @pytest.fixture
    def groups(self, tmp_path):
        for label, seeds in (("grpo", 2), ("pods", 3)):
            for seed in range(seeds):
                curve(tmp_path, label, seed, [0.2, 0.3 + 0.01 * seed, 0.4])
        return load_all(tmp_path)

    def test_seeds_stand_behind_the_title_where_all_have_as_many(self, groups):
        one = {"records": {"grpo": groups["grpo"]}}
        axes = papers.curve_panels(
            {"by rounds": one | {"x": "round"}, "by rollouts": one | {"x": "rollouts"}},
            title="It learns",
        )
        [legend] = axes[0].figure.legends
        assert [text.get_text() for text in legend.get_texts()] == ["grpo"]
        assert axes[0].figure.get_suptitle() == "It learns (2 seeds)"
        assert [ax.get_title("left") for ax in axes] == ["by rounds", "by rollouts"]
        assert axes[0].get_ylim() == axes[1].get_ylim()
        assert axes[0].get_ylabel() and not axes[1].get_ylabel()

    def test_or_behind_the_title_of_each_panel_where_panels_differ(self, groups):
        panels = {name: {"records": {"it": group}} for name, group in groups.items()}
        axes = papers.curve_panels(panels, title="Two learn")
        [legend] = axes[0].figure.legends
        assert [text.get_text() for text in legend.get_texts()] == ["it"]
        titles = [ax.get_title("left") for ax in axes]
        assert titles == ["grpo (2 seeds)", "pods (3 seeds)"]
        assert axes[0].figure.get_suptitle() == "Two learn"

    def test_sweeps_begin_at_zero_and_share_a_legend(self):
        table = pd.DataFrame({"mean": [5, 6], "half": [1, 1]}, index=[1, 2])
        axes = papers.sweep_panels(
            {"hard": {"knapsack": table}, "easy": {"knapsack": table}},
            title="More",
            xlabel="visit",
            ylabel="rollouts",
            reference=8,
        )
        assert [ax.get_ylim()[0] for ax in axes] == [0, 0]
        assert len(axes[0].figure.legends) == 1
        assert axes[1].lines[-1].get_ydata()[0] == 8


class TestDistributions:
    def test_counts_name_the_largest(self):
        ax = papers.counts({"knapsack": np.array([2, 2, 93]), "grpo": np.array([8, 8])})
        assert legend(ax) == ["knapsack (largest 93)", "grpo (largest 8)"]

    @pytest.mark.parametrize("largest, width", [(10, 1), (59, 1), (60, 2), (150, 3)])
    def test_bars_of_counts_stand_for_equally_many_numbers(self, largest, width):
        ax = papers.counts({"knapsack": np.arange(largest + 1)}, log=False)
        heights = [bar.get_height() for bar in ax.patches]
        assert set(heights[:-1]) == {width}
        assert sum(heights) == largest + 1

    def test_relation_colours_by_group_and_names_the_correlation(self):
        frame = pd.DataFrame({"x": [0, 1, 2], "y": [4, 2, 0], "who": ["a", "b", "a"]})
        ax = papers.relation(frame, "x", "y", "who")
        assert [line.get_xdata().tolist() for line in ax.lines] == [[0, 2], [1]]
        assert [text.get_text() for text in ax.texts] == ["r = -1.00 over 3 points"]

    def test_heatmap_leaves_nan_empty(self):
        table = pd.DataFrame([[1.0, np.nan], [0.5, -0.25]], index=["x", "y"], columns=["p", "q"])
        ax = plots.heatmap(table, diverging=True)
        assert [text.get_text() for text in ax.texts] == ["1.00", "0.50", "-0.25"]

    @pytest.mark.slow
    def test_transitions_are_percent_of_a_row_on_one_scale(self):
        table = pd.DataFrame(np.eye(5))
        axes = plots.transitions({"grpo": table, "knapsack": 0.5 * table, "equal": table})
        assert [ax.get_title("left") for ax in axes] == ["grpo", "knapsack", "equal"]
        assert axes[1].texts[0].get_text() == "50"
        assert {ax.collections[0].get_clim() for ax in axes} == {(0, 100)}

    @pytest.mark.slow
    def test_correlation_maps_stand_above_their_spread(self):
        mean = pd.DataFrame([[0.5, -0.5]], index=["grpo"], columns=["reward", "age"])
        spread = pd.DataFrame({"ratio": [1.0, 3.0]}, index=["reward", "age"])
        axes = papers.correlation_maps(mean, mean.abs(), spread=spread, counts=[5])
        assert len(axes) == 3
        assert "5 seeds" in axes[0].get_title("left")
        assert [text.get_text() for text in axes[2].texts] == ["1.0", "3.0"]
        # The darkest cell is the largest ratio, however large it is.
        assert axes[2].collections[0].get_clim() == (0, 3)
        assert len(papers.correlation_maps(mean, mean.abs())) == 2
        several = papers.correlation_maps(mean, mean.abs(), spread={"CBS": spread, "CBS*": spread})
        assert [text.get_text() for text in several[2].texts] == ["1.0", "3.0"] * 2


SPENT = pd.DataFrame(
    {
        "sampled": [8, 8.2, 32, 16],
        "trained": [2.0, 2.1, 4, 2],
        "kind": ["baseline", "baseline", "paper", "paper"],
    },
    index=["GRPO", "GSPO", "PODS", "a method of so very long a name as this"],
)
GAINED = pd.DataFrame(
    {"value": [1.0, -1], "low": [0.5, -3], "high": [1.5, 1], "n": [5, 4.0]}, index=["GSPO", "PODS"]
)


class TestSpentAndGained:
    def test_every_dot_is_named_once(self):
        ax = papers.sampled_and_trained(SPENT, title="map")
        shares = set(papers.SHARES.values())
        names = [text.get_text() for text in ax.texts if text.get_text() not in shares]
        assert names == ["PODS", "GSPO, GRPO", "a method of so very long a name as this"]
        drawn = [line for line in ax.lines if line.get_marker() in "os" and len(line.get_xdata())]
        assert sorted(line.get_xdata()[0] for line in drawn) == [8, 8.2, 16, 32]
        assert legend(ax) == ["baseline", "paper"]

    def test_gains_are_filled_where_the_interval_is_clear(self):
        axes = papers.gains({"equal time": GAINED, "equal FLOPs": GAINED}, label="points")
        assert rows(axes[0]) == ["GSPO", "PODS"]
        assert rows(axes[1]) == ["", ""]
        assert axes[0].figure.get_supxlabel() == "points (4 or 5 seeds)"
        axes = papers.gains({"equal time": GAINED}, label="points (hollow: it holds 0)")
        assert axes[0].figure.get_supxlabel() == "points (hollow: it holds 0; 4 or 5 seeds)"
        assert hollow(axes[0]) == [False, True]
        first, second = dots(axes[0])
        assert first.get_color() != second.get_color()

    def test_both_are_one_figure(self):
        tables = {"equal time": GAINED, "equal FLOPs": GAINED}
        axes = papers.spent_and_gained(SPENT, tables, titles=("spent", "gained"), label="points")
        assert len({ax.get_figure(root=True) for ax in axes}) == 1
        # Both halves have a title of their own, in one style.
        upper, lower = (axes[place].get_figure(root=False) for place in (0, 1))
        assert [upper.get_suptitle(), lower.get_suptitle()] == ["spent", "gained"]
        assert [ax.get_title("left") for ax in axes[1:]] == ["equal time", "equal FLOPs"]


def verdict_table():
    """A claim of each verdict, by intervals of half-width .25 around a value."""
    claims = []
    findings = []
    for paper, value in (("PODS", 3.0), ("PODS", 1.0), ("AERO", 0.0), ("CBS", -2.0)):
        claims.append(Claim(paper, f"{value:g} points", published="+2", sizes=(2.0,)))
        findings.append(Finding(Measurement(value + 0.1 * np.array([-1.0, 0.0, 1.0]))))
    claims.append(Claim("CBS", "not measured", published="+2"))
    findings.append(Finding(reason="no runs of it"))
    claims.append(Claim("CBS", "follows", by_definition=True))
    findings.append(Finding(Measurement(np.array([0.9, 1.0, 1.1]))))
    return judge(claims, findings)


def test_verdicts_are_coloured_and_papers_named_once():
    table = verdict_table()
    assert [text.partition(":")[0] for text in table["verdict"]] == list(VERDICTS)
    ax = papers.verdicts(table, title="Six claims")
    [drawn] = ax.tables
    cells = drawn.get_celld()
    texts = [cell.get_text().get_text() for cell in cells.values()]
    assert [texts.count(paper) for paper in ("PODS", "AERO", "CBS")] == [1, 1, 1]
    last = max(column for _, column in cells)
    boxes = [cells[row + 1, last] for row in range(len(table))]
    colours = [matplotlib.colors.to_hex(box.get_facecolor()) for box in boxes]
    assert colours == [papers.VERDICTS[name] for name in VERDICTS]
    assert "+3.0 [2.8, 3.2]" in texts
    assert "cannot tell" in texts, "the reason stands in the table"


def test_verdicts_are_drawn_from_the_written_table(tmp_path):
    from papers import verdicts

    verdicts.write(verdict_table(), tmp_path / "verdicts.csv")
    frame = verdicts.read(tmp_path / "verdicts.csv")
    [drawn] = papers.verdicts(frame).tables
    assert len({row for row, _ in drawn.get_celld()}) == 7, "six claims and the head"
