"""Log-probabilities of a round whose rollouts another program than the trainer samples.

The two programs compute slightly different numbers (see `Policy.samples_apart`), and the loss needs
those of the trainer. They cost a forward pass, so only what needs one is rescored:

- everything, before the slots see it, where a slot reads such numbers of every rollout;
- otherwise the selected rollouts of all optimizer steps but the first. The first step computes the
  trainer's numbers anyway, while later ones find other weights than those that sampled.

Where the trainer samples itself, nothing here is needed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import numpy as np

from workbench.objectives import BY_COVARIANCE, Objective
from workbench.rollouts import Ragged, Rollouts

if TYPE_CHECKING:
    from workbench.policies import Policy, Sampling

# What slots may need of every rollout that only the trainer can tell.
NEEDS_RESCORED = frozenset({"entropy", "token_entropy", "old_logprobs"})


class Rescoring:
    """What was sampled by another program in one round, and what the trainer has scored again.

    Parameters
    ----------
    policy : Policy
    sampling : Sampling
    needs : set of str
        What the method's slots need, of `slots.NEEDS`.

    Attributes
    ----------
    tokens : int
        Tokens of prompts and responses that the trainer has scored again so far.
    seconds : float
        The time that this took.
    """

    def __init__(self, policy: Policy, sampling: Sampling, needs: AbstractSet[str]) -> None:
        self.policy = policy
        self.sampling = sampling
        self.everything = bool(needs & NEEDS_RESCORED)
        self.tokens = 0
        self.seconds = 0.0
        self._sampled: list[Ragged] = []  # log-probabilities by the sampler, of each request

    def of_request(self, rollouts: Rollouts) -> Rollouts:
        """The rollouts of one request for samples, as the slots are to see them."""
        # Kept before a rescoring replaces them; the update measures the gap between the two.
        self._sampled.append(rollouts.old_logprobs)
        return self._rescored(rollouts) if self.everything else rollouts

    def for_update(
        self, selected: Rollouts, parts: Sequence[np.ndarray], number: int, objective: Objective
    ) -> tuple[Rollouts, np.ndarray]:
        """Prepare the selected rollouts before the first optimizer step of the round.

        Parameters
        ----------
        selected : Rollouts (K rows)
        parts : list of int64 arrays
            The rows of each optimizer step.
        number : int
            Number of the round.
        objective : Objective

        Returns
        -------
        selected : Rollouts
            With the trainer's log-probabilities where steps after the first one need them.
        on_policy : (K,) bool
            The rows of the first step that were sampled in this round. `grpo_step` takes their
            log-probabilities from its own forward pass.
        """
        on_policy = np.zeros(len(selected), dtype=bool)
        if self.everything:
            return selected, on_policy
        is_new = selected.round == number
        # Clip-Cov and KL-Cov read the log-probabilities before any forward pass of the step.
        if parts and objective.surrogate not in BY_COVARIANCE:
            on_policy[parts[0]] = is_new[parts[0]]
        is_late = is_new & ~on_policy
        if not is_late.any():
            return selected, on_policy
        others, late = np.flatnonzero(~is_late), np.flatnonzero(is_late)
        rescored = self._rescored(selected.take(late))
        # The inverse permutation brings the rows back to their places, which the parts refer to.
        order = np.argsort(np.concatenate([others, late]))
        return Rollouts.concat([selected.take(others), rescored]).take(order), on_policy

    def sampler_logprobs(self, rollouts: Rollouts, rows: np.ndarray) -> Ragged | None:
        """The sampler's log-probabilities of the given rows of the round's whole table.

        None where they are of another distribution than the trainer's.
        """
        if not self.policy.comparable(self.sampling):
            return None
        new = sum(len(part) for part in self._sampled)
        # Old responses stand after those of the round. They were brought to the trainer's numbers
        # when they were stored, or count as such.
        old = rollouts.old_logprobs.take(np.arange(new, len(rollouts)))
        return Ragged.concat([*self._sampled, old]).take(rows)

    def _rescored(self, rollouts: Rollouts) -> Rollouts:
        """The rollouts with log-probabilities and entropies by the trainer."""
        started = time.perf_counter()
        self.tokens += int(rollouts.lengths.sum() + rollouts.prompt.lengths.sum())
        rescored = self.policy.rescored(rollouts, self.sampling.temperature)
        self.seconds += time.perf_counter() - started
        return rescored
