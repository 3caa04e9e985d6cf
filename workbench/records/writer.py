"""Writing a record: a round, an evaluation or a checkpoint at a time, each complete or not at all.

A round's rollouts are written before its row in the table of rounds, so a round that the table
lists is complete. What a killed process wrote after its last checkpoint is removed when the run is
resumed, and made again.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from workbench.records.errors import RecordError, RecordWarning
from workbench.records.files import cause_of, make_directory, replacing, sync_directory
from workbench.records.locks import RecordLock
from workbench.records.manifest import check_resumable, digest, manifest_text, read_manifest
from workbench.records.parts import (
    CHECKPOINTS,
    EVALS,
    FORMAT,
    MANIFEST,
    MERGED,
    ROLLOUTS,
    ROUNDS,
    checkpoint_part,
    failure_part,
    refuse_links,
    refuse_other_files,
    rollout_part,
    rollout_parts,
    unfinished_files,
)
from workbench.records.record import Record
from workbench.records.tables import column, read_table, write_table
from workbench.rollouts import Ragged

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from workbench.rollouts import Rollouts

LOST = "the run cannot go on without it: put a copy back, or start again in another directory"


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

    Attributes
    ----------
    rows : list of dict
        The row of every round so far.
    evaluations : pyarrow.Table or None
        All evaluations so far.
    """

    def __init__(
        self, path: Any, manifest: Mapping[str, Any], lock: RecordLock | None = None
    ) -> None:
        self.path = Path(path)
        self.rows: list[dict[str, Any]] = []
        self.evaluations: pa.Table | None = None
        self._rounds = pa.table({})
        self._lock = lock
        if not (self.path / MANIFEST).exists():
            self._create({**manifest, "format": FORMAT})
        self._open()

    # Rounds and evaluations

    def round(self, row: Mapping[str, Any], rollouts: Mapping[str, Any]) -> None:
        """Add a round.

        Parameters
        ----------
        row : dict
            Its row in the table of rounds; its number stands under "round".
        rollouts : dict
            Columns (R,) by name.
        """
        number = row["round"]
        with self._writing(f"round {number}"):
            part = pa.table({name: column(values) for name, values in rollouts.items()})
            # The rollouts first: a round counts as complete once the table of rounds lists it.
            write_table(rollout_part(self.path, number), part)
            # Rows of later rounds may have further columns, or numbers where there was nothing, so
            # types are widened. `combine_chunks` keeps the table from growing by one chunk a round.
            table = pa.concat_tables(
                [self._rounds, pa.Table.from_pylist([dict(row)])], promote_options="permissive"
            ).combine_chunks()
            write_table(self.path / ROUNDS, table)
        # Only now, so that memory and disk agree after a failed write too.
        self._rounds = table
        self.rows.append(dict(row))

    def evaluation(self, frame: pd.DataFrame) -> None:
        """Add an evaluation: a DataFrame with a column `round`."""
        table = pa.Table.from_pandas(frame, preserve_index=False)
        if self.evaluations is not None:
            table = pa.concat_tables([self.evaluations, table])
        self._write_evaluations(table, "an evaluation")

    @property
    def evaluated(self) -> set[int]:
        """The rounds that have an evaluation."""
        return set() if self.evaluations is None else set(self.evaluations["round"].to_pylist())

    def forget_evaluation(self, number: int) -> None:
        """Remove the evaluation after round `number`."""
        assert self.evaluations is not None
        kept = self.evaluations.filter(pc.not_equal(self.evaluations["round"], number))
        self._write_evaluations(kept, "the evaluations")

    def truncate(self, last: int) -> None:
        """Forget rounds and evaluations after round `last`; they are made again.

        With last=-1 also the evaluation before the first round.
        """
        kept = sum(row["round"] <= last for row in self.rows)
        with self._writing(f"the record as of round {last}"):
            # The table first: a round that it lists has its rollouts at every moment.
            if kept < len(self.rows):
                table = self._rounds.slice(0, kept)
                write_table(self.path / ROUNDS, table)
                self._rounds = table
                self.rows = self.rows[:kept]
            if self.evaluations is not None:
                is_kept = pc.less_equal(self.evaluations["round"], last)
                evaluations = self.evaluations.filter(is_kept)
                if len(evaluations) < len(self.evaluations):
                    write_table(self.path / EVALS, evaluations)
                    self.evaluations = evaluations
            self._remove_rollouts_after(last)

    def save_failure(self, number: int, rollouts: Rollouts) -> Path:
        """Keep the rollouts that stopped a round, tokens included; returns the file's path."""
        target = failure_part(self.path, number)
        columns = {}
        for name, values in rollouts.items():
            if isinstance(values, Ragged):
                columns[name] = pa.array([values[i].tolist() for i in range(len(values))])
            else:
                columns[name] = column(values)
        with self._writing("the failed rollouts"):
            write_table(target, pa.table(columns))
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

        # Signed with the manifest, so that `restore` notices a checkpoint that was copied from
        # another run, or a manifest that was edited.
        signed = {**state, "manifest": self._digest}
        with self._writing("the checkpoint"), replacing(checkpoint_part(self.path)) as temporary:
            checkpoints.save(temporary, tensors, signed)

    def restore(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """Tensors and state of the checkpoint; None when there is none yet.

        Raises
        ------
        RecordError
            When it is damaged, or belongs to another run.
        """
        from workbench.records import checkpoints  # torch is needed here only

        path = checkpoint_part(self.path)
        if not path.exists():
            return None
        try:
            tensors, state = checkpoints.load(path)
        except OSError as error:
            raise RecordError(f"{path}: {cause_of(error)}; {LOST}") from error
        if not _names_a_round(state):
            raise RecordError(f"{path}: damaged (its state names no round); {LOST}")
        if state.pop("manifest", None) != self._digest:
            raise RecordError(
                f"{path}: this checkpoint is of another run, or {MANIFEST} was changed since: put "
                "both back from one copy, or start again in another directory"
            )
        return tensors, state

    # Opening

    def _create(self, manifest: Mapping[str, Any]) -> None:
        refuse_other_files(self.path)
        text = manifest_text(manifest)
        with self._writing("the manifest"):
            make_directory(self.path)
            with replacing(self.path / MANIFEST) as temporary:
                temporary.write_text(text, encoding="utf-8")

    def _open(self) -> None:
        # Nothing is written or deleted before the links are refused and the manifest is known to be
        # of a run that can go on.
        refuse_links(self.path)
        check_resumable(read_manifest(self.path), self.path)
        self._digest = digest(self.path)
        with self._writing("the record"):
            for folder in (ROLLOUTS, CHECKPOINTS):
                make_directory(self.path / folder)
            for unfinished in unfinished_files(self.path):
                unfinished.unlink()
        rounds = self._own_table(ROUNDS)
        if rounds is not None:
            self._rounds = rounds
        self.rows = self._rounds.to_pylist()
        self.evaluations = self._own_table(EVALS)
        # The two tables above are needed to go on. Parts of the rollouts are not, so their damage
        # is only reported.
        for problem in Record(self.path).problems():
            warnings.warn(f"{problem}; the run goes on without it", RecordWarning, stacklevel=4)

    def _own_table(self, name: str) -> pa.Table | None:
        """A table that the run needs to go on; None where it was not written yet."""
        path = self.path / name
        if not path.exists():
            return None
        try:
            return read_table(path, name)
        except RecordError as error:
            raise RecordError(f"{error}; {LOST}") from None

    # Writing

    def _write_evaluations(self, table: pa.Table, what: str) -> None:
        with self._writing(what):
            write_table(self.path / EVALS, table)
        self.evaluations = table

    def _remove_rollouts_after(self, last: int) -> None:
        parts = rollout_parts(self.path)
        surplus = [path for number, path in parts.items() if number > last]
        for path in surplus:
            path.unlink()
        if surplus:
            sync_directory(self.path / ROLLOUTS)

    @contextlib.contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """Name what could not be written, the cause, and what is kept."""
        if self._lock is not None:
            self._lock.check()
        try:
            yield
        except OSError as error:
            kept = "no round was lost"
            if self.rows:
                kept = f"rounds 1 to {self.rows[-1]['round']} are kept"
            raise RecordError(
                f"{self.path}: cannot write {what}: {cause_of(error)}; {kept}, mend the cause and "
                "run again"
            ) from error


def thin(
    path: Any, columns: Sequence[str] | None = (), rounds: Iterable[int] | None = None
) -> None:
    """Make a finished record small enough to be kept in a repository.

    It can be read as before, but not resumed: the checkpoint goes, and of the rollouts everything
    but the columns and rounds that are named. What is kept of them goes into one file, which takes
    about a tenth of the space of a file a round, and the other tables are written without
    statistics of their columns. The manifest says so under `thinned`.

    Parameters
    ----------
    path : path
    columns : names, optional
        Columns of the rollouts to keep: () for none, None for all.
    rounds : numbers, optional
        Rounds whose rollouts are kept; None for all.

    Raises
    ------
    RecordError
        When a run writes the record, or it cannot be written to.
    ValueError
        For a record of an old format.
    """
    directory = Path(path)
    manifest = read_manifest(directory)
    if manifest["format"] != FORMAT:
        check_resumable(manifest, directory)
    kept_rounds = None if rounds is None else sorted({int(number) for number in rounds})
    kept_columns = None if columns is None else list(columns)
    with RecordLock(directory):
        # The mark comes first: from here on the record is not resumed, wherever this stops.
        mark = _joined_marks(manifest.get("thinned"), kept_columns, kept_rounds)
        with replacing(directory / MANIFEST) as temporary:
            temporary.write_text(manifest_text({**manifest, "thinned": mark}), encoding="utf-8")
        checkpoint_part(directory).unlink(missing_ok=True)
        tables = _kept_tables(directory, kept_columns, kept_rounds)
        if tables:
            # A column that a part lacks is empty in its rows.
            merged = pa.concat_tables(tables, promote_options="default")
            write_table(directory / MERGED, merged, compact=True)
        else:
            (directory / MERGED).unlink(missing_ok=True)
        # The one file is on the disk before the first part goes.
        for part in rollout_parts(directory).values():
            part.unlink()
        with contextlib.suppress(OSError):  # there is none, or somebody else's files lie in it
            (directory / ROLLOUTS).rmdir()
        # Once is enough: a record that is thinned again keeps these files as they are.
        if "thinned" not in manifest:
            for kind in (ROUNDS, EVALS):
                path = directory / kind
                if path.exists():
                    write_table(path, read_table(path, kind), compact=True)
        sync_directory(directory)


def _names_a_round(state: Any) -> bool:
    """Whether the state of a checkpoint says after which round it was taken."""
    number = state.get("round") if isinstance(state, dict) else None
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _joined_marks(
    mark: Mapping[str, Any] | None, columns: list[str] | None, rounds: list[int] | None
) -> dict[str, Any]:
    """What is kept of a record that was thinned to `mark` and is thinned once more."""
    kept: dict[str, Any] = {"columns": columns, "rounds": rounds}
    for name, wanted in kept.items():
        before = None if mark is None else mark[name]
        # None stands for everything, so a second thinning can only shrink what is kept.
        if before is not None:
            kept[name] = before if wanted is None else [item for item in wanted if item in before]
    return kept


def _kept_tables(
    directory: Path, columns: list[str] | None, rounds: list[int] | None
) -> list[pa.Table]:
    """What is kept of the rollouts, each row with the number of its part; empty for nothing."""
    if columns == []:
        return []
    merged = directory / MERGED
    if merged.exists():  # thinned before
        names = None if columns is None else [*columns, "part"]
        table = read_table(merged, MERGED, names)
        if rounds is not None:
            table = table.filter(pc.is_in(table["part"], pa.array(rounds, pa.int64())))
        return [table] if len(table) else []
    tables = []
    for number, part in rollout_parts(directory).items():
        if rounds is None or number in rounds:
            table = read_table(part, ROLLOUTS, columns)
            numbers = pa.array([number] * len(table), pa.int64())
            tables.append(table.append_column("part", numbers))
    return tables
