r"""Stop the long ones, and go on with them later.

APRIL (arXiv [2509.18521](https://arxiv.org/abs/2509.18521)). Once a share $c$ of the $P$ groups is
complete,

$$\#\{\text{complete groups}\} \ge \lceil c\,P \rceil,$$

every rollout that still grows is stopped. The groups that are not complete wait. Their problems
come first in the next round, and every rollout goes on where it was stopped. The ratio of a token
from the earlier round is taken against the policy that sampled it. The authors' trainer can also
mask these tokens, which is left out here. Stopping saves the time in which a machine that decodes
many responses at once waits for a few long ones. It shows in seconds and not in tokens. *Notes on
the code of slime.*
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from workbench.methods import Method, Uniform, method
from workbench.policies import GO_ON, STOP, Growing, Plan
from workbench.rules.courses import Drafts, beginnings
from workbench.rules.curricula import Recycled
from workbench.rules.selectors import Finished
from workbench.slots import Context, Problems, Rollouts
from workbench.utils.bounds import ShareAboveZero
from workbench.utils.names import STOPPED


@dataclass
class Partial(Drafts):
    """Once enough groups are complete, all rollouts that still grow are stopped, and wait.

    The whole group of a stopped rollout waits. When its problem comes again, every rollout of the
    group goes on where it was, and the tokens of the earlier round are trained on against the
    policy that sampled them. `curricula.Recycled("stopped")` serves these problems first, and
    `selectors.Finished(whole_groups=True)` leaves them out of the update until then.

    Attributes
    ----------
    complete : float
        Share of a request's groups that must be complete before the others are stopped.

    Notes
    -----
    A rollout of a waiting group that had ended already samples its last token anew. Rollouts that
    are gone on with reach the limit of a response at last, so none waits for ever. Slots that
    remember success rates count a stopped rollout as a wrong one, and count a waiting group once
    more when it comes again.

    References
    ----------
    APRIL (arXiv 2509.18521) and the code of slime, which asks for more groups than it needs; ours
    asks for problems_per_round groups and takes the first share of them.
    """

    complete: ShareAboveZero = 0.5

    needs = frozenset({"prefixes", "stopping", "old_logprobs"})
    reads_verdict = False

    def plan(
        self, problems: Problems, counts: np.ndarray, before: np.ndarray, context: Context
    ) -> Plan:
        """Rollouts that waited go on, and all stop when enough groups are complete."""
        rows = self._drafts(problems, counts, before)
        grown = self.stored.lengths - (self.stored.status != STOPPED)
        # The last entry, which -1 stands for, is 0.
        lengths = np.append(grown, 0)[rows]
        owner = np.repeat(np.arange(len(counts)), counts)
        groups = np.count_nonzero(counts)
        wanted = math.ceil(self.complete * groups - 1e-9)

        def stop(growing: Growing) -> np.ndarray:
            incomplete = len(np.unique(owner[growing.rows]))
            return np.full(len(growing.rows), STOP if groups - incomplete >= wanted else GO_ON)

        return replace(beginnings(self.stored, rows, lengths), stop=stop)

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The groups with a stopped rollout wait."""
        # An old rollout that joined the round may have been stopped in its own.
        is_stopped = (rollouts.round == context.round) & (rollouts.status == STOPPED)
        waits = np.isin(rollouts.problem, rollouts.problem[is_stopped])
        self._remember(rollouts, waits, context)


@method(paper="APRIL (arXiv 2509.18521)", decides="course")
def partial_rollouts(n: int = 8, complete: float = 0.5) -> Method:
    """Partial rollouts: once enough groups are complete the others are stopped, and go on later.

    Parameters
    ----------
    n : int
    complete : float
        Share of the round's groups that must be complete.

    References
    ----------
    APRIL (arXiv 2509.18521), see `courses.Partial`.
    """
    return Method(
        "partial_rollouts",
        curriculum=Recycled(rule="stopped"),
        allocator=Uniform(n),
        course=Partial(complete),
        selector=Finished(whole_groups=True),
    )
