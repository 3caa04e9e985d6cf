"""What is on this machine, what a lab lacks here, and whether a model fits.

This is `python -m workbench doctor --lab unsloth`. Everything is found without loading a heavy
package: versions come from the installed metadata, GPUs from nvidia-smi.
"""

from __future__ import annotations

import inspect
import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from packaging.version import Version
from typer import Exit, Option

from workbench.cli.options import Json, Lab
from workbench.cli.terminal import as_json, say
from workbench.cli.train import lab_options
from workbench.policies import memory
from workbench.utils import machine
from workbench.utils.descriptions import defaults
from workbench.utils.machine import install_command, installed_version, no_gpu, requirements
from workbench.utils.names import LABS, OPTIMIZER_BITS
from workbench.utils.shipped import shipped
from workbench.utils.validation import boolean, number, one_of, unknown_argument

# What the estimate takes for options that a lab's configuration does not have, or leaves open.
OTHER_OPTIONS = {
    "lora_rank": 0,
    "load_in_4bit": False,
    "fast_inference": False,
    "engine": "transformers",
    "dtype": "bfloat16",
    "max_length": 1024,
    "optimizer_bits": 32,
    "rollouts": 64,
    "gradient_checkpointing": None,
}
WAY_OUT = (
    "take LoRA (lora_rank=64), dtype=bfloat16, less of micro_tokens, rows, max_length or "
    "gpu_memory_utilization, load_in_4bit with Unsloth, or a smaller model"
)
ENGINES = ("transformers", "vllm")
CUDA_DRIVER = 580  # the first driver for CUDA 13, which torch of our pins is built for
GLIBC = "2.31"  # of llguidance, which vLLM asks for: the newest that a wheel of the pins needs
MAKE_COMPILER = "apt install build-essential"
MODELS = "models"
MAKE_MODELS = "python -m examples.base_model early-small --out data/models/early-small"
# Where `make smollm2` puts the pretrained model, as seen from a checkout.
SMOLLM2 = "build/smollm2"
MAKE_SMOLLM2 = "`make smollm2` in a checkout brings it"
# What to do in a lab that can run.
NEXT = {
    "tiny": "python -m workbench quickstart",
    "transformers": "docs/guides/gpu.md; on a GPU take engine='vllm', which samples far faster",
    "unsloth": "make test-gpu gpu-first-run GPU_PYTHON=python",
}


def doctor(
    lab: Lab = [],  # noqa: B006  typer makes a new list
    model: Annotated[
        str | None,
        Option(metavar="NAME_OR_PATH", help="Estimate its memory. Nothing is downloaded."),
    ] = None,
    json: Json = False,
) -> None:
    """Show this machine, and what it lacks to run a lab.

    Arguments of the lab decide what it needs and how much memory a model takes: lora_rank,
    load_in_4bit, fast_inference, engine, gpu_memory_utilization, rows, gradient_checkpointing,
    optimizer_bits, dtype, max_length and micro_tokens, and rollouts, how many a round has. What is
    left out is as the lab has it. The exit status is 1 when the lab, with the model if one is
    named, cannot run here.

    \b
    Examples:
      python -m workbench doctor
      python -m workbench doctor --lab unsloth --model Qwen/Qwen2.5-3B-Instruct
      python -m workbench doctor --lab transformers --lab engine=vllm --lab dtype=bfloat16 --json
    """
    name, options = lab_options(lab)
    told = report(name, model, **options)
    # The report comes first: that the lab cannot run here is a result and no error.
    say(as_json(told) if json else text(told))
    if not told["can_run"]:
        raise Exit(1)


