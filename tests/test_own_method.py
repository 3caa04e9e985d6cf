"""A method of your own that decides in every slot. It trains, and a run of it resumes exactly."""

from dataclasses import dataclass

import numpy as np
import pytest

import workbench as wb
from workbench.slots import Selection, Slot


class EasyFirst(Slot):
    """Curriculum: problems of level 1 in round 1, up to level 2 in round 2, and so on."""

    epoch = 0  # it makes no passes over the pool that could be counted

    def choose(self, pool, n, context):
        easy = [p for p in pool if p.level <= context.round and p.id not in context.taken]
        return context.rng("curriculum").permutation(easy)[:n]


class SecondChance(Slot):
    """Allocator: k rollouts for every problem, and k more for those without a correct one."""

    needs = frozenset({"resampling"})  # the trainer must be able to sample twice in a round

    def __init__(self, k):
        self.k = k

    def allocate(self, problems, context):
        rollouts = yield np.full(len(problems), self.k)
        solved = set(rollouts.problem[rollouts.correct])
        yield np.array([0 if p.id in solved else self.k for p in problems])


class Recent(wb.replay.CorrectResponses):
    """Replay: as in AR3PO, but a correct response is forgotten after two rounds."""

    def feedback(self, rollouts, context):
        super().feedback(rollouts, context)
        self.stored = self.stored.take(self.stored.round > context.round - 2)


class ShorterHalf(Slot):
    """Selector: the shorter half of the candidates; an old response has half the weight."""

    def select(self, rollouts, context):
        rows = np.argsort(rollouts.lengths, kind="stable")[: len(rollouts) // 2]
        return Selection(rows, weights=0.5 ** rollouts["age"][rows])


class Fading(Slot):
    """Advantage: that of GRPO for the first token, and less for every further one."""

    def __call__(self, rollouts, context):
        first = wb.advantages.group_normalized(rollouts.reward, rollouts.group)
        rows = [a * 0.9 ** np.arange(n) for a, n in zip(first, rollouts.lengths)]
        return wb.rollouts.Ragged.of(rows, np.float64)


class Brief:
    """Reward part: 1 for an empty response, 0 for one as long as the limit."""

    name = "brief"

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, rollouts, sampling):
        return 1 - rollouts.lengths / sampling.max_new_tokens


METHOD = wb.Method(
    "mine",
    curriculum=EasyFirst(),
    allocator=SecondChance(k=2),
    replay=Recent(),
    selector=ShorterHalf(),
    advantage=Fading(),
    objective=wb.objectives.Objective(clip=(0.1, 0.3), loss_aggregation="rollout"),
    reward=(wb.rewards.Correct(), Brief(weight=0.1)),
)


@pytest.mark.slow
def test_three_rounds_resume_exactly(tmp_path):
    lab = wb.labs.tiny(pool=32, levels=(1, 2), base="clean", held_out=8)
    whole = wb.Run(lab, METHOD, out=tmp_path / "whole", problems_per_round=8)
    list(whole.rounds(3))
    list(wb.Run(lab, METHOD, out=tmp_path / "parts", problems_per_round=8).rounds(2))
    resumed = wb.Run.resume(tmp_path / "parts", method=METHOD)
    list(resumed.rounds(3))
    assert whole.record.rollouts().equals(resumed.record.rollouts())


@dataclass
class Averages(Slot):
    """A selector that learns in an argument, which no checkpoint has."""

    mean: float = 0.0

    def select(self, rollouts, context):
        return Selection(np.arange(2 if self.mean else 4))

    def feedback(self, rollouts, context):
        self.mean += 1.0


def test_a_run_does_not_go_on_without_what_it_has_learnt_in_an_argument(tmp_path):
    lab = wb.labs.tiny(pool=8, levels=(1,), base="clean", held_out=0)
    method = wb.methods.grpo(4).but(name="mine", selector=Averages())
    list(wb.Run(lab, method, out=tmp_path, problems_per_round=2).rounds(1))
    with pytest.raises(ValueError, match=r"argument"):
        list(wb.Run.resume(tmp_path, method=method).rounds(2))
