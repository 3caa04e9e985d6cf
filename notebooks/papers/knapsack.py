"""Knapsack RL (arXiv 2509.25849): what its allocation spends rollouts on, how well it knows where,
what becomes of the problems, and how evenly the rollouts can be dealt out to workers.

A frame is a record's rollouts with the columns problem, round and correct; a visit is one problem
in one round, see `workbench.analysis.difficulty`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from papers import claims
from papers.measures import Measure, accuracy, difference
from papers.plots import curve_panels, sweep_panels
from papers.tables import accuracy_gain, column_means, over_seeds, paired, seed_means
from papers.tuned import NO_TUNED_RUN, Shelf, claims_of_paper, recorded
from papers.verdicts import Claim, Finding
from workbench.analysis import difficulty
from workbench.analysis.cost import CostModel
from workbench.analysis.difficulty import CLASSES, Frames, classify
from workbench.analysis.intervals import Measurement, mean_interval
from workbench.analysis.runs import arms
from workbench.labs import shipped
from workbench.plots import stacked
from workbench.plots.style import seeds, style
from workbench.records import Record
from workbench.rules import budgets
from workbench.utils.validation import counts as checked_counts
from workbench.utils.validation import one_of, whole_number

__all__ = [
    "ABLATIONS",
    "ARMS",
    "CLAIMS_AT_ONE_RATE",
    "CLAIMS_OF_FIGURES",
    "EPOCH",
    "POOLS",
    "Pair",
    "Recorded",
    "across_pools",
    "balance",
    "bill",
    "class_bars",
    "ends",
    "estimation_error",
    "fallback_panels",
    "final",
    "gradient_panels",
    "jobs",
    "largest_loads",
    "load",
    "loads",
    "measured",
    "past_and_present",
    "published",
    "published_budgets",
    "published_scores",
    "reallocated",
    "reallocated_by_class",
    "solved_at_least_once",
    "spending",
    "spending_by_visit",
    "spending_over_seeds",
    "verdict_table",
]

EPOCH = 16  # rounds, since a pool of 512 problems is drawn 32 problems a round
# What the arms of the regime `knapsack` are called. N is the rollouts of a problem on average.
ARMS = {
    "grpo-8": "GRPO, N = 8",
    "knapsack-8": "Knapsack, N = 8",
    "grpo-4": "GRPO, N = 4",
    "knapsack-4": "Knapsack, N = 4",
    "grpo-16": "GRPO, N = 16",
    "knapsack-16": "Knapsack, N = 16",
}
# Knapsack RL with N = 8 without one part.
ABLATIONS = {
    "no-info-gain": "no InfoGain",
    "no-fallback": "no fallback",
    "no-bounds": "no bounds",
}
FOLDERS = (
    "regimes/knapsack",
    "regimes/knapsack-long",
    "regimes/knapsack-late",
    "regimes/knapsack-clean",
    "leaderboard",
    "knapsack",
    "head-to-head",
)
# Where Knapsack RL and GRPO were both tuned with N = 8: the labels of their records.
POOLS = {
    "half of the pool solved": ("regimes/knapsack/knapsack-8", "regimes/knapsack/grpo-8"),
    "default pool (leaderboard)": ("leaderboard/knapsack", "leaderboard/grpo"),
    "base late": ("regimes/knapsack-late/knapsack-8", "regimes/knapsack-late/grpo-8"),
    "base clean": ("regimes/knapsack-clean/knapsack-8", "regimes/knapsack-clean/grpo-8"),
}


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


def reallocated(
    frame: pd.DataFrame, settings: Mapping[str, Mapping[str, Any]], window: int = 16
) -> pd.DataFrame:
    """What other allocations would have given to the problems of recorded rounds.

    Every round is asked anew with the success rates that were known before it, so that allocations
    are compared on the same problems. Rounds in which a problem came for the first time are left
    out.

    Parameters
    ----------
    frame, window
        As for `past_and_present`.
    settings : dict from name to arguments of `budgets.knapsack`

    Returns
    -------
    DataFrame, a row a visit
        round, rate (known before), class, rollouts (as recorded), and a column for each setting.
    """
    # `past_and_present` goes through the visits in this order, without first ones.
    visited = frame.groupby(["problem", "round"], sort=True).size().reset_index(name="rollouts")
    visited = visited[visited.groupby("problem").cumcount() > 0]
    visited["rate"] = [past.mean() for _, past, _ in past_and_present(frame, window)]
    # In the order of the record, since ties go to the problem that comes first.
    order = frame[["round", "problem"]].drop_duplicates()
    visited = order.merge(visited, how="left")
    whole = visited.groupby("round")["rate"].transform(lambda rates: rates.notna().all())
    visited = visited[whole].reset_index(drop=True)
    for name, options in settings.items():
        counts = [
            budgets.knapsack(part["rate"], int(part["rollouts"].sum()), **options)
            for _, part in visited.groupby("round", sort=False)
        ]
        visited[name] = np.concatenate(counts)
    visited.insert(2, "class", classify(visited["rate"]))
    return visited.drop(columns="problem")


def reallocated_by_class(
    frames: Mapping[int, pd.DataFrame], settings: Mapping[str, Mapping[str, Any]]
) -> pd.DataFrame:
    """`reallocated` over the runs of several seeds: rollouts of a visit by class.

    Parameters
    ----------
    frames : dict from seed to rollouts
    settings
        As for `reallocated`.

    Returns
    -------
    DataFrame
        A row for each of `difficulty.CLASSES` with the mean rollouts of a visit, as recorded and by
        each setting; and rows moved, %, the share of rollouts that a setting gives to other
        problems than the record, and largest, the most that a visit gets.
    """
    visited = pd.concat([reallocated(frame, settings) for frame in frames.values()])
    columns = ["rollouts", *settings]
    table = visited.groupby("class")[columns].mean().reindex(list(CLASSES))
    # What one problem has more, another one has less, so that half of the differences are moved.
    differences = visited[columns].sub(visited["rollouts"], axis=0).abs().sum() / 2
    table.loc["moved, %"] = 100 * differences / visited["rollouts"].sum()
    table.loc["largest"] = visited[columns].max()
    return table.rename(columns={"rollouts": "recorded"})


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
            matrix = difficulty.transition_matrix(first, last[first.index])
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


@dataclass(frozen=True)
class Pair:
    """GRPO and Knapsack RL with equally many rollouts on one pool of problems.

    Attributes
    ----------
    grpo, ours : list of Record
        The runs of GRPO and of Knapsack RL, whose records keep which rollouts were right.
    """

    grpo: Sequence[Record]
    ours: Sequence[Record]

    @property
    def groups(self) -> dict[str, Sequence[Record]]:
        """The runs by what the methods are called."""
        return {"GRPO": self.grpo, "Knapsack": self.ours}

    @cached_property
    def frames(self) -> dict[str, dict[int, pd.DataFrame]]:
        """The rollouts of all runs, in the rounds that both methods have."""
        return difficulty.common_rounds(difficulty.outcomes(self.groups))

    @cached_property
    def visits(self) -> dict[str, list[pd.DataFrame]]:
        """A table of `difficulty.visits` for every run."""
        return {
            label: [difficulty.visits(frame) for frame in by_seed.values()]
            for label, by_seed in self.frames.items()
        }

    @cached_property
    def spent(self) -> dict[str, dict[int, pd.DataFrame]]:
        """A table of `spending` for every run, by label and seed."""
        return {
            label: {seed: spending(frame) for seed, frame in by_seed.items()}
            for label, by_seed in self.frames.items()
        }

    @cached_property
    def ends(self) -> pd.DataFrame:
        """Where problems end, see `ends`."""
        return ends(self.frames)

    def errors(self, rng: np.random.Generator | None = None) -> dict[str, pd.DataFrame]:
        """The error of the estimated success rate, a table of seeds by visits for each method.

        Parameters
        ----------
        rng : numpy.random.Generator, optional
            As in `estimation_error`.
        """
        return {
            label: pd.DataFrame([estimation_error(frame, rng=rng) for frame in by_seed.values()])
            for label, by_seed in self.frames.items()
        }

    def errors_and_chance(self, visits: int, seed: int) -> dict[str, dict[str, pd.DataFrame]]:
        """The error beside that of chance, as `plots.sweep_panels` draws them.

        Parameters
        ----------
        visits : int
            Visits after the first that count. Only a part of the problems is visited more often,
            which would be another set of problems.
        seed : int
            Of what shuffles the outcomes.

        Returns
        -------
        dict from label to a dict from "error" and "chance" to a DataFrame with mean and half
        """
        kinds = {"error": self.errors(), "chance": self.errors(np.random.default_rng(seed))}
        lines: dict[str, dict[str, pd.DataFrame]] = {label: {} for label in self.groups}
        for kind, tables in kinds.items():
            for label, table in tables.items():
                intervals = table.loc[:, :visits].apply(mean_interval).T
                lines[label][kind] = intervals.set_axis(["mean", "half"], axis=1)
        return lines


class Recorded(NamedTuple):
    """The recorded runs that the notebook reads, see `load`."""

    records: dict[str, list[Record]]
    shelf: Shelf
    tuned: Pair
    one_rate: Pair


def load(folder: Any) -> Recorded:
    """The recorded runs of Knapsack RL.

    Parameters
    ----------
    folder : path
        Such as data/runs.

    Returns
    -------
    records : dict from "folder/label" to records
    shelf : tuned.Shelf
        The trial of the regime `knapsack`.
    tuned, one_rate : Pair
        GRPO and Knapsack RL with N = 8: tuned, in the regime; and at one rate, in the default pool.
    """
    records = recorded(folder, FOLDERS)
    tuned_pair = (records[f"regimes/knapsack/{arm}"] for arm in ("grpo-8", "knapsack-8"))
    before = (records[f"head-to-head/{arm}"] for arm in ("grpo", "knapsack"))
    shelf = Shelf(Path(folder, "regimes/knapsack"), ARMS | ABLATIONS)
    return Recorded(records, shelf, Pair(*tuned_pair), Pair(*before))


def ends(frames: Frames) -> pd.DataFrame:
    """Where problems end, read from all rollouts of the last visit and from equally many.

    Parameters
    ----------
    frames : dict from label to a dict from seed to rollouts

    Returns
    -------
    DataFrame, a row for each way of counting, label and seed
        The columns of `final`; counted is "as allocated" or "equal numbers".
    """
    tables = {
        "as allocated": final(frames, equal=False),
        "equal numbers": final(frames, equal=True),
    }
    return pd.concat(tables, names=["counted"])


def spending_over_seeds(
    by_seed: Mapping[int, pd.DataFrame], columns: Sequence[str]
) -> pd.DataFrame:
    """Means over seeds of some columns of `spending`, a row for each class."""
    return pd.concat(by_seed).groupby(level=1, sort=False)[list(columns)].mean()


def bill(groups: Any, model: CostModel, rounds: tuple[int, int]) -> pd.DataFrame:
    """What a round of each arm consists of and costs: means over rounds and seeds.

    Parameters
    ----------
    groups : dict from name to records
    model : cost.CostModel
        Computes what a round costs where every selected rollout is trained.
    rounds : (first, last)
        Both included.

    Returns
    -------
    DataFrame, a row an arm
        rollouts, with gradient (those that the update here computes), tokens a rollout (sampled),
        sampling and update (GFLOPs, as computed here), and both together as the library computes
        them and with every rollout trained, in percent of the first arm's.
    """
    rows = {}
    for name, records in arms(groups).items():
        table = pd.concat([record.rounds for record in records])
        table = table[table["round"].between(*rounds)]
        rows[name] = {
            "rollouts": table["rollouts"].mean(),
            "with a gradient": table["trained"].mean(),
            "tokens a rollout": table["tokens_sampled"].sum() / table["rollouts"].sum(),
            "sampling, GFLOPs": table["flops_generate"].mean() / 1e9,
            "update, GFLOPs": table["flops_update"].mean() / 1e9,
            "FLOPs, %": table["flops"].mean(),
            "every rollout trained, %": model.per_round(table).mean(),
        }
    found = pd.DataFrame.from_dict(rows, orient="index")
    relative = ["FLOPs, %", "every rollout trained, %"]
    found[relative] = 100 * found[relative] / found[relative].iloc[0]
    return found


def loads(frame: pd.DataFrame, workers: Sequence[int], rng: np.random.Generator) -> pd.DataFrame:
    """The largest load of a worker over the mean load, averaged over the rounds of a run.

    Parameters
    ----------
    frame : DataFrame
        Rollouts with problem and round.
    workers : list of int
        The numbers of workers.
    rng : numpy.random.Generator
        As in `largest_loads`.

    Returns
    -------
    DataFrame (ways of `largest_loads` x numbers of workers)
    """
    by_round = [
        group.groupby("problem", sort=False).size().to_numpy()
        for _, group in frame.groupby("round", sort=True)
    ]
    means = {}
    for number in workers:
        means[number] = pd.DataFrame(
            [largest_loads(counts, number, rng) for counts in by_round]
        ).mean()
    return pd.DataFrame(means).rename_axis("workers", axis=1)


def across_pools(records: Mapping[str, Sequence[Record]], first: int = EPOCH + 1) -> pd.DataFrame:
    """Knapsack RL against GRPO in every pool in which both were tuned.

    Parameters
    ----------
    records : dict from "folder/label" to records
        Pools of which there are no records are left out.
    first : int
        The first round that counts for shares of rounds.

    Returns
    -------
    DataFrame, a row a pool
        all right and all wrong: percent of the problems of a round of GRPO. with a gradient: the
        points by which Knapsack RL has a larger share of such rollouts. equal rollouts and equal
        FLOPs: its accuracy above GRPO's, in points. The last three are texts with an interval.
        seeds.
    """
    rows = {}
    for pool, (arm, baseline) in POOLS.items():
        if arm not in records or baseline not in records:
            continue
        ours, grpo = records[arm], records[baseline]
        shares = column_means(
            {"GRPO": grpo}, ["all_positive", "all_negative"], rounds=(first, len(grpo[0].rounds))
        )
        ratio = difference(
            arm=arm, baseline=baseline, column="effective_gradient_ratio", from_epoch=2
        ).measured(records)
        rows[pool] = {
            "all right, %": f"{100 * shares.loc['GRPO', ('all_positive', 'mean')]:.0f}",
            "all wrong, %": f"{100 * shares.loc['GRPO', ('all_negative', 'mean')]:.0f}",
            "with a gradient": _with_ends(ratio),
            "equal rollouts": _with_ends(accuracy_gain(ours, grpo, "rollouts")),
            "equal FLOPs": _with_ends(accuracy_gain(ours, grpo, "flops")),
            "seeds": ratio.n,
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _with_ends(found: Measurement) -> str:
    return f"{found.value:+.1f} [{found.low:.1f}, {found.high:.1f}]"


# What the paper prints


def published(name: str) -> pd.DataFrame:
    """A published table, data/published/knapsack_NAME.csv."""
    return pd.read_csv(shipped(f"published/knapsack_{name}.csv"))


def published_scores() -> pd.DataFrame:
    """The averages of tables 1, 5 and 6, with the difference of Knapsack RL to GRPO."""
    scores = pd.concat([published(name) for name in ("table1", "table5", "table6")])
    scores = scores.query("benchmark == 'average' and method != 'base'")
    scores = scores.pivot(index=["table", "model"], columns="method", values="value")
    scores["difference"] = (scores["Knapsack-GRPO"] - scores["GRPO"]).round(1)
    return scores


def published_budgets() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables 2 and 3 beside what `budgets.knapsack` gives.

    Returns
    -------
    table2 : DataFrame (with and without the fallback, published and ours, x problems)
    table3 : DataFrame (rows of the paper and ours x success rates)
        Its last column is the sum of equation 6.
    """
    second = published("table2").pivot(
        index=["problem", "success_rate"], columns="fallback", values="rollouts"
    )
    known = second.index.get_level_values("success_rate")
    second["yes, ours"] = budgets.knapsack(known, 64, fallback=True)
    second["no, ours"] = budgets.knapsack(known, 64, fallback=False)
    third = published("table3").pivot(index="method", columns="success_rate", values="rollouts")
    rates = third.columns.to_numpy(float)
    third.loc["ours, N_low = 2"] = budgets.knapsack(rates, 72)
    third.loc["ours, N_low = 3"] = budgets.knapsack(rates, 72, low=3)
    third.loc["ours, w/o InfoGain"] = budgets.knapsack(rates, 72, info_gain=False)
    values = [budgets.value(counts, rates).sum().round(4) for counts in third.to_numpy()]
    return second.sort_index(axis=1).T, third.assign(value=values)


