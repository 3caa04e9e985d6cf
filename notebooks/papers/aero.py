"""AERO (arXiv 2602.14338): what its rounds cost, whom the rescue reaches, what is left out of the
update, and what the prior does to gradients.

A frame here is `Record.rollouts()` with the columns problem, round, stage and correct; a *visit* is
one problem in one round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from papers import plots as paper_plots
from papers import regimes, tuned
from papers.gradients import sampled_groups, update_direction
from papers.plots import KINDS as COLOURS
from papers.plots import panels
from papers.tables import accuracy_gain, paired, seed_means
from papers.times import OwnPrice
from papers.tuned import EVERYTHING_TRAINED, RecordedTrial, claims_of_paper
from papers.verdicts import Claim, Finding, judge
from papers.verdicts import table as verdict_texts
from workbench import Run, labs, plots
from workbench.analysis import cost, targets
from workbench.analysis.comparisons import at_budget
from workbench.analysis.curves import Unit, read
from workbench.analysis.intervals import Measurement, mean_interval
from workbench.analysis.metrics import finite
from workbench.analysis.runs import arms, by_seed
from workbench.labs import Lab, shipped
from workbench.methods import Method
from workbench.plots.style import INK, PALETTE, SOFT, heading, looks, seeds, style
from workbench.records import Record
from workbench.rollouts import Context, Rollouts
from workbench.rounds import play
from workbench.rules.advantages import (
    GroupNormalized,
    Posterior,
    group_normalized,
    selected_advantages,
)
from workbench.rules.success_rates import Posteriors, RemembersPosteriors, outcomes
from workbench.slots import state_field
from workbench.utils.validation import positive_number, whole_number

__all__ = [
    "ARMS",
    "CATEGORIES",
    "CLAIMS_AT_ONE_RATE",
    "CLAIMS_OF_FIGURES",
    "KINDS",
    "MODELS",
    "CarriedPosterior",
    "Outcomes",
    "advantage_figure",
    "categories",
    "category_panels",
    "change",
    "gradient_norm_stats",
    "gradient_norms",
    "groups",
    "load",
    "machine_costs",
    "magnitudes",
    "norms_table",
    "parts_at_one_rate",
    "phases_figure",
    "price_figure",
    "published",
    "rescue",
    "saved",
    "savings",
    "scores_by_budget",
    "sizes",
    "sizes_by_part",
    "table6",
    "training_set_figure",
    "update_directions",
    "verdict_table",
    "verdicts_at_one_rate",
    "waterfalls",
    "zero_accuracy_scores",
]

KINDS = ("alike", "rescued", "partial", "high")
PRUNED = KINDS[:3]  # the kinds of which only a part is trained on
CATEGORIES = ("zero", "partial", "good", "perfect")
ROUNDS = (1, 100)  # the range in which rounds are billed, in every unit
CARRIED_RATE = 9e-4  # the tuned rate of GRPO with the prior, and of GRPO with 16 and AERO
LAST = 60  # the last round that all arms at one rate have
EPOCH = 16  # rounds, since a pool of 512 problems is drawn 32 problems a round
FIRST_STAGE = 8  # rollouts of a problem that AERO explores with
# What the arms are called.
ARMS = {
    "grpo-16": "GRPO, 16",
    "grpo-5": "GRPO, 5",
    "aero": "AERO",
    "grpo-prior": "GRPO + prior",
    "no-rejection": "no rejection",
}
# The same arms in runs at one learning rate, and others that only these runs have.
AT_ONE_RATE = {
    "GRPO, 16": "aero/grpo-16",
    "GRPO, 8": "aero/grpo-8",
    "GRPO, 5": "aero/grpo-5",
    "GRPO, 4": "aero/grpo-4",
    "GRPO, 2": "aero/grpo-2",
    "DAPO": "aero/dapo-16",
    "AERO": "head-to-head/aero",
    "GRPO + prior": "aero/grpo-prior",
    "GRPO + prior, posterior's": "aero/grpo-prior-posterior",
    "no rejection": "aero/no-rejection",
    "rejection in all groups": "aero/trim-high",
    "S = 1": "aero/threshold-1",
    "no prior": "aero/no-prior",
    "posterior's deviation": "aero/posterior-scale",
    "k = 2": "aero/k-2",
    "k = 3": "aero/k-3",
    "k = 4": "aero/k-4",
}
FOLDERS = ("head-to-head", "aero")
# The three models of table 6, and what the paper calls GRPO with about .32 N rollouts on each.
MODELS = {"Qwen2.5-Math-1.5B": "0.32N", "Qwen2.5-Math-7B": "N=6", "Qwen2.5-1.5B-Base": "N=5"}
# The budgets of table 6 that runs at one rate have.
BUDGETS = {
    "GRPO, 16": "GRPO",
    "GRPO, 8": "N/2",
    "GRPO, 5": "0.32N",
    "GRPO, 4": "N/4",
    "GRPO, 2": "N/8",
    "DAPO": "DAPO",
    "AERO": "AERO",
}
IN_WORDS = {"alike": "all alike", "partial": "below 1/2", "high": "1/2 or more"}
STEPS = {
    "allocation": "allocation",
    "rescued": "2 of a rescued problem",
    "alike": "4 of a group all alike",
    "partial": "as many wrong as right",
}

PHASES = {"generate": PALETTE[9], "update": PALETTE[0], "fixed": SOFT}

Groups = Mapping[str, Sequence[Record]]


def load(folder: Any) -> RecordedTrial:
    """The recorded runs of AERO: `tuned.load` of data/runs or another folder."""
    return tuned.load(folder, "aero", ARMS, AT_ONE_RATE, FOLDERS)


# What happened in every round


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
    of_arm: pd.DataFrame,
    of_baseline: pd.DataFrame,
    *,
    skip: bool = False,
    price: float = cost.FLOP_PRICE,
) -> pd.Series:
    """Where the savings against a baseline come from, in percent of the baseline's bill.

    Parameters
    ----------
    of_arm : DataFrame
        What `groups` makes of a run of AERO.
    of_baseline : DataFrame
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
    curves = read(runs)
    if len(curves) != 2:
        raise ValueError(f"runs: {len(curves)} labels; two methods are compared with each other")
    first, second = curves.values()
    rows = []
    for seed in sorted(set(first) & set(second)):
        pair = {label: by_seed[seed] for label, by_seed in curves.items()}
        # The relative score needs both methods at the same checkpoint.
        shared = np.intersect1d(first[seed].rounds, second[seed].rounds)
        for start, end in pairwise(shared):
            scores = {label: curve.score_at("round", float(end)) for label, curve in pair.items()}
            for label, curve in pair.items():
                table = curve.table
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


