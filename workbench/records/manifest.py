"""What a manifest says of the machine and the software a run was made with."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from workbench import __version__
from workbench.utils.descriptions import differences


def versions():
    """Versions of this package, Python and the packages that results depend on."""
    names = ("torch", "transformers", "peft", "numpy", "math-verify", "trl", "unsloth", "vllm")
    found = {"workbench": __version__, "python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def hardware(device):
    """Machine, cores, threads and, on a GPU, its name and memory in bytes."""
    import torch

    found = {
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
    }
    if device.type == "cuda":
        found |= {
            "gpu": torch.cuda.get_device_name(device),
            "gpu_bytes": torch.cuda.get_device_properties(device).total_memory,
        }
    return found


def commit():
    """Commit of the checkout this package runs from, None outside one."""
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def changes(ours, theirs):
    """Where versions and hardware differ from those of another manifest, a line each; what it does not name is left out."""
    known = {name: theirs.get(name, {}) for name in ("versions", "hardware")}
    return differences(
        {name: {key: ours[name].get(key) for key in known[name]} for name in known}, known
    )


def made_again(make, manifest, what, path):
    """`make` of the manifest's description of "lab" or "method"; ValueError when this version cannot."""
    try:
        return make(manifest[what])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path}: the manifest cannot make this {what} again ({error}); "
            f"pass it: Run.resume(path, {what}=...)"
        ) from error
