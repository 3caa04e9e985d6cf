"""How many rollouts for which problem.

An allocator is a slot value with a generator method, `allocate`, that asks for rollouts and sees
what came of them; see `workbench.slots.Allocator`. All decisions read `rollouts.correct`, the
verifier's verdict, and not the reward. Only where no verdict is given, as of the scores of a reward
model, dynamic sampling and screening ask whether the rewards of a problem differ, and say so.

The arithmetic behind the decisions is in `workbench.rules.budgets`, and the beliefs about problems are in
`workbench.rules.success_rates`; both can be reached from here as well.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Annotated, Any

import numpy as np

from workbench.pools import Problem
from workbench.rollouts import Context, Rollouts, group_numbers
from workbench.rules import budgets
from workbench.rules.budgets import expected_rollouts as expected_rollouts
from workbench.rules.budgets import info_gain as info_gain
from workbench.rules.budgets import knapsack as knapsack
from workbench.rules.budgets import nonzero_gradient_probability as nonzero_gradient_probability
from workbench.rules.budgets import required_rollouts as required_rollouts
from workbench.rules.budgets import value as value
from workbench.rules.success_rates import (
    OfSignals,
    Posteriors,
    RemembersPosteriors,
    Signals,
    SuccessRates,
    deviations,
    tally,
)
from workbench.slots import More, PerProblem, Slot, needs_of, state_field
from workbench.utils.bounds import (
    Count,
    CountOrZero,
    Flag,
    Interval,
    Positive,
    PositiveOrZero,
    at_least,
    choice,
)
from workbench.utils.descriptions import compose
from workbench.utils.validation import instance_of, number, whole_number

logger = logging.getLogger(__name__)

Requests = Generator[Any, Any, Any]  # what `allocate` returns, see `slots.Allocator`
GroupSize = Annotated[int, at_least(2)]  # one rollout alone has no advantage


@dataclass(frozen=True)
class Uniform(Slot):
    """n rollouts for every problem (GRPO)."""

    n: GroupSize = 8

    reads_verdict = False

    def sampled(self) -> PerProblem:
        """n of every problem."""
        return PerProblem(self.n)

    def allocate(self, problems: Sequence[Problem], context: Context) -> Requests:
        """One request: the same count for every problem."""
        yield np.full(len(problems), self.n, dtype=np.int64)


@dataclass(frozen=True)
class Widened(Slot):
    """n rollouts for every problem, of `factor` times the problems that the round begins with.

    For a selector that drops a share of the rollouts: the round then trains on as many as one that
    drops none. Where the pool has fewer problems, the round has those.

    Attributes
    ----------
    n : int
        Rollouts of a problem.
    factor : float
        At least 1.

    References
    ----------
    CPPO (arXiv 2503.22342), dynamic completion allocation: 1 / (1 - P) times the questions where a
    share P of the completions is pruned.
    """

    n: GroupSize = 8
    factor: Annotated[float, partial(number, low=1)] = 1.0

    needs = frozenset({"more_problems"})
    reads_verdict = False

    def sampled(self) -> PerProblem:
        """n of every problem, and so `factor` times as many for each one that the round has."""
        return PerProblem(round(self.factor * self.n), "about")

    def allocate(self, problems: Sequence[Problem], context: Context) -> Requests:
        """A request for the further problems, and one for the rollouts."""
        further = round(self.factor * len(problems)) - len(problems)
        if further:
            problems = yield More(further)
        yield np.full(len(problems), self.n, dtype=np.int64)


class _ByRates(Slot):
    """Base of allocators whose counts follow from success rates, which learn from each round."""

    n: int
    low: int
    up: int
    rates: SuccessRates

    @property
    def delegate(self) -> Slot:
        """Its success rates: they learn and are stored."""
        return self.rates

    @property
    def _least(self) -> int:
        """Rollouts that every problem gets."""
        return max(self.low, self.rates.spent)

    def sampled(self) -> PerProblem | None:
        """n on average."""
        return PerProblem(self.n, "average")

    def allocate(self, problems: Sequence[Problem], context: Context) -> Requests:
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
class Knapsack(_ByRates):
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
    rates: SuccessRates = field(default_factory=SuccessRates)

    def __post_init__(self) -> None:
        super().__post_init__()
        instance_of("rates", self.rates, SuccessRates, "SuccessRates('last')")
        # The number of problems is not known yet. One problem with the budget `up` always fits, so
        # this checks the bounds and the name.
        budgets.check_budget(1, self.up, self._least, self.up, self.estimator)
        if self.total is None and not self._least <= self.n <= self.up:
            raise ValueError(
                f"n={self.n}: an average from {self._least} (low, or the probes) to {self.up} (up) "
                "is needed"
            )

    def sampled(self) -> PerProblem | None:
        """n on average; unknown where a total is split among any number of problems."""
        return PerProblem(self.n, "average") if self.total is None else None

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

    def allocate(self, problems: Sequence[Problem], context: Context) -> Requests:
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
    threshold: CountOrZero = 0
    n_max: int = 32
    k_max: CountOrZero = 10
    extra: Count = 2

    needs = frozenset({"resampling"})

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("total", self.total, self.explore)
        whole_number("n_max", self.n_max, self.explore)
        if 2 * self.threshold > self.explore:
            raise ValueError(
                f"threshold={self.threshold}: at most half of explore={self.explore} is allowed"
            )

    def sampled(self) -> PerProblem:
        """Those of stage I; problems that failed get more."""
        return PerProblem(self.explore, "about")

    def allocate(self, problems: Sequence[Problem], context: Context) -> Requests:
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
    within: Any = None
    refill: Positive | None = None
    between: Interval = (0.0, 1.0)
    spread: PositiveOrZero = 0.0

    needs = frozenset({"more_problems", "resampling"})
    later = ("spread",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.within is not None:
            instance_of("within", self.within, Slot, "Knapsack()")
            if "more_problems" in needs_of(self.within):
                raise ValueError(
                    f"within={compose(self.within)}: it draws problems itself, which dynamic "
                    "sampling does already"
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

    def allocate(self, problems: Sequence[Problem], context: Context) -> Requests:
        """A draw's requests, and a request for problems between draws; keeps the mixed groups."""
        wanted = len(problems) if self.groups is None else self.groups
        rollouts, ids, is_mixed = yield from self.draws(problems, context, wanted)
        # In the order of drawing, so that the surplus is that of the last draw.
        return _rows_of(rollouts, ids, np.flatnonzero(is_mixed)[:wanted])

    def draws(self, problems: Sequence[Problem], context: Context, wanted: int) -> Requests:
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
        # Without a division, so that a problem without any rollout does not count as mixed.
        return (correct > low * tries) & (correct < high * tries)


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