# The prior


@dataclass
class CarriedPosterior(RemembersPosteriors):
    """`advantages.Posterior` with a prior that every visit of a problem updates.

    Algorithm 1 of the paper says "update priors" where it explores. Equation 7 has the same
    Beta(1, 1) at every visit, which is `advantages.Posterior`. In this other reading a problem
    keeps its posterior: what earlier visits found is the prior of the next one. Groups with both
    outcomes have the usual advantages in both.
    """

    posteriors: Posteriors = state_field()

    def __post_init__(self) -> None:
        self.posteriors = Posteriors()

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        plain = group_normalized(rollouts.reward, rollouts.group)
        ids, correct, tries = outcomes(rollouts)
        _, problem_of_row = rollouts.problems()
        a, b = self.posteriors.after(ids, correct, tries).T
        # (r - u) / sqrt(u (1 - u)) with u = a / (a + b), of a right and of a wrong rollout.
        of_right, of_wrong = np.sqrt(b / a), -np.sqrt(a / b)
        against_posterior = np.where(
            rollouts.correct, of_right[problem_of_row], of_wrong[problem_of_row]
        )
        uniform = ((correct == 0) | (correct == tries))[problem_of_row]
        return np.where(uniform, against_posterior, plain)


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
            rows[label, record.seed] = gradient_norm_stats(norms)
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


# Costs


def change(
    ours: Sequence[Record],
    baseline: Sequence[Record],
    unit: str | Unit,
    rounds: tuple[int, int] = ROUNDS,
) -> Measurement:
    """By how many percent a run's bill lies above that of the baseline with the same seed.

    Parameters
    ----------
    ours, baseline : records of one setting each
    unit : str or unit of spending
        A column of the rounds table, or such as a machine of `cost.MACHINES`.
    rounds : (first, last)
        Both included, the same for every unit.
    """

    def total(record: Record) -> float:
        table = record.rounds
        counted = table["round"].between(*rounds).to_numpy()
        # A unit may measure a price over the whole run, so rounds are left out only afterwards.
        spent = table[unit].to_numpy(float) if isinstance(unit, str) else unit.per_round(table)
        return float(spent[counted].sum())

    def compare(run: Record, rival: Record) -> float:
        return 100 * (total(run) / total(rival) - 1)

    return paired(ours, baseline, compare, scale="percent")


UNITS: dict[str, str | Unit] = {
    "rollouts sampled": "rollouts",
    "tokens sampled": "tokens_sampled",
    "rollouts trained on": "selected",
    "FLOPs of the update": "flops_update",
    "FLOPs": "flops",
    "FLOPs with every rollout trained": EVERYTHING_TRAINED,
    "seconds on two A10 (1.5B)": cost.MACHINES["a10"],
    "seconds of the 7B runs": cost.MACHINES["aero-7b"],
    "seconds on an L40S": cost.MACHINES["l40s"],
    "time of this CPU": OwnPrice(),
}


def saved(groups: Groups, arm: str, baselines: Sequence[str]) -> pd.DataFrame:
    """What a round of one arm saves against others, in percent, over the rounds `ROUNDS`.

    Parameters
    ----------
    groups : dict from name to records
    arm : str
    baselines : names

    Returns
    -------
    DataFrame, a row a unit of `UNITS`
        Columns (against, value), (against, low) and (against, high); negative where it costs more.
    """
    rows = {}
    for text, unit in UNITS.items():
        row = {}
        for baseline in baselines:
            found = change(groups[arm], groups[baseline], unit)
            ends = {"saved": -found.value, "low": -found.high, "high": -found.low}
            row |= {(f"against {baseline}", name): value for name, value in ends.items()}
        rows[text] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def phases_figure(groups: Groups, *, title: str) -> list[Axes]:
    """FLOPs and seconds of a round, in parts, as in figure 5.

    Parameters
    ----------
    groups : dict from name to records
    title : str
    """
    a10 = cost.MACHINES["a10"]
    flops, time = {}, {}
    for name, records in groups.items():
        tables = [record.rounds for record in records]
        mean = pd.concat([table[table["round"].between(*ROUNDS)] for table in tables]).mean(
            numeric_only=True
        )
        flops[name] = {"generate": mean["flops_generate"], "update": mean["flops_update"]}
        time[name] = {
            "generate": a10.price * mean["rollouts"],
            "update": mean["selected"],
            "fixed": a10.fixed * mean["problems"],
        }
    with style():
        left, right = panels(2, height=1.9 + 0.34 * len(groups))
        table = pd.DataFrame(time).T
        names = {"generate": "sampling", "fixed": "a fixed part"}
        plots.stacked(
            table,
            names=names,
            palette=PHASES,
            label="seconds on two A10,\nin trained rollouts",
            ax=left,
        )
        table = pd.DataFrame(flops).T / 1e9
        plots.stacked(table, names=names, palette=PHASES, label="GFLOPs\n", ax=right)
        right.set_yticklabels([])
        for ax in (left, right):
            ax.get_legend().remove()
        handles = left.get_legend_handles_labels()
        left.figure.legend(*handles, loc="outside lower center", ncols=3)
        heading(left, f"{title} ({seeds(len(records) for records in groups.values())})")
    return [left, right]


