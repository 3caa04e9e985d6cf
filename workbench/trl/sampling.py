"""Sampling the rollouts of one round with TRL's trainer, on all processes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import gather_object

from workbench import rewards
from workbench.policies import Sampling
from workbench.pools import Pool, Problem
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.trl import table

if TYPE_CHECKING:
    from workbench.trl.trainer import GRPOTrainer


class TrainingSet:
    """A data set that can be indexed, as a pool of problems.

    Parameters
    ----------
    dataset : datasets.Dataset
        With the column "prompt", and perhaps with "level", the difficulty of each problem.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.places: dict[str, int] = {}  # id of a problem -> row
        has_levels = "level" in dataset.column_names
        levels = dataset["level"] if has_levels else [0] * len(dataset)
        problems = []
        for place, (prompt, level) in enumerate(zip(dataset["prompt"], levels)):
            # Equal prompts are numbered in the order of the data set, which is the same in every
            # run, so what a method has learnt of a problem is found again.
            name = table.numbered(table.problem_id(prompt), self.places)
            self.places[name] = place
            problems.append(Problem(name, prompt, "", level))
        self.pool = Pool(problems)

    def row(self, problem: Problem) -> dict[str, Any]:
        """The row of a problem of the pool."""
        return self.dataset[self.places[problem.id]]