def _sample_draw(
    counter: Any, problems: Sequence[Problem], drawn: int, context: Context
) -> Requests:
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


def _sample_further(
    rollouts: Rollouts, ids: Sequence[str], is_kept: np.ndarray, n: int
) -> Requests:
    """One request for n more rollouts of the kept problems; returns all rows of these problems."""
    kept = np.flatnonzero(is_kept)
    if len(kept):
        rollouts = yield np.where(is_kept, n, 0)
    return _rows_of(rollouts, ids, kept)


def _waiting(rollouts: Rollouts, first: int) -> int:
    """Groups with more than the `first` rollouts that the round did not train on."""
    _, group, sizes = group_numbers(rollouts.group)
    trained_on = np.bincount(group, rollouts["selected"], len(sizes)) > 0
    return int(((sizes > first) & ~trained_on).sum())


def _rows_of(rollouts: Rollouts, ids: Sequence[str], kept: np.ndarray) -> np.ndarray:
    """The rows of all rollouts of some problems, given by their places among the ids."""
    return np.flatnonzero(np.isin(rollouts.problem, [ids[i] for i in kept]))


# Allocators of further papers


@dataclass
class _InProportion(RemembersPosteriors):
    """Base of allocators whose counts are in proportion to weights that posteriors give."""

    n: int = 8
    low: Count = 2
    up: int = 32
    posteriors: Posteriors = state_field(Posteriors)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("up", self.up, self.low)
        whole_number("n", self.n, self.low, self.up)

    def sampled(self) -> PerProblem:
        """n on average."""
        return PerProblem(self.n, "average")

    def allocate(self, problems: Sequence[Problem], context: Context) -> Requests:
        """One request, in proportion to the weights."""
        weights = self._weights([problem.id for problem in problems])
        yield budgets.in_proportion(weights, self.n * len(problems), self.low, self.up)

    def _weights(self, ids: Sequence[str]) -> np.ndarray:
        raise NotImplementedError


