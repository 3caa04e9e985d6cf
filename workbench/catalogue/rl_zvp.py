r"""Learn from groups that are all alike.

RL-ZVP (arXiv [2509.21880](https://arxiv.org/abs/2509.21880)). A group whose rewards are equal gets
advantages from the entropy $H_t$ of each token, without a gradient through it:

$$A_t = +\alpha H_t \;\text{ (all right)}, \qquad A_t = -\alpha\,\big(\max_k H_k - H_t\big)
\;\text{ (all wrong)}.$$

The token of a wrong response with the largest entropy therefore has the advantage zero. Mixed
groups have GRPO's advantages. *Text.*
"""

from dataclasses import dataclass

import numpy as np

from workbench.methods import Method, Uniform, method
from workbench.rules.advantages import group_normalized
from workbench.slots import Context, Ragged, Rollouts, Slot
from workbench.utils.bounds import Positive
from workbench.utils.groups import grouped_rewards, is_mixed


@dataclass(frozen=True)
class EntropyShaped(Slot):
    """Group advantages, and in groups all alike an advantage for each token from its entropy.

    In a group all right, a token of entropy H has +alpha H. In a group all wrong it has
    -alpha (max H - H), with the maximum over the response, so that the most uncertain token of a
    wrong answer is left alone.

    References
    ----------
    RL-ZVP (arXiv 2509.21880), alpha = .1.
    """

    alpha: Positive = 0.1

    needs = frozenset({"token_advantages", "token_entropy"})

    def __call__(self, rollouts: Rollouts, context: Context) -> Ragged:
        """One number for each response token."""
        entropy = rollouts.token_entropy
        if not np.array_equal(entropy.offsets, rollouts.response.offsets):
            raise ValueError("advantage: EntropyShaped needs the entropy of every response token")
        # What follows has one entry for each response token of the whole table, not padded.
        lengths = rollouts.lengths
        rewards, inverse, sizes = grouped_rewards(rollouts.reward, rollouts.group)
        is_uniform = ~is_mixed(rewards, inverse, len(sizes))[inverse]
        plain = np.repeat(group_normalized(rewards, rollouts.group), lengths)
        highest = np.zeros(len(rollouts))
        np.maximum.at(highest, np.repeat(np.arange(len(rollouts)), lengths), entropy.values)
        distance = np.repeat(highest, lengths) - entropy.values
        right = np.repeat(rollouts.correct, lengths)
        shaped = np.where(right, self.alpha * entropy.values, -self.alpha * distance)
        values = np.where(np.repeat(is_uniform, lengths), shaped, plain)
        return Ragged(values, entropy.offsets)


@method(paper="RL-ZVP (arXiv 2509.21880)", decides="advantage")
def rl_zvp(n: int = 8, alpha: float = 0.1) -> Method:
    """RL-ZVP: groups all alike are trained on, token by token, by their entropy.

    References
    ----------
    RL-ZVP (arXiv 2509.21880): alpha = .1, clip 0.2 and 0.28, token mean.
    """
    return Method("rl_zvp", allocator=Uniform(n), advantage=EntropyShaped(alpha))
