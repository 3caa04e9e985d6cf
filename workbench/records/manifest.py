"""A record's manifest: how it is read, what it may say, and the machine that it names.

A manifest may come from a stranger. So everything in it is checked when it is read: its depth, the
type of every entry, and every text. What passes can be shown on a terminal and in a
report, compared, and handed to the functions that make a lab and a method again. These check in
turn that nothing but a part of this package is made (`config.recorded_lab`,
`config.rebuild`).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import __version__
from workbench.records.files import FORMAT, MANIFEST, RecordError, RecordWarning, read_ordinary
from workbench.records.tables import reading
from workbench.utils.code import digest_of
from workbench.utils.descriptions import differences
from workbench.utils.machine import installed_version
from workbench.utils.validation import LARGEST_INTEGER, brief, cause_of, plain_data

if TYPE_CHECKING:
    import torch

# The packages that results depend on.
PACKAGES = ("torch", "transformers", "peft", "numpy", "math-verify", "trl", "unsloth", "vllm")

# Parts of this package that change no number of a run.
WITHOUT_NUMBERS = ("analysis", "cli", "plots", "reports")
# The entries that say which run it is.
IDENTITY = ("method", "lab", "data", "files", "seed", "arguments", "label", "policy", "tokenizer")
# What has to be the same throughout a run, and for all runs of a trial or a sweep. The rest of the
# hardware changes how long a run takes.
CONDITIONS = ("versions.", "code.", "hardware.device:", "hardware.gpu:")

# Entry -> its type. An entry may be missing, and a text may be None.
ENTRIES: dict[str, type] = {
    "format": int,
    "seed": int,
    "held_out": int,
    "method": dict,
    "lab": dict,
    "arguments": dict,
    "versions": dict,
    "hardware": dict,
    "data": dict,
    "thinned": dict,
    "code": dict,
    "files": dict,
    "policy": dict,
    "tokenizer": str,
    "started": str,
    "commit": str,
}
NEEDED_TEXTS = {int: "a whole number of at least 0", dict: "an object", str: "a text"}
# What a manifest leaves out where it was written by hand or by an early version.
DEFAULTS: dict[str, Any] = {
    "lab": {"lab": "unknown"},
    "arguments": {},
    "versions": {},
    "hardware": {},
}


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a record.

    Raises
    ------
    FileNotFoundError
        Where there is none.
    RecordError
        Where it cannot be read or holds what no manifest may hold, and for another format.
    """
    path = directory / MANIFEST
    with reading(path):
        manifest = json.loads(read_ordinary(path))
        # The format comes before all other checks: a manifest of a later version may well have
        # other entries, and the useful answer is which version reads it.
        if isinstance(manifest, dict) and manifest.get("format", FORMAT) != FORMAT:
            raise RecordError(
                f"{path}: format {brief(manifest['format'])}, written by "
                f"{brief(manifest.get('versions'))}; this is workbench {__version__}, which reads "
                f"format {FORMAT}: use the version that wrote it"
            )
        return checked_manifest(manifest)


def checked_manifest(manifest: Any) -> dict[str, Any]:
    """The manifest with what it leaves out filled in; ValueError where it is not one."""
    if not isinstance(manifest, dict):
        raise ValueError(f"a JSON object is needed, not {brief(manifest)}")
    # First the texts, so that whatever the error of a later check quotes can be shown.
    plain_data(manifest)
    manifest = {**DEFAULTS, **manifest}
    if missing := [name for name in ("format", "seed", "method") if name not in manifest]:
        raise ValueError(f"`{missing[0]}` is missing")
    for name, kind in ENTRIES.items():
        found = manifest.get(name, kind())
        # In Python True is a whole number too, and in JSON it is not.
        is_right = type(found) is kind or (found is None and kind is str)
        if not is_right or (kind is int and not 0 <= found <= LARGEST_INTEGER):
            raise ValueError(f"`{name}` is {brief(found)}: {NEEDED_TEXTS[kind]} is needed")
    texts = {
        "method.name": manifest["method"].get("name"),
        "lab.lab": manifest["lab"].get("lab"),
        "label": manifest.get("label") or "none",
    }
    for entry, found in texts.items():
        if not (isinstance(found, str) and found and found.isprintable()):
            raise ValueError(f"`{entry}` is {brief(found)}: a text of one line is needed")
    return manifest


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """The content of `manifest.json`; ValueError for a manifest that could not be read again."""
    # What is written passes the same checks as what is read, so no run can write a manifest that
    # nobody can open.
    checked_manifest(dict(manifest))
    return json.dumps(manifest, indent=1) + "\n"


def made_again(
    make: Callable[[Any], Any], manifest: Mapping[str, Any], what: str, directory: Any
) -> Any:
    """What `make` makes of the manifest's description of "lab" or "method".

    Raises
    ------
    ValueError
        Where the description names anything but parts of this version of the package, or holds
        arguments that they do not take.
    RecordError
        Where the machine lacks something, such as a package, a model or a data set.
    """
    try:
        return make(manifest[what])
    except (OSError, ImportError) as error:
        raise RecordError(
            f"{directory}: the {what} of this record cannot be made on this machine: {error}"
        ) from error
    except Exception as error:
        # The arguments come from a file that anybody may have written. Whatever a constructor makes
        # of a wrong one, the cause is the file.
        cause = f"{type(error).__name__}: {cause_of(error)}"
        raise ValueError(
            f"{directory}: the manifest cannot make this {what} again ({cause}); pass it: "
            f"Run.resume(path, {what}=...)"
        ) from error