@dataclass
class InverseRoot(_InProportion):
    """More rollouts for problems with low success rates: counts in proportion to 1 / sqrt(p + eps).

    Attributes
    ----------
    n : int
        Rollouts a problem on average.
    low, up : int
        Bounds for one problem.
    eps : float
        Added to the success rate.
    a, b, decay : float
        The success rate is (correct + a) / (tries + a + b), where both counts are multiplied by
        `decay` before each visit of the problem.

    References
    ----------
    Reinforce-Ada (arXiv 2510.04996), the variant "Est". Confidence is low in the constants: the
    paper prints none of them but n, and the released code has no such variant. So eps, a, b, decay
    and the bounds are our choices.
    """

    eps: PositiveOrZero = 0.01
    a: Positive = 0.5
    b: Positive = 0.5
    decay: float = 0.85

    def __post_init__(self) -> None:
        super().__post_init__()
        # No prior in here: the numbers are the bare decayed counts, and `allocate` adds a and b.
        self.posteriors = Posteriors(0.0, 0.0, self.decay, towards="zero")

    def _weights(self, ids: Sequence[str]) -> np.ndarray:
        counts = self.posteriors.of(ids)
        p = (counts[:, 0] + self.a) / (counts.sum(axis=1) + self.a + self.b)
        return 1 / np.sqrt(p + self.eps)


@dataclass
class ByDeviation(_InProportion):
    """Counts in proportion to the deviation of a problem's outcomes, sqrt(p (1 - p)).

    That is the allocation of CurES when right and wrong responses have gradients of the same mean
    and size; p is the mean of a Beta(1, 1) posterior over all earlier rollouts.

    Attributes
    ----------
    n : int
        Rollouts a problem on average.
    low, up : int
        Bounds for one problem.
    restart : int, optional
        Rounds after which all estimates start afresh; None for never.

    References
    ----------
    CurES (arXiv 2510.01037). The released code weighs by gradient norms of the embedding matrix.
    """

    up: int = 64
    restart: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.posteriors = Posteriors(restart=self.restart)

    def _weights(self, ids: Sequence[str]) -> np.ndarray:
        # Under the prior no mean is 0 or 1, so every problem keeps a positive weight.
        p = self.posteriors.means(ids)
        return np.sqrt(p * (1 - p))


@dataclass
class Screening(Slot):
    """A few rollouts for every problem, and many more for those whose first ones are mixed.

    Problems whose first rollouts are all right or all wrong are dropped.

    Attributes
    ----------
    first, further : int
        Rollouts of the two phases.
    groups : int, optional
        Mixed problems wanted; more problems are screened until there are at least so many, at most
        in `max_draws` draws of the round's size. Those that wait in `replay.Surplus` count, and no
        more go on than this round and the next can train on. None: the round's problems alone are
        screened, and all mixed ones go on.
    max_draws : int
    spread : float
        See `DynamicSampling`.
    waiting : int
        Groups with both phases that the latest round did not train on.

    Notes
    -----
    The released code samples the second phase together with the first phase of the next round, in
    one call, and samples nothing while enough groups wait. Here both phases belong to one round,
    and every round screens its problems.

    References
    ----------
    SPEED-RL (arXiv 2506.09016) and its released code: 4 + 12, 4 + 20 and 8 + 16 rollouts.
    """

    first: GroupSize = 4
    further: Count = 12
    groups: Count | None = None
    max_draws: Count = 3
    spread: PositiveOrZero = 0.0
    waiting: int = state_field(int)

    needs = frozenset({"resampling", "more_problems"})
    reads_verdict = False
    later = ("spread",)

    def sampled(self) -> PerProblem:
        """Those of both phases, for each problem that is kept."""
        return PerProblem(self.first + self.further, "about")

    def allocate(self, problems: Sequence[Problem], context: Context) -> Requests:
        """Requests of the first phase and one of the second; returns rows of mixed problems."""
        # The first phase: few rollouts for each problem, of further draws until enough are mixed.
        screen = DynamicSampling(self.first, max_draws=self.max_draws, spread=self.spread)
        wanted = 0 if self.groups is None else self.groups - self.waiting
        rollouts, ids, is_mixed = yield from screen.draws(problems, context, wanted)
        if self.groups is not None:
            is_mixed &= np.cumsum(is_mixed) <= wanted + self.groups
        return (yield from _sample_further(rollouts, ids, is_mixed, self.further))

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Count the groups that wait, where some do."""
        if self.groups is not None:
            self.waiting = _waiting(rollouts, self.first)


@dataclass
class _Within(DynamicSampling):
    """Dynamic sampling that keeps success rates from one bound to the other, bounds included."""

    def _is_mixed(self, ids: Sequence[str], rollouts: Rollouts) -> np.ndarray:
        correct, tries = tally(ids, rollouts)
        low, high = self.between
        # A bound such as .7 of 10 rollouts may miss 7 by a rounding error.
        inside = (correct >= low * tries - 1e-9) & (correct <= high * tries + 1e-9)
        return inside & (tries > 0)


@dataclass
class PilotCommit(Slot):
    """A cheap pilot of every problem, and the rest of a large group where its success rate fits.

    Attributes
    ----------
    pilots, commit : int
        Rollouts of the two phases; a group is both together.
    groups : int
        Groups wanted. Problems are drawn until there are so many together with those that wait in
        `replay.Surplus`, in at most `max_draws` draws of the round's size. Of the problems that
        fit, no more get a whole group than this round and the next can train on.
    between : (low, high)
        The success rates of the pilot that fit, the bounds included.
    max_draws : int
    waiting : int
        Groups with both phases that the latest round did not train on.

    Notes
    -----
    In the released code a problem waits with its pilot alone, and the rest of its group is sampled
    once it is taken, at random or by the largest deviation. Here both phases belong to one round,
    so whole groups wait, the oldest go first, and what fits beyond two rounds is thrown away after
    its pilot: that is our reading. Too few groups are an error there after 10 draws; here the round
    goes on with those that it has. At the end of an epoch nothing waits any more there; here groups
    go on waiting.

    References
    ----------
    Pilot-Commit (arXiv 2605.26606) and the scripts of its released code: 32 + 96 rollouts (1.5B) or
    16 + 48 (4B), success rates from .125 to .75, three problems drawn for each group of a round.
    """

    pilots: GroupSize = 16
    commit: Count = 48
    groups: Count = 16
    between: Interval = (0.125, 0.75)
    max_draws: Count = 10
    waiting: int = state_field(int)

    needs = frozenset({"resampling", "more_problems"})

    def sampled(self) -> PerProblem:
        """Those of both phases, for each problem that is kept."""
        return PerProblem(self.pilots + self.commit, "about")

    def allocate(self, problems: Sequence[Problem], context: Context) -> Requests:
        """Requests of pilots and one of the rest; returns the rows of problems that fit."""
        draws = _Within(self.pilots, max_draws=self.max_draws, between=self.between)
        wanted = self.groups - self.waiting
        rollouts, ids, fits = yield from draws.draws(problems, context, wanted)
        fits &= np.cumsum(fits) <= wanted + self.groups
        return (yield from _sample_further(rollouts, ids, fits, self.commit))

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Count the groups that wait."""
        self.waiting = _waiting(rollouts, self.pilots)


