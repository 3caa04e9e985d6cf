"""Methods and labs by name, with arguments of plain data.

This is what the command line, a grid of runs and the parameters of a notebook can say. Names are
looked up and data is data: nothing that is written there is ever evaluated as code.

    named.method("knapsack", {"n": 16}, {"selector": "MaxVariance", "selector.m": 8})
    named.lab("tiny", {"pool": 512})

A *setting* changes a slot of the method. Its name is a dotted path, `selector.m` or
`allocator.rates.kind`. Its value is plain data, or the name of a slot's class, which stands for an
object of it: the settings below that path are then the constructor's arguments.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from workbench.utils.names import LABS, MORE_PAPERS, PAPERS, SLOTS
from workbench.utils.validation import did_you_mean, one_of, shown, unknown_argument

if TYPE_CHECKING:
    from workbench.labs import Lab
    from workbench.methods import Method

VALUE = None  # the key under which a node of the tree of settings keeps its own value


def method(
    name: str,
    arguments: Mapping[str, Any] | str | None = None,
    settings: Mapping[str, Any] | str | None = None,
) -> Method:
    """The method of that name.

    Parameters
    ----------
    name : str
        One of `methods.PAPERS` or `methods.MORE_PAPERS`.
    arguments : dict or JSON text, optional
        Of the function of that name in `workbench.methods`. Dotted names and those of slots are
        settings.
    settings : dict or JSON text, optional
        Changes of its slots, see the top of this module.

    Raises
    ------
    ValueError
        For a name that does not exist, with the closest one that does.

    Examples
    --------
    >>> method("pods", {"n": 32, "m": 8}, {"selector.baseline": "group"}).selector
    MaxVariance(m=8, baseline='group')
    >>> method("grpo", settings={"replay": "CorrectResponses"}).replay
    CorrectResponses(mode='stop-gradient', capacity=None)
    """
    one_of("method", name, (*PAPERS, *MORE_PAPERS))
    # Imported after the check of the name, so that a misspelt one is refused without loading torch.
    from workbench import methods

    function = getattr(methods, name)
    own: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    known = _arguments(function)
    for key, value in mapping("arguments", arguments).items():
        if "." in key or key in SLOTS:
            changes[key] = value
        elif key in known:
            own[key] = value
        else:
            # A plain name may have been meant for a slot.
            raise unknown_argument(key, name, [*known, *SLOTS])
    made: Method = call(function, own)
    slots = made.slots()
    for slot, node in _tree({**changes, **mapping("settings", settings)}).items():
        if slot not in slots:
            raise ValueError(
                f"{slot}: a method has no such slot; there are "
                f"{', '.join(SLOTS)}{did_you_mean(slot, slots)}"
            )
        made = made.but(**{slot: _changed(slots[slot], node, slot)})
    return made


def lab(name: str = "tiny", arguments: Mapping[str, Any] | str | None = None) -> Lab:
    """The lab of that name.

    Parameters
    ----------
    name : {"tiny", "transformers", "unsloth"}
    arguments : dict or JSON text, optional
        Of the function of that name in `workbench.labs`. Problems and held-out problems are a
        `Pool`, or the "family" of `workbench.problems` that makes them and its arguments; sampling
        and verifier are the arguments of `Sampling` and of `Math`.

    Examples
    --------
    >>> len(lab("tiny", {"base": "clean", "pool": 64}).problems)
    64
    """
    one_of("lab", name, LABS)
    from workbench import labs, problems
    from workbench.policies import Sampling
    from workbench.verifiers import Math

    # JSON has plain data where the functions take objects, so these are made first.
    chosen = dict(mapping("lab", arguments))
    for which in ("problems", "held_out"):
        if isinstance(chosen.get(which), Mapping):
            chosen[which] = problems.from_config(chosen[which])
    if isinstance(chosen.get("sampling"), Mapping):
        chosen["sampling"] = call(Sampling, chosen["sampling"])
    if isinstance(chosen.get("verifier"), Mapping):
        chosen["verifier"] = call(Math, chosen["verifier"])
    return call(getattr(labs, name), chosen)


def call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """function(**arguments); ValueError for an argument that it does not have, or that it needs."""
    known = _arguments(function)
    for name in arguments:
        if name not in known:
            raise unknown_argument(name, function.__name__, known)
    for name, parameter in inspect.signature(function).parameters.items():
        optional = (
            parameter.default is not parameter.empty or parameter.kind is parameter.VAR_KEYWORD
        )
        if name not in arguments and not optional:
            raise ValueError(f"{function.__name__} needs the argument {name}")
    return function(**{name: _plain(value) for name, value in arguments.items()})


def mapping(name: str, value: Mapping[str, Any] | str | None) -> Mapping[str, Any]:
    """A mapping from names to data, read from JSON if it is a text; empty for None and ""."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"{name}={shown(value)}: this is no JSON: {error}") from None
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f'{name}={shown(value)}: names and values are needed, as {{"n": 8}}')
    return value


# Settings


