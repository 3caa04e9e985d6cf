"""What is on this machine, what a lab lacks here, and whether a model fits: `python -m workbench doctor --lab unsloth`.

Everything is found without loading a heavy package: versions from the installed metadata, GPUs from nvidia-smi.
"""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from workbench.policies import memory

DISTRIBUTION = "workbench-rlvr"
EXTRAS_OF = {"tiny": (), "transformers": (), "unsloth": ("gpu",)}
LABS = tuple(EXTRAS_OF)
COMPILERS = ("cc", "gcc", "clang")


def needed(lab, load_in_4bit=False, fast_inference=True):
    """Names of the distributions that a lab needs: the main ones of pyproject.toml and those of its extras.

    load_in_4bit asks for bitsandbytes, fast_inference for vLLM, in the lab "unsloth".
    """
    names = [
        requirement.name
        for extra in ("", *EXTRAS_OF[lab])
        for requirement in requirements().get(extra, [])
    ]
    spared = {"bitsandbytes": not load_in_4bit, "vllm": not fast_inference}
    return [name for name in dict.fromkeys(names) if not spared.get(name)]


def install_command(names):
    """The pip command that installs these, within the bounds of this package."""
    bounds = {r.name: f"{r.name}{r.specifier}" for group in requirements().values() for r in group}
    return "pip install " + " ".join(shlex.quote(bounds.get(name, name)) for name in names)


