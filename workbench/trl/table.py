"""What TRL's reward functions say of a rollout: its reward, and whether it is correct.

Allocators, replay, rejection and success rates go by right and wrong. TRL's reward functions are
just numbers, and with several of them, such as one for the format and one for the answer, nothing
says which of them judges the answer. So it is asked for, or inferred by one rule: the only reward
function of a run judges, if it gives nothing but 0 and 1.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench import adapters
from workbench.utils.groups import merge_same, precision_of
from workbench.utils.validation import booleans, brief, is_number


def weighted_sum(scores: np.ndarray, weights: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Rewards (R,): the weighted sum of scores (R, F), NaN where no reward function gave one.

    In TRL's single precision, so that 0.8 + 0.2 is 1. Sums of a group that differ by rounding alone
    are made equal here, where the size of what they are summed from is still known.
    """
    # A function that gave None adds nothing. The sum of nothing at all would be 0, which is a
    # reward, so such rows are set to NaN.
    weighted = scores * weights
    is_known = ~np.isnan(scores).all(axis=1)
    rewards = np.where(is_known, np.nansum(weighted, axis=1), np.nan).astype(np.float64)
    sizes = np.nansum(np.abs(weighted), axis=1)
    # What is not finite is named later, with its rollout.
    finite = np.isfinite(rewards)
    rewards[finite] = merge_same(
        rewards[finite], groups[finite], precision_of(weighted), sizes[finite]
    )
    return rewards


class Verdict(adapters.Verdict):
    """Which rollouts are correct, by their rewards.

    Parameters
    ----------
    correct : see `GRPOTrainer`
    names : names of the F reward functions
    needed : bool
        Whether the method must know it. If not, it may stay unknown.

    Raises
    ------
    ValueError
        Unless `correct` says, or leaves it clear, which reward function judges.
    """

    def __init__(self, correct: Any, names: Sequence[str], needed: bool) -> None:
        choices = " or ".join(f"correct={name!r}" for name in names)
        advice = (
            f"pass {choices} (correct where it gives more than 0), the reward from which the only "
            "one says so, such as correct=0.5, or a function of all rewards, such as "
            "correct=lambda rewards: rewards[:, 0] >= 0.5"
        )
        if correct is None:
            fits = len(names) <= 1 or not needed
        elif isinstance(correct, str):
            fits = names.count(correct) == 1
        elif is_number(correct):
            fits = len(names) == 1
        else:
            fits = callable(correct)
        if not fits:
            raise ValueError(
                f"correct={brief(correct)}: it does not say which of {len(names)} reward functions "
                f"tells right from wrong; {advice}"
            )
        super().__init__(needed, advice, correct if is_number(correct) else None)
        self.correct = correct
        self.names = list(names)
        # Of several reward functions nothing says which one judges.
        self.known = correct is not None or len(self.names) == 1

    def __call__(self, scores: np.ndarray, first: bool) -> np.ndarray:
        """The verdict on every rollout, (R,): 1 is correct, 0 is wrong, NaN not known.

        Parameters
        ----------
        scores : (R, F)
            NaN where a reward function gave None.
        first : see `of_rewards`
        """
        if self.correct is None or self.solved is not None:
            return self.of_rewards(scores[:, 0], first)
        if isinstance(self.correct, str):
            return (scores[:, self.names.index(self.correct)] > 0).astype(float)
        return booleans("correct", self.correct(scores)).astype(float)
