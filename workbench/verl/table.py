"""verl's prompts as problems, what verl knows of a rollout as ours, and what goes back to verl.

Shared by both ways in: `workbench.verl.loop` works on `DataProto`, `workbench.verl.v1` on the queue
of verl's v1 trainer.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from workbench import rewards
from workbench.methods import Method
from workbench.objectives import Objective
from workbench.policies import Sampling
from workbench.pools import Problem
from workbench.records.round_stats import round_stats
from workbench.rollouts import Ragged, Rollouts
from workbench.rounds import Round

logger = logging.getLogger(__name__)

# What is logged of a round, see `records.round_stats`. The slots' own metrics come on top.
LOGGED = (
    "problems",
    "rollouts",
    "selected",
    "trained",
    "reward",
    "correct",
    "effective_gradient_ratio",
    "all_positive",
    "all_negative",
    "unsolved",
    "tokens_sampled",
    "length",
    "truncated",
)


# Prompts


def problem_ids(prompts: Sequence[Any]) -> list[str]:
    """Stable ids of prompts: a hash of each, be it a text or a list of chat messages.

    Examples
    --------
    >>> message = {"role": "user", "content": "1+1="}
    >>> same = {"content": "1+1=", "role": "user"}
    >>> len(set(problem_ids([[message], [same], "1+1="])))
    2
    """
    # Not Python's hash, which differs from process to process: histories are kept under the id.
    return [
        hashlib.blake2b(_text(prompt).encode(), digest_size=12).hexdigest() for prompt in prompts
    ]


def as_problems(prompts: Sequence[Any], taken: Collection[str] = ()) -> list[Problem]:
    """Prompts as problems. A prompt that occurs again in a round is another problem, `id#2`."""
    used = set(taken)
    problems = []
    for prompt, key in zip(prompts, problem_ids(prompts)):
        name = key
        number = 1
        while name in used:
            number += 1
            name = f"{key}#{number}"
        used.add(name)
        problems.append(Problem(name, _text(prompt), ""))
    return problems


def _text(prompt: Any) -> str:
    """A prompt as text: of messages their JSON, whatever the order of their keys."""
    return json.dumps(prompt, sort_keys=True, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise ValueError(
        f"raw_prompt: a {type(value).__name__} has no stable id; prompts of text, numbers, lists "
        "and dicts have"
    )


# Scored rows


class Verdict:
    """Which rollouts are correct, by what verl knows of them.

    That is `acc`, where the reward function returns it: 1 is correct. Without it, a reward of at
    least `solved` is, and with solved=None a reward of 1.
    """

    def __init__(self, solved: float | None = None) -> None:
        self.solved = solved
        self.warned = False

    def __call__(self, reward: np.ndarray, acc: Sequence[Any]) -> np.ndarray:
        """(R,) bool, by rewards (R,) and R values of `acc`, None where there is none."""
        bar = 1.0 if self.solved is None else self.solved
        correct = reward >= bar
        given = np.array([value is not None for value in acc], dtype=bool)
        # What the reward function says goes before the bar.
        correct[given] = [float(value) == 1 for value in acc if value is not None]

        other = reward[~given & (reward != 0) & (reward != 1)]
        if self.solved is None and len(other) and not self.warned:
            self.warned = True
            logger.warning(
                "a reward is %g, and only 0 and 1 say by themselves what is correct. Let the "
                "reward function return `acc`, or set `solved`, the reward from which a rollout "
                "counts as correct. Until then it is 1.",
                other[0],
            )
        return correct


def totalled(rollouts: Rollouts, method: Method, sampling: Sampling) -> Rollouts:
    """Rollouts with the method's parts of the reward on top of verl's, and the columns of a new
    row.
    """
    size = len(rollouts)
    rollouts = rollouts.assign(
        gradient=np.ones(size, dtype=bool), uses=np.zeros(size, dtype=np.int64)
    )
    rollouts = rewards.total(rollouts, method.reward, sampling)
    finite = np.isfinite(rollouts.reward)
    if not finite.all():
        row = int(np.argmin(finite))
        raise ValueError(
            f"reward: that of a rollout of problem {rollouts.problem[row]} is "
            f"{rollouts.reward[row]}; finite numbers are needed"
        )
    return rollouts


def row_advantages(outcome: Round, objective: Objective, multiple: int) -> Ragged:
    """What verl multiplies the ratios of the selected rows with: advantages times row weights.

    The clipped objective grows in proportion to the advantage, so the weight of a row's loss may as
    well be a factor of its advantages. Three things become such factors:

    - the weights of the selector, and 0 for old responses that carry no gradient;
    - with loss_aggregation="group", what makes the mean over rollouts a mean over groups;
    - where the loss is a mean over rollouts, what makes up for padding: verl fills the K rows up
      to a multiple of its mini-batch, and divides by the size with padding.

    verl's KL penalty and entropy bonus are not reached by factors, so they do not go with the
    first of these.

    Parameters
    ----------
    outcome : Round
    objective : Objective
    multiple : int
        Rows of a mini-batch.
    """
    rows = outcome.rows
    kept = outcome.rollouts.take(rows)
    weights = np.ones(len(rows)) if outcome.weights is None else outcome.weights.copy()
    # An advantage of zero leaves the row in verl's averages and takes its gradient away.
    weights[~kept["gradient"]] = 0.0
    if (objective.kl > 0 or objective.entropy > 0) and (weights != 1).any():
        raise ValueError(
            "weights: verl's KL penalty and entropy bonus do not follow the weights of rows; use "
            "an Objective with kl=0 and entropy=0"
        )
    if objective.loss_aggregation == "group":
        _, group, sizes = np.unique(kept.group, return_inverse=True, return_counts=True)
        # K rows in G groups: verl's mean weighs a row by 1/K, and a mean over groups by 1/(G*S), S
        # being the size of its group. The factor from one to the other is K/(G*S).
        weights *= len(rows) / (len(sizes) * sizes[group])
    if objective.loss_aggregation != "token" and len(rows):
        # The number of rows after padding, by which verl divides.
        padded = -(-len(rows) // multiple) * multiple
        weights *= padded / len(rows)

    lengths = kept.lengths
    if isinstance(outcome.advantages, Ragged):
        values = outcome.advantages.values
    else:
        # One advantage a row becomes one a token.
        values = np.repeat(outcome.advantages, lengths)
    return Ragged(values * np.repeat(weights, lengths), kept.response.offsets)


def round_metrics(rollouts: Rollouts, method: Method, step: int) -> dict[str, float]:
    """What is logged of a round under the prefix `workbench/`, numbers only.

    Parameters
    ----------
    rollouts : Rollouts
        The round's table after `grpo.marked`.
    method : Method
    step : int
    """
    stats = round_stats(step, rollouts, [], parameters=0, learning_rate=0.0)
    metrics = {name: stats[name] for name in LOGGED}
    metrics["stages"] = int(rollouts.stage[rollouts.round == step].max()) + 1
    metrics |= method.metrics()
    return {
        f"workbench/{name}": float(value) for name, value in metrics.items() if np.isfinite(value)
    }
