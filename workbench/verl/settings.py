"""What a method is in verl's configuration keys, and which methods and settings do not go together.

Everything here works without verl, so a method can be checked and its keys printed anywhere.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from workbench import config
from workbench.adapters import check_fits
from workbench.methods import Method
from workbench.objectives import Objective
from workbench.rules.advantages import GroupNormalized
from workbench.slots import COURSE_NEEDS, NEEDS
from workbench.utils.descriptions import describe
from workbench.utils.validation import brief, instance_of, is_number, unknown_argument, whole_number

logger = logging.getLogger(__name__)

# What slots may need and verl's v1 trainer gives through `workbench.verl.v1`: all but a choice of
# problems, which is the data loader's, steps of a size that the selector chooses, since verl's own
# keys say how large a step is, the policy's hidden states, and a say in where its own sampling
# starts and stops. `check` has further limits.
PROVIDES = NEEDS.keys() - {"problem_choice", "levels", "mini_batch", "prompt_states"} - COURSE_NEEDS
# Of these, what takes a pass of verl's training model while its inference servers are awake.
MODEL_PASS = frozenset({"current_logprobs", "entropy", "token_entropy"})

# loss_aggregation -> verl's loss_agg_mode. The mean over groups is the mean over rollouts, with
# weights on the rows, see `adapters.row_weights`.
LOSS_AGGREGATION = {
    "token": "token-mean",
    "rollout": "seq-mean-token-mean",
    "group": "seq-mean-token-mean",
    "constant": "seq-mean-token-sum-norm",
}
OPTIONS = ("method", "arguments", "seed", "solved")
SAMPLER = "workbench.verl.v1.ReplayBuffer"

SAMPLER_KEYS = "trainer.v1.sampler."

# Settings of verl that must be off, and why.
REFUSED = {
    "algorithm.use_kl_in_reward": "advantages come from the method, which never sees that penalty; "
    "use a method with Objective(kl=...)",
    "algorithm.filter_groups.enable": "the method decides which groups are trained on; use "
    "DynamicSampling as its allocator",
    "trainer.v1.sampler.sync_refill_failed_groups": "the method's sampler leaves failed rollouts "
    "out of the round, and draws no others for them",
    "skip.rollout_tq.enable": "rollouts that were sampled by another run pass the method by",
}


class Options(NamedTuple):
    """What `trainer.v1.sampler.sampler_kwargs` says.

    Attributes
    ----------
    method : Method
    seed : int
        Of everything that the method draws.
    solved : float, optional
        The reward from which a rollout counts as correct where the reward function returns no
        `acc`. None: 1, and a warning when rewards are other than 0 and 1.
    """

    method: Method
    seed: int = 0
    solved: float | None = None


def configuration(
    method: Method, sampler: str = SAMPLER, rollouts_per_problem: int | None = None
) -> dict[str, Any]:
    """The configuration keys, dotted, that turn a method on in verl's v1 trainer, and their values.

    Parameters
    ----------
    method : Method
    sampler : str
        The sampler's class as "module.Class". Of your own, derived from
        `workbench.verl.v1.ReplayBuffer` with the class attribute `method`, it is the way for a
        method with slots of your own, which a configuration cannot describe.
    rollouts_per_problem : int, optional
        Rollouts of a problem that are trained on, more or less: `actor_rollout_ref.rollout.n`,
        which verl multiplies its mini-batch sizes with. How many are sampled the method says. None:
        `trained_per_problem(method)`.

    Returns
    -------
    dict

    Raises
    ------
    ValueError
        For a method that verl cannot carry, with the slot that is the reason, and for an allocator
        of your own without rollouts_per_problem.

    Examples
    --------
    >>> from workbench import methods
    >>> keys = configuration(methods.pods(n=32, m=8))
    >>> keys["actor_rollout_ref.rollout.n"], keys["actor_rollout_ref.actor.loss_agg_mode"]
    (8, 'seq-mean-token-mean')
    """
    check(method)
    if rollouts_per_problem is None:
        rollouts_per_problem = trained_per_problem(method)
    whole_number("rollouts_per_problem", rollouts_per_problem, 1)
    objective = method.objective
    actor = "actor_rollout_ref.actor"
    rollout = "actor_rollout_ref.rollout"
    module, _, name = sampler.rpartition(".")
    # What every method needs: our classes in verl's places, and the objective in verl's words.
    keys: dict[str, Any] = {
        "algorithm.adv_estimator": "workbench",
        "actor_rollout_ref.model.external_lib": "workbench.verl.v1",
        f"{rollout}.n": rollouts_per_problem,
        f"{rollout}.agent.agent_loop_manager_class": "workbench.verl.v1.AgentLoopManager",
        f"{actor}.policy_loss.loss_mode": f"workbench_{objective.importance_sampling}",
        f"{actor}.clip_ratio_low": objective.clip[0],
        f"{actor}.clip_ratio_high": objective.clip[1],
        f"{actor}.loss_agg_mode": LOSS_AGGREGATION[objective.loss_aggregation],
        f"{actor}.entropy_coeff": objective.entropy,
        f"{actor}.use_kl_loss": objective.kl > 0,
        "trainer.use_v1": True,
        "trainer.checkpoint_callback_class": "workbench.verl.v1.CheckpointCallback",
        "trainer.v1.trainer_mode": "sync",
        f"{SAMPLER_KEYS}custom_sampler.path": f"pkg://{module}",
        f"{SAMPLER_KEYS}custom_sampler.name": name,
    }
    # A sampler class of one's own brings its method along.
    if sampler == SAMPLER:
        keys[f"{SAMPLER_KEYS}sampler_kwargs.method"] = _description(method)
    if objective.kl:
        keys[f"{actor}.kl_loss_coef"] = objective.kl
        keys[f"{actor}.kl_loss_type"] = "low_var_kl"
    if objective.loss_aggregation == "constant":
        keys[f"{actor}.loss_scale_factor"] = objective.length or "${data.max_response_length}"

    needs = method.needs
    if "more_problems" in needs:
        keys["data.gen_batch_size"] = 1  # so that any number of further problems can be drawn
    # That pass comes amid a round, and more rollouts may be asked for after it, so the inference
    # servers keep their memory meanwhile.
    if needs & MODEL_PASS:
        keys[f"{rollout}.free_cache_engine"] = False
    # The slots get the log-probabilities that the inference servers report, and the update takes
    # the same for the old ones.
    if "old_logprobs" in needs:
        keys[f"{rollout}.calculate_log_probs"] = True
        keys["algorithm.rollout_correction.bypass_mode"] = True
    return keys


def trained_per_problem(method: Method) -> int:
    """Rollouts of a problem that a step trains on, about as many where it varies: `Method.trained`.

    Raises
    ------
    ValueError
        For an allocator of which that is not known, such as one of your own.

    Examples
    --------
    >>> from workbench import methods
    >>> trained_per_problem(methods.pods(32, 8)), trained_per_problem(methods.cbs(n=8))
    (8, 2)
    """
    if method.trained is None:
        raise ValueError(
            f"rollouts_per_problem=None: how many rollouts of a problem {brief(method.allocator)} "
            "brings is not known; pass the number expected, which verl multiplies its mini-batch "
            "sizes with"
        )
    return method.trained.n


# Which methods verl carries


def check(method: Method) -> None:
    """Raise ValueError for a method with a slot that verl's v1 trainer cannot carry."""
    instance_of("method", method, Method, "methods.pods(n=32, m=8)")
    objective = method.objective
    has_penalty = objective.kl > 0 or objective.entropy > 0
    limits: dict[str, set[str]] = {}
    # Without old responses every candidate is new, and no update has seen it yet.
    if method.replay is not None:
        limits["where old responses join, of whose updates it says nothing,"] = {
            "update_statistics"
        }
    if has_penalty:
        reached = {"row_weights", "rows_without_gradient"}
        limits["with a KL penalty or an entropy bonus, the same for all,"] = reached
    if method.needs & MODEL_PASS:
        limits["with a pass of its training model amid a round"] = {"old_logprobs"}
    check_fits(method, "verl", PROVIDES, limits)
    check_clipped(objective)
    if has_penalty and objective.loss_aggregation != "token":
        logger.warning(
            "loss_aggregation=%r: verl averages the KL penalty and the entropy bonus over all "
            "rollouts of a mini-batch alike, padding included",
            objective.loss_aggregation,
        )


