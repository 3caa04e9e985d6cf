"""The price of sampling: one number that decides which method is the cheaper one.

A method that samples much and trains on little is cheap where sampling is cheap. Where it is, is a
property of the machine: the *price of sampling* is what a sampled token costs, divided by what a
trained token costs. Counted in FLOPs it is 2 / 6 (AERO, arXiv 2602.14338, equation 23). In seconds
it depends on how many responses are decoded at once, so it is measured. With the price given, a
run's bill is

    bill = tokens trained + price x tokens sampled        (in trained tokens)

There are two bills, by what is trained. "gradient" counts the rollouts from which a gradient comes,
which is what this library computes. "selected" counts every selected rollout, also those of
advantage 0, as the papers' trainers compute them.

The time that verifying and scheduling take is in neither bill. A real step also takes time that
does not depend on what is sampled, more than half of GRPO's on one L40S. `CostModel` has a fixed
part for it, `MACHINES` has some that were published, and `of_machine` fits one to recorded runs.

Seconds of two runs can only be compared where the machine was as busy beside one as beside the
other. Seconds within one run always can.

Where the tiny lab shares prefixes, as it does by default, further responses to a problem cost less
than the first one. The price of sampling in seconds is then smaller for larger groups, and says
nothing about a model whose responses differ sooner. In runs of `labs.tiny(share_prefixes=False)`
every response has its full price. The grids whose seconds are compared make such runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import bisect, brentq, nnls

from workbench.analysis.curves import Curve, column_of, of_common_seeds, read
from workbench.analysis.intervals import LEVEL, Measurement
from workbench.analysis.runs import arms
from workbench.analysis.targets import Crossing, crossing, ratio_to_target
from workbench.records.round_stats import FORWARD, TRAINING
from workbench.utils.bounds import Positive, PositiveOrZero, check_arguments, choice
from workbench.utils.validation import one_of, positive_number

# A sampled token is a forward pass, a trained one a forward and a backward pass.
FLOP_PRICE = FORWARD / TRAINING
BILLS = {"gradient": "tokens_trained", "selected": "tokens_selected"}
# Twenty prices a decade, evenly on the log scale on which costs are compared.
PRICES = tuple(float(price) for price in np.geomspace(0.01, 100, 81))


@dataclass(frozen=True)
class CostModel:
    """A unit of spending for every comparison: a fixed part, a sampled one and a trained one.

    Attributes
    ----------
    price : float
        Cost of a sampled token over that of a trained token, above 0.
    bill : {"gradient", "selected"}
        Which trained tokens are counted.
    fixed : float
        What a problem of a round costs however little is sampled for it, in trained tokens.
    by : {"tokens", "rollouts"}
        What price and fixed part are counted in. Papers print times by the number of rollouts.
    label : str
        How the unit is called; empty for a name made of the price.
    seconds : float
        What a trained token (or rollout) takes; NaN where only ratios are known.
    read : float
        Cost of a token that the sampler reads of an old response, with courses such as
        `courses.Speculative` (the column `tokens_read`), over that of a trained token. 0 where it
        is not known: how long reading takes depends on the engine.

    Examples
    --------
    >>> table = pd.DataFrame({"tokens_sampled": [100, 100], "tokens_trained": [40, 60]})
    >>> CostModel(0.5).per_round(table)
    array([ 90., 110.])
    >>> table = pd.DataFrame({"problems": [32], "rollouts": [1024], "selected": [256]})
    >>> grpo = table.assign(rollouts=256)
    >>> l40s = MACHINES["l40s"]
    >>> (l40s.per_round(table) / l40s.per_round(grpo)).round(2)
    array([1.21])
    """

    price: Positive
    bill: Annotated[str, choice(*BILLS)] = "gradient"
    fixed: PositiveOrZero = 0.0
    by: Annotated[str, choice("tokens", "rollouts")] = "tokens"
    label: str = ""
    seconds: float = math.nan
    read: PositiveOrZero = 0.0

    def __post_init__(self) -> None:
        check_arguments(self)

    @property
    def name(self) -> str:
        """How the unit is called on an axis."""
        if self.label:
            return self.label
        one = "token" if self.by == "tokens" else "rollout"
        fixed = f", a problem {self.fixed:.3g}" if self.fixed else ""
        return f"trained {one}s, a sampled one counting {self.price:.3g}{fixed}"

    def per_round(self, rounds: pd.DataFrame) -> np.ndarray:
        """What each row of a record's rounds table cost, (rounds,) float64."""
        if self.by == "tokens":
            trained = _trained(rounds, self.bill)
            sampled = rounds["tokens_sampled"]
        else:
            trained = rounds["trained" if self.bill == "gradient" else "selected"]
            sampled = rounds["rollouts"]
        cost = np.asarray(trained, dtype=float) + self.price * sampled.to_numpy(dtype=float)
        # Runs without such a course, and records of early versions, have no such column.
        if self.read and "tokens_read" in rounds:
            cost = cost + self.read * rounds["tokens_read"].to_numpy(dtype=float)
        # Only models with a fixed part need to know how many problems a round had.
        return cost + self.fixed * rounds["problems"].to_numpy(dtype=float) if self.fixed else cost


