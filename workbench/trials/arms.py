"""Arms: the methods of a comparison.

An arm is a `Method`, the name of one, "module:function", or a class, function or object that you
wrote in a notebook.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from workbench import config
from workbench.methods import Method
from workbench.slots import Slot
from workbench.trials.fingerprints import Pickle, fingerprint, pickle_object
from workbench.utils.labels import check_label
from workbench.utils.validation import brief, did_you_mean


@dataclass(frozen=True)
class Arm:
    """A method in a comparison.

    Attributes
    ----------
    label : str
        How it is called in tables: any text of one line.
    method : Method
    """

    label: str
    method: Method

    @property
    def fingerprint(self) -> str:
        """A digest of what the method decides; its name is no part of it."""
        return fingerprint(self.method.but(name="arm"))

    def pickle(self) -> Pickle:
        """The method as it goes to a worker; ValueError where it cannot."""
        return pickle_object(f"arm {self.label!r}", self.method, fingerprint(self.method))


def make_arms(given: Any, against: Any = "grpo") -> list[Arm]:
    """The arms of a comparison, the baseline first.

    Parameters
    ----------
    given : arm, list of arms, or dict from label to arm
        Each of them as `as_method` takes it.
    against : arm
        The baseline.

    Raises
    ------
    ValueError
        For what is no method, and for a label that stands twice or is no text of one line.

    Examples
    --------
    >>> [arm.label for arm in make_arms(["pods", "ar3po"])]
    ['grpo', 'pods', 'ar3po']
    """
    baseline = as_method(against)
    made = [Arm(_label_of(against, baseline), baseline), *named(given, baseline)]
    if len(made) == 1:
        raise ValueError("arms: at least one is needed")
    labels = [arm.label for arm in made]
    for label in labels:
        check_label(label)
        if labels.count(label) > 1:
            raise ValueError(
                f"arms: two are called {label!r}, counting the baseline; name each method once, or "
                "give labels in Python, by a dict from label to arm"
            )
    return made


def named(given: Any, base: Method | None = None) -> list[Arm]:
    """Arms by the labels that they have, or else by the names that they were given by."""
    if not isinstance(given, list | tuple | Mapping):
        given = [given]
    pairs = given.items() if isinstance(given, Mapping) else [(None, arm) for arm in given]
    made = [(label, value, as_method(value, base)) for label, value in pairs]
    return [
        Arm(_label_of(value, method) if label is None else label, method)
        for label, value, method in made
    ]


def as_method(value: Any, base: Method | None = None) -> Method:
    """The method that somebody means.

    Parameters
    ----------
    value
        A `Method`; the name of one in `workbench.methods`; "module:function", which is imported;
        a value of a slot, which takes its place in `base`; or a class or a function without
        arguments that makes any of these.
    base : Method, optional
        None for GRPO.

    Examples
    --------
    >>> from workbench import selectors
    >>> as_method(selectors.MaxVariance(4)).name
    'MaxVariance'
    """
    if isinstance(value, Method):
        return value
    if isinstance(value, str):
        if ":" not in value:
            return config.method(value)
        return as_method(import_name(value), base)
    if isinstance(value, Slot):
        slot = _slot_of(value)
        base = base or config.method("grpo")
        return base.but(name=type(value).__name__, **{slot: value})
    if isinstance(value, type | types.FunctionType | partial):
        try:
            inspect.signature(value).bind()
        except TypeError as error:
            raise ValueError(f"arm {brief(value)}: {error}; give what it makes") from None
        return as_method(value(), base)
    raise ValueError(
        f"arm {brief(value)}: a Method, the name of one, 'module:function', or a slot value such "
        "as MySelector() is needed"
    )


def _label_of(value: Any, method: Method) -> str:
    """What an arm is called where nobody says: after the name that it was given by."""
    if isinstance(value, str):
        return value.partition(":")[2] or value
    if isinstance(value, type | types.FunctionType):
        return value.__name__
    return method.name


def import_name(name: str) -> Any:
    """What stands in a module under a name; this runs the code of the module.

    Parameters
    ----------
    name : str
        "module:function", found as Python finds modules: installed, or in the working directory.
    """
    module_name, _, attribute = name.partition(":")
    # The script `workbench` begins its search at its own directory, `python -m` at this one.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = vars(importlib.import_module(module_name))
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{name!r}: there is no module {error.name}; it is looked for among what is installed "
            "and in the working directory"
        ) from None
    if attribute not in found:
        nearest = did_you_mean(attribute, found)
        raise ValueError(f"{name!r}: {module_name} has no {attribute}{nearest}")
    return found[attribute]


def _slot_of(value: Slot) -> str:
    """The one slot that a value is made for."""
    slots = config.slots_for(value)
    if len(slots) != 1:
        found = " and ".join(slots) or "none"
        raise ValueError(
            f"arm {brief(value)}: it must fit one slot, and it fits {found}; give a Method, as in "
            "methods.grpo().but(selector=...)"
        )
    return slots[0]
