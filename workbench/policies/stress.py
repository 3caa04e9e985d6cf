"""What real training has and a laboratory lacks: verdicts that err, and rollouts by old weights.

A lab under stress is the same lab with one of these conditions, so that any method can be tried in
it: `labs.tiny().stressed(lag=4, missed=0.1)`. Evaluations are free of both: they ask the present
weights and the true verdict.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from workbench.policies import Policy
from workbench.rollouts import Rollouts
from workbench.utils.bounds import CountOrZero, Share, check_arguments
from workbench.utils.seeding import generator

# The names of old weights in a checkpoint begin with this.
PREFIX = "old_weights"


@dataclass(frozen=True)
class Stress:
    """The conditions of a lab; without arguments there are none.

    Attributes
    ----------
    lag : int
        Rollouts are sampled by the weights of so many rounds ago, as in a trainer whose sampler
        runs ahead of its updates. The first rounds are sampled by the initial weights.
    missed : float in [0, 1]
        Probability that the verifier rejects a right response.
    accepted : float in [0, 1]
        Probability that the verifier accepts a response that is not right.

    Notes
    -----
    A verdict depends on the seed of the run, on the problem and on the text of the response: as a
    program would, the verifier errs each time that it sees the same response.

    Examples
    --------
    >>> Stress(lag=2).described
    {'stress': {'lag': 2}}
    """

    lag: CountOrZero = 0
    missed: Share = 0.0
    accepted: Share = 0.0

    def __post_init__(self) -> None:
        check_arguments(self)

    @property
    def described(self) -> dict[str, Any]:
        """What the config of a lab says of the conditions that hold; nothing where none does."""
        settings = {name: value for name, value in asdict(self).items() if value}
        return {"stress": settings} if settings else {}

    @property
    def errs(self) -> bool:
        """Whether the verifier errs."""
        return bool(self.missed or self.accepted)

    def misjudge(self, rollouts: Rollouts, seed: int) -> Rollouts:
        """Verified rollouts as a verifier that errs would have them.

        Parameters
        ----------
        rollouts : Rollouts
            With the true verdicts and rewards of the verifier.
        seed : int
            Of the run.

        Returns
        -------
        Rollouts
            With a further column `truth` (R,) bool, the true verdict. A right response that is
            missed has the status "wrong" and earns 0; any other response that is accepted has the
            status "ok" and earns 1.
        """
        responses = zip(rollouts.problem.tolist(), rollouts.text.tolist())
        draws = np.array([generator(seed, "verdict", *each).random() for each in responses])
        truth = rollouts.correct
        missed = truth & (draws < self.missed)
        accepted = ~truth & (draws < self.accepted)
        status = np.where(missed, "wrong", np.where(accepted, "ok", rollouts.status))
        reward = np.where(missed, 0.0, np.where(accepted, 1.0, rollouts.reward))
        correct = (truth & ~missed) | accepted
        return rollouts.assign(reward=reward, correct=correct, status=status, truth=truth)


def misjudgements(rollouts: Rollouts, number: int) -> dict[str, float]:
    """How often the verdicts of a round are wrong, for the round's row of the record.

    Parameters
    ----------
    rollouts : Rollouts
        The table after `grpo.mark`, with the column `truth`.
    number : int
        Of the round.

    Returns
    -------
    dict
        misjudged: share of the new rollouts whose verdict is not the true one. misjudged_trained:
        the same among the rollouts that are trained on, old responses included; NaN without any.
    """
    wrong = rollouts["truth"] != rollouts.correct
    trained = wrong[rollouts["trained"]]
    return {
        "misjudged": float(wrong[rollouts.round == number].mean()),
        "misjudged_trained": float(trained.mean()) if len(trained) else float("nan"),
    }


class OldWeights:
    """The weights that a policy had in earlier rounds, and sampling by the oldest of them.

    Parameters
    ----------
    policy : Policy
    lag : int
        How many rounds the oldest weights lie back; 0 keeps none, and samples by the present ones.
    """

    def __init__(self, policy: Policy, lag: int) -> None:
        self.policy = policy
        self.states: deque[dict[str, Any]] = deque(maxlen=lag)

    def keep(self) -> None:
        """Keep the present weights, before the update of a round changes them."""
        if self.states.maxlen:
            self.states.append(self.policy.state_dict())

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within, the policy has the weights of `lag` rounds ago, or its initial ones."""
        if not self.states:
            yield
            return
        present = self.policy.state_dict()
        self.policy.load_state_dict(self.states[0])
        try:
            yield
        finally:
            self.policy.load_state_dict(present)

    def tensors(self) -> dict[str, Any]:
        """All that is kept, by name, for a checkpoint."""
        return {
            f"{PREFIX}.{number}.{name}": tensor
            for number, state in enumerate(self.states)
            for name, tensor in state.items()
        }

    def restore(self, tensors: Mapping[str, Any]) -> None:
        """Set what is kept from the tensors of a checkpoint; those of other names are left out."""
        states: dict[int, dict[str, Any]] = {}
        for full_name, tensor in tensors.items():
            if full_name.startswith(f"{PREFIX}."):
                _, number, name = full_name.split(".", 2)
                # A copy, since the tensors of a checkpoint are views of its file.
                states.setdefault(int(number), {})[name] = tensor.clone()
        self.states.clear()
        self.states.extend(states[number] for number in sorted(states))
