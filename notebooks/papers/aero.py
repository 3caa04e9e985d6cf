"""AERO (arXiv 2602.14338) round by round: whom the rescue reaches, what is left out of the update,
and what the prior does to gradients.

A frame here is `Record.rollouts()` with the columns problem, round, stage and correct; a *visit* is
one problem in one round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from workbench.advantages import selected_advantages
from workbench.analysis.cost import FLOP_PRICE
from workbench.analysis.courses import read
from workbench.analysis.metrics import finite
from workbench.analysis.runs import arms
from workbench.rollouts import Context, Rollouts
from workbench.utils.validation import positive_number, whole_number

__all__ = [
    "CATEGORIES",
    "KINDS",
    "categories",
    "gradient_norm_stats",
    "gradient_norms",
    "groups",
    "magnitudes",
    "rescue",
    "savings",
    "sizes",
    "unsolved_shares",
    "zero_accuracy_scores",
]

KINDS = ("alike", "rescued", "partial", "high")
PRUNED = KINDS[:3]  # the kinds of which only a part is trained on
CATEGORIES = ("zero", "partial", "good", "perfect")


def rescue(frame: pd.DataFrame) -> pd.DataFrame:
    """How problems come to their first correct rollout, stage by stage.

    Parameters
    ----------
    frame : DataFrame

    Returns
    -------
    DataFrame, a row a stage
        Stage 0 explores, each further one is an iteration of the rescue. unsolved: share of all
        visits without a correct rollout after the stage; tried: share of all visits that had none
        and were sampled in it; rescued: share of those tried that got one.

    References
    ----------
    AERO, section 4.2.1 and figure 4.
    """
    # (visits x stages): whether a stage had a right rollout, NaN where a visit was not sampled in
    # it.
    by_stage = frame.groupby(["round", "problem", "stage"])["correct"].any().unstack()
    # A stage that was not sampled counts as one without a right rollout; `tried` keeps them
    # apart.
    correct = by_stage.eq(True)
    solved = correct.cummax(axis=1)
    # Unsolved before the stage is what the column before it says; before the first, all are.
    tried = by_stage.notna() & ~solved.shift(axis=1, fill_value=False)
    return pd.DataFrame(
        {
            "unsolved": 1 - solved.mean(),
            "tried": tried.mean(),
            "rescued": (tried & correct).sum() / tried.sum(),
        }
    )


def groups(frame: pd.DataFrame) -> pd.DataFrame:
    """Every visit with its kind of group and what of it is trained on.

    Parameters
    ----------
    frame : DataFrame
        With the columns selected, length and prompt too (tokens of a response and of its prompt).

    Returns
    -------
    DataFrame, a row a visit
        round, problem; kind: "alike" where all rollouts are right or all wrong, else "rescued"
        (none right in the first stage), "partial" (less than half right there) or "high"; rollouts
        and selected, counts; and in tokens sampled (the prompt once for each stage, and all
        responses), tokens (every rollout with its prompt, as an update computes them) and kept
        (those of the selected ones).

    References
    ----------
    AERO, section 4.2; equation 23 counts the prompt of every forward pass, which is once a call of
    the sampler where its rollouts share it.
    """
    keys = ["round", "problem"]
    visit = frame.groupby(keys)
    # The first stage is what AERO judges a problem by; the later ones are its answer to that.
    explored = frame["stage"] == visit["stage"].transform("min")
    tokens = frame["length"] + frame["prompt"]
    sums = (
        frame[keys]
        .assign(
            rollouts=1,
            selected=frame["selected"],
            sampled=frame["length"],
            tokens=tokens,
            kept=tokens * frame["selected"],
        )
        .groupby(keys)
        .sum()
    )
    # The order of the conditions matters: a rescued group is not alike any more, and had a rate
    # of 0 in its first stage, which would otherwise make it a partial one.
    rate = visit["correct"].mean()
    explored_rate = frame[explored].groupby(keys)["correct"].mean()
    kinds = np.select(
        [rate.isin([0, 1]), explored_rate == 0, explored_rate < 0.5], KINDS[:3], KINDS[3]
    )
    # The prompt is read once in every stage of a visit, and shared by the rollouts of that stage.
    prompts = visit["prompt"].first() * visit["stage"].nunique()
    return sums.assign(sampled=sums["sampled"] + prompts, kind=kinds).reset_index()


def categories(frame: pd.DataFrame, most: int | None = None) -> pd.DataFrame:
    """How problems fared round by round: the share in each category, and the mean success rate.

    Parameters
    ----------
    frame : DataFrame
    most : int, optional
        At most so many rollouts of a visit are read, in the order of sampling; None for all. A
        problem that was tried more often is less often all right or all wrong, so methods that
        sample different numbers are compared at equal ones.

    Returns
    -------
    DataFrame, a row a round
        The shares of zero (no rollout right), partial (less than half), good (half or more, but not
        all) and perfect, which add up to 1, and rate, the mean over problems of the share right.

    References
    ----------
    AERO, equation 25, and figures 6 and 9.
    """
    if most is not None:
        whole_number("most", most, 1)
        # The first ones, since the rescue decides by them whether it goes on.
        frame = frame[frame.groupby(["round", "problem"]).cumcount() < most]
    rate = frame.groupby(["round", "problem"])["correct"].mean()
    conditions = {
        "zero": rate == 0,
        "partial": (rate > 0) & (rate < 0.5),
        "good": (rate >= 0.5) & (rate < 1),
        "perfect": rate == 1,
    }
    table = pd.DataFrame({**conditions, "rate": rate})
    return table.groupby("round").mean()


def sizes(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Rollouts a visit, sampled and selected, by kind of group.

    Parameters
    ----------
    frames : DataFrames as for `groups`
        One a seed; the mean is taken.

    Returns
    -------
    DataFrame (kinds x 2)
        The rows add up to the rollouts of a visit.
    """
    tables = []
    for frame in frames:
        table = groups(frame)
        by_kind = table.groupby("kind")[["rollouts", "selected"]].sum()
        # Per visit, so that seeds with other numbers of visits have the same weight.
        tables.append(by_kind.reindex(KINDS, fill_value=0) / len(table))
    return (sum(tables) / len(tables)).rename(columns={"rollouts": "sampled"})


