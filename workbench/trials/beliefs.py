"""A method that begins with what a profile knows of the success rates of its problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.methods import Method
from workbench.pools import Problem
from workbench.rules.success_rates import Posteriors, SuccessRates
from workbench.slots import Context
from workbench.trials.check import made_up
from workbench.utils.seeding import generator


@dataclass(frozen=True, repr=False)
class Started(Method):
    """A method whose success rates have seen samples before the first round, see `Profile.start`.

    Attributes
    ----------
    seen : tuple of (problem, samples, correct)
        A manifest holds them. A run of such a method is resumed by passing it again.
    """

    seen: tuple[tuple[str, int, int], ...] = ()

    def slots(self) -> dict[str, Any]:
        """Name and value of every slot."""
        slots = super().slots()
        del slots["seen"]
        return slots

    def clone(self) -> Started:
        """The same method, whose slots have learnt from the samples alone."""
        # A run learns in a clone, and makes it anew where it begins anew.
        made: Any = super().clone()
        for belief in made.beliefs():
            if isinstance(belief, Posteriors):
                ids, tries, correct = map(list, zip(*self.seen))
                belief.observe(ids, np.array(correct), np.array(tries))
            else:
                belief.feedback(self._rollouts(), Context(0, 0))
        return made

    def beliefs(self) -> list[Posteriors | SuccessRates]:
        """What its slots believe of problems."""
        held = [value.delegate for value in self.learning().values()]
        return [each for each in held if isinstance(each, Posteriors | SuccessRates)]

    def _rollouts(self) -> Any:
        """The samples as a round would have them."""
        samples, correct = np.array([each[1:] for each in self.seen]).T
        places = np.repeat(np.arange(len(samples)), samples)
        draw = np.concatenate([np.arange(n) for n in samples])
        # Right ones are spread evenly, since a belief may keep the last few of them alone.
        share = (correct / samples)[places]
        right = np.floor((draw + 1) * share + 1e-9) > np.floor(draw * share + 1e-9)
        problems = [Problem(name, name, "") for name, _, _ in self.seen]
        nothing, ones = np.zeros(len(samples), int), np.ones(len(places), int)
        rng = generator(0, "profile", "start")
        return made_up(problems, places, nothing, right, ones, 0, 0, rng)
