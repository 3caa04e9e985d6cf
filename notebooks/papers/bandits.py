"""CBS's theory where the truth is known: regret on a synthetic contextual bandit, and the
quantities of its bounds (CBS, arXiv 2602.08499, section 5).

In each round M arms show their features; a policy chooses one and sees a noisy reward of it.
`Bandit` knows the true rewards, so that regret can be counted. `neural_tangent_kernel`,
`effective_dimension`, `norm` and `bound_parts` are those of theorem 5.4. `best_reachable` checks
theorem 5.3 by trying every scheduler of a tiny case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

import numpy as np
import pandas as pd

from papers.intervals import Interval
from workbench.rules.scheduler import Learner, epsilon
from workbench.utils.seeding import generator
from workbench.utils.validation import one_of, positive_number, whole_number

__all__ = [
    "POLICIES",
    "REWARDS",
    "Bandit",
    "best_reachable",
    "bound_parts",
    "effective_dimension",
    "growth_exponent",
    "neural_tangent_kernel",
    "norm",
    "regret",
]

# Of the part x along the hidden direction, from -1 to 1; all values lie in [0, 1]. "none" depends
# on nothing, so that there is nothing to learn and regret is 0 for every policy.
REWARDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": lambda x: (1 + x) / 2,
    "quadratic": lambda x: x**2,
    "cosine": lambda x: (1 + np.cos(3 * x)) / 2,
    "none": lambda x: np.full_like(x, 0.5),
}
POLICIES = ("cbs", "greedy", "random", "oracle")


@dataclass(frozen=True)
class Bandit:
    """M arms a round, with features of Euclidean length 1 and true rewards in [0, 1].

    All arms of all rounds follow from the seed, so that policies meet the same ones.

    Attributes
    ----------
    arms, dimension : int
    reward : {"linear", "quadratic", "cosine", "none"}
        How the true reward depends on the arm's part along a hidden direction.
    noise : float
        Deviation of what is observed.
    seed : int

    References
    ----------
    CBS (arXiv 2602.08499), assumption 5.1.
    """

    arms: int = 10
    dimension: int = 10
    reward: str = "linear"
    noise: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("reward", self.reward, REWARDS)
        whole_number("arms", self.arms, 1)
        whole_number("dimension", self.dimension, 1)
        positive_number("noise", self.noise, zero=True)

    def rounds(self, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Features (n, M, D), true rewards (n, M) and observed rewards (n, M) of n rounds."""
        # The reward is part of the key, so bandits of two rewards differ in their arms as well.
        rng = generator(self.seed, "bandit", self.reward)
        # The directions of normal draws are spread evenly over the sphere.
        hidden = _unit(rng.normal(size=self.dimension))
        features = _unit(rng.normal(size=(n, self.arms, self.dimension)))
        truth = REWARDS[self.reward](features @ hidden)
        return features, truth, truth + self.noise * rng.normal(size=truth.shape)


