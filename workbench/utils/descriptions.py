"""Configurations as plain data: what a manifest says of a method, and how it is made again.

An object is described by its class and by the arguments of its constructor, which it keeps as
attributes of the same names (the convention of scikit-learn). Whatever else it holds is state and
is not described.
"""

import dataclasses
import importlib
import inspect
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from workbench.utils.validation import shown

# The modules whose public classes a description may name, see `_find`: all slot values in them, and
# the few other classes that a method consists of.
BUILDABLE = (
    "advantages",
    "allocators",
    "curricula",
    "methods",
    "objectives",
    "replay",
    "rewards",
    "scheduler",
    "selectors",
    "success_rates",
)
BUILDABLE_CLASSES = ("methods.Method", "objectives.Objective", "success_rates.SuccessRates")
DEEPEST = 64  # levels of a description that is made again


def parameters(value: Any) -> dict[str, Any]:
    """The constructor's arguments of an object, name to value, in the constructor's order.

    Raises
    ------
    ValueError
        When the object does not keep an argument as an attribute of the same name.
    """
    kind = type(value)
    if kind.__init__ is object.__init__:
        # `inspect` would report the *args and **kwargs of object.
        return {}
    arguments = {}
    for name, parameter in inspect.signature(kind).parameters.items():
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
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, dict):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, partial):
        return {"is": _name(value.func), **describe(value.keywords)}
    if isinstance(value, type) or inspect.isroutine(value):
        return {"is": _name(value)}
    if type(value).__module__ != "builtins":
        return {"is": _name(type(value)), **describe(parameters(value))}
    raise ValueError(
        f"{value!r}: a configuration holds objects, functions, arrays, numbers, strings, lists and "
        "dicts only"
    )


def rebuild(description: Any) -> Any:
    """The value that `describe` described.

    A description may come from a stranger's record. So all of it is checked before any part is
    made: every name must be one of a slot value of this package, and every option an argument of
    what is named.

    Raises
    ------
    ValueError
        For any other name, for options that do not fit, and for what a constructor refuses.
    """
    _check_description(description)
    return _made(description)


def compose(value: Any) -> str:
    """A configuration as the expression that makes it, defaults left out: `Knapsack(up=64)`."""
    if isinstance(value, partial):
        options = ", ".join(f"{name}={compose(option)}" for name, option in value.keywords.items())
        return f"{value.func.__name__}({options})"
    if isinstance(value, tuple | list):
        inner = ", ".join(map(compose, value))
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, type) or inspect.isroutine(value):
        return value.__name__
    if type(value).__module__ == "builtins" or isinstance(value, np.generic | np.ndarray):
        return repr(value)
    defaults = inspect.signature(type(value)).parameters
    changed = [
        f"{name}={compose(argument)}"
        for name, argument in parameters(value).items()
        if not _is_default(argument, defaults[name].default, type(value), name)
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


def _name(target: Callable) -> str:
    return f"{target.__module__}.{target.__qualname__}".removeprefix("workbench.")


def _check_description(description: Any, depth: int = 1) -> None:
    """Raise ValueError unless every part of a description can be made."""
    if depth > DEEPEST:
        raise ValueError(f"description: it is nested more than {DEEPEST} levels deep")
    if isinstance(description, list):
        for item in description:
            _check_description(item, depth + 1)
    if isinstance(description, dict):
        for item in description.values():
            _check_description(item, depth + 1)
        if "is" in description:
            _check_options(_find(description["is"]), description)


def _check_options(target: Callable, description: dict[str, Any]) -> None:
    """Raise ValueError unless the entries of a description are arguments of what it names."""
    options = {name: None for name in description if name != "is"}
    signature = inspect.signature(target)
    try:
        # A class must be complete now. A function gets the rest of its arguments when it is called.
        if isinstance(target, type):
            signature.bind(**options)
        else:
            signature.bind_partial(**options)
    except TypeError as error:
        raise ValueError(f"{description['is']}: {error}") from None


def _made(description: Any) -> Any:
    """The value of a description that has been checked."""
    if isinstance(description, list):
        # `describe` writes lists and tuples alike, so one of them has to stand for both.
        return tuple(_made(item) for item in description)
    if not isinstance(description, dict):
        return description
    options = {name: _made(item) for name, item in description.items() if name != "is"}
    if "is" not in description:
        return options
    target = _find(description["is"])
    if isinstance(target, type):
        return target(**options)
    return partial(target, **options) if options else target


def _find(name: Any) -> Any:
    """The class or function that a description names, from the modules of the slots alone.

    Nothing can be named that does more than configure a method: a class must be a slot value, a
    part of the reward, or one of `BUILDABLE_CLASSES`; a function must be one of advantages.
    """
    module, _, attribute = name.rpartition(".") if isinstance(name, str) else ("", "", "")
    if module in BUILDABLE and not attribute.startswith("_"):
        # What a module has merely imported, such as `os`, belongs to another module and is refused.
        target = vars(importlib.import_module(f"workbench.{module}")).get(attribute)
        is_own = getattr(target, "__module__", None) == f"workbench.{module}"
        if is_own and _is_buildable(target, module, name):
            return target
    raise ValueError(
        f"{shown(name)} is not a slot value of this package, so it cannot be built from the "
        "manifest; pass the object"
    )


def _is_buildable(target: Any, module: str, name: str) -> bool:
    """Whether a class or function of one of the modules configures a method."""
    from workbench.slots import Slot  # imports this module

    if isinstance(target, types.FunctionType):
        return module == "advantages"
    if not isinstance(target, type):
        return False
    return issubclass(target, Slot) or module == "rewards" or name in BUILDABLE_CLASSES


def _is_default(argument: Any, default: Any, kind: type, name: str) -> bool:
    """Whether an argument is what the constructor would take anyway."""
    if dataclasses.is_dataclass(kind):
        # A default made by a factory shows in the signature as a marker only.
        field = next(field for field in dataclasses.fields(kind) if field.name == name)
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
    try:
        return bool(argument == default)
    except ValueError:  # arrays compare element by element
        return np.array_equal(argument, default)
