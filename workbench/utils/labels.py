"""Labels of arms, which are any text of one line, and the names of their directories."""

from __future__ import annotations

import hashlib
import re
from typing import Any
from urllib.parse import unquote

from workbench.utils.validation import brief

LOGS = "logs"  # the directory beside those of the labels
# What lies beside the directories of the labels in a sweep.
RESERVED = (LOGS, "results.csv", "sweep.json", "sweep.lock")
# What stands as %XX in the name of a directory: whatever is no letter, digit or one of these signs,
# and any sign at the beginning, so that no directory is hidden or looks like an option.
UNFIT = re.compile(r"^\W|[^\w.=+,~-]")
LONGEST = 255  # bytes of a name in usual file systems
DIGITS = 16  # of the digest behind a name that is cut


def check_label(label: Any) -> None:
    """ValueError for a label that is no text of one line."""
    if not isinstance(label, str) or not label.strip() or not label.isprintable():
        raise ValueError(f"label={brief(label)}: a text of one line is needed")


def to_folder(label: str) -> str:
    """The name of the directory of a label; two labels never share one.

    Examples
    --------
    >>> to_folder("grpo,n=4")
    'grpo,n=4'
    >>> to_folder("GRPO + prior")
    'GRPO%20+%20prior'
    """
    name = UNFIT.sub(lambda found: _escape(found[0]), label)
    if name in RESERVED:
        name = _escape(name[0]) + name[1:]
    # A file system counts bytes, and many letters have several.
    encoded = name.encode()
    if len(encoded) > LONGEST:
        digest = hashlib.sha256(label.encode()).hexdigest()[:DIGITS]
        name = encoded[: LONGEST - 1 - DIGITS].decode(errors="ignore") + f"~{digest}"
    return name


def from_folder(name: str) -> str:
    """The label of a directory; its name where it was not made by `to_folder`, or was cut.

    Examples
    --------
    >>> from_folder("GRPO%20+%20prior")
    'GRPO + prior'
    """
    label = unquote(name)
    return label if label.isprintable() and to_folder(label) == name else name


def _escape(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())
