"""One update: the gradient of an objective over scored rollouts, and one optimizer step.

The loss does not depend on how rollouts are split into micro-batches: the weight of every token is
fixed for the whole step before the split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from workbench import objectives
from workbench.checks import checked_advantages, checked_numbers
from workbench.objectives import BY_COVARIANCE, Objective
from workbench.policies import Policy
from workbench.policies.batching import micro_batches
from workbench.rollouts import NonFinite, Ragged, Rollouts, spread
from workbench.utils.machine import torch_threads
from workbench.utils.validation import positive_number

# The attributes of `StepStats` that have one number for each rollout.
PER_ROLLOUT = ("clip_ratio", "entropy", "logprob_diff", "sampler_gap", "sampler_above")


@dataclass(frozen=True)
class StepStats:
    """What one optimizer step did.

    Attributes
    ----------
    loss : float
        Value of the objective, to be minimised.
    gradient_norm : float
        Norm of the gradient before it is clipped.
    kl : float
        Mean k3 estimate over tokens, in nats; NaN without a reference policy.
    tokens : int
        Response tokens of the rollouts that were computed. What several responses begin with counts
        for each of them, also where the policy computes it once.
    rollouts : int
        Rollouts that were computed.
    clip_ratio : (R,)
        Share of each rollout's tokens at which the clip took effect; NaN where the rollout was not
        computed, as in the next two.
    entropy : (R,)
        Mean token entropy in nats, under the policy before the step.
    logprob_diff : (R,)
        Mean over tokens of |log-probability - old log-probability|, in nats.
    sampler_gap : (R,), optional
        Mean over tokens of |old log-probability - the sampler's|, in nats. None where the trainer
        samples itself, as in the next one.
    sampler_above : (R,), optional
        Share of tokens whose importance weight is above the cap of the objective's correction.
    """

    loss: float
    gradient_norm: float
    kl: float
    tokens: int
    rollouts: int
    clip_ratio: np.ndarray
    entropy: np.ndarray
    logprob_diff: np.ndarray
    sampler_gap: np.ndarray | None = None
    sampler_above: np.ndarray | None = None


def grpo_step(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    rollouts: Rollouts,
    advantages: Any,
    objective: Objective = Objective(),
    *,
    weights: Any = None,
    temperature: float = 1.0,
    micro_tokens: int = 16_384,
    max_grad_norm: float = 1.0,
    length: int | None = None,
    reference: Any = None,
    on_policy: Any = None,
    sampler_logprobs: Ragged | None = None,
) -> StepStats:
    """One optimizer step on the given rollouts.

    Parameters
    ----------
    policy : Policy
        Any of `workbench.policies`, or an object with the same methods.
    optimizer : torch.optim.Optimizer
        Over `policy.parameters()`.
    rollouts : Rollouts (R rows)
        Rows whose column `gradient` is False count in the averages but carry no gradient.
    advantages : (R,) or a Ragged with one number for each response token
        Finite. Rollouts with advantage 0 are not computed, unless a KL penalty or an entropy bonus
        depends on them.
    objective : Objective
    weights : (R,), optional
        What the loss of each rollout is multiplied with, at least 0; 1 each without them.
    temperature : float
        That of the sampling.
    micro_tokens : int
        Tokens of one micro-batch, counted as `policy.layout` lays them out, see `micro_batches`. It
        bounds memory; the loss does not depend on it.
    max_grad_norm : float
        The gradient is scaled down to this norm.
    length : int, optional
        The L of loss_aggregation="constant" where the objective names none, in tokens.
    reference : Policy, optional
        The frozen policy of the KL penalty.
    on_policy : (R,) bool, optional
        Rollouts that the policy sampled at its present weights. Their old log-probabilities are
        those of this step's own forward pass, without a gradient, whatever `old_logprobs` holds.
    sampler_logprobs : Ragged, optional
        Log-probability of each response token under the program that sampled, for
        `objective.correction`.

    Returns
    -------
    StepStats

    Raises
    ------
    ValueError
        For arrays of the wrong shape, and for a KL penalty without a reference.
    NonFinite
        When an advantage, the loss or the gradient is not finite. No weight has been changed then.
    """
    advantages = checked_advantages("grpo_step", advantages, rollouts)
    if weights is not None:
        weights = checked_numbers("grpo_step", "weights", weights, len(rollouts), low=0)
    positive_number("max_grad_norm", max_grad_norm)
    if objective.kl > 0 and reference is None:
        raise ValueError(f"kl={objective.kl}: a frozen reference policy is needed")
    step = Step(
        policy,
        rollouts,
        advantages,
        objective,
        weights=weights,
        temperature=temperature,
        length=length,
        reference=reference,
        on_policy=on_policy,
        sampler_logprobs=sampler_logprobs,
    )
    return step.take(optimizer, micro_tokens, max_grad_norm)


@dataclass
class Step:
    """One optimizer step, whose arguments `grpo_step` describes.

    Most are not checked here: `grpo_step` checks them, and so does a round (`workbench.checks`).
    """

    policy: Policy
    rollouts: Rollouts
    advantages: Any
    objective: Objective
    weights: Any
    temperature: float
    length: int | None
    reference: Any
    on_policy: Any
    sampler_logprobs: Ragged | None
    # What `choose_tokens` has found, one bool for each token.
    chosen: Ragged | None = None

    def __post_init__(self) -> None:
        size = len(self.rollouts)
        offsets = self.rollouts.response.offsets
        columns = (self.rollouts.old_logprobs, self.sampler_logprobs)
        # One number a response would silently stand for each of its tokens.
        for name, column in zip(("old_logprobs", "sampler_logprobs"), columns):
            if column is not None and not np.array_equal(column.offsets, offsets):
                raise ValueError(f"{name}: one number for each response token is needed")
        if not isinstance(self.advantages, Ragged):
            of_tokens = np.repeat(self.advantages, self.rollouts.lengths)
            self.advantages = Ragged(of_tokens, offsets)
        self.weights = np.ones(size) if self.weights is None else self.weights
        self.on_policy = np.zeros(size, bool) if self.on_policy is None else self.on_policy
        self.token_weights = self._token_weights()

    def take(
        self, optimizer: torch.optim.Optimizer, micro_tokens: int, max_grad_norm: float
    ) -> StepStats:
        """Compute the gradient in micro-batches, and let the optimizer step."""
        with torch_threads(getattr(self.policy, "threads", None)):
            policy, rollouts = self.policy, self.rollouts
            # Zeros rather than None: a step without any gradient then still moves by Adam's
            # momentum, in a resumed run as in an uninterrupted one.
            optimizer.zero_grad(set_to_none=False)
            if self.objective.surrogate in BY_COVARIANCE:
                self.choose_tokens(micro_tokens)
            policy.model.train()
            computed = self._rows_to_compute()
            # NaN where a rollout is not computed.
            per_rollout = {name: np.full(len(rollouts), np.nan) for name in PER_ROLLOUT}
            totals = dict.fromkeys(("loss", "kl", "tokens"), 0.0)
            for rows in micro_batches(rollouts, computed, micro_tokens, policy.layout):
                loss, means, sums = self.loss(rows)
                # Before the backward pass, so that the message can name this micro-batch's rows.
                if not torch.isfinite(loss):
                    message = f"the loss of {len(rows)} rollouts is {loss.item()}"
                    raise NonFinite(message, rollouts.take(rows))
                loss.backward()
                for name, values in means.items():
                    per_rollout[name][rows] = values
                for name, value in sums.items():
                    totals[name] += value
            norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm).item()
            if not np.isfinite(norm):
                optimizer.zero_grad(set_to_none=False)
                raise NonFinite(f"the gradient norm is {norm}", rollouts.take(computed))
            optimizer.step()

            if self.sampler_logprobs is None:
                del per_rollout["sampler_gap"], per_rollout["sampler_above"]
            kl = np.nan if self.reference is None else totals["kl"] / max(totals["tokens"], 1)
            return StepStats(
                loss=totals["loss"],
                gradient_norm=norm,
                kl=kl,
                tokens=int(totals["tokens"]),
                rollouts=len(computed),
                **per_rollout,
            )

    def loss(
        self, rows: np.ndarray
    ) -> tuple[torch.Tensor, dict[str, np.ndarray], dict[str, float]]:
        """The loss of a micro-batch of R rows, and what was measured in it.

        The measures are, by name, means over each rollout's tokens (R,) and sums over all tokens.
        """
        objective = self.objective
        part = self.rollouts.take(rows)
        logprobs, entropy = self.policy.logprobs(
            part, self.temperature, entropy=True, entropy_gradient=objective.entropy > 0
        )
        device = logprobs.device

        def of_tokens(column: Ragged, dtype: torch.dtype | None = None) -> torch.Tensor:
            """One number for each token, (R, T), padded on the right as log-probabilities are."""
            return torch.as_tensor(column.take(rows).padded(), dtype=dtype, device=device)

        mask = torch.as_tensor(part.response.mask(), device=device)
        old_logprobs = of_tokens(self.rollouts.old_logprobs)
        # For these rows the ratio is exactly 1, and its gradient is that of the log-probability.
        is_own = torch.as_tensor(self.on_policy[rows], device=device)[:, None]
        old_logprobs = torch.where(is_own, logprobs.detach(), old_logprobs)
        weight = of_tokens(self.token_weights)
        advantage = of_tokens(self.advantages, torch.float32)
        chosen = None if self.chosen is None else of_tokens(self.chosen)

        # What the tokens add to the objective, corrected where another program sampled them.
        gain, clipped = objectives.gains(objective, logprobs, old_logprobs, advantage, mask, chosen)
        gap = above = torch.zeros_like(mask)
        if self.sampler_logprobs is not None:
            sampled = of_tokens(self.sampler_logprobs)
            correction, above = objectives.sampler_weights(
                old_logprobs, sampled, mask, *objective.correction
            )
            gain = gain * correction
            gap = torch.where(mask, (old_logprobs - sampled).abs(), 0.0)
        loss = -(gain * weight).sum()
        # Bonus and penalty count every token, whatever its advantage is.
        kl = torch.zeros((), device=device)
        if objective.entropy:
            loss = loss - objective.entropy * (entropy * weight).sum()
        if self.reference is not None:
            with torch.no_grad():
                reference_logprobs = self.reference.logprobs(part, self.temperature)
            penalty = torch.where(mask, objectives.kl_estimate(logprobs, reference_logprobs), 0.0)
            loss = loss + objective.kl * (penalty * weight).sum()
            kl = penalty.detach().sum()

        difference = torch.where(mask, (logprobs - old_logprobs).abs(), 0.0)
        lengths = mask.sum(1).clamp(min=1)
        columns = (clipped, entropy, difference, gap, above)  # in the order of `PER_ROLLOUT`
        means = torch.stack([column.sum(1) / lengths for column in columns])
        sums = {"loss": loss.item(), "kl": kl.item(), "tokens": mask.sum().item()}
        return loss, dict(zip(PER_ROLLOUT, means.detach().cpu().numpy())), sums

    def choose_tokens(self, micro_tokens: int) -> None:
        """Find the tokens of the whole step that Clip-Cov or KL-Cov treats apart.

        Covariances are taken over the whole step, so this is one more forward pass before it.
        Dropout is off, as it was when the old log-probabilities were computed.
        """
        policy, rollouts = self.policy, self.rollouts
        policy.model.eval()
        mask = torch.as_tensor(rollouts.response.mask())
        logprobs = torch.zeros(mask.shape)
        for rows in micro_batches(rollouts, np.arange(len(rollouts)), micro_tokens, policy.layout):
            with torch.no_grad():
                part = policy.logprobs(rollouts.take(rows), self.temperature).float().cpu()
            # A micro-batch is only as wide as its own longest response.
            logprobs[rows, : part.shape[1]] = part
        is_own = torch.as_tensor(self.on_policy)[:, None]
        old_logprobs = torch.as_tensor(rollouts.old_logprobs.padded())
        chosen = objectives.tokens_by_covariance(
            self.objective,
            logprobs,
            torch.where(is_own, logprobs, old_logprobs),
            torch.as_tensor(self.advantages.padded()),
            mask,
        )
        self.chosen = Ragged(chosen[mask].numpy(), rollouts.response.offsets)

    def _token_weights(self) -> Ragged:
        """The weight of every token in the loss of the whole step."""
        # All rows of the step are counted here, before it is split and before rows without a
        # gradient are left out. That is why the loss does not depend on the split.
        mask = torch.as_tensor(self.rollouts.response.mask())
        length = self.objective.length or self.length or mask.shape[1]
        aggregation = self.objective.loss_aggregation
        of_token = objectives.token_weights(mask, aggregation, length, self.rollouts.group)
        of_token = of_token * torch.as_tensor(self.weights, dtype=of_token.dtype)[:, None]
        return Ragged(of_token[mask].numpy(), self.rollouts.response.offsets)

    def _rows_to_compute(self) -> np.ndarray:
        """The rows that the loss depends on."""
        objective = self.objective
        needed = self.weights > 0
        if "gradient" in self.rollouts:
            needed = needed & self.rollouts["gradient"]
        # A penalty or a bonus pulls at rollouts whatever their advantage is. "kl_cov" has its
        # penalty in the surrogate, whatever the weight `kl` is.
        has_penalty = objective.kl > 0 or objective.surrogate == "kl_cov"
        if not has_penalty and objective.entropy == 0:
            needed = needed & _any_nonzero(self.advantages)
        return np.flatnonzero(needed)


def mark(
    rollouts: Rollouts,
    rows: np.ndarray,
    advantages: Any,
    steps: Sequence[tuple[np.ndarray, StepStats]],
    number: int,
    weights: np.ndarray | None = None,
) -> Rollouts:
    """A round's table with columns that say what became of each rollout.

    Parameters
    ----------
    rollouts : Rollouts (R rows)
    rows : (K,) int64
        The rows that were selected.
    advantages : (K,) or Ragged
        Their advantages.
    steps : list of (rows, StepStats)
        Of each optimizer step; its rows are positions among the K selected ones.
    number : int
        Number of the round.
    weights : (K,), optional

    Returns
    -------
    Rollouts
        With the columns advantage (the mean, where there is one for each token), selected, trained
        (whether advantage, weight and replay leave the row a gradient), age (in rounds), uses (how
        many rounds have selected the row, this one included), clip_ratio (of its latest update),
        update_entropy and logprob_diff (of this update, in nats), sampler_gap (in nats) where
        another program samples, and weight where there are weights. What an update measures is NaN
        where the row was not computed: one of advantage 0 is computed only where a KL penalty or an
        entropy term needs it.
    """
    size = len(rollouts)
    per_token = isinstance(advantages, Ragged)
    selected = np.isin(np.arange(size), rows)
    trained = np.zeros(size, bool)
    has_gradient = _any_nonzero(advantages) if per_token else np.asarray(advantages) != 0
    trained[rows] = has_gradient & rollouts["gradient"][rows]

    measured = {name: np.full(size, np.nan) for name in PER_ROLLOUT}
    if "clip_ratio" in rollouts:
        # Replay brings the clip ratios of earlier updates; the table that came in stays as it was.
        measured["clip_ratio"] = rollouts["clip_ratio"].copy()
    for positions, stats in steps:
        # What a step did not compute keeps the numbers of its latest update.
        computed = np.isfinite(stats.clip_ratio)
        for name, column in measured.items():
            values = vars(stats)[name]
            if values is not None:
                column[rows[positions][computed]] = values[computed]

    further = {}
    if any(stats.sampler_gap is not None for _, stats in steps):
        further["sampler_gap"] = measured["sampler_gap"]
    if weights is not None:
        further["weight"] = spread(weights, rows, size)
        trained[rows] &= weights > 0
    return rollouts.assign(
        advantage=spread(advantages.means() if per_token else advantages, rows, size),
        selected=selected,
        trained=trained,
        clip_ratio=measured["clip_ratio"],
        logprob_diff=measured["logprob_diff"],
        update_entropy=measured["entropy"],
        uses=rollouts["uses"] + selected,
        age=number - rollouts.round,
        **further,
    )


def _any_nonzero(values: Ragged) -> np.ndarray:
    """Which rows hold a number other than zero, (R,) bool."""
    # The mean of no numbers is NaN, and NaN is not above 0.
    return Ragged(values.values != 0, values.offsets).means() > 0
