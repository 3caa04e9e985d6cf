"""What TRL's loss of a micro-batch leaves to correct: the entropy bonus and the metrics.

TRL takes means over each micro-batch, and averages these. Here micro-batches differ in size, and
some are fillers, so a token must weigh the same wherever it was computed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from workbench.objectives import Objective, gains

CISPO_CLIPPED = "cispo_clip_ratio"  # TRL's name for the share of clipped ratios of CISPO
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
    tokens : float
        Response tokens that all processes together train on at this micro-step.
    sequences : int
        Rows that all processes together train on at this micro-step.
    fillers : int
        Processes that have a filler at this micro-step.
    """

    rows: np.ndarray
    scale: float
    tokens: float
    sequences: int
    fillers: int


class LossMetrics:
    """TRL's metrics of the loss since they were logged last, with the weights of micro-batches.

    Parameters
    ----------
    per_sequence : bool
        Whether clip ratios are means over sequences.
    """

    def __init__(self, per_sequence: bool) -> None:
        self.per_sequence = per_sequence
        self.values: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def take(self, metrics: dict[str, list[float]], before: dict[str, int], part: Part) -> None:
        """Move what was added to TRL's lists of metrics since they had `before` entries."""
        # What TRL has appended in the loss at work is taken out of its lists again, since it would
        # average them without weights. `means` gives them back when TRL logs.
        for name, values in metrics.items():
            start = before.get(name, 0)
            weight, dilution = self._weight(name, part)
            for value in values[start:]:
                self.values[name].append((value * dilution, weight))
            del values[start:]

    def means(self) -> dict[str, float]:
        """Weighted means of what was taken; metrics without any weight are left out."""
        means = {}
        for name, pairs in self.values.items():
            values, weights = np.array(pairs).T
            # A micro-step of fillers alone has no tokens, and its metrics may be NaN.
            counted = np.isfinite(values) & (weights > 0)
            if counted.any():
                means[name] = float(np.average(values[counted], weights=weights[counted]))
        self.values.clear()
        return means

    def _weight(self, name: str, part: Part) -> tuple[float, float]:
        """The weight of a metric of a micro-batch, and what undoes its dilution by fillers."""
        # One weight for each sequence, whatever the level of importance sampling is.
        if name == "vespo/phi_seq_mean":
            return part.sequences, 1.0
        # All other metrics are taken as means over tokens, to which a filler's masked tokens add
        # nothing.
        is_clip_ratio = name == CISPO_CLIPPED or name.startswith("clip_ratio/")
        if not (self.per_sequence and is_clip_ratio):
            return part.tokens, 1.0
        is_mean = name == CISPO_CLIPPED or name.endswith("_mean")
        if not is_mean or not part.sequences:
            return part.sequences, 1.0
        # TRL's mean over sequences counts each filler as a row that is not clipped.
        return part.sequences, (part.sequences + part.fillers) / part.sequences


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
