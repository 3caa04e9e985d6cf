"""What a rollout earns: a weighted sum of named parts, each recorded in a column `reward_<name>`.

A part is a frozen configuration with `name`, `weight` and `__call__(rollouts, sampling) -> (R,)`. Whatever the parts,
the verifier's binary verdict stays in the column `correct`. Advantages, `max_variance` and `max_reward` read the sum,
`reward`; allocators, reuse, `rejection` and the success rates read `correct`.
"""

from dataclasses import dataclass

import numpy as np

from workbench.utils.columns import is_number


@dataclass(frozen=True)
class Correct:
    """1 where the verifier says so, else the verifier's own reward (0 for every verifier of this package)."""

    weight: float = 1.0
    name = "correct"

    def __call__(self, rollouts, sampling):
        """(R,): the reward the verifier gave."""
        return rollouts.reward


@dataclass(frozen=True)
class Tags:
    """Share of the tags <name> and </name> that occur exactly once in the response; PODS gives up to 0.2 for its tags."""

    weight: float = 0.2
    names: tuple = ("think", "answer")
    name = "tags"

    def __call__(self, rollouts, sampling):
        """(R,) in [0, 1]."""
        tags = [tag for name in self.names for tag in (f"<{name}>", f"</{name}>")]
        return np.array([np.mean([text.count(tag) == 1 for tag in tags]) for text in rollouts.text])


@dataclass(frozen=True)
class Boxed:
    """1 where the response has exactly one box, else 0: a format reward for answers in boxes."""

    weight: float = 0.2
    name = "boxed"

    def __call__(self, rollouts, sampling):
        """(R,) of 0 and 1."""
        return np.array([float(text.count("\\boxed{") == 1) for text in rollouts.text])


@dataclass(frozen=True)
class Overlong:
    """DAPO's soft overlong penalty, from 0 down to -1 over the last part of the length limit.

    limit: tokens; None for the sampling limit. buffer: share of the limit over which the penalty grows (DAPO: 4096 of
    20,480 tokens, 0.2).
    """

    weight: float = 1.0
    limit: int | None = None
    buffer: float = 0.2
    name = "overlong"

    def __post_init__(self):
        if not (is_number(self.buffer) and 0 < self.buffer <= 1):
            raise ValueError(f"buffer={self.buffer}: a share above 0 and up to 1 is needed")
        if self.limit is not None and not (is_number(self.limit) and self.limit >= 1):
            raise ValueError(
                f"limit={self.limit}: a positive number of tokens is needed, or None for the sampling limit"
            )

    def __call__(self, rollouts, sampling):
        """(R,) in [-1, 0]; a truncated response has -1."""
        return overlong(
            rollouts.lengths, self.limit or sampling.max_new_tokens, self.buffer, rollouts.truncated
        )


def overlong(lengths, limit, buffer=0.2, truncated=None):
    """The soft overlong penalty of DAPO, (R,) in [-1, 0].

    lengths (R,) tokens. Up to (1 - buffer) limit: 0; from there linearly down to -1 at the limit; -1 beyond it and for
    responses that are `truncated` (R,) bool.
    """
    excess = (np.asarray(lengths) - (1 - buffer) * limit) / (buffer * limit)
    penalty = -np.clip(excess, 0.0, 1.0)
    return penalty if truncated is None else np.where(truncated, -1.0, penalty)


def total(rollouts, parts, sampling):
    """The rollouts with `reward` set to the weighted sum of the parts and, with several, a column for each part."""
    values = {part.name: np.asarray(part(rollouts, sampling), dtype=np.float64) for part in parts}
    if len(values) < len(parts) or not parts:
        raise ValueError(
            f"reward={parts}: at least one part is needed, and no two of the same name"
        )
    columns = {f"reward_{name}": value for name, value in values.items()} if len(parts) > 1 else {}
    return rollouts.assign(reward=sum(part.weight * values[part.name] for part in parts), **columns)
