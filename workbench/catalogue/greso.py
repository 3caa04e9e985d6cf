r"""Skip problems that taught nothing lately.

GRESO (arXiv [2506.02177](https://arxiv.org/abs/2506.02177)). A problem whose last $z$ groups were
all right, or all wrong, will probably give such a group again. It is skipped with a probability
that grows with $z$,

$$P(\text{skip}) = 1 - \max(q^z,\, 0.01),$$

so every problem is tried again once in a while. There is one $q$ for problems that were all right
and one for those that were all wrong. Each falls by a small step when the share of such groups in
a round is above its target, and rises otherwise. If a round has too few mixed groups, further
problems are drawn, as in DAPO. Here a group is all alike when every rollout is right, or every one
wrong. The released code asks instead whether the mean reward is above .98 or below .11, which is
the same for groups of 8 with its reward for the format. *Released code.*
"""

from dataclasses import dataclass

import numpy as np

from workbench.methods import Method, method
from workbench.pools import PoolExhausted
from workbench.rules.allocators import DynamicSampling
from workbench.rules.curricula import OverEpochs, finite, rng_of
from workbench.rules.success_rates import outcomes_of_round
from workbench.slots import Context, Pool, Problem, Problems, Rollouts, Stream, state_field
from workbench.utils.bounds import Share, ShareAboveZero


@dataclass
class Greso(OverEpochs):
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

    def choose(self, pool: Pool | Stream, n: int, context: Context) -> Problems:
        """The next n problems that are not skipped, over as many epochs as it takes."""
        pool = finite(pool, self)
        rng = rng_of(context)
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


@method(paper="GRESO (arXiv 2506.02177)", decides="curriculum")
def greso(
    n: int = 8, max_draws: int = 3, refill: float = 1.25, curriculum: Greso | None = None
) -> Method:
    """GRESO: skip problems whose groups were all alike, and refill to enough mixed groups.

    Parameters
    ----------
    n, max_draws
        See `allocators.DynamicSampling`.
    refill : float
        Problems drawn for each mixed group that is missing, over the share that is mixed.
    curriculum : Greso, optional
        None: with the settings of the released code.

    References
    ----------
    GRESO (arXiv 2506.02177) and its released code, which begins a round with 1.5 times the problems
    that it needs, and refills by 64 at least; here it begins with as many as it needs.
    """
    return Method(
        "greso",
        curriculum=curriculum or Greso(),
        allocator=DynamicSampling(n, max_draws=max_draws, refill=refill),
    )
