"""The command leaderboard: the runs that are missing, and the table of what there is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.analysis import cost
from workbench.analysis import leaderboard as analysis
from workbench.cli.terminal import as_json, say
from workbench.trials import halving, sweep
from workbench.trials import leaderboard as runs

if TYPE_CHECKING:
    import pandas as pd

BASELINE = "grpo"
# The columns that fit on a terminal; the file has all.
SHOWN = (
    "seeds",
    "rollouts",
    "rollouts_low",
    "rollouts_high",
    "verdict",
    "flops",
    "seconds",
    "round",
    "accuracy",
    "resolves",
)


def leaderboard(
    grid: str | None,
    seeds: int | None,
    only: tuple[str, ...],
    add: tuple[str, ...],
    base: str,
    size: str,
    regime: str,
    search: bool,
    price: float | None,
    single: str | None,
    only_table: bool,
    out: str | None,
    jobs: int | None,
    ray: str | None,
    json: bool,
) -> None:
    """The runs of a leaderboard, and its table; ValueError when some runs failed."""
    lab = {"base": base, "size": size, "regime": regime}
    plan = runs.plan(grid, out=out, lab=lab, seeds=seeds, only=only, own=own_methods(add))
    if search:
        _search(plan, price, single, jobs, ray, json)
        return
    # With --json the lines about progress go to stderr, so that stdout holds the tables alone.
    failed = 0
    if not only_table:
        _announce(plan, err=json)
        frame = sweep(
            plan.grid,
            out=plan.out,
            jobs=jobs,
            ray=ray,
            own=plan.own,
            by_seed=True,
            report=lambda line: say(line, err=json),
        )
        failed = int((frame["status"] == "failed").sum())
    _tell(plan, json)
    # After the tables, which show what there is. The error makes the exit status 1.
    if failed:
        raise ValueError(f"{failed} of {len(frame)} runs failed; the same command makes them again")


def _search(
    plan: runs.Plan,
    price: float | None,
    single: str | None,
    jobs: int | None,
    ray: str | None,
    json: bool,
) -> None:
    """The search over combinations, and the table of its final."""
    single = single or halving.best_single(plan, BASELINE, price)
    rungs, final = halving.search(
        plan,
        single,
        baseline=BASELINE,
        price=price,
        jobs=jobs,
        ray=ray,
        report=lambda line: say(line, err=json),
    )
    folder = plan.folder.with_name(f"{plan.folder.name}-search")
    rungs.to_csv(folder / "rungs.csv", index=False, float_format="%.6g", lineterminator="\n")
    _write_and_say(final, [], folder, json)


def own_methods(texts: Iterable[str]) -> dict[str, str]:
    """LABEL=MODULE:FUNCTION texts as a dict; modules in the working directory can be imported.

    >>> own_methods(["mine=my_methods:mine"])
    {'mine': 'my_methods:mine'}
    """
    own = {}
    for text in texts:
        label, equals, function = text.partition("=")
        if not label or not equals or ":" not in function:
            raise ValueError(f"--add {text}: LABEL=MODULE:FUNCTION is needed, as mine=my_file:mine")
        own[label] = function
    # The script `workbench` begins its search at its own directory, `python -m` at this one. The
    # processes that run are started by the latter.
    if own and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return own


def _announce(plan: runs.Plan, err: bool) -> None:
    """What will be made, before anything is."""
    cases = plan.cases()
    labels = {case.values["label"] for case in cases}
    hours = runs.expected_hours(cases)
    say(f"{len(cases)} runs of {len(labels)} methods, in {os.path.relpath(plan.folder)}", err=err)
    say(f"about {hours:.1f} hours on one core for those that are missing", err=err)


def _tell(plan: runs.Plan, json: bool) -> None:
    """Write the tables beside the records, and print them."""
    groups, missing = runs.recorded(plan.cases())
    if BASELINE not in groups:
        raise ValueError(
            f"{os.path.relpath(plan.folder)}: no run of {BASELINE!r} is complete yet, and every "
            "method is compared with it"
        )
    _write_and_say(groups, missing, plan.folder, json)


def _write_and_say(groups: Any, missing: list[str], folder: Path, json: bool) -> None:
    table, prices = tables(groups)
    table.to_csv(folder / "leaderboard.csv", float_format="%.6g", lineterminator="\n")
    prices.to_csv(folder / "prices.csv", index=False, float_format="%.6g", lineterminator="\n")
    if json:
        rows = table.reset_index().to_dict("records")
        say(as_json({"methods": rows, "prices": prices.to_dict("records"), "missing": missing}))
        return
    say("\nto the target, as ratios to GRPO's cost; below 1 is less\n")
    say(_as_text(table[list(SHOWN)]))
    say("\nthe cheapest method by the price of sampling; tied: the interval holds 1\n")
    say(_as_text(prices.set_index("price")))
    if missing:
        say(f"\n{len(missing)} runs are not complete and not in the table")
    say(f"\n{os.path.relpath(folder / 'leaderboard.csv')}")


def _as_text(table: pd.DataFrame) -> str:
    return table.to_string(float_format=lambda number: f"{number:.3g}")


def tables(groups: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The leaderboard, and who wins at which price: by tokens, in FLOPs, and on this machine.

    Parameters
    ----------
    groups : dict from label to records
    """
    from workbench.analysis.courses import read

    courses = read(groups)
    target = analysis.target_of(courses, BASELINE)
    table = analysis.table(courses, baseline=BASELINE, target=target)
    here = cost.price_of_sampling(groups[BASELINE]).value
    prices = sorted({0.01, 0.1, cost.FLOP_PRICE, 1.0, 10.0, here})
    winners = analysis.winners(courses, target, BASELINE, prices)
    names = {cost.FLOP_PRICE: "FLOPs", here: "these records, in seconds"}
    winners.insert(1, "price_of", [names.get(price, "") for price in winners["price"]])
    return table, winners
