"""Methods under stress: with verifiers that err, and with rollouts sampled by old weights.

A condition is the tiny lab under stress (`Lab.stressed`). For each one a trial (`workbench.trial`)
tunes every arm again, to the rollouts that it needs to what the tuned baseline reaches in three
fifths of its rounds, on four seeds, and gives it eight fresh ones. The plain lab is a condition
like the others, so that what an arm loses is told by pairs of runs with the same seed, each at its
own best rate.

In the folder `notebooks`, `python -m papers.stress plain missed-10 lag-4` makes the runs of three
conditions, and `python -m papers.stress long` the long runs of the plain lab. Each may be stopped
at any time; the same command goes on. With `--shelve ../data/runs/stress` finished ones are put on
that shelf, and what was found of each arm and each tuning run into its tables `arms.csv` and
`tuning.csv`. Long runs get the shelf `stress-long` beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from papers.regimes import make_runs, shelve, shelve_runs
from workbench import labs, methods
from workbench.methods import Method
from workbench.policies.stress import Stress
from workbench.records import pack
from workbench.trials.arms import Arm
from workbench.trials.cases import Case
from workbench.trials.fingerprints import pickle_lab
from workbench.trials.trial import Trial
from workbench.utils.labels import LOGS

__all__ = ["CONDITIONS", "LONG_RATES", "LONG_ROUNDS", "Condition", "long_panel", "panel"]

ROUNDS = 60
SEEDS = 8
TUNING_SEEDS = 4
BASELINE = "grpo"
LONG_ROUNDS = 400
LONG_SEEDS = 5
LONG_BETWEEN = 20  # rounds between two evaluations of a long run
# The columns of evaluations that a shelf keeps beside those that every record has.
EVALS = ("level", "seconds")


def panel() -> dict[str, Method]:
    """GRPO, the five papers' methods and PKPO, each with one optimizer step a round.

    PKPO stands here with the 8 rollouts of the others and with its own 16, and GRPO with 16 is the
    control of the latter.
    """
    return {
        BASELINE: methods.grpo(),
        "grpo-16": methods.grpo(16),
        "pods": methods.pods(32, 8),
        "ar3po": methods.ar3po(),
        "knapsack": methods.knapsack(),
        "aero": methods.aero(),
        "cbs": methods.cbs(),
        "pkpo": methods.pkpo(8),
        "pkpo-16": methods.pkpo(16),
    }


# The rates of the long runs. An earlier panel found them for 60 rounds of the plain lab, by six
# runs an arm on one seed.
LONG_RATES = {
    BASELINE: 1.27e-3,
    "pods": 1.8e-3,
    "ar3po": 1.27e-3,
    "knapsack": 1.27e-3,
    "aero": 1.8e-3,
    "cbs": 9e-4,
    "dapo": 2.55e-3,
    "pkpo": 1.27e-3,
}


def long_panel() -> dict[str, Method]:
    """The arms of the long runs. CBS explores in the first 50 rounds of 400."""
    return {
        BASELINE: methods.grpo(),
        "pods": methods.pods(32, 8),
        "ar3po": methods.ar3po(),
        "knapsack": methods.knapsack(),
        "aero": methods.aero(),
        "cbs": methods.cbs(planned=500),
        "dapo": methods.dapo(),
        "pkpo": methods.pkpo(),
    }


@dataclass(frozen=True)
class Condition:
    """What a lab under stress does to a run, and how the arms meet it.

    Attributes
    ----------
    stress : Stress
        Of the lab.
    corrected : bool
        Whether every token is weighed by how much likelier the present weights make it than those
        that sampled it, at most by 3 (truncated importance sampling).
    arms : function
        Makes the methods, by label, the baseline among them.
    """

    stress: Stress = Stress()
    corrected: bool = False
    arms: Callable[[], dict[str, Method]] = panel

    def arm(self, method: Method) -> Method:
        """The method in this condition."""
        if not self.corrected:
            return method
        objective = replace(method.objective, sampler_correction="truncate", sampler_cap=3.0)
        return method.but(objective=objective)

    def trial(self, out: Path, **options: Any) -> Trial:
        """The trial of this condition, before it is run.

        Parameters
        ----------
        out : path
        options
            Such as `jobs`.
        """
        found = {label: self.arm(method) for label, method in self.arms().items()}
        baseline = found.pop(BASELINE)
        return Trial(
            found,
            against=baseline.but(name=BASELINE),
            lab=labs.tiny().stressed(**asdict(self.stress)),
            out=out,
            rounds=ROUNDS,
            seeds=SEEDS,
            tuning_seeds=TUNING_SEEDS,
            evaluate_every=10,
            columns="outcomes",
            **options,
        )


CONDITIONS = {
    "plain": Condition(),
    "missed-10": Condition(Stress(missed=0.1)),
    "accepted-10": Condition(Stress(accepted=0.1)),
    "both-10": Condition(Stress(missed=0.1, accepted=0.1)),
    "accepted-30": Condition(Stress(accepted=0.3)),
    "lag-1": Condition(Stress(lag=1)),
    "lag-4": Condition(Stress(lag=4)),
    "lag-16": Condition(Stress(lag=16)),
    "lag-1-corrected": Condition(Stress(lag=1), corrected=True),
    "lag-4-corrected": Condition(Stress(lag=4), corrected=True),
    "lag-16-corrected": Condition(Stress(lag=16), corrected=True),
}


def long_cases(out: Path) -> list[Case]:
    """The long runs: every arm at its tuned rate.

    Parameters
    ----------
    out : path
        Each run gets the directory `label/seed-0` in it.
    """
    lab = pickle_lab(labs.tiny())
    found = []
    for seed in range(LONG_SEEDS):
        for label, method in long_panel().items():
            name = f"{label}/seed-{seed}"
            values = {
                "seed": seed,
                "rounds": LONG_ROUNDS,
                "learning_rate": LONG_RATES[label],
                "evaluate_every": LONG_BETWEEN,
                "columns": "outcomes",
            }
            case = Case(name, values, out / "runs" / name, out / LOGS / name)
            found.append(replace(case, method=Arm(label, method).pickle(), lab=lab))
    return found


def run_long(out: Path, jobs: int | None) -> None:
    """Make the long runs that are missing."""
    make_runs(long_cases(out), jobs)


def shelve_condition(trial: Trial, shelf: Path, name: str) -> None:
    """Put the finished runs of a condition on the shelf, and its rows into the shelf's tables.

    Parameters
    ----------
    trial : Trial
    shelf : path
        Of all conditions. What it has of this one is replaced.
    name : str
        A key of `CONDITIONS`.
    """
    shelve(trial, (), shelf / name)
    pack(shelf, evals=EVALS)


def main() -> None:
    """Make the runs that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("conditions", nargs="+", choices=[*CONDITIONS, "long"])
    parser.add_argument("--out", default="../runs/stress")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--shelve", metavar="FOLDER", help="such as ../data/runs/stress")
    given = parser.parse_args()
    out = Path(given.out)
    without_target = []
    for name in given.conditions:
        if name == "long":
            run_long(out / "long", given.jobs)
            if given.shelve:
                shelf = Path(given.shelve)
                shelve_runs(out / "long" / "runs", (), shelf.with_name(f"{shelf.name}-long"))
            continue
        try:
            trial = CONDITIONS[name].trial(out / name, jobs=given.jobs).run()
        except ValueError as error:
            # Where the baseline learns nothing there is no target. The other conditions have one.
            without_target.append(name)
            print(f"{name}: {error}", flush=True)
            continue
        print(trial, flush=True)
        if given.shelve:
            shelve_condition(trial, Path(given.shelve), name)
    if without_target:
        raise SystemExit(f"conditions without a comparison: {', '.join(without_target)}")


if __name__ == "__main__":
    main()
