"""A run is a Lab times a Method, and leaves a Record.

One round: the curriculum chooses problems, the allocator asks for counts, the policy generates, the
verifier scores, replay joins old responses, the selector chooses, advantages are taken, the
objective is minimised in mini-batches, the slots learn from it, and the round is recorded.
`training.TrainingRound` does the work of one round, `rounds.play` asks the slots.
"""

from __future__ import annotations

import gc
import inspect
import os
import shutil
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workbench import config
from workbench.evaluation import evaluate
from workbench.labs import LARGEST_LEARNING_RATE, Lab
from workbench.methods import Method
from workbench.policies.memory import out_of_memory
from workbench.policies.stress import OldWeights
from workbench.pools import MOST_PROBLEMS, Pool
from workbench.records import FORMAT, Record, RecordError, Writer, refuse_other_files
from workbench.records import manifest as manifests
from workbench.records.checkpoints import pack, unpack
from workbench.records.health import History, TrainingWarning
from workbench.records.locks import RecordLock
from workbench.records.trackers import Trackers
from workbench.rollouts import NonFinite
from workbench.rules.replay import read_from_files
from workbench.slots import NEEDS
from workbench.training import Training, TrainingRound
from workbench.utils.code import digest_of, own_code
from workbench.utils.descriptions import describe
from workbench.utils.failures import release
from workbench.utils.html import card
from workbench.utils.labels import check_label
from workbench.utils.machine import torch_threads
from workbench.utils.numbers import span, to_digits
from workbench.utils.progress import Progress
from workbench.utils.seeding import derive
from workbench.utils.validation import instance_of, output, positive_number, whole_number

# The arguments of `Run` that the manifest holds, and that `resume` passes on.
ARGUMENTS = (
    "seed",
    "problems_per_round",
    "learning_rate",
    "mini_batches",
    "evaluate_every",
    "checkpoint_every",
)
# Columns that stay in memory: texts of prompts and tokens would make records many times as large.
NOT_RECORDED = ("prompt", "response", "old_logprobs", "token_entropy", "answer")


# Runs in several threads make their rounds in turns, since torch's random generators, and the state
# that changes while a model is loaded, belong to the whole process.
ONE_AT_A_TIME = threading.RLock()