def machine_costs(groups: Groups, target: float, baseline: str) -> pd.DataFrame:
    """What arms cost to an accuracy on every machine of `cost.MACHINES`, over the baseline's cost.

    Parameters
    ----------
    groups : dict from name to records
    target : float
    baseline : str

    Returns
    -------
    DataFrame, a row a machine and arm
        machine, label, price (of sampling), fixed (its constant part, a problem), ratio, low, high.
    """
    rows = []
    for machine in ("l40s", "a10", "aero-7b"):
        model = cost.MACHINES[machine]
        found = targets.to_target(groups, target, model, baseline=baseline)
        for label in groups:
            if label != baseline:
                ends = found.loc[label, ["ratio", "low", "high"]].to_dict()
                row = {"machine": model.name.removeprefix("seconds "), "label": label}
                rows.append(row | {"price": model.price, "fixed": model.fixed} | ends)
    return pd.DataFrame(rows)


def price_figure(groups: Groups, target: float, baseline: str, *, title: str) -> Axes:
    """The cost to an accuracy by the price of sampling; machines are points, with their constant.

    Parameters
    ----------
    groups, target, baseline
        As in `machine_costs`.
    title : str
    """
    table = cost.ratios_by_price(groups, target, baseline, bill="selected")
    with style():
        ax = paper_plots.prices(table, baseline=baseline, bill="selected", title=title)
        markers = ("D", "P", "X")
        styles = looks([baseline, *table["label"].unique()])
        of_machines = machine_costs(groups, target, baseline)
        for marker, (name, part) in zip(markers, of_machines.groupby("machine", sort=False)):
            for _, row in part.iterrows():
                colour = styles[row["label"]].colour
                ax.plot(row["price"], row["ratio"], marker, ms=7, mec=INK, color=colour, zorder=5)
            # What the legend shows stands for the points of all arms.
            text = f"{name}, constant {part['fixed'].iloc[0]:.1f}"
            ax.plot([], [], marker, ms=7, mec=INK, mfc="none", ls="none", label=text)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    return ax


# What the paper prints


def published(name: str) -> pd.DataFrame:
    """A published table, data/published/aero_NAME.csv."""
    return pd.read_csv(shipped(f"published/aero_{name}.csv"))


