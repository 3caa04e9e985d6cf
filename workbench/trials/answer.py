"""From records to the answer: does an arm need less than the baseline?

An answer is read from finished runs alone, so it can be asked for again at any time, of any
records. `answers` looks at all arms of a trial together. What makes an answer known
is `workbench.analysis.sequential`, and how a run that did not reach the target counts is
`workbench.analysis.targets`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from workbench.analysis import cost
from workbench.analysis.courses import UNITS, Course, Unit, name_of, read
from workbench.analysis.intervals import Measurement
from workbench.analysis.resolution import resolved_ratio
from workbench.analysis.sequential import ALPHA, BAND, LOOKS, Reading, look_at, readings
from workbench.analysis.targets import Crossing, crossing, ratio_to_target
from workbench.records import Record

# Columns of the rounds that tell two runs apart, whatever machine they were made on.
TELLING = ("rollouts", "selected", "reward", "tokens_sampled", "tokens_trained", "gradient_norm")


@dataclass(frozen=True)
class Answer:
    """What is known of one arm against the baseline.

    Attributes
    ----------
    arm, baseline : str
        Their labels.
    verdict : str
        "better", "worse", "alike" or "open", see `sequential.verdict`.
    known : bool
        Whether no further seeds are needed.
    ratio, low, high : float
        The arm's cost to the target over the baseline's, with the interval at the level of this
        look. Below 1 the arm needs less. NaN without a pair of seeds; an end is 0 or infinite where
        a run did not reach the target.
    seeds : int
        Pairs of seeds that count.
    reached, baseline_reached : int
        How many of these runs reached the target.
    p, p_holm : float
        The overall level at which this look would just decide, alone and after Holm's correction.
    resolves : float
        The change in percent that so many seeds find four times out of five; NaN where runs did not
        reach the target, or with one pair.
    difference, difference_low, difference_high : float
        Held-out accuracy minus the baseline's, in percentage points, when both runs of a pair had
        spent as much as the one that ended first.
    break_even : BreakEven or None
        The price of sampling at which both cost the same; None where a run did not reach the
        target.
    learning_rate, baseline_learning_rate : float or None
        Of the runs; None where they took that of the lab.
    measure : str
        What is counted.
    target : float
        Held-out accuracy.
    same : bool
        Whether every round of the arm is that of the baseline, to the bit.
    arms : int
        How many arms were corrected for.
    tuned : bool
        Whether both learning rates were tuned.
    band : float
        Within which costs are alike.
    """

    arm: str
    baseline: str
    verdict: str
    known: bool
    ratio: float
    low: float
    high: float
    seeds: int
    reached: int
    baseline_reached: int
    p: float
    p_holm: float
    resolves: float
    difference: float
    difference_low: float
    difference_high: float
    break_even: cost.BreakEven | None
    learning_rate: float | None
    baseline_learning_rate: float | None
    measure: str
    target: float
    same: bool
    arms: int
    tuned: bool
    band: float

    def __str__(self) -> str:
        return sentence(self)


def answers(
    arms: Mapping[str, Mapping[int, Record]],
    baseline_records: Mapping[int, Record],
    *,
    target: float,
    measure: str | Unit = "rollouts",
    baseline: str = "baseline",
    looks: Iterable[int] = LOOKS,
    level: float = ALPHA,
    band: float = BAND,
    tuned: bool = False,
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
        Probability that any arm is called better or worse that is not.
    band : float
        Costs are alike where the whole interval lies within this share of 1.
    tuned : bool
        Whether the learning rates were tuned; the sentences say so.

    Returns
    -------
    dict from label to Answer

    Raises
    ------
    ValueError
        For an arm that is called like the baseline, records of different labs, and a target that a
        run begins above.
    """
    if baseline in arms:
        raise ValueError(f"arms: {baseline!r} is the name of the baseline; choose another label")
    groups = {baseline: baseline_records, **arms}
    started = {label: list(runs.values()) for label, runs in groups.items() if runs}
    # One read of all arms, so that they share a grid of evaluations.
    courses = read(started) if started else {}
    looks = tuple(looks)
    pairs = {
        label: _pairs(courses.get(label, {}), courses.get(baseline, {}), looks) for label in arms
    }
    ratios = {}
    for label, of_arm in pairs.items():
        if of_arm:
            ratios[label] = ratio_to_target(
                [_crossed(one, target, measure) for one, _ in of_arm],
                [_crossed(other, target, measure) for _, other in of_arm],
            )
    read_off = readings(ratios, looks, level=level, band=band)
    found = {}
    for label, runs in arms.items():
        seeds = [one.seed for one, _ in pairs[label]]
        same = bool(seeds) and all(same_runs(runs[s], baseline_records[s]) for s in seeds)
        found[label] = _answer(
            pairs[label],
            read_off.get(label),
            target,
            measure,
            arm=label,
            baseline=baseline,
            learning_rate=_rate(runs),
            baseline_learning_rate=_rate(baseline_records),
            same=same,
            arms=len(arms),
            tuned=tuned,
            band=band,
        )
    return found