def regret(
    bandit: Bandit,
    policy: str,
    rounds: int,
    *,
    choices: int = 1,
    seed: int = 0,
    warmup: int = 50,
    start: float = 1.0,
    decay: float = 0.008,
    floor: float = 0.2,
    learning_rate: float = 1e-3,
    width: int = 64,
    depth: int = 3,
    optimizer: str = "adam",
    batch: int = 16,
) -> np.ndarray:
    """Cumulative regret of a policy after each round.

    Parameters
    ----------
    bandit : Bandit
    policy : {"cbs", "greedy", "random", "oracle"}
        "cbs" scores arms with a `Learner` and follows it but for epsilon (equation 9). Exploring,
        it takes the newest arm, which here, as all are new, is any arm. "greedy" is the same
        without exploration, as in the analysis; "random" chooses blindly; "oracle" knows the truth.
    rounds : int
    choices : int
        Different arms chosen in each round, K. The reward of each is seen, and the regret is that
        to the K best arms.
    seed : int
        Of the policy.
    warmup, start, decay, floor
        As in `scheduler.epsilon`.
    learning_rate, width, depth, optimizer
        As in `scheduler.Learner`.
    batch : int
        After each round one squared-error step is taken, on the chosen arms of this round and of
        `batch` - 1 earlier ones drawn at random: with one arm a round, one pair alone would be a
        very small batch.

    Returns
    -------
    (rounds,) float64
        It never falls.

    References
    ----------
    CBS (arXiv 2602.08499), equation 13; appendix C for more than one choice.
    """
    one_of("policy", policy, POLICIES)
    whole_number("choices", choices, 1, bandit.arms)
    features, truth, seen = bandit.rounds(rounds)
    rng = generator(seed, "bandit policy", policy)
    # Policies that learn nothing choose all rounds at once; only a learner must go round by
    # round.
    if policy == "oracle":
        chosen = _best(truth, choices)
    elif policy == "random":
        chosen = _blind(rng, truth.shape, choices)
    else:
        # The greedy policy is the same learner with no chance of exploring.
        chances = np.zeros(rounds)
        if policy == "cbs":
            numbers = range(1, rounds + 1)
            chances = np.array([epsilon(t, warmup, start, decay, floor) for t in numbers])
        learner = Learner(
            int(rng.integers(2**63)), width, depth, learning_rate, optimizer, bandit.dimension
        )
        # The coins of all rounds are thrown beforehand: they do not depend on what is learnt.
        explore = rng.random((rounds, choices)) < chances[:, None]
        chosen = _learnt(learner, features, seen, explore, rng, batch)
    # Regret is counted in true rewards, which the policy never sees, and not in the noisy ones.
    # Both are added up in the order of their size, so that equal sets have exactly equal sums.
    best = np.sort(np.take_along_axis(truth, _best(truth, choices), axis=1), axis=1)
    taken = np.sort(np.take_along_axis(truth, chosen, axis=1), axis=1)
    return np.cumsum(best.sum(axis=1) - taken.sum(axis=1))


def growth_exponent(
    regrets: Any,
    rng: np.random.Generator,
    *,
    start: float = 0.25,
    level: float = 0.95,
    resamples: int = 1000,
) -> Interval:
    """Exponent a of regret ~ T^a, with its bootstrap interval over runs.

    The slope of log mean regret against log T. 1 is linear, below 1 sublinear, 0.5 the bound of
    theorem 5.4. It is a slope of the mean over runs, not a mean over runs of slopes, which is why
    it is bootstrapped.

    Parameters
    ----------
    regrets : (S, T)
        Cumulative regret of S runs.
    rng : numpy.random.Generator
        Draws runs with replacement.
    start : float
        Rounds from this share of T on are read.
    level : float
        Probability of the interval.
    resamples : int

    Returns
    -------
    Interval
        NaN where there is no regret. One run has no interval.
    """
    regrets = np.asarray(regrets, dtype=np.float64)
    if regrets.ndim != 2 or regrets.shape[1] < 4:
        raise ValueError(
            f"regrets {regrets.shape}: (runs, rounds) with at least 4 rounds is needed"
        )
    rounds = np.arange(1, regrets.shape[1] + 1)
    # The first rounds are left out: CBS explores blindly in its warm-up, with a regret that is
    # linear.
    late = rounds >= max(1, start * regrets.shape[1])
    x = np.log(rounds[late])
    # The mean over runs first, then one slope: single runs may have stretches without any regret,
    # of which there is no logarithm.
    estimate = _slope(x, regrets.mean(axis=0)[late])
    if len(regrets) < 2 or np.isnan(estimate):
        return Interval(estimate, np.nan, np.nan)
    draws = rng.integers(len(regrets), size=(resamples, len(regrets)))
    slopes = [_slope(x, regrets[rows].mean(axis=0)[late]) for rows in draws]
    # Percentiles of the slopes of resampled sets of runs.
    low, high = np.quantile(slopes, [0.5 - level / 2, 0.5 + level / 2])
    return Interval(estimate, float(low), float(high))


