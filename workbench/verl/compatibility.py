"""Which verl this package works with, checked where verl is first needed.

`workbench.verl` itself loads nothing of verl, since verl lives in an environment of its own.
`workbench.verl.v1` overrides private methods of verl's classes, which patch releases leave as they
are, so other releases are refused.
"""

import re

from workbench.utils.machine import installed_version

INSTALL = 'pip install "verl==0.9.1" TransferQueue cachetools fastapi uvicorn'


def check_installed(*further: str) -> None:
    """Raise ImportError unless verl, in a version that works, and the further packages are there.

    Version 0.9.0 has no hook for checkpoints.
    """
    for package in ("verl", *further):
        if installed_version(package) is None:
            raise ImportError(f"{package} is missing; verl has its own environment: {INSTALL}")
    version = installed_version("verl")
    if not re.match(r"0\.9\.[1-9]", version or ""):
        raise ImportError(
            f"verl {version} is installed, and workbench.verl works with 0.9.1 up to, but not "
            f"including, 0.10: {INSTALL}"
        )