def savings(
    frame: pd.DataFrame,
    baseline: pd.DataFrame,
    *,
    skip: bool = False,
    price: float = FLOP_PRICE,
) -> pd.Series:
    """Where the savings against a baseline come from, in percent of the baseline's bill.

    Parameters
    ----------
    frame : DataFrame
        As for `groups`, of a run of AERO.
    baseline : DataFrame
        The same of a run that trains on all it samples, of as many rounds.
    skip : bool
        The baseline computes no group whose rollouts are all alike, which has no advantage there,
        as `grpo_step` does without an entropy bonus.
    price : float
        What a sampled token costs over what a trained one does, above 0. The default counts FLOPs;
        the measured price of a machine counts its time, see `workbench.analysis.cost`.

    Returns
    -------
    Series that adds up to 100
        allocation: what other rollouts save if all of them are trained on; rescued, alike and
        partial: what training on a part of these groups saves then (negative: it costs); left.

    References
    ----------
    AERO, figure 8; FLOPs by equation 23, 2 for a token sampled and 6 for one trained on, times the
    parameters.
    """
    positive_number("price", price)
    of_arm = groups(frame)
    of_baseline = groups(baseline)
    # Step by step from the baseline's cost: first as if everything sampled were trained on, then
    # with what each kind of group leaves out. The steps thus add up to the whole saving.
    start = price * of_baseline["sampled"].sum() + _computed(of_baseline, skip)
    everything = price * of_arm["sampled"].sum() + _computed(of_arm, skip)
    parts = {"allocation": start - everything}
    for kind in PRUNED:
        part = of_arm[of_arm["kind"] == kind]
        parts[kind] = _computed(part, skip) - part["kept"].sum()
    left = start - sum(parts.values())
    return pd.Series({**parts, "left": left}) * 100 / start


def magnitudes(frame: pd.DataFrame, advantage: Any) -> pd.DataFrame:
    """Absolute advantages of the rollouts trained on, by kind of group and over all.

    Parameters
    ----------
    frame : DataFrame
        As for `groups`.
    advantage : slots.Advantage
        Such as `advantages.Posterior()`. The reward is 1 for a correct rollout and 0 for a wrong
        one, and groups that are all alike are measured before they are pruned, as in AERO.

    Returns
    -------
    DataFrame, rows "all" and `KINDS`
        share (of the rollouts trained on) and mean; rows that do not occur are NaN.

    References
    ----------
    AERO, figure 10.
    """
    # Every visit is a group of its own, also where a problem was drawn in several rounds.
    visit = frame.groupby(["round", "problem"]).ngroup().to_numpy()
    pool = Rollouts(
        problem=visit.astype(str),
        reward=frame["correct"].to_numpy(float),
        correct=frame["correct"].to_numpy(bool),
    )
    rows = np.flatnonzero(frame["selected"])
    # "mixed" is AERO's rule: uniform groups are measured before pruning, mixed ones after it.
    advantages = selected_advantages(advantage, "mixed", pool, rows, Context(seed=0))
    size = np.abs(np.asarray(advantages))
    kinds = groups(frame)["kind"].to_numpy()[visit[rows]]
    table = {"all": (1.0, size.mean())}
    for kind in KINDS:
        if kind in kinds:
            table[kind] = (np.mean(kinds == kind), size[kinds == kind].mean())
    frame = pd.DataFrame.from_dict(table, orient="index", columns=["share", "mean"])
    return frame.reindex(["all", *KINDS])