def same_runs(record: Record, other: Record) -> bool:
    """Whether two runs of the same seed did the same in every round, to the bit."""
    rounds, others = record.rounds, other.rounds
    columns = [name for name in TELLING if name in rounds and name in others]
    # Weights that differ in one bit show in the norm of the next gradient.
    return len(rounds) > 0 and rounds[columns].equals(others[columns])


def table(found: Mapping[str, Answer]) -> pd.DataFrame:
    """The answers as a table.

    Parameters
    ----------
    found : dict from label to Answer
        As `answers` gives it.

    Returns
    -------
    DataFrame, a row an arm
        The attributes of `Answer` from `arm` to `baseline_learning_rate`, with `break_even` as a
        price, and `sentence`.
    """
    columns = ["arm", "verdict", "ratio", "low", "high", "seeds", "reached", "baseline_reached"]
    columns += ["learning_rate", "baseline_learning_rate", "measure", "target"]
    columns += ["difference", "difference_low", "difference_high", "resolves", "p", "p_holm"]
    rows = []
    for answer in found.values():
        row = {name: getattr(answer, name) for name in columns}
        row["known"] = answer.known
        row["break_even"] = answer.break_even.estimate if answer.break_even else np.nan
        row["sentence"] = sentence(answer)
        rows.append(row)
    return pd.DataFrame(rows, columns=[*columns, "known", "break_even", "sentence"])


def sentence(answer: Answer) -> str:
    """What was found of one arm, in words.

    Parameters
    ----------
    answer : Answer

    Returns
    -------
    str
        Such as "mine needs .81 [.74, .89] of grpo's rollouts to reach 60 % (9 seeds, both tuned:
        9e-4 and 1.3e-3); a change of 6 % would have been seen."
    """
    arm, baseline = answer.arm, answer.baseline
    if answer.seeds == 0:
        return f"{arm}: no run has the same seed as one of {baseline} yet."
    if answer.same:
        return (
            f"{arm} is {baseline} under another name: every round is the same "
            f"({_count(answer.seeds, 'seed')})."
        )
    goal = f"to reach {_percent(answer.target)} %"
    if answer.reached + answer.baseline_reached == 0:
        return (
            f"Neither {arm} nor {baseline} reached {_percent(answer.target)} % in any of "
            f"{_count(answer.seeds, 'run')}; choose a lower target or longer runs."
        )
    what = UNITS.get(answer.measure, answer.measure)
    ratio = f"{_number(answer.ratio)}{_interval(answer)} of {baseline}'s {what}"
    notes = [_count(answer.seeds, "seed"), *_rates(answer)]
    if answer.reached < answer.seeds or answer.baseline_reached < answer.seeds:
        notes.append(
            f"{answer.reached} of {answer.seeds} runs reached it, of {baseline} "
            f"{answer.baseline_reached}"
        )
    needs = "needs"
    if answer.reached < answer.seeds == answer.baseline_reached:
        needs = "needs at least"
    if answer.baseline_reached < answer.seeds == answer.reached:
        needs = "needs at most"
    text = f"{arm} {needs} {ratio} {goal} ({', '.join(notes)})"
    if answer.verdict == "alike":
        text += f": alike, within {_percent(answer.band)} %"
    elif answer.verdict == "open" and answer.known:
        # An interval without an end says that too few runs arrived, not that arms are alike.
        has_ends = answer.low > 0 and answer.high < np.inf
        text += ": no difference found" if has_ends else ": too few runs arrived to decide"
    elif answer.verdict == "open":
        text += ": not known yet"
    return "; ".join([text, *_remarks(answer)]) + "."


def _pairs(
    arm: Mapping[int, Course], baseline: Mapping[int, Course], looks: Iterable[int]
) -> list[tuple[Course, Course]]:
    """The runs of common seeds that count: those of the last look that is past."""
    seeds = sorted(arm.keys() & baseline.keys())
    return [(arm[seed], baseline[seed]) for seed in seeds[: look_at(len(seeds), looks)]]


def _crossed(course: Course, target: float, measure: str | Unit) -> Crossing:
    return crossing(course.places(measure), course.scores, target)


