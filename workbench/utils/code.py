"""The code of one's own that an object consists of: classes and functions of a notebook or script.

A manifest holds digests of it, and so do fingerprints of arms, so that an edited class is not taken
for the class as it was.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterable
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from workbench.utils.descriptions import describe, name_of

DIGITS = 16
# What Python itself keeps in a class: where it stands, and what copying and pickling have found.
OF_PYTHON = {"__slotnames__", "__firstlineno__", "__static_attributes__", "__annotations_cache__"}
SPELLED = (bytes, bytearray, complex, range, Fraction, Decimal)  # values that their text tells
PLAIN = (bool, int, float, str, list, tuple, dict, set, frozenset, deque, Enum, np.generic)
# By one of these methods patterns, frames of pandas and tensors are known.
TELLING = ("fullmatch", "to_csv", "tolist")


def digest_of(data: Any) -> str:
    """A digest of plain data."""
    text = json.dumps(data, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def own_code(value: Any) -> dict[str, str]:
    """The code of your own that an object consists of, name to text.

    Classes and functions belong to it, the functions, classes and constants that these use by name,
    and what an object or a partial function was made with. What is installed as a package, and this
    package itself, do not.
    """
    # Several lambdas have one name, as do the functions that a factory made.
    found: dict[str, list[str]] = {}
    left = [value]
    seen: dict[int, Any] = {}
    while left:
        part = left.pop()
        # Objects may hold one another.
        if id(part) in seen:
            continue
        seen[id(part)] = part  # kept, or another object could get its id
        if isinstance(part, partial):
            left += [part.func, *part.args, *part.keywords.values()]
            if _is_own(part.func):
                by_place = {f"argument {i}": value for i, value in enumerate(part.args)}
                _keep_arguments(found, part.func, {**by_place, **part.keywords})
        elif isinstance(part, list | tuple | set | frozenset | deque):
            left += part
        elif isinstance(part, dict):
            left += part.values()
        elif isinstance(part, type):
            for kind in filter(_is_own, part.__mro__):
                for name, member in vars(kind).items():
                    if name not in OF_PYTHON:
                        left.append(member)
                        full_name = f"{kind.__module__}.{kind.__qualname__}.{name}"
                        _keep_constant(found, full_name, member)
        elif isinstance(part, property):
            left += [part.fget, part.fset, part.fdel]
        elif isinstance(part, types.MethodType):
            # What a method does depends on the object that it belongs to.
            left += [part.__func__, part.__self__]
        elif isinstance(part, types.FunctionType):
            if _is_own(part):
                _keep(found, f"{part.__module__}.{part.__qualname__}", _text_of(part))
                for name, used in _used_by(part).items():
                    left.append(used)
                    _keep_constant(found, f"{part.__module__}.{name}", used)
        elif hasattr(part, "__wrapped__"):  # such as a function with functools.cache
            left.append(part.__wrapped__)
        elif type(part).__module__ != "builtins" and not isinstance(part, types.ModuleType):
            left.append(type(part))
            if _is_own(type(part)):
                _keep_arguments(found, type(part), _made_with(part))
            left += _made_with(part).values()
            left += filter(inspect.isfunction, getattr(part, "__dict__", {}).values())
    return {name: "\n".join(texts) for name, texts in found.items()}


def _made_with(value: Any) -> dict[str, Any]:
    """The constructor's arguments that an object keeps under their names, or as `_name`."""
    try:
        names = inspect.signature(type(value)).parameters
        kept = [(name, each) for name in names for each in (f"_{name}", name)]
        return {name: getattr(value, each) for name, each in kept if hasattr(value, each)}
    except (ValueError, TypeError):  # not every class tells its arguments
        return {}


def _keep_arguments(found: dict[str, list[str]], target: Any, arguments: dict[str, Any]) -> None:
    """Keep the text of what one's own class or function was called with, once for each call."""
    for name, value in arguments.items():
        full_name = f"{target.__module__}.{target.__qualname__}.{name}"
        with contextlib.suppress(ValueError, TypeError, RuntimeError):  # it cannot be described
            text = json.dumps(_content(value), sort_keys=True)
            found.setdefault(full_name, []).append(text)


def _keep(found: dict[str, list[str]], name: str, text: str) -> None:
    """Keep a text among those of its name, unless it is there."""
    texts = found.setdefault(name, [])
    if text not in texts:
        texts.append(text)


