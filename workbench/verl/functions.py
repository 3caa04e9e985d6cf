"""What goes between verl and a method: which rollouts are correct, the factors of the ratios, and
what verl calls by name, our advantages and our policy losses, which `register` names.

Values of `algorithm.adv_estimator`:

    workbench              the method's own, under `configuration`: read from the queue
    workbench_grpo         GRPO, PODS, AR3PO
    workbench_dr_grpo      without the division by the deviation
    workbench_knapsack     eps=1e-6, clipped to [-5, 5]
    workbench_rloo         leave-one-out
    workbench_reinforce    REINFORCE++, normalised by the whole batch
    workbench_aero         the posterior under Beta(1, 1)

Values of `actor_rollout_ref.actor.policy_loss.loss_mode`: workbench_token, workbench_sequence.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from workbench import adapters
from workbench.objectives import IMPORTANCE_SAMPLING, Objective, gains
from workbench.rollouts import Ragged
from workbench.rounds import Round
from workbench.rules.advantages import batch_normalized, group_normalized, leave_one_out, posterior
from workbench.verl.compatibility import check_installed

TRAIN = "train"  # the queue's partition of training rows
ADVANTAGES = "workbench_advantages"  # the queue's column of them, one number a response token
PADDING = "pad"  # how verl's own padding rows begin their uid

AdvantageFunction = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Verdict(adapters.Verdict):
    """Which rollouts are correct, by what verl knows of them.

    That is `acc`, where the reward function returns it: 1 is correct. Without it, a reward of at
    least `solved` is, and with solved=None a reward of 1, where nothing but 0 and 1 is given.
    """

    def __init__(self, solved: float | None = None, needed: bool = True) -> None:
        super().__init__(
            needed,
            advice="let the reward function return `acc`, or set `solved`, the reward from which a "
            "rollout counts as correct",
            solved=solved,
        )

    def __call__(self, reward: np.ndarray, acc: Sequence[Any]) -> np.ndarray:
        """The verdict (R,): 1 is correct, 0 is wrong, NaN not known.

        By rewards (R,) and R values of `acc`, None where there is none.
        """
        # What the reward function says goes before the bar.
        verdict = np.array([value is not None and float(value) == 1 for value in acc], dtype=float)
        rest = np.array([value is None for value in acc], dtype=bool)
        verdict[rest] = self.of_rewards(reward[rest], first=False)
        return verdict


def row_advantages(outcome: Round, objective: Objective, multiple: int) -> Ragged:
    """What verl multiplies the ratios of the selected rows with: advantages times row weights.

    Besides the weights of `adapters.row_weights` these are 0 for old responses that carry no
    gradient, and, where the loss is a mean over rollouts, what makes up for padding: verl fills the
    K rows up to a multiple of its mini-batch, and divides by the size with padding.

    Parameters
    ----------
    outcome : Round
    objective : Objective
    multiple : int
        Rows of a mini-batch.

    """
    # An advantage of zero leaves the row in verl's averages and takes its gradient away.
    carries_gradient = outcome.rollouts["gradient"][outcome.rows]
    weights = adapters.row_weights(outcome, objective.loss_aggregation) * carries_gradient
    if objective.loss_aggregation != "token" and len(weights):
        # The number of rows after padding, by which verl divides.
        padded = -(-len(weights) // multiple) * multiple
        weights = weights * (padded / len(weights))
    return adapters.token_advantages(outcome, weights)


# By name


def estimator(advantage: AdvantageFunction) -> Callable:
    """An advantage function in the form that verl calls.

    Parameters
    ----------
    advantage : function of rewards (R,) and groups (R,), such as `advantages.leave_one_out`

    Returns
    -------
    function
        Of token_level_rewards (R, T), response_mask (R, T) and index, the (R,) array of uids. It
        returns (advantages, returns), both (R, T): the advantage of the row at its response tokens,
        zero elsewhere. A row's reward is the sum over its tokens, and groups may be uneven.
    """

    def estimate(
        token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, **further: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # The advantage functions are NumPy's, in double precision, with one reward a row. Padding
        # is no rollout, and must not count in the mean of a batch.
        groups = np.asarray(index).astype(str)
        is_rollout = ~np.char.startswith(groups, PADDING)
        # The sums are of single precision again, as their parts are: those that differ by its
        # rounding alone are then equal.
        rewards = token_level_rewards.double().sum(-1).float().cpu().numpy()
        values = np.zeros(len(rewards))
        values[is_rollout] = advantage(rewards[is_rollout], groups[is_rollout])
        column = torch.as_tensor(values).to(token_level_rewards)[:, None]
        advantages = column * response_mask
        # verl wants returns too. They are a copy, so that a change to one leaves the other alone.
        return advantages, advantages.clone()

    return estimate


def from_queue(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, **further: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The estimator "workbench": the advantages that the sampler wrote into the queue.

    `v1.ReplayBuffer` gives every row that goes on its own key in the queue as its uid, so each row
    finds its own numbers, whatever they depend on. Padding rows have advantage zero.
    """
    import transfer_queue

    # Padding rows have no entry in the queue, and their advantages stay zero.
    keys = {i: str(uid) for i, uid in enumerate(index) if not str(uid).startswith(PADDING)}
    try:
        data = transfer_queue.kv_batch_get(
            keys=list(keys.values()), partition_id=TRAIN, select_fields=[ADVANTAGES]
        )
    except (KeyError, RuntimeError, ValueError) as error:
        raise ValueError(
            "adv_estimator='workbench': the queue has no advantages of these rows; it needs "
            "workbench.verl.v1.ReplayBuffer as trainer.v1.sampler.custom_sampler, see "
            "workbench.verl.configuration"
        ) from error
    advantages = torch.zeros_like(token_level_rewards)
    for i, values in zip(keys, data[ADVANTAGES]):
        advantages[i, : len(values)] = values.to(advantages)
    advantages = advantages * response_mask
    return advantages, advantages.clone()


