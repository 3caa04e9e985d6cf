"""Our methods in verl (0.9.1, on Ray): rollout counts a prompt, down-sampling, advantages, objectives.

Two ways in. `configuration(method)` turns a method on in verl's v1 trainer (`trainer_mode=sync`) by configuration keys
alone; the classes that these keys name are in `verl_v1.py`, and allocators with several stages work there too. In a loop
of your own on `DataProto`: `register()` for advantages and policy losses, `Allocation` for counts, `select` for
down-sampling. Not carried, with an error that says so: reuse of old rollouts, the learnt `Scheduler`, reward parts (verl
computes the reward), and success rates that need the policy or the epoch.

verl is loaded when a function needs it, never by importing this module. It wants older transformers than the rest of
this package tests with, so it has an environment of its own: `make test-verl` makes it from constraints-verl.txt.
"""

from functools import partial

import numpy as np

from workbench import methods
from workbench.advantages import group_normalized, leave_one_out, posterior, selected_advantages
from workbench.rewards import Correct
from workbench.rollouts import Context
from workbench.selectors import All, Scheduler
from workbench.utils.descriptions import describe, rebuild
from workbench.utils.validation import whole_number
from workbench.verl.counts import SCORES, Allocation, carried_rates, load, problem_ids, table

__all__ = ["ESTIMATORS", "LOSSES", "Allocation", "check", "choose", "configuration", "estimator", "method_of", "policy_loss",
           "problem_ids", "register", "remember", "select", "table"]  # fmt: skip

MEANS = {
    "token": "token-mean",
    "rollout": "seq-mean-token-mean",
    "constant": "seq-mean-token-sum-norm",
}
OPTIONS = ("method", "arguments", "seed", "solved")  # of sampler_kwargs
PADDING = "pad"  # how verl's own padding rows begin their uid


def estimator(advantage):
    """An advantage function of rewards (R,) and groups (R,) in the form that verl calls.

    The result takes token_level_rewards (R, T), response_mask (R, T) and index, the (R,) array of uids, and returns
    (advantages, returns): both the advantage of the row at its response tokens, zero elsewhere, (R, T). A row's reward
    is the sum over its tokens. Groups may be uneven and in any order.
    """

    def estimate(token_level_rewards, response_mask, index, config=None, **further):
        rewards = token_level_rewards.double().sum(-1).cpu().numpy()
        return _at_tokens(
            advantage(rewards, np.asarray(index).astype(str)), token_level_rewards, response_mask
        )

    return estimate


def policy_loss(ratio):
    """Our clipped objective in the form that verl calls; ratio: "token" or "sequence" (GSPO), see `Objective`.

    Clip range, mean and entropy or KL terms are the actor's configuration (`clip_ratio_low`, `clip_ratio_high`,
    `loss_agg_mode`, ...), see `configuration`. Unlike verl's "vanilla" it has no second bound on negative advantages.
    Tensors are (R, T); the loss is verl's aggregate over the global batch, so it does not depend on micro-batches.
    """

    def loss(
        old_log_prob,
        log_prob,
        advantages,
        response_mask,
        loss_agg_mode="token-mean",
        config=None,
        rollout_is_weights=None,
    ):
        from workbench.objectives import surrogate

        mask = response_mask.bool()
        of_row = advantages.gather(1, mask.long().argmax(1, keepdim=True))[:, 0]
        gain, clipped = surrogate(
            log_prob, old_log_prob, of_row, mask, clip=_clip(config), ratio=ratio
        )
        if rollout_is_weights is not None:
            gain = gain * rollout_is_weights
        total = load("verl.trainer.ppo.core_algos").agg_loss(
            loss_mat=-gain,
            loss_mask=response_mask,
            loss_agg_mode=loss_agg_mode,
            **config.global_batch_info,
        )
        tokens = mask.sum().clamp(min=1)
        drift = ((old_log_prob - log_prob).detach() * mask).sum() / tokens
        return total, {
            "actor/pg_clipfrac": (clipped.sum() / tokens).item(),
            "actor/ppo_kl": drift.item(),
        }

    return loss


_advantages = {}  # (uid, reward) of the round in the trainer's process, see `remember`


def _remembered(token_level_rewards, response_mask, index, config=None, **further):
    """The estimator "workbench": the advantages that the sampler computed when it selected the rows."""
    rewards = _reward_keys(token_level_rewards)
    keys = [(str(uid), reward) for uid, reward in zip(index, rewards)]
    lost = [key for key in keys if key not in _advantages and not key[0].startswith(PADDING)]
    if lost:
        raise ValueError(
            f"adv_estimator='workbench': no advantage for uid {lost[0][0]} with reward {lost[0][1]}; it needs "
            "workbench.verl.v1.ReplayBuffer as custom_sampler, and algorithm.use_kl_in_reward=False"
        )
    return _at_tokens(
        [_advantages.get(key, 0.0) for key in keys], token_level_rewards, response_mask
    )


