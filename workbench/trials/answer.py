"""From records to the answer: does an arm need less than the baseline?

An answer is read from finished runs alone, so it can be asked for again at any time, of any
records. `answers` looks at all arms of a trial together. What makes an answer known
is `workbench.analysis.sequential`, and how a run that did not reach the target counts is
`workbench.analysis.targets`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from workbench.analysis import cost
from workbench.analysis.curves import UNITS, Curve, Unit, name_of, read
from workbench.analysis.forecast import AHEAD, Forecast, of_curves
from workbench.analysis.intervals import Measurement, resolved_ratio
from workbench.analysis.sequential import (
    ALPHA,
    BAND,
    LOOKS,
    look_at,
    nominal_levels,
    readings,
)
from workbench.analysis.targets import crossings, ratio_to_target
from workbench.records import Record
from workbench.trials.further import Step, steps
from workbench.utils.numbers import ratio_text

NO_PAIR = Measurement(np.array([np.nan]))
NO_FORECAST = Forecast(np.nan, why="it has no run yet, or spends nothing")


@dataclass(frozen=True)
class Answer:
    """What is known of one arm against the baseline.

    Attributes
    ----------
    arm : str
        Its label.
    verdict : str
        "better", "worse", "alike" or "open", see `sequential.verdict`.
    ratio, low, high : float
        The arm's cost to the target over the baseline's, with the interval at the level of this
        look. Below 1 the arm needs less. NaN without a pair of seeds; an end is 0 or infinite where
        a run did not reach the target.
    seeds : int
        Pairs of seeds that count.
    reached, baseline_reached : int
        How many of these runs reached the target.
    learning_rate, baseline_learning_rate : float or None
        Of the runs; None where they took that of the lab.
    measure : str
        What is counted.
    target : float
        Held-out accuracy.
    difference, difference_low, difference_high : float
        Held-out accuracy minus the baseline's, in percentage points, when both runs of a pair had
        spent as much as the one that ended first.
    resolves : float
        The change in percent that so many seeds find four times out of five, at the level that
        Holm's method leaves for the arms that are still open. NaN before the first look, and where
        runs did not reach the target.
    p, p_holm : float
        The overall level at which this look would just decide, alone and after Holm's correction.
    known : bool
        Whether no further seeds are needed.
    tuning_error : float
        By how much, as a share, the ratio may be off because tuning finds the best rates only
        roughly. The interval is so much wider on both sides.
    break_even : BreakEven or None
        The price of sampling at which both cost the same; None where a run did not reach the
        target.
    baseline : str
        Its label.
    arms : int
        How many arms were corrected for.
    ratios : Measurement
        The ratio of every pair.
    early : bool
        Whether a difference was found before the last look.
    ahead : float
        Rounds of the baseline that forecasts are for.
    forecast, baseline_forecast : Forecast
        Accuracy of either when it has spent as much as the baseline will have in these rounds, and
        its ceiling.
    steps : tuple of Step
        What would decide it where it ended open, see `workbench.trials.further`.
    """

    arm: str
    verdict: str
    ratio: float
    low: float
    high: float
    seeds: int
    reached: int
    baseline_reached: int
    learning_rate: float | None
    baseline_learning_rate: float | None
    measure: str
    target: float
    difference: float
    difference_low: float
    difference_high: float
    resolves: float
    p: float
    p_holm: float
    known: bool
    break_even: cost.BreakEven | None
    baseline: str
    arms: int
    tuning_error: float = 0.0
    ratios: Measurement = NO_PAIR
    early: bool = False
    ahead: float = np.nan
    forecast: Forecast | None = None
    baseline_forecast: Forecast | None = None
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return sentence(self)


# The attributes that the table shows, in this order.
COLUMNS = [field.name for field in fields(Answer)]
COLUMNS = COLUMNS[: COLUMNS.index("baseline")]
FORECAST_COLUMNS = ["forecast", "forecast_low", "forecast_high"]
FORECAST_COLUMNS += ["ceiling", "ceiling_low", "ceiling_high"]


def answers(
    arms: Mapping[str, Mapping[int, Record]],
    baseline_records: Mapping[int, Record],
    *,
    target: float,
    measure: str | Unit = "rollouts",
    baseline: str = "baseline",
    looks: Iterable[int] = LOOKS,
    level: float = ALPHA,
    ahead: float | None = None,
    errors: Mapping[str, float] | None = None,
    left_out: int = 0,
) -> dict[str, Answer]:
    """What finished runs say of all arms of a trial.

    Parameters
    ----------
    arms : dict from label to a dict from seed to Record
        Finished runs. Seeds that the baseline has too are compared, in their order. An arm that was
        decided at an earlier look may have fewer.
    baseline_records : dict from seed to Record
    target : float
        Held-out accuracy.
    measure : str or Unit
        What is counted to the target: "rollouts", "tokens_sampled", "flops", "round", or a cost
        model such as `cost.MACHINES["l40s"]`.
    baseline : str
        How it is called.
    looks : rising whole numbers
        After how many pairs the trial looks, as it was planned. The last one ends it.
    level : float
        Probability that at least one arm is called better or worse although it is not.
    ahead : float, optional
        Rounds of the baseline; forecasts are for what it will have spent by then. None for twice
        its rounds.
    errors : dict from label to float, optional
        How far, on the log scale, the ratio of an arm may be off by tuning.
    left_out : int
        Arms that are not given and count in the correction, see `sequential.readings`.

    Returns
    -------
    dict from label to Answer

    Raises
    ------
    ValueError
        For records of different labs, and a target that a run begins above.
    """
    groups = {baseline: baseline_records, **arms}
    # One read of all arms, so that they share a grid of evaluations.
    curves = read({label: list(runs.values()) for label, runs in groups.items() if runs})
    looks = tuple(looks)
    others_of = curves.get(baseline, {})
    pairs = {label: _pairs(curves.get(label, {}), others_of, looks) for label in arms}
    crossed = {
        label: [crossings(of_arm, target, measure) for of_arm in both]
        for label, both in pairs.items()
    }
    ratios = {
        label: ratio_to_target(mine.values(), others.values()) if mine else NO_PAIR
        for label, (mine, others) in crossed.items()
    }
    read_off = readings(ratios, looks, level=level, errors=errors, left_out=left_out)
    tested = left_out + sum(bool(np.isfinite(reading.p)) for reading in read_off.values())
    # By Holm's method an arm is decided where its p times the arms still open is at most `level`.
    decided = sum(reading.verdict in ("better", "worse") for reading in read_off.values())
    corrected = nominal_levels(looks, level / max(tested - decided, 1))
    level_at = dict(zip(looks, corrected.tolist()))
    ahead, forecasts = _forecasts(curves, baseline, ahead, measure)
    found = {}
    for label, runs in arms.items():
        mine, others = pairs[label]
        n = len(mine)
        reached, baseline_reached = (
            sum(place.reached for place in of_arm.values()) for of_arm in crossed[label]
        )
        all_reached = 0 < n == reached == baseline_reached
        reading = read_off[label]
        ended_open = reading.verdict == "open" and reading.known
        compared = [*mine.values(), *others.values()]
        error = (errors or {}).get(label, 0.0)
        gain = _gain(mine, others, measure)
        found[label] = Answer(
            arm=label,
            verdict=reading.verdict,
            ratio=reading.measured.value,
            low=reading.low,
            high=reading.high,
            seeds=n,
            reached=reached,
            baseline_reached=baseline_reached,
            learning_rate=_rate(runs),
            baseline_learning_rate=_rate(baseline_records),
            measure=name_of(measure),
            target=float(target),
            difference=gain.value,
            difference_low=gain.low,
            difference_high=gain.high,
            resolves=_resolved(reading.measured, level_at.get(n), error) if all_reached else np.nan,
            p=reading.p,
            p_holm=reading.p_holm,
            known=reading.known,
            tuning_error=float(np.expm1(error)),
            break_even=_price(pairs[label], target) if all_reached else None,
            baseline=baseline,
            arms=tested,
            ratios=reading.measured,
            early=reading.verdict in ("better", "worse") and n < looks[-1],
            ahead=ahead,
            forecast=forecasts.get(label, NO_FORECAST),
            baseline_forecast=forecasts.get(baseline, NO_FORECAST),
            steps=steps(reading.measured, compared, target, level, error) if ended_open else (),
        )
    return found


def table(found: Mapping[str, Answer]) -> pd.DataFrame:
    """The answers as a table.

    Parameters
    ----------
    found : dict from label to Answer
        As `answers` gives it.

    Returns
    -------
    DataFrame, a row an arm
        The attributes of `Answer` from `arm` to `known`; `break_even`, the price; `tuning_error`;
        `ahead`, and of the arm and the baseline what is forecast: `forecast`, `forecast_low`,
        `forecast_high`, `ceiling`, `ceiling_low`, `ceiling_high`, and the same behind `baseline_`;
        and `sentence`.
    """
    rows = []
    for answer in found.values():
        price = answer.break_even.estimate if answer.break_even else np.nan
        row = {**vars(answer), "break_even": price, "sentence": str(answer)}
        for of, made in (("", answer.forecast), ("baseline_", answer.baseline_forecast)):
            row |= zip([of + name for name in FORECAST_COLUMNS], (made or NO_FORECAST)[1:7])
        rows.append(row)
    more = [of + name for of in ("", "baseline_") for name in FORECAST_COLUMNS]
    return pd.DataFrame(rows, columns=[*COLUMNS, "tuning_error", "ahead", *more, "sentence"])


def sentence(answer: Answer) -> str:
    """What was found of one arm, in words.

    Parameters
    ----------
    answer : Answer

    Returns
    -------
    str
        Such as "mine needs .81 [.74, .89] of grpo's rollouts to reach 60 % (9 seeds, both tuned:
        0.0009 and 0.0013): better; with the rollouts of 120 rounds of grpo it would stand at 88 %
        [84, 91], grpo at 91 % [88, 93]; a change of 6 % would have been seen (in four trials of
        five)."
    """
    arm, baseline, n = answer.arm, answer.baseline, answer.seeds
    goal = f"{100 * answer.target:.3g} %"
    seeds = "1 seed" if n == 1 else f"{n} seeds"
    reached = answer.reached, answer.baseline_reached
    if n == 0:
        return f"{arm}: no run has the same seed as one of {baseline} yet."
    if not any(reached):
        return (
            f"Neither {arm} nor {baseline} reached {goal} with any of {seeds}; choose a lower "
            "target or longer runs."
        )
    needs = needs_text((answer.ratio, answer.low, answer.high), reached, (n, n))
    what = UNITS.get(answer.measure, answer.measure)
    notes = [seeds]
    rates = [answer.learning_rate, answer.baseline_learning_rate]
    if None not in rates:
        texts = dict.fromkeys(f"{rate:.3g}" for rate in rates)
        within = f", within {100 * answer.tuning_error:.0f} % of the best" * (
            answer.tuning_error >= 0.005
        )
        notes.append(f"both tuned: {' and '.join(texts)}{within}")
    came = f"{reached[0]} of {n} runs reached {{}}, of {baseline} {reached[1]}"
    # An arm that is cheaper where it arrives and fails more often is not simply better.
    fails_more, fails_less = reached[0] < reached[1], reached[0] > reached[1]
    is_mixed = (fails_more and answer.ratio < 1) or (fails_less and answer.ratio > 1)
    if min(reached) == 0 and max(reached) < n:
        # The ratio would be one of budgets, and not even a bound.
        text = f"{arm}: {came.format(goal)}"
    elif is_mixed:
        text = f"{arm} fails {'more' if fails_more else 'less'} often ({came.format(goal)}) and "
        text += f"{needs} of {baseline}'s {what} to get there"
    else:
        text = f"{arm} {needs} of {baseline}'s {what} to reach {goal}"
        notes += [came.format("it")] * (min(reached) < n)
    text += f" ({', '.join(notes)}): "
    if answer.verdict == "open" and not answer.known:
        text += "not known yet"
    else:
        text += verdict_text(answer.verdict, answer.low, answer.high)
    if answer.verdict in ("better", "worse"):
        text += " where it arrives" * is_mixed
        # A trial stops when a difference looks large, so chance has mostly enlarged it.
        text += ", by a ratio that is likely nearer to 1" if answer.early else ""
    text = "; ".join([text, *_ahead(answer), *_remarks(answer)]) + "."
    if answer.steps:
        # Another trial: to look on after the last look would not be the one that was planned.
        text += " What may decide it: " + ", or ".join(step.text for step in answer.steps) + "."
    return text


def needs_text(
    ratio: tuple[float, float, float], reached: tuple[int, int], runs: tuple[int, int]
) -> str:
    """What an arm needs of the baseline's costs.

    Parameters
    ----------
    ratio : value, low and high
    reached, runs : two int each
        How many runs of the arm and of the baseline reached the target, and of how many.

    Examples
    --------
    >>> needs_text((0.82, 0.75, np.inf), (3, 4), (4, 4))
    'needs at least .82 [.75, open]'
    """
    value, low, high = ratio
    needs = "needs"
    # One pair has no interval: its ends are NaN, and its ratio may be a bound all the same.
    if reached[0] < runs[0] and reached[1] == runs[1] and not high < np.inf:
        needs = "needs at least"
    if reached[1] < runs[1] and reached[0] == runs[0] and not low > 0:
        needs = "needs at most"
    # Ratios without the zero before the point, which is the same in nearly all of them.
    text = re.sub(r"\b0\.", ".", ratio_text(value, low, high))
    return f"{needs} {text.removesuffix(' [open, open]')}"


def verdict_text(verdict: str, low: float, high: float) -> str:
    """A verdict that is final, on a ratio with such an interval, in words."""
    if verdict == "alike":
        return f"alike, within {100 * BAND:.3g} %"
    if verdict == "open" and np.isnan([low, high]).all():
        return "without any spread over runs no error is known"
    if verdict == "open":
        # An interval without an end says that too few runs reached it, not that arms are alike.
        has_ends = low > 0 and high < np.inf
        return "no difference found" if has_ends else "too few runs reached it to decide"
    return verdict


def _forecasts(
    curves: Mapping[str, Mapping[int, Curve]],
    baseline: str,
    ahead: float | None,
    measure: str | Unit,
) -> tuple[float, dict[str, Forecast]]:
    """Rounds of the baseline, and for every label what is forecast for their cost."""
    ends = [(c.rounds[-1], c.places(measure)[-1]) for c in curves.get(baseline, {}).values()]
    rounds, spent = np.mean(ends, axis=0) if ends else (np.nan, np.nan)
    ahead = float(ahead or AHEAD * rounds)
    budget = float(ahead / rounds * spent)
    if not budget > 0:
        return ahead, {}
    return ahead, {label: of_curves(group, budget, measure) for label, group in curves.items()}


def _pairs(
    mine: Mapping[int, Curve], others: Mapping[int, Curve], looks: tuple[int, ...]
) -> tuple[dict[int, Curve], dict[int, Curve]]:
    """The curves of the seeds that both have, as far as the last look that is past."""
    seeds = sorted(mine.keys() & others.keys())
    seeds = seeds[: look_at(len(seeds), looks)]
    return {seed: mine[seed] for seed in seeds}, {seed: others[seed] for seed in seeds}


def _price(pairs: Iterable[Mapping[int, Curve]], target: float) -> cost.BreakEven:
    """The price of sampling at which both arms of these pairs cost the same."""
    mine, others = ([cost.tokens_of(c, target) for c in of.values()] for of in pairs)
    return cost.break_even(mine, others)


def _resolved(ratios: Measurement, level: float | None, error: float) -> float:
    """The change in percent that these pairs find, beyond the error of tuning.

    NaN without the level of a look, as before the first one.
    """
    if level is None:
        return np.nan
    change = resolved_ratio(ratios.values, 1 - level)
    return 100 * (np.exp(error) * (1 + change / 100) - 1)


def _gain(
    mine: Mapping[int, Curve], others: Mapping[int, Curve], measure: str | Unit
) -> Measurement:
    """The differences of accuracies, in points, a value a pair.

    Each is read where both runs had spent the smaller of their two totals.
    """
    gains = []
    for seed, curve in mine.items():
        other = others[seed]
        budget = min(curve.places(measure)[-1], other.places(measure)[-1])
        gains.append(100 * (curve.score_at(measure, budget) - other.score_at(measure, budget)))
    return Measurement(np.array(gains or [np.nan]))


def _rate(runs: Mapping[int, Record]) -> float | None:
    """The learning rate that was asked for; one for all seeds of an arm."""
    if not runs:
        return None
    return next(iter(runs.values())).manifest.get("arguments", {}).get("learning_rate")


def _remarks(answer: Answer) -> list[str]:
    """What else a reader should know: the price of sampling, and how small a change would show."""
    remarks = []
    even = answer.break_even
    # Named only where the price is known from both sides.
    if even is not None and 0 < even.low <= even.high < np.inf and np.isfinite(even.estimate):
        side = "more" if even.cheaper_below else "less"
        remarks.append(
            f"{answer.arm} costs more than {answer.baseline} where sampling a token costs {side} "
            f"than {even.estimate:.2g} times as much as training on one"
        )
    # Where the interval leaves 1 out although nothing is decided, a reader asks why.
    excluded = answer.high < 1 or answer.low > 1
    if answer.verdict == "open" and excluded and answer.arms > 1 and np.isfinite(answer.p_holm):
        remarks.append(f"after correction for {answer.arms} arms p is {answer.p_holm:.2g}")
    # A handful of seeds that spread far apart would show nothing of interest.
    if answer.resolves <= 100:
        seen = f"a change of {answer.resolves:.0f} % would have been seen"
        remarks.append(f"{seen} (in four trials of five)")
    return remarks


def _ahead(answer: Answer) -> list[str]:
    """Where arm and baseline will be when they train on, and where they end."""
    mine, other = answer.forecast, answer.baseline_forecast
    if mine is None or other is None:
        return []
    spent = f"{answer.ahead:.0f} rounds"
    if answer.measure != "round":
        what = UNITS.get(answer.measure, answer.measure)
        spent = f"the {what} of {spent} of {answer.baseline}"
    return [ahead_text({answer.arm: mine, answer.baseline: other}, f"with {spent}")]


def ahead_text(forecasts: Mapping[str, Forecast], when: str) -> str:
    """What is forecast of an arm and of the baseline, by their labels, or why nothing is."""
    for label, made in forecasts.items():
        if made.why:
            return f"no forecast of {label}: {made.why}"
    mine, other = forecasts.values()
    values = [share_text(*each[1:4]) for each in (mine, other)]
    text = f"{when} it would stand at {values[0]}, {list(forecasts)[1]} at {values[1]}"
    if not np.isnan([mine.ceiling, other.ceiling]).all():
        ends = [share_text(*each[4:7]) for each in (mine, other)]
        text += f" (ceilings: {ends[0]} and {ends[1]})"
    return text


def share_text(value: float, low: float, high: float) -> str:
    """A share in percent with its interval, or that it is not known.

    >>> share_text(0.88, 0.841, 0.91)
    '88 % [84, 91]'
    """
    if np.isnan(value):
        return "not known yet"
    return f"{100 * value:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
