"""What is right: verifiers turn responses and gold answers into rewards, each with a status.

    Math      mathematical answers, compared by Math-Verify in killable worker processes
    Choice    letters of multiple choice
    Code      programs, judged by running tests on them in a sandbox

A verifier has one method, `score(responses, answers) -> Scores`. It never raises for anything that
a model wrote: what cannot be judged has reward 0 and a status that says why.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from workbench.utils.validation import did_you_mean
from workbench.verifiers.base import STATUSES, Scores, Verifier

if TYPE_CHECKING:
    from workbench.verifiers.choice import Choice
    from workbench.verifiers.code import Code
    from workbench.verifiers.math import Math

__all__ = ["STATUSES", "Choice", "Code", "Math", "Scores", "Verifier"]

_MODULES = {"Choice": "choice", "Code": "code", "Math": "math"}


def __getattr__(name: str) -> Any:
    # Each verifier is loaded when it is first asked for, so that a worker process of one does not
    # load the others.
    if name not in _MODULES:
        hint = did_you_mean(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
