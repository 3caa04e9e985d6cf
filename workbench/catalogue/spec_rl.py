r"""The last response as a draft.

SPEC-RL (arXiv [2509.23232](https://arxiv.org/abs/2509.23232)). The draft of a problem's first
rollout is its first response at the last visit, that of the second rollout the second, and so on.
Tokens of the draft are kept as long as

$$u \le e^{b}\, \frac{\pi_\text{new}}{\pi_\text{old}}, \qquad b = .5,$$

where $u$ is drawn from 0 to 1 for each token. From the first token on that fails, the rollout is
sampled. Kept tokens are trained on. Here the last token of a draft is always sampled anew. The
draft is read in a forward pass of its own, and the sampler reads the kept part once more; a
serving engine would read it once. *Text, and notes on the released code.*
"""

from dataclasses import dataclass, replace

import numpy as np

from workbench.methods import Method, Uniform, method
from workbench.policies import Plan
from workbench.rules.courses import Drafts, beginnings
from workbench.slots import Context, Problems, Ragged, Rollouts
from workbench.utils.bounds import PositiveOrZero
from workbench.utils.names import STOPPED


def accepted(
    new: np.ndarray, old: np.ndarray, uniforms: np.ndarray, bias: float = 0.0
) -> np.ndarray:
    """How many tokens of each draft are kept, (R,) int64: those before the first refusal.

    Parameters
    ----------
    new, old : (R, T)
        Log-probabilities of the drafts' tokens under the current policy and under the old one.
    uniforms : (R, T)
        Draws from [0, 1). A token is refused where its draw exceeds e^bias new / old, and where
        that is not a number, as beyond the end of a draft.
    bias : float

    Examples
    --------
    >>> new, old = np.log([[0.5, 0.2, 0.5]]), np.log([[0.5, 0.5, 0.5]])
    >>> draws = np.array([[0.9, 0.6, 0.1]])
    >>> accepted(new, old, draws), accepted(new, old, draws, bias=0.5)
    (array([1]), array([3]))
    """
    refused = ~(np.log(np.maximum(uniforms, np.finfo(float).tiny)) <= bias + new - old)
    # Behind its last token every draft ends.
    return np.pad(refused, ((0, 0), (0, 1)), constant_values=True).argmax(1)


@dataclass
class Speculative(Drafts):
    """The last response to a problem is a draft of the next one, kept up to the first refusal.

    Every rollout takes the response of the same number at the problem's last visit as its draft.
    The current policy reads it. Its tokens are accepted one after the other, each with the
    probability min(1, e^b π_new / π_old); from the first refusal on the rollout is sampled. The
    kept tokens belong to the response and are trained on, with the probabilities that the current
    policy has just given them.

    Attributes
    ----------
    bias : float
        The b above. 0 leaves the distribution of the current policy as it is, but for the refused
        token, which is drawn from the whole distribution again.

    Notes
    -----
    The last token of a draft is always sampled anew, so a draft that is accepted as a whole costs
    one token. The paper takes such a draft as it is.

    References
    ----------
    SPEC-RL (arXiv 2509.23232): b = .5.
    """

    bias: PositiveOrZero = 0.5

    needs = frozenset({"prefixes", "current_logprobs"})
    reads_verdict = False

    def plan(
        self, problems: Problems, counts: np.ndarray, before: np.ndarray, context: Context
    ) -> Plan:
        """What is accepted of each draft."""
        rows = self._drafts(problems, counts, before)
        has_draft = np.flatnonzero(rows >= 0)
        if not len(has_draft):
            return Plan()
        old = self.stored.take(rows[has_draft])
        drafts = context.policy.rescored(old, context.temperature)
        draws = [
            context.rng("course", name, draw).random(length)
            for name, draw, length in zip(old.problem.tolist(), old.draw.tolist(), old.lengths)
        ]
        kept = accepted(
            drafts.old_logprobs.padded(np.nan),
            old.old_logprobs.padded(np.nan),
            Ragged.of(draws, np.float64).padded(),
            self.bias,
        )
        lengths = np.zeros(len(rows), dtype=np.int64)
        lengths[has_draft] = np.minimum(kept, old.lengths - 1)
        read = np.zeros(len(rows), dtype=np.int64)
        read[has_draft] = old.lengths + old.prompt.lengths
        places = np.full(len(rows), -1)
        places[has_draft] = np.arange(len(has_draft))
        return replace(beginnings(drafts, places, lengths), read=read)

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The round's responses are the drafts of the problems' next visit."""
        self._remember(rollouts, rollouts.status != STOPPED, context)


@method(paper="SPEC-RL (arXiv 2509.23232)", decides="course")
def spec_rl(n: int = 8, bias: float = 0.5) -> Method:
    """SPEC-RL: the last response to a problem is a draft of the next, kept to its first refusal.

    References
    ----------
    SPEC-RL (arXiv 2509.23232), see `courses.Speculative`.
    """
    return Method("spec_rl", allocator=Uniform(n), course=Speculative(bias))