# What its figures claim, beyond the claims of `published_claims.py`


def verdict_table(
    records: Mapping[str, Sequence[Record]], tuned: Pair, before: Pair
) -> pd.DataFrame:
    """The table of `tuned.claims_of_paper`.

    Parameters
    ----------
    records : dict from "folder/label" to records
    tuned, before : Pair
        The tuned runs of the regime, and those at one rate in the default pool.

    Returns
    -------
    DataFrame
    """
    of_figures = [claim for claim, _ in CLAIMS_OF_FIGURES]
    return claims_of_paper(
        "Knapsack RL",
        records,
        [*of_figures, *CLAIMS_AT_ONE_RATE],
        [*measured(tuned), *[NO_TUNED_RUN] * len(CLAIMS_AT_ONE_RATE)],
        [*measured(before), *claims.findings(CLAIMS_AT_ONE_RATE, records)],
    )


def measured(pair: Pair) -> list[Finding]:
    """The claims of `CLAIMS_OF_FIGURES`, measured on the runs of one pool."""
    return [Finding(quantity(pair)) for _, quantity in CLAIMS_OF_FIGURES]


def _late_ratio(pair: Pair) -> Measurement:
    def falls(record: Record) -> float:
        ratio = record.rounds.set_index("round")["effective_gradient_ratio"]
        late = ratio.loc[4 * EPOCH + 1 : 6 * EPOCH].mean()
        return 100 * (late - ratio.loc[EPOCH + 1 : 4 * EPOCH].mean())

    return over_seeds(pair.ours, falls)