# The machine and the software


def versions() -> dict[str, str]:
    """Versions of this package, of Python, and of the packages that results depend on."""
    import torch

    found = {"workbench": __version__, "source": source_digest()}
    found |= {"python": platform.python_version(), "cuda": str(torch.cuda.is_available())}
    return found | {name: version for name in PACKAGES if (version := installed_version(name))}


@cache
def source_digest() -> str:
    """A digest of this package's own code, as far as it makes numbers."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if not name.startswith(WITHOUT_NUMBERS):
            digest.update(f"{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def made_of(policy: Any) -> dict[str, Any]:
    """What a manifest says of a policy before its first step: settings, and a digest of weights."""
    from workbench.policies import checks
    from workbench.records.checkpoints import checksum  # torch is needed here only

    model, trained = policy.model, policy.state_dict()
    weights = dict(model.named_parameters()) if hasattr(model, "named_parameters") else trained
    config, engine = getattr(model, "config", None), getattr(policy, "engine", None)
    tokenizer = getattr(policy, "tokenizer", None)
    chat_template = getattr(tokenizer, "chat_template", None)
    date = [str(checks.TODAY)] if checks.clock_of(tokenizer) else []
    # Not its name, which may be a path of this machine: the weights say which model it is.
    names = ("template", "rows", "chunk", "max_length", "end_ids", "float32_head")
    found = {
        **{name: getattr(policy, name, None) for name in names},
        "engine": None if engine is None else type(engine).__name__,
        "chat_template": chat_template and digest_of([chat_template, *date]),
        "revision": getattr(config, "_commit_hash", None),
        "positions": getattr(config, "max_position_embeddings", None),
        "dtype": ", ".join(sorted({str(value.dtype) for value in weights.values()})),
        "trained": digest_of(sorted(trained)),
        "weights": checksum(weights, ""),
    }
    for name, adapter in getattr(model, "peft_config", {}).items():
        # Sets have no order of their own, and the path of the model below may be another.
        settings = {key: sorted(v) if isinstance(v, set) else v for key, v in vars(adapter).items()}
        left_out = ("base_model_name_or_path", "peft_version")
        found[f"adapter {name}"] = {k: v for k, v in settings.items() if v and k not in left_out}
    return json.loads(json.dumps(found, default=str))


def tokenizer_of(policy: Any) -> str | None:
    """A digest of how text becomes tokens and tokens text; None where a policy does not say it."""
    tokenizer: Any = getattr(policy, "tokenizer", None)
    if not hasattr(tokenizer, "get_vocab"):
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    maps = json.loads(backend.to_str()) if backend else tokenizer.get_vocab()
    # How the last texts were padded and cut stands there too.
    maps |= {"padding": None, "truncation": None}
    return digest_of([maps, str(getattr(tokenizer, "special_tokens_map", None))])


def made_on(device: torch.device) -> dict[str, Any]:
    """When, with which software, on what machine and from which commit a run is made."""
    import torch

    hardware = {
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
    }
    if device.type == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(device)
        hardware["gpu_bytes"] = torch.cuda.get_device_properties(device).total_memory
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    commit = ""
    with suppress(OSError, subprocess.TimeoutExpired):
        # Outside of a checkout git fails and prints nothing to stdout.
        commit = subprocess.run(git, capture_output=True, text=True, timeout=10).stdout.strip()
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "hardware": hardware,
        "commit": commit or None,
    }


def check_conditions(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], path: Path, mixed: bool
) -> None:
    """ValueError where a record was made under other conditions, unless they may be mixed.

    What either manifest does not name is left out. Once our hardware is known, a RecordWarning
    tells of all that has changed.
    """
    ours = {"versions": versions(), **ours}
    changed = []
    for part in ("versions", "code", "hardware"):
        now, then = ours.get(part, {}), theirs.get(part, {})
        names = [name for name in then if now.get(name, then[name]) != then[name]]
        changed += [f"{part}.{name}: {now[name]!r}, {then[name]!r}" for name in names]
    refused = [line for line in changed if line.startswith(CONDITIONS)]
    if refused and not mixed:
        raise ValueError(
            f"{path} was made under other conditions (now, then): {'; '.join(refused[:3])}; name "
            "another directory, or go on with both by mixed=True (--mixed)"
        )
    if changed and "hardware" in ours:
        text = f"{path}: goes on under other conditions (now, then): {'; '.join(changed[:3])}"
        warnings.warn(text, RecordWarning, stacklevel=7)


def check_same_run(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], path: Path, mixed: bool
) -> None:
    """ValueError unless two manifests are of one run, as far as `ours` says what it is."""
    names = [name for name in IDENTITY if ours.get(name) is not None]
    if "policy" not in theirs:
        # Records of earlier versions say nothing of these.
        names = [name for name in names if name not in ("files", "policy", "label")]
        ours = {**ours, "lab": {**ours["lab"], "model": theirs["lab"].get("model")}}
    if "tokenizer" not in theirs:
        names = [name for name in names if name != "tokenizer"]
    asked_for, recorded = ({name: each.get(name) for name in names} for each in (ours, theirs))
    different = "; ".join(differences(asked_for, recorded)[:3])
    if different:
        raise ValueError(
            f"out={str(path)!r} holds another run (asked for, recorded): {different}; name "
            "another directory"
        )
    check_conditions(ours, theirs, path, mixed)
