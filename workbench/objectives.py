"""The loss: clipped policy-gradient objectives in one form.

| method   | importance_sampling | loss_aggregation |
| -------- | ------------------- | ---------------- |
| GRPO     | "token"             | "rollout"        |
| DAPO     | "token"             | "token"          |
| GSPO     | "sequence"          | "rollout"        |
| Dr. GRPO | "token"             | "constant"       |
| AERO     | "token"             | "group"          |

CBS (arXiv 2602.08499), appendix A, writes the first three in one form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from workbench.utils.validation import is_number, one_of, positive_number, whole_number

IMPORTANCE_SAMPLING = ("token", "sequence")
LOSS_AGGREGATION = ("rollout", "token", "group", "constant")


@dataclass(frozen=True)
class Objective:
    """What one update minimises: `policy_loss` and, optionally, a KL penalty and an entropy bonus.

    Attributes
    ----------
    clip : (low, high)
        The ratio of new to old probabilities stays within [1 - low, 1 + high]; high may be
        infinite. The default is that of DAPO and Knapsack RL.
    importance_sampling : {"token", "sequence"}
        One ratio for each token, or one for a whole response (GSPO; CBS, equations 18 and 19).
    loss_aggregation : {"rollout", "token", "group", "constant"}
        How tokens are averaged, see `token_weights`.
    length : int, optional
        The L of loss_aggregation="constant", in tokens; None takes the limit of the sampling.
    kl : float
        Weight of the penalty KL(policy || reference), by the k3 estimator (AERO, equation 2). 0
        needs no reference.
    entropy : float
        Weight of the bonus on the mean entropy of tokens.
    """

    clip: tuple[float, float] = (0.2, 0.28)
    importance_sampling: str = "token"
    loss_aggregation: str = "token"
    length: int | None = None
    kl: float = 0.0
    entropy: float = 0.0

    def __post_init__(self) -> None:
        _check(self.clip, self.importance_sampling, self.loss_aggregation)
        if self.length is not None:
            whole_number("length", self.length, 1)
        positive_number("kl", self.kl, zero=True)
        positive_number("entropy", self.entropy, zero=True)


def policy_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip: tuple[float, float] = (0.2, 0.28),
    importance_sampling: str = "token",
    loss_aggregation: str = "token",
    length: int | None = None,
    groups: Any = None,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """The clipped policy-gradient loss, a scalar to be minimised.

    Parameters
    ----------
    logprobs : (R, T)
        Log-probabilities under the current policy, with gradient.
    old_logprobs : (R, T)
        Log-probabilities under the policy that sampled.
    advantages : (R,) or (R, T)
    mask : (R, T) bool
        True at response tokens.
    clip, importance_sampling, loss_aggregation
        See `Objective`.
    length : int, optional
        The L of loss_aggregation="constant"; T without one.
    groups : (R,) keys, optional
        Which rollouts belong together, for loss_aggregation="group".
    weights : (R, T), optional
        Weight of every token, in place of loss_aggregation; for a part of a larger batch.

    Raises
    ------
    ValueError
        For an unknown name, or a clip range that is not (low, high) with low in [0, 1] and high of
        at least 0.

    Examples
    --------
    One response of two tokens, on-policy, with advantage 2: every ratio is 1, so the loss is minus
    the advantage.

    >>> old = torch.log(torch.tensor([[0.5, 0.25]]))
    >>> mask = torch.tensor([[True, True]])
    >>> float(policy_loss(old, old, torch.tensor([2.0]), mask))
    -2.0

    If the new policy makes both tokens 1.5 times as likely, the ratios are clipped at 1.28.

    >>> new = old + torch.log(torch.tensor(1.5))
    >>> round(float(policy_loss(new, old, torch.tensor([2.0]), mask)), 4)
    -2.56
    """
    _check(clip, importance_sampling, loss_aggregation)
    if weights is None:
        weights = token_weights(mask, loss_aggregation, length or mask.shape[1], groups)
    gain, _ = surrogate(
        logprobs,
        old_logprobs,
        advantages,
        mask,
        clip=clip,
        importance_sampling=importance_sampling,
    )
    return -(gain * weights).sum()


def surrogate(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip: tuple[float, float],
    importance_sampling: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token's clipped objective (R, T), and where the clip took effect (R, T) bool.

    Arguments: see `policy_loss`.
    """
    # Padding may hold anything, infinities included, and must not reach a sum.
    log_ratio = torch.where(mask, logprobs - old_logprobs, 0.0)
    if importance_sampling == "sequence":
        lengths = mask.sum(1, keepdim=True).clamp(min=1)
        sequence = log_ratio.sum(1, keepdim=True) / lengths
        # The value is the ratio of the sequence; the gradient reaches it through each token (CBS,
        # equation 19).
        log_ratio = torch.where(mask, sequence.detach() + logprobs - logprobs.detach(), 0.0)
    ratio = log_ratio.exp()
    if advantages.dim() == 1:
        advantages = advantages[:, None]
    bounded = ratio.clamp(1 - clip[0], 1 + clip[1])
    # The lower of the two: where the clip would raise the objective it is not applied.
    gain = torch.minimum(ratio * advantages, bounded * advantages)
    clipped = mask & (bounded * advantages < ratio * advantages)
    return gain, clipped


