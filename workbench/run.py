"""The loop: a run is a Lab times a Method, and leaves a Record.

One round: draw problems -> allocator asks for counts -> generate -> verify -> reuse -> select -> advantages -> update in
mini-batches -> record -> feedback to the slots. Everything passes forward as `Rollouts`.
"""

import copy
import inspect
import os
import tempfile
import time
import warnings
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from workbench import labs, rewards
from workbench.evaluation import evaluate
from workbench.grpo import NonFinite, grpo_step, marked, mini_batches
from workbench.methods import Method
from workbench.records.checkpoints import pack, unpack
from workbench.records.health import TrainingWarning, symptoms
from workbench.records.locks import RecordLock
from workbench.records.manifest import changes, commit, hardware, made_again, versions
from workbench.records.record import (
    FORMAT,
    Record,
    RecordError,
    RecordWarning,
    Writer,
    refuse_other_files,
)
from workbench.records.round_stats import round_row
from workbench.records.trackers import Trackers
from workbench.rollouts import Context
from workbench.rounds import collect, join_and_select
from workbench.utils.checks import check_instance, check_optimizer
from workbench.utils.columns import positive_number, whole_number
from workbench.utils.descriptions import describe, differences, rebuild
from workbench.utils.html import card
from workbench.utils.seeding import derive

PHASES = ("generate", "verify", "schedule", "update", "record", "evaluate")
LEARNING_SLOTS = ("allocator", "reuse", "selector")