def _answer(
    pairs: list[tuple[Course, Course]],
    reading: Reading | None,
    target: float,
    measure: str | Unit,
    *,
    same: bool,
    **settings: Any,
) -> Answer:
    """The numbers of one arm, from its pairs of runs."""
    nothing = Measurement(np.array([np.nan]))
    measured = reading.measured if reading else nothing
    reached, baseline_reached = (
        sum(_crossed(pair[side], target, measure).reached for pair in pairs) for side in (0, 1)
    )
    gains = [_gain(one, other, measure) for one, other in pairs]
    gain = Measurement(np.array(gains)) if pairs else nothing
    all_reached = bool(pairs) and reached == baseline_reached == len(pairs)
    verdict, known = (reading.verdict, reading.known) if reading else ("open", False)
    # Two seeds whose every round is the same leave no room for a difference.
    if same and len(pairs) > 1:
        verdict, known = "alike", True
    return Answer(
        verdict=verdict,
        known=known,
        ratio=measured.value,
        low=measured.low,
        high=measured.high,
        seeds=len(pairs),
        reached=reached,
        baseline_reached=baseline_reached,
        p=reading.p if reading else np.nan,
        p_holm=reading.p_holm if reading else np.nan,
        resolves=(resolved_ratio(measured.values, measured.level) if all_reached else np.nan),
        difference=gain.value,
        difference_low=gain.low,
        difference_high=gain.high,
        break_even=_break_even(pairs, target) if all_reached else None,
        measure=name_of(measure),
        target=float(target),
        same=same,
        **settings,
    )


def _gain(course: Course, baseline: Course, measure: str | Unit) -> float:
    """The difference of accuracies, in points, when both had spent the smaller of two totals."""
    budget = min(course.places(measure)[-1], baseline.places(measure)[-1])
    return 100 * (course.score_at(measure, budget) - baseline.score_at(measure, budget))


def _break_even(pairs: list[tuple[Course, Course]], target: float) -> cost.BreakEven:
    tokens = [(cost.tokens_of(one, target), cost.tokens_of(other, target)) for one, other in pairs]
    return cost.break_even([one for one, _ in tokens], [other for _, other in tokens])


def _rate(runs: Mapping[int, Record]) -> float | None:
    """The learning rate that was asked for; one for all seeds of an arm."""
    if not runs:
        return None
    return next(iter(runs.values())).manifest.get("arguments", {}).get("learning_rate")


def _rates(answer: Answer) -> list[str]:
    """Which learning rates were compared; nothing where the runs took that of the lab."""
    if answer.learning_rate is None or answer.baseline_learning_rate is None:
        return []
    mine, other = _power(answer.learning_rate), _power(answer.baseline_learning_rate)
    both = mine if mine == other else f"{mine} and {other}"
    return [f"both tuned: {both}" if answer.tuned else f"learning rates {both}"]


def _remarks(answer: Answer) -> list[str]:
    """What else a reader should know: the price of sampling, and how small a change would show."""
    remarks = []
    even = answer.break_even
    # Named only where the price is known from both sides.
    if even is not None and 0 < even.low <= even.high < np.inf and np.isfinite(even.estimate):
        side = "more" if even.cheaper_below else "less"
        remarks.append(
            f"where sampling a token costs {side} than {_number(even.estimate)} of training on it, "
            "it costs more"
        )
    # Where the interval leaves 1 out although nothing is decided, a reader asks why.
    if answer.verdict == "open" and (answer.high < 1 or answer.low > 1) and answer.arms > 1:
        remarks.append(f"after correction for {answer.arms} arms p is {answer.p_holm:.2g}")
    if np.isfinite(answer.resolves):
        remarks.append(f"a change of {answer.resolves:.0f} % would have been seen")
    return remarks


def _interval(answer: Answer) -> str:
    """Such as " [.74, .89]"; nothing where there is one seed."""
    if np.isnan(answer.low) and np.isnan(answer.high):
        return ""
    if answer.low == 0 and np.isinf(answer.high):
        return ""
    low = "open" if answer.low == 0 else _number(answer.low)
    high = "open" if np.isinf(answer.high) else _number(answer.high)
    return f" [{low}, {high}]"


def _number(value: float) -> str:
    """Two digits behind the point, without a zero before it.

    >>> _number(0.814), _number(1.2), _number(12.34)
    ('.81', '1.20', '12.3')
    """
    text = f"{value:.2f}" if value < 10 else f"{value:.3g}"
    return text.removeprefix("0") if text.startswith("0.") else text


def _power(rate: float) -> str:
    """A learning rate as people write it.

    >>> _power(0.0013), _power(2e-4), _power(1.8385e-3)
    ('1.3e-3', '2e-4', '1.8e-3')
    """
    digits, _, exponent = f"{rate:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
