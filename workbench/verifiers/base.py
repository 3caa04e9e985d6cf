"""What every verifier has: statuses, scores, and the checks of what is handed to it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from workbench.utils.descriptions import compose, parameters
from workbench.utils.names import GRADED
from workbench.utils.validation import brief, cause_of, texts

STATUSES = ("ok", "wrong", "unparsed", "timeout", "crash")
"""What became of a response. `ok`: equivalent to the gold answer, or all its tests passed. `wrong`:
read, but not that. `unparsed`: no answer could be read. `timeout`: killed at the deadline. `crash`:
the worker or the program ran out of memory or died.
"""


@dataclass(frozen=True, eq=False)
class Scores:
    """What a verifier found about R responses.

    Attributes
    ----------
    reward : (R,) float64
        1 where the status is `ok`, otherwise 0. With `Code(partial=True)`, the share of the tests
        that passed.
    status : (R,) str
        Values of `STATUSES`, or "graded" of a reward without a verdict, see `graded`.
    """

    reward: np.ndarray
    status: np.ndarray

    @classmethod
    def of(cls, statuses: Sequence[str]) -> Scores:
        """Scores in which `ok` earns 1 and everything else 0."""
        # One width for every batch. NumPy would take that of the longest status present, and a
        # longer one written into the array later would be cut.
        status = np.array(statuses, dtype=f"<U{max(map(len, STATUSES))}")
        return cls((status == "ok").astype(np.float64), status)

    @classmethod
    def graded(cls, rewards: Sequence[float], solved: float | None = None) -> Scores:
        """Scores of rewards that are no verdict by themselves, such as those of a reward model.

        Parameters
        ----------
        rewards : (R,)
        solved : float, optional
            The reward from which a response counts as right, for methods that need success rates.
            None: there is no verdict, and what asks only whether the responses to a problem are
            all alike goes by their rewards.

        Examples
        --------
        >>> Scores.graded([0.2, 0.9], solved=0.5).correct
        array([False,  True])
        """
        values = np.asarray(rewards, dtype=np.float64)
        if solved is None:
            return cls(values, np.full(values.shape, GRADED))
        return cls(values, np.where(values >= solved, "ok", "wrong"))

    @property
    def correct(self) -> np.ndarray:
        """Which responses are right, (R,) bool; none where there is no verdict."""
        return self.status == "ok"


def check_verifier(verifier: Any) -> None:
    """Raise ValueError unless a value is a verifier that can judge."""
    if isinstance(verifier, type) or not callable(getattr(verifier, "score", None)):
        raise ValueError(
            f"verifier={brief(verifier)}: an object with score() is needed, such as "
            "verifiers.Math(), or one of a class of yours (docs/guides/own-verifier.md)"
        )


def checked_scores(verifier: Any, responses: Sequence[str], answers: Sequence[str]) -> Scores:
    """What a verifier says of responses; ValueError where it is nothing that can be recorded.

    For those who call a verifier that may be of a user's own making.
    """
    name = f"{type(verifier).__name__}.score"
    try:
        scores = verifier.score(responses, answers)
    except Exception as error:
        # What verifiers of this package raise, and `_recordable` below, says what is wrong already.
        is_named = str(error).startswith("verifier: ")
        if is_named or type(verifier).__module__.startswith("workbench."):
            raise
        raise ValueError(
            f"verifier: {name} raised {type(error).__name__} ({error}) for "
            f"{brief(_that_raises(verifier, responses, answers))}; what a model writes must not "
            "make it raise"
        ) from error
    return _recordable(scores, name, len(responses))


def _that_raises(verifier: Any, responses: Sequence[str], answers: Sequence[str]) -> Any:
    """The first response that makes a verifier raise alone; all of them where none does."""
    for response, answer in zip(responses, answers):
        try:
            verifier.score([response], [answer])
        except Exception:
            return response
    return list(responses)


def _recordable(scores: Any, name: str, size: int) -> Scores:
    """Scores as arrays; ValueError unless they have a number and a status for each response."""
    if not isinstance(scores, Scores):
        raise ValueError(
            f"verifier: {name} returned {brief(scores)}; Scores(reward, status) is needed"
        )
    try:
        reward, status = np.asarray(scores.reward), np.asarray(scores.status)
    except Exception as error:  # torch's of a tensor with a gradient, in bfloat16 or on a GPU
        raise ValueError(
            f"verifier: {name} returned what NumPy cannot read ({cause_of(error)}); a number for "
            "each response is needed, such as those of tensor.tolist()"
        ) from None
    # The table of rollouts would convert texts such as "1", and could not say whose they are.
    is_number = reward.dtype.kind in "biuf"
    is_known = set(status.flat) <= {*STATUSES, GRADED}
    if not (is_number and is_known and reward.shape == status.shape == (size,)):
        raise ValueError(
            f"verifier: {name} returned the rewards {brief(reward.tolist())} and the statuses "
            f"{brief(status.tolist())} for {size} responses; a number and one of "
            f"{', '.join(STATUSES)} are needed for each"
        )
    return Scores(reward.astype(np.float64), status)


class Verifier(AbstractContextManager):
    """Base class of the verifiers: checks what it is given, and ends in a `with` block.

    A verifier of your own derives from it and writes `judge`. Its constructor keeps the arguments
    as attributes of the same names, so that `config` can report them.
    """

    @property
    def config(self) -> dict[str, Any]:
        """The arguments of the constructor, name to value, for a manifest."""
        return parameters(self)

    def score(self, responses: Sequence[str], answers: Sequence[str]) -> Scores:
        """Judge responses against gold answers. Nothing that a model writes makes it raise.

        Parameters
        ----------
        responses : sequence of R str
        answers : sequence of R str
            The gold answer of each response, not blank.

        Returns
        -------
        Scores

        Raises
        ------
        ValueError
            When the lengths differ, something is not a string, or a gold answer is of no use.
        ChildProcessError
            When no process can be started to judge in.
        """
        responses = texts("responses", responses)
        answers = texts("answers", answers)
        if len(responses) != len(answers):
            raise ValueError(
                f"answers has length {len(answers)}: one for each of the {len(responses)} "
                "responses is needed"
            )
        # No response could ever meet a blank gold answer. That is a mistake in the data, and it
        # should not look like a hard problem.
        for i, answer in enumerate(answers):
            if not answer.strip():
                raise ValueError(f"answers[{i}]={answer!r}: an answer that is not blank is needed")
        scores = self.judge(responses, answers)
        return _recordable(scores, f"{type(self).__name__}.judge", len(responses))

    @abstractmethod
    def judge(self, responses: list[str], answers: list[str]) -> Scores:
        """Scores of responses and answers that `score` has checked."""

    def close(self) -> None:
        """End what runs. A verifier without processes has nothing to end."""

    def __repr__(self) -> str:
        return compose(self)

    def __reduce__(self) -> tuple:
        # Another process gets a verifier made with the same arguments, without the locks and the
        # processes of this one.
        return partial(type(self), **self.config), ()

    def __exit__(self, *exception: object) -> None:
        self.close()
