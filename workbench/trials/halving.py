"""A search over combinations: successive halving, with a final on fresh seeds.

A combination takes one value for each slot from `CHOICES`. On the first rung every combination has
one seed. The best third goes on to the next rung, where each has twice as many seeds, and so on.
The few that are left meet the baseline and the best single paper in a final.

The best of seventy is partly the luckiest of seventy, so its own runs say too much in its
favour. The final therefore has seeds that no rung has seen, and its intervals are those of a
comparison that was settled beforehand.

Nothing is stored beside the records: which combinations survive follows from them, so a search that
was stopped goes on by the same command.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis import cost
from workbench.analysis.courses import read as read_courses
from workbench.analysis.intervals import mean_interval
from workbench.analysis.leaderboard import target_of
from workbench.trials.grids import read
from workbench.trials.leaderboard import Plan, recorded
from workbench.trials.runner import sweep
from workbench.utils.validation import whole_number

# Slot -> name -> settings of that slot, in the words of a grid; empty settings are those of GRPO.
# What saves something alone, on the leaderboard, stands here for what decides alike: MoPPS for the
# curricula that prefer mixed groups, PKPO and unbiased pruning for training on less.
Choices = Mapping[str, Mapping[str, Mapping[str, Any]]]
CHOICES: Choices = {
    "curriculum": {"epochs": {}, "mopps": {"curriculum": "Mopps"}},
    "allocator": {"uniform": {}, "staged": {"allocator": "Staged"}},
    "replay": {"fresh": {}, "reuse": {"replay": "CorrectResponses"}},
    "selector": {
        "all": {},
        "maxvar": {"selector": "MaxVariance", "selector.m": 4},
        "pruned": {"selector": "Pruned"},
    },
    "advantage": {
        "group": {},
        "beta": {"advantage": "DiscountedBeta"},
        "pkpo": {"advantage": "Pkpo"},
    },
}
# One combination in three goes on to the next rung.
KEEP = 3
# Seeds of the leaderboard begin at 0. Those of the rungs and of the final are others.
FIRST_SEED = 100
FINAL_SEED = 200
# On the rungs a run is shorter and its evaluations are coarser: what decides there is decided again
# in the final. A run has this share of the final's budget, and the target is what the baseline
# reaches within it. Bills are counted in tokens, so rounds may share prefixes, although their
# seconds then mean little.
RUNG_BUDGET = 2 / 3
RUNG_LAB = {"samples": 8, "share_prefixes": True}
RUNG_EVALUATIONS = 10


# Which combinations there are, and which go on: pure functions


def combinations(choices: Choices = CHOICES) -> dict[str, dict[str, Any]]:
    """Every choice of one value for each slot.

    Parameters
    ----------
    choices : dict from slot to a dict from name to settings

    Returns
    -------
    dict from label to settings
        The label joins the names of the values, without those of GRPO, whose settings are empty.
        GRPO itself is left out.

    Examples
    --------
    >>> parts = {"replay": {"fresh": {}, "reuse": {"replay": "CorrectResponses"}}}
    >>> parts["advantage"] = {"group": {}, "rloo": {"advantage": "LeaveOneOut"}}
    >>> list(combinations(parts))
    ['rloo', 'reuse', 'reuse+rloo']
    """
    made = {}
    for names, label in _labels(choices).items():
        settings: dict[str, Any] = {}
        for slot, name in zip(choices, names):
            settings |= choices[slot][name]
        if settings:
            made[label] = settings
    return made


def rung_sizes(candidates: int, finalists: int, keep: int = KEEP) -> list[int]:
    """How many combinations each rung has.

    Parameters
    ----------
    candidates : int
    finalists : int
        How many are wanted in the final.
    keep : int
        One in so many goes on.

    Examples
    --------
    >>> rung_sizes(71, 3)
    [71, 23, 7]
    >>> rung_sizes(2, 3)
    [2]
    """
    whole_number("candidates", candidates, 1)
    whole_number("finalists", finalists, 1)
    whole_number("keep", keep, 2)
    sizes = [candidates]
    while sizes[-1] // keep > finalists:
        sizes.append(sizes[-1] // keep)
    return sizes


def rung_seeds(rung: int) -> list[int]:
    """Seeds of a rung, from 0 on: those of the rung before and as many new ones.

    >>> rung_seeds(0), rung_seeds(2)
    ([100], [100, 101, 102, 103])
    """
    whole_number("rung", rung, 0)
    seeds = range(FIRST_SEED, FIRST_SEED + 2**rung)
    if seeds[-1] >= FINAL_SEED:
        raise ValueError(f"rung={rung}: its seeds would reach those of the final; keep fewer")
    return list(seeds)


def final_seeds(n: int) -> list[int]:
    """The seeds of the final. No run of the rungs has any of them.

    >>> final_seeds(3)
    [200, 201, 202]
    """
    whole_number("n", n, 2)
    return list(range(FINAL_SEED, FINAL_SEED + n))


def survivors(scores: Mapping[str, float], n: int) -> list[str]:
    """The n labels of the lowest scores, the best first.

    Parameters
    ----------
    scores : dict from label to number
        Infinite for a combination that did not reach the target. Of equal scores the one that
        stands first is the better one.
    n : int

    Examples
    --------
    >>> survivors({"a": 0.2, "b": -0.1, "c": float("inf"), "d": -0.1}, 2)
    ['b', 'd']
    """
    whole_number("n", n, 1)
    for label, score in scores.items():
        if math.isnan(score):
            raise ValueError(f"scores: {label} has none")
    # `sorted` keeps the order of equal scores.
    return sorted(scores, key=lambda label: scores[label])[:n]


# The search itself


def search(
    plan: Plan,
    single: str,
    *,
    choices: Choices = CHOICES,
    baseline: str = "grpo",
    price: float | None = None,
    finalists: int = 3,
    seeds: int = 8,
    report: Callable[[str], Any] = print,
    **workers: Any,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Find the best combinations, and compare them in a final.

    Parameters
    ----------
    plan : Plan
        Of the leaderboard: its lab and its parameters are those of the search. Records go beside
        it, in directories whose names end in "-search".
    single : str
        Label of the best single paper, which takes part in the final.
    choices
        As `combinations` takes them.
    baseline : str
        Label of the method that all are compared with.
    price : float, optional
        Of sampling, at which combinations are ranked; None for the price in FLOPs.
    finalists : int
        Combinations in the final.
    seeds : int
        Of the final.
    report, workers
        As for `sweep`; workers are its jobs and ray.

    Returns
    -------
    rungs : DataFrame
        A row a combination and rung: rung, label, seeds and score, the mean over seeds of the
        logarithm of its bill to the target over the baseline's.
    final : dict from label to records
    """
    candidates = {
        label: {"label": label, "method": "grpo", "settings": settings}
        for label, settings in combinations(choices).items()
    }
    options = {"report": report, **workers}
    left = list(candidates)
    sizes = rung_sizes(len(left), finalists)
    rows = []
    for rung, size in enumerate(sizes):
        left = left[:size]
        of_rung = rung_seeds(rung)
        cases = [_case(plan, baseline), *(candidates[label] for label in left)]
        report(f"rung {rung + 1} of {len(sizes)}: {size} combinations, {len(of_rung)} seeds each")
        grid = _rung_grid(plan, cases, of_rung)
        groups = _made(grid, baseline, _beside(plan.out) / "rungs", **options)
        whole = {label: of for label, of in groups.items() if len(of) == len(of_rung)}
        # A combination whose training failed has not arrived either.
        scores = dict.fromkeys(left, math.inf) | bill_scores(whole, baseline, price)
        rows += [
            {"rung": rung + 1, "label": label, "seeds": len(of_rung), "score": scores[label]}
            for label in left
        ]
        # In the order of their scores, so that the next rung takes as many as it has room for.
        left = survivors({label: scores[label] for label in left}, len(left))

    # The single paper takes part anyway, also where it was one of the combinations.
    best = [label for label in left if label != single][:finalists]
    report(f"final on fresh seeds: {', '.join(best)}, against {baseline} and {single}")
    cases = [_case(plan, label) for label in (baseline, single)]
    cases += [candidates[label] for label in best]
    grid = {**_grid(plan, cases, final_seeds(seeds)), "folder": str(_beside(plan.folder))}
    final = _made(grid, baseline, _beside(plan.out) / "final", **options)
    return pd.DataFrame(rows), final


