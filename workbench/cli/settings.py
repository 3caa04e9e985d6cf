"""NAME=VALUE pairs of the command line: arguments of a method or lab, and of a method's slots."""

import ast
import dataclasses
import difflib
import inspect
from functools import partial

METHODS = ("grpo", "dapo", "gspo", "dr_grpo", "pods", "ar3po", "knapsack", "aero", "cbs")
"""`methods.PAPERS`, named here as well because importing that module takes seconds."""

WORDS = {"true": True, "false": False, "none": None, "null": None}


def pairs(options):
    """NAME=VALUE texts as a dict; values are Python literals, true, false and none in any case, anything else is text."""
    found = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise ValueError(f"{option!r}: NAME=VALUE is needed")
        found[name] = _value(value)
    return found


def method(name, settings):
    """The method of that name; `settings` are its arguments and, as SLOT.ARGUMENT, those of its slots."""
    if name not in METHODS:
        raise ValueError(f"method {name!r}: {_near(name, METHODS)}")
    from workbench import methods

    dotted = {path: value for path, value in settings.items() if "." in path}
    made = call(getattr(methods, name), {k: v for k, v in settings.items() if k not in dotted})
    for path, value in dotted.items():
        slot, *rest = path.split(".")
        if slot not in made.slots():
            raise ValueError(f"{path}: no slot {slot!r}; {_near(slot, made.slots())}")
        made = made.but(**{slot: _changed(getattr(made, slot), rest, value, slot)})
    return made


def call(function, settings):
    """function(**settings); ValueError for an argument that it does not have."""
    known = _arguments(function)
    for name in settings:
        if name not in known:
            raise ValueError(f"{name}: no argument of {function.__name__}; {_near(name, known)}")
    return function(**settings)


def _value(text):
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _arguments(function):
    """Names of a method's or lab's arguments; those passed on belong to the class that the catch-all is named after."""
    from workbench.objectives import Objective
    from workbench.scheduler import Scheduler

    names = []
    for name, parameter in inspect.signature(function).parameters.items():
        passed_on = parameter.kind == parameter.VAR_KEYWORD
        names += (
            inspect.signature({"objective": Objective, "scheduler": Scheduler}[name]).parameters
            if passed_on
            else [name]
        )
    return list(dict.fromkeys(names))


def _changed(part, path, value, where):
    """A part of a method with the argument at `path`, a list of names, set to the value."""
    name, *rest = path
    settable = _settable(part)
    if name not in settable:
        raise ValueError(f"{where}.{name}: no argument of {_kind(part)}; {_near(name, settable)}")
    new = _changed(settable[name], rest, value, f"{where}.{name}") if rest else value
    if isinstance(part, tuple):
        return tuple(new if p.name == name else p for p in part)
    if dataclasses.is_dataclass(part):
        return dataclasses.replace(part, **{name: new})
    return partial(part, **{name: new})


def _settable(part):
    """Name and value of all that can be set in a part: fields, a function's options, or the parts of a tuple by name."""
    if isinstance(part, tuple):
        return {p.name: p for p in part if hasattr(p, "name")}
    if dataclasses.is_dataclass(part):
        return {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.init}
    if callable(part):
        options = inspect.signature(part).parameters.values()
        return {p.name: p.default for p in options if p.default is not p.empty}
    return {}


def _kind(part):
    named = (
        part.func if isinstance(part, partial) else part if inspect.isroutine(part) else type(part)
    )
    return "an empty slot" if part is None else named.__name__


def _near(name, known):
    """Which name was meant, and all there are."""
    close = difflib.get_close_matches(name, list(known), 1)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"{meant}there are {', '.join(known)}" if known else "there are none"
