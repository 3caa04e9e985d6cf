"""What is on this machine, what a lab lacks here, and whether a model fits.

This is `python -m workbench doctor --lab unsloth`. Everything is found without loading a heavy
package: versions come from the installed metadata, GPUs from nvidia-smi.
"""

from __future__ import annotations

import inspect
import platform
import sys
from collections.abc import Mapping
from typing import Annotated, Any

from typer import Exit, Option

from workbench.cli.options import Json, Lab
from workbench.cli.terminal import as_json, say
from workbench.cli.train import lab_options
from workbench.utils import machine
from workbench.utils.machine import install_command, installed_version, requirements

# What a lab's configuration may not have, or leave open, beside the options of the estimate.
OTHER_OPTIONS = {
    "lora_rank": 0,
    "fast_inference": False,
    "engine": "transformers",
    "gradient_checkpointing": None,
}
WAY_OUT = (
    "take LoRA (lora_rank=64), dtype=bfloat16, less of micro_tokens, rows, max_length or "
    "gpu_memory_utilization, load_in_4bit with Unsloth, or a smaller model"
)
CUDA_DRIVER = 580  # the first driver for CUDA 13, which torch of our pins is built for
# What to do in a lab that can run.
NEXT = {
    "tiny": "python -m workbench quickstart",
    "transformers": "docs/guides/gpu.md; on a GPU take engine='vllm', which samples far faster",
    "unsloth": "make test-gpu gpu-first-run GPU_PYTHON=python",
}


