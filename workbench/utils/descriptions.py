"""Configurations as plain data: what a manifest says of a method. `config` makes it again.

An object is described by its class and by the arguments of its constructor, which it keeps as
attributes of the same names (the convention of scikit-learn). Whatever else it holds is state and
is not described.
"""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np

from workbench.utils.validation import brief

# The method by which a value acts in its slot -> the file of `workbench.rules` for that slot.
HOMES = {
    "choose": "curricula",
    "allocate": "allocators",
    "plan": "courses",
    "join": "replay",
    "select": "selectors",
    "__call__": "advantages",
}

NEEDED = (
    "a configuration holds objects, functions, arrays of NumPy, numbers, strings, lists and dicts "
    "only"
)


def parameters(value: Any) -> dict[str, Any]:
    """The constructor's arguments of an object, name to value, in the constructor's order.

    Raises
    ------
    ValueError
        When the object does not keep an argument as an attribute of the same name.
    """
    kind = type(value)
    if kind.__init__ is object.__init__ and kind.__new__ is object.__new__:
        # `inspect` would report the *args and **kwargs of object.
        return {}
    arguments = {}
    try:
        signature = inspect.signature(kind)
    except ValueError:  # such as tensors and generators
        raise ValueError(f"{brief(value)}: {NEEDED}") from None
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ValueError(
                f"{kind.__name__}(*{name}): a configuration needs named arguments, so that it can "
                "be recorded"
            )
        try:
            arguments[name] = getattr(value, name)
        except AttributeError:
            raise ValueError(
                f"{kind.__name__}({name}=...): the argument is not kept; set self.{name} = {name}, "
                "so that it can be recorded"
            ) from None
    return arguments


def defaults(kind: Callable[..., Any]) -> dict[str, Any]:
    """The arguments of a class or function that have a default, name to value."""
    found = {
        name: parameter.default
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is not parameter.empty
    }
    # A default made by a factory shows in the signature as a marker only.
    for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        if field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found


def clone(value: Any) -> Any:
    """A new object of the same class and arguments, without anything it has learnt since."""
    arguments = {name: _cloned(argument) for name, argument in parameters(value).items()}
    return type(value)(**arguments)


def _cloned(argument: Any) -> Any:
    # A wrapper holds other slots as arguments, alone or several; these learn too.
    if type(argument) in (list, tuple):
        return type(argument)(_cloned(item) for item in argument)
    if type(argument) is dict:
        return {name: _cloned(item) for name, item in argument.items()}
    return argument.clone() if hasattr(type(argument), "clone") else argument


def describe(value: Any) -> Any:
    """A configuration as JSON-ready data; objects and functions have their name under "is".

    Raises
    ------
    ValueError
        For values that cannot be part of a configuration, such as open files.
    """
    # First, since float64 of NumPy is a float as well and would pass below as it is.
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, dict):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, partial):
        # Arguments by place are called 0, 1, ...
        given: dict[Any, Any] = {**dict(enumerate(value.args)), **value.keywords}
        return {"is": name_of(value.func), **describe(given)}
    if isinstance(value, type) or inspect.isroutine(value):
        return {"is": name_of(value)}
    if type(value).__module__ != "builtins":
        arguments = parameters(value)
        # What a later version brought is left out at its default, see `slots.Slot.later`.
        for name in getattr(type(value), "later", ()):
            if _is_same(arguments[name], defaults(type(value))[name]):
                del arguments[name]
        return {"is": name_of(type(value)), **describe(arguments)}
    raise ValueError(f"{brief(value)}: {NEEDED}")


def compose(value: Any) -> str:
    """A configuration as the expression that makes it, defaults left out: `Knapsack(up=64)`."""
    if isinstance(value, partial):
        options = [f"{name}={compose(option)}" for name, option in value.keywords.items()]
        return f"{value.func.__name__}({', '.join([*map(compose, value.args), *options])})"
    if isinstance(value, tuple | list):
        inner = ", ".join(map(compose, value))
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, type) or inspect.isroutine(value):
        return value.__name__
    is_data = isinstance(value, np.generic | np.ndarray | PurePath | dict)
    if is_data or type(value).__module__ == "builtins":
        return repr(value)
    usual = defaults(type(value))
    changed = [
        f"{name}={compose(argument)}"
        for name, argument in parameters(value).items()
        if name not in usual or not _is_same(argument, usual[name])
    ]
    return f"{type(value).__name__}({', '.join(changed)})"


def differences(first: Any, second: Any, path: str = "") -> list[str]:
    """One line for each place where two descriptions differ, in the form `path: first, second`.

    >>> differences({"n": 8, "low": 2}, {"n": 4, "low": 2})
    ['n: 8, 4']
    """
    if not (isinstance(first, dict) and isinstance(second, dict)):
        return [] if first == second else [f"{path}: {first!r}, {second!r}"]
    # Names in the order of the first description, then those that only the second one has.
    lines = []
    for name in [*first, *(name for name in second if name not in first)]:
        inner = f"{path}.{name}".lstrip(".")
        lines += differences(first.get(name), second.get(name), inner)
    return lines


def name_of(target: Callable) -> str:
    """The name by which a description knows a class or function: "selectors.MaxVariance".

    It says what a value does and not in which file of this package it stands. So files may be moved
    without changing what old records say.
    """
    name = f"{target.__module__}.{target.__qualname__}"
    if name.startswith("workbench.catalogue."):
        name = f"{_home(target)}.{target.__qualname__}"
    return name.removeprefix("workbench.").removeprefix("rules.")


def _home(target: Callable) -> str:
    """The file of `workbench.rules` in which a class or function of the catalogue would stand."""
    if not isinstance(target, type):
        return "advantages"  # the only functions that a description holds
    defined = dir(target)
    for action, home in HOMES.items():
        if action in defined:
            return home
    return "success_rates"  # what values of several slots ask


def _is_same(first: Any, second: Any) -> bool:
    try:
        return bool(first == second)
    except ValueError:  # arrays compare element by element
        return np.array_equal(first, second)
