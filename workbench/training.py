"""The work of one round: from its problems to its row in the record.

    choose problems -> sample -> verify -> select and take advantages -> update -> learn -> measure

`Training` is what stays in memory from round to round. `TrainingRound` is one round, made anew for
each. Neither knows of a directory: `run.Run` opens records, writes them, and goes on after
an interrupt.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from workbench.checks import checked_plan, checked_problems
from workbench.grpo import Step, StepStats, mark
from workbench.labs import Lab
from workbench.methods import Method
from workbench.policies import Plan, Policy
from workbench.policies.batching import mini_batches
from workbench.policies.rescoring import Rescoring
from workbench.policies.stress import OldWeights, misjudgements
from workbench.pools import Problem
from workbench.records.health import History
from workbench.records.round_stats import round_stats, sampler_stats
from workbench.rollouts import Context, Rollouts
from workbench.rounds import Round, play
from workbench.rules import courses, rewards
from workbench.utils.names import TRAINING_PHASES
from workbench.utils.numbers import to_digits
from workbench.utils.seeding import derive
from workbench.verifiers.base import checked_scores

Row = dict[str, Any]


@dataclass
class Training:
    """What one process holds in memory of a run.

    An error in the middle of a round leaves all of this in an unknown state. It is then thrown away
    as a whole and made again from the checkpoint, so that a half-finished round is never continued.

    Attributes
    ----------
    lab, seed, problems_per_round, mini_batches, learning_rate
        See `workbench.Run`.
    method : Method
        With what its slots have learnt.
    policy : Policy
    reference : Policy, optional
        The frozen policy of a KL penalty.
    optimizer : torch.optim.Optimizer
    history : History
        As much of the recorded rounds as the next one needs.
    old_weights : OldWeights
        The weights that sample in a lab whose stress has a lag.
    asked : dict from id to Problem
        The problems of the latest round.
    planned : int, optional
        Rounds that the run was asked for.
    phase : str
        What is at work, as a name of `TRAINING_PHASES`.
    """

    lab: Lab
    seed: int
    problems_per_round: int
    mini_batches: int
    learning_rate: float
    method: Method
    policy: Policy
    reference: Any
    optimizer: Any
    history: History
    old_weights: OldWeights
    asked: dict[str, Problem] = field(default_factory=dict)
    planned: int | None = None
    phase: str = "generate"


class TrainingRound:
    """One round of a training, to be run once."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.lab = training.lab
        self.method = training.method
        self.policy = training.policy
        self.number = training.history.rounds + 1
        training.asked.clear()
        self.seconds = dict.fromkeys(TRAINING_PHASES, 0.0)
        # None where the trainer samples itself, by its present weights.
        self.rescoring: Rescoring | None = None
        if self.policy.samples_apart or self.lab.stress.lag:
            self.rescoring = Rescoring(self.policy, self.lab.sampling, self.method.needs)
        self.context = Context(
            seed=training.seed,
            round=self.number,
            policy=self.policy,
            max_new_tokens=self.lab.sampling.max_new_tokens,
            temperature=self.lab.sampling.temperature,
            planned=training.planned,
        )
        # Counted from the record, so that a run that resumes goes on where it was. A round without
        # any step keeps the rate of the last one.
        latest = max(training.history.steps - 1, 0)
        self.rate = self.lab.learning_rate_of(latest, training.learning_rate)

    def run(self) -> tuple[Row, Rollouts]:
        """Train for one round.

        Returns
        -------
        row : dict
            The round's row of the table of rounds.
        rollouts : Rollouts
            Its table of rollouts, with what became of each.

        Raises
        ------
        NonFinite
            When a reward, an advantage, the loss or the gradient is not finite.
        """
        problems = self._choose_problems(self.training.problems_per_round, [])
        self.context = replace(self.context, epoch=self.method.curriculum.epoch)
        outcome = play(
            self.method,
            problems,
            self.context,
            self._sample,
            self._choose_problems,
            timed=partial(self._timed, "schedule"),
        )
        with self._own_draws():
            steps = self._update(outcome)
        rollouts = mark(
            outcome.rollouts, outcome.rows, outcome.advantages, steps, self.number, outcome.weights
        )
        # Slots learn before the row is written, since it holds what they measured.
        with self._timed("schedule"):
            self.method.feedback(rollouts, self.context)
        return self._row(rollouts, steps), rollouts

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        """Add the seconds within to a phase of the round."""
        self.training.phase = phase
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - started

    @contextmanager
    def _own_draws(self) -> Iterator[None]:
        """Seed torch's generators for this round, and restore them afterwards.

        Dropout draws from them, and a run that resumes is to draw the same.
        """
        device = self.policy.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(derive(self.training.seed, "dropout", self.number))
            yield

    # Rollouts

    def _choose_problems(self, n: int, problems: Sequence[Problem]) -> Sequence[Problem]:
        """n problems beside those that the round has already."""
        taken = frozenset(problem.id for problem in problems)
        context = replace(self.context, taken=taken)
        chosen = self.method.curriculum.choose(self.lab.problems, n, context)
        checked = checked_problems("curriculum", chosen, taken, n)
        self.training.asked.update({problem.id: problem for problem in checked})
        return checked

    def _sample(
        self, problems: Sequence[Problem], counts: np.ndarray, before: np.ndarray, stage: int
    ) -> Rollouts:
        """Verified rollouts, counts[i] of problems[i], which had before[i] so far.

        See `rounds.play`.
        """
        with self._timed("generate"), self.training.old_weights.in_use():
            rollouts, plan = self._generate(problems, counts, before)
        if self.rescoring is not None:
            rollouts = self.rescoring.of_request(rollouts)
        with self._timed("verify"):
            scores = checked_scores(self.lab.verifier, list(rollouts.text), list(rollouts.answer))
        # The policy counts draws from 0 in every call; a problem's draws go on over all requests of
        # the round. Everything sampled here is new, so it has a gradient and no uses yet.
        size = len(rollouts)
        rollouts = rollouts.assign(
            reward=scores.reward,
            correct=scores.correct,
            status=scores.status,
            draw=rollouts.draw + np.repeat(before, counts),
            stage=np.full(size, stage),
            round=np.full(size, self.number),
            gradient=np.ones(size, bool),
            uses=np.zeros(size, dtype=np.int64),
        )
        if self.lab.stress.errs:
            rollouts = self.lab.stress.misjudge(rollouts, self.training.seed)
        if plan is not None:
            rollouts = courses.judge(rollouts, plan, self.method.course)
        self.method.check_verdict(rollouts)
        return rewards.total(rollouts, self.method.reward, self.lab.sampling)

    def _generate(
        self, problems: Sequence[Problem], counts: np.ndarray, before: np.ndarray
    ) -> tuple[Rollouts, Plan | None]:
        """Sampled rollouts, and the plan of the method's course that they follow, if it has one."""
        course, plan = self.method.course, None
        if course is not None:
            plan = course.plan(problems, counts, before, self.context)
            plan = checked_plan(course, plan, int(counts.sum()), self.lab.sampling.max_new_tokens)
        # The number of earlier rollouts is part of the seed, so each stage draws anew.
        seeds = [
            derive(self.training.seed, "generate", self.number, problem.id, int(earlier))
            for problem, earlier in zip(problems, before)
        ]
        rollouts = self.policy.generate(problems, counts, self.lab.sampling, seeds, plan)
        return (rollouts if plan is None else courses.follow(rollouts, plan)), plan

    # The update

    def _update(self, outcome: Round) -> list[tuple[np.ndarray, StepStats]]:
        """The optimizer steps of the round: the rows and the statistics of each."""
        training = self.training
        # A model that a server keeps is not trained.
        if not any(parameter.requires_grad for parameter in self.policy.parameters()):
            return []
        selected = outcome.rollouts.take(outcome.rows)
        # Positions among the K selected rollouts, as are those of advantages and weights.
        parts = mini_batches(
            selected, training.mini_batches, self.context.rng("mini-batches"), outcome.mini_batch
        )
        objective = self.method.objective
        # By default the gap to another program is corrected, and the lag of a lab under stress is
        # not, since it is there to be seen.
        lags = self.lab.stress.lag and not self.policy.samples_apart
        if lags and objective.sampler_correction is None:
            objective = replace(objective, sampler_correction="off")
        on_policy = sampler_logprobs = None
        if self.rescoring is not None:
            sampler_logprobs = self.rescoring.sampler_logprobs(outcome.rollouts, outcome.rows)
            # Before the first step, which changes the weights that the rollouts were sampled with.
            selected, on_policy = self.rescoring.for_update(selected, parts, self.number, objective)
        training.old_weights.keep()
        steps: list[tuple[np.ndarray, StepStats]] = []
        for rows in parts:
            number = training.history.steps + len(steps)
            self.rate = self.lab.learning_rate_of(number, training.learning_rate)
            for group in training.optimizer.param_groups:
                group["lr"] = self.rate
            with self._timed("update"):
                step = Step(
                    self.policy,
                    selected.take(rows),
                    _take(outcome.advantages, rows),
                    objective,
                    weights=_take(outcome.weights, rows),
                    temperature=self.lab.sampling.temperature,
                    length=self.lab.sampling.max_new_tokens,
                    reference=training.reference,
                    on_policy=_take(on_policy, rows),
                    sampler_logprobs=_take(sampler_logprobs, rows),
                )
                stats = step.take(training.optimizer, self.lab.micro_tokens, self.lab.max_grad_norm)
            steps.append((rows, stats))
        return steps

    # The row

    def _row(self, rollouts: Rollouts, steps: list[tuple[np.ndarray, StepStats]]) -> Row:
        """The round's row of the table of rounds."""
        weights = self.policy.parameter_count
        row: Row = round_stats(self.number, rollouts, steps, weights, self.rate)
        if self.rescoring is not None:
            row |= sampler_stats(steps, self.rescoring.tokens, weights)
            row["flops"] += row["flops_rescore"]
        if self.lab.stress.errs:
            row |= misjudgements(rollouts, self.number)
        measured = self.method.metrics()
        for name in measured.keys() & row.keys():
            raise ValueError(f"metrics: the record has a column {name!r} already")
        row |= measured
        # One text with a line for each warning: the loop shows it, and the record keeps it.
        row["warnings"] = "\n".join(self.training.history.symptoms(row))
        for phase in TRAINING_PHASES:
            row[f"seconds_{phase}"] = self.seconds[phase]
        # The cost of a round, without the time that recording and evaluating it take.
        row["seconds"] = sum(self.seconds.values())
        if self.rescoring is not None:
            row["seconds"] += self.rescoring.seconds
            row["seconds_rescore"] = self.rescoring.seconds
        # Times of two equal runs do not agree in three digits. More would only fill the records.
        for name in [name for name in row if name.startswith("seconds")]:
            row[name] = to_digits(row[name], 3)
        return row


def _take(values: Any, rows: np.ndarray) -> Any:
    """The given rows of an array (R,) or of a Ragged; None where there is neither."""
    return None if values is None else values.take(rows)
