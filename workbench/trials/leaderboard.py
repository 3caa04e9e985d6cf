"""The leaderboard: every method in one lab, each at its best, against one baseline.

It is a trial of many arms (`workbench.trials.trial`) with a fixed number of seeds. The arms are the
cases of data/grids/leaderboard.yaml. A method of a paper joins it by one line there. A method of
your own joins by the command line, since a grid never runs code:

    python -m workbench leaderboard --add mine=my_methods:mine
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from workbench import config
from workbench.analysis import cost
from workbench.trials.grids import read
from workbench.trials.halving import Search, methods
from workbench.trials.trial import Trial
from workbench.utils.shipped import shipped
from workbench.utils.validation import one_of

GRID = "grids/leaderboard.yaml"
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


def leaderboard(grid: Any = None, *, out: Any = None, **options: Any) -> Trial:
    """The trial of all methods of a grid, before anything is run.

    Parameters
    ----------
    grid : path, optional
        None for the one that comes with the package. Its learning rates are not used.
    out : path, optional
        None for runs/NAME, NAME being the grid's, with the lab behind it if it is another one.
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
    return Trial(arms, out=Path("runs", name) if out is None else out, **settings)


def search(
    single: str | None = None,
    price: float = cost.FLOP_PRICE,
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
    price : float
        Of sampling, at which combinations are ranked: a sampled token's cost over a trained one's.
    grid, out, options
        Of the leaderboard. The search goes beside it, into a directory that ends in "-search".
    """
    if single is None:
        single = best(leaderboard(grid, out=out, **options))
    arms, settings, name = _arms_and_settings(grid, **options)
    one_of("single", single, arms)
    folder = Path("runs", name) if out is None else Path(out)
    return Search(
        {**methods(), single: arms[single]},
        invited=[single],
        out=folder.with_name(f"{folder.name}-search"),
        measure=cost.CostModel(price),
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
    path = Path(shipped(GRID) if grid is None else grid)
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
