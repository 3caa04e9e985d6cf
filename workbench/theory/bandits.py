"""CBS's theory where the truth is known: regret on a synthetic contextual bandit, and the quantities of its bounds.

In each round M arms show their features; a policy chooses one and sees a noisy reward of it, as in section 5 of the
paper. `Bandit` knows the true rewards, so that regret can be counted. `neural_tangent_kernel`, `effective_dimension`,
`norm` and `bound_parts` are those of theorem 5.4; `best_reachable` checks theorem 5.3 by trying every scheduler of a tiny case.
"""

from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from workbench.analysis.metrics import Interval
from workbench.scheduler import Learner, epsilon
from workbench.utils.seeding import generator

REWARDS = {
    "linear": lambda x: (1 + x) / 2,
    "quadratic": lambda x: x**2,
    "cosine": lambda x: (1 + np.cos(3 * x)) / 2,
    "none": lambda x: np.full_like(x, 0.5),
}
POLICIES = ("cbs", "greedy", "random", "oracle")


@dataclass(frozen=True)
class Bandit:
    """M arms a round with features (M, D) of Euclidean length 1 and true rewards in [0, 1] (assumption 5.1).

    reward: how the true reward depends on the arm's part along a hidden direction, of `REWARDS`. noise: deviation of
    what is observed. All arms of all rounds follow from the seed, so that policies meet the same ones.
    """

    arms: int = 10
    dimension: int = 10
    reward: str = "linear"
    noise: float = 0.1
    seed: int = 0

    def __post_init__(self):
        if self.reward not in REWARDS:
            raise ValueError(f"reward={self.reward!r}: allowed are {', '.join(REWARDS)}")
        for name, least in (("arms", 1), ("dimension", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: at least {least} is needed")
        if not self.noise >= 0:
            raise ValueError(f"noise={self.noise}: zero or more is needed")

    def rounds(self, n):
        """Features (n, M, D), true rewards (n, M) and observed rewards (n, M) of n rounds."""
        rng = generator(self.seed, "bandit", self.reward)
        hidden = _unit(rng.normal(size=self.dimension))
        features = _unit(rng.normal(size=(n, self.arms, self.dimension)))
        truth = REWARDS[self.reward](features @ hidden)
        return features, truth, truth + self.noise * rng.normal(size=truth.shape)


def regret(bandit, policy, rounds, *, seed=0, warmup=50, start=1.0, decay=0.008, floor=0.2, learning_rate=1e-3, width=64,
           depth=3, optimizer="adam", batch=16):  # fmt: skip
    """Cumulative regret of a policy after each round, (rounds,), eq. 13; never falls.

    policy: "cbs" scores arms with a `Learner` and follows it but for epsilon (eq. 9); exploring it takes the newest
    arm, which here, as all are new, is any arm; "greedy" is the same without exploration, as in the analysis;
    "random" chooses blindly; "oracle" knows the truth. After each round one squared-error step is taken, on this round
    and `batch` - 1 earlier ones drawn at random: with one arm a round, one pair alone would be a very small batch.
    """
    if policy not in POLICIES:
        raise ValueError(f"policy={policy!r}: allowed are {', '.join(POLICIES)}")
    features, truth, seen = bandit.rounds(rounds)
    rng = generator(seed, "bandit policy", policy)
    if policy == "oracle":
        chosen = truth.argmax(1)
    elif policy == "random":
        chosen = rng.integers(bandit.arms, size=rounds)
    else:
        chances = [
            epsilon(t, warmup, start, decay, floor) if policy == "cbs" else 0.0
            for t in range(1, rounds + 1)
        ]
        learner = Learner(
            int(rng.integers(2**63)), width, depth, learning_rate, optimizer, bandit.dimension
        )
        chosen = _learnt(learner, features, seen, rng.random(rounds) < chances, rng, batch)
    return np.cumsum(truth.max(1) - truth[np.arange(rounds), chosen])


def growth_exponent(regrets, rng, *, start=0.25, level=0.95, resamples=1000):
    """Exponent a of regret ~ T^a with its bootstrap interval over runs: `Interval`.

    regrets (S, T): cumulative regret of S runs. The slope of log mean regret against log T from round start * T on; 1
    is linear, below 1 sublinear, 0.5 the bound of theorem 5.4. NaN where there is no regret. One run has no interval.
    """
    regrets = np.asarray(regrets, dtype=np.float64)
    if regrets.ndim != 2 or regrets.shape[1] < 4:
        raise ValueError(
            f"regrets {regrets.shape}: (runs, rounds) with at least 4 rounds is needed"
        )
    rounds = np.arange(1, regrets.shape[1] + 1)
    late = rounds >= max(1, start * regrets.shape[1])
    x = np.log(rounds[late])
    estimate = _slope(x, regrets.mean(0)[late])
    if len(regrets) < 2 or np.isnan(estimate):
        return Interval(estimate, float("nan"), float("nan"))
    draws = rng.integers(len(regrets), size=(resamples, len(regrets)))
    slopes = [_slope(x, regrets[rows].mean(0)[late]) for rows in draws]
    return Interval(
        estimate, *(float(q) for q in np.quantile(slopes, [0.5 - level / 2, 0.5 + level / 2]))
    )


def neural_tangent_kernel(features, depth=3):
    """NTK matrix (n, n) of rows of length 1 (n, D) for a ReLU network of `depth` layers (definition B.1).

    For unit rows the expectations have closed forms: with correlation c, E[relu relu] is
    (sqrt(1 - c^2) + c (pi - arccos c)) / (2 pi) and E[step step] is (pi - arccos c) / (2 pi) (Cho and Saul 2009).
    """
    features = np.asarray(features, dtype=np.float64)
    if features.ndim != 2 or not np.allclose(np.linalg.norm(features, axis=1), 1):
        raise ValueError(
            f"features {features.shape}: rows of Euclidean length 1, (n, D), are needed (assumption 5.1)"
        )
    if depth < 1:
        raise ValueError(f"depth={depth}: at least 1 is needed")
    covariance = kernel = features @ features.T
    for _ in range(depth):
        c = np.clip(covariance, -1, 1)
        angle = np.pi - np.arccos(c)
        covariance = (np.sqrt(1 - c**2) + c * angle) / np.pi
        kernel = kernel * angle / np.pi + covariance
    return (kernel + covariance) / 2


def effective_dimension(kernel):
    """log det(I + H) / log(1 + n) of an NTK matrix H (n, n) (theorem 5.4)."""
    kernel = np.asarray(kernel, dtype=np.float64)
    return float(np.linalg.slogdet(np.eye(len(kernel)) + kernel)[1] / np.log(1 + len(kernel)))


def norm(kernel, rewards):
    """S = sqrt(r' H^-1 r) of an NTK matrix H (n, n) and rewards r (n,); small where the reward is smooth (theorem 5.4).

    ValueError where H is singular: two arms with the same features (assumption 5.2).
    """
    kernel, rewards = np.asarray(kernel, dtype=np.float64), np.asarray(rewards, dtype=np.float64)
    least = np.linalg.eigvalsh(kernel)[0]
    if least <= 1e-10 * len(kernel):
        raise ValueError(
            f"kernel: its least eigenvalue is {least:.1e}; no two arms may have the same features (assumption 5.2)"
        )
    return float(np.sqrt(rewards @ np.linalg.solve(kernel, rewards)))


def bound_parts(bandit, rounds):
    """What theorem 5.4's bound consists of after each number of rounds: a DataFrame (rounds x quantities), index T.

    Columns: d, the `effective_dimension` of all arms' kernel; S, the `norm` of all true rewards; bound, sqrt(T) (d + S
    sqrt(d)) + sqrt(T), with the theorem's constants and logarithms left out. Time cubic in T times the arms.
    """
    import pandas as pd

    rows = []
    for n in rounds:
        features, truth, _ = bandit.rounds(n)
        kernel = neural_tangent_kernel(features.reshape(-1, bandit.dimension))
        d, s = effective_dimension(kernel), norm(kernel, truth.ravel())
        rows.append((d, s, np.sqrt(n) * (d + s * np.sqrt(d) + 1)))
    return pd.DataFrame(rows, columns=["d", "S", "bound"], index=list(rounds)).rename_axis("T")


def best_reachable(buffer, rounds, step, performance, kinds=2):
    """Theorem 5.3's optimum by brute force: the best expected max over rounds of the performance, a number.

    One rollout is sampled a round, of each of `kinds` kinds with equal chance, and one is chosen from the last `buffer`
    rounds by a score of (kind, age); every order of those pairs is tried, which is every scheduler there is.
    step(state, kind) is the state after training, performance(state) its worth; the first state is 0.
    The paper's claim: it never falls with the buffer.
    """
    if not 1 <= buffer <= rounds:
        raise ValueError(f"buffer={buffer}: from 1 to rounds={rounds} is needed")
    sequences = list(product(range(kinds), repeat=rounds))
    best = -np.inf
    for order in permutations(list(product(range(kinds), range(buffer)))):
        rank = {arm: place for place, arm in enumerate(order)}
        best = max(
            best,
            np.mean([_reached(sampled, rank, buffer, step, performance) for sampled in sequences]),
        )
    return float(best)


def _reached(sampled, rank, buffer, step, performance):
    """The highest performance when round t trains on the first in rank of the last rounds' rollouts."""
    state, reached = 0, -np.inf
    for t in range(len(sampled)):
        kind, _ = min(((sampled[t - age], age) for age in range(min(buffer, t + 1))), key=rank.get)
        state = step(state, kind)
        reached = max(reached, performance(state))
    return reached


def _learnt(learner, features, seen, explore, rng, batch):
    """Arms chosen by a learner, (T,)."""
    rounds, arms = seen.shape
    chosen = np.empty(rounds, dtype=np.int64)
    for t in range(rounds):
        chosen[t] = rng.integers(arms) if explore[t] else learner.scores(features[t]).argmax()
        rows = np.append(
            rng.integers(t, size=min(t, batch - 1)) if t else np.empty(0, np.int64), t
        ).astype(np.int64)
        learner.update(features[rows, chosen[rows]], seen[rows, chosen[rows]])
    return chosen


def _slope(x, regret):
    if (regret <= 0).any():
        return float("nan")
    return float(np.polyfit(x, np.log(regret), 1)[0])


def _unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)
