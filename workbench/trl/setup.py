"""What a method is in TRL's words, and which settings of TRL's trainer a method cannot go with.

Everything here happens before a model is loaded.
"""

import copy
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from accelerate.logging import get_logger
from datasets import Dataset
from torch.nn import Module
from transformers.trainer import TRAINER_STATE_NAME
from trl import GRPOConfig
from trl.trainer.utils import get_callable_name, get_config_model_id

from workbench.adapters import check_fits
from workbench.methods import Method
from workbench.slots import COURSE_NEEDS, NEEDS
from workbench.trl.table import Verdict
from workbench.utils.validation import instance_of, one_of, whole_number

logger = get_logger(__name__)

# (surrogate, loss_aggregation) -> TRL's loss_type. The mean over groups is TRL's mean over rollouts
# of advantages that `adapters.row_weights` weighs.
LOSSES = {
    ("clip", "token"): "dapo",
    ("clip", "rollout"): "grpo",
    ("clip", "group"): "grpo",
    ("clip", "constant"): "dr_grpo",
    ("cispo", "token"): "cispo",
    ("sapo", "rollout"): "sapo",
}
# What TRL sets where the user has said nothing. A value that differs from it was meant, so it is
# never overwritten silently.
DEFAULTS = {field.name: field.default for field in fields(GRPOConfig)}

# What slots may need and this trainer has: everything but the policy's hidden states, steps of a
# size that the selector chooses, since TRL's own settings say how large a step is, and a say in
# where its own sampling starts and stops.
PROVIDES = NEEDS.keys() - {"prompt_states", "mini_batch"} - COURSE_NEEDS


def last_checkpoint(folder: Any) -> str:
    """The last checkpoint in a folder that was written to its end; ValueError without one."""
    # That file is what the trainer writes last.
    complete = [path.parent for path in Path(folder).glob(f"checkpoint-*/{TRAINER_STATE_NAME}")]
    if not complete:
        raise ValueError(
            f"resume_from_checkpoint=True: {folder} holds no complete checkpoint; train from the "
            "beginning, with a new trainer"
        )
    return str(max(complete, key=lambda path: int(path.name.rpartition("-")[2])))


def levels_of(dataset: Dataset) -> list[int]:
    """The column "level"; nothing unless it has a whole number in every row."""
    levels = list(dataset["level"]) if "level" in dataset.column_names else []
    return levels if all(isinstance(level, int) for level in levels) else []


def _refuse(values: Mapping[str, Any], refused: Mapping[str, tuple[bool, str]]) -> None:
    """Raise ValueError for the first of the settings, name to (whether it is refused, why)."""
    for name, (is_refused, reason) in refused.items():
        if is_refused:
            raise ValueError(f"{name}={values[name]!r}: {reason}")


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
    low, high = objective.clip
    bound = objective.dual_clip
    refused = {
        "sampler_correction": (
            objective.sampler_correction is not None,
            "TRL has its own setting, vllm_importance_sampling_correction; leave it at None",
        ),
        "dual_clip": (
            bound is not None and bound < 1 + high,
            "TRL bounds the ratio by it also where an advantage is above 0; with clip="
            f"{objective.clip} use at least {1 + high:g}",
        ),
        "clip": (
            loss == "cispo" and low < 1,
            f"TRL's loss 'cispo' has no lower bound on the ratio; use clip=(1.0, {high})",
        ),
    }
    _refuse(vars(objective), refused)
    settings = {
        "loss_type": loss,
        "epsilon": low,
        "epsilon_high": high,
        "beta": objective.kl,
        "use_bias_correction_kl": False,  # it would multiply the penalty by the ratio
        "importance_sampling_level": objective.importance_sampling,
        "entropy_coef": objective.entropy,
        "use_adaptive_entropy": False,
        "delta": bound,
    }
    if loss == "cispo":
        settings["epsilon_high"] = 1 + high  # TRL's bound is that of the ratio itself
    if loss == "sapo":
        positive, negative = objective.temperatures
        settings |= {"sapo_temperature_pos": positive, "sapo_temperature_neg": negative}
    return settings


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
    instance_of("method", method, Method, "workbench.methods.grpo(8), a name, or None for TRL")
    one_of("objective_from", objective_from, ("method", "args"))
    if rows_at_once is not None:
        whole_number("rows_at_once", rows_at_once, 1)

    config = given.get("args")
    if config is None:
        config = GRPOConfig(f"{_model_name(given['model'])}-GRPO")  # as TRL does
    config = copy.copy(config)  # one configuration may serve several trainers
    # First the settings that the method decides, then the checks, which look at the result.
    if objective_from == "method":
        _apply_objective(config, method)
    _apply_group_size(config, method)

    _check_carried(config)
    _check_needs(config, method, given)
    if given.get("environment_factory") is None:
        # The reward that an environment brings has a name only once it is made.
        Verdict(correct, reward_names(given.get("reward_funcs")), method.reads_verdict)
    return config


def reward_names(reward_funcs: Any) -> list[str]:
    """The names under which TRL logs reward functions."""
    if not isinstance(reward_funcs, list):
        reward_funcs = [] if reward_funcs is None else [reward_funcs]
    return [
        _model_name(each) if isinstance(each, str | Module) else get_callable_name(each)
        for each in reward_funcs
    ]


def _model_name(model: Any) -> str:
    name = model if isinstance(model, str) else get_config_model_id(model.config)
    return name.split("/")[-1]


