"""What a rollout earns: a weighted sum of named parts, each recorded in a column `reward_<name>`.

A part is a configuration with `name`, `weight` and `__call__(rollouts, sampling) -> (R,)`, see
`slots.Reward`. Whatever the parts are, the verifier's verdict stays in the column `correct`.
Advantages and the selectors that compare rewards read the sum, `reward`; allocators, replay,
rejection and success rates read `correct`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from workbench.checks import checked_numbers
from workbench.policies import Sampling
from workbench.rollouts import NonFinite
from workbench.slots import Reward, Rollouts
from workbench.utils.bounds import Positive, ShareAboveZero, check_arguments
from workbench.utils.groups import group_numbers, merge_same, precision_of
from workbench.utils.validation import brief
from workbench.verifiers.boxes import BOX, after_thinking, closings


@dataclass(frozen=True)
class Correct:
    """The verifier's own reward: 1 for a right answer, 0 for a wrong one.

    Attributes
    ----------
    weight : float
        Its factor in the sum of the parts.
    """

    weight: float = 1.0
    # A class variable and no argument: it names the column, whatever the configuration is.
    name: ClassVar[str] = "correct"

    def __call__(self, rollouts: Rollouts, sampling: Sampling) -> np.ndarray:
        """The reward that the verifier gave, (R,)."""
        return rollouts.reward


@dataclass(frozen=True)
class Tags:
    """Share of the tags <name> and </name> that occur once and where they belong, in [0, 1].

    They belong in the order of the names, each with something in it, and nothing earns anything
    inside of a tag that never closes.

    Attributes
    ----------
    weight : float
        Its factor in the sum of the parts.
    names : tuple of str
        Of the tags.

    References
    ----------
    PODS (arXiv 2504.13818) gives up to 0.2 for its tags, in its released configuration.
    """

    weight: float = 0.2
    names: tuple[str, ...] = ("think", "answer")
    name: ClassVar[str] = "tags"

    def __post_init__(self) -> None:
        # A text would be read letter by letter.
        listed = isinstance(self.names, tuple | list) and len(self.names) > 0
        if not listed or not all(isinstance(name, str) and name for name in self.names):
            raise ValueError(
                f'names={brief(self.names)}: names of tags are needed, such as ("answer",)'
            )

    def __call__(self, rollouts: Rollouts, sampling: Sampling) -> np.ndarray:
        """(R,) in [0, 1]."""
        return np.array([self._share(text) for text in rollouts.text])

    def _share(self, text: str) -> float:
        earned = 0
        end = 0  # of the last tag that is in its place
        for name in self.names:
            start = text.find(f"<{name}>", end)
            close = text.find(f"</{name}>", max(start, end))
            # A tag that is repeated earns nothing, so that writing it over and over does not pay.
            if start >= 0:
                earned += text.count(f"<{name}>") == 1
                end = start + len(f"<{name}>")
            if close >= 0:
                has_content = bool(text[end:close].strip())
                earned += has_content and text.count(f"</{name}>") == 1
                end = close + len(f"</{name}>")
            elif start >= 0:
                break
        return earned / (2 * len(self.names))


@dataclass(frozen=True)
class Boxed:
    """1 where a response has exactly one box behind its thoughts, and something in it, else 0: a
    format reward for answers in boxes.

    Attributes
    ----------
    weight : float
        Its factor in the sum of the parts.
    """

    weight: float = 0.2
    name: ClassVar[str] = "boxed"

    def __call__(self, rollouts: Rollouts, sampling: Sampling) -> np.ndarray:
        """(R,) of 0 and 1."""
        said = map(after_thinking, rollouts.text)
        return np.array([float(text.count(BOX) == 1 and is_filled(text)) for text in said])


def is_filled(text: str) -> bool:
    """Whether the first box of a text is complete and holds something."""
    start = text.find(BOX) + len(BOX)
    return bool(text[start : closings(text).get(start, start)].strip())


@dataclass(frozen=True)
class Overlong:
    """DAPO's soft penalty on overlong responses, from 0 down to -1 as the limit comes near.

    Attributes
    ----------
    weight : float
        Its factor in the sum of the parts.
    limit : int, optional
        Tokens; None for the limit of the sampling.
    buffer : float
        Share of the limit over which the penalty grows.

    References
    ----------
    DAPO (arXiv 2503.14476), section 3.4: 4,096 of 20,480 tokens, which is 0.2.
    """

    weight: float = 1.0
    limit: Positive | None = None
    buffer: ShareAboveZero = 0.2
    name: ClassVar[str] = "overlong"

    def __post_init__(self) -> None:
        check_arguments(self)

    def __call__(self, rollouts: Rollouts, sampling: Sampling) -> np.ndarray:
        """(R,) in [-1, 0]; a truncated response has -1."""
        limit = self.limit or sampling.max_new_tokens
        return overlong(rollouts.lengths, limit, self.buffer, rollouts.truncated)


def overlong(
    lengths: np.ndarray, limit: float, buffer: float = 0.2, truncated: np.ndarray | None = None
) -> np.ndarray:
    """The soft overlong penalty of DAPO, (R,) in [-1, 0].

    Parameters
    ----------
    lengths : (R,)
        Response lengths in tokens.
    limit : number of tokens
    buffer : share of the limit
        The penalty is 0 up to (1 - buffer) limit, from there it falls linearly to -1 at the limit.
    truncated : (R,) bool, optional
        Responses that have -1 whatever their length.

    Examples
    --------
    >>> overlong([80, 90, 100], limit=100)
    array([-0. , -0.5, -1. ])
    """
    # 0 where the buffer begins, 1 at the limit.
    excess = (np.asarray(lengths) - (1 - buffer) * limit) / (buffer * limit)
    penalty = -np.clip(excess, 0.0, 1.0)
    # A truncated response was too long for the sampler, even if `limit` lies above its limit.
    return penalty if truncated is None else np.where(truncated, -1.0, penalty)


def total(rollouts: Rollouts, parts: Sequence[Reward], sampling: Sampling) -> Rollouts:
    """The rollouts with `reward` set to the weighted sum of the parts.

    Rewards of a group that differ by rounding alone are made equal, here for every slot.

    With several parts there is a column `reward_<name>` for each. ValueError when a part returns
    anything but a number for each rollout, NonFinite for a sum that is no finite number.
    """
    values = {}
    for part in parts:
        who = f"reward: part {part.name!r}"
        returned = part(rollouts, sampling)
        values[part.name] = checked_numbers(who, "rewards", returned, len(rollouts), None)
    # A single part is the whole reward up to its weight and gets no column of its own.
    columns = {f"reward_{name}": value for name, value in values.items()} if len(parts) > 1 else {}
    weighted = [part.weight * values[part.name] for part in parts]
    rollouts = rollouts.assign(reward=sum(weighted), **columns)
    # Checked before any slot reads it, while the rows to blame can still be told.
    wrong = rollouts.take(~np.isfinite(rollouts.reward))
    if len(wrong):
        raise NonFinite(
            f"the reward of {len(wrong)} rollouts is not finite, such as {wrong.reward[0]} of a "
            f"rollout of problem {wrong.problem[0]}",
            wrong,
        )
    _, groups, _ = group_numbers(rollouts.group)
    if len(parts) == 1:
        return rollouts.assign(reward=merge_same(rollouts.reward, groups))
    # A sum is as rough as the roughest of its parts, and may be far smaller than they are.
    precision = max(precision_of(value) for value in values.values())
    sizes = np.sum(np.abs(weighted), axis=0)
    merged = {name: merge_same(value, groups) for name, value in columns.items()}
    reward = merge_same(rollouts.reward, groups, precision, sizes)
    return rollouts.assign(reward=reward, **merged)
