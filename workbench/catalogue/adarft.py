r"""A target difficulty that follows the reward.

AdaRFT (arXiv [2504.05520](https://arxiv.org/abs/2504.05520)). Problems have known difficulties
from 0 to 100. Those nearest to a target $T$ come next, and after each round

$$T \leftarrow \text{clip}\big(T + 50 \tanh(2\,(\bar r - 0.5)),\; 0,\; 100\big),$$

so the target rises while the mean reward $\bar r$ is above one half. *Released code.*
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from workbench.methods import Method, Uniform, method
from workbench.rules.curricula import OverPool, rng_of
from workbench.slots import Context, Pool, Problems, Rollouts, state_field
from workbench.utils.bounds import Positive, Share, choice, of_kind
from workbench.utils.validation import number

Difficulties = Annotated[Mapping[str, float], of_kind(Mapping, "{'problem id': 40}")]


@dataclass
class AdaRft(OverPool):
    """Takes the problems whose difficulty is nearest to a target that follows the mean reward.

    Difficulties lie in [0, 100]. After each round the target moves by
    step * tanh(sensitivity * (mean reward - wanted)) and is cut to [0, 100].

    Attributes
    ----------
    difficulties : dict, optional
        Problem id -> difficulty. None takes the problems' levels, the lowest as 0 and the highest
        as 100.
    start : float
        The first target.
    step, sensitivity, wanted : float
        See above.
    ties : {"index", "random"}
        Between problems of equal distance: the lower index, as in the released code, where the same
        problems come back as long as the target stands still; or a random order.

    References
    ----------
    AdaRFT (arXiv 2504.05520) and its released code: step 50, sensitivity 2, wanted .5.
    """

    difficulties: Difficulties | None = None
    start: Annotated[float, partial(number, low=0, high=100)] = 0.0
    step: Positive = 50.0
    sensitivity: Positive = 2.0
    wanted: Share = 0.5
    ties: Annotated[str, choice("index", "random")] = "index"

    reads_verdict = False

    target: float = state_field(float)

    def __post_init__(self) -> None:
        super().__post_init__()
        for problem, difficulty in (self.difficulties or {}).items():
            number(f"difficulties[{problem!r}]", difficulty, low=0, high=100)
        # A checkpoint gives a number back with the type that it has here.
        self.target = float(self.start)

    @property
    def needs(self) -> set[str]:  # type: ignore[override]
        """A choice of problems, by their levels where no difficulties are given."""
        return {"problem_choice", "levels"} if self.difficulties is None else {"problem_choice"}

    def _places(self, problems: Problems, n: int, pool: Pool, context: Context) -> np.ndarray:
        distance = np.abs(self._difficulties(problems, pool) - self.target)
        if self.ties == "index":
            return np.argsort(distance, kind="stable")[:n]
        return np.lexsort((rng_of(context).random(len(distance)), distance))[:n]

    def _difficulties(self, problems: Problems, pool: Pool) -> np.ndarray:
        """The difficulties of some problems of the pool, (P,)."""
        if self.difficulties is not None:
            for problem in pool:
                if problem.id not in self.difficulties:
                    raise ValueError(f"difficulties: problem {problem.id!r} of the pool has none")
            return np.array([self.difficulties[problem.id] for problem in problems])
        # The scale is that of the whole pool, so that a target means the same in every round.
        levels = [problem.level for problem in pool]
        low, high = min(levels), max(levels)
        scale = 100 / (high - low) if high > low else 0.0
        return (np.array([problem.level for problem in problems]) - low) * scale

    def feedback(self, rollouts: Rollouts, context: Context) -> None:
        """The target moves with the mean reward of the round's new rollouts."""
        rewards = rollouts.reward[rollouts.round == context.round]
        if not len(rewards):
            return  # a trainer may leave out rollouts that nothing scored
        mean = float(rewards.mean())
        move = self.step * np.tanh(self.sensitivity * (mean - self.wanted))
        self.target = float(np.clip(self.target + move, 0, 100))

    def metrics(self) -> dict[str, float]:
        """The target difficulty of the next round."""
        return {"target_difficulty": self.target}


@method(paper="AdaRFT (arXiv 2504.05520)", decides="curriculum")
def adarft(n: int = 8, curriculum: AdaRft | None = None) -> Method:
    """AdaRFT: problems whose difficulty is nearest to a target that follows the mean reward.

    Parameters
    ----------
    n : int
    curriculum : AdaRft, optional
        None: with the settings of the paper.

    References
    ----------
    AdaRFT (arXiv 2504.05520), which trains by PPO with one rollout a problem.
    """
    return Method("adarft", curriculum=curriculum or AdaRft(), allocator=Uniform(n))
