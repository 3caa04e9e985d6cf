"""CBS's learner: which rollouts pay, learnt from what training on them brought (contextual rollout bandits).

The pure functions first, each an equation of the paper (CBS, section 4): `features` (table 1), `epsilon` (eq. 9),
`round_reward` (eq. 5 and 10), `rollout_rewards` (eq. 11), `epsilon_greedy` (eq. 8). `Learner` is the network with its
squared-error step (eq. 7), `Scheduler` the selector that a method holds.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from math import tanh
from time import perf_counter
from typing import ClassVar

import numpy as np

from workbench.utils.columns import (
    column,
    generator_given,
    grouped,
    is_number,
    positive_number,
    whole_number,
)
from workbench.utils.seeding import generator

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
SCOPES = ("group", "round", "buffer")
SCALINGS = ("standard", "unit", "none")
TINY = 1e-9  # relative spread below which a feature counts as constant


def features(rollouts, max_length=None):
    """What is known of every candidate, (R, 10) float64, columns in the order of `FEATURES` (table 1).

    rollouts: a `Rollouts` with columns `advantage` and `age` (rounds since it was sampled); `uses` (times it was chosen
    for training) and `clip_ratio` (at its latest use, NaN before the first) count as 0 where they are missing. The
    column `entropy` is read as that at its latest use, or when it was sampled (nats). Group mean and population
    deviation are over the candidates of one `group`. max_length: tokens that make length 1; None takes the column
    `max_length`, or else the longest candidate. ValueError for a missing column and for numbers that are not finite.
    """
    size, reward = len(rollouts), np.asarray(rollouts.reward, dtype=np.float64)
    _, groups, sizes = grouped(rollouts["group"])
    mean = (np.bincount(groups, reward, len(sizes)) / sizes)[groups]
    deviation = np.sqrt(np.bincount(groups, (reward - mean) ** 2, len(sizes)) / sizes)[groups]
    if max_length is None:
        max_length = column(
            rollouts, "max_length", np.full(size, max(1, rollouts.lengths.max(initial=1)))
        )
    zeros = np.zeros(size)
    clip = np.asarray(column(rollouts, "clip_ratio", zeros), dtype=np.float64)
    columns = (
        reward, column(rollouts, "advantage"), mean, deviation, rollouts.lengths / max_length, rollouts.truncated,
        rollouts.entropy, np.where(np.isnan(clip), 0.0, clip), column(rollouts, "uses", zeros), column(rollouts, "age"),
    )  # fmt: skip
    table = np.column_stack([np.asarray(column, dtype=np.float64) for column in columns])
    bad = ~np.isfinite(table)
    if bad.any():
        row, number = np.argwhere(bad)[0]
        raise ValueError(
            f"features: {FEATURES[number]} of rollout {row} is {table[row, number]}; finite numbers are needed"
        )
    return table


def scaled(table, scaling="standard"):
    """Features (R, F) as the network reads them, (R, F) float64.

    "standard": mean 0 and deviation 1 over the candidates, a constant feature 0: choosing needs only differences
    between candidates, and counts, lengths and entropies then weigh alike whatever their units. "unit": every row of
    Euclidean length 1, as the theory assumes (assumption 5.1). "none": as they are.
    """
    table = np.asarray(table, dtype=np.float64)
    if scaling == "none" or not len(table):
        return table
    if scaling == "unit":
        return table / np.maximum(
            np.linalg.norm(table, axis=1, keepdims=True), np.finfo(float).tiny
        )
    if scaling != "standard":
        raise ValueError(f"scaling={scaling!r}: allowed are {', '.join(map(repr, SCALINGS))}")
    constant = np.ptp(table, axis=0) <= TINY * np.maximum(1.0, np.abs(table).max(axis=0))
    return np.where(
        constant, 0.0, (table - table.mean(axis=0)) / np.where(constant, 1.0, table.std(axis=0))
    )


def epsilon(t, warmup=50, start=1.0, decay=0.008, floor=0.2):
    """Probability that a pick in round t >= 1 takes the newest candidate instead of the best one (eq. 9).

    1 up to round `warmup`, then max(start - (t - 1) decay, floor). At the defaults (table 4) 0.6 in round 51 and 0.2
    from round 101 on.
    """
    return 1.0 if t <= warmup else max(start - (t - 1) * decay, floor)


def round_reward(
    before, after, average=(0.0, 1.0), *, alpha=0.9, weight=100.0, least=0.1, order="after"
):
    """What training in round t brought, a number, and the new moving average: (reward, (mean, variance)) (eq. 10).

    before, after: (mean reward, mean entropy in nats) of the rollouts sampled in rounds t and t + 1. The gain is the
    growth of the mean reward; it is standardised by its moving average and squeezed by the sigmoid. A growth of the
    entropy is charged with `weight`, once the entropy before is above `least`. average=None: the plain gain (eq. 5).

    order: "after" uses the average of the earlier rounds and updates it afterwards; "before" updates first, as the
    index of the formula may be read, but at alpha=0.9 the gain then moves its own mean so far that the sigmoid stays
    within [.26, .74]. The start (0, 1) is neutral for gains within [-1, 1]. The paper leaves both open. As the
    variance is taken around the mean just updated, it is small, and "after" often comes near to 0 or 1.
    """
    if order not in ("after", "before"):
        raise ValueError(f"order={order!r}: allowed are 'after' and 'before'")
    gain, growth = after[0] - before[0], after[1] - before[1]
    charge = weight * growth if weight and before[1] > least else 0.0
    if average is None:
        return gain - charge, None
    mean = (1 - alpha) * average[0] + alpha * gain
    variance = (1 - alpha) * average[1] + alpha * (gain - mean) ** 2
    centre, spread = (mean, variance) if order == "before" else average
    z = (gain - centre) / max(spread, np.finfo(float).tiny) ** 0.5
    return 0.5 * (1 + tanh(z / 2)) - charge, (mean, variance)


def rollout_rewards(advantages, reward):
    """The round's reward shared out: |advantage| times it, (K,) (eq. 11; eq. 6 without its denominator)."""
    return np.abs(np.asarray(advantages, dtype=np.float64)) * reward


