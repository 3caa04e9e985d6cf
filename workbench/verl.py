"""Our methods in verl (0.9.1, on Ray): rollout counts a prompt, down-sampling, advantages, objectives.

Two ways in. `configuration(method)` turns a method on in verl's v1 trainer (`trainer_mode=sync`) by configuration keys
alone; the classes that these keys name are in `verl_v1.py`, and allocators with several stages work there too. In a loop
of your own on `DataProto`: `register()` for advantages and policy losses, `Allocation` for counts, `select` for
down-sampling. Not carried, with an error that says so: reuse of old rollouts, the learnt `Scheduler`, reward parts (verl
computes the reward), and success rates that need the policy or the epoch.

verl is loaded when a function needs it, never by importing this module. It wants older transformers than the rest of
this package tests with, so it has an environment of its own: `make test-verl` makes it from constraints-verl.txt.
"""

import copy
import hashlib
import importlib
import json
from functools import partial

import numpy as np

from workbench import methods
from workbench.advantages import group_normalized, leave_one_out, posterior, selected_advantages
from workbench.allocators import DynamicSampling, More, Rescue, Staged
from workbench.columns import whole_number
from workbench.describe import describe, differences, rebuild
from workbench.problems import Problem
from workbench.rewards import Correct
from workbench.rollouts import Context, Rollouts
from workbench.scheduler import Scheduler

INSTALL = 'pip install -c constraints-verl.txt "verl==0.9.1" TransferQueue cachetools fastapi uvicorn'
SCORES = ("token_level_scores", "rm_scores")  # the reward before any KL term, where a trainer keeps it
MEANS = {"token": "token-mean", "rollout": "seq-mean-token-mean", "constant": "seq-mean-token-sum-norm"}
PADDING = "pad"  # how verl's own padding rows begin their uid

# names and functions -------------------------------------------------------------------------------------------------


def estimator(advantage):
    """An advantage function of rewards (R,) and groups (R,) in the form that verl calls.

    The result takes token_level_rewards (R, T), response_mask (R, T) and index, the (R,) array of uids, and returns
    (advantages, returns): both the advantage of the row at its response tokens, zero elsewhere, (R, T). A row's reward
    is the sum over its tokens. Groups may be uneven and in any order.
    """

    def estimate(token_level_rewards, response_mask, index, config=None, **further):
        rewards = token_level_rewards.double().sum(-1).cpu().numpy()
        return _at_tokens(advantage(rewards, np.asarray(index).astype(str)), token_level_rewards, response_mask)

    return estimate


def policy_loss(ratio):
    """Our clipped objective in the form that verl calls; ratio: "token" or "sequence" (GSPO), see `Objective`.

    Clip range, mean and entropy or KL terms are the actor's configuration (`clip_ratio_low`, `clip_ratio_high`,
    `loss_agg_mode`, ...), see `configuration`. Unlike verl's "vanilla" it has no second bound on negative advantages.
    Tensors are (R, T); the loss is verl's aggregate over the global batch, so it does not depend on micro-batches.
    """

    def loss(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None,
             rollout_is_weights=None):
        from workbench.objectives import surrogate

        mask = response_mask.bool()
        of_row = advantages.gather(1, mask.long().argmax(1, keepdim=True))[:, 0]
        gain, clipped = surrogate(log_prob, old_log_prob, of_row, mask, clip=_clip(config), ratio=ratio)
        if rollout_is_weights is not None:
            gain = gain * rollout_is_weights
        total = _load("verl.trainer.ppo.core_algos").agg_loss(
            loss_mat=-gain, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info)
        tokens = mask.sum().clamp(min=1)
        drift = ((old_log_prob - log_prob).detach() * mask).sum() / tokens
        return total, {"actor/pg_clipfrac": (clipped.sum() / tokens).item(), "actor/ppo_kl": drift.item()}

    return loss


_advantages = {}  # (uid, reward) of the round in the trainer's process, see `remember`


