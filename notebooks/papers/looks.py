"""How often a trial that looks after every seed is wrong, and how many seeds it takes.

`python -m papers.looks` in `notebooks` prints the tables of docs/guides/trial-decisions.md: plans
of looks compared by power on normal differences, and false alarms on differences of recorded runs
between which there is no difference. It takes some minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import special

from papers.standings import target_of
from workbench.analysis.curves import of_common_seeds, read
from workbench.analysis.intervals import Measurement
from workbench.analysis.runs import load_all
from workbench.analysis.sequential import ALPHA, BAND, LOOKS, nominal_levels, readings
from workbench.analysis.targets import crossings

RUNS = Path(__file__).parents[2] / "data" / "runs"
TRIALS = 100_000
EFFECTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
PLANS = {
    "12 seeds, one look": ((12,), 1.0),
    "20 seeds, one look": ((20,), 1.0),
    "5, 10, 15, 20, levels as n^2": ((5, 10, 15, 20), 2.0),
    "5 to 12, levels as n^2": (tuple(range(5, 13)), 2.0),
    "5 to 16, levels as n^2": (tuple(range(5, 17)), 2.0),
    "4 to 20, levels as n^2": (tuple(range(4, 21)), 2.0),
    "5 to 20, levels as n": (LOOKS, 1.0),
    "5 to 20, levels as n^2": (LOOKS, 2.0),
    "5 to 20, levels as n^3": (LOOKS, 3.0),
}


def statistics(differences: np.ndarray, looks: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Mean, standard error and p-value of Student's test at every look, (looks, trials) each."""
    total = differences.cumsum(axis=1)
    squares = (differences**2).cumsum(axis=1)
    n = np.array(looks)[:, None]
    mean = total[:, np.array(looks) - 1].T / n
    variance = (squares[:, np.array(looks) - 1].T - n * mean**2) / (n - 1)
    # Without any spread rounding may leave a number below 0.
    error = np.sqrt(np.maximum(variance, 1e-300) / n)
    return mean, error, 2 * special.stdtr(n - 1, -np.abs(mean) / error)


def stopped(differences: np.ndarray, looks: Sequence[int], levels: np.ndarray) -> tuple:
    """Share of trials that find a difference, and the mean number of seeds at which they stop."""
    found = statistics(differences, looks)[2] <= levels[:, None]
    any_found = found.any(axis=0)
    seeds = np.where(any_found, np.array(looks)[found.argmax(axis=0)], looks[-1])
    return float(any_found.mean()), float(seeds.mean())


def confidence_sequence(differences: np.ndarray, looks: Sequence[int], width: float = 1.0) -> tuple:
    """The same for an anytime-valid test: a mixture of t-tests over effects of N(0, width)."""
    n = np.array(looks)[:, None]
    mean, error, _ = statistics(differences, looks)
    t2 = (mean / error) ** 2
    spread = 1 + n * width
    evidence = spread**-0.5 * ((1 + t2 / (n - 1)) / (1 + t2 / (spread * (n - 1)))) ** (n / 2)
    found = evidence >= 1 / ALPHA
    any_found = found.any(axis=0)
    seeds = np.where(any_found, np.array(looks)[found.argmax(axis=0)], looks[-1])
    return float(any_found.mean()), float(seeds.mean())


