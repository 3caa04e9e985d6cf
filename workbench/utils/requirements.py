"""Which packages this one asks for, which are installed, and the command that brings the rest."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from importlib import metadata
from typing import Any

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
    bounds = {}
    for group in requirements().values():
        for requirement in group:
            bounds[requirement.name] = f"{requirement.name}{requirement.specifier}"
    return "pip install " + " ".join(shlex.quote(bounds.get(name, name)) for name in names)
