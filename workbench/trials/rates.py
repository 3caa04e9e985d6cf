"""How success rates are distributed over problems, from a handful of responses to each.

The share right of 16 responses is a noisy estimate, and a histogram of such estimates is wider than
the rates are: it has problems at 0 and at 1 that are not there. So the distribution of the rates is
fitted by maximum likelihood, without any assumption on its form (Kiefer and Wolfowitz, 1956): it is
a mixture of fixed rates, and expectation maximisation finds their weights. Intervals come from
fitting it again to the problems with weights drawn at random.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy import stats
from scipy.special import gammaln, xlog1py, xlogy

from workbench.utils.seeding import generator

GRID = np.concatenate([[0, 0.001, 0.003], np.linspace(0.01, 0.99, 99), [0.997, 0.999, 1]])
STEPS = 1000  # of expectation maximisation
REFITS = 100  # for the intervals


class Rates:
    """The success rates of problems of which so many responses are right.

    Parameters
    ----------
    samples, correct : (P,) int64
        Responses to each problem, and how many of them are right.
    """

    def __init__(self, samples: np.ndarray, correct: np.ndarray) -> None:
        self.samples, self.correct = samples, correct

    @cached_property
    def weights(self) -> np.ndarray:
        """Weights of the rates `GRID`: those of the fit, and of its refits, (1 + REFITS, G)."""
        counted = np.stack([self.samples, self.correct], axis=1)
        pairs, here = np.unique(counted, axis=0, return_counts=True)
        # One problem more, of which any rate is as likely. With few problems, or where all are
        # solved, the fit and above all its intervals would else be far too sure.
        here = np.append(here, 1.0)
        # How often each problem is drawn, as in the Bayesian bootstrap (Rubin, 1981).
        drawn = generator(0, "profile").gamma(here, size=(REFITS, len(here)))
        counts = np.concatenate([here[None], drawn])
        counts /= counts.sum(axis=1, keepdims=True)
        likely = likelihoods(pairs[:, 0], pairs[:, 1])
        weights = np.full((len(counts), len(GRID)), 1 / len(GRID))
        for _ in range(STEPS):
            found = (counts[:, :-1] / (weights @ likely.T)) @ likely
            weights = weights * found + counts[:, -1:] / len(GRID)
        return weights

    def of_problems(self, fit: int = 0) -> np.ndarray:
        """How likely each rate of `GRID` is for each problem, (P, G), by the fit or a refit."""
        joint = likelihoods(self.samples, self.correct) * self.weights[fit]
        return joint / joint.sum(axis=1, keepdims=True)

    def expected(self, values: np.ndarray) -> np.ndarray:
        """The mean over problems of functions of the rate (..., G): it and the ends of its 95 %
        interval, (..., 3).
        """
        means = values @ self.weights.T
        mean = means[..., 0]
        low, high = np.quantile(means[..., 1:], (0.025, 0.975), axis=-1)
        # Around the fit: where it has all its weight on few rates, refits are to one side of it.
        return np.stack([mean, np.minimum(low, mean), np.maximum(high, mean)], axis=-1)

    def counted(self) -> np.ndarray:
        """The mean over problems of the share right of their samples, and the ends of its 95 %
        interval, (3,): Wilson's, with as many samples as would vary so if all were independent.
        """
        rates, problems, total = self.correct / self.samples, len(self.samples), self.samples.sum()
        mean = rates.mean()
        spread = mean * (1 - mean)
        # Where all are right or wrong, or there is one problem, samples of one may be all alike.
        alike = total / problems
        if spread > 0 and problems > 1:
            alike = max(alike * rates.var(ddof=1) / spread, 1)
        n = total / alike
        width = stats.t.ppf(0.975, max(problems - 1, 1)) ** 2 / n
        half = np.sqrt(width * (spread + width / 4))
        ends = (mean + width / 2 + np.array([-half, half])) / (1 + width)
        return np.array([mean, *ends.clip(0, 1)])

    def draw(self, number: int, seed: int) -> np.ndarray:
        """A rate for each problem (P,), drawn from what one of the refits allows."""
        cumulative = self.of_problems(1 + number % REFITS).cumsum(axis=1)
        draws = generator(seed, "rates").random((len(cumulative), 1))
        return GRID[(cumulative < draws).sum(axis=1).clip(max=len(GRID) - 1)]


def likelihoods(samples: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """The probability of the counts (P,) each at every rate of `GRID`, (P, G)."""
    n, c = samples[:, None].astype(float), correct[:, None].astype(float)
    ways = gammaln(n + 1) - gammaln(c + 1) - gammaln(n - c + 1)
    return np.exp(ways + xlogy(c, GRID) + xlog1py(n - c, -GRID))
