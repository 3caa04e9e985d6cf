"""Reading what a run left: a directory of tables and a manifest, complete after every round.

    manifest.json            method, lab, seed, arguments; versions, hardware, git commit, start
    rounds.parquet           a row a round
    rollouts/000012.parquet  a row a rollout of round 12
    rollouts.parquet         in their place, all that a record keeps after `records.thin`
    evals.parquet            a row a held-out problem and evaluation
    checkpoint/state.safetensors
    lock.json                the process that writes, or wrote last

A record can be read while its run goes on and after a crash. `workbench.records.writer` writes it,
`workbench.records.parts` names its parts, and `docs/record.md` explains every column.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.records.errors import RecordError, RecordWarning
from workbench.records.manifest import read_manifest
from workbench.records.parts import (
    EVALS,
    MANIFEST,
    MERGED,
    ROLLOUTS,
    ROUNDS,
    checkpoint_part,
    rollout_part,
    rollout_parts,
)
from workbench.records.tables import read_frame
from workbench.utils.html import card

if TYPE_CHECKING:
    import pandas as pd

SPENT = ("seconds", "rollouts", "flops")
# Time of the last change, size, and number on the disk; None where there is no file.
Stamp = tuple[int, int, int] | None


class Record:
    """A run's record, as it is on the disk at each access.

    The manifest and the tables of rounds and evaluations are read again only when their files have
    changed. Whoever asks gets a copy, and may change it.

    A part that is damaged or missing is left out with a `RecordWarning` that names it, and the rest
    stays readable. Files with names that no part has are not looked at.

    Parameters
    ----------
    path : path
        Directory of the record.
    strict : bool
        Raise `RecordError` for a damaged or missing part instead.

    Raises
    ------
    RecordError
        For a directory without a manifest, and for a manifest that cannot be read or is of a format
        that this version does not know.
    """

    def __init__(self, path: Any, strict: bool = False) -> None:
        self.path = Path(path)
        self.strict = strict
        # What was read, beside what the file looked like before. Tables of rollouts are not kept,
        # since they are large.
        self._known_manifest: tuple[Stamp, str] | None = None
        self._known_tables: dict[tuple[str, tuple[str, ...]], tuple[Stamp, pd.DataFrame]] = {}
        # One that cannot be read says so now, and its format never changes.
        self._format = self.manifest["format"]

    def __repr__(self) -> str:
        seed = self.manifest["seed"]
        rounds = len(self.rounds)
        return f"Record({str(self.path)!r}: {self.label}, seed {seed}, {rounds} rounds)"

    def _repr_html_(self) -> str:
        rows = [
            ("lab", self.manifest["lab"]["lab"]),
            ("seed", self.manifest["seed"]),
            ("rounds", len(self.rounds)),
        ]
        curve = self.accuracy()
        if len(curve):
            ends = [
                f"{row['accuracy']:.3f} (round {row['round']:.0f})"
                for _, row in curve.iloc[[0, -1]].iterrows()
            ]
            rows.append(("held-out accuracy", ends[0] if len(curve) == 1 else " to ".join(ends)))
        return card(f"Record of {self.label}", [*rows, ("path", self.path)])

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest, checked; see `workbench.records.manifest`."""
        stamp = _stamp(self.path / MANIFEST)
        if self._known_manifest is None or self._known_manifest[0] != stamp:
            self._known_manifest = (stamp, json.dumps(read_manifest(self.path)))
        return json.loads(self._known_manifest[1])

    @property
    def label(self) -> str:
        """Name of the method."""
        return self.manifest["method"]["name"]

    @property
    def rounds(self) -> pd.DataFrame:
        """One row a round: rewards, ratios, counts, seconds by phase, tokens, FLOPs, gradient
        norm.
        """
        frame, problems = self._look_twice(self._find_rounds)
        self._report(problems)
        return _or_empty(frame)

    @property
    def evals(self) -> pd.DataFrame:
        """One row a held-out problem and evaluation: round, problem, level, samples, correct,
        greedy.
        """
        frame, problems = self._look_twice(self._find_evals)
        self._report(problems)
        return _or_empty(frame)

    def rollouts(
        self, rounds: Iterable[int] | None = None, columns: Sequence[str] | None = None
    ) -> pd.DataFrame:
        """One row a rollout of the rounds that are complete.

        Parameters
        ----------
        rounds : numbers, optional
            Rounds to read; None reads all.
        columns : names, optional
            Columns to read; None reads all.

        Returns
        -------
        DataFrame
            Parts differ in columns where a slot had nothing to say. What a part lacks is NaN.

        Raises
        ------
        ValueError
            For a column that no part has.
        """
        import pandas as pd

        wanted = None if rounds is None else {int(number) for number in rounds}
        names = None if columns is None else list(columns)
        frames, problems = self._look_twice(lambda: self._find_rollouts(wanted, names))
        self._report(problems)
        if not frames:
            return pd.DataFrame(columns=names)
        absent = [name for name in names or () if not any(name in frame for frame in frames)]
        if absent:
            raise ValueError(f"columns={names}: no rollouts have {', '.join(map(repr, absent))}")
        return pd.concat(frames, ignore_index=True)

    def rounds_with_rollouts(self) -> list[int]:
        """Numbers of the rounds of which the record has rollouts, in order."""
        merged, problems = self._look_twice(lambda: self._read_merged([]))
        self._report(problems)
        return list(rollout_parts(self.path) if merged is None else merged)

    @property
    def warnings(self) -> pd.DataFrame:
        """What looked wrong in the training: `round` and `warning`.

        Each cause is reported once, see `workbench.records.health`.
        """
        import pandas as pd

        rounds = self.rounds
        lines = []
        if "warnings" in rounds:  # records of early versions have none
            for number, text in zip(rounds["round"], rounds["warnings"]):
                if isinstance(text, str):
                    lines += [(number, line) for line in text.splitlines()]
        return pd.DataFrame(lines, columns=["round", "warning"])

    def accuracy(self) -> pd.DataFrame:
        """Held-out accuracy by round, and what the training had spent until then.

        Returns
        -------
        DataFrame
            round, accuracy (avg@k), greedy, and seconds, rollouts and flops, summed over the rounds
            up to then.
        """
        evals = self.evals
        rounds = self.rounds
        if evals.empty:
            return evals.reindex(columns=["round", "accuracy", "greedy", *SPENT])
        evals = evals.assign(accuracy=evals["correct"] / evals["samples"])
        table = evals.groupby("round")[["accuracy", "greedy"]].mean().reset_index()
        for name in SPENT:
            if len(rounds) and name not in rounds:
                raise RecordError(f"{self.path / ROUNDS}: column {name!r} is missing")
            spent = rounds.set_index("round")[name].cumsum() if len(rounds) else {}
            table[name] = [
                float(spent[number]) if number in spent else 0.0 for number in table["round"]
            ]
        return table

    def problems(self) -> list[str]:
        """What is damaged or missing, one line each; reads everything.

        Returns
        -------
        list of str
            Empty for a record that is whole, also while its run goes on and after it was killed.
        """
        return [
            problem
            for find in (
                self._find_rounds,
                self._find_evals,
                # One column tells whether a file is there, can be read and belongs to its round.
                # Reading all of them would take far longer.
                lambda: self._find_rollouts(None, ["round"]),
            )
            for problem in self._look_twice(find)[1]
        ]

    # What is there, and what should be

    def _report(self, problems: Sequence[str]) -> None:
        """Say what is damaged or missing; RecordError with strict=True."""
        if self.strict and problems:
            raise RecordError(problems[0])
        for problem in problems:
            # The warning points at the line that asked for the table.
            warnings.warn(f"{problem}; the rest is read without it", RecordWarning, stacklevel=3)

    @staticmethod
    def _look_twice(find: Callable[[], tuple[Any, list[str]]]) -> tuple[Any, list[str]]:
        """What `find` returns: a value, and what is damaged or missing.

        A run that resumes while we look shortens its tables one after the other, which looks like
        damage for a moment. So what is wrong counts only when it is still wrong at a second look.
        """
        value, problems = find()
        if problems:
            value, problems = find()
        return value, problems

    def _find_rounds(
        self, columns: Sequence[str] | None = None
    ) -> tuple[pd.DataFrame | None, list[str]]:
        path = self.path / ROUNDS
        if path.exists():
            frame, problems = self._read(path, ROUNDS, columns)
            # A row that is missing or comes twice would shift everything that is summed over
            # rounds.
            if frame is not None and frame["round"].tolist() != list(range(1, len(frame) + 1)):
                return None, [f"{path}: cannot be read: its rounds are not 1, 2, 3 and so on"]
            return frame, problems
        # A killed run may leave the first part of the rollouts without a table of rounds.
        # A second part, a checkpoint or a merged file means that there was a table once.
        last_part = max(rollout_parts(self.path), default=0)
        ended = checkpoint_part(self.path).exists() or (self.path / MERGED).exists()
        if last_part > 1 or ended:
            return None, [f"{path}: missing"]
        return None, []

    def _find_evals(self) -> tuple[pd.DataFrame | None, list[str]]:
        path = self.path / EVALS
        rounds, _ = self._find_rounds(["round"])
        expected = self._evaluated_rounds(0 if rounds is None else len(rounds))
        if not path.exists():
            return None, [f"{path}: missing"] if expected else []
        frame, problems = self._read(path, EVALS)
        if frame is None:
            return None, problems
        counts = frame["round"].value_counts()
        # An evaluation is written as a whole, so any other number of problems than the manifest's
        # says that rows were lost.
        size = self.manifest.get("held_out")
        for number in expected:
            if counts.get(number, 0) != size:
                problems.append(
                    f"{path}: {counts.get(number, 0)} of the {size} problems of the evaluation "
                    f"after round {number}"
                )
        return frame, problems

    def _evaluated_rounds(self, last: int) -> range:
        """After which rounds there must be an evaluation, when the last round is `last`.

        The evaluation after round k is made before round k + 1, so that after the last round may
        still be missing. Empty where the manifest does not say.
        """
        manifest = self.manifest
        every = manifest["arguments"].get("evaluate_every")
        if not manifest.get("held_out") or not isinstance(every, int) or every < 1:
            return range(0)
        return range(0, last, every)

    def _find_rollouts(
        self, wanted: set[int] | None, columns: list[str] | None
    ) -> tuple[list[pd.DataFrame], list[str]]:
        """The rollouts of every round in the table of rounds, or all parts where that is lost."""
        # The column `round` tells whether a part is in its place.
        names = columns
        if columns is not None and "round" not in columns:
            names = [*columns, "round"]
        merged, problems = self._read_merged(names)
        if problems:
            return [], problems
        parts = rollout_parts(self.path)
        there = parts if merged is None else merged
        rounds, _ = self._find_rounds(["round", "rollouts"])
        numbers = sorted(there)
        sizes = {}
        if rounds is not None:
            numbers = self._rounds_with_rollouts(there, rounds["round"].tolist())
            if "rollouts" in rounds:
                known = rounds.dropna(subset="rollouts")
                sizes = dict(zip(known["round"], known["rollouts"]))

        frames = []
        missing = []
        for number in numbers:
            if wanted is not None and number not in wanted:
                continue
            if number not in there:
                missing.append(number)
                continue
            if merged is None:
                place = str(parts[number])
                frame, found = self._read(parts[number], ROLLOUTS, names)
                problems += found
            else:
                place = f"{self.path / MERGED}, part {number}"
                frame = merged[number]
            if frame is None:
                continue
            problem = _wrong_round(frame, number, sizes.get(number))
            if problem:
                problems.append(f"{place}: {problem}")
                continue
            frames.append(frame if names == columns else frame.drop(columns="round"))
        if missing:
            problems.append(self._missing(missing, merged is not None))
        return frames, problems

    def _read_merged(
        self, columns: list[str] | None
    ) -> tuple[dict[int, pd.DataFrame] | None, list[str]]:
        """The parts of a thinned record's one file, by number; None where there is no such file."""
        path = self.path / MERGED
        if not path.exists():
            return None, []
        names = None if columns is None else [*columns, "part"]
        frame, problems = self._read(path, MERGED, names)
        if frame is None:
            return None, problems
        part = frame.pop("part")
        return {int(number): rows for number, rows in frame.groupby(part)}, problems

    def _missing(self, numbers: Sequence[int], merged: bool) -> str:
        """What is said of parts that are not there."""
        more = f" and {len(numbers) - 3} more" if len(numbers) > 3 else ""
        if merged:
            names = ", ".join(str(number) for number in numbers[:3])
            return f"{self.path / MERGED}: parts {names}{more}: missing"
        names = ", ".join(rollout_part(self.path, number).name for number in numbers[:3])
        return f"{self.path / ROLLOUTS}: {names}{more}: missing"

    def _rounds_with_rollouts(self, parts: Mapping[int, Any], numbers: list[int]) -> list[int]:
        """Those of the rounds whose rollouts should be there; see `workbench.records.thin`."""
        manifest = self.manifest
        thinned = manifest.get("thinned")
        if thinned is None:
            # Format 1 had no mark for a thinned record. Without a checkpoint it is taken for one.
            if manifest["format"] == 1 and not checkpoint_part(self.path).exists():
                return [number for number in numbers if number in parts]
            return numbers
        if thinned["columns"] == []:
            return []
        if thinned["rounds"] is None:
            return numbers
        return [number for number in numbers if number in thinned["rounds"]]

    def _read(
        self, path: Path, kind: str, columns: Sequence[str] | None = None
    ) -> tuple[pd.DataFrame | None, list[str]]:
        """The table at `path`, and what is wrong with it.

        A file that was there a moment ago and is gone was removed by a run that resumed.
        """
        key = (path.name, tuple(columns or ()))
        # Looked at before the file is read: one that changes meanwhile is read again next time.
        stamp = _stamp(path)
        known = self._known_tables.get(key)
        if known is not None and known[0] == stamp:
            return known[1].copy(deep=False), []
        try:
            frame = read_frame(path, kind, self._format, columns)
        except FileNotFoundError:
            return None, []
        except RecordError as error:
            return None, [str(error)]
        if kind in (ROUNDS, EVALS):
            # pandas copies what is shared as soon as one of its owners writes.
            self._known_tables[key] = (stamp, frame.copy(deep=False))
        return frame, []