def report(lab: str = "tiny", model: Any = None, **given: Any) -> dict[str, Any]:
    """All that `doctor` shows, as plain data.

    Parameters
    ----------
    lab : {"tiny", "transformers", "unsloth"}
    model : str or path, optional
        Its memory is estimated and held against the largest GPU, or against main memory where there
        is no GPU.
    given
        Options of the lab's configuration, and of `memory.estimate`. None, and what is left out, is
        as the lab has it.

    Returns
    -------
    dict
        machine, packages, lab, obstacles, can_run and, with a model, model. `can_run` is
        also False where the lab would load the model and there is no room for it.
    """
    settings = settings_of(lab, given)
    here = this_machine()
    problems = obstacles(lab, **given)
    told = {"machine": here, "packages": packages(), "lab": lab, "obstacles": problems}
    if model is not None:
        sizes = told["model"] = _model(model, here, settings)
        # The tiny lab trains its own models, so there the size of another one is shown and no more.
        if lab != "tiny" and not sizes["fits"]:
            problems.append(f"{model} does not fit: {WAY_OUT}")
    # Last, since the model may have been one obstacle more.
    told["can_run"] = not problems
    return told


def settings_of(lab: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a lab by name: those given that are not None, and the lab's own otherwise."""
    # Only here: the help of the command line does not wait for it.
    from workbench import labs
    from workbench.labs import TransformersConfig, UnslothConfig

    one_of("lab", lab, LABS)
    own = defaults(UnslothConfig if lab == "unsloth" else TransformersConfig)
    settings = OTHER_OPTIONS | {name: value for name, value in own.items() if value is not None}
    arguments = {*inspect.signature(getattr(labs, lab)).parameters, *own} - settings.keys()
    for name, value in given.items():
        if name == "lora" and isinstance(value, Mapping):
            settings["lora_rank"] = value.get("r", settings["lora_rank"])
        if name in arguments:
            continue  # it changes nothing about what is needed
        if name not in settings:
            raise unknown_argument(name, f"the lab {lab!r}", settings.keys() | arguments)
        if value is None:
            continue
        # The lab's own value says of which kind it has to be.
        if isinstance(settings[name], bool):
            boolean(name, value)
        elif isinstance(settings[name], int | float):
            number(name, value, low=0)
        settings[name] = value
    one_of("engine", settings["engine"], ENGINES)
    one_of("optimizer_bits", settings["optimizer_bits"], OPTIMIZER_BITS)
    by_vllm = settings["fast_inference"] if lab == "unsloth" else settings["engine"] == "vllm"
    return settings | {"lab": lab, "by_vllm": by_vllm}


def obstacles(lab: str, **given: Any) -> list[str]:
    """Why a lab cannot run here, one line each with the way out; an empty list if it can.

    Versions out of bounds are no obstacle: the table of packages shows them.

    Parameters
    ----------
    lab : {"tiny", "transformers", "unsloth"}
    given
        See `report`.
    """
    settings = settings_of(lab, given)
    by_vllm = settings["by_vllm"]
    lines: list[str | None] = []
    if lab == "unsloth" or by_vllm:
        lines += [no_gpu(), _old_driver()]
        libc, version = platform.libc_ver()
        if libc == "glibc" and Version(version) < Version(GLIBC):
            lines.append(f"glibc {version}: the packages of the GPU need {GLIBC} or newer")
        if machine.compiler() is None:
            lines.append(f"no C compiler, which Triton needs: {MAKE_COMPILER}, or set CC")
        if by_vllm:
            lines.append(_taken(settings["gpu_memory_utilization"]))
    # Only what is needed counts: an extra also lists packages for options that are not in use.
    in_4bit = settings["load_in_4bit"]
    in_use = {
        "peft": lab == "unsloth" or settings["lora_rank"] > 0,
        "bitsandbytes": in_4bit or settings["optimizer_bits"] != 32,
        "vllm": by_vllm,
        # The plugin lets vLLM read weights of 4 bits.
        "vllm-bnb-plugin": in_4bit and by_vllm,
    }
    groups = requirements()
    needed = [each.name for each in groups[""]]
    for each in groups.get("gpu", []):
        if in_use.get(each.name, lab == "unsloth"):
            needed.append(each.name)
    missing = [name for name in dict.fromkeys(needed) if installed_version(name) is None]
    if missing:
        lines.append(f"missing: {', '.join(missing)}; install with: {install_command(missing)}")
    if lab == "tiny" and not shipped_models():
        lines.append(f"the shipped models are missing; make one with: {MAKE_MODELS}")
    # The checks give None where there is nothing to say.
    return [line for line in lines if line]


def _taken(share: float) -> str | None:
    """Why vLLM could not take its share of any GPU; None where it could."""
    gpus = machine.gpus()
    if not gpus or any(gpu["free"] >= share * gpu["bytes"] for gpu in gpus):
        return None
    most = max(gpus, key=lambda gpu: gpu["free"])
    return (
        f"{most['name']}: {_gb(most['free'])} of {_gb(most['bytes'])} are free, and vLLM would "
        f"take {share:.0%} of all; end what holds the rest (nvidia-smi lists it), or lower "
        "gpu_memory_utilization"
    )


def _old_driver() -> str | None:
    """What is wrong with the NVIDIA driver; None where nothing is, or none can be seen."""
    # A build of torch for CUDA 12 names it in its version, and is content with an older driver. A
    # build for CUDA 13, as of our pins, does not name it.
    if "+cu12" in (installed_version("torch") or ""):
        return None
    for gpu in machine.gpus():
        major = gpu["driver"].partition(".")[0]
        if major.isdigit() and int(major) < CUDA_DRIVER:
            return (
                f"NVIDIA driver {gpu['driver']}: torch of our pins has CUDA 13, which needs "
                f"{CUDA_DRIVER} or newer; update the driver"
            )
    return None


def packages() -> list[dict[str, Any]]:
    """Every distribution that this package or an extra of it names.

    Returns
    -------
    list of dict
        name, wanted (the bounds), version, state and extras. The state is "ok", "missing", or "out
        of bounds" for a version that pyproject.toml does not admit.
    """
    entries: dict[str, dict[str, Any]] = {}
    for extra, group in requirements().items():
        for each in group:
            version = installed_version(each.name)
            state = "missing"
            if version is not None:
                # Without `prereleases` a development build, such as a nightly torch, would be out
                # of bounds whatever its number.
                admitted = each.specifier.contains(version, prereleases=True)
                state = "ok" if admitted else "out of bounds"
            facts = {"name": each.name, "wanted": str(each.specifier), "version": version}
            # Several extras may name one distribution. It gets one row, which lists them.
            entry = entries.setdefault(each.name, {**facts, "state": state, "extras": []})
            entry["extras"].append(extra)
    return list(entries.values())


def this_machine() -> dict[str, Any]:
    """What this machine has, from Python and the C library to GPUs and models."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip(),
        "cores": machine.cores(),
        "memory": machine.memory(),
        "disk": shutil.disk_usage(".").free,
        "gpus": machine.gpus(),
        "compiler": machine.compiler(),
        "torch": installed_version("torch"),
        "models": shipped_models(),
        "pretrained": SMOLLM2 if Path(SMOLLM2, "tokenizer.json").is_file() else None,
    }


def shipped_models() -> list[str]:
    """Names of the models of the tiny lab, in a checkout or in the installed package."""
    try:
        folder = shipped(MODELS)
    except FileNotFoundError:
        return []
    return sorted(path.parent.name for path in folder.glob("*/model.safetensors"))


def text(told: dict[str, Any]) -> str:
    """What `report` returned, as lines to read."""
    lines = [*_machine_lines(told["machine"]), "", *_package_lines(told["packages"])]
    if "model" in told:
        lines += _memory_lines(told["model"])
    can, further = "cannot", "mend these, and ask again"
    if told["can_run"]:
        can, further = "can", NEXT[told["lab"]]
    lines += ["", f"lab {told['lab']}: {can} run here"]
    lines += [f"  {place}. {line}" for place, line in enumerate(told["obstacles"], 1)]
    return "\n".join([*lines, f"next: {further}"])


def _model(model: Any, here: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """A model's size, what it takes by part, and whether the largest device has room for it."""
    # A GPU that shares the main memory reports none of its own, as here the CPU.
    cpu: dict[str, Any] = {"name": "CPU", "bytes": 0, "free": 0}
    gpu = max(here["gpus"], key=lambda gpu: gpu["bytes"], default=cpu)
    room = gpu["bytes"] or here["memory"]
    # What is free of the main memory is not known, nor of a GPU that shares it.
    free = gpu["free"] if gpu["bytes"] else None
    known = defaults(memory.estimate)
    options = {name: value for name, value in settings.items() if name in known}
    on_gpu = options["autocast"] = bool(here["gpus"])
    if options["gradient_checkpointing"] is None:
        options["gradient_checkpointing"] = settings["lab"] == "unsloth" or on_gpu
    if settings["by_vllm"] and gpu["bytes"]:
        # vLLM holds its share from the start, whatever the number of rollouts is.
        options["sampler_bytes"] = settings["gpu_memory_utilization"] * gpu["bytes"]
        options["shares_weights"] = settings["lab"] == "unsloth"
    parts = memory.estimate(model, **options)
    shape = memory.shape(model)
    total = sum(parts.values())
    return {
        **options,
        "name": str(model),
        "parameters": shape.parameters,
        "bytes": parts,
        "total": total,
        "lora_parameters": shape.lora_parameters(options["lora_rank"]),
        "room": room,
        "free": free,
        "device": gpu["name"],
        "fits": total <= memory.SHARE * room and (free is None or total <= free),
    }


def _machine_lines(here: dict[str, Any]) -> list[str]:
    gpus = [
        f"{gpu['name']}, {_gb(gpu['bytes'])}, {_gb(gpu['free'])} free, driver {gpu['driver']}"
        for gpu in here["gpus"]
    ]
    facts = [
        ("python", f"{here['python']} ({here['executable']})"),
        ("system", here["system"]),
        ("libc", here["libc"] or "unknown"),
        ("cores", here["cores"]),
        ("memory", _gb(here["memory"])),
        ("disk", f"{_gb(here['disk'])} free here"),
        *[("gpu", gpu) for gpu in gpus or ["none"]],
        ("compiler", here["compiler"] or f"none: {MAKE_COMPILER}"),
        ("models", ", ".join(here["models"]) or f"none shipped here: {MAKE_MODELS}"),
        ("smollm2", here["pretrained"] or f"not in {SMOLLM2}: {MAKE_SMOLLM2}"),
    ]
    return [f"{name:<10}{fact}" for name, fact in facts]


def _package_lines(entries: list[dict[str, Any]]) -> list[str]:
    """The table of packages, and the command that brings an extra."""
    lines = []
    for entry in entries:
        asked_by = ", ".join(extra or "always" for extra in entry["extras"])
        version = entry["version"] or "-"
        lines.append(f"  {entry['name']:<20}{version:<18}{entry['state']:<15}{asked_by}")
    lines.append("what belongs to an extra comes with it, in a clone: pip install -e '.[EXTRA]'")
    return lines


def _memory_lines(model: dict[str, Any]) -> list[str]:
    adapters = f"{model['lora_parameters']:,} in adapters"
    lines = ["", f"{model['name']}: {model['parameters']:,} parameters, {adapters}"]
    for name, size in [*model["bytes"].items(), ("together", model["total"])]:
        lines.append(f"  {name:<20}{_gb(size):>12}")
    verdict = "fits" if model["fits"] else "does not fit"
    free = "" if model["free"] is None else f", {_gb(model['free'])} free"
    lines.append(
        f"an estimate: it {verdict} in {memory.SHARE:.0%} of {_gb(model['room'])}{free} "
        f"({model['device']})"
    )
    return lines


def _gb(size: float) -> str:
    return f"{size / memory.GB:.1f} GB"