def neural_tangent_kernel(features: Any, depth: int = 3) -> np.ndarray:
    """The neural tangent kernel of a ReLU network between rows of length 1.

    For unit rows the expectations have closed forms: with correlation c, E[relu relu] is
    (sqrt(1 - c^2) + c (pi - arccos c)) / (2 pi) and E[step step] is (pi - arccos c) / (2 pi).

    Parameters
    ----------
    features : (n, D)
        Rows of Euclidean length 1.
    depth : int
        Layers of the network with the output layer, as of `workbench.rules.scheduler.Scheduler`.

    Returns
    -------
    (n, n) float64

    References
    ----------
    CBS (arXiv 2602.08499), definition B.1; Cho and Saul 2009.
    """
    features = np.asarray(features, dtype=np.float64)
    if features.ndim != 2 or not np.allclose(np.linalg.norm(features, axis=1), 1):
        raise ValueError(
            f"features {features.shape}: rows of Euclidean length 1, (n, D), are needed "
            "(assumption 5.1)"
        )
    whole_number("depth", depth, 1)
    covariance = features @ features.T
    kernel = covariance
    # One hidden layer after another. Expectations count twice, since the variance of the initial
    # weights has a factor of 2, which keeps the diagonal of the covariance at 1.
    for _ in range(depth - 1):
        # Rounding may leave a correlation slightly beyond 1, where arccos is NaN.
        c = np.clip(covariance, -1, 1)
        angle = np.pi - np.arccos(c)
        covariance = (np.sqrt(1 - c**2) + c * angle) / np.pi
        kernel = kernel * angle / np.pi + covariance
    return (kernel + covariance) / 2


def effective_dimension(kernel: Any) -> float:
    """log det(I + H) / log(1 + n) of a kernel matrix H (n, n) (CBS, theorem 5.4)."""
    kernel = np.asarray(kernel, dtype=np.float64)
    # The logarithm of the determinant at once: the determinant itself overflows for many arms.
    _, log_determinant = np.linalg.slogdet(np.eye(len(kernel)) + kernel)
    return float(log_determinant / np.log(1 + len(kernel)))


def norm(kernel: Any, rewards: Any) -> float:
    """S = sqrt(r' H^-1 r), small where the reward is smooth (CBS, theorem 5.4).

    Parameters
    ----------
    kernel : (n, n)
        H, not singular: no two arms may have the same features (assumption 5.2).
    rewards : (n,)
    """
    kernel = np.asarray(kernel, dtype=np.float64)
    rewards = np.asarray(rewards, dtype=np.float64)
    # Eigenvalues come in rising order. With equal arms the smallest would be 0 up to rounding,
    # and the solution below would be made of that rounding.
    least = np.linalg.eigvalsh(kernel)[0]
    if least <= 1e-10 * len(kernel):
        raise ValueError(
            f"kernel: its least eigenvalue is {least:.1e}; no two arms may have the same features "
            "(assumption 5.2)"
        )
    return float(np.sqrt(rewards @ np.linalg.solve(kernel, rewards)))


def bound_parts(bandit: Bandit, rounds: Iterable[int]) -> pd.DataFrame:
    """What theorem 5.4's bound consists of after each number of rounds.

    Parameters
    ----------
    bandit : Bandit
    rounds : numbers of rounds T
        Time is cubic in T times the arms.

    Returns
    -------
    DataFrame, indexed by T
        d, the `effective_dimension` of all arms' kernel; S, the `norm` of all true rewards; bound,
        sqrt(T) (d + S sqrt(d)) + sqrt(T), with the theorem's constants and logarithms left out.
    """
    rounds = list(rounds)
    rows = []
    for n in rounds:
        # The bound is about all arms of all rounds, whether they were chosen or not.
        features, truth, _ = bandit.rounds(n)
        kernel = neural_tangent_kernel(features.reshape(-1, bandit.dimension))
        d = effective_dimension(kernel)
        s = norm(kernel, truth.ravel())
        # sqrt(T) (d + S sqrt(d)) + sqrt(T), with sqrt(T) taken out.
        rows.append((d, s, np.sqrt(n) * (d + s * np.sqrt(d) + 1)))
    return pd.DataFrame(rows, columns=["d", "S", "bound"], index=rounds).rename_axis("T")


