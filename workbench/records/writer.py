"""Writing a record: a round, an evaluation or a checkpoint at a time, each complete or not at all.

A round's rollouts are written before its line in the journal, so a round that the journal lists is
complete. What a killed process wrote after its last checkpoint is removed when the run is resumed,
and made again.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from workbench.records import files
from workbench.records.files import RecordError, RecordWarning, replacing, sync
from workbench.records.journal import Directory, Journal, begin
from workbench.records.locks import RecordLock
from workbench.records.manifest import manifest_text
from workbench.records.record import Record
from workbench.records.shelf import find_packed
from workbench.records.tables import column, content_of
from workbench.utils.validation import brief, cause_of

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from workbench.pools import Problem
    from workbench.rollouts import Rollouts

LOST = "the run cannot go on without it: put a copy back, or start again in another directory"


def refuse_other_files(path: Path) -> None:
    """Raise ValueError for a packed run, and for a directory that holds anything but a record.

    What a start that was killed at once leaves there is no obstacle.
    """
    if (path / files.MANIFEST).exists():
        return
    reason = None
    # A lock and a journal come before the manifest, so they may be alone in the directory.
    left_by_a_start = re.compile(rf"{files.LOCK}|({files.JOURNAL}|{files.MANIFEST})(\.writing)?")
    if find_packed(path) is not None:
        reason = "the run of this name is packed and finished; it can be read, but not go on"
    elif path.exists() and not path.is_dir():
        reason = "this is a file"
    elif path.exists() and not all(left_by_a_start.fullmatch(file.name) for file in path.iterdir()):
        reason = "the directory holds files that are no record"
    if reason:
        raise ValueError(f"out={str(path)!r}: {reason}; name an empty or new directory")


def _write_rollouts(path: Path, rollouts: Mapping[str, Any] | Rollouts) -> str:
    """Write columns of rollouts; returns the digest of the file."""
    content = content_of(pa.table({name: column(values) for name, values in rollouts.items()}))
    files.write(path, content)
    return files.digest_of(content)


class Writer:
    """Writes a record. It is made new, or opened to go on. One process at a time.

    Parameters
    ----------
    path : path
        Directory of the record.
    manifest : dict
        What the run is; written where there is no record yet. Its format is set here.
    lock : RecordLock, optional
        The lock that the caller holds. Before every write it is asked whether it still holds.
    """

    def __init__(
        self, path: Any, manifest: Mapping[str, Any], lock: RecordLock | None = None
    ) -> None:
        self.path = Path(path)
        self._lock = lock
        if not (self.path / files.MANIFEST).exists():
            self._create({**manifest, "format": files.FORMAT})
        # Nothing is written or deleted before the links are refused and the record is known to be
        # one that can go on.
        files.refuse_links(self.path)
        source = Directory(self.path)
        if not source.is_begun:
            raise RecordError(f"{source.problems[0]}; {LOST}")
        self._journal = Journal(self.path / files.JOURNAL, keep_entries=False)
        self._asked = set(source.asked)  # ids of the problems that are recorded
        self._open()

    # Rounds and evaluations

    @property
    def rounds(self) -> int:
        """How many there are so far."""
        return sum(line.kind == "row" for line in self._journal.lines)

    @property
    def evaluated(self) -> set[int]:
        """The rounds that have an evaluation."""
        return {line.round for line in self._journal.lines if line.kind == "evaluation"}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The row of every round so far, read from the disk."""
        return Directory(self.path).rows

    def round(
        self,
        row: Mapping[str, Any],
        rollouts: Mapping[str, Any],
        problems: Iterable[Problem] = (),
    ) -> None:
        """Add a round.

        Parameters
        ----------
        row : dict
            Its row in the table of rounds; its number stands under "round".
        rollouts : dict
            Columns (R,) by name.
        problems : iterable of Problem
            Those that it asked. A problem is recorded once, with the first round that has it.
        """
        number = row["round"]
        with self._writing(f"round {number}"):
            # The rollouts first: a round counts as complete once the journal lists it.
            digest = _write_rollouts(files.rollout_part(self.path, number), rollouts)
            self._append({"row": dict(row), "rollouts": digest}, problems)

    def evaluation(self, frame: pd.DataFrame, problems: Iterable[Problem] = ()) -> None:
        """Add an evaluation: a DataFrame with a column `round`, the same in all rows."""
        number = int(frame["round"].iloc[0])
        columns = {str(name): frame[name].tolist() for name in frame}
        with self._writing("an evaluation"):
            self._append({"evaluation": number, "columns": columns}, problems)

    def forget_evaluation(self, number: int) -> None:
        """Remove the evaluation after round `number`, the last thing that was written."""
        assert number == self.rounds and number in self.evaluated
        with self._writing("the journal"):
            self._keep(len(self._journal.lines) - 1)

    def truncate(self, last: int) -> None:
        """Forget rounds and evaluations after round `last`; they are made again.

        With last=-1 also the evaluation before the first round.
        """
        kept = 1 + sum(line.round <= last for line in self._journal.lines[1:])
        with self._writing(f"the record as of round {last}"):
            # The journal first: a round that it lists has its rollouts at every moment.
            self._keep(kept)
            for number, file in files.rollout_parts(self.path).items():
                if number > last:
                    file.unlink()
            sync(self.path / files.ROLLOUTS)
        self._asked = set(Directory(self.path).asked)

    def save_failure(self, number: int, rollouts: Rollouts) -> Path:
        """Keep the rollouts that stopped a round, tokens included; returns the file's path."""
        target = files.failure_part(self.path, number)
        with self._writing("the failed rollouts"):
            _write_rollouts(target, rollouts)
        return target

    # The checkpoint

    def checkpoint(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Put a new checkpoint in the place of the old one.

        Parameters
        ----------
        tensors : dict
            Tensors by name.
        state : dict
            JSON-ready; the number of rounds stands under "round".
        """
        from workbench.records import checkpoints  # torch is needed here only

        # With the checksum of the latest line of the journal, which depends on all lines before it.
        # So a checkpoint of another run is noticed, and so is a journal that was edited or has lost
        # its end since.
        state = {**state, "record": self._journal.sums[-1]}
        path = files.checkpoint_part(self.path)
        with self._writing("the checkpoint"), replacing(path) as temporary:
            checkpoints.save(temporary, tensors, state)

    def restore(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """Tensors and state of the checkpoint; None when there is none yet.

        Raises
        ------
        RecordError
            When it is damaged, belongs to another run, or was made after rounds that are lost.
        """
        from workbench.records import checkpoints  # torch is needed here only

        path = files.checkpoint_part(self.path)
        if not path.exists():
            return None
        try:
            tensors, state = checkpoints.load(path)
        except OSError as error:
            raise RecordError(f"{path}: {cause_of(error)}; {LOST}") from error
        number = state.get("round", 0)
        is_ours = state.pop("record", None) in self._journal.sums
        if not is_ours or number > self.rounds:
            raise RecordError(
                f"{path}: this checkpoint is of another run, or {files.JOURNAL} was changed since, "
                f"or has lost rounds (it has {self.rounds}, the checkpoint is of round "
                f"{brief(number)}): {LOST}"
            )
        return tensors, state

    # Opening

    def _create(self, manifest: Mapping[str, Any]) -> None:
        refuse_other_files(self.path)
        content = manifest_text(manifest).encode()
        try:
            files.make_directory(self.path)
            # The manifest comes last: where there is one, there is a journal.
            begin(self.path / files.JOURNAL, files.digest_of(content))
            files.write(self.path / files.MANIFEST, content)
        except OSError as error:
            cause = cause_of(error)
            raise RecordError(f"{self.path}: cannot write the manifest: {cause}") from error

    def _open(self) -> None:
        """Remove what a killed process was writing, and say what is damaged."""
        with self._writing("the record"):
            for folder in (files.ROLLOUTS, files.CHECKPOINTS):
                files.make_directory(self.path / folder)
            for unfinished in files.unfinished_files(self.path):
                unfinished.unlink()
        # The journal is needed to go on. Parts of the rollouts are not, so their damage is only
        # reported; so are lines after the checkpoint, which are made again.
        for problem in Record(self.path).problems():
            warnings.warn(f"{problem}; the run goes on without it", RecordWarning, stacklevel=4)

    # Writing

    def _append(self, entry: dict[str, Any], problems: Iterable[Problem]) -> None:
        """Add a line to the journal, with the problems that no line before it has."""
        new = {
            each.id: [each.prompt, each.answer] for each in problems if each.id not in self._asked
        }
        self._journal.append({**entry, "problems": new} if new else entry)
        self._asked |= new.keys()

    def _keep(self, count: int) -> None:
        """Forget all but the first lines."""
        if count < len(self._journal.lines):
            self._journal.append({"keep": count})

    @contextlib.contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """Name what could not be written, the cause, and what is kept."""
        if self._lock is not None:
            self._lock.check()
        self._journal.check()
        try:
            yield
        except OSError as error:
            rounds = self.rounds
            kept = f"rounds 1 to {rounds} are kept" if rounds else "no round was lost"
            raise RecordError(
                f"{self.path}: cannot write {what}: {cause_of(error)}; {kept}, mend the cause and "
                "run again"
            ) from error