def check_clipped(objective: Objective) -> None:
    """ValueError unless verl, which has the clipped surrogate alone, can carry the objective."""
    for name, plain in (("surrogate", "clip"), ("dual_clip", None), ("sampler_correction", None)):
        value = vars(objective)[name]
        if value != plain:
            raise ValueError(
                f"{name}={value!r}: verl does not carry this part of a method's objective; "
                f"leave it at {plain!r}"
            )


def _description(method: Method) -> Any:
    """The method as data that `rebuild` takes; ValueError where that is not possible."""
    description = describe(method)
    try:
        # Tried here, where the user can mend it, and not only in the trainer's process.
        config.rebuild(description)
    except ValueError as error:
        raise ValueError(
            f"method={method.name!r}: a configuration describes slots of this package only "
            f"({error}); derive a class from {SAMPLER} with the attribute `method`, and name it: "
            "configuration(method, sampler='my_module.MySampler')"
        ) from error
    return description


# What a configuration says


def method_of(options: Mapping[str, Any]) -> Method:
    """The method that `sampler_kwargs` names: see `read_options`.

    Examples
    --------
    >>> method_of({"method": "pods", "arguments": {"n": 32, "m": 8}}).selector
    MaxVariance(m=8, baseline='selection')
    """
    return read_options(options).method


