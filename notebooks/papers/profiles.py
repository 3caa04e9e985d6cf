"""What `wb.profile` says, held against the truth: `python -m papers.profiles ../data`.

`recovery` draws counts from distributions of success rates that are known. `planned` makes profiles
of the models of recorded runs before the first round, and holds the plan of each method against
what its runs then did. It writes `profile-recovery.csv` and `profile-planned.csv`.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

import workbench as wb
from workbench import config
from workbench.trials.profile import Profile

# Name -> success rates of n problems, from a generator.
TRUTHS = {
    "all .3": lambda rng, n: np.full(n, 0.3),
    "uniform": lambda rng, n: rng.random(n),
    "mostly hard": lambda rng, n: rng.beta(0.5, 2.5, n),
    "all or nothing": lambda rng, n: rng.beta(0.2, 0.2, n),
    "a third impossible": lambda rng, n: np.where(rng.random(n) < 1 / 3, 0, rng.beta(2, 2, n)),
}
SHELVES = {
    "leaderboard": "0.1 M",
    "head-to-head": "0.1 M",
    "sizes": "0.34 M",
    "smollm2": "135 M",
}


def no_gradient(rates, n):
    """The share of groups of n rollouts without a gradient."""
    return float(np.mean(rates**n + (1 - rates) ** n))


def recovery(truths=tuple(TRUTHS), samples=(4, 8, 16), sizes=(8, 32), draws=20, problems=200):
    """Fitted shares of groups without a gradient against true ones, and those of plain counting."""
    rows = []
    for truth in truths:
        for tries in samples:
            found = {n: [] for n in sizes}
            for draw in range(draws):
                rng = np.random.default_rng(draw)
                many = TRUTHS[truth](rng, 100_000)
                correct = rng.binomial(tries, TRUTHS[truth](rng, problems))
                names = [str(number) for number in range(problems)]
                table = pd.DataFrame({"problem": names, "samples": tries, "correct": correct})
                fitted = Profile(table).by_n(sizes).set_index("n")
                for n in sizes:
                    row = fitted.loc[n]
                    true, counted = no_gradient(many, n), no_gradient(correct / tries, n)
                    held = row["low"] <= true <= row["high"]
                    found[n].append((true, row["no_gradient"], counted, held))
            for n in sizes:
                true, fit, counted, held = np.mean(found[n], axis=0)
                rows.append(
                    {
                        "rates": truth,
                        "samples": tries,
                        "n": n,
                        "true": true,
                        "fitted": fit,
                        "counted": counted,
                        "covered": held,
                    }
                )
    return pd.DataFrame(rows)


def before_training(record):
    """The profile of a recorded run's problems by its model, before the first round.

    The tiny lab can be made again, and all its training problems are sampled. Of another model the
    evaluation before the first round is taken, which is of other problems of the same kind.
    """
    lab = record.manifest["lab"]
    if lab["lab"] == "tiny":
        return wb.profile(config.recorded_lab(lab), problems=lab["pool"])
    evals = record.evals[record.evals["round"] == 0]
    return Profile(evals[["problem", "level", "samples", "correct"]])


def planned(shelf, size, rounds=4, only=None, repetitions=20):
    """The planned effective-gradient ratio of each arm of a shelf, and that of each of its runs."""
    rows = []
    profile = before_training(next(iter(shelf.values()))[0])
    for label, records in shelf.items():
        if only is not None and label not in only:
            continue
        first = records[0]
        method = config.rebuild(first.manifest["method"])
        problems = min(first.manifest["arguments"]["problems_per_round"], len(profile.table))
        plan = profile.plan(
            {label: method},
            problems_per_round=problems,
            rounds=rounds,
            repetitions=repetitions,
        ).iloc[0]
        row = {"size": size, "method": label, "runs": len(records)}
        row |= {"planned": plan["effective_gradient_ratio"], "low": plan["low"]}
        row |= {"high": plan["high"], "planned_rollouts": plan["rollouts"]}
        for name, span in (("first", (0, rounds)), ("later", (3 * rounds, 4 * rounds))):
            parts = [record.rounds.iloc[slice(*span)] for record in records]
            ratios = np.array([part["trained"].sum() / part["selected"].sum() for part in parts])
            inside = (plan["low"] <= ratios) & (ratios <= plan["high"])
            row |= {name: ratios.mean(), f"{name}_inside": int(inside.sum())}
            if name == "first":
                row["rollouts"] = np.mean([part["rollouts"].mean() for part in parts])
        rows.append(row)
    return pd.DataFrame(rows)


def main(folder):
    folder = Path(folder)
    recovery().to_csv(folder / "profile-recovery.csv", index=False, float_format="%.4g")
    tables = [
        planned(wb.load_all(folder / "runs" / name), size).assign(shelf=name)
        for name, size in SHELVES.items()
    ]
    table = pd.concat(tables)
    table.to_csv(folder / "profile-planned.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    main(*sys.argv[1:])