def bill_scores(groups: Any, baseline: str, price: float | None = None) -> dict[str, float]:
    """How the bill of each arm to the baseline's target compares with the baseline's.

    Parameters
    ----------
    groups : dict from label to records
        All of the same seeds.
    baseline : str
    price : float, optional
        Of sampling; None for that in FLOPs.

    Returns
    -------
    dict from label to number
        The mean over seeds of the logarithm of the ratio, infinite where a run did not arrive: it
        had as many rollouts as the baseline, and what it still lacks is not known.
    """
    if price is None:
        price = cost.FLOP_PRICE
    courses = read_courses(groups)
    tokens = cost.tokens_to_target(courses, target_of(courses, baseline))
    scores = dict.fromkeys(tokens, math.inf)
    for label, by_seed in tokens.items():
        if all(spent.reached for spent in by_seed.values()):
            ratio = cost.bill_ratio(by_seed.values(), tokens[baseline].values(), price)
            scores[label] = float(np.log(ratio.value))
    return scores


def effects(rungs: pd.DataFrame, choices: Choices = CHOICES) -> pd.DataFrame:
    """What each value of a slot changes, on average over everything that the other slots do.

    The first rung has all combinations, so for each value there are pairs of combinations that
    differ in this slot alone, one with the value and one with what GRPO has there.

    Parameters
    ----------
    rungs : DataFrame
        As `search` returns it. Only its first rung is read.
    choices
        Those of the search. The first value of each slot is the one that the others are compared
        with, as that of GRPO is in `CHOICES`.

    Returns
    -------
    DataFrame
        A row a slot and value, the first ones left out: ratio, the geometric mean over pairs of the
        bill with the value over the bill without; low and high, the 95 % Student interval over
        pairs; pairs; unfinished, pairs that are left out since one of the two did not arrive.
        Pairs have their seed and the rest of their slots in common with other pairs, so the
        interval says whether the change is the same whatever the other slots do, and not how it
        would differ with another seed.

    Raises
    ------
    ValueError
        If the first rung lacks a combination.
    """
    first = rungs[rungs["rung"] == 1]
    scores = dict(zip(first["label"], first["score"].astype(float)))
    missing = sorted(set(combinations(choices)) - set(scores))
    if missing:
        raise ValueError(f"the first rung lacks {missing[0]}, so not every value has its pairs")
    # The bill of GRPO is what all others are divided by.
    scores[""] = 0.0
    of_names = {names: scores[label] for names, label in _labels(choices).items()}
    rows = {}
    for place, (slot, values) in enumerate(choices.items()):
        usual, *others = values
        for value in others:
            differences = np.array(
                [
                    score - of_names[*names[:place], usual, *names[place + 1 :]]
                    for names, score in of_names.items()
                    if names[place] == value
                ]
            )
            # Of two runs that did not arrive the difference is not a number.
            arrived = differences[np.isfinite(differences)]
            mean, half = mean_interval(arrived) if len(arrived) else (math.nan, math.nan)
            rows[slot, value] = {
                "ratio": math.exp(mean),
                "low": math.exp(mean - half),
                "high": math.exp(mean + half),
                "pairs": len(arrived),
                "unfinished": len(differences) - len(arrived),
            }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["slot", "value"])