def token_weights(
    mask: torch.Tensor, loss_aggregation: str, length: int | None = None, groups: Any = None
) -> torch.Tensor:
    """Weights (R, T) whose sum over the objective gives its mean over the whole batch.

    Parameters
    ----------
    mask : (R, T) bool
    loss_aggregation : {"rollout", "token", "group", "constant"}
        "rollout": the mean over rollouts of the mean over their tokens (GRPO). "token": one mean
        over all tokens (DAPO). "group": the mean over groups of the mean over their rollouts of the
        mean over their tokens (AERO, equations 2 and 8). "constant": the sum over tokens divided by
        R * length (Dr. GRPO).
    length : int
        The constant, in tokens.
    groups : (R,) keys
        Which rollouts belong together, for "group".

    Examples
    --------
    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> token_weights(mask, "rollout")
    tensor([[0.2500, 0.2500],
            [0.5000, 0.0000]])
    """
    weights = mask.float()
    if loss_aggregation == "token":
        return weights / weights.sum().clamp(min=1)
    if loss_aggregation == "constant":
        if length is None:
            raise ValueError("length=None: loss_aggregation='constant' needs a number of tokens")
        return weights / (len(mask) * length)
    lengths = weights.sum(1, keepdim=True).clamp(min=1)
    if loss_aggregation == "rollout":
        return weights / (lengths * len(mask))
    if groups is None:
        raise ValueError("groups=None: loss_aggregation='group' needs the group of every rollout")
    _, inverse, sizes = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    rollouts_of_group = torch.as_tensor(sizes[inverse], dtype=weights.dtype, device=mask.device)
    return weights / (lengths * rollouts_of_group[:, None] * len(sizes))


def kl_estimate(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """The k3 estimate of KL(policy || reference) at each sampled token, (R, T).

    exp(d) - d - 1 with d = reference - policy log-probability; it is never negative.
    """
    difference = reference_logprobs - logprobs
    return difference.exp() - difference - 1


def _check(clip: Any, importance_sampling: Any, loss_aggregation: Any) -> None:
    one_of("importance_sampling", importance_sampling, IMPORTANCE_SAMPLING)
    one_of("loss_aggregation", loss_aggregation, LOSS_AGGREGATION)
    pair = isinstance(clip, tuple | list) and len(clip) == 2
    pair = pair and all(is_number(bound) or bound == float("inf") for bound in clip)
    if not pair or not (0 <= clip[0] <= 1 and clip[1] >= 0):
        raise ValueError(f"clip={clip}: (low, high) with low in [0, 1] and high >= 0 is needed")
