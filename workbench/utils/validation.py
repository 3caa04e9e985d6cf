"""Checks of arguments. Every message names the argument, its value and what is allowed.

Arguments are checked once, where a user hands them over: when a slot, a method, a lab or a run is
made, and when a public function of arrays is called. Code behind that edge trusts what it gets.
"""

import difflib
import inspect
import operator
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

LARGEST_INTEGER = 2**63 - 1  # what an int64 holds
LARGEST_FILE = 2**32  # bytes of a file of data that is read as a whole
ROOM = 64  # characters of a path below an output that its own files need
LONGEST_CAUSE = 300  # characters of another library's message that are passed on
HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "of at least": operator.ge,
    "above": operator.gt,
    "of at most": operator.le,
    "below": operator.lt,
}
DEEPEST = 64  # levels of lists and dicts in each other; real ones have about eight


def brief(value: Any, limit: int = 80) -> str:
    """A value as an error message shows it: functions and classes by name, long texts cut."""
    is_named = isinstance(value, type) or inspect.isroutine(value)
    return cut(value.__name__ if is_named else repr(value), limit)


def cut(text: str, limit: int) -> str:
    """The beginning of a text that is longer than so many characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def cause_of(error: BaseException) -> str:
    """The first line of an error's message, cut where it is long."""
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return cut(next(iter(message.splitlines()), "") or type(error).__name__, LONGEST_CAUSE)


def output(name: str, value: Any) -> Path:
    """The absolute path of what is going to be written; ValueError where nothing can be."""
    instance_of(name, value, (str, os.PathLike), "'runs/mine'")
    try:
        path = Path(value).absolute()
        str(path).encode()
        # A name below it shows a link to itself, and a path that has no room for files.
        with suppress(FileNotFoundError, NotADirectoryError):
            (path / ("x" * ROOM)).stat()
        # What is not there yet has no file system to ask about its names, but its parents have.
        there = next(each for each in (path, *path.parents) if each.is_dir())
        for part in path.relative_to(there).parts:
            with suppress(FileNotFoundError):
                (there / part).lstat()
    except (OSError, ValueError) as error:
        cause = cause_of(error)
        raise ValueError(f"{name}={brief(value)}: nothing can be written there: {cause}") from None
    return path


