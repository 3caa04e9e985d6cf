"""Random numbers by purpose: every draw comes from a generator derived from (seed, purpose, round, problem).

Nothing here keeps state, so a resumed run draws what the uninterrupted run would have drawn.
"""

import hashlib

import numpy as np


def derive(*keys):
    """A 63-bit integer that depends on every key and on their order.

    Keys are integers and strings: `derive(seed, "generate", round, problem_id)`.
    """
    text = "\x1f".join(f"{type(key).__name__[0]}{key}" for key in map(_plain, keys))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(*keys):
    """A `numpy.random.Generator` (Philox) for the keys, see `derive`."""
    return np.random.Generator(np.random.Philox(key=derive(*keys)))


def _plain(key):
    if isinstance(key, (bool, np.bool_)) or not isinstance(key, (int, np.integer, str)):
        raise ValueError(f"key={key!r}: seeds are derived from integers and strings only")
    return int(key) if isinstance(key, np.integer) else str(key) if isinstance(key, str) else key