def _remembered(token_level_rewards, response_mask, index, config=None, **further):
    """The estimator "workbench": the advantages that the sampler computed when it selected the rows."""
    rewards = _reward_keys(token_level_rewards)
    keys = [(str(uid), reward) for uid, reward in zip(index, rewards)]
    lost = [key for key in keys if key not in _advantages and not key[0].startswith(PADDING)]
    if lost:
        raise ValueError(f"adv_estimator='workbench': no advantage for uid {lost[0][0]} with reward {lost[0][1]}; it needs "
                         "workbench.verl_v1.ReplayBuffer as custom_sampler, and algorithm.use_kl_in_reward=False")
    return _at_tokens([_advantages.get(key, 0.0) for key in keys], token_level_rewards, response_mask)


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
    """Makes our functions known to verl in this process; doing it twice does no harm.

    Values of `algorithm.adv_estimator`: workbench_grpo (GRPO, PODS, AR3PO), workbench_dr_grpo, workbench_knapsack
    (eps=1e-6, clip=5), workbench_rloo, workbench_aero (posterior, Beta(1, 1)), and workbench, which is the method's own
    under `configuration`. Values of `actor.policy_loss.loss_mode`: workbench_token, workbench_sequence.
    advantages: further ones by name, functions of rewards (R,) and groups (R,): `register(mine=leave_one_out)`.
    """
    core = _load("verl.trainer.ppo.core_algos")
    for name, function in {**ESTIMATORS, **{name: estimator(function) for name, function in advantages.items()}}.items():
        core.register_adv_est(name)(function)
    for name, function in LOSSES.items():
        core.register_policy_loss(name)(function)


# batches -------------------------------------------------------------------------------------------------------------


def problem_ids(prompts):
    """Stable ids of prompts, (P,) str: a hash of each prompt, be it text or a list of chat messages."""
    return np.array([hashlib.blake2b(_canonical(prompt).encode(), digest_size=12).hexdigest() for prompt in prompts], dtype=str)


def table(data, *, solved=1.0, step=0):
    """The scored rows of a `DataProto` as `Rollouts` with problem, reward, correct, round and `group`, the uid.

    reward: sum over tokens of `token_level_scores`, else of `rm_scores`. correct: where the column `acc` is 1, or, without
    that column, where the reward is at least `solved`. problem: from `raw_prompt`; without it, the uid, and then an
    allocator learns nothing from one round for the next.
    """
    scores = next((data.batch[name] for name in SCORES if name in data.batch.keys()), None)
    if scores is None or "uid" not in data.non_tensor_batch:
        raise ValueError(f"data: {' or '.join(SCORES)} (R, T) and a column uid are needed; score the rollouts first")
    uid, prompts = data.non_tensor_batch["uid"].astype(str), data.non_tensor_batch.get("raw_prompt")
    reward, acc = scores.double().sum(-1).cpu().numpy(), data.non_tensor_batch.get("acc")
    correct = reward >= solved if acc is None else np.asarray(acc, dtype=np.float64) == 1
    return Rollouts(uid if prompts is None else problem_ids(prompts), reward=reward, correct=correct,
                    round=np.full(len(uid), step), columns={"group": uid})


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
    if advantage is None and selector.statistics != "selected" and type(selector).__name__ != "All":
        raise ValueError(f"advantage=None: {selector} takes its statistics over more than the kept rows; pass the advantage")
    chosen, values = choose(rollouts, selector, advantage or group_normalized, Context(seed, step).rng("selector"))
    if not len(chosen):
        raise ValueError(f"selector: {selector} kept none of {len(rollouts)} rows, and verl cannot train on an empty batch")
    kept = data.select_idxs(chosen)
    if "response_mask" not in kept.batch.keys():
        kept.batch["response_mask"] = kept.batch["attention_mask"][:, -kept.batch["responses"].shape[1]:]
    if advantage is not None:
        scores = next(kept.batch[name] for name in SCORES if name in kept.batch.keys())
        kept.batch["advantages"], kept.batch["returns"] = _at_tokens(values, scores, kept.batch["response_mask"])
    kept.non_tensor_batch["is_padding"] = np.zeros(len(kept), dtype=bool)
    return _padded(kept, -len(kept) % multiple)


# counts --------------------------------------------------------------------------------------------------------------


