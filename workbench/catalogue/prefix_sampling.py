r"""Hard and easy problems again, from a part of their own responses.

Prefix Sampling (arXiv [2605.05112](https://arxiv.org/abs/2605.05112)). A problem with a success
rate below .3 is hard, and starts in the next round from the first part of one of its right
responses. One above .7 is easy, and starts from the first part of a wrong one. Of a response of
$T$ tokens

$$T - \lfloor r T \rfloor \;\text{(hard)}, \qquad \lfloor r T \rfloor \;\text{(easy)}$$

are replayed and masked, and all rollouts go on from there as an ordinary group. Groups that are
all alike are not trained on. Hard and easy problems each have a share $r$ and a running average of
the success rates of the groups that started from a prefix, $e \leftarrow .95 e + .05 x$. The share
rises by .05 when the average is above .53, and falls by .05 when it is below .47. After each
change it stays the same for five rounds. Two things are our choice: the response is taken at
random, and a group that started from a prefix does not give another prefix. The authors also
replay steps of an agent; here only tokens are replayed. *Text.*
"""

from dataclasses import dataclass

import numpy as np

from workbench.catalogue.ragen import GroupFilter
from workbench.methods import Method, Uniform, method
from workbench.policies import Plan
from workbench.rules.curricula import Recycled
from workbench.rules.success_rates import outcomes
from workbench.slots import Context, Problems, Ragged, Rollouts, Slot, state_field
from workbench.utils.bounds import Count, Flag, ShareAboveZero
from workbench.utils.groups import floored


def prefix_length(total: int, share: float, hard: bool, cap: int | None = None) -> int:
    """How many tokens of a response of so many tokens are replayed.

    Of a right response to a hard problem, all but the last part, which is this share of it, is
    replayed. Of a wrong response to an easy problem, the first part of this share is replayed. At
    least one token is left to sample.

    >>> [prefix_length(20, share, hard=True) for share in (0.25, 0.75)]
    [15, 5]
    >>> prefix_length(80, 0.45, hard=True), prefix_length(80, 0.55, hard=False, cap=30)
    (44, 30)
    """
    part = int(floored(share * total))
    if cap is not None:
        part = min(part, cap)
    return total - max(part, 1) if hard else min(part, total - 1)


@dataclass
class PassRateControl(Slot):
    """Chooses how much of an old response is replayed, to keep success rates near one half.

    Hard problems have one such object and easy problems another one. The success rates are those of
    the groups that started from a prefix.

    Attributes
    ----------
    first : float
        The share at first.
    share : float
        See `prefix_length`. A larger share makes hard and easy problems harder.
    average : float
        Running average of the pass rate.
    rest : int
        Steps to wait before the share may change again.
    """

    first: float
    share: float = state_field(float)
    average: float = state_field(lambda: 0.5)
    rest: int = state_field(int)

    def __post_init__(self) -> None:
        self.share = float(self.first)

    def observe(self, rate: float) -> None:
        """Take in the mean pass rate of the prefix groups of one step.

        >>> control = PassRateControl(0.25)
        >>> for _ in range(3):
        ...     control.observe(0.8)
        >>> round(control.average, 4), control.share, control.rest
        (0.5428, 0.3, 5)
        """
        self.average = 0.95 * self.average + 0.05 * rate
        if self.rest:
            self.rest -= 1
            return
        change = 0.05 * ((self.average > 0.53) - (self.average < 0.47))
        if change:
            # The bounds are ours: something is replayed, and something is left to do.
            self.share = round(min(max(self.share + change, 0.05), 0.95), 10)
            self.rest = 5