@dataclass
class OpenRun:
    """A run that this process works on: what is in memory, and the record that it writes."""

    training: Training
    writer: Writer
    trackers: Trackers
    evaluate_every: int
    checkpoint_every: int
    checkpointed: int = 0  # the round of the checkpoint on disk
    again: str = ""  # which rounds are made again, and why

    @property
    def round(self) -> int:
        """Rounds completed."""
        return self.training.history.rounds

    def restore(self) -> None:
        """Go back to the checkpoint, and drop the rounds that were recorded after it."""
        training, path = self.training, self.writer.path
        checkpoint = self.writer.restore()
        # A run that was killed before its first checkpoint starts from the beginning. It has at
        # most `checkpoint_every` rounds; with more, the checkpoint has been lost.
        if checkpoint is None and self.round > self.checkpoint_every:
            raise ValueError(
                f"{path}: {self.round} rounds and no checkpoint, so it cannot go on; name another "
                "directory"
            )
        if checkpoint is not None:
            tensors, state = checkpoint
            try:
                unpack(tensors, state, training.policy, training.optimizer, training.method)
            except ValueError as error:
                raise ValueError(f"{path}: {error}; pass those that the run began with") from error
            training.old_weights.restore(tensors)
            self.checkpointed = state["round"]
        if self.round > self.checkpointed:
            made = span(range(self.checkpointed + 1, self.round + 1))
            self.again = (
                f"goes on behind its latest checkpoint, made after round {self.checkpointed}"
                if self.checkpointed
                else f"begins anew, since it has a checkpoint every {self.checkpoint_every} rounds"
            )
            self.again += f"; what was recorded later (round {made}) is made again"
        self.writer.truncate(self.checkpointed)
        training.history = History(self.writer.rows)
        if self.checkpointed == 0:
            # The evaluation before round 1 may have been interrupted, so it is made again as well.
            self.writer.truncate(-1)
            self.evaluate(0)

    def checkpoint(self) -> None:
        """Write a checkpoint, unless the one on disk is of this round."""
        if self.checkpointed == self.round:
            return
        training = self.training
        tensors, state = pack(
            training.policy, training.optimizer, training.method, round=self.round
        )
        self.writer.checkpoint(tensors | training.old_weights.tensors(), state)
        self.checkpointed = self.round

    def step(self) -> dict[str, Any]:
        """Train for one round and record it; returns its row."""
        number = self.round + 1
        try:
            with ONE_AT_A_TIME:
                row, rollouts = TrainingRound(self.training).run()
        except NonFinite as error:
            # What is in memory goes after an error, and with it everything that shows the cause, so
            # the rollouts are written to the record first.
            kept = self.writer.save_failure(number, error.rollouts)
            message = f"round {number}: {error}; the rollouts that caused it are in {kept}"
            raise NonFinite(message, error.rollouts) from None
        columns = {name: value for name, value in rollouts.items() if name not in NOT_RECORDED}
        columns["length"] = rollouts.lengths
        self.writer.round(row, columns, self.training.asked.values())
        self.training.history.add(row)
        self.trackers.log(row, number)
        # The checkpoint comes last: a run that resumes from it never lacks its evaluation.
        if self.evaluate_every and number % self.evaluate_every == 0:
            self.evaluate(number)
        if number % self.checkpoint_every == 0:
            self.checkpoint()
        return row

    def evaluate(self, number: int) -> None:
        """Score the held-out problems and record it, where the lab has any and the run wants it."""
        lab = self.training.lab
        if lab.held_out is None or not self.evaluate_every:
            return
        self.training.phase = "generate"
        started = time.perf_counter()
        # The seed holds neither method nor lab, so runs of one seed are evaluated with the same
        # draws.
        with ONE_AT_A_TIME:
            frame = evaluate(
                self.training.policy,
                lab.held_out,
                lab.verifier,
                lab.samples,
                sampling=lab.sampling,
                seed=derive(self.training.seed, "evaluate", number),
            )
        # All problems are answered in common batches, so that each gets an even share of the time.
        seconds = (time.perf_counter() - started) / len(frame)
        frame = frame.assign(round=number, seconds=to_digits(seconds, 3))
        self.writer.evaluation(frame, lab.held_out)
        accuracy = float((frame.correct / frame.samples).mean())
        self.trackers.log({"evaluation/accuracy": accuracy}, number)

    def evaluate_last(self) -> None:
        """Evaluate after the last round that was asked for, unless that was done already."""
        if self._is_between_evaluations and self.round not in self.writer.evaluated:
            self.evaluate(self.round)
            # The checkpoint on disk, if there is one of this round, was made before the evaluation.
            # So `checkpoint` has to write another, as if no round had one.
            self.checkpointed = 0

    def drop_last_evaluation(self) -> None:
        """Remove the evaluation that was made only because an earlier call ended at this round.

        The run then has the same evaluations as one that never stopped here.
        """
        if self._is_between_evaluations and self.round in self.writer.evaluated:
            self.writer.forget_evaluation(self.round)

    @property
    def _is_between_evaluations(self) -> bool:
        """Whether `evaluate_every` asks for evaluations, but for none after the latest round."""
        return bool(self.evaluate_every) and self.round % self.evaluate_every != 0