@dataclass(frozen=True)
class MostLearnable(Slot):
    """Samples more problems than the round trains on, and keeps those with the largest p (1 - p).

    Attributes
    ----------
    n : int
        Rollouts a problem.
    factor : int
        Problems sampled for each one kept.

    References
    ----------
    LILO (arXiv 2502.12272): factor 4, 8 rollouts. Confidence is medium, since notes on the paper
    were read. Ties, which come in pairs, go to the lower index.
    """

    n: GroupSize = 8
    factor: Count = 4

    needs = frozenset({"more_problems"})

    def sampled(self) -> PerProblem:
        """n of every problem that is kept."""
        return PerProblem(self.n)

    def allocate(self, problems: Sequence[Problem], context: Context) -> Requests:
        """A request for problems and one for rollouts; returns the rows of the kept problems."""
        wanted = len(problems)
        if self.factor > 1:
            problems = yield More((self.factor - 1) * wanted)
        ids = [problem.id for problem in problems]
        rollouts = yield np.full(len(ids), self.n, dtype=np.int64)
        correct, tries = tally(ids, rollouts)
        # Of whole numbers, so that the rates p and 1 - p have exactly the same score. A trainer may
        # leave out rollouts that nothing scored.
        scores = correct * (tries - correct) / np.maximum(tries, 1) ** 2
        # Where the pool had fewer problems to give than asked for, fewer of them are dropped.
        kept = np.argsort(-scores, kind="stable")[:wanted]
        return _rows_of(rollouts, ids, kept)


