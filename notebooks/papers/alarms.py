"""How often whole trials are wrong, what they find, and how long they take, by simulation.

`papers.looks` says what looking after every pair costs, and `papers.rates` what tuning leaves
undecided. Here both are put together, as trials are used: up to ten arms are tuned apart from the
baseline, all of them share its runs, and Holm's method corrects for their number. Tuning runs and
pairs are drawn from the runs of GRPO at eight rates (`data/tuning-runs.csv`).

`python -m papers.alarms` in `notebooks` prints tables of docs/guides/trial-decisions.md, in about
a minute.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from papers.looks import statistics
from papers.rates import Curves, recorded, tuning_costs
from workbench.analysis.intervals import Measurement
from workbench.analysis.sequential import ALPHA, BAND, LOOKS, nominal_levels, readings
from workbench.trials import tuning
from workbench.trials.further import likely_pairs
from workbench.trials.tuning import CARRIED, UNKNOWN_ERROR, best_tried, lowest, parabola

__all__ = ["families", "lengths", "overshoot", "pool", "shapes"]

TUNINGS = 1000  # that are drawn for each number of seeds
SHIFT = math.log(0.85)


class Tunings(NamedTuple):
    """What tunings found, an array over tunings each; `error` and `spread` as in `Parabola`."""

    rate: np.ndarray
    error: np.ndarray
    spread: np.ndarray
    cost: np.ndarray


@lru_cache
def pool(seeds: int, number: int = TUNINGS) -> Tunings:
    """Tunings of GRPO with so many seeds."""
    rng = np.random.default_rng(seeds)
    curves = recorded()
    rows = []
    for _ in range(number):
        costs = tuning_costs(curves, rng, seeds)
        tried = best_tried(costs, range(seeds))
        fit = parabola(costs, tried)
        error, spread = (fit.error, fit.spread) if fit else (UNKNOWN_ERROR, math.nan)
        cost = tuning.mean_cost(costs, tried, range(seeds))
        rows.append((lowest(costs, tried).learning_rate, error, spread, cost))
    return Tunings(*np.array(rows).T)


def runs(curves: Curves, rates: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Log costs of as many runs at each rate as a trial may make, (rates, LOOKS[-1])."""
    known = np.array(sorted(curves.by_rate))
    nearest = abs(np.log(rates)[:, None] - np.log(known)).argmin(axis=1)
    found = np.empty((len(rates), LOOKS[-1]))
    for place, rate in enumerate(known):
        rows = np.flatnonzero(nearest == place)
        values = curves.compared_by[rate]
        found[rows] = rng.choice(values - values.mean(), (len(rows), LOOKS[-1]))
    return found + curves.mean(np.log(rates))[:, None]


def ends(logs: np.ndarray, error: Any, arms: int) -> dict[str, np.ndarray]:
    """How each arm of each trial ends, as long as no other arm was decided before it.

    Parameters
    ----------
    logs : (trials, LOOKS[-1]) float64
        Logarithms of an arm's cost over the baseline's.
    error : (trials,) float64, or a number
        Of tuning, as in `sequential.readings`.
    arms : int
        Of the trial. By Holm's method the first decision is made at the level over their number.

    Returns
    -------
    dict
        better, worse, alike (bool) and pairs, (trials,) each.
    """
    mean, standard, _ = statistics(logs, LOOKS)
    n = np.array(LOOKS)[:, None]
    beyond = np.maximum(abs(mean) - error, 0)
    p = np.where(beyond > 0, 2 * special.stdtr(n - 1, -beyond / standard), 1)
    decided = p <= nominal_levels(LOOKS, ALPHA / arms)[:, None]
    reach = standard * special.stdtrit(n - 1, 1 - nominal_levels()[:, None] / 2) + error
    alike = abs(mean) + reach <= np.log1p(BAND)
    over = decided | alike
    first = over.argmax(axis=0), np.arange(len(logs))
    is_decided = decided[first]
    return {
        "better": is_decided & (mean[first] < 0),
        "worse": is_decided & (mean[first] > 0),
        "alike": alike[first] & ~is_decided,
        "pairs": np.where(over.any(axis=0), n[first[0], 0], LOOKS[-1]),
        "mean": mean[np.where(over.any(axis=0), first[0], len(LOOKS) - 1), first[1]],
    }


