"""What is right: verifiers turn responses and gold answers into rewards, each with a status.

    Math      mathematical answers, compared by Math-Verify in killable worker processes
    Choice    letters of multiple choice
    Code      programs, judged by running tests on them in a sandbox

A verifier has one method, `score(responses, answers) -> Scores`. It never raises for anything that
a model wrote: what cannot be judged has reward 0 and a status that says why.
"""

from workbench.verifiers.base import STATUSES, Scores, Verifier
from workbench.verifiers.choice import Choice
from workbench.verifiers.code import Code
from workbench.verifiers.math import Math

__all__ = ["STATUSES", "Choice", "Code", "Math", "Scores", "Verifier"]
