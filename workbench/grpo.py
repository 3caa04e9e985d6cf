"""One update: the gradient of an objective over scored rollouts, and one optimizer step.

The loss does not depend on how rollouts are split into micro-batches: every token's weight is fixed over the whole
step before the split.
"""

from dataclasses import dataclass

import numpy as np
import torch

from workbench.objectives import Objective, kl_estimate, surrogate, token_weights
from workbench.rollouts import Ragged


class NonFinite(FloatingPointError):
    """A loss or gradient is not finite; `rollouts` holds those that caused it. No weight was changed."""

    def __init__(self, message, rollouts):
        super().__init__(message)
        self.rollouts = rollouts


@dataclass(frozen=True)
class StepStats:
    """What one optimizer step did.

    loss: the objective's value (to be minimised); gradient_norm: before clipping; kl: mean k3 estimate a token, NaN
    without a reference; tokens: response tokens computed; rollouts: rows computed. A number for each rollout, NaN
    where it was not computed: clip_ratio (R,) share of its tokens whose clip took effect, entropy (R,) mean token
    entropy in nats under the policy before the step, drift (R,) mean |log-probability - sampler's|.
    """

    loss: float
    gradient_norm: float
    kl: float
    tokens: int
    rollouts: int
    clip_ratio: np.ndarray
    entropy: np.ndarray
    drift: np.ndarray


def grpo_step(
    policy,
    optimizer,
    rollouts,
    advantages,
    objective=Objective(),
    *,
    temperature=1.0,
    micro_tokens=16_384,
    max_grad_norm=1.0,
    length=None,
    reference=None,
):
    """One optimizer step on all rollouts; returns `StepStats`.

    advantages (R,): finite. temperature: that of the sampling. micro_tokens: tokens of one micro-batch, padding
    included (memory; the loss does not depend on it). max_grad_norm: gradients are scaled down to it. length: L of
    `Objective(mean="constant")` where the objective names none. reference: frozen policy for `objective.kl` > 0.
    Rollouts with advantage 0 are not computed unless a KL penalty or an entropy bonus depends on them; those whose
    column `gradient` is False never are, though they count in the averages.
    ValueError for bad shapes; `NonFinite` before any weight is changed.
    """
    advantages = _check(rollouts, advantages, objective, reference)
    weights = _weights(rollouts, objective, length)
    everything = objective.kl > 0 or objective.entropy > 0
    gradient = rollouts.columns.get("gradient", np.ones(len(rollouts), bool))
    active = np.flatnonzero(gradient & (everything | (advantages != 0)))
    optimizer.zero_grad(set_to_none=False)
    policy.model.train()
    per_rollout, totals = np.full((3, len(rollouts)), np.nan), np.zeros(3)
    for index in micro_batches(rollouts, active, micro_tokens):
        part = rollouts.take(index)
        loss, stats, sums = _loss(
            policy, part, advantages[index], weights.take(index), objective, temperature, reference
        )
        if not torch.isfinite(loss):
            raise NonFinite(f"the loss of {len(index)} rollouts is {loss.item()}", part)
        loss.backward()
        per_rollout[:, index] = stats
        totals += sums
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm).item()
    if not np.isfinite(norm):
        optimizer.zero_grad()
        raise NonFinite(f"the gradient norm is {norm}", rollouts.take(active))
    optimizer.step()
    loss, kl, tokens = totals
    kl = kl / max(tokens, 1) if reference is not None else float("nan")
    return StepStats(loss, norm, kl, int(tokens), len(active), *per_rollout)


def micro_batches(rollouts, index, tokens):
    """Splits rows `index` into arrays of like length whose padded size stays within `tokens` (one row at least)."""
    lengths = (rollouts.prompt.lengths + rollouts.response.lengths)[index]
    order = np.argsort(lengths, kind="stable")
    batch = []
    for i in order:
        if batch and (len(batch) + 1) * lengths[i] > tokens:
            yield index[batch]
            batch = []
        batch.append(i)
    if batch:
        yield index[batch]


