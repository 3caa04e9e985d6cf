"""AERO round by round, from the rollouts of a record: whom the rescue reaches, and what is left out of the update.

A frame here is `Record.rollouts()` with columns problem, round, stage and correct; a *visit* is one problem in one round.
"""

import numpy as np
import pandas as pd

from workbench.advantages import selected_advantages
from workbench.analysis.metrics import FORWARD, TRAINING
from workbench.rollouts import Rollouts

KINDS = ("alike", "rescued", "partial", "high")


def rescue(frame):
    """How problems come to their first correct rollout, stage by stage: a DataFrame indexed by stage (AERO, figure 4).

    Stage 0 explores, each further one is an iteration of the rescue. unsolved: share of all visits without a correct
    rollout after the stage; tried: share of all visits that had none and were sampled in it; rescued: share of those
    tried that got one.
    """
    stages = frame.groupby(["round", "problem", "stage"])["correct"].any().unstack()
    found = stages.eq(True)
    solved = found.cummax(axis=1)
    tried = stages.notna() & ~solved.shift(axis=1, fill_value=False)
    return pd.DataFrame(
        {
            "unsolved": 1 - solved.mean(),
            "tried": tried.mean(),
            "rescued": (tried & found).sum() / tried.sum(),
        }
    )


def groups(frame):
    """Every visit with its kind of group and what of it is trained on: a DataFrame, a row a visit (AERO, section 4.2).

    frame: with columns selected, length and prompt too (tokens of a response and of its prompt). kind: "alike" where all
    rollouts are right or all wrong, else "rescued" (none right in the first stage), "partial" (less than half) or
    "high". rollouts and selected: counts; in tokens, sampled: a prompt and all its responses; tokens: every rollout with
    its prompt, as an update computes them; kept: those of the selected ones.
    """
    keys = [frame["round"], frame["problem"]]
    explored = frame["stage"] == frame.groupby(keys)["stage"].transform("min")
    rate = frame.groupby(keys)["correct"].mean()
    first = frame["correct"].where(explored).astype(float).groupby(keys).mean()
    kinds = np.select([rate.isin([0, 1]), first == 0, first < 0.5], KINDS[:3], KINDS[3])
    tokens = frame["length"] + frame["prompt"]
    sums = frame.assign(
        rollouts=1, sampled=frame["length"], tokens=tokens, kept=tokens * frame["selected"]
    ).groupby(keys)
    table = sums[["rollouts", "selected", "sampled", "tokens", "kept"]].sum()
    return table.assign(sampled=table["sampled"] + sums["prompt"].first(), kind=kinds).reset_index()


def sizes(frames):
    """Rollouts a visit, sampled and selected, by kind of group: a DataFrame (kinds x 2), the mean over frames as for `groups`."""
    tables = [groups(frame) for frame in frames]
    parts = [
        table.groupby("kind")[["rollouts", "selected"]].sum().reindex(KINDS, fill_value=0)
        / len(table)
        for table in tables
    ]
    return (sum(parts) / len(parts)).rename(columns={"rollouts": "sampled"})


def savings(frame, baseline, *, skip=False):
    """Where the savings against a baseline come from, in percent of its FLOPs: a Series that adds up (AERO, figure 8).

    frame, baseline: as for `groups`, of a run of AERO and of one that trains on all it samples, of as many rounds. FLOPs
    are 2 for a token sampled and 6 for one trained on, times the parameters (eq. 23). skip: the baseline computes no
    group that is all alike, which has no advantage there, as `grpo_step` does without an entropy bonus. Entries:
    allocation, what other rollouts cost if all of them are trained on; rescued, alike and partial, what training on a
    part of these groups saves then (negative: it costs); and left.
    """

    def computed(table):
        return TRAINING * (table["tokens"] * ~(skip & (table["kind"] == "alike"))).sum()

    ours, theirs = groups(frame), groups(baseline)
    start, everything = (
        FORWARD * table["sampled"].sum() + computed(table) for table in (theirs, ours)
    )
    parts = {"allocation": start - everything}
    for kind in KINDS[:3]:
        part = ours[ours["kind"] == kind]
        parts[kind] = computed(part) - TRAINING * part["kept"].sum()
    return pd.Series({**parts, "left": start - sum(parts.values())}) * 100 / start


def magnitudes(frame, advantage):
    """Absolute advantages of the rollouts trained on, by kind of group and over all: a DataFrame (AERO, figure 10).

    frame: as for `groups`. advantage: the method's function of rewards and groups; the reward is 1 for a correct
    rollout and 0 for a wrong one, and uniform groups are measured before they are pruned, as in AERO. Columns: share
    (of the rollouts trained on) and mean; rows that do not occur are NaN.
    """
    visits = frame.groupby(["round", "problem"]).ngroup().to_numpy()
    pool = Rollouts(problem=visits.astype(str), reward=frame["correct"], correct=frame["correct"])
    index = np.flatnonzero(frame["selected"])
    size = np.abs(selected_advantages(advantage, "mixed", pool, index))
    kinds = groups(frame)["kind"].to_numpy()[visits[index]]
    rows = {"all": (1.0, size.mean())}
    rows |= {
        kind: (np.mean(kinds == kind), size[kinds == kind].mean())
        for kind in KINDS
        if kind in kinds
    }
    return pd.DataFrame.from_dict(rows, orient="index", columns=["share", "mean"]).reindex(
        ["all", *KINDS]
    )
