"""What a method is in TRL's words, and which methods and arguments TRL's trainer cannot carry together."""

import hashlib
import json

import numpy as np
from trl import GRPOConfig

from workbench.allocators import DynamicSampling
from workbench.methods import Method
from workbench.scheduler import Scheduler
from workbench.utils.validation import whole_number

ROW_MEANS = ("grpo", "sapo", "dr_grpo", "luspo")  # TRL losses that divide by the number of rows
CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")  # TRL losses with a clip range
LOSSES = {"token": "dapo", "rollout": "grpo", "constant": "dr_grpo"}


def arguments(method):
    """What a method's objective is in TRL's words: keyword arguments for `trl.GRPOConfig`.

    TRL computes the entropy bonus as a mean over the tokens of each micro-batch. ValueError for an objective that TRL
    does not have.
    """
    objective = method.objective
    if objective.length is not None:
        raise ValueError(
            f"length={objective.length}: TRL's dr_grpo divides by max_completion_length; use length=None"
        )
    low, high = objective.clip
    return {
        "loss_type": LOSSES[objective.mean],
        "epsilon": low,
        "epsilon_high": high,
        "beta": objective.kl,
        "importance_sampling_level": objective.ratio,
        "entropy_coef": objective.entropy,
    }


def solved(rewards):
    """Which rollouts are correct, (R,) bool, by rewards (R, F), one column a reward function: the first gave 1 or more."""
    return rewards[:, 0] >= 1


def weighted(scores, weights):
    """Weighted sum of the rewards (R, F), NaN where no function gave one; in TRL's single precision, 0.8 + 0.2 is 1."""
    if np.isinf(scores).any():
        raise ValueError(
            f"reward_funcs: a reward is {scores[np.isinf(scores)][0]}; finite numbers or None are needed"
        )
    return np.where(np.isnan(scores).all(axis=1), np.nan, np.nansum(scores * weights, axis=1))


def problem_id(prompt):
    """The stable id of a prompt, text or messages: 16 hexadecimal digits of its hash. History is kept under it."""
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def replays(method):
    """Whether old rollouts are trained on with the probabilities they were sampled with."""
    return method.reuse is not None and getattr(method.reuse, "mode", "direct") == "direct"


def reads_entropy(method):
    """Whether the selector asks how uncertain the policy was."""
    return isinstance(method.selector, Scheduler)


def check(method, rows_at_once, given):
    """ValueError for what TRL's trainer, or a combination of its arguments (name to value) and the slots, cannot carry."""
    if not isinstance(method, Method):
        raise ValueError(
            f"method={method!r}: a workbench.methods.Method is needed, or None for plain TRL"
        )
    if rows_at_once is not None:
        whole_number("rows_at_once", rows_at_once, 1)
    config = given.get("args") or GRPOConfig  # the class has the defaults
    dataset, corrected = (
        given.get("train_dataset"),
        config.use_vllm and config.vllm_importance_sampling_correction,
    )
    trained = method.reuse is not None and getattr(method.reuse, "mode", "") != "stop-gradient"
    stop = method.reuse is not None and not trained
    refused = {
        "tools": given.get("tools") is not None, "rollout_func": given.get("rollout_func") is not None,
        "environment_factory": given.get("environment_factory") is not None,
        "use_liger_kernel=True": config.use_liger_kernel,
        "multi_objective_aggregation='normalize_then_sum'": config.multi_objective_aggregation != "sum_then_normalize",
        "a train_dataset with images": {"image", "images"} & set(getattr(dataset, "column_names", None) or ()),
    }  # fmt: skip
    for name in (name for name, found in refused.items() if found):
        raise ValueError(
            f"{name}: a method cannot carry it; leave it out, or train with method=None"
        )
    if getattr(method.selector, "mini_batch", None) is not None:
        raise ValueError(
            f"mini_batch={method.selector.mini_batch}: TRL's steps are set by steps_per_generation and "
            "gradient_accumulation_steps; use mini_batch=None"
        )
    if getattr(getattr(method.allocator, "rates", None), "kind", None) == "predictor":
        raise ValueError(
            "rates='predictor': it reads hidden states, which TRL's trainer does not give; use another kind"
        )
    if stop and config.loss_type == "bnpo":
        raise ValueError(
            "loss_type='bnpo': it averages within micro-batches, where a response without gradient is not; "
            "use another loss, or another mode of CorrectResponses"
        )
    if trained and corrected:
        raise ValueError(
            "vllm_importance_sampling_correction=True: it has no ratio for old rollouts; set it to False, or "
            "use CorrectResponses(mode='stop-gradient')"
        )
    if isinstance(method.allocator, DynamicSampling):
        check_indexable(dataset)


def check_indexable(dataset):
    """ValueError for a stream, which has no other problems to draw from; None passes."""
    if dataset is not None and not hasattr(dataset, "__len__"):
        raise ValueError(
            "train_dataset: more problems cannot be drawn from a stream; pass a datasets.Dataset"
        )