ESTIMATORS = {
    "workbench": _remembered,
    "workbench_grpo": estimator(group_normalized),
    "workbench_dr_grpo": estimator(partial(group_normalized, scale=False)),
    "workbench_knapsack": estimator(partial(group_normalized, eps=1e-6, clip=5.0)),
    "workbench_rloo": estimator(leave_one_out),
    "workbench_aero": estimator(posterior),
}
LOSSES = {f"workbench_{ratio}": policy_loss(ratio) for ratio in ("token", "sequence")}


def register(**advantages):
    """Makes our functions known to verl in this process; once more does no harm.

    Values of `algorithm.adv_estimator`: workbench_grpo (GRPO, PODS, AR3PO), workbench_dr_grpo, workbench_knapsack
    (eps=1e-6, clip=5), workbench_rloo, workbench_aero (posterior, Beta(1, 1)), and workbench, which is the method's own
    under `configuration`. Values of `actor.policy_loss.loss_mode`: workbench_token, workbench_sequence.
    advantages: further ones by name, functions of rewards (R,) and groups (R,): `register(mine=leave_one_out)`. verl
    refuses a name that it knows for another function, so each of these is registered once.
    """
    core = load("verl.trainer.ppo.core_algos")
    for name, function in {
        **ESTIMATORS,
        **{name: estimator(function) for name, function in advantages.items()},
    }.items():
        core.register_adv_est(name)(function)
    for name, function in LOSSES.items():
        core.register_policy_loss(name)(function)


def choose(rollouts, selector, advantage, rng):
    """Rows (K,) that the selector keeps and their advantages (K,), by the selector's own statistics."""
    if selector.statistics != "selected":
        rollouts = rollouts.assign(advantage=advantage(rollouts.reward, rollouts.group))
    chosen = selector(rollouts, rng)
    return chosen, selected_advantages(advantage, selector.statistics, rollouts, chosen)


def select(data, selector, advantage=None, *, multiple=1, seed=0, step=0, solved=1.0):
    """The rows of a scored `DataProto` that the selector keeps, as a new `DataProto`; groups (uid) may become uneven.

    With `advantage`, a function of rewards (R,) and groups (R,), the columns `advantages` and `returns` (K, T) are set, by
    the selector's statistics. Without it verl's estimator sees the kept rows alone, so only selectors with "selected"
    statistics are allowed, and `All`.
    multiple: the number of rows is made divisible by it (data-parallel size, mini-batch) by appending copies of the first
    kept row whose response mask and scores are zero. They have a uid of their own that begins with "pad", and True in the
    column `is_padding`; nothing kept is dropped or repeated. They add nothing to token means; verl's sequence means leave
    masked rows out too, unless they divide by a given global batch size. seed, step: of the selector's draws.
    """
    whole_number("multiple", multiple, 1)
    _carried_selector(selector)
    rollouts = table(data, solved=solved, step=step)
    if advantage is None and selector.statistics != "selected" and not isinstance(selector, All):
        raise ValueError(
            f"advantage=None: {selector} takes its statistics over more than the kept rows; pass the advantage"
        )
    chosen, values = choose(
        rollouts, selector, advantage or group_normalized, Context(seed, step).rng("selector")
    )
    if not len(chosen):
        raise ValueError(
            f"selector: {selector} kept none of {len(rollouts)} rows, and verl cannot train on an empty batch"
        )
    kept = data.select_idxs(chosen)
    if "response_mask" not in kept.batch.keys():
        kept.batch["response_mask"] = kept.batch["attention_mask"][
            :, -kept.batch["responses"].shape[1] :
        ]
    if advantage is not None:
        scores = next(kept.batch[name] for name in SCORES if name in kept.batch.keys())
        kept.batch["advantages"], kept.batch["returns"] = _at_tokens(
            values, scores, kept.batch["response_mask"]
        )
    kept.non_tensor_batch["is_padding"] = np.zeros(len(kept), dtype=bool)
    return _padded(kept, -len(kept) % multiple)