def _moved(counted: str, column: str) -> Callable[[Pair], Measurement]:
    """The share of a column of `ends` with Knapsack RL minus GRPO's, in points."""

    def moved(pair: Pair) -> Measurement:
        table = pair.ends.loc[counted, column].unstack("label").dropna()
        return Measurement(100 * (table["Knapsack"] - table["GRPO"]).to_numpy())

    return moved


def _fed(pair: Pair) -> Measurement:
    tables = pair.spent["Knapsack"].values()
    # Without the fallback it would be the lower bound, 2.
    return Measurement(np.array([table.loc["extremely-hard", "rollouts"] - 2 for table in tables]))


def _error_falls(pair: Pair) -> Measurement:
    errors = pair.errors()["GRPO"]
    return Measurement(100 * (errors[5] - errors[2]).to_numpy())


def _dearer(column: str) -> Callable[[Pair], Measurement]:
    """By how many percent a round of Knapsack RL has more of a column, after the first epoch."""

    def dearer(pair: Pair) -> Measurement:
        def change(run: Record, rival: Record) -> float:
            rounds = min(len(run.rounds), len(rival.rounds))
            sums = [record.rounds[column][EPOCH:rounds].sum() for record in (run, rival)]
            return 100 * (sums[0] / sums[1] - 1)

        return paired(pair.ours, pair.grpo, change, scale="percent")

    return dearer


