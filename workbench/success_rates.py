"""Success rates by problem id: what an allocator believes of a problem before it is asked.

`SuccessRates` is a configuration with a memory behind it. Every kind reads `rollouts.correct`, never the reward, and
its error against the round's fresh rollouts is measured (Knapsack RL, section 4.3 and appendix G.3).
"""

from dataclasses import dataclass, field

import numpy as np

from workbench.budgets import whole
from workbench.utils.columns import positive_number
from workbench.utils.seeding import generator

KINDS = ("last", "epoch", "beta", "fresh", "predictor")


def tally(ids, rollouts, skip=0):
    """Correct and all rollouts of each problem, (P,) int64 both, without the first `skip` of each."""
    keys, group = rollouts.groups()
    place = {key: i for i, key in enumerate(ids)}
    owner = np.array([place.get(key, -1) for key in keys], dtype=np.int64)[group]
    counted = owner >= 0
    if skip:
        counted &= _rank(group) >= skip
    correct = np.bincount(owner[counted & rollouts.correct], minlength=len(ids))
    return correct, np.bincount(owner[counted], minlength=len(ids))


@dataclass(frozen=True)
class SuccessRates:
    """Estimates of success rates; NaN for a problem of which nothing is known.

    kind: "last", mean of the last `window` rollouts; "epoch", mean over the latest epoch that tried the problem (an
        endless stream has one epoch: all rollouts so far); "beta", posterior mean of the last `window` rollouts under a
        Beta(a, b) prior, never 0 or 1; "fresh", mean of `probe` rollouts sampled first in this round, which count
        towards its budget and stay in their groups; "predictor", a two-layer network on the policy's mean hidden state
        of the prompt (`policy.prompt_states(prompts)` -> (P, H) float32), fitted online to observed rates.
    hidden, learning_rate, steps, memory: the predictor's hidden units, Adam's rate, full-batch steps a round (Adam
        starts anew each round), and problems of past rounds it is fitted to.
    """

    kind: str = "last"
    window: int = 16
    a: float = 1.0
    b: float = 1.0
    probe: int = 4
    hidden: int = 64
    learning_rate: float = 3e-3
    steps: int = 20
    memory: int = 1024
    _learner: object = field(default=None, init=False, repr=False, compare=False)
    _used: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"kind={self.kind!r}: allowed are {', '.join(KINDS)}")
        for name in ("window", "probe", "hidden", "steps", "memory"):
            whole(name, getattr(self, name), 1)
        for name in ("a", "b", "learning_rate"):
            positive_number(name, getattr(self, name))
        learner = (
            Predictor(self)
            if self.kind == "predictor"
            else History(self)
            if self.kind != "fresh"
            else None
        )
        object.__setattr__(self, "_learner", learner)

    @property
    def spent(self):
        """Rollouts of each problem that the estimate itself costs."""
        return self.probe if self.kind == "fresh" else 0

    def estimates(self, problems, context):
        """A generator for an allocator to `yield from`: asks for probes where needed, returns rates (P,) float64."""
        ids = [problem.id for problem in problems]
        if self.kind == "fresh":
            rates = _ratio(*tally(ids, (yield np.full(len(ids), self.probe, dtype=np.int64))))
        else:
            rates = self._learner.estimate(problems, context)
        self._used.update(
            ids=ids, rates=rates, error=np.nan, known=float(np.mean(~np.isnan(rates)))
        )
        return rates

    def observe(self, rollouts, context):
        """Takes in a round's rollouts. Rows older than the newest round among them, reused ones, are passed over."""
        rollouts = rollouts.take(rollouts.round == rollouts.round.max(initial=0))
        if "ids" in self._used:
            rates = self._used["rates"]
            error = np.abs(rates - _ratio(*tally(self._used["ids"], rollouts, self.spent)))
            if not np.isnan(error).all():
                self._used["error"] = float(np.nanmean(error))
        if self._learner is not None:
            self._learner.observe(rollouts, context)

    def metrics(self):
        """Of the round just observed.

        success_rate_error: mean |estimate - observed rate| over problems that had an estimate and rollouts after it
        (NaN where none had); its floor is the sampling noise of the observed rate. success_rate_known: share of
        problems with an estimate.
        """
        return {f"success_rate_{name}": self._used.get(name, np.nan) for name in ("error", "known")}

    def state_dict(self):
        """JSON values and numpy arrays."""
        return {"kind": self.kind, **({} if self._learner is None else self._learner.state_dict())}

    def load_state_dict(self, state):
        """Sets the memory from `state_dict()` of the same configuration."""
        if state.get("kind") != self.kind:
            raise ValueError(f"state: kind {state.get('kind')!r} was saved, this is {self.kind!r}")
        self._used.clear()
        if self._learner is not None:
            self._learner.load_state_dict(state)


