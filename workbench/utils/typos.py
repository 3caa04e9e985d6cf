"""Answers to misspelt names: of what a module has, and of the arguments that it takes.

Python 3.11 and 3.12 say of a wrong argument only that it was unexpected. A module that calls
`explain_typos` at its end says what there is instead, as the command line does.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from workbench.utils.validation import did_you_mean


class UnknownArgument(TypeError, ValueError):
    """An argument that a function or a class does not have.

    A TypeError as Python's own, and a ValueError as every wrong argument of this package.
    """


def explain_typos(module_name: str, functions: bool = False) -> None:
    """Let a module answer a wrong name, or a wrong argument of its classes, with what there is.

    Parameters
    ----------
    module_name : str
        `__name__` of the module, which calls this at its end.
    functions : bool
        Whether the module's public functions answer wrong arguments too. For those that make a
        method or a lab; functions of arrays are left as they are.
    """
    module = sys.modules[module_name]
    # Set from here and not defined in the module, since type checkers would take any name of a
    # module that defines it for one that exists.
    module.__getattr__ = functools.partial(_missing, module)  # type: ignore[method-assign]
    for name, value in list(vars(module).items()):
        is_own = getattr(value, "__module__", None) == module_name
        if name.startswith("_") or not is_own:
            continue
        if isinstance(value, type):
            # A class without a constructor of its own has that of its base, which is explained
            # where it is defined.
            if "__init__" in vars(value):
                value.__init__ = _explained(value.__init__, value.__name__)  # type: ignore[misc]
        elif functions and inspect.isfunction(value):
            setattr(module, name, _explained(value, name))


def unknown_argument(name: str, what: str, known: Iterable[str], path: str = "") -> UnknownArgument:
    """The error for an argument that `what` does not have, with those that it has.

    `path` stands before the name where that is a part of a longer one, such as "selector.".

    Examples
    --------
    >>> print(unknown_argument("nn", "pods", ["n", "m"]))
    nn: no argument of pods; there are n, m; did you mean 'n'?
    >>> print(unknown_argument("n", "All", []))
    n: no argument of All; it takes none
    """
    known = list(known)
    if not known:
        return UnknownArgument(f"{path}{name}: no argument of {what}; it takes none")
    there = f"there are {', '.join(known)}{did_you_mean(name, known)}"
    return UnknownArgument(f"{path}{name}: no argument of {what}; {there}")


def _missing(module: ModuleType, name: str) -> Any:
    """For a module's `__getattr__`: AttributeError with the closest public name."""
    public = vars(module).get("__all__") or [
        each
        for each, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and not each.startswith("_")
    ]
    hint = "" if name.startswith("_") else did_you_mean(name, public)
    raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}{hint}")


def _explained(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """The same function, which names its arguments when it is called with another."""
    parameters = inspect.signature(function).parameters.values()
    # A function that takes any argument passes it on to something that answers for it.
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return function
    known = [each.name for each in parameters if each.name != "self"]

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in known:
                raise unknown_argument(name, what, known)
        return function(*args, **kwargs)

    return checked
