"""The leaderboard: every method in one lab, each at its best, against one baseline.

It is a trial of many arms (`workbench.trials.trial`) with a fixed number of seeds. The arms are the
cases of data/grids/leaderboard.yaml. A method of a paper joins it by one line there. A method of
your own joins by the command line, since a grid never runs code. In the folder `notebooks`:

    python -m papers.leaderboard --add mine=my_methods:mine

The same command goes on where it was stopped. It writes the tables beside the records, and prints
them: what each method needs to the target in rollouts, FLOPs, rounds and at the cost of an L40S,
how accurate it is at an equal number of rollouts, and which one is the cheapest at which price of
sampling.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from papers.halving import Search, methods
from papers.standings import FAIR_UNITS, tables
from workbench import config
from workbench.analysis import cost
from workbench.cli.train import pairs
from workbench.cli.trial import write_tables
from workbench.datasets.chains import ERROR_RATES, REGIMES
from workbench.trials.grids import read
from workbench.trials.trial import Trial
from workbench.utils.names import SIZES
from workbench.utils.validation import one_of

GRID = Path(__file__).parents[2] / "data" / "grids" / "leaderboard.yaml"
RUNS = Path("../runs")  # as seen from the folder of the notebooks
BASELINE = "grpo"
# What the grid's lab is where the command does not say otherwise; the folder of another lab is
# called after the difference.
LAB = {"base": "early", "size": "small", "regime": "spread"}
# The effort of tuning: the coarse grid of learning rates, and seeds.
RATES = (3e-4, 6e-4, 1.2e-3, 2.4e-3, 4.8e-3)
TUNING_SEEDS = 3
SEEDS = 8
# The parameters of the grid that a trial has, beside its lab.
OF_TRIAL = ("rounds", "problems_per_round", "mini_batches", "evaluate_every")
# The columns that fit on a terminal; the file has all.
SHOWN = ["seeds", "reached", "rollouts", "rollouts_low", "rollouts_high", "verdict", "p_holm"]
SHOWN += ["flops", "l40s", "round", "accuracy", "accuracy_difference", "resolves"]


def leaderboard(grid: Any = None, *, out: Any = None, **options: Any) -> Trial:
    """The trial of all methods of a grid, before anything is run.

    Parameters
    ----------
    grid : path, optional
        None for data/grids/leaderboard.yaml. Its learning rates are not used.
    out : path, optional
        None for ../runs/NAME, NAME being the grid's, with the lab behind it if it is another one.
    options
        lab : dict of other values of the lab's base, size and regime;
        only : labels of the methods to compare with the baseline, all where it is empty;
        own : dict from label to arm, further methods;
        and others of `Trial`, such as seeds, rates, tuning_seeds, target, jobs, ray and report.

    Raises
    ------
    ValueError
        For a label that does not exist, or exists already.
    """
    arms, settings, name = _arms_and_settings(grid, **options)
    return Trial(arms, out=RUNS / name if out is None else out, **settings)


def search(
    single: str | None = None,
    price: float | None = None,
    grid: Any = None,
    *,
    out: Any = None,
    **options: Any,
) -> Search:
    """The search for the best combination of slots in the lab of a leaderboard, before it is run.

    Parameters
    ----------
    single : label, optional
        The method of the leaderboard that its winners meet, besides the baseline. None for the best
        one of the leaderboard, which then has to be made before.
    price : float, optional
        Of sampling, at which combinations are ranked: a sampled token's cost over a trained one's.
        None ranks them by FLOPs, which also count what the sampler reads of old responses.
    grid, out, options
        Of the leaderboard. The search goes beside it, into a directory that ends in "-search".
    """
    if single is None:
        single = best(leaderboard(grid, out=out, **options))
    arms, settings, name = _arms_and_settings(grid, **options)
    one_of("single", single, arms)
    folder = RUNS / name if out is None else Path(out)
    return Search(
        {**methods(), single: arms[single]},
        invited=[single],
        out=folder.with_name(f"{folder.name}-search"),
        measure="flops" if price is None else cost.CostModel(price),
        **settings,
    )


def best(board: Trial) -> str:
    """The label of the arm that needs least, by what is recorded."""
    found = {label: answer.ratio for label, answer in board.answers.items() if answer.known}
    if not found:
        raise ValueError(
            "the best single paper is not known yet: make the leaderboard first, or name one"
        )
    return min(found, key=lambda label: found[label])


def _arms_and_settings(
    grid: Any,
    *,
    lab: Mapping[str, str] | None = None,
    only: Iterable[str] = (),
    own: Mapping[str, Any] | None = None,
    **settings: Any,
) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The arms of a leaderboard, the further arguments of its trial, and the name of its folder."""
    path = GRID if grid is None else Path(grid)
    planned = [case.values for case in read(path, Path.cwd(), records=Path.cwd())]
    # What all seeds of a method share.
    cases = {values.get("label"): values for values in planned}
    if None in cases:
        raise ValueError(f"grid {str(path)!r}: the methods need labels, under `cases`")
    arms = dict(own or {})
    for label in arms.keys() & cases.keys():
        raise ValueError(f"{label}: the grid has a method of this label; choose another one")
    only = list(only)
    for label in only:
        one_of("only", label, [*cases, *arms])
    made = {
        label: config.method(
            values.get("method", BASELINE), values.get("arguments"), values.get("settings")
        )
        for label, values in cases.items()
    }
    arms = {
        label: arm
        for label, arm in [*made.items(), *arms.items()]
        if not only or label in (*only, BASELINE)
    }
    shared = planned[0]
    seeds = {values.get("seed") for values in planned}
    changed = {name: value for name, value in (lab or {}).items() if value != LAB[name]}
    of_lab = {**config.mapping("lab", shared.get("lab")), **changed}
    defaults = {
        "against": arms.pop(BASELINE, BASELINE),
        "lab": config.lab(of_lab.pop("name", "tiny"), of_lab),
        "seeds": SEEDS if None in seeds else len(seeds),
        "rates": RATES,
        "tuning_seeds": TUNING_SEEDS,
    }
    of_grid = {name: shared[name] for name in OF_TRIAL if name in shared}
    # What is None was left out by the caller.
    given = {name: value for name, value in settings.items() if value is not None}
    return arms, {**defaults, **of_grid, **given}, "-".join([path.stem, *changed.values()])