def plans() -> pd.DataFrame:
    """Power and mean seeds of each plan, by the effect in standard deviations of a difference."""
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((TRIALS, LOOKS[-1]))
    rows = {}
    for name, (looks, shape) in PLANS.items():
        levels = nominal_levels(looks, shape=shape)
        rows[name] = {
            effect: "{:.3f} ({:.1f})".format(*stopped(normal + effect, looks, levels))
            for effect in EFFECTS
        }
    rows["anytime-valid, 2 to 20"] = {
        effect: "{:.3f} ({:.1f})".format(*confidence_sequence(normal + effect, tuple(range(2, 21))))
        for effect in EFFECTS
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def log_costs() -> dict[str, np.ndarray]:
    """Logarithms of the rollouts to the target, an array over seeds for each recorded method."""
    curves = read(load_all(RUNS / "leaderboard-one-rate"))
    target = target_of(curves)
    found = {}
    for label, by_seed in curves.items():
        crossed = crossings(by_seed, target, "rollouts")
        if all(one.reached for one in crossed.values()):
            found[label] = np.log([one.place for one in crossed.values()])
    # Eight further seeds of GRPO, recorded for the search over combinations.
    more = read(load_all(RUNS / "leaderboard-search-one-rate"))
    for label, by_seed in more.items():
        crossed = crossings(by_seed, target, "rollouts")
        if label in found and all(one.reached for one in crossed.values()):
            further = np.log([one.place for one in crossed.values()])
            found[label] = np.append(found[label], further)
    return found


def null_pools(costs: dict[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
    """Differences between which there is nothing, by how they were formed; one array a method.

    Two unlike seeds of one method; the differences to GRPO of the same seed, less their mean, with
    both signs; and the same of eight normal values, which shows what drawing from so few values
    does by itself.
    """
    unlike = []
    for values in costs.values():
        pairs = values[:, None] - values[None, :]
        unlike.append(pairs[~np.eye(len(values), dtype=bool)])
    paired = []
    for label, values in costs.items():
        if label != "grpo":
            ours, theirs = (dict(enumerate(each)) for each in (values[:8], costs["grpo"][:8]))
            residual = np.subtract(*of_common_seeds(ours, theirs))
            residual = residual - residual.mean()
            paired.append(np.concatenate([residual, -residual]))
    normal = np.random.default_rng(3).normal(0, 0.05, (40, 8))
    normal -= normal.mean(axis=1, keepdims=True)
    return {
        "unlike seeds of one method": unlike,
        "same seeds, less their mean": paired,
        "normal values in their place": list(np.concatenate([normal, -normal], axis=1)),
    }


def alarms(trials: int = 20_000) -> pd.DataFrame:
    """False alarms and the share called alike, on null differences of recorded runs."""
    rng = np.random.default_rng(1)
    levels = nominal_levels()
    rows = {}
    for name, pools in null_pools(log_costs()).items():
        draws = [rng.choice(pool, (trials, LOOKS[-1])) for pool in pools]
        by_method = [stopped(drawn, LOOKS, levels)[0] for drawn in draws]
        ends = np.array([ended(drawn, levels) for drawn in draws])
        everyone = np.concatenate(draws)
        plain = (statistics(everyone, LOOKS)[2] <= ALPHA).any(axis=0).mean()
        wrong = ends[:, 0] + ends[:, 1]
        rows[name] = {
            "methods": len(pools),
            "deviation of a difference": float(np.median([pool.std() for pool in pools])),
            "false alarms of a trial": wrong.mean(),
            "of the worst method": wrong.max(),
            "if alike did not end it": float(np.mean(by_method)),
            "of the worst method, too": max(by_method),
            "at plain 95 % at every look": float(plain),
            "called alike": ends[:, 2].mean(),
            "mean seeds": ends[:, 3].mean(),
        }
    return pd.DataFrame(rows)


def with_failures(trials: int = 2000, deviation: float = 0.12) -> pd.DataFrame:
    """Trials in which some runs end before the target by chance.

    Parameters
    ----------
    trials : int
    deviation : float
        Of the logarithm of what a run costs.

    Returns
    -------
    DataFrame, a row a share of runs that fail
        by means and by ranks: the share of trials that find an arm which costs 15 % less, where it
        is known only how many runs failed, and where it is known which; and false alarms, by
        ranks.
    """
    budget = np.log(1.7)  # what a run spends that does not arrive, over what others need on average
    rows = {}
    for share in (0.0, 0.03, 0.08):
        rng = np.random.default_rng(7)
        words: dict[str, list[str]] = {"by means": [], "by ranks": [], "false alarms": []}
        for shift in (np.log(0.85), 0.0):
            for _ in range(trials):
                costs = rng.normal([[shift], [0.0]], deviation, (2, LOOKS[-1]))
                failed = (rng.random(costs.shape) < share) | (costs > budget)
                arm, baseline = np.where(failed, budget, costs)
                if shift:
                    words["by means"].append(_word(arm - baseline, failed, which=False))
                    words["by ranks"].append(_word(arm - baseline, failed, which=True))
                else:
                    words["false alarms"].append(_word(arm - baseline, failed, which=True))
        rows[share] = {
            "by means": np.mean([word == "better" for word in words["by means"]]),
            "by ranks": np.mean([word == "better" for word in words["by ranks"]]),
            "false alarms": np.mean([w in ("better", "worse") for w in words["false alarms"]]),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _word(logs: np.ndarray, failed: np.ndarray, which: bool) -> str:
    """The verdict with which a trial ends."""
    for n in LOOKS:
        cut = [each[:n] if which else int(each[:n].sum()) for each in failed]
        reading = readings({"arm": Measurement(np.exp(logs[:n]), "ratio", *cut)})["arm"]
        if reading.known:
            break
    return reading.verdict


def split_alarms(trials: int = 20_000) -> float:
    """False alarms where GRPO's 16 seeds are split into 8 disjoint pairs, with looks at 5 to 8."""
    values = log_costs()["grpo"]
    rng = np.random.default_rng(2)
    orders = np.array([rng.permutation(values) for _ in range(trials)])
    half = len(values) // 2
    looks = tuple(range(5, half + 1))
    return stopped(orders[:, :half] - orders[:, half : 2 * half], looks, nominal_levels(looks))[0]


def ended(differences: np.ndarray, levels: np.ndarray) -> tuple[float, float, float, float]:
    """How trials end.

    Parameters
    ----------
    differences : (trials, LOOKS[-1]) float64
        Logarithms of what one arm costs over the other, pair by pair.
    levels : (looks,) float64
        The nominal level of each look.

    Returns
    -------
    below, above, alike, seeds : float
        Shares of the trials that call the arm better, worse and alike, and the mean number of pairs
        at which they stop.
    """
    mean, error, p = statistics(differences, LOOKS)
    n = np.array(LOOKS)[:, None]
    reach = error * special.stdtrit(n - 1, 1 - levels[:, None] / 2)
    band = np.log(1 + BAND)
    inside = (mean + reach <= band) & (mean - reach >= -band)
    decided = p <= levels[:, None]
    over = inside | decided
    first = over.argmax(axis=0)
    seeds = np.where(over.any(axis=0), np.array(LOOKS)[first], LOOKS[-1])
    each = np.arange(len(differences))
    found = decided[first, each]
    below = found & (mean[first, each] < 0)
    alike = over.any(axis=0) & ~found
    shares = below, found & ~below, alike, seeds
    return tuple(float(values.mean()) for values in shares)


if __name__ == "__main__":
    pd.set_option("display.width", 200)
    print(plans().to_string())
    print(alarms().round(3).to_string())
    print(with_failures().round(3).to_string())
    print(f"disjoint pairs of GRPO's 16 seeds, looks 5 to 8: {split_alarms():.3f}")
