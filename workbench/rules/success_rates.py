"""Beliefs about problems: what earlier rounds say of a problem's success rate.

`SuccessRates` gives an allocator one rate for each problem, and measures how far it was
off (Knapsack RL, section 4.3 and appendix G.3). `Posteriors` holds two numbers for each
problem, a Beta distribution; several methods keep it and differ in how it forgets. All of them read
`rollouts.correct`, never the reward.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from workbench.slots import Context, Problems, Rollouts, Slot, state_field
from workbench.utils.bounds import Count, Positive, PositiveOrZero, Share, choice
from workbench.utils.groups import place_within, sample_variances
from workbench.utils.names import of_catalogue
from workbench.utils.seeding import generator

if TYPE_CHECKING:
    import torch

    from workbench.policies import Policy

KINDS = ("last", "epoch", "beta", "fresh", "predictor")


def tally(ids: Sequence[str], rollouts: Rollouts, skip: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Count the correct and all rollouts of each problem.

    Parameters
    ----------
    ids : problem ids (P,)
    rollouts : Rollouts
        Rows of other problems are passed over.
    skip : int
        Leave out the first `skip` rollouts of each problem.

    Returns
    -------
    correct, tries : (P,) int64 each
    """
    keys, group = rollouts.problems()
    place = {key: i for i, key in enumerate(ids)}
    # The position of each row's problem in `ids`, -1 for problems that were not asked about.
    owner = np.array([place.get(key, -1) for key in keys], dtype=np.int64)[group]
    counted = owner >= 0
    if skip:
        counted &= place_within(group) >= skip
    correct = np.bincount(owner[counted & rollouts.correct], minlength=len(ids))
    tries = np.bincount(owner[counted], minlength=len(ids))
    return correct, tries


def deviations(ids: Sequence[str], rollouts: Rollouts) -> np.ndarray:
    """How much the rewards of each problem differ: their sample deviations, (P,) float64.

    It is exactly 0 where all rewards are equal. The rewards are those that the verifier or the
    trainer gave, without other parts of the method's reward: a penalty on length tells the
    responses to a problem apart even where they are all equally wrong.

    Parameters
    ----------
    ids : problem ids (P,)
    rollouts : Rollouts
    """
    keys, group = rollouts.problems()
    rewards = rollouts.columns.get("reward_correct", rollouts.reward)
    sizes = np.bincount(group, minlength=len(keys))
    found = dict(zip(keys.tolist(), np.sqrt(sample_variances(rewards, group, sizes)).tolist()))
    return np.array([found.get(key, 0.0) for key in ids])