def best_single(plan: Plan, baseline: str = "grpo", price: float | None = None) -> str:
    """The label of the method with the lowest bill among the complete runs of a leaderboard.

    Combinations, which the grid gives settings of slots, are left out, and so is the baseline.

    Raises
    ------
    ValueError
        Where there is none to choose yet.
    """
    cases = plan.cases()
    plain = {case.values["label"] for case in cases if not case.values.get("settings")}
    groups, _ = recorded(cases)
    seeds = {
        label: {record.manifest["seed"] for record in records} for label, records in groups.items()
    }
    # Only what has all seeds of the baseline, so that the scores are of the same seeds.
    whole = {
        label: records
        for label, records in groups.items()
        if label in plain and seeds[label] == seeds.get(baseline)
    }
    if len(whole) < 2:
        raise ValueError(
            "the best single paper is not known yet: make the leaderboard first, or name one"
        )
    scores = bill_scores(whole, baseline, price)
    del scores[baseline]
    [label] = survivors(scores, 1)
    return label


def _labels(choices: Choices) -> dict[tuple[str, ...], str]:
    """The names of the values of every combination, and its label; GRPO's is empty."""
    made = {}
    for names in itertools.product(*choices.values()):
        changed = [name for slot, name in zip(choices, names) if choices[slot][name]]
        made[names] = "+".join(changed)
    return made


def _case(plan: Plan, label: str) -> dict[str, Any]:
    """The leaderboard's case of this label; ValueError where it has none."""
    cases = {case["label"]: case for case in plan.grid["cases"]}
    if label not in cases:
        raise ValueError(f"{label}: the leaderboard has no method of this label")
    return cases[label]


def _grid(plan: Plan, cases: Iterable[dict[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    parameters = dict(plan.grid["parameters"])
    return {"parameters": parameters, "cases": list(cases), "seeds": list(seeds)}


def _rung_grid(plan: Plan, cases: Iterable[dict[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """The same runs, shorter and with coarser evaluations."""
    grid = _grid(plan, cases, seeds)
    parameters = grid["parameters"]
    for budget in ("rounds", "rollouts"):
        if parameters.get(budget):
            parameters[budget] = math.ceil(RUNG_BUDGET * parameters[budget])
    parameters["lab"] = {**parameters["lab"], **RUNG_LAB}
    parameters["evaluate_every"] = RUNG_EVALUATIONS
    return grid


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}-search")


def _made(grid: dict[str, Any], baseline: str, out: Path, **options: Any) -> dict[str, Any]:
    """Make the runs of a grid, and read the records of those that ended well."""
    sweep(grid, out=out, by_seed=True, **options)
    groups, missing = recorded(read(grid, out))
    if len(groups.get(baseline, [])) < len(grid["seeds"]):
        raise ValueError(
            f"{baseline}: a run failed, and everything is compared with it; the same command makes "
            "it again"
        )
    if missing:
        options["report"](
            f"{len(missing)} runs failed and count as not arrived, such as {missing[0]}"
        )
    return groups
