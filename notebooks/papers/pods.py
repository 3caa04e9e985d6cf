"""The 160 GPU runs that the authors of PODS released, under the statistics of our own runs.

`data/published/pods_released_runs.csv` has the evaluations of runs on one L40S: 10 runs a setting,
a checkpoint every half hour of training time. The models are Qwen2.5-3B-Instruct in 4 bits and a
Llama, with LoRA of rank 64, and one problem a step. `pods_released_multi_gpu.csv` has those on 8
GPUs, `pods_released_base.csv` the models before training. They come from the result files of the
repository YixuanEvenXu/pods, commit 187f43b6, Apache-2.0 (arXiv 2504.13818).

The runs share no seeds between settings, so differences have Welch's intervals; everything else is
as for runs of our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from papers.intervals import LinearFit, Unpaired, linear_fit
from papers.measures import Released
from papers.verdicts import Claim, Finding
from workbench.analysis.intervals import LEVEL, mean_interval
from workbench.labs import shipped
from workbench.utils.validation import one_of, shown

__all__ = [
    "against",
    "curves",
    "multi_gpu_runs",
    "released_findings",
    "released_runs",
    "seconds_a_step",
    "seconds_by_setting",
    "values_at",
]

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
        As `released_runs`, with value the accuracy on GSM8K. Both settings train on 512 rollouts an
        update: GRPO on all of 32 in 16 parts, PODS on 32 of 128 in 4 parts.
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
        raise ValueError(f"setting={shown(setting)}: there are {', '.join(known)}")
