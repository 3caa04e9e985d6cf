"""The five papers, each in its own regime, every arm tuned: the trials that claims rest on.

A regime is a lab, a number of problems and of optimizer steps a round, and the arms that a paper
compares in it. Every arm is tuned with the same effort, by the rounds to what the baseline reaches
in three fifths of its rounds, and then gets eight fresh seeds (`workbench.trial`). The regimes of
the ladder have fewer, and are tuned by rollouts.

In the folder `notebooks`, `python -m papers.regimes knapsack ar3po` makes the runs of two regimes.
Each may be stopped at any time; the same command goes on. With `--shelve` it also puts finished
runs into `data/runs/regimes/knapsack`, and into the tables of `data/runs/regimes` what was found of
every arm (`arms.csv`) and a row for every tuning run (`tuning.csv`).
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from papers import ladder
from workbench import labs, methods
from workbench.analysis.runs import by_seed, load_all
from workbench.catalogue.arrol import Survival
from workbench.labs import Lab
from workbench.methods import Method
from workbench.objectives import Objective
from workbench.records import pack
from workbench.rules.advantages import Posterior
from workbench.rules.rewards import Boxed, Correct
from workbench.rules.selectors import All
from workbench.trials import answer, engine
from workbench.trials.cases import Case
from workbench.trials.trial import Trial

__all__ = ["REGIMES", "Regime", "recomputed", "recorded_table", "shelve"]

SEEDS = 8
TUNING_SEEDS = 2
SMOLLM2 = "../build/smollm2"  # see `examples/smollm2.py`
LADDER_ROUNDS = 16
CBS_ROUNDS = 120  # with 16 problems in each, an eighth of the paper's batch
CBS_LONG_ROUNDS = 360
# PODS's released setting takes one problem a step, and its step is small.
PODS_SETTINGS = {
    "rounds": 600,
    "problems_per_round": 1,
    "rates": (1.12e-4, 2.25e-4, 4.5e-4, 9e-4),
    "evaluate_every": 120,
}
# Four times as long, to the plateau. Both arms collapse within 600 steps at the highest rate above.
PODS_LONG_SETTINGS = {
    **PODS_SETTINGS,
    "rounds": 2400,
    "rates": (1.12e-4, 2.25e-4, 4.5e-4),
    "evaluate_every": 240,
}


@dataclass(frozen=True)
class Regime:
    """What a paper compares, and where.

    Attributes
    ----------
    paper : str
    where : str
        The lab in a few words, for tables.
    lab : function
        Makes the lab.
    against : str
        The label of the baseline.
    arms : function
        Makes the methods, by label, the baseline among them.
    settings : dict
        Further arguments of `workbench.trial`.
    outcomes : tuple of str
        The arms of which it is kept which rollouts were right; of all others only the tables of
        rounds and evaluations are.
    """

    paper: str
    where: str
    lab: Callable[[], Lab]
    against: str
    arms: Callable[[], dict[str, Method]]
    settings: dict[str, Any] = field(default_factory=dict)
    outcomes: tuple[str, ...] = ()

    def trial(self, out: Path, **options: Any) -> Trial:
        """The trial of this regime, before it is run.

        Parameters
        ----------
        out : path
        options
            Such as `jobs`.
        """
        arms = self.arms()
        against = arms.pop(self.against)
        return Trial(
            arms,
            against=against.but(name=self.against),
            lab=self.lab(),
            out=out,
            **{
                "measure": "round",
                "seeds": SEEDS,
                "tuning_seeds": TUNING_SEEDS,
                "columns": "outcomes",
                **self.settings,
                **options,
            },
        )


def with_format(method: Method) -> Method:
    """The method with a reward of correctness plus format, as PODS's released setting has it."""
    return method.but(reward=(Correct(), Boxed()))


def pods_arms() -> dict[str, Method]:
    """PODS's own objective in all arms, and a reward of correctness plus format."""
    grpo = methods.grpo(16, objective=Objective(clip=(0.2, 0.2), loss_aggregation="rollout"))
    return {
        "grpo-16": with_format(grpo),
        "pods": with_format(methods.pods(64, 16)),
        "random": with_format(methods.pods(64, 16, rule="random")),
        "max-reward": with_format(methods.pods(64, 16, rule="max_reward")),
    }


