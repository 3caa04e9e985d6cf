"""How many rollouts for which problem.

An allocator is a slot value with a generator method, `allocate`, that asks for rollouts and sees
what came of them; see `workbench.slots.Allocator`. All decisions read `rollouts.correct`, the
verifier's verdict, and not the reward. Only where no verdict is given, as of the scores of a reward
model, dynamic sampling and screening ask whether the rewards of a problem differ, and say so.

The arithmetic behind the decisions is in `workbench.budgets`, and the beliefs about problems are in
`workbench.success_rates`; both can be reached from here as well.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Annotated, Any

import numpy as np

from workbench.rules import budgets
from workbench.rules.budgets import expected_rollouts as expected_rollouts
from workbench.rules.budgets import info_gain as info_gain
from workbench.rules.budgets import knapsack as knapsack
from workbench.rules.budgets import nonzero_gradient_probability as nonzero_gradient_probability
from workbench.rules.budgets import required_rollouts as required_rollouts
from workbench.rules.budgets import value as value
from workbench.rules.success_rates import RemembersPosteriors, SuccessRates, deviations, tally
from workbench.slots import Context, More, PerProblem, Problems, Rollouts, Slot, needs_of
from workbench.utils.bounds import (
    Count,
    CountOrZero,
    Flag,
    Interval,
    Positive,
    PositiveOrZero,
    at_least,
    of_kind,
)
from workbench.utils.descriptions import compose
from workbench.utils.groups import group_numbers
from workbench.utils.names import of_catalogue
from workbench.utils.validation import whole_number

logger = logging.getLogger(__name__)

Requests = Generator[Any, Any, Any]  # what `allocate` returns, see `slots.Allocator`
GroupSize = Annotated[int, at_least(2)]  # one rollout alone has no advantage
OfRates = Annotated[SuccessRates, of_kind(SuccessRates, "SuccessRates('last')")]


@dataclass(frozen=True)
class Uniform(Slot):
    """n rollouts for every problem (GRPO)."""

    n: GroupSize = 8

    reads_verdict = False

    def sampled(self) -> PerProblem:
        """n of every problem."""
        return PerProblem(self.n)

    def allocate(self, problems: Problems, context: Context) -> Requests:
        """One request: the same count for every problem."""
        yield np.full(len(problems), self.n, dtype=np.int64)


class Split(Slot):
    """Base of allocators that split n rollouts a problem, on average, within bounds for each.

    With a `total`, a round has that many rollouts instead, however many problems it has. A subclass
    with an `allocate` of its own must name `sampled` again, since `Slot` takes it away otherwise.
    """

    n: int
    low: int
    up: int
    total: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("up", self.up, self._least)
        if self.total is None:
            whole_number("n", self.n, self._least, self.up)

    @property
    def _least(self) -> int:
        """Rollouts that every problem gets."""
        return self.low

    def sampled(self) -> PerProblem | None:
        """n on average; unknown where a total is split among any number of problems."""
        return PerProblem(self.n, "average") if self.total is None else None


class ByRates(Split):
    """Base of allocators whose counts follow from success rates, which learn from each round."""

    rates: SuccessRates

    sampled = Split.sampled

    @property
    def delegate(self) -> Slot:
        """Its success rates: they learn and are stored."""
        return self.rates

    @property
    def _least(self) -> int:
        """Rollouts that every problem gets, of which probes are a part."""
        return max(self.low, self.rates.spent)

    def allocate(self, problems: Problems, context: Context) -> Requests:
        """One request; fresh rates make one for their probes before it, within the total."""
        total = self._total(len(problems))
        rates = yield from self.rates.estimates(problems, context)
        # The probes are a part of a problem's count.
        further = self._counts(rates, total) - self.rates.spent
        if further.any():
            yield further

    def _total(self, problems: int) -> int:
        """Rollouts of a round of so many problems."""
        return self.n * problems

    def _counts(self, rates: np.ndarray, total: int) -> np.ndarray:
        """Rollouts of each problem, (P,) int64, by success rates (P,)."""
        raise NotImplementedError


@dataclass
class Knapsack(ByRates):
    """The split of a round's rollouts with the greatest summed value, under one total.

    Attributes
    ----------
    n : int
        Rollouts a problem on average.
    total : int, optional
        Rollouts of a round, in place of n.
    low, up : int
        Bounds for one problem.
    info_gain : bool
        Whether the value of a rollout counts the expected gain of an update, or only the chance of
        a gradient.
    fallback : bool
        Whether problems never solved share what the others do not need.
    estimator : {"grpo", "rloo", "remax", "reinforce"}
        What makes a gradient vanish, see `nonzero_gradient_probability`.
    rates : SuccessRates
        Where success rates come from. A problem without an estimate gets the uniform budget, so the
        first epoch is uniform.

    References
    ----------
    Knapsack RL (arXiv 2509.25849), equations 5 and 6; bounds 2 and 128 from appendix G.4, the
    fallback from appendix C.
    """

    n: Count = 8
    total: Count | None = None
    low: CountOrZero = 2
    up: int = 128
    info_gain: Flag = True
    fallback: Flag = True
    estimator: str = "grpo"
    rates: OfRates = field(default_factory=SuccessRates)

    def __post_init__(self) -> None:
        super().__post_init__()
        # The number of problems is not known yet. One problem with the budget `up` always fits, so
        # this checks what the estimator needs.
        budgets.check_budget(1, self.up, self._least, self.up, self.estimator)

    def _total(self, problems: int) -> int:
        total = self.n * problems if self.total is None else self.total
        # Before the probes, so that nothing is sampled for a total that cannot be split.
        budgets.check_budget(problems, total, self._least, self.up, self.estimator)
        return total

    def _counts(self, rates: np.ndarray, total: int) -> np.ndarray:
        return knapsack(
            rates,
            total,
            low=self._least,
            up=self.up,
            info_gain=self.info_gain,
            fallback=self.fallback,
            estimator=self.estimator,
        )


@dataclass(frozen=True)
class Staged(Slot):
    """Up to `stages` requests of k rollouts each; problems that have what is wanted do not go on.

    Attributes
    ----------
    stages, k : int
    right, wrong : int
        A problem goes on while it has fewer correct or fewer wrong rollouts than these.

    References
    ----------
    AR3PO (arXiv 2509.25808), section 3.1: 2 stages of 4 until the first correct one. Reinforce-Ada
    (arXiv 2510.04996), released code: 4 stages of 8 until the first correct one ("positive"), or
    until 2 correct and 2 wrong ones ("balanced").
    """

    stages: Count = 2
    k: GroupSize = 4
    right: CountOrZero = 1
    wrong: CountOrZero = 0

    needs = frozenset({"resampling"})

    def sampled(self) -> PerProblem:
        """k in the first request; problems that go on get more."""
        return PerProblem(self.k, "about")

    def allocate(self, problems: Problems, context: Context) -> Requests:
        """One request a stage, until every problem has what is wanted."""
        ids = [problem.id for problem in problems]
        counts = np.full(len(ids), self.k, dtype=np.int64)
        for _ in range(self.stages):
            if not counts.any():
                return
            rollouts = yield counts
            correct, tries = tally(ids, rollouts)
            # Right and wrong ones are wanted separately; with wrong=0 only the first condition
            # counts.
            is_open = (correct < self.right) | (tries - correct < self.wrong)
            counts = np.where(is_open, self.k, 0)


@dataclass(frozen=True)
class Rescue(Slot):
    """Explores every problem, then spends the rest of the budget on the problems that failed.

    Stage I samples `explore` rollouts of each problem. In stage II, problems with at most
    `threshold` correct ones get `extra` more at a time. Each goes on until its first correct
    rollout of this stage, up to `n_max` rollouts in all and `k_max` times, as long as the budget of
    (total - explore) P rollouts lasts. When it does not last for all, earlier problems of the round
    are served first.

    References
    ----------
    AERO (arXiv 2602.14338), algorithm 1. The text has extra=2 and k_max=10 (appendix C), its code
    experiments extra=4 and k_max=3.
    """

    explore: GroupSize = 8
    total: int = 16
    threshold: int = 0
    n_max: int = 32
    k_max: CountOrZero = 10
    extra: Count = 2

    needs = frozenset({"resampling"})

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("total", self.total, self.explore)
        whole_number("n_max", self.n_max, self.explore)
        whole_number("threshold", self.threshold, 0, self.explore // 2)

    def sampled(self) -> PerProblem:
        """Those of stage I; problems that failed get more."""
        return PerProblem(self.explore, "about")

    def allocate(self, problems: Problems, context: Context) -> Requests:
        """One request for stage I, then one for each iteration of stage II that is needed."""
        ids = [problem.id for problem in problems]
        rollouts = yield np.full(len(ids), self.explore, dtype=np.int64)
        correct, tries = tally(ids, rollouts)
        # A problem that failed stage I goes on until it has one correct rollout more than here.
        explored = correct
        failed = explored <= self.threshold
        # One budget for all problems of the round: it is spent where it is needed.
        budget = (self.total - self.explore) * len(ids)
        for _ in range(self.k_max):
            still_failed = failed & (correct == explored)
            wanted = np.where(still_failed, np.minimum(self.extra, self.n_max - tries), 0)
            counts = budgets.serve_in_order(wanted, budget)
            if not counts.any():
                return
            rollouts = yield counts
            correct, tries = tally(ids, rollouts)
            budget -= counts.sum()


@dataclass
class DynamicSampling(Slot):
    """n rollouts a problem, and more problems until enough groups are mixed.

    A group is mixed when it holds both a correct and a wrong rollout. Where rewards come without a
    verdict it is mixed when they differ, see `spread`. The first `groups` mixed ones are kept, and
    all other rollouts are thrown away. If every problem is always solved, a round ends after
    `max_draws` draws with nothing to train on.

    Attributes
    ----------
    n : int
        Rollouts a problem.
    groups : int, optional
        Mixed groups wanted; None for as many as the round started with problems.
    max_draws : int
        Draws of problems in all, the first one included. At that bound, or when no problems are
        left, the round goes on with the mixed groups that it has.
    refill : float, optional
        None makes every draw as large as the first one. A number makes it that many times the
        problems that the latest share of mixed groups suggests for those still missing (GRESO).
    between : (low, high)
        A group is kept when its success rate lies strictly between the two. Thresholds inside are
        online difficulty filtering (arXiv 2504.03380). Confidence in that is low: only its abstract
        was read, which names no thresholds.
    within : allocator, optional
        Counts the rollouts of each draw, as if the draw were a round of its own, in place of n.
        `DynamicSampling(within=Knapsack())` is dynamic sampling with Knapsack RL. It learns from
        all draws; what it measures is that of the last draw.
    spread : float
        Where rewards come without a verdict, a group is kept when their sample deviation is above
        this. They are the rewards of the verifier or the trainer, without the method's penalties.
        With a verdict, or thresholds `between`, the rewards are not read.

    References
    ----------
    DAPO (arXiv 2503.14476), section 3.2. With Knapsack RL: arXiv 2509.25849, appendix G.5.
    """

    n: GroupSize = 8
    groups: Count | None = None
    max_draws: Count = 3
    within: Annotated[Slot, of_kind(Slot, "Knapsack()")] | None = None
    refill: Positive | None = None
    between: Interval = (0.0, 1.0)
    spread: PositiveOrZero = 0.0

    needs = frozenset({"more_problems", "resampling"})
    later = ("spread",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.within is not None and "more_problems" in needs_of(self.within):
            raise ValueError(
                f"within={compose(self.within)}: it draws problems itself, which dynamic sampling "
                "does already"
            )

    @property
    def delegate(self) -> Slot | None:
        """The allocator within: it learns from the round and is stored."""
        return self.within

    @property
    def reads_verdict(self) -> bool:  # type: ignore[override]
        """Only for success rates: those between thresholds, or those of the allocator within."""
        has_thresholds = tuple(self.between) != (0, 1)
        return has_thresholds or (self.within is not None and self.within.reads_verdict)

    def sampled(self) -> PerProblem | None:
        """The rollouts of a draw, of which all those of a kept problem are trained on."""
        if self.within is not None:
            inner = self.within.sampled()
            return None if inner is None else PerProblem(inner.n, "about")
        # With a number of groups of its own, the rollouts of a round do not follow its problems.
        return PerProblem(self.n, "each" if self.groups is None else "about")

    def allocate(self, problems: Problems, context: Context) -> Requests:
        """A draw's requests, and a request for problems between draws; keeps the mixed groups."""
        wanted = len(problems) if self.groups is None else self.groups
        rollouts, ids, is_mixed = yield from self.draws(problems, context, wanted)
        # In the order of drawing, so that the surplus is that of the last draw.
        return rows_of(rollouts, ids, np.flatnonzero(is_mixed)[:wanted])

    def draws(self, problems: Problems, context: Context, wanted: int) -> Requests:
        """Requests for draws of problems and their rollouts, until `wanted` problems are mixed.

        Returns the round's rollouts, the ids of its problems (P,), and which of them are mixed,
        (P,) bool.
        """
        counter = Uniform(self.n) if self.within is None else self.within
        size = len(problems)
        drawn = 0
        for draw in range(self.max_draws):
            # `problems` are all of the round so far, of which the first `drawn` have their rollouts
            # already.
            rollouts = yield from _sample_draw(counter, problems, drawn, context)
            ids = [problem.id for problem in problems]
            is_mixed = self._is_mixed(ids, rollouts)
            missing = wanted - int(is_mixed.sum())
            if missing <= 0 or draw + 1 == self.max_draws:
                break
            more = size
            if self.refill is not None:
                more = _refilled(missing, is_mixed[drawn:], self.refill, size)
            drawn = len(problems)
            problems = yield More(more)
            # No problems are left, so the round goes on with what it has.
            if len(problems) == drawn:
                break
        return rollouts, ids, is_mixed

    def _is_mixed(self, ids: Sequence[str], rollouts: Rollouts) -> np.ndarray:
        """Which problems are mixed, (P,) bool, by their success rates or, without a verdict, by the
        deviation of their rewards.
        """
        if not rollouts.judged:
            _tell_of_rewards(self.spread)
            return deviations(ids, rollouts) > self.spread
        correct, tries = tally(ids, rollouts)
        low, high = self.between
        # Without a division, so that a problem without any rollout does not count as mixed. The
        # small number is for bounds such as .58 of 50 rollouts, which is a little less than 29.
        return (correct > low * tries + 1e-9) & (correct < high * tries - 1e-9)


