"""Which problems come next.

The default, `ShuffledEpochs`, passes over the pool in a new order each time, as every trainer does.
The others choose by what earlier rounds have shown of a problem: `Mopps`, `Mapp` and `Cures` draw
problems that are likely to give both outcomes, and `Dps` takes the likeliest ones. `Greso` skips
problems that have given only one, `WithoutSolved` drops those that are solved, and `AdaRft` follows
the mean reward up a scale of difficulties. All of them need a finite pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np

from workbench.pools import Pool, PoolExhausted, Problem, Stream
from workbench.rollouts import Context, Rollouts
from workbench.rules.success_rates import Posteriors, outcomes, outcomes_of_round
from workbench.slots import Slot, state_field
from workbench.utils.bounds import (
    Count,
    Interval,
    Positive,
    Share,
    ShareAboveZero,
    at_least,
    choice,
)
from workbench.utils.names import STOPPED
from workbench.utils.validation import instance_of, number


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

    def choose(self, pool: Pool | Stream, n: int, context: Context) -> Sequence[Problem]:
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
class _OverEpochs(Slot):
    """Base of curricula that remember problems by id, and pass over a finite pool in epochs."""

    needs = frozenset({"problem_choice"})

    order: ShuffledEpochs = state_field(ShuffledEpochs)

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The pass over the pool in which the latest round begins, from 0."""
        return self.order.epoch


@dataclass
class Recycled(_OverEpochs):
    """Problems of earlier rounds that are tried again come first, and fresh ones after them.

    Attributes
    ----------
    rule : {"skewed", "stopped"}
        "skewed": problems whose success rate was below `low` or above `high`, but neither 0 nor 1,
        as for `courses.PrefixSampling`; one that was tried again is not recycled once more.
        "stopped": problems with a rollout that a course has stopped, as for `courses.Partial`.
    low, high : float
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

    def choose(self, pool: Pool | Stream, n: int, context: Context) -> Sequence[Problem]:
        """The waiting problems, and fresh ones for the rest of the round."""
        pool = finite(pool, self)
        first: list[Problem] = []
        if not context.taken:
            self.served = self.waiting[: int(self.share * n)]
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


@dataclass
class _ByPosteriors(_OverEpochs):
    """Base of curricula that choose by a posterior of each problem."""

    posteriors: Posteriors = state_field(Posteriors)

    def __post_init__(self) -> None:
        super().__post_init__()
        # Of these two arguments a curriculum has one.
        options = {name: vars(self)[name] for name in ("decay", "restart") if name in vars(self)}
        self.posteriors = Posteriors(**options)

    def _candidates(
        self, pool: Pool | Stream, n: int, factor: int, context: Context
    ) -> Sequence[Problem]:
        """The next factor * n problems of the shuffled epochs, or all where the pool has fewer."""
        # At least n are asked for, so that a pool without n left ends as it does for plain epochs.
        return self.order.choose(pool, max(n, min(factor * n, len(finite(pool, self)))), context)

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The posteriors of the problems in the round are updated."""
        self.posteriors.feedback(rollouts, context)


@dataclass
class Mopps(_ByPosteriors):
    """Draws a success rate for each candidate from its posterior, and keeps those nearest to a
    target.

    Attributes
    ----------
    factor : int
        Candidates for each problem of a round.
    target : float
        The success rate that is wanted.
    interval : (low, high), optional
        Choose uniformly among the candidates whose drawn rate lies in it, and fill up with those
        nearest to it, in place of the nearest to `target`.
    decay : float
        Factor on what was believed before, at each visit; it decays towards the prior Beta(1, 1).

    References
    ----------
    MoPPS (arXiv 2507.04632); factor 16 on MATH and 8 on Countdown, target .5, interval .3 to .7,
    decay 1 on MATH and .5 on Countdown (released configuration).
    """

    factor: Count = 16
    target: Share = 0.5
    interval: Interval | None = None
    decay: float = 1.0

    def choose(self, pool: Pool | Stream, n: int, context: Context) -> Sequence[Problem]:
        """The n candidates whose drawn success rates suit best."""
        candidates = self._candidates(pool, n, self.factor, context)
        if not candidates:
            return []
        # The number of problems taken tells a second draw of the same round from the first.
        rng = context.rng("curriculum", len(context.taken))
        belief = self.posteriors.of([problem.id for problem in candidates])
        drawn = rng.beta(belief[:, 0], belief[:, 1])
        if self.interval is None:
            order = np.argsort((drawn - self.target) ** 2, kind="stable")
        else:
            low, high = self.interval
            distance = np.maximum(np.maximum(low - drawn, drawn - high), 0.0)
            # Inside the interval all are at distance 0, and the draw decides between them.
            order = np.lexsort((rng.random(len(drawn)), distance))
        # In the order of the epoch, whatever rates were drawn.
        return [candidates[i] for i in np.sort(order[:n])]


