"""Knapsack RL (arXiv 2509.25849): what its allocation spends rollouts on, how well it knows where,
and how evenly the rollouts can be dealt out to workers.

A frame is a record's rollouts with the columns problem, round and correct; a visit is one problem
in one round, see `papers.difficulty`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from papers import difficulty
from papers.difficulty import CLASSES, Frames, classify
from workbench.utils.validation import counts as checked_counts
from workbench.utils.validation import one_of, whole_number

__all__ = [
    "balance",
    "estimation_error",
    "final",
    "jobs",
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


def jobs(
    counts: Any, workers: int, costs: Any = None, rng: np.random.Generator | None = None
) -> list[np.ndarray]:
    """Rollouts as independent jobs: for each worker the problem of every rollout that it samples.

    Parameters
    ----------
    counts : (P,)
        Rollouts of each problem.
    workers : int
    costs : (P,), optional
        Cost of one rollout of each problem (a long prompt, a long answer). Then problems stay
        whole, so that a worker reads each prompt once, and go to workers by `balance`.
    rng : numpy.random.Generator, optional
        Shuffles the rollouts where there are no costs; without one they are dealt in turn.

    Returns
    -------
    list of int64 arrays, one a worker
        Without costs their sizes differ by one at most.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), appendix C.

    Examples
    --------
    >>> jobs([1, 3], workers=2)
    [array([0, 1]), array([1, 1])]
    """
    counts = checked_counts("counts", counts)
    whole_number("workers", workers, 1)
    if counts.ndim != 1:
        raise ValueError(f"counts: shape {counts.shape}; (P,) is needed")
    if costs is not None:
        costs = _costs(costs)
        if costs.shape != counts.shape:
            raise ValueError(f"costs {costs.shape} and counts {counts.shape}: both must be (P,)")
        return [np.repeat(part, counts[part]) for part in balance(costs * counts, workers)]
    rollouts = np.repeat(np.arange(len(counts)), counts)
    if rng is not None:
        rollouts = rng.permutation(rollouts)
    return [rollouts[worker::workers] for worker in range(workers)]


def balance(costs: Any, workers: int) -> list[np.ndarray]:
    """Split P jobs over workers so that their summed costs are close.

    The method is Karmarkar and Karp's largest differencing (1982).

    Parameters
    ----------
    costs : (P,) finite numbers of at least 0
    workers : int

    Returns
    -------
    list of int64 arrays, one a worker
        Ascending indices, the heaviest load first. Together they hold every index once; with fewer
        jobs than workers some are empty.

    Examples
    --------
    >>> balance([8, 7, 6, 5, 4], workers=2)
    [array([1, 3, 4]), array([0, 2])]
    """
    costs = _costs(costs)
    whole_number("workers", workers, 1)
    # A partial split is (-difference of loads, first index, the load and the jobs of each worker).
    # The heap joins the two with the greatest differences until one is left.
    idle: list[tuple[float, list[int]]] = [(0.0, [])] * (workers - 1)
    heap = [(-cost, i, [(cost, [i]), *idle]) for i, cost in enumerate(costs.tolist())]
    heapq.heapify(heap)
    while len(heap) > 1:
        _, i, first = heapq.heappop(heap)
        _, j, second = heapq.heappop(heap)
        # The heaviest load of each goes with the lightest of the other.
        pairs = zip(first, reversed(second))
        joined = [(a + b, jobs + others) for (a, jobs), (b, others) in pairs]
        joined.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (joined[-1][0] - joined[0][0], min(i, j), joined))
    parts = heap[0][2] if heap else [(0.0, [])] * workers
    return [np.array(sorted(jobs), dtype=np.int64) for _, jobs in parts]


def _costs(costs: Any) -> np.ndarray:
    costs = np.asarray(costs, dtype=np.float64)
    if costs.ndim != 1 or not np.isfinite(costs).all() or (costs < 0).any():
        raise ValueError(
            f"costs: shape {costs.shape}; (P,) finite numbers of at least 0 are needed"
        )
    return costs


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