def read_options(options: Mapping[str, Any], method: Method | None = None) -> Options:
    """What `trainer.v1.sampler.sampler_kwargs` says, checked.

    A configuration may come from an unknown hand, so it is data alone: names of this package's
    slots and plain values, see `config.rebuild`. It cannot name anything else to run.

    Parameters
    ----------
    options : mapping
        With the keys of `OPTIONS`: `method` is the name of a paper, with its `arguments`, or what
        `configuration(method)` describes.
    method : Method, optional
        That of a sampler class of one's own, in place of the key `method`.

    Raises
    ------
    ValueError
        For anything else.
    """
    for name in options:
        if name not in OPTIONS:
            raise unknown_argument(name, "the sampler", OPTIONS, "sampler_kwargs.")
    seed = options.get("seed", 0)
    whole_number("sampler_kwargs.seed", seed, 0)
    solved = options.get("solved")
    if solved is not None and not is_number(solved):
        raise ValueError(f"sampler_kwargs.solved={brief(solved)}: a number is needed")
    if method is None:
        named: Any = options.get("method")
        if isinstance(named, Mapping):
            method = config.rebuild(dict(named))
        else:
            method = config.method(named, options.get("arguments"))
    elif options.get("method") is not None:
        raise ValueError(
            f"sampler_kwargs.method={brief(options['method'])}: the sampler's class has a method "
            "of its own; leave the key out"
        )
    check(method)
    return Options(method, seed, solved)


def check_configuration(config: Mapping[str, Any], method: Method) -> None:
    """Raise ValueError unless verl's configuration is that of the method.

    A forgotten key would train with another objective than the method's, and nothing would say so.

    Parameters
    ----------
    config : mapping
        verl's whole configuration as nested dicts, resolved.
    method : Method
    """
    # The name of the sampler and the number of rollouts are not compared, so any will do. With
    # another name than ours the method need not be one that a configuration can describe.
    for key, wanted in configuration(method, "own.Sampler", rollouts_per_problem=1).items():
        if key == "actor_rollout_ref.rollout.n" or key.startswith(SAMPLER_KEYS):
            continue
        # A reference to another key, which verl has resolved.
        if isinstance(wanted, str) and wanted.startswith("${"):
            wanted = _value(config, wanted[2:-1])
        present = _value(config, key)
        listed = isinstance(present, list) and wanted in present  # verl takes several libraries
        if present != wanted and not listed:
            raise ValueError(
                f"{key}={json.dumps(present, default=str)}: the method {method.name!r} needs "
                f"{json.dumps(wanted, default=str)}; configuration(method) has all its keys"
            )
    scales = isinstance(method.advantage, GroupNormalized) and method.advantage.scale
    if scales and _value(config, "algorithm.norm_adv_by_std_in_grpo") is False:
        raise ValueError(
            "algorithm.norm_adv_by_std_in_grpo=False: the method's advantage scales rewards; leave "
            "it out, or change the method, as in methods.dr_grpo()"
        )
    refused = dict(REFUSED)
    if not _value(config, "reward.reward_model.enable_resource_pool"):
        refused["reward.reward_model.enable"] = (
            "a colocated reward model scores after sampling, too late for a method; use a reward "
            "function, or reward.reward_model.enable_resource_pool=True"
        )
    if method.needs & MODEL_PASS:
        refused["algorithm.rollout_correction.bypass_mode"] = (
            "verl's training model then makes no pass before the update, and the method "
            f"{method.name!r} needs one"
        )
    for key, reason in refused.items():
        if _value(config, key):
            raise ValueError(f"{key}=True: set it to False, since {reason}")


def _value(config: Mapping[str, Any], key: str) -> Any:
    """The value under a dotted key, None where there is none."""
    value: Any = config
    for name in key.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value
