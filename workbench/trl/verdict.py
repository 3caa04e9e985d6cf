"""Which rollouts are correct, where all that TRL knows of a rollout is its rewards.

Allocators, replay, rejection and success rates go by right and wrong. TRL's reward functions are
just numbers, and with several of them, such as one for the format and one for the answer, nothing
says which of them judges the answer. So it is asked for, or inferred by one rule: the only reward
function of a run judges, if it gives nothing but 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from accelerate.logging import get_logger

from workbench.advantages import (
    Asymmetric,
    BatchNormalized,
    GroupNormalized,
    InverseRootWeighted,
    LeaveOneOut,
    OfRewards,
    Pkpo,
    Posterior,
)
from workbench.allocators import Uniform
from workbench.curricula import ShuffledEpochs
from workbench.methods import Method
from workbench.replay import Buffer
from workbench.selectors import (
    All,
    GroupFilter,
    LargestAdvantage,
    MaxReward,
    MaxVariance,
    Pruned,
    Random,
    Scheduler,
    UniformDraws,
)
from workbench.utils.validation import booleans, shown

logger = get_logger(__name__)

# Slot values that never read `rollouts.correct`. Of any other it must be assumed.
READ_NO_VERDICT = (
    All,
    Asymmetric,
    BatchNormalized,
    Buffer,
    GroupFilter,
    GroupNormalized,
    InverseRootWeighted,
    LargestAdvantage,
    LeaveOneOut,
    MaxReward,
    MaxVariance,
    OfRewards,
    Pkpo,
    Posterior,
    Pruned,
    Random,
    Scheduler,
    ShuffledEpochs,
    Uniform,
    UniformDraws,
)


def reads_verdict(method: Method) -> bool:
    """Whether a slot may ask which rollouts are correct.

    Examples
    --------
    >>> from workbench import methods
    >>> reads_verdict(methods.pods(8, 4)), reads_verdict(methods.dapo(8))
    (False, True)
    """
    # The exact type, since a class derived from one of these may read the verdict.
    return any(type(value) not in READ_NO_VERDICT for value in method.learning().values())


def check_correct(correct: Any, names: Sequence[str], method: Method) -> None:
    """Raise ValueError unless `correct` says, or leaves it clear, which reward function judges.

    Parameters
    ----------
    correct : see `GRPOTrainer`
    names : names of the reward functions
    method : Method
    """
    choices = " or ".join(f"correct={name!r}" for name in dict.fromkeys(names))
    ways_out = f"pass {choices} (correct where it gives more than 0), or a function of the rewards"
    if correct is None:
        if len(names) > 1 and reads_verdict(method):
            raise ValueError(
                f"correct=None: the method {method.name!r} asks which rollouts are correct, and "
                f"there are {len(names)} reward functions; {ways_out}"
            )
    elif isinstance(correct, str):
        if list(names).count(correct) != 1:
            raise ValueError(f"correct={correct!r}: no reward function of that name; {ways_out}")
    elif not callable(correct):
        raise ValueError(
            f"correct={shown(correct)}: the name of a reward function or a function is needed; "
            f"{ways_out}"
        )


class Verdict:
    """Which rollouts are correct, by their rewards.

    Parameters
    ----------
    correct : see `GRPOTrainer`
    names : names of the F reward functions
    needed : bool
        Whether the method reads the verdict. If not, it may stay unknown.
    """

    def __init__(self, correct: Any, names: Sequence[str], needed: bool) -> None:
        self.correct = correct
        self.names = list(names)
        self.needed = needed
        # Of several reward functions nothing says which one judges.
        self.known = correct is not None or len(self.names) == 1
        self.warned = False

    def __call__(self, scores: np.ndarray, first: bool) -> np.ndarray:
        """The verdict on every rollout, (R,) bool; all False where it is not known.

        Parameters
        ----------
        scores : (R, F)
            NaN where a reward function gave None.
        first : bool
            Whether nothing has been trained on yet, so that an error costs little.

        Raises
        ------
        ValueError
            When nothing says what is correct, and the method needs to know.
        """
        if not self.known:
            return np.zeros(len(scores), dtype=bool)
        if self.correct is None:
            return self._inferred(scores[:, 0], first)
        if isinstance(self.correct, str):
            return self._named(scores[:, self.names.index(self.correct)])
        verdict = booleans("correct", self.correct(scores))
        if len(verdict) != len(scores):
            raise ValueError(
                f"correct: {shown(self.correct)} returned {len(verdict)} values for {len(scores)} "
                "rollouts; one for each is needed"
            )
        return verdict

    def _inferred(self, rewards: np.ndarray, first: bool) -> np.ndarray:
        """1 is correct, where the only reward function gives nothing but 0 and 1."""
        # NaN is a rollout that was not judged. It counts neither way.
        other = rewards[~np.isnan(rewards) & (rewards != 0) & (rewards != 1)]
        if not len(other):
            return rewards == 1
        (name,) = self.names
        message = (
            f"correct=None: the reward function {name} gave {other[0]:g}. Only 0 and 1 say by "
            f"themselves what is correct; pass correct={name!r} (correct where it gives more than "
            "0), or a function, such as correct=lambda rewards: rewards[:, 0] >= 0.5"
        )
        if not self.needed:
            self.known = False  # nobody asks, so it is just not logged
            return np.zeros(len(rewards), dtype=bool)
        # Early it costs little to stop and ask. Later a warning and the likeliest reading must do.
        if first:
            raise ValueError(message)
        self._warn(f"{message}. So far 1 was correct, and from now on 1 or more is.")
        return rewards >= 1

    def _named(self, rewards: np.ndarray) -> np.ndarray:
        """More than 0 is correct."""
        positive = np.unique(rewards[rewards > 0])
        if len(positive) > 1:
            self._warn(
                f"correct={self.correct!r}: the reward function gave both {positive[0]:g} and "
                f"{positive[-1]:g}, and either counts as correct. Pass a function to set another "
                "bar."
            )
        return rewards > 0

    def _warn(self, message: str) -> None:
        if not self.warned:
            logger.warning(message)
        self.warned = True
