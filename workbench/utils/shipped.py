"""Where the files are that come with the package."""

from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]


def shipped(name: Any) -> Path:
    """Path of a file that comes with the package.

    It is under `data/` of a checkout, or inside the installed package.
    """
    for folder in (PACKAGE.parent / "data", PACKAGE / "_data"):
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(
        f"data/{name} is missing; a wheel has the models alone, so run: pip install -e . in a clone"
    )
