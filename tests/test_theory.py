"""The slow and literal functions against cases worked out by hand, and the figures of them."""

from itertools import permutations

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers import bandits, gradients, theorems
from papers import theory_plots as figures
from papers.intervals import Interval
from workbench import plots
from workbench.rollouts import Rollouts
from workbench.rules.budgets import (
    expected_rollouts,
    info_gain,
    knapsack,
    nonzero_gradient_probability,
    value,
)

TENTHS = np.arange(1, 10) / 10


class TestSubsets:
    def test_by_hand(self):
        assert theorems.best_variance([0, 1, 3], 2) == 2.25
        assert theorems.best_variance([0, 1, 3], 1) == 0
        assert theorems.split_variances([0, 0, 0, 1], 2) == pytest.approx([0, 0.25, 0.25])

    @pytest.mark.slow
    @given(st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.data())
    def test_the_best_split_is_the_best_subset(self, rewards, data):
        m = data.draw(st.integers(1, len(rewards)))
        best = theorems.best_variance(rewards, m)
        assert theorems.split_variances(rewards, m).max() == pytest.approx(best, abs=1e-12)


class TestNeededRollouts:
    def test_by_hand(self):
        # p = 1/2: 1 - 2/2^N is .875 at 4 and .9375 at 5.
        # p = .01: .99^229 is .10011, .99^230 is .09911.
        assert theorems.least_rollouts([0.5, 0.01, 0.99]).tolist() == [5, 230, 230]
        assert theorems.least_rollouts(0.5, alpha=0.5) == 2

    @given(st.floats(0.02, 0.98), st.floats(0.1, 0.95))
    def test_least_is_the_least(self, p, alpha):
        n = int(theorems.least_rollouts(p, alpha))
        assert nonzero_gradient_probability(n, p) >= alpha
        assert n == 2 or nonzero_gradient_probability(n - 1, p) < alpha

    def test_dice(self):
        waits = theorems.first_mixed(0.2, 20_000, np.random.default_rng(0))
        assert waits.min() == 2
        assert waits.mean() == pytest.approx(expected_rollouts(0.2), rel=0.03)
        assert np.mean(waits == 2) == pytest.approx(2 * 0.2 * 0.8, abs=0.01)

    def test_table(self):
        frame = theorems.needed_rollouts([0.1, 0.5], np.random.default_rng(0), runs=4000)
        assert frame.loc[0.5, ["least", "expected"]].tolist() == [5, 3]
        assert ((frame["simulated"] - frame["expected"]).abs() < 2 * frame["half"]).all()

    @pytest.mark.parametrize("right", range(6))
    def test_observed_is_the_mean_over_all_orders(self, right):
        second = [True] * right + [False] * (5 - right)

        def wait(order):
            """Rollouts until both outcomes were seen; 6 where that does not happen."""
            mixed = [i + 1 for i in range(5) if len(set(order[: i + 1])) == 2]
            return mixed[0] if mixed else 6

        waits = [wait(order) for order in permutations(second)]
        frame = theorems.observed_rollouts([[True, False, False, False, False, *second]])
        assert frame["rate"].tolist() == [0.2]
        assert frame["needed"][0] == pytest.approx(np.mean(waits))


class TestAllocations:
    def test_published_and_optimal(self):
        published = [15, 12, 9, 7, 7, 7, 7, 6, 2]
        assert theorems.best_allocation(TENTHS, 72).tolist() == published
        assert knapsack(TENTHS, 72).tolist() == published
        free = theorems.best_allocation(TENTHS, 72, minimum_counts=False)
        assert free.tolist() == [14, 12, 9, 7, 7, 7, 7, 6, 3]
        without = theorems.best_allocation(TENTHS, 72, info_gain=False)
        assert without.tolist() == [12, 9, 7, 6, 5, 6, 7, 9, 11]

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=4), st.integers(1, 3), st.data())
    def test_dynamic_programming_and_greed_agree(self, p, low, data):
        up = data.draw(st.integers(low, 7))
        total = data.draw(st.integers(low * len(p), up * len(p)))
        counts = theorems.best_allocation(p, total, low, up)
        assert counts.sum() == total
        assert counts.min() >= low
        assert counts.max() <= up
        greedy = knapsack(p, total, low=low, up=up, fallback=False)
        assert value(counts, p).sum() == pytest.approx(value(greedy, p).sum(), abs=1e-12)

    def test_missed_optima(self):
        lost = theorems.missed_optima(3, 40, np.random.default_rng(0))
        assert lost["greedy"].abs().max() < 1e-12
        assert 0.1 < (lost["released"] > 1e-12).mean() < 0.6


