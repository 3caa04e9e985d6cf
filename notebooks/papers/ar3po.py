"""AR3PO (arXiv 2509.25808): how many rollouts a problem gets, by how hard it is, what old responses
fill in for, and how well the updates that result know their direction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from papers import tuned
from papers.gradients import sampled_groups, update_direction
from papers.plots import curve_panels, sweep
from papers.published_claims import DAPO_FLAT
from papers.tables import accuracy_gain, column_means, over_seeds, paired
from papers.tuned import RecordedTrial, Shelf, claims_of_paper
from papers.verdicts import Claim, Finding
from workbench.analysis.comparisons import at_budget
from workbench.analysis.curves import Curve
from workbench.analysis.difficulty import visits
from workbench.analysis.intervals import Measurement, mean_interval
from workbench.labs import Lab, shipped
from workbench.methods import ar3po
from workbench.plots.style import PALETTE, SOFT, seeds, style
from workbench.records import Record
from workbench.rules.advantages import group_normalized
from workbench.utils.validation import one_of

__all__ = [
    "ARMS",
    "CLAIMS_OF_FIGURES",
    "EPOCH",
    "MATURE",
    "TRAINED",
    "accuracy_after",
    "agreement",
    "borrowed",
    "by_rate_figure",
    "cost_by_rate",
    "expected_rollouts",
    "flat_bill",
    "gain_by_round",
    "load",
    "measured",
    "published",
    "published_scores",
    "ratio_texts",
    "reused_and_fresh",
    "reward_panels",
    "rollouts_by_rate",
    "rollouts_by_rate_over_seeds",
    "rollouts_figure",
    "sampled",
    "unsolved_panels",
    "update_directions",
    "verdict_table",
    "ways_of_sampling",
]

EPOCH = 16  # rounds, since a pool of 512 problems is drawn 32 problems a round
TRAINED = 32  # problems that a round wants to train on
# Rounds of the second and third epoch, over which the success rate of a problem moves little.
MATURE = (EPOCH + 1, 3 * EPOCH)
# What the arms are called. AR3PO itself stops the gradient at a borrowed response, which is the
# paper's option II; "recomputed" is its option I.
ARMS = {
    "grpo": "GRPO",
    "dapo": "DAPO",
    "ar3po": "AR3PO",
    "direct": "direct replay",
    "recompute": "recomputed",
    "no-reuse": "no reuse",
}
# The same arms in runs at one learning rate, in the default pool.
AT_ONE_RATE = {
    "grpo": "head-to-head/grpo",
    "dapo": "head-to-head/dapo",
    "ar3po": "head-to-head/ar3po",
    "direct": "ar3po/direct",
    "recompute": "ar3po/recompute",
    "no-reuse": "ar3po/no-reuse",
}
FOLDERS = ("head-to-head", "ar3po", "regimes/ar3po-long")
BORROWED = 2  # the stage of a borrowed response; the two stages of sampling are 0 and 1

# Five bins of equal width. A rate of 0 and one of 1 have no bin of their own.
EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)

Groups = Mapping[str, Sequence[Record]]


def load(folder: Any) -> RecordedTrial:
    """The recorded runs of AR3PO: `tuned.load` of data/runs or another folder."""
    before = {ARMS[label]: place for label, place in AT_ONE_RATE.items()}
    return tuned.load(folder, "ar3po", ARMS, before, FOLDERS)


# How many rollouts a problem gets


def rollouts_by_rate(frame: pd.DataFrame, edges: Sequence[float] = EDGES) -> pd.DataFrame:
    """Mean rollouts a visit of the problems in each bin of success rate.

    Parameters
    ----------
    frame : DataFrame
        A record's rollouts with problem, round and correct.
    edges : rising numbers
        Bins are [a, b), the last one [a, b].

    Returns
    -------
    DataFrame, a row a bin
        rollouts, problems (count) and rate, the mean over the bin's problems; a problem's rate is
        that over all its rollouts in the frame.

    References
    ----------
    AR3PO (arXiv 2509.25808), section 4.4 and figure 2: the hardest bin gets the most.
    """
    # The rate is that of all rollouts of a problem together, so that a visit with many of them,
    # which tells more, also counts more.
    by_problem = visits(frame).groupby("problem")
    rate = by_problem["correct"].sum() / by_problem["rollouts"].sum()
    bins = range(len(edges) - 1)
    # side="right" puts a rate on an edge into the bin above it. The clip takes a rate of 1, which
    # would be beyond the last bin, back into it.
    bin_of_problem = np.clip(np.searchsorted(edges, rate, side="right") - 1, 0, len(edges) - 2)
    # First over the visits of a problem, then over the problems of a bin: otherwise problems that
    # were drawn more often would count more. An empty bin stays NaN.
    mean = by_problem["rollouts"].mean().groupby(bin_of_problem).mean().reindex(bins)
    count = rate.groupby(bin_of_problem).size().reindex(bins, fill_value=0)
    return pd.DataFrame(
        {
            "rollouts": mean.to_numpy(),
            "problems": count.to_numpy(),
            "rate": rate.groupby(bin_of_problem).mean().reindex(bins).to_numpy(),
        },
        index=[f"{a:g} to {b:g}" for a, b in pairwise(edges)],
    )


def expected_rollouts(rate: np.ndarray, stages: int = 2, k: int = 4) -> np.ndarray:
    """Rollouts that a problem gets on average, by its success rate.

    A problem goes on to its next stage of k rollouts while none was right:
    k (1 + (1-p)^k + (1-p)^2k + ...).

    Parameters
    ----------
    rate : (P,) success rates
    stages, k : int

    Returns
    -------
    (P,) float64

    References
    ----------
    AR3PO (arXiv 2509.25808), section 3.1.

    Examples
    --------
    >>> expected_rollouts(np.array([0.0, 0.5, 1.0])).tolist()
    [8.0, 4.25, 4.0]
    """
    # The probability that the k rollouts of one stage are all wrong. Its power 0 is the first
    # stage, which every problem gets.
    missed = (1 - np.asarray(rate, dtype=np.float64)) ** k
    return k * np.sum([missed**stage for stage in range(stages)], axis=0)


def rollouts_by_rate_over_seeds(
    records: Sequence[Record], rounds: tuple[int, int] = MATURE
) -> pd.DataFrame:
    """`rollouts_by_rate` of the runs of one setting, beside what follows from the rate alone.

    Parameters
    ----------
    records : records of AR3PO that keep their rollouts
    rounds : (first, last)
        Both included.

    Returns
    -------
    DataFrame, a row a bin
        problems and rate (means over seeds), mean and half (the rollouts of a visit with the
        half-width of their interval over seeds), expected (`expected_rollouts` of the rate) and
        published.
    """
    tables = [_by_rate(record, rounds) for record in records]
    intervals = [mean_interval([table["rollouts"].iloc[i] for table in tables]) for i in range(5)]
    found = pd.DataFrame(intervals, columns=["mean", "half"], index=tables[0].index)
    found.insert(0, "problems", sum(table["problems"] for table in tables) / len(tables))
    found.insert(1, "rate", sum(table["rate"] for table in tables) / len(tables))
    found["expected"] = expected_rollouts(found["rate"].to_numpy())
    found["published"] = [6.95, np.nan, np.nan, np.nan, 4.0]
    return found


def _by_rate(record: Record, rounds: tuple[int, int]) -> pd.DataFrame:
    """`rollouts_by_rate` of one run."""
    frame = record.rollouts(columns=["problem", "round", "correct", "stage"])
    # A borrowed response was sampled for an earlier visit.
    return rollouts_by_rate(frame[(frame["stage"] < BORROWED) & frame["round"].between(*rounds)])


def sampled(groups: Groups, rounds: tuple[int, int]) -> pd.DataFrame:
    """Rollouts for each problem that is trained on, beside the published numbers.

    Parameters
    ----------
    groups : dict from name to records, DAPO among them
    rounds : (first, last)
        Both included.

    Returns
    -------
    DataFrame, a row an arm
        rollouts a problem, ± (the half-width of its interval over seeds), less than DAPO (how many
        times), with a gradient (rollouts a problem that the update computes), and the published
        rollouts a problem of two models.
    """
    means = column_means(groups, ["rollouts", "trained"], rounds=rounds)
    each = means["rollouts"] / TRAINED
    table = each.set_axis(["rollouts a problem", "±"], axis=1)
    table["less than DAPO, times"] = each.loc["DAPO", "mean"] / each["mean"]
    table["with a gradient"] = means["trained", "mean"] / TRAINED
    cost = published("table1_cost")
    # A step of the paper trains on 512 problems.
    cost["each"] = cost["prompts_a_step"] * cost["responses_a_prompt"] / 512
    of_paper = cost.pivot_table(index="method", columns="model", values="each", sort=False)
    return table.join(of_paper.add_prefix("published, "))


def flat_bill(
    curves: Mapping[str, Mapping[int, Curve]], name: str = "DAPO"
) -> dict[str, dict[int, Curve]]:
    """Curves in which an arm is billed as the paper bills DAPO, whatever it sampled.

    Parameters
    ----------
    curves : dict from name to a dict from seed to Curve
    name : str
        The arm that is billed for three draws of eight rollouts in every round.

    References
    ----------
    AR3PO (arXiv 2509.25808), table 1: 1536 prompts a step, of which 512 are trained on.
    """
    billed = {
        seed: replace(curve, table=curve.table.assign(rollouts=DAPO_FLAT))
        for seed, curve in curves[name].items()
    }
    return {label: dict(by_seed) for label, by_seed in curves.items()} | {name: billed}


def gain_by_round(groups: Groups, baseline: str, rounds: Sequence[int]) -> pd.DataFrame:
    """Held-out accuracy above a baseline after equal rounds, in points.

    Parameters
    ----------
    groups : dict from name to records
    baseline : str
        A name.
    rounds : list of int

    Returns
    -------
    DataFrame, a row a round
        Columns (name, "difference"), (name, "low") and (name, "high").
    """
    rows = {}
    for number in rounds:
        table = at_budget(groups, "round", number, baseline=baseline)
        rows[number] = 100 * table.drop(index=baseline)[["difference", "low", "high"]].stack()
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.columns = pd.MultiIndex.from_tuples(list(rows[rounds[0]].index))
    return table.rename_axis("round")


def accuracy_after(curves: Mapping[int, Curve], rollouts: float) -> dict[str, float]:
    """Held-out accuracy of an arm when so many rollouts were sampled.

    Parameters
    ----------
    curves : dict from seed to Curve
    rollouts : float

    Returns
    -------
    dict
        accuracy (the mean over seeds), ± (the half-width of its interval), rounds (made by then)
        and seeds.
    """
    scores = [curve.score_at("rollouts", rollouts) for curve in curves.values()]
    rounds = [(curve.table["rollouts"].cumsum() <= rollouts).sum() for curve in curves.values()]
    mean, half = mean_interval(scores)
    return {"accuracy": mean, "±": half, "rounds": np.mean(rounds), "seeds": len(scores)}


def ratio_texts(tables: Mapping[str, pd.DataFrame], baseline: str) -> pd.DataFrame:
    """Ratios to a baseline with their intervals, for reading.

    Parameters
    ----------
    tables : dict from unit to a DataFrame
        Of `targets.to_target`.
    baseline : str
        Its row is left out.

    Returns
    -------
    DataFrame of texts, a row a unit and a column an arm
    """
    texts = {}
    for unit, table in tables.items():
        rows = table.drop(index=baseline)
        texts[unit] = {
            arm: f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
            for arm, row in rows.iterrows()
        }
    return pd.DataFrame.from_dict(texts, orient="index")


# What is borrowed


def borrowed(records: Sequence[Record]) -> pd.DataFrame:
    """Responses that unsolved problems borrowed, epoch by epoch.

    Parameters
    ----------
    records : records of AR3PO that keep their rollouts

    Returns
    -------
    DataFrame, a row an epoch
        unsolved (problems of a round without a right response of their own), borrowed (those of
        them that got an old one), and age (median number of rounds since it was sampled); means
        over seeds.
    """
    tables = []
    for record in records:
        frame = record.rollouts(columns=["round", "stage"])
        # Within the file of a round, borrowed responses come last and bear the round that sampled
        # them. So the latest round so far is the one whose file it is.
        now = frame["round"].cummax()
        old = frame["stage"] == BORROWED
        rounds = record.rounds
        of_epoch = rounds.groupby(_epoch(rounds["round"]))
        age = (now - frame["round"])[old]
        table = pd.DataFrame(
            {
                "unsolved": TRAINED * of_epoch["all_negative"].mean(),
                "borrowed": old.groupby(_epoch(now)).sum() / of_epoch.size(),
                "age": age.groupby(_epoch(now[old])).median(),
            }
        )
        tables.append(table)
    return pd.concat(tables).groupby(level=0).mean().rename_axis("epoch")


def reused_and_fresh(record: Record, first: int = EPOCH + 1) -> pd.DataFrame:
    """How far the tokens of borrowed responses are from the policy that trains on them.

    Parameters
    ----------
    record : Record
        A whole one, of AR3PO in the mode "direct" or "recompute".
    first : int
        The first round that counts. Nothing can be borrowed in the first epoch.

    Returns
    -------
    DataFrame, a row for borrowed and one for fresh responses
        responses (that an update computed), age (median, in rounds), clipped, % (of their tokens)
        and moved (mean absolute change of a token's log-probability since it was taken, in nats).
    """
    names = ["age", "trained", "clip_ratio", "logprob_diff", "length", "round"]
    frame = record.rollouts(columns=names)
    now = frame["round"] + frame["age"]
    frame = frame[frame["trained"] & (now >= first)]
    rows = {}
    for name, part in (
        ("borrowed", frame[frame["age"] > 0]),
        ("fresh", frame[frame["age"] == 0]),
    ):
        tokens = part["length"]
        rows[name] = {
            "responses": len(part),
            "age": part["age"].median(),
            "clipped, %": 100 * np.average(part["clip_ratio"], weights=tokens),
            "moved": np.average(part["logprob_diff"], weights=tokens),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


# What the learning rate decides


def cost_by_rate(shelf: Shelf, value: str = "cost") -> pd.DataFrame:
    """What the tuning runs of every arm came to at each learning rate.

    Parameters
    ----------
    shelf : Shelf
    value : {"cost", "end"}
        "cost": rounds to the target, their geometric mean over the tuning seeds; infinite where a
        run collapsed. "end": held-out accuracy at the end, in percent, of the rates that were tried
        with every tuning seed.

    Returns
    -------
    DataFrame (arms x rates)
        NaN where a rate was not tried.
    """
    one_of("value", value, ("cost", "end"))
    tuning = shelf.tuning
    if value == "cost":
        logs = tuning.assign(value=np.log(tuning["cost"]))
        table = np.exp(logs.groupby(["arm", "learning_rate"])["value"].mean())
    else:
        by_rate = tuning.groupby(["arm", "learning_rate"])["end"]
        table = 100 * by_rate.mean()[by_rate.size() == tuning["seed"].nunique()]
    return table.unstack().reindex(shelf.groups)


# How well an update knows its direction


def ways_of_sampling(correct: np.ndarray) -> dict[str, np.ndarray]:
    """The rollouts that methods would have sampled, and trained on, of eight for each problem.

    Parameters
    ----------
    correct : (P, 8) bool
        Which rollouts are right, in the order of sampling.

    Returns
    -------
    dict from name to (P, 8) bool
        "GRPO": all. "GRPO, N = 4": the first half. "AR3PO": the first half, and the second one
        where the first has no right one (nothing is borrowed). "DAPO": all rollouts of problems
        with both outcomes.

    Examples
    --------
    >>> correct = np.array([[0, 0, 0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]], dtype=bool)
    >>> {name: kept.sum(axis=1).tolist() for name, kept in ways_of_sampling(correct).items()}
    {'GRPO': [8, 8], 'GRPO, N = 4': [4, 4], 'AR3PO': [8, 4], 'DAPO': [8, 8]}
    """
    half = correct.shape[1] // 2
    first = np.zeros(correct.shape, dtype=bool)
    first[:, :half] = True
    unsolved = ~correct[:, :half].any(axis=1)
    mixed = correct.any(axis=1) & ~correct.all(axis=1)
    return {
        "GRPO": np.ones(correct.shape, dtype=bool),
        "GRPO, N = 4": first,
        "AR3PO": first | unsolved[:, None],
        "DAPO": np.broadcast_to(mixed[:, None], correct.shape),
    }


def update_directions(
    policy: Any, lab: Lab, *, repeats: int = 2, seed: int = 0
) -> dict[str, np.ndarray]:
    """Directions of the updates that one policy would get from rounds of several methods.

    The whole pool is answered `repeats` times, eight rollouts for each problem, and every method
    gets what it would have sampled of them, see `ways_of_sampling`. A round is one update here,
    with the objective of AR3PO.

    Parameters
    ----------
    policy : Policy
        It is not changed.
    lab : Lab
    repeats, seed : int

    Returns
    -------
    dict from name to (U, D) float64
        The gradients of U rounds on D parameters, each divided by its length.
    """
    objective = ar3po().objective
    asked, _ = lab.problems.draw(len(lab.problems), 0, seed)
    found: dict[str, list[np.ndarray]] = {}
    for repeat in range(repeats):
        answers = sampled_groups(
            policy, asked, lab.verifier, 8, sampling=lab.sampling, seed=seed + repeat
        )
        for name, kept in ways_of_sampling(answers.correct.reshape(-1, 8)).items():
            rows = np.arange(kept.size).reshape(kept.shape)
            problems = np.flatnonzero(kept.any(axis=1))
            # Rounds of equally many problems. What is left over makes no round.
            for start in range(0, len(problems) - TRAINED + 1, TRAINED):
                chosen = problems[start : start + TRAINED]
                part = answers.take(rows[chosen][kept[chosen]])
                advantages = group_normalized(part.reward, part.problem)
                direction, _ = update_direction(policy, part, advantages, objective)
                found.setdefault(name, []).append(direction)
    return {name: np.array(directions) for name, directions in found.items()}


def agreement(directions: Mapping[str, np.ndarray], baseline: str = "GRPO") -> pd.DataFrame:
    """How well the updates of two rounds of the same policy agree.

    Two updates have nothing in common but what all problems ask for, so that their mean cosine is
    the square of the cosine between an update and the direction that the whole pool asks for.

    Parameters
    ----------
    directions : dict from name to (U, D)
        As of `update_directions`.
    baseline : str
        A name.

    Returns
    -------
    DataFrame, a row a name
        updates (U), cosine (mean over all pairs of updates), ± (twice its standard error, by the
        jackknife over updates), and ratio (to the cosine of the baseline) with low and high, for
        those that have as many updates as the baseline, of the same problems.
    """
    one_of("baseline", baseline, directions)
    cosines = {name: rows @ rows.T for name, rows in directions.items()}
    left_out = {name: _without_each(matrix) for name, matrix in cosines.items()}
    table = {}
    for name, matrix in cosines.items():
        count = len(matrix)
        mean = _mean_of_pairs(matrix)
        table[name] = {
            "updates": count,
            "cosine": mean,
            "±": 2 * _jackknife_error(left_out[name]),
        }
        if name != baseline and count == len(cosines[baseline]):
            log = np.log(mean / _mean_of_pairs(cosines[baseline]))
            half = 2 * _jackknife_error(np.log(left_out[name] / left_out[baseline]))
            ends = {"ratio": log, "low": log - half, "high": log + half}
            table[name] |= {end: float(np.exp(value)) for end, value in ends.items()}
    return pd.DataFrame.from_dict(table, orient="index")


def _mean_of_pairs(matrix: np.ndarray) -> float:
    """The mean of a matrix (U, U) without its diagonal."""
    count = len(matrix)
    return float((matrix.sum() - np.trace(matrix)) / (count * (count - 1)))


def _without_each(matrix: np.ndarray) -> np.ndarray:
    """The mean over pairs with each of the U updates left out, (U,)."""
    everyone = np.arange(len(matrix))
    means = []
    for number in everyone:
        rest = np.delete(everyone, number)
        means.append(_mean_of_pairs(matrix[np.ix_(rest, rest)]))
    return np.array(means)


def _jackknife_error(left_out: np.ndarray) -> float:
    """The standard error of a number, from its values with each of U observations left out."""
    count = len(left_out)
    return float(np.sqrt((count - 1) * left_out.var()))


# What the paper prints


def published(name: str) -> pd.DataFrame:
    """A published table, data/published/ar3po_NAME.csv."""
    return pd.read_csv(shipped(f"published/ar3po_{name}.csv"))


def published_scores() -> pd.DataFrame:
    """The averages of tables 1 and 2 in percent, a row a method and a column a model."""
    scores = pd.concat([published("table1"), published("table2")])
    scores = scores.query("benchmark == 'average'")
    return scores.pivot_table(
        index=["table", "method"], columns="model", values="value", sort=False
    )


# What its figures and sections claim, beyond the claims of `published_claims.py`


def verdict_table(
    records: Mapping[str, Sequence[Record]], tuned: Groups, before: Groups
) -> pd.DataFrame:
    """The table of `tuned.claims_of_paper`.

    Parameters
    ----------
    records : dict from "folder/label" to records
    tuned, before : dict from the names of `ARMS` to records
        The tuned runs of the regime, and those at one rate in the default pool.

    Returns
    -------
    DataFrame
    """
    of_figures = [claim for claim, _ in CLAIMS_OF_FIGURES]
    older = {f"regimes/ar3po/{label}": before[name] for label, name in ARMS.items()}
    return claims_of_paper("AR3PO", records, of_figures, measured(tuned), measured(before), older)


def measured(groups: Groups) -> list[Finding]:
    """The claims of `CLAIMS_OF_FIGURES`, measured on the arms of one trial."""
    return [Finding(quantity(groups)) for _, quantity in CLAIMS_OF_FIGURES]


def _epoch(rounds: pd.Series) -> pd.Series:
    """The epoch of each round, counted from 1."""
    return 1 + (rounds - 1) // EPOCH


def _epoch_means(record: Record) -> pd.DataFrame:
    """Means of the rounds table by epoch."""
    rounds = record.rounds
    return rounds.groupby(_epoch(rounds["round"])).mean(numeric_only=True)


def _unsolved_before_borrowing(groups: Groups) -> Measurement:
    def difference(ours: Record, baseline: Record) -> float:
        # A moving share is compared over the rounds that both have.
        last = min(ours.rounds["round"].max(), baseline.rounds["round"].max())
        shares = []
        for record in (ours, baseline):
            rounds = record.rounds
            span = rounds["round"].between(EPOCH + 1, last)
            shares.append(rounds.loc[span, "all_negative"].mean())
        return 100 * (shares[0] - shares[1])

    return paired(groups["AR3PO"], groups["GRPO"], difference)


def _hardest_minus_easiest(groups: Groups) -> Measurement:
    def quantity(record: Record) -> float:
        rollouts = _by_rate(record, MATURE)["rollouts"]
        return float(rollouts.iloc[0] - rollouts.iloc[-1])

    return over_seeds(groups["AR3PO"], quantity)


def _grown(column: str, late: int, early: int) -> Callable[[Groups], Measurement]:
    """By how many percent AR3PO's mean of a column rose from one epoch to another."""

    def grown(groups: Groups) -> Measurement:
        def change(record: Record) -> float:
            means = _epoch_means(record)[column]
            return float(100 * (means[late] / means[early] - 1))

        return over_seeds(groups["AR3PO"], change)

    return grown


def _gain(arm: str, baseline: str) -> Callable[[Groups], Measurement]:
    """Held-out accuracy of one arm above another's at equal rounds, in points."""
    return lambda groups: accuracy_gain(groups[arm], groups[baseline], "round")


def _claim(text: str, published: str = "", size: float | None = None, **options: Any) -> Claim:
    sizes = () if size is None else (size,)
    return Claim("AR3PO", text, published=published, sizes=sizes, **options)


CLAIMS_OF_FIGURES: tuple[tuple[Claim, Callable[[Groups], Measurement]], ...] = (
    (
        _claim("recomputed probabilities above direct replay, equal rounds, points", "+1.0", 1.0),
        _gain("recomputed", "direct replay"),
    ),
    (
        _claim(
            "with recomputed probabilities at most 1 point below DAPO, equal rounds, points",
            "-0.1",
            direction="matches",
            margin=1.0,
        ),
        _gain("recomputed", "DAPO"),
    ),
    (
        _claim("unsolved before borrowing below GRPO's, points", direction="below"),
        _unsolved_before_borrowing,
    ),
    (
        _claim("rollouts of the hardest bin minus those of the easiest", "6.95 - 4"),
        _hardest_minus_easiest,
    ),
    (
        _claim("the reward rises, epoch 6 over epoch 1, %", "rises"),
        _grown("reward", 6, 1),
    ),
    (
        _claim("the length rises at first, epoch 2 over epoch 1, %", "rises"),
        _grown("length", 2, 1),
    ),
    (
        _claim(
            "and then grows by less than 10 %, epoch 6 over epoch 2",
            "stays",
            direction="below",
            bound=10,
        ),
        _grown("length", 6, 2),
    ),
)


# Figures


def rollouts_figure(groups: Groups, until: int, *, title: str) -> Axes:
    """Rollouts for each problem that is trained on, by round, as in figure 1.

    Parameters
    ----------
    groups : dict from name to records
    until : int
        The last round that is drawn.
    title : str
    """
    [ax] = curve_panels(
        {"": {"records": groups, "y": "rollouts", "smooth": EPOCH, "until": until}},
        title=title,
        ylabel=f"rollouts a problem trained on\n(mean of {EPOCH} rounds)",
        ylim=(0, TRAINED * 26),
        height=3.6,
    )
    ticks = [0, 4, 8, 16, 24]
    ax.set_yticks([TRAINED * tick for tick in ticks], [str(tick) for tick in ticks])
    return ax


def unsolved_panels(groups: Groups, until: int, *, title: str) -> list[Axes]:
    """Problems without a right response by round, with borrowed responses and before, as in
    figure 2c.

    Parameters
    ----------
    groups : dict from name to records
    until : int
        The last round that is drawn.
    title : str
    """
    columns = {"with borrowed responses": "unsolved", "before borrowing": "all_negative"}
    # A moving mean over one epoch, in which every problem counts once.
    options = {"records": groups, "smooth": EPOCH, "until": until}
    axes = curve_panels(
        {text: {**options, "y": column} for text, column in columns.items()},
        title=title,
        ylabel=f"problems without a right response\n(share, mean of {EPOCH} rounds)",
        ylim=(0, 0.4),
        height=3.4,
    )
    for ax in axes:
        ax.axvline(EPOCH, color=SOFT, ls=":", lw=1)
    axes[0].text(EPOCH + 2, 0.02, "end of epoch 1", color=SOFT, size=8)
    return axes


def reward_panels(groups: Groups, until: int, *, title: str) -> list[Axes]:
    """Mean reward and length of the responses by round, as in figures 2a and 2b.

    Parameters
    ----------
    groups : dict from name to records
        AR3PO among them, whose records keep their rollouts: the reward of its first stage is drawn
        too.
    until : int
        The last round that is drawn.
    title : str
    """
    options = {"records": groups, "smooth": EPOCH, "until": until}
    names = {"mean reward": "reward", "tokens of a response": "length"}
    axes = curve_panels(
        {text: {**options, "y": column, "ylabel": ""} for text, column in names.items()},
        title=title,
        height=3.6,
    )
    first = pd.concat([_first_stage(record) for record in groups["AR3PO"]], axis=1).mean(axis=1)
    with style():
        axes[0].plot(first.loc[:until], color=PALETTE[2], ls="--", label="AR3PO, first stage")
        axes[0].set_ylabel(f"mean of {EPOCH} rounds")
        axes[1].set_ylim(0, 32)
        figure = axes[0].figure
        figure.legends[0].remove()
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return axes


def _first_stage(record: Record) -> pd.Series:
    """Mean reward of the first stage by round, a moving mean over an epoch."""
    frame = record.rollouts(columns=["round", "correct", "stage"])
    by_round = frame[frame["stage"] == 0].groupby("round")["correct"].mean()
    return by_round.rolling(EPOCH, min_periods=1).mean()


def by_rate_figure(table: pd.DataFrame, number: int, *, title: str) -> Axes:
    """Rollouts of a visit by the success rate of its problem, as in figure 2d.

    Parameters
    ----------
    table : DataFrame
        Of `rollouts_by_rate_over_seeds`.
    number : int
        Of seeds.
    title : str
    """
    rates = np.linspace(0, 1, 101)
    with style():
        ax = sweep(
            {f"measured ({seeds([number])})": table.set_index("rate")[["mean", "half"]]},
            log=False,
            title=title,
            xlabel="success rate of a problem (bins of width 0.2)",
            ylabel="rollouts of a visit",
        )
        curve = expected_rollouts(rates)
        ax.plot(rates, curve, color=SOFT, ls="--", lw=1.5, zorder=0, label="4 + 4 (1 - p)^4")
        known = table["published"].dropna()
        # For want of a better place, published numbers stand at the centre of their bins.
        places = [(EDGES[0] + EDGES[1]) / 2, (EDGES[-2] + EDGES[-1]) / 2]
        ax.plot(places, known, "D", color=PALETTE[3], label="published, Qwen2.5-7B")
        ax.set_xticks(EDGES, [f"{edge:g}" for edge in EDGES])
        ax.legend()
    return ax
