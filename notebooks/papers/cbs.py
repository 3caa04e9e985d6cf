"""CBS (arXiv 2602.08499): what its arms gain, what decides whether its scheduler learns, what the
scores follow, and what the scheduler keeps.

A frame is `Record.rollouts()` of a run with a `Scheduler`, with the columns round, age, score and
feature_*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy import stats

from papers.bandits import Bandit, regret
from papers.gradients import sampled_groups
from papers.measures import accuracy
from papers.plots import bands, panels, sweep
from papers.tables import accuracy_gain, over_seeds, paired, seed_means
from papers.times import update_time
from papers.tuned import NO_TUNED_RUN, Shelf, claims_of_paper, recorded
from papers.verdicts import Claim, Finding
from workbench.analysis.comparisons import at_budget
from workbench.analysis.correlations import score_correlations
from workbench.analysis.curves import Curve, read
from workbench.analysis.intervals import Measurement, holm, mean_interval
from workbench.analysis.runs import arms, by_seed
from workbench.labs import Lab, shipped
from workbench.plots.style import WIDTH, heading, looks, plain, style, without_seeds
from workbench.records import Record
from workbench.rollouts import Context
from workbench.rules.advantages import group_normalized
from workbench.rules.scheduler import Learner, features, scaled
from workbench.utils.validation import whole_number

__all__ = [
    "ARMS",
    "OBJECTIVES",
    "STEPS",
    "Recorded",
    "Steps",
    "above",
    "by_objective",
    "correlation_spread",
    "ends_by_seed",
    "ends_figure",
    "first_networks",
    "kept_and_dropped",
    "load",
    "noise",
    "published",
    "regret_ratios",
    "saved",
    "scheduler_share",
    "scheduler_shares",
    "scores_by_seed",
    "signals",
    "size_panels",
    "strength",
    "update_panels",
    "verdict_table",
]

OBJECTIVES = ("grpo", "dapo", "gspo")
# What the arms of the regime are called. A round has 128 rollouts: the full set makes four steps of
# 32 of them. CBS* keeps 38, which fill one mini-batch of 32 or four of 8.
ARMS = {
    "full": "all rollouts",
    "mixed": "all, mixed",
    "buffer": "CBS",
    "random-buffer": "random, buffer",
    "round": "CBS*, one step",
    "round-8": "CBS*, four steps",
    "random-8": "random, four steps",
}
# The choices of rollouts in runs at one rate, recorded with every objective.
SCOPES = {"full": "all rollouts", "round": "CBS*", "buffer": "CBS"}
FOLDERS = (
    "cbs",
    "cbs-ablations",
    "cbs-constants",
    "regimes/cbs-long",
    *(f"regimes/cbs-{name}" for name in OBJECTIVES),
)
# The features of table 1 by what they tell.
KINDS = {
    "use and age": ["uses", "age"],
    "reward signals": ["reward", "advantage", "group_mean", "group_std"],
}

Runs = Mapping[str, Sequence[Record]]


class Recorded(NamedTuple):
    """The recorded runs that the notebook reads, see `load`."""

    records: dict[str, list[Record]]
    shelves: dict[str, Shelf]


def load(folder: Any) -> Recorded:
    """The recorded runs of CBS.

    Parameters
    ----------
    folder : path
        Such as data/runs.

    Returns
    -------
    records : dict from "folder/label" to records
    shelves : dict from objective to tuned.Shelf
        The trials of the regimes `cbs-grpo`, `cbs-dapo` and `cbs-gspo`.
    """
    shelves = {name: Shelf(Path(folder, f"regimes/cbs-{name}"), ARMS) for name in OBJECTIVES}
    return Recorded(recorded(folder, FOLDERS), shelves)


def published(name: str) -> pd.DataFrame:
    """A published table, data/published/cbs_NAME.csv."""
    return pd.read_csv(shipped(f"published/cbs_{name}.csv"))


# What the arms gain


class Steps:
    """A unit of spending: optimizer steps."""

    name = "optimizer steps"

    def per_round(self, rounds: pd.DataFrame) -> np.ndarray:
        """Steps of each round of a record's rounds table, (rounds,) float64."""
        return rounds["steps"].to_numpy(dtype=float)


STEPS = Steps()