@dataclass(frozen=True)
class HitUtility(Slot):
    """A probe of every problem, then the split with the greatest expected number of problems
    solved.

    With c of the `probe` rollouts right, the success rate is believed to be Beta(1 + c, 1 + probe -
    c). The value of m further rollouts is the chance of at least one further correct one. The gain
    of each falls with their number, so giving the next rollout to the greatest gain is optimal;
    ties go to the problem with fewer rollouts, and then to the lower index.

    Attributes
    ----------
    n : int
        Rollouts a problem on average, the probe included.
    probe : int
    up : int
        Bound for one problem.

    References
    ----------
    HORA (arXiv 2605.07114). Confidence is medium: the gains follow from the definition of the
    utility, but no code was published, and probe size, bound and tie rule are our choices.
    """

    n: int = 8
    probe: GroupSize = 4
    up: int = 32

    needs = frozenset({"resampling"})

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("up", self.up, self.probe)
        whole_number("n", self.n, self.probe, self.up)

    def sampled(self) -> PerProblem:
        """n on average."""
        return PerProblem(self.n, "average")

    def allocate(self, problems: Sequence[Problem], context: Context) -> Requests:
        """A request for the probes, and one for the rest."""
        ids = [problem.id for problem in problems]
        rollouts = yield np.full(len(ids), self.probe, dtype=np.int64)
        correct, tries = tally(ids, rollouts)
        budget = (self.n - self.probe) * len(ids)
        # The uniform prior Beta(1, 1), updated by the outcomes of the probe.
        counts = budgets.by_hit_utility(
            1.0 + correct, 1.0 + tries - correct, budget, self.up - self.probe
        )
        if counts.any():
            yield counts


@dataclass
class LeastVariance(_ByRates):
    """The counts that minimise the summed variance of the problems' gradients.

    Attributes
    ----------
    n : int
        Rollouts a problem on average.
    low, up : int
        Bounds for one problem. Probes of fresh rates are a part of its rollouts, so there are never
        fewer than these.
    estimator : {"rloo", "dr_grpo"}
        The variance of a problem is in proportion to p (1 - p) / (n - 1) with "rloo", and to
        p (1 - p) (n - 1) / n^2 with "dr_grpo", where low is at least 3.
    rates : SuccessRates
        Where success rates come from.

    References
    ----------
    VIP (arXiv 2602.01601); bounds 4 and 32 and n = 8 from its released code. The paper predicts
    rates by a Gaussian process over embeddings of the prompts; the default here is the posterior
    mean over earlier rollouts.
    """

    n: int = 8
    low: int = 4
    up: int = 32
    estimator: Annotated[str, choice("rloo", "dr_grpo")] = "rloo"
    rates: SuccessRates = field(default_factory=lambda: SuccessRates("beta"))

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("low", self.low, 2 if self.estimator == "rloo" else 3)
        instance_of("rates", self.rates, SuccessRates, "SuccessRates('beta')")
        whole_number("up", self.up, self._least)
        whole_number("n", self.n, self._least, self.up)

    def _counts(self, rates: np.ndarray, total: int) -> np.ndarray:
        # At 1/2 outcomes vary most, so an unknown problem is tried often.
        p = np.where(np.isnan(rates), 0.5, rates)
        return budgets.by_variance(p, total, low=self._least, up=self.up, estimator=self.estimator)


@dataclass
class BySignal(Slot):
    """Counts in proportion to signal / sqrt(length), within a budget of tokens.

    A round may cost `budget` times the tokens of n rollouts of every problem, as far as lengths are
    known beforehand. Problems whose gradients lie far apart and whose rollouts are short get most.

    Attributes
    ----------
    n : int
        Rollouts of a problem at the full budget.
    budget : float
    low, up : int
        Bounds for one problem. In the published setting a problem may get a single rollout, which
        has no advantage. A problem whose group was all alike has hardly a signal, and keeps it as
        long as it gets one rollout; with low=2 it is tried again.
    signals : success_rates.Signals

    References
    ----------
    DUET (arXiv 2605.08441) and its released code. A new problem has the signal 1, since the
    published fit for such problems was not released. A bound on each problem's length, which that
    code computes and never uses, is left out.
    """

    n: GroupSize = 8
    budget: Annotated[float, partial(number, above=0)] = 0.5
    low: Count = 1
    up: int = 32
    signals: OfSignals = field(default_factory=Signals)

    reads_verdict = False

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("up", self.up, self.low)

    @property
    def delegate(self) -> Slot:
        """Its signals: they learn and are stored."""
        return self.signals

    def sampled(self) -> PerProblem:
        """Its part of the budget, more or less."""
        return PerProblem(max(self.low, round(self.budget * self.n)), "about")

    def counts(self, ids: Sequence[str], limit: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Rollouts of the problems of a round, before and after the last ones are taken away.

        See `budgets.by_signal`.
        """
        signal, length = self.signals.of(ids, limit)
        target = self.budget * self.n * length.sum()
        return budgets.by_signal(signal, length, target, self.low, self.up)

    def allocate(self, problems: Sequence[Problem], context: Context) -> Requests:
        """One request, within the budget of tokens."""
        yield self.counts([problem.id for problem in problems], context.max_new_tokens)[1]
