"""A search over combinations: a trial of many arms, of which fewer and fewer go on.

A combination takes one value for each slot from `CHOICES`. All of them begin to be tuned. After
each stage of the tuning the best third of them goes on, by what each costs at the best rate that it
has been tried at. The few that are left meet the baseline and the best single paper on fresh seeds.

The best of many is partly the luckiest of many, so its tuning runs flatter it. No tuning run
has the fresh seeds, so their intervals are those of a comparison that was settled beforehand.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from workbench import config
from workbench.trials import tuning
from workbench.trials.state import TrialState
from workbench.trials.trial import Trial
from workbench.utils.validation import whole_number

# Slot -> name -> settings of that slot.
Choices = Mapping[str, Mapping[str, Mapping[str, Any]]]
CHOICES: Choices = tomllib.loads((Path(__file__).parent / "choices.toml").read_text("utf-8"))
# One combination in three goes on to the next stage.
KEEP = 3
FINALISTS = 3


class Search(Trial):
    """A trial of combinations, of which the best ones are compared on fresh seeds.

    Parameters
    ----------
    arms : dict from label to arm
        The combinations, and `invited`.
    invited : labels
        Arms that are compared in any case, such as the best single paper.
    finalists : int
        How many are compared on fresh seeds, beside the baseline and those invited.
    options
        As for `Trial`. The measure is what ranks the combinations.
    """

    def __init__(
        self,
        arms: Any,
        *,
        invited: Iterable[str] = (),
        finalists: int = FINALISTS,
        **options: Any,
    ) -> None:
        whole_number("finalists", finalists, 1)
        self.invited = tuple(invited)
        self.finalists = finalists
        super().__init__(arms, **options)

    def make_state(self) -> SearchState:
        """The state by what was found so far."""
        state = super().make_state()
        return SearchState(
            state.settings,
            state.found,
            state.failed,
            self.invited,
            self.finalists,
            left_out=state.left_out,
        )

    @property
    def rungs(self) -> pd.DataFrame:
        """A row a combination and stage of the tuning: rung, label, seeds and score.

        The score is the logarithm of its cost over the baseline's, each at its best rate so far.
        """
        state = self.look()
        assert isinstance(state, SearchState)
        return state.rungs

    def _plan(self) -> dict[str, Any]:
        plan = super()._plan()
        plan["settings"] |= {
            "invited": list(self.invited),
            "keep": KEEP,
            "finalists": self.finalists,
        }
        return plan


@dataclass(frozen=True)
class SearchState(TrialState):
    """The state of a search; `invited` and `finalists` as in `Search`."""

    invited: tuple[str, ...] = ()
    finalists: int = FINALISTS

    @cached_property
    def compared(self) -> list[str]:
        """The baseline, those invited, and the combinations that are still in."""
        left = self.combinations
        for costs in self.stages:
            left = self._survivors(costs)
        always = (self.settings.baseline, *self.invited)
        return [label for label in self.runnable if label in (*always, *left)]

    @cached_property
    def combinations(self) -> list[str]:
        """The labels of the combinations that can run."""
        always = (self.settings.baseline, *self.invited)
        return [label for label in self.runnable if label not in always]

    @cached_property
    def stages(self) -> list[dict[str, float]]:
        """What the combinations cost after each stage of the tuning that all of them have ended."""
        left = self.combinations
        stages = []
        for stage in range(1 + len(self.settings.tuning_seeds)):
            costs = {label: self.cost_after(label, stage) for label in left}
            if None in costs.values():
                break
            stages.append({label: cost for label, cost in costs.items() if cost is not None})
            left = self._survivors(stages[-1])
        return stages

    @cached_property
    def rungs(self) -> pd.DataFrame:
        """See `Search.rungs`."""
        rows = []
        for stage, costs in enumerate(self.stages):
            usual = self.cost_after(self.settings.baseline, stage)
            for label, cost in costs.items():
                seeds = max(1, stage)
                rows.append(
                    {"rung": stage + 1, "label": label, "seeds": seeds, "score": cost - usual}
                )
        return pd.DataFrame(rows, columns=["rung", "label", "seeds", "score"])

    def cost_after(self, label: str, stage: int) -> float | None:
        """The lowest cost of an arm after a stage of its tuning; None before that has ended."""
        # The target of the coarse grid, since a stage has to end while the baseline is being tuned,
        # and to end in the same way afterwards.
        if self.first_target is None:
            return None
        costs = self.costs(label)
        planned = tuning.points_by_stage(costs, self.settings.coarse, self.settings.tuning_seeds)
        if len(planned) <= stage or any(run not in costs for run in planned[stage]):
            return None
        # A rate counts with all seeds so far, whichever stage tried it first.
        past = [run for part in planned[: stage + 1] for run in part]
        seeds = {seed for _, seed in past}
        points = {point for point, _ in past if all((point, seed) in past for seed in seeds)}
        return min(tuning.mean_cost(costs, point, seeds) for point in points)

    def _survivors(self, costs: Mapping[str, float]) -> list[str]:
        return survivors(costs, max(self.finalists, len(costs) // KEEP))


def survivors(costs: Mapping[str, float], n: int) -> list[str]:
    """The n labels of the lowest costs, the best first; of equal ones those that stand first.

    Examples
    --------
    >>> survivors({"a": 0.2, "b": -0.1, "c": float("inf"), "d": -0.1}, 2)
    ['b', 'd']
    """
    # `sorted` keeps the order of equal costs.
    return sorted(costs, key=lambda label: costs[label])[:n]


def methods(choices: Choices = CHOICES) -> dict[str, Any]:
    """Every combination as a method, by label."""
    return {
        label: config.method("grpo", settings=settings)
        for label, settings in combinations(choices).items()
    }


def combinations(choices: Choices = CHOICES) -> dict[str, dict[str, Any]]:
    """Every choice of one value for each slot.

    Parameters
    ----------
    choices : dict from slot to a dict from name to settings

    Returns
    -------
    dict from label to settings
        The label joins the names of the values, without those of GRPO, whose settings are empty.
        GRPO itself is left out.

    Examples
    --------
    >>> parts = {"replay": {"fresh": {}, "reuse": {"replay": "CorrectResponses"}}}
    >>> parts["advantage"] = {"group": {}, "rloo": {"advantage": "LeaveOneOut"}}
    >>> list(combinations(parts))
    ['rloo', 'reuse', 'reuse+rloo']
    """
    made = {}
    for names, label in named_choices(choices).items():
        settings: dict[str, Any] = {}
        for slot, name in zip(choices, names):
            settings |= choices[slot][name]
        if settings:
            made[label] = settings
    return made


def named_choices(choices: Choices) -> dict[tuple[str, ...], str]:
    """The names of the values of every combination, and its label; GRPO's is empty."""
    made = {}
    for names in itertools.product(*choices.values()):
        changed = [name for slot, name in zip(choices, names) if choices[slot][name]]
        made[names] = "+".join(changed)
    return made
