r"""Success rates near one half, drawn from a belief.

MoPPS (arXiv [2507.04632](https://arxiv.org/abs/2507.04632)). Every problem has a belief
$\text{Beta}(\alpha, \beta)$ about its success rate. From many candidates, each with one draw
$\hat\gamma$ from its belief, the problems with the smallest

$$(\hat\gamma - 0.5)^2$$

are taken. Because of the draws, a problem of which little is known is sometimes taken even if its
mean is far from one half. After the round the belief decays towards its prior and counts the new
rollouts. *Released code.*
"""

from dataclasses import dataclass

import numpy as np

from workbench.methods import Method, Uniform, method
from workbench.rules.curricula import ByPosteriors, rng_of
from workbench.slots import Context, Pool, Problems
from workbench.utils.bounds import Count, Interval, Share


@dataclass
class Mopps(ByPosteriors):
    """Draws a success rate for each candidate from its posterior, and keeps those nearest to a
    target.

    Attributes
    ----------
    factor : int
        Candidates for each problem of a round.
    target : float
        The success rate that is wanted.
    interval : (low, high), optional
        Choose uniformly among the candidates whose drawn rate lies in it, and fill up with those
        nearest to it, in place of the nearest to `target`.
    decay : float
        Factor on what was believed before, at each visit; it decays towards the prior Beta(1, 1).

    References
    ----------
    MoPPS (arXiv 2507.04632); factor 16 on MATH and 8 on Countdown, target .5, interval .3 to .7,
    decay 1 on MATH and .5 on Countdown (released configuration).
    """

    factor: Count = 16
    target: Share = 0.5
    interval: Interval | None = None
    decay: float = 1.0

    def _places(self, problems: Problems, n: int, pool: Pool, context: Context) -> np.ndarray:
        rng = rng_of(context)
        belief = self.posteriors.of([problem.id for problem in problems])
        drawn = rng.beta(belief[:, 0], belief[:, 1])
        if self.interval is None:
            order = np.argsort((drawn - self.target) ** 2, kind="stable")
        else:
            low, high = self.interval
            distance = np.maximum(np.maximum(low - drawn, drawn - high), 0.0)
            # Inside the interval all are at distance 0, and the draw decides between them.
            order = np.lexsort((rng.random(len(drawn)), distance))
        # In the order of the epoch, whatever rates were drawn.
        return np.sort(order[:n])


@method(paper="MoPPS (arXiv 2507.04632)", decides="curriculum")
def mopps(n: int = 8, curriculum: Mopps | None = None) -> Method:
    """MoPPS: problems whose success rate, drawn from a posterior, is nearest to one half.

    Parameters
    ----------
    n : int
    curriculum : Mopps, optional
        None: with the settings of the paper.

    References
    ----------
    MoPPS (arXiv 2507.04632): 8 rollouts, clip 0.2 and 0.28.
    """
    return Method("mopps", curriculum=curriculum or Mopps(), allocator=Uniform(n))