def best_reachable(
    buffer: int,
    rounds: int,
    step: Callable[[Any, int], Any],
    performance: Callable[[Any], float],
    kinds: int = 2,
) -> float:
    """Theorem 5.3's optimum by brute force: the best expected maximum of the performance.

    One rollout is sampled a round, of each of `kinds` kinds with equal chance, and one is chosen
    from the last `buffer` rounds by a score of (kind, age). Every order of those pairs is tried,
    which is every scheduler there is.

    Parameters
    ----------
    buffer, rounds : int
    step : function
        step(state, kind) is the state after training; the first state is 0.
    performance : function
        performance(state) is its worth.
    kinds : int

    Returns
    -------
    float
        The paper's claim: it never falls with the buffer.
    """
    whole_number("rounds", rounds, 1)
    whole_number("buffer", buffer, 1, rounds)
    # With equal chances for the kinds all sequences are equally likely, so that the mean over
    # them is the expectation, without any sampling.
    sequences = list(product(range(kinds), repeat=rounds))
    # A scheduler that scores (kind, age) is known by the order in which it prefers these pairs.
    arms = list(product(range(kinds), range(buffer)))
    best = -np.inf
    for order in permutations(arms):
        rank = {arm: place for place, arm in enumerate(order)}
        reached = [_reached(sampled, rank, buffer, step, performance) for sampled in sequences]
        best = max(best, float(np.mean(reached)))
    return best


def _reached(
    sampled: Sequence[int],
    rank: Mapping[tuple[int, int], int],
    buffer: int,
    step: Callable[[Any, int], Any],
    performance: Callable[[Any], float],
) -> float:
    """The highest performance when round t trains on the first in rank of the last rounds'
    rollouts.
    """
    state = 0
    reached = -np.inf
    for t in range(len(sampled)):
        # In the first rounds the buffer is not full yet.
        arms = [(sampled[t - age], age) for age in range(min(buffer, t + 1))]
        kind, _ = min(arms, key=lambda arm: rank[arm])
        state = step(state, kind)
        reached = max(reached, performance(state))
    return reached


def _best(values: np.ndarray, choices: int) -> np.ndarray:
    """The arms of the highest values in each round, the best first, (T, K)."""
    # Stable, so that of equal values the first one counts as the best.
    return np.argsort(-values, axis=1, kind="stable")[:, :choices]


def _blind(rng: np.random.Generator, shape: tuple[int, int], choices: int) -> np.ndarray:
    """Different arms drawn at random for each round, (T, K)."""
    rounds, arms = shape
    every_round = np.arange(rounds)
    order = np.tile(np.arange(arms), (rounds, 1))
    # The first steps of a shuffle: each place takes one of the arms that no earlier place took.
    for place in range(choices):
        drawn = place + rng.integers(arms - place, size=rounds)
        taken = order[every_round, drawn]
        order[every_round, drawn] = order[:, place]
        order[:, place] = taken
    return order[:, :choices]


def _learnt(
    learner: Learner,
    features: np.ndarray,
    seen: np.ndarray,
    explore: np.ndarray,
    rng: np.random.Generator,
    batch: int,
) -> np.ndarray:
    """Arms chosen by a learner, (T, K), where `explore` (T, K) has a coin for each pick."""
    rounds, choices = explore.shape
    chosen = np.empty((rounds, choices), dtype=np.int64)
    for t in range(rounds):
        # Scores are needed only where a pick follows them.
        scores = None if explore[t].all() else learner.scores(features[t])
        chosen[t] = _picks(scores, explore[t], seen.shape[1], rng)
        # Earlier rounds are drawn with replacement; the first round has none.
        earlier = rng.integers(t, size=min(t, batch - 1)) if t else np.empty(0, np.int64)
        rows = np.append(earlier, t).astype(np.int64)
        # Only the rewards of the chosen arms were seen, so nothing is learnt of the others.
        places = (rows[:, None], chosen[rows])
        learner.update(features[places].reshape(-1, features.shape[2]), seen[places].ravel())
    return chosen


def _picks(
    scores: np.ndarray | None, explore: np.ndarray, arms: int, rng: np.random.Generator
) -> list[int]:
    """Different arms, each the best of those left or any of them (CBS, equation 8)."""
    left = list(range(arms))
    picked = []
    for exploring in explore:
        if exploring:
            place = int(rng.integers(len(left)))
        else:
            assert scores is not None
            place = int(scores[left].argmax())
        picked.append(left.pop(place))
    return picked


def _slope(x: np.ndarray, regret: np.ndarray) -> float:
    """Slope of log regret against x; NaN where there is no regret."""
    if (regret <= 0).any():
        return float("nan")
    return float(np.polyfit(x, np.log(regret), 1)[0])


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)
