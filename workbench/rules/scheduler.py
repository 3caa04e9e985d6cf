"""The learnt scheduler of CBS: which rollouts pay, learnt from what training on them brought.

CBS is "Contextual Rollout Bandits for RLVR" (arXiv 2602.08499). The pure functions come first, each
an equation of the paper: `features` (table 1), `epsilon` (equation 9), `round_reward` (equations 5
and 10), `rollout_rewards` (equation 11) and `epsilon_greedy` (equation 8). `Learner` is the network
with its squared-error step (equation 7), and `Scheduler` is the selector that a method holds.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import tanh
from time import perf_counter
from typing import Annotated, Any

import numpy as np

from workbench.slots import Context, PerProblem, Rollouts, Selection, Slot, state_field
from workbench.utils.bounds import (
    Count,
    CountOrZero,
    Flag,
    Positive,
    PositiveOrZero,
    Share,
    at_least,
    choice,
)
from workbench.utils.groups import floored, group_numbers, place_within
from workbench.utils.seeding import generator
from workbench.utils.validation import number, one_of, whole_number

# The network's inputs, in the order of its columns.
FEATURES = (
    "reward",
    "advantage",
    "group_mean",
    "group_std",
    "length",
    "truncated",
    "entropy",
    "clip_ratio",
    "uses",
    "age",
)
SCALINGS = ("standard", "unit", "none")
ORDERS = ("before", "after")
CONSTANT_SPREAD = 1e-9  # relative spread below which a feature counts as constant
PLANNED = 500  # rounds of the schedule in table 4
SHORTEST_PLANNED = 50  # no run is scaled to fewer rounds


# The paper's equations


def features(rollouts: Rollouts, max_length: float | None = None) -> np.ndarray:
    """What is known of every candidate.

    Parameters
    ----------
    rollouts : Rollouts (R rows)
        With the columns `advantage` and `age` (rounds since it was sampled). `uses` (times it was
        chosen for training) and `clip_ratio` (at its latest use, NaN before the first) count as 0
        where they are missing. The column `entropy` is read as that at the latest use, or when it
        was sampled, in nats.
    max_length : float, optional
        Tokens that make length 1; the longest candidate without one.

    Returns
    -------
    (R, 10) float64
        Columns in the order of `FEATURES`. Group mean and population deviation are over the
        candidates of a `group`.

    Raises
    ------
    ValueError
        For a missing column, and for numbers that are not finite.

    References
    ----------
    CBS (arXiv 2602.08499), table 1.
    """
    size = len(rollouts)
    reward = np.asarray(rollouts.reward, dtype=np.float64)
    _, groups, sizes = group_numbers(rollouts.group)
    mean = (np.bincount(groups, reward, len(sizes)) / sizes)[groups]
    deviation = np.sqrt(np.bincount(groups, (reward - mean) ** 2, len(sizes)) / sizes)[groups]
    if max_length is None:
        max_length = max(1, rollouts.lengths.max(initial=1))
    zeros = np.zeros(size)
    clip_ratio = np.asarray(rollouts.columns.get("clip_ratio", zeros), dtype=np.float64)
    columns = {
        "reward": reward,
        "advantage": rollouts["advantage"],
        "group_mean": mean,
        "group_std": deviation,
        "length": rollouts.lengths / max_length,
        "truncated": rollouts.truncated,
        "entropy": rollouts.entropy,
        "clip_ratio": np.where(np.isnan(clip_ratio), 0.0, clip_ratio),
        "uses": rollouts.columns.get("uses", zeros),
        "age": rollouts["age"],
    }
    table = np.column_stack([np.asarray(columns[name], dtype=np.float64) for name in FEATURES])
    not_finite = ~np.isfinite(table)
    if not_finite.any():
        row, number = np.argwhere(not_finite)[0]
        name = FEATURES[number]
        raise ValueError(f"features: {name} of rollout {row} is {table[row, number]}, not finite")
    return table


def scaled(table: np.ndarray, scaling: str = "standard") -> np.ndarray:
    """Features (R, F) as the network reads them, (R, F) float64.

    The paper does not say how features are scaled.

    Parameters
    ----------
    table : (R, F)
    scaling : {"standard", "unit", "none"}
        "standard": mean 0 and deviation 1 over the candidates, a constant feature 0. Choosing needs
        only differences between candidates, and counts, lengths and entropies then weigh alike
        whatever their units. "unit": every row of Euclidean length 1, as the theory assumes
        (assumption 5.1). "none": as they are.
    """
    one_of("scaling", scaling, SCALINGS)
    table = np.asarray(table, dtype=np.float64)
    if scaling == "none" or not len(table):
        return table
    if scaling == "unit":
        norms = np.linalg.norm(table, axis=1, keepdims=True)
        return table / np.maximum(norms, np.finfo(float).tiny)
    spread = np.ptp(table, axis=0)
    constant = spread <= CONSTANT_SPREAD * np.maximum(1.0, np.abs(table).max(axis=0))
    deviation = np.where(constant, 1.0, table.std(axis=0))
    return np.where(constant, 0.0, (table - table.mean(axis=0)) / deviation)


def epsilon(
    t: int, warmup: int = 50, start: float = 1.0, decay: float = 0.008, floor: float = 0.2
) -> float:
    """Probability that a pick in round t takes the newest candidate instead of the best one.

    1 up to round `warmup`, then max(start - (t - 1) decay, floor); t counts from 1.

    References
    ----------
    CBS (arXiv 2602.08499), equation 9; the defaults are those of table 4 for GRPO.

    Examples
    --------
    >>> epsilon(50), epsilon(51), epsilon(101)
    (1.0, 0.6, 0.2)
    """
    return 1.0 if t <= warmup else max(start - (t - 1) * decay, floor)


def scaled_schedule(planned: int | None) -> dict[str, Any]:
    """The schedule of table 4, from its 500 rounds scaled to a number of rounds.

    Parameters
    ----------
    planned : int or None
        Rounds of the run. Without them all values are None, and the scheduler takes the length of
        the run when it begins.

    Returns
    -------
    dict
        Of the arguments of `Scheduler`: warmup, in rounds; decay, of the chance to explore in a
        round; and learning_rate.

    References
    ----------
    CBS (arXiv 2602.08499), table 4.

    Examples
    --------
    >>> scaled_schedule(250)
    {'warmup': 25, 'decay': 0.016, 'learning_rate': 0.0002}
    """
    if planned is None:
        return dict.fromkeys(("warmup", "decay", "learning_rate"))
    whole_number("planned", planned, 1)
    faster = PLANNED / planned
    return {"warmup": round(50 / faster), "decay": 0.008 * faster, "learning_rate": 1e-4 * faster}


def round_reward(
    before: tuple[float, float],
    after: tuple[float, float],
    average: tuple[float, float] | None = (0.0, 1.0),
    *,
    alpha: float = 0.9,
    weight: float = 100.0,
    least: float = 0.1,
    order: str = "before",
) -> tuple[float, tuple[float, float] | None]:
    """What training in round t brought, and the new moving average.

    The gain is the growth of the mean reward. It is standardised by its moving average and squeezed
    by the sigmoid. A growth of the entropy is charged once the entropy before is above `least`.

    Parameters
    ----------
    before, after : (mean reward, mean entropy in nats)
        Of the rollouts sampled in rounds t and t + 1.
    average : (mean, variance) or None
        The moving average so far; None gives the plain gain (equation 5). The start (0, 1) is
        neutral for gains within [-1, 1]; the paper gives none.
    alpha : float
        Weight of the newest gain in the moving average.
    weight : float
        Charge for one nat of growth of the entropy.
    least : float
        Entropy in nats below which nothing is charged.
    order : {"before", "after"}
        "before" updates the average first, as the indices of the equation are printed; at alpha=0.9
        the gain then moves its own mean so far that the sigmoid stays within [.26, .74]. "after"
        uses the average of the earlier rounds; since the variance is taken around the mean just
        updated it is small, and the sigmoid often comes near to 0 or 1.

    Returns
    -------
    reward : float
    average : (mean, variance), or None

    References
    ----------
    CBS (arXiv 2602.08499), equations 5 and 10.
    """
    one_of("order", order, ORDERS)
    gain = after[0] - before[0]
    growth = after[1] - before[1]
    charge = weight * growth if weight and before[1] > least else 0.0
    if average is None:
        return gain - charge, None
    mean = (1 - alpha) * average[0] + alpha * gain
    variance = (1 - alpha) * average[1] + alpha * (gain - mean) ** 2
    updated = (mean, variance)
    centre, spread = updated if order == "before" else average
    # The smallest float keeps a variance of 0 from dividing by zero, and tanh gives the sigmoid
    # without overflow.
    z = (gain - centre) / max(spread, np.finfo(float).tiny) ** 0.5
    sigmoid = 0.5 * (1 + tanh(z / 2))
    return sigmoid - charge, updated


def rollout_rewards(advantages: Any, reward: float) -> np.ndarray:
    """The round's reward shared out: |advantage| times it, (K,).

    References
    ----------
    CBS (arXiv 2602.08499), equation 11, which is equation 6 without its denominator.
    """
    return np.abs(np.asarray(advantages, dtype=np.float64)) * reward


def epsilon_greedy(
    scores: Any, ages: Any, explore: Any, groups: Any = None, picks: Any = None, lots: Any = None
) -> np.ndarray:
    """Rows chosen one after the other, each the best or the newest of those that are left.

    Parameters
    ----------
    scores, ages : (R,)
    explore : (K,) bool
        One coin for each pick: True takes the lowest age, False the highest score.
    groups : (R,), picks : (K,), optional
        Group numbers from 0: pick i chooses within group picks[i]. Without them there is one group.
    lots : (R,), optional
        Random numbers that decide between rows of equal score or age: the lower lot goes first.

    Returns
    -------
    rows : (K,) int64, in the order of the picks
        Without lots, ties go to the lower row.

    Raises
    ------
    ValueError
        For more picks than rows.

    References
    ----------
    CBS (arXiv 2602.08499), equation 8.

    Examples
    --------
    >>> epsilon_greedy(scores=[0.1, 0.9, 0.5], ages=[0, 2, 1], explore=[False, True])
    array([1, 0])
    """
    scores = np.asarray(scores, dtype=np.float64)
    ages = np.asarray(ages)
    explore = np.asarray(explore, dtype=bool)
    groups = np.asarray(np.zeros(len(scores)) if groups is None else groups, dtype=np.int64)
    picks = np.asarray(np.zeros(len(explore)) if picks is None else picks, dtype=np.int64)
    lots = np.zeros(len(scores)) if lots is None else np.asarray(lots)
    size = max(groups.max(initial=-1), picks.max(initial=-1)) + 1
    rows_of_group = np.bincount(groups, minlength=size)
    if (np.bincount(picks, minlength=size) > rows_of_group).any():
        raise ValueError(f"picks: more than the {rows_of_group.tolist()} rows of the groups")

    # Both orders are sorted once. A row that is taken from one is passed over in the other.
    ends = np.cumsum(rows_of_group)
    by_score = np.lexsort((lots, -scores, groups))
    by_age = np.lexsort((lots, ages, groups))
    best_first = [iter(rows.tolist()) for rows in np.split(by_score, ends)]
    newest_first = [iter(rows.tolist()) for rows in np.split(by_age, ends)]
    chosen: dict[int, None] = {}  # a set that keeps the order of the picks
    for exploring, group in zip(explore.tolist(), picks.tolist()):
        ranking = newest_first if exploring else best_first
        chosen[next(row for row in ranking[group] if row not in chosen)] = None
    return np.array(list(chosen), dtype=np.int64)


# The network


class Learner:
    """The score s(h): a ReLU network on the ten features, with one squared-error step a round.

    The paper gives no size. Three weight matrices are the fewest that its theorem 5.3 speaks of,
    and 64 units score thousands of rollouts in about a millisecond. It is written in NumPy, in
    single precision: at this size that is faster than a framework that builds graphs.

    Parameters
    ----------
    seed : int
        The initial weights follow from it alone. They are those of appendix B.1: N(0, 2 / width),
        in the last layer N(0, 1 / width), and biases of 0.
    width, depth : int
        Units of each hidden layer, and number of weight matrices.
    learning_rate : float
    optimizer : {"adam", "sgd"}
        "sgd" is equation 7 to the letter. Adam, since plain steps of table 4's 1e-4 hardly move a
        network within some hundred rounds.
    inputs : int

    References
    ----------
    CBS (arXiv 2602.08499), equation 7.
    """

    def __init__(
        self,
        seed: int = 0,
        width: int = 64,
        depth: int = 3,
        learning_rate: float = 1e-4,
        optimizer: str = "adam",
        inputs: int = len(FEATURES),
    ) -> None:
        rng = generator(seed, "scheduler")
        sizes = [inputs, *[width] * (depth - 1), 1]
        self.learning_rate = learning_rate
        self.optimizer = optimizer
        self.steps = 0
        self.parameters: list[np.ndarray] = []
        for layer, (rows, columns) in enumerate(pairwise(sizes)):
            is_last = layer == depth - 1
            deviation = ((1 if is_last else 2) / width) ** 0.5
            weight = rng.normal(0, deviation, (rows, columns))
            self.parameters += [weight.astype(np.float32), np.zeros(columns, np.float32)]
        # For each parameter the moving means of its gradient and of the square of it.
        self.moments = [np.zeros((2, *p.shape), np.float32) for p in self.parameters]

    def scores(self, inputs: np.ndarray) -> np.ndarray:
        """Score of every row of scaled features (R, 10): (R,) float64."""
        return self._layers(inputs)[-1][:, 0].astype(np.float64)

    def update(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        """One step on the mean squared error to targets (K,); returns the error before the step."""
        layers = self._layers(inputs)
        error = layers[-1] - np.asarray(targets, dtype=np.float32)[:, None]
        self.steps += 1
        # The slope of the mean squared error at the scores (K, 1), and then at each layer below.
        slope = 2 * error / len(error)
        for i in range(len(self.parameters) - 2, -1, -2):
            below = layers[i // 2]
            # By the weights before their step; the ReLU's slope can be read off its output.
            slope_below = (slope @ self.parameters[i].T) * (below > 0)
            for j, gradient in ((i, below.T @ slope), (i + 1, slope.sum(axis=0))):
                self.parameters[j] -= self.learning_rate * self._direction(j, gradient)
            slope = slope_below
        return float((error**2).mean())

    def state_dict(self) -> dict[str, Any]:
        """Weights, moments of the gradients, and steps done."""
        learnt = {"steps": self.steps, "parameters": self.parameters, "moments": self.moments}
        return copy.deepcopy(learnt)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what `state_dict` returned."""
        self.steps = state["steps"]
        self.parameters, self.moments = copy.deepcopy((state["parameters"], state["moments"]))

    def _layers(self, inputs: np.ndarray) -> list[np.ndarray]:
        """The inputs, and what every layer makes of them."""
        layers = [np.asarray(inputs, dtype=np.float32)]
        # Weights and biases take turns in the list.
        for i in range(0, len(self.parameters), 2):
            out = layers[-1] @ self.parameters[i] + self.parameters[i + 1]
            is_last = i + 2 == len(self.parameters)
            layers.append(out if is_last else np.maximum(out, 0, out=out))
        return layers

    def _direction(self, i: int, gradient: np.ndarray) -> np.ndarray:
        """The gradient itself, or Adam's step for it with the usual decays (Kingma and Ba 2015)."""
        if self.optimizer == "sgd":
            return gradient
        decays = np.array([0.9, 0.999], np.float32).reshape(2, *[1] * gradient.ndim)
        newest = np.stack([gradient, gradient**2])
        self.moments[i] = decays * self.moments[i] + (1 - decays) * newest
        # The moments start at zero; dividing takes out that bias, which is large in the first
        # steps.
        mean, square = self.moments[i] / (1 - decays**self.steps)
        return mean / (np.sqrt(square) + 1e-8)