def _claim(text: str, published: str = "", size: float | None = None, **options: Any) -> Claim:
    sizes = () if size is None else (size,)
    return Claim("Knapsack RL", text, published=published, sizes=sizes, **options)


CLAIMS_OF_FIGURES: tuple[tuple[Claim, Callable[[Pair], Measurement]], ...] = (
    (
        _claim("its ratio falls by at most 2 points, epochs 5 and 6 after 2 to 4", bound=-2),
        _late_ratio,
    ),
    (
        _claim("more problems extremely easy, as allocated, points", "+3.3", 3.3),
        _moved("as allocated", "extremely-easy"),
    ),
    (
        _claim("more problems extremely easy, equal numbers, points", "+3.3", 3.3),
        _moved("equal numbers", "extremely-easy"),
    ),
    (
        _claim("fewer stay extremely hard, as allocated, points", "-3.7", -3.7, direction="below"),
        _moved("as allocated", "stay"),
    ),
    (
        _claim("fewer stay extremely hard, equal numbers, points", "-3.7", -3.7, direction="below"),
        _moved("equal numbers", "stay"),
    ),
    (
        _claim("the fallback gives an unsolved problem more than two rollouts, by", "29, not 2"),
        _fed,
    ),
    (
        _claim(
            "GRPO's error of p falls, sixth visit after third, points",
            ".25 to .08",
            direction="below",
        ),
        _error_falls,
    ),
    (
        _claim(
            "tokens of a round at most 5 % more, every rollout trained, %",
            "equal time",
            direction="below",
            bound=5,
        ),
        _dearer("tokens_selected"),
    ),
    (
        _claim(
            "FLOPs of a round at most 5 % more, as computed here, %",
            "equal time",
            direction="below",
            bound=5,
        ),
        _dearer("flops"),
    ),
)