class Allocation:
    """An allocator at work in verl: says how many rollouts each prompt gets, is told what came of them, remembers.

    allocator: copied, so one object belongs to one training run. seed: of its draws. stages: whether the caller drives
    several requests a round (`start`, `proceed`, `extend`, as `verl_v1` does); without it, `Staged`, `Rescue`,
    `DynamicSampling` and fresh success rates are refused. A prompt that occurs k times in a batch is one problem to the
    allocator, and each occurrence has its count: a total is exceeded by that much.
    """

    def __init__(self, allocator, seed=0, *, stages=False):
        _carried_rates(allocator)
        rates = getattr(allocator, "rates", None)
        if not stages and (isinstance(allocator, (Staged, Rescue, DynamicSampling)) or getattr(rates, "spent", 0)):
            raise ValueError(f"allocator={allocator}: it asks several times a round; use configuration(method) with verl's v1 "
                             "trainer, or Uniform or Knapsack")
        self.allocator, self.seed = copy.deepcopy(allocator), seed
        self.keep, self._plan, self._rows = None, None, []

    def allocate(self, prompts, step):
        """Sets `__rollout_n__`, the count of each prompt, in a batch with `raw_prompt`; returns the batch.

        prompts: `TensorDict` (v1's agent loop reads the count itself) or `DataProto` (then
        `prompts.sample_level_repeat(prompts.non_tensor_batch["__rollout_n__"])` repeats the prompts).
        """
        if hasattr(prompts, "non_tensor_batch"):
            counts = self.start(problem_ids(prompts.non_tensor_batch["raw_prompt"]), step)
            prompts.non_tensor_batch["__rollout_n__"] = counts
            return prompts
        tensordicts = _load("verl.utils.tensordict_utils")
        counts = self.start(problem_ids(tensordicts.get(prompts, "raw_prompt")), step)
        tensordicts.assign_non_tensor_stack(prompts, "__rollout_n__", counts.tolist())
        return prompts

    def feedback(self, data, step, *, solved=1.0):
        """Tells the allocator what came of the counts: all scored rows of the step, kept or not (see `table`)."""
        rollouts = data if isinstance(data, Rollouts) else table(data, solved=solved, step=step)
        if self.proceed(rollouts) is not None:
            raise ValueError(f"allocator={self.allocator}: it asks again after its first rollouts, which `allocate` cannot carry")
        self.learn(rollouts, step)

    def start(self, ids, step):
        """The first counts (P,) int64 for prompts with these ids (P,)."""
        self._rows, self.keep = [str(key) for key in ids], None
        self._plan = self.allocator.allocate(self._problems(), Context(self.seed, step))
        request = self._ask(None)
        if request is None:
            raise ValueError(f"allocator={self.allocator}: it asked for no rollouts")
        return request

    def proceed(self, rollouts):
        """Sends the round's rollouts so far: further counts (P,), `More` problems wanted, or None at the end.

        At the end `keep` holds the rows (K,) that go on, or None for all.
        """
        if self._plan is None:
            raise ValueError("proceed: no round is open; call `allocate` or `start` first")
        return self._ask(rollouts)

    def extend(self, ids):
        """Answers `More` with further prompts; returns the next request, counts for all prompts of the round."""
        self._rows += [str(key) for key in ids]
        return self._ask(self._problems())

    def learn(self, rollouts, step):
        """Ends the round: the allocator learns from all its rollouts."""
        if hasattr(self.allocator, "feedback"):
            self.allocator.feedback(rollouts, Context(self.seed, step))

    def metrics(self):
        """What the allocator measures of the round, name to float, without what is not a number yet."""
        measured = self.allocator.metrics() if hasattr(self.allocator, "metrics") else {}
        return {name: float(value) for name, value in measured.items() if np.isfinite(value)}

    def state_dict(self):
        """The allocator's configuration and what it remembers: JSON values and arrays."""
        memory = self.allocator.state_dict() if hasattr(self.allocator, "state_dict") else {}
        return {"allocator": describe(self.allocator), "memory": memory}

    def load_state_dict(self, state):
        """Sets the memory; ValueError for the state of another allocator."""
        odd = differences(describe(self.allocator), state["allocator"])
        if odd:
            raise ValueError(f"state: saved by another allocator (ours, theirs): {'; '.join(odd[:3])}")
        if hasattr(self.allocator, "load_state_dict"):
            self.allocator.load_state_dict(state["memory"])

    def _problems(self):
        return [Problem(key, "", "") for key in dict.fromkeys(self._rows)]

    def _ask(self, answer):
        try:
            request = self._plan.send(answer)
        except StopIteration as end:
            self._plan, self.keep = None, end.value
            return None
        if isinstance(request, More):
            return request
        count = dict(zip(dict.fromkeys(self._rows), np.asarray(request).tolist()))
        return np.array([count[key] for key in self._rows], dtype=np.int64)