def families(
    trials: int = 2000,
    arms: int = 1,
    seeds: int = 4,
    baseline_seeds: int | None = None,
    carried: float = CARRIED,
) -> dict[str, float]:
    """Trials of equal arms, and of arms of which the first one needs 15 % less.

    Returns
    -------
    dict
        alarms (trials that call any equal arm different), found (the arm that needs less), alike
        (equal arms) and pairs (of equal arms).
    """
    rng = np.random.default_rng(arms)
    curves = recorded()
    mine, others = pool(seeds), pool(baseline_seeds or seeds)
    which = rng.integers(0, TUNINGS, (arms, trials))
    against = rng.integers(0, TUNINGS, trials)
    baseline = runs(curves, others.rate[against], rng)
    alarm = np.zeros(trials, bool)
    found = np.nan
    alike, pairs = [], []
    for number, rows in enumerate(which):
        logs = runs(curves, mine.rate[rows], rng) - baseline
        error = carried * np.hypot(mine.error[rows], others.error[against])
        equal = ends(logs, error, arms)
        alarm |= equal["better"] | equal["worse"]
        alike.append(equal["alike"].mean())
        pairs.append(equal["pairs"].mean())
        if number == 0:
            found = ends(logs + SHIFT, error, arms)["better"].mean()
    return {
        "alarms": float(alarm.mean()),
        "found": float(found),
        "alike": float(np.mean(alike)),
        "pairs": float(np.mean(pairs)),
    }


def shapes(trials: int = 10_000) -> pd.DataFrame:
    """Arms whose costs have another shape than the baseline's, and the same mean on the log scale.

    Returns
    -------
    DataFrame, a row a shape
        better, worse: shares of the trials, without and with a usual error of tuning.
    """
    rng = np.random.default_rng(5)
    size = (trials, LOOKS[-1])
    skewed = rng.exponential(size=size) - 1
    normal, baseline = rng.normal(size=size), rng.normal(size=size)
    usual = float(np.median(CARRIED * math.sqrt(2) * pool(4).error))
    rows = {}
    for name, shape in (("normal", normal), ("long tail of dear runs", skewed)):
        for times in (1, 2, 3):
            logs = 0.09 * (times * shape - baseline)
            row = {}
            for error in (0.0, usual):
                how = ends(logs, error, 1)
                row |= {f"better, {error:.3f}": how["better"].mean()}
                row |= {f"worse, {error:.3f}": how["worse"].mean()}
            rows[f"{name}, {times} times the spread"] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def failing(trials: int = 200, share: float = 0.1, deviation: float = 0.09) -> pd.DataFrame:
    """An arm of which a tenth of the runs never arrive, against a baseline that always does.

    Returns
    -------
    DataFrame, a row what its arriving runs need over the baseline's
        better, worse, open: shares of the trials, with a usual error of tuning.
    """
    budget = math.log(1.67)
    usual = float(np.median(CARRIED * math.sqrt(2) * pool(4).error))
    rows = {}
    for ratio in (0.7, 0.85, 1.0):
        rng = np.random.default_rng(8)
        words = []
        for _ in range(trials):
            mine, others = rng.normal([[math.log(ratio)], [0.0]], deviation, (2, LOOKS[-1]))
            failed = rng.random(LOOKS[-1]) < share
            logs = np.where(failed, budget, mine) - others
            for n in LOOKS:
                measured = Measurement(np.exp(logs[:n]), "ratio", failed[:n])
                reading = readings({"arm": measured}, errors={"arm": usual})["arm"]
                if reading.known:
                    break
            words.append(reading.verdict)
        rows[ratio] = pd.Series(words).value_counts(normalize=True)
    return pd.DataFrame(rows).T.fillna(0.0)


