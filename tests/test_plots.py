"""Figures of runs and of costs: what is drawn is what the records say, in one house style."""

import re
import warnings

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text
from written_records import curve, write

import workbench as wb
from examples.base_model import figures
from papers import plots as papers
from papers import theory_plots as theory
from papers.intervals import Interval
from workbench import plots
from workbench.analysis.cost import CostModel
from workbench.analysis.runs import load_all
from workbench.plots.style import DARK, METHODS, looks, plain, spread

RECORDS = [wb.load(wb.labs.shipped("runs/tiny-grpo") / f"seed-{seed}") for seed in range(3)]
FIGURES = {
    "learning_curve": lambda ax: plots.learning_curve(RECORDS, ax=ax),
    "learning_curve of a column": lambda ax: plots.learning_curve(
        RECORDS, x="flops", y="entropy", smooth=9, ax=ax
    ),
    "learning_curve by label": lambda ax: plots.learning_curve(
        {"a": RECORDS[0], "b": RECORDS[1:]}, x="seconds", ax=ax
    ),
    "learning_curve at a price": lambda ax: plots.learning_curve(
        RECORDS, x=CostModel(0.5), legend="direct", ax=ax
    ),
    "sampled_and_greedy": lambda ax: plots.sampled_and_greedy(RECORDS, ax=ax),
    "accuracy_by_level": lambda ax: plots.accuracy_by_level(RECORDS, ax=ax),
    "zero_gradient": lambda ax: plots.zero_gradient(RECORDS[0], ax=ax),
    "success_rates": lambda ax: figures.success_rates([0, 0.5, 1, 1], ax=ax),
    "pretraining": lambda ax: figures.pretraining(
        pd.DataFrame({"step": [1, 2], "loss": [2.0, 1.0]}), ax=ax
    ),
    "by_level": lambda ax: plots.by_level(pd.DataFrame({"x": [0.1, 0.2]}, index=[1, 2]), ax=ax),
}

PRICES = pd.DataFrame(
    {
        "label": ["pods"] * 3,
        "price": [0.1, 1.0, 10.0],
        "ratio": [0.5, 1.0, 2.0],
        "low": [0.4, 0.8, 1.6],
        "high": [0.6, 1.2, 2.5],
        "n": [5, 5, 5],
    }
)
BREAK_EVEN = pd.DataFrame(
    {"price": [1.0], "low": [0.7], "high": [1.5], "cheaper_below": [True], "n": [5]}, index=["pods"]
)
RESOLVED = pd.DataFrame({"half_width": [9.0, 5.0], "at_80": [12.0, 7.0]}, index=[3, 8])