def _against_ours(arm: str, unit: str) -> Measure:
    return accuracy(arm=f"knapsack/{arm}", baseline="head-to-head/knapsack", unit=unit)


# Parts and combinations that no tuned trial has: runs at one rate, in the default pool.
CLAIMS_AT_ONE_RATE: tuple[Claim, ...] = (
    _claim(
        "N_low = 4 at most 2 points below N_low = 2, equal rounds, points",
        direction="matches",
        margin=2,
        measured_by=_against_ours("low-4", "round"),
    ),
    _claim(
        "N_up = 16 at most 2 points below N_up = 128, equal rounds, points",
        direction="matches",
        margin=2,
        measured_by=_against_ours("up-16", "round"),
    ),
    _claim(
        "gains with dynamic sampling, equal rollouts, points",
        "+0.3",
        measured_by=accuracy(
            arm="knapsack/knapsack-dapo", baseline="head-to-head/dapo", unit="rollouts"
        ),
    ),
    _claim(
        "gains with REINFORCE++, equal rounds, points",
        "+1.8",
        measured_by=accuracy(
            arm="knapsack/knapsack-reinforce-pp", baseline="knapsack/reinforce-pp", unit="round"
        ),
    ),
    _claim(
        # The paper's fresh rollouts come on top of the budget; here they are half of it.
        "fresh rates gain, equal rounds, points",
        "+0.2",
        0.2,
        measured_by=_against_ours("fresh-rates", "round"),
    ),
    _claim(
        "a predicted rate has a larger error than the last 16 rollouts, points",
        ".18",
        measured_by=difference(
            arm="knapsack/predicted-rates",
            baseline="head-to-head/knapsack",
            column="success_rate_error",
            from_epoch=2,
        ),
    ),
)


