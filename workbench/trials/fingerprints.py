"""How an arm of one's own reaches the processes that run it, and what tells it from others.

What is written in a notebook exists in this process alone. It is therefore pickled by value (by
cloudpickle, as Ray and loky do it) and goes to the workers through a pipe. It never goes to the
disk. What the disk gets is a fingerprint of its code, so that runs of an edited class are not taken
for runs of the class as it was.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import cloudpickle

from workbench.labs import Lab
from workbench.utils.code import digest_of, own_code
from workbench.utils.descriptions import describe


@dataclass(frozen=True)
class Pickle:
    """An object on its way to the processes that run.

    Attributes
    ----------
    data : bytes
        The pickled object.
    fingerprint : str
        See `fingerprint`.
    """

    data: bytes
    fingerprint: str

    def load(self) -> Any:
        """The object, made anew at each call."""
        return pickle.loads(self.data)


def pickle_object(what: str, value: Any, digest: str) -> Pickle:
    """Pickle an object by value; ValueError, naming the object, where that cannot be done.

    Only the processes that run load it. In this one, that would put copies of its methods into the
    user's own class, and they may have no source that a fingerprint could be taken of.
    """
    try:
        data = cloudpickle.dumps(value)
    except Exception as error:  # pickling calls code of the object's own
        raise ValueError(
            f"{what}: it cannot be sent to the processes that run ({type(error).__name__}: "
            f"{error}); keep plain values in it, and open files, locks and processes only where "
            "they are used"
        ) from None
    return Pickle(data, digest)


def pickle_lab(lab: Lab) -> Pickle:
    """Pickle a lab by value; ValueError where that cannot be done."""
    whole = [lab.description(), lab.digests(), own_code([lab.verifier, lab.make_policy])]
    return pickle_object(f"lab {lab.name!r}", lab, digest_of(whole))


# Fingerprints


def fingerprint(value: Any) -> str:
    """A digest of an object's description, and of all code of your own that it consists of.

    It is the same in every process that has the same code. Comments do not count.
    """
    return digest_of([describe(value), own_code(value)])
