r"""Half of each group goes on, chosen such that half of it will be right.

ARRoL (arXiv [2603.24840](https://arxiv.org/abs/2603.24840)). When a rollout has 512 tokens, a
small network predicts from its hidden state whether its answer will be right. The network is
trained during the run. The chance $p$ of a rollout is the share of right ones among earlier
rollouts with about the same prediction. A share $\kappa = .5$ of a group goes on, and a share
$\rho = .5$ of these should be right. How the paper chooses them is not known here. In our reading
a rollout goes on with the probability

$$\kappa + \kappa\, \frac{\rho - \bar p}{\text{var}(p)}\, (p - \bar p),$$

where the mean $\bar p$ and the variance are those of its group. Probabilities below 0 and above 1
are cut to these bounds. Where none has to be cut, both shares come out right on average. *Abstract
and notes; the constants are those of DUET's authors, who compare with it. No code.*
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from workbench.methods import Method, Uniform, method
from workbench.policies import GO_ON, STOP, Growing, Plan
from workbench.rules.courses import draws_of, leave_one, numbered
from workbench.rules.scheduler import HasLearner, Learner
from workbench.rules.selectors import Finished
from workbench.slots import Context, Problems, Rollouts, state_field
from workbench.utils.bounds import Count, CountOrZero, Positive, Share, ShareAboveZero, at_least
from workbench.utils.names import STOPPED
from workbench.utils.seeding import derive


def survival(chances: Any, keep: float = 0.5, right: float = 0.5) -> np.ndarray:
    """The probability that each rollout of a group goes on, (R,) float64.

    Parameters
    ----------
    chances : (R,) numbers in [0, 1]
        How likely each rollout is to end right.
    keep : float
        Share of the group that is to go on.
    right : float
        Share of these that is to be right.

    Notes
    -----
    The formula of the paper is not known here, and this is our reading. The probability is linear
    in the chance, a + b p with b = keep (right - mean p) / var p and a = keep - b mean p, which
    meets both shares in expectation. It is then cut to [0, 1]; where this changes it, the shares
    are met only roughly. Where all chances are the same it is `keep`.

    References
    ----------
    ARRoL (arXiv 2603.24840).

    Examples
    --------
    >>> survival([0.9, 0.9, 0.9, 0.1]).round(4).tolist()
    [0.3333, 0.3333, 0.3333, 1.0]
    """
    chances = np.asarray(chances, dtype=np.float64)
    mean, variance = chances.mean(), chances.var()
    slope = keep * (right - mean) / variance if variance > 1e-12 else 0.0
    return np.clip(keep + slope * (chances - mean), 0.0, 1.0)


def binned_chances(scores: Any, past: Any, right: Any, bins: int = 20) -> np.ndarray:
    """The share of right responses among earlier ones of about the same score, (R,) float64.

    Parameters
    ----------
    scores : (R,) numbers in [0, 1]
    past, right : (N,)
        Earlier scores, and which of these responses were right.
    bins : int
        Parts of equal width that [0, 1] is cut into. Each begins with one right and one wrong
        response, so that an empty one says 1/2.

    Examples
    --------
    >>> binned_chances([0.1, 0.6, 0.9], [0.55, 0.7, 0.8, 0.2], [True, True, False, False], bins=2)
    array([0.33333333, 0.6       , 0.6       ])
    """
    places, of_past = (
        np.minimum((np.asarray(each) * bins).astype(np.int64), bins - 1) for each in (scores, past)
    )
    ones = np.bincount(of_past, np.asarray(right, dtype=np.float64), bins) + 1
    return (ones / (np.bincount(of_past, minlength=bins) + 2))[places]


@dataclass
class Survival(HasLearner):
    """Once, at a certain length, a share of each group's rollouts goes on, half of them right.

    A small network reads the hidden state of every rollout that gets to `at` tokens and predicts
    whether it will end right. The share of right ones among earlier rollouts with about the same
    prediction is its chance of success (see `binned_chances`). The chances in a group give the
    probability with which each rollout goes on (see `survival`). `selectors.Finished` leaves out
    the others, so that those that went on make the group. The network learns after every round from
    the rollouts that it has judged and that have a verdict.

    Attributes
    ----------
    at : int
        Tokens at which rollouts are judged; shorter ones are not.
    keep, right : float
        See `survival`.
    explore : float
        Share of what would be stopped that goes on, so that the network sees what became of it.
    bins : int
        See `binned_chances`.
    history : int
        Earlier predictions that it counts.
    warm_up : int
        Rounds in which nothing is stopped.
    learning_rate : float
        Of the network, by Adam, with one step a round.
    units : int
        Of its hidden layer.

    Notes
    -----
    The paper's rule for survival, whether it applies to a group or a batch, and whether rollouts
    are weighed again, are not known here: `survival` within the rollouts of a problem and a
    request, and no weights, are our reading. Where every rollout of a request would be stopped, one
    goes on. The column `survival` has the probabilities, NaN for what was not judged.

    References
    ----------
    ARRoL (arXiv 2603.24840): at 512 tokens, keep and right .5, 20 bins, 20 rounds, 1e-6. Exploring
    5 %, 128 units and a history of 2048 are those of DUET's authors (arXiv 2605.08441), who compare
    with it.
    """

    at: Annotated[int, at_least(2)] = 512
    keep: ShareAboveZero = 0.5
    right: Share = 0.5
    explore: Share = 0.05
    bins: Count = 20
    history: Count = 2048
    warm_up: CountOrZero = 20
    learning_rate: Positive = 1e-6
    units: Count = 128
    # Earlier predictions and whether they came true, (N, 2).
    past: np.ndarray = state_field(lambda: np.zeros((0, 2)))
    # Of the round at work: the states of what was judged, by problem and number of the rollout.
    judged: dict[tuple[str, int], np.ndarray] = state_field(dict, saved=False)
    measured: dict[str, float] = state_field(dict, saved=False)

    needs = frozenset({"stopping", "growing_states"})
    stored_as = "head"

    def plan(
        self, problems: Problems, counts: np.ndarray, before: np.ndarray, context: Context
    ) -> Plan:
        """All rollouts start at their problems, and are judged once."""
        owner = np.repeat(np.arange(len(counts)), counts)
        keys = numbered(problems, counts, before)
        draws = draws_of(problems, counts, before, context, 1)[:, 0]
        chances = np.full(len(owner), np.nan)

        def stop(growing: Growing) -> np.ndarray:
            rows = growing.rows
            said = np.full(len(rows), GO_ON)
            if growing.step != self.at:
                return said
            states = growing.states()
            for row, state in zip(rows.tolist(), states):
                self.judged[keys[row]] = state
            if context.round <= self.warm_up or self.learner is None:
                return said
            past, right = self.past.T
            success = binned_chances(self._scores(states), past, right, self.bins)
            for group in np.unique(owner[rows]):
                members = owner[rows] == group
                goes_on = survival(success[members], self.keep, self.right)
                chances[rows[members]] = goes_on + self.explore * (1 - goes_on)
            said[draws[rows] >= chances[rows]] = STOP
            leave_one(said, chances[rows] - draws[rows], len(owner))
            return said

        return Plan(stop=stop, states=True, columns={"survival": chances})

    def warm_up_of(self, planned: int | None) -> int:
        """Rounds in which nothing is stopped."""
        return self.warm_up

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The network learns from the judged rollouts that have ended."""
        ended = (rollouts.round == context.round) & (rollouts.status != STOPPED)
        keys = list(zip(rollouts.problem.tolist(), rollouts.draw.tolist()))
        rows = [row for row in np.flatnonzero(ended) if keys[row] in self.judged]
        if rows:
            states = np.stack([self.judged[keys[row]] for row in rows])
            if self.learner is None:
                seed = derive(context.seed, "course")
                self.learner = self._new_learner(seed, states.shape[1])
            right = rollouts.correct[rows]
            scores = self._scores(states)
            seen = np.column_stack([scores, right])
            self.past = np.concatenate([self.past, seen])[-self.history :]
            # The step is one on a squared error. With these targets its gradient is that of the
            # cross-entropy of a logit.
            self.learner.update(states, self.learner.scores(states) - (scores - right) / 2)
        self.measured = {"course_judged": len(self.judged), "course_learnt_from": len(rows)}
        self.judged = {}

    def metrics(self) -> dict[str, float]:
        """Rollouts that were judged, and those of them that the network has learnt from."""
        return self.measured

    def _new_learner(self, seed: int, inputs: int) -> Learner:
        return Learner(seed, self.units, 2, self.learning_rate, inputs=inputs)

    def _scores(self, states: np.ndarray) -> np.ndarray:
        """What the network predicts, (R,) in (0, 1)."""
        assert self.learner is not None
        return 1 / (1 + np.exp(-self.learner.scores(states)))


@method(paper="ARRoL (arXiv 2603.24840)", decides="course")
def arrol(n: int = 16, course: Survival | None = None) -> Method:
    """ARRoL: once, while rollouts grow, about half of each group goes on, chosen to be half right.

    Parameters
    ----------
    n : int
        Rollouts of a problem, our choice.
    course : Survival, optional
        Says among others at how many tokens rollouts are judged. None: `Survival()`.

    References
    ----------
    ARRoL (arXiv 2603.24840). No code was released, and the rule by which rollouts survive is our
    reading, see `courses.Survival`.
    """
    return Method(
        "arrol",
        allocator=Uniform(n),
        course=course or Survival(),
        selector=Finished(),
    )
