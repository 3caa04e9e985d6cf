"""Checkpoints: everything a run has learnt, as tensors and JSON in one safetensors file.

Nothing is pickled, so reading a checkpoint runs no code. safetensors has no checksum of its own, so
one is stored with the rest.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from workbench.records.files import check_ordinary
from workbench.utils.code import digest_of
from workbench.utils.descriptions import describe
from workbench.utils.validation import brief, cause_of


def save(path: Any, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
    """Write a checkpoint.

    Parameters
    ----------
    path : path
    tensors : dict
        Tensors by name.
    state : dict
        JSON-ready.

    Raises
    ------
    OSError
        When the disk does not take it.
    """
    text = json.dumps(state)
    # safetensors has room for texts beside the tensors, so everything is in one file, and no moment
    # exists at which tensors and state are of different rounds.
    metadata = {"state": text, "crc32": checksum(tensors, text)}
    try:
        save_file(dict(tensors), path, metadata=metadata)
    except SafetensorError as error:
        raise OSError(str(error)) from error


def load(path: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read a checkpoint.

    The tensors are views of the file, which stays mapped into memory as long as one of them lives.
    `unpack` copies what it keeps.

    Returns
    -------
    tensors, state
        What `save` was given.

    Raises
    ------
    OSError
        When the file is damaged, or no ordinary file.
    """
    check_ordinary(Path(path))
    try:
        with safe_open(Path(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            metadata = file.metadata()
        text = metadata["state"]
        expected = metadata["crc32"]
        state = dict(json.loads(text))
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise OSError(f"damaged ({type(error).__name__}: {cause_of(error)})") from error
    if expected != checksum(tensors, text):
        raise OSError("damaged (its checksum does not fit)")
    return tensors, state


def checksum(tensors: Mapping[str, torch.Tensor], text: str) -> str:
    """CRC-32 of a text and of all tensors, with their names, types and shapes, as hex."""
    value = zlib.crc32(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        # The bytes of the tensor, whatever its type is: NumPy has no bfloat16. An empty tensor has
        # no bytes to look at, and its name and shape are counted already.
        if tensor.numel():
            value = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


def pack(
    policy: Any, optimizer: torch.optim.Optimizer, method: Any, **state: Any
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What a run has learnt, as tensors and state for `save`.

    Parameters
    ----------
    policy : Policy
    optimizer : torch.optim.Optimizer
    method : Method
    state
        Further entries of the state.
    """
    tensors = {f"policy.{name}": value for name, value in policy.state_dict().items()}
    tensors |= optimizer_tensors(optimizer)
    made_with = digest_of(describe(method))
    return tensors, {**state, "made_with": made_with, "slots": split_slots(method, tensors)}


def unpack(
    tensors: Mapping[str, torch.Tensor],
    state: Mapping[str, Any],
    policy: Any,
    optimizer: torch.optim.Optimizer,
    method: Any,
) -> None:
    """Set policy, optimizer and method to what `pack` took from them.

    Nothing that is kept refers to `tensors` afterwards, so that the file they were read from can be
    released.

    Parameters
    ----------
    tensors, state
        What `load` returned.
    policy : Policy
    optimizer : torch.optim.Optimizer
    method : Method

    Raises
    ------
    ValueError
        When the checkpoint was taken from others than these.
    """
    try:
        weights = {name: tensors[f"policy.{name}"] for name in policy.state_dict()}
        # Shapes are compared here, since copying a tensor would silently broadcast one of another
        # shape.
        for name, value in policy.state_dict().items():
            if value.shape != weights[name].shape:
                raise ValueError(f"{name}: shape {value.shape}, not {weights[name].shape}")
        policy.load_state_dict(weights)
        load_optimizer(optimizer, tensors)
        # Checkpoints of earlier versions do not say it.
        if state.get("made_with") not in (None, digest_of(describe(method))):
            raise ValueError(
                "a slot has changed an argument of its own, which a checkpoint does not have; what "
                "it learns belongs into a state_field(...)"
            )
        join_slots(method, state["slots"], tensors)
    except (LookupError, AttributeError, TypeError, RuntimeError, ValueError) as error:
        cause = f"{type(error).__name__}: {cause_of(error)}"
        raise ValueError(f"the checkpoint is not of this lab and method ({cause})") from error


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """An optimizer's state as named tensors, parameters by number: `optimizer.0.exp_avg`.

    That of bitsandbytes has a whole number for the step, and puts the moments of 8 bits, which
    share tables, into a dictionary inside.
    """
    tensors: dict[str, torch.Tensor] = {}
    for number, entries in optimizer.state_dict()["state"].items():
        for name, value in entries.items():
            is_shared = isinstance(value, Mapping)
            for key, item in value.items() if is_shared else [(name, value)]:
                tensor = torch.as_tensor(item).detach().cpu()
                # Copies, since safetensors refuses tensors that share their memory.
                tensors[f"optimizer.{number}.{key}"] = tensor.clone() if is_shared else tensor
    return tensors


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    """Set an optimizer's state from `optimizer_tensors`; tensors of other names are passed over."""
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, entry = name.split(".")
            # The optimizer keeps what it is given, and a view would keep the whole file mapped.
            value = tensor.clone()
            # Of AdamW everything has floating point. A whole number is the step of bitsandbytes.
            is_step = entry == "step" and not value.is_floating_point()
            state.setdefault(int(number), {})[entry] = int(value) if is_step else value
    # Learning rate and the like are those of the optimizer as it was made, not of the checkpoint.
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for parameter in optimizer.state:
        # Without the resume the gradients would be zeros. The difference counts: a step on zeros
        # moves by momentum, while a parameter that has no gradient at all is passed over.
        parameter.grad = torch.zeros_like(parameter)


def split_slots(method: Any, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What the slots of a method have learnt, its arrays in `tensors`; the rest is JSON."""
    return split_arrays("slots", method.state_dict(), tensors)["dict"]


def join_slots(method: Any, slots: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """Set what the slots of a method have learnt to what `split_slots` took apart."""
    method.load_state_dict(join_arrays({"dict": slots}, tensors))


# Containers that come back as what they were, by their names in a checkpoint.
CONTAINERS: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
DICTS: dict[str, type] = {"items": dict, "counts": Counter}


def split_arrays(prefix: str, state: Any, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Move the arrays of a slot's state into `tensors`, leaving their names; the rest is JSON.

    `join_arrays` gives back an equal state. ValueError for what could not come back equal.
    """
    # What a thing is stands before it, so that no value is mistaken for another kind.
    if _is_plain(state):
        return {"value": state}
    if isinstance(state, np.ndarray) and state.dtype.kind == "U":
        return {"texts": state.tolist(), "dtype": state.dtype.str}
    kept: Any = state  # the type checker cannot follow `type(state) is made`
    if isinstance(state, np.ndarray | np.generic | torch.Tensor):
        kind = {np.ndarray: "tensor", torch.Tensor: "torch"}.get(type(state), "number")
        # Keys with dots in them may give two arrays one name.
        name = prefix if prefix not in tensors else f"{prefix}#{len(tensors)}"
        tensors[name] = _tensor_of(prefix, state)
        return {kind: name}
    if type(state) is dict and all(isinstance(key, str) for key in state):
        places = {key: f"{prefix}.{key}" for key in state}
        return {"dict": {key: split_arrays(places[key], state[key], tensors) for key in state}}
    if type(state) is deque:
        return {"deque": split_arrays(prefix, list(state), tensors), "longest": state.maxlen}
    for kind, made in DICTS.items():
        if type(state) is made:
            pairs = [list(pair) for pair in kept.items()]
            return {kind: split_arrays(prefix, pairs, tensors)}
    for kind, made in CONTAINERS.items():
        if type(state) is made:
            # Equal sets have one order, so that equal states are the same text.
            items = sorted(kept, key=repr) if made in (set, frozenset) else kept
            parts = [split_arrays(f"{prefix}.{i}", part, tensors) for i, part in enumerate(items)]
            return {kind: parts}
    raise ValueError(
        f"{prefix}: {brief(state)} of type {type(state).__name__} cannot be stored in a "
        "checkpoint; numbers, texts, arrays, and lists, tuples, sets and dicts of them can"
    )


def join_arrays(state: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Any:
    """The slot's state that `split_arrays` took apart, with arrays of its own."""
    kind = next(iter(state))
    value = state[kind]
    if kind == "dict":
        return {key: join_arrays(entry, tensors) for key, entry in value.items()}
    if kind in DICTS:
        return DICTS[kind](dict(join_arrays(value, tensors)))
    if kind == "deque":
        return deque(join_arrays(value, tensors), state["longest"])
    if kind in CONTAINERS:
        return CONTAINERS[kind]([join_arrays(part, tensors) for part in value])
    if kind == "texts":
        return np.array(value, dtype=state["dtype"])
    if kind == "torch":
        return tensors[value].clone()
    if kind in ("tensor", "number"):
        # A copy, since the tensors are views of the file. An array without a shape is a number.
        array = tensors[value].numpy().copy()
        return array[()] if kind == "number" else array
    return value


def _tensor_of(name: str, array: Any) -> torch.Tensor:
    """An array or a number of NumPy as a tensor; ValueError for one of objects."""
    if isinstance(array, torch.Tensor):
        return array.detach().cpu().contiguous()
    try:
        return torch.from_numpy(np.array(array))
    except TypeError:
        raise ValueError(
            f"{name}: an array of {array.dtype} cannot be stored in a checkpoint; arrays of "
            "numbers and of texts can"
        ) from None


def _is_plain(state: Any) -> bool:
    """Whether a state is made of lists, texts and numbers alone, as JSON holds them."""
    if type(state) is list:
        return all(map(_is_plain, state))
    return state is None or isinstance(state, bool | int | float | str)