@dataclass
class Mapp(_ByPosteriors):
    """Draws problems in proportion to the predicted chance that their group will be mixed.

    The prediction is that of a Beta-binomial: with a, b the posterior of a problem and n rollouts,
    1 - B(a + n, b) / B(a, b) - B(a, b + n) / B(a, b).

    Attributes
    ----------
    rollouts : int
        Rollouts of a group (n above).
    factor : int
        Candidates for each problem of a round.
    decay : float
        Factor on what was believed before, at each visit; it decays towards the prior Beta(1, 1).

    References
    ----------
    MaPP (arXiv 2609.34990), the problem part; factor 8, decay .5.
    """

    rollouts: Annotated[int, at_least(2)] = 8
    factor: Count = 8
    decay: float = 0.5

    def choose(self, pool: Pool | Stream, n: int, context: Context) -> Sequence[Problem]:
        """n candidates, drawn without replacement in proportion to their scores."""
        candidates = self._candidates(pool, n, self.factor, context)
        if not candidates:
            return []
        belief = self.posteriors.of([problem.id for problem in candidates])
        scores = mixed_group_probability(belief[:, 0], belief[:, 1], self.rollouts)
        rng = context.rng("curriculum", len(context.taken))
        # In the middle of a round the pool may have fewer problems left than are asked for.
        return _drawn_by_weight(candidates, scores, min(n, len(candidates)), rng)


@dataclass
class Cures(_ByPosteriors):
    """Draws problems with weights that grow with the deviation of their outcomes.

    Attributes
    ----------
    temperature : float
        tau in the weight exp(sqrt(p (1 - p)) / tau), where p is the posterior mean.
    form : {"paper", "code"}
        The weight of the paper, or of the released code, exp(0.01 sqrt(p (1 - p)) / (c + 1)) with c
        the number of correct rollouts so far, which is nearly the same for all problems.
    restart : int, optional
        Rounds after which all estimates start afresh, as in each outer round of the paper; None for
        never.

    References
    ----------
    CurES (arXiv 2510.01037). The paper writes tau = alpha / sqrt(2 delta) and gives neither; .1 is
    our choice. The paper draws with replacement.
    """

    temperature: Positive = 0.1
    form: Annotated[str, choice("paper", "code")] = "paper"
    restart: int | None = None

    def choose(self, pool: Pool | Stream, n: int, context: Context) -> Sequence[Problem]:
        """n problems of the whole pool, drawn without replacement by their weights."""
        pool = finite(pool, self)
        problems = [pool[i] for i in _not_taken(pool, context)]
        if len(problems) < n and context.taken:
            return problems
        weights = self.weights([problem.id for problem in problems])
        rng = context.rng("curriculum", len(context.taken))
        return _drawn_by_weight(problems, weights, n, rng)

    def weights(self, ids: Sequence[str]) -> np.ndarray:
        """What each problem is drawn in proportion to, (P,), the largest 1."""
        belief = self.posteriors.of(ids)
        p = belief[:, 0] / belief.sum(axis=1)
        deviation = np.sqrt(p * (1 - p))
        if self.form == "paper":
            exponent = deviation / self.temperature
        else:
            exponent = 0.01 * deviation / belief[:, 0]  # c + 1, since the prior is Beta(1, 1)
        # The common factor changes no proportion and keeps the exponential from overflowing.
        return np.exp(exponent - exponent.max())


# What a problem never seen has: chances of its three states, and a count of each transition.
UNSEEN = np.vstack([np.full((1, 3), 1 / 3), np.ones((3, 3))])