def pods_sizes_arms() -> dict[str, Method]:
    """How many rollouts PODS samples, with 16 trained on, and how many of 64 it trains on."""
    sizes = [(64, 16), (32, 16), (128, 16), (256, 16), (64, 8), (64, 4), (64, 2)]
    return {f"pods-{n}-{m}": with_format(methods.pods(n, m)) for n, m in sizes}


def pods_batch_arms() -> dict[str, Method]:
    """Settings (b) and (c) of section 4.1 at 32 problems a round, in PODS's objective."""

    def grpo(n: int) -> Method:
        return methods.grpo(n, objective=Objective(clip=(0.2, 0.2), loss_aggregation="rollout"))

    return {
        "grpo-8": grpo(8),
        "grpo-32": grpo(32),
        "pods": methods.pods(32, 8),
        "random": methods.pods(32, 8, rule="random"),
        "max-reward": methods.pods(32, 8, rule="max_reward"),
    }


def ar3po_arms() -> dict[str, Method]:
    """AR3PO with each way of reuse and with none, GRPO and DAPO."""
    return {
        "grpo": methods.grpo(),
        "ar3po": methods.ar3po(),
        "direct": methods.ar3po(mode="direct"),
        "recompute": methods.ar3po(mode="recompute"),
        "no-reuse": methods.ar3po(mode=None),
        "dapo": methods.dapo(),
    }


def knapsack_arms() -> dict[str, Method]:
    """Knapsack RL and GRPO at three budgets, and Knapsack RL without one part at a time."""
    return {
        "grpo-8": methods.grpo(8),
        "grpo-4": methods.grpo(4),
        "grpo-16": methods.grpo(16),
        "knapsack-8": methods.knapsack(8),
        "knapsack-4": methods.knapsack(4),
        "knapsack-16": methods.knapsack(16),
        "no-info-gain": methods.knapsack(8, info_gain=False),
        "no-fallback": methods.knapsack(8, fallback=False),
        # The fewest rollouts that a problem can have, and as many as all problems have together.
        "no-bounds": methods.knapsack(8, low=1, up=256),
    }


def knapsack_pair() -> dict[str, Method]:
    """Knapsack RL and GRPO at the same budget."""
    return {"grpo-8": methods.grpo(8), "knapsack-8": methods.knapsack(8)}


def aero_arms() -> dict[str, Method]:
    """AERO and GRPO with its objective at N and .32 N, and each with a part changed.

    `no-strategy-3` is what the paper's table calls AERO without rejection: of a group with few
    right responses all wrong ones stay. `no-rejection` trains on all that AERO samples.
    """

    def grpo(n: int) -> Method:
        return methods.grpo(
            n, objective=Objective(clip=(0.2, 0.2), loss_aggregation="group", entropy=1e-3)
        )

    return {
        "grpo-5": grpo(5),
        "grpo-16": grpo(16),
        "aero": methods.aero(),
        "grpo-prior": grpo(16).but(advantage=Posterior()),
        "no-strategy-3": methods.aero(k=32),
        "no-rejection": methods.aero().but(selector=All()),
    }


def cbs_arms(base: str, rounds: int = CBS_ROUNDS) -> Callable[[], dict[str, Method]]:
    """The arms of CBS on one objective, with a schedule for so many rounds.

    The full set with whole problems in a mini-batch, and mixed; CBS* and CBS with the paper's share
    of a round in a mini-batch, and CBS* with mini-batches of 8, so that a round has as many
    optimizer steps as the full set; and random scores in place of learnt ones.
    """

    def cbs(**options: Any) -> Method:
        return methods.cbs(base=base, planned=rounds, **options)

    def arms() -> dict[str, Method]:
        full = {
            "grpo": methods.grpo(objective=Objective(loss_aggregation="rollout")),
            "dapo": methods.dapo(),
            "gspo": methods.gspo(),
        }[base]
        return {
            "full": full,
            "mixed": full.but(selector=All(mini_batch=32)),
            "round": cbs(mini_batch=32),
            "round-8": cbs(mini_batch=8),
            "random-8": cbs(mini_batch=8).adjust("selector", scores="random"),
            "buffer": cbs(mini_batch=32, scope="buffer"),
            "random-buffer": cbs(mini_batch=32, scope="buffer").adjust("selector", scores="random"),
        }

    return arms


def cbs_long_arms() -> dict[str, Method]:
    """CBS and the full set, whole and mixed, on GRPO's objective."""
    arms = cbs_arms("grpo", CBS_LONG_ROUNDS)()
    return {name: arms[name] for name in ("full", "mixed", "buffer")}


