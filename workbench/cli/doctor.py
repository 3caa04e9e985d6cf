"""What is on this machine, what a lab lacks here, and whether a model fits.

This is `python -m workbench doctor --lab unsloth`. Everything is found without loading a heavy
package: versions come from the installed metadata, GPUs from nvidia-smi.
"""

from __future__ import annotations

import platform
import shutil
import sys
from typing import Annotated, Any, Literal

from packaging.version import Version
from typer import Context, Exit, Option

from workbench.cli.options import Json
from workbench.cli.terminal import as_json, say
from workbench.policies import memory
from workbench.utils import machine
from workbench.utils.machine import no_gpu
from workbench.utils.names import LABS, OPTIMIZER_BITS
from workbench.utils.requirements import install_command, installed_version, requirements
from workbench.utils.shipped import shipped
from workbench.utils.validation import one_of

# Of the GPU's memory that vLLM holds by default in the labs on which it can sample.
SHARES = {"unsloth": 0.5, "transformers": 0.4}
UNSLOTH_ROWS = 256  # that Unsloth's `generate` samples at once
CUDA_DRIVER = 580  # the first driver for CUDA 13, which torch of our pins is built for
GLIBC = "2.31"  # of llguidance, which vLLM asks for: the newest that a wheel of the pins needs
MODELS = "models"
MAKE_MODELS = "python -m examples.base_model"


def doctor(
    context: Context,
    lab: Annotated[Literal[LABS], Option(help="The lab in question.")] = "tiny",
    model: Annotated[
        str | None,
        Option(metavar="NAME_OR_PATH", help="Estimate its memory. Nothing is downloaded."),
    ] = None,
    lora_rank: Annotated[int, Option(help="Of the adapters; 0 trains all parameters.")] = 64,
    load_in_4bit: Annotated[
        bool, Option("--load-in-4bit", help="Quantise the weights by bitsandbytes.")
    ] = False,
    fast_inference: Annotated[bool, Option(help="Whether vLLM samples in the lab unsloth.")] = True,
    engine: Annotated[
        Literal["transformers", "vllm"], Option(help="What samples in the lab transformers.")
    ] = "transformers",
    gradient_checkpointing: Annotated[
        bool | None,
        Option(help="Compute layers again in the backward pass. Default: as the lab does it."),
    ] = None,
    optimizer_bits: Annotated[
        Literal[OPTIMIZER_BITS], Option(help="Of the moments of AdamW.")
    ] = 32,
    dtype: Annotated[str, Option(help="Of the weights.")] = "bfloat16",
    max_length: Annotated[int, Option(help="Tokens of prompt and response together.")] = 1024,
    rollouts: Annotated[int, Option(help="Rollouts sampled at once.")] = 64,
    micro_tokens: Annotated[int, Option(help="Tokens of one micro-batch.")] = 16_384,
    json: Json = False,
) -> None:
    """Show this machine, and what it lacks to run a lab.

    The exit status is 1 when the lab, with the model if one is named, cannot run here.

    \b
    Examples:
      python -m workbench doctor
      python -m workbench doctor --lab unsloth --model Qwen/Qwen2.5-3B-Instruct --max-length 1024
      python -m workbench doctor --json
    """
    options = {name: value for name, value in context.params.items() if name != "json"}
    told = report(**options)
    # The report comes first: that the lab cannot run here is a result and no error.
    say(as_json(told) if json else text(told))
    if not told["can_run"]:
        raise Exit(1)