# configuration -------------------------------------------------------------------------------------------------------


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
        "actor_rollout_ref.model.external_lib": "workbench.verl_v1",
        "actor_rollout_ref.rollout.n": _trained(method),
        "actor_rollout_ref.rollout.agent.agent_loop_manager_class": "workbench.verl_v1.AgentLoopManager",
        f"{actor}.policy_loss.loss_mode": f"workbench_{objective.ratio}",
        f"{actor}.clip_ratio_low": objective.clip[0],
        f"{actor}.clip_ratio_high": objective.clip[1],
        f"{actor}.loss_agg_mode": MEANS[objective.mean],
        f"{actor}.entropy_coeff": objective.entropy,
        f"{actor}.use_kl_loss": objective.kl > 0,
        "trainer.use_v1": True,
        "trainer.checkpoint_callback_class": "workbench.verl_v1.CheckpointCallback",
        f"{v1}.trainer_mode": "sync",
        f"{v1}.sampler.custom_sampler.path": "pkg://workbench.verl_v1",
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
    name, arguments = options.get("method"), options.get("arguments") or {}
    if isinstance(name, dict):
        method = rebuild(name)
    elif name in methods.PAPERS:
        method = getattr(methods, name)(**arguments)
    else:
        raise ValueError(f"sampler_kwargs.method={name!r}: allowed are {', '.join(methods.PAPERS)}, or configuration(method)'s")
    check(method)
    return method


def check(method):
    """ValueError for a method with a slot that verl's v1 trainer cannot carry."""
    if method.reuse is not None:
        raise ValueError(f"reuse={method.reuse}: verl's trainer clears its rollouts after every step; use reuse=None")
    if tuple(method.reward) != (Correct(),):
        raise ValueError(f"reward={method.reward}: verl computes the reward; use reward=(Correct(),) and verl's reward function")
    _carried_selector(method.selector)
    _carried_rates(method.allocator)


def remember(rollouts, advantages):
    """Keeps the round's advantages (R,) for the estimator "workbench", by uid (`group`) and reward."""
    _advantages.clear()
    for uid, reward, value in zip(rollouts.group, rollouts.reward.astype(np.float32).tolist(), advantages.tolist()):
        if _advantages.setdefault((str(uid), reward), value) != value:
            raise ValueError(f"advantage: two values for reward {reward} in one group; verl can carry functions of the reward only")


# the small parts -----------------------------------------------------------------------------------------------------


def _load(module):
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{error.name or module} is missing; verl has its own environment: {INSTALL}") from error


def _at_tokens(values, scores, mask):
    import torch

    spread = torch.as_tensor(np.asarray(values), dtype=scores.dtype, device=scores.device)[:, None] * mask
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


def _canonical(prompt):
    return json.dumps(prompt, sort_keys=True, ensure_ascii=False, default=_plain)


def _plain(value):
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise ValueError(f"raw_prompt: a {type(value).__name__} has no stable id; prompts of text, numbers, lists and dicts have")


def _carried_selector(selector):
    if isinstance(selector, Scheduler):
        raise ValueError("selector=Scheduler: it learns from each rollout's clip ratio and entropy, which verl does not hand back")


def _carried_rates(allocator):
    kind = getattr(getattr(allocator, "rates", None), "kind", None)
    if kind in ("predictor", "epoch"):
        lacks = "the policy's states" if kind == "predictor" else "the epoch"
        raise ValueError(f"rates={kind!r}: verl does not hand the allocator {lacks}; use 'last', 'beta' or 'fresh'")