def _tree(settings: Mapping[str, Any]) -> dict[Any, Any]:
    """Dotted paths as nested dicts; what a path is set to stands under `VALUE` of its node."""
    tree: dict[Any, Any] = {}
    for path, value in settings.items():
        node = tree
        for name in path.split("."):
            if not name:
                raise ValueError(
                    f"{path!r}: a slot and its argument are needed, such as selector.m"
                )
            node = node.setdefault(name, {})
        node[VALUE] = value
    return tree


def _changed(part: Any, node: Mapping[Any, Any], where: str) -> Any:
    """A part of a method with the changes of its node; `where` is its path, for messages."""
    inner = {name: child for name, child in node.items() if name is not VALUE}
    # Only settings below this path: the part stays, and some of its arguments change.
    if VALUE not in node:
        return _with_arguments(part, inner, where)
    # The path itself is set: to the name of a class, or to plain data further down.
    kind = _slot_class(node[VALUE])
    if kind is not None:
        return _made(kind, inner, where)
    # No slot takes a plain text, so this was meant to be the name of a class.
    if where in SLOTS and isinstance(node[VALUE], str):
        raise ValueError(
            f"{where}={node[VALUE]!r}: no value of a slot has this name"
            f"{did_you_mean(node[VALUE], _slot_classes())}"
        )
    value = _plain(node[VALUE])
    return _with_arguments(value, inner, where) if inner else value


def _made(kind: type, inner: Mapping[str, Any], where: str) -> Any:
    """An object of a slot's class; `inner` has a node for each argument that is given."""
    known = _arguments(kind)
    _check_known(inner, known, kind.__name__, where)
    signature = inspect.signature(kind).parameters
    # Found here rather than by the constructor, so that the message can name the missing setting.
    for name, parameter in signature.items():
        if parameter.default is parameter.empty and name not in inner:
            raise ValueError(f"{where}={kind.__name__}: set {where}.{name} as well")
    arguments = {
        name: _changed(signature[name].default, child, f"{where}.{name}")
        for name, child in inner.items()
    }
    return kind(**arguments)


def _with_arguments(part: Any, inner: Mapping[str, Any], where: str) -> Any:
    """The same part with other arguments; of a tuple, the same parts with one of them changed."""
    # The reward is a tuple of parts, which settings tell apart by their names.
    if isinstance(part, tuple):
        named = {value.name: value for value in part if not _is_plain(value)}
        _check_known(inner, named, "these parts", where)
        return tuple(
            _changed(value, inner[name], f"{where}.{name}") if name in inner else value
            for name, value in named.items()
        )
    arguments = {} if _is_plain(part) else _parameters(part)
    _check_known(inner, arguments, _kind_name(part), where)
    # A new object, so that its constructor checks the changed arguments as it does any others.
    changed = {
        name: _changed(arguments[name], child, f"{where}.{name}") for name, child in inner.items()
    }
    return type(part)(**{**arguments, **changed})


def _plain(value: Any) -> Any:
    """Data as configurations hold it: lists become tuples, and names of slots' classes objects."""
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    kind = _slot_class(value)
    return value if kind is None else _made(kind, {}, kind.__name__)


def _slot_classes() -> dict[str, type]:
    """The classes that a description may name, see `utils.descriptions.BUILDABLE`."""
    from workbench.utils.descriptions import BUILDABLE

    classes = {}
    for name in BUILDABLE:
        module = importlib.import_module(f"workbench.{name}")
        for attribute, value in vars(module).items():
            # A class that a module only imports belongs to the module that defines it.
            public = isinstance(value, type) and not attribute.startswith("_")
            if public and value.__module__ == module.__name__:
                classes[attribute] = value
    return classes


def _slot_class(value: Any) -> type | None:
    """The slot's class of that name; None for every other value."""
    # All class names begin with a capital letter and no option does, so most texts are done here.
    if not isinstance(value, str) or not value[:1].isupper():
        return None
    return _slot_classes().get(value)


def _arguments(function: Callable[..., Any]) -> list[str]:
    """Names of the arguments; in place of a catch-all those of the class that takes them."""
    names: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            names += inspect.signature(_passed_on_to(function, name)).parameters
        else:
            names.append(name)
    return list(dict.fromkeys(names))


def _passed_on_to(function: Callable[..., Any], catch_all: str) -> type:
    from workbench import labs

    if function is labs.transformers:
        return labs.TransformersConfig
    if function is labs.unsloth:
        return labs.UnslothConfig
    # A method's catch-all is called after a slot, or after what stands in it.
    slot = {"scheduler": "selector", "buckets": "replay"}.get(catch_all, catch_all)
    # The method is made with its defaults, only to see of which class the slot's value is.
    return type(function().slots()[slot])


def _parameters(part: Any) -> dict[str, Any]:
    from workbench.utils.descriptions import parameters

    return parameters(part)


def _is_plain(value: Any) -> bool:
    """Whether a value is data, which has no arguments to set."""
    return type(value).__module__ == "builtins"


def _kind_name(part: Any) -> str:
    return "an empty slot" if part is None else type(part).__name__


def _check_known(names: Iterable[str], known: Iterable[str], kind: str, where: str) -> None:
    for name in names:
        if name not in known:
            raise unknown_argument(name, kind, known, f"{where}.")
