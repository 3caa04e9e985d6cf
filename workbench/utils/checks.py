"""Checks of methods and labs, made before a model is loaded; errors name the argument.

The slots are protocols, not classes: what is checked is what the loop will call.
"""

import inspect
from functools import partial

import numpy as np

from workbench.policies import Sampling
from workbench.selectors import STATISTICS
from workbench.utils.columns import is_number, positive_number, whole_number


def check_instance(name, value, kind, example):
    """ValueError unless the argument `name` is a `kind`."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise ValueError(
            f"{name}={_shown(value)}: {article} {kind.__name__} is needed, such as {example}"
        )


def check_slots(method):
    """ValueError for the first slot whose value cannot do what the loop asks of it."""
    from workbench.objectives import Objective

    if not isinstance(method.name, str) or not method.name:
        raise ValueError(f"name={method.name!r}: a text is needed")
    _needs("allocator", method.allocator, "allocate", "Uniform(8)")
    if method.reuse is not None:
        _needs("reuse", method.reuse, "join", "CorrectResponses(), or None")
    _check_selector(method.selector)
    _check_advantage(method.advantage)
    check_instance("objective", method.objective, Objective, "Objective(clip=(0.2, 0.28))")
    _check_reward(method.reward)


def check_parts(lab):
    """ValueError for the first part of a lab that a run cannot use."""
    _needs("problems", lab.problems, "draw", "problems.arithmetic(1024)", "epoch")
    if lab.held_out is not None and (not hasattr(lab.held_out, "__len__") or not len(lab.held_out)):
        raise ValueError(
            f"held_out={_shown(lab.held_out)}: a Pool is needed, or None for no evaluation"
        )
    _needs("verifier", lab.verifier, "score", "verifiers.Math()")
    if not callable(lab.make_policy):
        raise ValueError(
            f"make_policy={_shown(lab.make_policy)}: a function that returns a policy is needed"
        )
    check_instance("sampling", lab.sampling, Sampling, "Sampling(max_new_tokens=512)")
    for name in ("learning_rate", "max_grad_norm"):
        positive_number(name, getattr(lab, name))
    for name in ("samples", "micro_tokens"):
        whole_number(name, getattr(lab, name), 1)
    if not isinstance(lab.optimizer, dict) or "lr" in lab.optimizer:
        raise ValueError(
            f"optimizer={lab.optimizer!r}: a dict of AdamW's keyword arguments is needed, without lr"
        )
    if lab.config is not None and not isinstance(lab.config, dict):
        raise ValueError(f"config={lab.config!r}: a dict is needed, or None")


def check_optimizer(options):
    """ValueError unless AdamW takes these keyword arguments."""
    import torch

    try:
        torch.optim.AdamW([torch.zeros(1)], **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"optimizer={options!r}: AdamW says: {error}") from None


def _needs(slot, value, method, example, *others):
    """ValueError unless `value` is an object with the methods named."""
    missing = [
        name
        for name in (method, *others)
        if isinstance(value, str) or not callable(getattr(value, name, None))
    ]
    if isinstance(value, type) or missing:
        what = (
            "this is a class, an object"
            if isinstance(value, type)
            else f"it has no {missing[0]}(); one that has it"
        )
        raise ValueError(f"{slot}={_shown(value)}: {what} is needed, such as {example}")


def _check_advantage(function):
    from workbench import advantages

    shown, needed = (
        _shown(function),
        "a function of rewards and groups is needed, such as group_normalized",
    )
    if isinstance(function, type) or not callable(function):
        raise ValueError(f"advantage={shown}: {needed}")
    try:
        inspect.signature(function).bind([], [])
        if getattr(function, "func", function) in vars(advantages).values():
            # ours check their options, and take an empty batch
            function(np.zeros(0), np.zeros(0, dtype=np.int64))
    except (TypeError, ValueError) as error:
        raise ValueError(f"advantage={shown}: {error}; {needed}") from None


def _check_selector(selector):
    if isinstance(selector, type) or not callable(selector) or not hasattr(selector, "statistics"):
        raise ValueError(
            f"selector={_shown(selector)}: a selector object is needed, such as MaxVariance(4): it is called with "
            "the rollouts and has `statistics`"
        )
    if selector.statistics not in STATISTICS:
        raise ValueError(
            f"selector={_shown(selector)}: statistics={selector.statistics!r}, allowed are {', '.join(STATISTICS)}"
        )


def _check_reward(parts):
    if not isinstance(parts, (tuple, list)) or not parts:
        raise ValueError(
            f"reward={_shown(parts)}: a tuple of at least one part is needed, such as (Correct(),)"
        )
    for part in parts:
        named = isinstance(getattr(part, "name", None), str) and is_number(
            getattr(part, "weight", None)
        )
        if isinstance(part, type) or not callable(part) or not named:
            raise ValueError(
                f"reward: {_shown(part)} is no part like Correct(): it is called, with a name and a numeric weight"
            )
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise ValueError(f"reward={_shown(parts)}: no two parts of the same name are allowed")


def _shown(value):
    if isinstance(value, partial):
        return f"{_shown(value.func)}({', '.join(f'{name}={option!r}' for name, option in value.keywords.items())})"
    text = getattr(value, "__name__", None) if isinstance(value, type) or callable(value) else None
    text = text or repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