def load(path: Any, strict: bool = False) -> Record:
    """The record at `path`.

    Parameters
    ----------
    path : path
        Directory of the record.
    strict : bool
        Raise `RecordError` for a damaged or missing part, where otherwise a `RecordWarning` names
        it.

    Returns
    -------
    Record

    Raises
    ------
    RecordError
        When there is no record, or none that this version can read.
    """
    return Record(path, strict)


def _stamp(path: Path) -> Stamp:
    """What tells that a file was written anew, since every part is replaced as a whole."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _wrong_round(frame: pd.DataFrame, number: int, size: int | None) -> str | None:
    """What shows that a part is not that of round `number`, which has `size` new rollouts."""
    if "round" not in frame:
        return None
    sampled_in = frame["round"]
    new = int((sampled_in == number).sum())
    # Old responses of earlier rounds may be among the rows, but every round has new ones, and
    # nothing in it can be from a later round.
    if new == 0 or (sampled_in > number).any():
        return "it holds the rollouts of another round"
    if size is not None and new != size:
        return f"it holds {new} of the {size} rollouts of its round"
    return None


def _or_empty(frame: pd.DataFrame | None) -> pd.DataFrame:
    """The table, or an empty one where nothing was written yet."""
    import pandas as pd

    return pd.DataFrame({"round": []}) if frame is None else frame
