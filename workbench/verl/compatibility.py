"""Which verl this package works with, checked where verl is first needed.

`workbench.verl` itself loads nothing of verl, since verl lives in an environment of its own. `load`
brings a module of verl or says how to install it. `workbench.verl.v1` overrides private methods of
verl's classes, which patch releases leave as they are, so other releases are refused.
"""

import importlib
import logging
import re
from types import ModuleType

from workbench.utils.machine import installed_version

logger = logging.getLogger(__name__)

TESTED = "0.9.1"
LOWEST = (0, 9, 1)  # 0.9.0 has no hook for checkpoints
BELOW = (0, 10)
INSTALL = f'pip install "verl=={TESTED}" TransferQueue cachetools fastapi uvicorn'


def load(module: str) -> ModuleType:
    """A module of verl; an ImportError of one line where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise explained(error) from error


def explained(error: ImportError) -> ImportError:
    """What to raise when a part of verl cannot be imported: a version that is not supported, or
    what is missing and how to get it.
    """
    check_installed()
    return ImportError(f"{error.name or error} is missing; verl has its own environment: {INSTALL}")


def check_installed() -> None:
    """`check_version` of the verl that is installed; nothing without one."""
    version = installed_version("verl")
    if version is not None:
        check_version(version)


def check_version(version: str) -> None:
    """Raise ImportError for a version of verl that is not supported, and warn of an untested one.

    Examples
    --------
    >>> check_version("0.9.1")
    >>> check_version("0.8.0")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ImportError: verl 0.8.0 is installed, and workbench.verl works with 0.9.1 up to, but ...
    """
    # The first three numbers, so that endings such as .post1 or .dev0 do not matter.
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if not LOWEST <= numbers < BELOW:
        lowest, below = (".".join(map(str, bound)) for bound in (LOWEST, BELOW))
        raise ImportError(
            f"verl {version} is installed, and workbench.verl works with {lowest} up to, but not "
            f"including, {below}: {INSTALL}"
        )
    if version != TESTED:
        logger.warning("verl %s is installed; workbench.verl is tested with %s", version, TESTED)
