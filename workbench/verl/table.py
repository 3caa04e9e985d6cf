"""What verl knows of a rollout as ours, and what goes back to verl.

`workbench.verl.v1` works on the queue of verl's v1 trainer, and examples/verl_loop.py on
`DataProto`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench import adapters
from workbench.adapters import row_weights, token_advantages
from workbench.objectives import Objective
from workbench.rollouts import Ragged
from workbench.rounds import Round


class Verdict(adapters.Verdict):
    """Which rollouts are correct, by what verl knows of them.

    That is `acc`, where the reward function returns it: 1 is correct. Without it, a reward of at
    least `solved` is, and with solved=None a reward of 1, where nothing but 0 and 1 is given.
    """

    def __init__(self, solved: float | None = None, needed: bool = True) -> None:
        super().__init__(
            needed,
            advice="let the reward function return `acc`, or set `solved`, the reward from which a "
            "rollout counts as correct",
            solved=solved,
        )

    def __call__(self, reward: np.ndarray, acc: Sequence[Any]) -> np.ndarray:
        """The verdict (R,): 1 is correct, 0 is wrong, NaN not known.

        By rewards (R,) and R values of `acc`, None where there is none.
        """
        # What the reward function says goes before the bar.
        verdict = np.array([value is not None and float(value) == 1 for value in acc], dtype=float)
        rest = np.array([value is None for value in acc], dtype=bool)
        verdict[rest] = self.of_rewards(reward[rest], first=False)
        return verdict


def row_advantages(outcome: Round, objective: Objective, multiple: int) -> Ragged:
    """What verl multiplies the ratios of the selected rows with: advantages times row weights.

    Besides the weights of `adapters.row_weights` these are 0 for old responses that carry no
    gradient, and, where the loss is a mean over rollouts, what makes up for padding: verl fills the
    K rows up to a multiple of its mini-batch, and divides by the size with padding.

    Parameters
    ----------
    outcome : Round
    objective : Objective
    multiple : int
        Rows of a mini-batch.
    """
    # An advantage of zero leaves the row in verl's averages and takes its gradient away.
    carries_gradient = outcome.rollouts["gradient"][outcome.rows]
    is_uneven = outcome.weights is not None and (outcome.weights != 1).any()
    if (objective.kl > 0 or objective.entropy > 0) and (is_uneven or not carries_gradient.all()):
        raise ValueError(
            "weights: verl's KL penalty and entropy bonus do not follow the weights of rows; use "
            "an Objective with kl=0 and entropy=0"
        )
    weights = row_weights(outcome, objective.loss_aggregation) * carries_gradient
    if objective.loss_aggregation != "token" and len(weights):
        # The number of rows after padding, by which verl divides.
        padded = -(-len(weights) // multiple) * multiple
        weights = weights * (padded / len(weights))
    return token_advantages(outcome, weights)