def _apply_objective(config: GRPOConfig, method: Method) -> None:
    """Set the objective's settings that were left at TRL's defaults; ValueError for others."""
    objective = method.objective
    mean = objective.loss_aggregation
    if (mean == "group" and objective.kl > 0) or (mean != "token" and objective.entropy > 0):
        logger.warning(
            f"loss_aggregation={mean!r}: TRL averages its KL penalty over rollouts, and its "
            "entropy bonus over all tokens"
        )
    for name, value in arguments(method).items():
        present = vars(config)[name]
        if present == value:
            continue
        # Another value than both TRL's default and the method's is a contradiction.
        if present != DEFAULTS[name]:
            raise ValueError(
                f"{name}={present!r}: the objective of the method {method.name!r} has "
                f"{name}={value!r}; leave {name} out of GRPOConfig, change method.objective, or "
                "pass objective_from='args' to train with the objective of GRPOConfig"
            )
        setattr(config, name, value)


def _apply_group_size(config: GRPOConfig, method: Method) -> None:
    """Let num_generations be the rollouts of a problem that are trained on, so that TRL's batch
    sizes, which count rollouts, stay what they say.
    """
    trained = method.trained
    if trained is None or trained.of == "about" or config.num_generations == trained.n:
        return
    size = trained.n
    if config.num_generations != DEFAULTS["num_generations"]:
        raise ValueError(
            f"num_generations={config.num_generations}: the method {method.name!r} trains on "
            f"{size} rollouts of a problem; leave num_generations out, or set it to {size}"
        )
    batch: Any = config.generation_batch_size  # TRL has set it, if nobody else has
    if batch % size:
        raise ValueError(
            f"generation_batch_size={batch}: the method {method.name!r} "
            f"trains on {size} rollouts of a problem, so a multiple of {size} is needed; where "
            f"nothing else sets it, per_device_train_batch_size={size} does"
        )
    # Evaluation has its own number, which would otherwise follow the new one unnoticed.
    if config.num_generations_eval is None:
        config.num_generations_eval = config.num_generations
    config.num_generations = size


# What cannot be carried


def _check_carried(config: GRPOConfig) -> None:
    """Raise ValueError for settings that would go against the method or be ignored."""
    has_bonus = config.entropy_coef or config.use_adaptive_entropy
    refused: dict[str, Any] = {
        "scale_rewards": (
            config.scale_rewards != DEFAULTS["scale_rewards"],
            "the method's advantage scales rewards; leave it out, or change the method, as in "
            "method.but(advantage=GroupNormalized(scale=False))",
        ),
        "multi_objective_aggregation": (
            config.multi_objective_aggregation != "sum_then_normalize",
            "a method reads the weighted sum of the rewards; use 'sum_then_normalize'",
        ),
        "top_entropy_quantile": (
            config.top_entropy_quantile < 1 and has_bonus,
            "which tokens get the entropy bonus would depend on the micro-batches; leave one out",
        ),
        "max_completion_length": (
            config.max_completion_length is None,
            "a method has to know where responses are cut off; name a number of tokens",
        ),
    }
    _refuse(vars(config), refused)


def _check_needs(config: GRPOConfig, method: Method, given: Mapping[str, Any]) -> None:
    """Raise ValueError where a slot needs what this trainer, as it is configured, cannot give."""
    dataset: Any = given.get("train_dataset")
    is_indexable = isinstance(dataset, Dataset)
    columns = [] if dataset is None else dataset.column_names or []  # of a stream perhaps None
    if {"image", "images"} & set(columns):
        raise ValueError(
            "train_dataset: it has a column of images, and a method's table of rollouts holds "
            "tokens alone; train with method=None"
        )
    batch: Any = config.generation_batch_size
    group: Any = config.num_generations
    prompts = batch // group
    if is_indexable and len(dataset) < prompts:
        raise ValueError(
            f"train_dataset: it has {len(dataset)} rows, and a round has {prompts} prompts "
            "(generation_batch_size / num_generations), so that TRL would end without a step; use "
            "more rows or a smaller batch"
        )
    old = {"old_logprobs", "current_logprobs"}
    limits: dict[str, set[str]] = {}
    if not is_indexable:
        found = {"problem_choice", "more_problems"}
        limits["without a train_dataset that can be indexed (a datasets.Dataset)"] = found
    if not is_indexable or not levels_of(dataset):
        limits["without whole numbers in a column 'level' of train_dataset"] = {"levels"}
    if any(given.get(name) for name in ("tools", "environment_factory", "rollout_func")):
        limits["with tools, environments or a rollout_func"] = {"old_responses", *old}
    if config.use_vllm and config.vllm_importance_sampling_correction:
        limits["with vllm_importance_sampling_correction=True, for new responses alone,"] = old
    if config.off_policy_mask_threshold is not None:
        limits["with off_policy_mask_threshold, for new responses alone,"] = old
    if config.beta != 0 or config.entropy_coef != 0 or config.use_adaptive_entropy:
        limits["with a KL penalty or an entropy bonus, the same for all,"] = {"row_weights"}
    keeps_tokens_apart = config.loss_type in ("cispo", "vespo")
    if config.importance_sampling_level == "sequence" and not keeps_tokens_apart:
        # The gradient of a ratio of the whole response goes to all its tokens alike.
        limits["with importance_sampling_level='sequence', one ratio for a response,"] = {
            "token_advantages"
        }
    if config.loss_type == "bnpo":
        limits["with loss_type='bnpo', which averages micro-batches,"] = {"old_responses"}
    check_fits(method, "TRL's trainer", PROVIDES, limits)
