"""How many rollouts for which problem.

An allocator is a slot value with a generator method, `allocate`, that asks for rollouts and sees
what came of them; see `workbench.slots.Allocator`. All decisions read `rollouts.correct`, the
verifier's verdict, never the reward.

The arithmetic behind the decisions is in `workbench.budgets`, and the beliefs about problems are in
`workbench.success_rates`; both can be reached from here as well.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.budgets import (
    balance,
    check_budget,
    expected_rollouts,
    info_gain,
    jobs,
    knapsack,
    nonzero_gradient_probability,
    required_rollouts,
    serve_in_order,
    value,
)
from workbench.slots import More, Slot
from workbench.success_rates import SuccessRates, tally
from workbench.utils.validation import instance_of, whole_number

if TYPE_CHECKING:
    from workbench.problems import Problem
    from workbench.rollouts import Context, Rollouts

__all__ = [
    "DynamicSampling",
    "Knapsack",
    "More",
    "Rescue",
    "Staged",
    "SuccessRates",
    "Uniform",
    "balance",
    "expected_rollouts",
    "info_gain",
    "jobs",
    "knapsack",
    "nonzero_gradient_probability",
    "required_rollouts",
    "value",
]

Requests = Generator[Any, Any, Any]  # what `allocate` returns, see `slots.Allocator`


@dataclass(frozen=True)
class Uniform(Slot):
    """n rollouts for every problem (GRPO)."""

    n: int = 8

    def __post_init__(self) -> None:
        _group_size("n", self.n)

    def allocate(self, problems: Sequence[Problem], context: Context) -> Requests:
        """One request: the same count for every problem."""
        yield np.full(len(problems), self.n, dtype=np.int64)


@dataclass
class Knapsack(Slot):
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

    n: int = 8
    total: int | None = None
    low: int = 2
    up: int = 128
    info_gain: bool = True
    fallback: bool = True
    estimator: str = "grpo"
    rates: SuccessRates = field(default_factory=SuccessRates)

    def __post_init__(self) -> None:
        whole_number("low", self.low, 0)
        instance_of("rates", self.rates, SuccessRates, "SuccessRates('last')")
        check_budget(1, self.up, self._least, self.up, self.estimator)
        whole_number("n", self.n, 1)
        if self.total is not None:
            whole_number("total", self.total, 1)
        elif not self._least <= self.n <= self.up:
            raise ValueError(
                f"n={self.n}: an average from {self._least} (low, or the probes) to {self.up} (up) "
                "is needed"
            )

    @property
    def needs(self) -> set[str]:  # type: ignore[override]
        """What its success rates need."""
        return set(self.rates.needs)

    @property
    def _least(self) -> int:
        """Rollouts that every problem gets."""
        return max(self.low, self.rates.spent)

    def allocate(self, problems: Sequence[Problem], context: Context) -> Requests:
        """One request; with fresh rates there is one for the probes before it, which count towards
        the total.
        """
        total = self.n * len(problems) if self.total is None else self.total
        check_budget(len(problems), total, self._least, self.up, self.estimator)
        rates = yield from self.rates.estimates(problems, context)
        counts = knapsack(
            rates,
            total,
            low=self._least,
            up=self.up,
            info_gain=self.info_gain,
            fallback=self.fallback,
            estimator=self.estimator,
        )
        further = counts - self.rates.spent
        if further.any():
            yield further

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The success rates learn from the round."""
        self.rates.observe(rollouts, context)

    def metrics(self) -> dict[str, float]:
        """Error of the success rates, see `SuccessRates.metrics`."""
        return self.rates.metrics()

    def state_dict(self) -> dict[str, Any]:
        """What the success rates remember."""
        return self.rates.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what the success rates remember."""
        self.rates.load_state_dict(state)


@dataclass(frozen=True)
class Staged(Slot):
    """Up to `stages` requests of k rollouts each; only problems without a correct response yet go
    on.

    References
    ----------
    AR3PO (arXiv 2509.25808), section 3.1.
    """

    stages: int = 2
    k: int = 4

    needs = frozenset({"resampling"})

    def __post_init__(self) -> None:
        whole_number("stages", self.stages, 1)
        _group_size("k", self.k)

    def allocate(self, problems: Sequence[Problem], context: Context) -> Requests:
        """One request a stage, until every problem has a correct response."""
        ids = [problem.id for problem in problems]
        counts = np.full(len(ids), self.k, dtype=np.int64)
        for _ in range(self.stages):
            if not counts.any():
                return
            rollouts = yield counts
            correct, _ = tally(ids, rollouts)
            counts = np.where(correct == 0, self.k, 0)


@dataclass(frozen=True)
class Rescue(Slot):
    """Explores every problem, then spends the rest of the batch's budget on the problems that
    failed.

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

    explore: int = 8
    total: int = 16
    threshold: int = 0
    n_max: int = 32
    k_max: int = 10
    extra: int = 2

    needs = frozenset({"resampling"})

    def __post_init__(self) -> None:
        _group_size("explore", self.explore)
        whole_number("total", self.total, self.explore)
        whole_number("n_max", self.n_max, self.explore)
        whole_number("k_max", self.k_max, 0)
        whole_number("extra", self.extra, 1)
        whole_number("threshold", self.threshold, 0)
        if 2 * self.threshold > self.explore:
            raise ValueError(
                f"threshold={self.threshold}: at most half of explore={self.explore} is allowed"
            )

    def allocate(self, problems: Sequence[Problem], context: Context) -> Requests:
        """One request for stage I, then one for each iteration of stage II with a problem left to
        rescue.
        """
        ids = [problem.id for problem in problems]
        rollouts = yield np.full(len(ids), self.explore, dtype=np.int64)
        correct, tries = tally(ids, rollouts)
        explored = correct
        failed = explored <= self.threshold
        budget = (self.total - self.explore) * len(ids)
        for _ in range(self.k_max):
            still_failed = failed & (correct == explored)
            wanted = np.where(still_failed, np.minimum(self.extra, self.n_max - tries), 0)
            counts = serve_in_order(wanted, budget)
            if not counts.any():
                return
            rollouts = yield counts
            correct, tries = tally(ids, rollouts)
            budget -= counts.sum()