class TestSuccessGain:
    def test_by_hand(self):
        # Two actions, p = 1/2, rate 1: the logits move by +1/2 and -1/2.
        expected = 1 / (1 + np.exp(-1)) - 0.5
        assert theorems.success_gain([0.5], [1.0]) == pytest.approx([expected])

    @given(st.floats(0.01, 0.99), st.lists(st.floats(0.01, 1), min_size=1, max_size=20))
    def test_small_rates_give_the_sum_that_proposition_2_leaves_out(self, p, shares):
        rivals = np.array(shares) / np.sum(shares)
        expected = info_gain(p) * (1 + np.sum(rivals**2))
        found = theorems.success_gain([p], rivals, 1e-5)[0]
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theorems.best_variance([1, 2], 3), "m=3"),
        (lambda: theorems.split_variances([1, 2], 0), "m=0"),
        (lambda: theorems.least_rollouts([0.5, 1.0]), "above 0 and below 1"),
        (lambda: theorems.least_rollouts(0.5, 1), "alpha=1"),
        (lambda: theorems.first_mixed(0, 5, np.random.default_rng(0)), "p=0"),
        (lambda: theorems.first_mixed(0.5, 5, 0), "rng=0"),
        (lambda: theorems.observed_rollouts([True, False]), "correct"),
        (lambda: theorems.best_allocation([0.5], 1), "total=1"),
        (lambda: theorems.success_gain([0.5, 1], [1.0]), "p=1"),
        (lambda: theorems.success_gain([0.5], [0.5]), "sum to 1"),
        (lambda: theorems.success_gain([0.5], [1.0], 0), "rate=0"),
        (lambda: theorems.best_allocation([0.5, np.nan], 8), "1 NaN"),
        (lambda: figures.fidelity(pd.DataFrame(), y="loss"), "y='loss'"),
        (lambda: figures.fidelity(pd.DataFrame()), "means"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_bound_parts():
    parts = bandits.bound_parts(bandits.Bandit(arms=3), [4, 8])
    assert parts.index.tolist() == [4, 8]
    assert parts["d"].is_monotonic_increasing
    d, s, bound = parts.loc[4]
    assert bound == pytest.approx(2 * (d + s * np.sqrt(d)) + 2)


def fidelity_frame():
    rows = []
    for rule in ("A", "B"):
        rows += [(rule, kept, kept, 0.1, 1.0, 0.1, 0.5, 7) for kept in (0.5, 1.0)]
    names = ["rule", "kept", "cosine", "cosine_half", "norm_ratio", "norm_ratio_half"]
    return pd.DataFrame(rows, columns=[*names, "gradient", "n"])


def balance_frame():
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(8, 8)) for _ in range(2)]
    products = {f"p{i}": part @ part.T for i, part in enumerate(rows)}
    correct = [True] * 4 + [False] * 4
    rollouts = Rollouts(problem=["p0"] * 8 + ["p1"] * 8, correct=correct * 2)
    return gradients.norms_by_balance(products, rollouts, 2, [1, 3])


def needed_frame():
    return theorems.needed_rollouts(TENTHS, np.random.default_rng(0), runs=50)


GAINS = pd.DataFrame({"a": TENTHS, "p(1-p)^2": TENTHS}, index=TENTHS)
BOUNDS = pd.DataFrame({"squared": [1, 2], "bound": [1, 3], "case": "a"})
CURVES = {"a": np.cumsum(np.ones((2, 20)), 1)}
EXPONENTS = {"a": Interval(1.0, 0.9, 1.1)}

FIGURES = {
    "split_variance": lambda ax: figures.split_variance(TENTHS, (2, 4), ax=ax),
    "needed_rollouts": lambda ax: figures.needed_rollouts(needed_frame(), ax=ax),
    "needed_rollouts, observed": lambda ax: figures.needed_rollouts(
        needed_frame(), theorems.observed_rollouts([[True, False] * 4]), ax=ax
    ),
    "success_gain": lambda ax: figures.success_gain(GAINS, ax=ax),
    "norm_bound": lambda ax: figures.norm_bound(BOUNDS, ax=ax),
    "norms_by_balance": lambda ax: figures.norms_by_balance(balance_frame(), 2, ax=ax),
    "regret": lambda ax: figures.regret(CURVES, EXPONENTS, ax=ax),
    "bound_growth": lambda ax: figures.bound_growth(
        bandits.bound_parts(bandits.Bandit(arms=2), [2, 4]), ax=ax
    ),
}
for measure in figures.FIDELITY_LABELS:
    FIGURES[f"fidelity {measure}"] = lambda ax, y=measure: figures.fidelity(
        fidelity_frame(), y=y, ax=ax
    )


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
def test_draws_on_the_axes_given(draw):
    _, ax = plt.subplots()
    assert draw(ax) is ax
    assert ax.has_data()
    assert ax.get_xlabel()
    assert ax.get_title("left")
    assert ax.get_legend()
    assert draw(None) is not ax, "without one it makes its own"


def test_a_title_is_the_finding():
    ax = figures.regret(CURVES, EXPONENTS, title="Regret grows as the rounds")
    assert ax.get_title("left") == "Regret grows as the rounds"


@pytest.mark.slow
def test_saved_figures_are_the_same_twice(tmp_path):
    for name in "ab":
        plots.save({name: FIGURES["split_variance"](None)}, tmp_path)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