def table6(score: str = "avg@8") -> pd.DataFrame:
    """AERO above its rivals on each of the three models of table 6, in points.

    Parameters
    ----------
    score : {"avg@8", "pass@8"}

    Returns
    -------
    DataFrame, a row a model
        above GRPO, above DAPO, above GRPO with fewer (about .32 N rollouts), and what GRPO and GRPO
        with fewer gained over the model before training.
    """
    rows = {}
    for model, fewer in MODELS.items():
        scores = 100 * published("table6").query("model == @model").set_index("method")[score]
        rows[model] = {
            "above GRPO": scores["AERO"] - scores["GRPO"],
            "above DAPO": scores["AERO"] - scores["DAPO"],
            "above fewer": scores["AERO"] - scores[fewer],
            "GRPO gained": scores["GRPO"] - scores["base"],
            "fewer gained": scores[fewer] - scores["base"],
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def scores_by_budget(one_rate: Groups) -> pd.DataFrame:
    """Table 6 beside the runs at one rate: time, FLOPs and scores by the rollouts of a problem.

    Time and FLOPs are those of the first `LAST` rounds, over GRPO's.

    Parameters
    ----------
    one_rate : dict from the names of `BUDGETS` to records
    """
    theirs = published("table6").query("model == 'Qwen2.5-Math-1.5B'").set_index("method")
    grpo = theirs.loc["GRPO"]
    rows = {}
    for name, budget in BUDGETS.items():
        records = one_rate[name]
        row = theirs.loc[budget]
        rows[name] = {
            ("here", "A10 time"): _bill(records, cost.MACHINES["a10"])
            / _bill(one_rate["GRPO, 16"], cost.MACHINES["a10"]),
            ("here", "FLOPs"): _bill(records, "flops") / _bill(one_rate["GRPO, 16"], "flops"),
            ("here", "avg@24"): _score(records, LAST),
            ("here", "pass@8"): _score(records, LAST, "pass@8"),
            ("published", "time"): row["minutes_a_step"] / grpo["minutes_a_step"],
            ("published", "FLOPs"): row["petaflops_a_step"] / grpo["petaflops_a_step"],
            ("published", "avg@8"): row["avg@8"],
            ("published", "pass@8"): row["pass@8"],
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _bill(records: Sequence[Record], unit: str | Unit) -> float:
    """The mean bill of the first `LAST` rounds."""
    totals = []
    for record in records:
        table = record.rounds.head(LAST)
        spent = table[unit].to_numpy(float) if isinstance(unit, str) else unit.per_round(table)
        totals.append(spent.sum())
    return float(np.mean(totals))


def _score(records: Sequence[Record], at: int, y: str = "accuracy") -> float:
    """The mean held-out score after so many rounds."""
    return float(at_budget({"arm": records}, "round", at, y=y).loc["arm", "mean"])


def _gained(records: Sequence[Record], y: str = "accuracy", last: int | None = None) -> float:
    """What an arm gained over the base model, in points."""
    ends = [record.evals["round"].max() for record in records]
    last = int(min(ends)) if last is None else last
    return 100 * (_score(records, last, y) - _score(records, 0, y))


# What is trained on, and what it saves


class Outcomes:
    """Every rollout of AERO and of GRPO with 16, read once.

    Parameters
    ----------
    runs : dict from name to records
        "AERO" and "GRPO, 16" among them, with their rollouts.
    rounds : (first, last)
        Both included.

    Attributes
    ----------
    frames : dict from name to a dict from seed to DataFrame
        With the tokens of each prompt, for the names that have rollouts.
    """

    def __init__(self, runs: Groups, rounds: tuple[int, int] = ROUNDS) -> None:
        self.frames: dict[str, dict[int, pd.DataFrame]] = {}
        wanted = range(rounds[0], rounds[1] + 1)
        for name in ("GRPO, 16", "AERO"):
            self.frames[name] = {}
            for record in runs[name]:
                frame = record.rollouts(wanted)
                # An id ends in the prompt, and the tiny model reads characters.
                prompt = frame["problem"].str.len() - len("chains/")
                self.frames[name][record.seed] = frame.assign(prompt=prompt)

    @cached_property
    def shares(self) -> dict[tuple[str, int | None], dict[int, pd.DataFrame]]:
        """`categories` of every run, as counted and over the rollouts of AERO's first stage."""
        return {
            (name, most): {seed: categories(frame, most) for seed, frame in frames.items()}
            for name, frames in self.frames.items()
            for most in (None, FIRST_STAGE)
        }

    @cached_property
    def savings(self) -> dict[str, pd.DataFrame]:
        """`savings` of AERO against GRPO, a row a seed, by the name of the case."""
        a10 = cost.MACHINES["a10"].price
        cases: dict[str, dict[str, Any]] = {
            "FLOPs": {},
            "two A10 without the constant": {"price": a10},
            "FLOPs, mixed groups only": {"skip": True},
        }
        ours, baseline = self.frames["AERO"], self.frames["GRPO, 16"]
        common = sorted(set(ours) & set(baseline))
        pairs = {seed: (groups(ours[seed]), groups(baseline[seed])) for seed in common}
        return {
            case: pd.DataFrame({seed: savings(*pair, **options) for seed, pair in pairs.items()}).T
            for case, options in cases.items()
        }

    @cached_property
    def magnitudes(self) -> dict[str, dict[int, pd.DataFrame]]:
        """`magnitudes` of every run."""
        rules = {"GRPO, 16": GroupNormalized(), "AERO": Posterior()}
        return {
            name: {seed: magnitudes(frame, rules[name]) for seed, frame in frames.items()}
            for name, frames in self.frames.items()
        }

    def unsolved(self) -> pd.DataFrame:
        """Share of problems without a right rollout, as counted and over the first eight.

        With the mean success rate and the share of problems whose first eight are all right.
        """
        columns = {
            ("as counted", None): "zero",
            ("first eight", FIRST_STAGE): "zero",
            ("first eight, all right", FIRST_STAGE): "perfect",
            ("first eight, mean success", FIRST_STAGE): "rate",
        }
        rows = {}
        for name in self.frames:
            row = {}
            for (text, most), column in columns.items():
                means = [table[column].mean() for table in self.shares[name, most].values()]
                mean, half = mean_interval(means)
                row |= {(text, "mean"): mean, (text, "±"): half}
            rows[name] = row
        return pd.DataFrame.from_dict(rows, orient="index")

    def relative(self, column: str, most: int | None = None) -> Measurement:
        """By how many percent AERO's mean of a category lies above GRPO's."""

        def compare(ours: pd.DataFrame, baseline: pd.DataFrame) -> float:
            return float(100 * (ours[column].mean() / baseline[column].mean() - 1))

        ours, baseline = self.shares["AERO", most], self.shares["GRPO, 16", most]
        return paired(ours, baseline, compare, scale="percent")

    def more_solved(self) -> Measurement:
        """By how many percent the rescue raises the number of problems with a right rollout."""
        values = []
        for frame in self.frames["AERO"].values():
            values.append(_more_solved(rescue(frame)["unsolved"]))
        return Measurement(np.array(values))

    def larger_advantages(self) -> Measurement:
        """By how many percent AERO's mean absolute advantage lies above GRPO's."""

        def compare(ours: pd.DataFrame, baseline: pd.DataFrame) -> float:
            return float(100 * (ours["mean"]["all"] / baseline["mean"]["all"] - 1))

        sizes = self.magnitudes
        return paired(sizes["AERO"], sizes["GRPO, 16"], compare, scale="percent")


def sizes_by_part(
    frames: Mapping[int, pd.DataFrame], parts: Sequence[tuple[int, int]]
) -> pd.DataFrame:
    """Rollouts of a problem that AERO samples and trains on, by part of the training and kind.

    Parameters
    ----------
    frames : dict from seed to DataFrame
        As for `groups`.
    parts : list of (first, last)
        Rounds, both included.

    Returns
    -------
    DataFrame, a row a part
        sampled, trained on, and of the problems the share of each kind, in percent.
    """
    rows = {}
    for first, last in parts:
        part = pd.concat([frame[frame["round"].between(first, last)] for frame in frames.values()])
        # Seeds draw the same problems in other rounds, so that each seed is a part of its own.
        tables = [groups(frame[frame["round"].between(first, last)]) for frame in frames.values()]
        table = pd.concat(tables)
        shares = 100 * table["kind"].value_counts(normalize=True).reindex(KINDS, fill_value=0.0)
        rows[f"rounds {first} to {last}"] = {
            "sampled": len(part) / len(table),
            "trained on": table["selected"].mean(),
            **{f"{IN_WORDS.get(kind, kind)}, %": share for kind, share in shares.items()},
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def training_set_figure(outcomes_: Outcomes, *, title: str) -> tuple[Axes, pd.DataFrame]:
    """Rollouts of a problem by kind of group: sampled and trained on.

    Returns
    -------
    Axes, and the table that is drawn with its total
    """
    grpo = sizes(outcomes_.frames["GRPO, 16"].values())
    ours = sizes(outcomes_.frames["AERO"].values())
    table = pd.DataFrame(
        {
            "GRPO, trained on": grpo["sampled"],
            "AERO, sampled": ours["sampled"],
            "AERO, trained on": ours["selected"],
        }
    ).T
    number = seeds([len(outcomes_.frames["AERO"])])
    ax = plots.stacked(
        table,
        title=f"{title} ({number})",
        names=IN_WORDS,
        palette=COLOURS,
        label="rollouts a problem, by the share of them that is right",
    )
    return ax, table.assign(total=table.sum(axis=1))


def waterfalls(found: Mapping[str, pd.DataFrame], titles: Mapping[str, str]) -> dict[str, Axes]:
    """From GRPO's cost to AERO's, a figure a case, as in figure 8.

    Parameters
    ----------
    found : dict from case to DataFrame
        Of `Outcomes.savings`.
    titles : dict from case to title
        The cases that are drawn.

    Returns
    -------
    dict from case to Axes
    """
    drawn = {}
    for case, title in titles.items():
        rows = {}
        for part, step in STEPS.items():
            measured = Measurement(found[case][part].to_numpy())
            rows[step] = {"value": measured.value, "low": measured.low, "high": measured.high}
        drawn[case] = paper_plots.waterfall(
            100,
            pd.DataFrame.from_dict(rows, orient="index"),
            names=("GRPO, 16", "AERO"),
            limit=150,
            title=f"{title} ({seeds([len(found[case])])})",
            label=f"% of GRPO's {case.split(',')[0]}",
        )
    return drawn


def rescue_figure(
    frames: Mapping[int, pd.DataFrame], parts: Sequence[tuple[int, int]], *, title: str
) -> tuple[Axes, pd.DataFrame]:
    """Problems without a right rollout after each iteration of the rescue, as in figure 4.

    Parameters
    ----------
    frames : dict from seed to DataFrame
    parts : list of (first, last)
        Rounds, both included; a line each.
    title : str

    Returns
    -------
    Axes, and a DataFrame, a row a part
        unsolved after exploring and after the rescue, more solved (percent, with low and high), and
        rollouts for each problem rescued.
    """
    lines, rows = {}, {}
    for first, last in parts:
        cut = [frame[frame["round"].between(first, last)] for frame in frames.values()]
        tables = [rescue(frame) for frame in cut]
        # Late in training no problem of a run may need the last iterations.
        longest = max(map(len, tables))
        tables = [table.reindex(range(longest)) for table in tables]
        unsolved = [table["unsolved"].ffill() for table in tables]
        means = seed_means([values.to_frame() for values in unsolved])["unsolved"]
        name = f"rounds {first} to {last}"
        lines[name] = means
        more = Measurement(np.array([_more_solved(values) for values in unsolved]))
        tried = 2 * np.mean([table["tried"].iloc[1:].sum() for table in tables])
        start, end = means["mean"].iloc[0], means["mean"].iloc[-1]
        rows[name] = {
            "after exploring": start,
            "after the rescue": end,
            "more solved, %": more.value,
            "low": more.low,
            "high": more.high,
            "rollouts a rescue": tried / (start - end),
        }
    with style():
        ax = paper_plots.sweep(
            lines,
            log=False,
            title=f"{title} ({seeds([len(frames)])})",
            xlabel="iteration of the rescue, two rollouts each",
            ylabel="share of problems unsolved",
            legend=None,
        )
        ax.set_ylim(0, None)
        ax.legend(loc="upper right")
    return ax, pd.DataFrame.from_dict(rows, orient="index")


def _more_solved(unsolved: pd.Series) -> float:
    """By how many percent the rescue raises the number of solved problems."""
    solved = 1 - unsolved
    return float(100 * (solved.iloc[-1] / solved.iloc[0] - 1))


def category_panels(
    found: Outcomes, columns: Mapping[tuple[str, int | None], str], *, title: str, height: float
) -> list[Axes]:
    """Categories of problems by round, a panel each.

    Parameters
    ----------
    found : Outcomes
    columns : dict from (category, most) to the title of its panel
        most is None for all rollouts of a problem, or how many of them are counted.
    title : str
    height : float
        In inches.
    """
    with style():
        axes = panels(len(columns), height=height)
        for ax, ((column, most), text) in zip(axes, columns.items()):
            series = {}
            for name in found.frames:
                tables = found.shares[name, most].values()
                smooth = [table.rolling(EPOCH, min_periods=1).mean() for table in tables]
                series[name] = seed_means(smooth)[column]
            paper_plots.bands(series, legend=None, ax=ax)
            ax.set(title=text, xlabel="round", ylabel="", xlim=(0, ROUNDS[1]), ylim=(0, None))
        axes[0].set_ylabel(f"mean of {EPOCH} rounds")
        top = max(ax.get_ylim()[1] for ax in axes)
        for ax in axes:
            ax.set_ylim(0, top)
        handles = axes[0].get_legend_handles_labels()
        axes[0].figure.legend(*handles, loc="outside lower center", ncols=2)
        heading(axes[0], title)
    return axes


def advantage_figure(found: Outcomes, *, title: str) -> tuple[Axes, pd.DataFrame]:
    """Mean absolute advantages by kind of group, as in figure 10.

    Returns
    -------
    Axes, and the share of each kind among the rollouts trained on
    """
    means = {name: seed_means(list(tables.values())) for name, tables in found.magnitudes.items()}
    rows = {}
    for kind in ("all", *KINDS):
        for name, tables in means.items():
            rows[f"{IN_WORDS.get(kind, kind)}: {name}"] = tables["mean"].loc[kind]
    table = pd.DataFrame(rows).T.dropna(subset=["mean"])
    ax = paper_plots.dots(table, title=title, label="mean |advantage|")
    shares = {name: tables["share"]["mean"] for name, tables in means.items()}
    return ax, pd.DataFrame(shares).rename(index=IN_WORDS)


def zero_accuracy_panels(
    runs: Groups, pairs: Mapping[str, tuple[str, str]], *, title: str
) -> tuple[list[Axes], pd.DataFrame]:
    """The share of problems without a right rollout against the score, as in figure 2.

    Parameters
    ----------
    runs : dict from name to records
    pairs : dict from the title of a panel to two names
    title : str

    Returns
    -------
    Axes, and a DataFrame, a row a pair
        r within a seed, the mean over seeds, ± and seeds.
    """
    rows = {}
    with style():
        axes = panels(len(pairs), height=4)
        for ax, (text, pair) in zip(axes, pairs.items()):
            table = zero_accuracy_scores({name: runs[name] for name in pair})
            label = "share of problems without a right rollout"
            paper_plots.relation(table, "zero", "relative", "label", xlabel=label, ax=ax)
            ax.set(title=text, ylabel="")
            low, high = ax.get_ylim()
            ax.set_ylim(low - 0.1 * (high - low), high)  # room for r
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
            found = correlations(table)
            mean, half = mean_interval(found.tolist())
            rows[text] = {"r": mean, "±": half, "seeds": len(found)}
        axes[0].set_ylabel("score over the better one's")
        heading(axes[0], title)
    return axes, pd.DataFrame.from_dict(rows, orient="index")


def correlations(table: pd.DataFrame) -> np.ndarray:
    """Pearson's r of the two columns of `zero_accuracy_scores` within each seed, (seeds,)."""
    by_seed = table.groupby("seed")[["zero", "relative"]]
    return by_seed.apply(lambda part: part["zero"].corr(part["relative"])).to_numpy()


# The gradient


def norms_table(groups: Groups, baseline: str) -> pd.DataFrame:
    """Gradient norms around the steps of table 7, and over rounds 70 to 90 against a baseline.

    Parameters
    ----------
    groups : dict from name to records
    baseline : str

    Returns
    -------
    DataFrame, a row a name
        round 70, round 80 and round 90 (means of ten rounds around each), above, low and high, in
        percent of the baseline's mean from round 70 to 90.
    """
    rows = {}
    for name, records in groups.items():
        row = {}
        for step in (70, 80, 90):
            span = (step - 4, step + 5)
            row[f"round {step}"] = gradient_norms({name: records}, span)["mean"].mean()
        if name != baseline:
            found = _longer(records, groups[baseline])
            row |= {f"above {baseline}, %": found.value, "low": found.low, "high": found.high}
        rows[name] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def _longer(ours: Sequence[Record], baseline: Sequence[Record]) -> Measurement:
    """By how many percent the mean gradient norm of rounds 70 to 90 lies above the baseline's."""

    def longer(run: Record, rival: Record) -> float:
        return 100 * (_late_norm(run.rounds) / _late_norm(rival.rounds) - 1)

    return paired(ours, baseline, longer, scale="percent")


def update_directions(
    policy: Any, lab: Lab, methods: Mapping[str, Method], *, most: int = 28, seed: int = 0
) -> tuple[dict[str, np.ndarray], pd.DataFrame]:
    """Directions of the updates that one policy would get from rounds of several methods.

    The whole pool is answered once, `most` rollouts for each problem. Every method samples from
    these answers, in rounds of 32 problems.

    Parameters
    ----------
    policy : Policy
        It is not changed.
    lab : Lab
    methods : dict from name to Method
    most, seed : int

    Returns
    -------
    directions : dict from name to (U, D) float64
        The gradients of U rounds, each divided by its length.
    counts : DataFrame, a row a name
        Means over rounds: sampled and trained on (rollouts a problem), and norm of the gradient.
    """
    asked, _ = lab.problems.draw(len(lab.problems), 0, seed)
    answers = sampled_groups(policy, asked, lab.verifier, most, sampling=lab.sampling, seed=seed)
    place = {problem.id: most * number for number, problem in enumerate(asked)}

    def sample(problems: Any, counts: Any, before: Any, stage: int) -> Rollouts:
        rows = [
            place[problem.id] + start + np.arange(count)
            for problem, count, start in zip(problems, counts, before)
        ]
        part = answers.take(np.concatenate(rows).astype(int))
        return part.assign(stage=np.full(len(part), stage))

    directions: dict[str, list[np.ndarray]] = {name: [] for name in methods}
    counts = []
    for start in range(0, len(asked) - 31, 32):
        for name, method in methods.items():
            problems = list(asked[start : start + 32])
            round_ = play(method, problems, Context(seed=seed), sample, lambda n, known: [])
            chosen = round_.rollouts.take(round_.rows)
            direction, stats = update_direction(policy, chosen, round_.advantages, method.objective)
            directions[name].append(direction)
            counts.append(
                {
                    "method": name,
                    "sampled": len(round_.rollouts) / 32,
                    "trained on": len(chosen) / 32,
                    "norm": stats.gradient_norm,
                }
            )
    means = pd.DataFrame(counts).groupby("method", sort=False).mean()
    return {name: np.array(rows) for name, rows in directions.items()}, means


# What each part adds, at one rate


PARTS = {
    "no rejection": ("no rejection", "AERO"),
    "rejection in all groups": ("rejection in all groups", "AERO"),
    "S = 1": ("S = 1", "AERO"),
    "no prior": ("no prior", "AERO"),
    "posterior's deviation": ("posterior's deviation", "AERO"),
    "GRPO + prior": ("GRPO + prior", "GRPO, 16"),
    "GRPO + prior, posterior's": ("GRPO + prior, posterior's", "GRPO, 16"),
    "k = 2": ("k = 2", "AERO"),
    "k = 3": ("k = 3", "AERO"),
    "k = 4": ("k = 4", "AERO"),
}


def parts_at_one_rate(one_rate: Groups) -> dict[str, pd.DataFrame]:
    """What changing one part does to accuracy, pass@8, FLOPs and time, in runs at one rate.

    Parameters
    ----------
    one_rate : dict from name to records
        As of `load`.

    Returns
    -------
    dict from what is measured to a DataFrame, a row a changed part
        value, low, high and n (seeds): points after `LAST` rounds, or percent over these rounds.
    """
    a10 = cost.MACHINES["a10"]
    rounds = (1, LAST)
    tables: dict[str, dict[str, Any]] = {}
    for name, (arm, baseline) in PARTS.items():
        ours, rival = one_rate[arm], one_rate[baseline]
        found = {
            "accuracy, points": accuracy_gain(ours, rival, "round", LAST),
            "pass@8, points": accuracy_gain(ours, rival, "round", LAST, y="pass@8"),
            "FLOPs, %": change(ours, rival, "flops", rounds),
            "A10 time, %": change(ours, rival, a10, rounds),
        }
        for text, measured in found.items():
            tables.setdefault(text, {})[name] = measured.columns()
    return {text: pd.DataFrame.from_dict(rows, orient="index") for text, rows in tables.items()}


def parts_figure(tables: Mapping[str, pd.DataFrame], *, title: str) -> Axes:
    """Accuracy and pass@8 of what is changed, without the k of figure 11.

    Parameters
    ----------
    tables : dict from what is measured to DataFrame
        Of `parts_at_one_rate`.
    title : str
    """
    rows = [name for name in PARTS if not name.startswith("k =")]
    shown = {text: tables[text].loc[rows] for text in ("accuracy, points", "pass@8, points")}
    return paper_plots.gains(shown, title=title)[0]


def k_figure(tables: Mapping[str, pd.DataFrame], *, title: str) -> list[Axes]:
    """What a larger k costs and changes, as in figure 11.

    Parameters
    ----------
    tables
        As in `parts_figure`.
    title : str
    """

    def above_first(table: pd.DataFrame) -> pd.DataFrame:
        rows = {1: {"mean": 0.0, "half": 0.0}}
        for k in (2, 3, 4):
            row = table.loc[f"k = {k}"]
            rows[k] = {"mean": row["value"], "half": (row["high"] - row["low"]) / 2}
        return pd.DataFrame.from_dict(rows, orient="index")

    theirs = published("figure11").set_index("k")["more_minutes_percent"]
    costs = {
        "FLOPs": above_first(tables["FLOPs, %"]),
        "time on two A10": above_first(tables["A10 time, %"]),
        "published time": theirs.to_frame("mean").assign(half=0.0),
    }
    scores = {
        "accuracy": above_first(tables["accuracy, points"]),
        "pass@8": above_first(tables["pass@8, points"]),
    }
    with style():
        axes = panels(2, height=4)
        labels = ("% above k = 1", "points above k = 1")
        for ax, lines, label in zip(axes, (costs, scores), labels):
            paper_plots.sweep(lines, log=False, xlabel="k", ylabel=label, legend=None, ax=ax)
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
        axes[1].axhline(0, color=SOFT, lw=1, zorder=0)
        heading(axes[0], title)
    return axes


# The other reading of "update priors"


def record_carried_prior(path: Any, numbers: Iterable[int] = range(8)) -> None:
    """Train GRPO with a carried prior as the arm `grpo-prior` was trained, and write what came out.

    Parameters
    ----------
    path : path
        A CSV file, a row a seed and round: gradient_norm, and accuracy where it was evaluated.
    numbers : seeds
    """
    method = regimes.aero_arms()["grpo-16"].but(advantage=CarriedPosterior())
    tables = []
    for number in numbers:
        run = Run(labs.tiny(), method, seed=number, learning_rate=CARRIED_RATE, evaluate_every=20)
        for _ in run.rounds(ROUNDS[1], progress=False):
            pass
        tables.append(_norms_and_scores(run.record).assign(seed=number))
    columns = ["seed", "round", "gradient_norm", "accuracy"]
    pd.concat(tables)[columns].to_csv(path, index=False, float_format="%.6g")


def _norms_and_scores(record: Record) -> pd.DataFrame:
    """Gradient norm and, where there is one, held-out accuracy of every round."""
    sums = record.evals.groupby("round")[["correct", "samples"]].sum()
    table = record.rounds[["round", "gradient_norm"]]
    return table.assign(accuracy=table["round"].map(sums["correct"] / sums["samples"]))


def readings(groups: Groups, carried: pd.DataFrame) -> pd.DataFrame:
    """GRPO with either reading of the prior against GRPO without, and against one another.

    Parameters
    ----------
    groups : dict from the names of `ARMS` to records
    carried : DataFrame
        As `record_carried_prior` writes it.

    Returns
    -------
    DataFrame, a row a comparison
        (accuracy, points) after 60 and 100 rounds, and (norm, %) of rounds 70 to 90, each with
        value, low and high; and seeds.
    """
    tables = {"the prior of earlier visits": dict(list(carried.groupby("seed")))}
    for text, name in (("Beta(1, 1) at every visit", "GRPO + prior"), ("no prior", "GRPO, 16")):
        records = groups[name]
        tables[text] = {record.seed: _norms_and_scores(record) for record in records}
    kept, fixed, none = tables
    rows = {}
    for arm, baseline in ((fixed, none), (kept, none), (kept, fixed)):
        row: dict[tuple[str, str], float] = {}
        for last in (60, 100):
            found = paired(
                tables[arm],
                tables[baseline],
                lambda run, rival, last=last: 100 * (_at(run, last) - _at(rival, last)),
            )
            row |= _with_ends(f"points, round {last}", found)
        found = paired(
            tables[arm],
            tables[baseline],
            lambda run, rival: 100 * (_late_norm(run) / _late_norm(rival) - 1),
            scale="percent",
        )
        row |= _with_ends("gradient norm, %", found)
        rows[f"{arm}, above {baseline}"] = row | {("", "seeds"): found.n}
    return pd.DataFrame.from_dict(rows, orient="index").astype({("", "seeds"): int})


def _with_ends(text: str, found: Measurement) -> dict[tuple[str, str], float]:
    return {(text, "value"): found.value, (text, "low"): found.low, (text, "high"): found.high}


def _at(table: pd.DataFrame, last: int) -> float:
    """The accuracy after a round."""
    return float(table.loc[table["round"] == last, "accuracy"].iloc[0])


def _late_norm(table: pd.DataFrame) -> float:
    """The mean gradient norm from round 70 to round 90, as in table 7."""
    return float(table.loc[table["round"].between(70, 90), "gradient_norm"].mean())


# Verdicts


@dataclass(frozen=True)
class Measured:
    """The arms of one trial, and the rollouts of two of them."""

    runs: Groups
    outcomes: Outcomes


Quantity = Callable[[Measured], Finding]


def _claim(text: str, published: str = "", *sizes: float, **options: Any) -> Claim:
    return Claim("AERO", text, published=published, sizes=sizes, **options)


def _of_outcomes(quantity: Callable[[Outcomes], Measurement]) -> Quantity:
    return lambda found: Finding(quantity(found.outcomes))


def _bill_change(unit: str | Unit) -> Quantity:
    return lambda found: Finding(change(found.runs["AERO"], found.runs["GRPO, 16"], unit))


def _above(arm: str, baseline: str, y: str = "accuracy", at: int | None = None) -> Quantity:
    """Points of one arm above another after equal rounds, with what the baseline gained."""

    def quantity(found: Measured) -> Finding:
        ours, rival = found.runs[arm], found.runs[baseline]
        gain = accuracy_gain(ours, rival, "round", at, y=y)
        last = at or min(int(record.evals["round"].max()) for record in (*ours, *rival))
        both = (by_seed(ours), by_seed(rival))
        common = sorted(both[0].keys() & both[1].keys())
        gains = [_gained([both[1][seed]], y, last) for seed in common]
        return Finding(gain, Measurement(np.array(gains)))

    return quantity


def _correlation(pair: tuple[str, str]) -> Quantity:
    """Pearson's r of the zero-accuracy ratio and the relative score, over the checkpoints."""

    def quantity(found: Measured) -> Finding:
        table = zero_accuracy_scores({name: found.runs[name] for name in pair})
        return Finding(Measurement(correlations(table)))

    return quantity


def _of_models() -> list[tuple[Claim, Quantity]]:
    """The claims of table 6, its three models named apart."""
    rows = []
    table = table6()
    for column, gained, arm in (
        ("above GRPO", "GRPO gained", "GRPO, 16"),
        ("above fewer", "fewer gained", "GRPO, 5"),
    ):
        for model in MODELS:
            size, gain = float(table.loc[model, column]), float(table.loc[model, gained])
            text = f"accuracy above {arm}, as {model} has it, points"
            claim = _claim(text, f"{size:+.1f}", size, published_gain=(gain,))
            rows.append((claim, _above("AERO", arm)))
    return rows


CLAIMS_OF_FIGURES: tuple[tuple[Claim, Quantity], ...] = (
    *_of_models(),
    (
        _claim(
            "pass@8 above GRPO with n = 16, equal rounds, points",
            "+0.3, +1.4",
            0.31,
            1.4,
            published_gain=(10.4, 6.4),
        ),
        _above("AERO", "GRPO, 16", "pass@8"),
    ),
    (
        _claim(
            "FLOPs of the update against GRPO's, %", "-64, -63", -64.3, -63.0, direction="below"
        ),
        _bill_change("flops_update"),
    ),
    (
        _claim("FLOPs against a GRPO that computes mixed groups only, %", direction="below"),
        _of_outcomes(
            lambda found: Measurement(
                found.savings["FLOPs, mixed groups only"]["left"].to_numpy() - 100
            )
        ),
    ),
    (
        _claim("problems with a right rollout, more by the rescue, %", "+26", 26.0),
        _of_outcomes(Outcomes.more_solved),
    ),
    (
        _claim("problems always solved against GRPO's, as counted, %", "more"),
        _of_outcomes(lambda found: found.relative("perfect")),
    ),
    (
        _claim("the same over the first eight rollouts, %", "more"),
        _of_outcomes(lambda found: found.relative("perfect", FIRST_STAGE)),
    ),
    (
        _claim(
            "correlation of zero-accuracy ratio and relative score",
            "-0.86",
            -0.86,
            direction="below",
        ),
        _correlation(("AERO", "GRPO, 16")),
    ),
    (
        _claim("mean absolute advantage above GRPO's, %", "+30", 30.0),
        _of_outcomes(Outcomes.larger_advantages),
    ),
)


def verdict_table(
    records: Mapping[str, Sequence[Record]],
    tuned: Groups,
    found: Outcomes,
    before: Groups,
    found_before: Outcomes,
) -> pd.DataFrame:
    """The table of `tuned.claims_of_paper`.

    Parameters
    ----------
    records : dict from "folder/label" to records
    tuned, found
        The tuned runs by the names of `ARMS`, and their rollouts.
    before, found_before
        The same of the runs at one rate.

    Returns
    -------
    DataFrame
    """
    of_figures = [claim for claim, _ in CLAIMS_OF_FIGURES]
    findings = [quantity(Measured(tuned, found)) for _, quantity in CLAIMS_OF_FIGURES]
    untuned = [quantity(Measured(before, found_before)) for _, quantity in CLAIMS_OF_FIGURES]
    older = {f"regimes/aero/{label}": before[name] for label, name in ARMS.items()}
    return claims_of_paper("AERO", records, of_figures, findings, untuned, older)


def _published_budget(name: str) -> tuple[Claim, Quantity]:
    """AERO above GRPO with fewer rollouts on the first model of table 6."""
    scores = (
        100 * published("table6").query("model == 'Qwen2.5-Math-1.5B'").set_index("method")["avg@8"]
    )
    budget = BUDGETS[name]
    size = float(scores["AERO"] - scores[budget])
    gain = float(scores[budget] - scores["base"])
    text = f"accuracy above {name}, equal rounds, points"
    claim = _claim(text, f"{size:+.1f}", size, published_gain=(gain,))
    return claim, _above("AERO", name, at=LAST)


CLAIMS_AT_ONE_RATE: tuple[tuple[Claim, Quantity], ...] = (
    *(_published_budget(name) for name in ("GRPO, 8", "GRPO, 4", "GRPO, 2", "DAPO")),
    (
        _claim(
            "accuracy lost by rejection in all groups, equal rounds, points",
            "-1.3",
            -1.31,
            published_gain=(18.35,),
            direction="below",
        ),
        _above("rejection in all groups", "AERO", at=LAST),
    ),
    (
        _claim("the gradient norm with the prior, posterior's deviation, %", "+54", 54.0),
        lambda found: Finding(
            _longer(found.runs["GRPO + prior, posterior's"], found.runs["GRPO, 16"])
        ),
    ),
    (
        _claim("time on two A10 with k = 4 above k = 1, %", "+16", 16.0),
        lambda found: Finding(
            change(found.runs["k = 4"], found.runs["AERO"], cost.MACHINES["a10"], (1, LAST))
        ),
    ),
)


def verdicts_at_one_rate(before: Groups, found: Outcomes) -> pd.DataFrame:
    """The claims that only the runs at one rate can answer, after Holm's correction over them.

    Parameters
    ----------
    before, found
        The runs at one rate, and their rollouts.
    """
    measured = Measured(before, found)
    judged = judge(
        [claim for claim, _ in CLAIMS_AT_ONE_RATE],
        [quantity(measured) for _, quantity in CLAIMS_AT_ONE_RATE],
    )
    return verdict_texts(judged).drop(columns="paper")