def report(
    lab: str = "tiny",
    model: Any = None,
    *,
    load_in_4bit: bool = False,
    fast_inference: bool = True,
    engine: str = "transformers",
    optimizer_bits: int = 32,
    **options: Any,
) -> dict[str, Any]:
    """All that `doctor` shows, as plain data.

    Parameters
    ----------
    lab : {"tiny", "transformers", "unsloth"}
    model : str or path, optional
        Its memory is estimated and held against the largest GPU, or against main memory where there
        is no GPU.
    load_in_4bit, optimizer_bits, options
        As for `memory.estimate`. None as `gradient_checkpointing` is as the lab does it: Unsloth
        always computes layers again, the others do on a GPU.
    fast_inference : bool
        Whether vLLM samples in the lab "unsloth".
    engine : {"transformers", "vllm"}
        What samples in the lab "transformers".

    Returns
    -------
    dict
        machine, packages, lab, obstacles, can_run and, with a model, model. `can_run` is
        also False where the lab would load the model and it takes more than `memory.SHARE` of the
        room.
    """
    one_of("engine", engine, ("transformers", "vllm"))
    vllm_samples = fast_inference if lab == "unsloth" else engine == "vllm"
    options |= {"load_in_4bit": load_in_4bit, "optimizer_bits": optimizer_bits}
    here = this_machine()
    told: dict[str, Any] = {"machine": here, "packages": packages(), "lab": lab}
    problems = told["obstacles"] = obstacles(lab, load_in_4bit, fast_inference, optimizer_bits)
    if model is not None:
        sizes = told["model"] = _model(model, here, lab, vllm_samples, options)
        # The tiny lab trains its own models, so there the size of another one is shown and no more.
        if lab != "tiny" and not sizes["fits"]:
            problems.append(
                f"{model} does not fit: take a smaller model, load_in_4bit, a shorter max_length "
                "or fewer rollouts at once"
            )
    # Last, since the model may have been one obstacle more.
    told["can_run"] = not problems
    return told


def obstacles(
    lab: str, load_in_4bit: bool = False, fast_inference: bool = True, optimizer_bits: int = 32
) -> list[str]:
    """Why a lab cannot run here, one line each with the way out; an empty list if it can.

    Versions out of bounds are no obstacle: the table of packages shows them.

    Parameters
    ----------
    lab : {"tiny", "transformers", "unsloth"}
    load_in_4bit : bool
        Whether the lab "unsloth" needs bitsandbytes for its weights.
    fast_inference : bool
        Whether it needs vLLM.
    optimizer_bits : {32, 8}
        Whether it needs bitsandbytes for its AdamW.
    """
    one_of("lab", lab, LABS)
    lines: list[str | None] = []
    if lab == "unsloth":
        lines += [no_gpu(), _old_driver()]
        libc, version = platform.libc_ver()
        if libc == "glibc" and Version(version) < Version(GLIBC):
            lines.append(
                f"glibc {version}: the packages of the GPU need {GLIBC} or newer; take a newer "
                "system"
            )
        if machine.compiler() is None:
            lines.append(
                "no C compiler, which Triton needs: apt install build-essential, or set CC"
            )
    # Only what is needed counts: an extra also lists packages for options that are not in use.
    in_use = {
        "bitsandbytes": load_in_4bit or optimizer_bits != 32,
        "vllm": fast_inference,
        # The plugin lets vLLM read weights of 4 bits.
        "vllm-bnb-plugin": load_in_4bit and fast_inference,
    }
    groups = requirements()
    needed = groups[""] + (groups.get("gpu", []) if lab == "unsloth" else [])
    missing = [
        name
        for name in dict.fromkeys(each.name for each in needed)
        if in_use.get(name, True) and installed_version(name) is None
    ]
    if missing:
        lines.append(f"missing: {', '.join(missing)}; install with: {install_command(missing)}")
    if lab == "tiny" and not shipped_models():
        lines.append(f"the shipped models are missing; make one with: {MAKE_MODELS}")
    # The checks give None where there is nothing to say.
    return [line for line in lines if line]


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
        for requirement in group:
            version = installed_version(requirement.name)
            entry = {
                "name": requirement.name,
                "wanted": str(requirement.specifier),
                "version": version,
                "state": _state(requirement, version),
                "extras": [],
            }
            # Several extras may name one distribution. It gets one row, which lists them.
            entries.setdefault(requirement.name, entry)["extras"].append(extra)
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
    verdict = "can run here" if told["can_run"] else "cannot run here"
    lines += ["", f"lab {told['lab']}: {verdict}"]
    lines += [f"  {line}" for line in told["obstacles"]]
    return "\n".join(lines)