# What other people's records may call a method. `TestPlain` has every kind of text.
HOSTILE = "_hidden $x$ and $\\frac{1$"


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def texts(figure):
    """All texts of a figure that are not empty."""
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def drawn(ax):
    """Render the whole figure; Matplotlib parses its texts only now."""
    figure = ax.get_figure(root=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as a layout without room for the axes
        # Characters that a font lacks are drawn as boxes, which is all one can ask for.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.canvas.draw()
    return figure


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
def test_draws_on_the_axes_given(draw):
    _, ax = plt.subplots()
    assert draw(ax) is ax
    assert ax.has_data()
    assert ax.get_xlabel() or ax.get_title("left")
    assert draw(None) is not ax, "without one it makes its own"


@pytest.mark.parametrize(
    "draw", [plots.sampled_and_greedy, plots.accuracy_by_level, plots.zero_gradient]
)
def test_a_mean_over_seeds_says_of_how_many(draw):
    several = draw(RECORDS, title="A title that does not say it")
    assert several.get_xlabel().endswith(" (3 seeds)")
    assert "seed" not in draw(RECORDS[0], title="One run").get_xlabel()


class TestLearningCurves:
    def test_the_number_of_seeds_is_shown(self):
        ax = plots.learning_curve(RECORDS)
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["tiny-grpo (3 seeds)"]

    def test_what_is_spent_is_summed_along_x_alone(self):
        rounds = RECORDS[0].rounds
        line = plots.learning_curve(RECORDS[0], x="rollouts", y="rollouts").lines[0]
        assert line.get_xdata().tolist() == rounds["rollouts"].cumsum().tolist()
        assert line.get_ydata().tolist() == rounds["rollouts"].tolist()

    def test_the_mean_of_the_seeds_is_drawn_with_its_interval(self, tmp_path):
        """Seeds at .2 and .4 at the end: mean .3, half-width 12.706 x .1."""
        for seed, end in enumerate((0.2, 0.4)):
            curve(tmp_path, "a", seed, [0.1, end])
        ax = plots.learning_curve(load_all(tmp_path))
        assert ax.lines[0].get_ydata().tolist() == pytest.approx([0.1, 0.3])
        edge = ax.collections[0].get_paths()[0].vertices
        last = edge[edge[:, 0] == 1][:, 1]
        assert (last.min(), last.max()) == pytest.approx((0.3 - 1.2706, 0.3 + 1.2706), rel=1e-3)

    def test_curves_can_end_where_the_shortest_does(self, tmp_path):
        curve(tmp_path, "a", 0, [0.1, 0.2, 0.3], rollouts=10)
        curve(tmp_path, "b", 0, [0.1, 0.2, 0.3], rollouts=30)
        groups = load_all(tmp_path)
        whole = plots.learning_curve(groups, x="rollouts")
        assert [line.get_xdata()[-1] for line in whole.lines] == [20, 60]
        common = plots.learning_curve(groups, x="rollouts", until="common")
        assert [line.get_xdata()[-1] for line in common.lines] == [20, 20]
        assert common.lines[1].get_ydata()[-1] == pytest.approx(0.1 + 0.1 * 2 / 3)

    def test_a_method_keeps_its_colour_in_every_figure(self, tmp_path):
        for label in ("grpo", "pods"):
            curve(tmp_path, label, 0, [0.1, 0.2])
        groups = load_all(tmp_path)
        both = plots.learning_curve(groups).lines
        alone = plots.learning_curve({"pods": groups["pods"]}).lines
        assert both[1].get_color() == alone[0].get_color() == METHODS["pods"]
        assert both[0].get_color() != both[1].get_color()

    def test_a_second_call_on_the_same_axes_keeps_the_first_curve_s_colour(self, tmp_path):
        for label in ("mine", "other"):
            curve(tmp_path, label, 0, [0.1, 0.2])
        groups = load_all(tmp_path)
        ax = plots.learning_curve({"mine": groups["mine"]})
        plots.learning_curve({"other": groups["other"]}, ax=ax)
        first, second = ax.lines
        assert first.get_color() != second.get_color()

    def test_a_new_line_looks_unlike_those_that_are_there(self):
        ax = plots.learning_curve({"alpha": RECORDS[0]})
        plots.learning_curve({"pods": RECORDS[1]}, ax=ax)
        styles = {(line.get_color(), line.get_linestyle()) for line in ax.lines}
        assert len(styles) == 2

    def test_a_column_without_numbers_has_no_label_at_its_end(self):
        drawn(plots.learning_curve({"grpo": RECORDS[0]}, y="kl", legend="direct"))

    def test_seeds_that_share_no_stretch_have_no_mean(self, tmp_path):
        for seed, rollouts in enumerate(((10, 10), (50,))):
            scores = ((0, 0.25), (len(rollouts), 0.75))
            columns = {"reward": [0.5] * len(rollouts)}
            options = {"rollouts": rollouts, "scores": scores, "columns": columns}
            write(tmp_path, "a", seed, **options)
        ax = plots.learning_curve(load_all(tmp_path), x="rollouts", y="reward")
        [line] = ax.lines
        assert not len(line.get_xdata())

    def test_a_record_without_rounds_is_named(self, tmp_path):
        write(tmp_path, "a", rollouts=(), scores=((0, 0.25),))
        with pytest.raises(ValueError, match="it has no round yet"):
            plots.learning_curve(load_all(tmp_path), y="reward")

    def test_arms_with_other_held_out_problems_are_not_drawn_together(self, tmp_path):
        write(tmp_path, "a")
        write(tmp_path, "b", problems=("p", "r"))
        with pytest.raises(ValueError, match="other held-out problems"):
            plots.learning_curve(load_all(tmp_path))
        plots.learning_curve(load_all(tmp_path), y="rollouts")

    def test_every_method_stands_beside_the_baseline(self, tmp_path):
        for label in ("grpo", "pods", "aero"):
            curve(tmp_path, label, 0, [0.1, 0.2, 0.3])
        axes = papers.course_grid(load_all(tmp_path), "grpo", title="It learns")
        assert [ax.get_title("left") for ax in axes] == ["aero (1 seed)", "pods (1 seed)"]
        assert all(len(ax.lines) == 2 for ax in axes)


class TestOneSetting:
    def test_bars_by_level_are_means(self, tmp_path):
        write(tmp_path, "a", scores=((0, 0.25), (2, 0.75)))
        ax = plots.accuracy_by_level(load_all(tmp_path)["a"])
        heights = [bar.get_height() for bars in ax.containers for bar in bars]
        assert heights == [0.25, 0.25, 0.75, 0.75]
        with pytest.raises(ValueError, match="rounds=7"):
            plots.accuracy_by_level(load_all(tmp_path)["a"], rounds=[7])

    def test_bars_are_of_all_seeds_or_not_there(self, tmp_path):
        write(tmp_path, "a", 0, scores=((0, 0.25), (1, 0.5), (2, 0.75)))
        write(tmp_path, "a", 1, scores=((0, 0.25), (1, 0.5)), rollouts=(10,))
        group = load_all(tmp_path)["a"]
        texts_of_bars = [bar.get_label() for bar in plots.accuracy_by_level(group).containers]
        assert texts_of_bars == ["round 0", "round 1"]
        with pytest.raises(ValueError, match="rounds"):
            plots.accuracy_by_level(group, rounds=[0, 2])

    def test_shares_of_groups_add_up_to_one(self, tmp_path):
        columns = {"all_negative": [0.5, 0.25], "all_positive": [0.25, 0.25]}
        write(tmp_path, "a", columns=columns)
        ax = plots.zero_gradient(load_all(tmp_path)["a"], smooth=1)
        tops = [area.get_paths()[0].vertices[:, 1].max() for area in ax.collections]
        assert tops == pytest.approx([0.25, 0.75, 1.0])

    def test_success_rates_have_bars_of_their_own_at_both_ends(self):
        ax = figures.success_rates([0, 0, 0.5, 1])
        ends = {bars.get_label(): bars[0].get_height() for bars in ax.containers[1:]}
        assert ends == {"never solved": 2, "always solved": 1}
        with pytest.raises(ValueError, match="rates"):
            figures.success_rates([2.0])

    @pytest.mark.parametrize(
        "figure", [lambda: plots.overview(RECORDS[0]), lambda: plots.overview(RECORDS)]
    )
    def test_whole_figures(self, figure):
        assert all(ax.has_data() for ax in figure().axes)

    def test_watch_outside_a_notebook_is_just_the_rounds(self, lab):
        run = wb.Run(lab, wb.methods.grpo(4), problems_per_round=4, evaluate_every=0)
        assert [row["round"] for row in plots.watch(run, 2)] == [1, 2]


class TestCosts:
    def test_prices_show_ratios_break_even_and_machines(self):
        machines = {"this CPU": (0.3, 0.2, 0.4), "FLOPs": 1 / 3}
        ax = papers.prices(PRICES, baseline="grpo", break_even=BREAK_EVEN, machines=machines)
        lines = {str(line.get_label()): line for line in ax.lines}
        assert lines["pods (5 seeds)"].get_ydata().tolist() == [0.5, 1, 2]
        dots = [line for line in ax.lines if line.get_marker() == "o"]
        assert [dot.get_xdata()[0] for dot in dots] == [1.0]
        found = texts(drawn(ax))
        assert {"this CPU", "FLOPs", "cheaper than grpo"} <= set(found)

    @pytest.mark.parametrize("width", [4, 12])
    def test_a_part_of_a_figure_has_a_legend(self, width, tmp_path):
        curve(tmp_path, "grpo", 0, [0.1, 0.2, 0.3])
        left, _ = plt.figure(figsize=(width, 3)).subfigures(1, 2)
        ax = plots.learning_curve(load_all(tmp_path), ax=left.subplots())
        [legend] = ax.figure.legends or [ax.get_legend()]
        assert [text.get_text() for text in legend.get_texts()] == ["grpo (1 seed)"]
        # It is written with the whole figure.
        plots.save({"axes": ax, "part": ax.figure}, tmp_path / "drawn")
        assert "grpo (1 seed)" in (tmp_path / "drawn" / "axes.svg").read_text()
        assert (tmp_path / "drawn" / "part.svg").exists()

    @pytest.mark.slow
    @pytest.mark.parametrize("width", [3.25, 7])
    @pytest.mark.parametrize(
        ("arms", "label"), [(1, "a"), (20, "a"), (3, "a label with words " * 2)]
    )
    @pytest.mark.parametrize("kind", ["outside", "above", "direct", "stacked", "rows", "profile"])
    def test_no_label_is_cut_off(self, kind, arms, label, width):
        names = [f"{label}{number}" for number in range(arms)]
        shares = pd.DataFrame({"generate": 0.3, "verify": 0.2, "update": 0.5}, index=names)
        table = pd.DataFrame({"difference": 0.1, "low": 0.0, "high": 0.2, "n": 3}, index=names)
        counts = pd.DataFrame({"problem": names, "samples": 4, "correct": 1})
        curves = {
            legend: lambda legend=legend: plots.learning_curve(
                dict.fromkeys(names, RECORDS[0]), legend=legend, width=width
            )
            for legend in ("outside", "above", "direct")
        }
        tables = {
            "stacked": lambda: plots.stacked(shares, width=width),
            "rows": lambda: plots.differences(table, width=width),
            "profile": lambda: wb.Profile(counts).plot(width=width),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of a layout that has no room
            ax = (curves | tables)[kind]()
            figure = ax.figure
            figure.canvas.draw()
        legends = [each for each in (*figure.legends, ax.get_legend()) if each]
        labels = [*ax.texts, *(text for each in legends for text in each.texts)]
        if kind in ("stacked", "rows"):
            labels += ax.get_yticklabels()
        drawn_labels = [each for each in labels if each.get_text()]
        boxes = [each.get_window_extent() for each in drawn_labels]
        assert min(box.x0 for box in boxes) >= -2 and min(box.y0 for box in boxes) >= -2
        assert max(box.x1 for box in boxes) <= figure.bbox.x1 + 2
        assert max(box.y1 for box in boxes) <= figure.bbox.y1 + 2
        assert ax.bbox.width > 0.2 * figure.bbox.width and ax.bbox.height > 90
        assert not any(each.get_window_extent().overlaps(ax.bbox) for each in legends)

    @pytest.mark.parametrize("first", [10, 9])
    def test_a_mean_goes_on_to_where_the_first_of_its_seeds_ends(self, first, tmp_path):
        """Seeds of a method that decides how much it samples end at other numbers of rollouts."""
        curve(tmp_path, "a", 0, [0.1, 0.3, 0.5], rollouts=first)
        curve(tmp_path, "a", 1, [0.2, 0.4, 0.6], rollouts=19 - first)
        line = plots.learning_curve(load_all(tmp_path), x="rollouts").lines[0]
        assert line.get_xdata()[-1] == 18
        assert line.get_ydata()[-1] == pytest.approx((0.6 + 0.48) / 2, abs=0.06)

    def test_a_narrow_axis_has_more_than_one_tick(self):
        """All ratios between .9 and 1.3: the usual ticks would leave 1 alone."""
        ratios = pd.DataFrame({"ratio": [1.0, 1.1, 1.2], "low": 0.95, "high": [1.1, 1.2, 1.3]})
        table = pd.DataFrame({"label": "pods", "price": [0.1, 1.0, 10.0], "n": 5}).join(ratios)
        ax = plots.prices(table, baseline="grpo")
        low, high = ax.get_ylim()
        shown = [tick for tick in ax.get_yticks() if low <= tick <= high]
        assert len(shown) >= 3

    def test_an_interval_that_is_open_is_not_drawn_to_infinity(self):
        table = PRICES.assign(high=np.inf)
        ax = plots.prices(table, baseline="grpo")
        assert ax.get_ylim()[1] < 10
        drawn(ax)

    def test_resolution_has_a_line_for_the_half_width_and_one_for_power(self):
        ax = papers.resolution({"early": RESOLVED, "clean": 2 * RESOLVED})
        drawn_lines = [line for line in ax.lines if len(line.get_xdata())]
        assert [line.get_ydata().tolist() for line in drawn_lines[:2]] == [[9, 5], [12, 7]]
        assert ax.get_xticks().tolist() == [3, 8]


class TestStyle:
    @given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
    def test_labels_are_moved_apart_and_keep_their_order(self, heights):
        moved = spread(heights, 0.1)
        order = np.argsort(heights, kind="stable")
        assert (np.diff(moved[order]) >= 0.1 - 1e-9).all()
        assert moved.mean() == pytest.approx(np.mean(heights))
        within = spread(heights, 0.1, top=1.0)
        assert within.max() <= 1
        assert (np.diff(within[order]) >= 0.1 - 1e-9).all()

    def test_methods_share_a_colour_and_differ_in_dashes(self):
        found = looks(["GRPO", "pods", "PODS n = 128", "mine", "yours"])
        assert found["pods"].colour == found["PODS n = 128"].colour
        assert found["pods"].dash != found["PODS n = 128"].dash
        assert len({found[name].colour for name in ("GRPO", "pods", "mine", "yours")}) == 4

    def test_settings_come_back(self):
        before = plt.rcParams["font.size"], plt.rcParams["axes.grid"]
        with plots.style():
            assert plt.rcParams["axes.grid"]
        assert (plt.rcParams["font.size"], plt.rcParams["axes.grid"]) == before

    def test_panels_share_a_title_and_a_legend(self):
        left, _ = papers.panels(2)
        left.plot([0, 1], [0, 1], label="GRPO")
        figure = plots.heading(left, "PODS is ahead", legend=2)
        assert figure is left.figure
        assert figure.get_suptitle() == "PODS is ahead"
        [legend] = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == ["GRPO"]

    def test_saved_figures_follow_the_reader_s_setting(self, tmp_path):
        plots.save({"curve": plots.learning_curve(RECORDS)}, tmp_path)
        text = (tmp_path / "curve.svg").read_text()
        assert "prefers-color-scheme: dark" in text
        assert "<dc:date>" not in text
        with pytest.raises(ValueError, match=r'figures=.*a Mapping is needed, such as {"acc'):
            plots.save(plots.learning_curve(RECORDS), tmp_path)

    def test_a_title_longer_than_the_figure_is_not_cut_off(self, tmp_path):
        widths = []
        for title in ("short", "a title of the axes that is far too long " * 3):
            plots.save({"curve": plots.learning_curve(RECORDS, title=title)}, tmp_path)
            text = (tmp_path / "curve.svg").read_text()
            widths.append(float(re.search(r'<svg[^>]* width="([\d.]+)pt"', text)[1]))
        assert widths[0] < 520
        assert widths[1] > 600
        [ax] = papers.panels(1)
        assert "\n" in plots.heading(ax, "a title of a whole figure " * 5).get_suptitle()

    def test_what_was_drawn_outside_the_style_follows_a_dark_page_too(self, tmp_path):
        """Matplotlib writes no colour for black text, so it would stay black on a dark page."""
        figure, ax = plt.subplots()
        ax.plot([0, 1], [0, 1], color="black", label="a black line")
        ax.set_title("set by hand")
        ax.legend()
        plots.save({"by-hand": ax}, tmp_path)
        text = (tmp_path / "by-hand.svg").read_text()
        [title] = re.findall(r'<text style="([^"]*)"[^>]*>set by hand<', text)
        [label] = re.findall(r'<text style="([^"]*)"[^>]*>a black line<', text)
        assert "fill: #262626" in title
        assert "fill: #262626" in label
        # Clipping paths and glyphs aside, nothing is drawn in black.
        assert "stroke: #000000" not in text
        plt.close(figure)

    def test_numbers_in_cells_keep_their_colour_on_a_dark_page(self, tmp_path):
        """The cells do, so that ink on a light one must not become white."""
        table = pd.DataFrame({"a": [0.0, 1.0]}, index=["light", "dark"])
        plots.save({"map": plots.heatmap(table)}, tmp_path)
        text = (tmp_path / "map.svg").read_text()
        styles = re.findall(r'<text style="([^"]*)"[^>]*>[01]\.00<', text)
        assert len(styles) == 2
        for colour in DARK:
            assert not any(f"fill: {colour}" in style for style in styles)


class TestPlain:
    def test_by_hand(self):
        assert plain("a $x$") == r"a \$x\$"
        assert plain("_a").endswith("_a")
        assert not plain("_a").startswith("_")
        assert plain(8) == "8"
        assert plain("x" * 48) == "x" * 48
        assert plain("x" * 25 + "y" * 25) == "x" * 24 + "…" + "y" * 23

    @given(st.text(alphabet=st.characters(), max_size=100))
    def test_any_text_can_be_drawn_and_stays_as_it_is(self, text):
        once = plain(text)
        assert plain(once) == once
        assert not once.startswith("_")
        assert len(once.replace("\\$", "$")) <= 49, "one more is the space of no width"


@pytest.mark.slow
class TestNamesOfStrangers:
    """Labels, names of methods and names of labs are drawn as they are written."""

    @staticmethod
    def shown(figure, label=HOSTILE):
        # Matplotlib is given an escaped dollar to draw a dollar.
        name = plain(label)
        return any(name in text for text in texts(figure))

    def test_labels_of_curves(self, tmp_path):
        curve(tmp_path, "grpo", 0, [0.1, 0.2, 0.3])
        [record] = load_all(tmp_path)["grpo"]
        groups = {HOSTILE: [record], "grpo": [record]}
        for legend in ("outside", "direct"):
            ax = plots.learning_curve(groups, legend=legend)
            assert self.shown(drawn(ax))
        for baseline in groups:
            axes = papers.course_grid(groups, baseline)
            assert self.shown(drawn(axes[0]))

    def test_names_in_a_manifest(self, tmp_path):
        write(tmp_path, "a", method={"name": HOSTILE}, lab={"lab": HOSTILE})
        [record] = load_all(tmp_path)["a"]
        assert self.shown(drawn(plots.sampled_and_greedy(record)))
        assert self.shown(drawn(plots.accuracy_by_level(record)))

    def test_names_of_rows_and_series(self):
        label = HOSTILE
        table = pd.DataFrame(
            {
                "mean": [0.1, 0.2],
                "half": [0.01, 0.01],
                "difference": [np.nan, 0.1],
                "value": [0.1, 0.2],
                "low": [0.0, 0.05],
                "high": [0.2, 0.3],
                "ratio": [np.nan, 0.5],
                "pairs": [np.nan, 3],
                "n": [3, 3],
            },
            index=["grpo", label],
        )
        curves = {label: table[["mean", "half", "n"]].set_axis([1, 2])}
        parts = pd.DataFrame({label: [1.0, 2.0], "b": [1.0, 1.0]}, index=["grpo", label])
        spent = pd.DataFrame(
            {"sampled": [8.0, 16], "trained": [8.0, 4], "kind": "paper"}, index=["grpo", label]
        )
        figures = [
            papers.dots(table),
            plots.differences(table),
            papers.leaderboard({label: table}, baseline="grpo")[0],
            plots.stacked(parts),
            papers.waterfall(10, pd.Series({label: 4.0})),
            papers.bands(curves),
            papers.sweep(curves | {"b": curves[label]}),
            papers.trajectories({label: pd.Series([0.0, 1.0])}),
            papers.counts({label: np.array([1, 2])}),
            papers.relation(table.assign(by=[label, "b"]), "mean", "half", "by"),
            plots.heatmap(parts),
            papers.gains({label: table})[0],
            papers.sampled_and_trained(spent),
            plots.by_level(parts.set_axis([1, 2])),
            papers.prices(PRICES.assign(label=label), baseline=label, machines={label: 1.0}),
            papers.resolution({label: RESOLVED}),
            theory.regret({label: np.cumsum(np.ones((2, 20)), 1)}, {label: Interval(1, 0.9, 1.1)}),
        ]
        for ax in figures:
            assert self.shown(drawn(ax), label)