def course_arms(limit: int, judged: int) -> Callable[[], dict[str, Method]]:
    """Ten recent methods, GRPO, and the best of the leaderboard, in responses of so many tokens.

    The published constants are for responses that are fifty times as long and for groups of 64.
    DUET gets the lab's length limit, and a problem keeps at least two rollouts, so that an
    advantage can be estimated. ARRoL judges at the given token in place of token 512, has five
    rounds of warm-up in place of 20, and a head that learns faster, since it sees fewer rounds.
    `arrol-one-bin` is the same with a head that cannot tell rollouts apart. Pilot-Commit has
    groups of 8 + 24, and eight of them, so that a round trains on as many rollouts as GRPO's.
    """

    def arms() -> dict[str, Method]:
        arrol = {"at": judged, "warm_up": 5, "learning_rate": 1e-2}
        return {
            "grpo": methods.grpo(),
            "ar3po": methods.ar3po(),
            "maxrl": methods.maxrl(),
            "gdpo": methods.gdpo(),
            "dps": methods.dps(),
            "pilot-commit": methods.pilot_commit(8, 24, groups=8),
            "duet": methods.duet(limit=limit, low=2).adjust("course", grace=8),
            "arrol": methods.arrol(16, course=Survival(**arrol)),
            "arrol-one-bin": methods.arrol(16, course=Survival(bins=1, **arrol)),
            "prefix-sampling": methods.prefix_sampling(),
            "prefix-rl": methods.prefix_rl(),
            "spec-rl": methods.spec_rl(),
            "partial-rollouts": methods.partial_rollouts(),
        }

    return arms


def ladder_arms(rounds: int) -> Callable[[], dict[str, Method]]:
    """The panel of the ladder, with the constants of `data/grids/leaderboard.yaml`."""
    return lambda: {
        "grpo": methods.grpo(),
        "pods": methods.pods(32, 8),
        "ar3po": methods.ar3po(),
        "pkpo": methods.pkpo(8),
        "dapo": methods.dapo(),
        "knapsack": methods.knapsack(),
        "aero": methods.aero(),
        "cbs-round": methods.cbs(planned=rounds),
    }


def ladder_arms_of(*names: str) -> Callable[[], dict[str, Method]]:
    """Some arms of the panel on the largest rung."""
    return lambda: {name: ladder_arms(LADDER_ROUNDS)()[name] for name in names}


def smollm2_regime(
    task: str,
    what: str,
    arms: Callable[[], dict[str, Method]],
    rates: tuple[float, ...],
) -> Regime:
    """A candidate of `papers.ladder` on the pretrained model of 135 million parameters."""
    return Regime(
        "the ladder",
        f"{what}, 135 million parameters, 4 problems a round",
        lambda: ladder.lab(task, SMOLLM2),
        "grpo",
        arms,
        {
            "rounds": LADDER_ROUNDS,
            "problems_per_round": 4,
            "measure": "rollouts",
            "target": 0.5,
            "rates": rates,
            "evaluate_every": 4,
            "seeds": 6,
        },
    )


