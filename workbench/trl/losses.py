"""What TRL's loss of a micro-batch leaves to correct, the entropy bonus, and what it measures.

TRL takes means over each micro-batch, and averages these. Here micro-batches differ in size, and
some are fillers, so a token must weigh the same in the bonus wherever it was computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from workbench.objectives import Objective, gains

CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")  # TRL's losses with a clip range


@dataclass(frozen=True)
class Part:
    """What a micro-batch is of its round. It travels in TRL's inputs under the key "workbench".

    Attributes
    ----------
    rows : (n,) int64
        Its rows in the round's table; none for a filler.
    scale : float
        What TRL's loss is multiplied with, so that every selected row of the round counts alike.
    """

    rows: np.ndarray
    scale: float


def with_bonus(
    loss: torch.Tensor,
    bonus: torch.Tensor,
    tokens_here: torch.Tensor,
    tokens_of_step: torch.Tensor,
    accumulated: int,
    scale: float,
) -> torch.Tensor:
    """TRL's loss of a micro-batch, scaled, with its entropy bonus averaged over the optimizer step.

    TRL averages the bonus over the tokens of each micro-batch. A token would then weigh more where
    a micro-batch has fewer of them, and fillers count as micro-batches without entropy.

    Parameters
    ----------
    loss : TRL's loss
    bonus : the sum of entropies over the micro-batch's tokens, times their coefficient
    tokens_here : tokens of the micro-batch
    tokens_of_step : tokens of the optimizer step, by process
    accumulated : micro-batches of an optimizer step
    scale : what everything but the bonus is multiplied with
    """
    # TRL has subtracted its own bonus, which is taken back exactly as TRL has computed it.
    without_bonus = loss + bonus / tokens_here.clamp(min=1) / accumulated
    return without_bonus * scale - bonus / tokens_of_step


def row_statistics(
    inputs: dict[str, Any],
    logprobs: torch.Tensor,
    entropy: torch.Tensor,
    mask: torch.Tensor,
    *,
    loss_type: str,
    clip: tuple[float, float],
    importance_sampling: str,
) -> np.ndarray:
    """Clip ratio, entropy and difference of log-probabilities of a micro-batch's rows, (3, n).

    Means over the tokens of the mask (n, T) bool. Losses without a clip range have clip ratio 0.
    """
    # TRL leaves them out where the rows are computed by the weights that sampled them.
    old_logprobs = inputs.get("old_per_token_logps", logprobs)
    clipped = torch.zeros_like(mask)
    if loss_type in CLIPPED:
        objective = Objective(clip, importance_sampling)
        _, clipped = gains(objective, logprobs, old_logprobs, inputs["advantages"], mask)
    columns = torch.stack([clipped.float(), entropy, (logprobs - old_logprobs).abs()])
    # Padding may hold anything, NaN included, so it is replaced and not multiplied by zero.
    sums = torch.where(mask, columns, 0.0).sum(2)
    return (sums / mask.sum(1).clamp(min=1)).cpu().numpy()
