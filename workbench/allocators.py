"""How many rollouts for which problem.

An allocator is a frozen configuration with a generator method:

    def allocate(self, problems, context):
        rollouts = yield counts        # (P,) int64: sample so many more of each problem; sent all rollouts so far
        problems = yield More(n)       # draw n more problems; sent the list of all problems of the round
        return keep                    # optional (K,) rows that go on to the selector; None: all

`problems` is the list of the round's problems, `rollouts` a scored `Rollouts` with the rows in the order they were
sampled, `context` the round's `Context`. New problems are appended to the list; it comes back as it was when there are
none left to draw. `keep` may be empty: the round then trains on nothing.

One that learns from the round also has `feedback(rollouts, context)`, called with all rollouts that it asked for, kept
or not, `state_dict()` and `load_state_dict(state)`; one that measures something has `metrics()`, name to float, read
after the feedback. What it has learned is its own: two runs need two objects.

All decisions read `rollouts.correct`, never the reward. The arithmetic behind them is in `budgets.py`, the beliefs
about problems in `success_rates.py`; both are part of this room's public face.
"""

from dataclasses import dataclass, field
from typing import Any

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
    whole,
)
from workbench.success_rates import SuccessRates, tally

__all__ = [
    "DynamicSampling", "Knapsack", "More", "Rescue", "Staged", "SuccessRates", "Uniform", "balance",
    "expected_rollouts", "info_gain", "jobs", "knapsack", "nonzero_gradient_probability", "required_rollouts", "value",
]  # fmt: skip


@dataclass(frozen=True)
class More:
    """A request for n more problems in this round."""

    n: int

    def __post_init__(self):
        if self.n < 1:
            raise ValueError(f"n={self.n}: a positive number of problems is needed")


@dataclass(frozen=True)
class Uniform:
    """n rollouts for every problem (GRPO)."""

    n: int = 8

    def __post_init__(self):
        _group_size("n", self.n)

    def allocate(self, problems, context):
        """One request: the same count for every problem."""
        yield _each(_ids(problems), self.n)


@dataclass(frozen=True)
class Knapsack:
    """The greatest summed value of a round's rollouts under one total (Knapsack RL, eq. 5-6); see `knapsack`.

    n: rollouts a problem on average; total: rollouts a round instead. low, up: bounds for one problem (2 and 128,
    appendix G.4). fallback: surplus to never solved problems (appendix C). rates: where success rates come from; a
    problem without an estimate gets the uniform budget, so the first epoch is uniform.
    """

    n: int = 8
    total: int | None = None
    low: int = 2
    up: int = 128
    info_gain: bool = True
    fallback: bool = True
    estimator: str = "grpo"
    rates: SuccessRates = field(default_factory=SuccessRates)

    def __post_init__(self):
        whole("low", self.low, 0)
        if not isinstance(self.rates, SuccessRates):
            raise ValueError(
                f"rates={self.rates!r}: a SuccessRates is needed, such as SuccessRates('last')"
            )
        check_budget(1, self.up, self._least, self.up, self.estimator)
        whole("n", self.n, 1)
        if self.total is not None:
            whole("total", self.total, 1)
        elif not self._least <= self.n <= self.up:
            raise ValueError(
                f"n={self.n}: an average of {self._least} (low, or the probes) to up={self.up} is needed"
            )

    @property
    def _least(self):
        return max(self.low, self.rates.spent)

    def allocate(self, problems, context):
        """One request; before it, with fresh rates, one for the probes, which are part of the total."""
        ids = _ids(problems)
        total = self.n * len(ids) if self.total is None else self.total
        check_budget(len(ids), total, self._least, self.up, self.estimator)
        rates = yield from self.rates.estimates(problems, context)
        counts = knapsack(rates, total, low=self._least, up=self.up, info_gain=self.info_gain, fallback=self.fallback,
                          estimator=self.estimator)  # fmt: skip
        if (counts > self.rates.spent).any():
            yield counts - self.rates.spent

    def feedback(self, rollouts, context):
        """The rates learn from the round."""
        self.rates.observe(rollouts, context)

    def metrics(self):
        """Error of the rates, see `SuccessRates.metrics`."""
        return self.rates.metrics()

    def state_dict(self):
        """What the rates remember."""
        return self.rates.state_dict()

    def load_state_dict(self, state):
        """Sets what the rates remember."""
        self.rates.load_state_dict(state)


@dataclass(frozen=True)
class Staged:
    """Up to `stages` requests of k rollouts; only problems with no correct response yet go on (AR3PO, section 3.1)."""

    stages: int = 2
    k: int = 4

    def __post_init__(self):
        whole("stages", self.stages, 1)
        _group_size("k", self.k)

    def allocate(self, problems, context):
        """One request a stage, until every problem has a correct response."""
        ids = _ids(problems)
        counts = _each(ids, self.k)
        for _ in range(self.stages):
            if not counts.any():
                return
            correct, _ = tally(ids, (yield counts))
            counts = np.where(correct == 0, self.k, 0)


