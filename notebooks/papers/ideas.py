"""Two hundred ideas of which five are good: how many winners are luck, with a ledger and without.

`python -m papers.ideas` in `notebooks` simulates a year of a person, or a program, that tries one
idea after the other against one baseline, and writes `data/ledger.csv`. A useless idea costs as
much as the baseline, or a little more. Every trial has pairs of seeds with looks after the fifth
to the twentieth, as the default trial has. It takes three minutes.

In a first world all arms are at their true best rates. In two others each arm misses its best rate
by a little, as tuning on a few seeds does: then a useless idea whose baseline was tuned badly is
better in truth, at the rates that were found. No control of chance can remove that, so it is shown
how much it adds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from papers.looks import statistics
from workbench.analysis.sequential import ALPHA, LOOKS, nominal_levels
from workbench.trials.ledger import level_of

TABLE = Path(__file__).parents[2] / "data" / "ledger.csv"
IDEAS = 200
GOOD = 5
RATIOS = (0.85, 0.8, 0.7)  # what a good idea costs over the baseline
USELESS = (1.0, 1.1)  # what useless ones cost, evenly between these
DEVIATION = 0.13  # of the logarithm of a pair's ratio, as in the trials of data/trial-truths.csv
# Of the same by what tuning misses: not at all; so that 8.5 % of equal arms are called different;
# and as `papers.rates` measures it, beside pairs that vary more than these.
TUNINGS = (0.0, 0.018, 0.032)


def course(rng: np.random.Generator, ratio: float, tuning: float) -> tuple[np.ndarray, np.ndarray]:
    """All ideas of one year: whether each is good, and its pairs, (IDEAS, LOOKS[-1])."""
    good = np.zeros(IDEAS, bool)
    good[rng.choice(IDEAS, GOOD, replace=False)] = True
    truth = np.where(good, ratio, rng.uniform(*USELESS, IDEAS))
    # Ideas that change nothing are most of the useless ones.
    truth[~good & (rng.random(IDEAS) < 0.5)] = 1.0
    centre = np.log(truth) + rng.normal(0, tuning, IDEAS)
    return good, centre[:, None] + rng.normal(0, DEVIATION, (IDEAS, LOOKS[-1]))


def is_better(mean: np.ndarray, p: np.ndarray, level: float) -> bool:
    """Whether a trial at this level ends in "better"; mean and p are those of its looks."""
    found = p <= nominal_levels(LOOKS, level)
    return bool(found.any() and mean[found.argmax()] < 0)


def without(mean: np.ndarray, p: np.ndarray) -> list[bool]:
    """Every trial at 5 %."""
    return [is_better(*trial, ALPHA) for trial in zip(mean.T, p.T)]


def by_ledger(mean: np.ndarray, p: np.ndarray) -> list[bool]:
    """Every trial at the level that the ledger gives it."""
    wins: list[int] = []
    for number, trial in enumerate(zip(mean.T, p.T), 1):
        if is_better(*trial, level_of(number, wins, ALPHA)):
            wins.append(number)
    return [number in wins for number in range(1, IDEAS + 1)]


def by_spending(mean: np.ndarray, p: np.ndarray) -> list[bool]:
    """Levels that add up to 5 % and know of no win: not even one false one, in 95 % of years."""
    levels = [ALPHA * (j**-0.5 - (j + 1) ** -0.5) for j in range(1, IDEAS + 1)]
    return [is_better(*trial) for trial in zip(mean.T, p.T, levels)]


def by_one_seed(logs: np.ndarray) -> list[bool]:
    """One pair each, and what came out ahead is kept: what most searches by agents do."""
    return (logs[:, 0] < 0).tolist()


WAYS: dict[str, Callable[[np.ndarray, np.ndarray], Sequence[bool]]] = {
    "trials without a ledger": without,
    "trials with a ledger": by_ledger,
    "alpha spending": by_spending,
}


def simulate(years: int = 200, seed: int = 0, ratios: Sequence[float] = RATIOS) -> pd.DataFrame:
    """Winners of every way, on average over years.

    Returns
    -------
    DataFrame
        tuning, ratio, way; false_wins and true_wins (of 195 and 5), their share `false_share` of
        all expected wins (what a ledger controls), and any_false, the share of years with one.
    """
    rows = []
    for tuning in TUNINGS:
        for ratio in ratios:
            rng = np.random.default_rng(seed)
            counts: dict[str, list[tuple[int, int]]] = {}
            for _ in range(years):
                good, logs = course(rng, ratio, tuning)
                mean, _, p = statistics(logs, LOOKS)
                found = {way: decide(mean, p) for way, decide in WAYS.items()}
                found["one seed each"] = by_one_seed(logs)
                for way, wins in found.items():
                    won = np.array(wins)
                    counts.setdefault(way, []).append(((won & ~good).sum(), (won & good).sum()))
            for way, pairs in counts.items():
                false, true = np.array(pairs).T
                row = {"tuning": tuning, "ratio": ratio, "way": way}
                row |= {"false_wins": false.mean(), "true_wins": true.mean()}
                row["false_share"] = false.mean() / np.maximum(false + true, 1).mean()
                rows.append(row | {"any_false": (false > 0).mean()})
    return pd.DataFrame(rows)


def main() -> None:
    """Make the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", default=TABLE, type=Path)
    parser.add_argument("--years", default=200, type=int)
    given = parser.parse_args()
    found = simulate(given.years)
    found.to_csv(given.table, index=False, float_format="%.3f", lineterminator="\n")
    print(found.round(3).to_string(index=False))


if __name__ == "__main__":
    main()
