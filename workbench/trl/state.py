"""What a method has learnt, in TRL's checkpoints."""

from __future__ import annotations

import json
import os
from typing import Any

from workbench.methods import Method
from workbench.records import checkpoints
from workbench.utils.descriptions import describe, differences

FILE = "workbench.safetensors"  # in the folder of TRL's checkpoint


def save(folder: str, method: Method, **numbers: int) -> None:
    """Write what the method has learnt, and some numbers, into the folder of a checkpoint."""
    tensors: dict[str, Any] = {}
    slots = {
        slot: checkpoints.split_arrays(f"slots.{slot}", learnt, tensors)
        for slot, learnt in method.state_dict().items()
    }
    state = {**numbers, "method": describe(method), "slots": slots}
    checkpoints.save(os.path.join(folder, FILE), tensors, state)


def load(folder: str, method: Method | None) -> dict[str, Any]:
    """Set what the method had learnt, and return the numbers; none for a method of None.

    Raises
    ------
    ValueError
        When the checkpoint is of another method.
    """
    path = os.path.join(folder, FILE)
    if not os.path.exists(path):
        if method is None:
            return {}
        raise ValueError(
            f"resume_from_checkpoint: {path} is missing, so the checkpoint was made without a "
            "method; use method=None"
        )
    tensors, state = checkpoints.load(path)
    # Through JSON, as the saved one went: tuples become lists, for example.
    description = None if method is None else json.loads(json.dumps(describe(method)))
    different = differences(description, state.pop("method"))
    if different:
        raise ValueError(
            f"resume_from_checkpoint: {path} is of another method (this one, that one): "
            f"{'; '.join(different[:3])}"
        )
    # What is then left of the state are the trainer's numbers, such as its round.
    slots = state.pop("slots")
    if method is not None:
        method.load_state_dict(
            {slot: checkpoints.join_arrays(learnt, tensors) for slot, learnt in slots.items()}
        )
    return state
