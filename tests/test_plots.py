"""Each figure function draws on the Axes it is given and returns it; on real records."""

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import pandas as pd
import pytest

import workbench as wb
from workbench import plots

RECORDS = [wb.load(path) for path in sorted(wb.labs.shipped("runs/tiny-grpo").glob("seed-*"))[:3]]
FIGURES = {
    "learning_curve": lambda ax: plots.learning_curve(RECORDS, ax=ax),
    "learning_curve of a column": lambda ax: plots.learning_curve(
        RECORDS, x="flops", y="entropy", smooth=9, ax=ax
    ),
    "learning_curve by label": lambda ax: plots.learning_curve(
        {"a": RECORDS[0], "b": RECORDS[1:]}, x="seconds", ax=ax
    ),
    "sampled_and_greedy": lambda ax: plots.sampled_and_greedy(RECORDS, ax=ax),
    "accuracy_by_level": lambda ax: plots.accuracy_by_level(RECORDS, ax=ax),
    "zero_gradient": lambda ax: plots.zero_gradient(RECORDS[0], ax=ax),
    "success_rates": lambda ax: plots.success_rates([0, 0.5, 1, 1], ax=ax),
    "pretraining": lambda ax: plots.pretraining(
        pd.DataFrame({"step": [1, 2], "loss": [2.0, 1.0]}), ax=ax
    ),
    "by_level": lambda ax: plots.by_level(pd.DataFrame({"x": [0.1, 0.2]}, index=[1, 2]), ax=ax),
}


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
def test_draws_on_the_axes_given(draw):
    _, ax = plt.subplots()
    assert draw(ax) is ax and ax.has_data() and (ax.get_xlabel() or ax.get_title())
    assert draw(None) is not ax, "without one it makes its own"


def test_the_number_of_seeds_is_shown():
    ax = plots.learning_curve(RECORDS)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["grpo (n = 3)"]


@pytest.mark.parametrize(
    "figure", [lambda: plots.overview(RECORDS[0]), lambda: plots.summary(RECORDS)]
)
def test_whole_figures(figure):
    assert all(ax.has_data() for ax in figure().axes)


def test_what_is_spent_is_summed_along_x_alone():
    rounds = RECORDS[0].rounds
    line = plots.learning_curve(RECORDS[0], x="rollouts", y="rollouts").lines[0]
    assert line.get_xdata().tolist() == rounds["rollouts"].cumsum().tolist()
    assert line.get_ydata().tolist() == rounds["rollouts"].tolist()


def test_unknown_columns_are_named():
    with pytest.raises(ValueError, match="'magic'"):
        plots.learning_curve(RECORDS, y="magic")


def test_watch_outside_a_notebook_is_just_the_rounds(lab):
    run = wb.Run(lab, wb.methods.grpo(4), problems_per_round=4, evaluate_every=0)
    assert [row["round"] for row in plots.watch(run, 2)] == [1, 2]