def policy_loss(importance_sampling: str) -> Callable:
    """Our clipped objective in the form that verl calls.

    Clip range, loss aggregation, KL penalty and entropy bonus are those of the actor's
    configuration, see `settings.configuration`. Unlike verl's "vanilla" it has no second bound on
    negative advantages. The loss is verl's aggregate over the global batch, so it does not depend
    on micro-batches.

    Parameters
    ----------
    importance_sampling : {"token", "sequence"}
        See `Objective`.
    """

    def loss(
        old_log_prob: torch.Tensor,
        log_prob: torch.Tensor,
        advantages: torch.Tensor,
        response_mask: torch.Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        from verl.trainer.ppo.core_algos import agg_loss

        mask = response_mask.bool()
        clip = (config.clip_ratio_low, config.clip_ratio_high)
        objective = Objective(clip, importance_sampling)
        gain, clipped = gains(objective, log_prob, old_log_prob, advantages, mask)
        # verl's own correction for the inference server, a weight a token.
        if rollout_is_weights is not None:
            gain = gain * rollout_is_weights
        # Aggregated by verl with the sizes of the global batch, which a micro-batch alone does not
        # tell.
        total = agg_loss(
            loss_mat=-gain,
            loss_mask=response_mask,
            loss_agg_mode=loss_agg_mode,
            **config.global_batch_info,
        )
        tokens = mask.sum().clamp(min=1)
        logprob_diff = ((old_log_prob - log_prob).detach() * mask).sum() / tokens
        return total, {
            "actor/pg_clipfrac": (clipped.sum() / tokens).item(),
            "actor/ppo_kl": logprob_diff.item(),
        }

    return loss


ESTIMATORS: dict[str, Callable] = {
    "workbench": from_queue,
    "workbench_grpo": estimator(group_normalized),
    "workbench_dr_grpo": estimator(partial(group_normalized, scale=False)),
    "workbench_knapsack": estimator(partial(group_normalized, eps=1e-6, clip=5.0)),
    "workbench_rloo": estimator(leave_one_out),
    "workbench_reinforce": estimator(batch_normalized),
    "workbench_aero": estimator(posterior),
}
LOSSES = {f"workbench_{ratio}": policy_loss(ratio) for ratio in IMPORTANCE_SAMPLING}


def register(**advantages: AdvantageFunction) -> None:
    """Make our functions known to verl in this process; once more does no harm.

    Parameters
    ----------
    advantages : functions of rewards (R,) and groups (R,), by name
        Further estimators of your own: `register(mine=leave_one_out)`. verl refuses a name that it
        knows for another function, so each of these is registered once.
    """
    # Another version may well take these functions, and mean something else by their arguments.
    check_installed()
    from verl.trainer.ppo import core_algos

    own = {name: estimator(function) for name, function in advantages.items()}
    for name, function in {**ESTIMATORS, **own}.items():
        core_algos.register_adv_est(name)(function)
    for name, function in LOSSES.items():
        core_algos.register_policy_loss(name)(function)