@dataclass
class HasLearner(Slot):
    """Base of slot values with a network that is made in the first round and stored in checkpoints.

    `stored_as` is its name there.
    """

    learner: Learner | None = state_field(saved=False)

    stored_as = "learner"

    def state_dict(self) -> dict[str, Any]:
        """The network with its optimizer, and what else was learnt."""
        learner = {} if self.learner is None else self.learner.state_dict()
        return {**super().state_dict(), self.stored_as: learner}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what `state_dict` returned."""
        super().load_state_dict(state)
        learner = state[self.stored_as]
        self.learner = None
        if learner:
            # Its weights are replaced at once, so any seed will do.
            self.learner = self._new_learner(0, len(learner["parameters"][0]))
            self.learner.load_state_dict(learner)

    def _new_learner(self, seed: int, inputs: int) -> Learner:
        """A network that reads so many numbers of each rollout."""
        raise NotImplementedError


# The selector


@dataclass
class Scheduler(HasLearner):
    """Keeps the rollouts that a learnt score puts first, and some of the newest among them.

    Each call first learns from the round before, since it now sees what that round brought. Rounds
    without new rollouts are passed over, and the first round has nothing to learn from.

    Attributes
    ----------
    keep : float, optional
        Percent that is kept, in (0, 100], rounded down, at least one: of each group's rows, of all
        rows, or of the rows sampled in this round. None: 30 (table 4), with scope "buffer" 100.
    scope : {"group", "round", "buffer"}
        "group" takes the best of every group (definition 3.1); "round" the best of all candidates
        together (what the authors ran, appendix D); "buffer" as many of all candidates as one
        round's size (definition 3.2), together with `replay.Buffer`.
    mini_batch : int, optional
        Rollouts of one optimizer step. There are as many steps as are filled, and rollouts that do
        not fill a whole mini-batch are dropped (appendix D: 307 become 2 times 128); fewer than one
        mini-batch make one smaller step. None: all kept rows, split as the run says.
    warmup, start, decay, floor
        See `epsilon`. Without a warm-up or a decay they are those of table 4, scaled from its 500
        rounds to the rounds that the run is asked for when it begins.
    ema : bool
        False: plain gains for rewards.
    alpha, order, entropy_weight, entropy_least
        See `round_reward`; entropy_weight=0 leaves the entropy out.
    learning_rate, optimizer, width, depth
        See `Learner`. Without a rate it is that of table 4, scaled like the warm-up.
    scaling : str
        See `scaled`.
    scores : {"network", "random"}
        Random numbers in place of the network's scores are the paper's ablation; nothing is learnt
        then.

    References
    ----------
    CBS (arXiv 2602.08499), algorithm 1. Defaults are those of table 4 for GRPO, where it has them.
    """

    keep: Annotated[float, partial(number, above=0, high=100)] | None = None
    scope: Annotated[str, choice("group", "round", "buffer")] = "group"
    mini_batch: Count | None = None
    warmup: CountOrZero | None = 50
    start: Share = 1.0
    decay: PositiveOrZero | None = 0.008
    floor: Share = 0.2
    ema: Flag = True
    alpha: Share = 0.9
    order: Annotated[str, choice(*ORDERS)] = "before"
    entropy_weight: PositiveOrZero = 100.0
    entropy_least: PositiveOrZero = 0.1
    learning_rate: Positive | None = 1e-4
    optimizer: Annotated[str, choice("adam", "sgd")] = "adam"
    width: Count = 64
    depth: Annotated[int, at_least(2)] = 3
    scaling: Annotated[str, choice(*SCALINGS)] = "standard"
    scores: Annotated[str, choice("network", "random")] = "network"

    # What it has learnt beside the network: the moving average of the gains, the round that waits
    # for its reward, and what the latest call measured.
    average: tuple[float, float] = state_field(lambda: (0.0, 1.0))
    pending: dict | None = state_field()
    measured: dict = state_field(dict, saved=False)
    measured_in: int = state_field(int, saved=False)  # the round of that call
    planned: int | None = state_field()  # rounds that the run was asked for when it began

    reads_verdict = False

    @property
    def needs(self) -> set[str]:  # type: ignore[override]
        """Entropies and clip ratios are among its features."""
        needs = {"entropy", "update_statistics"}
        return needs if self.mini_batch is None else needs | {"mini_batch"}

    @property
    def percentage(self) -> float:
        """`keep`, or what it is by default."""
        if self.keep is not None:
            return self.keep
        return 100 if self.scope == "buffer" else 30

    def trained(self, sampled: PerProblem) -> PerProblem:
        """The percentage that is kept; in whole mini-batches where there is a size of them."""
        kept = sampled.limited(int(self._counts(sampled.n)))
        certain = self.scope == "group" and self.mini_batch is None
        return kept if certain else PerProblem(kept.n, "about")

    def select(self, rollouts: Rollouts, context: Context) -> Selection:
        """Learn from the round before, then schedule this one."""
        started = perf_counter()
        # The seed is drawn in every round, used or not, so that the draws that follow do not depend
        # on whether the run was resumed.
        rng = context.rng("selector")
        seed = int(rng.integers(2**63))
        self.planned = self.planned or context.planned
        if self.learner is None:
            self.learner = self._new_learner(seed, len(FEATURES))
        table = features(rollouts, context.max_new_tokens)
        # Round and age of a row add up to the present round, whichever row it is.
        number = int((rollouts.round + rollouts["age"]).max(initial=1))
        now = _mean_reward_and_entropy(rollouts, context)
        learnt = self._learn(now, number)

        inputs = scaled(table, self.scaling)
        if self.scores == "random":
            scores = rng.random(len(table))
        else:
            scores = self.learner.scores(inputs)
        decay = self._scheduled("decay", self.decay, self.planned)
        warmup = self.warm_up_of(self.planned)
        chance = epsilon(number, warmup, self.start, decay, self.floor)
        rows = self._pick(scores, rollouts, chance, rng)

        # What this round brings is known only when the next one has been sampled.
        if now is not None:
            self.pending = {
                "inputs": inputs[rows],
                "advantages": table[rows, FEATURES.index("advantage")],
                "before": now,
                "round": number,
                "learnt": learnt,
            }
        self.measured = {
            **learnt,
            "scheduler_score": float(scores.mean()) if len(scores) else float("nan"),
            "scheduler_epsilon": chance,
            "seconds_scheduler": perf_counter() - started,
        }
        self.measured_in = context.round
        columns = {f"feature_{name}": table[:, i] for i, name in enumerate(FEATURES)}
        return Selection(rows, columns={"score": scores, **columns}, mini_batch=self.mini_batch)

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """A round without any candidate has measured nothing."""
        if self.measured_in != context.round:
            self.measured = {}

    def metrics(self) -> dict[str, float]:
        """Mean score, epsilon, reward, squared error and seconds of the latest call."""
        nothing = dict.fromkeys(
            ("scheduler_score", "scheduler_epsilon", "scheduler_reward", "scheduler_error"),
            float("nan"),
        )
        return {**nothing, "seconds_scheduler": 0.0, **self.measured}

    def warm_up_of(self, planned: int | None) -> int:
        """Rounds that explore alone."""
        return self._scheduled("warmup", self.warmup, planned)

    def _new_learner(self, seed: int, inputs: int) -> Learner:
        rate = self._scheduled("learning_rate", self.learning_rate, self.planned)
        return Learner(seed, self.width, self.depth, rate, self.optimizer, inputs)

    def _counts(self, sizes: Any) -> Any:
        """How many are kept of so many rollouts, (G,) int64."""
        return np.maximum(floored(sizes * self.percentage / 100), 1)

    def _scheduled(self, name: str, chosen: Any, planned: int | None) -> Any:
        """What was chosen, or what table 4 has, scaled to a run of so many rounds."""
        # A loop that asks for one round after the other says nothing about the length of the run.
        scaled = scaled_schedule(max(planned or PLANNED, SHORTEST_PLANNED))
        return scaled[name] if chosen is None else chosen

    def _learn(self, now: list[float] | None, number: int) -> dict[str, float]:
        """One step of the network on the round before, whose effect this round's rollouts show."""
        pending = self.pending
        if pending is None or now is None:
            return {}
        if pending["round"] == number:
            # A round that was interrupted is done again: its reward has been learnt from already.
            return pending["learnt"]
        reward, average = round_reward(
            tuple(pending["before"]),
            (now[0], now[1]),
            self.average if self.ema else None,
            alpha=self.alpha,
            weight=self.entropy_weight,
            least=self.entropy_least,
            order=self.order,
        )
        learnt = {"scheduler_reward": reward}
        if average is not None:
            self.average = average
        if self.scores == "network" and len(pending["advantages"]):
            assert self.learner is not None
            targets = rollout_rewards(pending["advantages"], reward)
            learnt["scheduler_error"] = self.learner.update(pending["inputs"], targets)
        return learnt

    def _pick(
        self, scores: np.ndarray, rollouts: Rollouts, chance: float, rng: np.random.Generator
    ) -> np.ndarray:
        """The rows kept, (K,) int64, ascending."""
        # What a pick chooses from: one group, or all candidates as a single one.
        keys = rollouts.group if self.scope == "group" else np.zeros(len(scores))
        _, groups, sizes = group_numbers(keys)
        # As many as one round samples, however many candidates the buffer adds.
        if self.scope == "buffer":
            sizes = np.array([np.count_nonzero(rollouts["age"] == 0)])
        counts = np.minimum(self._counts(sizes), sizes)
        # Groups take turns, so that cutting the list to whole mini-batches takes from all alike.
        picks = _taking_turns(counts)
        total = len(picks)
        # Rows that fill whole mini-batches, or all where they do not fill one.
        if self.mini_batch is not None and total > self.mini_batch:
            total -= total % self.mini_batch
        explore = rng.random(total) < chance
        # All new rollouts have the same age, so that without lots the first problems of the round
        # would be the ones that exploration takes.
        lots = rng.random(len(scores))
        rows = epsilon_greedy(scores, rollouts["age"], explore, groups, picks[:total], lots)
        return np.sort(rows)


def _mean_reward_and_entropy(candidates: Rollouts, context: Context) -> list[float] | None:
    """The means over the rollouts sampled in this round; None where there are none.

    Those that the allocator threw away count too (definition 3.3).
    """
    rollouts = context.sampled
    if rollouts is None:
        rollouts = candidates.take(candidates["age"] == 0)
    if not len(rollouts):
        return None
    # The reward of appendix D is 0 or 1. Where there are further parts, such as DAPO's penalty on
    # overlong responses, the part that says whether a rollout is correct is that reward.
    reward = rollouts.columns.get("reward_correct", rollouts.reward)
    # A list, since that is what JSON makes of a tuple in a checkpoint.
    return [float(reward.mean()), float(rollouts.entropy.mean())]


def _taking_turns(counts: np.ndarray) -> np.ndarray:
    """The group of every pick when groups take turns, (K,).

    >>> _taking_turns(np.array([2, 1]))
    array([0, 1, 0])
    """
    groups = np.repeat(np.arange(len(counts)), counts)
    return groups[np.argsort(place_within(groups), kind="stable")]