REGIMES = {
    # A fifth of the pool out of reach, half of it solved: late in the training of Knapsack RL.
    "knapsack": Regime(
        "Knapsack RL",
        "half of the pool solved, 32 problems a round",
        lambda: labs.tiny(regime="knapsack"),
        "grpo-8",
        knapsack_arms,
        {"rounds": 100},
        outcomes=("grpo-8", "knapsack-8"),
    ),
    "knapsack-late": Regime(
        "Knapsack RL",
        "the late base, 32 problems a round",
        lambda: labs.tiny(base="late"),
        "grpo-8",
        knapsack_pair,
        {"rounds": 100},
    ),
    "knapsack-clean": Regime(
        "Knapsack RL",
        "the clean base, 32 problems a round",
        lambda: labs.tiny(base="clean"),
        "grpo-8",
        knapsack_pair,
        {"rounds": 100},
    ),
    "knapsack-long": Regime(
        "Knapsack RL",
        "half of the pool solved, 32 problems a round, 400 rounds",
        lambda: labs.tiny(regime="knapsack"),
        "grpo-8",
        knapsack_pair,
        {"rounds": 400, "rates": (4.5e-4, 9e-4, 1.8e-3), "evaluate_every": 40},
    ),
    # Three tenths of the pool unsolved, four updates a round.
    "ar3po": Regime(
        "AR3PO",
        "three tenths of the pool unsolved, 4 steps a round",
        lambda: labs.tiny(regime="ar3po"),
        "grpo",
        ar3po_arms,
        {"rounds": 100, "mini_batches": 4},
        outcomes=("grpo", "ar3po"),
    ),
    # Against the arm that samples less, so that both have 200 rounds.
    "ar3po-long": Regime(
        "AR3PO",
        "three tenths of the pool unsolved, 4 steps a round, 200 rounds",
        lambda: labs.tiny(regime="ar3po"),
        "ar3po",
        lambda: {name: ar3po_arms()[name] for name in ("grpo", "ar3po")},
        {
            "rounds": 200,
            "mini_batches": 4,
            "rates": (2.25e-4, 4.5e-4, 9e-4),
            "evaluate_every": 20,
        },
    ),
    # Against the arm that samples least, so that none goes on for longer than the others.
    "aero": Regime(
        "AERO",
        "the default pool, 32 problems a round",
        labs.tiny,
        "grpo-5",
        aero_arms,
        {"rounds": 100},
        outcomes=("grpo-16", "aero"),
    ),
    # One problem a step, as the authors released it.
    "pods": Regime(
        "PODS",
        "the default pool, one problem a step, 600 steps",
        labs.tiny,
        "grpo-16",
        pods_arms,
        PODS_SETTINGS,
    ),
    "pods-sizes": Regime(
        "PODS",
        "the default pool, one problem a step, 600 steps",
        labs.tiny,
        "pods-64-16",
        pods_sizes_arms,
        PODS_SETTINGS,
    ),
    "pods-long": Regime(
        "PODS",
        "the default pool, one problem a step, 2,400 steps",
        labs.tiny,
        "grpo-16",
        lambda: {name: pods_arms()[name] for name in ("grpo-16", "pods")},
        PODS_LONG_SETTINGS,
    ),
    "pods-batch": Regime(
        "PODS",
        "the default pool, 32 problems a round",
        labs.tiny,
        "grpo-8",
        pods_batch_arms,
        {"rounds": 100},
    ),
    **{
        f"cbs-{base}": Regime(
            "CBS",
            f"{base.upper()}'s objective, 16 new problems a round, 4 steps",
            lambda: labs.tiny(pool=None),
            "full",
            cbs_arms(base),
            {"rounds": CBS_ROUNDS, "problems_per_round": 16, "mini_batches": 4},
        )
        for base in ("grpo", "dapo", "gspo")
    },
    "cbs-long": Regime(
        "CBS",
        "GRPO's objective, 16 new problems a round, 4 steps, 360 rounds",
        lambda: labs.tiny(pool=None),
        "full",
        cbs_long_arms,
        {
            "rounds": CBS_LONG_ROUNDS,
            "problems_per_round": 16,
            "mini_batches": 4,
            "rates": (2.25e-4, 4.5e-4, 9e-4),
            "evaluate_every": 36,
        },
    ),
    # The panel of the leaderboard on larger models. The rung below is the leaderboard itself.
    "ladder-large": Regime(
        "the ladder",
        "the default pool, 0.34 million parameters",
        lambda: labs.tiny(size="large"),
        "grpo",
        ladder_arms(60),
        {
            "rounds": 60,
            "mini_batches": 2,
            "measure": "rollouts",
            "target": 0.5,
            "evaluate_every": 12,
        },
    ),
    # The second one was tuned first, and nearly all of its arms took the highest rate.
    "ladder-smollm2": smollm2_regime(
        "chain_sum",
        "sums of two or three one-digit numbers",
        ladder_arms(LADDER_ROUNDS),
        (2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3),
    ),
    "ladder-smollm2-low": smollm2_regime(
        "chain_sum",
        "sums of two or three one-digit numbers",
        ladder_arms(LADDER_ROUNDS),
        (2e-4, 4e-4, 8e-4),
    ),
    # Another kind of task, for the methods whose effects on sums are the largest, and AR3PO.
    "ladder-smollm2-largest": smollm2_regime(
        "the largest of four",
        "the largest of four numbers of two digits",
        ladder_arms_of("grpo", "pods", "ar3po", "dapo"),
        (4e-4, 8e-4, 1.6e-3, 3.2e-3),
    ),
    "course": Regime(
        "2026",
        "the default pool, 32 problems a round",
        labs.tiny,
        "grpo",
        course_arms(64, judged=16),
        {"rounds": 60, "measure": "tokens_sampled", "evaluate_every": 10},
    ),
    "course-tight": Regime(
        "2026",
        "long chains and a limit of 42 tokens, 32 problems a round",
        lambda: labs.tiny(regime="tight"),
        "grpo",
        course_arms(42, judged=12),
        {"rounds": 60, "measure": "tokens_sampled", "evaluate_every": 10},
    ),
}


