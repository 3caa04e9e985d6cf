"""The table of a leaderboard: every method against one baseline, at equal cost, with intervals.

The question is what each method spends until its held-out accuracy is where the baseline gets to.
Spending is counted in rollouts, FLOPs, seconds and rounds; each is a ratio to the baseline, seed by
seed, with an interval on the log scale. `winners` asks the same at every price of sampling.

Many methods against one baseline are many questions, and some intervals leave 1 out by chance. So
p-values are corrected by Holm's method, and a row whose interval holds 1 says how small a change
its seeds could have shown: an open verdict is a result only together with that number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from papers.times import price_of_sampling, tokens_to_target
from workbench.analysis import cost
from workbench.analysis.comparisons import at_budget
from workbench.analysis.curves import against, common_budget, each, of_common_seeds, read
from workbench.analysis.intervals import Measurement, resolved_ratio
from workbench.analysis.sequential import ALPHA, verdicts
from workbench.analysis.targets import crossings, ratio_to_target, rising, to_target
from workbench.utils.validation import brief, one_of

# Name of a column, and what is counted in it.
UNITS: dict[str, Any] = {name: name for name in ("rollouts", "flops", "seconds", "round")}
# Seconds of runs made on several machines, or beside other programs, cannot be compared. What a
# round costs by a published measurement stands in their place.
FAIR_UNITS = {
    "rollouts": "rollouts",
    "flops": "flops",
    # The same where an update also computes the rollouts of advantage 0.
    "flops_all": cost.MACHINES["flops-all"],
    "l40s": cost.MACHINES["l40s"],
    "round": "round",
}
# The target lies so far on the baseline's way from its start to its end. At the end itself, a
# method that is a little slower would never arrive, and nothing could be said of by how much.
SHARE = 0.75
# The columns of `targets.to_target` that compare a method with the baseline.
RATIO = ("ratio", "low", "high", "p")
# What a round looks like: a column of the table, and the one of the rounds that it is the mean of.
ROUND_COLUMNS = {
    "rollouts_a_round": "rollouts",
    "all_right": "all_positive",
    "all_wrong": "all_negative",
}


def target_of(groups: Any, baseline: str = "grpo", share: float = SHARE) -> float:
    """The accuracy that all methods are measured to.

    Parameters
    ----------
    groups : dict from label to records
    baseline : str
        A label.
    share : float
        Of the way from where the baseline starts to where all of its runs end.
    """
    curves = read(groups)
    one_of("baseline", baseline, curves)
    return common_target({baseline: curves[baseline]}, share=share)


def common_target(groups: Any, y: str = "accuracy", share: float = 1.0) -> float:
    """The highest score that every run reaches, by the rising fit of its curve.

    Parameters
    ----------
    groups : dict from label to records
    y : str
        As in `curves.read`.
    share : float
        1 for that score itself; .8 for a target at 80 % of the way there from the highest score
        before training.

    Raises
    ------
    ValueError
        When a run ends no higher than another one begins.
    """
    curves = list(each(read(groups, y)))
    fits = [rising(curve.scores) for curve in curves]
    # Every run has to begin below the target and to end at it or above, so it lies between the
    # highest start and the lowest end.
    start = max(float(fit[0]) for fit in fits)
    top = min(float(fit[-1]) for fit in fits)
    if top <= start:
        raise ValueError(
            f"no target: a run ends at {top:.3g} and one begins at {start:.3g}, so there is no "
            "score above the start that all reach"
        )
    if not 0 < share <= 1:
        raise ValueError(f"share={brief(share)}: a number above 0 and up to 1 is needed")
    return start + share * (top - start)


def table(
    groups: Any,
    *,
    baseline: str = "grpo",
    target: float | None = None,
    units: Mapping[str, Any] = UNITS,
) -> pd.DataFrame:
    """One row a method: what it needs to the target, and how accurate it is at a budget.

    Parameters
    ----------
    groups : dict from label to records
        All evaluated after the same rounds. Seeds that a method shares with the baseline are
        compared.
    baseline : str
        A label.
    target : float, optional
        Held-out accuracy; None for `target_of`.
    units : dict from the name of a column to a unit
        What is counted to the target; "rollouts" is among them.

    Returns
    -------
    DataFrame, a row a label, those that need the fewest rollouts first
        seeds; reached (how many reached the target); for each of the units UNIT, UNIT_low and
        UNIT_high, the ratio to the baseline with its interval, and UNIT_censored, the pairs in
        which one of the two did not reach the target; verdict (by rollouts, after Holm's
        correction, see `sequential.verdict`), p_holm, and resolves: the change in percent that
        would have been found four times out of five after that correction, NaN where runs did not
        reach the target;
        accuracy and accuracy_half at the budget, with accuracy_difference, _low and _high to the
        baseline; rollouts_a_round; all_right and all_wrong: shares of groups, over the rounds that
        all runs have.
    """
    curves = read(groups)
    one_of("baseline", baseline, curves)
    if target is None:
        target = target_of(curves, baseline)
    # Accuracies are compared at the largest number of rollouts that all reached.
    budget = common_budget(curves, "rollouts")

    by_unit = {
        name: to_target(curves, target, unit, baseline=baseline) for name, unit in units.items()
    }
    by_rollouts = by_unit["rollouts"].reindex(columns=["n", "reached", *RATIO])
    frame = by_rollouts[["n", "reached"]].rename(columns={"n": "seeds"})
    # One family for the whole table: each method asks whether it differs from the baseline.
    frame[["p_holm", "verdict"]] = verdicts(by_rollouts)
    # By Holm's method a row is decided where its p times the rows still open is at most ALPHA.
    decided = frame["verdict"].isin(["better", "worse"]).sum()
    still_open = max(frame["p_holm"].notna().sum() - decided, 1)
    frame["resolves"] = np.nan
    crossed = {label: crossings(of, target, "rollouts") for label, of in curves.items()}
    # Whether a run reaches the target does not depend on what is counted.
    unreached = pd.Series(dtype=float)
    for label, pairs in against(crossed, baseline).items():
        unreached[label] = sum(not (one.reached and other.reached) for one, other in zip(*pairs))
        if not unreached[label]:
            ratio = ratio_to_target(*pairs)
            frame.loc[label, "resolves"] = resolved_ratio(ratio.values, 1 - ALPHA / still_open)
    scores = at_budget(curves, "rollouts", budget, baseline=baseline)
    scores = scores.reindex(columns=["mean", "half", "difference", "low", "high"])
    frame[["accuracy", "accuracy_half"]] = scores[["mean", "half"]]
    for name in ("difference", "low", "high"):
        frame[f"accuracy_{name}"] = scores[name]
    shared_rounds = min(len(curve.table) for curve in each(curves))
    for name, column in ROUND_COLUMNS.items():
        frame[name] = [
            np.mean([curve.table[column].iloc[:shared_rounds].mean() for curve in by_seed.values()])
            for by_seed in curves.values()
        ]
    for unit, ratios in by_unit.items():
        ratios = ratios.reindex(columns=RATIO)
        frame[[unit, f"{unit}_low", f"{unit}_high"]] = ratios[["ratio", "low", "high"]]
        frame[f"{unit}_censored"] = unreached
    # The baseline is 1 by definition, and stands where it belongs among the others.
    frame.loc[baseline, list(units)] = 1.0
    frame = frame.rename_axis("method")
    return frame.sort_values("rollouts", kind="stable", na_position="last")


def tables(
    groups: Any,
    baseline: str = "grpo",
    target: float | None = None,
    units: Mapping[str, Any] = UNITS,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The leaderboard, and who wins at which price: by tokens, in FLOPs, and on this machine.

    Parameters
    ----------
    groups : dict from label to records
    baseline : str
        A label.
    target, units
        As in `table`.

    Returns
    -------
    leaderboard : DataFrame
        As `table` gives it.
    prices : DataFrame
        As `winners` gives it, with a column `price_of`.
    """
    curves = read(groups)
    if target is None:
        target = target_of(curves, baseline)
    here = price_of_sampling(groups[baseline]).value
    prices = sorted({0.01, 0.1, cost.FLOP_PRICE, 1.0, 10.0, here})
    cheapest = winners(curves, target, baseline, prices)
    names = {cost.FLOP_PRICE: "FLOPs", here: "these records, in seconds"}
    cheapest.insert(1, "price_of", [names.get(price, "") for price in cheapest["price"]])
    return table(curves, baseline=baseline, target=target, units=units), cheapest