def above(
    records: Runs, pairs: Mapping[str, tuple[str, str]], checkpoint: str = "last"
) -> pd.DataFrame:
    """Held-out accuracy of arms above others at equal rounds, in points.

    Parameters
    ----------
    records : dict from label to records
    pairs : dict from the name of a row to (label, label of what it is compared with)
    checkpoint : {"last", "best"}
        Of every run: where both end, or its best evaluation.

    Returns
    -------
    DataFrame, a row a pair
        value, low, high and seeds.
    """
    rows = {}
    for name, (arm, baseline) in pairs.items():
        measure = accuracy(arm=arm, baseline=baseline, unit="round", checkpoint=checkpoint)
        rows[name] = measure.measured(records).columns(n="seeds")
    return pd.DataFrame.from_dict(rows, orient="index")


def saved(records: Runs, pairs: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """What a choice of rollouts saves of what a round of all of them costs, in percent.

    Parameters
    ----------
    records : dict from label to records
    pairs : dict from the name of a row to (label, label of what it is compared with)

    Returns
    -------
    DataFrame, a row a pair
        Columns (quantity, "value"), (quantity, "low") and (quantity, "high"), of "update time"
        (`times.update_time`), "selected tokens", "tokens with a gradient" and "FLOPs".
    """
    columns = {
        "selected tokens": "tokens_selected",
        "tokens with a gradient": "tokens_trained",
        "FLOPs": "flops",
    }
    rows = {}
    for row, (arm, baseline) in pairs.items():
        measured = {"update time": _change(records[arm], records[baseline], _update_time)}
        for name, column in columns.items():
            measured[name] = _change(records[arm], records[baseline], _total(column))
        for name, change in measured.items():
            ends = {"value": -change.value, "low": -change.high, "high": -change.low}
            rows.setdefault(row, {}).update({(name, end): value for end, value in ends.items()})
    return pd.DataFrame.from_dict(rows, orient="index")


def _update_time(record: Record) -> float:
    return float(update_time(record.rounds).mean())


def _total(column: str) -> Callable[[Record], float]:
    return lambda record: float(record.rounds[column].sum())


def _change(arm: Any, baseline: Any, quantity: Callable[[Record], float]) -> Measurement:
    """By how many percent a quantity of an arm lies above that of another, seed by seed."""
    return paired(
        arm,
        baseline,
        lambda run, rival: 100 * (quantity(run) / quantity(rival) - 1),
        scale="percent",
    )


def scheduler_share(record: Record) -> float:
    """Percent of a run's training time that goes to the scheduler and its buffer."""
    table = record.rounds
    spent = table["seconds_scheduler"].sum()
    if "seconds_buffer" in table:
        spent += table["seconds_buffer"].sum()
    return float(100 * spent / table["seconds"].sum())


def scheduler_shares(groups: Any) -> pd.DataFrame:
    """`scheduler_share` of the runs of several settings.

    Parameters
    ----------
    groups : dict from name to records

    Returns
    -------
    DataFrame, a row a name
        mean, low, high and largest (of a run), in percent, and seeds.
    """
    rows = {}
    for name, records in arms(groups).items():
        share = over_seeds(records, scheduler_share)
        found = share.columns(n="seeds")
        rows[name] = {"mean": found.pop("value"), "largest": share.values.max(), **found}
    return pd.DataFrame.from_dict(rows, orient="index")


# Whether the scheduler learns


def ends_by_seed(curves: Mapping[str, Mapping[int, Curve]]) -> pd.DataFrame:
    """Held-out accuracy where each run ends, in percent.

    Parameters
    ----------
    curves : dict from name to a dict from seed to Curve

    Returns
    -------
    DataFrame, a row a name
        A column for each seed, and deviation, the sample deviation over seeds.
    """
    ends = {
        name: {f"seed {seed}": 100 * curve.scores[-1] for seed, curve in of_seed.items()}
        for name, of_seed in curves.items()
    }
    table = pd.DataFrame.from_dict(ends, orient="index")
    return table.assign(deviation=table.std(axis=1, ddof=1))


def scores_by_seed(
    records: Sequence[Record],
    names: Sequence[str] = ("length", "advantage", "group_std"),
    windows: int = 5,
) -> pd.DataFrame:
    """What the scores of each run follow, early and late, beside where the run ends.

    Parameters
    ----------
    records : records of one setting, with their scores
    names : names of features
    windows : int
        Into so many stretches the rounds are cut; the first and the last one are read.

    Returns
    -------
    DataFrame, a row a seed
        Columns (feature, "first") and (feature, "last"), correlations, and ("accuracy", "end"), in
        percent.
    """
    ends = ends_by_seed(read({"it": records})).loc["it"]
    rows = {}
    for seed, record in sorted(by_seed(records).items()):
        table = score_correlations(record.rollouts(), windows)
        row = {
            (name, when): table[name].iloc[place]
            for name in names
            for when, place in (("first", 0), ("last", -1))
        }
        rows[f"seed {seed}"] = row | {("accuracy", "end"): ends[f"seed {seed}"]}
    return pd.DataFrame.from_dict(rows, orient="index")


def noise(groups: Any) -> pd.DataFrame:
    """What the scheduler learns from, and how far off it is: means over seeds.

    Parameters
    ----------
    groups : dict from name to records

    Returns
    -------
    DataFrame, a row a name
        reward (deviation over rounds of the reward of a round), entropy (deviation of its change
        from one round to the next, in nats), error (median squared error of the network).
    """
    rows = {}
    for name, records in arms(groups).items():
        tables = [record.rounds for record in records]
        rows[name] = {
            "reward": np.mean([table["scheduler_reward"].std() for table in tables]),
            "entropy": np.mean([table["entropy"].diff().std() for table in tables]),
            "error": np.mean([table["scheduler_error"].median() for table in tables]),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def first_networks(
    lab: Lab, seeds: Sequence[int], *, problems: int = 64, keep: float = 0.3, seed: int = 0
) -> pd.DataFrame:
    """What the scheduler of each run would choose before it has learnt anything.

    The lab's policy answers some problems, eight rollouts each, in rounds of 16 problems. The
    network that a run of a seed begins with takes its best of every round.

    Parameters
    ----------
    lab : Lab
    seeds : list of int
        Of the runs.
    problems : int
        At least 16.
    keep : float
        The share of a round that is chosen.
    seed : int
        Of the rollouts that all networks choose from.

    Returns
    -------
    DataFrame, a row a seed
        gradient (share of the chosen rollouts that have one, in percent), |advantage|, right (share
        of the chosen ones, in percent) and length (tokens); means over rounds. The row "all" has
        the same of all rollouts.
    """
    asked, _ = lab.problems.draw(problems, 0, seed)
    rollouts = sampled_groups(
        lab.policy(), asked, lab.verifier, 8, sampling=lab.sampling, seed=seed
    )
    size = 16 * 8
    parts = [
        rollouts.take(np.arange(i, i + size)) for i in range(0, len(rollouts) - size + 1, size)
    ]
    # Entropies count in a run; here the networks see none, which leaves nine features.
    parts = [
        part.assign(
            advantage=group_normalized(part.reward, part.problem),
            age=np.zeros(size),
            entropy=np.zeros(size),
        )
        for part in parts
    ]
    rows = {}
    for number in [*seeds, None]:
        means = []
        for part in parts:
            chosen = np.arange(size)
            if number is not None:
                # As `Scheduler` draws it in the first round of a run.
                drawn = int(Context(seed=number).rng("selector").integers(2**63))
                inputs = scaled(features(part, lab.sampling.max_new_tokens))
                scores = Learner(drawn).scores(inputs)
                chosen = np.argsort(-scores, kind="stable")[: int(keep * size)]
            advantage = np.abs(part["advantage"][chosen])
            right = 100 * part.reward[chosen].mean()
            means.append(
                [100 * (advantage > 0).mean(), advantage.mean(), right, part.lengths[chosen].mean()]
            )
        rows["all" if number is None else f"seed {number}"] = np.mean(means, axis=0)
    columns = ["gradient", "|advantage|", "right", "length"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def regret_ratios(
    policy: str, choices: Sequence[int], seeds: Sequence[int], rounds: int
) -> pd.DataFrame:
    """What K choices a round lost on bandits, over K times what a single choice lost.

    Parameters
    ----------
    policy : str
        Of `bandits.regret`.
    choices : list of int
        The numbers K, 1 among them.
    seeds : list of int
        Of the bandits.
    rounds : int

    Returns
    -------
    DataFrame, a row a number K
        mean over bandits, and half, the half-width of its interval.
    """
    lost = {
        (number, seed): regret(Bandit(seed=seed), policy, rounds, choices=number, seed=seed)[-1]
        for number in choices
        for seed in seeds
    }
    rows = {
        number: mean_interval([lost[number, seed] / (number * lost[1, seed]) for seed in seeds])
        for number in choices
    }
    return pd.DataFrame.from_dict(rows, orient="index", columns=["mean", "half"])


# What the scores follow


def correlation_spread(
    groups: Any, window: int = 1
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Do scores follow other features with each setting, or only with each seed?

    Parameters
    ----------
    groups : dict from label to records
        Settings that are said to differ, such as the objectives.
    window : int
        Into so many stretches the rounds are cut; the last one is read.

    Returns
    -------
    mean, deviation, spread : DataFrame
        mean and deviation over seeds, (labels x features), at the last stretch. spread (features):
        between (deviation of the labels' means), within (root mean square of the seeds'
        deviations), noise (what seeds alone would put between the means, within / sqrt(seeds)),
        ratio, between / noise: about 1 where nothing but the seed decides, and p_holm, the chance
        of such a ratio if the settings did not differ (F test), corrected for the number of
        features. Deviations are sample ones.

    References
    ----------
    CBS, figure 9, which has one run a setting.
    """
    whole_number("window", window, 1)
    means = {}
    deviations = {}
    counts = []
    for label, records in arms(groups).items():
        tables = [score_correlations(record.rollouts(), window) for record in records]
        # One row a seed, at the last stretch, where the scheduler has learnt longest.
        last = pd.DataFrame([table.iloc[-1] for table in tables])
        # skipna=False: a feature that did not vary in one of the seeds has no comparable mean.
        means[label] = last.mean(skipna=False)
        deviations[label] = last.std(ddof=1, skipna=False)
        counts.append(len(records))
    mean = pd.DataFrame(means).T
    deviation = pd.DataFrame(deviations).T
    # Variances can be averaged, deviations cannot; hence the roots of mean squares.
    within = np.sqrt((deviation**2).mean(skipna=False))
    # The mean of a label over its seeds varies by the variance over the number of seeds, which
    # need not be the same for all labels.
    noise = np.sqrt((deviation.pow(2).div(counts, axis=0)).mean(skipna=False))
    between = mean.std(ddof=1, skipna=False)
    ratio = between / noise
    # With equally many seeds the square of the ratio is the F statistic of an analysis of variance.
    # One setting, or one seed, leaves a degree of freedom of 0 and hence NaN.
    degrees = (len(means) - 1, sum(counts) - len(means))
    p = stats.f.sf(ratio**2, *degrees)
    spread = pd.DataFrame(
        {
            "between": between,
            "within": within,
            "noise": noise,
            "ratio": ratio,
            "p_holm": holm(p),
        }
    )
    return mean, deviation, spread


def kept_and_dropped(
    frame: pd.DataFrame,
    n: int = 5,
    columns: Sequence[str] = ("text", "reward", "length", "truncated"),
) -> pd.DataFrame:
    """The responses that a scheduler kept and dropped, side by side.

    Parameters
    ----------
    frame : DataFrame
        With the columns problem, round, age, score, selected and those of `columns`.
    n : int
        Rows.
    columns : names
        What is shown of each response.

    Returns
    -------
    DataFrame of n rows
        For a problem in a round, the kept rollout of the highest score beside the dropped one of
        the lowest, columns kept_* and dropped_*. Those whose scores lie furthest apart come first.

    References
    ----------
    CBS, figures 11 and 12.
    """
    frame = frame[frame["score"].notna()]
    frame = frame.assign(scored_in=frame["round"] + frame["age"])
    # A scheduler may look at an old rollout again in a later round, so a pair is of one problem
    # in the round of the scoring, not of the sampling.
    keys = ["scored_in", "problem"]
    wanted = [*columns, "score"]
    # Sorted once by score, the first row of a problem is its best and the last one its worst. The
    # sort is stable, so that equal scores stay in the order of the frame.
    best_first = frame.sort_values("score", ascending=False, kind="stable")
    kept = best_first[best_first["selected"]].drop_duplicates(keys)
    dropped = best_first[~best_first["selected"]].drop_duplicates(keys, keep="last")
    pairs = (
        kept.set_index(keys)[wanted]
        .add_prefix("kept_")
        # Only problems of which something was kept and something was dropped make a pair.
        .join(dropped.set_index(keys)[wanted].add_prefix("dropped_"), how="inner")
    )
    distance = pairs["kept_score"] - pairs["dropped_score"]
    furthest = distance.sort_values(ascending=False, kind="stable").index[:n]
    return pairs.loc[furthest].reset_index().rename(columns={"scored_in": "round"})


def strength(groups: Any, windows: int = 5) -> dict[tuple[str, str], dict[int, float]]:
    """How strongly the scores follow each kind of features in the last stretch of the rounds.

    Parameters
    ----------
    groups : dict from label to records
    windows : int
        Into so many stretches the rounds are cut; the last one is read.

    Returns
    -------
    dict from (label, kind) to a dict from seed to number
        Mean size of the correlations with the features of a kind of `KINDS`.
    """
    found: dict[tuple[str, str], dict[int, float]] = {}
    for label, records in arms(groups).items():
        for seed, record in by_seed(records).items():
            last = score_correlations(record.rollouts(), windows).iloc[-1]
            for kind, names in KINDS.items():
                found.setdefault((label, kind), {})[seed] = float(last[names].abs().mean())
    return found


def signals(found: Mapping[tuple[str, str], Mapping[int, float]]) -> pd.DataFrame:
    """The numbers of `strength` as means with intervals, a row a label."""
    rows: dict[str, dict[tuple[str, str], float]] = {}
    for (label, kind), values in found.items():
        measured = Measurement(np.array(list(values.values())))
        ends = {"mean": measured.value, "low": measured.low, "high": measured.high}
        rows.setdefault(label, {}).update({(kind, end): value for end, value in ends.items()})
    return pd.DataFrame.from_dict(rows, orient="index")


# What its figures claim, beyond the claims of `published_claims.py`


def verdict_table(records: Runs) -> pd.DataFrame:
    """The table of `tuned.claims_of_paper`.

    Parameters
    ----------
    records : dict from "folder/label" to records

    Returns
    -------
    DataFrame
    """
    tuned = _tuned(records)
    further = [claim for claim, _ in (*CLAIMS_OF_FIGURES, *CLAIMS_AT_ONE_RATE)]
    findings = [Finding(quantity(tuned)) for _, quantity in CLAIMS_OF_FIGURES]
    before = [Finding(quantity(records)) for _, quantity in CLAIMS_AT_ONE_RATE]
    return claims_of_paper(
        "CBS",
        records,
        further,
        [*findings, *[NO_TUNED_RUN] * len(CLAIMS_AT_ONE_RATE)],
        [*_untuned(records), *before],
    )


# The same arms in runs at one rate, with GRPO's objective. CBS* makes one step a round there.
BEFORE = {
    "full": "cbs/grpo-full",
    "round": "cbs/grpo-round",
    "buffer": "cbs/grpo-buffer",
}


def _tuned(records: Runs) -> dict[str, Sequence[Record]]:
    """The arms of the trial with GRPO's objective, by their labels."""
    return {label: records[f"regimes/cbs-grpo/{label}"] for label in ARMS}


def _untuned(records: Runs) -> list[Finding]:
    """The claims of figures at one rate, where the arms that they need are there."""
    before = {label: records[run] for label, run in BEFORE.items()}
    findings = []
    for _, quantity in CLAIMS_OF_FIGURES:
        try:
            findings.append(Finding(quantity(before)))
        except KeyError:
            findings.append(Finding(reason="no such arm at one rate"))
    return findings


def _gain(arm: str, baseline: str) -> Callable[[Runs], Measurement]:
    """Held-out accuracy of one arm above another's at equal rounds, in points."""
    return lambda runs: accuracy_gain(runs[arm], runs[baseline], "round")


def _at_best(arm: str, baseline: str) -> Callable[[Runs], Measurement]:
    """The same at the best evaluation of every run."""
    measure = accuracy(arm=arm, baseline=baseline, unit="round", checkpoint="best")

    def gain(runs: Runs) -> Measurement:
        return measure.measured({name: runs[name] for name in (arm, baseline)})

    return gain


def _late(
    arm: str, baseline: str, column: str, scale: float = 1.0
) -> Callable[[Runs], Measurement]:
    """Mean of a column over the last fifth of the rounds, minus the baseline's."""

    def late(record: Record) -> float:
        table = record.rounds
        return float(table.loc[table["round"] > 0.8 * len(table), column].mean())

    return lambda runs: paired(
        runs[arm], runs[baseline], lambda run, rival: scale * (late(run) - late(rival))
    )


def _stronger(kind: str, base: str, other: str) -> Callable[[Runs], Measurement]:
    """How much more strongly CBS's scores follow a kind of features with one objective."""

    def difference(runs: Runs) -> Measurement:
        found = strength({name: runs[f"cbs/{name}-buffer"] for name in (base, other)})
        return paired(found[base, kind], found[other, kind], lambda value, rival: value - rival)

    return difference


def _longer(runs: Runs) -> Measurement:
    """The scheduler's share with five rounds in the buffer minus that with two, in points."""
    return paired(
        runs["cbs-ablations/rounds-5"],
        runs["cbs/grpo-buffer"],
        lambda run, rival: scheduler_share(run) - scheduler_share(rival),
    )


def _claim(text: str, published: str = "", **options: Any) -> Claim:
    return Claim("CBS", text, published=published, **options)


CLAIMS_OF_FIGURES: tuple[tuple[Claim, Callable[[Runs], Measurement]], ...] = (
    (
        _claim("CBS* at each run's best checkpoint above the full set, points", "+1.8, +1.6, +0.7"),
        _at_best("round", "full"),
    ),
    (
        _claim("CBS above the full set with mixed mini-batches, points", "+1.5, +2.8, +0.6"),
        _gain("buffer", "mixed"),
    ),
    (
        _claim("learnt above random scores in a round, four steps, points", "table 5"),
        _gain("round-8", "random-8"),
    ),
    (
        _claim("training reward of CBS above CBS*'s, last fifth, points", "figure 2a"),
        _late("buffer", "round", "reward", 100),
    ),
    (
        _claim("training reward of CBS above the full set's, last fifth, points", "figure 2a"),
        _late("buffer", "full", "reward", 100),
    ),
    (
        _claim(
            "time of the scheduler with CBS*, at most 4 %",
            "0.7 to 2.0",
            direction="below",
            bound=4,
        ),
        lambda runs: over_seeds(runs["round"], scheduler_share),
    ),
)

CLAIMS_AT_ONE_RATE: tuple[tuple[Claim, Callable[[Runs], Measurement]], ...] = (
    (
        _claim("learnt above random scores in a round, one step, points", "table 5"),
        _gain("cbs/grpo-round", "cbs-ablations/random-round"),
    ),
    (
        _claim("with a moving average above without, points", "+0.7 (table 5)"),
        _gain("cbs/grpo-buffer", "cbs-ablations/no-ema"),
    ),
    (
        _claim("with the entropy term above without, points", "-0.2 (table 5)"),
        _gain("cbs/grpo-buffer", "cbs-ablations/no-entropy"),
    ),
    (
        _claim("entropy without the term above that with it, nats", "figures 4, 8"),
        _late("cbs-ablations/no-entropy", "cbs/grpo-buffer", "entropy"),
    ),
    (
        _claim("two rounds in the buffer above five, points", "figure 10"),
        _gain("cbs/grpo-buffer", "cbs-ablations/rounds-5"),
    ),
    (_claim("time for five rounds above that for two, points", "figure 10"), _longer),
    (
        _claim("|r| with use and age, GRPO above GSPO", "figure 9"),
        _stronger("use and age", "grpo", "gspo"),
    ),
    (
        _claim("|r| with reward signals, GSPO above GRPO", "figure 9"),
        _stronger("reward signals", "gspo", "grpo"),
    ),
)


# Figures


def ends_figure(table: pd.DataFrame, *, title: str) -> Axes:
    """Where each run ends, a row an arm: a dot a seed, and a line for their mean.

    Parameters
    ----------
    table : DataFrame
        Of `ends_by_seed`.
    title : str
    """
    values = table.drop(columns="deviation", errors="ignore")
    with style():
        figure = plt.figure(figsize=(WIDTH, 1.1 + 0.32 * len(values)), layout="constrained")
        ax = figure.subplots()
        styles = looks(map(str, values.index))
        for row, (name, ends) in enumerate(values.iterrows()):
            look = styles[str(name)]
            ax.plot(ends, np.full(len(ends), row), "o", color=look.colour, alpha=0.75, ms=6)
            mean = ends.mean()
            ax.plot([mean, mean], [row - 0.32, row + 0.32], color=look.colour, lw=2.2)
        ax.set_yticks(range(len(values)), [plain(str(name)) for name in values.index])
        ax.set_ylim(len(values) - 0.5, -0.5)
        ax.set_xlabel(
            "held-out accuracy after the last round, % (a dot is a seed, a line their mean)"
        )
        heading(ax, title)
    return ax


def by_objective(
    records: Runs, draw: Callable[[dict[str, Sequence[Record]], Axes], Any], label: str
) -> list[Axes]:
    """A panel for each objective, of the runs at one rate; `draw` draws its choices of rollouts.

    Parameters
    ----------
    records : dict from "folder/label" to records
    draw : function of a dict from name to records, and of axes
    label : str
        Of the y axis.
    """
    with style():
        axes = list(panels(len(OBJECTIVES), height=3.2))
        for base, ax in zip(OBJECTIVES, axes):
            draw({name: records[f"cbs/{base}-{scope}"] for scope, name in SCOPES.items()}, ax)
            ax.set(title=base.upper(), xlabel="round", ylabel="")
        # One scale for the three, so that heights can be compared; bands of the first rounds, over
        # which little is averaged, may reach beyond it.
        values = np.concatenate([line.get_ydata() for ax in axes for line in ax.lines])
        low, high = values.min(), values.max()
        for ax in axes:
            ax.set_ylim(low - 0.15 * (high - low), high + 0.15 * (high - low))
            ax.label_outer()
        axes[0].set_ylabel(label)
        handles, labels = axes[0].get_legend_handles_labels()
        names = [without_seeds(label) for label in labels]
        axes[0].figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    return axes


def update_panels(records: Runs, *, title: str, smooth: int = 20) -> list[Axes]:
    """How long updates take, by objective, in tokens that the run could have sampled meanwhile.

    Parameters
    ----------
    records : dict from "folder/label" to records
        At one rate.
    title : str
    smooth : int
        Rounds over which is averaged.
    """

    def draw(groups: Mapping[str, Sequence[Record]], ax: Axes) -> None:
        series = {}
        for name, group in groups.items():
            tables = []
            for record in group:
                tokens = pd.Series(update_time(record.rounds), index=record.rounds["round"])
                tables.append(tokens.rolling(smooth, min_periods=1).mean().to_frame("update"))
            series[name] = seed_means(tables)["update"]
        bands(series, legend=None, ax=ax)

    axes = by_objective(
        records, draw, f"the update's time, in tokens\nsampled in it, mean of {smooth} rounds"
    )
    for ax in axes:
        ax.set_ylim(bottom=0)
    heading(axes[0], title)
    return axes


def size_panels(sizes: Mapping[int, Sequence[Record]], *, title: str) -> tuple[Axes, pd.DataFrame]:
    """Accuracy, and the time for scheduler and buffer, by the rounds in the buffer.

    Parameters
    ----------
    sizes : dict from a number of rounds to records
    title : str

    Returns
    -------
    axes : Axes
        The first one.
    table : DataFrame, a row a size
    """
    scores = at_budget({str(size): group for size, group in sizes.items()}, "round")
    scores = scores.set_axis(scores.index.astype(int))
    times = {
        size: mean_interval([scheduler_share(record) for record in group])
        for size, group in sizes.items()
    }
    times = pd.DataFrame.from_dict(times, orient="index", columns=["mean", "half"])
    left, right = panels(2, height=3.4)
    xlabel = "rounds in the buffer"
    sweep({"CBS": scores}, log=False, xlabel=xlabel, ylabel="held-out accuracy", ax=left)
    sweep({"CBS": times}, log=False, xlabel=xlabel, ylabel="% of a round's seconds", ax=right)
    right.set_ylim(bottom=0)
    heading(left, title)
    both = {"held-out accuracy": scores[["n", "mean", "half"]], "% of the time": times}
    return left, pd.concat(both, axis=1).rename(columns={"n": "seeds", "half": "±"})