# Seconds of a step elsewhere, as a unit. Comparisons count ratios alone, so that each is divided by
# what a trained rollout takes. `docs/guides/trial-decisions.md` says how sure each of them is.
MACHINES = {
    # PODS (arXiv 2504.13818), the authors' runs of Qwen2.5-3B with LoRA: seconds of a step of one
    # problem are 4.3 + .055 n + .19 m. Fitted to ten settings, see `data/published`.
    "l40s": CostModel(0.055 / 0.19, "selected", 4.3 / 0.19, "rollouts", "seconds on an L40S", 0.19),
    # AERO (arXiv 2602.14338), section 5.3 and table 8, from the printed minutes of a step of GRPO
    # and AERO, the share by which updating fell, and the ratio of FLOPs trained.
    "a10": CostModel(0.40, "selected", 0.9, "rollouts", "seconds on two A10 (1.5B)"),
    # The same of the 7B models; the fixed part comes out as none.
    "aero-7b": CostModel(0.37, "selected", 0.0, "rollouts", "seconds of AERO's 7B runs"),
    # The sampler reads a token at the price at which it samples one.
    "flops": CostModel(FLOP_PRICE, label="FLOPs by tokens", read=FLOP_PRICE),
    # As a trainer counts them that computes every selected rollout, also those of advantage 0.
    "flops-all": CostModel(
        FLOP_PRICE, "selected", label="FLOPs with every rollout trained", read=FLOP_PRICE
    ),
}


def of_machine(records: Any, bill: str = "gradient") -> CostModel:
    """A cost model of the machine on which runs were made, fitted to their own rounds.

    Seconds of generation are split by least squares into a part that every problem takes and one
    that every sampled token takes; seconds of updates the same with trained tokens. Verifying and
    scheduling count to the fixed part. No coefficient is negative.

    Parameters
    ----------
    records : one or more Record
        Made on one machine. Runs of methods that sample unlike amounts tell the parts apart best.
    bill : {"gradient", "selected"}

    Returns
    -------
    CostModel

    Raises
    ------
    ValueError
        When updates took no time that grows with what was trained, or generation none that grows
        with what was sampled.
    """
    rounds = pd.concat(
        [record.rounds for group in arms(records).values() for record in group], ignore_index=True
    )
    problems = rounds["problems"].to_numpy(dtype=float)

    def split(seconds: str, tokens: Any) -> np.ndarray:
        """What a problem and what a token takes of the seconds of a phase."""
        table = np.column_stack([problems, tokens])
        return nnls(table, rounds[seconds].to_numpy(dtype=float))[0]

    generating, a_sampled = split("seconds_generate", rounds["tokens_sampled"])
    updating, a_trained = split("seconds_update", _trained(rounds, bill))
    if not min(a_sampled, a_trained) > 0:
        raise ValueError(
            f"a sampled token takes {a_sampled:g} s and a trained one {a_trained:g} s; give runs "
            "whose rounds differ in what they sample and train"
        )
    other = rounds["seconds_verify"].sum() + rounds["seconds_schedule"].sum()
    fixed = generating + updating + other / problems.sum()
    return CostModel(
        float(a_sampled / a_trained),
        bill,
        float(fixed / a_trained),
        label="seconds on this machine",
        seconds=float(a_trained),
    )


class Tokens(NamedTuple):
    """What a run had sampled and trained when it reached its target, or when it ended."""

    sampled: float
    trained: float
    reached: bool


class BreakEven(NamedTuple):
    """The price of sampling at which two arms cost the same to a target, with its interval.

    `estimate` is NaN where one of them is cheaper at every price tried; `cheaper_below` says
    whether the arm is the cheaper one below the break-even price (or everywhere). The interval
    consists of all prices at which the interval of the cost ratio contains 1. If that is still so
    at the lowest or the highest price tried, its end there is 0 or inf; if it is so at no price
    tried, both ends are NaN.
    """

    estimate: float
    low: float
    high: float
    cheaper_below: bool


# Pure functions: tokens in, prices out


def bill_ratio(
    arm: Iterable[Tokens], baseline: Iterable[Tokens], price: float, level: float = LEVEL
) -> Measurement:
    """The bill of one arm over that of another at a price, pair by pair.

    Parameters
    ----------
    arm, baseline : (n,) Tokens each
        Of the same seeds in the same order.
    price : float
        Of sampling, above 0.
    level : float
        Probability of the interval.

    Examples
    --------
    >>> arm, baseline = [Tokens(400, 100, True)] * 2, [Tokens(100, 300, True)] * 2
    >>> [round(bill_ratio(arm, baseline, price).value, 3) for price in (0.1, 2 / 3, 10)]
    [0.452, 1.0, 3.154]
    """
    positive_number("price", price)

    # The bill at a price is a cost like any other, so censored runs are counted by the same rule.
    def bills(runs: Iterable[Tokens]) -> list[Crossing]:
        return [Crossing(run.trained + price * run.sampled, run.reached) for run in runs]

    return ratio_to_target(bills(arm), bills(baseline), level)


