"""State as tensors and JSON, for checkpoints without pickle."""

import numpy as np
import torch


def optimizer_tensors(optimizer):
    """An optimizer's state as named tensors, parameters by number: `optimizer.0.exp_avg`."""
    state = optimizer.state_dict()["state"]
    return {f"optimizer.{i}.{name}": value.detach().cpu() for i, entry in state.items() for name, value in entry.items()}


def load_optimizer(optimizer, tensors):
    """Sets an optimizer's state from `optimizer_tensors`; other names are passed over."""
    state = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, i, entry = name.split(".")
            state.setdefault(int(i), {})[entry] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def split_arrays(prefix, state, tensors):
    """Moves the arrays of a slot's state into the dict `tensors`, leaving their names; the rest stays as JSON."""
    if isinstance(state, np.ndarray):
        tensors[prefix] = torch.from_numpy(np.ascontiguousarray(state))
        return {"tensor": prefix}
    if isinstance(state, dict):
        return {"dict": {key: split_arrays(f"{prefix}.{key}", value, tensors) for key, value in state.items()}}
    return {"value": state}


def join_arrays(state, tensors):
    """The slot's state that `split_arrays` took apart."""
    if "tensor" in state:
        return tensors[state["tensor"]].numpy()
    if "dict" in state:
        return {key: join_arrays(value, tensors) for key, value in state["dict"].items()}
    return state["value"]