def mini_batches(rollouts, parts, rng, size=None):
    """Splits a round's groups at random into `parts` sets of rows of nearly equal group counts.

    Fewer groups make fewer sets, no rollouts none. size: instead sets of so many rows, whatever their groups, the last
    ones perhaps one smaller, fewer rows in one set.
    """
    if size is not None:
        parts = max(1, len(rollouts) // size)
        sets = np.array_split(rng.permutation(len(rollouts)), parts)
        return [np.sort(rows) for rows in sets if len(rows)]
    keys, inverse = rollouts.groups()
    parts = min(parts, len(keys))
    if parts < 2:
        return [np.arange(len(rollouts))][:parts]
    return [
        np.flatnonzero(np.isin(inverse, chosen))
        for chosen in np.array_split(rng.permutation(len(keys)), parts)
    ]


def marked(rollouts, chosen, advantages, steps, number):
    """The round's table with what became of each rollout, from the selected rows (K,) and the (rows, `StepStats`) of each step.

    advantage, selected, trained, drift, age; uses, rounds that selected it, this one included; clip_ratio at its latest
    update, update_entropy (nats) at this one. NaN where there was none: a selected row of advantage 0 is not computed.
    """
    size = len(rollouts)
    advantage, selected, trained = np.full(size, np.nan), np.zeros(size, bool), np.zeros(size, bool)
    clip_ratio, entropy, drift = (
        np.array(rollouts.columns.get("clip_ratio", np.full(size, np.nan))),
        *np.full((2, size), np.nan),
    )
    advantage[chosen], selected[chosen] = advantages, True
    for rows, stats in steps:
        computed = np.isfinite(stats.clip_ratio)
        rows = chosen[rows][computed]
        clip_ratio[rows], entropy[rows], drift[rows] = (
            values[computed] for values in (stats.clip_ratio, stats.entropy, stats.drift)
        )
    trained[chosen] = (advantages != 0) & rollouts["gradient"][chosen]
    return rollouts.assign(
        advantage=advantage,
        selected=selected,
        trained=trained,
        clip_ratio=clip_ratio,
        drift=drift,
        update_entropy=entropy,
        uses=rollouts["uses"] + selected,
        age=number - rollouts.round,
    )


def _loss(policy, part, advantages, weights, objective, temperature, reference):
    """Loss of a micro-batch, its (3, R) clip ratio, entropy and drift, and its sums of loss, kl and tokens."""
    logprobs, entropy = policy.logprobs(part, temperature, entropy=True)
    device = logprobs.device
    mask = torch.as_tensor(part.response.mask(), device=device)
    behaviour = torch.as_tensor(part.logprobs.padded(), device=device)
    weights = torch.as_tensor(weights.padded(), device=device)
    advantages = torch.as_tensor(advantages, dtype=torch.float32, device=device)
    gain, clipped = surrogate(
        logprobs, behaviour, advantages, mask, clip=objective.clip, ratio=objective.ratio
    )
    loss, kl = -(gain * weights).sum(), torch.zeros((), device=device)
    if objective.entropy:
        loss = loss - objective.entropy * (entropy * weights).sum()
    if reference is not None:
        with torch.no_grad():
            anchor = reference.logprobs(part, temperature)
        penalty = torch.where(mask, kl_estimate(logprobs, anchor), 0.0)
        loss, kl = loss + objective.kl * (penalty * weights).sum(), penalty.detach().sum()
    lengths = mask.sum(1).clamp(min=1)
    drift = torch.where(mask, (logprobs - behaviour).abs(), 0.0)
    stats = torch.stack(
        [clipped.sum(1) / lengths, entropy.sum(1) / lengths, drift.sum(1) / lengths]
    )
    return loss, stats.detach().cpu().numpy(), np.array([loss.item(), kl.item(), mask.sum().item()])


def _weights(rollouts, objective, length):
    mask = torch.as_tensor(rollouts.response.mask())
    weights = token_weights(mask, objective.mean, objective.length or length or mask.shape[1])
    return Ragged(weights[mask].numpy(), rollouts.response.offsets)


def _check(rollouts, advantages, objective, reference):
    advantages = np.asarray(advantages, dtype=np.float64)
    if advantages.shape != (len(rollouts),):
        raise ValueError(
            f"advantages has shape {advantages.shape}: one for each of the {len(rollouts)} rollouts is needed"
        )
    if not np.isfinite(advantages).all():
        raise NonFinite("advantages are not finite", rollouts.take(~np.isfinite(advantages)))
    if objective.kl > 0 and reference is None:
        raise ValueError(f"kl={objective.kl}: a frozen reference policy is needed")
    return advantages
