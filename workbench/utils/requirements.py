"""Which packages this one asks for, which are installed, and the command that brings the rest."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

DISTRIBUTION = "workbench-rlvr"
CHECKOUT = Path(__file__).parents[2] / "pyproject.toml"


def installed_version(name: str) -> str | None:
    """The version of an installed distribution; None when it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def requirements() -> dict[str, list[Any]]:
    """What this package asks for on this platform.

    Returns
    -------
    dict
        Extra to list of `packaging.requirements.Requirement`; "" holds what is always needed.
    """
    # In a checkout the file counts: the metadata is as old as the last installation.
    if not CHECKOUT.is_file():
        return parse_requirements(metadata.requires(DISTRIBUTION) or ())
    project = tomllib.loads(CHECKOUT.read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {extra: parse_requirements(lines).get("", []) for extra, lines in groups.items()}


def parse_requirements(lines: Iterable[str]) -> dict[str, list[Any]]:
    """Requirements by extra, those of other platforms left out.

    Parameters
    ----------
    lines : texts
        Such as ``peft>=0.19; extra == "lora"``.
    """
    # Loaded here, so that the command line's help does not wait for it.
    from packaging.requirements import Requirement

    groups: dict[str, list[Any]] = {}
    for line in lines:
        requirement = Requirement(line)
        # A marker says both which extra a requirement belongs to and for which platform it is.
        named = re.search(r'extra == "([^"]*)"', str(requirement.marker or ""))
        extra = named[1] if named else ""
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            groups.setdefault(extra, []).append(requirement)
    return groups


def install_command(names: Iterable[str]) -> str:
    """The pip command that installs these distributions within the bounds of this package."""
    bounds = {}
    for group in requirements().values():
        for requirement in group:
            bounds[requirement.name] = f"{requirement.name}{requirement.specifier}"
    return "pip install " + " ".join(shlex.quote(bounds.get(name, name)) for name in names)