@dataclass
class Dps(Slot):
    """Takes the problems that are most likely to be mixed, by a Markov chain for each problem.

    A problem is in one of three states, "all wrong", "mixed" and "all right", and moves between
    them from round to round. For each problem the chance of each state is kept, and a count of each
    transition with a prior of 1. A visit shows the state. One transition into it is then counted,
    in parts: each earlier state gets the part that is the probability of having come from it. In a
    round without a visit the chances are moved on by the estimated transition probabilities.

    Attributes
    ----------
    decay : float
        Factor on the counts at each visit.

    References
    ----------
    DPS (arXiv 2603.10887) and its released code: decay .7 on MATH. Four things are our reading: the
    counts decay towards their prior; chances move on in every round; the whole pool is compared; of
    equal problems the one that is earlier in the order of the first epoch is taken.
    """

    decay: Share = 0.7

    needs = frozenset({"problem_choice"})

    # Problem -> (4, 3): the chances, and the counts with a row for each state that is left.
    memory: dict[str, Any] = state_field(dict)

    def choose(self, pool: Pool | Stream, n: int, context: Context) -> Sequence[Problem]:
        """The n problems with the greatest chance of a mixed group."""
        pool = finite(pool, self)
        ordered = [pool[i] for i in pool.order(context.seed, 0)]
        candidates = [problem for problem in ordered if problem.id not in context.taken]
        if len(candidates) < n:
            if context.taken:
                return candidates
            raise PoolExhausted(f"n={n}: the pool has {len(pool)} problems")
        mixed = self.predicted([problem.id for problem in candidates])[:, 1]
        best = np.argsort(-mixed, kind="stable")[:n]
        return [candidates[i] for i in np.sort(best)]

    def predicted(self, ids: Sequence[str]) -> np.ndarray:
        """Chances of each problem's states in the coming round, (P, 3)."""
        return self._transitions(ids).sum(axis=1)

    def _transitions(self, ids: Sequence[str]) -> np.ndarray:
        """Chances that a problem moves from one state to another in the coming round, (P, 3, 3)."""
        known = np.stack([self.memory.get(key, UNSEEN) for key in ids])
        chances, counts = known[:, 0], known[:, 1:]
        return chances[:, :, None] * counts / counts.sum(axis=2, keepdims=True)

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The problems of the round have shown their states; all others move on."""
        visited, correct, tries = outcomes_of_round(rollouts, context.round)
        states = (correct > 0).astype(int) + (correct == tries)
        seen = dict(zip(visited, states.tolist()))
        ids = list(dict.fromkeys([*self.memory, *visited]))
        if not ids:
            return
        for key, moved in zip(ids, self._transitions(ids)):
            memory = np.array(self.memory.get(key, UNSEEN))
            memory[0] = moved.sum(axis=0)
            if key in seen:
                state = seen[key]
                memory[1:] = self.decay * memory[1:] + (1 - self.decay) * UNSEEN[1:]
                memory[1:, state] += moved[:, state] / moved[:, state].sum()
                memory[0] = np.arange(3) == state
            self.memory[key] = memory


@dataclass
class WithoutSolved(_OverEpochs):
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

    def choose(self, pool: Pool | Stream, n: int, context: Context) -> Sequence[Problem]:
        """The next n problems that have not left."""
        pool = finite(pool, self)
        if not context.taken and len(pool) - len(self.left) < n:
            self.left.clear()
        return self.order.choose(pool, n, replace(context, taken=context.taken | self.left))

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Problems that are solved leave."""
        ids, correct, tries = outcomes_of_round(rollouts, context.round)
        self.left.update(np.array(ids, dtype=str)[correct >= self.solved * tries].tolist())

    def metrics(self) -> dict[str, float]:
        """Problems that have left."""
        return {"problems_left_out": len(self.left)}


