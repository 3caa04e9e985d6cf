"""A run is a Lab times a Method, and leaves a Record.

One round: the curriculum chooses problems, the allocator asks for counts, the policy generates, the
verifier scores, replay joins old responses, the selector chooses, advantages are taken, the
objective is minimised in mini-batches, the round is recorded, and the slots learn from it.
`workbench.rounds` drives the slots; `workbench.session` does the rest.
"""

from __future__ import annotations

import inspect
import os
import tempfile
import warnings
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import labs
from workbench.labs import Lab
from workbench.methods import Method
from workbench.problems import MOST_PROBLEMS, Stream
from workbench.records import FORMAT, Record, RecordWarning, refuse_other_files
from workbench.records.environment import changes
from workbench.records.health import TrainingWarning
from workbench.records.locks import RecordLock
from workbench.records.manifest import check_resumable, made_again, manifest_text
from workbench.records.trackers import Trackers
from workbench.slots import NEEDS
from workbench.utils.descriptions import describe, differences, rebuild
from workbench.utils.html import card
from workbench.utils.validation import instance_of, positive_number, whole_number

if TYPE_CHECKING:
    from workbench.session import Session

# The arguments of `Run` that the manifest holds, and that `resume` passes on.
ARGUMENTS = (
    "seed",
    "problems_per_round",
    "learning_rate",
    "mini_batches",
    "evaluate_every",
    "checkpoint_every",
)


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
        Who else sees the rounds: "tensorboard" (beside the record), "wandb", "trackio", or objects
        of your own, see `workbench.records.trackers`.

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
    ) -> None:
        instance_of("lab", lab, Lab, "labs.tiny()")
        instance_of("method", method, Method, "methods.grpo()")
        method.check_provided(NEEDS, "Run")
        whole_number("seed", seed, 0)
        whole_number("problems_per_round", problems_per_round, 1, MOST_PROBLEMS)
        whole_number("mini_batches", mini_batches, 1)
        whole_number("evaluate_every", evaluate_every, 0)
        whole_number("checkpoint_every", checkpoint_every, 1)
        if mini_batches > problems_per_round:
            raise ValueError(
                f"mini_batches={mini_batches}: at most one for each of the {problems_per_round} "
                "problems a round"
            )
        if learning_rate is not None:
            positive_number("learning_rate", learning_rate)
        if out is not None and not isinstance(out, str | os.PathLike):
            raise ValueError(f"out={out!r}: the path of a directory is needed, or None")
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
        # The temporary directory is removed when its object goes, so it is held as long as the run
        # is.
        self._temporary = None
        if out is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="workbench-")
            out = self._temporary.name
        self.path = Path(out)
        self.trackers = Trackers(trackers, self.path)
        self._check_directory()
        # Last, since a verifier's processes may take seconds to start.
        lab.check_answers()
        self.lock = RecordLock(self.path)
        self._session: Session | None = None
        self._loop: weakref.ref[Generator] | None = None  # what `rounds` returned last

    @classmethod
    def resume(
        cls,
        path: Any,
        *,
        lab: Lab | None = None,
        method: Method | None = None,
        trackers: Any = (),
    ) -> Run:
        """The run whose record is at `path`, to go on where it stopped.

        Lab and method are made from the manifest. Those with parts of your own making have to be
        passed, and trackers have to be named again.
        """
        manifest = Record(path).manifest
        check_resumable(manifest, Path(path))
        arguments = manifest["arguments"]
        unknown = sorted(arguments.keys() - set(ARGUMENTS))
        if unknown:
            raise ValueError(
                f"{path}: its arguments {', '.join(unknown)} are unknown to this version of "
                "workbench"
            )
        if lab is None:
            lab = made_again(labs.from_config, manifest, "lab", path)
            if manifest.get("data") not in (None, lab.digests()):
                raise ValueError(
                    f"{path}: the lab in its manifest has other problems than the run had; they "
                    "were of your own, or their file has changed: pass the lab that has them, "
                    "Run.resume(path, lab=...)"
                )
        if method is None:
            method = made_again(rebuild, manifest, "method", path)
        return cls(lab, method, out=path, **arguments, trackers=trackers)

    @property
    def method(self) -> Method:
        """The method, with what it has learnt so far in this process."""
        return self._session.method if self._session else self.configured_method

    @property
    def policy(self) -> Any:
        """The model as trained so far; None before the first round in this process."""
        return self._session.policy if self._session else None

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
        if self._session:
            return self._session.round
        return len(self.record.rounds) if (self.path / "manifest.json").exists() else 0

    def __repr__(self) -> str:
        return f"Run({self.lab.name!r}, {self.method!r}, seed={self.seed}, out={str(self.path)!r})"

    def _repr_html_(self) -> str:
        rows = [
            ("lab", self.lab.name),
            ("method", self.method),
            ("seed", self.seed),
            ("record", self.path),
        ]
        return card("Run", rows)

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
            Whether to show a progress bar.

        Yields
        ------
        dict
            The row of each new round, as soon as it is recorded.
        """
        # This function is no generator itself, so that a wrong argument is refused at the call and
        # not at the first step of the loop.
        whole_number("n", n, 0)
        earlier = self._loop() if self._loop is not None else None
        if earlier is not None:
            # It holds the record's lock until it is closed, which otherwise happens only when the
            # caller's last name for it goes.
            earlier.close()
        loop = self._rounds(n, progress)
        # A strong reference would keep an abandoned loop alive, and with it the lock on the record.
        self._loop = weakref.ref(loop)
        # Python would close it only after it has taken down what writes the checkpoint.
        weakref.finalize(loop, _close_at_exit, self._loop, os.getpid())
        return loop

    def _rounds(self, n: int, progress: bool) -> Generator[dict[str, Any], None, None]:
        from tqdm.auto import tqdm

        # Once more, since the directory may have got another record after the run was made.
        self._check_directory()
        with self.lock:
            with self._all_or_nothing():
                session = self._open_session()
                if session.round < n:
                    session.drop_last_evaluation()
                elif session.round == n:
                    # An interrupt may have come between the last round and its evaluation.
                    session.evaluate_last()
            bar = tqdm(
                total=n,
                initial=min(session.round, n),
                desc=self.configured_method.name,
                unit="round",
                disable=not progress,
            )
            with bar:
                try:
                    while session.round < n:
                        with self._all_or_nothing():
                            row = session.step()
                            if session.round == n:
                                session.evaluate_last()
                        # From here on the round is complete. The `yield` stands outside the block
                        # above, because leaving the loop raises GeneratorExit there, which must not
                        # cost the session.
                        bar.update()
                        bar.set_postfix(
                            reward=f"{row['reward']:.3f}",
                            effective=f"{row['effective_gradient_ratio']:.2f}",
                        )
                        _warn(row["warnings"], bar)
                        yield row
                finally:
                    # Also when the caller leaves the loop; after an error there is no session, and
                    # the checkpoint on disk stays the one to go on from.
                    if self._session is not None:
                        self._session.checkpoint()
                    self.trackers.finish()

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """After an error or an interrupt within, the next `rounds` starts from the checkpoint."""
        try:
            yield
        except BaseException:
            # An interrupt from the keyboard, which is no `Exception`, leaves a half-finished round
            # as well.
            self._session = None
            raise

    def _open_session(self) -> Session:
        """The session of this process, or a new one from the checkpoint.

        A new one is needed where another process may have written meanwhile.
        """
        from workbench.session import Session

        if self._session is not None and not self.lock.taken_over:
            self.trackers.start(self.record.manifest)
            return self._session
        session = Session(self)
        # For a new record the two manifests are the same; for an old one they tell what has changed
        # on this machine, such as versions of packages.
        changed = changes(session.manifest, self.record.manifest)
        if changed:
            warnings.warn(
                f"{self.path}: goes on under other conditions (now, then): "
                f"{'; '.join(changed[:3])}; its rounds may differ from those of an uninterrupted "
                "run",
                RecordWarning,
                stacklevel=4,
            )
        self.trackers.start(self.record.manifest)
        # Assigned after the restore, so that one that fails leaves no session behind.
        session.restore()
        self._session = session
        return session

    def configuration(self) -> dict[str, Any]:
        """What makes this run itself, for the manifest."""
        return {
            "method": describe(self.configured_method),
            "lab": self.lab.description(),
            "data": self.lab.digests(),
            "seed": describe(self.seed),
            "arguments": {name: describe(getattr(self, name)) for name in ARGUMENTS},
        }

    def _check_directory(self) -> None:
        """ValueError unless the directory holds this run, or nothing yet."""
        if not (self.path / "manifest.json").exists():
            refuse_other_files(self.path)
            # A manifest that could not be read again is refused before any model is loaded.
            manifest_text({"format": FORMAT, **self.configuration()})
            return
        manifest = Record(self.path).manifest
        check_resumable(manifest, self.path)
        self.check_recorded(manifest, self.path)

    def check_recorded(self, manifest: dict[str, Any], path: Path) -> None:
        """Raise ValueError unless the manifest of the record at `path` is that of this run."""
        asked_for = self.configuration()
        recorded = {name: manifest.get(name) for name in asked_for}
        if recorded["data"] is None:
            # A record of an earlier version says nothing of the data.
            recorded["data"] = asked_for["data"]
        elif isinstance(self.lab.problems, Stream) and recorded["data"].get("problems") is None:
            # Neither does one that was made before streams had digests.
            recorded["data"] = {**recorded["data"], "problems": asked_for["data"]["problems"]}
        if self.lab.config is None and recorded["lab"] == {"lab": self.lab.name}:
            # Earlier versions recorded of an own lab its name alone.
            recorded["lab"] = asked_for["lab"]
        different = differences(asked_for, recorded)
        if different:
            raise ValueError(
                f"out={str(path)!r} holds another run (asked for, recorded): "
                f"{'; '.join(different[:3])}; name another directory"
            )


def _close_at_exit(loop: weakref.ref[Generator], process: int) -> None:
    """End a loop that is still open when Python ends; nothing where it has gone before."""
    still_open = loop()
    # A forked process has a copy of the loop, and the record is not its own.
    if still_open is None or os.getpid() != process:
        return
    # One that is at work in another thread cannot be closed from here.
    if inspect.getgeneratorstate(still_open) != inspect.GEN_RUNNING:
        still_open.close()


def _warn(texts: str, bar: Any) -> None:
    """Each line as a `TrainingWarning`, above the progress bar."""
    for text in texts.splitlines():
        with bar.external_write_mode():
            warnings.warn(text, TrainingWarning, stacklevel=3)
