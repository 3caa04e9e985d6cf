"""What a method has learnt, in verl's checkpoints."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch

from workbench.methods import Method
from workbench.records import checkpoints
from workbench.utils.descriptions import describe, differences

logger = logging.getLogger(__name__)

FILE = "workbench.safetensors"  # in the folder of verl's checkpoint


def save(folder: str | Path, method: Method, **numbers: Any) -> None:
    """Write what the method has learnt, and some numbers, into the folder of a checkpoint."""
    tensors: dict[str, torch.Tensor] = {}
    slots = {
        slot: checkpoints.split_arrays(f"slots.{slot}", learnt, tensors)
        for slot, learnt in method.state_dict().items()
    }
    state = {**numbers, "described": _described(method), "slots": slots}
    checkpoints.save(Path(folder) / FILE, tensors, state)


def load(folder: str | Path, method: Method) -> dict[str, Any]:
    """Set what the method had learnt, and return the numbers; none, with a warning, where the
    checkpoint was made without a method.

    Raises
    ------
    ValueError
        When the checkpoint is of a method with other slots.
    """
    path = Path(folder) / FILE
    if not path.exists():
        logger.warning(
            "%s is missing, so the checkpoint was made without a method; %r begins with nothing "
            "learnt",
            path,
            method.name,
        )
        return {}
    tensors, state = checkpoints.load(path)
    # Loading state into other slots might succeed and mean nothing.
    different = differences(_described(method), state.pop("described"))
    if different:
        raise ValueError(
            f"{path}: saved by a method with other slots (ours, theirs): {'; '.join(different[:3])}"
        )
    slots = state.pop("slots")
    method.load_state_dict(
        {slot: checkpoints.join_arrays(learnt, tensors) for slot, learnt in slots.items()}
    )
    return state


def _described(method: Method) -> dict[str, Any]:
    """The configuration of the slots that learn, as JSON gives it back."""
    described = {slot: describe(value) for slot, value in method.learning().items()}
    # The saved description went through JSON, where tuples become lists.
    return json.loads(json.dumps(described))