# Figures


def gradient_panels(groups: Mapping[str, Sequence[Record]], *, title: str) -> list[Axes]:
    """Shares of rollouts with a gradient and of problems without one by round, as in figure 2.

    Parameters
    ----------
    groups : dict from name to records
    title : str
    """
    shares = {
        "rollouts with a gradient": "effective_gradient_ratio",
        "problems all wrong": "all_negative",
        "problems all right": "all_positive",
    }
    # A moving mean over one epoch, in which every problem counts once.
    options = {"records": groups, "smooth": EPOCH, "until": "common"}
    return curve_panels(
        {text: {**options, "y": column} for text, column in shares.items()},
        title=title,
        ylabel=f"share, mean of {EPOCH} rounds",
        ylim=(0, 1),
        columns=2,
        height=3.4,
    )


def fallback_panels(
    frames: Mapping[str, Mapping[int, pd.DataFrame]], last: int, *, title: str
) -> list[Axes]:
    """Rollouts of each visit by what was known of the problem, as in figure 16.

    Parameters
    ----------
    frames : dict from name to a dict from seed to rollouts
    last : int
        The last visit that is drawn.
    title : str
    """
    by_visit = {
        name: seed_means([spending_by_visit(frame).loc[:last] for frame in by_seed.values()])
        for name, by_seed in frames.items()
    }
    kinds = {
        "extremely-hard": "right in 0 of the last 16",
        "hard": "right in up to a fifth",
        "medium": "between .2 and .8",
    }
    panels = {
        text: {name: tables[kind] for name, tables in by_visit.items()}
        for kind, text in kinds.items()
    }
    # The dotted line is the uniform budget.
    return sweep_panels(
        panels,
        title=title,
        xlabel="visit of a problem",
        ylabel="rollouts of a visit",
        reference=8,
    )


def class_bars(found: pd.DataFrame, *, title: str) -> Axes:
    """The classes of the problems at their last visit, a bar for each method and way of counting.

    Parameters
    ----------
    found : DataFrame
        Of `ends`.
    title : str
    """
    means = found.groupby(["counted", "label"]).mean()
    table = means[list(CLASSES)]
    table = table.set_axis([f"{label}, {counted}" for counted, label in means.index])
    number = seeds(found.groupby(["counted", "label"]).size())
    ax = stacked(table, label=f"share of the problems at their last visit ({number})")
    with style():
        # The five classes in one line, in the order in which they lie.
        ax.legend(loc="lower left", bbox_to_anchor=(-0.35, 1), ncols=5, columnspacing=1)
        ax.set_title(title, pad=28)
    return ax