@dataclass
class Greso(_OverEpochs):
    """Shuffled epochs in which problems with a streak of groups all alike are skipped more and
    more.

    A problem whose last z groups were all right (or all wrong) is skipped with probability
    1 - max(q^z, floor). The base q of each kind adapts after every round from the second epoch on:
    where the share of such groups is at least its target q falls by `step`, otherwise it rises.

    Attributes
    ----------
    easy, hard : float
        A group counts as all right from a success rate of `easy`, as all wrong up to `hard`. By
        default these are 1 and 0, so that one rollout of the other kind is enough in a group of any
        size.
    easy_target, hard_target : float
        Targets of their shares among the groups of a round.
    start, step, low, high : float
        Of the two bases.
    floor : float
        The smallest chance to be drawn.

    References
    ----------
    GRESO (arXiv 2506.02177) and its released code: a target of .25, a third of it easy. Its
    thresholds are mean rewards of .98 and .11, since a wrong answer in the right format earns .1
    there; with groups of 8 they mean the same as ours.
    """

    easy: Share = 1.0
    hard: Share = 0.0
    easy_target: Share = 1 / 12
    hard_target: Share = 1 / 6
    start: Share = 0.5
    step: Share = 0.01
    low: Share = 0.05
    high: Share = 0.95
    floor: ShareAboveZero = 0.01  # at 0 a whole pool could be skipped without end
    # Problem -> [groups all right in a row, groups all wrong in a row].
    streaks: dict[str, list[int]] = state_field(dict)
    bases: list[float] = state_field(list)
    skipped: int = state_field(int)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bases = [self.start, self.start]

    def skip_probability(self, problem: str) -> float:
        """Chance that a problem is passed over at its next turn."""
        easy, hard = self.streaks.get(problem, (0, 0))
        # A group all right ends a streak of groups all wrong, so one of the two is 0. Without any
        # streak q^0 = 1, and nothing is skipped.
        kind = 0 if easy else 1
        streak = easy or hard
        return 1 - max(self.bases[kind] ** streak, self.floor)

    def choose(self, pool: Pool | Stream, n: int, context: Context) -> Sequence[Problem]:
        """The next n problems that are not skipped, over as many epochs as it takes."""
        pool = finite(pool, self)
        rng = context.rng("curriculum", len(context.taken))
        chosen: list[Problem] = []
        taken = set(context.taken)
        begins = self.order.cursor
        # One problem at a time, since each draw decides how far the cursor goes. A skipped problem
        # is behind the cursor now and has its next turn in the next epoch.
        while len(chosen) < n:
            try:
                drawn, self.order.cursor = pool.draw(1, self.order.cursor, context.seed, taken)
            except PoolExhausted:
                if context.taken:
                    break
                raise
            if rng.random() < self.skip_probability(drawn[0].id):
                self.skipped += 1
                continue
            chosen += drawn
            taken.add(drawn[0].id)
        if not context.taken:
            self.order.epoch = pool.epoch(begins)
        return chosen

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Streaks grow or end, and the bases adapt."""
        ids, correct, tries = outcomes_of_round(rollouts, context.round)
        if not ids:
            return  # a trainer may leave out rollouts that nothing scored
        rates = correct / tries
        kinds = np.stack([rates >= self.easy, rates <= self.hard], axis=1)
        for problem, (is_easy, is_hard) in zip(ids, kinds.tolist()):
            easy, hard = self.streaks.get(problem, (0, 0))
            self.streaks[problem] = [easy + 1 if is_easy else 0, hard + 1 if is_hard else 0]
        # In the first epoch no problem has come twice, so the bases have not been used yet.
        if context.epoch == 0:
            return
        targets = (self.easy_target, self.hard_target)
        for kind, (share_of_kind, target) in enumerate(zip(kinds.mean(axis=0), targets)):
            change = -self.step if share_of_kind >= target else self.step
            self.bases[kind] = float(np.clip(self.bases[kind] + change, self.low, self.high))

    def metrics(self) -> dict[str, float]:
        """Problems skipped so far, and the two bases."""
        return {
            "problems_skipped": self.skipped,
            "skip_base_easy": self.bases[0],
            "skip_base_hard": self.bases[1],
        }


@dataclass
class AdaRft(Slot):
    """Takes the problems whose difficulty is nearest to a target that follows the mean reward.

    Difficulties lie in [0, 100]. After each round the target moves by
    step * tanh(sensitivity * (mean reward - wanted)) and is cut to [0, 100].

    Attributes
    ----------
    difficulties : dict, optional
        Problem id -> difficulty. None takes the problems' levels, the lowest as 0 and the highest
        as 100.
    start : float
        The first target.
    step, sensitivity, wanted : float
        See above.
    ties : {"index", "random"}
        Between problems of equal distance: the lower index, as in the released code, where the same
        problems come back as long as the target stands still; or a random order.

    References
    ----------
    AdaRFT (arXiv 2504.05520) and its released code: step 50, sensitivity 2, wanted .5.
    """

    difficulties: Mapping[str, float] | None = None
    start: Annotated[float, partial(number, low=0, high=100)] = 0.0
    step: Positive = 50.0
    sensitivity: Positive = 2.0
    wanted: Share = 0.5
    ties: Annotated[str, choice("index", "random")] = "index"

    reads_verdict = False

    target: float = state_field(float)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.difficulties is not None:
            instance_of("difficulties", self.difficulties, Mapping, "{'problem id': 40}")
            for problem, difficulty in self.difficulties.items():
                number(f"difficulties[{problem!r}]", difficulty, low=0, high=100)
        # A checkpoint gives a number back with the type that it has here.
        self.target = float(self.start)

    @property
    def needs(self) -> set[str]:  # type: ignore[override]
        """A choice of problems, by their levels where no difficulties are given."""
        return {"problem_choice", "levels"} if self.difficulties is None else {"problem_choice"}

    def choose(self, pool: Pool | Stream, n: int, context: Context) -> Sequence[Problem]:
        """The n problems nearest to the target."""
        problems = finite(pool, self)
        candidates = _not_taken(problems, context)
        if len(candidates) < n and context.taken:
            return [problems[i] for i in candidates]
        distance = np.abs(self._difficulties(problems)[candidates] - self.target)
        if self.ties == "index":
            order = np.argsort(distance, kind="stable")
        else:
            rng = context.rng("curriculum", len(context.taken))
            order = np.lexsort((rng.random(len(distance)), distance))
        return [problems[i] for i in candidates[order[:n]]]

    def _difficulties(self, pool: Pool) -> np.ndarray:
        """The difficulty of every problem of the pool, (P,)."""
        if self.difficulties is not None:
            for problem in pool:
                if problem.id not in self.difficulties:
                    raise ValueError(f"difficulties: problem {problem.id!r} of the pool has none")
            return np.array([self.difficulties[problem.id] for problem in pool])
        # The scale is that of the whole pool, so that a target means the same in every round.
        levels = np.array([problem.level for problem in pool])
        low, high = levels.min(), levels.max()
        scale = 100 / (high - low) if high > low else 0.0
        return (levels - low) * scale

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The target moves with the mean reward of the round's new rollouts."""
        rewards = rollouts.reward[rollouts.round == context.round]
        if not len(rewards):
            return  # a trainer may leave out rollouts that nothing scored
        mean = float(rewards.mean())
        move = self.step * np.tanh(self.sensitivity * (mean - self.wanted))
        self.target = float(np.clip(self.target + move, 0, 100))

    def metrics(self) -> dict[str, float]:
        """The target difficulty of the next round."""
        return {"target_difficulty": self.target}