def doctor(
    lab: Lab = [],  # noqa: B006  typer makes a new list
    model: Annotated[
        str | None, Option(metavar="NAME_OR_PATH", help="Estimate its memory.")
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
        machine, packages, lab, obstacles (why the lab cannot run here, a line each with the way
        out), can_run and, with a model, model.
    """
    settings = settings_of(lab, given)
    here = this_machine()
    lines = obstacles(settings)
    told: dict[str, Any] = {"machine": here, "packages": packages(), "lab": lab, "obstacles": lines}
    if model is not None:
        told["model"] = fit(model, here, settings)
        # The tiny lab trains its own models, so there the size of another one is shown and no more.
        if lab != "tiny" and not told["model"]["fits"]:
            lines.append(f"{model} does not fit: {WAY_OUT}")
    return told | {"can_run": not lines}


def settings_of(lab: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a lab by name: those given that are not None, and the lab's own otherwise."""
    # Only here: the help of the command line does not wait for it.
    from workbench import labs
    from workbench.labs import TransformersConfig, UnslothConfig
    from workbench.policies.memory import estimate
    from workbench.utils.descriptions import defaults
    from workbench.utils.validation import one_of, unknown_argument

    functions: dict[str, Any] = {
        "tiny": labs.tiny,
        "transformers": labs.transformers,
        "unsloth": labs.unsloth,
    }
    one_of("lab", lab, functions)
    own = defaults(UnslothConfig if lab == "unsloth" else TransformersConfig)
    settings = defaults(estimate) | OTHER_OPTIONS
    settings |= {name: value for name, value in own.items() if value is not None}
    # Other arguments of the lab change nothing about what is needed.
    known = {*settings, *own, *inspect.signature(functions[lab]).parameters}
    for name, value in given.items():
        if name not in known:
            raise unknown_argument(name, f"the lab {lab!r}", known)
        if name == "lora" and isinstance(value, Mapping):
            settings["lora_rank"] = value.get("r", 8)
        elif name in settings and value is not None:
            settings[name] = value
    one_of("engine", settings["engine"], ("transformers", "vllm"))
    by_vllm = settings["fast_inference"] if lab == "unsloth" else settings["engine"] == "vllm"
    return settings | {"lab": lab, "by_vllm": by_vllm}


def obstacles(settings: Mapping[str, Any]) -> list[str]:
    """Why a lab with these settings cannot run here, a line each with the way out.

    Versions out of bounds are no obstacle: the table of packages shows them.
    """
    is_unsloth, by_vllm = settings["lab"] == "unsloth", settings["by_vllm"]
    needs_gpu = is_unsloth or by_vllm
    reasons = [machine.no_gpu(), _old_driver()] if needs_gpu else [machine.no_bfloat16()]
    lines = [reason for reason in reasons if reason]
    if needs_gpu:
        if machine.compiler() is None:
            lines.append("no C compiler, which Triton needs: apt install build-essential")
    # An extra also lists packages for options that are not in use.
    in_use = {
        "peft": is_unsloth or bool(settings["lora_rank"]),
        "bitsandbytes": settings["load_in_4bit"] or settings["optimizer_bits"] != 32,
        "vllm": by_vllm,
        # The plugin lets vLLM read weights of 4 bits.
        "vllm-bnb-plugin": settings["load_in_4bit"] and by_vllm,
    }
    groups = requirements()
    needed = [each.name for each in groups[""]]
    needed += [each.name for each in groups.get("gpu", []) if in_use.get(each.name, is_unsloth)]
    missing = [name for name in dict.fromkeys(needed) if installed_version(name) is None]
    if missing:
        lines.append(f"missing: {', '.join(missing)}; install with: {install_command(missing)}")
    return lines


def _old_driver() -> str | None:
    """What is wrong with the NVIDIA driver; None where nothing is, or none can be seen."""
    # A build of torch for CUDA 12 names it in its version, and is content with an older driver.
    if "+cu12" in (installed_version("torch") or ""):
        return None
    for gpu in machine.gpus():
        if machine.is_before(gpu["driver"], CUDA_DRIVER):
            return f"NVIDIA driver {gpu['driver']}: torch needs {CUDA_DRIVER} or newer; update it"
    return None


def packages() -> list[dict[str, Any]]:
    """Every distribution that this package or an extra of it names.

    Returns
    -------
    list of dict
        name, version, state and extras. The state is "ok", "missing", or "out of bounds" for a
        version that pyproject.toml does not admit.
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
                state = "ok" if admitted else f"out of bounds ({each.specifier})"
            facts = {"name": each.name, "version": version, "state": state, "extras": []}
            # Several extras may name one distribution. It gets one row, which lists them.
            entries.setdefault(each.name, facts)["extras"].append(extra)
    return list(entries.values())


def this_machine() -> dict[str, Any]:
    """What this machine has."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": machine.cores(),
        "memory": machine.memory(),
        "gpus": machine.gpus(),
        "torch": installed_version("torch"),
    }


def fit(model: Any, here: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A model's size, what it takes by part, and whether the largest device has room for it."""
    from workbench.policies import memory
    from workbench.utils.descriptions import defaults

    # A GPU that shares the main memory reports none of its own, as here the CPU.
    cpu: dict[str, Any] = {"name": "CPU", "bytes": 0, "free": 0}
    gpu = max(here["gpus"], key=lambda gpu: gpu["bytes"], default=cpu)
    room = gpu["bytes"] or here["memory"]
    # What is free of the main memory is not known.
    free = gpu["free"] if gpu["bytes"] else room
    options = {name: settings[name] for name in defaults(memory.estimate)}
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
        "fits": total <= min(memory.SHARE * room, free),
    }


def text(told: dict[str, Any]) -> str:
    """What `report` returned, as lines to read."""
    here = told["machine"]
    lines = [
        f"python    {here['python']} ({here['executable']})",
        f"system    {here['system']}, {here['cores']} cores, {_gb(here['memory'])}",
    ]
    for gpu in here["gpus"]:
        size = f"{_gb(gpu['bytes'])}, {_gb(gpu['free'])} free"
        lines.append(f"gpu       {gpu['name']}, {size}, driver {gpu['driver']}")
    if not here["gpus"]:
        lines.append("gpu       none")
    lines.append("")
    for entry in told["packages"]:
        asked_by = ", ".join(extra or "always" for extra in entry["extras"])
        version = entry["version"] or "-"
        lines.append(f"  {entry['name']:<20}{version:<18}{entry['state']:<15} {asked_by}")
    if "model" in told:
        lines += ["", _memory_line(told["model"])]
    lines += ["", f"lab {told['lab']}: {'can' if told['can_run'] else 'cannot'} run here"]
    lines += [f"  {place}. {line}" for place, line in enumerate(told["obstacles"], 1)]
    further = NEXT[told["lab"]] if told["can_run"] else "mend these, and ask again"
    return "\n".join([*lines, f"next: {further}"])


def _memory_line(model: dict[str, Any]) -> str:
    from workbench.policies.memory import SHARE

    verdict = "fits" if model["fits"] else "does not fit"
    parts = ", ".join(f"{name} {_gb(size)}" for name, size in model["bytes"].items() if size)
    return (
        f"{model['name']}: {model['parameters']:,} parameters, {model['lora_parameters']:,} in "
        f"adapters; about {_gb(model['total'])} ({parts}), and so it {verdict} in "
        f"{SHARE:.0%} of {_gb(model['room'])}, {_gb(model['free'])} free "
        f"({model['device']})"
    )


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