@dataclass
class PrefixSampling(Slot):
    """A skewed problem is tried again from a part of one of its own responses.

    A problem of which few rollouts were right starts in the next round from the first part of a
    right response, one of which most were right from the first part of a wrong response. All its
    rollouts start there, so they are an ordinary group. `curricula.Recycled` serves these problems
    first; without it only those that happen to come again start from a prefix.

    Attributes
    ----------
    hard, easy : float
        Share of the response that is left to do, and share that is replayed, at first.
    low, high : float
        Success rates below and above which a problem is tried again; 0 and 1 are not.
    cap : int, optional
        Most tokens that are left to do on the hard side, and replayed on the easy side.
    adapts : bool
        Whether the two shares follow the pass rates, see `PassRateControl`.

    Notes
    -----
    What the authors' post leaves open is ours: the response is drawn at random among those that
    serve, and a group that started from a prefix is not tried once more.

    References
    ----------
    Zhu et al. (arXiv 2605.05112) and the authors' post; .25 on both sides is their setting for
    text.
    """

    hard: ShareAboveZero = 0.25
    easy: ShareAboveZero = 0.25
    low: ShareAboveZero = 0.3
    high: ShareAboveZero = 0.7
    cap: Count | None = None
    adapts: Flag = True
    prefixes: dict[str, tuple[bool, np.ndarray]] = state_field(dict)
    of_hard: PassRateControl = state_field()
    of_easy: PassRateControl = state_field()

    needs = frozenset({"prefixes"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.of_hard = PassRateControl(self.hard)
        self.of_easy = PassRateControl(self.easy)

    def plan(
        self, problems: Problems, counts: np.ndarray, before: np.ndarray, context: Context
    ) -> Plan:
        """All rollouts of a problem that is tried again start from its prefix."""
        bare = (False, np.empty(0, np.int32))
        rows = [
            self.prefixes.get(problem.id, bare)[1]
            for problem, count in zip(problems, counts)
            for _ in range(count)
        ]
        return Plan(prefixes=Ragged.of(rows, np.int32))

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The pass rates of the prefix groups, and the prefixes for the next round."""
        fresh = rollouts.take(rollouts.round == context.round)
        ids, right, sizes = outcomes(fresh)
        rates = dict(zip(ids, (right / sizes).tolist()))
        for hard, control in ((True, self.of_hard), (False, self.of_easy)):
            of_side = [
                rates[name]
                for name, (is_hard, _) in self.prefixes.items()
                if is_hard == hard and name in rates
            ]
            if of_side and self.adapts:
                control.observe(float(np.mean(of_side)))
        tried_again = self.prefixes
        self.prefixes = {}
        for name, rate in rates.items():
            hard = 0 < rate < self.low
            if name in tried_again or not (hard or self.high < rate < 1):
                continue
            rows = np.flatnonzero((fresh.problem == name) & (fresh.correct == hard))
            response = fresh.response[context.rng("course", name).choice(rows)]
            control = self.of_hard if hard else self.of_easy
            length = prefix_length(len(response), control.share, hard, self.cap)
            if length:
                self.prefixes[name] = (hard, response[:length])

    def metrics(self) -> dict[str, float]:
        """Problems that are to be tried again, and the shares that the next ones will have."""
        return {
            "course_waiting": len(self.prefixes),
            "course_share_hard": self.of_hard.share,
            "course_share_easy": self.of_easy.share,
        }


@method(paper="Zhu et al. (arXiv 2605.05112)", decides="course")
def prefix_sampling(n: int = 8, course: PrefixSampling | None = None) -> Method:
    """Prefix Sampling: skewed problems are tried again from a part of one of their own responses.

    Parameters
    ----------
    n : int
    course : PrefixSampling, optional
        None: with the settings of the paper.

    References
    ----------
    Zhu et al. (arXiv 2605.05112) and the authors' post; no code was released.
    """
    course = course or PrefixSampling()
    return Method(
        "prefix_sampling",
        curriculum=Recycled(rule="skewed", low=course.low, high=course.high),
        allocator=Uniform(n),
        course=course,
        # Groups that are all alike are dropped; all others are kept.
        selector=GroupFilter("top_p", 1.0),
    )
