r"""GRPO's advantage, averaged over the groups that could have been drawn.

MaPP (arXiv [2609.34990](https://arxiv.org/abs/2609.34990)). Every problem has a belief about its
success rate. For each rollout its own reward is taken out of the belief, which then gives the
chance $w_S$ that $S$ rollouts of the group are right. The advantage of a right rollout is GRPO's,
averaged over these chances,

$$A = \sum_{S=1}^{n-1} w_S \sqrt{\frac{n - S}{S}},$$

and that of a wrong one is the same with right and wrong exchanged, and negative. Problems are
drawn by the predicted chance of a mixed group. *Text.*
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from scipy.special import betaln, gammaln

from workbench.methods import Method, Uniform, method
from workbench.rules.curricula import ByPosteriors, draw_by_weight, rng_of
from workbench.rules.success_rates import RemembersPosteriors, outcomes
from workbench.slots import Context, Pool, Problems, Rollouts
from workbench.utils.bounds import Count, at_least


def mixed_group_probability(a: Any, b: Any, n: int) -> np.ndarray:
    """Chance that n rollouts are neither all right nor all wrong when the success rate is Beta(a,
    b).

    >>> float(mixed_group_probability(1.0, 1.0, 8).round(4))
    0.7778
    """

    a = np.asarray(a, dtype=np.float64)
    b = np.asarray(b, dtype=np.float64)
    # In logarithms, since Beta functions of many visits underflow.
    all_right = np.exp(betaln(a + n, b) - betaln(a, b))
    all_wrong = np.exp(betaln(a, b + n) - betaln(a, b))
    return 1 - all_right - all_wrong


@dataclass
class Mapp(ByPosteriors):
    """Draws problems in proportion to the predicted chance that their group will be mixed.

    The prediction is that of a Beta-binomial: with a, b the posterior of a problem and n rollouts,
    1 - B(a + n, b) / B(a, b) - B(a, b + n) / B(a, b).

    Attributes
    ----------
    rollouts : int
        Rollouts of a group (n above).
    factor : int
        Candidates for each problem of a round.
    decay : float
        Factor on what was believed before, at each visit; it decays towards the prior Beta(1, 1).

    References
    ----------
    MaPP (arXiv 2609.34990), the problem part; factor 8, decay .5.
    """

    rollouts: Annotated[int, at_least(2)] = 8
    factor: Count = 8
    decay: float = 0.5

    def _places(self, problems: Problems, n: int, pool: Pool, context: Context) -> np.ndarray:
        belief = self.posteriors.of([problem.id for problem in problems])
        scores = mixed_group_probability(belief[:, 0], belief[:, 1], self.rollouts)
        return draw_by_weight(scores, n, rng_of(context))


def marginal_advantages(a: Any, b: Any, n: Any) -> np.ndarray:
    """Expected advantage of a right response whose n - 1 neighbours follow a Beta(a, b), (P,).

    References
    ----------
    MaPP (arXiv 2609.34990).

    Examples
    --------
    >>> marginal_advantages([1.0], [4.0], [4]).round(4)
    array([1.3414])
    """

    # A parameter of 0 stands for a response that is not there; its value is not used.
    a = np.maximum(np.asarray(a, dtype=np.float64), np.finfo(float).tiny)
    b = np.maximum(np.asarray(b, dtype=np.float64), np.finfo(float).tiny)
    n = np.asarray(n, dtype=np.int64)
    total = np.zeros(len(n))
    # A term for each number of right responses in the group, this one included. Logarithms, since
    # binomials and Beta functions leave the range of floats.
    for right in range(1, int(n.max(initial=1))):
        larger = np.flatnonzero(n > right)
        wrong = n[larger] - right
        log_choose = gammaln(n[larger]) - gammaln(right) - gammaln(wrong + 1)
        log_weight = log_choose + betaln(a[larger] + right - 1, b[larger] + wrong)
        log_weight -= betaln(a[larger], b[larger])
        total[larger] += np.exp(log_weight) * np.sqrt(wrong / right)
    return total


@dataclass
class Marginalized(RemembersPosteriors):
    """GRPO's advantage averaged over what the other responses of the group could have been.

    The others are drawn from the posterior of the problem without the response itself. With its
    numbers a and b and S - 1 of the other n - 1 right with the Beta-binomial probability w_S, a
    right response has the sum over S < n of w_S sqrt((n - S) / S), and a wrong one minus the same
    with a and b exchanged.

    Attributes
    ----------
    decay : float
        Of the posterior, towards the prior Beta(1, 1), at each visit.

    References
    ----------
    MaPP (arXiv 2609.34990); decay .5 is the best of six.
    """

    decay: float = 0.5

    def __call__(self, rollouts: Rollouts, context: Context) -> np.ndarray:
        """(R,) float64."""
        ids, correct, tries = outcomes(rollouts)
        _, problem_of_row = rollouts.problems()
        belief = self.posteriors.after(ids, correct, tries)
        # The posterior without the response itself has one right outcome less, or one wrong one.
        of_right = marginal_advantages(belief[:, 0] - 1, belief[:, 1], tries)
        of_wrong = -marginal_advantages(belief[:, 1] - 1, belief[:, 0], tries)
        return np.where(rollouts.correct, of_right[problem_of_row], of_wrong[problem_of_row])


@method(paper="MaPP (arXiv 2609.34990)", decides="curriculum")
def mapp(n: int = 8, decay: float = 0.5, factor: int = 8) -> Method:
    """MaPP: problems likely to be mixed, and advantages averaged over a posterior.

    References
    ----------
    MaPP (arXiv 2609.34990): decay .5, 8 candidates for each problem.
    """
    return Method(
        "mapp",
        # Curriculum and advantage have a posterior each, which see the same outcomes and decay
        # alike.
        curriculum=Mapp(rollouts=n, factor=factor, decay=decay),
        allocator=Uniform(n),
        advantage=Marginalized(decay),
    )