def winners(
    groups: Any,
    target: float,
    baseline: str = "grpo",
    prices: Iterable[float] = (0.01, 0.1, cost.FLOP_PRICE, 1.0, 10.0),
    bill: str = "gradient",
) -> pd.DataFrame:
    """The cheapest method at each price of sampling.

    Parameters
    ----------
    groups : dict from label to records
    target : float
        Held-out accuracy.
    baseline : str
        A label.
    prices : numbers above 0
        What a sampled token costs over what a trained one costs, see `analysis.cost`.
    bill : {"gradient", "selected"}
        Whether rollouts of advantage 0 are left out of what is trained, as here, or counted.

    Returns
    -------
    DataFrame, a row a price
        price; winner, the lowest bill among the methods whose runs all reached the target; ratio,
        low and high of its bill over the baseline's; pairs; and tied, as a text: which of these
        methods have a bill whose ratio to the winner's has an interval that holds 1. Without any
        row where no method has reached the target in all of its runs.

    Notes
    -----
    The winner is the best of many, so its ratio is a little too good: its luck is part of why it
    won. A final with fresh seeds is free of that, see `papers.halving`.
    """
    tokens = tokens_to_target(read(groups), target, bill)
    one_of("baseline", baseline, tokens)
    # What a run that did not arrive would have cost is not known, so its method cannot win.
    arrived = {
        label: of_label
        for label, of_label in tokens.items()
        if all(one.reached for one in of_label.values())
        and of_label.keys() & tokens[baseline].keys()
    }
    if not arrived:
        return pd.DataFrame(columns=["price", "winner", "ratio", "low", "high", "pairs", "tied"])
    rows = []
    for price in prices:

        def bills(label: str, other: str, price: float = price) -> Measurement:
            """The bill of one method over that of another."""
            pairs = of_common_seeds(tokens[label], tokens[other])
            return cost.bill_ratio(*pairs, price)

        compared = {label: bills(label, baseline) for label in arrived}
        winner = min(compared, key=lambda label: compared[label].value)
        tied = [
            label
            for label in arrived
            if label != winner
            and arrived[label].keys() & arrived[winner].keys()
            and not bills(label, winner).low > 1
        ]
        best = compared[winner].columns("ratio", n="pairs")
        rows.append({"price": float(price), "winner": winner, **best, "tied": ", ".join(tied)})
    return pd.DataFrame(rows)
