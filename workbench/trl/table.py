"""From what TRL sampled and scored to a table of rollouts, and back to TRL's tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from workbench.rollouts import Ragged, Rollouts

# What a rollout may carry for TRL's loss besides its tokens: what vLLM reports, and which tokens
# the model itself wrote where tools or environments answer it.
FOR_THE_LOSS = ("sampling_per_token_logps", "importance_sampling_ratio", "tool_mask")
# What TRL makes of a generation. Anything else is of another kind than text.
CARRIED = {
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "advantages",
    "num_items_in_batch",
    "old_per_token_logps",
    "ref_per_token_logps",
    *FOR_THE_LOSS,
}


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

    def column(self, values: np.ndarray, fill: float = 0) -> torch.Tensor:
        """A column of arrays, (R,) object, as (R, T)."""
        return self.tensor(Ragged.of(values, np.float32), fill)


def weighted_sum(scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Rewards (R,): the weighted sum of scores (R, F), NaN where no reward function gave one.

    In TRL's single precision, so that 0.8 + 0.2 is 1.
    """
    infinite = np.isinf(scores)
    if infinite.any():
        raise ValueError(
            f"reward_funcs: a reward is {scores[infinite][0]}; finite numbers or None are needed"
        )
    # A function that gave None adds nothing. The sum of nothing at all would be 0, which is a
    # reward, so such rows are set to NaN.
    rewards = np.nansum(scores * weights, axis=1)
    return np.where(np.isnan(scores).all(axis=1), np.nan, rewards)


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