@dataclass(frozen=True)
class Rescue:
    """Explores every problem, then spends the rest of the batch's budget on the failed ones (AERO, algorithm 1).

    Stage I: `explore` rollouts each. Stage II: problems with at most `threshold` correct get `extra` more at a time,
    each until its first correct rollout of this stage, at most `n_max` rollouts in all and `k_max` times, while
    (total - explore) P rollouts last; when they do not last for all, earlier problems of the round are served first.
    The paper's text has extra=2 and k_max=10 (appendix C), its code extra=4 and k_max=3.
    """

    explore: int = 8
    total: int = 16
    threshold: int = 0
    n_max: int = 32
    k_max: int = 10
    extra: int = 2

    def __post_init__(self):
        _group_size("explore", self.explore)
        whole("total", self.total, self.explore)
        whole("n_max", self.n_max, self.explore)
        whole("k_max", self.k_max, 0)
        whole("extra", self.extra, 1)
        whole("threshold", self.threshold, 0)
        if 2 * self.threshold > self.explore:
            raise ValueError(
                f"threshold={self.threshold}: at most half of explore={self.explore} is allowed"
            )

    def allocate(self, problems, context):
        """One request for stage I, then one for each iteration of stage II that still has somebody to rescue."""
        ids = _ids(problems)
        correct, tries = tally(ids, (yield _each(ids, self.explore)))
        failed, before, budget = (
            correct <= self.threshold,
            correct,
            (self.total - self.explore) * len(ids),
        )
        for _ in range(self.k_max):
            asked = np.where(
                failed & (correct == before), np.minimum(self.extra, self.n_max - tries), 0
            )
            counts = serve_in_order(asked, budget)
            if not counts.any():
                return
            correct, tries = tally(ids, (yield counts))
            budget -= counts.sum()


@dataclass(frozen=True)
class DynamicSampling:
    """n rollouts a problem, and more problems until enough groups are mixed (DAPO).

    A group is mixed when it holds both a correct and a wrong rollout. groups: how many are wanted; None: as many as
    the round started with problems. The first `groups` mixed ones are kept, everything else is thrown away.
    max_draws: draws of problems in all, each as large as the first, which counts. At that bound, or when no problems
    are left, the round goes on with the mixed groups it has, fewer than wanted and perhaps none: if every problem is
    always solved, a round ends after max_draws draws with nothing to train on.

    within: another allocator, which counts the rollouts of each draw as if the draw were a round of its own; n is then
    unused. `DynamicSampling(within=Knapsack())` is dynamic sampling with Knapsack RL (its appendix G.5). It learns from
    all draws; what it measures is of the last.
    """

    n: int = 8
    groups: int | None = None
    max_draws: int = 3
    within: Any = None

    def __post_init__(self):
        _group_size("n", self.n)
        whole("max_draws", self.max_draws, 1)
        if self.groups is not None:
            whole("groups", self.groups, 1)
        if isinstance(self.within, DynamicSampling) or not hasattr(
            self.within or Uniform(), "allocate"
        ):
            raise ValueError(
                f"within={self.within!r}: an allocator that draws no problems is needed, such as Knapsack()"
            )

    def allocate(self, problems, context):
        """A draw's requests for counts, and one for problems between draws; returns the rows of the kept groups."""
        ids = _ids(problems)
        size, drawn = len(ids), 0
        wanted = size if self.groups is None else self.groups
        for draw in range(self.max_draws):
            rollouts, drawn = (yield from self._draw(problems, drawn, context)), len(ids)
            correct, tries = tally(ids, rollouts)
            mixed = np.flatnonzero((correct > 0) & (correct < tries))[:wanted]
            if len(mixed) == wanted or draw + 1 == self.max_draws:
                break
            problems = yield More(size)
            ids = _ids(problems)
            if len(ids) == drawn:
                break
        return np.flatnonzero(np.isin(rollouts.problem, [ids[i] for i in mixed]))

    def _draw(self, problems, drawn, context):
        """The requests for the problems from `drawn` on; returns all rollouts of the round."""
        counter = Uniform(self.n) if self.within is None else self.within
        plan, rollouts = counter.allocate(problems[drawn:], context), None
        while True:
            try:
                counts = plan.send(rollouts)
            except StopIteration:
                return rollouts
            if isinstance(counts, More):
                raise ValueError(
                    f"within={self.within!r}: it draws problems itself; dynamic sampling does that"
                )
            rollouts = yield np.concatenate([np.zeros(drawn, dtype=np.int64), counts])

    def feedback(self, rollouts, context):
        """The allocator within learns from the round, where it learns."""
        if hasattr(self.within, "feedback"):
            self.within.feedback(rollouts, context)

    def metrics(self):
        """What the allocator within measures."""
        return self.within.metrics() if hasattr(self.within, "metrics") else {}

    def state_dict(self):
        """What the allocator within has learnt; empty without one."""
        return self.within.state_dict() if hasattr(self.within, "state_dict") else {}

    def load_state_dict(self, state):
        """Sets what the allocator within has learnt."""
        if state:
            self.within.load_state_dict(state)


def _ids(problems):
    """The ids of a round's problems; ValueError for none, or for one that occurs twice."""
    ids = [problem.id for problem in problems]
    if not ids:
        raise ValueError("problems=[]: a round needs at least one problem")
    if len(set(ids)) < len(ids):
        seen = set()
        twice = next(key for key in ids if key in seen or seen.add(key))
        raise ValueError(f"problems: id {twice!r} occurs twice in one round; ids must be unique")
    return ids


def _each(ids, n):
    return np.full(len(ids), n, dtype=np.int64)


def _group_size(name, n):
    whole(name, n, 1)
    if n == 1:
        raise ValueError(
            f"{name}={n!r}: a group needs at least 2 rollouts, one alone has no advantage"
        )