def epsilon_greedy(scores, ages, explore, groups=None, picks=None):
    """Rows chosen one after the other, each the best or the newest of those left: (K,) int64 in the order of the picks.

    scores, ages (R,); explore (K,) bool, one coin a pick: True takes the lowest age, False the highest score (eq. 8).
    groups (R,) and picks (K,), numbers from 0 on: pick i chooses within group picks[i]; None: one group. Ties go to
    the lower row. ValueError for more picks than rows, and for scores that are not finite.

    Equal to the plain loop, but in a few passes over arrays: a row's time is that of the pick whose turn it is, if the
    rows that the other ranking takes first are known. Starting from none, each pass gets at least the earliest pick
    that was still wrong right, and usually nearly all of them.
    """
    scores, ages, explore = (
        np.asarray(scores, dtype=np.float64),
        np.asarray(ages),
        np.asarray(explore, dtype=bool),
    )
    groups = (
        np.zeros(len(scores), dtype=np.int64)
        if groups is None
        else np.asarray(groups, dtype=np.int64)
    )
    picks = (
        np.zeros(len(explore), dtype=np.int64)
        if picks is None
        else np.asarray(picks, dtype=np.int64)
    )
    _check_picks(scores, ages, groups, picks)
    best = _Queue(np.lexsort((-scores, groups)), groups, np.flatnonzero(~explore), picks)
    newest = _Queue(np.lexsort((ages, groups)), groups, np.flatnonzero(explore), picks)
    nothing = np.zeros(len(scores), dtype=bool)
    known = nothing, nothing
    while True:
        by_score, by_age = best.times(known[1]), newest.times(known[0])
        found = by_score < by_age, by_age < by_score
        if all(map(np.array_equal, found, known)):
            break
        known = found
    chosen = np.empty(len(explore), dtype=np.int64)
    first = np.minimum(by_score, by_age)
    taken = np.flatnonzero(first < len(explore))
    chosen[first[taken]] = taken
    return chosen


class _Queue:
    """The rows of every group in one order of preference, and the picks that choose by it."""

    def __init__(self, order, groups, turns, picks):
        self.order, self.of, self.none = order, groups[order], len(picks)
        size = int(self.of.max(initial=-1)) + 1
        self.start = np.searchsorted(self.of, np.arange(size))
        turns = turns[np.argsort(picks[turns], kind="stable")]
        self.turns = np.append(turns, self.none)
        self.first, self.last = (
            np.searchsorted(picks[turns], np.arange(size), side) for side in ("left", "right")
        )

    def times(self, taken):
        """Pick that reaches each row, (R,), when the rows `taken` (R,) are passed over; the number of picks for never."""
        free = ~taken[self.order]
        before = np.cumsum(free) - free
        turn = self.first[self.of] + before - before[self.start][self.of]
        times = np.empty(len(self.order), dtype=np.int64)
        times[self.order] = np.where(
            turn < self.last[self.of], self.turns[np.minimum(turn, len(self.turns) - 1)], self.none
        )
        return times


