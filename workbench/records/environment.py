"""The machine and the software that a run was made with, for its manifest."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import __version__
from workbench.utils.descriptions import differences
from workbench.utils.requirements import installed_version

if TYPE_CHECKING:
    import torch

# The packages that results depend on.
PACKAGES = ("torch", "transformers", "peft", "numpy", "math-verify", "trl", "unsloth", "vllm")


def versions() -> dict[str, str]:
    """Versions of this package, of Python, and of the packages that results depend on."""
    found = {"workbench": __version__, "python": platform.python_version()}
    installed = {name: installed_version(name) for name in PACKAGES}
    return found | {name: version for name, version in installed.items() if version is not None}


def hardware(device: torch.device) -> dict[str, Any]:
    """Machine, cores, threads and, on a GPU, its name and its memory in bytes."""
    import torch

    found = {
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
    }
    if device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
        found["gpu_bytes"] = torch.cuda.get_device_properties(device).total_memory
    return found


def commit() -> str | None:
    """Commit of the checkout that this package runs from; None outside one."""
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Outside of a checkout git fails and prints nothing to stdout.
    return done.stdout.strip() or None


def changes(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Where versions and hardware differ between two manifests, one line each.

    What the second manifest does not name is left out.
    """
    known = {name: theirs[name] for name in ("versions", "hardware")}
    same_names = {
        name: {key: ours[name].get(key) for key in entries} for name, entries in known.items()
    }
    return differences(same_names, known)
