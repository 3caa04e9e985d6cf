"""From what TRL sampled and scored to a table of rollouts, and back to TRL's tensors.

Allocators, replay, rejection and success rates go by right and wrong. TRL's reward functions are
just numbers, and with several of them, such as one for the format and one for the answer, nothing
says which of them judges the answer. So it is asked for, or inferred by one rule: the only reward
function of a run judges, if it gives nothing but 0 and 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from workbench import adapters
from workbench.methods import Method
from workbench.rollouts import Ragged, Rollouts
from workbench.utils.groups import merge_same, precision_of
from workbench.utils.validation import booleans, brief, is_number

# What a rollout may carry for TRL's loss besides its tokens: what vLLM reports, and which tokens
# the model itself wrote where tools or environments answer it.
FOR_THE_LOSS = ("sampling_per_token_logps", "importance_sampling_ratio", "tool_mask")


@dataclass(frozen=True)
class Padding:
    """How rows of different lengths become TRL's tensors.

    Attributes
    ----------
    token : int
        The padding token.
    multiple : int, optional
        Widths are multiples of it.
    device : torch.device
    """

    token: int
    multiple: int | None
    device: torch.device

    def tensor(self, rows: Ragged, fill: float = 0, side: str = "right") -> torch.Tensor:
        """The rows as (R, T), filled up on one side."""
        padded = rows.padded(fill, side)
        missing = -padded.shape[1] % (self.multiple or 1)
        if missing:
            width = (missing, 0) if side == "left" else (0, missing)
            padded = np.pad(padded, ((0, 0), width), constant_values=fill)
        return torch.as_tensor(padded, device=self.device)

    def tokens(self, rollouts: Rollouts, shown: np.ndarray | None = None) -> dict[str, Any]:
        """Tokens and masks under TRL's names; responses with shown (R,) False are masked."""
        if shown is None:
            shown = np.ones(len(rollouts), dtype=bool)
        ones = np.ones(len(rollouts.prompt.values), dtype=np.int64)
        visible = np.repeat(shown.astype(np.int64), rollouts.lengths)
        return {
            "prompt_ids": self.tensor(rollouts.prompt, self.token, "left").long(),
            "prompt_mask": self.tensor(Ragged(ones, rollouts.prompt.offsets), 0, "left"),
            "completion_ids": self.tensor(rollouts.response, self.token).long(),
            "completion_mask": self.tensor(Ragged(visible, rollouts.response.offsets)),
        }

    def column(self, values: np.ndarray, lengths: np.ndarray, fill: float = 0) -> torch.Tensor:
        """A column of arrays, (R,) object, as (R, T) for responses of so many tokens.

        As (R, 1) where it has one number a response, such as the ratio of a whole sequence.
        """
        rows = Ragged.of(values, np.float32)
        if np.array_equal(rows.lengths, lengths):
            return self.tensor(rows, fill)
        return torch.as_tensor(rows.padded(fill), device=self.device)


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


def trained_tokens(table: Rollouts) -> np.ndarray:
    """Tokens of each response that the model itself wrote, (R,) int64."""
    if "tool_mask" not in table:
        return table.lengths
    return np.array([int(mask.sum()) for mask in table["tool_mask"]], dtype=np.int64)


def rows_as_objects(values: torch.Tensor, lengths: np.ndarray) -> np.ndarray:
    """Padded rows as a column of arrays of their own lengths, (R,) object."""
    column = np.empty(len(lengths), dtype=object)
    for i, row in enumerate(values.float().cpu().numpy()):
        # One array a row, so that each keeps its own length in the table.
        column[i] = row[: lengths[i]]
    return column


# Which rollouts are correct


def check_correct(correct: Any, names: Sequence[str], method: Method) -> None:
    """Raise ValueError unless `correct` says, or leaves it clear, which reward function judges.

    Parameters
    ----------
    correct : see `GRPOTrainer`
    names : names of the reward functions
    method : Method
    """
    if correct is None:
        fits = len(names) <= 1 or not method.reads_verdict
    elif isinstance(correct, str):
        fits = correct in names
    elif is_number(correct):
        fits = len(names) == 1
    else:
        fits = callable(correct)
    if not fits:
        raise ValueError(
            f"correct={brief(correct)}: it does not say which of {len(names)} reward functions "
            f"tells right from wrong, and the method {method.name!r} goes by it; {_advice(names)}"
        )


def _advice(names: Sequence[str]) -> str:
    choices = " or ".join(f"correct={name!r}" for name in names)
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
        super().__init__(needed, _advice(names), correct if is_number(correct) else None)
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