def overshoot(trials: int = 10_000, deviation: float = 0.13) -> pd.DataFrame:
    """How far the ratio of arms that are called better is from the true one.

    Returns
    -------
    DataFrame, a row a true ratio
        found (share of the trials), measured (the geometric mean of the ratios of these trials),
        overshoots (the share of them that is below the true one), and the same of those that ended
        before the last look.
    """
    rng = np.random.default_rng(2)
    rows = {}
    for ratio in (0.9, 0.85, 0.8, 0.7):
        logs = rng.normal(math.log(ratio), deviation, (trials, LOOKS[-1]))
        how = ends(logs, 0.0, 1)
        row = {"found": how["better"].mean()}
        early = how["pairs"] < LOOKS[-1]
        for name, rows_of in (("", how["better"]), (", early", how["better"] & early)):
            row[f"measured{name}"] = math.exp(how["mean"][rows_of].mean())
            row[f"overshoots{name}"] = (how["mean"][rows_of] < math.log(ratio)).mean()
        rows[ratio] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def lengths(trials: int = 200, seeds: int = 4) -> pd.DataFrame:
    """Whether a trial takes as many pairs as is said once it is tuned.

    Returns
    -------
    DataFrame, a row a true ratio
        pairs (the median), within (the share of the trials whose pairs are within a factor of 1.5
        of what is likely), known (the same, if ratio and spread were known exactly) and range (the
        share that lies between the ends that are named).
    """
    curves = recorded()
    tuned = pool(seeds)
    rows = {}
    for ratio in (0.7, 0.8, 0.85, 0.9, 1.0, 1.15):
        rng = np.random.default_rng(9)
        mine, others = rng.integers(0, TUNINGS, (2, trials))
        means = [curves.mean(np.log(tuned.rate[rows])) for rows in (mine, others)]
        noise = runs(curves, tuned.rate[mine], rng) - runs(curves, tuned.rate[others], rng)
        noise -= (means[0] - means[1])[:, None]
        # Runs of different seeds vary by root two more than those of pairs in recorded trials do.
        logs = (means[0] - means[1])[:, None] + noise / math.sqrt(2)
        error = CARRIED * np.hypot(tuned.error[mine], tuned.error[others])
        took = ends(logs + math.log(ratio), error, 1)["pairs"]
        spread = np.sqrt((tuned.spread[mine] ** 2 + tuned.spread[others] ** 2) / 2)
        seen = tuned.cost[mine] - tuned.cost[others] + math.log(ratio)
        doubt = spread * math.sqrt(2 / seeds)
        said = [
            likely_pairs(*each, looks=LOOKS, level=ALPHA, error=e)
            for *each, e in zip(seen, doubt, spread, error)
        ]
        low, middle, high = np.array(said).T
        exact = likely_pairs(math.log(ratio), 0.0, logs.std(), LOOKS, ALPHA, error=error.mean())
        rows[ratio] = {
            "pairs": np.median(took),
            "within": np.mean(abs(np.log(took / middle)) <= math.log(1.5)),
            "known": np.mean(abs(np.log(took / exact[1])) <= math.log(1.5)),
            "range": np.mean((took >= low) & (took <= high)),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def main() -> None:
    """Print the tables."""
    pd.set_option("display.width", 200)
    for arms in (1, 2, 5, 10):
        rows = {
            "error not carried": families(arms=arms, carried=0.0),
            "not carried, eight seeds for the baseline": families(
                arms=arms, baseline_seeds=8, carried=0.0
            ),
            "error carried": families(arms=arms),
        }
        print(f"{arms} arms, four tuning seeds\n{pd.DataFrame(rows).T.round(3).to_string()}")
    for seeds in (2, 8):
        rows = {arms: families(arms=arms, seeds=seeds) for arms in (1, 10)}
        print(f"{seeds} tuning seeds, carried\n{pd.DataFrame(rows).T.round(3).to_string()}")
    for deviation in (0.13, 0.2):
        print(overshoot(deviation=deviation).round(3).to_string())
    for make in (shapes, lengths, failing):
        print(make().round(3).to_string())


if __name__ == "__main__":
    main()