@dataclass
class SuccessRates(Slot):
    """Estimates of success rates; NaN for a problem of which nothing is known.

    Attributes
    ----------
    kind : {"last", "epoch", "beta", "fresh", "predictor"}
        "last": mean of the last `window` rollouts. "epoch": mean over the latest epoch that tried
        the problem (an endless stream is one epoch). "beta": posterior mean of the last `window`
        rollouts under a Beta(a, b) prior, which is never 0 or 1. "fresh": mean of `probe` rollouts
        sampled first in this round, which count towards the problem's budget and stay in its group.
        "predictor": a two-layer network on the policy's hidden state of the prompt, fitted to the
        observed rates as training goes on.
    window : int
        Rollouts of a problem that "last" and "beta" remember.
    a, b : float
        The prior of "beta".
    probe : int
        Rollouts a problem that "fresh" samples first.
    hidden, learning_rate, steps, memory
        Of "predictor": its hidden units, Adam's learning rate, full-batch steps a round (Adam
        starts anew each round), and the problems of past rounds that it is fitted to.

    References
    ----------
    Knapsack RL (arXiv 2509.25849): the last 16 rollouts are those of appendix F, the predictor is
    appendix G.3.
    """

    kind: Annotated[str, choice(*KINDS)] = "last"
    window: Count = 16
    a: Positive = 1.0
    b: Positive = 1.0
    probe: Count = 4
    hidden: Count = 64
    learning_rate: Positive = 3e-3
    steps: Count = 20
    memory: Count = 1024
    learner: Any = state_field()
    asked: dict = state_field(dict, saved=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "predictor":
            self.learner = Predictor(self.hidden, self.learning_rate, self.steps, self.memory)
        else:
            self.learner = History(self.kind, self.window, self.a, self.b)

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """What a trainer must provide for this kind, see `slots.NEEDS`."""
        needs = {"epoch": "epochs", "fresh": "resampling", "predictor": "prompt_states"}
        return frozenset({needs[self.kind]} if self.kind in needs else ())

    @property
    def spent(self) -> int:
        """Rollouts of each problem that the estimate itself costs."""
        return self.probe if self.kind == "fresh" else 0

    def estimates(
        self, problems: Problems, context: Context
    ) -> Generator[np.ndarray, Rollouts, np.ndarray]:
        """For an allocator to `yield from`: asks for probes if needed, and returns rates (P,)."""
        ids = [problem.id for problem in problems]
        if self.kind == "fresh":
            rollouts = yield np.full(len(problems), self.probe, dtype=np.int64)
            rates = _ratio(*tally(ids, rollouts))
        else:
            rates = self.learner.estimate(problems, context)
        # For `feedback`, which compares the estimates with the outcomes.
        self.asked = {
            "ids": ids,
            "rates": rates,
            "error": np.nan,
            "known": float(np.mean(~np.isnan(rates))),
        }
        return rates

    def metrics(self) -> dict[str, float]:
        """How good the estimates of the latest round were.

        Returns
        -------
        dict
            success_rate_error: mean of |estimate - observed rate| over the problems that had an
            estimate and rollouts after it (NaN where none had). It cannot fall below the sampling
            noise of the observed rate. success_rate_known: share of problems with an estimate.
        """
        return {
            "success_rate_error": self.asked.get("error", np.nan),
            "success_rate_known": self.asked.get("known", np.nan),
        }

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Take in a round's rollouts. Old responses that joined the round are passed over."""
        newest = rollouts.round == rollouts.round.max(initial=0)
        rollouts = rollouts.take(newest)
        if self.asked:
            # Without the probes: an estimate must not be judged by the rollouts it was made of.
            observed = _ratio(*tally(self.asked["ids"], rollouts, skip=self.spent))
            # Over the problems that have both, the others are NaN.
            error = np.abs(self.asked["rates"] - observed)
            self.asked["error"] = np.nan if np.isnan(error).all() else float(np.nanmean(error))
        self.learner.observe(rollouts, context)


@dataclass
class History(Slot):
    """Past outcomes by problem id: the last `window` of each problem, and its latest epoch."""

    kind: str
    window: int
    a: float
    b: float
    recent: dict[str, list[bool]] = state_field(dict)
    # The latest epoch of a problem, and its correct and all rollouts in that epoch.
    latest: dict[str, list[int]] = state_field(dict)

    def estimate(self, problems: Problems, context: Context) -> np.ndarray:
        """Rates (P,) float64, NaN for an unknown id."""
        return np.array([self._rate(problem.id) for problem in problems], dtype=np.float64)

    def _rate(self, problem: str) -> float:
        # An unknown problem stays NaN even under a prior, so that its allocator can tell.
        if problem not in self.recent:
            return np.nan
        if self.kind == "epoch":
            _, correct, tries = self.latest[problem]
            return correct / tries
        outcomes = self.recent[problem]
        a, b = (self.a, self.b) if self.kind == "beta" else (0, 0)
        return (sum(outcomes) + a) / (len(outcomes) + a + b)

    def observe(self, rollouts: Rollouts, context: Context) -> None:
        """Add the outcomes, in row order."""
        keys, group = rollouts.problems()
        outcomes = rollouts.correct[np.argsort(group, kind="stable")]
        ends = np.cumsum(np.bincount(group))
        for key, newest in zip(keys.tolist(), np.split(outcomes, ends)):
            both = [*self.recent.get(key, ()), *newest.tolist()]
            self.recent[key] = both[-self.window :]
            epoch, correct, tries = self.latest.get(key, (context.epoch, 0, 0))
            # The latest epoch counts from 0 again when a problem comes for the first time in it.
            if epoch != context.epoch:
                correct = tries = 0
            self.latest[key] = [context.epoch, correct + int(newest.sum()), tries + len(newest)]


@dataclass
class Predictor(Slot):
    """Hidden state of a prompt -> ReLU layer -> success rate, fitted to all observed rollouts.

    What is `known` are its weights, and the states and the outcomes (correct, tries) that they were
    fitted to; nothing before the first round.
    """

    hidden: int
    learning_rate: float
    steps: int
    memory: int
    known: dict[str, np.ndarray] = state_field(dict)
    asked: dict[str, np.ndarray] = state_field(dict, saved=False)

    def estimate(self, problems: Problems, context: Context) -> np.ndarray:
        """Rates (P,) float64, NaN before the first round was observed."""
        states = _prompt_states(problems, context.policy)
        # Kept for `observe`, so that the states of a round are computed once. Dynamic sampling asks
        # for each of its draws.
        self.asked |= {problem.id: state for problem, state in zip(problems, states)}
        if not self.known:
            return np.full(len(problems), np.nan)
        import torch

        with torch.no_grad():
            logits = self._logits(self._weights(), torch.from_numpy(states))
        return torch.sigmoid(logits).numpy().astype(np.float64)

    def observe(self, rollouts: Rollouts, context: Context) -> None:
        """Remember states and outcomes of the problems asked about, and fit the network anew."""
        asked, self.asked = self.asked, {}
        correct, tries = tally(list(asked), rollouts)
        tried = np.flatnonzero(tries)
        if len(tried) == 0:
            return
        states = np.stack(list(asked.values()))[tried]
        outcomes = np.stack([correct, tries], axis=1)[tried].astype(np.float32)
        if not self.known:
            self.known = self._unfitted(states.shape[1], context)
        for name, newest in (("states", states), ("outcomes", outcomes)):
            everything = np.concatenate([self.known[name], newest])
            self.known[name] = everything[-self.memory :]
        self._fit()

    def _unfitted(self, width: int, context: Context) -> dict[str, np.ndarray]:
        """The initial weights for states of a width, and no states and outcomes."""
        rng = generator(context.seed, "success-rates")
        return {
            # The scale keeps the variance through the ReLU. With zeros behind it, training starts
            # from the estimate 1/2 for every prompt.
            "w1": rng.normal(0, np.sqrt(2 / width), (width, self.hidden)).astype(np.float32),
            "b1": np.zeros(self.hidden, np.float32),
            "w2": np.zeros(self.hidden, np.float32),
            "b2": np.zeros((), np.float32),
            "states": np.zeros((0, width), np.float32),
            "outcomes": np.zeros((0, 2), np.float32),
        }

    def _fit(self) -> None:
        """Full-batch steps on the binary cross-entropy of all remembered rollouts."""
        import torch
        from torch.nn.functional import binary_cross_entropy_with_logits

        weights = {name: tensor.requires_grad_() for name, tensor in self._weights().items()}
        optimizer = torch.optim.Adam(weights.values(), lr=self.learning_rate)
        states = torch.from_numpy(self.known["states"])
        correct, tries = torch.from_numpy(self.known["outcomes"]).unbind(1)
        for _ in range(self.steps):
            optimizer.zero_grad()
            logits = self._logits(weights, states)
            # Weighted so that every rollout counts alike, not every problem.
            loss = binary_cross_entropy_with_logits(
                logits, correct / tries, weight=tries, reduction="sum"
            )
            (loss / tries.sum()).backward()
            optimizer.step()
        self.known |= {name: tensor.detach().numpy() for name, tensor in weights.items()}

    def _weights(self) -> dict[str, torch.Tensor]:
        import torch

        return {name: torch.tensor(self.known[name]) for name in ("w1", "b1", "w2", "b2")}

    @staticmethod
    def _logits(weights: Mapping[str, torch.Tensor], states: torch.Tensor) -> torch.Tensor:
        hidden = (states @ weights["w1"] + weights["b1"]).relu()
        return hidden @ weights["w2"] + weights["b2"]


@dataclass
class Posteriors(Slot):
    """Two numbers for each problem: how often it was solved and failed, with a prior.

    Each visit of a problem with c of n rollouts correct adds c to its first number and n - c to its
    second one, after both have been pulled towards the prior (MoPPS, MaPP) or towards zero
    (discounted Beta baseline, Reinforce-Ada) by a factor.

    Attributes
    ----------
    a, b : float
        The prior: the numbers of a problem never seen.
    decay : float
        Factor on what was believed before, at each visit; 1 forgets nothing.
    towards : {"prior", "zero"}
        What a belief decays to.
    restart : int, optional
        Rounds after which all beliefs start afresh; None for never.
    """

    a: PositiveOrZero = 1.0
    b: PositiveOrZero = 1.0
    decay: Share = 1.0
    towards: Annotated[str, choice("prior", "zero")] = "prior"
    restart: Count | None = None
    counts: dict[str, Sequence[float]] = state_field(dict)

    def of(self, ids: Sequence[str]) -> np.ndarray:
        """The two numbers of each problem, (P, 2) float64."""
        prior = (self.a, self.b)
        counts = [self.counts.get(key, prior) for key in ids]
        return np.array(counts, dtype=np.float64).reshape(-1, 2)

    def means(self, ids: Sequence[str]) -> np.ndarray:
        """The posterior mean of each problem's success rate, (P,)."""
        belief = self.of(ids)
        return belief[:, 0] / belief.sum(axis=1)

    def after(self, ids: Sequence[str], correct: np.ndarray, tries: np.ndarray) -> np.ndarray:
        """The two numbers of each problem as they will be after these outcomes, (P, 2)."""
        before = self.of(ids)
        target = np.array([self.a, self.b]) if self.towards == "prior" else np.zeros(2)
        faded = self.decay * before + (1 - self.decay) * target
        outcomes = np.stack([correct, tries - correct], axis=1)
        # A problem that was not tried was not visited, so its belief does not fade.
        return np.where(tries[:, None] > 0, faded + outcomes, before)

    def observe(self, ids: Sequence[str], correct: np.ndarray, tries: np.ndarray) -> None:
        """Take in the outcomes (P,) of one visit of each problem."""
        self.counts.update(zip(ids, self.after(ids, correct, tries).tolist()))

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """Take in the new rollouts of a round."""
        self.observe(*outcomes_of_round(rollouts, context.round))
        if self.restart is not None and context.round % self.restart == 0:
            self.counts.clear()


def outcomes(rollouts: Rollouts) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Problem ids, and the correct and all rollouts of each, (P,) int64 both."""
    ids = rollouts.problems()[0].tolist()
    return ids, *tally(ids, rollouts)


def outcomes_of_round(rollouts: Rollouts, number: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    """`outcomes` of the new rollouts of a round, without old responses that joined it."""
    return outcomes(rollouts.take(rollouts.round == number))


class RemembersPosteriors(Slot):
    """Base class of a slot value whose memory is its posteriors, an attribute of that name.

    What else stands here are the arguments of `Posteriors`. A value of its own, or an argument, may
    take their place.
    """

    posteriors: Posteriors
    prior: tuple[float, float] = (1.0, 1.0)
    decay: float = 1.0
    towards: str = "prior"
    restart: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.posteriors = Posteriors(*self.prior, self.decay, self.towards, self.restart)

    @property
    def delegate(self) -> Slot | None:
        """The posteriors: they learn from the round and are stored."""
        return self.posteriors


def _prompt_states(problems: Problems, policy: Policy) -> np.ndarray:
    """The policy's hidden state of every prompt, (P, H) float32.

    Each row is brought to mean 0 and deviation 1, so that the scale of the states does not matter.
    """
    if policy is None:
        raise ValueError("policy=None: the kind 'predictor' reads the policy's prompt_states")
    prompts = [problem.prompt for problem in problems]
    states = np.asarray(policy.prompt_states(prompts), dtype=np.float32)
    states = states - states.mean(axis=1, keepdims=True)
    return np.ascontiguousarray(states / (states.std(axis=1, keepdims=True) + 1e-6))


def _ratio(correct: np.ndarray, tries: np.ndarray) -> np.ndarray:
    return np.divide(correct, tries, out=np.full(len(tries), np.nan), where=tries > 0)


__getattr__ = partial(of_catalogue, __name__)