@cache
def _tell_of_rewards(spread: float) -> None:
    """Say, once in a process, that groups are told apart by rewards."""
    logger.warning(
        "The rewards come without a verdict, so a problem is kept if the deviation of its rewards "
        "is above %g, whatever they reward. If it were known which responses are correct, a "
        "problem would be kept if it had both right and wrong responses.",
        spread,
    )


def _refilled(missing: int, is_mixed: np.ndarray, refill: float, most: int) -> int:
    """Problems of the next draw: `refill` times as many as should give the `missing` mixed ones."""
    # Without any mixed group the share counts as half a group.
    share_of_mixed = max(is_mixed.mean(), 1 / (2 * len(is_mixed)))
    return min(max(int(missing / share_of_mixed * refill), 1), most)


def _sample_draw(counter: Any, problems: Problems, drawn: int, context: Context) -> Requests:
    """An allocator's requests for the problems from `drawn` on; returns all rollouts so far."""
    # Driven by hand rather than by `yield from`, since its counts are for the new problems only
    # and have to be extended to all.
    requests = counter.allocate(problems[drawn:], context)
    rollouts = None
    while True:
        try:
            counts = requests.send(rollouts)
        except StopIteration:
            return rollouts
        none_for_earlier_draws = np.zeros(drawn, dtype=np.int64)
        rollouts = yield np.concatenate([none_for_earlier_draws, counts])