class History:
    """Past outcomes by problem id: the last `window` in a ring, and the counts of the latest epoch."""

    def __init__(self, config):
        self.config = config
        self._reset([])

    def estimate(self, problems, context):
        """(P,) float64, NaN for an unknown id."""
        row = np.array([self.rows.get(problem.id, -1) for problem in problems], dtype=np.int64)
        correct, tries = np.zeros(len(row), dtype=np.int64), np.zeros(len(row), dtype=np.int64)
        known = row >= 0
        correct[known], tries[known] = self._counts(row[known])
        rates = _ratio(correct, tries)
        if self.config.kind == "beta":
            rates[known] = (correct[known] + self.config.a) / (
                tries[known] + self.config.a + self.config.b
            )
        return rates

    def _counts(self, row):
        if self.config.kind == "epoch":
            return self.epoch_correct[row], self.epoch_tries[row]
        return self.ring[row].sum(axis=1, dtype=np.int64), np.minimum(
            self.seen[row], self.config.window
        )

    def observe(self, rollouts, context):
        """Adds the outcomes, in row order."""
        keys, group = rollouts.groups()
        row = self._rows_of(keys.tolist())
        rank, size = _rank(group), np.bincount(group, minlength=len(keys))
        late = rank >= size[group] - self.config.window  # a longer group overwrites its own start
        owner = row[group[late]]
        self.ring[owner, (self.seen[owner] + rank[late]) % self.config.window] = rollouts.correct[
            late
        ]
        self.seen[row] += size
        stale = row[self.epoch[row] != context.epoch]
        self.epoch[stale], self.epoch_correct[stale], self.epoch_tries[stale] = context.epoch, 0, 0
        self.epoch_correct[row] += np.bincount(group[rollouts.correct], minlength=len(keys))
        self.epoch_tries[row] += size

    def state_dict(self):
        """Ids and one array row for each."""
        size = len(self.rows)
        return {
            "ids": list(self.rows),
            **{name: column[:size].copy() for name, column in self._columns().items()},
        }

    def load_state_dict(self, state):
        """The way back; ValueError when the window differs."""
        ring = np.asarray(state["ring"])
        if ring.shape != (len(state["ids"]), self.config.window):
            raise ValueError(
                f"state: window {ring.shape[-1]} was saved, this is window={self.config.window}"
            )
        self._reset(state["ids"])
        for name, column in self._columns().items():
            column[:] = state[name]

    def _reset(self, ids):
        self.rows = {key: i for i, key in enumerate(ids)}
        self.ring = np.zeros((len(ids), self.config.window), dtype=np.uint8)
        self.seen, self.epoch, self.epoch_correct, self.epoch_tries = np.zeros(
            (4, len(ids)), dtype=np.int64
        )

    def _columns(self):
        return {
            name: getattr(self, name)
            for name in ("ring", "seen", "epoch", "epoch_correct", "epoch_tries")
        }

    def _rows_of(self, keys):
        """Row of every id, new ones appended; the arrays grow by doubling."""
        row = np.array([self.rows.setdefault(key, len(self.rows)) for key in keys], dtype=np.int64)
        if len(self.rows) > len(self.seen):
            more = max(len(self.rows), 2 * len(self.seen)) - len(self.seen)
            for name, column in self._columns().items():
                setattr(
                    self,
                    name,
                    np.concatenate(
                        [column, np.zeros((more, *column.shape[1:]), dtype=column.dtype)]
                    ),
                )
        return row


