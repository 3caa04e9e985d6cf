"""Reading what a run left: a directory that a run writes, or a place on a shelf of packed runs.

    manifest.json            method, lab, seed, arguments; versions, hardware, git commit, start
    journal.jsonl            a line a round and a line an evaluation
    rollouts/000012.parquet  a row a rollout of round 12
    checkpoint/state.safetensors
    lock.json                the process that writes, or wrote last

A record can be read while its run goes on and after a crash. `workbench.records.writer` writes it,
`workbench.records.shelf` puts finished ones on a shelf, and `docs/record.md` explains every file
and column.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from workbench.records.files import (
    JOURNAL,
    KINDS,
    MANIFEST,
    SHELF,
    RecordError,
    RecordWarning,
    checkpoint_part,
    stamp_of,
)
from workbench.records.journal import Directory
from workbench.records.shelf import Packed, find_packed, packed_below, real
from workbench.utils.html import card
from workbench.utils.validation import instance_of

if TYPE_CHECKING:
    import pandas as pd

ASKED = ("question", "gold")  # what the table of problems adds to rollouts
SPENT = ("seconds", "rollouts", "flops")


class Record:
    """A run's record, as it is on the disk at each access.

    The manifest and the tables of rounds and evaluations are read again only when their files have
    changed. Whoever asks gets a copy, and may change it.

    A part that is damaged or missing is left out with a `RecordWarning` that names it, and the rest
    stays readable. Files with names that no part has are not looked at.

    Parameters
    ----------
    path : path
        Directory of the record, or of the run before it was packed.
    strict : bool
        Raise `RecordError` for a damaged or missing part instead.

    Raises
    ------
    RecordError
        Where there is no record, and for a manifest that cannot be read or is of a format that this
        version does not know.
    """

    def __init__(self, path: Any, strict: bool = False) -> None:
        self.path = Path(path)
        self.strict = strict
        place = real(path)
        # The record has changed only if one of these files has: its own, or the shelf that it is
        # on, which lies in its directory or in one above.
        self._files = [self.path / MANIFEST, self.path / JOURNAL, checkpoint_part(self.path)]
        self._files += [folder / SHELF for folder in (place, *place.parents)]
        # What was read, and what the files looked like before. Tables of rollouts are not kept,
        # since they are large.
        self._known: Directory | Packed | None = None
        self._stamps: list[tuple[int, int, int] | None] = []
        self._frames: dict[str, pd.DataFrame] = {}
        _, problems = self._look_twice(lambda: (None, list(self._source().problems)))
        self._report(problems)

    def __repr__(self) -> str:
        rounds = len(self.rounds)
        return f"Record({str(self.path)!r}: {self.label}, seed {self.seed}, {rounds} rounds)"

    def _repr_html_(self) -> str:
        ends = self.accuracy()["accuracy"].iloc[[0, -1]] if len(self.evals) else ()
        rows = [
            ("lab", self.manifest["lab"]["lab"]),
            ("seed", self.seed),
            ("rounds", len(self.rounds)),
            ("held-out accuracy", " to ".join(f"{accuracy:.3f}" for accuracy in ends)),
            ("path", self.path),
        ]
        return card(f"Record of {self.label}", rows)

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest, checked; see `workbench.records.manifest`."""
        return json.loads(json.dumps(self._source().manifest))

    @property
    def is_packed(self) -> bool:
        """Whether the run is finished and on a shelf, so that it cannot go on."""
        return isinstance(self._source(), Packed)

    @property
    def label(self) -> str:
        """The label that the run was given, or the name of its method."""
        manifest = self._source().manifest
        return manifest.get("label") or manifest["method"]["name"]

    @property
    def seed(self) -> int:
        """The seed that the run was given."""
        return self._source().manifest["seed"]

    @property
    def rounds(self) -> pd.DataFrame:
        """One row a round: rewards, ratios, counts, seconds by phase, tokens, FLOPs, gradient
        norm.
        """
        return self._seen(lambda: self._frame("rounds"))

    @property
    def evals(self) -> pd.DataFrame:
        """One row a held-out problem and evaluation: round, problem, level, samples, correct,
        greedy.
        """
        return self._seen(lambda: self._frame("evals"))

    @property
    def questions(self) -> pd.DataFrame:
        """One row a problem that was asked: problem, question, gold; empty in early records."""
        return self._seen(lambda: self._frame("problems"))

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
            Rounds differ in columns where a slot had nothing to say. What a round lacks is NaN.
            Question and gold answer stand beside every response, as far as the record has them.
            Where none was kept, or of none of these rounds, a RecordWarning says so.

        Raises
        ------
        ValueError
            For a column that none of these rounds has.
        """
        import pandas as pd

        instance_of("rounds", rounds, (Iterable, type(None)), "[3]")
        wanted = None if rounds is None else set(rounds)
        names = None if columns is None else list(columns)
        is_asked = names is not None and not {*ASKED}.isdisjoint(names)
        read = [*{*names, "problem"} - {*ASKED}] if names and is_asked else names
        table = self._seen(lambda: self._source().rollouts(wanted, read))
        if not len(table):
            if why := self.why_empty or (wanted and "it has no rollouts of these rounds"):
                warnings.warn(f"{self.path}: {why}", RecordWarning, stacklevel=2)
            return pd.DataFrame(columns=names)
        table = table.drop_columns("part")
        # Without the responses there is nothing to judge.
        needed = {"problem"} if is_asked else {"problem", "text"}
        questions = pd.DataFrame()
        if needed <= {*table.column_names}:
            questions = self._seen(lambda: self._frame("problems"))
        if len(questions):
            texts = questions.set_index("problem").reindex(table["problem"].to_pylist())
            for name in ASKED:
                table = table.append_column(name, pa.array(texts[name], from_pandas=True))
        # A column that none of these rounds has is there when others have it.
        full = [name for name in table.column_names if table[name].null_count < len(table)]
        there = full if names is None else [name for name in names if name in full]
        if absent := [name for name in names or () if name not in there]:
            why = f"; {self.why_empty}" if self.why_empty else ""
            lacking = ", ".join(map(repr, absent))
            raise ValueError(f"columns={names}: no rollouts have {lacking}{why}")
        return table.select(there).to_pandas(ignore_metadata=True)

    @property
    def why_empty(self) -> str | None:
        """Why rollouts, or columns of them, are missing; None where nothing was left out."""
        kept = self._source().manifest.get("thinned", {}).get("columns")
        if kept is None:
            return None
        return (
            f"of its rollouts {', '.join(kept) or 'nothing'} was kept when it was packed; "
            "columns='sample' or 'all' of a sweep or a trial, and records.pack(folder), keep more"
        )

    def rounds_with_rollouts(self) -> list[int]:
        """Numbers of the rounds of which the record has rollouts, in order."""
        return self._source().parts

    @property
    def warnings(self) -> pd.DataFrame:
        """What looked wrong in the training: `round` and `warning`.

        Each cause is reported once, see `workbench.records.health`.
        """
        import pandas as pd

        rounds, lines = self.rounds, []
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
        evals, rounds = self.evals, self.rounds
        if evals.empty:
            return evals.reindex(columns=["round", "accuracy", "greedy", *SPENT])
        evals = evals.assign(accuracy=evals["correct"] / evals["samples"])
        table = evals.groupby("round")[["accuracy", "greedy"]].mean().reset_index()
        for name in SPENT:
            if len(rounds) and name not in rounds:
                raise RecordError(f"{self.path}: column {name!r} of the rounds is missing")
            spent = rounds.set_index("round")[name].cumsum() if len(rounds) else {}
            table[name] = [float(spent.get(number, 0.0)) for number in table["round"]]
        return table

    def problems(self) -> list[str]:
        """What is damaged or missing, one line each; reads everything.

        Returns
        -------
        list of str
            Empty for a record that is whole, also while its run goes on and after it was killed.
        """

        def find() -> tuple[None, list[str]]:
            source = self._source()
            problems = list(source.problems)
            for kind in KINDS[:-1]:
                try:
                    source.table(kind)
                except RecordError as error:
                    problems.append(str(error))
            # One column tells whether a file is there and unchanged.
            problems += source.rollouts(None, ["round"])[1]
            return None, list(dict.fromkeys(problems))

        return self._look_twice(find)[1]

    # What is there, and what is wrong with it

    def _source(self) -> Directory | Packed:
        """The directory of the run or its place on a shelf, read anew where a file has changed."""
        stamps = [stamp_of(file) for file in self._files]
        if self._known is None or stamps != self._stamps:
            try:
                self._known = Directory(self.path)
            except FileNotFoundError:
                self._known = find_packed(self.path)
            self._stamps = stamps
            self._frames = {}
        if self._known is None:
            hint = _hint(self.path)
            raise RecordError(f"{self.path}: no record here ({MANIFEST} is missing){hint}")
        return self._known

    def _frame(self, kind: str) -> tuple[pd.DataFrame, list[str]]:
        """The table of rounds or of evaluations, and what is wrong with it."""
        import pandas as pd

        source = self._source()
        if kind not in self._frames:
            try:
                table = source.table(kind)
            except RecordError as error:
                return pd.DataFrame({"round": []}), [*source.problems, str(error)]
            frame = table.to_pandas(ignore_metadata=True)
            self._frames[kind] = frame if len(table) else pd.DataFrame({"round": []})
        # pandas copies what is shared as soon as one of its owners writes.
        return self._frames[kind].copy(deep=False), list(source.problems)

    def _report(self, problems: Sequence[str], stacklevel: int = 3) -> None:
        """Say what is damaged or missing; RecordError with strict=True."""
        if self.strict and problems:
            raise RecordError(problems[0])
        for text in problems:
            text += "; the rest is read without it"
            warnings.warn(text, RecordWarning, stacklevel=stacklevel)

    def _seen(self, find: Callable[[], tuple[Any, list[str]]]) -> Any:
        """What `find` returns, once what is damaged or missing has been reported."""
        value, problems = self._look_twice(find)
        # The warning points at the line that asked for the table.
        self._report(problems, stacklevel=4)
        return value

    def _look_twice(self, find: Callable[[], tuple[Any, list[str]]]) -> tuple[Any, list[str]]:
        """What `find` returns: a value, and what is damaged or missing.

        A run that resumes while we look removes files of rounds that its journal had a moment ago,
        and one that is packed moves. So what is wrong counts only when it is still wrong at a
        second look.
        """
        value, problems = find()
        if problems:
            self._known = None
            value, problems = find()
        return value, problems


def examined(path: Any) -> tuple[Record | None, str]:
    """The record at `path`, where it can be opened, and what is damaged of it in one line.

    The line is empty for a record that is whole.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecordWarning)
            record = Record(path)
            problems = record.problems()
    except RecordError as error:
        return None, str(error)
    return record, problems[0] if problems else ""


def damage_of(path: Any) -> str:
    """What is damaged of the record at `path`, in one line; nothing where it is whole."""
    return examined(path)[1]


def _hint(path: Path) -> str:
    """The end of a message that tells of records below a path, such as the seeds of a method."""
    # Not deeper, since a wrong path may have a whole disk below it.
    below = sorted([*path.glob(f"*/{MANIFEST}"), *path.glob(f"*/*/{MANIFEST}")])
    places = [manifest.parent for manifest in below] or sorted(packed_below(path))
    if not places:
        return ""
    return f"; there are {len(places)} below it, such as {places[0]}; load_all reads them all"


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