def write(board: Trial) -> None:
    """Write the tables of a leaderboard beside its records, and print them.

    Raises
    ------
    ValueError
        Before a run of the baseline is complete.
    """
    groups = {label: list(of.values()) for label, of in board.records.items() if of}
    baseline = board.settings.baseline
    if baseline not in groups:
        raise ValueError(
            f"{os.path.relpath(board.out)}: no run of {baseline!r} is complete yet, and all "
            "methods are compared with it; the command without --table makes the runs"
        )
    table, prices = tables(groups, baseline, board.target, FAIR_UNITS)
    for label, tuned in board.look().tunings.items():
        table.loc[table.index == label, "learning_rate"] = tuned.learning_rate
    frames = {"leaderboard": table.reset_index(), "prices": prices}
    frames |= {"arms": board.table, "tuning": board.tuning}
    if isinstance(board, Search):
        frames["rungs"] = board.rungs
    write_tables(board.out, **frames)
    digits = "{:.3g}".format
    print(f"\nto an accuracy of {board.target:.2f}, as ratios to GRPO's cost; below 1 is less\n")
    print(table[SHOWN].to_string(float_format=digits))
    print("\nthe cheapest method by the price of sampling; tied: the interval holds 1\n")
    print(prices.set_index("price").to_string(float_format=digits))
    missing = [label for label in board.settings.arms if label not in groups]
    if missing:
        print(f"\nnot complete, and not in the table: {', '.join(missing)}")
    print(f"\n{os.path.relpath(board.out / 'leaderboard.csv')}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that the command line asks for, and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("grid", nargs="?", help="a YAML file as of the command sweep")
    add("--seeds", type=int, help="fresh seeds of each method; by default the grid's")
    add("--only", action="append", default=[], metavar="LABEL", help="repeatable")
    add("--add", action="append", default=[], metavar="LABEL=MODULE:FUNCTION", help="repeatable")
    add("--base", default=LAB["base"], choices=list(ERROR_RATES))
    add("--size", default=LAB["size"], choices=SIZES)
    add("--regime", default=LAB["regime"], choices=[*REGIMES, "tight"])
    add("--rate", type=float, action="append", help="of the coarse grid of tuning; repeatable")
    add("--tuning-seeds", type=int, default=TUNING_SEEDS)
    add("--steps", type=int, action="append", help="optimizer steps to tune over; repeatable")
    add("--target", type=float, help="held-out accuracy; by default from the tuned baseline")
    add("--search", action="store_true", help="search for the best combination of slots")
    add("--price", type=float, help="of sampling, at which the search ranks in place of FLOPs")
    add("--single", metavar="LABEL", help="whom the search's winners meet, besides GRPO")
    add("--table", action="store_true", help="make no runs: only the tables of what is there")
    add("--out", metavar="FOLDER", help="by default ../runs/leaderboard")
    add("--jobs", type=int, help="runs side by side; by default one for each core")
    add("--ray", metavar="ADDRESS", help="a Ray cluster")
    given = parser.parse_args(arguments)
    options = {
        "out": given.out,
        "lab": {"base": given.base, "size": given.size, "regime": given.regime},
        "seeds": given.seeds,
        "only": given.only,
        "own": pairs(given.add),
        "rates": given.rate,
        "tuning_seeds": given.tuning_seeds,
        "mini_batches": given.steps,
        "target": given.target,
        "jobs": given.jobs,
        "ray": given.ray,
        "report": print,
    }
    if given.search:
        board: Trial = search(given.single, given.price, given.grid, **options)
    else:
        board = leaderboard(given.grid, **options)
    if not given.table:
        print(f"{len(board.settings.arms)} methods, in {os.path.relpath(board.out)}", flush=True)
        board.run()
    write(board)


if __name__ == "__main__":
    main()