def break_even(
    arm: Iterable[Tokens],
    baseline: Iterable[Tokens],
    prices: Iterable[float] = PRICES,
    level: float = LEVEL,
) -> BreakEven:
    """The price at which two arms cost the same to the target.

    Parameters
    ----------
    arm, baseline : (n,) Tokens each
        Of the same seeds in the same order.
    prices : numbers above 0
        Where to look; between the first change of sign the root is found exactly.
    level : float
        Probability of the interval.

    Returns
    -------
    BreakEven

    Examples
    --------
    >>> even = break_even([Tokens(400, 100, True)] * 2, [Tokens(100, 300, True)] * 2)
    >>> round(even.estimate, 4), even.cheaper_below
    (0.6667, True)
    """
    arm, baseline = list(arm), list(baseline)
    grid = np.sort(np.fromiter(prices, dtype=float))

    def measured(price: float) -> Measurement:
        return bill_ratio(arm, baseline, float(price), level)

    def excluded(price: float) -> float:
        """1 where the interval of the cost ratio leaves 1 out, and -1 where it holds it."""
        ratio = measured(price)
        return -1.0 if ratio.low <= 1 <= ratio.high else 1.0

    def advantage(price: float) -> float:
        return float(np.log(measured(price).value))

    # On the log scale the arm is the cheaper one where the value is below 0.
    signs = np.sign([advantage(price) for price in grid])
    cheaper_below = bool(signs[0] < 0)
    turns = np.flatnonzero(signs[:-1] != signs[1:])
    estimate = np.nan
    if len(turns):
        estimate = float(brentq(advantage, grid[turns[0]], grid[turns[0] + 1]))
        # An interval may lie between two prices of the grid, and its estimate is in it.
        grid = np.sort(np.append(grid, estimate))
    # The interval of the price holds what the data cannot exclude: every price at which the
    # interval of the cost ratio holds 1. The grid finds it roughly, bisection then its two edges.
    undecided = np.flatnonzero([excluded(price) < 0 for price in grid])
    # Ratios without any spread are undecided at the estimate alone, up to rounding. A single one
    # has no interval.
    if not len(undecided):
        end = estimate if len(arm) > 1 else np.nan
        return BreakEven(estimate, end, end, cheaper_below)
    first, last = undecided[[0, -1]]
    # An interval that reaches the end of the grid goes on beyond it as far as is known.
    low = 0.0 if first == 0 else bisect(excluded, grid[first - 1], grid[first])
    high = np.inf if last == len(grid) - 1 else bisect(excluded, grid[last], grid[last + 1])
    return BreakEven(estimate, float(low), float(high), cheaper_below)


# The same on records


def ratios_by_price(
    groups: Any,
    target: float,
    baseline: str,
    prices: Iterable[float] = PRICES,
    *,
    bill: str = "gradient",
) -> pd.DataFrame:
    """The bill of every arm to a target over the baseline's, by the price of sampling.

    Parameters
    ----------
    groups : dict from label to records
    target : float
    baseline : str
        A label.
    prices : numbers above 0
    bill : {"gradient", "selected"}

    Returns
    -------
    DataFrame, a row a label and price
        label, price, ratio, low, high, n (pairs), censored and censored_baseline.
    """
    prices = [float(price) for price in prices]
    one_of("bill", bill, BILLS)
    tokens = {
        label: {seed: tokens_of(curve, target, bill) for seed, curve in by_seed.items()}
        for label, by_seed in read(groups).items()
    }
    one_of("baseline", baseline, tokens)
    rows = []
    for label in [label for label in tokens if label != baseline]:
        pairs = of_common_seeds(tokens[label], tokens[baseline])
        for price in prices:
            measured = bill_ratio(*pairs, price)
            row = {"label": label, "price": price, **measured.columns("ratio")}
            rows.append(row | measured.stopped())
    return pd.DataFrame(rows)


def tokens_of(curve: Curve, target: float, bill: str = "gradient") -> Tokens:
    """What one run had sampled and trained when its score reached a target."""
    crossed = crossing(curve.rounds, curve.scores, target)
    # Sums by the end of each round, from nothing before the first one. A crossing lies between
    # two rounds, and the tokens of a round are taken to be spent evenly.
    rounds = np.array([0, *curve.table["round"]], dtype=float)
    sampled = np.array([0.0, *curve.table["tokens_sampled"].cumsum()])
    trained = np.array([0.0, *np.cumsum(_trained(curve.table, bill))])
    return Tokens(
        float(np.interp(crossed.place, rounds, sampled)),
        float(np.interp(crossed.place, rounds, trained)),
        crossed.reached,
    )


def _trained(rounds: pd.DataFrame, bill: str) -> np.ndarray:
    """The trained tokens of each round that a bill counts, (rounds,)."""
    return column_of(rounds, BILLS[bill])
