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

    Attributes
    ----------
    name : str
    known : tuple of str
        The arguments that there are.
    """

    name: str = ""
    known: tuple[str, ...] = ()


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
    # A name that comes twice, as an argument and as one that is passed on, is said once.
    known = list(dict.fromkeys(known))
    there = f"there are {', '.join(known)}{did_you_mean(name, known)}" if known else "it takes none"
    error = UnknownArgument(f"{path}{name}: no argument of {what}; {there}")
    error.name = f"{path}{name}"
    error.known = tuple(known)
    return error


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
    named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
    known = [each.name for each in named if each.name != "self"]

    @functools.wraps(function)
    def passing(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except UnknownArgument as error:
            if error.name not in kwargs:
                raise
            # What it was passed on to knows nothing of this function's own arguments.
            raise unknown_argument(error.name, what, [*known, *error.known]) from None

    if len(named) < len(parameters):
        return passing

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in known:
                raise unknown_argument(name, what, known)
        return function(*args, **kwargs)

    return checked
