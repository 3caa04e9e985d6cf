"""What a method is in TRL's words, and which settings of TRL's trainer a method cannot go with.

Everything here happens before a model is loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from accelerate.logging import get_logger
from datasets import Dataset
from torch.nn import Module
from trl import GRPOConfig
from trl.trainer.utils import get_callable_name, get_config_model_id

from workbench.advantages import BatchNormalized, GroupNormalized, Posterior
from workbench.allocators import DynamicSampling, Knapsack, MostLearnable, Uniform
from workbench.curricula import AdaRft, ShuffledEpochs
from workbench.methods import Method
from workbench.objectives import Objective
from workbench.selectors import (
    All,
    LargestAdvantage,
    MaxReward,
    MaxVariance,
    Pruned,
    Random,
    Scheduler,
)
from workbench.trl.verdict import check_correct
from workbench.utils.descriptions import compose
from workbench.utils.validation import instance_of, one_of, whole_number

logger = get_logger(__name__)

# (surrogate, loss_aggregation) -> TRL's loss_type. The mean over groups is TRL's mean over rollouts
# of advantages that `group_factors` weighs.
LOSSES = {
    ("clip", "token"): "dapo",
    ("clip", "rollout"): "grpo",
    ("clip", "group"): "grpo",
    ("clip", "constant"): "dr_grpo",
    ("cispo", "token"): "cispo",
    ("sapo", "rollout"): "sapo",
}
OBJECTIVE_FROM = ("method", "args")
# What TRL sets where the user has said nothing. A value that differs from it was meant, so it is
# never overwritten silently.
DEFAULTS = {field.name: field.default for field in fields(GRPOConfig)}

# What slots may need (see `slots.NEEDS`) and this trainer has. It lacks "prompt_states", and
# "mini_batch" since TRL's own settings say how large a step is.
PROVIDES = frozenset(
    {
        "problem_choice",
        "epochs",
        "more_problems",
        "old_responses",
        "old_logprobs",
        "current_logprobs",
        "entropy",
        "update_statistics",
        "row_weights",
        "token_advantages",
        "token_entropy",
        "resampling",
        "levels",
        "rows_without_gradient",
    }
)


# A method in TRL's words


def arguments(method: Method) -> dict[str, Any]:
    """A method's objective as keyword arguments of `trl.GRPOConfig`.

    `GRPOTrainer` applies them by itself; this function shows them.

    Parameters
    ----------
    method : Method

    Raises
    ------
    ValueError
        For an objective that TRL does not have.

    Examples
    --------
    >>> from workbench import methods
    >>> arguments(methods.gspo())["importance_sampling_level"]
    'sequence'
    """
    objective = method.objective
    loss = LOSSES.get((objective.surrogate, objective.loss_aggregation))
    if loss is None:
        known = ", ".join(f"{kind!r} with {mean!r}" for kind, mean in LOSSES)
        raise ValueError(
            f"surrogate={objective.surrogate!r} with loss_aggregation="
            f"{objective.loss_aggregation!r}: TRL has no such loss; it has {known}"
        )
    if objective.sampler_correction is not None:
        raise ValueError(
            f"sampler_correction={objective.sampler_correction!r}: TRL corrects the sampler by its "
            "own setting, vllm_importance_sampling_correction; leave it at None"
        )
    low, high = objective.clip
    settings = {
        "loss_type": loss,
        "epsilon": low,
        "epsilon_high": high,
        "beta": objective.kl,
        "importance_sampling_level": objective.importance_sampling,
        "entropy_coef": objective.entropy,
        "use_adaptive_entropy": False,
        "delta": objective.dual_clip,
    }
    if loss == "cispo":
        _check_cispo(objective)
        settings["epsilon_high"] = 1 + high  # TRL's bound is that of the ratio itself
    if loss == "sapo":
        positive, negative = objective.temperatures
        settings |= {"sapo_temperature_pos": positive, "sapo_temperature_neg": negative}
    return settings


def _check_cispo(objective: Objective) -> None:
    if objective.clip[0] < 1:
        raise ValueError(
            f"clip={objective.clip}: TRL's loss 'cispo' has no lower bound on the ratio; use "
            f"clip=(1.0, {objective.clip[1]})"
        )


def scale_rewards(method: Method) -> str | None:
    """The value of TRL's `scale_rewards` that says what a method's advantage does, None where none
    does.
    """
    advantage = method.advantage
    # Exact types here and below: a derived class may do anything.
    if type(advantage) is GroupNormalized:
        return "group" if advantage.scale else "none"
    if type(advantage) is BatchNormalized and advantage.baseline == "group":
        return "batch"
    return None


def trained_per_problem(method: Method) -> int | None:
    """Rollouts of a problem that a method trains on, where that number does not vary from round to
    round.

    Examples
    --------
    >>> from workbench import methods
    >>> trained_per_problem(methods.pods(32, 8)), trained_per_problem(methods.aero())
    (8, None)
    """
    sampled = _sampled_per_problem(method.allocator)
    selector = method.selector
    if sampled is None or method.replay is not None:
        return None
    if type(selector) in (All, Pruned):
        return sampled  # what `Pruned` drops stays in the batch, with weight 0
    if type(method.allocator) is Knapsack:
        return None  # the average over problems is fixed, but not what is selected of each
    if type(selector) in (MaxVariance, MaxReward, Random):
        return min(selector.m, sampled)
    if type(selector) is LargestAdvantage and selector.scope == "group":
        return max(1, int(sampled * (1 - selector.drop) + 1e-9))
    if type(selector) is Scheduler and selector.scope == "group":
        percent = 30 if selector.keep is None else selector.keep
        return max(1, int(sampled * percent / 100 + 1e-9))
    return None


def _sampled_per_problem(allocator: Any) -> int | None:
    if type(allocator) in (Uniform, MostLearnable):
        return allocator.n
    if type(allocator) is Knapsack and allocator.total is None:
        return allocator.n
    if type(allocator) is DynamicSampling and allocator.within is None:
        # With a number of groups of its own, the rollouts of a round do not follow its problems.
        return allocator.n if allocator.groups is None else None
    return None


# The configuration that a method runs with


def configured(
    method: Method, given: Mapping[str, Any], correct: Any, rows_at_once: Any, objective_from: Any
) -> GRPOConfig:
    """Check all arguments of the trainer, and return a copy of `args` with the method's settings.

    Parameters
    ----------
    method, correct, rows_at_once, objective_from
        See `GRPOTrainer`.
    given : mapping
        The arguments of TRL's constructor, name to value.

    Raises
    ------
    ValueError
        For what TRL's trainer, or the combination of its settings and the slots, cannot carry.
    """
    instance_of("method", method, Method, "workbench.methods.grpo(8), or None for plain TRL")
    one_of("objective_from", objective_from, OBJECTIVE_FROM)
    if rows_at_once is not None:
        whole_number("rows_at_once", rows_at_once, 1)

    config = given.get("args")
    if config is None:
        config = GRPOConfig(f"{_model_name(given['model'])}-GRPO")  # as TRL does
    config = copy.copy(config)  # one configuration may serve several trainers
    # First the settings that the method decides, then the checks, which look at the result.
    _apply_objective(config, method, objective_from)
    _check_scale_rewards(config, method)
    _apply_group_size(config, method)

    _check_carried(config, given)
    _check_needs(config, method, given)
    names = reward_names(given.get("reward_funcs"))
    if given.get("environment_factory") is None:
        # The reward that an environment brings has a name only once it is made.
        check_correct(correct, names, method)
    _check_bounds(config, method, names)
    return config


def check_without_method(correct: Any, rows_at_once: Any, objective_from: Any) -> None:
    """Raise ValueError for arguments that plain TRL has no use for."""
    given = {
        "correct": (correct, None),
        "rows_at_once": (rows_at_once, None),
        "objective_from": (objective_from, "method"),
    }
    for name, (value, default) in given.items():
        if value != default:
            raise ValueError(f"{name}={value!r}: it goes with a method; pass method= as well")


def reward_names(reward_funcs: Any) -> list[str]:
    """The names under which TRL logs reward functions."""
    if reward_funcs is None:
        return []
    if not isinstance(reward_funcs, list):
        reward_funcs = [reward_funcs]
    return [_reward_name(function) for function in reward_funcs]


def _reward_name(function: Any) -> str:
    if isinstance(function, str | Module):
        return _model_name(function)
    return get_callable_name(function)


def _model_name(model: Any) -> str:
    name = model if isinstance(model, str) else get_config_model_id(model.config)
    return name.split("/")[-1]


def _apply_objective(config: GRPOConfig, method: Method, objective_from: str) -> None:
    """Set the objective's settings that were left at TRL's defaults; ValueError for others."""
    if objective_from == "args":
        return
    objective = method.objective
    if objective.loss_aggregation == "group" and objective.kl > 0:
        logger.warning(
            f"loss_aggregation='group' with kl={objective.kl:g}: TRL averages the KL penalty over "
            "rollouts, and not over groups"
        )
    for name, value in arguments(method).items():
        present = getattr(config, name)
        if present == value:
            continue
        # Another value than both TRL's default and the method's is a contradiction.
        if present != DEFAULTS[name]:
            raise ValueError(
                f"{name}={present!r}: the objective of the method {method.name!r} has "
                f"{name}={value!r}; leave {name} out of GRPOConfig, change method.objective, or "
                "pass objective_from='args' to train with the objective of GRPOConfig"
            )
        logger.info(f"{name}={value!r}, from the objective of the method {method.name!r}")
        setattr(config, name, value)


def _check_scale_rewards(config: GRPOConfig, method: Method) -> None:
    if config.scale_rewards in (DEFAULTS["scale_rewards"], scale_rewards(method)):
        return
    raise ValueError(
        f"scale_rewards={config.scale_rewards!r}: advantages are those of the method, "
        f"{compose(method.advantage)}; leave scale_rewards out, or change the method, as in "
        "method.but(advantage=GroupNormalized(scale=False)) for scale_rewards='none'"
    )


def _apply_group_size(config: GRPOConfig, method: Method) -> None:
    """Let num_generations be the rollouts of a problem that are trained on, so that TRL's batch
    sizes, which count rollouts, stay what they say.
    """
    size = trained_per_problem(method)
    if size is None or config.num_generations == size:
        return
    if config.num_generations != DEFAULTS["num_generations"]:
        raise ValueError(
            f"num_generations={config.num_generations}: the method {method.name!r} trains on "
            f"{size} rollouts of a problem; leave num_generations out, or set it to {size}, and "
            "TRL's batch sizes count the rollouts trained on"
        )
    assert config.generation_batch_size is not None  # TRL has worked it out
    if config.generation_batch_size % size:
        raise ValueError(
            f"generation_batch_size={config.generation_batch_size}: the method {method.name!r} "
            f"trains on {size} rollouts of a problem, so a multiple of {size} is needed; change "
            "per_device_train_batch_size, steps_per_generation or gradient_accumulation_steps"
        )
    # Evaluation has its own number, which would otherwise follow the new one unnoticed.
    if config.num_generations_eval is None:
        config.num_generations_eval = config.num_generations
    logger.warning(
        f"num_generations={size}, since the method {method.name!r} trains on so many rollouts of a "
        "problem"
    )
    config.num_generations = size


# What cannot be carried


def _check_carried(config: GRPOConfig, given: Mapping[str, Any]) -> None:
    dataset = given.get("train_dataset")
    columns = None if dataset is None else dataset.column_names  # a stream may not know them
    if {"image", "images"} & set(columns or ()):
        raise ValueError(
            "train_dataset: it has images, and a method's table of rollouts holds tokens alone; "
            "train with method=None"
        )
    if config.multi_objective_aggregation != "sum_then_normalize":
        raise ValueError(
            f"multi_objective_aggregation={config.multi_objective_aggregation!r}: a method reads "
            "the weighted sum of the rewards, and its advantage normalises it; use "
            "'sum_then_normalize', or train with method=None"
        )
    if config.top_entropy_quantile < 1 and (config.entropy_coef or config.use_adaptive_entropy):
        raise ValueError(
            f"top_entropy_quantile={config.top_entropy_quantile}: together with an entropy bonus, "
            "which tokens get the bonus would depend on the micro-batches; use one of the two"
        )


def _check_needs(config: GRPOConfig, method: Method, given: Mapping[str, Any]) -> None:
    """Raise ValueError where a slot needs what this trainer, as it is configured, cannot give."""
    method.check_provided(PROVIDES, "TRL's trainer")
    indexable = isinstance(given.get("train_dataset"), Dataset)
    tools = any(given.get(name) for name in ("tools", "environment_factory", "rollout_func"))
    penalties = config.beta != 0 or config.entropy_coef != 0 or config.use_adaptive_entropy
    corrected = config.use_vllm and config.vllm_importance_sampling_correction
    # Each entry: whether it applies, what this trainer then cannot give, and how the error names
    # it.
    limits = [
        (
            not indexable,
            {"problem_choice", "more_problems"},
            "TRL's trainer without a train_dataset that can be indexed (a datasets.Dataset)",
        ),
        (
            tools,
            {"old_responses", "old_logprobs", "current_logprobs"},
            "TRL's trainer with tools, environments or a rollout_func",
        ),
        (
            corrected,
            {"old_logprobs", "current_logprobs"},
            "TRL's trainer with vllm_importance_sampling_correction=True, which has no ratio for "
            "old responses,",
        ),
        (
            penalties,
            {"row_weights"},
            "TRL's trainer with a KL penalty or an entropy bonus, which it weighs alike for all "
            "rollouts,",
        ),
        (
            config.loss_type == "bnpo",
            {"old_responses"},
            "TRL's trainer with loss_type='bnpo', which averages within micro-batches,",
        ),
    ]
    for applies, lost, trainer in limits:
        if applies:
            method.check_provided(PROVIDES - lost, trainer)
    if chooses_problems(method) and not indexable:
        raise ValueError(
            f"curriculum={compose(method.curriculum)}: it chooses problems from train_dataset, so "
            "a datasets.Dataset is needed there"
        )
    _check_levels(method, given.get("train_dataset"))


def _check_levels(method: Method, dataset: Any) -> None:
    """Raise ValueError where a curriculum goes by levels that the data set does not have.

    All problems would then have the same level, and the first ones would come back for ever.
    """
    curriculum = method.curriculum
    if type(curriculum) is not AdaRft or curriculum.difficulties is not None:
        return
    if "level" not in dataset.column_names:
        raise ValueError(
            f"curriculum={compose(curriculum)}: train_dataset has no column 'level'; add one with "
            "whole numbers, or pass difficulties= with a number for each workbench.trl.problem_id"
        )
    for row, level in enumerate(dataset["level"]):
        whole_number(f"train_dataset: level of row {row}", level, 0)


def chooses_problems(method: Method) -> bool:
    """Whether the curriculum chooses a round's problems. Shuffled epochs are what TRL's own sampler
    does.
    """
    return type(method.curriculum) is not ShuffledEpochs


def _check_bounds(config: GRPOConfig, method: Method, names: Sequence[str]) -> None:
    """Raise ValueError where rewards from 0 to 1 would sum to more than a posterior's success."""
    if not isinstance(method.advantage, Posterior) or len(names) < 2:
        return
    weights = config.reward_weights or [1.0] * len(names)
    # A negative weight makes a penalty, which adds 0 at best.
    most = sum(weight for weight in weights if weight > 0)
    if most > method.advantage.bounds[1] + 1e-6:
        raise ValueError(
            f"reward_weights={list(weights)}: rewards of {', '.join(names)} may sum to {most:g}, "
            f"but advantage={compose(method.advantage)} takes {method.advantage.bounds[1]:g} for "
            "success; choose reward_weights that sum to it, or another bounds="
        )