class Predictor:
    """Hidden state of a prompt -> ReLU layer -> success rate, by the binary cross-entropy of all observed rollouts."""

    NAMES = ("w1", "b1", "w2", "b2")

    def __init__(self, config):
        self.config, self.weights, self.asked = config, {}, {}
        self.states, self.outcomes = None, np.zeros((0, 2), dtype=np.float32)

    def estimate(self, problems, context):
        """(P,) float64, NaN before the first round was observed."""
        states = _prompt_states(problems, context.policy)
        self.asked = {problem.id: state for problem, state in zip(problems, states)}
        if not self.weights:
            return np.full(len(problems), np.nan)
        import torch

        with torch.no_grad():
            return (
                torch.sigmoid(self._logits(self._tensors(), torch.from_numpy(states)))
                .numpy()
                .astype(np.float64)
            )

    def observe(self, rollouts, context):
        """Remembers (state, correct, tries) of the problems asked about and fits the network to what it remembers."""
        correct, tries = tally(list(self.asked), rollouts)
        tried = np.flatnonzero(tries)
        if len(tried) == 0:
            return
        states = np.stack(list(self.asked.values()))[tried]
        old = states[:0] if self.states is None else self.states
        self.states = np.concatenate([old, states])[-self.config.memory :]
        outcomes = np.stack([correct, tries], axis=1)[tried].astype(np.float32)
        self.outcomes = np.concatenate([self.outcomes, outcomes])[-self.config.memory :]
        self.asked = {}
        self._fit(context)

    def _fit(self, context):
        import torch
        from torch.nn.functional import binary_cross_entropy_with_logits

        self.weights = self.weights or self._start(context)
        weights = {name: tensor.requires_grad_() for name, tensor in self._tensors().items()}
        optimizer = torch.optim.Adam(weights.values(), lr=self.config.learning_rate)
        states, (correct, tries) = (
            torch.from_numpy(self.states),
            torch.from_numpy(self.outcomes).unbind(1),
        )
        for _ in range(self.config.steps):
            optimizer.zero_grad()
            logits = self._logits(weights, states)
            loss = binary_cross_entropy_with_logits(
                logits, correct / tries, weight=tries, reduction="sum"
            )
            (loss / tries.sum()).backward()
            optimizer.step()
        self.weights = {name: tensor.detach().numpy().copy() for name, tensor in weights.items()}

    def _start(self, context):
        rng, width, hidden = (
            generator(context.seed, "success-rates"),
            self.states.shape[1],
            self.config.hidden,
        )
        w1 = rng.normal(0, np.sqrt(2 / width), (width, hidden)).astype(np.float32)
        b1, w2, b2 = (np.zeros(shape, np.float32) for shape in (hidden, hidden, ()))
        return {"w1": w1, "b1": b1, "w2": w2, "b2": b2}

    def _tensors(self):
        import torch

        return {name: torch.tensor(array) for name, array in self.weights.items()}

    @staticmethod
    def _logits(weights, states):
        return (states @ weights["w1"] + weights["b1"]).relu() @ weights["w2"] + weights["b2"]

    def state_dict(self):
        """Weights and remembered observations; nothing before the first."""
        if not self.weights:
            return {}
        state = {**self.weights, "states": self.states, "outcomes": self.outcomes}
        return {name: array.copy() for name, array in state.items()}

    def load_state_dict(self, state):
        """The way back."""
        self.__init__(self.config)
        if "states" in state:
            self.weights = {name: np.array(state[name], dtype=np.float32) for name in self.NAMES}
            self.states, self.outcomes = (
                np.array(state[name], dtype=np.float32) for name in ("states", "outcomes")
            )


def _prompt_states(problems, policy):
    """(P, H) float32 of mean 0 and deviation 1 in each row, so that scale and outlying dimensions do not matter."""
    if not hasattr(policy, "prompt_states"):
        raise ValueError(f"kind='predictor': {type(policy).__name__} has no prompt_states(prompts)")
    states = np.asarray(
        policy.prompt_states([problem.prompt for problem in problems]), dtype=np.float32
    )
    if states.ndim != 2 or len(states) != len(problems) or not np.isfinite(states).all():
        raise ValueError(
            f"prompt_states: shape {states.shape}; ({len(problems)}, H) finite numbers are needed"
        )
    states = states - states.mean(axis=1, keepdims=True)
    return np.ascontiguousarray(states / (states.std(axis=1, keepdims=True) + 1e-6))


def _rank(group):
    """Place of each row (R,) within its group, in row order."""
    order = np.argsort(group, kind="stable")
    size = np.bincount(group)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(group)) - np.repeat(np.cumsum(size) - size, size)
    return rank


def _ratio(correct, tries):
    return np.divide(correct, tries, out=np.full(len(tries), np.nan), where=tries > 0)