def _state(requirement: Any, version: str | None) -> str:
    if version is None:
        return "missing"
    # Without `prereleases` a development build, such as a nightly torch, would be out
    # of bounds whatever its number.
    admitted = requirement.specifier.contains(version, prereleases=True)
    return "ok" if admitted else "out of bounds"


def _model(
    model: Any, here: dict[str, Any], lab: str, vllm_samples: bool, options: dict[str, Any]
) -> dict[str, Any]:
    """A model's size, what it takes by part, and whether the largest device has room for it."""
    cpu: dict[str, Any] = {"name": "CPU", "bytes": 0}
    gpu = max(here["gpus"], key=lambda gpu: gpu["bytes"], default=cpu)
    if options.get("gradient_checkpointing") is None:
        options["gradient_checkpointing"] = lab == "unsloth" or gpu["bytes"] > 0
    if vllm_samples and gpu["bytes"] and lab in SHARES:
        # vLLM holds its share from the start, whatever the number of rollouts is.
        options["sampler_bytes"] = SHARES[lab] * gpu["bytes"]
        options["shares_weights"] = lab == "unsloth"
    elif lab == "unsloth":
        options["rows"] = UNSLOTH_ROWS
    parts = memory.estimate(model, **options)
    shape = memory.shape(model)
    total = sum(parts.values())
    # A GPU that shares the main memory reports none of its own.
    room = gpu["bytes"] or here["memory"]
    return {
        "name": str(model),
        "parameters": shape.parameters,
        "bytes": parts,
        "total": total,
        "lora_parameters": shape.lora_parameters(options.get("lora_rank", 64)),
        "room": room,
        "device": gpu["name"],
        "fits": total <= memory.SHARE * room,
        **options,
    }


def _machine_lines(here: dict[str, Any]) -> list[str]:
    gpus = [
        f"{gpu['name']}, {_gb(gpu['bytes'])}, {_gb(gpu['free'])} free, driver {gpu['driver']} "
        f"({CUDA_DRIVER} needed)"
        for gpu in here["gpus"]
    ]
    libc = here["libc"] or "unknown"
    facts = [
        ("python", f"{here['python']} ({here['executable']})"),
        ("system", here["system"]),
        ("libc", f"{libc} (a GPU's packages need glibc {GLIBC})"),
        ("cores", here["cores"]),
        ("memory", _gb(here["memory"])),
        ("disk", f"{_gb(here['disk'])} free here"),
        *[("gpu", gpu) for gpu in gpus or ["none"]],
        ("compiler", here["compiler"] or "none: apt install build-essential"),
        ("models", ", ".join(here["models"]) or f"none shipped here: {MAKE_MODELS}"),
    ]
    return [f"{name:<10}{fact}" for name, fact in facts]


def _package_lines(entries: list[dict[str, Any]]) -> list[str]:
    """The table of packages, and for every extra that is not complete the command that helps."""
    lines = []
    lacking: dict[str, list[str]] = {}
    for entry in entries:
        asked_by = ", ".join(extra or "always" for extra in entry["extras"])
        version = entry["version"] or "-"
        lines.append(f"  {entry['name']:<20}{version:<18}{entry['state']:<15}{asked_by}")
        if entry["state"] != "ok":
            for extra in entry["extras"]:
                lacking.setdefault(extra, []).append(entry["name"])
    if lacking:
        lines += ["", "what brings the rest"]
    # A command for each extra, since hardly anybody wants all of them.
    for extra, names in lacking.items():
        lines.append(f"  {extra or 'always':<14}{install_command(names)}")
    return lines


def _memory_lines(model: dict[str, Any]) -> list[str]:
    adapters = f"{model['lora_parameters']:,} in adapters"
    lines = ["", f"{model['name']}: {model['parameters']:,} parameters, {adapters}"]
    for name, size in model["bytes"].items():
        lines.append(f"  {name:<20}{_gb(size):>12}")
    verdict = "fits" if model["fits"] else "does not fit"
    room = f"{memory.SHARE:.0%} of {_gb(model['room'])} ({model['device']})"
    lines.append(f"  {'together':<20}{_gb(model['total']):>12}  an estimate: {verdict} in {room}")
    return lines


def _gb(size: float) -> str:
    return f"{size / memory.GB:.1f} GB"
