"""The loss: policy-gradient objectives in one form.

| method   | surrogate  | importance_sampling | loss_aggregation |
| -------- | ---------- | ------------------- | ---------------- |
| GRPO     | "clip"     | "token"             | "rollout"        |
| DAPO     | "clip"     | "token"             | "token"          |
| GSPO     | "clip"     | "sequence"          | "rollout"        |
| Dr. GRPO | "clip"     | "token"             | "constant"       |
| AERO     | "clip"     | "token"             | "group"          |
| CISPO    | "cispo"    | "token"             | "token"          |
| SAPO     | "sapo"     | "token"             | "rollout"        |
| GMPO     | "gmpo"     | its own             | "rollout"        |
| Clip-Cov | "clip_cov" | "token"             | "token"          |
| KL-Cov   | "kl_cov"   | "token"             | "token"          |

CBS (arXiv 2602.08499), appendix A, writes the first three in one form.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch

from workbench.utils.bounds import Count, PositiveOrZero, Share, check_arguments, choice, pair
from workbench.utils.validation import is_number, number

IMPORTANCE_SAMPLING = ("token", "sequence")
LOSS_AGGREGATION = ("rollout", "token", "group", "constant")
SURROGATES = ("clip", "cispo", "sapo", "gmpo", "clip_cov", "kl_cov")
BY_COVARIANCE = ("clip_cov", "kl_cov")  # the surrogates that treat some tokens apart
SAMPLER_CORRECTION = ("off", "truncate", "mask", "sequence_truncate", "sequence_mask")
USUAL_CORRECTION = ("sequence_mask", 3.0)  # that of TRL by default, with its cap
BESIDE_THE_SURROGATE = ("kl", "entropy", "sampler_correction", "sampler_cap")


# Bounds of the arguments below


def _clip_range(name: str, value: Any) -> None:
    are_two = isinstance(value, tuple | list) and len(value) == 2
    # Infinity is no number by `is_number`, but it is allowed as the absence of a bound.
    are_bounds = are_two and all(is_number(each) or each == float("inf") for each in value)
    if not are_bounds or not (0 <= value[0] <= 1 and value[1] >= 0):
        raise ValueError(f"{name}={value}: (low, high) with low in [0, 1] and high >= 0 is needed")


@dataclass(frozen=True)
class Objective:
    """What one update minimises: `policy_loss` and, optionally, a KL penalty and an entropy bonus.

    Attributes
    ----------
    clip : (low, high)
        The ratio of new to old probabilities stays within [1 - low, 1 + high]; high may be
        infinite. The default is that of DAPO and Knapsack RL. "gmpo" bounds the logarithm of the
        ratio instead, to [-low, high]; "sapo" and "kl_cov" have no bound and leave it unread.
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
    surrogate : {"clip", "cispo", "sapo", "gmpo", "clip_cov", "kl_cov"}
        What each token contributes, see `gains`.
    dual_clip : float, optional
        For negative advantages the ratio counts at most as this number, which must exceed 1; with
        "clip" and "clip_cov". 3 in verl, 10 in its DAPO recipes; None is off, as in the papers
        above.
    temperatures : (positive, negative)
        Of "sapo", for advantages above 0 and for the others.
    covariance_share : float
        Share of the tokens of an optimizer step that "clip_cov" or "kl_cov" treats apart, at least
        one token.
    covariance_range : (low, high)
        "clip_cov" chooses among the tokens whose covariance lies strictly between these.
    covariance_kl : float
        Weight of the penalty on the tokens that "kl_cov" chooses.
    sampler_correction : {"off", "truncate", "mask", "sequence_truncate", "sequence_mask"}, optional
        Weigh tokens, or whole responses, by how much likelier the trainer's policy makes them than
        the program that sampled, such as vLLM, see `sampler_weights`. None is "sequence_mask" with
        a cap of 3, and "off" leaves the difference as it is. Where the trainer samples itself there
        is none, and that of a lab with a lag is left as it is by default.
    sampler_cap : float
        The largest of these weights, at least 1, for a correction that is named.

    References
    ----------
    Dual clip: Ye et al. (arXiv 1912.09729). SAPO (arXiv 2511.20347): temperatures 1 and 1.05.
    Clip-Cov and KL-Cov (arXiv 2505.22617): the defaults are verl's; the authors' own code has a
    share of 2e-3 and a weight of 1 with "kl_cov".
    """

    clip: Annotated[tuple[float, float], _clip_range] = (0.2, 0.28)
    importance_sampling: Annotated[str, choice(*IMPORTANCE_SAMPLING)] = "token"
    loss_aggregation: Annotated[str, choice(*LOSS_AGGREGATION)] = "token"
    length: Count | None = None
    kl: PositiveOrZero = 0.0
    entropy: PositiveOrZero = 0.0
    surrogate: Annotated[str, choice(*SURROGATES)] = "clip"
    dual_clip: Annotated[float, partial(number, above=1)] | None = None
    temperatures: Annotated[tuple[float, float], partial(pair, above=0)] = (1.0, 1.05)
    covariance_share: Share = 2e-4
    covariance_range: Annotated[tuple[float, float], partial(pair, rising=True)] = (1.0, 5.0)
    covariance_kl: PositiveOrZero = 0.1
    sampler_correction: Annotated[str, choice(*SAMPLER_CORRECTION)] | None = None
    sampler_cap: Annotated[float, partial(number, low=1)] = 2.0

    def __post_init__(self) -> None:
        check_arguments(self)
        if self.surrogate == "gmpo" and self.importance_sampling != "token":
            raise ValueError(
                f"importance_sampling={self.importance_sampling!r}: surrogate='gmpo' has its own "
                "ratio of a whole response; leave it at 'token'"
            )
        if self.dual_clip is not None and self.surrogate not in ("clip", "clip_cov"):
            raise ValueError(
                f"dual_clip={self.dual_clip!r}: surrogate={self.surrogate!r} has no such bound; it "
                "goes with 'clip' and 'clip_cov'"
            )

    @property
    def correction(self) -> tuple[str, float]:
        """The correction where another program samples, and its cap."""
        if self.sampler_correction is None:
            return USUAL_CORRECTION
        return self.sampler_correction, self.sampler_cap


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
    **surrogate: Any,
) -> torch.Tensor:
    """The policy-gradient loss, a scalar to be minimised.

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
    surrogate
        The surrogate and its options, see `Objective`: surrogate="sapo", dual_clip=3.0.

    Raises
    ------
    ValueError
        For an unknown name, for a part of an `Objective` that is not of the surrogate, or a clip
        range that is not (low, high) with low in [0, 1] and high of at least 0.

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
    if beside := sorted(surrogate.keys() & BESIDE_THE_SURROGATE):
        raise ValueError(f"{beside[0]}={surrogate[beside[0]]!r}: it is no part of policy_loss")
    # Its constructor checks all names and ranges.
    objective = Objective(clip, importance_sampling, loss_aggregation, **surrogate)
    if weights is None:
        weights = token_weights(mask, loss_aggregation, length or mask.shape[1], groups)
    chosen = None
    if objective.surrogate in BY_COVARIANCE:
        chosen = tokens_by_covariance(objective, logprobs, old_logprobs, advantages, mask)
    gain, _ = gains(objective, logprobs, old_logprobs, advantages, mask, chosen)
    return -(gain * weights).sum()


