"""What tuning leaves undecided, and how often that makes a trial wrong.

Some tuning runs find the best learning rate only roughly. So two arms that are the same get unlike
rates, and a trial that made pairs enough would call one of them better. Here such trials are
simulated from runs of GRPO at eight rates, with up to forty seeds at each, in the default lab
(`data/tuning-runs.csv`). Two rules for the rate are compared: the best one of those tried, and the
lowest point of a parabola.

`python -m papers.rates` in `notebooks` prints the table of docs/guides/trial-decisions.md, in some
minutes. With `--make` it makes the runs again before that, in about 20 minutes on two cores.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.interpolate import PchipInterpolator

import workbench as wb
from papers.looks import ended
from papers.regimes import recorded_table
from workbench.analysis.curves import Curve
from workbench.analysis.sequential import LOOKS, nominal_levels
from workbench.analysis.targets import crossing
from workbench.trials import tuning
from workbench.trials.tuning import Point, best_tried, lowest

__all__ = ["RULES", "Curves", "excess", "find_rates", "recorded", "simulated", "tuning_costs"]

DATA = Path(__file__).parents[2] / "data"
TABLE = DATA / "tuning-runs.csv"
RUNS = DATA / "runs"
ROUNDS, EVALUATE_EVERY, SAMPLES = 60, 15, 8  # of a tuning run of the default trial
TARGET = 0.44  # the default target in this lab
FIRST_SEED = 5000
# Fewer seeds where no run reaches the target, or where it takes a run all its rounds.
SEEDS = {
    2.25e-4: 8,
    4.5e-4: 24,
    6.36e-4: 40,
    9e-4: 40,
    1.27e-3: 40,
    1.8e-3: 40,
    2.55e-3: 24,
    3.6e-3: 12,
}

# How a rate follows from the costs of the tuning runs and from the best rate of those tried.
RULES: dict[str, Callable[[tuning.Costs, Point], Point]] = {
    "the best rate tried": lambda costs, tried: tried,
    "the parabola": lowest,
}


@dataclass(frozen=True)
class Curves:
    """Runs of one method at several rates, and what they cost to a target.

    Attributes
    ----------
    by_rate : dict from learning rate to a dict from seed to Curve
    target : float
        Held-out accuracy.
    """

    by_rate: Mapping[float, Mapping[int, Curve]]
    target: float

    @cached_property
    def tuned_by(self) -> dict[float, dict[int, float]]:
        """What tuning takes a run to cost (the logarithm), by rate and seed."""
        return {
            rate: {
                seed: tuning.log_cost(curve, self.target, "rollouts")
                for seed, curve in by_seed.items()
            }
            for rate, by_seed in self.by_rate.items()
        }

    @cached_property
    def compared_by(self) -> dict[float, np.ndarray]:
        """What the comparison takes runs to cost (the logarithm), an array over seeds by rate."""
        return {
            rate: np.log(
                [
                    crossing(curve.places("rollouts"), curve.scores, self.target).place
                    for curve in by_seed.values()
                ]
            )
            for rate, by_seed in self.by_rate.items()
        }

    @cached_property
    def mean(self) -> PchipInterpolator:
        """The mean of `compared_by` as a function of the logarithm of the rate."""
        rates = sorted(self.compared_by)
        return PchipInterpolator(np.log(rates), [self.compared_by[rate].mean() for rate in rates])

    def nearest(self, rate: float) -> float:
        """The recorded rate that is nearest to another."""
        return min(self.by_rate, key=lambda each: abs(math.log(each / rate)))


def recorded(path: Path = TABLE) -> Curves:
    """The recorded runs."""
    by_rate: dict[float, dict[int, Curve]] = defaultdict(dict)
    table = pd.read_csv(path)
    for (rate, seed), part in table.groupby(["learning_rate", "seed"]):
        rounds = part["round"].to_numpy()
        # A row of this table stands for all rounds since the evaluation before.
        spent = pd.DataFrame({"round": rounds[1:], "rollouts": part["rollouts"].diff()[1:]})
        scores = part["accuracy"].to_numpy()
        by_rate[rate][seed] = Curve("grpo", seed, rounds, scores, spent, path)
    return Curves(by_rate, TARGET)


def find_rates(
    curves: Curves, rng: np.random.Generator, seeds: int, grid: list[Point] | None = None
) -> dict[str, float]:
    """The learning rates that one tuning finds whose runs are drawn from the recorded ones.

    Parameters
    ----------
    curves : Curves
    rng : Generator
    seeds : int
        Of the tuning, the same at all rates, where a rate has them.
    grid : list of Point, optional
        The coarse grid; None for that of the default trial.

    Returns
    -------
    dict from a key of `RULES` to the rate
    """
    costs = tuning_costs(curves, rng, seeds, grid)
    tried = best_tried(costs, range(seeds))
    return {name: rule(costs, tried).learning_rate for name, rule in RULES.items()}


def tuning_costs(
    curves: Curves, rng: np.random.Generator, seeds: int, grid: list[Point] | None = None
) -> dict[tuning.Run, float]:
    """What the runs of a tuning cost, drawn from the recorded runs; arguments of `find_rates`."""
    grid = grid or tuning.coarse_grid(wb.labs.tiny().learning_rate)
    everyone = sorted({seed for by_seed in curves.by_rate.values() for seed in by_seed})
    drawn = rng.choice(everyone, seeds, replace=False)
    costs: dict[tuning.Run, float] = {}
    numbers = range(seeds)
    while missing := tuning.next_runs(costs, grid, numbers):
        for point, number in missing:
            by_seed = curves.tuned_by[curves.nearest(point.learning_rate)]
            seed = drawn[number] if drawn[number] in by_seed else rng.choice([*by_seed])
            costs[point, number] = by_seed[seed]
    return costs


def simulated(curves: Curves, trials: int, seeds: int, true_ratio: float = 1.15) -> pd.DataFrame:
    """Trials of two arms that are tuned apart, and of which one costs more by a known share.

    Parameters
    ----------
    curves : Curves
        Of both arms.
    trials : int
        How many are simulated.
    seeds : int
        Of the tuning.
    true_ratio : float
        What the second arm costs over the first one, where it costs more.

    Returns
    -------
    DataFrame, a row a rule of `RULES`, and one for arms at the best rate
        excess (mean cost over that at the best rate, %), spread (the standard deviation of the
        ratio of two equal arms, %), false alarms (trials that call equal arms different), alike,
        seeds; and, where the arms differ, found (in the right direction), opposite and its seeds.
    """
    rng = np.random.default_rng(0)
    found = [find_rates(curves, rng, seeds) for _ in range(2 * trials)]
    best = curves.mean.x[np.argmin(curves.mean(curves.mean.x))]
    rates = {rule: np.log([each[rule] for each in found]) for rule in RULES}
    rates["at the best rate"] = np.full(2 * trials, best)
    rows = {}
    for rule, chosen in rates.items():
        means = curves.mean(chosen)
        costs = means[:, None] + np.array([_noise(curves, rate, rng) for rate in chosen])
        differences = costs[trials:] - costs[:trials]
        levels = nominal_levels()
        below, above, alike, looked = ended(differences, levels)
        opposite, found_it, _, needed = ended(differences + math.log(true_ratio), levels)
        rows[rule] = {
            "excess, %": 100 * math.expm1(means.mean() - curves.mean(best)),
            "spread, %": 100 * math.expm1((means[trials:] - means[:trials]).std()),
            "false alarms": below + above,
            "alike": alike,
            "seeds": looked,
            "found": found_it,
            "opposite": opposite,
            "seeds to find it": needed,
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def excess(table: pd.DataFrame, used: Mapping[str, float]) -> pd.Series:
    """What arms cost at the rates that a comparison used, over the lowest point of a parabola.

    Parameters
    ----------
    table : DataFrame
        A row a tuning run: arm, learning_rate, seed and cost, such as `tuning.csv` of a trial.
    used : dict from arm to learning rate

    Returns
    -------
    Series by arm, percent
        Of arms whose runs have such a point.
    """
    found = {}
    for arm, part in table.groupby("arm"):
        costs = {
            (Point(row.learning_rate), row.seed): math.log(row.cost) for row in part.itertuples()
        }
        tried = best_tried(costs, [*part["seed"].unique()])
        fit = tuning.parabola(costs, tried)
        if fit is not None:
            rates = used[arm], lowest(costs, tried).learning_rate
            distances = np.log(rates) - math.log(tried.learning_rate)
            here, there = np.polyval(fit.coefficients, distances)
            found[arm] = 100 * math.expm1(here - there)
    return pd.Series(found)


def _noise(curves: Curves, rate: float, rng: np.random.Generator) -> np.ndarray:
    """How far runs at a rate are from their mean, (LOOKS[-1],), drawn from the nearest rate."""
    values = curves.compared_by[curves.nearest(math.exp(rate))]
    return rng.choice(values - values.mean(), LOOKS[-1])


def one_run(job: tuple[float, int]) -> list[dict[str, float]]:
    """A tuning run of GRPO, as rows of the table."""
    rate, seed = job
    lab = replace(wb.labs.tiny(), samples=SAMPLES)
    run = wb.Run(
        lab, wb.methods.grpo(), seed=seed, learning_rate=rate, evaluate_every=EVALUATE_EVERY
    )
    for _ in run.rounds(ROUNDS, progress=False):
        pass
    accuracy = run.record.accuracy()
    sampled = run.record.rounds.set_index("round")["rollouts"].cumsum()
    places = sampled.reindex(accuracy["round"], fill_value=0).to_numpy()
    return [
        {"learning_rate": rate, "seed": seed, "round": row.round}
        | {"rollouts": rollouts, "accuracy": row.accuracy}
        for row, rollouts in zip(accuracy.itertuples(), places)
    ]


def make() -> None:
    """Make the runs, and write their table."""
    jobs = [(rate, FIRST_SEED + number) for rate, count in SEEDS.items() for number in range(count)]
    with multiprocessing.get_context("spawn").Pool() as pool:
        rows = [row for part in pool.imap(one_run, jobs) for row in part]
    pd.DataFrame(rows).to_csv(TABLE, index=False, float_format="%.5g")


def main() -> None:
    """Print the table, after making the runs if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--trials", type=int, default=2000)
    given = parser.parse_args()
    if given.make:
        make()
    curves = recorded()
    for rate, costs in sorted(curves.compared_by.items()):
        reached = np.mean([each.scores.max() >= TARGET for each in curves.by_rate[rate].values()])
        spread = costs.std(ddof=1)
        print(f"{rate:.3g}: {np.exp(costs.mean()):,.0f} rollouts, {spread:.3f}, {reached:.0%}")
    recorded_trials = pd.read_csv(RUNS / "regimes" / "arms.csv")["trial"].unique()
    for folder in (RUNS / "leaderboard", *(RUNS / "regimes" / name for name in recorded_trials)):
        arms = recorded_table(folder, "arms").set_index("arm")
        table = recorded_table(folder, "tuning")
        # The baseline has no row of its own.
        [rate] = arms["baseline_learning_rate"].dropna().unique()
        used = dict.fromkeys(table["arm"], rate) | arms["learning_rate"].to_dict()
        over = excess(table, used)
        found = f"{over.median():.1f} % over the lowest point, at most {over.max():.1f} %"
        print(f"{folder.name}: {found}, {len(over)} arms")
    for seeds in (3, 4):
        print(f"{seeds} tuning seeds")
        print(simulated(curves, given.trials, seeds).round(3).to_string())


if __name__ == "__main__":
    main()
