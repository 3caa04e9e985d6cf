"""Configurations as plain data: what a manifest says of a method, and the way back.

Dataclasses, other objects (their public attributes), functions and `functools.partial`s become nested dicts of JSON
values. Only names of this package are built again; a class of your own is described the same way, and `Run.resume` then
asks for the object.
"""

import dataclasses
import importlib
from functools import partial

import numpy as np


def describe(value):
    """JSON-ready description of a configuration value."""
    if dataclasses.is_dataclass(value):
        shown = {
            f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init
        }
        return {"is": _name(type(value)), **shown}
    if isinstance(value, partial):
        return {"is": _name(value.func), **{k: describe(v) for k, v in value.keywords.items()}}
    if callable(value):
        return {"is": _name(value)}
    if isinstance(value, dict):
        return {str(k): describe(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist()
    if hasattr(value, "__dict__"):
        return {
            "is": _name(type(value)),
            **{k: describe(v) for k, v in vars(value).items() if not k.startswith("_")},
        }
    raise ValueError(
        f"{value!r}: a configuration holds objects, functions, arrays, numbers, strings, lists and dicts only"
    )


def rebuild(description):
    """The value that `describe` described; ValueError for names outside this package."""
    if isinstance(description, list):
        return tuple(rebuild(v) for v in description)
    if not isinstance(description, dict):
        return description
    options = {k: rebuild(v) for k, v in description.items() if k != "is"}
    if "is" not in description:
        return options
    target = _find(description["is"])
    if isinstance(target, type):
        return target(**options)
    return partial(target, **options) if options else target


def compose(value):
    """A configuration as the expression that would make it, defaults left out: `Knapsack(up=64)`."""
    if dataclasses.is_dataclass(value):
        changed = [
            f
            for f in dataclasses.fields(value)
            if f.init and f.repr and getattr(value, f.name) != _default(f)
        ]
        inner = ", ".join(f"{f.name}={compose(getattr(value, f.name))}" for f in changed)
        return f"{type(value).__name__}({inner})"
    if isinstance(value, partial):
        return f"{value.func.__name__}({', '.join(f'{k}={compose(v)}' for k, v in value.keywords.items())})"
    return value.__name__ if callable(value) else repr(value)


def differences(ours, theirs, path=""):
    """One line for each place where two descriptions differ, in the form `path: ours, theirs`."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = [*ours, *(k for k in theirs if k not in ours)]
        return [
            line
            for k in keys
            for line in differences(ours.get(k), theirs.get(k), f"{path}.{k}".lstrip("."))
        ]
    return [] if ours == theirs else [f"{path}: {ours!r}, {theirs!r}"]


def _name(target):
    return f"{target.__module__}.{target.__qualname__}".removeprefix("workbench.")


def _find(name):
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(f"workbench.{module}"), attribute)
    except (ImportError, AttributeError):
        raise ValueError(
            f"{name}: not part of this package, so it cannot be built from the manifest; pass the object"
        ) from None


def _default(field):
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