def gains(
    objective: Objective,
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    chosen: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What each token adds to the objective (R, T), and where a bound took effect (R, T) bool.

    With A the advantage and r the ratio of new to old probabilities, and sg(x) the value of x
    without its gradient, a token adds

    - "clip": min(r A, bounded r A);
    - "cispo": sg(bounded r) A log p, so that every token keeps a gradient;
    - "sapo": A (4 / tau) sigmoid(tau (r - 1)), whose slope in r is 1 at r = 1 and fades smoothly on
      both sides;
    - "gmpo": A times the geometric mean of the response's ratios, each bounded on the side that
      would raise the objective;
    - "clip_cov": as "clip", but nothing for the tokens `chosen`;
    - "kl_cov": r A without a bound, minus covariance_kl |log r| for the tokens `chosen`.

    Parameters
    ----------
    objective : Objective
    logprobs, old_logprobs, advantages, mask
        See `policy_loss`.
    chosen : (R, T) bool, optional
        What `tokens_by_covariance` returned, for "clip_cov" and "kl_cov"; None for no token.

    References
    ----------
    CISPO: MiniMax-M1 (arXiv 2506.13585). SAPO (arXiv 2511.20347). GMPO (arXiv 2507.20673). Clip-Cov
    and KL-Cov (arXiv 2505.22617).
    """
    if advantages.dim() == 1:
        advantages = advantages[:, None]
    chosen = torch.zeros_like(mask) if chosen is None else chosen
    log_ratio = log_ratio_of(logprobs, old_logprobs, mask, objective.importance_sampling)
    if objective.surrogate == "gmpo":
        sign = torch.sign(advantages)
        bounded = log_ratio.clamp(-objective.clip[0], objective.clip[1])
        # Positive advantages are bounded above and negative ones below; the other side stays free.
        pessimistic = sign * torch.minimum(sign * log_ratio, sign * bounded)
        mean = pessimistic.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        # Each token carries the gain of its whole response, so that their mean gives it back.
        gain = (advantages * mean.exp()).expand_as(log_ratio)
        return gain, mask & (sign * bounded < sign * log_ratio)
    ratio = log_ratio.exp()
    if objective.surrogate == "sapo":
        positive, negative = objective.temperatures
        temperature = torch.where(advantages > 0, positive, negative)
        # The gate fades and has no bound, so no token counts as clipped.
        gate = torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature
        return advantages * gate, torch.zeros_like(mask)
    bounded = ratio.clamp(1 - objective.clip[0], 1 + objective.clip[1])
    if objective.surrogate == "cispo":
        # Detached, the ratio only weighs the gradient of the log-probability.
        gain = bounded.detach() * advantages * torch.where(mask, logprobs, 0.0)
        return gain, mask & (bounded != ratio)
    if objective.surrogate == "kl_cov":
        # In place of a bound on all tokens, the chosen few pay for every move.
        penalty = torch.where(chosen, objective.covariance_kl * log_ratio.abs(), 0.0)
        return ratio * advantages - penalty, torch.zeros_like(mask)

    # The lower of the two: where the clip would raise the objective it is not applied.
    gain = torch.minimum(ratio * advantages, bounded * advantages)
    clipped = mask & (bounded * advantages < ratio * advantages)
    if objective.dual_clip is not None:
        # The minimum leaves the gain of a negative advantage without a lower bound: one token that
        # became far likelier could decide the whole step.
        floor = objective.dual_clip * advantages
        is_below = mask & (advantages < 0) & (gain < floor)
        gain = torch.where(is_below, floor, gain)
        clipped = clipped | is_below
    # A constant has no gradient, which is all that Clip-Cov wants.
    return torch.where(chosen, 0.0, gain), clipped


def tokens_by_covariance(
    objective: Objective,
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:
    """The tokens that "clip_cov" or "kl_cov" treats apart, (R, T) bool.

    The covariance of a token is (A - mean A) (log p - mean log p), with means over all tokens. A
    token of high covariance is one whose training lowers the entropy most.

    "kl_cov" takes the tokens of the highest covariances. "clip_cov" draws among the tokens whose
    covariance lies within `covariance_range` and whose ratio is not clipped already. The draw is
    seeded by the old log-probabilities, so that the same step draws the same tokens again.

    Arguments: see `policy_loss`; all tokens of an optimizer step are needed.

    References
    ----------
    Clip-Cov and KL-Cov (arXiv 2505.22617); verl's code, which takes the tokens of a micro-batch.
    """
    if advantages.dim() == 1:
        advantages = advantages[:, None]
    logprobs = logprobs.detach()
    # One entry for each response token (N,), in double precision, since the means are over all
    # tokens of a step.
    of_token = advantages.expand_as(logprobs)[mask].double()
    values = logprobs[mask].double()
    covariance = (of_token - of_token.mean()) * (values - values.mean())
    count = max(int(objective.covariance_share * len(covariance)), 1)
    if objective.surrogate == "kl_cov":
        rows = torch.argsort(covariance, descending=True, stable=True)[:count]
    else:
        low, high = objective.covariance_range
        _, clipped = gains(objective, logprobs, old_logprobs, advantages, mask)
        within = (covariance > low) & (covariance < high) & ~clipped[mask]
        allowed = torch.nonzero(within)[:, 0]
        seed = zlib.crc32(old_logprobs[mask].cpu().float().numpy().tobytes())
        order = np.random.default_rng(seed).permutation(len(allowed))[:count]
        rows = allowed[torch.as_tensor(order, device=allowed.device)]
    # Back from the flat tokens to (R, T).
    chosen = torch.zeros_like(mask)
    chosen[mask.nonzero()[rows].unbind(1)] = True
    return chosen


def log_ratio_of(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    mask: torch.Tensor,
    importance_sampling: str = "token",
) -> torch.Tensor:
    """Logarithm of each token's ratio of new to old probabilities, (R, T), 0 at padding.

    With importance_sampling="sequence" all tokens of a response have the mean over its tokens.
    """
    # Padding may hold anything, infinities included, and must not reach a sum.
    log_ratio = torch.where(mask, logprobs - old_logprobs, 0.0)
    if importance_sampling == "token":
        return log_ratio
    lengths = mask.sum(1, keepdim=True).clamp(min=1)
    sequence = log_ratio.sum(1, keepdim=True) / lengths
    # The value is the ratio of the sequence; the gradient reaches it through each token (CBS,
    # equation 19).
    return torch.where(mask, sequence.detach() + logprobs - logprobs.detach(), 0.0)


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
    # An empty response has no tokens to weigh; the 1 only avoids 0 / 0.
    lengths = weights.sum(1, keepdim=True).clamp(min=1)
    if loss_aggregation == "rollout":
        return weights / (lengths * len(mask))
    if groups is None:
        raise ValueError("groups=None: loss_aggregation='group' needs the group of every rollout")
    _, inverse, sizes = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    rollouts_of_group = torch.as_tensor(sizes[inverse], dtype=weights.dtype, device=mask.device)
    return weights / (lengths * rollouts_of_group[:, None] * len(sizes))


def sampler_weights(
    old_logprobs: torch.Tensor,
    sampler_logprobs: torch.Tensor,
    mask: torch.Tensor,
    correction: str,
    cap: float = 2.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Importance weights for the gap between sampler and trainer, and where the cap took effect.

    The objective assumes that tokens come from the trainer's policy before the step. If another
    program draws them, with probabilities that differ in their last digits, the mean over them is
    that of the trainer's policy once each is weighted with w = exp(old_logprobs -
    sampler_logprobs). Of a whole response w is the product over its tokens, which also accounts for
    what the first tokens lead to. The cap bounds the variance that rare large weights bring.

    Parameters
    ----------
    old_logprobs : (R, T)
        Under the trainer's policy before the step.
    sampler_logprobs : (R, T)
        Under what sampled.
    mask : (R, T) bool
    correction : {"off", "truncate", "mask", "sequence_truncate", "sequence_mask"}
        "truncate" takes min(w, cap), and "mask" leaves out tokens with w above the cap. The two of
        "sequence" do the same with whole responses. "off" gives every token the weight 1.
    cap : float

    Returns
    -------
    (R, T) weights without gradient, and (R, T) bool, True where w is above the cap. With "off" w is
    that of each token.

    Examples
    --------
    >>> old = torch.log(torch.tensor([[0.4, 0.9]]))
    >>> sampled = torch.log(torch.tensor([[0.5, 0.3]]))
    >>> mask = torch.tensor([[True, True]])
    >>> sampler_weights(old, sampled, mask, "truncate")[0]
    tensor([[0.8000, 2.0000]])
    >>> sampler_weights(old, sampled, mask, "mask")[0]
    tensor([[0.8000, 0.0000]])

    The response is .8 times 3 as likely for the trainer as for the sampler.

    >>> sampler_weights(old, sampled, mask, "sequence_mask", cap=3)[0]
    tensor([[2.4000, 2.4000]])

    References
    ----------
    Truncated importance sampling, Ionides (2008), Journal of Computational and Graphical
    Statistics 17(2), section 2; for language models whose rollouts come from another engine it is
    known as TIS, and leaving tokens out as MIS.
    """
    log_weight = torch.where(mask, old_logprobs.detach() - sampler_logprobs, 0.0)
    if correction.startswith("sequence"):
        log_weight = log_weight.sum(-1, keepdim=True).expand_as(mask)
    weight = log_weight.exp()
    # Reported also where nothing is corrected, since it shows how far sampler and trainer are
    # apart.
    above = weight > cap
    if correction == "off":
        return torch.ones_like(weight), mask & above
    # At padding too: the weight of a whole response may be infinite.
    bounded = cap if correction.endswith("truncate") else 0.0
    return torch.where(above, bounded, weight), mask & above


def kl_estimate(logprobs: torch.Tensor, reference_logprobs: torch.Tensor) -> torch.Tensor:
    """The k3 estimate of KL(policy || reference) at each sampled token, (R, T).

    exp(d) - d - 1 with d = reference - policy log-probability; it is never negative.
    """
    difference = reference_logprobs - logprobs
    return difference.exp() - difference - 1
