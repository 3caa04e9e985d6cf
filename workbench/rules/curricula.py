"""Which problems come next.

The default, `ShuffledEpochs`, passes over the pool in a new order each time, as every trainer does.
The others choose by what earlier rounds have shown of a problem: `Mopps`, `Mapp` and `Cures` draw
problems that are likely to give both outcomes, and `Dps` takes the likeliest ones. `Greso` skips
problems that have given only one, `WithoutSolved` drops those that are solved, and `AdaRft` follows
the mean reward up a scale of difficulties. All of them need a finite pool.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np

from workbench.pools import PoolExhausted
from workbench.rules.success_rates import RemembersPosteriors, outcomes, outcomes_of_round
from workbench.slots import Context, Pool, Problem, Problems, Rollouts, Slot, Stream, state_field
from workbench.utils.bounds import ShareAboveZero, choice
from workbench.utils.groups import floored
from workbench.utils.names import STOPPED, of_catalogue


@dataclass
class ShuffledEpochs(Slot):
    """Every problem once an epoch, each epoch in an order of its own; a stream in its own order.

    The order depends on the seed of the run alone, so runs of different methods meet the same
    problems. A round never spans two epochs: what an epoch has left beyond its last whole round is
    skipped.

    Attributes
    ----------
    cursor : int
        Position behind the last problem drawn, counted over all epochs.
    epoch : int
        The epoch of the problems drawn last, from 0.
    """

    cursor: int = state_field(int)
    epoch: int = state_field(int)

    reads_verdict = False
    in_order = True

    def choose(self, pool: Pool | Stream, n: int, context: Context) -> Problems:
        """The next n problems; fewer where a pool has fewer that are not in the round."""
        if context.taken and isinstance(pool, Pool):
            # In the middle of a round a short list says that there are no more. At its start the
            # pool is too small for the run, which is an error.
            n = min(n, sum(problem.id not in context.taken for problem in pool))
            if n == 0:
                return []
        problems, self.cursor = pool.draw(n, self.cursor, context.seed, context.taken)
        # The cursor is behind the last of them, which may be the end of their epoch.
        self.epoch = pool.epoch(self.cursor - 1)
        return problems


@dataclass
class OverEpochs(Slot):
    """Base of curricula that remember problems by id, and pass over a finite pool in epochs."""

    needs = frozenset({"problem_choice"})

    order: ShuffledEpochs = state_field(ShuffledEpochs)

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The pass over the pool in which the latest round begins, from 0."""
        return self.order.epoch


@dataclass
class Recycled(OverEpochs):
    """Problems of earlier rounds that are tried again come first, and fresh ones after them.

    Attributes
    ----------
    rule : {"skewed", "stopped"}
        "skewed": problems whose success rate was below `low` or above `high`, but neither 0 nor 1,
        as for `courses.PrefixSampling`; one that was tried again is not recycled once more.
        "stopped": problems with a rollout that a course has stopped, as for `courses.Partial`.
    low, high : float
        Bounds of the success rate.
    share : float
        Share of a round that recycled problems may take.
    waiting : list of ids
    """

    rule: Annotated[str, choice("skewed", "stopped")] = "skewed"
    low: ShareAboveZero = 0.3
    high: ShareAboveZero = 0.7
    share: ShareAboveZero = 1.0
    waiting: list[str] = state_field(list)
    # Those of them that are in this round.
    served: list[str] = state_field(list)

    @property
    def reads_verdict(self) -> bool:  # type: ignore[override]
        """Where success rates decide."""
        return self.rule == "skewed"

    def choose(self, pool: Pool | Stream, n: int, context: Context) -> Problems:
        """The waiting problems, and fresh ones for the rest of the round."""
        pool = finite(pool, self)
        first: list[Problem] = []
        if not context.taken:
            self.served = self.waiting[: floored(self.share * n)]
            wanted = set(self.served)
            first = [problem for problem in pool if problem.id in wanted]
        if len(first) == n:
            return first
        taken = context.taken | {problem.id for problem in first}
        return [*first, *self.order.choose(pool, n - len(first), replace(context, taken=taken))]

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Which of the round's problems wait."""
        fresh = rollouts.take(rollouts.round == context.round)
        if self.rule == "stopped":
            stopped = np.unique(fresh.problem[fresh.status == STOPPED]).tolist()
            # Those that found no place in this round go on waiting, before the new ones.
            present = set(fresh.problem.tolist())
            self.waiting = [name for name in self.waiting if name not in present] + stopped
            return
        ids, right, sizes = outcomes(fresh)
        rates = right / sizes
        skewed = ((rates > 0) & (rates < self.low)) | ((rates > self.high) & (rates < 1))
        tried_again = set(self.served)
        self.waiting = [
            name for name, is_so in zip(ids, skewed) if is_so and name not in tried_again
        ]


