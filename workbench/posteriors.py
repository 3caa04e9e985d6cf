"""Beliefs about problems as Beta posteriors: two numbers for each problem, updated every round.

Several methods keep the same state and differ in how it forgets. Each visit of a problem with c of
n rollouts correct adds c to its first number and n - c to its second one, after both have been
pulled towards the prior (MoPPS, MaPP) or towards zero (discounted Beta baseline, Reinforce-Ada) by
a factor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.slots import Slot
from workbench.utils.validation import one_of, positive_number, share

if TYPE_CHECKING:
    from workbench.rollouts import Context, Rollouts

TOWARDS = ("prior", "zero")


@dataclass
class Posteriors:
    """Two numbers for each problem: how often it was solved and failed, with a prior.

    Attributes
    ----------
    a, b : float
        The prior: the numbers of a problem never seen.
    decay : float
        Factor on what was believed before, at each visit; 1 forgets nothing.
    towards : {"prior", "zero"}
        What a belief decays to.
    """

    a: float = 1.0
    b: float = 1.0
    decay: float = 1.0
    towards: str = "prior"
    rows: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    # Row 0 stands for all problems never seen; the array grows by doubling.
    counts: np.ndarray = field(default=None, init=False, repr=False, compare=False)  # type: ignore

    def __post_init__(self) -> None:
        positive_number("a", self.a, zero=True)
        positive_number("b", self.b, zero=True)
        share("decay", self.decay)
        one_of("towards", self.towards, TOWARDS)
        self.counts = np.array([[self.a, self.b]], dtype=np.float64)

    def of(self, ids: Sequence[str]) -> np.ndarray:
        """The two numbers of each problem, (P, 2) float64."""
        return self.counts[[self.rows.get(key, 0) for key in ids]]

    def means(self, ids: Sequence[str]) -> np.ndarray:
        """The posterior mean of each problem's success rate, (P,)."""
        belief = self.of(ids)
        return belief[:, 0] / belief.sum(axis=1)

    def after(self, ids: Sequence[str], correct: np.ndarray, tries: np.ndarray) -> np.ndarray:
        """The two numbers of each problem as they will be after these outcomes, (P, 2)."""
        possible = (correct >= 0) & (correct <= tries)
        if not np.all(possible):
            row = int(np.argmin(possible))
            raise ValueError(
                f"correct: {correct[row]} of {tries[row]} rollouts of problem {ids[row]!r}; a "
                "number from 0 to all of them is needed"
            )
        before = self.of(ids)
        target = self.counts[0] if self.towards == "prior" else np.zeros(2)
        faded = self.decay * before + (1 - self.decay) * target
        outcomes = np.stack([correct, tries - correct], axis=1)
        # A problem that was not tried was not visited, so its belief does not fade.
        return np.where(tries[:, None] > 0, faded + outcomes, before)

    def observe(self, ids: Sequence[str], correct: np.ndarray, tries: np.ndarray) -> None:
        """Take in the outcomes (P,) of one visit of each problem."""
        # Before new ids get their rows: until then they read the prior in row 0.
        updated = self.after(ids, correct, tries)
        rows = [self.rows.setdefault(key, len(self.rows) + 1) for key in ids]
        if len(self.rows) >= len(self.counts):
            larger = np.zeros((2 * len(self.rows) + 1, 2))
            larger[: len(self.counts)] = self.counts
            self.counts = larger
        self.counts[rows] = updated

    def observe_round(self, rollouts: Rollouts, number: int) -> None:
        """Take in the new rollouts of a round."""
        ids, correct, tries = outcomes_of_round(rollouts, number)
        self.observe(ids, correct, tries)

    def state_dict(self) -> dict[str, Any]:
        """The ids and their numbers."""
        return {"ids": list(self.rows), "counts": self.counts[1 : len(self.rows) + 1].copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what `state_dict` returned."""
        rows = {key: i + 1 for i, key in enumerate(state["ids"])}
        saved = np.array(state["counts"], dtype=np.float64)
        if saved.size != 2 * len(rows):
            raise ValueError(f"counts: {saved.size} numbers for {len(rows)} problems; two each")
        if not (np.isfinite(saved) & (saved >= 0)).all():
            raise ValueError("counts: finite numbers of at least 0 are needed")
        saved = saved.reshape(len(rows), 2)
        self.rows = rows
        self.counts = np.concatenate([[[self.a, self.b]], saved])


def outcomes_of_round(rollouts: Rollouts, number: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Problem ids, and the correct and all new rollouts of each in a round, (P,) int64 both."""
    # Old responses that joined the round were counted when they were new.
    fresh = rollouts.take(rollouts.round == number)
    ids, problem_of_row = fresh.problems()
    tries = np.bincount(problem_of_row, minlength=len(ids))
    correct = np.bincount(problem_of_row[fresh.correct], minlength=len(ids))
    return ids.tolist(), correct, tries


class RemembersPosteriors(Slot):
    """Base class of a slot value whose memory is its posteriors, an attribute of that name."""

    posteriors: Posteriors

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The posteriors of the round's problems are updated."""
        self.posteriors.observe_round(rollouts, context.round)

    def state_dict(self) -> dict[str, Any]:
        """The posteriors by problem."""
        return self.posteriors.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the posteriors by problem."""
        self.posteriors.load_state_dict(state)
