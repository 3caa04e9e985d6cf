"""What a run has written in its own directory so far, as of one moment."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from workbench.records import journal
from workbench.records.errors import RecordError
from workbench.records.files import file_digest
from workbench.records.manifest import read_manifest
from workbench.records.parts import JOURNAL, MANIFEST, ROLLOUTS, rollout_part
from workbench.records.tables import checked, open_table, read_rows, reading


class Directory:
    """The record in a directory that a run writes.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    manifest : dict
    problems : list of str
        What is wrong with the manifest and the journal.

    Raises
    ------
    FileNotFoundError
        Where there is no manifest.
    RecordError
        Where the manifest cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path)
        self.problems: list[str] = []
        self._journal = journal.Journal()
        file = path / JOURNAL
        try:
            self._journal = reading(file, lambda: journal.read(file))
        except FileNotFoundError:
            self.problems.append(f"{file}: missing")
        except RecordError as error:
            self.problems.append(str(error))
        else:
            if self._journal.manifest != file_digest(path / MANIFEST):
                self.problems.append(
                    f"{path / MANIFEST}: it is not the one that {JOURNAL} began with: it was "
                    "edited, or one of them is of another run"
                )
            if self._journal.damage:
                self.problems.append(f"{file}: {self._journal.damage}")

    @cached_property
    def rounds(self) -> pa.Table:
        """The table of rounds; RecordError where it is none."""
        return reading(self.path / JOURNAL, self._journal.rounds)

    @cached_property
    def evals(self) -> pa.Table:
        """The table of evaluations; RecordError where it is none."""
        return reading(self.path / JOURNAL, self._journal.evals)

    @property
    def parts(self) -> list[int]:
        """The rounds that have rollouts."""
        return list(self._journal.parts)

    def rollouts(
        self, wanted: set[int] | None = None, columns: Sequence[str] | None = None
    ) -> tuple[pa.Table, list[str]]:
        """The rollouts of some rounds and what is wrong with them.

        The number of the round that recorded a row stands in the column `part`.
        """
        tables = []
        missing = []
        problems = list(self.problems)
        for number, digest in self._journal.parts.items():
            if wanted is not None and number not in wanted:
                continue
            path = rollout_part(self.path, number)
            try:
                tables.append(read_part(path, number, digest, columns))
            except FileNotFoundError:
                missing.append(path.name)
            except RecordError as error:
                problems.append(str(error))
        if missing:
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            problems.append(f"{self.path / ROLLOUTS}: {', '.join(missing[:3])}{more}: missing")
        return reading(self.path / ROLLOUTS, lambda: joined(tables)), problems


def read_part(
    path: Path, number: int, digest: str | None, columns: Sequence[str] | None
) -> pa.Table:
    """The rollouts of one file, with the column `part`; errors as in `open_table`."""

    def read() -> pa.Table:
        with open_table(path, digest) as file:
            table = checked(read_rows(file, columns), "rollouts")
            part = pa.array([number] * file.metadata.num_rows, pa.int64())
        return pa.table({**{name: table[name] for name in table.column_names}, "part": part})

    return reading(path, read)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables one below the other; a column that one lacks is empty in its rows."""
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
