"""Bounds of arguments, declared with the argument's type and checked by one function.

    @dataclass(frozen=True)
    class Longest(Slot):
        m: Count
        share: Share = 0.5
        rule: Annotated[str, choice("mean", "median")] = "mean"

A bound is a function of a name and a value that raises ValueError for a value that is not allowed,
such as those of `workbench.utils.validation`. Every dataclass that derives from `slots.Slot` is
checked when it is made; any other dataclass calls `check_arguments(self)`. An argument with a plain
type is taken as it is.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from workbench.utils.validation import (
    brief,
    instance_of,
    is_number,
    number,
    one_of,
    whole_number,
)

Bound = Callable[[str, Any], None]


def at_least(low: int) -> Bound:
    """The bound of whole numbers from `low` on."""
    return partial(whole_number, low=low)


def choice(*allowed: Any) -> Bound:
    """The bound that a value is one of `allowed`."""
    return partial(one_of, allowed=allowed)


def of_kind(kind: type, example: str) -> Bound:
    """The bound of objects of a class; `example` is an expression that makes one."""
    return partial(instance_of, kinds=kind, example=example)


def pair(name: str, value: Any, *, rising: bool = False, **limits: float) -> None:
    """The bound of two numbers, the lower one first where they have to rise.

    `limits` are those of `validation.number`.
    """
    is_pair = isinstance(value, tuple | list) and len(value) == 2 and all(map(is_number, value))
    if not is_pair or (rising and value[0] >= value[1]):
        order = ", the lower one first," if rising else ""
        raise ValueError(f"{name}={brief(value)}: two numbers{order} are needed")
    for each in value:
        number(name, each, **limits)


Count = Annotated[int, at_least(1)]
CountOrZero = Annotated[int, at_least(0)]
Share = Annotated[float, partial(number, low=0, high=1)]
ShareAboveZero = Annotated[float, partial(number, above=0, high=1)]
Positive = Annotated[float, partial(number, above=0)]
PositiveOrZero = Annotated[float, partial(number, low=0)]
Interval = Annotated[tuple[float, float], partial(pair, rising=True, low=0, high=1)]
Flag = Annotated[bool, choice(True, False)]


def check_arguments(value: Any) -> None:
    """Raise ValueError for an argument of a dataclass that the bound of its field does not allow.

    None passes where the field's type has it: `capacity: Count | None`.

    Examples
    --------
    >>> @dataclasses.dataclass
    ... class Kept:
    ...     m: Count
    >>> check_arguments(Kept(0))
    Traceback (most recent call last):
    ValueError: m=0: a whole number of at least 1 is needed
    """
    for name, bound, may_be_none in _declared(value.__class__):
        argument = getattr(value, name)
        if argument is not None or not may_be_none:
            bound(name, argument)


@functools.cache
def _declared(kind: type) -> list[tuple[str, Bound, bool]]:
    """The name and the bound of every argument that has one, and whether it may be None."""
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError:
        # A type that is known to type checkers alone, which a class of somebody else may have.
        return []
    declared = []
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        members = typing.get_args(hint) if is_union else (hint,)
        annotated = [member for member in members if typing.get_origin(member) is Annotated]
        bounds = [bound for member in annotated for bound in member.__metadata__ if field.init]
        declared += [(field.name, bound, types.NoneType in members) for bound in bounds]
    return declared
