"""PODS (arXiv 2504.13818): the runs that its authors released, and the runs of this lab.

`data/published/pods_released_runs.csv` has the evaluations of runs on one L40S: 10 runs a setting,
a checkpoint every half hour of training time. The models are Qwen2.5-3B-Instruct in 4 bits and a
Llama, with LoRA of rank 64, and one problem a step. `pods_released_multi_gpu.csv` has those on 8
GPUs, `pods_released_base.csv` the models before training. They come from the result files of the
repository YixuanEvenXu/pods, commit 187f43b6, Apache-2.0.

The runs share no seeds between settings, so differences have Welch's intervals; everything else is
as for runs of our own.

Of this lab there are the tuned trials `pods` (one problem a step) and `pods-batch` (32 problems a
round) of `regimes.py`, and older runs at one learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy.optimize import brentq

from papers import claims
from papers.intervals import Interval, LinearFit, Unpaired, linear_fit
from papers.measures import Released, accuracy
from papers.plots import bands, curve_panels, panels, sweep
from papers.tables import accuracy_gain, column_means, over_seeds, paired
from papers.tuned import NO_TUNED_RUN, Shelf, claims_of_paper, recorded
from papers.verdicts import Claim, Finding
from workbench.analysis import comparisons
from workbench.analysis.curves import Curve, Unit
from workbench.analysis.intervals import LEVEL, Measurement, mean_interval
from workbench.analysis.runs import arms
from workbench.labs import shipped
from workbench.plots.style import (
    INK,
    MARKERS,
    PALETTE,
    SOFT,
    framed,
    heading,
    ratio_ticks,
    seeds,
    style,
)
from workbench.records import Record
from workbench.utils.validation import brief, one_of, positive_number

__all__ = [
    "ARMS",
    "BATCHES",
    "BATCH_ARMS",
    "CLAIMS_AT_ONE_RATE",
    "CLAIMS_OF_FIGURES",
    "CLAIMS_OF_SIZES",
    "RELEASED_SIZES",
    "RULES_AT_ONE_RATE",
    "SIZES",
    "TUNED_SIZES",
    "Recorded",
    "WithGradient",
    "against",
    "at_last_and_best",
    "batches",
    "break_even_step",
    "by_step_price",
    "curves",
    "kept_figure",
    "load",
    "machine_points",
    "measured_step",
    "multi_gpu_runs",
    "nearest_to_half",
    "released_curves",
    "released_findings",
    "released_panels",
    "released_runs",
    "released_sizes",
    "rule_panels",
    "rules_at_work",
    "seconds_a_step",
    "seconds_by_setting",
    "size_panels",
    "step_prices",
    "values_at",
    "verdict_table",
    "with_measured",
]

# What the arms of the regime `pods` are called: "16 of 64" are kept of those that are sampled.
ARMS = {
    "grpo-16": "GRPO, 16 of 16",
    "pods": "PODS, 16 of 64",
    "random": "random, 16 of 64",
    "max-reward": "max-reward, 16 of 64",
}
# Those of the regime `pods-batch`.
BATCH_ARMS = {
    "grpo-8": "GRPO, 8 of 8",
    "grpo-32": "GRPO, 32 of 32",
    "pods": "PODS, 8 of 32",
    "random": "random, 8 of 32",
    "max-reward": "max-reward, 8 of 32",
}
FOLDERS = (
    "regimes/pods",
    "regimes/pods-long",
    "regimes/pods-sizes",
    "regimes/pods-batch",
    "head-to-head",
    "pods",
    "pods-small-batches",
)
# PODS and GRPO by the number of problems a step, with the rate at which both were run.
BATCHES = {
    "1 problem, tuned": ("regimes/pods/pods", "regimes/pods/grpo-16"),
    "1 problem, at 2e-4": ("pods-small-batches/one-pods", "pods-small-batches/one-grpo"),
    "4 problems, at 2e-4": ("pods-small-batches/four-pods", "pods-small-batches/four-grpo"),
    "32 problems, tuned": ("regimes/pods-batch/pods", "regimes/pods-batch/grpo-8"),
    "32 problems, at 3e-4": ("head-to-head/pods", "head-to-head/grpo"),
}
# The rules at one rate by the base model, 32 problems a round.
RULES_AT_ONE_RATE = {
    "default base": {
        "max-variance": "head-to-head/pods",
        "random": "pods/random",
        "max-reward": "pods/max-reward",
    },
    "base late": {
        "max-variance": "pods/late-max-variance",
        "random": "pods/late-random",
        "max-reward": "pods/late-max-reward",
    },
}


def _tuned(n: int, m: int) -> str:
    """The tuned runs that keep m of n rollouts, one problem a step; m of m is GRPO."""
    return "regimes/pods/grpo-16" if n == m else f"regimes/pods-sizes/pods-{n}-{m}"


# The tuned runs by n and by m, as in figure 3.
TUNED_SIZES = {
    "n sampled, m = 16 kept": {n: _tuned(n, 16) for n in (16, 32, 64, 128, 256)},
    "m kept of n = 64": {m: _tuned(64, m) for m in (2, 4, 8, 16)},
}
# The runs at one rate by n and by m, 32 problems a round.
SIZES = {
    "n sampled, m = 8 kept": {
        8: "head-to-head/grpo",
        16: "pods/n-16",
        32: "head-to-head/pods",
        64: "pods/n-64",
    },
    "m kept of n = 32": {
        2: "pods/m-2",
        4: "pods/m-4",
        8: "head-to-head/pods",
        16: "pods/m-16",
        32: "pods/grpo-32",
    },
}
# The authors' runs by n and by m.
RELEASED_SIZES = {
    "n sampled, m = 16 kept": {
        16: "GRPO 16",
        32: "max-variance 32 to 16",
        64: "max-variance 64 to 16",
        128: "max-variance 128 to 16",
        256: "max-variance 256 to 16",
    },
    "m kept of n = 64": {
        2: "max-variance 64 to 2",
        4: "max-variance 64 to 4",
        8: "max-variance 64 to 8",
        16: "max-variance 64 to 16",
    },
}
# Model and training set; the part behind the last dash names the set.
FAMILIES = ("qwen2.5-3b-gsm8k", "qwen2.5-3b-math", "llama-gsm8k")
EVALUATED = ("gsm8k", "math500", "amc23")
SCORES = {
    "answer": "answer_accuracy",
    "format": "format_accuracy",
    "both": "both",
    "length": "length",
}
AXES = ("hours", "steps")
RULES = {"max_variance": "max-variance", "max_reward": "max-reward", "random": "random"}
# Of an hour: the files of the single-GPU runs count in hours, the others in seconds.
SECONDS = 3600


def released_runs(
    family: str = "qwen2.5-3b-gsm8k", evaluated: str = "gsm8k", y: str = "answer"
) -> pd.DataFrame:
    """Every checkpoint of the released single-GPU runs of one family.

    Parameters
    ----------
    family : {"qwen2.5-3b-gsm8k", "qwen2.5-3b-math", "llama-gsm8k"}
        Model and training set.
    evaluated : {"gsm8k", "math500", "amc23"}
        The test set; Llama has GSM8K only.
    y : {"answer", "format", "both", "length"}
        Accuracy of the answer, share of responses in the right format, both at once; mean length in
        tokens.

    Returns
    -------
    DataFrame, a row a checkpoint
        setting ("GRPO 16", "max-variance 64 to 16", ...), rule, n, m, run, hours, steps, value and
        length. Before training, at 0 hours, all runs have the base model's value.
    """
    one_of("family", family, FAMILIES)
    one_of("evaluated", evaluated, EVALUATED)
    one_of("y", y, SCORES)
    frame = pd.read_csv(shipped("published/pods_released_runs.csv"))
    frame = frame[(frame["family"] == family) & (frame["evaluated"] == evaluated)]
    if frame.empty:
        raise ValueError(f"evaluated={evaluated!r}: the runs of {family} were not evaluated on it")
    table = frame[["rule", "n", "m", "run", "hours", "length"]].assign(
        steps=frame["step"], value=frame[SCORES[y]]
    )
    # The runs' files begin at the first checkpoint. The base model stands before it in every run,
    # so that all curves begin where training did.
    start = _base(family, evaluated)
    # One row a run, from whose other columns the row at 0 hours is made.
    first = table.drop_duplicates(["rule", "n", "m", "run"])
    first = first.assign(hours=0.0, steps=0, length=start["length"], value=start[SCORES[y]])
    table = pd.concat([first, table])
    return _named(table, ["n", "m", "rule", "run", "hours"])


def multi_gpu_runs(gpus: str) -> pd.DataFrame:
    """The released runs on 8 GPUs.

    Parameters
    ----------
    gpus : {"a100s", "h100s"}

    Returns
    -------
    DataFrame, a row a checkpoint
        As `released_runs`, with value the accuracy on GSM8K. Both settings sample 512 rollouts an
        update on each GPU: GRPO 32 in each of 16 parts, and PODS 128 in each of 4 parts, of which
        it trains on 32.
    """
    one_of("gpus", gpus, ("a100s", "h100s"))
    frame = pd.read_csv(shipped("published/pods_released_multi_gpu.csv"))
    frame = frame[(frame["gpus"] == gpus) & frame["accuracy"].notna()]
    table = frame[["n", "m", "length"]].assign(
        # These files do not name the rule; where fewer are trained on than sampled, it is
        # max-variance.
        rule=np.where(frame["n"] > frame["m"], "max_variance", "all"),
        run=frame["seed"],
        hours=frame["seconds"] / SECONDS,
        steps=frame["step"],
        value=frame["accuracy"],
    )
    return _named(table, ["n", "m", "run", "hours"])


def values_at(runs: pd.DataFrame, x: str, place: float) -> dict[str, np.ndarray]:
    """The value of every run at a place, by setting.

    Parameters
    ----------
    runs : DataFrame
        Of `released_runs` or `multi_gpu_runs`.
    x : {"hours", "steps"}
    place : float
        Between two checkpoints the value is linear.

    Returns
    -------
    dict from setting to (runs,) float64
        Settings of which a run ended before are left out.
    """
    one_of("x", x, AXES)
    by_setting = {}
    for setting, part in runs.groupby("setting", sort=False):
        by_run = [run.sort_values(x) for _, run in part.groupby("run")]
        # All runs or none: a mean over those that are still going would be one over other runs at
        # every place.
        if all(run[x].iloc[0] <= place <= run[x].iloc[-1] for run in by_run):
            values = [np.interp(place, run[x], run["value"]) for run in by_run]
            by_setting[str(setting)] = np.array(values)
    return by_setting


def curves(
    runs: pd.DataFrame, x: str = "hours", places: Sequence[float] | None = None
) -> dict[str, pd.DataFrame]:
    """Mean curves over runs with their intervals, by setting.

    Parameters
    ----------
    runs : DataFrame
    x : {"hours", "steps"}
    places : numbers, optional
        Where to read them. None: every half hour of hours, or 24 places of steps, up to where a
        setting's shortest run ends.

    Returns
    -------
    dict from setting to a DataFrame indexed by place
        mean, half (95 % over runs) and n.
    """
    one_of("x", x, AXES)
    by_setting = {}
    for setting, part in runs.groupby("setting", sort=False):
        # Each setting has its own places, because its runs end where they end.
        wanted = _grid(part, x) if places is None else np.asarray(places, dtype=float)
        rows = {}
        for place in wanted:
            values = values_at(part, x, float(place)).get(str(setting))
            if values is not None:
                mean, half = mean_interval(values)
                rows[float(place)] = {"mean": mean, "half": half, "n": len(values)}
        by_setting[str(setting)] = pd.DataFrame.from_dict(rows, orient="index").rename_axis(x)
    return by_setting


def against(
    runs: pd.DataFrame,
    pairs: Mapping[str, str],
    x: str,
    places: Sequence[float],
    level: float = LEVEL,
) -> pd.DataFrame:
    """Differences of two settings at equal hours or equal steps, in points.

    Parameters
    ----------
    runs : DataFrame
        Of `released_runs`.
    pairs : dict from setting to its baseline
    x : {"hours", "steps"}
    places : numbers
    level : float
        Probability of Welch's interval.

    Returns
    -------
    DataFrame, a row a setting and place
        setting, baseline, place, difference, low, high (points) and n (runs of each); NaN where a
        run ended before.
    """
    rows = []
    for place in places:
        values = values_at(runs, x, place)
        for setting, baseline in pairs.items():
            # A name that is misspelt would look like a run that ended early, so it is refused.
            _check_setting(runs, setting)
            _check_setting(runs, baseline)
            row: dict[str, Any] = {"setting": setting, "baseline": baseline, "place": place}
            if setting in values and baseline in values:
                measured = Unpaired(100 * values[setting], 100 * values[baseline], level=level)
                row |= {"difference": measured.value, "low": measured.low, "high": measured.high}
                row["n"] = measured.n
            rows.append(row)
    columns = ["setting", "baseline", "place", "difference", "low", "high", "n"]
    return pd.DataFrame(rows, columns=columns)


def seconds_by_setting(family: str = "qwen2.5-3b-gsm8k") -> pd.DataFrame:
    """Seconds a step and mean response length, by setting.

    Parameters
    ----------
    family : str
        As in `released_runs`.

    Returns
    -------
    DataFrame, a row a setting
        rule, n, m, runs, seconds (mean over runs of a run's hours over its steps), half (95 %) and
        length, tokens (mean over a run's checkpoints).
    """
    runs = released_runs(family)
    rows = {}
    for setting, part in runs.groupby("setting", sort=False):
        by_run = part.groupby("run")
        # A step's length is that of the whole run over its steps, which evens out single
        # checkpoints.
        seconds = SECONDS * by_run["hours"].max() / by_run["steps"].max()
        mean, half = mean_interval(seconds)
        first = part.iloc[0]
        rows[setting] = {
            "rule": first["rule"],
            "n": int(first["n"]),
            "m": int(first["m"]),
            "runs": len(seconds),
            "seconds": mean,
            "half": half,
            "length": float(part["length"].mean()),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def seconds_a_step(
    family: str = "qwen2.5-3b-gsm8k",
    rules: Sequence[str] | None = None,
    by: str = "rollouts",
    level: float = LEVEL,
) -> LinearFit:
    """Seconds a step as a linear function of what is sampled and trained.

    One observation is a setting, the mean of its runs: what a straight line misses is then part of
    the error, and the intervals do not shrink with runs that repeat one setting.

    Parameters
    ----------
    family : str
        As in `released_runs`.
    rules : list of {"all", "max_variance", "max_reward", "random"}, optional
        Settings with these rules only.
    by : {"rollouts", "tokens"}
        Predictors: n and m, or n and m times the setting's mean response length. Settings that
        learn longer responses (max-reward) take longer for the same n and m.
    level : float
        Probability of the intervals.

    Returns
    -------
    LinearFit
        Coefficients "constant", "sampled" and "trained": seconds a step, and for each rollout (or
        token) more. `fit.ratio("sampled", "trained")` is the price of sampling on that card.
    """
    one_of("by", by, ("rollouts", "tokens"))
    table = seconds_by_setting(family)
    if rules is not None:
        table = table[table["rule"].isin(list(rules))]
    predictors = table[["n", "m"]].to_numpy(dtype=float)
    if by == "tokens":
        # Tokens of n and of m rollouts, at the setting's own mean length.
        predictors = predictors * table[["length"]].to_numpy()
    return linear_fit(predictors, table["seconds"], ["sampled", "trained"], level)


def released_findings(claims: Sequence[Claim], level: float = LEVEL) -> list[Finding]:
    """The claims of PODS, measured on the authors' own runs.

    Parameters
    ----------
    claims : list of Claim
        Their field `released` names the runs. Sizes are scaled by the baseline's gain over the
        base model, as on our runs.
    level : float
        Probability of the intervals.

    Returns
    -------
    list of Finding, for `verdicts.judge`
    """
    results = []
    for claim in claims:
        if claim.released is None:
            results.append(Finding(reason="the released runs do not have what it needs"))
        else:
            results.append(_released(claim, claim.released, level))
    return results


def _released(claim: Claim, where: Released, level: float) -> Finding:
    several_gpus = where.family in ("a100s", "h100s")
    runs = multi_gpu_runs(where.family) if several_gpus else released_runs(where.family)
    _check_setting(runs, where.arm)
    _check_setting(runs, where.baseline)
    values = values_at(runs, where.unit, where.at)
    missing = [name for name in (where.arm, where.baseline) if name not in values]
    # Runs that ended earlier are no error in the claim; it ends in "cannot tell" with this
    # reason.
    if missing:
        reason = f"not all runs of {', '.join(missing)} reach {where.at:g} {where.unit}"
        return Finding(reason=reason)
    # In points, as the claims count.
    measured = Unpaired(100 * values[where.arm], 100 * values[where.baseline], level=level)
    gain = None
    if claim.published_gain:
        scaled_by_arm = claim.measured_by is not None and claim.measured_by.gain_of
        scaled_by = where.arm if scaled_by_arm else where.baseline
        start = _base(where.family, "gsm8k")["answer_accuracy"]
        gain = float(100 * (values[scaled_by].mean() - start))
    return Finding(measured, gain)


def _base(family: str, evaluated: str) -> pd.Series:
    """The scores of a family's model before training."""
    frame = pd.read_csv(shipped("published/pods_released_base.csv"))
    model = family.rsplit("-", 1)[0]
    return frame[(frame["model"] == model) & (frame["evaluated"] == evaluated)].iloc[0]


def _named(table: pd.DataFrame, order: list[str]) -> pd.DataFrame:
    """The table with the name of each row's setting first, in an order of its columns."""
    table = table.sort_values(order, kind="stable")
    names = [
        f"GRPO {n}" if rule == "all" else f"{RULES[rule]} {n} to {m}"
        for rule, n, m in zip(table["rule"], table["n"], table["m"])
    ]
    table.insert(0, "setting", names)
    columns = ["setting", "rule", "n", "m", "run", "hours", "steps", "value", "length"]
    return table[columns].reset_index(drop=True)


def _grid(part: pd.DataFrame, x: str) -> np.ndarray:
    """Where a setting's curve is read: its checkpoints of hours, or even steps."""
    ends = part.groupby("run")[x].max()
    if x == "hours":
        hours = np.unique(part["hours"].round(4))
        return hours[hours <= ends.min() + 1e-9]
    return np.linspace(part["steps"].min(), ends.min(), 24)


def _check_setting(runs: pd.DataFrame, setting: str) -> None:
    known = list(dict.fromkeys(runs["setting"]))
    if setting not in known:
        raise ValueError(f"setting={brief(setting)}: there are {', '.join(known)}")


def measured_step(arm: str, baseline: str, level: float = LEVEL) -> Interval:
    """What a step of one released setting takes, in steps of another, as the authors' card took.

    Parameters
    ----------
    arm, baseline : str
        Settings of `released_runs`.
    level : float
        Probability of Welch's interval, on the log scale.

    Returns
    -------
    Interval
    """
    runs = released_runs()
    logs = []
    for setting in (arm, baseline):
        _check_setting(runs, setting)
        by_run = runs[runs["setting"] == setting].groupby("run")
        logs.append(np.log((by_run["hours"].max() / by_run["steps"].max()).to_numpy(float)))
    found = Unpaired(*logs, level=level)
    return Interval(*np.exp([found.value, found.low, found.high]).tolist())


# This lab's runs


class Recorded(NamedTuple):
    """The recorded runs that the notebook reads, see `load`."""

    records: dict[str, list[Record]]
    shelf: Shelf
    batch: Shelf


def load(folder: Any) -> Recorded:
    """The recorded runs of PODS.

    Parameters
    ----------
    folder : path
        Such as data/runs.

    Returns
    -------
    records : dict from "folder/label" to records
    shelf : tuned.Shelf
        The trial of the regime `pods`.
    batch : tuned.Shelf
        That of `pods-batch`.
    """
    records = recorded(folder, FOLDERS)
    return Recorded(
        records,
        Shelf(Path(folder, "regimes/pods"), ARMS),
        Shelf(Path(folder, "regimes/pods-batch"), BATCH_ARMS),
    )


@dataclass(frozen=True)
class WithGradient:
    """A unit of spending that counts only the steps in which some rollout has a gradient."""

    name: ClassVar[str] = "steps with a gradient"

    def per_round(self, rounds: pd.DataFrame) -> np.ndarray:
        """1 for every row that trained on something, (rounds,) float64."""
        return (rounds["trained"] > 0).to_numpy(float)


def rules_at_work(groups: Any, parts: int = 1) -> pd.DataFrame:
    """What the rules leave to train on: means over steps and seeds.

    Parameters
    ----------
    groups : dict from name to records
    parts : int
        Parts of equally many steps that are shown apart.

    Returns
    -------
    DataFrame, a row an arm, or an arm and part
        without a gradient (percent of the steps), no right one (percent of the problems, among all
        rollouts sampled), trained rollouts (those with a gradient, a step) and gradient norm.
    """
    rows = {}
    for name, records in arms(groups).items():
        table = pd.concat([record.rounds for record in records])
        length = -(-int(table["round"].max()) // parts)
        for _, part in table.groupby((table["round"] - 1) // length):
            first, last = part["round"].min(), part["round"].max()
            rows[name, f"steps {first} to {last}"] = {
                "without a gradient, %": 100 * (part["trained"] == 0).mean(),
                "no right one, %": 100 * part["all_negative"].mean(),
                "trained rollouts": part["trained"].mean(),
                "gradient norm": part["gradient_norm"].mean(),
            }
    found = pd.DataFrame.from_dict(rows, orient="index")
    return found if parts > 1 else found.droplevel(1)


def by_step_price(
    curves: Mapping[str, Mapping[int, Curve]], arm: str, baseline: str, prices: Iterable[float]
) -> pd.DataFrame:
    """Held-out accuracy above a baseline at equal cost, by what a step of the arm costs.

    Where every step of an arm samples and trains on as much as the next one, a machine is one
    number, with its fixed part: the cost of a step of the arm, in steps of the baseline.

    Parameters
    ----------
    curves : dict from name to a dict from seed to Curve
    arm, baseline : str
    prices : numbers above 0
        Costs of a step of the arm; 1 is equal steps.

    Returns
    -------
    DataFrame indexed by price
        value, low, high (points) and n (seeds).
    """
    rows = {}
    for price in prices:
        rows[float(price)] = _at_step_price(curves, arm, baseline, float(price)).columns()
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("price")


def break_even_step(
    curves: Mapping[str, Mapping[int, Curve]], arm: str, baseline: str, highest: float = 4.0
) -> Interval:
    """The cost of a step of the arm at which both reach the same accuracy for the same cost.

    Parameters
    ----------
    curves, arm, baseline
        As in `by_step_price`.
    highest : float
        Where to look, from 1 on. An end of the interval that lies beyond is NaN.

    Returns
    -------
    Interval
        Its ends are the prices at which the interval of the difference begins and ends to hold 0.
    """

    def root(part: str) -> float:
        def value(price: float) -> float:
            return float(getattr(_at_step_price(curves, arm, baseline, price), part))

        # A dearer step leaves fewer of them, so that the difference falls.
        return float(brentq(value, 1, highest)) if value(1) > 0 > value(highest) else np.nan

    return Interval(root("value"), root("low"), root("high"))


def machine_points(
    curves: Mapping[str, Mapping[int, Curve]],
    arm: str,
    baseline: str,
    units: Mapping[str, str | Unit],
) -> pd.DataFrame:
    """Machines and other units as points: what a step of the arm costs, and what that leaves.

    Parameters
    ----------
    curves, arm, baseline
        As in `by_step_price`.
    units : dict from text to a unit of spending

    Returns
    -------
    DataFrame, a row a unit
        price (mean cost of a step of the arm over the baseline's), and value, low, high (points at
        equal cost) and n.
    """
    rows = {}
    for text, unit in units.items():

        def of_step(run: Curve, rival: Curve, unit: str | Unit = unit) -> float:
            spent = [curve.places(unit)[-1] / curve.rounds[-1] for curve in (run, rival)]
            return float(spent[0] / spent[1])

        price = paired(curves[arm], curves[baseline], of_step, scale="ratio").value
        gain = accuracy_gain(curves[arm], curves[baseline], unit)
        rows[text] = {"price": price, **gain.columns()}
    return pd.DataFrame.from_dict(rows, orient="index")


def with_measured(
    points: pd.DataFrame,
    name: str,
    measured: Interval,
    curves: Mapping[str, Mapping[int, Curve]],
    arm: str,
    baseline: str,
) -> pd.DataFrame:
    """Points of `machine_points` with a first one, whose price was measured with an interval.

    Parameters
    ----------
    points : DataFrame
    name : str
        Of the machine.
    measured : Interval
        Of `measured_step`.
    curves, arm, baseline
        As in `by_step_price`.

    Returns
    -------
    DataFrame
        As `points`, with price_low and price_high, which are NaN for the others.
    """
    row = by_step_price(curves, arm, baseline, [measured.estimate]).reset_index()
    row = row.assign(price_low=measured.low, price_high=measured.high).set_index([[name]])
    return pd.concat([row, points])


def at_last_and_best(shelf: Shelf, pairs: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """PODS above other arms at the end of the budget, and at each run's best evaluation up to it.

    Parameters
    ----------
    shelf : tuned.Shelf
    pairs : dict from text to (label of the baseline, unit of `measures.accuracy`)

    Returns
    -------
    DataFrame, a row a pair
        Columns (last or best, value, low or high), in points.
    """
    tables = {}
    for checkpoint in ("last", "best"):
        rows = {}
        for text, (baseline, unit) in pairs.items():
            measure = accuracy(arm="pods", baseline=baseline, unit=unit, checkpoint=checkpoint)
            rows[text] = measure.measured(shelf.records).columns()
        tables[checkpoint] = pd.DataFrame.from_dict(rows, orient="index").drop(columns="n")
    return pd.concat(tables, axis=1)


def nearest_to_half(right: Any, n: int, m: int) -> np.ndarray:
    """How many right ones theorem 2 keeps of groups with so many right ones of n.

    Parameters
    ----------
    right : numbers
    n, m : int
        Rollouts sampled and kept; m is even.

    Examples
    --------
    >>> nearest_to_half([0, 1, 5, 31, 32], n=32, m=8)
    array([0, 1, 4, 7, 8])
    """
    right = np.asarray(right)
    return np.minimum(right, np.maximum(m // 2, m - (n - right)))


def batches(
    records: Mapping[str, Sequence[Record]], units: Mapping[str, str | Unit]
) -> dict[str, pd.DataFrame]:
    """PODS above GRPO by the number of problems a step, as `plots.gains` draws it.

    Parameters
    ----------
    records : dict from "folder/label" to records
    units : dict from text to a unit of spending
    """
    tables = {}
    for text, unit in units.items():
        rows = {
            name: accuracy_gain(records[arm], records[baseline], unit).columns()
            for name, (arm, baseline) in BATCHES.items()
        }
        tables[text] = pd.DataFrame.from_dict(rows, orient="index")
    return tables


def _at_step_price(
    curves: Mapping[str, Mapping[int, Curve]], arm: str, baseline: str, price: float
) -> Measurement:
    positive_number("price", price)
    of_arm, of_baseline = curves[arm], curves[baseline]
    last = min(int(curve.rounds[-1]) for curve in of_arm.values())
    last_of_baseline = min(int(curve.rounds[-1]) for curve in of_baseline.values())
    # In steps of the baseline, as far as the runs of both go.
    budget = min(last * price, last_of_baseline)

    def gain(run: Curve, rival: Curve) -> float:
        return 100 * (run.score_at("round", budget / price) - rival.score_at("round", budget))

    return paired(of_arm, of_baseline, gain)


# What its figures claim, beyond the claims of `published_claims.py`


def verdict_table(records: Mapping[str, Sequence[Record]], shelf: Shelf) -> pd.DataFrame:
    """The table of `tuned.claims_of_paper`.

    Parameters
    ----------
    records : dict from "folder/label" to records
    shelf : tuned.Shelf
        The trial of the regime `pods`.

    Returns
    -------
    DataFrame
    """
    before = {label: records[run] for label, run in BEFORE.items()}
    of_figures = [claim for claim, _ in CLAIMS_OF_FIGURES]
    tuned = [Finding(quantity(shelf.records)) for _, quantity in CLAIMS_OF_FIGURES]
    untuned = [Finding(quantity(before)) for _, quantity in CLAIMS_OF_FIGURES]
    of_sizes = [claim for claim, _ in CLAIMS_OF_SIZES]
    older = [older for _, older in CLAIMS_OF_SIZES]
    return claims_of_paper(
        "PODS",
        records,
        [*of_figures, *of_sizes, *CLAIMS_AT_ONE_RATE],
        [
            *tuned,
            *claims.findings(of_sizes, records),
            *[NO_TUNED_RUN] * len(CLAIMS_AT_ONE_RATE),
        ],
        [
            *untuned,
            *claims.findings(older, records),
            *claims.findings(CLAIMS_AT_ONE_RATE, records),
        ],
    )


# The arms of the regime as there were at one rate: 32 problems a round, and 8 kept of 32.
BEFORE = {"grpo-16": "head-to-head/grpo", "pods": "head-to-head/pods"}


def _at_best(runs: Mapping[str, Sequence[Record]]) -> Measurement:
    measure = accuracy(arm="pods", baseline="grpo-16", unit="l40s", checkpoint="best")
    return measure.measured(runs)


def _longer(runs: Mapping[str, Sequence[Record]]) -> Measurement:
    def growth(record: Record) -> float:
        """By how many percent responses got longer, from the first to the last of six parts."""
        lengths = record.rounds["length"]
        part = len(lengths) // 6
        return 100 * (lengths.tail(part).mean() / lengths.head(part).mean() - 1)

    return over_seeds(runs["pods"], growth)


Pair = tuple[str, str]  # an arm and its baseline, as "folder/label"


def _claim(text: str, published: str = "", **options: Any) -> Claim:
    return Claim("PODS", text, published=published, **options)


CLAIMS_OF_FIGURES: tuple[
    tuple[Claim, Callable[[Mapping[str, Sequence[Record]]], Measurement]], ...
] = (
    (
        _claim("above GRPO at each run's best evaluation, equal cost on an L40S, points", "higher"),
        _at_best,
    ),
    (
        _claim(
            "completions of PODS grow by less than 10 %, last sixth of a run after the first",
            "about the same",
            direction="below",
            bound=10,
        ),
        _longer,
    ),
)


def _of_sizes(
    text: str, published: str, tuned: Pair, older: Pair, unit: str = "l40s", **options: Any
) -> tuple[Claim, Claim]:
    """A claim on sizes, measured on tuned runs, and at one rate on other sizes of that kind."""
    measures = [accuracy(arm=arm, baseline=rival, unit=unit) for arm, rival in (tuned, older)]
    first, second = (_claim(text, published, measured_by=each, **options) for each in measures)
    return first, second


# Each claim on n and m between tuned runs with one problem a step, and the same claim at one rate
# with 32 problems a round, where m is 8 of n = 32.
CLAIMS_OF_SIZES: tuple[tuple[Claim, Claim], ...] = (
    _of_sizes(
        "n = 4m above n = m, equal cost on an L40S, points",
        "a peak at 4m",
        (_tuned(64, 16), _tuned(16, 16)),
        ("head-to-head/pods", "head-to-head/grpo"),
    ),
    _of_sizes(
        "n = 4m above n = 8m, equal cost on an L40S, points",
        "a peak at 4m",
        (_tuned(64, 16), _tuned(128, 16)),
        ("head-to-head/pods", "pods/n-64"),
    ),
    _of_sizes(
        "m = n/8 at most 2 points below m = n/4, equal cost on an L40S, points",
        "robust",
        (_tuned(64, 8), _tuned(64, 16)),
        ("pods/m-4", "head-to-head/pods"),
        direction="matches",
        margin=2,
    ),
    _of_sizes(
        "m = 2 below m = n/4, equal cost on an L40S, points",
        "lower",
        (_tuned(64, 2), _tuned(64, 16)),
        ("pods/m-2", "head-to-head/pods"),
        direction="below",
    ),
    _of_sizes(
        "m = 2 below m = n/4, equal rounds, points",
        "lower",
        (_tuned(64, 2), _tuned(64, 16)),
        ("pods/m-2", "head-to-head/pods"),
        unit="round",
        direction="below",
    ),
)
# What no tuned trial has: runs at one rate, 32 problems a round.
CLAIMS_AT_ONE_RATE: tuple[Claim, ...] = (
    _claim(
        "max-variance above max-reward from the base late, equal rounds, points",
        "+15.3",
        measured_by=accuracy(
            arm="pods/late-max-variance", baseline="pods/late-max-reward", unit="round"
        ),
    ),
)


# Figures


def released_panels(
    runs: Mapping[str, tuple[pd.DataFrame, str]], *, title: str, ylabel: str, height: float = 3.8
) -> list[Axes]:
    """Mean curves of released runs side by side, with intervals over runs.

    Parameters
    ----------
    runs : dict from the title of a panel to (runs of `released_runs`, "hours" or "steps")
        Panels with the same settings have one legend; others have one below each of them.
    title, ylabel : str
    height : float
        In inches.

    Returns
    -------
    list of Axes
    """
    same = len({tuple(table["setting"].unique()) for table, _ in runs.values()}) == 1
    with style():
        axes = panels(len(runs), height=height)
        for ax, (text, (table, x)) in zip(axes, runs.items()):
            bands(curves(table, x), xlabel=f"training {x}", legend=None, ax=ax)
            ax.set_title(text)
            _count_runs(ax)
            if not same:
                ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
        axes[0].set_ylabel(ylabel)
        heading(axes[0], title, legend=2 if same else 0)
    return axes


def released_sizes(hours: float, *, title: str) -> list[Axes]:
    """The authors' accuracy by n and by m, at equal hours and at equal steps, as in figure 3.

    Parameters
    ----------
    hours : float
        After which all settings are read; and after as many steps as the shortest run has.
    title : str
    """
    everything = released_runs()
    series = {}
    for xlabel, sizes in RELEASED_SIZES.items():
        part = everything[everything["setting"].isin(list(sizes.values()))]
        fewest = int(part.groupby(["setting", "run"])["steps"].max().min())
        tables = {}
        for x, place in (("hours", hours), ("steps", fewest)):
            values = values_at(part, x, place)
            rows = {size: mean_interval(values[setting]) for size, setting in sizes.items()}
            tables[f"after {place:g} {x}"] = pd.DataFrame.from_dict(
                rows, orient="index", columns=["mean", "half"]
            )
        series[xlabel] = tables
    with style():
        axes = panels(len(series), height=3.8)
        for ax, (xlabel, tables) in zip(axes, series.items()):
            sweep(tables, xlabel=xlabel, legend=None, ax=ax)
            ax.set_ylim(0.79, 0.84)
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
        axes[0].set_ylabel("test accuracy on GSM8K (10 runs)")
        heading(axes[0], title)
    return axes


def released_curves(*, title: str) -> list[Axes]:
    """The authors' runs of every n and every m against time, from light to dark, as in figure 3."""
    everything = released_runs()
    with style():
        axes = panels(len(RELEASED_SIZES), height=3.8)
        for ax, (text, sizes) in zip(axes, RELEASED_SIZES.items()):
            part = everything[everything["setting"].isin(list(sizes.values()))]
            found = curves(part, "hours")
            shades = plt.get_cmap("viridis")(np.linspace(0.3, 0.9, len(sizes)))
            for shade, (size, setting) in zip(shades, sizes.items()):
                mean = found[setting]["mean"]
                ax.plot(mean.index, mean, color=shade, label=f"{size}")
            ax.set(title=text, xlabel="training hours", ylim=(0.76, 0.84))
            # The curves leave the lower right free.
            ax.legend(loc="lower right", ncols=2)
        axes[0].set_ylabel("test accuracy on GSM8K (10 runs)")
        heading(axes[0], title)
    return axes


def step_prices(
    curves: Mapping[str, Mapping[int, Curve]],
    arm: str,
    baseline: str,
    points: pd.DataFrame,
    *,
    title: str,
) -> Axes:
    """Accuracy above the baseline at equal cost, by what a step costs, with machines as points.

    Parameters
    ----------
    curves, arm, baseline
        As in `by_step_price`.
    points : DataFrame
        Of `machine_points`. With price_low and price_high a point has a horizontal interval.
    title : str
    """
    highest = max(4.0, float(points["price"].max()))
    line = by_step_price(curves, arm, baseline, np.geomspace(1, highest, 49))
    with framed(
        title=f"{title} ({seeds(line['n'].unique())})",
        xlabel="cost of a step of PODS, in steps of GRPO",
        ylabel="accuracy above GRPO's at equal cost, points",
        legend=None,
        height=4,
    ) as ax:
        ax.axhline(0, color=SOFT, lw=1)
        ax.plot(line.index, line["value"], color=INK, lw=1.5)
        ax.fill_between(line.index, line["low"], line["high"], color=INK, alpha=0.12, lw=0)
        for number, (name, row) in enumerate(points.iterrows()):
            ends = [[row["price"] - row.get("price_low", np.nan)]]
            ends.append([row.get("price_high", np.nan) - row["price"]])
            ax.errorbar(
                row["price"],
                row["value"],
                xerr=None if np.isnan(ends).any() else ends,
                yerr=[[row["value"] - row["low"]], [row["high"] - row["value"]]],
                fmt=MARKERS[number % len(MARKERS)],
                color=PALETTE[number % len(PALETTE)],
                capsize=3,
                label=f"{name}: {row['price']:.2f}",
            )
        ax.set(xscale="log", xlim=(0.94, 1.06 * highest))
        ratio_ticks(ax.xaxis, 1, highest, most=6)
        ax.legend(loc="upper right")
    return ax


def rule_panels(groups: Any, *, title: str, smooth: int) -> list[Axes]:
    """Held-out accuracy and the share of kept rollouts with a gradient, a line a rule.

    Parameters
    ----------
    groups : dict from name to records
    title : str
    smooth : int
        Rounds of the moving mean of the shares.
    """
    options = {"records": groups, "until": "common"}
    axes = curve_panels(
        {
            "held-out accuracy": options,
            "kept rollouts with a gradient": {
                **options,
                "y": "effective_gradient_ratio",
                "smooth": smooth,
            },
        },
        title=title,
        columns=2,
    )
    axes[1].set(ylabel=f"share, mean of {smooth} rounds", ylim=(0, 1))
    return axes


def size_panels(
    records: Mapping[str, Sequence[Record]],
    units: Mapping[str, str | Unit],
    sizes: Mapping[str, Mapping[int, str]],
    *,
    title: str,
) -> tuple[list[Axes], pd.DataFrame]:
    """Accuracy by n and by m, with a table of what is drawn.

    Parameters
    ----------
    records : dict from "folder/label" to records
    units : dict from text to what is held equal
    sizes : dict from text to size to "folder/label"
        `TUNED_SIZES`, or `SIZES` for the runs at one rate.
    title : str

    Returns
    -------
    axes : list of Axes
    table : DataFrame, a row a size
        Accuracy for each unit; the share of kept rollouts with a gradient, their gradient's norm
        and the tokens of a response, each a mean over the rounds that all of these runs have.
    """
    columns = ["effective_gradient_ratio", "gradient_norm", "length"]
    found, series = {}, {}
    for xlabel, labels in sizes.items():
        runs = {size: records[label] for size, label in labels.items()}
        tables = {text: comparisons.at_budget(runs, unit) for text, unit in units.items()}
        rounds = min(len(record.rounds) for group in runs.values() for record in group)
        means = column_means(runs, columns, rounds=(1, rounds)).xs("mean", axis=1, level=1)
        # Sizes are labels of arms there, and numbers here.
        for table in (means, *tables.values()):
            table.index = table.index.astype(int)
        found[xlabel] = pd.DataFrame({text: table["mean"] for text, table in tables.items()})
        found[xlabel] = found[xlabel].join(means)
        counts = seeds([len(group) for group in runs.values()])
        series[f"{xlabel} ({counts})"] = tables
    with style():
        axes = panels(len(series), height=3.6)
        for ax, (xlabel, tables) in zip(axes, series.items()):
            sweep(tables, xlabel=xlabel, ylabel="", legend=None, ax=ax)
        ends = [ax.get_ylim() for ax in axes]
        for ax in axes:
            ax.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
        axes[0].set_ylabel("held-out accuracy")
        heading(axes[0], title, legend=len(units))
    return axes, pd.concat(found)


def kept_figure(groups: pd.DataFrame, n: int, m: int) -> Axes:
    """Right rollouts among those kept by right rollouts among those sampled, and theorem 2.

    Parameters
    ----------
    groups : DataFrame, a row a problem and round
        right (of n) and kept (right ones among the m kept).
    n, m : int
    """
    with framed(
        title=f"{len(groups)} groups keep what theorem 2 says (larger dots: more groups)",
        xlabel=f"right ones of {n} rollouts sampled",
        ylabel=f"right ones of {m} kept",
        legend=None,
    ) as ax:
        counts = np.arange(n + 1)
        ax.plot(counts, nearest_to_half(counts, n, m), color=SOFT, label="theorem 2")
        for (right, kept), number in groups[["right", "kept"]].value_counts().items():
            ax.plot(right, kept, "o", ms=3 + 1.5 * np.sqrt(number), color=PALETTE[0], alpha=0.6)
        ax.legend(loc="upper left")
    return ax


def _count_runs(ax: Axes) -> None:
    """Say "10 runs" where `bands` says seeds, since the authors' settings share none."""
    for line in ax.lines:
        line.set_label(str(line.get_label()).replace(" seeds)", " runs)"))