@dataclass
class DynamicSampling(Slot):
    """n rollouts a problem, and more problems until enough groups are mixed.

    A group is mixed when it holds both a correct and a wrong rollout. The first `groups` mixed ones
    are kept, and all other rollouts are thrown away. If every problem is always solved, a round
    ends after `max_draws` draws with nothing to train on.

    Attributes
    ----------
    n : int
        Rollouts a problem.
    groups : int, optional
        Mixed groups wanted; None for as many as the round started with problems.
    max_draws : int
        Draws of problems in all, each as large as the first one, which counts. At that bound, or
        when no problems are left, the round goes on with the mixed groups that it has.
    within : allocator, optional
        Counts the rollouts of each draw, as if the draw were a round of its own, in place of n.
        `DynamicSampling(within=Knapsack())` is dynamic sampling with Knapsack RL. It learns from
        all draws; what it measures is that of the last draw.

    References
    ----------
    DAPO (arXiv 2503.14476), section 3.2. With Knapsack RL: arXiv 2509.25849, appendix G.5.
    """

    n: int = 8
    groups: int | None = None
    max_draws: int = 3
    within: Any = None

    def __post_init__(self) -> None:
        _group_size("n", self.n)
        whole_number("max_draws", self.max_draws, 1)
        if self.groups is not None:
            whole_number("groups", self.groups, 1)
        if self.within is not None:
            instance_of("within", self.within, Slot, "Knapsack()")
        if isinstance(self.within, DynamicSampling):
            raise ValueError(
                "within=DynamicSampling(...): an allocator that draws no problems is needed, such "
                "as Knapsack()"
            )

    @property
    def needs(self) -> set[str]:  # type: ignore[override]
        """Further problems, and what the allocator within needs."""
        return {"more_problems", "resampling", *(self.within.needs if self.within else ())}

    def allocate(self, problems: Sequence[Problem], context: Context) -> Requests:
        """A draw's requests for counts, and one for problems between draws; returns the rows of the
        kept groups.
        """
        size = len(problems)
        wanted = size if self.groups is None else self.groups
        drawn = 0
        for draw in range(self.max_draws):
            rollouts = yield from self._sample_draw(problems, drawn, context)
            drawn = len(problems)
            ids = [problem.id for problem in problems]
            correct, tries = tally(ids, rollouts)
            mixed = np.flatnonzero((correct > 0) & (correct < tries))[:wanted]
            if len(mixed) == wanted or draw + 1 == self.max_draws:
                break
            problems = yield More(size)
            if len(problems) == drawn:
                break
        return np.flatnonzero(np.isin(rollouts.problem, [ids[i] for i in mixed]))

    def _sample_draw(self, problems: Sequence[Problem], drawn: int, context: Context) -> Requests:
        """The requests for the problems from `drawn` on; returns all rollouts of the round."""
        counter = Uniform(self.n) if self.within is None else self.within
        requests = counter.allocate(problems[drawn:], context)
        rollouts = None
        while True:
            try:
                counts = requests.send(rollouts)
            except StopIteration:
                return rollouts
            if isinstance(counts, More):
                raise ValueError(
                    f"within={self.within!r}: it draws problems itself, which dynamic sampling "
                    "does already"
                )
            none_for_earlier_draws = np.zeros(drawn, dtype=np.int64)
            rollouts = yield np.concatenate([none_for_earlier_draws, counts])

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The allocator within learns from the round."""
        if self.within is not None:
            self.within.feedback(rollouts, context)

    def metrics(self) -> dict[str, float]:
        """What the allocator within measures."""
        return {} if self.within is None else self.within.metrics()

    def state_dict(self) -> dict[str, Any]:
        """What the allocator within has learnt."""
        return {} if self.within is None else self.within.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what the allocator within has learnt."""
        if self.within is not None:
            self.within.load_state_dict(state)


def _group_size(name: str, n: Any) -> None:
    whole_number(name, n, 1)
    if n == 1:
        raise ValueError(
            f"{name}={n!r}: a group needs at least 2 rollouts, since one alone has no advantage"
        )
