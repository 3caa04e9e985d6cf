"""State as tensors and JSON, for checkpoints without pickle."""

import json
import zlib

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file


def save(path, tensors, state):
    """Writes a checkpoint: `tensors` name to torch tensor, `state` JSON-ready; OSError when the disk does not take it."""
    text = json.dumps(state)
    try:
        save_file(tensors, path, metadata={"state": text, "crc32": checksum(tensors, text)})
    except SafetensorError as error:
        raise OSError(str(error)) from error


def load(path):
    """(tensors, state) of a checkpoint; OSError when the file is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors, metadata = (
                {name: file.get_tensor(name) for name in file.keys()},
                file.metadata(),
            )
        state = json.loads(metadata["state"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise OSError(f"damaged ({type(error).__name__}: {_first_line(error)})") from error
    if metadata.get("crc32", found := checksum(tensors, metadata["state"])) != found:
        raise OSError("damaged (its checksum does not fit)")
    return tensors, state


def checksum(tensors, text):
    """CRC-32 of a text and of all tensors, names, types and shapes included, as hex: safetensors itself has none."""
    value = zlib.crc32(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        if tensor.numel():
            value = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy(), value)
    return f"{value:08x}"


def pack(policy, optimizer, method, **state):
    """What a run has learnt, as (tensors, state) for `save`."""
    weights = {f"policy.{name}": value for name, value in policy.state_dict().items()}
    tensors = weights | optimizer_tensors(optimizer)
    slots = {
        slot: split_arrays(f"slots.{slot}", learnt, tensors)
        for slot, learnt in method.state_dict().items()
    }
    return tensors, {**state, "slots": slots}


def unpack(tensors, state, policy, optimizer, method):
    """Sets policy, optimizer and method to what `pack` took; ValueError when it was taken from others than these."""
    weights = {
        name.removeprefix("policy."): value
        for name, value in tensors.items()
        if name.startswith("policy.")
    }
    try:
        for name, value in policy.state_dict().items():
            if value.shape != weights[name].shape:
                raise ValueError(
                    f"{name}: shape {tuple(value.shape)}, in the checkpoint {tuple(weights[name].shape)}"
                )
        policy.load_state_dict(weights)
        load_optimizer(optimizer, tensors)
        slots = {slot: join_arrays(saved, tensors) for slot, saved in state["slots"].items()}
        method.load_state_dict(slots)
    except (KeyError, AttributeError, RuntimeError, ValueError) as error:
        cause = f"{type(error).__name__}: {_first_line(error)}"
        raise ValueError(f"the checkpoint is not of this lab and method ({cause})") from error


def optimizer_tensors(optimizer):
    """An optimizer's state as named tensors, parameters by number: `optimizer.0.exp_avg`."""
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer.{i}.{name}": value.detach().cpu()
        for i, entry in state.items()
        for name, value in entry.items()
    }


def load_optimizer(optimizer, tensors):
    """Sets an optimizer's state from `optimizer_tensors`; other names are passed over.

    Gradients become the zeros they would be without the resume: a step on zeros moves by momentum, while a parameter
    that has no gradient at all is passed over.
    """
    state = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, i, entry = name.split(".")
            state.setdefault(int(i), {})[entry] = tensor
    optimizer.load_state_dict(
        {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
    )
    for parameter in optimizer.state:
        parameter.grad = torch.zeros_like(parameter)


def split_arrays(prefix, state, tensors):
    """Moves the arrays of a slot's state into the dict `tensors`, leaving their names; the rest stays as JSON."""
    if isinstance(state, np.ndarray):
        tensors[prefix] = torch.from_numpy(np.ascontiguousarray(state))
        return {"tensor": prefix}
    if isinstance(state, dict):
        return {
            "dict": {
                key: split_arrays(f"{prefix}.{key}", value, tensors) for key, value in state.items()
            }
        }
    return {"value": state}


def join_arrays(state, tensors):
    """The slot's state that `split_arrays` took apart."""
    if "tensor" in state:
        return tensors[state["tensor"]].numpy()
    if "dict" in state:
        return {key: join_arrays(value, tensors) for key, value in state["dict"].items()}
    return state["value"]


def _first_line(error):
    return next(iter(str(error).splitlines()), "")