class Run:
    """One training run.

    Parameters
    ----------
    lab : Lab
        Where learning happens.
    method : Method
        It is cloned, so that what it learns stays in this run.
    seed : int
        Of everything that is drawn.
    out : path, optional
        Directory of the record, made when missing. One that holds the same run is resumed; one that
        holds another run is refused. None keeps the record in a temporary directory that goes with
        this object.
    problems_per_round : int
        Problems that a round begins with; an allocator may ask for more.
    learning_rate : float, optional
        None for the lab's own.
    mini_batches : int
        Optimizer steps a round, split by problems; a selector with mini-batches of its own decides
        instead.
    evaluate_every : int
        Rounds between evaluations on the lab's held-out problems, beginning before round 1; the
        last round asked for is always evaluated. 0 for no evaluation.
    checkpoint_every : int
        Rounds between checkpoints. A killed run repeats the rounds since the last one, bit for bit
        on a CPU.
    trackers : names or objects
        What else the rounds are sent to: "tensorboard" (beside the record), "wandb", "trackio", or
        objects of your own, see `workbench.records.trackers`.
    label : str, optional
        What the run is called in comparisons, any text of one line; None for the method's name.
    mixed : bool
        Whether it may go on although its record was begun with other versions of packages, other
        code of this package or of your own, or on another device.

    Raises
    ------
    ValueError
        For arguments that cannot work, before any model is loaded.
    """

    def __init__(
        self,
        lab: Lab,
        method: Method,
        *,
        seed: int = 0,
        out: Any = None,
        problems_per_round: int = 32,
        learning_rate: float | None = None,
        mini_batches: int = 1,
        evaluate_every: int = 20,
        checkpoint_every: int = 5,
        trackers: Any = (),
        label: str | None = None,
        mixed: bool = False,
    ) -> None:
        instance_of("lab", lab, Lab, "labs.tiny()")
        instance_of("method", method, Method, "methods.grpo()")
        # A level that all problems have tells none from another.
        levels = {each.level for each in lab.problems} if isinstance(lab.problems, Pool) else ()
        lacks = lab.lacks | ({"levels"} if len(levels) == 1 else set())
        method.check_provided(NEEDS.keys() - lacks, f"the lab {lab.name}")
        whole_number("seed", seed, 0)
        whole_number("problems_per_round", problems_per_round, 1, MOST_PROBLEMS)
        # At most one for each problem.
        whole_number("mini_batches", mini_batches, 1, problems_per_round)
        whole_number("evaluate_every", evaluate_every, 0)
        whole_number("checkpoint_every", checkpoint_every, 1)
        if learning_rate is not None:
            positive_number("learning_rate", learning_rate, high=LARGEST_LEARNING_RATE)
        # In this way a sweep over a notebook reaches its runs.
        label = label if label is not None else os.environ.get("WORKBENCH_LABEL")
        if label is not None:
            check_label(label)
        instance_of("mixed", mixed, bool, "True")
        # Tried out here, since the first round comes only after the model has been loaded.
        lab.check_round(problems_per_round, seed)
        lab.check_optimizer()

        self.lab = lab
        self.configured_method = method.clone()
        self.seed = seed
        self.problems_per_round = problems_per_round
        self.learning_rate = learning_rate or lab.learning_rate
        self.mini_batches = mini_batches
        self.evaluate_every = evaluate_every
        self.checkpoint_every = checkpoint_every
        self.label = label
        self.mixed = mixed or "WORKBENCH_MIXED" in os.environ
        # Once, since the code may count in variables of its own while the run goes on.
        code = own_code([method, lab.verifier, lab.make_policy])
        self._code = {name: digest_of(text) for name, text in code.items()}
        if out is None:
            out = tempfile.mkdtemp(prefix="workbench-")
            weakref.finalize(self, _remove_directory, out, os.getpid())
        self.path = output("out", out)  # absolute, since the working directory may change
        self.trackers = Trackers(trackers, self.path)
        self._has_begun = False  # whether this object has had a record
        self._check_directory()
        # Last, since a verifier's processes may take seconds to start.
        lab.check_answers()
        self.lock = RecordLock(self.path)
        self._work: OpenRun | None = None
        self._loop: weakref.ref[Generator] | None = None  # what `rounds` returned last

    @classmethod
    def resume(
        cls,
        path: Any,
        *,
        lab: Lab | None = None,
        method: Method | None = None,
        trackers: Any = (),
        mixed: bool = False,
    ) -> Run:
        """The run whose record is at `path`, to go on where it stopped.

        Lab and method are made from the manifest. Those with parts of your own making have to be
        passed as `lab` and `method`, and `trackers` have to be named again. With `mixed` it goes on
        also under other conditions, see `Run`.
        """
        manifest = Record(path).manifest
        refuse_other_files(Path(path))
        arguments = manifest["arguments"]
        unknown = sorted(arguments.keys() - set(ARGUMENTS))
        if unknown:
            raise ValueError(f"{path}: its arguments {unknown} are unknown to this version")
        if lab is None:
            lab = manifests.made_again(config.recorded_lab, manifest, "lab", path)
            if manifest.get("data") != lab.digests():
                raise ValueError(
                    f"{path}: the lab in its manifest has other problems than the run had; they "
                    "were of your own, or their file has changed: pass the lab that has them, "
                    "Run.resume(path, lab=...)"
                )
        if method is None:
            method = manifests.made_again(config.rebuild, manifest, "method", path)
        options = {"trackers": trackers, "label": manifest.get("label"), "mixed": mixed}
        return cls(lab, method, out=path, **arguments, **options)

    @property
    def method(self) -> Method:
        """The method, with what it has learnt so far in this process."""
        return self._work.training.method if self._work else self.configured_method

    @property
    def policy(self) -> Any:
        """The model as trained so far; None before the first round in this process."""
        return self._work.training.policy if self._work else None

    @property
    def record(self) -> Record:
        """The run's `Record`; it exists from the first round on."""
        return Record(self.path)

    @property
    def round(self) -> int:
        """Rounds completed, in this process or an earlier one.

        After an interrupt or a crash the rounds since the last checkpoint count too, although they
        are made again when the run goes on.
        """
        if self._work:
            return self._work.round
        return len(self.record.rounds) if (self.path / "manifest.json").exists() else 0

    def __repr__(self) -> str:
        return f"Run({self.lab.name!r}, {self.method!r}, seed={self.seed}, out={str(self.path)!r})"

    def _repr_html_(self) -> str:
        rows = [("lab", self.lab.name), ("method", self.method), ("seed", self.seed)]
        return card("Run", [*rows, ("record", self.path)])

    # The loop

    def rounds(self, n: int, progress: bool = True) -> Iterator[dict[str, Any]]:
        """Train until the run has n rounds in all.

        Starts where the run stopped. Leaving the loop early keeps everything: a checkpoint is
        written, also when Python ends. A loop of an earlier call that was left before its end is
        ended by this call.

        Parameters
        ----------
        n : int
            Rounds in all, those of earlier calls and processes included.
        progress : bool
            Whether to show a progress bar, or where the output is no terminal a line now and then.

        Yields
        ------
        dict
            The row of each new round, as soon as it is recorded.
        """
        # This function is no generator itself, so that a wrong argument is refused at the call and
        # not at the first step of the loop.
        whole_number("n", n, 0)
        if self._loop is not None and (earlier := self._loop()) is not None:
            # It holds the record's lock until it is closed, which otherwise happens only when the
            # caller's last name for it goes.
            earlier.close()
        loop = self._rounds(n, progress)
        # A strong reference would keep an abandoned loop alive, and with it the lock on the record.
        self._loop = weakref.ref(loop)
        # At its end Python closes a loop that was left open, but only after it has cleared the
        # modules that write the checkpoint. This closes the loop before.
        weakref.finalize(loop, _close, self._loop)
        return loop

    def _rounds(self, n: int, progress: bool) -> Generator[dict[str, Any], None, None]:
        # Once more, since the directory may have got another record after the run was made.
        self._check_directory()
        process = os.getpid()
        self.lock.rounds = n
        with self.lock:
            work = None
            try:
                work = self._open()
                if self.round < n:
                    work.drop_last_evaluation()
                elif self.round == n:
                    # An interrupt may have come between the last round and its evaluation.
                    work.evaluate_last()
                shown = Progress(self.configured_method.name, self.round, n, progress)
                work.training.planned = n
                if self.round == 0:
                    _warn(_idle_slots(work.training.method, n), shown)
                shown.say(work.again)
                work.again = ""
                # The caller may leave the loop, at the `yield`, where the round is complete.
                with suppress(GeneratorExit), shown:
                    while self.round < n:
                        row = work.step()
                        if self.round == n:
                            work.evaluate_last()
                        shown.update(row)
                        _warn(row["warnings"], shown)
                        yield row
                # A forked process has a copy of the loop, and the record is not its own.
                if os.getpid() == process:
                    work.checkpoint()
            except BaseException as error:
                # After an error, or an interrupt from the keyboard, the next `rounds` starts from
                # the checkpoint on disk. What was in memory goes now, also behind the traceback
                # that a notebook keeps, so that the next call has room for its model.
                advice = out_of_memory(error, self.lab, work and work.training)
                self._work = work = None
                release(error)
                if advice is None:
                    raise
                raise torch.OutOfMemoryError(advice) from None
            finally:
                if os.getpid() == process:
                    self.trackers.finish()

    # What is in memory, and the checkpoint on disk

    def _open(self) -> OpenRun:
        """What this process holds in memory of the run.

        It is read from the checkpoint when this process holds nothing yet, and also when another
        process may have continued the run in the meantime.
        """
        if self._work is not None and not self.lock.taken_over:
            self.trackers.start(self.record.manifest)
            return self._work
        with ONE_AT_A_TIME:
            self._work = _begin(self)
        self._has_begun = True
        # The evaluation before the first round is logged by what comes next.
        self.trackers.start(self.record.manifest)
        self._work.restore()
        return self._work

    # What the run is

    def configuration(self) -> dict[str, Any]:
        """The manifest's part that tells this run from other runs: method, lab, data, arguments."""
        return {
            "method": describe(self.configured_method),
            "lab": self.lab.description(),
            "data": self.lab.digests(),
            "seed": describe(self.seed),
            "arguments": {name: describe(getattr(self, name)) for name in ARGUMENTS},
        }

    @property
    def _further(self) -> dict[str, Any]:
        """Further parts of the manifest that have to be the same when a run goes on."""
        files = read_from_files(self.configured_method)
        return {"files": files, "label": self.label, "code": self._code}

    def _check_directory(self) -> None:
        """ValueError unless the directory holds this run, or nothing yet."""
        if not (self.path / "manifest.json").exists():
            if self._has_begun:
                raise RecordError(
                    f"{self.path}: the record of this run was moved or deleted; go on with "
                    "Run.resume(path) where it is now, or begin a new Run"
                )
            refuse_other_files(self.path)
            # A manifest that could not be read again is refused before any model is loaded.
            manifests.manifest_text({"format": FORMAT, **self.configuration()})
            return
        self.check_recorded(self.record.manifest, self.path)

    def check_recorded(
        self, manifest: dict[str, Any], path: Path, made: dict[str, Any] | None = None
    ) -> None:
        """Raise ValueError unless the manifest of the record at `path` is that of this run.

        `made` is the manifest that this run would write, which is known once the policy is made.
        """
        ours = made or self.configuration() | self._further
        manifests.check_same_run(ours, manifest, path, self.mixed)


