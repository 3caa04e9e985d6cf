"""Columns and groups of a table of rollouts, be it a `Rollouts` or a DataFrame, and checks of arguments."""

import sys

import numpy as np

LARGEST = 2**63 - 1


def column(rollouts, name, default=None):
    """A column (R,) of a `Rollouts` or a DataFrame; ValueError where it is missing and there is no default."""
    try:
        return np.asarray(rollouts[name])
    except (KeyError, AttributeError):
        if default is None:
            raise ValueError(f"rollouts: column {name!r} is missing") from None
        return default


def group_keys(rollouts):
    """What groups are made by, (R,): the column `group` where there is one, else `problem`."""
    return column(rollouts, "group", column(rollouts, "problem"))


def grouped(keys):
    """Sorted keys (G,), group number of every row (R,) and sizes (G,). Runs of equal keys are looked up once."""
    keys = np.asarray(keys)
    heads = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)])
    names, inverse = np.unique(keys[heads], return_inverse=True)
    groups = np.repeat(inverse, np.diff(np.append(heads, len(keys))))
    # 16 bits, where they suffice, are sorted by radix
    dtype = np.uint16 if len(names) <= 2**16 else np.int64
    return names, groups.astype(dtype), np.bincount(groups, minlength=len(names))


def generator_given(rng):
    """The generator itself; ValueError for anything else."""
    if not isinstance(rng, np.random.Generator):
        raise ValueError(
            f"rng={rng!r}: a NumPy generator is needed, such as np.random.default_rng(0)"
        )
    return rng


def whole_number(name, value, low, high=None):
    """ValueError unless `value` is a whole number from `low` to `high` (None: what 64 bits hold)."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not low <= value <= (LARGEST if high is None else high):
        allowed = (
            f"from {low} to {high}, the number of rollouts,"
            if high is not None
            else f"of at least {low}"
        )
        raise ValueError(f"{name}={value!r}: a whole number {allowed} is needed")


def is_number(value):
    """Whether `value` is a finite real number; True and False are none."""
    if isinstance(value, (float, np.floating)):
        return bool(np.isfinite(value))
    return (
        isinstance(value, (int, np.integer))
        and not isinstance(value, bool)
        and abs(int(value)) <= sys.float_info.max
    )


def positive_number(name, value, zero=False):
    """ValueError unless `value` is a finite number above 0, or from 0 up with zero=True."""
    if not is_number(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(
            f"{name}={value!r}: a {'number of at least 0' if zero else 'positive number'} is needed"
        )
