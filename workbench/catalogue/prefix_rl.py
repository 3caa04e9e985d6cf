r"""Unsolved problems from parts of a right answer.

PrefixRL (arXiv [2601.18795](https://arxiv.org/abs/2601.18795)). The rollouts of an unsolved
problem are divided into four groups. Three start from prefixes of one old right response, and one
from the problem itself. A prefix has

$$\lceil s\,T \rceil \;\text{of the}\; T \;\text{tokens}, \qquad s \sim U(.4,\, .8),$$

and is masked. The old responses are those of an earlier run (`path=...`), as in the paper, or
those that the run itself has found. The paper makes its prefixes once, before the training; here
they are drawn anew at every visit. *Text, no code.*
"""

import math
from dataclasses import dataclass

import numpy as np

from workbench.methods import Method, Uniform, method
from workbench.policies import Plan
from workbench.rules.replay import RightAnswers
from workbench.rules.success_rates import outcomes
from workbench.slots import Context, Problems, Ragged, Rollouts, state_field
from workbench.utils.bounds import Count, Interval


@dataclass
class OwnPrefixes(RightAnswers):
    """Unsolved problems also start from parts of an old right response of theirs.

    A problem is unsolved when none of its bare rollouts was right at its last visit. Its rollouts
    are then dealt out among `each` prefixes of one right response and the bare problem, as many to
    each as to the others, and each start is a group of its own.

    Attributes
    ----------
    each : int
        Prefixes of a problem. The bare problem has one part in `each` + 1.
    lengths : (low, high)
        Shares of the response, between which the lengths of the prefixes are drawn.
    path : str, optional
        A file written by `replay.save_answers`: right answers of an earlier run. A problem that was
        not visited yet then counts as unsolved. None takes those that this run finds.
    capacity : int
        Answers kept for a problem, the oldest go first.

    References
    ----------
    PrefixRL (arXiv 2601.18795): 3 prefixes of 40 to 80 % beside one bare problem. No code was
    released. The paper makes the prefixes before the training; that they change from round to
    round, and that answers may come from the run itself, is ours.
    """

    each: Count = 3
    lengths: Interval = (0.4, 0.8)
    path: str | None = None
    capacity: Count = 1
    solved: dict[str, bool] = state_field(dict)

    needs = frozenset({"prefixes"})
    metric = "course_stored"

    def plan(
        self, problems: Problems, counts: np.ndarray, before: np.ndarray, context: Context
    ) -> Plan:
        """Prefixes for the unsolved problems that have a right answer, and a group for each."""
        answers = self.rows_by_problem()
        rows: list[np.ndarray] = []
        starts_of_rows: list[int] = []
        for problem, count, start in zip(problems, counts.tolist(), before.tolist()):
            starts = [np.empty(0, np.int32)]
            stored = answers.get(problem.id)
            if stored is not None and not self.solved.get(problem.id, self.path is None):
                rng = context.rng("course", problem.id)
                answer = self.stored.response[stored[rng.integers(len(stored))]]
                for share in rng.uniform(*self.lengths, self.each):
                    starts.append(answer[: min(math.ceil(share * len(answer)), len(answer) - 1)])
            for draw in range(start, start + count):
                number = draw % len(starts)
                rows.append(starts[number])
                starts_of_rows.append(number)
        return Plan(
            prefixes=Ragged.of(rows, np.int32),
            columns={"start": np.array(starts_of_rows, dtype=np.int64)},
        )

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Which problems are solved, and right answers to bare problems."""
        bare = rollouts.take((rollouts.round == context.round) & (rollouts["prefix"] == 0))
        if not len(bare):
            return
        ids, right, _ = outcomes(bare)
        self.solved.update(zip(ids, (right > 0).tolist()))
        super().feedback(bare, context)


@method(paper="PrefixRL (arXiv 2601.18795)", decides="course")
def prefix_rl(n: int = 16, course: OwnPrefixes | None = None) -> Method:
    """PrefixRL: unsolved problems also start from parts of an old right response of theirs.

    Parameters
    ----------
    n : int
        Rollouts of a problem. Those of an unsolved one are dealt out among its bare form and its
        prefixes, so there should be a few for each.
    course : OwnPrefixes, optional
        Says among others where the answers of an earlier run are. None: those of this run.

    References
    ----------
    PrefixRL (arXiv 2601.18795); no code was released.
    """
    return Method("prefix_rl", allocator=Uniform(n), course=course or OwnPrefixes())