class Learner:
    """The score s(h): a ReLU network on the ten features, and its one squared-error step a round (eq. 7).

    depth: weight matrices, width: units of each hidden layer. The paper gives neither; 3 matrices are the fewest its
    theorem 5.3 speaks of, and 64 units score thousands of rollouts in about a millisecond. Weights start as in its
    appendix B.1, N(0, 2 / inputs), the last layer N(0, 1 / inputs), with biases of 0, drawn from `seed` alone.
    optimizer: "adam", since plain steps of table 4's 1e-4 hardly move a network in some hundred rounds; "sgd" is eq. 7
    to the letter. NumPy in single precision: at this size it is faster than a framework that builds graphs.
    """

    def __init__(
        self, seed=0, width=64, depth=3, learning_rate=1e-4, optimizer="adam", inputs=len(FEATURES)
    ):
        rng, sizes = generator(seed, "scheduler"), [inputs, *[width] * (depth - 1), 1]
        self.learning_rate, self.optimizer, self.steps, self.parameters = (
            learning_rate,
            optimizer,
            0,
            [],
        )
        for layer, (rows, columns) in enumerate(pairwise(sizes)):
            weight = rng.normal(
                0, ((1 if layer == depth - 1 else 2) / rows) ** 0.5, (rows, columns)
            )
            self.parameters += [weight.astype(np.float32), np.zeros(columns, np.float32)]
        self.moments = [np.zeros((2, *p.shape), np.float32) for p in self.parameters]

    def scores(self, inputs):
        """Score of every row of scaled features (R, 10): (R,) float64."""
        return self._layers(inputs)[-1][:, 0].astype(np.float64)

    def update(self, inputs, targets):
        """One step on the mean squared error to targets (K,); the error before it, a number."""
        layers = self._layers(inputs)
        error = layers[-1] - np.asarray(targets, dtype=np.float32)[:, None]
        self.steps += 1
        for i, gradient in self._gradients(layers, 2 * error / len(error)):
            self.parameters[i] -= self.learning_rate * self._direction(i, gradient)
        return float((error**2).mean())

    def state_dict(self):
        """Weights, moments of the gradients, steps done."""
        both = (("parameters", self.parameters), ("moments", self.moments))
        return {"steps": self.steps} | {
            f"{name}.{i}": value.copy() for name, values in both for i, value in enumerate(values)
        }

    def load_state_dict(self, state):
        """Sets what `state_dict` holds."""
        self.steps = state["steps"]
        for name in ("parameters", "moments"):
            setattr(
                self, name, [np.array(state[f"{name}.{i}"]) for i in range(len(self.parameters))]
            )

    def _layers(self, inputs):
        """Inputs and what every layer gives for them."""
        layers = [np.asarray(inputs, dtype=np.float32)]
        for i in range(0, len(self.parameters), 2):
            out = layers[-1] @ self.parameters[i] + self.parameters[i + 1]
            layers.append(out if i + 2 == len(self.parameters) else np.maximum(out, 0, out=out))
        return layers

    def _gradients(self, layers, slope):
        """(number, gradient) of every parameter, from the loss's slope at the scores (K, 1); the last layer first."""
        for i in range(len(self.parameters) - 2, -1, -2):
            below, weight = layers[i // 2], self.parameters[i].copy()
            yield i, below.T @ slope
            yield i + 1, slope.sum(axis=0)
            slope = (slope @ weight.T) * (below > 0)

    def _direction(self, i, gradient):
        """The gradient itself, or Adam's step for it (Kingma and Ba 2015, its default decays)."""
        if self.optimizer == "sgd":
            return gradient
        decays = np.array([0.9, 0.999], np.float32).reshape(2, *[1] * gradient.ndim)
        self.moments[i] = decays * self.moments[i] + (1 - decays) * np.stack(
            [gradient, gradient**2]
        )
        mean, square = self.moments[i] / (1 - decays**self.steps)
        return mean / (np.sqrt(square) + 1e-8)


@dataclass(frozen=True)
class Scheduler:
    """Keeps the rollouts that a learnt score puts first, some of the newest among them (CBS, algorithm 1).

    scope: "group" takes the best of every group (definition 3.1), "round" of all candidates together (what the authors
    ran, appendix D), "buffer" as many of all candidates as one round's size (definition 3.2; with `reuse.Buffer`).
    keep: percent that is kept, in (0, 100], rounded down, at least one: of each group's rows, of all rows, or of
    the rows sampled in this round. None: 30 (table 4), with scope "buffer" 100.
    mini_batch: rollouts of one optimizer step; as many steps as are filled, what is over is not kept (appendix D: 307
    become 2 times 128), fewer than one make one smaller step. None: all kept rows, split as the run says.

    warmup, start, decay, floor: see `epsilon`. ema=False: plain gains for rewards. alpha, order, entropy_weight and
    entropy_least: see `round_reward`; entropy_weight=0 leaves the entropy out. learning_rate, optimizer, width, depth:
    see `Learner`. scaling: see `scaled`. Defaults are those of table 4 for GRPO where it has them. scores: "random"
    numbers in place of the network's are the paper's ablation; nothing is learnt then.

    Each call first learns from the round before: it now sees what that brought, and rounds without new rollouts are
    passed over. The first round has nothing to learn from. Reads what a run gives to a selector of "pool" statistics:
    columns `advantage`, `age`, `uses`, `clip_ratio`, `group`. It remembers; two runs need two objects.
    """

    keep: float | None = None
    scope: str = "group"
    mini_batch: int | None = None
    warmup: int = 50
    start: float = 1.0
    decay: float = 0.008
    floor: float = 0.2
    ema: bool = True
    alpha: float = 0.9
    order: str = "after"
    entropy_weight: float = 100.0
    entropy_least: float = 0.1
    learning_rate: float = 1e-4
    optimizer: str = "adam"
    width: int = 64
    depth: int = 3
    scaling: str = "standard"
    scores: str = "network"
    _memory: dict = field(default_factory=dict, init=False, repr=False, compare=False)
    statistics: ClassVar[str] = "pool"

    def __post_init__(self):
        if self.keep is not None and not (is_number(self.keep) and 0 < self.keep <= 100):
            raise ValueError(f"keep={self.keep}: a percentage above 0 and up to 100 is needed")
        for name, allowed in (("scope", SCOPES), ("order", ("after", "before")), ("optimizer", ("adam", "sgd")),
                              ("scaling", SCALINGS), ("scores", ("network", "random"))):  # fmt: skip
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: allowed are {', '.join(map(repr, allowed))}"
                )
        for name, least in (("warmup", 0), ("width", 1), ("depth", 2)):
            whole_number(name, getattr(self, name), least)
        if self.mini_batch is not None:
            whole_number("mini_batch", self.mini_batch, 1)
        for name in ("start", "floor", "alpha"):
            if not (is_number(getattr(self, name)) and 0 <= getattr(self, name) <= 1):
                raise ValueError(f"{name}={getattr(self, name)}: a number from 0 to 1 is needed")
        positive_number("learning_rate", self.learning_rate)
        for name in ("decay", "entropy_weight", "entropy_least"):
            positive_number(name, getattr(self, name), zero=True)

    def __call__(self, rollouts, rng):
        """Learns from the round before, then schedules: the rows kept, (K,) int64, ascending."""
        started, memory = perf_counter(), self._memory
        seed = int(generator_given(rng).integers(2**63))
        if "learner" not in memory:
            memory["learner"] = self._learner(seed)
        age, table = column(rollouts, "age"), features(rollouts)
        new, number = age == 0, int((rollouts.round + age).max(initial=1))
        now = (
            [float(rollouts.reward[new].mean()), float(rollouts.entropy[new].mean())]
            if new.any()
            else None
        )
        learnt = self._learn(now, number)
        inputs = scaled(table, self.scaling)
        scores = (
            rng.random(len(table)) if self.scores == "random" else memory["learner"].scores(inputs)
        )
        chance = epsilon(number, self.warmup, self.start, self.decay, self.floor)
        index = self._pick(scores, age, rollouts["group"], chance, rng)
        if now is not None:
            memory["pending"] = {"inputs": inputs[index], "advantages": table[index, 1], "before": now, "round": number,
                                 "learnt": learnt}  # fmt: skip
        memory["columns"] = {
            "score": scores,
            **{f"feature_{name}": table[:, i] for i, name in enumerate(FEATURES)},
        }
        memory["metrics"] = {**learnt, "scheduler_score": float(scores.mean()) if len(scores) else float("nan"),
                             "scheduler_epsilon": chance, "seconds_scheduler": perf_counter() - started}  # fmt: skip
        return index

    def columns(self):
        """What the last call saw of every candidate: `score` and the ten features, each (R,)."""
        return self._memory.get("columns", {})

    def metrics(self):
        """Of the last call: mean score, epsilon, the reward and squared error it learnt from (NaN if none), seconds."""
        names = ("scheduler_score", "scheduler_epsilon", "scheduler_reward", "scheduler_error")
        return {
            **dict.fromkeys(names, float("nan")),
            "seconds_scheduler": 0.0,
            **self._memory.get("metrics", {}),
        }

    def state_dict(self):
        """Network, optimizer, moving average, and the round that waits for its reward."""
        memory = self._memory
        if "learner" not in memory:
            return {}
        pending = memory.get("pending")
        state = {"learner": memory["learner"].state_dict(), "average": memory.get("average")}
        return state if pending is None else state | {"pending": pending}

    def load_state_dict(self, state):
        """Sets what `state_dict` holds."""
        self._memory.clear()
        if state:
            self._memory["learner"] = self._learner(0)
            self._memory["learner"].load_state_dict(state["learner"])
            for name in ("average", "pending"):
                if state.get(name) is not None:
                    self._memory[name] = state[name]

    def _learner(self, seed):
        return Learner(seed, self.width, self.depth, self.learning_rate, self.optimizer)

    def _learn(self, now, number):
        """One step on what the round before brought, once this round's mean reward and entropy are known; its metrics."""
        memory, pending = self._memory, self._memory.get("pending")
        if pending is None or now is None:
            return {}
        if pending["round"] == number:  # a round that was interrupted is done again
            return pending["learnt"]
        average = memory.get("average", [0.0, 1.0]) if self.ema else None
        gained, average = round_reward(pending["before"], now, average, alpha=self.alpha, weight=self.entropy_weight,
                                       least=self.entropy_least, order=self.order)  # fmt: skip
        learnt = {"scheduler_reward": gained}
        if average is not None:
            memory["average"] = list(average)
        if self.scores == "network" and len(pending["advantages"]):
            targets = rollout_rewards(pending["advantages"], gained)
            learnt["scheduler_error"] = memory["learner"].update(pending["inputs"], targets)
        return learnt

    def _pick(self, scores, age, group, chance, rng):
        keep = self.keep if self.keep is not None else 100 if self.scope == "buffer" else 30
        groups = (
            grouped(group)[1].astype(np.int64)
            if self.scope == "group"
            else np.zeros(len(scores), dtype=np.int64)
        )
        sizes = (
            np.array([np.count_nonzero(age == 0)])
            if self.scope == "buffer"
            else np.bincount(groups)
        )
        counts = np.minimum(np.maximum(np.floor(sizes * keep / 100 + TINY), 1), sizes).astype(
            np.int64
        )
        picks = _turns(counts)
        total = len(picks) if self.mini_batch is None else _filled(len(picks), self.mini_batch)
        explore = rng.random(total) < chance
        return np.sort(epsilon_greedy(scores, age, explore, groups, picks[:total]))


def _turns(counts):
    """The group of every pick when groups take turns, (K,): counts [2, 1] make 0, 1, 0."""
    groups = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts, counts)
    return groups[np.argsort(number, kind="stable")]


def _filled(total, size):
    """As many of `total` rows as fill whole mini-batches; all of them where they do not fill one."""
    return total if total < size else total // size * size


def _check_picks(scores, ages, groups, picks):
    if not len(scores) == len(ages) == len(groups):
        raise ValueError(
            f"scores ({len(scores)},), ages ({len(ages)},), groups ({len(groups)},): one of each a row is needed"
        )
    if not np.isfinite(scores).all():
        row = int(np.argmin(np.isfinite(scores)))
        raise ValueError(f"scores: row {row} is {scores[row]}; finite numbers are needed")
    size = max(groups.max(initial=-1), picks.max(initial=-1)) + 1
    rows, wanted = np.bincount(groups, minlength=size), np.bincount(picks, minlength=size)
    if (wanted > rows).any():
        group = int(np.argmax(wanted > rows))
        raise ValueError(
            f"picks: {wanted[group]} of the {rows[group]} rows of group {group}; at most all of them can be kept"
        )