def mixed_group_probability(a: Any, b: Any, n: int) -> np.ndarray:
    """Chance that n rollouts are neither all right nor all wrong when the success rate is Beta(a,
    b).

    >>> float(mixed_group_probability(1.0, 1.0, 8).round(4))
    0.7778
    """
    from scipy.special import betaln

    a = np.asarray(a, dtype=np.float64)
    b = np.asarray(b, dtype=np.float64)
    # In logarithms, since Beta functions of many visits underflow.
    all_right = np.exp(betaln(a + n, b) - betaln(a, b))
    all_wrong = np.exp(betaln(a, b + n) - betaln(a, b))
    return 1 - all_right - all_wrong


def finite(pool: Pool | Stream, curriculum: Slot) -> Pool:
    """The pool itself; ValueError for an endless stream, which has nothing to choose from."""
    if isinstance(pool, Pool):
        return pool
    raise ValueError(
        f"problems: {type(curriculum).__name__} chooses among the problems of a finite pool, and "
        "this lab draws fresh ones without end; give it a pool, such as labs.tiny(pool=512)"
    )


def _not_taken(pool: Pool, context: Context) -> np.ndarray:
    """Places of the pool's problems that are not in the round yet, ascending."""
    if not context.taken:
        return np.arange(len(pool))
    is_free = [problem.id not in context.taken for problem in pool]
    return np.flatnonzero(is_free)


def _drawn_by_weight(
    problems: Sequence[Problem], weights: np.ndarray, n: int, rng: np.random.Generator
) -> list[Problem]:
    """n problems without replacement, each next one in proportion to its weight.

    Taking the n greatest of log(weight) plus Gumbel noise draws exactly so.
    """
    if n > len(problems):
        raise PoolExhausted(f"n={n}: the pool has {len(problems)} problems")
    # The floor lets problems of weight 0 be drawn, but only when no others are left.
    keys = np.log(np.maximum(weights, 1e-300)) + rng.gumbel(size=len(weights))
    chosen = np.argpartition(-keys, n - 1)[:n]
    return [problems[i] for i in np.sort(chosen)]