def shelve(trial: Trial, outcomes: tuple[str, ...], place: Path) -> None:
    """Pack copies of the runs of a finished trial, and write its rows into the tables above them.

    Parameters
    ----------
    trial : Trial
    outcomes : labels
        The arms whose tables of rollouts are kept.
    place : path
        The folder of the runs; what is there is replaced. The folder above has the tables
        `arms.csv` and `tuning.csv` of all its trials, with a column for the name of this folder.
    """
    shelve_runs(trial.out / "runs", outcomes, place)
    for kind, table in {"arms": trial.table, "tuning": trial.tuning}.items():
        path = place.parent / f"{kind}.csv"
        rows = table.assign(trial=place.name)
        if path.exists():
            older = pd.read_csv(path)
            rows = pd.concat([older[older["trial"] != place.name], rows])
        rows.to_csv(path, index=False, float_format="%.6g")


def recorded_table(place: Path, kind: str) -> pd.DataFrame:
    """What is recorded of a trial beside its runs.

    Parameters
    ----------
    place : path
        As in `shelve`; or the folder of a trial that has a shelf for itself, as the leaderboard,
        and its tables in it.
    kind : {"arms", "tuning"}

    Returns
    -------
    DataFrame
        As `Trial.table` or `Trial.tuning`.
    """
    own = place / f"{kind}.csv"
    if own.exists():
        return pd.read_csv(own)
    table = pd.read_csv(place.parent / f"{kind}.csv")
    return table[table["trial"] == place.name].drop(columns="trial")


def recomputed(place: Path, against: str) -> pd.DataFrame:
    """What the runs of a trial say, read from its shelf alone.

    Parameters
    ----------
    place : path
        As in `recorded_table`.
    against : str
        The label of the baseline.

    Returns
    -------
    DataFrame, a row for each arm of the recorded table that was compared, by label
        As `workbench.trials.answer.table`.
    """
    recorded = recorded_table(place, "arms")
    compared = recorded[recorded["ratio"].notna()]
    runs = {label: by_seed(group) for label, group in load_all(place).items()}
    # Of the tuning only its error is left; older trials did not count it.
    errors = {}
    if "tuning_error" in compared:
        errors = np.log1p(compared.set_index("arm")["tuning_error"]).to_dict()
    found = answer.answers(
        {label: runs[label] for label in compared["arm"]},
        runs[against],
        target=float(compared["target"].iloc[0]),
        measure=compared["measure"].iloc[0],
        baseline=against,
        looks=(int(compared["seeds"].max()),),
        errors=errors,
    )
    return answer.table(found).set_index("arm")


def make_runs(cases: Sequence[Case], jobs: int | None) -> None:
    """Make the runs of cases that are missing.

    Raises
    ------
    RuntimeError
        Where a run failed; the others are made all the same.
    """
    with engine.at_work(jobs=jobs) as work_off:
        work_off(cases)
    failed = [case.name for case in cases if not case.finished]
    if failed:
        raise RuntimeError(f"runs that failed: {', '.join(failed)}; see {cases[0].logs.parent}")


def shelve_runs(runs: Path, outcomes: tuple[str, ...], place: Path) -> None:
    """Pack copies of finished runs.

    Parameters
    ----------
    runs : path
        With a folder an arm.
    outcomes : labels
        The arms whose tables of rollouts are kept.
    place : path
        The folder of the shelf; what is there is replaced.
    """
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(runs, place)
    for folder in sorted(place.iterdir()):
        pack(folder, None if folder.name in outcomes else ())
    pack(place)


def main() -> None:
    """Make the runs of the regimes that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("regimes", nargs="+", choices=REGIMES)
    parser.add_argument("--out", default="../runs/regimes")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--shelve", metavar="FOLDER", help="such as ../data/runs")
    given = parser.parse_args()
    for name in given.regimes:
        regime = REGIMES[name]
        trial = regime.trial(Path(given.out, name), jobs=given.jobs).run()
        print(trial, flush=True)
        if given.shelve:
            shelve(trial, regime.outcomes, Path(given.shelve, "regimes", name))


if __name__ == "__main__":
    main()
