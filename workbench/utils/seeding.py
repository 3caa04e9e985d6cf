"""Random numbers by purpose.

Every draw comes from a generator derived from (seed, purpose, round, problem).

Nothing here keeps a state that changes what is drawn, so a resumed run draws what the uninterrupted
run would have drawn.
"""

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np


def derive(*keys: Any) -> int:
    """A 63-bit integer that depends on every key and on their order.

    Keys are integers and strings: `derive(seed, "generate", round, problem_id)`.

    >>> derive(0, "order", 1) == derive(0, "order", 1)
    True
    >>> derive(0, "order", 1) == derive(0, 1, "order")
    False
    """
    plain = map(_plain, keys)
    # The first letter of the type keeps 1 and "1" apart.
    text = "\x1f".join(f"{type(key).__name__[0]}{key}" for key in plain)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    # Without the highest bit it fits a signed 64-bit integer too.
    return int.from_bytes(digest, "big") >> 1


def generator(*keys: Any) -> np.random.Generator:
    """A NumPy generator (Philox) for the keys, see `derive`."""
    return np.random.Generator(np.random.Philox(key=derive(*keys)))


# Kept, since curricula draw one problem at a time, and a large pool is shuffled in milliseconds.
@lru_cache(maxsize=4)
def permutation(size: int, seed: int, *labels: str | int) -> np.ndarray:
    """The numbers below `size` in an order that follows from seed and labels, (size,) int64."""
    order = generator(seed, *labels).permutation(size)
    order.flags.writeable = False
    return order


def _plain(key: Any) -> int | str:
    # Numbers and texts of NumPy give what the plain ones give. A bool
    # would be mixed up with 0 and 1.
    if isinstance(key, str):
        return str(key)
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return int(key)
    raise ValueError(f"key={key!r}: seeds are derived from integers and strings only")
