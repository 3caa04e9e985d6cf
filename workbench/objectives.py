"""The loss: clipped policy-gradient objectives in one form.

GRPO is `ratio="token", mean="rollout"`; DAPO `ratio="token", mean="token"`; GSPO `ratio="sequence", mean="rollout"`;
Dr. GRPO `ratio="token", mean="constant"`. Sources: CBS appendix A writes the first three in one form.
"""

from dataclasses import dataclass

import torch

from workbench.utils.columns import is_number, whole_number

RATIOS = ("token", "sequence")
MEANS = ("rollout", "token", "constant")


@dataclass(frozen=True)
class Objective:
    """What one update minimises: `policy_loss` and, optionally, a KL penalty and an entropy bonus.

    clip: (low, high), the ratio stays within [1 - low, 1 + high]; high may be infinite. Default 0.2, 0.28 (DAPO; Knapsack RL).
    ratio: importance ratio a token, or a sequence (GSPO, CBS eq. 18-19).
    mean: how tokens are averaged, see `token_weights`. length: L of mean="constant"; None takes the sampling limit.
    kl: weight beta of the penalty KL(policy || reference) by the k3 estimator (AERO eq. 2); 0 needs no reference.
    entropy: weight of the bonus on mean token entropy.
    """

    clip: tuple = (0.2, 0.28)
    ratio: str = "token"
    mean: str = "token"
    length: int | None = None
    kl: float = 0.0
    entropy: float = 0.0

    def __post_init__(self):
        _check(self.clip, self.ratio, self.mean)
        if self.length is not None:
            whole_number("length", self.length, 1)
        for name in ("kl", "entropy"):
            if not (is_number(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(
                    f"{name}={getattr(self, name)}: zero or a positive weight is needed"
                )


def policy_loss(
    logprobs,
    behaviour,
    advantages,
    mask,
    *,
    clip=(0.2, 0.28),
    ratio="token",
    mean="token",
    length=None,
    weights=None,
):
    """The clipped policy-gradient loss, a scalar torch tensor (to be minimised).

    logprobs (R, T) under the current policy, with gradient; behaviour (R, T) under the policy that sampled;
    advantages (R,); mask (R, T) bool, True at response tokens. clip, ratio, mean: see `Objective`.
    length: the L of mean="constant" (default: T). weights (R, T): overrides `mean`, for a part of a larger batch.
    ValueError for unknown `ratio` or `mean`, or a clip range that is not (low, high) with low in [0, 1], high >= 0.
    """
    _check(clip, ratio, mean)
    if weights is None:
        weights = token_weights(mask, mean, length or mask.shape[1])
    gain, _ = surrogate(logprobs, behaviour, advantages, mask, clip=clip, ratio=ratio)
    return -(gain * weights).sum()


def surrogate(logprobs, behaviour, advantages, mask, *, clip, ratio):
    """Each token's clipped objective (R, T), and where the clip took effect (R, T) bool."""
    log_ratio = torch.where(mask, logprobs - behaviour, 0.0)
    if ratio == "sequence":
        lengths = mask.sum(1, keepdim=True).clamp(min=1)
        sequence = log_ratio.sum(1, keepdim=True) / lengths
        # the value is the sequence ratio, the gradient reaches it through each token (CBS eq. 19)
        log_ratio = torch.where(mask, sequence.detach() + logprobs - logprobs.detach(), 0.0)
    value, advantage = log_ratio.exp(), advantages[:, None]
    bounded = value.clamp(1 - clip[0], 1 + clip[1])
    gain = torch.minimum(value * advantage, bounded * advantage)
    return gain, mask & (bounded * advantage < value * advantage)


def token_weights(mask, mean, length):
    """(R, T) weights whose sum over the objective gives its mean over the whole batch.

    mean="rollout": the mean over rollouts of the mean over their tokens (GRPO); "token": one mean over all tokens
    (DAPO); "constant": the sum over tokens divided by R * length (Dr. GRPO).
    """
    weights = mask.float()
    if mean == "rollout":
        return weights / (weights.sum(1, keepdim=True).clamp(min=1) * len(mask))
    if mean == "token":
        return weights / weights.sum().clamp(min=1)
    return weights / (len(mask) * length)


def kl_estimate(logprobs, reference):
    """The k3 estimate of KL(policy || reference) at each sampled token, (R, T): exp(d) - d - 1, d = reference - logprobs."""
    difference = reference - logprobs
    return difference.exp() - difference - 1


def _check(clip, ratio, mean):
    if ratio not in RATIOS:
        raise ValueError(f"ratio={ratio!r}: allowed are {', '.join(RATIOS)}")
    if mean not in MEANS:
        raise ValueError(f"mean={mean!r}: allowed are {', '.join(MEANS)}")
    pair = (
        isinstance(clip, (tuple, list))
        and len(clip) == 2
        and all(is_number(x) or x == float("inf") for x in clip)
    )
    if not pair or not (0 <= clip[0] <= 1 and clip[1] >= 0):
        raise ValueError(f"clip={clip}: (low, high) with low in [0, 1] and high >= 0 is needed")
