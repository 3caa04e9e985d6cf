r"""Right answers join every group.

RLEP (arXiv [2507.07451](https://arxiv.org/abs/2507.07451)). Two right responses of an earlier run
join the $n$ new rollouts of their problem. The mean and the deviation are those of the larger
group,

$$A = \frac{r - \mu_{n+2}}{\sigma_{n+2}},$$

and the ratio of an old response starts at 1, because its log-probabilities are computed again.
Without a file of old responses, those that the run itself has found are used. *Released code.*
"""

from dataclasses import dataclass

import numpy as np

from workbench.methods import GroupNormalized, Method, Uniform, method
from workbench.rules.replay import Joined, RightAnswers, is_bare, reward_parts
from workbench.slots import Context, Rollouts
from workbench.utils.bounds import Count
from workbench.utils.validation import whole_number


@dataclass
class Experience(RightAnswers):
    """Right answers join every group of their problem, one group for mean and deviation.

    Attributes
    ----------
    each : int
        Old answers that join a group.
    path : str, optional
        A file written by `save_answers`: right answers of an earlier run, of the same tokenizer.
        None collects them in this run, as they come.
    capacity : int
        Answers kept for a problem, the oldest go first.

    References
    ----------
    RLEP (arXiv 2507.07451): 2 answers beside 16 new ones, from an earlier run. Their
    log-probabilities are computed anew under the current policy, so that the ratio starts at 1.
    """

    each: Count = 2
    path: str | None = None
    capacity: int = 16

    needs = frozenset({"old_responses", "current_logprobs"})

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("capacity", self.capacity, self.each)

    def join(self, rollouts: Rollouts, candidates: np.ndarray, context: Context) -> Joined:
        """Append up to `each` old answers to every problem that has some.

        Raises
        ------
        ValueError
            For answers of a file that other parts of a reward have judged than those of this run.
        """
        if self.path is not None:
            theirs, ours = map(reward_parts, (self.stored, rollouts))
            if theirs != ours:
                raise ValueError(
                    f"path={str(self.path)!r}: its answers were rewarded by {theirs}, and those of "
                    f"this run are rewarded by {ours}; a group needs rewards of the same parts"
                )
        rows: list[int] = []
        rows_of = self.rows_by_problem()
        # Only problems that the round goes on with, not those that the allocator has dropped.
        bare = candidates[is_bare(rollouts)[candidates]]
        problems, _ = rollouts.take(bare).problems()
        for problem in problems.tolist():
            if problem in rows_of:
                rng = context.rng("reuse", problem)
                rows += rng.permutation(rows_of[problem])[: self.each].tolist()
        return self.join_rows(rollouts, candidates, rows, context)


@method(paper="RLEP (arXiv 2507.07451)", decides="replay")
def rlep(n: int = 8, each: int = 2, path: str | None = None) -> Method:
    """RLEP: right answers join every group of their problem.

    Parameters
    ----------
    n : int
        New rollouts of a problem; 16 in the paper.
    each : int
        Old answers that join them; 2 in the paper.
    path : str, optional
        The answers of an earlier run, as in the paper; None for those of this run.

    References
    ----------
    RLEP (arXiv 2507.07451). One mean and one sample deviation for new and old answers together.
    """
    return Method(
        "rlep",
        allocator=Uniform(n),
        replay=Experience(each, path),
        advantage=GroupNormalized(ddof=1, eps=1e-6),
    )