def requirements():
    """What this package asks for: "" or an extra's name -> list of `packaging` requirements, for this platform."""
    checkout = Path(__file__).parents[2] / "pyproject.toml"
    if not checkout.is_file():
        return parse_requirements(metadata.requires(DISTRIBUTION) or ())
    project = tomllib.loads(checkout.read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    found = {extra: parse_requirements(texts) for extra, texts in groups.items()}
    return {extra: group.get("", []) for extra, group in found.items()}


def parse_requirements(texts):
    """Lines such as `peft>=0.19; extra == "lora"`: extra or "" -> list of requirements, those of other platforms left out."""
    from packaging.requirements import Requirement

    found = {}
    for requirement in map(Requirement, texts):
        extra = re.search(r'extra == "([^"]*)"', str(requirement.marker or ""))
        extra = extra[1] if extra else ""
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            found.setdefault(extra, []).append(requirement)
    return found


def packages():
    """A dictionary for every distribution that this package or an extra names: name, wanted, version, state, extras.

    state: "ok", "missing", or "out of bounds" for a version that pyproject.toml does not admit.
    """
    found = {}
    for extra, group in requirements().items():
        for requirement in group:
            version = _version(requirement.name)
            admitted = version is not None and requirement.specifier.contains(
                version, prereleases=True
            )
            state = "ok" if admitted else "missing" if version is None else "out of bounds"
            entry = {
                "name": requirement.name,
                "wanted": str(requirement.specifier),
                "version": version,
                "state": state,
            }
            found.setdefault(requirement.name, entry | {"extras": []})["extras"].append(extra)
    return list(found.values())


def gpus():
    """NVIDIA GPUs that a program started here sees: dictionaries of name, bytes, free bytes and driver.

    From nvidia-smi, within CUDA_VISIBLE_DEVICES; where that program is missing, from torch if it has CUDA.
    """
    query = [
        "nvidia-smi",
        "--query-gpu=index,uuid,name,memory.total,memory.free,driver_version",
        "--format=csv,noheader,nounits",
    ]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return _gpus_of_torch()
    return parse_gpus(
        done.stdout if done.returncode == 0 else "", os.environ.get("CUDA_VISIBLE_DEVICES")
    )


def parse_gpus(text, visible=None):
    """GPUs from the lines that nvidia-smi prints, those named in `visible` (numbers or UUIDs), None for all."""
    found = []
    wanted = None if visible is None else [part.strip() for part in visible.split(",")]
    for line in text.strip().splitlines():
        index, uuid, name, total, free, driver = (part.strip() for part in line.split(","))
        if (
            wanted is None
            or index in wanted
            or any(part and uuid.startswith(part) for part in wanted)
        ):
            found.append(
                {
                    "name": name,
                    "bytes": _mebibytes(total),
                    "free": _mebibytes(free),
                    "driver": driver,
                }
            )
    return found


def machine():
    """Python, system, cores, bytes of memory and of free disk, GPUs, compiler, and the build of PyTorch."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": _cores(),
        "memory": _memory(),
        "disk": shutil.disk_usage(".").free,
        "gpus": gpus(),
        "compiler": compiler(),
        "torch": _version("torch"),
        "model": _shipped(),
    }


def compiler():
    """Path of a C compiler, which Triton needs to build its kernels: $CC, cc, gcc or clang; None where there is none."""
    chosen = os.environ.get("CC", "").split()
    return next(filter(None, (shutil.which(name) for name in (*chosen[:1], *COMPILERS))), None)


def no_gpu():
    """Why nothing can be computed on an NVIDIA GPU, or None."""
    if platform.system() != "Linux":
        return f"Linux with an NVIDIA GPU is needed, this is {platform.system()}"
    if not gpus():
        return "an NVIDIA GPU is needed, and nvidia-smi shows none (no card, no driver, or hidden by CUDA_VISIBLE_DEVICES)"
    torch = _version("torch") or ""
    if torch.endswith("+cpu"):
        return f"torch {torch} has no CUDA; get the build that has: pip install --force-reinstall torch=={torch[:-4]}"
    return None


def obstacles(lab, load_in_4bit=False, fast_inference=True):
    """Why a lab cannot run here, each one line with the way out; an empty list if it can.

    Versions out of bounds are no obstacle: the table of packages shows them.
    """
    _check_lab(lab)
    found = [no_gpu()] if lab == "unsloth" else []
    if lab == "unsloth" and compiler() is None:
        found.append("no C compiler, which Triton needs: apt install build-essential, or set CC")
    missing = _missing(needed(lab, load_in_4bit, fast_inference))
    if missing:
        found.append(f"missing: {', '.join(missing)}; install with: {install_command(missing)}")
    if lab == "tiny" and _shipped() is None:
        found.append("the shipped model is missing; make it with: python -m workbench base-model")
    return [line for line in found if line]


def report(lab="tiny", model=None, *, fast_inference=True, **options):
    """All that `doctor` shows, as plain data: machine, packages, lab, obstacles, can_run and, with a model, its memory.

    fast_inference: see `needed`. options: of `memory.estimate`. A model is held against the largest GPU, or the machine's
    memory where there is none; `can_run` is False where it takes more than `memory.SHARE` of that and the lab would load it.
    """
    found = obstacles(lab, options.get("load_in_4bit", False), fast_inference)
    here = machine()
    told = {"machine": here, "packages": packages(), "lab": lab, "obstacles": found}
    if model is not None:
        parts, sizes = memory.estimate(model, **options), memory.shape(model)
        device = max(here["gpus"], key=lambda gpu: gpu["bytes"], default=None)
        room = (device["bytes"] if device else 0) or here[
            "memory"
        ]  # some GPUs share the main memory
        told["model"] = {
            "name": str(model),
            "parameters": sizes.parameters,
            "bytes": parts,
            "total": sum(parts.values()),
            "lora_parameters": sizes.lora_parameters(options.get("lora_rank", 64)),
            "room": room,
            "device": device["name"] if device else "CPU",
            "fits": sum(parts.values()) <= memory.SHARE * room,
            **options,
        }
        if lab != "tiny" and not told["model"]["fits"]:
            found.append(
                f"{model} does not fit: a smaller model, load_in_4bit, a shorter max_length, fewer rollouts at once"
            )
    return told | {"can_run": not found}


def text(told):
    """A report as lines to read."""
    here = told["machine"]
    lines = [
        f"python    {here['python']} ({here['executable']})",
        f"system    {here['system']}",
        f"cores     {here['cores']}",
        f"memory    {_gb(here['memory'])}",
        f"disk      {_gb(here['disk'])} free here",
        *(
            [
                f"gpu       {gpu['name']}, {_gb(gpu['bytes'])}, {_gb(gpu['free'])} free, driver {gpu['driver']}"
                for gpu in here["gpus"]
            ]
            or ["gpu       none"]
        ),
        f"compiler  {here['compiler'] or 'none: apt install build-essential'}",
        f"model     {here['model'] or 'not shipped here: python -m workbench base-model'}",
        "",
    ]
    for entry in told["packages"]:
        asked = ", ".join(extra or "always" for extra in entry["extras"])
        lines.append(
            f"  {entry['name']:<20}{entry['version'] or '-':<18}{entry['state']:<15}{asked}"
        )
    lines += _missing_by_extra(told["packages"])
    lines += _memory_lines(told["model"]) if "model" in told else []
    return "\n".join(
        [
            *lines,
            "",
            f"lab {told['lab']}: {'can run here' if told['can_run'] else 'cannot run here'}",
            *(f"  {line}" for line in told["obstacles"]),
        ]
    )


def _missing_by_extra(entries):
    """For every extra that is not complete, the command that brings what it lacks."""
    extras = dict.fromkeys(extra for entry in entries for extra in entry["extras"])
    lacking = {
        extra: [e["name"] for e in entries if extra in e["extras"] and e["state"] != "ok"]
        for extra in extras
    }
    lines = [
        f"  {extra or 'always':<12}{install_command(names)}"
        for extra, names in lacking.items()
        if names
    ]
    return ["", "what brings the rest", *lines] if lines else []


def _memory_lines(model):
    parts = [f"  {name:<20}{_gb(size):>12}" for name, size in model["bytes"].items()]
    verdict = "fits" if model["fits"] else "does not fit"
    return [
        "",
        f"{model['name']}: {model['parameters']:,} parameters, {model['lora_parameters']:,} in adapters",
        *parts,
        f"  {'together':<20}{_gb(model['total']):>12}  an estimate: {verdict} in {memory.SHARE:.0%} of {_gb(model['room'])} "
        f"({model['device']})",
    ]


def _check_lab(lab):
    if lab not in LABS:
        raise ValueError(f"lab={lab!r}: there are {', '.join(LABS)}")


def _gpus_of_torch():
    """GPUs as PyTorch sees them; none without a build that has CUDA, for which torch is not even loaded."""
    if (_version("torch") or "+cpu").endswith("+cpu") or platform.system() != "Linux":
        return []
    import torch

    found = []
    for i in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(i)
        found.append(
            {
                "name": torch.cuda.get_device_name(i),
                "bytes": total,
                "free": free,
                "driver": "unknown",
            }
        )
    return found


def _missing(names):
    return [name for name in names if _version(name) is None]


def _version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _mebibytes(number):
    """Bytes; 0 where nvidia-smi cannot tell, as on machines whose GPU shares the main memory."""
    return int(number) * 2**20 if number.isdigit() else 0


def _cores():
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _memory():
    """Bytes of memory, or the limit of the container where that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    allowed = limit.read_text().strip() if limit.is_file() else "max"
    return min(total, int(allowed)) if allowed.isdigit() else total


def _shipped():
    """Path of the shipped model, in a checkout or in the installed package; None where it is missing."""
    here = Path(__file__).parent.parent
    folders = (here.parent / "data/models/tiny", here / "_data/models/tiny")
    return next(
        (str(folder) for folder in folders if (folder / "model.safetensors").is_file()), None
    )


def _gb(size):
    return f"{size / memory.GB:.1f} GB"