def _is_own(target: Any) -> bool:
    """Whether a class or function is the user's own: neither installed nor of this package."""
    return _is_own_module(getattr(target, "__module__", None) or "__main__")


def _is_own_module(name: str) -> bool:
    """The same of the module with this name."""
    # The module of a notebook, or of a script that `python -m` found among what is installed.
    if name == "__main__":
        return True
    top = name.partition(".")[0]
    if top in ("workbench", "builtins") or top in sys.stdlib_module_names:
        return False
    file = vars(sys.modules[name]).get("__file__") if name in sys.modules else None
    places = sysconfig.get_paths()
    return file is None or not file.startswith((places["purelib"], places["platlib"]))


def _text_of(function: types.FunctionType) -> str:
    """What a function does, as its bytecode.

    Unlike its source it is there in every session and process, also for a class that was pickled.
    """
    parts = []
    for code in _codes(function.__code__):
        constants = [_constant(each) for each in code.co_consts if not _is_code(each)]
        parts.append(f"{code.co_code.hex()} {code.co_names} {constants}")
    return "\n".join(parts)


def _is_code(value: Any) -> bool:
    return isinstance(value, types.CodeType)


def _constant(value: Any) -> str:
    """A constant of a function as text; a set has no order of its own."""
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)


def _used_by(function: types.FunctionType) -> dict[str, Any]:
    """What a function finds by name outside of itself, and the defaults of its arguments."""
    # In order, since of two pieces of code with one name, as dataclasses have, the last one counts.
    names = sorted({name for code in _codes(function.__code__) for name in code.co_names})
    used = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for module in [value for value in used.values() if isinstance(value, types.ModuleType)]:
        if _is_own_module(module.__name__):
            # Of a module only what the code names.
            found = [name for name in names if name in vars(module)]
            used |= {f"{module.__name__}.{name}": vars(module)[name] for name in found}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        # A name that is bound only later has nothing in its cell yet.
        with contextlib.suppress(ValueError):
            used[name] = cell.cell_contents
    defaults = [*enumerate(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    return used | {f"{function.__qualname__}.{name}": value for name, value in defaults}


def _codes(code: types.CodeType) -> Iterable[types.CodeType]:
    """A function's code, and that of the functions within it."""
    yield code
    for constant in code.co_consts:
        if _is_code(constant):
            yield from _codes(constant)


def _keep_constant(found: dict[str, list[str]], name: str, value: Any) -> None:
    """Keep the text of a plain value and of an object of one's own; code has a text of its own."""
    # An object of one's own is what its class and its arguments say.
    is_object = not isinstance(value, type) and not inspect.isroutine(value)
    is_plain = isinstance(value, (*PLAIN, *SPELLED, types.SimpleNamespace))
    tells = any(hasattr(type(value), method) for method in TELLING)
    if is_plain or tells or (is_object and _is_own(type(value))):
        with contextlib.suppress(ValueError, TypeError, RuntimeError):  # it cannot be described
            _keep(found, name, json.dumps(_content(value), sort_keys=True))


def _content(value: Any) -> Any:
    """What `describe` says, and what is in values of which that says the class alone, or nothing.

    It is the same in every process, so it has no addresses, and sets have an order.
    """
    if isinstance(value, list | tuple | deque):
        return [_content(each) for each in value]
    if isinstance(value, dict | types.SimpleNamespace):
        named = value if isinstance(value, dict) else vars(value)
        return {_stable(key, str(key)): _content(each) for key, each in named.items()}
    if isinstance(value, set | frozenset):
        return sorted(_stable(each, repr(each)) for each in value)
    if isinstance(value, Enum) and not isinstance(value, str | int | float):
        return [name_of(type(value)), value.name, _content(value.value)]
    if _is_own(type(value)):
        return describe(value)
    if hasattr(type(value), "fullmatch"):
        return _content([value.pattern, value.flags])
    if hasattr(type(value), "to_csv"):
        return value.to_csv()
    if hasattr(type(value), "tolist"):
        return value.tolist()
    return repr(value) if isinstance(value, SPELLED) else describe(value)


def _stable(value: Any, text: str) -> str:
    """The text of a key or an element, or its content where the text differs between processes."""
    return str(_content(value)) if " at 0x" in text or "frozenset({" in text else text