class Run:
    """One training run.

    lab: a `Lab`; method: a `Method`, copied, so that what it learns stays in this run. seed: of everything drawn.
    out: directory of the record, made when missing; one that holds the same run is resumed, another run is refused;
    None keeps the record in a temporary directory that goes with this object. problems_per_round: drawn each round.
    learning_rate: None for the lab's own. mini_batches: optimizer steps a round, split by groups; a selector with a
    `mini_batch` of its own decides instead. evaluate_every: rounds between evaluations on the lab's held-out problems,
    the first before round 1; 0 for none. checkpoint_every: rounds between checkpoints; a killed run repeats the rounds
    since the last one, bit for bit on a CPU. trackers: who else sees the rounds, "tensorboard" (beside the record),
    "wandb", "trackio" or objects of one's own, see `trackers.py`.
    """

    def __init__(
        self,
        lab,
        method,
        *,
        seed=0,
        out=None,
        problems_per_round=32,
        learning_rate=None,
        mini_batches=1,
        evaluate_every=20,
        checkpoint_every=5,
        trackers=(),
    ):
        check_instance("lab", lab, labs.Lab, "labs.tiny()")
        check_instance("method", method, Method, "methods.grpo()")
        whole_number("problems_per_round", problems_per_round, 1)
        whole_number("mini_batches", mini_batches, 1)
        whole_number("evaluate_every", evaluate_every, 0)
        whole_number("checkpoint_every", checkpoint_every, 1)
        whole_number("seed", seed, 0)
        if mini_batches > problems_per_round:
            raise ValueError(
                f"mini_batches={mini_batches}: at most one for each of the {problems_per_round} problems a round"
            )
        if learning_rate is not None:
            positive_number("learning_rate", learning_rate)
        if out is not None and not isinstance(out, (str, os.PathLike)):
            raise ValueError(f"out={out!r}: the path of a directory is needed, or None")
        check_optimizer(lab.optimizer)
        lab.problems.draw(problems_per_round, 0, seed)  # a pool that is too small says so now
        self.lab, self.method, self.seed = lab, copy.deepcopy(method), seed
        self._untaught = copy.deepcopy(method)
        self.problems_per_round, self.mini_batches = problems_per_round, mini_batches
        self.learning_rate = learning_rate or lab.learning_rate
        self.evaluate_every, self.checkpoint_every = evaluate_every, checkpoint_every
        self._temporary = tempfile.TemporaryDirectory(prefix="workbench-") if out is None else None
        self.path = Path(out if out is not None else self._temporary.name)
        self._trackers = Trackers(trackers, self.path)
        self._same_run_or_none()
        self.policy = self._writer = None
        self._lock = RecordLock(self.path)

    @classmethod
    def resume(cls, path, *, lab=None, method=None, trackers=()):
        """The run whose record is at `path`, to go on where it stopped.

        Lab and method are made from the manifest; those of your own making have to be passed, and trackers again.
        """
        manifest = Record(path).manifest
        lab = lab if lab is not None else made_again(labs.from_config, manifest, "lab", path)
        method = method if method is not None else made_again(rebuild, manifest, "method", path)
        arguments = manifest.get("arguments", {})
        if odd := arguments.keys() - inspect.signature(cls).parameters.keys():
            raise ValueError(
                f"{path}: its arguments {', '.join(sorted(odd))} are unknown to this version of workbench"
            )
        return cls(lab, method, out=path, **arguments)

    @property
    def record(self):
        """The run's `Record`; it exists from the first round on."""
        return Record(self.path)

    @property
    def round(self):
        """Rounds completed."""
        return len(self._writer.rows) if self._writer else 0

    def __repr__(self):
        return f"Run({self.lab.name!r}, {self.method!r}, seed={self.seed}, out={str(self.path)!r})"

    def _repr_html_(self):
        return card(
            "Run",
            [
                ("lab", self.lab.name),
                ("method", self.method),
                ("seed", self.seed),
                ("record", self.path),
            ],
        )

    def rounds(self, n, progress=True):
        """Trains until the run has n rounds in all; yields each new round's row, a dict, as soon as it is recorded.

        Starts where the run stopped. Leaving the loop early keeps everything: a checkpoint is written.
        """
        from tqdm.auto import tqdm

        whole_number("n", n, 0)
        self._same_run_or_none()
        with self._lock:
            with self._whole():
                self._start()
            with tqdm(
                total=n,
                initial=min(self.round, n),
                desc=self.method.name,
                unit="round",
                disable=not progress,
            ) as bar:
                try:
                    while self.round < n:
                        with self._whole():
                            row = self._round(self.round + 1)
                        bar.update()
                        bar.set_postfix(
                            reward=f"{row['reward']:.3f}",
                            effective=f"{row['effective_gradient_ratio']:.2f}",
                        )
                        _warn(row["warnings"], bar)
                        yield row
                finally:
                    if self._writer is not None:
                        self._checkpoint()
                    self._trackers.finish()

    # one round

    @contextmanager
    def _whole(self):
        """All of what is done within, or nothing: after an error or an interrupt the next `rounds` reads the checkpoint."""
        try:
            yield
        except BaseException:
            self._writer = None
            raise

    def _round(self, number):
        context, watch = (
            Context(self.seed, number, self.lab.problems.epoch(self._cursor), self.policy),
            _Watch(),
        )
        try:
            rollouts, candidates = self._collect(context, watch)
            with watch("schedule"):
                rollouts, chosen, advantages, seen = join_and_select(
                    self.method, rollouts, candidates, context, self.lab.sampling.max_new_tokens
                )
            with watch("update"):
                steps = self._update(rollouts.take(chosen), advantages, context)
        except NonFinite as error:
            kept = self._writer.save_failure(number, error.rollouts)
            raise NonFinite(
                f"round {number}: {error}; the rollouts that caused it are in {kept}",
                error.rollouts,
            ) from None
        rollouts = marked(rollouts, chosen, advantages, steps, number).assign(**seen)
        with watch("schedule"):
            self._feedback(rollouts, context)
        row = self._row(number, rollouts, steps, watch)
        self._record(row, rollouts, watch)
        return row

    def _collect(self, context, watch):
        """Drives the allocator: all verified rollouts of the round, and the rows that go on."""
        problems, self._cursor = self.lab.problems.draw(
            self.problems_per_round, self._cursor, self.seed
        )

        def sample(problems, counts, before, stage):
            return self._sample(problems, counts, before, stage, context, watch)

        return collect(
            self.method.allocator,
            list(problems),
            context,
            sample,
            self._more,
            lambda: watch("schedule"),
        )

    def _more(self, n, problems):
        """n more problems, or none when the pool has no n others."""
        try:
            taken = frozenset(p.id for p in problems)
            more, self._cursor = self.lab.problems.draw(n, self._cursor, self.seed, taken)
        except ValueError:
            return []
        return more

    def _sample(self, problems, counts, before, stage, context, watch):
        seeds = [
            derive(self.seed, "generate", context.round, p.id, int(b))
            for p, b in zip(problems, before)
        ]
        with watch("generate"):
            rollouts = self.policy.generate(problems, counts, self.lab.sampling, seeds)
        with watch("verify"):
            scores = self.lab.verifier.score(list(rollouts.text), list(rollouts.answer))
        size = len(rollouts)
        rollouts = rollouts.assign(
            reward=scores.reward,
            correct=scores.correct,
            status=scores.status,
            draw=rollouts.draw + np.repeat(before, counts),
            stage=np.full(size, stage),
            round=np.full(size, context.round),
            gradient=np.ones(size, bool),
            uses=np.zeros(size, dtype=np.int64),
        )
        rollouts = rewards.total(rollouts, self.method.reward, self.lab.sampling)
        bad = ~np.isfinite(rollouts.reward)
        if bad.any():
            raise NonFinite(
                f"the reward of {int(bad.sum())} rollouts is not finite", rollouts.take(bad)
            )
        return rollouts

    def _update(self, rollouts, advantages, context):
        """Optimizer steps over mini-batches; (rows, StepStats) of each."""
        size = getattr(self.method.selector, "mini_batch", None)
        parts = mini_batches(rollouts, self.mini_batches, context.rng("mini-batches"), size)
        lab = self.lab
        return [
            (
                rows,
                grpo_step(
                    self.policy,
                    self.optimizer,
                    rollouts.take(rows),
                    advantages[rows],
                    self.method.objective,
                    temperature=lab.sampling.temperature,
                    micro_tokens=lab.micro_tokens,
                    max_grad_norm=lab.max_grad_norm,
                    length=lab.sampling.max_new_tokens,
                    reference=self._reference,
                ),
            )
            for rows in parts
        ]

    def _feedback(self, rollouts, context):
        for slot in self._learning().values():
            if hasattr(slot, "feedback"):
                slot.feedback(rollouts, context)

    # the record

    def _row(self, number, rollouts, steps, watch):
        row = round_row(number, rollouts, steps, self.policy.parameter_count, self.learning_rate)
        for slot in self._learning().values():
            row |= slot.metrics() if hasattr(slot, "metrics") else {}
        row["warnings"] = "\n".join(symptoms([*self._writer.rows, row]))
        training = sum(watch.seconds[phase] for phase in PHASES[:4])
        return (
            row
            | {f"seconds_{phase}": watch.seconds[phase] for phase in PHASES[:4]}
            | {"seconds": training}
        )

    def _record(self, row, rollouts, watch):
        with watch("record"):
            columns = {
                n: v
                for n, v in rollouts.items()
                if n not in ("prompt", "response", "logprobs", "answer")
            }
            self._writer.round(row, {**columns, "length": rollouts.lengths})
            self._trackers.log(row, row["round"])
        if self.evaluate_every and row["round"] % self.evaluate_every == 0:
            self._evaluate(row["round"])
        if row["round"] % self.checkpoint_every == 0:
            self._checkpoint()

    def _evaluate(self, number):
        if self.lab.held_out is not None and self.evaluate_every:
            frame = evaluate(
                self.policy,
                self.lab.held_out,
                self.lab.verifier,
                self.lab.samples,
                sampling=self.lab.sampling,
                seed=derive(self.seed, "evaluate", number),
            )
            self._writer.evaluation(frame.assign(round=number))
            self._trackers.log(
                {"evaluation/accuracy": float((frame.correct / frame.samples).mean())}, number
            )

    # state

    def _start(self):
        """Loads the policy and, where there is one, the checkpoint."""
        if self._writer is not None and not self._lock.taken_over:
            self._trackers.start(self.record.manifest)
            return
        import torch

        self.policy, self.method = self.lab.policy(), copy.deepcopy(self._untaught)
        self._reference = self.policy.frozen() if self.method.objective.kl > 0 else None
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=self.learning_rate, **self.lab.optimizer
        )
        self._cursor = 0
        self._writer = Writer(self.path, manifest := self._manifest())
        if odd := changes(manifest, self.record.manifest):
            warnings.warn(
                f"{self.path}: goes on under other conditions (now, then): {'; '.join(odd[:3])}; its rounds may differ "
                "from those of an uninterrupted run",
                RecordWarning,
                stacklevel=4,
            )
        self._trackers.start(self.record.manifest)
        self._saved = done = self._restore()
        self._writer.truncate(done)
        if done == 0:
            self._writer.truncate(-1)
            self._evaluate(0)

    def _checkpoint(self):
        if self._saved == self.round:
            return
        self._writer.checkpoint(
            *pack(
                self.policy, self.optimizer, self._learning(), round=self.round, cursor=self._cursor
            )
        )
        self._saved = self.round

    def _restore(self):
        """Sets everything from the checkpoint; the round it was made after, 0 without one."""
        found, recorded = self._writer.restore(), self.round
        if found is None:
            if recorded > self.checkpoint_every:
                raise ValueError(
                    f"{self.path}: {recorded} rounds and no checkpoint, so it cannot go on; name another directory"
                )
            return 0
        tensors, state = found
        if recorded < state["round"]:
            raise RecordError(
                f"{self.path}: rounds.parquet has {recorded} rounds, but the checkpoint was made after round "
                f"{state['round']}: put both back from one copy, or start again in another directory"
            )
        try:
            unpack(tensors, state, self.policy, self.optimizer, self._learning())
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}; pass those that the run began with") from error
        self._cursor = state["cursor"]
        return state["round"]

    def _learning(self):
        return {name: getattr(self.method, name) for name in LEARNING_SLOTS}

    def _configuration(self):
        names = (
            "seed",
            "problems_per_round",
            "learning_rate",
            "mini_batches",
            "evaluate_every",
            "checkpoint_every",
        )
        return {
            "method": describe(self._untaught),
            "lab": self.lab.config or {"lab": self.lab.name},
            "seed": self.seed,
            "arguments": {name: getattr(self, name) for name in names},
        }

    def _same_run_or_none(self):
        """ValueError unless the directory holds this run, or nothing yet."""
        if not (self.path / "manifest.json").exists():
            return refuse_other_files(self.path)
        ours, theirs = self._configuration(), Record(self.path).manifest
        odd = differences(ours, {name: theirs.get(name) for name in ours})
        if odd:
            odd = "; ".join(odd[:3])
            raise ValueError(
                f"out={str(self.path)!r} holds another run (ours, theirs): {odd}; name another directory"
            )

    def _manifest(self):
        return {
            "format": FORMAT,
            **self._configuration(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
            "hardware": hardware(self.policy.device),
            "commit": commit(),
        }


class _Watch:
    """Seconds by phase."""

    def __init__(self):
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def __call__(self, phase):
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - started


def _warn(texts, bar):
    """Each line as a `TrainingWarning`, above the progress bar."""
    for text in texts.splitlines():
        with bar.external_write_mode():
            warnings.warn(text, TrainingWarning, stacklevel=3)
