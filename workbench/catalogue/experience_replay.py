r"""The newest rollouts, drawn again.

Arnal and others (arXiv [2604.08706](https://arxiv.org/abs/2604.08706)). A buffer holds the newest
rollouts, and the oldest ones leave it first. Each round trains on rollouts that are drawn from it
at random, with repetition, so fewer new ones are needed. If a round samples $R$ rollouts and
trains on $B$, a rollout is used

$$B / R$$

times on average. `positive` is the share of the buffer that is kept for right rollouts which would
have left it already. Let $W$ GPUs generate and $T$ train, and let $\mu$ be the cost of generating
a batch divided by that of training on it. Then a step costs $(1 + W/T) / (1 + \mu)$ times as much
as one without replay; `papers.times.compute_with_replay` computes it. *Text.*
"""

from dataclasses import dataclass

import numpy as np

from workbench.methods import Method, Uniform, method
from workbench.rules.replay import Joined, Stored, group_and_round, join_rows, without_marks
from workbench.slots import Context, Rollouts, Selection, Slot, state_field
from workbench.utils.bounds import Count, Positive, Share


@dataclass
class Fifo(Stored):
    """The newest `size` rollouts of earlier rounds are candidates beside those of this round.

    Together with `selectors.UniformDraws` this is plain experience replay. A rollout's advantage is
    that within its own group, problem and round together; its ratio is against the policy that
    sampled it. So that the advantage stays what it was, a group stays together as long as one of
    its rollouts is kept: the others have no gradient then and are there for their rewards alone.

    Attributes
    ----------
    size : int
        Rollouts kept.
    positive : float
        Share of the places that goes to the newest correct rollouts which would have left already.

    References
    ----------
    Arnal et al., replay study (arXiv 2604.08706): shares 0, .2 and .5.
    """

    size: Count = 1024
    positive: Share = 0.0
    passed: np.ndarray = state_field(lambda: np.empty(0, np.int64), saved=False)

    needs = frozenset({"old_responses", "old_logprobs"})

    def join(self, rollouts: Rollouts, candidates: np.ndarray, context: Context) -> Joined:
        """Append the stored rollouts; all of them are candidates."""
        self.passed = candidates
        table = rollouts.assign(group=group_and_round(rollouts))
        old = self.stored.assign(group=group_and_round(self.stored))
        return join_rows(table, candidates, old)

    @property
    def reads_verdict(self) -> bool:  # type: ignore[override]
        """Where correct rollouts stay longer."""
        return self.positive > 0

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Keep the newest rollouts, and the newest correct ones of the rest."""
        old = np.flatnonzero(rollouts.round < context.round)
        rows = np.concatenate([old, self.passed])
        # From the oldest to the newest. Rows that have lost their gradient have no place any more;
        # they are there for their group alone.
        rows = rows[np.argsort(rollouts.round[rows], kind="stable")]
        kept = self._kept(rows[rollouts["gradient"][rows]], rollouts.correct)
        # With a row kept, its whole group stays.
        rows = rows[np.isin(rollouts.group[rows], rollouts.group[kept])]
        self.stored = (
            without_marks(rollouts)
            .assign(uses=rollouts["uses"], gradient=np.isin(np.arange(len(rollouts)), kept))
            .take(rows)
        )

    def _kept(self, rows: np.ndarray, correct: np.ndarray) -> np.ndarray:
        """Of rows from old to new: the newest, and the newest correct ones among the others."""
        places_for_right = round(self.positive * self.size)
        # From `start` on are the newest, which stay whatever their verdict.
        start = max(0, len(rows) - (self.size - places_for_right))
        right = rows[:start][correct[rows[:start]]]
        return np.concatenate([right[max(0, len(right) - places_for_right) :], rows[start:]])


@dataclass(frozen=True)
class UniformDraws(Slot):
    """Draws rollouts uniformly, with repetition, from all candidates: new and replayed ones.

    A rollout that is drawn twice has weight 2.

    Attributes
    ----------
    share : float
        Draws, as a multiple of the rollouts sampled in the round.

    References
    ----------
    Arnal et al., replay study (arXiv 2604.08706), together with `replay.Fifo`.
    """

    share: Positive = 1.0

    needs = frozenset({"row_weights"})
    reads_verdict = False

    def select(self, rollouts: Rollouts, context: Context) -> Selection:
        """The drawn rows; weights average 1, so that the size of the loss stays."""
        everywhere = np.ones(len(rollouts), dtype=bool)
        # Rows without a gradient are there for the advantages of their groups alone.
        able = np.flatnonzero(rollouts.columns.get("gradient", everywhere))
        if not len(able):
            return Selection(able)
        size = max(1, round(self.share * np.count_nonzero(rollouts["age"] == 0)))
        drawn = context.rng("selector").integers(len(able), size=size)
        # Times drawn add up to `size`; the factor brings their average over the kept rows to 1.
        places, times = np.unique(drawn, return_counts=True)
        return Selection(able[places], weights=times * len(places) / size)


@method(paper="Arnal et al. (arXiv 2604.08706)", decides="replay")
def experience_replay(
    n: int = 8, size: int = 1024, positive: float = 0.0, share: float = 1.0
) -> Method:
    """Plain experience replay: uniform draws, with repetition, from the newest rollouts.

    Parameters
    ----------
    n : int
    size, positive
        See `replay.Fifo`.
    share : float
        Draws for each new rollout, see `selectors.UniformDraws`.

    References
    ----------
    Arnal et al. (arXiv 2604.08706), who vary size and share; ours are an example.
    """
    return Method(
        "experience_replay",
        allocator=Uniform(n),
        replay=Fifo(size, positive),
        selector=UniformDraws(share),
    )
