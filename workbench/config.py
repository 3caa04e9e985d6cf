"""From data to objects: methods, labs and pools of a manifest, a grid or the command line.

Data may be a stranger's. So everything in it is looked up by name, nothing is evaluated as code,
and all of a description is checked before any part of it is made.

    config.method("knapsack", {"n": 16}, {"selector": "MaxVariance", "selector.m": 8})
    config.lab("tiny", {"pool": 512})
    config.rebuild({"is": "selectors.MaxVariance", "m": 8})

A *description* is what `utils.descriptions.describe` makes of an object, and `rebuild` makes the
object again. A *setting* changes a slot of a method. Its name is a dotted path, `selector.m` or
`allocator.rates.kind`. Its value is plain data, or the name of a slot's class, which stands for an
object of it: the settings below that path are then the constructor's arguments.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import chain
from typing import Any

from workbench import labs, methods, problems
from workbench.labs import Lab
from workbench.methods import LEARNING_SLOTS, Method
from workbench.objectives import Objective
from workbench.policies import Sampling, checks
from workbench.policies.settings import TransformersConfig, UnslothConfig
from workbench.policies.stress import Stress
from workbench.pools import Pool, Stream
from workbench.rules import advantages, rewards
from workbench.slots import Slot
from workbench.utils.descriptions import defaults, describe, name_of
from workbench.utils.names import SLOTS, catalogue, methods_of_packages
from workbench.utils.validation import brief, did_you_mean, instance_of, one_of, unknown_argument
from workbench.verifiers import Math

# Entries in the config of a pool that are no arguments of its family's function.
NOT_ARGUMENTS = ("family", "left_out", "repository")
# Tasks of reasoning-gym that data must not name: the first executes snippets of code, the second is
# made of any other tasks.
REFUSED_TASKS = ("codeio", "composite")
# reasoning-gym evaluates some of the expressions that it composes from options. Without brackets
# and quotes an expression cannot call anything.
HARMLESS_TEXT = re.compile(r"[\w +*/.,:<>=-]*")
# The options of `peft.LoraConfig` that data may set. Others name modules to import.
LORA_OPTIONS = (*checks.SERVED, *checks.SERVED_MERGED, "modules_to_save", "use_dora")
# These two labs pass what they do not name on to the settings of their model.
SETTINGS_OF = {labs.transformers: TransformersConfig, labs.unsloth: UnslothConfig}


# Methods


def method(
    name: str,
    arguments: Mapping[str, Any] | str | None = None,
    settings: Mapping[str, Any] | str | None = None,
) -> Method:
    """The method of that name.

    Parameters
    ----------
    name : str
        See `methods.entry`.
    arguments : dict or JSON text, optional
        Of the function that is registered under that name. Dotted names and those of slots are
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
    function = methods.entry(name).make
    own: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    for key, value in mapping("arguments", arguments).items():
        is_setting = "." in key or key in SLOTS
        (changes if is_setting else own)[key] = value
    # A plain name may have been meant for a slot, so these are named as well.
    _check_names(own, function, further=SLOTS)
    made: Method = function(**{key: rebuild(_data(value)) for key, value in own.items()})
    instance_of(f"method={name!r}", made, Method, "a function that returns a Method")
    changes |= mapping("settings", settings)
    if not changes:
        return made
    description = describe(made)
    # A slot before its arguments, in whichever order they are given.
    for path in sorted(changes, key=lambda path: path.count(".")):
        _set(description, path, changes[path])
    return rebuild(description)


def rebuild(description: Any, path: str = "") -> Any:
    """The value that `describe` described.

    Every name must be one of a slot value of this package, and every option an argument of what is
    named. Parts are made before what holds them is checked. Their constructors only keep settings,
    but for those that read a file of old answers, which must be an ordinary one.

    Parameters
    ----------
    description : plain data
    path : str
        Where it stands in a larger one, for messages.

    Raises
    ------
    ValueError
        For any other name, for options that do not fit, and for what a constructor refuses.
    """
    if isinstance(description, list | tuple):
        # `describe` writes lists and tuples alike, so one of them has to stand for both.
        return tuple(rebuild(item, path) for item in description)
    if not isinstance(description, dict):
        return description
    options = {name: rebuild(item, f"{path}{name}.") for name, item in description.items()}
    if "is" not in description:
        return options
    target = _target(options.pop("is"))
    # A class must be complete now. A function gets its other arguments when it is called.
    if isinstance(target, type):
        _check_arguments(options, target, path)
        return target(**options)
    _check_names(options, target, path)
    return partial(target, **options) if options else target


