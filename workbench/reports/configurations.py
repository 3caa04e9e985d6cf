"""What was run, in words: a manifest as pairs of a name and a text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.records import Record
from workbench.utils.names import SLOTS
from workbench.utils.numbers import span

# What a slot decides comes first: a reader of the page may not know the names of slots.
TITLES = {slot: f"{decides} ({slot})" for slot, decides in SLOTS.items()}


def configuration(label: str, group: Sequence[Record]) -> dict[str, Any]:
    """Method, lab, training, machine and software of a label's runs.

    Returns
    -------
    dict
        label; words, the pairs; code, the names whose text is an expression; path and manifest of
        the first run.
    """
    # Runs of one label are seeds of one setting, so the first one speaks for all of them.
    manifest = group[0].manifest
    method = manifest["method"]
    lab = manifest["lab"]
    words = [("method", method["name"])]
    for slot, value in method.items():
        if slot == "name":
            continue
        # The reward is a sum of parts; every other slot holds one value. A stranger's manifest may
        # have anything there.
        parts = value if slot == "reward" and isinstance(value, list) else [value]
        words.append((TITLES.get(slot, slot), " + ".join(map(expression, parts))))

    inside = {name: value for name, value in lab.items() if name != "lab"}
    # None is an endless pool here, and elsewhere a value that was left to its default.
    if inside.get("pool", 0) is None:
        inside["pool"] = "of fresh problems every round"
    arguments = manifest.get("arguments", {})
    # The seed is what the runs of a label differ in, so all of them are named.
    seeds = sorted({record.manifest["seed"] for record in group})
    words += [
        ("lab", "; ".join([lab["lab"], *_settings(inside)])),
        ("training", "; ".join(_settings({**arguments, "seed": None}))),
        ("seed" if len(seeds) == 1 else "seeds", span(seeds)),
        ("machine", ", ".join(_settings(manifest.get("hardware", {})))),
        ("software", ", ".join(_settings(manifest.get("versions", {})))),
        ("started", manifest.get("started")),
        ("commit", manifest.get("commit")),
        ("records", ", ".join(str(record.path) for record in group)),
    ]
    return {
        "label": label,
        # Manifests of early versions lack some entries, which are left out and not shown empty.
        "words": [(name, value) for name, value in words if value],
        "code": [TITLES.get(slot, slot) for slot in method],
        "path": group[0].path,
        "manifest": json.dumps(manifest, indent=1),
    }


def expression(value: Any) -> str:
    """A description in a manifest as the expression that it stands for.

    >>> expression({"is": "allocators.Uniform", "n": 8})
    'Uniform(n=8)'
    """
    # A manifest writes an object as its class under "is", with its arguments beside it.
    if isinstance(value, dict) and "is" in value:
        arguments = [f"{name}={expression(each)}" for name, each in value.items() if name != "is"]
        return f"{str(value['is']).rpartition('.')[2]}({', '.join(arguments)})"
    if isinstance(value, list):
        return f"({', '.join(map(expression, value))})"
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _settings(values: Mapping[str, Any]) -> list[str]:
    """`pool 512`; nothing for a value that was left to its default."""
    return [
        f"{name.replace('_', ' ')} {expression(value)}"
        for name, value in values.items()
        if value is not None
    ]