class InTwoPhases(Slot):
    """Base of allocators with a few rollouts of every problem, and many more of those that fit.

    With a number of `groups`, problems are drawn until there are so many together with those that
    are `waiting` in `replay.Surplus`, and no more get the second phase than this round and the next
    can train on.
    """

    groups: int | None
    waiting: int

    needs = frozenset({"resampling", "more_problems"})

    def _phases(self) -> tuple[DynamicSampling, int]:
        """How the first phase draws problems that fit, and the rollouts of the second one."""
        raise NotImplementedError

    def sampled(self) -> PerProblem:
        """Those of both phases, for each problem that is kept."""
        draws, further = self._phases()
        return PerProblem(draws.n + further, "about")

    def allocate(self, problems: Problems, context: Context) -> Requests:
        """Requests of the first phase and one of the second; returns the rows of what fits."""
        draws, further = self._phases()
        wanted = 0 if self.groups is None else self.groups - self.waiting
        rollouts, ids, fits = yield from draws.draws(problems, context, wanted)
        if self.groups is not None:
            fits &= np.cumsum(fits) <= wanted + self.groups
        if fits.any():
            rollouts = yield np.where(fits, further, 0)
        return rows_of(rollouts, ids, np.flatnonzero(fits))

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Count the groups with both phases that the round did not train on."""
        if self.groups is not None:
            _, group, sizes = group_numbers(rollouts.group)
            is_whole = sizes > self._phases()[0].n
            trained_on = np.bincount(group, rollouts["selected"], len(sizes)) > 0
            self.waiting = int((is_whole & ~trained_on).sum())


def rows_of(rollouts: Rollouts, ids: Sequence[str], kept: np.ndarray) -> np.ndarray:
    """The rows of all rollouts of some problems, given by their places among the ids."""
    return np.flatnonzero(np.isin(rollouts.problem, [ids[i] for i in kept]))


@dataclass
class InProportion(RemembersPosteriors, Split):
    """Base of allocators whose counts are in proportion to weights that posteriors give.

    A problem gets n rollouts on average, `low` at least and `up` at most.
    """

    n: int = 8
    low: Count = 2
    up: int = 32

    sampled = Split.sampled

    def allocate(self, problems: Problems, context: Context) -> Requests:
        """One request, in proportion to the weights."""
        weights = self._weights([problem.id for problem in problems])
        yield budgets.in_proportion(weights, self.n * len(problems), self.low, self.up)

    def _weights(self, ids: Sequence[str]) -> np.ndarray:
        raise NotImplementedError


__getattr__ = partial(of_catalogue, __name__)
