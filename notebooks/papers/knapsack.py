"""Knapsack RL (arXiv 2509.25849): what its allocation spends rollouts on, how well it knows where,
and how evenly the rollouts can be dealt out to workers.

A frame is a record's rollouts with the columns problem, round and correct; a visit is one problem
in one round, see `workbench.analysis.difficulty`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from papers import difficulty
from papers.difficulty import CLASSES, Frames, classify
from workbench.budgets import balance, jobs
from workbench.utils.validation import one_of

__all__ = [
    "estimation_error",
    "final",
    "largest_loads",
    "past_and_present",
    "solved_at_least_once",
    "spending",
    "spending_by_visit",
]


def past_and_present(
    frame: pd.DataFrame, window: int = 16
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """What was known of a problem before each visit but its first, and what the visit showed.

    Parameters
    ----------
    frame : DataFrame
        Rollouts with problem, round and correct.
    window : int
        The last so many rollouts are known.

    Yields
    ------
    visit, past, present : int, (w,) and (n,) float64
        Outcomes as 0.0 and 1.0; `past` has `window` of them or fewer.
    """
    # Both are ordered by problem and round, so that cutting the sorted outcomes at the running
    # sums of the sizes gives one array a visit. The last sum is the end, and no cut.
    sizes = frame.groupby(["problem", "round"], sort=True).size()
    ordered = frame.sort_values(["problem", "round"], kind="stable")
    outcomes = np.split(ordered["correct"].to_numpy(float), sizes.cumsum()[:-1])
    past = np.empty(0)
    for visit, present in zip(sizes.groupby("problem").cumcount(), outcomes):
        # The visits of a problem follow one another, so its first visit is where the past of the
        # problem before it is dropped.
        if visit == 0:
            past = present
            continue
        # Yielded before it joins the past: an allocator had not seen it either.
        yield int(visit), past[-window:], present
        past = np.concatenate([past, present])


def estimation_error(
    frame: pd.DataFrame, window: int = 16, rng: np.random.Generator | None = None
) -> pd.Series:
    """How far the rate of a problem's last rollouts lies from its rate at the next visit.

    Parameters
    ----------
    frame, window
        As for `past_and_present`.
    rng : numpy.random.Generator, optional
        Shuffles past and present outcomes of each visit first. What is left then is the error that
        chance alone would make, had the policy stood still.

    Returns
    -------
    Series by visit, from 1 on
        Mean absolute error over problems. Even a perfect estimate keeps the sampling error of the
        visit itself.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), appendix G.3, figure 15.
    """
    errors: dict[int, list[float]] = {}
    for visit, past, present in past_and_present(frame, window):
        if rng is not None:
            # In a random order, past and present come from one and the same rate, whatever the
            # policy did between the two visits.
            mixed = rng.permutation(np.concatenate([past, present]))
            past, present = np.split(mixed, [len(past)])
        errors.setdefault(visit, []).append(abs(past.mean() - present.mean()))
    by_visit = {visit: float(np.mean(values)) for visit, values in sorted(errors.items())}
    return pd.Series(by_visit, name="error")


def spending(frame: pd.DataFrame, window: int = 16) -> pd.DataFrame:
    """What rollouts were spent on, by what was known of a problem before its visit.

    Parameters
    ----------
    frame, window
        As for `past_and_present`; first visits, of which nothing was known, are left out.

    Returns
    -------
    DataFrame, a row for each of `difficulty.CLASSES`
        visits (share of them), rollouts (mean of a visit), spent (share of all rollouts) and mixed
        (share of the visits with right and wrong rollouts).

    References
    ----------
    Knapsack RL (arXiv 2509.25849), figure 16.
    """
    table = _known_visits(frame, window)
    by_class = table.groupby("class")
    summary = by_class[["rollouts", "mixed"]].mean()
    summary.insert(0, "visits", by_class.size() / len(table))
    summary.insert(2, "spent", by_class["rollouts"].sum() / table["rollouts"].sum())
    return summary.reindex(list(CLASSES))


def spending_by_visit(frame: pd.DataFrame, window: int = 16) -> pd.DataFrame:
    """Rollouts that problems get at each visit, by what was known of them before it.

    Parameters
    ----------
    frame, window
        As for `spending`.

    Returns
    -------
    DataFrame (visits from 1 on x `difficulty.CLASSES`)
        Mean rollouts of a visit; NaN where no problem of a class was visited.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), figure 16.
    """
    table = _known_visits(frame, window)
    by_visit = table.pivot_table(index="visit", columns="class", values="rollouts")
    return by_visit.reindex(columns=list(CLASSES)).rename_axis(columns=None)


def largest_loads(counts: Any, workers: int, rng: np.random.Generator) -> dict[str, float]:
    """How uneven the rollouts of a round are over workers, by how they are dealt out.

    Parameters
    ----------
    counts : (P,) rollouts of each problem
    workers : int
    rng : numpy.random.Generator
        Shuffles the rollouts.

    Returns
    -------
    dict from name to the largest load of a worker over the mean load
        "blocks": equally many problems, in their order, as uniform budgets allow. "problems":
        whole problems by Karmarkar and Karp's method. "rollouts": single rollouts, shuffled.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), appendix C.

    Examples
    --------
    >>> largest_loads([6, 1, 1, 4], 2, np.random.default_rng(0))
    {'blocks': 1.1666666666666667, 'problems': 1.0, 'rollouts': 1.0}
    """
    counts = np.asarray(counts)
    ways = {
        "blocks": np.array_split(np.arange(len(counts)), workers),
        "problems": balance(counts, workers),
    }
    loads = {name: [counts[part].sum() for part in parts] for name, parts in ways.items()}
    loads["rollouts"] = [len(part) for part in jobs(counts, workers, rng=rng)]
    return {name: float(np.max(load) / np.mean(load)) for name, load in loads.items()}


def _known_visits(frame: pd.DataFrame, window: int) -> pd.DataFrame:
    """All visits but first ones: visit, rollouts, mixed, and the class that the problem had."""
    rows = []
    for visit, past, present in past_and_present(frame, window):
        rows.append((visit, past.mean(), len(present), 0 < present.mean() < 1))
    table = pd.DataFrame(rows, columns=["visit", "rate", "rollouts", "mixed"])
    # The class is that of the past, which is all that an allocator can go by; the present only
    # says what came of it.
    return table.assign(**{"class": classify(table["rate"])})


def final(frames: Frames, equal: bool = False) -> pd.DataFrame:
    """Where problems end: the share of problems in every class at their last visit.

    Parameters
    ----------
    frames, equal
        As in `difficulty.last_rates`.

    Returns
    -------
    DataFrame, a row a label and seed
        A column for each of `CLASSES`, and stay: of the problems extremely hard at the first visit,
        the share that is so at the last.
    """
    rows = {}
    # First and last visits are of the same rounds.
    frames = difficulty.common_rounds(frames)
    for label, by_seed in difficulty.last_rates(frames, equal).items():
        for seed, last in by_seed.items():
            first = difficulty.visit_rates(frames[label][seed], 0)
            shares = pd.Series(classify(last)).value_counts(normalize=True)
            # Indexed by the first visit's problems, so that both have the same ones in the same
            # order.
            matrix = difficulty.transition_matrix(first, last[first.index], "rows")
            rows[label, seed] = {
                **shares.reindex(CLASSES, fill_value=0.0),
                "stay": matrix[0, 0],
            }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["label", "seed"])


def solved_at_least_once(frames: Frames, unsolved_at: str = "first") -> pd.DataFrame:
    """Of the problems without a right rollout at one visit, those solved at another one.

    Parameters
    ----------
    frames : dict from label to a dict from seed to rollouts
        Runs of a seed are cut to the rounds that all labels have.
    unsolved_at : {"first", "last"}
        "first": problems without a right rollout at their first visit, and how many of them were
        solved later. "last": those without one at their last visit, and how many of them had been
        solved before, which is the count of the paper.

    Returns
    -------
    DataFrame, a row a label and seed
        unsolved (problems without a right rollout at that visit that were drawn more than once),
        solved (those of them with a right one at another visit) and share.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), section 5.2: 577 of 3,596 prompts.
    """
    one_of("unsolved_at", unsolved_at, ("first", "last"))
    rows = {}
    for label, by_seed in difficulty.common_rounds(frames).items():
        for seed, frame in by_seed.items():
            table = difficulty.visits(frame).reset_index()
            last = table.groupby("problem")["visit"].transform("max")
            # A problem that was drawn only once had no second chance, and does not count as
            # unsolved.
            again = last > 0
            asked = table["visit"] == (0 if unsolved_at == "first" else last)
            unsolved = table.loc[again & asked & (table["correct"] == 0), "problem"]
            # None of these had a right rollout at the visit in question, so any right one is of
            # another visit.
            others = table[table["problem"].isin(unsolved)]
            solved = int((others.groupby("problem")["correct"].sum() > 0).sum())
            rows[label, seed] = {
                "unsolved": len(unsolved),
                "solved": solved,
                "share": solved / len(unsolved) if len(unsolved) else np.nan,
            }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["label", "seed"])