class OverPool(Slot):
    """Base of curricula that compare all problems of a finite pool that are not in the round."""

    needs = frozenset({"problem_choice"})

    def choose(self, pool: Pool | Stream, n: int, context: Context) -> Problems:
        """The n best problems; all that are left where the pool has fewer in mid-round."""
        pool = finite(pool, self)
        candidates = self._candidates(pool, n, context)
        if len(candidates) < n:
            if context.taken:
                return candidates
            raise PoolExhausted(f"n={n}: the pool has {len(pool)} problems")
        return [candidates[i] for i in self._places(candidates, n, pool, context)]

    def _candidates(self, pool: Pool, n: int, context: Context) -> Problems:
        """The problems to choose from."""
        return [problem for problem in pool if problem.id not in context.taken]

    def _places(self, problems: Problems, n: int, pool: Pool, context: Context) -> np.ndarray:
        """The places of the n best of some problems, (n,) int64."""
        raise NotImplementedError


@dataclass
class ByPosteriors(RemembersPosteriors, OverPool, OverEpochs):
    """Base of curricula that choose by a posterior of each problem.

    With a `factor` they choose among so many candidates for each problem of a round, the next of
    the shuffled epochs, and otherwise among the whole pool.
    """

    factor = 0

    def _candidates(self, pool: Pool, n: int, context: Context) -> Problems:
        """The next factor * n problems of the shuffled epochs, or all where the pool has fewer."""
        if not self.factor:
            return super()._candidates(pool, n, context)
        # At least n are asked for, so that a pool without n left ends as it does for plain epochs.
        return self.order.choose(pool, max(n, min(self.factor * n, len(pool))), context)


@dataclass
class WithoutSolved(OverEpochs):
    """Shuffled epochs that a problem leaves once its rollouts in a round are all right.

    Attributes
    ----------
    solved : float
        The success rate in a round from which a problem leaves.

    References
    ----------
    Pilot-Commit (arXiv 2605.26606) and its released code: 1, in the scripts. That all problems come
    back once fewer are left than a round takes is our reading.
    """

    solved: ShareAboveZero = 1.0
    left: set[str] = state_field(set)

    def choose(self, pool: Pool | Stream, n: int, context: Context) -> Problems:
        """The next n problems that have not left."""
        pool = finite(pool, self)
        if not context.taken and len(pool) - len(self.left) < n:
            self.left.clear()
        return self.order.choose(pool, n, replace(context, taken=context.taken | self.left))

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Problems that are solved leave."""
        ids, correct, tries = outcomes_of_round(rollouts, context.round)
        self.left.update(np.array(ids, dtype=str)[correct / tries >= self.solved].tolist())

    def metrics(self) -> dict[str, float]:
        """Problems that have left."""
        return {"problems_left_out": len(self.left)}


def finite(pool: Pool | Stream, curriculum: Slot) -> Pool:
    """The pool itself; ValueError for an endless stream, which has nothing to choose from."""
    if isinstance(pool, Pool):
        return pool
    raise ValueError(
        f"problems: {type(curriculum).__name__} chooses among the problems of a finite pool, and "
        "this lab draws fresh ones without end; give it a pool, such as labs.tiny(pool=512)"
    )


def rng_of(context: Context) -> np.random.Generator:
    """The generator of a choice of problems."""
    # The number of problems taken tells a second draw of the same round from the first.
    return context.rng("curriculum", len(context.taken))


def draw_by_weight(weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """n places without replacement, ascending, each next one in proportion to its weight.

    Taking the n greatest of log(weight) plus Gumbel noise draws exactly so.
    """
    # The floor lets problems of weight 0 be drawn, but only when no others are left.
    keys = np.log(np.maximum(weights, 1e-300)) + rng.gumbel(size=len(weights))
    return np.sort(np.argpartition(-keys, n - 1)[:n])


__getattr__ = partial(of_catalogue, __name__)
