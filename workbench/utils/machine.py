"""What this machine has: cores, memory, GPUs, a compiler, packages.

No heavy package is loaded to find out.
"""

import ctypes
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

COMPILERS = ("cc", "gcc", "clang")
NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=index,uuid,name,memory.total,memory.free,driver_version,compute_cap",
    "--format=csv,noheader,nounits",
)
BFLOAT16 = 8  # the first compute capability with it, that of the A100
# Numbers that glibc's mallopt knows its settings by, and what they are set to, in bytes.
TRIM_THRESHOLD, KEPT_AT_MOST = -1, 2**31 - 1
MMAP_THRESHOLD, LARGEST_KEPT = -3, 2**30
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def cores() -> int:
    """Cores that this process may use."""
    # macOS has no sched_getaffinity.
    if platform.system() == "Linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Let torch compute on so many threads, and give it its own number back; None changes nothing.

    torch keeps the number for each thread of Python.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Let this process use memory again that it has freed, in place of giving it back at once.

    The C library maps every large block anew, and the system then fills it with zeros page by page.
    With a model of 135 million parameters that is about a tenth of the time of an evaluation. Up to
    2 GiB are kept; blocks above 1 GiB are given back as before. Only glibc has these settings.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(MMAP_THRESHOLD, LARGEST_KEPT)
        library.mallopt(TRIM_THRESHOLD, KEPT_AT_MOST)


def memory() -> int:
    """Bytes of main memory, or the limit of the container where that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # The file says "max" where the container has no limit.
    limit = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.is_file() else "max"
    return min(total, int(limit)) if limit.isdigit() else total


def compiler() -> str | None:
    """Path of a C compiler, which Triton needs to build its kernels; None where there is none."""
    # $CC may carry options, as in "clang -O2".
    chosen = os.environ.get("CC", "").split()[:1]
    return next(filter(None, map(shutil.which, (*chosen, *COMPILERS))), None)


def gpus() -> list[dict[str, Any]]:
    """The NVIDIA GPUs that a program started here sees.

    Returns
    -------
    list of dict
        name, bytes (of memory), free (bytes), driver and capability of each, as nvidia-smi tells
        them, within CUDA_VISIBLE_DEVICES. Of a slice of a card they are those of the card. Where it
        is missing or fails, as in some containers, torch is asked, which does not tell the driver.
    """
    try:
        done = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return _gpus_of_torch()
    # It may hold indices, beginnings of UUIDs, and names of slices of a card (MIG), which are not
    # in this list; it may be empty to hide all.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = None if visible is None else [part.strip() for part in visible.split(",") if part]
    seen = []
    for line in done.stdout.strip().splitlines():
        index, uuid, name, total, free, driver, capability = map(str.strip, line.split(","))
        if wanted is None or any(
            part == index or uuid.startswith(part) or part.startswith("MIG-") for part in wanted
        ):
            memory = {"bytes": _bytes_of_mebibytes(total), "free": _bytes_of_mebibytes(free)}
            seen.append({"name": name, **memory, "driver": driver, "capability": capability})
    return seen


def _gpus_of_torch() -> list[dict[str, Any]]:
    """The same as torch sees them, where it is built for GPUs."""
    if (installed_version("torch") or "+cpu").endswith("+cpu"):
        return []
    import torch

    seen = []
    for device in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(device)
        free, total = torch.cuda.mem_get_info(device)
        found = {"name": card.name, "bytes": total, "free": free, "driver": ""}
        seen.append(found | {"capability": f"{card.major}.{card.minor}"})
    return seen


def is_before(version: str, major: int) -> bool:
    """Whether a version has a lower first number; False for "[N/A]" and the like of nvidia-smi."""
    first = version.partition(".")[0]
    return first.isdigit() and int(first) < major


def no_bfloat16() -> str | None:
    """Why no GPU that torch uses here has bfloat16; None where one has it, or none is used."""
    seen = [] if (installed_version("torch") or "").endswith("+cpu") else gpus()
    if not seen or not all(is_before(gpu["capability"], BFLOAT16) for gpu in seen):
        return None
    return (
        f"{seen[0]['name']} has compute capability {seen[0]['capability']}; training needs "
        "bfloat16, and so 8.0 or later, as A100, L40S and H100 have"
    )


def no_gpu() -> str | None:
    """Why nothing can be computed on an NVIDIA GPU here; None where it can."""
    if platform.system() != "Linux":
        return f"Linux with an NVIDIA GPU is needed, this is {platform.system()}"
    if not gpus():
        return (
            "an NVIDIA GPU is needed, and nvidia-smi shows none (no card, no driver, or hidden by "
            "CUDA_VISIBLE_DEVICES)"
        )
    if old := no_bfloat16():
        return old
    # A missing torch is no matter of the GPU: `doctor` lists missing packages.
    torch = installed_version("torch") or ""
    if torch.endswith("+cpu"):
        command = f"pip install --force-reinstall torch=={torch.removesuffix('+cpu')}"
        return f"torch {torch} has no CUDA; get the build that has: {command}"
    return None


def _bytes_of_mebibytes(number: str) -> int:
    """What nvidia-smi prints in MiB, in bytes; 0 where it cannot tell, as of a shared memory."""
    return int(number) * 2**20 if number.isdigit() else 0


# Which packages this one asks for, which are installed, and the command that brings the rest

DISTRIBUTION = "workbench-rlvr"


def installed_version(name: str) -> str | None:
    """The version of an installed distribution; None when it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def requirements(lines: Iterable[str] | None = None) -> dict[str, list[Any]]:
    """What this package asks for on this platform.

    Parameters
    ----------
    lines : texts, optional
        Such as ``peft>=0.19; extra == "lora"``; by default those of the installed package.

    Returns
    -------
    dict
        Extra to list of `packaging.requirements.Requirement`; "" holds what is always needed.
    """
    # Loaded here, so that the command line's help does not wait for it.
    from packaging.requirements import Requirement

    groups: dict[str, list[Any]] = {}
    for line in metadata.requires(DISTRIBUTION) or () if lines is None else lines:
        requirement = Requirement(line)
        # A marker says both which extra a requirement belongs to and for which platform it is.
        named = re.search(r'extra == "([^"]*)"', str(requirement.marker or ""))
        extra = named[1] if named else ""
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            groups.setdefault(extra, []).append(requirement)
    return groups


def install_command(names: Iterable[str]) -> str:
    """The pip command that installs these distributions within the bounds of this package."""
    known = [each for group in requirements().values() for each in group]
    bounds = {each.name: f"{each.name}{each.specifier}" for each in known}
    return "pip install " + " ".join(shlex.quote(bounds.get(name, name)) for name in names)