def configuration(method):
    """The configuration keys, dotted, that turn a method on in verl's v1 trainer, and their values.

    `rollout.n` is what verl multiplies its mini-batch size by, so it is the number of rollouts a prompt that are trained
    on; how many are sampled the allocator says. verl pads what is missing to whole mini-batches with masked rows. A method
    that cannot be carried is refused with the slot that is the reason.
    """
    check(method)
    objective, actor, v1 = method.objective, "actor_rollout_ref.actor", "trainer.v1"
    keys = {
        "algorithm.adv_estimator": "workbench",
        "actor_rollout_ref.model.external_lib": "workbench.verl.v1",
        "actor_rollout_ref.rollout.n": _trained(method),
        "actor_rollout_ref.rollout.agent.agent_loop_manager_class": "workbench.verl.v1.AgentLoopManager",
        f"{actor}.policy_loss.loss_mode": f"workbench_{objective.ratio}",
        f"{actor}.clip_ratio_low": objective.clip[0],
        f"{actor}.clip_ratio_high": objective.clip[1],
        f"{actor}.loss_agg_mode": MEANS[objective.mean],
        f"{actor}.entropy_coeff": objective.entropy,
        f"{actor}.use_kl_loss": objective.kl > 0,
        "trainer.use_v1": True,
        "trainer.checkpoint_callback_class": "workbench.verl.v1.CheckpointCallback",
        f"{v1}.trainer_mode": "sync",
        f"{v1}.sampler.custom_sampler.path": "pkg://workbench.verl.v1",
        f"{v1}.sampler.custom_sampler.name": "ReplayBuffer",
        f"{v1}.sampler.sampler_kwargs.method": describe(method),
    }
    if objective.kl:
        keys |= {f"{actor}.kl_loss_coef": objective.kl, f"{actor}.kl_loss_type": "low_var_kl"}
    if objective.mean == "constant":
        keys[f"{actor}.loss_scale_factor"] = objective.length or "${data.max_response_length}"
    return keys


def method_of(options):
    """The method that `trainer.v1.sampler.sampler_kwargs` names: a paper's name with `arguments`, or a description."""
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise ValueError(f"sampler_kwargs.{unknown[0]}: unknown; allowed are {', '.join(OPTIONS)}")
    name, arguments = options.get("method"), options.get("arguments") or {}
    if isinstance(name, dict):
        method = rebuild(name)
    elif name in methods.PAPERS:
        method = getattr(methods, name)(**arguments)
    else:
        raise ValueError(
            f"sampler_kwargs.method={name!r}: allowed are {', '.join(methods.PAPERS)}, or configuration(method)'s"
        )
    check(method)
    return method


def check(method):
    """ValueError for a method with a slot that verl's v1 trainer cannot carry."""
    if method.reuse is not None:
        raise ValueError(
            f"reuse={method.reuse}: verl's trainer clears its rollouts after every step; use reuse=None"
        )
    if tuple(method.reward) != (Correct(),):
        raise ValueError(
            f"reward={method.reward}: verl computes the reward; use reward=(Correct(),) and verl's reward function"
        )
    _carried_selector(method.selector)
    carried_rates(method.allocator)


def remember(rollouts, advantages):
    """Keeps the round's advantages (R,) for the estimator "workbench", by uid (`group`) and reward."""
    _advantages.clear()
    for uid, reward, value in zip(
        rollouts.group, rollouts.reward.astype(np.float32).tolist(), advantages.tolist()
    ):
        if _advantages.setdefault((str(uid), reward), value) != value:
            raise ValueError(
                f"advantage: two values for reward {reward} in one group; only functions of the reward are carried"
            )


def _at_tokens(values, scores, mask):
    import torch

    spread = (
        torch.as_tensor(np.asarray(values), dtype=scores.dtype, device=scores.device)[:, None]
        * mask
    )
    return spread, spread.clone()


def _reward_keys(token_level_rewards):
    return token_level_rewards.double().sum(-1).float().tolist()


def _clip(config):
    low, high = config.clip_ratio_low, config.clip_ratio_high
    return (config.clip_ratio if low is None else low, config.clip_ratio if high is None else high)


def _trained(method):
    """Rollouts a prompt that a step trains on, as far as the configuration says."""
    names = (name for name in ("n", "k", "explore") if hasattr(method.allocator, name))
    kept = getattr(method.selector, "m", None)
    return kept if kept is not None else getattr(method.allocator, next(names, ""), 1)


def _padded(data, size):
    if not size:
        return data
    rows = data.select_idxs(np.zeros(size, dtype=np.int64))
    for name in ("response_mask", "token_level_rewards", "advantages", "returns", *SCORES):
        if name in rows.batch.keys():
            rows.batch[name] = rows.batch[name] * 0
    rows.non_tensor_batch["uid"] = np.array([f"{PADDING}-{i}" for i in range(size)], dtype=object)
    rows.non_tensor_batch["is_padding"] = np.ones(size, dtype=bool)
    return type(data).concat([data, rows])


def _carried_selector(selector):
    if isinstance(selector, Scheduler):
        raise ValueError(
            "selector=Scheduler: it learns from clip ratios and entropies, which verl does not hand back"
        )