def mapping(name: str, value: Mapping[str, Any] | str | None) -> Mapping[str, Any]:
    """A mapping from names to data, read from JSON if it is a text; empty for None and ""."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"{name}={brief(value)}: this is no JSON: {error}") from None
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f'{name}={brief(value)}: names and values are needed, as {{"n": 8}}')
    return value


def slots_for(value: Any) -> list[str]:
    """The slots that a value can fill, by the methods that it has.

    Examples
    --------
    >>> slots_for(methods.pods(8, 4).selector)
    ['selector']
    """
    # Not by `getattr`, which finds a `__call__` for every class: that of its metaclass.
    actions = {name for kind in type(value).__mro__ for name in vars(kind)}
    return [slot for slot, (action, _) in LEARNING_SLOTS.items() if action in actions]


# Labs


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
    one_of("lab", name, labs.LABS)
    function = getattr(labs, name)
    chosen = dict(mapping("lab", arguments))
    # Every lab has conditions that make training in it harder, see `Lab.stressed`.
    stress = mapping("stress", chosen.pop("stress", {}))
    _check_arguments(stress, Stress, "stress.")
    _check_arguments(chosen, function)
    # JSON has plain data where the functions take objects. All of it is checked before the first
    # pool is made, which may read files or call other packages.
    for part, kind in (("sampling", Sampling), ("verifier", Math)):
        if isinstance(chosen.get(part), Mapping):
            _check_arguments(chosen[part], kind, f"{part}.")
            chosen[part] = _call(kind, chosen[part])
    if isinstance(chosen.get("lora"), Mapping):
        for option in chosen["lora"]:
            one_of("lora", option, LORA_OPTIONS)
    pools = [part for part in ("problems", "held_out") if isinstance(chosen.get(part), Mapping)]
    for part in pools:
        check_pool(chosen[part])
    made = _call(function, chosen | {part: pool(chosen[part]) for part in pools})
    return made.stressed(**stress) if stress else made


def recorded_lab(config: Mapping[str, Any]) -> Lab:
    """The lab that a manifest describes.

    Raises
    ------
    ValueError
        For a lab that only the caller's own code can make, and for anything unknown in it.
    """
    name = config.get("lab")
    # A lab of the caller's own says so. Earlier versions recorded its name alone, hence the length.
    if name not in labs.LABS or "own" in config or len(config) == 1:
        raise ValueError("its problems, verifier or model were made by code of the caller's own")
    options = {option: value for option, value in config.items() if option != "lab"}
    if name == "tiny":
        # Records of versions without this option shared nothing.
        options = {"share_prefixes": False, **options}
    return lab(name, options)


def pool(config: Any) -> Pool | Stream:
    """The pool or stream that a `config` describes.

    Raises
    ------
    ValueError
        For what `check_pool` refuses, and for wrong arguments.
    """
    options = check_pool(config)
    return _call(problems.FAMILIES[config["family"]], options)


def check_pool(config: Any) -> dict[str, Any]:
    """Raise ValueError for a `config` that names anything but problems of the known families.

    It may come from a stranger's manifest, so nothing in it may lead to code being run. Returned
    are the arguments of the family's function.
    """
    if not isinstance(config, Mapping):
        raise ValueError(f"problems: {brief(config)}; an object with a family is needed")
    one_of("family", config.get("family"), problems.FAMILIES)
    options = {name: value for name, value in config.items() if name not in NOT_ARGUMENTS}
    if options.get("verifier") is not None:
        raise ValueError("verifier: only code can make one, and this is data")
    if config["family"] != "reasoning_gym":
        _check_arguments(options, problems.FAMILIES[config["family"]])
        return options
    task = options.get("name")
    if not isinstance(task, str) or task in REFUSED_TASKS:
        raise ValueError(f"name={brief(task)}: this task cannot be made from data")
    for name, value in options.items():
        # The instruction is only appended to the question. The others are checked by the function.
        if name not in ("instruction", "n", "seed"):
            _check_harmless(name, value)
    return options


# Names and arguments


def _check_names(
    names: Iterable[str], function: Any, path: str = "", further: Iterable[str] = ()
) -> None:
    """ValueError for a name that is no argument of a function or class, and none of `further`."""
    parameters = inspect.signature(function).parameters
    known = [name for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD]
    if function in SETTINGS_OF:
        known += inspect.signature(SETTINGS_OF[function]).parameters
    elif len(known) < len(parameters):
        return  # a function of a package with **options checks their names itself
    known += further
    for name in names:
        if name not in known:
            raise unknown_argument(name, brief(function), known, path)


def _check_arguments(given: Mapping[str, Any], function: Any, path: str = "") -> None:
    """ValueError unless a function or class has these arguments, and needs no others."""
    _check_names(given, function, path)
    for name, each in inspect.signature(function).parameters.items():
        is_needed = each.default is each.empty and each.kind is not each.VAR_KEYWORD
        if is_needed and name not in given:
            raise ValueError(f"{path}{name}: {brief(function)} needs this argument")


def _call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """function(**arguments), with tuples in place of the lists that JSON has made of them."""
    tuples = {name: tuple(value) for name, value in arguments.items() if isinstance(value, list)}
    return function(**{**arguments, **tuples})


def _check_harmless(option: str, value: Any) -> None:
    """ValueError unless an option of a task is a number, a text without brackets and quotes, or a
    list of these.
    """
    if isinstance(value, list | tuple):
        for item in value:
            _check_harmless(option, item)
        return
    is_text = isinstance(value, str) and HARMLESS_TEXT.fullmatch(value)
    if not is_text and not isinstance(value, int | float | None):
        raise ValueError(
            f"{option}={brief(value)}: data can give texts of letters, digits and signs, numbers, "
            "and lists of them"
        )


# Descriptions


@cache
def _buildable() -> dict[str, Any]:
    """Everything of this package that a description may name: "selectors.MaxVariance" -> the class.

    These are all slot values, the parts of the reward, the functions of advantages, and the classes
    of a method and its objective.
    """
    functions = chain(*(_own(file, types.FunctionType) for file in (advantages, *catalogue())))
    of_groups = [each for each in functions if "groups" in inspect.signature(each).parameters]
    named = [Method, Objective, *_own(rewards, type), *of_groups, *_subclasses(Slot)]
    return {
        name_of(value): value
        for value in named
        if value.__module__.startswith("workbench.") and not value.__name__.startswith("_")
    }


def _own(module: types.ModuleType, kind: type) -> list[Any]:
    """What a module itself defines of a kind, and has not merely imported."""
    values = vars(module).values()
    return [v for v in values if isinstance(v, kind) and v.__module__ == module.__name__]


def _subclasses(kind: type) -> Iterator[type]:
    each: type
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


@cache
def _buildable_of_packages() -> dict[str, type]:
    """The same of installed packages: "mine.Shortest" -> the class.

    These are the slot values and parts of the reward in the modules that the entry points name, as
    far as they belong to the same package. Data leads to no other module, and imports none.
    """
    found = {}
    for entry in methods_of_packages().values():
        module = sys.modules[entry.load().__module__]
        package = module.__name__.partition(".")[0]
        for value in vars(module).values():
            is_own = isinstance(value, type) and value.__module__.partition(".")[0] == package
            is_reward = hasattr(value, "name") and hasattr(value, "weight")
            if is_own and (issubclass(value, Slot) or is_reward):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


@cache
def _class_names() -> dict[str, str]:
    """The names that settings give to the classes: "MaxVariance" -> "selectors.MaxVariance"."""
    known = _buildable_of_packages() | _buildable()
    return {kind.__name__: name for name, kind in known.items() if isinstance(kind, type)}


def _target(name: Any) -> Any:
    """The class or function that a description names."""
    known = _buildable_of_packages() | _buildable()
    if isinstance(name, str) and name in known:
        return known[name]
    raise ValueError(
        f"{brief(name)} is not a slot value of this package or of one that brings methods, so it "
        "cannot be built from data; pass the object"
    )


# Settings


def _set(description: dict[str, Any], path: str, value: Any) -> None:
    """Change one place of a method's description."""
    names = path.split(".")
    if not all(names):
        raise ValueError(f"{path!r}: a slot and its argument are needed, such as selector.m")
    if names[0] not in SLOTS:
        raise unknown_argument(names[0], "a method", SLOTS)
    # No slot takes a plain text, so this was meant to be the name of a class.
    if len(names) == 1 and isinstance(value, str) and value not in _class_names():
        raise ValueError(
            f"{path}={brief(value)}: no value of a slot has this name"
            f"{did_you_mean(value, _class_names())}"
        )
    part: Any = description
    for depth, name in enumerate(names[:-1]):
        part = part[_place(part, name, names[:depth])]
    part[_place(part, names[-1], names[:-1])] = _data(value)


def _place(part: Any, name: str, outer: list[str]) -> Any:
    """The key or the index under which a part of a description has an argument of this name.

    `outer` is the path of the part, for messages.
    """
    path = "".join(f"{each}." for each in outer)
    if isinstance(part, list):
        # The reward is a list of parts, which settings tell apart by their names.
        names = [getattr(rebuild(each), "name", "") for each in part]
        if name not in names:
            raise unknown_argument(name, "these parts", names, path)
        return names.index(name)
    if not isinstance(part, dict) or "is" not in part:
        raise unknown_argument(name, "an empty slot" if part is None else brief(part), (), path)
    target = _target(part["is"])
    _check_names([name], target, path)
    # An object that was only named has its defaults, until they are changed.
    part.setdefault(name, describe(defaults(target).get(name)))
    return name


def _data(value: Any) -> Any:
    """A value of a setting as a description: names of classes become descriptions of objects."""
    if isinstance(value, list | tuple):
        return [_data(item) for item in value]
    if isinstance(value, dict):
        return {name: _data(item) for name, item in value.items()}
    if isinstance(value, str) and value in _class_names():
        return {"is": _class_names()[value]}
    return value