def _begin(run: Run) -> OpenRun:
    """Open the record, and make model, optimizer and method as they are before round 1."""
    method = run.configured_method.clone()
    # Models with adapters refer to themselves in circles. On a GPU one that is in use no more has
    # to go before the next one is loaded beside it; elsewhere Python need not look at once.
    if torch.cuda.is_initialized():
        gc.collect()
    policy = run.lab.policy()
    # All of them now: a prompt that the model cannot read would end the run when it is drawn.
    for pool in (run.lab.problems, run.lab.held_out):
        if isinstance(pool, Pool):
            policy.check_prompts(pool)
    # On the threads that the policy computes on.
    with torch_threads(getattr(policy, "threads", None)):
        manifest = {
            "format": FORMAT,
            **run.configuration(),
            **run._further,
            "files": read_from_files(method, policy, run.lab),
            "held_out": len(run.lab.held_out or ()),
            "policy": manifests.made_of(policy),
            "tokenizer": manifests.tokenizer_of(policy),
            **manifests.made_on(policy.device),
        }
    # Where the directory holds a record already, that one is opened, and the manifest above is
    # not written.
    if (run.path / "manifest.json").exists():
        run.check_recorded(run.record.manifest, run.path, manifest)
    writer = Writer(run.path, manifest, run.lock)
    training = Training(
        lab=run.lab,
        seed=run.seed,
        problems_per_round=run.problems_per_round,
        mini_batches=run.mini_batches,
        learning_rate=run.learning_rate,
        method=method,
        policy=policy,
        # Taken before any step, so that the reference is the policy at its initial weights.
        reference=policy.frozen() if method.objective.kl > 0 else None,
        optimizer=run.lab.make_optimizer(policy.parameters(), run.learning_rate),
        history=History(writer.rows),
        old_weights=OldWeights(policy, run.lab.stress.lag),
    )
    return OpenRun(training, writer, run.trackers, run.evaluate_every, run.checkpoint_every)


def _close(loop: weakref.ref[Generator]) -> None:
    """End a loop that is still open when Python ends."""
    still_open = loop()
    # One that is at work in another thread cannot be closed from here.
    if still_open is not None and inspect.getgeneratorstate(still_open) != inspect.GEN_RUNNING:
        still_open.close()


def _remove_directory(path: str, process: int) -> None:
    """Remove a temporary record together with its run, but not with a forked copy of the run."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)


def _idle_slots(method: Method, n: int) -> str:
    """A line for each slot whose value decides nothing in a run of n rounds."""
    warm_ups = {slot: value.warm_up_of(n) for slot, value in method.learning().items()}
    return "\n".join(
        f"{slot}: nothing is decided in the first {rounds} rounds, and this run has {n}"
        for slot, rounds in warm_ups.items()
        if rounds >= n > 0
    )


def _warn(texts: str, progress: Progress) -> None:
    """Each line as a `TrainingWarning`, above the progress bar."""
    for text in texts.splitlines():
        with progress.interrupted():
            warnings.warn(text, TrainingWarning, stacklevel=3)