def zero_accuracy_scores(runs: Mapping[str, Any]) -> pd.DataFrame:
    """Zero-accuracy ratio and relative score of two methods, checkpoint by checkpoint.

    Parameters
    ----------
    runs : dict from two labels to records
        Seeds that both have are read.

    Returns
    -------
    DataFrame, a row a seed, checkpoint and label
        seed, label, round, zero (share of problems without a correct rollout, mean over the rounds
        since the last checkpoint), score (held-out accuracy) and relative, the score over the
        better one of the two.

    References
    ----------
    AERO, figure 2 and equation 6.
    """
    courses = read(runs)
    if len(courses) != 2:
        raise ValueError(f"runs: {len(courses)} labels; two methods are compared with each other")
    first, second = courses.values()
    rows = []
    for seed in sorted(set(first) & set(second)):
        pair = {label: by_seed[seed] for label, by_seed in courses.items()}
        # The relative score needs both methods at the same checkpoint.
        shared = np.intersect1d(first[seed].rounds, second[seed].rounds)
        for start, end in pairwise(shared):
            scores = {label: course.score_at("round", float(end)) for label, course in pair.items()}
            for label, course in pair.items():
                table = course.table
                # The rounds after the last checkpoint up to this one.
                since = table["round"].between(start + 1, end)
                rows.append(
                    {
                        "seed": seed,
                        "label": label,
                        "round": int(end),
                        "zero": table.loc[since, "all_negative"].mean(),
                        "score": scores[label],
                        "relative": scores[label] / max(scores.values()),
                    }
                )
    return pd.DataFrame(rows, columns=["seed", "label", "round", "zero", "score", "relative"])


def unsolved_shares(frames: Sequence[pd.DataFrame]) -> list[float]:
    """Share of visits without a right rollout, of several runs at equal numbers of rollouts.

    As many rollouts are read of every visit as the shortest visit of any run has. With a number of
    its own for each visit, a run that samples until the first success would seem to solve more: its
    short visits are those that ended with one.

    Parameters
    ----------
    frames : list of DataFrame
        Rollouts of runs that share their problem order. Visits (problem and round) that all have
        are read.

    Returns
    -------
    list of float, one a frame
    """
    keys = ["problem", "round"]
    sizes = [frame.groupby(keys).size() for frame in frames]
    common = pd.concat(sizes, axis=1, join="inner")
    if common.empty:
        raise ValueError("the runs have no visit in common: they drew other problems")
    fewest = common.min(axis=None)
    shares = []
    for frame in frames:
        there = frame.set_index(keys).index.isin(common.index)
        part = frame[there]
        part = part[part.groupby(keys).cumcount() < fewest]
        shares.append(float((~part.groupby(keys)["correct"].any()).mean()))
    return shares


def _computed(table: pd.DataFrame, skip: bool) -> float:
    """Tokens of an update on all groups, or on all but those that are alike."""
    counted = table if not skip else table[table["kind"] != "alike"]
    return float(counted["tokens"].sum())


def gradient_norms(runs: Any, rounds: tuple[int, int] | None = None) -> pd.DataFrame:
    """Summary of the gradient norms of each run's steps.

    Parameters
    ----------
    runs : dict from label to records
    rounds : (first, last), optional
        Both included; None for all. The paper's table 7 has steps 70, 80 and 90.

    Returns
    -------
    DataFrame, a row a label and seed
        The columns of `gradient_norm_stats`. A round's norm is the mean over its steps,
        before clipping; rounds without a step count as 0.

    References
    ----------
    AERO (arXiv 2602.14338), section 5.6, figure 12 and table 7.
    """
    rows = {}
    for label, records in arms(runs).items():
        for record in records:
            table = record.rounds
            if rounds is not None:
                table = table[table["round"].between(*rounds)]
            # A round without a step has no norm, and moved the weights by nothing.
            norms = table["gradient_norm"].fillna(0.0).to_numpy()
            rows[label, record.manifest["seed"]] = gradient_norm_stats(norms)
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["label", "seed"])


def gradient_norm_stats(norms: Any) -> dict[str, float]:
    """Summary of the gradient norms of several steps.

    Parameters
    ----------
    norms : (S,) numbers of at least 0
        One a step. Steps without a gradient count.

    Returns
    -------
    dict
        mean, std (population), median, p90 (90th percentile), max, and zero: the share of steps
        whose norm is exactly 0.

    Examples
    --------
    >>> gradient_norm_stats([0, 1, 2, 3, 4])["median"]
    2.0
    """
    norms = finite("norms", norms, 1)
    if (norms < 0).any():
        raise ValueError(f"norms: {norms.min()} is negative; norms are zero or more")
    return {
        "mean": float(norms.mean()),
        "std": float(norms.std()),
        "median": float(np.median(norms)),
        "p90": float(np.quantile(norms, 0.9)),
        "max": float(norms.max()),
        "zero": float(np.mean(norms == 0)),
    }