class RoundSampler:
    """What `rounds.play` asks for in one round: further problems, and scored rollouts.

    Parameters
    ----------
    trainer : GRPOTrainer
    context : Context

    Attributes
    ----------
    sampled : int
        Rollouts sampled so far.
    scored : list of int64 arrays
        Numbers, in the order of sampling, of the rollouts that a reward function scored. These are
        the new rows of the round's table.
    filler : Rollouts, optional
        The shortest rollout of the first request.
    """

    def __init__(self, trainer: GRPOTrainer, context: Context) -> None:
        self.trainer = trainer
        self.context = context
        self.rows: dict[str, dict[str, Any]] = {}  # id of a problem -> row of the data set
        self.sampled = 0
        self.scored: list[np.ndarray] = []
        self.filler: Any = None
        self._logged: list[int] = []  # numbers of rollouts in the order of TRL's log; -1: a copy

    # Problems

    def named(self, rows: Sequence[dict[str, Any]]) -> list[Problem]:
        """Rows of the data set as problems of the round."""
        problems = []
        for row in rows:
            name = table.numbered(table.problem_id(row["prompt"]), self.rows)
            self.rows[name] = row
            problems.append(Problem(name, row["prompt"], ""))
        return problems

    def find_more(self, n: int, problems: Sequence[Problem]) -> Sequence[Problem]:
        """n further problems of the training set, chosen by the curriculum."""
        training_set = self.trainer.training_set()
        # A curriculum must not choose what the round has already.
        context = replace(self.context, taken=frozenset(problem.id for problem in problems))
        curriculum = self.trainer.method.curriculum
        chosen = curriculum.choose(training_set.pool, n, context)
        for problem in chosen:
            self.rows[problem.id] = training_set.row(problem)
        return chosen

    # Rollouts

    def sample(
        self, problems: list[Problem], counts: np.ndarray, before: np.ndarray, stage: int
    ) -> Rollouts:
        """Scored rollouts, counts (P,) of the problems; see `rounds.play`.

        Rollouts that no reward function scored are left out, as TRL leaves them out of its
        baselines.
        """
        trainer = self.trainer
        names = [problem.id for problem in problems]
        # Every process has asked its own copy of the allocator. If they differ, the gathering below
        # would wait for ever or mix up rollouts.
        trainer.agree("the counts of rollouts", *names, counts)
        wanted = np.repeat(np.array(names, dtype=object), counts).tolist()
        if not wanted:
            raise ValueError(
                f"allocator: {trainer.method.allocator!r} asked for a stage of no rollouts"
            )
        rollouts, scores = self._sample_together(wanted)
        if self.filler is None:
            self.filler = _shortest(rollouts)
        weights = trainer.reward_weights.cpu().numpy()
        rollouts = rollouts.assign(
            reward=table.weighted_sum(scores, weights),
            correct=trainer.verdict(scores, first=self.context.round == trainer.first_round),
            stage=np.full(len(wanted), stage),
            round=np.full(len(wanted), self.context.round),
        )
        is_scored = np.isfinite(rollouts.reward)
        # Numbers count everything that was sampled, in order, so that TRL's log can be matched
        # later.
        self.scored.append(self.sampled + np.flatnonzero(is_scored))
        self.sampled += len(wanted)
        if not is_scored.all():
            rollouts = rollouts.take(is_scored)
        # After the unscored ones have left, so that the numbers of a problem's rollouts have no
        # gaps.
        rollouts = rollouts.assign(draw=_draws(rollouts, names, before))
        sampling = Sampling(trainer.temperature, max_new_tokens=trainer.max_completion_length)
        return rewards.total(rollouts, trainer.method.reward, sampling)

    def _sample_together(self, wanted: list[str]) -> tuple[Rollouts, np.ndarray]:
        """One rollout for each of the problems named, and their scores (R, F).

        Every process samples an equal share; the last ones sample copies that are thrown away.
        """
        processes = self.trainer.accelerator.num_processes
        # Rounded up. All processes have to make the same calls, so the last ones fill up with
        # copies.
        share = -(-len(wanted) // processes)
        padded = wanted + wanted[-1:] * (share * processes - len(wanted))
        start = self.trainer.accelerator.process_index * share
        mine = padded[start : start + share]
        size = self.trainer.rows_at_once or share
        parts = [self._sample_share(mine[i : i + size]) for i in range(0, share, size)]
        # Gathered in the order of the processes, each of which has a run of consecutive rows, so
        # the result is in the order of `wanted`, with the copies at the end.
        rollouts = Rollouts.concat(gather_object([part for part, _ in parts]))
        scores = np.concatenate(gather_object([part for _, part in parts]))

        # TRL logs completions call by call, and in each call process by process.
        for first in range(0, share, size):
            for process in range(processes):
                for i in range(first, min(first + size, share)):
                    number = process * share + i
                    self._logged.append(self.sampled + number if number < len(wanted) else -1)
        if len(padded) > len(wanted):
            rollouts = rollouts.take(np.arange(len(wanted)))
        return rollouts, scores[: len(wanted)]

    def _sample_share(self, names: list[str]) -> tuple[Rollouts, np.ndarray]:
        """One rollout of this process for each of the problems named, and their scores (R, F)."""
        trainer = self.trainer
        # Rows of the data set may have columns that TRL's loader has removed from its own.
        columns = next(iter(self.rows.values())).keys()
        rows = [{name: self.rows[key][name] for name in columns} for key in names]
        drawn = trainer.draw(rows)
        # TRL counts a padding token at the end of a response as an end too.
        ends = {*trainer.eos_token_ids, trainer.padding.token}
        rollouts = table.sampled_table(names, drawn.output, drawn.responses, drawn.texts, ends)
        if trainer.needs & {"entropy", "old_logprobs", "token_entropy"}:
            rollouts = self._with_logprobs(rollouts)
        return rollouts, drawn.scores

    def _with_logprobs(self, rollouts: Rollouts) -> Rollouts:
        """The rollouts with log-probabilities and entropies under the policy that sampled them."""
        trainer = self.trainer
        inputs = trainer.padding.tokens(rollouts)
        logprobs, entropy = trainer.score_tokens(trainer.model, inputs, entropy=True)
        # Entropy is the mean over tokens that the model itself wrote.
        mask = inputs["completion_mask"]
        if "tool_mask" in rollouts:
            mask = mask * trainer.padding.column(rollouts["tool_mask"])
        entropy = torch.where(mask.bool(), entropy.double(), 0.0)
        mean = entropy.sum(1) / mask.sum(1).clamp(min=1)
        columns = {"entropy": mean.cpu().numpy()}
        if "token_entropy" in trainer.needs:
            padded = entropy.float().cpu().numpy()
            columns["token_entropy"] = Ragged.of_padded(padded, rollouts.lengths)
        padded = logprobs.float().cpu().numpy()
        columns["old_logprobs"] = Ragged.of_padded(padded, rollouts.lengths)
        return rollouts.assign(**columns)

    # TRL's log of completions

    def logged_advantages(self, advantages: np.ndarray) -> list[float]:
        """The advantages (R,) of the round's table in the order of TRL's log of completions.

        NaN for rollouts that are not in the table, and for copies.
        """
        of_number = np.full(self.sampled + 1, np.nan)  # the last one is for copies, number -1
        scored = np.concatenate(self.scored)
        of_number[scored] = advantages[: len(scored)]  # old rows stand behind the new ones
        return of_number[self._logged].tolist()


def _draws(rollouts: Rollouts, names: Sequence[str], before: np.ndarray) -> np.ndarray:
    """Number of each rollout within its problem and round, (R,), after those that were `before`."""
    place = {name: i for i, name in enumerate(names)}
    problem = np.array([place[name] for name in rollouts.problem], dtype=np.int64)
    sizes = np.bincount(problem, minlength=len(names))
    starts = np.cumsum(sizes) - sizes  # the rollouts of a problem stand together
    return np.arange(len(rollouts)) - starts[problem] + before[problem]


def _shortest(rollouts: Rollouts) -> Rollouts:
    """The shortest rollout, as a table of one row."""
    lengths = rollouts.prompt.lengths + rollouts.lengths
    return rollouts.take([np.argmin(lengths)])