def check_size(path: Path) -> None:
    """Raise ValueError for a file of more than 4 GiB, before it is opened.

    This is the one limit on what a file of data may cost its reader.
    """
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{path}: it is larger than {LARGEST_FILE // 2**30} GiB")


def plain_data(content: Any, depth: int = 1) -> None:
    """Raise ValueError unless something is made of lists, dicts with texts as keys, texts, numbers,
    truth values and None, nested at most 64 levels deep.
    """
    # A list of YAML may be one of its own entries, and would have no end.
    if depth > DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    if isinstance(content, dict):
        for key in content:
            if not isinstance(key, str):
                raise ValueError(f"the key {brief(key)} is no text")
        content = [*content, *content.values()]
    if isinstance(content, list | tuple):
        for value in content:
            plain_data(value, depth + 1)
    elif isinstance(content, str):
        try:
            content.encode()
        except UnicodeEncodeError:
            # Half of a character, which no file name and no report can hold.
            raise ValueError(f"{content!a} is no valid text") from None
    elif not isinstance(content, bool | int | float | None):
        raise ValueError(
            f"{brief(content)} is no plain data; texts, numbers, lists and mappings are needed"
        )


def is_number(value: Any) -> bool:
    """Whether a value is a finite real number. True and False are not numbers here."""
    if isinstance(value, bool | np.bool_):
        return False
    if isinstance(value, float | np.floating):
        return bool(np.isfinite(value))
    # A larger integer would raise OverflowError as soon as it meets a float.
    return isinstance(value, int | np.integer) and abs(int(value)) <= sys.float_info.max


def whole_number(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Raise ValueError unless `value` is a whole number from `low` to `high`.

    high=None allows what 64 bits hold.
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not low <= value <= (LARGEST_INTEGER if high is None else high):
        allowed = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name}={brief(value)}: a whole number {allowed} is needed")


def number(
    name: str,
    value: Any,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
) -> None:
    """Raise ValueError unless `value` is a finite number within bounds: `low` and `high` belong to
    what is allowed, `above` and `below` do not.
    """
    given = {"of at least": low, "above": above, "of at most": high, "below": below}
    bounds = {words: bound for words, bound in given.items() if bound is not None}
    if not (is_number(value) and all(HOLDS[words](value, bounds[words]) for words in bounds)):
        allowed = " and ".join(f"{words} {bound:g}" for words, bound in bounds.items())
        kind = f"number {allowed}" if allowed else "finite number"
        raise ValueError(f"{name}={brief(value)}: a {kind} is needed")


def positive_number(name: str, value: Any, zero: bool = False, high: float | None = None) -> None:
    """Raise ValueError unless `value` is a number above 0, or from 0 up with zero=True, that is at
    most `high`.
    """
    number(name, value, high=high, **({"low": 0} if zero else {"above": 0}))


def one_of(name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raise ValueError unless `value` is one of `allowed`; a close text is suggested."""
    allowed = list(allowed)
    # Types are compared as well, since True == 1 and 1 == 1.0.
    alike = [option for option in allowed if type(option) is type(value)]
    if value not in alike:
        hint = ", ".join(map(repr, allowed)) + did_you_mean(value, allowed)
        raise ValueError(f"{name}={brief(value)}: allowed are {hint}")


def did_you_mean(value: Any, allowed: Iterable[Any]) -> str:
    """The end of an error message that suggests the closest allowed text, or nothing."""
    texts = [option for option in allowed if isinstance(option, str)]
    # A single letter is close to every text of two letters that has it.
    is_word = isinstance(value, str) and (len(value) > 1 or value in texts)
    close = difflib.get_close_matches(value, texts, n=1) if is_word else []
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown_argument(name: str, what: str, known: Iterable[str], path: str = "") -> ValueError:
    """The error for an argument that `what` does not have, with those that it has.

    It is for data, such as the settings of a grid. Where Python code calls a function, Python's own
    TypeError is enough. `path` stands before a name that is part of a longer one, as "selector.".

    Examples
    --------
    >>> print(unknown_argument("nn", "pods", ["n", "m"]))
    nn: no argument of pods; there are n, m; did you mean 'n'?
    >>> print(unknown_argument("scop", "Scheduler", ["scope", "floor"], "selector."))
    selector.scop: no argument of Scheduler; there are scope, floor; did you mean 'scope'?
    """
    known = list(dict.fromkeys(known))
    there = f"there are {', '.join(known)}{did_you_mean(name, known)}" if known else "it takes none"
    return ValueError(f"{path}{name}: no argument of {what}; {there}")


def instance_of(name: str, value: Any, kinds: type | tuple[type, ...], example: str) -> None:
    """Raise ValueError unless `value` is of a kind; `example` is an expression that makes one."""
    if not isinstance(value, kinds):
        kind = (kinds[0] if isinstance(kinds, tuple) else kinds).__name__
        article = "an" if kind[0] in "AEIOU" else "a"
        raise ValueError(f"{name}={brief(value)}: {article} {kind} is needed, such as {example}")


def numpy_generator(rng: Any) -> np.random.Generator:
    """The generator itself; ValueError for anything else."""
    instance_of("rng", rng, np.random.Generator, "np.random.default_rng(0)")
    return rng


def success_rates(name: str, rates: Any) -> np.ndarray:
    """Rates as float64; ValueError outside [0, 1]. NaN passes: it means that nothing is known."""
    rates = np.asarray(rates, dtype=np.float64)
    # Comparisons with NaN are false, so it is on neither side.
    outside = (rates < 0) | (rates > 1)
    if outside.any():
        raise ValueError(
            f"{name}={rates[outside].flat[0]}: success rates lie in [0, 1]; NaN means never tried"
        )
    return rates


def counts(name: str, values: Any) -> np.ndarray:
    """Counts as int64; ValueError for anything but whole numbers of at least 0."""
    values = np.asarray(values)
    if values.dtype.kind not in "iu" or (values < 0).any():
        text = values.tolist() if values.size < 10 else f"an array of {values.dtype}"
        raise ValueError(f"{name}={text}: whole numbers of at least 0 are needed")
    return values.astype(np.int64)


def booleans(name: str, values: Any) -> np.ndarray:
    """A vector (R,) of True and False as bool; 0 and 1 pass too. ValueError otherwise."""
    values = np.asarray(values)
    if values.ndim != 1:
        needed = "one True or False for each rollout, (R,), is needed"
        raise ValueError(f"{name}: shape {values.shape}; {needed}")
    good = (values == 0) | (values == 1)
    if not np.all(good):
        row = int(np.argmin(good))
        raise ValueError(f"{name}: row {row} is {values[row]}; True or False is needed")
    return values.astype(bool)


def texts(name: str, values: Any) -> list[str]:
    """A sequence of strings as a list; ValueError for one string alone and for anything else."""
    # A string is a sequence of strings too, and would be taken letter by letter.
    if isinstance(values, str):
        raise ValueError(f"{name}={brief(values)}: a sequence of strings is needed, not one string")
    values = list(values)
    for i, value in enumerate(values):
        if not isinstance(value, str):
            raise ValueError(f"{name}[{i}]={brief(value)}: a string is needed")
    return values
