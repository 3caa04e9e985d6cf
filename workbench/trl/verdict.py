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

from workbench import adapters
from workbench.methods import Method
from workbench.utils.validation import booleans, is_number, shown


def check_correct(correct: Any, names: Sequence[str], method: Method) -> None:
    """Raise ValueError unless `correct` says, or leaves it clear, which reward function judges.

    Parameters
    ----------
    correct : see `GRPOTrainer`
    names : names of the reward functions
    method : Method
    """
    if correct is None:
        problem = (
            f"the method {method.name!r} asks which rollouts are correct, and there are "
            f"{len(names)} reward functions"
        )
        wrong = len(names) > 1 and method.reads_verdict
    elif isinstance(correct, str):
        problem = "no reward function of that name"
        wrong = list(names).count(correct) != 1
    elif is_number(correct):
        problem = f"a number goes with one reward function, and there are {len(names)}"
        wrong = len(names) != 1
    else:
        problem = "the name of a reward function, a number or a function is needed"
        wrong = not callable(correct)
    if wrong:
        raise ValueError(f"correct={shown(correct)}: {problem}; {_ways_out(names)}")


def _ways_out(names: Sequence[str]) -> str:
    choices = " or ".join(f"correct={name!r}" for name in dict.fromkeys(names))
    return (
        f"pass {choices} (correct where it gives more than 0), the reward from which the only one "
        "says so, such as correct=0.5, or a function of all rewards, such as "
        "correct=lambda rewards: rewards[:, 0] >= 0.5"
    )


class Verdict(adapters.Verdict):
    """Which rollouts are correct, by their rewards.

    Parameters
    ----------
    correct : see `GRPOTrainer`
    names : names of the F reward functions
    needed : bool
        Whether the method must know it. If not, it may stay unknown.
    """

    def __init__(self, correct: Any, names: Sequence[str], needed: bool) -> None:
        super().__init__(needed, _ways_out(names), correct if is_number(correct) else None)
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
            return self._named(scores[:, self.names.index(self.correct)])
        verdict = booleans("correct", self.correct(scores))
        if len(verdict) != len(scores):
            raise ValueError(
                f"correct: {shown(self.correct)} returned {len(verdict)} values for {len(scores)} "
                "rollouts; one for each is needed"
            )
        return verdict.astype(float)

    def _named(self, rewards: np.ndarray) -> np.ndarray:
        """More than 0 is correct."""
        positive = np.unique(rewards[rewards > 0])
        if len(positive) > 1:
            self.warn(
                f"correct={self.correct!r}: the reward function gave both {positive[0]:g} and "
                f"{positive[-1]:g}, and either counts as correct. Pass a function to set another "
                "bar."
            )
        return (rewards > 0).astype(float)
