"""A run at work: the policy, its optimizer, what the method has learnt, and the open record.

`Run` is the configuration; it makes a `Session` when its first round begins, or from the checkpoint
when it resumes. An error or an interrupt in the middle of a round throws the session away, so the
next one starts from the checkpoint and no half-finished round is ever continued.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench import rewards
from workbench.checks import checked_problems
from workbench.evaluation import evaluate
from workbench.grpo import NonFinite, StepStats, grpo_step, marked, mini_batches
from workbench.objectives import BY_COVARIANCE
from workbench.problems import Pool, Problem
from workbench.records import FORMAT, RecordError, Writer
from workbench.records.checkpoints import pack, unpack
from workbench.records.environment import commit, hardware, versions
from workbench.records.health import History
from workbench.records.round_stats import round_stats, sampler_stats
from workbench.rollouts import Context, Ragged, Rollouts
from workbench.rounds import Round, play
from workbench.utils.names import TRAINING_PHASES
from workbench.utils.seeding import derive
from workbench.verifiers.base import checked_scores

if TYPE_CHECKING:
    from workbench.run import Run

PHASES = (*TRAINING_PHASES, "rescore")
# What slots may need of every rollout, so that all of them are rescored before the slots work.
NEEDS_RESCORED = frozenset({"entropy", "token_entropy", "old_logprobs"})
# Columns that stay in memory: texts of prompts and tokens would make records many times as large.
NOT_RECORDED = ("prompt", "response", "old_logprobs", "token_entropy", "answer")


class Session:
    """One process's work on a run. Not for use on its own: `Run.rounds` drives it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.lab = run.lab
        self.method = run.configured_method.clone()
        self.policy = self.lab.policy()
        # All of them now: a prompt that the model cannot read would end the run when it is drawn.
        for pool in (self.lab.problems, self.lab.held_out):
            if isinstance(pool, Pool):
                self.policy.check_prompts(pool)
        # Taken before any step, so that the reference is the policy at its initial weights.
        needs_reference = self.method.objective.kl > 0
        self.reference = self.policy.frozen() if needs_reference else None
        self.optimizer = self.lab.make_optimizer(self.policy.parameters(), run.learning_rate)
        self.manifest = {
            "format": FORMAT,
            **run.configuration(),
            "held_out": len(self.lab.held_out or ()),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
            "hardware": hardware(self.policy.device),
            "commit": commit(),
        }
        # Where the directory holds a record already, that one is opened and the manifest above is
        # not written; `Run` warns where versions or hardware differ.
        self.writer = Writer(run.path, self.manifest, run.lock)
        self.history = History(self.writer.rows)
        self.checkpointed = 0  # the round of the checkpoint on disk
        self.context = Context(seed=run.seed)  # of the round at work
        self.seconds = dict.fromkeys(PHASES, 0.0)  # of the round at work, by phase
        # Log-probabilities by the program that samples in place of the trainer, one Ragged for each
        # request of the round at work, and the tokens that the trainer has scored again.
        self.sampler_logprobs: list[Ragged] = []
        self.rescored_tokens = 0
        # Rescoring costs a forward pass over every rollout. All of them are rescored only where a
        # slot reads such numbers of all; otherwise the update rescores what it needs.
        needed = self.method.needs
        self.rescores_everything = self.policy.samples_apart and bool(needed & NEEDS_RESCORED)

    @property
    def round(self) -> int:
        """Rounds completed."""
        return self.history.rounds

    # State

    def restore(self) -> None:
        """Go back to the checkpoint; rounds recorded after it are made again."""
        self.checkpointed = self._load_checkpoint()
        self.writer.truncate(self.checkpointed)
        self.history = History(self.writer.rows)
        if self.checkpointed == 0:
            # The evaluation before round 1 may have been interrupted, so it is made again as well.
            self.writer.truncate(-1)
            self.evaluate(0)

    def _load_checkpoint(self) -> int:
        """Set everything from the checkpoint; returns the round it follows, 0 without one."""
        path = self.run.path
        checkpoint = self.writer.restore()
        if checkpoint is None:
            # A run that was killed before its first checkpoint starts from the beginning. It has at
            # most `checkpoint_every` rounds; with more, the checkpoint has been lost.
            if self.round > self.run.checkpoint_every:
                raise ValueError(
                    f"{path}: {self.round} rounds and no checkpoint, so it cannot go on; name "
                    "another directory"
                )
            return 0
        tensors, state = checkpoint
        # A round is written before its checkpoint, so one process alone cannot leave this behind.
        if self.round < state["round"]:
            raise RecordError(
                f"{path}: rounds.parquet has {self.round} rounds, but the checkpoint was made "
                f"after round {state['round']}: put both back from one copy, or start again in "
                "another directory"
            )
        try:
            unpack(tensors, state, self.policy, self.optimizer, self.method)
        except ValueError as error:
            raise ValueError(f"{path}: {error}; pass those that the run began with") from error
        return state["round"]

    def checkpoint(self) -> None:
        """Write a checkpoint, unless the one on disk is of this round."""
        if self.checkpointed == self.round:
            return
        tensors, state = pack(self.policy, self.optimizer, self.method, round=self.round)
        self.writer.checkpoint(tensors, state)
        self.checkpointed = self.round

    # One round

    def step(self) -> dict[str, Any]:
        """Train for one round and record it; returns its row."""
        number = self.round + 1
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.sampler_logprobs = []
        self.rescored_tokens = 0
        self.context = Context(
            seed=self.run.seed,
            round=number,
            epoch=self.method.curriculum.epoch,
            policy=self.policy,
            max_new_tokens=self.lab.sampling.max_new_tokens,
            temperature=self.lab.sampling.temperature,
        )
        try:
            outcome, steps = self._train()
        except NonFinite as error:
            # `Run` throws the session away after an error, and with it everything that shows the
            # cause, so the rollouts are written to the record first.
            kept = self.writer.save_failure(number, error.rollouts)
            message = f"round {number}: {error}; the rollouts that caused it are in {kept}"
            raise NonFinite(message, error.rollouts) from None
        rollouts = marked(
            outcome.rollouts, outcome.rows, outcome.advantages, steps, number, outcome.weights
        )
        # Slots learn before the row is written, since it holds what they measured.
        with self._timed("schedule"):
            self.method.feedback(rollouts, self.context)
        row = self._row(rollouts, steps)
        self._record(row, rollouts)
        return row

    def _train(self) -> tuple[Round, list[tuple[np.ndarray, StepStats]]]:
        """What the method decided, and (rows, statistics) of each optimizer step."""
        outcome = play(
            self.method,
            self._choose_problems(self.run.problems_per_round),
            self.context,
            self._sample,
            self._find_more,
            timed=lambda: self._timed("schedule"),
        )
        return outcome, self._update(outcome)

    def _choose_problems(self, n: int, taken: frozenset[str] = frozenset()) -> Sequence[Problem]:
        context = replace(self.context, taken=taken)
        problems = self.method.curriculum.choose(self.lab.problems, n, context)
        return checked_problems("curriculum", problems, taken, n)

    def _find_more(self, n: int, problems: list[Problem]) -> Sequence[Problem]:
        return self._choose_problems(n, frozenset(problem.id for problem in problems))

    def _sample(
        self, problems: list[Problem], counts: np.ndarray, before: np.ndarray, stage: int
    ) -> Rollouts:
        """Verified rollouts, counts[i] of problems[i], which had before[i] so far.

        See `rounds.play`.
        """
        number = self.context.round
        # The number of earlier rollouts is part of the seed, so each stage draws anew.
        seeds = [
            derive(self.run.seed, "generate", number, problem.id, int(earlier))
            for problem, earlier in zip(problems, before)
        ]
        with self._timed("generate"):
            rollouts = self.policy.generate(problems, counts, self.lab.sampling, seeds)
        if self.policy.samples_apart:
            # Kept before a rescoring replaces them; the update measures the gap between the two.
            self.sampler_logprobs.append(rollouts.old_logprobs)
        if self.rescores_everything:
            rollouts = self._rescored(rollouts)
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
            round=np.full(size, number),
            gradient=np.ones(size, bool),
            uses=np.zeros(size, dtype=np.int64),
        )
        rollouts = rewards.total(rollouts, self.method.reward, self.lab.sampling)
        # Checked before any slot reads it, while the rows to blame can still be told.
        finite = np.isfinite(rollouts.reward)
        if not finite.all():
            raise NonFinite(
                f"the reward of {int((~finite).sum())} rollouts is not finite",
                rollouts.take(~finite),
            )
        return rollouts

    def _update(self, outcome: Round) -> list[tuple[np.ndarray, StepStats]]:
        """The optimizer steps of the round."""
        selected = outcome.rollouts.take(outcome.rows)
        parts = mini_batches(
            selected, self.run.mini_batches, self.context.rng("mini-batches"), outcome.mini_batch
        )
        on_policy = self._on_policy(selected, parts)
        sampler_logprobs = self._sampler_logprobs_of(outcome)
        # Rescoring for the later steps has to happen now: the first step changes the weights that
        # the rollouts were sampled with.
        selected = self._later_steps_rescored(selected, on_policy)
        advantages = outcome.advantages
        steps: list[tuple[np.ndarray, StepStats]] = []
        # The rows of a part are positions among the K selected rollouts, as are those of advantages
        # and weights.
        for rows in parts:
            self._set_learning_rate(len(steps))
            of_rows = advantages.take(rows) if isinstance(advantages, Ragged) else advantages[rows]
            with self._timed("update"):
                stats = grpo_step(
                    self.policy,
                    self.optimizer,
                    selected.take(rows),
                    of_rows,
                    self.method.objective,
                    weights=None if outcome.weights is None else outcome.weights[rows],
                    temperature=self.lab.sampling.temperature,
                    micro_tokens=self.lab.micro_tokens,
                    max_grad_norm=self.lab.max_grad_norm,
                    length=self.lab.sampling.max_new_tokens,
                    reference=self.reference,
                    on_policy=on_policy[rows],
                    sampler_logprobs=None
                    if sampler_logprobs is None
                    else sampler_logprobs.take(rows),
                )
            steps.append((rows, stats))
        return steps

    def _set_learning_rate(self, step: int) -> None:
        """Set the rate of an optimizer step, counted from 0 in this round."""
        if not self.lab.warm_up:
            return
        # Counted from the record, so that a run that resumes goes on where it was.
        rate = self.lab.learning_rate_of(self.history.steps + step, self.run.learning_rate)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    # Where another program samples

    def _on_policy(self, selected: Rollouts, parts: list[np.ndarray]) -> np.ndarray:
        """Which of the selected rows (K,) have log-probabilities by another program than the
        trainer, and are in the first step, whose own forward pass gives the trainer's.
        """
        on_policy = np.zeros(len(selected), dtype=bool)
        # Clip-Cov and KL-Cov read the log-probabilities before any forward pass of the step.
        by_covariance = self.method.objective.surrogate in BY_COVARIANCE
        if self._keeps_samplers() and parts and not by_covariance:
            on_policy[parts[0]] = selected.round[parts[0]] == self.context.round
        return on_policy

    def _later_steps_rescored(self, selected: Rollouts, on_policy: np.ndarray) -> Rollouts:
        """The selected rollouts, with the trainer's log-probabilities where steps after the first
        one need them: by then the weights are others than those that sampled.
        """
        if not self._keeps_samplers():
            return selected
        is_late = (selected.round == self.context.round) & ~on_policy
        if not is_late.any():
            return selected
        others = np.flatnonzero(~is_late)
        late = np.flatnonzero(is_late)
        rescored = self._rescored(selected.take(late))
        # The inverse permutation brings the rows back to their places, which the parts refer to.
        order = np.argsort(np.concatenate([others, late]))
        return Rollouts.concat([selected.take(others), rescored]).take(order)

    def _keeps_samplers(self) -> bool:
        """Whether the round's `old_logprobs` are those of another program than the trainer."""
        return self.policy.samples_apart and not self.rescores_everything

    def _sampler_logprobs_of(self, outcome: Round) -> Ragged | None:
        """The sampler's log-probabilities of the selected rows.

        None where the trainer samples itself, and where they are not of the same distribution.
        """
        if not self.policy.samples_apart or not self.policy.comparable(self.lab.sampling):
            return None
        new = sum(len(part) for part in self.sampler_logprobs)
        # Old responses stand after those of the round. They were brought to the trainer's numbers
        # when they were stored, or count as such.
        old = outcome.rollouts.old_logprobs.take(np.arange(new, len(outcome.rollouts)))
        return Ragged.concat([*self.sampler_logprobs, old]).take(outcome.rows)

    def _rescored(self, rollouts: Rollouts) -> Rollouts:
        """The rollouts with log-probabilities and entropies by the trainer."""
        self.rescored_tokens += int(rollouts.lengths.sum() + rollouts.prompt.lengths.sum())
        with self._timed("rescore"):
            return self.policy.rescored(rollouts, self.lab.sampling.temperature)

    # The record

    def _row(self, rollouts: Rollouts, steps: list[tuple[np.ndarray, StepStats]]) -> dict[str, Any]:
        """The round's row of `rounds.parquet`."""
        row: dict[str, Any] = round_stats(
            self.context.round,
            rollouts,
            steps,
            self.policy.parameter_count,
            self.optimizer.param_groups[0]["lr"],
        )
        if self.policy.samples_apart:
            row |= sampler_stats(steps, self.rescored_tokens, self.policy.parameter_count)
            row["flops"] += row["flops_rescore"]
        row |= self.method.metrics()
        # One text with a line for each warning: `Run` shows it, and the record keeps it.
        row["warnings"] = "\n".join(self.history.symptoms(row))
        for phase in TRAINING_PHASES:
            row[f"seconds_{phase}"] = self.seconds[phase]
        # The cost of a round, without the time that recording and evaluating it take.
        row["seconds"] = sum(self.seconds[phase] for phase in PHASES)
        if self.policy.samples_apart:
            row["seconds_rescore"] = self.seconds["rescore"]
        return row

    def _record(self, row: dict[str, Any], rollouts: Rollouts) -> None:
        columns = {name: value for name, value in rollouts.items() if name not in NOT_RECORDED}
        self.writer.round(row, {**columns, "length": rollouts.lengths})
        self.history.add(row)
        self.run.trackers.log(row, row["round"])
        # The checkpoint comes last: a run that resumes from it never lacks its evaluation.
        if self.run.evaluate_every and row["round"] % self.run.evaluate_every == 0:
            self.evaluate(row["round"])
        if row["round"] % self.run.checkpoint_every == 0:
            self.checkpoint()

    def evaluate(self, number: int) -> None:
        """Score the held-out problems and record it, where the lab has any and the run wants it."""
        if self.lab.held_out is None or not self.run.evaluate_every:
            return
        started = time.perf_counter()
        # The seed holds neither method nor lab, so runs of one seed are evaluated with the same
        # draws.
        frame = evaluate(
            self.policy,
            self.lab.held_out,
            self.lab.verifier,
            self.lab.samples,
            sampling=self.lab.sampling,
            seed=derive(self.run.seed, "evaluate", number),
        )
        # All problems are answered in common batches, so that each gets an even share of the time.
        seconds = (time.perf_counter() - started) / len(frame)
        self.writer.evaluation(frame.assign(round=number, seconds=seconds))
        accuracy = float((frame.correct / frame.samples).mean())
        self.run.trackers.log({"evaluation/accuracy": accuracy}, number)

    def evaluate_last(self) -> None:
        """Evaluate after the last round asked for, unless the grid of evaluations has it."""
        # The `or 1` makes the remainder 0 where no evaluations are wanted.
        if self.round % (self.run.evaluate_every or 1) and self.round not in self.writer.evaluated:
            self.evaluate(self.round)

    def drop_last_evaluation(self) -> None:
        """Forget an evaluation off the grid: the run goes on as if it had never stopped there."""
        if self.round % (self.run.evaluate_every or 1) and self.round in self.writer.evaluated:
            self.writer.forget_evaluation(self.round)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        """Add the seconds within to a phase of the round."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - started
